//! Decoders against any bytes, from a seed.
//!
//! `TERRACE_FUZZ_RUNS` is the number of executions over all codecs, 350,000 if not given;
//! `TERRACE_FUZZ_SEED` the first seed, 1 if not given. A failure names the codec and the seed of
//! the page it happened at, and `TERRACE_FUZZ_SEED` set to that one begins there.
//!
//!     TERRACE_FUZZ_RUNS=10000000 cargo test --release -p terrace-store codec::fuzz -- --nocapture
//!
//! An execution gives a decoder bytes that are nearly a stream, or were one, or never were. Of each
//! is demanded: it returns; nothing outside of the page is written; what it says does not depend on
//! what was in the page; and where it says yes, every byte of the page comes from the stream. The
//! two formats that are ours throughout are compared with a second decoder ([`super::plain`]), LZO
//! with one that is not ours, too.

use super::*;
use crate::testing::{page as any_page, Random};
use crate::PAGE_SIZE;
use std::time::Instant;

const RUNS_DEFAULT: u64 = 350_000;
/// Executions on the streams of one page.
const RUNS_PER_PAGE: u64 = 25;
const CANARY_BYTES: usize = 64;
const CANARY: u8 = 0xc7;

fn asked(name: &str, default: u64) -> u64 {
    match std::env::var(name) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{name}: {text:?} is not a number")),
        Err(_) => default,
    }
}

/// A stream with something wrong in it, or something else entirely.
fn mutated(random: &mut Random, stream: &[u8], other: &[u8]) -> Vec<u8> {
    let mut bytes = stream.to_vec();
    let len = bytes.len();
    match random.below(12) {
        0 => bytes.truncate(random.below(len)),
        1 => bytes = (0..random.below(300)).map(|_| random.word() as u8).collect(),
        // Small bytes: for LZ formats, mostly legal instructions.
        2 => bytes = (0..random.below(3000)).map(|_| random.word() as u8 & 0x33).collect(),
        3 => bytes.extend((0..1 + random.below(9)).map(|_| random.word() as u8)),
        // The beginning of one stream and the end of another.
        4 => {
            bytes.truncate(random.below(len));
            bytes.extend_from_slice(&other[random.below(other.len())..]);
        }
        // A piece of the stream again, in its own or another place.
        5 => {
            let from = random.below(len);
            let piece = bytes[from..len.min(from + 1 + random.below(64))].to_vec();
            let to = random.below(len);
            bytes.splice(to..to, piece);
        }
        6 => {
            let from = random.below(len);
            bytes.drain(from..len.min(from + 1 + random.below(16)));
        }
        // Numbers at their limits.
        7 => {
            let at = random.below(len);
            bytes[at] = [0, 1, 0x7f, 0x80, 0xfe, 0xff][random.below(6)];
        }
        8 => {
            let from = random.below(len);
            let end = len.min(from + 1 + random.below(12));
            bytes[from..end].fill([0, 0xff][random.below(2)]);
        }
        9 => {
            let at = random.below(len);
            bytes[at] ^= 1 << random.below(8);
        }
        _ => {
            for _ in 0..1 + random.below(4) {
                let at = random.below(len);
                bytes[at] = random.word() as u8;
            }
        }
    }
    bytes
}

/// Gives a stream of 842 that is otherwise in order its right checksum, so that not only the
/// checksum is tried.
fn mend_checksum(bytes: &mut [u8]) {
    let Some((page, at)) = plain::c842_but_for_the_checksum(bytes) else { return };
    let crc = crc32::of(page.as_slice().try_into().expect("a page"));
    for n in 0..32 {
        let (byte, bit) = ((at + n) / 8, 7 - (at + n) % 8);
        bytes[byte] = bytes[byte] & !(1 << bit) | ((crc >> (31 - n) & 1) as u8) << bit;
    }
}

/// A page between two canaries.
struct Guarded([u8; PAGE_SIZE + 2 * CANARY_BYTES]);

impl Guarded {
    /// Decodes over a page full of `fill`; the canaries must live.
    fn decode(
        &mut self,
        decoders: &mut DecoderSet,
        codec: Codec,
        bytes: &[u8],
        fill: u8,
    ) -> Result<&Page, Corrupt> {
        self.0.fill(CANARY);
        let page: &mut Page =
            (&mut self.0[CANARY_BYTES..][..PAGE_SIZE]).try_into().expect("a page");
        page.fill(fill);
        let result = decoders.decode(codec, bytes, page);
        let (before, rest) = self.0.split_at(CANARY_BYTES);
        let (page, after) = rest.split_at(PAGE_SIZE);
        assert!(before.iter().chain(after).all(|byte| *byte == CANARY), "wrote outside");
        result.map(|()| page.try_into().expect("a page"))
    }
}

