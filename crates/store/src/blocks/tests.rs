//! A tier of blocks from outside: what comes back, what is counted, and what happens when blocks
//! do not compress or cannot be stored.

use super::*;
use crate::codec::DecoderSet;
use crate::medium::blocks::FileMedium;
use crate::medium::{HeapMedium, Medium, MediumError};
use crate::testing::{page as any_page, Random};
use crate::CUTOFF_BYTES;
use core::sync::atomic::AtomicBool;
use terrace_core::tier::{Codec, Medium as MediumSpec, Pool, TierSpec, BLOCK_KIB};

pub(super) fn tier(pool: Pool, block_kib: u8, arena_pages: usize) -> Tier {
    let spec = TierSpec::with_blocks(pool, block_kib, MediumSpec::dram(1.0));
    Tier::new(&spec, Box::new(HeapMedium::new(arena_pages * PAGE_SIZE)), CUTOFF_BYTES)
}

pub(super) fn encoder() -> Encoder {
    Encoder::new(Codec::Zstd, 1).unwrap()
}

pub(super) fn decoders() -> DecoderSet {
    let mut set = DecoderSet::new([]).unwrap();
    set.add_blocks().unwrap();
    set
}

fn load(tier: &Tier, decoders: &mut DecoderSet, handle: Handle) -> Result<Page, LoadError> {
    let mut page = [0; PAGE_SIZE];
    tier.load_page(decoders, handle, &mut [0; PAGE_SIZE], &mut page).map(|()| page)
}

/// Pages of text, each another: they compress, and better together.
fn text(n: u64) -> Page {
    let mut random = Random(n);
    loop {
        let page = any_page(&mut random);
        if (100..2000).contains(&entropy_bytes(&page)) {
            return page;
        }
    }
}

fn noise(n: u64) -> Page {
    let mut random = Random(n);
    core::array::from_fn(|_| random.word() as u8)
}

/// A page that alone comes just below the cut-off, because some of it is noise.
fn half_noise(n: u64) -> Page {
    let mut page = noise(n);
    page[2900..].fill(1);
    page
}

#[test]
fn every_size_and_pool_gives_back_what_it_took() {
    for (pool, block_kib) in Pool::ALL.into_iter().flat_map(|p| BLOCK_KIB.map(|kib| (p, kib))) {
        let tier = tier(pool, block_kib, 4096);
        let (mut encoder, mut decoders) = (encoder(), decoders());
        let mut stored = Vec::new();
        let mut random = Random(5);
        let mut refused = 0;
        for _ in 0..700 {
            let page = any_page(&mut random);
            match tier.store_page(&mut encoder, &page, &mut [0; PAGE_SIZE]) {
                Ok(handle) => stored.push((handle, page)),
                Err(why) => {
                    assert_eq!(why, Refusal::Incompressible);
                    refused += 1;
                }
            }
        }
        let full = tier.stats();
        let pages = u64::from(block_kib) / 4;
        assert_eq!(full.blocks.sealed, stored.len() as u64 / pages);
        assert_eq!(full.blocks.filling_pages, stored.len() as u64 % pages);
        assert!(full.pool.object_bytes * 3 < stored.len() as u64 * PAGE_SIZE as u64 * 2);
        for n in (0..stored.len()).rev().filter(|n| n % 3 != 0) {
            assert!(tier.free(stored.swap_remove(n).0));
        }
        while tier.compact(10) == 10 {}
        tier.blocks().unwrap().validate();
        let half = tier.stats();
        assert!(half.blocks.repacked_pages > 0 && half.blocks.sealed < full.blocks.sealed * 3 / 4);
        tier.trim(u64::MAX);
        for (handle, page) in &stored {
            assert!(load(&tier, &mut decoders, *handle) == Ok(*page));
            assert!(tier.free(*handle));
            assert!(!tier.free(*handle), "a handle dies once");
            assert_eq!(load(&tier, &mut decoders, *handle), Err(LoadError::NoSuchObject));
        }
        let stats = tier.stats();
        assert_eq!(stats.stores + refused, 700);
        assert_eq!(stats.refusals[Refusal::Incompressible as usize], refused);
        assert_eq!((stats.pool.objects, stats.pool.pool_bytes, stats.blocks.sealed), (0, 0, 0));
        assert_eq!((stats.frees, stats.load_errors), (stats.stores, stored.len() as u64));
        tier.blocks().unwrap().validate();
    }
}

