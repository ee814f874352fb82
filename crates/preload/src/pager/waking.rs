//! What a thread waits for its page beyond the service: the kernel's way to the pager and back.
//!
//! Nobody in the process sees it. At start it is measured in a loop, with all that the kernel needs
//! for it in the caches. A program that goes through its memory between two faults has evicted
//! that: 5 us are 33 then (`bench slowdown`, the program that allocates; docs/notes/throughput.md).
//! The pager's own call that fills the page is colder still, as it touches the page as well. So
//! waking is taken to grow with what that call takes, by [`SHARE`] of it.

use super::Pager;
use crate::stats;
use std::sync::atomic::Ordering;

/// A filling counts for one in so many.
const WEIGHT: f64 = 1.0 / 64.0;
/// A longer one was interrupted, by so many times what it took at start.
const FILLING_MAX: f64 = 32.0;
/// By how much waking grows where filling grows by 1: it was 5.2 times what it was at start where
/// filling was 7 times that (docs/fault-path.md, "What is measured").
const SHARE: f64 = 0.7;
/// Waking is at most so many times what it was.
const FACTOR_MAX: f64 = 12.0;

/// The mean of what filling a page takes, by what it took at start.
#[derive(Clone, Copy, Debug)]
pub(super) struct Coldness(f64);

impl Default for Coldness {
    fn default() -> Coldness {
        Coldness(1.0)
    }
}

impl Coldness {
    /// A page was filled in `ns`, where it took `at_start_ns`, 0 if that is not known.
    fn observe(&mut self, ns: u64, at_start_ns: u64) {
        if at_start_ns > 0 {
            let times = (ns as f64 / at_start_ns as f64).min(FILLING_MAX);
            self.0 += (times - self.0) * WEIGHT;
        }
    }

    /// What waking takes, which took `at_start_ns`.
    fn waking_ns(self, at_start_ns: u64) -> u64 {
        let times = 1.0 + SHARE * (self.0 - 1.0);
        (at_start_ns as f64 * times.clamp(1.0, FACTOR_MAX)) as u64
    }
}

impl Pager {
    /// One page was filled by itself, in so long.
    pub(super) fn filled_in(&mut self, ns: u64) {
        let s = &self.rt.stats;
        self.coldness.observe(ns, stats::get(&s.filling_at_start_ns));
        let now_ns = self.coldness.waking_ns(stats::get(&s.waking_at_start_ns));
        s.fault_overhead_ns.store(now_ns, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waking_grows_with_filling() {
        let mut coldness = Coldness::default();
        assert_eq!(coldness.waking_ns(5_000), 5_000);
        for _ in 0..500 {
            coldness.observe(18_000, 3_000);
        }
        let waking_ns = coldness.waking_ns(5_000);
        // Six times, and 1 + 0.7 * 5.
        assert!((22_400..=22_500).contains(&waking_ns), "{waking_ns}");
        // A second of a mover's on this processor, once.
        coldness.observe(1_000_000_000, 3_000);
        assert!(coldness.waking_ns(5_000) < 25_000);
        for _ in 0..500 {
            coldness.observe(2_000, 3_000);
        }
        assert_eq!(coldness.waking_ns(5_000), 5_000, "never less than at start");
        for _ in 0..5_000 {
            coldness.observe(1 << 40, 3_000);
        }
        assert_eq!(coldness.waking_ns(5_000), 60_000, "nor more than is plausible");
    }

    #[test]
    fn what_was_not_measured_at_start_is_not_multiplied() {
        let mut coldness = Coldness::default();
        (0..500).for_each(|_| coldness.observe(18_000, 0));
        assert_eq!(coldness.waking_ns(5_000), 5_000);
        assert_eq!(coldness.waking_ns(0), 0);
    }
}
