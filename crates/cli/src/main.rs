//! The `terrace` command.

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use terrace_cli::config::ConfigArgs;
use terrace_cli::{bench, demo, doctor, explain, run, sim, status, tiers};

/// Spreads a program's memory over many tiers and keeps every part on the cheapest one that its
/// slowdown budget allows.
#[derive(Parser)]
#[command(name = "terrace", version)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Start a program with its memory tiered
    Run(run::RunArgs),
    /// Plan again for a running program whose `terrace run` is gone
    Attach(run::attach::AttachArgs),
    /// What each tiered program saves, what that costs it, and why
    Status {
        /// Print JSON
        #[arg(long)]
        json: bool,
        /// Only this session or application
        pid: Option<u32>,
    },
    /// Why a program's memory is where it is, and what the alternatives would have cost
    Explain(explain::ExplainArgs),
    /// Check what this machine offers and how to mend what is missing
    Doctor {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Tiers
    Tiers {
        #[command(subcommand)]
        verb: TiersVerb,
    },
    /// Replay what `run --record` wrote through other policies and tiers, or make such traces
    Sim(sim::SimArgs),
    /// Redis on many tiers, measured against plain DRAM, every value checked
    Demo(demo::DemoArgs),
    /// Measure
    Bench {
        #[command(subcommand)]
        verb: BenchVerb,
    },
}

#[derive(Subcommand)]
enum TiersVerb {
    /// List the tiers of a preset or a configuration file
    List {
        #[command(flatten)]
        config: ConfigArgs,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Latency, savings and cost of every possible tier on your data, and which to use
    Characterize(tiers::characterize::CharacterizeArgs),
}

#[derive(Subcommand)]
enum BenchVerb {
    /// Mapping churn: mmap, touch, munmap with tiering on, against without Terrace
    Churn(bench::churn::ChurnArgs),
    /// CPU time of a demoted page, beside the kernel's page-out
    Demote(bench::demote::DemoteArgs),
    /// Fault latency of every tier, side by side with the kernel's zswap and zram
    Fault(bench::fault::FaultArgs),
    /// TierScape's evaluation, the kernel's zswap beside every tier set
    Paper(Box<bench::paper::PaperArgs>),
    /// The planner: time and distance to the optimum
    Plan(bench::plan::PlanArgs),
    /// Memory that the pools take, beside the kernel's zsmalloc
    Pools(bench::pools::PoolsArgs),
    /// Cost at rest: throughput with the runtime loaded and nothing demoted
    Rest(bench::rest::RestArgs),
    /// --max-slowdown held against the best fixed alpha, on programs that change
    Slowdown(Box<bench::paper::slowdown::SlowdownArgs>),
    /// A workload of `bench paper` and `bench slowdown`
    #[command(hide = true)]
    Work(bench::workloads::WorkArgs),
}

/// A reader that has read enough, such as `head`, is no failure of ours: no panic, no trace, and
/// the status that a shell gives to an end by SIGPIPE.
fn end_quietly_without_a_reader() {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        let said = panic.payload().downcast_ref::<String>().map_or("", String::as_str);
        if said.starts_with("failed printing to stdout") && said.contains("Broken pipe") {
            std::process::exit(128 + libc::SIGPIPE);
        }
        usual(panic);
    }));
}

fn main() -> ExitCode {
    end_quietly_without_a_reader();
    let outcome = match Cli::parse().verb {
        Verb::Run(args) => run::run(args),
        Verb::Attach(args) => run::attach::attach(args),
        Verb::Status { json, pid } => status::run(json, pid).map(|()| 0),
        Verb::Explain(args) => explain::run(args).map(|()| 0),
        Verb::Doctor { json } => Ok(doctor::run(json)),
        Verb::Tiers { verb: TiersVerb::List { config, json } } => {
            tiers::list(&config, json).map(|()| 0).map_err(Into::into)
        }
        Verb::Tiers { verb: TiersVerb::Characterize(args) } => {
            tiers::characterize::run(args).map(|()| 0)
        }
        Verb::Sim(args) => sim::run(args).map(|text| {
            print!("{text}");
            0
        }),
        Verb::Demo(args) => demo::run(args).map(|()| 0),
        Verb::Bench { verb: BenchVerb::Churn(args) } => bench::churn::run(args).map(|()| 0),
        Verb::Bench { verb: BenchVerb::Demote(args) } => bench::demote::run(args).map(|()| 0),
        Verb::Bench { verb: BenchVerb::Fault(args) } => bench::fault::run(args).map(|()| 0),
        Verb::Bench { verb: BenchVerb::Paper(args) } => bench::paper::run(*args).map(|()| 0),
        Verb::Bench { verb: BenchVerb::Plan(args) } => bench::plan::run(args).map(|()| 0),
        Verb::Bench { verb: BenchVerb::Pools(args) } => bench::pools::run(args).map(|()| 0),
        Verb::Bench { verb: BenchVerb::Rest(args) } => bench::rest::run(args).map(|()| 0),
        Verb::Bench { verb: BenchVerb::Slowdown(args) } => {
            bench::paper::slowdown::run(*args).map(|()| 0)
        }
        Verb::Bench { verb: BenchVerb::Work(args) } => bench::workloads::run(args),
    };
    match outcome {
        Ok(code) => ExitCode::from(code.clamp(0, 255) as u8),
        Err(e) => {
            eprintln!("terrace: {e:#}");
            ExitCode::FAILURE
        }
    }
}
