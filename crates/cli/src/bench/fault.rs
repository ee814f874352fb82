//! `terrace bench fault`: what a page costs that comes back from each tier, beside the kernel's
//! own compressed memory.
//!
//! Every subject - zswap and each tier by itself - gets the same pages, the same touching loop
//! ([`fault_probe`]) and the same random order, one after the other, and all of it again, so that
//! drift of the machine meets all of them alike. What is reported of the repetitions is the
//! median.
//!
//! Pages that some tier would refuse are left out beforehand: Terrace would keep them in memory
//! and the kernel would store them as they are, and neither would be a fault from that tier.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{bail, ensure, Context, Result};
use terrace_core::tier::{Codec, TierSpec};
use terrace_store::codec::EncoderSet;
use terrace_store::{Page, CUTOFF_BYTES, PAGE_SIZE};

use super::kernel_swap::{
    catch_interrupts, fault_probe, interrupted, KernelSwap, Mapping, PageSource, ProbeFigures,
    ProbeSpec, SwapSpec,
};
use crate::demo::progress::Progress;
use crate::demo::redis::TempDir;
use crate::preset::Preset;

mod child;
mod report;
mod subject;

pub(crate) use report::loadavg;
use report::{Report, Row};
pub(crate) use subject::{Measured, Subject};

/// Enough to lie beyond the caches and for a few samples beyond the 99.9th percentile.
pub(crate) const PAGES_MIN: u32 = 4_096;
/// The compressor zswap has by default, and the paper's baseline.
const ZSWAP_COMPRESSOR: &str = "lzo";
/// Share of the faults that may be missing in the runtime's own count, or be too many in it: the
/// program that measures has some memory besides what it measures.
const COUNT_TOLERANCE: f64 = 0.02;

/// What to compare with.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum Against {
    /// The kernel's zswap with lzo, over a temporary swap file; needs root
    Zswap,
}

/// Fault latency of every tier, beside the kernel's
///
/// Each tier of the presets `auto` and `tierscape` is measured by itself: a child under `terrace
/// run` fills memory, waits until all of it is in the tier, and touches it in random order.
/// `--against zswap` sets zswap up for the same loop and removes it afterwards.
///
/// JSON (--json): `tiers[]` and `against[]` with `name`, `p50_ns`, `p99_ns`, `p999_ns` (medians of
/// the repetitions), `faults`, `faults_in_timeline`, `repetitions[]`; `ratios` with
/// `lz4_vs_zswap_lzo_p50` and `lz4_vs_zswap_lzo_p99` (first tier / zswap, null without it);
/// `not_compared`: why there is no zswap; `while_moving`, `pages`, `repeat`, `pages_left_out`;
/// `loadavg_before`, `loadavg_after`; the machine.
#[derive(clap::Args, Clone, Debug)]
pub struct FaultArgs {
    /// Measure the kernel's swap in the same run (root; sets it up and removes it)
    #[arg(long, value_enum, value_name = "WHAT")]
    pub against: Option<Against>,
    /// Pages of 4 KiB to push out and touch
    #[arg(long, default_value_t = 32_768,
          value_parser = clap::value_parser!(u32).range(PAGES_MIN as i64..=(1 << 24)))]
    pub pages: u32,
    /// How often each is measured, in turn
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub repeat: u32,
    /// Let demotion go on, unlimited, while pages are touched; without it movement rests, so that
    /// faults and nothing else are measured
    #[arg(long)]
    pub while_moving: bool,
    /// Only tiers whose name contains this
    #[arg(long, value_name = "NAME", default_value = "")]
    pub tier: String,
    /// Write results as JSON to this file
    #[arg(long, value_name = "PATH")]
    pub json: Option<PathBuf>,
    /// Be the program that is measured
    #[arg(long, hide = true, requires = "content")]
    pub child: bool,
    /// What its pages hold
    #[arg(long, hide = true)]
    pub content: Option<PathBuf>,
    /// In which order it touches them
    #[arg(long, hide = true, default_value_t = 1)]
    pub seed: u64,
}

/// Runs the benchmark.
pub fn run(args: FaultArgs) -> Result<()> {
    let pages = usize::try_from(args.pages)?;
    if let (true, Some(content)) = (args.child, &args.content) {
        return child::run(content, pages, args.seed);
    }
    let tiers: Vec<TierSpec> =
        tiers_of_presets().into_iter().filter(|t| t.name.contains(&args.tier)).collect();
    ensure!(!tiers.is_empty(), "--tier {:?} is in the name of no tier", args.tier);
    catch_interrupts();
    let loadavg_before = loadavg();
    let mut progress = Progress::new();
    progress.line("collecting pages from the files of this machine");
    let folder = TempDir::new("fault")?;
    let content = folder.path().join("content");
    let left_out = write_content(&content)?;
    let source = PageSource::from_file(&content)?;

    let (swap, not_compared) = set_up(args.against, pages, &mut progress);
    let mut kernel = swap.is_some().then(|| Row::kernel(&format!("zswap+{ZSWAP_COMPRESSOR}")));
    let mut rows: Vec<Row> = tiers.iter().map(Row::tier).collect();
    let subject = Subject {
        exe: std::env::current_exe().context("cannot find this program itself")?,
        folder: folder.path().to_path_buf(),
        content,
        pages,
        while_moving: args.while_moving,
    };
    for n in 1..=args.repeat {
        if let Some(row) = &mut kernel {
            row.add(zswap(&source, pages, u64::from(n))?);
        }
        for (row, tier) in rows.iter_mut().zip(&tiers) {
            progress.update(|| format!("[{n}/{}] {}", args.repeat, tier.name));
            let measured = subject.measure(tier, u64::from(n));
            // The child got the Ctrl-C as well; that it ended is not what went wrong.
            ensure!(!interrupted(), "interrupted");
            let measured =
                measured.with_context(|| format!("the tier {} cannot be measured", tier.name))?;
            check(&tier.name, &measured, args.while_moving, &mut progress)?;
            row.add(measured);
        }
    }
    if let Some(swap) = swap {
        swap.remove()?;
    }
    let mut report = Report::new(rows, kernel, not_compared);
    report.pages = pages;
    report.repeat = args.repeat;
    report.while_moving = args.while_moving;
    report.pages_left_out = left_out;
    report.loadavg_before = loadavg_before;
    if let Some(path) = &args.json {
        let json = serde_json::to_string_pretty(&report)? + "\n";
        fs::write(path, json).with_context(|| format!("cannot write {}", path.display()))?;
    }
    print!("{}", report.table());
    Ok(())
}

