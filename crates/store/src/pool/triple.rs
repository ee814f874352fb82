//! The pages of [`super::z3fold`]: where up to three objects lie in one, and lists of the pages
//! with room.
//!
//! Space in a page is counted in chunks of 64 bytes. A [`Layout`] is a value and its functions are
//! pure: how much still fits, where it goes, and where the middle object would have to go so that
//! all that is free is in one piece. The table adds prev, next and the three owners: 24 bytes a
//! page, in pieces that never move.

use super::Handle;
use crate::PAGE_SIZE;
use core::mem::size_of;

/// Granularity of space in a page.
pub(super) const CHUNK_BYTES: usize = 64;
/// Chunks of a page.
pub(super) const CHUNKS: usize = PAGE_SIZE / CHUNK_BYTES;

/// No page.
pub(super) const NIL: u32 = u32::MAX;

/// Pages in one piece of the table, which grows piecewise so that growing never copies.
const PIECE: usize = 1024;

/// Families of lists. In a *split* page the free chunks are on both sides of the middle object;
/// moving that one joins them.
pub(super) const FAMILIES: usize = 4;
/// Two objects, split.
pub(super) const PAIR_SPLIT: usize = 0;
/// Two objects, free space in one piece.
pub(super) const PAIR: usize = 1;
/// A middle object alone.
pub(super) const SINGLE_SPLIT: usize = 2;
/// A first or a last object alone.
pub(super) const SINGLE: usize = 3;

/// Where in its page an object is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Position {
    First = 0,
    Middle = 1,
    Last = 2,
}
use Position::*;

impl Position {
    pub(super) const ALL: [Position; 3] = [First, Middle, Last];
}

/// What a page holds, in chunks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Layout {
    /// Chunks of the object at each position, 0 for none.
    used: [u8; 3],
    /// First chunk of the middle object.
    middle_start: u8,
}

impl Layout {
    pub(super) fn used(self, at: Position) -> usize {
        usize::from(self.used[at as usize])
    }

    pub(super) fn objects(self) -> usize {
        self.used.iter().filter(|used| **used > 0).count()
    }

    /// First chunk of the object at a position.
    pub(super) fn start(self, at: Position) -> usize {
        match at {
            First => 0,
            Middle => usize::from(self.middle_start),
            Last => CHUNKS - self.used(Last),
        }
    }

    fn middle_end(self) -> usize {
        self.start(Middle) + self.used(Middle)
    }

    /// Free chunks before and behind the middle object.
    fn gaps(self) -> (usize, usize) {
        (self.start(Middle) - self.used(First), self.start(Last) - self.middle_end())
    }

    /// Chunks of the longest object that can be added; 0 if none can.
    pub(super) fn room(self) -> usize {
        let middle_behind = self.start(Last) - self.used(First);
        match self.used.map(|used| used > 0) {
            [true, true, true] => 0,
            [_, false, _] => middle_behind,
            [false, true, false] => self.start(Middle).max(CHUNKS - self.middle_end()),
            [true, true, false] => CHUNKS - self.middle_end(),
            [false, true, true] => self.start(Middle),
        }
    }

    /// Position and first chunk for an object of so many chunks, at most `room`.
    pub(super) fn fit(self, chunks: usize) -> Option<(Position, usize)> {
        if chunks > self.room() {
            return None;
        }
        let last = (Last, CHUNKS - chunks);
        Some(match self.used.map(|used| used > 0) {
            [true, true, true] => return None,
            [false, false, _] | [false, true, true] => (First, 0),
            [true, _, false] => last,
            [true, false, true] => (Middle, self.used(First)),
            // The tighter of the two sides.
            [false, true, false] => {
                let (before, behind) = self.gaps();
                let first_fits = chunks <= before;
                if first_fits && (before <= behind || chunks > behind) {
                    (First, 0)
                } else {
                    last
                }
            }
        })
    }

    /// The layout with an object added where [`Layout::fit`] said.
    pub(super) fn with(mut self, at: Position, start: usize, chunks: usize) -> Layout {
        self.used[at as usize] = chunks as u8;
        if at == Middle {
            self.middle_start = start as u8;
        }
        self
    }

    /// The layout with an object taken away.
    pub(super) fn without(mut self, at: Position) -> Layout {
        self.used[at as usize] = 0;
        if at == Middle {
            self.middle_start = 0;
        }
        self
    }

