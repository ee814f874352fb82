//! What the runtime's time went on in a recording: watching, moves, faults.
//!
//! The processor time of a window is known as a sum. Most of it is for watching and has nothing to
//! do with what is moved; told as a price of moves it would keep every policy from moving anything.
//! What a page moved and a page that faulted add is told by how the sum changes from one window to
//! the next with theirs: slow drifts drop out, and a usual figure stands in for what few pages
//! leave open. The rest of each window is watching, and stays what it was.

use std::collections::HashMap;

use terrace_core::cost::TierCost;

use crate::trace::read::Trace;
use crate::trace::{ProcessWindow, Row};

/// Processor time for a page moved and for one that faulted, beside what is waited for, in
/// nanoseconds: usual figures, how far from them a machine may well be, and the range.
const MOVE_NS: (f64, f64) = (12_000.0, 6_000.0);
const FAULT_NS: (f64, f64) = (5_000.0, 5_000.0);
const RANGE_NS: (f64, f64) = (1_000.0, 60_000.0);
/// The same of a page moved where nothing was recorded.
const MOVE_NS_GENERATED: f64 = 20_000.0;
/// Windows to learn from, at least.
const WINDOWS_MIN: usize = 12;
/// Scatter of processor time that is taken for granted, in nanoseconds.
const SCATTER_NS: f64 = 2e6;
/// Wait for a watched page in nanoseconds, and wait for a page in a tier by what was known of it at
/// the end of the run: as above, and the scatter of a window's waits.
const HIT_NS: (f64, f64) = (12_000.0, 12_000.0);
const FAULT_SCALE: (f64, f64) = (1.0, 0.3);
const FAULT_SCALE_RANGE: (f64, f64) = (0.25, 4.0);
const WAIT_SCATTER_NS: f64 = 1e6;
/// Share of the pages that came home which a thread waited for, at least: a fault brings 16 others
/// along at most.
const SERVED_MIN: f64 = 1.0 / 17.0;
/// Range of what threads wait in a window by what they usually do.
const SLOWER_RANGE: (f64, f64) = (0.25, 8.0);

/// What a trace tells of the machine beside its tiers.
#[derive(Clone, PartialEq, Debug)]
pub struct Spent {
    /// Processor time of moving a page, in nanoseconds.
    pub move_ns: f64,
    /// Processor time for a page that faulted, in nanoseconds.
    pub fault_cpu_ns: f64,
    /// Wait for a page that is watched, in nanoseconds.
    pub hit_ns: f64,
    /// Wait for a page in a tier on average over the run, by what was known of it at the end.
    pub fault_scale: f64,
    /// That wait in nanoseconds, tier by tier.
    fault_ns: Vec<f64>,
    faults: Faults,
    /// Share of the processor time that the applications would have used.
    pub contention: f64,
}

impl Spent {
    /// Of a trace with tiers at these costs.
    pub fn of(trace: &Trace, tiers: &[TierCost]) -> Spent {
        let all = || trace.batch.processes.values();
        let measured = all().filter(|p| p.running_ns > 0);
        let (sum, count) =
            measured.fold((0.0, 0.0), |(sum, n), p| (sum + f64::from(p.contention), n + 1.0));
        let contention = if count > 0.0 { (sum / count).clamp(0.0, 1.0) } else { 1.0 };
        if trace.meta.is_exact {
            let move_ns = MOVE_NS_GENERATED;
            let fault_ns = Vec::new();
            let (fault_cpu_ns, hit_ns, fault_scale) = (0.0, 0.0, 1.0);
            let faults = Faults::default();
            return Spent {
                move_ns,
                fault_cpu_ns,
                hit_ns,
                fault_scale,
                fault_ns,
                faults,
                contention,
            };
        }
        let faults = Faults::of(trace);
        let (move_ns, fault_cpu_ns) = by_changes(trace, &faults);
        let (fault_scale, hit_ns) = waits(trace, tiers, &faults);
        let fault_ns = tiers.iter().map(|tier| tier.fault_ns * fault_scale).collect();
        Spent { move_ns, fault_cpu_ns, hit_ns, fault_scale, fault_ns, faults, contention }
    }

    /// Faults from tiers in a window that threads waited for.
    pub fn faults(&self, pid: u32, window: u32) -> f64 {
        self.faults.served(pid, window)
    }

