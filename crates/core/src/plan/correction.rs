//! The correction of expected faults: `k_y` of equation 8, which the paper fixes at 1.
//!
//! Hotness says how many pages of a region are touched; how many faults come of that depends on the
//! application: pages that come along with a neighbour never fault, samples miss what is touched
//! rarely, and a program may touch in the next window what it left alone in four. One factor for
//! each application, learnt from the faults that came for those that were expected, takes in all of
//! it. It rises as fast as it must, because too many faults break a promise, and falls slowly.

/// Range of the factor.
const MIN: f64 = 0.25;
const MAX: f64 = 16.0;
/// Most that it grows in a window.
const RISE: f64 = 2.0;
/// So many times more faults than expected, once, are an event (everything was read, other data
/// became popular) and say nothing of how wrong expectations are. Twice in a row they do.
const EVENT: f64 = 4.0;
/// Share of the way that it falls in a window.
const FALL: f64 = 0.25;
/// Within this factor of it faults are scattered by chance; it follows their mean by this share of
/// the way. A plan that followed every window would never come to rest.
const SCATTER: f64 = 1.25;
const NEAR: f64 = 0.125;
/// Faults in a window below which their number says nothing.
pub(super) const FAULTS_MIN: f64 = 64.0;

/// The factor of one application.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Correction {
    k: f64,
    /// Faults that the last plan expected, uncorrected.
    expected: Option<f64>,
    /// Whether fewer faults than that say anything: not while much is still to be moved.
    is_settled: bool,
    /// Whether the last window had far more faults than that.
    is_event: bool,
}

impl Default for Correction {
    fn default() -> Correction {
        Correction { k: 1.0, expected: None, is_settled: false, is_event: false }
    }
}

impl Correction {
    /// Faults that come for each that is expected.
    pub(super) fn k(&self) -> f64 {
        self.k
    }

    /// Whether the last window had so many more faults than were expected that it says nothing of
    /// how wrong expectations are, or the second like that in a row.
    pub(super) fn is_event(&self) -> bool {
        self.is_event
    }

    /// Notes what a plan expects, uncorrected. `is_settled` is false if much of what it expects
    /// them of has not been moved there yet.
    pub(super) fn expect(&mut self, faults: f64, is_settled: bool) {
        (self.expected, self.is_settled) = (Some(faults), is_settled);
    }

    /// Takes in what came.
    pub(super) fn learn(&mut self, faults: f64) {
        let Some(expected) = self.expected.filter(|_| faults.is_finite()) else { return };
        let seen = (faults / expected.max(FAULTS_MIN)).clamp(MIN, MAX);
        let is_first = !self.is_event;
        self.is_event = seen > EVENT * self.k;
        if self.is_event && is_first {
            return;
        }
        if (self.k / SCATTER..self.k * SCATTER).contains(&seen) {
            if self.is_settled {
                self.k += (seen - self.k) * NEAR;
            }
        } else if seen > self.k {
            self.k = seen.min(RISE * self.k);
        } else if expected > FAULTS_MIN && self.is_settled {
            self.k += (seen - self.k) * FALL;
        } else {
            // Of few faults only that there is no reason to expect many.
            self.k += (1.0 - self.k).min(0.0) * FALL;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_rises_at_once_falls_slowly_and_stays_within_bounds() {
        let mut it = Correction::default();
        it.learn(1e6);
        assert_eq!(it.k(), 1.0, "nothing was expected yet");
        it.expect(1_000.0, true);
        it.learn(2_000.0);
        assert_eq!(it.k(), 2.0);
        it.learn(1e9);
        assert_eq!(it.k(), 2.0, "once is an event");
        it.learn(1e9);
        assert_eq!(it.k(), 4.0, "doubled at most");
        (0..20).for_each(|_| it.learn(1e9));
        assert_eq!(it.k(), MAX);
        it.learn(1_000.0);
        assert_eq!(it.k(), MAX - (MAX - 1.0) * FALL);
        (0..200).for_each(|_| it.learn(0.0));
        assert!((it.k() - MIN).abs() < 1e-9);
        it.learn(f64::NAN);
        assert!((it.k() - MIN).abs() < 1e-9);
    }

    #[test]
    fn few_faults_say_nothing_while_there_is_much_to_move() {
        let mut it = Correction::default();
        it.expect(10_000.0, false);
        it.learn(100.0);
        assert_eq!(it.k(), 1.0);
        it.expect(10_000.0, true);
        it.learn(5_000.0);
        assert_eq!(it.k(), 0.875);
        // Nor do few that were expected, but a high factor does not outlive its reason.
        let mut it = Correction { k: 3.0, ..it };
        it.expect(5.0, true);
        it.learn(0.0);
        assert_eq!(it.k(), 2.5);
    }
}
