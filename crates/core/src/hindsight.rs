//! Hindsight: was a demotion right?
//!
//! A move into a tier is followed from the plan that made it until it ends: what it has saved,
//! what it has cost. Then it is scored, at the price that the policy itself put on time when it
//! decided ([`crate::plan::Terms::usd_per_ns`]; [`usd_per_second_default`] where it has none):
//!
//! ```text
//! saved   = sum over windows of stored pages * (price before - price in the tier) * time
//! cost    = waits * (latency of the tier - latency before) + processor time of the moves
//! balance = saved - cost * price of time       right if not below 0; else the regret is -balance
//! ```
//!
//! *Before* is where the pages would have stayed: DRAM, or the tier they were taken from. Pages and
//! faults are as the runtime reports them, prices and latencies as measured at the time. Stored
//! pages are counted at the end of each window and taken to change evenly between two ends.
//!
//! A region has one record at a time. It ends as one of [`End`]. A plan that sends pages which came
//! back down again to the same tier does not end it: that is what the demotion leads to. Memory is
//! bounded: beyond [`Bounds::open`] regions demotions are only counted, and of what ended the last
//! [`Bounds::past`] are remembered; the sums lose nothing.

use std::collections::{HashMap, VecDeque};

use crate::cost::TierCost;
use crate::plan::{Move, RegionView};
use crate::tier::{TierId, MAX_TIERS};

/// Seconds of an average month.
pub const MONTH_S: f64 = 365.25 / 12.0 * 86_400.0;

/// What a core costs by the month, in GiB of DRAM, where processors are sold: clouds charge 7 to 10
/// times the price of a GiB for one more.
pub const CORE_IN_GIB: f64 = 8.0;

/// Windows in which a region that came home by plan should not go down again.
pub const PING_PONG_WINDOWS: u32 = 8;

/// Windows that a demotion may take to begin; what has not by then was never carried out.
const BEGIN_WINDOWS: u32 = 4;

/// Price of a second that a thread waits, in US dollars, where the policy has none: that of a
/// second of a core at [`CORE_IN_GIB`].
pub fn usd_per_second_default(dram_usd_per_gib_month: f64) -> f64 {
    CORE_IN_GIB * dram_usd_per_gib_month / MONTH_S
}

/// The same, from US dollars a month for one nanosecond in every window of `window_s` seconds.
pub fn usd_per_second(usd_per_ns: f64, window_s: f64) -> f64 {
    usd_per_ns * 1e9 * window_s / MONTH_S
}

/// How a record ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// Most of what went down came back because it was touched.
    CameBack,
    /// A plan brought it home.
    Promoted,
    /// A plan moved it to another tier; that move has a record of its own.
    MovedOn,
    /// The memory was unmapped, or is not followed any more.
    Gone,
    /// The application or its planner ended.
    RunEnded,
    /// It never began: nothing was stored in any window. Not scored.
    NotDone,
}

impl End {
    /// As text, for JSON.
    pub fn name(self) -> &'static str {
        match self {
            End::CameBack => "came_back",
            End::Promoted => "promoted",
            End::MovedOn => "moved_on",
            End::Gone => "gone",
            End::RunEnded => "run_ended",
            End::NotDone => "not_done",
        }
    }
}

/// What a move has done so far.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Effect {
    /// US dollars saved against staying; below 0 for a move into something dearer.
    pub saved_usd: f64,
    /// Time that threads waited for its pages more than they would have, in nanoseconds.
    pub stall_ns: f64,
    /// Processor time of its moves, down and back by plan, in nanoseconds that counted.
    pub move_ns: f64,
    /// Pages that were touched and came back.
    pub faults: u64,
}

impl Effect {
    fn add(&mut self, other: Effect) {
        self.saved_usd += other.saved_usd;
        self.stall_ns += other.stall_ns;
        self.move_ns += other.move_ns;
        self.faults += other.faults;
    }

    /// Saving less cost in US dollars, with a second at `usd_per_s`.
    pub fn balance_usd(&self, usd_per_s: f64) -> f64 {
        self.saved_usd - (self.stall_ns + self.move_ns) / 1e9 * usd_per_s
    }
}

