//! What the slowdown policy expects of regions, in the next window and in the long run.
//!
//! Hotness takes all pages of a region to be alike. Mostly they are not: those in use come back and
//! stay, and the region costs nothing any more where it is, but looks as warm as before. What came
//! back of it in many windows tells what it costs, exactly, but late: as the mean of them. Hotness,
//! corrected by what came of all regions together, knows at once how much there is now. So the
//! faults of the regions of which it is told are together as many as hotness has them, corrected,
//! and are shared out among them as it is told.

use super::hidden::missed;
use super::{Slowdown, FAULTS_MIN};
use crate::plan::{Expected, RegionView};
use crate::tier::TierId;

/// The newest window counts instead of the average where it is so much above it: beyond the
/// scatter of touches, which would make every region look like its busiest window.
const RISING: f32 = 2.0;
const RISING_PAGES: f32 = 16.0;

/// Most by which faults of all regions of which it is told differ from what is told, either way.
const TOLD_BY_MAX: f64 = 4.0;

impl Slowdown {
    /// Hotness for this policy; see the head of [`super`].
    pub(in crate::plan) fn hotness(region: &RegionView) -> f64 {
        if region.rest_windows > 0 {
            return f64::from(region.pages);
        }
        let average = region.hotness_usable();
        // A burst that is over counts for what such bursts come to on average.
        let average = average.min(region.calm.max(region.long).max(0.0));
        let rising = region.tier != TierId::DRAM && region.newest > RISING * average + RISING_PAGES;
        let hotness = if rising { region.newest.min(region.pages as f32) } else { average };
        f64::from(hotness)
    }

    /// What to expect of a region by what has come back of it, if that tells
    /// ([`crate::hotness::CameBack`]). The newest window counts alone where it is far above.
    pub(in crate::plan) fn told(region: &RegionView) -> Option<Expected> {
        let told =
            region.told.filter(|_| region.tier != TierId::DRAM && region.rest_windows == 0)?;
        let rising = told.newest > RISING * told.usual + RISING_PAGES;
        let faults = f64::from(if rising { told.newest } else { told.usual });
        Some(Expected { back: f64::from(region.resident), faults })
    }

    /// What the long average of a region at home counts times where it may be in use as it was
    /// ([`missed`]); 0 while there is a burst in that.
    pub(super) fn as_long(&self) -> f64 {
        if self.burst.is_recovering() {
            0.0
        } else {
            self.burst.long_part()
        }
    }

    /// Fills in what to expect of all known regions.
    pub(super) fn expect(&mut self, regions: &[RegionView]) {
        self.calm.clear();
        self.soon.clear();
        self.next.clear();
        self.expected.clear();
        let (k, memory) = (self.correction.k(), self.ledger.memory());
        let long_part = self.burst.long_part();
        let (as_long, doubted) = (self.as_long(), f64::from(self.worth.is_doubted()));
        let mut calmed = self.burst.calmed();
        let (mut by_hotness, mut as_told) = (0.0, 0.0);
        for &index in &self.known {
            let region = &regions[index as usize];
            let recent = calmed.of(region, Slowdown::hotness(region));
            let long = long_part * f64::from(region.long).min(f64::from(region.pages));
            let pages = f64::from(region.pages);
            let of = |hotness: f64| {
                Expected::of_region(region, hotness.min(pages), self.residence_windows)
            };
            let missed = if as_long > 0.0 { missed(region, recent, long) } else { 0.0 };
            let hidden = self.hidden.pages(region);
            let soon = of(recent + hidden.max(missed));
            let more = (memory * (long - recent)).max(missed);
            let one = of(recent + more + doubted * hidden);
            if let Some(told) = Slowdown::told(region) {
                by_hotness += k * soon.faults;
                as_told += told.faults;
            }
            self.calm.push(recent);
            self.soon.push(soon);
            self.next.push(k * soon.faults);
            self.expected.push(Expected { faults: k * one.faults, ..one });
        }
        let ids = self.known.iter().map(|&index| regions[index as usize].id);
        self.burst.remember(ids.zip(self.calm.iter().copied()));

        // Of few faults nothing can be told together.
        self.told_share = match as_told < FAULTS_MIN {
            true => 1.0,
            false => (by_hotness / as_told).clamp(1.0 / TOLD_BY_MAX, TOLD_BY_MAX),
        };
        for (item, &index) in self.known.iter().enumerate() {
            let region = &regions[index as usize];
            let (Some(one), Some(told)) = (Slowdown::told(region), region.told) else { continue };
            // A debt is about what these windows did not show.
            let more = memory * (long_part * f64::from(told.long) - one.faults).max(0.0);
            self.next[item] = one.faults * self.told_share;
            let faults = (one.faults + more) * self.told_share;
            self.expected[item] = Expected { faults, ..one };
        }
    }
}
