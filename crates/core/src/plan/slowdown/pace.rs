//! The pace of demotions: which of a plan's moves this window has time for.

use super::{Slowdown, Steady};
use crate::cost::TierCost;
use crate::plan::mckp::Choices;
use crate::plan::RegionView;
use crate::tier::TierId;

/// After a burst a window may lose so many times what is accepted, all in all: much is to be taken
/// down then, which costs the same all at once or little by little, and little by little nothing is
/// saved meanwhile. With it the window still counts as kept (`BROKEN`).
const FILLED: f64 = 1.15;

/// What pages that came back and go down again may take beyond what there is, by the budget. If
/// they waited for long, regions would climb back page by page.
const AGAIN: f64 = 0.2;

/// What moves from one tier to another may take beyond the budget of a window, by it, as long as
/// the window loses no more than is accepted, watching included. They save little for their time
/// and come last, and faults grow into whatever a budget leaves: without a part of their own what
/// is cold would stay in the quickest tier for good. It is paid back (`OWED_WINDOWS`).
const ONWARD: f64 = 0.4;

/// With a budget worth fewer regions than this, what a window has left for moves is kept for the
/// next.
const CREDIT_REGIONS: f64 = 2.0;

/// While time for moves is short, a page goes to a tier that saves this much more for its time than
/// the best one, and moves on when there is time: which takes its time twice.
const QUICKER: f64 = 2.0;

/// Least share of the movers' time that counts when a window's moves are counted: with processors
/// idle, 40 ms of budget are 390 MiB.
const CONTENTION_MIN: f64 = 0.02;

/// What there is to spend in a window.
#[derive(Clone, Copy)]
pub(super) struct Time {
    /// Nanoseconds for faults and moves.
    budget: f64,
    /// Share of the movers' time that counts.
    contention: f64,
}

impl Time {
    /// `contention` is the measured one.
    pub(super) fn new(budget: f64, contention: f64) -> Time {
        Time { budget, contention: contention.max(CONTENTION_MIN) }
    }
}

/// What a plan would take down.
#[derive(Debug, Default)]
pub(super) struct Down {
    /// With what each saves for its time. (Before that, room for what may come home,
    /// [`Slowdown::leave_down`].)
    pub(super) moves: Vec<(f64, u32)>,
    /// Items, in order, that would be home if that did not cost more than it spares: what came back
    /// stays.
    pub(super) left: Vec<u32>,
    /// Regions of which what came back waits for another window, in order.
    pub(super) held: Vec<u32>,
}

/// What became of the demotions of a plan.
pub(super) struct Paced {
    /// How many wait for the next window.
    pub(super) waiting: u64,
    /// Time in faults to expect.
    pub(super) stalled_ns: f64,
    /// Time for moves that is left, for the next window.
    pub(super) unspent_ns: f64,
    /// Time that moves take beyond the budget of the window, but for:
    pub(super) beyond_ns: f64,
    /// Time that moves from tier to tier take beyond it.
    pub(super) onward_ns: f64,
}