/// Each tier of the presets once, in their order.
fn tiers_of_presets() -> Vec<TierSpec> {
    let mut tiers: Vec<TierSpec> = Vec::new();
    for tier in Preset::ALL.iter().flat_map(|p| p.tiers()) {
        if !tiers.iter().any(|t| t.name == tier.name) {
            tiers.push(tier);
        }
    }
    tiers
}

/// zswap, or why there is none to compare with.
fn set_up(
    against: Option<Against>,
    pages: usize,
    progress: &mut Progress,
) -> (Option<KernelSwap>, Option<String>) {
    if against.is_none() {
        return (None, Some("not asked for; --against zswap compares".into()));
    }
    match KernelSwap::set_up(&SwapSpec::for_pages(pages, ZSWAP_COMPRESSOR)) {
        Ok(swap) => (Some(swap), None),
        Err(e) => {
            let why = format!("{e:#}");
            progress.line(&format!("terrace: Terrace is measured alone: {why}"));
            (None, Some(why))
        }
    }
}

/// One repetition of zswap, which must be set up.
fn zswap(source: &PageSource, pages: usize, seed: u64) -> Result<Measured> {
    let spec = ProbeSpec { pages, seed, ..ProbeSpec::default() };
    let figures =
        fault_probe(&spec, source, Mapping::page_out).context("zswap cannot be measured")?;
    ensure!(figures.wrong_pages == 0, "zswap gave back {} wrong pages", figures.wrong_pages);
    Ok(Measured { figures, faults_in_timeline: None })
}

/// Wrong bytes are the end of it; a count that differs is worth a warning.
fn check(name: &str, measured: &Measured, moving: bool, progress: &mut Progress) -> Result<()> {
    let ProbeFigures { wrong_pages, faults, .. } = measured.figures;
    if wrong_pages > 0 {
        bail!("{name} gave back {wrong_pages} pages with other bytes");
    }
    let counted = measured.faults_in_timeline.unwrap_or(0);
    // While pages move, some are met on their way, and the program's own memory takes part.
    let differ = (counted as f64 - faults as f64).abs() > faults as f64 * COUNT_TOLERANCE;
    if differ && !moving {
        progress.line(&format!(
            "terrace: {name}: {faults} touches found no page in memory, the runtime counted \
             {counted} faults from the tier; do not trust this repetition"
        ));
    }
    Ok(())
}

/// Writes the pages to measure with: those of the machine that every codec makes small enough for
/// a tier. Returns the share that was left out.
fn write_content(path: &Path) -> Result<f64> {
    let all = PageSource::from_machine()?;
    let list: Vec<(Codec, i32)> = Codec::ALL.iter().map(|c| (*c, c.default_level())).collect();
    let mut codecs =
        EncoderSet::new(&list).map_err(|e| anyhow::anyhow!("no memory for codecs: {e:?}"))?;
    let (mut page, mut encoded): (Page, Page) = ([0; PAGE_SIZE], [0; PAGE_SIZE]);
    let mut bytes = Vec::new();
    for n in 0..all.pages() {
        all.fill(n, &mut page);
        let mut fits = |i| {
            let encoder = codecs.get(i)?;
            encoder.encode(&page, &mut encoded[..CUTOFF_BYTES])
        };
        if (0..list.len()).all(|i| fits(i).is_some()) {
            bytes.extend_from_slice(&page);
        }
    }
    let kept = bytes.len() / PAGE_SIZE;
    ensure!(kept > 0, "no page of this machine's files is compressible");
    fs::write(path, bytes).with_context(|| format!("cannot write {}", path.display()))?;
    Ok(1.0 - kept as f64 / all.pages() as f64)
}

/// Longest that anything but the touching itself may take.
const PATIENCE: Duration = Duration::from_secs(120);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiers_of_both_presets_are_there_once() {
        let names: Vec<String> = tiers_of_presets().into_iter().map(|t| t.name).collect();
        assert_eq!(names[0], "zbud+lz4+dram", "the first tier is what the promise is about");
        assert_eq!(names.len(), 7);
        for preset in Preset::ALL {
            assert!(preset.tiers().iter().all(|t| names.contains(&t.name)));
        }
    }

    #[test]
    fn content_is_what_every_tier_takes() {
        let folder = TempDir::new("fault-test").unwrap();
        let path = folder.path().join("content");
        let left_out = write_content(&path).unwrap();
        assert!((0.0..0.9).contains(&left_out), "{left_out}");
        let source = PageSource::from_file(&path).unwrap();
        assert_eq!(source.pages() * PAGE_SIZE, fs::metadata(&path).unwrap().len() as usize);
        let (mut first, mut again) = ([0u8; PAGE_SIZE], [0u8; PAGE_SIZE]);
        source.fill(1, &mut first);
        source.fill(1 + source.pages(), &mut again);
        assert_ne!(first[..8], again[..8]);
        assert_eq!(first[8..], again[8..]);
    }
}
