//! What movers and the tracker ask of the pager: bounded pieces of work on the application's
//! pages, run between two faults. See the head of `pager/mod.rs` for why only this thread may.

use super::Pager;
use crate::mover::{Refused, RETRY_WINDOWS};
use crate::region::Region;
use crate::sys::uffd::Failure;
use crate::sys::{inherit, thread};
use std::ops::Range;
use std::sync::atomic::Ordering;
use terrace_core::state::{PageState, PageWord, PAGE_BYTES, REGION_PAGES};
use terrace_core::tier::TierId;
use terrace_store::Page;

/// Pinned or shared pages met in one call before it gives up: after a fork every page is one.
const BUSY_MAX: usize = 8;
/// Waits for the address space to settle in one call before it gives up.
const CHANGING_MAX: usize = 16;

impl Pager {
    /// Registers pages of a region for missing faults. `false` if the kernel will not: the
    /// mapping is gone or of another kind, or there are too many mappings.
    pub fn register(&mut self, region: &Region, pages: Range<usize>) -> bool {
        let len = (pages.len() * PAGE_BYTES) as u64;
        // While a fork is under way the set of what is registered stays as it is.
        if self.rt.is_paused()
            || self.uffd.register_missing(region.address(pages.start), len).is_err()
        {
            return false;
        }
        // The kernel registers what there is and skips holes. What was unmapped since the caller
        // looked is such a hole, of which there is no event: whatever is mapped there next must not
        // pass for registered.
        if self.is_whole(region, pages.clone()) {
            region.set_registered(pages.clone(), true);
            return self.keep_from_children(region, pages);
        }
        let mut any = false;
        for i in pages {
            if self.is_whole(region, i..i + 1) {
                region.set_registered(i..i + 1, true);
                any |= self.keep_from_children(region, i..i + 1);
            }
        }
        any
    }

    /// Whether all of `pages` lies in one mapping that is registered, by the word of the kernel
    /// after every change before was handled. An unmapping from now on has its event.
    pub(super) fn is_whole(&mut self, region: &Region, pages: Range<usize>) -> bool {
        let (start, len) = (region.address(pages.start), (pages.len() * PAGE_BYTES) as u64);
        loop {
            match self.uffd.is_registered(start, len, self.rt.unreadable) {
                Err(Failure::Changing) => self.drain(),
                answer => return answer == Ok(true),
            }
        }
    }

    /// Ends the registration of a region that has every page at home. `false` if it has not.
    pub fn unregister(&mut self, region: &Region) -> bool {
        if (0..REGION_PAGES).any(|i| region.word(i).state() != PageState::Home) {
            return false;
        }
        self.settle_zaps(region);
        for pages in runs((0..REGION_PAGES).filter(|&i| region.is_registered(i))) {
            let len = (pages.len() * PAGE_BYTES) as u64;
            if !self.rt.sees_forks() {
                inherit::set_inherited(region.address(pages.start), len, true);
            }
            // Gone already if this fails; the bits must go either way.
            let _ = self.uffd.unregister(region.address(pages.start), len);
            region.set_registered(pages, false);
        }
        true
    }

    /// Ends the zaps of pages that are missing. While a region is registered its missing pages
    /// show themselves by a fault; once it is not, the kernel fills them unseen, and what is left
    /// marked would stay in DRAM for good.
    fn settle_zaps(&self, region: &Region) {
        let Some(present) = self.rt.pagemap.present(region.base) else { return };
        for i in (0..REGION_PAGES).filter(|&i| present[i / 64] >> (i % 64) & 1 == 0) {
            let w = region.word(i);
            if region.is_registered(i) && w.zap_pending() {
                region.replace(i, w, w.zap_done());
            }
        }
    }

    /// Moves the movable pages among `pages` to the staging slot. Returns how many were there.
    pub fn move_out(
        &mut self,
        region: &Region,
        pages: Range<usize>,
        slot: u64,
        tier: TierId,
        cooling: u8,
    ) -> usize {
        if self.rt.is_paused() {
            return 0;
        }
        let stamp = self.rt.window_stamp();
        let mut busy = 0;
        let mut changing = 0;
        let mut staged = 0;
        let mut i = pages.start;
        while i < pages.end {
            let movable = |i: usize| {
                region.is_registered(i)
                    && region.word(i).movable(tier, stamp, cooling, RETRY_WINDOWS)
            };
            if !movable(i) {
                i += 1;
                continue;
            }
            let end = (i..pages.end).find(|&k| !movable(k)).unwrap_or(pages.end);
            for k in i..end {
                self.children.owe_nothing(region.address(k));
                region.update(k, |w| w.stage(tier).unwrap_or(w));
            }
            let to = slot + (i * PAGE_BYTES) as u64;
            let len = ((end - i) * PAGE_BYTES) as u64;
            let (moved, why) = self.uffd.move_range(to, region.address(i), len, false);
            let stop = i + moved as usize / PAGE_BYTES;
            staged += stop - i;
            // What did not go is still at home.
            for k in stop..end {
                region.update(k, |w| if w.state() == PageState::Staged { w.home(None) } else { w });
            }
            i = stop;
            match why {
                None => {}
                Some(Failure::Changing) => {
                    changing += 1;
                    if changing > CHANGING_MAX {
                        break;
                    }
                    self.drain();
                }
                Some(Failure::Busy) => {
                    self.refuse(tier, Refused::PinnedOrShared);
                    busy += 1;
                    i += 1;
                    if busy >= BUSY_MAX {
                        break;
                    }
                }
                Some(_) => {
                    self.refuse(tier, Refused::MappingChanged);
                    break;
                }
            }
        }
        staged
    }

