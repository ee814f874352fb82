//! One size class of [`super::zsmalloc`]: its runs of pages, who owns which cell, and the lists of
//! partly filled runs by fullness.
//!
//! A run that falls empty leaves its entry (and its stretch of the owner table) to the next run of
//! the class, so the tables stay as large as the class ever was.

use super::arena::RUN_PAGES_MAX;
use super::Handle;
use crate::PAGE_SIZE;
use core::mem::size_of;

/// Bits of a run's number within its class.
pub(super) const RUN_BITS: u32 = 24;

/// Lists of partly filled runs in each class, by eighths of fullness.
const GROUPS: usize = 8;

/// A run's entry in the tables costs 16 bytes however many objects it holds, which asks for long
/// runs; each class has a run that is half empty on average and dead objects pin their run, which
/// asks for short ones. With 12 objects the entry costs 1.3 bytes
/// for each.
const CELLS_WANTED: usize = 12;

const NIL: u32 = u32::MAX;

/// In the owner table: the cell is free, and the low bits name the next free one.
pub(super) const FREE_CELL: u32 = 1 << 31;

/// End of a run's chain of free cells.
pub(super) const NO_CELL: u16 = u16::MAX;

/// Run length and objects in a run for a size: among the lengths whose tail wastes within 1/256 of
/// the least, the shortest that holds [`CELLS_WANTED`] objects, or the longest.
pub(super) fn best_run(bytes: usize) -> (usize, usize) {
    // In bytes of tail for each run of the maximum length, so that lengths compare.
    let waste = |pages: usize| (pages * PAGE_SIZE % bytes) * RUN_PAGES_MAX / pages;
    let least = (1..=RUN_PAGES_MAX).map(waste).min().unwrap_or(0);
    let within = least + RUN_PAGES_MAX * PAGE_SIZE / 256;
    let mut best = 1;
    for pages in (1..=RUN_PAGES_MAX).filter(|pages| waste(*pages) <= within) {
        best = pages;
        if pages * PAGE_SIZE / bytes >= CELLS_WANTED {
            break;
        }
    }
    (best, best * PAGE_SIZE / bytes)
}

/// A run of pages. 16 bytes; its owner entries are `cells` words at `run * cells`.
#[derive(Clone, Copy)]
pub(super) struct Run {
    pub(super) first_page: u32,
    /// Neighbours in the list of its group; in a spare entry, `next` is the next spare one.
    prev: u32,
    next: u32,
    pub(super) live: u16,
    pub(super) first_free: u16,
}

/// Objects of one size, in runs of one length.
pub(super) struct Class {
    /// Bytes of a cell, pages of a run, and cells of a run.
    pub(super) cell_bytes: usize,
    pub(super) pages: usize,
    pub(super) cells: usize,
    pub(super) runs: Chunked<Run, 32>,
    pub(super) owners: Chunked<u32, 128>,
    /// Entries of `runs` without pages, chained by `next`.
    spare: u32,
    /// Partly filled runs by fullness. Full runs are in no list.
    groups: [u32; GROUPS],
    /// Runs with pages.
    pub(super) runs_held: usize,
    /// Objects in them.
    live: usize,
}

/// A vector that grows N at a time, without copying what it holds.
pub(super) struct Chunked<T, const N: usize> {
    chunks: Vec<Box<[T; N]>>,
    len: usize,
}

impl<T: Copy, const N: usize> Chunked<T, N> {
    pub(super) fn push(&mut self, value: T) {
        match self.len % N {
            0 => self.chunks.push(Box::new([value; N])),
            n => self.chunks[self.len / N][n] = value,
        }
        self.len += 1;
    }

    pub(super) fn bytes(&self) -> usize {
        self.chunks.len() * N * size_of::<T>() + self.chunks.capacity() * size_of::<Box<[T; N]>>()
    }
}

impl<T, const N: usize> core::ops::Index<usize> for Chunked<T, N> {
    type Output = T;
    #[inline]
    fn index(&self, at: usize) -> &T {
        &self.chunks[at / N][at % N]
    }
}

impl<T, const N: usize> core::ops::IndexMut<usize> for Chunked<T, N> {
    #[inline]
    fn index_mut(&mut self, at: usize) -> &mut T {
        &mut self.chunks[at / N][at % N]
    }
}

fn spare_run() -> Run {
    Run { first_page: NIL, prev: NIL, next: NIL, live: 0, first_free: NO_CELL }
}

impl Class {
    pub(super) fn new(cell_bytes: usize, pages: usize) -> Class {
        Class {
            cell_bytes,
            pages,
            cells: pages * PAGE_SIZE / cell_bytes,
            runs: Chunked { chunks: Vec::new(), len: 0 },
            owners: Chunked { chunks: Vec::new(), len: 0 },
            spare: NIL,
            groups: [NIL; GROUPS],
            runs_held: 0,
            live: 0,
        }
    }

    pub(super) fn free_cells(&self) -> usize {
        self.runs_held * self.cells - self.live
    }

    /// The list a run belongs to; `None` if it is full or empty.
    #[inline]
    pub(super) fn group(&self, live: u16) -> Option<usize> {
        let live = usize::from(live);
        (live > 0 && live < self.cells).then(|| live * GROUPS / self.cells)
    }

    pub(super) fn link(&mut self, run: u32) {
        let Some(group) = self.group(self.runs[run as usize].live) else { return };
        let next = self.groups[group];
        self.runs[run as usize].prev = NIL;
        self.runs[run as usize].next = next;
        if next != NIL {
            self.runs[next as usize].prev = run;
        }
        self.groups[group] = run;
    }

