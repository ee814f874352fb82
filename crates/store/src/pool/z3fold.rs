//! Up to three objects a page: one at its beginning, one at its end, one between.
//!
//! Between [`super::zbud`] and [`super::zsmalloc`]: a page that compresses to a third is stored at
//! three to one, no object straddles two pages, and a dead one pins two others at most. Where
//! lengths lie beyond 1,344 bytes (21 chunks) it can do no better than zbud.
//!
//! The first object begins at the beginning and the last one ends at the end, so where they are
//! follows from their lengths; the middle one is put right behind the first, and the page remembers
//! where. Pages with one or two objects are in lists by the longest object that still fits
//! (`triple.rs`); a new object takes the page with the least room that is enough, best fit to
//! a chunk of 64 bytes, and among equals one that becomes full by it.
//!
//! Deaths leave two kinds of holes, and compaction mends both. A page whose free space is on both
//! sides of its middle object is *split*: the object moves to the first or last position, or up
//! against its neighbour, which joins the two. And a page with few objects is dissolved: an object
//! that is alone goes to the page where it fits best, and a pair does if there is a place for both.
//! A page is given up for each object that was alone and each pair. Every move makes the pages or
//! the splits fewer, or is the first half of such a step, so compaction ends. Looking for a pair is
//! bounded (a few pages of each list), because a fault may wait meanwhile.
//!
//! Metadata: 10 bytes for a slot, 24 for a page: 18 bytes an object in full pages, 22 in pairs, 34
//! where each is alone. `locate` and `free` take constant time and allocate nothing.

use super::arena::Arena;
use super::slots::Slots;
use super::triple::{
    Pages, Position, CHUNKS, CHUNK_BYTES, NIL, PAIR, PAIR_SPLIT, SINGLE, SINGLE_SPLIT,
};
use super::{Extent, Handle, MoveBytes, Object, ObjectPool, PoolStats};
use crate::PAGE_SIZE;
use core::mem::size_of;

/// Pages of one list looked at for a move, where finding none in the first says nothing about the
/// others: pairs differ in how they divide what they use.
const LOOKED_AT_MAX: usize = 4;

/// A place is page (32 bits), position (2 bits) and length - 1 (12 bits), 46 of 48.
const LEN_BITS: u32 = 12;
const POSITION_BITS: u32 = 2;

#[derive(Clone, Copy)]
struct Place {
    page: u32,
    at: Position,
    len: usize,
}

impl Place {
    fn pack(self) -> u64 {
        u64::from(self.page) << (LEN_BITS + POSITION_BITS)
            | (self.at as u64) << LEN_BITS
            | (self.len - 1) as u64
    }

    fn unpack(bits: u64) -> Place {
        Place {
            page: (bits >> (LEN_BITS + POSITION_BITS)) as u32,
            at: match bits >> LEN_BITS & 3 {
                0 => Position::First,
                1 => Position::Middle,
                _ => Position::Last,
            },
            len: (bits & ((1 << LEN_BITS) - 1)) as usize + 1,
        }
    }
}

fn chunks(len: usize) -> usize {
    len.div_ceil(CHUNK_BYTES)
}

fn extent(page: u32, start_chunk: usize, len: usize) -> Extent {
    let within = start_chunk * CHUNK_BYTES;
    Extent { offset: u64::from(page) * PAGE_SIZE as u64 + within as u64, len: len as u32 }
}

/// A move that compaction wants: which object, and where to.
struct Move {
    page: u32,
    at: Position,
    target: Target,
}

enum Target {
    /// Another page with room.
    Page(u32),
    /// A position and first chunk of its own page.
    Within(Position, usize),
    /// A page that holds nothing yet.
    NewPage,
}

/// The pool. See the head of the module.
pub struct Z3fold {
    slots: Slots,
    arena: Arena,
    pages: Pages,
    object_bytes: u64,
}

impl Z3fold {
    /// An empty pool over an arena of so many pages.
    pub fn new(arena_pages: u64) -> Z3fold {
        Z3fold {
            slots: Slots::new(),
            arena: Arena::new(arena_pages),
            pages: Pages::new(),
            object_bytes: 0,
        }
    }

    fn new_page(&mut self) -> Option<u32> {
        let page = self.arena.take(1)?;
        self.pages.reach(page);
        Some(page)
    }

    /// Takes an object off its page, and the page out of use if it was the only one.
    fn remove(&mut self, page: u32, at: Position) {
        let layout = self.pages.layout(page).without(at);
        self.pages.set_layout(page, layout);
        if layout.objects() == 0 {
            self.arena.put_dirty(page, 1);
        }
    }

    fn extent_of(&self, place: Place) -> Extent {
        let start = match place.at {
            Position::First => 0,
            Position::Middle => self.pages.layout(place.page).start(Position::Middle),
            Position::Last => CHUNKS - chunks(place.len),
        };
        extent(place.page, start, place.len)
    }

