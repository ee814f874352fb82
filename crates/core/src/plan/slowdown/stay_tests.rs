//! The policy with regions of which something has come back.

use super::Slowdown;
use crate::cost::TierCost;
use crate::hotness::CameBack;
use crate::plan::fixtures::region;
use crate::plan::{weigh, Measured, Plan, Policy, RegionView};
use crate::tier::TierId;

/// DRAM, and a tier of half its price: 20 us for a fault, 10 for the way down.
fn tiers() -> [TierCost; 2] {
    let dram = TierCost::dram(0.3);
    [dram, TierCost { fault_ns: 20_000.0, move_ns: 10_000.0, ratio: 0.5, ..dram }]
}

/// Whether what came back of a region goes down again in a plan under this much running time,
/// beside 200 that are home and warmer from one to the next.
fn goes_down(used_again: Option<f32>, since_down_windows: u8, running_ns: f64) -> bool {
    let warm = |n: u64| region(n << 21, n as f32, 0, 512);
    let mut regions: Vec<RegionView> = (1..=200).map(warm).collect();
    let partly_home = region(0, 5.0, 1, 100);
    regions.push(RegionView { used_again, since_down_windows, ..partly_home });
    let mut policy = Slowdown::new(0.05).with_residence(2.5);
    policy.learn(&Measured { running_ns, contention: 0.1, ..Measured::default() });
    policy.plan(&regions, &tiers()).moves.iter().any(|m| m.id == 0)
}

#[test]
fn what_came_back_stays_if_it_is_used_again_and_time_is_dear() {
    // A budget that a quarter of all would fill.
    let scarce = 5e8;
    assert!(goes_down(None, 3, scarce), "nobody looked");
    assert!(goes_down(Some(0.01), 3, scarce));
    assert!(!goes_down(Some(0.4), 3, scarce));
    assert!(goes_down(Some(0.4), 40, scarce), "it may have changed by now");
    // All of it costs less than is accepted: what time has to save at least is little.
    assert!(goes_down(Some(0.4), 3, 1e11));
}

fn planned(view: RegionView) -> Plan {
    let mut policy = Slowdown::new(0.05).with_residence(2.5);
    policy.learn(&Measured { running_ns: 5e7, contention: 0.1, ..Measured::default() });
    policy.plan(&[view], &tiers())
}

#[test]
fn what_came_back_counts_more_than_how_hot_it_looks() {
    let told = |usual, newest| Some(CameBack { usual, newest, long: usual });
    // 200 of its pages are in use, all of which are home: by hotness 160 would fault in a window,
    // which is more than may be lost, and dearer than bringing it home.
    let view = RegionView { down_windows: 20, ..region(0, 200.0, 1, 200) };
    assert_eq!(planned(view).moves.iter().map(|m| m.to).collect::<Vec<_>>(), [TierId::DRAM]);
    let plan = planned(RegionView { told: told(3.0, 2.0), ..view });
    assert!(plan.moves.iter().all(|m| m.to != TierId::DRAM), "{:?}", plan.moves);
    assert_eq!(plan.expected_faults, 3.0);
    // It has come into use.
    let plan = planned(RegionView { told: told(3.0, 150.0), ..view });
    assert_eq!(plan.moves.iter().map(|m| m.to).collect::<Vec<_>>(), [TierId::DRAM]);
    // A region that rests, or is home, was told of another time.
    let resting = RegionView { told: told(3.0, 2.0), rest_windows: 4, ..view };
    assert_eq!(planned(resting).moves.iter().map(|m| m.to).collect::<Vec<_>>(), [TierId::DRAM]);
    let home = RegionView { told: told(3.0, 2.0), ..region(0, 200.0, 0, 512) };
    assert!(planned(home).moves.is_empty());
}

#[test]
fn whoever_asks_is_told_the_same() {
    let view = RegionView {
        told: Some(CameBack { usual: 3.0, newest: 2.0, long: 3.0 }),
        ..region(0, 200.0, 1, 200)
    };
    let plan = planned(view);
    let (regions, tiers) = ([view], tiers());
    let price = plan.terms.usd_per_ns.unwrap_or(0.0);
    let places: Vec<_> = weigh(&regions, &tiers, plan.terms, price).places(0).collect();
    assert_eq!([places[0].faults, places[1].faults], [0.0, 3.0]);
}
