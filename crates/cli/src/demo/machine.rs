//! What the numbers were measured on, in the words of the demo's JSON and report: the machine, and
//! what besides Terrace ran on it.

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
        let hardware = crate::machine::Machine::here();
        let (model, cpus) = (&hardware.cpu_model, hardware.cpus);
        let gib = hardware.memory_bytes as f64 / (1_u64 << 30) as f64;
        let virt = if hardware.is_virtual { ", virtual machine" } else { "" };
        let os = read("/etc/os-release");
        let os = os.lines().find_map(|l| l.strip_prefix("PRETTY_NAME=")).unwrap_or("Linux");
        let thp = read("/sys/kernel/mm/transparent_hugepage/enabled");
        let thp = thp.split_once('[').and_then(|(_, t)| t.split_once(']')).map(|(t, _)| t);
        Machine {
            machine: format!("{model}, {cpus} CPUs, {gib:.1} GiB{virt}"),
            kernel: hardware.kernel,
            distribution: os.trim_matches('"').to_owned(),
            version: hardware.terrace,
            redis: redis_version(),
            thp: thp.unwrap_or("unknown").to_owned(),
            date: date(SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs())),
        }
    }
}

fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default()
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
