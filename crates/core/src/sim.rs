//! An application and its runtime as arithmetic: how a policy fares on touches that are given.
//!
//! The unit is the region. Of each, a window says how many distinct pages were touched; how they
//! spread over classes of pages that are in use by degrees is the application's
//! ([`crate::degrees`]), and which pages of a class they are is taken to be chance, anew in every
//! window. A touched page that is stored faults, comes home and stays for the cooling time, as in
//! the runtime; plans are carried out at the end of the window, as far as the movers get. The
//! policy sees what it would see live: samples of what is in DRAM, exact faults of what is not,
//! through the same [`RegionHistory`].
//!
//! Applications that were recorded are *tracked* as the runtime does it: regions in full use are
//! looked at rarely, of a region in a tier only what came back lately is watched, a touch of a
//! watched page costs its thread a fault, and what pages shrink to, and which of them no tier
//! takes, is known once a tier has seen them.
//!
//! What is simpler than life: time does not stretch when threads wait.

use crate::body::Body;
use crate::cost::{self, TierCost};
use crate::degrees::Degrees;
use crate::hindsight::Seen;
use crate::hotness::{RegionHistory, WindowSeen, PAGES_PER_REGION};
use crate::latency::Latency;
use crate::load::{Clock, TierThen};
use crate::looks::{self, Looks, Watching};
use crate::plan::{Measured, Plan, Policy, Ratios, RegionView};
use crate::tier::{TierId, MAX_TIERS};

/// Longest cooling that is simulated, in windows.
pub(crate) const COOLING_MAX: usize = 16;

/// What the application runs on.
#[derive(Clone, Debug)]
pub struct Machine {
    /// DRAM and the tiers.
    pub tiers: Vec<TierCost>,
    /// Windows that a page which came back stays, counting that one; at most 16.
    pub cooling_windows: usize,
    /// Pages watched in a region and window.
    pub samples_per_region: u16,
    /// Pages that movers take down or across in a window at most.
    pub move_pages: u64,
    /// Processor time of moving one page, by the tier that it is moved to, in nanoseconds; where
    /// there are more tiers than figures the last one stands for the rest.
    pub move_ns: Vec<f64>,
    /// Processor time of the runtime for a page that faulted, beside what its thread waits and
    /// beside taking it down again, in nanoseconds.
    pub fault_cpu_ns: f64,
    /// Time that a thread waits for a page that is watched, in nanoseconds.
    pub hit_ns: f64,
    /// Share of that time that the application would have used, 0 to 1.
    pub contention: f64,
}

impl Machine {
    pub(crate) fn waits(&self) -> usize {
        waits(self.cooling_windows)
    }

    /// Processor time of moving one page to a tier, in nanoseconds.
    pub(crate) fn move_ns(&self, to: TierId) -> f64 {
        self.move_ns.get(to.index()).or(self.move_ns.last()).copied().unwrap_or(0.0)
    }
}

/// Windows that a page stays after the one in which it came back, of `cooling_windows` with that
/// one: plans are carried out at a window's end. At most 16.
pub fn waits(cooling_windows: usize) -> usize {
    cooling_windows.saturating_sub(1).min(COOLING_MAX)
}

/// What a window came to.
#[derive(Clone, PartialEq, Debug)]
pub struct Outcome {
    /// Faults from tiers.
    pub faults: f64,
    /// Time that threads waited for them, in nanoseconds.
    pub stalled_ns: f64,
    /// What the runtime took from the application, for the last plan's moves above all, in
    /// nanoseconds.
    pub taken_ns: f64,
    /// Processor time of the runtime, whoever wanted it, in nanoseconds.
    pub cpu_ns: f64,
    /// The part of both that is no price of the placement, in nanoseconds: watching, and what
    /// threads waited longer than usual (less than nothing if it was shorter).
    pub watching_ns: f64,
    /// Lost time as a share of the running time.
    pub slowdown: f64,
    /// Money for the placement on average over the window, in US dollars a month.
    pub tco: f64,
    /// The same at the window's end, before the plan is carried out: when a runtime reports.
    pub tco_at_end: f64,
    /// The same with all in DRAM.
    pub tco_all_dram: f64,
    /// Pages moved at the end of the window.
    pub moved_pages: u64,
    /// The plan that was made of it.
    pub plan: Plan,
}

