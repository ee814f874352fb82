//! How hotness can be measured on this machine, and how it is.
//!
//! Terrace measures by userfaultfd sampling today: a few pages of each region are taken out, and
//! those that are asked for again in the window were in use. It works for every user and on every
//! machine, and costs a fault per sample. Better methods are looked for so that the report can say
//! what the machine could do; saying that they are in use would be a lie.

use serde::{Deserialize, Serialize};

use super::{Check, Host, PerfAccess, State};
use crate::preflight::uffd_probe::FEATURE_RWP_ASYNC;

/// The method in use and why it is not a better one. Timelines and `status` carry it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct TrackerChoice {
    /// How hotness is measured.
    pub method: String,
    /// For each better method, why it is not the one.
    pub why_not_better: String,
}

/// The method that `terrace run` uses on this machine.
pub fn tracker() -> TrackerChoice {
    choose(&Host::here())
}

pub(super) fn choose(host: &Host) -> TrackerChoice {
    let reasons: Vec<String> = methods(host)
        .into_iter()
        .map(|m| {
            let unused = if m.available { ", not used by Terrace yet" } else { "" };
            format!("{}: {}{unused}", m.name, m.found)
        })
        .collect();
    TrackerChoice { method: "userfaultfd sampling".into(), why_not_better: reasons.join("; ") }
}

struct Method {
    name: &'static str,
    available: bool,
    found: String,
    fix: &'static str,
}

/// The better methods, best first.
fn methods(host: &Host) -> Vec<Method> {
    let perf = match host.facts.perf {
        PerfAccess::Precise => (true, "precise samples available", ""),
        PerfAccess::Forbidden => (
            false,
            "kernel.perf_event_paranoid forbids it",
            "sudo sysctl -w kernel.perf_event_paranoid=1",
        ),
        PerfAccess::Absent => {
            (false, "no performance counters here, as in most virtual machines", "")
        }
    };
    let rwp = if host.facts.uffd.has(FEATURE_RWP_ASYNC) {
        (true, "supported", "")
    } else {
        (false, "needs Linux 7.3", "boot Linux 7.3 or later")
    };
    let idle = if host.exists("sys/kernel/mm/page_idle/bitmap") {
        (true, "present (root only)", "")
    } else {
        (false, "kernel without CONFIG_IDLE_PAGE_TRACKING", "")
    };
    let damon = if host.exists("sys/kernel/mm/damon/admin") {
        (true, "present (root only; whether it can watch a process is not tried)", "")
    } else {
        (false, "kernel without DAMON", "")
    };
    [
        ("hardware samples (PEBS/IBS)", perf),
        ("userfaultfd RWP_ASYNC", rwp),
        ("idle page bitmap", idle),
        ("DAMON", damon),
    ]
    .into_iter()
    .map(|(name, (available, found, fix))| Method { name, available, found: found.into(), fix })
    .collect()
}

/// One check a method. None is required, and none that is absent costs anything today.
pub(super) fn checks(host: &Host) -> Vec<Check> {
    let mut checks: Vec<Check> = methods(host)
        .into_iter()
        .map(|m| {
            if m.available {
                Check::ok(m.name, format!("{}; not used by Terrace yet", m.found))
            } else {
                Check {
                    state: State::Missing,
                    cost: "nothing today: Terrace does not use it yet".into(),
                    fix: m.fix.into(),
                    ..Check::ok(m.name, m.found)
                }
            }
        })
        .collect();
    checks.push(if host.facts.uffd.is_usable() {
        Check::ok("userfaultfd sampling", "in use: hotness is measured this way")
    } else {
        Check::missing("userfaultfd sampling", "no userfaultfd", "see userfaultfd", "")
    });
    checks
}
