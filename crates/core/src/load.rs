//! What an application did to its pages, as far as a recording of it tells: the touches that
//! [`crate::sim`] and [`crate::oracle`] are given.
//!
//! Live, a window says of a region how many stored pages faulted (exact: every touch of a stored
//! page is a fault) and how many of a few sampled pages at home were touched. The planner has to
//! make something of that at once. Afterwards there is more to go by:
//!
//! - *Touches at home* are the hits among the samples of the window and its neighbours, drawn
//!   towards the region's own mean: twenty samples and a mean instead of four and a prior.
//! - *The core.* If touches were spread over a region by chance, stored pages would fault as often
//!   as their share of the region says. Where fewer came, touches kept to pages that had come home
//!   already: that part of them is taken to be a fixed set, touched in every window.

use crate::hotness::PAGES_PER_REGION;
use crate::plan::Ratios;

/// Windows on either side whose samples speak for a window.
const NEIGHBOURS: usize = 2;
/// Weight of a region's own mean, in samples.
const MEAN_SAMPLES: f64 = 4.0;
/// Expected faults below which a region's own core is mostly that of its application.
const FAULTS_TO_TRUST: f64 = 50.0;
/// Expected faults without which an application is taken to have no cores.
const FAULTS_MIN: f64 = 200.0;

/// Stored pages at which gaps are half of the most they come to: some 200 classes of sizes in two
/// pools, each of which half fills a chain with about twenty.
const GAPS_HALF_PAGES: f64 = 8_192.0;

/// What a recording says of a region in one window.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Seen {
    /// Pages that hold data at the end of the window, 0 to 512.
    pub pages: u16,
    /// Pages of it in DRAM when the window began.
    pub present: u16,
    /// Pages at home that were watched.
    pub samples: u8,
    /// Those of them that were touched.
    pub hits: u8,
    /// Pages that faulted back.
    pub faults: u16,
}

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
    /// Pages that are touched first, in every window alike.
    pub core_pages: f32,
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
    /// Its regions, in the order of their first windows.
    pub areas: Vec<Area>,
    /// Share of the pages that came home which did so by a fault of their own, 0 to 1.
    pub fault_share: f64,
    /// What its pools take beside what they store.
    pub gaps: Gaps,
}

/// A region's windows as they were recorded.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Recorded {
    /// Address.
    pub id: u64,
    /// First window, from 0.
    pub first: usize,
    /// Window by window.
    pub seen: Vec<Seen>,
    /// What its pages shrink to, where that was seen.
    pub ratios: Ratios,
}

/// Faults that chance would have brought, and those that came.
#[derive(Clone, Copy, Default)]
struct Spread {
    expected: f64,
    came: f64,
}

impl Spread {
    fn share(self) -> f64 {
        (self.came / self.expected).clamp(0.0, 1.0)
    }
}

/// Makes touches of what was recorded. `fault_share` as in [`Load`]: faults that brought other
/// pages along stand for these, too.
pub fn areas_of(recorded: &[Recorded], fault_share: f64) -> Vec<Area> {
    let per_fault = 1.0 / fault_share.clamp(0.05, 1.0);
    let mut areas: Vec<Area> = recorded.iter().map(|region| touches(region, per_fault)).collect();
    let spread: Vec<Spread> =
        recorded.iter().zip(&areas).map(|(region, area)| spread(region, area, per_fault)).collect();
    let (expected, came) =
        spread.iter().fold((0.0, 0.0), |sum, s| (sum.0 + s.expected, sum.1 + s.came));
    let of_all = if expected < FAULTS_MIN { 1.0 } else { Spread { expected, came }.share() };
    for (area, own) in areas.iter_mut().zip(&spread) {
        let own = Spread {
            expected: own.expected + FAULTS_TO_TRUST,
            came: own.came + of_all * FAULTS_TO_TRUST,
        };
        let windows = area.touched.len().max(1) as f32;
        let mean = area.touched.iter().sum::<f32>() / windows;
        area.core_pages = (1.0 - own.share() as f32) * mean;
    }
    areas.sort_by_key(|area| (area.first, area.id));
    areas
}

