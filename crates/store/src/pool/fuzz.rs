//! All pools against a plain map, by programs from a seed.
//!
//! `TERRACE_FUZZ_RUNS=5000000 cargo test --release -p terrace-store with_a_map -- --nocapture`
//! executes so many instructions for each pool. A failing run prints the line that replays it, and
//! its program, shortened, as Rust: paste it into a named test below.

use super::*;
use crate::testing::Random;
use crate::PAGE_SIZE;
use std::collections::BTreeMap;
use std::panic::{catch_unwind, AssertUnwindSafe};

/// Instructions for each pool unless `TERRACE_FUZZ_RUNS` says otherwise: about a second.
const INSTRUCTIONS: u64 = 400_000;

#[derive(Clone, Copy, Debug)]
enum Instruction {
    /// Allocate so many bytes.
    Alloc(usize),
    /// Free the n-th live object (modulo how many there are).
    Free(usize),
    /// Compact with at most so many moves, the first so many of which the medium takes.
    Compact(usize, usize),
    /// Take an idle run away and give it back.
    Trim,
    /// Compare everything.
    Check,
}
use Instruction::*;

/// Pages of the arena; small, so that it fills.
const ARENA_PAGES: u64 = 200;

fn run(kind: Pool, program: &[Instruction]) {
    let mut pool = open(kind, ARENA_PAGES);
    // The truth: who is where, with which check word. And the bytes: who wrote each 1 KiB... by
    // offset, the handle that wrote the object's first and last byte.
    let mut live: Vec<(Handle, usize, u32)> = Vec::new();
    let mut bytes: BTreeMap<u64, Handle> = BTreeMap::new();
    let ends = |e: Extent| [e.offset, e.offset + u64::from(e.len) - 1];
    for (n, instruction) in program.iter().enumerate() {
        match *instruction {
            Alloc(len) => {
                let check = n as u32;
                let Some(handle) = pool.alloc(len, check) else {
                    let stats = pool.stats();
                    let room = ARENA_PAGES * PAGE_SIZE as u64 - stats.pool_bytes;
                    // A run of eight pages always fits half an arena of free pages.
                    assert!(!(1..=PAGE_SIZE).contains(&len) || room < stats.pool_bytes + 65536);
                    continue;
                };
                let extent = pool.locate(handle).unwrap().extent;
                for end in ends(extent) {
                    bytes.insert(end, handle);
                }
                live.push((handle, len, check));
            }
            Free(n) => {
                if live.is_empty() {
                    continue;
                }
                let (handle, len, check) = live.swap_remove(n % live.len());
                let object = pool.free(handle).unwrap();
                assert_eq!((object.extent.len as usize, object.check), (len, check));
                assert!(ends(object.extent).iter().all(|e| bytes.get(e) == Some(&handle)));
                assert_eq!(pool.free(handle), None, "freed twice");
            }
            Compact(moves_max, moves_taken) => {
                let mut moves = 0;
                let made = pool.compact(moves_max, &mut |from, to| {
                    assert_eq!(from.len, to.len);
                    assert!(from.offset.abs_diff(to.offset) >= u64::from(from.len), "overlap");
                    if moves == moves_taken {
                        return false;
                    }
                    moves += 1;
                    for (a, b) in ends(from).into_iter().zip(ends(to)) {
                        let owner = bytes[&a];
                        bytes.insert(b, owner);
                    }
                    true
                });
                assert_eq!(made, moves);
                assert!(made <= moves_max);
                if made < moves_max && made < moves_taken {
                    let more = pool.compact(1, &mut |_, _| panic!("there was more to gain"));
                    assert_eq!(more, 0);
                }
            }
            Trim => {
                if let Some(extent) = pool.take_idle() {
                    let end = extent.offset + u64::from(extent.len);
                    bytes.retain(|at, _| *at < extent.offset || *at >= end);
                    pool.give_back(extent);
                }
            }
            Check => {
                pool.validate();
                let mut object_bytes = 0;
                let mut extents = BTreeMap::new();
                for (handle, len, check) in &live {
                    let object = pool.locate(*handle).unwrap();
                    assert_eq!((object.extent.len as usize, object.check), (*len, *check));
                    assert!(ends(object.extent).iter().all(|e| bytes.get(e) == Some(handle)));
                    assert_eq!(extents.insert(object.extent.offset, *len), None);
                    object_bytes += len;
                }
                let mut end = 0;
                for (offset, len) in extents {
                    assert!(offset >= end, "objects overlap");
                    end = offset + len as u64;
                }
                assert!(end <= ARENA_PAGES * PAGE_SIZE as u64);
                let stats = pool.stats();
                assert_eq!(stats.objects, live.len() as u64);
                assert_eq!(stats.object_bytes, object_bytes as u64);
                assert!(stats.object_bytes <= stats.pool_bytes);
            }
        }
    }
}

