//! What was decided for one application, and what became of it.
//!
//! The planner hands in every window what it knew and what it planned; `terrace explain` asks what
//! is kept of it. Kept are the inputs of the last plan (96 bytes a region), what the last windows
//! saw of each region (16 bytes) and what hindsight keeps ([`terrace_core::hindsight`]). All of it
//! is behind one lock, which the planner holds while it takes in a window and nobody else for
//! longer than a look-up.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use serde_json::{json, Value};
use terrace_core::cost::TierCost;
use terrace_core::hindsight::{
    usd_per_second, usd_per_second_default, Bounds, Hindsight, Past, Record, Seen, Tally, Window,
    PING_PONG_WINDOWS,
};
use terrace_core::plan::{Model, Move, Plan, RegionView};
use terrace_core::tier::{TierId, MAX_TIERS};
use terrace_core::wire::Report;

/// Windows of which it is known how many pages of a region were touched.
pub(super) const WINDOWS_KEPT: usize = 8;

/// Plans that moved anything, of which is remembered what.
const PLANS_KEPT: usize = 12;

/// A window in which a region was not seen.
const NOT_SEEN: u16 = u16::MAX;

/// One application's decisions.
pub(super) struct Decisions {
    residence_windows: f64,
    window_s: f64,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    hindsight: Hindsight,
    last: Option<Arc<Snapshot>>,
    plans: VecDeque<Planned>,
    closed: Option<Instant>,
}

/// What a plan is made of.
#[derive(Default)]
pub(super) struct Known {
    /// Views of the report's regions, in its order.
    pub regions: Vec<RegionView>,
    /// DRAM and the tiers.
    pub tiers: Vec<TierCost>,
    /// Share of the movers' processor time that counts.
    pub contention: f64,
}

/// What the planner knew when it made its last plan, and the plan.
pub(super) struct Snapshot {
    /// By address.
    pub views: Vec<RegionView>,
    /// Of each of `views`: distinct pages touched in the last windows, newest first.
    pub touched: Vec<[u16; WINDOWS_KEPT]>,
    /// DRAM and the tiers.
    pub tiers: Vec<TierCost>,
    /// The report without its regions.
    pub report: Report,
    /// The plan, its moves by address and counted in `views`; none if the policy is none.
    pub plan: Option<Plan>,
    /// Price of a second in US dollars, and whether it is the plan's own.
    pub usd_per_s: f64,
    pub is_price_of_plan: bool,
    pub window_s: f64,
}

/// A plan, in short.
pub(super) struct Planned {
    pub window: u32,
    pub why: String,
    /// Regions and pages by where they went from and to.
    pub moves: BTreeMap<(TierId, TierId), (u64, u64)>,
}