#[test]
fn pages_together_take_less_than_each_alone() {
    let (blocks, mut encoder) = (tier(Pool::Zsmalloc, 64, 4096), encoder());
    let spec = TierSpec::new(Pool::Zsmalloc, Codec::Zstd, MediumSpec::dram(1.0));
    let alone = Tier::new(&spec, Box::new(HeapMedium::new(1 << 25)), CUTOFF_BYTES);
    let words: Vec<[u8; 12]> = (0..300).map(|n| *text(n).first_chunk().unwrap()).collect();
    let mut random = Random(9);
    for _ in 0..4096 {
        let mut page = [b' '; PAGE_SIZE];
        page.chunks_exact_mut(12).for_each(|w| w.copy_from_slice(&words[random.below(300)]));
        for tier in [&blocks, &alone] {
            tier.store_page(&mut encoder, &page, &mut [0; PAGE_SIZE]).unwrap();
        }
    }
    let bytes = |t: &Tier| (t.stats().pool.pool_bytes, t.stats().pool.metadata_bytes);
    let ((pool, own), (pool_alone, own_alone)) = (bytes(&blocks), bytes(&alone));
    assert!(pool * 4 < pool_alone * 3, "{pool} and {pool_alone} bytes");
    // 10 bytes a slot, 8 for the names in the block, and two buffers.
    assert!(own < own_alone + 4096 * 16 + 3 * 65536, "{own} and {own_alone} bytes of tables");
}

#[test]
fn pages_that_do_not_compress_are_refused_at_the_door() {
    let (tier, mut encoder) = (tier(Pool::Zsmalloc, 16, 64), encoder());
    for n in 0..5 {
        let refused = tier.store_page(&mut encoder, &noise(n), &mut [0; PAGE_SIZE]);
        assert_eq!(refused, Err(Refusal::Incompressible));
        tier.store_page(&mut encoder, &half_noise(n), &mut [0; PAGE_SIZE]).unwrap();
    }
    let stats = tier.stats();
    assert_eq!((stats.stores, stats.refusals[Refusal::Incompressible as usize]), (5, 5));
    assert_eq!((stats.blocks.sealed, stats.blocks.raw, stats.blocks.filling_pages), (1, 0, 1));
}

/// With a cut-off that a page keeps by a hair: the block as a whole does not.
#[test]
fn a_block_that_does_not_compress_is_kept_as_it_is_and_counted() {
    let spec = TierSpec::with_blocks(Pool::Zsmalloc, 16, MediumSpec::dram(1.0));
    let medium = Box::new(HeapMedium::new(1 << 20));
    let mut tier = Tier::new(&spec, medium, CUTOFF_BYTES);
    // As if the encoder of blocks were worse than that of pages.
    tier.blocks_mut().unwrap().cutoff_bytes = 64;
    let (mut encoder, mut decoders) = (encoder(), decoders());
    tier.blocks_mut().unwrap().give_sealer(Box::new(Sealer::new(3, 4, 64).unwrap()));
    tier.blocks_mut().unwrap().cutoff_bytes = CUTOFF_BYTES;
    let pages: Vec<Page> = (0..4).map(half_noise).collect();
    let stored = pages.iter().map(|p| tier.store_page(&mut encoder, p, &mut [0; PAGE_SIZE]));
    let handles: Vec<Handle> = stored.map(Result::unwrap).collect();
    let stats = tier.stats();
    assert_eq!((stats.blocks.sealed, stats.blocks.raw), (1, 1));
    assert_eq!(stats.pool.object_bytes, 16384);
    for n in [3, 0, 2, 2] {
        assert!(load(&tier, &mut decoders, handles[n]) == Ok(pages[n]), "page {n}");
    }
    // Thin, it is repacked like any other.
    assert!((0..3).all(|n| tier.free(handles[n])));
    assert_eq!(tier.compact(10), 1);
    assert_eq!((tier.stats().blocks.raw, tier.stats().blocks.filling_pages), (0, 1));
    assert!(load(&tier, &mut decoders, handles[3]) == Ok(pages[3]));
    assert!(tier.free(handles[3]));
    assert_eq!(tier.stats().pool.pool_bytes, 0);
}

