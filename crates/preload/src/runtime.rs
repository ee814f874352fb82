//! What the threads of the runtime share.

use crate::copies::{Copies, Kept};
use crate::hurry::Hurry;
use crate::loader::Loads;
use crate::pager::doorbell::Doorbell;
use crate::region::{Region, RegionTable};
use crate::samples::SampleSlots;
use crate::stats::Stats;
use crate::stores::Stores;
use crate::sys::inherit::Smaps;
use crate::sys::proc::Pagemap;
use crate::sys::stop::Stopper;
use crate::sys::uffd::Uffd;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU8, AtomicUsize, Ordering};
use terrace_core::state::{PageState, PageWord, PAGE_BYTES};
use terrace_store::pool::Handle;
use terrace_store::{DecoderSet, LoadError, Page};

/// One application's runtime. Made once, never dropped.
#[derive(Debug)]
pub struct Runtime {
    /// The descriptor all of the application's regions are registered with.
    pub uffd: &'static Uffd,
    /// The regions.
    pub table: RegionTable,
    /// The tiers.
    pub stores: Stores,
    /// Counters.
    pub stats: Stats,
    /// As much as a region has, unreadable: to ask the kernel what is registered.
    pub unreadable: u64,
    /// How pages are taken out where the kernel does not move them.
    pub stopper: Option<Stopper>,
    /// Which pages are present.
    pub pagemap: Pagemap,
    /// What children get of each mapping.
    pub smaps: Smaps,
    /// How to reach the pager.
    pub doorbell: Doorbell,
    /// Pages that loaders are to fetch.
    pub loads: Loads,
    /// Where sampled pages wait.
    pub samples: SampleSlots,
    /// What pages that came home were encoded to.
    pub copies: Copies,
    /// Number of the open window.
    pub window: AtomicU32,
    /// Who comes back within less than so many windows is in use; the planner says it with each
    /// window.
    pub soon_windows: AtomicU8,
    /// How many threads want that nothing is moved out (each before a fork that the kernel will
    /// not announce).
    pub paused: AtomicU32,
    /// The program had more than one thread when the last window closed. A hint.
    pub is_threaded: AtomicBool,
    /// The CPU where the pager serves faults, `usize::MAX` before it knows one. A hint.
    pub pager_cpu: AtomicUsize,
    /// Where movers are that a fault waits for.
    pub hurry: Hurry,
}

impl Runtime {
    /// The open window as a page word stamps it.
    pub fn window_stamp(&self) -> u8 {
        self.window.load(Ordering::Relaxed) as u8
    }

    /// The word of a page that is home from a tier, because it was touched itself. On a torture run
    /// it is to go down again as soon as any other.
    pub fn came_back(&self, w: PageWord) -> PageWord {
        match self.stores.config.torture_seed {
            0 => w.came_back(self.window_stamp(), self.soon_windows.load(Ordering::Relaxed)),
            _ => w.home(Some(self.window_stamp())),
        }
    }

    /// Whether pages must stay where they are.
    pub fn is_paused(&self) -> bool {
        self.paused.load(Ordering::Acquire) > 0
    }

    /// Whether forks are announced to us (needs CAP_SYS_PTRACE). If not, everything is brought
    /// home before a fork.
    pub fn sees_forks(&self) -> bool {
        self.uffd.features & crate::sys::uffd::feature::EVENT_FORK != 0
    }

    /// Loads, decodes and checks the page a `Stored` word names.
    pub fn load_page(
        &self,
        w: PageWord,
        decoders: &mut DecoderSet,
        encoded: &mut Page,
        page: &mut Page,
    ) -> Result<(), LoadError> {
        let (tier, _) = self.stores.get(w.tier()).ok_or(LoadError::NoSuchObject)?;
        tier.load_page(decoders, Handle(w.payload()), encoded, page)
    }

    /// Whether the page a `Stored` word names may take so long that others should be served
    /// meanwhile, and there are others.
    pub fn waits(&self, w: PageWord) -> bool {
        w.state() == PageState::Stored
            && self.is_threaded.load(Ordering::Relaxed)
            && self.stores.get(w.tier()).is_some_and(|(tier, _)| tier.medium().waits())
    }

    /// Gives up what a replaced word held in a tier. The word must have been replaced already, so
    /// that nobody else gives it up too.
    pub fn forget(&self, w: PageWord) {
        match w.state() {
            PageState::Stored => {
                if let Some((tier, _)) = self.stores.get(w.tier()) {
                    tier.free(Handle(w.payload()));
                }
            }
            PageState::Same => {
                self.stats.tiers[w.tier().index()].same_pages.fetch_sub(1, Ordering::Relaxed);
            }
            _ => {}
        }
    }

    /// As [`Runtime::forget`], of a page that came home because somebody touched it: it may go down
    /// again soon, and as it was.
    pub fn came_home(&self, page: u64, w: PageWord) {
        let kept = Kept { tier: w.tier(), handle: Handle(w.payload()) };
        // To compare with what is on a device, or in a block, takes as long as to encode.
        let is_cheap = || self.stores.get(kept.tier).is_some_and(|(t, _)| t.moves_are_copies());
        if w.state() != PageState::Stored || !self.copies.is_wanted() || !is_cheap() {
            self.forget(w);
        } else if let Some(out) = self.copies.keep(page, kept, self.window_stamp()) {
            self.give_up(out);
        }
    }

    /// Gives up a copy. The caller has taken it out of its place.
    pub fn give_up(&self, kept: Kept) {
        if let Some((tier, _)) = self.stores.get(kept.tier) {
            tier.free(kept.handle);
        }
    }

    /// Gives up all copies and keeps none for a while.
    pub fn give_up_copies(&self) {
        self.copies.want(false, 0);
        self.copies.rest();
        self.expire_copies();
    }

    /// Gives up the copies of pages that should have gone down again by now.
    pub fn expire_copies(&self) {
        let cooling = self.stores.config.cooling_windows;
        self.copies.expire(self.window_stamp(), cooling, |kept| self.give_up(kept));
    }

    /// Where a page is that was moved out of the application and not stored yet.
    pub fn slot_address(&self, region: &Region, i: usize, w: PageWord) -> u64 {
        if w.state() == PageState::Sampled {
            self.samples.address(w.payload())
        } else {
            region.slot.load(Ordering::Acquire) + (i * PAGE_BYTES) as u64
        }
    }
}
