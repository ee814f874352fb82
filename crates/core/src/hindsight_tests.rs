//! Hindsight against a clairvoyant who knows every touch beforehand, and its sums against plain
//! ones.

use std::collections::HashMap;

use proptest::prelude::*;

use crate::cost::{TierCost, PAGES_PER_GIB};
use crate::hindsight::{Bounds, End, Hindsight, Seen, Tally, Window, MONTH_S, PING_PONG_WINDOWS};
use crate::plan::{Move, Plan, Policy, RegionView, Torture, Why};
use crate::sim::{Machine, Simulation};
use crate::tier::TierId;

const MOVE_NS: f64 = 20_000.0;
const FAULT_NS: f64 = 10_000.0;
/// A page saves half a dollar a month in T1.
const SAVES_USD: f64 = 0.5;
/// One second of a window, and of waiting.
const WINDOW_S: f64 = 1.0;

fn tiers() -> Vec<TierCost> {
    let dram = TierCost { move_ns: MOVE_NS, ..TierCost::dram(PAGES_PER_GIB) };
    vec![
        dram,
        TierCost { fault_ns: FAULT_NS, ratio: 0.5, ..dram },
        TierCost { fault_ns: 2.0 * FAULT_NS, ratio: 0.25, ..dram },
    ]
}

fn machine(tiers: usize) -> Machine {
    Machine {
        tiers: self::tiers()[..tiers].to_vec(),
        cooling_windows: 1,
        samples_per_region: 4,
        move_pages: u64::MAX,
        move_ns: vec![MOVE_NS],
        fault_cpu_ns: 0.0,
        hit_ns: 0.0,
        contention: 1.0,
    }
}

/// Sends everything to T1, whatever it is.
struct AllDown;

impl Policy for AllDown {
    fn plan(&mut self, regions: &[RegionView], tiers: &[TierCost]) -> Plan {
        let mut plan = Torture::new(1).plan(&[], tiers);
        let down = |(at, region): (usize, &RegionView)| {
            let is_needed = region.tier == TierId::DRAM || region.resident > 0;
            let (from, to) = (region.tier, TierId(1));
            is_needed.then_some(Move { region: at as u32, id: region.id, from, to })
        };
        plan.moves = regions.iter().enumerate().filter_map(down).collect();
        plan.why = Why::AllInDram;
        plan
    }
}

/// Runs `windows` windows of regions of 512 pages; `touched(window, region)` pages of each. A
/// second is worth `usd_per_s`.
fn run(
    machine: Machine,
    regions: usize,
    windows: u32,
    usd_per_s: f64,
    policy: &mut dyn Policy,
    touched: impl Fn(u32, usize) -> f32,
) -> Hindsight {
    let mut sim = Simulation::new(machine, &vec![512; regions]);
    let mut hindsight = Hindsight::new(Bounds::default());
    let tiers = tiers();
    for number in 1..=windows {
        let touches: Vec<f32> = (0..regions).map(|r| touched(number, r)).collect();
        let hits = |watched: u16, share: f64| (f64::from(watched) * share).round() as u16;
        let outcome = sim.window(&touches, 1e9, hits, policy);
        let window = self::window(number, &tiers);
        hindsight.observe(&window, sim.seen());
        hindsight.decided(&window, sim.views(), &outcome.plan.moves, usd_per_s);
    }
    hindsight.finish(windows + 1);
    hindsight
}

#[test]
fn what_is_never_touched_was_right_to_go() {
    // Ten minutes of half a dollar a month each for 512 pages: 5.8 cents. A second of moving costs
    // 10 ms of a dollar here.
    let hindsight = run(machine(2), 6, 600, 0.01, &mut AllDown, |_, _| 0.0);
    let total = hindsight.total();
    assert_eq!((total.right, total.wrong, total.open), (6, 0, 0));
    assert_eq!((total.share_right(), total.regret_usd), (Some(1.0), 0.0));
    assert!(hindsight.past().all(|p| p.end == End::RunEnded && p.record.effect.faults == 0));
    // Demoted by the first plan; half of its first window counts, and all of the 598 after it.
    let saved = 6.0 * 512.0 * SAVES_USD * WINDOW_S * 598.5 / MONTH_S;
    assert!((total.effect.saved_usd / saved - 1.0).abs() < 1e-9);
    assert_eq!(total.effect.move_ns, 6.0 * 512.0 * MOVE_NS);
}

