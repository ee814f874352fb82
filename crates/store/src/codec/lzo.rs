//! LZO1X, written from the description of the stream format in the Linux documentation
//! (`Documentation/staging/lzo.rst`): version 0 of the bitstream, which is the codec *lzo*, and
//! version 1, which is *lzo-rle*. Safe Rust throughout.
//!
//! They are here because TierScape, zswap and zram use them and users compare; they are not the
//! best choice (LZ4 decodes faster, zstd at a negative level is denser, see
//! `examples/tier_bench.rs`).
//!
//! The stream is a sequence of instructions. Each copies a *match* from the page so far and then
//! 0 to 3 *literals*, whose number sits in two spare bits of the instruction, so that short gaps
//! between matches cost nothing; longer gaps have an instruction of their own. By first byte, with
//! S the number of literals that follow:
//!
//! | first byte | meaning |
//! |---|---|
//! | `1LLDDDSS`, `01LDDDSS` + 1 byte | match of 3 to 8 within 2 KiB |
//! | `001LLLLL` + 2 bytes | match of any length within 16 KiB |
//! | `0001HLLL` + 2 bytes | match 16 to 48 KiB back (never in a page); `17 0 0` ends the stream |
//! | `00011LLL` `111111SS` `11111111` `XXXXXXXX` | version 1: a run of `XXXXXXXXLLL` + 4 zeros |
//! | `0000LLLL` after a match without literals | 4 or more literals |
//! | `0000DDSS` + 1 byte after 1 to 3 literals | match of 2 within 1 KiB |
//! | `0000DDSS` + 1 byte after 4 or more literals | match of 3, 2 to 3 KiB back |
//!
//! and a first byte of the stream above 17 means (byte - 17) literals. A length that does not fit
//! its bits is continued in bytes: zeros count 255 each, a byte that is not zero ends it. A stream
//! of version 1 begins with the bytes 17 and 1, which version 0 cannot; the first byte in the sense
//! of the table comes after them.
//!
//! The encoder is greedy with one candidate per hash of 4 bytes, in a table of 8 KiB that stays in
//! L1. It never makes the two short matches of the last rows; the decoder knows them.

use super::Corrupt;
use crate::{Page, PAGE_SIZE};

const HASH_BITS: u32 = 12;

/// Hash table entries and the page's positions are u16.
const _: () = assert!(PAGE_SIZE <= 1 << 16);

/// Longest stream the encoder can make, with room for copies that run over. A match of 4 or more
/// bytes takes at most 3 (and 1 for each further 255), so it saves a byte; a run of literals
/// between two matches costs at most 1 byte, or 2 from 19 literals on, and 1 for each further 255.
/// A run of zeros takes 4 bytes and is longer. So the stream grows by at most 1 byte in 23, plus
/// the end mark and the version.
const STREAM_BYTES_MAX: usize = PAGE_SIZE + PAGE_SIZE / 16 + 64;

/// Matches are not begun in the last bytes: an 8-byte read must stay within the page.
const TAIL_BYTES: usize = 12;

/// Literals between matches are skipped faster the longer nothing matches: one more byte a step
/// for each 2^5 literals. Incompressible pages are given up soon.
const SKIP_SHIFT: usize = 5;

const END: [u8; 3] = [17, 0, 0];

/// How a stream of version 1 begins.
const VERSION_1: [u8; 2] = [17, 1];
/// The shortest stream that can have a version: the two bytes above and the end mark.
const VERSIONED_BYTES_MIN: usize = 5;

/// What a run of zeros holds at least and at most.
const RUN_BYTES_BASE: usize = 4;
const RUN_BYTES_MAX: usize = RUN_BYTES_BASE + (1 << 11) - 1;
/// Runs that the encoder makes: a run takes 4 bytes, a match that may say the same 2 or 3.
const RUN_BYTES_MIN: usize = 16;
/// The distance bits (those of `111111SS` and the byte after it) that say it is a run.
const RUN_MARK: usize = 0x3fff;

