//! Our own formats once more, decoded as their descriptions say and with no thought of speed. The
//! fuzzer compares: what these refuse the real decoders must refuse, and the other way round.

use super::crc32;
use crate::PAGE_SIZE;

/// LZO1X, version 0 or 1 of the bitstream; `None` for what is no page. Reads as the table in
/// [`super::lzo`] says.
pub fn lzo(stored: &[u8], version_1_too: bool) -> Option<Vec<u8>> {
    let mut input = stored.iter().copied();
    let mut version = 0;
    if version_1_too && stored.len() >= 5 && stored[..2] == [17, 1] {
        version = 1;
        input.nth(1);
    }
    let mut page: Vec<u8> = Vec::new();
    // Literals that the instruction before has copied, 4 standing for more.
    let mut literals_before = 0;
    let first = usize::from(input.clone().next()?);
    if first > 17 {
        input.next();
        for _ in 0..first - 17 {
            page.push(input.next()?);
        }
        literals_before = (first - 17).min(4);
    }
    loop {
        if page.len() > PAGE_SIZE {
            return None;
        }
        let op = usize::from(input.next()?);
        let mut long = |bits: usize, all_ones: usize| {
            if bits != 0 {
                return Some(bits);
            }
            let mut sum = all_ones;
            loop {
                match input.next()? {
                    0 => sum += 255,
                    byte => return Some(sum + usize::from(byte)),
                }
            }
        };
        let (len, distance, spare);
        match (op, literals_before) {
            (0..=15, 0) => {
                for _ in 0..long(op, 15)? + 3 {
                    page.push(input.next()?);
                }
                literals_before = 4;
                continue;
            }
            (0..=15, before) => {
                let high = usize::from(input.next()?);
                let base = if before == 4 { 2049 } else { 1 };
                (len, distance) = (if before == 4 { 3 } else { 2 }, high * 4 + op / 4 % 4 + base);
                spare = op % 4;
            }
            (16..=31, _) => {
                let pair = usize::from(input.next()?) + usize::from(input.next()?) * 256;
                if version == 1 && op >= 24 && pair / 4 == 0x3fff {
                    let zeros = usize::from(input.next()?) * 8 + op % 8 + 4;
                    page.resize(page.len() + zeros, 0);
                    (len, distance) = (0, 1);
                    spare = pair % 4;
                } else {
                    let end = op == 17 && pair == 0;
                    let whole = page.len() == PAGE_SIZE && input.next().is_none();
                    return (end && whole).then_some(page);
                }
            }
            (32..=63, _) => {
                len = long(op % 32, 31)? + 2;
                let pair = usize::from(input.next()?) + usize::from(input.next()?) * 256;
                distance = pair / 4 + 1;
                spare = pair % 4;
            }
            _ => {
                distance = usize::from(input.next()?) * 8 + op / 4 % 8 + 1;
                len = op / 32 + 1;
                spare = op % 4;
            }
        }
        for _ in 0..len {
            page.push(*page.get(page.len().checked_sub(distance)?)?);
        }
        for _ in 0..spare {
            page.push(input.next()?);
        }
        literals_before = spare;
    }
}

/// 842; `None` for what is no page.
pub fn c842(stored: &[u8]) -> Option<Vec<u8>> {
    let (page, crc_at) = c842_but_for_the_checksum(stored)?;
    let whole: &crate::Page = page.as_slice().try_into().ok()?;
    (bits(stored, crc_at, 32)? == crc32::of(whole) as usize).then_some(page)
}

/// The number in up to 32 bits that begin at bit `at`, most significant first.
fn bits(stored: &[u8], at: usize, count: usize) -> Option<usize> {
    let bytes = stored.get(at / 8..(at + count).div_ceil(8))?;
    let whole = bytes.iter().fold(0u64, |sum, byte| sum * 256 + u64::from(*byte));
    let behind = 8 * bytes.len() - at % 8 - count;
    Some((whole >> behind) as usize & ((1 << count) - 1))
}

/// The page, and the bit of the stream at which its checksum begins, right or wrong. Templates are
/// written as the format's name would have it.
pub fn c842_but_for_the_checksum(stored: &[u8]) -> Option<(Vec<u8>, usize)> {
    #[rustfmt::skip]
    const TEMPLATES: [&str; 26] = [
        "D8", "D4D2I2", "D4I2D2", "D4I2I2", "D4I4", "D2I2D4", "D2I2D2I2", "D2I2I2D2", "D2I2I2I2",
        "D2I2I4", "I2D2D4", "I2D4I2", "I2D2I2D2", "I2D2I2I2", "I2D2I4", "I2I2D4", "I2I2D2I2",
        "I2I2I2D2", "I2I2I2I2", "I2I2I4", "I4D4", "I4D2I2", "I4I2D2", "I4I2I2", "I4I4", "I8",
    ];
    let mut at = 0;
    let mut take = |count: usize| {
        at += count;
        bits(stored, at - count, count)
    };
    let mut page: Vec<u8> = Vec::new();
    while page.len() <= PAGE_SIZE {
        match take(5)? {
            0x1b => {
                for _ in 0..=take(6)? {
                    page.extend_from_within(page.len().checked_sub(8)?..);
                }
            }
            0x1c => page.extend([0; 8]),
            0x1e => {
                take(32)?;
                let padded = at.div_ceil(64) * 8;
                let good = page.len() == PAGE_SIZE && padded == stored.len();
                return good.then_some((page, at - 32));
            }
            op => {
                let parts = TEMPLATES.get(op)?.as_bytes().chunks(2);
                // An index does not reach into its own block.
                let past = page.len();
                for part in parts {
                    let size = usize::from(part[1] - b'0');
                    if part[0] == b'D' {
                        for _ in 0..size {
                            page.push(take(8)? as u8);
                        }
                        continue;
                    }
                    let index_bits = if size == 4 { 9 } else { 8 };
                    let (index, window) = (take(index_bits)?, size << index_bits);
                    // Of the places with this index, the last before the block.
                    let place = (index * size..past).step_by(window).next_back()?;
                    page.extend_from_within(place..place + size);
                }
            }
        }
    }
    None
}
