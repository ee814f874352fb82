//! `terrace demo`: a real redis-server on DRAM and on tiers, side by side, with every byte checked.
//!
//! Modules in the order of the flow: what values are (`content`, `documents`, `random`), a server
//! (`redis`), requests and comparison (`load`, `inbox`, `latency`), what Terrace reports
//! (`timeline`), one run (`one_run`), and what is shown of all runs (`outcome`, `table`, `chart`
//! with `names`, `report`).

pub(crate) mod chart;
pub mod content;
mod documents;
pub mod inbox;
pub mod latency;
pub mod load;
pub mod machine;
mod names;
mod one_run;
mod outcome;
pub mod progress;
pub mod random;
pub mod redis;
mod report;
pub mod sys;
mod table;
mod timeline;

use crate::machine::meminfo_bytes;
use crate::preset::Preset;
use anyhow::{bail, ensure, Context, Result};
use content::{Content, VALUE_LEN_MAX, VALUE_LEN_MIN};
use load::{Mix, WrongValues};
use one_run::{Baseline, Setting, Times};
use outcome::{Outcome, Policy, Row, RunSpec};
use progress::Progress;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use table::{Notes, StatedMedium};
use terrace_core::plan::SLOWDOWN_DEFAULT;

/// Keys by default: values of 3,990 bytes on average make it 1.02 GiB.
const KEYS_DEFAULT: u64 = 275_000;
/// Keys of `--quick`: 128 MiB.
const KEYS_QUICK: u64 = 34_000;
/// The corpus is this part of the data set, within the bounds below.
const CORPUS_PART: usize = 8;
const CORPUS_BYTES_MIN: usize = 16 << 20;
const CORPUS_BYTES_MAX: usize = 128 << 20;
/// Plain Redis needs no longer than this to warm up: there is nothing to place.
const DRAM_WARMUP_MAX: Duration = Duration::from_secs(5);
/// And it is measured on its own for this share of the time: each run compares with it anyway.
const DRAM_MEASURE_SHARE: f64 = 0.5;

