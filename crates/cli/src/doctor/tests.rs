//! Machines that we do not have: a tree of files and a set of facts each.

use super::*;
use crate::preflight::uffd_probe::{
    FEATURE_EVENT_FORK, FEATURE_MOVE, FEATURE_RWP_ASYNC, FEATURE_THREAD_ID, FEATURE_WP,
};

/// A machine in a temporary folder on which everything is as it should be.
struct Fake(Host);

impl Fake {
    fn new(name: &str) -> Fake {
        let root =
            std::env::temp_dir().join(format!("terrace-doctor-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&root);
        let uffd = UffdAccess {
            user_mode: true,
            features: FEATURE_EVENT_FORK
                | FEATURE_MOVE
                | FEATURE_RWP_ASYNC
                | FEATURE_THREAD_ID
                | FEATURE_WP,
            ..UffdAccess::default()
        };
        let facts = Facts {
            uffd,
            perf: PerfAccess::Precise,
            address_space_max_bytes: None,
            runtime: Ok("/opt/terrace/libterrace.so".into()),
            redis: Some("/usr/bin/redis-server".into()),
        };
        let fake = Fake(Host { root, facts });
        fake.file("proc/sys/kernel/osrelease", "7.3.0-1-amd64\n");
        fake.file("proc/meminfo", "MemTotal: 16777216 kB\n");
        fake.file("proc/sys/vm/max_map_count", "65530\n");
        fake.file("proc/sys/vm/overcommit_memory", "0\n");
        fake.file("proc/sys/vm/unprivileged_userfaultfd", "0\n");
        fake.file("proc/swaps", "Filename Type Size Used Priority\n");
        fake.file("proc/self/cgroup", "0::/user.slice/app\n");
        fake.file("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n");
        fake.file("sys/kernel/mm/page_idle/bitmap", "");
        fake.file("sys/kernel/mm/damon/admin/kdamonds/nr_kdamonds", "0");
        fake
    }

    fn file(&self, path: &str, text: &str) {
        let path = self.0.root.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    fn check(&self, name: &str) -> Check {
        let report = examine(&self.0);
        report.checks.into_iter().find(|c| c.name == name).expect(name)
    }

    /// The check is in this state, its text contains `says`, and what is not ok has a remedy.
    fn expect(&self, name: &str, state: State, says: &str) -> Check {
        let check = self.check(name);
        assert_eq!(check.state, state, "{check:?}");
        let text = format!("{} | {} | {}", check.found, check.cost, check.fix);
        assert!(text.contains(says), "{name}: {text}");
        if state != State::Ok {
            assert!(!check.cost.is_empty(), "{name} must say what it costs");
        }
        check
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0.root);
    }
}

#[test]
fn a_good_machine_is_ok_throughout() {
    let fake = Fake::new("good");
    let report = examine(&fake.0);
    for check in &report.checks {
        assert_eq!(check.state, State::Ok, "{check:?}");
        assert!(check.cost.is_empty() && check.fix.is_empty());
    }
    assert_eq!((report.can_tier, report.exit_code()), (true, 0));
    assert!(report.table().contains("tiering can work on this machine"));
    let json = serde_json::to_value(&report).unwrap();
    assert_eq!(json["checks"][0]["state"], "ok");
    assert_eq!(json["tracker"]["method"], "userfaultfd RWP_ASYNC");
}

#[test]
fn userfaultfd_says_why_it_is_closed() {
    let mut fake = Fake::new("uffd");
    let closed = UffdAccess {
        syscall_errno: Some(libc::EPERM),
        device_errno: Some(libc::ENOENT),
        event_fork_errno: Some(libc::EPERM),
        user_mode: true,
        features: FEATURE_MOVE,
    };
    fake.0.facts.uffd = closed.clone();
    let says = "sysctl -w vm.unprivileged_userfaultfd=1";
    fake.expect("userfaultfd", State::Missing, says);
    assert_eq!(examine(&fake.0).exit_code(), 1);
    assert!(examine(&fake.0).table().contains("tiering cannot work"));

    fake.file("dev/userfaultfd", "");
    fake.0.facts.uffd.device_errno = Some(libc::EACCES);
    fake.expect("userfaultfd", State::Missing, "chmod 666 /dev/userfaultfd");

    fake.file("proc/self/status", "Name:\tx\nSeccomp:\t2\n");
    fake.0.facts.uffd = UffdAccess {
        user_mode: false,
        features: 0,
        device_errno: Some(libc::ENOENT),
        ..closed.clone()
    };
    fake.expect("userfaultfd", State::Missing, "--device /dev/userfaultfd");
    fake.expect("UFFDIO_MOVE", State::Missing, "unknown without userfaultfd");

    fake.file("proc/self/status", "Seccomp:\t0\n");
    fake.0.facts.uffd.syscall_errno = Some(libc::ENOSYS);
    fake.expect("userfaultfd", State::Missing, "CONFIG_USERFAULTFD");

    fake.0.facts.uffd = UffdAccess { device_errno: None, ..closed };
    fake.expect("userfaultfd", State::Ok, "/dev/userfaultfd works");
}

#[test]
fn missing_features_of_userfaultfd() {
    let mut fake = Fake::new("features");
    fake.0.facts.uffd.features = FEATURE_EVENT_FORK;
    fake.0.facts.uffd.event_fork_errno = Some(libc::EPERM);
    fake.file("proc/sys/kernel/osrelease", "6.1.0-18-amd64");
    assert!(fake.expect("UFFDIO_MOVE", State::Degraded, "threads are stopped").required);
    fake.file("proc/sys/kernel/yama/ptrace_scope", "1\n");
    fake.expect("UFFDIO_MOVE", State::Degraded, "threads are stopped");
    fake.file("proc/sys/kernel/yama/ptrace_scope", "2\n");
    fake.expect("UFFDIO_MOVE", State::Missing, "kernel.yama.ptrace_scope=1");
    fake.file("proc/sys/kernel/osrelease", "5.15.0-100-generic");
    assert!(fake.expect("UFFDIO_MOVE", State::Missing, "Linux 6.8").required);
    fake.expect("fork events (CAP_SYS_PTRACE)", State::Degraded, "--ambient-caps +sys_ptrace");
    fake.expect("userfaultfd write protection", State::Missing, "5.7");
    fake.expect("userfaultfd thread id", State::Missing, "4.14");
    fake.expect("userfaultfd RWP_ASYNC", State::Missing, "7.3");
}

#[test]
fn limits_of_the_kernel() {
    let mut fake = Fake::new("limits");
    fake.file("proc/sys/kernel/osrelease", "6.1.0-18-amd64");
    fake.expect("kernel", State::Degraded, "6.1.0-18-amd64, older than 6.8");
    fake.file("proc/sys/vm/overcommit_memory", "2");
    assert!(fake.expect("vm.overcommit_memory", State::Missing, "overcommit_memory=0").required);
    fake.file("proc/sys/vm/max_map_count", "1000");
    fake.expect("vm.max_map_count", State::Degraded, "sudo sysctl -w vm.max_map_count=16384");
    fake.0.facts.address_space_max_bytes = Some(1 << 30);
    fake.expect("address space limit", State::Degraded, "1.0 GiB (ulimit -v)");
    fake.0.facts.runtime = Err("not here".into());
    assert!(fake.expect("libterrace.so", State::Missing, "not here").required);
    fake.0.facts.redis = None;
    let redis = fake.expect("redis-server", State::Missing, "apt-get install redis-server");
    assert!(!redis.required, "only the demo needs it");
}

#[test]
fn what_competes_for_memory() {
    let fake = Fake::new("compete");
    fake.file("sys/kernel/mm/transparent_hugepage/enabled", "[always] madvise never");
    fake.expect("transparent huge pages", State::Degraded, "echo madvise | sudo tee");
    fake.file("proc/swaps", "Filename Type Size Used Priority\n/swap file 1 0 -2\n");
    fake.file("sys/module/zswap/parameters/enabled", "Y");
    fake.expect("swap", State::Degraded, "1 in use, with zswap");
}

#[test]
fn cgroup_limits_of_both_versions_are_found() {
    let fake = Fake::new("cgroup");
    fake.file("sys/fs/cgroup/user.slice/app/memory.max", "max");
    fake.expect("memory cgroup", State::Ok, "no limit");
    fake.file("sys/fs/cgroup/user.slice/memory.max", "1073741824");
    fake.file("sys/fs/cgroup/user.slice/memory.current", "1024");
    fake.expect("memory cgroup", State::Ok, "1.0 KiB of 1.0 GiB used (/sys/fs/cgroup/user.slice)");
    fake.file("sys/fs/cgroup/user.slice/memory.current", "1073741000");
    fake.expect("memory cgroup", State::Degraded, "little room");

    let fake = Fake::new("cgroup1");
    fake.file("proc/self/cgroup", "5:cpu,cpuacct:/\n4:memory:/job\n0::/\n");
    fake.file("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712");
    fake.expect("memory cgroup", State::Ok, "no limit");
    fake.file("sys/fs/cgroup/memory/job/memory.limit_in_bytes", "2147483648");
    fake.expect("memory cgroup", State::Ok, "0 B of 2.0 GiB used (/sys/fs/cgroup/memory/job)");
}

#[test]
fn the_tracker_is_what_terrace_uses_and_says_why() {
    let mut fake = Fake::new("tracker");
    let better = examine(&fake.0).tracker;
    assert_eq!(better.method, "userfaultfd RWP_ASYNC");
    assert!(better.why_not_better.contains("(PEBS/IBS): precise samples available, not used"));
    assert!(!better.why_not_better.contains("DAMON"), "that is no better");
    fake.expect("userfaultfd RWP_ASYNC", State::Ok, "in use");
    fake.expect("userfaultfd sampling", State::Ok, "there is a better one");
    // A runtime that was told not to, or could not.
    let told = super::tracking::choose(&fake.0, FEATURE_MOVE);
    assert_eq!(told.method, "userfaultfd sampling");
    assert!(told.why_not_better.contains("RWP_ASYNC: supported, not used by this process"));
    fake.0.facts.perf = PerfAccess::Absent;
    fake.0.facts.uffd.features &= !FEATURE_RWP_ASYNC;
    let report = examine(&fake.0);
    assert_eq!(report.tracker.method, "userfaultfd sampling");
    assert!(report.tracker.why_not_better.starts_with("hardware samples (PEBS/IBS): no perf"));
    assert!(report.tracker.why_not_better.contains("RWP_ASYNC: needs Linux 7.3; idle page"));
    fake.expect("userfaultfd RWP_ASYNC", State::Missing, "costs a fault through the pager");
    fake.expect("userfaultfd sampling", State::Ok, "in use");
    assert!(report.can_tier, "no better tracker is needed");
    assert!(report.table().contains("hotness is measured by userfaultfd sampling; why not"));
    fake.0.facts.perf = PerfAccess::Forbidden;
    fake.expect("hardware samples (PEBS/IBS)", State::Missing, "perf_event_paranoid=1");
    fake.0.facts.uffd.syscall_errno = Some(libc::ENOSYS);
    fake.0.facts.uffd.device_errno = Some(libc::ENOENT);
    fake.expect("userfaultfd sampling", State::Missing, "no userfaultfd");
    let said = "hotness would be measured by userfaultfd sampling, which is missing here; why not";
    let table = examine(&fake.0).table();
    assert!(table.contains(said) && !table.contains("hotness is measured"), "{table}");
}

#[test]
fn this_machine_can_be_examined() {
    let report = examine(&Host::here());
    assert!(report.checks.len() >= 15);
    assert!(report.machine.cpus > 0);
}

#[test]
fn a_kernel_that_starves_groups_is_named_where_there_are_groups() {
    const NAME: &str = "scheduler groups";
    let fake = Fake::new("groups");
    let run = |release: &str| fake.file("proc/sys/kernel/osrelease", release);
    let autogroups = |on: &str| fake.file("proc/sys/kernel/sched_autogroup_enabled", on);
    autogroups("1\n");
    for release in ["6.13.0-rc7", "6.18.44-fc-v669\n", "6.19.3", "6.14-custom"] {
        run(release);
        fake.expect(NAME, State::Degraded, "sysctl -w kernel.sched_autogroup_enabled=0");
    }
    for release in ["6.12.30", "6.18.45", "6.18.50-1", "7.3.4"] {
        run(release);
        assert_eq!(fake.check(NAME).state, State::Ok, "{release}");
    }
    run("6.18.44");
    autogroups("0\n");
    assert_eq!(fake.check(NAME).state, State::Ok, "sessions are no groups");

    // A service's group has the controller or not, whatever autogroups are.
    fake.file("sys/fs/cgroup/user.slice/app/cgroup.controllers", "cpu memory pids\n");
    let check = fake.expect(NAME, State::Degraded, "/user.slice/app");
    assert!(!check.fix.contains("autogroup"), "a setting that would not help: {}", check.fix);
    fake.file("sys/fs/cgroup/user.slice/app/cgroup.controllers", "memory pids\n");
    assert_eq!(fake.check(NAME).state, State::Ok);
    fake.file("proc/self/cgroup", "2:cpuacct:/a\n1:cpu:/box\n0::/\n");
    fake.expect(NAME, State::Degraded, "/box");
    fake.file("proc/self/cgroup", "2:cpu,cpuacct:/\n0::/\n");
    assert_eq!(fake.check(NAME).state, State::Ok);
}
