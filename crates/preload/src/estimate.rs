//! What each tier would make of the application's own pages: tried on a few of them, on the agent's
//! thread.
//!
//! One page, one codec and one block are in memory at a time: what this takes at its peak stays on
//! the runtime's heap, which keeps what it has.

use crate::runtime::Runtime;
use crate::sys::{proc, thread};
use terrace_core::state::{PageState, PAGE_BYTES, REGION_PAGES};
use terrace_core::tier::{Pool, TierId};
use terrace_core::wire::TierConfig;
use terrace_store::blocks::{Trial, Tried};
use terrace_store::codec::Encoder;
use terrace_store::{pool, DecoderSet, Page};

/// Pages tried with each tier.
const PAGES: usize = 192;
/// Blocks tried with a tier of blocks.
const BLOCKS: usize = 16;
/// What a tier of blocks is thought to store of a page as long as nothing could be tried, in
/// thousandths. It is measured as soon as the tier holds something.
const SHARE_UNKNOWN_MILLI: u32 = 500;

/// What a tier would make of the application's pages.
#[derive(Clone, Copy, Debug, Default)]
pub struct Estimate {
    /// Stored share with the pool and what is refused, in thousandths.
    pub ratio_milli: u32,
    /// Time to read and decode a page in nanoseconds.
    pub decode_ns: u32,
    /// Time to encode a page in nanoseconds.
    pub encode_ns: u32,
    /// Encoded share of what is not refused, in thousandths.
    pub encoded_milli: u32,
    /// The same with the pool, where it depends on how unlike pages are; else 0.
    pub packed_milli: u32,
}

/// One for each compressed tier, in their order. `None` if no page can be tried.
pub fn of(rt: &Runtime) -> Option<Vec<Estimate>> {
    (0..rt.stores.config.tiers.len()).map(|n| of_tier(rt, n)).collect()
}

/// The one of compressed tier `n`, counted from 0. `None` if there is no such tier or no page can
/// be tried.
pub fn of_tier(rt: &Runtime, n: usize) -> Option<Estimate> {
    let t = rt.stores.config.tiers.get(n)?;
    // What a device takes for a read was measured when it was opened, and is since then.
    let read_ns = rt.stores.get(TierId(n as u8 + 1))?.0.medium().read_ns();
    match t.block_kib {
        0 => of_pages(rt, t, read_ns),
        _ => of_blocks(rt, t, read_ns),
    }
}

fn of_pages(rt: &Runtime, t: &TierConfig, read_ns: u64) -> Option<Estimate> {
    let dictionaries = &rt.stores.dictionaries;
    let mut encoder = Encoder::with_dictionaries(t.codec, t.level, dictionaries).ok()?;
    let mut decoders = DecoderSet::with_dictionaries([t.codec], dictionaries).ok()?;
    let cutoff = (t.cutoff_bytes as usize).min(PAGE_BYTES - 1);
    // As it is: nothing to decode.
    let takes_all = t.cutoff_bytes as usize == PAGE_BYTES;
    let (mut encoded, mut decoded): (Page, Page) = ([0; PAGE_BYTES], [0; PAGE_BYTES]);
    let mut trial = pool::open(t.pool, 1 << 16);
    let (mut bytes, mut stored, mut whole, mut decode_ns) = (0u64, 0u64, 0u64, 0u64);
    let mut encode_ns = Vec::with_capacity(PAGES);
    let mut went_well = true;
    each_page(rt, PAGES, |page| {
        let start = thread::now_ns();
        let len = encoder.encode(page, &mut encoded[..cutoff]);
        encode_ns.push(thread::now_ns() - start);
        let Some(len) = len else {
            if takes_all {
                went_well &= trial.alloc(PAGE_BYTES, 0).is_some();
                bytes += PAGE_BYTES as u64;
                stored += 1;
            } else {
                whole += PAGE_BYTES as u64;
            }
            return;
        };
        let start = thread::now_ns();
        went_well &= decoders.decode(t.codec, &encoded[..len], &mut decoded).is_ok();
        decode_ns += thread::now_ns() - start;
        went_well &= trial.alloc(len, 0).is_some();
        bytes += len as u64;
        stored += 1;
    });
    if encode_ns.is_empty() || !went_well {
        return None;
    }
    // A small sample leaves most of zsmalloc's size classes with a run to fill, which a full pool
    // does not have; that of the others is the same at any size.
    let held = match t.pool {
        Pool::Zsmalloc => bytes + bytes / 16,
        _ => trial.stats().pool_bytes,
    };
    let share = (held + whole) * 1000 / (encode_ns.len() * PAGE_BYTES) as u64;
    let ns = decode_ns.checked_div(stored).unwrap_or(0) + read_ns;
    let of_taken = |bytes: u64| (bytes * 1000).checked_div(stored * PAGE_BYTES as u64).unwrap_or(0);
    Some(Estimate {
        ratio_milli: share as u32,
        decode_ns: ns as u32,
        encode_ns: median(&mut encode_ns) as u32,
        encoded_milli: of_taken(bytes) as u32,
        packed_milli: if t.pool == Pool::Zsmalloc { 0 } else { of_taken(held) as u32 },
    })
}

