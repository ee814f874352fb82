//! `terrace bench paper`: TierScape's evaluation (section 7) on this machine, with the kernel's own
//! zswap as the two-tier system.
//!
//! In the order of the flow: which configurations there are (`configurations`), in which order they
//! run (`schedule`), one run (`subject`) and what it takes (`meter`), the plain program that takes
//! `turns` with it, what is kept of it (`record`), what all runs say (`summary`, `statistics`),
//! what was promised (`bars`), and what is shown (`report`, `markdown`). `slowdown` makes the same
//! runs for another promise.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{bail, ensure, Context, Result};
use serde_json::{json, Value};

use super::kernel_swap::{catch_interrupts, interrupted, KernelSwap, KernelTier, SwapSpec};
use crate::config::{RunConfig, WINDOW_S_DEFAULT};
use crate::demo::machine::Machine;
use crate::demo::progress::Progress;
use crate::say;
use configurations::Configuration;
use record::{Record, RunId, Settings};
use subject::{Outcome, Setting};

mod bars;
mod configurations;
mod markdown;
mod meter;
mod record;
mod report;
mod schedule;
pub mod slowdown;
mod statistics;
mod subject;
mod summary;
#[cfg(test)]
mod tests;
mod turns;

/// All there are, in the order they run in.
const WORKLOADS: &[&str] = &["redis", "memcached", "bfs", "pagerank", "xsbench", "analytics"];
/// Plain DRAM has nothing to place; caches are warm after this.
const DRAM_WARMUP_S_MAX: f64 = 10.0;
/// What a run takes besides warm-up and measurement, at a guess, until some were made.
const OVERHEAD_S: f64 = 10.0;

/// TierScape's evaluation against the real kernel
///
/// Runs every workload under every configuration, in rounds, each round in another order and with
/// plain DRAM before, between and after; computes the cost of memory by equation 12 from resident
/// set and true pool bytes. The two-tier configurations run on this kernel's zswap (lzo, zsmalloc),
/// which needs root and is put back afterwards. A run that has ended is a file in DIR/runs; started
/// again with the same settings, it goes on where it was interrupted.
///
/// DIR: report.html, report.md, figure-8-WORKLOAD.svg, results.json, settings.json, runs/*.json.
///
/// JSON (--json, results.json): `workloads[]` with `name`, `rounds`, `dram`, `noise`, `bars[]`
/// (`what`, `measured`, `verdict`) and `configs[]` with `name`, `tco_saved`, `slowdown` (time for
/// the same work over that of DRAM, less 1), `slowdown_ci`, `p99_ratio`, `cpu_tax`, `undecided` and
/// more; `settings`, `environment`, `skipped[]`.
#[derive(clap::Args, Clone, Debug)]
pub struct PaperArgs {
    /// A look at it: 128 MiB, short runs, one round
    #[arg(long)]
    pub quick: bool,
    /// Which workloads, by comma: redis, memcached, bfs, pagerank, xsbench, analytics
    /// [default: all]
    #[arg(long, value_delimiter = ',')]
    pub workloads: Vec<String>,
    /// Which configurations, by comma: 2t-c, 2t-m, 2t-a (zswap), 2t-own-c, 2t-own-m, 2t-own-a,
    /// 6t-wf-c, 6t-wf-m, 6t-wf-a, 6t-am-0.9, 6t-am-0.5, 6t-am-0.1, best-2, best-5, best-10,
    /// best-real-5; besides these 6t-am-0.3, 6t-am-0.2, best-25, best-50, best-100, best-125,
    /// best-150, best-real-2, best-real-10 and none
    /// [default: those up to best-real-5]
    #[arg(long, value_delimiter = ',')]
    pub configs: Vec<String>,
    /// Size of a workload's data in MiB [default: 1024; quick: 128]
    #[arg(long, value_name = "MIB")]
    pub size: Option<u64>,
    /// Measured seconds of a run [default: 60; quick: 8]
    #[arg(long)]
    pub seconds: Option<f64>,
    /// Seconds a run is driven before [default: 60; quick: 6]
    #[arg(long)]
    pub warmup: Option<f64>,
    /// Length of a profile window in seconds [default: 5; quick: 1]
    #[arg(long)]
    pub window: Option<f64>,
    /// Windows that a page which came back stays, on every side, zswap's included, counting the one
    /// in which it came; the paper has none beyond that one
    #[arg(long, value_name = "N", default_value_t = RunConfig::default().cooling_windows)]
    pub cooling_windows: u32,
    /// Where runs and reports go
    #[arg(long, value_name = "DIR", default_value = "build/paper")]
    pub out: PathBuf,
    /// What both evaluations ask.
    #[command(flatten)]
    pub series: SeriesArgs,
}