    /// The same as a share of the pages that came home because they were touched.
    pub fn fault_share(&self, pid: u32, window: u32) -> f64 {
        self.faults.share(pid, window)
    }

    /// Whether there was no run.
    pub fn is_generated(&self) -> bool {
        self.fault_ns.is_empty()
    }

    /// What threads usually wait for the pages of a region in a window.
    pub fn waits_ns(&self, row: &Row) -> f64 {
        let tier = usize::from(row.tier);
        let fault_ns = self.fault_ns.get(tier).or(self.fault_ns.last()).copied().unwrap_or(0.0);
        let faults = f64::from(row.faults) * self.fault_share(row.pid, row.window);
        faults * fault_ns + f64::from(row.hits) * self.hit_ns
    }

    /// What threads waited in a window by what they usually would have, if that is `waits_ns`.
    pub fn slower(&self, process: &ProcessWindow, waits_ns: f64) -> f64 {
        if self.is_generated() {
            return 1.0;
        }
        let (low, high) = SLOWER_RANGE;
        let waited = process.stalled_ns as f64 + WAIT_SCATTER_NS;
        (waited / (waits_ns + WAIT_SCATTER_NS)).clamp(low, high)
    }

    /// What is left of a window's processor time for watching, with so many faults in it.
    pub fn watching_ns(&self, process: &ProcessWindow, faults: f64) -> f64 {
        let others = f64::from(process.moved_pages) * self.move_ns + faults * self.fault_cpu_ns;
        (process.cpu_ns as f64 - others).max(0.0)
    }
}

/// What came home in each window of each process because it was touched, and how.
#[derive(Clone, PartialEq, Debug, Default)]
struct Faults(HashMap<(u32, u32), Came>);

#[derive(Clone, Copy, PartialEq, Debug, Default)]
struct Came {
    pages: f64,
    /// Of those, the ones that a thread waited for.
    served: f64,
}

impl Faults {
    /// (A region's faults are the pages of it that came home and were touched: what a scan's fault
    /// brought along counts once the scan has gone past it.)
    fn of(trace: &Trace) -> Faults {
        let mut faults: HashMap<(u32, u32), Came> = HashMap::new();
        for row in &trace.batch.rows {
            faults.entry((row.pid, row.window)).or_default().pages += f64::from(row.faults);
        }
        for (key, came) in &mut faults {
            let process = trace.batch.processes.get(key).copied().unwrap_or_default();
            let served = match process.served_faults {
                // An older trace, perhaps: it says how many were brought, and not how many of them
                // for nothing.
                0 => (came.pages - f64::from(process.ahead_pages)).max(SERVED_MIN * came.pages),
                served => f64::from(served),
            };
            came.served = served.min(came.pages);
        }
        Faults(faults)
    }

    fn served(&self, pid: u32, window: u32) -> f64 {
        self.0.get(&(pid, window)).map_or(0.0, |came| came.served)
    }

    fn share(&self, pid: u32, window: u32) -> f64 {
        let came = self.0.get(&(pid, window)).copied().unwrap_or_default();
        if came.pages > 0.0 {
            came.served / came.pages
        } else {
            1.0
        }
    }
}

/// What a page moved and one that faulted add to the processor time of a window.
fn by_changes(trace: &Trace, faults: &Faults) -> (f64, f64) {
    let usual = (MOVE_NS.0, FAULT_NS.0);
    let changes: Vec<[f64; 3]> = trace
        .batch
        .processes
        .iter()
        .filter_map(|(&(pid, window), now)| {
            let before = trace.batch.processes.get(&(pid, window.checked_sub(1)?))?;
            let since = |of: fn(&ProcessWindow) -> f64| of(now) - of(before);
            (now.running_ns > 0 && before.running_ns > 0).then(|| {
                [
                    since(|p| f64::from(p.moved_pages)),
                    faults.served(pid, window) - faults.served(pid, window - 1),
                    since(|p| p.cpu_ns as f64),
                ]
            })
        })
        .collect();
    if changes.len() < WINDOWS_MIN {
        return usual;
    }
    let (low, high) = RANGE_NS;
    let (moved, came) = fit(&changes, [MOVE_NS, FAULT_NS], SCATTER_NS);
    (moved.clamp(low, high), came.clamp(0.0, high))
}

