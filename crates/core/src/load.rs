//! What an application did to its pages: the touches that [`crate::sim`] and [`crate::oracle`] are
//! given. Of an application that was recorded [`crate::touches`] makes them.

use crate::cost::TierCost;
use crate::degrees::Degrees;
use crate::plan::Ratios;

/// Stored pages at which gaps are half of the most they come to: some 200 classes of sizes in two
/// pools, each of which half fills a chain with about twenty.
const GAPS_HALF_PAGES: f64 = 8_192.0;

/// One region of an application.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Area {
    /// Address.
    pub id: u64,
    /// First window in which it was there, from 0. Afterwards it is there to the end, if only
    /// with no pages.
    pub first: usize,
    /// Pages that hold data, window by window from `first`.
    pub pages: Vec<u16>,
    /// Distinct pages touched, window by window from `first`.
    pub touched: Vec<f32>,
    /// Share of its pages that no tier takes, 0 to 1.
    pub refused: f32,
    /// What its pages shrink to, where that was seen.
    pub ratios: Ratios,
}

impl Area {
    /// Pages in window `window`; 0 where there is none.
    pub fn pages_in(&self, window: usize) -> u16 {
        let at = window.checked_sub(self.first).and_then(|n| self.pages.get(n));
        at.copied().unwrap_or(0)
    }

    /// Pages touched in window `window`.
    pub fn touched_in(&self, window: usize) -> f32 {
        let at = window.checked_sub(self.first).and_then(|n| self.touched.get(n));
        at.copied().unwrap_or(0.0)
    }
}

/// What is known of an application in one window, beside its regions.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Clock {
    /// Time that its threads were on a processor, all together, in nanoseconds.
    pub running_ns: f64,
    /// Bytes that it had beside its regions, where no tier takes them.
    pub beside_bytes: f64,
    /// Bytes of DRAM that Terrace itself took, pools aside.
    pub overhead_bytes: f64,
    /// Processor time of the runtime beside what follows from faults and moves, in nanoseconds.
    pub watching_ns: f64,
    /// What threads waited for pages by what they usually do; 0 counts as 1, where that is not
    /// known.
    pub slower: f64,
    /// The part of that which is told by faults from tiers and not by touches of watched pages, 0
    /// to 1: as far as tiers themselves seemed so much slower.
    pub slower_part: f64,
    /// Time that threads waited for something that has nothing to do with what is placed where, in
    /// nanoseconds.
    pub waited_beside_ns: f64,
    /// Share of the touched pages that came home by a fault of their own, above 0 to 1; the others
    /// were there already, brought along by the fault of a scan. 0 counts as 1, where that is not
    /// known.
    pub fault_share: f64,
}

impl Clock {
    /// [`Clock::fault_share`] with what is not known filled in.
    pub fn share_that_faults(&self) -> f64 {
        if self.fault_share > 0.0 {
            self.fault_share.min(1.0)
        } else {
            1.0
        }
    }
}

/// A tier as it was known in one window of a recording.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct TierThen {
    /// What the planner was told that it costs.
    pub told: TierCost,
    /// What a fault from it took in windows like this one, in nanoseconds.
    pub fault_ns: f64,
    /// What was known of regions' ratios there, by what was known in the end.
    pub ratio_by: f64,
}

/// What pools take beside what they store. Every class of sizes has a chain of pages that is not
/// full, however little it holds: with few pages gaps grow with them, with many hardly any more.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Gaps {
    /// Bytes of gaps in pools that hold very many pages.
    most_bytes: f64,
    /// Stored pages at which it is half of that.
    half_pages: f64,
}

impl Default for Gaps {
    fn default() -> Gaps {
        Gaps { most_bytes: 0.0, half_pages: GAPS_HALF_PAGES }
    }
}

impl Gaps {
    /// From windows of a recording: stored pages, and bytes of gaps beside them.
    pub fn of(windows: impl IntoIterator<Item = (f64, f64)>) -> Gaps {
        let mut gaps = Gaps::default();
        let (mut both, mut square) = (0.0, 0.0);
        for (pages, bytes) in windows {
            let share = gaps.share(pages);
            both += share * bytes;
            square += share * share;
        }
        if square > 0.0 {
            gaps.most_bytes = (both / square).max(0.0);
        }
        gaps
    }

    /// Those of an application of this share of the size.
    #[must_use]
    pub fn scaled(self, share: f64) -> Gaps {
        Gaps { most_bytes: self.most_bytes * share, half_pages: self.half_pages * share }
    }

    /// Bytes of gaps in pools that hold so many pages.
    pub fn bytes(&self, pages: f64) -> f64 {
        self.most_bytes * self.share(pages)
    }

    fn share(&self, pages: f64) -> f64 {
        if pages > 0.0 {
            pages / (pages + self.half_pages)
        } else {
            0.0
        }
    }
}

/// One application.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Load {
    /// Its process.
    pub pid: u32,
    /// Number of its first window in the recording.
    pub first: u32,
    /// Its windows, from that on.
    pub clocks: Vec<Clock>,
    /// DRAM and the tiers as they were known in each window; none where that was not recorded.
    pub tiers_then: Vec<Vec<TierThen>>,
    /// Its regions, in the order of their first windows.
    pub areas: Vec<Area>,
    /// What its pools take beside what they store.
    pub gaps: Gaps,
    /// The first of its windows that counts, from 0: in those before a policy learns what there is.
    pub counts_from: usize,
    /// How touches spread over the pages of a region.
    pub degrees: Degrees,
    /// Whether it is tracked as a runtime does it ([`crate::sim`]).
    pub is_tracked: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_are_learnt_and_level_off() {
        let truth = |pages: f64| 6e6 * pages / (pages + GAPS_HALF_PAGES);
        let pages = [0.0, 1e3, 5e3, 2e4];
        let gaps = Gaps::of(pages.map(|p| (p, truth(p))));
        assert!(pages.iter().all(|&p| (gaps.bytes(p) - truth(p)).abs() < 1.0), "{gaps:?}");
        assert!(gaps.bytes(1e6) < 6e6 && gaps.bytes(1e6) > 5.9e6);
        // Half of the application has half of the gaps.
        assert!((gaps.scaled(0.5).bytes(5e3) - 0.5 * truth(1e4)).abs() < 1.0);
        assert_eq!(Gaps::of([]).bytes(1e4), 0.0);
        assert_eq!(Gaps::of([(1e4, -1e6)]).bytes(1e4), 0.0, "estimates that were too high");
    }

    #[test]
    fn windows_before_and_after_are_empty() {
        let area = Area { first: 2, pages: vec![9], touched: vec![3.0], ..Area::default() };
        assert_eq!([1, 2, 3].map(|w| area.pages_in(w)), [0, 9, 0]);
        assert_eq!([1, 2, 3].map(|w| area.touched_in(w)), [0.0, 3.0, 0.0]);
    }
}
