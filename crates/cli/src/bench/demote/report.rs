//! Figures of all repetitions, as a table and as JSON.

use std::fmt::Write as _;

use serde::Serialize;

use crate::bench::figures::{loadavg, median};
use crate::machine::Machine;

const PAGE_BYTES: f64 = 4096.0;

/// What one repetition took, in nanoseconds of CPU time.
#[derive(Clone, Copy, Default, Debug, Serialize)]
pub(super) struct Cost {
    /// Pages that left.
    pub pages: u64,
    /// Encodes, stores.
    pub mover_ns: u64,
    /// Takes pages out of the application; samples, too.
    pub pager_ns: u64,
    /// Looks for what is cold.
    pub agent_ns: u64,
    /// Decides.
    pub planner_ns: u64,
    /// The application's own threads; the kernel's work when it pages out.
    pub application_ns: u64,
    /// Compressed bytes; 0 where the kernel does not say.
    pub stored_bytes: u64,
    /// Bytes held for them.
    pub pool_bytes: u64,
}

impl Cost {
    fn per_page(&self, ns: u64) -> f64 {
        ns as f64 / self.pages.max(1) as f64
    }

    fn demoting_ns(&self) -> u64 {
        self.mover_ns + self.pager_ns + self.application_ns
    }

    fn ratio(&self, bytes: u64) -> f64 {
        // 0 for "not known" rather than infinity.
        if bytes == 0 {
            0.0
        } else {
            self.pages as f64 * PAGE_BYTES / bytes as f64
        }
    }
}

/// A tier, or the kernel.
#[derive(Clone, Default, Debug, Serialize)]
pub(super) struct Row {
    /// As in `terrace tiers list`, or the kernel's.
    pub name: String,
    kernel: bool,
    cpu_ns_per_page: f64,
    with_tracker_cpu_ns_per_page: f64,
    mover_cpu_ns_per_page: f64,
    pager_cpu_ns_per_page: f64,
    agent_cpu_ns_per_page: f64,
    planner_cpu_ns_per_page: f64,
    application_cpu_ns_per_page: f64,
    compression_ratio: f64,
    pool_ratio: f64,
    repetitions: Vec<Cost>,
}

impl Row {
    /// An empty row.
    pub(super) fn new(name: &str, kernel: bool) -> Row {
        Row { name: name.into(), kernel, ..Row::default() }
    }

    /// Takes a repetition in.
    pub(super) fn add(&mut self, cost: Cost) {
        self.repetitions.push(cost);
        let over = |get: &dyn Fn(&Cost) -> f64| median(self.repetitions.iter().map(get));
        self.cpu_ns_per_page = over(&|c| c.per_page(c.demoting_ns()));
        self.with_tracker_cpu_ns_per_page =
            over(&|c| c.per_page(c.demoting_ns() + c.agent_ns + c.planner_ns));
        self.mover_cpu_ns_per_page = over(&|c| c.per_page(c.mover_ns));
        self.pager_cpu_ns_per_page = over(&|c| c.per_page(c.pager_ns));
        self.agent_cpu_ns_per_page = over(&|c| c.per_page(c.agent_ns));
        self.planner_cpu_ns_per_page = over(&|c| c.per_page(c.planner_ns));
        self.application_cpu_ns_per_page = over(&|c| c.per_page(c.application_ns));
        self.compression_ratio = over(&|c| c.ratio(c.stored_bytes));
        self.pool_ratio = over(&|c| c.ratio(c.pool_bytes));
    }
}

/// Everything that is written as JSON.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Report {
    cpu_per_page_ratio_vs_zswap_lzo: Option<f64>,
    cpu_per_page_ratio_vs_zswap_lzo_with_tracker: Option<f64>,
    lzo_tier_cpu_per_page_ratio_vs_zswap_lzo: Option<f64>,
    zbud_lz4_cpu_per_page_ratio_vs_zswap_lzo: Option<f64>,
    cpu_per_page_ratio_vs_zram_lz4: Option<f64>,
    subjects: Vec<Row>,
    not_compared: Option<String>,
    /// Pages filled in each repetition.
    pub pages: usize,
    /// Repetitions.
    pub repeat: u32,
    /// Window of `terrace run`.
    pub window_s: f64,
    /// Share of the machine's pages that some tier would refuse.
    pub pages_left_out: f64,
    /// Load of the machine, 1 minute average.
    pub loadavg_before: f64,
    loadavg_after: f64,
    #[serde(flatten)]
    machine: Machine,
}

