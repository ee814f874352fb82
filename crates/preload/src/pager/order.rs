//! Changes of the address space in their true order, where their events come in another.
//!
//! The kernel makes a change under the lock of the address space and queues its event afterwards.
//! Between the two the thread may lose its processor, and another thread maps and moves something
//! to the addresses that have just become free: its event then comes first. Were both handled as
//! they come, the first thread's late `munmap` would void what the second has moved there, and its
//! late `mremap` would carry it off. (A soak found it on an overloaded machine: a page of zeros.)
//!
//! What can be relied on: whatever was registered is announced when it goes away, and as long as
//! something is not announced yet, the kernel says so (`Failure::Changing`). Hence, for a mapping
//! that was moved *to* a range:
//!
//! - pages that by our books are still registered there belonged to a mapping that is gone; where
//!   it went is told by an event that is handled first, and waited for if need be ([`make_way`]);
//! - the range is remembered until the kernel has nothing more to tell. An event that takes
//!   something away *from* it in that time may be older. It is, where the kernel says that the
//!   range is registered now and no other move to it is waiting ([`is_late`]): what was moved there
//!   has not gone away, so it was something before that. (`MREMAP_DONTUNMAP` leaves a registered
//!   mapping behind; but behind other moves comes the event of an unmapping.) Where it has gone
//!   away by now and the event of its move waits, the kernel cannot be asked. But to move it must
//!   have been there: an unmapping is older, unless nothing was mapped there when it was read;
//! - the unmapping of what a move has left takes nothing any more. It has the same range as the
//!   move, which is remembered as well. Where what was moved there has its own move away waiting
//!   and is gone, so that the kernel cannot be asked about it, the range alone tells. So it does
//!   of what we are registering ourselves, which is why that is not begun while anything is
//!   remembered ([`is_settled`]).
//!
//! One thing can make a range registered again that has gone away: a mapping before it that grows
//! in place, of which there is no event. So while a range is remembered, messages are read one by
//! one, and before each the kernel is asked what is mapped there ([`look_and_read`]): whoever waits
//! for that message to be read has made its change, and has not gone on. (Another thread may have
//! let its mapping grow in between. That is not seen.)
//!
//! `fork` is left out: which of two unsynchronised threads was first, the one that forks or the one
//! that unmaps, no program can tell.
//!
//! [`is_settled`]: Pager::is_settled
//! [`look_and_read`]: Pager::look_and_read
//! [`make_way`]: Pager::make_way
//! [`is_late`]: Pager::is_late

use super::Pager;
use crate::region::for_overlap;
use crate::sys::proc;
use crate::sys::uffd::{Event, Failure};
use terrace_core::state::PAGE_BYTES;

/// How often events are waited for: each wait is for an event, or 20 us.
const WAITS_MAX: usize = 100_000;
/// Ranges that are remembered. More at one time would take as many threads in `mremap`.
const ARRIVALS_MAX: usize = 256;

/// What is remembered since the kernel last had nothing to tell, by start and end.
#[derive(Debug, Default)]
pub(super) struct Arrivals {
    /// Where mappings were moved to.
    ranges: Vec<(u64, u64)>,
    /// Where they are being moved to by an event that is being handled.
    coming: Vec<(u64, u64)>,
    /// Where there was nothing mapped later than that.
    gone: Vec<(u64, u64)>,
    /// What they were moved away from, if the unmapping that follows was not handled yet.
    left: Vec<(u64, u64)>,
}

fn overlap(ranges: &[(u64, u64)], start: u64, end: u64) -> bool {
    ranges.iter().any(|&(a, b)| a < end && start < b)
}

impl Arrivals {
    pub(super) fn is_empty(&self) -> bool {
        self.ranges.is_empty() && self.gone.is_empty()
    }

    /// Mappings have moved away from these ranges, and the unmappings that follow are to come.
    pub(super) fn left(&self) -> &[(u64, u64)] {
        &self.left
    }

    fn overlap(&self, start: u64, end: u64) -> bool {
        overlap(&self.ranges, start, end)
    }

