//! What chance hides: by how much regions that go down are more in use than they looked.
//!
//! A region at home is known by a few samples a window, so that one of which a thirtieth is touched
//! looks wholly cold every now and then. A plan that takes down what looks coldest picks just those
//! windows: where all regions are alike it takes down the ones that chance has hidden, and their
//! faults say what they really are. A factor for all expectations ([`crate::plan::correction`])
//! cannot mend that: nothing times it stays nothing, and what is known exactly, because it is in a
//! tier, would count several times. So a program that sleeps most of the time had a dozen of its
//! regions taken down and brought home for others in every window, for good.
//!
//! So it is learnt how many more pages of a region were touched in its first window in a tier than
//! it had looked like: the mean of those that went down, old ones counting less and less. So many
//! more are expected in the next window of those that go down then. In the weighing of tiers they
//! do not count: taking down what may be cold is how what is cold is found. (They do where what
//! plans promise never comes, [`super::worth`].)
//!
//! What does count there is the past of the region itself. One that was touched on 30 pages in each
//! of many windows and on none of the 16 that were looked at lately may have gone cold; but the
//! looks would have missed all of it once in three times if it had not ([`missed`]).

use crate::hotness::WINDOWS;
use crate::plan::RegionView;
use crate::tier::TierId;

/// Regions that are taken to have looked as they were before anything was seen.
const REGIONS_MIN: f64 = 8.0;
/// What the past still counts after a window in which regions went down.
const KEPT: f64 = 0.9;

/// What is left of it after a window in which none did: as long as it is believed few go down that
/// could show that it is not so any more.
const FADES: f64 = 0.995;

/// Looks at pages behind the hotness of a region at home: four in each of its windows.
const LOOKS: f64 = 16.0;

/// Pages of a region at home that are touched in a window beyond the `recent` ones, if it is in use
/// as it was for `long` (pages touched in a window, both): what it would be then, times how likely
/// looks show no more than `recent` if it is so, by how likely if it is not (two means of Poisson's
/// distribution). None of a region that is in a tier, of which touches are exact.
pub(in crate::plan) fn missed(region: &RegionView, recent: f64, long: f64) -> f64 {
    if region.tier != TierId::DRAM || long <= recent || region.pages == 0 {
        return 0.0;
    }
    let pages = f64::from(region.pages);
    let (is, was) = ((recent / pages).max(f64::MIN_POSITIVE), long / pages);
    let evidence = was - is + is * (is / was).ln();
    (long - recent) * (-LOOKS * evidence).exp()
}

/// What is known of one application.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub(super) struct Hidden {
    regions: f64,
    /// Pages touched beyond what they looked like, of all of these.
    pages: f64,
}

impl Hidden {
    /// Takes in what came of the regions that went down at the start of the newest window.
    pub(super) fn learn(&mut self, regions: &[RegionView]) {
        let (mut count, mut pages) = (0.0, 0.0);
        for region in regions {
            if region.down_windows == 1 && usize::from(region.windows_seen) > WINDOWS {
                count += 1.0;
                pages += f64::from(region.newest) - looked_like(region);
            }
        }
        if count > 0.0 {
            self.regions = KEPT * self.regions + count;
            self.pages = KEPT * self.pages + pages;
        } else {
            self.pages *= FADES;
        }
    }

    /// Pages of a region that are touched in the next window beyond what it looks like, which is
    /// exact where it was in a tier.
    pub(super) fn pages(&self, region: &RegionView) -> f64 {
        unsure(region) * self.pages_on_average()
    }

    /// The same of one that was not.
    pub(super) fn pages_on_average(&self) -> f64 {
        (self.pages / (self.regions + REGIONS_MIN)).max(0.0)
    }
}

/// Share of a region's hotness that looks have told, and not a tier.
pub(in crate::plan) fn unsure(region: &RegionView) -> f64 {
    let exact = usize::from(region.down_windows).min(WINDOWS);
    1.0 - exact as f64 / WINDOWS as f64
}

