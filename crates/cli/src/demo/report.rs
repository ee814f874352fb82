//! The HTML report: one file, no scripts, no outside resources, light and dark. Its plots are the
//! counterparts of TierScape's Figures 8 to 12 for this machine.

use super::chart::{ceiling, escape, Bar, Frame, Line, Mark, Point, STYLE};
use super::outcome::{Outcome, Row};
use super::table::{thousands, Notes};
use super::timeline::{TierWindow, Window};
use std::fmt::Write;

const GIB_PER_PAGE: f64 = 4096.0 / (1_u64 << 30) as f64;
/// Colour classes of the style sheet: 0 is DRAM, the rest are given out in order.
const COLORS: usize = 10;

/// Renders the report. `rows` are the outcomes relative to DRAM, with the second DRAM run last.
pub fn render(outcomes: &[Outcome], rows: &[Row], notes: &Notes) -> String {
    let colors = TierColors::new(outcomes);
    let tiered: Vec<&Outcome> = outcomes.iter().filter(|o| o.spec.terrace.is_some()).collect();
    let mut out = String::from("<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">");
    out.push_str("<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">");
    let _ = write!(out, "<title>Terrace demo</title><style>{STYLE}</style></head><body><main>");
    header(&mut out, rows, notes);
    results(&mut out, rows);
    overview(&mut out, rows);
    section(
        &mut out,
        "Recommended placement",
        "Where the plan of each window wants the data (TierScape, Figure 9). Shaded: the measured \
         phase. Hover for numbers.",
    );
    placement(&mut out, &tiered, &colors, |t| t.recommended_pages);
    section(
        &mut out,
        "Actual placement and page faults",
        "Where the data really was at the end of each window, and the page faults that each tier \
         served in it (TierScape, Figure 10). The scales of the fault plots differ.",
    );
    actual(&mut out, &tiered, &colors);
    section(
        &mut out,
        "TCO over time",
        "Memory cost saved in each window, equation 12 over measured bytes (TierScape, Figure 11), \
         and the throughput at the same time.",
    );
    over_time(&mut out, outcomes, &tiered);
    tier_table(&mut out, rows, &colors);
    environment(&mut out, rows, notes);
    out.push_str("</main></body></html>\n");
    out
}

/// The same tier has the same colour in all plots.
struct TierColors(Vec<String>);

impl TierColors {
    fn new(outcomes: &[Outcome]) -> TierColors {
        let mut names: Vec<String> = Vec::new();
        let windows = outcomes.iter().filter_map(|o| o.windows.last());
        for tier in windows.flat_map(|w| w.tiers.iter().skip(1)) {
            if !names.contains(&tier.name) {
                names.push(tier.name.clone());
            }
        }
        TierColors(names)
    }

    /// The first tier is DRAM whatever its name.
    fn of(&self, index: usize, name: &str) -> usize {
        if index == 0 {
            return 0;
        }
        1 + self.0.iter().position(|n| n == name).unwrap_or(0) % (COLORS - 1)
    }
}

fn header(out: &mut String, rows: &[Row], notes: &Notes) {
    let m = &notes.machine;
    let _ = write!(
        out,
        "<header><h1>Terrace demo: Redis on tiered memory</h1><p>{} · {} · Linux {}</p></header>",
        escape(&m.date),
        escape(&m.machine),
        escape(&m.kernel)
    );
    let (class, text) = match notes.wrong_values {
        0 => (
            "good",
            "0 wrong values: every GET was compared, all bytes, and every key was read \
                       back at the end of each run"
                .to_owned(),
        ),
        n => ("bad", format!("{} WRONG VALUES: {}", thousands(n), notes.wrong.join("; "))),
    };
    let _ = write!(out, r#"<p class="verdict {class}">{}</p><div class="cards">"#, escape(&text));
    for row in rows.iter().filter(|r| r.preset.is_some()) {
        let _ = write!(
            out,
            "<div class='card'><h3>{}</h3><p><b>{:.1} %</b> of memory cost saved{}</p><p>\
             <b>{:.2}×</b> the throughput of DRAM</p></div>",
            escape(&row.name),
            100.0 * row.tco_saved,
            emulated_mark(row.emulated),
            row.throughput_ratio
        );
    }
    out.push_str("</div>");
}

fn emulated_mark(emulated: bool) -> &'static str {
    if emulated {
        r#" <span class="mark" title="partly on an emulated medium">emulated</span>"#
    } else {
        ""
    }
}

fn section(out: &mut String, title: &str, text: &str) {
    let _ = write!(out, "<h2>{}</h2><p class=\"lead\">{}</p>", escape(title), escape(text));
}

fn results(out: &mut String, rows: &[Row]) {
    section(
        out,
        "Results",
        "Ratios are to the DRAM baseline: throughput above 1 is faster, latency above 1 is slower. \
         Money counts only media that this machine really has.",
    );
    out.push_str(
        "<div class=\"scroll\"><table><tr><th>run<th>TCO saved<th>$/month saved<th>per TiB\
         <th>ops/s<th>ratio<th>p50 µs<th>ratio<th>p99 µs<th>ratio<th>p99.9 µs<th>ratio<th>max ms\
         <th>faults/s<th>stalled<th>Terrace CPU<th>client µs/op</tr>",
    );
    for row in rows {
        let plain = row.preset.is_none();
        let or_dash = |text: String| if plain { "–".to_owned() } else { text };
        let (s, seconds) = (&row.speed, row.measured_s.max(1e-9));
        let faults: u64 = row.faults_per_tier.values().sum();
        let cells = [
            or_dash(format!("{:.1} %", 100.0 * row.tco_saved)),
            or_dash(format!("{:.3}", row.usd_saved_per_month)),
            or_dash(format!("{:.0}", row.usd_saved_per_tib_month)),
            thousands(s.throughput_ops_s as u64),
            format!("{:.3}", row.throughput_ratio),
            format!("{:.0}", s.p50_us),
            format!("{:.2}", row.p50_ratio),
            format!("{:.0}", s.p99_us),
            format!("{:.2}", row.p99_ratio),
            format!("{:.0}", s.p999_us),
            format!("{:.2}", row.p999_ratio),
            format!("{:.1}", s.max_us / 1e3),
            or_dash(thousands((faults as f64 / seconds) as u64)),
            or_dash(format!("{:.1} %", row.stalled_ms / 10.0 / seconds)),
            or_dash(format!("{:.1} %", 100.0 * row.terrace_cpu_share)),
            format!("{:.1}", row.client_us_per_op),
        ];
        let name = format!("{}{}", escape(&row.name), emulated_mark(row.emulated));
        let _ = write!(out, "<tr><th>{name}<td>{}</tr>", cells.join("<td>"));
    }
    out.push_str(
        "</table></div><p class=\"lead\">Stalled: time application threads waited for faults, of \
         the measured time. Terrace CPU: its CPU time over that of Redis's main thread.</p>",
    );
}

/// Figure 8: what is paid for what is saved.
fn overview(out: &mut String, rows: &[Row]) {
    section(
        out,
        "What is saved and what it costs",
        "Throughput against memory cost saved (TierScape, Figure 8); up and to the right is \
         better.",
    );
    let (frame, points) = saved_and_paid(rows);
    let _ = write!(out, "<figure class=\"wide\">{}</figure>", frame.points(&points));
}

/// The same as a picture by itself.
pub fn picture(rows: &[Row]) -> String {
    let (frame, points) = saved_and_paid(rows);
    frame.file(&frame.points(&points), "Redis on tiers: what is saved and what it costs", &[])
}

fn saved_and_paid(rows: &[Row]) -> (Frame, Vec<Mark>) {
    let rows: Vec<(usize, &Row)> =
        rows.iter().enumerate().filter(|(_, r)| r.preset.is_some() || r.name == "dram").collect();
    let most = rows.iter().map(|(_, r)| r.throughput_ratio).fold(1.0, f64::max);
    let saved = rows.iter().map(|(_, r)| r.tco_saved).fold(0.1, f64::max);
    let frame = Frame {
        height: 280.0,
        x: (0.0, ceiling(100.0 * saved)),
        y: (0.0, ceiling(most)),
        x_label: "memory cost saved, % (further right is better)".into(),
        y_label: "throughput, DRAM = 1".into(),
        band: None,
        description: "Throughput against memory cost saved, a point for each run".into(),
    };
    let marks = rows.iter().map(|(i, row)| {
        let (x, y) = (100.0 * row.tco_saved, row.throughput_ratio);
        Mark {
            color: run_color(*i),
            at: (x, y),
            within: None,
            name: row.name.clone(),
            title: format!("{}: {x:.1} % saved at {y:.3} of DRAM throughput", row.name),
        }
    });
    (frame, marks.collect())
}

fn run_color(index: usize) -> usize {
    index % COLORS
}

fn time_range(outcomes: &[&Outcome]) -> (f64, f64) {
    let ends = outcomes.iter().flat_map(|o| o.windows.last()).map(|w| w.t_s);
    (0.0, ends.fold(1.0, f64::max))
}

/// When a window began: where the one before ended.
fn begin(windows: &[Window], i: usize) -> f64 {
    match i.checked_sub(1).and_then(|i| windows.get(i)) {
        Some(before) => before.t_s,
        None => {
            let next = windows.get(i + 1).map_or(0.0, |next| next.t_s - windows[i].t_s);
            (windows[i].t_s - next).max(0.0)
        }
    }
}

fn band(outcome: &Outcome) -> Option<(f64, f64, String)> {
    let (first, last) = (outcome.first_measured, outcome.windows.last()?);
    outcome.windows.get(first)?;
    Some((begin(&outcome.windows, first), last.t_s, "measured phase".to_owned()))
}

fn legend(out: &mut String, outcome: &Outcome, colors: &TierColors) {
    out.push_str("<div class=\"legend\">");
    for (i, tier) in outcome.windows.last().map_or(&[][..], |w| &w.tiers).iter().enumerate() {
        let color = colors.of(i, &tier.name);
        let mark = if tier.emulated { " (emulated)" } else { "" };
        let _ = write!(
            out,
            "<span><svg class='key' viewBox='0 0 10 10'><rect class='c{color}' width='10' \
             height='10'/></svg>{}{mark}</span>",
            escape(&tier.name)
        );
    }
    out.push_str("</div>");
}

fn tier_bars(
    outcome: &Outcome,
    colors: &TierColors,
    scale: impl Fn(&Window, usize, f64) -> f64,
    get: impl Fn(&TierWindow) -> u64,
    unit: &str,
) -> Vec<Bar> {
    let bar = |(i, window): (usize, &Window)| {
        let (from, to) = (begin(&outcome.windows, i), window.t_s);
        let all: u64 = window.tiers.iter().map(&get).sum();
        let layer = |(t, tier): (usize, &TierWindow)| {
            let (n, value) = (get(tier), scale(window, i, get(tier) as f64));
            let share = 100.0 * n as f64 / all.max(1) as f64;
            let title = format!(
                "window {} ({from:.0}–{to:.0} s), {}: {} {unit}, {share:.1} %",
                window.window,
                tier.name,
                thousands(n)
            );
            (colors.of(t, &tier.name), value, title)
        };
        Bar { from, to, layers: window.tiers.iter().enumerate().map(layer).collect() }
    };
    outcome.windows.iter().enumerate().map(bar).collect()
}

fn largest(bars: &[Vec<Bar>]) -> f64 {
    let sums = bars.iter().flatten().map(|b| b.layers.iter().map(|l| l.1).sum::<f64>());
    sums.fold(0.0, f64::max)
}

/// One stacked plot of pages per run, all with the same scales.
fn placement(
    out: &mut String,
    outcomes: &[&Outcome],
    colors: &TierColors,
    get: impl Fn(&TierWindow) -> u64 + Copy,
) {
    let gib = |_: &Window, _: usize, pages: f64| pages * GIB_PER_PAGE;
    let bars: Vec<Vec<Bar>> =
        outcomes.iter().map(|o| tier_bars(o, colors, gib, get, "pages")).collect();
    let top = ceiling(largest(&bars));
    out.push_str("<div class=\"grid\">");
    for (outcome, bars) in outcomes.iter().zip(&bars) {
        let frame = pages_frame(outcome, time_range(outcomes), top);
        figure(out, outcome, &frame.bars(bars), colors);
    }
    out.push_str("</div>");
}

fn pages_frame(outcome: &Outcome, x: (f64, f64), top: f64) -> Frame {
    Frame {
        height: 230.0,
        x,
        y: (0.0, top),
        x_label: "seconds since the start of Redis".into(),
        y_label: "application data, GiB".into(),
        band: band(outcome),
        description: format!("Pages per tier and window of {}", outcome.spec.name),
    }
}

fn figure(out: &mut String, outcome: &Outcome, plots: &str, colors: &TierColors) {
    let _ = write!(out, "<figure><figcaption>{}</figcaption>", escape(&outcome.spec.name));
    out.push_str(plots);
    legend(out, outcome, colors);
    out.push_str("</figure>");
}

fn actual(out: &mut String, outcomes: &[&Outcome], colors: &TierColors) {
    let gib = |_: &Window, _: usize, pages: f64| pages * GIB_PER_PAGE;
    let bars: Vec<Vec<Bar>> =
        outcomes.iter().map(|o| tier_bars(o, colors, gib, |t| t.pages, "pages")).collect();
    let (top, x) = (ceiling(largest(&bars)), time_range(outcomes));
    out.push_str("<div class=\"grid\">");
    for (outcome, bars) in outcomes.iter().zip(&bars) {
        let per_second = |window: &Window, i: usize, n: f64| {
            n / (window.t_s - begin(&outcome.windows, i)).max(1e-3)
        };
        let faults = vec![tier_bars(outcome, colors, per_second, |t| t.faults, "faults")];
        let frame = Frame {
            height: 180.0,
            y: (0.0, ceiling(largest(&faults))),
            y_label: "page faults per second".into(),
            description: format!("Page faults per tier and window of {}", outcome.spec.name),
            ..pages_frame(outcome, x, top)
        };
        let plots = pages_frame(outcome, x, top).bars(bars) + &frame.bars(&faults[0]);
        figure(out, outcome, &plots, colors);
    }
    out.push_str("</div>");
}

fn over_time(out: &mut String, all: &[Outcome], tiered: &[&Outcome]) {
    let lines = |get: fn(&Outcome) -> Vec<Point>| -> Vec<Line> {
        let line =
            |(i, o): (usize, &Outcome)| Line { color: run_color(i), dash: i, points: get(o) };
        all.iter().enumerate().map(line).collect()
    };
    let saved = lines(|o| {
        let point = |w: &Window| {
            let y = 100.0 * w.tco_saved;
            let title = format!("{}, window {}: {y:.1} % saved", o.spec.name, w.window);
            (w.t_s, y, title)
        };
        o.windows.iter().map(point).collect()
    });
    let rates = lines(|o| o.series.iter().map(|(t, y)| (*t, y / 1e3, String::new())).collect());
    let range = |lines: &[Line]| {
        let values = lines.iter().flat_map(|l| &l.points);
        let low = values.clone().map(|p| p.1).fold(0.0, f64::min);
        (low * 1.05, ceiling(values.map(|p| p.1).fold(0.0, f64::max)))
    };
    let (_, end) = time_range(tiered);
    let end = all.iter().flat_map(|o| o.series.last()).map(|p| p.0).fold(end, f64::max);
    let frame = |lines: &[Line], label: &str, description: &str| Frame {
        height: 280.0,
        x: (0.0, end),
        y: range(lines),
        x_label: "seconds since the start of Redis".into(),
        y_label: label.into(),
        band: None,
        description: description.into(),
    };
    out.push_str("<div class=\"grid\">");
    for (lines, label, text) in [
        (&saved, "memory cost saved, %", "Memory cost saved per window, a line for each run"),
        (&rates, "thousand operations per second", "Throughput over time, a line for each run"),
    ] {
        let plot = frame(lines, label, text).lines(lines);
        let _ = write!(out, "<figure><figcaption>{text}</figcaption>{plot}<div class=\"legend\">");
        for (i, outcome) in all.iter().enumerate().filter(|(i, _)| !lines[*i].points.is_empty()) {
            let (color, dash) = (run_color(i), i % 4);
            let _ = write!(
                out,
                "<span><svg class='key long' viewBox='0 0 26 10'><polyline class='l{color} \
                 d{dash}' points='0,5 26,5'/></svg>{}</span>",
                escape(&outcome.spec.name)
            );
        }
        out.push_str("</div></figure>");
    }
    out.push_str("</div>");
}

fn tier_table(out: &mut String, rows: &[Row], colors: &TierColors) {
    section(
        out,
        "Tiers",
        "Pages and bytes are means over the measured windows, faults are sums; fault latency is \
         since the start of the run. Stored as: bytes the pool holds, fragmentation included, for \
         each byte of the application.",
    );
    out.push_str(
        "<div class=\"scroll\"><table><tr><th>run<th class=\"left\">tier<th>codec<th>pool\
         <th>medium<th>$/GiB-month<th>pages<th>GiB<th>stored as<th>faults<th>fault p50 µs\
         <th>fault p99 µs<th>refused</tr>",
    );
    for row in rows.iter().filter(|r| r.preset.is_some()) {
        for (i, t) in row.tiers.iter().enumerate() {
            let or_dash = |name: &Option<String>| escape(name.as_deref().unwrap_or("–"));
            let micros = |us: f64| if us > 0.0 { format!("{us:.1}") } else { "–".to_owned() };
            let stored = match (i, t.pages) {
                (0, _) | (_, 0) => "–".to_owned(),
                (_, pages) => {
                    format!("{:.1} %", 100.0 * t.pool_bytes as f64 / (pages * 4096) as f64)
                }
            };
            let medium = format!("{}{}", or_dash(&t.medium), emulated_mark(t.emulated));
            let refused: Vec<String> = t
                .refused
                .iter()
                .filter(|(_, n)| **n > 0)
                .map(|(why, n)| format!("{} {}", thousands(*n), escape(why)))
                .collect();
            let _ = write!(
                out,
                "<tr><th>{}<th><svg class='key' viewBox='0 0 10 10'><rect class='c{}' width='10' \
                 height='10'/></svg>{}<td>{}<td>{}<td>{medium}<td>{:.2}<td>{}<td>{:.2}\
                 <td>{stored}<td>{}<td>{}<td>{}<td>{}</tr>",
                if i == 0 { escape(&row.name) } else { String::new() },
                colors.of(i, &t.name),
                escape(&t.name),
                or_dash(&t.codec),
                or_dash(&t.pool),
                t.usd_per_gib_month,
                thousands(t.pages),
                t.pages as f64 * GIB_PER_PAGE,
                if i == 0 { "–".to_owned() } else { thousands(t.faults) },
                micros(t.fault_us_p50),
                micros(t.fault_us_p99),
                if refused.is_empty() { "–".to_owned() } else { refused.join(", ") },
            );
        }
    }
    out.push_str("</table></div>");
}

fn environment(out: &mut String, rows: &[Row], notes: &Notes) {
    out.push_str("<h2>How this was measured</h2><dl>");
    let m = &notes.machine;
    let mut item = |name: &str, text: &str| {
        let _ = write!(out, "<dt>{}<dd>{}", escape(name), escape(text));
    };
    item("machine", &m.machine);
    let thp = format!("Linux {}, {}, transparent huge pages: {}", m.kernel, m.distribution, m.thp);
    item("system", &thp);
    item("versions", &format!("terrace {}, redis {}", m.version, m.redis));
    item("load", &notes.workload);
    item("values", &notes.content);
    if let Some(row) = rows.iter().find(|r| !r.tracker.is_empty()) {
        item("access tracking", &row.tracker);
    }
    item("baseline", &notes.baseline);
    for medium in &notes.media {
        item("emulated medium", &medium.sentence());
    }
    item("duration", &format!("{:.0} s in all", notes.seconds_total));
    out.push_str("</dl>");
}

#[cfg(test)]
mod tests {
    use super::super::outcome::{tests::outcome, Policy, RunSpec};
    use super::*;

    /// Every tag that must be closed is, as often as it is opened.
    fn assert_balanced(html: &str) {
        for tag in ["html", "body", "main", "svg", "figure", "div", "table", "title", "text", "dl"]
        {
            let opened = html.matches(&format!("<{tag}>")).count()
                + html.matches(&format!("<{tag} ")).count();
            assert_eq!(opened, html.matches(&format!("</{tag}>")).count(), "<{tag}>");
        }
        assert!(!html.contains("NaN") && !html.contains("inf\""), "a number is not one");
        assert!(!html.contains("<script") && !html.contains("http:"), "not self-contained");
    }

    fn report(outcomes: &[Outcome], notes: &Notes) -> String {
        let rows: Vec<Row> = outcomes.iter().map(Row::new).collect();
        render(outcomes, &rows, notes)
    }

    #[test]
    fn an_empty_demo_is_a_valid_report() {
        assert_balanced(&report(&[], &Notes::default()));
        let mut empty = outcome(RunSpec::terrace("auto", Policy::Analytical(0.1)), 900.0);
        empty.windows.clear();
        empty.series.clear();
        assert_balanced(&report(&[outcome(RunSpec::dram("dram"), 1.0), empty], &Notes::default()));
    }

    #[test]
    fn a_normal_demo_shows_every_run_and_tier() {
        let runs = [
            outcome(RunSpec::dram("dram"), 1000.0),
            outcome(RunSpec::terrace("tierscape", Policy::Waterfall("moderate")), 800.0),
            outcome(RunSpec::terrace("auto", Policy::Analytical(0.1)), 700.0),
        ];
        let html = report(&runs, &Notes::default());
        assert_balanced(&html);
        for text in ["tierscape waterfall moderate", "zbud+lz4", "GiB", "0 wrong values"] {
            assert!(html.contains(text), "{text}");
        }
        // Two plots of placement and one of faults for each tiered run, and three over all.
        assert_eq!(html.matches("role=\"img\"").count(), 2 * 3 + 3);
        assert!(html.contains("measured phase"));
    }

    #[test]
    fn wrong_values_are_at_the_top() {
        let notes = Notes { wrong_values: 3, wrong: vec!["key <7>".into()], ..Notes::default() };
        let html = report(&[outcome(RunSpec::dram("dram"), 1.0)], &notes);
        assert!(html.contains("3 WRONG VALUES: key &lt;7&gt;"));
    }
}
