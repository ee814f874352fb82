//! Trains the dictionaries that tiers of the codecs `zstd-dict` and `lz4-dict` encode with, from
//! pages of the application, on a thread of its own: it takes about half a second of a core, and
//! nobody waits for it. Until there is a dictionary, pages are encoded without.
//!
//! One dictionary serves all tiers of the process, and stays for good, because stored pages name
//! it (`terrace_store::codec::dictionary`). A second is made later if the data has changed enough
//! for it to pay, and then there are no more.

use crate::runtime::Runtime;
use crate::sys::{proc, thread};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use terrace_core::state::{PageState, PAGE_BYTES, REGION_PAGES};
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

    fn wait(&self) {
        let mut rung = self.rung.lock().unwrap_or_else(PoisonError::into_inner);
        while !*rung {
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
        let pages = sample_pages(rt, SAMPLE_PAGES);
        if pages.len() < SAMPLES_MIN {
            continue;
        }
        let pages: Vec<&Page> = pages.iter().map(|p| &**p).collect();
        rt.stores.dictionaries.improve(&rt.stores.codecs(), &pages);
        due = window.saturating_add(AGAIN_WINDOWS << attempts);
        attempts += 1;
    }
}

/// Copies of about `count` pages that are at home, spread over all regions; fewer if there are not
/// so many.
pub fn sample_pages(rt: &Runtime, count: usize) -> Vec<Box<Page>> {
    let regions: Vec<_> = rt.table.all().into_iter().filter(|r| r.is_followed()).collect();
    let mut pages = Vec::new();
    for k in 0..count {
        let Some(r) = regions.get(k * regions.len() / count) else { break };
        let i = (k * 197) % REGION_PAGES;
        let present = rt.pagemap.present(r.base).unwrap_or([0; 8]);
        let home = r.word(i).state() == PageState::Home && r.is_registered(i);
        if home && present[i / 64] >> (i % 64) & 1 == 1 {
            let mut page = Box::new([0; PAGE_BYTES]);
            if proc::read_application_page(r.address(i), &mut page) {
                pages.push(page);
            }
        }
    }
    pages
}

/// Copies of at most `count` runs of so many neighbouring pages that are all at home.
pub fn sample_runs(rt: &Runtime, count: usize, pages: usize) -> Vec<Vec<u8>> {
    let regions: Vec<_> = rt.table.all().into_iter().filter(|r| r.is_followed()).collect();
    let (mut runs, mut page) = (Vec::new(), Box::new([0; PAGE_BYTES]));
    for k in 0..count {
        let Some(r) = regions.get(k * regions.len() / count) else { break };
        let first = (k * 197) % (REGION_PAGES - pages + 1);
        let present = rt.pagemap.present(r.base).unwrap_or([0; 8]);
        let mut run = Vec::with_capacity(pages * PAGE_BYTES);
        for i in first..first + pages {
            let home = r.word(i).state() == PageState::Home && r.is_registered(i);
            let is_there = present[i / 64] >> (i % 64) & 1 == 1;
            if !home || !is_there || !proc::read_application_page(r.address(i), &mut page) {
                break;
            }
            run.extend_from_slice(&page[..]);
        }
        if run.len() == pages * PAGE_BYTES {
            runs.push(run);
        }
    }
    runs
}
