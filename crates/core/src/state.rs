//! One page's state as a packed word, and every legal transition as a pure function.
//!
//! The runtime keeps one [`PageWord`] for each 4 KiB page of a region, in an atomic, and changes
//! it only by compare-and-swap around the functions below, so every race is between two calls of
//! this file. Who may make which transition:
//!
//! ```text
//!            MoveOut (pager)           begin_encode (mover)       finish_store (mover)
//!   Home  ------------------> Staged ----------------------> Encoding ---------------> Stored
//!    ^                          | ^                             |                        |
//!    |                          | '---- refuse (mover) ---------+                        |
//!    |                          |                               |                        |
//!    |                          v  begin_restore (pager)        v                        |
//!    +------------ Restoring <--+-------------------------------+------------------------+
//!    |
//!    +--- Sampled  (moved out by the tracker to see whether somebody comes back for it)
//! ```
//!
//! *Invariant*: while a page is not `Home`, its bytes exist in exactly the place its word names
//! (staging slot, sample slot, pool object, the pattern itself), and the application's mapping has
//! no page there. Whoever drops a place has first moved the word on.
//!
//! Layout of the word: bits 0-2 state, bit 3 [`PageWord::zap_pending`], bit 4
//! [`PageWord::is_incompressible`], bit 5 [`PageWord::is_kept`], bits 6-7 [`PageWord::haste`], bits
//! 8-11 tier, bits 12-19 window stamp, bits 20-31 [`PageWord::carried`], bits 32-63 payload (pool
//! handle, sample slot, fill pattern, or what an incompressible page held).

use crate::tier::{TierId, MAX_TIERS};

/// Pages in a region: 2 MiB / 4 KiB (TierScape, section 6.2).
pub const REGION_PAGES: usize = 512;
/// Bytes in a page.
pub const PAGE_BYTES: usize = 4096;
/// Bytes in a region, the unit of placement.
pub const REGION_BYTES: u64 = (REGION_PAGES * PAGE_BYTES) as u64;
/// Bytes of its own stack that the runtime locks in a process that may lock as much as it likes
/// (`CAP_IPC_LOCK`): they count in the process' `VmLck`, and the program did not lock them.
pub const LOCKED_STACK_BYTES: u64 = 16 << 10;

const _: () = assert!(MAX_TIERS <= 16, "the tier field of a page word has four bits");

/// Where a page's bytes are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum PageState {
    /// In the application's own mapping - or nowhere, if it was never touched.
    Home = 0,
    /// In the mover's staging slot, waiting to be encoded.
    Staged = 1,
    /// In the staging slot, and a mover is reading it there.
    Encoding = 2,
    /// In a tier's pool; the payload is the handle.
    Stored = 3,
    /// Nowhere: all words of the page equal the payload repeated.
    Same = 4,
    /// In a sample slot; the payload is its index.
    Sampled = 5,
    /// On its way home; the source named before is still valid until the word is `Home`. Short,
    /// but for a page on a medium that takes its time: then others see it, and wait or make it void
    /// (`pager/loads.rs` of the runtime).
    Restoring = 6,
}

impl PageState {
    /// Every state, for exhaustive tests.
    pub const ALL: [PageState; 7] = [
        PageState::Home,
        PageState::Staged,
        PageState::Encoding,
        PageState::Stored,
        PageState::Same,
        PageState::Sampled,
        PageState::Restoring,
    ];
}

const STATE_MASK: u64 = 0x7;
const ZAP_BIT: u64 = 1 << 3;
const INCOMPRESSIBLE_BIT: u64 = 1 << 4;
const KEPT_BIT: u64 = 1 << 5;
const HASTE_SHIFT: u32 = 6;
const HASTE_MASK: u64 = 0x3 << HASTE_SHIFT;
const TIER_SHIFT: u32 = 8;
const STAMP_SHIFT: u32 = 12;
const STAMP_MASK: u64 = 0xff << STAMP_SHIFT;
const CARRIED_SHIFT: u32 = 20;
const CARRIED_MASK: u64 = 0xfff << CARRIED_SHIFT;
const PAYLOAD_SHIFT: u32 = 32;

/// From this [`PageWord::haste`] on a page is in use all the time.
pub const IN_USE_HASTE: u8 = 2;
/// How many times as long as others a page stays home, by its haste.
const REST_TIMES: [u8; 4] = [1, 2, 6, 24];
/// Longest rest, in windows: the window stamp has eight bits.
const REST_MAX: u8 = 64;

