//! Limits on what tiers hold: a file has so many bytes, whatever a byte costs there.
//!
//! [`super::mckp`] knows one budget, that of money. A limit is one more. Each gets a *price*, time
//! for a byte, that is added to the time of every option the limit counts; an option that takes
//! room from others then looks as slow as it makes the others. For any prices, 0 or more,
//!
//! ```text
//! least time within budget and limits
//!     >= least time within the budget, prices added - sum of price * limit      (the bound)
//! ```
//!
//! and for the right prices the two sides differ by no more than a few items (Everett 1963). So:
//!
//! 1. *Prices* are searched on a sample of the items: a price is 0 if its limit would be kept
//!    anyway, otherwise as low as keeps it. Several limits take turns, a few rounds. Where there
//!    are many items a larger sample follows a small one.
//! 2. *One full solution* at these prices gives the bound, and tells how far the sample was off.
//!    If by too much, the search is repeated with that known.
//! 3. *Repair*: what is over a limit leaves it, and what room is left is filled, cheapest in time
//!    per byte first; what is then over the budget becomes cheaper, and what money is left buys
//!    time. Near the right prices many items are as good in one place as in another, and changing
//!    those costs next to nothing; the distance to the bound says what it did cost.
//!
//! A limit is of matter and the budget is of wishes: where both cannot be kept the limits are, with
//! the least money they allow ([`Limited::cheapest`]), and the answer says so.

use core::cmp::Ordering;

use super::mckp::{totals, Choices, Sample, Solution, Solver, GAP_ACCEPTED};
use crate::tier::{TierId, MAX_TIERS};

/// Items on which prices are searched: 40 solutions of so many take as long as one of 200,000.
const SAMPLE: usize = 1 << 12;

/// From so many items on prices are then searched again near those found, on more of them: that
/// takes less time than the full solution that it saves.
const FINE_FROM: usize = 1 << 18;
const SAMPLE_FINE: usize = 1 << 14;

/// So far from its limit, as a share of that, what a price gives away is not worth a repair.
const FAR: f64 = 0.1;

/// Full solutions for one answer.
const ATTEMPTS: usize = 3;

/// More of them where they take no time.
const ATTEMPTS_SMALL: usize = 8;
const SMALL: usize = 1 << 16;

/// Turns that several limits take in one search. Media do not share tiers, so that the price of
/// one moves another's little; two settle most of it.
const ROUNDS: usize = 3;

/// How near a price is searched, as a share of it: far below the sample's error.
const PRICE_ERROR: f64 = 1e-4;

/// Gap at which a large problem is left as it is: a quarter of what Terrace promises.
const GAP_ENOUGH: f64 = 2.5e-4;

/// First, repair only looks at changes that cost less than this share of what they gain.
const NARROW: f64 = 0.02;

/// Candidates of a round that are sorted before the first is taken.
const FIRST_SORTED: usize = 1 << 12;

/// A price so far from the first one does not keep its limit, or need not be 0.
const OUTLANDISH: f64 = 1e9;

/// Steps of one search, up or down and then between; a limit that no price keeps ends there.
const STEPS_MAX: usize = 48;

/// Money without end, and still finite when something is taken from it.
const NO_BUDGET: f64 = f64::MAX / 4.0;

/// Room for rounding in sums of bytes.
const BYTES_SLACK: f64 = 1e-9;

/// Most that some tiers may hold together.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Limit {
    tiers: u16,
    bytes: f64,
}

impl Limit {
    /// At most `bytes` (0 or more) in these tiers together. Tiers of one medium make a limit of the
    /// medium; DRAM may be among them.
    pub fn new(tiers: impl IntoIterator<Item = TierId>, bytes: f64) -> Limit {
        let tiers = tiers.into_iter().fold(0, |set, tier| set | 1 << (tier.index() % MAX_TIERS));
        Limit { tiers, bytes: if bytes.is_nan() { 0.0 } else { bytes.max(0.0) } }
    }

    /// Whether a tier's bytes count.
    #[inline]
    pub fn counts(&self, tier: usize) -> bool {
        self.tiers >> tier & 1 == 1
    }

