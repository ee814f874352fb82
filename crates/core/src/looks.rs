//! When the tracker looks at a region, and at how many of its pages: the rules, which the runtime
//! follows (`crates/preload/src/tracker.rs`) and the simulation with it.
//!
//! Each sampled page that is in use costs its thread a fault, so that most of what watching takes
//! goes into regions that are far too much in use to be taken down, where it changes no plan. A
//! region is therefore looked at the less the more of it was found in use: all samples are for
//! those that are little in use, and for those of which nothing is known. Redis is rid of half of
//! its hits by that (docs/tracking.md).

use crate::hotness::{PAGES_PER_REGION, PRIOR_SAMPLES};
use crate::state::REGION_BYTES;

/// Pages that came back to a region in a tier from which on they are worth sampling.
pub const CAME_BACK_MIN: u16 = 32;

/// Samples of the smallest region.
const SAMPLES_MIN: usize = 2;

/// Windows between two looks at a region that has been in full use for long: how much later it may
/// be noticed that it is not any more.
const WINDOWS_MAX: u32 = 4;

/// All pages of a region, in steps of a share.
const ALL: u8 = u8::MAX;

/// Share of a region's pages from which on one sample in every second window is enough. What 5 % of
/// slowdown have room for is touched on a tenth of its pages or less.
const MUCH: u8 = 128;

/// Share from which on half of the samples are.
const SOME: u8 = 77;

/// What a policy wants to know of pages that are at home.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Watching {
    /// Whether any of a region was touched, in each window: ages and working sets are sums over
    /// all of them. What came back to a region in a tier is watched like the rest of it.
    Ages,
    /// How much of each region is in use: little, most of all. What is much in use is looked at
    /// less.
    Use,
}

impl Watching {
    const ALL: [Watching; 2] = [Watching::Ages, Watching::Use];

    /// The number of it on the wire.
    pub const fn to_wire(self) -> u8 {
        self as u8
    }

    /// From [`Watching::to_wire`].
    pub fn from_wire(number: u8) -> Option<Watching> {
        Watching::ALL.get(usize::from(number)).copied()
    }
}

/// What the looks at the pages of a region that are at home came to so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Looks {
    /// Looks in a row, up to the newest, at which all samples were hits.
    full: u8,
    /// Share of the pages that is touched in a window, of [`ALL`], drawn towards the past as
    /// [`crate::hotness`] does it.
    share: u8,
}

impl Looks {
    /// No look yet: what is not known takes all samples.
    pub const NONE: Looks = Looks { full: 0, share: SOME - 1 };

    /// After one more look at so many samples, of which `hits` were touched. None is no look.
    pub fn after(self, samples: u16, hits: u16) -> Looks {
        if samples == 0 {
            return self;
        }
        let full = if hits >= samples { self.full.saturating_add(1) } else { 0 };
        let (samples, hits) = (f32::from(samples), f32::from(hits.min(samples)));
        let prior = f32::from(self.share) * PRIOR_SAMPLES;
        let share = (hits * f32::from(ALL) + prior) / (samples + PRIOR_SAMPLES);
        Looks { full, share: share.round() as u8 }
    }

    /// Whether the region at this address is looked at in this window. Which ones are changes from
    /// window to window.
    pub fn is_due(self, watching: Watching, region: u64, window: u32) -> bool {
        let turn = window.wrapping_add((region / REGION_BYTES) as u32);
        turn.is_multiple_of(self.windows_between(watching))
    }

    /// Samples of a region of so many pages (0 to 512), of `want` of a whole one: each costs a
    /// fault if it is in use, however few others there are.
    pub fn samples(self, watching: Watching, want: usize, pages: usize) -> usize {
        let share = self.share_for(watching);
        if self.full > 0 || share >= MUCH {
            return want.min(1);
        }
        let all = (want * pages).div_ceil(usize::from(PAGES_PER_REGION)).max(want.min(SAMPLES_MIN));
        match share {
            SOME.. => all.min(want.div_ceil(2)),
            _ => all,
        }
    }

    /// As two bytes of a record.
    pub const fn to_bits(self) -> u16 {
        u16::from_le_bytes([self.full, self.share])
    }

    /// From [`Looks::to_bits`].
    pub const fn from_bits(bits: u16) -> Looks {
        let [full, share] = bits.to_le_bytes();
        Looks { full, share }
    }

