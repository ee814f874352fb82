//! From a trace to applications, and one policy's run over them.

use std::collections::BTreeMap;
use std::ops::Range;

use anyhow::{ensure, Result};
use terrace_core::cost::{tco_saved, TierCost, BYTES_PER_GIB};
use terrace_core::degrees::Degrees;
use terrace_core::load::{Area, Clock, Gaps, Load};
use terrace_core::looks::Watching;
use terrace_core::plan::{Analytical, Policy, Ratios};
use terrace_core::sim::{waits, Machine, Simulation};
use terrace_core::tier::MAX_TIERS;
use terrace_core::touches::{areas_of, Recorded, Seen};

use super::known;
use super::spent::{Spent, Waits};
use crate::config::Config;
use crate::demo::random::Random;
use crate::policy;
use crate::trace::read::Trace;
use crate::trace::{ProcessWindow, Row};

/// Windows in which a policy only learns what there is; they do not count.
pub const WARM_UP: usize = 10;
/// Least running time of a window as a share of it, where none was measured.
const RUNNING_MIN: f64 = 0.2;
/// Rate of movers without a limit, MiB per second: one thread's with lz4.
const MOVE_MIB_S: u64 = 400;

/// The applications of a trace on `tiers`; `from` names, for each of these, that of the trace. Of
/// each process so many windows do not count, `None`: as many as is usual.
pub fn loads(
    trace: &Trace,
    tiers: &[TierCost],
    from: &[Option<usize>],
    spent: &Spent,
    warm_up: Option<u32>,
) -> Result<Vec<Load>> {
    let rows = in_order(&trace.batch.rows);
    ensure!(!rows.is_empty(), "the trace has no rows");
    let load = |rows: &[&Row]| load(trace, rows, (tiers, from), spent);
    let mut loads: Vec<Load> = rows.chunk_by(|a, b| a.pid == b.pid).map(load).collect();
    for load in &mut loads {
        let windows = load.clocks.len();
        load.counts_from = match warm_up {
            Some(asked) => (asked as usize).min(windows),
            None => WARM_UP.min(windows / 2),
        };
    }
    ensure!(
        loads.iter().any(|load| !counted(load).is_empty()),
        "--warm-up leaves nothing that counts: the longest process has {} windows",
        loads.iter().map(|load| load.clocks.len()).max().unwrap_or(0)
    );
    Ok(loads)
}

/// The rows in the order of process, region and window. A trace has them in pieces, each in that
/// order and later than the one before: they are dealt out to their regions, and sorted only where
/// that is not so.
fn in_order(rows: &[Row]) -> Vec<&Row> {
    let of = |row: &Row| (row.pid, row.region);
    let runs = || rows.chunk_by(|a, b| of(a) == of(b));
    let mut counts: BTreeMap<(u32, u64), usize> = BTreeMap::new();
    for run in runs() {
        *counts.entry(of(&run[0])).or_default() += run.len();
    }
    let Some(any) = rows.first() else { return Vec::new() };
    let mut ordered = vec![any; rows.len()];
    let mut end = 0;
    for begin in counts.values_mut() {
        end += std::mem::replace(begin, end);
    }
    let mut next = counts;
    for run in runs() {
        let begin = next.entry(of(&run[0])).or_default();
        for (place, row) in ordered[*begin..].iter_mut().zip(run) {
            *place = row;
        }
        *begin += run.len();
    }
    for region in ordered.chunk_by_mut(|a, b| of(a) == of(b)) {
        if !region.is_sorted_by_key(|row| row.window) {
            region.sort_by_key(|row| row.window);
        }
    }
    ordered
}

