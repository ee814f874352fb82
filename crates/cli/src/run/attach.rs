//! `terrace attach PID`: plans for a program whose planner is gone.
//!
//! The program has gone on with every page served. Its runtime listens at `PID.runtime` in this
//! user's private directory (`libterrace.so`, link.rs) and says what its tiers are and how they
//! were asked for; the work goes on from there.

use std::io::{ErrorKind, Read};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{anyhow, bail, ensure, Context, Result};
use terrace_core::wire::{split_message, Configure, FromRuntime, Hello, VERSION};

use super::application::{tiers_of, Application};
use super::{session, signals};
use crate::config::{write, Config, ConfigArgs};
use crate::say;
use crate::status;

/// A runtime that waits answers at once; one that has a planner does not answer at all.
const HELLO_TIMEOUT: Duration = Duration::from_secs(3);

/// Options of `terrace attach`.
#[derive(clap::Args, Clone, Debug)]
pub struct AttachArgs {
    #[command(flatten)]
    config: ConfigArgs,
    /// Append one JSON object per window to FILE (docs/timeline.md)
    #[arg(long, value_name = "FILE")]
    timeline: Option<PathBuf>,
    /// Record every region's windows as a Parquet file for `terrace sim` (docs/sim.md)
    #[arg(long, value_name = "TRACE")]
    record: Option<PathBuf>,
    /// Say nothing unless something is wrong
    #[arg(long, short)]
    quiet: bool,
    /// The program: the process that `terrace run` started, or one of that one's
    pid: u32,
}

/// Plans until the program or this process ends; the result is the exit code to end with.
pub fn attach(args: AttachArgs) -> Result<i32> {
    let (stream, hello) = knock(args.pid)?;
    // The id by which we know it, where it has another for itself.
    let pid = signals::peer(&stream).map_or(args.pid, |(pid, _)| pid);
    let config = configuration(&args.config, &hello, pid)?;
    signals::hold_back_end();
    let session =
        session::Session::open(session::Bound::new()?, config, &args.timeline, &args.record)?;
    let shared = session.shared();
    let (tell, told) = std::sync::mpsc::channel();
    let done = tell.clone();
    std::thread::spawn(move || {
        let planner = Application::new(pid, stream, shared);
        let _ = done.send(End::Program(planner.serve_after(&hello)));
    });
    std::thread::spawn(move || {
        let _ = tell.send(End::Signal(signals::wait_for_end()));
    });
    let end = told.recv().context("waiting for the program")?;
    let trace = session.end_recording().unwrap_or_else(|e| {
        say!("terrace: {e:#}");
        None
    });
    for line in [session.summary(), trace].into_iter().flatten().filter(|_| !args.quiet) {
        say!("terrace: {line}");
    }
    match end {
        End::Program(outcome) => {
            outcome.with_context(|| format!("process {pid} is no longer planned for"))?;
            Ok(0)
        }
        End::Signal(signal) => {
            if !args.quiet {
                say!("terrace: process {pid} goes on; `terrace attach {pid}` plans for it");
            }
            Ok(128 + signal)
        }
    }
}

enum End {
    Program(Result<()>),
    Signal(i32),
}

/// Connects to the runtime of process `pid` and takes its greeting.
fn knock(pid: u32) -> Result<(UnixStream, Hello)> {
    let path = status::places::find(pid, &format!("{pid}.runtime"))
        .context("no place for the sockets of sessions")?;
    let mut stream = status::connect(&path).map_err(|e| match e.kind() {
        ErrorKind::NotFound | ErrorKind::ConnectionRefused => {
            anyhow!(status::places::of_another_user(pid).unwrap_or_else(|| format!(
                "process {pid} is not a running program that this user started with `terrace run`"
            )))
        }
        _ => anyhow::Error::new(e).context(format!("cannot connect to {}", path.display())),
    })?;
    ensure!(
        signals::trusted_peer(&stream).is_some(),
        "another user listens at {}; remove it",
        path.display()
    );
    stream.set_read_timeout(Some(HELLO_TIMEOUT))?;
    let mut buffer = Vec::new();
    let hello = loop {
        if let Some((body, used)) = split_message(&buffer)? {
            let message = FromRuntime::decode(body)?;
            ensure!(used == buffer.len(), "its runtime speaks out of turn");
            break message;
        }
        let mut chunk = [0; 16 << 10];
        match stream.read(&mut chunk) {
            Ok(0) => bail!("process {pid} has ended, or has refused this user"),
            Ok(n) => buffer.extend_from_slice(&chunk[..n]),
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => bail!(
                "process {pid} does not answer: it has a planner (`terrace status` names it), or \
                 is stopped"
            ),
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) => return Err(e).context("reading from its runtime"),
        }
    };
    stream.set_read_timeout(None)?;
    match hello {
        FromRuntime::Hello(h) if h.version == VERSION => Ok((stream, h)),
        FromRuntime::Hello(h) => bail!(
            "the runtime of process {pid} speaks version {} of the protocol, this terrace version \
             {VERSION}; use the terrace that it was started with",
            h.version
        ),
        FromRuntime::Refused(why) => bail!("process {pid} cannot be tiered: {why}"),
        FromRuntime::Report(_) => bail!("its runtime reported before it said hello"),
    }
}

