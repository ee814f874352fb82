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
//! page is brought home, and until it is over none is taken. A child that was made without libc
//! (a `clone` instruction of the program's own) does not get registered memory at all and ends when
//! it touches it (`pager/heirs.rs`).
//!
//! `_Fork`, `clone` and `syscall` are covered like `fork` (`sys/clones.rs`). A process that is made
//! to share the memory would go on without our threads: the runtime retires before that.
//!
//! A parent that ends first waits for its children to be whole.

use crate::agent;
use crate::interpose;
use crate::link;
use crate::promoter::Promoter;
use crate::region::{for_overlap, Region};
use crate::runtime::Runtime;
use crate::stats;
use crate::sys::stack::WORK;
use crate::sys::sync::{renew, Mutex, OnlyThread};
use crate::sys::{memory, proc, spare, thread};
use std::sync::atomic::{fence, AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::PoisonError;
use terrace_core::state::{PageState, PAGE_BYTES, REGION_PAGES};

/// Address of the sentinel page, 0 if there is none.
static SENTINEL: AtomicU64 = AtomicU64::new(0);
/// Id of the process that the runtime's threads are in.
static PID: AtomicU32 = AtomicU32::new(0);
/// Movement is stopped, and everything at home, for forks that the kernel does not announce.
static IS_STOPPED: Mutex<bool> = Mutex::new(false);
/// The runtime ends, or has ended, while the program goes on.
static RETIRING: AtomicBool = AtomicBool::new(false);
static RETIRED: AtomicBool = AtomicBool::new(false);
/// Forks that were begun, and those of which the pager knows.
static BEGUN: AtomicU32 = AtomicU32::new(0);
static SEEN: AtomicU32 = AtomicU32::new(0);
/// Forks that were begun and have not returned.
static GOING_ON: AtomicU32 = AtomicU32::new(0);
/// There has been a runtime, here or in a process that this one was forked from.
static HAS_BEEN: AtomicBool = AtomicBool::new(false);
/// What the sentinel page is filled with, in a child that is whole and, should anything touch it
/// there, in the parent.
pub static WHOLE: [u8; PAGE_BYTES] = [1; PAGE_BYTES];

/// Makes the sentinel, once the pager serves.
pub fn set_up(rt: &Runtime) {
    PID.store(std::process::id(), Ordering::Relaxed);
    HAS_BEEN.store(true, Ordering::Relaxed);
    if !rt.sees_forks() {
        return;
    }
    let Some(page) = memory::map_copied(PAGE_BYTES as u64) else { return };
    if rt.uffd.register_missing(page, PAGE_BYTES as u64).is_ok() {
        SENTINEL.store(page, Ordering::Release);
    }
}

/// Whether this is a child that borrows the memory of the process which the runtime is in (vfork).
pub fn is_borrower() -> bool {
    let pid = PID.load(Ordering::Relaxed);
    pid != 0 && pid != std::process::id() && memory::is_original()
}

/// Whether mappings of the program may have come apart because memory was registered.
pub fn may_have_split() -> bool {
    HAS_BEEN.load(Ordering::Relaxed)
}

/// Whether the runtime of this process, or of the one that it was forked from, has retired.
pub fn has_retired() -> bool {
    RETIRING.load(Ordering::Acquire)
}

/// In a forked child, once it is whole: what was noted is about its parent.
pub fn forget(only: &OnlyThread) {
    SENTINEL.store(0, Ordering::Relaxed);
    for number in [&PID, &BEGUN, &SEEN, &GOING_ON] {
        number.store(0, Ordering::Relaxed);
    }
    renew(only, &IS_STOPPED, false);
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

/// The runtime of this process; a forked child has none, nor a process where it has retired.
pub fn runtime() -> Option<&'static Runtime> {
    let is_here = || memory::is_original() && !RETIRED.load(Ordering::Acquire);
    agent::RUNTIME.get().filter(|_| is_here())
}

/// The pager counts a fork whose child it has taken up.
pub fn note_fork() {
    SEEN.fetch_add(1, Ordering::AcqRel);
}

/// The runtime whose forks the kernel does not announce, if that is ours.
fn unannounced() -> Option<&'static Runtime> {
    runtime().filter(|rt| !rt.sees_forks())
}

/// How long a fork waits for others that have begun. A handler of a signal may fork in the middle
/// of one.
const OTHERS_NS: u64 = 1_000_000_000;
/// Between two looks.
const LOOK_US: u64 = 200;

