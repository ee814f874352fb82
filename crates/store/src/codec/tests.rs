//! Properties that hold for every codec, and the ways in which each can be wrong alone.

use super::*;
use crate::testing::{page as any_page, Random};
use crate::{CUTOFF_BYTES, PAGE_SIZE};
use proptest::prelude::*;
use std::time::{Duration, Instant};

const TIME_EACH: Duration = Duration::from_millis(1500);

fn round_trip(encoder: &mut Encoder, decoders: &mut DecoderSet, codec: Codec, page: &Page) {
    let mut out = [0; 2 * PAGE_SIZE];
    let len = encoder.encode(page, &mut out).expect("two pages are always enough");
    let mut back = [0x77; PAGE_SIZE];
    assert_eq!(decoders.decode(codec, &out[..len], &mut back), Ok(()));
    assert!(back == *page, "{} gave back another page", codec.name());
    // The same page fits exactly what it needs, and one byte less is refused or fits otherwise.
    let mut exact = vec![0; len];
    if let Some(again) = encoder.encode(page, &mut exact) {
        assert_eq!(decoders.decode(codec, &exact[..again], &mut back), Ok(()));
        assert!(back == *page);
    } else {
        assert!(codec != Codec::Lzo && codec != Codec::Lz4, "{len} bytes did not fit {len}");
    }
    if len > 1 {
        assert_eq!(encoder.encode(page, &mut exact[..len / 2]), None);
    }
}

