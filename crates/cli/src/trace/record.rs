//! Writes a trace while its application runs.
//!
//! A Parquet file is readable only once its end is written, and a planner may be killed. So rows
//! are written in parts, each a whole file, into `TRACE.partial/`, and joined into `TRACE` when the
//! run ends. A killed run leaves the parts, which `terrace sim` reads like a trace. A part ends
//! after [`PART_ROWS`] rows, or when it is as old as all before it together, [`PART_TIME`] at most:
//! what a kill loses is never more than that.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{anyhow, bail, Context, Result};
use terrace_core::cost::TierCost;

use super::write::{self, Batch};
use super::{partial_of, read, Command, Meta, ProcessWindow, Row};
use crate::say;

/// Rows of a part, one row group: 15 MiB of memory while it is filled and written.
pub const PART_ROWS: usize = write::GROUP_ROWS;
/// Longest and shortest time of a part.
pub const PART_TIME: Duration = Duration::from_secs(600);
const PART_TIME_MIN: Duration = Duration::from_secs(2);

/// What the folder of parts says to whoever finds it.
const RECOVERY_FILE: &str = "HOW-TO-RECOVER.txt";

/// A trace that is being written.
#[derive(Debug)]
pub struct Recorder {
    path: PathBuf,
    began: Instant,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    meta: Meta,
    /// By process: pages that it had moved, and faults from tiers.
    seen: BTreeMap<u32, u64>,
    batch: Batch,
    parts: Vec<PathBuf>,
    /// When the last part was written.
    written: Instant,
    rows: usize,
    /// Nothing is written any more: the trace is finished, or could not be written.
    is_over: bool,
    /// It could not be written, and nobody was told yet what there is of it.
    is_broken_off: bool,
}

/// What a finished trace is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Finished {
    /// Rows: regions times windows.
    pub rows: usize,
    /// Size of the file.
    pub bytes: u64,
}

impl State {
    /// Takes in a window of a process, and says whether it is the one that tells most of what tiers
    /// cost: a helper that never had a page in one knows nothing of it.
    fn knows_most(&mut self, pid: u32, process: &ProcessWindow) -> bool {
        let own = self.seen.entry(pid).or_default();
        *own += u64::from(process.moved_pages) + u64::from(process.served_faults);
        let own = *own;
        self.seen.values().all(|&other| other <= own)
    }
}

impl Recorder {
    /// Begins a trace that will be at `path`.
    pub fn start(path: &Path, meta: Meta) -> Result<Recorder> {
        let folder = partial_of(path);
        for taken in [path, &folder] {
            write::refuse_taken(taken).map_err(|e| anyhow!("--record: {e:#}"))?;
        }
        let recovery = format!(
            "The parts of a trace whose recording has not ended, or was killed. As a whole file:\n\
             terrace sim --merge {} -o {}\n",
            folder.display(),
            path.display()
        );
        std::fs::create_dir(&folder)
            .and_then(|()| std::fs::write(folder.join(RECOVERY_FILE), recovery))
            .with_context(|| format!("--record: {} cannot be made", folder.display()))?;
        let began = Instant::now();
        let state = State {
            meta,
            seen: BTreeMap::new(),
            batch: Batch::default(),
            parts: Vec::new(),
            written: began,
            rows: 0,
            is_over: false,
            is_broken_off: false,
        };
        Ok(Recorder { path: path.to_owned(), began, state: Mutex::new(state) })
    }

    /// Adds a window of a process. A trace that cannot be written ends; its application does not.
    pub fn window(
        &self,
        command: &str,
        mut process: ProcessWindow,
        rows: impl IntoIterator<Item = Row>,
        costs: &[TierCost],
    ) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let state = &mut *state;
        if state.is_over {
            return;
        }
        process.time_ms = self.began.elapsed().as_millis() as u64;
        let mut rows = rows.into_iter();
        let Some(mut next) = rows.next() else { return };
        if state.knows_most(next.pid, &process) {
            for (tier, cost) in state.meta.tiers.iter_mut().zip(costs) {
                (tier.fault_ns, tier.ratio) = (cost.fault_ns, cost.ratio);
                tier.move_ns = Some(cost.move_ns);
            }
        }
        if !state.meta.commands.iter().any(|c| c.pid == next.pid) {
            let command = command.to_owned();
            state.meta.commands.push(Command { pid: next.pid, command });
        }
        loop {
            state.batch.processes.insert((next.pid, next.window), process);
            state.batch.rows.push(next);
            if state.batch.rows.len() >= PART_ROWS {
                self.part(state);
            }
            match rows.next() {
                Some(row) => next = row,
                None => break,
            }
        }
        let before = state.written.duration_since(self.began);
        if state.written.elapsed() >= before.clamp(PART_TIME_MIN, PART_TIME) {
            self.part(state);
        }
    }

    /// Writes what there is as a part; says so if that fails.
    fn part(&self, state: &mut State) {
        if let Err(e) = self.try_part(state) {
            say!("terrace: --record ends here: {e:#}");
            state.is_over = true;
            state.is_broken_off = true;
        }
    }

    fn try_part(&self, state: &mut State) -> Result<()> {
        let bytes = write::encode(&mut state.batch, &state.meta)?;
        let part = partial_of(&self.path).join(format!("{:06}.parquet", state.parts.len()));
        write::put(&part, &bytes)?;
        state.parts.push(part);
        state.rows += state.batch.rows.len();
        state.batch.rows.clear();
        state.batch.processes.clear();
        state.written = Instant::now();
        Ok(())
    }

    /// Ends the trace and makes one file of it; `None` if there was nothing to record. Where that
    /// cannot be done, the parts stay, and the error says how to make a file of them.
    pub fn finish(&self) -> Result<Option<Finished>> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let state = &mut *state;
        if std::mem::take(&mut state.is_broken_off) {
            bail!("it was broken off{}", self.what_is_left(state)?);
        }
        if std::mem::replace(&mut state.is_over, true) {
            return Ok(None);
        }
        if let Err(e) = self.complete(state) {
            let left = self.what_is_left(state)?;
            return Err(anyhow!("{e:#}{left}"));
        }
        let folder = partial_of(&self.path);
        remove_folder(&folder).with_context(|| format!("{} stays", folder.display()))?;
        if state.parts.is_empty() {
            return Ok(None);
        }
        Ok(Some(Finished { rows: state.rows, bytes: std::fs::metadata(&self.path)?.len() }))
    }

    fn complete(&self, state: &mut State) -> Result<()> {
        if !state.batch.rows.is_empty() {
            self.try_part(state)?;
        }
        if !state.parts.is_empty() {
            write::join(&partial_of(&self.path), &state.parts, &state.meta, &self.path)?;
        }
        Ok(())
    }

    /// What there is of a trace that could not be completed; without any part of it the folder is
    /// of no use and goes.
    fn what_is_left(&self, state: &State) -> Result<String> {
        let folder = partial_of(&self.path);
        if state.parts.is_empty() {
            remove_folder(&folder).with_context(|| format!("{} stays", folder.display()))?;
            return Ok("; no part of it was written".into());
        }
        Ok(format!(
            "; {} region-windows of it are in {}, and `terrace sim --merge {} -o {}` makes a file \
             of them",
            state.rows,
            folder.display(),
            folder.display(),
            self.path.display()
        ))
    }
}

fn remove_folder(folder: &Path) -> Result<()> {
    for part in read::parts(folder)?.iter().chain([&folder.join(RECOVERY_FILE)]) {
        std::fs::remove_file(part)?;
    }
    std::fs::remove_dir(folder)?;
    Ok(())
}
