//! Which key is asked for next: Gaussian as memtier_benchmark draws it, or Zipf, with the popular
//! range standing still or moving once round all keys in a given time.

use clap::ValueEnum;

use crate::demo::random::{GaussianKeys, Random};

/// How popularity is spread over the keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Shape {
    /// A bell around the middle of the keys
    Gaussian,
    /// The n-th most popular key as often as 1 / n^theta
    Zipf,
}

/// A shape and its parameters.
#[derive(Clone, Copy, Debug)]
pub(super) struct Spread {
    pub(super) shape: Shape,
    /// Standard deviation as a share of the keys.
    pub(super) sigma: f64,
    /// Exponent of Zipf's law, above 0.
    pub(super) theta: f64,
    /// Seconds in which the popular range goes round once; 0: it stays.
    pub(super) drift_s: f64,
    /// Whether popular keys lie scattered among the others instead of together.
    pub(super) scatter: bool,
}

/// Draws keys.
pub(super) struct Popularity {
    draw: Draw,
    keys: u64,
    drift_s: f64,
    /// How far the popular range lies from where it began, besides what it drifted.
    jumped: u64,
    /// Coprime to the number of keys; 1 keeps neighbours together.
    stride: u64,
    random: Random,
}

enum Draw {
    Gaussian(GaussianKeys),
    Zipf(Zipf),
}

impl Popularity {
    /// Draws among keys `0..keys`.
    pub(super) fn new(seed: u64, keys: u64, spread: Spread) -> Popularity {
        let draw = match spread.shape {
            Shape::Gaussian => Draw::Gaussian(GaussianKeys::new(seed, keys, spread.sigma)),
            Shape::Zipf => Draw::Zipf(Zipf::new(keys, spread.theta)),
        };
        let stride = if spread.scatter { coprime_near_golden(keys) } else { 1 };
        let random = Random::new(seed ^ 0x5EED);
        Popularity { draw, keys, drift_s: spread.drift_s, jumped: 0, stride, random }
    }

    /// From now on the popular range lies half of all keys from where it began.
    pub(super) fn turn(&mut self) {
        self.jumped = self.keys / 2;
    }

    /// The key to ask for `t_s` seconds into the run.
    pub(super) fn next_key(&mut self, t_s: f64) -> u64 {
        let place = match &mut self.draw {
            Draw::Gaussian(draw) => draw.next_key(),
            Draw::Zipf(zipf) => zipf.rank(&mut self.random),
        };
        let moved = if self.drift_s > 0.0 {
            ((t_s / self.drift_s).fract() * self.keys as f64) as u64
        } else {
            0
        };
        let at = u128::from((place + moved + self.jumped) % self.keys);
        (at * u128::from(self.stride) % u128::from(self.keys)) as u64
    }

    /// True in a share of all calls.
    pub(super) fn chance(&mut self, share: f64) -> bool {
        self.random.unit() < share
    }
}

/// Zipf's law by rejection-inversion (Hörmann and Derflinger 1996): no table, about one draw in
/// a hundred rejected, exact for any number of keys.
///
/// `h` is 1/x^theta, `H` its integral. A point is drawn uniformly under the stairs that `H` makes
/// between half numbers; the rank is the stair it falls on, unless it lies in the sliver between
/// stair and curve.
struct Zipf {
    n: f64,
    theta: f64,
    /// `H(1.5) - h(1)` and `H(n + 0.5)`: the range to draw from.
    low: f64,
    high: f64,
    /// Closer than this to its rank a point is certainly accepted.
    certain: f64,
}

impl Zipf {
    fn new(keys: u64, theta: f64) -> Zipf {
        let mut zipf = Zipf { n: keys as f64, theta, low: 0.0, high: 0.0, certain: 0.0 };
        zipf.low = zipf.area(1.5) - 1.0;
        zipf.high = zipf.area(zipf.n + 0.5);
        zipf.certain = 2.0 - zipf.inverse(zipf.area(2.5) - 2_f64.powf(-theta));
        zipf
    }

    /// A rank from 0.
    fn rank(&self, random: &mut Random) -> u64 {
        loop {
            let u = self.high + random.unit() * (self.low - self.high);
            let x = self.inverse(u);
            let k = x.round().clamp(1.0, self.n);
            if k - x <= self.certain || u >= self.area(k + 0.5) - k.powf(-self.theta) {
                return k as u64 - 1;
            }
        }
    }

    fn area(&self, x: f64) -> f64 {
        let e = 1.0 - self.theta;
        if e.abs() < 1e-9 {
            x.ln()
        } else {
            (x.powf(e) - 1.0) / e
        }
    }

    fn inverse(&self, y: f64) -> f64 {
        let e = 1.0 - self.theta;
        if e.abs() < 1e-9 {
            y.exp()
        } else {
            (1.0 + y * e).powf(1.0 / e)
        }
    }
}

