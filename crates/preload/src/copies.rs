//! Encoded copies of pages that came home, kept for a while.
//!
//! A page that faults leaves its encoding behind, and mostly that is given up at once, because it
//! is memory held twice. But where pages come back as fast as movers can bring them down, or
//! faster, nearly all of their work is to encode what they encoded before: most pages are read and
//! not written. Then encodings stay for some windows. A page that goes down to the same tier again
//! is compared with its copy, and if not one byte is different the copy is what is stored. To
//! decode takes a fifth of the time to encode, or less.
//!
//! A copy is a hint and nothing more. It does not say what its page holds: whoever uses one has
//! decoded it and compared all 4096 bytes with a page that lies in a staging slot, where nobody
//! writes. So no change of the address space has to be heard of here, and copies of pages that were
//! written, dropped or moved are found out, or grow old and go. What must be exact is who gives an
//! object up: whoever takes a copy out of its place owns it, and places change by swap and
//! compare-and-swap only.
//!
//! A place holds one copy. Which one is the page's follows from its address; two that would have
//! the same place are as far apart as there are places, and the later one stays.

use crate::sys::sync::AtomicPlace;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicU8, Ordering};
use std::sync::OnceLock;
use terrace_core::state::PAGE_BYTES;
use terrace_core::tier::TierId;
use terrace_store::pool::Handle;

/// Windows, beyond those in which a page cools and those for which movers have been behind, after
/// which a copy that was not used goes.
const SPARE_WINDOWS: u8 = 3;
/// So many windows of being behind count at most: ages are told apart up to 255.
const BEHIND_WINDOWS_MAX: u8 = 64;
/// One place for so many pages of the application. Two bytes a page.
const PAGES_PER_PLACE: u64 = 4;
const PLACES_MIN: u64 = 1 << 10;
const PLACES_MAX: u64 = 1 << 22;
/// Copies tried in a window from which on it counts how many were of use.
const TRIED_TO_TELL: u64 = 256;
/// Movers that work for more than this part of their time need copies, until it is less than that.
const BUSY_PART: u64 = 4;
const AT_EASE_PART: u64 = 8;
/// If less than this part of them was, none are kept for so many windows: pages are written.
const USEFUL_PART: u64 = 4;
const REST_WINDOWS: u8 = 16;

const HANDLE_BITS: u32 = 32;
const TIER_SHIFT: u32 = HANDLE_BITS;
const STAMP_SHIFT: u32 = TIER_SHIFT + 4;
const TAG_SHIFT: u32 = STAMP_SHIFT + 8;

/// An object in a tier that no page's word names. Whoever has one gives it up or stores it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Kept {
    /// Where it is.
    pub tier: TierId,
    /// Its name there.
    pub handle: Handle,
}

/// A place: 0 if it is free, else bits 0-31 handle, 32-35 tier (never 0), 36-43 the window in which
/// the page came home, 44-63 what tells its page from others with this place. (Not for certain,
/// which does not matter: bytes are compared.)
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Entry(u64);

impl Entry {
    fn new(kept: Kept, tag: u64, window: u8) -> Entry {
        Entry(
            tag << TAG_SHIFT
                | u64::from(window) << STAMP_SHIFT
                | u64::from(kept.tier.0 & 0xf) << TIER_SHIFT
                | u64::from(kept.handle.0),
        )
    }

    fn kept(self) -> Option<Kept> {
        let tier = TierId((self.0 >> TIER_SHIFT & 0xf) as u8);
        (self.0 != 0).then_some(Kept { tier, handle: Handle(self.0 as u32) })
    }

    fn tag(self) -> u64 {
        self.0 >> TAG_SHIFT
    }

    fn age(self, window_now: u8) -> u8 {
        window_now.wrapping_sub((self.0 >> STAMP_SHIFT) as u8)
    }
}

