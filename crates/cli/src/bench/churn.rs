//! `terrace bench churn`: what it costs a program that maps, touches and unmaps all the time that
//! Terrace looks after it.
//!
//! Two copies of the program, one plain and one under `terrace run` with tiering on, each with some
//! cold memory besides so that there is something to tier. They work in turns of a few windows; the
//! one not measured is stopped with SIGSTOP, so that its tracker takes no time from the other.
//! Pairs alternate in order, and both turns of a pair map the same sizes in the same order.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{ensure, Context, Result};
use serde::Serialize;

use super::figures::{loadavg, median};
use super::ground::{write_json, Ground};
use super::kernel_swap::{interrupted, shuffled, thread_cpu_ns, Mapping, PageSource};
use super::launched::{hear, say, terrace_run, toml_of, Running};
use crate::demo::sys::signal_process;
use crate::machine::Machine;
use crate::preset::Preset;

/// Pages of the sizes that are mapped: 1 to 64 MiB by powers of two, so that small mappings, whose
/// system calls weigh most, are as many as large ones.
const SIZES_PAGES: [usize; 7] = [256, 512, 1_024, 2_048, 4_096, 8_192, 16_384];
const PAGE_BYTES: usize = 4096;

/// Mapping churn: mmap, touch, munmap with tiering on, against without Terrace
///
/// A program maps 1 to 64 MiB, writes a byte to every page and unmaps, over and over, beside some
/// cold memory. It does so plain and under `terrace run` (first tier of the presets, analytical,
/// alpha 0), in turns.
///
/// JSON (--json): `throughput_ratio` (median over the pairs of Terrace / plain, in bytes touched
/// per second), `total_ratio` (all bytes over all time), `cpu_ratio` (CPU time of the program's own
/// thread for a byte), `plain_mib_s`, `terrace_mib_s` (medians), `pairs[]` with `plain_mib_s`,
/// `terrace_mib_s`, `ratio`; `slice_s`, `window_s`, `cold_mib`; `loadavg_before`, `loadavg_after`;
/// the machine.
#[derive(clap::Args, Clone, Debug)]
pub struct ChurnArgs {
    /// Pairs of turns, one plain and one under Terrace
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub pairs: u32,
    /// Measured seconds of a turn; longer than a window, so that each has its share of windows
    #[arg(long, default_value_t = 2.0)]
    pub slice: f64,
    /// Length of a profile window in seconds
    #[arg(long, default_value_t = 1.0)]
    pub window: f64,
    /// MiB of memory besides that is never touched again
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(4..=65_536))]
    pub cold_mib: u32,
    /// Write results as JSON to this file
    #[arg(long, value_name = "PATH")]
    pub json: Option<PathBuf>,
    /// Be the program that is measured
    #[arg(long, hide = true, requires = "content")]
    pub child: bool,
    /// What its cold pages hold
    #[arg(long, hide = true)]
    pub content: Option<PathBuf>,
}

/// One turn of each.
#[derive(Clone, Copy, Debug, Serialize)]
struct Pair {
    plain_mib_s: f64,
    terrace_mib_s: f64,
    ratio: f64,
}

/// What is written as JSON.
#[derive(Debug, Serialize)]
struct Report {
    throughput_ratio: f64,
    total_ratio: f64,
    cpu_ratio: f64,
    plain_mib_s: f64,
    terrace_mib_s: f64,
    pairs: Vec<Pair>,
    slice_s: f64,
    window_s: f64,
    cold_mib: u32,
    loadavg_before: f64,
    loadavg_after: f64,
    #[serde(flatten)]
    machine: Machine,
}

/// What one turn did.
#[derive(Clone, Copy, Default, Debug)]
struct Turn {
    bytes: f64,
    elapsed_ns: f64,
    cpu_ns: f64,
}

impl Turn {
    fn parse(line: &str) -> Option<Turn> {
        let mut numbers = line.split(' ').map_while(|n| n.parse().ok());
        let (bytes, elapsed_ns, cpu_ns) = (numbers.next()?, numbers.next()?, numbers.next()?);
        Some(Turn { bytes, elapsed_ns, cpu_ns })
    }

