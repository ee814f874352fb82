//! Regions and tiers for tests of policies.

use super::RegionView;
use crate::cost::TierCost;
use crate::tier::TierId;

/// DRAM and tiers that are each slower and cheaper than the one before.
pub(super) fn tiers(count: usize) -> Vec<TierCost> {
    (0..count)
        .map(|tier| TierCost {
            fault_ns: 1_000.0 * tier as f64,
            ratio: 1.0 / (1 + tier) as f64,
            ..TierCost::dram(4.0)
        })
        .collect()
}

/// A region that has been seen for long enough to be judged.
pub(super) fn region(id: u64, hotness: f32, tier: u8, resident: u32) -> RegionView {
    let tier = TierId(tier);
    RegionView { pages: 512, resident, hotness, windows_seen: 4, ..RegionView::at(id, tier) }
}