/// What movers did in a window, for the question whether copies are worth their memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Work {
    /// Movers had not done what was planned when the window closed.
    pub is_behind: bool,
    /// Pages that were compared with a copy.
    pub tried: u64,
    /// Those that were the same.
    pub used: u64,
    /// Time that movers worked on the plan, all together, in nanoseconds.
    pub busy_ns: u64,
    /// How much longer they would have worked without copies, in nanoseconds.
    pub spared_ns: u64,
    /// Time that they had, in nanoseconds.
    pub had_ns: u64,
}

/// The copies of one application, and what movers count of them.
#[derive(Debug, Default)]
pub struct Copies {
    places: OnceLock<Box<[AtomicPlace]>>,
    is_wanted: AtomicBool,
    /// Copies that are kept now.
    held: AtomicU64,
    rest_windows: AtomicU8,
    /// Windows in a row in which movers had not done what was planned.
    behind_windows: AtomicU8,
    /// Since the last window closed: see [`Work`].
    tried: AtomicU64,
    used: AtomicU64,
    busy_ns: AtomicU64,
    spared_ns: AtomicU64,
    /// Pages that were compared with a copy since the start, and those stored by it.
    pub tried_total: AtomicU64,
    /// See `tried_total`.
    pub used_total: AtomicU64,
}

impl Copies {
    /// Whether what comes home should leave its encoding.
    pub fn is_wanted(&self) -> bool {
        self.is_wanted.load(Ordering::Relaxed)
    }

    /// Copies that are kept now.
    pub fn held(&self) -> u64 {
        self.held.load(Ordering::Relaxed)
    }

    /// Begins or ceases to keep copies. `pages` is the size of the application when it begins for
    /// the first time, which alone decides how many there can be.
    pub fn want(&self, wanted: bool, pages: u64) {
        if wanted {
            let count = (pages / PAGES_PER_PLACE).clamp(PLACES_MIN, PLACES_MAX);
            let places = || (0..count.next_power_of_two()).map(|_| AtomicPlace::new(0)).collect();
            self.places.get_or_init(places);
        }
        self.is_wanted.store(wanted, Ordering::Relaxed);
    }

    /// The place of the page at this address, and its tag.
    fn place(&self, page: u64) -> Option<(&AtomicPlace, u64)> {
        let places = self.places.get()?;
        let (number, bits) = (page / PAGE_BYTES as u64, places.len().trailing_zeros());
        let tag = (number >> bits) & (u64::MAX >> TAG_SHIFT);
        Some((&places[number as usize & (places.len() - 1)], tag))
    }

    /// Keeps what the page at this address left behind when it came home in this window. Returns
    /// what has to be given up instead, if anything.
    pub fn keep(&self, page: u64, kept: Kept, window: u8) -> Option<Kept> {
        let Some((place, tag)) = self.place(page).filter(|_| kept.tier != TierId::DRAM) else {
            return Some(kept);
        };
        // First, or somebody who takes it out at once would count it off before.
        self.held.fetch_add(1, Ordering::Relaxed);
        let before = Entry(place.swap(Entry::new(kept, tag, window).0, Ordering::AcqRel)).kept();
        self.held.fetch_sub(u64::from(before.is_some()), Ordering::Relaxed);
        before
    }

    /// The copy of the page at this address in `tier`, if there is one. It is the caller's now.
    pub fn take(&self, page: u64, tier: TierId) -> Option<Handle> {
        let (place, tag) = self.place(page)?;
        let entry = Entry(place.load(Ordering::Acquire));
        let kept = entry.kept().filter(|kept| kept.tier == tier && entry.tag() == tag)?;
        self.take_out(place, entry).then_some(kept.handle)
    }

    fn take_out(&self, place: &AtomicPlace, entry: Entry) -> bool {
        let was = place.compare_exchange(entry.0, 0, Ordering::AcqRel, Ordering::Relaxed);
        self.held.fetch_sub(u64::from(was.is_ok()), Ordering::Relaxed);
        was.is_ok()
    }