/// A page's state, packed. `PageWord::default()` is a page at home of which nothing is known.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct PageWord(pub u64);

impl core::fmt::Debug for PageWord {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{:?}", self.state())?;
        if self.zap_pending() {
            write!(f, "+zap")?;
        }
        if self.is_incompressible() {
            write!(f, "+incompressible")?;
        }
        if self.is_kept() {
            write!(f, "+kept")?;
        }
        write!(f, "({}, {:#x}, window {})", self.tier(), self.payload(), self.stamp())
    }
}

impl PageWord {
    /// Where the page's bytes are.
    #[inline]
    pub fn state(self) -> PageState {
        match self.0 & STATE_MASK {
            0 => PageState::Home,
            1 => PageState::Staged,
            2 => PageState::Encoding,
            3 => PageState::Stored,
            4 => PageState::Same,
            5 => PageState::Sampled,
            // 7 is never written; reading it as Restoring makes everybody leave the page alone.
            _ => PageState::Restoring,
        }
    }

    /// The application has asked the kernel to drop this page (a `remove` event), and the kernel
    /// may not have done so yet. Until the page is seen missing it must not be moved: moving it
    /// now would carry bytes past their own deletion.
    #[inline]
    pub fn zap_pending(self) -> bool {
        self.0 & ZAP_BIT != 0
    }

    /// The page must stay home: the kernel uses it where it serves no fault.
    #[inline]
    pub fn is_kept(self) -> bool {
        self.0 & KEPT_BIT != 0
    }

    /// Anybody: the page, which is home, stays there until its content is dropped or its mapping
    /// goes away. `None` if it is not home.
    pub fn kept(self) -> Option<PageWord> {
        (self.state() == PageState::Home).then_some(PageWord(self.0 | KEPT_BIT))
    }

    /// Whether the page may be taken out of the application at all.
    #[inline]
    fn is_free_to_go(self) -> bool {
        self.state() == PageState::Home && self.0 & (ZAP_BIT | KEPT_BIT) == 0
    }

    /// The page did not shrink below the cut-off when last tried (at window [`Self::stamp`]).
    #[inline]
    pub fn is_incompressible(self) -> bool {
        self.0 & INCOMPRESSIBLE_BIT != 0
    }

    /// Whether the page was refused with content of this checksum: it was not written since, or if
    /// it was, the same way. Then there is no point in trying again.
    #[inline]
    pub fn is_known_incompressible(self, checksum: u32) -> bool {
        self.is_incompressible()
            && matches!(self.state(), PageState::Home | PageState::Staged | PageState::Encoding)
            && self.payload() == checksum
    }

    /// The tier of a `Stored` or `Same` page; for `Staged` and `Encoding`, the one it goes to; for
    /// an incompressible page, the one that refused it.
    #[inline]
    pub fn tier(self) -> TierId {
        TierId(((self.0 >> TIER_SHIFT) & 0xf) as u8)
    }

    /// Pool handle (`Stored`), fill pattern (`Same`), slot (`Sampled`), or the checksum of what an
    /// incompressible page held when it was tried ([`Self::is_known_incompressible`]).
    #[inline]
    pub fn payload(self) -> u32 {
        (self.0 >> PAYLOAD_SHIFT) as u32
    }

    /// The window, modulo 256, in which the page last came home by an access or was refused; of one
    /// in a tier, in which it went there. 0: none that is known.
    #[inline]
    pub fn stamp(self) -> u8 {
        (self.0 >> STAMP_SHIFT) as u8
    }

    /// How often of late the page came back soon after it went down, 0 to 3. A region is placed as
    /// a whole by what its pages do on average, and in one that is cold some may be in use all the
    /// time, like those that an allocator has put small objects on.
    #[inline]
    pub fn haste(self) -> u8 {
        ((self.0 & HASTE_MASK) >> HASTE_SHIFT) as u8
    }

    /// Windows that the page stays home once it came back, where others stay for `cooling`.
    #[inline]
    pub fn rest(self, cooling: u8) -> u8 {
        let times = REST_TIMES[usize::from(self.haste())];
        cooling.saturating_mul(times).min(REST_MAX).max(cooling)
    }

    /// Whether the page is home, and stays there because it came back not long ago.
    #[inline]
    pub fn is_resting(self, window_now: u8, cooling: u8) -> bool {
        self.state() == PageState::Home
            && self.stamp() != 0
            && self.age(window_now) < self.rest(cooling)
    }

