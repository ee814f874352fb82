//! Simulated applications that do not change: the plan comes to rest, the correction of expected
//! faults finds out by how much the model is wrong, and an amount of money is kept.

use super::slowdown_tests::{machine, policy, run, run_on, REGIONS, STATIONARY, WARM_UP};
use super::{Analytical, Measured, Model, Money, Plan, Policy, RegionView, Slowdown, Why};
use crate::cost::TierCost;
use crate::sim::{Machine, Outcome};
use crate::tier::TierId;

/// Pages that a plan sends elsewhere, as a share of all, in the mean window.
fn moved(outcomes: &[Outcome]) -> f64 {
    let of = |o: &Outcome| o.plan.moves.iter().filter(|m| m.from != m.to).count() as f64;
    outcomes.iter().map(of).sum::<f64>() / outcomes.len() as f64 / REGIONS as f64
}

fn analytical(alpha: f64) -> Analytical {
    Analytical::new(alpha).with_model(Model { residence_windows: 2.5, ..Model::PAPER })
}

#[test]
fn a_stable_workload_leads_to_a_stable_placement() {
    let slowdown = moved(&run(STATIONARY, 160, &mut policy())[WARM_UP..]);
    eprintln!("slowdown: {:.3} % of all pages change tiers in a window", slowdown * 100.0);
    for alpha in [0.2, 0.5, 0.8] {
        let analytical = moved(&run(STATIONARY, 160, &mut analytical(alpha))[WARM_UP..]);
        eprintln!("analytical {alpha}: {:.3} %", analytical * 100.0);
        assert!(analytical < 0.005, "{analytical} at alpha {alpha}");
    }
    assert!(slowdown < 0.005, "{slowdown}");
}

#[test]
fn regions_that_are_alike_do_not_take_turns() {
    // A program that sleeps most of the time, on an idle machine: a window has time for the faults
    // of a tenth of its regions, and which ones does not matter.
    let slow = |tier: TierCost| TierCost { fault_ns: 10.0 * tier.fault_ns, ..tier };
    let machine = Machine {
        tiers: machine().tiers.into_iter().take(2).map(slow).collect(),
        move_ns: vec![8_000.0],
        contention: 0.05,
        ..machine()
    };
    let outcomes = run_on(machine, 1e9, |_, _| 14.0, 160, &mut policy());
    let (moved, last) = (moved(&outcomes[WARM_UP..]), &outcomes[WARM_UP..]);
    let mean = |of: fn(&Outcome) -> f64| last.iter().map(of).sum::<f64>() / last.len() as f64;
    let (saved, slowdown) = (mean(Outcome::saved), mean(|o| o.slowdown));
    eprintln!(
        "{:.3} % move, {:.2} % saved, {:.2} %",
        moved * 100.0,
        saved * 100.0,
        slowdown * 100.0
    );
    assert!(moved < 0.02, "{moved}");
    assert!(saved > 0.06 && slowdown < 0.055, "{saved} saved, {slowdown} slower");
}

#[test]
fn what_is_never_worth_what_it_loses_is_left_alone() {
    // Regions that are alike and look cold now and then, of which none can be down for what it
    // saves: 40 faults of half a millisecond lose 2 % of the time for half of a 400th.
    let slow = |tier: TierCost| TierCost { fault_ns: 5e5, ..tier };
    let mut tiers: Vec<TierCost> = machine().tiers.into_iter().take(2).map(slow).collect();
    tiers[0].fault_ns = 0.0;
    let machine = Machine { tiers, move_ns: vec![8_000.0], contention: 0.05, ..machine() };
    let outcomes = run_on(machine, 1e9, |_, _| 40.0, 800, &mut policy());
    let mean = |of: fn(&Outcome) -> f64| {
        let parts = outcomes.chunks(100);
        parts.map(|part| part.iter().map(of).sum::<f64>() / part.len() as f64).collect::<Vec<_>>()
    };
    let (saved, slowdown) = (mean(Outcome::saved), mean(|o| o.slowdown));
    eprintln!("saved {saved:.4?}, slower by {slowdown:.4?}");
    assert!(slowdown[7] < 0.01, "{slowdown:?}");
    assert!(slowdown[4..].iter().sum::<f64>() < 0.06, "{slowdown:?}");
}

/// A policy to which `factor` times the faults come that the simulation has.
struct Wrong<P> {
    policy: P,
    factor: f64,
    came: Vec<f64>,
}

impl<P: Policy> Policy for Wrong<P> {
    fn learn(&mut self, measured: &Measured) {
        let faults = measured.faults * self.factor;
        self.came.push(faults);
        let stalled_ns = measured.stalled_ns * self.factor;
        self.policy.learn(&Measured { faults, stalled_ns, ..*measured });
    }
    fn plan(&mut self, regions: &[RegionView], tiers: &[TierCost]) -> Plan {
        self.policy.plan(regions, tiers)
    }
}

/// Faults that were expected for each that came, and the correction, at the end.
fn expected_by_came<P: Policy>(policy: P, factor: f64) -> (f64, P) {
    let mut wrong = Wrong { policy, factor, came: Vec::new() };
    let outcomes = run(STATIONARY, 120, &mut wrong);
    // What was expected of a window stands in the plan before it.
    let expected: f64 = outcomes[79..119].iter().map(|o| o.plan.expected_faults).sum();
    let came: f64 = wrong.came[80..120].iter().sum();
    (expected / came, wrong.policy)
}