    /// The limit in bytes.
    pub fn bytes(&self) -> f64 {
        self.bytes
    }

    /// Gives up room that something else takes.
    pub(super) fn take(&mut self, bytes: f64) {
        self.bytes = (self.bytes - bytes).max(0.0);
    }

    fn most(&self) -> f64 {
        self.bytes * (1.0 + BYTES_SLACK)
    }
}

/// An answer under limits.
#[derive(Clone, PartialEq, Debug)]
pub struct Answer {
    /// The choice. Its `lp_bound` and `gap_to_lp` hold for the problem with the limits; `feasible`
    /// means that the budget is kept.
    pub solution: Solution,
    /// Whether all limits are kept. Not if they count DRAM and there is no room elsewhere.
    pub is_within: bool,
}

/// Solves problems with limits. Prices are kept from one window to the next.
#[derive(Debug)]
pub struct Limited {
    solver: Solver,
    quick: Solver,
    prices: Vec<f64>,
    /// Those of [`Limited::cheapest`], which are of money.
    prices_of_money: Vec<f64>,
    /// [`FINE_FROM`]; tests make it small.
    fine_from: usize,
}

impl Default for Limited {
    fn default() -> Limited {
        let (solver, quick) = (Solver::default(), Solver::without_closing());
        let (prices, prices_of_money) = (Vec::new(), Vec::new());
        Limited { solver, quick, prices, prices_of_money, fine_from: FINE_FROM }
    }
}

impl Limited {
    /// The same with a second, larger sample from so many items on.
    #[cfg(test)]
    pub(super) fn with_fine_from(items: usize) -> Limited {
        Limited { fine_from: items, ..Limited::default() }
    }

    /// As [`Solver::solve`], within these limits.
    ///
    /// # Panics
    /// As [`Solver::solve`].
    pub fn solve<C: Choices>(
        &mut self,
        costs: &C,
        limits: &[Limit],
        budget: f64,
        current: &[u8],
    ) -> Answer {
        if limits.is_empty() || costs.items() == 0 {
            let solution = self.solver.solve(costs, budget, current);
            return Answer { solution, is_within: true };
        }
        let found = self.within(costs, limits, budget, current);
        let bound = match found {
            Some(answer) if answer.is_within && answer.solution.feasible => return answer,
            Some(answer) => answer.solution.lp_bound,
            None => 0.0,
        };
        let mut answer = self.cheapest(costs, limits, current);
        if answer.is_within && answer.solution.tco <= budget {
            // There is an answer, and what money it leaves buys time.
            let prices = vec![0.0; limits.len()];
            let priced = Priced::new(costs, limits, &prices);
            let used = limits.iter().map(|l| used_by(costs, &answer.solution.choice, l)).collect();
            answer = Repair::new(costs, limits, &priced, budget, answer.solution, used).run();
            answer.solution.bounded_by(bound);
        }
        answer
    }

    /// The least money that the limits allow, whatever time it takes. Its `lp_bound` and
    /// `gap_to_lp` are of money, and `feasible` is false: there was no budget.
    pub fn cheapest<C: Choices>(&mut self, costs: &C, limits: &[Limit], current: &[u8]) -> Answer {
        let swapped = Swapped(costs);
        // With as much to spend as there is, the cheapest answer always exists.
        core::mem::swap(&mut self.prices, &mut self.prices_of_money);
        let found = self.within(&swapped, limits, NO_BUDGET, current);
        core::mem::swap(&mut self.prices, &mut self.prices_of_money);
        let (mut solution, is_within) = match found {
            Some(found) => (found.solution, found.is_within),
            None => (self.solver.solve(&swapped, NO_BUDGET, current), false),
        };
        (solution.perf, solution.tco) = totals(costs, &solution.choice);
        solution.feasible = false;
        Answer { solution, is_within }
    }

