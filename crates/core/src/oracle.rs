//! The best placement that knows the future, and a bound on what any policy can save.
//!
//! The application is that of [`crate::sim`]: expected touches, cooling, moves at the end of a
//! window. A policy is judged by two sums over all regions and windows: money, and time lost to
//! faults and moves. With a price `p` of lost time (the dual variable of the slowdown budget), the
//! regions come apart:
//!
//! ```text
//! minimise over placements   money + p * lost                               for each region alone
//! ```
//!
//! *The bound.* A page is at home (cooling for so many windows yet, or free to go) or in a tier.
//! All pages of a class ([`crate::degrees`]) are touched with the same probability, so that what
//! one page is worth in each of these states at each window's start follows backwards from the last
//! window, by a minimum over tiers: `Values`. Pages that no tier takes are at home. Letting each
//! page decide for itself allows more than regions can do and nothing that pages cannot, so the sum
//! is at most what any policy pays, and for every `p` at once
//!
//! ```text
//! money of a policy that loses L   >=   dual(p) - p * L
//! ```
//!
//! *A placement.* Forward through the windows, each region takes the step (stay, or all of it to
//! one tier) after which its pages are worth most by the same values. It is carried out by the
//! simulation's own arithmetic, so it can be had. What is between the two is the gap.
//!
//! *A static placement.* Each region is kept in one tier all the time, where what came back goes
//! down again: what can be had by knowing how much a region is used on the whole, and not when.
//!
//! All start in the first window that counts, with every region where it serves best, and with
//! movers that have no limit.

use crate::body::Body;
use crate::cost::TierCost;
use crate::degrees::{Degrees, CLASSES};
use crate::load::{Area, Clock};
use crate::plan::Ratios;
use crate::sim::{self, Machine, COOLING_MAX};
use crate::tier::{TierId, MAX_TIERS};

/// States at home: free to go, or cooling for one more window, two, ...
const HOME: usize = COOLING_MAX;

/// What placements cost at one price of time, summed over windows (and regions).
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Point {
    /// Price of lost time, in US dollars a month for one nanosecond in one window.
    pub price: f64,
    /// Least money plus price times lost time that any placement can have.
    pub dual: f64,
    /// Money of the placement that was found, in US dollars a month times windows.
    pub tco: f64,
    /// Time that it loses, in nanoseconds.
    pub lost_ns: f64,
    /// Pages that it moves.
    pub moved_pages: f64,
}

impl Point {
    /// Adds another region's or application's.
    pub fn add(&mut self, other: &Point) {
        self.dual += other.dual;
        self.tco += other.tco;
        self.lost_ns += other.lost_ns;
        self.moved_pages += other.moved_pages;
    }
}

/// Least money over all windows at which at most `lost_ns` can be lost: no policy gets below.
pub fn bound(points: &[Point], lost_ns: f64) -> f64 {
    points.iter().map(|point| point.dual - point.price * lost_ns).fold(0.0, f64::max)
}

/// Money of the best placement found that loses at most `lost_ns`: between the two next prices,
/// some regions take one and some the other. `None` if each one found loses more.
pub fn reached(points: &[Point], lost_ns: f64) -> Option<f64> {
    let within = |p: &&Point| p.lost_ns <= lost_ns;
    let below = points.iter().filter(within).min_by(|a, b| a.tco.total_cmp(&b.tco))?;
    let mixed = points.iter().filter(|p| !within(p) && p.tco < below.tco).map(|above| {
        let share = (lost_ns - below.lost_ns) / (above.lost_ns - below.lost_ns);
        below.tco + share * (above.tco - below.tco)
    });
    Some(mixed.fold(below.tco, f64::min))
}

/// Prices to try: from one at which nothing is worth a fault to one at which everything is, in
/// `steps` steps. Empty where no tier is cheaper than DRAM.
pub fn prices(tiers: &[TierCost], steps: usize) -> Vec<f64> {
    let Some(dram) = tiers.first().map(TierCost::usd_per_page_month) else { return Vec::new() };
    let worth = tiers.iter().skip(1).filter_map(|tier| {
        let saves = dram - tier.usd_per_page_month();
        (saves > 0.0).then(|| saves / tier.fault_ns.max(1.0))
    });
    // A page worth its keep in a tier is touched in one window of (price / worth).
    let (low, high) = worth.fold((f64::INFINITY, 0.0f64), |(l, h), w| (l.min(w), h.max(w)));
    if high == 0.0 {
        return Vec::new();
    }
    let (low, high) = (low * 0.25, high * 2e4);
    let ratio = (high / low).powf(1.0 / (steps.max(2) - 1) as f64);
    (0..steps.max(2)).map(|step| low * ratio.powi(step as i32)).collect()
}

