//! LZ4's block format from the C library's searching encoder (LZ4HC): more time to encode, fewer
//! bytes, and quicker to decode. The decoder is that of [`super::lz4`].
//!
//! Why this is safe to call from inside any process: as for [`super::lz4`], the state is an
//! argument, in memory that we own, and both calls stay within the buffers whose sizes they are
//! given. At levels up to 9 the encoder does not call `malloc` (`tests/no_allocation.rs` counts).
//! From level 10 on it would, for the table of its optimal parser, so those levels are not offered;
//! on single pages they save hardly more than level 9 does.
//!
//! The state is 256 KiB, of which a page fills little, so it is initialised once:
//! `LZ4_compress_HC_extStateHC_fastReset` is documented to take a state that was initialised or
//! used before, even by a call that failed, and leaves what is in the tables behind by counting
//! positions on. What it makes does not depend on the pages before (a test compares).
#![allow(unsafe_code)]

use crate::{Page, PAGE_SIZE};
use core::ffi::{c_char, c_int, c_void};

extern "C" {
    // In the static library of lz4-sys, but not declared by it (1.11.1).
    fn LZ4_sizeofStateHC() -> c_int;
    fn LZ4_initStreamHC(buffer: *mut c_void, size: usize) -> *mut c_void;
    fn LZ4_compress_HC_extStateHC_fastReset(
        state: *mut c_void,
        source: *const c_char,
        dest: *mut c_char,
        source_len: c_int,
        dest_capacity: c_int,
        level: c_int,
    ) -> c_int;
}

/// A searching LZ4 encoder. Higher levels look longer.
pub struct Encoder {
    state: Box<[u64]>,
    level: c_int,
}

impl Encoder {
    /// Makes the state, or `None` if the library refuses it. Levels are those of
    /// [`terrace_core::tier::Codec::levels`]: higher ones would call `malloc`.
    pub fn new(level: i32) -> Option<Encoder> {
        // SAFETY: takes nothing and returns a constant.
        let needed = usize::try_from(unsafe { LZ4_sizeofStateHC() }).ok()?;
        let mut state = vec![0u64; needed.div_ceil(8)].into_boxed_slice();
        // SAFETY: the buffer is writable, aligned to 8 and of the stated length. The function
        // writes only there, and returns null where that is too short.
        let stream = unsafe { LZ4_initStreamHC(state.as_mut_ptr().cast(), state.len() * 8) };
        (!stream.is_null()).then_some(Encoder { state, level })
    }

    /// See [`super::Encoder::encode`].
    pub fn encode(&mut self, page: &Page, out: &mut [u8]) -> Option<usize> {
        let capacity = c_int::try_from(out.len()).unwrap_or(c_int::MAX);
        // SAFETY: the state was initialised in `new`, is ours alone (`&mut self`) and as long as
        // the library asked; source and destination are live buffers of the stated lengths and do
        // not overlap, because `out` is borrowed mutably. The state keeps the address of the page
        // but the call begins by setting a new one, so it is never read through afterwards.
        let len = unsafe {
            LZ4_compress_HC_extStateHC_fastReset(
                self.state.as_mut_ptr().cast(),
                page.as_ptr().cast(),
                out.as_mut_ptr().cast(),
                PAGE_SIZE as c_int,
                capacity,
                self.level,
            )
        };
        usize::try_from(len).ok().filter(|len| *len > 0)
    }

    /// Memory held, in bytes.
    pub fn context_bytes(&self) -> usize {
        self.state.len() * 8
    }
}