#[test]
fn what_is_touched_right_again_was_wrong_to_go() {
    let hindsight = run(machine(2), 4, 60, 0.01, &mut AllDown, |_, _| 512.0);
    let total = hindsight.total();
    assert_eq!((total.right, total.open), (0, 0));
    assert!(total.wrong >= 4 * 28, "{total:?}");
    // Every page of each came back, and was carried down for it.
    let pages: u64 = hindsight.past().map(|p| u64::from(p.record.pages)).sum();
    assert!(hindsight.past().filter(|p| p.end == End::CameBack).count() as u64 >= total.wrong - 4);
    assert_eq!(total.effect.faults, pages);
    assert_eq!(total.effect.stall_ns, total.effect.faults as f64 * FAULT_NS);
    assert!(total.regret_usd > 0.0);
    let effect = total.effect;
    let lost = (effect.stall_ns + effect.move_ns) / 1e9 * 0.01 - effect.saved_usd;
    assert!((total.regret_usd / lost - 1.0).abs() < 1e-9, "all of it is regret");
}

#[test]
fn a_clairvoyant_would_have_drawn_the_same_line() {
    // A region is read as a whole every n windows. A demotion saves for n windows less the one that
    // pages cool in, costs 512 faults of 10 us and 512 moves of 20 us. At half a dollar a page and
    // month and one dollar for a second that is even after about 0.03 s * MONTH_S / 0.5 windows;
    // time is made dearer or cheaper until it is.
    let cost_s = 512.0 * (FAULT_NS + MOVE_NS) / 1e9;
    for n in [6u32, 12, 30] {
        let saved = |windows: f64| 512.0 * SAVES_USD * WINDOW_S * windows / MONTH_S;
        // Down at the end of window k * n, back within window (k + 1) * n: n - 1 windows between,
        // of which the first and the last count half.
        let even = saved(f64::from(n) - 1.0) / cost_s;
        let touched = |window: u32, _: usize| if window.is_multiple_of(n) { 512.0 } else { 0.0 };
        let score = |usd_per_s| {
            let hindsight = run(machine(2), 3, 10 * n, usd_per_s, &mut AllDown, touched);
            let whole = |p: &&crate::hindsight::Past| p.end == End::CameBack;
            let scored: Vec<bool> =
                hindsight.past().filter(whole).map(|p| p.record.is_right()).collect();
            assert!(scored.len() >= 3 * 8, "{n}: {}", scored.len());
            scored
        };
        assert!(score(even * 0.7).iter().all(|&right| right), "{n}: time is cheap");
        assert!(score(even * 1.4).iter().all(|&right| !right), "{n}: time is dear");
    }
}

fn window(number: u32, tiers: &[TierCost]) -> Window<'_> {
    Window { number, seconds: WINDOW_S, tiers, contention: 1.0, waited_share: 1.0 }
}

fn view(id: u64, tier: u8, resident: u32) -> RegionView {
    let view = RegionView::at(id, TierId(tier));
    RegionView { pages: 512, resident, windows_seen: 4, hotness: 3.0, ..view }
}

fn step(at: u32, id: u64, from: u8, to: u8) -> Move {
    Move { region: at, id, from: TierId(from), to: TierId(to) }
}

