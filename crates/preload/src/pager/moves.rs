//! What movers and the tracker ask of the pager: bounded pieces of work on the application's
//! pages, run between two faults. See the head of `pager/mod.rs` for why only this thread may.

use super::doorbell::Part;
use super::Pager;
use crate::mover::{Refused, RETRY_WINDOWS};
use crate::region::Region;
use crate::sys::uffd::Failure;
use crate::sys::{inherit, proc, thread};
use std::ops::Range;
use std::sync::atomic::Ordering;
use terrace_core::state::{PageState, PageWord, PAGE_BYTES, REGION_PAGES};
use terrace_core::tier::TierId;
use terrace_store::Page;

/// Pinned or shared pages met in one call before it gives up: after a fork every page is one.
const BUSY_MAX: usize = 8;
/// How often what was registered is registered again, 50 us between two: seconds.
const REGISTER_AGAIN_MAX: u32 = 100_000;
/// Waits for the address space to settle in one call before it gives up.
const CHANGING_MAX: usize = 16;
/// How often the page tables are asked for what cannot be known otherwise, once a millisecond.
const PAGEMAP_TRIES: usize = 1000;

/// Pages of a region on their way out, in parts.
#[derive(Debug)]
pub struct Going {
    pub(super) region: &'static Region,
    /// What is left of them.
    pub(super) pages: Range<usize>,
    pub(super) slot: u64,
    pub(super) tier: TierId,
    cooling: u8,
    /// Those that no other process maps, by the page tables; asked when the kernel has refused one.
    alone: Option<[u64; 8]>,
    staged: usize,
    busy: usize,
    changing: usize,
}

impl Going {
    /// The movable pages among `pages`, to go to a staging slot on their way to `tier`.
    pub fn new(
        region: &'static Region,
        pages: Range<usize>,
        slot: u64,
        tier: TierId,
        cooling: u8,
    ) -> Going {
        let alone = None;
        Going { region, pages, slot, tier, cooling, alone, staged: 0, busy: 0, changing: 0 }
    }

    /// The region they are of.
    pub fn region(&self) -> &'static Region {
        self.region
    }

    /// The addresses that are left, first and one past the last.
    pub fn range(&self) -> (u64, u64) {
        (self.region.address(self.pages.start), self.region.address(self.pages.end))
    }

    /// The pages that are left and can go.
    pub fn movable(&self, stamp: u8) -> impl Iterator<Item = usize> + '_ {
        self.pages.clone().filter(move |&i| self.is_movable(i, stamp))
    }

    fn is_movable(&self, i: usize, stamp: u8) -> bool {
        let w = self.region.word(i);
        self.region.is_registered(i)
            && self.alone.is_none_or(|alone| alone[i / 64] >> (i % 64) & 1 == 1)
            && w.movable(self.tier, stamp, self.cooling, RETRY_WINDOWS)
    }

    /// Page `i`, which can go, and those that lie beside it and can go too.
    pub(super) fn run_from(&self, i: usize, stamp: u8) -> Range<usize> {
        let end = (i..self.pages.end).find(|&k| !self.is_movable(k, stamp));
        i..end.unwrap_or(self.pages.end)
    }

    /// Notes that the address space was changing. Whether that was so too often to go on.
    pub(super) fn met_changes(&mut self) -> bool {
        self.changing += 1;
        self.changing > CHANGING_MAX
    }
}

/// Which of the pages that came back lately are asked for.
#[derive(Clone, Copy, Debug)]
pub struct Cooled {
    /// Only those with less [haste](PageWord::haste).
    pub haste_below: u8,
}

/// Samples being taken from a region, in parts.
#[derive(Debug)]
pub struct Sampling {
    region: &'static Region,
    /// How many are wanted, and taken.
    want: usize,
    pub(crate) taken: usize,
    /// Where to look next, by chance, and how often still; not known before the first part.
    at: u64,
    tries: Option<usize>,
    cooled: Option<Cooled>,
}

