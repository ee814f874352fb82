//! What a run came to, alone and relative to DRAM: the rows of the table, the report and the JSON.

use super::latency::Histogram;
use super::timeline::{Summary, TierSummary, Window};
use serde::Serialize;
use std::collections::BTreeMap;
use std::time::Duration;

/// What is run: plain Redis, or Redis under `terrace run` with these options.
#[derive(Clone, Debug, PartialEq)]
pub struct RunSpec {
    /// Name in tables and JSON.
    pub name: String,
    /// Tier set and policy; `None` is plain DRAM.
    pub terrace: Option<Placement>,
}

/// Options of `terrace run`.
#[derive(Clone, Debug, PartialEq)]
pub struct Placement {
    /// Tier set.
    pub preset: &'static str,
    /// How to place.
    pub policy: Policy,
}

/// A placement policy and its knob.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Policy {
    /// The waterfall model with a named threshold.
    Waterfall(&'static str),
    /// The analytical model with its alpha.
    Analytical(f64),
    /// The default of `terrace run`: the slowdown that is accepted, as a share.
    Slowdown(f64),
    /// Nothing is placed: loaded, sampling, and every page in DRAM. The control.
    None,
}

impl RunSpec {
    /// Plain redis-server.
    pub fn dram(name: &str) -> RunSpec {
        RunSpec { name: name.to_owned(), terrace: None }
    }

    /// redis-server under `terrace run`.
    pub fn terrace(preset: &'static str, policy: Policy) -> RunSpec {
        let name = match policy {
            Policy::Waterfall(threshold) => format!("{preset} waterfall {threshold}"),
            Policy::Analytical(alpha) => format!("{preset} analytical {alpha}"),
            Policy::Slowdown(share) => format!("{preset} max-slowdown {}%", share * 100.0),
            Policy::None => format!("{preset} none"),
        };
        RunSpec { name, terrace: Some(Placement { preset, policy }) }
    }
}

/// Speed of a run in absolute numbers.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Speed {
    /// Operations per second.
    pub throughput_ops_s: f64,
    /// Latency in microseconds.
    pub p50_us: f64,
    /// Latency in microseconds.
    pub p99_us: f64,
    /// Latency in microseconds.
    pub p999_us: f64,
    /// The slowest operation, in microseconds.
    pub max_us: f64,
}

impl Speed {
    /// From a histogram and the time it took.
    pub fn new(latency: &Histogram, wall: Duration) -> Speed {
        Speed {
            throughput_ops_s: latency.count() as f64 / wall.as_secs_f64().max(1e-9),
            p50_us: latency.quantile_us(0.5),
            p99_us: latency.quantile_us(0.99),
            p999_us: latency.quantile_us(0.999),
            max_us: latency.max_ns() as f64 / 1e3,
        }
    }
}

/// Everything one run yields.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// What was run.
    pub spec: RunSpec,
    /// How fast it was.
    pub speed: Speed,
    /// How fast plain DRAM was in the same minutes.
    pub dram: Speed,
    /// Throughput of each window over that of plain DRAM right after it; empty for DRAM.
    pub pairs: Vec<f64>,
    /// Operations measured.
    pub ops: u64,
    /// Wall time of the measured phase in which the application was driven.
    pub wall: Duration,
    /// CPU time of Redis's main thread in the measured phase.
    pub application_cpu: Duration,
    /// CPU time of the load generator in the measured phase.
    pub client_cpu: Duration,
    /// Replies that were not what was written, read-back included.
    pub wrong_values: u64,
    /// The windows up to the end of the measured phase.
    pub windows: Vec<Window>,
    /// Sum over the windows of the measured phase.
    pub summary: Summary,
    /// Index of the first window of the measured phase; it lasts to the last window.
    pub first_measured: usize,
    /// (seconds since the start of the server, operations per second).
    pub series: Vec<(f64, f64)>,
    /// Resident memory of Redis at the end of the measured phase.
    pub rss_bytes: u64,
}

