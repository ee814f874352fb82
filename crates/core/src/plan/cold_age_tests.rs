//! The policy on simulated applications, page by page: every page has a rate of touches, some pages
//! of each region are watched, and the truth is known.

use super::*;
use crate::hotness::WindowSeen;
use std::f64::consts::TAU;

const PAGES: usize = 512;
/// As the runtime's default.
const COOLING: u32 = 3;

/// Steele, Lea and Flood's generator.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }
}

#[derive(Clone, Copy)]
struct Page {
    /// Touches a second.
    rate: f64,
    /// Chance to be touched in a window under the load of now, of 2^64.
    chance: u64,
    /// Windows since the last.
    age: u32,
    is_stored: bool,
    is_incompressible: bool,
    came_back: u32,
}

/// An application, a tracker and movers.
struct World {
    random: Random,
    pages: Vec<Page>,
    tiers: Vec<TierId>,
    views: Vec<RegionView>,
    planned: Vec<bool>,
    samples: usize,
    window: u32,
    window_s: f64,
    load: f64,
    /// Of the newest window: pages touched, and those of them that were stored.
    touched: u64,
    promoted: u64,
    /// Touched pages of regions by the age that the policy gave the region, and by their own.
    by_region: [f64; 256],
    by_page: [f64; 256],
}

impl World {
    fn new(seed: u64, samples: usize, window_s: f64, rates: &[f64]) -> World {
        let page = |&rate: &f64| Page {
            rate,
            chance: 0,
            age: 0,
            is_stored: false,
            is_incompressible: false,
            came_back: 0,
        };
        let regions = rates.len() / PAGES;
        World {
            random: Random(seed),
            pages: rates.iter().map(page).collect(),
            tiers: vec![TierId::DRAM; regions],
            views: Vec::new(),
            planned: vec![false; regions],
            samples,
            window: 0,
            window_s,
            load: f64::NAN,
            touched: 0,
            promoted: 0,
            by_region: [0.0; 256],
            by_page: [0.0; 256],
        }
    }

    fn run(&mut self, policy: &mut ColdAgePolicy, costs: &[TierCost], load: impl Fn(f64) -> f64) {
        self.window += 1;
        // A load is steady for ten minutes.
        let at = (f64::from(self.window) * self.window_s / 600.0).floor() * 600.0;
        self.set_load(load(at));
        (self.touched, self.promoted) = (0, 0);
        self.views.clear();
        for region in 0..self.tiers.len() {
            let age = policy.ages.get(&(region as u64)).map_or(0, |(ages, _)| ages.home_age());
            let seen = self.window_of(region, age);
            let pages = &self.pages[region * PAGES..][..PAGES];
            let resident = pages.iter().filter(|page| !page.is_stored).count() as u32;
            let view = RegionView::at(region as u64, self.tiers[region]);
            self.views.push(RegionView {
                pages: PAGES as u32,
                resident,
                windows_seen: 1,
                seen: Some(seen),
                ..view
            });
        }
        let plan = policy.plan(&self.views, costs);
        self.planned.fill(false);
        for step in &plan.moves {
            let region = step.region as usize;
            self.planned[region] = true;
            self.tiers[region] = step.to;
            for page in &mut self.pages[region * PAGES..][..PAGES] {
                if step.to == TierId::DRAM {
                    page.is_stored = false;
                    continue;
                }
                let cools = page.came_back > 0 && self.window - page.came_back < COOLING;
                page.is_stored |= !page.is_incompressible && !cools;
            }
        }
    }

    fn set_load(&mut self, load: f64) {
        if self.load == load {
            return;
        }
        self.load = load;
        for page in &mut self.pages {
            let chance = 1.0 - (-page.rate * load * self.window_s).exp();
            page.chance = (chance * u64::MAX as f64) as u64;
        }
    }

    fn window_of(&mut self, region: usize, age: u8) -> WindowSeen {
        let pages = &mut self.pages[region * PAGES..][..PAGES];
        let stored = pages.iter().filter(|page| page.is_stored).count();
        let present = PAGES - stored;
        let mut seen =
            WindowSeen { present: present as u16, stored: stored as u16, ..WindowSeen::default() };
        // Which pages are watched: at random, of those at home; none of what is about to go.
        let mut watched = [false; PAGES];
        if present > 0 && !self.planned[region] {
            for _ in 0..self.samples.min(present) {
                let mut at = (0..64).map(|_| self.random.next() as usize % PAGES);
                let free = |&at: &usize| !pages[at].is_stored && !watched[at];
                let at = at.find(free);
                at.inspect(|&at| watched[at] = true);
                seen.sampled += u16::from(at.is_some());
            }
        }
        for (page, watched) in pages.iter_mut().zip(watched) {
            if self.random.next() >= page.chance {
                page.age += 1;
                continue;
            }
            self.touched += 1;
            if page.is_stored {
                seen.faults += 1;
                page.is_stored = false;
                page.came_back = self.window;
            } else {
                seen.hits += u16::from(watched);
                self.by_region[usize::from(age)] += 1.0;
            }
            self.by_page[page.age.min(255) as usize] += 1.0;
            page.age = 0;
        }
        self.promoted += u64::from(seen.faults);
        seen
    }

