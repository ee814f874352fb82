//! Turns: two programs of one kind run in turns within half a second, the one that is measured and
//! a plain one. On a virtual machine the same program is 10 % faster or slower from one second to
//! the next, and a fifth from one minute to the next: only neighbours in time can be compared.
//!
//! Servers are asked in turns by their client ([`super::client`]). Other programs are stopped and
//! continued by whoever has started them (`bench::paper::turns`). A program cannot notice that it
//! is stopped, but it can notice that it goes on again: the piece of work in which that happened
//! does not count. Where pieces are long and unlike each other that would leave out the longest of
//! them most often; such a program stops itself when it has done one of each.

use std::time::{Duration, Instant};

use crate::demo::sys;

/// What is counted of a turn of the program that is measured.
pub(in crate::bench) const OWN_SLICE: Duration = Duration::from_millis(250);
/// What is counted of a turn of the plain one.
pub(in crate::bench) const BESIDE_SLICE: Duration = Duration::from_millis(120);
/// At the start of a turn, not counted: what is in caches is the other one's.
pub(in crate::bench) const SETTLE: Duration = Duration::from_millis(20);

/// When a program's turn is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::bench) enum TurnsBy {
    /// After a time.
    Time,
    /// When it stops itself, having done each of its operations once.
    Rounds,
}

/// The turns of this process.
pub(super) struct Turns {
    /// Those that had begun when it was last looked.
    begun: u64,
    /// From then on work counts.
    from: Instant,
    /// Pieces of work that counted, and their time.
    work: f64,
    time: Duration,
}

impl Turns {
    /// From now on turns are counted; work counts from then on.
    pub(super) fn from(from: Instant) -> Turns {
        sys::count_continues();
        Turns { begun: sys::continues(), from, work: 0.0, time: Duration::ZERO }
    }

    /// Whether work does not count that was done at `now` and took `time`.
    pub(super) fn spoil(&mut self, now: Instant, time: Duration) -> bool {
        self.spoil_with(sys::continues(), now, time)
    }

    fn spoil_with(&mut self, begun: u64, now: Instant, time: Duration) -> bool {
        if begun != self.begun {
            (self.begun, self.from) = (begun, now + SETTLE);
        }
        now.checked_sub(time).is_none_or(|began| began < self.from)
    }

    /// The other one has its turn now. Returns when that is over.
    pub(super) fn hand_over(&mut self) {
        sys::stop_here();
        (self.begun, self.from) = (sys::continues(), Instant::now());
    }

    /// So much work counts, and took so long.
    pub(super) fn add(&mut self, work: f64, time: Duration) {
        self.work += work;
        self.time += time;
    }

    /// The work that counted, and its seconds.
    pub(super) fn done(&self) -> (f64, f64) {
        (self.work, self.time.as_secs_f64())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_stop_spoils_does_not_count() {
        let start = Instant::now();
        let at = |ms: u64| start + Duration::from_millis(ms);
        let ms = Duration::from_millis;
        let mut turns = Turns { begun: 0, from: start, work: 0.0, time: Duration::ZERO };
        assert!(!turns.spoil_with(0, at(5), ms(5)));
        // Stopped at 6, continued at 100: noticed with the piece that ends at 101.
        assert!(turns.spoil_with(1, at(101), ms(96)) && turns.spoil_with(1, at(101), ms(96)));
        // Caches are cold for 20 ms more.
        assert!(turns.spoil_with(1, at(106), ms(5)) && turns.spoil_with(1, at(125), ms(5)));
        assert!(!turns.spoil_with(1, at(126), ms(5)));
        // Longer than there is a clock.
        assert!(turns.spoil_with(1, at(127), Duration::from_secs(1 << 40)));
    }
}
