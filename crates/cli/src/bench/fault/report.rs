//! Figures of all repetitions, as a table and as JSON.

use std::fmt::Write as _;

use serde::Serialize;
use terrace_core::tier::{MediumKind, TierSpec};

use super::passes::{Condition, Floor, Subject};
use super::subject::Measured;
use crate::bench::figures::{loadavg, median};
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
    /// An empty row.
    pub(super) fn of(subject: &Subject) -> Row {
        match subject {
            Subject::Kernel(kernel) => Row { name: kernel.name(), ..Row::default() },
            Subject::Tier(tier) => Row::tier(tier),
            Subject::Bare(floor) => Row { name: floor.name().into(), ..Row::default() },
        }
    }

    fn is_floor(&self) -> bool {
        Floor::ALL.iter().any(|floor| self.name == floor.name())
    }

    fn is_kernel(&self) -> bool {
        self.codec.is_none()
    }

    fn tier(tier: &TierSpec) -> Row {
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
        let over = |get: fn(&Repetition) -> u64| median(self.repetitions.iter().map(get));
        self.p50_ns = over(|r| r.p50_ns);
        self.p99_ns = over(|r| r.p99_ns);
        self.p999_ns = over(|r| r.p999_ns);
        self.faults += f.faults;
        if let Some(n) = measured.faults_in_timeline {
            *self.faults_in_timeline.get_or_insert(0) += n;
        }
    }
}

/// Terrace's tiers over the kernel's; the promises of SPEC.md are about the first ones. `None`
/// where one of the two was not measured.
#[derive(Clone, Copy, Debug, Default, Serialize)]
struct Ratios {
    lz4_vs_zswap_lzo_p50: Option<f64>,
    lz4_vs_zswap_lzo_p99: Option<f64>,
    lz4_vs_zswap_lzo_p50_while_moving: Option<f64>,
    lz4_vs_zswap_lzo_p99_while_moving: Option<f64>,
    /// The tier while demotion goes on, over zswap at rest.
    lz4_moving_vs_zswap_lzo_resting_p99: Option<f64>,
    lz4_vs_zram_lz4_p50: Option<f64>,
    lz4_vs_zram_lz4_p99: Option<f64>,
    deflate_vs_zswap_deflate_p50: Option<f64>,
    deflate_vs_zswap_deflate_p99: Option<f64>,
    /// The other lz4 tier on DRAM; those above are of the first tier, zsmalloc+lz4+dram.
    zbud_lz4_vs_zswap_lzo_p50: Option<f64>,
    zbud_lz4_vs_zswap_lzo_p99: Option<f64>,
    zbud_lz4_vs_zram_lz4_p50: Option<f64>,
    /// What no tier can come below.
    bare_vs_zswap_lzo_p50: Option<f64>,
    bare_vs_zswap_lzo_p99: Option<f64>,
    bare_vs_zram_lz4_p50: Option<f64>,
    /// What no pager can come below.
    self_served_vs_zswap_lzo_p50: Option<f64>,
    self_served_vs_zswap_lzo_p99: Option<f64>,
    self_served_vs_zram_lz4_p50: Option<f64>,
    /// The kernel's own quickest, without a thread switch or a system call.
    zram_lz4_vs_zswap_lzo_p50: Option<f64>,
    zram_lz4_vs_zswap_lzo_p99: Option<f64>,
}

/// The tier that "lz4 on dram" means: the first of the presets.
const LZ4: &str = "zsmalloc+lz4+dram";
const ZBUD_LZ4: &str = "zbud+lz4+dram";
const DEFLATE: &str = "zsmalloc+deflate+dram";

/// What was measured under one condition.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Pass {
    /// Threads that touched.
    threads: usize,
    #[serde(skip)]
    moving: bool,
    tiers: Vec<Row>,
    against: Vec<Row>,
    floors: Vec<Row>,
}

impl Pass {
    /// Sorts rows into Terrace's, the kernel's and those of bare userfaultfd.
    pub(super) fn new(condition: Condition, rows: Vec<Row>) -> Pass {
        let (floors, rows): (Vec<Row>, Vec<Row>) = rows.into_iter().partition(Row::is_floor);
        let (against, tiers) = rows.into_iter().partition(Row::is_kernel);
        let Condition { threads, moving } = condition;
        Pass { threads, moving, tiers, against, floors }
    }

    fn row(&self, name: &str) -> Option<&Row> {
        let mut rows = self.tiers.iter().chain(&self.against).chain(&self.floors);
        rows.find(|r| r.name == name && r.faults > 0)
    }
}

/// A quantile of `name` in one pass over that of `other` in another.
fn ratio(
    pass: Option<&Pass>,
    name: &str,
    other_pass: Option<&Pass>,
    other: &str,
    quantile: fn(&Row) -> u64,
) -> Option<f64> {
    let (a, b) = (quantile(pass?.row(name)?), quantile(other_pass?.row(other)?));
    Some(a as f64 / b.max(1) as f64)
}

