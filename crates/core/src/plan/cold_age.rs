//! The cold-age policy: software-defined far memory ([`crate::coldage`]) with any set of tiers.
//!
//! # What goes down
//!
//! A region whose pages at home were not seen touched for as long as the threshold goes down,
//! oldest first. Never more than leaves the working set at home, and never more than the evidence
//! bears. A page that came back stays; when all of what is home of its region is old again, it goes
//! down again. What nobody touches need not come back.
//!
//! # What comes home
//!
//! The regions that break the limit, all of them at once. The paper's far memory mends itself,
//! since a page that is touched leaves it. Of a region of which a 20th is touched in a minute that
//! takes 20 minutes, and each of them is over the limit. Few samples and a short past let such
//! regions pass as cold; having been brought home, a region must be twice as old to go down again.
//!
//! # Which tier
//!
//! The limit is on promotions, and a promotion from a slow tier costs more than one from a quick
//! one. So each tier has a threshold of its own, at which the promotions of what is older, *each
//! counted with the tier's latency over the quickest tier's*, keep within the same limit: the
//! break-even of equation 8 at equal loss of time. A tier of three times the latency gets pages of
//! which a third as many come back, which are older ones. Of the tiers whose threshold a region
//! has reached it goes to the one that keeps it for the least money; as it ages it moves on to
//! cheaper ones, never back.

use std::collections::HashMap;

use super::{Plan, Policy, RegionView, Why};
use crate::coldage::{ColdAge, Control, Facts, RegionAges, Settings};
use crate::cost::{self, TierCost};
use crate::tier::{TierId, MAX_TIERS};

/// Least that a tier must save on a page to be worth a move, as a share of its price in DRAM.
const WORTH: f64 = 0.02;
/// Least pages of a region that came back in a minute for the region to be brought home.
const PROMOTED_MIN: u16 = 2;

/// What the policy is doing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FarMemory {
    /// The first seconds: the history is too short to choose a threshold.
    WarmingUp,
    /// Cold pages go down.
    Open,
    /// The application is at its memory limit: nothing more goes down.
    AtLimit,
}

/// The policy; see the head of the file.
#[derive(Debug)]
pub struct ColdAgePolicy {
    control: Control,
    /// By region: its ages, and the plan that it was last in.
    ages: HashMap<u64, (RegionAges, u32)>,
    plans: u32,
}

/// A region that is old enough to go down.
struct Candidate {
    index: usize,
    age: u8,
    to: TierId,
}

impl ColdAgePolicy {
    /// A policy before its first window.
    pub fn new(settings: Settings) -> ColdAgePolicy {
        ColdAgePolicy { control: Control::new(settings), ages: HashMap::new(), plans: 0 }
    }

    /// The loop, for what it knows.
    pub fn control(&self) -> &Control {
        &self.control
    }

    /// Takes in the window: ages, histograms, and the thresholds if a minute ends.
    fn take_in(&mut self, regions: &[RegionView], tiers: &[TierCost]) {
        let (control, plans) = (&mut self.control, self.plans);
        let is_scan = control.is_scan();
        control.begin_window();
        for region in regions {
            let (resident, stored) = counts(region);
            let new = || (RegionAges::new(stored > 0), plans);
            let (ages, seen_in) = self.ages.entry(region.id).or_insert_with(new);
            *seen_in = plans;
            if let Some(seen) = region.seen {
                let touched = ages.observe(seen, resident);
                control.take(&touched, ages.is_refused());
            }
            if is_scan {
                control.take_scan(ages, resident, stored);
            }
        }
        self.ages.retain(|_, (_, seen_in)| *seen_in == plans);
        let latencies: Vec<f64> = tiers[1..].iter().map(|tier| tier.fault_ns).collect();
        control.end_window(&latencies);
    }

