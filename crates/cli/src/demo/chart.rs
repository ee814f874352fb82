//! Plots as SVG, inline or as files: stacked bars over time, lines over time, and points. Colours
//! are CSS classes (`c0`, `c1`, ..) of [`STYLE`], for light and dark. Hovering shows `<title>`.

use super::names::{self, Rect};
use std::fmt::Write;

/// The style sheet of pages with plots in them.
pub const STYLE: &str = concat!(include_str!("chart.css"), include_str!("report.css"));
/// What of it a plot by itself needs.
const OF_PLOTS: &str = include_str!("chart.css");

const WIDTH: f64 = 560.0;
const LEFT: f64 = 58.0;
const RIGHT: f64 = 12.0;
const TOP: f64 = 10.0;
const BOTTOM: f64 = 40.0;
/// Above the plot in a file by itself, and of a letter in its legend.
const FILE_TOP: f64 = 30.0;
const LETTER: f64 = 6.3;

/// A plot without its contents: size, axes and what they mean.
pub struct Frame {
    /// Height in pixels of the whole plot.
    pub height: f64,
    /// Range of x.
    pub x: (f64, f64),
    /// Range of y.
    pub y: (f64, f64),
    /// What x is, with its unit.
    pub x_label: String,
    /// What y is, with its unit.
    pub y_label: String,
    /// Part of x to shade, with the reason.
    pub band: Option<(f64, f64, String)>,
    /// What the plot shows, for screen readers.
    pub description: String,
}

/// One stacked bar: from, to, and per layer (colour, height, hover text).
pub struct Bar {
    /// Left end on the x axis.
    pub from: f64,
    /// Right end on the x axis.
    pub to: f64,
    /// From the bottom up.
    pub layers: Vec<(usize, f64, String)>,
}

/// x, y and hover text; without hover text there is no marker.
pub type Point = (f64, f64, String);

/// A line or a set of points.
pub struct Line {
    /// Colour class.
    pub color: usize,
    /// Dash pattern class, to tell lines apart without colour.
    pub dash: usize,
    /// From left to right.
    pub points: Vec<Point>,
}

/// A point with a name beside it.
pub struct Mark {
    /// Colour class.
    pub color: usize,
    /// Where it is.
    pub at: (f64, f64),
    /// Where it may be instead, along x and along y: a thin line each.
    pub within: Option<[(f64, f64); 2]>,
    /// What stands beside it.
    pub name: String,
    /// What hovering shows.
    pub title: String,
}

impl Frame {
    /// Draws stacked bars.
    pub fn bars(&self, bars: &[Bar]) -> String {
        let mut out = self.open();
        for bar in bars {
            let (left, right) = (self.px(bar.from), self.px(bar.to));
            let mut base = self.y.0;
            for (color, height, title) in &bar.layers {
                if *height <= 0.0 {
                    continue;
                }
                let (bottom, top) = (self.py(base), self.py(base + height));
                base += height;
                let _ = write!(
                    out,
                    "<rect class='c{color}' x='{left:.1}' y='{top:.1}' width='{:.1}' \
                     height='{:.1}'>",
                    (right - left - 0.7).max(0.7),
                    (bottom - top).max(0.0),
                );
                let _ = write!(out, "<title>{}</title></rect>", escape(title));
            }
        }
        self.close(out)
    }

    /// Draws lines, with a marker at each point that has a hover text.
    pub fn lines(&self, lines: &[Line]) -> String {
        let mut out = self.open();
        for line in lines {
            let points: Vec<String> = line
                .points
                .iter()
                .map(|(x, y, _)| format!("{:.1},{:.1}", self.px(*x), self.py(*y)))
                .collect();
            let (color, dash) = (line.color, line.dash % 4);
            let _ = write!(
                out,
                r#"<polyline class="l{color} d{dash}" points="{}"/>"#,
                points.join(" ")
            );
            self.markers(&mut out, line, 2.5);
        }
        self.close(out)
    }

    /// Draws points with a name beside them.
    pub fn points(&self, marks: &[Mark]) -> String {
        let mut out = self.open();
        let mut from_top: Vec<&Mark> = marks.iter().collect();
        from_top.sort_by(|a, b| b.at.1.total_cmp(&a.at.1));
        let points: Vec<(f64, f64)> =
            from_top.iter().map(|m| (self.px(m.at.0), self.py(m.at.1))).collect();
        let widths: Vec<f64> =
            from_top.iter().map(|m| LETTER * (m.name.chars().count() + 1) as f64).collect();
        let area = Rect(LEFT, TOP, WIDTH - RIGHT, self.height - BOTTOM);
        let places = names::place(&points, &widths, area);
        for (mark, place) in from_top.into_iter().zip(places) {
            let (x, y) = mark.at;
            for [from, to] in mark
                .within
                .iter()
                .flat_map(|[xs, ys]| [[(xs.0, y), (xs.1, y)], [(x, ys.0), (x, ys.1)]])
            {
                let _ = write!(
                    out,
                    r#"<polyline class="l{} thin" points="{:.1},{:.1} {:.1},{:.1}"/>"#,
                    mark.color,
                    self.px(from.0),
                    self.py(from.1),
                    self.px(to.0),
                    self.py(to.1)
                );
            }
            if let Some([from, to]) = place.line {
                let _ = write!(
                    out,
                    "<line class='axis' x1='{:.1}' y1='{:.1}' x2='{:.1}' y2='{:.1}'/>",
                    from.0, from.1, to.0, to.1
                );
            }
            self.marker(&mut out, mark.color, mark.at, &mark.title, 6.0);
            let _ = write!(
                out,
                r#"<text class="name" x="{:.1}" y="{:.1}">{}</text>"#,
                place.at.0,
                place.at.1,
                escape(&mark.name)
            );
        }
        self.close(out)
    }

