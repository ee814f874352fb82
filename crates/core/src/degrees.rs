//! Degrees of use: how unevenly touches fall on the pages of a region.
//!
//! Of the pages of a region some are in use in every window, some now and then, some hardly ever.
//! What a region does in a tier hangs on that more than on how much of it is touched: the first
//! kind is home after a window, and what stays behind is the last kind. Here a page has a rate, and
//! rates are spread as powers of an exponential distribution (Weibull), `rate = (-ln u)^g` with `u`
//! even between 0 and 1: `g` is the *unevenness*, 0 for pages that are all alike. Pages are put
//! into a few classes by their rates. Where the region's use is `s`, a page of rate `r` is touched
//! in a window with the probability `s r / (1 + s r)`; `s` follows from how much of the region is
//! touched in all, so that a table from that share to the shares of the classes is all there is to
//! know.

/// Classes of pages of a region.
pub const CLASSES: usize = 4;
/// Shares of a region's pages in them, coldest first.
const SHARES: [f64; CLASSES] = [0.5, 0.25, 0.15, 0.1];
/// Points of a class at which rates are averaged.
const POINTS: usize = 16;
/// Steps of the table: 1/64 of a region.
const STEPS: usize = 64;
/// Halvings that find a region's use: to a billionth of its range.
const HALVINGS: usize = 60;
/// Range of a region's use.
const USE: (f64, f64) = (1e-12, 1e12);

/// How touches spread over the pages of a region.
#[derive(Clone, PartialEq, Debug)]
pub struct Degrees {
    unevenness: f64,
    classes: usize,
    shares: [f64; CLASSES],
    /// By the share of the region that is touched: the share of each class.
    table: Vec<[f64; CLASSES]>,
}

impl Default for Degrees {
    fn default() -> Degrees {
        Degrees::even()
    }
}

impl Degrees {
    /// All pages alike: one class.
    pub fn even() -> Degrees {
        let mut shares = [0.0; CLASSES];
        shares[0] = 1.0;
        Degrees { unevenness: 0.0, classes: 1, shares, table: Vec::new() }
    }

    /// With this unevenness, 0 (all alike) to 8; what is not a number counts as 0.
    pub fn of(unevenness: f64) -> Degrees {
        if unevenness.is_nan() || unevenness <= 0.0 {
            return Degrees::even();
        }
        let unevenness = unevenness.min(8.0);
        let mut rates = [0.0; CLASSES];
        let mut begin = 0.0;
        for (rate, share) in rates.iter_mut().zip(SHARES) {
            let at = |point: usize| begin + share * (point as f64 + 0.5) / POINTS as f64;
            let of = |point: usize| (-(1.0 - at(point)).ln()).powf(unevenness);
            *rate = (0..POINTS).map(of).sum::<f64>() / POINTS as f64;
            begin += share;
        }
        let table = (0..=STEPS).map(|step| shares_at(&rates, step as f64 / STEPS as f64));
        Degrees { unevenness, classes: CLASSES, shares: SHARES, table: table.collect() }
    }

    /// The unevenness.
    pub fn unevenness(&self) -> f64 {
        self.unevenness
    }

    /// Classes that there are, 1 to [`CLASSES`].
    pub fn classes(&self) -> usize {
        self.classes
    }

    /// Share of a region's pages in each class; 0 for those that there are not.
    pub fn shares(&self) -> &[f64; CLASSES] {
        &self.shares
    }

    /// Share of each class that is touched when so much of the region is, 0 to 1.
    #[inline]
    pub fn touched(&self, share: f64) -> [f64; CLASSES] {
        let share = share.clamp(0.0, 1.0);
        if self.classes == 1 {
            let mut all = [0.0; CLASSES];
            all[0] = share;
            return all;
        }
        let place = share * STEPS as f64;
        let at = (place as usize).min(STEPS - 1);
        let (low, high, part) = (&self.table[at], &self.table[at + 1], place - at as f64);
        core::array::from_fn(|class| low[class] + (high[class] - low[class]) * part)
    }

