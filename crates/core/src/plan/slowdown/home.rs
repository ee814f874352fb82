//! Which regions come home of those that a plan would rather have there.
//!
//! Bringing a region home takes its time at once, and its faults come one by one. Where the budget
//! is kept a region comes home if one window of faults would cost more than that; else it stays,
//! because regions at the edge would go up and down with every change of what is measured, and what
//! is touched comes home by itself.
//!
//! Where windows lose more than is accepted over and over, or lose what they lose for nothing
//! ([`super::worth`]), that is not enough: faults that never cost a move in one window break every
//! budget. Then regions come home for which it pays within some windows, at a pace, those first
//! that it pays for soonest.

use super::pace::Down;
use super::{Model, Slowdown};
use crate::cost::TierCost;
use crate::plan::RegionView;
use crate::tier::TierId;

/// Weight of the newest window in what is usual of late, and how much more than is accepted one
/// window counts for at most: a single one that lost everything is no habit.
const HABIT_WEIGHT: f64 = 0.25;
const HABIT_OVER_MAX: f64 = 1.75;
/// Windows of faults that bringing a region home may cost where budgets are broken by habit.
const PAYS_WINDOWS: f64 = 8.0;
/// What that may take of a window, by what is accepted.
const PART: f64 = 0.5;

/// What windows lose of late by what is accepted.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub(super) struct Habit {
    over: f64,
}

impl Habit {
    /// A window lost `over` times what is accepted.
    pub(super) fn note(&mut self, over: f64) {
        if over.is_finite() {
            self.over += HABIT_WEIGHT * (over.min(HABIT_OVER_MAX) - self.over);
        }
    }

    /// Whether they lose clearly more than is accepted, over and over.
    pub(super) fn is_broken(&self) -> bool {
        self.over > super::BROKEN
    }
}

impl Slowdown {
    /// Leaves regions where they are for which coming home does not pay; see the head of the file.
    /// Not on a medium with a limit: the solver may have given their room to others.
    pub(super) fn leave_down(
        &self,
        regions: &[RegionView],
        tiers: &[TierCost],
        model: Model,
        down: &mut Down,
        choice: &mut [u8],
    ) {
        let pays_in_time = self.habit.is_broken() || self.worth.is_doubted();
        let Down { moves, left, .. } = down;
        moves.clear();
        left.clear();
        for (item, option) in choice.iter_mut().enumerate() {
            let here = self.current[item];
            let is_limited = || self.limits.iter().any(|limit| limit.counts(usize::from(here)));
            if *option != 0 || here == 0 || is_limited() {
                continue;
            }
            let region = &regions[self.known[item] as usize];
            let soon = self.soon[item];
            let tier = &tiers[usize::from(here)];
            let each_ns = tier.fault_ns + model.move_ns(tier);
            let stored = f64::from(region.pages_to_carry(TierId::DRAM));
            let window_ns = soon.faults * self.correction.k() * each_ns;
            let home_ns = stored * model.move_ns(&tiers[0]);
            if window_ns < home_ns {
                *option = here;
                left.push(item as u32);
                if pays_in_time && PAYS_WINDOWS * window_ns >= home_ns {
                    moves.push((window_ns / home_ns, item as u32));
                }
            }
        }
        moves.sort_unstable_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        let mut room_ns = PART * self.target * self.running_ns.unwrap_or(0.0);
        let mut is_first = true;
        for &(_, item) in moves.iter() {
            let region = &regions[self.known[item as usize] as usize];
            let stored = f64::from(region.pages_to_carry(TierId::DRAM));
            room_ns -= stored * model.move_ns(&tiers[0]);
            if room_ns < 0.0 && !is_first {
                break;
            }
            is_first = false;
            choice[item as usize] = 0;
        }
        left.retain(|&item| choice[item as usize] != 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::PAGES_PER_GIB;
    use crate::plan::fixtures::region;
    use crate::plan::{Measured, Plan, Policy};

    /// DRAM for a dollar a page and month, and a tier of half the price with faults of 70 us.
    fn tiers() -> [TierCost; 2] {
        let dram = TierCost { move_ns: 8_000.0, ..TierCost::dram(PAGES_PER_GIB) };
        [dram, TierCost { fault_ns: 70_000.0, ratio: 0.5, ..dram }]
    }

    /// Which of ten regions come home from a tier, region `n` with `faults + n` a window, if they
    /// broke the budget of 10 ms in so many windows, beside a busy machine.
    fn home(faults: u32, broken_windows: u32) -> Vec<u32> {
        let mut policy = Slowdown::new(0.05).with_residence(2.5);
        let of = |over: f64| Measured {
            running_ns: 2e8,
            stalled_ns: over * 1e7,
            contention: 1.0,
            faults: 30.0,
            ..Measured::default()
        };
        (0..10).for_each(|_| policy.learn(&of(1.0)));
        (0..broken_windows).for_each(|_| policy.learn(&of(2.0)));
        let at = |n: u32| {
            let hotness = (faults + n) as f32;
            let at = region(u64::from(n + 1) << 21, hotness, 1, 0);
            RegionView { newest: hotness, down_windows: 8, windows_seen: 40, ..at }
        };
        let regions: Vec<RegionView> = (0..10).map(at).collect();
        let plan: Plan = policy.plan(&regions, &tiers());
        plan.moves.iter().filter(|m| m.to == TierId::DRAM).map(|m| m.region).collect()
    }

    #[test]
    fn what_never_costs_a_move_in_one_window_comes_home_where_budgets_are_broken_by_habit() {
        // 20 faults cost 1.6 ms of 10, bringing their region home 4.1: there is time for four.
        assert_eq!(home(20, 0), []);
        assert_eq!(home(20, 1), [], "a single broken window is no habit");
        // At a pace: half of a budget, those first that cost most.
        assert_eq!(home(20, 6), [9]);
        // Faults that would not pay for it in eight windows stay faults.
        assert_eq!(home(2, 6), []);
        // Those that cost more in a window than bringing them home come at once, all of them.
        assert!(home(80, 0).len() > 5, "{:?}", home(80, 0));
    }

    #[test]
    fn a_single_window_that_loses_everything_is_no_habit() {
        let mut habit = Habit::default();
        (0..20).for_each(|_| habit.note(0.9));
        habit.note(20.0);
        assert!(!habit.is_broken());
        (0..6).for_each(|_| habit.note(1.4));
        assert!(habit.is_broken());
        habit.note(f64::NAN);
        (0..4).for_each(|_| habit.note(0.9));
        assert!(!habit.is_broken());
    }
}