impl Ratios {
    fn of(rest: Option<&Pass>, moving: Option<&Pass>) -> Ratios {
        let p50: fn(&Row) -> u64 = |r| r.p50_ns;
        let p99: fn(&Row) -> u64 = |r| r.p99_ns;
        let at_rest = |a, b, q| ratio(rest, a, rest, b, q);
        let [bare, alone] = Floor::ALL.map(Floor::name);
        Ratios {
            lz4_vs_zswap_lzo_p50: at_rest(LZ4, "zswap+lzo", p50),
            lz4_vs_zswap_lzo_p99: at_rest(LZ4, "zswap+lzo", p99),
            lz4_vs_zswap_lzo_p50_while_moving: ratio(moving, LZ4, moving, "zswap+lzo", p50),
            lz4_vs_zswap_lzo_p99_while_moving: ratio(moving, LZ4, moving, "zswap+lzo", p99),
            lz4_moving_vs_zswap_lzo_resting_p99: ratio(moving, LZ4, rest, "zswap+lzo", p99),
            lz4_vs_zram_lz4_p50: at_rest(LZ4, "zram+lz4", p50),
            lz4_vs_zram_lz4_p99: at_rest(LZ4, "zram+lz4", p99),
            deflate_vs_zswap_deflate_p50: at_rest(DEFLATE, "zswap+deflate", p50),
            deflate_vs_zswap_deflate_p99: at_rest(DEFLATE, "zswap+deflate", p99),
            zbud_lz4_vs_zswap_lzo_p50: at_rest(ZBUD_LZ4, "zswap+lzo", p50),
            zbud_lz4_vs_zswap_lzo_p99: at_rest(ZBUD_LZ4, "zswap+lzo", p99),
            zbud_lz4_vs_zram_lz4_p50: at_rest(ZBUD_LZ4, "zram+lz4", p50),
            bare_vs_zswap_lzo_p50: at_rest(bare, "zswap+lzo", p50),
            bare_vs_zswap_lzo_p99: at_rest(bare, "zswap+lzo", p99),
            bare_vs_zram_lz4_p50: at_rest(bare, "zram+lz4", p50),
            self_served_vs_zswap_lzo_p50: at_rest(alone, "zswap+lzo", p50),
            self_served_vs_zswap_lzo_p99: at_rest(alone, "zswap+lzo", p99),
            self_served_vs_zram_lz4_p50: at_rest(alone, "zram+lz4", p50),
            zram_lz4_vs_zswap_lzo_p50: at_rest("zram+lz4", "zswap+lzo", p50),
            zram_lz4_vs_zswap_lzo_p99: at_rest("zram+lz4", "zswap+lzo", p99),
        }
    }
}

