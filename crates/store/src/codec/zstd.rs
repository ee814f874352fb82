//! Zstandard with static contexts: the library gets one block of our memory for each context and
//! never asks for more.
//!
//! Why this is safe to call from inside any process: a context made by `ZSTD_initStaticCCtx` or
//! `ZSTD_initStaticDCtx` is documented to fail with `memory_allocation` rather than to allocate,
//! and lies entirely within the workspace it was given. The one-shot calls used here
//! (`ZSTD_compress2`, `ZSTD_decompressDCtx`) keep no pointer to their buffers afterwards and stay
//! within the stated lengths, the decoder for any input. No threads (`nbWorkers` stays 0), no
//! dictionary, no legacy formats (not compiled in).
//!
//! A frame here has no magic number, content size, checksum or dictionary id, which leaves 2 bytes
//! of header: the pool knows the length, every page decodes to 4 KiB, and the tier has its own
//! checksum. Parameters are those of the level for a 4 KiB source, so the window is 4 KiB and the
//! workspace tens of KiB instead of the 1.3 MiB that level 1 wants for input of unknown size.
#![allow(unsafe_code)]

use super::Corrupt;
use crate::{Page, PAGE_SIZE};
use core::ptr::NonNull;
use zstd_sys as z;

/// Memory handed to the library, aligned to 8 as it demands. A raw pointer, because the library
/// keeps pointers into it between calls: a `Box` would claim to be their only owner.
pub(super) struct Workspace {
    pub(super) words: NonNull<[u64]>,
}

// SAFETY: the memory is this value's alone and freed through Rust's allocator, from any thread.
unsafe impl Send for Workspace {}

impl Workspace {
    pub(super) fn new(bytes: usize) -> Workspace {
        let words = vec![0u64; bytes.div_ceil(8)].into_boxed_slice();
        Workspace { words: NonNull::from(Box::leak(words)) }
    }

    pub(super) fn bytes(&self) -> usize {
        self.words.len() * 8
    }
}

impl Drop for Workspace {
    fn drop(&mut self) {
        // SAFETY: the pointer came from `Box::leak` in `new` and is given back once. The context
        // inside needs no teardown: it owns nothing outside the workspace.
        drop(unsafe { Box::from_raw(self.words.as_ptr()) });
    }
}

pub(super) fn failed(result: usize) -> bool {
    // SAFETY: a pure function of its argument.
    unsafe { z::ZSTD_isError(result) != 0 }
}

/// Sets what all frames here have in common.
pub(super) fn configure(
    context: NonNull<z::ZSTD_CCtx>,
    level: i32,
    params: z::ZSTD_compressionParameters,
) -> Option<()> {
    use z::ZSTD_cParameter as P;
    let set = [
        (P::ZSTD_c_compressionLevel, level),
        (P::ZSTD_c_experimentalParam2, z::ZSTD_format_e::ZSTD_f_zstd1_magicless as i32),
        (P::ZSTD_c_contentSizeFlag, 0),
        (P::ZSTD_c_checksumFlag, 0),
        (P::ZSTD_c_dictIDFlag, 0),
    ];
    for (param, value) in set {
        // SAFETY: the caller's context is live and nobody else uses it.
        if failed(unsafe { z::ZSTD_CCtx_setParameter(context.as_ptr(), param, value) }) {
            return None;
        }
    }
    // SAFETY: as above.
    (!failed(unsafe { z::ZSTD_CCtx_setCParams(context.as_ptr(), params) })).then_some(())
}

/// A Zstandard encoder of one level.
pub struct Encoder {
    context: NonNull<z::ZSTD_CCtx>,
    workspace: Workspace,
}

// SAFETY: the context lies within the workspace that the same value owns, refers to nothing of the
// thread that made it, and is only used through `&mut self`.
unsafe impl Send for Encoder {}

