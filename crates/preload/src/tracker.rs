//! Hotness by userfaultfd sampling: take a few pages of every region away and see who comes back.
//!
//! At the start of a window some pages of each region, chosen at random, are moved to sample slots
//! (`UFFDIO_MOVE`, 1-2 us each, no copy; before Linux 6.8 see `standstill.rs`). A page that
//! somebody touches during the window faults, and the pager moves it back; the others are moved
//! back when the window closes. The share that was come back for estimates the share of the
//! region's pages that were touched - *distinct pages*, which is what predicts faults, and not
//! accesses. It needs no privilege beyond userfaultfd itself, no PMU, and is exact about the page
//! table: a moved page cannot be touched unnoticed through a stale TLB entry. The cost is one fault
//! for each sampled page in use.
//!
//! From Linux 7.3 on the sampled pages stay where they are and the kernel notes who touches them
//! (`watch.rs`). All else is the same.
//!
//! Pages in tiers need no sampling: their faults are counted.

use crate::pager::moves::{Cooled, Sampling};
use crate::region::{for_overlap, page_index, Region};
use crate::runtime::Runtime;
use crate::shared;
use crate::standstill;
use crate::sys::inherit::Inherited;
use crate::sys::memory;
use crate::sys::proc;
use crate::watch::Watched;
use std::ops::Range;
use std::sync::atomic::Ordering;
use terrace_core::looks::{self, Looks, Watching};
use terrace_core::state::{PageState, IN_USE_HASTE, PAGE_BYTES, REGION_BYTES, REGION_PAGES};
use terrace_core::wire::RegionReport;

/// Mappings smaller than this are left alone: they come and go, and hold little. (The heap of V8
/// is mappings of just this size, far from one another.)
const MAPPING_BYTES_MIN: u64 = 256 << 10;
/// Those that begin where a file's mapping ends: the data of a program or library that was zero
/// at its start. The pager uses libraries, too, and must not wait for itself.
const BEHIND_FILE_BYTES_MIN: u64 = 4 << 20;
/// Windows a region must have been seen before it is registered. Young mappings churn.
const AGE_WINDOWS_MIN: u8 = 1;
/// Share of a region's pages that must be present before it is registered, because a registered
/// hole costs a fault of 10 us instead of 1 us.
const PRESENT_SHARE_MIN: f64 = 0.75;
/// The same on a torture run.
const TORTURE_PRESENT_SHARE_MIN: f64 = 0.25;
/// Faults on fresh memory in one window that make a region count as churned.
const CHURN_FAULTS: u32 = 128;
/// Windows a churned region is left alone.
const REST_WINDOWS: u8 = 8;
/// Of the mappings that the kernel allows a process so many parts are the program's alone: were the
/// last one taken, an `mmap`, `munmap` or `mprotect` of its own would fail.
const PROGRAMS_PART: usize = 8;
/// Mappings that registering a region in the middle of one adds.
const ADDED_MAPPINGS: usize = 2;
/// Where more than one in so many pages of a region come back all the time, it is in use itself.
const IN_USE_PART: usize = 8;
/// Regions sampled in one call on the pager.
const SAMPLE_BATCH: usize = 4;

/// The tracker; lives in the agent thread.
#[derive(Debug)]
pub struct Tracker {
    rt: &'static Runtime,
    maps: proc::Maps,
    /// Mappings that the process may have, less those that are the program's alone, and how many
    /// more may be made of them in this window, as far as it was counted.
    mappings_max: usize,
    room: usize,
    /// Whether there was none when they were counted again.
    is_full: bool,
    /// Samples of this window that stay where they are.
    watched: Vec<Watched>,
}

impl Tracker {
    /// A tracker for the runtime.
    pub fn new(rt: &'static Runtime) -> Option<Tracker> {
        let most = proc::mappings_max();
        let mappings_max = most - most / PROGRAMS_PART;
        let maps = proc::Maps::open()?;
        Some(Tracker { rt, maps, mappings_max, room: 0, is_full: false, watched: Vec::new() })
    }

