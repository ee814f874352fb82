//! An application and its runtime as arithmetic: how a policy fares on touches that are given.
//!
//! The unit is the region. Of each, a window says how many distinct pages were touched. A region
//! has a *core*, pages that are touched first and in every window alike; which pages of the rest
//! are touched is taken to be chance, anew in every window. A touched page that is stored faults,
//! comes home and stays for the cooling time, as in the runtime; plans are carried out at the end
//! of the window, as far as the movers get. The policy sees what it would see live: samples of what
//! is in DRAM, exact faults of what is not, through the same [`RegionHistory`].
//!
//! What is simpler than life: time does not stretch when threads wait, tiers take every page, and
//! without a core touches are spread over a region evenly, so that a region with a hot and a cold
//! half looks warm all over and faults more than it would. [`crate::load`] finds the cores of
//! applications that were recorded.

use crate::cost::{self, TierCost};
use crate::hindsight::Seen;
use crate::hotness::{RegionHistory, WindowSeen, PAGES_PER_REGION};
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
    /// Processor time of moving one page, in nanoseconds.
    pub move_ns: f64,
    /// Share of that time that the application would have used, 0 to 1.
    pub contention: f64,
}

impl Machine {
    /// Windows that a page stays after the one in which it came back: plans are carried out at a
    /// window's end.
    pub(crate) fn waits(&self) -> usize {
        self.cooling_windows.saturating_sub(1).min(COOLING_MAX)
    }
}

/// What a window came to.
#[derive(Clone, PartialEq, Debug)]
pub struct Outcome {
    /// Faults from tiers.
    pub faults: f64,
    /// Time that threads waited for them, in nanoseconds.
    pub stalled_ns: f64,
    /// What the last plan's moves took from the application, in nanoseconds.
    pub taken_ns: f64,
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
}

/// One application.
#[derive(Clone, Debug)]
pub struct Simulation {
    machine: Machine,
    regions: Vec<Region>,
    views: Vec<RegionView>,
    /// Processor time of the moves since the last window, in nanoseconds.
    moving_ns: f64,
    fault_share: f64,
}

impl Simulation {
    /// An application with regions of these many pages (0 to 512), all in DRAM.
    pub fn new(machine: Machine, pages: &[u16]) -> Simulation {
        let mut simulation = Simulation {
            machine,
            regions: Vec::new(),
            views: Vec::new(),
            moving_ns: 0.0,
            fault_share: 1.0,
        };
        simulation.grow(pages);
        simulation
    }

    /// The same, told which share of the pages that come home do so by a fault of their own, 0 to
    /// 1; the others were brought along by the fault of a scan.
    pub fn with_fault_share(self, share: f64) -> Simulation {
        Simulation { fault_share: share.clamp(0.0, 1.0), ..self }
    }

    /// More regions, behind those there are.
    pub fn grow(&mut self, pages: &[u16]) {
        for &pages in pages {
            let id = (self.regions.len() as u64) << 21;
            self.regions.push(Region {
                id,
                body: Body::new(f64::from(pages.min(PAGES_PER_REGION)), 0.0),
                ratios: Ratios::UNKNOWN,
                history: RegionHistory::new(),
                seen: WindowSeen::default(),
            });
        }
    }

    /// Makes region `index` one of this address, with a core of so many pages (at most all) and
    /// ratios of its own. Before its first window.
    pub fn describe(&mut self, index: usize, id: u64, core_pages: f64, ratios: Ratios) {
        let region = &mut self.regions[index];
        (region.id, region.ratios) = (id, ratios);
        region.body = Body::new(region.body.pages(), core_pages);
    }