#[test]
fn a_full_pool_refuses_and_loses_nothing() {
    let (tier, mut encoder, mut decoders) = (tier(Pool::Zsmalloc, 64, 40), encoder(), decoders());
    let mut stored = Vec::new();
    let mut refused = 0;
    for n in 0..600 {
        let page = half_noise(n);
        match tier.store_page(&mut encoder, &page, &mut [0; PAGE_SIZE]) {
            Ok(handle) => stored.push((handle, page)),
            Err(why) => {
                assert_eq!(why, Refusal::PoolFull);
                refused += 1;
            }
        }
    }
    let stats = tier.stats();
    assert_eq!(stats.refusals[Refusal::PoolFull as usize], refused);
    assert_eq!((stored.len(), stats.blocks.filling_pages), (48, 16), "two sealed and one waits");
    tier.blocks().unwrap().validate();
    for (handle, page) in &stored {
        assert!(load(&tier, &mut decoders, *handle) == Ok(*page));
    }
    // With room again, what waited is stored, and no sooner than after a rest.
    for (handle, _) in stored.drain(..16) {
        assert!(tier.free(handle));
    }
    let again = (0..REST_PAGES as u64 + 1)
        .map(|n| tier.store_page(&mut encoder, &half_noise(n), &mut [0; PAGE_SIZE]));
    let taken: Vec<Handle> = again.flatten().collect();
    assert!(!taken.is_empty());
    assert_eq!(tier.stats().blocks.sealed, 2);
    for (handle, page) in &stored {
        assert!(load(&tier, &mut decoders, *handle) == Ok(*page));
        assert!(tier.free(*handle));
    }
    assert!(taken.into_iter().all(|handle| tier.free(handle)));
    assert_eq!(tier.stats().pool.objects, 0);
}

/// A medium that fails on demand, and can change a byte.
struct Failing {
    inner: HeapMedium,
    fail: &'static AtomicBool,
}

impl Medium for Failing {
    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<(), MediumError> {
        if self.fail.load(Ordering::Relaxed) {
            return Err(MediumError::Io);
        }
        self.inner.read(offset, buf)
    }
    fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), MediumError> {
        if self.fail.load(Ordering::Relaxed) {
            return Err(MediumError::Io);
        }
        self.inner.write(offset, bytes)
    }
    fn release(&self, offset: u64, len: u64) {
        self.inner.release(offset, len);
    }
    fn capacity(&self) -> u64 {
        self.inner.capacity()
    }
}

#[test]
fn a_medium_that_fails_loses_nothing() {
    static FAIL: AtomicBool = AtomicBool::new(false);
    let medium = Failing { inner: HeapMedium::new(1 << 20), fail: &FAIL };
    let spec = TierSpec::with_blocks(Pool::Zsmalloc, 16, MediumSpec::dram(1.0));
    let tier = Tier::new(&spec, Box::new(medium), CUTOFF_BYTES);
    let (mut encoder, mut decoders) = (encoder(), decoders());
    let mut store = |n| tier.store_page(&mut encoder, &half_noise(n), &mut [0; PAGE_SIZE]);
    let first: Vec<Handle> = (0..4).map(|n| store(n).unwrap()).collect();
    FAIL.store(true, Ordering::Relaxed);
    // The fourth fills the block, which cannot be written.
    let second: Vec<Handle> = (4..8).map(|n| store(n).unwrap()).collect();
    assert_eq!(store(8), Err(Refusal::MediumFailed));
    assert_eq!(load(&tier, &mut decoders, first[0]), Err(LoadError::MediumFailed));
    assert!(load(&tier, &mut decoders, second[0]) == Ok(half_noise(4)), "it never left memory");
    assert_eq!((tier.stats().blocks.sealed, tier.stats().blocks.filling_pages), (1, 4));
    FAIL.store(false, Ordering::Relaxed);
    while store(8).is_err() {}
    assert_eq!((tier.stats().blocks.sealed, tier.stats().blocks.filling_pages), (2, 1));
    for (n, handle) in first.iter().chain(&second).enumerate() {
        assert!(load(&tier, &mut decoders, *handle) == Ok(half_noise(n as u64)));
    }
    // Repacking a block that cannot be read leaves it to whoever wants it.
    assert!((0..3).all(|n| tier.free(first[n])));
    FAIL.store(true, Ordering::Relaxed);
    assert_eq!(tier.compact(10), 0);
    FAIL.store(false, Ordering::Relaxed);
    tier.blocks().unwrap().validate();
    assert!(load(&tier, &mut decoders, first[3]) == Ok(half_noise(3)));
    assert!(tier.free(first[3]));
    assert_eq!(tier.stats().blocks.sealed, 1);
}

