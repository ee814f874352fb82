//! What a window did to an application: how long it ran, how long it waited, and whether the
//! processor time that Terrace took was wanted by anybody else.
//!
//! All of it is read from `/proc` and from the runtime's report, and none of it is exact: a program
//! that waits for the network runs little, and the slowdown of what little it does is what counts,
//! down to [`RUNNING_MIN`] of one thread. A program that does nothing at all must still be tiered.

use std::time::Instant;

use serde_json::{json, Value};

use super::queued::Queued;
use terrace_core::plan::Measured;
use terrace_core::wire::Report;

/// Least running time that a program is taken to have, as a share of one thread's.
const RUNNING_MIN: f64 = 0.2;

/// Least share of the processor time of Terrace's that counts as wanted, by the share of the
/// machine's processors that are busy: what runs on another processor takes nothing but caches and
/// bandwidth, and sometimes half of a core.
const BESIDE: f64 = 0.25;

/// A tick of `/proc`, in nanoseconds: `USER_HZ` is 100 on every Linux that Terrace runs on.
const TICK_NS: u64 = 10_000_000;

/// Reads what a window did to one process.
pub(super) struct Meter {
    pid: u32,
    last: Option<Reading>,
    queued: Queued,
}

/// Clocks that only run forward.
#[derive(Clone, Copy)]
struct Reading {
    at: Instant,
    /// Processor time of the process, the runtime's threads included, in nanoseconds.
    process_ns: u64,
    /// Time of all processors, busy and altogether, in ticks.
    busy: u64,
    all: u64,
}

impl Meter {
    pub(super) fn new(pid: u32) -> Meter {
        Meter { pid, last: None, queued: Queued::new(pid) }
    }

    /// Closes a window: `planner_cpu_ns` is the planner's processor time so far, `before` the
    /// report of the window before and what it was then. `None` where there is nothing to compare
    /// with, or `/proc` is silent.
    pub(super) fn window(
        &mut self,
        report: &Report,
        planner_cpu_ns: u64,
        before: Option<(&Report, u64)>,
    ) -> Option<Measured> {
        let now = self.read()?;
        let queued_ns = self.queued.since_last_ns();
        let last = self.last.replace(now)?;
        let (before, planner_before) = before?;
        let since = |now: u64, then: u64| now.saturating_sub(then) as f64;

        let wall_ns = now.at.duration_since(last.at).as_nanos() as f64;
        let runtime_ns = since(report.runtime_cpu_ns, before.runtime_cpu_ns);
        let stalled_ns = since(report.stalled_ns, before.stalled_ns);
        let faults = since(report.served_faults(), before.served_faults());
        // The service of faults is in both clocks; it is waited for, so it counts there.
        let service_ns = since(service_ns(report), service_ns(before));
        let cpu_ns = (runtime_ns - service_ns).max(0.0) + since(planner_cpu_ns, planner_before);
        let own_ns = (since(now.process_ns, last.process_ns) - runtime_ns).max(0.0);
        let all = since(now.all, last.all);
        let busy = if all > 0.0 { since(now.busy, last.busy) / all } else { 1.0 };
        Some(Measured {
            running_ns: own_ns.max(RUNNING_MIN * wall_ns),
            stalled_ns,
            cpu_ns,
            contention: contention(busy, cpu_ns, queued_ns),
            faults,
        })
    }

    fn read(&self) -> Option<Reading> {
        let process = std::fs::read_to_string(format!("/proc/{}/stat", self.pid)).ok()?;
        let machine = std::fs::read_to_string("/proc/stat").ok()?;
        let (busy, all) = machine_ticks(&machine)?;
        let process_ns = process_ticks(&process)? * TICK_NS;
        Some(Reading { at: Instant::now(), process_ns, busy, all })
    }
}

/// Share of the processor time `cpu_ns` of Terrace's that the application would have used, where
/// its threads were kept waiting for a processor for `queued_ns`, if that is known, and a share of
/// `busy` of all processors was in use.
fn contention(busy: f64, cpu_ns: f64, queued_ns: Option<f64>) -> f64 {
    match queued_ns {
        Some(queued_ns) if cpu_ns > 0.0 => (queued_ns / cpu_ns).clamp(BESIDE * busy, busy),
        _ => busy,
    }
}

/// Processor time of serving faults since the start: what threads waited, without what waking
/// costs on either side.
pub(super) fn service_ns(report: &Report) -> u64 {
    report.stalled_ns.saturating_sub(report.waking_ns)
}

/// What a window took from the application, by cause, in milliseconds: what is held against
/// `--max-slowdown`, and the running time that it is held against.
pub(super) fn lost(report: &Report, before: &Report, measured: &Measured) -> Value {
    let since = |of: fn(&Report) -> u64| of(report).saturating_sub(of(before)) as f64;
    let in_tiers = |r: &Report| r.tiers.iter().map(|t| t.fault_ns_total).sum::<u64>();
    let (stalled, tiers, fresh) = (since(|r| r.stalled_ns), since(in_tiers), since(|r| r.fresh_ns));
    json!({
        "running_ms": measured.running_ns / 1e6,
        "tiers_ms": tiers / 1e6,
        "fresh_ms": fresh / 1e6,
        "watching_ms": (stalled - tiers - fresh).max(0.0) / 1e6,
        "processor_ms": measured.taken_ns() / 1e6,
    })
}

