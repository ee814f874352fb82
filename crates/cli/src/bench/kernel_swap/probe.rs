//! The measuring loop: fill, push out, touch in random order. zswap and Terrace are measured by
//! this very code; they differ only in who pushes the pages out.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Barrier;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::pages::PageSource;
use super::sys::{interrupted, Mapping, Pinned};

/// What to measure.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ProbeSpec {
    /// Pages to map, fill and touch.
    pub pages: usize,
    /// Seed of the order in which they are touched.
    pub seed: u64,
    /// Whether to stay on one CPU while touching; only with one thread.
    pub pin: bool,
    /// Threads that touch at once, each its own part of the pages; at least 1.
    pub threads: usize,
    /// Whether a thread of its own asks the kernel, over and over, to page everything out again
    /// while pages are touched.
    pub page_out_meanwhile: bool,
}

impl Default for ProbeSpec {
    fn default() -> Self {
        // 128 MiB: far beyond every cache, and 32 samples beyond the 99.9th percentile.
        ProbeSpec { pages: 32_768, seed: 1, pin: true, threads: 1, page_out_meanwhile: false }
    }
}

/// What was measured.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct ProbeFigures {
    /// Pages touched.
    pub pages: usize,
    /// Pages that were still in memory after they should have been pushed out.
    pub resident_before: usize,
    /// Touches that found no page in memory; only these count as faults.
    pub faults: usize,
    /// Fault latency, median.
    pub fault_ns_p50: u64,
    /// Fault latency, 99th percentile.
    pub fault_ns_p99: u64,
    /// Fault latency, 99.9th percentile.
    pub fault_ns_p999: u64,
    /// The slowest fault.
    pub fault_ns_max: u64,
    /// Time that pushing out took, per page that left.
    pub pageout_ns_per_page: f64,
    /// Pages that came back with other bytes.
    pub wrong_pages: usize,
}

/// Maps and fills memory, has `push_out` get it out of DRAM, then touches every page in random
/// order and times the touches that fault. An error if interrupted or if hardly a page went out.
pub fn fault_probe(
    spec: &ProbeSpec,
    source: &PageSource,
    push_out: impl FnOnce(&Mapping) -> io::Result<()>,
) -> io::Result<ProbeFigures> {
    if spec.pages == 0 {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "no pages to measure"));
    }
    let mut mapping = Mapping::new(spec.pages)?;
    for n in 0..spec.pages {
        source.fill(n, mapping.page_mut(n));
        stop_if_interrupted(n)?;
    }
    let order = shuffled(spec.pages, spec.seed);
    let threads = spec.threads.clamp(1, spec.pages);
    let mut parts: Vec<Part> = (0..threads)
        .map(|t| Part::new(order.iter().copied().skip(t).step_by(threads).collect()))
        .collect();
    drop(order);

    let started = Instant::now();
    push_out(&mapping)?;
    let pushing = started.elapsed();
    let resident_before = mapping.resident_pages()?;
    let out = spec.pages - resident_before;
    if out < spec.pages / 2 {
        return Err(io::Error::other(format!(
            "only {out} of {} pages went out; nothing can be said about faults",
            spec.pages
        )));
    }

    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        if spec.page_out_meanwhile {
            scope.spawn(|| keep_paging_out(&mapping, &done));
        }
        let outcome = touch_all(spec, &mapping, source, &mut parts);
        done.store(true, Ordering::Relaxed);
        outcome
    })?;
    let wrong_pages = parts.iter().map(|p| p.wrong_pages).sum();
    let mut latencies_ns: Vec<u64> = parts.into_iter().flat_map(|p| p.latencies_ns).collect();
    latencies_ns.sort_unstable();
    Ok(ProbeFigures {
        pages: spec.pages,
        resident_before,
        faults: latencies_ns.len(),
        fault_ns_p50: quantile(&latencies_ns, 0.5),
        fault_ns_p99: quantile(&latencies_ns, 0.99),
        fault_ns_p999: quantile(&latencies_ns, 0.999),
        fault_ns_max: quantile(&latencies_ns, 1.0),
        pageout_ns_per_page: pushing.as_nanos() as f64 / out as f64,
        wrong_pages,
    })
}

/// What one thread touches, and how long that took.
struct Part {
    order: Vec<usize>,
    latencies_ns: Vec<u64>,
    wrong_pages: usize,
}

impl Part {
    fn new(order: Vec<usize>) -> Part {
        Part { latencies_ns: Vec::with_capacity(order.len()), order, wrong_pages: 0 }
    }

    fn touch(&mut self, mapping: &Mapping, source: &PageSource) -> io::Result<()> {
        let mut expected = [0u8; super::PAGE_BYTES];
        for (done, &n) in self.order.iter().enumerate() {
            stop_if_interrupted(done)?;
            // Asked outside the timed part. Neighbours may have come along with an earlier fault,
            // and a touch that does not fault would only flatter the figures.
            let resident = mapping.is_resident(n)?;
            let before = Instant::now();
            std::hint::black_box(mapping.touch(n));
            let took = before.elapsed();
            if !resident {
                self.latencies_ns.push(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX));
            }
            source.fill(n, &mut expected);
            self.wrong_pages += usize::from(mapping.page(n) != expected);
        }
        Ok(())
    }
}

