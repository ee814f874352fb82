//! Takes pages out of the program on kernels without `UFFDIO_MOVE` (before 6.8).
//!
//! There the pager cannot take a page away from threads that may be using it. So the program's
//! threads are stopped for a moment (`sys/stop.rs`), and in that moment:
//!
//! 1. the pager handles every change of the address space that there was, and marks pages `Staged`
//!    or `Sampled`, as it does before a move (`pager/takes.rs`);
//! 2. their bytes are copied to their slots, and the kernel drops those that nobody holds;
//! 3. the pager looks which are gone; the others are at home again.
//!
//! All else is the same on every kernel: a page in a slot goes home by a copy instead of a move.

use crate::mover::Refused;
use crate::pager::moves::{Going, Sampling};
use crate::pager::takes::{Marked, Marks};
use crate::pager::Pager;
use crate::runtime::Runtime;
use crate::stats;
use crate::sys::stop::Stopper;
use crate::sys::{memory, thread};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use terrace_core::tier::TierId;

/// Moves pages to their staging slot. Returns how many went.
pub fn move_out(rt: &'static Runtime, stopper: &Stopper, mut going: Going, tier: TierId) -> usize {
    let (start, end) = going.range();
    if !is_any_alone(rt, &going) {
        return 0;
    }
    // What lies in a huge page is not dropped by itself.
    memory::split_huge(start, end);
    let mut staged = 0;
    loop {
        let (room, pages) = (stopper.capacity(), going.movable(rt.window_stamp()).count());
        if pages == 0 {
            break;
        }
        let (left, gone) = stop_for(rt, stopper, tier, room, going, |pager, going, marked| {
            pager.mark_out(going, marked);
        });
        staged += gone.len();
        match left {
            Some(rest) if !rt.is_paused() => going = rest,
            Some(_) => break,
            None => {
                let refused = &rt.stats.tiers[tier.index()].refused;
                refused[Refused::NotStopped as usize].fetch_add(pages as u64, Ordering::Relaxed);
                break;
            }
        }
    }
    staged
}

/// Whether any page is worth a stop.
fn is_any_alone(rt: &Runtime, going: &Going) -> bool {
    let Some(alone) = rt.pagemap.mapped_once(going.region().base) else { return false };
    let stamp = rt.window_stamp();
    going.movable(stamp).any(|i| alone[i / 64] >> (i % 64) & 1 == 1)
}

/// Takes samples of some regions, and notes in each how many there are.
pub fn take_samples(rt: &'static Runtime, stopper: &Stopper, samplings: Vec<Sampling>) {
    for s in &samplings {
        s.region().samples.store(0, Ordering::Relaxed);
    }
    let room = stopper.capacity();
    let mut left = samplings;
    while !left.is_empty() && !rt.is_paused() {
        let wanted: usize = left.iter().map(Sampling::wanted).sum();
        let room = room.min(wanted);
        let (rest, gone) =
            stop_for(rt, stopper, TierId::DRAM, room, left, |pager, left, marked| {
                while let Some(sampling) = left.last_mut() {
                    pager.mark_samples(sampling, marked);
                    if marked.is_full() && sampling.wanted() > 0 {
                        break;
                    }
                    // All that are wanted, or all that there are.
                    left.pop();
                }
            });
        for m in gone {
            m.region().samples.fetch_add(1, Ordering::Relaxed);
        }
        let Some(rest) = rest else { return };
        left = rest;
    }
}

/// Stops the program, has `mark` mark pages on the pager, takes them, and settles. Returns what is
/// left to do, unless there was no stop, and the pages that are gone.
fn stop_for<T: Send + 'static>(
    rt: &'static Runtime,
    stopper: &Stopper,
    tier: TierId,
    room: usize,
    todo: T,
    mark: impl Fn(&mut Pager, &mut T, &mut Marks) + Send + 'static,
) -> (Option<T>, Vec<Marked>) {
    // Here and not on the pager: that allocates nothing for it.
    let marked = Arc::new(Mutex::new(Marks::new(room)));
    let gone = Arc::new(Mutex::new(Vec::with_capacity(room)));
    let (to_mark, to_settle, into) = (marked.clone(), marked.clone(), gone.clone());
    let mut left = None;
    let mut todo = Some(todo);
    let stood = stopper.take(
        || {
            left = rt.doorbell.call(move |pager| {
                let mut todo = todo.take();
                if let Some(todo) = &mut todo {
                    let mut marks = to_mark.lock().unwrap_or_else(PoisonError::into_inner);
                    mark(pager, todo, &mut marks);
                    // Only if there is something to take: else nothing ends the stop but whoever
                    // made it, and he may be waiting for the bell.
                    if !marks.pages().is_empty() {
                        pager.attend_to_taking();
                    }
                }
                todo
            });
            let marked = marked.lock().unwrap_or_else(PoisonError::into_inner);
            marked.pages().iter().map(Marked::pair).collect()
        },
        || {
            rt.doorbell.call(move |pager| {
                let marked = to_settle.lock().unwrap_or_else(PoisonError::into_inner);
                let mut into = into.lock().unwrap_or_else(PoisonError::into_inner);
                pager.settle(marked.pages(), tier, |m| into.push(*m));
            });
        },
    );
    if let Ok(stood) = stood {
        // Those that would have run meanwhile: no more than there are CPUs.
        let running = stood.threads.min(thread::cpus()) as u64;
        stats::add(&rt.stats.stalled_ns, stood.ns * running);
    }
    let gone = std::mem::take(&mut *gone.lock().unwrap_or_else(PoisonError::into_inner));
    (left, gone)
}
