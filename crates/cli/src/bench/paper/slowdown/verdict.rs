//! From the records of runs to what was promised: the policy and each knob of the grid against the
//! plain runs beside them, and the policy against the best knob.
//!
//! The best knob is one that was run: of the alphas that were at most so much slower, the one that
//! saved most. Nothing is interpolated between alphas, so the best alpha there is may save more:
//! what the next one beyond the target saved is said beside it, and the truth lies between.

use std::ops::Range;

use serde::Serialize;

use super::super::bars::Bar;
use super::super::record::{Record, Settings};
use super::super::schedule::DRAM;
use super::super::statistics::{noise, Estimate, Verdict};
use super::super::summary::Baseline;
use super::steady;

/// What is accepted is broken from so many times that on: 6 % for 5 %.
const BROKEN: f64 = 1.2;
/// Points of TCO that the policy may save less than the best knob.
const GIVE_AWAY: f64 = 0.03;

/// What was asked for.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Asked {
    /// The slowdown that is accepted, as a share.
    pub target: f64,
    /// Name of the configuration with `--max-slowdown`.
    pub policy: String,
    /// Alphas and the names of their configurations, from the largest alpha to the smallest.
    pub grid: Vec<(f64, String)>,
}

/// One configuration in steady state.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
pub(super) struct Point {
    /// The knob; null for the policy.
    pub alpha: Option<f64>,
    /// Runs behind the figures.
    pub runs: usize,
    /// Median of the time for the same work over that of DRAM, less 1.
    pub slowdown: f64,
    /// Its interval.
    pub slowdown_ci: [f64; 2],
    /// How sure the intervals are.
    pub ci_coverage: f64,
    /// Median share of the cost of memory that is saved (equation 12).
    pub tco_saved: f64,
    /// Its interval.
    pub tco_saved_ci: [f64; 2],
}

/// What came after other data had become popular.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub(super) struct Change {
    /// Seconds into the measured part.
    pub at_s: f64,
    /// Median slowdown in each window after it.
    pub slowdowns: Vec<f64>,
    /// Windows until it was inside 1.2 times the target again, for two windows; null: never.
    pub windows_until_inside: Option<usize>,
    /// What plain runs differ by in such windows.
    pub noise: f64,
}

/// What plain runs differ by that follow each other, as shares; null without a pair.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub(super) struct Noise {
    /// Pairs of runs behind it.
    pub pairs: usize,
    /// Of the time for the same work in steady state.
    pub slowdown: f64,
    /// Of the cost of memory.
    pub usd: f64,
}

/// One run, nothing compared.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub(super) struct Raw {
    /// Configuration, round, place in the round.
    pub config: String,
    /// Repetition, from 0.
    pub round: usize,
    /// Place in the order of its round, from 0.
    pub position: usize,
    /// Microseconds for a unit of work in steady state.
    pub us_per_work: f64,
    /// The same in each window after the change.
    pub us_per_work_after: Vec<f64>,
    /// Cost of memory in steady state, US dollars per month.
    pub usd_per_month: f64,
    /// Against the plain runs beside it; null for those themselves.
    pub slowdown: Option<f64>,
    /// The same for money.
    pub tco_saved: Option<f64>,
    /// 99th percentile of the latency over the whole measured part, in microseconds.
    pub p99_us: f64,
}

