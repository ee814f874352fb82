//! What a handle of a tier of blocks names: a block and a page in it. Bookkeeping, and the pages
//! of blocks that are not sealed yet.
//!
//! A block is *filling* (its pages lie here, as they are), then *sealed* (its pages lie in the pool
//! as the pieces of one frame). Pages leave it one by one; when none is left the block is gone, and
//! while fewer than half are it is *thin*: on the list of those to be repacked. Handles name slots
//! and slots name places, so a page keeps its handle when it is repacked.
//!
//! Every frame has a number that no other frame of the process has or had. Whoever has read a
//! frame's pieces without the lock looks afterwards whether the page is still in that frame.
//!
//! Looking up and freeing take constant time and never allocate.

use super::PAGES_MAX;
use crate::pool::slots::Slots;
use crate::pool::Handle;
use crate::{Page, PAGE_SIZE};
use core::mem::size_of;
use std::sync::Arc;

/// Blocks in a piece of the table, which grows without copying.
const SEGMENT: usize = 64;
/// Ends a list of blocks.
const NONE: u32 = u32::MAX;
/// Low bits of a place: which page of the block.
const INDEX_BITS: u32 = PAGES_MAX.trailing_zeros();
/// Buffers kept for blocks to come.
const SPARES_MAX: usize = 1;

/// A place in the table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct BlockId(u32);

/// The pieces of one frame, in order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Pieces {
    handles: [Handle; PAGES_MAX],
    count: usize,
}

impl Pieces {
    /// None.
    pub(super) fn new() -> Pieces {
        Pieces { handles: [Handle(NONE); PAGES_MAX], count: 0 }
    }

    /// Adds one; false if there is no more room.
    pub(super) fn push(&mut self, handle: Handle) -> bool {
        let Some(place) = self.handles.get_mut(self.count) else { return false };
        *place = handle;
        self.count += 1;
        true
    }

    /// All of them.
    pub(super) fn iter(&self) -> impl Iterator<Item = Handle> + '_ {
        self.handles[..self.count].iter().copied()
    }

    /// One of them.
    pub(super) fn get(&self, n: usize) -> Option<Handle> {
        self.handles[..self.count].get(n).copied()
    }
}

/// How a sealed block lies in the pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Frame {
    /// Its number.
    pub number: u64,
    /// Bytes of all pieces.
    pub len: u32,
    /// The pieces are the pages themselves.
    pub is_raw: bool,
    /// Where the pieces are.
    pub pieces: Pieces,
}

/// Where a page is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Found {
    /// It was copied out.
    Copied,
    /// In a frame, at this place.
    In(Frame, usize),
}

/// What became of a page that was to be put into a block.
pub(super) enum Put {
    /// It is there.
    Done,
    /// It is there, and the block is full: to be sealed by the caller and nobody else.
    Full(BlockId, Arc<[u8]>),
    /// It is not: this full block has to be sealed first.
    First(BlockId, Arc<[u8]>),
    /// It is not: [`Table::give_buffer`] is due first, which whoever has the lock does not make.
    NoBuffer,
    /// It is not: there are too many blocks.
    NoRoom,
}

/// A block.
#[derive(Clone, Copy)]
struct Head {
    /// Number of the frame; 0 unless sealed.
    frame: u64,
    len: u32,
    /// Which pages are live, bit by bit.
    live: u16,
    is_raw: bool,
    state: State,
    /// Neighbours in the list of thin blocks; `next` also chains free heads.
    next: u32,
    previous: u32,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Free,
    Filling,
    Sealed,
    /// Sealed, and in the list of those to be repacked.
    Thin,
    /// Sealed, and being repacked by somebody.
    Taken,
    /// Sealed, and not to be repacked: it could not be read.
    Unreadable,
}

const FREE: Head = Head {
    frame: 0,
    len: 0,
    live: 0,
    is_raw: false,
    state: State::Free,
    next: NONE,
    previous: NONE,
};

struct Segment {
    heads: [Head; SEGMENT],
    /// For each block the handles of its pages, then those of its pieces.
    names: Box<[u32]>,
}

