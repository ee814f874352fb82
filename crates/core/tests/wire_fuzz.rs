//! The messages a runtime takes from its socket, against any bytes: made from whole messages that
//! are damaged, and from nothing.
//!
//! What decodes obeys every bound that the runtime relies on, and is encoded to the same bytes
//! again, so that no message has two meanings.
//! `TERRACE_FUZZ_RUNS=50000000 cargo test --release -p terrace-core --test wire_fuzz` runs longer;
//! a failure prints the seed and the bytes.

use terrace_core::looks::Watching;
use terrace_core::state::REGION_BYTES;
use terrace_core::tier::{Codec, MediumKind, Place, Pool, TierId, MAX_TIERS, PATH_BYTES_MAX};
use terrace_core::wire::{
    encode_refusal, split_message, Configure, FromRuntime, Hello, Malformed, PlanEntry,
    RegionReport, Report, TierConfig, TierReport, ToRuntime, LATENCY_NS_MAX, NOTE_BYTES_MAX,
    VERSION,
};

/// Messages unless `TERRACE_FUZZ_RUNS` says otherwise: two or three seconds.
const RUNS: u64 = 300_000;

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }
    fn below(&mut self, n: u64) -> u64 {
        (self.next() >> 16) % n
    }
    /// Zero, one, small, large or any.
    fn number(&mut self) -> u64 {
        match self.below(5) {
            0 => self.below(3),
            1 => self.below(256),
            2 => u64::MAX - self.below(3),
            3 => 1 << self.below(64),
            _ => self.next(),
        }
    }
    fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len() as u64) as usize]
    }
}

fn text(r: &mut Random) -> String {
    if r.below(40) == 0 {
        return r.pick(&["tmp", "/a\0b", "# preset: auto\n"]).into();
    }
    r.pick(&["", "/", "/tmp", "/dev/dax0.0", "/\u{e9}"]).repeat(r.below(3) as usize)
}

fn configure(r: &mut Random) -> Configure {
    let tier = |r: &mut Random| {
        let codec = r.pick(&Codec::ALL);
        let (lo, hi) = codec.levels();
        TierConfig {
            codec,
            level: if r.below(40) == 0 {
                hi + 1
            } else {
                lo + r.below((hi - lo + 1) as u64) as i32
            },
            pool: r.pick(&Pool::ALL),
            medium: MediumKind::from_wire(r.below(5) as u8).unwrap_or(MediumKind::Dram),
            latency_ns: match r.below(64) {
                0 => LATENCY_NS_MAX + 1,
                1..=9 => LATENCY_NS_MAX,
                _ => r.below(1000),
            },
            bandwidth_mib_s: r.number(),
            place: Place {
                path: text(r),
                node: r.number() as u32,
                capacity_bytes: r.number(),
                is_enciphered: r.below(2) == 0,
            },
            block_kib: if codec == Codec::Zstd { r.pick(&[0, 0, 16, 32, 64, 17]) } else { 0 },
            cutoff_bytes: r.pick(&[63, 64, 2990, 2990, 2990, 2990, 4096, 4097]),
        }
    };
    Configure {
        cutoff_bytes: r.pick(&[63, 64, 64, 2990, 2990, 4096, 4096, 4097]),
        samples_per_region: r.pick(&[0, 8, 8, 64, 64, 65]),
        cooling_windows: r.pick(&[0, 3, 3, 64, 64, 255]),
        move_threads: r.pick(&[0, 1, 1, 8, 8, 9]),
        move_mib_s: r.number() as u32,
        tiers: (0..r.below(6)).map(|_| tier(r)).collect(),
        torture_seed: r.number(),
        note: text(r),
        watching: r.pick(&[Watching::Ages, Watching::Use]),
    }
}

fn plan(r: &mut Random) -> Vec<PlanEntry> {
    let entry = |r: &mut Random| PlanEntry {
        region: match r.below(8) {
            0 => r.number(),
            _ => r.below(1 << 26) * REGION_BYTES,
        },
        tier: match r.below(9) {
            0 => TierId(r.next() as u8),
            _ => TierId(r.below(MAX_TIERS as u64) as u8),
        },
    };
    (0..r.below(20)).map(|_| entry(r)).collect()
}

fn whole(r: &mut Random) -> Vec<u8> {
    match r.below(8) {
        0 | 1 => ToRuntime::Configure(configure(r)).encode(),
        2 => ToRuntime::Window {
            number: r.number() as u32,
            spare_bytes: r.number(),
            soon_windows: r.number() as u8,
        }
        .encode(),
        3..=5 => ToRuntime::Plan(plan(r)).encode(),
        6 => {
            let hello = Hello {
                version: r.pick(&[VERSION, VERSION, 0, VERSION + 1]),
                pid: r.number() as u32,
                uffd_features: r.number(),
                window: r.number() as u32,
                in_force: (r.below(2) == 0).then(|| configure(r)),
            };
            FromRuntime::Hello(hello).encode()
        }
        _ => {
            let report = Report {
                regions: vec![RegionReport::default(); r.below(4) as usize],
                tiers: vec![TierReport::default(); r.below(4) as usize],
                rss_bytes: r.number(),
                ..Report::default()
            };
            FromRuntime::Report(Box::new(report)).encode()
        }
    }
}

fn damaged(r: &mut Random) -> Vec<u8> {
    let mut bytes = match r.below(6) {
        0 => (0..r.below(80)).map(|_| r.next() as u8).collect(),
        _ => whole(r),
    };
    for _ in 0..r.below(7).saturating_sub(3) {
        let at = r.below(bytes.len().max(1) as u64) as usize;
        match r.below(5) {
            0 => bytes.truncate(at),
            1 if !bytes.is_empty() => bytes[at] ^= 1 << r.below(8),
            2 if !bytes.is_empty() => bytes[at] = r.number() as u8,
            3 => bytes.insert(at, r.next() as u8),
            // A count or an address of its own.
            _ if bytes.len() >= at + 8 => {
                bytes[at..at + 8].copy_from_slice(&r.number().to_le_bytes());
            }
            _ => {}
        }
    }
    bytes
}

