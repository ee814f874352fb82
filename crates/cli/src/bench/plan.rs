//! `terrace bench plan`: how long the analytical policy takes, and how far from the best it can be.
//!
//! Regions and tiers are made from a seed, so that a run can be repeated anywhere. With
//! `--dump-instances` it writes small problems with our answers instead, for `e2e/
//! test_plan_optimal.py` to solve again with another solver.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{ensure, Context, Result};
use serde::Serialize;
use terrace_core::cost::{self, TierCost};
use terrace_core::plan::limits::{Limit, Limited};
use terrace_core::plan::mckp::{Choices, Matrix, Solver};
use terrace_core::plan::{Analytical, Expected, Model, Policy, RegionChoices, RegionView};
use terrace_core::tier::{TierId, MAX_TIERS};

use crate::run::signals::thread_cpu_ns;

mod mip;

pub use mip::Mip;

/// Dumped problems are checked against a general solver, which larger ones would keep busy for
/// minutes each.
const DUMP_REGIONS_MAX: u32 = 20_000;

/// The planner: time, and distance from the optimum
///
/// Regions and tiers are drawn from a seed, and the analytical policy plans for them, on one core.
///
/// JSON (--json): `regions`, `tiers`, `alpha`, `seed`, `repeat`; `solve_ms_p50`,
/// `solve_ms_min` and `solve_ms_max` (the solver alone, one core), `plan_ms_p50` (with building
/// the problem and the list of moves), `solve_cpu_ms_p50` and `plan_cpu_ms_p50` (the same in
/// processor time, which a busy machine does not stretch); `slow_share` (what `--slow-share` asked
/// for, or null); `gap_to_optimal` (time in faults above the optimum, as a
/// share; an upper bound, because `gap_against` is "lp", the linear relaxation, which no placement
/// beats); `proven` (the search ran to its end); `moves`, `tco_saved`, `expected_faults`;
/// `speedup_vs_mip` (how often our time goes into that of HiGHS, or null without `--mip`) and
/// `mip` (`seconds`, `perf`, `bound`, `finished`); and `kernel`, `cpu`, `version`.
#[derive(clap::Args, Clone, Debug)]
pub struct PlanArgs {
    /// Regions of 2 MiB to plan for.
    #[arg(long, default_value_t = 100_000)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=100_000_000))]
    pub regions: u32,
    /// Tiers, DRAM included (2 to 16).
    #[arg(long, default_value_t = 6)]
    #[arg(value_parser = clap::value_parser!(u32).range(2..=MAX_TIERS as i64))]
    pub tiers: u32,
    /// Knob: 1 is all performance, 0 all savings.
    #[arg(long, default_value_t = 0.5)]
    pub alpha: f64,
    /// Seed of the made-up regions and tiers.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// The slower medium holds at most this share (0 to 1) of what all regions would take there.
    #[arg(long, value_name = "SHARE")]
    pub slow_share: Option<f64>,
    /// Give the same problem to HiGHS, through python3 and scipy, and compare.
    #[arg(long, conflicts_with = "dump_instances")]
    pub mip: bool,
    /// Seconds that HiGHS may take; what it has then is compared.
    #[arg(long, value_name = "SECONDS", default_value_t = 120, requires = "mip")]
    pub mip_seconds: u32,
    /// Times the same problem is solved; the median is reported.
    #[arg(long, default_value_t = 11, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub repeat: u32,
    /// Write the result as one JSON object to this file.
    #[arg(long, value_name = "PATH")]
    pub json: Option<PathBuf>,
    /// Instead of measuring, write small problems and our answers to this directory, one JSON file
    /// each.
    #[arg(long, value_name = "DIR")]
    pub dump_instances: Option<PathBuf>,
    /// How many problems to write.
    #[arg(long, default_value_t = 200, requires = "dump_instances")]
    pub count: u32,
    /// Regions of the largest problem to write; sizes are spread evenly in the logarithm.
    #[arg(long, default_value_t = 2_000, requires = "dump_instances",
          value_parser = clap::value_parser!(u32).range(1..=DUMP_REGIONS_MAX as i64))]
    pub max_regions: u32,
}

/// What a measurement writes; the fields are described at [`PlanArgs`].
#[derive(Serialize)]
struct Report {
    regions: u32,
    tiers: u32,
    alpha: f64,
    seed: u64,
    repeat: u32,
    solve_ms_p50: f64,
    solve_ms_min: f64,
    solve_ms_max: f64,
    plan_ms_p50: f64,
    solve_cpu_ms_p50: f64,
    plan_cpu_ms_p50: f64,
    slow_share: Option<f64>,
    gap_to_optimal: f64,
    gap_against: &'static str,
    proven: bool,
    moves: usize,
    tco_saved: f64,
    expected_faults: f64,
    speedup_vs_mip: Option<f64>,
    mip: Option<Mip>,
    kernel: String,
    cpu: String,
    version: &'static str,
}

