//! What could be had beyond the codecs of the paper, measured on files of pages.
//!
//! `cargo run --release -p terrace-store --example beyond FILE..`
//!
//! For each file (`tools/heap-pages` makes some) and for each of two ways to divide it into pages
//! to train on and pages to test on, prints a table of designs: codecs one page at a time, the same
//! behind a dictionary, blocks of several pages, and the better of two codecs for each page. The
//! frontier of the plain codecs and of DRAM is the lower convex hull of cost against latency,
//! because a planner can mix tiers; `gain` says by how much a design's cost is below that hull at
//! the design's own latency, in percent of the hull's cost, for two costs of a fault.
//!
//! Times are those of one thread; for each page the least of three passes. Cost is zsmalloc's pages
//! and tables for the encoded test pages plus 4 KiB for each refused page, divided by 4 KiB a page.
//! Latency is the mean over all pages of fault and decoding, nothing for a refused page.
//! With the command `zstd`, its trained dictionaries are in the tables, too.

use std::hint::black_box;
use std::process::Command;
use std::sync::Arc;
use std::time::Instant;
use terrace_core::tier::{Codec, Pool};
use terrace_store::codec::dictionary::Dictionaries;
use terrace_store::codec::{block, lz4_dict, trainer, zstd_dict, Encoder};
use terrace_store::page::same_filled;
use terrace_store::{pool, DecoderSet, Page, CUTOFF_BYTES, PAGE_SIZE};

const PASSES: usize = 2;
const ROUNDS: usize = 3;
/// Pages of a run that is tested or trained on as a whole, and of the longest block.
const RUN_PAGES: usize = block::BLOCK_PAGES_MAX;
const TEST_RUNS: usize = 64;
const TRAIN_PAGES: usize = 256;
/// What a fault costs besides decoding, in microseconds: with the handler on another CPU, and on
/// the same.
const FAULT_US: [f64; 2] = [12.0, 4.0];

/// One test page under one design. `len` is `None` for a refused page.
#[derive(Clone, Copy)]
struct Sample {
    len: Option<usize>,
    encode_ns: u64,
    decode_ns: u64,
}

struct Outcome {
    name: String,
    samples: Vec<Sample>,
    /// Lengths of the objects in the pool.
    objects: Vec<usize>,
    context_kib: (usize, usize),
    is_baseline: bool,
}

fn main() {
    for path in std::env::args().skip(1) {
        let Ok(bytes) = std::fs::read(&path) else {
            eprintln!("beyond: cannot read {path}");
            std::process::exit(1);
        };
        let pages: Vec<&Page> = bytes
            .chunks_exact(PAGE_SIZE)
            .filter_map(|p| <&Page>::try_from(p).ok())
            .filter(|p: &&Page| same_filled(p).is_none())
            .collect();
        let runs: Vec<&[&Page]> = pages.chunks_exact(RUN_PAGES).collect();
        let name = path.rsplit('/').next().unwrap_or(&path);
        let (first, second) = runs.split_at(runs.len() / 2);
        report(&format!("{name}: trained on the first half, tested on the second"), first, second);
        let even: Vec<&[&Page]> = runs.iter().step_by(2).copied().collect();
        let odd: Vec<&[&Page]> = runs.iter().skip(1).step_by(2).copied().collect();
        report(&format!("{name}: trained and tested on alternating runs of 64 KiB"), &even, &odd);
    }
}

fn evenly<T: Copy>(all: &[T], count: usize) -> Vec<T> {
    let count = count.min(all.len());
    (0..count).map(|n| all[n * all.len() / count]).collect()
}

fn least_ns(mut work: impl FnMut()) -> u64 {
    let pass = || {
        let start = Instant::now();
        work();
        start.elapsed().as_nanos() as u64
    };
    std::iter::repeat_with(pass).take(PASSES).min().unwrap_or(0)
}

