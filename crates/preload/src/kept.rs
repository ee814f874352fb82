//! Pages that must stay home because the kernel uses them where it serves no fault.
//!
//! While a thread ends, the kernel writes to the program's memory on its own account: it clears the
//! word that joiners wait for (`CLONE_CHILD_CLEARTID`), and walks the list of robust mutexes that
//! the thread holds, to mark them as left by their owner. At that moment it asks no userfaultfd: a
//! page that is not home is an error to it, which it ignores, and those who wait do so for ever. An
//! exec does the same when the pager is gone already. A futex with priority inheritance it writes
//! with nobody to wait for a fault (`fixup_user_fault`): the call fails with EFAULT, at which glibc
//! ends the program. So these pages are never taken out:
//!
//! - the descriptor of every thread (with the word and the head of the list): those there are,
//!   before anything is moved ([`keep_threads`]); new ones when they are made;
//! - the page of every mutex that is robust or inherits priority, when it is made;
//! - the word that is given to `clone`.
//!
//! The mark is in the page's word (`PageWord::kept`), so that it goes where `mremap` takes the page
//! and ends with the mapping.

use crate::forks;
use crate::offspring;
use crate::region::page_index;
use crate::runtime::Runtime;
use crate::sys::stack::WORK;
use crate::sys::{memory, proc, thread};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use terrace_core::state::PAGE_BYTES;

/// What a descriptor has before and from its list head on, bytes: the word to be cleared is just
/// before it in glibc, the head is three words.
const BEFORE_HEAD: u64 = 16;
const HEAD_BYTES: u64 = 24;
/// Bytes of a `pthread_mutex_t` that a list may name.
const MUTEX_BYTES: u64 = 40;

/// What is to be kept by a runtime that comes later, here or in a child, and how much.
const EARLY_MAX: usize = 4096;
static EARLY: [AtomicU64; EARLY_MAX] = [const { AtomicU64::new(0) }; EARLY_MAX];
static EARLY_LEN: AtomicUsize = AtomicUsize::new(0);

/// Who asks for a page to be kept.
#[derive(Clone, Copy, PartialEq)]
enum By {
    /// A thread of ours: what it knows of may be gone.
    Us,
    /// A thread of the program, whose memory it is. It may have laid a seccomp filter, which may
    /// know none of our calls; then the thread makes none.
    Program,
}

/// Keeps the pages of a range home from now on. Not from the pager thread.
fn keep(rt: &Runtime, start: u64, len: u64, by: By) {
    thread::keeping_errno(|| WORK.run(|| keep_here(rt, start, len, by)));
}

fn keep_here(rt: &Runtime, start: u64, len: u64, by: By) {
    let is_silent = by == By::Program && offspring::has_filter();
    let mut page = start / PAGE_BYTES as u64 * PAGE_BYTES as u64;
    while page < start + len {
        if let Some(region) = rt.table.get_or_create(page) {
            let i = page_index(page);
            for round in 0.. {
                if !is_silent {
                    forks::strike_in_round(rt, region, round);
                }
                let w = region.word(i);
                match w.kept() {
                    Some(kept) if kept == w || region.replace(i, w, kept) => break,
                    Some(_) => {}
                    // In a tier, or on its way: a read brings it home. Nothing to read: nothing
                    // to keep.
                    None if is_silent => memory::touch_of_program(page),
                    None if !proc::read_application_page(page, &mut [0; PAGE_BYTES]) => break,
                    None => {}
                }
            }
        }
        page += PAGE_BYTES as u64;
    }
}

/// Keeps the descriptors of all threads that are in memory which is followed. After the regions of
/// a plan were registered and before one of them is moved, or a page of it is taken as a sample: a
/// thread that is made later, on memory that is followed then, keeps its own.
pub fn keep_threads(rt: &Runtime) {
    thread::robust_heads(|head| {
        if rt.table.get(head).is_some_and(|region| region.is_followed()) {
            keep(rt, head - BEFORE_HEAD, BEFORE_HEAD + HEAD_BYTES, By::Us);
        }
    });
}

/// A mutex was made that is robust or inherits priority. Kept also where nothing is followed yet.
pub fn mutex_made(at: u64) {
    // Remembered in any case: forked children have the mutex, and may get a runtime later.
    let n = EARLY_LEN.fetch_add(1, Ordering::SeqCst);
    if let Some(place) = EARLY.get(n) {
        place.store(at, Ordering::SeqCst);
    }
    // First that, then a look for the runtime, which may be coming up.
    if let Some(rt) = forks::runtime() {
        keep(rt, at, MUTEX_BYTES, By::Program);
    }
}

/// A thread was made, with its descriptor at `at`. What is not followed is looked at before it is
/// moved ([`keep_threads`]).
pub fn thread_made(at: u64) {
    let Some(rt) = forks::runtime() else { return };
    let head = at + thread::robust_head_offset();
    if rt.table.get(head).is_some_and(|region| region.is_followed()) {
        keep(rt, head - BEFORE_HEAD, BEFORE_HEAD + HEAD_BYTES, By::Program);
    }
}

/// The kernel was given a word to clear.
pub fn word_given(at: u64) {
    if let Some(rt) = forks::runtime() {
        keep(rt, at, 4, By::Program);
    }
}

/// Keeps what was to be kept before there was a runtime. `false` if it was too much to remember.
pub fn keep_early(rt: &Runtime) -> bool {
    let count = EARLY_LEN.load(Ordering::SeqCst);
    for place in &EARLY[..count.min(EARLY_MAX)] {
        // One that is being noted just now sees the runtime by itself.
        match place.load(Ordering::SeqCst) {
            0 => {}
            at => keep(rt, at, MUTEX_BYTES, By::Us),
        }
    }
    count <= EARLY_MAX
}
