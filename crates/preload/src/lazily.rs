//! Memory that the program gives up lazily, by `MADV_FREE`.
//!
//! The kernel would announce a drop and then leave the pages where they are, so that nobody could
//! tell when they may be moved, and all of it that is written again would stay in DRAM for good.
//! What the program asks for is that their content may be lost; when, if at all, is not for it to
//! say. So what is followed is dropped at once ...
//!
//! ... unless it is given up over and over. An allocator that hands the same blocks out again is
//! spared their faults and their zeroing by `MADV_FREE`; that is what it is for. To drop them each
//! time cost DuckDB two to three per cent of its time (docs/fault-path.md). What is given up again
//! within five seconds is left as it is: no call, no event, no mark. It stays memory like any
//! other, which the tracker watches and plans may take down, garbage or not.
//!
//! What is left so cannot be reclaimed by the kernel, as it could be after `MADV_FREE`, and a
//! program near the limit of its memory must not be killed for that. So the planner says how much
//! of it may be left ([`allow`]), by what there is to spare, and says it again with every window.

use crate::forks;
use crate::offspring;
use crate::region::{page_index, Region};
use crate::runtime::Runtime;
use crate::sys::thread;
use crate::sys::uffd::Failure;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use terrace_core::state::{PageState, PAGE_BYTES, REGION_BYTES};

/// What is given up again within so many milliseconds is in use.
const AGAIN_MS: u32 = 5_000;
/// Memory is remembered in chunks of so many bytes: allocators seldom give up the same range twice.
const CHUNK_BYTES: u64 = 64 << 10;
/// Chunks remembered. One that falls on the place of another takes it.
const PLACES: usize = 1 << 16;
/// Longest range that is left: more is worth a call, and would take too many places.
const LEFT_BYTES_MAX: u64 = CHUNK_BYTES * PLACES as u64 / 16;
/// A chunk that was left counts for so long, and for one period more at most: then it is in use, or
/// has gone cold. What is garbage still by then may be as much again.
const PERIOD_MS: u32 = 3_600_000;
/// The period of what was not left. (Places are zeros at first: no room in the library's file.)
const NEVER: u32 = 0;
/// Most runs of pages in tiers that are dropped one by one; where there are more all is dropped.
const HELD_RUNS_MAX: usize = 8;
/// How often the kernel is asked anew about a range while the address space is being changed.
const CHANGING_TRIES: usize = 200;

/// When a chunk was last given up, or some of it. All that is read and written here by several
/// threads at a time is a hint: to drop memory and to leave it is right, both.
struct Place {
    /// Number of the chunk, plus one; 0 for a free place.
    chunk: AtomicU32,
    at_ms: AtomicU32,
    /// The period in which it was left last and counted, or [`NEVER`].
    period: AtomicU32,
}

impl Place {
    const fn free() -> Place {
        Place { chunk: AtomicU32::new(0), at_ms: AtomicU32::new(0), period: AtomicU32::new(NEVER) }
    }
}

/// What was given up lately.
struct Lately {
    places: [Place; PLACES],
    period: AtomicU32,
    /// Bytes left in this period, and of those left in the one before what was not left in this.
    left: [AtomicU64; 2],
    /// Most bytes that may be left.
    left_max: AtomicU64,
}

static LATELY: Lately = Lately::new();

/// How much may be left as it is, in bytes, from now on.
pub fn allow(bytes: u64) {
    LATELY.left_max.store(bytes, Ordering::Relaxed);
}

impl Lately {
    const fn new() -> Lately {
        Lately {
            places: [const { Place::free() }; PLACES],
            period: AtomicU32::new(0),
            left: [const { AtomicU64::new(0) }; 2],
            left_max: AtomicU64::new(0),
        }
    }

    /// Notes that `[start, end)` is given up at `now_ms`, and says whether it is to be left as it
    /// is: all of its chunks were given up lately, and there is room for them.
    fn leaves(&self, start: u64, end: u64, now_ms: u32) -> bool {
        let left_max = self.left_max.load(Ordering::Relaxed);
        if left_max == 0 || end - start > LEFT_BYTES_MAX || end >= 1 << 47 {
            return false;
        }
        let period = now_ms / PERIOD_MS + 1;
        self.turn_to(period);
        let chunks = || (start / CHUNK_BYTES..end.div_ceil(CHUNK_BYTES)).map(|n| n as u32 + 1);
        // Of this period, of the one before, and not counted yet.
        let (mut is_known, mut counted) = (true, [0u64; 3]);
        for chunk in chunks() {
            let place = self.place(chunk);
            let before_ms = place.at_ms.swap(now_ms, Ordering::Relaxed);
            if place.chunk.swap(chunk, Ordering::Relaxed) != chunk {
                place.period.store(NEVER, Ordering::Relaxed);
                is_known = false;
            }
            is_known &= now_ms.wrapping_sub(before_ms) <= AGAIN_MS;
            let age = match place.period.load(Ordering::Relaxed) {
                NEVER => 2,
                then => period.wrapping_sub(then).min(2),
            };
            counted[age as usize] += CHUNK_BYTES;
        }
        let [now, before] = &self.left;
        let left = now.load(Ordering::Relaxed) + before.load(Ordering::Relaxed);
        let stays = is_known && left + counted[2] <= left_max;
        take(before, counted[1]);
        if stays {
            now.fetch_add(counted[1] + counted[2], Ordering::Relaxed);
        } else {
            take(now, counted[0]);
        }
        let period = if stays { period } else { NEVER };
        chunks().for_each(|chunk| self.place(chunk).period.store(period, Ordering::Relaxed));
        stays
    }