    /// Takes out copies whose pages should have gone down again by now, or if none are wanted all,
    /// for `give_up`. Pages cool for `cooling` windows.
    ///
    /// Movers that are behind come to a page as many windows late as they have been behind. If its
    /// copy were gone then it would have to be encoded, and movers would be behind for good.
    pub fn expire(&self, window_now: u8, cooling: u8, mut give_up: impl FnMut(Kept)) {
        let late = self.behind_windows.load(Ordering::Relaxed);
        let due = cooling.saturating_add(SPARE_WINDOWS).saturating_add(late);
        let old = if self.is_wanted() { due } else { 0 };
        let Some(places) = self.places.get().filter(|_| self.held() > 0) else { return };
        for place in places {
            let entry = Entry(place.load(Ordering::Acquire));
            let Some(kept) = entry.kept().filter(|_| entry.age(window_now) >= old) else {
                continue;
            };
            if self.take_out(place, entry) {
                give_up(kept);
            }
        }
    }

    // ---- whether they are worth it ---------------------------------------------------------

    /// A mover: a page was compared with its copy, in so much less time than it takes to encode.
    pub fn tried(&self, is_same: bool, spared_ns: u64) {
        self.tried.fetch_add(1, Ordering::Relaxed);
        self.tried_total.fetch_add(1, Ordering::Relaxed);
        if is_same {
            self.used.fetch_add(1, Ordering::Relaxed);
            self.used_total.fetch_add(1, Ordering::Relaxed);
            self.spared_ns.fetch_add(spared_ns, Ordering::Relaxed);
        }
    }

    /// A mover: it has worked for so long.
    pub fn worked(&self, ns: u64) {
        self.busy_ns.fetch_add(ns, Ordering::Relaxed);
    }

    /// None for a while: there is no room for what is held twice.
    pub fn rest(&self) {
        self.rest_windows.store(REST_WINDOWS, Ordering::Relaxed);
    }

    /// What was done since this was asked last.
    pub fn work(&self, is_behind: bool, had_ns: u64) -> Work {
        let late = self.behind_windows.load(Ordering::Relaxed) + 1;
        let late = if is_behind { late.min(BEHIND_WINDOWS_MAX) } else { 0 };
        self.behind_windows.store(late, Ordering::Relaxed);
        let took = |counter: &AtomicU64| counter.swap(0, Ordering::Relaxed);
        Work {
            is_behind,
            tried: took(&self.tried),
            used: took(&self.used),
            busy_ns: took(&self.busy_ns),
            spared_ns: took(&self.spared_ns),
            had_ns,
        }
    }

