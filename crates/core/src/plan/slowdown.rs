//! The slowdown policy: the cheapest placement under which the application is at most so much
//! slower.
//!
//! Nobody can guess a knob for a program they did not write, but everybody can say what slowdown
//! they accept. The problem is that of [`super::analytical`] with time and money in each other's
//! places:
//!
//! ```text
//! minimise    money of the placement
//! subject to  time in its faults, and in the moves that lead to it  <=  budget of time
//! ```
//!
//! # The budget of time
//!
//! In a window the application's threads ran for `running_ns` (on processors, all together) and
//! waited for pages for `stalled_ns`; the runtime took `taken_ns` of processor time that the
//! application could have used. Its slowdown is `(stalled + taken) / running`. The budget for the
//! next window is the share that was asked for, of the running time that is usual of late, times
//! a *trim* that is 1 as long as all goes well.
//!
//! Of the least money under it, that is. What is accepted need not be used: time that saves hardly
//! anything ([`WORTH_OF_TIME`]) is not lost. The more is accepted, the less time must save.
//!
//! # What makes expectation and truth agree
//!
//! - *Faults.* The expected number is corrected by the factor `k` of equation 8 (1 in the paper),
//!   learnt as real faults over expected ones ([`super::correction`]).
//! - *Rising regions.* Hotness is an average of four windows. What the last window says of a region
//!   in a tier is exact (every touch is a fault), so that there it counts alone when it is far
//!   above.
//! - *Chance.* What looks coldest of what is known by a few samples is what chance has hidden. By
//!   how much is learnt from what regions do in their first window in a tier ([`hidden`]), and a
//!   region in a tier, of which it is known, is not brought home for one that only looks better
//!   ([`exchange`]).
//! - *What came back.* A region that has been in a tier for long has told what it costs there,
//!   where hotness counts what is home and in use as if it were to fault ([`expect`]).
//! - *Bursts.* A single window that stands out and is over does not count in that average, but in
//!   the mean of many windows, which is the least that is expected; and far more faults than
//!   expected, once, say nothing against expectations. After a window that broke the budget with
//!   them regions count as they did before it ([`super::burst`]).
//! - *Setbacks.* What came back as soon as it was taken down counts as in full use for a while
//!   ([`crate::setback`]). What comes back of a region that stays down waits at home while it is
//!   used again and that is dearer than its place ([`stay`]).
//! - *Breaking the budget.* A window that lost a fifth more than was accepted cuts the trim at once
//!   by as much as it was over, to 0.8 at most, and nothing is taken down in the next window. That
//!   one and its successor, in which what was put off is made up for, are judged together. After
//!   all others the trim falls by a share of what was lost beyond, or rises again by a tenth.
//! - *Debt.* What was lost beyond what is accepted is remembered until it is paid, and while it is,
//!   regions count for what they were touched in many windows ([`super::ledger`]).
//! - *Moves.* Taking a page down costs processor time now and saves money later. A plan may spend
//!   on moves what its expected faults leave of the budget; those that save most come first, the
//!   rest waits for the next window. A region is moved whole or not at all: where the budget is
//!   worth less than two regions, what a window had left for moves while some waited is added to
//!   the next one's, up to a region. Else a small program would never give one away. Pages that
//!   came back and go down again count like all others, and wait when there is no time for them.
//!   After a burst a window may spend a little more on moves than it has. How much longer than
//!   thought moves take is learnt from how the processor time of windows changes ([`moving`]).
//!   Where not all demotions fit, a page in memory goes to a tier that saves twice as much for its
//!   time than the one chosen, and moves on later ([`pace`]).
//! - *Moving on.* From a tier to a denser one little is saved for the time it takes, but for long.
//!   A region that has been in tiers for many windows is expected to stay for as many, so that
//!   going on costs little in each ([`Model::lasts`]); and such moves may take a part of their own
//!   beyond a window's budget, which later windows pay back.
//! - *Promotions.* Bringing a region home takes its time at once, and its faults come one by one.
//!   It happens if one window of faults would cost more. What is touched comes home by itself.
//!
//! # Processor time
//!
//! What faults and moves take of a processor is on the bill at the price of a core, also where
//! nobody waits for it ([`Slowdown::with_core_price`]): a move that costs more than it saves is not
//! made.
//!
//! # Rest
//!
//! A move counts in the budget with its share of the stay (`STAY_WINDOWS` of the analytical
//! policy), and must save at least [`WORTH`] of a page's price in DRAM. Without the
//! second, regions that no fault ever touches would change between two tiers of one price with
//! every change of a measured ratio.