#[test]
fn records_end_for_each_reason() {
    let tiers = tiers();
    let w = |n| window(n, &tiers);
    let mut h = Hindsight::new(Bounds::default());
    let views: Vec<RegionView> = (0..5).map(|id| view(id << 21, 0, 512)).collect();
    let down: Vec<Move> = (0..5).map(|n| step(n, u64::from(n) << 21, 0, 1)).collect();
    h.decided(&w(1), &views, &down, 0.01);
    let seen = |region: u64, stored| Seen { region: region << 21, stored, faults: 0 };
    // The last of the five is never carried out, the fourth is unmapped.
    h.observe(&w(2), [seen(0, 512), seen(1, 512), seen(2, 512), seen(3, 512), seen(4, 0)]);
    let views = [view(0, 1, 0), view(1 << 21, 1, 0)];
    h.decided(&w(2), &views, &[step(0, 0, 1, 0), step(1, 1 << 21, 1, 2)], 0.01);
    let came_back = Seen { faults: 400, ..seen(2, 112) };
    for number in 3..6 {
        h.observe(&w(number), [seen(0, 0), seen(1, 512), came_back, seen(4, 0)]);
    }
    let ends: Vec<(u64, End)> = h.past().map(|p| (p.record.region >> 21, p.end)).collect();
    let expected = [
        (0, End::Promoted),
        (1, End::MovedOn),
        (2, End::CameBack),
        (3, End::Gone),
        (4, End::NotDone),
    ];
    assert_eq!(ends, expected);
    assert_eq!(h.open(1 << 21).map(|r| (r.from, r.to)), Some((TierId(1), TierId(2))));
    assert_eq!(h.promotions(), 1);
    // The way down and the way back.
    let promoted = h.past().next().map(|p| p.record.effect.move_ns);
    assert_eq!(promoted, Some(2.0 * 512.0 * MOVE_NS));
    // Down again so soon after it was brought home.
    h.decided(&w(6), &[view(0, 0, 512)], &[step(0, 0, 0, 1)], 0.01);
    assert_eq!(h.open(0).and_then(|r| r.again_after), Some(4));
    assert_eq!(h.total().ping_pongs, 1);
}

#[test]
fn what_has_not_begun_is_neither_right_nor_wrong() {
    let tiers = tiers();
    let mut h = Hindsight::new(Bounds::default());
    let views = [view(0, 0, 512), view(1 << 21, 0, 512)];
    let down = [step(0, 0, 0, 1), step(1, 1 << 21, 0, 1)];
    h.decided(&window(1, &tiers), &views, &down, 0.01);
    assert_eq!((h.total().open, h.total().share_right()), (2, None));
    h.observe(&window(2, &tiers), [Seen { region: 0, stored: 0, faults: 0 }]);
    let again = [view(0, 1, 512)];
    h.decided(&window(2, &tiers), &again, &[step(0, 0, 1, 2)], 0.01);
    // One was unmapped, and one sent elsewhere, before anything had moved.
    assert_eq!(h.past().map(|p| p.end).collect::<Vec<_>>(), [End::NotDone; 2]);
    // From tier to tier pages are stored before; they have not moved yet all the same.
    let stored = [view(3 << 21, 1, 0)];
    h.decided(&window(2, &tiers), &stored, &[step(0, 3 << 21, 1, 2)], 0.01);
    assert_eq!((h.total().open, h.total().share_right()), (2, None));
}

#[test]
fn a_promotion_is_forgotten_in_time() {
    let tiers = tiers();
    let mut h = Hindsight::new(Bounds::default());
    h.decided(&window(1, &tiers), &[view(0, 1, 0)], &[step(0, 0, 1, 0)], 0.01);
    let later = 2 + PING_PONG_WINDOWS;
    h.observe(&window(later, &tiers), []);
    h.decided(&window(later, &tiers), &[view(0, 0, 512)], &[step(0, 0, 0, 1)], 0.01);
    assert_eq!(h.total().ping_pongs, 0);
}

