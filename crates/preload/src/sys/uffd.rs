//! userfaultfd: the ioctls Terrace needs, with errno translated once into what it means for us.
//!
//! Where the danger is: `UFFDIO_COPY`, `ZEROPAGE` and `MOVE` into a range can only fill pages that
//! are missing, so a wrong address there fails instead of overwriting. Moving pages *out* of the
//! application and registering a range are the operations with a promise behind them: the caller
//! must be the pager thread, which is the only reader of events (see `pager/mod.rs`, "Order").

use super::messages::EventBuffer;
use super::readable::is_readable;
use super::{proc, spare};
use crate::interpose;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};

/// Feature bits of `UFFDIO_API`.
pub mod feature {
    /// Write-protect faults (Linux 5.7), for the doorbell.
    pub const PAGEFAULT_FLAG_WP: u64 = 1;
    /// Forks are announced, and the child's registrations handed over. Needs CAP_SYS_PTRACE.
    pub const EVENT_FORK: u64 = 1 << 1;
    /// mremap is announced.
    pub const EVENT_REMAP: u64 = 1 << 2;
    /// madvise that drops pages is announced.
    pub const EVENT_REMOVE: u64 = 1 << 3;
    /// munmap is announced.
    pub const EVENT_UNMAP: u64 = 1 << 6;
    /// A fault names its thread.
    pub const THREAD_ID: u64 = 1 << 8;
    /// `UFFDIO_MOVE` (Linux 6.8).
    pub const MOVE: u64 = 1 << 16;
    /// Pages can be protected from every access, and the kernel lifts that at the first one by
    /// itself (`RWP` and `RWP_ASYNC`, Linux 7.3).
    pub const WATCH: u64 = 1 << 17 | 1 << 18;
}

const UFFD_API: u64 = 0xaa;
const IOC_API: u64 = iowr(0x3f, 24);
const IOC_REGISTER: u64 = iowr(0x00, 32);
const IOC_UNREGISTER: u64 = ior(0x01, 16);
const IOC_WAKE: u64 = ior(0x02, 16);
const IOC_COPY: u64 = iowr(0x03, 40);
const IOC_ZEROPAGE: u64 = iowr(0x04, 32);
const IOC_MOVE: u64 = iowr(0x05, 40);
const IOC_WRITEPROTECT: u64 = iowr(0x06, 24);
const IOC_RWPROTECT: u64 = iowr(0x09, 24);
/// `USERFAULTFD_IOC_NEW` on `/dev/userfaultfd`.
const IOC_NEW: u64 = 0xaa << 8;

const fn iowr(nr: u64, size: u64) -> u64 {
    (3 << 30) | (size << 16) | (UFFD_API << 8) | nr
}
const fn ior(nr: u64, size: u64) -> u64 {
    (2 << 30) | (size << 16) | (UFFD_API << 8) | nr
}

const MODE_MISSING: u64 = 1;
const MODE_WP: u64 = 2;
const MODE_RWP: u64 = 8;
const MOVE_DONTWAKE: u64 = 1;
const COPY_DONTWAKE: u64 = 1;
const COPY_WP: u64 = 2;
const MOVE_ALLOW_SRC_HOLES: u64 = 2;

/// Why an operation on a range did not happen, in our words.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Failure {
    /// An event is waiting to be read or its thread has not gone on yet: read, then try again.
    Changing,
    /// The destination already has a page.
    Present,
    /// The source has no page.
    Missing,
    /// Pinned, or shared with another process after a fork.
    Busy,
    /// The mapping is gone or is of a kind that cannot take part.
    NotMapped,
    /// The kernel has no memory for it now.
    NoMemory,
    /// The process behind the descriptor is gone.
    Gone,
    /// Anything else; the errno.
    Other(i32),
}

fn failure(errno: i32) -> Failure {
    match errno {
        libc::EAGAIN => Failure::Changing,
        libc::EEXIST => Failure::Present,
        libc::ENOENT => Failure::Missing,
        libc::EBUSY => Failure::Busy,
        libc::EINVAL | libc::EFAULT => Failure::NotMapped,
        libc::ENOMEM => Failure::NoMemory,
        libc::ESRCH => Failure::Gone,
        e => Failure::Other(e),
    }
}

