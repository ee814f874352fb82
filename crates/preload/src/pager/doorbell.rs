//! How other threads run code on the pager thread.
//!
//! The pager sleeps in a blocking `read`, because that is the fastest way to learn of a fault (a
//! `poll` before it costs another system call on every fault). So whoever wants it rings by
//! causing a fault of its own: a write to a write-protected page of the runtime. The pager runs
//! the call and lifts the protection, which lets the caller go on. Movers and the agent share one
//! bell; each loader has its own (`loader.rs`), lest a fault wait until a mover's turn with it is
//! over.
//!
//! Faults wait behind a call. What takes long comes in parts, of about `PART_NS`; between two of
//! them, and before the first, whatever the kernel has to tell is handled as if the parts were
//! calls of their own, but not for ever (`FAULTS_FIRST`).
//!
//! The thread that was given its page last may have yet to run: the pager goes before it on the
//! CPU that they share as a rule. So it is given way, by waiting for the next message a little.
//! (`sched_yield` takes less time than setting a timer. But then the thread may keep the CPU for a
//! turn of the scheduler's, while the faults of others wait, and the pager comes behind others for
//! some time.)

use super::Pager;
use crate::stats;
use crate::sys::stack::WORK;
use crate::sys::sync::{Mutex, MutexGuard};
use crate::sys::uffd::{Failure, Uffd};
use crate::sys::{memory, proc, thread};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, PoisonError};
use terrace_core::state::PAGE_BYTES;

/// Looks at a busy bell, 100 us apart, before giving up.
const TRIES: usize = 1000;

/// A part of a call is over when it has taken so long. One call of the kernel's is not divided:
/// moving out 128 pages takes 10 to 20 us.
const PART_NS: u64 = 8_000;
/// How often in a row what was read meanwhile goes before the next part.
const FAULTS_FIRST: u8 = 3;
/// How long the thread that was given its page has the CPU before a call goes on, at most.
const GIVE_WAY_US: u64 = 20;
/// A thread that was given its page this long ago has run since.
const JUST_NOW_NS: u64 = 20_000;

/// A part of a call: whether it was the last.
type Call = Box<dyn FnMut(&mut Pager) -> bool + Send>;

/// How long the pager has been at a part of a call.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    ends_ns: u64,
}

impl Part {
    pub(super) fn begin() -> Part {
        Part { ends_ns: thread::now_ns() + PART_NS }
    }

    /// Whether it is time to look for faults.
    pub(super) fn is_over(self) -> bool {
        thread::now_ns() >= self.ends_ns
    }
}

/// What a caller wants run. The pager runs it once: a thread that is stopped while it rings, or
/// traced, faults again afterwards, and then there are two messages.
struct Wanted {
    call: Call,
    /// A part of it has run.
    is_begun: bool,
    is_done: bool,
}

/// The doorbell page and the call waiting behind it.
pub struct Doorbell {
    page: u64,
    uffd: &'static Uffd,
    /// Held by the one caller that is ringing.
    ringing: Mutex<()>,
    call: Mutex<Option<Wanted>>,
    /// How often there was something to handle between two parts of a call.
    pub interruptions: AtomicU64,
}

impl std::fmt::Debug for Doorbell {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Doorbell").field("page", &self.page).finish_non_exhaustive()
    }
}

impl Doorbell {
    /// A doorbell on a page of its own.
    pub fn new(uffd: &'static Uffd) -> Option<Doorbell> {
        let page = memory::carve(PAGE_BYTES as u64)?;
        memory::touch_for_write(page);
        uffd.register_staging(page, PAGE_BYTES as u64).ok()?;
        let (ringing, call) = (Mutex::new(()), Mutex::new(None));
        Some(Doorbell { page, uffd, ringing, call, interruptions: AtomicU64::new(0) })
    }

    /// Whether `address` is of this bell's page.
    fn is_at(&self, address: u64) -> bool {
        address & !(PAGE_BYTES as u64 - 1) == self.page
    }

