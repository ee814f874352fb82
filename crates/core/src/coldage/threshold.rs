//! From the best threshold of each minute to the one of the next (section 4.3): the K-th percentile
//! of the past, or the last minute's if that is higher.

use std::collections::VecDeque;

use super::histogram::{AgeHistogram, AGES};

/// Minutes that are remembered: a day, so that tomorrow's peak is not a surprise.
pub const HISTORY_MINUTES: usize = 1_440;

/// How long a page must not have been touched to be cold.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum ColdAge {
    /// This many scan periods or more, 1 to 255.
    Periods(u8),
    /// No page is cold enough.
    Never,
}

impl ColdAge {
    /// The lowest cold age under which a minute with these promotions keeps within `allowed` pages.
    pub fn best(promotions: &AgeHistogram, allowed: f64) -> ColdAge {
        promotions.youngest_within(allowed).map_or(ColdAge::Never, ColdAge::Periods)
    }

    /// Whether pages of this age are cold.
    #[inline]
    pub fn is_reached_by(self, age: u8) -> bool {
        match self {
            ColdAge::Periods(periods) => age >= periods,
            ColdAge::Never => false,
        }
    }

    /// The scan periods, if there is a threshold.
    pub fn periods(self) -> Option<u8> {
        match self {
            ColdAge::Periods(periods) => Some(periods),
            ColdAge::Never => None,
        }
    }

    fn rank(self) -> usize {
        self.periods().map_or(AGES, usize::from)
    }

    fn of_rank(rank: usize) -> ColdAge {
        u8::try_from(rank).map_or(ColdAge::Never, |periods| ColdAge::Periods(periods.max(1)))
    }
}

/// The best thresholds of the past minutes.
#[derive(Clone, Debug)]
pub struct History {
    /// Oldest first.
    minutes: VecDeque<u16>,
    /// How many of them have each rank.
    counts: [u32; AGES + 1],
}

impl Default for History {
    fn default() -> Self {
        History { minutes: VecDeque::new(), counts: [0; AGES + 1] }
    }
}

impl History {
    /// Notes the best threshold of a minute, and forgets that of a day ago.
    pub fn push(&mut self, best: ColdAge) {
        if self.minutes.len() == HISTORY_MINUTES {
            if let Some(oldest) = self.minutes.pop_front() {
                self.counts[usize::from(oldest)] -= 1;
            }
        }
        self.counts[best.rank()] += 1;
        self.minutes.push_back(best.rank() as u16);
    }

    /// Minutes noted.
    pub fn len(&self) -> usize {
        self.minutes.len()
    }

    /// Whether nothing was noted yet.
    pub fn is_empty(&self) -> bool {
        self.minutes.is_empty()
    }

    /// The best threshold of the newest minute.
    pub fn newest(&self) -> ColdAge {
        self.minutes.back().map_or(ColdAge::Never, |&rank| ColdAge::of_rank(usize::from(rank)))
    }

    /// The `k`-th percentile (0 to 100): the lowest threshold that was enough in `k` per cent of
    /// the minutes. Without minutes: never.
    pub fn percentile(&self, k: f64) -> ColdAge {
        if self.minutes.is_empty() {
            return ColdAge::Never;
        }
        let want = (self.minutes.len() as f64 * k.clamp(0.0, 100.0) / 100.0).ceil().max(1.0);
        let mut seen = 0;
        let reaches = |&count: &u32| {
            seen += count;
            f64::from(seen) >= want
        };
        self.counts.iter().position(reaches).map_or(ColdAge::Never, ColdAge::of_rank)
    }

    /// The threshold for the next minute: the percentile, or the newest minute's own if that is
    /// higher (the spike rule).
    pub fn next(&self, k: f64) -> ColdAge {
        self.percentile(k).max(self.newest())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use ColdAge::{Never, Periods};

    fn of(minutes: &[ColdAge]) -> History {
        let mut history = History::default();
        minutes.iter().for_each(|&best| history.push(best));
        history
    }

    #[test]
    fn percentiles_by_hand() {
        let mut history = of(&[]);
        assert_eq!((history.next(98.0), history.is_empty()), (Never, true));
        // 1 to 100 in some order.
        (1..=100).for_each(|n: u32| history.push(Periods((n * 37 % 101) as u8)));
        assert_eq!(history.percentile(98.0), Periods(98));
        assert_eq!(history.percentile(50.0), Periods(50));
        assert_eq!(history.percentile(0.0), Periods(1));
        assert_eq!(history.percentile(100.0), Periods(100));
        // The newest was 100 * 37 mod 101 = 64: below the 98th, above the 50th percentile.
        assert_eq!((history.next(98.0), history.next(50.0)), (Periods(98), Periods(64)));
    }

    #[test]
    fn a_spike_rules_at_once_and_for_one_minute() {
        let mut history = of(&[Periods(3); 99]);
        history.push(Periods(90));
        assert_eq!(history.next(98.0), Periods(90));
        history.push(Periods(3));
        assert_eq!(history.next(98.0), Periods(3));
        history.push(Never);
        assert_eq!(history.next(98.0), Never);
        assert!(!Never.is_reached_by(255));
        assert!(Periods(3).is_reached_by(3) && !Periods(3).is_reached_by(2));
    }

    #[test]
    fn yesterday_is_forgotten() {
        let mut history = of(&[Never; HISTORY_MINUTES]);
        (0..HISTORY_MINUTES).for_each(|_| history.push(Periods(2)));
        assert_eq!((history.len(), history.percentile(100.0)), (HISTORY_MINUTES, Periods(2)));
    }

    proptest! {
        #[test]
        fn a_percentile_is_enough_for_its_share_of_the_minutes(
            minutes in prop::collection::vec(1usize..=256, 1..200), k in 0.0f64..100.0,
        ) {
            let all: Vec<ColdAge> = minutes.iter().map(|&rank| ColdAge::of_rank(rank)).collect();
            let threshold = of(&all).percentile(k);
            let enough = all.iter().filter(|&&best| best <= threshold).count();
            let below = all.iter().filter(|&&best| best < threshold).count();
            prop_assert!(enough as f64 >= k / 100.0 * all.len() as f64);
            prop_assert!((below as f64) < (k / 100.0 * all.len() as f64).max(1.0));
        }
    }
}
