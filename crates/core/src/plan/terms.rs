//! What a plan weighed by, and what each place would have cost a region under it.
//!
//! A policy leaves its [`Terms`] in the plan. From them and the same inputs [`weigh`] repeats the
//! sums of the plan, region by region and tier by tier: for people who ask why
//! (`terrace explain`), and for hindsight, which judges a demotion by the price that the policy
//! itself put on time.

use super::mckp::Choices;
use super::slowdown::hidden::{missed, unsure};
use super::{Expected, Model, RegionChoices, RegionView, Slowdown, Stay};
use crate::cost::TierCost;
use crate::tier::{TierId, MAX_TIERS};

/// What a policy counts with beside hotness and the costs of tiers.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Terms {
    /// How long pages stay when they come back, and what processor time counts.
    pub model: Model,
    /// Faults that are expected for each that the averages say; the paper's 1.
    pub correction: f64,
    /// Whether the newest window counts instead of the average where it is far above it.
    pub newest_counts: bool,
    /// Faults that are expected for each that came back of a region in many windows, if that counts
    /// and not its hotness.
    pub told_share: Option<f64>,
    /// What the long average of a region at home counts times where looks may have missed that it
    /// is as it was; 0: not at all.
    pub as_long: f64,
    /// Pages more that are expected of one that looks have told of.
    pub hidden_pages: f64,
    /// When what came back of a region stays at home.
    pub stay: Stay,
    /// Least that a change which is no promotion must save, as a share of a page's price in DRAM.
    pub worth: f64,
    /// Marginal price of time: US dollars a month that one nanosecond in every window is worth,
    /// at the edge of the budget, or what it has to save at least. `None` if the policy has no
    /// price or the budget is no edge: more of it would change nothing, or the least of it does not
    /// suffice.
    pub usd_per_ns: Option<f64>,
}

impl Terms {
    /// For policies that weigh nothing.
    pub const NONE: Terms = Terms {
        model: Model::PAPER,
        correction: 1.0,
        newest_counts: false,
        told_share: None,
        as_long: 0.0,
        hidden_pages: 0.0,
        stay: Stay::NEVER,
        worth: 0.0,
        usd_per_ns: None,
    };
}

impl Terms {
    /// Pages of a region that are expected to be touched in a window beyond its hotness (pages
    /// touched in a window): what looks may have missed of it.
    pub fn pages_beyond(&self, region: &RegionView, hotness: f64) -> f64 {
        let long = (self.as_long * f64::from(region.long)).min(f64::from(region.pages));
        let missed = if self.as_long > 0.0 { missed(region, hotness, long) } else { 0.0 };
        missed + self.hidden_pages * unsure(region)
    }

    /// A page that came back within less than so many windows after it went down is taken to be in
    /// use, and is dearer in a tier than at home, whatever the rest of its region is; 0: none is.
    ///
    /// In the tier that is left for least, a page pays if it is touched less than once in `W`
    /// windows, which is what coming back costs over what its place there spares. One that is
    /// touched so seldom comes back within a third of `W` in three of ten cases, and one that is
    /// touched in every window or two nearly always.
    pub fn soon_windows(&self, tiers: &[TierCost]) -> u8 {
        let Some(usd_per_ns) = self.stay.usd_per_ns().or(self.usd_per_ns) else { return 0 };
        let Some((dram, compressed)) = tiers.split_first() else { return 0 };
        let pays_after = |tier: &TierCost| {
            let spared_usd = dram.usd_per_page_month() - tier.usd_per_page_month();
            self.model.back_usd(tier.fault_ns, tier.move_ns, usd_per_ns) / spared_usd
        };
        let pays = compressed.iter().map(pays_after).filter(|windows| *windows > 0.0);
        let least = pays.fold(f64::INFINITY, f64::min);
        match least.is_finite() {
            true => (least * SOON_PART).min(SOON_WINDOWS_MAX) as u8,
            false => 0,
        }
    }
}

/// Part of the windows after which a page pays that is soon.
const SOON_PART: f64 = 0.35;
/// What is soon at most, in windows: what time is worth may be anything.
const SOON_WINDOWS_MAX: f64 = 4.0;

/// Least share of a region's price in DRAM that matters.
const SPARES_MIN: f64 = 0.02;