/// One move into a tier.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Record {
    /// Start address of the region.
    pub region: u64,
    /// The window whose plan it was.
    pub window: u32,
    /// Where its pages would have stayed.
    pub from: TierId,
    /// Where they were sent.
    pub to: TierId,
    /// Distinct pages a window, as the policy knew it when it decided.
    pub hotness: f32,
    /// Price of a second when it was decided, in US dollars.
    pub usd_per_s: f64,
    /// Most pages that it held.
    pub pages: u32,
    /// What it did.
    pub effect: Effect,
    /// Windows since a plan had brought the region home, if they were at most
    /// [`PING_PONG_WINDOWS`].
    pub again_after: Option<u32>,
    /// Pages stored at the end of the newest window.
    stored: u32,
    /// No window was taken in yet.
    is_new: bool,
}

impl Record {
    /// Saving less cost, in US dollars.
    pub fn balance_usd(&self) -> f64 {
        self.effect.balance_usd(self.usd_per_s)
    }

    /// Whether a window has passed in which anything of it was stored.
    pub fn has_begun(&self) -> bool {
        self.pages > 0 && !self.is_new
    }

    /// Whether it was worth it.
    pub fn is_right(&self) -> bool {
        self.balance_usd() >= 0.0
    }
}

/// A record that ended.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Past {
    /// What it was.
    pub record: Record,
    /// The window in which it ended.
    pub until: u32,
    /// How.
    pub end: End,
}

/// Sums over the moves into one tier, or all.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Tally {
    /// Moves into the tier that were followed.
    pub demotions: u64,
    /// Those that have not ended, and how many of them are right and wrong so far; the others have
    /// not begun.
    pub open: u64,
    /// See `open`.
    pub open_right: u64,
    /// See `open`.
    pub open_wrong: u64,
    /// Those that ended and were worth it.
    pub right: u64,
    /// Those that ended and were not.
    pub wrong: u64,
    /// Those that never began.
    pub not_done: u64,
    /// Demotions within [`PING_PONG_WINDOWS`] of a plan that brought the same region home.
    pub ping_pongs: u64,
    /// What all of them did, those that have not ended too.
    pub effect: Effect,
    /// What those that were wrong lost, in US dollars, the open ones as of now too.
    pub regret_usd: f64,
}

impl Tally {
    /// Share of the demotions that was right, 0 to 1, the open ones as of now. `None` before there
    /// are any.
    pub fn share_right(&self) -> Option<f64> {
        let scored = self.right + self.wrong + self.open_right + self.open_wrong;
        (scored > 0).then(|| (self.right + self.open_right) as f64 / scored as f64)
    }

    fn add(&mut self, other: &Tally) {
        self.demotions += other.demotions;
        self.open += other.open;
        self.open_right += other.open_right;
        self.open_wrong += other.open_wrong;
        self.right += other.right;
        self.wrong += other.wrong;
        self.not_done += other.not_done;
        self.ping_pongs += other.ping_pongs;
        self.effect.add(other.effect);
        self.regret_usd += other.regret_usd;
    }
}

/// What a window showed of one region.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Seen {
    /// Start address.
    pub region: u64,
    /// Pages of it in tiers when the window ended.
    pub stored: u32,
    /// Pages that were touched and came back in the window: by a fault of their own, or along with
    /// that of a scan.
    pub faults: u32,
}

/// A window, as far as it is the same for all regions.
#[derive(Clone, Copy, Debug)]
pub struct Window<'a> {
    /// Its number.
    pub number: u32,
    /// How long it lasted, in seconds.
    pub seconds: f64,
    /// DRAM and the tiers, as measured.
    pub tiers: &'a [TierCost],
    /// Share of the movers' processor time that counts, 0 to 1.
    pub contention: f64,
    /// Share of the pages that came back for which a thread waited, 0 to 1: a scan waits for few
    /// of those that it brings along.
    pub waited_share: f64,
}

impl Window<'_> {
    /// Processor time of moving a page to this tier that counts, in nanoseconds.
    fn move_ns(&self, to: TierId) -> f64 {
        self.tiers.get(to.index()).map_or(0.0, |tier| tier.move_ns) * self.contention
    }
}