    /// Position and first chunk that the middle object must have so that all that is free is in one
    /// piece; `None` if it is, or if the object would overlap itself on the way.
    pub(super) fn joined(self) -> Option<(Position, usize)> {
        if !self.is_split() {
            return None;
        }
        let chunks = self.used(Middle);
        let (before, behind) = self.gaps();
        match (self.used(First) > 0, self.used(Last) > 0) {
            (false, _) if before >= chunks => Some((First, 0)),
            (_, false) if behind >= chunks => Some((Last, CHUNKS - chunks)),
            (true, false) if before >= chunks => Some((Middle, self.used(First))),
            (false, true) if behind >= chunks => Some((Middle, self.start(Last) - chunks)),
            _ => None,
        }
    }

    /// The page has a position to give, but what is free is in two pieces, and only the larger one
    /// (or the one beside the position) can be had.
    pub(super) fn is_split(self) -> bool {
        let used: usize = self.used.iter().map(|used| usize::from(*used)).sum();
        self.used(Middle) > 0 && self.objects() < 3 && self.room() < CHUNKS - used
    }

    /// The family of lists a page belongs to, if it has one or two objects.
    pub(super) fn family(self) -> Option<usize> {
        match (self.objects(), self.is_split()) {
            (1, false) => Some(SINGLE),
            (1, true) => Some(SINGLE_SPLIT),
            (2, false) => Some(PAIR),
            (2, true) => Some(PAIR_SPLIT),
            _ => None,
        }
    }
}

/// One piece of the table, as parallel arrays: the lists read some of them and not others.
struct Piece {
    prev: [u32; PIECE],
    next: [u32; PIECE],
    layout: [Layout; PIECE],
    owners: [[u32; 3]; PIECE],
}

/// All pages.
pub(super) struct Pages {
    #[allow(clippy::vec_box)] // growing never copies more than pointers
    pieces: Vec<Box<Piece>>,
    /// Pages with one or two objects, by family and room in chunks.
    heads: [[u32; CHUNKS]; FAMILIES],
    /// One bit for each head that is not `NIL`.
    filled: [u64; FAMILIES],
}

impl Pages {
    pub(super) fn new() -> Pages {
        Pages { pieces: Vec::new(), heads: [[NIL; CHUNKS]; FAMILIES], filled: [0; FAMILIES] }
    }

    /// Makes the table long enough for a page.
    pub(super) fn reach(&mut self, page: u32) {
        while self.pieces.len() * PIECE <= page as usize {
            self.pieces.push(Box::new(Piece {
                prev: [NIL; PIECE],
                next: [NIL; PIECE],
                layout: [Layout::default(); PIECE],
                owners: [[0; 3]; PIECE],
            }));
        }
    }

    #[inline]
    pub(super) fn layout(&self, page: u32) -> Layout {
        self.pieces[page as usize / PIECE].layout[page as usize % PIECE]
    }

    /// Changes what a page holds, and the list it is in.
    pub(super) fn set_layout(&mut self, page: u32, layout: Layout) {
        self.unlink(page);
        let (piece, n) = self.piece(page);
        piece.layout[n] = layout;
        self.link(page);
    }

    pub(super) fn owner(&self, page: u32, at: Position) -> Handle {
        Handle(self.pieces[page as usize / PIECE].owners[page as usize % PIECE][at as usize])
    }

    pub(super) fn set_owner(&mut self, page: u32, at: Position, owner: Handle) {
        let (piece, n) = self.piece(page);
        piece.owners[n][at as usize] = owner.0;
    }

    /// Rooms, as bits, for which a family has a page.
    pub(super) fn rooms(&self, family: usize) -> u64 {
        self.filled[family]
    }

    /// The first page of a list.
    pub(super) fn head(&self, family: usize, room: usize) -> u32 {
        self.heads[family][room]
    }

    pub(super) fn next(&self, page: u32) -> u32 {
        self.pieces[page as usize / PIECE].next[page as usize % PIECE]
    }

    /// The page with the least room for so many chunks, the fullest of equals, other than the two
    /// given ones (`NIL` for none). Constant time: at most three steps into each list.
    pub(super) fn find(&self, chunks: usize, but: [u32; 2]) -> Option<u32> {
        let enough = u64::MAX.checked_shl(chunks as u32)?;
        let mut rooms = self.filled.iter().fold(0, |all, filled| all | filled) & enough;
        while rooms != 0 {
            let room = rooms.trailing_zeros() as usize;
            for family in 0..FAMILIES {
                let mut page = self.heads[family][room];
                while page != NIL && but.contains(&page) {
                    page = self.next(page);
                }
                if page != NIL {
                    return Some(page);
                }
            }
            rooms &= rooms - 1;
        }
        None
    }

    /// Memory held, in bytes, apart from this struct itself.
    pub(super) fn metadata_bytes(&self) -> usize {
        self.pieces.len() * size_of::<Piece>() + self.pieces.capacity() * size_of::<usize>()
    }

