//! What the values are made of, and how a value is made again for comparison.
//!
//! A value is `f(key, version)`: a header of 32 bytes that names both, then a slice of a corpus
//! built once from files of this machine (text, program code) and from generated JSON: 40 % text,
//! 40 % JSON, 20 % binaries. Comparing a reply is therefore one `memcmp` against the corpus.
//!
//! What overlaps: the corpus is about 1/8 of the data set, so each byte of it appears in some
//! eight values, at different offsets. No two keys start their slice at the same place as long as
//! a kind has more starting points (lines, documents, 16-byte steps) than keys, which
//! `Content::distinct` says. Only a tier that deduplicates across pages could profit; none does.

use super::documents::{append_collection, append_prose};
use super::random::{mix, Random};
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

/// Shortest value.
pub const VALUE_LEN_MIN: usize = 3_900;
/// Longest value: with the string header of Redis it still fits the 4,096-byte size class of
/// jemalloc, so one value fills one page.
pub const VALUE_LEN_MAX: usize = 4_080;
/// Bytes of the header that starts every value.
pub const HEADER_LEN: usize = 32;

/// Below this, text is written by a word model instead of collected.
const TEXT_BYTES_MIN: usize = 4 << 20;
/// Per file at most, so that no single file is the corpus.
const TEXT_FILE_BYTES_MAX: u64 = 256 << 10;
const BINARY_FILE_BYTES_MAX: u64 = 512 << 10;
/// Files looked at while walking; a machine with more has plenty.
const WALK_FILES_MAX: usize = 200_000;

const TEXT_ROOTS: &[&str] = &[
    "/usr/share/doc",
    "/usr/share/perl",
    "/usr/share/perl5",
    "/usr/lib/python3",
    "/usr/lib/python3.11",
    "/usr/lib/python3.12",
    "/usr/lib/python3.13",
    "/usr/include",
    "/usr/share/common-licenses",
    "/etc",
];
const BINARY_ROOTS: &[&str] = &["/usr/lib", "/usr/lib64", "/usr/bin", "/usr/sbin"];

/// Kind of a key's values, by key modulo 10. A key keeps its kind through all versions.
const KINDS: [Kind; 10] = {
    use Kind::{Binary as B, Json as J, Text as T};
    [T, J, B, T, J, T, J, B, T, J]
};
/// How many keys of each ten come before position `i` and have the same kind.
const RANKS: [u64; 10] = [0, 0, 0, 1, 1, 2, 2, 1, 3, 3];

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Text,
    Json,
    Binary,
}

/// The corpus and where values may start in it.
pub struct Content {
    bytes: Vec<u8>,
    text: Starts,
    json: Starts,
    binary: Starts,
    summary: String,
}

/// Places where a slice may start, visited in the order `rank * stride mod n`: a bijection,
/// because the stride is coprime to n, that keeps neighbouring keys far apart in the corpus.
struct Starts {
    at: Vec<u32>,
    stride: u64,
}

/// A value that is not copied together yet.
pub struct Value<'a> {
    header: [u8; HEADER_LEN],
    body: &'a [u8],
}

impl Value<'_> {
    /// Length in bytes.
    pub fn byte_len(&self) -> usize {
        HEADER_LEN + self.body.len()
    }

    /// Appends the bytes of the value.
    pub fn append_to(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.header);
        out.extend_from_slice(self.body);
    }

    /// Whether `got` is this value, every byte of it.
    pub fn equals(&self, got: &[u8]) -> bool {
        got.len() == self.byte_len()
            && got[..HEADER_LEN] == self.header
            && got[HEADER_LEN..] == *self.body
    }

    /// Where `got` first differs: the offset, what was written and what came back (`None`: one of
    /// them ends here).
    pub fn first_difference(&self, got: &[u8]) -> (usize, Option<u8>, Option<u8>) {
        let mut want = Vec::with_capacity(self.byte_len());
        self.append_to(&mut want);
        let same = want.iter().zip(got).take_while(|(a, b)| a == b).count();
        (same, want.get(same).copied(), got.get(same).copied())
    }
}

impl Content {
    /// Builds a corpus of about `bytes` bytes from this machine's files and generated documents.
    pub fn build(bytes: usize) -> Content {
        let (text_bytes, binary_bytes) = (bytes * 2 / 5, bytes / 5);
        let text = collect(TEXT_ROOTS, text_bytes, TEXT_FILE_BYTES_MAX, looks_like_text);
        let binary = collect(BINARY_ROOTS, binary_bytes, BINARY_FILE_BYTES_MAX, looks_like_elf);
        Content::from_parts(text, binary, bytes)
    }

