//! An application and its runtime as arithmetic: how a policy fares on touches that are given.
//!
//! The unit is the region. Of each, a window says how many distinct pages were touched; which ones
//! is taken to be chance, anew in every window. A touched page that is stored faults, comes home
//! and stays for the cooling time, as in the runtime; plans are carried out at the end of the
//! window, as far as the movers get. The policy sees what it would see live:
//! samples of what is in DRAM, exact faults of what is not, through the same [`RegionHistory`].
//!
//! What is simpler than life: time does not stretch when threads wait, tiers take every page, and
//! touches are spread over a region evenly, so that a region with a hot and a cold half looks warm
//! all over and faults more than it would.

use crate::cost::{self, TierCost};
use crate::hotness::{RegionHistory, WindowSeen};
use crate::plan::{Measured, Plan, Policy, RegionView};
use crate::tier::{TierId, MAX_TIERS};

/// Longest cooling that is simulated, in windows.
const COOLING_MAX: usize = 16;

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
    pages: f64,
    tier: TierId,
    /// Pages at home, all of them while the tier is DRAM.
    home: f64,
    /// How many of those came back in each of the last windows, newest first.
    recent: [f64; COOLING_MAX],
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
}

impl Simulation {
    /// An application with regions of these many pages (0 to 512), all in DRAM.
    pub fn new(machine: Machine, pages: &[u16]) -> Simulation {
        let regions = pages.iter().map(|&pages| Region::of(pages)).collect();
        Simulation { machine, regions, views: Vec::new(), moving_ns: 0.0 }
    }

    /// More regions, behind those there are.
    pub fn grow(&mut self, pages: &[u16]) {
        self.regions.extend(pages.iter().map(|&pages| Region::of(pages)));
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
        let tiers = &self.machine.tiers;
        let (mut faults, mut stalled_ns, mut tco, mut pages) = (0.0, 0.0, 0.0, 0.0);
        for (index, region) in self.regions.iter_mut().enumerate() {
            let touched = f64::from(touched.get(index).copied().unwrap_or(0.0));
            let before = region.home;
            let came = region.touch(touched);
            let tier = &tiers[region.tier.index()];
            faults += came;
            stalled_ns += came * tier.fault_ns;
            let home = (before + region.home) / 2.0;
            tco += home * tiers[0].usd_per_page_month()
                + (region.pages - home) * tier.usd_per_page_month();
            pages += region.pages;
            let share = if region.pages > 0.0 { (touched / region.pages).min(1.0) } else { 0.0 };
            let sampled = self.machine.samples_per_region.min(before as u16);
            region.seen = WindowSeen {
                present: before.round() as u16,
                stored: (region.pages - before).round() as u16,
                sampled,
                hits: if sampled > 0 { hits(sampled, share) } else { 0 },
                faults: came.round() as u16,
            };
            region.history.observe(region.seen);
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
        self.views.extend(self.regions.iter().enumerate().map(|(id, region)| region.view(id)));
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
            tco_all_dram: pages * dram,
            moved_pages,
            plan,
        }
    }

    /// Pages in each tier, those at home in DRAM.
    pub fn placement(&self) -> [f64; MAX_TIERS] {
        let mut pages = [0.0; MAX_TIERS];
        for region in &self.regions {
            pages[0] += region.home;
            pages[region.tier.index()] += region.pages - region.home;
        }
        pages
    }

    fn carry_out(&mut self, plan: &Plan) -> u64 {
        let mut left = self.machine.move_pages as f64;
        let mut moved = 0.0;
        for step in &plan.moves {
            let region = &mut self.regions[step.region as usize];
            let pages = region.pages_to_move(step.to, self.machine.cooling_windows);
            if step.to != TierId::DRAM && pages > left {
                continue;
            }
            left -= pages;
            moved += pages;
            region.go(step.to, self.machine.cooling_windows);
        }
        self.moving_ns += moved * self.machine.move_ns;
        moved as u64
    }
}

impl Region {
    fn of(pages: u16) -> Region {
        let pages = f64::from(pages.min(crate::hotness::PAGES_PER_REGION));
        Region {
            pages,
            tier: TierId::DRAM,
            home: pages,
            recent: [0.0; COOLING_MAX],
            history: RegionHistory::new(),
            seen: WindowSeen::default(),
        }
    }

    /// Pages that fault when so many are touched.
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

    /// Pages at home that have not cooled.
    fn warm(&self, cooling: usize) -> f64 {
        match self.tier {
            TierId::DRAM => 0.0,
            _ => self.recent.iter().take(cooling).sum::<f64>().min(self.home),
        }
    }

    fn pages_to_move(&self, to: TierId, cooling: usize) -> f64 {
        let (cold, stored) = (self.home - self.warm(cooling), self.pages - self.home);
        match to {
            TierId::DRAM => stored,
            to if to == self.tier => cold,
            _ => cold + stored,
        }
    }

    fn go(&mut self, to: TierId, cooling: usize) {
        self.home = if to == TierId::DRAM { self.pages } else { self.warm(cooling) };
        self.tier = to;
    }

    fn view(&self, index: usize) -> RegionView {
        RegionView {
            pages: self.pages as u32,
            resident: self.home.round() as u32,
            hotness: self.history.hotness(),
            windows_seen: self.history.windows_seen(),
            newest: self.history.newest(),
            ..RegionView::at((index as u64) << 21, self.tier)
        }
    }
}