/// A price if it is one: finite and above nothing.
pub(super) fn price(usd_per_ns: f64) -> Option<f64> {
    (usd_per_ns.is_finite() && usd_per_ns > 0.0).then_some(usd_per_ns)
}

/// One place for one region.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Place {
    /// The tier.
    pub tier: TierId,
    /// Money for the region there, pages that are back in DRAM included, in US dollars per month.
    pub usd_per_month: f64,
    /// The part of it that is processor time, at the price of a core.
    pub processor_usd: f64,
    /// Faults to expect per window.
    pub faults: f64,
    /// Time that threads are expected to wait for them, in nanoseconds per window.
    pub stall_ns: f64,
    /// Whether what came back of the region stays at home for now, if it is in this tier: it would
    /// cost more there.
    pub leaves_home: bool,
    /// Processor time of bringing the region there, once, in nanoseconds; 0 if it is there.
    pub move_ns: f64,
    /// All of it as money, time at the price that was handed in: what the least of is chosen by,
    /// in US dollars per month.
    pub usd_in_all: f64,
}

impl Place {
    /// Money for memory alone, in US dollars per month.
    pub fn memory_usd(&self) -> f64 {
        self.usd_per_month - self.processor_usd
    }

    /// Whether memory alone would cost less here than in DRAM, so that it matters: what is in full
    /// use would save nothing, or a rounding error.
    pub fn spares_memory(&self, dram: &Place) -> bool {
        dram.memory_usd() - self.memory_usd() > SPARES_MIN * dram.memory_usd()
    }
}

/// Weighs every tier for every region; made by [`weigh`].
#[derive(Debug)]
pub struct Weighing<'a> {
    regions: &'a [RegionView],
    tiers: &'a [TierCost],
    terms: Terms,
    usd_per_ns: f64,
    known: Vec<u32>,
    current: Vec<u8>,
    expected: Vec<Expected>,
}

/// Prepares to weigh `regions` with time at `usd_per_ns` (US dollars a month for a nanosecond in
/// every window).
pub fn weigh<'a>(
    regions: &'a [RegionView],
    tiers: &'a [TierCost],
    terms: Terms,
    usd_per_ns: f64,
) -> Weighing<'a> {
    let tiers = &tiers[..tiers.len().min(MAX_TIERS)];
    let expected = regions.iter().map(|region| {
        let told = terms.told_share.and_then(|share| Some((Slowdown::told(region)?, share)));
        if let Some((told, share)) = told {
            return Expected { faults: told.faults * share, ..told };
        }
        let hotness = match terms.newest_counts {
            true => Slowdown::hotness(region),
            false => f64::from(region.hotness_usable()),
        };
        let pages = f64::from(region.pages);
        let hotness = (hotness + terms.pages_beyond(region, hotness)).min(pages);
        let one = Expected::of(hotness, pages, terms.model.residence_windows);
        Expected { faults: one.faults * terms.correction, ..one }
    });
    Weighing {
        expected: expected.collect(),
        known: (0..regions.len() as u32).collect(),
        current: regions.iter().map(|region| region.tier_index(tiers)).collect(),
        regions,
        tiers,
        terms,
        usd_per_ns,
    }
}

