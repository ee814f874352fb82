//! The page table of the runtime: one [`Region`] for each 2 MiB of the application it follows.
//!
//! Found by address through a radix tree of four levels that only grows, so that the pager's
//! look-up takes no lock and allocates nothing. A region's record lives as long as the process:
//! when the application unmaps the range and maps something else there, the same record is used
//! again.
//!
//! Nodes are small, and a record has words only where pages are followed: the heap of V8 is pieces
//! of 256 KiB, of which hardly two lie in one region, or in one GiB.

use crate::shrinkage::Shrinkage;
use crate::sys::slot::Slot;
use crate::sys::sync::AtomicWord;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU32, AtomicU64, AtomicU8, Ordering};
use std::sync::Mutex;
use terrace_core::looks::Looks;
use terrace_core::state::{PageState, PageWord, PAGE_BYTES, REGION_BYTES, REGION_PAGES};
use terrace_core::tier::MAX_TIERS;

/// Pages whose words are made together.
const PART_PAGES: usize = 64;
const PARTS: usize = REGION_PAGES / PART_PAGES;

/// Words of pages side by side.
#[derive(Debug)]
struct Part([AtomicWord; PART_PAGES]);

impl Part {
    fn new() -> Part {
        Part([const { AtomicWord::new(0) }; PART_PAGES])
    }
}

/// Everything the runtime knows of 2 MiB of the application.
#[derive(Debug)]
pub struct Region {
    /// First address, a multiple of 2 MiB.
    pub base: u64,
    /// Where none is made yet, all words are 0: at home, and nothing is known.
    parts: [Slot<Part>; PARTS],
    /// Pages registered with userfaultfd. Written by the pager only.
    registered: [AtomicU64; 8],
    /// Staging slot that holds pages of this region, 0 if none. Set and cleared by the mover.
    pub slot: AtomicU64,
    /// Where the last plan entry wants the region (a `TierId`).
    pub tier: AtomicU8,
    /// Windows since the region was first seen, saturating.
    pub age_windows: AtomicU8,
    /// Windows for which the region is left alone after it proved to be churned.
    pub rest_windows: AtomicU8,
    /// Pages in the application's mapping, counted when the window opened, and at its last count.
    pub resident_at_open: AtomicU16,
    /// See `resident_at_open`.
    pub resident: AtomicU16,
    /// Pages in tiers (`Stored` and `Same`) by tier.
    pub stored: [AtomicU16; MAX_TIERS],
    /// Faults from tiers in this window.
    pub faults: AtomicU32,
    /// Faults on fresh memory in this window.
    pub zero_faults: AtomicU32,
    /// Pages the tracker took in this window, and those that were come back for.
    pub samples: AtomicU8,
    /// See `samples`.
    pub hits: AtomicU8,
    /// What looks at its pages came to, a [`Looks`]. The agent's.
    pub looks: AtomicU16,
    /// What its pages shrink to.
    pub shrinkage: Shrinkage,
    /// The newest plan names it: its pages are about to leave and need no samples.
    pub is_planned: AtomicBool,
    /// The last plan that named it wants it home. The agent's.
    pub is_called_home: AtomicBool,
    /// The kernel would not move some page because a child has it too, or had. Set by the pager,
    /// taken by `shared.rs`.
    pub is_shared: AtomicBool,
}

impl Region {
    fn new(base: u64) -> Region {
        Region {
            base,
            parts: [const { Slot::empty() }; PARTS],
            registered: [const { AtomicU64::new(0) }; 8],
            slot: AtomicU64::new(0),
            tier: AtomicU8::new(0),
            age_windows: AtomicU8::new(0),
            rest_windows: AtomicU8::new(0),
            resident_at_open: AtomicU16::new(0),
            resident: AtomicU16::new(0),
            stored: [const { AtomicU16::new(0) }; MAX_TIERS],
            faults: AtomicU32::new(0),
            zero_faults: AtomicU32::new(0),
            samples: AtomicU8::new(0),
            hits: AtomicU8::new(0),
            looks: AtomicU16::new(Looks::NONE.to_bits()),
            shrinkage: Shrinkage::default(),
            is_planned: AtomicBool::new(false),
            is_called_home: AtomicBool::new(false),
            is_shared: AtomicBool::new(false),
        }
    }

    /// The word of page `i`.
    #[inline]
    pub fn word(&self, i: usize) -> PageWord {
        // Acquire pairs with the release in `replace`: whoever sees a word sees the bytes it
        // names.
        let part = self.parts[i / PART_PAGES].get();
        PageWord(part.map_or(0, |part| part.0[i % PART_PAGES].load(Ordering::Acquire)))
    }

