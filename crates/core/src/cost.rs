//! What a placement costs, in time and in money: TierScape's equations 1 to 12.
//!
//! Time is nanoseconds of fault service per window, money is US dollars per month. One constant
//! joins the paper's price of a 4 KiB page (`USD_DRAM`, `USD_Ty`) to the price of a GiB that people
//! know: [`PAGES_PER_GIB`].
//!
//! The paper divides by a compressibility `C_T` = original / stored (equation 11). Here a tier has
//! a [`TierCost::ratio`] = stored / original, its inverse, because that is what a pool measures and
//! it stays finite for an empty tier.

/// 4 KiB pages in a GiB.
pub const PAGES_PER_GIB: f64 = 262_144.0;

/// A core in US dollars per month, until an operator gives a better figure: hardly more than
/// nothing, as for a core that would idle. Clouds charge for one more virtual CPU 7 to 10 times
/// what they charge for one more GiB; with DRAM at 0.30 that would be 2 to 3 dollars.
pub const USD_PER_CORE_MONTH: f64 = 0.02;

/// Bytes in a GiB.
pub const BYTES_PER_GIB: f64 = 1_073_741_824.0;

/// `k_y` of equation 8: faults per distinct page touched. The paper uses 1; so do we, and with
/// hotness counted in distinct pages it is not only a convention.
pub const K_Y: f64 = 1.0;

/// Processor time of moving a page where it is not known how long the tier takes, in nanoseconds:
/// between lz4 or lzo (8 to 9 us in all; `terrace bench demote`) and deflate (38).
/// Also what bringing a page home is taken to cost.
pub const MOVE_NS_PER_PAGE: f64 = 20_000.0;

/// Processor time of taking a page out of memory, beside encoding it, in nanoseconds.
pub const TAKE_OUT_NS: f64 = 3_000.0;

/// What the planner needs to know about a tier. Index 0 of a slice of these is DRAM.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct TierCost {
    /// Time to serve one fault from the tier, in nanoseconds (`Lat_Ty`); 0 for DRAM.
    pub fault_ns: f64,
    /// Processor time of moving one page to the tier, in nanoseconds: taking it out of memory or
    /// decoding it, encoding it, and putting it away; for DRAM, bringing it home.
    pub move_ns: f64,
    /// Price of the *medium* in US dollars per GiB and month.
    pub usd_per_gib_month: f64,
    /// Stored bytes / original bytes, pool overhead included; 1 for DRAM. Above 1 where a tier
    /// wastes more than it saves. Inverse of `C_T` in equation 11.
    pub ratio: f64,
}

impl TierCost {
    /// Plain memory at a price in US dollars per GiB and month.
    pub fn dram(usd_per_gib_month: f64) -> TierCost {
        TierCost { fault_ns: 0.0, move_ns: MOVE_NS_PER_PAGE, usd_per_gib_month, ratio: 1.0 }
    }

    /// Price of keeping one page of original data in the tier, in US dollars per month:
    /// `(1 / C_T) * USD_T` of equations 10 and 12.
    pub fn usd_per_page_month(&self) -> f64 {
        self.ratio * self.usd_per_gib_month / PAGES_PER_GIB
    }

    /// Whether every figure is finite and not negative. Measured values can fail this when nothing
    /// was measured yet (0 / 0); the planner must not be handed such a tier.
    pub fn is_valid(&self) -> bool {
        [self.fault_ns, self.move_ns, self.usd_per_gib_month, self.ratio]
            .iter()
            .all(|figure| figure.is_finite() && *figure >= 0.0)
    }
}

/// Index of the tier that keeps a page for the least money, the first of equals; 0 if there is none
/// but DRAM or the slice is empty. The paper takes the last tier for it (section 5.2.1).
pub fn cheapest_tier(tiers: &[TierCost]) -> usize {
    let mut best = 0;
    for (index, tier) in tiers.iter().enumerate().skip(1) {
        if tier.usd_per_page_month() < tiers[best].usd_per_page_month() {
            best = index;
        }
    }
    best
}

/// Equation 9, `TCO_max`: all `pages` in DRAM, in US dollars per month.
pub fn tco_max(pages: u64, tiers: &[TierCost]) -> f64 {
    tiers.first().map_or(0.0, |dram| pages as f64 * dram.usd_per_page_month())
}