fn touches(region: &Recorded, per_fault: f64) -> Area {
    let seen = &region.seen;
    let sum = |of: fn(&Seen) -> u8, seen: &[Seen]| {
        seen.iter().map(|window| f64::from(of(window))).sum::<f64>()
    };
    let (samples, hits) = (sum(|s| s.samples, seen), sum(|s| s.hits, seen));
    let mean = if samples > 0.0 { hits / samples } else { 0.0 };
    let share = |at: usize| {
        let near = &seen[at.saturating_sub(NEIGHBOURS)..(at + NEIGHBOURS + 1).min(seen.len())];
        let (samples, hits) = (sum(|s| s.samples, near), sum(|s| s.hits, near));
        (hits + mean * MEAN_SAMPLES) / (samples + MEAN_SAMPLES)
    };
    let touched = seen.iter().enumerate().map(|(at, window)| {
        let pages = window.pages.min(PAGES_PER_REGION);
        let present = f64::from(window.present.min(pages));
        let came = f64::from(window.faults) * per_fault;
        (came + present * share(at)).min(f64::from(pages)) as f32
    });
    Area {
        id: region.id,
        first: region.first,
        touched: touched.collect(),
        pages: seen.iter().map(|window| window.pages.min(PAGES_PER_REGION)).collect(),
        core_pages: 0.0,
        ratios: region.ratios,
    }
}

/// Windows with both sides in them: stored pages that could fault, and pages at home.
fn spread(region: &Recorded, area: &Area, per_fault: f64) -> Spread {
    let mut sum = Spread::default();
    for (window, &touched) in region.seen.iter().zip(&area.touched) {
        let stored = f64::from(window.pages.saturating_sub(window.present));
        if stored > 0.0 && window.present > 0 {
            sum.expected += stored * f64::from(touched) / f64::from(window.pages);
            sum.came += f64::from(window.faults) * per_fault;
        }
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recorded(seen: Vec<Seen>) -> Recorded {
        Recorded { id: 1 << 21, first: 0, seen, ratios: Ratios::UNKNOWN }
    }

    #[test]
    fn faults_are_exact_and_samples_are_smoothed() {
        let stored = Seen { pages: 512, present: 0, faults: 37, ..Seen::default() };
        let areas = areas_of(&[recorded(vec![stored; 4])], 1.0);
        assert_eq!(areas[0].touched, [37.0; 4]);
        assert_eq!(areas[0].core_pages, 0.0, "no page at home, nothing to compare with");
        // One hit in 40 samples: 1/40 of the region, not 128 pages in one window and 0 in others.
        let mut seen = vec![Seen { pages: 512, present: 512, samples: 4, ..Seen::default() }; 10];
        seen[5].hits = 1;
        let touched = &areas_of(&[recorded(seen)], 1.0)[0].touched;
        assert!(touched.iter().all(|t| *t < 32.0), "{touched:?}");
        let mean = touched.iter().sum::<f32>() / 10.0;
        assert!((mean - 12.8).abs() < 2.0, "{mean}");
    }

    #[test]
    fn a_core_is_found_where_stored_pages_stay_quiet() {
        // Half at home and all of that in use; of the other half, 2 pages a window.
        let seen = Seen { pages: 512, present: 256, samples: 4, hits: 4, faults: 2 };
        let core = areas_of(&[recorded(vec![seen; 40])], 1.0)[0].core_pages;
        assert!((core - 253.0).abs() < 10.0, "{core}");
        // By chance: both halves alike.
        let even = Seen { hits: 1, faults: 64, ..seen };
        let core = areas_of(&[recorded(vec![even; 40])], 1.0)[0].core_pages;
        assert!(core < 1.0, "{core}");
    }

    #[test]
    fn a_fault_of_a_scan_stands_for_the_pages_it_brought() {
        let seen = Seen { pages: 512, present: 0, faults: 64, ..Seen::default() };
        assert_eq!(areas_of(&[recorded(vec![seen])], 0.125)[0].touched, [512.0]);
    }

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
