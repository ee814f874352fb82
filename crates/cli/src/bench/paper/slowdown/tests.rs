//! Verdicts and tables from runs that are made up.

use clap::Parser;

use super::super::record::{Memory, RunId, Second};
use super::super::statistics::Verdict;
use super::verdict::WorkloadSlowdown;
use super::*;

fn settings() -> Settings {
    Settings {
        size_mib: 64,
        seconds: 20.0,
        warmup_s: 4.0,
        dram_warmup_s: 2.0,
        window_s: 2.0,
        seed: 1,
        phase_at_s: 10.0,
        has_beside: false,
        cooling_windows: 3,
    }
}

fn asked(alphas: &[f64]) -> Asked {
    Asked {
        target: 0.05,
        policy: "slowdown-5".into(),
        grid: alphas.iter().map(|alpha| (*alpha, format!("alpha-{alpha}"))).collect(),
    }
}

/// How a configuration fares: slower by, saved, and slower by in each window after the change.
#[derive(Clone)]
struct Made<'a>(&'a str, f64, f64, &'a [f64]);

/// A run that is `speed` times as quick and as dear as DRAM on a quiet machine.
fn run(id: RunId, made: &Made<'_>, speed: f64) -> Record {
    let settings = settings();
    let begin = if id.config == "dram" { settings.dram_warmup_s } else { settings.warmup_s };
    let mut run = Record { id, settings, ..Record::default() };
    for n in 1..=(begin + 20.0) as usize {
        let t_s = n as f64;
        let since = t_s - 0.5 - begin - 10.0;
        let windows = if since > 0.0 { made.3 } else { &[] };
        let slowdown = windows.get((since / 2.0) as usize).copied().unwrap_or(made.1);
        let work = 1000.0 * speed / (1.0 + slowdown);
        run.seconds.push(Second { t_s, ops: 1.0, work, work_s: 1.0, ..Second::default() });
        let usd_per_month = 1.0 - made.2;
        run.memory.push(Memory { t_s: t_s - 0.5, usd_per_month, ..Memory::default() });
    }
    run
}

