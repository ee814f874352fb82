//! What each tier makes of the application's pages on average, by what the runtime tries on a few.
//!
//! All tiers are tried on the same pages, which lie at home. What a tier *holds* is no measure of
//! it beside another: a policy sends it the regions that gain most there. On Redis a tier of blocks
//! held eight regions of hardly anything; it was thought to shrink whatever came to 3 %, and zstd
//! to do no better than lz4. So that counts only where nothing could be tried.

use terrace_core::wire::TierReport;

/// A new trial counts for half, those before it for the rest: pages differ from one to the next,
/// and programs change.
const WEIGHT: f64 = 0.5;
/// Pages after which what a tier holds is a measure of it.
const PAGES_TO_TRUST: u64 = 2_048;

/// The trials of one application's tiers.
#[derive(Debug, Default)]
pub(super) struct Trials {
    /// By compressed tier.
    tiers: Vec<Tried>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Tried {
    /// The last trial: the share stored, with the pool and what is refused, and the share of what
    /// is taken that is left of it encoded, without the pool and with it; in thousandths. 0 for
    /// none.
    last: (u32, u32, u32),
    /// The means of these.
    ratio: f64,
    encoded: f64,
    packed: f64,
}

impl Trials {
    /// Takes in what a report says. (Between two trials reports repeat the last one.)
    pub(super) fn observe(&mut self, reports: &[TierReport]) {
        self.tiers.resize(reports.len(), Tried::default());
        for (tried, t) in self.tiers.iter_mut().zip(reports) {
            let encoded = t.estimated_encoded_milli;
            let trial = (t.estimated_ratio_milli, encoded, t.estimated_packed_milli);
            if trial.1 == 0 || trial == tried.last {
                continue;
            }
            let weight = if tried.last.1 == 0 { 1.0 } else { WEIGHT };
            tried.last = trial;
            tried.ratio += (f64::from(trial.0) / 1000.0 - tried.ratio) * weight;
            tried.encoded += (f64::from(trial.1) / 1000.0 - tried.encoded) * weight;
            tried.packed += (f64::from(trial.2) / 1000.0 - tried.packed) * weight;
        }
    }

    fn tried(&self, tier: usize) -> Option<&Tried> {
        self.tiers.get(tier).filter(|tried| tried.last.1 > 0)
    }

    /// Bytes of the pool of this compressed tier (counted from 0) / original bytes of pages that
    /// nobody has seen in a tier.
    pub(super) fn ratio(&self, tier: usize) -> Option<f64> {
        self.tried(tier).map(|tried| tried.ratio)
    }

    /// Encoded bytes / original bytes of pages that the tier takes, pool aside, as far as that can
    /// be compared with the other tiers'.
    pub(super) fn encoded(&self, tier: usize) -> Option<f64> {
        self.tried(tier).map(|tried| tried.encoded)
    }

    /// Bytes of the pool / original bytes of the same pages, where that depends on how unlike they
    /// are.
    pub(super) fn packed(&self, tier: usize) -> Option<f64> {
        self.tried(tier).map(|tried| tried.packed).filter(|&packed| packed > 0.0)
    }
}

/// Encoded bytes / original bytes of what a tier holds, once that is enough to go by.
pub(super) fn held(t: &TierReport) -> Option<f64> {
    let encoded = t.pages.saturating_sub(t.same_pages);
    (encoded >= PAGES_TO_TRUST).then(|| t.stored_bytes as f64 / (encoded * 4096) as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(estimated_ratio_milli: u32, estimated_encoded_milli: u32) -> TierReport {
        let estimated_packed_milli = estimated_ratio_milli / 2;
        TierReport {
            estimated_ratio_milli,
            estimated_encoded_milli,
            estimated_packed_milli,
            ..TierReport::default()
        }
    }

    #[test]
    fn trials_are_averaged_and_repeated_reports_are_not_trials() {
        let mut trials = Trials::default();
        assert_eq!(trials.ratio(0), None);
        // The second could not be tried: its figure is a guess.
        trials.observe(&[report(500, 400), report(500, 0)]);
        assert_eq!((trials.ratio(0), trials.encoded(0)), (Some(0.5), Some(0.4)));
        assert_eq!((trials.ratio(1), trials.encoded(1), trials.packed(1)), (None, None, None));
        assert_eq!(trials.packed(0), Some(0.25));
        trials.observe(&[report(300, 200), report(300, 100)]);
        trials.observe(&[report(300, 200), report(300, 100)]);
        assert_eq!((trials.ratio(0), trials.ratio(1)), (Some(0.4), Some(0.3)));
        assert!((trials.encoded(0).unwrap_or(0.0) - 0.3).abs() < 1e-9);
        // A window without any says nothing.
        trials.observe(&[report(0, 0), report(0, 0)]);
        assert_eq!(trials.ratio(0), Some(0.4));
        assert_eq!(trials.ratio(7), None);
    }

    #[test]
    fn what_a_tier_holds_counts_from_some_pages_on() {
        let holds = |pages, same_pages, stored_bytes| TierReport {
            pages,
            same_pages,
            stored_bytes,
            ..TierReport::default()
        };
        assert_eq!(held(&holds(2_047, 0, 4_096_000)), None);
        assert_eq!(held(&holds(4_096, 2_048, 2_048 * 1_024)), Some(0.25));
    }
}