mod exchange;
mod expect;
pub(super) mod hidden;
mod home;
mod moving;
mod pace;
mod stay;
#[cfg(test)]
mod stay_tests;
mod worth;

use super::analytical::{self, Expected};
use super::burst::Burst;
use super::correction::{Correction, FAULTS_MIN};
use super::ledger::Ledger;
use super::limits::{Limit, Limited, Swapped};
use super::mckp::Choices;
use super::{model, terms, Measured, Model, Plan, Policy, RegionChoices, RegionView, Terms, Why};
use crate::cost::TierCost;
use crate::tier::{TierId, MAX_TIERS};
use exchange::Exchanges;
use hidden::Hidden;
use home::Habit;
use moving::Moving;
use pace::{Down, Time};
pub use stay::Stay;
use worth::Worth;

/// Slowdown that `terrace run` accepts unless told otherwise, as a share.
pub const SLOWDOWN_DEFAULT: f64 = 0.05;

/// Part of the budget that plans use. What comes is scattered around what was expected, and the
/// promise is of what comes.
const USED_SHARE: f64 = 0.9;

/// What a broken budget leaves of the trim at least. A kept one lowers it by its distance from what
/// is aimed at, times the gain, or raises it, by so much at most; not at all while that is little,
/// or a plan would never rest. (What adds up of it is for the ledger: a debt lowers the aim.)
const BACK_OFF: f64 = 0.8;
const TRIM_GAIN: f64 = 0.25;
const TRIM_STEP: f64 = 0.1;
const TRIM_REST: f64 = 0.1;
/// Lost time by accepted time from which the budget counts as broken, not only met.
const BROKEN: f64 = 1.2;
const TRIM_MIN: f64 = 1.0 / 64.0;

/// Weight of the newest window in what counts as usual running time.
const RUNNING_WEIGHT: f64 = 0.25;

/// Least that a demotion or a change between tiers must save, as a share of a page's price in DRAM.
const WORTH: f64 = 0.02;

/// What lost time must save to be worth it: this share of the money for all memory, for as much
/// time as threads run. A per cent of slowdown that saves a fifth of a per cent of the memory is
/// not worth having: a machine costs at least twice what its memory does.
const WORTH_OF_TIME: f64 = 0.2;
/// Accepted slowdown up to which that holds. Who accepts more says that time is cheaper to them, so
/// that it must save proportionally less: all that is accepted together, at the price of its last
/// part, 2 % of the memory, however much it is.
pub const TIME_IS_DEAR_UP_TO: f64 = 0.1;

/// What all that is lost must save on average to be worth it. Where it saves less, each part of it
/// must save as much, until everything with a fifth of a per cent would save half as much again on
/// average: a program that has next to nothing that is cold is left alone, not made to pay for the
/// little there is.
const WORTH_ON_AVERAGE: f64 = 0.5;
const WORTH_AGAIN: f64 = 0.75;

/// Least share of the movers' time that counts when moves are weighed.
const CONTENTION_MIN: f64 = 0.1;

/// Windows over which is paid back what moves from tier to tier took beyond a budget.
const OWED_WINDOWS: f64 = 8.0;

/// Windows after a broken budget in which nothing is taken down, what came back included: the
/// application just said that it needs these pages.
const PAUSE_WINDOWS: u32 = 1;

