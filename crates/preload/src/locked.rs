//! A program that locks its memory (`mlockall`) wants no access to wait. It is left in peace:
//! everything is brought home, and nothing is taken until it unlocks.
//!
//! The lock itself is asked for on fault (`MCL_ONFAULT`): what is in memory is locked there, and so
//! is what comes later, but the gigabytes that the runtime only reserves are not filled.

use crate::forks;
use crate::runtime::Runtime;
use crate::sys::sync::OnlyThread;
use crate::sys::{memory, thread};
use std::sync::atomic::{AtomicBool, Ordering};

/// The program has asked for all of its memory to be locked.
static LOCKED: AtomicBool = AtomicBool::new(false);
/// Movement is stopped for that, once however often it asks.
static STOPPED: AtomicBool = AtomicBool::new(false);

/// In a forked child, which has not locked anything.
pub fn forget(_only: &OnlyThread) {
    LOCKED.store(false, Ordering::SeqCst);
    STOPPED.store(false, Ordering::SeqCst);
}

/// Before `mlockall`, where a runtime may just be coming up or not. Returns the flags to ask for,
/// and whether an earlier lock holds.
pub fn before_lock(flags: i32, is_coming: bool) -> (i32, bool) {
    if !memory::is_reserved() && !is_coming {
        return (flags, false);
    }
    // First this, then a look for the runtime; the agent does it the other way round, so that one
    // of the two sees the other.
    let held = LOCKED.swap(true, Ordering::SeqCst);
    if let Some(rt) = forks::runtime() {
        // (A handler may fork, which brings everything home as well.)
        thread::without_signals(|| respect(rt));
    }
    (flags | libc::MCL_ONFAULT, held)
}

/// After `munlockall`, or an `mlockall` that failed while no earlier one held.
pub fn unlocked() {
    LOCKED.store(false, Ordering::SeqCst);
    if let Some(rt) = forks::runtime() {
        if STOPPED.swap(false, Ordering::SeqCst) {
            rt.paused.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

/// Stops movement and brings everything home, if the program has locked its memory. Called by
/// `mlockall`, and when a runtime is up that may have come later than that.
pub fn respect(rt: &'static Runtime) {
    if !LOCKED.load(Ordering::SeqCst) {
        return;
    }
    if !STOPPED.swap(true, Ordering::SeqCst) {
        rt.paused.fetch_add(1, Ordering::AcqRel);
    }
    forks::bring_all_home(rt);
}
