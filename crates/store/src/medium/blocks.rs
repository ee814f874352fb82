//! A medium on a block device: objects packed by a pool, blocks of 4 KiB written and read whole,
//! enciphered.
//!
//! **Writing.** Objects are smaller than a block and come one at a time, so blocks that are being
//! filled stay *open* in memory (`open.rs`): bytes and a bit for each byte that is known. A
//! write is a copy into an open block and nothing else, so that the tier may do it under its lock.
//! When many blocks are dirty, [`Medium::work_off`] - called by movers, without a lock - writes the
//! oldest out, with their neighbours where these are dirty too. A block that was on the device
//! and is only partly known is read and completed first.
//!
//! **Reading.** An object in open blocks is a copy. Else one or two blocks are read and the
//! object's bytes deciphered. No lock is held meanwhile; the write count of each block is compared
//! afterwards, and if a block was written over the reading it is read again.
//!
//! **Order.** One thread writes out at a time (`writing_out`). A block on its way out is complete
//! in memory, so nobody reads it from the device while it changes there. Its count goes up, and it
//! counts as *not on the device*, from before the write until after it succeeded.
//!
//! **Failure.** A write that fails loses nothing: the blocks stay open. The medium then *rests*: it
//! takes no new objects for a while, doubling up to ten seconds, and then tries again. A full
//! device (`ENOSPC`, a quota, a file size limit) is told apart from a broken one. A read that fails
//! is tried again a few times, with pauses, and then is an error, which the runtime ends the
//! program for. One that finds no memory waits a minute for it.
//!
//! **What it costs** in memory: the open blocks (2.3 MiB when all are in use) and a word of 4 bytes
//! for each block of the file that was ever used, in steps of 256 KiB for each 256 MiB.

use super::cipher::BlockCipher;
use super::device::{BlockDevice, Buffer, FileDevice, BLOCK_BYTES};
use super::open::Blocks;
use super::{Medium, MediumError};
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Blocks that may be open at once. zsmalloc keeps up to some 250 runs open, of up to 8 pages each,
/// of which a few dozen sizes are common.
const OPEN_BLOCKS: usize = 512;
/// Blocks written in one go where they are neighbours: 64 KiB.
const RUN_BLOCKS: usize = 16;
const RUN_BYTES: usize = RUN_BLOCKS * BLOCK_BYTES;
/// Readers that have a buffer each; one more would wait for another's read. The pager, 4 loaders, 8
/// movers and the agent are 14.
const READERS_MAX: usize = 16;
/// Pauses between the tries of a read that fails.
const READ_PAUSES_MS: [u64; 4] = [1, 10, 50, 200];
/// Pause between the tries of one that finds no memory, and how many there are: a minute, within
/// which the kernel has reclaimed or killed.
const MEMORY_PAUSE: Duration = Duration::from_millis(1);
const MEMORY_TRIES: usize = 60_000;
/// Rest after a failed write, doubled with each one that follows.
const REST_MS: u64 = 100;
const REST_MS_MAX: u64 = 10_000;
/// How often a block may be written over the reading of it. Each time takes a whole write.
const OVERTAKEN_MAX: usize = 1000;
/// Blocks written and read to learn what a read takes.
const TRIAL_BLOCKS: usize = 16;
/// What a read is assumed to take where it could not be tried, nanoseconds: a fair flash device.
const READ_NS_ASSUMED: u64 = 100_000;

/// A medium in a file without a name. See [`FileMedium::temporary`].
pub type FileMedium = BlockMedium<FileDevice>;

/// A medium on a device.
pub struct BlockMedium<D> {
    device: D,
    cipher: BlockCipher,
    capacity: u64,
    blocks: Mutex<Blocks>,
    /// Held by the one thread that writes out; its buffer.
    writing_out: Mutex<Buffer>,
    /// Two blocks for each of as many readers as there can be at a time.
    readers: [Mutex<Buffer>; READERS_MAX],
    /// What a read of a block took lately, nanoseconds.
    read_ns: AtomicU64,
    since: Instant,
    /// Milliseconds after `since` until which it rests; 0 when it does not.
    rests_until_ms: AtomicU64,
    rest_ms: AtomicU64,
    /// The failure it rests for was a full device.
    is_full: AtomicU64,
}

impl BlockMedium<FileDevice> {
    /// A medium of at most `capacity` bytes in an unlinked file on the filesystem of `directory`.
    pub fn temporary(directory: &Path, capacity: u64) -> io::Result<FileMedium> {
        BlockMedium::open(FileDevice::unlinked_in(directory)?, capacity)
    }
}

