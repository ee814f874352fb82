//! `terrace bench demote`: processor time that it takes to push a page out of DRAM, beside the
//! kernel's page-out to its own compressed memory.
//!
//! The kernel compresses in the context of whoever calls `madvise(MADV_PAGEOUT)`, so its cost is
//! that thread's CPU time over the pages that are really out. Terrace's is the CPU time of the
//! runtime's threads in a child whose pages, with the same content, are taken away by the plan:
//! mover and pager, and what the application's own threads spend meanwhile. The tracker, which
//! finds out what is cold, and the planner are reported apart and are in a second figure; the
//! kernel's counterpart, the aging of its lists, is not in its own figure.
//!
//! All take turns in an order drawn for each repetition.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{ensure, Context, Result};
use terrace_core::tier::{Codec, Pool, TierSpec};

use super::fault::{Against, Kernel};
use super::ground::{write_json, Ground};
use super::kernel_swap::{interrupted, shuffled, thread_cpu_ns, KernelTier, Mapping, PageSource};
use super::launched::{hear, say, terrace_run, toml_of, Running, Window};
use crate::preset;

mod report;
mod tasks;

use report::{Cost, Report, Row};
use tasks::cpu_by_thread;

/// Share of the pages that must have left.
const OUT_SHARE: f64 = 0.98;
/// Long enough for the fill to be over before anything is registered, on most machines.
const WINDOW_S: f64 = 0.5;
/// How often page-out is asked for: the kernel skips pages that have not reached its lists yet.
const ATTEMPTS: usize = 3;
const PAGE_BYTES: usize = 4096;

/// CPU time of a demoted page, beside the kernel's page-out
///
/// The same pages are demoted by Terrace to tiers on DRAM with codecs of three classes (everything
/// that can go goes: analytical, alpha 0) and paged out by the kernel. CPU time is that of the
/// threads that do it.
///
/// JSON (--json): `subjects[]` with `name`, `cpu_ns_per_page` (mover, pager, application's threads;
/// for the kernel the thread that asks), `with_tracker_cpu_ns_per_page` (agent and planner, too),
/// `mover_`, `pager_`, `agent_`, `planner_`, `application_cpu_ns_per_page`, `compression_ratio`
/// (pages over stored bytes), `pool_ratio` (over bytes held), all medians; `repetitions[]`;
/// `cpu_per_page_ratio_vs_zswap_lzo`: of zsmalloc+lz4+dram, and `.._with_tracker`;
/// `lzo_tier_cpu_per_page_ratio_vs_zswap_lzo`: of zsmalloc+lzo+dram;
/// `zbud_lz4_cpu_per_page_ratio_vs_zswap_lzo`; `cpu_per_page_ratio_vs_zram_lz4`; null where one was
/// not measured; `not_compared`, `pages`, `repeat`, `window_s`, `pages_left_out`,
/// `loadavg_before`, `loadavg_after`; the machine.
#[derive(clap::Args, Clone, Debug)]
pub struct DemoteArgs {
    /// Measure the kernel's swap in the same run (root; sets it up and removes it)
    #[arg(long, value_enum, value_name = "WHAT", value_delimiter = ',')]
    pub against: Vec<Against>,
    /// Pages of 4 KiB to push out
    #[arg(long, default_value_t = 65_536,
          value_parser = clap::value_parser!(u32).range(4_096..=(1 << 24)))]
    pub pages: u32,
    /// How often each is measured, in turn
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub repeat: u32,
    /// Write results as JSON to this file
    #[arg(long, value_name = "PATH")]
    pub json: Option<PathBuf>,
    /// Be the program that is measured
    #[arg(long, hide = true, requires = "content")]
    pub child: bool,
    /// What its pages hold
    #[arg(long, hide = true)]
    pub content: Option<PathBuf>,
}

enum Subject {
    Tier(TierSpec),
    Kernel(KernelTier),
}

