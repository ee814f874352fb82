//! `terrace explain PID [ADDRESS]`: why a program's memory is where it is.
//!
//! The session that plans for the program is asked over the socket that `terrace status` uses, one
//! line each way: a [`Question`], and an object of the fields that `--help` lists. What the answer
//! says of decisions is the planner's own (`run/answer.rs`); what lies at an address is read from
//! `/proc/PID` here ([`place`]).

use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::time::Duration;

use anyhow::{bail, ensure, Context, Result};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::run::trusted_peer;
use crate::status::{self, Found};

pub mod place;
mod table;

/// An answer weighs every tier for every region: a second for 1,000,000 of them, more on a machine
/// that is busy.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);

/// Bounds what a broken session can make us read.
const ANSWER_MAX_BYTES: u64 = 16 << 20;

/// What `--help` says at its end.
const JSON_HELP: &str = "\
JSON (--json), for an application:
  pid, command, supervisor_pid, window, window_s   who, and the window of the last plan
  policy        kind, preset, cooling_windows, why (a sentence), and the knobs in force, the others
                null: alpha, budget_money (as the option takes it), max_slowdown (a share),
                threshold, two_tier, promotion_rate (a share a minute)
  lost          what the last window took from the program, as in docs/timeline.md; null if that
                is not known
  usd_per_stall_s   what a second of waiting is worth to the plan, US dollars;
                usd_per_stall_s_is_from_plan: else it is the default, a second of a core at 8
                times the price of a GiB of DRAM
  budget        of (time, money or data), unit, allowed, spent, left; with a slowdown also
                slowdown_accepted and slowdown_newest, as shares; of an amount of money what it
                leaves for followed regions, or all of it if it cannot be kept; null if there is
                none
  gap           how far the plan may be from the best one, a share; null if not known
  tiers[]       name, fault_us, fault_us_is_measured, ratio (stored / original bytes),
                usd_per_gib_month (of the medium), usd_per_gib_month_kept (of data kept there),
                emulated, pages (now), recommended_pages (of the plan), faults_total; the first is
                DRAM, with what is resident of followed regions
  untracked_bytes   resident memory of the program that is not followed
  groups[]      neighbouring regions of 2 MiB: start, end, regions, pages, resident_pages,
                touched_pages (a window), regions_in[] (by tier, as planned), mapping, address (the
                first that is mapped); the last may be {others, pages}
  limits[]      what keeps it from saving more: what, pages, usd_per_month (what the cheapest tier
                would save), text
  refusals[]    reason, pages (since the start), text, remedy
  hindsight     as in docs/timeline.md
  plans[]       the last plans that moved anything, newest first: window, why, moves[]: from,
                to, regions, pages
  ended[]       the last demotions that ended, newest first: records, see below

for an address: pid to usd_per_stall_s_is_from_plan as above, and
  address, mapping  {start, end, perms, name} or null
  page          in_dram, not_in_dram, or null if it cannot be told
  tracked       whether Terrace follows it; if not, why_not says why, and the rest is missing
  region        start, end, pages, resident_pages, resting_pages (of those in DRAM, what came
                back so lately that it stays), stored_pages, tier, touched_pages (a window,
                averaged), touched_newest_first[] (null: not seen), windows_seen
  chosen, why   the tier that the last plan chose, and the reason in words
  alternatives[]    every tier: tier, usd_per_month (of this region), faults_per_window,
                stall_us_per_window, move_cpu_us (once), usd_per_month_in_all (time at the price
                above), is_chosen, is_here, is_best
  open          the record of the demotion that it is in, or null
  past[]        its records that ended, newest first
a record: region, window (of the plan), from, to, touched_pages (as known then), pages, faults,
  saved_usd, stall_ms, move_cpu_ms, usd_per_stall_s, balance_usd, is_right (null: not begun),
  again_after_windows;
  one that ended also until_window, and end: came_back, promoted, moved_on, gone, run_ended or
  not_done (docs/explain.md)
Addresses in JSON are decimal numbers.";