    /// Steps 1 to 3 of the head. `None` if there is nothing to choose from.
    fn within<C: Choices>(
        &mut self,
        costs: &C,
        limits: &[Limit],
        budget: f64,
        current: &[u8],
    ) -> Option<Answer> {
        let coarse = Drawn::new(costs, current, SAMPLE);
        let fine = costs.items() >= self.fine_from;
        let fine = fine.then(|| Drawn::new(costs, current, SAMPLE_FINE));
        let mut goals: Vec<f64> = limits.iter().map(|limit| limit.bytes).collect();
        let (mut best, mut bound): (Option<Answer>, f64) = (None, 0.0);
        let attempts = match costs.items() {
            n if n == coarse.here.items() => 1, // nothing is unknown
            n if n <= SMALL => ATTEMPTS_SMALL,
            _ => ATTEMPTS,
        };
        for left in (0..attempts).rev() {
            for drawn in [Some(&coarse), fine.as_ref()].into_iter().flatten() {
                self.search(drawn, limits, &goals, budget);
            }
            let priced = Priced::new(costs, limits, &self.prices);
            let found = self.solver.solve(&priced, budget, current);
            if !found.feasible {
                return best;
            }
            let paid: f64 = limits.iter().zip(&self.prices).map(|(l, p)| l.bytes * p).sum();
            bound = bound.max(found.lp_bound - paid);
            let used: Vec<f64> =
                limits.iter().map(|limit| used_by(costs, &found.choice, limit)).collect();
            // What the sample promised and what came: the next search aims as much lower or higher.
            let mut is_near = true;
            for (((goal, limit), used), price) in
                goals.iter_mut().zip(limits).zip(&used).zip(&self.prices)
            {
                if limit.bytes > 0.0 && (*used > 0.0 || *price > 0.0) {
                    *goal *= (limit.bytes / used).clamp(0.5, 2.0);
                }
                let off = (limit.bytes - used).abs() > FAR * limit.bytes;
                is_near &= !off || (*price == 0.0 && *used <= limit.bytes);
            }
            if !is_near && left > 0 && fine.is_some() {
                continue;
            }
            let answer = Repair::new(costs, limits, &priced, budget, found, used).run();
            let is_better = best.as_ref().is_none_or(|best| {
                let rank = |a: &Answer| (!a.is_within, !a.solution.feasible);
                (rank(&answer), answer.solution.perf) < (rank(best), best.solution.perf)
            });
            if is_better {
                best = Some(answer);
            }
            let perf = best.as_ref().map_or(0.0, |best| best.solution.perf);
            let done = best.as_ref().is_some_and(|best| best.is_within && best.solution.feasible);
            if done && perf - bound <= GAP_ENOUGH * perf {
                break;
            }
        }
        best.map(|mut best| {
            best.solution.bounded_by(bound);
            best
        })
    }

    /// Step 1: prices at which the sample keeps its limits.
    fn search(&mut self, drawn: &Drawn, limits: &[Limit], goals: &[f64], budget: f64) {
        let goals = limits.iter().zip(goals);
        let limits: Vec<Limit> =
            goals.map(|(l, goal)| Limit { bytes: goal * drawn.share, ..*l }).collect();
        if self.prices.len() != limits.len() {
            self.prices = vec![0.0; limits.len()];
        }
        let rounds = if limits.len() == 1 { 1 } else { ROUNDS };
        for _ in 0..rounds {
            for at in 0..limits.len() {
                self.search_one(drawn, &limits, at, budget * drawn.share);
            }
        }
    }

