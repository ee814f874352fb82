//! Explanations as a person reads them.

use std::fmt::Write as _;

use serde_json::Value;

use super::{money, never_done, scored};
use crate::doctor::human_bytes;
use crate::knobs;

const PAGE_BYTES: u64 = 4096;

/// The row of what is resident and in no region that is followed.
const NOT_FOLLOWED: &str = "not followed";

/// What was asked about an application.
pub(super) fn application(answer: &Value) -> String {
    let mut out = head(answer);
    let w = &mut out;
    lost(w, answer);
    budget(w, answer);
    if let Some(gap) = answer["gap"].as_f64() {
        let _ =
            writeln!(w, "  optimum   the plan is at most {:.2} % from the best one", gap * 100.0);
    }
    price(w, answer);
    tiers(w, answer);
    groups(w, answer);
    let limits = list(&answer["limits"]);
    heading(w, "what keeps it from saving more", limits.is_empty());
    for limit in limits {
        let (usd, size) = (dollars(&limit["usd_per_month"]), pages(&limit["pages"]));
        let _ = writeln!(w, "  {usd:>10} USD a month  {size:>10}  {}", text(&limit["text"]));
    }
    let refusals = list(&answer["refusals"]);
    heading(w, "pages that tiers refused, since the start", refusals.is_empty());
    for refusal in refusals {
        let n = refusal["pages"].as_u64().unwrap_or(0);
        let (what, remedy) = (text(&refusal["text"]), text(&refusal["remedy"]));
        let _ = writeln!(w, "  {n:>10}  {what}\n{:>12}{remedy}", "");
    }
    hindsight(w, &answer["hindsight"]);
    plans(w, answer);
    let ended = list(&answer["ended"]);
    heading(w, "the last demotions that ended", ended.is_empty());
    for record in ended {
        let _ = writeln!(w, "  0x{:012x}  {}", number(&record["region"]) as u64, sentence(record));
    }
    out
}

/// What was asked about an address.
pub(super) fn region(answer: &Value) -> String {
    let mut out = head(answer);
    let w = &mut out;
    let address = answer["address"].as_u64().unwrap_or(0);
    let mapping = &answer["mapping"];
    let named = match (mapping["start"].as_u64(), mapping["end"].as_u64()) {
        (Some(start), Some(end)) => format!(
            "in {start:012x}-{end:012x} {} {}",
            text(&mapping["perms"]),
            or(text(&mapping["name"]), "anonymous")
        ),
        _ => "in no mapping".into(),
    };
    let page = match answer["page"].as_str() {
        Some("in_dram") => "; its page is in DRAM now",
        Some(_) => "; its page is not in DRAM now",
        None => "",
    };
    let _ = writeln!(w, "\naddress     0x{address:012x} {named}{page}");
    if answer["tracked"] == false {
        let _ = writeln!(w, "not tracked {}", text(&answer["why_not"]));
    } else {
        one_region(w, answer);
    }
    let past = list(&answer["past"]);
    heading(w, "its past moves, the newest first", past.is_empty());
    for record in past {
        let _ = writeln!(w, "  {}", sentence(record));
    }
    out
}

fn where_pages_are(region: &Value) -> String {
    let [pages, resident, resting, stored] =
        ["pages", "resident_pages", "resting_pages", "stored_pages"]
            .map(|key| number(&region[key]));
    let of_dram = match resting > 0.0 {
        true => format!(" ({resting} of them back so lately, or so often, that they stay for now)"),
        false => String::new(),
    };
    let of_stored = match stored > 0.0 {
        true => format!(" ({})", text(&region["tier"])),
        false => String::new(),
    };
    format!("{pages} pages with data, {resident} in DRAM{of_dram}, {stored} stored{of_stored}")
}

