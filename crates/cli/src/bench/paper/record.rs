//! What one run leaves behind: a JSON file, of which reports are made and by which a run that was
//! interrupted goes on.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

/// What runs must have in common to be compared; also what makes a folder's runs usable again.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub(super) struct Settings {
    /// Size of the workload's data in MiB.
    pub size_mib: u64,
    /// Measured seconds.
    pub seconds: f64,
    /// Driven seconds before that.
    pub warmup_s: f64,
    /// The same for plain DRAM, where there is nothing to place.
    pub dram_warmup_s: f64,
    /// Length of a profile window in seconds.
    pub window_s: f64,
    /// Of the order of runs and of the requests.
    pub seed: u64,
    /// Seconds into the measured part after which other data is popular; 0: it stays.
    #[serde(default)]
    pub phase_at_s: f64,
    /// Whether a server takes turns with a plain one.
    #[serde(default)]
    pub has_beside: bool,
    /// Windows that a page which came back stays.
    #[serde(default = "cooling_windows")]
    pub cooling_windows: u32,
}

/// Those of runs from before it could be asked for.
fn cooling_windows() -> u32 {
    3
}

/// Which run it is.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub(super) struct RunId {
    /// `redis` and so on.
    pub workload: String,
    /// Name of the configuration.
    pub config: String,
    /// Repetition, from 0.
    pub round: usize,
    /// Place in the order of its round and workload, from 0.
    pub position: usize,
}

/// One run that ended well.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Record {
    /// Which run.
    #[serde(flatten)]
    pub id: RunId,
    /// With what.
    pub settings: Settings,
    /// What the load saw.
    pub load: Load,
    /// The load second by second, as it wrote it.
    pub seconds: Vec<Second>,
    /// The histogram as the load wrote it.
    pub hist: serde_json::Value,
    /// Memory, second by second since the data was loaded.
    pub memory: Vec<Memory>,
    /// What the planner wrote, window by window.
    pub windows: Vec<Window>,
    /// Processor time in the measured phase.
    pub cpu: Cpu,
    /// What the kernel's swap did in the measured phase.
    pub swap: Swap,
    /// Threads that wanted to run, averaged over the minute before.
    pub loadavg_before: f64,
    /// How long the whole run took.
    pub took_s: f64,
    /// When it ended, seconds since 1970.
    pub ended_unix_s: u64,
}

/// Result of the load over the measured phase.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Load {
    /// Operations.
    pub ops: f64,
    /// Length of the phase.
    pub seconds: f64,
    /// Their ratio.
    pub ops_per_s: f64,
    /// Latency of an operation in microseconds.
    pub mean_us: f64,
    /// Median.
    pub p50_us: f64,
    /// 99th percentile.
    pub p99_us: f64,
    /// 99.9th percentile.
    pub p999_us: f64,
    /// Results that were not what they must be.
    pub wrong: u64,
    /// What a plain server did that took turns with this one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub beside: Option<Box<Load>>,
}

/// One second of the load.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Second {
    /// Seconds on the clock of the load.
    pub t_s: f64,
    /// Operations in it.
    pub ops: f64,
    /// Work done in it, in whatever the load counts.
    pub work: f64,
    /// Seconds that this work took: less than passed where the load also checks what it did.
    pub work_s: f64,
    /// Work of the plain server that took turns with this one, 0 if none did.
    pub beside_work: f64,
    /// Seconds that this took.
    pub beside_s: f64,
    /// 99th percentile in microseconds.
    pub p99_us: f64,
}

/// Memory at one moment.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Memory {
    /// Seconds since the data was loaded.
    pub t_s: f64,
    /// Whether it is in the measured phase.
    pub is_measured: bool,
    /// Resident set of the program, pools in memory included.
    pub rss_bytes: u64,
    /// Pools, metadata included, whatever they are in.
    pub pool_bytes: u64,
    /// Equation 12, US dollars per month.
    pub usd_per_month: f64,
}

