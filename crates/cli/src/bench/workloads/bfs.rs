//! Breadth-first searches of an rMat graph, one after another from seeded sources.
//!
//! A search goes from the frontier outwards while that is small, and from the vertices not reached
//! yet towards it while it is large, as Ligra's does. All sources are of the large component, so
//! that the searches do about the same work.
//!
//! One search is one operation. Latencies are those of pieces of [`PIECE_STEPS`] steps.
//!
//! With a second phase the searches stay within the lower half of the vertices first and within the
//! upper half then, as if the other half of the graph were not there.
//!
//! Checked after every search, at no time that counts: the levels of sampled vertices against their
//! neighbours' (exactly one lower at the lowest), the number of vertices reached, and the sum of
//! all levels against that of the first search from the same source. At the end, the whole graph
//! against its sum when it was built.

use std::ops::Range;
use std::time::Instant;

use anyhow::{ensure, Result};
use serde_json::json;

use super::graph::{mixed_in, Graph};
use super::record::{Clock, Phase, Recorder};
use super::rmat::Recipe;
use super::WorkArgs;
use crate::demo::random::{mix, Random};

/// Not reached.
const FAR: u32 = u32::MAX;
/// Sources that the searches begin from in turn.
const SOURCES: usize = 16;
/// Edges and vertices looked at in one piece.
pub(super) const PIECE_STEPS: u64 = 16_384;
/// With more than this share of all edges at the frontier, it is searched for from the others.
const DENSE_SHARE: u64 = 20;
/// Vertices that are checked against their neighbours after a search.
const SAMPLES: usize = 512;

/// Counts steps and says when a piece is done.
pub(super) struct Pieces<'a> {
    recorder: &'a mut Recorder,
    steps: u64,
    began: Instant,
}

impl<'a> Pieces<'a> {
    /// From now on.
    pub(super) fn new(recorder: &'a mut Recorder) -> Pieces<'a> {
        Pieces { recorder, steps: 0, began: Instant::now() }
    }

    /// So many more steps were made.
    #[inline]
    pub(super) fn add(&mut self, steps: u64) -> Result<()> {
        self.steps += steps;
        if self.steps >= PIECE_STEPS {
            self.end_piece()?;
        }
        Ok(())
    }

    fn end_piece(&mut self) -> Result<()> {
        let now = Instant::now();
        // A vertex of many neighbours is several pieces at once.
        let time = now - self.began;
        let pieces = self.steps as f64 / PIECE_STEPS as f64;
        self.recorder.latency_of(now, time.div_f64(pieces), pieces);
        self.recorder.tick(now)?;
        (self.steps, self.began) = (0, now);
        Ok(())
    }
}

/// The arrays of a search.
struct Search {
    source: u32,
    /// The vertices that it stays within.
    within: Range<usize>,
    /// Edges at the frontier from which it is searched for from the others.
    dense_edges: u64,
    /// Outside of those vertices nothing is ever reached.
    levels: Vec<u32>,
    frontier: Vec<u32>,
    next: Vec<u32>,
}

impl Search {
    fn within(graph: &Graph, vertices: Range<usize>) -> Search {
        let entries: u64 = vertices.clone().map(|v| graph.degree(v)).sum();
        Search {
            source: 0,
            within: vertices,
            dense_edges: entries / DENSE_SHARE,
            levels: vec![FAR; graph.vertices()],
            frontier: Vec::new(),
            next: Vec::new(),
        }
    }

    /// Levels of all vertices from `source`. Returns how many were reached.
    fn from(
        &mut self,
        graph: &Graph,
        source: u32,
        mut step: impl FnMut(u64) -> Result<()>,
    ) -> Result<usize> {
        self.source = source;
        self.levels[self.within.clone()].fill(FAR);
        self.levels[source as usize] = 0;
        self.frontier.clear();
        self.frontier.push(source);
        let (mut reached, mut level) = (1, 0);
        while !self.frontier.is_empty() {
            let edges: u64 = self.frontier.iter().map(|v| graph.degree(*v as usize)).sum();
            self.next.clear();
            if edges > self.dense_edges {
                self.inwards(graph, level, &mut step)?;
            } else {
                self.outwards(graph, level, &mut step)?;
            }
            reached += self.next.len();
            std::mem::swap(&mut self.frontier, &mut self.next);
            level += 1;
        }
        Ok(reached)
    }