    /// The cheapest tier for pages of this age that is cheaper than `paid` dollars a page.
    fn tier_for(&self, age: u8, region: &RegionView, tiers: &[TierCost], paid: f64) -> TierId {
        let worth = tiers[0].usd_per_page_month() * WORTH;
        let mut best = (TierId::DRAM, paid - worth);
        for (n, tier) in tiers.iter().enumerate().skip(1) {
            let usd = usd_in(region, n, tier);
            if self.control.threshold(n - 1).is_reached_by(age) && usd < best.1 {
                best = (TierId(n as u8), usd);
            }
        }
        best.0
    }

    /// Where a region goes, if anywhere.
    fn candidate(
        &self,
        index: usize,
        region: &RegionView,
        tiers: &[TierCost],
    ) -> Option<Candidate> {
        let (ages, _) = self.ages.get(&region.id)?;
        let (resident, stored) = counts(region);
        let dram = tiers[0].usd_per_page_month();
        if region.pages == 0 || resident > 0 && !ages.is_ready() {
            return None;
        }
        if resident > 0 && stored == 0 {
            let age = ages.proven(ages.home_age());
            let to = self.tier_for(age, region, tiers, dram);
            return (to != TierId::DRAM).then_some(Candidate { index, age, to });
        }
        // Part of it is down, or all. What moves is the region, so that both parts must be old.
        let lowest = (0..tiers.len() - 1).map(|n| self.control.threshold(n)).min();
        let is_old = lowest.unwrap_or(ColdAge::Never).is_reached_by(ages.proven(ages.home_age()));
        if resident > 0 && !is_old {
            return None;
        }
        let now = usize::from(region.tier_index(tiers));
        let paid = if now == 0 { dram } else { usd_in(region, now, &tiers[now]) };
        let further = self.tier_for(ages.stored_age(), region, tiers, paid);
        let to = match (further, resident > 0) {
            (TierId::DRAM, true) => region.tier,
            (further, _) => further,
        };
        (to != TierId::DRAM).then_some(Candidate { index, age: ages.home_age(), to })
    }

    /// The regions to bring home if the limit is broken: those with the most promotions, until what
    /// the others had in this minute is as many as are meant. One that a single page came back of
    /// is not to blame.
    fn recall(&mut self, regions: &[RegionView]) -> Vec<usize> {
        let Some(meant) = self.control.meant_if_over() else { return Vec::new() };
        let promoted = |(index, region): (usize, &RegionView)| {
            let (ages, _) = self.ages.get(&region.id)?;
            (counts(region).1 > 0).then_some((ages.promoted(), index))
        };
        let mut all: Vec<(u16, usize)> = regions.iter().enumerate().filter_map(promoted).collect();
        let mut left: f64 = all.iter().map(|&(promoted, _)| f64::from(promoted)).sum();
        let by_id = |index: usize| regions[index].id;
        all.sort_by(|a, b| b.0.cmp(&a.0).then(by_id(a.1).cmp(&by_id(b.1))));
        let mut recalled = Vec::new();
        for (promoted, index) in all {
            if left <= meant || promoted < PROMOTED_MIN {
                break;
            }
            left -= f64::from(promoted);
            if let Some((ages, _)) = self.ages.get_mut(&regions[index].id) {
                ages.recall();
            }
            recalled.push(index);
        }
        recalled
    }

    /// The moves of this window, and how many regions wait for a later one.
    fn choose(&mut self, regions: &[RegionView], tiers: &[TierCost]) -> (Vec<Candidate>, u64) {
        let mut all: Vec<Candidate> = regions
            .iter()
            .enumerate()
            .filter_map(|(index, region)| self.candidate(index, region, tiers))
            .collect();
        all.sort_by(|a, b| b.age.cmp(&a.age).then(regions[a.index].id.cmp(&regions[b.index].id)));
        let (mut home, mut far) = (0.0, 0.0);
        for region in regions {
            let (resident, stored) = counts(region);
            home += f64::from(resident);
            far += f64::from(stored);
        }
        let (home_min, far_max) = (self.control.soft_limit_pages(), self.control.far_pages_max());
        let mut waiting = 0;
        all.retain(|candidate| {
            let (resident, _) = counts(&regions[candidate.index]);
            let pages = f64::from(resident);
            let fits = pages == 0.0 || home - pages >= home_min && far + pages <= far_max;
            waiting += u64::from(!fits);
            if fits {
                home -= pages;
                far += pages;
            }
            fits
        });
        for candidate in &all {
            let region = &regions[candidate.index];
            let (resident, stored) = counts(region);
            if let (Some((ages, _)), true) = (self.ages.get_mut(&region.id), resident > 0) {
                ages.send_down(resident, stored);
            }
        }
        (all, waiting)
    }
}

