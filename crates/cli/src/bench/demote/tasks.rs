//! CPU time of the threads of a process, by their names.

use crate::threads;

/// CPU time of each thread.
#[derive(Clone, Default, Debug)]
pub(super) struct Tasks(Vec<(String, u64)>);

/// What the threads of `pid` have used so far. Threads that end are forgotten with their time.
pub(super) fn cpu_by_thread(pid: u32) -> Tasks {
    let Ok(threads) = threads::of(pid) else { return Tasks::default() };
    Tasks(threads.filter_map(|t| Some((t.name()?, t.scheduled()?.ran_ns))).collect())
}

impl Tasks {
    /// Nanoseconds of all threads whose names begin so.
    pub(super) fn of(&self, name: &str) -> u64 {
        self.0.iter().filter(|(n, _)| n.starts_with(name)).map(|(_, ns)| ns).sum()
    }

    /// Nanoseconds of all other threads.
    pub(super) fn of_others(&self, name: &str) -> u64 {
        self.total() - self.of(name)
    }

    /// Nanoseconds of all threads.
    pub(super) fn total(&self) -> u64 {
        self.0.iter().map(|(_, ns)| ns).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_are_told_apart_by_name() {
        let tasks = Tasks(vec![("terrace-mover".into(), 5), ("main".into(), 7)]);
        assert_eq!((tasks.of("terrace-"), tasks.of_others("terrace-"), tasks.total()), (5, 7, 12));
        assert!(cpu_by_thread(std::process::id()).total() > 0);
    }
}
