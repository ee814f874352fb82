//! The solver: one option for each item, least total time within a budget of money.
//!
//! This is the multiple-choice knapsack problem. TierScape hands it to OR-Tools as an integer
//! program; here it is solved by hand, because a planner that runs every window over 100,000s of
//! regions must take milliseconds and no dependency.
//!
//! # A case worked by hand
//!
//! Regions A, B, C are touched 10, 1 and 2 times a window. A fault costs 0 in DRAM, 1 in T1, 4 in
//! T2; a region costs 8, 4 or 2 dollars there. The budget is 13 dollars.
//!
//! ```text
//!            time in  DRAM   T1   T2      step T2 -> T1        step T1 -> DRAM
//!   A (10)             0     10   40      saves 30 for 2: 15   saves 10 for 4: 2.5
//!   B (1)              0      1    4      saves  3 for 2: 1.5  saves  1 for 4: 0.25
//!   C (2)              0      2    8      saves  6 for 2: 3    saves  2 for 4: 0.5
//! ```
//!
//! 1. *Start* with all in T2: 6 dollars, time 52. 7 dollars are left.
//! 2. *Steps by efficiency* (time saved per dollar): A to T1 (15), C to T1 (3). Now 10 dollars and
//!    time 10 + 4 + 2 = 16. The next step, A to DRAM (2.5), needs 4 dollars and 3 are left: this is
//!    the *break step* and 2.5 the price `lambda` of time.
//! 3. *Bound*: three quarters of that step would give 16 - 2.5 * 3 = 8.5, and nothing can be better
//!    (the linear relaxation).
//! 4. *Fill*: the next step that fits is B to T1, time 13 for 12 dollars.
//! 5. *Close the gap*: 13 is far from 8.5. Taking the break step after all and paying for it with
//!    the cheapest step back (C to T2 again) gives A DRAM, B T2, C T2: time 12 for 12 dollars, and
//!    that is the optimum. `closing.rs` searches such exchanges.
//!
//! # Trade and bound
//!
//! Steps 1 to 4 read all options once or twice, keep one byte per item and sort only the few per
//! cent of steps around the break. From [`SAMPLE_FROM`] items on a sample says between which two
//! prices of time the break must lie; an item whose best option is the same at both is done with
//! two comparisons an option, and only the others need their steps. The totals show whether the
//! sample was right, and if it was not all items are read again. With many items the gap left is
//! one step in 100,000 and step 5 is
//! skipped; with few items step 5 is a search, bounded in work and honest about it
//! ([`Solution::proven`]). The efficiencies of one item's steps must fall, so an option above the
//! lower convex hull of (money, time) is no step; step 5 may still choose it.

use super::closing::{Closing, Split};
use core::cmp::Ordering;

use crate::tier::MAX_TIERS;

/// Largest distance from the optimum, relative, that is accepted without further search: a tenth
/// of the 0.1 % that Terrace promises, and far below what is known about next window's faults.
pub const GAP_ACCEPTED: f64 = 1e-4;

/// Times the solver starts again with a slightly smaller budget because rounding carried a sum
/// over the edge. Each retry removes twice the overshoot, so one is enough in practice.
const ROUNDING_RETRIES: u32 = 4;

/// Steps are first sorted into buckets by the leading bits of their efficiency: exponent and four
/// bits of mantissa, 1/16 of an octave. Finer buckets would outgrow the cache.
const BUCKET_SHIFT: u32 = 48;
const BUCKETS: usize = 1 << (63 - BUCKET_SHIFT);

/// Items from which the break is first looked for in a sample; below it costs more than it saves.
pub const SAMPLE_FROM: usize = 1 << 16;

/// Items in the sample. The money of so many is within a per cent of that of all, so that
/// [`SAMPLE_ERROR`] is wrong once in 100s of plans, which costs the time of the long way round.
const SAMPLE: usize = 1 << 14;

/// How far the sample's money is trusted, as a share of the budget.
const SAMPLE_ERROR: f64 = 0.02;

