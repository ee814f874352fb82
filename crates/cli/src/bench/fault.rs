//! `terrace bench fault`: what a page costs that comes back from each tier, beside the kernel's
//! own compressed memory.
//!
//! Every subject - zswap, zram and each tier by itself - gets the same pages, the same touching
//! loop ([`fault_probe`]) and the same random order, one after the other in an order drawn for each
//! repetition, and all of it again, so that drift of the machine meets all of them alike. What is
//! reported of the repetitions is the median.
//!
//! Pages that some tier would refuse are left out beforehand: Terrace would keep them in memory
//! and the kernel would store them as they are, and neither would be a fault from that tier.

use std::path::PathBuf;

use anyhow::{bail, ensure, Context, Result};

use super::ground::{write_json, Ground};
use super::kernel_swap::{
    fault_probe, interrupted, shuffled, Alone, Bare, KernelSwap, KernelTier, Mapping, PageSource,
    ProbeFigures, ProbeSpec, SwapSpec,
};
use crate::demo::progress::Progress;

mod child;
mod passes;
mod report;
mod subject;

pub use passes::Moving;
use passes::{passes, tiers, Condition, Floor, Subject};
use report::{Pass, Report, Row};
pub(crate) use subject::{Measured, Subject as TierSubject};

/// Enough to lie beyond the caches and for a few samples beyond the 99.9th percentile.
pub(crate) const PAGES_MIN: u32 = 4_096;
/// Share of the faults that may be missing in the runtime's own count, or be too many in it: the
/// program that measures has some memory besides what it measures.
const COUNT_TOLERANCE: f64 = 0.02;

/// What to compare with.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum Against {
    /// The kernel's zswap with lzo and with deflate, over a temporary swap file; needs root
    Zswap,
    /// A zram device with lz4 and one with lzo-rle; needs root
    Zram,
}

impl Against {
    /// What of the kernel's is measured, the most important first.
    pub(super) fn tiers(self) -> Vec<KernelTier> {
        match self {
            Against::Zswap => ["lzo", "deflate"].map(|c| KernelTier::Zswap(c.into())).to_vec(),
            Against::Zram => ["lz4", "lzo-rle"].map(|a| KernelTier::Zram(a.into())).to_vec(),
        }
    }
}

