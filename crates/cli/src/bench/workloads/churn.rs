//! A program that allocates: objects of many sizes with skewed lifetimes beside a large set of old
//! ones, of which few are looked at often.
//!
//! One operation allocates and fills [`ALLOCATIONS`] objects, compares [`READS`] old ones with what
//! was written, byte by byte, and frees what has lived long enough, which is compared first. Nine
//! of ten new objects die young, nearly all of the others in middle age; a few take the place of an
//! old one. Which old ones are read and replaced is skewed, too: all but one in
//! [`ANYWHERE_ONE_IN`] are of a hot seventh, which a second phase moves to the other half.
//!
//! Memory comes from the allocator of the C library, as any program's. What an object holds follows
//! from its number, and is cut from text, JSON and programs of this machine.

use std::collections::VecDeque;
use std::time::Instant;

use anyhow::Result;
use serde_json::json;

use super::record::{Clock, Phase, Recorder};
use super::WorkArgs;
use crate::demo::content::Content;
use crate::demo::random::{mix, Random};
use crate::demo::sys;

/// Objects that an operation allocates.
const ALLOCATIONS: usize = 8;
/// Old objects that it compares.
const READS: usize = 4;
/// One in so many of those is any, the others are of the hot part.
const ANYWHERE_ONE_IN: u64 = 1000;
/// One in so many new objects takes an old one's place.
const GROWS_OLD_ONE_IN: u64 = 128;
/// The hot part of the old objects is one in so many.
const HOT_ONE_IN: usize = 7;
/// Of the size that was asked for, in percent: old objects, and those that die before.
const OLD_PERCENT: u64 = 85;
const YOUNG_PERCENT: u64 = 8;
/// Lifetimes of the young are this part of those of the middle-aged.
const YOUNG_PART: u64 = 64;
/// The longest lifetime by the mean one: 9 of 10 live for 1/128 of it on average, 1 for a half.
const LONGEST_BY_MEAN: u64 = 17;
/// Smallest object: its number.
const LEN_MIN: usize = 16;
/// Largest.
const LEN_MAX: usize = 1 << 20;
/// Sizes: out of 1000 objects so many are up to so many bytes, each size between that and the row
/// before as likely on a scale of powers of two. Most objects are small, most bytes are in large
/// ones.
const SIZES: [(u64, usize); 4] = [(700, 256), (950, 4_096), (995, 65_536), (1_000, LEN_MAX)];
/// Mean length by that table, about.
const LEN_MEAN: u64 = 3_200;
/// What the objects are cut from.
const CORPUS_BYTES: usize = 4 << 20;
/// Operations after which the end of the run is noticed.
const OPS_BETWEEN_LOOKS: u64 = 16;

/// Makes and compares objects.
struct Maker {
    corpus: Vec<u8>,
}

/// A piece of memory of the allocator's, and what is in it.
struct Object {
    number: u64,
    bytes: Box<[u8]>,
}

impl Maker {
    fn new() -> Maker {
        let content = Content::build(CORPUS_BYTES * 2);
        let mut corpus = Vec::with_capacity(CORPUS_BYTES + 8_192);
        for key in 0.. {
            content.value(key, 0).append_to(&mut corpus);
            if corpus.len() >= CORPUS_BYTES {
                break;
            }
        }
        corpus.truncate(CORPUS_BYTES);
        Maker { corpus }
    }

    /// What follows an object's number.
    fn body(&self, number: u64, len: usize) -> &[u8] {
        let at = mix(number ^ 0xB0D1) as usize % (self.corpus.len() - len);
        &self.corpus[at..at + len]
    }

    fn make(&self, number: u64, len: usize) -> Object {
        let head = number.to_le_bytes();
        // In one allocation of this length.
        let mut bytes = Vec::with_capacity(len);
        bytes.extend_from_slice(&head);
        bytes.extend_from_slice(self.body(number, len - head.len()));
        Object { number, bytes: bytes.into_boxed_slice() }
    }

    /// Where an object differs from what was written.
    fn first_difference(&self, object: &Object) -> Option<usize> {
        let head = object.number.to_le_bytes();
        let (is_head, is_body) = object.bytes.split_at(head.len());
        let body = self.body(object.number, is_body.len());
        if is_head == head && is_body == body {
            return None;
        }
        let want = head.iter().chain(body);
        want.zip(&object.bytes[..]).position(|(want, is)| want != is)
    }