    /// Closes the window: samples go home, and every followed region is reported.
    pub fn close(&mut self) -> Vec<RegionReport> {
        if self.rt.uffd.can_watch() {
            self.watched.drain(..).for_each(|watched| watched.end(self.rt));
        } else {
            self.bring_samples_home();
        }
        self.follow();
        let window = self.rt.window.load(Ordering::Relaxed);
        let watching = self.rt.stores.config.watching;
        let followed = self.rt.table.all().into_iter().filter(|r| r.is_followed());
        // What stays is what stays in the next window, when its plan is carried out.
        let next = self.rt.window_stamp().wrapping_add(1);
        let resting = |r: &Region| match r.tier.load(Ordering::Relaxed) {
            0 => 0,
            _ => self.resting(r, next).pages,
        };
        followed.map(|r| report(r, window, watching, resting(r))).collect()
    }

    fn bring_samples_home(&self) {
        let followed: Vec<&'static Region> =
            self.rt.table.all().into_iter().filter(|r| r.is_followed()).collect();
        for batch in followed.chunks(SAMPLE_BATCH) {
            let sampled: Vec<&'static Region> =
                batch.iter().copied().filter(|r| has_samples(r)).collect();
            if !sampled.is_empty() {
                let (mut done, mut at) = (0, 0);
                self.rt.doorbell.call_in_parts(move |pager| {
                    while let Some(r) = sampled.get(done) {
                        if !pager.return_samples(r, &mut at) {
                            return None;
                        }
                        (done, at) = (done + 1, 0);
                    }
                    Some(())
                });
            }
        }
        self.rt.samples.sweep();
    }

    fn is_tortured(&self) -> bool {
        self.rt.stores.config.torture_seed != 0
    }

    /// Looks at the address space: counts what is resident, registers regions that have settled,
    /// gives up churned ones.
    fn follow(&mut self) {
        for r in self.rt.table.all() {
            r.resident.store(0, Ordering::Relaxed);
            let rest = r.rest_windows.load(Ordering::Relaxed);
            r.rest_windows.store(rest.saturating_sub(1), Ordering::Relaxed);
            let churned = r.zero_faults.swap(0, Ordering::Relaxed) > CHURN_FAULTS;
            if churned && self.rt.doorbell.call(move |pager| pager.unregister(r)) {
                r.rest_windows.store(REST_WINDOWS, Ordering::Relaxed);
                r.tier.store(0, Ordering::Relaxed);
                r.is_called_home.store(false, Ordering::Relaxed);
            }
        }
        shared::take_back(self.rt);
        let mut found: Vec<proc::Mapping> = Vec::new();
        let text = self.maps.text();
        (self.room, self.is_full) = (self.room_in(&text), false);
        proc::private_anonymous(&text, |m| {
            if memory::is_own(m.start, m.end) {
                return;
            }
            // Registering a part of a mapping splits it in this list: neighbours belong together.
            match found.last_mut() {
                Some(last) if last.end == m.start => last.end = m.end,
                _ => found.push(m),
            }
        });
        // Some MiB where there are very many.
        drop(text);
        let mut kept = None;
        for m in found {
            let least = if m.is_behind_file { BEHIND_FILE_BYTES_MIN } else { MAPPING_BYTES_MIN };
            if m.end - m.start >= least {
                self.look_at(m.start, m.end, &mut kept);
            }
        }
    }

    /// Mappings that may be added to those in this list.
    fn room_in(&self, maps: &str) -> usize {
        let mappings = maps.bytes().filter(|&byte| byte == b'\n').count();
        self.mappings_max.saturating_sub(mappings)
    }

    /// Whether a region may be registered as far as mappings go. What was registered side by side
    /// is one mapping, so that there may be more room than was thought.
    fn has_room(&mut self) -> bool {
        if self.room < ADDED_MAPPINGS && !self.is_full {
            let text = self.maps.text();
            self.room = self.room_in(&text);
            self.is_full = self.room < ADDED_MAPPINGS;
        }
        !self.is_full
    }