/// Rounds of these between plain runs, which waver by so much.
fn series(rounds: usize, all: &[Made<'_>], waver: f64) -> Vec<Record> {
    let mut records = Vec::new();
    for round in 0..rounds {
        let dram = Made("dram", 0.0, 0.0, &[]);
        let order = std::iter::once(&dram).chain(all).chain(std::iter::once(&dram));
        for (position, made) in order.enumerate() {
            let config = made.0.to_owned();
            let id = RunId { workload: "churn".into(), config, round, position };
            // The machine is slower in every other round, DRAM and all.
            let machine = if round % 2 == 0 { 1.0 } else { 0.7 };
            let is_last = position == all.len() + 1;
            records.push(run(id, made, machine * if is_last { 1.0 + waver } else { 1.0 }));
        }
    }
    records
}

fn one(records: &[Record], alphas: &[f64]) -> WorkloadSlowdown {
    let mut all = verdict::of_all(records, &asked(alphas), &settings());
    assert_eq!(all.len(), 1);
    all.remove(0)
}

fn verdicts(w: &WorkloadSlowdown) -> Vec<Verdict> {
    w.bars.iter().map(|bar| bar.verdict).collect()
}

use Verdict::{Met, Missed, Undecided};

const ALPHAS: &[f64] = &[0.9, 0.5, 0.1];
const REACTS: &[f64] = &[0.8, 0.2];
const GOOD: &[Made<'_>] = &[
    Made("slowdown-5", 0.048, 0.42, REACTS),
    Made("alpha-0.9", 0.01, 0.20, &[]),
    Made("alpha-0.5", 0.04, 0.44, &[]),
    Made("alpha-0.1", 0.20, 0.70, &[]),
];

#[test]
fn the_best_alpha_is_the_one_that_saves_most_within_the_target() {
    let w = one(&series(5, GOOD, 0.002), ALPHAS);
    assert_eq!(verdicts(&w), [Met, Met, Met], "{:?}", w.bars);
    assert!((w.measured - 0.048).abs() < 0.002 && (w.tco_saved - 0.42).abs() < 1e-9, "{w:?}");
    assert_eq!((w.best_grid_alpha, w.runs, w.noise.pairs, w.grid.len()), (Some(0.5), 5, 5, 3));
    assert!((w.tco_saved_best_grid - 0.44).abs() < 1e-9);
    assert_eq!(w.beyond_best_grid.as_ref().and_then(|p| p.alpha), Some(0.1));
    let change = w.change.as_ref().unwrap();
    assert_eq!((change.windows_until_inside, change.slowdowns.len()), (Some(2), 5));
    assert!((change.slowdowns[0] - 0.8).abs() < 0.01 && !w.undecided);
    // What came in the two windows after the change is in no figure of the steady state.
    let raw = w.raw.iter().find(|r| r.config == "slowdown-5").unwrap();
    assert!((raw.slowdown.unwrap() - 0.048).abs() < 0.002 && raw.us_per_work_after.len() == 5);
    assert!(w.raw.iter().filter(|r| r.config == "dram").all(|r| r.slowdown.is_none()));
    assert_eq!(w.raw.len(), 5 * 6);
}

#[test]
fn promises_that_are_broken_are_missed() {
    let mut made = GOOD.to_vec();
    made[0] = Made("slowdown-5", 0.09, 0.38, &[0.8, 0.7, 0.6, 0.5, 0.4]);
    let w = one(&series(5, &made, 0.002), ALPHAS);
    assert_eq!(verdicts(&w), [Missed, Missed, Missed], "{:?}", w.bars);
    assert_eq!(w.change.unwrap().windows_until_inside, None);
}

#[test]
fn what_one_round_says_is_undecided() {
    let w = one(&series(1, GOOD, 0.002), ALPHAS);
    assert_eq!(verdicts(&w), [Undecided, Undecided, Undecided]);
    assert!(w.undecided && w.best_grid_alpha == Some(0.5));
}

#[test]
fn which_alpha_is_the_best_may_be_in_doubt() {
    // Quick enough within the noise, it would save too much for the promise.
    let mut made = GOOD.to_vec();
    made[3] = Made("alpha-0.1", 0.052, 0.70, &[]);
    let quiet = one(&series(5, &made, 0.0), ALPHAS);
    assert_eq!((quiet.best_grid_alpha, verdicts(&quiet)[1]), (Some(0.5), Met));
    let noisy = one(&series(5, &made, 0.01), ALPHAS);
    assert_eq!(verdicts(&noisy)[1], Undecided, "{:?}", noisy.bars);
}

#[test]
fn without_an_alpha_within_the_target_plain_dram_is_the_best() {
    let w = one(&series(3, GOOD, 0.0), &[0.1]);
    assert_eq!((w.best_grid_alpha, w.tco_saved_best_grid), (None, 0.0));
    assert_eq!(verdicts(&w)[1], Met);
    assert_eq!(verdicts(&one(&series(3, GOOD, 0.0), &[]))[1], Undecided, "no grid was run");
}

#[test]
fn reports_show_every_figure() {
    let all = verdict::of_all(&series(5, GOOD, 0.002), &asked(ALPHAS), &settings());
    let environment = json!({"machine": "a machine", "kernel": "6.18"});
    let text = tables::render(&all, &settings(), &environment, &["redis: not here".to_owned()]);
    for part in
        ["## churn", "alpha 0.5 (the best)", "| 42.0 %", "Nothing is interpolated", "not here"]
    {
        assert!(text.contains(part), "{part} is not in\n{text}");
    }
    assert!(!text.contains("NaN") && !text.contains("inf "), "{text}");
    let json = serde_json::to_value(&all).unwrap();
    for key in ["name", "target", "measured", "tco_saved", "tco_saved_best_grid", "undecided"] {
        assert!(!json[0][key].is_null(), "{key}");
    }
}

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    slowdown: SlowdownArgs,
}

fn args(words: &[&str]) -> SlowdownArgs {
    Line::parse_from(["slowdown"].iter().chain(words)).slowdown
}

#[test]
fn what_is_asked_for_is_checked() {
    assert_eq!(args(&["--grid", "0.1,0.9,0.5,0.9"]).grid().unwrap(), [0.9, 0.5, 0.1]);
    assert_eq!(args(&["--quick"]).grid().unwrap(), GRID_QUICK);
    assert!(args(&["--grid", "1.5"]).grid().is_err());
    for words in [&[][..], &["--quick"]] {
        let s = args(words).settings().unwrap();
        assert!(s.phase_at_s == s.seconds / 2.0 && !steady::spans(&s).is_empty());
    }
    assert_eq!(args(&["--phase-at", "0"]).settings().unwrap().phase_at_s, 0.0);
    for (words, named) in [
        (&["--window", "0.5"][..], "--window"),
        (&["--phase-at", "119"], "--phase-at"),
        (&["--size", "3"], "--size"),
    ] {
        let error = args(words).settings().unwrap_err().to_string();
        assert!(error.contains(named), "{words:?}: {error}");
    }
    assert!(chosen_workloads(&args(&["--workloads", "chess"]).workloads, WORKLOADS).is_err());
}