impl Encoder {
    /// Makes the context, or `None` if the library refuses.
    pub fn new(level: i32) -> Option<Encoder> {
        // SAFETY: pure functions of their arguments.
        let (params, bytes) = unsafe {
            let params = z::ZSTD_getCParams(level, PAGE_SIZE as u64, 0);
            (params, z::ZSTD_estimateCCtxSize_usingCParams(params))
        };
        if failed(bytes) {
            return None;
        }
        let workspace = Workspace::new(bytes);
        // SAFETY: the workspace is writable memory of the stated size, aligned to 8, and outlives
        // the context because both live in the same `Encoder`.
        let context =
            unsafe { z::ZSTD_initStaticCCtx(workspace.words.as_ptr().cast(), workspace.bytes()) };
        let context = NonNull::new(context)?;
        configure(context, level, params)?;
        let mut encoder = Encoder { context, workspace };
        // The estimate is the library's promise; hold it to that here, where failing is allowed,
        // and not at the first page.
        encoder.encode(&[0x5a; PAGE_SIZE], &mut [0; 64])?;
        Some(encoder)
    }

    /// Lets frames from now on refer to a dictionary, or to none for null. If the library refuses
    /// (false), they refer to what they did before. The tables must stay as they are until this is
    /// called again or the encoder is dropped.
    pub(super) fn refer_to(&mut self, tables: *const z::ZSTD_CDict) -> bool {
        // SAFETY: the context is live and ours alone (`&mut self`). It keeps the pointer, which the
        // caller keeps valid.
        unsafe {
            // A page that did not fit leaves the context within its frame, where no dictionary can
            // be set or taken away.
            let session = z::ZSTD_ResetDirective::ZSTD_reset_session_only;
            !failed(z::ZSTD_CCtx_reset(self.context.as_ptr(), session))
                && !failed(z::ZSTD_CCtx_refCDict(self.context.as_ptr(), tables))
        }
    }

    /// See [`super::Encoder::encode`].
    pub fn encode(&mut self, page: &Page, out: &mut [u8]) -> Option<usize> {
        // SAFETY: the context is live and ours alone (`&mut self`); source and destination are
        // live buffers of the stated lengths and do not overlap.
        let len = unsafe {
            z::ZSTD_compress2(
                self.context.as_ptr(),
                out.as_mut_ptr().cast(),
                out.len(),
                page.as_ptr().cast(),
                PAGE_SIZE,
            )
        };
        (!failed(len)).then_some(len)
    }

    /// Memory held, in bytes.
    pub fn context_bytes(&self) -> usize {
        self.workspace.bytes()
    }
}

/// A Zstandard decoder.
pub struct Decoder {
    context: NonNull<z::ZSTD_DCtx>,
    workspace: Workspace,
}

// SAFETY: as for `Encoder`.
unsafe impl Send for Decoder {}

impl Decoder {
    /// Makes the context, or `None` if the library refuses.
    pub fn new() -> Option<Decoder> {
        // SAFETY: a pure function.
        let workspace = Workspace::new(unsafe { z::ZSTD_estimateDCtxSize() });
        // SAFETY: as in `Encoder::new`.
        let context =
            unsafe { z::ZSTD_initStaticDCtx(workspace.words.as_ptr().cast(), workspace.bytes()) };
        let context = NonNull::new(context)?;
        // SAFETY: the context was just made in live memory that nobody else knows.
        let set = unsafe {
            z::ZSTD_DCtx_setParameter(
                context.as_ptr(),
                z::ZSTD_dParameter::ZSTD_d_experimentalParam1,
                z::ZSTD_format_e::ZSTD_f_zstd1_magicless as i32,
            )
        };
        (!failed(set)).then_some(Decoder { context, workspace })
    }

    pub(super) fn context(&mut self) -> *mut z::ZSTD_DCtx {
        self.context.as_ptr()
    }

    /// Decodes frames that must fill the page exactly.
    pub fn decode(&mut self, stored: &[u8], page: &mut Page) -> Result<(), Corrupt> {
        // SAFETY: the context is live and ours alone (`&mut self`); both buffers are live, of the
        // stated lengths, and do not overlap. The function is bounds-checked against malformed
        // input.
        let len = unsafe {
            z::ZSTD_decompressDCtx(
                self.context.as_ptr(),
                page.as_mut_ptr().cast(),
                PAGE_SIZE,
                stored.as_ptr().cast(),
                stored.len(),
            )
        };
        if len == PAGE_SIZE {
            Ok(())
        } else {
            Err(Corrupt)
        }
    }

    /// Memory held, in bytes.
    pub fn context_bytes(&self) -> usize {
        self.workspace.bytes()
    }
}
