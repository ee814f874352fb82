//! Exchanges: a region in a tier comes home, and another one goes down in its place.
//!
//! What a region in a tier costs is known: each touch of what is stored is a fault. What one at
//! home would cost is guessed from a few samples, and the lowest of many guesses is too low
//! ([`super::hidden`]). Where regions are alike, those at home that chance has hidden look better
//! than the ones in tiers in every window, and a plan that believes it moves all of them in turns
//! and saves nothing by it. So a region comes home for another only if it clearly loses more time
//! for what it saves than the other is expected to, chance included.
//!
//! That a plan brings regions home because they cost too much, and takes none down, is no exchange.
//! After a broken budget, when nothing goes down, what has no room comes home as planned; and so it
//! does for as long as a plan has to recover from a burst, after which much may have changed its
//! use. A debt makes regions at home look as they did for long, and has fewer of them go down.

use super::{RegionChoices, Slowdown};
use crate::cost::TierCost;
use crate::plan::mckp::Choices;

/// So much more than the one that goes down must a region lose to come home for it: faults of a few
/// windows are scattered, too.
const CLEARLY: f64 = 2.0;

/// An item that would change places with another.
#[derive(Clone, Copy, Debug)]
struct Place {
    item: u32,
    /// Time that it is expected to lose in its tier in the next window for what it saves there.
    loses: f64,
}

/// What a plan would exchange. (Kept for its room.)
#[derive(Debug, Default)]
pub(super) struct Exchanges {
    /// What would come home.
    home: Vec<Place>,
    /// What would go down.
    down: Vec<Place>,
}

impl Slowdown {
    /// Undoes exchanges that are not worth it: the region that loses least of those that would come
    /// home stays where it is for the one that loses most of those that would go down, and so on.
    /// Not on a medium with a limit: the solver has shared out its room. How many stay for it.
    pub(super) fn leave_known(
        &self,
        tiers: &[TierCost],
        choices: &RegionChoices,
        exchanges: &mut Exchanges,
        choice: &mut [u8],
    ) -> u64 {
        let Exchanges { home, down } = exchanges;
        home.clear();
        down.clear();
        if self.pause > 0 || self.burst.is_recovering() {
            return 0;
        }
        for (item, (&here, &to)) in self.current.iter().zip(choice.iter()).enumerate() {
            let tier = usize::from(if to == 0 { here } else { to });
            if tier == 0 {
                continue;
            }
            let places = match (here, to) {
                (0, _) => &mut *down,
                (_, 0) => &mut *home,
                _ => continue,
            };
            let saves = choices.tco(item, 0) - choices.tco(item, tier);
            if saves > 0.0 && !self.limits.iter().any(|limit| limit.counts(tier)) {
                let loses = self.next[item] * tiers[tier].fault_ns / saves;
                places.push(Place { item: item as u32, loses });
            }
        }
        let by_loss = |a: &Place, b: &Place| a.loses.total_cmp(&b.loses);
        home.sort_unstable_by(|a, b| by_loss(a, b).then(a.item.cmp(&b.item)));
        down.sort_unstable_by(|a, b| by_loss(b, a).then(a.item.cmp(&b.item)));
        let mut kept = 0;
        for (home, down) in home.iter().zip(&*down) {
            if home.loses > CLEARLY * down.loses {
                break;
            }
            choice[home.item as usize] = self.current[home.item as usize];
            choice[down.item as usize] = 0;
            kept += 1;
        }
        kept
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::PAGES_PER_GIB;
    use crate::plan::fixtures::region;
    use crate::plan::limits::Limit;
    use crate::plan::{Measured, Plan, Policy, RegionView, Why};
    use crate::tier::TierId;

    /// DRAM for a dollar a page and month, and a tier of half the price with faults of 70 us.
    fn tiers() -> [TierCost; 2] {
        let dram = TierCost::dram(PAGES_PER_GIB);
        [dram, TierCost { fault_ns: 70_000.0, ratio: 0.5, move_ns: 8_000.0, ..dram }]
    }

    /// A region in the tier that was touched on so many pages in each of four windows there.
    fn known(hotness: f32) -> RegionView {
        let newest = hotness;
        RegionView { newest, down_windows: 4, ..region(1 << 21, hotness, 1, 0) }
    }

    /// A region that went down and was touched on 14 pages more than it had looked like.
    fn gone_down() -> RegionView {
        let at = region(9 << 21, 3.5, 1, 14);
        RegionView { newest: 14.0, windows_seen: 40, down_windows: 1, ..at }
    }

    /// A plan for `known` and a region at home that looks colder, with so many milliseconds to
    /// lose, where those that went down were like `before`.
    fn plan(known: RegionView, ms: f64, before: &[RegionView], limits: Vec<Limit>) -> Plan {
        let mut policy = Slowdown::new(0.05).with_residence(2.5).with_limits(limits);
        let running_ns = ms * 1e6 / 0.05;
        policy.learn(&Measured { running_ns, contention: 0.02, ..Measured::default() });
        (0..20).for_each(|_| policy.hidden.learn(before));
        policy.plan(&[known, region(2 << 21, 3.0, 0, 512)], &tiers())
    }

    fn moves(plan: &Plan) -> Vec<(u32, u8)> {
        plan.moves.iter().filter(|m| m.from != m.to).map(|m| (m.region, m.to.0)).collect()
    }

    #[test]
    fn what_is_known_stays_for_what_only_looks_better() {
        // Twenty faults cost 1.4 ms, and there is time for one of both regions.
        let exchanged = plan(known(20.0), 1.67, &[], Vec::new());
        assert_eq!(moves(&exchanged), [(0, 0), (1, 1)], "{}", exchanged.why);
        let kept = plan(known(20.0), 1.67, &[gone_down(); 12], Vec::new());
        assert_eq!(moves(&kept), [], "{}", kept.why);
        let Why::WithinSlowdown { kept: 1, hidden_pages, .. } = kept.why else {
            panic!("{:?}", kept.why)
        };
        assert!((12.0..14.0).contains(&hidden_pages), "{hidden_pages}");
        assert!(kept.why.to_string().contains("1 regions stay in tiers"), "{}", kept.why);
        // One that clearly costs more.
        let dearer = plan(known(60.0), 3.84, &[gone_down(); 12], Vec::new());
        assert_eq!(moves(&dearer), [(0, 0), (1, 1)], "{}", dearer.why);
    }

    #[test]
    fn a_medium_with_a_limit_is_the_solvers() {
        let limit = Limit::new([TierId(1)], 1e9);
        let plan = plan(known(20.0), 1.67, &[gone_down(); 12], vec![limit]);
        assert_eq!(moves(&plan), [(0, 0), (1, 1)], "{}", plan.why);
    }
}
