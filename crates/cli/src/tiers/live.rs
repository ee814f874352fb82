//! Real faults through the runtime, and what they say about tiers that were not measured so.
//!
//! A live measurement is [`Subject`]'s: a child under `terrace run` with one tier fills memory,
//! waits until all of it has left, and touches it in random order. That takes seconds for each
//! tier, so tiers that cannot matter are composed: a fault is the load and decode, which
//! [`super::in_process`] has measured, and what all tiers have in common - two switches of threads,
//! the kernel, a copy. The common part is fitted on the tiers that were measured both ways, with a
//! factor for the load, which runs on colder caches in the middle of a fault than in a loop.

use super::in_process::Times;
use crate::bench::fault::Measured;

/// A factor on the time in a loop beyond these bounds is noise.
const FACTOR: std::ops::RangeInclusive<f64> = 0.7..=3.0;
/// Two loads that differ by less than this share of the slower say nothing about the factor.
const DISTANCE_MIN: f64 = 0.3;

/// Repetitions of one tier, live.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Live {
    /// Median and 99th percentile of each repetition, in nanoseconds.
    repetitions: Vec<(u64, u64)>,
}

impl Live {
    /// Takes a repetition in.
    pub fn add(&mut self, measured: &Measured) {
        let figures = &measured.figures;
        self.repetitions.push((figures.fault_ns_p50, figures.fault_ns_p99));
    }

    /// Medians of the repetitions; `None` before the first.
    pub fn times(&self) -> Option<Times> {
        let p50_ns = median(self.repetitions.iter().map(|r| r.0 as f64).collect())?;
        let p99_ns = median(self.repetitions.iter().map(|r| r.1 as f64).collect())?;
        Some(Times { p50_ns, p99_ns })
    }

    /// Half the distance between the fastest and the slowest median, as a share of the middle one;
    /// `None` with fewer than two repetitions.
    pub fn spread(&self) -> Option<f64> {
        let of = self.repetitions.iter().map(|r| r.0);
        let (least, most) = (of.clone().min()?, of.max()?);
        let middle = self.times()?.p50_ns;
        (self.repetitions.len() > 1).then(|| (most - least) as f64 / 2.0 / middle.max(1.0))
    }
}

/// What a fault is besides its load, and how a load in a fault compares with one in a loop.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Fit {
    /// Nanoseconds that every fault takes besides.
    pub overhead_ns: f64,
    /// Nanoseconds in a fault for one in the loop.
    pub factor: f64,
    /// What the 99th percentile has on top of the median besides the load's own, in nanoseconds.
    pub tail_ns: f64,
}

impl Fit {
    /// Fits tiers measured both ways, as (in process, live). Medians throughout (Theil and Sen), so
    /// that one disturbed measurement does not decide. `None` without any.
    pub fn of(both: &[(Times, Times)]) -> Option<Fit> {
        let mut factors = Vec::new();
        for (n, (a, live_a)) in both.iter().enumerate() {
            for (b, live_b) in &both[..n] {
                let apart = a.p50_ns - b.p50_ns;
                if apart.abs() > DISTANCE_MIN * a.p50_ns.max(b.p50_ns) {
                    factors.push((live_a.p50_ns - live_b.p50_ns) / apart);
                }
            }
        }
        let factor = median(factors).unwrap_or(1.0).clamp(*FACTOR.start(), *FACTOR.end());
        let rest = |(a, live): &(Times, Times)| live.p50_ns - factor * a.p50_ns;
        let overhead_ns = median(both.iter().map(rest).collect())?.max(0.0);
        let tail =
            |(a, live): &(Times, Times)| live.p99_ns - live.p50_ns - factor * (a.p99_ns - a.p50_ns);
        let tail_ns = median(both.iter().map(tail).collect())?.max(0.0);
        Some(Fit { overhead_ns, factor, tail_ns })
    }

    /// What a fault from a tier would take whose loads took `load` in a loop.
    pub fn compose(&self, load: Times) -> Times {
        let p50_ns = self.overhead_ns + self.factor * load.p50_ns;
        let p99_ns = p50_ns + self.tail_ns + self.factor * (load.p99_ns - load.p50_ns);
        Times { p50_ns, p99_ns }
    }
}