impl Sampling {
    /// Up to `want` pages of a region, spread by `seed`. With `cooled`, only pages that came back
    /// lately: those that stay when the rest goes down.
    pub fn new(
        region: &'static Region,
        want: usize,
        seed: u64,
        cooled: Option<Cooled>,
    ) -> Sampling {
        Sampling { region, want, taken: 0, at: seed, tries: None, cooled }
    }

    /// The region they are of.
    pub fn region(&self) -> &'static Region {
        self.region
    }

    /// How many are still to be taken.
    pub fn wanted(&self) -> usize {
        self.want - self.taken
    }

    /// Notes that so many were taken.
    pub fn took(&mut self, pages: usize) {
        self.taken += pages;
    }

    /// The next page to take, by chance, with its word; `None` if there were tries enough.
    pub(crate) fn next(&mut self, stamp: u8, cooling: u8) -> Option<(usize, PageWord)> {
        let region = self.region;
        let tier = TierId(region.tier.load(Ordering::Relaxed));
        // A few more tries than samples: some pages are holes or not at home, and a small mapping
        // is not in all of its region.
        let tries = self.tries.get_or_insert_with(|| {
            let tries = if tier == TierId::DRAM { self.want * 3 } else { self.want * 16 };
            tries * (REGION_PAGES / region.registered_total().max(1))
        });
        while *tries > 0 {
            *tries -= 1;
            let at = self.at.wrapping_mul(6_364_136_223_846_793_005);
            self.at = at.wrapping_add(1_442_695_040_888_963_407);
            let i = (self.at >> 33) as usize % REGION_PAGES;
            let w = region.word(i);
            if w.state() != PageState::Home || w.zap_pending() || !region.is_registered(i) {
                continue;
            }
            let asks = |cooled: Cooled| {
                !w.movable(tier, stamp, cooling, RETRY_WINDOWS) && w.haste() < cooled.haste_below
            };
            if !self.cooled.is_none_or(asks) {
                continue;
            }
            return Some((i, w));
        }
        None
    }
}

/// Decoded pages on their way home, in parts.
#[derive(Debug)]
pub struct Coming {
    region: &'static Region,
    /// Each with the word that was read.
    pages: Vec<(usize, PageWord, Box<Page>)>,
    at: usize,
    installed: u64,
}

impl Coming {
    /// `pages` of a region.
    pub fn new(region: &'static Region, pages: Vec<(usize, PageWord, Box<Page>)>) -> Coming {
        Coming { region, pages, at: 0, installed: 0 }
    }
}

impl Pager {
    /// Registers pages of a region for missing faults. `false` if the kernel will not: the
    /// mapping is gone or of another kind, or there are too many mappings; or if mappings are on
    /// their way, and it is better tried later.
    pub fn register(&mut self, region: &Region, pages: Range<usize>) -> bool {
        self.is_settled() && self.register_now(region, pages)
    }

    fn register_now(&mut self, region: &Region, pages: Range<usize>) -> bool {
        let len = (pages.len() * PAGE_BYTES) as u64;
        // While a fork is under way the set of what is registered stays as it is.
        if self.rt.is_paused() {
            return false;
        }
        // What is held of a mapping that went unsaid must not be found in the one there is now.
        let noted = region.runs_where(|i| pages.contains(&i) && region.is_registered(i));
        if noted.into_iter().any(|run| self.strike(region, run).is_err())
            || self.uffd.register_missing(region.address(pages.start), len).is_err()
        {
            return false;
        }
        self.registering = Some((region.address(pages.start), region.address(pages.start) + len));
        let any = self.note_registered(region, pages);
        self.registering = None;
        any
    }

