//! From the records of runs to what is shown: each run against the plain ones beside it, medians
//! over the rounds, and what the machine's own wavering leaves undecided.

use serde::Serialize;

use super::bars::{self, Bar};
use super::configurations::{self, Configuration};
use super::record::Record;
use super::schedule::DRAM;
use super::statistics::{noise, Estimate};

/// One configuration of one workload.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub(super) struct ConfigSummary {
    /// Its name.
    pub name: String,
    /// Runs behind the figures.
    pub runs: usize,
    /// Median share of the cost of memory that is saved (equation 12).
    pub tco_saved: f64,
    /// Its interval.
    pub tco_saved_ci: [f64; 2],
    /// Median of the time for the same work, over that of DRAM, less 1.
    pub slowdown: f64,
    /// Its interval.
    pub slowdown_ci: [f64; 2],
    /// How sure the intervals are.
    pub ci_coverage: f64,
    /// Mean latency over that of DRAM.
    pub mean_ratio: f64,
    /// Median latency over that of DRAM.
    pub p50_ratio: f64,
    /// 99th percentile over that of DRAM.
    pub p99_ratio: f64,
    /// Its interval.
    pub p99_ratio_ci: [f64; 2],
    /// 99.9th percentile over that of DRAM.
    pub p999_ratio: f64,
    /// Processor time of telemetry, planning and migration over the application's.
    pub cpu_tax: f64,
    /// Its interval.
    pub cpu_tax_ci: [f64; 2],
    /// The same with the time in which faults were served.
    pub cpu_tax_with_faults: f64,
    /// Operations a second.
    pub ops_per_s: f64,
    /// Faults from tiers a second; of zswap what the kernel counts.
    pub faults_per_s: f64,
    /// Whether it is as likely noise: its slowdown is smaller than what equal runs differ by, or
    /// there was one run only.
    pub undecided: bool,
    /// Whether pages went to the disk in some run, so that it was not zswap that was measured.
    pub touched_disk: bool,
}

/// One workload.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub(super) struct WorkloadSummary {
    /// Its name.
    pub name: String,
    /// Rounds of which there is something.
    pub rounds: usize,
    /// Plain DRAM.
    pub dram: DramSummary,
    /// What equal runs differ by, as shares.
    pub noise: Noise,
    /// In the order of the command line's help.
    pub configs: Vec<ConfigSummary>,
    /// The promises and what became of them.
    pub bars: Vec<Bar>,
}

/// Plain DRAM: medians over all its runs.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize)]
pub(super) struct DramSummary {
    /// Runs.
    pub runs: usize,
    /// Operations a second.
    pub ops_per_s: f64,
    /// Mean latency in microseconds.
    pub mean_us: f64,
    /// 99th percentile in microseconds.
    pub p99_us: f64,
    /// 99.9th percentile in microseconds.
    pub p999_us: f64,
    /// Resident set in bytes.
    pub rss_bytes: f64,
    /// Cost of memory, US dollars per month.
    pub usd_per_month: f64,
}

/// What plain runs differ by that follow each other in a round, as shares.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub(super) struct Noise {
    /// Pairs of runs behind it.
    pub pairs: usize,
    /// Of throughput. Infinite, written as null, without a pair.
    pub throughput: f64,
    /// Of the 99th percentile.
    pub p99: f64,
    /// Of the cost of memory.
    pub usd: f64,
}

impl ConfigSummary {
    /// The configuration itself.
    pub(super) fn configuration(&self) -> &'static Configuration {
        configurations::find(&self.name).unwrap_or(&configurations::ALL[0])
    }

    /// How far off the slowdown may be.
    pub(super) fn slowdown_noise(&self, noise: &Noise) -> f64 {
        half(self.slowdown_ci).max(noise.throughput)
    }

    /// How far off the share saved may be.
    pub(super) fn saved_noise(&self, noise: &Noise) -> f64 {
        half(self.tco_saved_ci).max(noise.usd)
    }

    /// How far off the tail may be.
    pub(super) fn p99_noise(&self, noise: &Noise) -> f64 {
        half(self.p99_ratio_ci).max(noise.p99)
    }
}

