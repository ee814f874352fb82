//! Children that live long and hold much get a runtime of their own.
//!
//! A child of `fork` has no runtime, and most need none: they execute something, or end soon, or
//! write a snapshot of memory that is all their parent's. What a program executes in a child is
//! mostly short and small, too. Workers and servers are another matter. So a child gets one thread,
//! which sleeps, looks now and then what the child has that it does not share with its parent, and
//! starts a runtime where that is worth one. It finds the planner as every process does, and is an
//! application of its own there. The program that `terrace run` started, and what that executes in
//! its own place, has its runtime from the beginning.
//!
//! Everything that the runtime's modules remember in a forked child is its parent's. They forget it
//! ([`in_child`]) before the child has another thread; from then on it looks as if there never had
//! been a runtime. Of a program that was just executed that is true.
//!
//! What is not done: children of `_Fork`, `clone` and `syscall`, of which libc has not made
//! threads possible again, stay as they are; so do those of a process whose runtime has retired or
//! that has laid a seccomp filter.

use crate::agent;
use crate::crash;
use crate::forks;
use crate::link;
use crate::locked;
use crate::sys::sync::{renew, OnlyThread};
use crate::sys::{crash as futex, credentials, media, memory, proc, thread};
use std::ffi::CStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU8, AtomicUsize, Ordering};
use terrace_store::codec::deflate;

/// Set to `never` by `terrace run --no-forked-children`, to `soon` on a torture run.
const VARIABLE: &CStr = c"TERRACE_FORKED_CHILDREN";
/// The id of `terrace run`: who has another parent was executed by something of the program's.
const STARTER_VARIABLE: &CStr = c"TERRACE_STARTER";
/// How many seccomp filters lie on `terrace run`.
const FILTERS_VARIABLE: &CStr = c"TERRACE_FILTERS";

/// What is worth a runtime, bytes. It takes about 5 MB, and threads.
const WORTH_BYTES: u64 = 64 << 20;
/// The same on a torture run.
const WORTH_BYTES_TORTURE: u64 = 1 << 20;
/// First look, ms; each later one twice as late as the one before, but not more than the last.
const FIRST_LOOK_MS: u64 = 1000;
const FIRST_LOOK_MS_TORTURE: u64 = 100;
const LAST_LOOK_MS: u64 = 60_000;

/// Where the planner listens: kept here, because a child does not get our heap.
const PATH_MAX: usize = 108;
static PATH: [AtomicU8; PATH_MAX] = [const { AtomicU8::new(0) }; PATH_MAX];
static PATH_LEN: AtomicUsize = AtomicUsize::new(0);
static OWNER: AtomicU32 = AtomicU32::new(0);
static IS_TORTURED: AtomicBool = AtomicBool::new(false);

/// The program has laid a seccomp filter, perhaps on one thread only: a child of that thread may
/// not be able to do what the runtime would have it do, and could be killed for it.
static HAS_FILTER: AtomicBool = AtomicBool::new(false);

/// What the waiting thread does.
static STEP: AtomicU32 = AtomicU32::new(NOBODY);
const NOBODY: u32 = 0;
const WAITING: u32 = 1;
const STARTED: u32 = 2;
const CANCELLED: u32 = 3;
/// Its id, and that of its process: one that is made past libc's `fork` has these words and not
/// the thread.
static WAITER: AtomicU32 = AtomicU32::new(0);
static WAITS_IN: AtomicU32 = AtomicU32::new(0);

/// Notes where the planner listens and what is wished for children. `false` if they are to be left
/// alone. Before the program's `main`; allocates nothing.
pub fn note(path: &Path, owner: u32) -> bool {
    let bytes = path.as_os_str().as_bytes();
    let is_wish = |wish: &str| proc::environment(VARIABLE).is_some_and(|v| v == Path::new(wish));
    if is_wish("never") || bytes.len() > PATH_MAX {
        return false;
    }
    for (place, &byte) in PATH.iter().zip(bytes) {
        place.store(byte, Ordering::Relaxed);
    }
    OWNER.store(owner, Ordering::Relaxed);
    IS_TORTURED.store(is_wish("soon"), Ordering::Relaxed);
    PATH_LEN.store(bytes.len(), Ordering::Release);
    true
}

/// Whether this program was executed by something that runs under Terrace, in a process of its own.
pub fn is_executed_child() -> bool {
    let starter = proc::environment(STARTER_VARIABLE).and_then(Path::to_str);
    starter.and_then(|pid| pid.parse().ok()).is_some_and(|pid: u32| pid != proc::parent())
}

/// Whether more seccomp filters lie on this program than on `terrace run`. Somebody in between has
/// laid them, for this program and not for what a runtime does in it, and may end it for that.
/// Before `main`.
pub fn is_filtered() -> bool {
    let told = proc::environment(FILTERS_VARIABLE).and_then(Path::to_str);
    let those: Option<u32> = told.and_then(|count| count.parse().ok());
    those.is_some_and(|those| proc::seccomp_filters().is_some_and(|these| these > those))
}

