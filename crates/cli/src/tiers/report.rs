//! Figures of all tiers: as JSON, as a table for a terminal, for Markdown and for HTML.

use std::fmt::Write as _;

use serde::Serialize;
use terrace_core::tier::{MediumKind, TierSpec};

use super::data::Source;
use super::pareto::{self, Point, Tolerance};
use crate::machine::Machine;

/// Most tiers that are recommended: each takes arenas and contexts of codecs in every process, and
/// the hull of real data has hardly more corners.
pub const RECOMMENDED_MAX: usize = 6;

/// How the latency of a tier is known.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum How {
    /// Real faults through the runtime.
    Live,
    /// By the fit: load and decode measured in a loop, the rest of the fault from the live ones.
    Composed,
    /// Not known: a medium that only the runtime opens, and no live measurement.
    Unknown,
}

/// One tier.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Name, `pool+codec+medium`.
    pub name: String,
    /// The codec.
    pub codec: &'static str,
    /// Its level.
    pub level: i32,
    /// KiB that are compressed together; 0 for single pages.
    pub block_kib: u8,
    /// The pool.
    pub pool: &'static str,
    /// Name of the medium.
    pub medium: String,
    /// Whether the medium is DRAM made slower.
    pub emulated: bool,
    /// How the fault latency is known.
    pub measured: How,
    /// Median latency of a fault.
    pub fault_p50_ns: Option<u64>,
    /// Its 99th percentile.
    pub fault_p99_ns: Option<u64>,
    /// Median latency by the fit over all live tiers. Frontier and recommendation go by it.
    pub fault_fitted_ns: Option<u64>,
    /// Load and decode alone, median, in a loop.
    pub load_p50_ns: Option<u64>,
    /// Encode and store, per page, median.
    pub compress_ns_p50: u64,
    /// Encodings / originals, of the pages taken.
    pub codec_ratio: f64,
    /// Stored, pool included / originals, of the pages taken.
    pub ratio: f64,
    /// What the pool adds to the encodings, as a share of them.
    pub pool_overhead: f64,
    /// Share of the pages that the tier does not take.
    pub refused_share: f64,
    /// Cost of all pages, with the refused ones in DRAM, relative to all of them in DRAM.
    pub tco_normalized: f64,
    /// On the frontier of cost against latency.
    pub pareto: bool,
    /// On the frontier of the tiers on real media.
    pub pareto_real: bool,
    /// In the recommended set, which is of tiers on real media.
    pub recommended: bool,
    /// In the set that would be recommended if emulated media were real.
    pub recommended_with_emulated: bool,
}

impl Row {
    /// A tier about which nothing is known yet.
    pub fn new(tier: &TierSpec) -> Row {
        Row {
            name: tier.name.clone(),
            codec: tier.codec.name(),
            level: tier.level,
            block_kib: tier.block_kib,
            pool: tier.pool.name(),
            medium: tier.medium.name.clone(),
            emulated: tier.medium.kind == MediumKind::Emulated,
            measured: How::Unknown,
            fault_p50_ns: None,
            fault_p99_ns: None,
            fault_fitted_ns: None,
            load_p50_ns: None,
            compress_ns_p50: 0,
            codec_ratio: 1.0,
            ratio: 1.0,
            pool_overhead: 0.0,
            refused_share: 0.0,
            tco_normalized: 1.0,
            pareto: false,
            pareto_real: false,
            recommended: false,
            recommended_with_emulated: false,
        }
    }

    /// Median latency to compare the tier by: the fitted one, or where only the runtime opens the
    /// medium the live one.
    ///
    /// What tiers have in common cannot tell them apart, and in a live measurement the noise of it
    /// is larger than most of their differences: a thread that wakes on the other CPU costs more
    /// than a denser codec.
    pub fn judged_ns(&self) -> Option<u64> {
        self.fault_fitted_ns.or(self.fault_p50_ns)
    }

    /// Where the tier is in the plane; `None` without a latency.
    fn point(&self) -> Option<Point> {
        Some(Point { fault_ns: self.judged_ns()? as f64, tco: self.tco_normalized })
    }

