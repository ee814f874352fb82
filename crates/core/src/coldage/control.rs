//! The control loop (sections 4.2 to 4.4, 5.2): windows make scan periods and minutes, minutes make
//! thresholds.

use super::evidence::{mean_within, Evidence};
use super::histogram::AgeHistogram;
use super::region::{RegionAges, Touched};
use super::threshold::{ColdAge, History};
use super::{MINUTE_S_DEFAULT, PERCENTILE_DEFAULT, PROMOTION_RATE_DEFAULT};

/// What an operator sets. Values out of range are cut to it.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Settings {
    /// `P`: promotions allowed in a minute, as a share of the working set, 0 to 1.
    pub promotion_rate: f64,
    /// `K`: the percentile of the best thresholds of past minutes, 0 to 100.
    pub percentile: f64,
    /// `S`: seconds without far memory at the start.
    pub warm_up_s: f64,
    /// Seconds in what counts as a minute, one window at least.
    pub minute_s: f64,
    /// Seconds in a scan period, the unit of ages and the lowest threshold; whole windows, one at
    /// least.
    pub scan_s: f64,
    /// Seconds in a window.
    pub window_s: f64,
}

impl Settings {
    /// The defaults at this length of a window: scan periods of one window.
    pub fn at_window(window_s: f64) -> Settings {
        Settings {
            promotion_rate: PROMOTION_RATE_DEFAULT,
            percentile: PERCENTILE_DEFAULT,
            warm_up_s: super::WARM_UP_MINUTES_DEFAULT * MINUTE_S_DEFAULT,
            minute_s: MINUTE_S_DEFAULT,
            scan_s: window_s,
            window_s,
        }
    }

    /// Windows in `seconds`, at least one.
    fn windows(&self, seconds: f64) -> u32 {
        (seconds / self.window_s).round().clamp(1.0, 1e6) as u32
    }

    /// How long a minute really is, in minutes: it is whole windows, not always 60 s.
    fn minutes(&self) -> f64 {
        f64::from(self.windows(self.minute_s)) * self.window_s / self.minute_s
    }
}

/// What the loop knows, for reports. Counts of pages are estimates where they are not of far
/// memory.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Facts {
    /// Minutes that have passed; what follows is of the newest, unless it says otherwise.
    pub minutes: u32,
    /// Whether the warm-up is over.
    pub is_warm: bool,
    /// Whether the application is at its memory limit now: nothing more is demoted.
    pub is_at_limit: bool,
    /// Seconds in a scan period.
    pub scan_s: f64,
    /// Cold age threshold of each compressed tier, in scan periods; `None`: no page is cold enough.
    pub thresholds: Vec<Option<u8>>,
    /// Threshold that would have been best for the first of them in the newest minute.
    pub best: Option<u8>,
    /// Pages that came back from far memory because they were touched.
    pub promotions: f64,
    /// The same as a share of the working set: the service level indicator.
    pub promotion_rate: f64,
    /// Distinct pages touched in a scan period.
    pub working_set_pages: f64,
    /// Pages not touched for a scan period or longer, at the newest scan.
    pub cold_pages: f64,
    /// Pages in far memory, at the newest scan.
    pub far_pages: f64,
    /// Pages at home that the tiers would not have, at the newest scan.
    pub refused_pages: f64,
    /// Minutes since the warm-up, and how many of them had a higher promotion rate than allowed.
    pub minutes_warm: u32,
    /// See `minutes_warm`.
    pub minutes_over: u32,
}

impl Facts {
    /// Cold memory coverage (section 6.1): the share of the memory not touched for a scan period or
    /// longer that is in far memory. 0 if nothing is cold.
    pub fn coverage(&self) -> f64 {
        if self.cold_pages > 0.0 {
            (self.far_pages / self.cold_pages).min(1.0)
        } else {
            0.0
        }
    }
}

