//! `terrace bench rest`: what Terrace costs while it does nothing. Redis under `terrace run` with
//! nothing demoted (policy `none`, tracking on) against plain Redis, on the same data and requests.
//!
//! Both servers stay alive and the load alternates between them in short slices, so that loading,
//! placement of the heap and drift of the machine cancel out. The one that is not measured is
//! stopped with SIGSTOP: its tracker would otherwise take CPU time from the other and flatter us.
//! Windows go on by the clock while it is stopped, which charges Terrace rather too much than too
//! little. Connections last: Redis serves new ones faster. Pairs alternate in order (A B, B A, ..),
//! so that whoever comes first has no advantage.

use super::ground::write_json;
use crate::demo::content::Content;
use crate::demo::latency::Histogram;
use crate::demo::load::{self, Control, Mix, Phase, WrongValues};
use crate::demo::machine::Machine;
use crate::demo::progress::Progress;
use crate::demo::redis::{find_redis, Server, TempDir};
use crate::demo::sys;
use anyhow::{ensure, Context, Result};
use serde::Serialize;
use std::ffi::OsString;
use std::io;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

/// Driven but not counted at the start of each slice: caches fill.
const SLICE_WARMUP: Duration = Duration::from_millis(60);
/// memtier's: nearly every page is touched, which is what sampling costs most for.
const SIGMA: f64 = 1.0 / 6.0;
const SET_SHARE: f64 = 0.05;

/// Cost at rest: Redis under `terrace run` with nothing demoted, against plain
///
/// Two redis-servers with the same data, one plain and one under `terrace run --policy none`, are
/// driven in turn; the one not measured is stopped. Every reply is compared with what was written.
///
/// JSON (--json): `throughput_ratio` (median over the pairs of Terrace / plain), `p50_ratio`,
/// `p99_ratio` (over all slices), `redis_cpu_per_op_ratio` (CPU time of Redis's main thread for an
/// operation, over all slices: steadier than throughput where a machine has other work),
/// `plain_ops_s`, `terrace_ops_s` (medians), `pairs[]` with `plain_ops_s`, `terrace_ops_s`,
/// `ratio`; `wrong_values`; `keys`, `clients`, `slice_s`, `window_s`; `machine`, `kernel`,
/// `distribution`, `thp`, `version`, `redis`, `date`.
#[derive(clap::Args, Clone, Debug)]
pub struct RestArgs {
    /// Number of keys, of 3,990 bytes on average (67,300 are 256 MiB)
    #[arg(long, default_value_t = 67_300)]
    pub keys: u64,
    /// Pairs of slices, one plain and one under Terrace
    #[arg(long, default_value_t = 150)]
    pub pairs: usize,
    /// Measured seconds of a slice
    #[arg(long, default_value_t = 0.25)]
    pub slice: f64,
    /// Length of a profile window in seconds
    #[arg(long, default_value_t = 5.0)]
    pub window: f64,
    /// Connections, each with one request in flight
    #[arg(long, default_value_t = 32)]
    pub clients: usize,
    /// Write results as JSON to this file
    #[arg(long)]
    pub json: Option<PathBuf>,
    /// Program to use instead of this one for `run` (for tests of the benchmark itself)
    #[arg(long, hide = true)]
    pub exe: Option<PathBuf>,
}

/// One slice of each server.
#[derive(Clone, Copy, Debug, Serialize)]
struct Pair {
    plain_ops_s: f64,
    terrace_ops_s: f64,
    ratio: f64,
}

/// What is written as JSON.
#[derive(Serialize)]
struct RestReport {
    throughput_ratio: f64,
    p50_ratio: f64,
    p99_ratio: f64,
    redis_cpu_per_op_ratio: f64,
    plain_ops_s: f64,
    terrace_ops_s: f64,
    pairs: Vec<Pair>,
    wrong_values: u64,
    keys: u64,
    clients: usize,
    slice_s: f64,
    window_s: f64,
    #[serde(flatten)]
    machine: Machine,
}

