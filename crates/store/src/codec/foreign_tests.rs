//! Each codec against an implementation of its format that is not ours, both ways where the other
//! side encodes.
//!
//! | codec | other implementation |
//! |---|---|
//! | lz4, lz4hc | lz4_flex (our decoder is the C library) |
//! | lzo | lzokay; the kernel's |
//! | deflate | zlib-rs |
//! | zstd | ruzstd |
//! | lzo-rle, 842 | the kernel's: there is no other under a permissive licence |
//!
//! The kernel's are GPL and not in this tree. `vectors/` holds what they made of our pages, and
//! says which of our streams they decoded; `tools/kernel-codecs/build` makes them into a program,
//! and with `TERRACE_KERNEL_CODECS` naming it, a test here asks it both ways.

use super::*;
use crate::testing::{page as any_page, Random};
use crate::PAGE_SIZE;
use std::io::{Read, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const TIME_EACH: Duration = Duration::from_millis(1500);

/// Ours encodes, `decode` of the other side brings the page back, at the lowest, the default and
/// the highest level.
fn others_decode_ours(
    codec: Codec,
    seed: u64,
    pages: usize,
    mut decode: impl FnMut(&[u8], &mut Page) -> bool,
) {
    let mut random = Random(seed);
    let mut out = [0; 2 * PAGE_SIZE];
    let (lowest, highest) = codec.levels();
    for level in [lowest, codec.default_level(), highest] {
        let mut encoder = Encoder::new(codec, level).unwrap();
        for n in 0..pages / 3 {
            let page = any_page(&mut random);
            let len = encoder.encode(&page, &mut out).unwrap();
            let mut back = [0x3c; PAGE_SIZE];
            assert!(decode(&out[..len], &mut back), "{} {level}, page {n}", codec.name());
            assert!(back == page, "{} {level}, page {n}", codec.name());
        }
    }
}

/// The other side encodes, ours decodes.
fn ours_decodes_others(
    codec: Codec,
    seed: u64,
    mut pages: usize,
    mut encode: impl FnMut(&Page) -> Vec<u8>,
) {
    let mut random = Random(seed);
    let mut decoders = DecoderSet::new([codec]).unwrap();
    let start = Instant::now();
    // Some search long, and much longer in a debug build.
    while pages > 0 && start.elapsed() < 2 * TIME_EACH {
        let page = any_page(&mut random);
        let mut back = [0x3c; PAGE_SIZE];
        assert_eq!(decoders.decode(codec, &encode(&page), &mut back), Ok(()));
        assert!(back == page);
        pages -= 1;
    }
}

#[test]
fn a_foreign_lz4_decodes_ours() {
    for codec in [Codec::Lz4, Codec::Lz4hc] {
        others_decode_ours(codec, 31, 3000, |stored, page| {
            lz4_flex::block::decompress_into(stored, page).is_ok_and(|len| len == PAGE_SIZE)
        });
    }
}

#[test]
fn ours_decodes_a_foreign_lz4() {
    ours_decodes_others(Codec::Lz4, 32, 3000, |page| lz4_flex::block::compress(page));
}

#[test]
fn a_foreign_lzo_decodes_ours() {
    others_decode_ours(Codec::Lzo, 20, 3000, |stored, page| {
        lzokay::decompress::decompress(stored, page) == Ok(PAGE_SIZE)
    });
}

#[test]
fn ours_decodes_a_foreign_lzo() {
    let mut dictionary = lzokay::compress::Dict::new_const();
    for codec in [Codec::Lzo, Codec::LzoRle] {
        ours_decodes_others(codec, 21, 1000, |page| {
            let mut out = [0; 2 * PAGE_SIZE];
            let len = lzokay::compress::compress_no_alloc(page, &mut out, &mut dictionary).unwrap();
            out[..len].to_vec()
        });
    }
}

#[test]
fn a_foreign_deflate_decodes_ours() {
    others_decode_ours(Codec::Deflate, 33, 600, |stored, page| {
        let mut inflate = flate2::Decompress::new(false);
        let end = inflate.decompress(stored, page, flate2::FlushDecompress::Finish);
        end.is_ok_and(|status| status == flate2::Status::StreamEnd)
            && inflate.total_in() == stored.len() as u64
            && inflate.total_out() == PAGE_SIZE as u64
    });
}

#[test]
fn ours_decodes_a_foreign_deflate() {
    let mut level = 0;
    ours_decodes_others(Codec::Deflate, 34, 1000, |page| {
        level = (level + 1) % 10;
        let mut deflate = flate2::Compress::new(flate2::Compression::new(level), false);
        let mut out = Vec::with_capacity(2 * PAGE_SIZE);
        let end = deflate.compress_vec(page, &mut out, flate2::FlushCompress::Finish);
        assert_eq!(end.unwrap(), flate2::Status::StreamEnd);
        out
    });
}

/// What our frames leave out and others' begin with.
const ZSTD_MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];

