//! `terrace sim`: traces replayed through the planner's own code (docs/sim.md).
//!
//! | file | what it does |
//! |---|---|
//! | `sim/generate.rs` | traces by rule and seed |
//! | `sim/replay.rs` | a trace as applications, a policy's run over them |
//! | `sim/candidates.rs` | which policies are compared |
//! | `sim/hindsight.rs` | the oracle over all of them |
//! | `sim/costs.rs` | what tiers cost that were never measured |
//! | `sim/spent.rs` | what the runtime's processor time of a recording went on |
//! | `sim/report.rs` | table and JSON |

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use anyhow::{bail, ensure, Context, Result};
use terrace_core::load::Load;

use crate::config::{check_core_price, option, Config, WINDOW_S_DEFAULT};
use crate::demo::random::mix;
use crate::output;
use crate::preset::Preset;
use crate::trace::read::{self, Trace};
use crate::trace::write;
use candidates::{Candidate, PolicyArgs};
use hindsight::Hindsight;
use replay::Outcome;
use report::{Bar, Headline, Live, PolicyResult, Report};
use spent::Spent;

pub mod candidates;
pub mod costs;
mod fit;
pub mod generate;
pub mod hindsight;
mod known;
mod moved;
pub mod replay;
pub mod report;
pub mod spent;

/// Replay what `run --record` wrote through other policies and tiers, or make such traces
///
/// The policies are the planner's own code, on the recorded touches (docs/sim.md). Without an
/// option all of them are tried at a grid of their knobs.
///
/// JSON (--json): `policies[]` with `name`, `tco_saved`, `stall_share` (time lost to faults and
/// moves over running time), `fault_share` (that to faults), `cpu_tax` (Terrace's processor time,
/// whoever wanted it, over running time), `faults`, `moves` (pages), `is_warming_up` (cold-age, to
/// the end of the trace), and with --oracle, else null, `oracle_tco_saved` (with the same lost
/// time), `oracle_bound`, `unmoved_tco_saved` (by the best placement that never changes),
/// `of_oracle` (null where there is nothing to save); `tco_saved`, `stall_share`, `moves`,
/// `oracle_tco_saved` of the first of them, with --bar of its policy; `live` (null for a generated
/// trace): `tco_saved`, `stall_share`, `cpu_tax`, `faults`, `moves` as recorded, and
/// `tco_saved_error`, `faults_error` (simulated / measured - 1); `bar` (with --bar): `policy` (as
/// in `policies[]`), `best_of_grid`, `behind_grid`, `of_oracle`; `trace`, `source`, `commands[]`,
/// `window_s`, `windows`, `regions`, `processes`, `unevenness`, `sample`, `seed`, `tiers[]`;
/// `simulated_s`, `oracle_s`, `region_windows_per_s`.
#[derive(clap::Args, Clone, Debug)]
pub struct SimArgs {
    /// A trace, or the .partial folder of a killed recording; with --merge, all that are joined
    #[arg(value_name = "TRACE", required_unless_present = "generate")]
    traces: Vec<PathBuf>,
    #[command(flatten)]
    policies: PolicyArgs,
    /// Tiers to simulate instead of the trace's own: a preset or a TOML file
    #[arg(long, value_name = "PRESET|FILE")]
    tiers: Option<String>,
    /// Price of processor time in US dollars per core and month [default: that of the recording]
    #[arg(long, value_name = "USD", allow_negative_numbers = true)]
    usd_per_core_month: Option<f64>,
    /// Windows for which a page that came back stays, 0 to 15 [default: those of the recording]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=15))]
    cooling_windows: Option<u32>,
    /// What the noise of sampling is drawn from, or a generated trace
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Also what a planner that knows the future would save
    #[arg(long)]
    oracle: bool,
    /// Also how far the slowdown policy at 5% is from the best of a grid of fixed alphas, and from
    /// the oracle
    #[arg(long)]
    bar: bool,
    /// Simulate only every Nth region, chosen by its address
    #[arg(long, value_name = "N", default_value_t = 1)]
    sample: u64,
    /// Windows of each process that do not count, in which policies learn what there is and take
    /// the first of it down [default: 10, of short traces half]
    #[arg(long, value_name = "N")]
    warm_up: Option<u32>,
    /// Write the results as JSON
    #[arg(long, value_name = "PATH")]
    json: Option<PathBuf>,
    /// Make a trace instead of replaying one
    #[arg(long, value_name = "KIND", conflicts_with_all = ["traces", "merge"], requires = "out")]
    generate: Option<generate::Kind>,
    /// Regions of a generated trace
    #[arg(long, default_value_t = 400, requires = "generate")]
    regions: u32,
    /// Windows of a generated trace
    #[arg(long, default_value_t = 400, requires = "generate")]
    windows: u32,
    /// Threads that a generated trace has running: what a slowdown is measured by
    #[arg(long, default_value_t = 1, requires = "generate")]
    threads: u32,
    /// Length of its windows in seconds; a window of any length touches as much
    #[arg(long, default_value_t = WINDOW_S_DEFAULT, requires = "generate")]
    window: f64,
    /// Join the traces into one of all their applications
    #[arg(long, requires = "out")]
    merge: bool,
    /// Where a generated or merged trace goes; with --generate or --merge only
    #[arg(long, short, value_name = "TRACE")]
    out: Option<PathBuf>,
}

