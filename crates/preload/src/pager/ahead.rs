//! Pages that a fault brings along.
//!
//! A scan through pages in tiers would fault once a page, and most of a fault is the way to this
//! thread and back. So faults that follow each other by address are recognised, and such a fault
//! brings the next pages too: 2 with the second fault of a run, then twice as many each time up to
//! [`AHEAD_MAX`], in one `UFFDIO_COPY`. Scattered faults bring nothing along: what they would
//! bring is seldom wanted (docs/fault-path.md has the measurements).
//!
//! An object that lies across the border of two pages makes two faults in a row and no third. So
//! what the second brings depends on how many of the latest pairs went on; where most did not, it
//! takes a third fault to make a run.
//!
//! Fresh memory would fault once a page as well, and what a program allocates is mostly filled from
//! one end to the other, many blocks side by side. There the zero page is mapped into the next
//! pages, 16 with the first fault, 32 and 64 with those that follow it. That takes neither memory
//! nor, once the way here is made, time worth mentioning, and what is written there later is the
//! kernel's own fault.

use super::{Pager, Served};
use crate::region::{page_index, Region};
use crate::stats;
use crate::sys::thread;
use crate::sys::uffd::Failure;
use std::sync::atomic::Ordering;
use terrace_core::state::{PageState, PageWord, PAGE_BYTES, REGION_PAGES};
use terrace_store::Page;

/// Most pages brought along. What other threads' faults may have to wait for: about 3 us each.
pub(super) const AHEAD_MAX: usize = 16;
/// Brought along with the second fault of a run.
const PAIR: usize = 2;
/// Fresh pages for each page that a run would bring along from a tier: 64 at most.
const FRESH_TIMES: usize = 4;
/// With a fresh page that lies in no run come as many as with a page from a tier that is in its
/// second step.
const FRESH_FIRST: usize = 4;
/// Runs followed at a time, for as many threads that scan.
const RUNS: usize = 8;
/// The same of fresh memory: a table's columns, say, each a block of its own, are filled at a time.
const FRESH_RUNS: usize = 32;
/// A run skips over so many pages that are at home.
const SKIP_MAX: usize = 32;

/// How many of the latest pairs of faults went on to a third, in 256ths.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Pairs(u16);

impl Pairs {
    /// Weight of the newest pair: one in so many.
    const WEIGHT: u16 = 16;

    fn note(&mut self, went_on: bool) {
        let aim = if went_on { 256 } else { 0 };
        self.0 = (self.0 * (Pairs::WEIGHT - 1) + aim) / Pairs::WEIGHT;
    }

    fn mostly_go_on(self) -> bool {
        self.0 >= 128
    }
}

