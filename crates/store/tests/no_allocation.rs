//! After the constructors nothing allocates: not Rust, and not libdeflate through it.
//!
//! The reason: the runtime decodes in the middle of an application's page fault, which may be a
//! fault inside the application's own `malloc`. (LZ4 gets its state as an argument and zstd has
//! static contexts; neither has an allocator to call. See the heads of `codec/*.rs`.)
//!
//! C's `malloc` and `calloc` are counted as well, by functions of that name in this program, which
//! go before those of libc. LZ4HC would call them at levels that are not offered.
//!
//! One test in a program of its own, because it puts its own functions in the place of libc's. It
//! counts for its own thread: the one that runs tests allocates when it likes.

use core::ffi::c_void;
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use terrace_core::tier::{Codec, Medium, Pool, TierSpec, BLOCK_KIB};
use terrace_store::codec::dictionary::Dictionaries;
use terrace_store::codec::Encoder;
use terrace_store::{DecoderSet, EncoderSet, HeapMedium, Tier, CUTOFF_BYTES, PAGE_SIZE};

struct Counting;

thread_local! {
    static CALLS: Cell<usize> = const { Cell::new(0) };
}

/// By this thread.
fn calls() -> usize {
    CALLS.get()
}

fn one_more() {
    CALLS.set(CALLS.get() + 1);
}

