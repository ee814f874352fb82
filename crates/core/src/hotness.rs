//! Hotness of a region: how many *distinct pages* of it are touched in one window, averaged over
//! the last four windows (TierScape, section 7.1).
//!
//! The paper counts PEBS samples. Distinct pages predict faults better: a page in a compressed
//! tier faults once per window however often it is touched afterwards, so this number times a
//! tier's fault latency is the cost of placing the region there (equation 8 with `k_y` = 1).
//!
//! A window is seen from two sides. Pages that were in a compressed tier report themselves: every
//! touch is a fault, so that count is exact. Pages that were in DRAM are only sampled: `k` of them
//! were watched and `h` turned out touched. Samples are few (4 to 8 a region), so `h / k` alone
//! would call a region wholly cold or wholly hot on the strength of four coins. The share is
//! therefore drawn towards the region's own former share `q`, as if [`PRIOR_SAMPLES`] further
//! pages had been watched (the mean of a Beta prior):
//!
//! ```text
//! share    = (h + q * PRIOR_SAMPLES) / (k + PRIOR_SAMPLES)
//! estimate = faults + present_pages * share
//! ```
//!
//! A region never seen before has `q` = 1/2 and so starts out as probably warm: the first mistake
//! to avoid is to demote what is in use. With `k` = 4 and no hit, 512 present pages are estimated
//! at 512 * 1/6 = 85 pages, then 28, 9, 3: after four quiet windows a region counts as cold.

use crate::setback::{Again, Setbacks};

/// Pages in a region: 2 MiB of 4 KiB pages.
pub const PAGES_PER_REGION: u16 = 512;

/// Windows that the average runs over (TierScape, section 7.1: "the past 4 profiling windows").
pub const WINDOWS: usize = 4;

/// Weight of a region's past, in watched pages. 2 against the 4 to 8 real samples of a window lets
/// two windows of evidence overturn any past, and still halves the noise of a single window.
pub const PRIOR_SAMPLES: f32 = 2.0;

/// Windows that the long average runs over: long enough for what a program does
/// now and then.
pub const LONG_WINDOWS: u8 = 32;

/// Windows of which it is remembered how many pages came back in them: as long as a page may have
/// to cool, counting the one in which it came.
pub const BACK_WINDOWS: usize = 15;

/// Share of pages taken to be in use before anything was seen of a region.
const SHARE_UNKNOWN: f32 = 0.5;

/// Estimates are stored in 1/64 page: 512 pages fill 32,768 of a `u16`, and four windows of a
/// region that is touched at one page an hour still do not round to zero.
const STEPS_PER_PAGE: f32 = 64.0;

/// What a tracker saw of one region in one window. Counts of pages, each 0 to 512; values that
/// cannot be (more hits than samples, more pages than a region has) are cut down to what can.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct WindowSeen {
    /// Pages of the region in DRAM when the window began.
    pub present: u16,
    /// Pages of it in a compressed tier when the window began.
    pub stored: u16,
    /// How many of the present pages were watched.
    pub sampled: u16,
    /// How many of the watched pages were touched.
    pub hits: u16,
    /// Stored pages that faulted back in the window; each page once.
    pub faults: u16,
}

/// The last four windows of one region, the mean of many, and its setbacks. 60 bytes, since there
/// are 100,000s of regions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RegionHistory {
    /// Estimates in 1/64 page, newest first.
    recent: [u16; WINDOWS],
    /// Pages that faulted back in each of the last windows, newest first.
    came_back: [u16; BACK_WINDOWS],
    /// Share of the region's pages touched in the newest window, in 1/65535: the next prior.
    share: u16,
    /// Mean of the last windows, those of long ago less and less, in 1/64 page.
    long: u16,
    /// Windows seen, saturating.
    seen: u8,
    setbacks: Setbacks,
    again: Again,
}

impl Default for RegionHistory {
    fn default() -> Self {
        RegionHistory {
            recent: [0; WINDOWS],
            came_back: [0; BACK_WINDOWS],
            share: (SHARE_UNKNOWN * f32::from(u16::MAX)) as u16,
            long: 0,
            seen: 0,
            setbacks: Setbacks::default(),
            again: Again::default(),
        }
    }
}

