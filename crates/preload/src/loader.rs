//! Loaders fetch pages from media on which a read takes a while, so that the pager need not.
//!
//! The pager is one thread: were it to wait a tenth of a millisecond for a device, every other
//! fault of the program would wait with it. So it marks the page `Restoring`, puts what it asks for
//! in one of a fixed number of places ([`Loads`]) and goes on; a loader reads, deciphers and
//! decodes, and rings (`pager/doorbell.rs`); the pager fills the page in (`pager/loads.rs`).
//!
//! What that is worth, on two busy cores and a virtual disk, against reading on the pager, three
//! interleaved runs each: other faults while one thread reads a file tier as fast as it can, p99
//! 109 to 257 us against 277 to 733. What it costs: about 40 us on top of the 130 of a read. So a
//! program of one thread, which has no other faults, is served by the pager itself.
//!
//! A loader reads the medium and touches nothing else: no word, no page of the application. What
//! became of the page meanwhile is for the pager to know.

use crate::pager::doorbell::Doorbell;
use crate::runtime::Runtime;
use crate::stores::Stores;
use crate::sys::sync::{Condvar, Mutex, MutexGuard};
use crate::sys::uffd::Uffd;
use crate::sys::{credentials, thread};
use std::collections::VecDeque;
use std::sync::PoisonError;
use terrace_core::state::{PageWord, PAGE_BYTES};
use terrace_store::{DecoderSet, LoadError, Page};

/// Loads that can be under way. Faults beyond that are served by the pager itself.
pub const PLACES: usize = 32;
/// Loader threads: what a flash device serves at once without each read taking longer.
pub const LOADERS: usize = 4;

/// One load.
#[derive(Debug)]
pub struct Load {
    /// The `Stored` word that names the page.
    pub word: PageWord,
    /// The page, once it is loaded.
    pub page: Box<Page>,
    /// How it went.
    pub outcome: Result<(), LoadError>,
}

/// The places, and those that wait for a loader.
#[derive(Debug)]
pub struct Loads {
    places: [Mutex<Load>; PLACES],
    asked: Mutex<VecDeque<usize>>,
    wake: Condvar,
    /// One for each loader; none if no tier has use for loaders.
    bells: Vec<Doorbell>,
}

impl Loads {
    /// Places and loaders' bells, if any tier has use for them.
    pub fn new(uffd: &'static Uffd, stores: &Stores) -> Option<Loads> {
        let any = stores.iter().any(|(_, tier)| tier.medium().waits());
        let bells = (0..if any { LOADERS } else { 0 }).map(|_| Doorbell::new(uffd));
        let place = || Load {
            word: PageWord::default(),
            page: Box::new([0; PAGE_BYTES]),
            outcome: Err(LoadError::NoSuchObject),
        };
        Some(Loads {
            places: std::array::from_fn(|_| Mutex::new(place())),
            // Room for all, so that asking never allocates.
            asked: Mutex::new(VecDeque::with_capacity(PLACES)),
            wake: Condvar::new(),
            bells: bells.collect::<Option<_>>()?,
        })
    }

    /// The loaders' bells.
    pub fn bells(&self) -> &[Doorbell] {
        &self.bells
    }

    /// Asks for the page that a `Stored` word names, in a place that nobody uses.
    pub fn ask(&self, place: usize, word: PageWord) {
        self.load(place).word = word;
        self.asked.lock().unwrap_or_else(PoisonError::into_inner).push_back(place);
        self.wake.notify_one();
    }

    /// A place. While a load is under way its loader holds it.
    pub fn load(&self, place: usize) -> MutexGuard<'_, Load> {
        self.places[place].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has loaders that wait look around.
    pub fn wake_all(&self) {
        let _asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        self.wake.notify_all();
    }

    fn next(&self) -> usize {
        let mut asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            credentials::follow();
            if let Some(place) = asked.pop_front() {
                return place;
            }
            asked = self.wake.wait(asked).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// Starts the loaders if any tier has use for them. `false` if the system refuses.
pub fn start(rt: &'static Runtime) -> bool {
    rt.loads.bells.iter().all(|bell| {
        let Ok(decoders) = rt.stores.decoders() else { return false };
        thread::spawn(c"terrace-loader", move || run(rt, bell, decoders))
    })
}

fn run(rt: &'static Runtime, bell: &'static Doorbell, mut decoders: DecoderSet) -> ! {
    // A thread of the application waits for each of them, as it does for the pager.
    thread::set_nice(-10);
    let mut encoded: Box<Page> = Box::new([0; PAGE_BYTES]);
    loop {
        let place = rt.loads.next();
        {
            let mut load = rt.loads.load(place);
            let load = &mut *load;
            load.outcome = rt.load_page(load.word, &mut decoders, &mut encoded, &mut load.page);
        }
        bell.call(move |pager| pager.loaded(place));
    }
}
