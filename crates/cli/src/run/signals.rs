//! Signals while a program runs under us. The only `unsafe` of `run`: signal dispositions.
#![allow(unsafe_code)]

use std::sync::atomic::{AtomicI32, Ordering};

static PROGRAM: AtomicI32 = AtomicI32::new(0);

extern "C" fn pass_on(signal: libc::c_int) {
    let pid = PROGRAM.load(Ordering::Relaxed);
    if pid > 0 {
        // SAFETY: kill is async-signal-safe; the process is our child until it was waited for.
        unsafe { libc::kill(pid, signal) };
    }
}

extern "C" fn ignore(_: libc::c_int) {}

/// Ctrl-C and Ctrl-\ reach the program by the terminal; SIGTERM and SIGHUP sent to us are passed
/// on. Handlers rather than "ignore", because ignoring would be inherited by the program.
pub fn outlive_the_program() {
    let set = |signal, handler: extern "C" fn(libc::c_int)| {
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

fn end_signals() -> libc::sigset_t {
    // SAFETY: the set is initialised before anything is added to it.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
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
