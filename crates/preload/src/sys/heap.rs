//! Rust's heap in this library: dlmalloc over the runtime's own memory, behind one lock.
//!
//! Threads of the program allocate, too, when they fork or when one of our shims works for them;
//! they are served on a stack of ours (`stack.rs`), one after the other.

use super::memory;
use super::stack::Stack;
use super::sync::{renew, Mutex, OnlyThread};
use std::alloc::{GlobalAlloc, Layout};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::PoisonError;

static HEAP: Mutex<Option<dlmalloc::Dlmalloc<memory::HeapSource>>> = Mutex::new(None);

/// Where threads of the program are served.
static STACK: Stack = Stack::for_moments();

/// Makes that stack, before there is anything in a tier.
pub(super) fn prepare() {
    STACK.prepare(256 << 10);
}

/// In a forked child: what was allocated is its parent's, and not there.
pub(super) fn forget(only: &OnlyThread) {
    STACK.forget(only);
    renew(only, &HEAP, None);
    GIVES_BACK.store(false, Ordering::Relaxed);
}

/// Free bytes that are kept at the end of the heap, for what comes and goes between two calls of
/// [`give_back`].
const KEPT_BYTES: usize = 128 << 10;

/// Whether the heap is shrinking now. Written and read under its lock.
static GIVES_BACK: AtomicBool = AtomicBool::new(false);

/// Whether dlmalloc may shrink the heap. It would with any block that is freed, but the thread may
/// be the program's, and may have been forbidden the call.
pub(super) fn may_give_back() -> bool {
    GIVES_BACK.load(Ordering::Relaxed)
}

/// Gives back what is free at the end of the heap.
pub(super) fn give_back() {
    let mut heap = HEAP.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(h) = heap.as_mut() else { return };
    GIVES_BACK.store(true, Ordering::Relaxed);
    // SAFETY: the heap is whole between two calls, and this one touches nothing that is in use. Its
    // `madvise` is our own function (`interpose.rs`), which for this advice only asks the kernel.
    unsafe { h.trim(KEPT_BYTES) };
    GIVES_BACK.store(false, Ordering::Relaxed);
}

/// What is asked of the heap.
#[derive(Clone, Copy)]
enum Call {
    Take(Layout),
    TakeZeroed(Layout),
    GiveBack(*mut u8, Layout),
    Resize(*mut u8, Layout, usize),
}

/// Serves a call. The lock is held for a few hundred nanoseconds, by [`give_back`] for as long as
/// the kernel takes to empty what it is given, and never across a call that could re-enter it.
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

/// Rust's global allocator in this library.
pub struct OwnHeap;

impl OwnHeap {
    /// # Safety
    ///
    /// As for [`serve`].
    unsafe fn call(&self, call: Call) -> *mut u8 {
        // SAFETY: the caller's promise.
        STACK.run(move || unsafe { serve(call) })
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
    fn what_is_free_at_the_end_is_given_back_and_is_zero_when_it_is_taken_again() {
        let layout = Layout::from_size_align(8 << 20, 4096).expect("a layout");
        for round in 0..3 {
            // SAFETY: taken, written and read within its bounds, given back once.
            unsafe {
                let p = OwnHeap.alloc_zeroed(layout);
                assert!(!p.is_null());
                let block = std::slice::from_raw_parts_mut(p, layout.size());
                assert!(block.iter().all(|b| *b == 0), "round {round}");
                block.fill(0xa5);
                assert!(memory::heap_bytes() >= 8 << 20);
                OwnHeap.dealloc(p, layout);
            }
            assert!(memory::heap_bytes() >= 8 << 20, "given back by who freed it");
            give_back();
            // (The other test's blocks may be there.)
            assert!(memory::heap_bytes() < 4 << 20, "{} are kept", memory::heap_bytes());
        }
    }

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