#[test]
fn a_model_that_is_wrong_by_a_factor_of_two_is_put_right() {
    let at = |factor| {
        let (of_analytical, a) = expected_by_came(analytical(0.3), factor);
        let (of_slowdown, s) = expected_by_came(policy(), factor);
        let (a, s) = (a.correction(), s.correction());
        eprintln!("{factor}: analytical {of_analytical:.2} (k {a:.2})");
        eprintln!("{factor}: slowdown {of_slowdown:.2} (k {s:.2})");
        for share in [of_analytical, of_slowdown] {
            assert!((0.8..1.35).contains(&share), "{share} expected for each that came");
        }
        [a, s]
    };
    let (half, right, double) = (at(0.5), at(1.0), at(2.0));
    for policy in 0..2 {
        assert!(half[policy] < 0.75 * right[policy], "{half:?} {right:?}");
        assert!(double[policy] > 1.5 * right[policy], "{double:?} {right:?}");
    }
}

#[test]
fn an_amount_of_money_is_kept_and_what_is_not_enough_is_said() {
    let paid = |money| {
        let model = Model { residence_windows: 2.5, ..Model::PAPER };
        let mut policy = Analytical::for_money(money).with_model(model);
        policy.beside(1e-3);
        let outcomes = run(STATIONARY, 80, &mut policy);
        let last = &outcomes[WARM_UP..];
        let tco = last.iter().map(|o| o.tco).sum::<f64>() / last.len() as f64;
        let faults = last.iter().map(|o| o.faults).sum::<f64>();
        (tco, faults, outcomes[79].clone())
    };
    let all = machine().tiers[0].usd_per_page_month() * 512.0 * REGIONS as f64;
    let (tco, faults, last) = paid(Money::Usd(0.6 * all));
    assert!(tco <= 0.62 * all && tco > 0.5 * all, "{tco} of {all}");
    assert!(matches!(last.plan.why, Why::WithinMoney { .. }), "{}", last.plan.why);
    // The same as a share; more of it buys time.
    let share = paid(Money::Share(0.6));
    assert!((share.0 - tco).abs() < 0.02 * all);
    assert!(paid(Money::Usd(0.8 * all)).1 < 0.8 * faults);
    // Enough for everything: nothing is demoted. Nothing: the cheapest there is.
    let rich = paid(Money::Usd(2.0 * all));
    assert_eq!((rich.1, rich.2.plan.moves.len()), (0.0, 0));
    let poor = paid(Money::Usd(0.0));
    assert!(poor.0 < 0.5 * all);
    let Why::OverMoney { budget, cheapest } = poor.2.plan.why else {
        panic!("{}", poor.2.plan.why)
    };
    assert!(budget == 0.0 && cheapest > 1e-3 && cheapest < 0.5 * all, "{cheapest} of {all}");
    assert!(poor.2.plan.why.to_string().contains("the cheapest placement costs"));
    // Nonsense is no money, not a panic.
    let mut odd = Analytical::for_money(Money::Usd(f64::NAN));
    odd.beside(f64::NAN);
    let region = RegionView { pages: 9, windows_seen: 4, ..RegionView::at(0, TierId::DRAM) };
    assert!(matches!(odd.plan(&[region], &machine().tiers).why, Why::OverMoney { .. }));
}

#[test]
fn what_no_tier_takes_stays_and_what_shrinks_well_goes() {
    let tiers = machine().tiers;
    let region = |id, refused| RegionView {
        pages: 512,
        resident: 512,
        windows_seen: 4,
        refused,
        ..RegionView::at(id, TierId::DRAM)
    };
    let mut regions = vec![region(0, 255), region(1 << 21, 0), region(2 << 21, 128)];
    let plans = |regions: &[RegionView]| {
        let mut slowdown = Slowdown::new(0.05);
        slowdown.learn(&Measured { running_ns: 5e9, ..Measured::default() });
        let plans = [analytical(0.0).plan(regions, &tiers), slowdown.plan(regions, &tiers)];
        plans.map(|plan| plan.moves.iter().map(|m| (m.region, m.to.0)).collect::<Vec<_>>())
    };
    for moves in plans(&regions) {
        assert_eq!(moves.iter().map(|m| m.0).collect::<Vec<_>>(), [1, 2], "{moves:?}");
    }
    // A region that was refused after it was sent away goes on being refused: it is not asked for
    // again, and what it has back is not taken for pages that came back.
    regions[2].tier = TierId(2);
    regions[2].resident = 257;
    regions[1] = RegionView { tier: TierId(3), resident: 0, ..regions[1] };
    let plan = analytical(0.0).plan(&regions, &tiers);
    assert!(plan.moves.iter().all(|m| m.region != 2 || m.from != m.to), "{:?}", plan.moves);
    // Of its own, a region may do well in one tier and badly in another.
    let mut own = region(3 << 21, 0);
    own.ratios.set(2, 0.9);
    own.ratios.set(3, 0.95);
    own.ratios.set(1, 0.1);
    let cheap = [tiers[0], tiers[1], tiers[2]];
    let plan = analytical(0.0).plan(&[own, region(1 << 21, 0)], &cheap);
    let to: Vec<_> = plan.moves.iter().map(|m| (m.region, m.to.0)).collect();
    assert_eq!(to, [(0, 1), (1, 2)], "{}", plan.why);
}
