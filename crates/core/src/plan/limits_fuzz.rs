//! Problems with limits against every possible answer, and large ones against their bound.

use super::limits::{Limit, Limited};
use super::mckp::{Choices, Solver};
use crate::tier::TierId;
use proptest::prelude::*;

/// Three tables, a row an item, and limits by tier sets.
#[derive(Clone, Debug)]
struct Instance {
    options: usize,
    perf: Vec<f64>,
    tco: Vec<f64>,
    bytes: Vec<f64>,
    limits: Vec<Limit>,
    budget: f64,
}

impl Choices for Instance {
    fn items(&self) -> usize {
        self.perf.len() / self.options
    }
    fn options(&self) -> usize {
        self.options
    }
    fn perf(&self, item: usize, option: usize) -> f64 {
        self.perf[item * self.options + option]
    }
    fn tco(&self, item: usize, option: usize) -> f64 {
        self.tco[item * self.options + option]
    }
    fn bytes(&self, item: usize, option: usize) -> f64 {
        self.bytes[item * self.options + option]
    }
}

impl Instance {
    /// (time, money, whether every limit is kept).
    fn judge(&self, choice: &[u8]) -> (f64, f64, bool) {
        let (mut perf, mut tco, mut used) = (0.0, 0.0, vec![0.0; self.limits.len()]);
        for (item, &option) in choice.iter().enumerate() {
            let option = usize::from(option);
            perf += self.perf(item, option);
            tco += self.tco(item, option);
            for (limit, used) in self.limits.iter().zip(&mut used) {
                *used += f64::from(u8::from(limit.counts(option))) * self.bytes(item, option);
            }
        }
        let kept = used.iter().zip(&self.limits).all(|(u, l)| *u <= l.bytes() * (1.0 + 1e-8));
        (perf, tco, kept)
    }

    /// The least time, and the least money, of all answers within the limits.
    fn brute_force(&self) -> (Option<f64>, Option<f64>) {
        let (mut fastest, mut cheapest): (Option<f64>, Option<f64>) = (None, None);
        let items = self.items();
        for code in 0..self.options.pow(items as u32) {
            let digit = |item: usize| (code / self.options.pow(item as u32) % self.options) as u8;
            let choice: Vec<u8> = (0..items).map(digit).collect();
            let (perf, tco, kept) = self.judge(&choice);
            if kept && tco <= self.budget && fastest.is_none_or(|known| perf < known) {
                fastest = Some(perf);
            }
            if kept && cheapest.is_none_or(|known| tco < known) {
                cheapest = Some(tco);
            }
        }
        (fastest, cheapest)
    }
}

fn small() -> impl Strategy<Value = Instance> {
    (1usize..6, 2usize..5).prop_flat_map(|(items, options)| {
        let table =
            move |top: u32| prop::collection::vec((0..top).prop_map(f64::from), items * options);
        let limits = prop::collection::vec((1u16..16, 0u32..30), 0..3);
        (table(40), table(12), table(10), limits, 0u32..50).prop_map(
            move |(perf, tco, bytes, limits, budget)| {
                let tiers = |set: u16| (0..4).filter(move |t| set >> t & 1 == 1).map(TierId);
                let limits = limits.iter().map(|&(s, b)| Limit::new(tiers(s), f64::from(b)));
                let (limits, budget) = (limits.collect(), f64::from(budget));
                Instance { options, perf, tco, bytes, limits, budget }
            },
        )
    })
}

/// Regions shaped like memory: hotness falls steeply, tiers from quick to dense, some of the middle
/// and the last on limited media.
fn large(items: usize, seed: u64, share: f64, alpha: f64) -> Instance {
    let mut state = seed;
    let mut unit = move || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 11) as f64 / (1u64 << 53) as f64
    };
    let options = 8;
    let (mut perf, mut tco, mut bytes) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..items {
        let hot = unit().powi(5) * 512.0;
        let own = 0.6 + 0.8 * unit();
        for tier in 0..options {
            let far = tier as f64;
            let ratio = if tier == 0 { 1.0 } else { own * (0.6 - 0.05 * far) };
            let price = if tier % 3 == 2 { 1.0 } else { 4.0 };
            perf.push(if tier == 0 { 0.0 } else { hot * 4_000.0 * far * (0.9 + 0.2 * unit()) });
            tco.push(ratio * price);
            bytes.push(ratio * 2_097_152.0);
        }
    }
    let all = items as f64 * 2_097_152.0;
    let limits = vec![
        Limit::new([2, 5].map(TierId), all * share * 0.2),
        Limit::new([TierId(7)], all * share * 0.1),
    ];
    let budget = items as f64 * (1.0 + 3.0 * alpha);
    Instance { options, perf, tco, bytes, limits, budget }
}

#[test]
fn a_full_medium_gets_what_gains_most() {
    // Two regions, a quick dear tier and a medium with room for one of them. The budget (6) needs
    // one there (1) and allows the other in the tier (4): the colder one takes the room.
    let instance = Instance {
        options: 3,
        perf: vec![0.0, 10.0, 100.0, 0.0, 1.0, 10.0],
        tco: vec![8.0, 4.0, 1.0, 8.0, 4.0, 1.0],
        bytes: vec![0.0, 0.0, 5.0, 0.0, 0.0, 5.0],
        limits: vec![Limit::new([TierId(2)], 5.0)],
        budget: 6.0,
    };
    let answer = Limited::default().solve(&instance, &instance.limits, 6.0, &[]);
    assert_eq!(answer.solution.choice, [1, 2]);
    assert!(answer.is_within && answer.solution.feasible);
    // A budget that would need both there is not kept, the limit is, with the least money.
    let answer = Limited::default().solve(&instance, &instance.limits, 3.0, &[]);
    assert!(answer.is_within && !answer.solution.feasible);
    assert_eq!(answer.solution.tco, 5.0);
}

