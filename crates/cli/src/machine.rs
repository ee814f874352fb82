//! Which machine a number was measured on. Every JSON output and report carries this.

use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};

/// The machine, the kernel and the version of Terrace.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Machine {
    /// Processor, as `/proc/cpuinfo` names it.
    pub cpu_model: String,
    /// Logical processors online.
    pub cpus: u32,
    /// Memory, in bytes.
    pub memory_bytes: u64,
    /// Kernel release, such as `6.18.0`.
    pub kernel: String,
    /// Processor architecture.
    pub arch: String,
    /// Whether this is a virtual machine, by the processor's hypervisor flag.
    pub is_virtual: bool,
    /// Version of Terrace.
    pub terrace: String,
}

impl Machine {
    /// The machine this runs on.
    pub fn here() -> Machine {
        Machine::from_root(Path::new("/"))
    }

    /// The machine that `/proc` under `root` describes. What cannot be read is `unknown` or 0: a
    /// measurement is not lost because a container hides a file.
    pub fn from_root(root: &Path) -> Machine {
        let read = |path: &str| fs::read_to_string(root.join(path)).unwrap_or_default();
        let cpuinfo = read("proc/cpuinfo");
        let field = |name: &str| {
            cpuinfo.lines().find_map(|line| {
                let (key, value) = line.split_once(':')?;
                (key.trim() == name).then(|| value.trim().to_owned())
            })
        };
        let processors = cpuinfo.lines().filter(|l| l.starts_with("processor")).count();
        let kernel = read("proc/sys/kernel/osrelease").trim().to_owned();
        Machine {
            cpu_model: field("model name")
                .or_else(|| field("CPU part"))
                .unwrap_or_else(|| "unknown".into()),
            cpus: u32::try_from(processors).unwrap_or(u32::MAX),
            memory_bytes: meminfo_bytes(&read("proc/meminfo"), "MemTotal").unwrap_or(0),
            kernel: if kernel.is_empty() { "unknown".into() } else { kernel },
            arch: std::env::consts::ARCH.into(),
            is_virtual: field("flags")
                .is_some_and(|flags| flags.split(' ').any(|flag| flag == "hypervisor")),
            terrace: env!("CARGO_PKG_VERSION").into(),
        }
    }

    /// One line for tables and reports.
    pub fn summary(&self) -> String {
        format!(
            "{}, {} CPUs{}, {:.1} GiB, Linux {} ({}), Terrace {}",
            self.cpu_model,
            self.cpus,
            if self.is_virtual { " (virtual machine)" } else { "" },
            self.memory_bytes as f64 / f64::from(1u32 << 30),
            self.kernel,
            self.arch,
            self.terrace
        )
    }
}

/// What `/proc/meminfo` has under `key`, in bytes.
pub fn meminfo_bytes(meminfo: &str, key: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|l| l.strip_prefix(key)?.strip_prefix(':'))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn meminfo_is_read_key_by_key() {
        let text = "MemTotal:       100 kB\nZswap:            7 kB\nZswapped:         9 kB\n";
        let bytes = |key| meminfo_bytes(text, key);
        assert_eq!((bytes("Zswap"), bytes("Zswapped")), (Some(7 << 10), Some(9 << 10)));
        assert_eq!((bytes("MemAvailable"), bytes("Mem")), (None, None));
        assert_eq!(meminfo_bytes("MemTotal: many kB\n", "MemTotal"), None);
    }

    #[test]
    fn reads_a_proc_tree() {
        let root = std::env::temp_dir().join(format!("terrace-machine-{}", std::process::id()));
        fs::create_dir_all(root.join("proc/sys/kernel")).unwrap();
        let cpu = "processor\t: 0\nmodel name\t: Fast CPU\nflags\t\t: fpu hypervisor sse\n\n";
        fs::write(root.join("proc/cpuinfo"), cpu.repeat(2)).unwrap();
        fs::write(root.join("proc/meminfo"), "MemTotal:        2048 kB\n").unwrap();
        fs::write(root.join("proc/sys/kernel/osrelease"), "6.18.1\n").unwrap();
        let machine = Machine::from_root(&root);
        fs::remove_dir_all(&root).unwrap();
        assert_eq!((machine.cpu_model.as_str(), machine.cpus), ("Fast CPU", 2));
        assert_eq!((machine.memory_bytes, machine.is_virtual), (2 << 20, true));
        assert!(machine.summary().contains("Linux 6.18.1"));
    }

    #[test]
    fn an_empty_tree_is_unknown() {
        let machine = Machine::from_root(Path::new("/nowhere"));
        assert_eq!((machine.cpu_model.as_str(), machine.kernel.as_str()), ("unknown", "unknown"));
    }
}
