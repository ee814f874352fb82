//! Macroscopic neutron cross sections on a unionised energy grid: the kernel of Monte Carlo
//! particle transport, after the published description of XSBench (Tramm et al. 2014).
//!
//! Each of [`NUCLIDES`] nuclides has a grid of energies with five cross sections at each. The
//! unionised grid has all energies in order and, for each, the place in every nuclide's grid: most
//! of the memory. A look-up draws an energy and a material, finds the energy in the unionised grid
//! by bisection, and adds up, over the nuclides of the material, what lies between two points of
//! theirs.
//!
//! The number of nuclides, in all and of each material, and how often a material is asked for are
//! after XSBench's large problem; which nuclides they are is not. The memory decides the number of
//! grid points. Energies are jittered steps instead of
//! sorted random numbers, so that every number in memory is a function of its place. That is how
//! results are checked: one look-up in [`CHECK_EVERY`] is computed again from those functions,
//! which read no memory, and must agree in every bit. At the end everything is compared with its
//! sum when it was built.

use std::time::Instant;

use anyhow::{ensure, Result};
use serde_json::json;

use super::graph::mixed_in;
use super::record::{Clock, Phase, Recorder};
use super::WorkArgs;
use crate::demo::random::{mix, Random};
use crate::demo::sys;

/// Nuclides of the large problem.
const NUCLIDES: usize = 355;
/// Cross sections at a point: total, elastic, absorption, fission, nu-fission.
const KINDS: usize = 5;
/// Nuclides of each material; fuel comes first.
const MATERIAL_NUCLIDES: [usize; 12] = [321, 5, 4, 4, 27, 21, 21, 21, 21, 21, 9, 9];
/// Share of look-ups in each material, by volume of the reactor.
const MATERIAL_SHARE: [f64; 12] =
    [0.140, 0.052, 0.275, 0.134, 0.154, 0.064, 0.066, 0.055, 0.008, 0.015, 0.025, 0.012];
/// One look-up of so many is computed again.
const CHECK_EVERY: u64 = 16;
/// Results of so many look-ups go into `result_hash`: the same for the same seed and size.
const HASHED: u64 = 100_000;

/// A number in [0, 1) that belongs to a place.
fn number(seed: u64, nuclide: usize, point: usize, what: usize) -> f64 {
    let place = (nuclide as u64) << 40 | (point as u64) << 3 | what as u64;
    (mix(mix(place).wrapping_add(seed)) >> 11) as f64 / (1_u64 << 53) as f64
}

/// What all numbers are functions of.
#[derive(Clone, Copy)]
struct Problem {
    seed: u64,
    points: usize,
}

/// Energy and cross sections.
type Point = [f64; 1 + KINDS];

impl Problem {
    /// As many grid points as fill the memory.
    fn for_size(size_mib: u64, seed: u64) -> Problem {
        let of_point = size_of::<Point>() + size_of::<f64>() + NUCLIDES * size_of::<u32>();
        let points = (size_mib << 20) as usize / (NUCLIDES * of_point);
        Problem { seed: mix(seed), points }
    }

    /// Energies rise with the point and lie in [0, 1).
    fn energy(&self, nuclide: usize, point: usize) -> f64 {
        (point as f64 + number(self.seed, nuclide, point, 0)) / self.points as f64
    }

    fn point(&self, nuclide: usize, point: usize) -> Point {
        let mut all = [0.0; 1 + KINDS];
        all[0] = self.energy(nuclide, point);
        for (what, xs) in all.iter_mut().enumerate().skip(1) {
            *xs = number(self.seed, nuclide, point, what);
        }
        all
    }

    /// The last point of a nuclide that is not above an energy, and not its last.
    fn below(&self, nuclide: usize, energy: f64) -> usize {
        let near = ((energy * self.points as f64) as usize + 1).min(self.points - 1);
        let all = (near.saturating_sub(2)..=near).rev();
        let below = all.into_iter().find(|p| self.energy(nuclide, *p) <= energy);
        below.unwrap_or(0).min(self.points - 2)
    }

