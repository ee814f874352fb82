//! What children get of registered memory, where the kernel does not tell us of forks.
//!
//! Without fork events a child's registrations vanish, and what was in tiers would read as zeros
//! there. So children do not get registered memory at all (`MADV_DONTFORK`): one that was made
//! behind libc's back ends by SIGSEGV when it touches it. libc's own forks bring everything home
//! first and lift that for as long as they take (`forks.rs`).

use super::Pager;
use crate::region::{for_overlap, Region};
use crate::sys::{inherit, memory};
use std::ops::Range;
use terrace_core::state::{PageState, PAGE_BYTES};

/// How often children are given all memory, if other threads change the address space all the time.
const GIVE_MAX: usize = 100;

impl Pager {
    /// Keeps pages that were registered just now from children. `false`, and they are no longer
    /// registered, if the kernel will not.
    pub(super) fn keep_from_children(&mut self, region: &Region, pages: Range<usize>) -> bool {
        if self.rt.sees_forks() {
            return true;
        }
        let (start, len) = (region.address(pages.start), (pages.len() * PAGE_BYTES) as u64);
        let kept = inherit::set_inherited(start, len, false);
        // Another mapping may have taken the place of the registered one before that. If so, its
        // event was handled when the kernel answers this, and the pages' bits are gone.
        self.is_whole(region, pages.clone());
        if kept && pages.clone().all(|i| region.is_registered(i)) {
            return true;
        }
        // What took that place is kept now, and moves with that: it is not registered, and no event
        // will say where to.
        self.has_strayed = true;
        // Not registered, not kept: page by page, since only some may be there. Not so the pages
        // that are out: they were registered and kept before, and must stay so, or they would read
        // as zeros.
        for i in pages {
            let at = region.address(i);
            if region.word(i).state() != PageState::Home {
                inherit::set_inherited(at, PAGE_BYTES as u64, false);
                continue;
            }
            inherit::set_inherited(at, PAGE_BYTES as u64, true);
            // What cannot be unregistered is gone, or gets its faults served.
            let _ = self.uffd.unregister(at, PAGE_BYTES as u64);
            let took = self.took_too_much(at, PAGE_BYTES as u64);
            // As in `end_registration`: what is there now is asked for.
            region.set_registered(i..i + 1, false);
            if took && self.is_whole(region, i..i + 1) {
                inherit::set_inherited(at, PAGE_BYTES as u64, false);
                region.set_registered(i..i + 1, true);
            }
        }
        false
    }

    /// Before a fork that nobody announces, with every page at home: children get all memory of
    /// the application again, also what the kernel counts as registered and we do not, such as the
    /// part by which a mapping has grown.
    pub fn give_to_children(&mut self) {
        if self.rt.sees_forks() {
            return;
        }
        for _ in 0..GIVE_MAX {
            let has_grown = self.give_what_there_is();
            // A mapping that another thread moved meanwhile took along that it is kept. It is
            // registered, so until its event was read the kernel says that there is one.
            let is_changing = self.is_changing();
            if !is_changing && !has_grown {
                break;
            }
            if is_changing {
                self.drain();
            }
        }
    }

    /// Whether a mapping has grown between the look and what was made of it: what it grew by is
    /// kept as it was, and no event tells. (One that grows afterwards grows by what children get.)
    ///
    /// What has strayed looks like what the program itself keeps: then children get all that it may
    /// be.
    fn give_what_there_is(&self) -> bool {
        let may_stray = |m: &inherit::Inherited| {
            self.has_strayed && m.anonymous && !memory::is_own(m.start, m.end)
        };
        let mut has_grown = false;
        match self.rt.smaps.inherited() {
            Some(all) => {
                for m in all.iter().filter(|m| m.absent && (m.registered || may_stray(m))) {
                    let given = inherit::set_inherited(m.start, m.end - m.start, true);
                    let was_known = all.iter().any(|next| next.start == m.end);
                    let goes_on = if m.registered { self.goes_on(m.end) } else { given };
                    has_grown |= goes_on && !was_known;
                }
            }
            None => {
                for region in self.rt.table.all() {
                    for pages in region.runs_where(|i| region.is_registered(i)) {
                        let len = (pages.len() * PAGE_BYTES) as u64;
                        inherit::set_inherited(region.address(pages.start), len, true);
                    }
                }
            }
        }
        has_grown
    }

    /// Whether a registered mapping is still registered where it ended.
    fn goes_on(&self, end: u64) -> bool {
        self.uffd.is_registered(end, PAGE_BYTES as u64, self.rt.unreadable) == Ok(true)
    }

    /// After the last such fork.
    pub fn take_from_children(&mut self) {
        for region in self.rt.table.all() {
            for pages in region.runs_where(|i| region.is_registered(i)) {
                self.keep_from_children(region, pages);
            }
        }
    }

    /// Ends the registrations in a range and of the regions around it. `false` if not
    /// all of its pages are home, or may not be: another thread's `mremap` may have brought some.
    pub fn unregister_range(&mut self, start: u64, end: u64) -> bool {
        let table = &self.rt.table;
        let mut is_home = true;
        for_overlap(table, start, end, |region, _| is_home &= self.unregister(region));
        if !is_home {
            return false;
        }
        // And what a mapping has grown by, which the kernel registers unasked.
        for m in self.rt.smaps.registered().unwrap_or_default() {
            let (from, to) = (m.start.max(start), m.end.min(end));
            if from < to {
                if !self.rt.sees_forks() {
                    inherit::set_inherited(from, to - from, true);
                }
                let _ = self.uffd.unregister(from, to - from);
                if self.took_too_much(from, to - from) {
                    return false;
                }
            }
        }
        true
    }

    /// Whether any page of a range is registered, after every change before was handled.
    pub fn is_any_registered(&mut self, start: u64, end: u64) -> bool {
        let mut is_any = false;
        for_overlap(&self.rt.table, start, end, |region, mut pages| {
            is_any |= pages.any(|i| region.is_registered(i));
        });
        is_any
    }

    /// Gives up all registrations for good. Every page is at home, and nothing is moved or
    /// registered from now on. `sentinel` is the page of `forks.rs`, 0 if there is none.
    pub fn unregister_all(&mut self, sentinel: u64) {
        self.give_to_children();
        for region in self.rt.table.all() {
            self.end_registration(region, false);
        }
        // And what the kernel has of them beyond our books: ranges that have grown.
        for m in self.rt.smaps.registered().unwrap_or_default() {
            let is_free = m.start == sentinel || !memory::is_own(m.start, m.end);
            if is_free {
                let _ = self.uffd.unregister(m.start, m.end - m.start);
            }
        }
    }
}