/// Fault latency of every tier, beside the kernel's
///
/// Each tier of the presets `auto` and `tierscape`, and zsmalloc+deflate on DRAM, is measured by
/// itself: a child under `terrace run` fills memory, waits until all of it is in the tier, and
/// touches it in random order. `--against zswap,zram` sets the kernel's swap up for the same loop,
/// readahead off, and removes it afterwards. All take turns in a random order. Where demotion goes
/// on, the kernel's way is a thread that asks for page-out over and over. `bare userfaultfd` is a
/// pager that does nothing but fill in a plain copy: what no tier can be quicker than here. `bare,
/// self-served` is a thread that does so for itself, told by a signal: what no pager can be quicker
/// than, and not to be had for programs that were not written for it.
///
/// JSON (--json): `tiers[]` and `against[]` with `name`, `codec`, `pool`, `medium`, `emulated` (the
/// kernel's have none of these), `p50_ns`, `p99_ns`, `p999_ns` (medians of the repetitions, at
/// rest, first number of threads), `faults`, `faults_in_timeline`, `repetitions[]` (the same, and
/// `max_ns`, `resident_before`); `threads[]` with `threads`, `tiers[]`, `against[]`: the same for
/// each number of threads; `while_moving`: the same with demotion going on; `ratios`, null where
/// one was not measured: `lz4_vs_zswap_lzo_p50`, `.._p99`, both also with `_while_moving` (both
/// sides moving), `lz4_moving_vs_zswap_lzo_resting_p99`, `lz4_vs_zram_lz4_p50`, `.._p99`,
/// `deflate_vs_zswap_deflate_p50`, `.._p99`, `zbud_lz4_vs_zswap_lzo_p50`, `.._p99`,
/// `zbud_lz4_vs_zram_lz4_p50`, `bare_vs_zswap_lzo_p50`, `.._p99`, `bare_vs_zram_lz4_p50`, the same
/// three of `self_served`, `zram_lz4_vs_zswap_lzo_p50`, `.._p99` (`lz4` is zsmalloc+lz4+dram, the
/// first tier; `deflate` is zsmalloc+deflate+dram); `floors[]`: the rows of bare userfaultfd;
/// `not_compared`: what of the kernel's is missing and why; `pages`, `repeat`, `pages_left_out`;
/// `loadavg_before`, `loadavg_after`; the machine.
#[derive(clap::Args, Clone, Debug)]
pub struct FaultArgs {
    /// Measure the kernel's swap in the same run (root; sets it up and removes it)
    #[arg(long, value_enum, value_name = "WHAT", value_delimiter = ',')]
    pub against: Vec<Against>,
    /// Pages of 4 KiB to push out and touch
    #[arg(long, default_value_t = 32_768,
          value_parser = clap::value_parser!(u32).range(PAGES_MIN as i64..=(1 << 24)))]
    pub pages: u32,
    /// How often each is measured, in turn
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub repeat: u32,
    /// Threads that fault at once; several numbers are measured one by one
    #[arg(long, value_delimiter = ',', default_value = "1",
          value_parser = clap::value_parser!(u32).range(1..=256))]
    pub threads: Vec<u32>,
    /// Who is also measured while demotion goes on, unlimited; else movement rests, so that faults
    /// and nothing else are measured
    #[arg(long, value_enum, value_name = "WHO", default_value = "lz4", num_args = 0..=1,
          default_missing_value = "all")]
    pub while_moving: Moving,
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
    let threads: Vec<usize> = args.threads.iter().map(|&t| t as usize).collect();
    if let (true, Some(content)) = (args.child, &args.content) {
        return child::run(content, pages, args.seed, threads.first().copied().unwrap_or(1));
    }
    let mut subjects: Vec<Subject> =
        tiers().into_iter().filter(|t| t.name.contains(&args.tier)).map(Subject::Tier).collect();
    ensure!(!subjects.is_empty(), "--tier {:?} is in the name of no tier", args.tier);
    let mut ground = Ground::prepare("fault")?;
    let source = PageSource::from_file(&ground.content)?;

    let kernel = Kernel::set_up(&args.against, pages, &mut ground.progress);
    subjects.extend(kernel.tiers.iter().cloned().map(Subject::Kernel));
    subjects.extend(Floor::ALL.map(Subject::Bare));
    let plan = passes(&subjects, &threads, args.while_moving);
    let row = |s: &Subject| Row::of(s);
    let mut rows: Vec<Vec<Row>> = plan.iter().map(|(_, s)| s.iter().map(row).collect()).collect();
    let jobs: Vec<(usize, usize)> =
        (0..plan.len()).flat_map(|p| (0..plan[p].1.len()).map(move |s| (p, s))).collect();
    let terrace = subject::Subject {
        exe: ground.exe.clone(),
        folder: ground.folder.path().to_path_buf(),
        content: ground.content.clone(),
        pages,
    };
    for n in 1..=args.repeat {
        let seed = u64::from(n);
        for job in shuffled(jobs.len(), seed) {
            let (p, s) = jobs[job];
            let (condition, subject) = (plan[p].0, &plan[p].1[s]);
            let what = format!("{}, {}", subject.name(), condition.name());
            ground.progress.update(|| format!("[{n}/{}] {what}", args.repeat));
            let measured = match subject {
                Subject::Tier(tier) => terrace.measure(tier, condition, seed),
                Subject::Kernel(tier) => kernel.measure(tier, &source, pages, condition, seed),
                Subject::Bare(floor) => bare(*floor, &source, pages, condition, seed),
            };
            // The child got the Ctrl-C as well; that it ended is not what went wrong.
            ensure!(!interrupted(), "interrupted");
            let measured = measured.with_context(|| format!("{what}: cannot be measured"))?;
            check(&what, &measured, condition.moving, &mut ground.progress)?;
            rows[p][s].add(measured);
        }
    }
    let not_compared = kernel.remove()?;
    let passes = plan.iter().zip(rows).map(|((c, _), rows)| Pass::new(*c, rows)).collect();
    let mut report = Report::new(passes, not_compared);
    report.pages = pages;
    report.repeat = args.repeat;
    report.pages_left_out = ground.left_out;
    report.loadavg_before = ground.loadavg_before;
    write_json(args.json.as_deref(), &report)?;
    print!("{}", report.table());
    Ok(())
}

/// The same pages and the same loop, and nothing is done but to fill them in.
fn bare(
    floor: Floor,
    source: &PageSource,
    pages: usize,
    on: Condition,
    seed: u64,
) -> Result<Measured> {
    let spec = ProbeSpec { pages, seed, threads: on.threads, ..ProbeSpec::default() };
    // Until the last page has been touched.
    let (mut pager, mut alone) = (None, None);
    let figures = fault_probe(&spec, source, |mapping| {
        match floor {
            Floor::Pager => pager = Some(Bare::serve(mapping)?),
            Floor::Alone => alone = Some(Alone::serve(mapping)?),
        }
        Ok(())
    })?;
    Ok(Measured { figures, faults_in_timeline: None })
}

