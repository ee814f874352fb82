//! The ground that the benchmarks of faults, demotion and churn stand on: a folder that goes away,
//! the same pages for all, and this program itself, to be started as the one that is measured; and
//! how all benchmarks hand over their results.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::Serialize;

use super::content::write_content;
use super::figures::loadavg;
use super::kernel_swap::catch_interrupts;
use crate::demo::progress::Progress;
use crate::demo::redis::TempDir;

/// What a benchmark has before its first measurement.
pub(super) struct Ground {
    /// Runnable threads before anything of ours ran.
    pub loadavg_before: f64,
    /// Where it says what it is doing.
    pub progress: Progress,
    /// Removed with this.
    pub folder: TempDir,
    /// A file with the pages to measure with.
    pub content: PathBuf,
    /// Share of this machine's pages that is not in it, because some codec would refuse them.
    pub left_out: f64,
    /// This program.
    pub exe: PathBuf,
}

impl Ground {
    /// Collects the pages. From here on Ctrl-C is noted, not obeyed (`kernel_swap::interrupted`).
    pub(super) fn prepare(name: &str) -> Result<Ground> {
        catch_interrupts();
        let loadavg_before = loadavg();
        let mut progress = Progress::new();
        progress.line("collecting pages from the files of this machine");
        let folder = TempDir::new(name)?;
        let content = folder.path().join("content");
        let left_out = write_content(&content)?;
        let exe = std::env::current_exe().context("cannot find this program itself")?;
        Ok(Ground { loadavg_before, progress, folder, content, left_out, exe })
    }
}

/// Writes a report where `--json` wants it, if it wants it.
pub(super) fn write_json(path: Option<&Path>, report: &impl Serialize) -> Result<()> {
    let Some(path) = path else { return Ok(()) };
    let json = serde_json::to_string_pretty(report)? + "\n";
    fs::write(path, json).with_context(|| format!("cannot write {}", path.display()))
}
