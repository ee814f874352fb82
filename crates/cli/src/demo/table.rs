//! The table on stdout: one line a run, then what the numbers mean and where they are from.

use super::machine::Machine;
use super::outcome::Row;
use std::fmt::Write;

/// A medium that only pretends: what it was told to be.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct StatedMedium {
    /// Name in the configuration.
    pub name: String,
    /// Added latency of one access.
    pub latency_ns: u64,
    /// Bandwidth in MiB per second, 0 for unlimited.
    pub bandwidth_mib_s: u64,
    /// Price.
    pub usd_per_gib_month: f64,
}

impl StatedMedium {
    /// One sentence for people.
    pub fn sentence(&self) -> String {
        let bandwidth = match self.bandwidth_mib_s {
            0 => "unlimited bandwidth".to_owned(),
            mib => format!("{mib} MiB/s"),
        };
        format!(
            "medium `{}` is EMULATED: DRAM with {} ns added to each access and {bandwidth}, \
             priced at {:.2} $/GiB-month; money is not counted for it",
            self.name, self.latency_ns, self.usd_per_gib_month
        )
    }
}

/// Everything the table and the report show besides the rows.
#[derive(Clone, Debug, Default)]
pub struct Notes {
    /// The machine.
    pub machine: Machine,
    /// What was asked of Redis, in one sentence.
    pub workload: String,
    /// What the values are made of.
    pub content: String,
    /// How the baseline was made.
    pub baseline: String,
    /// Emulated media of the runs.
    pub media: Vec<StatedMedium>,
    /// Descriptions of wrong values; empty is the only good answer.
    pub wrong: Vec<String>,
    /// How many there were.
    pub wrong_values: u64,
    /// Wall time of the whole demo.
    pub seconds_total: f64,
}

/// Renders the table.
pub fn render(rows: &[Row], notes: &Notes) -> String {
    let head = [
        "run",
        "TCO saved",
        "$/month saved",
        "per TiB",
        "ops/s",
        "vs DRAM",
        "p50",
        "p99",
        "p99.9",
        "faults/s",
        "Terrace CPU",
    ];
    let mut lines: Vec<Vec<String>> = vec![head.iter().map(|h| (*h).to_owned()).collect()];
    for row in rows {
        let plain = row.preset.is_none();
        let or_dash = |text: String| if plain { "-".to_owned() } else { text };
        let mark = if row.emulated { "*" } else { "" };
        let faults: u64 = row.faults_per_tier.values().sum();
        lines.push(vec![
            row.name.clone(),
            or_dash(format!("{:.1} %{mark}", 100.0 * row.tco_saved)),
            or_dash(format!("{:.3}{mark}", row.usd_saved_per_month)),
            or_dash(format!("{:.0}{mark}", row.usd_saved_per_tib_month)),
            format!("{:.0}", row.speed.throughput_ops_s),
            format!("{:.3}x", row.throughput_ratio),
            format!("{:.2}x", row.p50_ratio),
            format!("{:.2}x", row.p99_ratio),
            format!("{:.2}x", row.p999_ratio),
            or_dash(format!("{:.0}", faults as f64 / row.measured_s.max(1e-9))),
            or_dash(format!("{:.1} %", 100.0 * row.terrace_cpu_share)),
        ]);
    }
    let mut out = columns(&lines);
    out.push_str(&tiers(rows));
    let mut note = |text: &str| {
        let _ = writeln!(out, "{text}");
    };
    note("");
    note(
        "ratios are to the DRAM baseline: throughput above 1 is faster, latency above 1 is slower",
    );
    note(&notes.baseline);
    note("Terrace CPU: its CPU time over that of Redis's main thread; faults, pages, TCO and CPU");
    note("are of the measured phase");
    for medium in &notes.media {
        note(&format!("* {}", medium.sentence()));
    }
    note(&format!("load: {}", notes.workload));
    note(&format!("values: {}", notes.content));
    let m = &notes.machine;
    note(&format!("machine: {}, Linux {}, {}, THP {}", m.machine, m.kernel, m.distribution, m.thp));
    note(&format!("versions: terrace {}, redis {}, {}", m.version, m.redis, m.date));
    note(&match notes.wrong_values {
        0 => {
            "wrong values: 0 (every GET compared, all bytes; every key read back at the end)".into()
        }
        n => format!("WRONG VALUES: {n}\n{}", notes.wrong.join("\n")),
    });
    out
}