/// One run as it is shown.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Row {
    /// Name of the run.
    pub name: String,
    /// Tier set; `null` for DRAM.
    pub preset: Option<String>,
    /// `waterfall`, `analytical`, `slowdown` or `none`; `null` for DRAM.
    pub policy: Option<String>,
    /// Knob of `analytical`, else `null`.
    pub alpha: Option<f64>,
    /// Threshold of `waterfall`, else `null`.
    pub threshold: Option<String>,
    /// Slowdown that `slowdown` accepts as a share, else `null`.
    pub max_slowdown: Option<f64>,
    /// Mean over the measured windows, 0..1.
    pub tco_saved: f64,
    /// Part of the saving that is on media this machine has, in money for this application.
    pub usd_saved_per_month: f64,
    /// The same per TiB of application memory.
    pub usd_saved_per_tib_month: f64,
    /// Whether a tier of this run lies on an emulated medium.
    pub emulated: bool,
    /// Relative to DRAM.
    pub throughput_ratio: f64,
    /// Of each window to the look at DRAM after it; `throughput_ratio` is their median.
    pub throughput_ratios: Vec<f64>,
    /// Relative to DRAM.
    pub p50_ratio: f64,
    /// Relative to DRAM.
    pub p99_ratio: f64,
    /// Relative to DRAM.
    pub p999_ratio: f64,
    /// Mean over the measured windows, of 4 KiB.
    pub pages_per_tier: BTreeMap<String, u64>,
    /// Sum over the measured phase.
    pub faults_per_tier: BTreeMap<String, u64>,
    /// CPU time of Terrace over CPU time of the application (Redis's main thread).
    pub terrace_cpu_share: f64,
    /// CPU time of Terrace in cores: 0.1 is a tenth of one CPU.
    pub terrace_cpu_cores: f64,
    /// Absolute numbers.
    #[serde(flatten)]
    pub speed: Speed,
    /// Operations per second of plain DRAM in the same minutes.
    pub dram_ops_s: f64,
    /// Operations in the measured phase.
    pub ops: u64,
    /// Length of the measured phase.
    pub measured_s: f64,
    /// Windows in the measured phase.
    pub windows: usize,
    /// CPU time of Redis's main thread in the measured phase.
    pub application_cpu_s: f64,
    /// CPU time of Terrace in the measured phase.
    pub terrace_cpu_s: f64,
    /// CPU time the load generator spent for one operation, in microseconds.
    pub client_us_per_op: f64,
    /// Time application threads waited for faults, milliseconds in the measured phase.
    pub stalled_ms: f64,
    /// Resident memory at the end of the measured phase.
    pub rss_bytes: u64,
    /// Application bytes, resident or stored.
    pub managed_bytes: u64,
    /// Memory of the runtime itself, pools aside.
    pub runtime_bytes: u64,
    /// How hotness was measured.
    pub tracker: String,
    /// Replies that were not what was written.
    pub wrong_values: u64,
    /// The tiers in detail, in order.
    pub tiers: Vec<TierSummary>,
}

impl Row {
    /// Puts a run in relation to the DRAM server of the same minutes.
    pub fn new(outcome: &Outcome) -> Row {
        let (speed, dram, summary) = (outcome.speed, &outcome.dram, &outcome.summary);
        let policy = outcome.spec.terrace.as_ref().map(|t| t.policy);
        let tiers = match &outcome.spec.terrace {
            Some(_) => summary.tiers.clone(),
            None => vec![TierSummary {
                name: "dram".to_owned(),
                medium: Some("dram".to_owned()),
                pages: outcome.rss_bytes / 4096,
                ..TierSummary::default()
            }],
        };
        let cpu_s = summary.terrace_cpu_ms / 1e3;
        let tib = summary.managed_bytes as f64 / (1_u64 << 40) as f64;
        Row {
            name: outcome.spec.name.clone(),
            preset: outcome.spec.terrace.as_ref().map(|t| t.preset.to_owned()),
            policy: policy.map(|p| match p {
                Policy::Waterfall(_) => "waterfall".to_owned(),
                Policy::Analytical(_) => "analytical".to_owned(),
                Policy::Slowdown(_) => "slowdown".to_owned(),
                Policy::None => "none".to_owned(),
            }),
            alpha: match policy {
                Some(Policy::Analytical(alpha)) => Some(alpha),
                _ => None,
            },
            threshold: match policy {
                Some(Policy::Waterfall(threshold)) => Some(threshold.to_owned()),
                _ => None,
            },
            max_slowdown: match policy {
                Some(Policy::Slowdown(share)) => Some(share),
                _ => None,
            },
            tco_saved: summary.tco_saved,
            usd_saved_per_month: summary.usd_saved_per_month,
            usd_saved_per_tib_month: ratio(summary.usd_saved_per_month, tib),
            emulated: tiers.iter().any(|t| t.emulated),
            throughput_ratio: ratio(speed.throughput_ops_s, dram.throughput_ops_s),
            throughput_ratios: outcome.pairs.clone(),
            p50_ratio: ratio(speed.p50_us, dram.p50_us),
            p99_ratio: ratio(speed.p99_us, dram.p99_us),
            p999_ratio: ratio(speed.p999_us, dram.p999_us),
            pages_per_tier: tiers.iter().map(|t| (t.name.clone(), t.pages)).collect(),
            faults_per_tier: tiers.iter().map(|t| (t.name.clone(), t.faults)).collect(),
            terrace_cpu_share: ratio(cpu_s, outcome.application_cpu.as_secs_f64()),
            terrace_cpu_cores: ratio(cpu_s, outcome.wall.as_secs_f64()),
            speed,
            dram_ops_s: dram.throughput_ops_s,
            ops: outcome.ops,
            measured_s: outcome.wall.as_secs_f64(),
            windows: outcome.windows.len() - outcome.first_measured.min(outcome.windows.len()),
            application_cpu_s: outcome.application_cpu.as_secs_f64(),
            terrace_cpu_s: cpu_s,
            client_us_per_op: ratio(outcome.client_cpu.as_secs_f64() * 1e6, outcome.ops as f64),
            stalled_ms: summary.stalled_ms,
            rss_bytes: outcome.rss_bytes,
            managed_bytes: summary.managed_bytes,
            runtime_bytes: summary.runtime_bytes,
            tracker: summary.tracker.clone(),
            wrong_values: outcome.wrong_values,
            tiers,
        }
    }
}