/// A problem and our answer to it. The tables have a row for each region.
#[derive(Serialize)]
struct Dump {
    kind: &'static str,
    perf: Vec<Vec<f64>>,
    tco: Vec<Vec<f64>>,
    budget: f64,
    choice: Vec<u8>,
    objective: f64,
    objective_tco: f64,
    lp_bound: f64,
    feasible: bool,
    proven: bool,
}

/// Runs the command.
pub fn run(args: PlanArgs) -> Result<()> {
    ensure!((0.0..=1.0).contains(&args.alpha), "--alpha {} is not within 0 to 1", args.alpha);
    match &args.dump_instances {
        Some(dir) => dump(&args, dir),
        None => measure(&args),
    }
}

fn measure(args: &PlanArgs) -> Result<()> {
    let mut random = SplitMix64(args.seed);
    let tiers = make_tiers(&mut random, args.tiers);
    let regions = make_regions(&mut random, args.regions);
    let known: Vec<u32> = (0..args.regions).collect();
    let current = vec![TierId::DRAM.0; regions.len()];
    let pages = regions.iter().map(|region| u64::from(region.pages)).sum();

    let mut solver = Limited::default();
    // Residence as `terrace run` has it by default, and the price of a core.
    let model = Model::new(2.5, cost::USD_PER_CORE_MONTH, 5.0);
    let mut expected = Vec::new();
    Expected::of_all(&regions, &known, model, &mut expected);
    let choices = RegionChoices::new(&regions, &known, &current, &expected, &tiers, model);
    let limits: Vec<Limit> =
        args.slow_share.map(|share| slow_limit(&choices, share)).into_iter().collect();
    let most = cost::tco_max(pages, &tiers);
    let least = match limits.is_empty() {
        true => choices.tco_min(),
        false => solver.cheapest(&choices, &limits, &current).solution.tco,
    };
    let budget = (least + args.alpha * (most - least)) * (1.0 + 1e-9);
    let (solve_ms, answer) = time_ms(args.repeat, || {
        // Without the prices of the time before: that is for the second window.
        Limited::default().solve(&choices, &limits, budget, &current)
    });
    let solution = answer.solution;
    let mut policy = Analytical::new(args.alpha).with_model(model).with_limits(limits.clone());
    let (plan_ms, plan) = time_ms(args.repeat, || policy.plan(&regions, &tiers));
    let mip = match args.mip {
        true => Some(mip::solve(&choices, &limits, budget, args.mip_seconds)?),
        false => None,
    };

    let above = solution.perf - solution.lp_bound;
    let middle = |times: &[Time], of: fn(&Time) -> f64| of(&times[times.len() / 2]);
    let wall = |t: &Time| t.wall_ms;
    let cpu = |t: &Time| t.cpu_ms;
    let solve_ms_p50 = middle(&solve_ms, wall);
    let report = Report {
        regions: args.regions,
        tiers: args.tiers,
        alpha: args.alpha,
        seed: args.seed,
        repeat: args.repeat,
        solve_ms_p50,
        solve_ms_min: solve_ms[0].wall_ms,
        solve_ms_max: solve_ms[solve_ms.len() - 1].wall_ms,
        plan_ms_p50: middle(&plan_ms, wall),
        solve_cpu_ms_p50: middle(&solve_ms, cpu),
        plan_cpu_ms_p50: middle(&plan_ms, cpu),
        slow_share: args.slow_share,
        gap_to_optimal: if above > 0.0 { above / solution.lp_bound } else { 0.0 },
        gap_against: "lp",
        proven: solution.proven,
        moves: plan.moves.len(),
        tco_saved: plan.tco_saved(),
        expected_faults: plan.expected_faults,
        speedup_vs_mip: mip.as_ref().map(|mip| mip.seconds * 1e3 / solve_ms_p50),
        mip,
        kernel: first_line("/proc/sys/kernel/osrelease"),
        cpu: cpu_model(),
        version: env!("CARGO_PKG_VERSION"),
    };
    println!(
        "{} regions x {} tiers: solved in {:.2} ms ({:.2} of processor time, median of {}), \
         planned in {:.2} ms ({:.2}); at most {:.5} % above the optimum",
        report.regions,
        report.tiers,
        report.solve_ms_p50,
        report.solve_cpu_ms_p50,
        report.repeat,
        report.plan_ms_p50,
        report.plan_cpu_ms_p50,
        report.gap_to_optimal * 100.0
    );
    if !answer.is_within || !solution.feasible {
        println!("within limits: {}, within budget: {}", answer.is_within, solution.feasible);
    }
    if let (Some(mip), Some(speedup)) = (&report.mip, report.speedup_vs_mip) {
        println!("{}; {speedup:.0} times our time", mip.line(solution.perf));
    }
    println!("{}", plan.why);
    match &args.json {
        Some(path) => write_json(path, &report),
        None => Ok(()),
    }
}

