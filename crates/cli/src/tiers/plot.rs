//! The plane of cost against fault latency as a picture: one SVG that needs nothing else, or a page
//! with it and the table.
//!
//! Colour is the codec, shape the pool, a hollow mark a medium that is not DRAM. The frontiers are
//! drawn as steps, since a step is what they promise without mixing; recommended tiers have a ring.

use std::fmt::Write as _;

use terrace_core::tier::{Codec, Pool};

use super::report::{Report, Row};
use crate::demo::chart::{escape, STYLE};

/// What a picture of its own needs besides: a page has a background and a font already.
const MORE_STYLE: &str = "svg { font-family: system-ui, sans-serif; } \
    .step { fill: none; stroke: var(--soft); stroke-width: 1.2; } .dash { stroke-dasharray: 5 4; } \
    .ring { fill: none; stroke: var(--ink); stroke-width: 1.6; } .hollow { fill: var(--paper); \
    stroke-width: 2; } .lead { stroke: var(--soft); stroke-width: .8; } .off { opacity: .55; } \
    svg text.key { text-anchor: start; }";

const WIDTH: f64 = 860.0;
const HEIGHT: f64 = 560.0;
const LEFT: f64 = 62.0;
const RIGHT: f64 = 150.0;
const TOP: f64 = 62.0;
const BOTTOM: f64 = 46.0;
/// Of a name, per letter and in all.
const LETTER: (f64, f64) = (6.9, 13.0);

/// The picture by itself.
pub fn svg(report: &Report) -> String {
    let style = format!("<style>{STYLE} {MORE_STYLE}</style>");
    let drawn = draw(report);
    format!(
        "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {WIDTH} {HEIGHT}' width='{WIDTH}' \
         height='{HEIGHT}' role='img' aria-label='cost of tiers against their fault latency'>\
         {style}<rect class='paper' width='{WIDTH}' height='{HEIGHT}'/>{drawn}</svg>\n"
    )
}

/// A page with picture and table.
pub fn html(report: &Report) -> String {
    let notes: Vec<String> =
        report.notes().iter().map(|n| format!("<p class='lead'>{}</p>", escape(n))).collect();
    format!(
        "<!doctype html><html lang='en'><head><meta charset='utf-8'><title>Tiers</title>\
         <style>{STYLE} {MORE_STYLE}</style></head><body><main><figure><svg \
         xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {WIDTH} {HEIGHT}' role='img' \
         aria-label='cost of tiers against their fault latency'>{}</svg></figure>\
         <div class='scroll'>{}</div>{}</main></body></html>\n",
        draw(report),
        report.html_table(),
        notes.concat()
    )
}

/// A box on the picture: left, top, right, bottom.
type Area = (f64, f64, f64, f64);

/// Scales of the picture.
struct Plane {
    /// Microseconds at both ends, positive; the scale is logarithmic.
    us: (f64, f64),
    /// Cost at the top; 0 at the bottom.
    tco: f64,
}

impl Plane {
    fn of(rows: &[(&Row, f64)]) -> Plane {
        let least = rows.iter().map(|r| r.1).fold(f64::INFINITY, f64::min);
        let most = rows.iter().map(|r| r.1).fold(0.0, f64::max);
        let us = if rows.is_empty() { (1.0, 100.0) } else { (least * 0.8, most * 1.25) };
        let tco = rows.iter().map(|(r, _)| r.tco_normalized).fold(1.0, f64::max);
        Plane { us, tco: tco * 1.05 }
    }

    fn x(&self, us: f64) -> f64 {
        let share = (us / self.us.0).ln() / (self.us.1 / self.us.0).ln();
        LEFT + share * (WIDTH - LEFT - RIGHT)
    }

    fn y(&self, tco: f64) -> f64 {
        HEIGHT - BOTTOM - tco / self.tco * (HEIGHT - BOTTOM - TOP)
    }
}

fn draw(report: &Report) -> String {
    let rows: Vec<(&Row, f64)> =
        report.tiers.iter().filter_map(|r| Some((r, r.judged_ns()? as f64 / 1e3))).collect();
    let plane = Plane::of(&rows);
    let mut out = String::new();
    let data: String = report.data.chars().take(110).collect();
    let dots = if data.len() < report.data.len() { " .." } else { "" };
    let _ = write!(
        out,
        "<text class='title' x='{LEFT}' y='22'>What a page costs in each tier, and what it costs \
         to bring it back</text><text x='{LEFT}' y='40'>{}{dots}</text>",
        escape(&data)
    );
    axes(&mut out, &plane);
    let mut taken = steps(&mut out, &plane, &rows, "step", &|r| r.pareto_real);
    if rows.iter().any(|(r, _)| r.emulated) {
        taken.extend(steps(&mut out, &plane, &rows, "step dash", &|r| r.pareto));
    }
    // What matters is drawn last and so lies on top.
    let matters = |r: &Row| r.pareto || r.pareto_real;
    for wanted in [false, true] {
        for (row, us) in rows.iter().filter(|(r, _)| matters(r) == wanted) {
            point(&mut out, row, plane.x(*us), plane.y(row.tco_normalized));
        }
    }
    names(&mut out, &plane, &rows, &matters, taken);
    legend(&mut out, report);
    out
}

