//! Unmappings that were announced and did not take place.
//!
//! Since Linux 6.12 a call that unmaps can fail after it was noted who is to be told: `mmap` with
//! `MAP_FIXED` for want of room (RLIMIT_AS, RLIMIT_DATA, overcommit), `munmap` and `mmap` over
//! sealed memory. All stays as it was, and the event comes all the same. Were it believed, what is
//! in tiers would read as zeros.
//!
//! So the kernel is asked what is there, as soon as the event was read: whoever it is of has not
//! gone on yet, as a rule, and what it does next is not to be seen here. Mostly there is nothing,
//! or a mapping that is not registered. If it is registered it has stayed, or has come there since.
//! If there is nothing, it may have stayed all the same and moved on before we looked, and that
//! move has to be read first, where something is held: until there is nothing to tell. Where
//! threads unmap without pause there hardly ever is such a moment, so each serves all that was
//! looked at before it and waits ([`Seen`]); and no more than fits into the queue is waited for.
//!
//! Where something was moved to a place that nothing else has freed, the unmapping took place
//! ([`Pager::has_made_room`]).
//!
//! What was moved there is known (`order.rs`), but for what it has grown by on its way: what lies
//! behind it and moves on with it is taken for that. What has grown into the range in place nobody
//! tells of, but it can mostly be told from what has stayed ([`Pager::can_have_stayed`]); what
//! cannot is taken for grown, since a program that shrinks and grows a mapping is an ordinary one
//! (`realloc`): a call that is refused over the end of a mapping of which no page of that end is in
//! memory.

use super::Pager;
use crate::region::{for_overlap, page_index};
use crate::sys::uffd::{Event, Failure, Seen};
use terrace_core::state::{PageState, PAGE_BYTES, REGION_BYTES};

/// How often it is asked again because something else changed meanwhile.
const TRIES_MAX: usize = 100_000;

const PAGE: u64 = PAGE_BYTES as u64;

type Range = (u64, u64);

fn overlap((a, b): Range, (c, d): Range) -> bool {
    a < d && c < b
}

impl Pager {
    /// The parts of `part`, a part of the range that is `said` to be unmapped, in which that took
    /// place.
    pub(super) fn taken_place(&mut self, part: Range, said: Range, seen: Seen) -> Vec<Range> {
        if !self.holds_any(part) {
            return vec![part];
        }
        // (On an older kernel it always takes place.)
        let mappings = match seen {
            Seen::Gone | Seen::Over => Vec::new(),
            Seen::Nothing | Seen::Mapped => match self.coverage.mappings(part.0, part.1) {
                Some(mappings) => mappings,
                None => return vec![part],
            },
        };
        // What has cut off a mapping before we saw it is told by now.
        if !mappings.is_empty() {
            self.read_all();
        }
        let mut stayed = Vec::new();
        for mapping in mappings {
            let run = (mapping.0.max(part.0), mapping.1.min(part.1));
            if !self.can_have_stayed(run, mapping, said) {
                continue;
            }
            // All of it, if it is one mapping still; else page by page.
            if self.is_there(run.0, run.1) {
                stayed.push(run);
                continue;
            }
            // As a rule something new is there.
            if self.is_unregistered(run) {
                continue;
            }
            for page in (run.0..run.1).step_by(PAGE_BYTES) {
                if self.is_there(page, page + PAGE) {
                    stayed.push((page, page + PAGE));
                }
            }
        }
        // What has moved on meanwhile was there, too.
        if seen != Seen::Over {
            self.read_all();
        }
        if self.has_made_room(said) {
            return vec![part];
        }
        stayed.extend(self.moved_since(part, said));
        if seen == Seen::Mapped {
            stayed.extend(self.unmapped_since(part));
        }
        without(part, &mut stayed)
    }

    /// Reads all that has changed by now.
    pub(super) fn read_all(&mut self) {
        for _ in 0..TRIES_MAX {
            if !self.is_changing() {
                self.queue.settle();
                return;
            }
            if !self.queue.has_room() {
                return;
            }
            self.listen();
        }
    }