/// The loop of one application.
#[derive(Clone, Debug)]
pub struct Control {
    settings: Settings,
    /// Windows seen in all, in this minute and in this scan period.
    windows: u32,
    in_minute: u32,
    in_scan: u32,
    promotions: AgeHistogram,
    newest: AgeHistogram,
    cold: AgeHistogram,
    evidence: Evidence,
    /// By compressed tier.
    histories: Vec<History>,
    thresholds: Vec<ColdAge>,
    /// Faults of this minute.
    faults: f64,
    /// Working sets of the scans in this minute: sum and number; the largest, and of the minute
    /// before.
    scanned: (f64, u32),
    largest: (f64, f64),
    /// Being counted by the scan that is under way.
    counting: (f64, f64, f64),
    facts: Facts,
}

impl Control {
    /// A loop before its first window.
    pub fn new(settings: Settings) -> Control {
        let finite = |value: f64, most: f64| if value > 0.0 { value.min(most) } else { 0.0 };
        let length =
            |value: f64, other: f64| if value > 0.0 && value < 1e9 { value } else { other };
        let window_s = length(settings.window_s, 1.0);
        let settings = Settings {
            promotion_rate: finite(settings.promotion_rate, 1.0),
            percentile: finite(settings.percentile, 100.0),
            warm_up_s: finite(settings.warm_up_s, 1e9),
            minute_s: length(settings.minute_s, window_s),
            scan_s: length(settings.scan_s, window_s),
            window_s,
        };
        Control {
            settings,
            windows: 0,
            in_minute: 0,
            in_scan: 0,
            promotions: AgeHistogram::default(),
            newest: AgeHistogram::default(),
            cold: AgeHistogram::default(),
            evidence: Evidence::default(),
            histories: Vec::new(),
            thresholds: Vec::new(),
            faults: 0.0,
            scanned: (0.0, 0),
            largest: (0.0, 0.0),
            counting: (0.0, 0.0, 0.0),
            facts: Facts { scan_s: settings.scan_s, ..Facts::default() },
        }
    }

    /// What was asked for.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// What is known.
    pub fn facts(&self) -> &Facts {
        &self.facts
    }

    /// Pages by age as of the newest scan (the cold page histogram, section 4.4).
    pub fn cold(&self) -> &AgeHistogram {
        &self.cold
    }

    /// The promotion histogram of the newest minute (section 4.3): pages that were touched, by the
    /// age at which they were. Those in tiers were promotions; those at home would have been.
    pub fn newest_promotions(&self) -> &AgeHistogram {
        &self.newest
    }

    /// Begins to take in a window.
    pub fn begin_window(&mut self) {
        if self.is_scan() {
            self.cold.clear();
            self.counting = (0.0, 0.0, 0.0);
        }
    }

    /// Takes in what a window showed of a region. Touches of pages that the tiers refuse could
    /// never be promotions, and do not count as such.
    pub fn take(&mut self, touched: &Touched, is_refused: bool) {
        self.evidence.take(touched);
        if !is_refused {
            self.promotions.add(touched.home_age, touched.home);
        }
        self.promotions.add(touched.stored_age, touched.faults);
        self.faults += touched.faults;
    }

    /// Whether the window that is being taken in ends a scan period.
    pub fn is_scan(&self) -> bool {
        self.in_scan + 1 >= self.settings.windows(self.settings.scan_s)
    }

    /// Takes in a region's scan period (only if [`Control::is_scan`]): `resident` pages are at home
    /// and `stored` in tiers now.
    pub fn take_scan(&mut self, ages: &mut RegionAges, resident: u16, stored: u16) {
        let distinct = ages.scan(resident, stored);
        let (home, far) = (f64::from(resident), f64::from(stored));
        // The rest of a region in use is older than this period; nothing more is known of it.
        let rest = if distinct > 0.0 { ages.home_age().max(1) } else { ages.home_age() };
        self.cold.add(0, distinct.min(home));
        self.cold.add(rest, home - distinct.min(home));
        self.cold.add(ages.stored_age(), far);
        let refused = if ages.is_refused() { home } else { 0.0 };
        self.counting.0 += distinct;
        self.counting.1 += far;
        self.counting.2 += refused;
    }