/// A block that is not sealed.
struct Filling {
    block: BlockId,
    /// Its pages. Written here only while nobody else has the buffer, which is until it is full.
    pages: Arc<[u8]>,
    /// Somebody is sealing it.
    is_sealing: bool,
}

/// All blocks and handles of a tier.
pub(super) struct Table {
    slots: Slots,
    #[allow(clippy::vec_box)] // growing never copies more than pointers
    segments: Vec<Box<Segment>>,
    pages: usize,
    first_free: u32,
    first_thin: u32,
    filling: Vec<Filling>,
    spares: Vec<Arc<[u8]>>,
    /// Blocks that are sealed, and of them those whose pages did not compress.
    pub sealed: u64,
    pub raw: u64,
}

impl Table {
    /// An empty table for blocks of so many pages.
    pub(super) fn new(pages: usize) -> Table {
        Table {
            slots: Slots::new(),
            segments: Vec::new(),
            pages: pages.clamp(1, PAGES_MAX),
            first_free: NONE,
            first_thin: NONE,
            filling: Vec::new(),
            spares: Vec::with_capacity(SPARES_MAX),
            sealed: 0,
            raw: 0,
        }
    }

    /// Takes a buffer of a block's length for the next one that is begun.
    pub(super) fn give_buffer(&mut self, buffer: Arc<[u8]>) {
        self.spares.push(buffer);
    }

    /// Live pages.
    pub(super) fn live(&self) -> usize {
        self.slots.live()
    }

    /// Live pages that lie here as they are.
    pub(super) fn filling_pages(&self) -> usize {
        let live = |f: &Filling| self.head(f.block).map_or(0, |h| h.live.count_ones() as usize);
        self.filling.iter().map(live).sum()
    }

    /// Memory held, in bytes: tables, and the pages of blocks that are not sealed.
    pub(super) fn memory_bytes(&self) -> usize {
        let segment = size_of::<Segment>() + SEGMENT * 2 * self.pages * size_of::<u32>();
        let buffers = (self.filling.len() + self.spares.len()) * self.pages * PAGE_SIZE;
        self.slots.metadata_bytes()
            + self.segments.len() * segment
            + self.segments.capacity() * size_of::<usize>()
            + buffers
    }

    /// Puts a new page into a block that has room.
    pub(super) fn put_new(&mut self, page: &Page, check: u32) -> (Put, Option<Handle>) {
        let (block, index) = match self.room() {
            Ok(place) => place,
            Err(put) => return (put, None),
        };
        let Some(handle) = self.slots.insert(place(block, index), check) else {
            return (Put::NoRoom, None);
        };
        (self.fill(block, index, handle, page), Some(handle))
    }

    /// Puts a page that is in `frame` into another block, under the handle that it has.
    /// `None` if the page is not in that frame any more; what the frame held is then to be freed
    /// if it is given.
    pub(super) fn put_again(
        &mut self,
        (from, from_index): (BlockId, usize),
        frame: u64,
        page: &Page,
        check: u32,
    ) -> Option<(Put, Option<Pieces>)> {
        let handle = self.owner(from, from_index).filter(|_| self.is_frame(from, frame))?;
        let (_, check_now) = self.slots.get(handle)?;
        if check_now != check {
            return None;
        }
        let (block, index) = match self.room() {
            Ok(place) => place,
            Err(put) => return Some((put, None)),
        };
        self.slots.set_place(handle, place(block, index));
        let put = self.fill(block, index, handle, page);
        Some((put, self.drop_page(from, from_index)))
    }

    /// Copies a page out if it lies here; else says where it does.
    pub(super) fn find(&self, handle: Handle, page: &mut Page) -> Option<(Found, u32)> {
        let (block, index, check) = self.place(handle)?;
        let head = self.head(block)?;
        match head.state {
            State::Free => None,
            State::Filling => {
                let filling = self.filling.iter().find(|f| f.block == block)?;
                page.copy_from_slice(filling.pages.get(index * PAGE_SIZE..)?.get(..PAGE_SIZE)?);
                Some((Found::Copied, check))
            }
            _ => Some((Found::In(self.frame(block)?, index), check)),
        }
    }

