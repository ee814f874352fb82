//! An rMat graph in compressed sparse rows, built in memory.
//!
//! The vertices are not permuted, as in Ligra: popular ones have low numbers. Every edge is there
//! in both directions.
//!
//! Edge number i is a function of seed and i ([`super::rmat`]), so the edges are never kept as a
//! list: one pass counts degrees, a second places the edges. That is a counting sort: each thread
//! has a range of the edges in both passes, and counts for itself how many entries of each vertex
//! are its own; so in the second pass it knows where they go, and no thread waits for another's
//! cache lines. Neighbours are sorted at last. The result does not depend on the number of threads.
//!
//! An edge is somewhere, and the next one somewhere else: nearly all of the time went into waiting
//! for memory, the page tables of a virtual machine included. So the entries are kept for a while
//! in [`Buckets`], by ranges of vertices, and a range is worked on when it has many.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use anyhow::{ensure, Result};

use super::rmat::{Edges, Recipe};
use crate::demo::sys;

/// Each takes 8 bytes a vertex while the graph is built: more than these are not worth it.
const THREADS_MAX: usize = 8;
/// Ranges of vertices, for each thread. A range of a GiB of graph is a MiB.
const BUCKETS_LOG2: u32 = 10;
/// Entries that a range waits for: 8 MiB in all ranges of a thread.
const BUCKET_ENTRIES: usize = 1024;

/// The graph.
pub(super) struct Graph {
    /// Vertex v's neighbours are `targets[offsets[v]..offsets[v + 1]]`.
    offsets: Vec<u64>,
    targets: Vec<u32>,
}

impl Graph {
    /// Builds it, on all CPUs.
    pub(super) fn build(recipe: Recipe, progress: &dyn Fn(&str)) -> Result<Graph> {
        Graph::build_on(sys::cpus().clamp(1, THREADS_MAX), recipe, progress)
    }

    fn build_on(threads: usize, recipe: Recipe, progress: &dyn Fn(&str)) -> Result<Graph> {
        ensure!(recipe.scale <= 31, "too many vertices");
        let n = 1_usize << recipe.scale;
        progress(&format!("{n} vertices, {} edges: counting", recipe.edges));
        let mut places: Vec<Vec<u64>> = Vec::new();
        places.resize_with(threads, || vec![0; n]);
        for_each_entry(recipe, &mut places, &|counts, entries| {
            entries.iter().for_each(|(v, _)| counts[*v as usize] += 1);
        })?;
        // From here on: where the next entry of a vertex goes, of those that are the thread's.
        let mut offsets = Vec::with_capacity(n + 1);
        let mut sum = 0_u64;
        for v in 0..n {
            offsets.push(sum);
            for counts in &mut places {
                sum += std::mem::replace(&mut counts[v], sum);
            }
        }
        offsets.push(sum);
        progress("placing");
        let targets: Vec<AtomicU32> = (0..sum).map(|_| AtomicU32::new(0)).collect();
        for_each_entry(recipe, &mut places, &|places, entries| {
            for (v, neighbour) in entries {
                let place = &mut places[*v as usize];
                targets[*place as usize].store(*neighbour, Relaxed);
                *place += 1;
            }
        })?;
        drop(places);
        progress("sorting");
        // The same layout: the vector is taken over, not copied.
        let targets = targets.into_iter().map(AtomicU32::into_inner).collect();
        let mut graph = Graph { offsets, targets };
        graph.sort();
        Ok(graph)
    }

    /// Vertices, also those without a neighbour.
    pub(super) fn vertices(&self) -> usize {
        self.offsets.len() - 1
    }

    /// Entries of the adjacency lists: twice the edges.
    pub(super) fn entries(&self) -> usize {
        self.targets.len()
    }

    pub(super) fn neighbours(&self, v: usize) -> &[u32] {
        &self.targets[self.offsets[v] as usize..self.offsets[v + 1] as usize]
    }