    fn outwards(
        &mut self,
        graph: &Graph,
        level: u32,
        step: &mut impl FnMut(u64) -> Result<()>,
    ) -> Result<()> {
        for v in &self.frontier {
            let neighbours = graph.neighbours(*v as usize);
            for w in neighbours {
                if !self.within.contains(&(*w as usize)) {
                    continue;
                }
                let seen = &mut self.levels[*w as usize];
                if *seen == FAR {
                    *seen = level + 1;
                    self.next.push(*w);
                }
            }
            step(1 + neighbours.len() as u64)?;
        }
        Ok(())
    }

    fn inwards(
        &mut self,
        graph: &Graph,
        level: u32,
        step: &mut impl FnMut(u64) -> Result<()>,
    ) -> Result<()> {
        for v in self.within.clone() {
            if self.levels[v] != FAR {
                step(1)?;
                continue;
            }
            let mut neighbours = graph.neighbours(v).iter();
            let all = neighbours.len();
            let is_near = |w: usize| self.within.contains(&w) && self.levels[w] == level;
            if neighbours.any(|w| is_near(*w as usize)) {
                self.levels[v] = level + 1;
                self.next.push(v as u32);
            }
            step(1 + (all - neighbours.len()) as u64)?;
        }
        Ok(())
    }

    fn sum(&self) -> u64 {
        let levels = &self.levels[self.within.clone()];
        levels.iter().fold(0, |sum, level| mixed_in(sum, u64::from(*level)))
    }
}

/// Whether the level of `v` fits those of its neighbours.
fn fits(graph: &Graph, search: &Search, v: usize) -> bool {
    let levels = &search.levels;
    let lowest = graph.neighbours(v).iter().map(|w| levels[*w as usize]).min().unwrap_or(FAR);
    match levels[v] {
        0 => v == search.source as usize,
        FAR => lowest == FAR,
        level => lowest == level - 1,
    }
}

/// Builds, searches, checks.
pub(super) fn run(args: &WorkArgs, recorder: &mut Recorder) -> Result<()> {
    let recipe = Recipe::for_size(args.size, args.rmat, args.seed);
    let mut graph = Graph::build(recipe, &|what| recorder.progress(what))?;
    let built = graph.checksum();
    let mut random = Random::new(mix(args.seed ^ 0xBF5));
    let n = graph.vertices();
    // With a second phase, each has a half of the graph.
    let bounds = if args.phase_at.is_some() { vec![0, n / 2, n] } else { vec![0, n] };
    let mut parts = Vec::new();
    for part in bounds.windows(2) {
        parts.push(Part::of(&graph, part[0]..part[1], &mut random)?);
    }
    if args.corrupt {
        graph.corrupt();
    }
    let reached: Vec<usize> = parts.iter().map(|part| part.reached).collect();
    let details = json!({
        "vertices": n, "entries": graph.entries(), "reached": reached,
    });
    recorder.ready(Clock::Busy, "16384 steps", Some(std::process::id()), details)?;
    let mut parts = parts.into_iter().peekable();
    let Some(mut part) = parts.next() else { return Ok(()) };
    let mut search = Search::within(&graph, part.vertices.clone());
    let mut sums = [None; SOURCES];
    for turn in (0..SOURCES).cycle() {
        let began = Instant::now();
        if recorder.phase(began)? == Phase::Over {
            break;
        }
        if let Some(next) = parts.next_if(|_| recorder.has_turned(began)) {
            part = next;
            search = Search::within(&graph, part.vertices.clone());
            sums = [None; SOURCES];
        }
        // What a new search is made of is no part of one.
        let began = Instant::now();
        let mut pieces = Pieces::new(recorder);
        let source = part.sources[turn];
        let reached = search.from(&graph, source, |steps| pieces.add(steps))?;
        let now = Instant::now();
        recorder.op(now, now - began)?;
        if reached != part.reached {
            let want = part.reached;
            recorder.wrong(|| format!("from {source}: {reached} reached, not {want}"));
        }
        verify(&graph, &search, &mut sums[turn], &mut random, recorder);
    }
    if graph.checksum() != built {
        recorder.wrong(|| "the graph is not what was built".to_owned());
    }
    Ok(())
}

fn verify(
    graph: &Graph,
    search: &Search,
    known: &mut Option<u64>,
    random: &mut Random,
    recorder: &mut Recorder,
) {
    for _ in 0..SAMPLES {
        let v = search.within.start + random.below(search.within.len() as u64) as usize;
        if !fits(graph, search, v) {
            recorder.wrong(|| format!("the level of vertex {v} does not fit its neighbours'"));
        }
    }
    let sum = search.sum();
    if *known.get_or_insert(sum) != sum {
        recorder.wrong(|| "other levels than the first search from this source".to_owned());
    }
}

/// What the searches of one phase do.
struct Part {
    /// They stay within these vertices.
    vertices: Range<usize>,
    /// And begin from these in turn.
    sources: Vec<u32>,
    /// Vertices that each of them reaches.
    reached: usize,
}

impl Part {
    /// Random sources of the component in which the vertex of most neighbours is.
    fn of(graph: &Graph, vertices: Range<usize>, random: &mut Random) -> Result<Part> {
        let mut search = Search::within(graph, vertices.clone());
        let top = vertices.clone().max_by_key(|v| graph.degree(*v)).unwrap_or(0);
        let reached = search.from(graph, top as u32, |_| Ok(()))?;
        ensure!(reached > vertices.len() / 10, "the graph has no large component");
        let mut sources = Vec::new();
        while sources.len() < SOURCES {
            let v = vertices.start + random.below(vertices.len() as u64) as usize;
            if search.levels[v] != FAR {
                sources.push(v as u32);
            }
        }
        Ok(Part { vertices, sources, reached })
    }
}

#[cfg(test)]
mod tests {
    use super::super::graph::tests::small;
    use super::super::record::tests::recorder;
    use super::super::rmat::Rmat;
    use super::*;
    use std::collections::VecDeque;

