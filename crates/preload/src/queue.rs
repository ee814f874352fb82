//! What is to be moved, and who has it in hand: the plan as movers see it. A new plan replaces the
//! rest of the old one, so that nothing is moved for reasons that hold no more.

use crate::region::Region;
use crate::sys::sync::{Condvar, Mutex, MutexGuard};
use crate::sys::{credentials, thread};
use std::collections::VecDeque;
use std::sync::PoisonError;
use terrace_core::tier::TierId;

/// What a mover does next.
#[derive(Debug)]
pub enum Job {
    /// Bring this region to this tier.
    Move(&'static Region, TierId),
    /// Close the gaps that pages left in the pools when they went home.
    Tidy,
}

/// Work waiting for movers: regions and where they should be.
#[derive(Debug, Default)]
pub struct Queue {
    inner: Mutex<Inner>,
    wake: Condvar,
}

#[derive(Debug, Default)]
struct Inner {
    jobs: VecDeque<(&'static Region, TierId)>,
    /// Regions in the hands of a mover. A new plan may name them again; they wait.
    busy: Vec<&'static Region>,
    /// Whether pools are to be tidied once nothing is waiting, and how many movers do so now.
    is_untidy: bool,
    tidying: usize,
    /// Moving budget: bytes allowed so far minus bytes moved, and when it was last filled.
    credit_bytes: i64,
    filled_at_ns: u64,
}

impl Queue {
    /// Replaces what is waiting by a new plan. Returns how many old entries were dropped.
    pub fn replace(&self, jobs: impl IntoIterator<Item = (&'static Region, TierId)>) -> usize {
        let mut q = self.lock();
        let dropped = q.jobs.len();
        q.jobs.clear();
        q.jobs.extend(jobs);
        q.is_untidy = true;
        self.wake.notify_all();
        dropped
    }

    /// Whether something that was planned waits still.
    pub fn is_behind(&self) -> bool {
        !self.lock().jobs.is_empty()
    }

    /// Whether nothing is waiting and nobody works.
    pub fn is_idle(&self) -> bool {
        let q = self.lock();
        q.jobs.is_empty() && q.busy.is_empty() && q.tidying == 0
    }

    /// Lets a mover see to the pools when it has nothing else to do.
    pub fn ask_to_tidy(&self) {
        self.lock().is_untidy = true;
        self.wake.notify_one();
    }

    /// Has movers that wait look around.
    pub fn wake_all(&self) {
        // With the lock, so that none is between its look and its wait.
        let _q = self.lock();
        self.wake.notify_all();
    }

    /// Whether a mover that tidies should go on: nobody has anything better for it.
    pub fn has_no_job(&self) -> bool {
        self.lock().jobs.is_empty()
    }

    /// The next thing to do; waits until there is one. A region stays in the caller's hands until
    /// it is [`done`](Self::done).
    pub fn next(&self) -> Job {
        let mut q = self.lock();
        loop {
            credentials::follow();
            let free = |r: &Region| !q.busy.iter().any(|b| std::ptr::eq(*b, r));
            if let Some(job) =
                q.jobs.iter().position(|(r, _)| free(r)).and_then(|n| q.jobs.remove(n))
            {
                q.busy.push(job.0);
                return Job::Move(job.0, job.1);
            }
            if q.is_untidy && q.jobs.is_empty() {
                q.is_untidy = false;
                q.tidying += 1;
                return Job::Tidy;
            }
            q = self.wake.wait(q).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Ends a [`Job::Move`] of `region`.
    pub fn done(&self, region: &Region) {
        self.lock().busy.retain(|b| !std::ptr::eq(*b, region));
        self.wake.notify_all();
    }

    /// Ends a [`Job::Tidy`]; `is_tidy` is false if it was broken off.
    pub fn tidied(&self, is_tidy: bool) {
        let mut q = self.lock();
        q.tidying -= 1;
        q.is_untidy |= !is_tidy;
    }

    /// Takes `bytes` out of the bandwidth budget; returns how long to wait before moving more.
    pub fn charge(&self, bytes: u64, mib_s: u32) -> u64 {
        if mib_s == 0 {
            return 0;
        }
        let rate = i64::from(mib_s) << 20;
        let mut q = self.lock();
        let now = thread::now_ns();
        let since = now.saturating_sub(q.filled_at_ns);
        q.filled_at_ns = now;
        let earned = i128::from(rate) * i128::from(since) / 1_000_000_000;
        let credit = i128::from(q.credit_bytes) + earned;
        // At most a tenth of a second's worth is saved up.
        q.credit_bytes = credit.min(i128::from(rate / 10)) as i64 - bytes as i64;
        if q.credit_bytes >= 0 {
            0
        } else {
            (-q.credit_bytes) as u64 * 1_000_000 / rate as u64
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
