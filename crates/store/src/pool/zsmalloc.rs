//! A dense pool: objects of similar size side by side in short runs of pages.
//!
//! Sizes are rounded up to one of about eighty *classes*, 32 bytes apart where compressed pages are
//! common. A class gets its pages in *runs* of 1 to 8 neighbours, of a length that leaves little
//! over at the end: 1,376-byte objects waste a third of a single page, but under 1 % of three. In a
//! kernel a run is pages strung together, and objects that straddle two need mapping tricks on each
//! access; here the arena is contiguous, so a straddling object is just a range of bytes.
//!
//! The trade: density for fragmentation. When objects die at random, runs thin out and hold their
//! pages until the last one goes; with 70 % dead, nearly all pages are still held. Two answers. New
//! objects go into the *fullest* run that has room (runs of a class are kept in eight lists by
//! fullness), so that thin runs get a chance to die out; and [`compact`](ObjectPool::compact) moves
//! objects from the thinnest run of a class into the fullest until the thin one is empty. Handles
//! survive, because they name slots.
//!
//! Bounds. An object loses under 32 bytes to rounding (16 on average; up to 127 while its class is
//! small and borrows) and about 1 % to tails. After compaction a class has less than one run of
//! free cells, so a pool wastes at most 80 runs, about 1 MiB; that is its price, and for a few
//! hundred objects it is a high one. Metadata: 10 bytes for the slot, 4 for the owner of each cell,
//! about 1.3 for the run: 16 bytes an object for 100,000 objects, 15.4 for a million; for a few
//! thousand the tables of the classes weigh more (90 KB). Tables keep the size of their peak.
//!
//! `locate` and `free` take constant time and allocate nothing.

use super::arena::{Arena, RUN_PAGES_MAX};
use super::class::{best_run, Class, FREE_CELL, NO_CELL, RUN_BITS};
use super::slots::{Slots, PLACE_BITS};
use super::{Extent, Handle, MoveBytes, Object, ObjectPool, PoolStats};
use crate::PAGE_SIZE;
use core::mem::size_of;

/// Classes are this far apart before similar ones are merged.
const STEP_BYTES: usize = 32;
const STEPS: usize = PAGE_SIZE / STEP_BYTES;

/// Merging stops where a class would span more sizes than the slack field of a place can tell.
const SLACK_BITS: u32 = 7;
const CELL_BITS: u32 = 10;
const CLASS_BITS: u32 = 7;

const _: () = assert!(SLACK_BITS + CELL_BITS + RUN_BITS + CLASS_BITS == PLACE_BITS);
const _: () = assert!(RUN_PAGES_MAX * PAGE_SIZE / STEP_BYTES <= 1 << CELL_BITS);

/// A class with fewer runs borrows from its larger neighbours before it starts another: what
/// rounding up costs an object is less than what a nearly empty run costs a small class. Without
/// this, a pool of a few thousand objects is mostly first runs.
const SMALL_CLASS_RUNS: usize = 4;

/// Where an object is: class, run of that class, cell of that run, and how much of the cell it
/// does not use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Place {
    class: usize,
    run: u32,
    cell: u16,
    slack: usize,
}

impl Place {
    #[inline]
    fn pack(self) -> u64 {
        (self.class as u64) << (SLACK_BITS + CELL_BITS + RUN_BITS)
            | u64::from(self.run) << (SLACK_BITS + CELL_BITS)
            | u64::from(self.cell) << SLACK_BITS
            | self.slack as u64
    }

    #[inline]
    fn unpack(bits: u64) -> Place {
        Place {
            class: (bits >> (SLACK_BITS + CELL_BITS + RUN_BITS)) as usize,
            run: (bits >> (SLACK_BITS + CELL_BITS)) as u32 & ((1 << RUN_BITS) - 1),
            cell: (bits >> SLACK_BITS) as u16 & ((1 << CELL_BITS) - 1),
            slack: (bits & ((1 << SLACK_BITS) - 1)) as usize,
        }
    }
}

#[inline]
fn extent(class: &Class, place: Place) -> Extent {
    Extent {
        offset: class.cell_offset(place.run, place.cell),
        len: (class.cell_bytes - place.slack) as u32,
    }
}

/// The pool. See the head of the module.
pub struct Zsmalloc {
    slots: Slots,
    arena: Arena,
    classes: Vec<Class>,
    /// From (length - 1) / 32 to class.
    class_of_step: [u8; STEPS],
    object_bytes: u64,
    /// Class at which the next compaction begins.
    compact_next: usize,
}