/// Times and prices of every option of every item. All must be finite and not negative.
pub trait Choices {
    /// Number of items (regions).
    fn items(&self) -> usize;
    /// Number of options (tiers) that each item has, 1 to [`MAX_TIERS`].
    fn options(&self) -> usize;
    /// Time of an item in an option (here: nanoseconds per window).
    fn perf(&self, item: usize, option: usize) -> f64;
    /// Money for an item in an option (here: US dollars per month).
    fn tco(&self, item: usize, option: usize) -> f64;
    /// Bytes that an item takes in an option; what [`super::limits`] counts, 0 elsewhere.
    fn bytes(&self, _item: usize, _option: usize) -> f64 {
        0.0
    }
    /// All options of an item at once, where that is cheaper than one by one.
    #[inline]
    fn row(&self, item: usize, perf: &mut [f64; MAX_TIERS], tco: &mut [f64; MAX_TIERS]) {
        for option in 0..self.options() {
            perf[option] = self.perf(item, option);
            tco[option] = self.tco(item, option);
        }
    }
}

/// [`Choices`] written out as two row-major tables.
#[derive(Clone, Copy, Debug)]
pub struct Matrix<'a> {
    options: usize,
    perf: &'a [f64],
    tco: &'a [f64],
}

impl<'a> Matrix<'a> {
    /// Tables of `options` columns each. `None` unless both hold the same number of full rows and
    /// the number of options is 1 to [`MAX_TIERS`].
    pub fn new(options: usize, perf: &'a [f64], tco: &'a [f64]) -> Option<Matrix<'a>> {
        let fits = (1..=MAX_TIERS).contains(&options)
            && perf.len() == tco.len()
            && perf.len().is_multiple_of(options);
        fits.then_some(Matrix { options, perf, tco })
    }
}

impl Choices for Matrix<'_> {
    fn items(&self) -> usize {
        self.perf.len() / self.options
    }
    fn options(&self) -> usize {
        self.options
    }
    fn perf(&self, item: usize, option: usize) -> f64 {
        self.perf[item * self.options + option]
    }
    fn tco(&self, item: usize, option: usize) -> f64 {
        self.tco[item * self.options + option]
    }
}

/// An answer of the solver.
#[derive(Clone, PartialEq, Debug)]
pub struct Solution {
    /// Chosen option of each item.
    pub choice: Vec<u8>,
    /// Total time, summed in item order.
    pub perf: f64,
    /// Total money, summed in item order; at most the budget if [`Solution::feasible`].
    pub tco: f64,
    /// No choice within the budget takes less time (linear relaxation).
    pub lp_bound: f64,
    /// Price of money in time: what one more unit of budget would save. 0 if there is more than
    /// enough.
    pub lambda: f64,
    /// `(perf - lp_bound) / perf`, 0 to 1: the optimum is at most this share better.
    pub gap_to_lp: f64,
    /// False if even the cheapest choice is over the budget; that choice is then the answer.
    pub feasible: bool,
    /// Whether the search ran to its end, which makes `perf` at most [`GAP_ACCEPTED`] above the
    /// optimum. False if the work limit ended it: then only `gap_to_lp` bounds the distance.
    pub proven: bool,
}

impl Solution {
    /// Notes that nothing can be better than `bound`.
    pub(super) fn bounded_by(&mut self, bound: f64) {
        self.lp_bound = bound.max(0.0).min(self.perf);
        let gap = self.perf - self.lp_bound;
        self.gap_to_lp = if self.perf > 0.0 { gap / self.perf } else { 0.0 };
        self.proven = self.gap_to_lp <= GAP_ACCEPTED;
    }
}

/// Solves one problem with fresh buffers; see [`Solver::solve`].
pub fn solve<C: Choices>(costs: &C, budget: f64, current: &[u8]) -> Solution {
    Solver::default().solve(costs, budget, current)
}

/// The buffers of the solver, kept from one window to the next.
#[derive(Debug)]
pub struct Solver {
    /// [`SAMPLE_FROM`] and [`SAMPLE`]; tests make them small.
    sampling: (usize, usize),
    /// Whether step 5 is done. Searches that solve many problems for their bounds skip it.
    closes: bool,
    /// Money of all steps in a bucket of efficiency.
    buckets: Vec<f64>,
    /// The steps of the bucket in which the budget ends.
    steps: Vec<Step>,
    /// How many hull steps each item has taken.
    rank: Vec<u8>,
    closing: Closing,
}

