//! A tier: codec, pool and medium composed, shared by the pager and the movers.
//!
//! One mutex guards the pool and, with it, which bytes of the medium mean what. It is held for
//! bookkeeping and one copy of at most 4 KiB, never across a codec call, an emulated delay, a
//! release of pages or the work of a device. It is a leaf: nothing is called under it that takes
//! another lock but the medium's own.
//!
//! A medium on a device is read without the lock. The object may be moved by compaction meanwhile,
//! which is noticed afterwards ([`Tier::load`]), or freed, which is the caller's to notice as with
//! any other load: the page's word has changed. Compaction, which moves bytes under the lock,
//! fetches what it is about to move beforehand.
//!
//! Two layers: [`Tier::store`] and [`Tier::load`] move encoded bytes (which is also how a page
//! goes from tier to tier when both have the same codec), [`Tier::store_page`] and
//! [`Tier::load_page`] add the codec and compare the checksum on the way back.
//!
//! A tier of blocks ([`crate::blocks`]) has the second layer only: its pages have no encoding of
//! their own, so one that moves on is decoded and encoded.
//!
//! A refusal is data: each has a reason and a counter, and the page simply stays where it is.

use crate::blocks::{BlockStats, Blocks};
use crate::codec::{DecoderSet, Encoder};
use crate::medium::{capacity_pages, Emulated, Medium, MediumError};
use crate::page::checksum;
use crate::pool::{self, Extent, Handle, ObjectPool, PoolStats};
use crate::{Page, PAGE_SIZE};
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};
use terrace_core::tier::{Codec, MediumKind, TierSpec};

/// Objects moved in one hold of the lock while compacting: the longest a fault may have to wait
/// for compaction is so many copies, about 3 us.
const COMPACT_MOVES_PER_HOLD: usize = 4;

/// How often a fault looks for the pool's lock before it takes whoever has it for one that does not
/// run: some 5 to 10 us, more than it is held.
const LOCK_SPINS: usize = 200;

/// How often compaction yields to faults before it takes the lock all the same; a system call each,
/// so a millisecond at most, and compaction cannot starve.
const GIVE_WAY_YIELDS_MAX: usize = 1000;

/// How often an object may be moved over the reading of it before it is read under the lock. It
/// takes a compaction that meets the same object each time.
const MOVED_MAX: usize = 8;

/// Counters of moves by where they began.
const MOVED_FROM: usize = 256;

/// Why a page was not stored. Expected; the page stays where it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Refusal {
    /// The encoded page is longer than the tier's cut-off.
    TooBig = 0,
    /// The codec could not get the page under the cut-off.
    Incompressible = 1,
    /// The pool has no room.
    PoolFull = 2,
    /// The medium did not take the bytes.
    MediumFailed = 3,
}

impl Refusal {
    /// All reasons, in the order of their counters.
    pub const ALL: [Refusal; 4] =
        [Refusal::TooBig, Refusal::Incompressible, Refusal::PoolFull, Refusal::MediumFailed];

    /// Name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Refusal::TooBig => "too_big",
            Refusal::Incompressible => "incompressible",
            Refusal::PoolFull => "pool_full",
            Refusal::MediumFailed => "medium_failed",
        }
    }
}

/// Why a stored page could not be brought back. Each means that a promise was broken, by us or by
/// the medium; what to do about it is the runtime's decision.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LoadError {
    /// The handle names nothing.
    NoSuchObject,
    /// The medium did not give the bytes.
    MediumFailed,
    /// The bytes are not the encoding of a page.
    Corrupt,
    /// The page is not the one that was stored.
    WrongChecksum,
}

impl core::fmt::Display for LoadError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            LoadError::NoSuchObject => "the handle names nothing",
            LoadError::MediumFailed => "the medium did not give the bytes",
            LoadError::Corrupt => "the stored bytes are not the encoding of a page",
            LoadError::WrongChecksum => "the page is not the one that was stored",
        })
    }
}