#[test]
fn every_level_brings_every_kind_of_page_back() {
    let mut decoders = DecoderSet::new(Codec::ALL).unwrap();
    let mut random = Random(1);
    for codec in Codec::ALL {
        let (lowest, highest) = codec.levels();
        for level in lowest..=highest {
            let mut encoder = Encoder::new(codec, level).unwrap();
            for _ in 0..40 {
                round_trip(&mut encoder, &mut decoders, codec, &any_page(&mut random));
            }
        }
        assert!(Encoder::new(codec, highest + 1).is_err());
        assert!(Encoder::new(codec, lowest - 1).is_err());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn pieces_of_noise_and_repeats_come_back(
        pieces in prop::collection::vec((any::<u8>(), 1usize..300, 1usize..4096), 1..200),
        seed in any::<u64>(),
    ) {
        let mut random = Random(seed);
        let mut page = [0; PAGE_SIZE];
        let mut at = 0;
        for (kind, len, back) in pieces {
            for _ in 0..len {
                if at == PAGE_SIZE { break; }
                page[at] = if kind < 128 || back > at {
                    random.word() as u8
                } else {
                    page[at - back]
                };
                at += 1;
            }
        }
        let mut decoders = DecoderSet::new(Codec::ALL).unwrap();
        for codec in Codec::ALL {
            let mut encoder = Encoder::new(codec, codec.default_level()).unwrap();
            round_trip(&mut encoder, &mut decoders, codec, &page);
        }
    }
}

#[test]
fn noise_does_not_fit_the_cutoff() {
    let mut random = Random(2);
    let mut page = [0; PAGE_SIZE];
    page.fill_with(|| random.word() as u8);
    for codec in Codec::ALL {
        let mut encoder = Encoder::new(codec, codec.default_level()).unwrap();
        assert_eq!(encoder.encode(&page, &mut [0; CUTOFF_BYTES]), None);
        assert_eq!(encoder.encode(&page, &mut []), None);
    }
}

/// A decoder meets whatever a failing medium or a wrong handle gives it, in a process that is not
/// ours to crash.
fn survives_anything(codec: Codec, seed: u64) {
    let mut decoders = DecoderSet::new([codec]).unwrap();
    let mut encoder = Encoder::new(codec, codec.default_level()).unwrap();
    let mut random = Random(seed);
    let mut page = [0; PAGE_SIZE];
    let mut stored = [0; 2 * PAGE_SIZE];
    let (start, mut tries, mut decoded) = (Instant::now(), 0u64, 0u64);
    while start.elapsed() < TIME_EACH {
        let original = any_page(&mut random);
        let len = encoder.encode(&original, &mut stored).unwrap();
        for _ in 0..20 {
            let mut bytes = stored[..len].to_vec();
            match random.below(6) {
                0 => bytes.truncate(random.below(len)),
                1 => bytes = (0..random.below(300)).map(|_| random.word() as u8).collect(),
                2 => {
                    // Small bytes: for LZ formats, mostly legal instructions.
                    bytes = (0..random.below(3000)).map(|_| random.word() as u8 & 0x33).collect();
                }
                3 => bytes.extend((0..1 + random.below(9)).map(|_| random.word() as u8)),
                _ => {
                    for _ in 0..1 + random.below(4) {
                        let at = random.below(len);
                        bytes[at] = random.word() as u8;
                    }
                }
            }
            tries += 1;
            // Mutated bytes may be another page's encoding; that is for the checksum to find.
            decoded += u64::from(decoders.decode(codec, &bytes, &mut page).is_ok());
        }
        assert_eq!(decoders.decode(codec, &stored[..len], &mut page), Ok(()));
        assert!(page == original, "a context remembers what it should not");
    }
    assert_eq!(decoders.decode(codec, &[], &mut page), Err(Corrupt));
    println!("{}: {tries} inputs, {decoded} of them decoded", codec.name());
}

#[test]
fn lz4_survives_anything() {
    survives_anything(Codec::Lz4, 10);
}

#[test]
fn lzo_survives_anything() {
    survives_anything(Codec::Lzo, 11);
}

#[test]
fn deflate_survives_anything() {
    survives_anything(Codec::Deflate, 12);
}

#[test]
fn zstd_survives_anything() {
    survives_anything(Codec::Zstd, 13);
}

#[test]
fn a_foreign_lzo_decodes_ours() {
    let mut random = Random(20);
    let mut encoder = lzo::Encoder::new();
    let mut out = [0; 2 * PAGE_SIZE];
    for _ in 0..3000 {
        let page = any_page(&mut random);
        let len = encoder.encode(&page, &mut out).unwrap();
        let mut back = [0; PAGE_SIZE];
        assert_eq!(lzokay::decompress::decompress(&out[..len], &mut back), Ok(PAGE_SIZE));
        assert!(back == page);
    }
}

#[test]
fn ours_decodes_a_foreign_lzo() {
    let mut random = Random(21);
    let mut dictionary = lzokay::compress::Dict::new_const();
    let mut out = [0; 2 * PAGE_SIZE];
    let start = Instant::now();
    let mut pages = 0;
    // Its search is slow, much more so in a debug build.
    while start.elapsed() < 2 * TIME_EACH {
        let page = any_page(&mut random);
        let len = lzokay::compress::compress_no_alloc(&page, &mut out, &mut dictionary).unwrap();
        let mut back = [0; PAGE_SIZE];
        assert_eq!(lzo::decode(&out[..len], &mut back), Ok(()));
        assert!(back == page);
        pages += 1;
    }
    println!("{pages} pages");
    assert!(pages > 20, "only {pages} pages");
}

#[test]
fn lzo_short_matches_by_hand() {
    // 4 literals "abcd", a match of 3 from 2049 or more back is impossible here; after one literal
    // (spare bits) a match of 2 from 3 back.
    let mut stream = vec![17 + 4, b'a', b'b', b'c', b'd'];
    stream.extend([0x40 | (3 << 2) | 1, 0, b'X']); // 3 from 4 back = "abc", then the literal X
    stream.extend([(2 << 2), 0]); // after 1 literal: 2 from 3 back = "bc"

    // The rest by one long match, 10 back: 10 bytes so far, so the pattern repeats.
    let rest = PAGE_SIZE - 10;
    stream.push(32);
    let mut more = rest - 33;
    while more > 255 {
        stream.push(0);
        more -= 255;
    }
    stream.extend([more as u8, (9 << 2) as u8, 0, 17, 0, 0]);
    let mut page = [0; PAGE_SIZE];
    assert_eq!(lzo::decode(&stream, &mut page), Ok(()));
    assert_eq!(&page[..12], b"abcdabcXbcab");
    let mut foreign = [0; PAGE_SIZE];
    assert_eq!(lzokay::decompress::decompress(&stream, &mut foreign), Ok(PAGE_SIZE));
    assert!(page == foreign);
}

#[test]
fn contexts_are_small() {
    let bound = |codec: Codec, level: i32| match codec {
        Codec::Lz4 | Codec::Lzo => 17 << 10,
        Codec::Deflate if level < 10 => 660 << 10,
        Codec::Deflate => 10 << 20,
        // Level 0 is another name of level 3.
        Codec::Zstd if level < 3 && level != 0 => 73 << 10,
        Codec::Zstd => 400 << 10,
        Codec::ZstdDict => 2 << 20,
        Codec::Lz4Dict => 33 << 10,
    };
    for codec in Codec::ALL {
        for level in codec.levels().0..=codec.levels().1 {
            let bytes = Encoder::new(codec, level).unwrap().context_bytes();
            assert!(bytes <= bound(codec, level), "{codec:?} {level}: {bytes}");
        }
        assert!(DecoderSet::new([codec]).unwrap().context_bytes() <= 95 << 10);
    }
}

#[test]
fn equal_entries_share_a_context_and_absent_decoders_refuse() {
    let one = EncoderSet::new(&[(Codec::Deflate, 6)]).unwrap().context_bytes();
    let mut three = EncoderSet::new(&[(Codec::Deflate, 6); 3]).unwrap();
    assert_eq!(three.context_bytes(), one);
    assert!(three.get(2).is_some() && three.get(3).is_none());
    let mut none = DecoderSet::new([]).unwrap();
    for codec in Codec::ALL {
        assert_eq!(none.decode(codec, &[17, 0, 0], &mut [0; PAGE_SIZE]), Err(Corrupt));
    }
}
