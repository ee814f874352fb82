//! The torture policy: no policy for production, but the hardest one for the runtime.
//!
//! Every region with pages at home goes down, to a tier drawn at random; one that is down already
//! goes to another tier, or home, now and then. Moves come in random order. Nothing is asked but
//! the seed and how many windows there were, so that a run can be had again (as far as the
//! application repeats itself).

use super::{Plan, Policy, RegionView, Why};
use crate::cost::TierCost;
use crate::tier::{TierId, MAX_TIERS};

/// A region goes home instead of down once in this many windows.
const HOME_ONE_IN: u64 = 8;
/// A region that is down, all of it, changes its tier once in this many windows.
const CHANGE_ONE_IN: u64 = 4;

/// The policy; see the head of the file.
#[derive(Clone, Debug)]
pub struct Torture {
    seed: u64,
    windows: u64,
}

impl Torture {
    /// A policy that draws from `seed`.
    pub fn new(seed: u64) -> Torture {
        Torture { seed, windows: 0 }
    }
}

impl Policy for Torture {
    fn plan(&mut self, regions: &[RegionView], tiers: &[TierCost]) -> Plan {
        let tiers = &tiers[..tiers.len().min(MAX_TIERS)];
        self.windows += 1;
        if regions.is_empty() || tiers.len() < 2 {
            return Plan::empty(regions, tiers, Why::NothingToPlan);
        }
        let window = mix(self.seed ^ mix(self.windows));
        let drawn = |region: &RegionView| mix(window ^ region.id);
        let compressed = (tiers.len() - 1) as u64;
        let to: Vec<u8> = regions
            .iter()
            .map(|region| {
                let luck = drawn(region);
                let any_tier = 1 + (luck >> 32) % compressed;
                let is_all_down = region.tier != TierId::DRAM && region.resident == 0;
                if luck.is_multiple_of(HOME_ONE_IN) {
                    TierId::DRAM.0
                } else if is_all_down && !(luck >> 8).is_multiple_of(CHANGE_ONE_IN) {
                    region.tier_index(tiers)
                } else {
                    any_tier as u8
                }
            })
            .collect();
        let mut plan = Plan::to_tiers(regions, tiers, &to, Why::Torture { seed: self.seed });
        plan.moves.sort_unstable_by_key(|m| (mix(window.rotate_left(32) ^ m.id), m.id));
        plan
    }
}

/// The mixer of splitmix64: a bijection that changes about half of all bits for each one of `v`.
/// Public for those who draw from the same seed elsewhere.
pub fn mix(v: u64) -> u64 {
    let v = v.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let v = (v ^ (v >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let v = (v ^ (v >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    v ^ (v >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tiers(count: usize) -> Vec<TierCost> {
        vec![TierCost::dram(1.0); count]
    }

    fn region(id: u64, tier: u8, resident: u32) -> RegionView {
        RegionView { pages: 512, resident, ..RegionView::at(id, TierId(tier)) }
    }

    #[test]
    fn nearly_everything_at_home_goes_down_at_once_to_every_tier() {
        let regions: Vec<_> = (0..800).map(|i| region(i << 21, 0, 512)).collect();
        let plan = Torture::new(7).plan(&regions, &tiers(5));
        let stays = regions.len() - plan.moves.len();
        assert!((60..140).contains(&stays), "an eighth stays, not {stays}");
        assert!(plan.recommended[1..5].iter().all(|&pages| pages > 100 * 512));
        let in_order = plan.moves.is_sorted_by_key(|m| m.region);
        assert!(!in_order, "moves come in random order");
    }

    #[test]
    fn what_is_down_is_moved_on_and_home_now_and_then() {
        let regions: Vec<_> = (0..800).map(|i| region(i << 21, 1, 0)).collect();
        let mut policy = Torture::new(7);
        let plan = policy.plan(&regions, &tiers(3));
        let home = plan.moves.iter().filter(|m| m.to == TierId::DRAM).count();
        assert!((60..140).contains(&home), "{home}");
        // A quarter of the rest draws a tier again, which half of the time is another.
        assert!((50..140).contains(&(plan.moves.len() - home)), "{}", plan.moves.len());
        // What came back goes down again, unless it is sent home.
        let back = [region(1 << 21, 1, 1)];
        let again = (0..50).filter(|_| !policy.plan(&back, &tiers(3)).moves.is_empty()).count();
        assert_eq!(again, 50);
    }

    #[test]
    fn the_same_seed_gives_the_same_plans_and_windows_differ() {
        let regions: Vec<_> = (0..50).map(|i| region(i << 21, (i % 3) as u8, 512)).collect();
        let plans = |seed| {
            let mut policy = Torture::new(seed);
            [policy.plan(&regions, &tiers(4)), policy.plan(&regions, &tiers(4))]
        };
        assert_eq!(plans(1), plans(1));
        assert_ne!(plans(1)[0].moves, plans(2)[0].moves);
        assert_ne!(plans(1)[0].moves, plans(1)[1].moves);
    }

    #[test]
    fn without_tiers_or_regions_there_is_no_plan() {
        let regions = [region(0, 3, 0)];
        assert!(Torture::new(1).plan(&regions, &tiers(1)).moves.is_empty());
        assert!(Torture::new(1).plan(&[], &tiers(4)).moves.is_empty());
        // A tier that is no longer there.
        for m in &Torture::new(1).plan(&regions, &tiers(2)).moves {
            assert!(m.to.0 <= 1);
        }
    }
}