impl std::error::Error for LoadError {}

/// Counters of a tier. All but `pool` only grow.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TierStats {
    /// What the pool holds now.
    pub pool: PoolStats,
    /// Objects stored.
    pub stores: u64,
    /// Objects read.
    pub loads: u64,
    /// Objects freed.
    pub frees: u64,
    /// Loads that failed, whatever the reason.
    pub load_errors: u64,
    /// Pages not stored, by [`Refusal`].
    pub refusals: [u64; Refusal::ALL.len()],
    /// Objects moved by compaction.
    pub compact_moves: u64,
    /// Bytes given back to the medium.
    pub released_bytes: u64,
    /// What a tier of blocks has besides.
    pub blocks: BlockStats,
}

#[derive(Default)]
struct Counters {
    stores: AtomicU64,
    loads: AtomicU64,
    frees: AtomicU64,
    load_errors: AtomicU64,
    refusals: [AtomicU64; Refusal::ALL.len()],
    compact_moves: AtomicU64,
    released_bytes: AtomicU64,
}

fn add(counter: &AtomicU64, n: u64) {
    // Statistics only; nothing is ordered by them.
    counter.fetch_add(n, Ordering::Relaxed);
}

/// Helps a thread that holds a pool's lock and does not run, for one that needs the lock to serve a
/// fault.
pub trait Helper: Sync {
    /// Calls `wait`, once, in which the calling thread sleeps until it has the lock.
    fn help(&self, wait: &mut dyn FnMut());
}

/// A compressed tier.
pub struct Tier {
    codec: Codec,
    cutoff_bytes: usize,
    medium: Box<dyn Medium>,
    pool: Mutex<Box<dyn ObjectPool>>,
    /// Threads that want the lock to serve a fault. Compaction takes the lock many times in a row
    /// and would mostly win it again before a thread that it woke has run, so it looks here first.
    urgent: AtomicU32,
    helper: OnceLock<&'static dyn Helper>,
    /// Objects moved by compaction, by where each move began, hashed; changed under the lock.
    moved_from: [AtomicU32; MOVED_FROM],
    counters: Counters,
    /// Of a tier that compresses several pages at a time.
    blocks: Option<Blocks>,
}

impl Tier {
    /// Composes what the description says over the arena that `medium` is. An `emulated` medium
    /// is made slow here. Encoded pages longer than `cutoff_bytes` are refused; none is if that is
    /// a whole page ([`Tier::takes_all`]).
    pub fn new(spec: &TierSpec, medium: Box<dyn Medium>, cutoff_bytes: usize) -> Tier {
        let pool = pool::open(spec.pool, capacity_pages(&*medium));
        let medium: Box<dyn Medium> = match spec.medium.kind {
            MediumKind::Emulated => Box::new(Emulated::from_spec(medium, &spec.medium)),
            _ => medium,
        };
        let cutoff_bytes = cutoff_bytes.min(PAGE_SIZE);
        let blocks = || Blocks::new(spec.level, spec.pages_per_block(), cutoff_bytes);
        Tier {
            codec: spec.codec,
            cutoff_bytes,
            medium,
            pool: Mutex::new(pool),
            urgent: AtomicU32::new(0),
            helper: OnceLock::new(),
            moved_from: [const { AtomicU32::new(0) }; MOVED_FROM],
            counters: Counters::default(),
            blocks: (spec.block_kib > 0).then(blocks),
        }
    }

    /// Has the holders of its lock helped by `helper`; the first one that is named stays.
    pub fn be_helped(&self, helper: &'static dyn Helper) {
        self.helper.get_or_init(|| helper);
    }

    /// Whether each page has an encoding of its own, which [`Tier::load`] gives and [`Tier::store`]
    /// takes. Not so in a tier of blocks.
    pub fn has_encodings(&self) -> bool {
        self.blocks.is_none()
    }