    /// The least price of limit `at` at which the sample keeps it, the others given; 0 if it does
    /// anyway. Between the last price that does not and the first that does, the former: repair
    /// moves what is too much better than what is missing.
    fn search_one(&mut self, drawn: &Drawn, limits: &[Limit], at: usize, budget: f64) {
        let sample = &drawn.here;
        let limit = limits[at];
        let guess = self.prices[at];
        let mut is_over = |prices: &mut Vec<f64>, price: f64| {
            prices[at] = price;
            let priced = Priced::new(sample, limits, prices);
            let choice = self.quick.solve(&priced, budget, &drawn.current).choice;
            used_by(sample, &choice, &limit) > limit.most()
        };
        let prices = &mut self.prices;
        if !is_over(prices, 0.0) {
            prices[at] = 0.0;
            return;
        }
        let first = if guess > 0.0 { guess } else { first_price(sample) };
        let (mut low, mut high) = (first, first);
        // A price of the last window is nearly right, the first one need not be.
        let mut factor: f64 = if guess > 0.0 { 1.02 } else { 4.0 };
        let up = is_over(prices, first);
        for _ in 0..STEPS_MAX {
            let next = if up { high * factor } else { low / factor };
            let over = is_over(prices, next);
            (low, high) = if up { (low.max(high), next) } else { (next, low.min(high)) };
            if over != up {
                break;
            }
            factor = (factor * factor).min(64.0);
            if !(first / OUTLANDISH..first * OUTLANDISH).contains(&next) {
                break;
            }
        }
        for _ in 0..STEPS_MAX {
            if high - low <= PRICE_ERROR * high {
                break;
            }
            let middle = low + (high - low) / 2.0;
            if is_over(prices, middle) {
                low = middle;
            } else {
                high = middle;
            }
        }
        // Where there is no room at all nothing is to be moved there by repair.
        prices[at] = if limit.bytes > 0.0 { low } else { high };
    }
}

/// Items drawn from all, on which prices are searched.
struct Drawn {
    here: Dense,
    /// The option that each is in.
    current: Vec<u8>,
    /// Items drawn, of all.
    share: f64,
}

impl Drawn {
    fn new<C: Choices>(costs: &C, current: &[u8], items: usize) -> Drawn {
        let sample = Sample::new(costs, items);
        let share = sample.items() as f64 / costs.items() as f64;
        Drawn { here: Dense::of(&sample), current: sample.of(current), share }
    }
}

/// A sample written out: it is read 100 times, and its items lie far apart in memory.
struct Dense {
    options: usize,
    rows: Vec<[[f64; MAX_TIERS]; 3]>,
}

impl Dense {
    fn of<C: Choices>(sample: &Sample<C>) -> Dense {
        let mut rows = vec![[[0.0; MAX_TIERS]; 3]; sample.items()];
        for (item, row) in rows.iter_mut().enumerate() {
            let [perf, tco, bytes] = row;
            for option in 0..sample.options() {
                perf[option] = sample.perf(item, option);
                tco[option] = sample.tco(item, option);
                bytes[option] = sample.bytes(item, option);
            }
        }
        Dense { options: sample.options(), rows }
    }
}

impl Choices for Dense {
    fn items(&self) -> usize {
        self.rows.len()
    }
    fn options(&self) -> usize {
        self.options
    }
    fn perf(&self, item: usize, option: usize) -> f64 {
        self.rows[item][0][option]
    }
    fn tco(&self, item: usize, option: usize) -> f64 {
        self.rows[item][1][option]
    }
    fn bytes(&self, item: usize, option: usize) -> f64 {
        self.rows[item][2][option]
    }
}

/// A price of the right size: the mean time of an option by its mean bytes.
fn first_price<C: Choices>(costs: &C) -> f64 {
    let (mut time, mut bytes) = (0.0, 0.0);
    for item in 0..costs.items() {
        for option in 0..costs.options() {
            time += costs.perf(item, option);
            bytes += costs.bytes(item, option);
        }
    }
    let price = time / bytes;
    if price.is_finite() && price > 0.0 {
        price
    } else {
        1.0
    }
}

fn used_by<C: Choices>(costs: &C, choice: &[u8], limit: &Limit) -> f64 {
    let options = choice.iter().map(|&option| usize::from(option)).enumerate();
    options.filter(|&(_, o)| limit.counts(o)).map(|(item, o)| costs.bytes(item, o)).sum()
}

/// Time and money change places: the least money for a budget of time.
#[derive(Clone, Copy, Debug)]
pub struct Swapped<'a, C>(pub &'a C);

