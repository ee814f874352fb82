//! The solver against every possible answer, on problems small enough to try them all, and against
//! its own promises on larger ones.

use super::mckp::{solve, Matrix, Solution, Solver, GAP_ACCEPTED};
use proptest::prelude::*;

/// The optimum by trying all choices; `None` if nothing fits.
fn brute_force(options: usize, perf: &[f64], tco: &[f64], budget: f64) -> Option<f64> {
    let items = perf.len() / options;
    let mut best: Option<f64> = None;
    for code in 0..options.pow(items as u32) {
        let (mut code, mut time, mut money) = (code, 0.0, 0.0);
        for item in 0..items {
            time += perf[item * options + code % options];
            money += tco[item * options + code % options];
            code /= options;
        }
        if money <= budget && best.is_none_or(|known| time < known) {
            best = Some(time);
        }
    }
    best
}

/// Tables and a budget somewhere between too little and too much.
#[derive(Clone, Debug)]
struct Instance {
    options: usize,
    perf: Vec<f64>,
    tco: Vec<f64>,
    budget: f64,
}

impl Instance {
    fn solve(&self, current: &[u8]) -> Solution {
        let matrix = Matrix::new(self.options, &self.perf, &self.tco).expect("rows are full");
        solve(&matrix, self.budget, current)
    }

    fn least_tco(&self) -> f64 {
        self.tco.chunks(self.options).map(|row| row.iter().copied().fold(f64::MAX, f64::min)).sum()
    }
}

/// Whole numbers from a small range: ties, dominated options and exact fits are then common, and
/// sums are exact, so that comparisons need no tolerance.
fn small_instance() -> impl Strategy<Value = Instance> {
    (1usize..7, 1usize..5).prop_flat_map(|(items, options)| {
        let cells = items * options;
        let table = move |top: u32| prop::collection::vec((0..top).prop_map(f64::from), cells);
        (table(40), table(12), 0u32..60).prop_map(move |(perf, tco, budget)| Instance {
            options,
            perf,
            tco,
            budget: f64::from(budget),
        })
    })
}

/// Real numbers, costs shaped like tiers: dearer is faster, with noise on both.
fn large_instance() -> impl Strategy<Value = Instance> {
    (1usize..300, 2usize..9, 0.0f64..1.05).prop_flat_map(|(items, options, alpha)| {
        prop::collection::vec((0.0f64..1.0, 0.5f64..1.5, 0.5f64..1.5), items * options).prop_map(
            move |cells| {
                let tier = |cell: usize| (cell % options + 1) as f64;
                let hot = |cell: usize| cells[cell / options * options].0.powi(6) * 512.0;
                let perf: Vec<f64> = (0..cells.len())
                    .map(|cell| hot(cell) * (tier(cell) - 1.0) * cells[cell].1)
                    .collect();
                let tco: Vec<f64> =
                    (0..cells.len()).map(|cell| cells[cell].2 / tier(cell)).collect();
                let mut instance = Instance { options, perf, tco, budget: 0.0 };
                let least = instance.least_tco();
                instance.budget = least + alpha * (items as f64 - least).max(0.0);
                instance
            },
        )
    })
}

#[test]
fn the_case_worked_by_hand() {
    let perf = [0.0, 10.0, 40.0, 0.0, 1.0, 4.0, 0.0, 2.0, 8.0];
    let tco = [8.0, 4.0, 2.0, 8.0, 4.0, 2.0, 8.0, 4.0, 2.0];
    let matrix = Matrix::new(3, &perf, &tco).expect("three rows");
    let solution = solve(&matrix, 13.0, &[]);
    assert_eq!(solution.choice, [0, 2, 2]);
    assert_eq!((solution.perf, solution.tco, solution.lp_bound), (12.0, 12.0, 8.5));
    assert_eq!(solution.gap_to_lp, 3.5 / 12.0);
    assert!(solution.feasible && solution.proven);
}

#[test]
fn a_budget_below_the_cheapest_choice_is_flagged() {
    let matrix = Matrix::new(2, &[0.0, 5.0, 0.0, 7.0], &[4.0, 2.0, 4.0, 2.0]).expect("two rows");
    let solution = solve(&matrix, 3.9, &[]);
    assert!(!solution.feasible);
    assert_eq!((solution.choice.as_slice(), solution.tco), ([1, 1].as_slice(), 4.0));
    assert!(solve(&matrix, 4.0, &[]).feasible);
    assert!(!solve(&matrix, f64::NAN, &[]).feasible);
}

