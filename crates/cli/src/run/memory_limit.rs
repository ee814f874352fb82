//! How far a process is from the limit of its memory: its cgroup's, or that of one above; and how
//! far the machine is.
//!
//! Both versions of cgroups are read. What counts is memory that the kernel cannot simply drop: the
//! page cache fills every cgroup to its limit sooner or later, and that is no distress.

use std::fs;
use std::path::{Path, PathBuf};

use crate::machine::meminfo_bytes;

/// Where cgroups are mounted, by convention.
const ROOT: &str = "/sys/fs/cgroup";

/// Part of the limit from which it counts as reached: 63 of 64.
const NEAR: u64 = 64;

/// Whether process `pid` is at its limit. What cannot be read limits nothing.
pub(super) fn is_reached(pid: u32) -> bool {
    limits(pid).any(|limit| limit.used >= limit.most - limit.most / NEAR)
}

/// Memory that process `pid` may have beyond what it has before a limit is reached, or the machine
/// is out of it, in bytes. 0 where that cannot be read.
pub(super) fn spare_bytes(pid: u32) -> u64 {
    let machine = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let available = meminfo_bytes(&machine, "MemAvailable").unwrap_or(0);
    limits(pid).map(Limit::spare).fold(available, u64::min)
}

/// The limits that hold for process `pid`.
fn limits(pid: u32) -> impl Iterator<Item = Limit> {
    let groups = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    groups_of(&groups, Path::new(ROOT)).into_iter().filter_map(|group| limit_of(&group))
}

/// A limit, and how much is used of it, the page cache aside, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Limit {
    most: u64,
    used: u64,
}

impl Limit {
    fn spare(self) -> u64 {
        self.most.saturating_sub(self.used)
    }
}

/// The folders of the memory controller for the lines of `/proc/PID/cgroup`, with those above.
fn groups_of(lines: &str, root: &Path) -> Vec<PathBuf> {
    let mut all = Vec::new();
    for line in lines.lines() {
        let mut fields = line.splitn(3, ':');
        let (_, Some(controllers), Some(path)) = (fields.next(), fields.next(), fields.next())
        else {
            continue;
        };
        let base = match controllers {
            "" => root.to_owned(),
            list if list.split(',').any(|name| name == "memory") => root.join("memory"),
            _ => continue,
        };
        // A container may show a path of the host that it does not have: then its own root counts.
        let mut group = base.join(path.trim_start_matches('/'));
        loop {
            all.push(group.clone());
            if group == base || !group.pop() {
                break;
            }
        }
    }
    all
}

/// A group's limit; `None` if it has none, or is none.
fn limit_of(group: &Path) -> Option<Limit> {
    let number = |name: &str| fs::read_to_string(group.join(name)).ok()?.trim().parse::<u64>().ok();
    let (most, used, prefix) = match number("memory.max") {
        // "max" is no number: no limit.
        Some(most) => (most, number("memory.current")?, ""),
        None => {
            let most = number("memory.limit_in_bytes")?;
            (most, number("memory.usage_in_bytes")?, "total_")
        }
    };
    let stat = fs::read_to_string(group.join("memory.stat")).ok()?;
    let of = |name: &str| {
        let line = stat.lines().find_map(|line| line.strip_prefix(&format!("{prefix}{name} ")));
        line.and_then(|n| n.trim().parse::<u64>().ok()).unwrap_or(0)
    };
    let cache = of("active_file") + of("inactive_file");
    Some(Limit { most, used: used.saturating_sub(cache) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::redis::TempDir;

    fn write(folder: &Path, files: &[(&str, &str)]) {
        fs::create_dir_all(folder).unwrap();
        files.iter().for_each(|(name, text)| fs::write(folder.join(name), text).unwrap());
    }

    #[test]
    fn the_groups_above_count_too() {
        let root = Path::new("/r");
        let lines = "9:name=systemd:/\n4:cpu,memory:/a/b\n0::/c\nnonsense\n";
        let found: Vec<String> =
            groups_of(lines, root).iter().map(|p| p.display().to_string()).collect();
        assert_eq!(found, ["/r/memory/a/b", "/r/memory/a", "/r/memory", "/r/c", "/r"]);
    }

    #[test]
    fn page_cache_is_no_distress() {
        let folder = TempDir::new("memory-limit").unwrap();
        let group = folder.path().join("two");
        let stat = "anon 900\nactive_file 30\ninactive_file 70\n";
        write(&group, &[("memory.max", "1024\n"), ("memory.stat", stat)]);
        assert_eq!(limit_of(&group), None);
        write(&group, &[("memory.current", "1024\n")]);
        assert_eq!(limit_of(&group), Some(Limit { most: 1024, used: 924 }));
        write(&group, &[("memory.stat", "active_file 10\ninactive_file 6\n")]);
        assert_eq!(limit_of(&group).map(Limit::spare), Some(16));
        write(&group, &[("memory.max", "max\n")]);
        assert_eq!(limit_of(&group), None);
    }

    #[test]
    fn the_first_version_is_read_as_well() {
        let folder = TempDir::new("memory-limit-1").unwrap();
        let limit = ("memory.limit_in_bytes", "640\n");
        let stat = ("memory.stat", "active_file 500\ntotal_active_file 9\ntotal_inactive_file 0\n");
        write(folder.path(), &[limit, stat, ("memory.usage_in_bytes", "639\n")]);
        assert_eq!(limit_of(folder.path()), Some(Limit { most: 640, used: 630 }));
    }

    #[test]
    fn what_is_to_spare_is_what_is_least() {
        assert_eq!(Limit { most: 10, used: 12 }.spare(), 0);
        // This machine has some, and nobody has more than the machine.
        let meminfo = fs::read_to_string("/proc/meminfo").unwrap();
        let machine = meminfo_bytes(&meminfo, "MemAvailable").unwrap();
        let spare = spare_bytes(std::process::id());
        assert!(spare > 0 && spare < machine * 2, "{spare} {machine}");
    }
}
