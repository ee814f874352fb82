//! Every tier there is - codec x pool x medium - gives back what it took.
//!
//! Pages of this machine's files and of a seeded generator go through a tier in turns: some are
//! stored, some of the stored ones are freed, pools are compacted and trimmed in between, and every
//! page is compared byte by byte when it leaves. `TERRACE_ROUND_TRIP_PAGES` says how many pages
//! each tier gets:
//!
//! `TERRACE_ROUND_TRIP_PAGES=100000 cargo test --release -p terrace-store --test every_tier -- \
//! --nocapture`

use std::fs;
use std::path::{Path, PathBuf};
use terrace_core::tier::{
    Codec, Medium as MediumSpec, MediumKind, Place, Pool, TierSpec, BLOCK_KIB,
};
use terrace_store::codec::{DecoderSet, Encoder};
use terrace_store::page::checksum;
use terrace_store::{FileMedium, HeapMedium, Medium, Page, Refusal, Tier, CUTOFF_BYTES, PAGE_SIZE};

/// Pages for each tier unless the environment says otherwise: a few seconds in all.
const PAGES: usize = 600;
const PAGES_MAX: usize = 100_000;
/// Between two turns of freeing, compacting and trimming.
const TURN_PAGES: usize = 64;
/// Real pages held in memory; beyond them they come again, with another number stamped in.
const REAL_PAGES_MAX: usize = 8_192;
/// Pages taken of one file, so that no file dominates.
const PAGES_PER_FILE: usize = 64;

/// A seeded generator (splitmix64), as the unit tests have it.
struct Random(u64);

impl Random {
    fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, end: usize) -> usize {
        (self.word() % end as u64) as usize
    }
}

/// Pages with one or a few files of each kind behind each other, so that a short run has all kinds.
fn real_pages() -> Vec<Page> {
    let is = |suffixes: &'static [&'static str]| {
        move |path: &Path| suffixes.iter().any(|s| path.to_string_lossy().ends_with(s))
    };
    let kinds: [Vec<Page>; 4] = [
        gather(&["/usr/bin", "/bin"], &|_| true),
        gather(&["/usr/lib", "/usr/local/lib"], &is(&[".so", ".so.1", ".so.6"])),
        gather(&["/usr/share/doc", "/usr/include", "/etc"], &is(&["copyright", ".h", ".conf"])),
        gather(&["/usr/lib", "/usr/local/lib"], &is(&[".py"])),
    ];
    let most = kinds.iter().map(Vec::len).max().unwrap_or(0);
    (0..most).flat_map(|n| kinds.iter().filter_map(move |kind| kind.get(n).copied())).collect()
}

fn gather(dirs: &[&str], wanted: &dyn Fn(&Path) -> bool) -> Vec<Page> {
    let mut pages = Vec::new();
    let mut open: Vec<PathBuf> = dirs.iter().rev().map(PathBuf::from).collect();
    while let Some(dir) = open.pop() {
        let Ok(entries) = fs::read_dir(&dir) else { continue };
        let mut paths: Vec<PathBuf> = entries.flatten().map(|e| e.path()).collect();
        paths.sort();
        for path in paths {
            let Ok(meta) = path.symlink_metadata() else { continue };
            if meta.is_dir() {
                open.push(path);
            } else if meta.is_file() && wanted(&path) {
                let Ok(content) = fs::read(&path) else { continue };
                let whole = content.chunks_exact(PAGE_SIZE).take(PAGES_PER_FILE);
                pages.extend(whole.map(|page| Page::try_from(page).expect("a whole page")));
                if pages.len() >= REAL_PAGES_MAX / 4 {
                    return pages;
                }
            }
        }
    }
    pages
}

/// Writes page `n` of the test: three of four are real, where the machine has files.
fn fill(n: usize, real: &[Page], page: &mut Page) {
    let mut random = Random(n as u64);
    if n.is_multiple_of(4) || real.is_empty() {
        made(&mut random, n / 4, page);
        return;
    }
    let at = n - n / 4 - 1;
    *page = real[at % real.len()];
    if at >= real.len() {
        page[..8].copy_from_slice(&(n as u64).to_le_bytes());
    }
}

