//! Trains the dictionaries that tiers of the codecs `zstd-dict` and `lz4-dict` encode with, from
//! pages of the application, on a thread of its own: it takes about half a second of a core, and
//! nobody waits for it. Until there is a dictionary, pages are encoded without.
//!
//! One dictionary serves all tiers of the process, and stays for good, because stored pages name
//! it (`terrace_store::codec::dictionary`). A second is made later if the data has changed enough
//! for it to pay, and then there are no more.

use crate::estimate;
use crate::runtime::Runtime;
use crate::sys::{credentials, thread};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use terrace_store::Page;

/// Pages looked at, and how many of them must be found for an attempt.
const SAMPLE_PAGES: usize = 256;
const SAMPLES_MIN: usize = 96;
/// Regions from which on a dictionary can pay: training leaves 4 MiB on the runtime's heap, which
/// keeps what it has, and these are 256 MiB.
const REGIONS_MIN: usize = 128;
/// Attempts in the life of a process, and the windows after the first until the second; each
/// further one takes twice as long to come.
const ATTEMPTS_MAX: u32 = 4;
const AGAIN_WINDOWS: u32 = 32;

/// How the agent tells the trainer that a window has closed.
#[derive(Debug, Default)]
pub struct Bell {
    rung: Mutex<bool>,
    wake: Condvar,
}

impl Bell {
    /// Wakes the trainer. It decides whether there is anything to do.
    pub fn ring(&self) {
        *self.rung.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.wake.notify_all();
    }

    /// Has the trainer look around while it waits.
    pub fn wake_all(&self) {
        let _rung = self.rung.lock().unwrap_or_else(PoisonError::into_inner);
        self.wake.notify_all();
    }

    fn wait(&self) {
        let mut rung = self.rung.lock().unwrap_or_else(PoisonError::into_inner);
        while !*rung {
            credentials::follow();
            rung = self.wake.wait(rung).unwrap_or_else(PoisonError::into_inner);
        }
        *rung = false;
    }
}

/// Starts the trainer if some tier wants dictionaries. Without it (the system may refuse a thread)
/// such tiers work as if no dictionary had paid.
pub fn start(rt: &'static Runtime) -> Option<Arc<Bell>> {
    if !rt.stores.config.tiers.iter().any(|t| t.codec.uses_dictionary()) {
        return None;
    }
    let bell = Arc::new(Bell::default());
    let ours = bell.clone();
    thread::spawn(c"terrace-trainer", move || run(rt, &ours)).then_some(bell)
}

fn run(rt: &'static Runtime, bell: &Bell) {
    thread::take_short_turns(5);
    let (mut attempts, mut due) = (0, 0);
    loop {
        bell.wait();
        let window = rt.window.load(Ordering::Relaxed);
        if rt.table.all().into_iter().filter(|r| r.is_followed()).count() < REGIONS_MIN {
            continue;
        }
        if attempts == ATTEMPTS_MAX || window < due || rt.stores.dictionaries.is_full() {
            continue;
        }
        let mut pages: Vec<Box<Page>> = Vec::new();
        estimate::each_page(rt, SAMPLE_PAGES, |page| pages.push(Box::new(*page)));
        if pages.len() < SAMPLES_MIN {
            continue;
        }
        let pages: Vec<&Page> = pages.iter().map(|p| &**p).collect();
        rt.stores.dictionaries.improve(&rt.stores.codecs(), &pages);
        due = window.saturating_add(AGAIN_WINDOWS << attempts);
        attempts += 1;
    }
}