/// Runs the benchmark.
pub fn run(args: DemoteArgs) -> Result<()> {
    let pages = usize::try_from(args.pages)?;
    if let (true, Some(content)) = (args.child, &args.content) {
        return child(content, pages);
    }
    let mut ground = Ground::prepare("demote")?;
    let source = PageSource::from_file(&ground.content)?;
    let kernel = Kernel::set_up(&args.against, pages, &mut ground.progress);
    let (subjects, mut rows): (Vec<Subject>, Vec<Row>) = tiers()
        .into_iter()
        .map(Subject::Tier)
        .chain(kernel.tiers.iter().filter(|k| lzo_class(k)).cloned().map(Subject::Kernel))
        .map(|s| {
            let row = match &s {
                Subject::Tier(tier) => Row::new(&tier.name, false),
                Subject::Kernel(tier) => Row::new(&tier.name(), true),
            };
            (s, row)
        })
        .unzip();
    let folder = ground.folder.path();
    for n in 1..=args.repeat {
        for i in shuffled(subjects.len(), u64::from(n)) {
            let name = rows[i].name.clone();
            ground.progress.update(|| format!("[{n}/{}] {name}", args.repeat));
            let cost = match &subjects[i] {
                Subject::Tier(tier) => {
                    let timeline = folder.join(format!("{name}-{n}.timeline"));
                    by_terrace(&ground.exe, folder, tier, &ground.content, &timeline, pages)
                }
                Subject::Kernel(tier) => kernel.with(tier, || by_kernel(tier, &source, pages)),
            };
            ensure!(!interrupted(), "interrupted");
            rows[i].add(cost.with_context(|| format!("{name} cannot be measured"))?);
        }
    }
    let not_compared = kernel.remove()?;
    let mut report = Report::new(rows, not_compared);
    report.pages = pages;
    report.repeat = args.repeat;
    report.window_s = WINDOW_S;
    report.pages_left_out = ground.left_out;
    report.loadavg_before = ground.loadavg_before;
    write_json(args.json.as_deref(), &report)?;
    print!("{}", report.table());
    Ok(())
}

/// The tiers that are as quick and as dense as the kernel's lzo, the presets' first, and those of
/// denser codecs.
fn tiers() -> Vec<TierSpec> {
    let dram = preset::dram(preset::DRAM_USD_PER_GIB_MONTH);
    [
        (Pool::Zsmalloc, Codec::Lz4),
        (Pool::Zsmalloc, Codec::Lzo),
        (Pool::Zbud, Codec::Lz4),
        (Pool::Zsmalloc, Codec::Zstd),
        (Pool::Zsmalloc, Codec::Deflate),
    ]
    .map(|(pool, codec)| TierSpec::new(pool, codec, dram.clone()))
    .to_vec()
}

/// Deflate is another class and takes long.
fn lzo_class(tier: &KernelTier) -> bool {
    !matches!(tier, KernelTier::Zswap(compressor) if compressor == "deflate")
}

/// Fills memory and pages it out, which must go to `tier`.
fn by_kernel(tier: &KernelTier, source: &PageSource, pages: usize) -> Result<Cost> {
    let mut mapping = Mapping::new(pages)?;
    for n in 0..pages {
        source.fill(n, mapping.page_mut(n));
        ensure!(n % 256 != 0 || !interrupted(), "interrupted");
    }
    let stored_before = stored_by_kernel(tier);
    let mut cpu_ns = 0;
    for _ in 0..ATTEMPTS {
        let before = thread_cpu_ns();
        mapping.page_out_part(0..pages)?;
        cpu_ns += thread_cpu_ns() - before;
        if mapping.resident_pages()? == 0 {
            break;
        }
    }
    let out = pages - mapping.resident_pages()?;
    ensure!(out as f64 >= pages as f64 * OUT_SHARE, "only {out} of {pages} pages went out");
    let (stored, held) = stored_by_kernel(tier);
    let mut expected = [0u8; PAGE_BYTES];
    for n in (0..pages).step_by(64) {
        source.fill(n, &mut expected);
        ensure!(mapping.page(n) == expected, "page {n} came back with other bytes");
    }
    Ok(Cost {
        pages: out as u64,
        application_ns: cpu_ns,
        stored_bytes: stored.saturating_sub(stored_before.0),
        pool_bytes: held.saturating_sub(stored_before.1),
        ..Cost::default()
    })
}