impl Slowdown {
    /// Undoes the demotions for which this window has no time, those that save least for their time
    /// first.
    pub(super) fn pace(
        &self,
        regions: &[RegionView],
        tiers: &[TierCost],
        steady: &Steady,
        time: Time,
        down: &mut Down,
        choice: &mut [u8],
    ) -> Paced {
        let choices = &steady.choices;
        let region = |item: usize| &regions[self.known[item] as usize];
        let carried = |item: usize, to: usize| region(item).pages_to_carry(TierId(to as u8));
        let takes_ns = |item: usize, to: usize| {
            f64::from(carried(item, to))
                * tiers[to].move_ns
                * self.moving.longer()
                * time.contention
        };
        // Less than a nanosecond is nothing: what can be had for it does not come before the rest.
        let saves_for_time = |item: usize, to: usize| {
            // What is there already and what is not go down page by page.
            let (from, part) = match usize::from(steady.current[item]) {
                from if from == 0 || from == to => {
                    let pages = f64::from(region(item).pages.max(1));
                    (0, f64::from(carried(item, to)) / pages)
                }
                from => (from, 1.0),
            };
            let saves = (choices.tco(item, from) - choices.tco(item, to)) * part;
            saves / takes_ns(item, to).max(1.0)
        };
        // Of the next window, about which a debt says nothing.
        let stall_ns = |item: usize, to: usize| self.stall_ns(tiers, steady, item, to);
        // What has yet to go down has yet to fault: a window that reserved time for all of it would
        // have next to none for moves. Where there is neither a burst nor a debt that slower pace
        // was the better one in simulation.
        let is_as_made = self.burst.is_recovering() || self.ledger.is_due();
        let waits_ns = |item: usize, to: usize| match usize::from(steady.current[item]) {
            here if here != to => stall_ns(item, here),
            _ => stall_ns(item, to) * self.share_stored(region(item), item),
        };
        let (mut stalled, mut all_take) = (0.0, 0.0);
        let Down { moves, left, held } = down;
        moves.clear();
        held.clear();
        for (item, &option) in choice.iter().enumerate() {
            let to = usize::from(option);
            stalled += stall_ns(item, to);
            let stays = to == usize::from(steady.current[item]);
            if left.binary_search(&(item as u32)).is_ok() {
                continue;
            }
            if to == 0 {
                continue;
            }
            if stays && self.stay.holds(region(item), choices, item, to) {
                held.push(self.known[item]);
            } else if !stays || carried(item, to) > 0 {
                all_take += takes_ns(item, to);
                moves.push((saves_for_time(item, to), item as u32));
            }
        }
        if stalled + all_take > time.budget {
            for (saves, item) in &mut *moves {
                let item = *item as usize;
                if let Some(quicker) = self.quicker(steady, item, choice[item], &saves_for_time) {
                    stalled -= stall_ns(item, usize::from(choice[item]));
                    stalled += stall_ns(item, usize::from(quicker));
                    choice[item] = quicker;
                    *saves = saves_for_time(item, usize::from(quicker));
                }
            }
        }
        if is_as_made {
            for &(_, item) in moves.iter() {
                let (item, to) = (item as usize, usize::from(choice[item as usize]));
                stalled += waits_ns(item, to) - stall_ns(item, to);
            }
        }
        let own = (time.budget - stalled).max(0.0);
        let all = self.target * self.running_ns.unwrap_or(0.0);
        let (allowed, held_back, onward) = if self.pause > 0 {
            (0.0, 0.0, 0.0)
        } else if self.burst.is_recovering() {
            ((FILLED * all - stalled).max(0.0), 0.0, 0.0)
        } else {
            (own + self.unspent_ns, AGAIN * time.budget, ONWARD * time.budget)
        };
        held.extend(left.iter().map(|&item| self.known[item as usize]));
        moves.sort_unstable_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        let (mut spent, mut added, mut waiting, mut dearest_waiting) = (0.0, 0.0, 0, 0.0f64);
        let (mut onward_ns, beside) = (0.0, self.moving.beside_ns() * time.contention);
        for &(_, item) in moves.iter() {
            let item = item as usize;
            let to = usize::from(choice[item]);
            let takes = takes_ns(item, to);
            let adds = match is_as_made {
                true => (stall_ns(item, to) - waits_ns(item, to)).max(0.0),
                false => 0.0,
            };
            // What came back is little at a time, and was expected to.
            let is_new = choice[item] != steady.current[item];
            let limit = allowed + if is_new { 0.0 } else { held_back };
            if spent + added + takes + adds <= limit {
                spent += takes;
                added += adds;
                continue;
            }
            let goes_on = is_new && steady.current[item] != 0 && region(item).is_down_for_long();
            let lost = stalled + spent + added + adds + onward_ns + takes + beside;
            if goes_on && onward_ns + takes <= onward && lost <= all {
                onward_ns += takes;
                added += adds;
                continue;
            }
            dearest_waiting = dearest_waiting.max(takes);
            if !is_new {
                held.push(self.known[item]);
                continue;
            }
            waiting += 1;
            choice[item] = steady.current[item];
            if !is_as_made {
                stalled += stall_ns(item, usize::from(choice[item])) - stall_ns(item, to);
            }
        }
        held.sort_unstable();
        let unspent_ns = if time.budget < CREDIT_REGIONS * dearest_waiting {
            (allowed - spent - added).clamp(0.0, dearest_waiting)
        } else {
            0.0
        };
        let own = (own - added).max(0.0);
        let beyond_ns = (spent - own - self.unspent_ns).max(0.0);
        let stalled_ns = stalled + added;
        Paced { waiting, stalled_ns, unspent_ns, beyond_ns, onward_ns }
    }

    /// Time that threads are expected to wait for an item in tier `to` in the next window.
    fn stall_ns(&self, tiers: &[TierCost], steady: &Steady, item: usize, to: usize) -> f64 {
        steady.choices.stall_ns(item, to).min(self.next[item] * tiers[to].fault_ns)
    }

    /// How much of what is stored of a region in a tier in the long run is stored there now.
    fn share_stored(&self, region: &RegionView, item: usize) -> f64 {
        let pages = f64::from(region.pages);
        let stored = pages - f64::from(region.resident);
        (stored / (pages - self.expected[item].back).max(1.0)).min(1.0)
    }

    /// A tier for what is in memory that saves much more for its time than the tier that is best in
    /// the long run, and is no slower. Where media have limits those are for the solver.
    fn quicker(
        &self,
        steady: &Steady,
        item: usize,
        best: u8,
        saves_for_time: &impl Fn(usize, usize) -> f64,
    ) -> Option<u8> {
        if steady.current[item] != 0 || !self.limits.is_empty() {
            return None;
        }
        let stall_ns = |option: usize| steady.choices.stall_ns(item, option);
        let best = usize::from(best);
        let mut most = QUICKER * saves_for_time(item, best);
        let mut found = None;
        for option in (1..steady.options()).filter(|&o| stall_ns(o) <= stall_ns(best)) {
            let saves = saves_for_time(item, option);
            if saves > most {
                (most, found) = (saves, Some(option as u8));
            }
        }
        found
    }
}