fn is_path(path: &str) -> bool {
    path.is_empty() || path.starts_with('/') && !path.contains('\0') && path.len() <= PATH_BYTES_MAX
}

fn is_sound(c: &Configure) -> bool {
    let tier = |t: &TierConfig| {
        let (lo, hi) = t.codec.levels();
        (lo..=hi).contains(&t.level) && is_path(&t.place.path) && t.latency_ns <= LATENCY_NS_MAX
    };
    (64..=4096).contains(&c.cutoff_bytes)
        && c.samples_per_region <= 64
        && c.cooling_windows <= 64
        && (1..=8).contains(&c.move_threads)
        && c.tiers.len() < MAX_TIERS
        && c.tiers.iter().all(tier)
        && c.note.len() <= NOTE_BYTES_MAX
}

/// How many of the three kinds of message the bytes held.
fn check(body: &[u8]) -> [u64; 3] {
    let mut seen = [0; 3];
    if let Ok(message) = ToRuntime::decode(body) {
        match &message {
            ToRuntime::Configure(c) => {
                seen[0] += 1;
                assert!(is_sound(c), "{c:?}");
            }
            ToRuntime::Window { .. } => {}
            ToRuntime::Plan(entries) => {
                seen[1] += 1;
                let bytes = entries.capacity() * size_of::<PlanEntry>();
                assert!(bytes <= 2 * body.len(), "{bytes} bytes for a message of {}", body.len());
                for e in entries {
                    let is_region = e.region.is_multiple_of(REGION_BYTES) && e.region < 1 << 47;
                    assert!(is_region && e.tier.index() < MAX_TIERS, "{e:?}");
                }
            }
        }
        assert_eq!(&message.encode()[4..], body, "{message:?}");
    }
    if let Ok(message) = FromRuntime::decode(body) {
        seen[2] += 1;
        match &message {
            // Within a greeting a configuration is held to the same bounds.
            FromRuntime::Hello(h) => assert!(h.in_force.as_ref().is_none_or(is_sound), "{h:?}"),
            FromRuntime::Report(_) | FromRuntime::Refused(_) => {}
        }
    }
    seen
}

#[test]
fn no_bytes_get_past_the_bounds() {
    let set = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let runs = set("TERRACE_FUZZ_RUNS").unwrap_or(RUNS);
    let first = set("TERRACE_FUZZ_SEED").unwrap_or(1);
    let mut seen = [0; 3];
    for seed in first..first + runs {
        let bytes = damaged(&mut Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1));
        let checked = std::panic::catch_unwind(|| match split_message(&bytes) {
            Ok(Some((body, used))) => {
                assert!(used <= bytes.len());
                check(body)
            }
            // As if its length had been right.
            _ => check(bytes.get(4..).unwrap_or(&[])),
        });
        let Ok(kinds) = checked else {
            panic!("TERRACE_FUZZ_RUNS=1 TERRACE_FUZZ_SEED={seed} shows it again: {bytes:?}")
        };
        for (sum, n) in seen.iter_mut().zip(kinds) {
            *sum += n;
        }
    }
    let least = runs / 50;
    assert!(seen.iter().all(|n| *n >= least), "too few whole messages to mean anything: {seen:?}");
}

#[test]
fn a_note_is_text_and_bounded() {
    let with = |note: String| {
        let (cutoff_bytes, samples_per_region, cooling_windows) = (2990, 8, 1);
        let (move_threads, move_mib_s, tiers) = (1, 0, Vec::new());
        ToRuntime::Configure(Configure {
            cutoff_bytes,
            samples_per_region,
            cooling_windows,
            move_threads,
            move_mib_s,
            tiers,
            torture_seed: 0,
            note,
            watching: Watching::Use,
        })
    };
    let good = with("x".repeat(NOTE_BYTES_MAX));
    assert_eq!(ToRuntime::decode(&good.encode()[4..]), Ok(good));
    let long = with("x".repeat(NOTE_BYTES_MAX + 1)).encode();
    assert_eq!(ToRuntime::decode(&long[4..]), Err(Malformed));
    let mut bytes = with("xy".into()).encode();
    // Behind the note is one more byte.
    let last = bytes.len() - 2;
    bytes[last] = 0xff;
    assert_eq!(ToRuntime::decode(&bytes[4..]), Err(Malformed), "not UTF-8");
}

#[test]
fn a_refusal_is_the_same_without_a_heap() {
    let mut out = [0; 512];
    let whole = FromRuntime::Refused("no room".into());
    assert_eq!(encode_refusal("no room", &mut out), whole.encode());
    let long = encode_refusal(&"x".repeat(1000), &mut out);
    assert_eq!(FromRuntime::decode(&long[4..]), Ok(FromRuntime::Refused("x".repeat(507))));
}

#[test]
fn a_hello_of_another_version_is_read_as_far_as_it_is_common() {
    let hello = |version| Hello { version, pid: 9, uffd_features: 1, window: 0, in_force: None };
    let mut bytes = FromRuntime::Hello(hello(VERSION)).encode();
    bytes[5..9].copy_from_slice(&(VERSION + 1).to_le_bytes());
    bytes.extend_from_slice(b"more");
    assert_eq!(FromRuntime::decode(&bytes[4..]), Ok(FromRuntime::Hello(hello(VERSION + 1))));
}
