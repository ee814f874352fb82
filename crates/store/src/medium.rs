//! Media: where the bytes of a pool live, by offset.
//!
//! The runtime's medium is a large reserved mapping of which only touched pages cost memory; it is
//! raw memory and therefore lives in the preload crate. Here are the trait, a medium on the heap
//! for tests and benches, and the emulation of slower media.
//!
//! Media on a device are [`blocks`], over a file ([`device`]) or a mapping (the preload crate
//! again).
//!
//! Callers keep accesses to one range apart in time: [`crate::tier::Tier`] writes under its pool's
//! lock, and releases only pages that the pool keeps out of use meanwhile. It reads under the lock
//! where that takes no device; else without, and looks afterwards whether the range is still what
//! it was.

use crate::PAGE_SIZE;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use terrace_core::tier::Medium as MediumSpec;

pub mod blocks;
pub mod cipher;
pub mod device;
mod open;

/// Why a medium could not do what it was asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MediumError {
    /// The range ends beyond the capacity.
    OutOfRange,
    /// The device failed.
    Io,
    /// The device has no more room, though its capacity is not reached.
    Full,
}

impl core::fmt::Display for MediumError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            MediumError::OutOfRange => "range ends beyond the medium",
            MediumError::Io => "the device failed",
            MediumError::Full => "the device is full",
        })
    }
}

impl std::error::Error for MediumError {}

/// A place for bytes.
pub trait Medium: Send + Sync {
    /// Copies bytes out. Called on the way of a fault: must not allocate, log or wait for a mover.
    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<(), MediumError>;

    /// Copies bytes in. Never waits for a device.
    fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), MediumError>;

    /// Says that whole pages will not be read again before they are written, so that what they
    /// cost can be given back. A hint: their content afterwards is anything.
    fn release(&self, offset: u64, len: u64);

    /// Bytes it can hold.
    fn capacity(&self) -> u64;

    /// As `read` where that takes no device. `false` if it does, and then nothing was done.
    fn try_read(&self, offset: u64, buf: &mut [u8]) -> Result<bool, MediumError> {
        self.read(offset, buf).map(|()| true)
    }

    /// Brings a range to where `try_read` finds it, at least for a while.
    fn fetch(&self, _offset: u64, _len: usize) -> Result<(), MediumError> {
        Ok(())
    }

    /// Why nothing should be written now; a medium that just failed rests for a while.
    fn accepts(&self) -> Result<(), MediumError> {
        Ok(())
    }

    /// Does the device's part of what was written, if it is time. Called after writes, without a
    /// lock, by threads that can wait.
    fn work_off(&self) {}

    /// Whether a read may wait for a device.
    fn waits(&self) -> bool {
        false
    }

    /// What a read takes beyond a copy, nanoseconds, as measured lately.
    fn read_ns(&self) -> u64 {
        0
    }

    /// Memory of the process that it takes for itself, bytes; not what it holds.
    fn memory_bytes(&self) -> u64 {
        0
    }

    /// Whether what it holds takes the machine's memory although its kind says otherwise, and the
    /// process' resident set does not have it: a file on a filesystem that is in memory.
    fn lies_in_memory(&self) -> bool {
        false
    }

    /// Lets the time pass that moving so many bytes takes beyond what `read` and `write` took
    /// themselves. Apart from them so that the caller can give up its locks first.
    fn wait(&self, _bytes: usize) {}
}

/// A medium on the heap, behind one lock.
pub struct HeapMedium {
    bytes: Mutex<Vec<u8>>,
}

