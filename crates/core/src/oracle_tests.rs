//! The oracle against every sequence of steps there is, on regions small enough for that.

use proptest::prelude::*;

use crate::cost::TierCost;
use crate::degrees::Degrees;
use crate::load::{Area, Clock};
use crate::oracle::{bound, prices, reached, Past, Point};
use crate::plan::{Move, Plan, Policy, Ratios, RegionView, Why};
use crate::sim::{Machine, Simulation};
use crate::tier::{TierId, MAX_TIERS};

const WINDOWS: usize = 6;

fn machine(cooling_windows: usize, contention: f64) -> Machine {
    Machine {
        tiers: vec![
            TierCost::dram(0.3),
            TierCost { fault_ns: 7_000.0, ratio: 0.45, ..TierCost::dram(0.3) },
            TierCost { fault_ns: 60_000.0, ratio: 0.32, ..TierCost::dram(0.03) },
        ],
        cooling_windows,
        samples_per_region: 4,
        move_pages: u64::MAX,
        move_ns: vec![12_000.0, 20_000.0, 45_000.0],
        fault_cpu_ns: 3_000.0,
        hit_ns: 0.0,
        contention,
    }
}

/// Takes the one region where it is told to: a digit for each window, 3 for nowhere.
struct Script(usize);

impl Policy for Script {
    fn plan(&mut self, regions: &[RegionView], _: &[TierCost]) -> Plan {
        let digit = self.0 % 4;
        self.0 /= 4;
        let there =
            |r: &RegionView| Move { region: 0, id: r.id, from: r.tier, to: TierId(digit as u8) };
        Plan {
            moves: regions.first().filter(|_| digit < 3).map(there).into_iter().collect(),
            recommended: [0; MAX_TIERS],
            expected_faults: 0.0,
            expected_perf_ns: 0.0,
            expected_tco: 0.0,
            tco_max: 0.0,
            tco_min: 0.0,
            why: Why::NothingToPlan,
            terms: super::plan::Terms::NONE,
        }
    }
}

/// Money and lost time of every script, in the simulation.
fn all(machine: &Machine, degrees: &Degrees, clocks: &[Clock], area: &Area) -> Vec<(f64, f64)> {
    let one = |script: usize| {
        let mut policy = Script(script);
        let mut simulation = Simulation::new(machine.clone(), &[]).with_degrees(degrees.clone());
        simulation.grow(&area.pages[..1]);
        simulation.describe(0, area.id, f64::from(area.refused), area.ratios);
        let (mut tco, mut lost) = (0.0, 0.0);
        for (at, (&pages, &touched)) in area.pages.iter().zip(&area.touched).enumerate() {
            simulation.set_pages(0, pages);
            simulation.next(&clocks.get(area.first + at).copied().unwrap_or_default(), &[]);
            let outcome = simulation.window(&[touched], 1e9, |_, _| 0, &mut policy);
            tco += outcome.tco;
            lost += outcome.stalled_ns + outcome.taken_ns;
        }
        (tco, lost)
    };
    // After the last window a step changes nothing any more.
    (0..4usize.pow(WINDOWS as u32 - 1)).map(one).collect()
}

/// It begins at home, as in the simulation: a region of which window 0 knows nothing.
fn points(machine: &Machine, degrees: &Degrees, clocks: &[Clock], area: &Area) -> Vec<Point> {
    Past::of(machine, degrees, clocks, area, 0..WINDOWS + 1).best(&prices(&machine.tiers, 24))
}

/// Windows in which so much of what comes home faults itself.
fn clocks() -> impl Strategy<Value = Vec<Clock>> {
    let of = |fault_share| Clock { fault_share, ..Clock::default() };
    proptest::collection::vec((0.0f64..1.0).prop_map(of), WINDOWS + 1)
}

fn area(pages: Vec<u16>, touched: Vec<f32>, refused: f32) -> Area {
    Area { id: 7 << 21, first: 1, pages, touched, refused, ratios: Ratios::UNKNOWN }
}

fn least(all: &[(f64, f64)], price: f64) -> f64 {
    all.iter().map(|&(tco, lost)| tco + price * lost).fold(f64::INFINITY, f64::min)
}

fn pages() -> impl Strategy<Value = Vec<u16>> {
    let changing = proptest::collection::vec(0u16..=512, WINDOWS);
    prop_oneof![(0u16..=512).prop_map(|n| vec![n; WINDOWS]), changing]
}