/// Two factors by least squares of what is beyond the usual, which is `usual[_].0`, give or take
/// `usual[_].1`. Each row is what the two are multiplied by, and the sum.
fn fit(rows: &[[f64; 3]], usual: [(f64, f64); 2], scatter_min: f64) -> (f64, f64) {
    let mut found = (usual[0].0, usual[1].0);
    let mut scatter = f64::INFINITY;
    for _ in 0..3 {
        let off = |[x, y, sum]: &[f64; 3]| sum - x * found.0 - y * found.1;
        let mut all: Vec<f64> = rows.iter().map(|row| off(row).abs()).collect();
        all.sort_by(f64::total_cmp);
        // From the middle one, so that a few windows in which the machine did something else do
        // not count for more than they are.
        let middle = all.get(all.len() / 2).copied().unwrap_or(0.0);
        scatter = (1.5 * middle).max(scatter_min).min(scatter);
        let [mut a, mut b, mut c] = [1.0 / usual[0].1.powi(2), 0.0, 1.0 / usual[1].1.powi(2)];
        let [mut u, mut v] = [0.0, 0.0];
        for row in rows {
            let [x, y, sum] = *row;
            let weight = (2.0 * scatter / off(row).abs().max(1.0)).min(1.0) / scatter.powi(2);
            let rest = sum - x * usual[0].0 - y * usual[1].0;
            a += weight * x * x;
            b += weight * x * y;
            c += weight * y * y;
            u += weight * x * rest;
            v += weight * y * rest;
        }
        let det = a * c - b * b;
        found = (usual[0].0 + (u * c - v * b) / det, usual[1].0 + (v * a - u * b) / det);
    }
    found
}

