//! What a run takes while it runs: memory by equation 12, processor time, the kernel's swap.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::Value;

use super::record::{Cpu, Memory, Swap, Tier, Window};
use crate::demo::sys::{clock_ticks_per_second, page_bytes};
use crate::machine::meminfo_bytes;
use crate::preset::DRAM_USD_PER_GIB_MONTH;
use crate::threads;

const GIB: f64 = (1u64 << 30) as f64;
/// What zswap keeps for a page besides its bytes in the pool: its entry (56 bytes), a handle of
/// zsmalloc (8) and its share of the tree they hang in (9). Counted, because Terrace's pools count
/// their tables.
const ZSWAP_ENTRY_BYTES: u64 = 56 + 8 + 9;
const PAGE_BYTES: u64 = 4096;

/// What the kernel's zswap holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Zswap {
    /// Bytes of its pool.
    pub pool_bytes: u64,
    /// Bytes that are in it, uncompressed.
    pub held_bytes: u64,
}

impl Zswap {
    /// Of the whole machine, now.
    pub(super) fn now() -> Zswap {
        Zswap::parse(&fs::read_to_string("/proc/meminfo").unwrap_or_default())
    }

    fn parse(meminfo: &str) -> Zswap {
        let bytes = |key: &str| meminfo_bytes(meminfo, key).unwrap_or(0);
        Zswap { pool_bytes: bytes("Zswap"), held_bytes: bytes("Zswapped") }
    }

    /// What it takes beyond `before`, tables included.
    fn taken_since(self, before: Zswap) -> u64 {
        let pages = self.held_bytes.saturating_sub(before.held_bytes) / PAGE_BYTES;
        self.pool_bytes.saturating_sub(before.pool_bytes) + pages * ZSWAP_ENTRY_BYTES
    }
}

/// Equation 12 for a program at one moment.
///
/// `tiers` is what the planner last said of them, DRAM first: their pools are in the resident set
/// if their medium is memory or stands for it, and are paid at their medium's price. `zswap` is
/// what the kernel holds for it, which is not in the resident set. `forgiven` is what the resident
/// set holds and is not charged.
pub(super) fn memory(rss_bytes: u64, tiers: &[Tier], zswap: u64, forgiven: u64) -> Memory {
    let resident = |t: &Tier| {
        let is_resident = matches!(t.medium_kind.as_str(), "dram" | "emulated");
        if is_resident {
            t.pool_bytes
        } else {
            0
        }
    };
    let pools: &[Tier] = tiers.get(1..).unwrap_or_default();
    let in_rss: u64 = pools.iter().map(resident).sum();
    let of_pools: f64 =
        pools.iter().map(|t| t.pool_bytes as f64 * t.usd_per_gib_month).sum::<f64>();
    let in_dram = rss_bytes.saturating_sub(in_rss + forgiven) + zswap;
    let usd = (in_dram as f64 * DRAM_USD_PER_GIB_MONTH + of_pools) / GIB;
    Memory {
        rss_bytes,
        pool_bytes: pools.iter().map(|t| t.pool_bytes + t.dram_bytes).sum::<u64>() + zswap,
        usd_per_month: usd,
        ..Memory::default()
    }
}

/// The processes of one run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Processes {
    /// The one that is tiered.
    pub application: u32,
    /// `terrace run`, if there is one.
    pub planner: Option<u32>,
}

impl Processes {
    /// Resident set of the program; `None` once it has ended.
    pub(super) fn rss_bytes(&self) -> Option<u64> {
        let statm = fs::read_to_string(format!("/proc/{}/statm", self.application)).ok()?;
        let pages: u64 = statm.split_whitespace().nth(1)?.parse().ok()?;
        // One that has ended and was not waited for is still listed, without memory.
        (pages > 0).then(|| pages * page_bytes())
    }
}

/// Processor time of a run, read again and again while it goes on.
///
/// What was read last of a process or thread stays when it is gone: a program may end between two
/// readings, and its threads one by one. So nothing that is said here ever falls.
pub(super) struct CpuMeter {
    processes: Processes,
    program_s: f64,
    planner_s: f64,
    /// The runtime's threads in the program, by their number.
    runtime: BTreeMap<u32, Thread>,
}

/// A thread of the runtime.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Thread {
    /// Whether serving faults is what it is there for.
    serves: bool,
    cpu_s: f64,
}

impl CpuMeter {
    /// Of these, nothing read yet.
    pub(super) fn of(processes: Processes) -> CpuMeter {
        CpuMeter { processes, program_s: 0.0, planner_s: 0.0, runtime: BTreeMap::new() }
    }

    /// Processor time so far, up to now or to the last reading that a process was there for.
    pub(super) fn read(&mut self) -> Cpu {
        let Processes { application, planner } = self.processes;
        let runtime = runtime_threads(application);
        self.take_in(process_cpu_s(application), planner.and_then(process_cpu_s), &runtime)
    }

