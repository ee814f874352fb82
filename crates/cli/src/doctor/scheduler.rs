//! Whether the kernel's scheduler can be trusted with groups of threads.
//!
//! Linux 6.13 changed how the place of a running group in its queue is computed when its weight
//! changes (commit 6d71a9c61604), and 6.18.45 changed it back (101f3498b4bd): a group whose threads
//! sleep and wake some thousand times a second could stay in front of all others of a processor,
//! for as long as it went on. Faults are such sleeps and wakes, but two programs with a pipe
//! between them do as well. docs/scheduler-groups.md has what was measured.

use super::{Check, Host};

/// The first version with the change; some 6.12 have it as well, by their number one cannot tell.
const SINCE: [u32; 3] = [6, 13, 0];
/// The first version of the branch without it again.
const MENDED: [u32; 3] = [6, 18, 45];
/// What is known ends here: the change was taken out upstream while 7.0 was made, and which of its
/// versions has that was not looked up.
const NEWER: [u32; 3] = [7, 0, 0];

pub(super) fn check(host: &Host) -> Check {
    const NAME: &str = "scheduler groups";
    const COST: &str = "threads of other groups, ours and the kernel's own included, may wait for \
                        seconds while a program sleeps and wakes often, as it does at faults";
    let Some(version) = version(host).filter(|version| is_affected(*version)) else {
        return Check::ok(NAME, "no defect known of this version");
    };
    let [major, minor, patch] = version;
    if let Some(path) = cgroup_of_the_cpu(host) {
        return Check::degraded(
            NAME,
            format!("Linux {major}.{minor}.{patch} starves groups of threads ({path} is one)"),
            COST,
            "boot Linux 6.18.45 or later",
        );
    }
    if host.read_number("proc/sys/kernel/sched_autogroup_enabled") == Some(1) {
        return Check::degraded(
            NAME,
            format!("Linux {major}.{minor}.{patch} starves groups of threads (sessions are some)"),
            COST,
            "boot Linux 6.18.45 or later; until then \
             sudo sysctl -w kernel.sched_autogroup_enabled=0",
        );
    }
    Check::ok(NAME, "none here")
}

fn version(host: &Host) -> Option<[u32; 3]> {
    let release = host.read("proc/sys/kernel/osrelease")?;
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    Some([numbers.next()?.ok()?, numbers.next()?.ok()?, numbers.next()?.unwrap_or(0)])
}

fn is_affected(version: [u32; 3]) -> bool {
    version >= SINCE && version < NEWER && !(version >= MENDED && version[..2] == MENDED[..2])
}

/// The group that shares processors out to this process, if it is not the root.
fn cgroup_of_the_cpu(host: &Host) -> Option<String> {
    let membership = host.read("proc/self/cgroup")?;
    for line in membership.lines() {
        let mut fields = line.splitn(3, ':');
        let (_, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
        let is_of_the_cpu = match controllers {
            // Version 2 has one hierarchy, and a group has the controllers that its parent gives.
            "" => host
                .read(&format!("sys/fs/cgroup{path}/cgroup.controllers"))
                .is_some_and(|list| list.split_whitespace().any(|c| c == "cpu")),
            list => list.split(',').any(|c| c == "cpu"),
        };
        if is_of_the_cpu && path != "/" {
            return Some(path.to_owned());
        }
    }
    None
}
