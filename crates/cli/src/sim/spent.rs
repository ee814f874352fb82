//! What the runtime's time went on in a recording: watching, moves, faults.
//!
//! The processor time of a window is known as a sum. Most of it is for watching and has nothing to
//! do with what is moved; told as a price of moves it would keep every policy from moving anything.
//! What a page moved to each tier and a page that faulted add is told by how the sum changes from
//! one window to the next with theirs: slow drifts drop out, and a usual figure stands in for what
//! few pages leave open. The rest of each window is watching, and stays what it was.

use std::collections::HashMap;

use terrace_core::cost::TierCost;

use super::fit::{fit, Sample, Usual};
use super::moved::Moved;
use crate::trace::read::Trace;
use crate::trace::{ProcessWindow, Row};

/// Processor time for a page that faulted, beside what is waited for, in nanoseconds: a usual
/// figure, how far from it a machine may well be, and the most that is believed.
const FAULT_NS: Usual = (5_000.0, 5_000.0);
const FAULT_MAX_NS: f64 = 60_000.0;
/// Processor time for a page moved, by what the planner took it to be: how far from that it may
/// well be, and the range.
const MOVE_SPREAD: f64 = 0.5;
const MOVE_RANGE: (f64, f64) = (0.1, 5.0);
/// The same of a page moved where nothing was recorded.
const MOVE_NS_GENERATED: f64 = 20_000.0;
/// Windows to learn from, at least.
const WINDOWS_MIN: usize = 12;
/// Scatter of processor time that is taken for granted, in nanoseconds.
const SCATTER_NS: f64 = 2e6;
/// Wait for a watched page in nanoseconds, and wait for a page in a tier by what was known of it at
/// the end of the run: as above, and the scatter of a window's waits.
const HIT_NS: Usual = (12_000.0, 12_000.0);
const FAULT_SCALE: Usual = (1.0, 0.3);
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
    /// Processor time of moving a page to each of the trace's tiers, in nanoseconds.
    move_ns: Vec<f64>,
    /// The same by what the planner took it to be, on average over the tiers.
    longer: f64,
    /// Processor time for a page that faulted, in nanoseconds.
    pub fault_cpu_ns: f64,
    /// Wait for a page that is watched, in nanoseconds.
    pub hit_ns: f64,
    /// Wait for a page in a tier on average over the run, by what was known of it at the end.
    pub fault_scale: f64,
    /// That wait in nanoseconds, tier by tier.
    fault_ns: Vec<f64>,
    faults: Faults,
    moved: Moved,
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
            return Spent {
                move_ns: vec![MOVE_NS_GENERATED; tiers.len()],
                longer: 1.0,
                fault_cpu_ns: 0.0,
                hit_ns: 0.0,
                fault_scale: 1.0,
                fault_ns: Vec::new(),
                faults: Faults::default(),
                moved: Moved::default(),
                contention,
            };
        }
        let (faults, moved) = (Faults::of(trace), Moved::of(trace));
        let (move_ns, fault_cpu_ns) = by_changes(trace, tiers, &faults, &moved);
        let by = move_ns.iter().zip(tiers).map(|(ns, tier)| ns / tier.move_ns.max(1.0));
        let longer = by.sum::<f64>() / tiers.len().max(1) as f64;
        let (fault_scale, hit_ns) = waits(trace, tiers, &faults);
        let fault_ns = tiers.iter().map(|tier| tier.fault_ns * fault_scale).collect();
        Spent {
            move_ns,
            longer,
            fault_cpu_ns,
            hit_ns,
            fault_scale,
            fault_ns,
            faults,
            moved,
            contention,
        }
    }

    /// Processor time of moving a page to a tier, in nanoseconds: to that of the trace, if the
    /// trace has it, else by what it is taken to be.
    pub fn move_ns(&self, of_trace: Option<usize>, tier: &TierCost) -> f64 {
        let known = of_trace.and_then(|tier| self.move_ns.get(tier));
        known.copied().unwrap_or(match self.is_generated() {
            true => MOVE_NS_GENERATED,
            false => tier.move_ns * self.longer,
        })
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

    /// What threads usually wait for the pages of a region in a window of its process.
    pub fn usual_waits(&self, row: &Row, process: &ProcessWindow) -> Waits {
        let tier = usize::from(row.tier);
        let in_the_end = self.fault_ns.get(tier).or(self.fault_ns.last()).copied();
        let then = process.known.get(tier).copied().flatten();
        let then = then.map(|known| f64::from(known.fault_ns) * self.fault_scale);
        let fault_ns = then.or(in_the_end).unwrap_or(0.0);
        let faults = f64::from(row.faults) * self.fault_share(row.pid, row.window);
        Waits { faults_ns: faults * fault_ns, hits_ns: f64::from(row.hits) * self.hit_ns }
    }

    /// What threads waited in a window by what they usually would have, if that is `waits`, and the
    /// rest of it, in nanoseconds. In a window in which they would hardly have waited, by a usual
    /// one, what they waited longer is no price of each page: more of them would not have waited
    /// for so much more.
    pub fn slower(&self, process: &ProcessWindow, waits: Waits, usual_ns: f64) -> (f64, f64) {
        if self.is_generated() {
            return (1.0, 0.0);
        }
        let (low, high) = SLOWER_RANGE;
        let waited_ns = process.stalled_ns as f64 + WAIT_SCATTER_NS;
        let expected_ns = waits.sum_ns() + WAIT_SCATTER_NS;
        if waited_ns <= expected_ns {
            return ((waited_ns / expected_ns).max(low), 0.0);
        }
        let by = ((waited_ns + usual_ns) / (expected_ns + usual_ns)).min(high);
        (by, waited_ns - by * expected_ns)
    }

    /// What is left of a window's processor time for watching.
    pub fn watching_ns(&self, process: &ProcessWindow, pid: u32, window: u32) -> f64 {
        let moved = self.moved.by_tier(pid, window);
        let moves_ns: f64 = moved.iter().zip(&self.move_ns).map(|(pages, ns)| pages * ns).sum();
        let faults_ns = self.faults(pid, window) * self.fault_cpu_ns;
        (process.cpu_ns as f64 - moves_ns - faults_ns).max(0.0)
    }
}

