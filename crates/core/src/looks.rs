//! When the tracker looks at a region, and at how many of its pages: the rules, which the runtime
//! follows (`crates/preload/src/tracker.rs`) and the simulation with it.
//!
//! Each look costs a region in use a fault for each sample, so one in full use, about which there
//! is nothing new to learn, is looked at less often and at one page only.

use crate::hotness::PAGES_PER_REGION;
use crate::state::REGION_BYTES;

/// Pages that came back to a region in a tier from which on they are worth sampling.
pub const CAME_BACK_MIN: u16 = 32;

/// Samples of the smallest region.
const SAMPLES_MIN: usize = 2;

/// Windows between two looks at a region that has been in full use for long: how much later it may
/// be noticed that it is not any more.
const WINDOWS_MAX: u32 = 4;

/// Looks in a row, up to the newest, at which all samples were hits: `before` this one, which took
/// `samples` pages (one at least) of which `hits` were touched.
pub fn full_looks(before: u8, samples: u16, hits: u16) -> u8 {
    if hits >= samples {
        before.saturating_add(1)
    } else {
        0
    }
}

/// Whether a region is looked at in this window, by its address and what [`full_looks`] says of it.
/// Which ones are changes from window to window.
pub fn is_due(region: u64, window: u32, full_looks: u8) -> bool {
    window.wrapping_add((region / REGION_BYTES) as u32).is_multiple_of(windows_between(full_looks))
}

/// Samples of a region of so many pages (0 to 512), of `want` of a whole one: each costs a fault if
/// it is in use, however few others there are. One is enough of a region in full use.
pub fn samples(want: usize, pages: usize, full_looks: u8) -> usize {
    if full_looks > 0 {
        return want.min(1);
    }
    (want * pages).div_ceil(usize::from(PAGES_PER_REGION)).max(want.min(SAMPLES_MIN))
}

fn windows_between(full_looks: u8) -> u32 {
    match full_looks {
        0..=2 => 1,
        3 => 2,
        _ => WINDOWS_MAX,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_in_full_use_for_long_is_looked_at_in_every_fourth_window() {
        let between: Vec<u32> = (0..6).map(windows_between).collect();
        assert_eq!(between, [1, 1, 1, 2, 4, 4]);
        assert_eq!(windows_between(u8::MAX), WINDOWS_MAX);
        let due = |region: u64| (0..8u32).filter(move |&w| is_due(region << 21, w, 9));
        assert_eq!(due(0).collect::<Vec<_>>(), [0, 4]);
        assert_eq!(due(1).collect::<Vec<_>>(), [3, 7], "not all in the same window");
    }

    #[test]
    fn one_page_is_enough_of_what_was_in_full_use() {
        assert_eq!([512, 257, 1].map(|pages| samples(4, pages, 0)), [4, 3, 2]);
        assert_eq!([samples(4, 512, 1), samples(0, 512, 1), samples(1, 9, 0)], [1, 0, 1]);
        let after = |looks: &[(u16, u16)]| {
            looks.iter().fold(0, |n, &(samples, hits)| full_looks(n, samples, hits))
        };
        assert_eq!([after(&[(4, 4), (1, 1)]), after(&[(4, 4), (1, 0)])], [2, 0]);
        assert_eq!(full_looks(u8::MAX, 1, 1), u8::MAX);
    }
}
