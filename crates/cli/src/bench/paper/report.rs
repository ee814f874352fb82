//! The report as one HTML file: TierScape's figures 8 to 13 with this machine's runs in them.

use std::fmt::Write;

use serde_json::Value;

use super::configurations::{self, Family};
use super::markdown::{DIFFERENCES, MONEY};
use super::record::{Record, Settings, Window};
use super::statistics::Verdict;
use super::summary::{ConfigSummary, WorkloadSummary};
use crate::demo::chart::{ceiling, escape, Bar, Frame, Line, Mark, STYLE};

const GIB_PER_PAGE: f64 = 4096.0 / (1_u64 << 30) as f64;
/// Colour classes of the style sheet; 0 is DRAM.
const COLORS: usize = 10;
const HEIGHT: f64 = 250.0;

/// Renders the report.
pub(super) fn render(
    workloads: &[WorkloadSummary],
    records: &[Record],
    settings: &Settings,
    environment: &Value,
    skipped: &[String],
) -> String {
    let mut out = String::from("<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">");
    out.push_str("<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">");
    let _ = write!(out, "<title>Terrace: TierScape's evaluation</title><style>{STYLE}</style>");
    out.push_str("</head><body><main>");
    header(&mut out, settings, environment, skipped);
    promises(&mut out, workloads);
    for w in workloads {
        let runs: Vec<&Record> = records.iter().filter(|r| r.id.workload == w.name).collect();
        workload(&mut out, w, &runs);
    }
    out.push_str("<h2>What differs from the paper</h2><ul>");
    for line in DIFFERENCES {
        let _ = write!(out, "<li>{}</li>", escape(line));
    }
    let environment = serde_json::to_string_pretty(environment).unwrap_or_default();
    let _ = write!(out, "</ul><h2>Environment</h2><pre>{}</pre>", escape(&environment));
    out.push_str("</main></body></html>\n");
    out
}

fn header(out: &mut String, settings: &Settings, environment: &Value, skipped: &[String]) {
    let word = |key: &str| escape(environment[key].as_str().unwrap_or("unknown"));
    let _ = write!(
        out,
        "<header><h1>TierScape's evaluation, with the kernel's zswap beside it</h1><p>{} · {} · \
         Linux {} · terrace {}</p><p>{} MiB of data, {} s warm-up, {} s measured, windows of {} s, \
         for {} of which a page that came back stays. {MONEY}</p></header>",
        word("date"),
        word("machine"),
        word("kernel"),
        word("terrace"),
        settings.size_mib,
        settings.warmup_s,
        settings.seconds,
        settings.window_s,
        settings.cooling_windows,
    );
    for why in skipped {
        let _ = write!(out, "<p class='mark'>Not run: {}</p>", escape(why));
    }
}

fn promises(out: &mut String, workloads: &[WorkloadSummary]) {
    out.push_str("<h2>What was promised</h2><div class='scroll'><table>");
    out.push_str(
        "<tr><th>workload</th><th class='left'>promise</th><th class='left'>measured</th>",
    );
    out.push_str("<th></th></tr>");
    for w in workloads {
        for bar in &w.bars {
            let class = match bar.verdict {
                Verdict::Met => "good",
                Verdict::Missed => "bad",
                Verdict::Undecided => "mark",
            };
            let _ = write!(
                out,
                "<tr><th>{}</th><td style='text-align:left;white-space:normal'>{}</td><td \
                 style='text-align:left;white-space:normal'>{}</td>\
                 <td class='{class}'>{}</td></tr>",
                escape(&w.name),
                escape(&bar.what),
                escape(&bar.measured),
                bar.verdict.word()
            );
        }
    }
    out.push_str("</table></div>");
}

fn workload(out: &mut String, w: &WorkloadSummary, runs: &[&Record]) {
    let _ = write!(out, "<h2>{}</h2>", escape(&w.name));
    section(
        out,
        "Figure 8: slowdown against TCO saved",
        "Down and to the right is better. Medians, and their intervals as thin lines.",
    );
    figure_8(out, w);
    section(out, "Figure 12: latency", "Over that of the DRAM runs beside: 1 is DRAM.");
    out.push_str("<div class='grid'>");
    type Get = fn(&ConfigSummary) -> f64;
    let panels: [(&str, Get); 3] = [
        ("average", |c| c.mean_ratio),
        ("99th percentile", |c| c.p99_ratio),
        ("99.9th percentile", |c| c.p999_ratio),
    ];
    for (name, get) in panels {
        let _ = write!(out, "<figure><figcaption>{name}</figcaption>");
        let label = |c: &ConfigSummary| format!("{:.2}x", get(c));
        out.push_str(&level_bars(w, name, get, label));
        out.push_str("</figure>");
    }
    out.push_str("</div>");
    section(
        out,
        "Figure 13: processor tax",
        "Telemetry, planning, migration with its compression; not what is served on demand. Share \
         of the application's processor time.",
    );
    out.push_str("<figure class='wide'>");
    let label = |c: &ConfigSummary| format!("{:.1} %", c.cpu_tax * 100.0);
    out.push_str(&level_bars(w, "processor tax", |c| c.cpu_tax * 100.0, label));
    out.push_str("</figure>");
    // One run of each configuration shows what it does; that of the first round.
    let shown: Vec<&Record> = configurations::ALL
        .iter()
        .filter(|c| !c.is_plain())
        .filter_map(|c| runs.iter().find(|r| r.id.config == c.name).copied())
        .collect();
    section(out, "Figure 11: TCO saved over time", "One run of each; shaded: the measured phase.");
    figure_11(out, w, &shown);
    section(
        out,
        "Figures 9 and 10: recommended and actual placement, and faults",
        "Of each window: where the plan wanted the data, where it was, and the faults served by \
         each tier. The scales of the faults differ.",
    );
    for run in shown {
        placement(out, run);
    }
}

fn section(out: &mut String, title: &str, lead: &str) {
    let _ = write!(out, "<h3>{}</h3><p class='lead'>{}</p>", escape(title), escape(lead));
}

fn color(family: Family) -> usize {
    match family {
        Family::Dram => 0,
        Family::Control => 8,
        Family::Kernel => 4,
        Family::Own => 3,
        Family::Waterfall => 1,
        Family::Analytical => 2,
        Family::Best => 5,
        Family::BestReal => 6,
    }
}

fn figure_8(out: &mut String, w: &WorkloadSummary) {
    let (frame, marks) = slowdown_and_saved(w);
    let _ = write!(out, "<figure class='wide'>{}</figure>", frame.points(&marks));
    out.push_str("<div class='legend'>");
    for (color, name) in families(w) {
        key(out, color, name);
    }
    out.push_str("</div>");
}

/// Figure 8 as a picture by itself.
pub(super) fn picture(w: &WorkloadSummary, settings: &Settings) -> String {
    let (frame, marks) = slowdown_and_saved(w);
    let rounds = w.configs.iter().map(|c| c.runs).max().unwrap_or(0);
    let title = format!(
        "{}, {} MiB, windows of {} s, {rounds} round{}",
        w.name,
        settings.size_mib,
        settings.window_s,
        if rounds == 1 { "" } else { "s" },
    );
    frame.file(&frame.points(&marks), &title, &families(w))
}

/// What the colours of [`slowdown_and_saved`] are.
fn families(w: &WorkloadSummary) -> Vec<(usize, &'static str)> {
    let mut all = Vec::new();
    for c in &w.configs {
        let family = c.configuration().family;
        let key = (color(family), family.title());
        if !all.contains(&key) {
            all.push(key);
        }
    }
    all
}

fn slowdown_and_saved(w: &WorkloadSummary) -> (Frame, Vec<Mark>) {
    let dram = "DRAM".to_owned();
    let title = dram.clone();
    let mut marks = vec![Mark { color: 0, at: (0.0, 0.0), within: None, name: dram, title }];
    for c in &w.configs {
        let percent = |[from, to]: [f64; 2]| (from * 100.0, to * 100.0);
        let (x, y) = (c.tco_saved * 100.0, c.slowdown * 100.0);
        let title = format!(
            "{}: {x:.1} % saved ({:.1} to {:.1}), {y:.1} % slowdown ({:.1} to {:.1}), {} runs{}",
            c.name,
            c.tco_saved_ci[0] * 100.0,
            c.tco_saved_ci[1] * 100.0,
            c.slowdown_ci[0] * 100.0,
            c.slowdown_ci[1] * 100.0,
            c.runs,
            if c.undecided { ", undecided" } else { "" },
        );
        marks.push(Mark {
            color: color(c.configuration().family),
            at: (x, y),
            within: (c.runs > 1).then(|| [percent(c.tco_saved_ci), percent(c.slowdown_ci)]),
            name: c.name.clone(),
            title,
        });
    }
    let reach = |get: fn(&ConfigSummary) -> [f64; 2]| {
        let all = w.configs.iter().flat_map(get).map(|v| v * 100.0).filter(|v| v.is_finite());
        all.fold((0.0f64, 0.0f64), |(low, high), v| (low.min(v), high.max(v)))
    };
    let ((x_low, x_high), (y_low, y_high)) = (reach(|c| c.tco_saved_ci), reach(|c| c.slowdown_ci));
    let frame = Frame {
        height: 420.0,
        x: (x_low * 1.05, ceiling(x_high)),
        y: (y_low * 1.05, ceiling(y_high)),
        x_label: "TCO saved, %".into(),
        y_label: "slowdown, %".into(),
        band: None,
        description: format!("slowdown against TCO saved, {}", w.name),
    };
    (frame, marks)
}

fn key(out: &mut String, color: usize, name: &str) {
    let _ = write!(
        out,
        "<span><svg class='key' viewBox='0 0 10 10'><rect class='c{color}' width='10' height='10'/>\
         </svg>{}</span>",
        escape(name)
    );
}

/// A level bar for each configuration, with its name before and its value behind.
fn level_bars(
    w: &WorkloadSummary,
    what: &str,
    value: fn(&ConfigSummary) -> f64,
    label: impl Fn(&ConfigSummary) -> String,
) -> String {
    const ROW: f64 = 19.0;
    const LEFT: f64 = 96.0;
    const ROOM: f64 = 380.0;
    let most = w.configs.iter().map(value).filter(|v| v.is_finite()).fold(0.0, f64::max);
    let most = ceiling(most);
    let height = ROW * w.configs.len() as f64 + 4.0;
    let mut out = format!(
        "<svg viewBox='0 0 560 {height}' role='img' aria-label=\"{}\">",
        escape(&format!("{what}, {}", w.name))
    );
    for (row, c) in w.configs.iter().enumerate() {
        let at = ROW * row as f64;
        let v = value(c);
        let width = if v.is_finite() { (v / most).clamp(0.0, 1.0) * ROOM } else { 0.0 };
        let _ = write!(
            out,
            "<text x='{:.0}' y='{:.1}' text-anchor='end'>{}</text><rect class='c{}' x='{LEFT}' \
             y='{:.1}' width='{width:.1}' height='{:.1}'/><text class='name' x='{:.1}' \
             y='{:.1}'>{}</text>",
            LEFT - 6.0,
            at + 14.0,
            escape(&c.name),
            color(c.configuration().family),
            at + 3.0,
            ROW - 5.0,
            LEFT + width + 6.0,
            at + 14.0,
            escape(&label(c)),
        );
    }
    out + "</svg>"
}

fn figure_11(out: &mut String, w: &WorkloadSummary, shown: &[&Record]) {
    let whole = w.dram.usd_per_month.max(1e-12);
    let saved = |usd: f64| (1.0 - usd / whole) * 100.0;
    let mut lines = Vec::new();
    let (mut last_s, mut most, mut least) = (1.0f64, 0.0f64, 0.0f64);
    for (n, run) in shown.iter().enumerate() {
        let points = run.memory.iter().map(|m| {
            let y = saved(m.usd_per_month);
            (last_s, most, least) = (last_s.max(m.t_s), most.max(y), least.min(y));
            (m.t_s, y, String::new())
        });
        let mut points: Vec<_> = points.collect();
        if let Some(end) = points.last_mut() {
            end.2 = format!("{}: {:.1} %", run.id.config, end.1);
        }
        lines.push(Line { color: n % COLORS, dash: n / COLORS, points });
    }
    let warmup_s = shown.first().map_or(0.0, |r| r.settings.warmup_s);
    let frame = Frame {
        height: 320.0,
        x: (0.0, last_s),
        y: (least * 1.05, ceiling(most)),
        x_label: "seconds since the data was loaded".into(),
        y_label: "TCO saved, %".into(),
        band: Some((warmup_s, last_s, "measured".into())),
        description: format!("TCO saved over time, {}", w.name),
    };
    let _ =
        write!(out, "<figure class='wide'>{}</figure><div class='legend'>", frame.lines(&lines));
    for (n, run) in shown.iter().enumerate() {
        key(out, n % COLORS, &run.id.config);
    }
    out.push_str("</div>");
}

fn placement(out: &mut String, run: &Record) {
    let windows: Vec<&Window> = run.windows.iter().filter(|w| w.t_s >= 0.0).collect();
    if windows.is_empty() {
        return;
    }
    let last_s = windows.iter().map(|w| w.t_s).fold(1.0, f64::max);
    let stacked = |pages: fn(&super::record::Tier) -> u64| -> (Vec<Bar>, f64) {
        let mut from = 0.0;
        let mut most = 0.0f64;
        let bars = windows.iter().map(|w| {
            let layer = |(n, t): (usize, &super::record::Tier)| {
                let gib = pages(t) as f64 * GIB_PER_PAGE;
                (n % COLORS, gib, format!("{}: {gib:.3} GiB", t.name))
            };
            let layers: Vec<_> = w.tiers.iter().enumerate().map(layer).collect();
            most = most.max(layers.iter().map(|l| l.1).sum());
            let bar = Bar { from, to: w.t_s, layers };
            from = w.t_s;
            bar
        });
        (bars.collect(), most)
    };
    let frame = |most: f64, y_label: &str, description: String| Frame {
        height: HEIGHT,
        x: (0.0, last_s),
        y: (0.0, ceiling(most)),
        x_label: "seconds since the data was loaded".into(),
        y_label: y_label.into(),
        band: Some((run.settings.warmup_s, last_s, "measured".into())),
        description,
    };
    let name = &run.id.config;
    let (recommended, most) = stacked(|t| t.recommended_pages);
    let (actual, most_actual) = stacked(|t| t.pages);
    let most = most.max(most_actual);
    let _ = write!(out, "<h3>{}</h3><div class='grid'>", escape(name));
    let panel = |out: &mut String, title: &str, svg: String| {
        let _ = write!(out, "<figure><figcaption>{title}</figcaption>{svg}</figure>");
    };
    let at = |what: &str| format!("{what}, {name}");
    let of = frame(most, "GiB", at("recommended placement"));
    panel(out, "recommended", of.bars(&recommended));
    panel(out, "actual", frame(most, "GiB", at("actual placement")).bars(&actual));
    let tiers = windows.last().map_or(0, |w| w.tiers.len());
    let faults: Vec<Line> = (1..tiers)
        .map(|n| Line {
            color: n % COLORS,
            dash: 0,
            points: windows
                .iter()
                .filter_map(|w| Some((w.t_s, w.tiers.get(n)?.faults as f64, String::new())))
                .collect(),
        })
        .collect();
    let most = faults.iter().flat_map(|l| &l.points).map(|p| p.1).fold(0.0, f64::max);
    panel(out, "faults", frame(most, "faults in a window", at("faults")).lines(&faults));
    out.push_str("</div><div class='legend'>");
    for (n, tier) in windows.last().into_iter().flat_map(|w| w.tiers.iter().enumerate()) {
        key(out, n % COLORS, &tier.name);
    }
    out.push_str("</div>");
}
