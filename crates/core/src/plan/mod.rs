//! From hotness and cost to a plan: which region goes to which tier in the next window.
//!
//! A [`Policy`] returns a [`Plan`] and cannot move a page; whoever carries a plan out cannot
//! choose. Plans are pure functions of what is handed in, so that the live system, the simulator
//! and the tests see the same decisions.
//!
//! | policy | file | TierScape | answers |
//! |---|---|---|---|
//! | [`Waterfall`] | `waterfall.rs` | 5.1 | demote a share of the data, a tier further each window |
//! | [`Analytical`] | `analytical.rs` | 5.2 | least time in faults for a budget of money |
//! | [`Torture`] | `torture.rs` | - | everything down, anywhere, at random: for tests |
//! | [`Slowdown`] | `slowdown.rs` | - | least money for a slowdown that is accepted |
//! | [`TwoTier`] | `two_tier.rs` | 7.1 | demote a share of the data to one tier, and no further |
//! | [`ColdAgePolicy`] | `cold_age.rs` | - | down what is so old that hardly any of it comes back |
//!
//! `ColdAgePolicy` is software-defined far memory ([`crate::coldage`]), `TwoTier` what TierScape is
//! compared with.
//!
//! `mckp.rs` is the solver behind the last two, `closing.rs` its last step, `limits.rs` what it
//! does about media that are full. `terms.rs` repeats a plan's sums for those who ask why.

mod analytical;
mod burst;
mod closing;
mod cold_age;
mod correction;
#[cfg(test)]
mod fixtures;
mod ledger;
pub mod limits;
#[cfg(test)]
mod limits_fuzz;
pub mod mckp;
#[cfg(test)]
mod mckp_fuzz;
mod model;
mod slowdown;
#[cfg(test)]
mod slowdown_tests;
#[cfg(test)]
mod steady_tests;
mod terms;
pub mod torture;
mod two_tier;
mod waterfall;

pub use analytical::{Analytical, Expected, Money, RegionChoices};
pub use cold_age::{ColdAgePolicy, FarMemory};
pub use model::Model;
pub use slowdown::{Slowdown, Stay, SLOWDOWN_DEFAULT, TIME_IS_DEAR_UP_TO};
pub use terms::{weigh, Place, Terms, Weighing};
pub use torture::Torture;
pub use two_tier::TwoTier;
pub use waterfall::{Threshold, Waterfall};

use core::fmt;

use crate::coldage;
use crate::cost::{self, TierCost, K_Y};
use crate::hotness::{CameBack, WindowSeen, LONG_WINDOWS};
use crate::tier::{TierId, MAX_TIERS};

/// What a policy knows about one region (2 MiB of address space).
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct RegionView {
    /// Start address; identifies the region and breaks ties.
    pub id: u64,
    /// Pages that hold data, in DRAM or stored, 0 to 512.
    pub pages: u32,
    /// How many of them are in DRAM now.
    pub resident: u32,
    /// How many of those came back so lately that they stay there whatever is planned.
    pub cooling: u32,
    /// Where the last plan put the region.
    pub tier: TierId,
    /// Distinct pages touched per window, averaged ([`crate::hotness::RegionHistory::hotness`]).
    pub hotness: f32,
    /// The same without a single window that stands out and is over
    /// ([`crate::hotness::RegionHistory::calm`]); infinite if that is not known.
    pub calm: f32,
    /// Windows behind that average. At 0 nothing is known and policies leave the region alone.
    pub windows_seen: u8,
    /// Distinct pages touched in the newest window; 0 if only the average is known.
    pub newest: f32,
    /// Distinct pages touched per window over many windows, 0 if that is not known
    /// ([`crate::hotness::RegionHistory::long`]).
    pub long: f32,
    /// What its pages shrink to, tier by tier, as far as that was seen.
    pub ratios: Ratios,
    /// Share of its pages that no tier takes, in 1/255: they stay in DRAM wherever it is sent.
    pub refused: u8,
    /// Windows that it should still be left alone, because it came back as soon as it was taken
    /// down ([`crate::setback`]).
    pub rest_windows: u8,
    /// What has come back of it, if it has been in tiers for long enough that it tells more than
    /// hotness ([`crate::hotness::RegionHistory::told`]).
    pub told: Option<CameBack>,
    /// Share of what came back lately that is touched again in a window, if it is in a tier and
    /// that is known ([`crate::hotness::RegionHistory::used_again`]).
    pub used_again: Option<f32>,
    /// Windows since any of it went down
    /// ([`crate::hotness::RegionHistory::since_down_windows`]); 255 if that is not known.
    pub since_down_windows: u8,
    /// Windows for which most of it has been in a tier; 0 if it is home, or that is not known
    /// ([`crate::setback`]).
    pub down_windows: u8,
    /// What the newest window showed of it; `None` if nothing was watched.
    pub seen: Option<WindowSeen>,
}

