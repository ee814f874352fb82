//! The blocks of a medium: what is known of them in memory, and what is on the device.
//!
//! Bookkeeping only, behind the lock of [`super::blocks`], which does the reading and writing. A
//! block can be
//!
//! - *open*: some or all of its bytes are in memory. It is dirty if the device lacks some of them,
//!   and *leaving* while a write of it is under way;
//! - *on the device*: written there with the count that the table has for it;
//! - neither: never written since it was last released. It reads as zeros.

use super::device::BLOCK_BYTES;
use super::MediumError;

/// No block.
const NONE: u64 = u64::MAX;
/// Blocks whose counts are made at once.
const CHUNK: usize = 1 << 16;

/// A bit for each byte of a block.
type Known = [u64; BLOCK_BYTES / 64];

/// An open block.
struct Open {
    bytes: [u8; BLOCK_BYTES],
    known: Known,
    dirty: bool,
    leaving: bool,
    /// When it was last written to.
    stamp: u64,
}

/// All blocks.
pub(super) struct Blocks {
    /// The block in each place, apart from the rest so that a look through all is short.
    numbers: Vec<u64>,
    open: Vec<Option<Box<Open>>>,
    dirty: usize,
    clock: u64,
    /// By block: how often it was written, times two; plus one if it is on the device as written
    /// then. The count never goes back, so that no nonce is used twice.
    counts: Vec<Option<Box<[u32]>>>,
}

/// Calls `visit` with each word of the mask of `[from, to)`, its index and its bits.
fn for_mask(from: usize, to: usize, mut visit: impl FnMut(usize, u64)) {
    let mut at = from;
    while at < to {
        let end = (at / 64 * 64 + 64).min(to);
        let ones = if end - at == 64 { u64::MAX } else { ((1u64 << (end - at)) - 1) << (at % 64) };
        visit(at / 64, ones);
        at = end;
    }
}

fn all_known(known: &Known, from: usize, to: usize) -> bool {
    let mut all = true;
    for_mask(from, to, |word, ones| all &= known[word] & ones == ones);
    all
}

/// The parts of a range by block: number, from and to within the block, from within the range.
fn parts(offset: u64, len: usize) -> impl Iterator<Item = (u64, usize, usize, usize)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        if done == len {
            return None;
        }
        let at = offset + done as u64;
        let (number, from) = (at / BLOCK_BYTES as u64, (at % BLOCK_BYTES as u64) as usize);
        let to = BLOCK_BYTES.min(from + len - done);
        let part = (number, from, to, done);
        done += to - from;
        Some(part)
    })
}

impl Blocks {
    /// No block is written, at most `open_max` are open at a time.
    pub(super) fn new(open_max: usize) -> Blocks {
        Blocks {
            numbers: vec![NONE; open_max],
            open: (0..open_max).map(|_| None).collect(),
            dirty: 0,
            clock: 0,
            counts: Vec::new(),
        }
    }

    /// Most blocks that can be open.
    pub(super) fn open_max(&self) -> usize {
        self.numbers.len()
    }

    /// Blocks that have to be written.
    pub(super) fn dirty(&self) -> usize {
        self.dirty
    }

    /// Memory that all this takes.
    pub(super) fn memory_bytes(&self) -> u64 {
        let open = self.open.iter().flatten().count() * size_of::<Open>();
        let counts = self.counts.iter().flatten().count() * CHUNK * 4;
        (open + counts + self.open.len() * 16) as u64
    }

    // ---- counts ----------------------------------------------------------------------------

    fn entry(&self, number: u64) -> u32 {
        let number = number as usize;
        let chunk = self.counts.get(number / CHUNK).and_then(Option::as_ref);
        chunk.and_then(|c| c.get(number % CHUNK)).copied().unwrap_or(0)
    }

    fn set_entry(&mut self, number: u64, entry: u32) {
        let (n, at) = (number as usize / CHUNK, number as usize % CHUNK);
        if entry == self.entry(number) {
            return;
        }
        if n >= self.counts.len() {
            self.counts.resize_with(n + 1, || None);
        }
        let chunk = self.counts[n].get_or_insert_with(|| vec![0; CHUNK].into());
        chunk[at] = entry;
    }

    /// How often a block was written.
    pub(super) fn count(&self, number: u64) -> u32 {
        self.entry(number) >> 1
    }

