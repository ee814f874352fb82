//! One tier measured once: a child under `terrace run` with that tier only, told when to go on.
//!
//! Movement must rest while pages are touched, or what is measured is faults and the fetching away
//! of what just came back. So when everything has left, the planner - `terrace run` itself - is
//! stopped with SIGSTOP: no window closes, no sample is taken, nothing is planned; the runtime in
//! the child goes on serving faults, as it would if the planner had been killed. Afterwards the
//! planner goes on, and its timeline says how many faults the runtime counted meanwhile.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use anyhow::{bail, ensure, Context, Result};
use serde::Deserialize;
use terrace_core::tier::{MediumKind, TierSpec};

use super::child::OUT_SHARE;
use super::PATIENCE;
use crate::bench::kernel_swap::{interrupted, ProbeFigures};
use crate::config::write;
use crate::demo::sys::signal_process;
use crate::preset;

/// Short windows: pages leave soon, and counters are written soon.
const WINDOW_S: f64 = 0.2;
/// As short as windows can be: a plan is never far, and what came back leaves again.
const WINDOW_MOVING_S: f64 = 0.1;
/// Movers finish what they had begun when the planner stopped.
const REST: Duration = Duration::from_millis(200);
/// How often a file or a flag is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// How long an ended child may take to be gone.
const END_PATIENCE: Duration = Duration::from_secs(10);

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
    /// Whether movement goes on while pages are touched.
    pub while_moving: bool,
}

/// One repetition.
pub(crate) struct Measured {
    /// By the touching loop.
    pub figures: ProbeFigures,
    /// Faults that the runtime counted from the tier meanwhile; `None` for the kernel.
    pub faults_in_timeline: Option<u64>,
}

