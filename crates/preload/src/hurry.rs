//! Movers that hold a pool's lock and do not run, while a fault waits for it.
//!
//! A mover holds that lock for less than a microsecond, and is an ordinary thread behind the
//! application's. When it loses its processor in that microsecond, faults of the tier wait for its
//! next turn: 1 to 4 ms on a busy machine, a hundred times what a fault takes. Locks that pass on
//! priorities do not help, because the kernel's know real-time priorities only, and raising a
//! thread's own needs a privilege.
//!
//! But the processor of whoever waits is about to be free. The movers are brought there: the one
//! that has the lock runs as soon as the waiting thread sleeps. This any thread may ask for another
//! of its process.

use crate::sys::thread::{self, Cpus};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::Mutex;
use terrace_store::Helper;

/// Movers there may be.
const MOVERS_MAX: usize = 8;

/// How long is looked whether a mover runs: some microseconds.
const LOOK_SPINS: usize = 50;

/// The movers, by number.
#[derive(Debug, Default)]
pub struct Hurry {
    /// Their thread ids; 0: none. Movers end with the process.
    tids: [AtomicU32; MOVERS_MAX],
    /// Held while they are where they usually are not: who comes second would take that for usual.
    away: Mutex<()>,
}

impl Hurry {
    /// Takes the calling thread for mover `number`. One beyond those there may be waits its turn.
    pub fn enlist(&self, number: usize) {
        if let Some(tid) = self.tids.get(number) {
            tid.store(thread::gettid(), Ordering::Relaxed);
        }
    }

    /// All but the calling thread, which needs no help to run.
    fn others(&self) -> [Option<u32>; MOVERS_MAX] {
        let own = thread::gettid();
        let tids = self.tids.each_ref().map(|tid| tid.load(Ordering::Relaxed));
        tids.map(|tid| Some(tid).filter(|&tid| tid != 0 && tid != own))
    }
}

impl Helper for Hurry {
    fn help(&self, wait: &mut dyn FnMut()) {
        let Ok(_away) = self.away.try_lock() else { return wait() };
        let others = self.others();
        let used_ns = others.map(|tid| tid.map_or(0, thread::cpu_ns));
        (0..LOOK_SPINS).for_each(|_| std::hint::spin_loop());
        let mut brought = [None; MOVERS_MAX];
        for (n, tid) in others.iter().enumerate() {
            let Some(tid) = *tid else { continue };
            // One that runs is better left alone: it is stopped to be moved, which takes longer.
            if thread::cpu_ns(tid) == used_ns[n] {
                let usual = Cpus::of_thread(tid);
                thread::bring_here(tid);
                brought[n] = usual.map(|usual| (tid, usual));
            }
        }
        wait();
        // (What a mover itself decided meanwhile it decides anew when the pager's CPU changes.)
        brought.iter().flatten().for_each(|(tid, usual)| usual.give_to(*tid));
    }
}