fn program(random: &mut Random) -> Vec<Instruction> {
    // Each program has its own mood: how it sizes, and whether it grows or shrinks.
    let sizes = random.below(4);
    let grow = 30 + random.below(50);
    let len = 50 + random.below(3000);
    let mut program: Vec<_> = (0..len)
        .map(|_| match random.below(100) {
            n if n < grow => Alloc(match sizes {
                0 => 1 + random.below(PAGE_SIZE),
                1 => 1000 + random.below(100),
                2 => 1 + random.below(200),
                _ => random.below(5000),
            }),
            90..=92 => Compact(random.below(50), random.below(60)),
            93..=95 => Trim,
            96 if random.below(8) == 0 => Check,
            _ => Free(random.below(1 << 16)),
        })
        .collect();
    program.push(Check);
    program
}

fn from_environment(name: &str) -> Option<u64> {
    let value = std::env::var(name).ok()?;
    Some(value.parse().unwrap_or_else(|_| panic!("{name}={value}: not a number")))
}

/// Leaves out pieces of a failing program while it still fails.
fn shortened(kind: Pool, program: Vec<Instruction>) -> Vec<Instruction> {
    let mut short = program;
    let mut piece = short.len() / 2;
    while piece > 0 {
        let mut at = 0;
        while at < short.len() {
            let mut shorter = short.clone();
            shorter.drain(at..(at + piece).min(shorter.len()));
            shorter.push(Check);
            if catch_unwind(AssertUnwindSafe(|| run(kind, &shorter))).is_err() {
                shorter.pop();
                short = shorter;
            } else {
                at += piece;
            }
        }
        piece /= 2;
    }
    short
}

fn fuzz(kind: Pool, first_seed: u64) {
    let replay = from_environment("TERRACE_FUZZ_SEED");
    let wanted = from_environment("TERRACE_FUZZ_RUNS").unwrap_or(INSTRUCTIONS);
    let (mut seed, mut programs, mut instructions) = (replay.unwrap_or(first_seed), 0, 0);
    while instructions < wanted {
        let program = program(&mut Random(seed));
        programs += 1;
        instructions += program.len() as u64;
        if catch_unwind(AssertUnwindSafe(|| run(kind, &program))).is_err() {
            let (name, short) = (kind.name(), shortened(kind, program));
            panic!(
                "replay: TERRACE_FUZZ_SEED={seed} cargo test --release -p terrace-store \
                 {name}_agrees_with_a_map\nrun(Pool::{kind:?}, &{short:?})"
            );
        }
        if replay.is_some() {
            break;
        }
        seed += 1;
    }
    println!("{}: {programs} programs, {instructions} instructions executed", kind.name());
}

#[test]
fn zbud_agrees_with_a_map() {
    fuzz(Pool::Zbud, 1);
}

#[test]
fn z3fold_agrees_with_a_map() {
    fuzz(Pool::Z3fold, 2_000_000_000);
}

#[test]
fn zsmalloc_agrees_with_a_map() {
    fuzz(Pool::Zsmalloc, 1_000_000_000);
}

#[test]
fn a_medium_that_refuses_a_move_leaves_the_object_where_it_was() {
    let mut program = vec![Alloc(1000); 200];
    program.extend((0..150).map(Free));
    program.extend([Compact(50, 3), Check, Compact(50, 0), Check, Compact(1000, 1000), Check]);
    run(Pool::Zsmalloc, &program);
    run(Pool::Z3fold, &program);
}
