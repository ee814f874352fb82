//! Zstandard behind a dictionary of the application's own ([`super::dictionary`]).
//!
//! Why this is safe to call from inside any process: as in [`super::zstd`]. The tables of a
//! dictionary (`ZSTD_initStaticCDict`, `ZSTD_initStaticDDict`) lie in memory handed over, refer to
//! the dictionary's text without copying it, and are not changed by use, so any number of threads
//! may decode with one.
//!
//! The dictionary is plain text to zstd: it has no entropy tables of its own, because those would
//! have to be made by zstd's trainer, which calls `malloc`. An object is the version of its
//! dictionary in one byte and a frame as in [`super::zstd`].
#![allow(unsafe_code)]

use super::dictionary::{Dictionaries, DICTIONARY_BYTES_MAX};
use super::zstd::{self, failed, Workspace};
use super::Corrupt;
use crate::{Page, PAGE_SIZE};
use core::ptr::NonNull;
use std::sync::Arc;
use zstd_sys as z;

/// What a decoder needs of a dictionary. Shared by all threads.
pub(super) struct DecoderTables {
    tables: NonNull<z::ZSTD_DDict>,
    workspace: Workspace,
}

// SAFETY: the tables lie in the workspace that the same value owns, refer besides only to the
// dictionary's text, which lives and stays unchanged as long (see `new`), and are never written
// after they are made: the library takes them as `const`.
unsafe impl Send for DecoderTables {}
// SAFETY: as above.
unsafe impl Sync for DecoderTables {}

impl DecoderTables {
    /// Tables for a text on the heap that the caller keeps, unmoved and unchanged, as long as the
    /// tables (`Dictionary` owns both and shows the text only by shared reference).
    pub(super) fn new(content: &[u8]) -> Option<DecoderTables> {
        let by_ref = z::ZSTD_dictLoadMethod_e::ZSTD_dlm_byRef;
        // SAFETY: a pure function of its arguments.
        let bytes = unsafe { z::ZSTD_estimateDDictSize(content.len(), by_ref) };
        let workspace = Workspace::new(bytes);
        // SAFETY: the workspace is writable, aligned to 8, of the stated size, and lives as long as
        // the tables; the text is a live buffer of the stated length.
        let tables = unsafe {
            z::ZSTD_initStaticDDict(
                workspace.words.as_ptr().cast(),
                workspace.bytes(),
                content.as_ptr().cast(),
                content.len(),
                by_ref,
                z::ZSTD_dictContentType_e::ZSTD_dct_rawContent,
            )
        };
        Some(DecoderTables { tables: NonNull::new(tables.cast_mut())?, workspace })
    }

    pub(super) fn bytes(&self) -> usize {
        self.workspace.bytes()
    }
}

/// A Zstandard encoder that uses the newest dictionary.
pub struct Encoder {
    context: zstd::Encoder,
    dictionaries: Arc<Dictionaries>,
    /// Room for the tables of the longest dictionary; `version` says whose they are, 0 for none.
    tables: Workspace,
    params: z::ZSTD_compressionParameters,
    /// The newest dictionary that was looked at, usable or not.
    seen: u8,
    version: u8,
}

impl Encoder {
    /// Makes the context and room for a dictionary's tables, or `None` if the library refuses.
    pub fn new(level: i32, dictionaries: Arc<Dictionaries>) -> Option<Encoder> {
        // SAFETY: pure functions of their arguments.
        let (params, bytes) = unsafe {
            let params = z::ZSTD_getCParams(level, PAGE_SIZE as u64, DICTIONARY_BYTES_MAX);
            let by_ref = z::ZSTD_dictLoadMethod_e::ZSTD_dlm_byRef;
            (params, z::ZSTD_estimateCDictSize_advanced(DICTIONARY_BYTES_MAX, params, by_ref))
        };
        if failed(bytes) {
            return None;
        }
        // The context holds tables for the page alone and looks the dictionary's up where they are.
        let context = zstd::Encoder::new(level)?;
        let tables = Workspace::new(bytes);
        Some(Encoder { context, dictionaries, tables, params, seen: 0, version: 0 })
    }

    /// See [`super::Encoder::encode`].
    pub fn encode(&mut self, page: &Page, out: &mut [u8]) -> Option<usize> {
        self.take_up();
        let (version, frame) = out.split_first_mut()?;
        *version = self.version;
        Some(1 + self.context.encode(page, frame)?)
    }

    /// Makes the tables of a dictionary that is newer than the last one seen. Should the library
    /// refuse, frames go on without a dictionary.
    fn take_up(&mut self) {
        let Some(newest) = self.dictionaries.newest() else { return };
        if newest.version() == self.seen {
            return;
        }
        self.seen = newest.version();
        // Before the tables change, the context lets go of them. If it will not, frames go on to be
        // those of the version before.
        if !self.context.refer_to(core::ptr::null()) {
            return;
        }
        self.version = 0;
        // SAFETY: as in `DecoderTables::new`. The text is kept by `self.dictionaries`, which never
        // gives a dictionary up; nothing refers to tables that were here before.
        let tables = unsafe {
            z::ZSTD_initStaticCDict(
                self.tables.words.as_ptr().cast(),
                self.tables.bytes(),
                newest.content().as_ptr().cast(),
                newest.content().len(),
                z::ZSTD_dictLoadMethod_e::ZSTD_dlm_byRef,
                z::ZSTD_dictContentType_e::ZSTD_dct_rawContent,
                self.params,
            )
        };
        if tables.is_null() || !self.context.refer_to(tables) {
            return;
        }
        // Whether the context has room enough is found out here and not at a page that would then
        // pass for incompressible.
        let works = self.context.encode(&[0x5a; PAGE_SIZE], &mut [0; 64]).is_some();
        if works || !self.context.refer_to(core::ptr::null()) {
            self.version = newest.version();
        }
    }

    /// Memory held, in bytes.
    pub fn context_bytes(&self) -> usize {
        self.context.context_bytes() + self.tables.bytes()
    }
}

/// A decoder for objects of every version.
pub struct Decoder {
    context: zstd::Decoder,
    dictionaries: Arc<Dictionaries>,
}

impl Decoder {
    /// Makes the context, or `None` if the library refuses.
    pub fn new(dictionaries: Arc<Dictionaries>) -> Option<Decoder> {
        Some(Decoder { context: zstd::Decoder::new()?, dictionaries })
    }

    /// Decodes an object that must fill the page exactly.
    pub fn decode(&mut self, stored: &[u8], page: &mut Page) -> Result<(), Corrupt> {
        let (version, frame) = stored.split_first().ok_or(Corrupt)?;
        if *version == 0 {
            return self.context.decode(frame, page);
        }
        let tables = self.dictionaries.get(*version).ok_or(Corrupt)?.zstd();
        // SAFETY: the context is live and ours alone (`&mut self`); the tables are live and only
        // read; both buffers are live, of the stated lengths, and do not overlap. The function is
        // bounds-checked against malformed input.
        let len = unsafe {
            z::ZSTD_decompress_usingDDict(
                self.context.context(),
                page.as_mut_ptr().cast(),
                PAGE_SIZE,
                frame.as_ptr().cast(),
                frame.len(),
                tables.tables.as_ptr(),
            )
        };
        if len == PAGE_SIZE {
            Ok(())
        } else {
            Err(Corrupt)
        }
    }

    /// Memory held, in bytes, without the dictionaries.
    pub fn context_bytes(&self) -> usize {
        self.context.context_bytes()
    }
}
