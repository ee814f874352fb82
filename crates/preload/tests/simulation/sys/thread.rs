//! The runtime's threads, as fibers, and virtual time.

use crate::schedule;

/// See the real one.
pub fn spawn(name: &'static std::ffi::CStr, f: impl FnOnce() + Send + 'static) -> bool {
    let name = name.to_str().unwrap_or("?");
    schedule::spawn(name.strip_prefix("terrace-").unwrap_or(name), true, f);
    true
}

/// See the real one.
pub fn now_ns() -> u64 {
    schedule::now_ns()
}

/// See the real one.
pub fn give_way() {
    schedule::sleep_us(1);
}

/// See the real one.
pub fn sleep_us(us: u64) {
    schedule::sleep_us(us);
}

/// See the real one.
pub fn pin_to(_cpu: usize) {}

/// See the real one.
#[derive(Clone, Copy, Debug)]
pub struct Cpus;

impl Cpus {
    /// See the real one.
    pub fn of_this_thread() -> Option<Cpus> {
        Some(Cpus)
    }

    /// See the real one.
    pub fn of_thread(_tid: u32) -> Option<Cpus> {
        Some(Cpus)
    }

    /// See the real one.
    pub fn use_all_but(&self, _cpu: usize) {}

    /// See the real one.
    pub fn give_to(&self, _tid: u32) {}
}

/// See the real one.
pub fn bring_here(_tid: u32) {}

/// See the real one.
pub fn cpu_ns(_tid: u32) -> u64 {
    0
}

/// See the real one. Nobody looks.
pub fn gettid() -> u32 {
    1
}

/// See the real one.
pub fn hold_frame() {}

/// See the real one.
pub fn set_nice(_nice: i32) {}

/// See the real one.
pub fn wake_on_time() {}

/// See the real one.
pub fn take_short_turns(_nice: i32) -> bool {
    true
}

/// See the real one. There is no errno.
pub fn keeping_errno<T>(work: impl FnOnce() -> T) -> T {
    work()
}

/// See the real one. No signals are simulated.
pub fn without_signals<T>(work: impl FnOnce() -> T) -> T {
    work()
}

/// See the real one.
pub fn cpus() -> usize {
    2
}