/// What another decoder of the same format makes of the bytes, where there is one as strict.
fn second_opinion(codec: Codec, bytes: &[u8]) -> Option<Option<Vec<u8>>> {
    match codec {
        Codec::Lzo => Some(plain::lzo(bytes, false)),
        Codec::LzoRle => Some(plain::lzo(bytes, true)),
        Codec::C842 => Some(plain::c842(bytes)),
        _ => None,
    }
}

/// What a decoder of others makes of bytes that ours took for a page. They are not as strict, or
/// otherwise strict, so only a different page counts.
fn agrees(codec: Codec, bytes: &[u8], page: &Page) -> bool {
    let mut back = [0; PAGE_SIZE];
    let len = match codec {
        Codec::Lz4 | Codec::Lz4hc => lz4_flex::block::decompress_into(bytes, &mut back).ok(),
        Codec::Lzo => lzokay::decompress::decompress(bytes, &mut back).ok(),
        _ => None,
    };
    len != Some(PAGE_SIZE) || back == *page
}

/// Runs one codec; returns how many executions were taken for a page.
fn runs(codec: Codec, seed: u64, count: u64) -> u64 {
    let mut decoders = DecoderSet::new([codec]).unwrap();
    let (lowest, highest) = codec.levels();
    let mut encoders: Vec<Encoder> = [lowest, codec.default_level(), highest]
        .map(|level| Encoder::new(codec, level.min(9)).unwrap())
        .into();
    let mut guarded = Guarded([0; PAGE_SIZE + 2 * CANARY_BYTES]);
    let mut stored = vec![0; 2 * PAGE_SIZE];
    let mut other = vec![0];
    let (mut done, mut accepted) = (0, 0);
    let mut page_seed = seed;
    while done < count {
        let mut random = Random(page_seed ^ 0x842);
        let place = format!("{}, TERRACE_FUZZ_SEED={page_seed}", codec.name());
        let original = any_page(&mut random);
        let n = random.below(encoders.len());
        let len = encoders[n].encode(&original, &mut stored).unwrap();
        let stream = &stored[..len];
        for _ in 0..RUNS_PER_PAGE.min(count - done) {
            let mut bytes = mutated(&mut random, stream, &other);
            if codec == Codec::C842 && random.below(4) != 0 {
                mend_checksum(&mut bytes);
            }
            let first = guarded.decode(&mut decoders, codec, &bytes, 0x00).copied();
            let second = guarded.decode(&mut decoders, codec, &bytes, 0xff).copied();
            assert!(first == second, "{place}: what was in the page shows");
            if let Some(opinion) = second_opinion(codec, &bytes) {
                let ours = first.ok().map(|page| page.to_vec());
                assert!(ours == opinion, "{place}: the plain decoder disagrees");
            }
            if let Ok(page) = &first {
                accepted += 1;
                assert!(agrees(codec, &bytes, page), "{place}: another decoder disagrees");
            }
            done += 1;
        }
        let back = guarded.decode(&mut decoders, codec, stream, 0x55);
        assert!(back == Ok(&original), "{place}: the stream itself");
        other.clear();
        other.extend_from_slice(stream);
        page_seed += 1;
    }
    accepted
}

/// All codecs, side by side on the processors there are.
#[test]
fn decoders_survive_anything() {
    let total = asked("TERRACE_FUZZ_RUNS", RUNS_DEFAULT);
    let seed = asked("TERRACE_FUZZ_SEED", 1);
    let each = total.div_ceil(Codec::ALL.len() as u64);
    let start = Instant::now();
    let threads = Codec::ALL.map(|codec| {
        std::thread::spawn(move || {
            let accepted = runs(codec, seed, each);
            println!("{}: {each} executions, {accepted} of them a page", codec.name());
        })
    });
    for thread in threads {
        thread.join().expect("a decoder failed; what it was is said above");
    }
    let (done, time) = (each * Codec::ALL.len() as u64, start.elapsed());
    println!("{done} executions in {:.1} s", time.as_secs_f64());
}

#[test]
fn nothing_is_no_page() {
    let mut decoders = DecoderSet::new(Codec::ALL).unwrap();
    for codec in Codec::ALL {
        assert_eq!(decoders.decode(codec, &[], &mut [0; PAGE_SIZE]), Err(Corrupt));
    }
}