/// What threads usually wait for pages in a window, in nanoseconds.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Waits {
    /// For pages in tiers.
    pub faults_ns: f64,
    /// For pages that are watched.
    pub hits_ns: f64,
}

impl Waits {
    /// Adds another region's.
    pub fn add(&mut self, other: Waits) {
        self.faults_ns += other.faults_ns;
        self.hits_ns += other.hits_ns;
    }

    /// For all.
    pub fn sum_ns(&self) -> f64 {
        self.faults_ns + self.hits_ns
    }

    /// The share that is for pages in tiers, 0 to 1.
    pub fn part_of_faults(&self) -> f64 {
        self.faults_ns / (self.sum_ns() + WAIT_SCATTER_NS)
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

/// What a page moved to each tier and one that faulted add to the processor time of a window.
fn by_changes(
    trace: &Trace,
    tiers: &[TierCost],
    faults: &Faults,
    moved: &Moved,
) -> (Vec<f64>, f64) {
    let of = |pid: u32, window: u32| {
        let mut of = moved.by_tier(pid, window)[..tiers.len()].to_vec();
        of.push(faults.served(pid, window));
        of
    };
    let changes: Vec<Sample> = trace
        .batch
        .processes
        .iter()
        .filter_map(|(&(pid, window), now)| {
            let before = trace.batch.processes.get(&(pid, window.checked_sub(1)?))?;
            (now.running_ns > 0 && before.running_ns > 0).then(|| {
                let then = of(pid, window - 1);
                let since =
                    of(pid, window).iter().zip(then).map(|(now, then)| now - then).collect();
                (since, now.cpu_ns as f64 - before.cpu_ns as f64)
            })
        })
        .collect();
    // (A trace may say anything; what it says is checked where policies are given it.)
    let usual = tiers.iter().map(|tier| tier.move_ns.max(0.0));
    let mut usual: Vec<Usual> = usual.map(|ns| (ns, (MOVE_SPREAD * ns).max(1.0))).collect();
    if changes.len() < WINDOWS_MIN {
        return (usual.iter().map(|usual| usual.0).collect(), FAULT_NS.0);
    }
    usual.push(FAULT_NS);
    let mut found = fit(&changes, &usual, SCATTER_NS);
    let fault_cpu_ns = found.pop().unwrap_or(FAULT_NS.0).clamp(0.0, FAULT_MAX_NS);
    let (low, high) = MOVE_RANGE;
    let within = |(found, usual): (&f64, &Usual)| found.clamp(low * usual.0, high * usual.0);
    (found.iter().zip(&usual).map(within).collect(), fault_cpu_ns)
}

/// What the wait for a page in a tier was by what it was at the end, and the wait for a page that
/// was watched.
fn waits(trace: &Trace, tiers: &[TierCost], came: &Faults) -> (f64, f64) {
    let mut windows = std::collections::BTreeMap::new();
    for row in &trace.batch.rows {
        let tier = usize::from(row.tier).min(tiers.len() - 1);
        let [faults, hits, _] = windows.entry((row.pid, row.window)).or_insert([0.0; 3]);
        let share = came.share(row.pid, row.window);
        let process = trace.batch.processes.get(&(row.pid, row.window));
        let then = process.and_then(|process| process.known[tier]);
        let fault_ns = then.map_or(tiers[tier].fault_ns, |then| f64::from(then.fault_ns));
        *faults += f64::from(row.faults) * share * fault_ns;
        *hits += f64::from(row.hits);
    }
    for (key, window) in &mut windows {
        window[2] = trace.batch.processes.get(key).map_or(0.0, |p| p.stalled_ns as f64);
    }
    let rows: Vec<Sample> =
        windows.into_values().map(|[faults, hits, sum]| (vec![faults, hits], sum)).collect();
    let found = fit(&rows, &[FAULT_SCALE, HIT_NS], WAIT_SCATTER_NS);
    let (low, high) = FAULT_SCALE_RANGE;
    (found[0].clamp(low, high), found[1].clamp(0.0, HIT_NS.0 * 10.0))
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
        assert!((spent.move_ns[1] - 9e3).abs() < 1e3, "{spent:?}");
        assert!((spent.fault_cpu_ns - 8e3).abs() < 3e3, "{spent:?}");
        assert!((spent.hit_ns - 7e3).abs() < 500.0, "{spent:?}");
        assert!((spent.fault_scale - 0.75).abs() < 0.1, "{spent:?}");
        assert_eq!(spent.contention, 0.5);
        let process = trace.batch.processes[&(7, 41)];
        let left = spent.watching_ns(&process, 7, 41);
        assert!((left - 5.6e7).abs() < 6e6, "{left}");
        assert_eq!(spent.watching_ns(&ProcessWindow::default(), 7, 41), 0.0);
        let twice = ProcessWindow { stalled_ns: 41_000_000, ..process };
        let waits = Waits { faults_ns: 1.5e7, hits_ns: 5e6 };
        let (by, rest_ns) = spent.slower(&twice, waits, 0.0);
        assert!((by - 2.0).abs() < 1e-9 && rest_ns.abs() < 1.0, "{by} {rest_ns}");
        // Where much more is usual, most of the wait had nothing to do with these pages.
        let (by, rest_ns) = spent.slower(&twice, waits, 1.89e8);
        assert!((by - 1.1).abs() < 1e-9 && (rest_ns - 1.89e7).abs() < 1.0, "{by} {rest_ns}");
        let half = ProcessWindow { stalled_ns: 9_500_000, ..process };
        let (by, rest_ns) = spent.slower(&half, waits, 1.89e8);
        assert!((by - 0.5).abs() < 1e-9 && rest_ns == 0.0, "{by} {rest_ns}");
        assert!((waits.part_of_faults() - 1.5 / 2.1).abs() < 1e-9);
    }

    #[test]
    fn moves_to_one_tier_are_told_from_those_to_another() {
        // To the first tier and to the third, not in step.
        let pages = |n: u32| [n * n * 37 % 4000, n * n * n * 11 % 4000];
        let mut trace = trace((0..60).map(|n| {
            let [quick, dense] = pages(n);
            let cpu_ns = 4e7 + f64::from(quick) * 9e3 + f64::from(dense) * 40e3;
            (quick + dense, 0, cpu_ns)
        }));
        for row in std::mem::take(&mut trace.batch.rows).into_iter().step_by(4) {
            // (Window numbers begin with 1.)
            let [quick, dense] = pages(row.window);
            let to = |tier: u8, pages: u32| Row { to: Some(tier), pages: pages as u16, ..row };
            let plan = [Row { tier: 0, ..to(1, quick) }, Row { tier: 0, ..to(3, dense) }];
            trace.batch.rows.extend(plan);
        }
        let spent = of(&trace);
        assert!((spent.move_ns[1] - 9e3).abs() < 1e3, "{spent:?}");
        assert!((spent.move_ns[3] - 40e3).abs() < 2e3, "{spent:?}");
        // A tier that the trace does not have is as much dearer than thought as its tiers are.
        let other = TierCost { move_ns: 1e4, ..TierCost::dram(0.3) };
        assert_eq!(spent.move_ns(Some(3), &other), spent.move_ns[3]);
        assert_eq!(spent.move_ns(None, &other), 1e4 * spent.longer);
        assert!(spent.longer > 1.0, "{spent:?}");
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
        let short = trace((0..8).map(|n| (n * 500, 0, 5e7)));
        let tiers = crate::trace::costs(&short.meta.tiers);
        let usual: Vec<f64> = tiers.iter().map(|tier| tier.move_ns).collect();
        let short = of(&short);
        assert_eq!((&short.move_ns, short.fault_cpu_ns), (&usual, FAULT_NS.0));
        let idle = of(&trace((0..60).map(|n| (0, 0, 4e7 + 1e5 * f64::from(n % 7)))));
        assert_eq!((&idle.move_ns, idle.fault_cpu_ns), (&usual, FAULT_NS.0));
        // Moves that seem to cost less than nothing.
        let odd = of(&trace((0..60).map(|n| (n % 5 * 1000, 0, 9e7 - 1e7 * f64::from(n % 5)))));
        assert_eq!(odd.move_ns[1], MOVE_RANGE.0 * usual[1]);
    }
}
