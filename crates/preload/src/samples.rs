//! Sample slots: where pages wait that the tracker took out to see whether somebody comes back
//! for them.

use crate::sys::memory;
use crate::sys::uffd::Uffd;
use std::sync::{Mutex, PoisonError};
use terrace_core::state::PAGE_BYTES;

/// Slots: 8 samples of each of 65,536 regions (128 GiB of application). More than are free are
/// simply not sampled in that window.
const SLOTS: u32 = 1 << 19;
/// Slots that no sample takes: for pages that must be kept somewhere while they move.
const SPARE: u32 = 1 << 9;

#[derive(Debug, Default)]
struct Lists {
    /// Slots that are holes.
    free: Vec<u32>,
    /// Slots that still hold a page nobody wants; only a thread other than the pager may empty
    /// them, because emptying raises an event that the pager has to read.
    dirty: Vec<u32>,
    /// Slots from here on were never used.
    fresh: u32,
}

/// The slots and which of them are free.
#[derive(Debug)]
pub struct SampleSlots {
    base: u64,
    lists: Mutex<Lists>,
}

impl SampleSlots {
    /// Reserves and registers the slots.
    pub fn new(uffd: &Uffd) -> Option<SampleSlots> {
        let len = u64::from(SLOTS) * PAGE_BYTES as u64;
        let base = memory::carve(len)?;
        uffd.register_staging(base, len).ok()?;
        Some(SampleSlots { base, lists: Mutex::default() })
    }

    /// Address of slot `n`.
    pub fn address(&self, n: u32) -> u64 {
        self.base + u64::from(n) * PAGE_BYTES as u64
    }

    /// Takes a free slot for a sample.
    pub fn take(&self) -> Option<u32> {
        self.take_beyond(SPARE)
    }

    /// The same for a page that has no other place, from what samples leave.
    pub fn take_spare(&self) -> Option<u32> {
        self.take_beyond(0)
    }

    /// A slot, if more than so many are free.
    fn take_beyond(&self, spare: u32) -> Option<u32> {
        let mut l = self.lists();
        if l.free.len() as u32 + (SLOTS - l.fresh) <= spare {
            return None;
        }
        l.free.pop().or_else(|| {
            let n = l.fresh;
            (n < SLOTS).then(|| {
                l.fresh += 1;
                // Room for its way back, so that the pager never allocates for it.
                let want = l.fresh as usize;
                if l.free.capacity() < want {
                    let (f, d) = (
                        want.next_power_of_two() - l.free.len(),
                        want.next_power_of_two() - l.dirty.len(),
                    );
                    l.free.reserve(f);
                    l.dirty.reserve(d);
                }
                n
            })
        })
    }

    /// Gives a slot back: `empty` if its page was moved away, else its page is left over.
    pub fn give_back(&self, n: u32, empty: bool) {
        let mut l = self.lists();
        if empty {
            l.free.push(n);
        } else {
            l.dirty.push(n);
        }
    }

    /// Empties the slots that hold leftovers. Not from the pager thread.
    pub fn sweep(&self) {
        let dirty = std::mem::take(&mut self.lists().dirty);
        for &n in &dirty {
            memory::release(self.address(n), PAGE_BYTES as u64);
        }
        let mut l = self.lists();
        let want = l.fresh as usize;
        l.dirty.reserve(want);
        l.free.extend(dirty);
    }

    fn lists(&self) -> std::sync::MutexGuard<'_, Lists> {
        self.lists.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
