//! Figures of all repetitions, as a table and as JSON.

use std::fmt::Write as _;

use serde::Serialize;
use terrace_core::tier::{MediumKind, TierSpec};

use super::subject::Measured;
use crate::machine::Machine;

/// One repetition of one row.
#[derive(Clone, Debug, Serialize)]
struct Repetition {
    p50_ns: u64,
    p99_ns: u64,
    p999_ns: u64,
    max_ns: u64,
    faults: usize,
    faults_in_timeline: Option<u64>,
    resident_before: usize,
}

/// A tier, or the kernel.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Row {
    name: String,
    codec: Option<&'static str>,
    pool: Option<&'static str>,
    medium: Option<String>,
    emulated: bool,
    p50_ns: u64,
    p99_ns: u64,
    p999_ns: u64,
    /// Sums over the repetitions.
    faults: usize,
    faults_in_timeline: Option<u64>,
    repetitions: Vec<Repetition>,
}

impl Row {
    /// A row of the kernel's.
    pub(super) fn kernel(name: &str) -> Row {
        Row { name: name.into(), ..Row::default() }
    }

    /// A row of a tier.
    pub(super) fn tier(tier: &TierSpec) -> Row {
        Row {
            name: tier.name.clone(),
            codec: Some(tier.codec.name()),
            pool: Some(tier.pool.name()),
            medium: Some(tier.medium.name.clone()),
            emulated: tier.medium.kind == MediumKind::Emulated,
            ..Row::default()
        }
    }

    /// Takes a repetition in.
    pub(super) fn add(&mut self, measured: Measured) {
        let f = measured.figures;
        self.repetitions.push(Repetition {
            p50_ns: f.fault_ns_p50,
            p99_ns: f.fault_ns_p99,
            p999_ns: f.fault_ns_p999,
            max_ns: f.fault_ns_max,
            faults: f.faults,
            faults_in_timeline: measured.faults_in_timeline,
            resident_before: f.resident_before,
        });
        let over = |get: fn(&Repetition) -> u64| median(self.repetitions.iter().map(get).collect());
        self.p50_ns = over(|r| r.p50_ns);
        self.p99_ns = over(|r| r.p99_ns);
        self.p999_ns = over(|r| r.p999_ns);
        self.faults += f.faults;
        if let Some(n) = measured.faults_in_timeline {
            *self.faults_in_timeline.get_or_insert(0) += n;
        }
    }
}

/// The first tier over zswap; the promise of SPEC.md is about these.
#[derive(Clone, Debug, Serialize)]
struct Ratios {
    lz4_vs_zswap_lzo_p50: Option<f64>,
    lz4_vs_zswap_lzo_p99: Option<f64>,
}

/// Everything that is written as JSON.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Report {
    tiers: Vec<Row>,
    against: Vec<Row>,
    ratios: Ratios,
    not_compared: Option<String>,
    /// Whether movement went on.
    pub while_moving: bool,
    /// Pages touched in each repetition.
    pub pages: usize,
    /// Repetitions.
    pub repeat: u32,
    /// Share of the machine's pages that some tier would refuse.
    pub pages_left_out: f64,
    /// Load of the machine, 1 minute average: above the benchmark's own, others were at work.
    pub loadavg_before: f64,
    loadavg_after: f64,
    #[serde(flatten)]
    machine: Machine,
}

impl Report {
    /// A report of now, on this machine. `kernel` is `None` with the reason in `not_compared`.
    pub(super) fn new(
        tiers: Vec<Row>,
        kernel: Option<Row>,
        not_compared: Option<String>,
    ) -> Report {
        let ratio = |get: fn(&Row) -> u64| {
            let lz4 = tiers.iter().find(|t| t.codec == Some("lz4") && !t.emulated)?;
            Some(get(lz4) as f64 / get(kernel.as_ref()?).max(1) as f64)
        };
        Report {
            ratios: Ratios {
                lz4_vs_zswap_lzo_p50: ratio(|r| r.p50_ns),
                lz4_vs_zswap_lzo_p99: ratio(|r| r.p99_ns),
            },
            against: kernel.into_iter().collect(),
            tiers,
            not_compared,
            while_moving: false,
            pages: 0,
            repeat: 0,
            pages_left_out: 0.0,
            loadavg_before: 0.0,
            loadavg_after: loadavg(),
            machine: Machine::here(),
        }
    }

