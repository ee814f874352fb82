//! The checks, one function each, in the order of the report: first what tiering cannot do
//! without, then what makes it slower, then what is nice to have.

use super::{human_bytes, show, Check, Host};
use crate::preflight::uffd_probe::{
    UffdRoute, FEATURE_EVENT_FORK, FEATURE_MOVE, FEATURE_THREAD_ID, FEATURE_WP,
};

/// Raises a process's CAP_SYS_PTRACE without making it root; ambient capabilities survive `exec`
/// and, unlike file capabilities, do not make the loader ignore LD_PRELOAD.
const FIX_PTRACE: &str =
    "sudo setpriv --reuid $(id -u) --regid $(id -g) --init-groups --inh-caps +sys_ptrace \
     --ambient-caps +sys_ptrace $(command -v terrace) run -- CMD";

/// From here on the kernel drops no page that was given up while something holds it (but see
/// `sys/stop.rs` in the runtime, which tries it: distributions bring such changes to older ones).
const STOPPING_SINCE: (u32, u32) = (5, 18);
/// Address space below which the pools' reservations are likely to fail.
const ADDRESS_SPACE_WANTED_BYTES: u64 = 1 << 40;

pub(super) fn all(host: &Host) -> Vec<Check> {
    let mut checks = vec![
        userfaultfd(host),
        uffdio_move(host),
        overcommit(host),
        runtime(host),
        event_fork(host),
        write_protect(host),
        thread_id(host),
        kernel(host),
        super::scheduler::check(host),
        max_map_count(host),
        address_space(host),
        huge_pages(host),
        swap(host),
        cgroup(host),
    ];
    checks.extend(super::tracking::checks(host));
    checks.push(redis(host));
    checks
}

fn userfaultfd(host: &Host) -> Check {
    const NAME: &str = "userfaultfd";
    const COST: &str = "no tiering: nobody could serve the faults on demoted pages";
    let uffd = &host.facts.uffd;
    let (syscall, device) = (uffd.syscall_errno, uffd.device_errno);
    match uffd.route() {
        Some(UffdRoute::Syscall) => return Check::ok(NAME, "system call works").required(),
        Some(UffdRoute::Device) => return Check::ok(NAME, "/dev/userfaultfd works").required(),
        None => {}
    }
    let filtered =
        host.read("proc/self/status").is_some_and(|s| s.lines().any(|l| l == "Seccomp:\t2"));
    let no_system_call = syscall == Some(libc::ENOSYS);
    let (found, fix) = if host.exists("dev/userfaultfd") && device == Some(libc::EACCES) {
        (
            "this user may not open /dev/userfaultfd".to_owned(),
            "sudo chmod 666 /dev/userfaultfd".to_owned(),
        )
    } else if filtered && !uffd.user_mode {
        (
            "a seccomp filter denies the system call (container?)".to_owned(),
            "start the container with --device /dev/userfaultfd".to_owned(),
        )
    } else if no_system_call {
        (
            "this kernel has no userfaultfd".to_owned(),
            "boot a kernel with CONFIG_USERFAULTFD=y (6.8 or later)".to_owned(),
        )
    } else {
        let setting = host.read("proc/sys/vm/unprivileged_userfaultfd");
        (
            format!(
                "not allowed for this user (vm.unprivileged_userfaultfd = {})",
                setting.as_deref().unwrap_or("?")
            ),
            "sudo sysctl -w vm.unprivileged_userfaultfd=1".to_owned(),
        )
    };
    Check::missing(NAME, found, COST, fix).required()
}

fn uffdio_move(host: &Host) -> Check {
    const NAME: &str = "UFFDIO_MOVE";
    let uffd = &host.facts.uffd;
    // Without a descriptor nothing is known; the check above has said what to do.
    if uffd.features == 0 {
        return Check::missing(NAME, "unknown without userfaultfd", "see userfaultfd", "");
    }
    if uffd.has(FEATURE_MOVE) {
        return Check::ok(NAME, "supported").required();
    }
    let scope = host.read_number("proc/sys/kernel/yama/ptrace_scope");
    let is_new_enough = host.kernel_version().is_some_and(|version| version >= STOPPING_SINCE);
    if !is_new_enough {
        return Check::missing(
            NAME,
            "not supported by this kernel, which is also too old to do without",
            "no tiering: before 5.18 the kernel may drop a page that a device is writing to",
            "boot Linux 6.8 or later",
        )
        .required();
    }
    if scope.is_some_and(|scope| scope > 1) {
        return Check::missing(
            NAME,
            format!(
                "not supported, and threads may not be stopped (ptrace_scope = {})",
                scope.unwrap_or(0)
            ),
            "no tiering, but for programs with CAP_SYS_PTRACE",
            "boot Linux 6.8 or later, or sudo sysctl -w kernel.yama.ptrace_scope=1",
        )
        .required();
    }
    Check::degraded(
        NAME,
        "not supported: a program's threads are stopped while pages are taken",
        "a page takes 4 us to go out instead of 0.1; for 128 pages at a time all threads of the \
         program stand still, 0.5 ms; a program that changes its user stays as it is from then on",
        "boot Linux 6.8 or later",
    )
    .required()
}

