//! Locks and the atomics of page words and of places for copies, by one name for the runtime and
//! for the simulation (`tests/simulation`), which has its own of each: there a simulated thread
//! that waits, or races, gives its turn to another.

pub use std::sync::atomic::AtomicU64 as AtomicWord;
pub use std::sync::atomic::AtomicU64 as AtomicPlace;
pub use std::sync::{Condvar, Mutex, MutexGuard};

/// Says that the calling thread is the only one of its process.
#[derive(Debug)]
pub struct OnlyThread(());

impl OnlyThread {
    /// # Safety
    /// It must be true until the value is gone: a forked child, before it has made a thread.
    pub unsafe fn new() -> OnlyThread {
        OnlyThread(())
    }
}

/// Makes a lock anew. In a forked child it may be held by a thread that is not there, and what it
/// guards may be memory that is not there: neither is looked at.
pub fn renew<T>(_only: &OnlyThread, lock: &'static Mutex<T>, value: T) {
    let place = std::ptr::from_ref(lock).cast_mut();
    // SAFETY: nobody else looks at it, by `OnlyThread`, and all of a `Mutex` may change behind a
    // shared reference. What was in it is not dropped.
    unsafe { place.write(Mutex::new(value)) };
}
