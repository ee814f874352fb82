//! z3fold by example; programs from seeds are in `fuzz.rs`.

use super::*;
use crate::testing::Random;

fn page_of(pool: &Z3fold, handle: Handle) -> u64 {
    pool.locate(handle).unwrap().extent.offset / PAGE_SIZE as u64
}

/// Compacts until nothing is left to gain; returns the moves.
fn compact_fully(pool: &mut Z3fold) -> usize {
    let mut moves = 0;
    loop {
        let made = pool.compact(16, &mut |from, to| {
            assert_eq!(from.len, to.len);
            true
        });
        moves += made;
        if made < 16 {
            return moves;
        }
    }
}

#[test]
fn three_that_fit_share_a_page_and_never_four() {
    let mut pool = Z3fold::new(16);
    let handles: Vec<_> = (0..3).map(|n| pool.alloc(1300, n).unwrap()).collect();
    assert_eq!(pool.stats().pool_bytes, 4096);
    let mut extents: Vec<_> = handles.iter().map(|h| pool.locate(*h).unwrap().extent).collect();
    extents.sort_by_key(|e| e.offset);
    assert_eq!(extents[0].offset, 0);
    assert!(extents.windows(2).all(|e| e[0].offset + u64::from(e[0].len) <= e[1].offset));
    pool.alloc(1, 3).unwrap();
    assert_eq!(pool.stats().pool_bytes, 2 * 4096);
    pool.validate();
}

#[test]
fn whole_pages_are_kept_too() {
    let mut pool = Z3fold::new(2);
    let a = pool.alloc(4096, 1).unwrap();
    pool.alloc(4033, 1).unwrap();
    assert_eq!(pool.alloc(1, 1), None);
    assert_eq!((pool.alloc(0, 1), pool.alloc(4097, 1)), (None, None));
    pool.validate();
    pool.free(a).unwrap();
    assert!(pool.alloc(1, 1).is_some());
    pool.validate();
}

#[test]
fn the_middle_object_moves_so_that_what_is_free_is_in_one_piece() {
    let mut pool = Z3fold::new(16);
    let [first, last, middle] = [2000, 800, 1000].map(|len| pool.alloc(len, 0).unwrap());
    pool.free(first).unwrap();
    pool.free(last).unwrap();
    let long = pool.alloc(2900, 0).unwrap();
    assert_ne!(page_of(&pool, long), page_of(&pool, middle), "no side has so much room");
    pool.free(long).unwrap();
    assert_eq!(compact_fully(&mut pool), 1);
    pool.validate();
    let long = pool.alloc(2900, 0).unwrap();
    assert_eq!(page_of(&pool, long), page_of(&pool, middle));
    assert_eq!(pool.stats().pool_bytes, 4096);
}

#[test]
fn a_middle_object_too_long_to_step_aside_changes_its_page() {
    let mut pool = Z3fold::new(16);
    let [first, last, middle] = [1000, 1000, 2000].map(|len| pool.alloc(len, 7).unwrap());
    pool.free(first).unwrap();
    pool.free(last).unwrap();
    assert_eq!(page_of(&pool, middle), 0);
    assert_eq!(pool.compact(5, &mut |_, _| false), 0, "the medium refuses");
    pool.validate();
    assert_eq!(pool.stats().pool_bytes, 4096, "the new page is not kept");
    assert_eq!(compact_fully(&mut pool), 1);
    pool.validate();
    let object = pool.locate(middle).unwrap();
    assert_eq!((object.extent, object.check), (Extent { offset: 4096, len: 2000 }, 7));
    assert_eq!(pool.stats().pool_bytes, 4096, "the old page was given up");
}