fn overcommit(host: &Host) -> Check {
    const NAME: &str = "vm.overcommit_memory";
    match host.read_number("proc/sys/vm/overcommit_memory") {
        Some(2) => Check::missing(
            NAME,
            "2: the kernel counts reserved address space as memory",
            "no tiering: the pools reserve far more address space than they fill, and are refused",
            "sudo sysctl -w vm.overcommit_memory=0",
        )
        .required(),
        Some(mode) => Check::ok(NAME, mode.to_string()).required(),
        None => Check::ok(NAME, "not readable, taken for 0").required(),
    }
}

fn runtime(host: &Host) -> Check {
    const NAME: &str = "libterrace.so";
    match &host.facts.runtime {
        Ok(path) => Check::ok(NAME, show(path)).required(),
        Err(why) => Check::missing(
            NAME,
            why.clone(),
            "no tiering: there is nothing to preload",
            "cargo build --release (or set TERRACE_LIB to the library)",
        )
        .required(),
    }
}

fn event_fork(host: &Host) -> Check {
    const NAME: &str = "fork events (CAP_SYS_PTRACE)";
    let uffd = &host.facts.uffd;
    if uffd.has(FEATURE_EVENT_FORK) {
        return Check::ok(NAME, "granted");
    }
    Check::degraded(
        NAME,
        if uffd.event_fork_errno == Some(libc::EPERM) {
            "the kernel has them, this process lacks CAP_SYS_PTRACE"
        } else {
            "not granted"
        },
        "demoted pages must come home before each fork: a program that forks saves less and \
         its forks are slower",
        FIX_PTRACE,
    )
}

fn write_protect(host: &Host) -> Check {
    const NAME: &str = "userfaultfd write protection";
    if host.facts.uffd.has(FEATURE_WP) {
        return Check::ok(NAME, "supported").required();
    }
    Check::missing(
        NAME,
        "not supported",
        "the runtime's own threads could not reach its pager: programs are refused",
        "boot Linux 5.7 or later (x86-64, arm64 from 6.10)",
    )
    .required()
}

fn thread_id(host: &Host) -> Check {
    const NAME: &str = "userfaultfd thread id";
    if host.facts.uffd.has(FEATURE_THREAD_ID) {
        return Check::ok(NAME, "supported").required();
    }
    Check::missing(
        NAME,
        "not supported",
        "the pager cannot follow the faulting thread to its CPU: programs are refused",
        "boot Linux 4.14 or later",
    )
    .required()
}

fn kernel(host: &Host) -> Check {
    const NAME: &str = "kernel";
    let release = host.read("proc/sys/kernel/osrelease").unwrap_or_else(|| "unknown".into());
    match host.kernel_version() {
        Some(version) if version >= (6, 8) => Check::ok(NAME, release),
        _ => Check::degraded(
            NAME,
            format!("{release}, older than 6.8"),
            "see UFFDIO_MOVE (6.8); perhaps no /dev/userfaultfd (6.1)",
            "boot Linux 6.8 or later",
        ),
    }
}

fn max_map_count(host: &Host) -> Check {
    const NAME: &str = "vm.max_map_count";
    /// A registered region splits a mapping: at worst every second region is registered, and
    /// each then costs two entries of the map.
    const BYTES_PER_MAPPING: u64 = 2 << 20;
    let Some(count) = host.read_number("proc/sys/vm/max_map_count") else {
        return Check::ok(NAME, "not readable, taken for 65530");
    };
    // An eighth is left to the program (`PROGRAMS_PART` of the tracker).
    let reach = (count - count / 8).saturating_mul(BYTES_PER_MAPPING);
    let memory = crate::machine::Machine::from_root(&host.root).memory_bytes;
    if reach >= memory {
        return Check::ok(NAME, format!("{count}, enough for {} a program", human_bytes(reach)));
    }
    Check::degraded(
        NAME,
        format!("{count}, enough for {} a program at worst", human_bytes(reach)),
        "a program beyond that stays partly in DRAM when its cold regions are scattered",
        format!("sudo sysctl -w vm.max_map_count={}", (memory / BYTES_PER_MAPPING) * 2),
    )
}