    /// Whether a mapping was moved to some of this range, or is being.
    pub(super) fn touch(&self, (start, end): (u64, u64)) -> bool {
        self.overlap(start, end) || overlap(&self.coming, start, end)
    }

    /// Something else has come to a range.
    fn filled(&mut self, start: u64, end: u64) {
        let parts = |(a, b): (u64, u64)| [(a, b.min(start)), (a.max(end), b)];
        self.gone = self.gone.drain(..).flat_map(parts).filter(|(a, b)| a < b).collect();
    }
}

impl Pager {
    /// With every event that was read handled: if the kernel has nothing to tell, nothing late can
    /// come.
    pub(super) fn forget_arrivals(&mut self) {
        if !self.arrivals.is_empty() && !self.is_changing() {
            self.arrivals = Arrivals::default();
        }
    }

    /// Whether nothing is remembered, nor need be.
    pub(super) fn is_settled(&mut self) -> bool {
        self.forget_arrivals();
        self.arrivals.is_empty()
    }

    /// Whether the kernel would say of a page that it is registered because it just was, whatever
    /// was there before.
    pub(super) fn is_being_registered(&self, page: u64) -> bool {
        self.registering.is_some_and(|(start, end)| (start..end).contains(&page))
    }

    /// Reads what there is, without waiting; how many messages that was. One at most, and only
    /// after a look, where the order may come to matter.
    pub(super) fn look_and_read(&mut self) -> usize {
        let arrived = self.arrivals.ranges.iter().chain(&self.arrivals.coming).copied();
        let watched: Vec<(u64, u64)> = self.queue.destinations().chain(arrived).collect();
        if watched.is_empty() {
            let n = self.uffd.read_making_room(&mut self.queue);
            self.look();
            return n;
        }
        if !self.uffd.make_room(&mut self.queue) {
            return 0;
        }
        let (gone, coverage) = (&mut self.arrivals.gone, &self.coverage);
        let look = || {
            for (start, end) in watched {
                coverage.holes(start, end, |a, b| {
                    if !gone.contains(&(a, b)) {
                        gone.push((a, b));
                    }
                });
            }
        };
        let n = self.uffd.look_and_read_one(&mut self.queue, look);
        self.look();
        if let (1, Some(Event::Remap { to, len, .. })) = (n, self.queue.newest()) {
            self.arrivals.filled(to, to + len);
        }
        n
    }

    /// Notes that the event is being handled which tells of a mapping's move to a range.
    pub(super) fn arriving(&mut self, to: u64, len: u64) {
        self.arrivals.coming.push((to, to + len));
    }

    /// Notes that it was handled.
    pub(super) fn arrived(&mut self, from: u64, to: u64, len: u64) {
        self.arrivals.coming.pop();
        for (ranges, start) in [(&mut self.arrivals.ranges, to), (&mut self.arrivals.left, from)] {
            if ranges.len() == ARRIVALS_MAX {
                ranges.remove(0);
            }
            ranges.push((start, start + len));
        }
    }

    /// The parts of a range that is said to be unmapped of which it is about what our books have
    /// there.
    pub(super) fn unmapped_parts(
        &mut self,
        start: u64,
        end: u64,
        known: &[u64],
    ) -> Vec<(u64, u64)> {
        let parts = self.true_parts(start, end, false, known);
        // Only one follows each move. A second one of the same range is of something else.
        if let Some(n) = self.arrivals.left.iter().position(|&range| range == (start, end)) {
            self.arrivals.left.remove(n);
        }
        parts
    }

    /// Before a mapping that was moved to a range is put into our books: handles the event that
    /// says what became of the one that was there before.
    pub(super) fn make_way(&mut self, to: u64, len: u64) {
        for _ in 0..WAITS_MAX {
            let mut taken: Vec<u64> = Vec::new();
            for_overlap(&self.rt.table, to, to + len, |region, pages| {
                let there = pages.filter(|&i| region.is_registered(i));
                taken.extend(there.map(|i| region.address(i)));
            });
            if taken.is_empty() {
                return;
            }
            // All that there is, so that two that would do are seen together.
            if self.is_changing() && self.queue.has_room() {
                self.listen();
                continue;
            }
            let takers = self.queue.taking_from(&taken);
            let Some(event) = oldest(&takers, &taken) else {
                // None is missing: the books were wrong about what is registered.
                return;
            };
            if let Some(event) = self.queue.take(event) {
                self.change_of(event, &taken);
            }
        }
    }