/// The policy; see the head of the file.
#[derive(Debug)]
pub struct Slowdown {
    target: f64,
    residence_windows: f64,
    stay: Stay,
    usd_per_cpu_ns: f64,
    limits: Vec<Limit>,
    solver: Limited,
    /// Usual running time of a window, once one was measured.
    running_ns: Option<f64>,
    /// How much of a nanosecond of the runtime's processor time the application would have used.
    contention: f64,
    trim: f64,
    correction: Correction,
    hidden: Hidden,
    /// Faults that are expected for each that is told of a region ([`expect`]).
    told_share: f64,
    ledger: Ledger,
    burst: Burst,
    pause: u32,
    /// What the window of the last pause lost, by what was accepted, until the next one is judged.
    paused_over: Option<f64>,
    /// Time for moves that the windows before had left.
    unspent_ns: f64,
    /// Time for moves of the last plan beyond the budget of its window.
    beyond_ns: f64,
    /// What moves from tier to tier took beyond it and later windows have yet to pay back, in
    /// budgets of a window: as time it would leave a program that goes to sleep none for hours.
    owed: f64,
    moving: Moving,
    habit: Habit,
    worth: Worth,
    /// Slowdown of the newest window, as a share, and its faults.
    newest: f64,
    faults: f64,
    /// Whether each part of the time must save what is asked for on average.
    is_strict: bool,
    known: Vec<u32>,
    current: Vec<u8>,
    /// What to expect of the known regions: of the next window, uncorrected, and in the long run.
    soon: Vec<Expected>,
    /// Faults of the next window, corrected.
    next: Vec<f64>,
    expected: Vec<Expected>,
    calm: Vec<f64>,
    down: Down,
    exchanges: Exchanges,
}

impl Slowdown {
    /// A policy that accepts this slowdown, a share (0.05 for 5 %), cut to 0 to 10. Not a number
    /// counts as 0: nothing is ever demoted.
    pub fn new(target: f64) -> Slowdown {
        Slowdown {
            target: if target.is_nan() { 0.0 } else { target.clamp(0.0, 10.0) },
            residence_windows: 0.0,
            stay: Stay::NEVER,
            usd_per_cpu_ns: 0.0,
            limits: Vec::new(),
            solver: Limited::default(),
            running_ns: None,
            contention: 1.0,
            trim: 1.0,
            correction: Correction::default(),
            hidden: Hidden::default(),
            told_share: 1.0,
            ledger: Ledger::default(),
            burst: Burst::default(),
            pause: 0,
            paused_over: None,
            unspent_ns: 0.0,
            beyond_ns: 0.0,
            owed: 0.0,
            moving: Moving::default(),
            habit: Habit::default(),
            worth: Worth::default(),
            newest: 0.0,
            faults: 0.0,
            is_strict: false,
            known: Vec::new(),
            current: Vec::new(),
            soon: Vec::new(),
            next: Vec::new(),
            expected: Vec::new(),
            calm: Vec::new(),
            down: Down::default(),
            exchanges: Exchanges::default(),
        }
    }

    /// The same, told for how many windows movers leave a page alone that faulted back.
    pub fn with_residence(self, windows: f64) -> Slowdown {
        let residence_windows = if windows.is_finite() { windows.max(0.0) } else { 0.0 };
        Slowdown { residence_windows, ..self }
    }

    /// The same, told what a core costs, in US dollars per month, and how long a window is, in
    /// seconds: processor time is then on the bill, whoever waits for it. Otherwise it is free.
    pub fn with_core_price(self, usd_per_core_month: f64, window_s: f64) -> Slowdown {
        let usd = model::usd_per_cpu_ns(usd_per_core_month, window_s);
        Slowdown { usd_per_cpu_ns: if usd.is_finite() { usd.max(0.0) } else { 0.0 }, ..self }
    }

    /// The same within these limits.
    pub fn with_limits(self, limits: Vec<Limit>) -> Slowdown {
        Slowdown { limits, ..self }
    }

    /// The slowdown that is accepted, as a share.
    pub fn target(&self) -> f64 {
        self.target
    }

    /// The correction of expected faults, `k` of equation 8.
    pub fn correction(&self) -> f64 {
        self.correction.k()
    }

    /// Share of the budget that is in use: 1 unless it was broken of late.
    pub fn trim(&self) -> f64 {
        self.trim
    }

    /// Time for moves that the windows before had left, in nanoseconds.
    #[cfg(test)]
    pub(super) fn unspent_ns(&self) -> f64 {
        self.unspent_ns
    }

    /// What lost time must save, share by share, by what it must where little of it is accepted.
    fn worth_of_time(&self, where_dear: f64) -> f64 {
        where_dear * (TIME_IS_DEAR_UP_TO / self.target).min(1.0)
    }

