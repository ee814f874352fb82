//! `terrace run -- CMD`: starts a program with the runtime loaded, and plans for it.
//!
//! The program is a child of this process and shares its terminal. Every process of it that loads
//! the runtime connects to a socket of this session (`session.rs`) and is planned for by a thread
//! of its own (`application.rs`). Nothing here is on the way of a page: if this process is killed,
//! the runtime goes on serving what it holds, and waits for another planner (`attach.rs`).

use std::ffi::{OsStr, OsString};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::Command;
use std::time::Instant;

use anyhow::{bail, Context, Result};

use crate::config::ConfigArgs;
use crate::doctor;
use crate::preflight::{self, uffd_probe};
use crate::say;

mod answer;
mod application;
mod applications;
pub mod attach;
mod bill;
mod cold_age;
mod decisions;
mod full;
mod kernel_two_tier;
mod leftover;
mod limits;
mod memory_limit;
mod pageout;
mod pressure;
mod queued;
mod reason;
mod recording;
mod session;
pub(crate) mod signals;
mod timeline;
mod trials;

pub use signals::trusted_peer;

/// Options of `terrace run`.
#[derive(clap::Args, Clone, Debug)]
pub struct RunArgs {
    #[command(flatten)]
    config: ConfigArgs,
    /// Append one JSON object per application and window to FILE (docs/timeline.md)
    #[arg(long, value_name = "FILE")]
    timeline: Option<PathBuf>,
    /// Record every region's windows as a Parquet file for `terrace sim` (docs/sim.md)
    #[arg(long, value_name = "TRACE")]
    record: Option<PathBuf>,
    /// Where tiering is not possible, run the program untiered and say so
    #[arg(long)]
    best_effort: bool,
    /// For tests: windows of 0.1 s, everything goes to tiers at random, moves are given up at
    /// random. Without a seed, one is made up and named (docs/configuration.md)
    #[arg(long, value_name = "SEED", num_args = 0..=1, require_equals = true,
          default_missing_value = "0")]
    torture: Option<u64>,
    /// Should the program crash, bring everything home first, so that its core dump is whole
    /// (docs/core-dumps.md)
    #[arg(long)]
    core_dumps: bool,
    /// Leave forked children untiered, also those that live long and hold much; what they execute
    /// is then tiered from its start (docs/forked-children.md)
    #[arg(long)]
    no_forked_children: bool,
    /// Say nothing unless something is wrong
    #[arg(long, short)]
    quiet: bool,
    /// The program and its arguments
    #[arg(trailing_var_arg = true, required = true, value_name = "CMD")]
    command: Vec<OsString>,
}

/// Runs the program; the result is the exit code to end with.
pub fn run(args: RunArgs) -> Result<i32> {
    let mut config = args.config.resolve()?;
    if let Some(seed) = args.torture {
        let seed = if seed == 0 { seed_of_now() } else { seed };
        config.torture(seed);
        // Said in any case: nobody shall wonder why a program is this slow.
        say!(
            "terrace: torture run: everything goes down within {} s and anywhere at random; \
             --torture={seed} repeats it",
            config.run.window_s
        );
    }
    if let (Some(note), false) = (&config.tiers_note, args.quiet) {
        say!("terrace: {note}");
    }
    let uffd = uffd_probe::userfaultfd_access();
    if uffd.is_usable() && !uffd.has(uffd_probe::FEATURE_MOVE) && !args.quiet {
        say!(
            "terrace: this kernel has no UFFDIO_MOVE (6.8): all threads of the program stand still \
             for about 0.5 ms for each 128 pages that go out"
        );
    }
    let name = args.command[0].clone();
    let before = signals::hold_back();
    let mut command = Command::new(&name);
    let prepared = prepare(&name)
        .and_then(|(program, library)| Ok((program, library, session::Bound::new()?)));
    let session = match prepared {
        Ok((program, library, bound)) => {
            let session = session::Session::open(bound, config, &args.timeline, &args.record)?;
            let mut preload = library.into_os_string();
            if let Some(before) = std::env::var_os("LD_PRELOAD").filter(|v| !v.is_empty()) {
                preload.push(":");
                preload.push(before);
            }
            // The file that was checked, under the name that was asked for.
            command = Command::new(program.path);
            command.arg0(&name).env("LD_PRELOAD", preload);
            command.env("TERRACE_SOCKET", session.link_path());
            let children = match (args.no_forked_children, args.torture.is_some()) {
                (true, _) => "never",
                (_, true) => "soon",
                _ => "",
            };
            command.env("TERRACE_FORKED_CHILDREN", children);
            command.env("TERRACE_STARTER", std::process::id().to_string());
            if let Some(filters) = seccomp_filters() {
                command.env("TERRACE_FILTERS", filters);
            }
            if args.core_dumps {
                command.env("TERRACE_CORE_DUMPS", "1");
            }
            Some(session)
        }
        Err(why) if args.best_effort => {
            let name = name.display();
            say!("terrace: {why:#}; running {name} untiered, as --best-effort asks");
            None
        }
        Err(why) => return Err(why),
    };
    command.args(&args.command[1..]);
    // The terminal's Ctrl-C goes to the program too, which decides what it means; we end after it.
    signals::outlive_the_program();
    before.hand_on(&mut command);
    let early = signals::early();
    let mut child = command.spawn().with_context(|| format!("cannot start {}", name.display()))?;
    before.go_on(child.id(), &early);
    let started = Instant::now();
    let status = child.wait().context("waiting for the program")?;
    signals::forward_to(0);
    if let Some(session) = session {
        // A trace that cannot be finished must not hide how the program ended.
        let trace = session.end_recording().unwrap_or_else(|e| {
            say!("terrace: {e:#}");
            None
        });
        if !args.quiet {
            let left = leftover::report(&session, started.elapsed());
            for line in [session.summary(), trace].into_iter().flatten().chain(left) {
                say!("terrace: {line}");
            }
        }
    }
    Ok(status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0)))
}

/// How many seccomp filters lie on us, as the kernel says it (Linux 5.9).
fn seccomp_filters() -> Option<String> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let count = status.lines().find_map(|line| line.strip_prefix("Seccomp_filters:"))?;
    Some(count.trim().to_owned())
}

/// A seed that is another one each time.
fn seed_of_now() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let nanos = now.map_or(1, |d| d.as_nanos() as u64);
    (nanos ^ u64::from(std::process::id()).rotate_left(48)).max(1)
}

/// The program and the runtime to load into it, or why it cannot be tiered.
fn prepare(name: &OsStr) -> Result<(preflight::Program, PathBuf)> {
    let program = preflight::check(name)?;
    if !uffd_probe::userfaultfd_access().is_usable() {
        bail!(
            "userfaultfd cannot be used here, so no page could be brought back; `terrace doctor` \
             says why and what mends it, --best-effort runs the program untiered"
        );
    }
    Ok((program, doctor::find_runtime()?))
}
