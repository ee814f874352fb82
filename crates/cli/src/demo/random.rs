//! Seeded randomness: SplitMix64 (public domain, Steele et al. 2014) and the key distribution.
//! The same seed gives the same requests in every run, so that runs differ by the memory alone.

/// A small, fast, seedable generator; not for secrets.
#[derive(Clone)]
pub struct Random(u64);

impl Random {
    /// A generator that is fully determined by `seed`.
    pub fn new(seed: u64) -> Self {
        Random(seed)
    }

    /// The next 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        mix(self.0)
    }

    /// A number in `0..n`; `n` must not be 0.
    pub fn below(&mut self, n: u64) -> u64 {
        ((u128::from(self.bits()) * u128::from(n)) >> 64) as u64
    }

    /// A number in [0, 1).
    pub fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// One of the given things.
    pub fn pick<'a, T: ?Sized>(&mut self, of: &[&'a T]) -> &'a T {
        of[self.below(of.len() as u64) as usize]
    }
}

/// SplitMix64's finaliser: a bijection that scatters neighbouring numbers.
pub fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// Gaussian key popularity as memtier_benchmark draws it: centred on the key range, values that
/// fall outside are drawn again.
pub struct GaussianKeys {
    random: Random,
    keys: u64,
    deviation: f64,
    spare: Option<f64>,
}

impl GaussianKeys {
    /// Keys `0..keys` with a standard deviation of `sigma` times the range.
    pub fn new(seed: u64, keys: u64, sigma: f64) -> Self {
        GaussianKeys {
            random: Random::new(seed),
            keys,
            deviation: sigma * keys as f64,
            spare: None,
        }
    }

    /// The next key to ask for.
    pub fn next_key(&mut self) -> u64 {
        loop {
            let key = (self.keys as f64 / 2.0 + self.normal() * self.deviation).floor();
            if key >= 0.0 && key < self.keys as f64 {
                return key as u64;
            }
        }
    }

    /// True once in `1/share` calls on average.
    pub fn chance(&mut self, share: f64) -> bool {
        self.random.unit() < share
    }

    /// Standard normal by Marsaglia's polar method, which yields two at a time.
    fn normal(&mut self) -> f64 {
        if let Some(spare) = self.spare.take() {
            return spare;
        }
        loop {
            let (x, y) = (self.random.unit() * 2.0 - 1.0, self.random.unit() * 2.0 - 1.0);
            let s = x * x + y * y;
            if s > 0.0 && s < 1.0 {
                let factor = (-2.0 * s.ln() / s).sqrt();
                self.spare = Some(y * factor);
                return x * factor;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_gaussian_and_in_range() {
        let (n, keys) = (200_000, 60_000_u64);
        let mut draw = GaussianKeys::new(7, keys, 1.0 / 6.0);
        let all: Vec<f64> = (0..n).map(|_| draw.next_key() as f64).collect();
        let mean = all.iter().sum::<f64>() / n as f64;
        let within = all.iter().filter(|k| (**k - 30_000.0).abs() < 10_000.0).count();
        assert!((mean - 30_000.0).abs() < 150.0, "mean {mean}");
        // One standard deviation either side holds 68.3 % (68.5 % of what lies within three).
        assert!((within as f64 / n as f64 - 0.685).abs() < 0.01, "{within}");
        assert!(all.iter().all(|k| *k < keys as f64));
    }

    #[test]
    fn the_same_seed_gives_the_same_keys() {
        let draw = |seed| {
            let mut d = GaussianKeys::new(seed, 1000, 0.2);
            (0..50).map(|_| d.next_key()).collect::<Vec<_>>()
        };
        assert_eq!(draw(1), draw(1));
        assert_ne!(draw(1), draw(2));
    }

    #[test]
    fn below_covers_its_range() {
        let mut random = Random::new(3);
        let mut seen = [0; 5];
        (0..1000).for_each(|_| seen[random.below(5) as usize] += 1);
        assert!(seen.iter().all(|n| *n > 120), "{seen:?}");
    }
}