/// A page of one of the generator's kinds: one value, noise, words, runs, records, few symbols, and
/// noise with repeats.
fn made(random: &mut Random, kind: usize, page: &mut Page) {
    match kind % 7 {
        0 => page.fill(random.word() as u8),
        1 => page.fill_with(|| random.word() as u8),
        2 => {
            let words = ["page ", "tier ", "the ", "of ", "compressed ", "window\n", "fault. "];
            let mut at = 0;
            while at < PAGE_SIZE {
                let word = words[random.below(words.len())].as_bytes();
                let len = word.len().min(PAGE_SIZE - at);
                page[at..at + len].copy_from_slice(&word[..len]);
                at += len;
            }
        }
        3 => {
            let mut at = 0;
            while at < PAGE_SIZE {
                let end = (at + 1 + random.below(600)).min(PAGE_SIZE);
                page[at..end].fill(random.word() as u8);
                at = end;
            }
        }
        4 => {
            page.fill(0);
            let size = 8 + random.below(100);
            for (n, record) in page.chunks_mut(size).enumerate() {
                record[0] = n as u8;
                let last = record.len() - 1;
                record[last] = random.word() as u8;
            }
        }
        5 => {
            let symbols = 2 + random.below(14);
            page.fill_with(|| random.below(symbols) as u8);
        }
        _ => {
            page.fill_with(|| random.word() as u8);
            for _ in 0..random.below(200) {
                let len = 1 + random.below(70);
                let (from, to) = (random.below(PAGE_SIZE - len), random.below(PAGE_SIZE - len));
                page.copy_within(from..from + len, to);
            }
        }
    }
}

fn medium_spec(name: &str, kind: MediumKind) -> MediumSpec {
    // As good as no latency: the test is about bytes.
    MediumSpec {
        name: name.into(),
        kind,
        usd_per_gib_month: 0.0,
        latency_ns: 1,
        bandwidth_mib_s: 0,
        place: Place::default(),
    }
}

/// Makes a medium of so many bytes.
type MakeMedium = fn(usize) -> Box<dyn Medium>;

/// The media: what they are called, and how one is made.
fn media() -> Vec<(MediumSpec, MakeMedium)> {
    let heap: MakeMedium = |bytes| Box::new(HeapMedium::new(bytes));
    vec![
        (medium_spec("dram", MediumKind::Dram), heap),
        // `Tier::new` puts the emulation around it.
        (medium_spec("slow", MediumKind::Emulated), heap),
        (medium_spec("file", MediumKind::File), |bytes| {
            let directory = std::env::temp_dir();
            Box::new(FileMedium::temporary(&directory, bytes as u64).expect("a temporary file"))
        }),
    ]
}

/// What became of the pages of one tier.
struct Outcome {
    stored: u64,
    refused: u64,
    object_bytes: u64,
    compact_moves: u64,
}