/// Redis on many tiers, measured against plain DRAM, every value checked
///
/// Starts redis-server (Debian: apt-get install redis-server) once for each run - plain DRAM,
/// `auto` with nothing moved, `tierscape` with waterfall moderate, analytical 0.5 and analytical
/// 0.1, and `auto` with analytical 0.1 and with the default policy, `--max-slowdown` -, loads
/// values of about 4 KB, drives it with closed-loop connections and compares every reply with what
/// was written; at the end of a run every key is read back. One wrong byte makes the command fail.
///
/// JSON (--json): `wrong_values`; `runs[]` with `name`, `preset`, `policy`, `alpha`, `threshold`,
/// `max_slowdown` (null where there is none), `tco_saved` (0..1, mean of the measured windows),
/// `usd_saved_per_month`, `usd_saved_per_tib_month` (real media only), `emulated`,
/// `throughput_ratio`, `p50_ratio`, `p99_ratio`, `p999_ratio` (to a plain server that is driven for
/// a moment after every quarter of a second of the run; `throughput_ratios` are the windows' own),
/// `dram_ops_s` (of that server), `pages_per_tier` (mean), `faults_per_tier` (sum),
/// `terrace_cpu_share` (CPU time of Terrace over that of Redis's main thread),
/// `terrace_cpu_cores` (over wall time), `throughput_ops_s`, `p50_us`, `p99_us`, `p999_us`,
/// `max_us`, `ops`, `measured_s`, `windows`, `application_cpu_s`, `terrace_cpu_s`,
/// `client_us_per_op`, `stalled_ms`, `rss_bytes`, `managed_bytes`, `runtime_bytes`, `tracker`,
/// `wrong_values`, `tiers[]`;
/// `media[]`, the emulated ones, with what they were told to be; `settings`; `machine`, `kernel`,
/// `distribution`, `thp`, `version`, `redis`, `date`; `seconds_total`.
#[derive(clap::Args, Clone, Debug)]
pub struct DemoArgs {
    /// A small demo for continuous integration: 128 MiB, DRAM and `auto`, under a minute
    #[arg(long)]
    pub quick: bool,
    /// Number of keys, of 3,990 bytes on average [default: 275000 = 1.02 GiB; quick: 34000]
    #[arg(long)]
    pub keys: Option<u64>,
    /// Measured seconds of a run [default: 40; quick: 8]
    #[arg(long)]
    pub seconds: Option<f64>,
    /// Seconds a run is driven before it is measured [default: 45; quick: 4]
    #[arg(long)]
    pub warmup: Option<f64>,
    /// Length of a profile window in seconds [default: 5; quick: 1]
    #[arg(long)]
    pub window: Option<f64>,
    /// Connections, each with one request in flight
    ///
    /// Enough to keep Redis busy: with few, a virtual machine spends its time waking CPUs, and
    /// what is measured is that.
    #[arg(long, default_value_t = 32)]
    pub clients: usize,
    /// Standard deviation of key popularity as a share of the key range
    ///
    /// At 0.07 a quarter of the keys takes 90 % of the operations and more than half are cold.
    /// Wider distributions leave less to save at this rate of operations for each gigabyte: at
    /// memtier's 1/6 nearly every page is touched in every window (README, "How far the numbers
    /// carry").
    #[arg(long, default_value_t = 0.07)]
    pub sigma: f64,
    /// Share of operations that write a new version of their key
    #[arg(long, default_value_t = 0.05)]
    pub set_share: f64,
    /// Load keys in a scattered order, so that popular keys do not lie side by side
    #[arg(long)]
    pub shuffle: bool,
    /// Only the runs whose name contains this (DRAM runs always)
    #[arg(long)]
    pub only: Option<String>,
    /// Write results as JSON to this file
    #[arg(long)]
    pub json: Option<PathBuf>,
    /// Write the HTML report to this file, and its first plot beside it, as .svg
    #[arg(long, default_value = "build/demo/report.html")]
    pub report: PathBuf,
    /// Program to use instead of this one for `run` (for tests of the demo itself)
    #[arg(long, hide = true)]
    pub exe: Option<PathBuf>,
    /// Further arguments of `terrace run`
    #[arg(long, hide = true, allow_hyphen_values = true)]
    pub run_arg: Vec<OsString>,
}

impl DemoArgs {
    fn pick<T>(&self, given: Option<T>, full: T, quick: T) -> T {
        given.unwrap_or(if self.quick { quick } else { full })
    }

    fn keys(&self) -> u64 {
        self.pick(self.keys, KEYS_DEFAULT, KEYS_QUICK)
    }

    fn times(&self) -> Times {
        Times {
            warmup: Duration::from_secs_f64(self.pick(self.warmup, 45.0, 4.0)),
            measure: Duration::from_secs_f64(self.pick(self.seconds, 40.0, 8.0)),
        }
    }

    fn window(&self) -> Duration {
        Duration::from_secs_f64(self.pick(self.window, 5.0, 1.0))
    }

    fn check(&self) -> Result<()> {
        let seconds = |name: &str, value: Option<f64>, min: f64| {
            let good = value.is_none_or(|v| (min..=86_400.0).contains(&v));
            ensure!(good, "--{name} must be between {min} and 86400 seconds");
            Ok(())
        };
        seconds("seconds", self.seconds, 1.0)?;
        seconds("warmup", self.warmup, 0.0)?;
        seconds("window", self.window, 0.1)?;
        ensure!((1..=1024).contains(&self.clients), "--clients must be between 1 and 1024");
        let keys = self.clients as u64..=100_000_000;
        ensure!(keys.contains(&self.keys()), "--keys must be between --clients and 100000000");
        ensure!(self.sigma > 0.0 && self.sigma <= 100.0, "--sigma must be above 0, up to 100");
        ensure!((0.0..=1.0).contains(&self.set_share), "--set-share must be between 0 and 1");
        ensure!(
            self.report.extension().is_none_or(|is| is != "svg"),
            "--report is a page; its first plot is written beside it, as .svg: name it .html"
        );
        Ok(())
    }