/// Windows in tiers after which a region is expected to stay for as many.
const DOWN_FOR_LONG_WINDOWS: u8 = 8;

/// A region is as cold as it was on average if that is at most so much more touched: what looks at
/// a few of its pages cannot tell apart.
const ALIKE: f32 = 2.0;
const ALIKE_PAGES: f32 = 16.0;

/// Stored bytes / original bytes of one region in each tier, as its own pages gave it. One byte a
/// tier, because there are 1,000,000s of regions: steps of half a per cent, at most 1.275.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Ratios([u8; MAX_TIERS]);

impl Ratios {
    /// Nothing is known: every tier's average holds.
    pub const UNKNOWN: Ratios = Ratios([0; MAX_TIERS]);
    const STEPS: f64 = 200.0;

    /// The ratio in the tier of this index, if one is known.
    #[inline]
    pub fn get(&self, tier: usize) -> Option<f64> {
        match self.0[tier] {
            0 => None,
            steps => Some(f64::from(steps) / Ratios::STEPS),
        }
    }

    /// Notes a ratio, cut to what can be kept: 0.005 to 1.275. Not a number: nothing is known.
    pub fn set(&mut self, tier: usize, ratio: f64) {
        let steps = (ratio * Ratios::STEPS).round().clamp(1.0, 255.0);
        self.0[tier] = if ratio.is_nan() { 0 } else { steps as u8 };
    }
}

impl RegionView {
    /// Whether it has been in tiers for so long that it is expected to stay.
    #[inline]
    pub(crate) fn is_down_for_long(&self) -> bool {
        self.down_windows >= DOWN_FOR_LONG_WINDOWS
    }

    /// Windows for which it has been about as cold as it is now: 0, if it was hotter before, and at
    /// most as many as its long average runs over.
    #[inline]
    fn alike_windows(&self) -> f64 {
        let was_hotter = self.long > ALIKE * self.hotness_usable() + ALIKE_PAGES;
        if was_hotter {
            return 0.0;
        }
        f64::from(self.windows_seen.min(LONG_WINDOWS))
    }

    /// A region in this tier of which nothing else is known: no pages, no past.
    pub fn at(id: u64, tier: TierId) -> RegionView {
        RegionView {
            id,
            tier,
            pages: 0,
            resident: 0,
            cooling: 0,
            hotness: 0.0,
            calm: f32::INFINITY,
            windows_seen: 0,
            newest: 0.0,
            long: 0.0,
            ratios: Ratios::UNKNOWN,
            refused: 0,
            down_windows: 0,
            rest_windows: 0,
            told: None,
            used_again: None,
            since_down_windows: u8::MAX,
            seen: None,
        }
    }

    /// Its pages that no tier takes.
    pub fn pages_refused(&self) -> f64 {
        f64::from(self.pages) * f64::from(self.refused) / 255.0
    }

    /// Pages that movers carry if the next plan sends the region there: what came back lately
    /// stays, and so does, in a region that is there already, what the tier refused.
    pub fn pages_to_carry(&self, to: TierId) -> u32 {
        let stored = self.pages.saturating_sub(self.resident);
        let free = self.resident.saturating_sub(self.cooling);
        match to {
            TierId::DRAM => stored,
            to if to == self.tier => free.saturating_sub(self.pages_refused().ceil() as u32),
            _ => stored + free,
        }
    }