/// The kernel's swap, or why it is not there to compare with.
pub(super) struct Kernel {
    swap: Option<KernelSwap>,
    /// What can be measured.
    pub tiers: Vec<KernelTier>,
    missing: Vec<String>,
}

impl Kernel {
    /// Gets ready for what is asked for and tries each once.
    pub(super) fn set_up(against: &[Against], pages: usize, progress: &mut Progress) -> Kernel {
        let mut kernel = Kernel { swap: None, tiers: Vec::new(), missing: Vec::new() };
        let mut tiers: Vec<KernelTier> = Vec::new();
        for tier in against.iter().flat_map(|a| a.tiers()) {
            if !tiers.contains(&tier) {
                tiers.push(tier);
            }
        }
        if tiers.is_empty() {
            kernel.missing.push("not asked for; --against zswap,zram compares".into());
            return kernel;
        }
        match KernelSwap::prepare(&SwapSpec::for_pages(pages), &tiers) {
            Ok(swap) => {
                for tier in tiers {
                    match swap.with(&tier, || Ok(())) {
                        Ok(()) => kernel.tiers.push(tier),
                        Err(e) => kernel.missing.push(format!("{}: {e:#}", tier.name())),
                    }
                }
                kernel.swap = Some(swap);
            }
            Err(e) => kernel.missing.push(format!("{e:#}")),
        }
        for why in &kernel.missing {
            progress.line(&format!("terrace: not compared: {why}"));
        }
        kernel
    }

    /// Does `work` while the machine swaps to `tier`.
    pub(super) fn with<T>(&self, tier: &KernelTier, work: impl FnOnce() -> Result<T>) -> Result<T> {
        self.swap.as_ref().context("the kernel's swap is not set up")?.with(tier, work)
    }

    fn measure(
        &self,
        tier: &KernelTier,
        source: &PageSource,
        pages: usize,
        on: Condition,
        seed: u64,
    ) -> Result<Measured> {
        let spec = ProbeSpec {
            pages,
            seed,
            pin: true,
            threads: on.threads,
            page_out_meanwhile: on.moving,
        };
        let probe = || Ok(fault_probe(&spec, source, Mapping::page_out)?);
        Ok(Measured { figures: self.with(tier, probe)?, faults_in_timeline: None })
    }

    /// Puts everything back. Returns why something was not compared.
    pub(super) fn remove(self) -> Result<Option<String>> {
        if let Some(swap) = self.swap {
            swap.remove()?;
        }
        Ok((!self.missing.is_empty()).then(|| self.missing.join("; ")))
    }
}

/// Wrong bytes are the end of it; a count that differs is worth a warning.
fn check(what: &str, measured: &Measured, moving: bool, progress: &mut Progress) -> Result<()> {
    let ProbeFigures { wrong_pages, faults, .. } = measured.figures;
    if wrong_pages > 0 {
        bail!("{what}: {wrong_pages} pages came back with other bytes");
    }
    let Some(counted) = measured.faults_in_timeline else { return Ok(()) };
    // While pages move, some are met on their way, and the program's own memory takes part.
    let differ = (counted as f64 - faults as f64).abs() > faults as f64 * COUNT_TOLERANCE;
    if differ && !moving {
        progress.line(&format!(
            "terrace: {what}: {faults} touches found no page in memory, the runtime counted \
             {counted} faults from the tier; do not trust this repetition"
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: FaultArgs,
    }

    fn parse(line: &str) -> FaultArgs {
        Line::try_parse_from(std::iter::once("t").chain(line.split_whitespace())).unwrap().args
    }

    #[test]
    fn lists_are_read() {
        let args = parse("--against zswap,zram --threads 1,2,8");
        assert_eq!(args.against, [Against::Zswap, Against::Zram]);
        assert_eq!((args.threads, args.while_moving), (vec![1, 2, 8], Moving::Lz4));
        let args = parse("--while-moving --pages 4096");
        assert_eq!((args.threads, args.while_moving), (vec![1], Moving::All));
        assert!(args.against.is_empty());
        assert!(Line::try_parse_from(["t", "--threads", "0"]).is_err());
        assert!(Line::try_parse_from(["t", "--against", "disk"]).is_err());
    }

    #[test]
    fn nothing_of_the_kernel_is_touched_unless_asked_for() {
        let kernel = Kernel::set_up(&[], 1, &mut Progress::new());
        assert!(kernel.tiers.is_empty() && kernel.swap.is_none());
        assert!(kernel.remove().unwrap().unwrap().starts_with("not asked for"));
    }
}