impl<C: Choices> Choices for Swapped<'_, C> {
    fn items(&self) -> usize {
        self.0.items()
    }
    fn options(&self) -> usize {
        self.0.options()
    }
    #[inline]
    fn perf(&self, item: usize, option: usize) -> f64 {
        self.0.tco(item, option)
    }
    #[inline]
    fn tco(&self, item: usize, option: usize) -> f64 {
        self.0.perf(item, option)
    }
    #[inline]
    fn bytes(&self, item: usize, option: usize) -> f64 {
        self.0.bytes(item, option)
    }
    #[inline]
    fn row(&self, item: usize, perf: &mut [f64; MAX_TIERS], tco: &mut [f64; MAX_TIERS]) {
        self.0.row(item, tco, perf);
    }
}

/// A problem with a price on bytes.
struct Priced<'a, C> {
    costs: &'a C,
    /// Time for a byte of each limit.
    prices: &'a [f64],
    /// Time for a byte in each option.
    price: [f64; MAX_TIERS],
}

impl<'a, C: Choices> Priced<'a, C> {
    fn new(costs: &'a C, limits: &[Limit], prices: &'a [f64]) -> Priced<'a, C> {
        let mut price = [0.0; MAX_TIERS];
        for (option, price) in price.iter_mut().enumerate() {
            let counting = limits.iter().zip(prices).filter(|(limit, _)| limit.counts(option));
            *price = counting.map(|(_, price)| price).sum();
        }
        Priced { costs, prices, price }
    }

    /// What the bytes of an item cost in an option, in time.
    #[inline]
    fn of_bytes(&self, item: usize, option: usize) -> f64 {
        match self.price[option] {
            price if price > 0.0 => price * self.costs.bytes(item, option),
            _ => 0.0,
        }
    }
}

impl<C: Choices> Choices for Priced<'_, C> {
    fn items(&self) -> usize {
        self.costs.items()
    }
    fn options(&self) -> usize {
        self.costs.options()
    }
    #[inline]
    fn perf(&self, item: usize, option: usize) -> f64 {
        self.costs.perf(item, option) + self.of_bytes(item, option)
    }
    #[inline]
    fn tco(&self, item: usize, option: usize) -> f64 {
        self.costs.tco(item, option)
    }
    #[inline]
    fn bytes(&self, item: usize, option: usize) -> f64 {
        self.costs.bytes(item, option)
    }
    #[inline]
    fn row(&self, item: usize, perf: &mut [f64; MAX_TIERS], tco: &mut [f64; MAX_TIERS]) {
        self.costs.row(item, perf, tco);
        for (option, perf) in perf.iter_mut().enumerate().take(self.options()) {
            *perf += self.of_bytes(item, option);
        }
    }
}

/// Step 3.
struct Repair<'a, C> {
    costs: &'a C,
    limits: &'a [Limit],
    priced: &'a Priced<'a, C>,
    budget: f64,
    lambda: f64,
    choice: Vec<u8>,
    perf: f64,
    tco: f64,
    /// Bytes that count for each limit.
    used: Vec<f64>,
    candidates: Vec<Candidate>,
    /// Items of which some change was nearly free at first. Others have none that is, because only
    /// a change of their own could give them one.
    near: Vec<u32>,
}

/// A change of one item, and what it costs by the thing that it gains.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    rate: f64,
    item: u32,
    option: u8,
}

impl Candidate {
    /// Cheapest first, and one order for all.
    fn order(a: &Candidate, b: &Candidate) -> Ordering {
        a.rate.total_cmp(&b.rate).then(a.item.cmp(&b.item)).then(a.option.cmp(&b.option))
    }
}

/// What a round of repair is after.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Goal {
    /// Bytes out of this limit.
    Room(usize),
    /// Bytes into this limit, as far as there is room.
    Full(usize),
    /// Money.
    Money,
    /// Time.
    Time,
}