    fn cells(&self) -> [String; 12] {
        let us = |ns: Option<u64>| ns.map_or("-".into(), |ns| format!("{:.1}", ns as f64 / 1e3));
        let percent = |share: f64| format!("{:.1} %", share * 100.0);
        let how = match self.measured {
            How::Live => "live",
            How::Composed => "composed",
            How::Unknown => "-",
        };
        [
            format!("{}{}", self.name, if self.emulated { "*" } else { "" }),
            us(self.fault_p50_ns),
            us(self.fault_p99_ns),
            how.into(),
            us(self.fault_fitted_ns),
            format!("{:.3}", self.codec_ratio),
            format!("{:.3}", self.ratio),
            percent(self.pool_overhead),
            percent(self.refused_share),
            us(Some(self.compress_ns_p50)),
            format!("{:.3}", self.tco_normalized),
            self.marks(),
        ]
    }

    fn marks(&self) -> String {
        let mark = |all: bool, real: bool, both: &'static str, one: &'static str| match (all, real)
        {
            (_, true) if self.emulated => "",
            (true, _) => both,
            (false, true) => one,
            (false, false) => "",
        };
        let frontier = mark(self.pareto, self.pareto_real, "P", "p");
        let set = match (self.recommended, self.recommended_with_emulated) {
            (true, _) => "R",
            (false, true) => "r",
            (false, false) => "",
        };
        [frontier, set].concat()
    }
}

const HEADS: [&str; 12] = [
    "tier",
    "fault p50 us",
    "p99 us",
    "measured",
    "fitted us",
    "codec",
    "stored as",
    "pool adds",
    "refused",
    "compress us",
    "TCO",
    "marks",
];

const LEGEND: &str = "P: on the frontier of TCO against fitted latency; p: on it among real media \
                      only. R: recommended (real media, at most 6); r: would be, too, if emulated \
                      media were real.";

/// How far composed latencies are from live ones.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct ComposedError {
    /// Tiers measured live, each composed from the others.
    pub tiers: usize,
    /// Median of the errors' sizes, as a share of the live median.
    pub median: f64,
    /// The largest.
    pub worst: f64,
}

/// The fit behind composed latencies.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct FitFigures {
    /// What every fault takes besides its load, in nanoseconds.
    pub overhead_ns: f64,
    /// Time of a load in a fault for the same in a loop.
    pub factor: f64,
}

/// Everything that was found.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// From low latency to high.
    pub tiers: Vec<Row>,
    /// Names of the recommended tiers, all on real media, from low latency to low price.
    pub recommended: Vec<String>,
    /// Names of those that would be recommended if emulated media were real.
    pub recommended_with_emulated: Vec<String>,
    /// Where the pages are from, in one line.
    pub data: String,
    /// The same in parts.
    pub sources: Vec<Source>,
    /// Pages used.
    pub pages: usize,
    /// Length of the dictionary that `zstd-dict` and `lz4-dict` had, trained on other pages of the
    /// data; 0 if none was wanted or none paid.
    pub dictionary_bytes: usize,
    /// Pages in each live measurement.
    pub pages_live: usize,
    /// Repetitions of each measurement.
    pub repeat: u32,
    /// Half of what the medians of live repetitions differ by, as a share; the median over tiers.
    /// Null with one repetition.
    pub live_spread: Option<f64>,
    /// Share by which fitted latencies must differ to differ.
    pub latency_tolerance: f64,
    /// Share by which costs must differ to differ.
    pub tco_tolerance: f64,
    /// The fit behind composed latencies; null without a live tier.
    pub fit: Option<FitFigures>,
    /// How far composed latencies are from live ones; null with fewer than three live tiers.
    pub composed_error: Option<ComposedError>,
    /// Live measurements that failed, with the reason.
    pub failed: Vec<String>,
    /// Runnable threads before it began, averaged over a minute.
    pub loadavg_before: f64,
    /// And after it.
    pub loadavg_after: f64,
    /// Time it all took.
    pub seconds_total: f64,
    /// When, in UTC.
    pub date: String,
    /// The machine.
    pub machine: Machine,
}