// SAFETY: passes every call on to the system allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        one_more();
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        one_more();
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(block, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

extern "C" {
    // What glibc calls its own.
    fn __libc_malloc(bytes: usize) -> *mut c_void;
    fn __libc_calloc(count: usize, bytes: usize) -> *mut c_void;
    // From the library that lz4-sys builds.
    fn LZ4_createStreamHC() -> *mut c_void;
    fn LZ4_freeStreamHC(stream: *mut c_void);
}

/// C's `malloc`, for the codecs in C and for Rust's system allocator.
#[no_mangle]
extern "C" fn malloc(bytes: usize) -> *mut c_void {
    one_more();
    // SAFETY: the caller's promise is passed on.
    unsafe { __libc_malloc(bytes) }
}

/// C's `calloc`.
#[no_mangle]
extern "C" fn calloc(count: usize, bytes: usize) -> *mut c_void {
    one_more();
    // SAFETY: the caller's promise is passed on.
    unsafe { __libc_calloc(count, bytes) }
}

/// All levels of all codecs, below.
fn every_level_encodes_without_allocating(pages: &[[u8; PAGE_SIZE]]) {
    for codec in Codec::ALL {
        for level in codec.levels().0..=codec.levels().1 {
            let mut encoder = Encoder::new(codec, level).unwrap();
            let before = calls();
            for (n, page) in pages.iter().enumerate().take(20) {
                let mut out = [0; CUTOFF_BYTES];
                encoder.encode(page, &mut out[..if n % 2 == 0 { CUTOFF_BYTES } else { 100 }]);
            }
            assert_eq!(calls(), before, "{} {level}", codec.name());
        }
    }
}

#[test]
fn encode_decode_load_and_free_allocate_nothing() {
    let list: Vec<(Codec, i32)> = Codec::ALL.iter().map(|c| (*c, c.default_level())).collect();
    let dictionaries = Dictionaries::new();
    let mut encoders = EncoderSet::with_dictionaries(&list, &dictionaries).unwrap();
    let codecs = list.iter().map(|(codec, _)| *codec);
    let mut decoders = DecoderSet::with_dictionaries(codecs, &dictionaries).unwrap();
    // Encoders take a dictionary up at their next page, in memory that they have already.
    let text: Vec<u8> = (0..20_000u32).map(|i| ((i * i) >> 7) as u8).collect();
    assert_eq!(dictionaries.publish(&text), Some(1));
    let pages: Vec<[u8; PAGE_SIZE]> = (0..202u32)
        .map(|n| core::array::from_fn(|i| (i as u32 / (n + 1)) as u8 ^ (i % 7) as u8))
        .collect();
    // The counting functions do stand before libc's.
    let before = calls();
    // SAFETY: makes a stream on the heap and gives it back.
    unsafe { LZ4_freeStreamHC(LZ4_createStreamHC()) };
    assert_ne!(calls(), before);
    every_level_encodes_without_allocating(&pages);
    let (mut scratch, mut back) = ([0; PAGE_SIZE], [0; PAGE_SIZE]);
    for pool in Pool::ALL {
        for (n, (codec, _)) in list.iter().enumerate() {
            let medium = Medium::dram(1.0);
            let arena = Box::new(HeapMedium::new(1 << 22));
            let tier = Tier::new(&TierSpec::new(pool, *codec, medium), arena, CUTOFF_BYTES);
            let encoder = encoders.get(n).unwrap();
            let mut handles = Vec::with_capacity(pages.len());
            // The first store makes tables; the way down may. The codec may not.
            if codec.uses_dictionary() {
                let before = calls();
                encoder.encode(&pages[0], &mut scratch).unwrap();
                assert_eq!((scratch[0], calls()), (1, before));
            }
            let deflate_before = terrace_store::codec::deflate::allocations();
            for page in &pages {
                handles.push(tier.store_page(encoder, page, &mut scratch));
            }
            let before = calls();
            for page in &pages {
                encoder.encode(page, &mut scratch);
            }
            for (handle, page) in handles.iter().zip(&pages) {
                let Ok(handle) = handle else { continue };
                tier.load_page(&mut decoders, *handle, &mut scratch, &mut back).unwrap();
                assert!(back == *page);
                assert!(tier.free(*handle));
            }
            assert_eq!(calls(), before, "{} {}", pool.name(), codec.name());
            assert_eq!(terrace_store::codec::deflate::allocations(), deflate_before);
            assert!(tier.stats().loads > 50);
        }
    }
    blocks_load_and_free_allocate_nothing(&pages);
}

/// A tier of blocks: pages that wait in a block, sealed ones, a scan, and blocks that end.
fn blocks_load_and_free_allocate_nothing(pages: &[[u8; PAGE_SIZE]]) {
    let mut encoder = Encoder::new(Codec::Zstd, 3).unwrap();
    let mut decoders = DecoderSet::new([]).unwrap();
    decoders.add_blocks().unwrap();
    let (mut scratch, mut back) = ([0; PAGE_SIZE], [0; PAGE_SIZE]);
    for (pool, kib) in Pool::ALL.into_iter().flat_map(|p| BLOCK_KIB.map(|kib| (p, kib))) {
        let spec = TierSpec::with_blocks(pool, kib, Medium::dram(1.0));
        let tier = Tier::new(&spec, Box::new(HeapMedium::new(1 << 22)), CUTOFF_BYTES);
        let mut store = |page| tier.store_page(&mut encoder, page, &mut scratch).ok();
        let mut stored: Vec<_> = pages.iter().filter_map(|p| Some((store(p)?, p))).collect();
        while tier.stats().blocks.filling_pages == 0 {
            stored.extend(store(&pages[0]).map(|handle| (handle, &pages[0])));
        }
        assert!(tier.stats().blocks.sealed > 3);
        let before = calls();
        for (n, (handle, page)) in stored.iter().enumerate() {
            tier.load_page(&mut decoders, *handle, &mut scratch, &mut back).unwrap();
            assert!(back == **page);
            assert!(n % 4 == 0 || tier.free(*handle));
        }
        for (n, (handle, _)) in stored.iter().enumerate().rev() {
            assert_eq!(tier.free(*handle), n % 4 == 0);
            assert!(tier.load_page(&mut decoders, *handle, &mut scratch, &mut back).is_err());
        }
        assert_eq!(calls(), before, "{} {kib}", pool.name());
        assert_eq!(tier.stats().pool.pool_bytes, 0);
    }
}
