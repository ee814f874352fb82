//! What a region's pages shrink to, kept from the pages that movers encode anyway.
//!
//! A mover counts into a [`Tally`] while it carries a region into a tier, and puts that into the
//! region's [`Shrinkage`], which stays when the pages come home. One mover at a time has a region,
//! so that there is one writer; the agent reads. A hint for the planner: nothing is ordered by it.

use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU8, Ordering};
use terrace_core::shrink::Shrunk;
use terrace_core::state::PAGE_BYTES;
use terrace_core::tier::{TierId, MAX_TIERS};

/// Pages that replace what was known; fewer of them move it by their share.
const PAGES_SURE: f64 = 128.0;
/// Pages from which something is said of a region that nothing is known of.
const PAGES_MIN: u32 = 16;
/// Windows after which a region that is at home is tried anew: its pages may have changed.
const FORGET_WINDOWS: u32 = 64;

const STORED_ONE: f64 = 32_768.0;
const REFUSED_ONE: f64 = 255.0;

/// What one pass of a mover made of a region's pages in one tier.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    /// Pages that were taken and have a size of their own.
    taken: u32,
    taken_bytes: u64,
    /// All that were tried.
    tried: u32,
}

impl Tally {
    /// A page was taken, as so many bytes if it has a size of its own.
    pub fn took(&mut self, bytes: Option<usize>) {
        self.tried += 1;
        if let Some(bytes) = bytes {
            self.taken += 1;
            self.taken_bytes += bytes as u64;
        }
    }

    /// A page does not shrink enough.
    pub fn refused(&mut self) {
        self.tried += 1;
    }
}

/// What is known of one region, by tier.
#[derive(Debug)]
pub struct Shrinkage {
    /// In 1/32768, at least 1 where something was taken.
    stored: [AtomicU16; MAX_TIERS],
    refused: [AtomicU8; MAX_TIERS],
    /// Window in which something was learnt last; 0 while nothing is known.
    learnt_in: AtomicU32,
}

impl Default for Shrinkage {
    fn default() -> Shrinkage {
        Shrinkage {
            stored: [const { AtomicU16::new(0) }; MAX_TIERS],
            refused: [const { AtomicU8::new(0) }; MAX_TIERS],
            learnt_in: AtomicU32::new(0),
        }
    }
}

impl Shrinkage {
    /// Puts in what one pass made of the pages for `tier`. `refused` is the share of the region's
    /// pages that the tier would not take, in this pass or of late.
    pub fn learn(&self, tier: TierId, tally: Tally, refused: f64, window: u32) {
        let n = tier.index();
        let stored_was = self.stored[n].load(RELAXED);
        if tally.tried == 0 || !self.knows(tier) && tally.tried < PAGES_MIN {
            return;
        }
        self.refused[n].store((refused.clamp(0.0, 1.0) * REFUSED_ONE).round() as u8, RELAXED);
        if tally.taken > 0 {
            let bytes = f64::from(tally.taken) * PAGE_BYTES as f64;
            let seen = tally.taken_bytes as f64 / bytes;
            let weight = (f64::from(tally.taken) / PAGES_SURE).min(1.0);
            let was = f64::from(stored_was) / STORED_ONE;
            let stored = if stored_was > 0 { was + (seen - was) * weight } else { seen };
            let steps = (stored * STORED_ONE).round().clamp(1.0, STORED_ONE);
            self.stored[n].store(steps as u16, RELAXED);
        }
        self.learnt_in.store(window.max(1), RELAXED);
    }

    /// Puts in that the tier would take none of the region's pages, as far as a look at a few says.
    pub fn refuse(&self, tier: TierId, window: u32) {
        let n = tier.index();
        self.stored[n].store(0, RELAXED);
        self.refused[n].store(REFUSED_ONE as u8, RELAXED);
        self.learnt_in.store(window.max(1), RELAXED);
    }

    /// Whether anything is known of the region in this tier.
    pub fn knows(&self, tier: TierId) -> bool {
        let n = tier.index();
        self.stored[n].load(RELAXED) > 0 || self.refused[n].load(RELAXED) > 0
    }

