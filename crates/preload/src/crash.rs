//! Whole core dumps, where they are asked for (`terrace run --core-dumps`).
//!
//! The kernel writes a dump without asking a userfaultfd: pages in tiers are missing from it, and a
//! debugger shows zeros for them. So before the program dies everything is brought home. Not by the
//! thread that crashes, which may hold any lock: a thread waits for that and nothing else. The one
//! that crashes waits for it, but not for ever: what has crashed must end.

use crate::forks;
use crate::runtime::Runtime;
use crate::sys::sync::OnlyThread;
use crate::sys::{crash, credentials, thread};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// Set by `terrace run --core-dumps`.
pub const VARIABLE: &std::ffi::CStr = c"TERRACE_CORE_DUMPS";

/// How long a crash may be held up.
const LIMIT_NS: u64 = 30_000_000_000;
/// How often those who wait look, so that no wake-up can be missed.
const LOOK_MS: u64 = 500;

/// Dumps are to be whole.
static IS_WANTED: AtomicBool = AtomicBool::new(false);
/// How far the rescue is.
static STEP: AtomicU32 = AtomicU32::new(NO_RESCUER);
const NO_RESCUER: u32 = 0;
const READY: u32 = 1;
const ASKED: u32 = 2;
const DONE: u32 = 3;

/// Before the program's `main`: so that the handlers are there before the program's own, which
/// replace them.
pub fn install() {
    IS_WANTED.store(true, Ordering::Relaxed);
    crash::install(before_dump);
}

/// Starts the thread that brings everything home, if dumps are to be whole.
pub fn start(rt: &'static Runtime) {
    if !IS_WANTED.load(Ordering::Relaxed) {
        return;
    }
    let is_up = thread::spawn(c"terrace-rescue", move || {
        while STEP.load(Ordering::Acquire) != ASKED {
            crash::wait_while(&STEP, READY, u64::from(u32::MAX));
            credentials::follow();
        }
        // For good: there is no way back from here.
        rt.paused.fetch_add(1, Ordering::AcqRel);
        forks::bring_all_home(rt);
        STEP.store(DONE, Ordering::Release);
        crash::wake(&STEP);
    });
    if is_up {
        STEP.store(READY, Ordering::Release);
    }
}

/// Has that thread look around.
pub fn wake() {
    crash::wake(&STEP);
}

/// In a forked child: the thread is its parent's.
pub fn forget(_only: &OnlyThread) {
    STEP.store(NO_RESCUER, Ordering::Relaxed);
}

/// In a signal handler, on any thread of the program.
extern "C" fn before_dump() {
    // A forked child has no runtime, and nothing in tiers. A thread of ours that ends the program
    // (`proc::die`) is one that would be needed. A child that borrows this memory dies alone.
    if forks::runtime().is_none() || thread::is_own() || forks::is_borrower() {
        return;
    }
    let asked = STEP.compare_exchange(READY, ASKED, Ordering::AcqRel, Ordering::Acquire);
    match asked {
        Ok(_) => crash::wake(&STEP),
        // Several threads may crash at once: all wait.
        Err(ASKED) => {}
        Err(_) => return,
    }
    let start_ns = thread::now_ns();
    while STEP.load(Ordering::Acquire) == ASKED && thread::now_ns() - start_ns < LIMIT_NS {
        crash::wait_while(&STEP, ASKED, LOOK_MS);
    }
}