/// One message read from the descriptor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// A thread touched a missing or write-protected page.
    Fault {
        /// Where, rounded to the page by the kernel.
        address: u64,
        /// It was writing.
        write: bool,
        /// The page is there and write-protected.
        wp: bool,
        /// Kernel id of the thread.
        tid: u32,
    },
    /// The process forked.
    Fork {
        /// Descriptor for the child's copy of the registrations.
        child: RawFd,
    },
    /// A registered range moved.
    Remap {
        /// Its old address.
        from: u64,
        /// Its new address.
        to: u64,
        /// Its length, bytes.
        len: u64,
    },
    /// The content of a range is being dropped (madvise); the mapping stays.
    Remove {
        /// First byte.
        start: u64,
        /// One past the last byte.
        end: u64,
    },
    /// A range was unmapped.
    Unmap {
        /// First byte.
        start: u64,
        /// One past the last byte.
        end: u64,
        /// What was found there since.
        seen: Seen,
    },
}

/// What is known of a range that is said to be unmapped, while that waits to be handled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Seen {
    /// Nobody has looked.
    Nothing,
    /// Something was mapped there.
    Mapped,
    /// Nothing was.
    Gone,
    /// Nothing was, and whatever has changed before that look was read.
    Over,
}

/// A userfaultfd.
#[derive(Debug)]
pub struct Uffd {
    fd: OwnedFd,
    /// The features that are enabled.
    pub features: u64,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Msg {
    event: u8,
    reserved: [u8; 7],
    arg: [u64; 3],
}

/// Messages as they are read: in one page, which is there for all of them or for none.
#[repr(C, align(512))]
struct Batch([Msg; READ_BATCH]);

/// Messages taken per `read`. More than one only when several threads fault at once.
pub const READ_BATCH: usize = 16;

impl Uffd {
    /// Opens a userfaultfd that also sees faults from inside system calls, with exactly
    /// `features`: by the system call, else by `/dev/userfaultfd`, whose permissions are a policy
    /// of their own. The descriptor is close-on-exec and blocking.
    pub fn open(features: u64) -> Result<Uffd, i32> {
        // SAFETY: plain system calls; the results are checked.
        let raw = unsafe {
            let fd = libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC) as RawFd;
            if fd >= 0 {
                fd
            } else {
                let first = *libc::__errno_location();
                let flags = libc::O_RDWR | libc::O_CLOEXEC;
                let dev = libc::open(c"/dev/userfaultfd".as_ptr(), flags);
                if dev < 0 {
                    return Err(first);
                }
                let fd = libc::ioctl(dev, IOC_NEW as _, libc::O_CLOEXEC);
                libc::close(dev);
                if fd < 0 {
                    return Err(first);
                }
                fd
            }
        };
        // SAFETY: `raw` is a descriptor we just made and own.
        let mut u = Uffd { fd: unsafe { OwnedFd::from_raw_fd(raw) }, features };
        let mut api = [UFFD_API, features, 0u64];
        u.ioctl(IOC_API, &mut api)?;
        // The answer names all the kernel has; enabled is what was asked for.
        if api[1] & features != features {
            return Err(libc::EINVAL);
        }
        u.features = features;
        Ok(u)
    }

    /// Takes over a descriptor that came in a fork event. Its features are the parent's.
    pub fn adopt(fd: RawFd, features: u64) -> Uffd {
        // SAFETY: the kernel installed this descriptor for us when we read the event.
        Uffd { fd: unsafe { OwnedFd::from_raw_fd(fd) }, features }
    }

    /// Moves the descriptor out of the range that programs close wholesale.
    pub fn raise_fd(&mut self) {
        if let Some(fd) = super::proc::raise_fd(self.fd.as_raw_fd()) {
            // SAFETY: `fd` is a fresh duplicate that nobody else owns.
            self.fd = unsafe { OwnedFd::from_raw_fd(fd) };
        }
    }

    /// Closes a child's descriptor, which was protected, or leaves its place to the next child's.
    pub fn let_go(self, main: &Uffd) {
        if spare::inherit(self.raw(), main.raw()) {
            // The number stays in use.
            let _ = self.fd.into_raw_fd();
        } else {
            interpose::unprotect_fd(self.raw());
        }
    }

