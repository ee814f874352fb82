//! A tier of blocks against a plain map, by programs from a seed, with readers on other threads.
//!
//! `TERRACE_FUZZ_RUNS=1000000 cargo test --release -p terrace-store blocks::fuzz -- --nocapture`
//! executes about so many instructions. A failing program is printed with its seed, shortened.

use super::tests::{decoders, encoder, tier};
use super::*;
use crate::codec::DecoderSet;
use crate::testing::{page as any_page, Random};
use core::sync::atomic::AtomicBool;
use std::panic::{catch_unwind, AssertUnwindSafe};
use terrace_core::tier::{Pool, BLOCK_KIB};

/// Instructions unless `TERRACE_FUZZ_RUNS` says otherwise: a few seconds.
const INSTRUCTIONS: u64 = 60_000;

#[derive(Clone, Copy, Debug)]
enum Instruction {
    /// Store the page of this number.
    Store(u64),
    /// Load the n-th live page (modulo how many there are).
    Load(usize),
    /// Load so many pages behind each other from the n-th on, as a scan does.
    Scan(usize, usize),
    /// Free the n-th live page.
    Free(usize),
    /// Free so many from the n-th on, as a region that comes home does.
    FreeRun(usize, usize),
    /// Compact with at most so many moves.
    Compact(usize),
    /// Give idle pages back.
    Trim,
    /// Compare everything.
    Check,
}
use Instruction::*;

#[derive(Clone, Copy, Debug)]
struct Shape {
    pool: Pool,
    block_kib: u8,
    /// Small, so that it fills.
    arena_pages: usize,
}

fn content(number: u64) -> Page {
    any_page(&mut Random(number))
}

fn load(tier: &Tier, decoders: &mut DecoderSet, handle: Handle) -> Result<Page, LoadError> {
    let mut page = [0; PAGE_SIZE];
    tier.load_page(decoders, handle, &mut [0; PAGE_SIZE], &mut page).map(|()| page)
}

fn run(shape: Shape, program: &[Instruction]) {
    let tier = tier(shape.pool, shape.block_kib, shape.arena_pages);
    let (mut encoder, mut decoders) = (encoder(), decoders());
    // The truth: who is live, with which page. And who is dead and was not named anew.
    let mut live: Vec<(Handle, u64)> = Vec::new();
    let mut dead: Vec<Handle> = Vec::new();
    let expect = |decoders: &mut DecoderSet, (handle, number): (Handle, u64)| {
        let back = load(&tier, decoders, handle);
        assert!(back == Ok(content(number)), "page {number}: {:?}", back.map(|_| "other bytes"));
    };
    for instruction in program {
        match *instruction {
            Store(number) => {
                let page = content(number);
                match tier.store_page(&mut encoder, &page, &mut [0; PAGE_SIZE]) {
                    Ok(handle) => {
                        assert!(live.iter().all(|l| l.0 != handle), "two pages, one handle");
                        dead.retain(|d| *d != handle);
                        live.push((handle, number));
                    }
                    Err(Refusal::Incompressible) => {
                        let alone = encoder.encode(&page, &mut [0; crate::CUTOFF_BYTES]);
                        assert_eq!(alone, None, "it would have shrunk");
                    }
                    Err(why) => assert_eq!(why, Refusal::PoolFull),
                }
            }
            Load(n) if !live.is_empty() => expect(&mut decoders, live[n % live.len()]),
            Scan(n, len) if !live.is_empty() => {
                let start = n % live.len();
                for entry in &live[start..(start + len).min(live.len())] {
                    expect(&mut decoders, *entry);
                }
            }
            Free(n) if !live.is_empty() => {
                let (handle, _) = live.remove(n % live.len());
                assert!(tier.free(handle));
                dead.push(handle);
            }
            FreeRun(n, len) if !live.is_empty() => {
                let start = n % live.len();
                for (handle, _) in live.drain(start..(start + len).min(live.len())) {
                    assert!(tier.free(handle));
                    dead.push(handle);
                }
            }
            Compact(moves_max) => assert!(tier.compact(moves_max) <= moves_max),
            Trim => {
                tier.trim(1 << 16);
            }
            Check => {
                tier.blocks().unwrap().validate();
                for entry in &live {
                    expect(&mut decoders, *entry);
                }
                for handle in &dead {
                    let outlived = load(&tier, &mut decoders, *handle);
                    assert_eq!(outlived, Err(LoadError::NoSuchObject), "{handle:?} outlived it");
                    assert!(!tier.free(*handle));
                }
                let stats = tier.stats();
                assert_eq!(stats.pool.objects, live.len() as u64);
                let in_blocks = stats.blocks.sealed * u64::from(shape.block_kib) / 4;
                assert!(live.len() as u64 <= in_blocks + stats.blocks.filling_pages);
                let filling_bytes = stats.blocks.filling_pages * PAGE_SIZE as u64;
                assert!(stats.pool.object_bytes - filling_bytes <= stats.pool.pool_bytes);
                assert!(stats.pool.metadata_bytes >= filling_bytes);
            }
            _ => {}
        }
    }
    for (handle, _) in live {
        assert!(tier.free(handle));
    }
    tier.blocks().unwrap().validate();
    let stats = tier.stats();
    assert_eq!((stats.pool.objects, stats.blocks.sealed, stats.pool.pool_bytes), (0, 0, 0));
}