/// What a region looked like before its newest window.
fn looked_like(region: &RegionView) -> f64 {
    let windows = WINDOWS as f64;
    let before = f64::from(region.hotness) * windows - f64::from(region.newest);
    before.max(0.0) / (windows - 1.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hotness::{RegionHistory, WindowSeen};
    use crate::plan::fixtures::region;

    #[test]
    fn what_looks_may_have_missed_is_expected_as_far_as_that_is_likely() {
        let home = |recent: f64, long: f64| missed(&region(0, 0.0, 0, 512), recent, long);
        let alike = |is: f64, should: f64| assert!((is - should).abs() < 0.02, "{is} {should}");
        // Sixteen looks at 512 pages, of which 32 were in use: none of them is missed once in e.
        alike(home(0.0, 32.0), 32.0 / std::f64::consts::E);
        // Eight times as many are not missed by chance.
        alike(home(0.0, 256.0), 256.0 * (-8f64).exp());
        alike(home(31.0, 32.0), 1.0);
        assert_eq!((home(32.0, 32.0), home(40.0, 32.0)), (0.0, 0.0), "it is not colder");
        assert_eq!(missed(&region(0, 0.0, 1, 512), 0.0, 32.0), 0.0, "that of a tier is exact");
        assert_eq!(missed(&RegionView::at(0, TierId::DRAM), 0.0, 32.0), 0.0);
    }

    /// A region that was touched on `before` pages in each of many windows and on `came` in its
    /// first one in a tier.
    fn gone_down(before: u16, came: u16) -> RegionView {
        let mut history = RegionHistory::new();
        for _ in 0..40 {
            let hits = WindowSeen { present: 512, sampled: 512, hits: before, ..SEEN };
            history.observe(hits);
        }
        history.observe(WindowSeen { stored: 512, faults: came, ..SEEN });
        RegionView {
            tier: TierId(1),
            hotness: history.hotness(),
            newest: history.newest(),
            windows_seen: history.windows_seen(),
            down_windows: history.down_windows(),
            ..region(0, 0.0, 1, u32::from(came))
        }
    }

    const SEEN: WindowSeen = WindowSeen { present: 0, stored: 0, sampled: 0, hits: 0, faults: 0 };

    fn after(windows: u32, regions: &[RegionView]) -> Hidden {
        let mut hidden = Hidden::default();
        (0..windows).for_each(|_| hidden.learn(regions));
        hidden
    }

    #[test]
    fn what_came_beyond_what_regions_looked_like_is_expected_of_the_next_ones() {
        let home = region(0, 3.0, 0, 512);
        let alike = [gone_down(2, 16); 12];
        assert!((after(20, &alike).pages(&home) - 14.0).abs() < 1.5);
        // One window of it does not say much, nor does one region.
        assert!((5.0..9.0).contains(&after(1, &alike).pages(&home)));
        assert!(after(1, &alike[..1]).pages(&home) < 2.0);
        // They may have become cold, or have been no warmer than they looked.
        let mut hidden = after(20, &alike);
        (0..20).for_each(|_| hidden.learn(&[gone_down(2, 2); 12]));
        assert!(hidden.pages(&home) < 2.0);
        assert_eq!(after(20, &[gone_down(40, 3); 12]).pages(&home), 0.0);
    }

    #[test]
    fn what_is_in_a_tier_shows_what_it_is() {
        let hidden = after(20, &[gone_down(2, 16); 12]);
        let of = |down_windows| hidden.pages(&RegionView { down_windows, ..region(0, 3.0, 1, 0) });
        let all = of(0);
        assert_eq!([1, 2, 3, 4, 200].map(of), [0.75 * all, 0.5 * all, 0.25 * all, 0.0, 0.0]);
    }

    #[test]
    fn it_fades_while_nothing_shows_it() {
        let alike = gone_down(2, 16);
        let mut hidden = after(5, &[alike; 12]);
        let known = hidden.pages_on_average();
        let others = [
            RegionView { down_windows: 0, ..alike },
            RegionView { down_windows: 2, ..alike },
            RegionView { windows_seen: 4, ..alike },
        ];
        hidden.learn(&others);
        assert!((hidden.pages_on_average() - FADES * known).abs() < 1e-9);
        (0..500).for_each(|_| hidden.learn(&others));
        assert!(hidden.pages_on_average() < 0.1 * known);
    }
}
