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
//! # What makes expectation and truth agree
//!
//! - *Faults.* The expected number is corrected by the factor `k` of equation 8 (1 in the paper),
//!   learnt as real faults over expected ones: at most doubled in a window, and lowered by a
//!   quarter of the way.
//! - *Rising regions.* Hotness is an average of four windows. What the last window says of a region
//!   in a tier is exact (every touch is a fault), so that there it counts alone when it is far
//!   above.
//! - *Breaking the budget.* A window over what was accepted cuts the trim at once by as much as it
//!   was over, to half at most; over by a fifth, nothing is taken down in the next window either.
//!   Every window within it raises the trim by a tenth. The asymmetry is that of Senpai: too little
//!   saved costs money, too much costs a promise.
//! - *Moves.* Taking a page down costs processor time now and saves money later. A plan may spend
//!   on moves what its expected faults leave of the budget; those that save most come first, the
//!   rest waits for the next window. Promotions always happen.
//!
//! # Rest
//!
//! A move counts in the budget with its share of the stay (`STAY_WINDOWS` of the analytical
//! policy), and must save at least [`WORTH`] of a page's price in DRAM. Without the
//! second, regions that no fault ever touches would change between two tiers of one price with
//! every change of a measured ratio.

use super::analytical::{Expected, Model, MOVE_NS_PER_PAGE};
use super::limits::{Limit, Limited, Swapped};
use super::mckp::Choices;
use super::{Measured, Plan, Policy, RegionChoices, RegionView, Why};
use crate::cost::TierCost;
use crate::tier::{TierId, MAX_TIERS};

/// Slowdown that `terrace run` accepts unless told otherwise, as a share.
pub const SLOWDOWN_DEFAULT: f64 = 0.05;

/// Part of the budget that plans use. What comes is scattered around what was expected, and the
/// promise is of what comes.
const USED_SHARE: f64 = 0.85;

/// What a broken budget leaves of the trim at least, and what a kept one adds.
const BACK_OFF: f64 = 0.5;
const RECOVERY: f64 = 0.1;
/// Lost time by accepted time from which the budget counts as broken, not only met.
const BROKEN: f64 = 1.2;
const TRIM_MIN: f64 = 1.0 / 64.0;

/// Range of the correction of expected faults.
const K_MIN: f64 = 0.25;
const K_MAX: f64 = 16.0;
/// Share of the way that the correction falls in a window.
const K_FALL: f64 = 0.25;
/// Faults in a window below which their number says nothing about the correction.
const K_FAULTS_MIN: f64 = 64.0;

/// Weight of the newest window in what counts as usual running time.
const RUNNING_WEIGHT: f64 = 0.25;

/// Least that a demotion or a change between tiers must save, as a share of a page's price in DRAM.
const WORTH: f64 = 0.02;

/// Least share of the movers' time that counts when moves are weighed.
const CONTENTION_MIN: f64 = 0.1;

/// Least share of the movers' time that counts when a window's moves are counted: with processors
/// idle, 40 ms of budget are 390 MiB.
const PACE_MIN: f64 = 0.02;

/// The newest window counts instead of the average where it is so much above it: beyond the
/// scatter of touches, which would make every region look like its busiest window.
const RISING: f32 = 2.0;
const RISING_PAGES: f32 = 16.0;

/// Windows after a broken budget in which nothing is taken down, what came back included: the
/// application just said that it needs these pages.
const PAUSE_WINDOWS: u32 = 1;

/// The policy; see the head of the file.
#[derive(Debug)]
pub struct Slowdown {
    target: f64,
    residence_windows: f64,
    limits: Vec<Limit>,
    solver: Limited,
    /// Usual running time of a window, once one was measured.
    running_ns: Option<f64>,
    /// How much of a nanosecond of the runtime's processor time the application would have used.
    contention: f64,
    trim: f64,
    k: f64,
    pause: u32,
    /// Slowdown of the newest window, as a share.
    newest: f64,
    /// Faults that the last plan expected, uncorrected.
    expected_faults: Option<f64>,
    known: Vec<u32>,
    current: Vec<u8>,
    expected: Vec<Expected>,
    /// Demotions of a plan, with what each saves a page.
    demotions: Vec<(f64, u32)>,
}

