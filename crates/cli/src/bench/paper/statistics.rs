//! Medians, what they can be trusted to, and what is noise.

use serde::{Deserialize, Serialize};

/// Share of cases in which an interval shall hold the true median.
const COVERAGE: f64 = 0.93;

/// A median with an interval.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
pub(super) struct Estimate {
    /// The median.
    pub median: f64,
    /// Lower end of the interval.
    pub low: f64,
    /// Upper end.
    pub high: f64,
    /// How sure the interval is, 0 to 1; 0 for a single value.
    pub coverage: f64,
    /// How many values there were.
    pub n: usize,
}

impl Estimate {
    /// By order statistics: the narrowest pair of the sorted values, counted from both ends, that
    /// holds the median in 93 % of cases, whatever the distribution; all of them where there are
    /// too few (five values: 93.75 %).
    pub(super) fn of(values: impl IntoIterator<Item = f64>) -> Estimate {
        let mut values: Vec<f64> = values.into_iter().filter(|v| v.is_finite()).collect();
        values.sort_by(f64::total_cmp);
        let n = values.len();
        if n == 0 {
            return Estimate::default();
        }
        let mut skip = 0;
        while 2 * (skip + 1) < n && coverage(n, skip + 1) >= COVERAGE {
            skip += 1;
        }
        let coverage = if n > 1 { coverage(n, skip) } else { 0.0 };
        Estimate {
            median: median(&values),
            low: values[skip],
            high: values[n - 1 - skip],
            coverage,
            n,
        }
    }

    /// Half the width of the interval.
    pub(super) fn half_width(&self) -> f64 {
        (self.high - self.low) / 2.0
    }
}

/// Chance that the true median lies between the values `skip` from either end of `n`.
fn coverage(n: usize, skip: usize) -> f64 {
    // Outside if at most `skip` of n tosses fall on one side.
    let mut ways = 1.0;
    let mut outside = 0.0;
    for k in 0..=skip {
        outside += ways;
        ways *= (n - k) as f64 / (k + 1) as f64;
    }
    1.0 - 2.0 * outside / 2f64.powi(n as i32)
}

/// Of sorted values; the mean of the middle two where there are two.
fn median(sorted: &[f64]) -> f64 {
    let n = sorted.len();
    (sorted[(n - 1) / 2] + sorted[n / 2]) / 2.0
}

/// What equal runs differ by: `pairs` are two runs of plain DRAM, one soon after the other. The
/// median of their differences as a share of the smaller; of few pairs, the largest.
pub(super) fn noise(pairs: &[(f64, f64)]) -> f64 {
    const PAIRS_FOR_MEDIAN: usize = 4;
    let difference = |&(a, b): &(f64, f64)| a.max(b) / a.min(b) - 1.0;
    let mut all: Vec<f64> = pairs.iter().map(difference).filter(|d| d.is_finite()).collect();
    all.sort_by(f64::total_cmp);
    match all.len() {
        0 => f64::INFINITY,
        n if n < PAIRS_FOR_MEDIAN => all[n - 1],
        _ => median(&all),
    }
}

/// What can be said about a promise.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Verdict {
    /// It holds, noise allowed for.
    Met,
    /// It does not, noise allowed for.
    Missed,
    /// Within the noise, or it was not measured.
    Undecided,
}

impl Verdict {
    /// `value` shall be at least `bar`, and may be wrong by `noise` either way.
    pub(super) fn at_least(value: f64, bar: f64, noise: f64) -> Verdict {
        if !value.is_finite() || !noise.is_finite() {
            Verdict::Undecided
        } else if value - noise >= bar {
            Verdict::Met
        } else if value + noise < bar {
            Verdict::Missed
        } else {
            Verdict::Undecided
        }
    }

    /// All must hold: one that is missed is enough to miss.
    pub(super) fn all(verdicts: impl IntoIterator<Item = Verdict>) -> Verdict {
        let mut all = None;
        for v in verdicts {
            all = Some(match (all, v) {
                (Some(Verdict::Missed), _) | (_, Verdict::Missed) => Verdict::Missed,
                (Some(Verdict::Undecided), _) | (_, Verdict::Undecided) => Verdict::Undecided,
                _ => Verdict::Met,
            });
        }
        all.unwrap_or(Verdict::Undecided)
    }

    /// In a word.
    pub(super) fn word(self) -> &'static str {
        match self {
            Verdict::Met => "met",
            Verdict::Missed => "missed",
            Verdict::Undecided => "undecided",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn five_values_span_their_interval() {
        let e = Estimate::of([3.0, 1.0, 2.0, 9.0, 4.0]);
        assert_eq!((e.median, e.low, e.high, e.n), (3.0, 1.0, 9.0, 5));
        assert!((e.coverage - 0.9375).abs() < 1e-12);
        // Nine: the second from either end, 1 - 2 * 10/512; the third would be 0.82.
        let e = Estimate::of((0..9).map(f64::from));
        assert_eq!((e.low, e.high), (1.0, 7.0));
        assert!((e.coverage - (1.0 - 20.0 / 512.0)).abs() < 1e-12);
    }

    #[test]
    fn few_values_say_so() {
        assert_eq!(Estimate::of([]), Estimate::default());
        let one = Estimate::of([0.5, f64::NAN]);
        assert_eq!((one.median, one.low, one.high, one.coverage), (0.5, 0.5, 0.5, 0.0));
        let two = Estimate::of([1.0, 2.0]);
        assert_eq!((two.median, two.half_width(), two.coverage), (1.5, 0.5, 0.5));
    }

    #[test]
    fn noise_is_the_typical_difference_of_equal_runs() {
        assert_eq!(noise(&[]), f64::INFINITY);
        assert_eq!(noise(&[(100.0, 110.0), (100.0, 100.0)]), 110.0 / 100.0 - 1.0);
        let pairs = [(1.0, 1.0), (1.25, 1.0), (1.0, 1.5), (1.0, 9.0), (1.0, 1.0)];
        assert_eq!(noise(&pairs), 0.25);
    }

    #[test]
    fn a_promise_within_the_noise_is_undecided() {
        assert_eq!(Verdict::at_least(0.25, 0.2, 0.04), Verdict::Met);
        assert_eq!(Verdict::at_least(0.22, 0.2, 0.04), Verdict::Undecided);
        assert_eq!(Verdict::at_least(0.18, 0.2, 0.04), Verdict::Undecided);
        assert_eq!(Verdict::at_least(0.10, 0.2, 0.04), Verdict::Missed);
        assert_eq!(Verdict::at_least(f64::NAN, 0.2, 0.04), Verdict::Undecided);
        assert_eq!(Verdict::at_least(9.0, 0.2, f64::INFINITY), Verdict::Undecided);
        use Verdict::{Met, Missed, Undecided};
        assert_eq!(Verdict::all([Met, Undecided, Missed]), Missed);
        assert_eq!(Verdict::all([Met, Undecided]), Undecided);
        assert_eq!(Verdict::all([Met, Met]), Met);
        assert_eq!(Verdict::all([]), Undecided);
    }
}