/// An LZO1X-1 class encoder, of one of the two versions.
pub struct Encoder {
    zero_runs: bool,
    /// Last position whose 4 bytes had this hash. Position 0 where there was none: a wrong
    /// candidate is refused by comparison like any other.
    table: Box<[u16; 1 << HASH_BITS]>,
    stream: Box<[u8; STREAM_BYTES_MAX]>,
}

impl Default for Encoder {
    fn default() -> Self {
        Self::new()
    }
}

#[inline(always)]
fn read4(page: &Page, at: usize) -> u32 {
    let mut w = [0; 4];
    w.copy_from_slice(&page[at..at + 4]);
    u32::from_le_bytes(w)
}

#[inline(always)]
fn read8(page: &Page, at: usize) -> u64 {
    let mut w = [0; 8];
    w.copy_from_slice(&page[at..at + 8]);
    u64::from_le_bytes(w)
}

#[inline(always)]
fn hash(word: u32) -> usize {
    (word.wrapping_mul(0x9e37_79b1) >> (32 - HASH_BITS)) as usize
}

/// How many bytes from `at` are zero, up to the end of the page or the longest run.
#[inline(always)]
fn zeros(page: &Page, at: usize) -> usize {
    let rest = &page[at..PAGE_SIZE.min(at + RUN_BYTES_MAX)];
    let mut len = 0;
    for chunk in rest.chunks_exact(8) {
        let mut word = [0; 8];
        word.copy_from_slice(chunk);
        let word = u64::from_le_bytes(word);
        if word != 0 {
            return len + (word.trailing_zeros() / 8) as usize;
        }
        len += 8;
    }
    len + rest[len..].iter().take_while(|byte| **byte == 0).count()
}

/// How many bytes from `a` equal those from `b`, for a < b, up to the end of the page.
#[inline(always)]
fn match_len(page: &Page, a: usize, b: usize) -> usize {
    let mut len = 0;
    while b + len + 8 <= PAGE_SIZE {
        let differ = read8(page, a + len) ^ read8(page, b + len);
        if differ != 0 {
            return len + (differ.trailing_zeros() / 8) as usize;
        }
        len += 8;
    }
    while b + len < PAGE_SIZE && page[a + len] == page[b + len] {
        len += 1;
    }
    len
}

impl Encoder {
    /// Makes the hash table and the stream buffer, for version 0 (*lzo*).
    pub fn new() -> Encoder {
        Encoder {
            zero_runs: false,
            table: Box::new([0; 1 << HASH_BITS]),
            stream: Box::new([0; STREAM_BYTES_MAX]),
        }
    }

    /// The same for version 1 (*lzo-rle*).
    pub fn with_zero_runs() -> Encoder {
        Encoder { zero_runs: true, ..Encoder::new() }
    }

    /// See [`super::Encoder::encode`].
    pub fn encode(&mut self, page: &Page, out: &mut [u8]) -> Option<usize> {
        if self.zero_runs {
            self.encode_as::<true>(page, out)
        } else {
            self.encode_as::<false>(page, out)
        }
    }

    fn encode_as<const ZERO_RUNS: bool>(&mut self, page: &Page, out: &mut [u8]) -> Option<usize> {
        self.table.fill(0);
        let mut stream = Stream { bytes: &mut self.stream, len: 0, start: 0, spare: 0 };
        if ZERO_RUNS {
            stream.push(&VERSION_1);
            stream.start = stream.len;
        }
        // First byte not yet in the stream, and the position looked at. Position 0 has no past.
        let mut anchor = 0;
        let mut at = 1;
        while at <= PAGE_SIZE - TAIL_BYTES {
            let word = read4(page, at);
            if ZERO_RUNS && word == 0 {
                let len = zeros(page, at);
                if len >= RUN_BYTES_MIN {
                    stream.push_literals(page, anchor, at);
                    stream.push_zeros(len);
                    if stream.len + END.len() > out.len() {
                        return None;
                    }
                    at += len;
                    anchor = at;
                    continue;
                }
            }
            let entry = &mut self.table[hash(word)];
            let candidate = usize::from(*entry);
            *entry = at as u16;
            if read4(page, candidate) != word {
                at += 1 + ((at - anchor) >> SKIP_SHIFT);
                continue;
            }
            let len = 4 + match_len(page, candidate + 4, at + 4);
            stream.push_literals(page, anchor, at);
            stream.push_match(at - candidate, len);
            // Early end, and the reason why the stream cannot outgrow its buffer even if the
            // argument above were wrong.
            if stream.len + END.len() > out.len() {
                return None;
            }
            at += len;
            anchor = at;
        }
        stream.push_literals(page, anchor, PAGE_SIZE);
        stream.push(&END);
        let len = stream.len;
        out.get_mut(..len)?.copy_from_slice(&self.stream[..len]);
        Some(len)
    }