    /// Hotness as policies use it: not a number and below 0 become 0, and no more pages can be
    /// touched than hold data.
    pub fn hotness_usable(&self) -> f32 {
        self.hotness.max(0.0).min(self.pages as f32)
    }

    /// Whether more than half of a demoted region has faulted back: "(or a major portion of it)
    /// been faulted back to DRAM" (TierScape, section 6.3).
    pub fn is_back_in_dram(&self) -> bool {
        self.tier != TierId::DRAM && u64::from(self.resident) * 2 > u64::from(self.pages)
    }

    fn is_known(&self) -> bool {
        self.pages > 0 && self.windows_seen > 0
    }

    /// Tier index, cut to the tiers there are: a configuration can lose tiers between windows.
    fn tier_index(&self, tiers: &[TierCost]) -> u8 {
        self.tier.index().min(tiers.len().saturating_sub(1)) as u8
    }
}

/// One region to be moved. `from == to` asks for the pages that have faulted back to be demoted
/// again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Move {
    /// Position in the slice of regions that was planned for.
    pub region: u32,
    /// [`RegionView::id`] of it.
    pub id: u64,
    /// Where the last plan put it; some of its pages may be in DRAM.
    pub from: TierId,
    /// Where all its pages shall be.
    pub to: TierId,
}

/// What shall happen at the end of a window, what it is expected to cost, and why.
#[derive(Clone, PartialEq, Debug)]
pub struct Plan {
    /// Regions whose pages must move, in the order of the regions handed in.
    pub moves: Vec<Move>,
    /// Pages recommended for each tier, all regions counted, moved or not (the paper's figures 8
    /// and 10 show these).
    pub recommended: [u64; MAX_TIERS],
    /// Faults per window to expect from all tiers (equation 7, `k_y` = 1).
    pub expected_faults: f64,
    /// Time per window to expect in those faults, in nanoseconds (equation 8).
    pub expected_perf_ns: f64,
    /// Money for the placement, in US dollars per month (equation 12; with a [`Model`] also the
    /// processor time of its faults).
    pub expected_tco: f64,
    /// Money for everything in DRAM, in US dollars per month (equation 9).
    pub tco_max: f64,
    /// Money for everything in the cheapest tier, in US dollars per month (equation 10).
    pub tco_min: f64,
    /// The reason; `Display` makes a sentence of it.
    pub why: Why,
    /// What it was weighed by.
    pub terms: Terms,
}