    /// Nuclides of a material with their densities.
    fn material(&self, material: usize) -> impl Iterator<Item = (usize, f64)> + '_ {
        let of = MATERIAL_NUCLIDES[material];
        // Fuel has the first; the others take theirs from all over, and share some.
        let stride = if material == 0 { 1 } else { NUCLIDES / of };
        (0..of).map(move |n| {
            let nuclide = (n * stride + material * 7 * usize::from(material > 0)) % NUCLIDES;
            (nuclide, number(self.seed, NUCLIDES + material, n, 6))
        })
    }

    /// Energy and material of a look-up.
    fn draw(&self, random: &mut Random) -> (f64, usize) {
        let energy = random.unit();
        let mut share = random.unit();
        let material = MATERIAL_SHARE.iter().position(|s| {
            share -= s;
            share < 0.0
        });
        (energy, material.unwrap_or(0))
    }

    /// A look-up without the tables.
    fn compute(&self, energy: f64, material: usize) -> [f64; KINDS] {
        let mut sum = [0.0; KINDS];
        for (nuclide, density) in self.material(material) {
            let low = self.below(nuclide, energy);
            let (low, high) = (self.point(nuclide, low), self.point(nuclide, low + 1));
            add(&mut sum, &low, &high, energy, density);
        }
        sum
    }
}

/// Adds what a nuclide contributes at an energy between two points.
fn add(sum: &mut [f64; KINDS], low: &Point, high: &Point, energy: f64, density: f64) {
    let share = (high[0] - energy) / (high[0] - low[0]);
    for (kind, sum) in sum.iter_mut().enumerate() {
        *sum += density * (high[1 + kind] - share * (high[1 + kind] - low[1 + kind]));
    }
}

/// The tables.
struct Grid {
    problem: Problem,
    /// Point p of nuclide n is at `n * points + p`.
    points: Vec<Point>,
    energies: Vec<f64>,
    /// For energy e, the point below it of nuclide n is at `e * NUCLIDES + n`.
    below: Vec<u32>,
    materials: Vec<Vec<(usize, f64)>>,
}

impl Grid {
    fn build(problem: Problem, progress: &dyn Fn(&str)) -> Result<Grid> {
        ensure!(problem.points >= 4, "--size is too small for two points of each nuclide");
        let of = problem.points;
        progress(&format!("{NUCLIDES} nuclides of {of} points"));
        let points = (0..NUCLIDES * of).map(|i| problem.point(i / of, i % of)).collect::<Vec<_>>();
        let mut order: Vec<(f64, u32)> = Vec::with_capacity(points.len());
        order.extend(points.iter().enumerate().map(|(i, p)| (p[0], (i / of) as u32)));
        order.sort_unstable_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        progress("the unionised grid");
        let mut below = Vec::with_capacity(order.len() * NUCLIDES);
        let mut passed = vec![0_u32; NUCLIDES];
        for (i, (_, nuclide)) in order.iter().enumerate() {
            passed[*nuclide as usize] += 1;
            let last = of as u32 - 2;
            below.extend(passed.iter().map(|n| n.saturating_sub(1).min(last)));
            if i % 4096 == 0 {
                sys::stop_if_interrupted()?;
            }
        }
        let energies = order.iter().map(|(energy, _)| *energy).collect();
        let materials = (0..MATERIAL_NUCLIDES.len()).map(|m| problem.material(m).collect());
        Ok(Grid { problem, points, energies, below, materials: materials.collect() })
    }

    fn look_up(&self, energy: f64, material: usize) -> [f64; KINDS] {
        let at = self.energies.partition_point(|e| *e <= energy).saturating_sub(1);
        let below = &self.below[at * NUCLIDES..(at + 1) * NUCLIDES];
        let mut sum = [0.0; KINDS];
        for (nuclide, density) in &self.materials[material] {
            let low = nuclide * self.problem.points + below[*nuclide] as usize;
            // Damaged tables must be noticed, not end the program.
            let (Some(low), Some(high)) = (self.points.get(low), self.points.get(low + 1)) else {
                return [f64::NAN; KINDS];
            };
            add(&mut sum, low, high, energy, *density);
        }
        sum
    }

    fn checksum(&self) -> u64 {
        let points = self.points.iter().flatten().fold(0, |sum, x| mixed_in(sum, x.to_bits()));
        let sum = self.energies.iter().fold(points, |sum, x| mixed_in(sum, x.to_bits()));
        self.below.iter().fold(sum, |sum, p| mixed_in(sum, u64::from(*p)))
    }
}

fn bits(result: [f64; KINDS]) -> [u64; KINDS] {
    result.map(f64::to_bits)
}

