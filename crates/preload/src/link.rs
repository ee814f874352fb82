//! The connection to the planner, and the door at which the next one knocks when it is gone.
//!
//! The first planner listens, and the runtime connects to it (`TERRACE_SOCKET`). Beside that
//! socket, in the same private directory, the runtime then listens itself, at `PID.runtime`: should
//! its planner die, `terrace attach PID` connects there. Meanwhile the agent sleeps in `accept`.
//!
//! Whoever is at the other end must be the user that this process was started as, or root: the
//! sockets' directory says so, and the kernel is asked again for each connection.

use crate::interpose;
use crate::offspring;
use crate::sys::slot::Slot;
use crate::sys::sync::OnlyThread;
use crate::sys::{credentials, proc, socket, thread};
use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::time::Duration;
use terrace_core::wire::{encode_refusal, split_message, FromRuntime, ToRuntime};

/// Between two attempts at what the kernel has no memory for.
const RETRY_US: u64 = 1000;
/// How often the agent looks around while it waits.
const IDLE_EVERY: Duration = Duration::from_millis(500);

/// Why there is no next message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// The planner is gone.
    Gone,
    /// What it sent is not a message.
    Nonsense,
}

/// A connection, or the wait for one.
pub struct Link {
    /// Keeps its descriptor for good, whatever connection is behind it.
    stream: UnixStream,
    buffer: Vec<u8>,
    door: Option<UnixListener>,
    owner: u32,
}

/// Where this process listens, and its id.
static DOOR: Slot<(PathBuf, u32)> = Slot::empty();

/// The descriptors of the link and of the door, which never change, and whether it is all over; see
/// [`stop`].
static STREAM_FD: AtomicI32 = AtomicI32::new(-1);
static DOOR_FD: AtomicI32 = AtomicI32::new(-1);

/// The descriptors of the connection and the door, as of now; -1 for none.
pub fn descriptors() -> [i32; 2] {
    [&STREAM_FD, &DOOR_FD].map(|fd| fd.load(Ordering::Relaxed))
}
static IS_STOPPED: AtomicBool = AtomicBool::new(false);
/// Whether there is no planner now who would remove the door's socket when this process has ended.
static IS_ORPHANED: AtomicBool = AtomicBool::new(false);

/// Ends the link for good, from another thread: whoever waits at it, for a message or for another
/// planner, sees the end.
pub fn stop() {
    IS_STOPPED.store(true, Ordering::SeqCst);
    proc::shut_down(STREAM_FD.load(Ordering::Relaxed));
    proc::shut_down(DOOR_FD.load(Ordering::Relaxed));
}

/// In a forked child: they are its parent's, and closed.
pub fn forget(_only: &OnlyThread) {
    DOOR.clear();
    STREAM_FD.store(-1, Ordering::Relaxed);
    DOOR_FD.store(-1, Ordering::Relaxed);
    IS_STOPPED.store(false, Ordering::Relaxed);
    IS_ORPHANED.store(false, Ordering::Relaxed);
}

impl Link {
    /// Connects to the planner at `path`. `owner` is the user that this process was started as.
    pub fn open(path: &Path, owner: u32) -> Option<Link> {
        let mut stream = UnixStream::connect(path).ok().filter(|s| is_trusted(s, owner))?;
        let Some(raised) = proc::raise_fd(stream.as_raw_fd()) else {
            let why = "it may not open descriptors enough (RLIMIT_NOFILE; 128 will do)";
            let _ = stream.write_all(&FromRuntime::Refused(why.into()).encode());
            return None;
        };
        interpose::protect_fd(raised);
        STREAM_FD.store(raised, Ordering::Relaxed);
        let stream = proc::stream_from(raised);
        // Now, and not for each message: by then the program may have forbidden the call to all of
        // its threads.
        let _ = stream.set_read_timeout(Some(IDLE_EVERY));
        Some(Link { stream, buffer: Vec::new(), door: open_door(path), owner })
    }

