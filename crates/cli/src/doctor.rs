//! `terrace doctor`: what this machine offers, what is missing, what that costs, and the command
//! that mends it.
//!
//! Checks read `/proc` and `/sys` under [`Host::root`] and facts that only system calls can tell
//! from [`Facts`]; both are handed in, so that tests describe machines that we do not have.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::machine::Machine;
use crate::preflight::{userfaultfd_access, UffdAccess};

mod checks;
mod probes;
mod scheduler;
#[cfg(test)]
mod tests;
mod tracking;

pub use probes::{find_runtime, PerfAccess};
pub use tracking::{tracker, TrackerChoice};

/// What a check found.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// As Terrace wants it.
    Ok,
    /// Works, at the cost that the check states.
    Degraded,
    /// Not there.
    Missing,
}

impl State {
    fn name(self) -> &'static str {
        match self {
            State::Ok => "ok",
            State::Degraded => "degraded",
            State::Missing => "missing",
        }
    }
}

/// One line of the doctor's report.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Check {
    /// What was looked at.
    pub name: &'static str,
    /// How it is.
    pub state: State,
    /// Whether tiering is impossible while this is missing.
    pub required: bool,
    /// What was found.
    pub found: String,
    /// What it costs that it is not ok; empty if it is.
    pub cost: String,
    /// The command that mends it; empty if there is nothing to mend or nothing to be done.
    pub fix: String,
}

impl Check {
    fn ok(name: &'static str, found: impl Into<String>) -> Check {
        Check {
            name,
            state: State::Ok,
            required: false,
            found: found.into(),
            cost: String::new(),
            fix: String::new(),
        }
    }

    fn degraded(
        name: &'static str,
        found: impl Into<String>,
        cost: impl Into<String>,
        fix: impl Into<String>,
    ) -> Check {
        Check {
            state: State::Degraded,
            cost: cost.into(),
            fix: fix.into(),
            ..Check::ok(name, found)
        }
    }

    fn missing(
        name: &'static str,
        found: impl Into<String>,
        cost: impl Into<String>,
        fix: impl Into<String>,
    ) -> Check {
        Check { state: State::Missing, ..Check::degraded(name, found, cost, fix) }
    }

    fn required(self) -> Check {
        Check { required: true, ..self }
    }
}

/// What only system calls can tell.
#[derive(Clone, Debug)]
pub struct Facts {
    /// What userfaultfd offers to this process.
    pub uffd: UffdAccess,
    /// Whether the processor's precise sampling can be used.
    pub perf: PerfAccess,
    /// Limit on the address space in bytes; `None` for unlimited.
    pub address_space_max_bytes: Option<u64>,
    /// The runtime library, or where it was looked for.
    pub runtime: Result<PathBuf, String>,
    /// `redis-server`, which only `terrace demo` needs.
    pub redis: Option<PathBuf>,
}

/// A machine to examine.
#[derive(Clone, Debug)]
pub struct Host {
    /// Where `proc`, `sys` and `dev` are: `/`, or a tree made by a test.
    pub root: PathBuf,
    /// Answers of system calls.
    pub facts: Facts,
}

impl Host {
    /// The machine and the process that this runs in.
    pub fn here() -> Host {
        Host {
            root: "/".into(),
            facts: Facts {
                uffd: userfaultfd_access(),
                perf: probes::perf_access(),
                address_space_max_bytes: probes::address_space_max_bytes(),
                runtime: find_runtime().map_err(|e| e.to_string()),
                redis: crate::preflight::check("redis-server").ok().map(|p| p.path),
            },
        }
    }

    /// A file under the root, trimmed; `None` if it is absent or unreadable.
    fn read(&self, path: &str) -> Option<String> {
        let text = std::fs::read_to_string(self.path(path)).ok()?;
        Some(text.trim().to_owned())
    }

    fn read_number(&self, path: &str) -> Option<u64> {
        self.read(path)?.parse().ok()
    }

    fn path(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }

    fn exists(&self, path: &str) -> bool {
        self.path(path).exists()
    }

    /// Major and minor number of the kernel release.
    fn kernel_version(&self) -> Option<(u32, u32)> {
        let release = self.read("proc/sys/kernel/osrelease")?;
        let mut numbers = release.split(|c: char| !c.is_ascii_digit());
        Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
    }
}

/// Everything the doctor has to say.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The machine.
    pub machine: Machine,
    /// Whether `terrace run` can tier memory here.
    pub can_tier: bool,
    /// How hotness is measured here.
    pub tracker: TrackerChoice,
    /// The checks, the required ones first.
    pub checks: Vec<Check>,
}

impl Report {
    /// 0 if tiering can work, 1 if not.
    pub fn exit_code(&self) -> i32 {
        i32::from(!self.can_tier)
    }

    /// The report as a person reads it.
    pub fn table(&self) -> String {
        let width = self.checks.iter().map(|c| c.name.len()).max().unwrap_or(0);
        let mut out = format!("{}\n\n", self.machine.summary());
        for check in &self.checks {
            let (state, name) = (check.state.name(), check.name);
            let _ = writeln!(out, "{state:<8}  {name:<width$}  {}", check.found);
            for (label, text) in [("costs", &check.cost), ("fix", &check.fix)] {
                if !text.is_empty() {
                    let _ = writeln!(out, "{:<8}  {:<width$}  {label}: {text}", "", "");
                }
            }
        }
        let TrackerChoice { method, why_not_better } = &self.tracker;
        let is_missing = self.checks.iter().any(|c| c.name == method && c.state == State::Missing);
        // Without it nothing is measured, and no other way is known.
        let (is, lack) = match is_missing {
            true => ("would be", ", which is missing here"),
            false => ("is", ""),
        };
        let _ = writeln!(
            out,
            "\nhotness {is} measured by {method}{lack}; why not better: {why_not_better}"
        );
        out.push_str(if self.can_tier {
            "tiering can work on this machine\n"
        } else {
            "tiering cannot work on this machine until what is missing above is fixed\n"
        });
        out
    }
}

/// Examines a machine.
pub fn examine(host: &Host) -> Report {
    let checks = checks::all(host);
    Report {
        machine: Machine::from_root(&host.root),
        can_tier: !checks.iter().any(|c| c.required && c.state == State::Missing),
        tracker: tracking::choose(host, host.facts.uffd.features),
        checks,
    }
}

/// `terrace doctor [--json]`: prints the report and returns the exit code.
pub fn run(json: bool) -> i32 {
    let report = examine(&Host::here());
    if json {
        println!("{}", serde_json::to_string_pretty(&report).expect("plain data"));
    } else {
        print!("{}", report.table());
    }
    report.exit_code()
}

/// Bytes for people: 1.5 GiB, 312 MiB.
pub(crate) fn human_bytes(bytes: u64) -> String {
    let bytes = bytes as f64;
    for (unit, size) in [("TiB", 1u64 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)]
    {
        if bytes >= size as f64 {
            return format!("{:.1} {unit}", bytes / size as f64);
        }
    }
    format!("{bytes} B")
}

/// A path for messages.
fn show(path: &Path) -> String {
    path.display().to_string()
}
