//! The status of sessions as a person reads it. A field that a session does not send is shown as
//! `-`: an older session is still worth looking at.

use std::fmt::Write as _;

use serde_json::Value;

use super::{is_emulated, ApplicationStatus, Found};
use crate::doctor::human_bytes;
use crate::explain::{never_done, scored};
use crate::knobs;

const PAGE_BYTES: u64 = 4096;

/// The row of what is resident and in no region that is followed.
const NOT_FOLLOWED: &str = "not followed";

pub(super) fn render(found: &Found) -> String {
    let mut out = String::new();
    for session in &found.sessions {
        for application in &session.applications {
            if !out.is_empty() {
                out.push('\n');
            }
            application_table(&mut out, session.supervisor_pid, application);
        }
        let supervisor = session.supervisor_pid;
        let is_shown = |p: &u32| session.applications.iter().any(|a| a.pid == *p && !a.has_ended);
        for pid in session.processes.iter().filter(|p| !is_shown(p)) {
            let _ = writeln!(
                out,
                "process {pid} (session {supervisor}): its first window has not ended"
            );
        }
        if session.applications.is_empty() && session.processes.is_empty() {
            let _ = writeln!(out, "session {supervisor} has no application yet");
        }
        let before = &session.ended_before;
        if before.applications > 0 {
            let _ = writeln!(
                out,
                "session {supervisor}: {} more have ended; {} faults served, {} ms stalled in all",
                before.applications,
                number(before.totals.get("faults").unwrap_or(&Value::Null)),
                number(before.totals.get("stalled_ms").unwrap_or(&Value::Null))
            );
        }
    }
    for silent in &found.silent {
        let _ = writeln!(out, "{}: {}", silent.socket.display(), silent.why);
    }
    for pid in &found.unplanned {
        let _ =
            writeln!(out, "process {pid} has no planner; give it one with: terrace attach {pid}");
    }
    let silent: Vec<String> = found.silent.iter().map(|s| s.name()).collect();
    for pid in &found.perhaps_planned {
        let _ = writeln!(
            out,
            "process {pid} is perhaps planned for by session {}, which does not answer; once that \
             has ended: terrace attach {pid}",
            silent.join(" or ")
        );
    }
    if out.is_empty() {
        out.push_str("no sessions; start one with: terrace run -- CMD\n");
    }
    out
}

fn application_table(out: &mut String, supervisor_pid: u32, application: &ApplicationStatus) {
    let last = &application.last;
    let _ = writeln!(
        out,
        "{} (pid {}, session {supervisor_pid}, {} {})",
        application.command,
        application.pid,
        if application.has_ended { "ended after" } else { "for" },
        human_seconds(application.started_s)
    );
    if last.is_null() {
        out.push_str("  first window not finished yet\n");
        return;
    }
    tiers(out, last);
    let _ = writeln!(
        out,
        "  saved     {} of TCO, {}",
        last["tco_saved"].as_f64().map_or("-".into(), |s| format!("{:.1} %", s * 100.0)),
        money_saved(last)
    );
    let _ = writeln!(
        out,
        "  cost      {} ms stalled and {} ms CPU in window {}; {} faults since the start",
        number(&last["stalled_ms"]),
        number(&last["terrace_cpu_ms"]),
        number(&last["window"]),
        faults_total(last)
    );
    if let Some(share) = last["hindsight"]["share_right"].as_f64() {
        let hindsight = &last["hindsight"];
        let _ = writeln!(
            out,
            "  hindsight {:.1} % of {} demotions were right{}; those that were not lost {} USD",
            share * 100.0,
            scored(hindsight),
            never_done(hindsight),
            hindsight["regret_usd"].as_f64().map_or("-".into(), crate::explain::money)
        );
    }
    let _ = writeln!(out, "  policy    {}", policy(last));
    let _ = writeln!(
        out,
        "  plan      {} moves: {}",
        moves(&last["plan"]["moves"]),
        text(&last["plan"]["why"])
    );
    if last["cold_age"].is_object() {
        let _ = writeln!(out, "  cold age  {}", cold_age(&last["cold_age"]));
    }
    let _ = writeln!(
        out,
        "  tracker   {}; why not better: {}",
        text(&last["tracker"]["method"]),
        text(&last["tracker"]["why_not_better"])
    );
}

