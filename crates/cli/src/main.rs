//! The `terrace` command.

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use terrace_cli::config::ConfigArgs;
use terrace_cli::{bench, demo, doctor, explain, run, say, sim, status, tiers};

/// Spreads a program's memory over many tiers and keeps every part on the cheapest one that its
/// slowdown budget allows.
#[derive(Parser)]
#[command(name = "terrace", version, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

// What has no text here has it where its options are, with the fields of its JSON.
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
    Sim(sim::SimArgs),
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
    Characterize(tiers::characterize::CharacterizeArgs),
}

#[derive(Subcommand)]
enum BenchVerb {
    Churn(bench::churn::ChurnArgs),
    Demote(bench::demote::DemoteArgs),
    Fault(bench::fault::FaultArgs),
    Paper(Box<bench::paper::PaperArgs>),
    Plan(bench::plan::PlanArgs),
    Pools(bench::pools::PoolsArgs),
    Rest(bench::rest::RestArgs),
    Slowdown(Box<bench::paper::slowdown::SlowdownArgs>),
    #[command(hide = true)]
    Work(bench::workloads::WorkArgs),
}

/// What standard output cannot take ends us without a panic's trace. A reader that has read enough,
/// such as `head`, is no failure of ours: then not a word, and the status that a shell gives to an
/// end by SIGPIPE.
fn end_quietly_without_a_reader() {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        let said = panic.payload().downcast_ref::<String>().map_or("", String::as_str);
        if let Some(why) = said.strip_prefix("failed printing to stdout: ") {
            if why.contains("Broken pipe") {
                std::process::exit(128 + libc::SIGPIPE);
            }
            say!("terrace: standard output cannot be written: {why}");
            std::process::exit(1);
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
        Verb::Sim(args) => sim::run(args).map(|()| 0),
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
            say!("terrace: {e:#}");
            ExitCode::FAILURE
        }
    }
}
