//! `libterrace.so`: the runtime that lives inside the application.
//!
//! Loaded with `LD_PRELOAD` by `terrace run`. In the order in which a page meets them:
//!
//! - [`tracker`] takes samples of every region to see what is in use;
//! - [`agent`] reports a window to the planner and receives a plan;
//! - [`queue`] holds the plan, [`mover`] carries it out, with [`stores`] for the tiers;
//! - [`pager`] serves the fault when the page is wanted back;
//! - [`stats`] counts.
//!
//! [`promoter`] brings whole regions home, [`forks`] is what happens around `fork`.
//! [`region`] is the page table all of them share, [`runtime`] holds the whole together,
//! [`sys`] and [`interpose`] are the door to Linux, and the only `unsafe`.
#![cfg_attr(test, allow(dead_code))]

pub mod agent;
pub mod copies;
pub mod crash;
pub mod estimate;
pub mod forks;
pub mod hurry;
pub mod interpose;
pub mod kept;
pub mod lazily;
pub mod link;
pub mod loader;
pub mod locked;
pub mod mover;
pub mod offspring;
pub mod pager;
mod probe;
pub mod promoter;
pub mod queue;
pub mod region;
pub mod runtime;
pub mod samples;
pub mod shared;
mod shrinkage;
mod silence;
pub mod staging;
pub mod standstill;
pub mod stats;
pub mod stores;
pub mod sys;
pub mod torture;
pub mod tracker;
pub mod training;
pub mod watch;

#[cfg(not(test))]
#[global_allocator]
static HEAP: sys::heap::OwnHeap = sys::heap::OwnHeap;

/// Where the planner listens. Set by `terrace run`, inherited by what the program starts.
pub const SOCKET_VARIABLE: &std::ffi::CStr = c"TERRACE_SOCKET";

#[cfg(not(test))]
#[used]
#[link_section = ".init_array"]
static START: extern "C" fn() = start;

/// Runs before the program's `main`. Without the variable the library does nothing at all.
#[cfg(not(test))]
extern "C" fn start() {
    interpose::resolve();
    let Some(path) = sys::proc::environment(SOCKET_VARIABLE) else { return };
    if offspring::is_filtered() {
        return;
    }
    let sanitizer = sys::sanitizers::find();
    // A sanitizer has all of these calls, too.
    let stranger = if sanitizer.is_none() { sys::strangers::find() } else { None };
    if let Some(why) = sanitizer.or(stranger.as_ref().map(|why| why.as_str())) {
        // What the program executes may be many and small: no line for each.
        if !offspring::is_executed_child() {
            link::refuse_without_heap(path, why);
        }
        return;
    }
    sys::thread::find_count();
    sys::thread::find_local_bytes();
    sys::alone::find();
    // Before the program can become another user.
    let owner = sys::socket::effective_user();
    let looks_after_children = offspring::note(path, owner);
    let waits = looks_after_children && offspring::is_executed_child();
    if !waits {
        if let Err(why) = sys::memory::reserve() {
            link::refuse_without_heap(path, why);
            return;
        }
    }
    interpose::install_handlers();
    if sys::proc::environment(crash::VARIABLE).is_some() {
        crash::install();
    }
    if waits {
        sys::alone::decide(false);
        offspring::begin();
    } else {
        // A copy: programs write over their environment.
        let to_agent = path.to_path_buf();
        if sys::thread::spawn(c"terrace-agent", move || agent::run(&to_agent, owner)) {
            agent::await_start_before_main();
            sys::alone::decide(agent::is_up());
        }
    }
    // Behind that thread, for which the program's allocator had to be ready: libc calls handlers
    // in the order of their registration, so that in a child an allocator has made its locks anew
    // before a thread is made there.
    if looks_after_children {
        interpose::install_child_handler();
    }
}
