//! Forked children: their missing pages are filled in, then they are on their own.
//!
//! A child begins with its parent's page tables, so every page that was not at home at the fork is
//! missing in the child too, and the kernel hands us a descriptor for the child's registrations.
//! The parent's pager - the child has no runtime threads - gives the child a copy of each such
//! page: at once when the child faults on it, before the parent loses its own copy, and else in
//! small steps between the parent's faults. When nothing is missing the descriptor is closed and
//! the child is an ordinary, untiered process.
//!
//! Between the fork and the reading of its event the kernel refuses our ioctls
//! (`Failure::Changing`), so the words the pager sees at that moment are those of the fork.

use super::Pager;
use crate::forks;
use crate::interpose;
use crate::region::{page_index, Region};
use crate::stats;
use crate::sys::messages::EventBuffer;
use crate::sys::uffd::{Event, Failure, Uffd};
use crate::sys::{memory, spare, thread};
use std::os::fd::RawFd;
use std::sync::atomic::Ordering;
use terrace_core::state::{PageState, PAGE_BYTES, REGION_BYTES, REGION_PAGES};

/// Pages given to a child between two looks at the parent's faults: about 100 us.
const STEP_PAGES: usize = 16;

/// Pages of one region a child still misses, by their address in the parent at the fork.
#[derive(Clone, Debug)]
struct Missing {
    region: &'static Region,
    bits: [u64; 8],
}

/// A child's descriptor, what it misses, and where that lies by now.
#[derive(Debug)]
struct Born {
    fd: RawFd,
    missing: Vec<Missing>,
    moves: Vec<(u64, u64, u64)>,
    registered: Vec<(u64, u64)>,
}

#[derive(Debug)]
struct Child {
    uffd: Uffd,
    queue: EventBuffer,
    /// Sorted by address.
    missing: Vec<Missing>,
    /// Address changes the child made since: (from, to, len), in order.
    moves: Vec<(u64, u64, u64)>,
    /// What was registered in its parent at the fork, by address and length.
    registered: Vec<(u64, u64)>,
    /// Its own children, not yet taken up.
    born: Vec<Born>,
    gone: bool,
}

/// The children that still miss pages.
#[derive(Debug, Default)]
pub(super) struct Children(Vec<Child>);

impl Children {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// A page that is at home is about to be taken. Who still misses it misses what was a hole at
    /// the fork, and must not get what the parent has written there since.
    pub(super) fn owe_nothing(&mut self, page: u64) {
        self.0.iter_mut().for_each(|child| child.settle(page));
    }
}

impl Child {
    /// Where a page of the parent lies in the child.
    fn address(&self, mut at: u64) -> u64 {
        for &(from, to, len) in &self.moves {
            if (from..from + len).contains(&at) {
                at = at - from + to;
            }
        }
        at
    }

    /// Where a page of the child lies in the parent. `None` if what the parent has at this address
    /// was moved away from it in the child.
    fn origin(&self, at: u64) -> Option<u64> {
        let mut page = at;
        for &(from, to, len) in self.moves.iter().rev() {
            if (to..to + len).contains(&page) {
                page = page - to + from;
            }
        }
        (self.address(page) == at).then_some(page)
    }

    fn find(&mut self, page: u64) -> Option<(&mut u64, u64)> {
        let base = page / REGION_BYTES * REGION_BYTES;
        let n = self.missing.binary_search_by_key(&base, |m| m.region.base).ok()?;
        let i = page_index(page);
        let bit = 1u64 << (i % 64);
        let word = &mut self.missing[n].bits[i / 64];
        (*word & bit != 0).then_some((word, bit))
    }

    fn misses(&mut self, page: u64) -> bool {
        self.find(page).is_some()
    }

    fn settle(&mut self, page: u64) {
        if let Some((word, bit)) = self.find(page) {
            *word &= !bit;
        }
    }

    /// Copies `bytes` into the child's page, unless it has no use for it.
    fn give(&mut self, page: u64, bytes: &[u8; PAGE_BYTES]) {
        while self.misses(page) && !self.gone {
            let dst = self.address(page);
            match self.uffd.copy_page(dst, bytes) {
                Ok(()) => self.settle(page),
                Err(Failure::Present) => {
                    self.uffd.wake(dst, PAGE_BYTES as u64);
                    self.settle(page);
                }
                Err(Failure::Changing) => {
                    self.listen();
                    self.apply_changes();
                }
                Err(Failure::NoMemory) => thread::sleep_us(1000),
                Err(Failure::Gone) => self.gone = true,
                // Unmapped in the child, whose event is on its way.
                Err(_) => self.settle(page),
            }
        }
    }

