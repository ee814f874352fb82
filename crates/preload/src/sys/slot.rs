//! What is set once in a process: unset in a forked child of it, or made by whoever needs it first.

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
        // SAFETY: null, or of what lives for good, and may be shared between threads. In a
        // child, to which that memory was not given, `clear` comes before any other code of ours.
        unsafe { self.0.load(Ordering::Acquire).as_ref() }
    }

    /// What is there, or what `make` makes and is there from now on. Of two threads that find
    /// nothing one has made it for both. Nobody may [`clear`](Slot::clear) such a place.
    pub fn get_or_make(&self, make: impl FnOnce() -> T) -> &'static T {
        if let Some(there) = self.get() {
            return there;
        }
        let mine = Box::into_raw(Box::new(make()));
        let (empty, how) = (std::ptr::null_mut(), (Ordering::AcqRel, Ordering::Acquire));
        match self.0.compare_exchange(empty, mine, how.0, how.1) {
            // SAFETY: made just now, and never freed from here on.
            Ok(_) => unsafe { &*mine },
            // SAFETY: `mine` was never there, so nobody else has it; what is, as in `get`.
            Err(there) => unsafe {
                drop(Box::from_raw(mine));
                &*there
            },
        }
    }

    /// Empties it.
    pub fn clear(&self) {
        self.0.store(std::ptr::null_mut(), Ordering::Release);
    }
}
