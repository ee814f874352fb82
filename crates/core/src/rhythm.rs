//! By how much more or less than usual an application uses its pages, window by window.
//!
//! Of one region a window tells little: a few samples, a few faults, chance for the most part, so
//! that [`crate::touches`] has to draw it to the windows around. All regions together tell it well.
//! A program that reads tables in one window and sorts in the next has thousands of faults in the
//! one and none in the other, and a region that is drawn to its neighbours would have some in both.
//! So what a region does is taken to be what it usually does, which changes slowly, times what all
//! do in that window by what they usually do.

/// Expected hits or faults that the usual is worth: in a window of fewer nothing is made of chance.
const USUAL: f64 = 30.0;
/// Range of a window's use by the usual one.
const RANGE: (f64, f64) = (0.01, 100.0);
/// What a region usually does and the rhythm of all follow from each other: rounds.
pub(crate) const ROUNDS: usize = 3;

/// Hits or faults of all regions in each window: how many were to be expected by what is known of
/// them, and how many there were.
#[derive(Clone, PartialEq, Debug, Default)]
pub(crate) struct Tally {
    windows: Vec<(f64, f64)>,
}

impl Tally {
    /// Adds a region's in window `window`.
    pub(crate) fn add(&mut self, window: usize, expected: f64, seen: f64) {
        if self.windows.len() <= window {
            self.windows.resize(window + 1, (0.0, 0.0));
        }
        self.windows[window].0 += expected;
        self.windows[window].1 += seen;
    }
}

/// Use of all regions in each window by what is usual.
#[derive(Clone, PartialEq, Debug, Default)]
pub(crate) struct Rhythm {
    windows: Vec<f64>,
}

impl Rhythm {
    /// In window `window`; 1 where nothing was learnt.
    pub(crate) fn at(&self, window: usize) -> f64 {
        self.windows.get(window).copied().unwrap_or(1.0)
    }

    /// Takes in what there was where this rhythm let one expect what was expected.
    pub(crate) fn learn(&mut self, tally: &Tally) {
        self.windows.resize(self.windows.len().max(tally.windows.len()), 1.0);
        for (now, (expected, seen)) in self.windows.iter_mut().zip(&tally.windows) {
            let (low, high) = RANGE;
            *now = (*now * (seen + USUAL) / (expected + USUAL)).clamp(low, high);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_regions_tell_a_windows_rhythm_and_few_do_not() {
        let (mut rhythm, mut tally) = (Rhythm::default(), Tally::default());
        for _ in 0..1_000 {
            tally.add(1, 2.0, 6.0);
        }
        tally.add(2, 2.0, 0.0);
        tally.add(3, 4_000.0, 0.0);
        rhythm.learn(&tally);
        assert!((rhythm.at(1) - 3.0).abs() < 0.1 && rhythm.at(2) > 0.9, "{rhythm:?}");
        assert_eq!((rhythm.at(0), rhythm.at(3), rhythm.at(9)), (1.0, RANGE.0, 1.0));
        // What it lets one expect is what there was.
        let mut again = Tally::default();
        again.add(1, 6_000.0, 6_000.0);
        rhythm.learn(&again);
        assert!((rhythm.at(1) - 3.0).abs() < 0.1, "{rhythm:?}");
    }
}