/// What is asked for now, over what was asked for then. Policy and windows are the planner's; all
/// else was built into the runtime and stays.
fn configuration(args: &ConfigArgs, hello: &Hello, pid: u32) -> Result<Config> {
    let Some(built) = &hello.in_force else { return Ok(args.resolve()?) };
    for (option, is_given, has) in [
        ("--move-threads", args.move_threads.is_some(), built.move_threads.to_string()),
        ("--move-mib-s", args.move_mib_s.is_some(), built.move_mib_s.to_string()),
    ] {
        ensure!(
            !is_given,
            "{option}: the runtime of process {pid} was built with {has}, which cannot be changed \
             while it runs; leave the option out"
        );
    }
    let mut config = if args.names_tiers() {
        args.resolve()?
    } else {
        let base = write::read_whole("the configuration of its last planner", &built.note);
        args.resolve_over(base.with_context(|| {
            format!("process {pid} has a note of its last planner that cannot be read")
        })?)?
    };
    // What a tier takes follows from prices, and these may be others now. What is built stays.
    let mut asked = tiers_of(&config);
    for (asked, built) in asked.iter_mut().zip(&built.tiers) {
        asked.cutoff_bytes = built.cutoff_bytes;
    }
    if asked != built.tiers {
        bail!(
            "process {pid} has other tiers than the configuration asks for, and they cannot be \
             changed while it runs; it has {}. Leave out --config and --preset, or give those \
             that it was started with",
            described(built)
        );
    }
    config.run.cutoff_bytes = built.cutoff_bytes;
    config.run.samples_per_region = u32::from(built.samples_per_region);
    config.run.cooling_windows = u32::from(built.cooling_windows);
    config.run.move_threads = u32::from(built.move_threads);
    config.run.move_mib_s = u64::from(built.move_mib_s);
    Ok(config)
}

fn described(built: &Configure) -> String {
    let names = built.tiers.iter().map(|t| {
        let (codec, level) = (t.codec.name(), t.level);
        format!("{}+{codec}({level})+{}", t.pool.name(), t.medium.name())
    });
    let names: Vec<String> = names.collect();
    if names.is_empty() {
        "none".into()
    } else {
        names.join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrace_core::looks::Watching;

    use crate::config::PolicyKind;
    use crate::preset::Preset;

    fn hello(config: &Config) -> Hello {
        let in_force = Configure {
            cutoff_bytes: 2000,
            samples_per_region: 3,
            cooling_windows: 2,
            move_threads: 1,
            move_mib_s: 7,
            tiers: tiers_of(config),
            torture_seed: 0,
            note: write::whole(config),
            watching: Watching::Use,
        };
        Hello { version: VERSION, pid: 9, uffd_features: 0, window: 8, in_force: Some(in_force) }
    }

    #[test]
    fn what_was_asked_for_goes_on_and_the_policy_may_change() {
        let mut then = Config::from_preset(Preset::Tierscape);
        then.policy.alpha = 0.25;
        let now = configuration(&ConfigArgs::default(), &hello(&then), 9).unwrap();
        assert_eq!((now.policy, &now.tiers, &now.preset), (then.policy, &then.tiers, &then.preset));
        assert_eq!((now.run.cutoff_bytes, now.run.samples_per_region), (2000, 3));
        let args = ConfigArgs {
            policy: Some(PolicyKind::Waterfall),
            window: Some(0.5),
            ..ConfigArgs::default()
        };
        let now = configuration(&args, &hello(&then), 9).unwrap();
        assert_eq!((now.policy.kind, now.run.window_s), (PolicyKind::Waterfall, 0.5));
        assert_eq!(now.run.move_mib_s, 7, "built into the runtime");
        for (args, said) in [
            (ConfigArgs { move_mib_s: Some(99), ..ConfigArgs::default() }, "--move-mib-s: "),
            (ConfigArgs { move_threads: Some(4), ..ConfigArgs::default() }, "--move-threads: "),
        ] {
            let why = configuration(&args, &hello(&then), 9).unwrap_err().to_string();
            assert!(why.starts_with(said) && why.contains("leave the option out"), "{why}");
        }
    }

    #[test]
    fn a_medium_that_cannot_be_opened_again_is_no_hindrance() {
        let folder = std::env::temp_dir().join(format!("terrace-gone-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let text = format!(
            "[[medium]]\nname = \"disk\"\nkind = \"file\"\nusd_per_gib_month = 0.1\n\
             directory = {folder:?}\ncapacity_mib = 64\n\
             [[tier]]\npool = \"zsmalloc\"\nmedium = \"disk\"\ncodec = \"zstd\"\n"
        );
        let then = crate::config::file::parse("t", &text, Preset::Auto).unwrap();
        std::fs::remove_dir(&folder).unwrap();
        let now = configuration(&ConfigArgs::default(), &hello(&then), 9).unwrap();
        assert_eq!(now.tiers, then.tiers);
        let mut broken = hello(&then);
        if let Some(built) = &mut broken.in_force {
            built.note = "[run]\nwindow_s = -1\n".into();
        }
        let why = configuration(&ConfigArgs::default(), &broken, 9).unwrap_err();
        let why = format!("{why:#}");
        assert!(why.contains("cannot be read") && why.contains("run.window_s"), "{why}");
    }

    #[test]
    fn other_tiers_are_refused_by_name() {
        let then = Config::from_preset(Preset::Auto);
        let args = ConfigArgs { preset: Some(Preset::Tierscape), ..ConfigArgs::default() };
        let why = configuration(&args, &hello(&then), 9).unwrap_err().to_string();
        assert!(
            why.contains("cannot be changed while it runs; it has zsmalloc+lz4(1)+dram, "),
            "{why}"
        );
        let none = Config { tiers: Vec::new(), ..then };
        assert!(configuration(&args, &hello(&none), 9).unwrap_err().to_string().contains("none"));
    }
}