    /// Whether a page is still where [`Table::find`] found it.
    pub(super) fn is_there(&self, handle: Handle, frame: u64, index: usize) -> bool {
        self.place(handle).is_some_and(|(b, i, _)| i == index && self.is_frame(b, frame))
    }

    /// Ends a page. `None` for a handle that names nothing; else what is to be freed.
    pub(super) fn remove(&mut self, handle: Handle) -> Option<Option<Pieces>> {
        let (block, index, _) = self.place(handle)?;
        self.slots.remove(handle);
        Some(self.drop_page(block, index))
    }

    /// A full block lies in the pool as this frame. Returns what is to be freed: all of it if no
    /// page is left.
    pub(super) fn sealed(&mut self, block: BlockId, frame: Frame) -> Option<Pieces> {
        let n = self.filling.iter().position(|f| f.block == block)?;
        let filling = self.filling.swap_remove(n);
        if self.spares.len() < SPARES_MAX {
            self.spares.push(filling.pages);
        }
        let pages = self.pages;
        let names = self.names_mut(block)?;
        for (name, piece) in names[pages..].iter_mut().zip(frame.pieces.handles) {
            *name = piece.0;
        }
        let head = self.head_mut(block)?;
        (head.frame, head.len, head.is_raw) = (frame.number, frame.len, frame.is_raw);
        head.state = State::Sealed;
        self.sealed += 1;
        self.raw += u64::from(frame.is_raw);
        self.thinned(block)
    }

    /// A full block could not be sealed. It stays here.
    pub(super) fn not_sealed(&mut self, block: BlockId) {
        if let Some(filling) = self.filling.iter_mut().find(|f| f.block == block) {
            filling.is_sealing = false;
        }
    }

    /// Takes a block off the list of those to be repacked; the caller repacks it.
    pub(super) fn take_thin(&mut self) -> Option<(BlockId, Frame)> {
        let block = BlockId(self.first_thin);
        let frame = self.frame(block)?;
        self.unlink(block);
        self.head_mut(block)?.state = State::Taken;
        Some((block, frame))
    }

    /// Ends [`Table::take_thin`] for a block that still has pages: they could not be put elsewhere
    /// now, or could not be read.
    pub(super) fn give_thin_back(&mut self, block: BlockId, frame: u64, was_readable: bool) {
        if !self.is_frame(block, frame) {
            return;
        }
        if was_readable {
            self.link(block);
        } else if let Some(head) = self.head_mut(block) {
            head.state = State::Unreadable;
        }
    }

    /// Live pages of a block, bit by bit; none if it does not hold this frame.
    pub(super) fn live_of(&self, block: BlockId, frame: u64) -> u16 {
        self.head(block).filter(|h| h.frame == frame).map_or(0, |h| h.live)
    }

    // ---- inside ----------------------------------------------------------------------------

    /// A free place in a block that is not being sealed.
    fn room(&mut self) -> Result<(BlockId, usize), Put> {
        for n in 0..self.filling.len() {
            if self.filling[n].is_sealing {
                continue;
            }
            let block = self.filling[n].block;
            let live = self.head(block).map_or(0, |h| h.live);
            let index = live.trailing_ones() as usize;
            if index < self.pages {
                return Ok((block, index));
            }
            let filling = &mut self.filling[n];
            filling.is_sealing = true;
            return Err(Put::First(block, filling.pages.clone()));
        }
        // (Somebody may still be about to let go of a spare one.)
        let is_free = |spare: &mut Arc<[u8]>| Arc::get_mut(spare).is_some();
        let spare = self.spares.pop().and_then(|mut s| is_free(&mut s).then_some(s));
        let Some(pages) = spare else { return Err(Put::NoBuffer) };
        let block = self.new_block().ok_or(Put::NoRoom)?;
        self.filling.push(Filling { block, pages, is_sealing: false });
        Ok((block, 0))
    }

