//! The two-tier policy: DRAM and one compressed tier, the baseline that TierScape is compared with
//! (section 7.1: 2T-C, 2T-M and 2T-A; there zsmalloc, lzo and DRAM, as in software-defined far
//! memory).
//!
//! Regions with a hotness below the threshold go to the tier; what faults back stays in DRAM until
//! it is cold again. The paper's thresholds are those that "cover around 15-20% (conservative),
//! 40-50% (moderate), and 70-80% (aggressive) of the application's data pages", the same as for its
//! waterfall: [`Threshold`]. Shares such as a quarter or three quarters are given as such.
//!
//! It is the waterfall with one step to fall, and is made of it.

use super::waterfall::goes_down_again;
use super::{Move, Plan, Policy, RegionView, Threshold, Waterfall, Why};
use crate::cost::TierCost;
use crate::tier::{TierId, MAX_TIERS};

/// The policy; see the head of the file.
#[derive(Clone, Debug)]
pub struct TwoTier {
    waterfall: Waterfall,
    tier: TierId,
}

impl TwoTier {
    /// The baseline with this threshold and this compressed tier; DRAM is taken for the first.
    pub fn new(threshold: Threshold, tier: TierId) -> TwoTier {
        TwoTier { waterfall: Waterfall::new(threshold), tier: tier.max(TierId(1)) }
    }
}

impl Policy for TwoTier {
    fn plan(&mut self, regions: &[RegionView], tiers: &[TierCost]) -> Plan {
        let tiers = &tiers[..tiers.len().min(MAX_TIERS)];
        let chosen = self.tier.index();
        if regions.is_empty() || chosen >= tiers.len() {
            return Plan::empty(regions, tiers, Why::NothingToPlan);
        }
        let near = |tier: TierId| TierId(u8::from(tier != TierId::DRAM));
        let two: Vec<RegionView> =
            regions.iter().map(|r| RegionView { tier: near(r.tier), ..*r }).collect();
        let mut plan = self.waterfall.plan(&two, &[tiers[0], tiers[chosen]]);

        let there = core::mem::take(&mut plan.recommended[1]);
        plan.recommended[chosen] = there;
        for step in &mut plan.moves {
            step.from = regions[step.region as usize].tier;
            step.to = if step.to == TierId::DRAM { TierId::DRAM } else { self.tier };
        }
        // What another configuration left in another tier goes to the one.
        let stays = |index: usize, moves: &[Move]| {
            moves.binary_search_by_key(&(index as u32), |step| step.region).is_err()
        };
        let mut strays: Vec<Move> = Vec::new();
        for (index, region) in regions.iter().enumerate() {
            let is_stray = region.tier != TierId::DRAM && region.tier != self.tier;
            if is_stray && region.pages > 0 && stays(index, &plan.moves) {
                let (id, from, to) = (region.id, region.tier, self.tier);
                strays.push(Move { region: index as u32, id, from, to });
            }
        }
        if let Why::Waterfall { hotness_max, cold, back, .. } = plan.why {
            // Those of which pages came back are moved for that already.
            let is_stray = |step: &&Move| {
                let is_home = regions[step.region as usize].is_back_in_dram();
                !is_home && step.from != TierId::DRAM && step.from != step.to
            };
            let cold = cold + (plan.moves.iter().filter(is_stray).count() + strays.len()) as u64;
            let again = plan.moves.iter().filter(|step| goes_down_again(step, regions)).count();
            let again = again as u64;
            plan.why = Why::TwoTier { tier: self.tier, hotness_max, cold, again, back };
        }
        plan.moves.append(&mut strays);
        plan.moves.sort_by_key(|step| step.region);
        plan
    }
}

#[cfg(test)]
mod tests {
    use super::super::fixtures::{region, tiers};
    use super::*;
    use proptest::prelude::*;

    fn steps(plan: &Plan) -> Vec<(u64, u8, u8)> {
        plan.moves.iter().map(|m| (m.id, m.from.0, m.to.0)).collect()
    }

