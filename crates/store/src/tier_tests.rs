//! A tier from outside, with one thread and with several.

use super::*;
use crate::medium::blocks::FileMedium;
use crate::medium::{HeapMedium, MediumError};
use crate::testing::{page as any_page, Random};
use crate::CUTOFF_BYTES;
use core::sync::atomic::AtomicBool;
use terrace_core::tier::{Medium as MediumSpec, Pool};

fn spec(pool: Pool, codec: Codec) -> TierSpec {
    let medium = MediumSpec::dram(1.0);
    TierSpec::new(pool, codec, medium)
}

fn tier(pool: Pool, codec: Codec, pages: usize) -> Tier {
    Tier::new(&spec(pool, codec), Box::new(HeapMedium::new(pages * PAGE_SIZE)), CUTOFF_BYTES)
}

#[test]
fn every_composition_gives_back_what_it_took() {
    for pool in Pool::ALL {
        for (codec, cutoff) in Codec::ALL.map(|c| [(c, CUTOFF_BYTES), (c, PAGE_SIZE)]).concat() {
            let medium = Box::new(HeapMedium::new(4096 * PAGE_SIZE));
            let tier = Tier::new(&spec(pool, codec), medium, cutoff);
            let mut encoder = Encoder::new(codec, codec.default_level()).unwrap();
            let mut decoders = DecoderSet::new([codec]).unwrap();
            let mut random = Random(5);
            let (mut scratch, mut back) = ([0; PAGE_SIZE], [0; PAGE_SIZE]);
            let mut stored = Vec::new();
            for _ in 0..300 {
                let page = any_page(&mut random);
                if let Ok(handle) = tier.store_page(&mut encoder, &page, &mut scratch) {
                    stored.push((handle, page));
                }
            }
            for n in (0..stored.len()).rev().filter(|n| n % 3 != 0) {
                assert!(tier.free(stored.swap_remove(n).0));
            }
            while tier.compact(10) == 10 {}
            tier.trim(u64::MAX);
            for (handle, page) in &stored {
                tier.load_page(&mut decoders, *handle, &mut scratch, &mut back).unwrap();
                assert!(back == *page);
                assert!(tier.free(*handle));
                assert!(!tier.free(*handle), "a handle dies once");
            }
            let refused = tier.stats().refusals[Refusal::Incompressible as usize];
            let stats = tier.stats();
            assert_eq!(stats.stores + refused, 300);
            assert_eq!((stats.pool.objects, stats.pool.pool_bytes), (0, 0));
            assert_eq!((stats.frees, stats.load_errors), (stats.stores, 0));
            tier.trim(u64::MAX);
            assert_eq!(tier.stats().pool.idle_bytes, 0);
        }
    }
}

/// A medium that fails on demand: the device under a file-backed tier may.
struct Failing {
    inner: HeapMedium,
    fail: &'static AtomicBool,
    /// Why it takes nothing.
    closed: Option<MediumError>,
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
    fn accepts(&self) -> Result<(), MediumError> {
        self.closed.map_or(Ok(()), Err)
    }
}

#[test]
fn a_tier_says_why_its_medium_takes_nothing() {
    static FAIL: AtomicBool = AtomicBool::new(false);
    for (closed, wanted) in [
        (None, Ok(())),
        (Some(MediumError::Full), Err(Refusal::PoolFull)),
        (Some(MediumError::Io), Err(Refusal::MediumFailed)),
    ] {
        let medium = Failing { inner: HeapMedium::new(PAGE_SIZE), fail: &FAIL, closed };
        let tier = Tier::new(&spec(Pool::Zbud, Codec::Lz4), Box::new(medium), 2000);
        assert_eq!(tier.accepts(), wanted);
        assert_eq!(tier.stats().refusals, [0; 4], "nothing was refused yet");
        assert_eq!(tier.store(&[1; 100], 0).map(drop), wanted);
    }
}