/// Options of `terrace explain`.
#[derive(clap::Args, Clone, Debug)]
#[command(after_long_help = JSON_HELP)]
pub struct ExplainArgs {
    /// The program, or its `terrace run` if that has only one
    pid: u32,
    /// An address in it, in hexadecimal: explain the 2 MiB region that holds it
    #[arg(value_parser = parse_address)]
    address: Option<u64>,
    /// Print JSON; the fields are listed at the end of --help
    #[arg(long)]
    json: bool,
    /// How many groups, past moves and decisions to show
    #[arg(long, value_name = "N", default_value_t = 8,
          value_parser = clap::value_parser!(u16).range(1..=1000))]
    top: u16,
}

/// What is asked, as one line of JSON.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Question {
    /// `explain`.
    ask: String,
    /// The application's process id.
    pub pid: u32,
    /// An address in it; none asks about all of it.
    pub address: Option<u64>,
    /// How many groups and past moves to name.
    pub top: usize,
}

impl Question {
    const ASK: &'static str = "explain";

    /// A question from its line; `None` if the line is none.
    pub fn parse(line: &str) -> Option<Question> {
        let question: Question = serde_json::from_str(line).ok()?;
        (question.ask == Question::ASK).then_some(question)
    }
}

/// An address as programs print it (`0x7f..`) or as `/proc/PID/maps` does (`7f..`).
fn parse_address(text: &str) -> Result<u64, String> {
    let digits = text.strip_prefix("0x").or(text.strip_prefix("0X")).unwrap_or(text);
    u64::from_str_radix(digits, 16).ok().filter(|a| *a < 1 << 47).ok_or_else(|| {
        "not an address of a program; use a hexadecimal number such as 0x7f3a5c000000".to_string()
    })
}

/// Asks, and prints what is answered.
pub fn run(args: ExplainArgs) -> Result<()> {
    let found = status::query_near(args.pid).context("cannot look for sessions")?;
    let (supervisor, pid) = whom_to_ask(&found, args.pid)?;
    let question = Question {
        ask: Question::ASK.into(),
        pid,
        address: args.address,
        top: usize::from(args.top),
    };
    let socket = status::places::find(args.pid, &format!("{supervisor}.sock"))?;
    let mut answer = ask(&socket, &question)?;
    if let Some(why) = answer["error"].as_str() {
        bail!("{why}");
    }
    place::add(&mut answer, pid, args.address);
    if args.json {
        println!("{}", serde_json::to_string_pretty(&answer)?);
    } else if args.address.is_some() {
        print!("{}", table::region(&answer));
    } else {
        print!("{}", table::application(&answer));
    }
    Ok(())
}

/// The session that plans for process `pid`, and the process that is meant; `pid` may be that of
/// the session.
fn whom_to_ask(found: &Found, pid: u32) -> Result<(u32, u32)> {
    let plans_for = |pid| found.sessions.iter().find(move |s| s.processes.contains(&pid));
    if let Some(session) = plans_for(pid) {
        return Ok((session.supervisor_pid, pid));
    }
    if let Some(session) = found.sessions.iter().find(|s| s.supervisor_pid == pid) {
        match session.processes[..] {
            [] => bail!("session {pid} has no program that it plans for now"),
            [one] => return Ok((pid, one)),
            _ => bail!(
                "session {pid} plans for several processes: name one of {:?}",
                session.processes
            ),
        }
    }
    if found.unplanned.contains(&pid) {
        bail!(
            "process {pid} has no planner, so nothing is decided for it; `terrace attach {pid}` \
             gives it one"
        );
    }
    ensure!(Path::new(&format!("/proc/{pid}")).exists(), "there is no process {pid}");
    if let Some(why) = status::places::of_another_user(pid) {
        bail!("{why}");
    }
    if let Some(silent) = found.silent.first() {
        bail!(
            "no session that answers plans for process {pid}; {} does not: {}",
            silent.socket.display(),
            silent.why
        );
    }
    bail!("process {pid} is not under Terrace; `terrace run -- CMD` starts a program that is")
}