/// Why a plan is as it is. `Display` gives one sentence for the person on call.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Why {
    /// There is no region, or no tier but DRAM.
    NothingToPlan,
    /// The knob is at 1: everything belongs in DRAM.
    AllInDram,
    /// The analytical policy found a placement within its budget.
    WithinBudget {
        /// The knob, 0 to 1.
        alpha: f64,
        /// Budget in US dollars per month (equation 2).
        budget: f64,
        /// How far the placement can be from the best possible, as a share of its time.
        gap: f64,
    },
    /// Even the cheapest placement of the regions that may move is over the budget.
    OverBudget {
        /// The knob, 0 to 1.
        alpha: f64,
        /// Budget in US dollars per month (equation 2).
        budget: f64,
    },
    /// Least time in faults for an amount of money.
    WithinMoney {
        /// Money for all of the application, in US dollars per month.
        budget: f64,
        /// Of that, what its regions may cost.
        left: f64,
        /// How far the placement can be from the best possible, as a share of its time.
        gap: f64,
    },
    /// Even the cheapest placement costs more than that.
    OverMoney {
        /// Money for all of the application, in US dollars per month.
        budget: f64,
        /// What the cheapest placement costs, what is not in regions included.
        cheapest: f64,
    },
    /// The cheapest placement whose expected time in faults and moves is within a slowdown.
    WithinSlowdown {
        /// Slowdown that is accepted, as a share.
        target: f64,
        /// Slowdown of the last window, as a share.
        newest: f64,
        /// Time in the next window that may be lost, in nanoseconds.
        budget_ns: f64,
        /// Share of the accepted slowdown that is made use of; below 1 after it was exceeded.
        trim: f64,
        /// Faults that came for each that was expected, as learnt.
        correction: f64,
        /// Regions whose demotion waits for a later window.
        waiting: u64,
        /// Regions in tiers that stay there, because others at home only look as if they would cost
        /// less.
        kept: u64,
        /// Pages of a region that were in use beyond what it looked like, on average of those that
        /// went down lately.
        hidden_pages: f64,
        /// What is demanded of lost time by what is demanded otherwise, 1 unless what was done of
        /// late was not worth it.
        demand: f64,
        /// Windows since far more came back than was expected, as long as that can be seen in
        /// averages; regions count as they did before it.
        burst: Option<u32>,
        /// What lost time must save to be lost: a per cent of slowdown this many per cent of the
        /// money for all memory.
        worth: f64,
        /// Whether more of what is worth its time would take more than there is.
        is_spent: bool,
        /// The cheapest placement is at most this much cheaper, as a share of the money.
        gap: f64,
    },
    /// The waterfall policy: counts of regions.
    Waterfall {
        /// Hottest region sent to the first tier, in distinct pages per window; 0 if none was.
        hotness_max: f32,
        /// Sent from DRAM to the first tier.
        cold: u64,
        /// Sent one tier further because most of it stayed untouched.
        further: u64,
        /// In the last tier, with some pages back: those go down again.
        again: u64,
        /// Promoted because most of it had faulted back and it is not cold.
        back: u64,
    },
    /// The two-tier policy: counts of regions.
    TwoTier {
        /// The tier.
        tier: TierId,
        /// Hottest region sent there, in distinct pages per window; 0 if none was.
        hotness_max: f32,
        /// Sent there from DRAM, or from another tier.
        cold: u64,
        /// There, with some pages back: those go down again.
        again: u64,
        /// Promoted because most of it had faulted back and it is not cold.
        back: u64,
    },
    /// The cold-age policy.
    ColdAge {
        /// What it is doing.
        state: FarMemory,
        /// Lowest cold age threshold in seconds, if any page is cold enough.
        threshold_s: Option<f64>,
        /// Promotions in the newest minute, as a share of the working set, and what is allowed.
        rate: f64,
        /// See `rate`.
        allowed: f64,
        /// Share of the cold memory that is in far memory.
        coverage: f64,
        /// Regions sent down in this window, and those that are old enough and wait.
        sent: u64,
        /// See `sent`.
        waiting: u64,
        /// Regions brought home because too many of their pages came back.
        recalled: u64,
    },
    /// Everything goes somewhere, at random.
    Torture {
        /// What is drawn from.
        seed: u64,
    },
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Why::NothingToPlan => write!(f, "there is nothing to plan for"),
            Why::AllInDram => write!(f, "alpha is 1: all data belongs in DRAM"),
            Why::WithinBudget { alpha, budget, gap } => write!(
                f,
                "alpha {alpha} allows {budget:.4} USD a month; least fault time within that, \
                 proven to {:.2} %",
                gap * 100.0
            ),
            Why::OverBudget { alpha, budget } => write!(
                f,
                "alpha {alpha} allows {budget:.4} USD a month, which even the cheapest placement \
                 exceeds while new regions are held back; it was chosen"
            ),
            Why::WithinMoney { budget, left, gap } => write!(
                f,
                "{budget:.4} USD a month are allowed, {left:.4} of them for regions; least fault \
                 time within that, proven to {:.2} %",
                gap * 100.0
            ),
            Why::OverMoney { budget, cheapest } => write!(
                f,
                "{budget:.4} USD a month are allowed, and the cheapest placement costs \
                 {cheapest:.4}; it was chosen"
            ),
            Why::WithinSlowdown {
                target,
                newest,
                budget_ns,
                trim,
                correction,
                waiting,
                kept,
                hidden_pages,
                demand,
                burst,
                worth,
                is_spent,
                gap,
            } => {
                write!(
                    f,
                    "{:.2} % slower in the last window, {:.2} % are accepted; cheapest placement \
                     that loses at most {:.1} ms in the next (trim {trim:.2}, {correction:.2} \
                     faults for each expected), proven to {:.2} %, {waiting} demotions wait",
                    newest * 100.0,
                    target * 100.0,
                    budget_ns / 1e6,
                    gap * 100.0
                )?;
                if kept > 0 {
                    write!(
                        f,
                        "; {kept} regions stay in tiers, where it is known what they cost, rather \
                         than others that look better (those that went down had \
                         {hidden_pages:.0} pages more in use than they looked)"
                    )?;
                }
                if demand > 1.0 {
                    write!(
                        f,
                        "; what tiers held of late was not worth the time it lost, so that \
                         {demand:.0} times as much is asked of it"
                    )?;
                }
                match burst {
                    None => {}
                    Some(0) => write!(f, "; regions count as before the burst in it")?,
                    Some(n) => write!(f, "; regions count as before a burst {n} windows earlier")?,
                }
                match is_spent {
                    true => Ok(()),
                    // Else one would raise what is accepted, and wonder.
                    false => write!(
                        f,
                        "; all that is worth it is wanted: a per cent of slowdown must save {} % \
                         of the memory",
                        (worth * 1e3).round() / 1e3
                    ),
                }
            }
            Why::Waterfall { hotness_max, cold, further, again, back } => write!(
                f,
                "{cold} regions at or below {hotness_max:.1} pages a window go to the first tier, \
                 {further} that stayed untouched go one tier further, {again} in the last go down \
                 again with what came back, {back} in use again return to DRAM"
            ),
            Why::TwoTier { tier, hotness_max, cold, again, back } => write!(
                f,
                "{cold} regions at or below {hotness_max:.1} pages a window go to compressed tier \
                 {}, {again} that are there go down again with what came back, {back} in use again \
                 return to DRAM",
                tier.0
            ),
            Why::ColdAge {
                state,
                threshold_s,
                rate,
                allowed,
                coverage,
                sent,
                waiting,
                recalled,
            } => {
                match state {
                    FarMemory::WarmingUp => write!(f, "warming up: nothing is demoted yet; ")?,
                    FarMemory::AtLimit => {
                        write!(f, "at the memory limit: no more is demoted; ")?;
                    }
                    FarMemory::Open => {}
                }
                match threshold_s {
                    Some(age) => write!(f, "cold is what was not touched for {age:.1} s; ")?,
                    None => write!(f, "no page is cold enough; ")?,
                }
                write!(
                    f,
                    "{:.3} % of the working set a minute came back, {:.3} % are allowed; {:.1} % \
                     of the cold memory is far, {sent} regions follow, {waiting} wait",
                    rate * 100.0,
                    allowed * 100.0,
                    coverage * 100.0
                )?;
                match recalled {
                    0 => Ok(()),
                    _ => write!(f, ", {recalled} that are touched too often come home"),
                }
            }
            Why::Torture { seed } => {
                write!(f, "torture with seed {seed}: everything goes somewhere, at random")
            }
        }
    }
}

