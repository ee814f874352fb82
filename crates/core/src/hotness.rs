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

use crate::setback::Setbacks;

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

/// Windows in tiers, beside the first, after which what came back in them says what to expect.
const TOLD_WINDOWS: usize = WINDOWS;

/// Steps of the share that is used again, the mark of one that is not known, and the weight of what
/// was seen of it before in samples.
const USED_ALL: f32 = 254.0;
const USED_UNKNOWN: u8 = 255;
const USED_SAMPLES: f32 = 8.0;

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

/// Pages that come back in a window of a region that is in a tier: each a fault, so exact, where
/// hotness takes all pages of a region to be alike. Mostly they are not: those in use come back and
/// stay, and hotness counts them for as long as they are in use, though they fault no more.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct CameBack {
    /// Mean of the windows in tiers but the first, of the last [`BACK_WINDOWS`] at most.
    pub usual: f32,
    /// In the newest window.
    pub newest: f32,
    /// Mean of about [`LONG_WINDOWS`], those included in which most of it came home.
    pub long: f32,
}

/// The last four windows of one region, the mean of many, and its setbacks. 54 bytes, since there
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
    /// The same of the pages that faulted back alone.
    long_back: u16,
    /// Windows seen, saturating.
    seen: u8,
    setbacks: Setbacks,
    /// Share of what came back lately that is touched in a window, in 1/254, while it is in a
    /// tier; 255 if nothing was seen of that.
    used_again: u8,
    /// Pages that the newest window left in tiers.
    left_down: u16,
    /// Windows since any of it went down, saturating.
    since_down: u8,
}

impl Default for RegionHistory {
    fn default() -> Self {
        RegionHistory {
            recent: [0; WINDOWS],
            came_back: [0; BACK_WINDOWS],
            share: (SHARE_UNKNOWN * f32::from(u16::MAX)) as u16,
            long: 0,
            long_back: 0,
            seen: 0,
            setbacks: Setbacks::default(),
            used_again: USED_UNKNOWN,
            left_down: 0,
            since_down: u8::MAX,
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
        self.used_again = match (self.down_windows(), self.used_again) {
            (0, _) => USED_UNKNOWN,
            (_, used) if seen.sampled == 0 => used,
            (_, USED_UNKNOWN) => ((hits + 1.0) / (sampled + 2.0) * USED_ALL).round() as u8,
            (_, used) => {
                let before = f32::from(used) / USED_ALL * USED_SAMPLES;
                ((hits + before) / (sampled + USED_SAMPLES) * USED_ALL).round() as u8
            }
        };
        self.since_down = match stored > self.left_down {
            true => 0,
            false => self.since_down.saturating_add(1),
        };
        self.left_down = stored - seen.faults.min(stored);
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
        let windows = i32::from(self.seen.min(LONG_WINDOWS));
        let follow = |long: u16, newest: u16| {
            let (long, newest) = (i32::from(long), i32::from(newest));
            (long + (newest - long).div_euclid(windows)).clamp(0, newest.max(long)) as u16
        };
        self.long = follow(self.long, self.recent[0]);
        self.long_back = follow(self.long_back, self.came_back[0] * STEPS_PER_PAGE as u16);
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

    /// What has come back of it, once it has been in tiers for long enough that this tells more
    /// than samples do; see [`CameBack`].
    pub fn told(&self) -> Option<CameBack> {
        // What was in use all along comes back first, once: the first window is no example.
        let windows = usize::from(self.down_windows()).saturating_sub(1).min(BACK_WINDOWS);
        (windows >= TOLD_WINDOWS).then(|| CameBack {
            usual: self.came_back(windows) as f32 / windows as f32,
            newest: f32::from(self.came_back[0]),
            long: f32::from(self.long_back) / STEPS_PER_PAGE,
        })
    }

    /// Share, 0 to 1, of the pages which came back lately that is touched again in a window, while
    /// it is in a tier; `None` if no sample was taken of them yet.
    pub fn used_again(&self) -> Option<f32> {
        (self.used_again != USED_UNKNOWN).then(|| f32::from(self.used_again) / USED_ALL)
    }

    /// Windows since the last one that found pages of it in tiers which were in DRAM before, 0 if
    /// that was the newest one; saturating.
    pub fn since_down_windows(&self) -> u8 {
        self.since_down
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
        assert!(core::mem::size_of::<RegionHistory>() <= 54);
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
    fn what_comes_back_tells_more_than_samples_once_it_is_down_for_long() {
        // A quarter of its pages is in use in every window: it comes back at once, and stays.
        let mut history = RegionHistory::new();
        history.observe(WindowSeen { stored: 512, faults: 128, ..WindowSeen::default() });
        let home = WindowSeen { present: 128, stored: 384, sampled: 4, hits: 4, faults: 0 };
        for faults in [9, 1, 2] {
            history.observe(WindowSeen { faults, ..home });
            assert_eq!(history.told(), None);
        }
        history.observe(WindowSeen { faults: 8, ..home });
        assert_eq!(history.told(), Some(CameBack { usual: 5.0, newest: 8.0, long: 29.59375 }));
        assert!(history.hotness() > 90.0, "by which all of it is as warm as that");
        (0..BACK_WINDOWS).for_each(|_| _ = history.observe(home));
        let told = history.told().unwrap();
        assert_eq!((told.usual, told.newest), (0.0, 0.0));
        assert!(told.long > 5.0, "many windows ago is not forgotten");
        history.observe(WindowSeen { faults: 300, ..home });
        assert_eq!(history.told(), None, "most of it is home");
    }

    #[test]
    fn what_came_back_is_told_apart_from_the_rest_of_its_region() {
        let mut history = RegionHistory::new();
        assert_eq!(history.observe(present(4, 4)).round(), 427.0);
        assert_eq!(history.used_again(), None, "it is at home");
        let down = WindowSeen { present: 60, stored: 452, sampled: 0, hits: 0, faults: 20 };
        history.observe(down);
        assert_eq!(history.used_again(), None, "nobody looked");
        let mut observe = |sampled, hits| {
            history.observe(WindowSeen { sampled, hits, ..down });
            history.used_again()
        };
        assert_eq!(observe(4, 2), Some(0.5));
        assert_eq!(observe(0, 0), Some(0.5));
        assert!((observe(4, 4).unwrap() - 8.0 / 12.0).abs() < 0.01);
        (0..40).for_each(|_| _ = observe(4, 4));
        assert!(observe(4, 4).unwrap() > 0.97);
        (0..40).for_each(|_| _ = observe(4, 0));
        assert!(observe(4, 0).unwrap() < 0.03);
        history.observe(present(4, 0));
        assert_eq!(history.used_again(), None, "home again");
    }

    #[test]
    fn when_pages_went_down_is_seen_by_how_many_are_there() {
        let mut history = RegionHistory::new();
        let mut observe = |stored, faults| {
            history.observe(WindowSeen { stored, faults, ..WindowSeen::default() });
            history.since_down_windows()
        };
        assert_eq!(observe(0, 0), u8::MAX, "never");
        assert_eq!([observe(500, 40), observe(460, 0), observe(460, 20)], [0, 1, 2]);
        assert_eq!([observe(460, 0), observe(460, 0)], [0, 1], "what came back went down again");
        assert_eq!(observe(100, 0), 2, "given up by the program");
        assert_eq!((0..300).map(|_| observe(0, 0)).last(), Some(u8::MAX));
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
