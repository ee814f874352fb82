//! Properties that hold for every codec, and the ways in which each can be wrong alone.

use super::*;
use crate::testing::{page as any_page, Random};
use crate::{CUTOFF_BYTES, PAGE_SIZE};
use proptest::prelude::*;

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
        use Codec::{Deflate, Lz4Dict, Lz4hc, Zstd, ZstdDict};
        let may_need_room = matches!(codec, Deflate | Zstd | ZstdDict | Lz4hc | Lz4Dict);
        assert!(may_need_room, "{len} bytes of {} did not fit {len}", codec.name());
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
fn lzo_zero_runs_by_hand() {
    // Version 1; the literal 'a'; a run of 4 + (2 << 3 | 5) zeros and the literals "bc" after it.
    let mut stream = vec![17, 1, 17 + 1, b'a', 0x18 | 5, 0xfc | 2, 0xff, 2, b'b', b'c'];
    // After 2 literals: a match of 2 from 2 back. 30 bytes so far; two runs make up the page.
    stream.extend([1 << 2, 0]);
    let rest = PAGE_SIZE - 30 - 2051 - 4;
    stream.extend([0x18 | 7, 0xfc, 0xff, 255]);
    stream.extend([(0x18 | (rest & 7)) as u8, 0xfc, 0xff, (rest >> 3) as u8, 17, 0, 0]);
    let mut page = [7; PAGE_SIZE];
    assert_eq!(lzo::decode_with_zero_runs(&stream, &mut page), Ok(()));
    let mut wanted = [0; PAGE_SIZE];
    wanted[0] = b'a';
    wanted[26..30].copy_from_slice(b"bcbc");
    assert!(page == wanted);
    // Version 0 has no such instruction and no such beginning.
    assert_eq!(lzo::decode(&stream, &mut page), Err(Corrupt));
    assert_eq!(lzo::decode(&stream[2..], &mut page), Err(Corrupt));
    assert_eq!(lzo::decode_with_zero_runs(&stream[2..], &mut page), Err(Corrupt));
    // A run beyond the page.
    let at = stream.len() - 4;
    stream[at] += 1;
    assert_eq!(lzo::decode_with_zero_runs(&stream, &mut page), Err(Corrupt));
}

#[test]
fn lzo_rle_reads_version_0() {
    let mut random = Random(22);
    let mut encoder = lzo::Encoder::new();
    let (mut out, mut back) = ([0; 2 * PAGE_SIZE], [0; PAGE_SIZE]);
    for _ in 0..1000 {
        let page = any_page(&mut random);
        let len = encoder.encode(&page, &mut out).unwrap();
        assert_eq!(lzo::decode_with_zero_runs(&out[..len], &mut back), Ok(()));
        assert!(back == page);
    }
}

#[test]
fn a_page_of_zeros_takes_few_bytes() {
    for (codec, bytes_max) in [(Codec::LzoRle, 15), (Codec::C842, 24)] {
        let mut encoder = Encoder::new(codec, 1).unwrap();
        let len = encoder.encode(&[0; PAGE_SIZE], &mut [0; 64]).unwrap();
        assert!(len <= bytes_max, "{}: {len}", codec.name());
    }
}

/// What LZ4HC's tables hold of other pages is not seen, also after a page that did not fit.
#[test]
fn lz4hc_forgets_the_pages_before() {
    let mut random = Random(23);
    let (mut out, mut fresh_out) = ([0; 2 * PAGE_SIZE], [0; 2 * PAGE_SIZE]);
    for level in 2..=9 {
        let mut encoder = Encoder::new(Codec::Lz4hc, level).unwrap();
        for n in 0..200 {
            let page = any_page(&mut random);
            let room = if n % 5 == 0 { 1000 } else { out.len() };
            let len = encoder.encode(&page, &mut out[..room]);
            let mut fresh = Encoder::new(Codec::Lz4hc, level).unwrap();
            assert_eq!(len, fresh.encode(&page, &mut fresh_out[..room]));
            let len = len.unwrap_or(0);
            assert!(out[..len] == fresh_out[..len], "level {level}, page {n}");
        }
    }
}

#[test]
fn contexts_are_small() {
    let bound = |codec: Codec, level: i32| match codec {
        Codec::Lz4 | Codec::Lzo | Codec::LzoRle | Codec::C842 => 17 << 10,
        Codec::Lz4hc => 257 << 10,
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
    let one = Encoder::new(Codec::Deflate, 6).unwrap().context_bytes();
    let mut three = EncoderSet::new(&[(Codec::Deflate, 6); 3]).unwrap();
    assert_eq!(three.context_bytes(), 0, "nobody has wanted any");
    assert!((0..3).all(|n| three.get(n).is_some()) && three.get(3).is_none());
    assert_eq!(three.context_bytes(), one);
    assert!(EncoderSet::new(&[(Codec::Lz4, 1), (Codec::Deflate, 13)]).is_err());
    let mut none = DecoderSet::new([]).unwrap();
    for codec in Codec::ALL {
        assert_eq!(none.decode(codec, &[17, 0, 0], &mut [0; PAGE_SIZE]), Err(Corrupt));
    }
}