/// How much is remembered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bounds {
    /// Regions that are followed at a time; 100 bytes each.
    pub open: usize,
    /// Records that ended; 120 bytes each.
    pub past: usize,
}

impl Default for Bounds {
    /// 2 TiB of regions and the last 65,536 records: 100 MiB and 8 MiB if all of it is used.
    fn default() -> Bounds {
        Bounds { open: 1 << 20, past: 1 << 16 }
    }
}

/// Follows demotions; see the head of the file.
#[derive(Clone, Debug, Default)]
pub struct Hindsight {
    bounds: Bounds,
    /// By region.
    open: Vec<Record>,
    past: VecDeque<Past>,
    /// Of what ended, and the counts of what did not.
    tallies: [Tally; MAX_TIERS],
    /// Regions that plans brought home of late, and the window.
    promoted: HashMap<u64, u32>,
    promotions: u64,
    unfollowed: u64,
}

impl Hindsight {
    /// One that remembers so much.
    pub fn new(bounds: Bounds) -> Hindsight {
        Hindsight { bounds, ..Hindsight::default() }
    }

    /// Takes in a closed window. `seen` is sorted by region and has every region that is followed;
    /// a record whose region is missing ends.
    pub fn observe(&mut self, window: &Window, seen: impl IntoIterator<Item = Seen>) {
        let mut seen = seen.into_iter().peekable();
        let mut open = core::mem::take(&mut self.open);
        open.retain_mut(|record| {
            while seen.next_if(|s| s.region < record.region).is_some() {}
            let Some(now) = seen.next_if(|s| s.region == record.region) else {
                let end = if record.has_begun() { End::Gone } else { End::NotDone };
                self.end(*record, window.number, end);
                return false;
            };
            let effect = record.take_in(window, now);
            self.tallies[record.to.index()].effect.add(effect);
            let waited = window.number.saturating_sub(record.window) >= BEGIN_WINDOWS;
            let end = match record.pages {
                0 if waited => End::NotDone,
                pages if 2 * u64::from(record.stored) < u64::from(pages) => End::CameBack,
                _ => return true,
            };
            self.end(*record, window.number, end);
            false
        });
        self.open = open;
        let recent = |at: &mut u32| window.number.saturating_sub(*at) <= PING_PONG_WINDOWS;
        self.promoted.retain(|_, at| recent(at));
    }

    /// Takes in a plan that is about to be carried out: `moves` of `regions`, sorted by region.
    /// `usd_per_s` is the price of a second now, in US dollars.
    pub fn decided(
        &mut self,
        window: &Window,
        regions: &[RegionView],
        moves: &[Move],
        usd_per_s: f64,
    ) {
        let mut before = core::mem::take(&mut self.open).into_iter().peekable();
        let mut open = Vec::with_capacity(before.len() + moves.len());
        for step in moves {
            open.extend(core::iter::from_fn(|| before.next_if(|r| r.region < step.id)));
            let mut record = before.next_if(|r| r.region == step.id);
            let view = &regions[step.region as usize];
            if let Some(same) = record.take_if(|r| r.to == step.to) {
                open.push(same);
                continue;
            }
            if let Some(mut other) = record {
                let end = match step.to {
                    _ if !other.has_begun() => End::NotDone,
                    TierId::DRAM => End::Promoted,
                    _ => End::MovedOn,
                };
                if end == End::Promoted {
                    let way_back = f64::from(other.stored) * window.move_ns(TierId::DRAM);
                    let effect = Effect { move_ns: way_back, ..Effect::default() };
                    other.effect.add(effect);
                    self.tallies[other.to.index()].effect.add(effect);
                }
                self.end(other, window.number, end);
            }
            if step.to == TierId::DRAM {
                self.promotions += 1;
                if self.promoted.len() < self.bounds.open {
                    self.promoted.insert(step.id, window.number);
                }
            } else if open.len() + before.len() < self.bounds.open {
                open.push(self.begin(window, view, step, usd_per_s));
            } else {
                self.unfollowed += 1;
            }
        }
        open.extend(before);
        self.open = open;
    }

    /// The application or its planner ends: so do all records.
    pub fn finish(&mut self, window: u32) {
        for record in core::mem::take(&mut self.open) {
            let end = if record.has_begun() { End::RunEnded } else { End::NotDone };
            self.end(record, window, end);
        }
    }