fn one_region(w: &mut String, answer: &Value) {
    let region = &answer["region"];
    let (start, end) = (number(&region["start"]) as u64, number(&region["end"]) as u64);
    let _ = writeln!(w, "region      0x{start:012x} to 0x{end:012x}: {}", where_pages_are(region));
    let windows: Vec<String> = list(&region["touched_newest_first"])
        .iter()
        .rev()
        .map(|pages| pages.as_u64().map_or("-".into(), |n| n.to_string()))
        .collect();
    let _ = writeln!(
        w,
        "touched     {:.1} pages a window on average; last windows, oldest first: {}",
        number(&region["touched_pages"]),
        windows.join(" ")
    );
    let _ = writeln!(w, "decision    {} in window {}", text(&answer["chosen"]), answer["window"]);
    let _ = writeln!(w, "why         {}", text(&answer["why"]));
    price(w, answer);

    let alternatives = list(&answer["alternatives"]);
    heading(w, "every place it could have", alternatives.is_empty());
    if !alternatives.is_empty() {
        let width = width(alternatives, "tier");
        let _ = writeln!(
            w,
            "    {:width$}  {:>13}  {:>13}  {:>13}  {:>11}  {:>13}",
            "tier", "USD a month", "faults/window", "waits/window", "move, once", "in all, USD"
        );
        for place in alternatives {
            let flag = |key: &str| place[key] == true;
            let mark = if flag("is_chosen") { "=>" } else { "" };
            let here = if flag("is_here") { "  is here" } else { "" };
            let best = if flag("is_best") { "  least in all" } else { "" };
            let _ = writeln!(
                w,
                " {mark:>2} {:width$}  {:>13}  {:>13.1}  {:>13}  {:>11}  {:>13}{here}{best}",
                text(&place["tier"]),
                dollars(&place["usd_per_month"]),
                number(&place["faults_per_window"]),
                micros(number(&place["stall_us_per_window"])),
                micros(number(&place["move_cpu_us"])),
                dollars(&place["usd_per_month_in_all"]),
            );
        }
    }
    if answer["open"].is_object() {
        let _ = writeln!(w, "\nhindsight   so far: {}", sentence(&answer["open"]));
    }
}

fn head(answer: &Value) -> String {
    let policy = &answer["policy"];
    let knobs = knobs::words(policy);
    format!(
        "{} (pid {}, session {}), window {} of {} s each\n  policy    {}, tiers {}{knobs}\n  \
         plan      {}\n",
        text(&answer["command"]),
        answer["pid"],
        answer["supervisor_pid"],
        answer["window"],
        answer["window_s"],
        text(&policy["kind"]),
        text(&policy["preset"]),
        text(&policy["why"])
    )
}

/// What the last window took from the program, by cause.
fn lost(w: &mut String, answer: &Value) {
    let lost = &answer["lost"];
    let Some(running_ms) = lost["running_ms"].as_f64().filter(|ms| *ms > 0.0) else {
        return;
    };
    let share = |cause: &str| number(&lost[cause]) / running_ms * 100.0;
    let causes = ["tiers_ms", "watching_ms", "fresh_ms", "processor_ms"].map(share);
    let [tiers, watching, fresh, processor] = causes;
    let all: f64 = causes.iter().sum();
    let _ = writeln!(
        w,
        "  lost      {all:.2} % of {running_ms:.0} ms in the last window: {tiers:.2} waiting for \
         tiers, {watching:.2} for samples, {fresh:.2} for fresh memory, {processor:.2} of \
         processor time"
    );
}

fn budget(w: &mut String, answer: &Value) {
    let budget = &answer["budget"];
    if budget.is_null() {
        return;
    }
    let amount = |key: &str| match budget["of"].as_str() {
        Some("money") => dollars(&budget[key]),
        _ => format!("{:.1}", number(&budget[key])),
    };
    let _ = writeln!(
        w,
        "  budget    {} {} allowed, {} spent by the plan, {} left",
        amount("allowed"),
        text(&budget["unit"]),
        amount("spent"),
        amount("left")
    );
}

fn price(w: &mut String, answer: &Value) {
    let from = match answer["usd_per_stall_s_is_from_plan"] == true {
        true => "at the edge of the plan's budget",
        false => "by default: a second of a core at 8 times the price of a GiB of DRAM",
    };
    let usd = dollars(&answer["usd_per_stall_s"]);
    let label = if answer["region"].is_object() { "time        " } else { "  time      " };
    let _ = writeln!(w, "{label}a second of waiting is worth {usd} USD, {from}");
}

