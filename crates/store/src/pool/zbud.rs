//! Two buddies a page: one object at its beginning, one at its end.
//!
//! The simplest pool there is. A page holds at most two objects, so it never does better than two
//! pages in one, and it is never worse than one object a page. What that buys: an object never
//! moves, so there is no compaction to pay for; two objects per page bound what a dead neighbour
//! can pin; and finding room is one look into a table of lists. For a codec whose pages come out
//! between a third and a half of 4 KiB it gives up little against [`super::zsmalloc`].
//!
//! Free space in a page is counted in chunks of 64 bytes. Pages with one object are in 64 lists by
//! the number of free chunks; a new object takes the first page of the first list, from its own
//! size up, that has one: best fit, to a chunk. Pages with two objects are in no list.
//!
//! Metadata: 10 bytes for a slot, 10 for a page: 15 bytes an object when all are paired, 20 when
//! none is. Everything on the free path is constant time and allocates nothing.

use super::arena::Arena;
use super::slots::Slots;
use super::{Extent, Handle, MoveBytes, Object, ObjectPool, PoolStats};
use crate::PAGE_SIZE;
use core::mem::size_of;

/// Granularity of free space in a page.
const CHUNK_BYTES: usize = 64;
const CHUNKS: usize = PAGE_SIZE / CHUNK_BYTES;
const NIL: u32 = u32::MAX;

/// Pages in one piece of the page table, which grows piecewise so that growing never copies.
const PIECE: usize = 1024;

/// A place is page (32 bits), which end (1 bit) and length - 1 (12 bits), 45 of 48.
const LEN_BITS: u32 = 12;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum End {
    First,
    Last,
}

#[derive(Clone, Copy)]
struct Place {
    page: u32,
    end: End,
    len: usize,
}

impl Place {
    fn pack(self) -> u64 {
        let end = u64::from(self.end == End::Last);
        u64::from(self.page) << (LEN_BITS + 1) | end << LEN_BITS | (self.len - 1) as u64
    }

    fn unpack(bits: u64) -> Place {
        Place {
            page: (bits >> (LEN_BITS + 1)) as u32,
            end: if bits >> LEN_BITS & 1 == 1 { End::Last } else { End::First },
            len: (bits & ((1 << LEN_BITS) - 1)) as usize + 1,
        }
    }

    fn extent(self) -> Extent {
        let base = u64::from(self.page) * PAGE_SIZE as u64;
        let within = match self.end {
            End::First => 0,
            // From a chunk border, as the count of free chunks assumes.
            End::Last => PAGE_SIZE - chunks(self.len) * CHUNK_BYTES,
        };
        Extent { offset: base + within as u64, len: self.len as u32 }
    }
}

fn chunks(len: usize) -> usize {
    len.div_ceil(CHUNK_BYTES)
}

/// One piece of the page table, as parallel arrays so that a page costs 10 bytes.
struct Piece {
    prev: [u32; PIECE],
    next: [u32; PIECE],
    /// Chunks used by the first and by the last object; 0 for none.
    first: [u8; PIECE],
    last: [u8; PIECE],
}

/// The pool. See the head of the module.
pub struct Zbud {
    slots: Slots,
    arena: Arena,
    #[allow(clippy::vec_box)] // growing never copies more than pointers
    pages: Vec<Box<Piece>>,
    /// Pages with one object, by free chunks.
    unbuddied: [u32; CHUNKS],
    object_bytes: u64,
}

impl Zbud {
    /// An empty pool over an arena of so many pages.
    pub fn new(arena_pages: u64) -> Zbud {
        Zbud {
            slots: Slots::new(),
            arena: Arena::new(arena_pages),
            pages: Vec::new(),
            unbuddied: [NIL; CHUNKS],
            object_bytes: 0,
        }
    }

    fn piece(&mut self, page: u32) -> (&mut Piece, usize) {
        (&mut self.pages[page as usize / PIECE], page as usize % PIECE)
    }