impl Outcome {
    /// Share of the money that is saved.
    pub fn saved(&self) -> f64 {
        cost::tco_saved(self.tco, self.tco_all_dram)
    }
}

#[derive(Clone, Copy, Debug)]
struct Region {
    id: u64,
    body: Body,
    ratios: Ratios,
    history: RegionHistory,
    seen: WindowSeen,
    /// Of looks at what is home of it.
    looks: Looks,
    /// Whether it has been there for a window.
    is_followed: bool,
    /// Whether it was ever taken to a tier.
    was_down: bool,
}

/// What is measured of the faults from one tier.
#[derive(Clone, Copy, Debug, Default)]
struct Served {
    faults: f64,
    took_ns: f64,
    latency: Latency,
}

/// One application.
#[derive(Clone, Debug)]
pub struct Simulation {
    machine: Machine,
    /// The machine's tiers with what a fault from each takes as far as the policy can know.
    known: Vec<TierCost>,
    served: [Served; MAX_TIERS],
    regions: Vec<Region>,
    views: Vec<RegionView>,
    /// Processor time of the moves since the last window, in nanoseconds.
    moving_ns: f64,
    /// Processor time that watching takes in the next window, in nanoseconds, and by how much
    /// longer than usual threads wait in it.
    watching_ns: f64,
    slower: f64,
    /// By how much longer than usual they wait for pages in tiers, as far as that was seen.
    tiers_slower: f64,
    /// What they wait for beside.
    waited_beside_ns: f64,
    /// The tiers as they were known in that window of a recording, where it says.
    then: Vec<TierThen>,
    /// Share of the pages that come home which fault themselves, in the next window.
    fault_share: f64,
    degrees: Degrees,
    /// How it is tracked; `None`: all regions alike, at no cost.
    watching: Option<Watching>,
    windows: u32,
}

impl Simulation {
    /// An application with regions of these many pages (0 to 512), all in DRAM.
    pub fn new(machine: Machine, pages: &[u16]) -> Simulation {
        let mut simulation = Simulation {
            known: machine.tiers.clone(),
            served: [Served::default(); MAX_TIERS],
            machine,
            regions: Vec::new(),
            views: Vec::new(),
            moving_ns: 0.0,
            watching_ns: 0.0,
            slower: 1.0,
            tiers_slower: 1.0,
            waited_beside_ns: 0.0,
            then: Vec::new(),
            fault_share: 1.0,
            degrees: Degrees::even(),
            watching: None,
            windows: 0,
        };
        simulation.grow(pages);
        simulation
    }

    /// The same with pages in use by these degrees. Before its first regions.
    pub fn with_degrees(self, degrees: Degrees) -> Simulation {
        Simulation { degrees, ..self }
    }

    /// The same, tracked as a runtime does it for a policy that wants to know this (see the head).
    pub fn tracked(self, watching: Watching) -> Simulation {
        Simulation { watching: Some(watching), ..self }
    }

    /// What the next window is like: processor time of the runtime beside what follows from faults
    /// and moves, what threads wait by what they usually do, and which share of the pages that come
    /// home do so by a fault of their own. `then` is what was known of DRAM and the tiers in it;
    /// where that is nothing they are as the machine has them, and measured as time goes by.
    pub fn next(&mut self, clock: &Clock, then: &[TierThen]) {
        self.then.clear();
        if then.len() == self.machine.tiers.len() {
            self.then.extend_from_slice(then);
            self.known.clear();
            self.known.extend(then.iter().map(|then| then.told));
        }
        self.waited_beside_ns = clock.waited_beside_ns.max(0.0);
        self.watching_ns = clock.watching_ns.max(0.0);
        self.slower = if clock.slower > 0.0 { clock.slower } else { 1.0 };
        self.tiers_slower = 1.0 + (self.slower - 1.0) * clock.slower_part.clamp(0.0, 1.0);
        self.fault_share = clock.share_that_faults();
    }

