//! Reads the file that `terrace run --timeline` writes (docs/timeline.md) while it grows, and sums
//! up the windows of the measured phase.

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

/// One line of the file. Fields that the demo does not show are left out; a missing one reads as
/// zero, so that a report can be drawn of whatever there is.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Window {
    /// The application.
    pub pid: i32,
    /// Number of the window, from 1.
    pub window: u64,
    /// Seconds since the application was first seen.
    pub t_s: f64,
    /// The tiers, DRAM first.
    pub tiers: Vec<TierWindow>,
    /// What would be resident without Terrace.
    pub managed_bytes: u64,
    /// Memory of the runtime itself.
    pub runtime_bytes: u64,
    /// Equation 12, 0..1.
    pub tco_saved: f64,
    /// Cost of the application's memory.
    pub usd_per_month: f64,
    /// Saved, counting only media that the machine really has.
    pub usd_saved_per_month: f64,
    /// Time that application threads waited for faults.
    pub stalled_ms: f64,
    /// CPU time of Terrace.
    pub terrace_cpu_ms: f64,
    /// How hotness was measured.
    pub tracker: Tracker,
}

/// How hotness was measured.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub struct Tracker {
    /// Name of the method.
    pub method: String,
}

/// One tier in one window.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct TierWindow {
    /// Name from the configuration.
    pub name: String,
    /// Codec, pool and medium.
    pub codec: Option<String>,
    /// How compressed pages are packed.
    pub pool: Option<String>,
    /// Where the bytes are.
    pub medium: Option<String>,
    /// Whether the medium only pretends to be what it is named.
    pub emulated: bool,
    /// Price of the medium.
    pub usd_per_gib_month: f64,
    /// Where the plan wants pages.
    pub recommended_pages: u64,
    /// Where pages are.
    pub pages: u64,
    /// Compressed bytes.
    pub stored_bytes: u64,
    /// Bytes the pool holds for them.
    pub pool_bytes: u64,
    /// Faults served from this tier in this window.
    pub faults: u64,
    /// Fault latency since the start.
    pub fault_ns_p50: f64,
    /// Fault latency since the start.
    pub fault_ns_p99: f64,
    /// Pages this tier would not take, by reason.
    pub refused: BTreeMap<String, u64>,
}

/// Follows a growing timeline file.
pub struct Follower {
    path: PathBuf,
    pid: i32,
    offset: u64,
    partial: String,
    windows: Vec<Window>,
}

impl Follower {
    /// Follows the windows of process `pid` in the file at `path`, which need not exist yet.
    pub fn new(path: &Path, pid: i32) -> Follower {
        Follower {
            path: path.to_path_buf(),
            pid,
            offset: 0,
            partial: String::new(),
            windows: Vec::new(),
        }
    }

    /// Takes in what was written since the last call.
    pub fn poll(&mut self) -> Result<()> {
        let Ok(mut file) = File::open(&self.path) else { return Ok(()) };
        file.seek(SeekFrom::Start(self.offset))?;
        let mut bytes = Vec::new();
        self.offset += file.read_to_end(&mut bytes)? as u64;
        self.partial.push_str(&String::from_utf8_lossy(&bytes));
        while let Some(end) = self.partial.find('\n') {
            let line: String = self.partial.drain(..=end).collect();
            let window = serde_json::from_str::<Window>(&line)
                .with_context(|| format!("a line of {} is not a window", self.path.display()))?;
            if window.pid == self.pid {
                self.windows.push(window);
            }
        }
        Ok(())
    }

    /// The windows so far.
    pub fn windows(&self) -> &[Window] {
        &self.windows
    }
}

/// One tier over the measured phase.
#[derive(Clone, Debug, Default, Serialize)]
pub struct TierSummary {
    /// Name from the configuration.
    pub name: String,
    /// Codec, absent for DRAM.
    pub codec: Option<String>,
    /// Pool, absent for DRAM.
    pub pool: Option<String>,
    /// Medium.
    pub medium: Option<String>,
    /// Whether the medium is emulated.
    pub emulated: bool,
    /// Price of the medium.
    pub usd_per_gib_month: f64,
    /// Mean over the measured windows.
    pub pages: u64,
    /// Mean over the measured windows.
    pub stored_bytes: u64,
    /// Mean over the measured windows.
    pub pool_bytes: u64,
    /// Sum over the measured windows.
    pub faults: u64,
    /// Since the start of the application.
    pub fault_us_p50: f64,
    /// Since the start of the application.
    pub fault_us_p99: f64,
    /// Since the start of the application.
    pub refused: BTreeMap<String, u64>,
}

