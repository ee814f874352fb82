//! Blocks: several pages in one Zstandard frame, of which single pages can be had.
//!
//! What a page has in common with its neighbours is stored once. The frame is flushed after every
//! [`Encoder::new`]'s `pages_per_flush` pages, so a decoder can stop behind the page that it was
//! asked for: on average half of the block is decoded.
//!
//! Safe to call from inside any process for the reasons in [`super::zstd`]: static contexts. The
//! decoder uses the calls that work without buffers of their own (`ZSTD_decompressContinue`): what
//! was decoded lies in the caller's buffer, one page after the other, and is the window.
#![allow(unsafe_code)]

use super::zstd::{failed, Workspace};
use super::{zstd, Corrupt};
use crate::PAGE_SIZE;
use core::ptr::NonNull;
use zstd_sys as z;

/// Most pages of a block: 64 KiB.
pub const BLOCK_PAGES_MAX: usize = 16;

/// A block encoder of one level.
pub struct Encoder {
    context: NonNull<z::ZSTD_CCtx>,
    workspace: Workspace,
    pages_per_flush: usize,
}

// SAFETY: as for `zstd::Encoder`.
unsafe impl Send for Encoder {}

impl Encoder {
    /// Makes the context, or `None` if the library refuses. `pages_per_flush` from 1 (single pages
    /// are quickest to get) to [`BLOCK_PAGES_MAX`] (densest).
    pub fn new(level: i32, pages: usize, pages_per_flush: usize) -> Option<Encoder> {
        // SAFETY: pure functions of their arguments.
        let (params, bytes) = unsafe {
            let params = z::ZSTD_getCParams(level, (pages * PAGE_SIZE) as u64, 0);
            (params, z::ZSTD_estimateCStreamSize_usingCParams(params))
        };
        if failed(bytes) || pages_per_flush == 0 || pages > BLOCK_PAGES_MAX {
            return None;
        }
        let workspace = Workspace::new(bytes);
        // SAFETY: as in `zstd::Encoder::new`.
        let context =
            unsafe { z::ZSTD_initStaticCCtx(workspace.words.as_ptr().cast(), workspace.bytes()) };
        let context = NonNull::new(context)?;
        zstd::configure(context, level, params)?;
        Some(Encoder { context, workspace, pages_per_flush })
    }

    /// Encodes whole pages, at most as many as the encoder was made for, into `out`. Returns the
    /// length, or `None` if it does not fit.
    pub fn encode(&mut self, pages: &[u8], out: &mut [u8]) -> Option<usize> {
        use z::ZSTD_EndDirective::{ZSTD_e_end, ZSTD_e_flush};
        let context = self.context.as_ptr();
        // SAFETY: the context is live and ours alone (`&mut self`). What an earlier block that did
        // not fit left behind is dropped here.
        let reset =
            unsafe { z::ZSTD_CCtx_reset(context, z::ZSTD_ResetDirective::ZSTD_reset_session_only) };
        let pieces = pages.len().div_ceil(self.pages_per_flush * PAGE_SIZE);
        let mut output =
            z::ZSTD_outBuffer { dst: out.as_mut_ptr().cast(), size: out.len(), pos: 0 };
        let mut left = usize::from(failed(reset));
        for (n, piece) in pages.chunks(self.pages_per_flush * PAGE_SIZE).enumerate() {
            let mut input =
                z::ZSTD_inBuffer { src: piece.as_ptr().cast(), size: piece.len(), pos: 0 };
            let end = if n + 1 == pieces { ZSTD_e_end } else { ZSTD_e_flush };
            // SAFETY: the context is ours, both buffers are live, of the stated lengths, and do not
            // overlap; the call does not keep them.
            left |= unsafe { z::ZSTD_compressStream2(context, &mut output, &mut input, end) };
            if left != 0 {
                // An error, or more to write than there is room.
                return None;
            }
        }
        Some(output.pos)
    }

    /// Memory held, in bytes.
    pub fn context_bytes(&self) -> usize {
        self.workspace.bytes()
    }
}

/// A block decoder.
pub struct Decoder {
    context: zstd::Decoder,
}

impl Decoder {
    /// Makes the context, or `None` if the library refuses.
    pub fn new() -> Option<Decoder> {
        Some(Decoder { context: zstd::Decoder::new()? })
    }

    /// Decodes at least the first `bytes` bytes of a block to the front of `pages`; returns how many
    /// there are now. The rest of the buffer has no meaning.
    pub fn decode(
        &mut self,
        stored: &[u8],
        bytes: usize,
        pages: &mut [u8],
    ) -> Result<usize, Corrupt> {
        let context = self.context.context();
        // SAFETY: the context is live and ours alone (`&mut self`).
        if failed(unsafe { z::ZSTD_decompressBegin(context) }) {
            return Err(Corrupt);
        }
        let (mut from, mut to) = (0, 0);
        while to < bytes {
            // SAFETY: as above.
            let wanted = unsafe { z::ZSTD_nextSrcSizeToDecompress(context) };
            let piece = stored.get(from..from + wanted).ok_or(Corrupt)?;
            if wanted == 0 {
                break;
            }
            let room = &mut pages[to..];
            // SAFETY: both buffers are live, of the stated lengths, and do not overlap; what was
            // decoded before lies just in front of `room` and was not changed since, as the library
            // demands. Bounds-checked against malformed input.
            let made = unsafe {
                z::ZSTD_decompressContinue(
                    context,
                    room.as_mut_ptr().cast(),
                    room.len(),
                    piece.as_ptr().cast(),
                    piece.len(),
                )
            };
            if failed(made) {
                return Err(Corrupt);
            }
            from += wanted;
            to += made;
        }
        if to < bytes {
            return Err(Corrupt);
        }
        Ok(to)
    }

    /// Memory held, in bytes.
    pub fn context_bytes(&self) -> usize {
        self.context.context_bytes()
    }
}