    /// The parts of a range of which an event (a move away from it, or an unmapping) is about what
    /// our books have there. It is about the pages `known`, in order, whatever the kernel says of
    /// them: what is there now may be what is being made way for.
    pub(super) fn true_parts(
        &mut self,
        start: u64,
        end: u64,
        is_move: bool,
        known: &[u64],
    ) -> Vec<(u64, u64)> {
        if !self.arrivals.overlap(start, end) {
            return vec![(start, end)];
        }
        // What goes away while we wait, this event did not take.
        let gone_before = self.arrivals.gone.clone();
        self.read_all();
        let follows_a_move = !is_move && self.arrivals.left.contains(&(start, end));
        let mut parts: Vec<(u64, u64)> = Vec::new();
        for page in (start..end).step_by(PAGE_BYTES) {
            let is_moved_on = || {
                let was_there = !overlap(&gone_before, page, page + PAGE_BYTES as u64);
                self.queue.moves_on(page) && (follows_a_move || !is_move && was_there)
            };
            let is_late = match self.is_being_registered(page) {
                _ if known.binary_search(&page).is_ok() => false,
                true => follows_a_move,
                false => is_moved_on() || self.is_late(page, is_move),
            };
            match parts.last_mut() {
                _ if is_late => {}
                Some(last) if last.1 == page => last.1 += PAGE_BYTES as u64,
                _ => parts.push((page, page + PAGE_BYTES as u64)),
            }
        }
        parts
    }

    /// Whether what an event takes away from a page is not what is there now: a mapping was moved
    /// there since.
    fn is_late(&mut self, page: u64, is_move: bool) -> bool {
        if !self.arrivals.overlap(page, page + PAGE_BYTES as u64) {
            return false;
        }
        if overlap(&self.arrivals.gone, page, page + PAGE_BYTES as u64) {
            return false;
        }
        for _ in 0..WAITS_MAX {
            if self.queue.moves_to(page) || is_move && !self.queue.unmaps(page) {
                return false;
            }
            match self.uffd.is_registered(page, PAGE_BYTES as u64, self.rt.unreadable) {
                // Another change has begun, which may have brought something here.
                Err(Failure::Changing) if self.queue.has_room() => self.listen(),
                Err(Failure::Changing) => break,
                Ok(true) => match self.is_grown_into(page) {
                    Err(Failure::Changing) => self.listen(),
                    is_grown => return is_grown == Ok(false),
                },
                _ => return false,
            }
        }
        // There is always somebody changing something. These books can be read all the same, at
        // some expense.
        self.rt.smaps.is_registered(page)
    }

    /// Whether a page is of a mapping whose move is waiting: of the part by which it has grown on
    /// its way, which the event does not tell.
    pub(super) fn is_grown_into(&self, page: u64) -> Result<bool, Failure> {
        for to in self.queue.destinations_below(page) {
            let len = page + PAGE_BYTES as u64 - to;
            if self.uffd.is_registered(to, len, self.rt.unreadable)? {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// Which of the events that take something from these pages came first. It took all of them, or
/// nothing could have been moved there.
fn oldest(takers: &[Event], pages: &[u64]) -> Option<Event> {
    // In which order a page is unmapped twice does not matter.
    let moves = takers.iter().any(|e| matches!(e, Event::Remap { .. }));
    if takers.len() < 2 || !moves {
        return takers.first().copied();
    }
    let takes_all = |e: &&Event| pages.iter().all(|&page| e.takes_from(page));
    let mut all = takers.iter().filter(takes_all);
    match (all.next(), all.next()) {
        (Some(&event), None) => Some(event),
        _ => proc::die(
            "terrace: several threads have moved memory to and from the same addresses, in an \
             order that cannot be known; ending the program rather than handing it wrong bytes",
        ),
    }
}
