//! What a simulation found, for people and as JSON.

use std::fmt::Write as _;

use serde::Serialize;

use super::hindsight::Savings;
use super::replay::Outcome;
use crate::trace::{Command, TraceTier};

/// One policy's results. Shares are 0 to 1.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct PolicyResult {
    /// The policy and its knob.
    pub name: String,
    /// Share of the money saved.
    pub tco_saved: f64,
    /// Time lost to faults and moves as a share of the running time.
    pub stall_share: f64,
    /// The part of it that is faults.
    pub fault_share: f64,
    /// The runtime's processor time, whoever wanted it, as a share of the running time.
    pub cpu_tax: f64,
    /// Faults from tiers.
    pub faults: u64,
    /// Pages moved by plans.
    pub moves: u64,
    /// Share that the oracle's placement saves with the same lost time.
    pub oracle_tco_saved: Option<f64>,
    /// Share that nothing can save more than, with the same lost time.
    pub oracle_bound: Option<f64>,
    /// Share that the best placement which never changes saves with the same lost time.
    pub unmoved_tco_saved: Option<f64>,
    /// `tco_saved` / `oracle_tco_saved`; none where there is next to nothing to save.
    pub of_oracle: Option<f64>,
    /// Whether it is `cold-age` and the trace is shorter than what that waits before it demotes.
    pub is_warming_up: bool,
}

/// Where less than this share can be saved, which the table shows as 0.00 %, a part of it says
/// nothing.
const SAVED_MIN: f64 = 5e-5;

impl PolicyResult {
    /// Of a run, and of what could be saved at its slowdown.
    pub fn new(name: &str, outcome: &Outcome, savings: Option<Savings>) -> PolicyResult {
        let found = savings.and_then(|s| s.found);
        PolicyResult {
            name: name.into(),
            tco_saved: outcome.saved(),
            stall_share: outcome.slowdown(),
            fault_share: outcome.stalled_ns / outcome.running_ns.max(1.0),
            cpu_tax: outcome.cpu_tax(),
            faults: outcome.faults.round() as u64,
            moves: outcome.moved_pages.round() as u64,
            oracle_tco_saved: found,
            oracle_bound: savings.map(|s| s.bound),
            unmoved_tco_saved: savings.and_then(|s| s.unmoved),
            of_oracle: found.filter(|f| *f >= SAVED_MIN).map(|found| outcome.saved() / found),
            is_warming_up: outcome.is_warming_up(),
        }
    }
}

/// The recorded run beside its simulation.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Live {
    /// As measured.
    pub tco_saved: f64,
    /// As measured.
    pub stall_share: f64,
    /// As measured.
    pub cpu_tax: f64,
    /// As counted.
    pub faults: u64,
    /// As counted.
    pub moves: u64,
    /// Simulated / measured - 1, of the same policy; none where that cannot be simulated.
    pub tco_saved_error: Option<f64>,
    /// The same of the faults.
    pub faults_error: Option<f64>,
    /// Why these are none, if they are, for people.
    #[serde(skip)]
    pub not_compared: Option<String>,
}

impl Live {
    /// Of the recorded run and the simulated one; `unknown` is a knob of its policy that the trace
    /// does not say, so that the simulated one may have had another.
    pub fn new(live: &Outcome, simulated: Option<&Outcome>, unknown: Option<&str>) -> Live {
        let not_compared = match (simulated, unknown) {
            (None, _) => Some("what planned it cannot be simulated".into()),
            (_, Some(knob)) => Some(format!(
                "the trace is too old to say what {knob} was; \"as recorded\" has the default"
            )),
            (Some(_), None) => None,
        };
        let simulated = simulated.filter(|_| not_compared.is_none());
        let error = |now: f64, then: f64| (then > 0.0).then(|| now / then - 1.0);
        Live {
            tco_saved: live.saved(),
            stall_share: live.slowdown(),
            cpu_tax: live.cpu_tax(),
            faults: live.faults as u64,
            moves: live.moved_pages as u64,
            tco_saved_error: simulated.and_then(|s| error(s.saved_at_end(), live.saved_at_end())),
            faults_error: simulated.and_then(|s| error(s.faults, live.faults)),
            not_compared,
        }
    }
}

