//! Pages on their way from a slow medium (`loader.rs`): the pager's side.
//!
//! From the fault until its page is filled in, the page's word is `Restoring`. Only this thread
//! writes that, and everywhere else it puts another word in its place before it reads or handles
//! anything, so a `Restoring` word that an event or a second fault meets is always one of these. It
//! still names where the bytes are, and the object stays until the page is home:
//!
//! - another fault on the page waits for the same load: filling a page wakes all who wait for it;
//! - munmap, madvise and mremap make the load *void*: the word goes on without it, the object is
//!   freed or named by a word elsewhere, and what the loader brings is dropped. Whoever waits at
//!   the old address is woken to look again;
//! - a child that is forked meanwhile misses the page as it misses any other that is not at home.
//!
//! A load that is void may read an object that was freed under it. That its result has no meaning
//! does not matter, since nobody looks at it.

use super::{unreadable, Pager, Served, Source};
use crate::loader::PLACES;
use crate::region::Region;
use crate::sys::thread;
use crate::sys::uffd::Failure;
use std::sync::atomic::Ordering;
use terrace_core::state::{PageState, PageWord, PAGE_BYTES};

/// A load that was asked for.
#[derive(Clone, Copy, Debug)]
struct Pending {
    region: &'static Region,
    page: usize,
    /// The `Stored` word that was replaced.
    stored: PageWord,
    start_ns: u64,
    is_void: bool,
}

/// The loads under way, by their places.
#[derive(Debug, Default)]
pub(super) struct PendingLoads([Option<Pending>; PLACES]);

impl PendingLoads {
    fn find(&self, region: &Region, page: usize) -> Option<usize> {
        self.0.iter().position(|p| {
            p.is_some_and(|p| std::ptr::eq(p.region, region) && p.page == page && !p.is_void)
        })
    }
}

impl Pager {
    /// Has a page fetched whose medium is slow.
    pub(super) fn ask(&mut self, region: &'static Region, i: usize, w: PageWord) -> Served {
        let Some(place) = self.pending.0.iter().position(Option::is_none) else {
            // More threads wait than there are places: one by one, then.
            return self.restore(region, i, w);
        };
        let Some(restoring) = w.begin_restore() else { return Served::Again };
        if !region.replace(i, w, restoring) {
            return Served::Again;
        }
        let start_ns = thread::now_ns();
        self.pending.0[place] =
            Some(Pending { region, page: i, stored: w, start_ns, is_void: false });
        self.rt.loads.ask(place, w);
        Served::Later
    }

    /// Whether page `i` is on its way.
    pub(super) fn is_pending(&self, region: &Region, i: usize) -> bool {
        self.pending.find(region, i).is_some()
    }

    /// The word by which the bytes of a page are found: for one on its way, the one it had.
    pub(super) fn source(&self, region: &Region, i: usize, w: PageWord) -> PageWord {
        if w.state() != PageState::Restoring {
            return w;
        }
        let pending = self.pending.find(region, i).and_then(|n| self.pending.0[n]);
        pending.map_or(w, |p| p.stored)
    }

    /// The word `w` of page `i` was replaced by an event. If the page was on its way, what is
    /// brought will be dropped. Returns the word that now says what is held.
    pub(super) fn let_load_go(&mut self, region: &Region, i: usize, w: PageWord) -> PageWord {
        let source = self.source(region, i, w);
        if w.state() == PageState::Restoring {
            let place = self.pending.find(region, i);
            if let Some(pending) = place.and_then(|n| self.pending.0[n].as_mut()) {
                pending.is_void = true;
            }
        }
        source
    }

    /// A loader is done: the page goes home.
    pub fn loaded(&mut self, place: usize) {
        let rt = self.rt;
        let load = rt.loads.load(place);
        while let Some(Pending { region, page: i, stored, start_ns, is_void }) =
            self.pending.0[place]
        {
            let dst = region.address(i);
            let restoring = region.word(i);
            if is_void {
                self.uffd.wake(dst, PAGE_BYTES as u64);
                break;
            }
            if let Err(why) = load.outcome {
                unreadable(dst, why);
            }
            self.feed_children(region, i);
            match self.uffd.copy_page(dst, &load.page) {
                Ok(()) => {}
                Err(Failure::Present) => self.uffd.wake(dst, PAGE_BYTES as u64),
                // What is handled there may make this load void.
                Err(Failure::Changing) => {
                    self.drain();
                    continue;
                }
                Err(Failure::NotMapped | Failure::Missing | Failure::Gone) => {
                    // As in `not_filled`: the event is on its way, and finds the page stored.
                    region.replace(i, restoring, stored);
                    self.uffd.wake(dst, PAGE_BYTES as u64);
                    break;
                }
                Err(Failure::NoMemory) => {
                    thread::sleep_us(1000);
                    continue;
                }
                Err(_) => {
                    thread::sleep_us(50);
                    continue;
                }
            }
            region.replace(i, restoring, rt.came_back(restoring));
            rt.forget(stored);
            region.faults.fetch_add(1, Ordering::Relaxed);
            self.count_fault(Source::Tier(stored.tier()), thread::now_ns() - start_ns);
            break;
        }
        self.pending.0[place] = None;
    }
}
