//! What is set once in a process, and unset in a forked child of it.

use std::sync::atomic::{AtomicPtr, Ordering};

/// A place for one thing that lives for good.
#[derive(Debug)]
pub struct Slot<T: 'static>(AtomicPtr<T>);

impl<T: Sync> Slot<T> {
    /// With nothing in it.
    pub const fn empty() -> Slot<T> {
        Slot(AtomicPtr::new(std::ptr::null_mut()))
    }

    /// Puts it there, in the place of what was.
    pub fn set(&self, it: &'static T) {
        self.0.store(std::ptr::from_ref(it).cast_mut(), Ordering::Release);
    }

    /// What is there.
    #[inline]
    pub fn get(&self) -> Option<&'static T> {
        // SAFETY: null, or from a `&'static T`, of which copies may be shared between threads. In a
        // child, to which that memory was not given, `clear` comes before any other code of ours.
        unsafe { self.0.load(Ordering::Acquire).as_ref() }
    }

    /// Empties it.
    pub fn clear(&self) {
        self.0.store(std::ptr::null_mut(), Ordering::Release);
    }
}