    /// Writes a page to a free place of a filling block.
    fn fill(&mut self, block: BlockId, index: usize, handle: Handle, page: &Page) -> Put {
        let full = u16::MAX >> (PAGES_MAX - self.pages);
        if let Some(name) = self.names_mut(block).and_then(|names| names.get_mut(index)) {
            *name = handle.0;
        }
        let Some(head) = self.head_mut(block) else { return Put::NoRoom };
        head.live |= 1 << index;
        let is_full = head.live == full;
        let Some(filling) = self.filling.iter_mut().find(|f| f.block == block) else {
            return Put::NoRoom;
        };
        if Arc::get_mut(&mut filling.pages).is_none() {
            // A sealing that failed may not have let go of it yet.
            filling.pages = Arc::from(&filling.pages[..]);
        }
        if let Some(pages) = Arc::get_mut(&mut filling.pages) {
            pages[index * PAGE_SIZE..][..PAGE_SIZE].copy_from_slice(page);
        }
        if !is_full {
            return Put::Done;
        }
        filling.is_sealing = true;
        Put::Full(block, filling.pages.clone())
    }

    /// Takes a page out of its block; its slot is somebody else's business.
    fn drop_page(&mut self, block: BlockId, index: usize) -> Option<Pieces> {
        self.head_mut(block)?.live &= !(1 << index);
        self.thinned(block)
    }

    /// A block has lost pages, or was sealed: gives it up if it has none left, or lists it if it
    /// has few. Returns what is to be freed.
    fn thinned(&mut self, block: BlockId) -> Option<Pieces> {
        let head = *self.head(block)?;
        match head.state {
            State::Free | State::Filling => return None,
            _ if head.live == 0 => {}
            State::Sealed if (head.live.count_ones() as usize) * 2 < self.pages => {
                self.link(block);
                return None;
            }
            _ => return None,
        }
        let pieces = self.frame(block).map(|f| f.pieces);
        self.unlink(block);
        self.sealed -= 1;
        self.raw -= u64::from(head.is_raw);
        let next = self.first_free;
        *self.head_mut(block)? = Head { next, ..FREE };
        self.first_free = block.0;
        pieces
    }

    fn new_block(&mut self) -> Option<BlockId> {
        if self.first_free == NONE {
            let base = u32::try_from(self.segments.len() * SEGMENT).ok()?;
            // A place has room for so many.
            if base >= 1 << 31 {
                return None;
            }
            let mut heads = [FREE; SEGMENT];
            for (n, head) in heads.iter_mut().enumerate() {
                head.next = if n + 1 == SEGMENT { NONE } else { base + n as u32 + 1 };
            }
            let names = vec![NONE; SEGMENT * 2 * self.pages].into_boxed_slice();
            self.segments.push(Box::new(Segment { heads, names }));
            self.first_free = base;
        }
        let block = BlockId(self.first_free);
        let head = self.head_mut(block)?;
        let next = head.next;
        *head = Head { state: State::Filling, ..FREE };
        self.first_free = next;
        Some(block)
    }

    fn link(&mut self, block: BlockId) {
        let next = self.first_thin;
        let Some(head) = self.head_mut(block) else { return };
        (head.state, head.next, head.previous) = (State::Thin, next, NONE);
        if let Some(after) = self.head_mut(BlockId(next)) {
            after.previous = block.0;
        }
        self.first_thin = block.0;
    }

    /// Takes a block off the list if it is on it.
    fn unlink(&mut self, block: BlockId) {
        let Some(head) = self.head_mut(block) else { return };
        if head.state != State::Thin {
            return;
        }
        let (previous, next) = (head.previous, head.next);
        (head.state, head.next, head.previous) = (State::Sealed, NONE, NONE);
        match self.head_mut(BlockId(previous)) {
            Some(before) => before.next = next,
            None => self.first_thin = next,
        }
        if let Some(after) = self.head_mut(BlockId(next)) {
            after.previous = previous;
        }
    }

