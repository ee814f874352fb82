//! What the numbers were measured on. A number without its machine is an anecdote.

use serde::Serialize;
use std::fs;
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

/// The machine and the versions of what ran on it.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Machine {
    /// Processor, CPUs and memory in one line.
    pub machine: String,
    /// Release of the kernel.
    pub kernel: String,
    /// Name of the distribution.
    pub distribution: String,
    /// Version of Terrace.
    pub version: String,
    /// Version of redis-server.
    pub redis: String,
    /// Transparent huge pages setting.
    pub thp: String,
    /// When, in UTC.
    pub date: String,
}

impl Machine {
    /// Looks at this machine.
    pub fn here() -> Machine {
        let cpuinfo = read("/proc/cpuinfo");
        let model = field(&cpuinfo, "model name").unwrap_or(std::env::consts::ARCH);
        let cpus = std::thread::available_parallelism().map_or(1, |n| n.get());
        let meminfo = read("/proc/meminfo");
        let kib = field(&meminfo, "MemTotal").and_then(|t| t.split(' ').next()?.parse().ok());
        let gib = kib.unwrap_or(0.0_f64) / f64::from(1 << 20);
        let virt = if cpuinfo.contains(" hypervisor") { ", virtual machine" } else { "" };
        let os = read("/etc/os-release");
        let os = os.lines().find_map(|l| l.strip_prefix("PRETTY_NAME=")).unwrap_or("Linux");
        let thp = read("/sys/kernel/mm/transparent_hugepage/enabled");
        let thp = thp.split_once('[').and_then(|(_, t)| t.split_once(']')).map(|(t, _)| t);
        Machine {
            machine: format!("{model}, {cpus} CPUs, {gib:.1} GiB{virt}"),
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            distribution: os.trim_matches('"').to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            redis: redis_version(),
            thp: thp.unwrap_or("unknown").to_owned(),
            date: date(SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs())),
        }
    }
}

fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let line = text.lines().find(|l| l.starts_with(name))?;
    line.split_once(':').map(|(_, value)| value.trim())
}

fn redis_version() -> String {
    let out = Command::new("redis-server").arg("--version").output();
    let out = out.map(|o| String::from_utf8_lossy(&o.stdout).into_owned()).unwrap_or_default();
    let version = out.split_whitespace().find_map(|word| word.strip_prefix("v="));
    version.unwrap_or("unknown").to_owned()
}

/// `2026-01-31 23:59 UTC` from seconds since 1970 (days to civil date after Howard Hinnant).
fn date(unix_s: u64) -> String {
    let (days, second) = (unix_s / 86_400, unix_s % 86_400);
    let z = days + 719_468;
    let (era, doe) = (z / 146_097, z % 146_097);
    let yoe = (doe - doe / 1_460 + doe / 36_524 - doe / 146_096) / 365;
    let doy = doe - (365 * yoe + yoe / 4 - yoe / 100);
    let mp = (5 * doy + 2) / 153;
    let day = doy - (153 * mp + 2) / 5 + 1;
    let month = if mp < 10 { mp + 3 } else { mp - 9 };
    let year = yoe + era * 400 + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02} {:02}:{:02} UTC", second / 3600, second / 60 % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_civil() {
        assert_eq!(date(0), "1970-01-01 00:00 UTC");
        assert_eq!(date(951_782_400), "2000-02-29 00:00 UTC");
        assert_eq!(date(1_798_761_599), "2026-12-31 23:59 UTC");
    }

    #[test]
    fn this_machine_has_a_name() {
        let machine = Machine::here();
        assert!(machine.machine.contains("CPUs") && !machine.kernel.is_empty());
    }
}
