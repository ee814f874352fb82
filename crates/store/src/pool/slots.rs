//! The slot table: what a [`Handle`] names.
//!
//! A slot is 10 bytes: 48 bits of *place*, whose meaning is the pool's, and the 32-bit check word.
//! Three parallel arrays in chunks of 1024 slots, so that nothing is padded and growing never
//! copies: a `Vec` that doubles would hold the pool's lock for milliseconds while the pager waits.
//! Free slots are chained through their place; the top seven bits tell them from live ones.

use super::Handle;
use core::mem::size_of;

const CHUNK: usize = 1024;

/// Bits of a place that a pool may use. Its top seven bits must not all be ones.
pub const PLACE_BITS: u32 = 48;

const FREE_TAG: u64 = 0x7f << (PLACE_BITS - 7);
const END_OF_CHAIN: u32 = u32::MAX;

/// Handles stay below this, so that pools have a bit to spare beside a handle.
pub const HANDLES_MAX: usize = 1 << 31;

struct Chunk {
    low: [u32; CHUNK],
    high: [u16; CHUNK],
    check: [u32; CHUNK],
}

/// All slots of a pool.
pub struct Slots {
    #[allow(clippy::vec_box)] // growing never copies more than pointers
    chunks: Vec<Box<Chunk>>,
    first_free: u32,
    live: usize,
}

impl Slots {
    /// An empty table, which holds no memory.
    pub fn new() -> Slots {
        Slots { chunks: Vec::new(), first_free: END_OF_CHAIN, live: 0 }
    }

    /// Makes a slot. `None` only beyond [`HANDLES_MAX`] slots.
    pub fn insert(&mut self, place: u64, check: u32) -> Option<Handle> {
        if self.first_free == END_OF_CHAIN {
            self.grow()?;
        }
        let handle = Handle(self.first_free);
        let next = self.raw(handle)? & u64::from(u32::MAX);
        self.first_free = next as u32;
        self.live += 1;
        let (chunk, n) = self.chunk_mut(handle)?;
        chunk.check[n] = check;
        self.set_place(handle, place);
        Some(handle)
    }

    /// Place and check word of a live slot.
    #[inline]
    pub fn get(&self, handle: Handle) -> Option<(u64, u32)> {
        let place = self.raw(handle)?;
        if place & FREE_TAG == FREE_TAG {
            return None;
        }
        Some((place, self.chunks[handle.0 as usize / CHUNK].check[handle.0 as usize % CHUNK]))
    }

    /// Says where a live object is now.
    pub fn set_place(&mut self, handle: Handle, place: u64) {
        debug_assert!(place >> PLACE_BITS == 0 && place & FREE_TAG != FREE_TAG);
        self.set_raw(handle, place);
    }

    /// Ends a live slot.
    pub fn remove(&mut self, handle: Handle) {
        debug_assert!(self.get(handle).is_some());
        self.set_raw(handle, FREE_TAG | u64::from(self.first_free));
        self.first_free = handle.0;
        self.live -= 1;
    }

    /// Live slots.
    pub fn live(&self) -> usize {
        self.live
    }

    /// Memory held, in bytes.
    pub fn metadata_bytes(&self) -> usize {
        self.chunks.len() * size_of::<Chunk>() + self.chunks.capacity() * size_of::<usize>()
    }

    /// All live handles, slowly.
    pub fn handles(&self) -> impl Iterator<Item = Handle> + '_ {
        (0..(self.chunks.len() * CHUNK) as u32).map(Handle).filter(|h| self.get(*h).is_some())
    }

    fn grow(&mut self) -> Option<()> {
        let base = self.chunks.len() * CHUNK;
        if base + CHUNK > HANDLES_MAX {
            return None;
        }
        let mut chunk = Box::new(Chunk { low: [0; CHUNK], high: [0; CHUNK], check: [0; CHUNK] });
        for n in 0..CHUNK {
            let next = if n + 1 == CHUNK { END_OF_CHAIN } else { (base + n + 1) as u32 };
            chunk.low[n] = next;
            chunk.high[n] = (FREE_TAG >> 32) as u16;
        }
        self.chunks.push(chunk);
        self.first_free = base as u32;
        Some(())
    }

    #[inline]
    fn raw(&self, handle: Handle) -> Option<u64> {
        let chunk = self.chunks.get(handle.0 as usize / CHUNK)?;
        let n = handle.0 as usize % CHUNK;
        Some(u64::from(chunk.low[n]) | u64::from(chunk.high[n]) << 32)
    }

    fn chunk_mut(&mut self, handle: Handle) -> Option<(&mut Chunk, usize)> {
        let chunk = self.chunks.get_mut(handle.0 as usize / CHUNK)?;
        Some((chunk, handle.0 as usize % CHUNK))
    }

    fn set_raw(&mut self, handle: Handle, place: u64) {
        if let Some((chunk, n)) = self.chunk_mut(handle) {
            chunk.low[n] = place as u32;
            chunk.high[n] = (place >> 32) as u16;
        }
    }
}

impl Default for Slots {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_reused_and_stale_handles_name_nothing() {
        let mut slots = Slots::new();
        let handles: Vec<_> = (0..3000).map(|n| slots.insert(n << 8, n as u32).unwrap()).collect();
        assert_eq!(slots.live(), 3000);
        assert_eq!(slots.get(handles[2999]), Some((2999 << 8, 2999)));
        assert_eq!(slots.get(Handle(3000)), None, "never made, but in a chunk that exists");
        assert_eq!(slots.get(Handle(1 << 20)), None, "beyond all chunks");
        slots.remove(handles[7]);
        assert_eq!(slots.get(handles[7]), None);
        assert_eq!(slots.insert(1, 2), Some(handles[7]));
        assert_eq!(slots.handles().count(), 3000);
        assert!(slots.metadata_bytes() <= 3 * 1024 * 10 + 64);
    }
}