    /// Region `index` has this many pages from now on (0 to 512): new ones are at home, and those
    /// that go are taken evenly.
    pub fn set_pages(&mut self, index: usize, pages: u16) {
        self.regions[index].body.resize(f64::from(pages.min(PAGES_PER_REGION)));
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
        let (mut tco, mut tco_at_end) = (0.0, 0.0);
        for index in 0..self.regions.len() {
            let region = &mut self.regions[index];
            let touched = f64::from(touched.get(index).copied().unwrap_or(0.0));
            let (before, all) = (region.body.home(), region.body.pages());
            let hot_home = region.body.touched_at_home(touched);
            let came = region.body.touch(touched);
            let faulted = came * self.fault_share;
            faults += faulted;
            stalled_ns += faulted * self.machine.tiers[region.body.tier.index()].fault_ns;
            pages += all;
            let share = if before > 0.0 { (hot_home / before).min(1.0) } else { 0.0 };
            let sampled = self.machine.samples_per_region.min(before as u16);
            region.seen = WindowSeen {
                present: before.round() as u16,
                stored: (all - before).round() as u16,
                sampled,
                hits: if sampled > 0 { hits(sampled, share) } else { 0 },
                faults: faulted.round() as u16,
            };
            if all > 0.0 {
                region.history.observe(region.seen);
            }
            let after = self.regions[index].body.home();
            tco += self.tco(index, (before + after) / 2.0);
            tco_at_end += self.tco(index, after);
        }
        let measured = Measured {
            running_ns,
            stalled_ns,
            cpu_ns: core::mem::take(&mut self.moving_ns),
            contention: self.machine.contention,
            faults,
        };
        policy.learn(&measured);
        self.views.clear();
        let waits = self.machine.waits();
        self.views.extend(self.regions.iter().map(|region| region.view(waits)));
        let plan = policy.plan(&self.views, &self.machine.tiers);
        let moved_pages = self.carry_out(&plan);
        let taken_ns = measured.taken_ns();
        let dram = self.machine.tiers[0].usd_per_page_month();
        Outcome {
            faults,
            stalled_ns,
            taken_ns,
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

    fn carry_out(&mut self, plan: &Plan) -> u64 {
        let mut left = self.machine.move_pages as f64;
        let mut moved = 0.0;
        for step in &plan.moves {
            let region = &mut self.regions[step.region as usize].body;
            let pages = region.pages_to_move(step.to, self.machine.waits());
            if step.to != TierId::DRAM && pages > left {
                continue;
            }
            left -= pages;
            moved += pages;
            region.go(step.to, self.machine.waits());
        }
        self.moving_ns += moved * self.machine.move_ns;
        moved as u64
    }
}

impl Region {
    fn view(&self, waits: usize) -> RegionView {
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
            ratios: self.ratios,
            ..RegionView::at(self.id, self.body.tier)
        }
    }
}

/// Price of one page of a region in the tier of this index, in US dollars a month: at the region's
/// own ratio where that is known.
pub(crate) fn usd_per_page(tiers: &[TierCost], tier: usize, ratios: Ratios) -> f64 {
    let ratio = ratios.get(tier).filter(|_| tier > 0).unwrap_or(tiers[tier].ratio);
    TierCost { ratio, ..tiers[tier] }.usd_per_page_month()
}

/// Pages that are touched alike.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Part {
    pub(crate) pages: f64,
    /// Those at home, all of them while the tier is DRAM.
    pub(crate) home: f64,
    /// How many of those came back in each of the last windows, newest first.
    pub(crate) recent: [f64; COOLING_MAX],
}

impl Part {
    fn of(pages: f64) -> Part {
        Part { pages, home: pages, recent: [0.0; COOLING_MAX] }
    }

    /// Pages that come home when so many are touched.
    fn touch(&mut self, touched: f64) -> f64 {
        let stored = self.pages - self.home;
        let came = match self.pages > 0.0 {
            true => (touched.min(self.pages) * stored / self.pages).min(stored),
            false => 0.0,
        };
        self.home += came;
        self.recent.rotate_right(1);
        self.recent[0] = came;
        came
    }

    /// Pages at home that have not cooled. A page cools wherever its region belongs by now.
    pub(crate) fn warm(&self, waits: usize) -> f64 {
        self.recent.iter().take(waits).sum::<f64>().min(self.home)
    }

    fn shrink(&mut self, by: f64) {
        self.pages *= by;
        self.home *= by;
        self.recent.iter_mut().for_each(|pages| *pages *= by);
    }
}

/// A region's pages and where they are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Body {
    pub(crate) tier: TierId,
    /// The rest, and the core.
    pub(crate) parts: [Part; 2],
}

impl Body {
    /// All at home.
    pub(crate) fn new(pages: f64, core_pages: f64) -> Body {
        let core = core_pages.clamp(0.0, pages);
        Body { tier: TierId::DRAM, parts: [Part::of(pages - core), Part::of(core)] }
    }

    pub(crate) fn pages(&self) -> f64 {
        self.parts.iter().map(|part| part.pages).sum()
    }

    pub(crate) fn home(&self) -> f64 {
        self.parts.iter().map(|part| part.home).sum()
    }

    pub(crate) fn stored(&self) -> f64 {
        self.pages() - self.home()
    }

    /// How many pages of the rest and of the core are touched when so many are in all.
    pub(crate) fn split(&self, touched: f64) -> [f64; 2] {
        let core = touched.clamp(0.0, self.parts[1].pages);
        [(touched - core).clamp(0.0, self.parts[0].pages), core]
    }

    /// Pages at home that are touched when so many are in all.
    fn touched_at_home(&self, touched: f64) -> f64 {
        let split = self.split(touched);
        let at_home = |(part, touched): (&Part, f64)| match part.pages > 0.0 {
            true => touched * part.home / part.pages,
            false => 0.0,
        };
        self.parts.iter().zip(split).map(at_home).sum()
    }

    /// Pages that come home when so many are touched.
    pub(crate) fn touch(&mut self, touched: f64) -> f64 {
        let split = self.split(touched);
        self.parts.iter_mut().zip(split).map(|(part, touched)| part.touch(touched)).sum()
    }

    pub(crate) fn resize(&mut self, pages: f64) {
        let now = self.pages();
        if pages < now {
            self.parts.iter_mut().for_each(|part| part.shrink(pages / now));
        } else {
            self.parts[0].pages += pages - now;
            self.parts[0].home += pages - now;
        }
    }

    pub(crate) fn pages_to_move(&self, to: TierId, waits: usize) -> f64 {
        let cold: f64 = self.parts.iter().map(|part| part.home - part.warm(waits)).sum();
        match to {
            TierId::DRAM => self.stored(),
            to if to == self.tier => cold,
            _ => cold + self.stored(),
        }
    }

    pub(crate) fn go(&mut self, to: TierId, waits: usize) {
        for part in &mut self.parts {
            part.home = if to == TierId::DRAM { part.pages } else { part.warm(waits) };
        }
        self.tier = to;
    }
}
