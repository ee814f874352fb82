//! `terrace bench pools`: how much memory the pools take for what they hold, beside the kernel's
//! zsmalloc under zram.
//!
//! The same pages go into a zram device (lz4) and, encoded with our lz4, into each pool. Then, on
//! both sides and for the same pages: half of them are freed at random, both sides are compacted,
//! the holes are filled with other pages, and both are compacted again. Pages that either side
//! would store as they are stay out: our cut-off lies below the kernel's.
//!
//! What is compared is *efficiency*: stored bytes over the bytes that are taken for them. On our
//! side that is pages and all tables; the kernel tells of its pages only (`mem_used_total`), so the
//! comparison charges us more. Stored bytes are each side's own, for two encoders of one format
//! differ by a few bytes.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{ensure, Context, Result};
use serde::Serialize;
use terrace_core::tier::{Codec, Pool};
use terrace_store::codec::Encoder;
use terrace_store::pool::{self, Handle, ObjectPool};
use terrace_store::{Page, CUTOFF_BYTES, PAGE_SIZE};

use super::ground::write_json;
use super::kernel_swap::{catch_interrupts, interrupted, PageSource};
use crate::demo::progress::Progress;
use crate::machine::Machine;

mod zram;

use zram::Zram;

/// Fewer pages would measure half-filled runs of rare sizes.
const PAGES_MIN: u32 = 4_096;
/// Moves asked of a pool at a time.
const COMPACT_MOVES: usize = 1_024;
/// The seed of what dies.
const SEED: u64 = 1;

/// What to compare with.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum Against {
    /// The kernel's zsmalloc in a zram device of our own, with lz4; needs root
    Zram,
}

/// Memory that the pools take for what they hold, beside the kernel's
///
/// Pages of this machine's files are encoded with lz4 and stored in each pool; half of them die at
/// random and others take their place. `--against zram` writes the same pages to a zram device
/// that it adds and removes again.
///
/// JSON (--json): `pools[]` with `name`, `stored_bytes`, `pool_bytes` (pages and tables),
/// `efficiency` (the one over the other) and `vs_zram` (efficiency / that of zram, null without
/// it), all of the pools as filled; `vs_zram_after_churn` (the last stage); `stages[]` with `name`,
/// `objects`, `stored_bytes`, `pool_bytes`, `metadata_bytes`, `efficiency`, `vs_zram`; `zram` with
/// its stages or null; `not_compared`: why there is no zram; `codec`, `pages`, `pages_left_out`;
/// the machine.
#[derive(clap::Args, Clone, Debug)]
pub struct PoolsArgs {
    /// Measure the kernel's zsmalloc, too (root; adds a zram device and removes it)
    #[arg(long, value_enum, value_name = "WHAT")]
    pub against: Option<Against>,
    /// Pages of 4 KiB to store
    #[arg(long, default_value_t = 65_536,
          value_parser = clap::value_parser!(u32).range(PAGES_MIN as i64..=(1 << 22)))]
    pub pages: u32,
    /// Write results as JSON to this file
    #[arg(long, value_name = "PATH")]
    pub json: Option<PathBuf>,
}

/// A pool after one of the steps.
#[derive(Clone, PartialEq, Debug, Serialize)]
struct Stage {
    name: &'static str,
    objects: u64,
    stored_bytes: u64,
    /// Pages and, on our side, tables.
    pool_bytes: u64,
    /// Of these the tables; 0 for zram, which does not tell.
    metadata_bytes: u64,
    efficiency: f64,
    vs_zram: Option<f64>,
}

/// One pool, with the figures of its first stage at the top.
#[derive(Clone, PartialEq, Debug, Serialize)]
struct Row {
    name: &'static str,
    stored_bytes: u64,
    pool_bytes: u64,
    efficiency: f64,
    vs_zram: Option<f64>,
    vs_zram_after_churn: Option<f64>,
    stages: Vec<Stage>,
}

/// What is written as JSON.
#[derive(Serialize)]
struct Report {
    pools: Vec<Row>,
    zram: Option<Row>,
    not_compared: Option<String>,
    codec: &'static str,
    pages: usize,
    pages_left_out: usize,
    #[serde(flatten)]
    machine: Machine,
}

