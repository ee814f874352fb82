//! The kernel's own compressed swap, set up for a comparison and put back afterwards.
//!
//! "Faster than zswap" is only worth saying when both were measured on the same machine, on the
//! same pages, by the same loop. This module turns zswap on over a temporary swap file, measures
//! with [`probe::fault_probe`] and undoes what it did: when the [`KernelSwap`] is dropped, and from
//! the panic hook, because release builds abort on a panic without dropping anything. SIGINT,
//! SIGTERM and SIGHUP only raise a flag that the loops look at, so that a Ctrl-C takes the
//! ordinary way out. SIGKILL cannot be caught: what was set up is said on stderr, so that it can
//! be undone by hand.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use anyhow::{bail, Context, Result};
use serde::Serialize;

use crate::preflight::uffd_probe::effective_ids;

mod pages;
mod probe;
mod sys;
mod undo;

pub use pages::PageSource;
pub use probe::{fault_probe, wait_until_out, ProbeFigures, ProbeSpec};
pub use sys::{catch_interrupts, interrupted, Mapping};
use undo::{Step, Undo};

const PAGE_BYTES: usize = 4096;
const ZSWAP: &str = "sys/module/zswap/parameters";
const PAGE_CLUSTER: &str = "proc/sys/vm/page-cluster";

/// Share of memory that zswap may fill. Above its default of 20 % so that a large probe is not
/// written through to the swap file, which would measure the disk.
const MAX_POOL_PERCENT: &str = "50";

/// How the kernel's swap is to be set up.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SwapSpec {
    /// Where the swap file goes: a directory on a filesystem that is not memory.
    pub dir: PathBuf,
    /// Size of the swap file.
    pub swap_bytes: u64,
    /// zswap's compressor, such as `lzo`.
    pub compressor: String,
}

impl SwapSpec {
    /// zswap with `compressor` over a file in `/var/tmp` with room for `pages` pages.
    pub fn for_pages(pages: usize, compressor: &str) -> SwapSpec {
        SwapSpec {
            dir: "/var/tmp".into(),
            // Half as much again: swap slots are handed out in clusters.
            swap_bytes: (pages + pages / 2 + 4096) as u64 * PAGE_BYTES as u64,
            compressor: compressor.into(),
        }
    }
}

/// What zswap does to a page, in nanoseconds.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct KernelSwapFigures {
    /// The compressor that was measured.
    pub compressor: String,
    /// Faults measured.
    pub faults: usize,
    /// Fault latency, median.
    pub fault_p50_ns: u64,
    /// Fault latency, 99th percentile.
    pub fault_p99_ns: u64,
    /// Fault latency, 99.9th percentile.
    pub fault_p999_ns: u64,
    /// Time to page out, per page.
    pub pageout_ns_per_page: f64,
}

/// zswap over a temporary swap file, for as long as this value lives.
pub struct KernelSwap {
    undo: Undo,
}

impl KernelSwap {
    /// Turns zswap on. Refuses, and changes nothing, when that could disturb a machine that uses
    /// swap itself.
    pub fn set_up(spec: &SwapSpec) -> Result<KernelSwap> {
        KernelSwap::set_up_under(Path::new("/"), spec)
    }

    /// [`KernelSwap::set_up`] with `/proc` and `/sys` under `root`.
    fn set_up_under(root: &Path, spec: &SwapSpec) -> Result<KernelSwap> {
        check(root, spec)?;
        sys::catch_interrupts();
        // From here on every step that is taken is recorded first; an early return drops `swap`
        // and with it takes back what was done until then.
        let swap = KernelSwap { undo: Undo::begin() };
        let file = spec.dir.join(format!("terrace-bench-{}.swap", std::process::id()));
        eprintln!(
            "terrace: setting up zswap ({}) over {} for the comparison; it is removed afterwards \
             (by hand: swapoff {} && rm {})",
            spec.compressor,
            file.display(),
            file.display(),
            file.display()
        );
        swap.undo.push(Step::Remove(file.clone()));
        write_swap_file(&file, spec.swap_bytes)
            .with_context(|| format!("{} cannot be written; free some space", file.display()))?;
        swap.set(root.join(PAGE_CLUSTER), "0")?;
        for (name, value) in [
            ("compressor", spec.compressor.as_str()),
            ("max_pool_percent", MAX_POOL_PERCENT),
            ("shrinker_enabled", "N"),
            ("enabled", "Y"),
        ] {
            let path = root.join(ZSWAP).join(name);
            // The shrinker came with 6.8; without it there is nothing to switch off.
            if name != "shrinker_enabled" || path.exists() {
                swap.set(path, value)?;
            }
        }
        sys::swap_on(&file).with_context(|| {
            format!("swapon {} was refused; try another filesystem", file.display())
        })?;
        swap.undo.push(Step::SwapOff(file));
        Ok(swap)
    }