/// How long one call took.
struct Time {
    wall_ms: f64,
    cpu_ms: f64,
}

/// Durations of `repeat` calls, sorted by the clock, and the last result.
fn time_ms<T>(repeat: u32, mut call: impl FnMut() -> T) -> (Vec<Time>, T) {
    let mut timed = || {
        let (start, cpu) = (Instant::now(), thread_cpu_ns());
        let result = call();
        let cpu_ms = (thread_cpu_ns() - cpu) as f64 / 1e6;
        (Time { wall_ms: start.elapsed().as_secs_f64() * 1e3, cpu_ms }, result)
    };
    let (first, mut result) = timed();
    let mut times = vec![first];
    for _ in 1..repeat {
        let (time, latest) = timed();
        times.push(time);
        result = latest;
    }
    times.sort_unstable_by(|a, b| a.wall_ms.total_cmp(&b.wall_ms));
    (times, result)
}

/// The slower medium of [`make_tiers`] holds `share` of what all regions would take in its first
/// tier.
fn slow_limit(choices: &RegionChoices, share: f64) -> Limit {
    let slow = || (2..choices.options()).step_by(2);
    let all = |option| (0..choices.items()).map(|item| choices.bytes(item, option)).sum::<f64>();
    Limit::new(slow().map(|option| TierId(option as u8)), share * slow().next().map_or(0.0, all))
}

fn dump(args: &PlanArgs, dir: &Path) -> Result<()> {
    fs::create_dir_all(dir).with_context(|| format!("cannot create {}", dir.display()))?;
    let mut unproven = 0;
    for index in 0..args.count {
        let mut random = SplitMix64(args.seed.wrapping_mul(1_000_003).wrapping_add(index.into()));
        let instance = make_instance(&mut random, index, args.count, args.max_regions)?;
        unproven += u32::from(!instance.proven && instance.feasible);
        write_json(&dir.join(format!("instance-{index:05}.json")), &instance)?;
    }
    println!(
        "wrote {} problems to {}; the search of {unproven} ended at its work limit",
        args.count,
        dir.display()
    );
    Ok(())
}

/// Problem `index` of `count`: sizes grow from 1 region to `regions_max`, kinds take turns.
fn make_instance(
    random: &mut SplitMix64,
    index: u32,
    count: u32,
    regions_max: u32,
) -> Result<Dump> {
    let grown = f64::from(index) / f64::from(count.max(2) - 1);
    let items = (f64::from(regions_max).powf(grown).round() as u32).clamp(1, regions_max);
    let options = 2 + random.below(7) as u32;
    let tiers = make_tiers(random, options);
    let regions = make_regions(random, items);
    let kind = ["regions", "own_ratio", "unrelated", "correlated"][index as usize % 4];

    let (mut perf, mut tco) = (Vec::new(), Vec::new());
    for region in &regions {
        // The share that this region shrinks to, around the tier's average: text and noise differ.
        let own = 0.5 + random.unit();
        for (option, tier) in tiers.iter().enumerate() {
            let time = f64::from(region.hotness) * tier.fault_ns;
            let money = f64::from(region.pages) * tier.usd_per_page_month();
            let squeezed = if option == 0 { money } else { (money * own).min(money * 1.2) };
            let (time, money) = match kind {
                "regions" => (time, money),
                "own_ratio" => (time, squeezed),
                "unrelated" => (random.unit() * 1e6, random.unit()),
                // Time bought is nearly in step with money spent: no step is clearly best.
                _ => (1e6 * (1.0 - money * 100.0) + random.unit() * 1e3 + 1e6, money),
            };
            perf.push(time.max(0.0));
            tco.push(money);
        }
    }
    let columns = options as usize;
    let extreme = |pick: fn(f64, f64) -> f64| -> f64 {
        tco.chunks(columns).map(|row| row.iter().copied().fold(row[0], pick)).sum()
    };
    let (least, most) = (extreme(f64::min), extreme(f64::max));
    let budget = least + random.unit() * (most - least);
    let matrix = Matrix::new(columns, &perf, &tco).context("the tables have full rows")?;
    let solution = Solver::default().solve(&matrix, budget, &[]);
    let rows = |table: &[f64]| table.chunks(columns).map(<[f64]>::to_vec).collect();
    Ok(Dump {
        kind,
        perf: rows(&perf),
        tco: rows(&tco),
        budget,
        choice: solution.choice,
        objective: solution.perf,
        objective_tco: solution.tco,
        lp_bound: solution.lp_bound,
        feasible: solution.feasible,
        proven: solution.proven,
    })
}