    pub(super) fn degree(&self, v: usize) -> u64 {
        self.offsets[v + 1] - self.offsets[v]
    }

    /// A sum over every byte, to compare with a later one.
    pub(super) fn checksum(&self) -> u64 {
        let offsets = self.offsets.iter().fold(0, |sum, o| mixed_in(sum, *o));
        self.targets.iter().fold(offsets, |sum, t| mixed_in(sum, u64::from(*t)))
    }

    /// Flips one bit, as a test of the checks.
    pub(super) fn corrupt(&mut self) {
        let middle = self.targets.len() / 2;
        self.targets[middle] ^= 1;
    }

    /// Sorts every list. Threads get ranges of vertices with about as many entries each.
    fn sort(&mut self) {
        let share = self.targets.len() as u64 / sys::cpus() as u64 + 1;
        let offsets = &self.offsets;
        std::thread::scope(|scope| {
            let (mut rest, mut first) = (&mut self.targets[..], 0);
            while first + 1 < offsets.len() {
                let goal = offsets[first] + share;
                let last = offsets.partition_point(|o| *o < goal).min(offsets.len() - 1);
                let (mine, others) = rest.split_at_mut((offsets[last] - offsets[first]) as usize);
                rest = others;
                let lists = &offsets[first..=last];
                scope.spawn(move || {
                    for pair in lists.windows(2) {
                        let from = (pair[0] - lists[0]) as usize;
                        mine[from..(pair[1] - lists[0]) as usize].sort_unstable();
                    }
                });
                first = last;
            }
        });
    }
}