    /// More regions, behind those there are.
    pub fn grow(&mut self, pages: &[u16]) {
        for &pages in pages {
            let id = (self.regions.len() as u64) << 21;
            self.regions.push(Region {
                id,
                body: Body::new(f64::from(pages.min(PAGES_PER_REGION)), &self.degrees, 0.0),
                ratios: Ratios::UNKNOWN,
                history: RegionHistory::new(),
                seen: WindowSeen::default(),
                looks: Looks::NONE,
                is_followed: false,
                was_down: false,
            });
        }
    }

    /// Makes region `index` one of this address, with a share of pages that no tier takes (0 to 1)
    /// and ratios of its own. Before its first window.
    pub fn describe(&mut self, index: usize, id: u64, refused: f64, ratios: Ratios) {
        let region = &mut self.regions[index];
        (region.id, region.ratios) = (id, ratios);
        region.body = Body::new(region.body.pages(), &self.degrees, refused);
    }

    /// Region `index` has this many pages from now on (0 to 512): new ones are at home, and those
    /// that go are taken evenly.
    pub fn set_pages(&mut self, index: usize, pages: u16) {
        let pages = f64::from(pages.min(PAGES_PER_REGION));
        self.regions[index].body.resize(pages, &self.degrees);
    }

    /// Money of the placement of region `index` with so many pages at home, in US dollars a month.
    fn tco(&self, index: usize, home: f64) -> f64 {
        let region = &self.regions[index];
        let tier = region.body.tier.index();
        home * self.machine.tiers[0].usd_per_page_month()
            + (region.body.pages() - home) * usd_per_page(&self.machine.tiers, tier, region.ratios)
    }