fn tiers(out: &mut String, last: &Value) {
    let empty = Vec::new();
    let tiers = last["tiers"].as_array().unwrap_or(&empty);
    let names = tiers.iter().filter_map(|t| t["name"].as_str()).chain([NOT_FOLLOWED]);
    let width = names.map(str::len).max().unwrap_or(4);
    let _ = writeln!(
        out,
        "  {:<width$}  {:>10}  {:>10}  {:>10}  {:>10}  {:>9}  {:>9}",
        "tier", "data", "stored", "pool", "faults", "p50", "p99"
    );
    for (n, tier) in tiers.iter().enumerate() {
        let data = tier["pages"].as_u64().map(|p| p.saturating_mul(PAGE_BYTES));
        // DRAM has no pool: its data lies there as it is.
        let held = |key: &str| if n == 0 { None } else { tier[key].as_u64() };
        let latency = |key: &str| match tier[key].as_f64() {
            Some(ns) if n > 0 && ns > 0.0 => format!("{:.1} us", ns / 1000.0),
            _ => "-".into(),
        };
        let _ = writeln!(
            out,
            "  {:<width$}  {:>10}  {:>10}  {:>10}  {:>10}  {:>9}  {:>9}{}",
            text(&tier["name"]),
            bytes(data),
            bytes(held("stored_bytes")),
            bytes(held("pool_bytes")),
            if n == 0 { "-".into() } else { number(&tier["faults_total"]) },
            latency("fault_ns_p50"),
            latency("fault_ns_p99"),
            if tier["emulated"] == true { "  emulated" } else { "" }
        );
    }
    if let Some(rest) = untracked_bytes(last, tiers) {
        let _ = writeln!(out, "  {NOT_FOLLOWED:<width$}  {:>10}", human_bytes(rest));
    }
}

/// What is in no region that is followed: what would be resident without Terrace, less the data of
/// all tiers.
fn untracked_bytes(last: &Value, tiers: &[Value]) -> Option<u64> {
    let followed: u64 = tiers.iter().filter_map(|tier| tier["pages"].as_u64()).sum();
    let all = last["managed_bytes"].as_u64()?;
    Some(all.saturating_sub(followed.saturating_mul(PAGE_BYTES)))
}

fn faults_total(last: &Value) -> String {
    let tiers = last["tiers"].as_array();
    let total: Option<u64> =
        tiers.map(|t| t.iter().filter_map(|t| t["faults_total"].as_u64()).sum());
    total.map_or("-".into(), |n| n.to_string())
}

/// What is saved of what the memory would cost without Terrace. What is paid counts emulated media
/// too and what is saved in money does not; with such media the saving is that of the TCO.
fn money_saved(last: &Value) -> String {
    let real = &last["usd_saved_per_month"];
    let number = |key: &str| last[key].as_f64();
    let saved = match (is_emulated(last), number("usd_per_month"), number("tco_saved")) {
        (false, ..) => real.as_f64(),
        (true, Some(paid), Some(share)) if share < 1.0 => Some(paid * share / (1.0 - share)),
        _ => None,
    };
    let Some((paid, saved)) = number("usd_per_month").zip(saved) else {
        return "- of - a month".into();
    };
    let text = format!("{saved:.2} USD of {:.2} USD a month", paid + saved);
    match is_emulated(last) {
        true => format!("{text} (as if emulated media were real; without them {})", money(real)),
        false => text,
    }
}

fn policy(last: &Value) -> String {
    format!("{}, tiers {}{}", text(&last["policy"]), text(&last["preset"]), knobs::words(last))
}

/// What the cold-age policy knows, in a line.
fn cold_age(facts: &Value) -> String {
    let percent = |key: &str, digits: usize| match facts[key].as_f64() {
        Some(share) => format!("{:.*} %", digits, share * 100.0),
        None => "-".into(),
    };
    let threshold = match facts["threshold_s"].as_f64() {
        Some(seconds) => format!("{seconds:.1} s"),
        None => "none".into(),
    };
    let pages = |key: &str| bytes(facts[key].as_u64().map(|p| p.saturating_mul(PAGE_BYTES)));
    let mut out = format!(
        "threshold {threshold}; {} of the working set ({}) came back in minute {}, {} allowed; \
         {} of {} cold is far",
        percent("promotion_rate", 3),
        pages("working_set_pages"),
        number(&facts["minutes"]),
        percent("promotion_rate_allowed", 3),
        percent("coverage", 1),
        pages("cold_pages"),
    );
    for (key, what) in [("is_warm", "warming up"), ("is_at_limit", "at the memory limit")] {
        if facts[key] == (key == "is_at_limit") {
            out += &format!("; {what}: nothing is demoted");
        }
    }
    out
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or("-")
}

fn money(value: &Value) -> String {
    value.as_f64().map_or("-".into(), |usd| format!("{usd:.2} USD"))
}

/// Whole numbers as they are, others with one digit.
fn number(value: &Value) -> String {
    match (value.as_u64(), value.as_f64()) {
        (Some(n), _) => n.to_string(),
        (None, Some(x)) => format!("{x:.1}"),
        (None, None) => "-".into(),
    }
}

/// Moves are a count, or one object a move.
fn moves(value: &Value) -> String {
    value.as_array().map_or_else(|| number(value), |list| list.len().to_string())
}

fn bytes(bytes: Option<u64>) -> String {
    bytes.map_or("-".into(), human_bytes)
}

fn human_seconds(seconds: f64) -> String {
    let whole = seconds.max(0.0) as u64;
    match whole {
        0..=119 => format!("{whole} s"),
        120..=7_199 => format!("{} min", whole / 60),
        _ => format!("{} h", whole / 3_600),
    }
}
