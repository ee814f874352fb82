//! 842, IBM's format for compressing memory in hardware, as the kernel's software implementation
//! writes it. Written from a description of the format; safe Rust throughout.
//!
//! It is here because TierScape has it and users compare; every other codec is better.
//!
//! The page is taken in *blocks* of 8 bytes. A stream is a sequence of bits, most significant
//! first: for each block an operation of 5 bits and what belongs to it.
//!
//! | operation | what follows | meaning |
//! |---|---|---|
//! | 0 to 25 | as its template says | a block of up to four parts |
//! | 27 | 6 bits, N | the block before once more, N + 1 times |
//! | 28 | - | a block of zeros |
//! | 29 | 3 bits, N, and N bytes | the last bytes of what is no multiple of 8: never in a page |
//! | 30 | 32 bits, the CRC of all bytes (`crc32.rs`); then zeros up to a multiple of 8 bytes | the end |
//!
//! A template has parts of 2, 4 or 8 bytes, each either there as it is or as an index of the same
//! bytes in what came before. An index counts in units of the part's size, from the start of the
//! page, modulo the size of a window:
//!
//! | part | bits | window |
//! |---|---|---|
//! | 2, 4, 8 bytes as they are | 16, 32, 64 | |
//! | index of 2 bytes | 8 | the last 512 bytes |
//! | index of 4 bytes | 9 | the last 2 KiB |
//! | index of 8 bytes | 8 | the last 2 KiB |
//!
//! Windows end where the block begins.
//!
//! The encoder keeps the last place of each hash of 2, 4 and 8 bytes, and takes the template with
//! the fewest bits for what it found. Blocks do not depend on each other's choice, so that is the
//! shortest stream, but for places that another hash has taken.

use super::{crc32, Corrupt};
use crate::{Page, PAGE_SIZE};

const BLOCK: usize = 8;

const OP_BITS: u32 = 5;
const REPEAT: usize = 0x1b;
const REPEAT_BITS: u32 = 6;
const REPEAT_MAX: usize = 1 << REPEAT_BITS;
const ZEROS: usize = 0x1c;
const END: usize = 0x1e;
const CRC_BITS: u32 = 32;

/// Streams are padded to this many bytes.
const PADDING: usize = 8;

/// 5 + 64 bits for each block, end and checksum, padded.
const STREAM_BYTES_MAX: usize =
    ((PAGE_SIZE / BLOCK) * 69 + (OP_BITS + CRC_BITS) as usize).div_ceil(8 * PADDING) * PADDING;

/// A part of a template.
#[derive(Clone, Copy, PartialEq)]
enum Part {
    /// Bytes as they are.
    Data(usize),
    /// Index of bytes that came before.
    Index(usize),
    /// The template has fewer than four parts.
    None,
}

impl Part {
    /// How much of the block it stands for.
    const fn bytes(self) -> usize {
        match self {
            Part::Data(bytes) | Part::Index(bytes) => bytes,
            Part::None => 0,
        }
    }

    /// What it takes in the stream.
    const fn bits(self) -> u32 {
        match self {
            Part::Data(bytes) => 8 * bytes as u32,
            Part::Index(4) => 9,
            Part::Index(_) => 8,
            Part::None => 0,
        }
    }
}

/// Bytes that an index of `size` bytes can reach back.
const fn window(size: usize) -> usize {
    size << Part::Index(size).bits()
}

const D2: Part = Part::Data(2);
const D4: Part = Part::Data(4);
const D8: Part = Part::Data(8);
const I2: Part = Part::Index(2);
const I4: Part = Part::Index(4);
const I8: Part = Part::Index(8);
const NO: Part = Part::None;

/// By operation.
const TEMPLATES: [[Part; 4]; 26] = [
    [D8, NO, NO, NO],
    [D4, D2, I2, NO],
    [D4, I2, D2, NO],
    [D4, I2, I2, NO],
    [D4, I4, NO, NO],
    [D2, I2, D4, NO],
    [D2, I2, D2, I2],
    [D2, I2, I2, D2],
    [D2, I2, I2, I2],
    [D2, I2, I4, NO],
    [I2, D2, D4, NO],
    [I2, D4, I2, NO],
    [I2, D2, I2, D2],
    [I2, D2, I2, I2],
    [I2, D2, I4, NO],
    [I2, I2, D4, NO],
    [I2, I2, D2, I2],
    [I2, I2, I2, D2],
    [I2, I2, I2, I2],
    [I2, I2, I4, NO],
    [I4, D4, NO, NO],
    [I4, D2, I2, NO],
    [I4, I2, D2, NO],
    [I4, I2, I2, NO],
    [I4, I4, NO, NO],
    [I8, NO, NO, NO],
];