    /// The codec of what is stored here.
    pub fn codec(&self) -> Codec {
        self.codec
    }

    /// Longest encoded page it takes, in bytes.
    pub fn cutoff_bytes(&self) -> usize {
        self.cutoff_bytes
    }

    /// Whether it takes pages that do not shrink, too. They are stored as they are; an encoding is
    /// always shorter than a page, so that what has a page's length is not to be decoded.
    pub fn takes_all(&self) -> bool {
        self.cutoff_bytes == PAGE_SIZE && self.has_encodings()
    }

    /// The medium below.
    pub fn medium(&self) -> &dyn Medium {
        &*self.medium
    }

    /// Why nothing can be stored now, whatever it is: the medium is full, rests after a failure, or
    /// is somebody else's. Not counted.
    pub fn accepts(&self) -> Result<(), Refusal> {
        self.medium.accepts().map_err(refusal_of)
    }

    /// Stores encoded bytes and the checksum of the page they decode to. A tier of blocks finds
    /// them too big.
    pub fn store(&self, bytes: &[u8], check: u32) -> Result<Handle, Refusal> {
        if bytes.len() > self.cutoff_bytes || !self.has_encodings() {
            return Err(self.refuse(Refusal::TooBig));
        }
        match self.store_object(bytes, check) {
            Ok(handle) => {
                add(&self.counters.stores, 1);
                Ok(handle)
            }
            Err(refusal) => Err(self.refuse(refusal)),
        }
    }

    /// Stores bytes in the pool, whatever they are.
    pub(crate) fn store_object(&self, bytes: &[u8], check: u32) -> Result<Handle, Refusal> {
        let stored = self.store_bytes(bytes, check);
        // Also after a failure: it may be the medium's turn to try again.
        self.medium.work_off();
        if stored.is_ok() {
            self.medium.wait(bytes.len());
        }
        stored
    }

    fn store_bytes(&self, bytes: &[u8], check: u32) -> Result<Handle, Refusal> {
        self.accepts()?;
        let mut pool = self.lock();
        let handle = pool.alloc(bytes.len(), check).ok_or(Refusal::PoolFull)?;
        let extent = pool.locate(handle).ok_or(Refusal::PoolFull)?.extent;
        // Under the lock: compaction may not move what is not there yet.
        self.medium.write(extent.offset, bytes).map(|()| handle).map_err(|why| {
            pool.free(handle);
            refusal_of(why)
        })
    }

    /// Copies stored bytes out; returns their length and the checksum given with them. In a tier of
    /// blocks no handle names such bytes.
    pub fn load(&self, handle: Handle, buf: &mut Page) -> Result<(usize, u32), LoadError> {
        let loaded = match self.has_encodings() {
            true => self.load_object(handle, buf),
            false => Err(LoadError::NoSuchObject),
        };
        match loaded {
            Ok((len, _)) => {
                self.medium.wait(len);
                add(&self.counters.loads, 1);
            }
            Err(_) => add(&self.counters.load_errors, 1),
        }
        loaded
    }

    /// Copies what the pool has under a handle to the front of `buf`. Does not let the time pass
    /// that an emulated medium takes.
    pub(crate) fn load_object(
        &self,
        handle: Handle,
        buf: &mut [u8],
    ) -> Result<(usize, u32), LoadError> {
        for tries in 0.. {
            let (object, moves) = {
                let pool = self.lock_urgently();
                let object = pool.locate(handle).ok_or(LoadError::NoSuchObject)?;
                let len = object.extent.len as usize;
                let target = buf.get_mut(..len).ok_or(LoadError::Corrupt)?;
                let from = object.extent.offset;
                let failed = |_| LoadError::MediumFailed;
                if self.medium.try_read(from, target).map_err(failed)? {
                    return Ok((len, object.check));
                }
                if tries == MOVED_MAX {
                    self.medium.read(from, target).map_err(failed)?;
                    return Ok((len, object.check));
                }
                (object, self.moved_from(object.extent).load(Ordering::Relaxed))
            };
            let len = object.extent.len as usize;
            let target = buf.get_mut(..len).ok_or(LoadError::Corrupt)?;
            let read = self.medium.read(object.extent.offset, target);
            let pool = self.lock_urgently();
            // Had it been moved away and back, a move would have begun where it is.
            let moves_now = self.moved_from(object.extent).load(Ordering::Relaxed);
            if moves_now == moves && pool.locate(handle) == Some(object) {
                return read.map(|()| (len, object.check)).map_err(|_| LoadError::MediumFailed);
            }
        }
        Err(LoadError::NoSuchObject)
    }

