//! `terrace bench slowdown`: does `--max-slowdown` keep its promise on real programs, a change of
//! their popular data included, and does it save what the best fixed knob saves?
//!
//! The runs are those of `terrace bench paper`: rounds, plain DRAM between them, medians. In the
//! order of the flow: which part of a run counts as steady and what comes after a change
//! (`steady`), what all runs say and what was promised (`verdict`), and what is shown (`tables`).

use std::path::PathBuf;

use anyhow::{ensure, Result};
use serde_json::{json, Value};

use super::configurations::Configuration;
use super::record::{self, Record, Settings};
use super::{check, chosen_workloads, environment, open_folder, run_all, schedule};
use super::{Planned, SeriesArgs};
use crate::bench::kernel_swap::catch_interrupts;
use crate::config::{check_alpha, RunConfig, WINDOW_S_DEFAULT};
use crate::say;
use verdict::Asked;

mod steady;
mod tables;
#[cfg(test)]
mod tests;
mod verdict;

/// All there are, in the order they run in.
const WORKLOADS: &[&str] = &["redis", "memcached", "bfs", "churn"];
/// The fixed knobs that the policy is held against.
const GRID: &[f64] = &[0.95, 0.9, 0.8, 0.65, 0.5, 0.3, 0.1];
const GRID_QUICK: &[f64] = &[0.9, 0.5, 0.1];

/// --max-slowdown held against the best fixed alpha, on programs that change
///
/// Runs every workload with --max-slowdown, with each fixed alpha of a grid and on plain DRAM, in
/// rounds, each round in another order with DRAM before, between and after. In the middle of the
/// measured part other data becomes popular. Steady state is the measured part without the two
/// windows after that. Programs take turns with a plain one, as in `bench paper`. A run that has
/// ended is a file in DIR/runs; started again with the same settings, it goes on where it was
/// interrupted.
///
/// DIR: report.md, results.json, settings.json, runs/*.json.
///
/// JSON (--json, results.json): `workloads[]` with `name`, `target` (share), `measured` (slowdown
/// in steady state: time for the same work over that of DRAM, less 1; of servers both over that of
/// the plain one they took turns with), `tco_saved`,
/// `tco_saved_best_grid` (the largest saving among the alphas that were at most `target` slower;
/// nothing is interpolated), `best_grid_alpha`, `grid[]`, `change` (windows after the change),
/// `noise`, `bars[]` (`what`, `measured`, `verdict`), `undecided`, `runs_raw[]`;
/// `settings`, `environment`, `skipped[]`.
#[derive(clap::Args, Clone, Debug)]
pub struct SlowdownArgs {
    /// A look at it: 64 MiB, short runs, one round, three alphas
    #[arg(long)]
    pub quick: bool,
    /// Which workloads, by comma: redis, memcached, bfs, churn [default: all]
    #[arg(long, value_delimiter = ',')]
    pub workloads: Vec<String>,
    /// Slowdown that is accepted, in per cent
    #[arg(long, value_name = "PERCENT", default_value_t = 5.0)]
    pub target: f64,
    /// Fixed alphas, by comma [default: 0.95,0.9,0.8,0.65,0.5,0.3,0.1; quick: 0.9,0.5,0.1]
    #[arg(long, value_name = "ALPHAS", value_delimiter = ',')]
    pub grid: Vec<f64>,
    /// Size of a workload's data in MiB [default: 512; quick: 64]
    #[arg(long, value_name = "MIB")]
    pub size: Option<u64>,
    /// Measured seconds of a run [default: 120; quick: 16]
    #[arg(long)]
    pub seconds: Option<f64>,
    /// Seconds a run is driven before [default: 90; quick: 8]
    #[arg(long)]
    pub warmup: Option<f64>,
    /// Length of a profile window in seconds, at least 1 [default: 5; quick: 1]
    #[arg(long)]
    pub window: Option<f64>,
    /// Seconds into the measured part after which other data is popular; 0: it stays
    /// [default: half of --seconds]
    #[arg(long, value_name = "SECONDS")]
    pub phase_at: Option<f64>,
    /// Where runs and reports go
    #[arg(long, value_name = "DIR", default_value = "build/slowdown")]
    pub out: PathBuf,
    /// What both evaluations ask.
    #[command(flatten)]
    pub series: SeriesArgs,
}