    /// Takes in what is known at one moment.
    fn take_in(
        &mut self,
        program_s: Option<f64>,
        planner_s: Option<f64>,
        runtime: &[(u32, Thread)],
    ) -> Cpu {
        self.program_s = self.program_s.max(program_s.unwrap_or(0.0));
        self.planner_s = self.planner_s.max(planner_s.unwrap_or(0.0));
        for (id, thread) in runtime {
            let known = self.runtime.entry(*id).or_insert(*thread);
            known.cpu_s = known.cpu_s.max(thread.cpu_s);
        }
        let of = |serves: bool| -> f64 {
            self.runtime.values().filter(|t| t.serves || !serves).map(|t| t.cpu_s).sum()
        };
        let runtime_s = of(false);
        Cpu {
            application_s: (self.program_s - runtime_s).max(0.0),
            runtime_s,
            // The most it can be: these threads do other things, too.
            fault_service_s: of(true),
            planner_s: self.planner_s,
        }
    }
}

/// What was spent between two readings of a [`CpuMeter`].
pub(super) fn cpu_between(before: &Cpu, after: &Cpu) -> Cpu {
    Cpu {
        // The whole program is told in ticks, the runtime in nanoseconds: their difference wavers.
        application_s: (after.application_s - before.application_s).max(0.0),
        runtime_s: after.runtime_s - before.runtime_s,
        fault_service_s: after.fault_service_s - before.fault_service_s,
        planner_s: after.planner_s - before.planner_s,
    }
}

/// Processor time of a process with all threads that it ever had; `None` once it is gone.
fn process_cpu_s(pid: u32) -> Option<f64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    Some(stat_ticks(&stat)? as f64 / clock_ticks_per_second() as f64)
}

/// User and system time in a line of `/proc/PID/stat`.
fn stat_ticks(stat: &str) -> Option<u64> {
    let mut fields = stat.rsplit(')').next()?.split_whitespace().skip(11);
    Some(fields.next()?.parse::<u64>().ok()? + fields.next()?.parse::<u64>().ok()?)
}

/// The runtime's threads in a program that are alive now.
fn runtime_threads(pid: u32) -> Vec<(u32, Thread)> {
    let one = |thread: threads::Thread| {
        let name = thread.name()?;
        let role = name.strip_prefix(threads::OWN)?;
        let cpu_s = match thread.scheduled() {
            Some(time) => time.ran_ns as f64 / 1e9,
            None => stat_ticks(&thread.stat()?)? as f64 / clock_ticks_per_second() as f64,
        };
        Some((thread.id, Thread { serves: matches!(role, "pager" | "loader"), cpu_s }))
    };
    threads::of(pid).into_iter().flatten().filter_map(one).collect()
}

/// Counters of the machine's swap since it started.
pub(super) fn swap_counters() -> Swap {
    parse_vmstat(&fs::read_to_string("/proc/vmstat").unwrap_or_default())
}

fn parse_vmstat(text: &str) -> Swap {
    let of = |name: &str| {
        let line = text.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(' '));
        line.and_then(|n| n.trim().parse().ok()).unwrap_or(0)
    };
    Swap {
        zswpout: of("zswpout"),
        zswpin: of("zswpin"),
        zswpwb: of("zswpwb"),
        pswpout: of("pswpout"),
        pswpin: of("pswpin"),
    }
}

/// What happened between two readings.
pub(super) fn swap_between(before: &Swap, after: &Swap) -> Swap {
    Swap {
        zswpout: after.zswpout.saturating_sub(before.zswpout),
        zswpin: after.zswpin.saturating_sub(before.zswpin),
        zswpwb: after.zswpwb.saturating_sub(before.zswpwb),
        pswpout: after.pswpout.saturating_sub(before.pswpout),
        pswpin: after.pswpin.saturating_sub(before.pswpin),
    }
}

/// What the kernel takes for us now, given what it took before.
pub(super) fn zswap_taken(before: Zswap) -> u64 {
    Zswap::now().taken_since(before)
}

/// A file of JSON lines that grows.
pub(super) struct Lines {
    path: PathBuf,
    read: usize,
}

impl Lines {
    /// Lines of a file that need not be there yet.
    pub(super) fn of(path: &Path) -> Lines {
        Lines { path: path.into(), read: 0 }
    }

    /// The whole lines that have come since the last call.
    pub(super) fn poll(&mut self) -> Result<Vec<Value>> {
        let bytes = fs::read(&self.path).unwrap_or_default();
        let new = bytes.get(self.read..).unwrap_or_default();
        let Some(end) = new.iter().rposition(|&b| b == b'\n') else { return Ok(Vec::new()) };
        self.read += end + 1;
        let text = String::from_utf8_lossy(&new[..end]);
        let lines = text.lines().filter(|l| !l.trim().is_empty());
        lines
            .map(|l| {
                let name = || format!("a line of {} is not JSON: {l}", self.path.display());
                serde_json::from_str(l).with_context(name)
            })
            .collect()
    }
}