/// DRAM at 4 dollars, then compressed tiers from quick (4 us, 1.8:1) to dense (30 us, 3.7:1), every
/// second one on a slower medium of half the price. With noise, so that some are no good: real
/// configurations have such tiers too.
fn make_tiers(random: &mut SplitMix64, count: u32) -> Vec<TierCost> {
    let mut tiers = vec![TierCost::dram(4.0)];
    for index in 1..count {
        let far = f64::from(index) / f64::from(count - 1);
        let slow = index % 2 == 0;
        let medium_ns = if slow { 2_000.0 } else { 0.0 };
        tiers.push(TierCost {
            fault_ns: 4_000.0 * 7.5f64.powf(far) * (0.9 + 0.2 * random.unit()) + medium_ns,
            ratio: (0.55 - 0.28 * far) * (0.9 + 0.2 * random.unit()),
            ..TierCost::dram(if slow { 2.0 } else { 4.0 })
        });
    }
    tiers
}

/// Regions with a hot spot: touches fall off over the address space as a Gaussian around the
/// middle, every region has its own luck, and 40 % are cold wherever they are. Hotness comes in
/// steps of 1/64 page, as [`terrace_core::hotness`] stores it; regions at the end of a mapping hold
/// fewer pages.
fn make_regions(random: &mut SplitMix64, count: u32) -> Vec<RegionView> {
    (0..count)
        .map(|index| {
            let distance = (f64::from(index) / f64::from(count) - 0.5) / 0.15;
            let luck = 0.5 + random.unit();
            let hot = 512.0 * (-0.5 * distance * distance).exp() * luck;
            let cold = random.unit() * random.unit() * 4.0;
            let touched = if random.unit() < 0.4 { cold } else { hot + cold };
            let pages = if random.below(10) == 0 { 1 + random.below(512) as u32 } else { 512 };
            let steps = (touched.min(f64::from(pages)) * 64.0).round();
            RegionView {
                pages,
                resident: pages,
                hotness: (steps / 64.0) as f32,
                windows_seen: 4,
                ..RegionView::at(u64::from(index) << 21, TierId::DRAM)
            }
        })
        .collect()
}

/// Steele, Lea and Flood's generator: eight bytes of state, good enough to make up regions, and the
/// same numbers on every machine.
struct SplitMix64(u64);

impl SplitMix64 {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// 0 to 1, 1 excluded.
    fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// 0 to `limit`, excluded. The bias of the remainder is far below what matters here.
    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }
}

fn first_line(path: &str) -> String {
    let text = fs::read_to_string(path).unwrap_or_default();
    text.lines().next().unwrap_or("unknown").to_owned()
}

fn cpu_model() -> String {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    text.lines()
        .find(|line| line.starts_with("model name"))
        .and_then(|line| line.split_once(": "))
        .map_or_else(|| "unknown".to_owned(), |(_, name)| name.to_owned())
}

fn write_json(path: &Path, value: &impl Serialize) -> Result<()> {
    let mut text = serde_json::to_string(value)?;
    text.push('\n');
    fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generator_matches_the_published_sequence() {
        // First outputs for seed 1234567 as listed with the reference implementation.
        let mut random = SplitMix64(1_234_567);
        assert_eq!(random.next(), 6_457_827_717_110_365_317);
        assert_eq!(random.next(), 3_203_168_211_198_807_973);
    }

    #[test]
    fn instances_are_repeatable_and_span_the_sizes() {
        let make = |index| make_instance(&mut SplitMix64(7), index, 40, 2_000).expect("made");
        assert_eq!(make(0).perf.len(), 1);
        assert_eq!(make(39).perf.len(), 2_000);
        assert_eq!(make(20).choice, make(20).choice);
        let instance = make(25);
        assert!(instance.feasible && instance.objective_tco <= instance.budget);
        assert!(instance.lp_bound <= instance.objective);
    }
}
