//! What a tier's codec, pool and medium do with pages, without the fault around it: all of them
//! stored, then loaded in random order, in this process.
//!
//! Sizes are exact and hold for the runtime, which is made of the same code. Times are those of
//! `Tier::load_page`, the part of a fault that differs from tier to tier; [`super::live`] has the
//! rest. A medium that this process cannot open is held in its memory instead: then the sizes
//! count, and the time is `None`.

use std::sync::Arc;
use std::time::Instant;

use anyhow::{ensure, Context, Result};
use terrace_core::tier::{Codec, MediumKind, TierSpec};
use terrace_store::codec::dictionary::Dictionaries;
use terrace_store::codec::Encoder;
use terrace_store::page::checksum;
use terrace_store::{DecoderSet, Handle, HeapMedium, Page, Tier, CUTOFF_BYTES, PAGE_SIZE};

use crate::demo::random::Random;
use crate::preset;

/// Objects a pool holds at least: with a few, the pages at the edges of its size classes would be
/// most of what it costs. Data with fewer pages is stored several times.
const OBJECTS_MIN: usize = 4_096;
/// Bytes below the cut-off at which a page surely stays below it when eight of its bytes change, as
/// they do for the live measurement: eight literals, and as many in the matches that they were
/// part of or that refer to them. Too little of it shows at once: a page in fifty that is refused
/// there, and the measurement waits in vain.
const CUTOFF_MARGIN_BYTES: usize = 64;

/// Passes over all objects in one measurement; the least disturbed counts.
const LOAD_PASSES: u64 = 3;

/// The pages as one codec at one level makes them.
pub struct Encoded {
    /// Which.
    pub codec: Codec,
    /// Its level.
    pub level: i32,
    /// Of each page its encoding; `None` where that is longer than the cut-off.
    pub bytes: Vec<Option<Box<[u8]>>>,
    /// Time to encode each page, in nanoseconds: the least of the repetitions.
    encode_ns: Vec<u64>,
    /// What a codec that uses one may find there.
    dictionaries: Arc<Dictionaries>,
}

/// What one tier did with the pages, once.
#[derive(Clone, Debug)]
pub struct Once {
    /// Time to load and decode a page, in nanoseconds; `None` on a medium not opened here.
    pub load: Option<Times>,
    /// Time to encode and store a page, in nanoseconds, median. With no time of the medium where
    /// that is not opened here.
    pub compress_ns_p50: u64,
    /// What is stored.
    pub sizes: Sizes,
}

/// Median and tail, in nanoseconds.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Times {
    /// Median.
    pub p50_ns: f64,
    /// 99th percentile.
    pub p99_ns: f64,
}

impl Times {
    /// The lesser of both medians and of both tails.
    pub fn least(self, other: Times) -> Times {
        Times { p50_ns: self.p50_ns.min(other.p50_ns), p99_ns: self.p99_ns.min(other.p99_ns) }
    }
}

/// What the pages take. Counts are of pages offered, sizes in bytes.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Sizes {
    /// Pages offered.
    pub pages: usize,
    /// Pages refused, which stay in DRAM.
    pub refused: usize,
    /// Encodings stored.
    pub object_bytes: u64,
    /// Pages of the medium that hold them.
    pub pool_bytes: u64,
    /// Tables of the pool, which lie in DRAM whatever the medium.
    pub metadata_bytes: u64,
}

impl Sizes {
    /// Share of the pages that the tier did not take.
    pub fn refused_share(&self) -> f64 {
        self.refused as f64 / self.pages.max(1) as f64
    }

    /// Bytes of the pages that it took.
    pub fn original_bytes(&self) -> u64 {
        (self.pages - self.refused) as u64 * PAGE_SIZE as u64
    }

    /// Encodings over originals, of the pages taken; 1 if there are none.
    pub fn codec_ratio(&self) -> f64 {
        share(self.object_bytes, self.original_bytes())
    }

    /// All that is stored, pool included, over originals, of the pages taken; 1 if there are none.
    pub fn ratio(&self) -> f64 {
        share(self.pool_bytes + self.metadata_bytes, self.original_bytes())
    }

    /// What the pool adds, as a share of the encodings: slack and tables.
    pub fn pool_overhead(&self) -> f64 {
        share(self.pool_bytes + self.metadata_bytes, self.object_bytes) - 1.0
    }

    /// Equation 12 of TierScape over equation 9: what all pages cost when the tier holds all that
    /// it takes and DRAM the rest. Prices are per GiB and month.
    pub fn tco(&self, medium_usd: f64, dram_usd: f64) -> f64 {
        let refused_bytes = (self.refused * PAGE_SIZE) as f64;
        let in_dram = (refused_bytes + self.metadata_bytes as f64) * dram_usd;
        let all = (self.pages * PAGE_SIZE) as f64 * dram_usd;
        if all > 0.0 {
            (in_dram + self.pool_bytes as f64 * medium_usd) / all
        } else {
            1.0
        }
    }
}

fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 {
        1.0
    } else {
        part as f64 / whole as f64
    }
}

impl Encoded {
    /// Encodes all pages once.
    pub fn new(
        codec: Codec,
        level: i32,
        pages: &[Page],
        dictionaries: &Arc<Dictionaries>,
    ) -> Result<Encoded> {
        let encode_ns = vec![u64::MAX; pages.len()];
        let dictionaries = dictionaries.clone();
        let mut encoded = Encoded { codec, level, bytes: Vec::new(), encode_ns, dictionaries };
        encoded.bytes = encoded.encode(pages)?;
        Ok(encoded)
    }

    /// Encodes all pages once more, for the times.
    pub fn again(&mut self, pages: &[Page]) -> Result<()> {
        let bytes = self.encode(pages)?;
        ensure!(bytes == self.bytes, "{} does not repeat itself", self.codec.name());
        Ok(())
    }

    fn encode(&mut self, pages: &[Page]) -> Result<Vec<Option<Box<[u8]>>>> {
        let mut encoder = Encoder::with_dictionaries(self.codec, self.level, &self.dictionaries)?;
        // A tier refuses what is too long for it, and takes as it is what is not encoded.
        let mut out = [0; PAGE_SIZE - 1];
        let one = |(page, least_ns): (&Page, &mut u64)| {
            let started = Instant::now();
            let len = encoder.encode(std::hint::black_box(page), &mut out);
            *least_ns = (*least_ns).min(elapsed_ns(started));
            len.map(|len| out[..len].into())
        };
        Ok(pages.iter().zip(&mut self.encode_ns).map(one).collect())
    }

    /// The places of pages that stay below the cut-off also when a few of their bytes change.
    pub fn surely_taken(&self) -> impl Iterator<Item = usize> + '_ {
        let fits = |b: &Option<Box<[u8]>>| {
            b.as_ref().is_some_and(|b| b.len() + CUTOFF_MARGIN_BYTES <= CUTOFF_BYTES)
        };
        self.bytes.iter().enumerate().filter(move |(_, b)| fits(b)).map(|(n, _)| n)
    }
}

/// Whether this process can open the medium of a tier by itself, so that its times mean something.
pub fn opens_here(tier: &TierSpec) -> bool {
    matches!(tier.medium.kind, MediumKind::Dram | MediumKind::Emulated)
}

/// Stores what a codec made of `pages` in a new tier and loads all of it in the order of `seed`.
/// `dram_usd` is the price of a GiB of DRAM: a cheaper medium takes more of them.
pub fn measure(
    spec: &TierSpec,
    encoded: &Encoded,
    pages: &[Page],
    seed: u64,
    dram_usd: f64,
) -> Result<Once> {
    let here = opens_here(spec);
    let cutoff_bytes = spec.cutoff_bytes(CUTOFF_BYTES as u32, dram_usd) as usize;
    let mut spec = spec.clone();
    if !here {
        spec.medium = preset::dram(spec.medium.usd_per_gib_month);
    }
    // A block of many pages is a few objects.
    let pages_min = OBJECTS_MIN * spec.pages_per_block().div_ceil(2);
    let rounds = pages_min.div_ceil(pages.len().max(1)).max(1);
    let objects = rounds * pages.len();
    // Room for a pool that wastes; only what is written costs memory.
    let medium = HeapMedium::new((objects + objects / 4 + 1_024) * PAGE_SIZE);
    let tier = Tier::new(&spec, Box::new(medium), cutoff_bytes);

    let mut stored: Vec<(Handle, usize)> = Vec::with_capacity(objects);
    let mut compress_ns = Vec::with_capacity(objects);
    let order = (0..rounds).flat_map(|_| 0..pages.len());
    if spec.block_kib > 0 {
        store_blocks(&tier, &spec, (pages, order), &mut stored, &mut compress_ns)?;
    } else {
        store_encoded(&tier, encoded, (pages, order), &mut stored, &mut compress_ns);
    }
    let refused = objects - stored.len();
    // The runtime compacts and trims, too.
    while tier.compact(1_024) == 1_024 {}
    tier.trim(u64::MAX);

    let stats = tier.stats().pool;
    let sizes = Sizes {
        pages: objects,
        refused,
        object_bytes: stats.object_bytes,
        pool_bytes: stats.pool_bytes + stats.idle_bytes,
        metadata_bytes: stats.metadata_bytes,
    };
    let mut load: Option<Times> = None;
    for pass in 0..LOAD_PASSES {
        let times = load_all(&tier, &mut stored, pages, encoded, seed * LOAD_PASSES + pass)
            .with_context(|| format!("{} does not give back what it stored", spec.name))?;
        load = match (load, times) {
            (Some(a), Some(b)) => Some(a.least(b)),
            (a, b) => a.or(b),
        };
    }
    let load = load.filter(|_| here);
    Ok(Once { load, compress_ns_p50: quantile(&mut compress_ns, 0.5), sizes })
}