    /// Puts into the books what of `pages` the kernel has just registered; whether that is any.
    fn note_registered(&mut self, region: &Region, pages: Range<usize>) -> bool {
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

    /// Strikes from the books what of `pages`, which they call registered, the kernel has not.
    /// Whether there was any: the caller looks again. A mapping that `shmat` replaces (SHM_REMAP)
    /// goes without an event, and pages of what came there later, once moved out, would be missing
    /// unseen. Costs one question where all is as it should be.
    pub(super) fn strike(&mut self, region: &Region, pages: Range<usize>) -> Result<bool, Failure> {
        let (start, len) = (region.address(pages.start), (pages.len() * PAGE_BYTES) as u64);
        if self.uffd.is_registered(start, len, self.rt.unreadable)? {
            return Ok(false);
        }
        // It says so also of what a change has just taken elsewhere that was not handled yet.
        if self.is_changing() || self.queue.has_changes() {
            return Err(Failure::Changing);
        }
        if pages.len() > 1 {
            let middle = pages.start + pages.len() / 2;
            let first = self.strike(region, pages.start..middle)?;
            return Ok(self.strike(region, middle..pages.end)? || first);
        }
        if region.word(pages.start).state() != PageState::Home {
            self.void(region, pages.start, false);
        }
        region.set_registered(pages, false);
        Ok(true)
    }

    /// The same for all that the books call registered of a region.
    pub fn strike_all(&mut self, region: &Region) {
        for run in region.runs_where(|i| region.is_registered(i)) {
            if self.strike(region, run).is_err() {
                self.drain();
            }
        }
    }

    /// Ends the registration of a region that has every page at home. `false` if it has not.
    pub fn unregister(&mut self, region: &Region) -> bool {
        // It is given up again, below, for any change that is not read by then.
        for _ in 0..CHANGING_MAX {
            if !self.is_changing() {
                break;
            }
            self.drain();
        }
        if (0..REGION_PAGES).any(|i| region.word(i).state() != PageState::Home) {
            return false;
        }
        self.end_registration(region, true)
    }

    /// Ends the registration of a region. With `others_held`, pages of other regions are held, of
    /// which some may be on their way here: `false`, and the rest stays registered, if so.
    pub(super) fn end_registration(&mut self, region: &Region, others_held: bool) -> bool {
        self.settle_zaps(region);
        for pages in region.runs_where(|i| region.is_registered(i)) {
            let len = (pages.len() * PAGE_BYTES) as u64;
            if !self.rt.sees_forks() {
                inherit::set_inherited(region.address(pages.start), len, true);
            }
            // Gone already if this fails; the bits must go either way.
            let _ = self.uffd.unregister(region.address(pages.start), len);
            let took = others_held && self.took_too_much(region.address(pages.start), len);
            // Also where it is registered again: what was mapped here when the registration ended
            // may have gone since, and of that there is no event. What is there now is asked for.
            region.set_registered(pages.clone(), false);
            if took {
                self.register_now(region, pages);
                return false;
            }
        }
        true
    }

    /// After the registration of a range was ended in which everything was at home: whether there
    /// may be something else by now. Of the operations on registrations the kernel refuses none
    /// while the address space changes, so another thread's `mremap` may have brought a mapping
    /// here whose pages we hold, before its event was read. If so, it is registered again: before
    /// that `mremap` returns, since its event has yet to be read, and so before anything can touch
    /// a page there, which would read as zeros.
    pub(super) fn took_too_much(&self, start: u64, len: u64) -> bool {
        let is_changing = self.is_changing();
        // (No memory: others have used up the mappings that there may be. They are given back, or
        // the program ends, because now nothing else is safe.)
        for tries in 0.. {
            let again = is_changing.then(|| self.uffd.register_missing(start, len));
            match again {
                Some(Err(Failure::NoMemory)) if tries < REGISTER_AGAIN_MAX => thread::sleep_us(50),
                Some(Err(Failure::NoMemory)) => proc::die(
                    "terrace: no mappings left (vm.max_map_count) to go on watching memory whose \
                     pages are in compressed tiers; ending the program rather than handing it \
                     wrong bytes",
                ),
                // Nothing there, if it failed: nothing was taken.
                _ => break,
            }
        }
        is_changing
    }

    /// Whether the address space has changed in a way that was not read yet, by the word of the
    /// kernel.
    pub(super) fn is_changing(&self) -> bool {
        let bell = self.rt.unreadable;
        self.uffd.is_registered(bell, PAGE_BYTES as u64, bell) == Err(Failure::Changing)
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

    /// Moves pages to their staging slot. Returns how many went, when all did that could.
    pub fn move_out(&mut self, going: &mut Going) -> Option<usize> {
        let part = Part::begin();
        while going.pages.start < going.pages.end && !self.rt.is_paused() {
            if !self.move_run_out(going) {
                break;
            }
            if part.is_over() {
                return None;
            }
        }
        Some(going.staged)
    }

    /// Moves the next pages out that lie beside each other. Whether there is any use in going on.
    fn move_run_out(&mut self, going: &mut Going) -> bool {
        let (region, slot, tier) = (going.region, going.slot, going.tier);
        let stamp = self.rt.window_stamp();
        // The kernel has refused a page of this region lately: after a fork all are shared, and to
        // find each of them out by a try takes two looks at the page tables. A hint: what cannot be
        // moved in spite of it is refused as before.
        if going.alone.is_none() && region.is_shared.load(Ordering::Relaxed) {
            going.alone = self.rt.pagemap.mapped_once(region.base);
        }
        let Some(i) = going.movable(stamp).next() else { return false };
        let run = going.run_from(i, stamp);
        match self.strike(region, run.clone()) {
            Ok(false) => {}
            Ok(true) => return true,
            Err(why) => return self.goes_on_after(going, why),
        }
        let marked = run.take_while(|&k| {
            self.children.owe_nothing(region.address(k));
            // Another thread may have asked for the page to stay (`kept.rs`).
            let w = region.word(k);
            w.stage(tier).is_some_and(|staged| region.replace(k, w, staged))
        });
        let end = i + marked.count();
        if end == i {
            going.pages.start = i + 1;
            return true;
        }
        let to = slot + (i * PAGE_BYTES) as u64;
        let len = ((end - i) * PAGE_BYTES) as u64;
        let (moved, why) = self.uffd.move_range(to, region.address(i), len, false);
        let stop = i + moved as usize / PAGE_BYTES;
        going.staged += stop - i;
        going.pages.start = stop;
        // What did not go is still at home. The kernel's answer is not enough: where pages are
        // swapped out meanwhile it has moved one more than it says (seen with Linux 6.18).
        let gone = if stop < end { self.moved_unsaid(region, slot) } else { [0; 8] };
        for k in stop..end {
            if gone[k / 64] >> (k % 64) & 1 == 1 {
                going.staged += 1;
                // Not once more to this slot: a removal may void it, and leave it lying there.
                going.pages.start = k + 1;
                continue;
            }
            region.update(k, |w| if w.state() == PageState::Staged { w.home(None) } else { w });
        }
        why.is_none_or(|why| self.goes_on_after(going, why))
    }

    /// What to do when pages did not go. Whether there is any use in going on.
    fn goes_on_after(&mut self, going: &mut Going, why: Failure) -> bool {
        match why {
            Failure::Changing => {
                if going.met_changes() {
                    return false;
                }
                self.drain();
                true
            }
            Failure::Busy => {
                self.refuse(going.tier, Refused::PinnedOrShared);
                going.region.is_shared.store(true, Ordering::Relaxed);
                going.busy += 1;
                going.pages.start += 1;
                going.busy < BUSY_MAX
            }
            _ => {
                self.refuse(going.tier, Refused::MappingChanged);
                false
            }
        }
    }

    /// The pages of a region that are in its staging slot and not at home.
    fn moved_unsaid(&self, region: &Region, slot: u64) -> [u64; 8] {
        let (there, here) = (self.present(slot), self.present(region.base));
        std::array::from_fn(|n| there[n] & !here[n])
    }

    /// Which of the 512 pages from `start` on are there, as a bitmap.
    pub(super) fn present(&self, start: u64) -> [u64; 8] {
        for _ in 0..PAGEMAP_TRIES {
            if let Some(bits) = self.rt.pagemap.present(start) {
                return bits;
            }
            thread::sleep_us(1000);
        }
        proc::die(
            "terrace: /proc/self/pagemap cannot be read any more, and it is not known which pages \
             a move took; ending the program rather than handing it wrong bytes",
        )
    }

    pub(super) fn refuse(&self, tier: TierId, why: Refused) {
        let refused = &self.rt.stats.tiers[tier.index()].refused;
        refused[why as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Moves what is left in the region's staging slot back to the application, from page `at` on.
    /// Whether there was anything, when all of it is back.
    pub fn return_staged(
        &mut self,
        region: &Region,
        at: &mut usize,
        any: &mut bool,
    ) -> Option<bool> {
        self.send_all_home(region, PageState::Staged, at, any).then_some(*any)
    }

    /// Takes samples. Whether that was all of them.
    pub fn take_samples(&mut self, sampling: &mut Sampling) -> bool {
        let part = Part::begin();
        let (stamp, cooling) = (self.rt.window_stamp(), self.rt.stores.config.cooling_windows);
        while sampling.wanted() > 0 && !self.rt.is_paused() {
            if part.is_over() {
                return false;
            }
            let Some((i, w)) = sampling.next(stamp, cooling) else { break };
            match self.take_sample(sampling.region, i, w) {
                Some(is_taken) => sampling.took(usize::from(is_taken)),
                None => break,
            }
        }
        true
    }

    /// Takes page `i` into a sample slot, if it can go. `None` if there is no slot.
    fn take_sample(&mut self, region: &Region, i: usize, w: PageWord) -> Option<bool> {
        match self.strike(region, i..i + 1) {
            Ok(false) => {}
            Err(Failure::Changing) => {
                self.drain();
                return Some(false);
            }
            _ => return Some(false),
        }
        let slot = self.rt.samples.take()?;
        let Some(sampled) = w.sample(slot) else {
            // It is to stay (`kept.rs`).
            self.rt.samples.give_back(slot, true);
            return Some(false);
        };
        self.children.owe_nothing(region.address(i));
        // Another thread may have asked for the page to stay (`kept.rs`).
        if !region.replace(i, w, sampled) {
            self.rt.samples.give_back(slot, true);
            return Some(false);
        }
        let to = self.rt.samples.address(slot);
        match self.uffd.move_page(to, region.address(i), false) {
            Ok(()) => return Some(true),
            // Moved all the same, as in `move_run_out`.
            Err(_) if self.is_in_slot(to) && !self.is_in_slot(region.address(i)) => {
                return Some(true);
            }
            Err(why) => {
                region.replace(i, sampled, w);
                self.rt.samples.give_back(slot, why != Failure::Present);
                match why {
                    Failure::Changing => self.drain(),
                    Failure::Busy => region.is_shared.store(true, Ordering::Relaxed),
                    _ => {}
                }
            }
        }
        Some(false)
    }

    /// Moves the samples nobody came back for home again, from page `at` on. Whether that was all
    /// of them.
    pub fn return_samples(&mut self, region: &Region, at: &mut usize) -> bool {
        self.send_all_home(region, PageState::Sampled, at, &mut false)
    }

    /// Brings the pages in state `from` home, from page `at` on; `any` becomes true if there are
    /// any. Whether that was all of them.
    fn send_all_home(
        &mut self,
        region: &Region,
        from: PageState,
        at: &mut usize,
        any: &mut bool,
    ) -> bool {
        let part = Part::begin();
        while let Some(i) = (*at..REGION_PAGES).find(|&i| region.word(i).state() == from) {
            if part.is_over() {
                *at = i;
                return false;
            }
            *any = true;
            self.send_home(region, i, from);
            *at = i + 1;
        }
        true
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

    /// Fills pages that a mover decoded, where the word still says what it read. Returns how many,
    /// when it has been through all.
    pub fn install(&mut self, coming: &mut Coming) -> Option<u64> {
        let part = Part::begin();
        let region = coming.region;
        while let Some((i, w, page)) = coming.pages.get(coming.at) {
            if part.is_over() {
                return None;
            }
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
                            coming.installed += 1;
                        }
                    }
                    // No memory, or no mapping: it stays stored.
                    Err(_) => {}
                }
                break;
            }
            coming.at += 1;
        }
        Some(coming.installed)
    }
}