    /// Whether pages can be moved (`UFFDIO_MOVE`).
    pub fn can_move(&self) -> bool {
        self.features & feature::MOVE != 0
    }

    /// Whether pages can be watched where they are ([`Self::watch`]).
    pub fn can_watch(&self) -> bool {
        self.features & feature::WATCH == feature::WATCH
    }

    /// The descriptor's number, to protect it from the application.
    pub fn raw(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    fn ioctl<const N: usize>(&self, request: u64, arg: &mut [u64; N]) -> Result<(), i32> {
        // SAFETY: every request in this file takes a struct of N u64 (its size is in the
        // request number), and the kernel writes at most that.
        let r = unsafe { libc::ioctl(self.fd.as_raw_fd(), request as _, arg.as_mut_ptr()) };
        if r == 0 {
            Ok(())
        } else {
            // SAFETY: errno of this thread.
            match unsafe { *libc::__errno_location() } {
                libc::EBADF | libc::ENOTTY => lost(),
                errno => Err(errno),
            }
        }
    }

    /// Registers a range of the application for missing faults, and for [`Self::watch`] where that
    /// can be.
    pub fn register_missing(&self, start: u64, len: u64) -> Result<(), Failure> {
        let mode = MODE_MISSING | if self.can_watch() { MODE_RWP } else { 0 };
        self.ioctl(IOC_REGISTER, &mut [start, len, mode, 0]).map_err(failure)
    }

    /// Registers a range of the runtime's own so that it can be the destination of a move. In
    /// write-protect mode a hole there reads as zeros instead of blocking whoever reads it.
    pub fn register_staging(&self, start: u64, len: u64) -> Result<(), Failure> {
        self.ioctl(IOC_REGISTER, &mut [start, len, MODE_WP, 0]).map_err(failure)
    }

    /// Takes a range out of the descriptor's care. Threads waiting in it are woken.
    pub fn unregister(&self, start: u64, len: u64) -> Result<(), Failure> {
        self.ioctl(IOC_UNREGISTER, &mut [start, len]).map_err(failure)
    }

    /// Wakes threads that wait for a fault in the range; they retry.
    pub fn wake(&self, start: u64, len: u64) {
        // A range that is gone has no waiters; there is nothing to do about a failure.
        let _ = self.ioctl(IOC_WAKE, &mut [start, len]);
    }

    /// Fills one missing page with a copy of `bytes` and wakes its waiters.
    pub fn copy_page(&self, dst: u64, bytes: &[u8; 4096]) -> Result<(), Failure> {
        self.copy_from(dst, bytes.as_ptr() as u64)
    }

    /// Fills one missing page with a copy of the page at `src` and wakes its waiters. The kernel
    /// reads `src`; a bad address is an error, not a crash.
    pub fn copy_from(&self, dst: u64, src: u64) -> Result<(), Failure> {
        let mut arg = [dst, src, 4096, 0, 0];
        self.ioctl(IOC_COPY, &mut arg).map_err(failure)
    }

    /// Like [`Self::copy_page`], and wakes nobody.
    pub fn copy_page_quietly(&self, dst: u64, bytes: &[u8; 4096]) -> Result<(), Failure> {
        let mut arg = [dst, bytes.as_ptr() as u64, 4096, COPY_DONTWAKE, 0];
        self.ioctl(IOC_COPY, &mut arg).map_err(failure)
    }

    /// Whether all of a range lies in one mapping that is registered with this descriptor. Asks for
    /// a copy, from an address that cannot be read, that is to be write-protected: which is refused
    /// where that was not registered for, as the application's memory is not, but before for want
    /// of such a mapping. (Without the protection the kernel would take a page and try to read.)
    pub fn is_registered(&self, start: u64, len: u64, unreadable: u64) -> Result<bool, Failure> {
        match self.ioctl(IOC_COPY, &mut [start, unreadable, len, COPY_WP, 0]) {
            Ok(()) | Err(libc::EINVAL | libc::EFAULT | libc::EEXIST) => Ok(true),
            Err(libc::ENOENT) => Ok(false),
            Err(errno) => Err(failure(errno)),
        }
    }

    /// Fills missing pages with copies of the pages from `src` on, and wakes the waiters of those
    /// it filled. Returns the bytes filled, and why it stopped early.
    pub fn copy_range(&self, dst: u64, src: u64, len: u64) -> (u64, Option<Failure>) {
        let mut arg = [dst, src, len, 0, 0];
        match self.ioctl(IOC_COPY, &mut arg) {
            Ok(()) => (len, None),
            // The field holds the bytes copied, or the negative errno if there were none.
            Err(errno) => ((arg[4] as i64).clamp(0, len as i64) as u64, Some(failure(errno))),
        }
    }

    /// Maps the zero page into one missing page and wakes its waiters.
    pub fn zero_page(&self, dst: u64) -> Result<(), Failure> {
        self.ioctl(IOC_ZEROPAGE, &mut [dst, 4096, 0, 0]).map_err(failure)
    }

    /// Maps the zero page into missing pages from `dst` on, up to the first that is there, and
    /// wakes the waiters of those. Returns the bytes filled.
    pub fn zero_range(&self, dst: u64, len: u64) -> u64 {
        let mut arg = [dst, len, 0, 0];
        match self.ioctl(IOC_ZEROPAGE, &mut arg) {
            Ok(()) => len,
            // The field holds the bytes filled, or the negative errno if there were none.
            Err(_) => (arg[3] as i64).clamp(0, len as i64) as u64,
        }
    }

    /// Moves the pages of `[src, src+len)` to the missing range at `dst`, holes staying holes.
    /// Returns the bytes gone through, holes included, and why it stopped early.
    pub fn move_range(&self, dst: u64, src: u64, len: u64, wake: bool) -> (u64, Option<Failure>) {
        let mode = MOVE_ALLOW_SRC_HOLES | if wake { 0 } else { MOVE_DONTWAKE };
        let mut arg = [dst, src, len, mode, 0];
        match self.ioctl(IOC_MOVE, &mut arg) {
            Ok(()) => (len, None),
            Err(errno) => {
                // The field holds the bytes moved, or the negative errno if there were none.
                let moved = (arg[4] as i64).max(0) as u64;
                if moved > 0 && moved < len {
                    (moved, None)
                } else {
                    (0, Some(failure(errno)))
                }
            }
        }
    }

    /// Moves one page to a missing page. Unlike [`Self::move_range`], a hole is `Missing`.
    pub fn move_page(&self, dst: u64, src: u64, wake: bool) -> Result<(), Failure> {
        let mode = if wake { 0 } else { MOVE_DONTWAKE };
        self.ioctl(IOC_MOVE, &mut [dst, src, 4096, mode, 0]).map_err(failure)
    }

    /// Write-protects or releases one page of a range registered for it. Releasing wakes.
    pub fn write_protect(&self, page: u64, protect: bool) -> Result<(), Failure> {
        self.ioctl(IOC_WRITEPROTECT, &mut [page, 4096, u64::from(protect)]).map_err(failure)
    }

    /// Has the kernel note the next access to one page of a range that is registered. Nobody waits
    /// for anybody: the access lifts the protection and goes on. A hole stays one.
    pub fn watch(&self, page: u64) -> Result<(), Failure> {
        self.ioctl(IOC_RWPROTECT, &mut [page, 4096, 1]).map_err(failure)
    }

    /// Waits for messages and appends them to `out`. Returns how many; 0 if interrupted.
    pub fn read(&self, out: &mut EventBuffer) -> usize {
        self.read_up_to(READ_BATCH, out)
    }

    fn read_up_to(&self, most: usize, out: &mut EventBuffer) -> usize {
        let mut batch = Batch([Msg::default(); READ_BATCH]);
        let bytes = std::mem::size_of_val(&batch.0[..most]);
        let to = batch.0.as_mut_ptr().cast::<libc::c_void>();
        // SAFETY: the buffer is ours and of the length given; Msg is plain data of the size of
        // struct uffd_msg (checked below).
        let read = || unsafe { libc::read(self.fd.as_raw_fd(), to, bytes) };
        let n = match spare::with_a_place(read) {
            Ok(n) => n / std::mem::size_of::<Msg>(),
            Err(libc::EBADF) => lost(),
            // The buffer is in swap and may not come back, and the message is gone: somebody would
            // wait for good, or memory change that nobody knows of. See `thread::hold_frame`.
            Err(libc::EFAULT) => proc::die(
                "terrace: at the memory limit the kernel lost a message about memory in tiers; \
                 ending the program rather than letting it hang or read wrong bytes",
            ),
            Err(_) => return 0,
        };
        let msgs = &batch.0;
        let mut kept = 0;
        for m in &msgs[..n] {
            if let Some(e) = decode(m) {
                out.push(e);
                kept += 1;
            }
        }
        kept
    }

    /// Reads what is there without waiting.
    pub fn read_now(&self, out: &mut EventBuffer) -> usize {
        // A poll that says "readable" is not enough to read without blocking: the faulting thread
        // may be killed in between. So the descriptor is switched to non-blocking for this read.
        self.set_nonblocking(true);
        let n = self.read(out);
        self.set_nonblocking(false);
        n
    }

    /// Waits for a message for a time at most. There may be none afterwards, or none any more.
    pub fn wait_for(&self, us: u64) {
        // Whether there is something can only be asked of a descriptor that does not wait.
        self.set_nonblocking(true);
        is_readable(self.fd.as_raw_fd(), us);
        self.set_nonblocking(false);
    }

    /// Reads the next message without waiting, if there is one, and has a look before: at a moment
    /// when it waits to be read already, and so does the thread that it is of.
    pub fn look_and_read_one(&self, out: &mut EventBuffer, look: impl FnOnce()) -> usize {
        self.set_nonblocking(true);
        let mut n = 0;
        if is_readable(self.fd.as_raw_fd(), 0) {
            look();
            n = self.read_up_to(1, out);
        }
        self.set_nonblocking(false);
        n
    }

    /// Switches the descriptor between waiting and not waiting for messages.
    pub fn set_nonblocking(&self, on: bool) {
        let flags = libc::O_RDWR | if on { libc::O_NONBLOCK } else { 0 };
        // SAFETY: F_SETFL on our own descriptor.
        unsafe { libc::fcntl(self.fd.as_raw_fd(), libc::F_SETFL, flags) };
    }
}

const _: () = assert!(std::mem::size_of::<Msg>() == 32);

/// There is no userfaultfd at its number any more. The kernel has ended the registrations, or will
/// as soon as nobody reads: what is in tiers would read as zeros.
fn lost() -> ! {
    proc::die(
        "terrace: the program has closed a descriptor of the runtime's while memory was in \
         compressed tiers; ending it rather than letting it read wrong bytes",
    )
}

fn decode(m: &Msg) -> Option<Event> {
    let [a, b, c] = m.arg;
    match m.event {
        0x12 => Some(Event::Fault {
            address: b,
            write: a & 1 != 0,
            wp: a & 2 != 0,
            tid: (c & 0xffff_ffff) as u32,
        }),
        0x13 => Some(Event::Fork { child: (a & 0xffff_ffff) as RawFd }),
        0x14 => Some(Event::Remap { from: a, to: b, len: c }),
        0x15 => Some(Event::Remove { start: a, end: b }),
        0x16 => Some(Event::Unmap { start: a, end: b, seen: Seen::Nothing }),
        _ => None,
    }
}

impl Event {
    /// Whether it takes a mapping away from a page.
    pub fn takes_from(&self, page: u64) -> bool {
        match *self {
            Event::Unmap { start, end, .. } => (start..end).contains(&page),
            Event::Remap { from, len, .. } => (from..from + len).contains(&page),
            _ => false,
        }
    }
}

impl Uffd {
    /// Reads messages that are there into `queue` without waiting; how many. If the queue is
    /// full, waiting faults make room: their threads are woken and will fault again.
    pub fn read_making_room(&self, queue: &mut EventBuffer) -> usize {
        match self.make_room(queue) {
            true => self.read_now(queue),
            false => 0,
        }
    }

    /// Sends faults that wait away, to come again, until a read fits. `false` if it never will.
    pub fn make_room(&self, queue: &mut EventBuffer) -> bool {
        while !queue.has_room() {
            let Some(address) = queue.pop_fault() else { return false };
            self.wake(address & !4095, 4096);
        }
        true
    }
}