    fn stored(&self) -> usize {
        self.pages.iter().filter(|page| page.is_stored).count()
    }
}

fn one_tier() -> Vec<TierCost> {
    let dram = TierCost::dram(4.0);
    vec![dram, TierCost { fault_ns: 8_000.0, ratio: 0.4, ..dram }]
}

/// Popularity after Zipf, the popular side by side: `pages` of them share `rate` touches a second.
fn zipf(pages: usize, skew: f64, rate: f64) -> Vec<f64> {
    let weights: Vec<f64> = (1..=pages).map(|rank| (rank as f64).powf(-skew)).collect();
    let sum: f64 = weights.iter().sum();
    weights.iter().map(|weight| rate * weight / sum).collect()
}

/// 16 regions in use, and 16 of which a page is touched once in `rest_s` on average.
fn application(rest_s: f64) -> Vec<f64> {
    let mut rates = zipf(16 * PAGES, 0.9, 2_500.0);
    rates.extend([1.0 / rest_s; 16 * PAGES]);
    rates
}

/// What a run came to, after the warm-up.
#[derive(Debug)]
struct Outcome {
    /// Share of the minutes within the limit, by the truth: pages promoted of pages touched.
    within: f64,
    /// The same as the policy saw it.
    within_seen: f64,
    coverage: f64,
    /// Threshold in the end.
    threshold: Option<u8>,
}

/// Hours of minutes of 60 s, windows and scans of 5 s.
fn outcome(rates: &[f64], samples: usize, hours: f64, load: impl Fn(f64) -> f64) -> Outcome {
    let windows = (hours * 720.0) as usize;
    outcome_of(7, Settings::at_window(5.0), rates, samples, windows, load)
}

fn outcome_of(
    seed: u64,
    settings: Settings,
    rates: &[f64],
    samples: usize,
    in_all: usize,
    load: impl Fn(f64) -> f64,
) -> Outcome {
    let mut policy = ColdAgePolicy::new(settings);
    let mut world = World::new(seed, samples, settings.window_s, rates);
    let costs = one_tier();
    let (mut promoted, mut touched, mut windows) = (0.0, 0.0, 0.0);
    let (mut minutes, mut within, mut coverage) = (0.0, 0.0, 0.0);
    let mut before = 0;
    for _ in 0..in_all {
        let was_warm = policy.control().facts().is_warm;
        world.run(&mut policy, &costs, &load);
        promoted += world.promoted as f64;
        touched += world.touched as f64;
        windows += 1.0;
        let facts = policy.control().facts();
        if facts.minutes != before {
            before = facts.minutes;
            if was_warm {
                let allowed = settings.promotion_rate * touched / windows;
                minutes += 1.0;
                within += f64::from(u8::from(promoted <= allowed));
                coverage += facts.coverage();
            }
            (promoted, touched, windows) = (0.0, 0.0, 0.0);
        }
    }
    let facts = policy.control().facts();
    Outcome {
        within: within / minutes,
        within_seen: 1.0 - f64::from(facts.minutes_over) / f64::from(facts.minutes_warm),
        coverage: coverage / minutes,
        threshold: policy.control().threshold(0).periods(),
    }
}

#[test]
fn the_limit_holds_under_a_steady_load() {
    let rates = application(7.0 * 86_400.0);
    for samples in [4, 32] {
        let outcome = outcome(&rates, samples, 12.0, |_| 1.0);
        println!("steady, {samples} samples: {outcome:?}");
        assert!(outcome.within >= 0.98 && outcome.within_seen >= 0.98, "{outcome:?}");
        assert!(outcome.coverage > 0.3 && outcome.threshold.is_some(), "{outcome:?}");
    }
}

#[test]
fn what_is_touched_too_often_for_the_limit_goes_down_in_part_or_not_at_all() {
    // All 8,192 of them down would be 5.7 promotions a minute, which is near what is allowed.
    let outcome = outcome(&application(86_400.0), 4, 12.0, |_| 1.0);
    println!("often: {outcome:?}");
    assert!(outcome.within >= 0.98, "{outcome:?}");
}