impl SlowdownArgs {
    fn pick<T>(&self, given: Option<T>, full: T, quick: T) -> T {
        given.unwrap_or(if self.quick { quick } else { full })
    }

    fn settings(&self) -> Result<Settings> {
        let warmup_s = self.pick(self.warmup, 90.0, 8.0);
        let seconds = self.pick(self.seconds, 120.0, 16.0);
        let settings = Settings {
            size_mib: self.pick(self.size, 512, 64),
            seconds,
            warmup_s,
            dram_warmup_s: warmup_s.min(super::DRAM_WARMUP_S_MAX),
            window_s: self.pick(self.window, WINDOW_S_DEFAULT, 1.0),
            seed: self.series.seed,
            phase_at_s: self.phase_at.unwrap_or(seconds / 2.0),
            has_beside: true,
            cooling_windows: RunConfig::default().cooling_windows,
        };
        check(&settings)?;
        ensure!(settings.window_s >= 1.0, "--window must be at least 1: loads report every second");
        steady::check(&settings)?;
        Ok(settings)
    }

    fn grid(&self) -> Result<Vec<f64>> {
        let default = if self.quick { GRID_QUICK } else { GRID };
        let mut grid = if self.grid.is_empty() { default.to_vec() } else { self.grid.clone() };
        for alpha in &grid {
            check_alpha(*alpha).map_err(|why| anyhow::anyhow!("--grid: {why}"))?;
        }
        grid.sort_by(|a, b| b.total_cmp(a));
        grid.dedup();
        Ok(grid)
    }
}

/// Runs the evaluation.
pub fn run(args: SlowdownArgs) -> Result<()> {
    let settings = args.settings()?;
    let workloads = chosen_workloads(&args.workloads, WORKLOADS)?;
    ensure!(args.target > 0.0 && args.target <= 1000.0, "--target must be above 0, at most 1000");
    let rounds = args.series.rounds(args.quick)?;
    let grid = args.grid()?;
    let policy = Configuration::at_slowdown(args.target);
    let knobs: Vec<Configuration> = grid.iter().map(|a| Configuration::at_alpha(*a)).collect();
    let configs: Vec<&Configuration> = std::iter::once(&policy).chain(&knobs).collect();
    open_folder(&args.out, &settings)?;
    let mut skipped = Vec::new();
    if !args.series.report_only {
        catch_interrupts();
        let setting = args.series.setting(&settings)?;
        let runs = schedule::plan(&workloads, &configs, rounds, settings.seed);
        let planned = Planned { runs: &runs, configs: &configs };
        let outcome = run_all(&args.out, &setting, planned, None, &mut skipped);
        if outcome.is_err() {
            say!("terrace: the same command goes on where this stopped");
        }
        outcome?;
    }
    let records = record::load_all(&args.out, &settings);
    ensure!(!records.is_empty(), "{} holds no run of these settings", args.out.display());
    let asked = Asked {
        target: args.target / 100.0,
        policy: policy.name.to_owned(),
        grid: grid.iter().zip(&knobs).map(|(alpha, c)| (*alpha, c.name.to_owned())).collect(),
    };
    write_reports(&args, &settings, &asked, &records, &skipped)
}

fn write_reports(
    args: &SlowdownArgs,
    settings: &Settings,
    asked: &Asked,
    records: &[Record],
    skipped: &[String],
) -> Result<()> {
    let workloads = verdict::of_all(records, asked, settings);
    ensure!(!workloads.is_empty(), "no run of {} is there yet", asked.policy);
    let mut environment = environment();
    if let Value::Object(all) = &mut environment {
        // Of the kernel's side, which has no part in this.
        all.remove("zswap");
    }
    let results = json!({
        "workloads": workloads,
        "settings": settings,
        "environment": environment,
        "skipped": skipped,
    });
    let text = serde_json::to_string_pretty(&results)? + "\n";
    let said = tables::render(&workloads, settings, &environment, skipped);
    record::write_whole(&args.out.join("results.json"), &text)?;
    record::write_whole(&args.out.join("report.md"), &said)?;
    if let Some(path) = &args.series.json {
        record::write_whole(path, &text)?;
    }
    print!("{said}");
    Ok(())
}
