//! What codecs and pools cost and save on real pages of this machine.
//!
//! `cargo run --release -p terrace-store --example tier_bench [PATH..]`
//!
//! Reads up to 2,000 non-zero pages from each of machine code, documentation and Python sources
//! (or from the given paths), and prints for each codec: ratio (a page above the cut-off counts as
//! 4 KiB), share of pages refused, and encode and decode time, each page's the least of three
//! passes; then the checksum, whole tiers (one pass), and what a pool's operations cost and how
//! much of its pages is objects after churn; and what a page costs that moves to another tier of
//! the same codec, as it is and by way of decoding and encoding. Percentiles are over pages and
//! include the cost of reading the clock.
//!
//! With `TERRACE_KERNEL_CODECS` naming the program that `tools/kernel-codecs/build` makes, it also
//! prints what the kernel's own lzo, lzo-rle and 842 take for the same pages.

use std::hint::black_box;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;
use terrace_core::tier::{Codec, Medium, Pool, TierSpec};
use terrace_store::codec::Encoder;
use terrace_store::page::{checksum, same_filled};
use terrace_store::{pool, DecoderSet, HeapMedium, Page, Tier, CUTOFF_BYTES, PAGE_SIZE};

const PAGES_EACH: usize = 2000;
const PASSES: usize = 3;

fn main() {
    let args: Vec<PathBuf> = std::env::args().skip(1).map(PathBuf::from).collect();
    let groups: Vec<(String, Vec<PathBuf>)> = if args.is_empty() {
        let pythons = list(Path::new("/usr/lib")).into_iter();
        let is_python = |p: &PathBuf| p.to_string_lossy().contains("/python3");
        vec![
            ("code".into(), vec!["/usr/bin".into()]),
            ("doc".into(), vec!["/usr/share/doc".into()]),
            ("python".into(), pythons.filter(is_python).collect()),
        ]
    } else {
        args.into_iter().map(|p| (p.display().to_string(), vec![p])).collect()
    };
    let mut all = Vec::new();
    for (name, roots) in groups {
        let pages = pages_of(&roots);
        println!("\n{name}: {} pages", pages.len());
        codecs(&pages);
        all.extend(pages);
    }
    println!("\nall: {} pages", all.len());
    let lens = codecs(&all);
    if let Some(program) = std::env::var_os("TERRACE_KERNEL_CODECS") {
        kernel_codecs(Path::new(&program), &all).expect("tools/kernel-codecs/build made it");
    }
    println!();
    page_functions(&all);
    println!();
    whole_path(&all);
    println!();
    migration(&all);
    println!();
    for kind in Pool::ALL {
        for objects in [2_000, 100_000] {
            churn(kind, &lens, objects);
        }
    }
}

fn list(root: &Path) -> Vec<PathBuf> {
    let mut found: Vec<_> =
        std::fs::read_dir(root).into_iter().flatten().flatten().map(|e| e.path()).collect();
    found.sort();
    found
}

/// Evenly spread pages of the regular files below `roots`.
fn pages_of(roots: &[PathBuf]) -> Vec<Page> {
    let mut files = Vec::new();
    let mut open = roots.to_vec();
    while let Some(path) = open.pop() {
        let Ok(meta) = std::fs::symlink_metadata(&path) else { continue };
        if meta.is_dir() {
            open.extend(list(&path));
        } else if meta.is_file() && meta.len() >= PAGE_SIZE as u64 && !is_packed(&path) {
            files.push((path, meta.len() / PAGE_SIZE as u64));
        }
    }
    let total: u64 = files.iter().map(|(_, pages)| pages).sum();
    let step = (total / PAGES_EACH as u64).max(1);
    let (mut pages, mut next, mut base) = (Vec::new(), 0, 0);
    for (path, count) in files {
        if next < base + count {
            let bytes = std::fs::read(&path).unwrap_or_default();
            while next < base + count {
                let at = (next - base) as usize * PAGE_SIZE;
                if let Some(Ok(page)) = bytes.get(at..at + PAGE_SIZE).map(Page::try_from) {
                    if same_filled(&page).is_none() {
                        pages.push(page);
                    }
                }
                next += step;
            }
        }
        base += count;
    }
    pages
}

