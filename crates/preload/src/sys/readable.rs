//! Whether a descriptor has something to be read.
//!
//! `poll` takes no more descriptors than a process may open (RLIMIT_NOFILE). To one that may open
//! none, as a sandbox has it, it says `EINVAL` for every question, also about what is open already.
//! A pager that takes that for silence never reads what threads wait for it to read. `pselect6`
//! knows no such limit.

use std::os::fd::RawFd;

/// `pselect6` is asked about descriptors below this number.
const NUMBERS: usize = 4096;

fn last_error() -> i32 {
    // SAFETY: errno of the calling thread.
    unsafe { *libc::__errno_location() }
}

/// Waits until something can be read from `fd`, for so many microseconds at most (less than a
/// second). Whether it can; also where a read would fail, which says what it is about.
///
/// A userfaultfd must not be one that blocks: it answers nobody then.
pub fn is_readable(fd: RawFd, us: u64) -> bool {
    let mut asked = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    let time = libc::timespec { tv_sec: 0, tv_nsec: (us * 1000) as libc::c_long };
    // SAFETY: one descriptor, as it says, and a time of less than a second.
    match unsafe { libc::ppoll(&mut asked, 1, &time, std::ptr::null()) } {
        1.. => asked.revents & (libc::POLLIN | libc::POLLNVAL) != 0,
        0 => false,
        _ => last_error() == libc::EINVAL && is_readable_beyond_limit(fd, time),
    }
}

fn is_readable_beyond_limit(fd: RawFd, mut time: libc::timespec) -> bool {
    let mut numbers = [0u64; NUMBERS / 64];
    let Some(word) = usize::try_from(fd).ok().and_then(|fd| numbers.get_mut(fd / 64)) else {
        // A read that does not wait will say.
        return true;
    };
    *word |= 1 << (fd % 64);
    let none = std::ptr::null_mut::<u64>();
    // SAFETY: one set with room for descriptors up to `fd`, and a time, which the kernel changes.
    let found = unsafe {
        let (set, until) = (numbers.as_mut_ptr(), &mut time as *mut libc::timespec);
        libc::syscall(libc::SYS_pselect6, libc::c_long::from(fd + 1), set, none, none, until, none)
    };
    found > 0 || (found < 0 && last_error() == libc::EBADF)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::os::fd::AsRawFd;

    const NOW: libc::timespec = libc::timespec { tv_sec: 0, tv_nsec: 0 };

    #[test]
    fn both_ways_give_the_same_answer() {
        let (mut reader, mut writer) = std::io::pipe().expect("a pipe");
        let fd = reader.as_raw_fd();
        let ask = || (is_readable(fd, 10), is_readable_beyond_limit(fd, NOW));
        assert_eq!(ask(), (false, false));
        writer.write_all(b"x").expect("room");
        assert_eq!(ask(), (true, true));
        reader.read_exact(&mut [0]).expect("a byte");
        assert_eq!(ask(), (false, false));
        // No descriptor at all: the read says so.
        assert!(is_readable(i32::MAX, 0) && is_readable_beyond_limit(i32::MAX, NOW));
    }
}