    /// Memory held, in bytes.
    pub fn context_bytes(&self) -> usize {
        (2 << HASH_BITS) + STREAM_BYTES_MAX
    }
}

struct Stream<'a> {
    bytes: &'a mut [u8; STREAM_BYTES_MAX],
    len: usize,
    /// Where the instructions begin.
    start: usize,
    /// Where the last match or run has its two spare bits.
    spare: usize,
}

impl Stream<'_> {
    #[inline(always)]
    fn push<const N: usize>(&mut self, bytes: &[u8; N]) {
        self.bytes[self.len..self.len + N].copy_from_slice(bytes);
        self.len += N;
    }

    /// The part of a length beyond what the instruction holds; at least 1.
    #[inline(always)]
    fn push_rest(&mut self, mut rest: usize) {
        while rest > 255 {
            self.push(&[0]);
            rest -= 255;
        }
        self.push(&[rest as u8]);
    }

    #[inline(always)]
    fn push_literals(&mut self, page: &Page, from: usize, to: usize) {
        let count = to - from;
        if self.len == self.start && count <= 238 {
            self.push(&[(17 + count) as u8]);
        } else if count <= 3 {
            // Not at the start of the stream: at least one literal comes before the first match.
            self.bytes[self.spare] |= count as u8;
        } else if count <= 18 {
            self.push(&[(count - 3) as u8]);
        } else {
            self.push(&[0]);
            self.push_rest(count - 18);
        }
        // Most runs are short: 16 bytes at once, running over into what comes next.
        if count <= 16 && from + 16 <= PAGE_SIZE {
            self.bytes[self.len..self.len + 16].copy_from_slice(&page[from..from + 16]);
        } else {
            self.bytes[self.len..self.len + count].copy_from_slice(&page[from..to]);
        }
        self.len += count;
    }

    #[inline(always)]
    fn push_match(&mut self, distance: usize, len: usize) {
        let d = distance - 1;
        if len <= 8 && d < 2048 {
            self.spare = self.len;
            self.push(&[(((len - 1) << 5) | ((d & 7) << 2)) as u8, (d >> 3) as u8]);
            return;
        }
        if len <= 33 {
            self.push(&[(32 | (len - 2)) as u8]);
        } else {
            self.push(&[32]);
            self.push_rest(len - 33);
        }
        self.spare = self.len;
        self.push(&((d << 2) as u16).to_le_bytes());
    }

    #[inline(always)]
    fn push_zeros(&mut self, len: usize) {
        let len = len - RUN_BYTES_BASE;
        self.spare = self.len + 1;
        self.push(&[(0x18 | (len & 7)) as u8, 0xfc, 0xff, (len >> 3) as u8]);
    }
}

/// How many literals the previous instruction copied decides how `0000xxxx` is read: none, 1 to 3,
/// or this for more.
const MANY: usize = 4;

struct Reader<'a> {
    stored: &'a [u8],
    at: usize,
}

