//! TierScape's two-tier system on the kernel that is here: what a threshold sends down goes by
//! `process_madvise(MADV_PAGEOUT)` into zswap, and nothing into tiers of ours. Only for `terrace
//! bench paper`, which sets zswap up and takes it away again.
//!
//! The runtime samples as ever and holds no tiers. What it cannot see - the kernel's faults - is
//! read from the pagemap of the program when a window closes: a page that was in swap when last
//! looked at and is in memory now was swapped in. It is looked at when a window closes and again
//! right after pages were sent out, and a page that came back stays for as many windows as in
//! Terrace's own tiers, so no swap-in is missed but that of a page that was unmapped as well. The
//! program pays nothing for it. A report is corrected in place ([`KernelTwoTier::observe`]), so
//! that hotness, policy and timeline are the very code that Terrace's own two-tier runs through.
//!
//! Two differences remain. Pages of a region that is down may be sampled while they are in swap
//! (four of 512 a window), where Terrace samples only those that are back. And what a plan wants
//! back in DRAM is left to come by itself: zswap has nobody who would fetch it.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use terrace_core::plan::Move;
use terrace_core::tier::TierId;
use terrace_core::wire::{Report, TierReport};

use super::pageout::{stand_back, Pages, Target, Whereabouts, PAGE_BYTES, REGION_PAGES};
use super::signals;
use crate::machine::meminfo_bytes;
use crate::say;

/// Never came back from swap.
const NEVER: u32 = u32::MAX;

/// What is known of a region.
struct Region {
    /// Whether the last plan sent it down.
    is_down: bool,
    /// Last seen in swap. Shared with the mover, which looks after it has sent pages out.
    in_swap: Arc<Mutex<Pages>>,
    /// In memory when the window was opened.
    present_at_open: u16,
    /// By page: the window in which it last came back.
    back_at: Box<[u32; REGION_PAGES]>,
    /// Where its pages were when the last window closed.
    last: Whereabouts,
    /// The window in which it was last reported.
    seen_in: u32,
}

impl Region {
    fn new(window: u32) -> Region {
        Region {
            is_down: false,
            in_swap: Arc::default(),
            present_at_open: 0,
            back_at: Box::new([NEVER; REGION_PAGES]),
            last: Whereabouts::default(),
            seen_in: window,
        }
    }

    /// Takes in where the pages are at the end of `window`; how many were swapped in during it.
    fn look(&mut self, now: Whereabouts, window: u32) -> u16 {
        let mut in_swap = lock(&self.in_swap);
        let back = in_swap.and(&now.present);
        *in_swap = now.swapped;
        drop(in_swap);
        for page in back.iter() {
            self.back_at[page] = window;
        }
        self.last = now;
        self.seen_in = window;
        back.len()
    }

    /// Pages in memory that may go out after `window` has closed: those that came back stay for
    /// `cooling` windows, counting the one they came back in as the runtime does.
    fn movable(&self, window: u32, cooling: u32) -> Pages {
        let mut pages = Pages::default();
        for page in self.last.present.iter() {
            let at = self.back_at[page];
            if at == NEVER || (window + 1).saturating_sub(at) >= cooling {
                pages.insert(page);
            }
        }
        pages
    }
}

/// The pages of one region to send out.
struct Job {
    base: u64,
    pages: Pages,
    in_swap: Arc<Mutex<Pages>>,
}

/// What the planner and the mover share.
#[derive(Default)]
struct Queue {
    jobs: Mutex<(VecDeque<Job>, bool)>,
    changed: Condvar,
    cpu_ns: AtomicU64,
    failures: AtomicU64,
    sent_pages: AtomicU64,
}

/// The kernel's side of one application.
pub(super) struct KernelTwoTier {
    target: Arc<Target>,
    regions: HashMap<u64, Region>,
    queue: Arc<Queue>,
    cooling: u32,
    window: u32,
    swapped_in: u64,
    abandoned: u64,
}

impl KernelTwoTier {
    /// For process `pid`; `move_mib_s` limits how much goes out in a second, 0 for no limit.
    ///
    /// # Errors
    ///
    /// The process cannot be traced by us, or the kernel has no pidfd.
    pub(super) fn new(pid: u32, cooling: u32, move_mib_s: u64) -> io::Result<KernelTwoTier> {
        let target = Arc::new(Target::open(pid)?);
        let queue = Arc::new(Queue::default());
        let mover = (target.clone(), queue.clone());
        std::thread::Builder::new()
            .name("kernel-mover".into())
            .spawn(move || carry_out(&mover.0, &mover.1, move_mib_s))?;
        Ok(KernelTwoTier {
            target,
            regions: HashMap::new(),
            queue,
            cooling,
            window: 0,
            swapped_in: 0,
            abandoned: 0,
        })
    }

    /// Puts what the kernel holds into a report, as if a tier of ours held it.
    pub(super) fn observe(&mut self, report: &mut Report) {
        let before_ns = signals::thread_cpu_ns();
        let mut held = 0;
        self.window = report.window;
        for r in &mut report.regions {
            let region = self.regions.entry(r.region).or_insert_with(|| Region::new(report.window));
            // A program that is ending has no pagemap any more; its last report is nobody's plan.
            let Ok(now) = self.target.whereabouts(r.region) else { continue };
            let swapped_in = region.look(now, report.window);
            self.swapped_in += u64::from(swapped_in);
            held += u64::from(now.swapped.len());
            // The runtime counts what is in swap as resident: it asks whether there is content.
            r.resident_at_open = region.present_at_open.min(r.resident_at_open);
            r.resident = r.resident.saturating_sub(now.swapped.len());
            r.stored = now.swapped.len();
            r.faults = u32::from(swapped_in);
            r.tier = u8::from(region.is_down);
            region.present_at_open = r.resident;
        }
        self.regions.retain(|_, r| r.seen_in == report.window);
        let pool_bytes = zswap_pool_bytes();
        report.rss_bytes += pool_bytes;
        report.demoted_pages = self.queue.sent_pages.load(Ordering::Relaxed);
        report.abandoned_moves = self.abandoned;
        report.tiers = vec![TierReport {
            pages: held,
            stored_bytes: pool_bytes,
            pool_bytes,
            faults: self.swapped_in,
            ..TierReport::default()
        }];
        let took_ns = signals::thread_cpu_ns() - before_ns;
        self.queue.cpu_ns.fetch_add(took_ns, Ordering::Relaxed);
    }

