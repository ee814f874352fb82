//! PageRank on an rMat graph: every vertex collects from its neighbours, iteration by iteration.
//! After [`ROUND`] iterations it begins anew from equal ranks, so that the work stays the same.
//!
//! One iteration is one operation. Latencies are those of pieces, as in [`super::bfs`].
//!
//! Checked after every iteration, at no time that counts: the ranks add up to 1, and their bits are
//! those of the same iteration of the first round (one thread adds in one order, so they must be).
//! At the end, the whole graph against its sum when it was built.

use std::time::Instant;

use anyhow::Result;
use serde_json::json;

use super::bfs::Pieces;
use super::graph::{mixed_in, Graph};
use super::record::{Clock, Phase, Recorder};
use super::rmat::Recipe;
use super::WorkArgs;

/// Share of a rank that is passed on.
const DAMPING: f64 = 0.85;
/// Iterations from equal ranks. After eight the order of ranks hardly changes.
const ROUND: usize = 8;
/// How far from 1 the sum of the ranks may be: the error of adding up to 2^31 numbers.
const SUM_ERROR_MAX: f64 = 1e-6;

struct Ranks {
    ranks: Vec<f64>,
    /// What each vertex gives to each of its neighbours.
    gifts: Vec<f64>,
}

impl Ranks {
    fn new(vertices: usize) -> Ranks {
        let mut ranks = Ranks { ranks: vec![0.0; vertices], gifts: vec![0.0; vertices] };
        ranks.restart();
        ranks
    }

    fn restart(&mut self) {
        let equal = 1.0 / self.ranks.len() as f64;
        self.ranks.fill(equal);
    }

    fn iterate(&mut self, graph: &Graph, mut step: impl FnMut(u64) -> Result<()>) -> Result<()> {
        let n = self.ranks.len() as f64;
        // Who has no neighbour gives to all.
        let mut lost = 0.0;
        for (v, (rank, gift)) in self.ranks.iter().zip(&mut self.gifts).enumerate() {
            match graph.degree(v) {
                0 => lost += rank,
                degree => *gift = rank / degree as f64,
            }
        }
        step(self.ranks.len() as u64 / 8)?;
        let base = (1.0 - DAMPING) / n + DAMPING * lost / n;
        for (v, rank) in self.ranks.iter_mut().enumerate() {
            let neighbours = graph.neighbours(v);
            let sum: f64 = neighbours.iter().map(|w| self.gifts[*w as usize]).sum();
            *rank = base + DAMPING * sum;
            step(1 + neighbours.len() as u64)?;
        }
        Ok(())
    }

    /// Compares with what the same iteration gave the first time.
    fn verify(&self, known: &mut Option<u64>, recorder: &mut Recorder) {
        let total: f64 = self.ranks.iter().sum();
        // Not-a-number is wrong, too.
        let adds_up = (total - 1.0).abs() <= SUM_ERROR_MAX;
        if !adds_up {
            recorder.wrong(|| format!("the ranks add up to {total}"));
        }
        let sum = self.ranks.iter().fold(0, |sum, rank| mixed_in(sum, rank.to_bits()));
        if *known.get_or_insert(sum) != sum {
            recorder.wrong(|| "other ranks than in the first round".to_owned());
        }
    }
}

/// Builds, iterates, checks.
pub(super) fn run(args: &WorkArgs, recorder: &mut Recorder) -> Result<()> {
    let recipe = Recipe::for_size(args.size, args.rmat, args.seed);
    let mut graph = Graph::build(recipe, &|what| recorder.progress(what))?;
    let built = graph.checksum();
    let mut ranks = Ranks::new(graph.vertices());
    if args.corrupt {
        graph.corrupt();
    }
    let details = json!({"vertices": graph.vertices(), "entries": graph.entries()});
    recorder.ready(Clock::Busy, "16384 steps", Some(std::process::id()), details)?;
    let mut sums = [None; ROUND];
    for iteration in (0..ROUND).cycle() {
        if iteration == 0 {
            ranks.restart();
        }
        let began = Instant::now();
        if recorder.phase(began)? == Phase::Over {
            break;
        }
        let mut pieces = Pieces::new(recorder);
        ranks.iterate(&graph, |steps| pieces.add(steps))?;
        let now = Instant::now();
        recorder.op(now, now - began)?;
        ranks.verify(&mut sums[iteration], recorder);
    }
    if graph.checksum() != built {
        recorder.wrong(|| "the graph is not what was built".to_owned());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::graph::tests::small;
    use super::super::record::tests::recorder;
    use super::super::rmat::Rmat;
    use super::*;

    /// The same by pushing, from the formula.
    fn plain(graph: &Graph, iterations: usize) -> Vec<f64> {
        let n = graph.vertices();
        let mut ranks = vec![1.0 / n as f64; n];
        for _ in 0..iterations {
            let mut next = vec![0.0; n];
            for (v, rank) in ranks.iter().enumerate() {
                let neighbours = graph.neighbours(v);
                for w in neighbours {
                    next[*w as usize] += rank / neighbours.len() as f64;
                }
                if neighbours.is_empty() {
                    next.iter_mut().for_each(|r| *r += rank / n as f64);
                }
            }
            ranks = next.iter().map(|r| (1.0 - DAMPING) / n as f64 + DAMPING * r).collect();
        }
        ranks
    }

    #[test]
    fn ranks_are_those_of_the_formula_and_the_same_every_round() {
        let graph = small(Rmat::Gap, 4);
        assert!((0..graph.vertices()).any(|v| graph.degree(v) == 0));
        let (mut r, _lines) = recorder(1.0);
        let mut ranks = Ranks::new(graph.vertices());
        let mut known = None;
        for _ in 0..2 {
            ranks.restart();
            (0..5).for_each(|_| ranks.iterate(&graph, |_| Ok(())).unwrap());
            ranks.verify(&mut known, &mut r);
        }
        assert_eq!(r.wrong_count(), 0);
        for (got, want) in ranks.ranks.iter().zip(plain(&graph, 5)) {
            assert!((got - want).abs() < 1e-12);
        }
    }

    #[test]
    fn a_flipped_bit_of_a_rank_or_of_the_graph_is_noticed() {
        let mut graph = small(Rmat::Ligra, 4);
        let (mut r, _lines) = recorder(1.0);
        let mut ranks = Ranks::new(graph.vertices());
        let mut known = None;
        ranks.iterate(&graph, |_| Ok(())).unwrap();
        ranks.verify(&mut known, &mut r);
        assert_eq!(r.wrong_count(), 0);
        ranks.ranks[9] = f64::from_bits(ranks.ranks[9].to_bits() ^ 1);
        ranks.verify(&mut known, &mut r);
        assert_eq!(r.wrong_count(), 1);
        graph.corrupt();
        ranks.restart();
        ranks.iterate(&graph, |_| Ok(())).unwrap();
        ranks.verify(&mut known, &mut r);
        let of_graph = r.wrong_count();
        assert!(of_graph > 1);
        ranks.ranks[3] = f64::NAN;
        ranks.verify(&mut known, &mut r);
        assert!(r.wrong_count() > of_graph);
    }
}