/// How far composed medians are from live ones: each tier composed from all the others, as a share
/// of what was measured; positive where composing says too much. Empty for fewer than three.
pub fn left_out_errors(both: &[(Times, Times)]) -> Vec<f64> {
    if both.len() < 3 {
        return Vec::new();
    }
    let error = |n: usize| {
        let others: Vec<_> = [&both[..n], &both[n + 1..]].concat();
        let composed = Fit::of(&others)?.compose(both[n].0);
        Some(composed.p50_ns / both[n].1.p50_ns - 1.0)
    };
    (0..both.len()).filter_map(error).collect()
}

/// The middle value, or the mean of the two; `None` for none.
pub fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let upper = *values.get(values.len() / 2)?;
    let lower = values[(values.len() - 1) / 2];
    Some((lower + upper) / 2.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::kernel_swap::ProbeFigures;

    fn times(p50_ns: f64, p99_ns: f64) -> Times {
        Times { p50_ns, p99_ns }
    }

    fn measured(p50: u64, p99: u64) -> Measured {
        let figures = ProbeFigures {
            pages: 10,
            resident_before: 0,
            faults: 10,
            fault_ns_p50: p50,
            fault_ns_p99: p99,
            fault_ns_p999: p99,
            fault_ns_max: p99,
            pageout_ns_per_page: 0.0,
            wrong_pages: 0,
        };
        Measured { figures, faults_in_timeline: None }
    }

    /// Faults of 10 us and 1.5 times the load, tails of 20 us.
    fn real(load: Times) -> (Times, Times) {
        let p50_ns = 10_000.0 + 1.5 * load.p50_ns;
        (load, times(p50_ns, p50_ns + 20_000.0 + 1.5 * (load.p99_ns - load.p50_ns)))
    }

    #[test]
    fn a_fit_finds_what_was_put_in() {
        let loads = [times(2e3, 3e3), times(4e3, 9e3), times(20e3, 30e3)];
        let both = loads.map(real);
        let fit = Fit::of(&both).unwrap();
        assert!((fit.factor - 1.5).abs() < 1e-9 && (fit.overhead_ns - 1e4).abs() < 1e-6);
        assert!((fit.tail_ns - 2e4).abs() < 1e-6);
        let (load, expected) = real(times(8e3, 10e3));
        assert!((fit.compose(load).p50_ns - expected.p50_ns).abs() < 1e-6);
        assert!((fit.compose(load).p99_ns - expected.p99_ns).abs() < 1e-6);
        assert!(left_out_errors(&both).iter().all(|e| e.abs() < 1e-9));
        assert!(left_out_errors(&both[..2]).is_empty());
    }

    #[test]
    fn one_disturbed_tier_does_not_decide() {
        let mut both: Vec<_> =
            (1..8).map(|n| real(times(n as f64 * 2e3, n as f64 * 3e3))).collect();
        both[3].1.p50_ns *= 3.0;
        let fit = Fit::of(&both).unwrap();
        assert!((fit.factor - 1.5).abs() < 0.1, "{fit:?}");
        let worst = left_out_errors(&both).into_iter().fold(0.0, |w: f64, e| w.max(e.abs()));
        assert!(worst > 0.5, "the disturbed tier itself is seen: {worst}");
    }

    #[test]
    fn one_tier_alone_gives_the_overhead_only() {
        let fit = Fit::of(&[real(times(2e3, 3e3))]).unwrap();
        assert_eq!((fit.factor, fit.overhead_ns), (1.0, 11_000.0));
        assert_eq!(Fit::of(&[]), None);
    }

    #[test]
    fn repetitions_become_medians_and_a_spread() {
        let mut live = Live::default();
        assert_eq!((live.times(), live.spread()), (None, None));
        live.add(&measured(10_000, 30_000));
        assert_eq!(live.spread(), None);
        live.add(&measured(90_000, 31_000));
        live.add(&measured(12_000, 90_000));
        assert_eq!(live.times(), Some(times(12_000.0, 31_000.0)));
        assert_eq!(live.spread(), Some(80.0 / 24.0));
    }
}