impl Report {
    /// Marks frontiers and recommended tiers, and sorts by latency.
    pub fn judge(&mut self) {
        let latency = |r: &Row| r.judged_ns().unwrap_or(u64::MAX);
        self.tiers.sort_by(|a, b| {
            latency(a).cmp(&latency(b)).then(b.tco_normalized.total_cmp(&a.tco_normalized))
        });
        let tolerance = Tolerance { latency: self.latency_tolerance, tco: self.tco_tolerance };
        let all: Vec<usize> = (0..self.tiers.len()).collect();
        let real: Vec<usize> = all.iter().copied().filter(|&n| !self.tiers[n].emulated).collect();
        let (on, chosen) = choose(&self.tiers, &all, tolerance);
        let (on_real, chosen_real) = choose(&self.tiers, &real, tolerance);
        for (n, row) in self.tiers.iter_mut().enumerate() {
            row.pareto = on.contains(&n);
            row.pareto_real = on_real.contains(&n);
            row.recommended = chosen_real.contains(&n);
            row.recommended_with_emulated = chosen.contains(&n);
        }
        let names = |of: &[usize]| of.iter().map(|&n| self.tiers[n].name.clone()).collect();
        let recommended = names(&chosen_real);
        self.recommended_with_emulated = names(&chosen);
        self.recommended = recommended;
    }

    /// The places of tiers that are or nearly are on a frontier: on it if they were `margin`
    /// faster.
    pub fn contenders(&self, margin: f64) -> Vec<usize> {
        let tolerance = Tolerance { latency: self.latency_tolerance, tco: self.tco_tolerance };
        let real = |n: &usize| !self.tiers[*n].emulated;
        let contends = |n: usize, among: &[usize]| {
            let mut rows = self.tiers.clone();
            let row = &mut rows[n];
            row.fault_fitted_ns = row.judged_ns().map(|ns| (ns as f64 * (1.0 - margin)) as u64);
            choose(&rows, among, tolerance).0.contains(&n)
        };
        let all: Vec<usize> = (0..self.tiers.len()).collect();
        let reals: Vec<usize> = all.iter().copied().filter(real).collect();
        let wanted = |n: &usize| contends(*n, &all) || real(n) && contends(*n, &reals);
        all.iter().copied().filter(wanted).collect()
    }

    /// For a terminal.
    pub fn table(&self) -> String {
        let rows: Vec<[String; 12]> = self.tiers.iter().map(Row::cells).collect();
        let width = |n: usize| {
            let cells = rows.iter().map(|r| r[n].len());
            cells.chain([HEADS[n].len()]).max().unwrap_or(0)
        };
        let widths: [usize; 12] = std::array::from_fn(width);
        let mut out = String::new();
        let mut line = |cells: [&str; 12]| {
            for (n, cell) in cells.into_iter().enumerate() {
                let width = widths[n];
                let _ = match n {
                    0 => write!(out, "{cell:<width$}"),
                    3 | 11 => write!(out, "  {cell:<width$}"),
                    _ => write!(out, "  {cell:>width$}"),
                };
            }
            out.truncate(out.trim_end().len());
            out.push('\n');
        };
        line(HEADS);
        rows.iter().for_each(|r| line(r.each_ref().map(String::as_str)));
        let _ = write!(out, "\n{}\n", self.notes().join("\n"));
        out
    }

    /// For a document.
    pub fn markdown(&self) -> String {
        let mut out = format!("| {} |\n|---|", HEADS.join(" | "));
        (1..HEADS.len()).for_each(|n| out.push_str(if n == 3 { "---|" } else { "---:|" }));
        out.push('\n');
        for row in &self.tiers {
            let mut cells = row.cells();
            if row.recommended {
                cells[0] = format!("**{}**", cells[0]);
            }
            let _ = writeln!(out, "| {} |", cells.join(" | ").replace('*', "\\*"));
        }
        let out = out.replace("\\*\\*", "**");
        format!("{out}\n{}\n", self.notes().join("  \n"))
    }