    /// Time for faults and moves in the next window, in nanoseconds; none before anything was
    /// measured.
    fn budget_ns(&self) -> f64 {
        let share = self.target * self.trim * self.ledger.part() * USED_SHARE;
        self.running_ns.map_or(0.0, |running| running * share)
    }

    fn take_in(&mut self, measured: &Measured) {
        let running = measured.running_ns.max(0.0);
        let lost = measured.stalled_ns + measured.taken_ns();
        self.contention = measured.contention.clamp(0.0, 1.0);
        self.faults = measured.faults;
        self.newest = if running > 0.0 { lost / running } else { 0.0 };
        self.running_ns = Some(match self.running_ns {
            None => running,
            // A window of little work must not let the next one stall as a busy one might.
            Some(usual) => running.min(usual + RUNNING_WEIGHT * (running - usual)),
        });

        let over = lost / (running * self.target).max(1.0);
        self.ledger.book(over);
        self.habit.note(over);
        // What was spent on purpose is owed, and says nothing against the plan.
        let over = (lost - self.beyond_ns).max(0.0) / (running * self.target).max(1.0);
        let is_much = |over: f64| over > BROKEN && measured.faults > FAULTS_MIN;
        let judged = match self.paused_over.take() {
            // What a pause put off comes in the window after it: together they are as they are.
            Some(paused) => (paused + over) / 2.0,
            None => over,
        };
        if self.pause > 0 && !is_much(over) {
            // Nothing was taken down in this one.
            self.paused_over = Some(over);
            self.pause -= 1;
        } else if is_much(judged) {
            self.trim = (self.trim * (1.0 / judged).max(BACK_OFF)).max(TRIM_MIN);
            self.pause = PAUSE_WINDOWS;
        } else {
            // Without faults there is nothing that less of a budget would spare.
            let least = if measured.faults > FAULTS_MIN { -TRIM_STEP } else { 0.0 };
            let off = self.ledger.aim() - judged;
            let step = match off {
                off if off.abs() < TRIM_REST => 0.0,
                off if off > 0.0 => TRIM_STEP,
                off => (TRIM_GAIN * off).max(least),
            };
            self.trim = (self.trim + step).clamp(TRIM_MIN, 1.0);
            self.pause = 0;
        }
        self.correction.learn(measured.faults);
        self.burst.note(is_much(over) && self.correction.is_event());
        self.moving.learn(measured);
    }
}

/// What a placement saves, in US dollars per month, and the time it costs in a window.
fn saved_and_lost(choices: &RegionChoices, choice: &[u8]) -> (f64, f64) {
    let (mut saved, mut lost) = (0.0, 0.0);
    for (item, &option) in choice.iter().enumerate().filter(|(_, &option)| option != 0) {
        saved += choices.tco(item, 0) - choices.tco(item, usize::from(option));
        lost += choices.perf(item, usize::from(option));
    }
    (saved, lost)
}

/// Equations 8 and 12 for this policy: a change that is not a promotion must be worth its while.
struct Steady<'a> {
    choices: RegionChoices<'a>,
    current: &'a [u8],
    /// What a change must save in a region, in US dollars per month.
    worth: &'a dyn Fn(usize) -> f64,
    /// What lost time must save, in US dollars per month for a nanosecond in every window.
    usd_per_ns: f64,
}

impl Choices for Steady<'_> {
    fn items(&self) -> usize {
        self.choices.items()
    }
    fn options(&self) -> usize {
        self.choices.options()
    }
    fn perf(&self, item: usize, option: usize) -> f64 {
        self.choices.perf(item, option)
    }
    fn tco(&self, item: usize, option: usize) -> f64 {
        let stays = option == 0 || usize::from(self.current[item]) == option;
        let worth = if stays { 0.0 } else { (self.worth)(item) };
        let lost = self.choices.perf(item, option) - self.choices.once_ns(item, option);
        self.choices.tco(item, option) + worth + lost * self.usd_per_ns
    }
    fn bytes(&self, item: usize, option: usize) -> f64 {
        self.choices.bytes(item, option)
    }
    fn row(&self, item: usize, perf: &mut [f64; MAX_TIERS], tco: &mut [f64; MAX_TIERS]) {
        self.choices.row(item, perf, tco);
        let worth = (self.worth)(item);
        for (option, tco) in tco.iter_mut().enumerate().take(self.options()) {
            *tco += (perf[option] - self.choices.once_ns(item, option)) * self.usd_per_ns;
            if option != 0 && usize::from(self.current[item]) != option {
                *tco += worth;
            }
        }
    }
}

