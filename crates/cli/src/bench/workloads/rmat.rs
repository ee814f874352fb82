//! Edges of an rMat graph, each a function of the seed and its number.
//!
//! rMat (Chakrabarti et al. 2004) puts an edge into one quadrant of the adjacency matrix with
//! probabilities a, b, c, d, then into a quadrant of that, and so on, once for each bit of a
//! vertex. Drawing the quadrants one by one would be much of the work of building a graph, so
//! [`GROUP`] of them are drawn at once: an outcome of all of them by the alias method (Walker
//! 1977), which needs one look into a small table and 32 random bits.

use clap::ValueEnum;

use crate::demo::random::{mix, Random};

/// Edges drawn for each vertex, at least; at most twice as many. Ligra's generator draws 10.
pub(super) const EDGES_PER_VERTEX_MIN: u64 = 10;
/// Bytes of a vertex beside its edges: its offset, and about as much for the algorithm.
const BYTES_PER_VERTEX: u64 = 8 + 16;
/// An edge is two entries of four bytes.
const BYTES_PER_EDGE: u64 = 8;
/// Quadrants drawn at once. Their table is 16 KiB, which a CPU's first cache holds.
const GROUP: u32 = 6;
/// What they can come to: a bit of both ends each.
const OUTCOMES: usize = 1 << OUTCOME_BITS;
const OUTCOME_BITS: u32 = 2 * GROUP;
/// The other random bits decide between the two outcomes that share a place of the table.
const SHARE_BITS: u32 = 32 - OUTCOME_BITS;

/// Parameters of the generator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Rmat {
    /// a, b, c, d = 0.5, 0.1, 0.1, 0.3, as Ligra's generator
    Ligra,
    /// a, b, c, d = 0.57, 0.19, 0.19, 0.05, as GAP and Graph500
    Gap,
}

impl Rmat {
    /// a, b, c, d: from and to in the first half, only `to` in the second, only `from`, both.
    fn quadrants(self) -> [f64; 4] {
        match self {
            Rmat::Ligra => [0.5, 0.1, 0.1, 0.3],
            Rmat::Gap => [0.57, 0.19, 0.19, 0.05],
        }
    }
}

/// What a graph is made from.
#[derive(Clone, Copy, Debug)]
pub(super) struct Recipe {
    /// Binary logarithm of the number of vertices, at most 31.
    pub(super) scale: u32,
    /// Edges drawn, of which self-loops are left out.
    pub(super) edges: u64,
    pub(super) rmat: Rmat,
    pub(super) seed: u64,
}

impl Recipe {
    /// The graph that fills so much memory, what the algorithm needs included.
    pub(super) fn for_size(size_mib: u64, rmat: Rmat, seed: u64) -> Recipe {
        let bytes = size_mib << 20;
        let of_vertex = BYTES_PER_VERTEX + EDGES_PER_VERTEX_MIN * BYTES_PER_EDGE;
        let scale = (bytes / of_vertex).max(1).ilog2().min(31);
        let edges = (bytes - (BYTES_PER_VERTEX << scale)) / BYTES_PER_EDGE;
        Recipe { scale, edges, rmat, seed }
    }
}

/// Draws the edges of a recipe.
pub(super) struct Edges {
    /// A place for each outcome: how much of the place is its own, of 2^SHARE_BITS, and below
    /// that the outcome that has the rest.
    table: Vec<u32>,
    scale: u32,
    start: u64,
}

impl Edges {
    pub(super) fn of(recipe: &Recipe) -> Edges {
        let table = alias_table(recipe.rmat.quadrants());
        Edges { table, scale: recipe.scale, start: mix(recipe.seed) }
    }

    /// Edge number `i`, from and to.
    pub(super) fn edge(&self, i: u64) -> (u32, u32) {
        let mut random = Random::new(self.start.wrapping_add(i << 8));
        let (mut bits, mut from, mut to, mut levels) = (0, 0_u64, 0_u64, 0);
        while levels < self.scale {
            bits = if levels % (2 * GROUP) == 0 { random.bits() } else { bits >> 32 };
            let own = bits as u32 % OUTCOMES as u32;
            let share = bits as u32 >> OUTCOME_BITS;
            let place = self.table[own as usize];
            let is_own = share < place >> OUTCOME_BITS;
            let outcome = u64::from(if is_own { own } else { place % OUTCOMES as u32 });
            from = (from << GROUP) | (outcome >> GROUP);
            to = (to << GROUP) | (outcome % (1 << GROUP));
            levels += GROUP;
        }
        // Levels are independent: what was drawn beyond the last is dropped.
        let beyond = levels - self.scale;
        ((from >> beyond) as u32, (to >> beyond) as u32)
    }
}