impl Default for Pairs {
    /// A program's first pairs are taken for the beginning of a scan.
    fn default() -> Pairs {
        Pairs(256)
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Run {
    /// Address at which the run would fault next; 0 for a free place.
    next: u64,
    /// Pages that the last fault was to bring along as one of a run; 0 for its first fault.
    ahead: usize,
    /// Those of them that really came. The fault at `next` shows that they were wanted.
    unproved: u32,
}

/// The runs that the latest faults belong to.
#[derive(Debug)]
pub(super) struct Runs<const N: usize> {
    runs: [Run; N],
    turn: usize,
    pairs: Pairs,
}

/// Of pages from tiers.
pub(super) type Stored = Runs<RUNS>;
/// Of fresh pages.
pub(super) type Fresh = Runs<FRESH_RUNS>;

impl<const N: usize> Default for Runs<N> {
    fn default() -> Runs<N> {
        Runs { runs: [Run::default(); N], turn: 0, pairs: Pairs::default() }
    }
}

impl<const N: usize> Runs<N> {
    /// How many pages a run would bring along with a fault on `page`; 0 if it lies in none.
    fn wanted(&self, page: u64) -> usize {
        match self.runs.iter().find(|r| r.next == page) {
            Some(run) => (run.ahead * 2).clamp(PAIR, AHEAD_MAX),
            None => 0,
        }
    }

    /// How many of `wanted` pages to bring along: none with the second fault of a pair, where
    /// pairs seldom go on.
    fn worth_bringing(&self, wanted: usize) -> usize {
        if wanted == PAIR && !self.pairs.mostly_go_on() {
            0
        } else {
            wanted
        }
    }

    /// Notes that a fault on `page` was served, that its run `wanted` so many pages to come along
    /// and `brought` did, and where the run would fault `next`. Returns how many pages of the
    /// batch before have proved to be wanted.
    fn served(&mut self, page: u64, wanted: usize, brought: u32, next: u64) -> u32 {
        let (run, proved) = match self.runs.iter_mut().find(|r| r.next == page) {
            Some(run) => {
                let proved = run.unproved;
                (run, proved)
            }
            None => {
                self.turn = (self.turn + 1) % N;
                (&mut self.runs[self.turn], 0)
            }
        };
        // A pair is over when another run takes its place, or goes on.
        if run.ahead == PAIR {
            self.pairs.note(run.next == page);
        }
        *run = Run { next, ahead: wanted, unproved: brought };
        proved
    }

    /// Notes a fault that was served without decoding: it may lie in a run.
    pub(super) fn passed(&mut self, page: u64) {
        if let Some(run) = self.runs.iter_mut().find(|r| r.next == page) {
            run.next = page + PAGE_BYTES as u64;
        }
    }
}

/// Buffers for a batch.
pub(super) struct Batch {
    pages: Box<[Page; AHEAD_MAX + 1]>,
    words: [PageWord; AHEAD_MAX + 1],
}

impl Default for Batch {
    fn default() -> Batch {
        Batch {
            pages: Box::new([[0; PAGE_BYTES]; AHEAD_MAX + 1]),
            words: [PageWord::default(); AHEAD_MAX + 1],
        }
    }
}

impl Pager {
    /// Brings page `i` home, which is decoded in `self.page` and claimed (`restoring`, from `w`),
    /// and those after it that its run wants.
    pub(super) fn fill(
        &mut self,
        region: &Region,
        i: usize,
        w: PageWord,
        restoring: PageWord,
    ) -> Served {
        let page = region.address(i);
        // Children that still miss pages would have to be given these first.
        let wanted = if self.children.is_empty() { self.runs.wanted(page) } else { 0 };
        let along = self.runs.worth_bringing(wanted);
        let ready = if along == 0 { 1 } else { self.collect(region, i, restoring, along) };
        let len = (ready * PAGE_BYTES) as u64;
        let src = self.batch.pages.as_ptr() as u64;
        let start_ns = thread::now_ns();
        let (mut filled, mut why) = match ready {
            1 => (0, None),
            _ => self.uffd.copy_range(page, src, len),
        };
        filled /= PAGE_BYTES as u64;
        // The kernel refuses a range that lies in two mappings, after an mremap for instance, and
        // the fault is about one page only.
        if filled == 0 {
            // (With a batch, `self.page` may hold what came after, or could not be decoded.)
            let alone = if along == 0 { &self.page } else { &self.batch.pages[0] };
            (filled, why) = match self.uffd.copy_page(page, alone) {
                Ok(()) => (1, None),
                Err(e) => (0, Some(e)),
            };
        }
        let filled = filled as usize;
        if filled > 0 {
            self.woke_ns = thread::now_ns();
        }
        if filled == 1 && ready == 1 {
            self.filled_in(self.woke_ns - start_ns);
        }
        // What came along and was not filled is stored as before.
        for k in filled.max(1)..ready {
            region.replace(i + k, claimed(self.batch.words[k]), self.batch.words[k]);
        }
        match why {
            Some(Failure::Present) if filled == 0 => self.uffd.wake(page, PAGE_BYTES as u64),
            Some(e) if filled == 0 => {
                region.replace(i, restoring, w);
                return self.not_filled(page, e);
            }
            _ => {}
        }
        let stamp = self.rt.window_stamp();
        region.replace(i, restoring, self.rt.came_back(restoring));
        self.rt.came_home(page, w);
        for k in 1..filled {
            let (w, claimed) = (self.batch.words[k], claimed(self.batch.words[k]));
            region.replace(i + k, claimed, claimed.home(Some(stamp)));
            self.rt.came_home(region.address(i + k), w);
        }
        let brought = filled.saturating_sub(1) as u32;
        let next = after(region, i + 1 + brought as usize);
        let proved = self.runs.served(page, wanted, brought, next);
        // Pages brought along count as touched once the run has gone past them.
        region.faults.fetch_add(1 + proved, Ordering::Relaxed);
        stats::add(&self.rt.stats.ahead_pages, u64::from(brought));
        Served::Done
    }

    /// Maps the zero page behind page `i`, which was fresh and has been filled.
    ///
    /// What is at home and not there is held by nobody, as for the fault itself: pages leave the
    /// application on this thread only. Where they are taken out with its threads stopped, by
    /// movers, that is not so, and each page is left to its own fault.
    pub(super) fn fill_fresh(&mut self, region: &Region, i: usize) {
        let page = region.address(i);
        if !self.uffd.can_move() || !self.children.is_empty() {
            return;
        }
        let wanted = self.fresh_runs.wanted(page).max(FRESH_FIRST);
        let first = i + 1;
        let end = (first + FRESH_TIMES * wanted).min(REGION_PAGES);
        let is_fresh =
            |k: usize| region.is_registered(k) && region.word(k).state() == PageState::Home;
        let len = (first..end).take_while(|&k| is_fresh(k)).count() * PAGE_BYTES;
        let filled = match len {
            0 => 0,
            _ => self.uffd.zero_range(region.address(first), len as u64) as usize / PAGE_BYTES,
        };
        for k in first..first + filled {
            let w = region.word(k);
            if w.zap_pending() {
                region.replace(k, w, w.zap_done());
            }
        }
        self.fresh_runs.served(page, wanted, 0, region.address(first + filled));
    }

    /// Decodes up to `wanted` pages after page `i` into the batch, behind page `i` itself, and
    /// claims them. Returns how many pages the batch has.
    fn collect(&mut self, region: &Region, i: usize, first: PageWord, wanted: usize) -> usize {
        self.batch.pages[0].copy_from_slice(&self.page[..]);
        self.batch.words[0] = first;
        let end = (i + 1 + wanted).min(REGION_PAGES);
        let mut ready = 1;
        for k in i + 1..end {
            let w = region.word(k);
            // What has to be waited for would keep back those that wait here.
            let held = matches!(w.state(), PageState::Stored | PageState::Same);
            let held = held && !self.rt.waits(w);
            // A word that somebody else changes meanwhile, or bytes that cannot be decoded, end
            // the batch; whoever touches that page will find out by a fault of its own.
            if !held || !region.is_registered(k) || !region.replace(k, w, claimed(w)) {
                break;
            }
            if self.try_decode(w).is_err() {
                region.replace(k, claimed(w), w);
                break;
            }
            self.batch.pages[ready].copy_from_slice(&self.page[..]);
            self.batch.words[ready] = w;
            ready += 1;
        }
        ready
    }
}

/// The word of a held page while it is brought home.
fn claimed(w: PageWord) -> PageWord {
    w.begin_restore().unwrap_or(w)
}

/// The address of the first page from `k` on that is not at home, or of the page after a few that
/// are.
fn after(region: &Region, k: usize) -> u64 {
    let end = (k + SKIP_MAX).min(REGION_PAGES);
    let next = (k..end).find(|&n| region.word(n).state() != PageState::Home).unwrap_or(end);
    debug_assert!(page_index(region.address(next)) == next % REGION_PAGES);
    region.address(next)
}

#[cfg(test)]
mod tests {
    use super::*;

    const P: u64 = PAGE_BYTES as u64;

    #[test]
    fn a_run_brings_more_and_more_and_scattered_faults_nothing() {
        let mut runs = Stored::default();
        let mut at = 100 * P;
        let mut brought = Vec::new();
        for _ in 0..6 {
            let wanted = runs.wanted(at);
            brought.push(wanted);
            let next = at + (1 + wanted as u64) * P;
            runs.served(at, wanted, wanted as u32, next);
            at = next;
        }
        assert_eq!(brought, [0, 2, 4, 8, 16, 16]);
        for n in 0..20 {
            assert_eq!(runs.wanted((1000 + 2 * n) * P), 0);
            runs.served((1000 + 2 * n) * P, 0, 0, (1001 + 2 * n) * P);
        }
        assert_eq!(runs.wanted(at), 0, "the run was forgotten for newer ones");
    }

    /// Faults on so many neighbours, each where the run would fault next; what each brought.
    fn run_of(runs: &mut Stored, first: u64, faults: usize) -> Vec<usize> {
        let mut at = first * P;
        let mut brought = Vec::new();
        for _ in 0..faults {
            let wanted = runs.wanted(at);
            let along = runs.worth_bringing(wanted);
            brought.push(along);
            let next = at + (1 + along as u64) * P;
            runs.served(at, wanted, along as u32, next);
            at = next;
        }
        brought
    }

    #[test]
    fn where_pairs_seldom_go_on_the_second_fault_brings_nothing() {
        let mut runs = Stored::default();
        let mut first = 0;
        let mut next = || {
            first += 1000;
            first
        };
        for _ in 0..100 {
            run_of(&mut runs, next(), 2);
        }
        assert_eq!(run_of(&mut runs, next(), 2), [0, 0]);
        assert_eq!(run_of(&mut runs, next(), 6), [0, 0, 4, 8, 16, 16], "a scan is found out later");
        // Single faults say nothing of pairs, for or against.
        for _ in 0..100 {
            run_of(&mut runs, next(), 1);
        }
        assert_eq!(run_of(&mut runs, next(), 2), [0, 0]);
        for _ in 0..20 {
            run_of(&mut runs, next(), 3);
        }
        assert_eq!(run_of(&mut runs, next(), 4), [0, 2, 4, 8], "a program that scans now");
    }

    #[test]
    fn what_came_along_is_proved_by_the_next_fault_of_its_run() {
        let mut runs = Stored::default();
        assert_eq!(runs.served(P, 0, 0, 2 * P), 0);
        assert_eq!(runs.served(2 * P, 2, 2, 5 * P), 0);
        assert_eq!(runs.served(9 * P, 0, 0, 10 * P), 0, "another run proves nothing");
        assert_eq!(runs.served(5 * P, 4, 1, 7 * P), 2);
        assert_eq!(runs.served(7 * P, 8, 0, 8 * P), 1);
    }

    #[test]
    fn runs_side_by_side_do_not_disturb_each_other() {
        let mut runs = Stored::default();
        let threads = RUNS as u64;
        for step in 0..3u64 {
            for thread in 0..threads {
                let at = (thread * 1000 + step + 1) * P;
                assert_eq!(runs.wanted(at) > 0, step > 0);
                runs.served(at, 2, 0, at + P);
            }
        }
        runs.passed(4 * P);
        assert!(runs.wanted(5 * P) > 0, "a page that was not in a tier does not end a run");
    }
}
