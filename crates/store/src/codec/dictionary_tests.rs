use super::*;
use crate::codec::{Corrupt, DecoderSet, EncoderSet};
use crate::testing::{page as any_page, Random};
use std::time::{Duration, Instant};

const DICT_CODECS: [Codec; 2] = [Codec::ZstdDict, Codec::Lz4Dict];

/// Pages that have phrases in common, each page others, and numbers that no other page has.
fn record_page(random: &mut Random) -> Page {
    let mut text = Vec::new();
    while text.len() < PAGE_SIZE {
        let mut phrase = Random(1000 + random.below(400) as u64);
        text.extend((0..24).map(|_| b'a' + phrase.below(26) as u8));
        text.extend_from_slice(format!(":{};", random.word() as u16).as_bytes());
    }
    text[..PAGE_SIZE].try_into().unwrap()
}

fn pages(count: usize, seed: u64) -> Vec<Page> {
    let mut random = Random(seed);
    (0..count).map(|_| record_page(&mut random)).collect()
}

fn text_of(pages: &[Page]) -> Vec<u8> {
    train_on(&pages.iter().collect::<Vec<_>>(), 8 << 10, 64)
}

fn sets(list: &[(Codec, i32)], dictionaries: &Arc<Dictionaries>) -> (EncoderSet, DecoderSet) {
    let codecs = list.iter().map(|(codec, _)| *codec);
    (
        EncoderSet::with_dictionaries(list, dictionaries).unwrap(),
        DecoderSet::with_dictionaries(codecs, dictionaries).unwrap(),
    )
}

#[test]
fn every_level_brings_pages_back_with_and_without() {
    let samples = pages(32, 1);
    let mut random = Random(2);
    for codec in DICT_CODECS {
        let (lowest, highest) = codec.levels();
        for level in lowest..=highest {
            let dictionaries = Dictionaries::new();
            let (mut encoders, mut decoders) = sets(&[(codec, level)], &dictionaries);
            let mut made: Vec<(Page, Vec<u8>)> = Vec::new();
            for version in 0..=VERSIONS_MAX as u8 {
                // A page that does not fit comes before each change: zstd then is within a frame.
                let mut noise = [0; PAGE_SIZE];
                noise.fill_with(|| random.word() as u8);
                let encoder = encoders.get(0).unwrap();
                assert_eq!(encoder.encode(&noise, &mut [0; CUTOFF_BYTES]), None);
                if version > 0 {
                    let few = &samples[..8 * usize::from(version)];
                    assert_eq!(dictionaries.publish(&text_of(few)), Some(version));
                }
                for n in 0..12 {
                    let page =
                        if n % 2 == 0 { any_page(&mut random) } else { record_page(&mut random) };
                    let mut out = [0; 2 * PAGE_SIZE];
                    let len = encoders.get(0).unwrap().encode(&page, &mut out).unwrap();
                    assert_eq!(out[0], version, "{codec:?} {level} does not use its dictionary");
                    made.push((page, out[..len].to_vec()));
                }
                // Objects of every version so far, in one decoder.
                for (page, stored) in &made {
                    let mut back = [0; PAGE_SIZE];
                    assert_eq!(decoders.decode(codec, stored, &mut back), Ok(()));
                    assert!(back == *page, "{codec:?} {level}: another page came back");
                }
            }
        }
    }
}

#[test]
fn there_are_so_many_versions_and_no_more() {
    let dictionaries = Dictionaries::new();
    assert_eq!(dictionaries.publish(&[]), None);
    assert_eq!(dictionaries.publish(&vec![7; DICTIONARY_BYTES_MAX + 1]), None);
    assert!(dictionaries.newest().is_none() && dictionaries.bytes() == 0);
    for version in 1..=VERSIONS_MAX as u8 {
        assert!(!dictionaries.is_full());
        assert_eq!(dictionaries.publish(&[version; 1000]), Some(version));
        assert_eq!(dictionaries.newest().unwrap().content(), [version; 1000]);
    }
    let held = dictionaries.bytes();
    assert!((2000..100 << 10).contains(&held), "{held} bytes");
    assert!(dictionaries.is_full());
    assert_eq!(dictionaries.publish(&[1; 1000]), None);
    assert_eq!(dictionaries.bytes(), held);
    assert!(dictionaries.get(0).is_none() && dictionaries.get(VERSIONS_MAX as u8 + 1).is_none());
}

