//! LZ4 behind a dictionary of the application's own ([`super::dictionary`]).
//!
//! Why this is safe to call from inside any process: the two stream states are memory of ours that
//! `LZ4_initStream` makes valid; `LZ4_loadDict` fills a state with the positions of a text that it
//! does not copy, `LZ4_attach_dictionary` lets another state look things up there. None of them and
//! neither `LZ4_compress_fast_continue` nor `LZ4_decompress_safe_usingDict` calls `malloc` or
//! touches globals, and each stays within the lengths it is given, the decoder for any input.
//!
//! An object is the version of its dictionary in one byte and an LZ4 block.
#![allow(unsafe_code)]

use super::dictionary::Dictionaries;
use super::Corrupt;
use crate::{Page, PAGE_SIZE};
use core::ffi::{c_char, c_int, c_void};
use std::sync::Arc;

extern "C" {
    // In the static library of lz4-sys, but not all declared by it (1.11.1).
    fn LZ4_initStream(state: *mut c_void, bytes: usize) -> *mut c_void;
    fn LZ4_resetStream_fast(state: *mut c_void);
    fn LZ4_loadDictSlow(state: *mut c_void, text: *const c_char, len: c_int) -> c_int;
    fn LZ4_attach_dictionary(state: *mut c_void, dictionary: *const c_void);
    fn LZ4_compress_fast_continue(
        state: *mut c_void,
        source: *const c_char,
        dest: *mut c_char,
        source_len: c_int,
        dest_capacity: c_int,
        acceleration: c_int,
    ) -> c_int;
    fn LZ4_decompress_safe_usingDict(
        source: *const c_char,
        dest: *mut c_char,
        source_len: c_int,
        dest_capacity: c_int,
        dictionary: *const c_char,
        dictionary_len: c_int,
    ) -> c_int;
}

/// `sizeof(LZ4_stream_t)` in words: see [`super::lz4`].
const STATE_WORDS: usize = ((1 << 14) + 32) / 8;

type State = Box<[u64; STATE_WORDS]>;

fn new_state() -> Option<State> {
    let mut state: State = Box::new([0; STATE_WORDS]);
    // SAFETY: the state is writable, aligned to 8 and of the stated size; if the library wants more
    // it says so with null.
    let made = unsafe { LZ4_initStream(state.as_mut_ptr().cast(), STATE_WORDS * 8) };
    (!made.is_null()).then_some(state)
}

/// An LZ4 encoder that uses the newest dictionary.
pub struct Encoder {
    working: State,
    /// Positions of the dictionary's text; `version` says whose, 0 for nobody's.
    tables: State,
    dictionaries: Arc<Dictionaries>,
    version: u8,
    acceleration: c_int,
}

impl Encoder {
    /// Makes both states, or `None` if the library wants larger ones. `acceleration` from 1
    /// (densest) to 65.
    pub fn new(acceleration: i32, dictionaries: Arc<Dictionaries>) -> Option<Encoder> {
        let (working, tables) = (new_state()?, new_state()?);
        Some(Encoder { working, tables, dictionaries, version: 0, acceleration })
    }

    /// See [`super::Encoder::encode`].
    pub fn encode(&mut self, page: &Page, out: &mut [u8]) -> Option<usize> {
        let (version, block) = out.split_first_mut()?;
        let state = self.working.as_mut_ptr().cast::<c_void>();
        let tables = self.tables.as_mut_ptr().cast::<c_void>();
        if let Some(newest) = self.dictionaries.newest() {
            if newest.version() != self.version {
                let text = newest.content();
                // SAFETY: the state was made by `LZ4_initStream`; the text is live, of the stated
                // length (at most 60 KiB), and kept by `self.dictionaries`, which never gives a
                // dictionary up.
                unsafe { LZ4_loadDictSlow(tables, text.as_ptr().cast(), text.len() as c_int) };
                self.version = newest.version();
            }
        }
        *version = self.version;
        let capacity = c_int::try_from(block.len()).unwrap_or(c_int::MAX);
        // SAFETY: both states are valid and ours alone (`&mut self`); the one attached is only
        // read and lives as long. Source and destination are live buffers of the stated lengths
        // and do not overlap. The reset makes the state forget pages before; a state whose last
        // call failed is initialised anew below, as the library demands.
        let len = unsafe {
            LZ4_resetStream_fast(state);
            if self.version > 0 {
                LZ4_attach_dictionary(state, tables);
            }
            LZ4_compress_fast_continue(
                state,
                page.as_ptr().cast(),
                block.as_mut_ptr().cast(),
                PAGE_SIZE as c_int,
                capacity,
                self.acceleration,
            )
        };
        if len <= 0 {
            // SAFETY: as in `new_state`.
            unsafe { LZ4_initStream(state, STATE_WORDS * 8) };
        }
        usize::try_from(len).ok().filter(|len| *len > 0).map(|len| len + 1)
    }

    /// Memory held, in bytes.
    pub fn context_bytes(&self) -> usize {
        2 * STATE_WORDS * 8
    }
}

/// Decodes an object that must fill the page exactly.
pub fn decode(dictionaries: &Dictionaries, stored: &[u8], page: &mut Page) -> Result<(), Corrupt> {
    let (version, block) = stored.split_first().ok_or(Corrupt)?;
    let text = match *version {
        0 => return super::lz4::decode(block, page),
        v => dictionaries.get(v).ok_or(Corrupt)?.content(),
    };
    let block_len = c_int::try_from(block.len()).map_err(|_| Corrupt)?;
    // SAFETY: the three buffers are live, of the stated lengths, and do not overlap (`page` is
    // borrowed mutably). The function is bounds-checked against malformed input.
    let len = unsafe {
        LZ4_decompress_safe_usingDict(
            block.as_ptr().cast(),
            page.as_mut_ptr().cast(),
            block_len,
            PAGE_SIZE as c_int,
            text.as_ptr().cast(),
            text.len() as c_int,
        )
    };
    if len == PAGE_SIZE as c_int {
        Ok(())
    } else {
        Err(Corrupt)
    }
}
