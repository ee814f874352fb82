//! Applications that never ran: traces by rule and seed.

use terrace_core::plan::Ratios;

use crate::config::Config;
use crate::demo::random::Random;
use crate::sim::costs;
use crate::trace::read::Trace;
use crate::trace::write::Batch;
use crate::trace::{Command, Meta, ProcessWindow, Row};

/// What pages are touched.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum Kind {
    /// Few regions get most of the touches
    Zipf,
    /// The middle of the address space gets most of the touches
    Gaussian,
    /// Zipf, and every 25th window reads everything once
    Scan,
    /// Zipf; every 80 windows other regions are the hot ones
    Phase,
    /// Zipf, busy by day, a tenth of that by night; a day has 60 windows
    Diurnal,
    /// Zipf; every 20 windows 8 processes live for 6 windows with a copy of an eighth each
    ForkStorm,
}

impl Kind {
    /// Name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Zipf => "zipf",
            Kind::Gaussian => "gaussian",
            Kind::Scan => "scan",
            Kind::Phase => "phase",
            Kind::Diurnal => "diurnal",
            Kind::ForkStorm => "fork-storm",
        }
    }
}

/// How much of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Size {
    /// Regions of 512 pages.
    pub regions: u32,
    /// Windows.
    pub windows: u32,
    /// Threads that run: a slowdown is of their time, so a large application with few of them can
    /// afford little.
    pub threads: u32,
    /// What chance is drawn from.
    pub seed: u64,
}

/// Share of a window that each of the application's threads runs.
const RUNNING_SHARE: f64 = 0.9;
/// Regions begin here, as a heap does.
const BASE: u64 = 0x5555_5560_0000;
/// Processor time that movers take and the application would have used.
const CONTENTION: f32 = 0.5;
const STORM_EVERY: u32 = 20;
const STORM_WINDOWS: u32 = 6;
const STORM_PROCESSES: u32 = 8;

/// Pages touched in a region by rank, 0 to 1: 0 is the hottest.
fn zipf(rank: f64) -> f64 {
    512.0 * (1.0 - (-40.0 / (1.0 + rank * 400.0).powf(1.3)).exp())
}

/// Mean touches in a window of the region at `place` (0 to 1) and of this rank (0 to 1).
fn mean(kind: Kind, window: u32, place: f64, rank: f64) -> f64 {
    match kind {
        Kind::Zipf | Kind::ForkStorm => zipf(rank),
        Kind::Gaussian => {
            let away = (place - 0.5) / 0.1;
            512.0 * (-away * away / 2.0).exp()
        }
        Kind::Scan if window % 25 == 24 => 512.0,
        Kind::Scan => zipf(rank),
        Kind::Phase => zipf((rank + f64::from(window / 80) * 0.382).fract()),
        Kind::Diurnal => {
            let day = (f64::from(window) / 60.0 * std::f64::consts::TAU).sin();
            zipf(rank) * (0.55 + 0.45 * day)
        }
    }
}

struct Maker<'a> {
    kind: Kind,
    samples: u8,
    window_s: f64,
    threads: u32,
    random: Random,
    batch: &'a mut Batch,
}

/// Makes a trace with the tiers of `config`.
pub fn generate(kind: Kind, size: Size, config: &Config) -> Trace {
    let mut meta = Meta::of(config, &costs::nominal(config), "nominal");
    let mut batch = Batch::default();
    let mut maker = Maker {
        kind,
        samples: config.run.samples_per_region.min(64) as u8,
        window_s: config.run.window_s,
        threads: size.threads,
        random: Random::new(size.seed),
        batch: &mut batch,
    };
    let Size { regions, windows, seed, .. } = size;
    let command = format!("{} of {regions} regions in {windows} windows, seed {seed}", kind.name());
    let mut ranks: Vec<u32> = (0..regions).collect();
    for at in (1..ranks.len()).rev() {
        ranks.swap(at, maker.random.below(at as u64 + 1) as usize);
    }
    maker.process(1, 0..windows, &ranks, regions);
    meta.commands.push(Command { pid: 1, command });
    if kind == Kind::ForkStorm {
        let mut pid = 1;
        for begin in (STORM_EVERY..windows).step_by(STORM_EVERY as usize) {
            for child in 0..STORM_PROCESSES {
                pid += 1;
                let own: Vec<u32> = ranks
                    .iter()
                    .copied()
                    .skip(child as usize)
                    .step_by(STORM_PROCESSES as usize)
                    .collect();
                maker.process(pid, begin..(begin + STORM_WINDOWS).min(windows), &own, regions);
                meta.commands.push(Command { pid, command: "a child".into() });
            }
        }
    }
    Trace { meta, batch }
}

