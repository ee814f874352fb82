//! How hotness can be measured on this machine, and how it is.
//!
//! Terrace samples a few pages of each region. Where the kernel can watch a page (userfaultfd
//! `RWP_ASYNC`, Linux 7.3) it is asked which of them were touched. Elsewhere they are taken out,
//! and those that somebody comes for were in use: that works for every user and on every machine,
//! and costs a fault through the pager per sample in use. Other methods are looked for so that the
//! report can say what the machine could do; saying that they are in use would be a lie.

use serde::{Deserialize, Serialize};

use super::{Check, Host, PerfAccess, State};
use crate::preflight::uffd_probe::FEATURE_RWP_ASYNC;

/// The method in use and why it is not a better one. Timelines and `status` carry it.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct TrackerChoice {
    /// How hotness is measured.
    pub method: String,
    /// For each better method, why it is not the one.
    pub why_not_better: String,
}

/// The method by which pages are taken out.
const SAMPLING: &str = "userfaultfd sampling";
/// The method by which they stay.
const WATCHING: &str = "userfaultfd RWP_ASYNC";

/// The method that a runtime on this machine uses, by the features of its userfaultfd.
pub fn tracker(uffd_features: u64) -> TrackerChoice {
    choose(&Host::here(), uffd_features)
}

pub(super) fn choose(host: &Host, uffd_features: u64) -> TrackerChoice {
    let method = match uffd_features & FEATURE_RWP_ASYNC {
        0 => SAMPLING,
        _ => WATCHING,
    };
    let reasons: Vec<String> = methods(host)
        .into_iter()
        .take_while(|m| m.name != method)
        .map(|m| {
            let unused = match (m.available, m.is_ours) {
                (true, true) => ", not used by this process",
                (true, false) => ", not used by Terrace yet",
                (false, _) => "",
            };
            format!("{}: {}{unused}", m.name, m.found)
        })
        .collect();
    TrackerChoice { method: method.into(), why_not_better: reasons.join("; ") }
}

struct Method {
    name: &'static str,
    /// Terrace knows how to use it.
    is_ours: bool,
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
        (WATCHING, rwp),
        ("idle page bitmap", idle),
        ("DAMON", damon),
    ]
    .into_iter()
    .map(|(name, (available, found, fix))| Method {
        name,
        is_ours: name == WATCHING,
        available,
        found: found.into(),
        fix,
    })
    .collect()
}

/// One check a method. None is required.
pub(super) fn checks(host: &Host) -> Vec<Check> {
    let used = choose(host, host.facts.uffd.features).method;
    let mut checks: Vec<Check> = methods(host)
        .into_iter()
        .map(|m| match (m.available, m.is_ours) {
            (true, true) => Check::ok(m.name, "in use: sampled pages stay where they are"),
            (true, false) => Check::ok(m.name, format!("{}; not used by Terrace yet", m.found)),
            (false, is_ours) => Check {
                state: State::Missing,
                cost: match is_ours {
                    true => "each sampled page in use costs a fault through the pager, and moves",
                    false => "nothing today: Terrace does not use it yet",
                }
                .into(),
                fix: m.fix.into(),
                ..Check::ok(m.name, m.found)
            },
        })
        .collect();
    checks.push(match host.facts.uffd.is_usable() {
        true if used == SAMPLING => Check::ok(SAMPLING, "in use: hotness is measured this way"),
        true => Check::ok(SAMPLING, "possible; there is a better one"),
        false => Check::missing(SAMPLING, "no userfaultfd", "see userfaultfd", ""),
    });
    checks
}