/// The same for a tier of blocks: tries a few, of pages that lie side by side.
fn of_blocks(rt: &Runtime, t: &TierConfig, read_ns: u64) -> Option<Estimate> {
    let pages = usize::from(t.block_kib) / 4;
    let mut trial = Trial::new(t.level, pages, t.cutoff_bytes as usize)?;
    let mut tried = Vec::with_capacity(BLOCKS);
    each_run(rt, BLOCKS, pages, |run| tried.extend(trial.run(run, thread::now_ns)));
    let (share, ns) = shares_of_blocks(&tried, pages * PAGE_BYTES);
    let mut encode_ns: Vec<u64> = tried.iter().map(|b| b.encode_ns).collect();
    // A frame is read piece by piece.
    let pieces = (pages as u64 * u64::from(share)).div_ceil(1000);
    let decode_ns = (u64::from(ns) + read_ns * pieces) as u32;
    let encode_ns = (median(&mut encode_ns) / pages as u64) as u32;
    let encoded_milli = share_of_taken(&tried, pages * PAGE_BYTES);
    Some(Estimate { ratio_milli: share, decode_ns, encode_ns, encoded_milli, packed_milli: 0 })
}

/// The middle of these times: some are of moments when the thread had no processor. 0 of none.
fn median(times: &mut [u64]) -> u64 {
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or(0)
}

/// Stored share of blocks of so many bytes in thousandths, and the mean time to decode.
fn shares_of_blocks(tried: &[Tried], bytes: usize) -> (u32, u32) {
    let stored: usize = tried.iter().map(|b| b.len.unwrap_or(bytes)).sum();
    let decode_ns: u64 = tried.iter().map(|b| b.decode_ns).sum();
    let decoded = tried.iter().filter(|b| b.len.is_some()).count() as u64;
    let share = ((stored + stored / 16) * 1000).checked_div(tried.len() * bytes);
    let ns = decode_ns.checked_div(decoded).unwrap_or(0);
    (share.map_or(SHARE_UNKNOWN_MILLI, |s| s as u32), ns as u32)
}

/// Stored share of those blocks that would be taken, in thousandths; 0 if none would be.
fn share_of_taken(tried: &[Tried], bytes: usize) -> u32 {
    let taken = || tried.iter().filter_map(|b| b.len);
    let stored: usize = taken().sum();
    let share = ((stored + stored / 16) * 1000).checked_div(taken().count() * bytes);
    share.map_or(0, |share| share.max(1) as u32)
}

/// Shows about `count` pages that are at home, spread over all regions; fewer if there are not so
/// many. They are copies: the application may go on writing.
pub fn each_page(rt: &Runtime, count: usize, mut visit: impl FnMut(&Page)) {
    let mut page = Box::new([0; PAGE_BYTES]);
    let first = |k: usize| k * 197 % REGION_PAGES;
    each_home(rt, count, 1, first, |address| {
        if proc::read_application_page(address, &mut page) {
            visit(&page);
        }
    });
}

/// The same with at most `count` runs of so many neighbouring pages.
fn each_run(rt: &Runtime, count: usize, pages: usize, mut visit: impl FnMut(&[u8])) {
    let mut page = Box::new([0; PAGE_BYTES]);
    let mut run = Vec::with_capacity(pages * PAGE_BYTES);
    let first = |k: usize| k * 197 % (REGION_PAGES - pages + 1);
    each_home(rt, count, pages, first, |address| {
        run.clear();
        for i in 0..pages {
            if !proc::read_application_page(address + (i * PAGE_BYTES) as u64, &mut page) {
                return;
            }
            run.extend_from_slice(&page[..]);
        }
        visit(&run);
    });
}

/// Addresses of runs of pages that are all at home: the `k`-th of `count` begins with page
/// `first(k)` of its region.
fn each_home(
    rt: &Runtime,
    count: usize,
    pages: usize,
    first: impl Fn(usize) -> usize,
    mut visit: impl FnMut(u64),
) {
    let regions: Vec<_> = rt.table.all().into_iter().filter(|r| r.is_followed()).collect();
    for k in 0..count {
        let Some(r) = regions.get(k * regions.len() / count) else { break };
        let present = rt.pagemap.present(r.base).unwrap_or([0; 8]);
        let is_home = |i: usize| {
            r.word(i).state() == PageState::Home
                && r.is_registered(i)
                && present[i / 64] >> (i % 64) & 1 == 1
        };
        if (first(k)..first(k) + pages).all(is_home) {
            visit(r.address(first(k)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_that_do_not_compress_count_as_they_are() {
        let tried = |len, decode_ns| Tried { len, encode_ns: 9, decode_ns };
        // A sixteenth more for what the pool leaves empty.
        let two = [tried(Some(16_000), 300), tried(None, 0)];
        assert_eq!(shares_of_blocks(&two, 64_000), ((80_000 + 5_000) * 1000 / 128_000, 300));
        assert_eq!(shares_of_blocks(&[], 64_000), (SHARE_UNKNOWN_MILLI, 0));
        // Of the one that is taken.
        assert_eq!(share_of_taken(&two, 64_000), 17_000 * 1000 / 64_000);
        assert_eq!((share_of_taken(&two[1..], 64_000), share_of_taken(&[], 64_000)), (0, 0));
    }

    #[test]
    fn the_median_is_not_moved_by_a_moment_without_a_processor() {
        assert_eq!(median(&mut [7, 5, 6, 9_000_000, 5]), 6);
        assert_eq!(median(&mut []), 0);
    }
}