/// One step up an item's hull.
#[derive(Clone, Copy, Debug)]
struct Step {
    /// Time saved per unit of money.
    slope: f64,
    /// Change of time, negative.
    perf: f64,
    /// Extra money.
    tco: f64,
    item: u32,
    /// 1 for the step away from the cheapest option, and so on.
    rank: u8,
    /// Where it leads.
    option: u8,
    /// The item is here already, or further up: taking the step moves nothing down.
    keeps: bool,
}

impl Step {
    /// Best first; ties as [`Solver::solve`] promises.
    fn order(a: &Step, b: &Step) -> Ordering {
        b.slope
            .total_cmp(&a.slope)
            .then(b.keeps.cmp(&a.keeps))
            .then(a.item.cmp(&b.item))
            .then(a.rank.cmp(&b.rank))
    }
}

impl Default for Solver {
    fn default() -> Solver {
        Solver {
            sampling: (SAMPLE_FROM, SAMPLE),
            closes: true,
            buckets: Vec::new(),
            steps: Vec::new(),
            rank: Vec::new(),
            closing: Closing::default(),
        }
    }
}

impl Solver {
    /// The same without step 5: the bound is as good, the answer may be worse.
    pub(super) fn without_closing() -> Solver {
        Solver { closes: false, ..Solver::default() }
    }

    /// The same with a sample of `items` from `from` items on.
    #[cfg(test)]
    pub(super) fn with_sampling(from: usize, items: usize) -> Solver {
        Solver { sampling: (from, items), ..Solver::default() }
    }

    /// Chooses an option for each item: least time with money <= `budget`.
    ///
    /// `current[item]` is the option the item is in now, or the slice is empty if that does not
    /// matter. It only breaks ties: of equal steps those are taken that leave items where they
    /// are, then those of lower item number. The same input gives the same answer.
    ///
    /// # Panics
    /// If `current` is neither empty nor one entry an item, or [`Choices::options`] is out of
    /// range.
    pub fn solve<C: Choices>(&mut self, costs: &C, budget: f64, current: &[u8]) -> Solution {
        assert!((1..=MAX_TIERS).contains(&costs.options()), "options out of range");
        assert!(u32::try_from(costs.items()).is_ok(), "too many items");
        assert!(current.is_empty() || current.len() == costs.items(), "one option per item");

        let mut margin = 0.0;
        for _ in 0..ROUNDING_RETRIES {
            let Some(found) = self.attempt(costs, budget - margin, current) else { break };
            if found.tco <= budget {
                return found;
            }
            margin = 2.0 * (margin + (found.tco - budget));
        }
        cheapest(costs, budget, current)
    }

    /// One run of steps 1 to 5. `None` if not even the cheapest choice fits. Rounding may leave the
    /// answer a few ulps over the budget.
    fn attempt<C: Choices>(&mut self, costs: &C, budget: f64, current: &[u8]) -> Option<Solution> {
        let sampled = self.bracket(costs, budget, current);
        let found = sampled.and_then(|buckets| self.take_outside(costs, buckets, budget, current));
        let (mut choice, bucket) = match found {
            Some(found) => found,
            None => {
                let bucket = self.find_break_bucket(costs, budget, current)?;
                (self.take_above(costs, bucket, current), bucket)
            }
        };
        let (mut perf, mut tco) = totals(costs, &choice);

        // Within the bucket: all steps up to the first that does not fit, the break step.
        self.steps.sort_unstable_by(Step::order);
        let mut fitting = 0;
        while let Some(step) = self.steps.get(fitting).filter(|step| tco + step.tco <= budget) {
            let item = step.item as usize;
            perf += step.perf;
            tco += step.tco;
            choice[item] = step.option;
            self.rank[item] = step.rank;
            fitting += 1;
        }
        // Without a break step (rounding, or everything fits) any price of time between the last
        // step and the next bucket gives a valid bound; 0 for bucket 0.
        let lambda = match self.steps.get(fitting) {
            Some(step) => step.slope,
            None => f64::from_bits((bucket as u64) << BUCKET_SHIFT),
        };
        let lp_bound = (perf - lambda * (budget - tco).max(0.0)).max(0.0);
        let split = Split { budget, perf, tco, lambda, lp_bound };

        // Fill the room with later steps, each only where the step below it was taken.
        let mut filled = Vec::new();
        for step in &self.steps[fitting..] {
            let item = step.item as usize;
            if self.rank[item] + 1 == step.rank && tco + step.tco <= budget {
                perf += step.perf;
                tco += step.tco;
                filled.push((step.item, choice[item]));
                choice[item] = step.option;
                self.rank[item] = step.rank;
            }
        }

        let mut proven = perf - lp_bound <= GAP_ACCEPTED * lp_bound;
        if !proven && self.closes {
            let full = choice.clone();
            for &(item, before) in filled.iter().rev() {
                choice[item as usize] = before;
            }
            let outcome = self.closing.search(costs, &split, perf, &choice);
            proven = outcome.proven;
            match outcome.changes {
                Some(changes) => changes.for_each(|(item, to)| choice[item as usize] = to),
                None => choice = full,
            }
        }
        let (perf, tco) = totals(costs, &choice);
        let lp_bound = lp_bound.min(perf);
        proven |= perf - lp_bound <= GAP_ACCEPTED * lp_bound; // a search cut short may get there
        let gap_to_lp = if perf > 0.0 { (perf - lp_bound) / perf } else { 0.0 };
        let feasible = true;
        Some(Solution { choice, perf, tco, lp_bound, lambda, gap_to_lp, feasible, proven })
    }