impl Reader<'_> {
    #[inline(always)]
    fn byte(&mut self) -> Result<usize, Corrupt> {
        let byte = *self.stored.get(self.at).ok_or(Corrupt)?;
        self.at += 1;
        Ok(usize::from(byte))
    }

    #[inline(always)]
    fn pair(&mut self) -> Result<usize, Corrupt> {
        let low = self.byte()?;
        Ok(low | self.byte()? << 8)
    }

    /// A length of which the instruction holds `bits`, or if they are 0, `base` and more.
    #[inline(always)]
    fn len(&mut self, bits: usize, base: usize) -> Result<usize, Corrupt> {
        if bits != 0 {
            return Ok(bits);
        }
        let mut len = base;
        loop {
            let byte = self.byte()?;
            if byte != 0 {
                return Ok(len + byte);
            }
            len += 255;
            if len > PAGE_SIZE {
                return Err(Corrupt);
            }
        }
    }

    #[inline(always)]
    fn literals(&mut self, page: &mut Page, to: usize, count: usize) -> Result<usize, Corrupt> {
        let from = self.at;
        let end = to + count;
        if count <= 16 && from + 16 <= self.stored.len() && to + 16 <= PAGE_SIZE {
            page[to..to + 16].copy_from_slice(&self.stored[from..from + 16]);
        } else {
            let source = self.stored.get(from..from + count).ok_or(Corrupt)?;
            page.get_mut(to..end).ok_or(Corrupt)?.copy_from_slice(source);
        }
        self.at += count;
        Ok(end)
    }
}

#[inline(always)]
fn copy_chunk<const N: usize>(page: &mut Page, from: usize, to: usize) {
    let mut chunk = [0; N];
    chunk.copy_from_slice(&page[from..from + N]);
    page[to..to + N].copy_from_slice(&chunk);
}

/// Copies a match to `to` and returns the end of it. May write rubbish behind the end, which the
/// next instruction overwrites.
#[inline(always)]
fn copy_match(page: &mut Page, to: usize, distance: usize, len: usize) -> Result<usize, Corrupt> {
    let end = to + len;
    if distance > to || end > PAGE_SIZE {
        return Err(Corrupt);
    }
    let from = to - distance;
    if distance >= 8 && end + 16 <= PAGE_SIZE {
        if len <= 8 {
            copy_chunk::<8>(page, from, to);
        } else if distance >= 16 {
            let mut done = 0;
            while done < len {
                copy_chunk::<16>(page, from + done, to + done);
                done += 16;
            }
        } else {
            let mut done = 0;
            while done < len {
                copy_chunk::<8>(page, from + done, to + done);
                done += 8;
            }
        }
    } else if distance == 1 {
        let byte = page[from];
        page[to..end].fill(byte);
    } else if len <= distance {
        page.copy_within(from..from + len, to);
    } else {
        // A pattern shorter than its copy: what is there doubles until it is enough.
        let mut ready = distance;
        let mut done = 0;
        while done < len {
            let chunk = ready.min(len - done);
            page.copy_within(from..from + chunk, to + done);
            done += chunk;
            ready += chunk;
        }
    }
    Ok(end)
}

/// What the quick part of the decoder may read and write in one step: an instruction of up to 3
/// bytes and 16 literals or more; a match of 33 bytes in steps of 8 and 4 literals.
const FAST_INPUT: usize = 20;
const FAST_OUTPUT: usize = 48;

/// Copies a match in steps of up to 8 bytes, the last of which may run over.
#[inline(always)]
fn copy_near_match(page: &mut Page, to: usize, distance: usize, len: usize) {
    let from = to - distance;
    let mut done = 0;
    if distance >= 8 {
        copy_chunk::<8>(page, from, to);
        while done + 8 < len {
            done += 8;
            copy_chunk::<8>(page, from + done, to + done);
        }
        return;
    }
    // A pattern shorter than a step: as often as it fits into one.
    let mut pattern = read8(page, from) & ((1 << (8 * distance)) - 1);
    let mut shift = 8 * distance;
    while shift < 64 {
        pattern |= pattern << shift;
        shift *= 2;
    }
    while done < len {
        page[to + done..to + done + 8].copy_from_slice(&pattern.to_le_bytes());
        done += 8 - 8 % distance;
    }
}

/// Decodes a stream of version 0 that must fill the page exactly and end with its end mark.
pub fn decode(stored: &[u8], page: &mut Page) -> Result<(), Corrupt> {
    decode_as::<false>(stored, 0, page)
}

