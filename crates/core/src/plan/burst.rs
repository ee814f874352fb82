//! What the slowdown policy does in the windows after a burst.
//!
//! A program that reads everything once has all of it in memory afterwards, looks busy everywhere,
//! and is as it was before in the next window. What was known of its regions then is the best guess
//! of what they will be, and is kept: a plan that went by the newest windows would have them all in
//! use, and would find out one by one, for as long as an average lasts, that they are not. If a
//! region stays in use beyond what is left of one window in the averages of the tracker, the
//! program has changed, and what was known of it counts no more.
//!
//! The long memory of regions ([`crate::hotness::LONG_WINDOWS`]) fades from one burst to the next,
//! and with it what bursts are thought to cost: least shortly before the next one comes. So it
//! counts as fresh for as many windows as it lasts, and fades after that.

use super::RegionView;
use crate::hotness::LONG_WINDOWS;
use crate::tier::TierId;

/// Windows in which a burst that is over can still be seen in what is measured.
const SEEN_WINDOWS: u32 = 6;
/// Windows in which what came back goes down again at the quicker pace.
const RECOVERY_WINDOWS: u32 = 32;
/// What a window leaves of the one before in the estimate of a region that is in memory: a third
/// where four samples stand against the weight of its past, and more where they meet what is hot.
const LEFT: f64 = 0.45;
/// A region is still as it was before if it is touched so much more at most, beside what is left of
/// the burst.
const AS_BEFORE: f64 = 2.0;
const AS_BEFORE_PAGES: f64 = 16.0;
/// In the window of the burst itself a region took part in it if no more than one page in so many
/// stayed down.
const STAYED_DOWN: u32 = 8;

/// The last burst of one application.
#[derive(Debug, Default)]
pub(super) struct Burst {
    /// Windows since the last one, 0 in the first plan after it. `None` if there was none, or it
    /// was so long ago that nothing of it is left.
    since: Option<u32>,
    /// Hotness of regions, by id, in order, as it was before.
    usual: Vec<(u64, f32)>,
}

impl Burst {
    /// A window has passed; whether a burst came in it.
    pub(super) fn note(&mut self, has_come: bool) {
        self.since = match self.since {
            _ if has_come => Some(0),
            Some(since) if since < 2 * u32::from(LONG_WINDOWS) => Some(since + 1),
            _ => None,
        };
    }

    /// Windows since one that may still be seen in what is measured, so that regions count as they
    /// did before it.
    pub(super) fn seen(&self) -> Option<u32> {
        self.since.filter(|&since| since <= SEEN_WINDOWS)
    }

    /// Whether what came back in it may still be on its way down.
    pub(super) fn is_recovering(&self) -> bool {
        self.since.is_some_and(|since| since < RECOVERY_WINDOWS)
    }

    /// What the long memory of regions is multiplied by, so that it does not fade at first.
    pub(super) fn long_part(&self) -> f64 {
        let long = u32::from(LONG_WINDOWS);
        let faded = self.since.map_or(0, |since| since.min((2 * long).saturating_sub(since)));
        let fades = f64::from(long) / f64::from(long - 1);
        fades.powi(faded as i32)
    }

    /// The hotness of regions as it would be without the burst, for one after the other in the
    /// order of their ids.
    pub(super) fn calmed(&self) -> Calmed<'_> {
        Calmed { since: self.seen(), usual: &self.usual, at: 0 }
    }

    /// Notes how hot regions are, if no burst is to be seen in that.
    pub(super) fn remember(&mut self, hotness: impl Iterator<Item = (u64, f64)>) {
        if self.seen().is_none() {
            self.usual.clear();
            self.usual.extend(hotness.map(|(id, hotness)| (id, hotness as f32)));
        }
    }
}

/// See [`Burst::calmed`].
pub(super) struct Calmed<'a> {
    since: Option<u32>,
    usual: &'a [(u64, f32)],
    at: usize,
}

impl Calmed<'_> {
    /// For this region, which is `recent` by what was measured.
    pub(super) fn of(&mut self, region: &RegionView, recent: f64) -> f64 {
        let Some(since) = self.since else { return recent };
        while self.usual.get(self.at).is_some_and(|usual| usual.0 < region.id) {
            self.at += 1;
        }
        let Some(usual) = self.usual.get(self.at).filter(|usual| usual.0 == region.id) else {
            return recent;
        };
        let before = f64::from(usual.1);
        let is_over = match since {
            0 => region.pages_to_carry(TierId::DRAM) * STAYED_DOWN <= region.pages,
            _ => {
                let left = f64::from(region.pages) * LEFT.powi(since as i32);
                f64::from(region.newest) <= left + AS_BEFORE * before + AS_BEFORE_PAGES
            }
        };
        match since {
            _ if !is_over => recent,
            // It may have become colder just before.
            0 => recent.min(before),
            _ => before,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::fixtures::region;

    fn region_of(id: u64, newest: f32, resident: u32) -> RegionView {
        RegionView { newest, ..region(id, 0.0, 1, resident) }
    }

    #[test]
    fn a_region_counts_as_before_until_it_stays_in_use() {
        let mut burst = Burst::default();
        burst.remember([(1, 5.0), (3, 50.0)].into_iter());
        assert_eq!(burst.calmed().of(&region_of(1, 400.0, 512), 300.0), 300.0, "no burst yet");
        burst.note(true);
        burst.remember([(1, 300.0)].into_iter());
        let mut calmed = burst.calmed();
        assert_eq!(calmed.of(&region_of(1, 512.0, 512), 300.0), 5.0);
        assert_eq!(calmed.of(&region_of(2, 512.0, 512), 300.0), 300.0, "not known before");
        assert_eq!(calmed.of(&region_of(3, 512.0, 300), 300.0), 300.0, "it had no part in it");
        burst.note(false);
        let mut calmed = burst.calmed();
        assert_eq!(calmed.of(&region_of(1, 230.0, 512), 300.0), 5.0, "what is left of one window");
        assert_eq!(calmed.of(&region_of(3, 400.0, 512), 300.0), 300.0, "it is in use");
        (0..SEEN_WINDOWS).for_each(|_| burst.note(false));
        assert_eq!(burst.calmed().of(&region_of(1, 0.0, 512), 300.0), 300.0);
        burst.remember([(1, 7.0)].into_iter());
        burst.note(true);
        assert_eq!(burst.calmed().of(&region_of(1, 512.0, 512), 300.0), 7.0);
    }

    #[test]
    fn the_long_memory_is_fresh_for_as_long_as_it_lasts_and_no_longer() {
        let mut burst = Burst::default();
        assert_eq!(burst.long_part(), 1.0);
        burst.note(true);
        let long = i32::from(LONG_WINDOWS);
        // As the tracker's own falls, in a program that rests otherwise.
        let mut tracked = 512.0 / f64::from(long);
        let first = tracked;
        for _ in 0..long {
            assert!((tracked * burst.long_part() - first).abs() < 1e-9);
            assert!(burst.is_recovering());
            burst.note(false);
            tracked *= f64::from(long - 1) / f64::from(long);
        }
        assert!(!burst.is_recovering());
        (0..long).for_each(|_| burst.note(false));
        assert_eq!(burst.long_part(), 1.0);
        burst.note(false);
        assert_eq!((burst.since, burst.long_part()), (None, 1.0));
    }
}