fn ratio(a: f64, b: f64) -> f64 {
    if b > 0.0 {
        a / b
    } else {
        0.0
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::timeline::{summarise, tests::window};
    use super::*;

    pub(in crate::demo) fn outcome(spec: RunSpec, ops_s: f64) -> Outcome {
        let windows: Vec<Window> = match spec.terrace {
            Some(_) => (1..=6).map(|n| window(n, 0.1 * n as f64, 100 * n)).collect(),
            None => Vec::new(),
        };
        let speed =
            Speed { throughput_ops_s: ops_s, p50_us: 30.0, p99_us: 90.0, ..Speed::default() };
        Outcome {
            spec,
            speed,
            dram: Speed { throughput_ops_s: 1000.0, p50_us: 20.0, p99_us: 45.0, ..speed },
            pairs: Vec::new(),
            ops: 1_000_000,
            wall: Duration::from_secs(20),
            application_cpu: Duration::from_secs(10),
            client_cpu: Duration::from_secs(5),
            wrong_values: 0,
            summary: summarise(&windows[windows.len().min(2)..]),
            windows,
            first_measured: 2,
            series: vec![(1.0, 50_000.0), (2.0, 60_000.0)],
            rss_bytes: 1 << 30,
        }
    }

    #[test]
    fn a_row_is_relative_to_dram() {
        let spec = RunSpec::terrace("tierscape", Policy::Analytical(0.1));
        let row = Row::new(&outcome(spec, 800.0));
        assert_eq!(row.name, "tierscape analytical 0.1");
        assert_eq!((row.throughput_ratio, row.p50_ratio, row.p99_ratio), (0.8, 1.5, 2.0));
        assert_eq!((row.alpha, row.threshold), (Some(0.1), None));
        assert!((row.tco_saved - 0.45).abs() < 1e-9);
        assert_eq!(row.faults_per_tier["zbud+lz4"], 300 + 400 + 500 + 600);
        assert_eq!(row.terrace_cpu_share, 0.04);
        assert_eq!(row.windows, 4);
        assert!(row.emulated);
    }

    #[test]
    fn dram_has_all_its_pages_in_dram_and_nulls_for_the_rest() {
        let nothing = Outcome { dram: Speed::default(), ..outcome(RunSpec::dram("dram"), 100.0) };
        let row = Row::new(&nothing);
        assert_eq!(row.pages_per_tier["dram"], 1 << 18);
        let json = serde_json::to_value(&row).expect("JSON");
        assert!(json["preset"].is_null() && json["alpha"].is_null() && json["policy"].is_null());
        assert_eq!(json["throughput_ops_s"], 100.0);
        assert_eq!(json["throughput_ratio"], 0.0);
    }
}