    /// Gives an object up. Constant time; its pages go back to the medium with [`Tier::trim`].
    /// False if the handle names nothing.
    pub fn free(&self, handle: Handle) -> bool {
        let freed = match &self.blocks {
            Some(blocks) => blocks.free(self, handle),
            None => self.free_object(handle),
        };
        add(&self.counters.frees, u64::from(freed));
        freed
    }

    /// Gives up what the pool has under a handle.
    pub(crate) fn free_object(&self, handle: Handle) -> bool {
        self.lock_urgently().free(handle).is_some()
    }

    /// Encodes and stores a page. `scratch` holds the encoded bytes meanwhile.
    pub fn store_page(
        &self,
        encoder: &mut Encoder,
        page: &Page,
        scratch: &mut Page,
    ) -> Result<Handle, Refusal> {
        self.store_page_sized(encoder, page, scratch).map(|(handle, _)| handle)
    }

    /// As [`Tier::store_page`], and says how many bytes the page became: in a tier of blocks, where
    /// no page has a size of its own, `None`.
    pub fn store_page_sized(
        &self,
        encoder: &mut Encoder,
        page: &Page,
        scratch: &mut Page,
    ) -> Result<(Handle, Option<usize>), Refusal> {
        // Not worth encoding for a medium that rests. Its turn to try again comes all the same.
        if let Err(refusal) = self.accepts() {
            return Err(self.refuse(refusal));
        }
        if let Some(blocks) = &self.blocks {
            let stored = blocks.store(self, encoder, page, scratch);
            add(&self.counters.stores, u64::from(stored.is_ok()));
            return stored.map(|handle| (handle, None)).map_err(|why| self.refuse(why));
        }
        let out = &mut scratch[..self.cutoff_bytes.min(PAGE_SIZE - 1)];
        let bytes = match encoder.encode(page, out) {
            Some(len) => &out[..len],
            None if self.takes_all() => &page[..],
            None => return Err(self.refuse(Refusal::Incompressible)),
        };
        self.store(bytes, checksum(page)).map(|handle| (handle, Some(bytes.len())))
    }

    /// A page from what [`Tier::store_page`] made of it.
    fn decode(
        &self,
        decoders: &mut DecoderSet,
        bytes: &[u8],
        page: &mut Page,
    ) -> Result<(), LoadError> {
        match <&Page>::try_from(bytes) {
            Ok(whole) => *page = *whole,
            Err(_) => decoders.decode(self.codec, bytes, page).map_err(|_| LoadError::Corrupt)?,
        }
        Ok(())
    }

    /// Loads and decodes a page, and makes sure that it is the page that was stored. On error the
    /// content of `page` has no meaning. `scratch` holds the encoded bytes meanwhile.
    pub fn load_page(
        &self,
        decoders: &mut DecoderSet,
        handle: Handle,
        scratch: &mut Page,
        page: &mut Page,
    ) -> Result<(), LoadError> {
        if let Some(blocks) = &self.blocks {
            let reader = decoders.blocks().ok_or(LoadError::Corrupt);
            let loaded = reader.and_then(|reader| blocks.load(self, reader, handle, page));
            let counter = match loaded {
                Ok(()) => &self.counters.loads,
                Err(_) => &self.counters.load_errors,
            };
            add(counter, 1);
            return loaded;
        }
        let (len, check) = self.load(handle, scratch)?;
        let outcome = match scratch.get(..len).map(|b| self.decode(decoders, b, page)) {
            Some(Ok(())) if checksum(page) == check => return Ok(()),
            Some(Ok(())) => LoadError::WrongChecksum,
            _ => LoadError::Corrupt,
        };
        add(&self.counters.load_errors, 1);
        Err(outcome)
    }

