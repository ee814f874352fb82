//! How long an application's threads stood in the queue for a processor.
//!
//! Whatever takes processor time from a thread that wants it keeps it waiting there: the
//! application's other threads, other programs, and Terrace. So what Terrace took is no more than
//! that, however much it used: on processors that nobody wanted it took nothing. (A thread that was
//! given its page waits there for the pager to leave the processor, too. That is counted as part
//! of the fault already, and here once more.)

use crate::threads;
use std::collections::BTreeMap;

/// Threads of which it is read. Each takes some five microseconds.
const THREADS_MAX: usize = 128;

/// The waits of one process's threads.
pub(super) struct Queued {
    pid: u32,
    /// By thread: in the queue so far, in nanoseconds; `None` for the runtime's own.
    threads: BTreeMap<u32, Option<u64>>,
}

impl Queued {
    pub(super) fn new(pid: u32) -> Queued {
        Queued { pid, threads: BTreeMap::new() }
    }

    /// What they waited since the call before, all together, in nanoseconds. `None` if that is not
    /// known of all of them: some have come or gone, there are many, or the kernel does not say.
    pub(super) fn since_last_ns(&mut self) -> Option<f64> {
        let before = std::mem::take(&mut self.threads);
        self.threads = self.read(&before)?;
        let waited = |(tid, now): (&u32, &Option<u64>)| match (before.get(tid)?, now) {
            (Some(then), Some(now)) => Some(now.saturating_sub(*then)),
            _ => Some(0),
        };
        let is_same = before.len() == self.threads.len();
        let is_known = self.threads.values().any(Option::is_some);
        let sum: Option<u64> = self.threads.iter().map(waited).sum();
        sum.filter(|_| is_same && is_known).map(|ns| ns as f64)
    }

    fn read(&self, before: &BTreeMap<u32, Option<u64>>) -> Option<BTreeMap<u32, Option<u64>>> {
        let mut threads = BTreeMap::new();
        for thread in threads::of(self.pid).ok()? {
            let is_own = match before.get(&thread.id) {
                Some(known) => known.is_none(),
                None => thread.is_own(),
            };
            let waited = if is_own { None } else { thread.scheduled().map(|t| t.queued_ns) };
            // (One that has ended meanwhile is none of them.)
            if is_own || waited.is_some() {
                threads.insert(thread.id, waited);
            }
            if threads.len() > THREADS_MAX {
                return None;
            }
        }
        Some(threads)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Child, Command};

    /// A program of one thread, which is ended with the test.
    struct Other(Child);

    impl Other {
        fn start(program: &str, arguments: &[&str]) -> Other {
            Other(Command::new(program).args(arguments).spawn().expect("it is installed"))
        }
    }

    impl Drop for Other {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    #[test]
    fn what_sleeps_does_not_queue() {
        let sleeper = Other::start("sleep", &["100"]);
        let mut queued = Queued::new(sleeper.0.id());
        assert_eq!(queued.since_last_ns(), None, "nothing to compare with");
        std::thread::sleep(std::time::Duration::from_millis(50));
        queued.since_last_ns();
        assert_eq!(queued.since_last_ns(), Some(0.0));
        assert_eq!(Queued::new(u32::MAX).since_last_ns(), None);
    }

    #[test]
    fn what_runs_beside_others_on_one_processor_does() {
        // Both on the first processor that this test may use.
        let allowed = std::fs::read_to_string("/proc/self/status").expect("readable");
        let list = allowed.lines().find(|l| l.starts_with("Cpus_allowed_list:")).expect("there");
        let first: String = list.chars().filter(|c| !c.is_whitespace()).collect();
        let first: String =
            first["Cpus_allowed_list:".len()..].chars().take_while(char::is_ascii_digit).collect();
        let busy = || Other::start("taskset", &["-c", &first, "sh", "-c", "while :; do :; done"]);
        let (one, _other) = (busy(), busy());
        std::thread::sleep(std::time::Duration::from_millis(200));
        let mut queued = Queued::new(one.0.id());
        queued.since_last_ns();
        std::thread::sleep(std::time::Duration::from_millis(400));
        let waited = queued.since_last_ns().expect("the same thread");
        // Half of the time, where nothing else runs there.
        assert!(waited > 100e6, "{waited}");
    }

    #[test]
    fn threads_that_come_and_go_are_not_counted() {
        let mut queued = Queued::new(std::process::id());
        queued.since_last_ns();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || ended.recv());
        assert_eq!(queued.since_last_ns(), None);
        drop(end);
        assert!(thread.join().expect("it ends").is_err());
    }

    #[test]
    fn the_runtimes_own_threads_do_not_count() {
        let ((end, ended), (up, is_up)) =
            (std::sync::mpsc::channel::<()>(), std::sync::mpsc::channel());
        let own = std::thread::Builder::new().name("terrace-mover".to_string());
        // (It takes its name before it runs this.)
        let run = move || {
            up.send(()).expect("somebody waits");
            ended.recv()
        };
        let thread = own.spawn(run).expect("a thread");
        is_up.recv().expect("it runs");
        let queued = Queued::new(std::process::id());
        let threads = queued.read(&BTreeMap::new()).expect("fewer than 128 threads");
        assert!(threads.values().any(Option::is_none) && threads.values().any(Option::is_some));
        drop(end);
        assert!(thread.join().expect("it ends").is_err());
    }
}