impl Decisions {
    /// Of an application in which a page that came back stays for so many windows, each of
    /// `window_s` seconds.
    pub(super) fn new(residence_windows: f64, window_s: f64) -> Decisions {
        let inner = Inner { hindsight: Hindsight::new(Bounds::default()), ..Inner::default() };
        Decisions { residence_windows, window_s, inner: Mutex::new(inner) }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes in a closed window and the plan that was made of it.
    pub(super) fn record(&self, report: &Report, known: &Known, plan: Option<&Plan>) {
        let Known { regions, tiers, contention } = known;
        // Reports name regions in the order in which they were found.
        let mut order: Vec<(u64, u32)> = (0..).zip(regions).map(|(n, r)| (r.id, n)).collect();
        if !order.is_sorted() {
            order.sort();
        }
        let views: Vec<RegionView> = order.iter().map(|&(_, n)| regions[n as usize]).collect();
        let mut plan = plan.cloned();
        if let Some(plan) = &mut plan {
            plan.moves = in_order(std::mem::take(&mut plan.moves), &order);
            if plan.terms.model == Model::PAPER {
                // The policy did not count with it. Whoever asks what the others would have cost
                // wants to know it as it is.
                plan.terms.model.residence_windows = self.residence_windows;
            }
        }
        let own_price = plan.as_ref().and_then(|plan| plan.terms.usd_per_ns);
        let usd_per_s = match own_price {
            Some(usd_per_ns) => usd_per_second(usd_per_ns, self.window_s),
            None => usd_per_second_default(tiers.first().map_or(0.0, |t| t.usd_per_gib_month)),
        };
        let head = Report { regions: Vec::new(), tiers: report.tiers.clone(), ..*report };

        let mut inner = self.lock();
        let now = Instant::now();
        let since = inner.closed.replace(now).map(|then| now.duration_since(then));
        let window = Window {
            number: report.window,
            seconds: since.map_or(0.0, |since| since.as_secs_f64()),
            tiers,
            contention: *contention,
            waited_share: waited_share(report, inner.last.as_deref()),
        };
        inner.hindsight.observe(
            &window,
            order.iter().map(|&(region, n)| {
                let seen = &report.regions[n as usize];
                Seen { region, stored: seen.stored.into(), faults: seen.faults }
            }),
        );
        let touched = touched(&views, inner.last.as_deref());
        if let Some(plan) = &plan {
            inner.hindsight.decided(&window, &views, &plan.moves, usd_per_s);
            let planned = Planned::of(report.window, plan, &views);
            if !planned.moves.is_empty() {
                if inner.plans.len() == PLANS_KEPT {
                    inner.plans.pop_front();
                }
                inner.plans.push_back(planned);
            }
        }
        inner.last = Some(Arc::new(Snapshot {
            views,
            touched,
            tiers: tiers.to_vec(),
            report: head,
            is_price_of_plan: own_price.is_some(),
            plan,
            usd_per_s,
            window_s: self.window_s,
        }));
    }

    /// The application or its planner has ended: everything is scored as it stands.
    pub(super) fn finish(&self) {
        let mut inner = self.lock();
        let window = inner.last.as_ref().map_or(0, |last| last.report.window);
        inner.hindsight.finish(window);
    }

    /// What the last plan was made of; `None` before the first.
    pub(super) fn last(&self) -> Option<Arc<Snapshot>> {
        self.lock().last.clone()
    }

    /// Hands out the last `most` plans that moved anything, in short, the newest first.
    pub(super) fn plans<R>(&self, most: usize, each: impl FnMut(&Planned) -> R) -> Vec<R> {
        self.lock().plans.iter().rev().take(most).map(each).collect()
    }

    /// The open record of a region, and the last `most` that ended, the newest first.
    pub(super) fn of_region(&self, region: u64, most: usize) -> (Option<Record>, Vec<Past>) {
        let inner = self.lock();
        let past = inner.hindsight.past().rev().filter(|past| past.record.region == region);
        let past = past.take(most).copied().collect();
        (inner.hindsight.open(region).copied(), past)
    }

    /// The last `most` records that ended, the newest first.
    pub(super) fn past(&self, most: usize) -> Vec<Past> {
        self.lock().hindsight.past().rev().take(most).copied().collect()
    }

    /// The field `hindsight` of docs/timeline.md; `names` of the tiers, without DRAM.
    pub(super) fn hindsight<'a>(&self, names: impl Iterator<Item = &'a str>) -> Value {
        let inner = self.lock();
        let tallies: [Tally; MAX_TIERS] = inner.hindsight.tallies();
        let mut all = of_tally(&inner.hindsight.total());
        let tiers = names.zip(&tallies[1..]).map(|(name, tally)| {
            let mut one = of_tally(tally);
            one["name"] = name.into();
            one
        });
        all["tiers"] = tiers.collect();
        all["promotions"] = inner.hindsight.promotions().into();
        all["unfollowed"] = inner.hindsight.unfollowed().into();
        all["ping_pong_windows"] = PING_PONG_WINDOWS.into();
        all["usd_per_stall_s"] = inner.last.as_ref().map(|last| last.usd_per_s).into();
        all
    }
}

fn of_tally(tally: &Tally) -> Value {
    json!({
        "demotions": tally.demotions,
        "open": tally.open,
        "open_right": tally.open_right,
        "open_wrong": tally.open_wrong,
        "right": tally.right,
        "wrong": tally.wrong,
        "not_done": tally.not_done,
        "share_right": tally.share_right(),
        "ping_pongs": tally.ping_pongs,
        "faults": tally.effect.faults,
        "saved_usd": tally.effect.saved_usd,
        "stall_ms": tally.effect.stall_ns / 1e6,
        "move_cpu_ms": tally.effect.move_ns / 1e6,
        "regret_usd": tally.regret_usd,
    })
}