/// Waits until there is a place for the child's descriptor, or nobody who could leave one. Once a
/// fork has begun it is too late: while its event cannot be read, no other child gets its pages.
fn await_place() {
    let start_ns = thread::now_ns();
    while let Some(rt) = runtime().filter(|rt| rt.sees_forks()) {
        let going_on = GOING_ON.load(Ordering::Acquire);
        let others = if thread::now_ns() - start_ns > OTHERS_NS { 0 } else { going_on };
        let is_last = others == 0 && stats::get(&rt.stats.children_pending) == 0;
        if spare::count() > others as usize || is_last {
            let next = going_on + 1;
            let order = Ordering::AcqRel;
            if GOING_ON.compare_exchange(going_on, next, order, Ordering::Acquire).is_ok() {
                return;
            }
        } else {
            thread::sleep_us(LOOK_US);
        }
    }
    GOING_ON.fetch_add(1, Ordering::AcqRel);
}

/// In the parent, before a fork.
pub fn prepare() {
    thread::keeping_errno(prepare_here);
}

fn prepare_here() {
    await_place();
    BEGUN.fetch_add(1, Ordering::AcqRel);
    let Some(rt) = unannounced() else { return };
    // Handlers of signals may fork as well.
    thread::without_signals(|| {
        let mut is_stopped = IS_STOPPED.lock().unwrap_or_else(PoisonError::into_inner);
        if !std::mem::replace(&mut is_stopped, true) {
            rt.paused.fetch_add(1, Ordering::AcqRel);
            bring_all_home(rt);
            rt.doorbell.call(|pager| pager.give_to_children());
        }
    });
}

/// In the parent, after a fork, or one that failed: errno says why.
pub fn in_parent() {
    thread::keeping_errno(in_parent_here);
}

fn in_parent_here() {
    let one_less = |n: u32| n.checked_sub(1);
    let _ = GOING_ON.fetch_update(Ordering::AcqRel, Ordering::Acquire, one_less);
    let Some(rt) = unannounced() else { return };
    thread::without_signals(|| {
        let mut is_stopped = IS_STOPPED.lock().unwrap_or_else(PoisonError::into_inner);
        // A runtime may come up in the middle of a fork, which has stopped nothing then and must
        // not start what another one has stopped. So all are counted, and the last one starts it.
        if *is_stopped && GOING_ON.load(Ordering::Acquire) == 0 {
            *is_stopped = false;
            rt.doorbell.call(|pager| pager.take_from_children());
            rt.paused.fetch_sub(1, Ordering::AcqRel);
        }
    });
}

/// Ends the runtime for good, while the program goes on: everything is brought home, nothing is
/// registered any more, the agent has ended, and the other threads sleep and make no system call.
/// Before the memory gets users who could outlive our threads, and before a seccomp filter is laid
/// on all threads, ours among them.
pub fn retire() {
    // First this, then a look for the runtime, which may be under way.
    if !memory::is_reserved() || !memory::is_original() || RETIRING.swap(true, Ordering::SeqCst) {
        return;
    }
    if !agent::await_start() {
        // Its planner does not answer. Should it do so later, nothing may come of it.
        agent::stop();
    }
    let Some(rt) = runtime() else { return };
    thread::without_signals(|| {
        rt.paused.fetch_add(1, Ordering::AcqRel);
        agent::stop();
        bring_all_home(rt);
        let sentinel = SENTINEL.swap(0, Ordering::Relaxed);
        rt.doorbell.call(move |pager| pager.unregister_all(sentinel));
        RETIRED.store(true, Ordering::Release);
    });
}

/// Before a seccomp filter is laid, on all threads or on the calling one. On all it would bind
/// ours. On one it binds what that one does for us, which is much in a fork that is not announced;
/// the calls of other forks are no more than memory.
pub fn before_filter(is_for_all: bool) {
    if !memory::is_reserved() || !memory::is_original() {
        return;
    }
    let is_harmless = || agent::await_start() && unannounced().is_none();
    if is_for_all || !is_harmless() {
        retire();
    }
}

/// In the child, before `fork` returns there: lets go of the parent's descriptors - it must hold
/// neither the planner's connection open nor the parent's registrations - and waits until it is
/// whole.
pub fn in_child() {
    if memory::is_original() {
        return;
    }
    interpose::close_ours();
    GOING_ON.store(0, Ordering::Relaxed);
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
    // A look at memory first: a seccomp filter of the program's may know none of the calls below.
    let leaves_door = link::leaves_door();
    let all_seen = SEEN.load(Ordering::Acquire) >= BEGUN.load(Ordering::Acquire);
    let waits = |rt: &&Runtime| !all_seen || stats::get(&rt.stats.children_pending) > 0;
    let waits = runtime().filter(|rt| rt.sees_forks()).filter(waits);
    // A child that only borrows this memory ends without us.
    if !leaves_door && waits.is_none() || !memory::is_original() || is_borrower() {
        return;
    }
    if leaves_door {
        link::remove_door();
    }
    let Some(rt) = waits else { return };
    // The pager counts a child when it handles the fork's event; a call behind that event says that
    // it has. It is only made where a fork is not accounted for. Not worth a hang: if the bell
    // cannot be had, the children look after themselves.
    if all_seen || rt.doorbell.try_call(|_| ()).is_some() {
        while stats::get(&rt.stats.children_pending) > 0 {
            thread::sleep_us(500);
        }
    }
}

