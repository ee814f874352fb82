//! What the planner of a recorded run knew of its tiers, window by window.
//!
//! Latencies are measured as a run goes on, and ratios tried: a tier that seemed quick or dense for
//! a while was sent what it would not have been sent by what was known in the end. A policy that is
//! simulated has to be told the same.

use terrace_core::cost::TierCost;
use terrace_core::load::TierThen;
use terrace_core::plan::Ratios;
use terrace_core::tier::MAX_TIERS;

use crate::trace::{ProcessWindow, Row};

/// What each region's pages shrank to, in the tiers of the trace, as far as it was known by the
/// end; of rows in the order of regions and windows.
pub fn in_the_end<'a>(rows: &'a [&'a Row]) -> impl Iterator<Item = (&'a [&'a Row], Ratios)> {
    rows.chunk_by(|a, b| a.region == b.region).map(|rows| {
        let mut ratios = Ratios::UNKNOWN;
        for row in rows.iter().filter(|row| row.ratios != Ratios::UNKNOWN) {
            // The last that was known: it stands on most pages.
            for tier in 1..MAX_TIERS {
                if let Some(ratio) = row.ratios.get(tier) {
                    ratios.set(tier, ratio);
                }
            }
        }
        (rows, ratios)
    })
}

/// The simulated tiers as they were known in each window, from `first` on; none at all where the
/// trace does not say. `tiers` are what they cost where it says nothing of one, `from` names for
/// each that of the trace, and a fault took `fault_scale` of what it was taken to take.
pub fn tiers_then(
    (rows, first): (&[&Row], u32),
    processes: &[ProcessWindow],
    (tiers, from): (&[TierCost], &[Option<usize>]),
    fault_scale: f64,
) -> Vec<Vec<TierThen>> {
    let ratios_by = ratios_by(rows, first, processes.len());
    let mut then: Vec<TierThen> = tiers
        .iter()
        .map(|&told| TierThen { told, fault_ns: told.fault_ns, ratio_by: 1.0 })
        .collect();
    let (mut is_told, mut all) = (false, Vec::with_capacity(processes.len()));
    for (process, ratios_by) in processes.iter().zip(&ratios_by) {
        // (Where a window is missing things stay as they were.)
        for (then, of) in then.iter_mut().zip(from).skip(1) {
            let Some(of) = *of else { continue };
            let Some(known) = process.known.get(of).copied().flatten() else { continue };
            let told = TierCost {
                fault_ns: known.fault_ns.into(),
                ratio: known.ratio.into(),
                move_ns: known.move_ns.into(),
                ..then.told
            };
            // (A trace may say anything.)
            if told.is_valid() {
                let fault_ns = told.fault_ns * fault_scale;
                *then = TierThen { told, fault_ns, ratio_by: ratios_by[of] };
                is_told = true;
            }
        }
        all.push(then.clone());
    }
    match is_told {
        true => all,
        false => Vec::new(),
    }
}

/// By tier of the trace and window: what was known of regions' ratios by what was in the end.
fn ratios_by(rows: &[&Row], first: u32, windows: usize) -> Vec<[f64; MAX_TIERS]> {
    let mut sums = vec![[(0.0, 0.0); MAX_TIERS]; windows];
    for (rows, end) in in_the_end(rows) {
        for row in rows {
            let sums = &mut sums[(row.window - first) as usize];
            for (tier, sum) in sums.iter_mut().enumerate().skip(1) {
                if let (Some(then), Some(end)) = (row.ratios.get(tier), end.get(tier)) {
                    *sum = (sum.0 + then, sum.1 + end);
                }
            }
        }
    }
    let by = |(then, end): (f64, f64)| if end > 0.0 { then / end } else { 1.0 };
    sums.into_iter().map(|sums| sums.map(by)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::KnownCost;

    fn tiers() -> Vec<TierCost> {
        let tier = TierCost { fault_ns: 5e4, ratio: 0.5, ..TierCost::dram(0.3) };
        vec![TierCost::dram(0.3), tier, TierCost { fault_ns: 7e4, ..tier }]
    }

    fn row(window: u32, ratio: f64) -> Row {
        let mut ratios = Ratios::UNKNOWN;
        ratios.set(2, ratio);
        Row { window, ratios, ..Row::default() }
    }

    #[test]
    fn tiers_are_what_they_were_in_each_window() {
        let rows = [row(4, 0.2), row(5, 0.3), row(7, 0.4)];
        let rows: Vec<&Row> = rows.iter().collect();
        let processes = [Some(1e4), Some(2e4), None, Some(4e4)].map(|fault_ns| {
            let mut process = ProcessWindow::default();
            process.known[2] =
                fault_ns.map(|fault_ns| KnownCost { fault_ns, ratio: 0.25, move_ns: 9e3 });
            process
        });
        // The simulated machine has the trace's second tier as its first.
        let from = [Some(0), Some(2), None];
        let then = tiers_then((&rows, 4), &processes, (&tiers(), &from), 0.5);
        let of = |tier: usize| then.iter().map(move |then| then[tier]);
        assert!(of(1).map(|t| t.told.fault_ns).eq([1e4, 2e4, 2e4, 4e4]));
        assert!(of(1).map(|t| t.fault_ns).eq([5e3, 1e4, 1e4, 2e4]));
        assert!(of(1).all(|t| (t.told.ratio, t.told.move_ns) == (0.25, 9e3)));
        assert!((then[0][1].ratio_by - 0.5).abs() < 0.01, "{then:?}");
        assert!((then[3][1].ratio_by - 1.0).abs() < 0.01, "{then:?}");
        assert!(of(2).all(|t| t.told == tiers()[2] && t.fault_ns == 7e4 && t.ratio_by == 1.0));
        assert!(of(0).all(|t| t.told == TierCost::dram(0.3)));
    }

    #[test]
    fn a_trace_that_does_not_say_or_says_nonsense_tells_nothing() {
        let rows = [row(1, 0.2)];
        let rows: Vec<&Row> = rows.iter().collect();
        let from = [Some(0), Some(1), Some(2)];
        let says = |known: Option<KnownCost>| {
            let mut process = ProcessWindow::default();
            process.known[1] = known;
            tiers_then((&rows, 1), &[process], (&tiers(), &from), 1.0)
        };
        assert!(says(None).is_empty());
        let nonsense = KnownCost { fault_ns: f32::NAN, ratio: -1.0, move_ns: 0.0 };
        assert!(says(Some(nonsense)).is_empty());
        assert_eq!(says(Some(KnownCost { fault_ns: 1.0, ratio: 0.5, move_ns: 1.0 })).len(), 1);
    }
}