/// What holds pages and can say what that costs.
trait Subject {
    fn store(&mut self, n: usize, page: &Page, encoded_len: usize) -> Result<()>;
    fn free(&mut self, n: usize) -> Result<()>;
    fn compact(&mut self) -> Result<()>;
    /// Objects, stored bytes, bytes taken, and how many of these are tables.
    fn cost(&self) -> Result<[u64; 4]>;
}

/// One of our pools; the bytes themselves are nobody's concern here.
struct Ours {
    pool: Box<dyn ObjectPool>,
    handles: Vec<Option<Handle>>,
}

impl Subject for Ours {
    fn store(&mut self, n: usize, _page: &Page, encoded_len: usize) -> Result<()> {
        let handle = self.pool.alloc(encoded_len, n as u32);
        self.handles[n] = Some(handle.context("the pool is full")?);
        Ok(())
    }

    fn free(&mut self, n: usize) -> Result<()> {
        let freed = self.handles[n].take().and_then(|handle| self.pool.free(handle));
        freed.context("the pool lost an object")?;
        Ok(())
    }

    fn compact(&mut self) -> Result<()> {
        while self.pool.compact(COMPACT_MOVES, &mut |_, _| true) == COMPACT_MOVES {}
        Ok(())
    }

    fn cost(&self) -> Result<[u64; 4]> {
        let s = self.pool.stats();
        Ok([s.objects, s.object_bytes, s.pool_bytes + s.metadata_bytes, s.metadata_bytes])
    }
}

/// zram, with the number of pages that it holds.
struct Kernel {
    zram: Zram,
    objects: u64,
}

impl Subject for Kernel {
    fn store(&mut self, n: usize, page: &Page, _encoded_len: usize) -> Result<()> {
        self.objects += 1;
        self.zram.write(n, page)
    }

    fn free(&mut self, n: usize) -> Result<()> {
        self.objects -= 1;
        self.zram.free(n)
    }

    fn compact(&mut self) -> Result<()> {
        self.zram.compact()
    }

    fn cost(&self) -> Result<[u64; 4]> {
        let stat = self.zram.stat()?;
        ensure!(
            stat.huge_pages == 0,
            "zram stored {} pages as they are, which we do not; its cut-off lies below ours",
            stat.huge_pages
        );
        Ok([self.objects, stat.stored_bytes, stat.used_bytes, 0])
    }
}

/// The pages that are stored: their numbers in the source, with the lengths they encode to.
struct Workload {
    source: PageSource,
    /// First those that fill a pool, then those that take the place of the dead.
    pages: Vec<(usize, usize)>,
    /// Places of those that die.
    doomed: Vec<usize>,
    left_out: usize,
}

impl Workload {
    fn new(source: PageSource, pages: usize) -> Result<Workload> {
        let mut encoder = Encoder::new(Codec::Lz4, Codec::Lz4.default_level())?;
        let (mut page, mut out) = ([0; PAGE_SIZE], [0; CUTOFF_BYTES]);
        let wanted = pages + pages / 2;
        let (mut taken, mut left_out) = (Vec::with_capacity(wanted), 0);
        for n in 0.. {
            if taken.len() == wanted {
                break;
            }
            ensure!(!interrupted(), "interrupted");
            ensure!(
                n < source.pages() || !taken.is_empty(),
                "no page of this machine's files compresses; nothing to store"
            );
            source.fill(n, &mut page);
            match encoder.encode(&page, &mut out) {
                Some(len) => taken.push((n, len)),
                None => left_out += 1,
            }
        }
        // Half of the places, in random order, by a shuffle that stops half way.
        let mut places: Vec<usize> = (0..pages).collect();
        let mut random = SEED;
        for k in 0..pages / 2 {
            random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            places.swap(k, k + (random >> 33) as usize % (pages - k));
        }
        places.truncate(pages / 2);
        Ok(Workload { source, pages: taken, doomed: places, left_out })
    }

