//! Signals while a program runs under us, which starts with what it would have without us. The
//! only `unsafe` of `run`: signal dispositions and masks.
#![allow(unsafe_code)]

use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

static PROGRAM: AtomicI32 = AtomicI32::new(0);
static HAD_PIPE_IGNORED: AtomicBool = AtomicBool::new(false);

/// Rust ignores SIGPIPE before `main`, and sets it to its default in children. So what it was has
/// to be seen before.
#[used]
#[link_section = ".init_array"]
static SEE_PIPE: extern "C" fn() = {
    extern "C" fn see() {
        HAD_PIPE_IGNORED.store(is_ignored(libc::SIGPIPE), Ordering::Relaxed);
    }
    see
};

extern "C" fn pass_on(signal: libc::c_int) {
    let pid = PROGRAM.load(Ordering::Relaxed);
    if pid > 0 {
        // SAFETY: kill is async-signal-safe; the process is our child until it was waited for.
        unsafe { libc::kill(pid, signal) };
    }
}

extern "C" fn ignore(_: libc::c_int) {}

/// What this process was started with, as far as it is changed for us.
pub struct Before {
    mask: libc::sigset_t,
    had_child_ignored: bool,
}

/// Has what would end us wait until [`Before::go_on`], when there is somebody to pass it on to.
/// Before threads are started, which must leave these signals to this one.
pub fn hold_back() -> Before {
    // SAFETY: an initialised set is blocked; the mask of before is filled in by the call.
    let mask = unsafe {
        let mut mask = std::mem::zeroed();
        libc::pthread_sigmask(libc::SIG_BLOCK, &ours(), &mut mask);
        mask
    };
    let had_child_ignored = is_ignored(libc::SIGCHLD);
    if had_child_ignored {
        // The kernel would throw the program's exit status away.
        // SAFETY: the default needs no handler.
        unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) };
    }
    Before { mask, had_child_ignored }
}

impl Before {
    /// Has `command` start with mask and dispositions as they were.
    pub fn hand_on(&self, command: &mut Command) {
        let (mask, had_child_ignored) = (self.mask, self.had_child_ignored);
        let had_pipe_ignored = HAD_PIPE_IGNORED.load(Ordering::Relaxed);
        // SAFETY: what runs between fork and exec only makes system calls that are safe there.
        unsafe {
            command.pre_exec(move || {
                if had_child_ignored {
                    libc::signal(libc::SIGCHLD, libc::SIG_IGN);
                }
                if had_pipe_ignored {
                    libc::signal(libc::SIGPIPE, libc::SIG_IGN);
                }
                libc::pthread_sigmask(libc::SIG_SETMASK, &mask, std::ptr::null_mut());
                Ok(())
            });
        }
    }

    /// Passes on what came meanwhile, and comes from now on, to the program `pid`. `early` is what
    /// came before there was one, which so the terminal cannot have sent to it.
    pub fn go_on(&self, pid: u32, early: &[libc::c_int]) {
        forward_to(pid);
        early.iter().for_each(|signal| pass_on(*signal));
        // SAFETY: sets the mask that this thread had.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.mask, std::ptr::null_mut()) };
    }
}

/// The signals of the terminal that wait for us now.
pub fn early() -> Vec<libc::c_int> {
    // SAFETY: the kernel fills the set.
    let has_come = |signal: &libc::c_int| unsafe {
        let mut waiting: libc::sigset_t = std::mem::zeroed();
        libc::sigpending(&mut waiting) == 0 && libc::sigismember(&waiting, *signal) == 1
    };
    [libc::SIGINT, libc::SIGQUIT].into_iter().filter(has_come).collect()
}

fn is_ignored(signal: libc::c_int) -> bool {
    // SAFETY: asks only; the kernel fills the action.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        libc::sigaction(signal, std::ptr::null(), &mut action) == 0
            && action.sa_sigaction == libc::SIG_IGN
    }
}

/// Ctrl-C and Ctrl-\ reach the program by the terminal; SIGTERM and SIGHUP sent to us are passed
/// on. Handlers rather than "ignore", because ignoring would be inherited by the program; what is
/// ignored already, as under nohup, stays so for both.
pub fn outlive_the_program() {
    let set = |signal, handler: extern "C" fn(libc::c_int)| {
        if is_ignored(signal) {
            return;
        }
        // SAFETY: the handlers above only load an atomic and call kill.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = handler as *const () as usize;
            action.sa_flags = libc::SA_RESTART;
            libc::sigaction(signal, &action, std::ptr::null_mut());
        }
    };
    set(libc::SIGINT, ignore);
    set(libc::SIGQUIT, ignore);
    set(libc::SIGTERM, pass_on);
    set(libc::SIGHUP, pass_on);
}

/// Names the program that signals go to; 0 for none.
pub fn forward_to(pid: u32) {
    PROGRAM.store(pid as i32, Ordering::Relaxed);
}

/// Has SIGINT, SIGTERM and SIGHUP wait for [`wait_for_end`], in threads started from now on too.
pub fn hold_back_end() {
    let set = end_signals();
    // SAFETY: changes the mask of the calling thread to include an initialised set.
    unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut()) };
}

/// Waits until one of the signals held back comes, and returns it.
pub fn wait_for_end() -> i32 {
    let (set, mut signal) = (end_signals(), 0);
    // SAFETY: an initialised set, and a place for the answer.
    unsafe { libc::sigwait(&set, &mut signal) };
    signal
}

/// What a signal that is ignored says, nobody wants to hear.
fn end_signals() -> libc::sigset_t {
    let heard = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP].into_iter().filter(|s| !is_ignored(*s));
    set_of(heard)
}

/// What [`outlive_the_program`] handles.
fn ours() -> libc::sigset_t {
    set_of([libc::SIGINT, libc::SIGQUIT, libc::SIGTERM, libc::SIGHUP])
}

fn set_of(signals: impl IntoIterator<Item = libc::c_int>) -> libc::sigset_t {
    // SAFETY: the set is initialised before anything is added to it.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        for signal in signals {
            libc::sigaddset(&mut set, signal);
        }
        set
    }
}

/// CPU time of the calling thread, in nanoseconds.
pub fn thread_cpu_ns() -> u64 {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel fills `t`.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut t) };
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

/// The process at the other end of a socket, if it may be there: one of this user, or root's. The
/// sockets' directory is private already; this is for the day on which it is not.
pub fn trusted_peer(stream: &std::os::unix::net::UnixStream) -> Option<u32> {
    let (ours, _) = crate::preflight::uffd_probe::effective_ids();
    peer(stream).filter(|(_, user)| *user == ours || *user == 0).map(|(pid, _)| pid)
}

/// The process at the other end of a socket: its id and user.
pub fn peer(stream: &std::os::unix::net::UnixStream) -> Option<(u32, u32)> {
    use std::os::fd::AsRawFd;
    let mut cred = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut len = std::mem::size_of_val(&cred) as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes into `cred`.
    let r = unsafe {
        libc::getsockopt(
            stream.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            std::ptr::from_mut(&mut cred).cast(),
            &mut len,
        )
    };
    (r == 0 && cred.pid > 0).then_some((cred.pid as u32, cred.uid))
}
