//! What a thread needs to read pages out of blocks, and the block that it read last.
//!
//! A scan wants the pages of a block one after the other. The block that was decoded last is kept,
//! by the number of its frame, which never means another; whether the page is still in that frame
//! was looked up just before. So the second page of a block costs a copy.

use super::table::Frame;
use super::PAGES_MAX;
use crate::codec::{block, zstd};
use crate::tier::{LoadError, Tier};
use crate::{Page, PAGE_SIZE};

/// Buffers and a decoder of one thread: 222 KiB.
pub struct Reader {
    decoder: block::Decoder,
    stored: Box<[u8]>,
    pages: Box<[u8]>,
    /// Number of the frame in `stored`; 0 for none.
    fetched: u64,
    /// Number of the frame of which `ready` bytes are decoded in `pages`; 0 for none.
    decoded: u64,
    ready: usize,
}

/// Pieces that were read.
pub(super) struct Fetched {
    lens: [u16; PAGES_MAX],
    count: usize,
}

impl Fetched {
    /// Their lengths in bytes; none for what was there already.
    pub(super) fn lens(&self) -> impl Iterator<Item = usize> + '_ {
        self.lens[..self.count].iter().map(|len| usize::from(*len))
    }
}

impl Reader {
    /// Makes the context and the buffers; the only place that allocates. `None` if the library
    /// refuses.
    pub fn new() -> Option<Reader> {
        Some(Reader::with(zstd::Decoder::new()?))
    }

    /// The same with a decoder that there is already.
    pub(crate) fn with(decoder: zstd::Decoder) -> Reader {
        let buffer = || vec![0; PAGES_MAX * PAGE_SIZE].into_boxed_slice();
        Reader {
            decoder: block::Decoder::with(decoder),
            stored: buffer(),
            pages: buffer(),
            fetched: 0,
            decoded: 0,
            ready: 0,
        }
    }

    /// The decoder, for pages that are not in blocks. What is kept of a block stays.
    pub(crate) fn single(&mut self) -> &mut zstd::Decoder {
        self.decoder.single()
    }

    /// Memory held, in bytes.
    pub fn context_bytes(&self) -> usize {
        self.decoder.context_bytes() + self.stored.len() + self.pages.len()
    }

    /// Copies a page out if its frame is the one decoded last; else false.
    pub(super) fn give(&self, number: u64, index: usize, page: &mut Page) -> bool {
        let (start, end) = (index * PAGE_SIZE, (index + 1) * PAGE_SIZE);
        if number == 0 || number != self.decoded || end > self.ready {
            return false;
        }
        self.pages.get(start..end).is_some_and(|bytes| {
            page.copy_from_slice(bytes);
            true
        })
    }

    /// Number of the frame that is kept; 0 for none.
    #[cfg(test)]
    pub(crate) fn kept(&self) -> u64 {
        self.decoded
    }

    /// Changes what is kept.
    #[cfg(test)]
    pub(crate) fn spoil(&mut self) {
        self.pages.iter_mut().for_each(|byte| *byte ^= 1);
    }

    /// Keeps nothing.
    pub(super) fn forget(&mut self) {
        (self.fetched, self.decoded, self.ready) = (0, 0, 0);
    }

    /// Reads the pieces of a frame, or of a raw one the page that is wanted.
    pub(super) fn fetch(
        &mut self,
        tier: &Tier,
        frame: &Frame,
        index: usize,
    ) -> Result<Fetched, LoadError> {
        let mut fetched = Fetched { lens: [0; PAGES_MAX], count: 0 };
        if self.fetched == frame.number && !frame.is_raw {
            return Ok(fetched);
        }
        self.fetched = 0;
        let wanted = match frame.is_raw {
            true => index..index + 1,
            false => 0..PAGES_MAX,
        };
        let mut at = 0;
        for n in wanted {
            let Some(piece) = frame.pieces.get(n) else { break };
            let room = self.stored.get_mut(at..).ok_or(LoadError::Corrupt)?;
            let (len, check) = tier.load_object(piece, room)?;
            if check != frame.number as u32 {
                return Err(LoadError::Corrupt);
            }
            fetched.lens[fetched.count] = len as u16;
            fetched.count += 1;
            at += len;
        }
        let whole = if frame.is_raw { PAGE_SIZE } else { frame.len as usize };
        if at != whole {
            return Err(LoadError::Corrupt);
        }
        if !frame.is_raw {
            self.fetched = frame.number;
        }
        Ok(fetched)
    }

    /// Decodes what was fetched as far as page `index` and copies that out.
    pub(super) fn decode(
        &mut self,
        frame: &Frame,
        index: usize,
        page: &mut Page,
    ) -> Result<(), LoadError> {
        if frame.is_raw {
            page.copy_from_slice(&self.stored[..PAGE_SIZE]);
            return Ok(());
        }
        self.decoded = 0;
        let stored = self.stored.get(..frame.len as usize).ok_or(LoadError::Corrupt)?;
        let made = self.decoder.decode(stored, (index + 1) * PAGE_SIZE, &mut self.pages);
        let Ok(made) = made else {
            self.forget();
            return Err(LoadError::Corrupt);
        };
        (self.decoded, self.ready) = (frame.number, made);
        match self.give(frame.number, index, page) {
            true => Ok(()),
            false => Err(LoadError::Corrupt),
        }
    }

    /// Decodes the middle page of a frame of so many, for an estimate.
    pub(super) fn try_out(&mut self, stored: &[u8], pages: usize) -> Option<()> {
        self.forget();
        let wanted = pages.div_ceil(2) * PAGE_SIZE;
        self.decoder.decode(stored, wanted, &mut self.pages).ok().map(|_| ())
    }
}