fn is_packed(path: &Path) -> bool {
    path.extension().is_some_and(|e| ["gz", "xz", "png", "zip", "whl"].iter().any(|p| e == *p))
}

/// Nanoseconds to microseconds at p50 and p99.
fn percentiles(mut ns: Vec<u64>) -> String {
    if ns.is_empty() {
        return "-".into();
    }
    ns.sort_unstable();
    let us = |part: usize| ns[(ns.len() * part / 100).min(ns.len() - 1)] as f64 / 1000.0;
    format!("{:6.2} {:6.2}", us(50), us(99))
}

fn timed(mut work: impl FnMut()) -> u64 {
    let start = Instant::now();
    work();
    start.elapsed().as_nanos() as u64
}

/// Prints a row for each codec; returns LZ4's encoded lengths, for the pools.
fn codecs(pages: &[Page]) -> Vec<usize> {
    println!("codec        ratio  refused%  encode p50 p99 us  decode p50 p99 us  KiB enc dec");
    let mut lens = Vec::new();
    let rows = [
        (Codec::Lz4, 1),
        (Codec::Lz4, 8),
        (Codec::Lz4hc, 2),
        (Codec::Lz4hc, 4),
        (Codec::Lz4hc, 6),
        (Codec::Lz4hc, 9),
        (Codec::Lzo, 1),
        (Codec::LzoRle, 1),
        (Codec::C842, 1),
        (Codec::Zstd, -5),
        (Codec::Zstd, -1),
        (Codec::Zstd, 1),
        (Codec::Zstd, 3),
        (Codec::Deflate, 1),
        (Codec::Deflate, 6),
    ];
    for (codec, level) in rows {
        let mut encoder = Encoder::new(codec, level).expect("level is in range");
        let mut decoders = DecoderSet::new([codec]).expect("memory");
        let (mut encode_ns, mut decode_ns) = (Vec::new(), Vec::new());
        let (mut stored_bytes, mut refused) = (0, 0);
        let (mut out, mut back) = ([0; CUTOFF_BYTES], [0; PAGE_SIZE]);
        let mut encoded = Vec::new();
        for page in pages {
            let mut len = None;
            let pass = || timed(|| len = encoder.encode(black_box(page), &mut out));
            encode_ns.push(std::iter::repeat_with(pass).take(PASSES).min().unwrap_or(0));
            match len {
                Some(len) => {
                    stored_bytes += len;
                    encoded.push(out[..len].to_vec());
                    if (codec, level) == rows[0] {
                        lens.push(len);
                    }
                }
                None => {
                    stored_bytes += PAGE_SIZE;
                    refused += 1;
                }
            }
        }
        for stored in &encoded {
            let pass = || {
                timed(|| decoders.decode(codec, black_box(stored), &mut back).expect("round trip"))
            };
            decode_ns.push(std::iter::repeat_with(pass).take(PASSES).min().unwrap_or(0));
        }
        println!(
            "{:8}{:3}  {:6.2}  {:8.1}  {}     {}     {:5} {:3}",
            codec.name(),
            level,
            (pages.len() * PAGE_SIZE) as f64 / stored_bytes as f64,
            refused as f64 * 100.0 / pages.len() as f64,
            percentiles(encode_ns),
            percentiles(decode_ns),
            encoder.context_bytes() / 1024,
            decoders.context_bytes() / 1024,
        );
    }
    lens
}