    fn markers(&self, out: &mut String, line: &Line, radius: f64) {
        for (x, y, title) in line.points.iter().filter(|p| !p.2.is_empty()) {
            self.marker(out, line.color, (*x, *y), title, radius);
        }
    }

    fn marker(&self, out: &mut String, color: usize, at: (f64, f64), title: &str, radius: f64) {
        let _ = write!(
            out,
            "<circle class='c{color}' cx='{:.1}' cy='{:.1}' r='{radius}'><title>{}</title>\
             </circle>",
            self.px(at.0),
            self.py(at.1),
            escape(title)
        );
    }

    /// A plot of this frame as a file by itself: with what it is called above, and what colour is
    /// what below.
    pub fn file(&self, plot: &str, title: &str, legend: &[(usize, &str)]) -> String {
        let mut keys = String::new();
        let (mut x, mut y) = (LEFT, FILE_TOP + self.height + 14.0);
        for (color, name) in legend {
            let width = 24.0 + LETTER * name.chars().count() as f64;
            if x > LEFT && x + width > WIDTH {
                (x, y) = (LEFT, y + 17.0);
            }
            let _ = write!(
                keys,
                "<rect class='c{color}' x='{x:.0}' y='{:.0}' width='10' height='10'/>\
                 <text x='{:.0}' y='{y:.0}'>{}</text>",
                y - 9.0,
                x + 15.0,
                escape(name)
            );
            x += width;
        }
        let height = if legend.is_empty() { FILE_TOP + self.height } else { y + 10.0 };
        let plot = plot.strip_prefix("<svg ").unwrap_or(plot);
        format!(
            "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {WIDTH} {height}' \
             width='{WIDTH}' height='{height}' font-family='system-ui, sans-serif'>\
             <style>{OF_PLOTS}</style><rect class='paper' width='{WIDTH}' height='{height}'/>\
             <text class='title' x='{LEFT}' y='22'>{}</text>\
             <svg y='{FILE_TOP}' width='{WIDTH}' height='{}' {plot}{keys}</svg>\n",
            escape(title),
            self.height
        )
    }

    fn px(&self, x: f64) -> f64 {
        let share = (x - self.x.0) / (self.x.1 - self.x.0).max(1e-12);
        LEFT + share.clamp(0.0, 1.0) * (WIDTH - LEFT - RIGHT)
    }

    fn py(&self, y: f64) -> f64 {
        let share = (y - self.y.0) / (self.y.1 - self.y.0).max(1e-12);
        self.height - BOTTOM - share.clamp(0.0, 1.0) * (self.height - BOTTOM - TOP)
    }

    fn open(&self) -> String {
        let height = self.height;
        let mut out = format!(
            r#"<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{}">"#,
            escape(&self.description)
        );
        let floor = height - BOTTOM;
        if let Some((from, to, why)) = &self.band {
            let (left, right) = (self.px(*from), self.px(*to));
            let _ = write!(
                out,
                "<rect class='band' x='{left:.1}' y='{TOP}' width='{:.1}' height='{:.1}'>\
                 <title>{}</title></rect>",
                (right - left).max(0.0),
                floor - TOP,
                escape(why)
            );
        }
        for y in ticks(self.y) {
            let at = self.py(y);
            let _ = write!(
                out,
                "<line class='grid' x1='{LEFT}' y1='{at:.1}' x2='{:.1}' y2='{at:.1}'/><text \
                 x='{:.1}' y='{:.1}' text-anchor='end'>{}</text>",
                WIDTH - RIGHT,
                LEFT - 6.0,
                at + 4.0,
                number(y)
            );
        }
        for x in ticks(self.x) {
            let at = self.px(x);
            let _ = write!(
                out,
                "<line class='axis' x1='{at:.1}' y1='{floor}' x2='{at:.1}' y2='{:.1}'/><text \
                 x='{at:.1}' y='{:.1}' text-anchor='middle'>{}</text>",
                floor + 4.0,
                floor + 16.0,
                number(x)
            );
        }
        let middle_x = (LEFT + WIDTH - RIGHT) / 2.0;
        let middle_y = (TOP + floor) / 2.0;
        let _ = write!(
            out,
            "<text x='{middle_x:.1}' y='{:.1}' text-anchor='middle'>{}</text><text \
             transform='translate(14 {middle_y:.1}) rotate(-90)' text-anchor='middle'>{}</text>",
            height - 6.0,
            escape(&self.x_label),
            escape(&self.y_label)
        );
        out
    }