/// A server with what was last written to it.
struct Side {
    name: &'static str,
    server: Server,
    streams: Vec<UnixStream>,
    versions: Vec<u16>,
    latency: Histogram,
    cpu: Duration,
    seed: u64,
}

/// Runs the benchmark.
pub fn run(args: RestArgs) -> Result<()> {
    ensure!(args.pairs >= 1, "--pairs must be at least 1");
    ensure!((0.1..=3600.0).contains(&args.slice), "--slice must be between 0.1 and 3600 seconds");
    ensure!((0.1..=3600.0).contains(&args.window), "--window must be between 0.1 and 3600 seconds");
    ensure!((1..=1024).contains(&args.clients), "--clients must be between 1 and 1024");
    ensure!(args.keys >= args.clients as u64, "--keys must be at least --clients");
    find_redis()?;
    sys::catch_interrupts();
    let mut progress = Progress::new();
    progress.line("collecting realistic values from the files of this machine");
    let content = Content::build((args.keys as usize * 500).clamp(8 << 20, 64 << 20));
    let folder = TempDir::new("rest")?;
    let exe = match &args.exe {
        Some(exe) => exe.clone(),
        None => std::env::current_exe().context("cannot find this program itself")?,
    };
    let window = args.window.to_string();
    let mut launcher: Vec<OsString> = vec![exe.into()];
    launcher.extend(["run", "--policy", "none", "--window", &window].map(OsString::from));

    let start = |name: &'static str, launcher: &[OsString], progress: &mut Progress| {
        let server = Server::start(folder.path(), name, launcher)
            .with_context(|| format!("cannot start the {name} server"))?;
        load::fill(&server, &content, args.keys, false, |n| {
            progress.update(|| format!("loading {name}: {n} of {} keys", args.keys));
        })?;
        let streams: Result<_> = (0..args.clients).map(|_| server.connect()).collect();
        let streams = streams?;
        server.pause();
        let versions = vec![0; args.keys as usize];
        Ok::<Side, anyhow::Error>(Side {
            name,
            server,
            streams,
            versions,
            latency: Histogram::default(),
            cpu: Duration::ZERO,
            seed: 0,
        })
    };
    let mut plain = start("plain", &[], &mut progress)?;
    let mut terrace = start("terrace", &launcher, &mut progress)?;
    let mut wrong = WrongValues::default();
    let mut pairs = Vec::new();
    for i in 0..args.pairs {
        let mut slice = |side: &mut Side| slice(side, &content, &args, &mut wrong);
        // Swap the order in every other pair.
        let (p, t) = if i % 2 == 0 {
            let p = slice(&mut plain)?;
            (p, slice(&mut terrace)?)
        } else {
            let t = slice(&mut terrace)?;
            (slice(&mut plain)?, t)
        };
        let pair = Pair { plain_ops_s: p, terrace_ops_s: t, ratio: t / p.max(1e-9) };
        pairs.push(pair);
        progress.update(|| {
            let so_far = median(pairs.iter().map(|p| p.ratio));
            let n = pairs.len();
            format!("[{n}/{}] plain {p:.0}, terrace {t:.0} ops/s; median {so_far:.3}", args.pairs)
        });
    }
    for side in [&plain, &terrace] {
        side.server.resume();
        wrong.merge(load::read_back(&side.server, &content, &side.versions, |_| ())?);
    }
    let relative = |q| terrace.latency.quantile_us(q) / plain.latency.quantile_us(q).max(1e-9);
    let (p50_ratio, p99_ratio) = (relative(0.5), relative(0.99));
    let report = RestReport {
        throughput_ratio: median(pairs.iter().map(|p| p.ratio)),
        p50_ratio,
        p99_ratio,
        redis_cpu_per_op_ratio: cpu_per_op(&terrace) / cpu_per_op(&plain).max(1e-12),
        plain_ops_s: median(pairs.iter().map(|p| p.plain_ops_s)),
        terrace_ops_s: median(pairs.iter().map(|p| p.terrace_ops_s)),
        wrong_values: wrong.count,
        keys: args.keys,
        clients: args.clients,
        slice_s: args.slice,
        window_s: args.window,
        machine: Machine::here(),
        pairs,
    };
    plain.server.stop()?;
    terrace.server.stop()?;
    finish(&args, &report, &wrong)
}

