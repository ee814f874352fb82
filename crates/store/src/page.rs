//! What can be said about a page before any codec sees it: same-filled or not, and its checksum.
//!
//! The checksum guards the tier against itself (a wrong handle, a torn move, a decoder bug), not
//! against an adversary: 32 bits of XXH3, so that another page, swapped words or a flipped bit go
//! unseen once in 2^32. It takes about 400 cycles a page in a build for any x86-64 (SSE2); four
//! lanes of wyhash-like folding took as long, and a library that others test beats own code.

use crate::{Page, PAGE_SIZE};
use xxhash_rust::xxh3::xxh3_64;

/// A 32-bit checksum of a page's content.
pub fn checksum(page: &Page) -> u32 {
    xxh3_64(page) as u32
}

/// The word that fills the whole page, if one does. Such a page needs no codec: its state word
/// can hold the content.
///
/// Most pages answer after two comparisons, because the first words differ.
pub fn same_filled(page: &Page) -> Option<u64> {
    let word = |n: usize| {
        let mut w = [0; 8];
        w.copy_from_slice(&page[n * 8..n * 8 + 8]);
        u64::from_ne_bytes(w)
    };
    let first = word(0);
    // The last word before the rest: pages that begin with a run of zeros rarely end with one.
    if word(PAGE_SIZE / 8 - 1) != first {
        return None;
    }
    // Blocks of 64 words, each without a branch, so that the compiler compares 16 bytes at a time.
    for block in 0..PAGE_SIZE / 512 {
        let differ = (block * 64..block * 64 + 64).fold(0, |d, n| d | (word(n) ^ first));
        if differ != 0 {
            return None;
        }
    }
    Some(first)
}

/// What a page would take if each byte were coded by how often it is there and nothing else, in
/// bytes: what a codec with an entropy coder surely gets, but for its tables. Takes 2 to 3 us.
pub fn entropy_bytes(page: &Page) -> usize {
    // Four counts, so that equal neighbours do not wait for each other.
    let mut counts = [[0u16; 256]; 4];
    for bytes in page.as_chunks::<4>().0 {
        for (count, byte) in counts.iter_mut().zip(bytes) {
            count[usize::from(*byte)] += 1;
        }
    }
    let page_log2 = log2_256ths(PAGE_SIZE as u32);
    let mut bits_256ths = 0;
    for symbol in 0..256 {
        let n: u32 = counts.iter().map(|c| u32::from(c[symbol])).sum();
        if n > 0 {
            bits_256ths += n * (page_log2 - log2_256ths(n));
        }
    }
    bits_256ths as usize / (256 * 8)
}

/// The logarithm of a number from 1 to 2^30, rounded down to 256ths. In whole numbers, because
/// those of floating point are in a library that we do not want to need.
fn log2_256ths(n: u32) -> u32 {
    // A number of one to two, times 2^30; squaring it doubles its logarithm.
    let mut x = u64::from(n) << (30 - n.ilog2());
    let mut log = n.ilog2();
    for _ in 0..8 {
        x = (x * x) >> 30;
        let carry = (x >> 31) as u32;
        x >>= carry;
        log = log << 1 | carry;
    }
    log
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn same_filled_finds_only_same_filled() {
        let mut page = [0u8; PAGE_SIZE];
        assert_eq!(same_filled(&page), Some(0));
        page[2000] = 1;
        assert_eq!(same_filled(&page), None);
        page = core::array::from_fn(|i| (i % 8) as u8);
        assert_eq!(same_filled(&page), Some(u64::from_ne_bytes([0, 1, 2, 3, 4, 5, 6, 7])));
        page = core::array::from_fn(|i| (i % 16) as u8);
        assert_eq!(same_filled(&page), None);
    }

    #[test]
    fn entropy_is_that_of_the_bytes() {
        assert_eq!(entropy_bytes(&[7; PAGE_SIZE]), 0);
        // 256 symbols, each as often: 8 bits a byte. 16 symbols: 4.
        assert_eq!(entropy_bytes(&core::array::from_fn(|i| i as u8)), PAGE_SIZE);
        assert_eq!(entropy_bytes(&core::array::from_fn(|i| (i % 16) as u8)), PAGE_SIZE / 2);
    }

    #[test]
    fn checksum_sees_every_bit_and_every_swap() {
        for filler in [0u8, 0xff, 0x5a] {
            let mut page = [filler; PAGE_SIZE];
            let mut seen = std::collections::BTreeSet::from([checksum(&page)]);
            for bit in 0..PAGE_SIZE * 8 {
                page[bit / 8] ^= 1 << (bit % 8);
                seen.insert(checksum(&page));
                page[bit / 8] ^= 1 << (bit % 8);
            }
            // 32,769 values in 2^32: about 0.12 collisions expected.
            assert!(seen.len() >= PAGE_SIZE * 8 - 1, "{} distinct", seen.len());
        }
        let page: Page = core::array::from_fn(|i| (i / 8) as u8 ^ (i / 2048) as u8);
        let whole = checksum(&page);
        for a in (0..512).step_by(7) {
            for b in (a + 1..512).step_by(13) {
                let mut swapped = page;
                for i in 0..8 {
                    swapped.swap(a * 8 + i, b * 8 + i);
                }
                assert_eq!(checksum(&swapped) == whole, swapped == page, "words {a}, {b}");
            }
        }
    }
}