/// What the wait for a page in a tier was by what it was at the end, and the wait for a page that
/// was watched.
fn waits(trace: &Trace, tiers: &[TierCost], came: &Faults) -> (f64, f64) {
    let mut windows = std::collections::BTreeMap::new();
    for row in &trace.batch.rows {
        let tier = usize::from(row.tier).min(tiers.len() - 1);
        let [faults, hits, _] = windows.entry((row.pid, row.window)).or_insert([0.0; 3]);
        let share = came.share(row.pid, row.window);
        *faults += f64::from(row.faults) * share * tiers[tier].fault_ns;
        *hits += f64::from(row.hits);
    }
    for (key, window) in &mut windows {
        window[2] = trace.batch.processes.get(key).map_or(0.0, |p| p.stalled_ns as f64);
    }
    let rows: Vec<[f64; 3]> = windows.into_values().collect();
    let (scale, hit_ns) = fit(&rows, [FAULT_SCALE, HIT_NS], WAIT_SCATTER_NS);
    let (low, high) = FAULT_SCALE_RANGE;
    (scale.clamp(low, high), hit_ns.clamp(0.0, HIT_NS.0 * 10.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::preset::Preset;
    use crate::sim::costs;
    use crate::trace::write::Batch;
    use crate::trace::Meta;

    /// Windows with these pages moved, faults and processor time; 800 hits of 7 us in each, and a
    /// fault that takes three quarters of what it did at the end.
    fn trace(windows: impl Iterator<Item = (u32, u16, f64)>) -> Trace {
        let config = Config::from_preset(Preset::Auto);
        let meta = Meta { is_exact: false, ..Meta::of(&config, &costs::nominal(&config), "x") };
        let mut batch = Batch::default();
        for (window, (moved_pages, faults, cpu_ns)) in (1..).zip(windows) {
            let fault_ns = meta.tiers[1].fault_ns;
            let process = ProcessWindow {
                running_ns: 2_000_000_000,
                stalled_ns: (f64::from(faults) * 0.75 * fault_ns + 5.6e6) as u64,
                cpu_ns: cpu_ns as u64,
                contention: 0.5,
                moved_pages,
                ..ProcessWindow::default()
            };
            batch.processes.insert((7, window), process);
            let row = Row { pid: 7, window, tier: 1, faults, hits: 200, ..Row::default() };
            batch.rows.extend([row; 4].map(|row| Row { faults: row.faults / 4, ..row }));
        }
        Trace { meta, batch }
    }

    fn of(trace: &Trace) -> Spent {
        Spent::of(trace, &crate::trace::costs(&trace.meta.tiers))
    }

    #[test]
    fn watching_is_told_from_moves_and_faults_through_drifts_and_single_bad_windows() {
        let window = |n: u32| {
            let (moved, faults) = (n * n * 37 % 4000, (n * n * n % 900) as u16);
            let bad = if n.is_multiple_of(17) { 6e7 } else { 0.0 };
            let watching = 4e7 + 4e5 * f64::from(n) + bad;
            (moved, faults, watching + f64::from(moved) * 9e3 + f64::from(faults) * 8e3)
        };
        let trace = trace((0..60).map(window));
        let spent = of(&trace);
        assert!((spent.move_ns - 9e3).abs() < 1e3, "{spent:?}");
        assert!((spent.fault_cpu_ns - 8e3).abs() < 3e3, "{spent:?}");
        assert!((spent.hit_ns - 7e3).abs() < 500.0, "{spent:?}");
        assert!((spent.fault_scale - 0.75).abs() < 0.1, "{spent:?}");
        assert_eq!(spent.contention, 0.5);
        let process = trace.batch.processes[&(7, 41)];
        let left = spent.watching_ns(&process, f64::from(window(40).1));
        assert!((left - 5.6e7).abs() < 6e6, "{left}");
        assert_eq!(spent.watching_ns(&ProcessWindow::default(), 1e3), 0.0);
        let twice = ProcessWindow { stalled_ns: 41_000_000, ..process };
        assert!((spent.slower(&twice, 2e7) - 2.0).abs() < 1e-9);
    }

    #[test]
    fn what_scans_bring_along_is_waited_for_by_nobody() {
        // 400 pages came home in each window.
        let with = |served_faults: u32, ahead_pages: u32| {
            let mut trace = trace((0..20).map(|n| (0, 400, 4e7 + 1e5 * f64::from(n % 7))));
            for process in trace.batch.processes.values_mut() {
                (process.served_faults, process.ahead_pages) = (served_faults, ahead_pages);
                process.stalled_ns = 5_600_000 + u64::from(served_faults.max(50)) * 10_000;
            }
            let spent = of(&trace);
            (spent.faults(7, 3), spent.fault_share(7, 3))
        };
        assert_eq!(with(0, 0), (400.0, 1.0));
        assert_eq!(with(100, 350), (100.0, 0.25));
        // An older trace has only what was brought, in vain or not.
        assert_eq!(with(0, 300), (100.0, 0.25));
        let (served, share) = with(0, 5_000);
        assert!((served - 400.0 / 17.0).abs() < 1e-9 && (share - SERVED_MIN).abs() < 1e-9);
        assert_eq!(with(401, 0), (400.0, 1.0), "some were caught on their way");
        let other = of(&trace((0..20).map(|_| (0, 400, 4e7))));
        assert_eq!((other.faults(8, 3), other.fault_share(8, 3)), (0.0, 1.0));
    }

    #[test]
    fn waits_are_those_of_the_faults_that_were_served() {
        let came = |n: u32| n.pow(3) % 900 * 8;
        let mut trace = trace((0..60).map(|n| (0, came(n) as u16, 4e7)));
        let fault_ns = trace.meta.tiers[1].fault_ns;
        for (&(_, window), process) in &mut trace.batch.processes {
            let came = came(window - 1);
            process.served_faults = came / 4;
            process.ahead_pages = came - came / 4;
            process.stalled_ns = (f64::from(came / 4) * 0.75 * fault_ns + 5.6e6) as u64;
        }
        let spent = of(&trace);
        assert!((spent.fault_scale - 0.75).abs() < 0.1, "{spent:?}");
    }

    #[test]
    fn short_recordings_and_such_without_moves_take_the_usual_figures() {
        let short = of(&trace((0..8).map(|n| (n * 500, 0, 5e7))));
        assert_eq!((short.move_ns, short.fault_cpu_ns), (MOVE_NS.0, FAULT_NS.0));
        let idle = of(&trace((0..60).map(|n| (0, 0, 4e7 + 1e5 * f64::from(n % 7)))));
        assert_eq!((idle.move_ns, idle.fault_cpu_ns), (MOVE_NS.0, FAULT_NS.0));
        // Moves that seem to cost less than nothing.
        let odd = of(&trace((0..60).map(|n| (n % 5 * 1000, 0, 9e7 - 1e7 * f64::from(n % 5)))));
        assert_eq!(odd.move_ns, RANGE_NS.0);
    }
}