/// Builds, looks up, checks.
pub(super) fn run(args: &WorkArgs, recorder: &mut Recorder) -> Result<()> {
    let problem = Problem::for_size(args.size, args.seed);
    let mut grid = Grid::build(problem, &|what| recorder.progress(what))?;
    let built = grid.checksum();
    if args.corrupt {
        let middle = grid.below.len() / 2;
        grid.below[middle] ^= 1;
    }
    let details = json!({"nuclides": NUCLIDES, "points": problem.points});
    recorder.ready(Clock::Busy, "look-up", Some(std::process::id()), details)?;
    let mut random = Random::new(mix(args.seed ^ 0x5EC7));
    let (mut hash, mut n) = (0, 0_u64);
    loop {
        let (energy, material) = problem.draw(&mut random);
        let began = Instant::now();
        if recorder.phase(began)? == Phase::Over {
            break;
        }
        let result = grid.look_up(energy, material);
        let now = Instant::now();
        recorder.latency(now, now - began);
        recorder.op(now, now - began)?;
        if n % CHECK_EVERY == 0 && bits(problem.compute(energy, material)) != bits(result) {
            recorder.wrong(|| format!("energy {energy}, material {material}: {result:?}"));
        }
        n += 1;
        if n <= HASHED {
            hash = bits(result).iter().fold(hash, |sum, word| mixed_in(sum, *word));
        }
        if n == HASHED {
            recorder.note("result_hash", format!("{hash:016x}").into());
        }
    }
    if grid.checksum() != built {
        recorder.wrong(|| "the tables are not what was built".to_owned());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn small() -> Grid {
        Grid::build(Problem { seed: 9, points: 24 }, &|_| ()).unwrap()
    }

    fn wrong_of(grid: &Grid, look_ups: usize) -> usize {
        let mut random = Random::new(1);
        let one = |_: &usize| {
            let (energy, material) = grid.problem.draw(&mut random);
            let want = grid.problem.compute(energy, material);
            bits(want) != bits(grid.look_up(energy, material))
        };
        (0..look_ups).filter(one).count()
    }

    #[test]
    fn tables_and_functions_agree_in_every_bit() {
        let grid = small();
        assert_eq!(wrong_of(&grid, 20_000), 0);
        for energy in [0.0, 1e-9, 0.999_999_999, grid.energies[0], grid.energies[777]] {
            let want = grid.problem.compute(energy, 0);
            assert_eq!(bits(want), bits(grid.look_up(energy, 0)), "{energy}");
        }
    }

    #[test]
    fn a_cross_section_lies_between_those_of_its_points() {
        let problem = small().problem;
        for energy in [0.2, 0.5, 0.7] {
            let mut sum = [0.0; KINDS];
            let low = problem.below(3, energy);
            let (low, high) = (problem.point(3, low), problem.point(3, low + 1));
            assert!(low[0] <= energy && energy < high[0]);
            add(&mut sum, &low, &high, energy, 1.0);
            for kind in 0..KINDS {
                let (a, b) = (low[1 + kind], high[1 + kind]);
                assert!((a.min(b)..=a.max(b)).contains(&sum[kind]));
            }
        }
    }

    #[test]
    fn a_flipped_bit_is_noticed_by_sum_and_by_look_ups() {
        let mut grid = small();
        let built = grid.checksum();
        let middle = grid.points.len() / 2;
        let flip = |x: &mut f64| *x = f64::from_bits(x.to_bits() ^ (1 << 40));
        for kind in 0..=KINDS {
            flip(&mut grid.points[middle][kind]);
            assert_ne!(grid.checksum(), built);
            assert!(wrong_of(&grid, 20_000) > 0, "kind {kind}");
            flip(&mut grid.points[middle][kind]);
        }
        assert_eq!(grid.checksum(), built);
        grid.below.iter_mut().for_each(|p| *p ^= 1);
        assert!(wrong_of(&grid, 1000) > 0);
        grid.below.iter_mut().for_each(|p| *p = u32::MAX);
        assert_eq!(wrong_of(&grid, 1000), 1000);
    }

    #[test]
    fn materials_are_drawn_by_their_share_and_are_of_different_nuclides() {
        assert!((MATERIAL_SHARE.iter().sum::<f64>() - 1.0).abs() < 1e-9);
        let problem = small().problem;
        let mut times = [0_u32; 12];
        let mut random = Random::new(2);
        (0..100_000).for_each(|_| times[problem.draw(&mut random).1] += 1);
        for (n, share) in times.iter().zip(MATERIAL_SHARE) {
            assert!((f64::from(*n) / 1e5 - share).abs() < 0.008, "{times:?}");
        }
        for (material, &nuclides) in MATERIAL_NUCLIDES.iter().enumerate() {
            let mut all: Vec<usize> = problem.material(material).map(|(n, _)| n).collect();
            all.sort_unstable();
            all.dedup();
            assert_eq!(all.len(), nuclides, "material {material}");
        }
    }

    #[test]
    fn the_size_is_kept() {
        for size_mib in [64_u64, 1024, 8192] {
            let points = Problem::for_size(size_mib, 1).points as u64;
            let bytes = points * 355 * (48 + 8 + 355 * 4);
            assert!(bytes <= size_mib << 20 && bytes * 100 > (size_mib << 20) * 98);
        }
    }
}