    /// Whether what is stored under a handle is exactly this page: it is decoded to `other` and
    /// compared, byte for byte. The length of its encoding if so; `None` if not, if it cannot be
    /// read, and in a tier of blocks.
    pub fn compare_page(
        &self,
        decoders: &mut DecoderSet,
        handle: Handle,
        scratch: &mut Page,
        page: &Page,
        other: &mut Page,
    ) -> Option<usize> {
        let (len, check) = self.load(handle, scratch).ok()?;
        // A page that was written mostly shows here already.
        let is_likely = checksum(page) == check;
        let encoded = scratch.get(..len).filter(|_| is_likely)?;
        self.decode(decoders, encoded, other).ok()?;
        (page == other).then_some(len)
    }

    /// Whether [`Tier::compact`] only copies within memory: no device and no codec takes part.
    pub fn moves_are_copies(&self) -> bool {
        self.blocks.is_none() && !self.medium.waits()
    }

    /// Moves at most `moves_max` objects together, in a tier of blocks first the pages of those
    /// that are mostly empty. Returns the moves made; less than asked for means that there is
    /// nothing left to gain. A fault waits for a few moves at most.
    pub fn compact(&self, moves_max: usize) -> usize {
        let mut buf = [0; PAGE_SIZE];
        let mut moves = 0;
        let mut fetches = 0;
        if self.medium.accepts().is_err() {
            return 0;
        }
        let repacked = self.blocks.as_ref().map_or(0, |blocks| blocks.repack(self, moves_max));
        let moves_max = moves_max - repacked;
        while moves < moves_max {
            let batch = COMPACT_MOVES_PER_HOLD.min(moves_max - moves);
            let mut moved_bytes = 0;
            let mut wanted = None;
            let mut move_bytes = |from: Extent, to: Extent| {
                moved_bytes += 2 * from.len as usize;
                let Some(bytes) = buf.get_mut(..from.len as usize) else { return false };
                match self.medium.try_read(from.offset, bytes) {
                    Ok(true) => {
                        let moved = self.medium.write(to.offset, bytes).is_ok();
                        self.moved_from(from).fetch_add(u32::from(moved), Ordering::Relaxed);
                        moved
                    }
                    Ok(false) => {
                        wanted = Some(from);
                        false
                    }
                    Err(_) => false,
                }
            };
            self.give_way();
            let made = self.lock().compact(batch, &mut move_bytes);
            if made > 0 {
                self.medium.wait(moved_bytes);
                self.medium.work_off();
            }
            moves += made;
            // Its bytes are on a device: fetched without the lock, they move in the next round.
            if let Some(from) = wanted.filter(|_| fetches < moves_max) {
                fetches += 1;
                if self.medium.fetch(from.offset, from.len as usize).is_ok() {
                    continue;
                }
            }
            if made < batch {
                break;
            }
        }
        add(&self.counters.compact_moves, moves as u64);
        repacked + moves
    }

    /// Gives pages that fell empty back to the medium, at least `bytes_max` bytes of them if there
    /// are so many. Returns how many bytes. The lock is not held while the medium works.
    pub fn trim(&self, bytes_max: u64) -> u64 {
        let mut released = 0;
        while released < bytes_max {
            self.give_way();
            let Some(extent) = self.lock().take_idle() else { break };
            self.medium.release(extent.offset, u64::from(extent.len));
            self.lock().give_back(extent);
            released += u64::from(extent.len);
        }
        add(&self.counters.released_bytes, released);
        released
    }

