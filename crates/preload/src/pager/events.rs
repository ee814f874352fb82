//! Changes of the address space, as the kernel reports them for registered ranges.

use super::{Pager, Served};
use crate::region::{for_overlap, page_index, Region};
use crate::sys::uffd::{Event, Failure};
use crate::sys::{memory, thread};
use std::sync::atomic::Ordering;
use terrace_core::state::{PageState, PageWord, PAGE_BYTES, REGION_BYTES};

/// How often a page is carried after a mapping that moves on; each waits for an event, or 20 us.
const DELIVERIES_MAX: usize = 1000;

impl Pager {
    /// Handles one message that is not a fault.
    pub(super) fn change(&mut self, event: Event) {
        self.change_of(event, &[]);
    }

    /// The same of an event that is known to be about what our books have at these pages.
    pub(super) fn change_of(&mut self, event: Event, known: &[u64]) {
        match event {
            Event::Remove { start, end } if self.is_own_removal(start, end) => {}
            Event::Remove { start, end } => self.removed(start, end),
            Event::Unmap { start, end, seen } => {
                for part in self.unmapped_parts(start, end, known) {
                    // (What is made way for has come; so the other has gone.)
                    let parts = match known.is_empty() {
                        true => self.taken_place(part, (start, end), seen),
                        false => vec![part],
                    };
                    parts.into_iter().for_each(|(start, end)| self.unmapped(start, end));
                }
            }
            Event::Remap { from, to, len } => {
                self.arriving(to, len);
                self.make_way(to, len);
                for (start, end) in self.true_parts(from, from + len, true, known) {
                    self.remapped(start, start - from + to, end - start);
                }
                self.arrived(from, to, len);
            }
            Event::Fork { child } => self.forked(child),
            Event::Fault { .. } => {}
        }
    }

    /// `madvise` is about to drop the content of a range. What we hold of it is void, and what is
    /// still in the mapping must not be moved until the kernel has dropped it.
    fn removed(&mut self, start: u64, end: u64) {
        let table = &self.rt.table;
        // A mapping that was moved while it was being registered is registered where we know
        // nothing of it. The mark must be there before somebody registers it again.
        if !memory::is_own(start, end) {
            let regions = start / REGION_BYTES..end.div_ceil(REGION_BYTES);
            regions.for_each(|n| {
                let _ = table.get_or_create(n * REGION_BYTES);
            });
        }
        for_overlap(table, start, end, |region, pages| {
            for i in pages {
                self.void(region, i, true);
            }
        });
    }

    /// A range is gone. Another mapping may be in its place already.
    fn unmapped(&mut self, start: u64, end: u64) {
        let table = &self.rt.table;
        for_overlap(table, start, end, |region, pages| {
            for i in pages.clone() {
                self.void(region, i, false);
            }
            region.set_registered(pages, false);
        });
    }

    /// Drops whatever is held for page `i`.
    pub(super) fn void(&mut self, region: &Region, i: usize, zap_pending: bool) {
        self.feed_children(region, i);
        let next = if zap_pending { PageWord::default().zapped() } else { PageWord::default() };
        // A mover may turn Staged into Encoding or Encoding into Stored meanwhile; what it
        // finished is in the word that was replaced.
        let held = region.update(i, |_| next);
        self.drop_held(region, i, held);
    }

    /// Gives back the place that the word of page `i` named until now.
    fn drop_held(&mut self, region: &Region, i: usize, held: PageWord) {
        let held = self.let_load_go(region, i, held);
        self.rt.forget(held);
        if held.state() == PageState::Sampled {
            self.rt.samples.give_back(held.payload(), false);
        }
    }

    /// A range moved, with its pages. Those we hold are now expected at the new address.
    fn remapped(&mut self, from: u64, to: u64, len: u64) {
        self.carries = self.carries.wrapping_add(1);
        for offset in (0..len).step_by(PAGE_BYTES) {
            let Some(old) = self.rt.table.get(from + offset) else { continue };
            let i = page_index(from + offset);
            if !old.is_registered(i) {
                continue;
            }
            let Some(new) = self.rt.table.get_or_create(to + offset) else { continue };
            let j = page_index(to + offset);
            let held = self.let_go(old, i, to + offset);
            if held.state() != PageState::Home {
                self.rt.table.carried.fetch_add(1, Ordering::Release);
            }
            // A child that misses the page that was there must not be given this one.
            self.feed_children(new, j);
            let before = new.update(j, |_| held.carried(self.carries));
            self.drop_held(new, j, before);
            old.set_registered(i..i + 1, false);
            new.set_registered(j..j + 1, true);
            new.tier.store(old.tier.load(Ordering::Relaxed), Ordering::Relaxed);
            let is_called = old.is_called_home.load(Ordering::Relaxed);
            new.is_called_home.store(is_called, Ordering::Relaxed);
        }
    }

    /// Takes page `i` out of its region's record; returns the word for its new place, `now_at`.
    fn let_go(&mut self, region: &Region, i: usize, now_at: u64) -> PageWord {
        loop {
            self.feed_children(region, i);
            let w = region.word(i);
            let in_slot = matches!(w.state(), PageState::Staged | PageState::Encoding);
            if !in_slot {
                if region.replace(i, w, PageWord::default()) {
                    return self.let_load_go(region, i, w);
                }
                continue;
            }
            // A page in a staging slot belongs to its place there, so it is carried in another.
            // Claimed, so that its mover neither stores it nor empties the slot.
            let Some(claimed) = w.begin_restore() else { continue };
            if region.replace(i, w, claimed) {
                let carried = self.carry(self.rt.slot_address(region, i, w), now_at);
                region.replace(i, claimed, PageWord::default());
                return carried;
            }
        }
    }

    /// Copies a staged page to a sample slot, where a word finds it from any address. It must not
    /// go home before the changes that wait in the queue were handled: a child that was forked
    /// before it came home misses it.
    fn carry(&mut self, src: u64, now_at: u64) -> PageWord {
        if !self.is_in_slot(src) {
            return PageWord::default();
        }
        let slot = self.rt.samples.take_spare();
        while let Some(n) = slot {
            match self.uffd.copy_from(self.rt.samples.address(n), src) {
                Ok(()) => return PageWord::default().sample(n).unwrap_or_default(),
                // One mremap raises several events, and the kernel refuses until the last was
                // read. They are read here and handled after this one, in their order.
                Err(Failure::Changing) => self.listen(),
                Err(Failure::NoMemory) => thread::sleep_us(1000),
                Err(_) => {
                    self.rt.samples.give_back(n, false);
                    break;
                }
            }
        }
        self.deliver(now_at, src);
        PageWord::default()
    }

    /// Copies a staged page to an address that just came to be: where there is no slot to carry it.
    fn deliver(&mut self, dst: u64, src: u64) {
        let mut tries = 0;
        loop {
            // Changes that were read and are not handled yet may have moved it on, or dropped it.
            let Some(at) = self.queue.now_at(dst, self.arrivals.left()) else { return };
            match self.uffd.copy_from(at, src) {
                // Not there any more: moved on or unmapped by changes whose events come.
                Err(Failure::NotMapped | Failure::Missing) if tries < DELIVERIES_MAX => {
                    tries += 1;
                    self.listen();
                }
                Err(Failure::Changing) => self.listen(),
                Err(Failure::NoMemory) => thread::sleep_us(1000),
                // Gone again already, or filled: its event or its owner has the last word.
                Ok(()) | Err(Failure::Present) => return,
                Err(why) => {
                    if self.not_filled(at, why) == Served::Done {
                        return;
                    }
                }
            }
        }
    }
}