    /// The count with which a block is on the device, if it is there.
    pub(super) fn count_on_device(&self, number: u64) -> Option<u32> {
        let entry = self.entry(number);
        (entry & 1 == 1).then_some(entry >> 1)
    }

    // ---- bytes -----------------------------------------------------------------------------

    fn place(&self, number: u64) -> Option<usize> {
        self.numbers.iter().position(|n| *n == number)
    }

    fn find(&self, number: u64) -> Option<&Open> {
        self.open[self.place(number)?].as_deref()
    }

    fn find_mut(&mut self, number: u64) -> Option<&mut Open> {
        let place = self.place(number)?;
        self.open[place].as_deref_mut()
    }

    /// The place of a block, opened if it is not. `None` if every place holds something that is
    /// nowhere else.
    fn open_place(&mut self, number: u64) -> Option<usize> {
        if let Some(place) = self.place(number) {
            return Some(place);
        }
        let place = self.place(NONE).or_else(|| {
            let candidates = self.open.iter().enumerate();
            let clean = candidates.filter_map(|(n, o)| Some((n, o.as_deref()?)));
            clean.filter(|(_, o)| is_clean(o)).min_by_key(|(_, o)| o.stamp).map(|(n, _)| n)
        })?;
        self.numbers[place] = number;
        match &mut self.open[place] {
            Some(open) => {
                open.known = [0; BLOCK_BYTES / 64];
                (open.dirty, open.leaving, open.stamp) = (false, false, self.clock);
            }
            empty => {
                *empty = Some(Box::new(Open {
                    bytes: [0; BLOCK_BYTES],
                    known: [0; BLOCK_BYTES / 64],
                    dirty: false,
                    leaving: false,
                    stamp: self.clock,
                }));
            }
        }
        Some(place)
    }

    /// Copies a range in; `false` if there is no place for it to be open.
    pub(super) fn copy_in(&mut self, offset: u64, bytes: &[u8]) -> bool {
        self.clock += 1;
        let clock = self.clock;
        for (number, from, to, done) in parts(offset, bytes.len()) {
            let Some(place) = self.open_place(number) else { return false };
            let Some(open) = self.open[place].as_deref_mut() else { return false };
            open.bytes[from..to].copy_from_slice(&bytes[done..done + to - from]);
            for_mask(from, to, |word, ones| open.known[word] |= ones);
            open.stamp = clock;
            if !std::mem::replace(&mut open.dirty, true) {
                self.dirty += 1;
            }
        }
        true
    }

    /// Copies a range out if that needs nothing from the device.
    pub(super) fn copy_out(&self, offset: u64, buf: &mut [u8]) -> bool {
        let ready = parts(offset, buf.len()).all(|(number, from, to, _)| {
            self.count_on_device(number).is_none()
                || self.find(number).is_some_and(|open| all_known(&open.known, from, to))
        });
        if ready {
            buf.fill(0);
            self.overlay(offset, buf);
        }
        ready
    }

    /// Copies the bytes that are known in memory over those of `buf`.
    pub(super) fn overlay(&self, offset: u64, buf: &mut [u8]) {
        for (number, from, to, done) in parts(offset, buf.len()) {
            let Some(open) = self.find(number) else { continue };
            let out = &mut buf[done..done + to - from];
            if all_known(&open.known, from, to) {
                out.copy_from_slice(&open.bytes[from..to]);
                continue;
            }
            for (i, byte) in (from..to).zip(out) {
                if open.known[i / 64] >> (i % 64) & 1 == 1 {
                    *byte = open.bytes[i];
                }
            }
        }
    }

    /// Drops what is known of blocks.
    pub(super) fn forget(&mut self, numbers: std::ops::Range<u64>) {
        for number in numbers {
            if let Some(place) = self.place(number) {
                if let Some(open) = self.open[place].as_deref_mut() {
                    self.dirty -= usize::from(std::mem::replace(&mut open.dirty, false));
                    open.known = [0; BLOCK_BYTES / 64];
                    // One on its way out keeps its place, so that it is not opened twice.
                    if !open.leaving {
                        self.numbers[place] = NONE;
                    }
                }
            }
            self.set_entry(number, self.entry(number) & !1);
        }
    }

    // ---- out -------------------------------------------------------------------------------