impl<'a, C: Choices> Repair<'a, C> {
    fn new(
        costs: &'a C,
        limits: &'a [Limit],
        priced: &'a Priced<'a, C>,
        budget: f64,
        found: Solution,
        used: Vec<f64>,
    ) -> Repair<'a, C> {
        let choice = found.choice;
        let (perf, tco) = totals(costs, &choice);
        let (lambda, candidates, near) = (found.lambda, Vec::new(), Vec::new());
        let mut repair = Repair {
            costs,
            limits,
            priced,
            budget,
            lambda,
            choice,
            perf,
            tco,
            used,
            candidates,
            near,
        };
        repair.find_near();
        repair
    }

    /// One reading of all items, so that the rounds need not read them all again and again.
    fn find_near(&mut self) {
        let (mut perf, mut tco) = ([0.0; MAX_TIERS], [0.0; MAX_TIERS]);
        let mut bytes = [0.0; MAX_TIERS];
        let options = self.costs.options();
        for item in 0..self.choice.len() {
            let from = usize::from(self.choice[item]);
            self.costs.row(item, &mut perf, &mut tco);
            for (option, bytes) in bytes.iter_mut().enumerate().take(options) {
                *bytes = self.priced.of_bytes(item, option);
            }
            let reduced = |o: usize| perf[o] + self.lambda * tco[o] + bytes[o];
            let before = reduced(from);
            let is_near = (0..options).any(|to| {
                let money = self.lambda * (tco[from] - tco[to]);
                let gain = (perf[from] - perf[to]).max(money).max(bytes[from]).max(bytes[to]);
                to != from && reduced(to) - before <= NARROW * gain
            });
            if is_near {
                self.near.push(item as u32);
            }
        }
    }

    fn run(&mut self) -> Answer {
        // A change for one goal never breaks another that is met, so each ends; the second time
        // round catches what had no room the first time.
        for _ in 0..2 {
            for at in 0..self.limits.len() {
                self.round(Goal::Room(at));
            }
            for at in 0..self.limits.len() {
                self.round(Goal::Full(at));
            }
            self.round(Goal::Money);
            self.round(Goal::Time);
        }
        let is_within =
            self.used.iter().zip(self.limits).all(|(used, limit)| *used <= limit.most());
        let choice = core::mem::take(&mut self.choice);
        let (perf, tco) = totals(self.costs, &choice);
        let solution = Solution {
            choice,
            perf,
            tco,
            lp_bound: 0.0,
            lambda: self.lambda,
            gap_to_lp: 1.0,
            feasible: tco <= self.budget,
            proven: false,
        };
        Answer { solution, is_within }
    }

    /// Whether there is nothing left to do for the goal. What is only to be gained must be worth
    /// the trouble.
    fn is_met(&self, goal: Goal) -> bool {
        let little = GAP_ACCEPTED / 8.0 * self.perf;
        match goal {
            Goal::Room(at) => self.used[at] <= self.limits[at].most(),
            Goal::Full(at) => {
                (self.limits[at].bytes - self.used[at]) * self.priced.prices[at] <= little
            }
            Goal::Money => self.tco <= self.budget,
            Goal::Time => (self.budget - self.tco) * self.lambda <= little,
        }
    }

    /// Makes changes that help and hurt no other goal, cheapest first, until the goal is met.
    fn round(&mut self, goal: Goal) {
        let whole = match goal {
            Goal::Room(_) | Goal::Money => f64::INFINITY,
            // Beyond that a byte of room or a unit of time is not worth what it costs.
            Goal::Full(at) => self.priced.prices[at],
            Goal::Time => 1.0,
        };
        let price = match goal {
            Goal::Room(at) | Goal::Full(at) => self.priced.prices[at],
            Goal::Money => self.lambda,
            Goal::Time => 1.0,
        };
        for (dearest, is_narrow) in [(NARROW * price, true), (whole, false)] {
            if self.is_met(goal) {
                return;
            }
            self.candidates.clear();
            if is_narrow {
                let near = core::mem::take(&mut self.near);
                self.collect(goal, dearest, near.iter().map(|&item| item as usize));
                self.near = near;
            } else {
                self.collect(goal, dearest, 0..self.choice.len());
            }
            let mut candidates = core::mem::take(&mut self.candidates);
            // Mostly few of them are needed: the cheapest first, then twice as many each time.
            let (mut rest, mut count) = (&mut candidates[..], FIRST_SORTED);
            while !rest.is_empty() && !self.is_met(goal) {
                if count < rest.len() {
                    rest.select_nth_unstable_by(count, Candidate::order);
                }
                let (cheapest, dearer) = rest.split_at_mut(count.min(rest.len()));
                cheapest.sort_unstable_by(Candidate::order);
                for candidate in &*cheapest {
                    if self.is_met(goal) {
                        break;
                    }
                    let (item, to) = (candidate.item as usize, usize::from(candidate.option));
                    if self.helps(goal, item, to) && self.fits(goal, item, to) {
                        self.change(item, to);
                    }
                }
                (rest, count) = (dearer, 2 * count);
            }
            self.candidates = candidates;
        }
    }

    fn collect(&mut self, goal: Goal, dearest: f64, items: impl Iterator<Item = usize>) {
        let (mut perf, mut tco) = ([0.0; MAX_TIERS], [0.0; MAX_TIERS]);
        let options = self.costs.options();
        for item in items {
            let from = usize::from(self.choice[item]);
            match goal {
                Goal::Room(at) if !self.limits[at].counts(from) => continue,
                Goal::Full(at) if self.limits[at].counts(from) => continue,
                _ => {}
            }
            self.costs.row(item, &mut perf, &mut tco);
            let reduced = |option: usize| {
                perf[option] + self.lambda * tco[option] + self.priced.of_bytes(item, option)
            };
            let before = reduced(from);
            for to in (0..options).filter(|&to| to != from) {
                let gain = match goal {
                    Goal::Room(at) if self.limits[at].counts(to) => continue,
                    Goal::Full(at) if !self.limits[at].counts(to) => continue,
                    Goal::Room(_) => self.costs.bytes(item, from),
                    Goal::Full(_) => self.costs.bytes(item, to),
                    Goal::Money => tco[from] - tco[to],
                    Goal::Time => perf[from] - perf[to],
                };
                let rate = (reduced(to) - before) / gain;
                if gain > 0.0 && rate <= dearest && self.fits(goal, item, to) {
                    self.candidates.push(Candidate { rate, item: item as u32, option: to as u8 });
                }
            }
        }
    }

    /// Whether the change brings the goal nearer.
    fn helps(&self, goal: Goal, item: usize, to: usize) -> bool {
        let from = usize::from(self.choice[item]);
        match goal {
            Goal::Room(at) => self.limits[at].counts(from) && !self.limits[at].counts(to),
            Goal::Full(at) => !self.limits[at].counts(from) && self.limits[at].counts(to),
            Goal::Money => self.costs.tco(item, to) < self.costs.tco(item, from),
            Goal::Time => self.costs.perf(item, to) < self.costs.perf(item, from),
        }
    }

    /// Whether the change keeps what is kept: limits always, and the budget while time is bought.
    fn fits(&self, goal: Goal, item: usize, to: usize) -> bool {
        let from = usize::from(self.choice[item]);
        let grows = self.costs.tco(item, to) - self.costs.tco(item, from);
        if goal == Goal::Time && self.tco + grows > self.budget {
            return false;
        }
        let (out, into) = (self.costs.bytes(item, from), self.costs.bytes(item, to));
        self.limits.iter().zip(&self.used).all(|(limit, used)| {
            let change = if limit.counts(to) { into } else { 0.0 }
                - if limit.counts(from) { out } else { 0.0 };
            change <= 0.0 || used + change <= limit.most()
        })
    }

    fn change(&mut self, item: usize, to: usize) {
        let from = usize::from(self.choice[item]);
        self.perf += self.costs.perf(item, to) - self.costs.perf(item, from);
        self.tco += self.costs.tco(item, to) - self.costs.tco(item, from);
        for (limit, used) in self.limits.iter().zip(&mut self.used) {
            if limit.counts(from) {
                *used -= self.costs.bytes(item, from);
            }
            if limit.counts(to) {
                *used += self.costs.bytes(item, to);
            }
        }
        self.choice[item] = to as u8;
    }
}