    /// Whether copies are worth their memory, after a window of this work: movers are behind, or
    /// busy for much of their time, or would be without.
    pub fn are_worth_it(&self, work: Work) -> bool {
        if work.tried >= TRIED_TO_TELL && work.used < work.tried / USEFUL_PART {
            self.rest_windows.store(REST_WINDOWS, Ordering::Relaxed);
            return false;
        }
        let rest = self.rest_windows.load(Ordering::Relaxed);
        self.rest_windows.store(rest.saturating_sub(1), Ordering::Relaxed);
        let part = if self.is_wanted() { AT_EASE_PART } else { BUSY_PART };
        let is_busy = work.busy_ns + work.spared_ns > work.had_ns / part;
        rest == 0 && (work.is_behind || is_busy)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const P: u64 = PAGE_BYTES as u64;

    fn kept(tier: u8, handle: u32) -> Kept {
        Kept { tier: TierId(tier), handle: Handle(handle) }
    }

    fn wanted(pages: u64) -> Copies {
        let copies = Copies::default();
        copies.want(true, pages);
        copies
    }

    #[test]
    fn a_copy_is_its_takers_alone() {
        let copies = wanted(0);
        assert_eq!(copies.keep(5 * P, kept(2, u32::MAX), 255), None);
        assert_eq!(copies.take(5 * P, TierId(1)), None, "of another tier");
        assert_eq!(copies.take(6 * P, TierId(2)), None, "of another page");
        assert_eq!(copies.take((5 + PLACES_MIN) * P, TierId(2)), None, "with the same place");
        assert_eq!(copies.take(5 * P, TierId(2)), Some(Handle(u32::MAX)));
        assert_eq!((copies.take(5 * P, TierId(2)), copies.held()), (None, 0));
    }

    #[test]
    fn what_has_no_place_is_given_up() {
        assert_eq!(Copies::default().keep(P, kept(1, 7), 1), Some(kept(1, 7)), "none were wanted");
        let copies = wanted(0);
        assert_eq!(copies.keep(P, kept(1, 7), 1), None);
        assert_eq!(copies.keep(P, kept(1, 8), 2), Some(kept(1, 7)), "its own older one");
        assert_eq!(copies.keep((1 + PLACES_MIN) * P, kept(3, 9), 2), Some(kept(1, 8)));
        assert_eq!(copies.held(), 1);
    }

    #[test]
    fn what_is_old_goes_and_all_goes_when_none_are_wanted() {
        let copies = wanted(1 << 20);
        for n in 0..100u32 {
            // Windows wrap.
            assert_eq!(copies.keep(u64::from(n) * P, kept(1, n), 200 + n as u8), None);
        }
        let mut gone = Vec::new();
        let now = 200u8.wrapping_add(99);
        copies.expire(now, 12 - SPARE_WINDOWS, |kept| gone.push(kept.handle.0));
        assert_eq!(gone, (0..=99 - 12).collect::<Vec<_>>());
        copies.want(false, 0);
        copies.expire(now, 12, |kept| gone.push(kept.handle.0));
        assert_eq!((gone, copies.held()), ((0..100).collect(), 0));
    }

    #[test]
    fn movers_that_are_late_find_the_copies_of_what_they_are_late_for() {
        let copies = wanted(0);
        assert_eq!(copies.keep(P, kept(1, 7), 10), None);
        let held_at = |window| {
            copies.expire(window, 3, |_| ());
            copies.held()
        };
        // Behind since the page came home, and at window 18 for eight windows.
        for window in 11..=18 {
            copies.work(true, 1);
            assert_eq!(held_at(window), 1, "window {window}");
        }
        // They have caught up: what has not gone down by now was not due.
        copies.work(false, 1);
        assert_eq!(held_at(19), 0);

        assert_eq!(copies.keep(P, kept(1, 8), 20), None);
        (0..200).for_each(|_| _ = copies.work(true, 1));
        assert_eq!(held_at(20 + 3 + SPARE_WINDOWS + BEHIND_WINDOWS_MAX - 1), 1);
        assert_eq!(held_at(20 + 3 + SPARE_WINDOWS + BEHIND_WINDOWS_MAX), 0, "not for ever");
    }

    #[test]
    fn they_are_kept_while_movers_are_behind_or_busy_or_would_be() {
        let copies = wanted(0);
        let idle = Work { busy_ns: 10, had_ns: 100, ..Work::default() };
        assert!(!copies.are_worth_it(idle));
        assert!(copies.are_worth_it(Work { is_behind: true, ..idle }));
        // Once begun, it takes less to go on than to begin.
        let half_busy = Work { busy_ns: 20, ..idle };
        let spared = Work { spared_ns: 4, tried: 999, used: 900, ..idle };
        assert!(copies.are_worth_it(half_busy) && copies.are_worth_it(spared));
        copies.want(false, 0);
        assert!(!copies.are_worth_it(half_busy) && !copies.are_worth_it(spared));
        assert!(copies.are_worth_it(Work { busy_ns: 26, ..idle }));
    }

    #[test]
    fn where_pages_are_written_they_are_left_alone_for_a_while() {
        let copies = wanted(0);
        let behind = Work { is_behind: true, tried: 1000, used: 249, had_ns: 1, ..Work::default() };
        assert!(!copies.are_worth_it(behind));
        let asked = Work { tried: 0, used: 0, ..behind };
        assert!((0..REST_WINDOWS).all(|_| !copies.are_worth_it(asked)));
        assert!(copies.are_worth_it(asked));
        assert!(copies.are_worth_it(Work { used: 250, ..behind }));
    }
}