/// Equation 10, `TCO_min`: all `pages` in the cheapest tier, in US dollars per month.
pub fn tco_min(pages: u64, tiers: &[TierCost]) -> f64 {
    tiers
        .get(cheapest_tier(tiers))
        .map_or(0.0, |cheapest| pages as f64 * cheapest.usd_per_page_month())
}

/// Equation 1, `MTS`: the most that can be saved, in US dollars per month; never negative.
pub fn mts(pages: u64, tiers: &[TierCost]) -> f64 {
    tco_max(pages, tiers) - tco_min(pages, tiers)
}

/// Right-hand side of equation 2: the budget that knob `alpha` (0 to 1) allows, in US dollars per
/// month. 1 is all of DRAM, 0 everything in the cheapest tier.
pub fn budget(alpha: f64, pages: u64, tiers: &[TierCost]) -> f64 {
    tco_min(pages, tiers) + alpha * mts(pages, tiers)
}

/// Equations 3 to 5 for one tier: `faults * Lat_T`, in nanoseconds.
pub fn fault_time_ns(faults: f64, tier: &TierCost) -> f64 {
    faults * tier.fault_ns
}

/// Equation 6: time spent in faults, in nanoseconds, with `faults[y]` of tier `y` *known* (measured
/// after the window, or simulated).
pub fn perf_overhead_measured_ns(faults: &[f64], tiers: &[TierCost]) -> f64 {
    faults.iter().zip(tiers).map(|(&count, tier)| fault_time_ns(count, tier)).sum()
}

/// Equations 7 and 8: time that faults *will* take in the next window, in nanoseconds, where
/// `hotness[y]` is the sum of the hotness (distinct pages per window) of the regions in tier `y`.
/// `k_y` is [`K_Y`] unless there is a better figure.
pub fn perf_overhead_expected_ns(hotness: &[f64], tiers: &[TierCost], k_y: f64) -> f64 {
    hotness.iter().zip(tiers).map(|(&hot, tier)| fault_time_ns(k_y * hot, tier)).sum()
}

/// Equation 12: money for `pages[y]` pages in each tier `y`, in US dollars per month.
pub fn tco(pages: &[u64], tiers: &[TierCost]) -> f64 {
    pages.iter().zip(tiers).map(|(&count, tier)| count as f64 * tier.usd_per_page_month()).sum()
}

/// Share of `all_dram` that is saved by paying `paid`: 0 to 1, and *below* 0 when the placement
/// costs more than plain DRAM would. 0 when there is no data.
pub fn tco_saved(paid: f64, all_dram: f64) -> f64 {
    if all_dram > 0.0 {
        1.0 - paid / all_dram
    } else {
        0.0
    }
}

/// What a compressed tier holds, as measured.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct MeasuredTier {
    /// Application bytes that live in the tier.
    pub original_bytes: u64,
    /// Bytes that its pool occupies for them: payload, slack and metadata.
    pub pool_bytes: u64,
    /// Price of the medium in US dollars per GiB and month.
    pub usd_per_gib_month: f64,
}

/// Equation 12 on bytes that were counted rather than expected.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct MeasuredTco {
    /// What the memory costs as it is, in US dollars per month.
    pub usd_per_month: f64,
    /// What the same data would cost in DRAM (equation 9), in US dollars per month.
    pub usd_per_month_all_dram: f64,
    /// [`tco_saved`] of the two.
    pub saved: f64,
}