#[test]
fn the_limit_holds_by_day_and_night() {
    let load = |s: f64| 0.55 + 0.45 * (TAU * s / (6.0 * 3_600.0)).sin();
    let outcome = outcome(&application(7.0 * 86_400.0), 4, 24.0, load);
    println!("diurnal: {outcome:?}");
    assert!(outcome.within >= 0.98, "{outcome:?}");
    assert!(outcome.coverage > 0.1, "{outcome:?}");
}

#[test]
fn the_limit_holds_but_for_a_spike() {
    // Ten minutes of twelve hours in which all is asked for 20 times as much.
    let rates = application(30.0 * 86_400.0);
    let spike = |s: f64| if s == 21_600.0 { 20.0 } else { 1.0 };
    let outcome = outcome(&rates, 4, 12.0, spike);
    println!("spike: {outcome:?}");
    assert!(outcome.within >= 0.98, "{outcome:?}");
    assert!(outcome.coverage > 0.2, "{outcome:?}");
}

/// Compressed time, as `e2e/test_cold_age.py` has it: a minute is a window, and the least popular
/// of 32 regions have 30 touches in it, so that many a window shows none of them.
#[test]
fn regions_that_only_looked_cold_are_brought_home() {
    let settings =
        Settings { warm_up_s: 5.0, minute_s: 0.5, scan_s: 0.5, ..Settings::at_window(0.5) };
    let mut rates = zipf(32 * PAGES, 1.0, 20_000.0);
    rates.extend([0.5 / (32.0 * PAGES as f64); 32 * PAGES]);
    for seed in 0..10 {
        let outcome = outcome_of(seed, settings, &rates, 8, 1_200, |_| 1.0);
        println!("compressed, seed {seed}: {outcome:?}");
        // 95.4 % at worst and 96.6 % on average when they stayed until their last page was touched.
        assert!(outcome.within >= 0.98 && outcome.coverage > 0.5, "{outcome:?}");
        // The first minutes, in which all that is known of a region is eight of its pages.
        let first = outcome_of(seed, settings, &rates, 8, 81, |_| 1.0);
        assert!(first.within >= 0.9 && first.coverage > 0.4, "{first:?}");
    }
}

/// The estimates against the truth, with all at home.
#[test]
fn estimates_are_of_the_size_of_the_truth() {
    let settings = Settings { warm_up_s: 1e9, ..Settings::at_window(5.0) };
    for samples in [4, 32] {
        let mut policy = ColdAgePolicy::new(settings);
        let mut world = World::new(11, samples, settings.window_s, &application(7.0 * 86_400.0));
        let (mut seen, mut truth) = ([0.0; 256], 0.0);
        let (mut working_set, mut minutes) = (0.0, 0u32);
        for _ in 0..12 * 60 * 8 {
            world.run(&mut policy, &one_tier(), |_| 1.0);
            truth += world.touched as f64;
            let facts = policy.control().facts();
            if facts.minutes != minutes {
                minutes = facts.minutes;
                working_set += facts.working_set_pages * 12.0;
                let of = |age| policy.control().newest_promotions().at(age as u8);
                (0..256).for_each(|age| seen[age] += of(age));
            }
        }
        println!("{samples} samples: working set {:.4} of the truth", working_set / truth);
        assert!((working_set / truth - 1.0).abs() < 0.02, "{working_set} {truth}");
        let from = |histogram: &[f64; 256], age: usize| histogram[age..].iter().sum::<f64>();
        for age in [1, 2, 4, 8, 16, 32] {
            let (estimate, regions) = (from(&seen, age), from(&world.by_region, age));
            let pages = from(&world.by_page, age);
            println!("  {age}: {estimate:.0}, by region {regions:.0}, by page {pages:.0}");
            // Of a region's age the estimate is right on average, up to the noise of the hits that
            // it is made of: each stands for 512 / samples pages.
            let hits = (regions * samples as f64 / PAGES as f64).max(1.0);
            let noise = 4.0 * regions / hits.sqrt() + 4.0 * PAGES as f64 / samples as f64;
            assert!((estimate - regions).abs() < noise, "{age}: {estimate} {regions} {noise}");
        }
    }
}