/// Stores what the codec made of each page. A pool has its own limits, such as zbud's on large
/// objects.
fn store_encoded(
    tier: &Tier,
    encoded: &Encoded,
    (pages, order): (&[Page], impl Iterator<Item = usize>),
    stored: &mut Vec<(Handle, usize)>,
    compress_ns: &mut Vec<u64>,
) {
    for n in order {
        let bytes = match &encoded.bytes[n] {
            Some(bytes) => bytes,
            None if tier.takes_all() => &pages[n][..],
            None => continue,
        };
        let check = checksum(&pages[n]);
        let started = Instant::now();
        if let Ok(handle) = tier.store(bytes, check) {
            compress_ns.push(elapsed_ns(started) + encoded.encode_ns[n]);
            stored.push((handle, n));
        }
    }
}

/// Stores pages in blocks. One in a block's worth of them takes the time for all, so times are
/// means over so many.
fn store_blocks(
    tier: &Tier,
    spec: &TierSpec,
    (pages, order): (&[Page], impl Iterator<Item = usize>),
    stored: &mut Vec<(Handle, usize)>,
    compress_ns: &mut Vec<u64>,
) -> Result<()> {
    let mut encoder = Encoder::new(spec.codec, spec.level)?;
    let mut scratch = [0; PAGE_SIZE];
    let (mut block_ns, mut pages_of_block) = (0, 0);
    for n in order {
        let started = Instant::now();
        let handle = tier.store_page(&mut encoder, &pages[n], &mut scratch);
        block_ns += elapsed_ns(started);
        if let Ok(handle) = handle {
            stored.push((handle, n));
            pages_of_block += 1;
        }
        if pages_of_block == spec.pages_per_block() {
            compress_ns.push(block_ns / pages_of_block as u64);
            (block_ns, pages_of_block) = (0, 0);
        }
    }
    Ok(())
}

/// Loads everything in random order. `None` if there is nothing.
fn load_all(
    tier: &Tier,
    stored: &mut [(Handle, usize)],
    pages: &[Page],
    encoded: &Encoded,
    seed: u64,
) -> Result<Option<Times>> {
    let mut random = Random::new(seed);
    for i in (1..stored.len()).rev() {
        stored.swap(i, random.below(i as u64 + 1) as usize);
    }
    let mut decoders = DecoderSet::with_dictionaries([tier.codec()], &encoded.dictionaries)?;
    decoders.add_blocks()?;
    let (mut scratch, mut page): (Page, Page) = ([0; PAGE_SIZE], [0; PAGE_SIZE]);
    let mut load_ns = Vec::with_capacity(stored.len());
    for (handle, n) in stored {
        let started = Instant::now();
        tier.load_page(&mut decoders, *handle, &mut scratch, &mut page)?;
        load_ns.push(elapsed_ns(started));
        ensure!(page == pages[*n], "page {n} came back with other bytes");
    }
    if load_ns.is_empty() {
        return Ok(None);
    }
    let p50_ns = quantile(&mut load_ns, 0.5) as f64;
    Ok(Some(Times { p50_ns, p99_ns: quantile(&mut load_ns, 0.99) as f64 }))
}