#[test]
fn it_is_published_where_it_pays_and_only_there() {
    let list = DICT_CODECS.map(|c| (c, c.default_level()));
    let alike = pages(128, 3);
    let dictionaries = Dictionaries::new();
    let refs: Vec<&Page> = alike.iter().collect();
    assert_eq!(dictionaries.improve(&list, &refs), Some(1));
    // The same once more improves nothing.
    assert_eq!(dictionaries.improve(&list, &refs), None);
    // Tiers without dictionaries want none.
    assert_eq!(Dictionaries::new().improve(&[(Codec::Zstd, 1)], &refs), None);
    // What was published makes other pages of the kind smaller.
    for (codec, level) in list {
        let others = pages(32, 4);
        let others: Vec<&Page> = others.iter().collect();
        let plain = encoded_bytes(codec, level, &Dictionaries::new(), &others).unwrap();
        let behind = encoded_bytes(codec, level, &dictionaries, &others).unwrap();
        assert!(behind * 100 < plain * 97, "{codec:?}: {behind} against {plain} bytes");
    }
    let mut random = Random(5);
    let noise: Vec<Page> = (0..64).map(|_| core::array::from_fn(|_| random.word() as u8)).collect();
    let noise: Vec<&Page> = noise.iter().collect();
    assert_eq!(Dictionaries::new().improve(&list, &noise), None);
    assert_eq!(Dictionaries::new().improve(&list, &[]), None);
}

#[test]
fn any_bytes_are_a_page_or_an_error() {
    let dictionaries = Dictionaries::new();
    dictionaries.publish(&text_of(&pages(16, 6))).unwrap();
    let mut random = Random(7);
    let (mut tries, mut decoded) = (0u64, 0u64);
    for codec in DICT_CODECS {
        let list = [(codec, codec.default_level())];
        let (mut encoders, mut decoders) = sets(&list, &dictionaries);
        let (mut out, mut back) = ([0; 2 * PAGE_SIZE], [0; PAGE_SIZE]);
        let start = Instant::now();
        while start.elapsed() < Duration::from_millis(1500) {
            let page = record_page(&mut random);
            let len = encoders.get(0).unwrap().encode(&page, &mut out).unwrap();
            for _ in 0..20 {
                let mut bytes = out[..len].to_vec();
                match random.below(5) {
                    0 => bytes.truncate(random.below(len)),
                    // Another version, mostly one that never was.
                    1 => bytes[0] = random.word() as u8,
                    2 => bytes[1..].fill_with(|| random.word() as u8 & 0x33),
                    _ => (0..1 + random.below(4))
                        .for_each(|_| bytes[random.below(len)] = random.word() as u8),
                }
                tries += 1;
                decoded += u64::from(decoders.decode(codec, &bytes, &mut back).is_ok());
            }
            assert_eq!(decoders.decode(codec, &out[..len], &mut back), Ok(()));
            assert!(back == page, "a context remembers what it should not");
            let mut unknown = out[..len].to_vec();
            unknown[0] = 9;
            assert_eq!(decoders.decode(codec, &unknown, &mut back), Err(Corrupt));
        }
        // A set without the dictionaries knows that it cannot.
        let page = record_page(&mut random);
        let len = encoders.get(0).unwrap().encode(&page, &mut out).unwrap();
        let mut stranger = DecoderSet::new([codec]).unwrap();
        assert_eq!(stranger.decode(codec, &out[..len], &mut back), Err(Corrupt));
    }
    println!("{tries} inputs, {decoded} of them decoded");
}

#[test]
fn pages_pass_while_dictionaries_are_published() {
    let samples = pages(32, 8);
    let dictionaries = Dictionaries::new();
    std::thread::scope(|scope| {
        for codec in DICT_CODECS {
            let (samples, dictionaries) = (&samples, &dictionaries);
            scope.spawn(move || {
                let (mut encoders, mut decoders) = sets(&[(codec, 1)], dictionaries);
                let mut versions = [0; VERSIONS_MAX + 1];
                let (mut out, mut back) = ([0; 2 * PAGE_SIZE], [0; PAGE_SIZE]);
                while versions[VERSIONS_MAX] < 200 {
                    let page = &samples[versions.iter().sum::<usize>() % samples.len()];
                    let len = encoders.get(0).unwrap().encode(page, &mut out).unwrap();
                    versions[usize::from(out[0])] += 1;
                    assert_eq!(decoders.decode(codec, &out[..len], &mut back), Ok(()));
                    assert!(back == *page);
                }
            });
        }
        for n in 0..VERSIONS_MAX {
            std::thread::sleep(Duration::from_millis(20));
            dictionaries.publish(&text_of(&samples[n * 8..n * 8 + 8])).unwrap();
        }
    });
}