    fn used_chunks(&self, page: u32) -> (usize, usize) {
        let piece = &self.pages[page as usize / PIECE];
        let n = page as usize % PIECE;
        (usize::from(piece.first[n]), usize::from(piece.last[n]))
    }

    fn set_chunks(&mut self, page: u32, end: End, used: usize) {
        let (piece, n) = self.piece(page);
        match end {
            End::First => piece.first[n] = used as u8,
            End::Last => piece.last[n] = used as u8,
        }
    }

    /// The list a page belongs to: its free chunks if exactly one object is in it.
    fn list_of(&self, page: u32) -> Option<usize> {
        match self.used_chunks(page) {
            (0, 0) => None,
            // A page that one object fills (0 chunks left) is in list 0, where nobody looks.
            (used, 0) | (0, used) => Some(CHUNKS - used),
            _ => None,
        }
    }

    fn link(&mut self, page: u32) {
        let Some(list) = self.list_of(page) else { return };
        let head = self.unbuddied[list];
        let (piece, n) = self.piece(page);
        piece.prev[n] = NIL;
        piece.next[n] = head;
        if head != NIL {
            let (piece, n) = self.piece(head);
            piece.prev[n] = page;
        }
        self.unbuddied[list] = page;
    }

    fn unlink(&mut self, page: u32) {
        let Some(list) = self.list_of(page) else { return };
        let (piece, n) = self.piece(page);
        let (prev, next) = (piece.prev[n], piece.next[n]);
        if prev == NIL {
            self.unbuddied[list] = next;
        } else {
            let (piece, n) = self.piece(prev);
            piece.next[n] = next;
        }
        if next != NIL {
            let (piece, n) = self.piece(next);
            piece.prev[n] = prev;
        }
    }

    /// A page with room for so many chunks: one that has an object already, or a new one.
    fn page_for(&mut self, needed: usize) -> Option<u32> {
        if let Some(list) = (needed..CHUNKS).find(|list| self.unbuddied[*list] != NIL) {
            return Some(self.unbuddied[list]);
        }
        let page = self.arena.take(1)?;
        while self.pages.len() * PIECE <= page as usize {
            self.pages.push(Box::new(Piece {
                prev: [NIL; PIECE],
                next: [NIL; PIECE],
                first: [0; PIECE],
                last: [0; PIECE],
            }));
        }
        Some(page)
    }
}

impl ObjectPool for Zbud {
    fn alloc(&mut self, len: usize, check: u32) -> Option<Handle> {
        if !(1..=PAGE_SIZE).contains(&len) {
            return None;
        }
        let page = self.page_for(chunks(len))?;
        let end = if self.used_chunks(page).0 == 0 { End::First } else { End::Last };
        let Some(handle) = self.slots.insert(Place { page, end, len }.pack(), check) else {
            if self.used_chunks(page) == (0, 0) {
                self.arena.put_dirty(page, 1);
            }
            return None;
        };
        self.unlink(page);
        self.set_chunks(page, end, chunks(len));
        self.link(page);
        self.object_bytes += len as u64;
        Some(handle)
    }

    fn locate(&self, handle: Handle) -> Option<Object> {
        let (bits, check) = self.slots.get(handle)?;
        Some(Object { extent: Place::unpack(bits).extent(), check })
    }

    fn free(&mut self, handle: Handle) -> Option<Object> {
        let (bits, check) = self.slots.get(handle)?;
        let place = Place::unpack(bits);
        self.slots.remove(handle);
        self.unlink(place.page);
        self.set_chunks(place.page, place.end, 0);
        self.link(place.page);
        if self.used_chunks(place.page) == (0, 0) {
            self.arena.put_dirty(place.page, 1);
        }
        self.object_bytes -= place.len as u64;
        Some(Object { extent: place.extent(), check })
    }