    /// The buckets (low, high) between which a sample says that the break lies, if there are
    /// enough items for one.
    fn bracket<C: Choices>(
        &mut self,
        costs: &C,
        budget: f64,
        current: &[u8],
    ) -> Option<(usize, usize)> {
        let items = costs.items();
        if items < self.sampling.0 {
            return None;
        }
        let sample = Sample::new(costs, self.sampling.1);
        let here = sample.of(current);
        let share = sample.items() as f64 / items as f64;
        let (poor, rich) = (1.0 - SAMPLE_ERROR, 1.0 + SAMPLE_ERROR);
        let low = self.find_break_bucket(&sample, budget * share * rich, &here)?;
        let high = self.find_break_bucket(&sample, budget * share * poor, &here)?;
        Some((low, high))
    }

    /// The short second reading: takes every step above the bucket `high`, and collects those from
    /// there down to `low`. `None` if the budget ends elsewhere.
    fn take_outside<C: Choices>(
        &mut self,
        costs: &C,
        (low, high): (usize, usize),
        budget: f64,
        current: &[u8],
    ) -> Option<(Vec<u8>, usize)> {
        let edge = |bucket: usize| f64::from_bits((bucket as u64) << BUCKET_SHIFT);
        let (cheap, dear) = (edge(low), edge(high + 1));
        if high + 1 >= BUCKETS || !dear.is_finite() {
            return None;
        }
        self.steps.clear();
        self.rank.clear();
        let mut choice = Vec::with_capacity(costs.items());
        let mut hull = Hull::new(costs.options());
        let (mut perf, mut tco) = ([0.0; MAX_TIERS], [0.0; MAX_TIERS]);
        let (mut spent, mut between) = (0.0, 0.0);
        for item in 0..costs.items() {
            costs.row(item, &mut perf, &mut tco);
            if let Some(option) = sure(&perf, &tco, costs.options(), cheap, dear) {
                spent += tco[option];
                choice.push(option as u8);
                self.rank.push(0);
                continue;
            }
            hull.build(costs, item, current);
            let taken = self.take_item(costs, &hull, item, (low, high), current);
            spent += hull.tco[taken];
            choice.push(hull.option[taken]);
            self.rank.push(taken as u8);
            if let Some(step) = self.steps.last().filter(|step| step.item as usize == item) {
                between += hull.tco[usize::from(step.rank)] - hull.tco[taken];
            }
        }
        let ends_between = spent <= budget && (low == 0 || spent + between > budget);
        ends_between.then_some((choice, low))
    }