impl Weighing<'_> {
    /// What region `index` would cost in each tier, DRAM first.
    ///
    /// # Panics
    /// If there is no such region.
    pub fn places(&self, index: usize) -> impl Iterator<Item = Place> + '_ {
        let model = self.terms.model;
        let choices = RegionChoices::new(
            self.regions,
            &self.known,
            &self.current,
            &self.expected,
            self.tiers,
            model,
        );
        let pages = f64::from(self.regions[index].pages);
        let here = usize::from(self.current[index]);
        let worth = match self.tiers.first() {
            Some(dram) => self.terms.worth * pages * dram.usd_per_page_month(),
            None => 0.0,
        };
        (0..self.tiers.len()).map(move |option| {
            let usd_per_month = choices.tco(index, option);
            let must_save = if option == 0 || option == here { 0.0 } else { worth };
            let moved = if option == here { 0.0 } else { pages };
            let lost_ns = choices.perf(index, option) - choices.once_ns(index, option);
            Place {
                tier: TierId(option as u8),
                usd_per_month,
                processor_usd: choices.processor_usd(index, option),
                // Nothing may be minus nothing.
                faults: choices.faults(index, option) + 0.0,
                stall_ns: choices.stall_ns(index, option) + 0.0,
                leaves_home: option == here
                    && here != 0
                    && self.terms.stay.holds(&self.regions[index], &choices, index, here),
                move_ns: moved * model.move_ns(&self.tiers[option]),
                usd_in_all: usd_per_month + must_save + lost_ns * self.usd_per_ns,
            }
        })
    }

    /// The place of region `index` that costs least in all, the first of equals.
    pub fn best(&self, index: usize) -> Option<Place> {
        self.places(index).reduce(|best, p| if p.usd_in_all < best.usd_in_all { p } else { best })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::PAGES_PER_GIB;
    use crate::plan::{Analytical, Measured, Policy};
    use proptest::prelude::*;

    /// A dollar a page and month; a quick tier at 2:1 and a slow one at 4:1.
    fn tiers() -> [TierCost; 3] {
        let dram = TierCost::dram(PAGES_PER_GIB);
        [
            dram,
            TierCost { fault_ns: 5_000.0, ratio: 0.5, ..dram },
            TierCost { fault_ns: 20_000.0, ratio: 0.25, ..dram },
        ]
    }

    fn region(id: u64, hotness: f32, tier: u8) -> RegionView {
        let resident = if tier == 0 { 512 } else { 0 };
        let view = RegionView::at(id, TierId(tier));
        RegionView { pages: 512, resident, hotness, windows_seen: 4, ..view }
    }

    #[test]
    fn what_is_soon_hangs_on_what_time_is_worth() {
        // Coming back from the quick tier takes 5 us and its place spares half a dollar: at 1e-3
        // dollars for a nanosecond it pays after 10 windows; from the slow one after 26.7.
        let soon = |usd_per_ns: f64| {
            let terms = Terms { usd_per_ns: Some(usd_per_ns), ..Terms::NONE };
            terms.soon_windows(&tiers())
        };
        assert_eq!([1e-3, 6e-4, 2e-4, 1e-5].map(soon), [3, 2, 0, 0]);
        assert_eq!(soon(1.0), 4);
        // Pages that go down again are dearer by that.
        let model = Model { residence_windows: 1.0, ..Model::PAPER };
        let terms = Terms { model, usd_per_ns: Some(2e-4), ..Terms::NONE };
        assert!(tiers()[1].move_ns > 5_000.0 && terms.soon_windows(&tiers()) > 0);
        // No price, no tier that spares anything.
        assert_eq!(Terms::NONE.soon_windows(&tiers()), 0);
        let terms = Terms { usd_per_ns: Some(1.0), ..Terms::NONE };
        let dram = tiers()[0];
        assert_eq!(terms.soon_windows(&[dram, TierCost { ratio: 1.0, ..tiers()[1] }]), 0);
        assert_eq!(terms.soon_windows(&[dram]), 0);
        assert_eq!(terms.soon_windows(&[]), 0);
    }

    #[test]
    fn a_region_by_hand() {
        // 512 pages, 10 touched a window, nothing comes back for long: 512, 256, 128 dollars; 10
        // faults of 5 and 20 us. A microsecond in every window at one dollar; moving it is 512 *
        // 20 us, over a stay of four windows 2,560 us.
        let regions = [region(0, 10.0, 0)];
        let tiers = tiers();
        let weighing = weigh(&regions, &tiers, Terms::NONE, 1e-3);
        let places: Vec<Place> = weighing.places(0).collect();
        assert_eq!(places.iter().map(|p| p.usd_per_month).collect::<Vec<_>>(), [512., 256., 128.]);
        assert_eq!(places.iter().map(|p| p.stall_ns).collect::<Vec<_>>(), [0., 5e4, 2e5]);
        assert_eq!(places.iter().map(|p| p.move_ns).collect::<Vec<_>>(), [0., 1.024e7, 1.024e7]);
        assert_eq!(places[1].usd_in_all, 256.0 + 50.0 + 2_560.0);
        assert_eq!(weighing.best(0).unwrap().tier, TierId::DRAM);
        assert!(places.iter().all(|p| p.memory_usd() == p.usd_per_month));
        // A core at a millionth of a dollar for each nanosecond in every window: 10 faults of 5 us,
        // whose pages are not taken down again, and the move over eight windows.
        let model = Model { usd_per_cpu_ns: 1e-6, usd_per_move_ns: 1e-6, ..Model::PAPER };
        let terms = Terms { model, ..Terms::NONE };
        let quick = weigh(&regions, &tiers, terms, 0.0).places(0).nth(1).unwrap();
        assert!((quick.processor_usd - (0.05 + 1.28)).abs() < 1e-9, "{quick:?}");
        assert!((quick.memory_usd() - 256.0).abs() < 1e-9 && quick.usd_per_month > 257.3);
        assert!(quick.spares_memory(&places[0]) && !places[0].spares_memory(&places[0]));
        // Who puts no price on time leaves nothing at home, whatever a core costs.
        let down =
            [RegionView { used_again: Some(1.0), since_down_windows: 0, ..region(0, 10., 1) }];
        let model = Model { usd_per_cpu_ns: 1.0, ..Model::PAPER };
        let terms = Terms { model, ..Terms::NONE };
        assert!(weigh(&down, &tiers, terms, 0.0).places(0).all(|place| !place.leaves_home));
        assert_eq!(weigh(&regions, &tiers, Terms::NONE, 1e-5).best(0).unwrap().tier, TierId(2));
    }

    #[test]
    fn policies_without_a_price_have_none() {
        let regions = [region(0, 10.0, 0)];
        let mut waterfall = crate::plan::Waterfall::new(crate::plan::Threshold::AGGRESSIVE);
        assert_eq!(waterfall.plan(&regions, &tiers()).terms, Terms::NONE);
        // More than enough to spend: another nanosecond or dollar is worth nothing.
        let plan = Slowdown::new(10.0).plan(&[], &tiers());
        assert_eq!(plan.terms.usd_per_ns, None);
    }

    /// At the plan's own price of time, if it has one, its places cost what the cheapest would. The
    /// last steps of the solver round the relaxed optimum to a real one: a few regions are
    /// elsewhere, at hardly more.
    fn check_places(plan: &crate::plan::Plan, regions: &[RegionView]) -> Result<(), TestCaseError> {
        let Some(usd_per_ns) = plan.terms.usd_per_ns else { return Ok(()) };
        let tiers = tiers();
        let weighing = weigh(regions, &tiers, plan.terms, usd_per_ns);
        let chosen = |index: usize| {
            let found = plan.moves.iter().find(|m| m.region as usize == index);
            found.map_or(regions[index].tier, |m| m.to)
        };
        let (mut paid, mut least, mut best) = (0.0, 0.0, 0);
        for index in 0..regions.len() {
            let here = weighing.places(index).nth(chosen(index).index()).expect("its tier");
            let cheapest = weighing.best(index).expect("tiers").usd_in_all;
            paid += here.usd_in_all;
            least += cheapest;
            best += usize::from(here.usd_in_all <= cheapest * (1.0 + 1e-6));
        }
        prop_assert!(paid <= least * 1.01, "{paid} where {least} would do");
        prop_assert!(best * 10 >= regions.len() * 9, "{best} of {}", regions.len());
        Ok(())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(60))]
        #[test]
        fn at_the_price_of_the_plan_each_region_is_where_it_costs_least(
            hotness in prop::collection::vec((0f32..400.0, 0u8..3), 100..300),
            alpha in 0.1f64..0.8, target in 0.02f64..0.4,
            core in prop::sample::select(vec![0.0, 500.0]),
        ) {
            let regions: Vec<RegionView> = hotness.iter().enumerate()
                .map(|(id, &(hot, tier))| region(id as u64, hot, tier)).collect();
            let model = Model {
                residence_windows: 1.5,
                usd_per_cpu_ns: 1e-7,
                contention: 0.5,
                ..Model::PAPER
            };
            let plan = Analytical::new(alpha).with_model(model).plan(&regions, &tiers());
            check_places(&plan, &regions)?;

            // A core at no price, and at one that matters, in windows of a second.
            let priced = Slowdown::new(target).with_residence(1.5).with_core_price(core, 1.0);
            let mut policy = priced;
            policy.learn(&Measured {
                running_ns: 4e9, contention: 0.02, ..Measured::default()
            });
            let plan = policy.plan(&regions, &tiers());
            let waits = matches!(plan.why, crate::plan::Why::WithinSlowdown { waiting, .. } if
                waiting > 0);
            if !waits {
                check_places(&plan, &regions)?;
            }
        }
    }
}