    fn close(&self, mut out: String) -> String {
        let floor = self.height - BOTTOM;
        let _ = write!(
            out,
            r#"<line class="axis" x1="{LEFT}" y1="{floor}" x2="{:.1}" y2="{floor}"/></svg>"#,
            WIDTH - RIGHT
        );
        out
    }
}

/// Round numbers that divide a range into four to nine parts.
fn ticks((from, to): (f64, f64)) -> Vec<f64> {
    let span = to - from;
    if !span.is_finite() || span <= 0.0 {
        return vec![from];
    }
    let power = 10_f64.powf((span / 5.0).log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].iter().map(|s| s * power).find(|s| span / s <= 7.0);
    let step = step.unwrap_or(power * 10.0);
    let first = (from / step - 1e-9).ceil() as i64;
    let last = (to / step + 1e-9).floor() as i64;
    (first..=last).map(|i| i as f64 * step).collect()
}

/// The upper end of an axis that starts at zero: a little air above the largest value.
pub fn ceiling(largest: f64) -> f64 {
    if largest > 0.0 && largest.is_finite() {
        largest * 1.05
    } else {
        1.0
    }
}

fn number(n: f64) -> String {
    if n.abs() >= 10_000.0 {
        format!("{}k", trim(n / 1000.0))
    } else {
        trim(n)
    }
}

fn trim(n: f64) -> String {
    let text = format!("{n:.3}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    if text == "-0" {
        "0".to_owned()
    } else {
        text.to_owned()
    }
}

/// Text that is safe inside HTML and SVG, attributes included.
pub fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame() -> Frame {
        Frame {
            height: 240.0,
            x: (0.0, 60.0),
            y: (0.0, 1.05),
            x_label: "seconds".into(),
            y_label: "GiB <x>".into(),
            band: Some((20.0, 60.0, "measured".into())),
            description: "a test".into(),
        }
    }

    #[test]
    fn ticks_are_round_and_few() {
        assert_eq!(ticks((0.0, 60.0)), [0.0, 10.0, 20.0, 30.0, 40.0, 50.0, 60.0]);
        assert_eq!(ticks((0.0, 1.0)).len(), 6);
        assert_eq!(ticks((3.0, 3.0)), [3.0]);
        assert_eq!(ticks((0.0, f64::NAN)), [0.0]);
        for span in [0.7, 3.0, 12.5, 99.0, 1e6] {
            assert!((2..=8).contains(&ticks((0.0, span)).len()), "{span}");
        }
    }

    #[test]
    fn bars_stack_without_a_gap() {
        let layers =
            vec![(0, 0.5, "a & b".to_owned()), (1, 0.0, String::new()), (2, 0.5, "c".into())];
        let svg = frame().bars(&[Bar { from: 0.0, to: 5.0, layers }]);
        assert_eq!(svg.matches("<rect class='c").count(), 2);
        assert!(svg.contains("<title>a &amp; b</title>") && svg.contains("GiB &lt;x&gt;"));
        assert!(svg.starts_with("<svg") && svg.ends_with("</svg>") && !svg.contains("NaN"));
    }

    #[test]
    fn a_point_has_its_interval_and_its_name() {
        let mark = Mark {
            color: 4,
            at: (30.0, 0.5),
            within: Some([(10.0, 50.0), (0.25, 0.75)]),
            name: "a <b>".into(),
            title: "c".into(),
        };
        let svg = frame().points(&[mark]);
        let (left, right) = (frame().px(10.0), frame().px(50.0));
        let middle = frame().py(0.5);
        assert!(svg.contains(&format!("{left:.1},{middle:.1} {right:.1},{middle:.1}")), "{svg}");
        assert_eq!(svg.matches("l4 thin").count(), 2);
        assert!(svg.contains(">a &lt;b&gt;</text>") && svg.contains("<title>c</title>"));
    }

    #[test]
    fn a_file_stands_by_itself() {
        let plot = frame().lines(&[]);
        let long = "a name that is not short at all, and then some more of it";
        let file = frame().file(&plot, "what & why", &[(1, "one"), (2, long), (3, long)]);
        assert!(file.starts_with("<svg xmlns='http://www.w3.org/2000/svg'"));
        assert_eq!(file.matches("<svg ").count(), file.matches("</svg>").count());
        assert!(file.contains("what &amp; why") && file.contains("--c1: #"));
        // The third name has a line of its own.
        let rows: std::collections::BTreeSet<&str> = file
            .split("<rect class='c")
            .skip(1)
            .filter_map(|r| r.split(" y='").nth(1)?.split('\'').next())
            .collect();
        assert_eq!(rows.len(), 2, "{file}");
        assert_eq!(frame().file(&plot, "", &[]).matches("<rect class='c").count(), 0);
    }

    #[test]
    fn nothing_to_draw_is_still_a_plot() {
        assert!(frame().lines(&[]).ends_with("</svg>"));
        assert!(frame().points(&[]).contains("seconds"));
        assert_eq!(ceiling(0.0), 1.0);
    }
}