#[test]
fn a_changed_byte_is_never_returned_as_right() {
    let medium = Arc::new(HeapMedium::new(1 << 20));
    struct Shared(Arc<HeapMedium>);
    impl Medium for Shared {
        fn read(&self, offset: u64, buf: &mut [u8]) -> Result<(), MediumError> {
            self.0.read(offset, buf)
        }
        fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), MediumError> {
            self.0.write(offset, bytes)
        }
        fn release(&self, offset: u64, len: u64) {
            self.0.release(offset, len);
        }
        fn capacity(&self) -> u64 {
            self.0.capacity()
        }
    }
    let spec = TierSpec::with_blocks(Pool::Zsmalloc, 16, MediumSpec::dram(1.0));
    let tier = Tier::new(&spec, Box::new(Shared(medium.clone())), CUTOFF_BYTES);
    let mut encoder = encoder();
    let pages: Vec<Page> = (0..4).map(text).collect();
    let stored = pages.iter().map(|p| tier.store_page(&mut encoder, p, &mut [0; PAGE_SIZE]));
    let handles: Vec<Handle> = stored.map(Result::unwrap).collect();
    let used = tier.stats().pool.pool_bytes;
    let (mut errors, mut right) = (0, 0);
    for offset in (0..used).step_by(3) {
        let mut byte = [0];
        medium.read(offset, &mut byte).unwrap();
        medium.write(offset, &[byte[0] ^ 0x10]).unwrap();
        for (handle, page) in handles.iter().zip(&pages) {
            match load(&tier, &mut decoders(), *handle) {
                Ok(back) => {
                    assert!(back == *page);
                    right += 1;
                }
                Err(why) => {
                    assert!(matches!(why, LoadError::Corrupt | LoadError::WrongChecksum));
                    errors += 1;
                }
            }
        }
        medium.write(offset, &byte).unwrap();
    }
    assert!(errors > 100 && right > 0, "{errors} errors, {right} right");
    // What a reader kept is not believed either.
    let mut set = decoders();
    assert!(load(&tier, &mut set, handles[1]) == Ok(pages[1]));
    set.blocks().unwrap().spoil();
    assert!(load(&tier, &mut set, handles[1]) == Ok(pages[1]), "read anew");
    assert_eq!(
        load(&tier, &mut DecoderSet::new([Codec::Zstd]).unwrap(), handles[0]),
        Err(LoadError::Corrupt),
        "nothing to read blocks with"
    );
}

#[test]
fn a_tier_of_blocks_has_no_encodings() {
    let (tier, mut encoder) = (tier(Pool::Zsmalloc, 16, 64), encoder());
    assert!(!tier.has_encodings());
    assert_eq!(tier.store(&[1; 100], 0), Err(Refusal::TooBig));
    let handle = tier.store_page(&mut encoder, &text(1), &mut [0; PAGE_SIZE]).unwrap();
    assert_eq!(tier.load(handle, &mut [0; PAGE_SIZE]), Err(LoadError::NoSuchObject));
}

#[test]
fn a_scan_decodes_each_block_once() {
    let (tier, mut encoder, mut decoders) = (tier(Pool::Zsmalloc, 64, 512), encoder(), decoders());
    let pages: Vec<Page> = (0..64).map(text).collect();
    let stored = pages.iter().map(|p| tier.store_page(&mut encoder, p, &mut [0; PAGE_SIZE]));
    let handles: Vec<Handle> = stored.map(Result::unwrap).collect();
    let mut blocks = std::collections::BTreeSet::new();
    let mut changes = 0;
    for (handle, page) in handles.iter().zip(&pages) {
        assert!(load(&tier, &mut decoders, *handle) == Ok(*page));
        // As a fault does: the page is freed, the block stays for those behind it.
        assert!(tier.free(*handle));
        changes += u32::from(blocks.insert(decoders.blocks().unwrap().kept()));
    }
    assert_eq!((changes, blocks.len()), (4, 4));
}