/// Runs it, and prints what came of it.
pub fn run(args: SimArgs) -> Result<()> {
    match &args.out {
        Some(out) if args.generate.is_some() || args.merge => {
            // Before the work, and again after it (`put_new`).
            write::refuse_taken(out).context("--out")?;
            output::check("--out", out)?;
            ensure!(args.json.is_none(), "--json is for results, and none come of making a trace");
            print!("{}", make(&args, out)?);
            return Ok(());
        }
        Some(_) => bail!(
            "--out is where a trace goes that is made; add --generate KIND or --merge, or name a \
             file for the results with --json"
        ),
        None => {}
    }
    let [path] = &args.traces[..] else {
        bail!("one trace at a time; `terrace sim --merge A B -o TRACE` makes one of several");
    };
    args.json.as_ref().map_or(Ok(()), |json| output::check("--json", json))?;
    let report = simulate(&args, path)?;
    // First, so that it is not lost with a disk that is full by now.
    print!("{}", report.table());
    if let Some(json) = &args.json {
        let text = serde_json::to_string_pretty(&report)? + "\n";
        std::fs::write(json, text)
            .with_context(|| format!("--json: {} cannot be written", json.display()))?;
    }
    Ok(())
}

/// Generates or merges; the text is for the terminal.
fn make(args: &SimArgs, out: &Path) -> Result<String> {
    let Some(kind) = args.generate else {
        let traces: Result<Vec<Trace>> = args.traces.iter().map(|path| read::read(path)).collect();
        return save(&mut merge(traces?)?, out);
    };
    ensure!(args.regions > 0 && args.windows > 0, "--regions and --windows must not be 0");
    ensure!(args.window >= 0.01 && args.window <= 86_400.0, "--window must be 0.01 to 86400");
    ensure!((1..=1 << 16).contains(&args.threads), "--threads must be 1 to 65536");
    let mut config = config(args.tiers.as_deref().unwrap_or(Preset::Auto.name()))?;
    config.run.window_s = args.window;
    let &SimArgs { regions, windows, threads, seed, .. } = args;
    let size = generate::Size { regions, windows, threads, seed };
    save(&mut generate::generate(kind, size, &config), out)
}

fn save(trace: &mut Trace, out: &Path) -> Result<String> {
    let bytes = write::encode(&mut trace.batch, &trace.meta)?;
    write::put_new(out, &bytes).context("--out")?;
    let rows = trace.batch.rows.len();
    Ok(format!(
        "{}: {rows} region-windows of {} processes, {} bytes, {:.1} each\n",
        out.display(),
        trace.meta.commands.len(),
        bytes.len(),
        bytes.len() as f64 / rows.max(1) as f64
    ))
}

fn config(tiers: &str) -> Result<Config> {
    match Preset::from_name(tiers) {
        Some(preset) => Ok(Config::from_preset(preset)),
        None if Path::new(tiers).is_file() => Ok(Config::load(Path::new(tiers))?),
        None => bail!(
            "--tiers: {tiers} is neither a preset ({}) nor a file",
            Preset::ALL.map(|p| p.name()).join(", ")
        ),
    }
}