/// Everything that is written as JSON.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Report {
    /// At rest, with the first number of threads.
    tiers: Vec<Row>,
    against: Vec<Row>,
    floors: Vec<Row>,
    ratios: Ratios,
    not_compared: Option<String>,
    /// At rest, by the number of threads that touch; the first once more.
    threads: Vec<Pass>,
    while_moving: Option<Pass>,
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
    /// A report whose public fields are to be filled in.
    pub(super) fn new(passes: Vec<Pass>, not_compared: Option<String>) -> Report {
        let (moving, resting): (Vec<Pass>, Vec<Pass>) = passes.into_iter().partition(|p| p.moving);
        let (first, while_moving) = (resting.first(), moving.into_iter().next());
        Report {
            tiers: first.map(|p| p.tiers.clone()).unwrap_or_default(),
            against: first.map(|p| p.against.clone()).unwrap_or_default(),
            floors: first.map(|p| p.floors.clone()).unwrap_or_default(),
            ratios: Ratios::of(first, while_moving.as_ref()),
            not_compared,
            threads: resting,
            while_moving,
            pages: 0,
            repeat: 0,
            pages_left_out: 0.0,
            loadavg_before: 0.0,
            loadavg_after: loadavg(),
            machine: Machine::here(),
        }
    }

    /// The report for people.
    pub(super) fn table(&self) -> String {
        let mut out = String::new();
        for pass in self.threads.iter().chain(&self.while_moving) {
            let moving = if pass.moving { "demotion going on" } else { "movement at rest" };
            let many = if pass.threads == 1 { "thread" } else { "threads" };
            let _ = writeln!(
                out,
                "{} {many}, {moving}; microseconds, and p50 and p99 over the kernel's",
                pass.threads
            );
            let kernel = &pass.against;
            let _ = write!(out, "{:<24}{:>9}{:>9}{:>9}", "", "p50", "p99", "p99.9");
            for k in kernel {
                let _ = write!(out, "{:>18}", format!("/ {}", k.name));
            }
            out.push('\n');
            for r in kernel.iter().chain(&pass.floors).chain(&pass.tiers) {
                let us = |ns: u64| ns as f64 / 1_000.0;
                let _ = write!(
                    out,
                    "{:<24}{:>9.1}{:>9.1}{:>9.1}",
                    r.name,
                    us(r.p50_ns),
                    us(r.p99_ns),
                    us(r.p999_ns)
                );
                for k in kernel {
                    let x = |a: u64, b: u64| a as f64 / b.max(1) as f64;
                    let (p50, p99) = (x(r.p50_ns, k.p50_ns), x(r.p99_ns, k.p99_ns));
                    let _ = write!(out, "{:>18}", format!("{p50:.2}  {p99:.2}"));
                }
                let note = if r.emulated { "  emulated medium\n" } else { "\n" };
                out.push_str(note);
            }
            out.push('\n');
        }
        let _ = writeln!(
            out,
            "medians of {}, {} pages each in random order; load {:.1} before, {:.1} after",
            self.repeat, self.pages, self.loadavg_before, self.loadavg_after
        );
        if let Some(why) = &self.not_compared {
            let _ = writeln!(out, "no comparison: {why}");
        }
        let _ = writeln!(out, "machine: {}", self.machine.summary());
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::kernel_swap::{KernelTier, ProbeFigures};

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

    fn pass(moving: bool, tier_ns: &[u64], zswap_ns: Option<u64>) -> Pass {
        let tiers = super::super::passes::tiers();
        let mut rows: Vec<Row> = tiers.into_iter().map(|t| Row::of(&Subject::Tier(t))).collect();
        for &p50 in tier_ns {
            rows[0].add(measured(p50));
        }
        if let Some(p50) = zswap_ns {
            let mut row = Row::of(&Subject::Kernel(KernelTier::Zswap("lzo".into())));
            row.add(measured(p50));
            rows.push(row);
        }
        Pass::new(Condition { moving, threads: 1 }, rows)
    }

    #[test]
    fn one_bad_repetition_does_not_decide() {
        let rest = pass(false, &[4_000, 90_000, 5_000], Some(10_000));
        let first = &rest.tiers[0];
        assert_eq!((first.p50_ns, first.p99_ns, first.faults), (5_000, 10_000, 30));
        assert_eq!(first.faults_in_timeline, Some(30));
        assert!(rest.floors.is_empty());
        let report = Report::new(vec![rest, pass(true, &[8_000], Some(32_000))], None);
        let r = report.ratios;
        assert_eq!((r.lz4_vs_zswap_lzo_p50, r.lz4_vs_zswap_lzo_p99), (Some(0.5), Some(0.5)));
        assert_eq!(r.lz4_vs_zswap_lzo_p99_while_moving, Some(0.25));
        assert_eq!(r.lz4_moving_vs_zswap_lzo_resting_p99, Some(0.8));
        assert_eq!((r.lz4_vs_zram_lz4_p50, r.deflate_vs_zswap_deflate_p50), (None, None));
        let table = report.table();
        assert!(table.contains("0.50  0.50") && table.contains("0.25  0.25"), "{table}");
    }

    #[test]
    fn bare_userfaultfd_has_rows_of_its_own() {
        let zram = Subject::Kernel(KernelTier::Zram("lz4".into()));
        let subjects = Floor::ALL.map(Subject::Bare);
        let mut rows: Vec<Row> = subjects.iter().chain([&zram]).map(Row::of).collect();
        for (row, p50) in rows.iter_mut().zip([3_000, 1_500, 4_500]) {
            row.add(measured(p50));
        }
        let zswap = KernelTier::Zswap("lzo".into());
        rows.push(Row::of(&Subject::Kernel(zswap)));
        rows[3].add(measured(6_000));
        let pass = Pass::new(Condition { moving: false, threads: 1 }, rows);
        let report = Report::new(vec![pass], None);
        let r = report.ratios;
        assert_eq!(
            (r.bare_vs_zswap_lzo_p50, r.self_served_vs_zswap_lzo_p50),
            (Some(0.5), Some(0.25))
        );
        assert_eq!(r.zram_lz4_vs_zswap_lzo_p50, Some(0.75));
        assert_eq!((report.tiers.len(), report.against.len()), (0, 2));
        assert!(report.table().contains("bare userfaultfd"));
        assert_eq!(serde_json::to_value(&report).unwrap()["floors"][1]["p50_ns"], 1_500);
    }

    #[test]
    fn without_the_kernel_there_is_no_ratio_but_a_reason() {
        let report = Report::new(vec![pass(false, &[4_000], None)], Some("needs root".into()));
        assert_eq!(report.ratios.lz4_vs_zswap_lzo_p99, None);
        assert!(report.table().contains("no comparison: needs root"));
        let json = serde_json::to_value(&report).unwrap();
        assert!(json["ratios"]["lz4_vs_zswap_lzo_p50"].is_null());
        assert_eq!(json["tiers"][0]["name"], "zsmalloc+lz4+dram");
        assert_eq!(json["threads"][0]["threads"], 1);
        assert!(json["while_moving"].is_null() && json["kernel"].is_string());
    }
}