fn coprime_near_golden(n: u64) -> u64 {
    let mut stride = (n as f64 * 0.618) as u64 | 1;
    let gcd = |mut a: u64, mut b: u64| {
        while b > 0 {
            (a, b) = (b, a % b);
        }
        a
    };
    while gcd(stride, n) != 1 {
        stride += 2;
    }
    stride
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spread(shape: Shape) -> Spread {
        Spread { shape, sigma: 1.0 / 6.0, theta: 0.99, drift_s: 0.0, scatter: false }
    }

    fn draws(spread: Spread, keys: u64, n: usize, t_s: f64) -> Vec<u64> {
        let mut draw = Popularity::new(5, keys, spread);
        (0..n).map(|_| draw.next_key(t_s)).collect()
    }

    #[test]
    fn gaussian_has_its_moments() {
        let all = draws(spread(Shape::Gaussian), 60_000, 200_000, 0.0);
        let mean = all.iter().sum::<u64>() as f64 / all.len() as f64;
        let variance =
            all.iter().map(|k| (*k as f64 - mean).powi(2)).sum::<f64>() / all.len() as f64;
        assert!((mean - 30_000.0).abs() < 150.0, "{mean}");
        // Cut off at three deviations, which leaves 0.9733 of the variance.
        let want = 10_000.0 * 0.9733_f64.sqrt();
        assert!((variance.sqrt() / want - 1.0).abs() < 0.01, "{}", variance.sqrt());
    }

    #[test]
    fn zipf_has_its_moments_and_its_head() {
        for theta in [0.6, 0.99, 1.0, 1.2] {
            let (keys, n) = (1000_u64, 400_000);
            let all = draws(Spread { theta, ..spread(Shape::Zipf) }, keys, n, 0.0);
            assert!(all.iter().all(|k| *k < keys));
            let weight = |k: u64| (k as f64 + 1.0).powf(-theta);
            let total: f64 = (0..keys).map(weight).sum();
            let mean: f64 = (0..keys).map(|k| k as f64 * weight(k)).sum::<f64>() / total;
            let square: f64 = (0..keys).map(|k| (k as f64).powi(2) * weight(k)).sum::<f64>();
            let error = 5.0 * (square / total - mean * mean).sqrt() / (n as f64).sqrt();
            let got = all.iter().sum::<u64>() as f64 / n as f64;
            assert!((got - mean).abs() < error, "theta {theta}: mean {got}, not {mean}");
            for k in [0, 1, 2, 10] {
                let want = weight(k) / total;
                let got = all.iter().filter(|key| **key == k).count() as f64 / n as f64;
                let error = 5.0 * (want / n as f64).sqrt();
                assert!((got - want).abs() < error, "theta {theta}, rank {k}: {got}, {want}");
            }
        }
    }

    #[test]
    fn the_popular_range_goes_round_once_in_the_period() {
        let drifting = Spread { drift_s: 100.0, ..spread(Shape::Zipf) };
        let most_often = |t_s| {
            let mut times = vec![0; 1000];
            draws(drifting, 1000, 20_000, t_s).iter().for_each(|k| times[*k as usize] += 1);
            (0..1000).max_by_key(|k| times[*k]).unwrap()
        };
        assert_eq!([0.0, 25.0, 50.0, 99.95, 100.0].map(most_often), [0, 250, 500, 999, 0]);
    }

    #[test]
    fn after_a_turn_other_keys_are_popular() {
        let mut draw = Popularity::new(5, 1000, spread(Shape::Gaussian));
        let mut in_the_middle = || {
            let all = (0..4000).map(|_| draw.next_key(0.0));
            let share = all.filter(|k| (250..750).contains(k)).count() as f64 / 4000.0;
            draw.turn();
            share
        };
        let shares = [in_the_middle(), in_the_middle(), in_the_middle()];
        assert!(shares[0] > 0.8 && shares[1] < 0.2 && shares[2] < 0.2, "{shares:?}");
    }

    #[test]
    fn scattering_is_a_bijection_that_parts_neighbours() {
        for keys in [1_u64, 2, 10, 999, 1000, 4096] {
            let stride = coprime_near_golden(keys);
            let mut seen: Vec<u64> = (0..keys).map(|k| k * stride % keys).collect();
            seen.sort_unstable();
            assert_eq!(seen, (0..keys).collect::<Vec<_>>());
        }
        let scattered = Spread { scatter: true, ..spread(Shape::Zipf) };
        let all = draws(scattered, 1000, 20_000, 0.0);
        let low = all.iter().filter(|k| **k < 100).count();
        assert!((1000..6000).contains(&low), "{low} of 20000 in the first tenth");
    }

    #[test]
    fn the_same_seed_asks_for_the_same_keys() {
        for shape in [Shape::Gaussian, Shape::Zipf] {
            let first = draws(spread(shape), 500, 100, 0.0);
            assert_eq!(first, draws(spread(shape), 500, 100, 0.0));
            let mut other = Popularity::new(6, 500, spread(shape));
            assert_ne!(first, (0..100).map(|_| other.next_key(0.0)).collect::<Vec<_>>());
        }
    }
}