fn axes(out: &mut String, plane: &Plane) {
    let (floor, right) = (HEIGHT - BOTTOM, WIDTH - RIGHT);
    let step = if plane.tco > 1.6 { 0.4 } else { 0.2 };
    for n in 0..=(plane.tco / step + 1e-9) as u32 {
        let (tco, at) = (f64::from(n) * step, plane.y(f64::from(n) * step));
        let _ = write!(
            out,
            "<line class='grid' x1='{LEFT}' y1='{at:.1}' x2='{right}' y2='{at:.1}'/>\
             <text x='{:.1}' \
             y='{:.1}' text-anchor='end'>{tco:.1}</text>",
            LEFT - 7.0,
            at + 4.0
        );
    }
    let dram = plane.y(1.0);
    let _ = write!(
        out,
        "<line class='axis' stroke-dasharray='2 3' x1='{LEFT}' y1='{dram:.1}' x2='{right}' \
         y2='{dram:.1}'/><text x='{:.1}' y='{:.1}' text-anchor='end'>plain DRAM: 1, \
         no fault</text>",
        right - 4.0,
        dram - 5.0
    );
    for us in ticks(plane.us) {
        let at = plane.x(us);
        let _ = write!(
            out,
            "<line class='axis' x1='{at:.1}' y1='{floor}' x2='{at:.1}' y2='{:.1}'/><text \
             x='{at:.1}' y='{:.1}' text-anchor='middle'>{us}</text>",
            floor + 4.0,
            floor + 17.0
        );
    }
    let (middle_x, middle_y) = ((LEFT + right) / 2.0, (TOP + floor) / 2.0);
    let _ = write!(
        out,
        "<line class='axis' x1='{LEFT}' y1='{floor}' x2='{right}' y2='{floor}'/><text \
         x='{middle_x}' y='{:.1}' text-anchor='middle'>fault latency p50, fitted, us \
         (logarithmic)</text>\
         <text transform='translate(18 {middle_y}) rotate(-90)' text-anchor='middle'>cost of \
         holding the data, DRAM = 1</text>",
        HEIGHT - 8.0
    );
}

/// Round numbers on a logarithmic scale: as many of the digits as give at least four.
fn ticks((from, to): (f64, f64)) -> Vec<f64> {
    let digits: [&[f64]; 3] = [
        &[1.0, 2.0, 5.0],
        &[1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 7.0],
        &[1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.8, 2.0, 2.2, 2.5, 3.0, 3.5, 4.0, 5.0, 6.0, 7.0, 8.0],
    ];
    let mut found = Vec::new();
    for digits in digits {
        found.clear();
        for power in -3..7 {
            // Parsed, because a product would print as 0.30000000000000004.
            let at = |d: &f64| format!("{d}e{power}").parse().unwrap_or(1.0);
            found.extend(digits.iter().map(at).filter(|us: &f64| (from..=to).contains(us)));
        }
        if found.len() >= 4 {
            break;
        }
    }
    found
}

/// A frontier as steps, from the fastest on, cheaper with each. Returns where its lines are.
fn steps(
    out: &mut String,
    plane: &Plane,
    rows: &[(&Row, f64)],
    class: &str,
    on: &dyn Fn(&Row) -> bool,
) -> Vec<Area> {
    let on = rows.iter().filter(|(r, _)| on(r));
    let corners: Vec<(f64, f64)> =
        on.map(|(r, us)| (plane.x(*us), plane.y(r.tco_normalized))).collect();
    let Some(first) = corners.first() else { return Vec::new() };
    let mut lines = Vec::new();
    let mut at = (first.0, plane.y(1.0));
    let mut path = format!("M{:.1},{:.1}", at.0, at.1);
    for (x, y) in corners.into_iter().chain([(WIDTH - RIGHT, f64::NAN)]) {
        lines.push((at.0, at.1 - 1.0, x, at.1 + 1.0));
        let _ = write!(path, " H{x:.1}");
        if y.is_finite() {
            lines.push((x - 1.0, at.1, x + 1.0, y));
            let _ = write!(path, " V{y:.1}");
            at = (x, y);
        }
    }
    let _ = write!(out, "<path class='{class}' d='{path}'/>");
    lines
}

