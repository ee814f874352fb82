//! Where pages lie between the application and a tier: a mover has some slots of the size of a
//! region, and page `i` of a region goes to page `i` of a slot.
//!
//! Emptying one is a change of the address space, of which the pager must read. Until the mover has
//! run on after that the kernel refuses to fill any page, and faults wait (70 to 360 us were seen).
//! So slots with few pages in them are emptied together.

use crate::runtime::Runtime;
use crate::sys::memory;
use terrace_core::state::{REGION_BYTES, REGION_PAGES};

/// Slots of a mover.
const SLOTS: u64 = 8;

/// A mover's staging slots, one behind the other.
#[derive(Debug)]
pub struct Slots {
    base: u64,
    used: u64,
    /// Pages in them.
    pages: usize,
}

impl Slots {
    /// Empty slots of the caller's own; `None` if there is no room for them.
    pub fn new(rt: &Runtime) -> Option<Slots> {
        let base = memory::carve(SLOTS * REGION_BYTES)?;
        rt.uffd.register_staging(base, SLOTS * REGION_BYTES).ok()?;
        Some(Slots { base, used: 0, pages: 0 })
    }

    /// A slot with nothing in it.
    pub fn clean(&self) -> u64 {
        self.base + self.used * REGION_BYTES
    }

    /// Pages were moved into that slot, and nobody needs what is left of them. No more are held
    /// than a region has, or twice that for a moment.
    pub fn used(&mut self, pages: usize) {
        self.used += 1;
        self.pages += pages;
        if self.used == SLOTS || self.pages >= REGION_PAGES {
            self.empty();
        }
    }

    /// Gives back what is in them.
    pub fn empty(&mut self) {
        if self.used > 0 {
            memory::release(self.base, self.used * REGION_BYTES);
            (self.used, self.pages) = (0, 0);
        }
    }
}
