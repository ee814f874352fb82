//! Pages of an arena, in runs of 1 to 8.
//!
//! One bit a page says whether it is used, one whether it is *dirty*: free, but not yet given back
//! to the medium. Free neighbours coalesce by themselves, because bits have no seams. A run never
//! crosses a border of 64 pages, so that a fit within one word is a few shifts; what that wastes is
//! address space at the end of words, not memory.
//!
//! The words are grouped in *spans* of 4096 pages (16 MiB), made as the arena is used. For each
//! run length a span knows which of its words have a fit, and one byte a span says for which
//! lengths it has any, so taking the lowest fit reads a byte for each 16 MiB and then two words:
//! no list, no worst case, 9 bits of bookkeeping for 4 pages. Lowest first keeps the arena dense at
//! its beginning, which matters for a file.

use super::Extent;
use crate::PAGE_SIZE;
use core::mem::size_of;

/// Longest run, in pages.
pub const RUN_PAGES_MAX: usize = 8;

const WORD_PAGES: usize = 64;
const SPAN_WORDS: usize = 64;
const SPAN_PAGES: usize = WORD_PAGES * SPAN_WORDS;

struct Span {
    used: [u64; SPAN_WORDS],
    dirty: [u64; SPAN_WORDS],
    /// `fits[n - 1]` has a bit for each word in which n free neighbours exist.
    fits: [u64; RUN_PAGES_MAX],
}

/// The page allocator of one pool.
pub struct Arena {
    #[allow(clippy::vec_box)] // growing never copies more than pointers
    spans: Vec<Box<Span>>,
    /// Bit n - 1: the span has a fit for n pages.
    room: Vec<u8>,
    pages_max: u64,
    /// No span below this one has dirty pages.
    dirty_from: usize,
    used_pages: u64,
    dirty_pages: u64,
    /// Pages handed out by `take_dirty` and not yet back.
    cleaning_pages: u64,
}

/// Bits where a run of `pages` ones begins.
#[inline]
fn run_starts(free: u64, pages: usize) -> u64 {
    let mut starts = free;
    for n in 1..pages {
        starts &= free >> n;
    }
    starts
}

fn mask(pages: usize, bit: usize) -> u64 {
    ((1u64 << pages) - 1) << bit
}

impl Arena {
    /// An arena of so many pages, all free and clean. Holds no memory yet.
    pub fn new(pages_max: u64) -> Arena {
        // Page numbers are u32 in the pools.
        let pages_max = pages_max.min(u64::from(u32::MAX) - 1);
        Arena {
            spans: Vec::new(),
            room: Vec::new(),
            pages_max,
            dirty_from: 0,
            used_pages: 0,
            dirty_pages: 0,
            cleaning_pages: 0,
        }
    }

    /// Takes the lowest run of `pages` (1 to 8) neighbours and returns the first.
    pub fn take(&mut self, pages: usize) -> Option<u32> {
        debug_assert!((1..=RUN_PAGES_MAX).contains(&pages));
        let fits = 1u8 << (pages - 1);
        let span = match self.room.iter().position(|room| room & fits != 0) {
            Some(span) => span,
            None => {
                self.grow()?;
                let span = self.spans.len() - 1;
                // The last span of an arena may be too short.
                (self.room[span] & fits != 0).then_some(span)?
            }
        };
        let word = self.spans[span].fits[pages - 1].trailing_zeros() as usize;
        let s = &mut self.spans[span];
        let bit = run_starts(!s.used[word], pages).trailing_zeros() as usize;
        let run = mask(pages, bit);
        self.dirty_pages -= u64::from((s.dirty[word] & run).count_ones());
        s.dirty[word] &= !run;
        s.used[word] |= run;
        self.used_pages += pages as u64;
        self.update(span, word);
        Some((span * SPAN_PAGES + word * WORD_PAGES + bit) as u32)
    }

    /// Whether [`Arena::take`] would find a single page.
    pub fn has_page(&self) -> bool {
        let reserved = (self.spans.len() * SPAN_PAGES) as u64;
        reserved < self.pages_max || self.room.iter().any(|room| room & 1 != 0)
    }

    /// Puts a run back whose pages the medium still holds.
    pub fn put_dirty(&mut self, first: u32, pages: usize) {
        self.used_pages -= pages as u64;
        self.dirty_pages += pages as u64;
        let (span, word, run) = self.put(first, pages);
        self.spans[span].dirty[word] |= run;
        self.dirty_from = self.dirty_from.min(span);
    }

    /// Takes a run of dirty pages of any length up to 64 out of use, for the medium to drop.
    pub fn take_dirty(&mut self) -> Option<Extent> {
        if self.dirty_pages == 0 {
            return None;
        }
        for (span, s) in self.spans.iter_mut().enumerate().skip(self.dirty_from) {
            let Some(word) = s.dirty.iter().position(|d| *d != 0) else { continue };
            self.dirty_from = span;
            let bit = s.dirty[word].trailing_zeros() as usize;
            let pages = (s.dirty[word] >> bit).trailing_ones() as usize;
            let run = if pages == WORD_PAGES { u64::MAX } else { mask(pages, bit) };
            s.dirty[word] &= !run;
            s.used[word] |= run;
            self.dirty_pages -= pages as u64;
            self.cleaning_pages += pages as u64;
            self.update(span, word);
            let first = span * SPAN_PAGES + word * WORD_PAGES + bit;
            return Some(Extent {
                offset: (first * PAGE_SIZE) as u64,
                len: (pages * PAGE_SIZE) as u32,
            });
        }
        None
    }