fn color(codec: &str) -> usize {
    Codec::ALL.iter().position(|c| c.name() == codec).map_or(0, |n| 1 + n % 9)
}

fn point(out: &mut String, row: &Row, x: f64, y: f64) {
    let matters = row.pareto || row.pareto_real;
    let r = if matters { 6.0 } else { 4.5 };
    let cells = format!(
        "{}: fault p50 {:.1} us, p99 {:.1} us, cost {:.3}, refused {:.1} %",
        row.name,
        row.fault_p50_ns.unwrap_or(0) as f64 / 1e3,
        row.fault_p99_ns.unwrap_or(0) as f64 / 1e3,
        row.tco_normalized,
        row.refused_share * 100.0
    );
    let group = if matters { "" } else { " class='off'" };
    let _ = write!(out, "<g{group}><title>{}</title>", escape(&cells));
    shape(out, row.codec, row.pool, row.medium == "dram", (x, y, r));
    if row.recommended || row.recommended_with_emulated {
        let dash = if row.recommended { "" } else { " dash" };
        let _ = write!(out, "<circle class='ring{dash}' cx='{x:.1}' cy='{y:.1}' r='10'/>");
    }
    out.push_str("</g>");
}

/// The mark of a tier, of "radius" `r` around `x`, `y`.
fn shape(out: &mut String, codec: &str, pool: &str, filled: bool, (x, y, r): (f64, f64, f64)) {
    let c = color(codec);
    let class = if filled { format!("c{c}") } else { format!("hollow l{c}") };
    let place = Pool::ALL.iter().position(|p| p.name() == pool).unwrap_or(0);
    let _ = match place {
        0 => write!(
            out,
            "<rect class='{class}' x='{:.1}' y='{:.1}' width='{:.1}' height='{:.1}'/>",
            x - r * 0.88,
            y - r * 0.88,
            r * 1.76,
            r * 1.76
        ),
        1 => write!(out, "<circle class='{class}' cx='{x:.1}' cy='{y:.1}' r='{r:.1}'/>"),
        _ => write!(
            out,
            "<path class='{class}' d='M{x:.1},{:.1} l{:.1},{:.1} h{:.1} z'/>",
            y - r * 1.15,
            r * 1.15,
            r * 2.0,
            r * -2.3
        ),
    };
}

/// Names of the points that matter, each at the first place around its point where it covers
/// nothing, with a line to the point where that is not beside it.
fn names(
    out: &mut String,
    plane: &Plane,
    rows: &[(&Row, f64)],
    matters: &dyn Fn(&Row) -> bool,
    mut taken: Vec<Area>,
) {
    let at = |(row, us): &(&Row, f64)| (plane.x(*us), plane.y(row.tco_normalized));
    let marks = rows.iter().map(|r| (at(r), if matters(r.0) { 11.0 } else { 5.0 }));
    taken.extend(marks.map(|((x, y), r)| (x - r, y - r, x + r, y + r)));
    // The line of DRAM has a name, too.
    taken.push((WIDTH - RIGHT - 140.0, plane.y(1.0) - 16.0, WIDTH - RIGHT, plane.y(1.0)));
    for point in rows.iter().filter(|(r, _)| matters(r)) {
        let (x, y) = at(point);
        let name = format!("{}{}", point.0.name, if point.0.emulated { "*" } else { "" });
        let (wide, high) = (name.chars().count() as f64 * LETTER.0, LETTER.1);
        let spot = |n: usize| {
            // Above the step, beside the point, below; then in growing circles.
            let turn = [-50.0, 0.0, 180.0, 50.0, 130.0, -130.0, -85.0, 85.0][n % 8];
            let far = 18.0 + (n / 8) as f64 * 13.0;
            let (sin, cos) = f64::sin_cos(f64::to_radians(turn));
            let (px, py) = (x + far * cos, y + far * sin);
            let left = if cos < 0.0 { px - wide } else { px };
            (left, py - high / 2.0, left + wide, py + high / 2.0)
        };
        let free = |a: &Area| {
            let inside = a.0 > LEFT && a.2 < WIDTH - 4.0 && a.1 > TOP && a.3 < HEIGHT - BOTTOM;
            let clear = |b: &Area| a.2 < b.0 || b.2 < a.0 || a.3 < b.1 || b.3 < a.1;
            inside && taken.iter().all(clear)
        };
        let n = (0..96).find(|n| free(&spot(*n))).unwrap_or(0);
        let area = spot(n);
        if n >= 8 {
            let near = if area.0 > x { area.0 } else { area.2.min(x.max(area.0)) };
            let _ = write!(
                out,
                "<line class='lead' x1='{x:.1}' y1='{y:.1}' x2='{near:.1}' y2='{:.1}'/>",
                (area.1 + area.3) / 2.0
            );
        }
        let _ = write!(
            out,
            "<text class='name' x='{:.1}' y='{:.1}'>{}</text>",
            area.0,
            area.3 - 3.0,
            escape(&name)
        );
        taken.push(area);
    }
}