/// What every series of runs is asked for.
#[derive(clap::Args, Clone, Debug)]
pub struct SeriesArgs {
    /// Rounds [default: 5; quick: 1]
    #[arg(long)]
    pub repetitions: Option<usize>,
    /// Of data, requests and the order of runs
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Write the results as JSON to this file, too
    #[arg(long)]
    pub json: Option<PathBuf>,
    /// Make the reports of the runs that there are, and run nothing
    #[arg(long)]
    pub report_only: bool,
    /// Program to use instead of this one for `run` (for tests of the benchmark itself)
    #[arg(long, hide = true)]
    pub exe: Option<PathBuf>,
    /// Program to use instead of this one for `bench work`
    #[arg(long, hide = true)]
    pub work_exe: Option<PathBuf>,
}

impl SeriesArgs {
    /// Rounds to make.
    fn rounds(&self, quick: bool) -> Result<usize> {
        let rounds = self.repetitions.unwrap_or(if quick { 1 } else { 5 });
        ensure!((1..=1000).contains(&rounds), "--repetitions must be 1 to 1000");
        Ok(rounds)
    }

    /// What all runs have in common.
    fn setting(&self, settings: &Settings) -> Result<Setting> {
        let this = std::env::current_exe().context("cannot find this program itself")?;
        Ok(Setting {
            exe: self.exe.clone().unwrap_or_else(|| this.clone()),
            work_exe: self.work_exe.clone().unwrap_or(this),
            settings: settings.clone(),
        })
    }
}

impl PaperArgs {
    fn pick<T>(&self, given: Option<T>, full: T, quick: T) -> T {
        given.unwrap_or(if self.quick { quick } else { full })
    }

    fn settings(&self) -> Result<Settings> {
        let warmup_s = self.pick(self.warmup, 60.0, 6.0);
        let settings = Settings {
            size_mib: self.pick(self.size, 1024, 128),
            seconds: self.pick(self.seconds, 60.0, 8.0),
            warmup_s,
            dram_warmup_s: warmup_s.min(DRAM_WARMUP_S_MAX),
            window_s: self.pick(self.window, WINDOW_S_DEFAULT, 1.0),
            seed: self.series.seed,
            phase_at_s: 0.0,
            has_beside: true,
            cooling_windows: self.cooling_windows,
        };
        check(&settings)?;
        Ok(settings)
    }

    fn configs(&self) -> Result<Vec<&'static Configuration>> {
        if self.configs.is_empty() {
            return Ok(configurations::ALL.iter().filter(|c| c.is_default).collect());
        }
        for name in &self.configs {
            let names = || configurations::ALL.iter().map(|c| c.name).collect::<Vec<_>>();
            ensure!(
                configurations::find(name).is_some(),
                "--configs {name}: there is no such; there are {}",
                names().join(", ")
            );
        }
        // In the order of the reports, each once, whatever the order they were named in.
        let named = |c: &&Configuration| self.configs.iter().any(|n| n == c.name);
        Ok(configurations::ALL.iter().filter(named).collect())
    }
}

/// What every evaluation asks of its settings.
fn check(s: &Settings) -> Result<()> {
    ensure!((16..=1 << 24).contains(&s.size_mib), "--size must be 16 to 16777216 MiB");
    ensure!((1.0..=86_400.0).contains(&s.seconds), "--seconds must be 1 to 86400");
    ensure!((0.0..=86_400.0).contains(&s.warmup_s), "--warmup must be 0 to 86400 seconds");
    ensure!((0.1..=3_600.0).contains(&s.window_s), "--window must be 0.1 to 3600 seconds");
    ensure!(s.cooling_windows <= 15, "--cooling-windows must be 0 to 15");
    ensure!(
        s.window_s <= s.seconds / 2.0,
        "--window must be at most half of --seconds, or no window is measured whole"
    );
    Ok(())
}

/// The workloads that were asked for, of those there are; all, if none was.
fn chosen_workloads(asked_for: &[String], all: &[&str]) -> Result<Vec<String>> {
    if asked_for.is_empty() {
        return Ok(all.iter().map(|w| (*w).to_owned()).collect());
    }
    for name in asked_for {
        ensure!(
            all.contains(&name.as_str()),
            "--workloads {name}: there is no such; there are {}",
            all.join(", ")
        );
    }
    Ok(asked_for.to_vec())
}