/// Share of the pages that came back in the window of `report` for which a thread waited.
fn waited_share(report: &Report, before: Option<&Snapshot>) -> f64 {
    let waited_before = before.map_or(0, |b| b.report.served_faults());
    let waits = report.served_faults().saturating_sub(waited_before);
    let came: u64 = report.regions.iter().map(|r| u64::from(r.faults)).sum();
    if came == 0 {
        1.0
    } else {
        (waits as f64 / came as f64).min(1.0)
    }
}

/// Moves by address, their regions counted in `order`.
fn in_order(mut moves: Vec<Move>, order: &[(u64, u32)]) -> Vec<Move> {
    if !moves.is_sorted_by_key(|m| m.id) {
        moves.sort_unstable_by_key(|m| m.id);
    }
    let mut at = 0;
    for step in &mut moves {
        while order[at].0 < step.id {
            at += 1;
        }
        step.region = at as u32;
    }
    moves
}

/// What was touched in the newest window, before what is known of the windows before.
fn touched(views: &[RegionView], before: Option<&Snapshot>) -> Vec<[u16; WINDOWS_KEPT]> {
    let mut old = before
        .map_or(&[][..], |b| &b.views)
        .iter()
        .zip(before.map_or(&[][..], |b| &b.touched))
        .peekable();
    let history = views.iter().map(|view| {
        while old.next_if(|(o, _)| o.id < view.id).is_some() {}
        let mut windows = [NOT_SEEN; WINDOWS_KEPT];
        if let Some((_, then)) = old.next_if(|(o, _)| o.id == view.id) {
            windows[1..].copy_from_slice(&then[..WINDOWS_KEPT - 1]);
        }
        if view.windows_seen > 0 {
            windows[0] = view.newest.round().clamp(0.0, 512.0) as u16;
        }
        windows
    });
    history.collect()
}

impl Planned {
    fn of(window: u32, plan: &Plan, views: &[RegionView]) -> Planned {
        Planned { window, why: plan.why.to_string(), moves: carried(&plan.moves, views) }
    }
}

/// Regions that `steps` move, and the pages that movers carry for it, by where from and to. Where
/// nothing is carried, since all of it came back lately, nothing moves.
fn carried(steps: &[Move], views: &[RegionView]) -> BTreeMap<(TierId, TierId), (u64, u64)> {
    let mut moves: BTreeMap<_, (u64, u64)> = BTreeMap::new();
    for step in steps {
        let sum = moves.entry((step.from, step.to)).or_default();
        let pages = views[step.region as usize].pages_to_carry(step.to);
        *sum = (sum.0 + 1, sum.1 + u64::from(pages));
    }
    moves.retain(|_, (_, pages)| *pages > 0);
    moves
}

impl Snapshot {
    /// Position in `views` of the region that holds `address`.
    pub(super) fn find(&self, address: u64) -> Option<usize> {
        let region = address & !(terrace_core::state::REGION_BYTES - 1);
        self.views.binary_search_by_key(&region, |view| view.id).ok()
    }

    /// Where the plan wants the region at `index`.
    pub(super) fn chosen(&self, index: usize) -> TierId {
        let view = &self.views[index];
        let moves = self.plan.as_ref().map_or(&[][..], |plan| &plan.moves);
        let step = moves.binary_search_by_key(&view.id, |step| step.id);
        step.map_or(view.tier, |at| moves[at].to)
    }

    /// Pages touched in the last windows, newest first, as far as they are known.
    pub(super) fn touches(&self, index: usize) -> Vec<Option<u16>> {
        let all = self.touched[index].iter();
        all.map(|&pages| (pages != NOT_SEEN).then_some(pages)).collect()
    }