#[test]
fn what_is_dearer_but_quicker_can_be_right() {
    // From T2 to T1: half a page's price more by the quarter, and each fault 10 us less.
    let tiers = tiers();
    for (faults, right) in [(0, false), (400, true)] {
        let mut h = Hindsight::new(Bounds::default());
        h.decided(&window(1, &tiers), &[view(0, 2, 0)], &[step(0, 0, 2, 1)], 0.05);
        for number in 2..12 {
            let seen = Seen { region: 0, stored: 500, faults };
            h.observe(&window(number, &tiers), [seen]);
        }
        h.finish(12);
        let past = h.past().next().expect("ended");
        assert!(past.record.effect.saved_usd < 0.0 && past.record.effect.stall_ns <= 0.0);
        assert_eq!(past.record.effect.move_ns, 512.0 * MOVE_NS, "all of it, once");
        assert_eq!(past.record.is_right(), right, "{faults}: {}", past.record.balance_usd());
    }
}

#[test]
fn a_scan_waits_for_few_of_the_pages_it_brings_along() {
    let tiers = tiers();
    let mut h = Hindsight::new(Bounds::default());
    h.decided(&window(1, &tiers), &[view(0, 0, 512)], &[step(0, 0, 0, 1)], 0.01);
    let scanned = Window { waited_share: 0.25, ..window(2, &tiers) };
    h.observe(&scanned, [Seen { region: 0, stored: 0, faults: 512 }]);
    let effect = h.total().effect;
    assert_eq!((effect.faults, effect.stall_ns), (512, 128.0 * FAULT_NS));
}

#[test]
fn memory_is_bounded_and_the_sums_lose_nothing() {
    let tiers = tiers();
    let run = |bounds: Bounds| {
        let mut h = Hindsight::new(bounds);
        for number in (1..40).step_by(2) {
            let views: Vec<RegionView> = (0..10).map(|id| view(id << 21, 0, 512)).collect();
            let down: Vec<Move> = (0..10).map(|n| step(n, u64::from(n) << 21, 0, 1)).collect();
            h.decided(&window(number, &tiers), &views, &down, 0.01);
            let back = (0..10).map(|id| Seen { region: id << 21, stored: 0, faults: 512 });
            h.observe(&window(number + 1, &tiers), back);
        }
        (h.total(), h.past().count(), h.unfollowed())
    };
    let (all, kept, unfollowed) = run(Bounds::default());
    assert_eq!((all.wrong, kept, unfollowed), (200, 200, 0));
    let (few, kept, unfollowed) = run(Bounds { open: 10, past: 7 });
    assert_eq!((few, kept, unfollowed), (all, 7, 0));
    let (fewer, _, unfollowed) = run(Bounds { open: 3, past: 7 });
    assert_eq!((fewer.demotions, unfollowed), (60, 140));
}