    /// The runs, the DRAM run first.
    fn specs(&self) -> Result<Vec<RunSpec>> {
        let mut specs = vec![RunSpec::terrace("auto", Policy::Analytical(0.1))];
        if !self.quick || self.only.is_some() {
            specs.splice(
                0..0,
                [
                    RunSpec::terrace("auto", Policy::None),
                    RunSpec::terrace("tierscape", Policy::Waterfall("moderate")),
                    RunSpec::terrace("tierscape", Policy::Analytical(0.5)),
                    RunSpec::terrace("tierscape", Policy::Analytical(0.1)),
                ],
            );
            specs.push(RunSpec::terrace("auto", Policy::Slowdown(SLOWDOWN_DEFAULT)));
        }
        let only = self.only.as_deref().unwrap_or("");
        let names: Vec<String> = specs.iter().map(|s| s.name.clone()).collect();
        specs.retain(|s| s.name.contains(only));
        if specs.is_empty() && only != "dram" {
            bail!("--only {only}: no such run; there are {}", names.join(", "));
        }
        specs.insert(0, RunSpec::dram("dram"));
        Ok(specs)
    }
}

/// Runs the demo.
pub fn run(args: DemoArgs) -> Result<()> {
    let start = Instant::now();
    args.check()?;
    let specs = args.specs()?;
    redis::find_redis()?;
    prepare_parent(&args.report)?;
    if let Some(json) = &args.json {
        prepare_parent(json)?;
    }
    sys::catch_interrupts();
    let mut progress = Progress::new();
    let keys = args.keys();
    let data_bytes = keys as usize * (VALUE_LEN_MIN + VALUE_LEN_MAX) / 2;
    need_memory(data_bytes)?;
    progress.line("collecting realistic values from the files of this machine");
    let corpus = (data_bytes / CORPUS_PART).clamp(CORPUS_BYTES_MIN, CORPUS_BYTES_MAX);
    let content = Content::build(corpus);
    let folder = redis::TempDir::new("demo")?;
    let setting = Setting {
        exe: match &args.exe {
            Some(exe) => exe.clone(),
            None => std::env::current_exe().context("cannot find this program itself")?,
        },
        run_args: args.run_arg.clone(),
        folder: folder.path(),
        content: &content,
        mix: Mix { keys, clients: args.clients, sigma: args.sigma, set_share: args.set_share },
        shuffle: args.shuffle,
        window: args.window(),
    };

    let (outcomes, wrong) = run_all(&args, &setting, specs, &mut progress)?;
    let rows: Vec<Row> = outcomes.iter().map(Row::new).collect();
    let notes = Notes {
        machine: machine::Machine::here(),
        workload: workload(&args, data_bytes),
        content: describe(&content, keys),
        baseline: baseline_note(&rows),
        media: emulated_media(&rows),
        wrong: wrong.shown.iter().map(|w| w.text.clone()).collect(),
        wrong_values: wrong.count,
        seconds_total: start.elapsed().as_secs_f64(),
    };
    let html = report::render(&outcomes, &rows, &notes);
    fs::write(&args.report, html)
        .with_context(|| format!("cannot write {}", args.report.display()))?;
    let picture = args.report.with_extension("svg");
    fs::write(&picture, report::picture(&rows))
        .with_context(|| format!("cannot write {}", picture.display()))?;
    if let Some(path) = &args.json {
        let json = json(&args, &rows, &notes);
        fs::write(path, json).with_context(|| format!("cannot write {}", path.display()))?;
    }
    drop(progress);
    print!("{}", table::render(&rows, &notes));
    println!("report: {}", args.report.display());
    ensure!(wrong.count == 0, "{} wrong values; the first: {}", wrong.count, notes.wrong[0]);
    Ok(())
}

