//! Setbacks: a region that was taken down and came back at once is left alone for a while, longer
//! each time.
//!
//! Hotness is an estimate, and a policy that believes it makes the same mistake in every window: a
//! few samples say that a region is not wholly in use, it goes down, all of it comes back. What
//! came back is no estimate. So when most of a region comes back in the first windows after it went
//! down, it *rests*: the next plans count it as in full use. Each further setback doubles the
//! rest, and having stayed down for long ends the series.

/// Windows of the first rest, and of the longest.
const FIRST_WINDOWS: u8 = 4;
const LONGEST_WINDOWS: u8 = 32;

/// Windows after going down in which coming back is a setback; after that it is a change of what
/// the application does.
const SOON_WINDOWS: u8 = 2;

/// Windows down after which former setbacks are forgotten.
const STAYED_WINDOWS: u8 = 8;

/// Least pages in tiers that say anything about their region.
const PAGES_MIN: u16 = 64;

/// What one region did after it was taken down.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Setbacks {
    /// Windows for which most of it has been in a tier, saturating.
    down: u8,
    /// Length of the last rest; 0 if it is forgotten.
    last: u8,
    /// Windows that it still rests.
    left: u8,
}

impl Setbacks {
    /// Takes in a window: of `pages` pages `stored` were in a tier at some time in it, and
    /// `came_back` of these are in DRAM again because they were touched.
    pub fn observe(&mut self, pages: u16, stored: u16, came_back: u16) {
        self.left = self.left.saturating_sub(1);
        if stored < PAGES_MIN || stored < pages.div_ceil(2) {
            self.down = 0;
            return;
        }
        self.down = self.down.saturating_add(1);
        if came_back >= stored.div_ceil(2) {
            if self.down <= SOON_WINDOWS {
                self.last = (2 * self.last).clamp(FIRST_WINDOWS, LONGEST_WINDOWS);
                self.left = self.last;
            }
            self.down = 0;
        } else if self.down >= STAYED_WINDOWS {
            self.last = 0;
        }
    }

    /// Windows for which most of the region has been in a tier, whichever, and less than half of
    /// that came back in any of them; saturating at 255.
    pub fn down_windows(&self) -> u8 {
        self.down
    }

    /// Windows that the region still rests, the one that is planned included.
    pub fn rest_windows(&self) -> u8 {
        self.left
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(windows: &[(u16, u16)]) -> Setbacks {
        let mut it = Setbacks::default();
        windows.iter().for_each(|&(stored, came_back)| it.observe(512, stored, came_back));
        it
    }

    #[test]
    fn what_comes_back_at_once_rests_longer_each_time() {
        let mut it = Setbacks::default();
        let mut rests = Vec::new();
        for _ in 0..5 {
            it.observe(512, 512, 10);
            it.observe(512, 502, 300);
            rests.push(it.rest_windows());
            while it.rest_windows() > 0 {
                it.observe(512, 0, 0);
            }
        }
        assert_eq!(rests, [4, 8, 16, 32, 32]);
        // It stays down for long at last: the next one is a first one again.
        (0..8).for_each(|_| it.observe(512, 512, 3));
        it.observe(512, 0, 0);
        it.observe(512, 512, 512);
        assert_eq!(it.rest_windows(), 4);
    }

    #[test]
    fn a_change_of_use_is_no_setback() {
        assert_eq!(after(&[(512, 0), (512, 0), (512, 512)]).rest_windows(), 0);
        assert_eq!(after(&[(512, 0), (512, 256)]).rest_windows(), 4);
        assert_eq!(after(&[(512, 255)]).rest_windows(), 0, "less than half came back");
    }

    #[test]
    fn how_long_it_is_down_is_counted_until_it_comes_back() {
        let mut it = after(&[(512, 0), (400, 0), (300, 9)]);
        assert_eq!(it.down_windows(), 3);
        (0..300).for_each(|_| it.observe(512, 512, 1));
        assert_eq!(it.down_windows(), 255);
        it.observe(512, 512, 256);
        assert_eq!(it.down_windows(), 0);
        assert_eq!(after(&[(512, 0), (200, 0)]).down_windows(), 0, "most of it is home");
    }

    #[test]
    fn few_pages_in_tiers_say_nothing() {
        assert_eq!(after(&[(255, 255)]).rest_windows(), 0, "most of it was at home");
        let mut small = Setbacks::default();
        small.observe(60, 60, 60);
        assert_eq!(small.rest_windows(), 0);
        small.observe(0, 0, 0);
        small.observe(u16::MAX, u16::MAX, u16::MAX);
        assert_eq!(small.rest_windows(), 4, "and nothing overflows");
    }
}