/// One process, from its rows in their order.
fn load(
    trace: &Trace,
    rows: &[&Row],
    (tiers, from): (&[TierCost], &[Option<usize>]),
    spent: &Spent,
) -> Load {
    let pid = rows[0].pid;
    let first = rows.iter().map(|row| row.window).min().unwrap_or(0);
    let last = rows.iter().map(|row| row.window).max().unwrap_or(0);
    let process = |window: u32| trace.batch.processes.get(&(pid, window)).copied();
    let processes: Vec<ProcessWindow> =
        (first..=last).map(|window| process(window).unwrap_or_default()).collect();

    let regions = rows.chunk_by(|a, b| a.region == b.region);
    let is_tracked = !trace.meta.is_exact;
    let (areas, degrees) = if is_tracked {
        let recorded: Vec<Recorded> = regions.map(|rows| recorded(rows, first, from)).collect();
        areas_of(&recorded, waits(trace.meta.cooling_windows as usize))
    } else {
        (regions.map(|rows| exact(rows, first, from)).collect(), Degrees::even())
    };
    let clocks = clocks(pid, trace.meta.window_s, rows, first, &processes, spent);
    let gaps = gaps(trace, rows, first, &processes);
    let tiers_then = known::tiers_then((rows, first), &processes, (tiers, from), spent.fault_scale);
    Load { pid, first, clocks, tiers_then, areas, gaps, counts_from: 0, degrees, is_tracked }
}

/// What pools took beside what was stored, in windows that say. Pages are taken to take what they
/// do in simulation, whatever was thought of them then.
fn gaps(trace: &Trace, rows: &[&Row], first: u32, processes: &[ProcessWindow]) -> Gaps {
    let mut stored = vec![(0.0, 0.0); processes.len()];
    for (rows, ratios) in known::in_the_end(rows) {
        for row in rows.iter().filter(|row| row.tier > 0) {
            let (pages, bytes) = &mut stored[(row.window - first) as usize];
            let of_tier = trace.meta.tiers.get(usize::from(row.tier)).map_or(1.0, |t| t.ratio);
            let down = f64::from(row.pages.saturating_sub(row.resident));
            *pages += down;
            *bytes += down * 4096.0 * ratios.get(row.tier.into()).unwrap_or(of_tier);
        }
    }
    Gaps::of(stored.into_iter().zip(processes).filter_map(|((pages, bytes), process)| {
        let pool_bytes = process.pool_bytes as f64;
        (pool_bytes > 0.0).then_some((pages, pool_bytes - bytes))
    }))
}

fn ratios(rows: &[&Row], from: &[Option<usize>]) -> Ratios {
    let mut ratios = Ratios::UNKNOWN;
    for (tier, of_trace) in from.iter().enumerate().skip(1).take(MAX_TIERS - 1) {
        let Some(of_trace) = *of_trace else { continue };
        // The last that was known: it stands on most pages.
        if let Some(ratio) = rows.iter().rev().find_map(|row| row.ratios.get(of_trace)) {
            ratios.set(tier, ratio);
        }
    }
    ratios
}

fn exact(rows: &[&Row], first: u32, from: &[Option<usize>]) -> Area {
    let begin = rows[0].window;
    let windows = (rows[rows.len() - 1].window - begin) as usize + 1;
    let mut area = Area {
        id: rows[0].region,
        first: (begin - first) as usize,
        pages: vec![0; windows],
        touched: vec![0.0; windows],
        refused: 0.0,
        ratios: ratios(rows, from),
    };
    for row in rows {
        let at = (row.window - begin) as usize;
        (area.pages[at], area.touched[at]) = (row.pages, row.touched);
    }
    area
}

fn recorded(rows: &[&Row], first: u32, from: &[Option<usize>]) -> Recorded {
    let begin = rows[0].window;
    let windows = (rows[rows.len() - 1].window - begin) as usize + 1;
    let mut seen = vec![Seen::default(); windows];
    for row in rows {
        seen[(row.window - begin) as usize] = Seen {
            pages: row.pages,
            resident: row.resident,
            is_down: row.tier > 0,
            samples: row.samples,
            hits: row.hits,
            faults: row.faults,
        };
    }
    let first = (begin - first) as usize;
    Recorded { id: rows[0].region, first, seen, ratios: ratios(rows, from) }
}