    /// Counts the present pages of one mapping into its regions, then considers those that have
    /// any. A region without pages gets no record: mappings may be giant and empty.
    fn look_at(&mut self, start: u64, end: u64, kept: &mut Option<Vec<Inherited>>) {
        let table = &self.rt.table;
        let mut there: Vec<(&'static Region, u16)> = Vec::new();
        self.rt.pagemap.scan(start, end, |a, b| {
            for at in region_starts(a, b) {
                let _ = table.get_or_create(at);
            }
            for_overlap(table, a, b, |r, pages| {
                let registered = pages.clone().filter(|&i| r.is_registered(i)).count() as u16;
                r.resident.fetch_add(registered, Ordering::Relaxed);
                match there.last_mut() {
                    Some((last, n)) if std::ptr::eq(*last, r) => *n += pages.len() as u16,
                    _ => there.push((r, pages.len() as u16)),
                }
            });
        });
        for (r, present) in there {
            let first = page_index(start.max(r.base));
            let last = ((end.min(r.base + REGION_BYTES) - r.base) / PAGE_BYTES as u64) as usize;
            self.consider(r, first..last, usize::from(present), kept);
        }
    }

    fn consider(
        &mut self,
        r: &'static Region,
        pages: Range<usize>,
        present: usize,
        kept: &mut Option<Vec<Inherited>>,
    ) {
        let age = r.age_windows.load(Ordering::Relaxed);
        r.age_windows.store(age.saturating_add(1), Ordering::Relaxed);
        let resting = r.rest_windows.load(Ordering::Relaxed) > 0;
        if age < AGE_WINDOWS_MIN || resting || pages.clone().all(|i| r.is_registered(i)) {
            return;
        }
        let held = pages.clone().filter(|&i| r.word(i).state() != PageState::Home).count();
        let share = if self.is_tortured() { TORTURE_PRESENT_SHARE_MIN } else { PRESENT_SHARE_MIN };
        if (present + held) as f64 >= share * pages.len() as f64 {
            let range = pages.clone();
            if self.is_kept(r, &pages, kept) || !self.has_room() {
                return;
            }
            self.room -= ADDED_MAPPINGS;
            r.make_words(pages);
            if self.rt.doorbell.call(move |pager| pager.register(r, range.clone())) {
                r.resident.store(present as u16, Ordering::Relaxed);
            }
        }
    }

    /// Whether the program itself keeps any of `pages` from its children. Registered memory is kept
    /// from them too while forks are not announced, and one could not be told from the other when
    /// that is lifted. `kept` is read at the first question of a window.
    fn is_kept(&self, r: &Region, pages: &Range<usize>, kept: &mut Option<Vec<Inherited>>) -> bool {
        if self.rt.sees_forks() {
            return false;
        }
        if kept.is_none() {
            *kept = self.rt.smaps.inherited();
        }
        let (start, end) = (r.address(pages.start), r.address(pages.end));
        let overlaps = |m: &Inherited| m.start < end && start < m.end;
        // What cannot be known counts as kept.
        kept.as_ref().is_none_or(|all| all.iter().any(|m| m.absent && !m.registered && overlaps(m)))
    }

    /// Opens a window: takes the samples. After the plan is known, because pages of a region that
    /// is about to go down need no sample of their own.
    pub fn open(&mut self, window: u32) {
        let want = usize::from(self.rt.stores.config.samples_per_region);
        let watching = self.rt.stores.config.watching;
        let stamp = self.rt.window_stamp();
        let mut batch = Vec::with_capacity(SAMPLE_BATCH);
        for r in self.rt.table.all() {
            let is_planned = r.is_planned.swap(false, Ordering::Relaxed);
            if want == 0 || !r.is_followed() {
                continue;
            }
            let down = r.tier.load(Ordering::Relaxed) != 0;
            let all_home = watching == Watching::Ages && !is_planned;
            let resting = (down && !all_home).then(|| self.resting(r, stamp));
            let cooled = resting.map(|resting| resting.asked_for());
            let pool = match cooled {
                Some((_, pages)) => pages,
                None => r.resident.load(Ordering::Relaxed),
            };
            r.resident_at_open.store(pool, Ordering::Relaxed);
            if pool == 0 || cooled.is_some() && pool < looks::CAME_BACK_MIN {
                continue;
            }
            let cooled = cooled.map(|(cooled, _)| cooled);
            if cooled.is_none() && !looks_at(r).is_due(watching, r.base, window) {
                continue;
            }
            batch.push((r, cooled));
            let is_full = batch.len() == SAMPLE_BATCH;
            // (By a stop all are taken together, as many at a time as a stop takes.)
            if is_full && self.rt.stopper.is_none() {
                self.take(std::mem::take(&mut batch), want, window);
            }
        }
        self.take(batch, want, window);
    }

    fn take(&mut self, batch: Vec<(&'static Region, Option<Cooled>)>, want: usize, window: u32) {
        if batch.is_empty() {
            return;
        }
        let watching = self.rt.stores.config.watching;
        let begin = |(r, cooled): (&'static Region, Option<Cooled>)| {
            let seed = r.base ^ u64::from(window) << 32;
            // What came back lately is asked for as a whole.
            let looks = if cooled.is_some() { Looks::NONE } else { looks_at(r) };
            let want = looks.samples(watching, want, r.registered_total());
            Sampling::new(r, want, seed, cooled)
        };
        if self.rt.uffd.can_watch() {
            let watched = batch.into_iter().map(|of| Watched::begin(self.rt, begin(of)));
            return self.watched.extend(watched);
        }
        let mut left: Vec<Sampling> = batch.into_iter().rev().map(begin).collect();
        if let Some(stopper) = &self.rt.stopper {
            return standstill::take_samples(self.rt, stopper, left);
        }
        self.rt.doorbell.call_in_parts(move |pager| {
            while let Some(sampling) = left.last_mut() {
                if !pager.take_samples(sampling) {
                    return None;
                }
                sampling.region().samples.store(sampling.taken as u8, Ordering::Relaxed);
                left.pop();
            }
            Some(())
        });
    }

    fn resting(&self, r: &Region, stamp: u8) -> Resting {
        let cooling = self.rt.stores.config.cooling_windows;
        let mut resting = Resting::default();
        for w in (0..REGION_PAGES).map(|i| r.word(i)).filter(|w| w.is_resting(stamp, cooling)) {
            resting.pages += 1;
            resting.in_use += u16::from(w.haste() >= IN_USE_HASTE);
        }
        resting
    }
}

/// Pages of a region in a tier that stay home because they came back.
#[derive(Clone, Copy, Default, Debug)]
struct Resting {
    pages: u16,
    /// Those of them that come back all the time.
    in_use: u16,
}

impl Resting {
    /// Which of them are asked for whether they are used again, and how many these are. A few that
    /// are in use all the time in a region that is not would say of the others that they should
    /// stay; but where many are, the region is in use.
    fn asked_for(self) -> (Cooled, u16) {
        match usize::from(self.in_use) <= REGION_PAGES / IN_USE_PART {
            true => (Cooled { haste_below: IN_USE_HASTE }, self.pages - self.in_use),
            false => (Cooled { haste_below: u8::MAX }, self.pages),
        }
    }
}

fn report(r: &'static Region, window: u32, watching: Watching, resting: u16) -> RegionReport {
    let samples = r.samples.swap(0, Ordering::Relaxed);
    let hits = r.hits.swap(0, Ordering::Relaxed);
    // (Of a region in a tier only what came back was asked for.)
    if r.tier.load(Ordering::Relaxed) == 0 || watching == Watching::Ages {
        let looks = looks_at(r).after(samples.into(), hits.into());
        r.looks.store(looks.to_bits(), Ordering::Relaxed);
    }
    let stored = r.stored_total();
    RegionReport {
        region: r.base,
        tier: r.tier.load(Ordering::Relaxed),
        resident: r.resident.load(Ordering::Relaxed),
        stored,
        resting,
        samples,
        hits,
        resident_at_open: r.resident_at_open.load(Ordering::Relaxed),
        faults: r.faults.swap(0, Ordering::Relaxed),
        shrunk: r.shrinkage.read(window, stored == 0),
    }
}

fn looks_at(r: &Region) -> Looks {
    Looks::from_bits(r.looks.load(Ordering::Relaxed))
}

/// The regions that `[start, end)` touches, by their first addresses.
fn region_starts(start: u64, end: u64) -> impl Iterator<Item = u64> {
    (start / REGION_BYTES..end.div_ceil(REGION_BYTES)).map(|n| n * REGION_BYTES)
}

fn has_samples(r: &Region) -> bool {
    r.samples.load(Ordering::Relaxed) > r.hits.load(Ordering::Relaxed)
        || (0..REGION_PAGES).any(|i| r.word(i).state() == PageState::Sampled)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_few_pages_in_use_say_nothing_of_the_others() {
        let few = Resting { pages: 100, in_use: 64 }.asked_for();
        assert_eq!((few.0.haste_below, few.1), (IN_USE_HASTE, 36));
        let many = Resting { pages: 100, in_use: 65 }.asked_for();
        assert!(many.0.haste_below > 3 && many.1 == 100, "{many:?}");
    }
}
