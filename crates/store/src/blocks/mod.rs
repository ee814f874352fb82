//! Tiers that compress 16 to 64 KiB at a time and give single pages back.
//!
//! To whoever uses the tier nothing changes: a page goes in under a handle, and comes out of it.
//! Inside, pages gather in a block as they are (`table.rs`). The thread that fills it compresses
//! it, without any lock, and stores the frame in the pool in pieces of at most a page; meanwhile
//! pages are read where they are. A page of a sealed block is read by decoding the block
//! (`reader.rs`), which the reader keeps: the page after it costs a copy.
//!
//! What a page of a block costs is paid by all of it. So a page that alone would not come below the
//! cut-off is refused at the door, as any tier would; a block that does not come below it all the
//! same is stored as it is, which is counted, and whose pages are read without decoding. A block
//! most of whose pages are gone is repacked: its last ones join the block that is being filled,
//! when the tier is compacted, which faults do not wait for.
//!
//! Locks: one for the table, held for bookkeeping and the copy of a page, never across a codec. It
//! is taken before the pool's and never within it. The pieces of a frame are read without it, and
//! looked up again afterwards. The list of sealers has one of its own, for a push or a pop.

mod reader;
mod table;

#[cfg(test)]
mod fuzz;
#[cfg(test)]
mod tests;

pub use reader::Reader;

use crate::codec::{block, Encoder};
use crate::page::{checksum, entropy_bytes};
use crate::pool::Handle;
use crate::tier::{LoadError, Refusal, Tier};
use crate::{Page, PAGE_SIZE};
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use table::{BlockId, Found, Frame, Pieces, Put, Table};

/// Most pages of a block.
pub const PAGES_MAX: usize = block::BLOCK_PAGES_MAX;

/// How often a page may be repacked over the reading of it before it is read under the lock.
const MOVED_MAX: usize = 8;
/// Pages refused after a block could not be stored, before that is tried again: compressing it
/// anew for each page that comes would cost more than the page can save.
const REST_PAGES: u32 = 64;
/// Full blocks that a page may have to wait for. There is one for each thread that stores.
const FULL_MAX: usize = 16;
/// A page surely comes below the cut-off if coding its bytes by their frequency does, and so much
/// for the code and its table: a 32nd and 128 bytes.
const CODE_SHARE: usize = 32;
const CODE_BYTES: usize = 128;

/// Numbers of frames. No two frames of the process have the same, whatever their tiers.
static FRAMES: AtomicU64 = AtomicU64::new(1);

/// What a tier of blocks has. All zero for other tiers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct BlockStats {
    /// Blocks in the pool.
    pub sealed: u64,
    /// Of those, blocks stored as they are, because they did not compress.
    pub raw: u64,
    /// Pages in blocks that are being filled.
    pub filling_pages: u64,
    /// Pages moved out of blocks that were mostly empty, since the start.
    pub repacked_pages: u64,
}

/// What compressing a block takes. Each thread that does takes one for the time.
struct Sealer {
    encoder: block::Encoder,
    out: Box<[u8]>,
    /// Made when the first block is repacked: many a program never needs one.
    reader: Option<Reader>,
}

/// The blocks of one tier.
pub(crate) struct Blocks {
    table: Mutex<Table>,
    #[allow(clippy::vec_box)] // they go from hand to hand
    sealers: Mutex<Vec<Box<Sealer>>>,
    level: i32,
    pages: usize,
    cutoff_bytes: usize,
    /// Pages still to be refused, and for what reason (in the low byte).
    rest: AtomicU32,
    repacked_pages: AtomicU64,
}

/// A full block that is this caller's to seal.
type Full = (BlockId, Arc<[u8]>);

impl Blocks {
    /// No blocks yet, of so many pages each. Pages longer than `cutoff_bytes` are refused.
    pub(crate) fn new(level: i32, pages: usize, cutoff_bytes: usize) -> Blocks {
        let pages = pages.clamp(2, PAGES_MAX);
        Blocks {
            table: Mutex::new(Table::new(pages)),
            sealers: Mutex::new(Vec::new()),
            level,
            pages,
            cutoff_bytes,
            rest: AtomicU32::new(0),
            repacked_pages: AtomicU64::new(0),
        }
    }

