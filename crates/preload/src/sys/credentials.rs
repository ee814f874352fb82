//! A program that changes its user while its thread keeps rights that the runtime's have not.
//!
//! The kernel has a user for each thread. libc changes all of them, by a signal to each, and ends
//! the process where one succeeds and another does not. What a thread has done for itself alone
//! tells them apart: it keeps its capabilities beyond a change of user (`PR_SET_KEEPCAPS`), or has
//! given some up. The change of group that comes next is then allowed to it and not to ours. A
//! program with one thread of its own makes the call for that, and ours follow by themselves as
//! far as they may: they must not keep what the program gives up. A child that only waits whether
//! it will be worth a runtime (`offspring.rs`) gives that up instead.

use super::alone;
use super::clones::to_kernel;
use super::stack::WORK;
use super::sync::{renew, Mutex, MutexGuard, OnlyThread};
use super::thread::{self, THREADS_MAX};
use crate::offspring;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::PoisonError;

/// Bits of `PR_GET_SECUREBITS`: a change of user takes no capability away; they are kept once.
const NO_SETUID_FIXUP: libc::c_int = 1 << 2;
const KEEP_CAPS: libc::c_int = 1 << 4;
/// How long the program waits for ours: the agent looks twice a second.
const WAIT_NS: u64 = 1_000_000_000;
/// Groups that a change is made of, at most.
pub const GROUPS_MAX: usize = 1 << 16;
/// Orders that are remembered where not all of ours have followed in time.
const ORDERS_MAX: usize = 64;

/// The program has changed capabilities of a thread.
static CAPABILITIES_SET: AtomicBool = AtomicBool::new(false);

/// What ours are to do, and how many such orders there were.
static ORDERS: Mutex<Orders> = Mutex::new(Orders { first: 0, waiting: VecDeque::new() });
static GIVEN: AtomicU32 = AtomicU32::new(0);
/// How many of them each of our threads has followed.
static FOLLOWED: [AtomicU32; THREADS_MAX] = [const { AtomicU32::new(0) }; THREADS_MAX];

/// Orders that some of ours may not have followed yet.
#[derive(Debug)]
struct Orders {
    /// How many there were before these.
    first: u32,
    waiting: VecDeque<Order>,
}

#[derive(Debug)]
struct Order {
    number: libc::c_long,
    arguments: [libc::c_long; 3],
    /// For `setgroups`, in memory of ours: the pager may not touch the program's.
    groups: Option<Vec<libc::gid_t>>,
}

/// The program is about to change capabilities of the calling thread.
pub fn note_capabilities() {
    CAPABILITIES_SET.store(true, Ordering::Relaxed);
}

fn is_apart() -> bool {
    // SAFETY: asks for the calling thread's bits.
    let bits = unsafe { to_kernel(libc::SYS_prctl, [libc::PR_GET_SECUREBITS.into(), 0, 0, 0, 0]) };
    let keeps = bits > 0 && bits as libc::c_int & (NO_SETUID_FIXUP | KEEP_CAPS) != 0;
    keeps || CAPABILITIES_SET.load(Ordering::Relaxed)
}

/// A call that changes user or groups: by libc's function `real`, or for the calling thread and
/// then for ours.
///
/// # Safety
/// As for the call.
pub unsafe fn change(
    number: libc::c_long,
    arguments: [libc::c_long; 3],
    real: impl FnOnce() -> libc::c_int,
) -> libc::c_int {
    // Or libc would change the calling thread alone.
    alone::leave();
    if !is_apart() {
        return by_libc(real);
    }
    offspring::cancel();
    if !thread::are_here() || !thread::program_has_one() {
        return by_libc(real);
    }
    let [a, b, c] = arguments;
    // SAFETY: the caller's promise.
    let result = unsafe { to_kernel(number, [a, b, c, 0, 0]) } as libc::c_int;
    if result == 0 {
        let mut groups = None;
        if number == libc::SYS_setgroups {
            // SAFETY: the kernel has just read them.
            groups = Some(unsafe { list(a as usize, b as *const libc::gid_t) });
        }
        let order = Order { number, arguments, groups };
        thread::keeping_errno(|| WORK.run(move || have_ours_follow(order)));
    }
    result
}

/// A call of libc's function. It tells every thread of the process what to call, the pager too, by
/// a note on the caller's stack; so that is one which never goes down.
fn by_libc(real: impl FnOnce() -> libc::c_int) -> libc::c_int {
    match thread::are_here() {
        true => WORK.run(real),
        false => real(),
    }
}