fn round_trip(tier: &Tier, spec: &TierSpec, pages: usize, real: &[Page]) -> Outcome {
    let mut encoder = Encoder::new(spec.codec, spec.level).expect("the level is in range");
    let mut decoders = DecoderSet::new([spec.codec]).expect("memory");
    decoders.add_blocks().expect("memory");
    let mut own_decoders = DecoderSet::new([]).expect("memory");
    own_decoders.add_blocks().expect("memory");
    let (mut page, mut scratch, mut back) = ([0; PAGE_SIZE], [0; PAGE_SIZE], [0; PAGE_SIZE]);
    let mut random = Random(pages as u64);
    let shrink_every = (pages / TURN_PAGES / 6).max(2);
    let mut live = Vec::new();
    let (mut object_bytes, mut compared) = (0, 0);
    let mut leave = |handle, n: usize| {
        fill(n, real, &mut page);
        tier.load_page(&mut decoders, handle, &mut scratch, &mut back)
            .unwrap_or_else(|e| panic!("{}: page {n}: {e}", spec.name));
        assert!(back == page, "{}: page {n} came back with other bytes", spec.name);
        assert!(tier.free(handle), "{}: page {n} is freed once", spec.name);
        compared += 1;
    };
    let (mut page, mut scratch) = ([0; PAGE_SIZE], [0; PAGE_SIZE]);
    for n in 0..pages {
        fill(n, real, &mut page);
        match tier.store_page(&mut encoder, &page, &mut scratch) {
            Ok(handle) => {
                if tier.has_encodings() {
                    let (len, check) = tier.load(handle, &mut scratch).expect("it was just stored");
                    assert_eq!(check, checksum(&page));
                    object_bytes += len as u64;
                } else {
                    let mut back = [0; PAGE_SIZE];
                    tier.load_page(&mut own_decoders, handle, &mut scratch, &mut back)
                        .expect("it was just stored");
                    assert!(back == page);
                    object_bytes += PAGE_SIZE as u64;
                }
                live.push((handle, n));
            }
            Err(refusal) => assert_eq!(refusal, Refusal::Incompressible, "{}", spec.name),
        }
        if n.is_multiple_of(TURN_PAGES) {
            // Pools grow in most turns and lose half six times.
            let shrinks = n / TURN_PAGES % shrink_every == shrink_every - 1;
            let deaths = if shrinks { live.len() / 2 } else { TURN_PAGES / 3 };
            for _ in 0..deaths.min(live.len()) {
                let (handle, n) = live.swap_remove(random.below(live.len()));
                leave(handle, n);
            }
            tier.compact(TURN_PAGES);
            tier.trim(1 << 20);
        }
    }
    while tier.compact(1_000) == 1_000 {}
    for (handle, n) in live {
        leave(handle, n);
    }
    tier.trim(u64::MAX);
    let stats = tier.stats();
    assert_eq!((compared, stats.frees), (stats.stores, stats.stores), "{}", spec.name);
    assert_eq!((stats.pool.objects, stats.pool.pool_bytes), (0, 0), "{}", spec.name);
    assert_eq!((stats.pool.idle_bytes, stats.load_errors), (0, 0), "{}", spec.name);
    Outcome {
        stored: stats.stores,
        refused: stats.refusals[Refusal::Incompressible as usize],
        object_bytes,
        compact_moves: stats.compact_moves + stats.blocks.repacked_pages,
    }
}

#[test]
fn every_tier_gives_back_every_page() {
    let pages = std::env::var("TERRACE_ROUND_TRIP_PAGES").map_or(PAGES, |text| {
        let pages = text.parse().ok().filter(|n| (1..=PAGES_MAX).contains(n));
        pages.unwrap_or_else(|| panic!("TERRACE_ROUND_TRIP_PAGES={text}: 1 to {PAGES_MAX}"))
    });
    let real = real_pages();
    println!("{pages} pages for each tier, from {} pages of files and a generator", real.len());
    let mut tiers = 0;
    for (medium, make) in media() {
        for pool in Pool::ALL {
            let mut moves = 0;
            let single = Codec::ALL.map(|codec| TierSpec::new(pool, codec, medium.clone()));
            let blocks = BLOCK_KIB.map(|kib| TierSpec::with_blocks(pool, kib, medium.clone()));
            for spec in single.into_iter().chain(blocks) {
                let tier = Tier::new(&spec, make(pages * PAGE_SIZE), CUTOFF_BYTES);
                let got = round_trip(&tier, &spec, pages, &real);
                assert_eq!(got.stored + got.refused, pages as u64, "{}", spec.name);
                assert!(got.stored * 2 > pages as u64 || pages < PAGES, "most pages compress");
                assert!(spec.block_kib == 0 || pages < PAGES || got.compact_moves > 0);
                moves += got.compact_moves;
                println!(
                    "{:24} {:6} pages stored and equal, {:5} refused, ratio {:.2}, {} moved",
                    spec.name,
                    got.stored,
                    got.refused,
                    (got.stored * PAGE_SIZE as u64) as f64 / got.object_bytes.max(1) as f64,
                    got.compact_moves
                );
                tiers += 1;
            }
            // With one codec alone there may be nothing to move, depending on the files here.
            assert!(pool == Pool::Zbud || pages < PAGES || moves > 0, "nothing moved");
        }
    }
    println!("{tiers} tiers");
    assert_eq!(tiers, media().len() * Pool::ALL.len() * (Codec::ALL.len() + BLOCK_KIB.len()));
}
