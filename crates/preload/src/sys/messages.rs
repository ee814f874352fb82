//! Messages of a userfaultfd that were read and wait to be handled, and what they tell of pages
//! before they are.

use super::uffd::{Event, Seen, READ_BATCH};

/// Messages waiting to be handled: events before faults, each in arrival order. Fixed size: the
/// pager never reads when fewer than [`READ_BATCH`] places are free.
#[derive(Debug)]
pub struct EventBuffer {
    ring: Box<[Option<Event>]>,
    head: usize,
    len: usize,
}

impl Default for EventBuffer {
    fn default() -> EventBuffer {
        EventBuffer::new()
    }
}

impl EventBuffer {
    /// Places. The kernel hands out faults before events, so the faults of as many threads may
    /// have to wait here before an event is reached that must be handled first.
    const PLACES: usize = 4096;

    /// An empty buffer.
    pub fn new() -> EventBuffer {
        EventBuffer { ring: vec![None; EventBuffer::PLACES].into(), head: 0, len: 0 }
    }

    /// Whether a whole read batch fits.
    pub fn has_room(&self) -> bool {
        self.len + READ_BATCH <= EventBuffer::PLACES
    }

    /// Appends a message. There must be room.
    pub fn push(&mut self, e: Event) {
        debug_assert!(self.len < EventBuffer::PLACES);
        self.ring[(self.head + self.len) % EventBuffer::PLACES] = Some(e);
        self.len += 1;
    }

    /// The message to handle next: the oldest event, and if there is none, the oldest fault. A
    /// fault that was read together with an event must not be served before it: once the event was
    /// read the kernel lets both our ioctls and the change go on, and a page that is filled after
    /// the kernel has dropped the range would be there with what the program has thrown away.
    pub fn pop(&mut self) -> Option<Event> {
        self.pop_event().or_else(|| self.take_first(|_| true))
    }

    /// The oldest message that is not a fault, leaving the faults in order. Events must be handled
    /// before any ioctl can succeed again, faults can wait.
    pub fn pop_event(&mut self) -> Option<Event> {
        self.take_first(|e| !matches!(e, Event::Fault { .. }))
    }

    /// The address of the oldest fault, leaving the rest in order. Whoever takes it out without
    /// serving it must wake its thread, which will then fault again.
    pub fn pop_fault(&mut self) -> Option<u64> {
        match self.take_first(|e| matches!(e, Event::Fault { .. })) {
            Some(Event::Fault { address, .. }) => Some(address),
            _ => None,
        }
    }

    /// Where a page that is at `page` now will be when the waiting events have been handled. `None`
    /// if it will be gone, or empty. An unmapping of a range of `left` takes nothing: it follows a
    /// move that was handled.
    pub fn now_at(&self, page: u64, left: &[(u64, u64)]) -> Option<u64> {
        let mut at = page;
        for n in 0..self.len {
            match self.ring[(self.head + n) % EventBuffer::PLACES] {
                Some(Event::Remap { from, to, len }) if (from..from + len).contains(&at) => {
                    at = at - from + to;
                }
                Some(Event::Unmap { start, end, .. }) if left.contains(&(start, end)) => {}
                Some(Event::Unmap { start, end, .. } | Event::Remove { start, end })
                    if (start..end).contains(&at) =>
                {
                    return None;
                }
                _ => {}
            }
        }
        Some(at)
    }

    /// The waiting events that take a mapping away from any of these pages, in order, without those
    /// that follow each move: the unmapping of what it left.
    pub fn taking_from(&self, pages: &[u64]) -> Vec<Event> {
        let follows = |e: &Event| {
            let Event::Unmap { start, end, .. } = *e else { return false };
            let range = (start, end);
            self.waiting()
                .any(|m| matches!(m, Event::Remap { from, len, .. } if (from, from + len) == range))
        };
        let takes = |e: &Event| pages.iter().any(|&page| e.takes_from(page));
        self.waiting().filter(|e| takes(e) && !follows(e)).collect()
    }

