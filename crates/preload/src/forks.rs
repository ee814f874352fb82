//! What happens around `fork` and at the end of a process.
//!
//! *With fork events* (CAP_SYS_PTRACE) the pager gives a child what it misses (`pager/child.rs`).
//! The child must not run ahead of that: were its parent killed meanwhile, its missing pages would
//! read as zeros. So before `fork` returns in the child, it reads the **sentinel**, a page that is
//! registered and never filled in the parent, and that the pager fills in the child last. The read
//! blocks until all is there. If the pager goes away the kernel fills in zeros, and then the child
//! knows that it is not whole and ends.
//!
//! *Without fork events* the child's registrations vanish silently, so before such a fork every
//! page is brought home, and until it is over none is taken.
//!
//! A parent that ends first waits for its children to be whole.

use crate::agent;
use crate::interpose;
use crate::promoter::Promoter;
use crate::runtime::Runtime;
use crate::stats;
use crate::sys::{memory, proc, thread};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use terrace_core::state::{PageState, PAGE_BYTES, REGION_PAGES};

/// Address of the sentinel page, 0 if there is none.
static SENTINEL: AtomicU64 = AtomicU64::new(0);
/// Set in a forked child: it has no runtime.
static CHILD: AtomicBool = AtomicBool::new(false);
/// What the sentinel page is filled with, in a child that is whole and, should anything touch it
/// there, in the parent.
pub static WHOLE: [u8; PAGE_BYTES] = [1; PAGE_BYTES];

/// Makes the sentinel, once the pager serves.
pub fn set_up(rt: &Runtime) {
    if !rt.sees_forks() {
        return;
    }
    let Some(page) = memory::map_copied(PAGE_BYTES as u64) else { return };
    if rt.uffd.register_missing(page, PAGE_BYTES as u64).is_ok() {
        SENTINEL.store(page, Ordering::Release);
    }
}

/// Whether `page` is the sentinel.
#[inline]
pub fn is_sentinel(page: u64) -> bool {
    page == SENTINEL.load(Ordering::Relaxed)
}

/// The sentinel's address, if there is one.
pub fn sentinel() -> Option<u64> {
    Some(SENTINEL.load(Ordering::Relaxed)).filter(|&page| page != 0)
}

/// The runtime of this process; a forked child has none.
pub fn runtime() -> Option<&'static Runtime> {
    agent::RUNTIME.get().copied().filter(|_| !CHILD.load(Ordering::Relaxed))
}

/// The runtime whose forks the kernel does not announce, if that is ours.
fn unannounced() -> Option<&'static Runtime> {
    runtime().filter(|rt| !rt.sees_forks())
}

/// In the parent, before a fork.
pub extern "C" fn prepare() {
    if let Some(rt) = unannounced() {
        rt.paused.fetch_add(1, Ordering::AcqRel);
        bring_all_home(rt);
    }
}

/// In the parent, after a fork.
pub extern "C" fn in_parent() {
    if let Some(rt) = unannounced() {
        rt.paused.fetch_sub(1, Ordering::AcqRel);
    }
}

/// In the child, before `fork` returns there: lets go of the parent's descriptors - it must hold
/// neither the planner's connection open nor the parent's registrations - and waits until it is
/// whole.
pub extern "C" fn in_child() {
    CHILD.store(true, Ordering::Relaxed);
    interpose::close_ours();
    let page = SENTINEL.swap(0, Ordering::Relaxed);
    if page != 0 && memory::read_byte_of_copied(page) == 0 {
        proc::die(
            "terrace: this process was forked while memory of its parent was in compressed tiers, \
             and the parent ended before all of it was brought over; ending it rather than \
             letting it read wrong bytes",
        );
    }
}

/// Before the process ends: children that still miss pages get them first.
pub extern "C" fn at_exit() {
    let Some(rt) = agent::RUNTIME.get() else { return };
    if CHILD.load(Ordering::Relaxed) || !rt.sees_forks() {
        return;
    }
    // The pager counts a child when it reads the fork's event; a call behind that event says that
    // it has. Not worth a hang: if the bell cannot be had, the children look after themselves.
    if rt.doorbell.try_call(|_| ()).is_some() {
        while stats::get(&rt.stats.children_pending) > 0 {
            thread::sleep_us(500);
        }
    }
}

/// Brings every page home, on the calling thread. Nothing may be moved out meanwhile
/// (`Runtime::paused`).
pub fn bring_all_home(rt: &'static Runtime) {
    agent::drop_plans();
    let Some(mut promoter) = Promoter::new(rt) else {
        proc::die(
            "terrace: no memory to bring all pages home (fork or mlockall); ending the program",
        );
    };
    loop {
        let carried = rt.table.carried.load(Ordering::Acquire);
        // Whatever the pager began before it could see the pause - samples, a move out - or before
        // we looked is over once it answers.
        rt.doorbell.call(|_| ());
        for r in rt.table.all() {
            while !(0..REGION_PAGES).all(|i| r.word(i).state() == PageState::Home) {
                rt.doorbell.call(move |pager| pager.return_samples(r));
                promoter.promote(r);
            }
        }
        // Another thread's mremap may have taken pages to a region that was done with.
        if rt.table.carried.load(Ordering::Acquire) == carried {
            return;
        }
    }
}