impl Report {
    /// A report whose public fields are to be filled in.
    pub(super) fn new(subjects: Vec<Row>, not_compared: Option<String>) -> Report {
        let of = |name: &str, get: fn(&Row) -> f64| {
            let row = subjects.iter().find(|r| r.name == name && !r.repetitions.is_empty());
            row.map(get).filter(|ns| *ns > 0.0)
        };
        let plain: fn(&Row) -> f64 = |r| r.cpu_ns_per_page;
        let ratio = |name, other| Some(of(name, plain)? / of(other, plain)?);
        let tracked = of("zsmalloc+lz4+dram", |r| r.with_tracker_cpu_ns_per_page);
        Report {
            cpu_per_page_ratio_vs_zswap_lzo: ratio("zsmalloc+lz4+dram", "zswap+lzo"),
            cpu_per_page_ratio_vs_zswap_lzo_with_tracker: tracked
                .and_then(|ns| Some(ns / of("zswap+lzo", plain)?)),
            lzo_tier_cpu_per_page_ratio_vs_zswap_lzo: ratio("zsmalloc+lzo+dram", "zswap+lzo"),
            zbud_lz4_cpu_per_page_ratio_vs_zswap_lzo: ratio("zbud+lz4+dram", "zswap+lzo"),
            cpu_per_page_ratio_vs_zram_lz4: ratio("zsmalloc+lz4+dram", "zram+lz4"),
            subjects,
            not_compared,
            pages: 0,
            repeat: 0,
            window_s: 0.0,
            pages_left_out: 0.0,
            loadavg_before: 0.0,
            loadavg_after: loadavg(),
            machine: Machine::here(),
        }
    }

    /// The report for people.
    pub(super) fn table(&self) -> String {
        let zswap = self.subjects.iter().find(|r| r.name == "zswap+lzo");
        let mut out = String::from("CPU time of a demoted page, microseconds\n");
        let _ = writeln!(
            out,
            "{:<20}{:>8}{:>8}{:>8}{:>9}{:>8}{:>8}{:>8}{:>10}{:>8}{:>8}",
            "",
            "total",
            "mover",
            "pager",
            "caller",
            "/ zswap",
            "agent",
            "planner",
            "with both",
            "ratio",
            "in pool"
        );
        for r in &self.subjects {
            let us = |ns: f64| format!("{:.2}", ns / 1_000.0);
            let relative = zswap.map(|z| r.cpu_ns_per_page / z.cpu_ns_per_page.max(1.0));
            let known = |x: f64| if x == 0.0 { "-".into() } else { format!("{x:.2}") };
            let _ = writeln!(
                out,
                "{:<20}{:>8}{:>8}{:>8}{:>9}{:>8}{:>8}{:>8}{:>10}{:>8}{:>8}",
                r.name,
                us(r.cpu_ns_per_page),
                us(r.mover_cpu_ns_per_page),
                us(r.pager_cpu_ns_per_page),
                us(r.application_cpu_ns_per_page),
                known(relative.unwrap_or(0.0)),
                us(r.agent_cpu_ns_per_page),
                us(r.planner_cpu_ns_per_page),
                us(r.with_tracker_cpu_ns_per_page),
                known(r.compression_ratio),
                known(r.pool_ratio)
            );
        }
        let _ = writeln!(
            out,
            "\nmedians of {}, {} pages each; load {:.1} before, {:.1} after",
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

    #[test]
    fn ratios_are_of_medians_and_the_tracker_is_apart() {
        let mut ours = Row::new("zsmalloc+lz4+dram", false);
        for mover_ns in [4_000, 900_000, 5_000] {
            let (pager_ns, agent_ns) = (1_000, 2_000);
            ours.add(Cost { pages: 2, mover_ns, pager_ns, agent_ns, ..Cost::default() });
        }
        let mut zswap = Row::new("zswap+lzo", true);
        zswap.add(Cost { pages: 1, application_ns: 6_000, pool_bytes: 1024, ..Cost::default() });
        assert_eq!((zswap.compression_ratio, zswap.pool_ratio), (0.0, 4.0));
        let report = Report::new(vec![ours, zswap], None);
        assert_eq!(report.cpu_per_page_ratio_vs_zswap_lzo, Some(0.5));
        assert_eq!(report.cpu_per_page_ratio_vs_zswap_lzo_with_tracker, Some(4.0 / 6.0));
        assert_eq!(report.lzo_tier_cpu_per_page_ratio_vs_zswap_lzo, None);
        assert!(report.table().contains("0.50"));
    }
}
