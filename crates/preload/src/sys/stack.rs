//! Stacks of the runtime's own, for threads of the program that work for it.
//!
//! A thread of the program does so when it forks, and in shims of ours. Its stack may lie in memory
//! that is tiered, and a page of it may be out. Were a lock of the runtime's held when such a page
//! is touched, the thread would wait for the pager, and the pager, as soon as it wants that lock
//! (the heap's, a pool's, the doorbell's), for the thread. So whatever takes a lock that the pager
//! takes, too, runs on a stack that never goes down; one thread after the other. No handler of a
//! signal finds the thread there, which may want the same stack.

use super::memory;
use super::sync::{renew, Mutex, OnlyThread};
use super::thread;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::PoisonError;

/// For all but allocations, which must not wait for what takes long.
pub static WORK: Stack = Stack::new();

/// Makes room for the work of the program's threads, before there is anything in a tier.
pub(super) fn prepare() {
    WORK.prepare(512 << 10);
}

/// In a forked child, which does not have that memory.
pub(super) fn forget(only: &OnlyThread) {
    WORK.forget(only);
}

/// A stack, and whose turn it is.
#[derive(Debug)]
pub struct Stack {
    /// Where it begins, above its last byte; 0 while there is none.
    top: AtomicU64,
    turn: Mutex<()>,
    /// Whether what runs on it is over in a moment, and waits for no thread.
    is_short: bool,
}

impl Stack {
    /// None yet: what is to run on it runs where its caller stands.
    pub(super) const fn new() -> Stack {
        Stack { top: AtomicU64::new(0), turn: Mutex::new(()), is_short: false }
    }

    /// The same for work that is over in a moment and waits for no thread: libc's own signals wait
    /// until then, too. By one of them it has all threads change their user, in a handler that runs
    /// on the program's alternate stack, which may be in a tier.
    pub(super) const fn for_moments() -> Stack {
        Stack { top: AtomicU64::new(0), turn: Mutex::new(()), is_short: true }
    }

    /// Takes memory for it.
    pub(super) fn prepare(&self, bytes: u64) {
        if let Some(start) = memory::carve(bytes) {
            self.top.store(start + bytes, Ordering::Release);
        }
    }

    /// In a forked child: it is its parent's, and not there.
    pub(super) fn forget(&'static self, only: &OnlyThread) {
        self.top.store(0, Ordering::Relaxed);
        renew(only, &self.turn, ());
    }

    /// Runs `work` on it, unless the caller is on a stack of the runtime's already. What `work`
    /// names of its caller's must not be touched with a lock of ours in hand.
    pub fn run<T>(&self, work: impl FnOnce() -> T) -> T {
        let here = 0u8;
        let here = &raw const here as u64;
        let top = self.top.load(Ordering::Acquire);
        if top == 0 || memory::is_own(here, here + 1) {
            return work();
        }
        let in_turn = || {
            let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
            // SAFETY: the stack is ours, and the turn.
            unsafe { run_at(top, work) }
        };
        match self.is_short {
            true => thread::without_libcs_signals(in_turn),
            false => thread::without_signals(in_turn),
        }
    }
}

struct Task<F, T> {
    work: Option<F>,
    done: Option<T>,
}

/// Takes the work over to this stack, and its result back.
#[cfg(target_arch = "x86_64")]
extern "C" fn perform<T, F: FnOnce() -> T>(task: *mut Task<F, T>) {
    // SAFETY: `run_at` passes its own task, which it leaves alone meanwhile.
    let task = unsafe { &mut *task };
    if let Some(work) = task.work.take() {
        task.done = Some(work());
    }
}

/// Runs `work` on the stack that begins at `top`.
///
/// # Safety
///
/// `top` is that of a stack made by `prepare`, and nobody else stands there.
#[cfg(target_arch = "x86_64")]
unsafe fn run_at<T, F: FnOnce() -> T>(top: u64, work: F) -> T {
    let mut task = Task { work: Some(work), done: None };
    // SAFETY: the stack is the caller's by its promise, and aligned to a page. What is called
    // neither unwinds (panics abort, and without signals a thread is not cancelled) nor looks at
    // who called it, and the stack pointer is back in its place afterwards, kept in a register
    // that functions preserve.
    unsafe {
        core::arch::asm!(
            "mov r12, rsp",
            "mov rsp, {top}",
            "call {perform}",
            "mov rsp, r12",
            top = in(reg) top,
            perform = in(reg) perform::<T, F> as extern "C" fn(*mut Task<F, T>),
            in("rdi") &raw mut task,
            out("r12") _,
            clobber_abi("C"),
        );
    }
    match task.done {
        Some(done) => done,
        None => unreachable!("the work was done"),
    }
}

/// Other processors have not been tried: runs where the caller stands.
///
/// # Safety
///
/// As it says.
#[cfg(not(target_arch = "x86_64"))]
unsafe fn run_at<T, F: FnOnce() -> T>(_: u64, work: F) -> T {
    let task = Task { work: Some(work), done: None::<T> };
    match (task.work, task.done) {
        (Some(work), None) => work(),
        _ => unreachable!("made just now"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_is_taken_over_and_its_result_back() {
        let stack = Stack::new();
        let bytes: Vec<u8> = (0..=255).collect();
        let there = |stack: &Stack| stack.run(|| (bytes.len(), &raw const stack as u64));
        assert_eq!(there(&stack).0, 256, "without one, where the caller stands");
        let room = vec![0u8; 256 << 10].leak();
        let top = (room.as_ptr() as u64 + room.len() as u64) / 4096 * 4096;
        stack.top.store(top, Ordering::Release);
        std::thread::scope(|s| {
            for _ in 0..4 {
                s.spawn(|| {
                    for _ in 0..1000 {
                        let (len, sum, at) = stack.run(|| {
                            let mut copy = [0u8; 256];
                            copy.copy_from_slice(&bytes);
                            let sum: u64 = copy.iter().map(|&b| u64::from(b)).sum();
                            (bytes.len(), sum, copy.as_ptr() as u64)
                        });
                        assert_eq!((len, sum), (256, 255 * 128));
                        let is_there = (top - (200 << 10)..top).contains(&at);
                        assert!(is_there || cfg!(not(target_arch = "x86_64")));
                    }
                });
            }
        });
    }
}