    /// Takes out the first message that is of a kind, leaving the rest in order.
    pub fn take_where(&mut self, is_it: impl Fn(&Event) -> bool) -> Option<Event> {
        self.take_first(is_it)
    }

    /// Takes out an event that waits, leaving the rest in order.
    pub fn take(&mut self, event: Event) -> Option<Event> {
        self.take_first(|e| *e == event)
    }

    /// The messages, the oldest first.
    pub fn waiting(&self) -> impl Iterator<Item = Event> + '_ {
        (0..self.len).filter_map(|n| self.ring[(self.head + n) % EventBuffer::PLACES])
    }

    /// Where waiting events move mappings to, by start and end, as far as they tell.
    pub fn destinations(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.waiting().filter_map(|e| match e {
            Event::Remap { to, len, .. } => Some((to, to + len)),
            _ => None,
        })
    }

    /// Whether a message waits that is not a fault.
    pub fn has_changes(&self) -> bool {
        self.waiting().any(|e| !matches!(e, Event::Fault { .. }))
    }

    /// The message that was read last, if it waits.
    pub fn newest(&self) -> Option<Event> {
        self.waiting().last()
    }

    /// Whether a waiting event moves a mapping to a page.
    pub fn moves_to(&self, page: u64) -> bool {
        self.waiting()
            .any(|e| matches!(e, Event::Remap { to, len, .. } if (to..to + len).contains(&page)))
    }

    /// Whether what is at a page now is moved away by a waiting event, before another one moves
    /// something there.
    pub fn moves_on(&self, page: u64) -> bool {
        let next = self.waiting().find_map(|e| match e {
            Event::Remap { .. } if e.takes_from(page) => Some(true),
            Event::Remap { to, len, .. } if (to..to + len).contains(&page) => Some(false),
            _ => None,
        });
        next == Some(true)
    }

    /// Where waiting events move mappings to that reach, by what they say, no farther than a page.
    /// They do not tell by how much a mapping has grown on its way.
    pub fn destinations_below(&self, page: u64) -> Vec<u64> {
        let ends_below = |e| match e {
            Event::Remap { to, len, .. } if to + len <= page => Some(to),
            _ => None,
        };
        self.waiting().filter_map(ends_below).collect()
    }

    /// Whether a waiting event unmaps a page.
    pub fn unmaps(&self, page: u64) -> bool {
        self.waiting()
            .any(|e| matches!(e, Event::Unmap { start, end, .. } if (start..end).contains(&page)))
    }

    /// Has a look at each unmapping of the last read.
    pub fn look_at_unmappings(&mut self, is_gone: impl Fn(u64, u64) -> bool) {
        for n in self.len.saturating_sub(READ_BATCH)..self.len {
            let place = (self.head + n) % EventBuffer::PLACES;
            if let Some(Event::Unmap { start, end, seen }) = &mut self.ring[place] {
                if *seen == Seen::Nothing {
                    *seen = if is_gone(*start, *end) { Seen::Gone } else { Seen::Mapped };
                }
            }
        }
    }

    /// All that has changed was read, at a moment after the last look.
    pub fn settle(&mut self) {
        for n in 0..self.len {
            let place = (self.head + n) % EventBuffer::PLACES;
            if let Some(Event::Unmap { seen, .. }) = &mut self.ring[place] {
                if *seen == Seen::Gone {
                    *seen = Seen::Over;
                }
            }
        }
    }

    fn take_first(&mut self, wanted: impl Fn(&Event) -> bool) -> Option<Event> {
        let place = (0..self.len)
            .map(|i| (self.head + i) % EventBuffer::PLACES)
            .find(|&p| self.ring[p].as_ref().is_some_and(&wanted))?;
        let e = self.ring[place].take();
        // Close the gap by moving the older messages up by one.
        let mut p = place;
        while p != self.head {
            let before = (p + EventBuffer::PLACES - 1) % EventBuffer::PLACES;
            self.ring[p] = self.ring[before].take();
            p = before;
        }
        self.head = (self.head + 1) % EventBuffer::PLACES;
        self.len -= 1;
        e
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(address: u64) -> Event {
        Event::Fault { address, write: false, wp: false, tid: 0 }
    }

    fn unmap(start: u64, end: u64) -> Event {
        Event::Unmap { start, end, seen: Seen::Nothing }
    }

    #[test]
    fn events_overtake_faults_and_faults_keep_their_order() {
        let mut b = EventBuffer::new();
        // Start away from zero so that the ring wraps.
        for i in 0..EventBuffer::PLACES as u64 - 2 {
            b.push(fault(i));
            b.pop();
        }
        let (remove, unmap) = (Event::Remove { start: 0, end: 1 }, unmap(0, 1));
        for e in [fault(1), fault(2), remove, fault(3), unmap] {
            b.push(e);
        }
        assert_eq!(b.pop_event(), Some(remove));
        assert_eq!(b.pop(), Some(unmap), "no fault is served before an event that was read");
        assert_eq!(b.pop_event(), None);
        assert_eq!(
            [b.pop(), b.pop(), b.pop(), b.pop()],
            [Some(fault(1)), Some(fault(2)), Some(fault(3)), None]
        );
    }

    #[test]
    fn a_page_is_followed_through_the_events_that_wait() {
        let mut b = EventBuffer::new();
        b.push(Event::Remap { from: 0x1000, to: 0x5000, len: 0x2000 });
        b.push(Event::Remap { from: 0x5000, to: 0x1000, len: 0x1000 });
        assert_eq!(b.now_at(0x1000, &[]), Some(0x1000));
        assert_eq!(b.now_at(0x2000, &[]), Some(0x6000));
        b.push(Event::Remove { start: 0x6000, end: 0x7000 });
        assert_eq!((b.now_at(0x2000, &[]), b.now_at(0x7000, &[])), (None, Some(0x7000)));
        b.push(unmap(0x7000, 0x8000));
        assert_eq!(b.now_at(0x7000, &[(0x6000, 0x8000)]), None);
        assert_eq!(b.now_at(0x7000, &[(0x7000, 0x8000)]), Some(0x7000), "it follows a move");
        b.push(unmap(0x5000, 0x6000));
        assert!(b.unmaps(0x7fff) && b.unmaps(0x5000) && !b.unmaps(0x6000));
        assert!(b.moves_on(0x2fff) && !b.moves_on(0x3000) && !b.moves_on(0x7000));
        assert!(!b.moves_on(0x5000), "it is moved there before");
    }

    #[test]
    fn faults_stay_in_order_around_an_event() {
        let mut b = EventBuffer::new();
        let unmap = unmap(0, 1);
        for e in [fault(1), unmap, fault(2)] {
            b.push(e);
        }
        assert_eq!(b.pop_event(), Some(unmap));
        assert_eq!((b.pop(), b.pop(), b.pop()), (Some(fault(1)), Some(fault(2)), None));
    }

    #[test]
    fn what_was_looked_at_before_all_was_read_is_over() {
        let mut b = EventBuffer::new();
        let seen = |b: &mut EventBuffer| match b.pop() {
            Some(Event::Unmap { seen, .. }) => seen,
            other => panic!("{other:?}"),
        };
        b.push(unmap(0, 1));
        b.push(unmap(1, 2));
        b.look_at_unmappings(|start, _| start == 0);
        b.settle();
        b.push(unmap(2, 3));
        b.look_at_unmappings(|start, _| start != 0);
        let all: Vec<Seen> = (0..3).map(|_| seen(&mut b)).collect();
        assert_eq!(all, [Seen::Over, Seen::Mapped, Seen::Gone]);
    }
}
