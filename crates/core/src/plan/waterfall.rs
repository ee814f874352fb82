//! The waterfall policy (TierScape, section 5.1): cold regions leave DRAM for the first tier, and
//! every window that a region stays untouched it falls one tier further, to the last.
//!
//! It needs no prices and forgives a wrong hotness, because the first tier is the quick one; it
//! takes a window per tier to reach the cheap end. One number steers it, the threshold, given
//! either as hotness or as the share of the data that shall be down. A share is what section 7.1
//! reports (15-20 %, 40-50 %, 70-80 %) and, unlike a hotness, means the same for every program.
//!
//! The share counts what is down already. With 40 % down and a share of 45 % only another 5 % are
//! sent; when regions fault back, the coldest in DRAM take their place. With more than the share
//! down, nothing is promoted: coming back is decided by the program's own faults.

use super::{Move, Plan, Policy, RegionView, Why};
use crate::cost::TierCost;
use crate::tier::{TierId, MAX_TIERS};

/// Which regions in DRAM count as cold.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Threshold {
    /// Those with hotness below this, in distinct pages per window (`H_th` of the paper).
    Value(f32),
    /// The coldest, until this share (0 to 1) of all data is demoted. Never more than the share.
    Share(f64),
}

impl Threshold {
    /// 17.5 % of the data, the middle of the paper's 15-20 % (section 7.1).
    pub const CONSERVATIVE: Threshold = Threshold::Share(0.175);
    /// 45 % of the data, the middle of the paper's 40-50 %.
    pub const MODERATE: Threshold = Threshold::Share(0.45);
    /// 75 % of the data, the middle of the paper's 70-80 %.
    pub const AGGRESSIVE: Threshold = Threshold::Share(0.75);
}

/// The policy; see the head of the file.
#[derive(Clone, Debug)]
pub struct Waterfall {
    threshold: Threshold,
    /// Candidates of one plan, kept to save the allocation.
    candidates: Vec<u32>,
}

impl Waterfall {
    /// A waterfall with this threshold.
    pub fn new(threshold: Threshold) -> Waterfall {
        Waterfall { threshold, candidates: Vec::new() }
    }

    /// The threshold in use.
    pub fn threshold(&self) -> Threshold {
        self.threshold
    }

    /// Sorts the candidates, coldest first, and cuts off those that are not cold. `down` pages of
    /// `all` are demoted without them.
    fn cut(&mut self, regions: &[RegionView], mut down: u64, all: u64) {
        let of = |index: u32| &regions[index as usize];
        self.candidates.sort_unstable_by(|&a, &b| {
            let (a, b) = (of(a), of(b));
            a.hotness_usable().total_cmp(&b.hotness_usable()).then(a.id.cmp(&b.id))
        });
        let cold = match self.threshold {
            Threshold::Value(limit) => {
                self.candidates.partition_point(|&index| of(index).hotness_usable() < limit)
            }
            Threshold::Share(share) => {
                let target = share * all as f64;
                let fits = |&index: &u32| {
                    down += u64::from(of(index).pages);
                    down as f64 <= target
                };
                self.candidates.iter().copied().take_while(fits).count()
            }
        };
        self.candidates.truncate(cold);
    }
}

/// Whether a move only takes down again what came back of a region that stays in its tier.
pub(super) fn goes_down_again(step: &Move, regions: &[RegionView]) -> bool {
    step.from == step.to && !regions[step.region as usize].is_back_in_dram()
}

impl Policy for Waterfall {
    fn plan(&mut self, regions: &[RegionView], tiers: &[TierCost]) -> Plan {
        let tiers = &tiers[..tiers.len().min(MAX_TIERS)];
        if regions.is_empty() || tiers.len() < 2 {
            return Plan::empty(regions, tiers, Why::NothingToPlan);
        }
        let last = (tiers.len() - 1) as u8;
        let mut to = Vec::with_capacity(regions.len());
        let (mut down, mut all) = (0, 0);
        let (mut further, mut back) = (0, 0);
        self.candidates.clear();
        for (index, region) in regions.iter().enumerate() {
            let pages = u64::from(region.pages);
            all += pages;
            let in_dram = region.tier == TierId::DRAM || region.is_back_in_dram();
            if !in_dram {
                let tier = region.tier_index(tiers);
                down += pages;
                further += u64::from(tier < last);
                to.push((tier + 1).min(last));
                continue;
            }
            to.push(TierId::DRAM.0);
            if region.is_known() {
                self.candidates.push(index as u32);
            }
            back += u64::from(region.tier != TierId::DRAM);
        }

        self.cut(regions, down, all);
        let mut hotness_max = 0.0f32;
        for &index in &self.candidates {
            let region = &regions[index as usize];
            to[index as usize] = 1;
            hotness_max = hotness_max.max(region.hotness_usable());
            back -= u64::from(region.tier != TierId::DRAM);
        }
        let cold = self.candidates.len() as u64;
        let mut plan = Plan::to_tiers(regions, tiers, &to, Why::NothingToPlan);
        let again = plan.moves.iter().filter(|step| goes_down_again(step, regions)).count() as u64;
        plan.why = Why::Waterfall { hotness_max, cold, further, again, back };
        plan
    }
}

#[cfg(test)]
mod tests {
    use super::super::fixtures::{region, tiers};
    use super::*;
    use proptest::prelude::*;

    fn moves(plan: &Plan) -> Vec<(u64, u8, u8)> {
        plan.moves.iter().map(|m| (m.id, m.from.0, m.to.0)).collect()
    }