    pub(super) fn unlink(&mut self, run: u32) {
        let Run { prev, next, live, .. } = self.runs[run as usize];
        let Some(group) = self.group(live) else { return };
        if prev == NIL {
            self.groups[group] = next;
        } else {
            self.runs[prev as usize].next = next;
        }
        if next != NIL {
            self.runs[next as usize].prev = prev;
        }
    }

    /// Changes a run's count of live objects and the list it is in, if need be.
    pub(super) fn set_live(&mut self, run: u32, live: u16) {
        let old = self.runs[run as usize].live;
        if self.group(old) == self.group(live) {
            self.runs[run as usize].live = live;
            return;
        }
        self.unlink(run);
        self.runs[run as usize].live = live;
        self.link(run);
    }

    pub(super) fn fullest_partial(&self) -> Option<u32> {
        self.groups.iter().rev().copied().find(|run| *run != NIL)
    }

    /// Gives a run of pages an entry, with all cells free. In no list until it has an object.
    pub(super) fn add_run(&mut self, first_page: u32) -> Option<u32> {
        let run = if self.spare != NIL {
            let run = self.spare;
            self.spare = self.runs[run as usize].next;
            run
        } else {
            if self.runs.len >= 1 << RUN_BITS {
                return None;
            }
            self.runs.push(spare_run());
            for _ in 0..self.cells {
                self.owners.push(FREE_CELL);
            }
            (self.runs.len - 1) as u32
        };
        self.runs[run as usize] = Run { first_page, first_free: 0, ..spare_run() };
        let base = run as usize * self.cells;
        for cell in 0..self.cells {
            let next = if cell + 1 == self.cells { u32::from(NO_CELL) } else { cell as u32 + 1 };
            self.owners[base + cell] = FREE_CELL | next;
        }
        self.runs_held += 1;
        Some(run)
    }

    /// Ends a run without live objects; its entry becomes spare. Returns its first page.
    pub(super) fn drop_run(&mut self, run: u32) -> u32 {
        let first_page = self.runs[run as usize].first_page;
        self.runs[run as usize] = Run { next: self.spare, ..spare_run() };
        self.spare = run;
        self.runs_held -= 1;
        first_page
    }

    /// Gives a free cell of a run an owner. The run must have one.
    pub(super) fn take_cell(&mut self, run: u32, owner: Handle) -> u16 {
        let cell = self.runs[run as usize].first_free;
        let entry = &mut self.owners[run as usize * self.cells + usize::from(cell)];
        debug_assert!(*entry & FREE_CELL != 0);
        let next = (*entry & !FREE_CELL) as u16;
        *entry = owner.0;
        self.runs[run as usize].first_free = next;
        self.set_live(run, self.runs[run as usize].live + 1);
        self.live += 1;
        cell
    }

    pub(super) fn put_cell(&mut self, run: u32, cell: u16) {
        let next = self.runs[run as usize].first_free;
        self.owners[run as usize * self.cells + usize::from(cell)] = FREE_CELL | u32::from(next);
        self.runs[run as usize].first_free = cell;
        self.set_live(run, self.runs[run as usize].live - 1);
        self.live -= 1;
    }

    pub(super) fn cell_offset(&self, run: u32, cell: u16) -> u64 {
        let first_page = u64::from(self.runs[run as usize].first_page);
        first_page * PAGE_SIZE as u64 + (usize::from(cell) * self.cell_bytes) as u64
    }

    /// Two different partly filled runs, if there are two.
    pub(super) fn thinnest_and_fullest(&self) -> Option<(u32, u32)> {
        let source = self.groups.iter().copied().find(|run| *run != NIL)?;
        let target = self.groups.iter().rev().copied().find(|run| *run != NIL)?;
        if target != source {
            return Some((source, target));
        }
        // Both are the head of the only list in use.
        let second = self.runs[source as usize].next;
        (second != NIL).then_some((source, second))
    }

    /// Memory held by the tables, in bytes.
    pub(super) fn table_bytes(&self) -> usize {
        self.runs.bytes() + self.owners.bytes()
    }

    /// Compares lists and counters with the tables. Returns run, cell and owner of all objects.
    ///
    /// # Panics
    /// If something does not agree.
    pub(super) fn validate(&self) -> Vec<(u32, u16, Handle)> {
        let mut listed = 0;
        for (group, head) in self.groups.iter().enumerate() {
            let (mut run, mut prev) = (*head, NIL);
            while run != NIL {
                let r = &self.runs[run as usize];
                assert_eq!(self.group(r.live), Some(group), "a run is in the wrong list");
                assert_eq!(r.prev, prev);
                (prev, run) = (run, r.next);
                listed += 1;
            }
        }
        let (mut held, mut partial) = (0, 0);
        let mut owned = Vec::new();
        for run in 0..self.runs.len {
            let r = &self.runs[run];
            if r.first_page == NIL {
                continue;
            }
            held += 1;
            partial += usize::from(self.group(r.live).is_some());
            assert!(r.live > 0, "an empty run holds pages");
            let before = owned.len();
            for cell in 0..self.cells {
                let owner = self.owners[run * self.cells + cell];
                if owner & FREE_CELL == 0 {
                    owned.push((run as u32, cell as u16, Handle(owner)));
                }
            }
            let used = owned.len() - before;
            assert_eq!(used, usize::from(r.live));
            let (mut free, mut cell) = (0, r.first_free);
            while cell != NO_CELL {
                free += 1;
                cell = self.owners[run * self.cells + usize::from(cell)] as u16;
            }
            assert_eq!(free + used, self.cells, "free chain is broken");
        }
        assert_eq!((held, partial, owned.len()), (self.runs_held, listed, self.live));
        owned
    }
}