    /// Takes an item's steps above the bucket `high`, collects those down to `low`, and returns
    /// how many it took.
    fn take_item<C: Choices>(
        &mut self,
        costs: &C,
        hull: &Hull,
        item: usize,
        (low, high): (usize, usize),
        current: &[u8],
    ) -> usize {
        let mut taken = 0;
        while taken + 1 < hull.len && bucket_of(hull.slope[taken + 1]) > high {
            taken += 1;
        }
        let here = current.get(item).map(|&option| usize::from(option));
        for rank in taken + 1..hull.len {
            if bucket_of(hull.slope[rank]) < low {
                break;
            }
            self.steps.push(Step {
                slope: hull.slope[rank],
                perf: hull.perf[rank] - hull.perf[rank - 1],
                tco: hull.tco[rank] - hull.tco[rank - 1],
                item: item as u32,
                rank: rank as u8,
                option: hull.option[rank],
                keeps: here.is_some_and(|option| {
                    option < costs.options() && costs.tco(item, option) >= hull.tco[rank]
                }),
            });
        }
        taken
    }

    /// First reading: sums the money of all steps by efficiency, and returns the bucket in which
    /// the budget ends, 0 if it never does. `None` if the cheapest choice is over it.
    fn find_break_bucket<C: Choices>(
        &mut self,
        costs: &C,
        budget: f64,
        current: &[u8],
    ) -> Option<usize> {
        self.buckets.clear();
        self.buckets.resize(BUCKETS, 0.0);
        let mut hull = Hull::new(costs.options());
        let mut spent = 0.0;
        for item in 0..costs.items() {
            hull.build(costs, item, current);
            spent += hull.tco[0];
            for rank in 1..hull.len {
                self.buckets[bucket_of(hull.slope[rank])] += hull.tco[rank] - hull.tco[rank - 1];
            }
        }
        if spent > budget {
            return None;
        }
        for bucket in (0..BUCKETS).rev() {
            spent += self.buckets[bucket];
            if spent > budget {
                return Some(bucket);
            }
        }
        Some(0)
    }

    /// Second reading: every step above the bucket is taken, those in it are collected.
    fn take_above<C: Choices>(&mut self, costs: &C, bucket: usize, current: &[u8]) -> Vec<u8> {
        self.steps.clear();
        self.rank.clear();
        let mut choice = Vec::with_capacity(costs.items());
        let mut hull = Hull::new(costs.options());
        for item in 0..costs.items() {
            hull.build(costs, item, current);
            let taken = self.take_item(costs, &hull, item, (bucket, bucket), current);
            choice.push(hull.option[taken]);
            self.rank.push(taken as u8);
        }
        choice
    }
}

/// The option that is best for every price of time from `cheap` to `dear`, if there is one and no
/// other is as good. Between two prices that agree the best option does not change: an item's steps
/// fall in efficiency.
#[inline]
fn sure(
    perf: &[f64; MAX_TIERS],
    tco: &[f64; MAX_TIERS],
    options: usize,
    cheap: f64,
    dear: f64,
) -> Option<usize> {
    let (mut low, mut high) = ((f64::INFINITY, 0), (f64::INFINITY, 0));
    let mut tie = false;
    for option in 0..options.min(MAX_TIERS) {
        let a = perf[option] + cheap * tco[option];
        let b = perf[option] + dear * tco[option];
        tie |= a == low.0 || b == high.0;
        if a < low.0 {
            low = (a, option);
        }
        if b < high.0 {
            high = (b, option);
        }
    }
    (low.1 == high.1 && !tie).then_some(low.1)
}

/// Every n-th item of a problem, as a problem. The place within the n changes, so that no pattern
/// in the items' order is met at the same place again and again.
pub(super) struct Sample<'a, C> {
    all: &'a C,
    items: usize,
    stride: usize,
}

impl<'a, C: Choices> Sample<'a, C> {
    /// `items` of them, or all if there are no more.
    pub(super) fn new(all: &'a C, items: usize) -> Sample<'a, C> {
        let items = items.min(all.items());
        Sample { all, items, stride: all.items() / items.max(1) }
    }

    /// Their part of a list with an entry for each item, or an empty one.
    pub(super) fn of(&self, list: &[u8]) -> Vec<u8> {
        if list.is_empty() {
            return Vec::new();
        }
        (0..self.items).map(|item| list[self.item(item)]).collect()
    }

    /// Which item of the whole is number `item` of the sample.
    pub(super) fn item(&self, item: usize) -> usize {
        item * self.stride + item.wrapping_mul(7_919) % self.stride
    }
}

impl<C: Choices> Choices for Sample<'_, C> {
    fn items(&self) -> usize {
        self.items
    }
    fn options(&self) -> usize {
        self.all.options()
    }
    fn perf(&self, item: usize, option: usize) -> f64 {
        self.all.perf(self.item(item), option)
    }
    fn tco(&self, item: usize, option: usize) -> f64 {
        self.all.tco(self.item(item), option)
    }
    fn bytes(&self, item: usize, option: usize) -> f64 {
        self.all.bytes(self.item(item), option)
    }
}