    /// Has a look at what is said to be unmapped by messages that were just read.
    pub(super) fn look(&mut self) {
        let coverage = &self.coverage;
        self.queue.look_at_unmappings(|start, end| coverage.is_empty(start, end));
    }

    /// Whether a range is one registered mapping now that nothing is changing.
    fn is_there(&mut self, start: u64, end: u64) -> bool {
        for _ in 0..TRIES_MAX {
            match self.uffd.is_registered(start, end - start, self.rt.unreadable) {
                Err(Failure::Changing) if self.queue.has_room() => self.read_all(),
                Err(Failure::Changing) => break,
                Ok(true) if !self.has_come((start, end)) => match self.is_grown_into(start) {
                    Err(Failure::Changing) => self.read_all(),
                    is_grown => return is_grown == Ok(false),
                },
                _ => return false,
            }
        }
        // There is always somebody changing something. This can be read all the same, at some
        // expense.
        let mut pages = (start..end).step_by(PAGE_BYTES);
        pages.all(|page| self.rt.smaps.is_registered(page)) && !self.has_come((start, end))
    }

    /// Whether one mapping lies there and is not registered: a mapping is so as a whole.
    fn is_unregistered(&self, run: Range) -> bool {
        let all = self.coverage.mappings(run.0, run.1).unwrap_or_default();
        let is_one = all.first().is_some_and(|&(a, b)| a <= run.0 && run.1 <= b);
        is_one && self.uffd.is_registered(run.0, PAGE, self.rt.unreadable) == Ok(false)
    }

    /// Whether a mapping was moved to some of a range, or the pager registers it right now, so that
    /// it is registered whatever was unmapped there.
    fn has_come(&self, range: Range) -> bool {
        let mut coming = self.queue.destinations();
        self.has_arrived(range) || coming.any(|to| overlap(to, range))
    }

    /// The same without the moves that wait.
    fn has_arrived(&self, range: Range) -> bool {
        let registering = self.registering.is_some_and(|new| overlap(new, range));
        registering || self.arrivals.touch(range)
    }

    fn holds_any(&self, part: Range) -> bool {
        let mut any = false;
        for_overlap(&self.rt.table, part.0, part.1, |region, mut pages| {
            any |= pages.any(|i| region.word(i).state() != PageState::Home);
        });
        any
    }

    /// What waiting events move away from a part of what is said to be unmapped before them: what
    /// moves on was there, unless it has come since.
    fn moved_since(&self, part: Range, said: Range) -> Vec<Range> {
        let was_there = |(from, end): Range| {
            let moved = (from.max(part.0), end.min(part.1));
            (from >= said.0 || end > said.1 && self.is_kept(said.1)) && !self.has_arrived(moved)
        };
        let waiting: Vec<Event> = self.queue.waiting().collect();
        moved_by(&waiting, part, was_there)
    }

    /// Whether what is said to be unmapped was, all of it: waiting events have moved something to a
    /// page that was registered, and nothing else has made room for it.
    fn has_made_room(&self, said: Range) -> bool {
        let waiting: Vec<Event> = self.queue.waiting().collect();
        waiting.iter().filter_map(coming_to).any(|(to, end)| {
            let page = to.max(said.0);
            let is_there = || self.uffd.is_registered(page, PAGE, self.rt.unreadable) != Ok(false);
            let was_there = page < end.min(said.1) && self.is_known(page);
            was_there && were_all_freed(&waiting, page, is_there())
        })
    }

    /// What waiting events unmap of a part in which something was mapped when this one was read. It
    /// is left to them: a child may have been forked before.
    fn unmapped_since(&self, part: Range) -> Vec<Range> {
        let some = |(a, b): Range| (a.max(part.0), b.min(part.1));
        let (mut changed, mut left) = (Vec::new(), Vec::new());
        for event in self.queue.waiting() {
            let ranges = match event {
                Event::Unmap { start, end, .. } => {
                    let gone = some((start, end));
                    if gone.0 < gone.1 {
                        left.extend(without(gone, &mut changed));
                    }
                    [gone, (0, 0)]
                }
                Event::Remap { from, to, len } => [some((from, from + len)), some((to, to + len))],
                _ => continue,
            };
            changed.extend(ranges.into_iter().filter(|(a, b)| a < b));
        }
        left
    }

