//! How long a fault from a tier takes, measured again and again.
//!
//! An estimate from a sample of the application's pages is where it begins; every window's faults
//! then draw it towards what they took. A device that grows slow, a pool that moved to another
//! node or processors that became busy are in the next plans, and a window with few faults says
//! little. What was measured in the first minutes of a program is forgotten in the course of some
//! thousand faults.
//!
//! A tier that was slow for a moment is one that nothing is sent to, and so is not measured any
//! more. Where there are no faults for a while the figure goes back to the estimate, or that moment
//! would count for good. (Redis waited long for what was in zstd while it was loaded. That
//! tier had 131 us then and until the end, when lz4 had 20, and nothing went there any more.)

/// Faults that the present figure is worth: as many new ones move it half way.
const WORTH_FAULTS: f64 = 500.0;
/// Faults that the first estimate is worth.
const ESTIMATE_FAULTS: f64 = 100.0;

/// Windows without a fault for which the figure stands as it is.
const QUIET_WINDOWS: u32 = 16;
/// In every one after that it goes so much of its way to the estimate.
const FADING: f64 = 0.1;

/// The latency of one tier.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Latency {
    ns: f64,
    /// Faults behind the figure, at most [`WORTH_FAULTS`]; 0 before anything was measured.
    behind: f64,
    /// Windows since the last fault.
    quiet: u32,
    /// Counters when they were last read.
    faults: u64,
    total_ns: u64,
}

impl Latency {
    /// Takes in counters that run since the start: faults served, and how long they took in all.
    /// `estimate_ns` is what to assume of the next fault while nothing is measured. Returns the
    /// latency in nanoseconds.
    pub fn observe(&mut self, faults: u64, total_ns: u64, estimate_ns: f64) -> f64 {
        if faults < self.faults || total_ns < self.total_ns {
            // Counters that ran backwards are another runtime's.
            *self = Latency::default();
        }
        let (new, took) = ((faults - self.faults) as f64, (total_ns - self.total_ns) as f64);
        (self.faults, self.total_ns) = (faults, total_ns);
        if self.behind <= ESTIMATE_FAULTS && faults as f64 == new {
            // Nothing was measured before: the estimate may change from window to window.
            (self.ns, self.behind) = (estimate_ns.max(0.0), ESTIMATE_FAULTS);
        }
        self.quiet = if new > 0.0 { 0 } else { self.quiet.saturating_add(1) };
        if self.quiet > QUIET_WINDOWS {
            self.ns += (estimate_ns.max(0.0) - self.ns) * FADING;
            self.behind += (ESTIMATE_FAULTS - self.behind).min(0.0) * FADING;
        }
        if new > 0.0 {
            let share = new / (new + self.behind);
            self.ns += (took / new - self.ns) * share;
            self.behind = (self.behind + new).min(WORTH_FAULTS);
        }
        self.ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_estimate_holds_until_there_are_faults_and_gives_way_to_them() {
        let mut tier = Latency::default();
        assert_eq!(tier.observe(0, 0, 9_000.0), 9_000.0);
        assert_eq!(tier.observe(0, 0, 8_000.0), 8_000.0, "a better estimate");
        // 100 faults of 4 us weigh as much as the estimate.
        assert_eq!(tier.observe(100, 400_000, 8_000.0), 6_000.0);
        let ns = tier.observe(10_100, 40_400_000, 1.0);
        assert!((ns - 4_000.0).abs() < 50.0, "{ns}");
    }

    #[test]
    fn a_tier_that_grows_slow_is_slow_within_a_few_windows_however_long_it_was_quick() {
        let mut tier = Latency::default();
        let (mut faults, mut total) = (1_000_000, 5_000_000_000);
        tier.observe(faults, total, 5_000.0);
        for _ in 0..4 {
            faults += 500;
            total += 500 * 50_000;
            tier.observe(faults, total, 5_000.0);
        }
        let slow = tier.observe(faults, total, 5_000.0);
        assert!(slow > 47_000.0, "{slow}: half the way in each of four windows");
        // In a window without faults nothing is forgotten, and few of them say little.
        assert_eq!(tier.observe(faults, total, 5_000.0), slow);
        let after = tier.observe(faults + 5, total + 5 * 5_000, 5_000.0);
        assert!((after - slow).abs() < 0.02 * slow, "{after}");
        // Another runtime's counters begin anew.
        assert_eq!(tier.observe(0, 0, 7_000.0), 7_000.0);
    }

    #[test]
    fn a_tier_that_was_slow_once_is_given_another_chance() {
        let mut tier = Latency::default();
        let (faults, total) = (1_000, 1_000 * 131_000);
        let slow = tier.observe(faults, total, 30_000.0);
        assert!(slow > 120_000.0, "{slow}");
        for _ in 0..QUIET_WINDOWS {
            assert_eq!(tier.observe(faults, total, 30_000.0), slow, "for a while it is believed");
        }
        let mut before = slow;
        for _ in 0..60 {
            let ns = tier.observe(faults, total, 30_000.0);
            assert!(ns < before && ns > 30_000.0, "{ns}");
            before = ns;
        }
        assert!(before < 30_500.0, "{before}");
        // And what is measured then counts as after a first estimate.
        let ns = tier.observe(faults + 100, total + 100 * 50_000, 30_000.0);
        assert!((39_000.0..41_000.0).contains(&ns), "{ns}");
    }
}