/// Decodes a stream of either version.
pub fn decode_with_zero_runs(stored: &[u8], page: &mut Page) -> Result<(), Corrupt> {
    if stored.starts_with(&VERSION_1) && stored.len() >= VERSIONED_BYTES_MIN {
        decode_as::<true>(stored, VERSION_1.len(), page)
    } else {
        decode_as::<false>(stored, 0, page)
    }
}

/// Decodes instructions from `start` on, with or without the one for zeros.
fn decode_as<const ZERO_RUNS: bool>(
    stored: &[u8],
    start: usize,
    page: &mut Page,
) -> Result<(), Corrupt> {
    let mut reader = Reader { stored, at: start };
    let mut to = 0;
    let mut literals_before = 0;
    let first = usize::from(*stored.get(start).ok_or(Corrupt)?);
    if first > 17 {
        reader.at += 1;
        to = reader.literals(page, 0, first - 17)?;
        literals_before = MANY.min(first - 17);
    }
    loop {
        // Most instructions, without a look at the ends of stream and page for each byte.
        while let Some(input) = stored.get(reader.at..).and_then(|s| s.first_chunk::<FAST_INPUT>())
        {
            if to + FAST_OUTPUT > PAGE_SIZE {
                break;
            }
            let op = usize::from(input[0]);
            if op > 32 {
                let pair = usize::from(u16::from_le_bytes([input[1], input[2]]));
                // Without a branch: which of the two comes next is hard to foresee.
                let near = op >= 64;
                let near_distance = ((pair & 255) << 3) + ((op >> 2) & 7) + 1;
                let distance = if near { near_distance } else { (pair >> 2) + 1 };
                let len = if near { (op >> 5) + 1 } else { (op & 31) + 2 };
                let spare = if near { op } else { pair } & 3;
                let used = if near { 2 } else { 3 };
                if distance > to {
                    return Err(Corrupt);
                }
                copy_near_match(page, to, distance, len);
                to += len;
                // Up to three literals without asking how many: what is too much is overwritten.
                page[to..to + 4].copy_from_slice(&input[used..used + 4]);
                to += spare;
                reader.at += used + spare;
                literals_before = spare;
            } else if literals_before == 0 && op != 0 && op < 16 {
                page[to..to + 18].copy_from_slice(&input[1..19]);
                to += op + 3;
                reader.at += op + 4;
                literals_before = MANY;
            } else {
                break;
            }
        }
        let op = reader.byte()?;
        let (len, distance, spare);
        if op >= 64 {
            len = (op >> 5) + 1;
            distance = (reader.byte()? << 3) + ((op >> 2) & 7) + 1;
            spare = op & 3;
        } else if op >= 32 {
            len = reader.len(op & 31, 31)? + 2;
            let pair = reader.pair()?;
            distance = (pair >> 2) + 1;
            spare = pair & 3;
        } else if op >= 16 {
            // A match would be farther back than a page is long.
            let pair = reader.pair()?;
            if op == 17 && pair == 0 && to == PAGE_SIZE && reader.at == stored.len() {
                return Ok(());
            }
            if !ZERO_RUNS || op < 0x18 || pair >> 2 != RUN_MARK {
                return Err(Corrupt);
            }
            let end = to + ((reader.byte()? << 3) | (op & 7)) + RUN_BYTES_BASE;
            page.get_mut(to..end).ok_or(Corrupt)?.fill(0);
            literals_before = pair & 3;
            to = reader.literals(page, end, literals_before)?;
            continue;
        } else if literals_before == 0 {
            let count = reader.len(op, 15)? + 3;
            to = reader.literals(page, to, count)?;
            literals_before = MANY;
            continue;
        } else {
            let (short_len, base) = if literals_before < MANY { (2, 1) } else { (3, 2049) };
            len = short_len;
            distance = (reader.byte()? << 2) + (op >> 2) + base;
            spare = op & 3;
        }
        to = copy_match(page, to, distance, len)?;
        literals_before = spare;
        to = reader.literals(page, to, spare)?;
    }
}
