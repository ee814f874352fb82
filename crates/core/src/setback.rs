//! Setbacks: a region that was taken down and came back at once is left alone for a while, longer
//! each time.
//!
//! Hotness is an estimate, and a policy that believes it makes the same mistake in every window: a
//! few samples say that a region is not wholly in use, it goes down, all of it comes back. What
//! came back is no estimate. So when most of a region comes back in the first windows after it went
//! down, it *rests*: the next plans count it as in full use. Each further setback doubles the
//! rest, and having stayed down for long ends the series.
//!
//! The same holds for the pages of a region that stays down ([`Again`]). Some are in use in every
//! window while most are in none. They come back, cool, go down with all others that came back, and
//! are home a window later, over and over: more than half of what analytics waited for was that.

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

/// Least pages that went down again at once which say anything about those that come back.
const AGAIN_PAGES_MIN: u16 = 16;
/// Windows for which what came back stays, the first time and at most.
const FIRST_STAY_WINDOWS: u8 = 16;
const LONGEST_STAY_WINDOWS: u8 = 64;
/// Pages that may be left at home of a region that is in a tier, a quarter of a whole one. If it is
/// more, the region is not as cold as it seemed, which is for its hotness and [`Setbacks`] to tell.
pub const FEW_PAGES: u16 = 128;
/// If so many times more come back than went down, it is not for those that did.
const BURST: u16 = 2;
/// What usually comes back is a mean in which a window weighs one of so many.
const USUAL_WINDOWS: u32 = 4;

/// What became of the pages of a region in a tier that came back and went down again. How many of
/// them come back at once is exact, and more of it is told than by a few samples of what is home.
/// If it is most of them, what came back is left at home from then on, for longer each time.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Again {
    /// Pages that a window left in tiers.
    stored: u16,
    /// Pages that went down again of late and are watched for whether they come back, those that
    /// have, and for how many windows.
    sent: u16,
    back: u16,
    watched: u8,
    /// Pages that come back in a window in which nothing that went down again is watched.
    usual: u16,
    /// Length of the last stay at home, 0 if it is forgotten, and windows that are left of it.
    last: u8,
    left: u8,
}

impl Again {
    /// Takes in a window: `stored` pages were in a tier at some time in it, and `came_back` of
    /// these are in DRAM again because they were touched.
    pub fn observe(&mut self, stored: u16, came_back: u16) {
        self.left = self.left.saturating_sub(1);
        let sent = stored.saturating_sub(self.stored);
        if (AGAIN_PAGES_MIN..=FEW_PAGES.min(self.stored)).contains(&sent) {
            (self.sent, self.back, self.watched) = (sent, 0, SOON_WINDOWS);
        }
        if self.watched > 0 {
            self.watched -= 1;
            self.back = self.back.saturating_add(came_back.saturating_sub(self.usual));
            if self.back > BURST * self.sent {
                // All of the region was read: it says nothing of these pages.
                self.watched = 0;
            } else if self.back >= self.sent.div_ceil(2) {
                self.last = (2 * self.last).clamp(FIRST_STAY_WINDOWS, LONGEST_STAY_WINDOWS);
                self.left = self.last;
                self.watched = 0;
            } else if self.watched == 0 {
                self.last = 0;
            }
        } else {
            let sum = (USUAL_WINDOWS - 1) * u32::from(self.usual) + u32::from(came_back);
            self.usual = sum.div_ceil(USUAL_WINDOWS) as u16;
        }
        self.stored = stored.saturating_sub(came_back);
    }

    /// Windows for which what came back should stay, the one that is planned included.
    pub fn stay_windows(&self) -> u8 {
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

    /// A region of which 400 pages are in a tier and stay there: in each window so many others go
    /// down again, of which so many come back.
    fn again(windows: &[(u16, u16)]) -> Again {
        let mut it = Again::default();
        it.observe(400, 0);
        windows.iter().for_each(|&(sent, back)| {
            let stored = it.stored + sent;
            it.observe(stored, back);
        });
        it
    }

    #[test]
    fn what_goes_down_again_and_is_back_at_once_stays_longer_each_time() {
        let mut it = again(&[]);
        let mut stays = Vec::new();
        for _ in 0..4 {
            it.observe(490, 90);
            stays.push(it.stay_windows());
            (0..70).for_each(|_| it.observe(400, 0));
        }
        assert_eq!((stays, it.stay_windows()), (vec![16, 32, 64, 64], 0));
        // What went down once more stayed there: the next time is a first one again.
        it.observe(490, 10);
        (0..4).for_each(|_| it.observe(400, 0));
        it.observe(490, 90);
        assert_eq!(it.stay_windows(), 16);
    }

    #[test]
    fn what_comes_back_of_the_rest_is_not_held_against_it() {
        // Ten pages of the others come back in every window.
        let usual = [(0, 10), (10, 10), (10, 10), (10, 10), (10, 10), (10, 10), (10, 10), (10, 10)];
        assert_eq!(again(&[&usual[..], &[(26, 14), (10, 10)]].concat()).stay_windows(), 0);
        assert_eq!(again(&[&usual[..], &[(26, 23)]].concat()).stay_windows(), 16);
        // In the second window it is as bad as in the first; later it is another matter.
        assert_eq!(again(&[(40, 5), (5, 15)]).stay_windows(), 16);
        assert_eq!(again(&[(40, 5), (5, 5), (5, 40)]).stay_windows(), 0);
        assert_eq!(again(&[(40, 200)]).stay_windows(), 0, "all of it is read");
    }

    #[test]
    fn few_pages_or_all_of_them_say_nothing_of_what_came_back() {
        assert_eq!(again(&[(15, 15)]).stay_windows(), 0);
        let mut all = Again::default();
        all.observe(512, 512);
        assert_eq!(all.stay_windows(), 0, "the region went down as a whole");
        assert_eq!(again(&[(129, 129)]).stay_windows(), 0, "or a part that is not small");
        assert_eq!(again(&[(128, 64)]).stay_windows(), 16, "one that is");
        all.observe(u16::MAX, u16::MAX);
        all.observe(0, u16::MAX);
        all.observe(u16::MAX, 0);
        (0..300).for_each(|_| all.observe(0, 0));
        assert_eq!(all.stay_windows(), 0, "and nothing overflows");
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
