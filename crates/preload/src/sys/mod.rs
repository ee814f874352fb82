//! The door to Linux. Together with `interpose.rs` the only `unsafe` in the runtime.
//!
//! The promise that makes the rest safe: **nothing in this folder ever hands out a reference into
//! the application's memory, and the runtime's own memory is never registered with userfaultfd in
//! missing mode, never moved and never unmapped.** The application's pages are only named by
//! address and only touched by the kernel, through the ioctls in [`uffd`]; those can fill a hole
//! or take a whole page out, atomically against the application's own accesses. (Where there is no
//! such ioctl [`stop`] takes it out, and argues for that itself.) What the runtime
//! itself reads is a page after it was moved into the runtime's staging area, where nobody else
//! can reach it.

pub mod alone;
#[cfg(target_arch = "x86_64")]
mod by_number;
pub mod clones;
pub mod crash;
pub mod credentials;
pub mod files;
pub mod heap;
pub mod inherit;
pub mod media;
pub mod memory;
pub mod messages;
pub mod proc;
pub mod readable;
pub mod remap;
pub mod rseq;
pub mod sanitizers;
pub mod slot;
pub mod socket;
pub mod spare;
pub mod stack;
pub mod stop;
pub mod strangers;
pub mod sync;
pub mod thread;
pub mod uffd;
pub mod users;

/// Fresh memory for a test that gives some of it back and looks at the hole. It is far below where
/// the kernel puts what has no address of its own, or another test's thread might map something
/// into the hole.
#[cfg(test)]
fn apart(bytes: u64) -> u64 {
    use std::sync::atomic::{AtomicU64, Ordering};
    static NEXT: AtomicU64 = AtomicU64::new(0x1000_0000_0000);
    let at = NEXT.fetch_add(1 << 30, Ordering::Relaxed);
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
    let rw = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a mapping where nothing is, or the kernel refuses.
    let p = unsafe { libc::mmap(at as *mut libc::c_void, bytes as usize, rw, flags, -1, 0) };
    assert_eq!(p as u64, at, "something is where only tests map");
    at
}

/// Held by tests that fork, and by one that counts memory which no child shares.
#[cfg(test)]
pub(crate) static CHILDREN_IN_TESTS: std::sync::Mutex<()> = std::sync::Mutex::new(());

/// Whether `work` says so in a forked child of this process, and in good time.
#[cfg(test)]
pub(crate) fn in_a_child(work: impl FnOnce(&sync::OnlyThread) -> bool) -> bool {
    const LIMIT_S: u32 = 5;
    let _alone = CHILDREN_IN_TESTS.lock().unwrap_or_else(|e| e.into_inner());
    // SAFETY: what the child does is the caller's choice; it has no other thread, and ends here.
    unsafe {
        let child = libc::fork();
        if child == 0 {
            libc::alarm(LIMIT_S);
            libc::_exit(i32::from(!work(&sync::OnlyThread::new())));
        }
        let mut status = 0;
        libc::waitpid(child, &mut status, 0) == child && status == 0
    }
}