    /// Nothing to do: an object in a zbud page stays where it is.
    fn compact(&mut self, _moves_max: usize, _move_bytes: MoveBytes<'_>) -> usize {
        0
    }

    fn take_idle(&mut self) -> Option<Extent> {
        self.arena.take_dirty()
    }

    fn give_back(&mut self, extent: Extent) {
        self.arena.put_clean(extent);
    }

    fn stats(&self) -> PoolStats {
        PoolStats {
            objects: self.slots.live() as u64,
            object_bytes: self.object_bytes,
            pool_bytes: self.arena.used_pages() * PAGE_SIZE as u64,
            idle_bytes: self.arena.dirty_pages() * PAGE_SIZE as u64,
            metadata_bytes: (self.slots.metadata_bytes()
                + self.arena.metadata_bytes()
                + self.pages.len() * size_of::<Piece>()
                + self.pages.capacity() * size_of::<usize>()
                + size_of::<Zbud>()) as u64,
        }
    }

    fn validate(&self) {
        self.arena.validate();
        let mut seen = std::collections::BTreeMap::new();
        let mut object_bytes = 0;
        for handle in self.slots.handles() {
            let place = Place::unpack(self.slots.get(handle).expect("live").0);
            let entry: &mut (usize, usize) = seen.entry(place.page).or_default();
            let side = match place.end {
                End::First => &mut entry.0,
                End::Last => &mut entry.1,
            };
            assert_eq!(*side, 0, "two objects at one end");
            *side = chunks(place.len);
            object_bytes += place.len as u64;
        }
        assert_eq!(object_bytes, self.object_bytes);
        assert_eq!(seen.len() as u64, self.arena.used_pages());
        for (page, used) in &seen {
            assert_eq!(self.used_chunks(*page), *used);
            assert!(used.0 + used.1 <= CHUNKS, "buddies overlap");
        }
        let mut listed = 0;
        for (list, head) in self.unbuddied.iter().enumerate() {
            let (mut page, mut prev) = (*head, NIL);
            while page != NIL {
                assert_eq!(self.list_of(page), Some(list));
                let piece = &self.pages[page as usize / PIECE];
                assert_eq!(piece.prev[page as usize % PIECE], prev);
                (prev, page) = (page, piece.next[page as usize % PIECE]);
                listed += 1;
            }
        }
        assert_eq!(listed, seen.values().filter(|(a, b)| (*a == 0) != (*b == 0)).count());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_that_fit_share_a_page_and_never_three() {
        let mut pool = Zbud::new(16);
        let a = pool.alloc(2000, 1).unwrap();
        let b = pool.alloc(2048, 2).unwrap();
        assert_eq!(pool.stats().pool_bytes, 4096);
        let (a, b) = (pool.locate(a).unwrap().extent, pool.locate(b).unwrap().extent);
        assert_eq!(a.offset / 4096, b.offset / 4096);
        assert!(a.offset + u64::from(a.len) <= b.offset);
        pool.alloc(10, 3).unwrap();
        assert_eq!(pool.stats().pool_bytes, 2 * 4096);
        pool.validate();
    }

    #[test]
    fn whole_pages_are_kept_too() {
        let mut pool = Zbud::new(2);
        let a = pool.alloc(4096, 1).unwrap();
        pool.alloc(4033, 1).unwrap();
        assert_eq!(pool.alloc(1, 1), None);
        pool.validate();
        pool.free(a).unwrap();
        assert!(pool.alloc(1, 1).is_some());
        pool.validate();
    }

    #[test]
    fn the_emptiest_fit_is_not_the_first_choice() {
        let mut pool = Zbud::new(16);
        let small = pool.alloc(500, 0).unwrap();
        let large = pool.alloc(3600, 0).unwrap();
        let third = pool.alloc(400, 0).unwrap();
        let page = |h| pool.locate(h).unwrap().extent.offset / 4096;
        assert_ne!(page(small), page(large));
        assert_eq!(page(third), page(large), "best fit");
    }
}