    fn begin(&mut self, window: &Window, view: &RegionView, step: &Move, usd_per_s: f64) -> Record {
        // What is mostly back in DRAM, or only goes down again, would stay in DRAM.
        let from_dram = step.from == step.to || view.is_back_in_dram();
        let promoted = self.promoted.remove(&step.id);
        let again_after = promoted.map(|at| window.number.saturating_sub(at));
        let tally = &mut self.tallies[step.to.index()];
        tally.demotions += 1;
        tally.ping_pongs += u64::from(again_after.is_some());
        let stored = view.pages.saturating_sub(view.resident);
        Record {
            region: step.id,
            window: window.number,
            from: if from_dram { TierId::DRAM } else { step.from },
            to: step.to,
            hotness: view.hotness,
            usd_per_s,
            pages: stored,
            effect: Effect::default(),
            again_after,
            stored,
            is_new: true,
        }
    }

    fn end(&mut self, record: Record, until: u32, end: End) {
        let tally = &mut self.tallies[record.to.index()];
        match end {
            End::NotDone => tally.not_done += 1,
            _ if record.is_right() => tally.right += 1,
            _ => {
                tally.wrong += 1;
                tally.regret_usd -= record.balance_usd();
            }
        }
        if self.past.len() >= self.bounds.past {
            self.past.pop_front();
        }
        if self.bounds.past > 0 {
            self.past.push_back(Past { record, until, end });
        }
    }

    /// The sums of every tier, by index; those of DRAM are empty.
    pub fn tallies(&self) -> [Tally; MAX_TIERS] {
        let mut tallies = self.tallies;
        for record in &self.open {
            let tally = &mut tallies[record.to.index()];
            tally.open += 1;
            if record.has_begun() {
                tally.open_right += u64::from(record.is_right());
                tally.open_wrong += u64::from(!record.is_right());
                tally.regret_usd += (-record.balance_usd()).max(0.0);
            }
        }
        tallies
    }

    /// The sums of all tiers.
    pub fn total(&self) -> Tally {
        let mut total = Tally::default();
        self.tallies().iter().for_each(|tally| total.add(tally));
        total
    }

    /// Moves home by plan since the start.
    pub fn promotions(&self) -> u64 {
        self.promotions
    }

    /// Demotions that were not followed, for want of room.
    pub fn unfollowed(&self) -> u64 {
        self.unfollowed
    }

    /// The record of a region that has not ended.
    pub fn open(&self, region: u64) -> Option<&Record> {
        let at = self.open.binary_search_by_key(&region, |r| r.region).ok()?;
        self.open.get(at)
    }

    /// Records that ended and are remembered, the oldest first.
    pub fn past(&self) -> impl DoubleEndedIterator<Item = &Past> {
        self.past.iter()
    }
}

impl Record {
    /// What a window added.
    fn take_in(&mut self, window: &Window, seen: Seen) -> Effect {
        let price = |tier: TierId| window.tiers.get(tier.index());
        let (Some(before), Some(here)) = (price(self.from), price(self.to)) else {
            return Effect::default();
        };
        let stored = f64::from(self.stored.min(seen.stored) + self.stored.max(seen.stored)) / 2.0;
        let per_page = before.usd_per_page_month() - here.usd_per_page_month();
        let moved = match self.from {
            TierId::DRAM => seen.stored.saturating_add(seen.faults).saturating_sub(self.stored),
            // From tier to tier all of it moves once. What comes back later would have gone down
            // again in the other tier, too.
            _ if self.is_new => self.stored,
            _ => 0,
        };
        self.is_new = false;
        let effect = Effect {
            saved_usd: stored * per_page * window.seconds / MONTH_S,
            stall_ns: f64::from(seen.faults)
                * window.waited_share
                * (here.fault_ns - before.fault_ns),
            move_ns: f64::from(moved) * window.move_ns(self.to),
            faults: u64::from(seen.faults),
        };
        self.effect.add(effect);
        self.stored = seen.stored;
        self.pages = self.pages.max(seen.stored.saturating_add(seen.faults));
        effect
    }
}
