//! Programs that a benchmark starts under `terrace run` and talks to in lines.

use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use anyhow::{bail, ensure, Context, Result};
use serde::Deserialize;
use terrace_core::tier::{MediumKind, TierSpec};

use super::kernel_swap::interrupted;
use crate::config::write;
use crate::demo::sys::signal_process;
use crate::preset;

/// Longest that anything but the measured part itself may take.
pub(super) const PATIENCE: Duration = Duration::from_secs(120);
/// How often a file or a flag is looked at.
pub(super) const LOOK_EVERY: Duration = Duration::from_millis(50);
/// How long an ended child may take to be gone.
const END_PATIENCE: Duration = Duration::from_secs(10);

/// A configuration with this tier only: moves are not limited; with `cooling` off a page that came
/// back may leave again at once.
pub(super) fn toml_of(tier: &TierSpec, cooling: bool) -> String {
    let dram = match tier.medium.kind {
        MediumKind::Dram => tier.medium.clone(),
        _ => preset::dram(preset::DRAM_USD_PER_GIB_MONTH),
    };
    let text = write::toml(&dram, std::slice::from_ref(tier));
    text + "[run]\nmove_mib_s = 0\n" + if cooling { "" } else { "cooling_windows = 0\n" }
}

/// `terrace run` by `exe`, everything going down that can: the command before its `--`.
pub(super) fn terrace_run(exe: &Path, window_s: f64, config: &Path, timeline: &Path) -> Command {
    let mut command = Command::new(exe);
    command.args(["run", "--quiet", "--policy", "analytical", "--alpha", "0"]);
    command.arg("--window").arg(window_s.to_string());
    command.arg("--config").arg(config).arg("--timeline").arg(timeline);
    command
}

/// One line to whoever started this program.
pub(super) fn say(line: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{line}")?;
    out.flush()
}

/// One line from there; empty at its end.
pub(super) fn hear() -> io::Result<String> {
    let mut line = String::new();
    io::stdin().lock().read_line(&mut line)?;
    Ok(line)
}

/// What is needed of a line of the timeline (docs/timeline.md).
#[derive(Deserialize, Clone, Debug)]
pub(super) struct Window {
    /// The application.
    pub pid: u32,
    /// As configured, DRAM first.
    pub tiers: Vec<TierWindow>,
}

#[derive(Deserialize, Clone, Default, Debug)]
pub(super) struct TierWindow {
    /// Pages there at the end of the window.
    pub pages: u64,
    /// Faults served from there in the window.
    pub faults: u64,
    /// Compressed bytes.
    #[serde(default)]
    pub stored_bytes: u64,
    /// Bytes that the pool holds for them.
    #[serde(default)]
    pub pool_bytes: u64,
}

impl Window {
    /// The one tier there is besides DRAM.
    pub(super) fn tier(&self) -> TierWindow {
        self.tiers.get(1).cloned().unwrap_or_default()
    }
}

/// The whole lines of a timeline that are about `pid`.
pub(super) fn windows(timeline: &Path, pid: u32) -> Result<Vec<Window>> {
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
pub(super) struct Running {
    process: Child,
    stdin: Option<ChildStdin>,
    lines: Receiver<String>,
}

impl Running {
    /// Starts a command that speaks in lines.
    pub(super) fn start(mut command: Command) -> Result<Running> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().context("cannot start the program")?;
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
    pub(super) fn line(&self) -> Result<String> {
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
    pub(super) fn wait_for(
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

    /// Tells the child to go on.
    pub(super) fn go_on(&mut self) -> Result<()> {
        self.tell("")
    }

    /// Tells the child a line.
    pub(super) fn tell(&mut self, line: &str) -> Result<()> {
        let stdin = self.stdin.as_mut().context("no pipe")?;
        writeln!(stdin, "{line}").context("the child is gone")
    }

    /// Process id of what was started.
    pub(super) fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Stops the planner: SIGSTOP for `terrace run` alone.
    pub(super) fn stop(&self) {
        signal_process(self.process.id() as i32, libc::SIGSTOP);
    }

    /// Undoes [`Running::stop`].
    pub(super) fn resume(&self) {
        signal_process(self.process.id() as i32, libc::SIGCONT);
    }

    /// Lets the child end by itself.
    pub(super) fn end(mut self) -> Result<()> {
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

/// An error after an interrupt or when nothing has happened for too long.
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
        for cooling in [false, true] {
            for tier in Preset::ALL.iter().flat_map(|p| p.tiers()) {
                let config = file::parse("t", &toml_of(&tier, cooling), Preset::Auto).unwrap();
                assert_eq!(config.tiers, [tier]);
                assert_eq!(config.run.move_mib_s, 0);
                assert_eq!(config.run.cooling_windows != 0, cooling);
            }
        }
    }

    #[test]
    fn only_whole_lines_of_one_process_are_windows() {
        let folder = crate::demo::redis::TempDir::new("launched-test").unwrap();
        let path = folder.path().join("timeline");
        let line = r#"{"pid":7,"tiers":[{"pages":9,"faults":0},{"pages":3,"faults":2}],"x":1}"#;
        let other = line.replace("\"pid\":7", "\"pid\":8");
        fs::write(&path, format!("{line}\n{other}\n{line}")).unwrap();
        let windows = windows(&path, 7).unwrap();
        assert_eq!(windows.len(), 1);
        assert_eq!((windows[0].tier().pages, windows[0].tier().faults), (3, 2));
    }
}