#[test]
fn each_refusal_has_its_counter_and_leaves_nothing_behind() {
    static FAIL: AtomicBool = AtomicBool::new(false);
    let medium = Failing { inner: HeapMedium::new(2 * PAGE_SIZE), fail: &FAIL, closed: None };
    let tier = Tier::new(&spec(Pool::Zbud, Codec::Lz4), Box::new(medium), 2000);
    assert_eq!(tier.store(&[1; 2001], 0), Err(Refusal::TooBig));
    let mut encoder = Encoder::new(Codec::Lz4, 1).unwrap();
    let mut random = Random(3);
    let mut noise = [0; PAGE_SIZE];
    noise.fill_with(|| random.word() as u8);
    let refused = tier.store_page(&mut encoder, &noise, &mut [0; PAGE_SIZE]);
    assert_eq!(refused, Err(Refusal::Incompressible));
    FAIL.store(true, Ordering::Relaxed);
    assert_eq!(tier.store(&[1; 2000], 0), Err(Refusal::MediumFailed));
    FAIL.store(false, Ordering::Relaxed);
    assert_eq!(tier.stats().pool.objects, 0);
    let handles: Vec<_> = (0..4).map(|n| tier.store(&[n; 2000], 9).unwrap()).collect();
    assert_eq!(tier.store(&[1; 2000], 0), Err(Refusal::PoolFull));
    assert_eq!(tier.stats().refusals, [1, 1, 1, 1]);
    let mut buf = [0; PAGE_SIZE];
    assert_eq!(tier.load(handles[2], &mut buf), Ok((2000, 9)));
    assert_eq!(buf[..2000], [2; 2000]);
    FAIL.store(true, Ordering::Relaxed);
    assert_eq!(tier.load(handles[2], &mut buf), Err(LoadError::MediumFailed));
    assert_eq!(tier.load(Handle(77), &mut buf), Err(LoadError::NoSuchObject));
    assert_eq!(tier.stats().load_errors, 2);
}

#[test]
fn a_wrong_page_is_never_returned_as_right() {
    let tier = tier(Pool::Zsmalloc, Codec::Lz4, 64);
    let mut encoder = Encoder::new(Codec::Lz4, 1).unwrap();
    let mut decoders = DecoderSet::new([Codec::Lz4]).unwrap();
    let (mut scratch, mut page) = ([0; PAGE_SIZE], [0; PAGE_SIZE]);
    let mut out = [0; PAGE_SIZE];
    let len = encoder.encode(&[7; PAGE_SIZE], &mut out).unwrap();
    // Decodes well, but to another page than was meant.
    let mixed = tier.store(&out[..len], checksum(&[8; PAGE_SIZE])).unwrap();
    let result = tier.load_page(&mut decoders, mixed, &mut scratch, &mut page);
    assert_eq!(result, Err(LoadError::WrongChecksum));
    let torn = tier.store(&out[..len - 1], checksum(&[7; PAGE_SIZE])).unwrap();
    let result = tier.load_page(&mut decoders, torn, &mut scratch, &mut page);
    assert_eq!(result, Err(LoadError::Corrupt));
}

/// The work of a pager and a mover at once, on a file whose blocks do not all fit in memory.
#[test]
fn a_tier_in_a_file_gives_back_what_it_took() {
    for pool in Pool::ALL {
        let medium = FileMedium::temporary(&std::env::temp_dir(), 256 << 20).unwrap();
        let tier = Tier::new(&spec(pool, Codec::Lz4), Box::new(medium), CUTOFF_BYTES);
        let mut encoder = Encoder::new(Codec::Lz4, 1).unwrap();
        let (mut scratch, mut back) = ([0; PAGE_SIZE], [0; PAGE_SIZE]);
        let mut held = Vec::new();
        for seed in 0..6000 {
            let page = any_page(&mut Random(seed));
            if let Ok(handle) = tier.store_page(&mut encoder, &page, &mut scratch) {
                held.push((handle, seed));
            }
        }
        let mut random = Random(4);
        for _ in 0..held.len() / 2 {
            assert!(tier.free(held.swap_remove(random.below(held.len())).0));
        }
        let before = tier.stats().pool.pool_bytes;
        std::thread::scope(|threads| {
            threads.spawn(|| {
                let mut decoders = DecoderSet::new([Codec::Lz4]).unwrap();
                let (mut scratch, mut page) = ([0; PAGE_SIZE], [0; PAGE_SIZE]);
                for (handle, seed) in held.iter().rev() {
                    tier.load_page(&mut decoders, *handle, &mut scratch, &mut page).unwrap();
                    assert!(page == any_page(&mut Random(*seed)));
                }
            });
            // Compaction reads what it moves from the file.
            while tier.compact(64) == 64 {}
        });
        if pool == Pool::Zsmalloc {
            let after = tier.stats().pool.pool_bytes;
            assert!(after < before * 4 / 5, "compacted from {before} to {after} bytes");
        }
        tier.trim(u64::MAX);
        let mut decoders = DecoderSet::new([Codec::Lz4]).unwrap();
        for (handle, seed) in held {
            tier.load_page(&mut decoders, handle, &mut scratch, &mut back).unwrap();
            assert!(back == any_page(&mut Random(seed)));
            assert!(tier.free(handle));
        }
        assert_eq!(tier.stats().load_errors, 0);
        assert!(tier.medium().waits() && tier.medium().memory_bytes() < 4 << 20);
    }
}