    #[test]
    fn a_cold_region_falls_a_tier_a_window_and_rests_in_the_last() {
        let mut policy = Waterfall::new(Threshold::Value(10.0));
        let mut region = region(1, 3.0, 0, 512);
        let mut journey = Vec::new();
        for _ in 0..5 {
            let plan = policy.plan(&[region], &tiers(4));
            for step in &plan.moves {
                region.tier = step.to;
                region.resident = 0;
            }
            journey.push(region.tier.0);
        }
        assert_eq!(journey, [1, 2, 3, 3, 3]);
        assert!(policy.plan(&[region], &tiers(4)).moves.is_empty());
    }

    #[test]
    fn half_back_keeps_falling_and_more_than_half_starts_again() {
        let mut policy = Waterfall::new(Threshold::Value(10.0));
        let regions = [
            region(1, 300.0, 1, 256), // half: goes on to T2 all the same
            region(2, 300.0, 2, 257), // more than half and hot: back to DRAM
            region(3, 3.0, 2, 257),   // more than half and cold: starts again from T1
            region(4, 300.0, 3, 1),   // last tier, one page came back: demoted again
        ];
        let plan = policy.plan(&regions, &tiers(4));
        assert_eq!(moves(&plan), [(1, 1, 2), (2, 2, 0), (3, 2, 1), (4, 3, 3)]);
        let why = Why::Waterfall { hotness_max: 3.0, cold: 1, further: 1, again: 1, back: 1 };
        assert_eq!(plan.why, why);
        // Every move is in the sentence, and no tier by a name that no table has.
        assert_eq!(
            why.to_string(),
            "1 regions at or below 3.0 pages a window go to the first tier, 1 that stayed \
             untouched go one tier further, 1 in the last go down again with what came back, 1 in \
             use again return to DRAM"
        );
    }

    #[test]
    fn share_counts_what_is_already_down() {
        // 10 regions, 4 in T1 untouched. A share of 60 % has room for two more: the coldest.
        let mut regions: Vec<_> = (0..6).map(|i| region(i, 60.0 - i as f32, 0, 512)).collect();
        regions.extend((6..10).map(|i| region(i, 0.0, 1, 0)));
        let plan = Waterfall::new(Threshold::Share(0.6)).plan(&regions, &tiers(3));
        let cold: Vec<u64> = plan.moves.iter().filter(|m| m.to.0 == 1).map(|m| m.id).collect();
        assert_eq!(cold, [4, 5]);
        // 30 % wants fewer than are down: nobody follows, and nobody is brought back.
        let plan = Waterfall::new(Threshold::Share(0.3)).plan(&regions, &tiers(3));
        assert_eq!(plan.recommended[..3], [6 * 512, 0, 4 * 512]);
    }

    #[test]
    fn unknown_regions_stay_where_they_are() {
        let new = RegionView { windows_seen: 0, ..region(1, 0.0, 0, 512) };
        let plan = Waterfall::new(Threshold::AGGRESSIVE).plan(&[new], &tiers(3));
        assert!(plan.moves.is_empty());
        assert_eq!(
            Waterfall::new(Threshold::MODERATE).plan(&[new], &tiers(1)).why,
            Why::NothingToPlan
        );
    }

    prop_compose! {
        fn any_region()(
            pages in 0u32..513, resident in 0u32..513, tier in 0u8..6, hotness in 0f32..600.0,
            windows_seen in 0u8..6,
        ) -> RegionView {
            let resident = if tier == 0 { pages } else { resident.min(pages) };
            let view = RegionView::at(0, TierId(tier));
            RegionView { pages, resident, hotness, windows_seen, ..view }
        }
    }

    proptest! {
        #[test]
        fn share_is_kept_and_only_the_coldest_go(
            mut regions in prop::collection::vec(any_region(), 1..60), share in 0.0f64..1.0,
        ) {
            for (index, region) in regions.iter_mut().enumerate() {
                region.id = index as u64;
            }
            let tiers = tiers(6);
            let plan = Waterfall::new(Threshold::Share(share)).plan(&regions, &tiers);
            let all: u64 = regions.iter().map(|r| u64::from(r.pages)).sum();
            prop_assert_eq!(plan.recommended.iter().sum::<u64>(), all);

            let in_dram = |r: &RegionView| r.tier == TierId::DRAM || r.is_back_in_dram();
            let was_down: u64 =
                regions.iter().filter(|r| !in_dram(r)).map(|r| u64::from(r.pages)).sum();
            let down = all - plan.recommended[0];
            prop_assert!(down == was_down || down as f64 <= share * all as f64);

            let dest = |index: usize| {
                plan.moves.iter().find(|m| m.region as usize == index).map_or(
                    regions[index].tier, |m| m.to)
            };
            for (i, a) in regions.iter().enumerate().filter(|(_, r)| in_dram(r) && r.pages > 0) {
                prop_assert!(dest(i).0 <= 1);
                for (j, b) in regions.iter().enumerate().filter(|(_, r)| in_dram(r)) {
                    if dest(i).0 == 1 && b.is_known() && b.hotness_usable() < a.hotness_usable() {
                        prop_assert_eq!(dest(j).0, 1, "{} is colder than {}", j, i);
                    }
                }
            }
            let down = |r: &RegionView| !in_dram(r) && r.pages > 0;
            for (i, region) in regions.iter().enumerate().filter(|(_, r)| down(r))
            {
                prop_assert_eq!(dest(i).0, (region.tier.0 + 1).min(5));
            }
        }

        #[test]
        fn a_higher_threshold_never_keeps_more_in_dram(
            regions in prop::collection::vec(any_region(), 1..60), low in 0f32..500.0,
            more in 0f32..200.0,
        ) {
            let tiers = tiers(6);
            let a = Waterfall::new(Threshold::Value(low)).plan(&regions, &tiers);
            let b = Waterfall::new(Threshold::Value(low + more)).plan(&regions, &tiers);
            prop_assert!(b.recommended[0] <= a.recommended[0]);
        }
    }
}
