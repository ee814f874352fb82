//! Media of the simulated process: bytes on the heap, some of them behind a slow device.

use crate::schedule;
use std::sync::Mutex;
use terrace_core::tier::{MediumKind, Place};
use terrace_store::{HeapMedium, Medium, MediumError};

/// See the real one.
#[derive(Clone, Copy, Debug)]
pub struct Share {
    /// The how-manieth.
    pub index: u64,
    /// Of how many.
    pub of: u64,
}

/// See the real one.
#[derive(Debug, Default)]
pub struct Devices(());

/// The place of a medium that takes nothing.
pub const CLOSED: &str = "/closed";

/// Opens the medium of one tier. A file is one that takes its time.
pub fn open(
    kind: MediumKind,
    place: &Place,
    memory_bytes: u64,
    _share: Share,
    _devices: &mut Devices,
) -> Result<Box<dyn Medium>, String> {
    let capacity = if place.capacity_bytes == 0 { memory_bytes } else { place.capacity_bytes };
    let heap = HeapMedium::new(capacity as usize);
    let (is_slow, is_closed) = (kind == MediumKind::File, place.path == CLOSED);
    Ok(Box::new(Fake { heap, is_slow, is_closed, waited: Mutex::default() }))
}

/// A medium that lets others go first where the store holds no lock. A slow one does so when it is
/// read, too; but no thread waits twice in a row: what was moved over one read is found by the
/// next, so that the store never reads it under its lock.
struct Fake {
    heap: HeapMedium,
    is_slow: bool,
    is_closed: bool,
    /// Threads whose last read waited.
    waited: Mutex<Vec<Option<usize>>>,
}

impl Medium for Fake {
    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<(), MediumError> {
        let me = schedule::current();
        let may_wait = self.is_slow && {
            let mut waited = self.waited.lock().expect("no poison");
            let place = waited.iter().position(|&t| t == me);
            match place {
                Some(n) => {
                    waited.swap_remove(n);
                }
                None => waited.push(me),
            }
            place.is_none()
        };
        if may_wait {
            schedule::sleep_us(600);
        }
        self.heap.read(offset, buf)
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), MediumError> {
        self.heap.write(offset, bytes)
    }

    fn release(&self, offset: u64, len: u64) {
        self.heap.release(offset, len);
    }

    fn capacity(&self) -> u64 {
        self.heap.capacity()
    }

    fn try_read(&self, offset: u64, buf: &mut [u8]) -> Result<bool, MediumError> {
        // What is still being filled is in memory.
        let is_open = !self.is_slow || schedule::random(|r| r.once_in(3));
        if is_open {
            self.heap.read(offset, buf)?;
        }
        Ok(is_open)
    }

    fn waits(&self) -> bool {
        self.is_slow
    }

    fn accepts(&self) -> Result<(), MediumError> {
        match schedule::random(|r| r.below(60)) {
            _ if self.is_closed => Err(MediumError::Full),
            0 => Err(MediumError::Full),
            1 => Err(MediumError::Io),
            _ => Ok(()),
        }
    }

    fn work_off(&self) {
        if schedule::random(|r| r.once_in(3)) {
            schedule::sleep_us(200);
        } else {
            schedule::call_point();
        }
    }
}
