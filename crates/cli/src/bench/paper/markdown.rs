//! The results as tables for people who read text.

use std::fmt::Write;

use serde_json::Value;

use super::bars::Bar;
use super::record::Settings;
use super::statistics::Verdict;
use super::summary::WorkloadSummary;

/// What differs from the paper's set-up, said beside the figures.
pub(super) const DIFFERENCES: &[&str] = &[
    "Size: the paper's data is 18 to 119 GB on 48 cores; here it is --size.",
    "Windows: 120 s in the paper; here --window, because runs are shorter.",
    "Slow medium: Optane in the paper; here an emulated one in memory, delayed to Optane's \
     published figures and priced at a third of DRAM (6T and best). `best-real` uses none.",
    "Two tiers: a modified kernel's in the paper; here this kernel's zswap (lzo, zsmalloc), driven \
     by the same sampling, hotness and thresholds as Terrace's, through MADV_PAGEOUT.",
    "Hotness: PEBS in the paper; here userfaultfd sampling on every side, zswap's included. Its \
     cost can be seen with the configuration `none`.",
    "Slowdown: time for the same work over that of the DRAM runs beside it, less 1. Programs \
     take turns with a plain one, 0.27 s to its 0.14 s (analytics a round of all queries each); \
     speed and latency are taken as shares of the plain one's, those of the DRAM runs too. What \
     they are asked is that much less.",
];

/// What the equation counts, on either side.
pub(super) const MONEY: &str =
    "TCO is equation 12, every second of the measured phase: resident set less pools at the price \
     of DRAM, and pools with fragmentation and tables at the price of their medium. For zswap: \
     resident set and /proc/meminfo's Zswap, with 73 bytes a page for its entries; the memory of \
     the runtime, which it would not need, is not charged to it. Terrace's side is charged for its \
     runtime.";

/// Renders everything.
pub(super) fn render(
    workloads: &[WorkloadSummary],
    settings: &Settings,
    environment: &Value,
    skipped: &[String],
) -> String {
    let mut out = String::from("# TierScape's evaluation on this machine\n\n");
    let word = |key: &str| environment[key].as_str().unwrap_or("unknown").to_owned();
    let _ = writeln!(
        out,
        "{}; Linux {}, {}; terrace {}; THP {}; {}.\n\n{} MiB of data, {} s warm-up, {} s measured, \
         windows of {} s, for {} of which a page that came back stays, seed {}.\n\n{MONEY}\n",
        word("machine"),
        word("kernel"),
        word("distribution"),
        word("terrace"),
        word("thp"),
        word("date"),
        settings.size_mib,
        settings.warmup_s,
        settings.seconds,
        settings.window_s,
        settings.cooling_windows,
        settings.seed,
    );
    for why in skipped {
        let _ = writeln!(out, "Not run: {why}.\n");
    }
    out.push_str(
        "## What was promised\n\n| workload | promise | measured | |\n|---|---|---|---|\n",
    );
    for w in workloads {
        bars(&mut out, &w.name, &w.bars);
    }
    for w in workloads {
        workload(&mut out, w);
    }
    out.push_str("\n## What differs from the paper\n\n");
    for line in DIFFERENCES {
        let _ = writeln!(out, "- {line}");
    }
    out
}

/// Rows of a table: what was promised of a workload, and what came of it.
pub(super) fn bars(out: &mut String, workload: &str, bars: &[Bar]) {
    for bar in bars {
        let verdict = match bar.verdict {
            Verdict::Missed => "**missed**",
            other => other.word(),
        };
        let _ = writeln!(out, "| {workload} | {} | {} | {verdict} |", bar.what, bar.measured);
    }
}

fn workload(out: &mut String, w: &WorkloadSummary) {
    let d = &w.dram;
    let _ = writeln!(
        out,
        "\n## {}\n\nDRAM ({} runs): {:.1} ops/s, mean {:.0} us, p99 {:.0} us, p99.9 {:.0} us, \
         {:.0} MiB. Equal runs differ by {} in throughput, {} in p99 ({} pairs).\n",
        w.name,
        d.runs,
        d.ops_per_s,
        d.mean_us,
        d.p99_us,
        d.p999_us,
        d.rss_bytes / f64::from(1 << 20),
        share(w.noise.throughput),
        share(w.noise.p99),
        w.noise.pairs,
    );
    let _ = writeln!(out, "![Slowdown against TCO saved](figure-8-{}.svg)\n", w.name);
    out.push_str(
        "| configuration | runs | TCO saved | slowdown (interval) | mean | p99 | p99.9 | tax \
         | faults/s | |\n|---|--:|--:|--:|--:|--:|--:|--:|--:|---|\n",
    );
    for c in &w.configs {
        let mut notes = Vec::new();
        if c.undecided {
            notes.push("undecided");
        }
        if c.touched_disk {
            notes.push("went to the disk");
        }
        let _ = writeln!(
            out,
            "| {} | {} | {:.1} % | {:.1} % ({:.1} to {:.1}) | {:.2}x | {:.2}x | {:.2}x | {:.1} % | \
             {:.0} | {} |",
            c.name,
            c.runs,
            c.tco_saved * 100.0,
            c.slowdown * 100.0,
            c.slowdown_ci[0] * 100.0,
            c.slowdown_ci[1] * 100.0,
            c.mean_ratio,
            c.p99_ratio,
            c.p999_ratio,
            c.cpu_tax * 100.0,
            c.faults_per_s,
            notes.join(", "),
        );
    }
    if let Some(c) = w.configs.iter().find(|c| c.runs > 1) {
        let _ = writeln!(
            out,
            "\nMedians; intervals hold the true median in {:.0} % of cases.",
            c.ci_coverage * 100.0
        );
    }
}

fn share(of: f64) -> String {
    if of.is_finite() {
        format!("{:.1} %", of * 100.0)
    } else {
        "what is not known".to_owned()
    }
}
