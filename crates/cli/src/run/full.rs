//! Which media hold as much as they may (`capacity_mib`).

use std::fmt;

use terrace_core::state::REGION_BYTES;
use terrace_core::tier::{Medium, TierId};
use terrace_core::wire::REFUSALS;

use super::decisions::Snapshot;
use crate::config::Config;

/// Bytes of a page.
const PAGE_BYTES: f64 = 4096.0;

/// Least share of what a medium may hold at which refusals count: they are counted since the start,
/// and what has left it since is room.
const HELD_MIN: f64 = 0.5;

/// Media that are full, and their tiers.
pub(super) struct FullMedia<'a>(Vec<FullMedium<'a>>);

struct FullMedium<'a> {
    medium: &'a Medium,
    tiers: Vec<TierId>,
    /// Whether pages found no room there.
    has_refused: bool,
}

impl<'a> FullMedia<'a> {
    /// Those which the last plan fills, so that there is no room for another region, and those that
    /// have refused pages for want of room and are not nearly empty since.
    pub(super) fn of(config: &'a Config, last: &Snapshot) -> FullMedia<'a> {
        let mut full = Vec::new();
        for medium in config.media.iter().filter(|m| m.place.capacity_bytes > 0) {
            let on = |(_, tier): &(usize, &terrace_core::tier::TierSpec)| {
                tier.medium.name == medium.name
            };
            let tiers: Vec<TierId> = config
                .tiers
                .iter()
                .enumerate()
                .filter(on)
                .map(|(n, _)| TierId(n as u8 + 1))
                .collect();
            let reports = || tiers.iter().filter_map(|t| last.report.tiers.get(t.index() - 1));
            let refusals: u64 = reports().map(|tier| tier.refused[refused_for_room()]).sum();
            let held: u64 = reports().map(|tier| tier.pool_bytes).sum();
            let capacity = medium.place.capacity_bytes as f64;
            let has_refused = refusals > 0 && held as f64 >= HELD_MIN * capacity;
            let ratio = |tier: &TierId| last.tiers.get(tier.index()).map_or(1.0, |t| t.ratio);
            let one_more = REGION_BYTES as f64 * tiers.iter().map(ratio).fold(1.0, f64::min);
            if has_refused || planned_bytes(last, &tiers) + one_more > capacity {
                full.push(FullMedium { medium, tiers, has_refused });
            }
        }
        full.retain(|medium| !medium.tiers.is_empty());
        FullMedia(full)
    }

    fn find(&self, tier: TierId) -> Option<&FullMedium<'a>> {
        self.0.iter().find(|medium| medium.tiers.contains(&tier))
    }

    /// Whether a tier's medium is full.
    pub(super) fn is_full(&self, tier: TierId) -> bool {
        self.find(tier).is_some()
    }

    /// Whether pages that were on their way to a tier found no room in its medium.
    pub(super) fn has_refused(&self, tier: TierId) -> bool {
        self.find(tier).is_some_and(|medium| medium.has_refused)
    }
}

/// What would help, medium by medium.
impl fmt::Display for FullMedia<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, full) in self.0.iter().enumerate() {
            let (name, mib) = (&full.medium.name, full.medium.place.capacity_bytes >> 20);
            let and = if n > 0 { ", and " } else { "" };
            write!(f, "{and}raise capacity_mib of {name:?}, which is {mib}")?;
        }
        write!(f, ", or add a tier on another medium")
    }
}

/// Position of "no room" among the reasons of a refusal.
fn refused_for_room() -> usize {
    REFUSALS.iter().position(|reason| *reason == "pool_full").expect("a reason of the protocol")
}

/// What the last plan would have in these tiers if nothing of it came back, in bytes.
fn planned_bytes(last: &Snapshot, tiers: &[TierId]) -> f64 {
    let bytes = |(index, view): (usize, &terrace_core::plan::RegionView)| {
        let chosen = last.chosen(index);
        if !tiers.contains(&chosen) {
            return 0.0;
        }
        let average = last.tiers.get(chosen.index()).map_or(1.0, |tier| tier.ratio);
        let ratio = view.ratios.get(chosen.index()).unwrap_or(average);
        (f64::from(view.pages) - view.pages_refused()) * PAGE_BYTES * ratio
    };
    last.views.iter().enumerate().map(bytes).sum()
}