/// Rows for the kernel's codecs, in a program that times them itself, in as many passes.
fn kernel_codecs(program: &Path, pages: &[Page]) -> std::io::Result<()> {
    let mut child = Command::new(program).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let (mut to, mut from) = (child.stdin.take().expect("piped"), child.stdout.take());
    let from = from.as_mut().expect("piped");
    let mut codecs = ["lzo", "lzo-rle", "842"].map(|name| (name, 0, Vec::new(), Vec::new()));
    for page in pages {
        to.write_all(&[&b"T"[..], &(PAGE_SIZE as u32).to_le_bytes(), page].concat())?;
        let mut head = [0; 5];
        from.read_exact(&mut head)?;
        let len = u32::from_le_bytes([head[1], head[2], head[3], head[4]]);
        let mut answer = String::new();
        from.take(len.into()).read_to_string(&mut answer)?;
        let numbers: Vec<u64> = answer.split_whitespace().flat_map(str::parse).collect();
        for ((_, stored_bytes, encode_ns, decode_ns), n) in codecs.iter_mut().zip(numbers.chunks(3))
        {
            encode_ns.push(n[1]);
            if n[0] <= CUTOFF_BYTES as u64 {
                *stored_bytes += n[0];
                decode_ns.push(n[2]);
            } else {
                *stored_bytes += PAGE_SIZE as u64;
            }
        }
    }
    drop(to);
    child.wait()?;
    for (name, stored_bytes, encode_ns, decode_ns) in codecs {
        println!(
            "kernel's {name:8} {:.2}  {:8.1}  {}     {}",
            (pages.len() * PAGE_SIZE) as f64 / stored_bytes as f64,
            (pages.len() - decode_ns.len()) as f64 * 100.0 / pages.len() as f64,
            percentiles(encode_ns),
            percentiles(decode_ns),
        );
    }
    Ok(())
}

/// Average time of a function over all pages, best of some passes, without the clock.
fn average(pages: &[Page], work: impl Fn(&Page) -> u64) -> f64 {
    let pass = || timed(|| pages.iter().for_each(|p| _ = black_box(work(black_box(p)))));
    let best = std::iter::repeat_with(pass).take(10).min().unwrap_or(0);
    best as f64 / pages.len() as f64 / 1000.0
}

fn page_functions(pages: &[Page]) {
    // A set that stays in the cache, as a page just decoded does.
    let pages = &pages[..pages.len().min(50)];
    println!("clock read       {:.3} us", average(pages, |_| timed(|| ()).min(1)));
    println!("checksum         {:.3} us", average(pages, |p| checksum(p).into()));
    println!("same_filled      {:.3} us", average(pages, |p| same_filled(p).unwrap_or(1)));
    let zeros = [[0; PAGE_SIZE]; 50];
    println!("same_filled, yes {:.3} us", average(&zeros, |p| same_filled(p).unwrap_or(1)));
}

/// What a mover pays to store a page and the pager to bring it back, checksum included.
fn whole_path(pages: &[Page]) {
    println!("tier                store p50 p99 us   load p50 p99 us   free p50 p99 us");
    for pool in Pool::ALL {
        for codec in Codec::ALL {
            let medium = Medium::dram(1.0);
            let arena = Box::new(HeapMedium::new(pages.len() * PAGE_SIZE));
            let spec = TierSpec::new(pool, codec, medium);
            let tier = Tier::new(&spec, arena, CUTOFF_BYTES);
            let mut encoder = Encoder::new(codec, spec.level).expect("level is in range");
            let mut decoders = DecoderSet::new([codec]).expect("memory");
            let (mut scratch, mut back) = ([0; PAGE_SIZE], [0; PAGE_SIZE]);
            let (mut store_ns, mut load_ns, mut free_ns) = (Vec::new(), Vec::new(), Vec::new());
            let mut handles = Vec::new();
            for page in pages {
                let mut result = None;
                store_ns.push(timed(|| {
                    result = tier.store_page(&mut encoder, page, &mut scratch).ok();
                }));
                handles.extend(result);
            }
            for handle in handles {
                load_ns.push(timed(|| {
                    tier.load_page(&mut decoders, handle, &mut scratch, &mut back).expect("stored");
                }));
                free_ns.push(timed(|| _ = tier.free(handle)));
            }
            let columns = [store_ns, load_ns, free_ns].map(percentiles);
            println!("{:20} {}     {}     {}", spec.name, columns[0], columns[1], columns[2]);
        }
    }
}