impl Zsmalloc {
    /// An empty pool over an arena of so many pages.
    pub fn new(arena_pages: u64) -> Zsmalloc {
        let mut classes: Vec<Class> = Vec::new();
        let mut class_of_step = [0; STEPS];
        // From large to small: a size that fits a run as often as the next larger one does joins
        // its class, for it would gain nothing by one of its own.
        for step in (0..STEPS).rev() {
            let bytes = (step + 1) * STEP_BYTES;
            let (pages, cells) = best_run(bytes);
            let joins = classes.last().is_some_and(|c| {
                (c.pages, c.cells) == (pages, cells)
                    && c.cell_bytes - bytes + STEP_BYTES <= 1 << SLACK_BITS
            });
            if !joins {
                classes.push(Class::new(bytes, pages));
            }
            class_of_step[step] = (classes.len() - 1) as u8;
        }
        Zsmalloc {
            slots: Slots::new(),
            arena: Arena::new(arena_pages),
            classes,
            class_of_step,
            object_bytes: 0,
            compact_next: 0,
        }
    }

    /// Where an object of class `own` goes: a run with room of that class, else, while the class is
    /// small, one of a slightly larger class; else a new run of its own.
    fn class_with_room(&self, own: usize, len: usize) -> (usize, Option<u32>) {
        let partial = self.classes[own].fullest_partial();
        if partial.is_some() || self.classes[own].runs_held >= SMALL_CLASS_RUNS {
            return (own, partial);
        }
        // Larger classes come first in the table.
        let larger = self.classes[..own].iter().enumerate().rev();
        larger
            .take_while(|(_, c)| c.cell_bytes - len < 1 << SLACK_BITS)
            .find_map(|(class, c)| Some((class, Some(c.fullest_partial()?))))
            .unwrap_or((own, None))
    }

    /// Moves objects of one class from its thinnest run to its fullest. Returns the moves made
    /// and whether the medium refused one.
    fn compact_class(
        &mut self,
        class: usize,
        moves_max: usize,
        move_bytes: MoveBytes<'_>,
    ) -> (usize, bool) {
        let mut moves = 0;
        let c = &mut self.classes[class];
        // With a run's worth of free cells, one run can go.
        while moves < moves_max && c.free_cells() >= c.cells {
            let Some((source, target)) = c.thinnest_and_fullest() else { break };
            let base = source as usize * c.cells;
            let Some(cell) = (0..c.cells).find(|n| c.owners[base + n] & FREE_CELL == 0) else {
                break;
            };
            let mut from_cell = cell;
            // As many as fit the target or empty the source, without searching anew.
            while moves < moves_max && c.runs[target as usize].first_free != NO_CELL {
                while from_cell < c.cells && c.owners[base + from_cell] & FREE_CELL != 0 {
                    from_cell += 1;
                }
                if from_cell == c.cells {
                    break;
                }
                let owner = Handle(c.owners[base + from_cell]);
                let Some((bits, _)) = self.slots.get(owner) else { return (moves, true) };
                let from = Place::unpack(bits);
                let to_cell = c.take_cell(target, owner);
                let to = Place { run: target, cell: to_cell, ..from };
                if !move_bytes(extent(c, from), extent(c, to)) {
                    c.put_cell(target, to_cell);
                    return (moves, true);
                }
                self.slots.set_place(owner, to.pack());
                c.put_cell(source, from.cell);
                moves += 1;
            }
            if c.runs[source as usize].live == 0 {
                let first_page = c.drop_run(source);
                self.arena.put_dirty(first_page, c.pages);
            }
        }
        (moves, false)
    }
}

impl ObjectPool for Zsmalloc {
    fn alloc(&mut self, len: usize, check: u32) -> Option<Handle> {
        if !(1..=PAGE_SIZE).contains(&len) {
            return None;
        }
        let own = usize::from(self.class_of_step[(len - 1) / STEP_BYTES]);
        let (class, partial) = self.class_with_room(own, len);
        let c = &mut self.classes[class];
        let run = match partial {
            Some(run) => run,
            None => {
                let first_page = self.arena.take(c.pages)?;
                match c.add_run(first_page) {
                    Some(run) => run,
                    None => {
                        self.arena.put_dirty(first_page, c.pages);
                        return None;
                    }
                }
            }
        };
        let cell = c.runs[run as usize].first_free;
        let place = Place { class, run, cell, slack: c.cell_bytes - len };
        let Some(handle) = self.slots.insert(place.pack(), check) else {
            if c.runs[run as usize].live == 0 {
                let first_page = c.drop_run(run);
                self.arena.put_dirty(first_page, c.pages);
            }
            return None;
        };
        c.take_cell(run, handle);
        self.object_bytes += len as u64;
        Some(handle)
    }

    #[inline]
    fn locate(&self, handle: Handle) -> Option<Object> {
        let (bits, check) = self.slots.get(handle)?;
        let place = Place::unpack(bits);
        Some(Object { extent: extent(self.classes.get(place.class)?, place), check })
    }

