//! Loaders fetch pages from media on which a read takes a while, so that the pager need not.
//!
//! The pager is one thread: were it to wait a tenth of a millisecond for a device, every other
//! fault of the program would wait with it. So it marks the page `Restoring`, puts what it asks for
//! in one of a fixed number of places ([`Loads`]) and goes on; a loader reads, deciphers and
//! decodes, and rings (`pager/doorbell.rs`); the pager fills the page in (`pager/loads.rs`).
//!
//! A loader reads the medium and touches nothing else: no word, no page of the application. What
//! became of the page meanwhile is for the pager to know.

use crate::runtime::Runtime;
use crate::sys::thread;
use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
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
}

impl Default for Loads {
    fn default() -> Loads {
        let place = || Load {
            word: PageWord::default(),
            page: Box::new([0; PAGE_BYTES]),
            outcome: Err(LoadError::NoSuchObject),
        };
        Loads {
            places: std::array::from_fn(|_| Mutex::new(place())),
            // Room for all, so that asking never allocates.
            asked: Mutex::new(VecDeque::with_capacity(PLACES)),
            wake: Condvar::new(),
        }
    }
}

impl Loads {
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

    fn next(&self) -> usize {
        let mut asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(place) = asked.pop_front() {
                return place;
            }
            asked = self.wake.wait(asked).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// Starts the loaders if any tier has use for them. `false` if the system refuses.
pub fn start(rt: &'static Runtime) -> bool {
    if !rt.stores.iter().any(|(_, tier)| tier.medium().waits()) {
        return true;
    }
    (0..LOADERS).all(|_| {
        let Ok(decoders) = rt.stores.decoders() else { return false };
        thread::spawn(c"terrace-loader", move || run(rt, decoders))
    })
}

fn run(rt: &'static Runtime, mut decoders: DecoderSet) -> ! {
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
        rt.doorbell.call(move |pager| pager.loaded(place));
    }
}