    /// Makes the words of `pages`, so that changing one allocates nothing.
    pub fn make_words(&self, pages: Range<usize>) {
        for n in pages.start / PART_PAGES..pages.end.div_ceil(PART_PAGES) {
            self.parts[n].get_or_make(Part::new);
        }
    }

    /// Replaces the word of page `i` if it still is `old`. The only place that races. Keeps the
    /// per-tier counts of stored pages.
    pub fn replace(&self, i: usize, old: PageWord, new: PageWord) -> bool {
        // Counted before others can see it, and take it off again.
        self.count(new, 1);
        let done = self.exchange(i, old.0, new.0);
        self.count(if done { old } else { new }, -1);
        done
    }

    fn exchange(&self, i: usize, old: u64, new: u64) -> bool {
        let place = &self.parts[i / PART_PAGES];
        if place.get().is_none() && (old != 0 || new == 0) {
            // The word was 0 a moment ago, and would be no other now.
            return old == 0;
        }
        place.get_or_make(Part::new).0[i % PART_PAGES]
            .compare_exchange(old, new, Ordering::AcqRel, Ordering::Acquire)
            .is_ok()
    }

    /// Sets the word of page `i` to what `next` makes of it, retrying when somebody else was
    /// first. Returns the word replaced.
    pub fn update(&self, i: usize, next: impl Fn(PageWord) -> PageWord) -> PageWord {
        loop {
            let old = self.word(i);
            if self.replace(i, old, next(old)) {
                return old;
            }
        }
    }

    fn count(&self, w: PageWord, by: i32) {
        let held = matches!(w.state(), PageState::Stored | PageState::Same);
        if held {
            self.stored[w.tier().index()].fetch_add(by as u16, Ordering::Relaxed);
        }
    }

    /// Pages held in tiers.
    pub fn stored_total(&self) -> u16 {
        self.stored.iter().map(|n| n.load(Ordering::Relaxed)).sum()
    }

    /// Whether page `i` is registered with userfaultfd.
    #[inline]
    pub fn is_registered(&self, i: usize) -> bool {
        self.registered[i / 64].load(Ordering::Relaxed) >> (i % 64) & 1 == 1
    }

    /// The pages for which `holds`, neighbours together.
    pub fn runs_where(&self, holds: impl Fn(usize) -> bool) -> Vec<Range<usize>> {
        let mut runs: Vec<Range<usize>> = Vec::new();
        for i in (0..REGION_PAGES).filter(|&i| holds(i)) {
            match runs.last_mut() {
                Some(run) if run.end == i => run.end += 1,
                _ => runs.push(i..i + 1),
            }
        }
        runs
    }

    /// How many pages are registered.
    pub fn registered_total(&self) -> usize {
        self.registered.iter().map(|w| w.load(Ordering::Relaxed).count_ones() as usize).sum()
    }

    /// Whether any page of the region is registered.
    pub fn is_followed(&self) -> bool {
        self.registered.iter().any(|w| w.load(Ordering::Relaxed) != 0)
    }

    /// Notes that the pages of `range` are registered now, or no longer. Pager only.
    pub fn set_registered(&self, range: Range<usize>, on: bool) {
        for i in range {
            let bit = 1 << (i % 64);
            if on {
                self.registered[i / 64].fetch_or(bit, Ordering::Relaxed);
            } else {
                self.registered[i / 64].fetch_and(!bit, Ordering::Relaxed);
            }
        }
    }

    /// Address of page `i`.
    #[inline]
    pub fn address(&self, i: usize) -> u64 {
        self.base + (i * PAGE_BYTES) as u64
    }
}

/// Small nodes: what is far apart takes some of its own.
const NODE_BITS: u32 = 6;
const NODE_LEN: usize = 1 << NODE_BITS;
/// User addresses have 47 bits; a region takes 21 of them, three nodes below the top the next 18.
const TOP_LEN: usize = 1 << (47 - 21 - 3 * NODE_BITS);

struct Node<T: 'static>([Slot<T>; NODE_LEN]);

impl<T: Sync> Node<T> {
    fn new() -> Node<T> {
        Node([const { Slot::empty() }; NODE_LEN])
    }
}

/// What is below a place of the top.
type Below = Node<Node<Node<Region>>>;

