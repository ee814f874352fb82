//! The results as tables for people who read text.

use std::fmt::Write;

use serde_json::Value;

use super::super::markdown::{bars, MONEY};
use super::super::record::Settings;
use super::verdict::{Point, WorkloadSlowdown};

/// Renders everything.
pub(super) fn render(
    workloads: &[WorkloadSlowdown],
    settings: &Settings,
    environment: &Value,
    skipped: &[String],
) -> String {
    let word = |key: &str| environment[key].as_str().unwrap_or("unknown").to_owned();
    let mut out = String::from("# --max-slowdown against the best fixed alpha\n\n");
    let s = settings;
    let _ = writeln!(
        out,
        "{}; Linux {}, {}; terrace {}; {}.\n\n{} MiB of data, {} s warm-up, {} s measured, windows \
         of {} s, seed {}. {}\n\n{MONEY}\n",
        word("machine"),
        word("kernel"),
        word("distribution"),
        word("terrace"),
        word("date"),
        s.size_mib,
        s.warmup_s,
        s.seconds,
        s.window_s,
        s.seed,
        match s.phase_at_s > 0.0 {
            true => format!(
                "{} s into the measured part other data becomes popular; the two windows after \
                 that are not steady state.",
                s.phase_at_s
            ),
            false => "Nothing changes in the measured part.".to_owned(),
        },
    );
    for why in skipped {
        let _ = writeln!(out, "Not run: {why}.\n");
    }
    out.push_str("| workload | promise | measured | |\n|---|---|---|---|\n");
    for w in workloads {
        bars(&mut out, &w.name, &w.bars);
    }
    for w in workloads {
        workload(&mut out, w);
    }
    out
}

fn workload(out: &mut String, w: &WorkloadSlowdown) {
    let _ = writeln!(
        out,
        "\n## {}\n\n| | runs | slower by | | saved | |\n|---|---|---|---|---|---|",
        w.name
    );
    let policy = Point {
        alpha: None,
        runs: w.runs,
        slowdown: w.measured,
        slowdown_ci: w.measured_ci,
        ci_coverage: w.ci_coverage,
        tco_saved: w.tco_saved,
        tco_saved_ci: w.tco_saved_ci,
    };
    for point in std::iter::once(&policy).chain(&w.grid) {
        let name = match point.alpha {
            None => format!("--max-slowdown {:.1}%", w.target * 100.0),
            Some(alpha) if w.best_grid_alpha == Some(alpha) => format!("alpha {alpha} (the best)"),
            Some(alpha) => format!("alpha {alpha}"),
        };
        let share = |value: f64| format!("{:.1}", value * 100.0);
        let ci = |ci: [f64; 2]| format!("{} to {}", share(ci[0]), share(ci[1]));
        let _ = writeln!(
            out,
            "| {name} | {} | {} % | {} | {} % | {} |",
            point.runs,
            share(point.slowdown),
            ci(point.slowdown_ci),
            share(point.tco_saved),
            ci(point.tco_saved_ci)
        );
    }
    let _ = writeln!(
        out,
        "\nEqual runs differ by {} in time and {} in money ({} pairs).",
        percent(w.noise.slowdown),
        percent(w.noise.usd),
        w.noise.pairs
    );
    if let Some(beyond) = &w.beyond_best_grid {
        let _ = writeln!(
            out,
            "Nothing is interpolated: alpha {} saved {} and was {} slower; what the best alpha of \
             all would save lies between.",
            beyond.alpha.unwrap_or_default(),
            percent(beyond.tco_saved),
            percent(beyond.slowdown)
        );
    }
    if let Some(change) = &w.change {
        let all: Vec<String> = change.slowdowns.iter().map(|s| percent(*s)).collect();
        let _ = writeln!(
            out,
            "Slower by, in the windows after the change: {} (equal runs differ by {}).",
            all.join(", "),
            percent(change.noise)
        );
    }
}

fn percent(share: f64) -> String {
    match share.is_finite() {
        true => format!("{:.1} %", share * 100.0),
        false => "an unknown share".to_owned(),
    }
}
