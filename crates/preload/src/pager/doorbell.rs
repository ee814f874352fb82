//! How other threads run code on the pager thread.
//!
//! The pager sleeps in a blocking `read`, because that is the fastest way to learn of a fault (a
//! `poll` before it costs another system call on every fault). So whoever wants it rings by
//! causing a fault of its own: a write to a write-protected page of the runtime. The pager runs
//! the call and lifts the protection, which lets the caller go on. Calls are bounded pieces of
//! work (tens of microseconds), since faults wait behind them.

use super::Pager;
use crate::sys::uffd::{Failure, Uffd};
use crate::sys::{memory, thread};
use std::sync::{Arc, Mutex, PoisonError};
use terrace_core::state::PAGE_BYTES;

type Call = Box<dyn FnMut(&mut Pager) + Send>;

/// The doorbell page and the call waiting behind it.
pub struct Doorbell {
    page: u64,
    uffd: &'static Uffd,
    /// Held by the one caller that is ringing.
    ringing: Mutex<()>,
    call: Mutex<Option<Call>>,
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

    /// Whether a write-protect fault at `address` is somebody ringing.
    pub fn is_at(&self, address: u64) -> bool {
        address & !(PAGE_BYTES as u64 - 1) == self.page
    }

    /// Runs `f` on the pager thread and returns its result. Must not be called from there.
    pub fn call<R: Send + 'static>(
        &self,
        mut f: impl FnMut(&mut Pager) -> R + Send + 'static,
    ) -> R {
        let answer = Arc::new(Mutex::new(None));
        let to = answer.clone();
        let _ringing = self.ringing.lock().unwrap_or_else(PoisonError::into_inner);
        *self.slot() = Some(Box::new(move |pager| {
            let r = f(pager);
            *to.lock().unwrap_or_else(PoisonError::into_inner) = Some(r);
        }));
        loop {
            // The protection is refused while a change of the address space is under way.
            while self.uffd.write_protect(self.page, true) == Err(Failure::Changing) {
                thread::sleep_us(20);
            }
            memory::touch_for_write(self.page);
            if let Some(r) = answer.lock().unwrap_or_else(PoisonError::into_inner).take() {
                // Freed here rather than by the pager, which frees nothing.
                *self.slot() = None;
                return r;
            }
        }
    }

    fn slot(&self) -> std::sync::MutexGuard<'_, Option<Call>> {
        self.call.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Pager {
    pub(super) fn answer_doorbell(&mut self) {
        let rt = self.rt;
        if let Some(call) = rt.doorbell.slot().as_mut() {
            call(self);
        }
        while rt.doorbell.uffd.write_protect(rt.doorbell.page, false) == Err(Failure::Changing) {
            self.drain();
        }
    }
}