#[test]
fn equal_regions_fill_a_medium_to_the_brim() {
    // No price tells them apart: all leave at once, or none. Repair has to.
    let one = [(0.0, 4.0, 0.0), (50.0, 2.0, 0.0), (10.0, 1.0, 10.0)];
    let table = |pick: fn(&(f64, f64, f64)) -> f64| -> Vec<f64> {
        (0..1_000).flat_map(|_| one.iter().map(pick)).collect()
    };
    let limits = vec![Limit::new([TierId(2)], 3_333.0)];
    let (perf, tco, bytes) = (table(|o| o.0), table(|o| o.1), table(|o| o.2));
    let instance = Instance { options: 3, perf, tco, bytes, limits, budget: 1_700.0 };
    let answer = Limited::default().solve(&instance, &instance.limits, 1_700.0, &[]);
    let (_, tco, kept) = instance.judge(&answer.solution.choice);
    assert!(kept && tco <= 1_700.0, "{tco} {:?} {}", answer.is_within, answer.solution.feasible);
    let there = answer.solution.choice.iter().filter(|&&option| option == 2).count();
    assert_eq!(there, 333);
    // No half regions: 333 of 333.3 there and 16 of 16.5 in DRAM are 0.12 % above the bound.
    assert!(answer.solution.gap_to_lp < 1.3e-3, "{}", answer.solution.gap_to_lp);
}

#[test]
fn large_problems_with_limits_are_within_a_thousandth_of_their_bound() {
    let cases = [(1, 0.5, 0.3), (2, 0.9, 0.1), (3, 0.1, 0.5), (4, 1.5, 0.05), (5, 0.01, 0.1)];
    for ((seed, share, alpha), fine) in cases.iter().flat_map(|&c| [(c, false), (c, true)]) {
        let instance = large(30_000, seed, share, alpha);
        let mut solver = Limited::with_fine_from(if fine { 20_000 } else { usize::MAX });
        let answer = solver.solve(&instance, &instance.limits, instance.budget, &[]);
        let (perf, tco, kept) = instance.judge(&answer.solution.choice);
        assert!(kept && answer.is_within, "seed {seed}");
        let solution = &answer.solution;
        let free = Solver::default().solve(&instance, instance.budget, &[]);
        assert!(solution.feasible && tco <= instance.budget, "seed {seed}: over the budget");
        assert_eq!(perf, solution.perf);
        assert!(free.perf <= perf, "limits cannot help");
        assert!(solution.gap_to_lp <= 1e-3, "seed {seed}: gap {}", solution.gap_to_lp);
    }
}

#[test]
fn media_without_room_stay_empty() {
    let mut instance = large(30_000, 6, 0.5, 0.3);
    for tiers in [vec![0], vec![0, 1]] {
        for &tier in &tiers {
            instance.limits[tier].take(f64::INFINITY);
        }
        for mut solver in [Limited::default(), Limited::with_fine_from(20_000)] {
            let answer = solver.solve(&instance, &instance.limits, instance.budget, &[]);
            let (_, tco, kept) = instance.judge(&answer.solution.choice);
            assert!(kept && answer.is_within && tco <= instance.budget, "{tiers:?}");
            assert!(answer.solution.gap_to_lp <= 5e-3, "gap {}", answer.solution.gap_to_lp);
        }
    }
}

#[test]
fn a_sample_changes_no_answer() {
    let instance = large(40_000, 9, 1.0, 0.3);
    for budget in [0.6, 1.0, 1.7, 3.9].map(|by| by * instance.items() as f64) {
        let all = Solver::default().solve(&instance, budget, &[]);
        for sampling in [(1_000, 4_000), (1_000, 40), (1_000, 2)] {
            let (from, items) = sampling;
            let sampled = Solver::with_sampling(from, items).solve(&instance, budget, &[]);
            assert_eq!(sampled.choice, all.choice, "{budget} {sampling:?}");
            assert!((sampled.lp_bound - all.lp_bound).abs() <= 1e-9 * all.lp_bound);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn limits_hold_and_bounds_are_bounds(instance in small()) {
        let mut solver = Limited::default();
        let answer = solver.solve(&instance, &instance.limits, instance.budget, &[]);
        let (perf, tco, kept) = instance.judge(&answer.solution.choice);
        prop_assert_eq!((perf, tco), (answer.solution.perf, answer.solution.tco));
        let (fastest, cheapest) = instance.brute_force();
        prop_assert_eq!(answer.is_within, kept);
        if answer.solution.feasible {
            prop_assert!(tco <= instance.budget);
        }
        if let (Some(fastest), true, true) = (fastest, kept, answer.solution.feasible) {
            prop_assert!(perf >= fastest);
            prop_assert!(answer.solution.lp_bound <= fastest + 1e-6, "{:?} {}", answer, fastest);
        }
        if let (Some(cheapest), true) = (cheapest, kept) {
            prop_assert!(tco >= cheapest);
        }
    }
}