    /// Compares the lists with the layouts. Returns how many pages are listed.
    ///
    /// # Panics
    /// If they do not agree.
    pub(super) fn validate(&self) -> usize {
        let mut listed = 0;
        for family in 0..FAMILIES {
            for room in 0..CHUNKS {
                let (mut page, mut prev) = (self.heads[family][room], NIL);
                assert_eq!(self.filled[family] >> room & 1 == 1, page != NIL);
                while page != NIL {
                    let layout = self.layout(page);
                    assert_eq!((layout.family(), layout.room()), (Some(family), room));
                    let piece = &self.pieces[page as usize / PIECE];
                    assert_eq!(piece.prev[page as usize % PIECE], prev);
                    (prev, page) = (page, self.next(page));
                    listed += 1;
                }
            }
        }
        listed
    }

    fn piece(&mut self, page: u32) -> (&mut Piece, usize) {
        (&mut self.pieces[page as usize / PIECE], page as usize % PIECE)
    }

    fn link(&mut self, page: u32) {
        let layout = self.layout(page);
        let Some(family) = layout.family() else { return };
        let room = layout.room();
        let next = self.heads[family][room];
        let (piece, n) = self.piece(page);
        piece.prev[n] = NIL;
        piece.next[n] = next;
        if next != NIL {
            let (piece, n) = self.piece(next);
            piece.prev[n] = page;
        }
        self.heads[family][room] = page;
        self.filled[family] |= 1 << room;
    }

    fn unlink(&mut self, page: u32) {
        let layout = self.layout(page);
        let Some(family) = layout.family() else { return };
        let room = layout.room();
        let (piece, n) = self.piece(page);
        let (prev, next) = (piece.prev[n], piece.next[n]);
        if next != NIL {
            let (piece, n) = self.piece(next);
            piece.prev[n] = prev;
        }
        if prev != NIL {
            let (piece, n) = self.piece(prev);
            piece.next[n] = next;
            return;
        }
        self.heads[family][room] = next;
        if next == NIL {
            self.filled[family] &= !(1 << room);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every layout there is, with up to three objects that do not overlap.
    fn every_layout(mut visit: impl FnMut(Layout)) {
        for first in 0..=CHUNKS {
            for last in 0..=CHUNKS - first {
                let empty = Layout::default();
                let ends = empty.with(First, 0, first).with(Last, 0, last);
                visit(ends);
                for middle in 1..=CHUNKS - first - last {
                    for start in first..=CHUNKS - last - middle {
                        visit(ends.with(Middle, start, middle));
                    }
                }
            }
        }
    }

    /// Which chunks are in use, as bits; panics where two objects share one.
    fn bits(layout: Layout) -> u64 {
        Position::ALL.iter().fold(0, |bits, at| {
            let object = match layout.used(*at) {
                0 => 0,
                CHUNKS => u64::MAX,
                used => ((1 << used) - 1) << layout.start(*at),
            };
            assert_eq!(bits & object, 0, "{layout:?}");
            bits | object
        })
    }

    #[test]
    fn room_and_fit_agree_for_every_layout() {
        let mut layouts = 0;
        every_layout(|layout| {
            layouts += 1;
            let (used, room) = (bits(layout), layout.room());
            assert_eq!(layout.fit(room + 1), None, "{layout:?}");
            for chunks in [1, room / 2, room] {
                if !(1..=room).contains(&chunks) {
                    continue;
                }
                let (at, start) = layout.fit(chunks).unwrap();
                assert_eq!(layout.used(at), 0, "{layout:?}");
                let with = layout.with(at, start, chunks);
                assert_eq!(bits(with).count_ones(), used.count_ones() + chunks as u32);
                assert_eq!(with.start(at), start);
                assert_eq!(with.without(at), layout);
            }
        });
        assert!(layouts > 500_000, "{layouts}");
    }

    #[test]
    fn joining_moves_the_middle_without_overlap_and_never_costs_room() {
        let mut joins = 0;
        every_layout(|layout| {
            let Some((at, start)) = layout.joined() else { return };
            joins += 1;
            let chunks = layout.used(Middle);
            let target = layout.without(Middle).with(at, start, chunks);
            assert!(!target.is_split(), "{layout:?}");
            assert!(start.abs_diff(layout.start(Middle)) >= chunks, "{layout:?} overlaps");
            assert_eq!(bits(target).count_ones(), bits(layout).count_ones());
            assert!(target.room() > layout.room(), "{layout:?}");
            assert_eq!(target.room(), CHUNKS - bits(target).count_ones() as usize);
        });
        assert!(joins > 10_000, "{joins}");
    }
}