fn half([low, high]: [f64; 2]) -> f64 {
    (high - low) / 2.0
}

/// Sums up whatever runs there are.
pub(super) fn summarise(records: &[Record]) -> Vec<WorkloadSummary> {
    let mut names: Vec<&str> = Vec::new();
    for r in records {
        if !names.contains(&r.id.workload.as_str()) {
            names.push(&r.id.workload);
        }
    }
    names
        .into_iter()
        .map(|name| {
            let of: Vec<&Record> = records.iter().filter(|r| r.id.workload == name).collect();
            workload(name, &of)
        })
        .collect()
}

fn workload(name: &str, records: &[&Record]) -> WorkloadSummary {
    let plain: Vec<&Record> = records.iter().filter(|r| r.id.config == DRAM).copied().collect();
    let noise = noise_of(&plain);
    let configs: Vec<ConfigSummary> = configurations::ALL
        .iter()
        .filter(|c| !c.is_plain())
        .filter_map(|c| config(c.name, records, &plain, &noise))
        .collect();
    let mut rounds: Vec<usize> = records.iter().map(|r| r.id.round).collect();
    rounds.sort_unstable();
    rounds.dedup();
    WorkloadSummary {
        name: name.to_owned(),
        rounds: rounds.len(),
        dram: dram(&plain),
        bars: bars::of(name, &configs, &noise),
        noise,
        configs,
    }
}

fn dram(plain: &[&Record]) -> DramSummary {
    let of = |get: fn(&Record) -> f64| Estimate::of(plain.iter().map(|r| get(r))).median;
    DramSummary {
        runs: plain.len(),
        ops_per_s: of(|r| r.load.ops_per_s),
        mean_us: of(|r| r.load.mean_us),
        p99_us: of(|r| r.load.p99_us),
        p999_us: of(|r| r.load.p999_us),
        rss_bytes: of(rss_mean),
        usd_per_month: of(Record::usd_mean),
    }
}

fn rss_mean(r: &Record) -> f64 {
    let measured = r.memory.iter().filter(|m| m.is_measured);
    let (sum, n) = measured.fold((0.0, 0), |(sum, n), m| (sum + m.rss_bytes as f64, n + 1));
    sum / f64::from(n.max(1))
}

fn noise_of(plain: &[&Record]) -> Noise {
    let pairs: Vec<(&Record, &Record)> = plain
        .windows(2)
        .filter(|pair| pair[0].id.round == pair[1].id.round)
        .map(|pair| (pair[0], pair[1]))
        .collect();
    let of = |get: fn(&Record) -> f64| {
        noise(&pairs.iter().map(|(a, b)| (get(a), get(b))).collect::<Vec<_>>())
    };
    Noise {
        pairs: pairs.len(),
        throughput: of(|r| r.load.relative(|l| l.ops_per_s)),
        p99: of(|r| r.load.relative(|l| l.p99_us)),
        usd: of(Record::usd_mean),
    }
}

/// What a run is compared with: the plain run before it and the one after it, where there are both
/// their geometric mean. Of another round only if its own has none.
pub(super) struct Baseline<'a>(Vec<&'a Record>);