    /// One window: `touched[r]` distinct pages of region `r` are used (missing ones none), threads
    /// run for `running_ns`, and then `policy` plans. `hits(watched, share)` says how many of so
    /// many watched pages are touched if that share of all is: the noise of sampling.
    pub fn window(
        &mut self,
        touched: &[f32],
        running_ns: f64,
        mut hits: impl FnMut(u16, f64) -> u16,
        policy: &mut dyn Policy,
    ) -> Outcome {
        let (mut faults, mut stalled_ns, mut pages) = (0.0, 0.0, 0.0);
        let (mut tco, mut tco_at_end, mut hits_all) = (0.0, 0.0, 0u64);
        let waits = self.machine.waits();
        let fault_share = core::mem::replace(&mut self.fault_share, 1.0);
        let slower = core::mem::replace(&mut self.slower, 1.0);
        let tiers_slower = core::mem::replace(&mut self.tiers_slower, 1.0);
        let beside_ns = core::mem::take(&mut self.waited_beside_ns);
        let mut usual_ns = 0.0;
        self.windows += 1;
        for index in 0..self.regions.len() {
            let region = &mut self.regions[index];
            let touched = f64::from(touched.get(index).copied().unwrap_or(0.0));
            let (before, all) = (region.body.home(), region.body.pages());
            let share = if all > 0.0 { (touched / all).min(1.0) } else { 0.0 };
            let by_class = self.degrees.touched(share);
            let wanted = self.machine.samples_per_region;
            let look = match self.watching {
                Some(watching) => region.look(watching, wanted, self.windows, waits),
                None => Look { pool: before, samples: wanted.min(before as u16), is_warm: false },
            };
            let hot = match look.is_warm {
                true => region.body.warm_touched(&by_class, waits),
                false => region.body.home_touched(&by_class, share),
            };
            let hot_share = if look.pool > 0.0 { (hot / look.pool).min(1.0) } else { 0.0 };
            let came = region.body.touch(&by_class, waits);
            let (faulted, tier) = (came * fault_share, region.body.tier.index());
            let fault_ns = self.machine.tiers[tier].fault_ns;
            let waited_ns = faulted * self.then.get(tier).map_or(fault_ns, |then| then.fault_ns);
            faults += faulted;
            usual_ns += faulted * fault_ns;
            stalled_ns += waited_ns;
            self.served[tier].faults += faulted;
            self.served[tier].took_ns += waited_ns * tiers_slower;
            pages += all;
            region.seen = WindowSeen {
                present: look.pool.round() as u16,
                stored: (all - before).round() as u16,
                sampled: look.samples,
                hits: if look.samples > 0 { hits(look.samples, hot_share) } else { 0 },
                // (The runtime counts what a scan brought along once the scan has gone past.)
                faults: came.round() as u16,
            };
            hits_all += u64::from(region.seen.hits);
            if all > 0.0 && (self.watching.is_none() || region.is_observed()) {
                region.history.observe(region.seen);
            }
            if let Some(watching) = self.watching {
                region.note_look(watching);
            }
            let after = self.regions[index].body.home();
            tco += self.tco(index, (before + after) / 2.0);
            tco_at_end += self.tco(index, after);
        }
        let hits_ns = hits_all as f64 * self.machine.hit_ns;
        let watched_ns = core::mem::take(&mut self.watching_ns);
        stalled_ns = (stalled_ns + hits_ns) * slower + beside_ns;
        let measured = Measured {
            running_ns,
            stalled_ns,
            cpu_ns: core::mem::take(&mut self.moving_ns)
                + watched_ns
                + faults * self.machine.fault_cpu_ns,
            contention: self.machine.contention,
            faults,
        };
        policy.learn(&measured);
        self.measure_latencies();
        self.views.clear();
        let (is_tracked, then) = (self.watching.is_some(), &self.then);
        self.views.extend(self.regions.iter().map(|region| region.view(waits, is_tracked, then)));
        let plan = policy.plan(&self.views, &self.known);
        let moved_pages = self.carry_out(&plan);
        let taken_ns = measured.taken_ns();
        let dram = self.machine.tiers[0].usd_per_page_month();
        Outcome {
            faults,
            stalled_ns,
            taken_ns,
            cpu_ns: measured.cpu_ns,
            watching_ns: stalled_ns - usual_ns + watched_ns * self.machine.contention,
            slowdown: (stalled_ns + taken_ns) / running_ns.max(1.0),
            tco,
            tco_at_end,
            tco_all_dram: pages * dram,
            moved_pages,
            plan,
        }
    }

    /// Pages in each tier, those at home in DRAM.
    pub fn placement(&self) -> [f64; MAX_TIERS] {
        let mut pages = [0.0; MAX_TIERS];
        for region in &self.regions {
            pages[0] += region.body.home();
            pages[region.body.tier.index()] += region.body.stored();
        }
        pages
    }

    /// What the policy was handed in the last window.
    pub fn views(&self) -> &[RegionView] {
        &self.views
    }

    /// What the last window showed of each region, before its plan was carried out.
    pub fn seen(&self) -> impl Iterator<Item = Seen> + '_ {
        self.regions.iter().enumerate().map(|(index, region)| {
            let faults = u32::from(region.seen.faults);
            let stored = u32::from(region.seen.stored).saturating_sub(faults);
            Seen { region: (index as u64) << 21, stored, faults }
        })
    }

    /// What a runtime would know of its tiers by now: faults take longer in some windows of a
    /// recording than in others. (In generated ones they always take the same.)
    fn measure_latencies(&mut self) {
        if self.watching.is_none() || !self.then.is_empty() {
            return;
        }
        let all = self.known.iter_mut().zip(&self.machine.tiers).zip(&mut self.served);
        for ((known, tier), served) in all.skip(1) {
            let (faults, took_ns) = (served.faults as u64, served.took_ns as u64);
            known.fault_ns = served.latency.observe(faults, took_ns, tier.fault_ns);
        }
    }

    fn carry_out(&mut self, plan: &Plan) -> u64 {
        let mut left = self.machine.move_pages as f64;
        let mut moved = 0.0;
        for step in &plan.moves {
            let region = &mut self.regions[step.region as usize];
            let pages = region.body.pages_to_move(step.to, self.machine.waits());
            if step.to != TierId::DRAM && pages > left {
                continue;
            }
            left -= pages;
            moved += pages;
            self.moving_ns += pages * self.machine.move_ns(step.to);
            region.body.go(step.to, self.machine.waits());
            region.was_down |= step.to != TierId::DRAM;
        }
        moved as u64
    }
}