    /// Ends `take_dirty`: the medium has dropped the pages.
    pub fn put_clean(&mut self, extent: Extent) {
        let pages = extent.len as usize / PAGE_SIZE;
        self.cleaning_pages -= pages as u64;
        self.put((extent.offset / PAGE_SIZE as u64) as u32, pages);
    }

    /// Pages in use.
    pub fn used_pages(&self) -> u64 {
        self.used_pages
    }

    /// Free pages whose content the medium still holds.
    pub fn dirty_pages(&self) -> u64 {
        self.dirty_pages + self.cleaning_pages
    }

    /// Memory held, in bytes.
    pub fn metadata_bytes(&self) -> usize {
        self.spans.len() * size_of::<Span>()
            + self.spans.capacity() * size_of::<usize>()
            + self.room.capacity()
    }

    /// Compares counters and summaries with the bits.
    ///
    /// # Panics
    /// If they do not agree.
    pub fn validate(&self) {
        let (mut used, mut dirty) = (0, 0);
        for (n, s) in self.spans.iter().enumerate() {
            let mut room = 0;
            for (word, bits) in s.used.iter().enumerate() {
                used += u64::from(bits.count_ones());
                dirty += u64::from(s.dirty[word].count_ones());
                assert!(s.dirty[word] == 0 || n >= self.dirty_from);
                assert_eq!(bits & s.dirty[word], 0, "a page is used and dirty");
                for pages in 1..=RUN_PAGES_MAX {
                    let fits = run_starts(!bits, pages) != 0;
                    assert_eq!(s.fits[pages - 1] >> word & 1 == 1, fits, "summary is stale");
                    room |= u8::from(fits) << (pages - 1);
                }
            }
            assert_eq!(self.room[n], room);
        }
        let reserved = (self.spans.len() * SPAN_PAGES) as u64;
        let beyond = reserved.saturating_sub(self.pages_max);
        assert_eq!(used, self.used_pages + self.cleaning_pages + beyond);
        assert_eq!(dirty, self.dirty_pages);
    }

    fn put(&mut self, first: u32, pages: usize) -> (usize, usize, u64) {
        let first = first as usize;
        let (span, word, bit) =
            (first / SPAN_PAGES, first / WORD_PAGES % SPAN_WORDS, first % WORD_PAGES);
        let run = if pages == WORD_PAGES { u64::MAX } else { mask(pages, bit) };
        debug_assert_eq!(self.spans[span].used[word] & run, run, "put twice");
        self.spans[span].used[word] &= !run;
        self.update(span, word);
        (span, word, run)
    }

    /// Brings the summaries of one word up to date.
    fn update(&mut self, span: usize, word: usize) {
        let s = &mut self.spans[span];
        let free = !s.used[word];
        let mut starts = free;
        let mut room = 0;
        for n in 0..RUN_PAGES_MAX {
            s.fits[n] = s.fits[n] & !(1 << word) | u64::from(starts != 0) << word;
            room |= u8::from(s.fits[n] != 0) << n;
            starts &= free >> (n + 1);
        }
        self.room[span] = room;
    }

    fn grow(&mut self) -> Option<()> {
        let base = (self.spans.len() * SPAN_PAGES) as u64;
        let pages = self.pages_max.checked_sub(base).filter(|left| *left > 0)?;
        let mut span =
            Box::new(Span { used: [0; SPAN_WORDS], dirty: [0; SPAN_WORDS], fits: [0; 8] });
        for (word, bits) in span.used.iter_mut().enumerate() {
            let here = pages.saturating_sub((word * WORD_PAGES) as u64).min(WORD_PAGES as u64);
            *bits = if here == 64 { 0 } else { u64::MAX << here };
        }
        self.spans.push(span);
        self.room.push(0);
        for word in 0..SPAN_WORDS {
            self.update(self.spans.len() - 1, word);
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_arena_is_used_to_its_last_page_and_no_further() {
        let mut arena = Arena::new(4096 + 100);
        let mut taken = Vec::new();
        while let Some(first) = arena.take(1) {
            taken.push(first);
        }
        assert_eq!(taken.len(), 4196);
        assert!(!arena.has_page());
        assert_eq!(taken.last(), Some(&4195));
        arena.validate();
        for first in taken {
            arena.put_dirty(first, 1);
        }
        arena.validate();
        assert!(arena.has_page());
        let mut dropped = 0;
        while let Some(extent) = arena.take_dirty() {
            dropped += extent.len as usize / PAGE_SIZE;
            arena.put_clean(extent);
        }
        assert_eq!(dropped, 4196);
        assert_eq!((arena.used_pages(), arena.dirty_pages()), (0, 0));
        arena.validate();
    }

    #[test]
    fn freed_neighbours_make_longer_runs() {
        let mut arena = Arena::new(64);
        let runs: Vec<u32> = (0..8).map(|_| arena.take(8).unwrap()).collect();
        assert_eq!(arena.take(1), None);
        arena.put_dirty(runs[3], 8);
        let a = arena.take(3).unwrap();
        let b = arena.take(5).unwrap();
        assert_eq!((a, b), (24, 27));
        arena.put_dirty(b, 5);
        assert_eq!(arena.take(8), None);
        arena.put_dirty(a, 3);
        assert_eq!(arena.take(8), Some(24));
        arena.validate();
    }
}