/// All runs in order. The plain server of the first stays for the others to compare with.
fn run_all(
    args: &DemoArgs,
    setting: &Setting<'_>,
    specs: Vec<RunSpec>,
    progress: &mut Progress,
) -> Result<(Vec<Outcome>, WrongValues)> {
    let total = specs.len();
    let mut baseline: Option<Baseline> = None;
    let mut wrong = WrongValues::default();
    let mut outcomes: Vec<Outcome> = Vec::new();
    for (i, spec) in specs.into_iter().enumerate() {
        let mut times = args.times();
        let label = format!("[{}/{total}] {}", i + 1, spec.name);
        let (outcome, bad) = match &mut baseline {
            Some(baseline) => one_run::run(setting, spec, times, &label, baseline, progress),
            None => {
                times.warmup = times.warmup.min(DRAM_WARMUP_MAX);
                times.measure = times.measure.mul_f64(DRAM_MEASURE_SHARE);
                one_run::run_dram(setting, spec, times, &label, progress).map(|(outcome, plain)| {
                    baseline = Some(plain);
                    (outcome, WrongValues::default())
                })
            }
        }
        .with_context(|| format!("run {label}"))?;
        let saved = match outcome.spec.terrace {
            Some(_) => format!(", TCO saved {:.1} %", 100.0 * outcome.summary.tco_saved),
            None => String::new(),
        };
        progress.line(&format!(
            "{label}: {:.0} ops/s (DRAM in the same minutes {:.0}), p50 {:.0} us, p99 {:.0} us\
             {saved}, {} wrong values",
            outcome.speed.throughput_ops_s,
            outcome.dram.throughput_ops_s,
            outcome.speed.p50_us,
            outcome.speed.p99_us,
            bad.count
        ));
        bad.shown.iter().for_each(|w| progress.line(&w.text));
        wrong.merge(bad);
        outcomes.push(outcome);
    }
    if let Some(baseline) = baseline {
        progress.line("reading every key of the plain server back");
        wrong.merge(baseline.finish(setting)?);
    }
    Ok((outcomes, wrong))
}

/// Makes the folder of a file that is written minutes later; better to fail now.
fn prepare_parent(file: &Path) -> Result<()> {
    match file.parent().filter(|p| !p.as_os_str().is_empty()) {
        Some(folder) => fs::create_dir_all(folder)
            .with_context(|| format!("cannot create {}", folder.display())),
        None => Ok(()),
    }
}

/// Redis, its overhead, the corpus and room for staging must fit, or the kernel would decide.
fn need_memory(data_bytes: usize) -> Result<()> {
    let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let have = meminfo_bytes(&meminfo, "MemAvailable").unwrap_or(u64::MAX);
    let need = data_bytes as u64 * 2;
    let mib = |bytes: u64| bytes >> 20;
    ensure!(
        have >= need,
        "{} MiB of memory are available, the demo needs about {}; use --quick or fewer --keys",
        mib(have),
        mib(need)
    );
    Ok(())
}

fn emulated_media(rows: &[Row]) -> Vec<StatedMedium> {
    let mut out: Vec<StatedMedium> = Vec::new();
    for row in rows {
        let preset = row.preset.as_deref().and_then(Preset::from_name);
        for medium in preset.map(Preset::media).unwrap_or_default() {
            let of_tier = |t: &timeline::TierSummary| {
                t.emulated && t.medium.as_deref().is_none_or(|name| name == &*medium.name)
            };
            let stated = StatedMedium {
                name: medium.name.to_string(),
                latency_ns: medium.latency_ns,
                bandwidth_mib_s: medium.bandwidth_mib_s,
                usd_per_gib_month: medium.usd_per_gib_month,
            };
            if row.tiers.iter().any(of_tier) && !out.contains(&stated) {
                out.push(stated);
            }
        }
    }
    out
}

