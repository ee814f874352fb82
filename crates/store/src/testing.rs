//! What the tests of this crate share: a seeded generator and pages of many kinds.

use crate::{Page, PAGE_SIZE};

/// A seeded generator (splitmix64): the same seed gives the same test, everywhere.
pub struct Random(pub u64);

impl Random {
    /// The next 64 bits.
    pub fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `end`.
    pub fn below(&mut self, end: usize) -> usize {
        (self.word() % end as u64) as usize
    }
}

/// A page of one of many kinds: zeros, noise, text, runs, records, pointers among zeros, and noise
/// with a few repeats. `codec/vectors/` holds what others made of these pages: whoever changes them
/// makes the vectors anew.
pub fn page(random: &mut Random) -> Page {
    let mut page = [0; PAGE_SIZE];
    match random.below(8) {
        0 => page.fill(random.word() as u8 * (random.below(2) as u8)),
        1 => page.fill_with(|| random.word() as u8),
        2 => text(random, &mut page),
        3 => runs(random, &mut page),
        4 => records(random, &mut page),
        5 => {
            // Few symbols: many short matches at all distances.
            let symbols = 2 + random.below(14);
            page.fill_with(|| random.below(symbols) as u8);
        }
        6 => pointers(random, &mut page),
        _ => {
            page.fill_with(|| random.word() as u8);
            for _ in 0..random.below(200) {
                let len = 1 + random.below(70);
                let (from, to) = (random.below(PAGE_SIZE - len), random.below(PAGE_SIZE - len));
                page.copy_within(from..from + len, to);
            }
        }
    }
    page
}

fn text(random: &mut Random, page: &mut Page) {
    const WORDS: [&str; 16] = [
        "page",
        "the",
        "of",
        "region",
        "and",
        "window",
        "fault",
        "a",
        "memory",
        "to",
        "tier",
        "compressed",
        "in",
        "hotness",
        "\n",
        "budget. ",
    ];
    let mut at = 0;
    while at < PAGE_SIZE {
        for byte in WORDS[random.below(WORDS.len())].bytes().chain([b' ']) {
            if at < PAGE_SIZE {
                page[at] = byte;
                at += 1;
            }
        }
    }
}

fn runs(random: &mut Random, page: &mut Page) {
    let mut at = 0;
    while at < PAGE_SIZE {
        let end = (at + 1 + random.below(600)).min(PAGE_SIZE);
        page[at..end].fill(random.word() as u8);
        at = end;
    }
}

fn records(random: &mut Random, page: &mut Page) {
    let size = 8 + random.below(100);
    for (n, record) in page.chunks_mut(size).enumerate() {
        record[0] = n as u8;
        if let Some(last) = record.last_mut() {
            *last = random.word() as u8;
        }
    }
}

/// A heap: words with equal upper bytes and small numbers, with longer and shorter gaps.
fn pointers(random: &mut Random, page: &mut Page) {
    let base = random.word() & 0x7fff_ffff_0000;
    let longest = 1 + random.below(60);
    let mut at = random.below(24);
    while at + 8 <= PAGE_SIZE {
        let word = if random.below(3) == 0 {
            random.word() & 0xff
        } else {
            base | (random.word() & 0xfff8)
        };
        page[at..at + 8].copy_from_slice(&word.to_le_bytes());
        at += 8 + 8 * random.below(longest);
        if random.below(20) == 0 {
            at += random.below(2200);
        }
    }
}