fn report(title: &str, train: &[&[&Page]], test: &[&[&Page]]) {
    let train_pages: Vec<&Page> =
        evenly(&train.iter().flat_map(|r| r.iter().copied()).collect::<Vec<_>>(), TRAIN_PAGES);
    let test: Vec<Vec<&Page>> = evenly(test, TEST_RUNS).into_iter().map(<[_]>::to_vec).collect();
    let pages: Vec<&Page> = test.iter().flatten().copied().collect();
    println!("\n### {title}\n\n{} pages trained on, {} tested.", train_pages.len(), pages.len());
    // Several rounds over all designs, so that a noisy second does not fall on one of them alone.
    let mut outcomes = designs(&train_pages, &pages, &test, true);
    for _ in 1..ROUNDS {
        for (o, again) in outcomes.iter_mut().zip(designs(&train_pages, &pages, &test, false)) {
            for (s, again) in o.samples.iter_mut().zip(again.samples) {
                s.encode_ns = s.encode_ns.min(again.encode_ns);
                s.decode_ns = s.decode_ns.min(again.decode_ns);
            }
        }
    }
    let pairs = [
        ("lz4 1", "zstd -1"),
        ("lz4 1", "zstd 1"),
        ("zstd -1", "zstd 1"),
        ("lz4 1", "deflate 6"),
        ("lz4 dict 32K/64", "zstd 3 dict 32K/64"),
        ("zstd -1 dict 32K/64", "zstd 3 dict 32K/64"),
    ];
    for (fast, dense) in pairs {
        for saved_min in [384, 768] {
            let mixed = better(&outcomes, fast, dense, saved_min);
            outcomes.extend(mixed);
        }
    }
    table(&outcomes);
}

/// Everything but the mixtures, measured once.
fn designs(train: &[&Page], pages: &[&Page], runs: &[Vec<&Page>], is_first: bool) -> Vec<Outcome> {
    let mut outcomes = Vec::new();
    let rows = [
        (Codec::Lz4, 1),
        (Codec::Lzo, 1),
        (Codec::Zstd, -5),
        (Codec::Zstd, -1),
        (Codec::Zstd, 1),
        (Codec::Zstd, 3),
        (Codec::Zstd, 9),
        (Codec::Deflate, 6),
    ];
    for (codec, level) in rows {
        outcomes.push(plain(codec, level, pages));
    }
    for (kib, piece_bytes) in [(16, 64), (16, 512), (32, 64), (32, 512), (60, 64), (60, 512)] {
        let start = Instant::now();
        let text = trainer::train(train, kib << 10, piece_bytes);
        if is_first {
            let ms = start.elapsed().as_millis();
            println!("Training {kib} KiB in pieces of {piece_bytes}: {ms} ms.");
        }
        let dictionaries = Dictionaries::new();
        if dictionaries.publish(&text).is_none() {
            continue;
        }
        let name = format!("dict {kib}K/{piece_bytes}");
        outcomes.push(lz4_behind(&format!("lz4 {name}"), &dictionaries, pages));
        for level in [-1, 1, 3] {
            outcomes.push(zstd_behind(format!("zstd {level} {name}"), level, &dictionaries, pages));
        }
    }
    if let Some(text) = foreign(train, 60 << 10) {
        let dictionaries = Dictionaries::new();
        if dictionaries.publish(&text).is_some() {
            outcomes.push(lz4_behind("lz4 zdict 60K", &dictionaries, pages));
            for level in [-1, 3] {
                let name = format!("zstd {level} zdict 60K");
                outcomes.push(zstd_behind(name, level, &dictionaries, pages));
            }
        }
    }
    for block_pages in [4, 16] {
        for level in [1, 3, 9] {
            for flush in [1, block_pages] {
                outcomes.push(blocks(level, block_pages, flush, runs));
            }
        }
    }
    outcomes
}

fn plain(codec: Codec, level: i32, pages: &[&Page]) -> Outcome {
    let mut encoder = Encoder::new(codec, level).expect("level is in range");
    let mut decoders = DecoderSet::new([codec]).expect("memory");
    let kib = (encoder.context_bytes() >> 10, decoders.context_bytes() >> 10);
    paged(
        format!("{} {level}", codec.name()),
        pages,
        kib,
        true,
        &mut |page, out| encoder.encode(page, out),
        &mut |stored, page| decoders.decode(codec, stored, page).expect("round trip"),
    )
}

fn zstd_behind(name: String, level: i32, from: &Arc<Dictionaries>, pages: &[&Page]) -> Outcome {
    let mut encoder = zstd_dict::Encoder::new(level, from.clone()).expect("level is in range");
    let mut decoder = zstd_dict::Decoder::new(from.clone()).expect("memory");
    let kib = (encoder.context_bytes() >> 10, (decoder.context_bytes() + from.bytes()) >> 10);
    paged(
        name,
        pages,
        kib,
        false,
        &mut |page, out| encoder.encode(page, out),
        &mut |stored, page| decoder.decode(stored, page).expect("round trip"),
    )
}

fn lz4_behind(name: &str, from: &Arc<Dictionaries>, pages: &[&Page]) -> Outcome {
    let mut encoder = lz4_dict::Encoder::new(1, from.clone()).expect("memory");
    let kib = (encoder.context_bytes() >> 10, from.bytes() >> 10);
    paged(
        name.into(),
        pages,
        kib,
        false,
        &mut |page, out| encoder.encode(page, out),
        &mut |stored, page| lz4_dict::decode(from, stored, page).expect("round trip"),
    )
}