    /// What a reader must know besides the table, as lines.
    pub fn notes(&self) -> Vec<String> {
        let set = |names: &[String]| match names {
            [] => "none: no tier costs less than DRAM on this data".to_owned(),
            names => names.join(", "),
        };
        let mut notes = vec![LEGEND.into(), format!("recommended: {}", set(&self.recommended))];
        if self.tiers.iter().any(|r| r.emulated) {
            let with = set(&self.recommended_with_emulated);
            notes.push(format!(
                "with the emulated media: {with}. *: the medium is DRAM made slower; its price \
                 counts for TCO, not for money saved"
            ));
        }
        notes.push(format!("data: {}", self.data));
        let mut how = format!(
            "{} repetitions; live: {} faults each in random order, movement at rest",
            self.repeat, self.pages_live
        );
        if let Some(spread) = self.live_spread {
            let _ = write!(how, ", medians within {:.0} % of the middle", spread * 100.0);
        }
        if let Some(fit) = self.fit {
            let _ =
                write!(how, "; fitted: {:.1} us + {:.2} x load", fit.overhead_ns / 1e3, fit.factor);
        }
        if let Some(error) = self.composed_error {
            let _ = write!(
                how,
                " ({} live tiers, each fitted from the others: off by {:.0} % in the median, \
                 {:.0} % \
                 at worst)",
                error.tiers,
                error.median * 100.0,
                error.worst * 100.0
            );
        }
        notes.push(how);
        notes.push(format!(
            "fitted latencies within {:.0} % and costs within {:.0} % count as equal; \
             load {:.1} before, \
             {:.1} after",
            self.latency_tolerance * 100.0,
            self.tco_tolerance * 100.0,
            self.loadavg_before,
            self.loadavg_after
        ));
        notes.extend(self.failed.iter().map(|why| format!("not measured live: {why}")));
        notes.push(format!("machine: {}, {}", self.machine.summary(), self.date));
        notes
    }

    /// The table for a page.
    pub fn html_table(&self) -> String {
        let escape = crate::demo::chart::escape;
        let mut out = String::from("<table><tr>");
        HEADS.iter().for_each(|h| out.push_str(&format!("<th>{}</th>", escape(h))));
        out.push_str("</tr>");
        for row in &self.tiers {
            let cells = row.cells();
            let _ = write!(out, "<tr><th>{}</th>", escape(&cells[0]));
            cells[1..].iter().for_each(|c| out.push_str(&format!("<td>{}</td>", escape(c))));
            out.push_str("</tr>");
        }
        out + "</table>"
    }
}

/// Frontier and recommended set of the tiers at `places`, as places in `rows`.
fn choose(rows: &[Row], places: &[usize], tolerance: Tolerance) -> (Vec<usize>, Vec<usize>) {
    let known: Vec<(usize, Point)> =
        places.iter().filter_map(|&n| Some((n, rows[n].point()?))).collect();
    let points: Vec<Point> = known.iter().map(|(_, p)| *p).collect();
    let on = pareto::frontier(&points, tolerance);
    let chosen = pareto::recommend(&points, &on, RECOMMENDED_MAX);
    let places = |of: Vec<usize>| of.into_iter().map(|n| known[n].0).collect();
    (places(on), places(chosen))
}

#[cfg(test)]
pub mod testing {
    //! A report without measurements, for the tests of those who show it.

    use super::*;
    use crate::preset;
    use terrace_core::tier::{Codec, Pool};