    /// Share of the region that is touched when of `pages`, by class, so many are; 0 to 1.
    pub fn share_of(&self, pages: &[f64; CLASSES], touched: f64) -> f64 {
        let of = |touched: &[f64; CLASSES]| -> f64 {
            pages.iter().zip(touched).map(|(pages, share)| pages * share).sum()
        };
        if self.classes == 1 {
            return if pages[0] > 0.0 { (touched / pages[0]).clamp(0.0, 1.0) } else { 0.0 };
        }
        let above = self.table.partition_point(|row| of(row) < touched);
        if above == 0 {
            return 0.0;
        }
        if above > STEPS {
            return 1.0;
        }
        let (low, high) = (of(&self.table[above - 1]), of(&self.table[above]));
        let part = if high > low { (touched - low) / (high - low) } else { 0.0 };
        ((above - 1) as f64 + part) / STEPS as f64
    }
}

fn shares_at(rates: &[f64; CLASSES], share: f64) -> [f64; CLASSES] {
    if share <= 0.0 || share >= 1.0 {
        return [share.clamp(0.0, 1.0); CLASSES];
    }
    let at = |s: f64| rates.map(|rate| s * rate / (1.0 + s * rate));
    let all = |of: &[f64; CLASSES]| SHARES.iter().zip(of).map(|(a, b)| a * b).sum::<f64>();
    let (mut low, mut high) = USE;
    for _ in 0..HALVINGS {
        let middle = (low * high).sqrt();
        if all(&at(middle)) < share {
            low = middle;
        } else {
            high = middle;
        }
    }
    at((low * high).sqrt())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_add_up_to_the_region_whatever_the_unevenness() {
        for unevenness in [0.0, 0.5, 1.0, 2.5, 6.0, f64::NAN, 1e9] {
            let degrees = Degrees::of(unevenness);
            let shares = degrees.shares();
            assert!((shares.iter().sum::<f64>() - 1.0).abs() < 1e-12);
            for step in 0..=1000 {
                let share = f64::from(step) / 1000.0;
                let of = degrees.touched(share);
                let all: f64 = of.iter().zip(shares).map(|(a, b)| a * b).sum();
                assert!((all - share).abs() < 1e-6, "{unevenness}: {all}, not {share}");
                assert!(of.iter().all(|share| (0.0..=1.0).contains(share)), "{of:?}");
                let back = degrees.share_of(&shares.map(|part| 512.0 * part), 512.0 * share);
                assert!((back - share).abs() < 1e-6, "{unevenness}: {back}, not {share}");
            }
        }
    }

    #[test]
    fn what_is_uneven_keeps_to_few_pages() {
        let even = Degrees::of(0.0).touched(0.1);
        assert_eq!((even[0], Degrees::of(0.0).classes()), (0.1, 1));
        let mut coldest = 0.1;
        for unevenness in [0.5, 1.0, 2.0, 4.0] {
            let of = Degrees::of(unevenness).touched(0.1);
            assert!(of.is_sorted() && of[0] < coldest, "{unevenness}: {of:?}");
            coldest = of[0];
        }
        assert!(coldest < 0.01, "half of the region is hardly touched: {coldest}");
    }

    #[test]
    fn from_what_is_left_of_a_region_follows_how_much_of_it_is_in_use() {
        let degrees = Degrees::of(2.0);
        let left = [256.0, 100.0, 20.0, 2.0];
        let of = |share: f64| -> f64 {
            degrees.touched(share).iter().zip(left).map(|(a, b)| a * b).sum()
        };
        for share in [0.0, 0.003, 0.2, 0.77, 1.0] {
            let found = degrees.share_of(&left, of(share));
            assert!((found - share).abs() < 1e-6, "{found}, not {share}");
        }
        assert_eq!(degrees.share_of(&left, 1e9), 1.0);
        assert_eq!(degrees.share_of(&[0.0; CLASSES], 0.0), 0.0);
    }
}
