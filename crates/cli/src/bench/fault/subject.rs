//! One tier measured once: a child under `terrace run` with that tier only, told when to go on.
//!
//! Movement must rest while pages are touched, or what is measured is faults and the fetching away
//! of what just came back. So when everything has left, the planner - `terrace run` itself - is
//! stopped with SIGSTOP: no window closes, no sample is taken, nothing is planned; the runtime in
//! the child goes on serving faults, as it would if the planner had been killed. Afterwards the
//! planner goes on, and its timeline says how many faults the runtime counted meanwhile.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use terrace_core::tier::TierSpec;

use super::child::OUT_SHARE;
use super::passes::Condition;
use crate::bench::kernel_swap::ProbeFigures;
use crate::bench::launched::{terrace_run, toml_of, Running, Window};

/// Short windows: pages leave soon, and counters are written soon.
const WINDOW_S: f64 = 0.2;
/// As short as windows can be: a plan is never far, and what came back leaves again.
const WINDOW_MOVING_S: f64 = 0.1;
/// Movers finish what they had begun when the planner stopped.
const REST: Duration = Duration::from_millis(200);

/// What all tiers have in common.
pub(crate) struct Subject {
    /// This program.
    pub exe: PathBuf,
    /// Where files may be left.
    pub folder: PathBuf,
    /// What pages hold.
    pub content: PathBuf,
    /// How many.
    pub pages: usize,
}

/// One repetition.
pub(crate) struct Measured {
    /// By the touching loop.
    pub figures: ProbeFigures,
    /// Faults that the runtime counted from the tier meanwhile; `None` for the kernel.
    pub faults_in_timeline: Option<u64>,
}

impl Subject {
    /// Measures `tier` once at rest by one thread, touching in the order of `seed`.
    pub(crate) fn measure_at_rest(&self, tier: &TierSpec, seed: u64) -> Result<Measured> {
        self.measure(tier, Condition { moving: false, threads: 1 }, seed)
    }

    /// Measures `tier` once, touching in the order of `seed`.
    pub(super) fn measure(&self, tier: &TierSpec, on: Condition, seed: u64) -> Result<Measured> {
        let config = self.folder.join("tier.toml");
        // One file a run: windows of an old one would be taken for its.
        let timeline = self.folder.join(format!("{}-{}-{seed}.timeline", tier.name, on.name()));
        fs::write(&config, toml_of(tier, !on.moving)).context("cannot write the configuration")?;
        let mut run = self.start(&config, &timeline, on, seed)?;

        let pid: u32 = run.line()?.parse().context("the child does not speak our language")?;
        let stored = (self.pages as f64 * OUT_SHARE) as u64;
        // Pages that have left may still be on their way; in the tier, and no more of them than a
        // window ago, means that they have arrived.
        let arrived = |w: &[Window]| {
            let [.., before, last] = w else { return false };
            let (before, last) = (before.tier().pages, last.tier().pages);
            last >= stored && (on.moving || before == last)
        };
        let before = run.wait_for(&timeline, pid, &arrived)?;
        if !on.moving {
            run.stop();
            std::thread::sleep(REST);
        }
        run.go_on()?;
        let figures: ProbeFigures = serde_json::from_str(&run.line()?)?;
        run.resume();
        // The first window after may have closed before; the second holds everything.
        let after = run.wait_for(&timeline, pid, &|w| w.len() >= before.len() + 2)?;
        run.end()?;
        let faults = after[before.len()..].iter().map(|w| w.tier().faults).sum();
        Ok(Measured { figures, faults_in_timeline: Some(faults) })
    }

    fn start(&self, config: &Path, timeline: &Path, on: Condition, seed: u64) -> Result<Running> {
        let window_s = if on.moving { WINDOW_MOVING_S } else { WINDOW_S };
        let mut command = terrace_run(&self.exe, window_s, config, timeline);
        command.arg("--").arg(&self.exe).args(["bench", "fault", "--child", "--content"]);
        command.arg(&self.content).args(["--pages", &self.pages.to_string()]);
        command.args(["--seed", &seed.to_string(), "--threads", &on.threads.to_string()]);
        Running::start(command)
    }
}
