//! Where cold bytes live: a tier is a *codec* over a *pool* over a *medium*.
//!
//! Modules in the order in which a page passes them on its way down:
//!
//! - [`page`]: is it worth encoding (same-filled pages are not), and its checksum;
//! - [`codec`]: 4 KiB in, fewer bytes out, and back;
//! - [`pool`]: which bytes of the arena hold which object; bookkeeping only, no bytes;
//! - [`medium`]: the arena itself, memory or something slower;
//! - [`blocks`]: several pages in one object, for the coldest data;
//! - [`tier`]: the three composed, shared between threads, with counters.
//!
//! This code runs inside other people's processes. The way *up* (load, decode, free) never
//! allocates, never logs, holds no lock across a codec call, uses no thread-local storage, and
//! turns every sequence of stored bytes into a page or an error. The way *down* may allocate
//! bookkeeping through Rust's global allocator; the C codecs never call `malloc` at all (the
//! argument is at the head of each module that speaks to C).

#![deny(unsafe_code)]

pub mod blocks;
pub mod codec;
pub mod medium;
pub mod page;
pub mod pool;
pub mod tier;

#[cfg(test)]
mod testing;

/// Bytes of a page. The only page size that stored objects decode to.
pub const PAGE_SIZE: usize = 4096;

/// The content of one page.
pub type Page = [u8; PAGE_SIZE];

/// Largest encoded size worth storing, in bytes: the cut-off of TierScape (and of zsmalloc-backed
/// zswap). Beyond it a page saves less than it costs.
pub const CUTOFF_BYTES: usize = 2990;

pub use codec::{Corrupt, DecoderSet, EncoderSet};
pub use medium::blocks::{BlockMedium, FileMedium};
pub use medium::{Emulated, HeapMedium, Medium, MediumError};
pub use pool::{Extent, Handle, PoolStats};
pub use tier::{Helper, LoadError, Refusal, Tier, TierStats};