#[test]
fn no_items_and_one_option() {
    assert!(solve(&Matrix::new(3, &[], &[]).expect("no rows"), 0.0, &[]).feasible);
    let single = solve(&Matrix::new(1, &[3.0], &[2.0]).expect("one row"), 2.0, &[]);
    assert_eq!((single.choice.as_slice(), single.perf), ([0].as_slice(), 3.0));
    assert!(Matrix::new(0, &[], &[]).is_none());
    assert!(Matrix::new(3, &[0.0; 4], &[0.0; 4]).is_none());
    assert!(Matrix::new(17, &[0.0; 17], &[0.0; 17]).is_none());
}

#[test]
fn ties_go_to_the_present_place_and_then_to_the_lower_item() {
    // Six alike, money for three of them up.
    let perf = [0.0, 5.0].repeat(6);
    let tco = [3.0, 1.0].repeat(6);
    let matrix = Matrix::new(2, &perf, &tco).expect("six rows");
    assert_eq!(solve(&matrix, 12.0, &[]).choice, [0, 0, 0, 1, 1, 1]);
    assert_eq!(solve(&matrix, 12.0, &[1, 0, 1, 0, 1, 0]).choice, [1, 0, 1, 0, 1, 0]);
    assert_eq!(solve(&matrix, 12.0, &[1, 1, 1, 1, 1, 0]).choice, [0, 0, 1, 1, 1, 0]);
    // Two options that cost the same in both ways: stay.
    let same = Matrix::new(3, &[0.0, 4.0, 4.0], &[9.0, 1.0, 1.0]).expect("one row");
    assert_eq!(solve(&same, 5.0, &[2]).choice, [2]);
    assert_eq!(solve(&same, 5.0, &[0]).choice, [1]);
}

#[test]
fn a_step_is_not_taken_without_the_one_below_it() {
    // Steps of nearly the same efficiency, 3.1 for 10 and 3.05 for 1, so that both are looked at
    // when the budget ends. There is room for 5: the small one alone would fit, and is no choice.
    let matrix = Matrix::new(3, &[40.0, 9.0, 5.95], &[1.0, 11.0, 12.0]).expect("one row");
    let solution = solve(&matrix, 6.0, &[]);
    assert_eq!((solution.choice.as_slice(), solution.lp_bound), ([0].as_slice(), 24.5));
    assert!(solution.proven);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn small_problems_are_solved_to_the_optimum(instance in small_instance()) {
        let solution = instance.solve(&[]);
        let Instance { options, perf, tco, budget } = &instance;
        match brute_force(*options, perf, tco, *budget) {
            None => {
                prop_assert!(!solution.feasible);
                prop_assert_eq!(solution.tco, instance.least_tco());
            }
            Some(best) => {
                prop_assert!(solution.feasible && solution.proven);
                prop_assert!(solution.tco <= *budget);
                prop_assert!(solution.perf >= best);
                prop_assert!(solution.perf <= best * (1.0 + GAP_ACCEPTED), "{solution:?} {best}");
                prop_assert!(solution.lp_bound <= best + 1e-9);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn larger_problems_keep_their_promises(instance in large_instance(), more in 0.0f64..0.2) {
        let solution = instance.solve(&[]);
        prop_assert!(solution.feasible);
        prop_assert!(solution.tco <= instance.budget);
        prop_assert!(solution.lp_bound <= solution.perf);
        prop_assert!((0.0..=1.0).contains(&solution.gap_to_lp));

        // The totals are those of the choice.
        let cells = solution.choice.iter().enumerate();
        let (perf, tco) = cells.fold((0.0, 0.0), |sum, (item, &option)| {
            let cell = item * instance.options + usize::from(option);
            (sum.0 + instance.perf[cell], sum.1 + instance.tco[cell])
        });
        prop_assert_eq!((solution.perf, solution.tco), (perf, tco));

        // Buffers that have seen another problem change nothing.
        let mut used = Solver::default();
        let matrix = Matrix::new(instance.options, &instance.perf, &instance.tco).expect("full");
        used.solve(&matrix, instance.budget * 0.9, &[]);
        prop_assert_eq!(&used.solve(&matrix, instance.budget, &[]), &solution);

        // More money never costs time, and a bound holds for every smaller budget.
        let richer = used.solve(&matrix, instance.budget * (1.0 + more), &[]);
        if solution.proven && richer.proven {
            prop_assert!(richer.perf <= solution.perf * (1.0 + GAP_ACCEPTED));
        }
        prop_assert!(richer.lp_bound <= solution.lp_bound * (1.0 + 1e-9));
    }
}