    /// Sends all of a message; a planner that is gone is noticed when receiving. At a memory limit
    /// the kernel refuses for a while: half a message would leave both sides waiting for the other.
    pub fn send(&mut self, message: &FromRuntime) {
        let bytes = message.encode();
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            match self.stream.write(rest) {
                Ok(n) => rest = rest.get(n..).unwrap_or_default(),
                Err(e) if may_pass(&e) => thread::sleep_us(RETRY_US),
                Err(_) => return,
            }
        }
    }

    /// The next message.
    pub fn receive(&mut self) -> Result<ToRuntime, End> {
        self.receive_or(&mut || {})
    }

    /// The next message; while there is none, `idle` is called twice a second.
    pub fn receive_or(&mut self, idle: &mut dyn FnMut()) -> Result<ToRuntime, End> {
        loop {
            credentials::follow();
            match split_message(&self.buffer).map_err(|_| End::Nonsense)? {
                Some((body, used)) => {
                    let message = ToRuntime::decode(body).map_err(|_| End::Nonsense);
                    self.buffer.drain(..used);
                    return message;
                }
                None => {
                    let mut chunk = [0u8; 16 << 10];
                    match self.stream.read(&mut chunk) {
                        Ok(0) => return Err(End::Gone),
                        Ok(n) => self.buffer.extend_from_slice(&chunk[..n]),
                        Err(e) if may_pass(&e) => {
                            if e.kind() == ErrorKind::WouldBlock {
                                idle();
                            }
                            // Also then: should the program make the socket non-blocking, this must
                            // not spin.
                            thread::sleep_us(RETRY_US);
                        }
                        Err(_) => return Err(End::Gone),
                    }
                }
            }
        }
    }

    /// Tells the planner why it is not listened to any longer.
    pub fn refuse(&mut self, why: &str) {
        self.send(&FromRuntime::Refused(why.into()));
    }

    /// Ends this connection and waits for another planner. `false` if none can come.
    pub fn await_next(&mut self) -> bool {
        IS_ORPHANED.store(true, Ordering::Relaxed);
        let _ = self.stream.shutdown(Shutdown::Both);
        // Not kept: a broken planner may have made it large.
        self.buffer = Vec::new();
        let Some(door) = &self.door else { return false };
        // What is put in place after `stop` has looked sees that it was called, and what was there
        // before is shut down by it.
        while !IS_STOPPED.load(Ordering::SeqCst) {
            credentials::follow();
            match door.accept() {
                Ok((stream, _)) if is_trusted(&stream, self.owner) => {
                    let _ = stream.set_read_timeout(Some(IDLE_EVERY));
                    if socket::put_in_place(&self.stream, stream) {
                        IS_ORPHANED.store(false, Ordering::Relaxed);
                        return !IS_STOPPED.load(Ordering::SeqCst);
                    }
                }
                Ok(_) => {}
                // Nobody yet.
                Err(e) if e.kind() == ErrorKind::WouldBlock => {}
                // No descriptor is free, mostly. The planner waits in the queue meanwhile.
                Err(_) if IS_STOPPED.load(Ordering::SeqCst) => break,
                Err(_) => thread::sleep_us(200_000),
            }
        }
        false
    }

    /// Ends it for good: this process is not tiered.
    pub fn close(&mut self) {
        let _ = self.stream.shutdown(Shutdown::Both);
        remove_door();
    }
}

/// Tells the planner at `path` why this process is not tiered, before there is a heap.
pub fn refuse_without_heap(path: &Path, why: &str) {
    let mut message = [0; 512];
    let trusted = |s: &UnixStream| is_trusted(s, socket::effective_user());
    if let Some(mut stream) = UnixStream::connect(path).ok().filter(trusted) {
        let _ = stream.write_all(encode_refusal(why, &mut message));
    }
}

/// Whether what failed may succeed when it is tried again. Our buffers are always there: EFAULT
/// says that one is in swap, and that the kernel may not bring it back at a memory limit.
fn may_pass(e: &std::io::Error) -> bool {
    let is_short =
        |errno| matches!(errno, libc::ENOMEM | libc::ENOBUFS | libc::EAGAIN | libc::EFAULT);
    e.kind() == ErrorKind::Interrupted || e.raw_os_error().is_some_and(is_short)
}

fn is_trusted(stream: &UnixStream, owner: u32) -> bool {
    socket::peer_user(stream).is_some_and(|user| user == owner || user == 0)
}

fn open_door(planner: &Path) -> Option<UnixListener> {
    let pid = std::process::id();
    let path = planner.with_file_name(format!("{pid}.runtime"));
    let door = socket::listen(&path).ok()?;
    let raised = proc::raise_fd(door.as_raw_fd())?;
    socket::limit_wait(&door, IDLE_EVERY);
    interpose::protect_fd(raised);
    DOOR_FD.store(raised, Ordering::Relaxed);
    DOOR.set(Box::leak(Box::new((path, pid))));
    Some(proc::listener_from(raised))
}

/// Whether the end of this process would leave the door's socket behind: where it has a planner,
/// that removes it. (Where there is a seccomp filter, that may not know the calls, it stays.)
pub fn leaves_door() -> bool {
    IS_ORPHANED.load(Ordering::Relaxed) && !offspring::has_filter()
}

/// When nobody is to come any more. Where it cannot (another root directory, another user), or does
/// not come to this, planner or `terrace status` remove what is left.
pub fn remove_door() {
    let Some((path, pid)) = DOOR.get() else { return };
    // A child of vfork shares our memory and comes here too.
    if *pid != std::process::id() {
        return;
    }
    if std::fs::symlink_metadata(path).is_ok_and(|m| m.file_type().is_socket()) {
        let _ = std::fs::remove_file(path);
    }
}