    /// What is known. A region of which nothing is stored is forgotten after a while.
    pub fn read(&self, window: u32, is_home: bool) -> Shrunk {
        let mut shrunk = Shrunk::default();
        let learnt_in = self.learnt_in.load(RELAXED);
        if learnt_in == 0 {
            return shrunk;
        }
        if is_home && window.saturating_sub(learnt_in) > FORGET_WINDOWS {
            self.forget();
            return shrunk;
        }
        for n in 0..MAX_TIERS {
            let (stored, refused) = (self.stored[n].load(RELAXED), self.refused[n].load(RELAXED));
            if stored > 0 || refused > 0 {
                let share = if stored > 0 { f64::from(stored) / STORED_ONE } else { f64::NAN };
                shrunk.note(n, share, f64::from(refused) / REFUSED_ONE);
            }
        }
        shrunk
    }

    fn forget(&self) {
        self.learnt_in.store(0, RELAXED);
        self.stored.iter().for_each(|stored| stored.store(0, RELAXED));
        self.refused.iter().for_each(|refused| refused.store(0, RELAXED));
    }
}

const RELAXED: Ordering = Ordering::Relaxed;

#[cfg(test)]
mod tests {
    use super::*;

    const T1: TierId = TierId(1);

    fn tally(taken: u32, bytes: usize, refused: u32) -> Tally {
        let mut tally = Tally::default();
        (0..taken).for_each(|_| tally.took(Some(bytes)));
        (0..refused).for_each(|_| tally.refused());
        tally
    }

    #[test]
    fn a_region_is_what_its_pages_were() {
        let region = Shrinkage::default();
        assert!(region.read(1, true).is_empty());
        region.learn(T1, tally(10, 100, 5), 0.1, 1);
        assert!(region.read(1, false).is_empty(), "15 pages say nothing of a region");
        region.learn(T1, tally(256, 1024, 256), 0.5, 3);
        let (stored, refused) = region.read(4, true).get(1).unwrap();
        assert!((stored.unwrap() - 0.25).abs() < 0.005 && (refused - 0.5).abs() < 0.005);
        assert_eq!(region.read(4, true).get(2), None);
        // A few pages that came back and went down again move it a little.
        region.learn(T1, tally(32, 2048, 0), 0.5, 5);
        let (stored, refused) = region.read(6, true).get(1).unwrap();
        assert!((stored.unwrap() - 0.3125).abs() < 0.005 && (refused - 0.5).abs() < 0.005);
        // Nothing was tried: nothing is learnt.
        region.learn(T1, Tally::default(), 0.0, 7);
        assert!((region.read(7, true).get(1).unwrap().1 - 0.5).abs() < 0.005);
    }

    #[test]
    fn a_region_that_no_tier_takes_is_tried_anew_after_a_while() {
        let region = Shrinkage::default();
        region.learn(T1, tally(0, 0, 512), 1.0, 10);
        assert_eq!(region.read(74, true).get(1), Some((None, 1.0)));
        assert!(!region.read(75, false).is_empty(), "some of it is stored");
        assert!(region.read(75, true).is_empty());
        assert!(region.read(76, true).is_empty());
    }

    #[test]
    fn a_look_at_a_few_pages_counts_until_it_is_forgotten() {
        let region = Shrinkage::default();
        assert!(!region.knows(T1));
        region.refuse(T1, 10);
        assert!(region.knows(T1) && !region.knows(TierId(2)));
        assert_eq!(region.read(74, true).get(1), Some((None, 1.0)));
        assert!(region.read(75, true).is_empty() && !region.knows(T1));
    }

    #[test]
    fn pages_without_a_size_of_their_own_count_as_taken_only() {
        let region = Shrinkage::default();
        let mut blocks = Tally::default();
        (0..300).for_each(|_| blocks.took(None));
        region.learn(T1, blocks, 0.0, 1);
        assert!(region.read(1, true).is_empty());
        region.learn(T1, blocks, 0.5, 2);
        let (stored, refused) = region.read(2, true).get(1).unwrap();
        assert!(stored.is_none() && (refused - 0.5).abs() < 0.005);
    }
}
