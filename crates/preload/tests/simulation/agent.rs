//! What other modules of the runtime ask of its agent. The agent itself, which talks to the
//! planner, is not simulated: `app.rs` plays it.

use crate::queue::Queue;
use crate::runtime::Runtime;
use crate::sys::thread;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, Mutex};

/// As the real one, but for one seed at a time.
pub static RUNTIME: Slot = Slot(AtomicPtr::new(std::ptr::null_mut()));
static QUEUE: Mutex<Option<Arc<Queue>>> = Mutex::new(None);

/// Where the runtime of this seed is.
pub struct Slot(AtomicPtr<&'static Runtime>);

impl Slot {
    /// As of a `OnceLock`.
    pub fn get(&self) -> Option<&'static Runtime> {
        // SAFETY: set by `set_up` to a box that was leaked.
        unsafe { self.0.load(Ordering::Relaxed).as_ref() }.copied()
    }
}

/// Begins a seed, or ends it.
pub fn set_up(rt: Option<(&'static Runtime, Arc<Queue>)>) {
    let place = rt.as_ref().map_or(std::ptr::null_mut(), |(rt, _)| Box::into_raw(Box::new(*rt)));
    RUNTIME.0.store(place, Ordering::Relaxed);
    *QUEUE.lock().expect("no poison") = rt.map(|(_, queue)| queue);
}

/// As the real one.
pub fn drop_plans() {
    let Some(queue) = QUEUE.lock().expect("no poison").clone() else { return };
    queue.replace(std::iter::empty());
    while !queue.is_idle() {
        thread::sleep_us(100);
    }
}

/// As the real one.
pub fn await_start() -> bool {
    true
}

/// As the real one.
pub fn stop() -> bool {
    true
}
