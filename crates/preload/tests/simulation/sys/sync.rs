//! Locks that give the turn to another simulated thread where a real one would wait, and the
//! atomics of page words, at which another may go first.

use crate::schedule::{self, Key};
use std::ops::{Deref, DerefMut};
use std::sync::atomic::Ordering;
use std::sync::{LockResult, TryLockError, TryLockResult};

/// As `std::sync::Mutex`.
#[derive(Debug, Default)]
pub struct Mutex<T>(std::sync::Mutex<T>);

/// As `std::sync::MutexGuard`.
#[derive(Debug)]
pub struct MutexGuard<'a, T> {
    of: &'a Mutex<T>,
    inner: Option<std::sync::MutexGuard<'a, T>>,
}

/// See the real one. Children run no code of the runtime here; a new seed begins like one.
#[derive(Debug)]
pub struct OnlyThread(());

impl OnlyThread {
    /// Before the first thread of a seed.
    pub fn of_new_seed() -> OnlyThread {
        OnlyThread(())
    }
}

/// See the real one.
pub fn renew<T>(_only: &OnlyThread, lock: &'static Mutex<T>, value: T) {
    *lock.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = value;
}

impl<T> Mutex<T> {
    /// A lock that nobody holds.
    pub const fn new(value: T) -> Mutex<T> {
        Mutex(std::sync::Mutex::new(value))
    }

    fn key(&self) -> Key {
        Key::Lock(std::ptr::from_ref(self).cast::<u8>() as usize)
    }

    /// Waits for the lock.
    pub fn lock(&self) -> LockResult<MutexGuard<'_, T>> {
        schedule::call_point();
        loop {
            match self.0.try_lock() {
                Ok(inner) => return Ok(MutexGuard { of: self, inner: Some(inner) }),
                Err(TryLockError::Poisoned(e)) => {
                    return Ok(MutexGuard { of: self, inner: Some(e.into_inner()) })
                }
                Err(TryLockError::WouldBlock) => schedule::wait(self.key()),
            }
        }
    }

    /// Takes the lock if it is free.
    pub fn try_lock(&self) -> TryLockResult<MutexGuard<'_, T>> {
        schedule::call_point();
        match self.0.try_lock() {
            Ok(inner) => Ok(MutexGuard { of: self, inner: Some(inner) }),
            Err(TryLockError::Poisoned(e)) => {
                Ok(MutexGuard { of: self, inner: Some(e.into_inner()) })
            }
            Err(TryLockError::WouldBlock) => Err(TryLockError::WouldBlock),
        }
    }
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        self.inner.as_ref().expect("held")
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.inner.as_mut().expect("held")
    }
}

impl<T> Drop for MutexGuard<'_, T> {
    fn drop(&mut self) {
        self.inner = None;
        schedule::wake(self.of.key());
    }
}

/// As `std::sync::Condvar`.
#[derive(Debug, Default)]
pub struct Condvar(u8);

impl Condvar {
    /// A condition for which nobody waits.
    pub fn new() -> Condvar {
        Condvar(0)
    }

    fn key(&self) -> Key {
        Key::Lock(std::ptr::from_ref(&self.0) as usize)
    }

    /// Gives up the lock, waits, and takes it again.
    pub fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> LockResult<MutexGuard<'a, T>> {
        let of = guard.of;
        drop(guard);
        schedule::wait(self.key());
        of.lock()
    }

    /// Wakes one; here all, which conditions must bear.
    pub fn notify_one(&self) {
        schedule::wake(self.key());
    }

    /// Wakes all.
    pub fn notify_all(&self) {
        schedule::wake(self.key());
    }
}

/// The atomic of a page word.
#[derive(Debug, Default)]
pub struct AtomicWord(std::sync::atomic::AtomicU64);

impl AtomicWord {
    /// With a value.
    pub const fn new(value: u64) -> AtomicWord {
        AtomicWord(std::sync::atomic::AtomicU64::new(value))
    }

    /// As of `AtomicU64`.
    pub fn load(&self, order: Ordering) -> u64 {
        schedule::load_point();
        self.0.load(order)
    }

    /// As of `AtomicU64`.
    pub fn compare_exchange(
        &self,
        old: u64,
        new: u64,
        success: Ordering,
        failure: Ordering,
    ) -> Result<u64, u64> {
        schedule::swap_point();
        let done = self.0.compare_exchange(old, new, success, failure);
        crate::pairs::swapped(old, new, done.is_ok());
        done
    }
}

/// The atomic of a place for a copy.
#[derive(Debug, Default)]
pub struct AtomicPlace(std::sync::atomic::AtomicU64);

impl AtomicPlace {
    /// With a value.
    pub const fn new(value: u64) -> AtomicPlace {
        AtomicPlace(std::sync::atomic::AtomicU64::new(value))
    }

    /// As of `AtomicU64`.
    pub fn load(&self, order: Ordering) -> u64 {
        schedule::load_point();
        self.0.load(order)
    }

    /// As of `AtomicU64`.
    pub fn swap(&self, value: u64, order: Ordering) -> u64 {
        schedule::swap_point();
        self.0.swap(value, order)
    }

    /// As of `AtomicU64`.
    pub fn compare_exchange(
        &self,
        old: u64,
        new: u64,
        success: Ordering,
        failure: Ordering,
    ) -> Result<u64, u64> {
        schedule::swap_point();
        self.0.compare_exchange(old, new, success, failure)
    }
}
