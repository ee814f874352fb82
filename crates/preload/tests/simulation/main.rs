//! The runtime against a fake kernel, from a seed (docs/simulation.md).
//!
//! The modules of the runtime are compiled here once more, from the same files, over the fake
//! `sys` of this folder. Without arguments: the seeds that a test run has time for.

#![allow(dead_code, unused_imports, unused_macros, missing_docs)]

// `libc` in the runtime's files means this crate: what it defines stands before the real one.
extern crate libc as real_libc;
extern crate self as libc;
pub use real_libc::*;

mod agent;
mod app;
mod checks;
mod interpose;
mod kernel;
mod link;
mod options;
mod pairs;
mod schedule;
mod sys;
mod table;
mod world;

#[path = "../../src/copies.rs"]
mod copies;
#[path = "../../src/forks.rs"]
mod forks;
#[path = "../../src/hurry.rs"]
mod hurry;
#[path = "../../src/loader.rs"]
mod loader;
#[path = "../../src/locked.rs"]
mod locked;
#[path = "../../src/mover.rs"]
mod mover;
#[path = "../../src/pager/mod.rs"]
mod pager;
#[path = "../../src/probe.rs"]
mod probe;
#[path = "../../src/promoter.rs"]
mod promoter;
#[path = "../../src/queue.rs"]
mod queue;
#[path = "../../src/region.rs"]
mod region;
#[path = "../../src/runtime.rs"]
mod runtime;
#[path = "../../src/samples.rs"]
mod samples;
#[path = "../../src/shared.rs"]
mod shared;
#[path = "../../src/shrinkage.rs"]
mod shrinkage;
#[path = "../../src/silence.rs"]
mod silence;
#[path = "../../src/staging.rs"]
mod staging;
#[path = "../../src/standstill.rs"]
mod standstill;
#[path = "../../src/stats.rs"]
mod stats;
#[path = "../../src/stores.rs"]
mod stores;
#[path = "../../src/torture.rs"]
mod torture;
#[path = "../../src/tracker.rs"]
mod tracker;
#[path = "../../src/watch.rs"]
mod watch;

/// Stands for ioctl(2).
///
/// # Safety
/// As for libc's, of which the fake kernel reads and writes the same arguments.
pub unsafe fn ioctl<A: kernel::Argument>(fd: c_int, request: u64, arg: A) -> c_int {
    kernel::control(fd, request, &arg)
}

/// Stands for read(2).
///
/// # Safety
/// As for libc's.
pub unsafe fn read(fd: c_int, out: *mut c_void, bytes: usize) -> ssize_t {
    kernel::read_messages(fd, out.cast(), bytes)
}

/// Stands for fcntl(2).
///
/// # Safety
/// As for libc's.
pub unsafe fn fcntl(fd: c_int, command: c_int, flags: c_int) -> c_int {
    if command == real_libc::F_SETFL {
        kernel::set_nonblocking(fd, flags & real_libc::O_NONBLOCK != 0);
    }
    0
}

/// Stands for syscall(2): the one that makes a userfaultfd.
///
/// # Safety
/// As for libc's.
pub unsafe fn syscall(_number: c_long, _flags: c_int) -> c_long {
    c_long::from(kernel::open_uffd())
}

fn main() {
    std::process::exit(options::run());
}
