//! The command line: which seeds, and what is said of them.
//!
//! Seeds run in batches, each in a process of its own: what the runtime takes for good is given
//! back with it, and a seed that ends its process is only one seed that failed.

use crate::world::{self, Setting};
use crate::{pairs, table};
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::Instant;

/// Seeds of a batch.
const BATCH: u64 = 500;
/// Seeds of a test run.
const TEST_RUNS: u64 = 20_000;
/// From so many seeds on every pair that can happen must have happened: the rarest comes five times
/// in 10,000.
const COVERED_FROM: u64 = 20_000;

const USAGE: &str = "\
the runtime against a fake kernel, from a seed (docs/simulation.md)
  (nothing)            the table of states and events, kept seeds, and 20000 seeds
  --runs N [--from M]  N seeds, M being the first
  --seed N             one seed, with a line for each step
  --soak [--from M]    seeds until one fails or it is interrupted
  --pairs              with --runs: print how often each pair was met
  --keep-going         do not stop at the first batch with a violation";

/// Seeds that fail if something that was mended is undone, and what.
const KEPT: &[(u64, &str)] = &[
    (79, "a fault or a call that was handled before a change of the same read"),
    (57, "an unmap behind an mremap took what the child still missed"),
    (1267, "a staged page came home while a fork waited unhandled"),
    (55567, "a child was given what its parent wrote to a hole after the fork"),
    (95009, "a re-registration that unmapped pages broke off, with pages of the region out"),
    (7846, "a removal of pages in a region that nobody had a record of"),
    (1803, "a child of a child that its parent's feeding did not know"),
    (98, "a mapping that went away just when its registration had been ended"),
    (5777, "the same"),
    (
        3_011_247,
        "a mapping that moved while children were given all memory, and was kept from them",
    ),
    (
        425_706,
        "without fork events, a mapping that came in the place of one that was being registered, \
         and moved on, stayed kept from children",
    ),
    (273_694, "an unmapping that follows a move came when the next mapping had moved on as well"),
    (299_267, "what another mapping had just been mapped over was being registered anew"),
    (
        567_326,
        "a mapping that had moved, shrunk and grown again in place: its unmapping passed for one \
         from before the move",
    ),
    (
        199_666,
        "an unmapping from before a move came when what had moved there was moving on: its thread \
         had run on, and the hole it then made passed for the unmapping's",
    ),
    (
        7_100_591,
        "an unmapping whose range another call had grown a mapping into, whose beginning a third \
         had cut off: what was left passed for what had stayed",
    ),
    (
        1_640_335,
        "without fork events, a mapping that grew in place while children were given all memory \
         again: the part it grew by stayed kept from them",
    ),
    (
        2_730_232,
        "without UFFDIO_MOVE, a stopper that had left: the pages of another mapping at the same \
         place passed for those that had been marked, whose mapping was moving away",
    ),
    (
        3_274_920,
        "a mapping moved to where another had left, and its event came first: what it had brought \
         there passed for the other, whose move was then taken for one from before",
    ),
    (
        4_077_740,
        "a page that the kernel moved without saying so was voided, and lay in the slot still when \
         it was to go there once more",
    ),
    (
        21_168_513,
        "a mapping that had moved to where another was unmapped, larger than before, and moved on: \
         the part it grew by passed for what had stayed, and brought the other's page along",
    ),
    (
        25_692_244,
        "a mapping shrank, grew in place and lost the beginning of what it had grown by, before \
         its end was voided: what was held there was read as new memory",
    ),
];

/// Whether this seed is kept for what it found.
pub fn is_kept(seed: u64) -> bool {
    KEPT.iter().any(|(kept, _)| *kept == seed)
}

/// Runs what is asked for; the exit status.
pub fn run() -> i32 {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let has = |name: &str| args.iter().any(|a| a == name);
    let value = |name: &str| {
        let at = args.iter().position(|a| a == name)?;
        args.get(at + 1)?.parse::<u64>().ok()
    };
    if has("--help") {
        println!("{USAGE}");
        return 0;
    }
    if let Some(seed) = value("--seed") {
        return one(seed);
    }
    let from = value("--from").unwrap_or(0);
    if let Some(runs) = value("--batch") {
        return batch(from, runs);
    }
    if has("--soak") {
        return many(from, u64::MAX - from, false, false);
    }
    let runs = value("--runs");
    if runs.is_none() {
        // As a test.
        if let Err(why) = table::check() {
            println!("the table of states and events: {why}");
            return 1;
        }
        for (seed, what) in KEPT {
            if let Err(why) = world::run(&Setting::of(*seed)) {
                println!("seed {seed} ({what}): {why}");
                return 1;
            }
        }
    }
    many(from, runs.unwrap_or(TEST_RUNS), has("--pairs"), has("--keep-going"))
}