    fn mib_s(&self) -> f64 {
        self.bytes / (1 << 20) as f64 / (self.elapsed_ns / 1e9).max(1e-9)
    }

    fn add(&mut self, other: Turn) {
        self.bytes += other.bytes;
        self.elapsed_ns += other.elapsed_ns;
        self.cpu_ns += other.cpu_ns;
    }

    fn cpu_per_byte(&self) -> f64 {
        self.cpu_ns / self.bytes.max(1.0)
    }
}

/// One of the two programs, stopped while it is not its turn.
struct Side {
    run: Running,
    pid: i32,
    all: Turn,
}

impl Side {
    fn start(command: Command) -> Result<Side> {
        let run = Running::start(command)?;
        let pid = run.line()?.parse().context("the child does not speak our language")?;
        Ok(Side { run, pid, all: Turn::default() })
    }

    fn pause(&self) {
        signal_process(self.pid, libc::SIGSTOP);
    }

    fn resume(&self) {
        signal_process(self.pid, libc::SIGCONT);
    }

    fn turn(&mut self, slice_s: f64, seed: u64) -> Result<Turn> {
        self.resume();
        self.run.tell(&format!("{slice_s} {seed}"))?;
        let line = self.run.line()?;
        self.pause();
        let turn = Turn::parse(&line).context("the child does not speak our language")?;
        self.all.add(turn);
        Ok(turn)
    }
}

impl Drop for Side {
    fn drop(&mut self) {
        // A stopped program would not hear that it is to end.
        self.resume();
    }
}

/// Runs the benchmark.
pub fn run(args: ChurnArgs) -> Result<()> {
    if let (true, Some(content)) = (args.child, &args.content) {
        return child(content, args.cold_mib as usize);
    }
    ensure!((0.1..=60.0).contains(&args.slice), "--slice must be between 0.1 and 60 seconds");
    ensure!((0.1..=3600.0).contains(&args.window), "--window must be between 0.1 and 3600 seconds");
    let ground = Ground::prepare("churn")?;
    let Ground { loadavg_before, mut progress, folder, content, exe, .. } = ground;
    let (config, timeline) = (folder.path().join("tier.toml"), folder.path().join("timeline"));
    let tier = Preset::Auto.tiers().into_iter().next().context("the preset has no tier")?;
    fs::write(&config, toml_of(&tier, true)).context("cannot write the configuration")?;

    let program = |mut command: Command| {
        command.args(["bench", "churn", "--child", "--content"]).arg(&content);
        command.args(["--cold-mib", &args.cold_mib.to_string()]);
        command
    };
    let mut plain = Side::start(program(Command::new(&exe)))?;
    plain.pause();
    let mut under = terrace_run(&exe, args.window, &config, &timeline);
    under.arg("--").arg(&exe);
    let mut terrace = Side::start(program(under))?;
    let cold_pages = u64::from(args.cold_mib) * 256;
    progress.line("waiting until the cold memory is in a tier");
    let app = u32::try_from(terrace.pid)?;
    terrace.run.wait_for(&timeline, app, &|w| {
        w.last().is_some_and(|w| w.tier().pages >= cold_pages * 9 / 10)
    })?;
    terrace.pause();

    let mut pairs: Vec<Pair> = Vec::new();
    for n in 0..args.pairs {
        let seed = u64::from(n);
        let (p, t) = if n % 2 == 0 {
            let p = plain.turn(args.slice, seed)?;
            (p, terrace.turn(args.slice, seed)?)
        } else {
            let t = terrace.turn(args.slice, seed)?;
            (plain.turn(args.slice, seed)?, t)
        };
        let (plain_mib_s, terrace_mib_s) = (p.mib_s(), t.mib_s());
        let ratio = terrace_mib_s / plain_mib_s.max(1e-9);
        pairs.push(Pair { plain_mib_s, terrace_mib_s, ratio });
        progress.update(|| {
            let so_far = median(pairs.iter().map(|p| p.ratio));
            format!("[{}/{}] {ratio:.3}; median {so_far:.3}", n + 1, args.pairs)
        });
    }
    let report = Report {
        throughput_ratio: median(pairs.iter().map(|p| p.ratio)),
        total_ratio: terrace.all.mib_s() / plain.all.mib_s().max(1e-9),
        cpu_ratio: terrace.all.cpu_per_byte() / plain.all.cpu_per_byte().max(1e-12),
        plain_mib_s: median(pairs.iter().map(|p| p.plain_mib_s)),
        terrace_mib_s: median(pairs.iter().map(|p| p.terrace_mib_s)),
        pairs,
        slice_s: args.slice,
        window_s: args.window,
        cold_mib: args.cold_mib,
        loadavg_before,
        loadavg_after: loadavg(),
        machine: Machine::here(),
    };
    write_json(args.json.as_deref(), &report)?;
    let mut ratios: Vec<f64> = report.pairs.iter().map(|p| p.ratio).collect();
    ratios.sort_by(f64::total_cmp);
    println!(
        "mapping churn under terrace: {:.3} of plain throughput (median of {} pairs, the middle \
         half {:.3} to {:.3}; all together {:.3}), CPU of the program for a byte {:.3}x; plain \
         {:.0} MiB/s; load {:.1} before, {:.1} after",
        report.throughput_ratio,
        ratios.len(),
        ratios[ratios.len() / 4],
        ratios[ratios.len() * 3 / 4],
        report.total_ratio,
        report.cpu_ratio,
        report.plain_mib_s,
        report.loadavg_before,
        report.loadavg_after
    );
    println!("machine: {}", report.machine.summary());
    Ok(())
}