/// `setgroups` by libc's function `real`. Every thread of the process would read the list, the
/// pager too, and it may be in a tier. So this thread alone makes the call first, by which the list
/// is known to be one and to be allowed, and then `real` is given a copy.
///
/// # Safety
/// As for the call.
pub unsafe fn change_groups(
    count: libc::size_t,
    groups: *const libc::gid_t,
    real: impl Fn(libc::size_t, *const libc::gid_t) -> libc::c_int,
) -> libc::c_int {
    let arguments = [count as libc::c_long, groups as libc::c_long, 0];
    if !thread::are_here() || is_apart() {
        // SAFETY: the caller's promise.
        return unsafe { change(libc::SYS_setgroups, arguments, || real(count, groups)) };
    }
    let [a, b, _] = arguments;
    // SAFETY: the caller's promise.
    let result = unsafe { to_kernel(libc::SYS_setgroups, [a, b, 0, 0, 0]) } as libc::c_int;
    if result != 0 {
        return result;
    }
    // SAFETY: the kernel has just read them.
    let copy = unsafe { list(count, groups) };
    let arguments = [a, copy.as_ptr() as libc::c_long, 0];
    // SAFETY: the copy is there until the call is over.
    unsafe { change(libc::SYS_setgroups, arguments, || real(count, copy.as_ptr())) }
}

/// # Safety
/// There are so many groups, and no more than the kernel takes.
unsafe fn list(count: usize, groups: *const libc::gid_t) -> Vec<libc::gid_t> {
    // SAFETY: the caller's promise.
    (0..count.min(GROUPS_MAX)).map(|i| unsafe { groups.add(i).read_unaligned() }).collect()
}

fn have_ours_follow(order: Order) {
    let given = {
        let mut orders = orders();
        if orders.waiting.len() == ORDERS_MAX {
            orders.waiting.pop_front();
            orders.first += 1;
        }
        orders.waiting.push_back(order);
        GIVEN.fetch_add(1, Ordering::Release) + 1
    };
    crate::agent::wake_threads();
    let until_ns = thread::now_ns() + WAIT_NS;
    let has_followed = |place: usize| {
        thread::own_tid(place) == 0 || FOLLOWED[place].load(Ordering::Acquire) == given
    };
    while !(0..THREADS_MAX).all(has_followed) {
        if thread::now_ns() >= until_ns {
            return;
        }
        thread::sleep_us(500);
    }
    let mut orders = orders();
    orders.waiting.clear();
    orders.first = given;
}

fn orders() -> MutexGuard<'static, Orders> {
    ORDERS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A thread of ours: follows the program where it has not yet.
pub fn follow() {
    let given = given();
    if given == 0 {
        return;
    }
    let Some(place) = thread::own_place() else { return };
    let followed = FOLLOWED[place].load(Ordering::Relaxed);
    if followed == given {
        return;
    }
    let orders = orders();
    let known = followed.saturating_sub(orders.first) as usize;
    for order in orders.waiting.iter().skip(known) {
        let [a, mut b, c] = order.arguments;
        if let Some(groups) = &order.groups {
            b = groups.as_ptr() as libc::c_long;
        }
        // SAFETY: the program has made the same call, and it was allowed; here it may be refused.
        // The list of groups is there for as long as we have the lock.
        unsafe { to_kernel(order.number, [a, b, c, 0, 0]) };
    }
    let followed = orders.first + orders.waiting.len() as u32;
    FOLLOWED[place].store(followed, Ordering::Release);
}

/// How many orders a thread has followed that is made now: it is as whoever makes it.
pub fn followed() -> u32 {
    match thread::own_place() {
        Some(place) => FOLLOWED[place].load(Ordering::Relaxed),
        None => given(),
    }
}

fn given() -> u32 {
    GIVEN.load(Ordering::Acquire)
}

/// The first a thread of ours does, with what [`followed`] said to its maker.
pub fn begin(followed: u32) {
    if let Some(place) = thread::own_place() {
        FOLLOWED[place].store(followed, Ordering::Release);
    }
}

/// In a forked child: another thread may have been at the orders.
pub fn forget(only: &OnlyThread) {
    renew(only, &ORDERS, Orders { first: 0, waiting: VecDeque::new() });
    GIVEN.store(0, Ordering::Relaxed);
    FOLLOWED.iter().for_each(|followed| followed.store(0, Ordering::Relaxed));
}
