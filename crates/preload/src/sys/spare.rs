//! Places in the descriptor table, kept free for the registrations of forked children.
//!
//! The kernel hands them over in a descriptor that it makes while the fork's event is read. A
//! program that has all the descriptors it is allowed leaves no number for that: the event stays
//! unread, the fork does not return, and no page can be filled any more. So some descriptors of no
//! use are held, and one is given up for the child's. If there is none, the limit is raised for the
//! length of the read; if that is not allowed either, and the program closes nothing, it ends with
//! a line. It does not come to that by forking often: a fork waits before it begins (`forks.rs`)
//! until a child that has all of its pages leaves its place to the next.
//!
//! All that is for kernels without `close_range` (before 5.9), and where it is refused. Elsewhere
//! the pager has a table of its own (`files.rs`), with places enough.

use super::{files, proc, thread};
use crate::interpose;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

/// As many as threads that may fork at once without waiting for each other.
const COUNT: usize = 4;
/// The spares, -1 for none. Only the pager changes them, once children can come.
static SPARES: [AtomicI32; COUNT] = [const { AtomicI32::new(-1) }; COUNT];
/// Since when no event could be read for want of a descriptor, 0 if that is not so.
static STARVED_SINCE_NS: AtomicU64 = AtomicU64::new(0);

/// How long the program may take to close something, while nobody else can be waited for.
const PATIENCE_NS: u64 = 10_000_000_000;
/// Between two tries.
const PAUSE_US: u64 = 100;
/// Numbers below are the program's to choose; no spare stays there.
const LOWEST: RawFd = 100;
/// By how much a limit is raised that is as high as it may be.
const MORE: libc::rlim_t = 64;

/// Takes the first spares, in a process that has none: a forked child has closed its parent's.
pub fn set_up() {
    SPARES.iter().for_each(|place| place.store(-1, Ordering::Relaxed));
    be_patient();
    keep();
}

/// Whether children's descriptors come into the program's table.
pub fn are_needed() -> bool {
    !files::is_parted()
}

/// How many there are.
pub fn count() -> usize {
    if !are_needed() {
        return usize::MAX;
    }
    SPARES.iter().filter(|place| place.load(Ordering::Acquire) >= 0).count()
}

fn missing() -> impl Iterator<Item = &'static AtomicI32> {
    SPARES.iter().filter(|place| place.load(Ordering::Relaxed) < 0)
}

/// Takes what is missing, as far as places are free.
pub fn keep() {
    for place in missing() {
        // SAFETY: makes a descriptor, and closes what it made; no effect on memory.
        let fd = unsafe {
            let low = libc::eventfd(0, libc::EFD_CLOEXEC);
            if low < 0 {
                return;
            }
            let raised = proc::raise_fd(low);
            libc::close(low);
            raised
        };
        let Some(fd) = fd else { return };
        interpose::protect_fd(fd);
        place.store(fd, Ordering::Release);
    }
}

/// Makes `fd`, a child's descriptor that is not needed any more, a spare, if one is missing: in its
/// place comes another name of `of`, and at no time is the number free. `false` if it is for the
/// caller to close.
pub fn inherit(fd: RawFd, of: RawFd) -> bool {
    let wants = |_: &&AtomicI32| fd >= LOWEST && are_needed();
    let Some(place) = missing().next().filter(wants) else { return false };
    let is_kept = interpose::replace_ours(of, fd);
    if is_kept {
        place.store(fd, Ordering::Release);
    }
    is_kept
}

/// Somebody gets on who will free a place.
pub fn be_patient() {
    STARVED_SINCE_NS.store(0, Ordering::Relaxed);
}

/// Reads messages, one of which may bring a descriptor; makes a place for it where there is none.
pub fn with_a_place(read: impl Fn() -> isize) -> Result<usize, i32> {
    let read = || match read() {
        // SAFETY: errno of the calling thread.
        ..0 => Err(unsafe { *libc::__errno_location() }),
        n => Ok(n as usize),
    };
    loop {
        let mut result = read();
        if is_full(result) && give_up() {
            continue;
        }
        if result == Err(libc::EMFILE) {
            result = beyond_limit(read).unwrap_or(result);
        }
        match is_full(result) {
            true => wait_or_end(),
            false => be_patient(),
        }
        return result;
    }
}

fn is_full(result: Result<usize, i32>) -> bool {
    matches!(result, Err(libc::EMFILE | libc::ENFILE))
}

/// Frees a place that was kept. `false` if there is none.
fn give_up() -> bool {
    let is_there = |place: &&AtomicI32| place.load(Ordering::Relaxed) >= 0;
    let Some(place) = SPARES.iter().find(is_there) else { return false };
    let fd = place.swap(-1, Ordering::AcqRel);
    // First this: a child that is forked in between closes what is protected.
    interpose::unprotect_fd(fd);
    // SAFETY: our descriptor, closed once.
    unsafe { libc::close(fd) };
    true
}

/// Does `work` while the process may have more descriptors. Another thread can get one too many
/// meanwhile, or fork a child with this limit; that is less than not to go on. `None` if the limit
/// cannot be raised.
fn beyond_limit<T>(work: impl FnOnce() -> T) -> Option<T> {
    let own = limit(None)?;
    let most = match own.rlim_cur < own.rlim_max {
        true => own.rlim_max,
        false => own.rlim_max.saturating_add(MORE),
    };
    limit(Some(libc::rlimit { rlim_cur: most, rlim_max: most }))?;
    let done = work();
    // What the program has set meanwhile stands.
    if let Some(found) = limit(Some(own)).filter(|found| found.rlim_cur != most) {
        limit(Some(found));
    }
    Some(done)
}

/// The limit of descriptors as it was, and from now on `new`.
fn limit(new: Option<libc::rlimit>) -> Option<libc::rlimit> {
    let new = new.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    let mut old = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the kernel reads one structure, if any, and writes the other.
    let done = unsafe { libc::prlimit(0, libc::RLIMIT_NOFILE, new, &mut old) } == 0;
    done.then_some(old)
}

fn wait_or_end() {
    let now_ns = thread::now_ns();
    match STARVED_SINCE_NS.load(Ordering::Relaxed) {
        0 => STARVED_SINCE_NS.store(now_ns, Ordering::Relaxed),
        since_ns if now_ns - since_ns > PATIENCE_NS => proc::die(
            "terrace: no descriptor is left to bring a forked child its memory with \
             (RLIMIT_NOFILE, fs.file-max); ending the program rather than letting it hang",
        ),
        _ => {}
    }
    thread::sleep_us(PAUSE_US);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_raised_for_a_moment() {
        let before = limit(None).expect("a limit");
        let same =
            |a: libc::rlimit, b: libc::rlimit| (a.rlim_cur, a.rlim_max) == (b.rlim_cur, b.rlim_max);
        if let Some(within) = beyond_limit(|| limit(None).expect("a limit")) {
            assert!(within.rlim_cur > before.rlim_cur || before.rlim_cur == libc::RLIM_INFINITY);
        }
        assert!(same(before, limit(None).expect("a limit")));
    }
}
