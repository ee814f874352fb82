//! Factors by least squares, where it is about known beforehand what they are.

/// How often outliers are looked for anew.
const ROUNDS: usize = 3;
/// From the middle distance of rows to their scatter; and by how many scatters a row may be off
/// before it counts for less than the others.
const SCATTER_OF_MIDDLE: f64 = 1.5;
const OFF_SCATTERS: f64 = 2.0;

/// A factor before anything was measured: its usual value, and how far from it it may well be.
pub type Usual = (f64, f64);

/// Something that was measured: what each factor is multiplied by in it, and the sum.
pub type Sample = (Vec<f64>, f64);

/// The factors that explain the rows best, of those that are not far from the usual ones (by more
/// than nothing, each). Rows are scattered by `scatter_min` at least; where few say something of a
/// factor it stays usual.
pub fn fit(rows: &[Sample], usual: &[Usual], scatter_min: f64) -> Vec<f64> {
    let n = usual.len();
    let sum = |of: &[f64], factors: &[f64]| of.iter().zip(factors).map(|(x, f)| x * f).sum::<f64>();
    let expected: Vec<f64> = usual.iter().map(|usual| usual.0).collect();
    let mut found = expected.clone();
    let mut scatter = f64::INFINITY;
    for _ in 0..ROUNDS {
        let off = |row: &Sample| row.1 - sum(&row.0, &found);
        let mut all: Vec<f64> = rows.iter().map(|row| off(row).abs()).collect();
        all.sort_by(f64::total_cmp);
        // From the middle one, so that a few windows in which the machine did something else do
        // not count for more than they are.
        let middle = all.get(all.len() / 2).copied().unwrap_or(0.0);
        scatter = (SCATTER_OF_MIDDLE * middle).max(scatter_min).min(scatter);
        let mut squares = vec![vec![0.0; n]; n];
        let mut products = vec![0.0; n];
        for (at, usual) in usual.iter().enumerate() {
            squares[at][at] = usual.1.powi(-2);
        }
        for row in rows {
            let weight = (OFF_SCATTERS * scatter / off(row).abs().max(1.0)).min(1.0);
            let weight = weight / scatter.powi(2);
            let rest = row.1 - sum(&row.0, &expected);
            for (a, x) in row.0.iter().enumerate() {
                products[a] += weight * x * rest;
                for (b, y) in row.0.iter().enumerate() {
                    squares[a][b] += weight * x * y;
                }
            }
        }
        let beyond = solve(squares, products);
        found = expected.iter().zip(beyond).map(|(usual, beyond)| usual + beyond).collect();
    }
    found
}

/// Solves a system whose matrix is symmetric and positive definite: no row need be looked for to
/// divide by.
fn solve(mut matrix: Vec<Vec<f64>>, mut right: Vec<f64>) -> Vec<f64> {
    let n = right.len();
    for at in 0..n {
        let (above, below) = matrix.split_at_mut(at + 1);
        let pivot = &above[at];
        for (row, of) in below.iter_mut().zip(at + 1..) {
            let by = row[at] / pivot[at];
            row.iter_mut().zip(pivot).skip(at).for_each(|(x, p)| *x -= by * p);
            right[of] -= by * right[at];
        }
    }
    for at in (0..n).rev() {
        let known: f64 = (at + 1..n).map(|of| matrix[at][of] * right[of]).sum();
        right[at] = (right[at] - known) / matrix[at][at];
    }
    right
}

#[cfg(test)]
mod tests {
    use super::*;

    const USUAL: [Usual; 3] = [(10.0, 5.0), (20.0, 5.0), (1.0, 1.0)];

    fn row(n: u32, of: impl Fn(&[f64]) -> f64) -> Sample {
        let x = |by: u32| f64::from(n * n * by % 97);
        let x = vec![x(3), x(5), x(11)];
        let sum = of(&x);
        (x, sum)
    }

    #[test]
    fn factors_are_told_apart_through_outliers() {
        let truth = |x: &[f64]| 8.0 * x[0] + 27.0 * x[1] + 0.5 * x[2];
        let bad = |n: u32| if n % 11 == 3 { 5_000.0 } else { 0.0 };
        let rows: Vec<Sample> = (0..60).map(|n| row(n, |x| truth(x) + bad(n))).collect();
        let found = fit(&rows, &USUAL, 1.0);
        for (found, truth) in found.iter().zip([8.0, 27.0, 0.5]) {
            assert!((found - truth).abs() < 0.2, "{found} for {truth}");
        }
    }

    #[test]
    fn what_no_row_says_stays_usual() {
        let usual: Vec<f64> = USUAL.iter().map(|usual| usual.0).collect();
        assert_eq!(fit(&[], &USUAL, 1.0), usual);
        let rows: Vec<Sample> = (0..60).map(|n| (vec![f64::from(n), 0.0, 0.0], 0.0)).collect();
        let found = fit(&rows, &USUAL, 1.0);
        assert!(found[0].abs() < 0.1 && found[1..] == usual[1..], "{found:?}");
    }
}