/// The work of a pager and a mover at once, on a file whose blocks do not all fit in memory.
#[test]
fn blocks_in_a_file_give_back_what_they_took() {
    let medium = FileMedium::temporary(&std::env::temp_dir(), 64 << 20).unwrap();
    let spec = TierSpec::with_blocks(Pool::Zsmalloc, 64, MediumSpec::dram(1.0));
    let tier = Tier::new(&spec, Box::new(medium), CUTOFF_BYTES);
    let mut encoder = encoder();
    let mut held = Vec::new();
    for seed in 0..6000 {
        let page = any_page(&mut Random(seed));
        if let Ok(handle) = tier.store_page(&mut encoder, &page, &mut [0; PAGE_SIZE]) {
            held.push((handle, seed));
        }
    }
    let mut random = Random(4);
    for _ in 0..held.len() * 2 / 3 {
        assert!(tier.free(held.swap_remove(random.below(held.len())).0));
    }
    std::thread::scope(|threads| {
        threads.spawn(|| {
            let mut decoders = decoders();
            for (handle, seed) in held.iter().rev() {
                let page = any_page(&mut Random(*seed));
                assert!(load(&tier, &mut decoders, *handle) == Ok(page));
            }
        });
        while tier.compact(64) == 64 {}
    });
    assert!(tier.stats().blocks.repacked_pages > 500);
    let mut decoders = decoders();
    for (handle, seed) in held {
        assert!(load(&tier, &mut decoders, handle) == Ok(any_page(&mut Random(seed))));
        assert!(tier.free(handle));
    }
    assert_eq!((tier.stats().load_errors, tier.stats().pool.objects), (0, 0));
}

#[test]
fn pages_and_blocks_are_read_with_one_decoder_in_any_order() {
    let of_blocks = tier(Pool::Zsmalloc, 16, 1024);
    let spec = TierSpec::new(Pool::Zsmalloc, Codec::Zstd, MediumSpec::dram(1.0));
    let medium = Box::new(HeapMedium::new(1024 * PAGE_SIZE));
    let of_pages = Tier::new(&spec, medium, CUTOFF_BYTES);
    let mut encoder = encoder();
    let mut single = DecoderSet::new([Codec::Zstd]).unwrap();
    let alone = single.context_bytes();
    single.add_blocks().unwrap();
    assert!(single.context_bytes() < alone + (129 << 10), "the decoder is there twice");
    let stored: Vec<(Handle, Handle)> = (0..64)
        .map(|n| {
            let scratch = &mut [0; PAGE_SIZE];
            let blocks = of_blocks.store_page(&mut encoder, &text(n), scratch).unwrap();
            (blocks, of_pages.store_page(&mut encoder, &text(100 + n), scratch).unwrap())
        })
        .collect();
    let mut random = Random(7);
    for _ in 0..1000 {
        let n = random.below(64);
        match random.below(2) {
            0 => assert!(load(&of_blocks, &mut single, stored[n].0) == Ok(text(n as u64))),
            _ => assert!(load(&of_pages, &mut single, stored[n].1) == Ok(text(100 + n as u64))),
        }
    }
}

#[test]
fn a_trial_says_what_a_block_would_take() {
    let mut trial = Trial::new(3, 4, CUTOFF_BYTES).unwrap();
    let ticks = core::cell::Cell::new(0);
    let clock = || ticks.replace(ticks.get() + 10);
    let block: Vec<u8> = (0..4).flat_map(text).collect();
    for _ in 0..2 {
        let tried = trial.run(&block, clock).unwrap();
        assert!(tried.len.is_some_and(|len| len < block.len() / 2), "{tried:?}");
        assert_eq!((tried.encode_ns, tried.decode_ns), (10, 10));
    }
    let hard: Vec<u8> = (0..4).flat_map(noise).collect();
    assert_eq!(trial.run(&hard, clock), Some(Tried { len: None, encode_ns: 10, decode_ns: 0 }));
    assert!(trial.run(&block, clock).unwrap().len.is_some(), "it forgets what did not fit");
}

/// A fault may wait for the table's lock.
#[test]
fn the_buffer_of_a_block_is_not_made_under_the_lock() {
    let mut table = Table::new(2);
    let (page, buffer) = (text(1), || Arc::from(vec![0; 2 * PAGE_SIZE]));
    assert!(matches!(table.put_new(&page, 0), (Put::NoBuffer, None)));
    table.give_buffer(buffer());
    assert!(matches!(table.put_new(&page, 0), (Put::Done, Some(_))));
    assert!(matches!(table.put_new(&page, 0), (Put::Full(..), Some(_))), "one buffer is enough");
    assert!(matches!(table.put_new(&page, 0), (Put::NoBuffer, None)));
    assert_eq!(table.live(), 2);
    table.validate();
}