    fn check(&self, object: &Object, when: &str, recorder: &mut Recorder) {
        if let Some(at) = self.first_difference(object) {
            let (number, len) = (object.number, object.bytes.len());
            recorder.wrong(|| format!("{when}: object {number} at byte {at} of {len}"));
        }
    }
}

/// A length by [`SIZES`].
fn draw_len(random: &mut Random) -> usize {
    let n = random.below(1_000);
    let mut low = LEN_MIN;
    for (until, high) in SIZES {
        if n < until {
            let ratio = high as f64 / low as f64;
            return (low as f64 * ratio.powf(random.unit())) as usize;
        }
        low = high;
    }
    LEN_MAX
}

/// The program.
struct Heap {
    maker: Maker,
    random: Random,
    /// Objects made so far.
    made: u64,
    old: Vec<Object>,
    /// The first of the hot part.
    hot_from: usize,
    /// What dies in which operation, from the next one on.
    dying: VecDeque<Vec<Object>>,
}

impl Heap {
    /// Old objects for this much memory, and nobody young.
    fn build(size_mib: u64, seed: u64) -> Heap {
        let bytes = size_mib << 20;
        let mean_life = bytes * YOUNG_PERCENT / 100 / (ALLOCATIONS as u64 * LEN_MEAN);
        let longest = (mean_life * LONGEST_BY_MEAN).max(2 * YOUNG_PART);
        let mut heap = Heap {
            maker: Maker::new(),
            random: Random::new(mix(seed ^ 0xC4A2)),
            made: 0,
            old: Vec::new(),
            hot_from: 0,
            dying: (0..longest).map(|_| Vec::new()).collect(),
        };
        let mut left = bytes * OLD_PERCENT / 100;
        while left > 0 {
            let object = heap.allocate();
            // The allocator's own word beside each.
            left = left.saturating_sub(object.bytes.len() as u64 + 16);
            heap.old.push(object);
        }
        heap
    }

    fn allocate(&mut self) -> Object {
        let len = draw_len(&mut self.random);
        self.made += 1;
        self.maker.make(self.made, len)
    }

    /// An old object, by how often each is looked at.
    fn draw_old(&mut self) -> usize {
        let n = self.old.len();
        if self.random.below(ANYWHERE_ONE_IN) == 0 {
            return self.random.below(n as u64) as usize;
        }
        let hot = (n / HOT_ONE_IN).max(1);
        // Skewed within the hot part, too.
        let place = (hot as f64 * self.random.unit().powi(2)) as usize;
        (self.hot_from + place) % n
    }

    /// In how many operations a new object dies.
    fn draw_life(&mut self) -> usize {
        let longest = self.dying.len() as u64;
        let is_middle_aged = self.random.below(10) == 0;
        let most = if is_middle_aged { longest } else { longest / YOUNG_PART };
        self.random.below(most) as usize
    }

    /// Other objects are hot from now on.
    fn turn(&mut self) {
        self.hot_from = self.old.len() / 2;
    }

    fn operate(&mut self, recorder: &mut Recorder) {
        for _ in 0..ALLOCATIONS {
            let object = self.allocate();
            if self.random.below(GROWS_OLD_ONE_IN) == 0 {
                let n = self.draw_old();
                let before = std::mem::replace(&mut self.old[n], object);
                self.maker.check(&before, "replaced", recorder);
            } else {
                let life = self.draw_life();
                self.dying[life].push(object);
            }
        }
        for _ in 0..READS {
            let n = self.draw_old();
            self.maker.check(&self.old[n], "read", recorder);
        }
        let mut dead = self.dying.pop_front().unwrap_or_default();
        for object in dead.drain(..) {
            self.maker.check(&object, "freed", recorder);
        }
        self.dying.push_back(dead);
    }

    /// Compares everything that lives.
    fn check_all(&self, recorder: &mut Recorder) {
        for object in self.old.iter().chain(self.dying.iter().flatten()) {
            self.maker.check(object, "at the end", recorder);
        }
    }
}

