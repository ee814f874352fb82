//! The order of runs: rounds over all workloads and configurations, each in an order of its own,
//! with plain DRAM before, between and after, so that what drifts on a machine drifts over all.

use super::configurations::Configuration;
use super::record::RunId;
use crate::demo::random::{mix, Random};

/// Runs of other configurations between two of plain DRAM.
const RUNS_BETWEEN_DRAM: usize = 4;
/// Name of the baseline.
pub(super) const DRAM: &str = "dram";

/// All runs in order. The same arguments give the same order; a workload, configuration or
/// repetition that is left out changes nothing about the others' order but their position.
pub(super) fn plan(
    workloads: &[String],
    configs: &[&Configuration],
    rounds: usize,
    seed: u64,
) -> Vec<RunId> {
    let mut runs = Vec::new();
    for round in 0..rounds {
        for workload in workloads {
            let mut others: Vec<&str> =
                configs.iter().filter(|c| !c.is_plain()).map(|c| c.name).collect();
            shuffle(&mut others, mix(seed ^ hash(workload)) ^ round as u64);
            let mut order = vec![DRAM];
            for some in others.chunks(RUNS_BETWEEN_DRAM) {
                order.extend(some);
                order.push(DRAM);
            }
            // Two of DRAM at least: one alone could not say how much the machine wavers.
            if order.len() == 1 {
                order.push(DRAM);
            }
            runs.extend(order.into_iter().enumerate().map(|(position, config)| RunId {
                workload: workload.clone(),
                config: config.to_owned(),
                round,
                position,
            }));
        }
    }
    runs
}

fn shuffle<T>(items: &mut [T], seed: u64) {
    let mut random = Random::new(seed);
    for i in (1..items.len()).rev() {
        items.swap(i, random.below(i as u64 + 1) as usize);
    }
}

fn hash(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |h, b| mix(h ^ u64::from(b)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::paper::configurations::ALL;

    #[test]
    fn every_configuration_runs_once_a_round_with_dram_around_it() {
        let workloads = vec!["redis".to_owned(), "bfs".to_owned()];
        let configs: Vec<&Configuration> = ALL.iter().collect();
        let runs = plan(&workloads, &configs, 3, 7);
        for round in 0..3 {
            for workload in &workloads {
                let names: Vec<&str> = runs
                    .iter()
                    .filter(|r| r.round == round && r.workload == *workload)
                    .map(|r| r.config.as_str())
                    .collect();
                assert_eq!((names.first(), names.last()), (Some(&DRAM), Some(&DRAM)));
                for c in ALL.iter().filter(|c| !c.is_plain()) {
                    assert_eq!(names.iter().filter(|n| **n == c.name).count(), 1, "{}", c.name);
                }
                let since = |n: usize| names[..n].iter().rev().take_while(|c| **c != DRAM).count();
                assert!((0..names.len()).all(|n| since(n) <= RUNS_BETWEEN_DRAM));
            }
        }
        assert_eq!(runs, plan(&workloads, &configs, 3, 7));
        assert_ne!(runs, plan(&workloads, &configs, 3, 8));
        // Rounds differ, and a longer series begins as a shorter one.
        let order = |round| {
            let of = runs.iter().filter(move |r| r.round == round && r.workload == "redis");
            of.map(|r| r.config.clone()).collect::<Vec<_>>()
        };
        assert_ne!(order(0), order(1));
        assert_eq!(runs[..], plan(&workloads, &configs, 4, 7)[..runs.len()]);
    }

    #[test]
    fn dram_alone_runs_twice() {
        let dram: Vec<&Configuration> = ALL.iter().filter(|c| c.is_plain()).collect();
        assert_eq!(plan(&["bfs".to_owned()], &dram, 2, 1).len(), 4);
    }
}