/// All regions, by address.
pub struct RegionTable {
    top: Box<[Slot<Below>]>,
    /// In the order of their creation, for those who walk all of them.
    all: Mutex<Vec<&'static Region>>,
    /// Held pages that an mremap carried from region to region: who walks all regions and finds
    /// another number afterwards may have missed some.
    pub carried: AtomicU64,
}

impl std::fmt::Debug for RegionTable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RegionTable").finish_non_exhaustive()
    }
}

impl Default for RegionTable {
    fn default() -> RegionTable {
        let top = (0..TOP_LEN).map(|_| Slot::empty()).collect();
        RegionTable { top, all: Mutex::new(Vec::new()), carried: AtomicU64::new(0) }
    }
}

/// Where the region of an address is: in the top, and in the three nodes below.
fn indices(address: u64) -> Option<[usize; 4]> {
    let region = (address / REGION_BYTES) as usize;
    let below = |bits: u32| (region >> bits) % NODE_LEN;
    let top = region >> (3 * NODE_BITS);
    (top < TOP_LEN).then_some([top, below(2 * NODE_BITS), below(NODE_BITS), below(0)])
}

/// Page number within its region.
#[inline]
pub fn page_index(address: u64) -> usize {
    (address % REGION_BYTES) as usize / PAGE_BYTES
}

impl RegionTable {
    /// The region of an address, if it is followed. Lock-free.
    #[inline]
    pub fn get(&self, address: u64) -> Option<&'static Region> {
        self.look(address).ok()
    }

    /// The region of an address, or else the first address behind it that can have one: what has no
    /// node in the tree has no regions.
    #[inline]
    fn look(&self, address: u64) -> Result<&'static Region, u64> {
        let [top, upper, lower, leaf] = indices(address).ok_or(u64::MAX)?;
        let behind = |bits: u32| (((address / REGION_BYTES) >> bits) + 1) * (REGION_BYTES << bits);
        let node = self.top[top].get().ok_or_else(|| behind(3 * NODE_BITS))?;
        let node = node.0[upper].get().ok_or_else(|| behind(2 * NODE_BITS))?;
        let node = node.0[lower].get().ok_or_else(|| behind(NODE_BITS))?;
        node.0[leaf].get().ok_or_else(|| behind(0))
    }

    /// The region of an address, made if it is new. `None` for kernel addresses.
    pub fn get_or_create(&self, address: u64) -> Option<&'static Region> {
        if let Some(r) = self.get(address) {
            return Some(r);
        }
        let [top, upper, lower, leaf] = indices(address)?;
        // The lock makes creation single; readers do not need it.
        let mut all = self.all.lock().unwrap_or_else(|e| e.into_inner());
        if let Some(r) = self.get(address) {
            return Some(r);
        }
        let node = self.top[top].get_or_make(Node::new).0[upper].get_or_make(Node::new);
        let place = &node.0[lower].get_or_make(Node::new).0[leaf];
        let region = place.get_or_make(|| Region::new(address / REGION_BYTES * REGION_BYTES));
        all.push(region);
        Some(region)
    }

    /// All regions there are now.
    pub fn all(&self) -> Vec<&'static Region> {
        self.all.lock().unwrap_or_else(|e| e.into_inner()).clone()
    }
}