/// Brings every page home, on the calling thread. Nothing may be moved out meanwhile
/// (`Runtime::paused`).
pub fn bring_all_home(rt: &'static Runtime) {
    WORK.run(move || bring_all_home_here(rt));
}

fn bring_all_home_here(rt: &'static Runtime) {
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
            bring_home(rt, &mut promoter, r);
        }
        // Another thread's mremap may have taken pages to a region that was done with.
        if rt.table.carried.load(Ordering::Acquire) == carried {
            return;
        }
    }
}

/// Brings every page of a region home. Nothing may be moved out meanwhile.
fn bring_home(rt: &'static Runtime, promoter: &mut Promoter, r: &'static Region) {
    for tries in 0.. {
        if (0..REGION_PAGES).all(|i| r.word(i).state() == PageState::Home) {
            return;
        }
        strike_in_round(rt, r, tries);
        let mut at = 0;
        rt.doorbell.call_in_parts(move |pager| pager.return_samples(r, &mut at).then_some(()));
        promoter.promote(r);
    }
}

/// Rounds in which pages are brought home that changes of the address space may have kept.
const STRIKE_AFTER: usize = 2;

/// In the round of this number (from 0) of trying to bring a region's pages home: those that cannot
/// be filled again and again may be gone without a word, and are struck from the books then.
/// (What takes its time, as a slow medium does, is not asked about each time.)
pub fn strike_in_round(rt: &Runtime, region: &'static Region, round: usize) {
    if round >= STRIKE_AFTER && round.is_power_of_two() {
        rt.doorbell.call(move |pager| pager.strike_all(region));
    }
}

/// How often a range is emptied into which other threads move pages that are in tiers.
const LET_GO_TRIES: usize = 100;

/// Does `work` while we have let go of a range of the application's: all of it is home, and nothing
/// of it registered, so that what our registrations have split is one mapping again. `None`, and
/// not done, if there is no runtime.
pub fn while_let_go<T>(start: u64, len: u64, work: impl FnOnce() -> T) -> Option<T> {
    Some(let_go(runtime()?, start, len, work))
}

fn let_go<T>(rt: &'static Runtime, start: u64, len: u64, work: impl FnOnce() -> T) -> T {
    let empty = move || {
        agent::drop_plans();
        rt.doorbell.call(|_| ());
        let end = start.saturating_add(len);
        let Some(mut promoter) = Promoter::new(rt) else { return };
        for _ in 0..LET_GO_TRIES {
            for_overlap(&rt.table, start, end, |r, _| bring_home(rt, &mut promoter, r));
            if rt.doorbell.call(move |pager| pager.unregister_range(start, end)) {
                return;
            }
        }
    };
    WORK.run(move || {
        rt.paused.fetch_add(1, Ordering::AcqRel);
        thread::keeping_errno(empty);
        let done = work();
        rt.paused.fetch_sub(1, Ordering::AcqRel);
        done
    })
}

/// One past the last address that a program can have.
const ADDRESS_END: u64 = 1 << 47;

/// Does `work`, which moves a range elsewhere as it is, and lets go of the range before if it must.
/// The kernel moves several mappings one after the other (Linux 6.17), but refuses where it comes
/// to a registered one, with those before it moved.
pub fn while_moved<T>(start: u64, len: u64, work: impl FnOnce() -> T) -> T {
    let end = start.saturating_add(len);
    let Some(rt) = runtime().filter(|_| end <= ADDRESS_END) else { return work() };
    // Of what is not in the table now nothing is registered until this is over.
    rt.paused.fetch_add(1, Ordering::SeqCst);
    fence(Ordering::SeqCst);
    let done = match thread::keeping_errno(|| is_partly_registered(rt, start, end)) {
        true => let_go(rt, start, len, work),
        false => work(),
    };
    rt.paused.fetch_sub(1, Ordering::AcqRel);
    done
}

/// Whether some of a range is registered, and not all of it as one mapping. No pages are registered
/// meanwhile.
fn is_partly_registered(rt: &'static Runtime, start: u64, end: u64) -> bool {
    let mut is_known = false;
    for_overlap(&rt.table, start, end, |_, _| is_known = true);
    is_known
        && rt.uffd.is_registered(start, end - start, rt.unreadable) != Ok(true)
        && thread::without_signals(|| {
            rt.doorbell.call(move |pager| pager.is_any_registered(start, end))
        })
}
