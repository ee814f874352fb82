//! LZ4 block format through the C library, with the hash table in our hands.
//!
//! Why this is safe to call from inside any process: `LZ4_compress_fast_extState` takes its whole
//! state as an argument and initialises it on each call, `LZ4_decompress_safe` has no state. Both
//! are documented to stay within the two buffers whose sizes they are given, the decoder for any
//! input. Neither calls `malloc` (only `LZ4_createStream` and its kin do, and nothing here uses
//! them) and neither touches globals.
#![allow(unsafe_code)]

use super::Corrupt;
use crate::{Page, PAGE_SIZE};
use core::ffi::{c_char, c_int, c_void};

extern "C" {
    // In the static library of lz4-sys, but not declared by it (1.11.1).
    fn LZ4_compress_fast_extState(
        state: *mut c_void,
        source: *const c_char,
        dest: *mut c_char,
        source_len: c_int,
        dest_capacity: c_int,
        acceleration: c_int,
    ) -> c_int;
    fn LZ4_sizeofState() -> c_int;
}

/// Words of state: `LZ4_STREAM_MINSIZE` is (1 << LZ4_MEMORY_USAGE = 14) + 32 bytes, and must be
/// aligned to 8. Checked against the library when an encoder is made.
const STATE_WORDS: usize = ((1 << 14) + 32) / 8;

/// An LZ4 encoder. The level is LZ4's *acceleration*: higher is faster and less dense.
pub struct Encoder {
    state: Box<[u64]>,
    acceleration: c_int,
}

impl Encoder {
    /// Makes the state; `acceleration` from 1 (densest) to 65.
    pub fn new(acceleration: i32) -> Encoder {
        // SAFETY: takes nothing and returns a constant.
        let needed = unsafe { LZ4_sizeofState() };
        // A library built with another LZ4_MEMORY_USAGE would need more: then allocate that.
        let words = usize::try_from(needed).unwrap_or(0).div_ceil(8).max(STATE_WORDS);
        Encoder { state: vec![0; words].into_boxed_slice(), acceleration }
    }

    /// See [`super::Encoder::encode`].
    pub fn encode(&mut self, page: &Page, out: &mut [u8]) -> Option<usize> {
        let capacity = c_int::try_from(out.len()).unwrap_or(c_int::MAX);
        // SAFETY: the state is writable, aligned to 8 and at least LZ4_sizeofState() bytes long;
        // source and destination are live buffers of the stated lengths and do not overlap,
        // because `out` is borrowed mutably.
        let len = unsafe {
            LZ4_compress_fast_extState(
                self.state.as_mut_ptr().cast(),
                page.as_ptr().cast(),
                out.as_mut_ptr().cast(),
                PAGE_SIZE as c_int,
                capacity,
                self.acceleration,
            )
        };
        usize::try_from(len).ok().filter(|len| *len > 0)
    }

    /// Memory held, in bytes.
    pub fn context_bytes(&self) -> usize {
        self.state.len() * 8
    }
}

/// Decodes a block that must fill the page exactly.
pub fn decode(stored: &[u8], page: &mut Page) -> Result<(), Corrupt> {
    let stored_len = c_int::try_from(stored.len()).map_err(|_| Corrupt)?;
    // SAFETY: both buffers are live, of the stated lengths, and do not overlap (`page` is borrowed
    // mutably). The function is bounds-checked against malformed input.
    let len = unsafe {
        lz4_sys::LZ4_decompress_safe(
            stored.as_ptr().cast(),
            page.as_mut_ptr().cast(),
            stored_len,
            PAGE_SIZE as c_int,
        )
    };
    if len == PAGE_SIZE as c_int {
        Ok(())
    } else {
        Err(Corrupt)
    }
}