    fn from_parts(text: Collected, binary: Collected, bytes: usize) -> Content {
        let mut random = Random::new(0x7E44_ACE0);
        let mut all = text.bytes;
        let text_files = all.len();
        let text_wanted = (bytes * 2 / 5).clamp(4 * VALUE_LEN_MAX, TEXT_BYTES_MIN);
        if text_files < text_wanted {
            append_prose(&mut all, &mut random, text_wanted - text_files);
        }
        let text_end = all.len();
        let json_end = text_end + bytes * 2 / 5;
        while all.len() < json_end.max(text_end + 4 * VALUE_LEN_MAX) {
            append_collection(&mut all, &mut random);
        }
        let json_end = all.len();
        all.extend_from_slice(&binary.bytes);

        let lines = |from: usize, to: usize| {
            let ends = all[from..to].iter().enumerate().filter(|(_, b)| **b == b'\n');
            Starts::new(ends.map(|(i, _)| from + i + 1).filter(|s| s + VALUE_LEN_MAX <= to))
        };
        let (text_starts, json_starts) = (lines(0, text_end), lines(text_end, json_end));
        let steps = (json_end..all.len().saturating_sub(VALUE_LEN_MAX)).step_by(16);
        let binary_starts = Starts::new(steps);
        let mib = |n: usize| n as f64 / f64::from(1 << 20);
        let summary = format!(
            "text {:.0} MiB of {} files{}, generated JSON {:.0} MiB, program code {:.0} MiB of \
             {} files",
            mib(text_end),
            text.files,
            if text_files < text_end { " and a word model" } else { "" },
            mib(json_end - text_end),
            mib(all.len() - json_end),
            binary.files,
        );
        Content { bytes: all, text: text_starts, json: json_starts, binary: binary_starts, summary }
    }

    /// What the corpus was made of, for people.
    pub fn summary(&self) -> &str {
        &self.summary
    }

    /// Whether `keys` keys all start at different places of the corpus.
    pub fn distinct(&self, keys: u64) -> bool {
        let tens = keys.div_ceil(10);
        tens * 4 <= self.text.len() && tens * 4 <= self.json.len() && tens * 2 <= self.binary.len()
    }

    /// The value of a key in a version. Costs two cache misses, no copy.
    pub fn value(&self, key: u64, version: u16) -> Value<'_> {
        let place = (key % 10) as usize;
        let (starts, name, per_ten) = match KINDS[place] {
            // A machine without any program file is no machine; but a test is.
            Kind::Binary if self.binary.len() > 0 => (&self.binary, b"code", 2),
            Kind::Json => (&self.json, b"json", 4),
            Kind::Text | Kind::Binary => (&self.text, b"text", 4),
        };
        let rank = key / 10 * per_ten + RANKS[place];
        let start = starts.nth(rank, version);
        let spread = (VALUE_LEN_MAX - VALUE_LEN_MIN + 1) as u64;
        let length = VALUE_LEN_MIN + (mix(key << 16 | u64::from(version)) % spread) as usize;
        let mut header = *b"key:0000000000 v00000 kind 0000\n";
        write_digits(&mut header[4..14], key);
        write_digits(&mut header[16..21], u64::from(version));
        header[22..26].copy_from_slice(name);
        write_digits(&mut header[27..31], length as u64);
        Value { header, body: &self.bytes[start..start + length - HEADER_LEN] }
    }
}

impl Starts {
    fn new(at: impl Iterator<Item = usize>) -> Starts {
        let at: Vec<u32> = at.filter_map(|s| u32::try_from(s).ok()).collect();
        let n = at.len() as u64;
        // Near the golden section neighbours land far apart.
        let mut stride = (n as f64 * 0.618) as u64 | 1;
        while n > 1 && gcd(stride, n) != 1 {
            stride += 2;
        }
        Starts { at, stride }
    }

    fn len(&self) -> u64 {
        self.at.len() as u64
    }

    fn nth(&self, rank: u64, version: u16) -> usize {
        // 7,919 is a prime: a new version moves to another part of the corpus.
        let step = rank.wrapping_mul(self.stride) + u64::from(version) * 7_919;
        self.at[(step % self.len()) as usize] as usize
    }
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 {
        a
    } else {
        gcd(b, a % b)
    }
}

fn write_digits(out: &mut [u8], mut n: u64) {
    for digit in out.iter_mut().rev() {
        *digit = b'0' + (n % 10) as u8;
        n /= 10;
    }
}

#[derive(Default)]
struct Collected {
    bytes: Vec<u8>,
    files: usize,
}