/// Of the policy that was asked for first: with `--bar` the one without a knob.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
pub struct Headline {
    /// See [`PolicyResult`].
    pub tco_saved: Option<f64>,
    /// See [`PolicyResult`].
    pub stall_share: Option<f64>,
    /// See [`PolicyResult`].
    pub moves: Option<u64>,
    /// See [`PolicyResult`].
    pub oracle_tco_saved: Option<f64>,
}

impl Headline {
    /// Of this policy; all none if none was simulated.
    pub fn new(of: Option<&PolicyResult>) -> Headline {
        Headline {
            tco_saved: of.map(|p| p.tco_saved),
            stall_share: of.map(|p| p.stall_share),
            moves: of.map(|p| p.moves),
            oracle_tco_saved: of.and_then(|p| p.oracle_tco_saved),
        }
    }
}

/// The policy without a knob against the best fixed knob, and against the oracle.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Bar {
    /// The policy.
    pub policy: PolicyResult,
    /// The most that fixed alphas save at its slowdown, between two of them interpolated; `None`
    /// if the slowest of them is faster, or the fastest slower.
    pub best_of_grid: Option<f64>,
    /// `best_of_grid` less what the policy saves, in points of a share: above 0 it falls short.
    pub behind_grid: Option<f64>,
    /// What the policy saves as a share of what the oracle does.
    pub of_oracle: Option<f64>,
}

impl Bar {
    /// Of the policy and the grid.
    pub fn new(policy: PolicyResult, grid: &[PolicyResult]) -> Bar {
        let best_of_grid = best_at(grid, policy.stall_share);
        Bar {
            best_of_grid,
            behind_grid: best_of_grid.map(|best| best - policy.tco_saved),
            of_oracle: policy.of_oracle,
            policy,
        }
    }

    /// What the grid saves beside the policy.
    fn beside_grid(&self) -> String {
        let (Some(best), Some(behind)) = (self.best_of_grid, self.behind_grid) else {
            return "no fixed alpha is as quick".into();
        };
        let points = format!("{:.1}", behind.abs() * 100.0);
        let beside = match (points.as_str(), behind > 0.0) {
            ("0.0", _) => "as much".into(),
            (_, true) => format!("{points} points more"),
            (_, false) => format!("{points} points less"),
        };
        format!("the best fixed alpha at that slowdown saves {}, {beside}", percent(best))
    }
}

/// The most that a grid saves at this slowdown. A knob between two that were tried is taken to do
/// what lies between them.
pub fn best_at(grid: &[PolicyResult], stall_share: f64) -> Option<f64> {
    let mut grid: Vec<(f64, f64)> = grid.iter().map(|r| (r.stall_share, r.tco_saved)).collect();
    grid.sort_by(|a, b| a.0.total_cmp(&b.0));
    let below = grid.iter().filter(|g| g.0 <= stall_share).map(|g| g.1);
    let between = grid.windows(2).filter_map(|pair| {
        let ((slow, saved), (slower, more)) = (pair[0], pair[1]);
        (slow <= stall_share && stall_share < slower)
            .then(|| saved + (more - saved) * (stall_share - slow) / (slower - slow))
    });
    below.chain(between).fold(None, |best, saved| Some(best.map_or(saved, |b: f64| b.max(saved))))
}