    /// Takes the dirty block that was longest not written to, with its dirty neighbours, and marks
    /// them as leaving: first number and how many, at most `len_max`.
    pub(super) fn begin_write_out(&mut self, len_max: usize) -> Option<(u64, usize)> {
        let waits = |open: &Open| open.dirty && !open.leaving;
        let all = self.numbers.iter().zip(&self.open);
        let dirty = all.filter_map(|(number, open)| Some((*number, open.as_deref()?)));
        let oldest = dirty.filter(|(_, open)| waits(open)).min_by_key(|(_, open)| open.stamp)?.0;
        let is_waiting = |number: u64| self.find(number).is_some_and(waits);
        let (mut first, mut len) = (oldest, 1);
        while len < len_max && is_waiting(first + len as u64) {
            len += 1;
        }
        while len < len_max && first > 0 && is_waiting(first - 1) {
            (first, len) = (first - 1, len + 1);
        }
        for number in first..first + len as u64 {
            if let Some(open) = self.find_mut(number) {
                open.leaving = true;
            }
        }
        Some((first, len))
    }

    /// The count to read a leaving block with, if some of its bytes are only on the device.
    pub(super) fn needs_completing(&self, number: u64) -> Option<u32> {
        let open = self.find(number)?;
        let complete = all_known(&open.known, 0, BLOCK_BYTES);
        self.count_on_device(number).filter(|_| !complete)
    }

    /// Fills in what is not known of a block.
    pub(super) fn complete(&mut self, number: u64, bytes: &[u8]) {
        let Some(open) = self.find_mut(number) else { return };
        for (i, byte) in bytes.iter().enumerate() {
            if open.known[i / 64] >> (i % 64) & 1 == 0 {
                open.bytes[i] = *byte;
            }
        }
        open.known = [u64::MAX; BLOCK_BYTES / 64];
    }

    /// Copies a leaving block out for its write, under the next count. From here on it counts as
    /// not on the device, and what is written to it meanwhile makes it dirty again.
    pub(super) fn snapshot(&mut self, number: u64, out: &mut [u8]) -> Result<(), MediumError> {
        // A block written two thousand million times.
        let next = self.count(number) + 1;
        if next > u32::MAX >> 1 {
            return Err(MediumError::Io);
        }
        out.fill(0);
        let mut done = 0;
        if let Some(open) = self.find_mut(number) {
            if open.known.iter().any(|w| *w != u64::MAX) {
                // What nobody wrote is zeros.
                for i in 0..BLOCK_BYTES {
                    if open.known[i / 64] >> (i % 64) & 1 == 0 {
                        open.bytes[i] = 0;
                    }
                }
                open.known = [u64::MAX; BLOCK_BYTES / 64];
            }
            out.copy_from_slice(&open.bytes);
            done = usize::from(std::mem::replace(&mut open.dirty, false));
        }
        self.dirty -= done;
        self.set_entry(number, next << 1);
        Ok(())
    }

    /// The write is over. If it failed, the blocks are dirty as before: nothing is lost.
    pub(super) fn end_write_out(&mut self, numbers: std::ops::Range<u64>, ok: bool) {
        // After a failure others have their turn first: it may be these blocks that cannot go.
        self.clock += u64::from(!ok);
        let clock = self.clock;
        for number in numbers {
            if ok {
                self.set_entry(number, self.entry(number) | 1);
            }
            let Some(place) = self.place(number) else { continue };
            let Some(open) = self.open[place].as_deref_mut() else { continue };
            open.leaving = false;
            if !ok {
                open.stamp = clock;
            }
            let released = open.known == [0; BLOCK_BYTES / 64];
            if !ok && !released && !std::mem::replace(&mut open.dirty, true) {
                self.dirty += 1;
            }
            if released && !open.dirty {
                self.numbers[place] = NONE;
            }
        }
    }

    // ---- in --------------------------------------------------------------------------------

    /// The count to read a block with that is to be opened; `None` if it is known well enough.
    pub(super) fn begin_fetch(&mut self, number: u64) -> Option<u32> {
        let known = self.find(number).is_some_and(|o| all_known(&o.known, 0, BLOCK_BYTES));
        self.count_on_device(number).filter(|_| !known)
    }

    /// Opens a block with what was read, if it was not written meanwhile.
    pub(super) fn end_fetch(&mut self, number: u64, count: u32, bytes: &[u8]) {
        if self.count_on_device(number) == Some(count) {
            self.clock += 1;
            if self.open_place(number).is_some() {
                self.complete(number, bytes);
            }
        }
    }
}

fn is_clean(open: &Open) -> bool {
    !open.dirty && !open.leaving
}