impl Subject {
    /// Measures `tier` once, touching in the order of `seed`.
    pub(crate) fn measure(&self, tier: &TierSpec, seed: u64) -> Result<Measured> {
        let config = self.folder.join("tier.toml");
        let timeline = self.folder.join(format!("{}-{seed}.timeline", tier.name));
        fs::write(&config, self.toml(tier)).context("cannot write the configuration")?;
        let mut run = self.start(&config, &timeline, seed)?;

        let pid: u32 = run.line()?.parse().context("the child does not speak our language")?;
        let stored = (self.pages as f64 * OUT_SHARE) as u64;
        // Pages that have left may still be on their way; in the tier, and no more of them than a
        // window ago, means that they have arrived.
        let arrived = |w: &[Window]| {
            let [.., before, last] = w else { return false };
            let (before, last) = (before.tier().pages, last.tier().pages);
            last >= stored && (self.while_moving || before == last)
        };
        let before = run.wait_for(&timeline, pid, &arrived)?;
        if !self.while_moving {
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

    fn start(&self, config: &Path, timeline: &Path, seed: u64) -> Result<Running> {
        let window_s = if self.while_moving { WINDOW_MOVING_S } else { WINDOW_S };
        let mut command = Command::new(&self.exe);
        command.args(["run", "--quiet", "--policy", "analytical", "--alpha", "0"]);
        command.arg("--window").arg(window_s.to_string());
        command.arg("--config").arg(config).arg("--timeline").arg(timeline);
        command.arg("--").arg(&self.exe).args(["bench", "fault", "--child", "--content"]);
        command.arg(&self.content).args(["--pages", &self.pages.to_string()]);
        command.args(["--seed", &seed.to_string()]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        Running::start(command)
    }

    /// A configuration with this tier only.
    fn toml(&self, tier: &TierSpec) -> String {
        let dram = match tier.medium.kind {
            MediumKind::Dram => tier.medium.clone(),
            _ => preset::dram(preset::DRAM_USD_PER_GIB_MONTH),
        };
        let text = write::toml(&dram, std::slice::from_ref(tier));
        let cooling = if self.while_moving { "cooling_windows = 0\n" } else { "" };
        text + "[run]\nmove_mib_s = 0\n" + cooling
    }
}

/// What is needed of a line of the timeline (docs/timeline.md).
#[derive(Deserialize, Clone, Debug)]
struct Window {
    pid: u32,
    tiers: Vec<TierWindow>,
}

#[derive(Deserialize, Clone, Default, Debug)]
struct TierWindow {
    pages: u64,
    faults: u64,
}

impl Window {
    /// The one tier there is besides DRAM.
    fn tier(&self) -> TierWindow {
        self.tiers.get(1).cloned().unwrap_or_default()
    }
}

fn windows(timeline: &Path, pid: u32) -> Result<Vec<Window>> {
    let text = fs::read_to_string(timeline).unwrap_or_default();
    // A line that is being written has no end yet.
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    let mut all = Vec::new();
    for line in whole.lines() {
        let window: Window = serde_json::from_str(line).context("the timeline is not one")?;
        if window.pid == pid {
            all.push(window);
        }
    }
    Ok(all)
}

/// `terrace run` and the child below it. Ended, even if stopped, when dropped.
struct Running {
    process: Child,
    stdin: Option<ChildStdin>,
    lines: Receiver<String>,
}

impl Running {
    fn start(mut command: Command) -> Result<Running> {
        let mut process = command.spawn().context("cannot start `terrace run`")?;
        let stdin = process.stdin.take();
        let (sender, lines) = mpsc::channel();
        let stdout = process.stdout.take().context("no pipe")?;
        // Read by a thread of its own, so that waiting for a line can be interrupted.
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        Ok(Running { process, stdin, lines })
    }

    /// The child's next line.
    fn line(&self) -> Result<String> {
        let started = Instant::now();
        loop {
            match self.lines.recv_timeout(LOOK_EVERY) {
                Ok(line) => return Ok(line),
                Err(RecvTimeoutError::Disconnected) => bail!("it ended before it was measured"),
                Err(RecvTimeoutError::Timeout) => patient(started)?,
            }
        }
    }

    /// Waits until the windows of the timeline are as they should be.
    fn wait_for(
        &mut self,
        timeline: &Path,
        pid: u32,
        enough: &dyn Fn(&[Window]) -> bool,
    ) -> Result<Vec<Window>> {
        let started = Instant::now();
        loop {
            let windows = windows(timeline, pid)?;
            if enough(&windows) {
                return Ok(windows);
            }
            if let Some(status) = self.process.try_wait()? {
                bail!("it ended before it was measured: {status}");
            }
            patient(started)?;
            std::thread::sleep(LOOK_EVERY);
        }
    }

    fn go_on(&mut self) -> Result<()> {
        let stdin = self.stdin.as_mut().context("no pipe")?;
        writeln!(stdin).context("the child is gone")
    }

    fn stop(&self) {
        signal_process(self.process.id() as i32, libc::SIGSTOP);
    }

    fn resume(&self) {
        signal_process(self.process.id() as i32, libc::SIGCONT);
    }

    /// Lets the child end by itself.
    fn end(mut self) -> Result<()> {
        self.stdin = None;
        let started = Instant::now();
        loop {
            if let Some(status) = self.process.try_wait()? {
                ensure!(status.success(), "it failed: {status}");
                return Ok(());
            }
            patient(started)?;
            std::thread::sleep(LOOK_EVERY);
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let started = Instant::now();
        while matches!(self.process.try_wait(), Ok(None)) {
            if started.elapsed() > END_PATIENCE {
                let _ = self.process.kill();
                let _ = self.process.wait();
                return;
            }
            self.stdin = None;
            // It passes SIGTERM on to the child, for which it must not be stopped.
            self.resume();
            signal_process(self.process.id() as i32, libc::SIGTERM);
            std::thread::sleep(LOOK_EVERY);
        }
    }
}

fn patient(since: Instant) -> Result<()> {
    ensure!(!interrupted(), "interrupted");
    ensure!(since.elapsed() < PATIENCE, "nothing happened for {} s", PATIENCE.as_secs());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::file;
    use crate::preset::Preset;

    #[test]
    fn the_configuration_is_read_as_the_tier_it_was_written_for() {
        for while_moving in [false, true] {
            let subject = Subject {
                exe: PathBuf::new(),
                folder: PathBuf::new(),
                content: PathBuf::new(),
                pages: 0,
                while_moving,
            };
            for tier in super::super::tiers_of_presets() {
                let config = file::parse("t", &subject.toml(&tier), Preset::Auto).unwrap();
                assert_eq!(config.tiers, [tier]);
                assert_eq!(config.run.move_mib_s, 0);
                assert_eq!(config.run.cooling_windows == 0, while_moving);
            }
        }
    }

    #[test]
    fn only_whole_lines_of_one_process_are_windows() {
        let folder = crate::demo::redis::TempDir::new("subject-test").unwrap();
        let path = folder.path().join("timeline");
        let line = r#"{"pid":7,"tiers":[{"pages":9,"faults":0},{"pages":3,"faults":2}],"x":1}"#;
        let other = line.replace("\"pid\":7", "\"pid\":8");
        fs::write(&path, format!("{line}\n{other}\n{line}")).unwrap();
        let windows = windows(&path, 7).unwrap();
        assert_eq!(windows.len(), 1);
        assert_eq!((windows[0].tier().pages, windows[0].tier().faults), (3, 2));
    }
}