/// Everything.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Report {
    /// The trace.
    pub trace: String,
    /// `recorded`, `generated` or `merged`.
    pub source: String,
    /// Its programs.
    pub commands: Vec<Command>,
    /// Length of a window.
    pub window_s: f64,
    /// Windows of the longest-lived process.
    pub windows: usize,
    /// Regions that were simulated.
    pub regions: usize,
    /// Processes.
    pub processes: usize,
    /// How unevenly touches fall on the pages of a region: 0 if all are alike.
    pub unevenness: f64,
    /// One region in so many was simulated.
    pub sample: u64,
    /// What chance was drawn from.
    pub seed: u64,
    /// The tiers and their costs.
    pub tiers: Vec<TraceTier>,
    /// The run itself, if it was one.
    pub live: Option<Live>,
    /// The figures of the first policy.
    #[serde(flatten)]
    pub headline: Headline,
    /// The policies in the order in which they were asked for.
    pub policies: Vec<PolicyResult>,
    /// With `--bar`.
    pub bar: Option<Bar>,
    /// Time that the policies took, on this machine's processors.
    pub simulated_s: f64,
    /// Time that the oracle took.
    pub oracle_s: f64,
    /// Regions times windows times policies by that time.
    pub region_windows_per_s: f64,
}

fn percent(share: f64) -> String {
    format!("{:.2} %", share * 100.0)
}

fn maybe(share: Option<f64>) -> String {
    share.map_or("-".into(), percent)
}

fn signed(share: Option<f64>) -> String {
    share.map_or("-".into(), |share| format!("{:+.1} %", share * 100.0))
}