    /// Four tiers on DRAM and one on an emulated medium; DRAM's three best are on its frontier.
    pub fn report() -> Report {
        let (dram, slow) = (preset::dram(0.3), preset::slow(0.3));
        let tiers = [
            (Pool::Zsmalloc, Codec::Deflate, &dram, 40_000, 0.25),
            (Pool::Zbud, Codec::Lz4, &dram, 10_000, 0.55),
            (Pool::Zsmalloc, Codec::Lz4, &dram, 10_200, 0.45),
            (Pool::Zsmalloc, Codec::Zstd, &dram, 18_000, 0.3),
            (Pool::Zsmalloc, Codec::Zstd, &slow, 18_400, 0.1),
        ];
        let row = |(pool, codec, medium, ns, tco): (Pool, Codec, &_, u64, f64)| {
            let mut row = Row::new(&TierSpec::new(pool, codec, Clone::clone(medium)));
            row.measured = How::Live;
            (row.fault_p50_ns, row.fault_p99_ns) = (Some(ns), Some(ns * 2));
            (row.tco_normalized, row.ratio) = (tco, tco);
            row
        };
        let mut report = Report {
            tiers: tiers.map(row).into(),
            recommended: Vec::new(),
            recommended_with_emulated: Vec::new(),
            data: "file a & b: 1 of 1 pages".into(),
            sources: Vec::new(),
            pages: 1,
            dictionary_bytes: 0,
            pages_live: 4_096,
            repeat: 3,
            live_spread: Some(0.04),
            latency_tolerance: 0.05,
            tco_tolerance: 0.01,
            fit: Some(FitFigures { overhead_ns: 8_000.0, factor: 1.2 }),
            composed_error: Some(ComposedError { tiers: 4, median: 0.03, worst: 0.08 }),
            failed: Vec::new(),
            loadavg_before: 0.0,
            loadavg_after: 0.0,
            seconds_total: 1.0,
            date: "2026-01-01 00:00 UTC".into(),
            machine: Machine::here(),
        };
        report.judge();
        report
    }
}

#[cfg(test)]
mod tests {
    use super::testing::report;

    #[test]
    fn tiers_are_sorted_and_marked() {
        let report = report();
        let marks: Vec<(&str, String)> =
            report.tiers.iter().map(|r| (r.name.as_str(), r.marks())).collect();
        let expected = [
            ("zbud+lz4+dram", ""),
            ("zsmalloc+lz4+dram", "PR"),
            ("zsmalloc+zstd+dram", "pR"),
            ("zsmalloc+zstd+slow", "Pr"),
            ("zsmalloc+deflate+dram", "pR"),
        ]
        .map(|(name, marks)| (name, marks.to_owned()));
        assert_eq!(marks, expected);
        assert!(report.tiers.iter().all(|r| !(r.emulated && r.recommended)));
        assert!(report.recommended.contains(&"zsmalloc+zstd+dram".to_owned()));
        assert!(report.recommended_with_emulated.contains(&"zsmalloc+zstd+slow".to_owned()));
    }

    #[test]
    fn contenders_are_those_near_the_frontier() {
        let report = report();
        let names = |margin| {
            let of = report.contenders(margin).into_iter();
            of.map(|n| report.tiers[n].name.clone()).collect::<Vec<_>>()
        };
        assert!(!names(0.0).contains(&"zbud+lz4+dram".to_owned()));
        assert!(names(0.3).contains(&"zbud+lz4+dram".to_owned()));
        assert!(names(0.0).contains(&"zsmalloc+deflate+dram".to_owned()), "real media count");
    }

    #[test]
    fn every_form_has_every_tier_and_says_what_is_emulated() {
        let report = report();
        for form in [report.table(), report.markdown(), report.html_table()] {
            for row in &report.tiers {
                assert!(form.contains(&row.name), "{} in {form}", row.name);
            }
        }
        assert!(report.table().contains("zsmalloc+zstd+slow*"));
        assert!(report.table().contains("DRAM made slower"));
        assert!(report.markdown().contains("| **zsmalloc+zstd+dram** |"), "{}", report.markdown());
        assert!(report.markdown().contains("| zsmalloc+zstd+slow\\* |"));
        let json = serde_json::to_value(&report).unwrap();
        for key in ["name", "codec", "pool", "medium", "fault_p50_ns", "fault_p99_ns", "ratio"] {
            assert!(!json["tiers"][0][key].is_null(), "{key}");
        }
        assert_eq!(json["tiers"][0]["measured"], "live");
        assert!(json["tiers"][0]["pareto"].is_boolean() && json["machine"].is_object());
    }
}