fn program(random: &mut Random) -> Vec<Instruction> {
    // Some programs fill, some empty, most do both.
    let stores = 1 + random.below(12);
    (0..20 + random.below(400))
        .map(|_| match random.below(stores + 10) {
            0 => Check,
            1 => Trim,
            2 | 3 => Compact(random.below(100)),
            4 => FreeRun(random.word() as usize, random.below(40)),
            5 | 6 => Free(random.word() as usize),
            7 | 8 => Load(random.word() as usize),
            9 => Scan(random.word() as usize, random.below(40)),
            _ => Store(random.word() % 5_000),
        })
        .chain([Check])
        .collect()
}

fn shape(random: &mut Random) -> Shape {
    Shape {
        pool: Pool::ALL[random.below(Pool::ALL.len())],
        block_kib: BLOCK_KIB[random.below(BLOCK_KIB.len())],
        arena_pages: [20, 60, 200, 600][random.below(4)],
    }
}

#[test]
fn programs_agree_with_a_map() {
    let wanted = std::env::var("TERRACE_FUZZ_RUNS").ok().and_then(|n| n.parse().ok());
    let wanted: u64 = wanted.unwrap_or(INSTRUCTIONS);
    let (mut executed, mut seed) = (0, 1);
    while executed < wanted {
        let mut random = Random(seed);
        let shape = shape(&mut random);
        let mut program = program(&mut random);
        executed += program.len() as u64;
        let fails = |p: &[Instruction]| catch_unwind(AssertUnwindSafe(|| run(shape, p))).is_err();
        if fails(&program) {
            // Without what is not needed to fail, quarter by quarter down to single instructions.
            let mut step = program.len() / 4;
            while step > 0 {
                let mut at = 0;
                while at < program.len() {
                    let mut less = program.clone();
                    less.drain(at..(at + step).min(less.len()));
                    if fails(&less) {
                        program = less;
                    } else {
                        at += step;
                    }
                }
                step /= 2;
            }
            panic!("seed {seed}: run({shape:?}, &{program:?})");
        }
        seed += 1;
    }
    println!("{executed} instructions");
}