    /// The report as a person reads it.
    pub(super) fn table(&self) -> String {
        let zswap = self.against.first();
        let names = self.against.iter().chain(&self.tiers).map(|r| r.name.len());
        let width = names.max().unwrap_or(0);
        let mut out =
            format!("{:<width$}  {:>8}  {:>8}  {:>8}", "", "p50 us", "p99 us", "p99.9 us");
        if let Some(z) = zswap {
            let _ = write!(out, "  {:>6}  {:>6}   to {}", "p50 x", "p99 x", z.name);
        }
        out.push('\n');
        let us = |ns: u64| ns as f64 / 1e3;
        for r in self.against.iter().chain(&self.tiers) {
            let _ = write!(
                out,
                "{:<width$}  {:>8.1}  {:>8.1}  {:>8.1}",
                r.name,
                us(r.p50_ns),
                us(r.p99_ns),
                us(r.p999_ns)
            );
            if let Some(z) = zswap {
                let x = |a: u64, b: u64| a as f64 / b.max(1) as f64;
                let (p50, p99) = (x(r.p50_ns, z.p50_ns), x(r.p99_ns, z.p99_ns));
                let _ = write!(out, "  {p50:>6.2}  {p99:>6.2}");
            }
            if r.emulated {
                out.push_str("  emulated medium");
            }
            out.push('\n');
        }
        let _ = writeln!(
            out,
            "\nmedians of {}, {} pages each in random order, {}; load {:.1} before, {:.1} after",
            self.repeat,
            self.pages,
            if self.while_moving { "demotion going on" } else { "movement at rest" },
            self.loadavg_before,
            self.loadavg_after
        );
        if let Some(why) = &self.not_compared {
            let _ = writeln!(out, "no comparison: {why}");
        }
        let _ = writeln!(out, "machine: {}", self.machine.summary());
        out
    }
}

/// The lower of the two middle values where there are two.
fn median(mut values: Vec<u64>) -> u64 {
    values.sort_unstable();
    values.get(values.len().saturating_sub(1) / 2).copied().unwrap_or(0)
}

/// Runnable threads of the whole machine, averaged over a minute.
pub(crate) fn loadavg() -> f64 {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().and_then(|n| n.parse().ok()).unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::kernel_swap::ProbeFigures;

    fn measured(p50: u64) -> Measured {
        let figures = ProbeFigures {
            pages: 10,
            resident_before: 0,
            faults: 10,
            fault_ns_p50: p50,
            fault_ns_p99: p50 * 2,
            fault_ns_p999: p50 * 3,
            fault_ns_max: p50 * 4,
            pageout_ns_per_page: 0.0,
            wrong_pages: 0,
        };
        Measured { figures, faults_in_timeline: Some(10) }
    }

    fn rows() -> (Vec<Row>, Row) {
        let mut tiers: Vec<Row> = super::super::tiers_of_presets().iter().map(Row::tier).collect();
        for p50 in [4_000, 90_000, 5_000] {
            tiers[0].add(measured(p50));
        }
        let mut zswap = Row::kernel("zswap+lzo");
        zswap.add(measured(10_000));
        (tiers, zswap)
    }

    #[test]
    fn one_bad_repetition_does_not_decide() {
        let (tiers, zswap) = rows();
        assert_eq!((tiers[0].p50_ns, tiers[0].p99_ns, tiers[0].faults), (5_000, 10_000, 30));
        assert_eq!(tiers[0].faults_in_timeline, Some(30));
        let report = Report::new(tiers, Some(zswap), None);
        assert_eq!(report.ratios.lz4_vs_zswap_lzo_p50, Some(0.5));
        assert!(report.table().contains("5.0") && report.table().contains("0.50"));
    }

    #[test]
    fn without_zswap_there_is_no_ratio_but_a_reason() {
        let report = Report::new(rows().0, None, Some("needs root".into()));
        assert_eq!(report.ratios.lz4_vs_zswap_lzo_p99, None);
        assert!(report.table().contains("no comparison: needs root"));
        let json = serde_json::to_value(&report).unwrap();
        assert!(json["ratios"]["lz4_vs_zswap_lzo_p50"].is_null());
        assert_eq!(json["tiers"][0]["name"], "zbud+lz4+dram");
        assert!(json["kernel"].is_string());
    }
}
