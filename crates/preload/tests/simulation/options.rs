//! The command line: which seeds, and what to say of them.

use crate::world::{self, Setting};
use std::time::Instant;

/// Runs what is asked for; the exit status.
pub fn run() -> i32 {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let value = |name: &str| {
        let at = args.iter().position(|a| a == name)?;
        args.get(at + 1)?.parse::<u64>().ok()
    };
    if let Some(seed) = value("--seed") {
        let setting = Setting { verbose: true, ..Setting::of(seed) };
        println!("{setting:#?}");
        return match world::run(&setting) {
            Ok(steps) => {
                println!("seed {seed}: no violation in {steps} steps");
                0
            }
            Err(why) => {
                println!("seed {seed}: {why}");
                1
            }
        };
    }
    let (from, runs) = (value("--from").unwrap_or(0), value("--runs").unwrap_or(1000));
    let start = Instant::now();
    let (mut bad, mut steps) = (0, 0);
    for seed in from..from + runs {
        match world::run(&Setting::of(seed)) {
            Ok(n) => steps += n,
            Err(why) => {
                println!("seed {seed}: {why}");
                bad += 1;
            }
        }
    }
    let s = start.elapsed().as_secs_f64();
    println!("{runs} seeds, {bad} violations, {steps} steps, {:.0} seeds/s", runs as f64 / s);
    i32::from(bad > 0)
}