    /// Whether a mapping that was seen in what is said to be unmapped can have lain there all the
    /// time, if it is registered. What grows begins before the range into which it grows, unless
    /// what lay before the mapping, as far as that range's beginning or some of it, was cut off
    /// since. Where registered memory was new, only the pager can have filled it, and it has filled
    /// nothing since. And there is no growing into what goes on behind the range.
    fn can_have_stayed(&self, run: Range, mapping: Range, said: Range) -> bool {
        let goes_on = mapping.1 > said.1 && self.is_kept(said.1);
        let before = |at: u64| at.saturating_sub(PAGE);
        let goes_away = |page| self.queue.unmaps(page) || self.queue.moves_on(page);
        // What lay before the range, and can have grown.
        let neighbour = before(said.0);
        let has_neighbour =
            self.is_known(neighbour) || goes_away(neighbour) || self.has_come((neighbour, said.0));
        let can_be_grown = has_neighbour && goes_away(before(mapping.0));
        mapping.0 >= said.0 && !can_be_grown || self.is_any_present(run) || goes_on
    }

    /// Whether a page is registered by our books.
    fn is_known(&self, page: u64) -> bool {
        let region = self.rt.table.get(page);
        region.is_some_and(|region| region.is_registered(page_index(page)))
    }

    /// Whether a page was registered all the time: by our books, and no unmapping of it waits.
    fn is_kept(&self, page: u64) -> bool {
        self.is_known(page) && !self.queue.unmaps(page)
    }

    fn is_any_present(&self, run: Range) -> bool {
        (run.0 / REGION_BYTES..run.1.div_ceil(REGION_BYTES)).any(|n| {
            let base = n * REGION_BYTES;
            let there = self.present(base);
            let pages = run.0.max(base)..run.1.min(base + REGION_BYTES);
            pages.step_by(PAGE_BYTES).any(|page| {
                let i = ((page - base) / PAGE_BYTES as u64) as usize;
                there[i / 64] >> (i % 64) & 1 == 1
            })
        })
    }
}

/// Where a move puts what it moves, as far as its event tells: by what the mapping has grown on its
/// way is not in it.
fn coming_to(event: &Event) -> Option<Range> {
    match *event {
        Event::Remap { to, len, .. } => Some((to, to + len)),
        _ => None,
    }
}

/// What of `part` is moved away by events that no other has moved there, where `was_there` says of
/// what an event moves that it was there before them all. What lies behind something that has come
/// and moves on with it is what that has grown by: a move is of one mapping.
fn moved_by(waiting: &[Event], part: Range, was_there: impl Fn(Range) -> bool) -> Vec<Range> {
    let (mut come, mut left): (Vec<Range>, Vec<Range>) = (Vec::new(), Vec::new());
    for event in waiting {
        let Event::Remap { from, len, .. } = *event else { continue };
        let end = from + len;
        let moved = (from.max(part.0), end.min(part.1));
        if moved.0 < moved.1 && was_there((from, end)) {
            let grown = |&(a, b): &Range| (a, if a < end && from <= b { b.max(end) } else { b });
            let mut come: Vec<Range> = come.iter().map(grown).collect();
            left.extend(without(moved, &mut come));
        }
        come.extend(coming_to(event));
    }
    left
}