    /// Windows since [`Self::stamp`], modulo 256.
    #[inline]
    pub fn age(self, window_now: u8) -> u8 {
        window_now.wrapping_sub(self.stamp())
    }

    #[inline]
    fn with_state(self, state: PageState) -> PageWord {
        PageWord((self.0 & !STATE_MASK) | state as u64)
    }

    #[inline]
    fn with(self, state: PageState, tier: TierId, payload: u32) -> PageWord {
        debug_assert!(tier.index() < MAX_TIERS);
        let keep = self.0 & (STAMP_MASK | CARRIED_MASK | HASTE_MASK);
        PageWord(
            keep | state as u64
                | u64::from(tier.0 & 0xf) << TIER_SHIFT
                | u64::from(payload) << PAYLOAD_SHIFT,
        )
    }

    /// Whether a mover may take the page out of the application now, to bring it to `tier`.
    /// `cooling` is the number of windows a page that came back must stay home, or more of them
    /// ([`Self::rest`]); a tier that found it incompressible leaves it alone for `retry_windows`.
    #[inline]
    pub fn movable(self, tier: TierId, window_now: u8, cooling: u8, retry_windows: u8) -> bool {
        let wait = if self.is_refused_by(tier) { retry_windows } else { self.rest(cooling) };
        self.is_free_to_go() && (self.stamp() == 0 || self.age(window_now) >= wait)
    }

    /// Whether this tier found the page incompressible when it last tried. Another may take it.
    #[inline]
    pub fn is_refused_by(self, tier: TierId) -> bool {
        self.is_incompressible() && self.tier() == tier
    }

    /// Pager: the page is about to be moved to the staging slot, bound for `tier`.
    pub fn stage(self, tier: TierId) -> Option<PageWord> {
        self.is_free_to_go().then(|| {
            let (flag, known) = match self.is_refused_by(tier) {
                true => (INCOMPRESSIBLE_BIT, self.payload()),
                false => (0, 0),
            };
            PageWord(self.with(PageState::Staged, tier, known).0 | flag)
        })
    }

    /// Pager: the tracker moves the page to sample slot `slot`.
    pub fn sample(self, slot: u32) -> Option<PageWord> {
        self.is_free_to_go().then(|| self.with(PageState::Sampled, TierId::DRAM, slot))
    }

    /// Mover: starts reading the staged copy.
    pub fn begin_encode(self) -> Option<PageWord> {
        (self.state() == PageState::Staged).then(|| self.with_state(PageState::Encoding))
    }

    /// Pager: the page came to another address with its mapping, by the `nth` move of one. What
    /// was at that address may have been the same word to the bit: its object freed, and the
    /// handle given to this page. Who read it there and decoded that object must not take this one
    /// for it. (4,096 moves apart two are the same.) It lasts until the page is home.
    #[must_use]
    pub fn carried(self, nth: u16) -> PageWord {
        match self.state() {
            PageState::Home => self,
            _ => PageWord(
                (self.0 & !CARRIED_MASK) | (u64::from(nth) << CARRIED_SHIFT) & CARRIED_MASK,
            ),
        }
    }

    /// Mover: the bytes are in `tier` under `handle`, or for a migration: they are now there
    /// instead of where the word says.
    pub fn finish_store(self, tier: TierId, handle: u32, window_now: u8) -> Option<PageWord> {
        matches!(self.state(), PageState::Encoding | PageState::Stored | PageState::Same)
            .then(|| self.went_down(window_now).with(PageState::Stored, tier, handle))
    }

    /// Mover: the page is `pattern` repeated.
    pub fn finish_same(self, tier: TierId, pattern: u32, window_now: u8) -> Option<PageWord> {
        matches!(self.state(), PageState::Encoding | PageState::Same)
            .then(|| self.went_down(window_now).with(PageState::Same, tier, pattern))
    }

    fn went_down(self, window_now: u8) -> PageWord {
        match self.state() {
            PageState::Encoding => self.stamped(window_now),
            // It went down before, and goes on to another tier.
            _ => self,
        }
    }