    /// (Chunks that lie side by side have places side by side.)
    fn place(&self, chunk: u32) -> &Place {
        &self.places[chunk as usize % PLACES]
    }

    fn turn_to(&self, period: u32) {
        let was = self.period.load(Ordering::Relaxed);
        // Its caller looked at the clock before another one, who has turned it.
        if was == period.wrapping_add(1) {
            return;
        }
        let turned =
            self.period.compare_exchange(was, period, Ordering::Relaxed, Ordering::Relaxed);
        if was == period || turned.is_err() {
            return;
        }
        let left = self.left[0].swap(0, Ordering::Relaxed);
        let is_next = period == was.wrapping_add(1);
        self.left[1].store(if is_next { left } else { 0 }, Ordering::Relaxed);
    }
}

/// `from` less `bytes`, but not less than nothing.
fn take(from: &AtomicU64, bytes: u64) {
    let less = |left: u64| (bytes > 0).then(|| left.saturating_sub(bytes));
    let _ = from.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
}

/// Gives up the pages of a range by `asked`, which is madvise: at once what is followed, if it was
/// not given up just before, and lazily the rest.
pub fn give_up(
    start: u64,
    len: u64,
    asked: impl Fn(u64, u64, libc::c_int) -> libc::c_int,
) -> libc::c_int {
    let len_of_pages = len.checked_next_multiple_of(PAGE_BYTES as u64);
    let end = len_of_pages.and_then(|len| start.checked_add(len));
    // What a filter of system calls may forbid to ask is not asked.
    let runtime = || forks::runtime().filter(|_| !offspring::has_filter());
    let is_range = start.is_multiple_of(PAGE_BYTES as u64) && len > 0;
    let (Some(rt), Some(end), true) = (runtime(), end, is_range) else {
        return asked(start, len, libc::MADV_FREE);
    };
    // All of it private anonymous memory that we follow, by the word of the kernel.
    let is_followed = |at: u64, end: u64| {
        rt.table.get(at).is_some_and(|region| region.is_registered(page_index(at)))
            && thread::keeping_errno(|| is_registered(rt, at, end))
    };
    let behind = |at: u64| ((at / REGION_BYTES + 1) * REGION_BYTES).min(end);
    let now_ms = (thread::now_ns() / 1_000_000) as u32;
    let mut at = start;
    while at < end {
        // As many regions at a time as are alike.
        let is_ours = is_followed(at, behind(at));
        let mut until = behind(at);
        while until < end && is_followed(until, behind(until)) == is_ours {
            until = behind(until);
        }
        let held = || Held { rt, at, end: until };
        let stays = is_ours
            && LATELY.leaves(at, until, now_ms)
            && thread::keeping_errno(|| held().take(HELD_RUNS_MAX + 1).count()) <= HELD_RUNS_MAX;
        let result = match (is_ours, stays) {
            (false, _) => asked(at, until - at, libc::MADV_FREE),
            (true, false) => asked(at, until - at, libc::MADV_DONTNEED),
            (true, true) => {
                let drop = |(from, to)| asked(from, to - from, libc::MADV_DONTNEED);
                held().map(drop).find(|&result| result != 0).unwrap_or(0)
            }
        };
        if result != 0 {
            return result;
        }
        at = until;
    }
    0
}

/// Whether all of a range is one mapping that is followed. Not where the address space does not
/// cease to change.
fn is_registered(rt: &Runtime, start: u64, end: u64) -> bool {
    for _ in 0..CHANGING_TRIES {
        match rt.uffd.is_registered(start, end - start, rt.unreadable) {
            // Until the pager has read of it. Not followed would be wrong, and for long: what is
            // given up lazily and written again keeps the mark of a drop.
            Err(Failure::Changing) => thread::give_way(),
            known => return known == Ok(true),
        }
    }
    false
}

/// The runs of pages in a range that are in tiers or on their way there: they would be kept for
/// nothing, and come back for nothing.
struct Held<'a> {
    rt: &'a Runtime,
    at: u64,
    end: u64,
}