    /// Price of a nanosecond in every window, in US dollars a month.
    pub(super) fn usd_per_ns(&self) -> f64 {
        self.usd_per_s / usd_per_second(1.0, self.window_s)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrace_core::plan::{Policy, Threshold, Waterfall};
    use terrace_core::wire::{RegionReport, TierReport};

    fn view(id: u64, tier: u8, stored: u32, newest: f32) -> RegionView {
        let at = RegionView::at(id << 21, TierId(tier));
        RegionView { pages: 512, resident: 512 - stored, windows_seen: 1, newest, ..at }
    }

    fn report(window: u32, views: &[RegionView]) -> Report {
        let region = |v: &RegionView| RegionReport {
            region: v.id,
            tier: v.tier.0,
            resident: v.resident as u16,
            stored: (v.pages - v.resident) as u16,
            resting: 0,
            samples: 4,
            hits: 0,
            resident_at_open: v.resident as u16,
            faults: 0,
            shrunk: terrace_core::shrink::Shrunk::default(),
        };
        let regions = views.iter().map(region).collect();
        Report { window, regions, tiers: vec![TierReport::default()], ..Report::default() }
    }

    #[test]
    fn what_a_plan_moves_are_the_pages_that_are_carried() {
        let down = |resident, cooling, refused| RegionView {
            pages: 512,
            resident,
            cooling,
            refused,
            ..RegionView::at(1 << 21, TierId(1))
        };
        let views = [down(112, 100, 0), down(112, 0, 51), down(512, 0, 0)];
        let step = |region, to| Move { region, id: 0, from: TierId(1), to: TierId(to) };
        // Down again goes what has cooled and was not refused; elsewhere what is in the tier, too.
        let moved = |steps: &[Move]| carried(steps, &views).into_values().next();
        assert_eq!(moved(&[step(0, 1)]), Some((1, 12)));
        assert_eq!(moved(&[step(0, 1), step(1, 1)]), Some((2, 12 + 9)));
        assert_eq!(moved(&[step(0, 2)]), Some((1, 412)));
        assert_eq!(moved(&[step(0, 0), step(2, 0)]), Some((2, 400)));
        // Nothing of it is stored, so that there is nothing to bring home.
        assert_eq!(moved(&[step(2, 0)]), None);
    }

    /// Regions in the order in which a program found them, which is not that of addresses.
    #[test]
    fn regions_out_of_order_keep_their_own_records() {
        let tiers =
            [TierCost::dram(4.0), TierCost { fault_ns: 9e3, ratio: 0.5, ..TierCost::dram(4.0) }];
        let decisions = Decisions::new(2.5, 1.0);
        let mut policy = Waterfall::new(Threshold::Value(10.0));
        let first = [view(9, 0, 0, 300.0), view(2, 0, 0, 1.0), view(5, 0, 0, 77.0)];
        let first = first.map(|v| RegionView { hotness: v.newest, ..v });
        let known = |regions: &[RegionView]| Known {
            regions: regions.to_vec(),
            tiers: tiers.to_vec(),
            contention: 1.0,
        };
        let plan = policy.plan(&first, &tiers);
        assert_eq!(plan.moves.len(), 1);
        decisions.record(&report(1, &first), &known(&first), Some(&plan));
        let second = [view(9, 0, 0, 20.0), view(2, 1, 512, 0.0), view(5, 0, 0, 70.0)];
        let second = second.map(|v| RegionView { hotness: 50.0, ..v });
        let plan = policy.plan(&second, &tiers);
        decisions.record(&report(2, &second), &known(&second), Some(&plan));

        let last = decisions.last().expect("two windows");
        assert_eq!(last.views.iter().map(|v| v.id >> 21).collect::<Vec<_>>(), [2, 5, 9]);
        assert_eq!(last.touches(1)[..3], [Some(70), Some(77), None]);
        assert_eq!(last.touches(2)[..3], [Some(20), Some(300), None]);
        assert_eq!(last.find((5 << 21) + 4096), Some(1));
        assert_eq!(last.find(4 << 21), None);
        assert_eq!((last.chosen(0), last.chosen(1)), (TierId(1), TierId::DRAM));
        assert!(decisions.of_region(2 << 21, 9).0.is_some_and(|r| r.pages == 512));
        assert!(decisions.of_region(5 << 21, 9).0.is_none());
        assert!(!last.is_price_of_plan, "a waterfall has none");
        // And the default price comes back from its other unit.
        let usd_per_s = usd_per_second_default(4.0);
        assert!((usd_per_second(last.usd_per_ns(), 1.0) / usd_per_s - 1.0).abs() < 1e-12);

        assert_eq!(decisions.plans(9, |plan| plan.window), [1]);
        assert!(decisions.plans(0, |plan| plan.window).is_empty());
        let names = ["T1"];
        assert_eq!(decisions.hindsight(names.into_iter())["open"], 1);
        decisions.finish();
        let hindsight = decisions.hindsight(names.into_iter());
        assert_eq!((&hindsight["wrong"], &hindsight["open"]), (&json!(1), &json!(0)));
        assert_eq!(hindsight["tiers"][0]["name"], "T1");
        assert_eq!(hindsight["tiers"][0]["demotions"], 1);
    }
}
