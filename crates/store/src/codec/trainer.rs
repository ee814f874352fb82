//! Chooses what goes into a dictionary: the pieces of sample pages that most other pages have, too.
//!
//! A dictionary is text that every page is encoded behind, so that matches reach into it. What it
//! is worth to hold is what *several* pages contain: repeats within one page are found without it.
//! So each sequence of 8 bytes counts once for each sample page that it occurs in, and a piece of
//! a given length is worth the sum over its sequences of the *other* pages that have them. The
//! most valuable piece is taken, its sequences are worth nothing from then on, and so forth: the
//! greedy solution of a maximum coverage problem, within 37 % of the best there is. Values only
//! fall, so a piece at the top of a heap whose value is still the one it was filed under is the
//! best of all (Minoux's lazy evaluation), and few have to be valued twice.
//!
//! It is our own, and not zstd's trainer, because that one calls `malloc`, which in a runtime is
//! the application's; and its result serves LZ4 as well. Allocates up to 3 MiB for its duration.

use crate::{Page, PAGE_SIZE};
use std::collections::BinaryHeap;

/// Bytes of a sequence that counts as one thing.
const GRAM_BYTES: usize = 8;
/// Lengths of a piece that are worth a try. Long pieces carry what is only in one page, short ones
/// cut records in the middle; which is worse depends on the application.
pub const PIECE_BYTES: [usize; 2] = [64, 512];
/// Bits of the table of counts.
const TABLE_BITS: u32 = 19;

/// Most sample pages that are looked at: more would crowd the table.
pub const SAMPLES_MAX: usize = 512;

struct Counts<'a> {
    pages: &'a [&'a Page],
    /// By hash of a sequence: how many pages have it.
    pages_with: Vec<u16>,
    /// By hash: the last page (from 1) that was counted; scratch for each valuation, too.
    last: Vec<u16>,
}

fn hash(page: &Page, at: usize) -> usize {
    let mut word = [0; GRAM_BYTES];
    word.copy_from_slice(&page[at..at + GRAM_BYTES]);
    (u64::from_le_bytes(word).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - TABLE_BITS)) as usize
}

impl Counts<'_> {
    fn new<'a>(pages: &'a [&'a Page]) -> Counts<'a> {
        let mut pages_with = vec![0u16; 1 << TABLE_BITS];
        let mut last = vec![0u16; 1 << TABLE_BITS];
        for (n, page) in pages.iter().enumerate() {
            for at in 0..=PAGE_SIZE - GRAM_BYTES {
                let h = hash(page, at);
                if last[h] != n as u16 + 1 {
                    last[h] = n as u16 + 1;
                    pages_with[h] += 1;
                }
            }
        }
        last.fill(0);
        Counts { pages, pages_with, last }
    }

    /// What a piece is worth now. A sequence that occurs twice in it counts once.
    fn value(&mut self, piece: Piece, len: usize) -> u32 {
        let page = self.pages[usize::from(piece.page)];
        let start = usize::from(piece.at);
        let grams = start..=start + len - GRAM_BYTES;
        let mut value = 0;
        for at in grams.clone() {
            let h = hash(page, at);
            if self.last[h] == 0 {
                self.last[h] = 1;
                value += u32::from(self.pages_with[h].saturating_sub(1));
            }
        }
        for at in grams {
            self.last[hash(page, at)] = 0;
        }
        value
    }

    fn take(&mut self, piece: Piece, len: usize) -> &[u8] {
        let page = self.pages[usize::from(piece.page)];
        let start = usize::from(piece.at);
        for at in start..=start + len - GRAM_BYTES {
            self.pages_with[hash(page, at)] = 0;
        }
        &page[start..start + len]
    }
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Piece {
    page: u16,
    at: u16,
}

/// A dictionary of at most `bytes_max` bytes out of sample pages (the first [`SAMPLES_MAX`] of
/// them), in pieces of `len` bytes, 16 to 4096. Empty if the pages have nothing in common. The most
/// valuable pieces stand last, next to
/// the page, where matches are cheapest to name.
pub fn train(pages: &[&Page], bytes_max: usize, len: usize) -> Vec<u8> {
    let len = len.clamp(2 * GRAM_BYTES, PAGE_SIZE);
    let pages = &pages[..pages.len().min(SAMPLES_MAX)];
    let mut counts = Counts::new(pages);
    let mut heap = BinaryHeap::new();
    for page in 0..pages.len() {
        for at in (0..=PAGE_SIZE - len).step_by(len / 2) {
            let piece = Piece { page: page as u16, at: at as u16 };
            let value = counts.value(piece, len);
            if value > 0 {
                heap.push((value, piece));
            }
        }
    }
    // Filled from the end, the best piece last.
    let mut dictionary = vec![0; bytes_max];
    let mut free = bytes_max;
    while free >= len {
        let Some((filed, piece)) = heap.pop() else { break };
        let value = counts.value(piece, len);
        if value == 0 {
            continue;
        }
        if value < filed {
            heap.push((value, piece));
            continue;
        }
        dictionary[free - len..free].copy_from_slice(counts.take(piece, len));
        free -= len;
    }
    dictionary.split_off(free)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Random;

    #[test]
    fn what_pages_share_is_taken_and_noise_is_not() {
        let mut random = Random(1);
        let shared: Vec<u8> = (0..256).map(|_| random.word() as u8).collect();
        let mut pages: Vec<Box<Page>> = Vec::new();
        for _ in 0..40 {
            let mut page = Box::new([0u8; PAGE_SIZE]);
            page.fill_with(|| random.word() as u8);
            let at = random.below(PAGE_SIZE - 256);
            page[at..at + 256].copy_from_slice(&shared);
            pages.push(page);
        }
        let refs: Vec<&Page> = pages.iter().map(|p| &**p).collect();
        let dictionary = train(&refs, 512, 64);
        let found = (0..256 - 32)
            .filter(|at| dictionary.windows(32).any(|w| w == &shared[*at..*at + 32]))
            .count();
        assert!(found > 120, "only {found} of 224 places of the shared text are covered");
    }

    #[test]
    fn nothing_in_common_is_no_dictionary() {
        let mut random = Random(2);
        let mut page = [0u8; PAGE_SIZE];
        page.fill_with(|| random.word() as u8);
        assert!(train(&[&page], 1 << 14, 64).is_empty());
        assert!(train(&[], 1 << 14, 64).is_empty());
    }
}