fn clocks(
    pid: u32,
    window_s: f64,
    rows: &[&Row],
    first: u32,
    processes: &[ProcessWindow],
    spent: &Spent,
) -> Vec<Clock> {
    let windows = processes.len();
    let mut managed = vec![0.0; windows];
    // What faults and touches of watched pages usually take.
    let mut waits = vec![Waits::default(); windows];
    for row in rows {
        let window = (row.window - first) as usize;
        managed[window] += f64::from(row.pages) * 4096.0;
        waits[window].add(spent.usual_waits(row, &processes[window]));
    }
    let usual_wait_ns = waits.iter().map(Waits::sum_ns).sum::<f64>() / windows.max(1) as f64;
    let measured: Vec<f64> =
        processes.iter().map(|p| p.running_ns as f64).filter(|ns| *ns > 0.0).collect();
    let usual = match measured.len() {
        0 => RUNNING_MIN * window_s * 1e9,
        n => measured.iter().sum::<f64>() / n as f64,
    };
    let clock = |window: usize| {
        let (process, at) = (&processes[window], first + window as u32);
        let running_ns = process.running_ns as f64;
        let (slower, waited_beside_ns) = spent.slower(process, waits[window], usual_wait_ns);
        Clock {
            running_ns: if running_ns > 0.0 { running_ns } else { usual },
            beside_bytes: (process.managed_bytes as f64 - managed[window]).max(0.0),
            overhead_bytes: process.overhead_bytes as f64,
            watching_ns: spent.watching_ns(process, pid, at),
            slower,
            waited_beside_ns,
            slower_part: waits[window].part_of_faults(),
            fault_share: spent.fault_share(pid, at),
        }
    };
    (0..windows).map(clock).collect()
}

/// The machine that policies are simulated on; `from` names, for each of its tiers, that of the
/// trace.
pub fn machine(
    config: &Config,
    mut tiers: Vec<TierCost>,
    from: &[Option<usize>],
    spent: &Spent,
) -> Machine {
    let move_ns = |(tier, of): (&TierCost, &Option<usize>)| spent.move_ns(*of, tier);
    let move_ns: Vec<f64> = tiers.iter().zip(from).map(move_ns).collect();
    if spent.is_generated() {
        // Nobody measured anything there: policies shall be told the truth.
        tiers.iter_mut().zip(&move_ns).for_each(|(tier, ns)| tier.move_ns = *ns);
    }
    let mib_s = match config.run.move_mib_s {
        0 => MOVE_MIB_S,
        limit => limit.min(MOVE_MIB_S * u64::from(config.run.move_threads)),
    };
    Machine {
        tiers,
        cooling_windows: config.run.cooling_windows.min(16) as usize,
        samples_per_region: config.run.samples_per_region.min(512) as u16,
        move_pages: (mib_s as f64 * 256.0 * config.run.window_s) as u64,
        move_ns,
        fault_cpu_ns: spent.fault_cpu_ns,
        hit_ns: spent.hit_ns,
        contention: spent.contention,
    }
}

/// The windows of an application that count.
pub fn counted(load: &Load) -> Range<usize> {
    load.counts_from..load.clocks.len()
}

/// Sums over the windows that count, of one or more applications.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Outcome {
    /// US dollars a month, times windows.
    pub tco: f64,
    /// The same at the windows' ends, as a runtime reports it.
    pub tco_at_end: f64,
    /// The same with all in DRAM.
    pub tco_all_dram: f64,
    /// Money of what no tier takes, within both.
    pub fixed: f64,
    /// Time threads ran, waited and lost processors, in nanoseconds.
    pub running_ns: f64,
    /// See `running_ns`.
    pub stalled_ns: f64,
    /// See `running_ns`.
    pub taken_ns: f64,
    /// Processor time of the runtime, whoever wanted it.
    pub cpu_ns: f64,
    /// The part of the last two that is no price of the placement.
    pub watching_ns: f64,
    /// Faults from tiers.
    pub faults: f64,
    /// Pages moved by plans.
    pub moved_pages: f64,
    /// Applications of which a cold-age policy had seen too little to the end.
    pub warming_up: u32,
    /// Those of which it, or any other policy, had seen enough.
    pub warm: u32,
}