/// What the runtime says when it ends the program because of two threads' changes of the same
/// addresses no order makes sense but several (`pager/order.rs`). In the simulation threads do that
/// all the time; it is no violation, as long as it is rare.
const UNKNOWABLE: &str = "in an order that cannot be known";
const ENDED: &str = "ended on purpose:";
const ENDED_MAX_ONE_IN: u64 = 2000;

/// One seed, with its trace.
fn one(seed: u64) -> i32 {
    let setting = Setting { verbose: true, ..Setting::of(seed) };
    println!("{setting:#?}");
    match world::run(&setting) {
        Ok(steps) => {
            println!("seed {seed}: no violation in {steps} steps");
            0
        }
        Err(why) => {
            println!("seed {seed}: {why}");
            1
        }
    }
}

/// A batch in this process, for the process that reads the lines.
fn batch(from: u64, runs: u64) -> i32 {
    let mut steps = 0;
    for seed in from..from.saturating_add(runs) {
        println!("at {seed}");
        match world::run(&Setting::of(seed)) {
            Ok(n) => steps += n,
            Err(why) if why.contains(UNKNOWABLE) => println!("ended {seed} {why}"),
            Err(why) => println!("bad {seed} {why}"),
        }
    }
    let counts: Vec<String> = pairs::counts().iter().map(u64::to_string).collect();
    println!("steps {steps}");
    println!("counts {}", counts.join(" "));
    0
}

/// Many seeds, batch by batch.
fn many(from: u64, runs: u64, show_pairs: bool, keep_going: bool) -> i32 {
    let start = Instant::now();
    let (mut done, mut bad, mut ended, mut steps) = (0u64, 0u64, 0u64, 0u64);
    let mut counts = vec![0u64; pairs::counts().len()];
    let mut told = Instant::now();
    while done < runs && (bad == 0 || keep_going) {
        let size = BATCH.min(runs - done);
        let (failed, lines) = one_batch(from + done, size, &mut steps, &mut counts);
        bad += failed;
        ended += lines.iter().filter(|line| line.starts_with(ENDED)).count() as u64;
        for line in lines {
            println!("{line}");
        }
        done += size;
        if told.elapsed().as_secs() >= 30 {
            told = Instant::now();
            let rate = done as f64 / start.elapsed().as_secs_f64();
            println!("{done} seeds, {bad} with a violation, {steps} steps, {rate:.0} seeds/s");
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    let rate = done as f64 / seconds;
    println!(
        "simulation: {done} seeds, {bad} with a violation, {steps} steps, {seconds:.0} s, \
         {rate:.0} seeds/s"
    );
    if show_pairs {
        println!("{}", pairs::show(&counts));
    }
    if bad > 0 {
        return 1;
    }
    if ended * ENDED_MAX_ONE_IN > done.max(ENDED_MAX_ONE_IN) {
        println!("{ended} seeds were ended: too many");
        return 1;
    }
    let missing = pairs::missing(&counts);
    if done >= COVERED_FROM && !missing.is_empty() {
        println!("never met, though it can happen: {}", missing.join(", "));
        return 1;
    }
    0
}

/// Runs a batch in a process of its own. How many seeds failed, and what to say of them.
fn one_batch(from: u64, size: u64, steps: &mut u64, counts: &mut [u64]) -> (u64, Vec<String>) {
    let (mut bad, mut lines) = (0, Vec::new());
    let mut next = from;
    while next < from + size {
        let me = std::env::current_exe().expect("this program");
        let (first, count) = (next.to_string(), (from + size - next).to_string());
        let child = Command::new(me)
            .args(["--batch", &count, "--from", &first])
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn();
        let mut child = child.expect("a process");
        let (mut at, mut is_whole) = (next, false);
        let out = child.stdout.take().expect("its output");
        for line in BufReader::new(out).lines().map_while(Result::ok) {
            match line.split_once(' ') {
                Some(("at", n)) => at = n.parse().unwrap_or(at),
                Some(("bad", what)) => {
                    bad += 1;
                    lines.push(violation(what));
                }
                Some(("ended", what)) => {
                    let seed = what.split(' ').next().unwrap_or_default();
                    lines.push(format!("{ENDED} seed {seed}: {UNKNOWABLE}"));
                }
                Some(("steps", n)) => *steps += n.parse::<u64>().unwrap_or(0),
                Some(("counts", list)) => {
                    is_whole = true;
                    for (sum, n) in counts.iter_mut().zip(list.split(' ')) {
                        *sum += n.parse::<u64>().unwrap_or(0);
                    }
                }
                _ => {}
            }
        }
        let _ = child.wait();
        if !is_whole {
            bad += 1;
            lines.push(violation(&format!("{at} ended its process")));
            next = at + 1;
        } else {
            next = from + size;
        }
    }
    (bad, lines)
}

fn violation(what: &str) -> String {
    let (seed, why) = what.split_once(' ').unwrap_or((what, ""));
    format!("seed {seed}: {why}\n  again, with its trace: make sim SEED={seed}")
}
