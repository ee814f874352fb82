//! The ages of one region, and what a window says of it.
//!
//! The paper has an accessed bit of every page. We see, of a region of 512 pages, a few pages of
//! those in DRAM (watched: were they touched?), and every touch of those in tiers. What is placed
//! is the region, so that a region has ages, two of them:
//!
//! - *home*: scan periods in which its pages in DRAM were watched and none was touched. Pages that
//!   come back count with age 0: the age is the mean over what is home.
//! - *stored*: that age when its pages were sent down, plus the scan periods since. Nothing is
//!   estimated here, because a touched page is no longer stored.
//!
//! A hit among `k` watched of `n` pages stands for `n / k` pages.

use super::histogram::AGE_MAX;
use crate::hotness::{WindowSeen, PAGES_PER_REGION};

/// What one window showed of a region, in pages.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Touched {
    /// Age of the pages in DRAM before the window, in scan periods.
    pub home_age: u8,
    /// Estimate of those touched: hits / watched x present.
    pub home: f64,
    /// Watched pages in DRAM.
    pub watched: f64,
    /// How many of them were touched.
    pub hits: f64,
    /// Age of the stored pages, in scan periods.
    pub stored_age: u8,
    /// Those that were touched, all counted.
    pub faults: f64,
    /// Pages stored when the window began.
    pub stored: f64,
}

/// One region's ages. 24 bytes, since there are 100,000s of regions.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct RegionAges {
    home_age: f32,
    stored_age: u8,
    /// The scan period so far: whether home pages were watched, or touched; the largest share that
    /// was touched in a window; faults.
    watched: bool,
    touched: bool,
    share_max: f32,
    faults: u16,
    /// Attempts to send down what is home that changed nothing, and windows until the next.
    futile: u8,
    rest: u8,
    /// Pages at home when they were last sent down; 0: they were not.
    sent: u16,
    /// Faults of this minute, and how often the region was brought home because of them.
    promoted: u16,
    recalls: u8,
}

/// Most windows between two attempts to send down pages that were refused.
const REST_MAX: u8 = 64;
/// Attempts without effect from which pages at home count as refused: the first may have been
/// dropped with the plan it was in.
const FUTILE_MIN: u8 = 2;
/// Most times that a region counts as brought home: an age of 255 periods is then 1.
const RECALLS_MAX: u8 = 7;

impl RegionAges {
    /// A region first seen with pages in tiers already, or without.
    pub fn new(is_stored: bool) -> RegionAges {
        // How old is not known. Not 0, so that its faults count as promotions under any threshold.
        RegionAges { stored_age: u8::from(is_stored), ..RegionAges::default() }
    }

    /// Age of the pages in DRAM, in scan periods.
    pub fn home_age(&self) -> u8 {
        self.home_age.clamp(0.0, f32::from(AGE_MAX)) as u8
    }

    /// Age of the pages in tiers, in scan periods.
    pub fn stored_age(&self) -> u8 {
        self.stored_age
    }

    /// Whether the tiers would not have the pages at home (incompressible, pinned).
    pub fn is_refused(&self) -> bool {
        self.futile >= FUTILE_MIN
    }

    /// Whether an attempt to send down what is home makes sense now.
    pub fn is_ready(&self) -> bool {
        self.rest == 0
    }

    /// What an age of this region counts for beside a threshold, in scan periods. It halves each
    /// time that the region was brought home: that a few of its pages showed no touch for so long
    /// has proved to mean little.
    pub fn proven(&self, age: u8) -> u8 {
        age.checked_shr(u32::from(self.recalls)).unwrap_or(0)
    }

    /// Pages that came back in this minute because they were touched.
    pub fn promoted(&self) -> u16 {
        self.promoted
    }

    /// Ends a minute.
    pub fn end_minute(&mut self) {
        self.promoted = 0;
    }

    /// Notes that all of the region is brought home: it only looked cold.
    pub fn recall(&mut self) {
        self.home_age = 0.0;
        self.promoted = 0;
        self.recalls = self.recalls.saturating_add(1).min(RECALLS_MAX);
    }