impl<D: BlockDevice> BlockMedium<D> {
    /// A medium of at most `capacity` bytes on `device`, with a key of its own. Tries the device
    /// with a few blocks, to learn what a read takes; a full device is no error yet.
    pub fn open(device: D, capacity: u64) -> io::Result<BlockMedium<D>> {
        let medium = BlockMedium::with_open_blocks(device, capacity, OPEN_BLOCKS)?;
        medium.try_out()?;
        Ok(medium)
    }

    /// As [`BlockMedium::open`], without trying the device: a read is taken to last `read_ns`.
    pub fn untried(device: D, capacity: u64, read_ns: u64) -> io::Result<BlockMedium<D>> {
        let medium = BlockMedium::with_open_blocks(device, capacity, OPEN_BLOCKS)?;
        medium.read_ns.store(read_ns, Ordering::Relaxed);
        Ok(medium)
    }

    /// As [`BlockMedium::open`], with so many open blocks and untried.
    fn with_open_blocks(device: D, capacity: u64, open: usize) -> io::Result<BlockMedium<D>> {
        Ok(BlockMedium {
            device,
            cipher: BlockCipher::random()?,
            capacity: capacity / BLOCK_BYTES as u64 * BLOCK_BYTES as u64,
            blocks: Mutex::new(Blocks::new(open)),
            writing_out: Mutex::new(Buffer::new(RUN_BYTES)),
            readers: core::array::from_fn(|_| Mutex::new(Buffer::new(2 * BLOCK_BYTES))),
            read_ns: AtomicU64::new(READ_NS_ASSUMED),
            since: Instant::now(),
            rests_until_ms: AtomicU64::new(0),
            rest_ms: AtomicU64::new(REST_MS),
            is_full: AtomicU64::new(0),
        })
    }

    /// The device below.
    pub fn device(&self) -> &D {
        &self.device
    }

    fn try_out(&self) -> io::Result<()> {
        let bytes = (TRIAL_BLOCKS * BLOCK_BYTES).min(self.capacity as usize);
        let mut buffer = lock(&self.writing_out);
        let part = &mut buffer.bytes()[..bytes];
        // Noise, lest the device be clever about zeros. Its count is 0, which no real write has.
        self.cipher.apply(u64::MAX, 0, 0, part);
        match self.device.write(0, part) {
            Ok(()) => {}
            Err(e) if is_full(&e) => return Ok(()),
            Err(e) => return Err(e),
        }
        let mut times: Vec<u64> = Vec::new();
        for n in 0..bytes / BLOCK_BYTES {
            // Not in order, so that reading ahead does not answer.
            let at = (n * 7 % (bytes / BLOCK_BYTES)) * BLOCK_BYTES;
            let start = Instant::now();
            self.device.read(at as u64, &mut part[..BLOCK_BYTES])?;
            times.push(start.elapsed().as_nanos() as u64);
        }
        self.device.punch(0, bytes as u64);
        times.sort_unstable();
        if let Some(median) = times.get(times.len() / 2) {
            self.read_ns.store(*median, Ordering::Relaxed);
        }
        Ok(())
    }

    fn check(&self, offset: u64, len: usize) -> Result<(), MediumError> {
        match offset.checked_add(len as u64) {
            Some(end) if end <= self.capacity => Ok(()),
            _ => Err(MediumError::OutOfRange),
        }
    }