    /// Mover: the tier would not take it; it waits in staging to be returned. `incompressible` is
    /// the checksum of a page that does not shrink.
    pub fn refuse(self, window_now: u8, incompressible: Option<u32>) -> Option<PageWord> {
        (self.state() == PageState::Encoding).then(|| {
            let flag = if incompressible.is_some() { INCOMPRESSIBLE_BIT } else { 0 };
            let w = self.with(PageState::Staged, self.tier(), incompressible.unwrap_or(0));
            PageWord(w.stamped(window_now).0 | flag)
        })
    }

    /// Mover: a look at the page, which is at home, says that it holds what was refused: that
    /// counts as a refusal in this window. `checksum` is of what it holds.
    pub fn refuse_unmoved(self, window_now: u8, checksum: u32) -> Option<PageWord> {
        (self.is_free_to_go() && self.is_known_incompressible(checksum))
            .then(|| self.stamped(window_now))
    }

    /// Pager: starts bringing the page home. The place the word named stays valid.
    pub fn begin_restore(self) -> Option<PageWord> {
        use PageState::{Encoding, Same, Staged, Stored};
        matches!(self.state(), Staged | Encoding | Stored | Same)
            .then(|| self.with_state(PageState::Restoring))
    }

    /// Pager: the page is home. `window_now` is stamped if an access brought it back, or came
    /// near, so that it is left alone for a while; `None` if nobody asked for it.
    pub fn home(self, window_now: Option<u8>) -> PageWord {
        let w = match self.is_incompressible() {
            // With the tier that refused it, and the checksum.
            true => PageWord(self.with_state(PageState::Home).0 & !CARRIED_MASK),
            false => PageWord(self.0 & (STAMP_MASK | HASTE_MASK)),
        };
        match (window_now, self.state()) {
            (Some(n), _) => w.stamped(n),
            // When it went down says nothing any more.
            (None, PageState::Restoring) => PageWord(w.0 & !STAMP_MASK),
            (None, _) => w,
        }
    }

    /// Pager: the page is home from a tier, because it was touched itself. Within less than
    /// `soon_windows` after it went down is soon.
    pub fn came_back(self, window_now: u8, soon_windows: u8) -> PageWord {
        let is_soon = self.stamp() != 0 && self.age(window_now) < soon_windows;
        let haste = match is_soon {
            true => (self.haste() + 1).min(REST_TIMES.len() as u8 - 1),
            false => self.haste().saturating_sub(1),
        };
        let w = self.home(Some(window_now));
        PageWord((w.0 & !HASTE_MASK) | u64::from(haste) << HASTE_SHIFT)
    }

    /// Pager: the application has dropped the page's content; what we held is void.
    pub fn zapped(self) -> PageWord {
        PageWord(ZAP_BIT)
    }

    /// Pager: the page was seen missing (or was filled by us) after a zap, so the zap is done.
    pub fn zap_done(self) -> PageWord {
        PageWord(self.0 & !ZAP_BIT)
    }