/// What a window did to the application, as measured.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Measured {
    /// Time that the application's own threads were on a processor in the window, all together,
    /// in nanoseconds.
    pub running_ns: f64,
    /// Time that they waited for pages, all together, in nanoseconds.
    pub stalled_ns: f64,
    /// Processor time of Terrace beside that, in nanoseconds.
    pub cpu_ns: f64,
    /// Share of it that the application would have used, 0 to 1: 0 while processors idle.
    pub contention: f64,
    /// Faults from tiers.
    pub faults: f64,
}

impl Measured {
    /// Processor time taken from the application, in nanoseconds.
    pub fn taken_ns(&self) -> f64 {
        self.cpu_ns.max(0.0) * self.contention.clamp(0.0, 1.0)
    }
}

/// Share of the pages in tiers that a plan may still have to take there, for its expected faults to
/// be those of the next window.
const SETTLED: f64 = 0.05;

/// Decides where regions go.
pub trait Policy {
    /// Takes in what the last plan led to. Called before [`Policy::plan`], once a window.
    fn learn(&mut self, _measured: &Measured) {}

    /// Says what the application costs besides its regions, in US dollars per month: memory that is
    /// not followed, and the runtime's. Called before [`Policy::plan`]; only a budget that is an
    /// amount of money depends on it.
    fn beside(&mut self, _usd_per_month: f64) {}