    /// Stores a page. Seals its block if that is full now. `encoder` is of single pages: it is
    /// asked about pages of which the frequency of their bytes does not say enough.
    pub(crate) fn store(
        &self,
        tier: &Tier,
        encoder: &mut Encoder,
        page: &Page,
        scratch: &mut Page,
    ) -> Result<Handle, Refusal> {
        let sure_bytes = entropy_bytes(page);
        let is_sure = sure_bytes + sure_bytes / CODE_SHARE + CODE_BYTES <= self.cutoff_bytes;
        if !is_sure && encoder.encode(page, &mut scratch[..self.cutoff_bytes]).is_none() {
            return Err(Refusal::Incompressible);
        }
        let check = checksum(page);
        for _ in 0..FULL_MAX {
            let put = self.put(|table| Some(table.put_new(page, check)));
            let Some(put) = put else { return Err(Refusal::PoolFull) };
            match put {
                (Put::Done, Some(handle)) => return Ok(handle),
                (Put::Full(block, pages), Some(handle)) => {
                    // If it cannot be stored it stays where it is; the page is safe there.
                    let _ = self.seal(tier, (block, pages));
                    return Ok(handle);
                }
                (Put::First(block, pages), _) => {
                    if let Some(why) = self.rests() {
                        self.lock().not_sealed(block);
                        return Err(why);
                    }
                    self.seal(tier, (block, pages))?;
                }
                _ => return Err(Refusal::PoolFull),
            }
        }
        Err(Refusal::PoolFull)
    }

    /// Loads a page and compares its checksum. Allocates nothing.
    pub(crate) fn load(
        &self,
        tier: &Tier,
        reader: &mut Reader,
        handle: Handle,
        page: &mut Page,
    ) -> Result<(), LoadError> {
        let verdict = |page: &Page, check| match checksum(page) == check {
            true => Ok(()),
            false => Err(LoadError::WrongChecksum),
        };
        for tries in 0..=MOVED_MAX {
            let table = self.lock();
            let (found, check) = table.find(handle, page).ok_or(LoadError::NoSuchObject)?;
            // In the end nobody may move it any more.
            let held = (tries == MOVED_MAX).then_some(table);
            let Found::In(frame, index) = found else { return verdict(page, check) };
            if reader.give(frame.number, index, page) {
                if checksum(page) == check {
                    return Ok(());
                }
                // Perhaps only what was kept is bad.
                reader.forget();
            }
            let read = reader.fetch(tier, &frame, index);
            let is_there = match held {
                Some(table) => table.is_there(handle, frame.number, index),
                None => self.lock().is_there(handle, frame.number, index),
            };
            if !is_there {
                reader.forget();
                continue;
            }
            for len in read?.lens() {
                tier.medium().wait(len);
            }
            reader.decode(&frame, index, page)?;
            return verdict(page, check);
        }
        Err(LoadError::NoSuchObject)
    }

    /// Gives a page up, and its block if it was the last. Constant time, allocates nothing. False
    /// if the handle names nothing.
    pub(crate) fn free(&self, tier: &Tier, handle: Handle) -> bool {
        let removed = self.lock().remove(handle);
        let Some(pieces) = removed else { return false };
        free_pieces(tier, pieces);
        true
    }

    /// Moves at most `moves_max` pages out of blocks that are mostly empty. Returns how many it
    /// moved; less than asked for means that nothing is left to gain, or that there is no room.
    pub(crate) fn repack(&self, tier: &Tier, moves_max: usize) -> usize {
        let mut moves = 0;
        while moves < moves_max {
            let thin = self.lock().take_thin();
            let Some((block, frame)) = thin else { break };
            let mut outcome = Emptied { moves: 0, ended: Ended::NoRoom };
            if let Some(mut sealer) = self.take_sealer() {
                if let Some(mut reader) = sealer.reader.take().or_else(Reader::new) {
                    let left = moves_max - moves;
                    let means = (&mut *sealer, &mut reader);
                    outcome = self.empty(tier, means, (block, frame), left);
                    sealer.reader = Some(reader);
                }
                self.give_sealer(sealer);
            }
            let was_readable = outcome.ended != Ended::Unreadable;
            self.lock().give_thin_back(block, frame.number, was_readable);
            moves += outcome.moves;
            if outcome.ended == Ended::NoRoom {
                break;
            }
        }
        self.repacked_pages.fetch_add(moves as u64, Ordering::Relaxed);
        moves
    }