#[test]
fn an_emulated_medium_costs_its_time() {
    let mut spec = spec(Pool::Zbud, Codec::Lz4);
    spec.medium.kind = MediumKind::Emulated;
    spec.medium.latency_ns = 200_000;
    let tier = Tier::new(&spec, Box::new(HeapMedium::new(1 << 16)), CUTOFF_BYTES);
    let handle = tier.store(&[1; 100], 0).unwrap();
    let start = std::time::Instant::now();
    tier.load(handle, &mut [0; PAGE_SIZE]).unwrap();
    assert!(start.elapsed().as_micros() >= 200);
}

#[test]
fn a_loader_and_a_storer_at_once() {
    const PAGES: usize = 8000;
    for pool in Pool::ALL {
        let tier = tier(pool, Codec::Lz4, 4096);
        let (send, receive) = std::sync::mpsc::sync_channel::<(Handle, u64)>(500);
        std::thread::scope(|threads| {
            threads.spawn(|| {
                let mut encoder = Encoder::new(Codec::Lz4, 1).unwrap();
                let mut scratch = [0; PAGE_SIZE];
                let send = send;
                for seed in 0..PAGES as u64 {
                    let page = any_page(&mut Random(seed));
                    if let Ok(handle) = tier.store_page(&mut encoder, &page, &mut scratch) {
                        send.send((handle, seed)).unwrap();
                    }
                    if seed % 16 == 0 {
                        tier.compact(8);
                        tier.trim(1 << 16);
                    }
                }
            });
            let mut decoders = DecoderSet::new([Codec::Lz4]).unwrap();
            let (mut scratch, mut page) = ([0; PAGE_SIZE], [0; PAGE_SIZE]);
            let mut random = Random(99);
            let mut held = Vec::new();
            for stored in receive {
                held.push(stored);
                // Keep about 200 and let go at random, so that pools get holes.
                if held.len() > 200 {
                    let (handle, seed) = held.swap_remove(random.below(held.len()));
                    tier.load_page(&mut decoders, handle, &mut scratch, &mut page).unwrap();
                    assert!(page == any_page(&mut Random(seed)));
                    assert!(tier.free(handle));
                }
            }
            for (handle, _) in held {
                assert!(tier.free(handle));
            }
        });
        assert_eq!(tier.stats().pool.objects, 0);
        assert_eq!(tier.stats().load_errors, 0);
    }
}

/// Lets go of what the holder waits for, as a scheduler would that gives it its turn.
#[derive(Default)]
struct Scheduler {
    helped: AtomicU32,
    has_turn: AtomicBool,
}

impl Helper for Scheduler {
    fn help(&self, wait: &mut dyn FnMut()) {
        self.helped.fetch_add(1, Ordering::Relaxed);
        self.has_turn.store(true, Ordering::Release);
        wait();
    }
}

#[test]
fn who_holds_the_lock_and_does_not_run_is_helped_when_a_fault_waits() {
    let tier = tier(Pool::Zsmalloc, Codec::Lz4, 64);
    let handle = tier.store(&[7; 100], 1).unwrap();
    let scheduler: &'static Scheduler = Box::leak(Box::default());
    tier.be_helped(scheduler);
    let mut back = [0; PAGE_SIZE];
    // Whoever finds the lock free needs nobody, nor does one that can wait.
    assert_eq!(tier.load(handle, &mut back), Ok((100, 1)));
    let is_held = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let _pool = tier.lock();
            is_held.store(true, Ordering::Release);
            while !scheduler.has_turn.load(Ordering::Acquire) {
                std::thread::yield_now();
            }
        });
        while !is_held.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
        assert_eq!(scheduler.helped.load(Ordering::Relaxed), 0);
        // Without help it would wait for ever.
        assert_eq!(tier.load(handle, &mut back), Ok((100, 1)));
    });
    assert_eq!(scheduler.helped.load(Ordering::Relaxed), 1);
    assert_eq!(tier.urgent.load(Ordering::Relaxed), 0);
    assert!(tier.free(handle));
}
