//! The checksum at the end of an 842 stream: the CRC of IEEE 802.3, most significant bit first,
//! starting from 0 and not inverted.
//!
//! A CRC without start value and inversion is linear: that of two pieces together is that of the
//! first, moved on by as many zeros as the second is long, xor that of the second. So the page is
//! taken as four pieces at the same time, which hides the latency of the table look-ups, and the
//! results are joined at the end.

use crate::{Page, PAGE_SIZE};

const POLYNOMIAL: u32 = 0x04c1_1db7;
const PIECE_BYTES: usize = PAGE_SIZE / 4;

/// `STEP[n][byte]`: the CRC of that byte followed by n zeros.
static STEP: [[u32; 256]; 8] = step_table();

/// `ALONG[n][byte]`: what byte n of a CRC (0 the lowest) becomes over a piece of zeros.
static ALONG: [[u32; 256]; 4] = along_table();

const fn step_table() -> [[u32; 256]; 8] {
    let mut table = [[0; 256]; 8];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = (byte as u32) << 24;
        let mut bit = 0;
        while bit < 8 {
            crc = (crc << 1) ^ if crc >> 31 == 1 { POLYNOMIAL } else { 0 };
            bit += 1;
        }
        table[0][byte] = crc;
        byte += 1;
    }
    let mut zeros = 1;
    while zeros < 8 {
        let mut byte = 0;
        while byte < 256 {
            let crc: u32 = table[zeros - 1][byte];
            table[zeros][byte] = (crc << 8) ^ table[0][(crc >> 24) as usize];
            byte += 1;
        }
        zeros += 1;
    }
    table
}

const fn along_table() -> [[u32; 256]; 4] {
    let step = step_table();
    // First for each bit alone; any other value is a sum of those.
    let mut of_bit = [0u32; 32];
    let mut bit = 0;
    while bit < 32 {
        let mut crc = 1u32 << bit;
        let mut zeros = 0;
        while zeros < PIECE_BYTES {
            crc = (crc << 8) ^ step[0][(crc >> 24) as usize];
            zeros += 1;
        }
        of_bit[bit] = crc;
        bit += 1;
    }
    let mut table = [[0; 256]; 4];
    let mut entry = 0;
    while entry < 4 * 256 {
        let (place, byte) = (entry / 256, entry % 256);
        let mut bit = 0;
        while bit < 8 {
            if byte >> bit & 1 == 1 {
                table[place][byte] ^= of_bit[8 * place + bit];
            }
            bit += 1;
        }
        entry += 1;
    }
    table
}

#[inline(always)]
fn eight(crc: u32, bytes: &[u8]) -> u32 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[..8]);
    let b = (u64::from_be_bytes(word) ^ (u64::from(crc) << 32)).to_be_bytes();
    let mut sum = 0;
    for n in 0..8 {
        sum ^= STEP[7 - n][usize::from(b[n])];
    }
    sum
}

fn along(crc: u32) -> u32 {
    let b = crc.to_le_bytes();
    (0..4).fold(0, |sum, n| sum ^ ALONG[n][usize::from(b[n])])
}

/// The checksum of a page.
pub fn of(page: &Page) -> u32 {
    let mut crcs = [0; 4];
    let mut at = 0;
    while at < PIECE_BYTES {
        for (n, crc) in crcs.iter_mut().enumerate() {
            let from = n * PIECE_BYTES + at;
            *crc = eight(*crc, &page[from..from + 8]);
        }
        at += 8;
    }
    crcs.into_iter().fold(0, |before, crc| along(before) ^ crc)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Random;

    #[test]
    fn equals_the_definition_bit_by_bit() {
        let mut random = Random(41);
        for _ in 0..20 {
            let mut page = [0; PAGE_SIZE];
            page.fill_with(|| random.word() as u8);
            let mut crc = 0u32;
            for byte in page {
                for bit in (0..8).rev() {
                    let carry = (crc >> 31) ^ u32::from(byte >> bit & 1);
                    crc = (crc << 1) ^ (carry * POLYNOMIAL);
                }
            }
            assert_eq!(of(&page), crc);
        }
    }
}