/// The alias table of all outcomes of [`GROUP`] quadrants.
fn alias_table(quadrants: [f64; 4]) -> Vec<u32> {
    let probability = |outcome: usize| -> f64 {
        let (from, to) = (outcome >> GROUP, outcome % (1 << GROUP));
        let quadrant = |level: u32| (from >> level & 1) << 1 | (to >> level & 1);
        (0..GROUP).map(|level| quadrants[quadrant(level)]).product()
    };
    let mut left: Vec<f64> = (0..OUTCOMES).map(|o| probability(o) * OUTCOMES as f64).collect();
    let (mut small, mut large): (Vec<usize>, Vec<usize>) =
        (0..OUTCOMES).partition(|o| left[*o] < 1.0);
    let whole = |o: usize| ((1 << SHARE_BITS) - 1) << OUTCOME_BITS | o as u32;
    let mut table: Vec<u32> = (0..OUTCOMES).map(whole).collect();
    while let (Some(poor), Some(rich)) = (small.pop(), large.last().copied()) {
        let own = (left[poor] * f64::from(1 << SHARE_BITS)).round() as u32;
        table[poor] = own.min((1 << SHARE_BITS) - 1) << OUTCOME_BITS | rich as u32;
        left[rich] -= 1.0 - left[poor];
        if left[rich] < 1.0 {
            large.pop();
            small.push(rich);
        }
    }
    // What rounding left over has its place to itself.
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOTH: [Rmat; 2] = [Rmat::Ligra, Rmat::Gap];

    #[test]
    fn every_level_draws_the_quadrants_as_often_as_it_should() {
        for rmat in BOTH {
            // Whole groups, and a last one of which levels are dropped.
            let recipe = Recipe { scale: 15, edges: 200_000, rmat, seed: 3 };
            let edges = Edges::of(&recipe);
            let mut times = [[0_u32; 4]; 15];
            for i in 0..recipe.edges {
                let (from, to) = edges.edge(i);
                assert!(from >> recipe.scale == 0 && to >> recipe.scale == 0);
                for (level, times) in times.iter_mut().enumerate() {
                    times[((from >> level & 1) << 1 | (to >> level & 1)) as usize] += 1;
                }
            }
            for (level, times) in times.iter().enumerate() {
                for (n, p) in times.iter().zip(rmat.quadrants()) {
                    let got = f64::from(*n) / recipe.edges as f64;
                    // Five standard deviations are 0.0056.
                    assert!((got - p).abs() < 0.006, "{rmat:?}, level {level}: {times:?}");
                }
            }
        }
    }

    #[test]
    fn levels_do_not_depend_on_each_other() {
        for rmat in BOTH {
            let recipe = Recipe { scale: 15, edges: 200_000, rmat, seed: 5 };
            let (edges, p) = (Edges::of(&recipe), rmat.quadrants());
            // In one group; in the same place of two groups, of one word and of two.
            for (one, other) in [(14, 13), (9, 8), (14, 8), (8, 2), (14, 2), (3, 2)] {
                let mut times = [0_u32; 16];
                for i in 0..recipe.edges {
                    let (from, to) = edges.edge(i);
                    let at = |level: u32| (from >> level & 1) << 1 | (to >> level & 1);
                    times[(at(one) << 2 | at(other)) as usize] += 1;
                }
                for (both, n) in times.iter().enumerate() {
                    let (want, got) = (p[both >> 2] * p[both & 3], f64::from(*n) / 200_000.0);
                    assert!((got - want).abs() < 0.006, "{rmat:?}, {one} {other}: {times:?}");
                }
            }
        }
    }

    #[test]
    fn the_table_is_the_distribution() {
        for rmat in BOTH {
            let (table, p) = (alias_table(rmat.quadrants()), rmat.quadrants());
            let mut got = vec![0.0; OUTCOMES];
            let whole = f64::from(1 << SHARE_BITS);
            for (own, place) in table.iter().enumerate() {
                let share = f64::from(place >> OUTCOME_BITS) / whole;
                got[own] += share / OUTCOMES as f64;
                got[*place as usize % OUTCOMES] += (1.0 - share) / OUTCOMES as f64;
            }
            for (outcome, got) in got.iter().enumerate() {
                let quadrant =
                    |level: u32| (outcome >> (GROUP + level) & 1) << 1 | (outcome >> level & 1);
                let want: f64 = (0..GROUP).map(|level| p[quadrant(level)]).product();
                // The rarest has a probability of 2^-26: a place and its share round to 2^-32.
                assert!(
                    (got - want).abs() < 2e-6 * want + 1e-9,
                    "{rmat:?} {outcome}: {got} {want}"
                );
            }
        }
    }

    #[test]
    fn the_same_seed_gives_the_same_edges() {
        let of = |seed| {
            let edges = Edges::of(&Recipe { scale: 23, edges: 100, rmat: Rmat::Gap, seed });
            (0..100).map(|i| edges.edge(i)).collect::<Vec<_>>()
        };
        assert_eq!(of(1), of(1));
        assert_ne!(of(1), of(2));
        // No two alike in a row.
        assert!(of(1).windows(2).all(|pair| pair[0] != pair[1]));
    }

    #[test]
    fn the_size_is_kept() {
        for size_mib in [16_u64, 64, 100, 1024, 2000, 8192] {
            let recipe = Recipe::for_size(size_mib, Rmat::Ligra, 1);
            let bytes = (BYTES_PER_VERTEX << recipe.scale) + recipe.edges * BYTES_PER_EDGE;
            assert!(bytes <= size_mib << 20 && bytes * 100 > (size_mib << 20) * 99);
            let per_vertex = recipe.edges >> recipe.scale;
            assert!((EDGES_PER_VERTEX_MIN..25).contains(&per_vertex), "{recipe:?}");
        }
    }
}