impl<'a> Baseline<'a> {
    /// That of `run` among the plain ones; `None` if there are none at all.
    pub(super) fn of(run: &Record, plain: &[&'a Record]) -> Option<Baseline<'a>> {
        let same = |p: &&&Record| p.id.round == run.id.round;
        let before = plain.iter().filter(same).filter(|p| p.id.position < run.id.position);
        let after = plain.iter().filter(same).filter(|p| p.id.position > run.id.position);
        let nearest = [
            before.max_by_key(|p| p.id.position).copied(),
            after.min_by_key(|p| p.id.position).copied(),
        ];
        let mut of: Vec<&Record> = nearest.into_iter().flatten().collect();
        if of.is_empty() {
            of.extend(plain.iter().min_by_key(|p| p.id.round.abs_diff(run.id.round)));
        }
        (!of.is_empty()).then_some(Baseline(of))
    }

    /// A figure of them; not a number if it is none of one of them.
    pub(super) fn get(&self, of: impl Fn(&Record) -> f64) -> f64 {
        let logs: f64 = self.0.iter().map(|r| of(r).clamp(1e-12, f64::MAX).ln()).sum();
        (logs / self.0.len() as f64).exp()
    }
}

fn config(
    name: &str,
    records: &[&Record],
    plain: &[&Record],
    noise: &Noise,
) -> Option<ConfigSummary> {
    let runs: Vec<&Record> = records.iter().filter(|r| r.id.config == name).copied().collect();
    let pairs: Vec<(&Record, Baseline<'_>)> =
        runs.iter().filter_map(|r| Some((*r, Baseline::of(r, plain)?))).collect();
    if pairs.is_empty() {
        return None;
    }
    let ratio = |get: fn(&Record) -> f64| {
        Estimate::of(pairs.iter().map(|(run, base)| get(run) / base.get(get).max(1e-12)))
    };
    let own = |get: fn(&Record) -> f64| Estimate::of(runs.iter().map(|r| get(r)));
    let saved = Estimate::of(
        pairs.iter().map(|(run, base)| 1.0 - run.usd_mean() / base.get(Record::usd_mean)),
    );
    let slowdown = Estimate::of(pairs.iter().map(|(run, base)| {
        let get: fn(&Record) -> f64 = |r| r.load.relative(|l| l.ops_per_s);
        base.get(get) / get(run) - 1.0
    }));
    let p99 = ratio(|r| r.load.relative(|l| l.p99_us));
    let tax = own(|r| r.cpu.tax());
    let ci = |e: &Estimate| [e.low, e.high];
    // Alone, a run says nothing about how far it may be off.
    let undecided = runs.len() < 2
        || !noise.throughput.is_finite()
        || slowdown.median.abs() < noise.throughput.max(slowdown.half_width());
    Some(ConfigSummary {
        name: name.to_owned(),
        runs: runs.len(),
        tco_saved: saved.median,
        tco_saved_ci: ci(&saved),
        slowdown: slowdown.median,
        slowdown_ci: ci(&slowdown),
        ci_coverage: slowdown.coverage,
        mean_ratio: ratio(|r| r.load.relative(|l| l.mean_us)).median,
        p50_ratio: ratio(|r| r.load.relative(|l| l.p50_us)).median,
        p99_ratio: p99.median,
        p99_ratio_ci: ci(&p99),
        p999_ratio: ratio(|r| r.load.relative(|l| l.p999_us)).median,
        cpu_tax: tax.median,
        cpu_tax_ci: ci(&tax),
        cpu_tax_with_faults: own(|r| {
            (r.cpu.runtime_s + r.cpu.planner_s) / r.cpu.application_s.max(1e-9)
        })
        .median,
        ops_per_s: own(|r| r.load.ops_per_s).median,
        faults_per_s: own(faults_per_s).median,
        undecided,
        touched_disk: runs.iter().any(|r| r.swap.touched_disk()),
    })
}

fn faults_per_s(r: &Record) -> f64 {
    // Of a server that takes turns, those in which it was asked.
    let own = r.load.beside.as_ref().map(|_| r.load.seconds);
    let seconds = own.unwrap_or(r.settings.seconds).max(1e-9);
    if r.swap.zswpin > 0 {
        return r.swap.zswpin as f64 / seconds;
    }
    let measured = r.windows.iter().filter(|w| w.t_s >= r.settings.warmup_s);
    let faults: u64 = measured.flat_map(|w| w.tiers.iter().skip(1)).map(|t| t.faults).sum();
    faults as f64 / seconds
}