/// Runs the evaluation.
pub fn run(args: PaperArgs) -> Result<()> {
    let settings = args.settings()?;
    let workloads = chosen_workloads(&args.workloads, WORKLOADS)?;
    let mut configs = args.configs()?;
    let rounds = args.series.rounds(args.quick)?;
    open_folder(&args.out, &settings)?;
    let mut skipped: Vec<String> = Vec::new();
    if !args.series.report_only {
        catch_interrupts();
        let swap = match prepare_swap(&configs, &settings) {
            Ok(swap) => swap,
            Err(why) if !interrupted() => {
                configs.retain(|c| !c.needs_swap());
                skipped.push(format!("2t-c, 2t-m, 2t-a: {why:#}"));
                say!("terrace: without the kernel's side: {why:#}");
                None
            }
            Err(why) => return Err(why),
        };
        let setting = args.series.setting(&settings)?;
        let plan = schedule::plan(&workloads, &configs, rounds, settings.seed);
        let plan = Planned { runs: &plan, configs: &configs };
        let outcome = run_all(&args.out, &setting, plan, swap.as_ref(), &mut skipped);
        let put_back = swap.map_or(Ok(()), KernelSwap::remove);
        if outcome.is_err() {
            say!("terrace: the same command goes on where this stopped");
        }
        outcome.and(put_back)?;
    }
    let records = record::load_all(&args.out, &settings);
    ensure!(!records.is_empty(), "{} holds no run of these settings", args.out.display());
    write_reports(&args, &settings, &records, &skipped)
}

/// Makes the folder if it is not there. It holds runs of one kind: whoever asks for another names
/// another folder.
fn open_folder(out: &Path, settings: &Settings) -> Result<()> {
    fs::create_dir_all(out.join("runs"))
        .with_context(|| format!("cannot create {}", out.display()))?;
    let path = out.join("settings.json");
    if let Ok(text) = fs::read_to_string(&path) {
        let before: Settings = serde_json::from_str(&text)
            .with_context(|| format!("{} is not one of ours", path.display()))?;
        ensure!(
            before == *settings,
            "{} holds runs of other settings ({before:?}, now {settings:?}); give the same, or \
             another --out",
            out.display()
        );
        return Ok(());
    }
    record::write_whole(&path, &(serde_json::to_string_pretty(settings)? + "\n"))
}

/// zswap's ground, if a configuration needs it.
fn prepare_swap(configs: &[&Configuration], settings: &Settings) -> Result<Option<KernelSwap>> {
    if !configs.iter().any(|c| c.needs_swap()) {
        return Ok(None);
    }
    // The whole program fits, with what it has beside its data.
    let pages = (settings.size_mib as usize * 3 / 2 + 128) << 8;
    let lzo = KernelTier::Zswap("lzo".into());
    KernelSwap::prepare(&SwapSpec::for_pages(pages), &[lzo]).map(Some)
}

/// What is to be run, in order.
#[derive(Clone, Copy)]
struct Planned<'a> {
    runs: &'a [RunId],
    /// Their configurations, plain DRAM aside.
    configs: &'a [&'a Configuration],
}

impl<'a> Planned<'a> {
    fn configuration(&self, name: &str) -> Result<&'a Configuration> {
        let own = self.configs.iter().copied().find(|c| c.name == name);
        own.or_else(|| configurations::find(name)).context("a planned configuration")
    }
}

fn run_all(
    out: &Path,
    setting: &Setting,
    planned: Planned<'_>,
    swap: Option<&KernelSwap>,
    skipped: &mut Vec<String>,
) -> Result<()> {
    let mut progress = Progress::new();
    let plan = planned.runs;
    let is_there = |id: &RunId| record::load(out, id, &setting.settings).is_some();
    let done = plan.iter().filter(|id| is_there(id)).count();
    if done > 0 {
        progress.line(&format!("{done} of {} runs are there already", plan.len()));
    }
    let mut eta = Eta::default();
    let mut left: Vec<&RunId> = plan.iter().filter(|id| !is_there(id)).collect();
    let s = &setting.settings;
    while !left.is_empty() {
        let id = left.remove(0).clone();
        let configuration = planned.configuration(&id.config)?;
        let number = plan.len() - left.len();
        let label = format!("[{number}/{}] {} {}", plan.len(), id.workload, id.config);
        let begun = Instant::now();
        let remaining = eta.of(&left, s);
        let mut one = || {
            subject::run(setting, &id, configuration, |phase, at_s| {
                progress
                    .update(|| format!("{label}: {phase}, {at_s:.0} s; then {remaining} to go"));
            })
        };
        let outcome = match (configuration.needs_swap(), swap) {
            (true, Some(swap)) => swap.with(&KernelTier::Zswap("lzo".into()), one),
            (true, None) => bail!("{} needs the kernel's swap", id.config),
            (false, _) => one(),
        };
        match outcome.with_context(|| format!("run {label}"))? {
            Outcome::Done(record) => {
                progress.line(&format!("{label}: {}", in_a_line(&record)));
                record::save(out, &record)?;
                eta.note(configuration, begun.elapsed(), s);
            }
            Outcome::Skipped(why) => {
                progress.line(&format!("{}: skipped: {why}", id.workload));
                skipped.push(format!("{}: {why}", id.workload));
                left.retain(|other| other.workload != id.workload);
            }
        }
    }
    Ok(())
}

