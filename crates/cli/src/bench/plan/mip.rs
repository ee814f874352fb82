//! The same problem given to HiGHS, a general solver of integer programs, for comparison.
//!
//! It is reached through `python3` and scipy (`TERRACE_PYTHON` names another interpreter), so that
//! nothing of it is built into Terrace. Its time is that of the solver alone: neither Python's
//! start nor building the matrix counts.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{ensure, Context, Result};
use serde::{Deserialize, Serialize};
use terrace_core::plan::limits::Limit;
use terrace_core::plan::mckp::Choices;

/// The program that does it.
const SCRIPT: &str = include_str!("mip.py");

/// What HiGHS made of the problem.
#[derive(Clone, Serialize, Deserialize, Debug)]
pub struct Mip {
    /// Time it took, in seconds, for an answer proven to 0.1 % or until it was stopped.
    pub seconds: f64,
    /// Time in faults and moves of its answer, as our solver counts it; none if it has no answer.
    pub perf: Option<f64>,
    /// What no answer can be below, by its proof.
    pub bound: Option<f64>,
    /// False if it was stopped.
    pub finished: bool,
}

impl Mip {
    /// One line for a person; `ours` is our answer's time.
    pub fn line(&self, ours: f64) -> String {
        let found = match (self.perf, self.finished) {
            (None, _) => "found nothing".to_owned(),
            (Some(perf), finished) => {
                let better = (ours / perf - 1.0) * 100.0;
                let how = if finished { "ended" } else { "was stopped" };
                format!("{how}, our answer takes {better:+.5} % of its time")
            }
        };
        format!("HiGHS {found} after {:.2} s", self.seconds)
    }
}

/// Gives the problem to HiGHS.
pub(super) fn solve<C: Choices>(
    costs: &C,
    limits: &[Limit],
    budget: f64,
    seconds_max: u32,
) -> Result<Mip> {
    let dir = Scratch::new()?;
    let (script, problem) = (dir.0.join("mip.py"), dir.0.join("problem"));
    fs::write(&script, SCRIPT).context("cannot write the script")?;
    fs::write(&problem, encode(costs, limits, budget, seconds_max))
        .context("cannot write the problem")?;
    let python = std::env::var_os("TERRACE_PYTHON").unwrap_or_else(|| "python3".into());
    let out = Command::new(&python)
        .args([&script, &problem])
        .output()
        .with_context(|| format!("--mip: {} cannot be run", python.display()))?;
    ensure!(
        out.status.success(),
        "--mip: HiGHS could not be asked; it needs numpy and scipy 1.9 or later \
         (TERRACE_PYTHON names an interpreter that has them): {}",
        String::from_utf8_lossy(&out.stderr).trim()
    );
    serde_json::from_slice(&out.stdout).context("--mip: the answer is not JSON")
}

fn encode<C: Choices>(costs: &C, limits: &[Limit], budget: f64, seconds_max: u32) -> Vec<u8> {
    let mut numbers = vec![
        costs.items() as f64,
        costs.options() as f64,
        limits.len() as f64,
        budget,
        f64::from(seconds_max),
    ];
    for limit in limits {
        let set = (0..costs.options()).filter(|&o| limit.counts(o)).fold(0u32, |s, o| s | 1 << o);
        numbers.extend([limit.bytes(), f64::from(set)]);
    }
    let tables: [fn(&C, usize, usize) -> f64; 3] = [C::perf, C::tco, C::bytes];
    for table in tables {
        for item in 0..costs.items() {
            numbers.extend((0..costs.options()).map(|option| table(costs, item, option)));
        }
    }
    numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
}

/// A directory of our own, gone with its owner.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Result<Scratch> {
        let path = std::env::temp_dir().join(format!("terrace-mip-{}", std::process::id()));
        fs::create_dir_all(&path).with_context(|| format!("cannot create {}", path.display()))?;
        Ok(Scratch(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // What is left is a few files in the machine's temporary directory.
        let _ = fs::remove_dir_all(&self.0);
    }
}