/// From never to always, with most regions quiet in most windows.
fn touched() -> impl Strategy<Value = Vec<f32>> {
    let one = prop_oneof![Just(0.0f32), 0.0f32..20.0, 0.0f32..512.0];
    proptest::collection::vec(one, WINDOWS)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn nothing_gets_below_the_bound_and_what_is_found_can_be_had(
        pages in pages(), touched in touched(),
        unevenness in prop_oneof![Just(0.0), 0.0f64..6.0],
        refused in prop_oneof![Just(0.0f32), 0.0f32..1.0],
        cooling in 0usize..4, contention in 0.0..1.0, clocks in clocks(),
    ) {
        let (machine, degrees) = (machine(cooling, contention), Degrees::of(unevenness));
        let area = area(pages, touched, refused);
        let points = points(&machine, &degrees, &clocks, &area);
        let all = all(&machine, &degrees, &clocks, &area);
        let scale = 1e-9 * (1.0 + all[0].0);
        for point in &points {
            let least = least(&all, point.price);
            let found = point.tco + point.price * point.lost_ns;
            prop_assert!(point.dual <= least + scale, "{point:?}: {least} is less");
            prop_assert!(found >= least - scale, "{point:?}: below all there is, {least}");
            let same = |&(tco, lost): &(f64, f64)| {
                (tco - point.tco).abs() < scale && (lost - point.lost_ns).abs() < 1e-3
            };
            prop_assert!(all.iter().any(same), "{point:?} is no sequence of steps");
        }
        for &(tco, lost) in &all {
            prop_assert!(bound(&points, lost) <= tco + scale);
            if let Some(reached) = reached(&points, lost) {
                prop_assert!(bound(&points, lost) <= reached + scale);
            }
        }
    }

    /// What never moves is one of the sequences of steps: the same tier again in every window.
    #[test]
    fn what_never_moves_can_be_had_and_is_the_best_of_its_kind(
        pages in pages(), touched in touched(),
        unevenness in prop_oneof![Just(0.0), 0.0f64..6.0],
        refused in prop_oneof![Just(0.0f32), 0.0f32..1.0],
        cooling in 0usize..4, contention in 0.0..1.0, clocks in clocks(),
    ) {
        let (machine, degrees) = (machine(cooling, contention), Degrees::of(unevenness));
        let area = area(pages, touched, refused);
        let all = all(&machine, &degrees, &clocks, &area);
        let digits: usize = (0..WINDOWS as u32 - 1).map(|n| 4usize.pow(n)).sum();
        let kept: Vec<(f64, f64)> = (0..3).map(|tier| all[tier * digits]).collect();
        let scale = 1e-9 * (1.0 + all[0].0);
        let windows = 0..WINDOWS + 1;
        let prices = prices(&machine.tiers, 24);
        for point in Past::of(&machine, &degrees, &clocks, &area, windows).unmoved(&prices) {
            let same = |&(tco, lost): &(f64, f64)| {
                (tco - point.tco).abs() < scale && (lost - point.lost_ns).abs() < 1e-3
            };
            prop_assert!(kept.iter().any(same), "{point:?} is none of {kept:?}");
            let paid = point.tco + point.price * point.lost_ns;
            prop_assert!(paid <= least(&kept, point.price) + scale, "{point:?}, {kept:?}");
        }
    }

    /// Where each window touches all or nothing, pages have no more choice than their region.
    #[test]
    fn it_is_exact_where_all_pages_are_alike(
        pages in 1u16..=512, all_or_nothing in proptest::collection::vec(any::<bool>(), WINDOWS),
        cooling in 0usize..4, contention in 0.0..1.0,
    ) {
        let machine = machine(cooling, contention);
        let touched = all_or_nothing.iter().map(|&all| if all { 512.0 } else { 0.0 }).collect();
        let area = area(vec![pages; WINDOWS], touched, 0.0);
        let all = all(&machine, &Degrees::even(), &[], &area);
        for point in points(&machine, &Degrees::even(), &[], &area) {
            let least = least(&all, point.price);
            prop_assert!((point.dual - least).abs() <= 1e-9 * least, "{point:?}: {least}");
            let found = point.tco + point.price * point.lost_ns;
            prop_assert!((found - least).abs() <= 1e-9 * least, "{point:?}: {least}");
        }
    }
}

/// How far the placement is from the best, over instances from a seed: little, on the whole.
#[test]
fn what_is_found_is_close_to_the_best() {
    let machine = machine(2, 0.5);
    let mut seed = 1u64;
    let mut draw = |below: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963);
        (seed >> 33) % below
    };
    let (mut found, mut best, mut bounds) = (0.0, 0.0, 0.0);
    for _ in 0..60 {
        let touched = (0..WINDOWS)
            .map(|_| match draw(3) {
                0 => 0.0,
                1 => draw(20) as f32,
                _ => draw(512) as f32,
            })
            .collect();
        let area = area(vec![512; WINDOWS], touched, 0.0);
        let all = all(&machine, &Degrees::even(), &[], &area);
        for point in points(&machine, &Degrees::even(), &[], &area) {
            found += point.tco + point.price * point.lost_ns;
            best += least(&all, point.price);
            bounds += point.dual;
        }
    }
    assert!(found <= best * 1.002, "{found} of {best}");
    assert!(bounds >= best * 0.99, "{bounds} of {best}");
}

#[test]
fn nothing_to_save_and_no_windows_are_not_an_error() {
    assert!(prices(&[], 8).is_empty());
    assert!(prices(&[TierCost::dram(0.3)], 8).is_empty());
    let area = area(vec![512; WINDOWS], vec![0.0; WINDOWS], 0.0);
    let (machine, degrees) = (machine(1, 1.0), Degrees::even());
    let late = Past::of(&machine, &degrees, &[], &area, 0..1);
    let nothing = [Point { price: 1.0, ..Point::default() }];
    assert_eq!((late.best(&[1.0]), late.unmoved(&[1.0])), (nothing.to_vec(), nothing.to_vec()));
    assert_eq!(bound(&[], 1.0), 0.0);
    assert_eq!(reached(&[], 1.0), None);
}
