//! The threads of a process that are alive now, as `/proc/PID/task` tells of them.

use std::fs;
use std::io;
use std::path::PathBuf;

/// What the names of the runtime's own threads in a program begin with.
pub(crate) const OWN: &str = "terrace-";

/// One thread. What is asked of it may be gone with it.
pub(crate) struct Thread {
    pub(crate) id: u32,
    folder: PathBuf,
}

/// What the scheduler has counted of a thread since it began.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Scheduled {
    /// On a processor, in nanoseconds.
    pub(crate) ran_ns: u64,
    /// In the queue for one, in nanoseconds.
    pub(crate) queued_ns: u64,
}

/// Those of `pid`.
///
/// # Errors
/// If there is no such process.
pub(crate) fn of(pid: u32) -> io::Result<impl Iterator<Item = Thread>> {
    let entries = fs::read_dir(format!("/proc/{pid}/task"))?;
    Ok(entries.flatten().filter_map(|entry| {
        let id = entry.file_name().to_str()?.parse().ok()?;
        Some(Thread { id, folder: entry.path() })
    }))
}

impl Thread {
    pub(crate) fn name(&self) -> Option<String> {
        self.read("comm").map(|name| name.trim().to_owned())
    }

    /// Whether it is the runtime's.
    pub(crate) fn is_own(&self) -> bool {
        self.name().is_some_and(|name| name.starts_with(OWN))
    }

    /// `None` on kernels that do not count it, too.
    pub(crate) fn scheduled(&self) -> Option<Scheduled> {
        scheduled(&self.read("schedstat")?)
    }

    /// Its line of `stat`.
    pub(crate) fn stat(&self) -> Option<String> {
        self.read("stat")
    }

    fn read(&self, file: &str) -> Option<String> {
        fs::read_to_string(self.folder.join(file)).ok()
    }
}

fn scheduled(line: &str) -> Option<Scheduled> {
    let mut fields = line.split_ascii_whitespace().map(str::parse);
    let (ran_ns, queued_ns) = (fields.next()?.ok()?, fields.next()?.ok()?);
    Some(Scheduled { ran_ns, queued_ns })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_has_at_least_the_thread_that_asks() {
        // Named here: the harness names threads by their tests.
        let named = std::thread::Builder::new().name("terrace-asks".to_owned()).spawn(|| {
            let id = std::process::id();
            let mine: Vec<Thread> = of(id).expect("alive").filter(Thread::is_own).collect();
            mine.iter().filter(|thread| thread.name().as_deref() == Some("terrace-asks")).count()
        });
        assert_eq!(named.expect("a thread").join().expect("it ends"), 1);
        let all = of(std::process::id()).expect("alive");
        assert!(all.filter_map(|thread| thread.scheduled()).any(|time| time.ran_ns > 0));
        assert!(of(u32::MAX).is_err());
    }

    #[test]
    fn what_the_scheduler_says_is_in_its_order() {
        let both = Scheduled { ran_ns: 12, queued_ns: 3 };
        assert_eq!(scheduled("12 3 4\n"), Some(both));
        assert_eq!(scheduled(""), None);
        assert_eq!(scheduled("12\n"), None);
    }
}