/// What of a region is watched in a window.
struct Look {
    /// Pages that samples are drawn from.
    pool: f64,
    samples: u16,
    /// Whether they are those that came back lately, and not all at home.
    is_warm: bool,
}

impl Region {
    /// How the runtime looks at it in a window.
    fn look(&self, watching: Watching, wanted: u16, window: u32, waits: usize) -> Look {
        let is_warm = self.body.tier != TierId::DRAM && watching != Watching::Ages;
        // Before it is followed nothing of it is registered.
        let pool = match (self.is_followed, is_warm) {
            (false, _) => 0.0,
            (true, true) => self.body.warm(waits),
            (true, false) => self.body.home(),
        };
        let is_looked_at = match is_warm {
            true => pool >= f64::from(looks::CAME_BACK_MIN),
            false => self.looks.is_due(watching, self.id, window),
        };
        // What came back lately is asked for as a whole.
        let looks = if is_warm { Looks::NONE } else { self.looks };
        let pages = self.body.pages().ceil() as usize;
        let of = if is_looked_at { looks.samples(watching, wanted.into(), pages) } else { 0 };
        Look { pool, samples: (of as u16).min(pool as u16), is_warm }
    }

    fn is_observed(&self) -> bool {
        self.seen.sampled > 0 || self.seen.stored > 0 || self.body.tier != TierId::DRAM
    }

    fn note_look(&mut self, watching: Watching) {
        self.is_followed = true;
        if self.body.tier == TierId::DRAM || watching == Watching::Ages {
            self.looks = self.looks.after(self.seen.sampled, self.seen.hits);
        }
    }

    fn view(&self, waits: usize, is_tracked: bool, then: &[TierThen]) -> RegionView {
        let is_known = !is_tracked || self.was_down;
        let ratios = if is_known { known_then(self.ratios, then) } else { Ratios::UNKNOWN };
        let refused = (self.body.refused() * 255.0).round() as u8;
        RegionView {
            pages: self.body.pages().round() as u32,
            resident: self.body.home().round() as u32,
            cooling: self.history.came_back(waits).min(self.body.home().round() as u32),
            hotness: self.history.hotness(),
            calm: self.history.calm(),
            windows_seen: self.history.windows_seen(),
            newest: self.history.newest(),
            long: self.history.long(),
            rest_windows: self.history.rest_windows(),
            told: self.history.told(),
            used_again: self.history.used_again(),
            since_down_windows: self.history.since_down_windows(),
            down_windows: self.history.down_windows(),
            ratios,
            refused: if is_known { refused } else { 0 },
            ..RegionView::at(self.id, self.body.tier)
        }
    }
}

/// What was known of a region's ratios in a window.
fn known_then(mut ratios: Ratios, then: &[TierThen]) -> Ratios {
    for (tier, then) in then.iter().enumerate().skip(1) {
        if let Some(ratio) = ratios.get(tier) {
            ratios.set(tier, (ratio * then.ratio_by).clamp(0.01, 1.0));
        }
    }
    ratios
}