fn workload(args: &DemoArgs, data_bytes: usize) -> String {
    let times = args.times();
    format!(
        "{} keys of {VALUE_LEN_MIN} to {VALUE_LEN_MAX} bytes ({:.2} GiB) loaded in {} order, {} \
         closed-loop connections on a Unix socket, {:.0} % GET and {:.0} % SET, Gaussian key \
         popularity with a standard deviation of {:.3} of the key range; {:.0} s warm-up, {:.0} \
         s measured, windows of {} s",
        table::thousands(args.keys()),
        data_bytes as f64 / f64::from(1 << 30),
        if args.shuffle { "scattered" } else { "key" },
        args.clients,
        100.0 * (1.0 - args.set_share),
        100.0 * args.set_share,
        args.sigma,
        times.warmup.as_secs_f64(),
        times.measure.as_secs_f64(),
        args.window().as_secs_f64(),
    )
}

fn describe(content: &Content, keys: u64) -> String {
    let overlap = match content.distinct(keys) {
        true => "no two keys start at the same place",
        false => "some keys share a slice",
    };
    format!("slices of {} ({overlap}; slices overlap)", content.summary())
}

fn baseline_note(rows: &[Row]) -> String {
    let ops = || rows.iter().map(|r| r.dram_ops_s);
    let (low, high) = (ops().fold(f64::INFINITY, f64::min), ops().fold(0.0, f64::max));
    format!(
        "DRAM baseline: a plain server that takes turns with each run, 0.29 s the run and 0.16 s \
         the server; from run to run it did {low:.0} to {high:.0} ops/s, which is how much the \
         machine drifted"
    )
}

fn json(args: &DemoArgs, rows: &[Row], notes: &Notes) -> String {
    let m = &notes.machine;
    let times = args.times();
    let object = serde_json::json!({
        "wrong_values": notes.wrong_values,
        "wrong": notes.wrong,
        "runs": rows,
        "media": notes.media,
        "settings": {
            "keys": args.keys(),
            "clients": args.clients,
            "sigma": args.sigma,
            "set_share": args.set_share,
            "shuffle": args.shuffle,
            "window_s": args.window().as_secs_f64(),
            "warmup_s": times.warmup.as_secs_f64(),
            "measure_s": times.measure.as_secs_f64(),
            "content": notes.content,
        },
        "machine": m.machine,
        "kernel": m.kernel,
        "distribution": m.distribution,
        "thp": m.thp,
        "version": m.version,
        "redis": m.redis,
        "date": m.date,
        "seconds_total": notes.seconds_total,
    });
    format!("{object:#}\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        demo: DemoArgs,
    }

    fn args(line: &str) -> DemoArgs {
        Cli::parse_from(["demo"].into_iter().chain(line.split_whitespace())).demo
    }

    #[test]
    fn the_runs_come_in_the_promised_order() {
        let names = |line| {
            let specs = args(line).specs().expect("runs");
            specs.into_iter().map(|s| s.name).collect::<Vec<_>>()
        };
        let all = [
            "dram",
            "auto none",
            "tierscape waterfall moderate",
            "tierscape analytical 0.5",
            "tierscape analytical 0.1",
            "auto analytical 0.1",
            "auto max-slowdown 5%",
        ];
        assert_eq!(names(""), all);
        assert_eq!(names("--quick"), ["dram", "auto analytical 0.1"]);
        assert_eq!(names("--only waterfall"), ["dram", all[2]]);
        assert_eq!(names("--only dram"), ["dram"]);
        assert!(args("--only nonsense").specs().is_err());
    }

    #[test]
    fn the_default_data_set_is_at_least_a_gibibyte() {
        let bytes = args("").keys() as usize * (VALUE_LEN_MIN + VALUE_LEN_MAX) / 2;
        assert!(bytes >= 1 << 30);
        assert!(args("--quick").keys() as usize * 3990 >= 128 << 20);
    }

    #[test]
    fn impossible_values_are_refused() {
        for line in ["--clients 0", "--keys 2", "--sigma 0", "--set-share 1.5", "--window 0"] {
            assert!(args(line).check().is_err(), "{line}");
        }
        assert!(args("").check().is_ok());
        assert!(args("--report a.svg").check().is_err(), "the plot would replace the page");
    }
}