    #[test]
    fn the_cold_quarter_goes_to_the_one_tier_and_rests() {
        let regions: Vec<_> = (0..8).map(|n| region(n, n as f32, 0, 512)).collect();
        let mut policy = TwoTier::new(Threshold::Share(0.25), TierId(2));
        let plan = policy.plan(&regions, &tiers(4));
        assert_eq!(steps(&plan), [(0, 0, 2), (1, 0, 2)]);
        assert_eq!(plan.recommended[..4], [6 * 512, 0, 2 * 512, 0]);
        // 6 * 4 and 2 * 4 / 3, in pages of a region.
        let region_usd = 512.0 * 4.0 / crate::cost::PAGES_PER_GIB;
        assert!((plan.expected_tco - region_usd * (6.0 + 2.0 / 3.0)).abs() < 1e-12);
        let why = Why::TwoTier { tier: TierId(2), hotness_max: 1.0, cold: 2, again: 0, back: 0 };
        assert_eq!(plan.why, why);
        let moved: Vec<_> =
            (0..8).map(|n| region(n, n as f32, if n < 2 { 2 } else { 0 }, 0)).collect();
        let moved: Vec<_> = moved
            .iter()
            .map(|r| RegionView { resident: if r.tier.0 == 0 { 512 } else { 0 }, ..*r })
            .collect();
        assert!(policy.plan(&moved, &tiers(4)).moves.is_empty());
    }

    #[test]
    fn the_papers_settings_are_the_waterfalls() {
        let regions: Vec<_> = (0..100).map(|n| region(n, n as f32, 0, 512)).collect();
        for (threshold, cold) in
            [(Threshold::CONSERVATIVE, 17), (Threshold::MODERATE, 45), (Threshold::AGGRESSIVE, 75)]
        {
            let plan = TwoTier::new(threshold, TierId(1)).plan(&regions, &tiers(3));
            assert_eq!(plan.recommended[1], cold * 512);
        }
    }

    #[test]
    fn what_comes_back_and_what_lies_elsewhere() {
        let regions = [
            region(0, 90.0, 1, 400), // mostly back and hot: DRAM
            region(1, 0.0, 1, 400),  // mostly back and cold: down again
            region(2, 0.0, 1, 3),    // three pages came back
            region(3, 0.0, 3, 0),    // of another configuration
            region(4, 0.0, 1, 0),    // at rest
        ];
        let plan = TwoTier::new(Threshold::Value(10.0), TierId(1)).plan(&regions, &tiers(4));
        assert_eq!(steps(&plan), [(0, 1, 0), (1, 1, 1), (2, 1, 1), (3, 3, 1)]);
        let tier = TierId(1);
        let why = Why::TwoTier { tier, hotness_max: 0.0, cold: 2, again: 1, back: 1 };
        assert_eq!(plan.why, why);
        let said = "2 regions at or below 0.0 pages a window go to compressed tier 1, 1 that are \
                    there go down again";
        assert!(why.to_string().starts_with(said), "{why}");
        let nothing = TwoTier::new(Threshold::Value(10.0), TierId(4)).plan(&regions, &tiers(4));
        assert_eq!((nothing.moves.len(), nothing.why), (0, Why::NothingToPlan));
    }

    proptest! {
        #[test]
        fn no_page_is_recommended_for_any_other_tier(
            regions in prop::collection::vec((0f32..600.0, 0u8..6, 0u32..513), 1..40),
            chosen in 0u8..7, share in 0f64..1.0,
        ) {
            let regions: Vec<_> = regions
                .iter()
                .enumerate()
                .map(|(n, &(hotness, tier, resident))| {
                    let resident = if tier == 0 { 512 } else { resident };
                    region(n as u64, hotness, tier, resident)
                })
                .collect();
            let mut policy = TwoTier::new(Threshold::Share(share), TierId(chosen));
            let plan = policy.plan(&regions, &tiers(6));
            let chosen = usize::from(chosen.max(1));
            if chosen < 6 {
                let all = 512 * regions.len() as u64;
                prop_assert_eq!(plan.recommended[0] + plan.recommended[chosen], all);
            }
            let allowed = |to: TierId| to == TierId::DRAM || to.index() == chosen;
            prop_assert!(plan.moves.iter().all(|step| allowed(step.to)));
            prop_assert!(plan.moves.is_sorted_by_key(|step| step.region));
            // Each of them is in the sentence once.
            if let Why::TwoTier { cold, again, back, .. } = plan.why {
                prop_assert_eq!(cold + again + back, plan.moves.len() as u64);
            }
        }
    }
}
