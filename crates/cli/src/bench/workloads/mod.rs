//! `terrace bench work`: the programs that `terrace bench paper` measures with (docs/workloads.md).
//!
//! Two of them are servers of other people, which somebody else starts; here is their closed-loop
//! client (`client`). The others are programs of their own, run below `terrace run`: traversals
//! and ranks of a graph (`bfs`, `pagerank` on a `graph` of `rmat` edges), the cross sections of
//! `xsbench`, the queries of `analytics`, and the allocations of `churn`. All of them check what
//! they compute, and report in lines of JSON (`record`).

use std::fs::File;
use std::path::PathBuf;

use anyhow::{ensure, Context, Result};
use clap::ValueEnum;

use crate::demo::sys;
use crate::say;
use record::Recorder;
use turns::TurnsBy;

mod analytics;
mod bfs;
mod churn;
mod client;
mod graph;
mod pagerank;
mod popularity;
mod protocol;
mod record;
mod rmat;
mod server;
pub(super) mod turns;
mod xsbench;

/// Exit status when something was read back that was not written, or computed otherwise than
/// before.
const EXIT_WRONG: i32 = 1;
/// Exit status when this machine lacks what the workload needs.
const EXIT_SKIPPED: i32 = 77;

/// What to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Workload {
    /// Client of a redis-server
    Redis,
    /// Client of a memcached
    Memcached,
    /// Breadth-first searches on an rMat graph
    Bfs,
    /// Iterations of PageRank on an rMat graph
    Pagerank,
    /// Macroscopic cross sections on a unionised energy grid
    Xsbench,
    /// Queries of an in-memory DuckDB
    Analytics,
    /// Objects of many sizes, allocated, filled, compared and freed
    Churn,
}

impl Workload {
    /// Whether its popular data can change while it runs.
    fn has_phases(self) -> bool {
        use Workload::{Bfs, Churn, Memcached, Redis};
        matches!(self, Redis | Memcached | Bfs | Churn)
    }

    /// How programs of it that are no servers take turns.
    pub(super) fn turns(self) -> Option<TurnsBy> {
        match self {
            Workload::Redis | Workload::Memcached => None,
            Workload::Bfs | Workload::Churn | Workload::Pagerank | Workload::Xsbench => {
                Some(TurnsBy::Time)
            }
            Workload::Analytics => Some(TurnsBy::Rounds),
        }
    }
}

/// A workload of `terrace bench paper`
///
/// Writes JSON lines, each flushed (docs/workloads.md): {"event":"ready"} once everything is
/// loaded and checked, then a line every second, and {"event":"done"} with throughput, latencies
/// and `wrong`. The exit status is 0, 1 if `wrong` is not 0 or something failed, 77 if the machine
/// lacks what the workload needs.
#[derive(clap::Args, Clone, Debug)]
pub struct WorkArgs {
    /// What to run
    pub name: Workload,
    /// Memory to fill, in MiB
    #[arg(long, default_value_t = 1024)]
    pub size: u64,
    /// Seconds to measure
    #[arg(long, default_value_t = 30.0)]
    pub seconds: f64,
    /// Seconds of the same load before that, which do not count
    #[arg(long, default_value_t = 5.0)]
    pub warmup: f64,
    /// Decides data and requests
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// redis, memcached, bfs, churn: so many seconds into the measured part other data becomes
    /// popular
    #[arg(long, value_name = "SECONDS")]
    pub phase_at: Option<f64>,
    /// File for the JSON lines; standard output without it
    #[arg(long)]
    pub out: Option<PathBuf>,
    /// All but servers: another program takes turns with this one. It stops itself when its data
    /// is there (analytics also after each round of its queries) and is stopped and continued by
    /// whoever started it; pieces of work in which that happens do not count
    #[arg(long)]
    pub in_turns: bool,
    /// Damage one byte of the loaded data, which must be noticed (a test of the checks)
    #[arg(long, hide = true)]
    pub corrupt: bool,
    /// redis, memcached: print the command that starts the server, as a JSON array, and nothing
    /// else
    #[arg(long)]
    pub print_server_command: bool,
    /// redis, memcached: the Unix socket of the printed command; without it the usual port
    #[arg(long, requires = "print_server_command")]
    pub socket: Option<PathBuf>,
    /// redis, memcached: the server's Unix socket, or a port of this machine
    #[arg(long)]
    pub connect: Option<String>,
    /// What only clients of servers use.
    #[command(flatten)]
    pub client: client::ClientArgs,
    /// bfs, pagerank: parameters of the graph generator
    #[arg(long, value_enum, default_value_t = rmat::Rmat::Ligra)]
    pub rmat: rmat::Rmat,
    /// analytics: threads of the database
    #[arg(long, default_value_t = 1)]
    pub threads: usize,
    /// analytics: a Python that has the module duckdb; without it $TERRACE_PYTHON, then python3
    #[arg(long)]
    pub python: Option<PathBuf>,
}

/// Runs a workload. Returns the exit status.
pub fn run(args: WorkArgs) -> Result<i32> {
    ensure!((16..=1 << 24).contains(&args.size), "--size must be between 16 and 16777216 MiB");
    ensure!((0.0..=86_400.0).contains(&args.warmup), "--warmup must be 0 to 86400 seconds");
    ensure!((0.1..=86_400.0).contains(&args.seconds), "--seconds must be 0.1 to 86400");
    if let Some(at_s) = args.phase_at {
        ensure!((0.0..=86_400.0).contains(&at_s), "--phase-at must be 0 to 86400 seconds");
        ensure!(args.name.has_phases(), "--phase-at: this workload has no second phase");
    }
    ensure!(
        !args.in_turns || args.name.turns().is_some(),
        "--in-turns: clients of servers have --beside"
    );
    let kind = server::Kind::of(args.name);
    if args.print_server_command {
        let kind = kind.context("only redis and memcached have a server")?;
        let argv = server::command(kind, args.size, args.socket.as_deref());
        println!("{}", serde_json::to_string(&argv)?);
        return Ok(0);
    }
    sys::catch_interrupts();
    let out: Box<dyn std::io::Write> = match &args.out {
        Some(path) => {
            Box::new(File::create(path).with_context(|| format!("cannot write {path:?}"))?)
        }
        None => Box::new(std::io::stdout()),
    };
    let recorder = Recorder::new(out, args.warmup, args.seconds);
    let mut recorder = recorder.turning_after(args.phase_at).in_turns(args.in_turns);
    match (args.name, kind) {
        (_, Some(kind)) => client::run(kind, &args, &mut recorder)?,
        (Workload::Bfs, _) => bfs::run(&args, &mut recorder)?,
        (Workload::Churn, _) => churn::run(&args, &mut recorder)?,
        (Workload::Pagerank, _) => pagerank::run(&args, &mut recorder)?,
        (Workload::Analytics, _) => {
            if let Some(why) = analytics::missing(&args) {
                recorder.skipped(&why)?;
                say!("terrace: analytics is skipped: {why}");
                return Ok(EXIT_SKIPPED);
            }
            analytics::run(&args, &mut recorder)?;
        }
        (_, None) => xsbench::run(&args, &mut recorder)?,
    }
    let wrong = recorder.finish()?;
    Ok(if wrong == 0 { 0 } else { EXIT_WRONG })
}
