//! Rust's heap in this library: dlmalloc over the runtime's own memory, behind one lock.
//!
//! Threads of the program allocate, too, when they fork or when one of our shims works for them. A
//! stack of theirs may lie in memory that is tiered, and a page of it may be out: were the lock
//! held when such a page is touched, the thread would wait for the pager, and the pager, as soon as
//! it allocates, for the thread. So whoever does not stand on a stack of ours is served on one, one
//! after the other.

use super::memory;
use super::sync::{renew, Mutex, OnlyThread};
use std::alloc::{GlobalAlloc, Layout};
use std::cell::UnsafeCell;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::PoisonError;

static HEAP: Mutex<Option<dlmalloc::Dlmalloc<memory::HeapSource>>> = Mutex::new(None);

/// Where the stack begins on which threads of the program are served; 0 while there is none.
static STACK_TOP: AtomicU64 = AtomicU64::new(0);
const STACK_BYTES: u64 = 256 << 10;
/// Held by the thread that is served there.
static TURN: Mutex<()> = Mutex::new(());

/// Makes that stack, before there is anything in a tier.
pub(super) fn prepare() {
    if let Some(start) = memory::carve(STACK_BYTES) {
        STACK_TOP.store(start + STACK_BYTES, Ordering::Release);
    }
}

/// In a forked child: what was allocated is its parent's, and not there.
pub(super) fn forget(only: &OnlyThread) {
    STACK_TOP.store(0, Ordering::Relaxed);
    renew(only, &TURN, ());
    renew(only, &HEAP, None);
}

/// What is asked of the heap.
#[derive(Clone, Copy)]
enum Call {
    Take(Layout),
    TakeZeroed(Layout),
    GiveBack(*mut u8, Layout),
    Resize(*mut u8, Layout, usize),
}

/// Serves a call. The lock is held for a few hundred nanoseconds and never across a call that could
/// re-enter it.
///
/// # Safety
///
/// As for the function of [`GlobalAlloc`] that it is made of.
unsafe fn serve(call: Call) -> *mut u8 {
    let mut heap = HEAP.lock().unwrap_or_else(PoisonError::into_inner);
    let h = heap.get_or_insert_with(|| dlmalloc::Dlmalloc::new_with_allocator(memory::HeapSource));
    // SAFETY: the caller's promise is dlmalloc's.
    unsafe {
        match call {
            Call::Take(l) => h.malloc(l.size(), l.align()),
            Call::TakeZeroed(l) => h.calloc(l.size(), l.align()),
            Call::GiveBack(p, l) => {
                h.free(p, l.size(), l.align());
                null_mut()
            }
            Call::Resize(p, l, new) => h.realloc(p, l.size(), l.align(), new),
        }
    }
}

/// A call and its answer, where neither is on anybody's stack.
struct Desk(UnsafeCell<Option<Call>>, UnsafeCell<*mut u8>);

// SAFETY: only the thread that holds `TURN` uses it.
unsafe impl Sync for Desk {}

static DESK: Desk = Desk(UnsafeCell::new(None), UnsafeCell::new(null_mut()));

/// Serves what lies on the desk.
extern "C" fn serve_at_desk() {
    // SAFETY: called by the thread that holds `TURN` and has put a call there, by its own promise.
    unsafe {
        if let Some(call) = *DESK.0.get() {
            *DESK.1.get() = serve(call);
        }
    }
}

/// Serves a call on the stack that begins at `top`.
///
/// # Safety
///
/// As for [`serve`]; `top` is that of `prepare`'s stack.
#[cfg(target_arch = "x86_64")]
unsafe fn serve_on(top: u64, call: Call) -> *mut u8 {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    // SAFETY: the turn is ours, so the desk is, and nobody else stands on that stack. It is aligned
    // to a page. What is called neither unwinds (panics abort) nor looks at who called it, and the
    // stack pointer is back in its place afterwards, kept in a register that functions preserve.
    unsafe {
        *DESK.0.get() = Some(call);
        core::arch::asm!(
            "mov r12, rsp",
            "mov rsp, {top}",
            "call {serve}",
            "mov rsp, r12",
            top = in(reg) top,
            serve = sym serve_at_desk,
            out("r12") _,
            clobber_abi("C"),
        );
        *DESK.1.get()
    }
}

/// Other processors have not been tried: served where the caller stands.
///
/// # Safety
///
/// As for [`serve`].
#[cfg(not(target_arch = "x86_64"))]
unsafe fn serve_on(_: u64, call: Call) -> *mut u8 {
    let _ = (&TURN, &DESK, serve_at_desk as extern "C" fn());
    // SAFETY: the caller's promise.
    unsafe { serve(call) }
}

/// Rust's global allocator in this library.
pub struct OwnHeap;

impl OwnHeap {
    /// # Safety
    ///
    /// As for [`serve`].
    unsafe fn call(&self, call: Call) -> *mut u8 {
        let here = &raw const call as u64;
        let top = STACK_TOP.load(Ordering::Acquire);
        // SAFETY: the caller's promise.
        unsafe {
            match top == 0 || memory::is_own(here, here + 1) {
                true => serve(call),
                false => serve_on(top, call),
            }
        }
    }
}

// SAFETY: dlmalloc is a correct allocator, and there is one lock around it.
unsafe impl GlobalAlloc for OwnHeap {
    unsafe fn alloc(&self, l: Layout) -> *mut u8 {
        // SAFETY: the caller's promise.
        unsafe { self.call(Call::Take(l)) }
    }
    unsafe fn alloc_zeroed(&self, l: Layout) -> *mut u8 {
        // SAFETY: the caller's promise.
        unsafe { self.call(Call::TakeZeroed(l)) }
    }
    unsafe fn dealloc(&self, p: *mut u8, l: Layout) {
        // SAFETY: the caller's promise.
        unsafe { self.call(Call::GiveBack(p, l)) };
    }
    unsafe fn realloc(&self, p: *mut u8, l: Layout, new: usize) -> *mut u8 {
        // SAFETY: the caller's promise.
        unsafe { self.call(Call::Resize(p, l, new)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_on_stacks_of_their_own_are_served_side_by_side() {
        let work = |n: usize| {
            let layout = Layout::from_size_align(64 + n * 8, 16).expect("a layout");
            for round in 0..2_000u64 {
                // SAFETY: taken, written within its bounds, resized and given back once.
                unsafe {
                    let p = OwnHeap.alloc_zeroed(layout);
                    assert!(!p.is_null() && p.read() == 0);
                    p.cast::<u64>().write(round);
                    let p = OwnHeap.realloc(p, layout, 4 * layout.size());
                    assert_eq!(p.cast::<u64>().read(), round);
                    let grown = Layout::from_size_align(4 * layout.size(), 16).expect("a layout");
                    OwnHeap.dealloc(p, grown);
                }
            }
        };
        std::thread::scope(|s| (0..4).for_each(|n| drop(s.spawn(move || work(n)))));
    }
}