/// One workload.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub(super) struct WorkloadSlowdown {
    /// Its name.
    pub name: String,
    /// The slowdown that is accepted, as a share.
    pub target: f64,
    /// The slowdown that was measured in steady state, as a share.
    pub measured: f64,
    /// Its interval.
    pub measured_ci: [f64; 2],
    /// How sure the intervals are.
    pub ci_coverage: f64,
    /// Runs of the policy.
    pub runs: usize,
    /// Share of the cost of memory that it saved in steady state.
    pub tco_saved: f64,
    /// Its interval.
    pub tco_saved_ci: [f64; 2],
    /// The most that an alpha saved that was at most `target` slower; 0, which is plain DRAM, if
    /// none was.
    pub tco_saved_best_grid: f64,
    /// That alpha.
    pub best_grid_alpha: Option<f64>,
    /// The alpha that saves least of those that were slower than that.
    pub beyond_best_grid: Option<Point>,
    /// All alphas.
    pub grid: Vec<Point>,
    /// What came after the change, if there was one.
    pub change: Option<Change>,
    /// What equal runs differ by.
    pub noise: Noise,
    /// The promises and what became of them.
    pub bars: Vec<Bar>,
    /// Whether any of them is undecided.
    pub undecided: bool,
    /// Every run.
    #[serde(rename = "runs_raw")]
    pub raw: Vec<Raw>,
}

impl Noise {
    /// How far the slowdown of a configuration may be off.
    fn of_slowdown(&self, point: &Point) -> f64 {
        doubt(point.runs, point.slowdown_ci, self.slowdown)
    }

    /// How far what it saves may be off.
    fn of_saved(&self, point: &Point) -> f64 {
        doubt(point.runs, point.tco_saved_ci, self.usd)
    }
}

/// A single run says nothing about how far it may be off.
fn doubt(runs: usize, ci: [f64; 2], noise: f64) -> f64 {
    if runs < 2 {
        return f64::INFINITY;
    }
    noise.max((ci[1] - ci[0]) / 2.0)
}

