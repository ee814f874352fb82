//! Pages by age in scan periods: the form of both histograms of the paper (section 5.1).

/// Ages that are told apart, 0 to [`AGE_MAX`]: eight bits a page in the paper.
pub const AGES: usize = 256;

/// Oldest age, in scan periods; what is older counts as this old. 8.5 hours at 120 s.
pub const AGE_MAX: u8 = u8::MAX;

/// Pages (or fractions of them, since they are estimates) by age.
#[derive(Clone, PartialEq, Debug)]
pub struct AgeHistogram {
    pages: Box<[f64; AGES]>,
}

impl Default for AgeHistogram {
    fn default() -> Self {
        AgeHistogram { pages: Box::new([0.0; AGES]) }
    }
}

impl AgeHistogram {
    /// Counts `pages` more of this age. What is not a positive number counts nothing.
    pub fn add(&mut self, age: u8, pages: f64) {
        if pages > 0.0 && pages.is_finite() {
            self.pages[usize::from(age)] += pages;
        }
    }

    /// Pages of exactly this age.
    pub fn at(&self, age: u8) -> f64 {
        self.pages[usize::from(age)]
    }

    /// Pages of this age or older.
    pub fn at_least(&self, age: u8) -> f64 {
        self.pages[usize::from(age)..].iter().sum()
    }

    /// Pages of all ages.
    pub fn total(&self) -> f64 {
        self.pages.iter().sum()
    }

    /// Forgets all but a share of what was counted (0 to 1).
    pub fn fade(&mut self, share: f64) {
        self.pages.iter_mut().for_each(|pages| *pages *= share);
    }

    /// Starts anew.
    pub fn clear(&mut self) {
        self.pages.fill(0.0);
    }

    /// The youngest age from 1 on of which no more than `most` pages are that old or older; `None`
    /// if even of the oldest there are more.
    pub fn youngest_within(&self, most: f64) -> Option<u8> {
        let mut older = 0.0;
        let mut best = None;
        for age in (1..=AGE_MAX).rev() {
            older += self.at(age);
            if older > most {
                break;
            }
            best = Some(age);
        }
        best
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The example of section 4.3: pages last used 5 and 10 minutes before they were used again.
    #[test]
    fn the_papers_example() {
        let mut promotions = AgeHistogram::default();
        promotions.add(5, 1.0);
        promotions.add(10, 1.0);
        assert_eq!((promotions.at_least(8), promotions.at_least(2)), (1.0, 2.0));
        assert_eq!(promotions.youngest_within(2.0), Some(1));
        assert_eq!(promotions.youngest_within(1.0), Some(6));
        assert_eq!(promotions.youngest_within(0.5), Some(11));
    }

    #[test]
    fn age_0_is_never_cold_and_the_oldest_may_be_too_many() {
        let mut promotions = AgeHistogram::default();
        promotions.add(0, 1e9);
        assert_eq!(promotions.youngest_within(0.0), Some(1));
        promotions.add(AGE_MAX, 3.0);
        assert_eq!(promotions.youngest_within(2.0), None);
        assert_eq!(promotions.youngest_within(3.0), Some(1));
    }

    #[test]
    fn nonsense_is_not_counted() {
        let mut histogram = AgeHistogram::default();
        for pages in [f64::NAN, f64::INFINITY, -1.0] {
            histogram.add(1, pages);
        }
        assert_eq!(histogram.total(), 0.0);
        histogram.add(2, 8.0);
        histogram.fade(0.25);
        assert_eq!((histogram.at(2), histogram.at_least(3)), (2.0, 0.0));
        histogram.clear();
        assert_eq!(histogram, AgeHistogram::default());
    }

    proptest! {
        #[test]
        fn more_that_is_allowed_never_makes_the_threshold_older(
            counts in prop::collection::vec((any::<u8>(), 0u32..50), 0..40),
            few in 0.0f64..300.0, more in 0.0f64..300.0,
        ) {
            let mut promotions = AgeHistogram::default();
            counts.iter().for_each(|&(age, pages)| promotions.add(age, f64::from(pages)));
            let rank = |most| promotions.youngest_within(most).map_or(256, u32::from);
            prop_assert!(rank(few + more) <= rank(few));
            // It is what it says: allowed at the threshold, not allowed one younger.
            if let Some(age) = promotions.youngest_within(few) {
                prop_assert!(promotions.at_least(age) <= few + 1e-9);
                prop_assert!(age == 1 || promotions.at_least(age - 1) > few);
            }
        }
    }
}