impl RegionHistory {
    /// A region of which nothing is known.
    pub fn new() -> RegionHistory {
        RegionHistory::default()
    }

    /// Takes in one window and returns its estimate in distinct pages, 0 to 512.
    ///
    /// A window without data (no page present or stored) counts as seen and touches nothing, and
    /// leaves the prior as it was.
    pub fn observe(&mut self, seen: WindowSeen) -> f32 {
        let present = seen.present.min(PAGES_PER_REGION);
        let stored = seen.stored.min(PAGES_PER_REGION - present);
        let sampled = f32::from(seen.sampled);
        let hits = f32::from(seen.hits.min(seen.sampled));
        let prior = f32::from(self.share) / f32::from(u16::MAX);

        let share = (hits + prior * PRIOR_SAMPLES) / (sampled + PRIOR_SAMPLES);
        let estimate = f32::from(seen.faults.min(stored)) + f32::from(present) * share;

        let pages = present + stored;
        self.setbacks.observe(pages, stored, seen.faults.min(stored));
        self.again.observe(stored, seen.faults.min(stored));
        if pages > 0 {
            let touched = (estimate / f32::from(pages)).min(1.0);
            self.share = (touched * f32::from(u16::MAX)).round() as u16;
        }
        self.recent.rotate_right(1);
        self.recent[0] = (estimate * STEPS_PER_PAGE).round() as u16;
        self.came_back.rotate_right(1);
        self.came_back[0] = seen.faults.min(stored);
        self.seen = self.seen.saturating_add(1);
        // In steps of 1/64 page a mean over 32 windows would never fall below half a page; the part
        // that is rounded away is rounded down.
        let (long, newest) = (i32::from(self.long), i32::from(self.recent[0]));
        let windows = i32::from(self.seen.min(LONG_WINDOWS));
        self.long = (long + (newest - long).div_euclid(windows)).clamp(0, newest.max(long)) as u16;
        estimate
    }

    /// Distinct pages touched per window, 0 to 512: the average of the windows seen, at most the
    /// last four. 0 when none was seen; ask [`RegionHistory::windows_seen`] before believing it.
    pub fn hotness(&self) -> f32 {
        let windows = usize::from(self.seen).min(WINDOWS);
        if windows == 0 {
            return 0.0;
        }
        let sum: u32 = self.recent[..windows].iter().map(|&steps| u32::from(steps)).sum();
        sum as f32 / STEPS_PER_PAGE / windows as f32
    }

    /// The same without a single window that stands out and is over: the mean of the other three if
    /// the largest of four is not the newest, and more than all of them together.
    pub fn calm(&self) -> f32 {
        let sum: u32 = self.recent.iter().map(|&steps| u32::from(steps)).sum();
        let largest = u32::from(self.recent[1..].iter().copied().max().unwrap_or(0));
        if usize::from(self.seen) < WINDOWS || 2 * largest <= sum {
            return self.hotness();
        }
        (sum - largest) as f32 / STEPS_PER_PAGE / (WINDOWS - 1) as f32
    }

    /// Distinct pages touched per window on average over about [`LONG_WINDOWS`] windows, 0 to 512.
    pub fn long(&self) -> f32 {
        f32::from(self.long) / STEPS_PER_PAGE
    }

    /// Estimate of the newest window in distinct pages, 0 to 512.
    pub fn newest(&self) -> f32 {
        f32::from(self.recent[0]) / STEPS_PER_PAGE
    }

    /// Pages that faulted back in the last so many windows, of [`BACK_WINDOWS`] at most.
    pub fn came_back(&self, windows: usize) -> u32 {
        self.came_back.iter().take(windows).map(|&pages| u32::from(pages)).sum()
    }

    /// Windows that it should still be left alone ([`Setbacks::rest_windows`]).
    pub fn rest_windows(&self) -> u8 {
        self.setbacks.rest_windows()
    }

    /// Windows for which what came back should stay ([`Again::stay_windows`]).
    pub fn stay_windows(&self) -> u8 {
        self.again.stay_windows()
    }