    /// Reads messages; waits a little if there is none.
    fn listen(&mut self) {
        if self.uffd.read_making_room(&mut self.queue) == 0 {
            thread::sleep_us(20);
        }
    }

    /// Handles what the child did to its address space, in order, leaving faults in the queue.
    fn apply_changes(&mut self) {
        while let Some(e) = self.queue.pop_event() {
            match e {
                Event::Remove { start, end } | Event::Unmap { start, end, .. } => {
                    for at in (start..end).step_by(PAGE_BYTES) {
                        if let Some(page) = self.origin(at) {
                            self.settle(page);
                        }
                    }
                }
                Event::Remap { from, to, len } => self.moves.push((from, to, len)),
                // A child of the child misses what the child misses at this moment.
                Event::Fork { child } => {
                    let (missing, moves) = (self.missing.clone(), self.moves.clone());
                    let registered = self.registered.clone();
                    self.born.push(Born { fd: child, missing, moves, registered });
                }
                Event::Fault { .. } => {}
            }
        }
    }

    /// Everything has come: ends the registrations and says so to the child, which may be waiting
    /// to hear it (`forks.rs`). Closing the descriptor is not enough: another child, forked while
    /// it was open, may have a copy of it, and this one would wait for a reader at its next munmap.
    fn tell_whole(&mut self) {
        // A mapping that it moved took its registration along.
        let moved = self.moves.iter().map(|&(_, to, len)| (to, len));
        for (start, len) in self.registered.iter().copied().chain(moved) {
            // What the child has unmapped or changed since is not registered any more.
            let _ = self.uffd.unregister(start, len);
        }
        let Some(page) = forks::sentinel() else { return };
        loop {
            match self.uffd.copy_page_quietly(page, &forks::WHOLE) {
                Err(Failure::Changing) => {
                    self.listen();
                    self.apply_changes();
                }
                // Without it the child would find zeros, and end.
                Err(Failure::NoMemory) => thread::sleep_us(1000),
                _ => break,
            }
        }
        // Now the child goes on, and nothing of it is registered.
        let _ = self.uffd.unregister(page, PAGE_BYTES as u64);
        self.uffd.wake(page, PAGE_BYTES as u64);
    }

    /// Any page still missing, from the end of the list.
    fn next_missing(&mut self) -> Option<(&'static Region, usize)> {
        while let Some(m) = self.missing.last() {
            match m.bits.iter().position(|&b| b != 0) {
                Some(k) => return Some((m.region, k * 64 + m.bits[k].trailing_zeros() as usize)),
                None => self.missing.pop(),
            };
        }
        None
    }
}

impl Pager {
    /// The application forked.
    pub(super) fn forked(&mut self, fd: RawFd) {
        let mut missing: Vec<Missing> = Vec::new();
        for region in self.rt.table.all() {
            let mut bits = [0u64; 8];
            for i in 0..REGION_PAGES {
                if region.word(i).state() != PageState::Home {
                    bits[i / 64] |= 1 << (i % 64);
                }
            }
            if bits != [0; 8] {
                missing.push(Missing { region, bits });
            }
        }
        missing.sort_by_key(|m| m.region.base);
        self.leave_out_wiped(&mut missing);
        self.adopt(Born { fd, missing, moves: Vec::new(), registered: self.registered() });
        forks::note_fork();
    }

    /// Takes off the list what a child gets empty because its parent said so (`MADV_WIPEONFORK`).
    /// The flag is looked at after the fork. Who changes it in between does so beside the fork, and
    /// has no say in which came first.
    fn leave_out_wiped(&self, missing: &mut [Missing]) {
        if missing.is_empty() {
            return;
        }
        let mut wiped = self.rt.smaps.inherited().unwrap_or_default();
        wiped.retain(|m| m.wiped && !memory::is_own(m.start, m.end));
        if wiped.is_empty() {
            return;
        }
        for m in missing {
            let region = m.region;
            for i in 0..REGION_PAGES {
                let page = region.address(i);
                if wiped.iter().any(|w| (w.start..w.end).contains(&page)) {
                    m.bits[i / 64] &= !(1 << (i % 64));
                }
            }
        }
    }

    /// What is registered, by address and length, in runs.
    fn registered(&self) -> Vec<(u64, u64)> {
        let mut regions = self.rt.table.all();
        regions.sort_by_key(|r| r.base);
        let mut runs: Vec<(u64, u64)> = Vec::new();
        for (r, i) in regions.iter().flat_map(|r| (0..REGION_PAGES).map(move |i| (r, i))) {
            if !r.is_registered(i) {
                continue;
            }
            let page = r.address(i);
            match runs.last_mut() {
                Some((start, len)) if *start + *len == page => *len += PAGE_BYTES as u64,
                _ => runs.push((page, PAGE_BYTES as u64)),
            }
        }
        runs
    }