/// Bit of what was found that stands for an index of `size` bytes at place `at` of the block.
const fn found_bit(size: usize, at: usize) -> usize {
    match size {
        2 => 1 << (at / 2),
        4 => 1 << (4 + at / 4),
        _ => 1 << 6,
    }
}

/// The operation with the fewest bits, by what was found.
static SHORTEST: [u8; 1 << 7] = shortest();

const fn shortest() -> [u8; 1 << 7] {
    let mut table = [0; 1 << 7];
    let mut found = 0;
    while found < table.len() {
        let mut fewest = u32::MAX;
        let mut op = 0;
        while op < TEMPLATES.len() {
            let (mut at, mut bits, mut possible, mut n) = (0, 0, true, 0);
            while n < 4 {
                let part = TEMPLATES[op][n];
                if let Part::Index(size) = part {
                    possible &= found & found_bit(size, at) != 0;
                }
                at += part.bytes();
                bits += part.bits();
                n += 1;
            }
            if possible && bits < fewest {
                fewest = bits;
                table[found] = op as u8;
            }
            op += 1;
        }
        found += 1;
    }
    table
}

/// Entries of each hash table. Positions are u16; 0 where there was none, which is refused by
/// comparison like any other wrong place.
const HASH_BITS: u32 = 11;
type Table = [u16; 1 << HASH_BITS];
const _: () = assert!(PAGE_SIZE <= 1 << 16);

/// An 842 encoder.
pub struct Encoder {
    tables: Box<[Table; 3]>,
    stream: Box<[u8; STREAM_BYTES_MAX + 8]>,
}

impl Default for Encoder {
    fn default() -> Self {
        Self::new()
    }
}

/// The block at `at`, its first byte the most significant.
#[inline(always)]
fn block_at(page: &Page, at: usize) -> u64 {
    let mut word = [0; BLOCK];
    word.copy_from_slice(&page[at..at + BLOCK]);
    u64::from_be_bytes(word)
}

/// `size` bytes of a block from place `at` on, as a number.
#[inline(always)]
fn part_of(block: u64, size: usize, at: usize) -> u64 {
    let aligned = block << (8 * at);
    aligned >> (64 - 8 * size)
}

#[inline(always)]
fn hash(part: u64) -> usize {
    (part.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - HASH_BITS)) as usize
}

/// The last place of `part` before the block at `at`, as an index, or `None`.
#[inline(always)]
fn find<const SIZE: usize>(page: &Page, table: &Table, part: u64, at: usize) -> Option<u64> {
    let place = usize::from(table[hash(part)]);
    let same = match SIZE {
        2 => page[place..place + 2] == (part as u16).to_be_bytes(),
        4 => page[place..place + 4] == (part as u32).to_be_bytes(),
        _ => page[place..place + 8] == part.to_be_bytes(),
    };
    (same && at - place <= window(SIZE)).then_some((place % window(SIZE) / SIZE) as u64)
}

impl Encoder {
    /// Makes the hash tables and the stream buffer.
    pub fn new() -> Encoder {
        Encoder {
            tables: Box::new([[0; 1 << HASH_BITS]; 3]),
            stream: Box::new([0; STREAM_BYTES_MAX + 8]),
        }
    }