    /// Windows for which it has been in a tier ([`Setbacks::down_windows`]).
    pub fn down_windows(&self) -> u8 {
        self.setbacks.down_windows()
    }

    /// Windows taken in so far, saturating at 255.
    pub fn windows_seen(&self) -> u8 {
        self.seen
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn present(sampled: u16, hits: u16) -> WindowSeen {
        WindowSeen { present: 512, sampled, hits, ..WindowSeen::default() }
    }

    #[test]
    fn stays_small() {
        assert!(core::mem::size_of::<RegionHistory>() <= 60);
    }

    #[test]
    fn quiet_region_cools_down_as_the_head_comment_says() {
        let mut history = RegionHistory::new();
        let estimates: Vec<i32> =
            (0..4).map(|_| history.observe(present(4, 0)).round() as i32).collect();
        assert_eq!(estimates, [85, 28, 9, 3]);
        // (85.33 + 28.44 + 9.48 + 3.16) / 4
        assert!((history.hotness() - 31.6).abs() < 0.05, "{}", history.hotness());
        assert_eq!(history.windows_seen(), 4);
    }

    #[test]
    fn busy_region_heats_up() {
        let mut history = RegionHistory::new();
        for _ in 0..6 {
            history.observe(present(4, 4));
        }
        assert!(history.hotness() > 500.0);
        assert!(history.hotness() <= 512.0);
    }

    #[test]
    fn faults_of_a_stored_region_are_exact_and_need_no_prior() {
        let mut history = RegionHistory::new();
        let seen = WindowSeen { stored: 512, faults: 37, ..WindowSeen::default() };
        assert_eq!(history.observe(seen), 37.0);
        assert_eq!(history.observe(WindowSeen { faults: 0, ..seen }), 0.0);
        assert_eq!(history.hotness(), 18.5);
        assert_eq!(history.newest(), 0.0);
        assert_eq!((history.came_back(1), history.came_back(2), history.came_back(9)), (0, 37, 37));
    }

    #[test]
    fn average_forgets_the_fifth_window() {
        let mut history = RegionHistory::new();
        let seen = WindowSeen { stored: 512, faults: 400, ..WindowSeen::default() };
        history.observe(seen);
        for _ in 0..4 {
            history.observe(WindowSeen { faults: 8, ..seen });
        }
        assert_eq!(history.hotness(), 8.0);
    }

    #[test]
    fn a_burst_that_is_over_does_not_count_in_what_is_calm() {
        let mut history = RegionHistory::new();
        let mut observe = |faults| {
            history.observe(WindowSeen { stored: 512, faults, ..WindowSeen::default() });
            (history.hotness(), history.calm())
        };
        assert_eq!([observe(6), observe(8), observe(500)][2].1, 514.0 / 3.0, "too little seen");
        assert_eq!(observe(7), (521.0 / 4.0, 7.0));
        assert_eq!(observe(9), (524.0 / 4.0, 8.0));
        // The newest may be the first of many; and two are no single one.
        assert_eq!(observe(512), (1028.0 / 4.0, 1028.0 / 4.0));
        assert_eq!(observe(512), (1040.0 / 4.0, 1040.0 / 4.0));
    }

    #[test]
    fn without_samples_the_past_is_kept() {
        let mut history = RegionHistory::new();
        history.observe(WindowSeen { stored: 512, faults: 128, ..WindowSeen::default() });
        let estimate = history.observe(present(0, 0));
        assert!((estimate - 128.0).abs() < 0.1, "{estimate}");
    }

    proptest! {
        #[test]
        fn estimate_is_within_the_region_and_rises_with_hits(
            present: u16, stored: u16, sampled in 0u16..600, hits in 0u16..600, faults: u16,
        ) {
            let seen = WindowSeen { present, stored, sampled, hits, faults };
            let mut cooler = RegionHistory::new();
            let mut hotter = RegionHistory::new();
            let low = cooler.observe(seen);
            let high = hotter.observe(WindowSeen { hits: hits.saturating_add(1), ..seen });
            prop_assert!((0.0..=512.0).contains(&low));
            prop_assert!(low <= high);
            prop_assert!(cooler.hotness() <= hotter.hotness());
        }
    }
}