#[test]
fn a_foreign_zstd_decodes_ours() {
    others_decode_ours(Codec::Zstd, 35, 600, |stored, page| {
        let frame = [&ZSTD_MAGIC, stored].concat();
        let mut decoder = ruzstd::decoding::StreamingDecoder::new(&*frame).unwrap();
        let mut back = Vec::new();
        let read = decoder.read_to_end(&mut back).is_ok();
        let whole = read && back.len() == PAGE_SIZE;
        if whole {
            page.copy_from_slice(&back);
        }
        whole
    });
}

#[test]
fn ours_decodes_a_foreign_zstd() {
    use ruzstd::encoding::{compress_to_vec, CompressionLevel};
    ours_decodes_others(Codec::Zstd, 36, 1000, |page| {
        let frame = compress_to_vec(&page[..], CompressionLevel::Fastest);
        frame.strip_prefix(&ZSTD_MAGIC).expect("a frame").to_vec()
    });
}

/// Codecs that the kernel has and we have written, and the letter for encoding and decoding in
/// `tools/kernel-codecs/main.c`.
const KERNELS: [(Codec, u8, u8); 3] =
    [(Codec::Lzo, b'L', b'l'), (Codec::LzoRle, b'R', b'l'), (Codec::C842, b'E', b'e')];

/// How many pages have a vector, and of how many our streams were decoded by the kernel's.
const VECTORS: usize = 24;
const VERIFIED: usize = 3000;
/// Seeds of those pages.
const VECTORS_SEED: u64 = 84_200;
const VERIFIED_SEED: u64 = 84_201;

fn vectors() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("src/codec/vectors")
}

/// A number that stands for our streams of `VERIFIED` pages, each handed to `each` as well.
fn digest_of_ours(codec: Codec, mut each: impl FnMut(&[u8], &Page)) -> u64 {
    let mut random = Random(VERIFIED_SEED);
    let mut encoder = Encoder::new(codec, codec.default_level()).unwrap();
    let mut out = [0; 2 * PAGE_SIZE];
    let mut digest = 0;
    for _ in 0..VERIFIED {
        let page = any_page(&mut random);
        let len = encoder.encode(&page, &mut out).unwrap();
        digest = xxhash_rust::xxh3::xxh3_64_with_seed(&out[..len], digest);
        each(&out[..len], &page);
    }
    digest
}

fn verified_line(codec: Codec, digest: u64) -> String {
    format!("{} {VERIFIED} {digest:016x}\n", codec.name())
}

#[test]
fn ours_decodes_the_kernels_vectors() {
    for (codec, ..) in KERNELS {
        let path = vectors().join(format!("{}.bin", codec.name()));
        let file = std::fs::read(&path).expect("vectors are in the tree");
        let mut rest = &file[..];
        let mut random = Random(VECTORS_SEED);
        let mut decoders = DecoderSet::new([codec]).unwrap();
        for n in 0..VECTORS {
            let len = usize::from(u16::from_le_bytes([rest[0], rest[1]]));
            let mut back = [0x3c; PAGE_SIZE];
            let result = decoders.decode(codec, &rest[2..2 + len], &mut back);
            assert_eq!(result, Ok(()), "{}, vector {n}", codec.name());
            assert!(
                back == any_page(&mut random),
                "{}, vector {n}: if the generator of pages changed, see vectors/README.md",
                codec.name()
            );
            rest = &rest[2 + len..];
        }
        assert!(rest.is_empty());
    }
}

/// What we encode is what the kernel's decoders were shown, bit by bit.
#[test]
fn our_streams_are_those_that_the_kernel_decoded() {
    let verified = std::fs::read_to_string(vectors().join("verified.txt")).unwrap();
    for (codec, ..) in KERNELS {
        let line = verified_line(codec, digest_of_ours(codec, |_, _| ()));
        assert!(
            verified.contains(&line),
            "{} encodes otherwise than when the kernel's decoder was asked; ask it again, \
             see vectors/README.md",
            codec.name()
        );
    }
}