fn address_space(host: &Host) -> Check {
    const NAME: &str = "address space limit";
    match host.facts.address_space_max_bytes {
        Some(limit) if limit < ADDRESS_SPACE_WANTED_BYTES => Check::degraded(
            NAME,
            format!("{} (ulimit -v)", human_bytes(limit)),
            "the runtime reserves more address space than it uses: programs run untiered",
            "ulimit -v unlimited",
        ),
        Some(limit) => Check::ok(NAME, human_bytes(limit)),
        None => Check::ok(NAME, "unlimited"),
    }
}

fn huge_pages(host: &Host) -> Check {
    const NAME: &str = "transparent huge pages";
    match host.read("sys/kernel/mm/transparent_hugepage/enabled") {
        Some(setting) if setting.contains("[always]") => Check::degraded(
            NAME,
            "always",
            "a huge page is split when a region is demoted, and comes back as small pages: \
             programs that live on huge pages lose some speed",
            "echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled",
        ),
        Some(setting) => {
            let chosen = setting.split(['[', ']']).nth(1).unwrap_or("?").to_owned();
            Check::ok(NAME, chosen)
        }
        None => Check::ok(NAME, "not in this kernel"),
    }
}

fn swap(host: &Host) -> Check {
    const NAME: &str = "swap";
    let devices = host.read("proc/swaps").map_or(0, |s| s.lines().skip(1).count());
    let zswap = host
        .read("sys/module/zswap/parameters/enabled")
        .is_some_and(|s| matches!(s.as_str(), "Y" | "1"));
    if devices == 0 {
        return Check::ok(NAME, "none");
    }
    let what = if zswap { "with zswap" } else { "without zswap" };
    Check::degraded(
        NAME,
        format!("{devices} in use, {what}"),
        "under pressure the kernel pages out what Terrace manages, pools included: faults on it \
         wait twice, and the kernel's share is missing from the figures",
        "sudo swapoff -a",
    )
}

fn cgroup(host: &Host) -> Check {
    const NAME: &str = "memory cgroup";
    let Some((limit, used, path)) = cgroup_limit(host) else {
        return Check::ok(NAME, "no limit");
    };
    let found = format!("{} of {} used ({path})", human_bytes(used), human_bytes(limit));
    // The last tenth: pools need pages before a demotion gives any back.
    if used >= limit - limit / 10 {
        return Check::degraded(
            NAME,
            found,
            "little room: a demotion needs memory for the pool before it frees the page, and the \
             kernel may kill the program first",
            "raise the limit of the container or the service for the time of the start",
        );
    }
    Check::ok(NAME, format!("{found}; pools count against it"))
}

/// The tightest memory limit on the way from this process's cgroup to the root: limit, use, path.
fn cgroup_limit(host: &Host) -> Option<(u64, u64, String)> {
    let membership = host.read("proc/self/cgroup")?;
    let mut tightest: Option<(u64, u64, String)> = None;
    for line in membership.lines() {
        let mut fields = line.splitn(3, ':');
        let (_, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
        let (mount, limit_file, used_file) = if controllers.is_empty() {
            ("sys/fs/cgroup", "memory.max", "memory.current")
        } else if controllers.split(',').any(|c| c == "memory") {
            ("sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes")
        } else {
            continue;
        };
        // Inside a container the path may not exist below the mount; its own root then applies.
        let mut path = path.trim_end_matches('/');
        loop {
            let limit = host.read_number(&format!("{mount}{path}/{limit_file}"));
            // v1 writes "no limit" as the largest multiple of a page below 2^63.
            if let Some(limit) = limit.filter(|l| *l < 1 << 60) {
                let used = host.read_number(&format!("{mount}{path}/{used_file}")).unwrap_or(0);
                if tightest.as_ref().is_none_or(|(least, ..)| limit < *least) {
                    tightest = Some((limit, used, format!("/{mount}{path}")));
                }
            }
            match path.rfind('/') {
                Some(at) => path = &path[..at],
                None => break,
            }
        }
    }
    tightest
}

fn redis(host: &Host) -> Check {
    const NAME: &str = "redis-server";
    match &host.facts.redis {
        Some(path) => Check::ok(NAME, show(path)),
        None => Check::missing(
            NAME,
            "not in PATH",
            "only `terrace demo` needs it",
            "sudo apt-get install redis-server",
        ),
    }
}