/// Calls `visit` with every followed region that overlaps `[start, end)` and the range of its
/// pages that does. Of any range in little time: the program names it, and it may be terabytes, or
/// no range at all.
pub fn for_overlap(
    table: &RegionTable,
    start: u64,
    end: u64,
    mut visit: impl FnMut(&'static Region, Range<usize>),
) {
    let mut at = start;
    while at < end {
        at = match table.look(at) {
            Ok(r) => {
                let region_end = r.base + REGION_BYTES;
                let last = ((region_end.min(end) - r.base) as usize).div_ceil(PAGE_BYTES);
                visit(r, page_index(at)..last);
                region_end
            }
            Err(next) => next,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrace_core::tier::TierId;

    #[test]
    fn regions_are_found_by_any_address_inside() {
        let t = RegionTable::default();
        assert!(t.get(0x7f00_0000_0000).is_none());
        let r = t.get_or_create(0x7f00_0012_3456).unwrap();
        assert_eq!(r.base, 0x7f00_0000_0000);
        assert!(std::ptr::eq(t.get(0x7f00_001f_ffff).unwrap(), r));
        assert!(t.get(0x7f00_0020_0000).is_none());
        assert!(t.get_or_create(0xffff_8000_0000_0000).is_none(), "kernel addresses are not ours");
        assert_eq!(t.all().len(), 1);
    }

    #[test]
    fn an_overlap_names_exactly_the_pages() {
        let t = RegionTable::default();
        t.get_or_create(0x20_0000).unwrap();
        t.get_or_create(0x60_0000).unwrap();
        let mut seen = vec![];
        for_overlap(&t, 0x3f_e000, 0x60_1000, |r, pages| seen.push((r.base, pages)));
        assert_eq!(seen, [(0x20_0000, 510..512), (0x60_0000, 0..1)]);
    }

    #[test]
    fn an_overlap_with_all_addresses_takes_no_time() {
        let t = RegionTable::default();
        let far = (1 << 47) - REGION_BYTES;
        for at in [0, 0x60_0000, 1 << 30, 3 << 39, far] {
            t.get_or_create(at).unwrap();
        }
        for end in [1 << 47, u64::MAX - 4095, u64::MAX] {
            let mut seen = vec![];
            for_overlap(&t, 4096, end, |r, pages| seen.push((r.base, pages)));
            let whole = [0x60_0000, 1 << 30, 3 << 39, far].map(|base| (base, 0..512));
            assert_eq!(seen, [vec![(0, 1..512)], whole.to_vec()].concat());
        }
        for_overlap(&t, u64::MAX - 4095, u64::MAX, |_, _| panic!("there is none"));
        for_overlap(&t, 1 << 47, u64::MAX, |_, _| panic!("there is none"));
    }

    #[test]
    fn counts_follow_the_words() {
        let t = RegionTable::default();
        let r = t.get_or_create(0x20_0000).unwrap();
        let staged = PageWord::default().stage(TierId(2)).unwrap();
        assert!(r.replace(5, PageWord::default(), staged));
        let encoding = staged.begin_encode().unwrap();
        assert!(r.replace(5, staged, encoding));
        let stored = encoding.finish_store(TierId(2), 77, 1).unwrap();
        assert!(!r.replace(5, staged, stored), "a stale expectation must lose");
        assert!(r.replace(5, encoding, stored));
        assert_eq!((r.stored_total(), r.stored[2].load(Ordering::Relaxed)), (1, 1));
        r.update(5, |w| w.zapped());
        assert_eq!(r.stored_total(), 0);
    }

    #[test]
    fn words_are_made_where_they_are_needed() {
        let t = RegionTable::default();
        let r = t.get_or_create(0x20_0000).unwrap();
        let there = || r.parts.iter().map(|p| p.get().is_some()).collect::<Vec<_>>();
        let (home, staged) = (PageWord::default(), PageWord::default().stage(TierId(1)).unwrap());
        assert_eq!(r.word(130), home);
        assert!(!r.replace(130, staged, home), "a stale expectation must lose");
        assert!(r.replace(130, home, home) && r.stored_total() == 0);
        assert_eq!(there(), [false; PARTS], "and for none of this a word is needed");
        assert!(r.replace(130, home, staged) && r.word(130) == staged && r.word(129) == home);
        r.make_words(255..257);
        assert_eq!(there(), [false, false, true, true, true, false, false, false]);
        assert_eq!(r.word(130), staged, "made only where there was none");
    }

    #[test]
    fn threads_that_need_a_word_first_share_it() {
        let t = RegionTable::default();
        for at in (0..200).map(|n| n * REGION_BYTES) {
            let r = t.get_or_create(at).unwrap();
            let add = |_| {
                for _ in 0..100 {
                    r.update(7, |w| PageWord(w.0 + (1 << 32)));
                }
            };
            let before = r.word(7);
            std::thread::scope(|s| (0..4).for_each(|n| drop(s.spawn(move || add(n)))));
            assert_eq!(r.word(7).0, before.0 + (400 << 32));
        }
    }

    #[test]
    fn runs_join_neighbours() {
        let t = RegionTable::default();
        let r = t.get_or_create(0x20_0000).unwrap();
        let runs = r.runs_where(|i| [1, 2, 3, 7, 511].contains(&i));
        assert_eq!(runs, [1..4, 7..8, 511..512]);
        assert_eq!(r.runs_where(|_| false), []);
    }

    #[test]
    fn registration_is_kept_page_by_page() {
        let t = RegionTable::default();
        let r = t.get_or_create(0x20_0000).unwrap();
        r.set_registered(60..70, true);
        r.set_registered(64..65, false);
        assert!(r.is_registered(63) && !r.is_registered(64) && r.is_registered(65));
        assert_eq!((0..REGION_PAGES).filter(|&i| r.is_registered(i)).count(), 9);
        assert!(r.is_followed());
    }
}