    /// Windows from one look to the next.
    fn windows_between(self, watching: Watching) -> u32 {
        match self.full {
            _ if watching == Watching::Ages => 1,
            0..=3 if self.share_for(watching) >= MUCH => 2,
            0..=2 => 1,
            3 => 2,
            _ => WINDOWS_MAX,
        }
    }

    /// The share as far as it counts for this purpose.
    fn share_for(self, watching: Watching) -> u8 {
        match watching {
            Watching::Use => self.share,
            // One sample of half a region finds nobody in every second window.
            Watching::Ages => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Watching::{Ages, Use};

    fn after(looks: &[(u16, u16)]) -> Looks {
        looks.iter().fold(Looks::NONE, |looks, &(samples, hits)| looks.after(samples, hits))
    }

    #[test]
    fn what_is_in_full_use_for_long_is_looked_at_in_every_fourth_window() {
        let between = |n: usize| after(&[(1, 1)].repeat(n)).windows_between(Use);
        assert_eq!([0, 1, 2, 3, 4, 5, 300].map(between), [1, 2, 2, 2, 4, 4, 4]);
        let due = |region: u64| {
            let looks = after(&[(1, 1); 9]);
            (0..8u32).filter(move |&w| looks.is_due(Use, region << 21, w)).collect::<Vec<_>>()
        };
        assert_eq!(due(0), [0, 4]);
        assert_eq!(due(1), [3, 7], "not all in the same window");
        // One of full use that hardly anything is known of otherwise.
        assert_eq!(Looks { full: 3, share: 0 }.windows_between(Use), 2);
        assert_eq!(after(&[(1, 1); 9]).windows_between(Ages), 1, "no age may be missed");
    }

    #[test]
    fn the_more_is_in_use_the_fewer_samples() {
        assert_eq!([512, 257, 1].map(|pages| Looks::NONE.samples(Use, 4, pages)), [4, 3, 2]);
        let at = |share: u8| Looks { full: 0, share };
        assert_eq!(
            [0, 76, 77, 127, 128, 255].map(|s| at(s).samples(Use, 4, 512)),
            [4, 4, 2, 2, 1, 1]
        );
        assert_eq!(
            [0, 76, 77, 127, 128, 255].map(|s| at(s).windows_between(Use)),
            [1, 1, 1, 1, 2, 2]
        );
        // Never more than there were, and none if none are wanted.
        assert_eq!([0, 77, 128].map(|s| at(s).samples(Use, 1, 512)), [1, 1, 1]);
        assert_eq!([0, 77, 128].map(|s| at(s).samples(Use, 0, 512)), [0, 0, 0]);
        assert_eq!([0, 77, 128].map(|s| at(s).samples(Use, 8, 1)), [2, 2, 1]);
        assert_eq!([Ages, Use].map(|w| at(200).samples(w, 4, 512)), [4, 1]);
        assert_eq!([Ages, Use].map(|w| at(200).windows_between(w)), [1, 2]);
        let full = after(&[(4, 4)]);
        assert_eq!([Ages, Use].map(|w| full.samples(w, 4, 512)), [1, 1]);
    }

    #[test]
    fn what_is_not_in_use_any_more_is_looked_at_again() {
        let busy = after(&[(4, 4), (1, 1), (1, 1), (1, 1), (1, 1)]);
        assert_eq!((busy.windows_between(Use), busy.samples(Use, 4, 512)), (4, 1));
        // One sample that nobody touched: more often; two more, and all samples are back.
        assert_eq!(
            (busy.after(1, 0).windows_between(Use), busy.after(1, 0).samples(Use, 4, 512)),
            (2, 1)
        );
        let quiet = [(1, 0); 3].iter().fold(busy, |looks, &(n, hits)| looks.after(n, hits));
        assert_eq!(quiet.windows_between(Use), 1);
        assert_eq!([quiet.samples(Use, 4, 512), quiet.after(2, 0).samples(Use, 4, 512)], [4, 4]);
        assert_eq!(busy.after(0, 0), busy, "no look says nothing");
    }

    #[test]
    fn each_purpose_has_a_number() {
        for watching in [Ages, Use] {
            assert_eq!(Watching::from_wire(watching.to_wire()), Some(watching));
        }
        assert_eq!(Watching::from_wire(2), None);
    }

    #[test]
    fn two_bytes_hold_it() {
        for looks in [Looks::NONE, after(&[(4, 3), (2, 2)]), Looks { full: 255, share: 3 }] {
            assert_eq!(Looks::from_bits(looks.to_bits()), looks);
        }
    }
}
