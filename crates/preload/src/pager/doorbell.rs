//! How other threads run code on the pager thread.
//!
//! The pager sleeps in a blocking `read`, because that is the fastest way to learn of a fault (a
//! `poll` before it costs another system call on every fault). So whoever wants it rings by
//! causing a fault of its own: a write to a write-protected page of the runtime. The pager runs
//! the call and lifts the protection, which lets the caller go on. Calls are bounded pieces of
//! work (tens of microseconds), since faults wait behind them. Movers and the agent share one bell;
//! each loader has its own (`loader.rs`), lest a fault wait until a mover's turn with it is over.

use super::Pager;
use crate::sys::sync::{Mutex, MutexGuard};
use crate::sys::uffd::{Failure, Uffd};
use crate::sys::{memory, proc, thread};
use std::sync::{Arc, PoisonError};
use terrace_core::state::PAGE_BYTES;

/// Looks at a busy bell, 100 us apart, before giving up.
const TRIES: usize = 1000;

type Call = Box<dyn FnMut(&mut Pager) + Send>;

/// What a caller wants run. The pager runs it once: a thread that is stopped while it rings, or
/// traced, faults again afterwards, and then there are two messages.
struct Wanted {
    call: Call,
    is_done: bool,
}

/// The doorbell page and the call waiting behind it.
pub struct Doorbell {
    page: u64,
    uffd: &'static Uffd,
    /// Held by the one caller that is ringing.
    ringing: Mutex<()>,
    call: Mutex<Option<Wanted>>,
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
        Some(Doorbell { page, uffd, ringing: Mutex::new(()), call: Mutex::new(None) })
    }

    /// Whether `address` is of this bell's page.
    fn is_at(&self, address: u64) -> bool {
        address & !(PAGE_BYTES as u64 - 1) == self.page
    }

    /// Runs `f` on the pager thread and returns its result. Must not be called from there.
    pub fn call<R: Send + 'static>(&self, f: impl FnMut(&mut Pager) -> R + Send + 'static) -> R {
        let _ringing = self.ringing.lock().unwrap_or_else(PoisonError::into_inner);
        self.ring(f)
    }

    /// Like [`Self::call`], but gives up when others keep the bell busy for long: for callers that
    /// may have interrupted a thread that holds it.
    pub fn try_call<R: Send + 'static>(
        &self,
        f: impl FnMut(&mut Pager) -> R + Send + Copy + 'static,
    ) -> Option<R> {
        for _ in 0..TRIES {
            if let Ok(_ringing) = self.ringing.try_lock() {
                return Some(self.ring(f));
            }
            thread::sleep_us(100);
        }
        None
    }

    /// The caller holds `ringing`.
    fn ring<R: Send + 'static>(&self, mut f: impl FnMut(&mut Pager) -> R + Send + 'static) -> R {
        let answer = Arc::new(Mutex::new(None));
        let to = answer.clone();
        let call: Call = Box::new(move |pager| {
            let r = f(pager);
            *to.lock().unwrap_or_else(PoisonError::into_inner) = Some(r);
        });
        *self.slot() = Some(Wanted { call, is_done: false });
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
}

impl Pager {
    /// Answers if a write-protect fault at `address` is somebody ringing.
    pub(super) fn answer(&mut self, address: u64) -> bool {
        let rt = self.rt;
        let bell = if rt.doorbell.is_at(address) {
            &rt.doorbell
        } else if let Some(bell) = rt.loads.bells().iter().find(|bell| bell.is_at(address)) {
            bell
        } else {
            return false;
        };
        if let Some(wanted) = bell.slot().as_mut().filter(|w| !w.is_done) {
            (wanted.call)(self);
            wanted.is_done = true;
        }
        while bell.uffd.write_protect(bell.page, false) == Err(Failure::Changing) {
            self.drain();
        }
        true
    }
}