    /// Takes a subject through all stages.
    fn run(&self, subject: &mut dyn Subject, mut tell: impl FnMut(&str)) -> Result<Vec<Stage>> {
        let mut stages = Vec::new();
        let mut page = [0; PAGE_SIZE];
        let (first, others) = self.pages.split_at(self.pages.len() - self.doomed.len());
        let mut stage = |subject: &dyn Subject, name: &'static str| -> Result<()> {
            let [objects, stored_bytes, pool_bytes, metadata_bytes] = subject.cost()?;
            let efficiency = stored_bytes as f64 / pool_bytes.max(1) as f64;
            stages.push(Stage {
                name,
                objects,
                stored_bytes,
                pool_bytes,
                metadata_bytes,
                efficiency,
                vs_zram: None,
            });
            tell(name);
            Ok(())
        };
        let mut store = |subject: &mut dyn Subject, place: usize, (n, len): (usize, usize)| {
            ensure!(!interrupted(), "interrupted");
            self.source.fill(n, &mut page);
            subject.store(place, &page, len)
        };
        for (place, from) in first.iter().enumerate() {
            store(subject, place, *from)?;
        }
        stage(subject, "filled")?;
        for place in &self.doomed {
            ensure!(!interrupted(), "interrupted");
            subject.free(*place)?;
        }
        stage(subject, "half died")?;
        subject.compact()?;
        stage(subject, "half died, compacted")?;
        for (place, from) in self.doomed.iter().zip(others) {
            store(subject, *place, *from)?;
        }
        stage(subject, "refilled")?;
        subject.compact()?;
        stage(subject, "refilled, compacted")?;
        Ok(stages)
    }
}

/// Runs the benchmark.
pub fn run(args: PoolsArgs) -> Result<()> {
    let pages = usize::try_from(args.pages)?;
    if let Some(path) = &args.json {
        let folder = path.parent().filter(|p| !p.as_os_str().is_empty());
        let folder = folder.unwrap_or(Path::new("."));
        ensure!(folder.is_dir(), "--json: {} is not a directory", folder.display());
    }
    catch_interrupts();
    let mut progress = Progress::new();
    progress.line("collecting pages from the files of this machine");
    let work = Workload::new(PageSource::from_machine()?, pages)?;

    let mut not_compared = Some("not asked for; --against zram compares".to_owned());
    let mut zram = None;
    if let Some(Against::Zram) = args.against {
        match Zram::add(pages) {
            Ok(added) => {
                let mut kernel = Kernel { zram: added, objects: 0 };
                let stages =
                    work.run(&mut kernel, |stage| progress.update(|| format!("zram: {stage}")))?;
                kernel.zram.remove()?;
                (zram, not_compared) = (Some(row("zram", stages, None)), None);
            }
            Err(e) => {
                let why = format!("{e:#}");
                progress.line(&format!("terrace: the pools are measured alone: {why}"));
                not_compared = Some(why);
            }
        }
    }
    let mut pools = Vec::new();
    for kind in Pool::ALL {
        let handles = vec![None; pages];
        // An arena that is never the limit: zbud may need a page for each object.
        let mut ours = Ours { pool: pool::open(kind, 2 * pages as u64), handles };
        let stages =
            work.run(&mut ours, |stage| progress.update(|| format!("{}: {stage}", kind.name())))?;
        pools.push(row(kind.name(), stages, zram.as_ref()));
    }
    let report = Report {
        pools,
        zram,
        not_compared,
        codec: Codec::Lz4.name(),
        pages,
        pages_left_out: work.left_out,
        machine: Machine::here(),
    };
    write_json(args.json.as_deref(), &report)?;
    print!("{}", report.table());
    Ok(())
}

fn row(name: &'static str, mut stages: Vec<Stage>, zram: Option<&Row>) -> Row {
    if let Some(zram) = zram {
        for (stage, theirs) in stages.iter_mut().zip(&zram.stages) {
            stage.vs_zram = Some(stage.efficiency / theirs.efficiency.max(1e-9));
        }
    }
    let (first, last) = (&stages[0], &stages[stages.len() - 1]);
    Row {
        name,
        stored_bytes: first.stored_bytes,
        pool_bytes: first.pool_bytes,
        efficiency: first.efficiency,
        vs_zram: first.vs_zram,
        vs_zram_after_churn: last.vs_zram,
        stages,
    }
}