    fn refuse(&self, tier: TierId, why: Refused) {
        let refused = &self.rt.stats.tiers[tier.index()].refused;
        refused[why as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Moves what is left in the region's staging slot back to the application. Whether there was
    /// anything.
    pub fn return_staged(&mut self, region: &Region) -> bool {
        let mut any = false;
        for i in 0..REGION_PAGES {
            any |= region.word(i).state() == PageState::Staged;
            self.send_home(region, i, PageState::Staged);
        }
        any
    }

    /// Takes up to `want` pages of a region into sample slots, spread by `seed`. Returns how many.
    /// With `cooled`, only pages that came back lately: those that stay when the rest goes down.
    pub fn take_samples(&mut self, region: &Region, want: usize, seed: u64, cooled: bool) -> usize {
        if self.rt.is_paused() {
            return 0;
        }
        let stamp = self.rt.window_stamp();
        let cooling = self.rt.stores.config.cooling_windows;
        let tier = TierId(region.tier.load(Ordering::Relaxed));
        let mut taken = 0;
        let mut at = seed;
        // A few more tries than samples: some pages are holes or not at home.
        let tries = if cooled { want * 16 } else { want * 3 };
        for _ in 0..tries {
            if taken == want {
                break;
            }
            at = at.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let i = (at >> 33) as usize % REGION_PAGES;
            let w = region.word(i);
            if w.state() != PageState::Home || w.zap_pending() || !region.is_registered(i) {
                continue;
            }
            if cooled && w.movable(tier, stamp, cooling, RETRY_WINDOWS) {
                continue;
            }
            let Some(slot) = self.rt.samples.take() else { break };
            let Some(sampled) = w.sample(slot) else { continue };
            self.children.owe_nothing(region.address(i));
            region.replace(i, w, sampled);
            let to = self.rt.samples.address(slot);
            match self.uffd.move_page(to, region.address(i), false) {
                Ok(()) => taken += 1,
                Err(why) => {
                    region.replace(i, sampled, w);
                    self.rt.samples.give_back(slot, why != Failure::Present);
                    if why == Failure::Changing {
                        self.drain();
                    }
                }
            }
        }
        taken
    }

    /// Moves the samples nobody came back for home again.
    pub fn return_samples(&mut self, region: &Region) {
        for i in 0..REGION_PAGES {
            self.send_home(region, i, PageState::Sampled);
        }
    }

    /// Brings page `i` home if it is in state `from` (`Staged` or `Sampled`), unasked.
    fn send_home(&mut self, region: &Region, i: usize, from: PageState) {
        loop {
            let w = region.word(i);
            if w.state() != from {
                return;
            }
            self.feed_children(region, i);
            match self.bring_home(region, i, w, None) {
                Ok(_) | Err(Failure::Busy) => return,
                Err(Failure::Changing) => self.drain(),
                Err(Failure::NoMemory) => thread::sleep_us(1000),
                // The mapping is gone or elsewhere. Its event says which, and takes the page along
                // or makes it void; until it is here the page stays in its slot.
                Err(_) => {
                    self.drain();
                    return;
                }
            }
        }
    }

    /// Fills pages that a mover decoded, where the word still says what it read. Returns how many.
    pub fn install(&mut self, region: &Region, pages: &[(usize, PageWord, Box<Page>)]) -> u64 {
        let mut installed = 0;
        for (i, w, page) in pages {
            loop {
                if region.word(*i) != *w {
                    break;
                }
                self.feed_children(region, *i);
                match self.uffd.copy_page(region.address(*i), page) {
                    Err(Failure::Changing) => {
                        self.drain();
                        continue;
                    }
                    Ok(()) | Err(Failure::Present) => {
                        if region.replace(*i, *w, w.begin_restore().unwrap_or(*w).home(None)) {
                            self.rt.forget(*w);
                            installed += 1;
                        }
                    }
                    // No memory, or no mapping: it stays stored.
                    Err(_) => {}
                }
                break;
            }
        }
        installed
    }
}

/// Consecutive numbers as ranges.
pub(super) fn runs(numbers: impl Iterator<Item = usize>) -> Vec<Range<usize>> {
    let mut out: Vec<Range<usize>> = Vec::new();
    for n in numbers {
        match out.last_mut() {
            Some(r) if r.end == n => r.end += 1,
            _ => out.push(n..n + 1),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    #[test]
    fn runs_join_neighbours() {
        assert_eq!(super::runs([1, 2, 3, 7, 9, 10].into_iter()), [1..4, 7..8, 9..11]);
        assert_eq!(super::runs(std::iter::empty()), []);
    }
}