    fn place(&self, handle: Handle) -> Option<(BlockId, usize, u32)> {
        let (place, check) = self.slots.get(handle)?;
        let index = (place & (PAGES_MAX as u64 - 1)) as usize;
        Some((BlockId((place >> INDEX_BITS) as u32), index, check))
    }

    /// Whose page is at a place of a block; `None` if it is nobody's.
    fn owner(&self, block: BlockId, index: usize) -> Option<Handle> {
        let is_live = self.head(block)?.live >> index & 1 == 1;
        is_live.then(|| self.names(block).and_then(|n| n.get(index)).map(|n| Handle(*n)))?
    }

    fn is_frame(&self, block: BlockId, frame: u64) -> bool {
        frame != 0 && self.head(block).is_some_and(|h| h.frame == frame)
    }

    fn frame(&self, block: BlockId) -> Option<Frame> {
        let head = self.head(block).filter(|h| h.frame != 0)?;
        let mut pieces = Pieces::new();
        let count = (head.len as usize).div_ceil(PAGE_SIZE).min(self.pages);
        for name in self.names(block)?.get(self.pages..self.pages + count)? {
            pieces.push(Handle(*name));
        }
        Some(Frame { number: head.frame, len: head.len, is_raw: head.is_raw, pieces })
    }

    fn head(&self, block: BlockId) -> Option<&Head> {
        self.segments.get(block.0 as usize / SEGMENT)?.heads.get(block.0 as usize % SEGMENT)
    }

    fn head_mut(&mut self, block: BlockId) -> Option<&mut Head> {
        let segment = self.segments.get_mut(block.0 as usize / SEGMENT)?;
        segment.heads.get_mut(block.0 as usize % SEGMENT)
    }

    fn names(&self, block: BlockId) -> Option<&[u32]> {
        let segment = self.segments.get(block.0 as usize / SEGMENT)?;
        segment.names.chunks(2 * self.pages).nth(block.0 as usize % SEGMENT)
    }

    fn names_mut(&mut self, block: BlockId) -> Option<&mut [u32]> {
        let pages = self.pages;
        let segment = self.segments.get_mut(block.0 as usize / SEGMENT)?;
        segment.names.chunks_mut(2 * pages).nth(block.0 as usize % SEGMENT)
    }

    /// Compares everything that is counted with what is there.
    ///
    /// # Panics
    /// If something does not agree. For tests.
    #[cfg(test)]
    pub(super) fn validate(&self) {
        let (mut live, mut thin, mut sealed, mut raw) = (0, 0, 0, 0);
        for n in 0..(self.segments.len() * SEGMENT) as u32 {
            let block = BlockId(n);
            let Some(head) = self.head(block) else { continue };
            assert_eq!(head.frame != 0, !matches!(head.state, State::Free | State::Filling));
            assert!(head.live.count_ones() as usize <= self.pages);
            let is_filling = self.filling.iter().any(|f| f.block == block);
            assert_eq!(is_filling, head.state == State::Filling, "block {n}");
            for index in 0..self.pages {
                if let Some(handle) = self.owner(block, index) {
                    let named = self.place(handle).map(|(b, i, _)| (b, i));
                    assert_eq!(named, Some((block, index)), "{handle:?} is named elsewhere");
                    live += 1;
                }
            }
            if head.frame != 0 {
                assert!(head.live != 0, "block {n} is empty and was not given up");
                let is_few = (head.live.count_ones() as usize) * 2 < self.pages;
                assert!(head.state != State::Thin || is_few);
                sealed += 1;
                raw += u64::from(head.is_raw);
                thin += usize::from(head.state == State::Thin);
            }
        }
        assert_eq!((live, sealed, raw), (self.slots.live(), self.sealed, self.raw));
        let mut at = BlockId(self.first_thin);
        while let Some(head) = self.head(at) {
            assert!(head.state == State::Thin && thin > 0, "the list of thin blocks is torn");
            thin -= 1;
            at = BlockId(head.next);
        }
        assert_eq!(thin, 0, "a thin block is not on the list");
    }
}

fn place(block: BlockId, index: usize) -> u64 {
    u64::from(block.0) << INDEX_BITS | index as u64
}