impl Report {
    /// The report as a person reads it.
    fn table(&self) -> String {
        let rows: Vec<&Row> = self.zram.iter().chain(&self.pools).collect();
        let mut out = String::new();
        let _ = writeln!(
            out,
            "{} pages, lz4, none over {CUTOFF_BYTES} bytes encoded ({} left out); stored bytes in \
             per cent of the bytes taken for them, in brackets the ratio to zram:",
            self.pages, self.pages_left_out
        );
        let _ = write!(out, "{:22}", "");
        for row in &rows {
            let _ = write!(out, "{:>16}", row.name);
        }
        let _ = writeln!(out);
        for (n, stage) in self.pools[0].stages.iter().enumerate() {
            let _ = write!(out, "{:22}", stage.name);
            for stage in rows.iter().map(|row| &row.stages[n]) {
                let ratio = stage.vs_zram.map_or(String::new(), |ratio| format!(" ({ratio:.3})"));
                let _ = write!(out, "{:>16}", format!("{:.1}{ratio}", stage.efficiency * 100.0));
            }
            let _ = writeln!(out);
        }
        let _ = write!(out, "{:22}", "tables, bytes/object");
        for stage in rows.iter().map(|row| &row.stages[0]) {
            let bytes = stage.metadata_bytes as f64 / stage.objects.max(1) as f64;
            let text = if stage.metadata_bytes == 0 { "-".into() } else { format!("{bytes:.1}") };
            let _ = write!(out, "{text:>16}");
        }
        let _ = writeln!(out);
        if let Some(why) = &self.not_compared {
            let _ = writeln!(out, "no comparison: {why}");
        }
        let _ = writeln!(out, "machine: {}", self.machine.summary());
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pages that differ, half text-like and half noise that no codec takes.
    fn workload(pages: usize) -> Workload {
        let mut random = 7u64;
        let mut bytes = vec![0; 600 * PAGE_SIZE];
        for (n, page) in bytes.chunks_exact_mut(PAGE_SIZE).enumerate() {
            let noisy = if n % 2 == 0 { PAGE_SIZE } else { 200 + n * 4 };
            for byte in &mut page[..noisy] {
                random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(99);
                *byte = (random >> 56) as u8;
            }
        }
        Workload::new(PageSource::from_bytes(bytes), pages).unwrap()
    }

    #[test]
    fn pages_that_do_not_compress_stay_out_and_half_of_the_others_die() {
        let work = workload(4_096);
        assert_eq!(work.pages.len(), 4_096 + 2_048);
        assert!(work.left_out >= 6_000, "{}", work.left_out);
        assert!(work.pages.iter().all(|(_, len)| *len <= CUTOFF_BYTES));
        let mut doomed = work.doomed.clone();
        doomed.sort_unstable();
        doomed.dedup();
        assert_eq!(doomed.len(), 2_048, "each dies once");
    }

    #[test]
    fn stages_count_what_is_there() {
        let work = workload(4_096);
        for kind in Pool::ALL {
            let mut ours = Ours { pool: pool::open(kind, 8_192), handles: vec![None; 4_096] };
            let stages = work.run(&mut ours, |_| ()).unwrap();
            ours.pool.validate();
            let objects: Vec<u64> = stages.iter().map(|s| s.objects).collect();
            assert_eq!(objects, [4_096, 2_048, 2_048, 4_096, 4_096]);
            let filled: usize = work.pages[..4_096].iter().map(|(_, len)| len).sum();
            assert_eq!(stages[0].stored_bytes, filled as u64);
            assert!(stages.iter().all(|s| (0.2..1.0).contains(&s.efficiency)), "{stages:?}");
            assert!(stages[2].pool_bytes <= stages[1].pool_bytes);
            let zram = row("zram", stages.clone(), None);
            assert_eq!(row("x", stages, Some(&zram)).vs_zram_after_churn, Some(1.0));
        }
    }
}