/// Waits, in a program that was just executed, whether it will be worth a runtime. Before `main`.
pub fn begin() {
    WAITS_IN.store(std::process::id(), Ordering::Relaxed);
    STEP.store(WAITING, Ordering::Release);
    // A process that may not have another thread goes without.
    if !thread::spawn_plain(c"terrace-waiter", wait) {
        STEP.store(NOBODY, Ordering::Release);
    }
}

/// In a child of libc's `fork`, after the other handlers of ours: it is whole.
pub fn in_child(only: &OnlyThread) {
    let is_barred = HAS_FILTER.load(Ordering::Acquire) || forks::has_retired();
    if PATH_LEN.load(Ordering::Acquire) == 0 || is_barred {
        return;
    }
    forget(only);
    WAITER.store(0, Ordering::Relaxed);
    begin();
}

/// In a forked child: all that the modules remember is about its parent.
fn forget(only: &OnlyThread) {
    agent::forget(only);
    forks::forget(only);
    locked::forget(only);
    link::forget(only);
    crash::forget(only);
    media::forget(only);
    renew(only, &deflate::CONSTRUCTION, ());
    thread::forget(only);
    credentials::forget(only);
    memory::forget(only);
}

/// The program lays a seccomp filter, on all of its threads or on the calling one: children that
/// are forked from now on stay as they are, and so does a process that waits for its runtime.
pub fn note_filter(is_for_all: bool) {
    // A child of vfork lays it on itself. (Who has laid one may not be able to ask who it is.)
    if !has_filter() && forks::is_borrower() {
        return;
    }
    HAS_FILTER.store(true, Ordering::Release);
    cancel();
    forks::before_filter(is_for_all);
}

/// Whether it has laid one: what a thread of the program's calls for us may end it.
pub fn has_filter() -> bool {
    HAS_FILTER.load(Ordering::Acquire)
}

/// Ends the wait for good, and the thread with it. Before the process does what is only allowed
/// with one thread, or lays a filter on all. `false` if a runtime was begun already.
pub fn cancel() -> bool {
    thread::keeping_errno(cancel_here)
}

fn cancel_here() -> bool {
    match STEP.compare_exchange(WAITING, CANCELLED, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => {}
        Err(step) => return step != STARTED,
    }
    if WAITS_IN.load(Ordering::Relaxed) != std::process::id() {
        return true;
    }
    futex::wake(&STEP);
    let mut tid = WAITER.load(Ordering::Acquire);
    while tid == 0 || thread::is_alive(tid) {
        thread::sleep_us(100);
        tid = WAITER.load(Ordering::Acquire);
    }
    true
}

fn wait() {
    WAITER.store(thread::gettid(), Ordering::Release);
    let is_tortured = IS_TORTURED.load(Ordering::Relaxed);
    let (mut pause_ms, worth) = match is_tortured {
        true => (FIRST_LOOK_MS_TORTURE, WORTH_BYTES_TORTURE),
        false => (FIRST_LOOK_MS, WORTH_BYTES),
    };
    loop {
        let until_ns = thread::now_ns() + pause_ms * 1_000_000;
        loop {
            if STEP.load(Ordering::Acquire) != WAITING {
                return;
            }
            match until_ns.saturating_sub(thread::now_ns()).div_ceil(1_000_000) {
                0 => break,
                left_ms => futex::wait_while(&STEP, WAITING, left_ms),
            }
        }
        if proc::own_anonymous_bytes(worth) >= worth {
            break;
        }
        pause_ms = (pause_ms * 2).min(LAST_LOOK_MS);
    }
    let begun = STEP.compare_exchange(WAITING, STARTED, Ordering::AcqRel, Ordering::Acquire);
    if begun.is_err() {
        return;
    }
    let mut path = [0; PATH_MAX];
    for (byte, place) in path.iter_mut().zip(&PATH) {
        *byte = place.load(Ordering::Relaxed);
    }
    let path = Path::new(std::ffi::OsStr::from_bytes(&path[..PATH_LEN.load(Ordering::Acquire)]));
    if let Err(why) = memory::reserve() {
        link::refuse_without_heap(path, why);
        return;
    }
    thread::rename(c"terrace-agent");
    agent::run(&PathBuf::from(path), OWNER.load(Ordering::Relaxed));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::in_a_child;
    use std::sync::PoisonError;
    use terrace_store::codec::deflate::{Decoder, CONSTRUCTION};

    /// A child that is made past libc's `fork`, before its parent's waiter has run, has the words
    /// that say that it waits, and no such thread.
    #[test]
    fn nobody_waits_for_the_waiter_of_another_process() {
        let parent = std::process::id();
        let is_cancelled = in_a_child(move |_| {
            WAITS_IN.store(parent, Ordering::Relaxed);
            WAITER.store(0, Ordering::Relaxed);
            STEP.store(WAITING, Ordering::Relaxed);
            cancel()
        });
        assert!(is_cancelled);
    }

    /// The parent's agent makes contexts for an estimate now and then, and its threads fork
    /// whenever they like.
    #[test]
    fn a_child_makes_contexts_whatever_its_parent_was_making() {
        let making = CONSTRUCTION.lock().unwrap_or_else(PoisonError::into_inner);
        let made = in_a_child(|only| {
            forget(only);
            Decoder::new().is_some()
        });
        drop(making);
        assert!(made, "it waits for a thread of its parent's");
    }
}
