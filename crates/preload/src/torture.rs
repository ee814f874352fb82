//! Torture: a mover that is slow, gives up and is refused, at random, on a run that asks for it.
//!
//! What a mover does can end at any point: a fault takes the page from it, the plan changes, a pool
//! is full, the machine gives it no CPU. Under load these are rare, and races between them rarer.
//! Here they are made common, from a seed. Nothing that a tortured mover does is anything that an
//! untortured one might not do by itself: it leaves out steps and waits between them. On any
//! other run each question here costs a comparison with zero.

use crate::sys::thread;
use terrace_core::plan::torture::mix;

/// A mover sleeps at a point between two steps once in so many.
const PAUSE_ONE_IN: u64 = 8;
/// It sleeps between two pages once in so many.
const PAGE_PAUSE_ONE_IN: u64 = 1024;
/// For up to so long.
const PAUSE_US_MAX: u64 = 2_000;
/// It drops a whole step's work once in so many.
const GIVE_UP_ONE_IN: u64 = 24;
/// It drops one page once in so many.
const PAGE_ONE_IN: u64 = 64;
/// It stops in the middle of a region once in so many pages.
const STOP_ONE_IN: u64 = 2_048;

/// One thread's bad luck.
#[derive(Debug)]
pub struct Torture {
    /// 0: no torture.
    state: u64,
}

impl Torture {
    /// Luck of thread `number` on a run with this seed; none if the seed is 0.
    pub fn new(seed: u64, number: u64) -> Torture {
        let state = if seed == 0 { 0 } else { mix(seed ^ mix(number)).max(1) };
        Torture { state }
    }

    /// Whether a step's work is to be dropped. A point between two steps: may sleep.
    pub fn gives_up(&mut self) -> bool {
        if self.happens(PAUSE_ONE_IN) {
            self.sleep();
        }
        self.happens(GIVE_UP_ONE_IN)
    }

    /// Whether to stop in the middle of a region. A point between two pages: may sleep.
    pub fn stops(&mut self) -> bool {
        if self.happens(PAGE_PAUSE_ONE_IN) {
            self.sleep();
        }
        self.happens(STOP_ONE_IN)
    }

    /// Whether to drop what was just made of one page.
    pub fn drops_page(&mut self) -> bool {
        self.happens(PAGE_ONE_IN)
    }

    /// Whether to refuse a page as if its pool were full.
    pub fn refuses_page(&mut self) -> bool {
        self.happens(PAGE_ONE_IN)
    }

    fn happens(&mut self, one_in: u64) -> bool {
        self.state != 0 && self.next().is_multiple_of(one_in)
    }

    fn sleep(&mut self) {
        thread::sleep_us(self.next() % PAUSE_US_MAX);
    }

    fn next(&mut self) -> u64 {
        // xorshift: never 0 if it was not.
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        self.state.rotate_left(29)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_seed_nothing_happens() {
        let mut none = Torture::new(0, 3);
        for _ in 0..100_000 {
            assert!(!none.gives_up() && !none.stops());
            assert!(!none.drops_page() && !none.refuses_page());
        }
    }

    #[test]
    fn luck_is_as_bad_as_it_says_and_another_for_each_thread() {
        let count = |seed, number| {
            let mut luck = Torture::new(seed, number);
            (0..64_000).filter(|_| luck.drops_page()).count()
        };
        for number in 0..4 {
            assert!((800..1200).contains(&count(9, number)), "{}", count(9, number));
        }
        let first = |number| {
            let mut luck = Torture::new(9, number);
            (0..2000).position(|_| luck.drops_page())
        };
        assert_eq!(first(1), first(1));
        assert_ne!(first(1), first(2));
    }
}