/// Pages at home and in tiers.
fn counts(region: &RegionView) -> (u16, u16) {
    let resident = region.resident.min(region.pages);
    (resident.min(512) as u16, (region.pages - resident).min(512) as u16)
}

/// Price of a page of the region in a tier, in US dollars per month.
fn usd_in(region: &RegionView, n: usize, tier: &TierCost) -> f64 {
    let ratio = region.ratios.get(n).unwrap_or(tier.ratio);
    TierCost { ratio, ..*tier }.usd_per_page_month()
}

impl Policy for ColdAgePolicy {
    fn limit(&mut self, is_reached: bool) {
        self.control.limit(is_reached);
    }

    fn cold_age(&self) -> Option<&Facts> {
        Some(self.control.facts())
    }

    fn plan(&mut self, regions: &[RegionView], tiers: &[TierCost]) -> Plan {
        let tiers = &tiers[..tiers.len().min(MAX_TIERS)];
        if tiers.len() < 2 {
            return Plan::empty(regions, tiers, Why::NothingToPlan);
        }
        self.plans = self.plans.wrapping_add(1);
        self.take_in(regions, tiers);
        let state = match self.control.facts() {
            facts if !facts.is_warm => FarMemory::WarmingUp,
            facts if facts.is_at_limit => FarMemory::AtLimit,
            _ => FarMemory::Open,
        };
        // At the memory limit nothing is brought back either: it would need memory.
        let ((chosen, waiting), recalled) = match state {
            FarMemory::Open => (self.choose(regions, tiers), self.recall(regions)),
            _ => ((Vec::new(), 0), Vec::new()),
        };
        if self.control.is_minute() {
            self.ages.values_mut().for_each(|(ages, _)| ages.end_minute());
        }

        let mut to: Vec<u8> = regions.iter().map(|region| region.tier_index(tiers)).collect();
        let mut moves = vec![false; regions.len()];
        for candidate in &chosen {
            to[candidate.index] = candidate.to.0;
            moves[candidate.index] = true;
        }
        for &index in &recalled {
            to[index] = TierId::DRAM.0;
            moves[index] = true;
        }
        let facts = self.control.facts();
        let settings = self.control.settings();
        let lowest = (0..tiers.len() - 1).filter_map(|n| self.control.threshold(n).periods()).min();
        let why = Why::ColdAge {
            state,
            threshold_s: lowest.map(|periods| f64::from(periods) * settings.scan_s),
            rate: facts.promotion_rate,
            allowed: settings.promotion_rate,
            coverage: facts.coverage(),
            sent: chosen.len() as u64,
            waiting,
            recalled: recalled.len() as u64,
        };
        let mut plan = Plan::to_tiers(regions, tiers, &to, why);
        plan.moves.retain(|step| moves[step.region as usize]);
        // What came back stays where it is, unless it was chosen.
        for (index, region) in regions.iter().enumerate().filter(|(index, _)| !moves[*index]) {
            let back = u64::from(counts(region).0);
            if to[index] != 0 {
                plan.recommended[usize::from(to[index])] -= back.min(u64::from(region.pages));
                plan.recommended[0] += back.min(u64::from(region.pages));
            }
        }
        plan.expected_tco = cost::tco(&plan.recommended, tiers);
        plan
    }
}

#[cfg(test)]
#[path = "cold_age_tests.rs"]
mod tests;