impl Slowdown {
    /// A policy that accepts this slowdown, a share (0.05 for 5 %), cut to 0 to 10. Not a number
    /// counts as 0: nothing is ever demoted.
    pub fn new(target: f64) -> Slowdown {
        Slowdown {
            target: if target.is_nan() { 0.0 } else { target.clamp(0.0, 10.0) },
            residence_windows: 0.0,
            limits: Vec::new(),
            solver: Limited::default(),
            running_ns: None,
            contention: 1.0,
            trim: 1.0,
            k: 1.0,
            pause: 0,
            newest: 0.0,
            expected_faults: None,
            known: Vec::new(),
            current: Vec::new(),
            expected: Vec::new(),
            demotions: Vec::new(),
        }
    }

    /// The same, told for how many windows a page that faulted back stays in DRAM.
    pub fn with_residence(self, windows: f64) -> Slowdown {
        let residence_windows = if windows.is_finite() { windows.max(0.0) } else { 0.0 };
        Slowdown { residence_windows, ..self }
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
        self.k
    }

    /// Share of the budget that is in use: 1 unless it was broken of late.
    pub fn trim(&self) -> f64 {
        self.trim
    }

    /// Time for faults and moves in the next window, in nanoseconds; none before anything was
    /// measured.
    fn budget_ns(&self) -> f64 {
        self.running_ns.map_or(0.0, |running| running * self.target * self.trim * USED_SHARE)
    }

    fn take_in(&mut self, measured: &Measured) {
        let running = measured.running_ns.max(0.0);
        let lost = measured.stalled_ns + measured.taken_ns();
        self.contention = measured.contention.clamp(0.0, 1.0);
        self.newest = if running > 0.0 { lost / running } else { 0.0 };
        self.running_ns = Some(match self.running_ns {
            None => running,
            // A window of little work must not let the next one stall as a busy one might.
            Some(usual) => running.min(usual + RUNNING_WEIGHT * (running - usual)),
        });

        let over = lost / (running * self.target).max(1.0);
        if over > 1.0 && measured.faults > K_FAULTS_MIN {
            self.trim = (self.trim * (1.0 / over).max(BACK_OFF)).max(TRIM_MIN);
        } else {
            self.trim = (self.trim + RECOVERY).min(1.0);
        }
        let is_broken = over > BROKEN && measured.faults > K_FAULTS_MIN;
        self.pause = if is_broken { PAUSE_WINDOWS } else { self.pause.saturating_sub(1) };
        if let Some(expected) = self.expected_faults {
            let seen = (measured.faults / expected.max(K_FAULTS_MIN)).clamp(K_MIN, K_MAX);
            if seen > self.k {
                self.k = seen.min(2.0 * self.k);
            } else if expected > K_FAULTS_MIN {
                self.k += (seen - self.k) * K_FALL;
            } else {
                self.k += (1.0 - self.k).min(0.0) * K_FALL;
            }
        }
    }

    /// Hotness for this policy; see the head.
    fn hotness(region: &RegionView) -> f64 {
        let average = region.hotness_usable();
        let rising = region.tier != TierId::DRAM && region.newest > RISING * average + RISING_PAGES;
        let hotness = if rising { region.newest.min(region.pages as f32) } else { average };
        f64::from(hotness)
    }
}

/// What there is to spend in a window.
#[derive(Clone, Copy)]
struct Time {
    /// Nanoseconds for faults and moves.
    budget: f64,
    /// Share of the movers' time that counts.
    contention: f64,
}