fn finish(args: &RestArgs, report: &RestReport, wrong: &WrongValues) -> Result<()> {
    write_json(args.json.as_deref(), report)?;
    let mut ratios: Vec<f64> = report.pairs.iter().map(|p| p.ratio).collect();
    ratios.sort_by(f64::total_cmp);
    println!(
        "Redis under terrace at rest: {:.3} of plain throughput (median of {} pairs, the middle \
         half {:.3} to {:.3}), p50 {:.3}x, p99 {:.3}x, CPU of Redis for an operation {:.3}x",
        report.throughput_ratio,
        report.pairs.len(),
        ratios[ratios.len() / 4],
        ratios[ratios.len() * 3 / 4],
        report.p50_ratio,
        report.p99_ratio,
        report.redis_cpu_per_op_ratio
    );
    let m = &report.machine;
    println!(
        "machine: {}, Linux {}; terrace {}, redis {}",
        m.machine, m.kernel, m.version, m.redis
    );
    if let Some(first) = wrong.shown.first() {
        anyhow::bail!("{} wrong values; the first: {}", wrong.count, first.text);
    }
    Ok(())
}

/// Wakes one server, drives it for one slice, and stops it again. Returns operations per second.
fn slice(
    side: &mut Side,
    content: &Content,
    args: &RestArgs,
    wrong: &mut WrongValues,
) -> Result<f64> {
    side.server.resume();
    side.server.check_alive()?;
    side.seed += 1;
    let mix = Mix { keys: args.keys, clients: args.clients, sigma: SIGMA, set_share: SET_SHARE };
    let streams: io::Result<Vec<_>> = side.streams.iter().map(UnixStream::try_clone).collect();
    let (streams, control) = (streams?, Control::default());
    let (versions, seed) = (&mut side.versions, side.seed);
    let server = &side.server;
    let (driven, cpu) = std::thread::scope(|scope| {
        let generator =
            scope.spawn(|| load::drive(streams, content, versions, mix, seed, &control));
        nap(SLICE_WARMUP, &|| generator.is_finished());
        control.set(Phase::Measure);
        let before = server.application_cpu();
        nap(Duration::from_secs_f64(args.slice), &|| generator.is_finished());
        control.set(Phase::Stop);
        (generator.join(), server.application_cpu().saturating_sub(before))
    });
    sys::stop_if_interrupted()?;
    let Ok(driven) = driven else { anyhow::bail!("the load generator panicked") };
    let measured = driven.map_err(|e| {
        e.context(format!("the {} server failed{}", side.name, side.server.log_tail()))
    })?;
    side.server.pause();
    side.latency.merge(&measured.latency);
    side.cpu += cpu;
    let throughput = measured.throughput();
    wrong.merge(measured.wrong);
    Ok(throughput)
}

/// Sleeps, but not through an interrupt or the end of the load.
fn nap(time: Duration, ended: &dyn Fn() -> bool) {
    let until = std::time::Instant::now() + time;
    while !sys::interrupted() && !ended() {
        let left = until.saturating_duration_since(std::time::Instant::now());
        if left.is_zero() {
            return;
        }
        std::thread::sleep(left.min(Duration::from_millis(50)));
    }
}

fn cpu_per_op(side: &Side) -> f64 {
    side.cpu.as_secs_f64() / side.latency.count().max(1) as f64
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => 0.0,
        n if n % 2 == 1 => values[n / 2],
        n => (values[n / 2 - 1] + values[n / 2]) / 2.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_ignores_one_bad_slice() {
        assert_eq!(median([0.99, 0.2, 1.0].into_iter()), 0.99);
        assert_eq!(median([1.0, 2.0, 3.0, 10.0].into_iter()), 2.5);
        assert_eq!(median(std::iter::empty()), 0.0);
    }
}
