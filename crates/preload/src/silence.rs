//! Tiers whose medium does not answer: who brings home what nobody waits for leaves them alone for
//! a while.
//!
//! A read that fails is tried again with pauses of a quarter of a second in all
//! (`store/medium/blocks.rs`), or is left to the device's own time-outs. A region has 512 pages,
//! and meanwhile nothing else is moved, from or to any tier. One page that cannot be read is no
//! silence: those beside it may be good.

use terrace_core::tier::{TierId, MAX_TIERS};

/// So many reads that fail in a row are a silence.
const FAILURES: u8 = 4;
/// Windows after which one page is asked for again.
const REST_WINDOWS: u32 = 16;

/// What became of the last reads, by tier.
#[derive(Debug, Default)]
pub struct Silence([Reads; MAX_TIERS]);

#[derive(Clone, Copy, Debug, Default)]
struct Reads {
    failed_in_a_row: u8,
    /// The window of the last that failed.
    failed_in: u32,
}

impl Silence {
    /// Whether a page of `tier` should not be asked for in this window.
    pub fn holds(&self, tier: TierId, window: u32) -> bool {
        let reads = self.0[tier.index()];
        reads.failed_in_a_row >= FAILURES && window.wrapping_sub(reads.failed_in) < REST_WINDOWS
    }

    /// Notes what became of a read.
    pub fn note(&mut self, tier: TierId, answered: bool, window: u32) {
        let reads = &mut self.0[tier.index()];
        *reads = match answered {
            true => Reads::default(),
            false => Reads {
                failed_in_a_row: reads.failed_in_a_row.saturating_add(1),
                failed_in: window,
            },
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_that_is_gone_is_asked_for_a_page_now_and_then() {
        let (mut silence, gone, other) = (Silence::default(), TierId(2), TierId(1));
        let mut asked = 0;
        for window in 0..64 {
            for _ in 0..512 {
                if !silence.holds(gone, window) {
                    asked += 1;
                    silence.note(gone, false, window);
                }
            }
            assert!(!silence.holds(other, window));
        }
        assert_eq!(asked, u32::from(FAILURES) + 64 / REST_WINDOWS - 1);
        silence.note(gone, true, 80);
        assert!(!silence.holds(gone, 80), "it answers again");
    }

    #[test]
    fn single_pages_that_cannot_be_read_are_no_silence() {
        let (mut silence, tier) = (Silence::default(), TierId(1));
        for page in 0..512 {
            assert!(!silence.holds(tier, 7), "page {page}");
            silence.note(tier, page % 3 == 0, 7);
        }
    }

    #[test]
    fn windows_may_wrap() {
        let (mut silence, tier) = (Silence::default(), TierId(1));
        (0..FAILURES).for_each(|_| silence.note(tier, false, u32::MAX - 1));
        assert!(silence.holds(tier, 3) && !silence.holds(tier, REST_WINDOWS - 2));
    }
}