/// A line of the timeline, put on the clock of the load.
pub(super) fn window(line: &Value, t_s: f64) -> Window {
    let mut window: Window = serde_json::from_value(line.clone()).unwrap_or_default();
    window.t_s = t_s;
    window
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn tier(kind: &str, pool_bytes: u64, price: f64) -> Tier {
        Tier { medium_kind: kind.into(), pool_bytes, usd_per_gib_month: price, ..Tier::default() }
    }

    #[test]
    fn equation_12_by_hand() {
        let gib = 1u64 << 30;
        let price = DRAM_USD_PER_GIB_MONTH;
        assert_eq!(memory(2 * gib, &[], 0, 0).usd_per_month, 2.0 * price);
        // 3 GiB resident, of which 1 GiB are pools: half in DRAM, half on what costs a third.
        let tiers = [
            tier("dram", 0, price),
            tier("dram", gib / 2, price),
            tier("emulated", gib / 2, price / 3.0),
        ];
        let m = memory(3 * gib, &tiers, 0, 0);
        assert!((m.usd_per_month - price * (2.0 + 0.5 + 0.5 / 3.0)).abs() < 1e-12);
        assert_eq!(m.pool_bytes, gib);
        // A pool that is in a file is not in the resident set.
        let filed = [tier("dram", 0, price), tier("file", gib, price / 10.0)];
        let m = memory(gib, &filed, 0, 0);
        assert!((m.usd_per_month - price * 1.1).abs() < 1e-12);
        // The kernel's pool is beside the resident set and in DRAM.
        let m = memory(gib, &[], gib / 4, gib / 2);
        assert!((m.usd_per_month - price * 0.75).abs() < 1e-12);
        assert_eq!(m.pool_bytes, gib / 4);
    }

    #[test]
    fn zswap_counts_what_was_not_there_before() {
        let text = "MemTotal: 9 kB\nZswap:    100 kB\nZswapped:   400 kB\n";
        let now = Zswap::parse(text);
        assert_eq!(now, Zswap { pool_bytes: 100 << 10, held_bytes: 400 << 10 });
        assert_eq!(now.taken_since(Zswap::default()), (100 << 10) + 100 * ZSWAP_ENTRY_BYTES);
        assert_eq!(now.taken_since(now), 0);
        assert_eq!(Zswap::parse("nothing"), Zswap::default());
    }

    #[test]
    fn counters_are_read_by_their_whole_name() {
        let swap = parse_vmstat("zswpin 7\nzswpinx 9\nzswpout 3\npswpout 1\n");
        assert_eq!((swap.zswpin, swap.zswpout, swap.pswpout, swap.pswpin), (7, 3, 1, 0));
        assert!(swap.touched_disk());
        assert!(!swap_between(&swap, &swap).touched_disk());
        let line = "9 (a) b) S 1 1 1 0 -1 1 1 1 1 1 70 30 0 0 20";
        assert_eq!(stat_ticks(line), Some(100));
    }

    #[test]
    fn processor_time_never_falls_when_threads_and_processes_end() {
        let processes = Processes { application: 0, planner: Some(0) };
        let mut meter = CpuMeter::of(processes);
        let pager = |cpu_s| (7, Thread { serves: true, cpu_s });
        let mover = |cpu_s| (8, Thread { serves: false, cpu_s });
        let before = meter.take_in(Some(10.0), Some(0.5), &[pager(1.0), mover(2.0)]);
        let whole =
            Cpu { application_s: 7.0, runtime_s: 3.0, fault_service_s: 1.0, planner_s: 0.5 };
        assert_eq!(before, whole);
        // The mover is gone, then all threads, the program, and the planner.
        let after = meter.take_in(Some(12.0), Some(0.75), &[pager(1.5)]);
        let spent =
            Cpu { application_s: 1.5, runtime_s: 0.5, fault_service_s: 0.5, planner_s: 0.25 };
        assert_eq!(cpu_between(&before, &after), spent);
        assert_eq!(meter.take_in(Some(12.0), Some(0.75), &[]), after);
        assert_eq!(meter.take_in(None, None, &[]), after);
    }

    #[test]
    fn processor_time_of_this_process_is_read() {
        let mut meter = CpuMeter::of(Processes { application: std::process::id(), planner: None });
        let before = meter.read();
        let since = std::time::Instant::now();
        // Ticks are 10 ms; how many we get of a crowded CPU is not ours to say.
        while meter.read().application_s < before.application_s + 0.02 {
            assert!(since.elapsed().as_secs() < 60, "{before:?}");
        }
        let nobody = Processes { application: u32::MAX, planner: None };
        assert_eq!((process_cpu_s(u32::MAX), nobody.rss_bytes()), (None, None));
    }

    #[test]
    fn a_line_that_is_being_written_waits() {
        let folder = crate::demo::redis::TempDir::new("paper-lines").unwrap();
        let path = folder.path().join("lines");
        let mut lines = Lines::of(&path);
        assert!(lines.poll().unwrap().is_empty());
        let mut file = fs::File::create(&path).unwrap();
        file.write_all(b"{\"a\":1}\n{\"a\":").unwrap();
        assert_eq!(lines.poll().unwrap().len(), 1);
        file.write_all(b"2}\n").unwrap();
        assert_eq!(lines.poll().unwrap()[0]["a"], 2);
        file.write_all(b"nonsense\n").unwrap();
        assert!(lines.poll().is_err());
    }
}