impl Report {
    /// As a table.
    pub fn table(&self) -> String {
        let mut out = String::new();
        let of = match self.sample {
            1 => String::new(),
            n => format!(" (one in {n})"),
        };
        let _ = writeln!(
            out,
            "{}: {}, {} processes, {} regions{of}, {} windows of {} s, unevenness {:.1}",
            self.trace,
            self.source,
            self.processes,
            self.regions,
            self.windows,
            self.window_s,
            self.unevenness,
        );
        for tier in &self.tiers {
            let _ = writeln!(
                out,
                "  {:<24} {:>8.1} us  ratio {:.3}  {:.3} USD/GiB-month  {}",
                tier.name,
                tier.fault_ns / 1e3,
                tier.ratio,
                tier.usd_per_gib_month,
                if tier.codec.is_some() { &tier.known } else { "" },
            );
        }
        let with_oracle = self.policies.iter().any(|p| p.oracle_bound.is_some());
        let _ = write!(
            out,
            "\n{:<24}  {:>9}  {:>9}  {:>7}  {:>10}  {:>11}",
            "policy", "saved", "slowdown", "tax", "faults", "pages moved"
        );
        if with_oracle {
            let _ = write!(
                out,
                "  {:>9}  {:>9}  {:>9}  {:>9}",
                "oracle", "bound", "unmoved", "of oracle"
            );
        }
        out.push('\n');
        if let Some(live) = &self.live {
            let _ = writeln!(
                out,
                "{:<24}  {:>9}  {:>9}  {:>7}  {:>10}  {:>11}",
                "(the run itself)",
                percent(live.tco_saved),
                percent(live.stall_share),
                percent(live.cpu_tax),
                live.faults,
                live.moves
            );
        }
        for p in &self.policies {
            let _ = write!(
                out,
                "{:<24}  {:>9}  {:>9}  {:>7}  {:>10}  {:>11}",
                p.name,
                percent(p.tco_saved),
                percent(p.stall_share),
                percent(p.cpu_tax),
                p.faults,
                p.moves
            );
            if with_oracle {
                let _ = write!(
                    out,
                    "  {:>9}  {:>9}  {:>9}  {:>9}",
                    maybe(p.oracle_tco_saved),
                    maybe(p.oracle_bound),
                    maybe(p.unmoved_tco_saved),
                    maybe(p.of_oracle)
                );
            }
            out.push('\n');
        }
        for p in self.policies.iter().filter(|p| p.is_warming_up) {
            let _ = writeln!(
                out,
                "\n{}: still warming up when the trace ended, so that nothing was demoted",
                p.name
            );
        }
        if let Some(live) = &self.live {
            let _ = match &live.not_compared {
                Some(why) => writeln!(out, "\nnot compared with the run itself: {why}"),
                None => writeln!(
                    out,
                    "\nsimulated against measured, same policy: saved {}, faults {}",
                    signed(live.tco_saved_error),
                    signed(live.faults_error)
                ),
            };
        }
        if let Some(bar) = &self.bar {
            let _ = writeln!(
                out,
                "\n{}: {} saved at {} slower; {}; {} of the oracle's (best placement that never \
                 changes: {} saved)",
                bar.policy.name,
                percent(bar.policy.tco_saved),
                percent(bar.policy.stall_share),
                bar.beside_grid(),
                maybe(bar.of_oracle),
                maybe(bar.policy.unmoved_tco_saved),
            );
        }
        let _ = writeln!(
            out,
            "\n{:.1} s simulated ({:.1} million region-windows a second), {:.1} s for the oracle",
            self.simulated_s,
            self.region_windows_per_s / 1e6,
            self.oracle_s
        );
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn result(stall_share: f64, tco_saved: f64) -> PolicyResult {
        let outcome = Outcome {
            tco: 1.0 - tco_saved,
            tco_all_dram: 1.0,
            running_ns: 1e9,
            stalled_ns: stall_share * 1e9,
            ..Outcome::default()
        };
        PolicyResult::new("x", &outcome, None)
    }

    #[test]
    fn between_two_knobs_lies_what_lies_between() {
        let grid = [result(0.10, 0.6), result(0.02, 0.3), result(0.04, 0.4)];
        let near = |stall, saved: f64| {
            let best = best_at(&grid, stall).expect("a grid point is faster");
            assert!((best - saved).abs() < 1e-9, "{best} at {stall}");
        };
        near(0.02, 0.3);
        near(0.03, 0.35);
        near(0.07, 0.5);
        near(0.5, 0.6);
        assert_eq!(best_at(&grid, 0.01), None);
        let bar = Bar::new(result(0.03, 0.30), &grid);
        assert!((bar.behind_grid.unwrap() - 0.05).abs() < 1e-9);
    }

    #[test]
    fn less_is_called_less() {
        let grid = [result(0.02, 0.3), result(0.04, 0.4)];
        let beside = |stall, saved| Bar::new(result(stall, saved), &grid).beside_grid();
        let best = "the best fixed alpha at that slowdown saves 30.00 %";
        assert_eq!(beside(0.02, 0.288), format!("{best}, 1.2 points more"));
        assert_eq!(beside(0.02, 0.306), format!("{best}, 0.6 points less"));
        assert_eq!(beside(0.02, 0.3002), format!("{best}, as much"));
        assert_eq!(beside(0.01, 0.3), "no fixed alpha is as quick");
    }

    #[test]
    fn of_nothing_to_save_there_is_no_share() {
        let outcome = Outcome { tco: 1.0 - 1e-9, tco_all_dram: 1.0, ..Outcome::default() };
        let of = |found| {
            let savings = Savings { found: Some(found), bound: found, unmoved: None };
            PolicyResult::new("x", &outcome, Some(savings)).of_oracle
        };
        assert_eq!(of(1e-9), None);
        assert!(of(0.001).is_some_and(|share| share < 1e-5));
    }

    #[test]
    fn a_run_beside_its_simulation() {
        let (live, simulated) = (
            Outcome { tco_at_end: 6.0, tco_all_dram: 10.0, faults: 100.0, ..Outcome::default() },
            Outcome { tco_at_end: 5.6, tco_all_dram: 10.0, faults: 95.0, ..Outcome::default() },
        );
        let both = Live::new(&live, Some(&simulated), None);
        assert!((both.tco_saved_error.unwrap() - 0.1).abs() < 1e-9);
        assert!((both.faults_error.unwrap() + 0.05).abs() < 1e-9);
        assert_eq!((both.not_compared, Live::new(&live, None, None).faults_error), (None, None));
        let of_old = Live::new(&live, Some(&simulated), Some("two_tier"));
        assert_eq!((of_old.tco_saved_error, of_old.faults_error), (None, None));
        let why = of_old.not_compared.expect("a reason");
        assert!(why.contains("too old to say what two_tier was"), "{why}");
    }
}