fn tiers(w: &mut String, answer: &Value) {
    let tiers = list(&answer["tiers"]);
    let width = width(tiers, "name").max(NOT_FOLLOWED.len());
    let _ = writeln!(
        w,
        "\n  {:width$}  {:>9}  {:>5}  {:>9}  {:>18}  {:>10}  {:>10}",
        "tier", "USD/GiB", "ratio", "USD kept", "fault", "data", "planned"
    );
    for (n, tier) in tiers.iter().enumerate() {
        let measured = if tier["fault_us_is_measured"] == true { "measured" } else { "estimated" };
        let fault = match n {
            0 => "-".into(),
            _ => format!("{:.1} us {measured:9}", number(&tier["fault_us"])),
        };
        let _ = writeln!(
            w,
            "  {:width$}  {:>9.2}  {:>5.2}  {:>9.3}  {fault:>18}  {:>10}  {:>10}{}",
            text(&tier["name"]),
            number(&tier["usd_per_gib_month"]),
            number(&tier["ratio"]),
            number(&tier["usd_per_gib_month_kept"]),
            pages(&tier["pages"]),
            pages(&tier["recommended_pages"]),
            if tier["emulated"] == true { "  emulated" } else { "" },
        );
    }
    if let Some(bytes) = answer["untracked_bytes"].as_u64() {
        let fill = 9 + 5 + 9 + 18 + 2 * 4;
        let _ = writeln!(w, "  {NOT_FOLLOWED:width$}{:fill$}  {:>10}", "", human_bytes(bytes));
    }
}

fn groups(w: &mut String, answer: &Value) {
    let groups = list(&answer["groups"]);
    heading(w, "its memory, neighbouring regions together, the largest first", groups.is_empty());
    let names: Vec<&str> = list(&answer["tiers"]).iter().map(|t| text(&t["name"])).collect();
    for group in groups {
        if let Some(others) = group["others"].as_u64() {
            let _ = writeln!(w, "  and {others} others with {}", pages(&group["pages"]));
            continue;
        }
        let regions = list(&group["regions_in"]);
        let places: Vec<String> = names
            .iter()
            .zip(regions)
            .filter(|(_, n)| n.as_u64().unwrap_or(0) > 0)
            .map(|(name, n)| format!("{n} in {name}"))
            .collect();
        let _ = writeln!(
            w,
            "  0x{:012x}  {:>10}, {:>10} in DRAM, {:>8.0} pages touched a window; regions: {}{}",
            // The first address that is mapped, which can be asked about.
            number(group.get("address").unwrap_or(&group["start"])) as u64,
            pages(&group["pages"]),
            pages(&group["resident_pages"]),
            number(&group["touched_pages"]),
            places.join(", "),
            match group["mapping"].as_str() {
                Some(name) if !name.is_empty() => format!("  {name}"),
                _ => String::new(),
            }
        );
    }
}

fn hindsight(w: &mut String, all: &Value) {
    let none = all["demotions"].as_u64().unwrap_or(0) == 0;
    heading(w, "hindsight", none);
    if none {
        return;
    }
    let one = |w: &mut String, name: &str, tally: &Value| {
        let _ = writeln!(
            w,
            "  {name}: {} demotions, {} right ({}); saved {} USD for {} of waiting and {} of \
             moving; regret {} USD",
            scored(tally),
            share(&tally["share_right"]),
            verdicts(tally),
            dollars(&tally["saved_usd"]),
            micros(number(&tally["stall_ms"]) * 1e3),
            micros(number(&tally["move_cpu_ms"]) * 1e3),
            dollars(&tally["regret_usd"]),
        );
    };
    one(w, "all tiers", all);
    for tier in list(&all["tiers"]).iter().filter(|t| t["demotions"].as_u64() != Some(0)) {
        one(w, text(&tier["name"]), tier);
    }
    let _ = writeln!(
        w,
        "  {} regions were brought home by plan; {} of them went down again within {} windows",
        all["promotions"], all["ping_pongs"], all["ping_pong_windows"]
    );
}

/// What became of demotions.
fn verdicts(tally: &Value) -> String {
    let count = |key: &str| tally[key].as_u64().unwrap_or(0);
    let mut text = format!("{} ended wrong", count("wrong"));
    let (wrong, begun) = (count("open_wrong"), count("open_wrong") + count("open_right"));
    if begun > 0 {
        text += &format!(", {wrong} of the {begun} that go on are wrong so far");
    }
    text += &never_done(tally);
    match count("open").saturating_sub(begun) {
        0 => text,
        n => format!("{text}, {n} not begun"),
    }
}