    /// Replaces what is left of the last plan by this one.
    pub(super) fn carry_out(&mut self, moves: &[Move]) {
        let mut jobs = VecDeque::with_capacity(moves.len());
        for m in moves {
            let Some(region) = self.regions.get_mut(&m.id) else { continue };
            region.is_down = m.to != TierId::DRAM;
            let pages = region.movable(self.window, self.cooling);
            if region.is_down && pages.len() > 0 {
                jobs.push_back(Job { base: m.id, pages, in_swap: region.in_swap.clone() });
            }
        }
        let mut queue = lock(&self.queue.jobs);
        self.abandoned += queue.0.len() as u64;
        queue.0 = jobs;
        drop(queue);
        self.queue.changed.notify_one();
    }

    /// Processor time of the mover and of looking at pages since this was last asked, in
    /// nanoseconds.
    pub(super) fn take_cpu_ns(&self) -> u64 {
        self.queue.cpu_ns.swap(0, Ordering::Relaxed)
    }
}

impl Drop for KernelTwoTier {
    fn drop(&mut self) {
        let mut queue = lock(&self.queue.jobs);
        queue.0.clear();
        queue.1 = true;
        drop(queue);
        self.queue.changed.notify_one();
        let failures = self.queue.failures.load(Ordering::Relaxed);
        if failures > 0 {
            say!("terrace: {failures} page-outs were refused by the kernel");
        }
    }
}

/// The mover: sends regions out one after the other until told to end.
fn carry_out(target: &Target, queue: &Queue, move_mib_s: u64) {
    stand_back();
    let mut free_at = Instant::now();
    loop {
        let job = {
            let mut jobs = lock(&queue.jobs);
            loop {
                if jobs.1 {
                    return;
                }
                if let Some(job) = jobs.0.pop_front() {
                    break job;
                }
                jobs = queue.changed.wait(jobs).unwrap_or_else(PoisonError::into_inner);
            }
        };
        let before_ns = signals::thread_cpu_ns();
        if target.page_out(job.base, &job.pages).is_err() {
            queue.failures.fetch_add(1, Ordering::Relaxed);
        }
        if let Ok(now) = target.whereabouts(job.base) {
            let sent = job.pages.and(&now.swapped);
            queue.sent_pages.fetch_add(u64::from(sent.len()), Ordering::Relaxed);
            let mut in_swap = lock(&job.in_swap);
            // What came back meanwhile is still to be counted, so nothing is taken off here.
            *in_swap = in_swap.or(&sent);
        }
        queue.cpu_ns.fetch_add(signals::thread_cpu_ns() - before_ns, Ordering::Relaxed);
        if move_mib_s > 0 {
            let bytes = u64::from(job.pages.len()) * PAGE_BYTES;
            let took = Duration::from_secs_f64(bytes as f64 / (move_mib_s << 20) as f64);
            free_at = free_at.max(Instant::now()) + took;
            std::thread::sleep(free_at.saturating_duration_since(Instant::now()));
        }
    }
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Bytes that zswap's pool takes, fragmentation included, of the whole machine: whoever asks has
/// the machine's swap to itself.
fn zswap_pool_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    meminfo_bytes(&text, "Zswap").unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pages(of: impl IntoIterator<Item = usize>) -> Pages {
        let mut pages = Pages::default();
        of.into_iter().for_each(|page| pages.insert(page));
        pages
    }

    fn at(present: impl IntoIterator<Item = usize>, swapped: Pages) -> Whereabouts {
        Whereabouts { present: pages(present), swapped }
    }

    #[test]
    fn what_was_in_swap_and_is_back_was_swapped_in() {
        let mut region = Region::new(1);
        assert_eq!(region.look(at(0..100, pages(100..200)), 1), 0);
        // 100 to 109 came back; 0 to 9 went out and nobody has asked for them.
        assert_eq!(region.look(at(10..110, pages((0..10).chain(110..200))), 2), 10);
        assert_eq!(region.look(at(10..110, pages((0..10).chain(110..200))), 3), 0);
        // Gone altogether is not back.
        assert_eq!(region.look(at(10..110, pages(0..10)), 4), 0);
    }

    #[test]
    fn a_page_that_the_mover_sent_and_that_is_back_is_counted() {
        let mut region = Region::new(1);
        region.look(at(0..512, Pages::default()), 1);
        *lock(&region.in_swap) = pages(0..512);
        assert_eq!(region.look(at(0..3, pages(3..512)), 2), 3);
    }

    #[test]
    fn what_came_back_stays_for_its_time() {
        let mut region = Region::new(1);
        region.look(at(0..4, pages(4..8)), 1);
        assert_eq!(region.movable(1, 3), pages(0..4));
        region.look(at(0..6, pages(6..8)), 2);
        // Windows 2 and 3 and a third in which it was let alone.
        assert_eq!(region.movable(2, 3), pages(0..4));
        assert_eq!(region.movable(3, 3), pages(0..4));
        assert_eq!(region.movable(4, 3), pages(0..6));
        assert_eq!(region.movable(2, 0), pages(0..6));
    }
}