impl HeapMedium {
    /// A medium of zeros; costs memory as it is written, where the allocator maps large blocks.
    pub fn new(capacity: usize) -> HeapMedium {
        HeapMedium { bytes: Mutex::new(vec![0; capacity]) }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<u8>> {
        // Bytes are bytes: a writer that panicked leaves nothing that a checksum would not find.
        self.bytes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn range(offset: u64, len: usize) -> Result<core::ops::Range<usize>, MediumError> {
    let start = usize::try_from(offset).map_err(|_| MediumError::OutOfRange)?;
    Ok(start..start.checked_add(len).ok_or(MediumError::OutOfRange)?)
}

impl Medium for HeapMedium {
    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<(), MediumError> {
        let bytes = self.lock();
        let source = bytes.get(range(offset, buf.len())?).ok_or(MediumError::OutOfRange)?;
        buf.copy_from_slice(source);
        Ok(())
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), MediumError> {
        let range = range(offset, bytes.len())?;
        self.lock().get_mut(range).ok_or(MediumError::OutOfRange)?.copy_from_slice(bytes);
        Ok(())
    }

    /// Overwrites the range, so that a test which reads released pages notices.
    fn release(&self, offset: u64, len: u64) {
        let Ok(range) = range(offset, usize::try_from(len).unwrap_or(usize::MAX)) else { return };
        if let Some(pages) = self.lock().get_mut(range) {
            pages.fill(0xdd);
        }
    }

    fn capacity(&self) -> u64 {
        self.lock().len() as u64
    }
}

/// A medium made slower: each access costs a latency, and its bytes the inverse of a bandwidth.
///
/// The time is spent spinning, because it stands for a load instruction that does not return: no
/// other thread gets the CPU meanwhile. It is spent in `wait`, not in `read` and `write`. Each
/// access has the whole bandwidth for itself; contention for the device is not emulated.
pub struct Emulated<M> {
    inner: M,
    latency_ns: u64,
    bandwidth_mib_s: u64,
}

impl<M: Medium> Emulated<M> {
    /// Adds `latency_ns` and a bandwidth limit (0 for none) to a medium.
    pub fn new(inner: M, latency_ns: u64, bandwidth_mib_s: u64) -> Emulated<M> {
        Emulated { inner, latency_ns, bandwidth_mib_s }
    }

    /// Adds what the description of a medium says.
    pub fn from_spec(inner: M, spec: &MediumSpec) -> Emulated<M> {
        Emulated::new(inner, spec.latency_ns, spec.bandwidth_mib_s)
    }

    /// Time that an access of so many bytes takes.
    pub fn access_time(&self, bytes: usize) -> Duration {
        let per_mib_ns = 1_000_000_000u64.checked_div(self.bandwidth_mib_s).unwrap_or(0);
        let transfer_ns = (u128::from(per_mib_ns) * bytes as u128) >> 20;
        Duration::from_nanos(self.latency_ns.saturating_add(transfer_ns as u64))
    }
}

impl<M: Medium> Medium for Emulated<M> {
    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<(), MediumError> {
        self.inner.read(offset, buf)
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), MediumError> {
        self.inner.write(offset, bytes)
    }

    fn release(&self, offset: u64, len: u64) {
        self.inner.release(offset, len);
    }

    fn capacity(&self) -> u64 {
        self.inner.capacity()
    }

    fn try_read(&self, offset: u64, buf: &mut [u8]) -> Result<bool, MediumError> {
        self.inner.try_read(offset, buf)
    }

    fn fetch(&self, offset: u64, len: usize) -> Result<(), MediumError> {
        self.inner.fetch(offset, len)
    }

    fn accepts(&self) -> Result<(), MediumError> {
        self.inner.accepts()
    }

    fn work_off(&self) {
        self.inner.work_off();
    }

    fn waits(&self) -> bool {
        self.inner.waits()
    }

    fn read_ns(&self) -> u64 {
        self.inner.read_ns() + self.latency_ns
    }

    fn memory_bytes(&self) -> u64 {
        self.inner.memory_bytes()
    }

    fn lies_in_memory(&self) -> bool {
        self.inner.lies_in_memory()
    }

    fn wait(&self, bytes: usize) {
        let start = Instant::now();
        let time = self.access_time(bytes);
        while start.elapsed() < time {
            core::hint::spin_loop();
        }
        self.inner.wait(bytes);
    }
}

impl<M: Medium + ?Sized> Medium for Box<M> {
    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<(), MediumError> {
        (**self).read(offset, buf)
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), MediumError> {
        (**self).write(offset, bytes)
    }

    fn release(&self, offset: u64, len: u64) {
        (**self).release(offset, len);
    }

    fn capacity(&self) -> u64 {
        (**self).capacity()
    }

    fn try_read(&self, offset: u64, buf: &mut [u8]) -> Result<bool, MediumError> {
        (**self).try_read(offset, buf)
    }

    fn fetch(&self, offset: u64, len: usize) -> Result<(), MediumError> {
        (**self).fetch(offset, len)
    }

    fn accepts(&self) -> Result<(), MediumError> {
        (**self).accepts()
    }

    fn work_off(&self) {
        (**self).work_off();
    }

    fn waits(&self) -> bool {
        (**self).waits()
    }

    fn read_ns(&self) -> u64 {
        (**self).read_ns()
    }

    fn memory_bytes(&self) -> u64 {
        (**self).memory_bytes()
    }

    fn lies_in_memory(&self) -> bool {
        (**self).lies_in_memory()
    }

    fn wait(&self, bytes: usize) {
        (**self).wait(bytes);
    }
}

/// Pages of a medium.
pub fn capacity_pages(medium: &dyn Medium) -> u64 {
    medium.capacity() / PAGE_SIZE as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_beyond_the_end_are_refused() {
        let medium = HeapMedium::new(8192);
        assert_eq!(medium.write(8190, b"abc"), Err(MediumError::OutOfRange));
        assert_eq!(medium.read(u64::MAX, &mut [0; 2]), Err(MediumError::OutOfRange));
        medium.write(8189, b"abc").unwrap();
        let mut back = [0; 3];
        medium.read(8189, &mut back).unwrap();
        assert_eq!(&back, b"abc");
        medium.release(4096, 1 << 40);
    }

    #[test]
    fn emulated_time_is_latency_and_transfer() {
        let slow = Emulated::new(HeapMedium::new(4096), 300, 1024);
        assert_eq!(slow.access_time(0), Duration::from_nanos(300));
        // 1 MiB at 1 GiB/s is 976 us.
        assert_eq!(slow.access_time(1 << 20).as_micros(), 976);
        assert_eq!(Emulated::new(HeapMedium::new(0), 5, 0).access_time(1 << 20).as_nanos(), 5);
    }
}