    /// The next move towards fewer pages. Bounded, whatever the pool holds.
    fn next_move(&self) -> Option<Move> {
        self.single_to_another_page()
            .or_else(|| self.single_joined())
            .or_else(|| self.pair_joined())
            .or_else(|| self.pair_to_other_pages())
    }

    /// Frees a page by moving its only object, the longest such object first. All objects of one
    /// `SINGLE` list have one length, so its head speaks for all.
    fn single_to_another_page(&self) -> Option<Move> {
        bits_up(self.pages.rooms(SINGLE) | self.pages.rooms(SINGLE_SPLIT)).find_map(|room| {
            [SINGLE, SINGLE_SPLIT].into_iter().find_map(|family| {
                let page = self.pages.head(family, room);
                let (at, used) = (page != NIL).then(|| self.longest(page))??;
                let target = Target::Page(self.pages.find(used, [page, NIL])?);
                Some(Move { page, at, target })
            })
        })
    }

    /// Joins what is free around a middle object that is alone. If it is longer than both gaps, it
    /// goes to a new page; its old one is free afterwards.
    fn single_joined(&self) -> Option<Move> {
        let has_page = self.arena.has_page();
        let page = |room| self.pages.head(SINGLE_SPLIT, room);
        bits_up(self.pages.rooms(SINGLE_SPLIT)).map(page).find_map(|page| {
            let target = match self.pages.layout(page).joined() {
                Some((at, start)) => Target::Within(at, start),
                None if has_page => Target::NewPage,
                None => return None,
            };
            Some(Move { page, at: Position::Middle, target })
        })
    }

    fn pair_joined(&self) -> Option<Move> {
        bits_up(self.pages.rooms(PAIR_SPLIT)).find_map(|room| {
            self.first_pages(PAIR_SPLIT, room).find_map(|page| {
                let (at, start) = self.pages.layout(page).joined()?;
                Some(Move { page, at: Position::Middle, target: Target::Within(at, start) })
            })
        })
    }

    /// The first of the two moves that empty a page with two objects, if there is a place for both;
    /// the other object is alone then, and its turn comes at once.
    fn pair_to_other_pages(&self) -> Option<Move> {
        let rooms = [PAIR, PAIR_SPLIT, SINGLE, SINGLE_SPLIT].map(|f| self.pages.rooms(f));
        let room_max = rooms.iter().fold(0, |all, rooms| all | rooms).checked_ilog2()? as usize;
        // The emptiest first. The longer object of a pair has half of what both use at least.
        bits_up(rooms[0] | rooms[1]).rev().find_map(|room| {
            [PAIR, PAIR_SPLIT].into_iter().find_map(|family| {
                if family == PAIR && (CHUNKS - room).div_ceil(2) > room_max {
                    return None;
                }
                self.first_pages(family, room).find_map(|page| self.pair_move(page))
            })
        })
    }

    fn pair_move(&self, page: u32) -> Option<Move> {
        let (long, long_used) = self.longest(page)?;
        let layout = self.pages.layout(page);
        let short = Position::ALL.into_iter().find(|at| *at != long && layout.used(*at) > 0)?;
        let long_target = self.pages.find(long_used, [page, NIL])?;
        let short_target = self.pages.find(layout.used(short), [page, long_target])?;
        // The middle one first: what remains must not be split.
        let both = [(long, long_target), (short, short_target)];
        let middle = both.into_iter().find(|(at, _)| *at == Position::Middle);
        let (at, target) = middle.unwrap_or(both[0]);
        Some(Move { page, at, target: Target::Page(target) })
    }

    /// Position and chunks of the longest object of a page.
    fn longest(&self, page: u32) -> Option<(Position, usize)> {
        let layout = self.pages.layout(page);
        let objects = Position::ALL.map(|at| (at, layout.used(at)));
        objects.into_iter().filter(|(_, used)| *used > 0).max_by_key(|(_, used)| *used)
    }