/// The program: cold memory, then turns as it is told.
fn child(content: &Path, cold_mib: usize) -> Result<()> {
    let source = PageSource::from_file(content)?;
    let mut cold = Mapping::new(cold_mib << 20 >> 12)?;
    for n in 0..cold.pages() {
        source.fill(n, cold.page_mut(n));
    }
    say(&std::process::id().to_string())?;
    loop {
        let line = hear()?;
        let mut words = line.split_whitespace();
        let (Some(slice_s), Some(seed)) = (words.next(), words.next()) else { break };
        let turn = churn(Duration::from_secs_f64(slice_s.parse()?), seed.parse()?)?;
        say(&format!("{} {} {}", turn.bytes, turn.elapsed_ns, turn.cpu_ns))?;
    }
    let mut expected = [0u8; PAGE_BYTES];
    for n in (0..cold.pages()).step_by(64) {
        source.fill(n, &mut expected);
        ensure!(cold.page(n) == expected, "cold page {n} came back with other bytes");
    }
    Ok(())
}

/// Maps, touches and unmaps for `time`.
fn churn(time: Duration, seed: u64) -> Result<Turn> {
    let (started, cpu_started) = (Instant::now(), thread_cpu_ns());
    let mut bytes = 0;
    let mut round = 0;
    while started.elapsed() < time {
        // Every size once in each round, so that turns of the same length do the same.
        for size in shuffled(SIZES_PAGES.len(), seed << 32 | round) {
            let mut mapping = Mapping::as_it_comes(SIZES_PAGES[size])?;
            for n in 0..mapping.pages() {
                mapping.page_mut(n)[0] = 1;
            }
            bytes += mapping.pages() * PAGE_BYTES;
        }
        ensure!(!interrupted(), "interrupted");
        round += 1;
    }
    Ok(Turn {
        bytes: bytes as f64,
        elapsed_ns: started.elapsed().as_nanos() as f64,
        cpu_ns: (thread_cpu_ns() - cpu_started) as f64,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turn_is_told_in_one_line() {
        let turn = churn(Duration::from_millis(1), 3).unwrap();
        assert_eq!(turn.bytes as usize % SIZES_PAGES.iter().sum::<usize>(), 0);
        let line = format!("{} {} {}", turn.bytes, turn.elapsed_ns, turn.cpu_ns);
        let read = Turn::parse(&line).unwrap();
        assert_eq!((read.bytes, read.cpu_ns), (turn.bytes, turn.cpu_ns));
        assert!(Turn::parse("1 2").is_none());
    }

    #[test]
    fn sizes_are_one_to_sixty_four_mib() {
        assert_eq!((SIZES_PAGES[0] * PAGE_BYTES, SIZES_PAGES[6] * PAGE_BYTES), (1 << 20, 64 << 20));
    }
}
