//! What came back of a region stays at home while it is used again.
//!
//! Some pages of a region that is cold otherwise are in use in every window. They come back, cool,
//! go down with the others that came back, and are home a window later, over and over. Hotness
//! cannot tell, for it takes all pages of a region to be alike; but what came back lately is asked
//! by samples of its own, and says how likely one of these pages is touched in a window.
//!
//! At home a page costs its place in DRAM, in each window. In the tier it costs a fault and its way
//! down again, each time it is touched. If that is dearer, all that came back of the region waits.
//! What a fault costs hangs on what time is worth, and that on how much of it there is: where the
//! budget is not spent only what is used in nearly every window is left at home, where it is dear
//! also what is used in every tenth. A page that came back for once waits along with the others;
//! with more and more of these what is at home is used less, until all of it goes down.
//!
//! How long pages stay that are all alike is another matter: in the end they cost as much for what
//! they save however long that is.

use crate::plan::{RegionChoices, RegionView};

/// Windows after which what came back goes down all the same: what has waited for longer than
/// movers leave it alone is not asked any more, and may not be in use by then.
const WINDOWS_MAX: u8 = 31;

/// So many times dearer than its place coming back must be: how much is used is told by few
/// samples, and what is used about as much as pays may as well go.
const CLEARLY: f64 = 1.5;

/// Share of the way that the usual price follows that of a plan, as a ratio: prices are those of
/// the last bit of a budget, and jump.
const FOLLOWS: f64 = 0.25;

/// What time is worth to one application, and what follows for its pages.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Stay {
    /// Usual price of time, in US dollars a month for a nanosecond in every window; 0 before the
    /// first plan that had one.
    usd_per_ns: f64,
}

impl Stay {
    /// Before anything is known of what time is worth: nothing stays.
    pub(in crate::plan) const NEVER: Stay = Stay { usd_per_ns: 0.0 };

    /// Takes in what time is worth to a plan.
    pub(super) fn learn(&mut self, usd_per_ns: f64) {
        if !(usd_per_ns.is_finite() && usd_per_ns > 0.0) {
            return;
        }
        self.usd_per_ns = match self.usd_per_ns {
            0.0 => usd_per_ns,
            usual => usual * (usd_per_ns / usual).powf(FOLLOWS),
        };
    }

    /// The usual price, if there is one.
    pub(in crate::plan) fn usd_per_ns(&self) -> Option<f64> {
        (self.usd_per_ns > 0.0).then_some(self.usd_per_ns)
    }

    /// Whether what came back of an item stays at home for now, which is in tier `option`.
    pub(in crate::plan) fn holds(
        &self,
        region: &RegionView,
        choices: &RegionChoices,
        item: usize,
        option: usize,
    ) -> bool {
        let Some(used) = region.used_again.filter(|_| self.usd_per_ns > 0.0) else { return false };
        let pays_after = choices.pays_after_windows(item, option, self.usd_per_ns);
        f64::from(used) * pays_after > CLEARLY && region.since_down_windows < WINDOWS_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::{TierCost, PAGES_PER_GIB};
    use crate::plan::fixtures::region;
    use crate::plan::{Expected, Model};

    /// Of a region in a tier of half the price, a dollar a page and month, and faults of 10 us.
    fn holds(usd_per_ns: f64, used_again: Option<f32>, since_down_windows: u8) -> bool {
        let mut stay = Stay::NEVER;
        stay.learn(usd_per_ns);
        let dram = TierCost::dram(PAGES_PER_GIB);
        let tiers = [dram, TierCost { fault_ns: 10_000.0, ratio: 0.5, ..dram }];
        let regions = [RegionView { used_again, since_down_windows, ..region(0, 0.0, 1, 0) }];
        let expected = [Expected { back: 0.0, faults: 0.0 }];
        let choices = RegionChoices::new(&regions, &[0], &[1], &expected, &tiers, Model::PAPER);
        stay.holds(&regions[0], &choices, 0, 1)
    }

    #[test]
    fn it_stays_where_coming_back_costs_more_than_its_place() {
        // A fault costs two dollars, its place half of one: it pays from a use in four windows on,
        // and clearly from three in eight.
        assert!(holds(2e-4, Some(0.38), 0));
        assert!(!holds(2e-4, Some(0.37), 0));
        // Cheaper time, dearer time.
        assert!(!holds(7e-5, Some(1.0), 0) && holds(8e-5, Some(1.0), 0));
        assert!(holds(1e-3, Some(0.08), 0));
        // Nothing is known, or time has no price, or it has waited for long.
        assert!(!holds(1.0, None, 0));
        assert!(!holds(0.0, Some(1.0), 0));
        assert!(holds(2e-4, Some(1.0), 30) && !holds(2e-4, Some(1.0), 31));
    }

    #[test]
    fn the_usual_price_follows_slowly_and_what_is_no_price_not_at_all() {
        let mut stay = Stay::NEVER;
        stay.learn(1e-4);
        stay.learn(16e-4);
        assert!((stay.usd_per_ns - 2e-4).abs() < 1e-12);
        for none in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            stay.learn(none);
        }
        assert!((stay.usd_per_ns - 2e-4).abs() < 1e-12);
    }
}