    /// Takes in one window, at the end of which `resident` pages are at home.
    pub fn observe(&mut self, seen: WindowSeen, resident: u16) -> Touched {
        let present = f64::from(seen.present.min(PAGES_PER_REGION));
        let watched = f64::from(seen.sampled);
        let hits = f64::from(seen.hits.min(seen.sampled));
        let share = if watched > 0.0 { hits / watched } else { 0.0 };
        let faults = seen.faults.min(seen.stored.min(PAGES_PER_REGION));
        let touched = Touched {
            home_age: self.home_age(),
            home: share * present,
            watched,
            hits,
            stored_age: self.stored_age,
            faults: f64::from(faults),
            stored: f64::from(seen.stored.min(PAGES_PER_REGION)),
        };
        self.watched |= watched > 0.0;
        self.share_max = self.share_max.max(share as f32);
        self.faults = self.faults.saturating_add(faults);
        self.promoted = self.promoted.saturating_add(faults);
        if hits > 0.0 {
            self.touched = true;
            self.home_age = 0.0;
        }
        if faults > 0 {
            let older = f32::from(resident.saturating_sub(faults));
            self.home_age *= older / (older + f32::from(faults));
        }
        self.rest = self.rest.saturating_sub(1);
        self.look_back(resident, faults);
        touched
    }

    /// What became of the last attempt to send pages down.
    fn look_back(&mut self, resident: u16, faults: u16) {
        if self.sent == 0 {
            return;
        }
        let left = resident.saturating_sub(faults);
        // A sixteenth, since of a region in use there is always somebody about to touch a page.
        if left > self.sent - self.sent / 16 {
            self.futile = self.futile.saturating_add(1);
            self.rest = 1u8.checked_shl(u32::from(self.futile) - 1).unwrap_or(REST_MAX);
            self.rest = self.rest.clamp(1, REST_MAX);
        } else {
            self.futile = 0;
        }
        self.sent = 0;
    }

    /// Closes a scan period, at whose end `present` pages are home and `stored` in tiers. Returns
    /// how many distinct pages were touched in it: a lower bound if it had several windows.
    pub fn scan(&mut self, present: u16, stored: u16) -> f64 {
        let distinct = f64::from(self.share_max) * f64::from(present) + f64::from(self.faults);
        if self.watched && !self.touched {
            self.home_age = (self.home_age + 1.0).min(f32::from(AGE_MAX));
        }
        if present == 0 {
            self.home_age = 0.0;
        }
        self.stored_age = if stored > 0 { self.stored_age.saturating_add(1) } else { 0 };
        // What is as old as ages go has changed since.
        if self.home_age() == AGE_MAX || self.stored_age == AGE_MAX {
            self.recalls = 0;
        }
        (self.watched, self.touched, self.share_max, self.faults) = (false, false, 0.0, 0);
        distinct
    }