    fn plain_levels(graph: &Graph, source: u32, within: Range<usize>) -> Vec<u32> {
        let mut levels = vec![FAR; graph.vertices()];
        levels[source as usize] = 0;
        let mut queue = VecDeque::from([source]);
        while let Some(v) = queue.pop_front() {
            for w in graph.neighbours(v as usize) {
                if within.contains(&(*w as usize)) && levels[*w as usize] == FAR {
                    levels[*w as usize] = levels[v as usize] + 1;
                    queue.push_back(*w);
                }
            }
        }
        levels
    }

    #[test]
    fn levels_are_those_of_a_plain_search() {
        for (rmat, seed) in [(Rmat::Ligra, 1), (Rmat::Gap, 2)] {
            let graph = small(rmat, seed);
            let n = graph.vertices();
            for (source, within) in
                [(0, 0..n), (77, 0..n), (4000, 0..n), (3, 0..n / 2), (2050, n / 2..n)]
            {
                let mut search = Search::within(&graph, within.clone());
                let mut steps = 0;
                let reached = search.from(&graph, source, |n| {
                    steps += n;
                    Ok(())
                });
                let want = plain_levels(&graph, source, within);
                assert_eq!(search.levels, want);
                assert_eq!(reached.unwrap(), want.iter().filter(|l| **l != FAR).count());
                assert!(steps > 0);
            }
        }
    }

    #[test]
    fn the_second_phase_searches_the_other_half() {
        let graph = small(Rmat::Ligra, 4);
        let n = graph.vertices();
        let mut random = Random::new(2);
        let (mut r, _lines) = recorder(1.0);
        for half in [0..n / 2, n / 2..n] {
            let part = Part::of(&graph, half.clone(), &mut random).unwrap();
            let mut search = Search::within(&graph, half.clone());
            for source in &part.sources {
                assert_eq!(search.from(&graph, *source, |_| Ok(())).unwrap(), part.reached);
                verify(&graph, &search, &mut None, &mut random, &mut r);
            }
            let outside = (0..n).filter(|v| !half.contains(v));
            assert!(outside.into_iter().all(|v| search.levels[v] == FAR));
        }
        assert_eq!(r.wrong_count(), 0);
    }

    #[test]
    fn a_wrong_level_is_noticed() {
        let graph = small(Rmat::Ligra, 1);
        let mut search = Search::within(&graph, 0..graph.vertices());
        search.from(&graph, 0, |_| Ok(())).unwrap();
        assert!((0..graph.vertices()).all(|v| fits(&graph, &search, v)));
        let (mut r, _lines) = recorder(1.0);
        let mut known = None;
        let mut random = Random::new(1);
        verify(&graph, &search, &mut known, &mut random, &mut r);
        assert_eq!(r.wrong_count(), 0);
        for bit in 0..3 {
            let v = (0..graph.vertices()).find(|v| search.levels[*v] == 2).unwrap();
            search.levels[v] ^= 1 << bit;
            assert!(!fits(&graph, &search, v), "bit {bit}");
            let before = r.wrong_count();
            verify(&graph, &search, &mut known, &mut random, &mut r);
            assert!(r.wrong_count() > before, "bit {bit}");
            search.levels[v] ^= 1 << bit;
        }
    }
}