    fn first_pages(&self, family: usize, room: usize) -> impl Iterator<Item = u32> + '_ {
        let head = self.pages.head(family, room);
        let listed = |page: u32| (page != NIL).then_some(page);
        core::iter::successors(listed(head), move |page| listed(self.pages.next(*page)))
            .take(LOOKED_AT_MAX)
    }

    /// Carries a move out; false if there is no page for it or the medium refused, and then nothing
    /// has changed.
    fn carry_out(&mut self, wanted: &Move, move_bytes: MoveBytes<'_>) -> bool {
        let Move { page, at, ref target } = *wanted;
        let layout = self.pages.layout(page);
        let owner = self.pages.owner(page, at);
        let Some((bits, _)) = self.slots.get(owner) else { return false };
        let (from, used) = (Place::unpack(bits), layout.used(at));
        let to_page = match target {
            Target::Within(..) => page,
            Target::Page(to) => *to,
            Target::NewPage => match self.new_page() {
                Some(to) => to,
                None => return false,
            },
        };
        let fit = match target {
            Target::Within(to_at, start) => Some((*to_at, *start)),
            _ => self.pages.layout(to_page).fit(used),
        };
        let moved = fit.is_some_and(|(_, start)| {
            move_bytes(self.extent_of(from), extent(to_page, start, from.len))
        });
        let (Some((to_at, start)), true) = (fit, moved) else {
            if matches!(target, Target::NewPage) {
                self.arena.put_dirty(to_page, 1);
            }
            return false;
        };
        if to_page == page {
            self.pages.set_layout(page, layout.without(at).with(to_at, start, used));
        } else {
            let target_layout = self.pages.layout(to_page).with(to_at, start, used);
            self.pages.set_layout(to_page, target_layout);
            self.remove(page, at);
        }
        self.pages.set_owner(to_page, to_at, owner);
        self.slots.set_place(owner, Place { page: to_page, at: to_at, ..from }.pack());
        true
    }
}

/// Numbers of the bits that are set, from low to high.
fn bits_up(bits: u64) -> impl DoubleEndedIterator<Item = usize> {
    (0..CHUNKS).filter(move |n| bits >> n & 1 == 1)
}

impl ObjectPool for Z3fold {
    fn alloc(&mut self, len: usize, check: u32) -> Option<Handle> {
        if !(1..=PAGE_SIZE).contains(&len) {
            return None;
        }
        let used = chunks(len);
        let page = match self.pages.find(used, [NIL; 2]) {
            Some(page) => page,
            None => self.new_page()?,
        };
        let layout = self.pages.layout(page);
        let placed = layout.fit(used).and_then(|(at, start)| {
            Some((at, start, self.slots.insert(Place { page, at, len }.pack(), check)?))
        });
        let Some((at, start, handle)) = placed else {
            if layout.objects() == 0 {
                self.arena.put_dirty(page, 1);
            }
            return None;
        };
        self.pages.set_layout(page, layout.with(at, start, used));
        self.pages.set_owner(page, at, handle);
        self.object_bytes += len as u64;
        Some(handle)
    }

    #[inline]
    fn locate(&self, handle: Handle) -> Option<Object> {
        let (bits, check) = self.slots.get(handle)?;
        Some(Object { extent: self.extent_of(Place::unpack(bits)), check })
    }

    fn free(&mut self, handle: Handle) -> Option<Object> {
        let (bits, check) = self.slots.get(handle)?;
        let place = Place::unpack(bits);
        let object = Object { extent: self.extent_of(place), check };
        self.slots.remove(handle);
        self.remove(place.page, place.at);
        self.object_bytes -= place.len as u64;
        Some(object)
    }

    fn compact(&mut self, moves_max: usize, move_bytes: MoveBytes<'_>) -> usize {
        let mut moves = 0;
        while moves < moves_max {
            let Some(wanted) = self.next_move() else { break };
            if !self.carry_out(&wanted, move_bytes) {
                break;
            }
            moves += 1;
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
        PoolStats {
            objects: self.slots.live() as u64,
            object_bytes: self.object_bytes,
            pool_bytes: self.arena.used_pages() * PAGE_SIZE as u64,
            idle_bytes: self.arena.dirty_pages() * PAGE_SIZE as u64,
            metadata_bytes: (self.slots.metadata_bytes()
                + self.arena.metadata_bytes()
                + self.pages.metadata_bytes()
                + size_of::<Z3fold>()) as u64,
        }
    }

    fn validate(&self) {
        self.arena.validate();
        let mut objects_of = std::collections::BTreeMap::new();
        let mut object_bytes = 0;
        for handle in self.slots.handles() {
            let place = Place::unpack(self.slots.get(handle).expect("live").0);
            let layout = self.pages.layout(place.page);
            assert_eq!(self.pages.owner(place.page, place.at), handle);
            assert_eq!(layout.used(place.at), chunks(place.len));
            *objects_of.entry(place.page).or_insert(0) += 1;
            object_bytes += place.len as u64;
        }
        assert_eq!(object_bytes, self.object_bytes);
        assert_eq!(objects_of.len() as u64, self.arena.used_pages());
        for (page, objects) in &objects_of {
            let layout = self.pages.layout(*page);
            assert_eq!(layout.objects(), *objects);
            let mut end = 0;
            for at in Position::ALL.into_iter().filter(|at| layout.used(*at) > 0) {
                assert!(layout.start(at) >= end, "objects overlap");
                end = layout.start(at) + layout.used(at);
            }
            assert!(end <= CHUNKS);
        }
        assert_eq!(self.pages.validate(), objects_of.values().filter(|n| **n < 3).count());
    }
}

#[cfg(test)]
#[path = "z3fold_tests.rs"]
mod tests;
