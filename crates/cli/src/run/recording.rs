//! What a window of an application is in a trace.

use terrace_core::cost::TierCost;
use terrace_core::hotness::PAGES_PER_REGION;
use terrace_core::plan::{Measured, Plan, RegionView};
use terrace_core::tier::TierId;
use terrace_core::wire::Report;

use crate::trace::{self, ProcessWindow, Row};

/// What a plan was made of, kept for the recorder.
pub(super) struct Known {
    pub(super) regions: Vec<RegionView>,
    pub(super) costs: Vec<TierCost>,
    pub(super) measured: Option<Measured>,
}

/// The regions of a window.
pub(super) fn rows<'a>(
    pid: u32,
    report: &'a Report,
    known: &'a Known,
    plan: Option<&Plan>,
) -> impl Iterator<Item = Row> + 'a {
    let mut to: Vec<Option<u8>> = vec![None; report.regions.len()];
    for step in plan.map_or(&[][..], |plan| &plan.moves) {
        to[step.region as usize] = Some(step.to.0);
    }
    report.regions.iter().zip(&known.regions).zip(to).map(move |((region, view), to)| Row {
        pid,
        window: report.window,
        region: region.region,
        // Counted page by page while pages move, so that some count twice.
        pages: view.pages.min(u32::from(PAGES_PER_REGION)) as u16,
        resident: region.resident,
        resident_at_open: region.resident_at_open,
        tier: region.tier,
        to,
        samples: region.samples,
        hits: region.hits,
        faults: region.faults.min(u32::from(u16::MAX)) as u16,
        touched: view.newest,
        stored_bytes: stored_bytes(view, &known.costs, region.stored),
        ratios: view.ratios,
    })
}

fn stored_bytes(view: &RegionView, costs: &[TierCost], stored: u16) -> u32 {
    let tier = view.tier.index().min(costs.len() - 1);
    if view.tier == TierId::DRAM {
        return 0;
    }
    let ratio = view.ratios.get(tier).unwrap_or(costs[tier].ratio);
    (f64::from(stored) * 4096.0 * ratio).round() as u32
}

/// The process in a window; `before` is its report of the window before.
pub(super) fn process(
    report: &Report,
    before: Option<&Report>,
    known: &Known,
    (managed_bytes, tco_saved): (u64, f64),
) -> ProcessWindow {
    let since = |of: fn(&Report) -> u64| of(report).saturating_sub(before.map_or(0, of));
    let moved = |r: &Report| r.demoted_pages + r.migrated_pages + r.promoted_pages;
    let measured = known.measured.unwrap_or_default();
    ProcessWindow {
        time_ms: 0,
        running_ns: measured.running_ns as u64,
        stalled_ns: since(|r| r.stalled_ns),
        cpu_ns: measured.cpu_ns as u64,
        contention: measured.contention as f32,
        moved_pages: since(moved).min(u64::from(u32::MAX)) as u32,
        ahead_pages: since(|r| r.ahead_pages).min(u64::from(u32::MAX)) as u32,
        served_faults: since(Report::served_faults).min(u64::from(u32::MAX)) as u32,
        managed_bytes,
        overhead_bytes: report.runtime_bytes
            + report.tiers.iter().map(|t| t.dram_bytes).sum::<u64>(),
        tco_saved: tco_saved as f32,
        pool_bytes: report.tiers.iter().map(|t| t.pool_bytes).sum(),
        known: trace::known(&known.costs),
    }
}