    /// See [`super::Encoder::encode`].
    pub fn encode(&mut self, page: &Page, out: &mut [u8]) -> Option<usize> {
        let [twos, fours, eights] = &mut *self.tables;
        let mut stream = Stream { bytes: &mut self.stream, len: 0, word: 0, room: 64 };
        for table in [&mut *twos, fours, eights] {
            table.fill(0);
        }
        let mut repeats = 0;
        let mut before = None;
        for at in (0..PAGE_SIZE).step_by(BLOCK) {
            let block = block_at(page, at);
            if before == Some(block) {
                repeats += 1;
                continue;
            }
            if let Some(block) = before {
                stream.push_repeats(block, repeats);
                repeats = 0;
                // The last place where the block stands, which stays longest in the windows.
                let last = at - BLOCK;
                for n in 0..4 {
                    twos[hash(part_of(block, 2, 2 * n))] = (last + 2 * n) as u16;
                }
                for n in 0..2 {
                    fours[hash(part_of(block, 4, 4 * n))] = (last + 4 * n) as u16;
                }
                eights[hash(block)] = last as u16;
            }
            before = Some(block);
            if stream.len >= out.len() {
                return None;
            }
            if block == 0 {
                stream.push(ZEROS as u64, OP_BITS);
                continue;
            }
            if at == 0 {
                stream.push_template(0, block, &[0; 7]);
                continue;
            }
            if let Some(index) = find::<8>(page, eights, block, at) {
                stream.push((25 << 8) | index, OP_BITS + 8);
                continue;
            }
            let mut found = 0;
            // By bit of what was found.
            let mut indexes = [0; 7];
            for half in 0..2 {
                let part = part_of(block, 4, 4 * half);
                if let Some(index) = find::<4>(page, fours, part, at) {
                    found |= found_bit(4, 4 * half);
                    indexes[4 + half] = index;
                    continue;
                }
                for n in [2 * half, 2 * half + 1] {
                    let part = part_of(block, 2, 2 * n);
                    if let Some(index) = find::<2>(page, twos, part, at) {
                        found |= found_bit(2, 2 * n);
                        indexes[n] = index;
                    }
                }
            }
            stream.push_template(usize::from(SHORTEST[found]), block, &indexes);
        }
        stream.push_repeats(before?, repeats);
        stream.push(END as u64, OP_BITS);
        stream.push(u64::from(crc32::of(page)), CRC_BITS);
        let len = stream.finish();
        out.get_mut(..len)?.copy_from_slice(&self.stream[..len]);
        Some(len)
    }

    /// Memory held, in bytes.
    pub fn context_bytes(&self) -> usize {
        size_of_val(&*self.tables) + size_of_val(&*self.stream)
    }
}

struct Stream<'a> {
    bytes: &'a mut [u8; STREAM_BYTES_MAX + 8],
    /// Bytes written.
    len: usize,
    /// Bits not yet written, at the low end, and how many more fit.
    word: u64,
    room: u32,
}

impl Stream<'_> {
    /// Appends the low `bits` of `value`, 1 to 63, whose other bits are 0.
    #[inline(always)]
    fn push(&mut self, value: u64, bits: u32) {
        if bits < self.room {
            self.word = (self.word << bits) | value;
            self.room -= bits;
            return;
        }
        let over = bits - self.room;
        // `room` is 1 to 64: shifting in two steps makes 64 legal.
        let full = (self.word << (self.room - 1) << 1) | (value >> over);
        self.bytes[self.len..self.len + 8].copy_from_slice(&full.to_be_bytes());
        self.len += 8;
        // What is left of `value`; its upper bits fall off at the top before they are written.
        self.word = value;
        self.room = 64 - over;
    }

    #[inline(always)]
    fn push_template(&mut self, op: usize, block: u64, indexes: &[u64; 7]) {
        self.push(op as u64, OP_BITS);
        let mut at = 0;
        for part in TEMPLATES[op] {
            match part {
                Part::Data(8) => {
                    self.push(block >> 32, 32);
                    self.push(block & 0xffff_ffff, 32);
                }
                Part::Data(size) => self.push(part_of(block, size, at), part.bits()),
                Part::Index(size) => {
                    self.push(indexes[found_bit(size, at).trailing_zeros() as usize], part.bits());
                }
                Part::None => break,
            }
            at += part.bytes();
        }
    }

    /// The block before, `count` times more.
    fn push_repeats(&mut self, block: u64, mut count: usize) {
        while count > 0 {
            // Two blocks of zeros take fewer bits than a repetition.
            if block == 0 && count <= 2 {
                self.push(ZEROS as u64, OP_BITS);
                count -= 1;
                continue;
            }
            let now = count.min(REPEAT_MAX);
            let value = (REPEAT << REPEAT_BITS) | (now - 1);
            self.push(value as u64, OP_BITS + REPEAT_BITS);
            count -= now;
        }
    }

    /// Writes what is left, with zeros up to the padding; returns the length.
    fn finish(&mut self) -> usize {
        if self.room < 64 {
            let last = self.word << self.room;
            self.bytes[self.len..self.len + 8].copy_from_slice(&last.to_be_bytes());
            self.len += PADDING;
        }
        self.len
    }
}