    /// Writes a setting of the kernel and remembers the old value.
    fn set(&self, path: PathBuf, value: &str) -> Result<()> {
        let old = fs::read_to_string(&path)
            .with_context(|| format!("{} cannot be read", path.display()))?;
        self.undo.push(Step::Write(path.clone(), old.trim().to_owned()));
        fs::write(&path, value).with_context(|| {
            format!("{} does not take {value:?}; is it built into this kernel?", path.display())
        })
    }

    /// Puts everything back and says what could not be.
    pub fn remove(self) -> Result<()> {
        let failures = self.undo.run();
        if failures.is_empty() {
            Ok(())
        } else {
            bail!("not put back: {}; see the command above", failures.join(", "))
        }
    }
}

impl Drop for KernelSwap {
    fn drop(&mut self) {
        for failure in self.undo.run() {
            eprintln!("terrace: not put back: {failure}");
        }
    }
}

/// Everything that can be known to go wrong before anything is changed.
fn check(root: &Path, spec: &SwapSpec) -> Result<()> {
    if effective_ids().0 != 0 {
        bail!("the comparison with zswap needs root; run it with sudo");
    }
    if !root.join(ZSWAP).join("enabled").exists() {
        bail!("this kernel has no zswap (CONFIG_ZSWAP); the comparison is left out");
    }
    let swaps = fs::read_to_string(root.join("proc/swaps")).unwrap_or_default();
    if let Some(line) = swaps.lines().nth(1) {
        let device = line.split_whitespace().next().unwrap_or("a device");
        bail!("swap is in use ({device}) and would be measured, too; run swapoff -a first");
    }
    if !spec.dir.is_dir() {
        bail!("{} is not a directory; name one for the swap file", spec.dir.display());
    }
    if sys::is_memory_filesystem(&spec.dir)? {
        bail!("{} is in memory; name a directory on a disk for the swap file", spec.dir.display());
    }
    Ok(())
}

/// A file of real blocks with a swap header: `mkswap`. Written out, not only allocated: not every
/// filesystem lets swapon use blocks that were never written.
fn write_swap_file(path: &Path, bytes: u64) -> Result<()> {
    const CHUNK_BYTES: usize = 1 << 20;
    let pages = bytes / PAGE_BYTES as u64;
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    let zeros = vec![0u8; CHUNK_BYTES];
    let mut left = usize::try_from(pages)? * PAGE_BYTES;
    let mut writer: &File = &file;
    while left > 0 {
        if interrupted() {
            bail!("interrupted");
        }
        let now = left.min(CHUNK_BYTES);
        writer.write_all(&zeros[..now])?;
        left -= now;
    }
    file.write_all_at(&swap_header(u32::try_from(pages)?), 0)?;
    file.sync_all()?;
    Ok(())
}

/// `union swap_header` of the kernel: version, last page and number of bad pages at 1024, the
/// signature at the end of the page.
fn swap_header(pages: u32) -> [u8; PAGE_BYTES] {
    let mut page = [0u8; PAGE_BYTES];
    page[1024..1028].copy_from_slice(&1u32.to_ne_bytes());
    page[1028..1032].copy_from_slice(&(pages - 1).to_ne_bytes());
    page[PAGE_BYTES - 10..].copy_from_slice(b"SWAPSPACE2");
    page
}

/// Pages `n` pages out to zswap and reads them back. Needs root and a machine that does not swap;
/// takes about 30 us a page and leaves the machine as it was.
pub fn measure_zswap(pages: &PageSource, n: usize, spec: &SwapSpec) -> Result<KernelSwapFigures> {
    let swap = KernelSwap::set_up(spec)?;
    let probe = ProbeSpec { pages: n, ..ProbeSpec::default() };
    let figures = fault_probe(&probe, pages, Mapping::page_out)?;
    swap.remove()?;
    if figures.wrong_pages > 0 {
        bail!("zswap gave back {} pages with other bytes", figures.wrong_pages);
    }
    Ok(KernelSwapFigures {
        compressor: spec.compressor.clone(),
        faults: figures.faults,
        fault_p50_ns: figures.fault_ns_p50,
        fault_p99_ns: figures.fault_ns_p99,
        fault_p999_ns: figures.fault_ns_p999,
        pageout_ns_per_page: figures.pageout_ns_per_page,
    })
}

#[cfg(test)]
mod tests;
