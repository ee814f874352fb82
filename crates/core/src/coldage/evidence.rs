//! How much may go down on what was seen so far.
//!
//! The paper counts every access; we watch 4 pages of 512. That none of them was touched means
//! little when few were watched, and a promotion histogram of zeros would send everything down at
//! once. So what is far is bounded by what it would cost at the highest touch rate that the
//! evidence leaves likely: with `h` touches in `n` page-windows of pages as old as the threshold,
//!
//! ```text
//! pages in far memory  <=  promotions meant for a window  x  (n + 1) / (h + 1)
//! ```
//!
//! Fewer are meant than are allowed: touches come at random, and if as many came on average as are
//! allowed at most, every other minute would break the limit ([`mean_within`]).
//!
//! Pages in far memory are evidence too, 512 page-windows a region and window instead of 4, so
//! that what begins as a trial of some regions is soon the rule, or is not. For a program with a
//! large working set the bound is never felt.

use super::histogram::AgeHistogram;
use super::region::Touched;
use super::threshold::ColdAge;

/// What a minute leaves of the evidence before it: most of it is of the last 20 minutes.
const KEPT_A_MINUTE: f64 = 0.95;

/// Standard deviations between the mean and the limit: exceeded by chance in one minute of 200. The
/// promise is one of 50; the rest is for what is not chance, such as a working set that shrinks.
const DEVIATIONS: f64 = 2.6;

/// What the square root takes from the mean of very small counts.
const FEW: f64 = 0.1;

/// The mean of promotions a minute of which more than `most` come in one minute of 200, if they
/// come independently: the square root of a Poisson count has a standard deviation of a half. One
/// page is always allowed for: a program that does nothing has no working set, and may be far
/// memory all the same.
pub fn mean_within(most: f64) -> f64 {
    let most = most.max(1.0).floor();
    ((most + 1.0).sqrt() - DEVIATIONS / 2.0).powi(2) + FEW
}

/// Page-windows seen, and touches in them, by age.
#[derive(Clone, Debug, Default)]
pub struct Evidence {
    seen: AgeHistogram,
    touched: AgeHistogram,
}

impl Evidence {
    /// Takes in what a window showed of a region.
    pub fn take(&mut self, touched: &Touched) {
        self.seen.add(touched.home_age, touched.watched);
        self.touched.add(touched.home_age, touched.hits);
        self.seen.add(touched.stored_age, touched.stored);
        self.touched.add(touched.stored_age, touched.faults);
    }

    /// Ends a minute.
    pub fn fade(&mut self) {
        self.seen.fade(KEPT_A_MINUTE);
        self.touched.fade(KEPT_A_MINUTE);
    }

    /// Most pages that may be in far memory under this threshold, where `meant` promotions in a
    /// window are.
    pub fn pages_max(&self, threshold: ColdAge, meant: f64) -> f64 {
        let Some(age) = threshold.periods() else { return 0.0 };
        meant * (self.seen.at_least(age) + 1.0) / (self.touched.at_least(age) + 1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The exact quantiles, summed up.
    #[test]
    fn means_keep_199_of_200_minutes_within() {
        for most in [1u32, 2, 4, 12, 50, 100, 400] {
            let mean = mean_within(f64::from(most));
            let (mut term, mut within) = ((-mean).exp(), 0.0);
            for n in 1..=most + 1 {
                within += term;
                term *= mean / f64::from(n);
            }
            assert!((0.993..0.9999).contains(&within), "{most}: {mean} {within}");
        }
        assert_eq!(mean_within(0.0), mean_within(1.9));
    }

    #[test]
    fn by_hand() {
        let mut evidence = Evidence::default();
        let at = |home_age| Touched { home_age, watched: 4.0, ..Touched::default() };
        (1..=10).for_each(|age| evidence.take(&at(age)));
        // Of ages 6 to 10: 20 page-windows, no touch. Half a page a window allowed: 10.5 pages.
        assert_eq!(evidence.pages_max(ColdAge::Periods(6), 0.5), 10.5);
        assert_eq!(evidence.pages_max(ColdAge::Never, 1e9), 0.0);
        // A window of 512 stored pages with one fault: 533 page-windows, 1 touch.
        let stored = Touched { stored_age: 8, stored: 512.0, faults: 1.0, ..Touched::default() };
        evidence.take(&stored);
        assert_eq!(evidence.pages_max(ColdAge::Periods(6), 0.5), 0.5 * 533.0 / 2.0);
        // None of it is that old.
        assert_eq!(evidence.pages_max(ColdAge::Periods(11), 0.5), 0.5);
        evidence.fade();
        assert!((evidence.pages_max(ColdAge::Periods(11), 0.5) - 0.5).abs() < 1e-12);
        assert!(evidence.pages_max(ColdAge::Periods(6), 0.5) < 0.5 * 533.0 / 2.0);
    }
}
