//! What the placement really was worth: what it saved and what its faults cost, over and over.
//!
//! A plan asks that lost time saves a share of the money ([`super::WORTH_ON_AVERAGE`]), by what it
//! expects of regions. Where all regions look colder than they are, because chance hides what is in
//! use, every plan is worth its while and what comes of it never is: a program that reads its
//! memory at random lost 5 % for 0.7 % saved, for good, since what is brought home for it is always
//! replaced by what looks better.
//!
//! So periods of some windows are judged by what was measured in them. After one that was not worth
//! it the plans must expect twice as much of lost time, and twice as much again, until what they do
//! is worth it or nothing is left to do. After some periods without complaint it is tried with
//! half of that; the more often that was in vain, the later.
//!
//! Moves do not count: they are made once, and what they are for comes later.

use crate::cost::TierCost;
use crate::plan::RegionView;
use crate::tier::TierId;

/// Windows that are judged together.
const PERIOD_WINDOWS: u32 = 16;
/// Time in faults, as a share of the running time, that needs no excuse.
const LITTLE: f64 = 0.005;
/// The most that is demanded, times what is demanded otherwise.
const DEMAND_MAX: f64 = 64.0;
/// Periods without complaint after which less is demanded; twice as many after each time that this
/// was in vain, up to so many.
const PATIENCE: u32 = 2;
const PATIENCE_MAX: u32 = 64;

/// What is known of one application.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Worth {
    /// Of the windows of this period: how many, the money saved in them as a share of all, and the
    /// time lost in faults as a share of the running time, added up.
    windows: u32,
    saved: f64,
    lost: f64,
    demand: f64,
    /// Periods without complaint since that changed, and how many it takes to change it.
    quiet: u32,
    patience: u32,
    /// Whether less is demanded than the last time that there was a complaint.
    is_trial: bool,
}

impl Default for Worth {
    fn default() -> Worth {
        Worth {
            windows: 0,
            saved: 0.0,
            lost: 0.0,
            demand: 1.0,
            quiet: 0,
            patience: PATIENCE,
            is_trial: false,
        }
    }
}

impl Worth {
    /// What is to be expected of lost time, times what is asked otherwise: 1 to 64.
    pub(super) fn demand(&self) -> f64 {
        self.demand
    }

    /// Whether what was done was not worth it of late.
    pub(super) fn is_doubted(&self) -> bool {
        self.demand > 1.0
    }

    /// Takes in a window with so many faults from tiers. `least` is what lost time must save, share
    /// by share.
    pub(super) fn learn(
        &mut self,
        regions: &[RegionView],
        tiers: &[TierCost],
        (running_ns, faults): (f64, f64),
        least: f64,
    ) {
        let (mut saved, mut pages) = (0.0, 0.0);
        let (mut touched, mut would_take_ns) = (0.0, 0.0);
        let dram_usd = tiers[0].usd_per_page_month();
        for region in regions {
            pages += f64::from(region.pages);
            let Some(tier) = tiers.get(region.tier.index()).filter(|_| region.tier != TierId::DRAM)
            else {
                continue;
            };
            let stored = f64::from(region.pages.saturating_sub(region.resident));
            let ratio = region.ratios.get(region.tier.index()).unwrap_or(tier.ratio);
            let usd = TierCost { ratio, ..*tier }.usd_per_page_month();
            saved += stored * (1.0 - usd / dram_usd);
            touched += f64::from(region.newest);
            would_take_ns += f64::from(region.newest) * tier.fault_ns;
        }
        if pages > 0.0 && running_ns > 0.0 {
            let each_ns = if touched > 0.0 { would_take_ns / touched } else { 0.0 };
            self.note(saved / pages, faults * each_ns / running_ns, least);
        }
    }

    /// A window that saved such a share of the money and lost such a share of the time.
    fn note(&mut self, saved: f64, lost: f64, least: f64) {
        if !(saved.is_finite() && lost.is_finite()) {
            return;
        }
        self.windows += 1;
        self.saved += saved;
        self.lost += lost;
        if self.windows < PERIOD_WINDOWS {
            return;
        }
        let is_little = self.lost < LITTLE * f64::from(self.windows);
        if !is_little && self.saved < least * self.lost {
            if self.is_trial {
                self.patience = (2 * self.patience).min(PATIENCE_MAX);
            }
            self.demand = (2.0 * self.demand).min(DEMAND_MAX);
            (self.quiet, self.is_trial) = (0, false);
        } else {
            self.quiet += 1;
            if self.quiet >= self.patience && self.demand > 1.0 {
                self.demand /= 2.0;
                (self.quiet, self.is_trial) = (0, true);
            }
        }
        (self.windows, self.saved, self.lost) = (0, 0.0, 0.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::fixtures::region;

    /// Periods of windows that save and lose these shares; what is demanded after each.
    fn after(worth: &mut Worth, periods: u32, saved: f64, lost: f64) -> Vec<f64> {
        let period = |_| {
            (0..PERIOD_WINDOWS).for_each(|_| worth.note(saved, lost, 0.5));
            worth.demand()
        };
        (0..periods).map(period).collect()
    }

    #[test]
    fn what_is_not_worth_it_is_demanded_more_of_until_it_is() {
        let mut worth = Worth::default();
        assert_eq!(after(&mut worth, 100, 0.03, 0.05), [1.0; 100], "0.6 of what is lost");
        assert_eq!(after(&mut worth, 100, -0.01, 0.004), [1.0; 100], "next to nothing is lost");
        assert_eq!(after(&mut worth, 8, 0.02, 0.05), [2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 64.0, 64.0]);
        // It is tried with less, later and later.
        assert_eq!(after(&mut worth, 3, 0.02, 0.03), [64.0, 32.0, 32.0]);
        assert_eq!(after(&mut worth, 1, 0.0, 0.05), [64.0]);
        assert_eq!(after(&mut worth, 5, 0.0, 0.0), [64.0, 64.0, 64.0, 32.0, 32.0]);
        assert_eq!(after(&mut worth, 9, 0.0, 0.05)[8], 64.0);
        assert_eq!(after(&mut worth, 4, 0.0, 0.0), [64.0; 4]);
        // What is worth it has its way in the end.
        assert_eq!(after(&mut worth, 100, 0.2, 0.05)[99], 1.0);
        worth.note(f64::NAN, f64::INFINITY, 0.5);
        assert_eq!(worth.windows, 0);
    }

    #[test]
    fn what_is_stored_saves_and_what_faulted_lost() {
        let dram = TierCost::dram(0.30);
        let tier = TierCost { fault_ns: 1e5, ratio: 0.5, ..dram };
        let mut own = RegionView { newest: 12.0, ..region(1 << 21, 5.0, 1, 12) };
        own.ratios.set(1, 0.25);
        let home = RegionView { newest: 99.0, ..region(2 << 21, 5.0, 0, 512) };
        let mut worth = Worth::default();
        worth.learn(&[own, home], &[dram, tier], (1e9, 20.0), 0.5);
        assert!((worth.saved - 500.0 * 0.75 / 1024.0).abs() < 1e-9, "{worth:?}");
        assert!((worth.lost - 20.0 * 1e5 / 1e9).abs() < 1e-12, "{worth:?}");
        // Nothing measured is no window.
        worth.learn(&[own], &[dram, tier], (0.0, 20.0), 0.5);
        worth.learn(&[], &[dram, tier], (1e9, 20.0), 0.5);
        assert_eq!(worth.windows, 1);
    }
}