/// Fills, operates, compares.
pub(super) fn run(args: &WorkArgs, recorder: &mut Recorder) -> Result<()> {
    recorder.progress("collecting realistic contents from the files of this machine");
    let mut heap = Heap::build(args.size, args.seed);
    heap.check_all(recorder);
    sys::stop_if_interrupted()?;
    let details = json!({"objects": heap.old.len()});
    recorder.ready(Clock::Wall, "operation", Some(std::process::id()), details)?;
    if args.corrupt {
        let last = heap.old.len() - 1;
        heap.old[last].bytes[LEN_MIN / 2] ^= 1;
    }
    let mut began = Instant::now();
    for n in 0_u64.. {
        if n % OPS_BETWEEN_LOOKS == 0 {
            if recorder.phase(began)? == Phase::Over {
                break;
            }
            if recorder.has_turned(began) {
                heap.turn();
            }
        }
        heap.operate(recorder);
        let now = Instant::now();
        recorder.latency(now, now - began);
        recorder.op(now, now - began)?;
        began = now;
    }
    heap.check_all(recorder);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::record::tests::recorder;
    use super::*;

    #[test]
    fn lengths_are_skewed_as_the_table_says() {
        let mut random = Random::new(5);
        let all: Vec<usize> = (0..200_000).map(|_| draw_len(&mut random)).collect();
        assert!(all.iter().all(|len| (LEN_MIN..=LEN_MAX).contains(len)));
        let up_to = |most| all.iter().filter(|len| **len <= most).count() as f64 / 200_000.0;
        assert!((up_to(256) - 0.7).abs() < 0.01 && (up_to(65_536) - 0.995).abs() < 0.002);
        let mean = all.iter().sum::<usize>() as f64 / 200_000.0;
        assert!((mean / LEN_MEAN as f64 - 1.0).abs() < 0.15, "{mean}");
    }

    #[test]
    fn the_heap_keeps_its_size_and_finds_nothing_wrong() {
        let (mut r, _lines) = recorder(1.0);
        let mut heap = Heap::build(16, 3);
        let size = |heap: &Heap| -> usize {
            let all = heap.old.iter().chain(heap.dying.iter().flatten());
            all.map(|object| object.bytes.len()).sum()
        };
        let lifetimes = heap.dying.len();
        for _ in 0..4 * lifetimes {
            heap.operate(&mut r);
        }
        let mib = size(&heap) as f64 / f64::from(1 << 20);
        assert!((11.0..18.0).contains(&mib), "{mib} of 16 MiB");
        assert_eq!(heap.dying.len(), lifetimes);
        heap.check_all(&mut r);
        assert_eq!(r.wrong_count(), 0);
    }

    #[test]
    fn every_flipped_bit_is_noticed() {
        let (mut r, _lines) = recorder(1.0);
        let mut heap = Heap::build(16, 3);
        for (wrong, at) in [0, 8, 15].into_iter().enumerate() {
            heap.old[7].bytes[at] ^= 4;
            heap.check_all(&mut r);
            assert_eq!(r.wrong_count(), wrong as u64 + 1, "byte {at}");
            heap.old[7].bytes[at] ^= 4;
        }
        // One that has died is compared as well.
        heap.operate(&mut r);
        let last = heap.dying.iter_mut().flatten().last().unwrap();
        last.bytes[0] ^= 1;
        for _ in 0..heap.dying.len() {
            heap.operate(&mut r);
        }
        assert_eq!(r.wrong_count(), 4);
    }

    #[test]
    fn after_a_turn_the_other_half_is_hot() {
        let mut heap = Heap::build(16, 9);
        let (n, hot) = (heap.old.len(), heap.old.len() / HOT_ONE_IN);
        let in_part = |heap: &mut Heap, from: usize| {
            let drawn = (0..4000).map(|_| heap.draw_old());
            drawn.filter(|at| (from..=from + hot).contains(at)).count()
        };
        assert!(in_part(&mut heap, 0) > 3950 && in_part(&mut heap, n / 2) < 20);
        heap.turn();
        assert!(in_part(&mut heap, n / 2) > 3950 && in_part(&mut heap, 0) < 20);
    }
}