fn touch_all(
    spec: &ProbeSpec,
    mapping: &Mapping,
    source: &PageSource,
    parts: &mut [Part],
) -> io::Result<()> {
    if let [only] = parts {
        let pinned = if spec.pin { Some(Pinned::here()?) } else { None };
        let outcome = only.touch(mapping, source);
        drop(pinned);
        return outcome;
    }
    let together = Barrier::new(parts.len());
    let start = |part: &mut Part| {
        together.wait();
        part.touch(mapping, source)
    };
    let panicked = |_| Err(io::Error::other("a thread that touches pages panicked"));
    std::thread::scope(|scope| {
        let handles: Vec<_> = parts.iter_mut().map(|p| scope.spawn(|| start(p))).collect();
        handles.into_iter().try_for_each(|h| h.join().unwrap_or_else(panicked))
    })
}

/// Demotion at full speed, the kernel's way: the mapping piece by piece, round and round.
fn keep_paging_out(mapping: &Mapping, done: &AtomicBool) {
    const PIECE_PAGES: usize = 512;
    loop {
        for first in (0..mapping.pages()).step_by(PIECE_PAGES) {
            let piece = first..(first + PIECE_PAGES).min(mapping.pages());
            // A kernel that refuses the advice would have refused it before.
            if done.load(Ordering::Relaxed) || mapping.page_out_part(piece).is_err() {
                return;
            }
        }
    }
}

/// A `push_out` for when somebody else moves the pages, such as Terrace: waits until `share` of
/// them have left, or fails after `timeout`. Waiting reads no page of the mapping.
pub fn wait_until_out(share: f64, timeout: Duration) -> impl FnOnce(&Mapping) -> io::Result<()> {
    const LOOK_EVERY: Duration = Duration::from_millis(50);
    move |mapping| {
        let started = Instant::now();
        loop {
            stop_if_interrupted(0)?;
            let resident = mapping.resident_pages()?;
            let out = 1.0 - resident as f64 / mapping.pages() as f64;
            if out >= share {
                return Ok(());
            }
            if started.elapsed() >= timeout {
                let text = format!(
                    "only {:.0} % of the pages went out in {} s; is tiering on?",
                    out * 100.0,
                    timeout.as_secs()
                );
                return Err(io::Error::new(io::ErrorKind::TimedOut, text));
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }
}

/// Looks at the flag once in 256 rounds.
fn stop_if_interrupted(round: usize) -> io::Result<()> {
    if round.is_multiple_of(256) && interrupted() {
        return Err(io::Error::new(io::ErrorKind::Interrupted, "interrupted"));
    }
    Ok(())
}

/// The value that `q` of the sorted values do not exceed; 0 for none.
fn quantile(sorted: &[u64], q: f64) -> u64 {
    let rank = (sorted.len() as f64 * q).ceil() as usize;
    sorted.get(rank.saturating_sub(1)).copied().unwrap_or(0)
}

/// 0..n in random order (Fisher-Yates over splitmix64, so that it is the same everywhere).
pub fn shuffled(n: usize, seed: u64) -> Vec<usize> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    };
    let mut order: Vec<usize> = (0..n).collect();
    for i in (1..n).rev() {
        let j = (next() % (i as u64 + 1)) as usize;
        order.swap(i, j);
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_of_known_values() {
        let values: Vec<u64> = (1..=1000).collect();
        assert_eq!(quantile(&values, 0.5), 500);
        assert_eq!(quantile(&values, 0.99), 990);
        assert_eq!(quantile(&values, 0.999), 999);
        assert_eq!(quantile(&values, 1.0), 1000);
        assert_eq!(quantile(&[], 0.5), 0);
    }

    #[test]
    fn the_order_has_every_page_once_and_depends_on_the_seed() {
        let mut order = shuffled(1000, 7);
        assert_eq!(order, shuffled(1000, 7));
        assert_ne!(order, shuffled(1000, 8));
        order.sort_unstable();
        assert!(order.iter().enumerate().all(|(i, n)| i == *n));
    }

    #[test]
    fn every_thread_touches_its_own_part() {
        let source = PageSource::from_bytes(b"some text that repeats ".repeat(400));
        for threads in [1, 3] {
            let spec = ProbeSpec { pages: 64, threads, ..ProbeSpec::default() };
            // Dropping the pages is as good as pushing them out, but for their bytes.
            let drop_pages = |m: &Mapping| m.empty();
            let figures = fault_probe(&spec, &source, drop_pages).unwrap();
            assert_eq!((figures.faults, figures.wrong_pages), (64, 64));
        }
    }

    #[test]
    fn pages_that_stay_are_an_error_and_not_a_fast_fault() {
        let spec = ProbeSpec { pages: 64, ..ProbeSpec::default() };
        let source = PageSource::from_bytes(b"some text that repeats ".repeat(400));
        let error = fault_probe(&spec, &source, |_| Ok(())).unwrap_err();
        assert!(error.to_string().starts_with("only 0 of 64 pages went out"), "{error}");
        let wait = wait_until_out(0.9, Duration::ZERO);
        let error = fault_probe(&spec, &source, wait).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }
}