    /// Counters.
    pub(crate) fn stats(&self) -> BlockStats {
        let table = self.lock();
        BlockStats {
            sealed: table.sealed,
            raw: table.raw,
            filling_pages: table.filling_pages() as u64,
            repacked_pages: self.repacked_pages.load(Ordering::Relaxed),
        }
    }

    /// Live pages, and the memory of tables and of blocks that are not sealed, in bytes.
    pub(crate) fn held(&self) -> (u64, u64) {
        let table = self.lock();
        (table.live() as u64, table.memory_bytes() as u64)
    }

    /// For tests: see [`Table::validate`].
    #[cfg(test)]
    pub(crate) fn validate(&self) {
        self.lock().validate();
    }

    // ---- inside ----------------------------------------------------------------------------

    /// Puts a page into the table by `put`. A block that is begun for it needs a buffer, of zeros:
    /// made before the lock is taken, which a fault may wait for.
    fn put<T>(&self, put: impl Fn(&mut Table) -> Option<(Put, T)>) -> Option<(Put, T)> {
        loop {
            let done = put(&mut self.lock());
            if !matches!(done, Some((Put::NoBuffer, _))) {
                return done;
            }
            let buffer = Arc::from(vec![0; self.pages * PAGE_SIZE]);
            self.lock().give_buffer(buffer);
        }
    }

    /// Compresses a full block and stores it. On error it stays where it is, to be sealed later.
    fn seal(&self, tier: &Tier, full: Full) -> Result<(), Refusal> {
        let Some(mut sealer) = self.take_sealer() else {
            self.lock().not_sealed(full.0);
            return Err(Refusal::PoolFull);
        };
        let sealed = self.seal_with(tier, &mut sealer, full);
        self.give_sealer(sealer);
        sealed
    }

    fn seal_with(
        &self,
        tier: &Tier,
        sealer: &mut Sealer,
        (block, pages): Full,
    ) -> Result<(), Refusal> {
        let encoded = sealer.encoder.encode(&pages, &mut sealer.out);
        let (bytes, is_raw) = match encoded.and_then(|len| sealer.out.get(..len)) {
            Some(frame) => (frame, false),
            None => (&pages[..], true),
        };
        // Relaxed: only that it is another each time matters.
        let number = FRAMES.fetch_add(1, Ordering::Relaxed);
        let mut pieces = Pieces::new();
        for piece in bytes.chunks(PAGE_SIZE) {
            let stored = tier.store_object(piece, number as u32);
            let why = match stored {
                Ok(handle) if pieces.push(handle) => continue,
                Ok(handle) => {
                    tier.free_object(handle);
                    Refusal::PoolFull
                }
                Err(why) => why,
            };
            free_pieces(tier, Some(pieces));
            // What is stored until then waits for this block, and is refused if it waits long.
            self.rest.store(REST_PAGES << 8 | why as u32, Ordering::Relaxed);
            drop(pages);
            self.lock().not_sealed(block);
            return Err(why);
        }
        let frame = Frame { number, len: bytes.len() as u32, is_raw, pieces };
        // Before the table may use the buffer again.
        drop(pages);
        let gone = self.lock().sealed(block, frame);
        free_pieces(tier, gone);
        self.rest.store(0, Ordering::Relaxed);
        Ok(())
    }

    /// Moves the pages of a thin block to where blocks are filled.
    fn empty(
        &self,
        tier: &Tier,
        (sealer, reader): (&mut Sealer, &mut Reader),
        (block, frame): (BlockId, Frame),
        moves_max: usize,
    ) -> Emptied {
        let mut page = [0; PAGE_SIZE];
        let mut moves = 0;
        for index in 0..self.pages {
            let is_live = |at: usize| self.lock().live_of(block, frame.number) >> at & 1 == 1;
            while is_live(index) {
                if moves == moves_max {
                    return Emptied { moves, ended: Ended::Stopped };
                }
                if !reader.give(frame.number, index, &mut page) {
                    let fetched = reader.fetch(tier, &frame, index);
                    // Freed while it was read: what was read has no meaning.
                    if !is_live(index) {
                        reader.forget();
                        break;
                    }
                    let decoded = fetched.and_then(|_| reader.decode(&frame, index, &mut page));
                    if decoded.is_err() {
                        return Emptied { moves, ended: Ended::Unreadable };
                    }
                }
                let check = checksum(&page);
                let from = ((block, index), frame.number);
                let put = self.put(|table| table.put_again(from.0, from.1, &page, check));
                let full = match put {
                    Some((Put::Done, pieces)) => {
                        moves += 1;
                        free_pieces(tier, pieces);
                        continue;
                    }
                    Some((Put::Full(block, pages), pieces)) => {
                        moves += 1;
                        free_pieces(tier, pieces);
                        (block, pages)
                    }
                    Some((Put::First(block, pages), _)) => (block, pages),
                    Some((Put::NoRoom | Put::NoBuffer, _)) => {
                        return Emptied { moves, ended: Ended::NoRoom }
                    }
                    None if !is_live(index) => break,
                    // Its checksum differs. Whoever wants the page shall find that out, so it
                    // stays as it is.
                    None => return Emptied { moves, ended: Ended::Unreadable },
                };
                if self.seal_with(tier, sealer, full).is_err() {
                    return Emptied { moves, ended: Ended::NoRoom };
                }
            }
        }
        Emptied { moves, ended: Ended::Empty }
    }

