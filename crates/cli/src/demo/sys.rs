//! The few system calls the demo needs that the standard library does not offer: signals in both
//! directions and `epoll`. All `unsafe` of the demo is in this file; each call passes only values
//! or memory that outlives it.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

static INTERRUPTED: AtomicBool = AtomicBool::new(false);
static CONTINUED: AtomicU64 = AtomicU64::new(0);

extern "C" fn note_interrupt(_signal: libc::c_int) {
    // Storing an atomic is async-signal-safe; everything else happens in the loops that look.
    INTERRUPTED.store(true, Ordering::Relaxed);
}

/// From now on Ctrl-C and SIGTERM only set a flag, so that servers and files are cleaned up by
/// the code that made them.
pub fn catch_interrupts() {
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        // SAFETY: the zeroed sigaction is a valid value; the handler only stores to an atomic.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = note_interrupt as *const () as usize;
            libc::sigemptyset(&mut action.sa_mask);
            libc::sigaction(signal, &action, std::ptr::null_mut());
        }
    }
}

extern "C" fn note_continue(_signal: libc::c_int) {
    // As above.
    CONTINUED.fetch_add(1, Ordering::Relaxed);
}

/// From now on it is counted how often this process is continued after a stop.
pub fn count_continues() {
    // SAFETY: the zeroed sigaction is a valid value; the handler only adds to an atomic.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = note_continue as *const () as usize;
        action.sa_flags = libc::SA_RESTART;
        libc::sigemptyset(&mut action.sa_mask);
        libc::sigaction(libc::SIGCONT, &action, std::ptr::null_mut());
    }
}

/// How often this process was continued since `count_continues`.
pub fn continues() -> u64 {
    CONTINUED.load(Ordering::Relaxed)
}

/// Stops this process until somebody continues it.
pub fn stop_here() {
    // SAFETY: raise takes one integer.
    unsafe { libc::raise(libc::SIGSTOP) };
}

/// Whether Ctrl-C or SIGTERM arrived since `catch_interrupts`.
pub fn interrupted() -> bool {
    INTERRUPTED.load(Ordering::Relaxed)
}

/// Fails when the user asked to stop; for the long loops.
pub fn stop_if_interrupted() -> anyhow::Result<()> {
    anyhow::ensure!(!interrupted(), "interrupted");
    Ok(())
}

/// Sends a signal to one process. A process that is already gone is not an error.
pub fn signal_process(pid: i32, signal: libc::c_int) {
    // Pids 0 and 1, and negative ones, mean something else to kill(2) than one process of ours.
    if pid > 1 {
        // SAFETY: kill takes two integers.
        unsafe { libc::kill(pid, signal) };
    }
}

/// Sends a signal to a process group that we created (its leader's pid is `leader`).
pub fn signal_group(leader: i32, signal: libc::c_int) {
    if leader > 1 {
        // SAFETY: kill takes two integers.
        unsafe { libc::kill(-leader, signal) };
    }
}

/// Clock ticks per second, the unit of CPU time in `/proc/PID/stat`.
pub fn clock_ticks_per_second() -> u64 {
    // SAFETY: sysconf takes one integer.
    let ticks = unsafe { libc::sysconf(libc::_SC_CLK_TCK) };
    u64::try_from(ticks).unwrap_or(100).max(1)
}

/// Bytes in a page of this machine.
pub fn page_bytes() -> u64 {
    // SAFETY: sysconf takes one integer.
    let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    u64::try_from(bytes).unwrap_or(4096).max(1)
}

/// CPUs this process may use.
pub fn cpus() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

/// Keeps the calling thread off CPU 0, where the server is, if there is another.
pub fn leave_the_first_cpu() {
    let n = cpus();
    if n < 2 {
        return;
    }
    // SAFETY: the set is plain data of the size given; a refusal changes nothing.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        (1..n.min(libc::CPU_SETSIZE as usize)).for_each(|cpu| libc::CPU_SET(cpu, &mut set));
        libc::sched_setaffinity(0, std::mem::size_of_val(&set), &set);
    }
}

/// CPU time of the calling thread in nanoseconds.
pub fn thread_cpu_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a valid timespec that lives through the call.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    (time.tv_sec as u64).saturating_mul(1_000_000_000) + time.tv_nsec as u64
}

/// A set of descriptors, asked which of them are readable.
pub struct Readable {
    epoll: OwnedFd,
    events: Vec<libc::epoll_event>,
}

impl Readable {
    /// A set of these; they are known by their place in it and must stay open as long as it.
    pub fn new(fds: impl ExactSizeIterator<Item = i32>) -> io::Result<Readable> {
        let none = libc::epoll_event { events: 0, u64: 0 };
        // SAFETY: the descriptor is new and ours alone.
        let epoll = unsafe {
            match libc::epoll_create1(libc::EPOLL_CLOEXEC) {
                -1 => return Err(io::Error::last_os_error()),
                fd => OwnedFd::from_raw_fd(fd),
            }
        };
        let events = vec![none; fds.len().max(1)];
        for (place, fd) in fds.enumerate() {
            let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: place as u64 };
            let (epoll, event) = (epoll.as_raw_fd(), &mut event);
            // SAFETY: both are open; the event is only read, during the call.
            if unsafe { libc::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, fd, event) } != 0 {
                return Err(io::Error::last_os_error());
            }
        }
        Ok(Readable { epoll, events })
    }

    /// The places of those that are readable now; does not wait. A signal counts as none.
    pub fn now(&mut self) -> io::Result<impl Iterator<Item = usize> + '_> {
        let (epoll, room) = (self.epoll.as_raw_fd(), self.events.len() as i32);
        // SAFETY: the buffer has room for that many events.
        let ready = unsafe { libc::epoll_wait(epoll, self.events.as_mut_ptr(), room, 0) };
        if ready < 0 {
            let error = io::Error::last_os_error();
            if error.kind() != io::ErrorKind::Interrupted {
                return Err(error);
            }
        }
        Ok(self.events[..ready.max(0) as usize].iter().map(|event| event.u64 as usize))
    }
}