/// The measured phase in numbers.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    /// The tiers, DRAM first.
    pub tiers: Vec<TierSummary>,
    /// Mean of the windows.
    pub tco_saved: f64,
    /// Mean of the windows.
    pub usd_saved_per_month: f64,
    /// Mean of the windows.
    pub managed_bytes: u64,
    /// Largest of the windows.
    pub runtime_bytes: u64,
    /// Sum of the windows.
    pub stalled_ms: f64,
    /// Sum of the windows.
    pub terrace_cpu_ms: f64,
    /// How hotness was measured.
    pub tracker: String,
}

/// Sums up windows: gauges as means, counters as sums.
pub fn summarise(windows: &[Window]) -> Summary {
    let Some(last) = windows.last() else { return Summary::default() };
    let n = windows.len() as f64;
    let mean = |get: &dyn Fn(&Window) -> f64| windows.iter().map(get).sum::<f64>() / n;
    let tier = |i: usize, tier: &TierWindow| {
        let mean = |get: fn(&TierWindow) -> u64| {
            let of = |w: &Window| w.tiers.get(i).map_or(0.0, |t| get(t) as f64);
            mean(&of).round() as u64
        };
        TierSummary {
            name: tier.name.clone(),
            codec: tier.codec.clone(),
            pool: tier.pool.clone(),
            medium: tier.medium.clone(),
            emulated: tier.emulated,
            usd_per_gib_month: tier.usd_per_gib_month,
            pages: mean(|t| t.pages),
            stored_bytes: mean(|t| t.stored_bytes),
            pool_bytes: mean(|t| t.pool_bytes),
            faults: windows.iter().filter_map(|w| w.tiers.get(i)).map(|t| t.faults).sum(),
            fault_us_p50: tier.fault_ns_p50 / 1e3,
            fault_us_p99: tier.fault_ns_p99 / 1e3,
            refused: tier.refused.clone(),
        }
    };
    Summary {
        tiers: last.tiers.iter().enumerate().map(|(i, t)| tier(i, t)).collect(),
        tco_saved: mean(&|w| w.tco_saved),
        usd_saved_per_month: mean(&|w| w.usd_saved_per_month),
        managed_bytes: mean(&|w| w.managed_bytes as f64) as u64,
        runtime_bytes: windows.iter().map(|w| w.runtime_bytes).max().unwrap_or(0),
        stalled_ms: windows.iter().map(|w| w.stalled_ms).sum(),
        terrace_cpu_ms: windows.iter().map(|w| w.terrace_cpu_ms).sum(),
        tracker: last.tracker.method.clone(),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use std::io::Write;

    pub(in crate::demo) fn window(number: u64, tco: f64, faults: u64) -> Window {
        let tier = |name: &str, pages, faults, emulated| TierWindow {
            name: name.to_owned(),
            codec: (name != "dram").then(|| "lz4".to_owned()),
            medium: Some("dram".to_owned()),
            pages,
            recommended_pages: pages + 10,
            faults,
            emulated,
            stored_bytes: pages * 2000,
            pool_bytes: pages * 2100,
            fault_ns_p50: 4_000.0,
            ..TierWindow::default()
        };
        Window {
            pid: 7,
            window: number,
            t_s: number as f64 * 5.0,
            tiers: vec![tier("dram", 1000, 0, false), tier("zbud+lz4", 500 * number, faults, true)],
            tco_saved: tco,
            terrace_cpu_ms: 100.0,
            managed_bytes: 1 << 30,
            ..Window::default()
        }
    }

    #[test]
    fn gauges_are_means_and_counters_sums() {
        let summary = summarise(&[window(1, 0.2, 10), window(2, 0.4, 30)]);
        assert!((summary.tco_saved - 0.3).abs() < 1e-9);
        assert_eq!((summary.tiers[0].pages, summary.tiers[1].pages), (1000, 750));
        assert_eq!(summary.tiers[1].faults, 40);
        assert_eq!(summary.terrace_cpu_ms, 200.0);
        assert!(summarise(&[]).tiers.is_empty());
    }

    #[test]
    fn follows_a_file_that_grows_in_pieces() {
        let folder = super::super::redis::TempDir::new("timeline-test").expect("a folder");
        let path = folder.path().join("timeline");
        let mut follower = Follower::new(&path, 7);
        follower.poll().expect("no file yet is fine");
        let mut file = File::create(&path).expect("create");
        file.write_all(b"{\"pid\":7,\"window\":1,\"t_s\":5.0}\n{\"pid\":8,\"window\":1}\n{\"pi")
            .expect("write");
        follower.poll().expect("poll");
        assert_eq!(follower.windows().len(), 1);
        file.write_all(b"d\":7,\"window\":2,\"unknown\":[1]}\n").expect("write");
        follower.poll().expect("poll");
        assert_eq!(follower.windows().last().map(|w| w.window), Some(2));
        file.write_all(b"garbage\n").expect("write");
        assert!(follower.poll().is_err());
    }
}
