//! Raw deflate (RFC 1951) through libdeflate, with contexts in memory from Rust's allocator.
//!
//! Why this is safe to call from inside any process: libdeflate allocates only in its two
//! `alloc_*_ex` functions, which are called here in constructors alone and are given our
//! `allocate` and `release` instead of the `malloc` of the application. Compressing and
//! decompressing allocate nothing (a test counts), keep no pointer to their buffers afterwards and
//! stay within the stated lengths, the decoder for any input.
#![allow(unsafe_code)]

use super::Corrupt;
use crate::{Page, PAGE_SIZE};
use core::ffi::c_void;
use core::mem::size_of;
use core::ptr::{null_mut, NonNull};
use core::sync::atomic::{AtomicUsize, Ordering};
use libdeflate_sys as d;
use std::alloc::{alloc, dealloc, Layout};
use std::sync::{Mutex, PoisonError};

/// C's `free` does not say how much; a header in front of each block does. 16 bytes, so that the
/// block keeps the alignment that C code expects of `malloc`.
const HEADER_BYTES: usize = 16;

/// How many blocks libdeflate ever asked for, and bytes in them.
static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);
static ALLOCATED_BYTES: AtomicUsize = AtomicUsize::new(0);

/// Constructors one at a time, so that each knows which bytes were its own. In a forked child it
/// may be held by a thread that is not there: who makes contexts there makes it anew first.
pub static CONSTRUCTION: Mutex<()> = Mutex::new(());

/// Blocks libdeflate asked for since the start of the process. Grows only in constructors.
pub fn allocations() -> usize {
    ALLOCATIONS.load(Ordering::Relaxed)
}

/// Runs a constructor; returns the context and the memory it holds.
fn construct<T>(make: impl FnOnce() -> *mut T) -> Option<(NonNull<T>, usize)> {
    let _one = CONSTRUCTION.lock().unwrap_or_else(PoisonError::into_inner);
    let before = ALLOCATED_BYTES.load(Ordering::Relaxed);
    let context = NonNull::new(make())?;
    Some((context, ALLOCATED_BYTES.load(Ordering::Relaxed) - before))
}

/// `malloc` for libdeflate. Never unwinds: `alloc` reports failure as null.
unsafe extern "C" fn allocate(bytes: usize) -> *mut c_void {
    let Some(total) = bytes.checked_add(HEADER_BYTES) else { return null_mut() };
    let Ok(layout) = Layout::from_size_align(total, HEADER_BYTES) else { return null_mut() };
    // SAFETY: the layout's size is at least HEADER_BYTES, so not zero.
    let block = unsafe { alloc(layout) };
    if block.is_null() {
        return null_mut();
    }
    // SAFETY: the block is at least HEADER_BYTES long and aligned for a usize.
    unsafe { block.cast::<usize>().write(total) };
    ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
    ALLOCATED_BYTES.fetch_add(total, Ordering::Relaxed);
    // SAFETY: HEADER_BYTES <= total.
    unsafe { block.add(HEADER_BYTES) }.cast()
}

/// `free` for libdeflate.
unsafe extern "C" fn release(pointer: *mut c_void) {
    if pointer.is_null() {
        return;
    }
    // SAFETY: libdeflate only frees what `allocate` gave it, so the header with the block's size
    // lies just before, and the layout is the one it was made with.
    unsafe {
        let block = pointer.cast::<u8>().sub(HEADER_BYTES);
        let total = block.cast::<usize>().read();
        dealloc(block, Layout::from_size_align_unchecked(total, HEADER_BYTES));
    }
}

fn options() -> d::libdeflate_options {
    d::libdeflate_options {
        sizeof_options: size_of::<d::libdeflate_options>(),
        malloc_func: Some(allocate),
        free_func: Some(release),
    }
}

/// A deflate encoder of one level.
pub struct Encoder {
    context: NonNull<d::libdeflate_compressor>,
    bytes: usize,
}

// SAFETY: the context refers to nothing of the thread that made it, is only used through
// `&mut self`, and its memory is freed through Rust's allocator, from any thread.
unsafe impl Send for Encoder {}

impl Encoder {
    /// Makes the context, or `None` if there is no memory.
    pub fn new(level: i32) -> Option<Encoder> {
        // SAFETY: the options are valid for the duration of the call; the library copies them.
        let make = || unsafe { d::libdeflate_alloc_compressor_ex(level, &options()) };
        let (context, bytes) = construct(make)?;
        Some(Encoder { context, bytes })
    }

    /// See [`super::Encoder::encode`].
    pub fn encode(&mut self, page: &Page, out: &mut [u8]) -> Option<usize> {
        // SAFETY: the context is live and ours alone (`&mut self`); source and destination are
        // live buffers of the stated lengths and do not overlap.
        let len = unsafe {
            d::libdeflate_deflate_compress(
                self.context.as_ptr(),
                page.as_ptr().cast(),
                PAGE_SIZE,
                out.as_mut_ptr().cast(),
                out.len(),
            )
        };
        (len > 0).then_some(len)
    }

    /// Memory held, in bytes.
    pub fn context_bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Encoder {
    fn drop(&mut self) {
        // SAFETY: made by `libdeflate_alloc_compressor_ex`, freed once.
        unsafe { d::libdeflate_free_compressor(self.context.as_ptr()) };
    }
}

/// A deflate decoder.
pub struct Decoder {
    context: NonNull<d::libdeflate_decompressor>,
    bytes: usize,
}

// SAFETY: as for `Encoder`.
unsafe impl Send for Decoder {}

impl Decoder {
    /// Makes the context, or `None` if there is no memory.
    pub fn new() -> Option<Decoder> {
        // SAFETY: as in `Encoder::new`.
        let make = || unsafe { d::libdeflate_alloc_decompressor_ex(&options()) };
        let (context, bytes) = construct(make)?;
        Some(Decoder { context, bytes })
    }

    /// Decodes a stream that must fill the page exactly.
    pub fn decode(&mut self, stored: &[u8], page: &mut Page) -> Result<(), Corrupt> {
        // SAFETY: the context is live and ours alone (`&mut self`); both buffers are live, of the
        // stated lengths, and do not overlap; a null `actual_out_nbytes_ret` is documented to mean
        // "the output must be filled exactly". Bounds-checked against malformed input.
        let result = unsafe {
            d::libdeflate_deflate_decompress(
                self.context.as_ptr(),
                stored.as_ptr().cast(),
                stored.len(),
                page.as_mut_ptr().cast(),
                PAGE_SIZE,
                null_mut(),
            )
        };
        if result == 0 {
            Ok(())
        } else {
            Err(Corrupt)
        }
    }

    /// Memory held, in bytes.
    pub fn context_bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Decoder {
    fn drop(&mut self) {
        // SAFETY: made by `libdeflate_alloc_decompressor_ex`, freed once.
        unsafe { d::libdeflate_free_decompressor(self.context.as_ptr()) };
    }
}