type Encode<'a> = &'a mut dyn FnMut(&Page, &mut [u8]) -> Option<usize>;
type Decode<'a> = &'a mut dyn FnMut(&[u8], &mut Page);

fn paged(
    name: String,
    pages: &[&Page],
    context_kib: (usize, usize),
    is_baseline: bool,
    encode: Encode<'_>,
    decode: Decode<'_>,
) -> Outcome {
    let (mut out, mut back) = ([0; CUTOFF_BYTES], [0; PAGE_SIZE]);
    let (mut samples, mut encoded) = (Vec::new(), Vec::new());
    for page in pages {
        let mut len = None;
        let encode_ns = least_ns(|| len = encode(black_box(page), &mut out));
        encoded.push(len.map(|len| out[..len].to_vec()));
        samples.push(Sample { len, encode_ns, decode_ns: 0 });
    }
    for ((sample, stored), page) in samples.iter_mut().zip(&encoded).zip(pages) {
        let Some(stored) = stored else { continue };
        sample.decode_ns = least_ns(|| decode(black_box(stored), &mut back));
        assert!(back == **page, "{name}: a page came back different");
    }
    let objects = samples.iter().filter_map(|s| s.len).collect();
    Outcome { name, samples, objects, context_kib, is_baseline }
}

/// Blocks of some pages. A block that does not save what the cut-off asks of a page is refused.
fn blocks(level: i32, block_pages: usize, flush: usize, runs: &[Vec<&Page>]) -> Outcome {
    let mut encoder = block::Encoder::new(level, block_pages, flush).expect("level is in range");
    let mut decoder = block::Decoder::new().expect("memory");
    let (mut samples, mut objects) = (Vec::new(), Vec::new());
    let mut out = vec![0; block_pages * CUTOFF_BYTES];
    let mut back = vec![0; block_pages * PAGE_SIZE];
    for pages in runs.iter().flat_map(|r| r.chunks_exact(block_pages)) {
        let whole: Vec<u8> = pages.iter().flat_map(|p| p.iter().copied()).collect();
        let mut len = None;
        let encode_ns = least_ns(|| len = encoder.encode(black_box(&whole), &mut out));
        let encode_ns = encode_ns / block_pages as u64;
        let Some(len) = len else {
            samples.extend(pages.iter().map(|_| Sample { len: None, encode_ns, decode_ns: 0 }));
            continue;
        };
        // The pool takes no object longer than a page.
        objects.extend(std::iter::repeat_n(PAGE_SIZE, len / PAGE_SIZE));
        objects.extend((len % PAGE_SIZE > 0).then_some(len % PAGE_SIZE));
        for n in 0..block_pages {
            let wanted = (n + 1) * PAGE_SIZE;
            let decode_ns = least_ns(|| {
                decoder.decode(black_box(&out[..len]), wanted, &mut back).expect("round trip");
            });
            assert!(back[..wanted] == whole[..wanted], "a block came back different");
            samples.push(Sample { len: Some(len / block_pages), encode_ns, decode_ns });
        }
    }
    let stop = if flush == 1 { "stops" } else { "whole" };
    Outcome {
        name: format!("block {}K zstd {level} {stop}", block_pages * 4),
        samples,
        objects,
        context_kib: (encoder.context_bytes() >> 10, decoder.context_bytes() >> 10),
        is_baseline: false,
    }
}

/// For each page the denser of two designs where it saves at least `saved_min` bytes.
fn better(outcomes: &[Outcome], fast: &str, dense: &str, saved_min: usize) -> Option<Outcome> {
    let find = |name: &str| outcomes.iter().find(|o| o.name == name);
    let (f, d) = (find(fast)?, find(dense)?);
    let choose = |(f, d): (&Sample, &Sample)| {
        let encode_ns = f.encode_ns + d.encode_ns;
        let cost = |s: &Sample| s.len.unwrap_or(PAGE_SIZE);
        let chosen = if cost(f) < cost(d) + saved_min { f } else { d };
        Sample { encode_ns, ..*chosen }
    };
    let samples: Vec<Sample> = f.samples.iter().zip(&d.samples).map(choose).collect();
    let add = |a: (usize, usize), b: (usize, usize)| (a.0 + b.0, a.1 + b.1);
    Some(Outcome {
        name: format!("{fast} or {dense} if {saved_min} B less"),
        objects: samples.iter().filter_map(|s| s.len).collect(),
        samples,
        context_kib: add(f.context_kib, d.context_kib),
        is_baseline: false,
    })
}

