//! What the slowdown policy owes: the promise is of the mean over many windows, and some windows
//! break it before anybody can know.
//!
//! A program that reads everything once in 25 windows loses a whole window then. If each of the
//! others used what is accepted, it would be slower than was promised, for good. So what was lost
//! beyond that is kept as a *debt*, and as long as there is one regions count for what they were
//! touched in the last [`crate::hotness::LONG_WINDOWS`] windows and not in the last four: what is
//! touched rarely and wholly is then seen to cost what it costs. That ends by itself when the debt
//! is paid. How much they count follows the debt slowly: it is a debt that comes back again and
//! again that says something of the program, and a placement that changed with each of them would
//! cost more than it spares.
//!
//! What quiet windows did not use is a credit, a small one: it lets the next ones be planned nearer
//! to what is accepted, never beyond.

/// Largest debt, in windows of what is accepted; and largest credit.
const DEBT_MAX: f64 = 40.0;
const CREDIT_MAX: f64 = 8.0;
/// Debt in windows of what is accepted at which the long memory counts in full.
const REMEMBER_ALL: f64 = 16.0;
/// Windows over which that is averaged.
const FOLLOWS_WINDOWS: f64 = 32.0;
/// What the largest credit adds to the budget of a window.
const CREDIT_PART: f64 = 0.1;
/// What windows lose less than is accepted to pay a debt, and the debt at which it is so much.
const PAID_PART: f64 = 0.1;
const PAID_IN_FULL: f64 = 4.0;

/// The account of one application.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub(super) struct Ledger {
    /// Lost time beyond what was accepted, in windows of what is accepted; below 0 a credit.
    debt: f64,
    /// Mean of [`Ledger::due`] over the last windows, those of long ago less and less.
    memory: f64,
}

impl Ledger {
    /// A window lost `over` times what is accepted.
    pub(super) fn book(&mut self, over: f64) {
        if over.is_finite() {
            self.debt = (self.debt + over - 1.0).clamp(-CREDIT_MAX, DEBT_MAX);
            self.memory += (self.due() - self.memory) / FOLLOWS_WINDOWS;
        }
    }

    /// What the budget of the next window is multiplied by.
    pub(super) fn part(&self) -> f64 {
        1.0 + CREDIT_PART * (-self.debt / CREDIT_MAX).max(0.0)
    }

    /// What the next windows should lose, by what is accepted.
    pub(super) fn aim(&self) -> f64 {
        1.0 - PAID_PART * (self.debt / PAID_IN_FULL).clamp(0.0, 1.0)
    }

    /// Whether there is a debt.
    pub(super) fn is_due(&self) -> bool {
        self.debt > 0.0
    }

    /// How much of one, 0 to 1: all is what regions are remembered in full for.
    fn due(&self) -> f64 {
        (self.debt / REMEMBER_ALL).clamp(0.0, 1.0)
    }

    /// How much the long memory of regions counts, 0 to 1.
    pub(super) fn memory(&self) -> f64 {
        self.memory
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_lost_beyond_is_paid_back_and_no_more() {
        let mut ledger = Ledger::default();
        assert_eq!((ledger.part(), ledger.due()), (1.0, 0.0));
        ledger.book(17.0);
        assert_eq!((ledger.part(), ledger.due()), (1.0, 1.0));
        (0..12).for_each(|_| ledger.book(0.0));
        assert_eq!((ledger.part(), ledger.due()), (1.0, 0.25));
        (0..4).for_each(|_| ledger.book(0.0));
        assert_eq!((ledger.part(), ledger.due()), (1.0, 0.0));
        (0..4).for_each(|_| ledger.book(0.0));
        assert_eq!((ledger.part(), ledger.due()), (1.05, 0.0));
        (0..1_000).for_each(|_| ledger.book(0.0));
        assert_eq!((ledger.part(), ledger.due()), (1.1, 0.0));
        // However much it was, it is paid some day.
        ledger.book(1e9);
        ledger.book(f64::NAN);
        assert_eq!((ledger.part(), ledger.due()), (1.0, 1.0));
        (0..40).for_each(|_| ledger.book(0.0));
        assert_eq!(ledger.due(), 0.0);
    }

    #[test]
    fn memory_follows_the_debt_slowly() {
        let mut ledger = Ledger::default();
        ledger.book(17.0);
        assert_eq!((ledger.is_due(), ledger.memory()), (true, 1.0 / FOLLOWS_WINDOWS));
        (0..100).for_each(|_| ledger.book(1.0));
        assert!(ledger.memory() > 0.9 && ledger.memory() < 1.0);
        (0..16).for_each(|_| ledger.book(0.0));
        assert!(!ledger.is_due() && ledger.memory() > 0.5);
        (0..200).for_each(|_| ledger.book(0.0));
        assert!(ledger.memory() < 0.01);
    }
}