/// Bucket of an efficiency. The bits of positive floats sort as the floats do.
#[inline]
fn bucket_of(slope: f64) -> usize {
    (slope.to_bits() >> BUCKET_SHIFT) as usize & (BUCKETS - 1)
}

/// Time and money of a choice, summed in item order, so that everybody gets the same rounding.
pub(super) fn totals<C: Choices>(costs: &C, choice: &[u8]) -> (f64, f64) {
    let mut sums = (0.0, 0.0);
    for (item, &option) in choice.iter().enumerate() {
        sums.0 += costs.perf(item, usize::from(option));
        sums.1 += costs.tco(item, usize::from(option));
    }
    sums
}

/// The least money, and of equals the least time: the answer where nothing fits.
fn cheapest<C: Choices>(costs: &C, budget: f64, current: &[u8]) -> Solution {
    let mut hull = Hull::new(costs.options());
    let mut choice = Vec::with_capacity(costs.items());
    for item in 0..costs.items() {
        hull.build(costs, item, current);
        choice.push(hull.option[0]);
    }
    let (perf, tco) = totals(costs, &choice);
    let feasible = tco <= budget;
    let (lp_bound, lambda, gap_to_lp, proven) = (perf, 0.0, 0.0, !feasible);
    Solution { choice, perf, tco, lp_bound, lambda, gap_to_lp, feasible, proven }
}

/// Lower convex hull of one item's options in the plane of money and time. Fixed arrays: the
/// solver visits 1,000,000 items twice and must not allocate for them.
struct Hull {
    /// All options by money. Kept from item to item: tiers rank alike for most regions, so that the
    /// insertion sort finds its work done.
    order: [u8; MAX_TIERS],
    options: usize,
    /// Points of the hull, cheapest first; `slope[k]` is the time saved per money from `k - 1` to
    /// `k` and falls strictly.
    len: usize,
    option: [u8; MAX_TIERS],
    perf: [f64; MAX_TIERS],
    tco: [f64; MAX_TIERS],
    slope: [f64; MAX_TIERS],
}

impl Hull {
    fn new(options: usize) -> Hull {
        Hull {
            order: core::array::from_fn(|option| option as u8),
            options,
            len: 0,
            option: [0; MAX_TIERS],
            perf: [0.0; MAX_TIERS],
            tco: [0.0; MAX_TIERS],
            slope: [0.0; MAX_TIERS],
        }
    }

    fn build<C: Choices>(&mut self, costs: &C, item: usize, current: &[u8]) {
        let mut perf = [0.0; MAX_TIERS];
        let mut tco = [0.0; MAX_TIERS];
        costs.row(item, &mut perf, &mut tco);
        // Of options that cost the same in both ways the current one comes first and stays.
        let here = current.get(item).copied();
        let before = |a: u8, b: u8| {
            let (i, j) = (usize::from(a), usize::from(b));
            tco[i] < tco[j]
                || (tco[i] == tco[j]
                    && (perf[i], here != Some(a), a) < (perf[j], here != Some(b), b))
        };
        for end in 1..self.options {
            let mut at = end;
            while at > 0 && before(self.order[at], self.order[at - 1]) {
                self.order.swap(at, at - 1);
                at -= 1;
            }
        }

        self.len = 0;
        for &option in &self.order[..self.options] {
            let (p, t) = (perf[usize::from(option)], tco[usize::from(option)]);
            if self.len > 0 && p >= self.perf[self.len - 1] {
                continue; // dominated: no faster, and no cheaper
            }
            let mut slope = f64::INFINITY;
            while self.len > 0 {
                slope = (self.perf[self.len - 1] - p) / (t - self.tco[self.len - 1]);
                if self.len == 1 || slope < self.slope[self.len - 1] {
                    break;
                }
                self.len -= 1;
            }
            self.option[self.len] = option;
            self.perf[self.len] = p;
            self.tco[self.len] = t;
            self.slope[self.len] = slope;
            self.len += 1;
        }
    }
}