/// Compressed bytes in the kernel's tier, and bytes it holds for them; 0 where it does not say.
fn stored_by_kernel(tier: &KernelTier) -> (u64, u64) {
    match tier {
        // zswap counts the pages of its pools.
        KernelTier::Zswap(_) => {
            let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
            let line = text.lines().find_map(|l| l.strip_prefix("Zswap:"));
            let kib = line.and_then(|l| l.split_whitespace().next()?.parse::<u64>().ok());
            (0, kib.unwrap_or(0) << 10)
        }
        KernelTier::Zram(_) => {
            let swaps = fs::read_to_string("/proc/swaps").unwrap_or_default();
            let device = swaps.lines().nth(1).and_then(|l| l.split_whitespace().next());
            let name = device.and_then(|d| d.rsplit('/').next()).unwrap_or_default();
            let stat = fs::read_to_string(format!("/sys/block/{name}/mm_stat")).unwrap_or_default();
            let mut fields = stat.split_whitespace().skip(1).map_while(|f| f.parse().ok());
            (fields.next().unwrap_or(0), fields.next().unwrap_or(0))
        }
    }
}

/// Lets Terrace demote a child's pages.
fn by_terrace(
    exe: &Path,
    folder: &Path,
    tier: &TierSpec,
    content: &Path,
    timeline: &Path,
    pages: usize,
) -> Result<Cost> {
    let config = folder.join("tier.toml");
    fs::write(&config, toml_of(tier, true)).context("cannot write the configuration")?;
    let mut command = terrace_run(exe, WINDOW_S, &config, timeline);
    command.arg("--").arg(exe).args(["bench", "demote", "--child", "--content"]);
    command.arg(content).args(["--pages", &pages.to_string()]);
    let mut run = Running::start(command)?;
    let pid: u32 = run.line()?.parse().context("the child does not speak our language")?;
    // Before the fill, since pages may leave while it goes on; the application's own threads from
    // its end on, since filling is their work.
    let (start, planner_start) = (cpu_by_thread(pid), cpu_by_thread(run.pid()));
    run.go_on()?;
    ensure!(run.line()? == "filled", "the child does not speak our language");
    let filled = cpu_by_thread(pid);
    let wanted = (pages as f64 * OUT_SHARE) as u64;
    let arrived = |w: &[Window]| {
        let [.., before, last] = w else { return false };
        last.tier().pages >= wanted && before.tier().pages == last.tier().pages
    };
    let windows = run.wait_for(timeline, pid, &arrived)?;
    let (end, planner_end) = (cpu_by_thread(pid), cpu_by_thread(run.pid()));
    run.go_on()?;
    let verdict = run.line()?;
    ensure!(verdict == "ok", "{verdict}");
    run.end()?;
    let last = windows.last().map(Window::tier).unwrap_or_default();
    Ok(Cost {
        pages: last.pages,
        mover_ns: end.of("terrace-mover") - start.of("terrace-mover"),
        pager_ns: end.of("terrace-pager") - start.of("terrace-pager"),
        agent_ns: end.of("terrace-agent") - start.of("terrace-agent"),
        planner_ns: planner_end.total().saturating_sub(planner_start.total()),
        application_ns: end.of_others("terrace-") - filled.of_others("terrace-"),
        stored_bytes: last.stored_bytes,
        pool_bytes: last.pool_bytes,
    })
}

/// The program whose pages leave.
fn child(content: &Path, pages: usize) -> Result<()> {
    let source = PageSource::from_file(content)?;
    let mut mapping = Mapping::new(pages)?;
    say(&std::process::id().to_string())?;
    hear()?;
    for n in 0..pages {
        source.fill(n, mapping.page_mut(n));
    }
    say("filled")?;
    hear()?;
    let mut expected = [0u8; PAGE_BYTES];
    let wrong = (0..pages).step_by(64).filter(|&n| {
        source.fill(n, &mut expected);
        mapping.page(n) != expected
    });
    match wrong.count() {
        0 => say("ok")?,
        n => say(&format!("{n} pages came back with other bytes"))?,
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tier_of_the_ratio_comes_first_and_the_kernels_deflate_is_left_out() {
        let names: Vec<String> = tiers().into_iter().map(|t| t.name).collect();
        assert_eq!(names[..3], ["zsmalloc+lz4+dram", "zsmalloc+lzo+dram", "zbud+lz4+dram"]);
        let kernel: Vec<KernelTier> =
            [Against::Zswap, Against::Zram].iter().flat_map(|a| a.tiers()).collect();
        let kept: Vec<String> =
            kernel.iter().filter(|k| lzo_class(k)).map(KernelTier::name).collect();
        assert_eq!(kept, ["zswap+lzo", "zram+lz4", "zram+lzo-rle"]);
    }
}