    #[inline]
    fn stamped(self, window: u8) -> PageWord {
        // Stamp 0 means "never"; a page stamped in window 256 is a window younger than it says.
        let w = if window == 0 { 255 } else { window };
        PageWord((self.0 & !STAMP_MASK) | u64::from(w) << STAMP_SHIFT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn word(state: PageState, zap: bool) -> PageWord {
        let w = PageWord::default().with(state, TierId(3), 0xdead_beef);
        PageWord(if zap { w.0 | ZAP_BIT } else { w.0 })
    }

    /// Every (state, event) pair: which transitions exist, and nothing else does.
    #[test]
    fn every_state_and_event_is_decided() {
        use PageState::*;
        type Event = (&'static str, fn(PageWord) -> Option<PageWord>, &'static [PageState]);
        let events: [Event; 7] = [
            ("stage", |w| w.stage(TierId(2)), &[Home]),
            ("sample", |w| w.sample(7), &[Home]),
            ("begin_encode", |w| w.begin_encode(), &[Staged]),
            ("finish_store", |w| w.finish_store(TierId(2), 9, 1), &[Encoding, Stored, Same]),
            ("finish_same", |w| w.finish_same(TierId(2), 0, 1), &[Encoding, Same]),
            ("refuse", |w| w.refuse(5, Some(1)), &[Encoding]),
            ("begin_restore", |w| w.begin_restore(), &[Staged, Encoding, Stored, Same]),
        ];
        for (name, event, legal_from) in events {
            for s in PageState::ALL {
                let legal = event(word(s, false)).is_some();
                assert_eq!(legal, legal_from.contains(&s), "{name} from {s:?}");
            }
        }
    }

    #[test]
    fn a_page_with_a_zap_pending_is_never_taken_out() {
        let w = word(PageState::Home, true);
        assert!(w.stage(TierId(1)).is_none());
        assert!(w.sample(1).is_none());
        assert!(!w.movable(TierId(1), 10, 0, 0));
        assert!(w.zap_done().stage(TierId(1)).is_some());
    }

    #[test]
    fn a_page_that_is_kept_never_leaves() {
        for s in PageState::ALL {
            assert_eq!(word(s, false).kept().is_some(), s == PageState::Home, "{s:?}");
        }
        let w = word(PageState::Home, true).kept().unwrap();
        assert!(w.is_kept() && w.zap_pending() && w.kept() == Some(w));
        let w = w.zap_done();
        assert!(w.is_kept() && w.stage(TierId(1)).is_none() && w.sample(1).is_none());
        assert!(!w.movable(TierId(1), 10, 0, 0));
        assert!(!w.zapped().is_kept(), "what was dropped is another page");
    }

    #[test]
    fn fields_do_not_overlap() {
        let w = PageWord::default().stage(TierId(15)).unwrap().begin_encode().unwrap();
        let w = w.finish_store(TierId(15), u32::MAX, 255).unwrap();
        assert_eq!((w.state(), w.tier(), w.payload()), (PageState::Stored, TierId(15), u32::MAX));
        assert!(!w.zap_pending() && !w.is_incompressible() && !w.is_kept());
        assert_eq!((w.stamp(), w.haste()), (255, 0));
        let r = w.begin_restore().unwrap();
        assert_eq!((r.tier(), r.payload()), (TierId(15), u32::MAX), "the source stays named");
        assert_eq!(r.home(Some(7)).stamp(), 7);
        assert_eq!(r.home(None), PageWord::default());
    }

    #[test]
    fn a_page_that_came_back_cools_before_it_moves_again() {
        let w = word(PageState::Restoring, false).home(Some(10));
        let tier = TierId(3);
        assert!(!w.movable(tier, 10, 2, 16) && !w.movable(tier, 11, 2, 16));
        assert!(w.movable(tier, 12, 2, 16));
        assert!(PageWord::default().movable(tier, 0, 2, 16), "a page never seen moves at once");
    }

    /// The page, sent down in one window and touched in another.
    fn down_and_back(w: PageWord, down: u8, back: u8) -> PageWord {
        assert!(w.movable(TierId(3), down, 3, 16), "{w:?} in window {down}");
        let w = w.stage(TierId(3)).unwrap().begin_encode().unwrap();
        w.finish_store(TierId(3), 77, down).unwrap().begin_restore().unwrap().came_back(back, 2)
    }

    #[test]
    fn a_page_that_comes_back_at_once_again_and_again_stays_longer() {
        let rests = |w: PageWord| (w.haste(), w.rest(3));
        let mut w = down_and_back(PageWord::default(), 9, 10);
        assert_eq!(rests(w), (1, 6));
        assert!(!w.movable(TierId(3), 15, 3, 16) && w.movable(TierId(3), 16, 3, 16));
        assert!(w.is_resting(15, 3) && !w.is_resting(16, 3));
        w = down_and_back(w, 16, 16);
        assert_eq!(rests(w), (2, 18));
        assert!(w.haste() >= IN_USE_HASTE);
        w = down_and_back(w, 34, 35);
        assert_eq!(rests(w), (3, REST_MAX));
        w = down_and_back(w, 99, 100);
        assert_eq!(rests(w), (3, REST_MAX), "not more than that");
        // One that takes its time is a little less in use, and in the end as others.
        w = down_and_back(w, 164, 166);
        assert_eq!(rests(w), (2, 18));
        w = down_and_back(w, 184, 240);
        w = down_and_back(w, 250, 3);
        assert_eq!(rests(w), (0, 3));
        w = down_and_back(w, 255, 2);
        assert_eq!(rests(w), (0, 3));
        assert_eq!(PageWord::default().rest(64), 64, "what is asked for is kept");
        assert_eq!(w.rest(0), 0);
    }

    #[test]
    fn haste_is_of_the_page_itself_and_lasts_while_it_holds_what_it_held() {
        let w = down_and_back(PageWord::default(), 9, 10);
        let stored = w.stage(TierId(3)).unwrap().begin_encode().unwrap();
        let stored = stored.finish_store(TierId(3), 77, 20).unwrap();
        // To another tier, at another time.
        let moved = stored.finish_store(TierId(2), 8, 60).unwrap();
        assert_eq!((moved.stamp(), moved.haste()), (20, 1));
        // Brought along by another page's fault, or by a plan, it has shown nothing.
        let restoring = stored.begin_restore().unwrap();
        assert_eq!((restoring.home(Some(21)).haste(), restoring.home(Some(21)).stamp()), (1, 21));
        assert_eq!((restoring.home(None).haste(), restoring.home(None).stamp()), (1, 0));
        // Sampled, or sent back from staging, it is as it was.
        assert_eq!(w.sample(7).unwrap().home(None), w);
        assert_eq!(w.stage(TierId(2)).unwrap().home(None), w);
        assert_eq!(stored.zapped().haste(), 0);
    }

    #[test]
    fn an_incompressible_page_is_not_tried_again_soon() {
        let w = word(PageState::Encoding, false).refuse(10, Some(0xabcd)).unwrap();
        assert_eq!(w.state(), PageState::Staged);
        let w = w.home(None);
        let tier = TierId(3);
        assert!(w.is_incompressible() && !w.movable(tier, 20, 1, 16) && w.movable(tier, 26, 1, 16));
        assert!(w.movable(TierId(4), 20, 1, 16), "a denser codec may try at once");
        assert!(!w.stage(TierId(4)).unwrap().is_incompressible());
        // When it is tried again, what it held is still known, until the tier takes it.
        let again = w.stage(tier).unwrap().begin_encode().unwrap();
        assert!(again.is_known_incompressible(0xabcd) && !again.is_known_incompressible(0xabce));
        assert_eq!(again.refuse(30, Some(0xabcd)).unwrap().home(None).payload(), 0xabcd);
        assert!(!again.finish_store(TierId(1), 0xabcd, 30).unwrap().is_incompressible());
        assert!(!again.refuse(30, None).unwrap().is_incompressible());
        assert!(!w.sample(0xabcd).unwrap().is_known_incompressible(0xabcd));
    }

    #[test]
    fn a_look_refuses_a_page_that_is_as_it_was() {
        let tier = TierId(3);
        let w = word(PageState::Encoding, false).refuse(10, Some(0xabcd)).unwrap();
        assert_eq!(w.refuse_unmoved(26, 0xabcd), None, "it is not at home");
        let w = w.home(None);
        assert_eq!(w.refuse_unmoved(26, 0xabce), None, "it was written");
        let again = w.refuse_unmoved(26, 0xabcd).unwrap();
        assert!(w.movable(tier, 26, 1, 16) && !again.movable(tier, 41, 1, 16));
        assert!(again.movable(tier, 42, 1, 16) && again.is_known_incompressible(0xabcd));
        assert_eq!(PageWord(w.0 | ZAP_BIT).refuse_unmoved(26, 0xabcd), None);
        assert_eq!(word(PageState::Home, false).refuse_unmoved(26, 0xdead_beef), None);
    }

    #[test]
    fn what_was_carried_is_another_word_until_it_is_home() {
        let stays = word(PageState::Stored, false);
        let came = stays.carried(4_095);
        assert_ne!(came, stays);
        assert_ne!(came.carried(4_096 + 7), came);
        let fields = |w: PageWord| (w.state(), w.tier(), w.stamp(), w.payload());
        assert_eq!(fields(came), fields(stays), "nothing else changes");
        let elsewhere = came.finish_store(TierId(2), 9, 1).unwrap();
        assert_ne!(elsewhere, stays.finish_store(TierId(2), 9, 1).unwrap(), "nor in another tier");
        let (home, other) = (came.begin_restore().unwrap(), stays.begin_restore().unwrap());
        assert_eq!(home.home(Some(7)), other.home(Some(7)));
        let refused = PageWord(came.with_state(PageState::Encoding).0).refuse(5, Some(1)).unwrap();
        assert_eq!(refused.home(None).carried(3), refused.home(None), "a page at home is itself");
        assert_eq!(refused.home(None).0 & CARRIED_MASK, 0);
    }

    #[test]
    fn a_zap_forgets_everything_but_itself() {
        for s in PageState::ALL {
            let w = word(s, false).zapped();
            assert_eq!(w.state(), PageState::Home);
            assert!(w.zap_pending() && w.payload() == 0);
        }
    }
}