fn elapsed_ns(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

/// The value that `q` of the values do not exceed; 0 for none.
fn quantile(values: &mut [u64], q: f64) -> u64 {
    values.sort_unstable();
    let rank = (values.len() as f64 * q).ceil() as usize;
    values.get(rank.saturating_sub(1)).copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrace_core::tier::Pool;

    /// Half text that compresses, half noise.
    fn pages() -> Vec<Page> {
        let mut random = Random::new(5);
        (0..200)
            .map(|n| {
                let mut page = [0; PAGE_SIZE];
                for (i, b) in page.iter_mut().enumerate() {
                    *b = if n % 2 == 0 { (i / 3 % 50) as u8 + n } else { random.bits() as u8 };
                }
                page
            })
            .collect()
    }

    #[test]
    fn refused_pages_are_paid_as_dram() {
        let pages = pages();
        for codec in Codec::ALL {
            let encoded =
                Encoded::new(codec, codec.default_level(), &pages, &Dictionaries::new()).unwrap();
            assert_eq!(encoded.surely_taken().count(), 100, "{}", codec.name());
            for pool in Pool::ALL {
                let spec = TierSpec::new(pool, codec, preset::dram(0.3));
                let once = measure(&spec, &encoded, &pages, 1, 0.3).unwrap();
                let sizes = once.sizes;
                assert_eq!(sizes.refused_share(), 0.5, "{}", spec.name);
                assert!(sizes.pages >= OBJECTS_MIN && sizes.pages.is_multiple_of(200));
                assert!(sizes.codec_ratio() < sizes.ratio() && sizes.ratio() < 0.7);
                let expected = 0.5 + 0.5 * sizes.ratio();
                assert!((sizes.tco(0.3, 0.3) - expected).abs() < 1e-9);
                assert!(once.load.is_some_and(|t| t.p50_ns > 0.0 && t.p99_ns >= t.p50_ns));
                assert!(once.compress_ns_p50 > 0);
            }
        }
    }

    #[test]
    fn blocks_hold_more_and_take_longer() {
        let pages = pages();
        let spec = TierSpec::with_blocks(Pool::Zsmalloc, 64, preset::dram(0.3));
        let alone = TierSpec { block_kib: 0, ..spec.clone() };
        let encoded = Encoded::new(spec.codec, spec.level, &pages, &Dictionaries::new()).unwrap();
        let [blocks, alone] =
            [spec, alone].map(|spec| measure(&spec, &encoded, &pages, 1, 0.3).unwrap());
        assert_eq!(blocks.sizes.refused_share(), 0.5);
        assert!(blocks.sizes.ratio() < alone.sizes.ratio() && blocks.compress_ns_p50 > 0);
        assert!(blocks.load.unwrap().p50_ns > alone.load.unwrap().p50_ns);
    }

    #[test]
    fn a_cheaper_medium_takes_what_shrinks_little() {
        // Four fifths of a page are noise.
        let mut random = Random::new(9);
        let page = |_| {
            let mut page = [7; PAGE_SIZE];
            page[..PAGE_SIZE * 4 / 5].fill_with(|| random.below(256) as u8);
            page
        };
        let pages: Vec<Page> = (0..100).map(page).collect();
        let encoded = Encoded::new(Codec::Lz4, 1, &pages, &Dictionaries::new()).unwrap();
        let measured = |medium| {
            let spec = TierSpec::new(Pool::Zsmalloc, Codec::Lz4, medium);
            measure(&spec, &encoded, &pages, 1, 0.3).unwrap().sizes
        };
        assert_eq!(measured(preset::dram(0.3)).refused_share(), 1.0);
        let slow = measured(preset::slow(0.3));
        assert_eq!(slow.refused_share(), 0.0);
        assert!(slow.ratio() > 0.73 && slow.tco(0.1, 0.3) < 0.34, "{}", slow.tco(0.1, 0.3));
    }

    #[test]
    fn tco_by_hand() {
        let sizes = Sizes {
            pages: 100,
            refused: 20,
            object_bytes: 80 * 1_000,
            pool_bytes: 30 * 4_096,
            metadata_bytes: 4_096,
        };
        // 20 refused and a page of tables at 3 dollars, 30 pages at 1, of 100 at 3.
        assert!((sizes.tco(1.0, 3.0) - (21.0 * 3.0 + 30.0) / 300.0).abs() < 1e-12);
        assert!((sizes.ratio() - 31.0 / 80.0).abs() < 1e-12);
        assert!((sizes.pool_overhead() - (31.0 * 4_096.0 / 80_000.0 - 1.0)).abs() < 1e-12);
    }

    #[test]
    fn what_a_tier_takes_none_of_costs_what_dram_costs() {
        let pages: Vec<Page> = pages().into_iter().skip(1).step_by(2).collect();
        let encoded = Encoded::new(Codec::Lz4, 1, &pages, &Dictionaries::new()).unwrap();
        let measured = |medium| {
            let spec = TierSpec::new(Pool::Zsmalloc, Codec::Lz4, medium);
            measure(&spec, &encoded, &pages, 1, 0.3).unwrap()
        };
        let once = measured(preset::dram(0.3));
        assert_eq!(once.load, None);
        assert_eq!((once.sizes.refused_share(), once.sizes.ratio()), (1.0, 1.0));
        assert!(once.sizes.tco(0.3, 0.3) >= 1.0);
        // Where a page costs less as it is, nothing is refused, and nothing shrinks.
        let once = measured(preset::slow(0.3));
        assert!(once.load.is_some());
        assert_eq!(once.sizes.refused_share(), 0.0);
        assert!((0.33..0.35).contains(&once.sizes.tco(0.1, 0.3)), "{}", once.sizes.tco(0.1, 0.3));
    }
}