/// A page from a zbud tier to a zsmalloc tier of the same codec: its bytes as they are, which is
/// what movers do, against decoding and encoding them. The least of some passes, per page.
fn migration(pages: &[Page]) {
    println!("migration           unchanged us   recoded us   unchanged / recoded");
    for codec in Codec::ALL {
        let tier = |pool| {
            let spec = TierSpec::new(pool, codec, Medium::dram(1.0));
            Tier::new(&spec, Box::new(HeapMedium::new(pages.len() * PAGE_SIZE)), CUTOFF_BYTES)
        };
        let (from, to) = (tier(Pool::Zbud), tier(Pool::Zsmalloc));
        let mut encoder = Encoder::new(codec, codec.default_level()).expect("level is in range");
        let mut decoders = DecoderSet::new([codec]).expect("memory");
        let (mut scratch, mut page) = ([0; PAGE_SIZE], [0; PAGE_SIZE]);
        let store = |page| from.store_page(&mut encoder, page, &mut scratch).ok();
        let handles: Vec<_> = pages.iter().filter_map(store).collect();
        let mut moved = Vec::with_capacity(handles.len());
        let (mut unchanged_ns, mut recoded_ns) = (u64::MAX, u64::MAX);
        for _ in 0..PASSES {
            unchanged_ns = unchanged_ns.min(timed(|| {
                moved.extend(handles.iter().map(|&handle| {
                    let (len, check) = from.load(handle, &mut scratch).expect("stored");
                    to.store(&scratch[..len], check).expect("room")
                }));
            }));
            moved.drain(..).for_each(|handle| _ = to.free(handle));
            recoded_ns = recoded_ns.min(timed(|| {
                moved.extend(handles.iter().map(|&handle| {
                    from.load_page(&mut decoders, handle, &mut scratch, &mut page).expect("stored");
                    to.store_page(&mut encoder, &page, &mut scratch).expect("room")
                }));
            }));
            moved.drain(..).for_each(|handle| _ = to.free(handle));
        }
        let us = |ns: u64| ns as f64 / handles.len().max(1) as f64 / 1000.0;
        let ratio = unchanged_ns as f64 / recoded_ns as f64;
        let name = codec.name();
        println!("{name:20} {:11.2} {:12.2} {ratio:21.2}", us(unchanged_ns), us(recoded_ns));
    }
}

/// Fills a pool, lets half of it die at random and refills it, twice; then 70 % die, then compacts.
fn churn(kind: Pool, lens: &[usize], objects: usize) {
    if lens.is_empty() {
        return;
    }
    let mut pool = pool::open(kind, objects as u64);
    let mut state = 1u64;
    let mut random = |end: usize| {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        ((state >> 33) as usize) % end
    };
    let report = |pool: &dyn pool::ObjectPool, what: &str| {
        let s = pool.stats();
        println!(
            "{:8} {what:22} {:7} objects, {:4.1}% of pool pages, {:4.1} metadata bytes an object",
            kind.name(),
            s.objects,
            s.object_bytes as f64 * 100.0 / s.pool_bytes as f64,
            s.metadata_bytes as f64 / s.objects as f64,
        );
    };
    let mut live = Vec::with_capacity(objects);
    let ns =
        timed(|| live.extend((0..objects).map(|n| pool.alloc(lens[random(lens.len())], n as u32))));
    let mut live: Vec<_> = live.into_iter().flatten().collect();
    println!("{:8} alloc {:.3} us", kind.name(), ns as f64 / objects as f64 / 1000.0);
    report(&*pool, "filled");
    for _ in 0..2 {
        for _ in 0..objects / 2 {
            pool.free(live.swap_remove(random(live.len())));
        }
        report(&*pool, "half died");
        live.extend(
            (0..objects / 2).filter_map(|n| pool.alloc(lens[random(lens.len())], n as u32)),
        );
    }
    report(&*pool, "refilled");
    let mut doomed = Vec::new();
    for _ in 0..objects * 7 / 10 {
        doomed.push(live.swap_remove(random(live.len())));
    }
    let ns = timed(|| doomed.iter().for_each(|h| _ = black_box(pool.locate(*h))));
    println!("{:8} locate {:.3} us", kind.name(), ns as f64 / doomed.len() as f64 / 1000.0);
    let ns = timed(|| doomed.iter().for_each(|h| _ = black_box(pool.free(*h))));
    println!("{:8} free {:.3} us", kind.name(), ns as f64 / doomed.len() as f64 / 1000.0);
    report(&*pool, "70% died");
    let mut moves = 0;
    let ns = timed(|| moves = pool.compact(usize::MAX, &mut |_, _| true));
    if moves > 0 {
        println!(
            "{:8} move {:.3} us without the copy",
            kind.name(),
            ns as f64 / moves as f64 / 1000.0
        );
    }
    report(&*pool, &format!("compacted, {moves} moves"));
}
