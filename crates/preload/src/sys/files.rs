//! Descriptors, so that the program does not notice that others in its process have some.
//!
//! A program may count on getting the lowest free number (`close(1); open(..)`), on `dup2` to a
//! free number, and on a number of its own staying what it is. So nothing of ours takes a low
//! number while the program runs, not even for a moment:
//!
//! - files that are read again and again stay open, high up ([`Standing`]);
//! - the pager, to which the kernel hands the descriptors of forked children at the lowest free
//!   number, has a table of its own ([`own_table`]). Nor can the program close what is in it.
//!
//! What is left is the start of the runtime, whose descriptors are raised as they are made, the
//! coming of another planner, and the looks of a child that waits for a runtime of its own
//! (`offspring.rs`: after a second, then more and more seldom).

use super::proc;
use crate::interpose;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};

/// A file of `/proc/self` that is read again and again.
#[derive(Debug)]
pub struct Standing(&'static std::ffi::CStr, AtomicI32);

/// Its state, for the number of threads.
pub static STATUS: Standing = Standing(c"/proc/self/status", AtomicI32::new(-1));
/// Its memory.
pub static STATM: Standing = Standing(c"/proc/self/statm", AtomicI32::new(-1));
/// Its threads.
pub static TASKS: Standing = Standing(c"/proc/self/task", AtomicI32::new(-1));

/// Opens them, in a process that has none: a forked child has closed its parent's.
pub fn set_up() {
    OWNER.store(0, Ordering::Relaxed);
    for file in [&STATUS, &STATM, &TASKS] {
        file.1.store(open(file.0).unwrap_or(-1), Ordering::Release);
    }
}

/// A path on a number that programs do not close.
fn open(path: &std::ffi::CStr) -> Option<RawFd> {
    // SAFETY: the path ends; the low number is closed once.
    unsafe {
        let low = libc::open(path.as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC);
        let raised = if low < 0 { None } else { proc::raise_fd(low) };
        libc::syscall(libc::SYS_close, low);
        raised.inspect(|&fd| interpose::protect_fd(fd))
    }
}

impl Standing {
    /// Calls `read` with a descriptor of it, at its beginning. One caller at a time.
    pub fn read<T>(&self, read: impl FnOnce(RawFd) -> T) -> T {
        let fd = self.1.load(Ordering::Acquire);
        if fd >= 0 {
            // SAFETY: moves the place in a file of ours.
            unsafe { libc::lseek(fd, 0, libc::SEEK_SET) };
            return read(fd);
        }
        // Not set up, or it was refused.
        // SAFETY: the path ends; our own descriptor, closed once; an invalid one is refused.
        unsafe {
            let fd = libc::open(self.0.as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC);
            let done = read(fd);
            libc::syscall(libc::SYS_close, fd);
            done
        }
    }

    /// Its first bytes, as far as there is room.
    pub fn text<'a>(&self, room: &'a mut [u8]) -> &'a str {
        // SAFETY: the buffer is ours and of the length given.
        let n = self.read(|fd| unsafe { libc::read(fd, room.as_mut_ptr().cast(), room.len()) });
        let bytes = room.get(..n.max(0) as usize).unwrap_or(&[]);
        std::str::from_utf8(bytes).unwrap_or("")
    }
}

/// Kernel id of the thread with a table of its own, 0 if there is none.
static OWNER: AtomicU32 = AtomicU32::new(0);
const CLOSE_RANGE_UNSHARE: libc::c_long = 2;

/// The system call, past our own function, which leaves alone what is ours.
///
/// # Safety
/// As for the call.
unsafe fn close_range(first: i64, last: i64, flags: i64) -> i64 {
    // SAFETY: the caller's promise.
    unsafe { super::clones::to_kernel(libc::SYS_close_range, [first, last, flags, 0, 0]) }
}

/// Gives the calling thread a table of descriptors of its own, with what is ours but for `without`.
/// `false`, and nothing done, where the kernel has no call for that (before 5.9) or it is refused.
pub fn own_table(without: &[RawFd]) -> bool {
    let mut kept = interpose::ours();
    kept.retain(|fd| !without.contains(fd));
    kept.sort_unstable();
    kept.dedup();
    let (mut from, mut is_shared) = (0i64, true);
    // The first call parts the tables.
    for fd in kept.into_iter().map(i64::from).chain([i64::from(u32::MAX)]) {
        let flags = if is_shared { CLOSE_RANGE_UNSHARE } else { 0 };
        let to = if fd == i64::from(u32::MAX) { fd } else { fd - 1 };
        if from <= to {
            // SAFETY: with this flag it is about no table but this thread's, in which nothing is
            // but what was copied; without it the table is that one already.
            let result = unsafe { close_range(from, to, flags) };
            if is_shared && result != 0 {
                return false;
            }
            is_shared = false;
        }
        from = fd + 1;
    }
    OWNER.store(super::thread::gettid(), Ordering::Release);
    true
}

/// Whether some thread, which is the pager, has a table of its own.
pub fn is_parted() -> bool {
    OWNER.load(Ordering::Acquire) != 0
}

/// Standard error of the program, also for the thread that has a table of its own.
pub fn standard_error() -> RawFd {
    let owner = OWNER.load(Ordering::Acquire);
    if owner == 0 || owner != super::thread::gettid() {
        return libc::STDERR_FILENO;
    }
    // SAFETY: system calls on descriptors; the process ends after this.
    unsafe {
        let process = libc::syscall(libc::SYS_pidfd_open, libc::getpid(), 0);
        libc::syscall(libc::SYS_pidfd_getfd, process, libc::STDERR_FILENO, 0) as RawFd
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_with_a_table_of_its_own_has_nothing_of_the_programs() {
        // SAFETY: asks for the flags of a number.
        let is_open = |fd| unsafe { libc::fcntl(fd, libc::F_GETFD) } >= 0;
        let (mine, left_out) = (open(c"/proc/self/maps"), open(c"/proc/self/maps"));
        let (mine, left_out) = (mine.expect("a file"), left_out.expect("a file"));
        let seen = std::thread::spawn(move || {
            let done = own_table(&[left_out]);
            let seen = (done, is_open(mine), is_open(left_out), is_open(0));
            let error = standard_error();
            OWNER.store(0, Ordering::Release);
            (seen, error)
        });
        let (seen, error) = seen.join().expect("the thread ends");
        if seen.0 {
            assert_eq!(seen, (true, true, false, false));
            assert!(error >= 0, "standard error is had of the process");
        }
        assert!(is_open(mine) && is_open(left_out) && is_open(0), "the others' table is whole");
        for fd in [mine, left_out] {
            interpose::unprotect_fd(fd);
        }
    }

    #[test]
    fn what_stands_open_is_read_anew() {
        let mut room = [0; 4096];
        assert!(STATUS.text(&mut room).contains("Threads:"));
        assert!(STATM.text(&mut room).split(' ').count() > 5);
    }
}