fn legend(out: &mut String, report: &Report) {
    let x = WIDTH - RIGHT + 22.0;
    let mut y = TOP + 8.0;
    let mut line = |mark: &dyn Fn(&mut String, f64), text: &str| {
        mark(out, y);
        let _ =
            write!(out, "<text class='key' x='{:.1}' y='{:.1}'>{text}</text>", x + 14.0, y + 4.0);
        y += 18.0;
    };
    let has = |test: &dyn Fn(&Row) -> bool| report.tiers.iter().any(test);
    for codec in Codec::ALL.map(Codec::name) {
        if has(&|r| r.codec == codec) {
            let mark = |out: &mut String, y| {
                let _ = write!(
                    out,
                    "<rect class='c{}' x='{:.1}' y='{:.1}' width='10' height='10'/>",
                    color(codec),
                    x - 5.0,
                    y - 5.0
                );
            };
            line(&mark, codec);
        }
    }
    line(&|_, _| {}, "");
    for pool in Pool::ALL.map(Pool::name) {
        if has(&|r| r.pool == pool) {
            line(&|out, y| shape(out, "", pool, true, (x, y, 5.0)), pool);
        }
    }
    let elsewhere = |r: &Row| r.medium != "dram";
    if has(&elsewhere) {
        let emulated = report.tiers.iter().filter(|r| elsewhere(r)).all(|r| r.emulated);
        let text = if emulated { "emulated medium*" } else { "not DRAM (*: emulated)" };
        line(&|out, y| shape(out, "", Pool::Zsmalloc.name(), false, (x, y, 5.0)), text);
    }
    line(&|_, _| {}, "");
    let stroke = |class: &'static str| {
        move |out: &mut String, y: f64| {
            let _ = write!(
                out,
                "<line class='{class}' x1='{:.1}' y1='{y:.1}' x2='{:.1}' y2='{y:.1}'/>",
                x - 8.0,
                x + 9.0
            );
        }
    };
    line(&stroke("step"), "frontier, real media");
    if has(&|r| r.emulated) {
        line(&stroke("step dash"), "with emulated");
    }
    let ring = |class: &'static str| {
        move |out: &mut String, y: f64| {
            let _ = write!(out, "<circle class='{class}' cx='{x:.1}' cy='{y:.1}' r='7'/>");
        }
    };
    line(&ring("ring"), "recommended");
    if has(&|r| r.recommended_with_emulated && !r.recommended) {
        line(&ring("ring dash"), "if it were real");
    }
}

#[cfg(test)]
mod tests {
    use super::super::report::testing::report;
    use super::*;

    #[test]
    fn the_picture_is_whole_and_names_the_frontier() {
        let report = report();
        let text = svg(&report);
        assert!(text.starts_with("<svg xmlns=") && text.ends_with("</svg>\n"));
        assert!(!text.contains("NaN") && !text.contains("inf"));
        for row in report.tiers.iter().filter(|r| r.pareto || r.pareto_real) {
            assert!(text.contains(&format!(">{}", row.name)), "{}", row.name);
        }
        assert_eq!(text.matches("<title>").count(), report.tiers.len());
        assert!(text.contains("file a &amp; b") && !text.contains("a & b"));
        for open in ["<g", "<svg", "<style", "<text"] {
            let close = open.replace('<', "</");
            let opened = text.matches(&format!("{open} ")).count()
                + text.matches(&format!("{open}>")).count();
            assert_eq!(opened, text.matches(&close).count(), "{open}");
        }
    }

    #[test]
    fn nothing_known_is_still_a_picture() {
        let mut report = report();
        report.tiers.iter_mut().for_each(|r| r.fault_p50_ns = None);
        report.judge();
        assert!(svg(&report).contains("plain DRAM"));
        report.tiers.clear();
        assert!(html(&report).contains("<table>"));
    }

    #[test]
    fn a_page_has_picture_and_table() {
        let page = html(&report());
        assert!(page.contains("<figure><svg") && page.contains("<th>zbud+lz4+dram</th>"));
    }

    #[test]
    fn ticks_are_round_and_enough() {
        assert_eq!(ticks((8.0, 130.0)), [10.0, 20.0, 50.0, 100.0]);
        for (from, to) in [(9.0, 14.0), (12.0, 19.0), (3.0, 900.0), (31.0, 62.0)] {
            let found = ticks((from, to));
            assert!((3..=18).contains(&found.len()), "{from} {to}: {found:?}");
            assert!(found.windows(2).all(|w| w[0] < w[1]));
        }
    }
}