/// Reads bits; behind the end of the stream it reads zeros, which the decoder finds out when it
/// compares lengths at the end. It cannot read on for ever: every operation fills a part of the
/// page.
struct Reader<'a> {
    stored: &'a [u8],
    bit: usize,
}

impl Reader<'_> {
    /// The next bits at the upper end of a word, at least 57 of them.
    #[inline(always)]
    fn peek(&self) -> u64 {
        let from = self.bit / 8;
        let word = match self.stored.get(from..from + 8) {
            Some(bytes) => {
                let mut word = [0; 8];
                word.copy_from_slice(bytes);
                u64::from_be_bytes(word)
            }
            None => self.last(from),
        };
        word << (self.bit % 8)
    }

    #[cold]
    fn last(&self, from: usize) -> u64 {
        let mut word = [0; 8];
        let rest = self.stored.get(from..).unwrap_or(&[]);
        word[..rest.len()].copy_from_slice(rest);
        u64::from_be_bytes(word)
    }

    #[inline(always)]
    fn take(&mut self, bits: u32) -> usize {
        let value = self.peek() >> (64 - bits);
        self.bit += bits as usize;
        value as usize
    }
}

/// The bytes that an index names, for the block at `to`.
#[inline(always)]
fn fetch<const SIZE: usize>(page: &Page, to: usize, index: usize) -> Result<u64, Corrupt> {
    let start = to - to % window(SIZE);
    let place = start + index * SIZE;
    // An index at or after the block's own place belongs to the window before. Where there is none
    // the difference wraps to a place behind the page.
    let place = if place < to { place } else { place.wrapping_sub(window(SIZE)) };
    let bytes = page.get(place..).and_then(|rest| rest.first_chunk::<SIZE>()).ok_or(Corrupt)?;
    Ok(bytes.iter().fold(0, |sum, byte| (sum << 8) | u64::from(*byte)))
}

/// The block of one template. `TEMPLATES[OP]` is known when this is compiled, so no loop is left.
#[inline(always)]
fn block<const OP: usize>(reader: &mut Reader, page: &Page, to: usize) -> Result<u64, Corrupt> {
    if OP == 0 {
        let high = reader.take(32) as u64;
        return Ok((high << 32) | reader.take(32) as u64);
    }
    // No other template takes more than 56 bits.
    let mut bits = reader.peek();
    let mut block = 0u64;
    for part in TEMPLATES[OP] {
        if part == Part::None {
            break;
        }
        let value = bits >> (64 - part.bits());
        bits <<= part.bits();
        reader.bit += part.bits() as usize;
        let value = match part {
            Part::Index(2) => fetch::<2>(page, to, value as usize)?,
            Part::Index(4) => fetch::<4>(page, to, value as usize)?,
            Part::Index(_) => return fetch::<8>(page, to, value as usize),
            _ => value,
        };
        block = (block << (8 * part.bytes())) | value;
    }
    Ok(block)
}

/// Decodes a stream that must fill the page exactly, agree with its checksum, and end there.
pub fn decode(stored: &[u8], page: &mut Page) -> Result<(), Corrupt> {
    macro_rules! by_op {
        ($op:expr, $reader:expr, $page:expr, $to:expr, $($n:literal)*) => {
            match $op {
                $($n => block::<$n>($reader, $page, $to)?,)*
                ZEROS => 0,
                _ => return Err(Corrupt),
            }
        };
    }
    let mut reader = Reader { stored, bit: 0 };
    let mut to = 0;
    loop {
        let op = reader.take(OP_BITS);
        if op == END {
            break;
        }
        if op == REPEAT {
            let end = to + BLOCK * (reader.take(REPEAT_BITS) + 1);
            if to == 0 || end > PAGE_SIZE {
                return Err(Corrupt);
            }
            let bytes = block_at(page, to - BLOCK).to_be_bytes();
            page[to..end].chunks_exact_mut(BLOCK).for_each(|b| b.copy_from_slice(&bytes));
            to = end;
            continue;
        }
        if to == PAGE_SIZE {
            return Err(Corrupt);
        }
        let block = by_op!(op, &mut reader, page, to,
            0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25);
        page[to..to + BLOCK].copy_from_slice(&block.to_be_bytes());
        to += BLOCK;
    }
    let crc = reader.take(CRC_BITS);
    let padded = reader.bit.div_ceil(8 * PADDING) * PADDING;
    if to == PAGE_SIZE && padded == stored.len() && crc == crc32::of(page) as usize {
        Ok(())
    } else {
        Err(Corrupt)
    }
}