/// Mixes a word into a sum; another word or another order gives another sum.
pub(super) fn mixed_in(sum: u64, word: u64) -> u64 {
    (sum.rotate_left(5) ^ word).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

/// Entries that wait for their turn, by ranges of vertices.
struct Buckets {
    /// Binary logarithm of the vertices of a range.
    shift: u32,
    /// Room for [`BUCKET_ENTRIES`] in each: a vertex and its neighbour.
    entries: Vec<(u32, u32)>,
    filled: Vec<usize>,
}

impl Buckets {
    fn new(scale: u32) -> Buckets {
        let shift = scale.saturating_sub(BUCKETS_LOG2);
        let number = 1 << (scale - shift);
        Buckets { shift, entries: vec![(0, 0); number * BUCKET_ENTRIES], filled: vec![0; number] }
    }

    /// Takes an entry; hands over the whole bucket if that fills it.
    #[inline]
    fn add(&mut self, v: u32, neighbour: u32, hand_over: &mut impl FnMut(&[(u32, u32)])) {
        let bucket = (v >> self.shift) as usize;
        let (begin, filled) = (bucket * BUCKET_ENTRIES, &mut self.filled[bucket]);
        self.entries[begin + *filled] = (v, neighbour);
        *filled += 1;
        if *filled == BUCKET_ENTRIES {
            *filled = 0;
            hand_over(&self.entries[begin..begin + BUCKET_ENTRIES]);
        }
    }

    /// Hands over what is left.
    fn finish(self, hand_over: &mut impl FnMut(&[(u32, u32)])) {
        for (entries, filled) in self.entries.chunks(BUCKET_ENTRIES).zip(self.filled) {
            hand_over(&entries[..filled]);
        }
    }
}

/// Calls `with` for the entries of all edges that are no self-loops, many of one range of vertices
/// at a time: those of the first share of the edges with the first of `places`, and so on, each
/// share on a thread of its own. Entries of one vertex come in the order of their edges.
fn for_each_entry(
    recipe: Recipe,
    places: &mut [Vec<u64>],
    with: &(impl Fn(&mut [u64], &[(u32, u32)]) + Sync),
) -> Result<()> {
    let (shares, edges) = (places.len() as u64, Edges::of(&recipe));
    std::thread::scope(|scope| {
        for (share, places) in places.iter_mut().enumerate() {
            let begin = |share: u64| recipe.edges * share / shares;
            let (from, to) = (begin(share as u64), begin(share as u64 + 1));
            let edges = &edges;
            scope.spawn(move || {
                let mut buckets = Buckets::new(recipe.scale);
                let mut hand_over = |entries: &[(u32, u32)]| with(places, entries);
                for i in from..to {
                    let (a, b) = edges.edge(i);
                    if a != b {
                        buckets.add(a, b, &mut hand_over);
                        buckets.add(b, a, &mut hand_over);
                    }
                    if i % (1 << 20) == 0 && sys::interrupted() {
                        return;
                    }
                }
                buckets.finish(&mut hand_over);
            });
        }
    });
    sys::stop_if_interrupted()
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::rmat::Rmat;
    use super::*;

    pub(in super::super) fn small(rmat: Rmat, seed: u64) -> Graph {
        Graph::build(Recipe { scale: 12, edges: 12 << 12, rmat, seed }, &|_| ()).unwrap()
    }

    #[test]
    fn degrees_are_skewed() {
        for (rmat, least) in [(Rmat::Ligra, 6.0), (Rmat::Gap, 40.0)] {
            let graph = small(rmat, 1);
            let mut degrees: Vec<u64> = (0..graph.vertices()).map(|v| graph.degree(v)).collect();
            degrees.sort_unstable();
            let mean = graph.entries() as f64 / graph.vertices() as f64;
            let top = degrees[degrees.len() - 1] as f64;
            assert!(top > least * mean, "{rmat:?}: {top}, mean {mean}");
            // The popular ones have low numbers.
            let low: u64 = (0..graph.vertices() / 2).map(|v| graph.degree(v)).sum();
            assert!(low as f64 > 0.55 * graph.entries() as f64, "{rmat:?}: {low}");
        }
    }

    #[test]
    fn the_number_of_threads_changes_nothing() {
        // Buckets that are handed over more than once, and not whole at last.
        let recipe = Recipe { scale: 12, edges: 60 << 12, rmat: Rmat::Gap, seed: 6 };
        let alone = Graph::build_on(1, recipe, &|_| ()).unwrap();
        let mut degrees = vec![0; 1 << 12];
        let edges = Edges::of(&recipe);
        for (a, b) in (0..recipe.edges).map(|i| edges.edge(i)).filter(|(a, b)| a != b) {
            degrees[a as usize] += 1;
            degrees[b as usize] += 1;
        }
        assert!((0..1 << 12).all(|v| alone.degree(v) == degrees[v]));
        assert!(degrees[0] as usize > 2 * BUCKET_ENTRIES);
        for threads in [2, 5] {
            let same = Graph::build_on(threads, recipe, &|_| ()).unwrap();
            assert_eq!((&same.offsets, &same.targets), (&alone.offsets, &alone.targets));
        }
    }

    #[test]
    fn every_edge_is_there_in_both_directions_and_sorted() {
        let graph = small(Rmat::Gap, 2);
        let count = |v: usize, w: u32| graph.neighbours(v).iter().filter(|t| **t == w).count();
        for v in 0..graph.vertices() {
            assert!(graph.neighbours(v).is_sorted());
            for w in graph.neighbours(v) {
                assert_ne!(*w as usize, v);
                assert_eq!(count(v, *w), count(*w as usize, v as u32));
            }
        }
        assert!(graph.entries() > (2 * 10) << 12);
    }

    #[test]
    fn the_same_seed_gives_the_same_graph_and_a_flipped_bit_another_sum() {
        let (mut graph, again) = (small(Rmat::Ligra, 7), small(Rmat::Ligra, 7));
        assert_eq!((&graph.offsets, &graph.targets), (&again.offsets, &again.targets));
        assert_eq!(graph.checksum(), again.checksum());
        assert_ne!(graph.checksum(), small(Rmat::Ligra, 8).checksum());
        graph.corrupt();
        assert_ne!(graph.checksum(), again.checksum());
    }
}