/// What a page is worth at a window's start: the least money plus priced time that it will cost
/// from there to the end. States: [`HOME`] at home, then the tiers but DRAM.
#[derive(Clone, Copy, Debug)]
struct Values {
    home: [f64; HOME],
    tier: [f64; MAX_TIERS],
}

impl Values {
    const ZERO: Values = Values { home: [0.0; HOME], tier: [0.0; MAX_TIERS] };

    fn times(mut self, share: f64) -> Values {
        if share < 1.0 {
            self.home.iter_mut().chain(&mut self.tier).for_each(|value| *value *= share);
        }
        self
    }

    fn best_tier(&self, tiers: usize) -> f64 {
        self.tier[1..tiers].iter().copied().fold(f64::INFINITY, f64::min)
    }

    fn best(&self, tiers: usize) -> f64 {
        self.best_tier(tiers).min(self.home[0])
    }
}

/// One region through the windows that count.
struct Course<'a> {
    machine: &'a Machine,
    usd_per_page: [f64; MAX_TIERS],
    degrees: &'a Degrees,
    refused: f64,
    cooling: usize,
    /// Priced time of one page moved, by the tier that it is moved to.
    move_usd: [f64; MAX_TIERS],
    price: f64,
    /// At the start of each window: what is touched, and the share of the pages there were that
    /// is left. And the pages that were added, at home.
    steps: &'a [Step],
}

/// What happens to a region at the start of a window and in it.
#[derive(Clone, Copy, Debug, Default)]
struct Step {
    pages: f64,
    /// Share of each class that is touched.
    touched: [f64; CLASSES],
    /// Share of those coming home that fault themselves.
    fault_share: f64,
    /// Share of each class that is left of the window before.
    left: f64,
    /// Pages added, to each class alike.
    added: f64,
}

/// All that happens to a region in some windows, known beforehand.
pub struct Past<'a> {
    machine: &'a Machine,
    degrees: &'a Degrees,
    area: &'a Area,
    steps: Vec<Step>,
    /// It is not there when the first of these windows begins.
    is_born: bool,
}

impl<'a> Past<'a> {
    /// Of `area`; `windows` is where to begin and end, by the windows' numbers; `degrees` and
    /// `clocks` as in [`crate::load::Load`] (a window that has none is like any other).
    pub fn of(
        machine: &'a Machine,
        degrees: &'a Degrees,
        clocks: &[Clock],
        area: &'a Area,
        windows: core::ops::Range<usize>,
    ) -> Past<'a> {
        let steps = steps(area, degrees, clocks, &windows);
        let is_born = area.first > windows.start;
        Past { machine, degrees, area, steps, is_born }
    }

    /// At each price: what is least and what is found.
    pub fn best(&self, prices: &[f64]) -> Vec<Point> {
        let mut values = Vec::new();
        let at = |&price: &f64| {
            let course = Course::new(self, price);
            course.backwards(&mut values);
            course.forwards(&values, self.is_born)
        };
        prices.iter().map(at).collect()
    }

    /// The same where it stays in one tier, the one which serves best at each price, from its
    /// first window on. What this pays is `tco`; it is no bound.
    pub fn unmoved(&self, prices: &[f64]) -> Vec<Point> {
        let course = Course::new(self, 0.0);
        let stays: Vec<Point> =
            (0..course.tiers()).map(|tier| course.stay(TierId(tier as u8), self.is_born)).collect();
        let at = |&price: &f64| {
            let paid = |point: &&Point| point.tco + price * point.lost_ns;
            let best = stays.iter().min_by(|a, b| paid(a).total_cmp(&paid(b)));
            Point { price, ..best.copied().unwrap_or_default() }
        };
        prices.iter().map(at).collect()
    }
}