    fn reader(&self) -> MutexGuard<'_, Buffer> {
        let free = self.readers.iter().find_map(|buffer| buffer.try_lock().ok());
        free.unwrap_or_else(|| lock(&self.readers[0]))
    }

    /// Reads blocks from the device, again if that fails.
    fn read_device(&self, offset: u64, buf: &mut [u8]) -> Result<(), MediumError> {
        let start = Instant::now();
        let mut pauses = READ_PAUSES_MS.iter();
        let mut waits = 0;
        while let Err(e) = self.device.read(offset, buf) {
            // Not the device's fault: the kernel reclaims or kills, and until then whoever wants
            // the page waits, as for any other.
            if lacks_memory(&e) && waits < MEMORY_TRIES {
                waits += 1;
                std::thread::sleep(MEMORY_PAUSE);
                continue;
            }
            let Some(ms) = pauses.next() else { return Err(MediumError::Io) };
            std::thread::sleep(Duration::from_millis(*ms));
        }
        let ns = start.elapsed().as_nanos() as u64;
        let before = self.read_ns.load(Ordering::Relaxed);
        // Relaxed and not exact: an estimate.
        self.read_ns.store(before - before / 16 + ns / 16, Ordering::Relaxed);
        Ok(())
    }

    /// Reads at most a block's length of bytes, which lie in one block or two.
    fn read_part(&self, offset: u64, buf: &mut [u8]) -> Result<(), MediumError> {
        let mut buffer = self.reader();
        let pair = buffer.bytes();
        pair.fill(0);
        let (first, last) = block_range(offset, buf.len());
        for _ in 0..OVERTAKEN_MAX {
            let counts = {
                let blocks = lock(&self.blocks);
                if blocks.copy_out(offset, buf) {
                    return Ok(());
                }
                [blocks.count_on_device(first), blocks.count_on_device(last)]
            };
            // From the first block that is there to the last one that is.
            let from = if counts[0].is_some() { first } else { last };
            let to = if counts[1].is_some() { last } else { first };
            let at = (from - first) as usize * BLOCK_BYTES;
            let end = (to - first + 1) as usize * BLOCK_BYTES;
            self.read_device(from * BLOCK_BYTES as u64, &mut pair[at..end])?;
            let base = first * BLOCK_BYTES as u64;
            let start = (offset - base) as usize;
            for (number, count) in [(first, counts[0]), (last, counts[1])] {
                let Some(count) = count else { continue };
                let block_at = (number - first) as usize * BLOCK_BYTES;
                let a = start.max(block_at);
                let b = (start + buf.len()).min(block_at + BLOCK_BYTES);
                self.cipher.apply(number, count, a - block_at, &mut pair[a..b]);
                if first == last {
                    break;
                }
            }
            let blocks = lock(&self.blocks);
            if [blocks.count_on_device(first), blocks.count_on_device(last)] == counts {
                buf.copy_from_slice(&pair[start..start + buf.len()]);
                blocks.overlay(offset, buf);
                return Ok(());
            }
            drop(blocks);
            pair.fill(0);
        }
        Err(MediumError::Io)
    }

    /// Writes the oldest dirty block out, with its dirty neighbours. `Ok(false)` if none is dirty.
    fn write_out(&self, buffer: &mut [u8]) -> Result<bool, MediumError> {
        let Some((first, len)) = lock(&self.blocks).begin_write_out(RUN_BLOCKS) else {
            return Ok(false);
        };
        let numbers = first..first + len as u64;
        let result = self.complete(numbers.clone(), &mut buffer[..BLOCK_BYTES]).and_then(|()| {
            let run = &mut buffer[..len * BLOCK_BYTES];
            for (number, out) in numbers.clone().zip(run.chunks_exact_mut(BLOCK_BYTES)) {
                // One at a time: a fault may wait for this lock, and a copy takes a microsecond.
                let count = {
                    let mut blocks = lock(&self.blocks);
                    blocks.snapshot(number, out)?;
                    blocks.count(number)
                };
                self.cipher.apply(number, count, 0, out);
            }
            self.device.write(first * BLOCK_BYTES as u64, run).map_err(|e| {
                if is_full(&e) {
                    MediumError::Full
                } else {
                    MediumError::Io
                }
            })
        });
        lock(&self.blocks).end_write_out(numbers, result.is_ok());
        result.map(|()| true)
    }

    /// Brings what is not known of blocks on their way out into memory.
    fn complete(
        &self,
        numbers: std::ops::Range<u64>,
        buffer: &mut [u8],
    ) -> Result<(), MediumError> {
        for number in numbers {
            let Some(count) = lock(&self.blocks).needs_completing(number) else { continue };
            self.read_device(number * BLOCK_BYTES as u64, buffer)?;
            self.cipher.apply(number, count, 0, buffer);
            lock(&self.blocks).complete(number, buffer);
        }
        Ok(())
    }

    fn now_ms(&self) -> u64 {
        self.since.elapsed().as_millis() as u64
    }

    fn rests(&self) -> bool {
        let until = self.rests_until_ms.load(Ordering::Relaxed);
        until != 0 && self.now_ms() < until
    }

    fn begin_rest(&self, why: MediumError) {
        let ms = self.rest_ms.load(Ordering::Relaxed);
        self.is_full.store(u64::from(why == MediumError::Full), Ordering::Relaxed);
        self.rests_until_ms.store(self.now_ms() + ms, Ordering::Relaxed);
        self.rest_ms.store((ms * 2).min(REST_MS_MAX), Ordering::Relaxed);
    }

    fn end_rest(&self) {
        self.rests_until_ms.store(0, Ordering::Relaxed);
        self.rest_ms.store(REST_MS, Ordering::Relaxed);
    }

    /// Writes until no more than `dirty_max` blocks are dirty, or a write fails.
    fn write_down_to(&self, dirty_max: usize, buffer: &mut [u8]) -> Result<(), MediumError> {
        while lock(&self.blocks).dirty() > dirty_max {
            match self.write_out(buffer) {
                Ok(true) => self.end_rest(),
                Ok(false) => break,
                Err(why) => {
                    self.begin_rest(why);
                    return Err(why);
                }
            }
        }
        Ok(())
    }

    /// Writes everything out. For tests and for those who want to see what is on the device.
    pub fn flush(&self) -> Result<(), MediumError> {
        self.write_down_to(0, lock(&self.writing_out).bytes())
    }
}

fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Only tests unwind; the runtime aborts on panic.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// First and last block of a range that is not empty.
fn block_range(offset: u64, len: usize) -> (u64, u64) {
    let block = BLOCK_BYTES as u64;
    (offset / block, (offset + len as u64 - 1) / block)
}

/// Whether an error says that there is no more room, rather than that something is broken.
fn is_full(e: &io::Error) -> bool {
    matches!(e.raw_os_error(), Some(libc::ENOSPC | libc::EDQUOT | libc::EFBIG))
}

/// Whether an error says that the kernel has no memory now. Buffers are always there: EFAULT says
/// that one is in swap, and that at a memory limit it may not come back.
fn lacks_memory(e: &io::Error) -> bool {
    matches!(e.raw_os_error(), Some(libc::ENOMEM | libc::EFAULT))
}

impl<D: BlockDevice> Medium for BlockMedium<D> {
    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<(), MediumError> {
        self.check(offset, buf.len())?;
        let mut at = offset;
        for part in buf.chunks_mut(BLOCK_BYTES) {
            self.read_part(at, part)?;
            at += part.len() as u64;
        }
        Ok(())
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), MediumError> {
        self.check(offset, bytes.len())?;
        if lock(&self.blocks).copy_in(offset, bytes) {
            Ok(())
        } else {
            // Every open block is dirty: writing out fails, or is overrun.
            Err(MediumError::Io)
        }
    }

    fn release(&self, offset: u64, len: u64) {
        if len == 0 || self.check(offset, len as usize).is_err() {
            return;
        }
        let block = BLOCK_BYTES as u64;
        let (from, to) = (offset.div_ceil(block), (offset + len) / block);
        if from < to {
            lock(&self.blocks).forget(from..to);
            self.device.punch(from * block, (to - from) * block);
        }
    }

    fn capacity(&self) -> u64 {
        self.capacity
    }

    fn try_read(&self, offset: u64, buf: &mut [u8]) -> Result<bool, MediumError> {
        self.check(offset, buf.len())?;
        Ok(lock(&self.blocks).copy_out(offset, buf))
    }

    fn fetch(&self, offset: u64, len: usize) -> Result<(), MediumError> {
        self.check(offset, len)?;
        let mut buffer = self.reader();
        let block = &mut buffer.bytes()[..BLOCK_BYTES];
        let (first, last) = block_range(offset, len.max(1));
        for number in first..=last {
            let Some(count) = lock(&self.blocks).begin_fetch(number) else { continue };
            self.read_device(number * BLOCK_BYTES as u64, block)?;
            self.cipher.apply(number, count, 0, block);
            lock(&self.blocks).end_fetch(number, count, block);
        }
        Ok(())
    }

    fn accepts(&self) -> Result<(), MediumError> {
        if !self.device.is_ready() {
            return Err(MediumError::Io);
        }
        if !self.rests() {
            return Ok(());
        }
        let full = self.is_full.load(Ordering::Relaxed) != 0;
        Err(if full { MediumError::Full } else { MediumError::Io })
    }

    fn work_off(&self) {
        let (dirty, open) = {
            let blocks = lock(&self.blocks);
            (blocks.dirty(), blocks.open_max())
        };
        if dirty > open / 4 * 3 && !self.rests() {
            let mut buffer = lock(&self.writing_out);
            // Whoever had the turn before may have failed, and one try is enough.
            if !self.rests() {
                // The failure is remembered; there is nobody here to tell.
                let _ = self.write_down_to(open / 2, buffer.bytes());
            }
        }
    }

    fn waits(&self) -> bool {
        self.device.waits()
    }

    fn read_ns(&self) -> u64 {
        self.read_ns.load(Ordering::Relaxed)
    }

    fn lies_in_memory(&self) -> bool {
        self.device.lies_in_memory()
    }

    fn memory_bytes(&self) -> u64 {
        // Each buffer has a block more, to be aligned.
        let buffers = RUN_BYTES + READERS_MAX * 2 * BLOCK_BYTES + (READERS_MAX + 1) * BLOCK_BYTES;
        lock(&self.blocks).memory_bytes() + buffers as u64
    }
}

#[cfg(test)]
#[path = "blocks_tests.rs"]
mod tests;