impl Outcome {
    /// Share of the money saved.
    pub fn saved(&self) -> f64 {
        tco_saved(self.tco, self.tco_all_dram)
    }

    /// The same at the windows' ends, when what came back in them has not gone down again.
    pub fn saved_at_end(&self) -> f64 {
        tco_saved(self.tco_at_end, self.tco_all_dram)
    }

    /// Lost time as a share of the running time.
    pub fn slowdown(&self) -> f64 {
        (self.stalled_ns + self.taken_ns) / self.running_ns.max(1.0)
    }

    /// The runtime's processor time as a share of the running time.
    pub fn cpu_tax(&self) -> f64 {
        self.cpu_ns / self.running_ns.max(1.0)
    }

    /// Whether the policy never got as far as to send anything down.
    pub fn is_warming_up(&self) -> bool {
        self.warming_up > 0 && self.warm == 0
    }

    /// Adds another application's.
    pub fn add(&mut self, other: &Outcome) {
        self.tco += other.tco;
        self.tco_at_end += other.tco_at_end;
        self.tco_all_dram += other.tco_all_dram;
        self.fixed += other.fixed;
        self.running_ns += other.running_ns;
        self.stalled_ns += other.stalled_ns;
        self.taken_ns += other.taken_ns;
        self.cpu_ns += other.cpu_ns;
        self.watching_ns += other.watching_ns;
        self.faults += other.faults;
        self.moved_pages += other.moved_pages;
        self.warming_up += other.warming_up;
        self.warm += other.warm;
    }
}

/// Runs the policy of `config` over all applications, each with a planner of its own, as live.
pub fn run(loads: &[Load], machine: &Machine, config: &Config, seed: u64) -> Outcome {
    let cooling_windows = config.run.cooling_windows.min(16) as usize;
    let machine = &Machine { cooling_windows, ..machine.clone() };
    let watching = config.policy.kind.watching();
    let mut sum = Outcome::default();
    for load in loads {
        let mut policy = policy::build(config).unwrap_or_else(|| Box::new(Analytical::new(1.0)));
        sum.add(&run_one(load, machine, watching, &mut *policy, seed ^ u64::from(load.pid)));
    }
    sum
}

fn run_one(
    load: &Load,
    machine: &Machine,
    watching: Watching,
    policy: &mut dyn Policy,
    seed: u64,
) -> Outcome {
    let mut random = Random::new(seed);
    let dram = machine.tiers[0].usd_per_gib_month;
    let mut simulation = Simulation::new(machine.clone(), &[]).with_degrees(load.degrees.clone());
    if load.is_tracked {
        simulation = simulation.tracked(watching);
    }
    let counted = counted(load);
    let (mut born, mut touched, mut sum) = (0, Vec::new(), Outcome::default());
    for (window, clock) in load.clocks.iter().enumerate() {
        while let Some(area) = load.areas.get(born).filter(|area| area.first <= window) {
            simulation.grow(&[area.pages_in(window)]);
            simulation.describe(born, area.id, f64::from(area.refused), area.ratios);
            born += 1;
        }
        touched.clear();
        for (index, area) in load.areas[..born].iter().enumerate() {
            simulation.set_pages(index, area.pages_in(window));
            touched.push(area.touched_in(window));
        }
        let hits = |watched: u16, share: f64| {
            (0..watched).filter(|_| random.unit() < share).count() as u16
        };
        simulation.next(clock, load.tiers_then.get(window).map_or(&[], |then| &then[..]));
        let outcome = simulation.window(&touched, clock.running_ns, hits, policy);
        if !counted.contains(&window) {
            continue;
        }
        let usd = |bytes: f64| bytes / BYTES_PER_GIB * dram;
        let fixed = usd(clock.beside_bytes + clock.overhead_bytes)
            + gaps_usd(&load.gaps, &simulation.placement(), &machine.tiers);
        sum.add(&Outcome {
            tco: outcome.tco + fixed,
            tco_at_end: outcome.tco_at_end + fixed,
            tco_all_dram: outcome.tco_all_dram + usd(clock.beside_bytes),
            fixed,
            running_ns: clock.running_ns,
            stalled_ns: outcome.stalled_ns,
            taken_ns: outcome.taken_ns,
            cpu_ns: outcome.cpu_ns,
            watching_ns: outcome.watching_ns,
            faults: outcome.faults,
            moved_pages: outcome.moved_pages as f64,
            ..Outcome::default()
        });
    }
    let is_warm = policy.cold_age().is_none_or(|facts| facts.is_warm);
    (sum.warming_up, sum.warm) = (u32::from(!is_warm), u32::from(is_warm));
    sum
}