/// Whether a registered page must have gone away beside what `waiting` events tell: they move
/// something to it as often as they may have taken something from it, what is there now included.
/// In whatever order they were, that is once more than they have made room for.
fn were_all_freed(waiting: &[Event], page: u64, is_there: bool) -> bool {
    let holds = |(a, b): Range| (a..b).contains(&page);
    let come = waiting.iter().filter_map(coming_to).filter(|&to| holds(to)).count();
    let mut moved: Vec<Range> = Vec::new();
    let mut taken = usize::from(is_there);
    for event in waiting {
        match *event {
            Event::Remap { from, len, .. } if holds((from, from + len)) => {
                moved.push((from, from + len));
                taken += 1;
            }
            // The unmapping of what a move has left takes nothing.
            Event::Unmap { start, end, .. } if holds((start, end)) => {
                match moved.iter().position(|&range| range == (start, end)) {
                    Some(n) => drop(moved.swap_remove(n)),
                    None => taken += 1,
                }
            }
            _ => {}
        }
    }
    taken <= come
}

/// A range without some others.
fn without(part: Range, others: &mut [Range]) -> Vec<Range> {
    others.sort_unstable();
    let mut left = vec![part];
    for &other in others.iter() {
        left = left
            .into_iter()
            .flat_map(|(a, b)| match overlap((a, b), other) {
                true => vec![(a, other.0.max(a)), (other.1.min(b), b)],
                false => vec![(a, b)],
            })
            .filter(|(a, b)| a < b)
            .collect();
    }
    left
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moves(from: u64, to: u64, len: u64) -> [Event; 2] {
        let seen = Seen::Nothing;
        [Event::Remap { from, to, len }, Event::Unmap { start: from, end: from + len, seen }]
    }

    #[test]
    fn what_has_come_and_grown_on_its_way_was_not_there() {
        // Five pages come, are seven by then, and move on.
        let waiting = [moves(100, 20, 5), moves(20, 50, 7)].concat();
        assert_eq!(moved_by(&waiting, (18, 30), |_| true), []);
        // As two: what it has grown by moves on after it, or before.
        for [a, b] in [[(20, 50, 5), (25, 60, 2)], [(25, 60, 2), (20, 50, 5)]] {
            let on = |(from, to, len)| moves(from, to, len);
            let waiting = [moves(100, 20, 5), on(a), on(b)].concat();
            assert_eq!(moved_by(&waiting, (18, 30), |_| true), []);
        }
        // What lies before it was there, and so was what lies apart.
        let waiting = [moves(100, 20, 5), moves(18, 50, 7), moves(27, 60, 2)].concat();
        assert_eq!(moved_by(&waiting, (18, 30), |_| true), [(18, 20), (27, 29)]);
        assert_eq!(moved_by(&waiting, (18, 30), |_| false), []);
        assert_eq!(moved_by(&moves(10, 50, 30), (18, 30), |_| true), [(18, 30)]);
    }

    #[test]
    fn what_comes_to_a_page_needs_room_there() {
        let there = |waiting: &[Event]| [true, false].map(|is| were_all_freed(waiting, 22, is));
        // Nothing has come; something has and is there, or has moved on.
        assert_eq!(there(&[]), [false, true]);
        assert_eq!(there(&moves(100, 20, 5)), [true, true]);
        assert_eq!(there(&[moves(100, 20, 5), moves(20, 50, 7)].concat()), [false, true]);
        // Something else has made room for it, and be it told later.
        let seen = Seen::Nothing;
        let unmapped = vec![Event::Unmap { start: 22, end: 23, seen }];
        let came = moves(100, 20, 5).to_vec();
        assert_eq!(there(&[unmapped.clone(), came.clone()].concat()), [false, true]);
        assert_eq!(there(&[came.clone(), unmapped].concat()), [false, true]);
        // The unmapping that belongs to a move is told once.
        let twice = Event::Unmap { start: 20, end: 27, seen };
        let waiting = [came, moves(20, 50, 7).to_vec(), vec![twice]].concat();
        assert_eq!(there(&waiting), [false, false]);
    }

    #[test]
    fn what_stayed_is_left_out() {
        assert_eq!(without((10, 20), &mut []), [(10, 20)]);
        assert_eq!(without((10, 20), &mut [(0, 30)]), []);
        assert_eq!(without((10, 20), &mut [(15, 30), (11, 12)]), [(10, 11), (12, 15)]);
        assert_eq!(without((10, 20), &mut [(20, 30)]), [(10, 20)]);
    }
}