/// What the runtime does: a mover stores and compacts, faults on other threads load a page and free
/// it, a scan reads without freeing, and somebody reads with handles that may be dead by then.
#[test]
fn readers_on_other_threads_get_what_was_stored() {
    const PAGES: u64 = 12_000;
    for (pool, block_kib) in [(Pool::Zsmalloc, 64), (Pool::Zbud, 16), (Pool::Z3fold, 32)] {
        let tier = &tier(pool, block_kib, 8192);
        let (send, receive) = std::sync::mpsc::sync_channel::<(Handle, u64)>(800);
        // Theirs alone: should they fail, the mover fails, too, and does not wait.
        let receive = Arc::new(Mutex::new(receive));
        let stale = &AtomicU64::new(0);
        let is_over = &AtomicBool::new(false);
        std::thread::scope(|threads| {
            let mover = threads.spawn(move || {
                let mut encoder = encoder();
                for number in 0..PAGES {
                    let page = content(number);
                    let stored = tier.store_page(&mut encoder, &page, &mut [0; PAGE_SIZE]);
                    match stored {
                        Ok(handle) => {
                            stale.store(u64::from(handle.0), Ordering::Relaxed);
                            send.send((handle, number)).unwrap();
                        }
                        Err(why) => assert_eq!(why, Refusal::Incompressible),
                    }
                    if number % 32 == 0 {
                        tier.compact(32);
                        tier.trim(1 << 16);
                    }
                }
            });
            let faults = [(0, receive.clone()), (1, receive)].map(|(n, receive)| {
                threads.spawn(move || {
                    let mut decoders = decoders();
                    let mut random = Random(n);
                    let mut held = Vec::new();
                    loop {
                        let Ok(next) = receive.lock().unwrap().recv() else { break };
                        held.push(next);
                        // Keep a few hundred and let go at random, so that blocks get thin.
                        while held.len() > 300 {
                            let n = random.below(held.len());
                            let scan = (n + 5).min(held.len());
                            for (handle, number) in &held[n..scan] {
                                let back = load(tier, &mut decoders, *handle);
                                assert!(back == Ok(content(*number)), "page {number}");
                            }
                            assert!(tier.free(held.swap_remove(n).0));
                        }
                    }
                    for (handle, number) in held {
                        assert!(load(tier, &mut decoders, handle) == Ok(content(number)));
                        assert!(tier.free(handle));
                    }
                })
            });
            threads.spawn(move || {
                // As a mover reads that migrates: any answer but a panic, and never a page that
                // does not match a checksum.
                let mut decoders = decoders();
                while !is_over.load(Ordering::Relaxed) {
                    let newest = stale.load(Ordering::Relaxed) as u32;
                    for back in 0..40 {
                        let _ = load(tier, &mut decoders, Handle(newest.saturating_sub(back)));
                    }
                }
            });
            let outcome = mover.join();
            let outcomes = faults.map(|fault| fault.join());
            is_over.store(true, Ordering::Relaxed);
            assert!(outcome.is_ok() && outcomes.iter().all(Result::is_ok));
        });
        tier.blocks().unwrap().validate();
        let stats = tier.stats();
        assert_eq!((stats.pool.objects, stats.pool.pool_bytes), (0, 0));
        assert!(stats.blocks.repacked_pages > 0, "nothing was repacked");
    }
}

/// Two movers at once: blocks that are being sealed, filled and repacked by several threads.
#[test]
fn several_threads_store_and_repack() {
    const PAGES: u64 = 3_000;
    let tier = &tier(Pool::Zsmalloc, 32, 8192);
    std::thread::scope(|threads| {
        for worker in 0..3 {
            threads.spawn(move || {
                let (mut encoder, mut decoders) = (encoder(), decoders());
                let mut random = Random(worker);
                let mut held = Vec::new();
                for n in 0..PAGES {
                    let number = worker * PAGES + n;
                    let page = content(number);
                    let stored = tier.store_page(&mut encoder, &page, &mut [0; PAGE_SIZE]);
                    held.extend(stored.ok().map(|handle| (handle, number)));
                    if held.len() > 200 {
                        let (handle, number) = held.swap_remove(random.below(held.len()));
                        assert!(load(tier, &mut decoders, handle) == Ok(content(number)));
                        assert!(tier.free(handle));
                    }
                    if n % 64 == 0 {
                        tier.compact(64);
                    }
                }
                for (handle, number) in held {
                    assert!(load(tier, &mut decoders, handle) == Ok(content(number)));
                    assert!(tier.free(handle));
                }
            });
        }
    });
    tier.blocks().unwrap().validate();
    let stats = tier.stats();
    assert_eq!((stats.pool.objects, stats.pool.pool_bytes, stats.load_errors), (0, 0, 0));
    assert!(stats.blocks.repacked_pages > 0);
}