/// Many applications in one trace. A process id that was given out already becomes a new one.
pub fn merge(traces: Vec<Trace>) -> Result<Trace> {
    let mut traces = traces.into_iter();
    let mut all = traces.next().context("nothing to merge")?;
    let mut taken: BTreeSet<u32> = all.batch.processes.keys().map(|key| key.0).collect();
    let is_one = traces.len() == 0;
    for next in traces {
        let names = |t: &Trace| t.meta.tiers.iter().map(|t| t.name.clone()).collect::<Vec<_>>();
        ensure!(
            names(&all) == names(&next),
            "traces of different tiers cannot be merged: {} and {}",
            names(&all).join(", "),
            names(&next).join(", ")
        );
        ensure!(
            all.meta.window_s == next.meta.window_s,
            "traces of different windows cannot be merged: {} s and {} s",
            all.meta.window_s,
            next.meta.window_s
        );
        ensure!(
            all.meta.is_exact == next.meta.is_exact,
            "a recorded and a generated trace cannot be merged: one has estimates, one the truth"
        );
        let own: BTreeSet<u32> = next.batch.processes.keys().map(|key| key.0).collect();
        let mut renamed = std::collections::BTreeMap::new();
        let mut free = taken.iter().chain(&own).max().map_or(1, |pid| pid + 1);
        for &pid in &own {
            let new = if taken.contains(&pid) { free } else { pid };
            free += u32::from(new == free);
            taken.insert(new);
            renamed.insert(pid, new);
        }
        let new = |pid: u32| renamed.get(&pid).copied().unwrap_or(pid);
        all.batch.rows.extend(next.batch.rows.into_iter().map(|mut row| {
            row.pid = new(row.pid);
            row
        }));
        let processes = next.batch.processes.into_iter();
        all.batch.processes.extend(processes.map(|((pid, w), p)| ((new(pid), w), p)));
        let commands = next.meta.commands.into_iter().map(|mut c| {
            c.pid = new(c.pid);
            c
        });
        all.meta.commands.extend(commands);
    }
    if !is_one {
        all.meta.source = "merged".into();
    }
    Ok(all)
}

/// What is left of each application, beside the share of everything else that goes with it: less
/// memory is waited for by less of a thread.
fn sampled(mut loads: Vec<Load>, whole: &[Load]) -> Vec<Load> {
    let pages = |load: &Load| -> f64 {
        load.areas.iter().flat_map(|area| &area.pages).map(|pages| f64::from(*pages)).sum()
    };
    for load in &mut loads {
        let Some(of) = whole.iter().find(|of| of.pid == load.pid) else { continue };
        let share = pages(load) / pages(of).max(1.0);
        let later = load.first.saturating_sub(of.first) as usize;
        for (clock, of) in load.clocks.iter_mut().zip(of.clocks.iter().skip(later)) {
            clock.running_ns *= share;
            clock.overhead_bytes *= share;
            clock.watching_ns = of.watching_ns * share;
            clock.waited_beside_ns = of.waited_beside_ns * share;
            clock.beside_bytes = of.beside_bytes * share;
        }
        load.gaps = load.gaps.scaled(share);
    }
    loads
}