    /// Why a page is not even tried, because a block waits that could not be stored.
    fn rests(&self) -> Option<Refusal> {
        let less = |rest: u32| (rest >> 8 > 0).then(|| rest - (1 << 8));
        let rest = self.rest.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).ok()?;
        Refusal::ALL.get((rest & 0xff) as usize).copied()
    }

    fn take_sealer(&self) -> Option<Box<Sealer>> {
        let idle = self.sealers.lock().unwrap_or_else(PoisonError::into_inner).pop();
        idle.or_else(|| Sealer::new(self.level, self.pages, self.cutoff_bytes).map(Box::new))
    }

    fn give_sealer(&self, sealer: Box<Sealer>) {
        self.sealers.lock().unwrap_or_else(PoisonError::into_inner).push(sealer);
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        // Only tests unwind; the runtime aborts on panic.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What became of a block that was to be emptied.
struct Emptied {
    moves: usize,
    ended: Ended,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Ended {
    /// Its pages are elsewhere.
    Empty,
    /// That was enough for now.
    Stopped,
    /// Blocks cannot be stored now.
    NoRoom,
    /// Its pages cannot be read.
    Unreadable,
}

impl Sealer {
    fn new(level: i32, pages: usize, cutoff_bytes: usize) -> Option<Sealer> {
        Some(Sealer {
            encoder: block::Encoder::new(level, pages, pages)?,
            out: vec![0; pages * cutoff_bytes.min(PAGE_SIZE)].into_boxed_slice(),
            reader: None,
        })
    }
}

/// Tries out what a tier would make of blocks, for an estimate.
pub struct Trial {
    sealer: Sealer,
    reader: Reader,
}

/// What became of a block that was tried out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tried {
    /// Length of its frame in bytes; `None` if it does not compress.
    pub len: Option<usize>,
    /// Time to encode it in nanoseconds.
    pub encode_ns: u64,
    /// Time to decode as far as its middle page in nanoseconds; 0 if it does not compress.
    pub decode_ns: u64,
}

impl Trial {
    /// For blocks of at most so many pages. `None` if the library refuses.
    pub fn new(level: i32, pages: usize, cutoff_bytes: usize) -> Option<Trial> {
        Some(Trial { sealer: Sealer::new(level, pages, cutoff_bytes)?, reader: Reader::new()? })
    }

    /// Encodes a block and decodes it, by this clock of nanoseconds. `None` if what was encoded
    /// cannot be decoded.
    pub fn run(&mut self, pages: &[u8], clock: impl Fn() -> u64) -> Option<Tried> {
        let start = clock();
        let len = self.sealer.encoder.encode(pages, &mut self.sealer.out);
        let encode_ns = clock().saturating_sub(start);
        let Some(frame) = len.and_then(|len| self.sealer.out.get(..len)) else {
            return Some(Tried { len: None, encode_ns, decode_ns: 0 });
        };
        let start = clock();
        self.reader.try_out(frame, pages.len() / PAGE_SIZE)?;
        Some(Tried { len, encode_ns, decode_ns: clock().saturating_sub(start) })
    }
}

fn free_pieces(tier: &Tier, pieces: Option<Pieces>) {
    for piece in pieces.iter().flat_map(Pieces::iter) {
        tier.free_object(piece);
    }
}