    /// Notes that the `resident` pages at home are sent down, to `stored` that are there.
    pub fn send_down(&mut self, resident: u16, stored: u16) {
        let age = self.home_age();
        // Of both: a fault that comes will more likely be of the younger.
        self.stored_age = if stored > 0 { self.stored_age.min(age) } else { age };
        self.sent = resident;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn home(sampled: u16, hits: u16) -> WindowSeen {
        WindowSeen { present: 512, sampled, hits, ..WindowSeen::default() }
    }

    fn window(ages: &mut RegionAges, seen: WindowSeen) -> Touched {
        let (present, stored) = (seen.present, seen.stored - seen.faults);
        let touched = ages.observe(seen, present + seen.faults);
        ages.scan(present + seen.faults, stored);
        touched
    }

    #[test]
    fn stays_small() {
        assert!(core::mem::size_of::<RegionAges>() <= 24);
    }

    #[test]
    fn a_quiet_region_ages_and_a_hit_tells_its_age() {
        let mut ages = RegionAges::default();
        for age in 0..7 {
            let touched = window(&mut ages, home(4, 0));
            assert_eq!((touched.home_age, touched.home, touched.watched), (age, 0.0, 4.0));
        }
        // 1 of 4 watched stands for 128 of 512, last touched 7 periods ago or longer.
        let touched = window(&mut ages, home(4, 1));
        assert_eq!((touched.home_age, touched.home, touched.hits), (7, 128.0, 1.0));
        assert_eq!(ages.home_age(), 0);
        window(&mut ages, home(4, 0));
        assert_eq!(ages.home_age(), 1);
    }

    #[test]
    fn what_is_not_watched_does_not_age() {
        let mut ages = RegionAges::default();
        window(&mut ages, home(4, 0));
        (0..9).for_each(|_| _ = window(&mut ages, home(0, 0)));
        assert_eq!(ages.home_age(), 1);
    }

    #[test]
    fn a_period_of_several_windows_counts_once() {
        let mut ages = RegionAges::default();
        (0..3).for_each(|_| _ = window(&mut ages, home(4, 0)));
        // Three windows with 1/4, 2/4 and 0 touched: 256 distinct pages at least.
        for hits in [1, 2, 0] {
            let touched = ages.observe(home(4, hits), 512);
            assert_eq!(touched.home_age, if hits == 1 { 3 } else { 0 });
        }
        assert_eq!(ages.scan(512, 0), 256.0);
        assert_eq!(ages.home_age(), 0);
    }

    #[test]
    fn stored_pages_age_though_some_come_back() {
        let mut ages = RegionAges::default();
        (0..5).for_each(|_| _ = window(&mut ages, home(4, 0)));
        ages.send_down(512, 0);
        let seen = WindowSeen { stored: 512, ..WindowSeen::default() };
        window(&mut ages, seen);
        assert_eq!(ages.stored_age(), 6);
        let touched = window(&mut ages, WindowSeen { faults: 3, ..seen });
        assert_eq!((touched.stored_age, touched.faults, touched.stored), (6, 3.0, 512.0));
        assert_eq!((ages.stored_age(), ages.home_age()), (7, 0));
        // 30 pages at home age; 10 more come back: the mean of 30 * 4 and 10 * 0 is 3, and the
        // period in which the others were not touched makes it 4.
        let part = WindowSeen { present: 30, stored: 480, sampled: 4, ..WindowSeen::default() };
        (0..4).for_each(|_| _ = window(&mut ages, part));
        assert_eq!(ages.home_age(), 4);
        window(&mut ages, WindowSeen { faults: 10, ..part });
        assert_eq!(ages.home_age(), 4);
        // Sent down again, all of it counts as old as its younger part.
        ages.send_down(40, 470);
        assert_eq!(ages.stored_age(), 4);
    }

    #[test]
    fn each_time_home_halves_what_an_age_proves_until_it_is_as_old_as_can_be() {
        let mut ages = RegionAges::default();
        assert_eq!(ages.proven(40), 40);
        (0..9).for_each(|_| ages.recall());
        assert_eq!((ages.proven(255), ages.proven(127)), (1, 0));
        (0..254).for_each(|_| _ = window(&mut ages, home(4, 0)));
        assert_eq!((ages.home_age(), ages.proven(ages.home_age())), (254, 1));
        window(&mut ages, home(4, 0));
        assert_eq!(ages.proven(40), 40);
        // Promotions are those of a minute.
        let seen = WindowSeen { stored: 512, faults: 3, ..WindowSeen::default() };
        (0..2).for_each(|_| _ = window(&mut ages, seen));
        assert_eq!(ages.promoted(), 6);
        ages.end_minute();
        assert_eq!(ages.promoted(), 0);
    }

    #[test]
    fn refused_pages_are_tried_ever_more_seldom() {
        let mut ages = RegionAges::default();
        let mut attempts = Vec::new();
        for n in 0..140 {
            if ages.is_ready() {
                ages.send_down(512, 0);
                attempts.push(n);
            }
            ages.observe(home(4, 0), 512);
        }
        assert_eq!(attempts, [0, 2, 5, 10, 19, 36, 69, 134]);
        assert!(ages.is_refused());
        ages.send_down(512, 0);
        ages.observe(home(4, 0), 100);
        assert!(!ages.is_refused());
    }

    proptest! {
        #[test]
        fn ages_stay_in_range_and_nothing_is_touched_that_is_not_there(
            windows in prop::collection::vec(any::<(u16, u16, u16, u16, u16, u16, bool)>(), 0..90),
        ) {
            let mut ages = RegionAges::new(true);
            for (present, stored, sampled, hits, faults, resident, sends) in windows {
                let seen = WindowSeen { present, stored, sampled, hits, faults };
                let touched = ages.observe(seen, resident);
                prop_assert!((0.0..=512.0).contains(&touched.home));
                prop_assert!((0.0..=512.0).contains(&touched.faults));
                prop_assert!(touched.faults <= touched.stored);
                if sends {
                    ages.send_down(resident, stored);
                }
                let distinct = ages.scan(present.min(512), stored.min(512));
                prop_assert!(distinct >= 0.0 && distinct.is_finite());
                prop_assert!((0.0..=255.0).contains(&ages.home_age));
            }
        }
    }
}
