//! What the runtime counts. All relaxed atomics: read by the agent when a window closes.

use std::sync::atomic::{AtomicU64, Ordering};
use terrace_core::tier::MAX_TIERS;
use terrace_core::wire::REFUSALS;

/// Sub-buckets per power of two: quantiles are right to 1/16.
const SUB: usize = 16;
/// Powers of two covered, from 2^7 ns up to about a second.
const OCTAVES: usize = 24;
const FIRST_BIT: u32 = 7;

/// Latencies in logarithmic buckets. Recording is two shifts and an increment.
#[derive(Debug)]
pub struct Histogram {
    counts: [AtomicU64; SUB * OCTAVES],
    sum_ns: AtomicU64,
}

impl Histogram {
    const fn new() -> Histogram {
        Histogram {
            counts: [const { AtomicU64::new(0) }; SUB * OCTAVES],
            sum_ns: AtomicU64::new(0),
        }
    }

    /// Adds one value.
    pub fn record(&self, ns: u64) {
        self.counts[bucket(ns)].fetch_add(1, Ordering::Relaxed);
        self.sum_ns.fetch_add(ns, Ordering::Relaxed);
    }

    /// How many values there are.
    pub fn count(&self) -> u64 {
        self.counts.iter().map(|c| c.load(Ordering::Relaxed)).sum()
    }

    /// All values together.
    pub fn total_ns(&self) -> u64 {
        self.sum_ns.load(Ordering::Relaxed)
    }

    /// Mean, 0 without values.
    pub fn mean_ns(&self) -> u64 {
        self.sum_ns.load(Ordering::Relaxed).checked_div(self.count()).unwrap_or(0)
    }

    /// The value that `share` of all values do not exceed (upper edge of its bucket).
    pub fn quantile_ns(&self, share: f64) -> u64 {
        let want = (self.count() as f64 * share).ceil() as u64;
        let mut seen = 0;
        for (i, c) in self.counts.iter().enumerate() {
            seen += c.load(Ordering::Relaxed);
            if want > 0 && seen >= want {
                return upper_edge(i);
            }
        }
        0
    }
}

fn bucket(ns: u64) -> usize {
    let ns = ns.max(1 << FIRST_BIT);
    let bit = 63 - ns.leading_zeros();
    let sub = (ns >> (bit - 4)) as usize & (SUB - 1);
    ((bit - FIRST_BIT) as usize * SUB + sub).min(SUB * OCTAVES - 1)
}

fn upper_edge(bucket: usize) -> u64 {
    let bit = FIRST_BIT + (bucket / SUB) as u32;
    (1u64 << bit) + ((bucket % SUB + 1) as u64) * (1u64 << (bit - 4)) - 1
}

/// One tier's faults and refusals.
#[derive(Debug)]
pub struct TierCounters {
    /// Service time of faults, from the message read to the thread woken.
    pub fault_ns: Histogram,
    /// Pages held as a repeated word.
    pub same_pages: AtomicU64,
    /// Pages refused, in the order of `terrace_core::wire::REFUSALS`.
    pub refused: [AtomicU64; REFUSALS.len()],
}

/// Everything counted.
#[derive(Debug)]
pub struct Stats {
    /// By tier; `TierId(0)` is unused.
    pub tiers: [TierCounters; MAX_TIERS],
    /// See `wire::Report`; the names are the same there.
    pub zero_faults: AtomicU64,
    /// Faults on sampled pages.
    pub sample_faults: AtomicU64,
    /// Faults on staged pages.
    pub staged_faults: AtomicU64,
    /// Pages that came home along with a fault of the scan they belong to.
    pub ahead_pages: AtomicU64,
    /// Pages brought home by plan.
    pub promoted_pages: AtomicU64,
    /// Pages moved between tiers.
    pub migrated_pages: AtomicU64,
    /// Plan entries dropped.
    pub abandoned_moves: AtomicU64,
    /// Pages that went into a tier.
    pub demoted_pages: AtomicU64,
    /// Pages on their way that a mover left where they were.
    pub given_up_pages: AtomicU64,
    /// Waiting time of application threads.
    pub stalled_ns: AtomicU64,
    /// The part of it that is waking.
    pub waking_ns: AtomicU64,
    /// The part of it that was for fresh memory.
    pub fresh_ns: AtomicU64,
    /// What waking takes now, for a fault.
    pub fault_overhead_ns: AtomicU64,
    /// What it took at start, in a loop.
    pub waking_at_start_ns: AtomicU64,
    /// What filling a page took there.
    pub filling_at_start_ns: AtomicU64,
    /// Forked children whose missing pages are still being filled in.
    pub children_pending: AtomicU64,
}

impl Default for Stats {
    fn default() -> Stats {
        let zero = || AtomicU64::new(0);
        Stats {
            tiers: std::array::from_fn(|_| TierCounters {
                fault_ns: Histogram::new(),
                same_pages: zero(),
                refused: std::array::from_fn(|_| zero()),
            }),
            zero_faults: zero(),
            sample_faults: zero(),
            staged_faults: zero(),
            ahead_pages: zero(),
            promoted_pages: zero(),
            migrated_pages: zero(),
            abandoned_moves: zero(),
            demoted_pages: zero(),
            given_up_pages: zero(),
            stalled_ns: zero(),
            waking_ns: zero(),
            fresh_ns: zero(),
            fault_overhead_ns: zero(),
            waking_at_start_ns: zero(),
            filling_at_start_ns: zero(),
            children_pending: zero(),
        }
    }
}

/// Adds to a counter.
pub fn add(counter: &AtomicU64, n: u64) {
    counter.fetch_add(n, Ordering::Relaxed);
}

/// Reads a counter.
pub fn get(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_right_to_a_sixteenth() {
        let h = Histogram::new();
        for ns in 1..=10_000u64 {
            h.record(ns);
        }
        for (share, exact) in [(0.5, 5000.0), (0.99, 9900.0), (0.999, 9990.0)] {
            let got = h.quantile_ns(share) as f64;
            assert!(got >= exact && got <= exact * 1.07, "{share}: {got}");
        }
        assert_eq!(h.count(), 10_000);
        assert_eq!(h.mean_ns(), 5000);
    }

    #[test]
    fn counts_never_run_backwards() {
        let h = Histogram::new();
        h.counts[bucket(5_000)].store(u64::from(u32::MAX), Ordering::Relaxed);
        h.record(5_000);
        assert_eq!(h.count(), 1 << 32);
        assert_eq!(h.quantile_ns(0.5), upper_edge(bucket(5_000)));
    }

    #[test]
    fn no_value_is_out_of_range() {
        let h = Histogram::new();
        assert_eq!((h.quantile_ns(0.5), h.mean_ns()), (0, 0));
        h.record(0);
        h.record(u64::MAX >> 20);
        assert_eq!(h.count(), 2);
    }
}