    fn free(&mut self, handle: Handle) -> Option<Object> {
        let object = self.locate(handle)?;
        let place = Place::unpack(self.slots.get(handle)?.0);
        self.slots.remove(handle);
        let c = self.classes.get_mut(place.class)?;
        c.put_cell(place.run, place.cell);
        if c.runs[place.run as usize].live == 0 {
            let first_page = c.drop_run(place.run);
            self.arena.put_dirty(first_page, c.pages);
        }
        self.object_bytes -= u64::from(object.extent.len);
        Some(object)
    }

    fn compact(&mut self, moves_max: usize, move_bytes: MoveBytes<'_>) -> usize {
        let mut moves = 0;
        for _ in 0..self.classes.len() {
            if moves == moves_max {
                break;
            }
            let (made, failed) =
                self.compact_class(self.compact_next, moves_max - moves, move_bytes);
            moves += made;
            if failed {
                break;
            }
            if moves < moves_max {
                self.compact_next = (self.compact_next + 1) % self.classes.len();
            }
        }
        moves
    }

    fn take_idle(&mut self) -> Option<Extent> {
        self.arena.take_dirty()
    }

    fn give_back(&mut self, extent: Extent) {
        self.arena.put_clean(extent);
    }

    fn stats(&self) -> PoolStats {
        let tables: usize = self.classes.iter().map(|c| size_of::<Class>() + c.table_bytes()).sum();
        PoolStats {
            objects: self.slots.live() as u64,
            object_bytes: self.object_bytes,
            pool_bytes: self.arena.used_pages() * PAGE_SIZE as u64,
            idle_bytes: self.arena.dirty_pages() * PAGE_SIZE as u64,
            metadata_bytes: (tables
                + self.slots.metadata_bytes()
                + self.arena.metadata_bytes()
                + size_of::<Zsmalloc>()) as u64,
        }
    }

    fn validate(&self) {
        self.arena.validate();
        let (mut live, mut pages, mut object_bytes) = (0, 0, 0);
        for (class, c) in self.classes.iter().enumerate() {
            let owned = c.validate();
            for (run, cell, owner) in &owned {
                let (bits, _) = self.slots.get(*owner).expect("owner is not live");
                let place = Place::unpack(bits);
                assert_eq!((place.class, place.run, place.cell), (class, *run, *cell));
                object_bytes += (c.cell_bytes - place.slack) as u64;
            }
            live += owned.len();
            pages += c.runs_held * c.pages;
        }
        assert_eq!(live, self.slots.live());
        assert_eq!(self.slots.handles().count(), live);
        assert_eq!(pages as u64, self.arena.used_pages());
        assert_eq!(object_bytes, self.object_bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_lose_little_to_rounding_and_tails() {
        let pool = Zsmalloc::new(1024);
        assert!(pool.classes.len() < (1 << CLASS_BITS) - 1, "{} classes", pool.classes.len());
        let mut waste_total = 0.0;
        for len in 1..=PAGE_SIZE {
            let c = &pool.classes[usize::from(pool.class_of_step[(len - 1) / STEP_BYTES])];
            assert!(c.cell_bytes >= len && c.cell_bytes - len < 1 << SLACK_BITS);
            assert!(c.cells * c.cell_bytes <= c.pages * PAGE_SIZE);
            let bytes_each = (c.pages * PAGE_SIZE) as f64 / c.cells as f64;
            if (200..3000).contains(&len) {
                waste_total += 1.0 - len as f64 / bytes_each;
            }
        }
        let waste = waste_total / 2800.0;
        assert!(waste < 0.03, "{waste:.3} of a class is lost on average");
    }

    #[test]
    fn compaction_gives_thin_runs_back_and_handles_survive() {
        let mut pool = Zsmalloc::new(1 << 16);
        let handles: Vec<_> = (0..10_000).map(|n| pool.alloc(1000, n).unwrap()).collect();
        for (n, handle) in handles.iter().enumerate() {
            if n % 5 != 0 {
                pool.free(*handle).unwrap();
            }
        }
        let before = pool.stats();
        let mut moves = 0;
        loop {
            let made = pool.compact(16, &mut |from, to| {
                assert_eq!(from.len, to.len);
                true
            });
            moves += made;
            if made < 16 {
                break;
            }
        }
        pool.validate();
        let after = pool.stats();
        assert!(moves > 0 && moves < 2000);
        assert!(after.pool_bytes < before.pool_bytes / 3);
        assert!(after.pool_bytes < after.object_bytes * 21 / 20);
        for (n, handle) in handles.iter().enumerate().step_by(5) {
            assert_eq!(pool.locate(*handle).unwrap().check, n as u32);
        }
    }

    #[test]
    fn a_full_pool_refuses_and_metadata_stays_under_16_bytes_an_object() {
        let mut pool = Zsmalloc::new(16384);
        let mut objects = 0;
        while pool.alloc(600 + objects * 37 % 1500, 7).is_some() {
            objects += 1;
        }
        let stats = pool.stats();
        assert!(objects > 40_000);
        assert!(stats.metadata_bytes <= stats.objects * 16, "{stats:?}");
        pool.validate();
    }
}