/// One question, one answer.
fn ask(socket: &Path, question: &Question) -> Result<Value> {
    let mut stream = status::connect(socket)
        .with_context(|| format!("the session at {} cannot be asked", socket.display()))?;
    ensure!(trusted_peer(&stream).is_some(), "another user listens at {}", socket.display());
    stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
    stream.set_write_timeout(Some(ANSWER_TIMEOUT))?;
    writeln!(stream, "{}", serde_json::to_string(question)?)?;
    let mut line = String::new();
    let read = BufReader::new(stream.take(ANSWER_MAX_BYTES)).read_line(&mut line);
    read.with_context(|| {
        format!("no answer from the session within {} s", ANSWER_TIMEOUT.as_secs())
    })?;
    let answer: Value = serde_json::from_str(&line).context("not an answer of terrace")?;
    // What sessions say to a question they do not know.
    if answer["error"].as_str().is_some_and(|why| why.starts_with("send ")) {
        bail!("its session is of an older terrace, which cannot explain");
    }
    Ok(answer)
}

/// An amount of US dollars with two digits that mean something, however small it is.
pub(crate) fn money(usd: f64) -> String {
    let size = usd.abs();
    if size == 0.0 || !size.is_finite() {
        return "0".into();
    }
    if size < 1e-9 {
        return format!("{usd:.1e}");
    }
    let digits = if size >= 1.0 { 2 } else { 1 - size.log10().floor() as i32 };
    format!("{usd:.*}", digits.max(2) as usize)
}

/// Demotions that hindsight has scored, the open ones as of now: those that a share of right ones
/// is of. What was never carried out has no score.
pub(crate) fn scored(tally: &Value) -> u64 {
    let counts = ["right", "wrong", "open_right", "open_wrong"];
    counts.iter().filter_map(|key| tally[*key].as_u64()).sum()
}

/// The end of a sentence about demotions that were never carried out; empty if there are none.
pub(crate) fn never_done(tally: &Value) -> String {
    match tally["not_done"].as_u64() {
        None | Some(0) => String::new(),
        Some(n) => format!(", {n} never done"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::SessionStatus;

    #[test]
    fn addresses_are_hexadecimal() {
        assert_eq!(parse_address("0x7f0000001000"), Ok(0x7f00_0000_1000));
        assert_eq!(parse_address("7f0000001000"), Ok(0x7f00_0000_1000));
        for bad in ["", "0x", "7g", "-1", "0x800000000000", "ffffffffffffffffff"] {
            assert!(parse_address(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn money_keeps_two_digits() {
        let text = |usd| money(usd);
        assert_eq!(text(12.345), "12.35");
        assert_eq!(text(0.5), "0.50");
        assert_eq!(text(0.000_586), "0.00059");
        assert_eq!(text(-0.000_012_3), "-0.000012");
        assert_eq!((text(0.0), text(3e-12)), ("0".into(), "3.0e-12".into()));
    }

    #[test]
    fn questions_are_told_from_others() {
        let question = Question { ask: "explain".into(), pid: 7, address: Some(4096), top: 3 };
        let line = serde_json::to_string(&question).unwrap();
        assert_eq!(Question::parse(&line), Some(question));
        assert_eq!(Question::parse(status::ASK), None);
        assert_eq!(
            Question::parse("{\"ask\":\"status\",\"pid\":1,\"address\":null,\"top\":1}"),
            None
        );
    }

    #[test]
    fn who_is_meant_and_who_cannot_be_asked() {
        let session = |supervisor_pid, processes: &[u32]| SessionStatus {
            supervisor_pid,
            applications: Vec::new(),
            processes: processes.to_vec(),
            ended_before: status::EndedBefore::default(),
        };
        let me = std::process::id();
        let found = Found {
            sessions: vec![session(1, &[11]), session(2, &[21, 22]), session(3, &[])],
            silent: Vec::new(),
            unplanned: vec![40],
            perhaps_planned: Vec::new(),
        };
        let ask = |pid| whom_to_ask(&found, pid).map_err(|e| e.to_string());
        assert_eq!(ask(22), Ok((2, 22)));
        assert_eq!(ask(1), Ok((1, 11)));
        let why = |pid| ask(pid).expect_err("cannot be asked");
        assert!(why(2).contains("several processes: name one of [21, 22]"), "{}", why(2));
        assert!(why(3).contains("no program"), "{}", why(3));
        assert!(why(40).contains("terrace attach 40"), "{}", why(40));
        assert!(why(me).contains("not under Terrace"), "{}", why(me));
        assert!(why(u32::MAX).contains("there is no process"), "{}", why(u32::MAX));
    }
}