/// All workloads of which there is a run of the policy, in the order of their names.
pub(super) fn of_all(
    records: &[Record],
    asked: &Asked,
    settings: &Settings,
) -> Vec<WorkloadSlowdown> {
    let mut names: Vec<&str> = records.iter().map(|r| r.id.workload.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    let of = |name: &str| {
        let own = records.iter().filter(|r| r.id.workload == name).collect::<Vec<_>>();
        workload(name, &own, asked, settings)
    };
    names.into_iter().filter_map(of).collect()
}

fn workload(
    name: &str,
    records: &[&Record],
    asked: &Asked,
    settings: &Settings,
) -> Option<WorkloadSlowdown> {
    let steady = steady::spans(settings);
    let plain: Vec<&Record> = records.iter().copied().filter(|r| r.id.config == DRAM).collect();
    let policy = point(None, &asked.policy, records, &plain, &steady)?;
    let grid: Vec<Point> = asked
        .grid
        .iter()
        .filter_map(|(alpha, name)| point(Some(*alpha), name, records, &plain, &steady))
        .collect();
    let noise = Noise {
        pairs: pairs(&plain).len(),
        slowdown: noise_of(&plain, |r| steady::relative(r, &steady)),
        usd: noise_of(&plain, |r| steady::usd(r, &steady)),
    };
    let change = change(records, &plain, asked, settings);
    let mut bars = vec![is_kept(&policy, asked.target, &noise)];
    bars.push(saves_as_much(&policy, &grid, asked.target, &noise));
    bars.extend(change.as_ref().map(|(change, runs)| reacts(change, *runs, asked.target)));
    let best = best(&grid, asked.target, |_| 0.0);
    let beyond = grid.iter().filter(|p| p.slowdown > asked.target);
    Some(WorkloadSlowdown {
        name: name.to_owned(),
        target: asked.target,
        measured: policy.slowdown,
        measured_ci: policy.slowdown_ci,
        ci_coverage: policy.ci_coverage,
        runs: policy.runs,
        tco_saved: policy.tco_saved,
        tco_saved_ci: policy.tco_saved_ci,
        tco_saved_best_grid: best.map_or(0.0, |p| p.tco_saved),
        best_grid_alpha: best.and_then(|p| p.alpha),
        beyond_best_grid: beyond.min_by(|a, b| a.tco_saved.total_cmp(&b.tco_saved)).cloned(),
        change: change.map(|(change, _)| change),
        undecided: bars.iter().any(|bar| bar.verdict == Verdict::Undecided),
        raw: records.iter().map(|r| raw(r, &plain, settings)).collect(),
        grid,
        noise,
        bars,
    })
}

/// Time for the same work over that of the plain runs beside it, less 1.
fn slowdown(run: &Record, base: &Baseline<'_>, parts: &[Range<f64>]) -> f64 {
    let of = |r: &Record| steady::relative(r, parts);
    of(run) / base.get(of) - 1.0
}

fn saved(run: &Record, base: &Baseline<'_>, parts: &[Range<f64>]) -> f64 {
    let of = |r: &Record| steady::usd(r, parts);
    1.0 - of(run) / base.get(of)
}

fn point(
    alpha: Option<f64>,
    name: &str,
    records: &[&Record],
    plain: &[&Record],
    steady: &[Range<f64>],
) -> Option<Point> {
    let runs = records.iter().filter(|r| r.id.config == name);
    let pairs: Vec<_> = runs.filter_map(|r| Some((*r, Baseline::of(r, plain)?))).collect();
    let slowdown = Estimate::of(pairs.iter().map(|(run, base)| slowdown(run, base, steady)));
    let saved = Estimate::of(pairs.iter().map(|(run, base)| saved(run, base, steady)));
    (slowdown.n > 0 && saved.n > 0).then(|| Point {
        alpha,
        runs: slowdown.n.min(saved.n),
        slowdown: slowdown.median,
        slowdown_ci: [slowdown.low, slowdown.high],
        ci_coverage: slowdown.coverage,
        tco_saved: saved.median,
        tco_saved_ci: [saved.low, saved.high],
    })
}

/// The alpha that saves most of those that were at most `target` slower; `allowance` is what an
/// alpha may be slower than that.
fn best(grid: &[Point], target: f64, allowance: impl Fn(&Point) -> f64) -> Option<&Point> {
    grid.iter()
        .filter(|p| p.slowdown <= target + allowance(p))
        .max_by(|a, b| a.tco_saved.total_cmp(&b.tco_saved))
}

fn is_kept(policy: &Point, target: f64, noise: &Noise) -> Bar {
    let bar = BROKEN * target;
    Bar {
        what: format!("at most {:.1} % slower in steady state", bar * 100.0),
        measured: format!("{:.1} % slower", policy.slowdown * 100.0),
        verdict: Verdict::at_least(bar - policy.slowdown, 0.0, noise.of_slowdown(policy)),
    }
}

fn saves_as_much(policy: &Point, grid: &[Point], target: f64, noise: &Noise) -> Bar {
    let what = format!(
        "within {:.0} points of what the best fixed alpha saves that is at most {:.1} % slower",
        GIVE_AWAY * 100.0,
        target * 100.0
    );
    if grid.is_empty() {
        return Bar { what, measured: "no alpha was run".into(), verdict: Verdict::Undecided };
    }
    let against = |best: Option<&Point>| {
        let (other, doubt) = match best {
            Some(p) => (p.tco_saved, noise.of_saved(p).max(noise.of_saved(policy))),
            None => (0.0, noise.of_saved(policy)),
        };
        Verdict::at_least(policy.tco_saved - other, -GIVE_AWAY, doubt)
    };
    // Which alpha is the best one is in doubt, too: met if against every one that may be, missed
    // if against one that surely is within the target.
    let sure = against(best(grid, target, |p| -noise.of_slowdown(p)));
    let possible = against(best(grid, target, |p| noise.of_slowdown(p)));
    let verdict = match (sure, possible) {
        (_, Verdict::Met) => Verdict::Met,
        (Verdict::Missed, _) => Verdict::Missed,
        _ => Verdict::Undecided,
    };
    let other = match best(grid, target, |_| 0.0) {
        Some(Point { alpha: Some(alpha), tco_saved, slowdown, .. }) => {
            format!("alpha {alpha} {:.1} % at {:.1} % slower", tco_saved * 100.0, slowdown * 100.0)
        }
        _ => "no alpha was that quick".to_owned(),
    };
    let measured = format!("{:.1} % saved; {other}", policy.tco_saved * 100.0);
    Bar { what, measured, verdict }
}

/// The windows after the change, and of how many runs they are.
fn change(
    records: &[&Record],
    plain: &[&Record],
    asked: &Asked,
    settings: &Settings,
) -> Option<(Change, usize)> {
    let windows = steady::windows_after(settings);
    if windows.is_empty() {
        return None;
    }
    let runs: Vec<&Record> =
        records.iter().copied().filter(|r| r.id.config == asked.policy).collect();
    let of = |window: &Range<f64>| {
        let parts = std::slice::from_ref(window);
        let all = runs.iter().filter_map(|r| Some(slowdown(r, &Baseline::of(r, plain)?, parts)));
        Some(Estimate::of(all)).filter(|e| e.n > 0).map_or(f64::NAN, |e| e.median)
    };
    let slowdowns: Vec<f64> = windows.iter().map(of).collect();
    let noises = windows
        .iter()
        .map(|window| noise_of(plain, |r| steady::relative(r, std::slice::from_ref(window))));
    let change = Change {
        at_s: settings.phase_at_s,
        windows_until_inside: steady::windows_until_inside(&slowdowns, BROKEN * asked.target),
        slowdowns,
        noise: Estimate::of(noises.filter(|n| n.is_finite())).median,
    };
    Some((change, runs.len()))
}

fn reacts(change: &Change, runs: usize, target: f64) -> Bar {
    let windows = steady::REACTION_WINDOWS;
    let third = change.slowdowns.get(windows).copied().unwrap_or(f64::NAN);
    let until = match change.windows_until_inside {
        Some(0) => "never outside for two windows".to_owned(),
        Some(n) => format!("inside after {n}"),
        None => "never inside".to_owned(),
    };
    let shown = change.slowdowns.iter().take(windows + 2);
    let shown: Vec<String> = shown.map(|s| format!("{:.1}", s * 100.0)).collect();
    Bar {
        what: format!("inside it again in the window after the {windows} that follow a change"),
        measured: format!("{} % slower in the windows after it; {until}", shown.join(", ")),
        verdict: match runs {
            0 | 1 => Verdict::Undecided,
            _ => Verdict::at_least(BROKEN * target - third, 0.0, change.noise),
        },
    }
}

/// Plain runs that follow each other in a round.
fn pairs<'a>(plain: &[&'a Record]) -> Vec<(&'a Record, &'a Record)> {
    let pairs = plain.windows(2).map(|pair| (pair[0], pair[1]));
    pairs.filter(|(a, b)| a.id.round == b.id.round).collect()
}

fn noise_of(plain: &[&Record], of: impl Fn(&Record) -> f64) -> f64 {
    noise(&pairs(plain).into_iter().map(|(a, b)| (of(a), of(b))).collect::<Vec<_>>())
}

fn raw(run: &Record, plain: &[&Record], settings: &Settings) -> Raw {
    let spans = steady::spans(settings);
    let us = |parts: &[Range<f64>]| steady::seconds_per_work(run, parts) * 1e6;
    let base = Baseline::of(run, plain).filter(|_| run.id.config != DRAM);
    let windows = steady::windows_after(settings);
    Raw {
        config: run.id.config.clone(),
        round: run.id.round,
        position: run.id.position,
        us_per_work: us(&spans),
        us_per_work_after: windows.iter().map(|w| us(std::slice::from_ref(w))).collect(),
        usd_per_month: steady::usd(run, &spans),
        slowdown: base.as_ref().map(|base| slowdown(run, base, &spans)),
        tco_saved: base.as_ref().map(|base| saved(run, base, &spans)),
        p99_us: run.load.p99_us,
    }
}