/// One window of the timeline.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Window {
    /// Seconds since the data was loaded; below 0 while it was.
    pub t_s: f64,
    /// As configured, DRAM first.
    pub tiers: Vec<Tier>,
    /// Equation 12 as `terrace run` reckons it, for comparison.
    pub tco_saved: f64,
    /// Memory of the runtime itself, pools aside.
    pub runtime_bytes: u64,
    /// Processor time of runtime and planner.
    pub terrace_cpu_ms: f64,
    /// Of that, for serving faults.
    pub fault_service_ms: f64,
    /// Time that the program waited for pages.
    pub stalled_ms: f64,
}

/// One tier in one window (docs/timeline.md).
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Tier {
    /// Name from the configuration.
    pub name: String,
    /// Kind of its medium.
    pub medium_kind: String,
    /// Price of its medium.
    pub usd_per_gib_month: f64,
    /// Where the plan wants pages.
    pub recommended_pages: u64,
    /// Where pages are.
    pub pages: u64,
    /// Bytes that its pool takes.
    pub pool_bytes: u64,
    /// DRAM that it takes beside that.
    pub dram_bytes: u64,
    /// Faults served in the window.
    pub faults: u64,
    /// 99th percentile of their latency since the start.
    pub fault_ns_p99: f64,
}

/// Processor time in seconds.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Cpu {
    /// The program's own threads.
    pub application_s: f64,
    /// The runtime's threads in it.
    pub runtime_s: f64,
    /// Of that, for serving faults.
    pub fault_service_s: f64,
    /// `terrace run`: the planner, and what it pages out.
    pub planner_s: f64,
}

impl Load {
    /// A figure, over that of the plain server that took turns with this one, if one did.
    pub(super) fn relative(&self, get: fn(&Load) -> f64) -> f64 {
        let beside = self.beside.as_deref().map_or(1.0, get);
        get(self) / beside.max(1e-12)
    }
}

impl Cpu {
    /// The tax as TierScape counts it (section 7.7): telemetry, planning and migration, without
    /// what is spent on demand; as a share of the application's processor time.
    pub(super) fn tax(&self) -> f64 {
        let daemon_s = (self.runtime_s - self.fault_service_s).max(0.0) + self.planner_s;
        if self.application_s > 0.0 {
            daemon_s / self.application_s
        } else {
            0.0
        }
    }
}

/// Pages that went through the kernel's swap, of the whole machine, in the measured phase.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Swap {
    /// Into zswap.
    pub zswpout: u64,
    /// Out of zswap.
    pub zswpin: u64,
    /// From zswap to the disk.
    pub zswpwb: u64,
    /// To the disk.
    pub pswpout: u64,
    /// From the disk.
    pub pswpin: u64,
}

impl Swap {
    /// Whether the disk took part, which would make it another comparison.
    pub(super) fn touched_disk(&self) -> bool {
        self.zswpwb + self.pswpout + self.pswpin > 0
    }
}

impl Record {
    /// Mean cost of memory over the measured phase, US dollars per month.
    pub(super) fn usd_mean(&self) -> f64 {
        let measured: Vec<f64> =
            self.memory.iter().filter(|m| m.is_measured).map(|m| m.usd_per_month).collect();
        measured.iter().sum::<f64>() / measured.len().max(1) as f64
    }
}

impl RunId {
    /// Where its record is, below `dir`.
    pub(super) fn path(&self, dir: &Path) -> PathBuf {
        let (w, c) = (&self.workload, &self.config);
        dir.join("runs").join(format!("{w}.{:02}.{:02}.{c}.json", self.round, self.position))
    }
}

impl Record {
    /// Whether it can be compared with others of these settings. A version in which its workload
    /// took no turns may have begun the folder, and what it did is no share of a plain one's.
    fn is_of(&self, settings: &Settings) -> bool {
        let takes_turns = self.load.beside.is_some() || !settings.has_beside;
        self.settings == *settings && takes_turns
    }
}

/// Writes a record so that it is there whole or not at all.
pub(super) fn save(dir: &Path, record: &Record) -> Result<()> {
    write_whole(&record.id.path(dir), &serde_json::to_string(record)?)
}