#[test]
fn three_pairs_become_two_full_pages() {
    let mut pool = Z3fold::new(16);
    let handles: Vec<_> = (0..9).map(|n| pool.alloc(1300, n).unwrap()).collect();
    for dead in [0, 3, 6] {
        pool.free(handles[dead]).unwrap();
    }
    assert_eq!(pool.stats().pool_bytes, 3 * 4096);
    // Joining the three split pages, and two objects that move.
    assert!(compact_fully(&mut pool) <= 5);
    pool.validate();
    assert_eq!(pool.stats().pool_bytes, 2 * 4096);
}

#[test]
fn compaction_gives_thin_pages_back_and_handles_survive() {
    let mut pool = Z3fold::new(1 << 16);
    let mut random = Random(11);
    let objects = 30_000;
    let handles: Vec<_> =
        (0..objects).map(|n| pool.alloc(500 + random.below(1500), n).unwrap()).collect();
    let dense = pool.stats();
    let mut left = Vec::new();
    for (n, handle) in handles.iter().enumerate() {
        if random.below(10) < 7 {
            pool.free(*handle).unwrap();
        } else {
            left.push((n as u32, *handle));
        }
    }
    let before = pool.stats();
    let moves = compact_fully(&mut pool);
    pool.validate();
    let after = pool.stats();
    let density = |s: &PoolStats| s.object_bytes as f64 / s.pool_bytes as f64;
    assert!(moves > 0 && moves < left.len(), "{moves} moves for {} objects", left.len());
    assert!(density(&before) < 0.6 * density(&dense), "the test has nothing to mend");
    assert!(density(&after) > 0.97 * density(&dense), "{} {}", density(&after), density(&dense));
    for (n, handle) in left {
        assert_eq!(pool.locate(handle).unwrap().check, n);
    }
    assert_eq!(compact_fully(&mut pool), 0, "there is an end");
}

#[test]
fn a_full_arena_can_be_compacted() {
    let mut pool = Z3fold::new(300);
    let mut random = Random(5);
    let mut live = Vec::new();
    while let Some(handle) = pool.alloc(900 + random.below(600), 0) {
        live.push(handle);
    }
    for _ in 0..live.len() / 2 {
        pool.free(live.swap_remove(random.below(live.len()))).unwrap();
    }
    let before = pool.stats().pool_bytes;
    compact_fully(&mut pool);
    pool.validate();
    assert!(pool.stats().pool_bytes < before * 7 / 10);
}

#[test]
fn a_split_page_that_cannot_be_joined_does_not_end_the_compaction_of_a_full_arena() {
    let mut pool = Z3fold::new(4);
    let stuck = [1000, 1000, 2000].map(|len| pool.alloc(len, 0).unwrap());
    let [first, last, middle] = [1500, 1500, 600].map(|len| pool.alloc(len, 0).unwrap());
    for _ in 0..2 {
        pool.alloc(4096, 0).unwrap();
    }
    pool.free(stuck[0]).unwrap();
    pool.free(stuck[1]).unwrap();
    pool.free(first).unwrap();
    assert!(!pool.arena.has_page());
    assert_eq!(compact_fully(&mut pool), 1);
    pool.validate();
    assert_eq!(pool.locate(stuck[2]).unwrap().extent.offset, 1024, "too long to step aside");
    assert_eq!(pool.locate(middle).unwrap().extent.offset, 4096, "first now");
    assert_eq!(page_of(&pool, last), 1);
}

/// 18 bytes an object in full pages, 22 in pairs, 34 alone, and what the tables round up to.
#[test]
fn metadata_is_bounded_by_how_many_share_a_page() {
    for (len, sharing, bytes_max) in [(1300, 3, 18.6), (2000, 2, 22.9), (3000, 1, 35.2)] {
        let mut pool = Z3fold::new(16384);
        while pool.alloc(len, 7).is_some() {}
        let stats = pool.stats();
        assert_eq!(stats.objects, 16384 * sharing);
        let bytes = stats.metadata_bytes as f64 / stats.objects as f64;
        assert!(bytes <= bytes_max, "{len}: {bytes:.2} bytes an object");
        pool.validate();
    }
}