/// Price of one page of a region in the tier of this index, in US dollars a month: at the region's
/// own ratio where that is known.
pub(crate) fn usd_per_page(tiers: &[TierCost], tier: usize, ratios: Ratios) -> f64 {
    let ratio = ratios.get(tier).filter(|_| tier > 0).unwrap_or(tiers[tier].ratio);
    TierCost { ratio, ..tiers[tier] }.usd_per_page_month()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Analytical;

    /// One tier whose faults take 10 us.
    fn machine() -> Machine {
        Machine {
            tiers: vec![
                TierCost::dram(0.3),
                TierCost { fault_ns: 10_000.0, ratio: 0.5, ..TierCost::dram(0.3) },
            ],
            cooling_windows: 3,
            samples_per_region: 4,
            move_pages: u64::MAX,
            move_ns: Vec::new(),
            fault_cpu_ns: 0.0,
            hit_ns: 0.0,
            contention: 0.0,
        }
    }

    #[test]
    fn what_a_scan_brings_along_is_touched_and_waits_for_nothing() {
        let mut simulation = Simulation::new(machine(), &[512]);
        let mut policy = Analytical::new(0.0);
        let mut window = |touched: f32, fault_share: f64| {
            simulation.next(&Clock { fault_share, ..Clock::default() }, &[]);
            let outcome = simulation.window(&[touched], 1e9, |_, _| 0, &mut policy);
            (outcome, simulation.regions[0].seen)
        };
        assert!((0..8).any(|_| window(0.0, 1.0).0.moved_pages == 512), "nothing goes down");
        let (outcome, seen) = window(128.0, 0.25);
        assert_eq!((outcome.faults, outcome.stalled_ns, seen.faults), (32.0, 320_000.0, 128));
        // Where nothing is said each faults itself; 384 are left, of which a quarter is touched.
        let (outcome, seen) = window(128.0, 0.0);
        assert_eq!((outcome.faults, seen.faults), (96.0, 96));
    }

    #[test]
    fn regions_in_use_are_looked_at_as_rarely_as_the_policy_can_bear() {
        let hits = |watched: u16, share: f64| (share * f64::from(watched)).round() as u16;
        let looks = |watching: Option<Watching>| {
            let mut simulation = Simulation::new(machine(), &[512; 4]);
            if let Some(watching) = watching {
                simulation = simulation.tracked(watching);
            }
            let mut policy = Analytical::new(1.0);
            let mut looks = 0;
            for _ in 0..40 {
                // Three quarters in use, and next to nothing.
                let touched = [384.0, 384.0, 1.0, 1.0];
                simulation.window(&touched, 1e9, hits, &mut policy);
                looks += simulation.regions[..2].iter().filter(|r| r.seen.sampled > 0).count();
                // (In the first window nothing is followed yet.)
                let is_first = simulation.windows == 1 && watching.is_some();
                let all = simulation.regions[2..].iter().all(|r| r.seen.sampled == 4);
                assert!(all || is_first, "window {}", simulation.windows);
            }
            looks
        };
        assert_eq!(looks(None), 80);
        assert_eq!(looks(Some(Watching::Ages)), 78, "ages are sums over windows");
        let looks = looks(Some(Watching::Use));
        assert!((4..=44).contains(&looks), "every second window at most: {looks}");
    }

    /// Takes everything down and remembers what it was told of the tier.
    struct Told(f64);

    impl Policy for Told {
        fn plan(&mut self, regions: &[RegionView], tiers: &[TierCost]) -> Plan {
            self.0 = tiers[1].fault_ns;
            Analytical::new(0.0).plan(regions, tiers)
        }
    }

    #[test]
    fn the_policy_is_told_what_faults_took_and_not_what_they_usually_do() {
        let told_after = |is_tracked: bool, clock: &Clock| {
            let simulation = Simulation::new(machine(), &[512; 8]);
            let mut simulation = match is_tracked {
                true => simulation.tracked(Watching::Use),
                false => simulation,
            };
            let mut policy = Told(0.0);
            for _ in 0..60 {
                simulation.next(clock, &[]);
                simulation.window(&[128.0; 8], 1e9, |_, _| 0, &mut policy);
            }
            policy.0
        };
        let tiers_slower = Clock { slower: 3.0, slower_part: 1.0, ..Clock::default() };
        let told = told_after(true, &tiers_slower);
        assert!((25_000.0..=30_000.0).contains(&told), "{told}");
        // Where watched pages were what threads waited longer for, tiers are as ever.
        let told = told_after(true, &Clock { slower_part: 0.0, ..tiers_slower });
        assert!((told - 10_000.0).abs() < 100.0, "{told}");
        assert_eq!(told_after(false, &tiers_slower), 10_000.0, "generated: at no time slower");
    }
}