/// `utime` + `stime` of `/proc/PID/stat`. The command's name before them may contain anything.
fn process_ticks(stat: &str) -> Option<u64> {
    let after = &stat[stat.rfind(')')? + 1..];
    let mut fields = after.split_ascii_whitespace().skip(11);
    let user: u64 = fields.next()?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    Some(user + system)
}

/// Busy and all ticks of `/proc/stat`. Waiting for a disk is not busy.
fn machine_ticks(stat: &str) -> Option<(u64, u64)> {
    let line = stat.lines().find(|line| line.starts_with("cpu "))?;
    // user nice system idle iowait irq softirq steal; guests are counted in user already.
    let fields: Vec<u64> =
        line.split_ascii_whitespace().skip(1).take(8).map_while(|f| f.parse().ok()).collect();
    let idle = fields.get(3)? + fields.get(4)?;
    let all = fields.iter().sum();
    Some((all - idle, all))
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrace_core::wire::TierReport;

    #[test]
    fn proc_is_read_as_it_is_written() {
        let stat = "7 (a) b) R 1 7 7 0 -1 4194304 1 0 0 0 250 50 9 9 20 0 1 0 5 0 0 0";
        assert_eq!(process_ticks(stat), Some(300));
        assert_eq!(process_ticks("7 (a"), None);
        let machine = "cpu  100 0 50 700 100 10 20 20 5 0\ncpu0 1 1 1 1 1 1 1 1 0 0\n";
        assert_eq!(machine_ticks(machine), Some((200, 1_000)));
        assert_eq!(machine_ticks("cpu 1 2"), None);
    }

    #[test]
    fn what_kept_nobody_waiting_was_not_taken() {
        // Nobody knows; nothing to share out.
        assert_eq!(contention(0.6, 1e8, None), 0.6);
        assert_eq!(contention(0.6, 0.0, Some(1e6)), 0.6);
        // Threads waited for a third of what Terrace took, for more than that, for nothing.
        assert_eq!(contention(0.6, 1e8, Some(3e7)), 0.3);
        assert_eq!(contention(0.6, 1e8, Some(3e9)), 0.6);
        assert_eq!(contention(0.6, 1e8, Some(0.0)), 0.15);
    }

    #[test]
    fn what_a_window_lost_is_told_by_cause() {
        let report = |stalled_ns, fault_ns_total, fresh_ns| Report {
            stalled_ns,
            fresh_ns,
            tiers: vec![TierReport { fault_ns_total, ..TierReport::default() }; 2],
            ..Report::default()
        };
        let measured =
            Measured { running_ns: 9e8, cpu_ns: 1e7, contention: 0.5, ..Measured::default() };
        let before = report(5_000_000, 1_000_000, 2_000_000);
        let told = lost(&report(15_000_000, 3_000_000, 4_500_000), &before, &measured);
        let wanted = [900.0, 4.0, 2.5, 3.5, 5.0];
        let causes = ["running_ms", "tiers_ms", "fresh_ms", "watching_ms", "processor_ms"];
        assert_eq!(causes.map(|cause| told[cause].as_f64().unwrap_or(-1.0)), wanted);
        // A mean that is kept of a tier's latencies may be a little more than what was waited.
        let odd = lost(&report(6_000_000, 2_000_000, 2_000_000), &before, &measured);
        assert_eq!(odd["watching_ms"], 0.0);
    }

    #[test]
    fn a_window_is_what_changed_in_it() {
        let mut meter = Meter::new(std::process::id());
        let report = |stalled_ns, runtime_cpu_ns, faults: u64| Report {
            stalled_ns,
            runtime_cpu_ns,
            waking_ns: faults * 1_000,
            tiers: vec![TierReport { faults: faults / 2, ..TierReport::default() }],
            sample_faults: faults / 2,
            ..Report::default()
        };
        let first = report(5_000_000, 8_000_000, 100);
        assert_eq!(meter.window(&first, 1_000, None), None);
        let second = report(9_000_000, 18_000_000, 1_100);
        let measured = meter.window(&second, 501_000, Some((&first, 1_000))).expect("compared");
        assert_eq!((measured.stalled_ns, measured.faults), (4e6, 500.0));
        // 10 ms of the runtime; of the 4 ms waited, 1,000 us were waking up and 3 ms service. (Half
        // of them were for samples.)
        assert_eq!(measured.cpu_ns, 7e6 + 500_000.0);
        assert!(measured.running_ns > 0.0 && (0.0..=1.0).contains(&measured.contention));
        assert_eq!(Meter::new(u32::MAX).window(&second, 0, Some((&first, 0))), None);
    }
}