/// Reads files below the roots, in an order that depends on their names only, until there are
/// enough bytes. The order is by a hash of the path: alphabetical would take one corner of the
/// system.
fn collect(
    roots: &[&str],
    bytes: usize,
    per_file: u64,
    wanted: fn(&Path, &[u8]) -> bool,
) -> Collected {
    let mut files = Vec::new();
    for root in roots {
        walk(Path::new(root), &mut files);
    }
    files.sort_by_cached_key(|path| {
        let name = path.as_os_str().as_encoded_bytes();
        (name.iter().fold(0, |h, b| mix(h ^ u64::from(*b))), path.clone())
    });
    let mut out = Collected::default();
    let mut one = Vec::new();
    for path in files {
        if out.bytes.len() >= bytes {
            break;
        }
        one.clear();
        let read = fs::File::open(&path).and_then(|f| f.take(per_file).read_to_end(&mut one));
        if read.is_ok() && one.len() > 512 && wanted(&path, &one) {
            one.truncate(bytes - out.bytes.len());
            out.bytes.extend_from_slice(&one);
            out.files += 1;
        }
    }
    out
}

fn walk(folder: &Path, files: &mut Vec<PathBuf>) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        if files.len() >= WALK_FILES_MAX {
            return;
        }
        // file_type does not follow links, so there are no cycles and nothing is read twice.
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => walk(&entry.path(), files),
            Ok(kind) if kind.is_file() => files.push(entry.path()),
            _ => {}
        }
    }
}

fn looks_like_text(path: &Path, bytes: &[u8]) -> bool {
    let packed = ["gz", "xz", "bz2", "zst", "pyc", "png", "svg"];
    let name = path.extension().and_then(|e| e.to_str()).unwrap_or("");
    let control = |b: &u8| *b < 32 && !matches!(b, b'\n' | b'\t' | b'\r');
    !packed.contains(&name) && !bytes.iter().take(4096).any(control)
}

fn looks_like_elf(_path: &Path, bytes: &[u8]) -> bool {
    bytes.starts_with(b"\x7fELF")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    fn small() -> Content {
        let binary = (0..200_000_u64).flat_map(|i| mix(i / 3).to_le_bytes()).collect();
        let binary = Collected { bytes: binary, files: 1 };
        Content::from_parts(Collected::default(), binary, 4 << 20)
    }

    fn bytes(value: &Value<'_>) -> Vec<u8> {
        let mut out = Vec::new();
        value.append_to(&mut out);
        out
    }

    #[test]
    fn a_value_is_a_function_of_key_and_version() {
        let (a, b) = (small(), small());
        for key in 0..200 {
            for version in [0, 1, 65_535] {
                let value = bytes(&a.value(key, version));
                assert_eq!(value, bytes(&b.value(key, version)));
                assert!(a.value(key, version).equals(&value));
                assert!((VALUE_LEN_MIN..=VALUE_LEN_MAX).contains(&value.len()));
                assert!(value.starts_with(format!("key:{key:010} v{version:05} ").as_bytes()));
            }
        }
    }

    #[test]
    fn keys_and_versions_have_different_bodies() {
        let content = small();
        assert!(content.distinct(1000));
        let body = |key, version| bytes(&content.value(key, version))[HEADER_LEN..3900].to_vec();
        let bodies: HashSet<Vec<u8>> = (0..1000).map(|key| body(key, 0)).collect();
        assert_eq!(bodies.len(), 1000);
        assert!((0..1000).all(|key| body(key, 0) != body(key, 1)));
    }

    #[test]
    fn one_flipped_byte_is_seen_and_named() {
        let content = small();
        let value = content.value(42, 3);
        for offset in [0, HEADER_LEN - 1, HEADER_LEN, 2000, value.byte_len() - 1] {
            let mut got = bytes(&value);
            got[offset] ^= 1;
            assert!(!value.equals(&got));
            let (at, want, seen) = value.first_difference(&got);
            assert_eq!((at, want), (offset, seen.map(|b| b ^ 1)));
        }
        let got = bytes(&value);
        assert!(!value.equals(&got[..got.len() - 1]));
        assert_eq!(value.first_difference(&got[..10]).0, 10);
    }

    #[test]
    fn ranks_count_the_keys_of_a_kind() {
        for (place, kind) in KINDS.iter().enumerate() {
            let before = KINDS[..place].iter().filter(|k| *k == kind).count();
            assert_eq!(RANKS[place], before as u64);
        }
    }

    #[test]
    fn a_machine_without_files_still_has_content() {
        let content = Content::from_parts(Collected::default(), Collected::default(), 1 << 20);
        assert!(content.summary().contains("word model"));
        assert!(content.value(2, 0).byte_len() >= VALUE_LEN_MIN);
    }
}