/// Equations 8 and 12 for this policy: a change that is not a promotion must be worth its while.
struct Steady<'a> {
    choices: RegionChoices<'a>,
    current: &'a [u8],
    /// What a change must save in a region, in US dollars per month.
    worth: &'a dyn Fn(usize) -> f64,
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
        self.choices.tco(item, option) + if stays { 0.0 } else { (self.worth)(item) }
    }
    fn bytes(&self, item: usize, option: usize) -> f64 {
        self.choices.bytes(item, option)
    }
    fn row(&self, item: usize, perf: &mut [f64; MAX_TIERS], tco: &mut [f64; MAX_TIERS]) {
        self.choices.row(item, perf, tco);
        let worth = (self.worth)(item);
        for (option, tco) in tco.iter_mut().enumerate().take(self.options()).skip(1) {
            if usize::from(self.current[item]) != option {
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
        let mut demotions = core::mem::take(&mut self.demotions);
        let mut to: Vec<u8> = regions.iter().map(|region| region.tier_index(tiers)).collect();
        self.known.clear();
        self.known.extend((0..regions.len() as u32).filter(|&i| regions[i as usize].is_known()));
        let id = |index: &u32| regions[*index as usize].id;
        if !self.known.is_sorted_by_key(id) {
            self.known.sort_unstable_by_key(id);
        }
        self.current.clear();
        self.current.extend(self.known.iter().map(|&index| to[index as usize]));
        self.expected.clear();
        for &index in &self.known {
            let region = &regions[index as usize];
            let hotness = Slowdown::hotness(region);
            let one = Expected::of(hotness, f64::from(region.pages), self.residence_windows);
            self.expected.push(Expected { faults: one.faults * self.k, ..one });
        }
        // Even where processors idle a move is not nothing: what moves to and fro is not settled.
        let contention = self.contention.max(CONTENTION_MIN);
        let model =
            Model { residence_windows: self.residence_windows, usd_per_cpu_ns: 0.0, contention };
        let choices =
            RegionChoices::new(regions, &self.known, &self.current, &self.expected, tiers, model);
        let dram_usd = tiers[0].usd_per_page_month() * WORTH;
        let known = &self.known;
        let worth = |item: usize| f64::from(regions[known[item] as usize].pages) * dram_usd;
        let steady = Steady { choices, current: &self.current, worth: &worth };
        let budget = self.budget_ns();
        let limits = super::analytical::left_by_pinned(&self.limits, regions, tiers, &to);
        let answer = self.solver.solve(&Swapped(&steady), &limits, budget, &self.current);
        let mut choice = answer.solution.choice;

        let time = Time { budget, contention: self.contention.max(PACE_MIN) };
        let (waiting, expected_ns) = self.pace(regions, &steady, time, &mut demotions, &mut choice);
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
            correction: self.k,
            waiting,
            gap: answer.solution.gap_to_lp,
        };
        let mut plan = Plan::to_tiers(regions, tiers, &to, why);
        if self.pause > 0 {
            plan.moves.retain(|m| m.to == TierId::DRAM);
        }
        self.expected_faults = Some(faults / self.k);
        self.demotions = demotions;
        plan.expected_faults = faults;
        plan.expected_perf_ns = expected_ns;
        plan.expected_tco = money + pinned;
        plan.tco_min = tco_min;
        plan
    }
}

impl Slowdown {
    /// Undoes the demotions for which this window has no time, those that save least first.
    /// Returns how many, and the time in faults to expect.
    fn pace(
        &self,
        regions: &[RegionView],
        steady: &Steady,
        time: Time,
        demotions: &mut Vec<(f64, u32)>,
        choice: &mut [u8],
    ) -> (u64, f64) {
        let mut stalled = 0.0;
        demotions.clear();
        for (item, &option) in choice.iter().enumerate() {
            let (from, to) = (usize::from(steady.current[item]), usize::from(option));
            stalled += steady.choices.stall_ns(item, to);
            if to != 0 && from != to {
                let pages = f64::from(regions[self.known[item] as usize].pages.max(1));
                let saves = steady.choices.tco(item, from) - steady.choices.tco(item, to);
                demotions.push((saves / pages, item as u32));
            }
        }
        let allowed = match self.pause {
            0 => ((time.budget - stalled) / (MOVE_NS_PER_PAGE * time.contention)).max(0.0),
            _ => 0.0,
        };
        demotions.sort_unstable_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        let (mut spent, mut waiting) = (0.0, 0);
        for &(_, item) in demotions.iter() {
            let item = item as usize;
            let pages = f64::from(regions[self.known[item] as usize].pages);
            if spent + pages <= allowed {
                spent += pages;
                continue;
            }
            waiting += 1;
            stalled -= steady.choices.stall_ns(item, usize::from(choice[item]));
            choice[item] = steady.current[item];
            stalled += steady.choices.stall_ns(item, usize::from(choice[item]));
        }
        (waiting, stalled)
    }
}