    /// Says whether the application is at the limit of its memory. Called before
    /// [`Policy::plan`], if that is known.
    fn limit(&mut self, _is_reached: bool) {}

    /// What a cold-age policy knows, for reports.
    fn cold_age(&self) -> Option<&coldage::Facts> {
        None
    }

    /// Plans the next window. `tiers[0]` is DRAM, and all of them are [`TierCost::is_valid`].
    fn plan(&mut self, regions: &[RegionView], tiers: &[TierCost]) -> Plan;
}

impl Plan {
    /// The plan that sends region `i` to tier `to[i]`.
    ///
    /// A region that stays in a compressed tier is moved too if some of its pages have come back:
    /// they were expected to (equation 8 counts each as a fault) and go down again, otherwise a
    /// region would climb back page by page without anybody having decided it.
    fn to_tiers(regions: &[RegionView], tiers: &[TierCost], to: &[u8], why: Why) -> Plan {
        let mut plan = Plan::empty(regions, tiers, why);
        let mut hot = [0.0; MAX_TIERS];
        for (index, (region, &dest)) in regions.iter().zip(to).enumerate() {
            let to = TierId(dest);
            plan.recommended[to.index()] += u64::from(region.pages);
            hot[to.index()] += f64::from(region.hotness_usable());
            // What no tier takes is home all the same.
            let home = region.pages_refused().ceil() as u32;
            let faulted_back = to != TierId::DRAM && region.resident > home;
            if region.pages > 0 && (region.tier != to || faulted_back) {
                let (region_index, from) = (index as u32, region.tier);
                plan.moves.push(Move { region: region_index, id: region.id, from, to });
            }
        }
        plan.expected_faults = K_Y * hot[1..].iter().sum::<f64>();
        plan.expected_perf_ns = cost::perf_overhead_expected_ns(&hot, tiers, K_Y);
        plan.expected_tco = cost::tco(&plan.recommended, tiers);
        plan
    }

    /// Whether nearly all that it wants in tiers is there.
    fn is_settled(&self, regions: &[RegionView]) -> bool {
        // Pages that came back and go down again were expected to; half of a region was not.
        let is_missing = |m: &&Move| {
            let region = &regions[m.region as usize];
            m.to != TierId::DRAM && (m.from != m.to || region.is_back_in_dram())
        };
        let missing = self.moves.iter().filter(is_missing);
        let missing: u64 = missing.map(|m| u64::from(regions[m.region as usize].resident)).sum();
        let wanted: u64 = self.recommended[1..].iter().sum();
        missing as f64 <= SETTLED * wanted as f64
    }

    fn empty(regions: &[RegionView], tiers: &[TierCost], why: Why) -> Plan {
        let pages = regions.iter().map(|region| u64::from(region.pages)).sum();
        Plan {
            moves: Vec::new(),
            recommended: [0; MAX_TIERS],
            expected_faults: 0.0,
            expected_perf_ns: 0.0,
            expected_tco: 0.0,
            tco_max: cost::tco_max(pages, tiers),
            tco_min: cost::tco_min(pages, tiers),
            why,
            terms: Terms::NONE,
        }
    }

    /// Share of the cost of DRAM that the placement is expected to save; see [`cost::tco_saved`].
    pub fn tco_saved(&self) -> f64 {
        cost::tco_saved(self.expected_tco, self.tco_max)
    }
}