/// The record of a run, if it is there and is of these settings.
pub(super) fn load(dir: &Path, id: &RunId, settings: &Settings) -> Option<Record> {
    let text = fs::read_to_string(id.path(dir)).ok()?;
    let record: Record = serde_json::from_str(&text).ok()?;
    (record.id == *id && record.is_of(settings)).then_some(record)
}

/// All records in a folder that are of these settings, in the order they were made in.
pub(super) fn load_all(dir: &Path, settings: &Settings) -> Vec<Record> {
    let entries = fs::read_dir(dir.join("runs")).into_iter().flatten().flatten();
    let mut all: Vec<Record> = entries
        .filter_map(|entry| {
            let record: Record =
                serde_json::from_str(&fs::read_to_string(entry.path()).ok()?).ok()?;
            record.is_of(settings).then_some(record)
        })
        .collect();
    all.sort_by(|a, b| {
        let key = |r: &Record| (r.id.workload.clone(), r.id.round, r.id.position);
        key(a).cmp(&key(b))
    });
    all
}

/// Writes a file beside its place and moves it there.
pub(super) fn write_whole(path: &Path, text: &str) -> Result<()> {
    let beside = path.with_extension("part");
    fs::write(&beside, text)
        .and_then(|()| fs::rename(&beside, path))
        .with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::redis::TempDir;

    #[test]
    fn a_record_is_found_again_only_with_its_own_settings() {
        let folder = TempDir::new("paper-record").unwrap();
        fs::create_dir(folder.path().join("runs")).unwrap();
        let settings = Settings { size_mib: 64, seconds: 3.0, ..Settings::default() };
        let id = RunId { workload: "bfs".into(), config: "2t-m".into(), round: 1, position: 2 };
        let record =
            Record { id: id.clone(), settings: settings.clone(), took_s: 7.5, ..Record::default() };
        assert_eq!(load(folder.path(), &id, &settings), None);
        save(folder.path(), &record).unwrap();
        assert_eq!(load(folder.path(), &id, &settings), Some(record.clone()));
        assert_eq!(load_all(folder.path(), &settings), std::slice::from_ref(&record));
        let other = Settings { seed: 2, ..settings.clone() };
        assert_eq!(load(folder.path(), &id, &other), None);
        assert!(load_all(folder.path(), &other).is_empty());
        // A record from before its workload took turns.
        let turns = Settings { has_beside: true, ..settings.clone() };
        let alone = Record { settings: turns.clone(), ..record.clone() };
        save(folder.path(), &alone).unwrap();
        assert_eq!(load(folder.path(), &id, &turns), None);
        assert!(load_all(folder.path(), &turns).is_empty());
        let load_of_both = Load { beside: Some(Box::default()), ..Load::default() };
        let both = Record { load: load_of_both, ..alone };
        save(folder.path(), &both).unwrap();
        assert_eq!(load_all(folder.path(), &turns), [both]);
        // What was cut short is no record.
        fs::write(id.path(folder.path()), "{\"workload\":\"bfs\",").unwrap();
        assert_eq!(load(folder.path(), &id, &settings), None);
    }

    #[test]
    fn the_tax_leaves_out_what_is_done_on_demand() {
        let cpu = Cpu { application_s: 20.0, runtime_s: 3.0, fault_service_s: 2.0, planner_s: 0.5 };
        assert_eq!(cpu.tax(), 0.075);
        assert_eq!(Cpu { application_s: 0.0, ..cpu.clone() }.tax(), 0.0);
        assert_eq!(Cpu { fault_service_s: 9.0, ..cpu }.tax(), 0.025);
    }

    #[test]
    fn only_the_measured_phase_costs() {
        let at = |t_s, is_measured, usd_per_month| Memory {
            t_s,
            is_measured,
            usd_per_month,
            ..Memory::default()
        };
        let memory = vec![at(0.0, false, 9.0), at(1.0, true, 1.0), at(2.0, true, 2.0)];
        assert_eq!(Record { memory, ..Record::default() }.usd_mean(), 1.5);
        assert_eq!(Record::default().usd_mean(), 0.0);
    }
}