    /// Runs `f` on the pager thread and returns its result. Must not be called from there.
    pub fn call<R: Send + 'static>(
        &self,
        mut f: impl FnMut(&mut Pager) -> R + Send + 'static,
    ) -> R {
        self.call_in_parts(move |pager| Some(f(pager)))
    }

    /// Runs `f` on the pager thread again and again until it returns a result. Anything may have
    /// changed from one time to the next.
    pub fn call_in_parts<R: Send + 'static>(
        &self,
        f: impl FnMut(&mut Pager) -> Option<R> + Send + 'static,
    ) -> R {
        WORK.run(move || {
            let _ringing = self.ringing.lock().unwrap_or_else(PoisonError::into_inner);
            self.ring(f)
        })
    }

    /// Like [`Self::call`], but gives up when others keep the bell busy for long: for callers that
    /// may have interrupted a thread that holds it.
    pub fn try_call<R: Send + 'static>(
        &self,
        mut f: impl FnMut(&mut Pager) -> R + Send + Copy + 'static,
    ) -> Option<R> {
        let attempt = || {
            let _ringing = self.ringing.try_lock().ok()?;
            Some(self.ring(move |pager| Some(f(pager))))
        };
        for _ in 0..TRIES {
            let answer = WORK.run(attempt);
            if answer.is_some() {
                return answer;
            }
            thread::sleep_us(100);
        }
        None
    }

    /// The caller holds `ringing`.
    fn ring<R: Send + 'static>(
        &self,
        mut f: impl FnMut(&mut Pager) -> Option<R> + Send + 'static,
    ) -> R {
        let answer = Arc::new(Mutex::new(None));
        let to = answer.clone();
        let call: Call = Box::new(move |pager| {
            let r = f(pager);
            let is_last = r.is_some();
            *to.lock().unwrap_or_else(PoisonError::into_inner) = r;
            is_last
        });
        *self.slot() = Some(Wanted { call, is_begun: false, is_done: false });
        loop {
            // The protection is refused while a change of the address space is under way.
            loop {
                match self.uffd.write_protect(self.page, true) {
                    Ok(()) => break,
                    Err(Failure::Changing) => thread::sleep_us(20),
                    // The page is ours for good; without it no page could be brought back.
                    Err(_) => proc::die("terrace: the runtime's own memory was unmapped"),
                }
            }
            memory::touch_for_write(self.page);
            let answered = answer.lock().unwrap_or_else(PoisonError::into_inner).take();
            if let Some(r) = answered {
                // Freed here rather than by the pager, which frees nothing.
                *self.slot() = None;
                return r;
            }
        }
    }

    fn slot(&self) -> MutexGuard<'_, Option<Wanted>> {
        self.call.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a call waits for the pager, or for its next part.
    fn is_wanted(&self) -> bool {
        self.slot().as_ref().is_some_and(|w| !w.is_done)
    }

    /// Runs a part of the call. Whether that was all of it.
    fn go_on(&self, pager: &mut Pager) -> bool {
        let mut slot = self.slot();
        let Some(wanted) = slot.as_mut().filter(|w| !w.is_done) else { return true };
        wanted.is_begun = true;
        wanted.is_done = (wanted.call)(pager);
        wanted.is_done
    }

    /// Lets the caller go on.
    fn lift(&self, pager: &mut Pager) {
        while self.uffd.write_protect(self.page, false) == Err(Failure::Changing) {
            pager.drain();
        }
    }
}

impl Pager {
    /// Answers if a write-protect fault at `address` is somebody ringing.
    pub(super) fn answer(&mut self, address: u64) -> bool {
        let rt = self.rt;
        if rt.doorbell.is_at(address) {
            self.is_called = rt.doorbell.is_wanted();
            if !self.is_called {
                rt.doorbell.lift(self);
            }
            return true;
        }
        let Some(bell) = rt.loads.bells().iter().find(|bell| bell.is_at(address)) else {
            return false;
        };
        while !bell.go_on(self) {}
        bell.lift(self);
        true
    }

    /// Runs the next part of a call; or reads what the kernel has to tell, which goes first.
    pub(super) fn work(&mut self) {
        if self.faults_first < FAULTS_FIRST {
            let woke_ns = std::mem::take(&mut self.woke_ns);
            if thread::now_ns() - woke_ns < JUST_NOW_NS {
                self.uffd.wait_for(GIVE_WAY_US);
            }
            if self.look_and_read() > 0 {
                self.faults_first += 1;
                if self.rt.doorbell.slot().as_ref().is_some_and(|w| w.is_begun) {
                    stats::add(&self.rt.doorbell.interruptions, 1);
                }
                return;
            }
        }
        self.faults_first = 0;
        let bell = &self.rt.doorbell;
        if bell.is_wanted() {
            bell.go_on(self);
        } else {
            self.is_called = false;
            bell.lift(self);
        }
    }
}