impl Iterator for Held<'_> {
    type Item = (u64, u64);

    fn next(&mut self) -> Option<(u64, u64)> {
        let is_held = |at: u64| {
            let state = |region: &Region| region.word(page_index(at)).state();
            // (A sample comes home by itself.)
            !matches!(
                self.rt.table.get(at).map(state),
                None | Some(PageState::Home | PageState::Sampled)
            )
        };
        let pages = |from: u64| (from..self.end).step_by(PAGE_BYTES);
        let from = pages(self.at).find(|&at| is_held(at))?;
        let to = pages(from).find(|&at| !is_held(at)).unwrap_or(self.end);
        self.at = to;
        Some((from, to))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const P: u64 = PAGE_BYTES as u64;

    fn lately(left_max: u64) -> Box<Lately> {
        let lately = Box::new(Lately::new());
        lately.left_max.store(left_max, Ordering::Relaxed);
        lately
    }

    #[test]
    fn only_what_was_given_up_just_before_is_left() {
        let lately = lately(MIB);
        let leaves =
            |from: u64, pages: u64, now_ms| lately.leaves(from * P, (from + pages) * P, now_ms);
        assert!(!leaves(64, 8, 1_000), "never before");
        assert!(leaves(64, 8, 1_000 + AGAIN_MS));
        assert!(leaves(66, 5, 1_001 + AGAIN_MS), "not the same, but there");
        assert!(!leaves(78, 3, 1_002 + AGAIN_MS), "a part of it never before");
        assert!(leaves(78, 3, 1_003 + AGAIN_MS));
        assert!(!leaves(64, 8, 1_004 + 2 * AGAIN_MS), "too long ago");
        assert!(leaves(64, 8, 1_005 + 2 * AGAIN_MS));
        let same_place = 64 + PLACES as u64 * CHUNK_BYTES / P;
        assert!(!leaves(same_place, 8, 1_006 + 2 * AGAIN_MS));
        assert!(!leaves(64, 8, 1_007 + 2 * AGAIN_MS), "forgotten for another");
        // The clock begins anew after seven weeks.
        assert!(!leaves(0, 1, u32::MAX - 10));
        assert!(leaves(0, 1, 10));
    }

    #[test]
    fn not_more_is_left_than_is_allowed() {
        let lately = lately(4 * CHUNK_BYTES);
        let left = |from: u64, now_ms: u32| {
            let starts = (from..from + 12).map(|n| 0x7000_0000 + n * CHUNK_BYTES);
            starts.filter(|&at| lately.leaves(at, at + 9 * P, now_ms)).count()
        };
        assert_eq!([10, 20, 30, 40].map(|now_ms| left(0, now_ms)), [0, 4, 4, 4]);
        // Less is to spare now: what is too much is dropped when it is given up next.
        lately.left_max.store(2 * CHUNK_BYTES, Ordering::Relaxed);
        assert_eq!([50, 60, 70].map(|now_ms| left(0, now_ms)), [2, 2, 2]);
        // What was left counts in the next period, too, once, ...
        let next = PERIOD_MS + 10;
        assert_eq!([left(0, PERIOD_MS - 2), left(0, PERIOD_MS - 1)], [0, 2]);
        assert_eq!([left(20, next), left(20, next + 1), left(0, next + 2)], [0, 0, 2]);
        // ... and if it is not left again, not in the one after it.
        let after = 3 * PERIOD_MS + 10;
        assert_eq!([left(20, after), left(20, after + 1)], [0, 2]);
        assert_eq!([left(20, after + 2), left(40, after + 3), left(40, after + 4)], [2, 0, 0]);
        let later = 9 * PERIOD_MS + 10;
        assert_eq!([left(40, later), left(40, later + 1)], [0, 2]);
    }

    #[test]
    fn what_is_dropped_makes_room() {
        let lately = lately(2 * CHUNK_BYTES);
        let leaves = |n: u64, now_ms| lately.leaves(n * CHUNK_BYTES, (n + 2) * CHUNK_BYTES, now_ms);
        assert!(!leaves(8, 1) && leaves(8, 2) && !leaves(16, 3) && !leaves(16, 4));
        assert!(!leaves(8, 3 + AGAIN_MS));
        assert!(!leaves(16, 4 + AGAIN_MS + 1) && leaves(16, 5 + AGAIN_MS + 1));
        // Chunks of the period before that are dropped in this one.
        assert!(!leaves(16, PERIOD_MS + 1));
        assert!(!leaves(24, PERIOD_MS + 2) && leaves(24, PERIOD_MS + 3));
    }

    #[test]
    fn nothing_is_left_where_nothing_may_be_or_a_range_is_long() {
        let nothing = lately(0);
        assert!(!nothing.leaves(64 * P, 65 * P, 1) && !nothing.leaves(64 * P, 65 * P, 2));
        let lately = lately(u64::MAX / 2);
        let longest = LEFT_BYTES_MAX;
        assert!(!lately.leaves(0, longest + 1, 1) && !lately.leaves(0, longest + 1, 2));
        assert!(!lately.leaves(0, longest, 3) && lately.leaves(0, longest, 4));
    }
}
