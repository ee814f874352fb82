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
            // Without flushes in between the library needs no buffers of its own.
            let bytes = match pages <= pages_per_flush {
                true => z::ZSTD_estimateCCtxSize_usingCParams(params),
                false => z::ZSTD_estimateCStreamSize_usingCParams(params),
            };
            (params, bytes)
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
        if pages.len() <= self.pages_per_flush * PAGE_SIZE {
            // SAFETY: the context is live and ours alone (`&mut self`); both buffers are live, of
            // the stated lengths, and do not overlap. The call drops what an earlier block that
            // did not fit left behind.
            let len = unsafe {
                let (to, from) = (out.as_mut_ptr().cast(), pages.as_ptr().cast());
                z::ZSTD_compress2(context, to, out.len(), from, pages.len())
            };
            return (!failed(len)).then_some(len);
        }
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
        Some(Decoder::with(zstd::Decoder::new()?))
    }

    /// The same on a context that there is already.
    pub fn with(context: zstd::Decoder) -> Decoder {
        Decoder { context }
    }

    /// The context, for pages that are frames of their own.
    pub fn single(&mut self) -> &mut zstd::Decoder {
        &mut self.context
    }

    /// Decodes at least the first `bytes` bytes of a block to the front of `pages`; returns how
    /// many there are now. The rest of the buffer has no meaning.
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
            // A frame that makes nothing out of something ends when its bytes do.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{page as any_page, Random};
    use std::time::{Duration, Instant};

    fn any_block(random: &mut Random, pages: usize) -> Vec<u8> {
        (0..pages).flat_map(|_| any_page(random)).collect()
    }

    #[test]
    fn every_page_can_be_had_alone() {
        let mut random = Random(1);
        let mut decoder = Decoder::new().unwrap();
        let mut out = vec![0; 2 * BLOCK_PAGES_MAX * PAGE_SIZE];
        for pages in [1, 4, 8, BLOCK_PAGES_MAX] {
            for (level, flush) in [(-1, 1), (1, 1), (3, 2), (9, 1), (9, pages), (19, pages)] {
                let mut encoder = Encoder::new(level, pages, flush).unwrap();
                for _ in 0..20 {
                    // The last block of a region may be a shorter one.
                    let count = 1 + random.below(pages);
                    let block = any_block(&mut random, count);
                    let len = encoder.encode(&block, &mut out).unwrap();
                    for n in 1..=count {
                        let mut back = vec![0x77; count * PAGE_SIZE];
                        let made = decoder.decode(&out[..len], n * PAGE_SIZE, &mut back).unwrap();
                        assert!(made >= n * PAGE_SIZE && back[..made] == block[..made]);
                        if flush == 1 {
                            assert_eq!(made, n * PAGE_SIZE, "it decoded more than was asked for");
                        }
                    }
                    let mut more = vec![0; (count + 1) * PAGE_SIZE];
                    let past_end = decoder.decode(&out[..len], more.len(), &mut more);
                    assert_eq!(past_end, Err(Corrupt));
                }
            }
        }
    }

    #[test]
    fn what_does_not_fit_is_refused_and_forgotten() {
        let mut random = Random(2);
        let noise: Vec<u8> = (0..4 * PAGE_SIZE).map(|_| random.word() as u8).collect();
        let mut encoder = Encoder::new(3, 4, 1).unwrap();
        let mut decoder = Decoder::new().unwrap();
        assert_eq!(encoder.encode(&noise, &mut vec![0; 4 * crate::CUTOFF_BYTES]), None);
        assert_eq!(encoder.encode(&noise, &mut []), None);
        let block = any_block(&mut random, 4);
        let mut out = vec![0; 8 * PAGE_SIZE];
        let len = encoder.encode(&block, &mut out).unwrap();
        let mut back = vec![0; 4 * PAGE_SIZE];
        assert_eq!(decoder.decode(&out[..len], back.len(), &mut back), Ok(block.len()));
        assert!(back == block);
        assert!(Encoder::new(1, BLOCK_PAGES_MAX + 1, 1).is_none());
        assert!(Encoder::new(1, 4, 0).is_none());
    }

    #[test]
    fn any_bytes_are_pages_or_an_error() {
        let mut random = Random(3);
        let mut encoder = Encoder::new(1, 4, 1).unwrap();
        let mut decoder = Decoder::new().unwrap();
        let mut out = vec![0; 8 * PAGE_SIZE];
        let mut back = vec![0; 4 * PAGE_SIZE];
        let (start, mut tries, mut decoded) = (Instant::now(), 0u64, 0u64);
        while start.elapsed() < Duration::from_millis(1500) {
            let block = any_block(&mut random, 4);
            let len = encoder.encode(&block, &mut out).unwrap();
            for _ in 0..20 {
                let mut bytes = out[..len].to_vec();
                match random.below(4) {
                    0 => bytes.truncate(random.below(len)),
                    1 => bytes.fill_with(|| random.word() as u8 & 0x33),
                    _ => (0..1 + random.below(4))
                        .for_each(|_| bytes[random.below(len)] = random.word() as u8),
                }
                let wanted = (1 + random.below(4)) * PAGE_SIZE;
                tries += 1;
                decoded += u64::from(decoder.decode(&bytes, wanted, &mut back).is_ok());
            }
            assert_eq!(decoder.decode(&out[..len], block.len(), &mut back), Ok(block.len()));
            assert!(back == block, "a context remembers what it should not");
        }
        println!("{tries} inputs, {decoded} of them decoded");
    }
}