#[test]
fn a_page_that_no_tier_takes_is_not_tried_for_ever() {
    let settings = Settings { warm_up_s: 60.0, ..Settings::at_window(5.0) };
    let mut policy = ColdAgePolicy::new(settings);
    let mut rates = vec![5.0; 24 * PAGES];
    rates.extend([0.0; 8 * PAGES]);
    let mut world = World::new(3, 4, 5.0, &rates);
    for page in &mut world.pages[28 * PAGES..] {
        page.is_incompressible = true;
    }
    let mut attempts = 0;
    for _ in 0..12 * 60 {
        world.run(&mut policy, &one_tier(), |_| 1.0);
        attempts += world.planned[28..].iter().filter(|planned| **planned).count();
    }
    let facts = policy.control().facts();
    assert_eq!(world.stored(), 4 * PAGES);
    assert_eq!(facts.refused_pages, 4.0 * PAGES as f64);
    // An hour; the eighth attempt comes after 134 windows, later ones every 65 and more.
    assert!((4 * 8..4 * 24).contains(&attempts), "{attempts}");
}

/// Regions 0 and 1 in use, wholly, so that of 1 % of the working set 10 may come back in a minute
/// and 4.2 are meant to; and three that are down, or home, of which so many pages are touched.
fn used_and_far(far: [Option<u16>; 3]) -> Vec<RegionView> {
    let view = |(id, touched): (u64, Option<u16>)| {
        let home = WindowSeen { present: 512, sampled: 8, ..WindowSeen::default() };
        let (resident, seen) = match touched {
            Some(faults) => {
                (u32::from(faults), WindowSeen { stored: 512, faults, ..WindowSeen::default() })
            }
            None if id < 2 => (512, WindowSeen { hits: 8, ..home }),
            None => (512, home),
        };
        let tier = TierId(u8::from(touched.is_some()));
        RegionView { pages: 512, resident, seen: Some(seen), ..RegionView::at(id, tier) }
    };
    (0..).zip([None, None].into_iter().chain(far)).map(view).collect()
}

fn brought_home(policy: &mut ColdAgePolicy, far: [Option<u16>; 3]) -> Vec<u32> {
    let plan = policy.plan(&used_and_far(far), &one_tier());
    let home: Vec<u32> =
        plan.moves.iter().filter(|m| m.to == TierId::DRAM).map(|m| m.region).collect();
    let why = plan.why.to_string();
    let said = format!(", {} that are touched too often come home", home.len());
    assert_eq!(why.ends_with(&said), !home.is_empty(), "{why}");
    home
}

#[test]
fn who_breaks_the_limit_comes_home_and_must_be_twice_as_old_to_go_again() {
    let settings = Settings {
        warm_up_s: 5.0,
        minute_s: 5.0,
        promotion_rate: 0.01,
        ..Settings::at_window(5.0)
    };
    let mut policy = ColdAgePolicy::new(settings);
    let mut home = |far: [u16; 3]| brought_home(&mut policy, far.map(Some));
    (0..4).for_each(|_| assert_eq!(home([0, 0, 0]), []));
    assert_eq!(home([4, 2, 4]), [], "10 are allowed");
    // Without the worst it is 4; and 1 of each of many would be nobody's fault.
    assert_eq!(home([9, 3, 1]), [2]);
    assert_eq!(home([6, 1, 6]), [2, 4]);
    let age = |id: u64| policy.ages[&id].0.proven(8);
    assert_eq!([2, 3, 4].map(age), [2, 8, 4]);
    // At the memory limit there is no room to bring anything to.
    policy.limit(true);
    assert_eq!(brought_home(&mut policy, [Some(0), Some(90), Some(0)]), []);
}

#[test]
fn who_has_come_home_is_not_held_against_the_others() {
    let settings = Settings {
        warm_up_s: 15.0,
        minute_s: 15.0,
        promotion_rate: 0.01,
        ..Settings::at_window(5.0)
    };
    let mut policy = ColdAgePolicy::new(settings);
    let mut home = |far| brought_home(&mut policy, far);
    (0..6).for_each(|_| assert_eq!(home([Some(0); 3]), []));
    // Within a minute: the limit is broken by one region, and the others have had 4 when it ends.
    assert_eq!(home([Some(12), Some(2), Some(1)]), [2]);
    assert_eq!(home([None, Some(0), Some(1)]), []);
    assert_eq!(home([None, Some(0), Some(0)]), []);
    // And in the next minute everybody begins anew.
    assert_eq!(home([None, Some(9), Some(0)]), []);
    assert_eq!(home([None, Some(2), Some(0)]), [3]);
}