impl Maker<'_> {
    fn process(&mut self, pid: u32, windows: std::ops::Range<u32>, ranks: &[u32], of: u32) {
        // A process has its share of them.
        let threads = f64::from(self.threads) * ranks.len() as f64 / f64::from(of);
        let running_s = RUNNING_SHARE * self.window_s * threads.max(1.0);
        for window in windows {
            let ms = f64::from(window + 1) * self.window_s * 1e3;
            let process = ProcessWindow {
                time_ms: ms as u64,
                running_ns: (running_s * 1e9) as u64,
                contention: CONTENTION,
                managed_bytes: ranks.len() as u64 * (512 << 12),
                ..ProcessWindow::default()
            };
            self.batch.processes.insert((pid, window + 1), process);
            for (index, &rank) in ranks.iter().enumerate() {
                let place = index as f64 / ranks.len() as f64;
                let mean = mean(self.kind, window, place, f64::from(rank) / f64::from(of));
                let touched = self.around(mean);
                let hits = (0..self.samples)
                    .filter(|_| self.random.unit() < f64::from(touched) / 512.0)
                    .count();
                self.batch.rows.push(Row {
                    pid,
                    window: window + 1,
                    region: BASE + ((index as u64) << 21),
                    pages: 512,
                    resident: 512,
                    resident_at_open: 512,
                    samples: self.samples,
                    hits: hits as u8,
                    touched,
                    ratios: Ratios::UNKNOWN,
                    ..Row::default()
                });
            }
        }
    }

    /// About `mean`, with the scatter of a count, in steps of 1/64 page.
    fn around(&mut self, mean: f64) -> f32 {
        let noise: f64 = (0..4).map(|_| self.random.unit() - 0.5).sum::<f64>() * 1.7;
        let pages = (mean + noise * mean.sqrt()).clamp(0.0, 512.0);
        ((pages * 64.0).round() / 64.0) as f32
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::preset::Preset;

    fn of(kind: Kind, seed: u64) -> Trace {
        let size = Size { regions: 40, windows: 90, threads: 1, seed };
        generate(kind, size, &Config::from_preset(Preset::Auto))
    }

    fn sum(trace: &Trace, windows: std::ops::Range<u32>) -> f32 {
        let rows = trace.batch.rows.iter().filter(|row| windows.contains(&row.window));
        rows.map(|row| row.touched).sum()
    }

    #[test]
    fn a_seed_is_a_trace() {
        let (a, b, c) = (of(Kind::Zipf, 7), of(Kind::Zipf, 7), of(Kind::Zipf, 8));
        assert_eq!(a.batch.rows, b.batch.rows);
        assert_ne!(a.batch.rows, c.batch.rows);
        assert_eq!(a.batch.rows.len(), 40 * 90);
    }

    #[test]
    fn threads_run_beside_each_other() {
        let config = Config::from_preset(Preset::Auto);
        let of = |threads| {
            let size = Size { regions: 40, windows: 30, threads, seed: 1 };
            let trace = generate(Kind::ForkStorm, size, &config);
            let running = |pid| trace.batch.processes[&(pid, 21)].running_ns;
            assert!(running(1) > 0);
            (running(1), running(2), trace.batch.rows)
        };
        let (one, sixteen) = (of(1), of(16));
        // Eight children have an eighth of the memory each, and of the threads.
        assert_eq!((one.1, sixteen.0, sixteen.1), (one.0, 16 * one.0, 2 * one.0));
        assert_eq!(one.2, sixteen.2);
    }

    #[test]
    fn each_kind_does_what_it_says() {
        let scan = of(Kind::Scan, 1);
        assert!(sum(&scan, 25..26) > 500.0 * 40.0 && sum(&scan, 24..25) < 100.0 * 40.0);
        let days = of(Kind::Diurnal, 1);
        assert!(sum(&days, 10..20) > 5.0 * sum(&days, 40..50));
        let phase = of(Kind::Phase, 1);
        let of_region = |windows: std::ops::Range<u32>| {
            let rows = phase.batch.rows.iter().filter(|r| windows.contains(&r.window));
            let hot = rows.filter(|r| r.touched > 250.0).map(|r| r.region);
            hot.collect::<std::collections::BTreeSet<u64>>()
        };
        assert!(of_region(70..80).is_disjoint(&of_region(85..90)));
        let middle = of(Kind::Gaussian, 1);
        let hottest = middle.batch.rows.iter().max_by(|a, b| a.touched.total_cmp(&b.touched));
        assert_eq!(hottest.map(|r| (r.region - BASE) >> 21).map(|n| n / 10), Some(2));
        let storm = of(Kind::ForkStorm, 1);
        let pids: std::collections::BTreeSet<u32> =
            storm.batch.rows.iter().map(|r| r.pid).collect();
        assert_eq!(pids.len() as u32, 1 + 4 * STORM_PROCESSES);
        assert_eq!(storm.meta.commands.len(), pids.len());
    }
}