/// Money of the gaps in pools that hold these pages, in US dollars a month: each tier has its share
/// of them on its own medium.
fn gaps_usd(gaps: &Gaps, placement: &[f64; MAX_TIERS], tiers: &[TierCost]) -> f64 {
    let stored: f64 = placement.iter().skip(1).sum();
    let per_page = gaps.bytes(stored) / stored.max(1.0) / BYTES_PER_GIB;
    let usd = |(tier, pages): (&TierCost, &f64)| pages * per_page * tier.usd_per_gib_month;
    tiers.iter().zip(placement).skip(1).map(usd).sum()
}

/// What the recorded run itself came to, over the windows that count; `None` for a generated trace.
pub fn live(trace: &Trace, loads: &[Load], spent: &Spent) -> Option<Outcome> {
    if trace.meta.is_exact {
        return None;
    }
    let dram = trace.meta.tiers[0].usd_per_gib_month;
    let mut sum = Outcome::default();
    for load in loads {
        let counted = counted(load);
        let counts = |window: u32| {
            window.checked_sub(load.first).is_some_and(|at| counted.contains(&(at as usize)))
        };
        for (&(pid, window), p) in &trace.batch.processes {
            if pid != load.pid || !counts(window) {
                continue;
            }
            let all = p.managed_bytes as f64 / BYTES_PER_GIB * dram;
            sum.add(&Outcome {
                tco: all * (1.0 - f64::from(p.tco_saved)),
                tco_at_end: all * (1.0 - f64::from(p.tco_saved)),
                tco_all_dram: all,
                fixed: 0.0,
                running_ns: p.running_ns as f64,
                stalled_ns: p.stalled_ns as f64,
                taken_ns: p.cpu_ns as f64 * f64::from(p.contention),
                cpu_ns: p.cpu_ns as f64,
                watching_ns: 0.0,
                faults: spent.faults(pid, window),
                moved_pages: f64::from(p.moved_pages),
                ..Outcome::default()
            });
        }
    }
    Some(sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_in_any_order_come_out_in_order() {
        let row = |n: u32| Row {
            pid: n % 3,
            region: u64::from(n / 3 % 5) << 21,
            window: n / 15,
            ..Row::default()
        };
        let key = |row: &Row| (row.pid, row.region, row.window);
        // By window, as they happen; in the order of pieces of a file; and all mixed up.
        let by_window: Vec<Row> = (0..600).map(row).collect();
        let mut in_pieces = by_window.clone();
        in_pieces.chunks_mut(150).for_each(|piece| piece.sort_by_key(key));
        let mixed: Vec<Row> = (0..600).map(|n| row(n * 241 % 600)).collect();
        let mut sorted = by_window.clone();
        sorted.sort_by_key(key);
        for rows in [by_window, in_pieces, mixed] {
            assert!(in_order(&rows).into_iter().eq(&sorted));
        }
        assert!(in_order(&[]).is_empty());
    }
}