fn in_a_line(r: &Record) -> String {
    let disk = if r.swap.touched_disk() { ", pages went to the disk" } else { "" };
    format!(
        "{:.1} ops/s, p99 {:.0} us, {:.4} USD a month, tax {:.1} %{disk}",
        r.load.ops_per_s,
        r.load.p99_us,
        r.usd_mean(),
        r.cpu.tax() * 100.0
    )
}

/// How long the rest will take, by what runs took beyond their own seconds.
#[derive(Default)]
struct Eta {
    overhead: Duration,
    runs: u32,
}

impl Eta {
    fn note(&mut self, configuration: &Configuration, took: Duration, s: &Settings) {
        let own = Duration::from_secs_f64(own_s(configuration.is_plain(), s));
        self.overhead += took.saturating_sub(own);
        self.runs += 1;
    }

    fn of(&self, left: &[&RunId], s: &Settings) -> String {
        let overhead_s = match self.runs {
            0 => OVERHEAD_S,
            n => self.overhead.as_secs_f64() / f64::from(n),
        };
        let own: f64 = left.iter().map(|id| own_s(id.config == schedule::DRAM, s)).sum();
        let minutes = (own + overhead_s * left.len() as f64) / 60.0;
        if minutes < 90.0 {
            format!("{minutes:.0} min")
        } else {
            format!("{:.1} h", minutes / 60.0)
        }
    }
}

/// Seconds of a run that are known beforehand.
fn own_s(is_plain: bool, s: &Settings) -> f64 {
    s.seconds + if is_plain { s.dram_warmup_s } else { s.warmup_s }
}

fn write_reports(
    args: &PaperArgs,
    settings: &Settings,
    records: &[Record],
    skipped: &[String],
) -> Result<()> {
    let workloads = summary::summarise(records);
    let environment = environment();
    let results = json!({
        "workloads": workloads,
        "settings": settings,
        "environment": environment,
        "skipped": skipped,
    });
    let text = serde_json::to_string_pretty(&results)? + "\n";
    let (html, md) = (args.out.join("report.html"), args.out.join("report.md"));
    let said = markdown::render(&workloads, settings, &environment, skipped);
    record::write_whole(&args.out.join("results.json"), &text)?;
    record::write_whole(&md, &said)?;
    let page = report::render(&workloads, records, settings, &environment, skipped);
    record::write_whole(&html, &page)?;
    for w in &workloads {
        let path = args.out.join(format!("figure-8-{}.svg", w.name));
        record::write_whole(&path, &report::picture(w, settings))?;
    }
    if let Some(path) = &args.series.json {
        record::write_whole(path, &text)?;
    }
    print!("{said}");
    println!("\nreport: {}", html.display());
    Ok(())
}

/// What the figures were measured on.
fn environment() -> Value {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default().trim().to_owned();
    let tool = |name: &str| {
        let out = std::process::Command::new(name).arg("--version").output();
        let out = out.map(|o| String::from_utf8_lossy(&o.stdout).into_owned());
        out.unwrap_or_default().lines().next().unwrap_or("not installed").to_owned()
    };
    let machine = Machine::here();
    json!({
        "machine": machine.machine,
        "kernel": machine.kernel,
        "distribution": machine.distribution,
        "terrace": machine.version,
        "thp": machine.thp,
        "date": machine.date,
        "redis": tool("redis-server"),
        "memcached": tool("memcached"),
        "cmdline": read("/proc/cmdline"),
        "swappiness": read("/proc/sys/vm/swappiness"),
        "governor": read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        "zswap": {
            "compressor": "lzo", "pool": "zsmalloc", "max_pool_percent": 50,
            "shrinker_enabled": false, "page_cluster": 0,
        },
        "loadavg": super::figures::loadavg(),
    })
}