/// The content of a dictionary that the command `zstd` trains from the pages.
fn foreign(pages: &[&Page], bytes: usize) -> Option<Vec<u8>> {
    let folder = std::env::temp_dir().join(format!("terrace-beyond-{}", std::process::id()));
    std::fs::create_dir(&folder).ok()?;
    let (source, made) = (folder.join("pages"), folder.join("dictionary"));
    let all: Vec<u8> = pages.iter().flat_map(|p| p.iter().copied()).collect();
    std::fs::write(&source, all).ok()?;
    let run = Command::new("zstd")
        .args(["-q", "--train", "-B4096", &format!("--maxdict={bytes}"), "-o"])
        .arg(&made)
        .arg(&source)
        .output();
    let dictionary = run.ok().filter(|r| r.status.success()).and(std::fs::read(&made).ok());
    let _ = std::fs::remove_dir_all(&folder);
    dictionary
}

impl Outcome {
    /// Cost of the test pages, 1 for plain DRAM.
    fn cost(&self) -> f64 {
        // Each object 64 times, as in a pool of some size: a class's last run is seldom full.
        const TIMES: usize = 64;
        let mut pool = pool::open(Pool::Zsmalloc, 1 << 26);
        for len in self.objects.iter().flat_map(|len| std::iter::repeat_n(*len, TIMES)) {
            pool.alloc(len, 0).expect("room");
        }
        let s = pool.stats();
        let refused = self.samples.iter().filter(|s| s.len.is_none()).count() * PAGE_SIZE;
        let held = (s.pool_bytes + s.metadata_bytes) as f64 / TIMES as f64 + refused as f64;
        held / (self.samples.len() * PAGE_SIZE) as f64
    }

    /// Mean over all pages, in microseconds.
    fn latency_us(&self, fault_us: f64) -> f64 {
        let us = |s: &Sample| s.len.map_or(0.0, |_| fault_us + s.decode_ns as f64 / 1000.0);
        self.samples.iter().map(us).sum::<f64>() / self.samples.len() as f64
    }
}

/// Cost on the lower convex hull of the points at a latency; right of them the lowest.
fn hull_cost(points: &[(f64, f64)], latency: f64) -> f64 {
    let mut lowest = f64::INFINITY;
    for a in points {
        if a.0 <= latency {
            lowest = lowest.min(a.1);
        }
        for b in points {
            if a.0 <= latency && latency < b.0 {
                lowest = lowest.min(a.1 + (b.1 - a.1) * (latency - a.0) / (b.0 - a.0));
            }
        }
    }
    lowest
}

fn percentile(mut ns: Vec<u64>, part: usize) -> f64 {
    ns.sort_unstable();
    ns.get((ns.len() * part / 100).min(ns.len().max(1) - 1)).map_or(0.0, |ns| *ns as f64 / 1000.0)
}

fn table(outcomes: &[Outcome]) {
    println!(
        "\n| design | bytes/page | refused % | cost | decode p50 us | p99 | encode p50 us | KiB \
         encode | KiB decode | gain % at 12 us | at 4 us |\n\
         |---|---|---|---|---|---|---|---|---|---|---|"
    );
    let costs: Vec<f64> = outcomes.iter().map(Outcome::cost).collect();
    for (o, cost) in outcomes.iter().zip(&costs) {
        let gains = FAULT_US.map(|fault_us| {
            let mut base = vec![(0.0, 1.0)];
            let plain = outcomes.iter().zip(&costs).filter(|(b, _)| b.is_baseline);
            // A baseline is judged against the others.
            base.extend(
                plain
                    .filter(|(b, _)| b.name != o.name)
                    .map(|(b, cost)| (b.latency_us(fault_us), *cost)),
            );
            let hull = hull_cost(&base, o.latency_us(fault_us));
            format!("{:.1}", (hull - cost) * 100.0 / hull)
        });
        let stored: Vec<&Sample> = o.samples.iter().filter(|s| s.len.is_some()).collect();
        let refused = 100.0 - stored.len() as f64 * 100.0 / o.samples.len() as f64;
        let bytes: usize = o.samples.iter().map(|s| s.len.unwrap_or(PAGE_SIZE)).sum();
        let decode: Vec<u64> = stored.iter().map(|s| s.decode_ns).collect();
        println!(
            "| {} | {} | {refused:.1} | {cost:.3} | {:.1} | {:.1} | {:.1} | {} | {} | {} | {} |",
            o.name,
            bytes / o.samples.len(),
            percentile(decode.clone(), 50),
            percentile(decode, 99),
            percentile(o.samples.iter().map(|s| s.encode_ns).collect(), 50),
            o.context_kib.0,
            o.context_kib.1,
            gains[0],
            gains[1],
        );
    }
}