/// What happens to a region in these windows; nothing where it comes later.
fn steps(
    area: &Area,
    degrees: &Degrees,
    clocks: &[Clock],
    windows: &core::ops::Range<usize>,
) -> Vec<Step> {
    let mut steps = Vec::with_capacity(windows.len());
    let mut before = f64::from(area.pages_in(area.first));
    for window in area.first..windows.end {
        let now = f64::from(area.pages_in(window));
        if window >= windows.start {
            let share = if now > 0.0 { f64::from(area.touched_in(window)) / now } else { 0.0 };
            steps.push(Step {
                pages: now,
                touched: degrees.touched(share),
                fault_share: clocks.get(window).map_or(1.0, Clock::share_that_faults),
                left: if before > 0.0 { (now / before).min(1.0) } else { 1.0 },
                added: (now - before).max(0.0),
            });
        }
        before = now;
    }
    steps
}

impl<'a> Course<'a> {
    fn new(past: &'a Past, price: f64) -> Course<'a> {
        let Past { machine, degrees, area, ref steps, .. } = *past;
        let ratios: Ratios = area.ratios;
        let mut usd_per_page = [0.0; MAX_TIERS];
        for (tier, usd) in usd_per_page.iter_mut().enumerate().take(machine.tiers.len()) {
            *usd = sim::usd_per_page(&machine.tiers, tier, ratios);
        }
        Course {
            usd_per_page,
            degrees,
            refused: f64::from(area.refused),
            cooling: machine.waits(),
            move_usd: core::array::from_fn(|to| {
                price * machine.move_ns(TierId(to as u8)) * machine.contention
            }),
            machine,
            price,
            steps,
        }
    }

    fn tiers(&self) -> usize {
        self.machine.tiers.len().min(MAX_TIERS)
    }

    /// The values at the start of every window, and behind the last one.
    fn backwards(&self, values: &mut Vec<[Values; CLASSES]>) {
        values.clear();
        values.resize(self.steps.len() + 1, [Values::ZERO; CLASSES]);
        for window in (0..self.steps.len()).rev() {
            let step = &self.steps[window];
            for (class, &touched) in step.touched.iter().enumerate().take(self.degrees.classes()) {
                // What goes at the start of the next window costs nothing from there on.
                let then = values[window + 1][class].times(self.left_after(window));
                values[window][class] = self.before(&then, touched, step.fault_share);
            }
        }
    }

    /// Share of the pages at the end of a window that is there at the start of the next.
    fn left_after(&self, window: usize) -> f64 {
        self.steps.get(window + 1).map_or(1.0, |step| step.left)
    }

    /// Values at a window's start from those at its end, for pages of which a share is touched, and
    /// of those in tiers a share of that faults.
    fn before(&self, then: &Values, touched: f64, fault_share: f64) -> Values {
        let tiers = self.tiers();
        let away = (1..tiers).map(|to| self.move_usd[to] + then.tier[to]);
        let away = away.fold(f64::INFINITY, f64::min);
        let free = then.home[0].min(away);
        // At the end of the window in which it came a page counts as come a window ago.
        let came = if self.cooling == 0 { free } else { then.home[self.cooling - 1] };
        let mut now = Values::ZERO;
        now.home[0] = self.usd_per_page[0] + free;
        for wait in 1..self.cooling {
            now.home[wait] = self.usd_per_page[0] + then.home[wait - 1];
        }
        let back = self.move_usd[0] + then.home[0];
        for tier in 1..tiers {
            let half = touched / 2.0;
            let money = (1.0 - half) * self.usd_per_page[tier] + half * self.usd_per_page[0];
            let stall = touched * fault_share * self.fault_ns(tier);
            let stays = then.tier[tier].min(away).min(back);
            let later = touched * came + (1.0 - touched) * stays;
            now.tier[tier] = money + self.price * stall + later;
        }
        now
    }

    /// Time that a fault from a tier costs.
    fn fault_ns(&self, tier: usize) -> f64 {
        self.machine.tiers[tier].fault_ns + self.machine.fault_cpu_ns * self.machine.contention
    }

    /// The bound of the region, and its placement.
    fn forwards(&self, values: &[[Values; CLASSES]], is_born: bool) -> Point {
        let tiers = self.tiers();
        let first = self.steps.first().map_or(0.0, |step| step.pages);
        let mut body = Body::new(first, self.degrees, self.refused);
        let mut point = Point { price: self.price, ..Point::default() };
        for (part, values) in body.parts().iter().zip(&values[0]) {
            let value = if is_born { values.home[0] } else { values.best(tiers) };
            point.dual += part.pages * value;
        }
        for (step, values) in self.steps.iter().zip(values).skip(1) {
            for (share, values) in self.degrees.shares().iter().zip(values) {
                point.dual += step.added * (1.0 - self.refused) * share * values.home[0];
            }
        }
        let all: f64 = self.steps.iter().map(|step| step.pages).sum();
        point.dual += all * self.refused * self.usd_per_page[0];
        if !is_born {
            let worth = |&to: &usize| {
                let value =
                    |values: &Values| if to == 0 { values.home[0] } else { values.tier[to] };
                let parts = body.parts().iter().zip(&values[0]);
                parts.map(|(part, values)| part.pages * value(values)).sum::<f64>()
            };
            let best = (0..tiers).min_by(|a, b| worth(a).total_cmp(&worth(b)));
            body.go(TierId(best.unwrap_or(0) as u8), 0);
        }
        self.through(&mut body, &mut point, |body, window| {
            let left = self.left_after(window);
            self.step(body, &values[window + 1].map(|v| v.times(left)))
        });
        point
    }

    /// The region in one tier all the time.
    fn stay(&self, tier: TierId, is_born: bool) -> Point {
        let first = self.steps.first().map_or(0.0, |step| step.pages);
        let mut body = Body::new(first, self.degrees, self.refused);
        let mut point = Point::default();
        if !is_born {
            body.go(tier, 0);
        }
        self.through(&mut body, &mut point, |body, _| {
            let moved = body.pages_to_move(tier, self.cooling);
            body.go(tier, self.cooling);
            (tier, moved)
        });
        point
    }

    /// Takes a region through all windows and adds up what it pays. After each but the last `step`
    /// moves it, and says where to and how many pages that is.
    fn through(
        &self,
        body: &mut Body,
        point: &mut Point,
        mut step: impl FnMut(&mut Body, usize) -> (TierId, f64),
    ) {
        for (window, happens) in self.steps.iter().enumerate() {
            if window > 0 {
                body.resize(happens.pages, self.degrees);
            }
            let before = body.home();
            let came = body.touch(&happens.touched, self.cooling);
            let home = (before + body.home()) / 2.0;
            let tier = body.tier.index();
            point.tco +=
                home * self.usd_per_page[0] + (body.pages() - home) * self.usd_per_page[tier];
            point.lost_ns += came * happens.fault_share * self.fault_ns(tier);
            if window + 1 < self.steps.len() {
                let (to, moved) = step(body, window);
                point.moved_pages += moved;
                point.lost_ns += moved * self.machine.move_ns(to) * self.machine.contention;
            }
        }
    }

    /// Takes the region where its pages are worth most; where that is, and pages moved.
    fn step(&self, body: &mut Body, then: &[Values; CLASSES]) -> (TierId, f64) {
        let (mut best, mut least) = (None, self.worth(body, then));
        for to in 0..self.tiers() {
            let to = TierId(to as u8);
            let moved = body.pages_to_move(to, self.cooling);
            if moved <= 0.0 {
                continue;
            }
            let mut there = *body;
            there.go(to, self.cooling);
            let cost = moved * self.move_usd[to.index()] + self.worth(&there, then);
            if cost < least {
                (best, least) = (Some(to), cost);
            }
        }
        let Some(to) = best else { return (body.tier, 0.0) };
        let moved = body.pages_to_move(to, self.cooling);
        body.go(to, self.cooling);
        (to, moved)
    }

    /// What a region as it is at the end of a window is worth at the start of the next.
    fn worth(&self, body: &Body, then: &[Values; CLASSES]) -> f64 {
        let mut sum = 0.0;
        for (part, values) in body.parts().iter().zip(then) {
            let mut free = part.home;
            for (ago, &pages) in part.recent.iter().enumerate().take(self.cooling) {
                sum += pages * values.home[self.cooling - 1 - ago];
                free -= pages;
            }
            sum += free.max(0.0) * values.home[0];
            sum += (part.pages - part.home) * values.tier[body.tier.index()];
        }
        sum
    }
}