/// The program that `tools/kernel-codecs/build` makes.
struct Kernel(Child);

impl Kernel {
    fn start() -> Option<Kernel> {
        let program = std::env::var_os("TERRACE_KERNEL_CODECS")?;
        let child = Command::new(program).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        Some(Kernel(child.expect("TERRACE_KERNEL_CODECS names a program")))
    }

    fn ask(&mut self, what: u8, bytes: &[u8]) -> Option<Vec<u8>> {
        let mut request = vec![what];
        request.extend((bytes.len() as u32).to_le_bytes());
        request.extend(bytes);
        self.0.stdin.as_mut().unwrap().write_all(&request).unwrap();
        let answers = self.0.stdout.as_mut().unwrap();
        let mut head = [0; 5];
        answers.read_exact(&mut head).unwrap();
        let mut answer = vec![0; u32::from_le_bytes(head[1..].try_into().unwrap()) as usize];
        answers.read_exact(&mut answer).unwrap();
        (head[0] == 0).then_some(answer)
    }
}

impl Drop for Kernel {
    fn drop(&mut self) {
        // It ends with its input.
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

/// Pages of this very program: machine code and what goes with it.
fn pages_of_this_program() -> Vec<Page> {
    let file = std::fs::read(std::env::current_exe().unwrap()).unwrap();
    let pages: Vec<Page> =
        file.chunks_exact(PAGE_SIZE).map(|p| p.try_into().expect("a page")).collect();
    let step = pages.len().div_ceil(VERIFIED);
    pages.into_iter().step_by(step).collect()
}

/// Both ways over thousands of pages. With `TERRACE_WRITE_VECTORS=1` it writes `vectors/` anew.
#[test]
fn the_kernels_own_codecs_agree() {
    let Some(mut kernel) = Kernel::start() else {
        println!("not run: TERRACE_KERNEL_CODECS names no program (tools/kernel-codecs/build)");
        return;
    };
    let write = std::env::var("TERRACE_WRITE_VECTORS").is_ok_and(|v| v == "1");
    let mut verified = String::new();
    for (codec, encode, decode) in KERNELS {
        let (mut ours_bytes, mut theirs_bytes) = (0, 0);
        let digest = digest_of_ours(codec, |stream, page| {
            let back = kernel.ask(decode, stream);
            assert!(back.as_deref() == Some(page), "{}: refused ours", codec.name());
            ours_bytes += stream.len();
        });
        verified += &verified_line(codec, digest);
        let mut random = Random(VERIFIED_SEED);
        let mut decoders = DecoderSet::new([codec]).unwrap();
        let mut back = [0; PAGE_SIZE];
        for _ in 0..VERIFIED {
            let page = any_page(&mut random);
            let stream = kernel.ask(encode, &page).expect("it encodes");
            assert_eq!(decoders.decode(codec, &stream, &mut back), Ok(()), "{}", codec.name());
            assert!(back == page);
            theirs_bytes += stream.len();
        }
        let program = pages_of_this_program();
        let mut encoder = Encoder::new(codec, codec.default_level()).unwrap();
        let mut out = [0; 2 * PAGE_SIZE];
        for page in &program {
            let len = encoder.encode(page, &mut out).unwrap();
            let answer = kernel.ask(decode, &out[..len]);
            assert!(answer.as_deref() == Some(page), "{}: refused ours", codec.name());
            let stream = kernel.ask(encode, page).expect("it encodes");
            assert_eq!(decoders.decode(codec, &stream, &mut back), Ok(()), "{}", codec.name());
            assert!(back == *page);
        }
        println!("{}: {} pages of a program both ways", codec.name(), program.len());
        println!("{}: ours {ours_bytes} B, theirs {theirs_bytes} B", codec.name());
        if write {
            let mut random = Random(VECTORS_SEED);
            let mut file = Vec::new();
            for _ in 0..VECTORS {
                let stream = kernel.ask(encode, &any_page(&mut random)).expect("it encodes");
                file.extend((stream.len() as u16).to_le_bytes());
                file.extend(stream);
            }
            std::fs::write(vectors().join(format!("{}.bin", codec.name())), file).unwrap();
        }
    }
    if write {
        std::fs::write(vectors().join("verified.txt"), verified).unwrap();
    }
}