    /// Counts a refusal that the caller decided on, and returns it.
    pub fn refuse(&self, refusal: Refusal) -> Refusal {
        add(&self.counters.refusals[refusal as usize], 1);
        refusal
    }

    /// For tests of blocks.
    #[cfg(test)]
    pub(crate) fn blocks(&self) -> Option<&Blocks> {
        self.blocks.as_ref()
    }

    /// For tests of blocks.
    #[cfg(test)]
    pub(crate) fn blocks_mut(&mut self) -> Option<&mut Blocks> {
        self.blocks.as_mut()
    }

    /// Counters, each consistent in itself but not with the others.
    pub fn stats(&self) -> TierStats {
        let c = &self.counters;
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let mut pool = self.lock().stats();
        let blocks = self.blocks.as_ref().map(|blocks| {
            let stats = blocks.stats();
            let (pages, memory_bytes) = blocks.held();
            // Objects are pages to those above. What is not compressed yet is as long as it is.
            pool.objects = pages;
            pool.object_bytes += stats.filling_pages * PAGE_SIZE as u64;
            pool.metadata_bytes += memory_bytes;
            stats
        });
        TierStats {
            pool,
            stores: get(&c.stores),
            loads: get(&c.loads),
            frees: get(&c.frees),
            load_errors: get(&c.load_errors),
            refusals: core::array::from_fn(|n| get(&c.refusals[n])),
            compact_moves: get(&c.compact_moves),
            released_bytes: get(&c.released_bytes),
            blocks: blocks.unwrap_or_default(),
        }
    }

    fn moved_from(&self, extent: Extent) -> &AtomicU32 {
        // Objects begin at multiples of 16 at least; what shares a counter is read once more.
        &self.moved_from[(extent.offset / 16) as usize % MOVED_FROM]
    }

    fn lock_urgently(&self) -> MutexGuard<'_, Box<dyn ObjectPool>> {
        if let Some(guard) = self.try_lock() {
            return guard;
        }
        // Relaxed: a hint. Who misses it waits for one more batch.
        self.urgent.fetch_add(1, Ordering::Relaxed);
        let soon = (0..LOCK_SPINS).find_map(|_| {
            core::hint::spin_loop();
            self.try_lock()
        });
        let guard = soon.unwrap_or_else(|| self.lock_with_help());
        self.urgent.fetch_sub(1, Ordering::Relaxed);
        guard
    }

    /// Whoever holds it for so long does not run.
    #[cold]
    fn lock_with_help(&self) -> MutexGuard<'_, Box<dyn ObjectPool>> {
        let mut guard = None;
        if let Some(helper) = self.helper.get() {
            helper.help(&mut || guard = Some(self.lock()));
        }
        guard.unwrap_or_else(|| self.lock())
    }

    fn try_lock(&self) -> Option<MutexGuard<'_, Box<dyn ObjectPool>>> {
        match self.pool.try_lock() {
            Ok(guard) => Some(guard),
            // As in `lock`.
            Err(TryLockError::Poisoned(guard)) => Some(guard.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Lets threads pass that serve faults, for a bounded time.
    fn give_way(&self) {
        for _ in 0..GIVE_WAY_YIELDS_MAX {
            if self.urgent.load(Ordering::Relaxed) == 0 {
                break;
            }
            std::thread::yield_now();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Box<dyn ObjectPool>> {
        // Only tests unwind; the runtime aborts on panic, so there is no poison to heed.
        self.pool.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn refusal_of(why: MediumError) -> Refusal {
    match why {
        MediumError::Full => Refusal::PoolFull,
        MediumError::Io | MediumError::OutOfRange => Refusal::MediumFailed,
    }
}

#[cfg(test)]
#[path = "tier_tests.rs"]
mod tests;