    /// Ends a window. `latencies` are those of faults from the compressed tiers, in nanoseconds.
    pub fn end_window(&mut self, latencies: &[f64]) {
        if self.is_scan() {
            let (distinct, far, refused) = core::mem::take(&mut self.counting);
            self.in_scan = 0;
            self.scanned = (self.scanned.0 + distinct, self.scanned.1 + 1);
            self.largest.0 = self.largest.0.max(distinct);
            self.facts.cold_pages = self.cold.at_least(1);
            self.facts.far_pages = far;
            self.facts.refused_pages = refused;
        } else {
            self.in_scan += 1;
        }
        self.windows = self.windows.saturating_add(1);
        self.in_minute += 1;
        if self.in_minute >= self.settings.windows(self.settings.minute_s) {
            self.end_minute(latencies);
        }
    }

    fn end_minute(&mut self, latencies: &[f64]) {
        if self.scanned.1 > 0 {
            self.facts.working_set_pages = self.scanned.0 / f64::from(self.scanned.1);
        }
        let (minutes, allowed) = (self.settings.minutes(), self.allowed_pages());
        let quickest = latencies.iter().copied().fold(f64::INFINITY, f64::min);
        self.histories.resize_with(latencies.len(), History::default);
        self.thresholds.clear();
        for (history, &latency) in self.histories.iter_mut().zip(latencies) {
            // A page of a slower tier costs as much as several: fewer of them are allowed.
            let dearer = if latency > quickest { latency / quickest.max(1.0) } else { 1.0 };
            history.push(ColdAge::best(&self.promotions, allowed / dearer));
            self.thresholds.push(history.next(self.settings.percentile));
        }

        let was_warm = self.facts.is_warm;
        let facts = &mut self.facts;
        facts.minutes = facts.minutes.saturating_add(1);
        let elapsed_s = f64::from(self.windows) * self.settings.window_s;
        facts.is_warm = elapsed_s >= self.settings.warm_up_s;
        facts.thresholds = self.thresholds.iter().map(|t| t.periods()).collect();
        facts.best = self.histories.first().and_then(|history| history.newest().periods());
        facts.promotions = self.faults;
        facts.promotion_rate = self.faults / facts.working_set_pages.max(1.0) / minutes;
        if was_warm {
            facts.minutes_warm += 1;
            facts.minutes_over += u32::from(self.faults > allowed);
        }
        self.evidence.fade();
        core::mem::swap(&mut self.newest, &mut self.promotions);
        self.promotions.clear();
        self.faults = 0.0;
        self.scanned = (0.0, 0);
        self.largest = (0.0, self.largest.0);
        self.in_minute = 0;
    }

    /// Notes whether the application is at its memory limit.
    pub fn limit(&mut self, is_reached: bool) {
        self.facts.is_at_limit = is_reached;
    }

    /// Threshold of compressed tier `n` (from 0). Never during the warm-up.
    pub fn threshold(&self, n: usize) -> ColdAge {
        if !self.facts.is_warm {
            return ColdAge::Never;
        }
        self.thresholds.get(n).copied().unwrap_or(ColdAge::Never)
    }

    /// If more came back in this minute so far, or in the one that has just ended, than is allowed:
    /// how many are meant to.
    pub fn meant_if_over(&self) -> Option<f64> {
        let promotions = if self.is_minute() { self.facts.promotions } else { self.faults };
        let allowed = self.allowed_pages();
        (promotions > allowed).then(|| mean_within(allowed))
    }

    /// Promotions that are allowed in a minute, by the working set of the newest one.
    fn allowed_pages(&self) -> f64 {
        self.settings.promotion_rate * self.facts.working_set_pages * self.settings.minutes()
    }

    /// Whether the newest window ended a minute.
    pub fn is_minute(&self) -> bool {
        self.in_minute == 0
    }

    /// Most pages in far memory at the lowest of the thresholds; see `evidence.rs`.
    pub fn far_pages_max(&self) -> f64 {
        let lowest = (0..self.thresholds.len()).map(|n| self.threshold(n)).min();
        let a_minute = self.settings.promotion_rate * self.facts.working_set_pages;
        let allowed = mean_within(a_minute) * self.settings.window_s / self.settings.minute_s;
        self.evidence.pages_max(lowest.unwrap_or(ColdAge::Never), allowed)
    }

    /// Pages that must stay at home at least: the largest working set of this minute and the one
    /// before (the soft limit of section 5.1).
    pub fn soft_limit_pages(&self) -> f64 {
        self.largest.0.max(self.largest.1)
    }
}

#[cfg(test)]
#[path = "control_tests.rs"]
mod tests;