/// One region in the plain model: where it is taken to be, and what it has.
#[derive(Clone, Copy)]
struct Plain {
    from: usize,
    to: usize,
    stored: u32,
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]
    #[test]
    fn parts_are_the_whole_on_any_run(
        seed: u64, windows in 5u32..60, every in prop::collection::vec(1u32..9, 1..12),
    ) {
        let touched = |window: u32, region: usize| {
            if window.is_multiple_of(every[region]) { 40.0 * every[region] as f32 } else { 2.0 }
        };
        let mut torture = Torture::new(seed | 1);
        let hindsight = run(machine(3), every.len(), windows, 0.02, &mut torture, touched);
        let (total, tallies) = (hindsight.total(), hindsight.tallies());
        prop_assert_eq!(total.open, 0);
        prop_assert_eq!(total.demotions, total.right + total.wrong + total.not_done);
        prop_assert_eq!(total.demotions, hindsight.past().count() as u64);
        prop_assert_eq!(tallies[0], Tally::default());
        let near = |a: f64, b: f64| (a - b).abs() <= 1e-9 * a.abs().max(b.abs()).max(1e-9);
        for (tier, tally) in tallies.iter().enumerate() {
            let own: Vec<_> =
                hindsight.past().filter(|p| p.record.to.index() == tier).collect();
            let sum = |of: fn(&crate::hindsight::Record) -> f64| -> f64 {
                own.iter().map(|p| of(&p.record)).sum()
            };
            prop_assert!(near(tally.effect.saved_usd, sum(|r| r.effect.saved_usd)));
            prop_assert!(near(tally.effect.stall_ns, sum(|r| r.effect.stall_ns)));
            prop_assert!(near(tally.effect.move_ns, sum(|r| r.effect.move_ns)));
            let faults: u64 = own.iter().map(|p| p.record.effect.faults).sum();
            prop_assert_eq!(tally.effect.faults, faults);
            // What was not right is regret, and nothing else.
            let scored = own.iter().filter(|p| p.end != End::NotDone);
            let lost: f64 = scored.map(|p| (-p.record.balance_usd()).max(0.0)).sum();
            prop_assert!(near(tally.regret_usd, lost), "{} {}", tally.regret_usd, lost);
        }
    }

    #[test]
    fn sums_are_those_of_a_plain_model(
        script in prop::collection::vec(
            prop::collection::vec((0u32..513, 0u32..513, 0u8..6), 4), 1..40),
    ) {
        let tiers = tiers();
        let mut h = Hindsight::new(Bounds::default());
        let mut plain: HashMap<u64, Plain> = HashMap::new();
        let mut place = [0u8; 4];
        let (mut saved, mut stalled) = (0.0, 0.0);
        for (n, regions) in script.iter().enumerate() {
            let w = window(n as u32 + 1, &tiers);
            let seen: Vec<Seen> = regions.iter().enumerate().map(|(id, &(stored, faults, _))| {
                let faults = faults.min(512 - stored);
                Seen { region: (id as u64) << 21, stored, faults }
            }).collect();
            h.observe(&w, seen.iter().copied());
            for s in &seen {
                let Some(p) = plain.get_mut(&s.region) else { continue };
                let (a, b) = (&tiers[p.from], &tiers[p.to]);
                let page = (a.usd_per_gib_month * a.ratio - b.usd_per_gib_month * b.ratio)
                    / PAGES_PER_GIB / MONTH_S;
                saved += f64::from(p.stored + s.stored) / 2.0 * page * w.seconds;
                stalled += f64::from(s.faults) * (b.fault_ns - a.fault_ns);
                p.stored = s.stored;
                if h.open(s.region).is_none() {
                    plain.remove(&s.region); // came back, or never went
                }
            }
            let views: Vec<RegionView> = seen.iter().zip(place)
                .map(|(s, tier)| view(s.region, tier, 512 - s.stored)).collect();
            let mut moves = Vec::new();
            for (id, &(_, _, to)) in regions.iter().enumerate().filter(|(_, r)| r.2 < 3) {
                let from = place[id];
                if from == to && to == 0 { continue }
                let is_same = plain.get(&views[id].id).is_some_and(|p| p.to == usize::from(to));
                moves.push(step(id as u32, views[id].id, from, to));
                place[id] = to;
                if is_same { continue }
                plain.remove(&views[id].id);
                if to != 0 {
                    let stays = from == to || views[id].is_back_in_dram();
                    let from = if stays { 0 } else { usize::from(from) };
                    let stored = views[id].pages - views[id].resident;
                    plain.insert(views[id].id, Plain { from, to: usize::from(to), stored });
                }
            }
            h.decided(&w, &views, &moves, 0.01);
        }
        let total = h.total();
        prop_assert!((total.effect.saved_usd - saved).abs() < 1e-9);
        prop_assert!((total.effect.stall_ns - stalled).abs() < 1.0);
        prop_assert_eq!(total.open as usize, plain.len());
        h.finish(99);
        prop_assert_eq!(total.effect, h.total().effect);
    }
}
