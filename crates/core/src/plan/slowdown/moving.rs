//! What the runtime's processor time goes on: how much longer moves take than thought, and what is
//! for watching.
//!
//! Beside a busy program caches are cold, and a page takes up to six times what it takes alone.
//! What can be measured is the processor time of the runtime in a window, and most of that may be
//! for watching, which has nothing to do with what is moved: were all of it laid at the door of
//! moves, they would look many times as dear as they are, and the cheapest savings, those that
//! last, would wait for good. So it is told by how that time *changes* from one window to the next
//! with what the plans moved: least squares, towards what was thought where moves hardly change,
//! old windows counting less and less. What moves do not explain is for watching and faults.

use super::Measured;

/// How far from what was thought moves may well be, as a factor, and the most that is believed.
const SPREAD: f64 = 1.0;
const LONGER_MAX: f64 = 6.0;
/// Pages that a plan must move for its window to say something of moves.
const PAGES_MIN: f64 = 1024.0;
/// Processor time for a page that faulted, beside what its thread waits for, in nanoseconds: where
/// more faults, more goes down again, and moves would be charged for both.
const FAULT_NS: f64 = 5_000.0;
/// What the past still counts after a window that said something.
const KEPT: f64 = 0.97;
/// Scatter of the processor time of windows that is taken for granted, in nanoseconds, how fast it
/// is learnt, and the most that one window adds, by what it is.
const SCATTER_MIN_NS: f64 = 2e6;
const SCATTER_WEIGHT: f64 = 0.1;
const SCATTER_STEP: f64 = 4.0;
/// From the mean distance of windows to their scatter; and by how many scatters a window may be off
/// before it counts for less than the others.
const SCATTER_OF_MEAN: f64 = 1.5;
const OFF_SCATTERS: f64 = 2.0;
/// Weight of the newest window in what is usual beside moves.
const BESIDE_WEIGHT: f64 = 0.25;

/// What is known of an application's moves.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Moving {
    /// What the last plan's moves were thought to take, and how many pages they are.
    planned_ns: f64,
    planned_pages: f64,
    /// The window before: what its moves were thought to take, and what it took beside its faults.
    before: Option<(f64, f64)>,
    /// Sums of squares and products of changes, by the square of the scatter.
    squares: f64,
    products: f64,
    scatter_ns: f64,
    longer: f64,
    beside_ns: f64,
}

impl Default for Moving {
    fn default() -> Moving {
        Moving {
            planned_ns: 0.0,
            planned_pages: 0.0,
            before: None,
            squares: 0.0,
            products: 0.0,
            scatter_ns: SCATTER_MIN_NS,
            longer: 1.0,
            beside_ns: 0.0,
        }
    }
}

impl Moving {
    /// Processor time that moves take by what they were thought to take, 1 to 6.
    pub(super) fn longer(&self) -> f64 {
        self.longer
    }

    /// Processor time of a window that is usual beside moves, in nanoseconds.
    pub(super) fn beside_ns(&self) -> f64 {
        self.beside_ns
    }

    /// The next window begins with moves of so many pages, thought to take so long.
    pub(super) fn plan(&mut self, pages: f64, ns: f64) {
        (self.planned_pages, self.planned_ns) = (pages, ns);
    }

    /// That window is over.
    pub(super) fn learn(&mut self, measured: &Measured) {
        let took_ns = measured.cpu_ns - measured.faults * FAULT_NS;
        if !took_ns.is_finite() {
            return;
        }
        let before = self.before.replace((self.planned_ns, took_ns));
        if let Some(before) = before.filter(|_| self.planned_pages >= PAGES_MIN) {
            self.learn_change(self.planned_ns - before.0, took_ns - before.1);
        }
        let beside_ns = (measured.cpu_ns - self.planned_ns * self.longer).max(0.0);
        let weight = if before.is_some() { BESIDE_WEIGHT } else { 1.0 };
        self.beside_ns += weight * (beside_ns - self.beside_ns);
    }

    /// Moves that were thought to take so much more than those of the window before, and what
    /// windows took more.
    fn learn_change(&mut self, planned: f64, took: f64) {
        let off = (took - planned * self.longer).abs();
        let part = (OFF_SCATTERS * self.scatter_ns / off.max(1.0)).min(1.0);
        let weight = part / (self.scatter_ns * self.scatter_ns);
        let scatter_ns = SCATTER_OF_MEAN * off.min(SCATTER_STEP * self.scatter_ns);
        self.scatter_ns += SCATTER_WEIGHT * (scatter_ns - self.scatter_ns);
        self.scatter_ns = self.scatter_ns.max(SCATTER_MIN_NS);
        self.squares = KEPT * self.squares + weight * planned * planned;
        self.products = KEPT * self.products + weight * planned * (took - planned);
        let beyond = self.products / (1.0 / (SPREAD * SPREAD) + self.squares);
        self.longer = (1.0 + beyond).clamp(1.0, LONGER_MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// After windows with these many pages moved, thought to take 10 us each, and this processor
    /// time.
    fn all_after(windows: impl Iterator<Item = (f64, f64)>) -> Moving {
        let mut moving = Moving::default();
        for (pages, cpu_ns) in windows {
            moving.plan(pages, pages * 1e4);
            moving.learn(&Measured { cpu_ns, faults: 500.0, ..Measured::default() });
        }
        moving
    }

    fn after(windows: impl Iterator<Item = (f64, f64)>) -> f64 {
        all_after(windows).longer()
    }

    /// Pages of window `n`, between 1,000 and 4,000.
    fn pages(n: u32) -> f64 {
        1000.0 + f64::from(n * n * 37 % 3000)
    }

    #[test]
    fn moves_are_told_from_watching_through_drifts_and_single_bad_windows() {
        for (watching_ns, times) in [(0.0, 1.0), (4e7, 1.3), (2e8, 2.5), (4e7, 6.0)] {
            let moving = all_after((0..60).map(|n| {
                let bad = if n % 17 == 5 { 6e7 } else { 0.0 };
                let drift = 3e5 * f64::from(n);
                (pages(n), watching_ns + bad + drift + pages(n) * 1e4 * times)
            }));
            assert!((moving.longer() - times).abs() < 0.15 * times, "{moving:?} for {times}");
            let beside_ns = watching_ns + 3e5 * 57.0;
            assert!((moving.beside_ns() - beside_ns).abs() < 1.5e7, "{moving:?} for {beside_ns}");
        }
    }

    #[test]
    fn what_does_not_change_with_moves_says_nothing_of_them() {
        // Steady moves beside much watching, no moves at all, and what is not a number.
        assert_eq!(after((0..60).map(|_| (3000.0, 2e8))), 1.0);
        assert_eq!(after((0..60).map(|n| (10.0, 1e6 * f64::from(n * n % 50)))), 1.0);
        assert_eq!(after([(0.0, f64::NAN), (5000.0, f64::INFINITY)].into_iter()), 1.0);
        // Moves that seem to take less than nothing, and far more than is believed.
        assert_eq!(after((0..60).map(|n| (pages(n), 9e7 - pages(n) * 1e4))), 1.0);
        assert_eq!(after((0..60).map(|n| (pages(n), pages(n) * 1e5))), LONGER_MAX);
    }
}