    fn adopt(&mut self, born: Born) {
        let Born { fd, missing, moves, registered } = born;
        let mut uffd = Uffd::adopt(fd, self.uffd.features);
        if spare::are_needed() {
            // Out of the way of programs that close all low numbers, and of its own later children.
            uffd.raise_fd();
            interpose::protect_fd(uffd.raw());
            spare::keep();
        }
        stats::add(&self.rt.stats.children_pending, 1);
        let (queue, born) = (EventBuffer::new(), Vec::new());
        let gone = false;
        self.children.0.push(Child { uffd, queue, missing, moves, registered, born, gone });
    }

    /// Serves each child's own faults, then gives it a few more pages.
    pub(super) fn feed_children_step(&mut self) {
        for mut child in std::mem::take(&mut self.children.0) {
            child.uffd.read_making_room(&mut child.queue);
            child.apply_changes();
            while let Some(address) = child.queue.pop_fault() {
                self.child_fault(&mut child, address);
            }
            for _ in 0..STEP_PAGES {
                match child.next_missing() {
                    Some((region, i)) if !child.gone => self.give_child(&mut child, region, i),
                    _ => break,
                }
            }
            let whole = child.next_missing().is_none();
            if whole && !child.gone {
                child.tell_whole();
            }
            for born in std::mem::take(&mut child.born) {
                self.adopt(born);
            }
            if child.gone || whole {
                child.uffd.let_go(self.uffd);
                self.rt.stats.children_pending.fetch_sub(1, Ordering::Relaxed);
            } else {
                self.children.0.push(child);
            }
        }
        // The next fork may wait for the place of one of these.
        if !self.children.is_empty() {
            spare::be_patient();
        }
    }

    fn child_fault(&mut self, child: &mut Child, address: u64) {
        let at = address & !(PAGE_BYTES as u64 - 1);
        if forks::is_sentinel(at) {
            // It waits to be whole; that will be answered when it is.
            return;
        }
        let missed = child.origin(at).filter(|&page| child.misses(page));
        match missed.and_then(|page| Some((self.rt.table.get(page)?, page_index(page)))) {
            Some((region, i)) => self.give_child(child, region, i),
            // Fresh memory in the child, or a page that came while the message waited.
            _ => match child.uffd.zero_page(at) {
                Err(Failure::Changing) => {
                    // Look again after the change: the thread faults once more.
                    child.listen();
                    child.apply_changes();
                    child.uffd.wake(at, PAGE_BYTES as u64);
                }
                Err(_) => child.uffd.wake(at, PAGE_BYTES as u64),
                Ok(()) => {}
            },
        }
    }

    fn give_child(&mut self, child: &mut Child, region: &Region, i: usize) {
        let page = region.address(i);
        if self.fetch(region, i) {
            child.give(page, &self.page);
        } else {
            child.settle(page);
        }
    }

    /// The parent is about to lose its copy of a page: children that miss it get theirs first. Of a
    /// page at home they miss nothing, for they would have got it before it came home; where the
    /// word said something else at the fork, it was a hole, on its way down with its neighbours.
    pub(super) fn feed_children(&mut self, region: &Region, i: usize) {
        if self.children.is_empty() {
            return;
        }
        let page = region.address(i);
        if region.word(i).state() == PageState::Home {
            return self.children.owe_nothing(page);
        }
        let mut children = std::mem::take(&mut self.children.0);
        let mut n = 0;
        while let Some(child) = children.get_mut(n) {
            if child.misses(page) {
                self.give_child(child, region, i);
            }
            // A child of the child, of which we have just learned, may miss it too.
            for born in std::mem::take(&mut child.born) {
                self.adopt(born);
            }
            children.append(&mut self.children.0);
            n += 1;
        }
        self.children.0 = children;
    }

    /// Puts the bytes of a page that is not at home into `self.page`, against movers that may be
    /// turning it from one place to the next. `false` if it is at home.
    fn fetch(&mut self, region: &Region, i: usize) -> bool {
        loop {
            let w = region.word(i);
            let source = self.source(region, i, w);
            let read = match source.state() {
                PageState::Home => return false,
                PageState::Stored | PageState::Same => self.try_decode(source),
                _ => {
                    memory::read_page(self.rt.slot_address(region, i, w), &mut self.page);
                    Ok(())
                }
            };
            // Unchanged word, unchanged place: what was read is the page.
            if region.word(i) == w {
                match read {
                    Ok(()) => return true,
                    Err(why) => super::unreadable(region.address(i), why),
                }
            }
        }
    }
}