impl Policy for Slowdown {
    fn learn(&mut self, measured: &Measured) {
        self.take_in(measured);
    }

    fn plan(&mut self, regions: &[RegionView], tiers: &[TierCost]) -> Plan {
        let tiers = &tiers[..tiers.len().min(MAX_TIERS)];
        if regions.is_empty() || tiers.len() < 2 {
            return Plan::empty(regions, tiers, Why::NothingToPlan);
        }
        let mut down = core::mem::take(&mut self.down);
        let mut to: Vec<u8> = regions.iter().map(|region| region.tier_index(tiers)).collect();
        self.known.clear();
        self.known.extend((0..regions.len() as u32).filter(|&i| regions[i as usize].is_known()));
        let id = |index: &u32| regions[*index as usize].id;
        if !self.known.is_sorted_by_key(id) {
            self.known.sort_unstable_by_key(id);
        }
        self.current.clear();
        self.current.extend(self.known.iter().map(|&index| to[index as usize]));
        let k = self.correction.k();
        self.hidden.learn(regions);
        if let Some(running_ns) = self.running_ns {
            let least = self.worth_of_time(WORTH_ON_AVERAGE);
            self.worth.learn(regions, tiers, (running_ns, self.faults), least);
        }
        self.expect(regions);
        // Even where processors idle a move is not nothing: what moves to and fro is not settled.
        let contention = self.contention.max(CONTENTION_MIN);
        let model = Model {
            residence_windows: self.residence_windows,
            usd_per_cpu_ns: self.usd_per_cpu_ns,
            usd_per_move_ns: self.usd_per_cpu_ns * self.moving.longer(),
            contention,
            moves_alike: false,
            lasts: true,
        };
        let choices =
            RegionChoices::new(regions, &self.known, &self.current, &self.expected, tiers, model);
        let dram_usd = tiers[0].usd_per_page_month() * WORTH;
        let known = &self.known;
        let worth = |item: usize| f64::from(regions[known[item] as usize].pages) * dram_usd;
        let pages: f64 = regions.iter().map(|region| f64::from(region.pages)).sum();
        let all_usd = pages * tiers[0].usd_per_page_month();
        let running = self.running_ns.filter(|running| *running > 0.0);
        let time_usd = |worth: f64| running.map_or(0.0, |running| worth * all_usd / running);
        let worth_of = |worth_of_time: f64| {
            let usd_per_ns = time_usd(worth_of_time);
            Steady { choices, current: &self.current, worth: &worth, usd_per_ns }
        };
        let of_time = self.worth_of_time(WORTH_OF_TIME);
        let mut steady = worth_of(of_time);
        let repaid = self.owed / OWED_WINDOWS;
        let full = self.budget_ns();
        let budget = full * (1.0 - repaid);
        let limits = analytical::left_by_pinned(&self.limits, regions, tiers, &to);
        let mut answer = self.solver.solve(&Swapped(&steady), &limits, budget, &self.current);
        let (saved_usd, lost_ns) = saved_and_lost(&choices, &answer.solution.choice);
        let on_average = self.worth_of_time(WORTH_ON_AVERAGE);
        let least = if self.is_strict { self.worth_of_time(WORTH_AGAIN) } else { on_average };
        self.is_strict = saved_usd < lost_ns * time_usd(least) || self.worth.is_doubted();
        let demanded = on_average * self.worth.demand();
        if self.is_strict {
            steady = worth_of(demanded);
            answer = self.solver.solve(&Swapped(&steady), &limits, budget, &self.current);
        }
        let usd_per_ns = steady.usd_per_ns;
        if answer.solution.feasible {
            self.stay.learn(usd_per_ns + answer.solution.lambda);
        }
        // Time and money have changed places: lambda is money for time, beyond what it must save.
        let priced = |lambda: f64| terms::price(usd_per_ns + lambda);
        let priced = answer.solution.feasible.then(|| priced(answer.solution.lambda));
        let mut choice = answer.solution.choice;
        self.leave_down(regions, tiers, model, &mut down, &mut choice);
        let mut exchanges = core::mem::take(&mut self.exchanges);
        let kept = self.leave_known(tiers, &choices, &mut exchanges, &mut choice);

        let time = Time::new(budget, self.contention);
        let paced = self.pace(regions, tiers, &steady, time, &mut down, &mut choice);
        for (&index, &option) in self.known.iter().zip(&choice) {
            to[index as usize] = option;
        }
        let chosen =
            || choice.iter().enumerate().map(|(item, &option)| (item, usize::from(option)));
        let faults: f64 = chosen().map(|(i, j)| choices.faults(i, j)).sum();
        let money: f64 = chosen().map(|(i, j)| choices.tco(i, j)).sum();
        let pinned = regions.iter().zip(&to).filter(|(region, _)| !region.is_known());
        let pinned: f64 = pinned
            .map(|(r, &t)| f64::from(r.pages) * tiers[usize::from(t)].usd_per_page_month())
            .sum();
        let tco_min = choices.tco_min() + pinned;
        let why = Why::WithinSlowdown {
            target: self.target,
            newest: self.newest,
            budget_ns: budget,
            trim: self.trim,
            correction: k,
            waiting: paced.waiting,
            kept,
            hidden_pages: self.hidden.pages_on_average(),
            demand: self.worth.demand(),
            burst: self.burst.seen(),
            worth: if self.is_strict { demanded } else { of_time },
            is_spent: answer.solution.lambda > 0.0 || !answer.solution.feasible,
            gap: answer.solution.gap_to_lp,
        };
        let mut plan = Plan::to_tiers(regions, tiers, &to, why);
        if self.pause > 0 {
            plan.moves.retain(|m| m.to == TierId::DRAM);
        }
        plan.moves.retain(|m| m.from != m.to || down.held.binary_search(&m.region).is_err());
        let (mut planned_pages, mut planned_ns) = (0.0, 0.0);
        for m in &plan.moves {
            let pages = f64::from(regions[m.region as usize].pages_to_carry(m.to));
            planned_pages += pages;
            planned_ns += pages * tiers[m.to.index()].move_ns;
        }
        self.moving.plan(planned_pages, planned_ns);
        let next = chosen().map(|(item, tier)| self.faults_soon(regions, &down, item, tier)).sum();
        self.correction.expect(next, true);
        (self.down, self.exchanges) = (down, exchanges);
        self.unspent_ns = paced.unspent_ns;
        self.beyond_ns = paced.beyond_ns + paced.onward_ns;
        // At most ONWARD is added and an eighth paid: never more than can be paid.
        self.owed += paced.onward_ns / full.max(1.0) - repaid;
        plan.expected_faults = faults;
        plan.expected_perf_ns = paced.stalled_ns;
        plan.expected_tco = money + pinned;
        plan.tco_min = tco_min;
        plan.terms = Terms {
            model,
            correction: k,
            newest_counts: true,
            told_share: Some(self.told_share),
            as_long: self.as_long(),
            hidden_pages: match self.worth.is_doubted() {
                true => self.hidden.pages_on_average(),
                false => 0.0,
            },
            stay: self.stay,
            worth: WORTH,
            usd_per_ns: priced.flatten(),
        };
        plan
    }
}

impl Slowdown {
    /// Faults of an item that a window is held against which begins with this plan. Not what a debt
    /// makes of them; and what is in memory when it begins, and stays there, does not fault.
    fn faults_soon(&self, regions: &[RegionView], down: &Down, item: usize, tier: usize) -> f64 {
        if tier == 0 {
            return 0.0;
        }
        let region = &regions[self.known[item] as usize];
        let soon = self.soon[item];
        let is_held = down.held.binary_search(&self.known[item]).is_ok();
        let home = if is_held { region.resident } else { region.cooling };
        let pages = f64::from(region.pages);
        let share = (pages - f64::from(home)) / (pages - soon.back).max(1.0);
        soon.faults * share.clamp(0.0, 1.0)
    }
}