/// Prices `resident_bytes` in DRAM at `dram_usd_per_gib_month` plus the pools of `tiers`.
pub fn tco_measured(
    resident_bytes: u64,
    dram_usd_per_gib_month: f64,
    tiers: &[MeasuredTier],
) -> MeasuredTco {
    let usd = |bytes: u64, price: f64| bytes as f64 / BYTES_PER_GIB * price;
    let original: u64 = tiers.iter().map(|tier| tier.original_bytes).sum();
    let pools: f64 = tiers.iter().map(|tier| usd(tier.pool_bytes, tier.usd_per_gib_month)).sum();
    let usd_per_month = usd(resident_bytes, dram_usd_per_gib_month) + pools;
    let usd_per_month_all_dram = usd(resident_bytes + original, dram_usd_per_gib_month);
    MeasuredTco {
        usd_per_month,
        usd_per_month_all_dram,
        saved: tco_saved(usd_per_month, usd_per_month_all_dram),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// DRAM at 4 dollars, a 2:1 tier in DRAM and a 4:1 tier on a medium of half the price.
    fn three() -> [TierCost; 3] {
        [
            TierCost::dram(4.0),
            TierCost { fault_ns: 5_000.0, ratio: 0.5, ..TierCost::dram(4.0) },
            TierCost {
                fault_ns: 20_000.0,
                usd_per_gib_month: 2.0,
                ratio: 0.25,
                ..TierCost::dram(4.0)
            },
        ]
    }

    #[test]
    fn equations_9_10_1_and_2_by_hand() {
        let gib = PAGES_PER_GIB as u64;
        // 10 GiB: in DRAM 10 * 4 = 40; in T2 10 * 0.25 * 2 = 5; MTS = 35.
        assert_eq!(tco_max(10 * gib, &three()), 40.0);
        assert_eq!(tco_min(10 * gib, &three()), 5.0);
        assert_eq!(mts(10 * gib, &three()), 35.0);
        // alpha = 0.2: 5 + 0.2 * 35 = 12.
        assert!((budget(0.2, 10 * gib, &three()) - 12.0).abs() < 1e-12);
        assert_eq!(budget(1.0, 10 * gib, &three()), 40.0);
        assert_eq!(budget(0.0, 10 * gib, &three()), 5.0);
    }

    #[test]
    fn equation_12_by_hand() {
        let gib = PAGES_PER_GIB as u64;
        // 5 * 4 + 3 * 0.5 * 4 + 2 * 0.25 * 2 = 20 + 6 + 1 = 27 of 40: 32.5 % saved.
        let paid = tco(&[5 * gib, 3 * gib, 2 * gib], &three());
        assert_eq!(paid, 27.0);
        assert!((tco_saved(paid, 40.0) - 0.325).abs() < 1e-12);
    }

    #[test]
    fn equations_5_6_and_8_by_hand() {
        // 100 * 5 us + 10 * 20 us = 700 us; faults "from DRAM" cost nothing.
        let faults = [1_000.0, 100.0, 10.0];
        assert_eq!(fault_time_ns(100.0, &three()[1]), 500_000.0);
        assert_eq!(perf_overhead_measured_ns(&faults, &three()), 700_000.0);
        assert_eq!(perf_overhead_expected_ns(&faults, &three(), K_Y), 700_000.0);
        assert_eq!(perf_overhead_expected_ns(&faults, &three(), 0.5), 350_000.0);
    }

    #[test]
    fn the_cheapest_tier_need_not_be_the_last() {
        let mut tiers = three();
        tiers.swap(1, 2);
        assert_eq!(cheapest_tier(&tiers), 1);
        // Nothing compresses here: DRAM itself is the cheapest and there is nothing to save.
        let useless = [three()[0], TierCost { ratio: 1.3, ..three()[1] }];
        assert_eq!(cheapest_tier(&useless), 0);
        assert_eq!(mts(1_000, &useless), 0.0);
    }

    #[test]
    fn measured_bytes_by_hand() {
        let gib = 1u64 << 30;
        // 1 GiB resident at 4 = 4; 2 GiB kept in 1 GiB of pool at 4 = 4; 1 GiB kept in 0.25 at 2
        // = 0.5. Paid 8.5; all in DRAM 4 GiB * 4 = 16; saved 1 - 8.5 / 16 = 46.875 %.
        let measured = tco_measured(
            gib,
            4.0,
            &[
                MeasuredTier { original_bytes: 2 * gib, pool_bytes: gib, usd_per_gib_month: 4.0 },
                MeasuredTier { original_bytes: gib, pool_bytes: gib / 4, usd_per_gib_month: 2.0 },
            ],
        );
        assert_eq!(measured.usd_per_month, 8.5);
        assert_eq!(measured.usd_per_month_all_dram, 16.0);
        assert_eq!(measured.saved, 0.46875);
    }

    #[test]
    fn no_tiers_and_no_data_are_not_an_error() {
        assert_eq!(tco_max(5, &[]), 0.0);
        assert_eq!(tco_min(5, &[]), 0.0);
        assert_eq!(tco_saved(0.0, 0.0), 0.0);
        assert_eq!(tco_measured(0, 4.0, &[]).saved, 0.0);
        // A pool that is all overhead makes the saving negative; it must not be hidden.
        let waste = MeasuredTier { original_bytes: 100, pool_bytes: 150, usd_per_gib_month: 4.0 };
        assert!(tco_measured(0, 4.0, &[waste]).saved < 0.0);
        assert!(!TierCost { ratio: f64::NAN, ..TierCost::dram(1.0) }.is_valid());
    }
}