/// Second part: pages and faults per tier.
fn tiers(rows: &[Row]) -> String {
    let head = ["", "tier", "pages", "share", "stored as", "faults", "fault p50", "fault p99"];
    let mut lines: Vec<Vec<String>> = vec![head.iter().map(|h| (*h).to_owned()).collect()];
    for row in rows.iter().filter(|r| r.preset.is_some()) {
        let all: u64 = row.tiers.iter().map(|t| t.pages).sum();
        for (i, tier) in row.tiers.iter().enumerate() {
            let dash = || "-".to_owned();
            let compressed = i > 0 && tier.pages > 0;
            lines.push(vec![
                if i == 0 { row.name.clone() } else { String::new() },
                format!("{}{}", tier.name, if tier.emulated { "*" } else { "" }),
                thousands(tier.pages),
                format!("{:.1} %", 100.0 * tier.pages as f64 / all.max(1) as f64),
                if compressed {
                    format!("{:.1} %", 100.0 * tier.pool_bytes as f64 / (tier.pages * 4096) as f64)
                } else {
                    dash()
                },
                if i > 0 { thousands(tier.faults) } else { dash() },
                if tier.fault_us_p50 > 0.0 {
                    format!("{:.1} us", tier.fault_us_p50)
                } else {
                    dash()
                },
                if tier.fault_us_p99 > 0.0 {
                    format!("{:.1} us", tier.fault_us_p99)
                } else {
                    dash()
                },
            ]);
        }
    }
    if lines.len() == 1 {
        return String::new();
    }
    format!("\n{}", columns(&lines))
}

/// Aligns columns: the first two to the left when they hold words, numbers to the right.
fn columns(lines: &[Vec<String>]) -> String {
    let count = lines.first().map_or(0, Vec::len);
    let width = |c: usize| lines.iter().map(|l| l[c].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..count).map(width).collect();
    let words = |c: usize| c == 0 || lines[0][c] == "tier";
    let mut out = String::new();
    for (i, line) in lines.iter().enumerate() {
        let mut text = String::new();
        for (c, cell) in line.iter().enumerate() {
            let pad = " ".repeat(widths[c] - cell.chars().count());
            let gap = if c == 0 { "" } else { "  " };
            let _ = match words(c) {
                true => write!(text, "{gap}{cell}{pad}"),
                false => write!(text, "{gap}{pad}{cell}"),
            };
        }
        let _ = writeln!(out, "{}", text.trim_end());
        if i == 0 {
            let total = widths.iter().sum::<usize>() + 2 * count.saturating_sub(1);
            let _ = writeln!(out, "{}", "-".repeat(total));
        }
    }
    out
}

/// `1234567` as `1,234,567`.
pub fn thousands(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::super::outcome::{tests::outcome, Policy, RunSpec};
    use super::*;

    #[test]
    fn every_run_has_its_line_and_every_tier_too() {
        let dram = outcome(RunSpec::dram("dram"), 1000.0);
        let spec = RunSpec::terrace("tierscape", Policy::Waterfall("moderate"));
        let rows = [Row::new(&dram), Row::new(&outcome(spec, 800.0))];
        let media = vec![StatedMedium {
            name: "slow".into(),
            latency_ns: 300,
            bandwidth_mib_s: 2000,
            usd_per_gib_month: 0.1,
        }];
        let text = render(&rows, &Notes { media, ..Notes::default() });
        let line = text.lines().find(|l| l.starts_with("tierscape waterfall")).expect("a line");
        assert!(line.contains("45.0 %*") && line.contains("0.800x"), "{line}");
        assert!(text.contains("zbud+lz4*") && text.contains("300 ns") && text.contains("EMULATED"));
        assert!(text.contains("wrong values: 0"));
        let wrong = Notes { wrong_values: 2, wrong: vec!["key 7".into()], ..Notes::default() };
        assert!(render(&rows, &wrong).contains("WRONG VALUES: 2\nkey 7"));
    }

    #[test]
    fn no_rows_no_panic() {
        assert!(render(&[], &Notes::default()).contains("run"));
    }

    #[test]
    fn thousands_are_grouped() {
        assert_eq!(thousands(0), "0");
        assert_eq!(thousands(999), "999");
        assert_eq!(thousands(1_234_567), "1,234,567");
    }
}