#[test]
fn older_pages_go_to_the_cheaper_tier_whatever_the_order_of_tiers() {
    let dram = TierCost::dram(4.0);
    let quick = TierCost { fault_ns: 5_000.0, ratio: 0.5, ..dram };
    let cheap = TierCost { fault_ns: 40_000.0, ratio: 0.2, ..dram };
    for (order, costs) in [((1, 2), [dram, quick, cheap]), ((2, 1), [dram, cheap, quick])] {
        let settings = Settings { warm_up_s: 300.0, ..Settings::at_window(5.0) };
        let mut policy = ColdAgePolicy::new(settings);
        // 40 regions in use; 8 that are touched now and then, 8 that never are.
        let mut rates = vec![2.0; 40 * PAGES];
        rates.extend([1.0 / 40_000.0; 8 * PAGES]);
        rates.extend([0.0; 8 * PAGES]);
        let mut world = World::new(5, 16, 5.0, &rates);
        for _ in 0..12 * 60 * 4 {
            world.run(&mut policy, &costs, |_| 1.0);
        }
        let thresholds = &policy.control().facts().thresholds;
        let (quick, cheap) = (thresholds[order.0 - 1], thresholds[order.1 - 1]);
        assert!(quick.is_some() && cheap.is_none_or(|age| Some(age) >= quick), "{thresholds:?}");
        // What is never touched ends in the cheap tier.
        let never = &world.tiers[48..];
        assert!(never.iter().all(|tier| tier.index() == order.1), "{never:?} {thresholds:?}");
        assert!(world.tiers[..40].iter().all(|tier| *tier == TierId::DRAM));
    }
}

#[test]
fn at_the_memory_limit_nothing_moves() {
    let settings = Settings { warm_up_s: 60.0, ..Settings::at_window(5.0) };
    let mut rates = vec![5.0; 8 * PAGES];
    rates.extend([0.0; 8 * PAGES]);
    let mut policy = ColdAgePolicy::new(settings);
    let mut world = World::new(3, 4, 5.0, &rates);
    policy.limit(true);
    for _ in 0..12 * 30 {
        world.run(&mut policy, &one_tier(), |_| 1.0);
        assert!(world.planned.iter().all(|planned| !planned));
    }
    let why = policy.plan(&world.views, &one_tier()).why;
    assert!(matches!(why, Why::ColdAge { state: FarMemory::AtLimit, .. }));
    assert!(why.to_string().starts_with("at the memory limit: no more is demoted; "));
    policy.limit(false);
    for _ in 0..12 * 30 {
        world.run(&mut policy, &one_tier(), |_| 1.0);
    }
    let stored = world.stored();
    assert!(stored > 0);
    // What is down stays there, and comes back when it is touched; nothing is brought.
    policy.limit(true);
    (0..24).for_each(|_| world.run(&mut policy, &one_tier(), |_| 1.0));
    assert_eq!(world.stored(), stored);
}

#[test]
fn the_working_set_stays_at_home() {
    // All is silent for a window, and everything is allowed: still as many pages stay as were in
    // use in the minute before.
    let home = |id| RegionView { pages: 512, resident: 512, ..RegionView::at(id, TierId::DRAM) };
    let regions: Vec<RegionView> = (0..4).map(home).collect();
    let settings =
        Settings { warm_up_s: 0.0, minute_s: 5.0, promotion_rate: 1.0, ..Settings::at_window(5.0) };
    let mut policy = ColdAgePolicy::new(settings);
    let see = |hits, from: usize| -> Vec<RegionView> {
        let seen = |at| WindowSeen {
            present: 512,
            sampled: 4,
            hits: if at >= from { hits } else { 0 },
            ..WindowSeen::default()
        };
        let with = |(at, r): (usize, &RegionView)| RegionView { seen: Some(seen(at)), ..*r };
        regions.iter().enumerate().map(with).collect()
    };
    // The last two regions in use, all of both: 1,024 pages. Then they are silent for a window.
    (0..4).for_each(|_| _ = policy.plan(&see(4, 2), &one_tier()));
    assert_eq!(policy.control().soft_limit_pages(), 1_024.0);
    let plan = policy.plan(&see(0, 0), &one_tier());
    assert!(plan.moves.len() <= 2, "{plan:?}");
}

#[test]
fn a_failed_move_is_asked_for_again_and_nothing_is_planned_without_tiers() {
    let mut policy = ColdAgePolicy::new(Settings::at_window(5.0));
    let dram = [TierCost::dram(1.0)];
    assert_eq!(policy.plan(&[], &dram).why, Why::NothingToPlan);
    let why = policy.plan(&[], &one_tier()).why.to_string();
    assert!(
        why.starts_with("warming up: nothing is demoted yet; no page is cold enough; "),
        "{why}"
    );
}