fn plans(w: &mut String, answer: &Value) {
    let plans = list(&answer["plans"]);
    heading(w, "the last plans that moved anything, the newest first", plans.is_empty());
    for plan in plans {
        let moves: Vec<String> = list(&plan["moves"])
            .iter()
            .map(|m| {
                let (from, to) = (text(&m["from"]), text(&m["to"]));
                let how = match from == to {
                    true => format!("down to {to} again"),
                    false => format!("from {from} to {to}"),
                };
                format!("{} regions ({}) {how}", m["regions"], pages(&m["pages"]))
            })
            .collect();
        let _ = writeln!(w, "  window {}: {}", plan["window"], moves.join("; "));
    }
}

/// A record in words.
fn sentence(record: &Value) -> String {
    let verdict = match (record["end"].as_str(), record["is_right"] == true) {
        (Some("not_done"), _) => "never done",
        _ if record["is_right"].is_null() => "not begun",
        (_, true) => "right",
        (_, false) => "wrong",
    };
    let until = record["until_window"].as_u64();
    let when = match until {
        Some(until) => format!("windows {} to {until}", record["window"]),
        None => format!("since window {}", record["window"]),
    };
    let end = match record["end"].as_str() {
        Some("came_back") => ", came back",
        Some("promoted") => ", brought home",
        Some("moved_on") => ", moved on",
        Some("gone") => ", then gone",
        Some("run_ended") => ", then the run ended",
        _ => "",
    };
    format!(
        "{when}, {} to {}: {verdict}{end}; saved {} USD; {} pages came back, {} of waiting and \
         {} of moving; in all {} USD",
        text(&record["from"]),
        text(&record["to"]),
        dollars(&record["saved_usd"]),
        record["faults"],
        micros(number(&record["stall_ms"]) * 1e3),
        micros(number(&record["move_cpu_ms"]) * 1e3),
        dollars(&record["balance_usd"]),
    )
}

fn heading(w: &mut String, text: &str, is_empty: bool) {
    if !is_empty {
        let _ = writeln!(w, "\n{text}");
    }
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn width(rows: &[Value], key: &str) -> usize {
    rows.iter().filter_map(|row| row[key].as_str()).map(str::len).max().unwrap_or(4).max(4)
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or("-")
}

fn or<'a>(text: &'a str, other: &'a str) -> &'a str {
    if text.is_empty() {
        other
    } else {
        text
    }
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or(0.0)
}

fn dollars(value: &Value) -> String {
    value.as_f64().map_or("-".into(), money)
}

fn share(value: &Value) -> String {
    value.as_f64().map_or("-".into(), |s| format!("{:.1} %", s * 100.0))
}

fn pages(value: &Value) -> String {
    value.as_u64().map_or("-".into(), |n| human_bytes(n.saturating_mul(PAGE_BYTES)))
}

/// Microseconds in a unit that fits.
fn micros(us: f64) -> String {
    match us.abs() {
        x if x < 0.05 => "0 us".into(),
        x if x < 1e3 => format!("{us:.1} us"),
        x if x < 1e6 => format!("{:.1} ms", us / 1e3),
        _ => format!("{:.2} s", us / 1e6),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn demotions_that_are_counted_are_those_that_were_scored() {
        let mut out = String::new();
        let all = json!({
            "demotions": 40, "right": 5, "wrong": 1, "open": 22, "open_right": 15, "open_wrong": 4,
            "not_done": 12, "share_right": 0.8, "tiers": [],
        });
        hindsight(&mut out, &all);
        let said = "all tiers: 25 demotions, 80.0 % right (1 ended wrong, 4 of the 19 that go on \
                    are wrong so far, 12 never done, 3 not begun); saved";
        assert!(out.contains(said), "{out}");
        assert_eq!(verdicts(&json!({ "wrong": 2 })), "2 ended wrong");
    }

    #[test]
    fn a_region_says_where_its_pages_are_and_why_some_stay() {
        let region = |resident: u64, resting: u64| {
            where_pages_are(&json!({
                "pages": 512, "resident_pages": resident, "resting_pages": resting,
                "stored_pages": 512 - resident, "tier": "zstd",
            }))
        };
        assert_eq!(region(512, 0), "512 pages with data, 512 in DRAM, 0 stored");
        assert_eq!(region(2, 0), "512 pages with data, 2 in DRAM, 510 stored (zstd)");
        let some = region(90, 70);
        assert!(some.starts_with("512 pages with data, 90 in DRAM (70 of them back so"), "{some}");
        assert!(some.ends_with("stay for now), 422 stored (zstd)"), "{some}");
    }
}