fn simulate(args: &SimArgs, path: &Path) -> Result<Report> {
    let mut trace = read::read(path)?;
    ensure!(args.sample > 0, "--sample must not be 0");
    let base = base(args, &trace)?;
    let (tiers, from) = match &args.tiers {
        Some(_) => costs::of_trace(&base, &trace.meta),
        None => (trace.meta.tiers.clone(), (0..trace.meta.tiers.len()).map(Some).collect()),
    };
    // By the trace's own tiers, whichever are simulated.
    let spent = Spent::of(&trace, &crate::trace::costs(&trace.meta.tiers));
    let machine = {
        let mut costs = crate::trace::costs(&tiers);
        for (cost, _) in costs.iter_mut().zip(&from).filter(|(_, of_trace)| of_trace.is_some()) {
            cost.fault_ns *= spent.fault_scale;
        }
        ensure!(costs.iter().all(|c| c.is_valid()), "a tier of the trace has no valid cost");
        replay::machine(&base, costs, &from, &spent)
    };
    let live_loads = replay::loads(&trace, &machine.tiers, &from, &spent, args.warm_up)?;
    let live = replay::live(&trace, &live_loads, &spent).filter(|_| args.tiers.is_none());
    let loads = match args.sample {
        1 => live_loads,
        n => {
            trace.batch.rows.retain(|row| mix(row.region ^ args.seed).is_multiple_of(n));
            let all: usize = live_loads.iter().map(|load| load.areas.len()).sum();
            ensure!(
                !trace.batch.rows.is_empty(),
                "--sample: one in {n} leaves none of {all} regions; make it less, or leave it out"
            );
            sampled(
                replay::loads(&trace, &machine.tiers, &from, &spent, args.warm_up)?,
                &live_loads,
            )
        }
    };
    let mut asked = args.policies.candidates(&base, tiers.len() - 1)?;
    let as_recorded = live.is_some().then(|| trace.meta.policy.policy()).flatten();
    let own = as_recorded.map(|policy| Candidate {
        name: "as recorded".into(),
        policy,
        cooling_windows: Some(trace.meta.cooling_windows),
    });
    let own_at = own.map(|own| {
        asked.push(own);
        asked.len() - 1
    });
    let shown = asked.len();
    if args.bar {
        asked.push(candidates::of_bar(&base));
        asked.extend(candidates::grid(&base));
    }
    let started = Instant::now();
    let outcomes = run_all(&asked, |candidate| {
        let mut config = Config { policy: candidate.policy, ..base.clone() };
        config.run.cooling_windows = candidate.cooling_windows.unwrap_or(base.run.cooling_windows);
        replay::run(&loads, &machine, &config, args.seed)
    });
    let simulated_s = started.elapsed().as_secs_f64();
    let started = Instant::now();
    let hindsight = (args.oracle || args.bar).then(|| Hindsight::of(&loads, &machine));
    let oracle_s = started.elapsed().as_secs_f64();
    let row = |(candidate, outcome): (&Candidate, &Outcome)| {
        PolicyResult::new(&candidate.name, outcome, hindsight.as_ref().map(|h| h.at(outcome)))
    };
    let policies: Vec<PolicyResult> = asked.iter().zip(&outcomes).take(shown).map(row).collect();
    let bar = args.bar.then(|| {
        let grid: Vec<PolicyResult> =
            asked.iter().zip(&outcomes).skip(shown + 1).map(row).collect();
        Bar::new(row((&asked[shown], &outcomes[shown])), &grid)
    });
    let region_windows: usize =
        loads.iter().flat_map(|load| &load.areas).map(|area| area.pages.len()).sum();
    Ok(Report {
        trace: path.display().to_string(),
        source: trace.meta.source.clone(),
        commands: trace.meta.commands.clone(),
        window_s: trace.meta.window_s,
        windows: loads.iter().map(|load| load.clocks.len()).max().unwrap_or(0),
        regions: loads.iter().map(|load| load.areas.len()).sum(),
        processes: loads.len(),
        unevenness: unevenness(&loads),
        sample: args.sample,
        seed: args.seed,
        tiers,
        live: live.map(|live| {
            let unknown = trace.meta.policy.unknown();
            Live::new(&live, own_at.map(|at| &outcomes[at]), unknown)
        }),
        headline: Headline::new(bar.as_ref().map(|b| &b.policy).or(policies.first())),
        policies,
        bar,
        simulated_s,
        oracle_s,
        region_windows_per_s: (region_windows * outcomes.len()) as f64 / simulated_s.max(1e-9),
    })
}

/// Mean over applications, by their regions.
fn unevenness(loads: &[Load]) -> f64 {
    let regions: usize = loads.iter().map(|load| load.areas.len()).sum();
    let of = |load: &Load| load.degrees.unevenness() * load.areas.len() as f64;
    loads.iter().map(of).sum::<f64>() / regions.max(1) as f64
}

/// What is simulated, without a policy of its own.
fn base(args: &SimArgs, trace: &Trace) -> Result<Config> {
    let meta = &trace.meta;
    let mut config = match &args.tiers {
        Some(tiers) => config(tiers)?,
        // Limits of media are not in a trace.
        None => Config { tiers: Vec::new(), ..Config::from_preset(Preset::Auto) },
    };
    config.run.window_s = meta.window_s;
    config.run.cooling_windows = args.cooling_windows.unwrap_or(meta.cooling_windows);
    config.run.samples_per_region = meta.samples_per_region;
    config.run.move_mib_s = meta.move_mib_s;
    config.policy.usd_per_core_month = match args.usd_per_core_month {
        Some(usd) => check_core_price(usd).map_err(option("--usd-per-core-month"))?,
        None => meta.policy.usd_per_core_month,
    };
    Ok(config)
}

/// Runs each candidate, on as many threads as there are processors.
fn run_all(candidates: &[Candidate], run: impl Fn(&Candidate) -> Outcome + Sync) -> Vec<Outcome> {
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get()).min(8);
    let next = AtomicUsize::new(0);
    let mut outcomes = vec![Outcome::default(); candidates.len()];
    let done: Vec<Vec<(usize, Outcome)>> = std::thread::scope(|scope| {
        let work = || {
            let mut done = Vec::new();
            while let Some(at) =
                Some(next.fetch_add(1, Ordering::Relaxed)).filter(|&at| at < candidates.len())
            {
                done.push((at, run(&candidates[at])));
            }
            done
        };
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        workers.into_iter().filter_map(|worker| worker.join().ok()).collect()
    });
    for (at, outcome) in done.into_iter().flatten() {
        outcomes[at] = outcome;
    }
    outcomes
}

#[cfg(test)]
mod tests;
