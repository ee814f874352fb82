//! The kernel's own compressed memory, set up for a comparison and put back afterwards.
//!
//! "Faster than zswap" is only worth saying when both were measured on the same machine, on the
//! same pages, by the same loop. This module turns zswap on over a temporary swap file, or adds a
//! zram device of its own and swaps to it, one at a time for as long as it is measured, and undoes
//! what it did: after each measurement, when the [`KernelSwap`] is dropped, and from the panic
//! hook, because release builds abort on a panic without dropping anything. SIGINT, SIGTERM and
//! SIGHUP only raise a flag that the loops look at, so that a Ctrl-C takes the ordinary way out.
//! SIGKILL cannot be caught: what is set up is said on stderr, so that it can be undone by hand.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use anyhow::{bail, ensure, Context, Result};

use crate::preflight::uffd_probe::effective_ids;
use crate::say;

mod bare;
mod pages;
mod probe;
mod sys;
mod undo;

pub use bare::{Alone, Bare};
pub use pages::PageSource;
pub use probe::{fault_probe, shuffled, wait_until_out, ProbeFigures, ProbeSpec};
pub use sys::{catch_interrupts, interrupted, thread_cpu_ns, Mapping};
use undo::{Step, Undo};

const PAGE_BYTES: usize = 4096;
const ZSWAP: &str = "sys/module/zswap/parameters";
const ZRAM_CONTROL: &str = "sys/class/zram-control";
const PAGE_CLUSTER: &str = "proc/sys/vm/page-cluster";

/// Share of memory that zswap may fill. Above its default of 20 % so that a large probe is not
/// written through to the swap file, which would measure the disk.
const MAX_POOL_PERCENT: &str = "50";

/// One kind of compressed memory that the kernel offers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum KernelTier {
    /// zswap with a compressor, such as `lzo`; its pool is zsmalloc.
    Zswap(String),
    /// A zram device with an algorithm, such as `lz4`, as the swap device.
    Zram(String),
}

impl KernelTier {
    /// Name in reports: `zswap+lzo`.
    pub fn name(&self) -> String {
        match self {
            KernelTier::Zswap(compressor) => format!("zswap+{compressor}"),
            KernelTier::Zram(algorithm) => format!("zram+{algorithm}"),
        }
    }
}

/// Where the kernel may swap to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SwapSpec {
    /// Where the swap file goes: a directory on a filesystem that is not memory.
    pub dir: PathBuf,
    /// Size of the swap file or device.
    pub swap_bytes: u64,
}

impl SwapSpec {
    /// A file in `/var/tmp`, or a device, with room for `pages` pages.
    pub fn for_pages(pages: usize) -> SwapSpec {
        SwapSpec {
            dir: "/var/tmp".into(),
            // Half as much again: swap slots are handed out in clusters.
            swap_bytes: (pages + pages / 2 + 4096) as u64 * PAGE_BYTES as u64,
        }
    }
}

/// The right to change the kernel's swap, for as long as this value lives. Nothing swaps but
/// within [`KernelSwap::with`].
pub struct KernelSwap {
    undo: Undo,
    root: PathBuf,
    swap_bytes: u64,
    /// The swap file for zswap, written but not in use.
    file: Option<PathBuf>,
}

impl KernelSwap {
    /// Gets ready for `tiers`: switches readahead off and writes a swap file if one of them is
    /// zswap. Refuses, and changes nothing, when that could disturb a machine that uses swap
    /// itself.
    pub fn prepare(spec: &SwapSpec, tiers: &[KernelTier]) -> Result<KernelSwap> {
        KernelSwap::prepare_under(Path::new("/"), spec, tiers)
    }

    /// [`KernelSwap::prepare`] with `/proc` and `/sys` under `root`.
    fn prepare_under(root: &Path, spec: &SwapSpec, tiers: &[KernelTier]) -> Result<KernelSwap> {
        let needs_file = tiers.iter().any(|t| matches!(t, KernelTier::Zswap(_)));
        check(root, spec)?;
        sys::catch_interrupts();
        // From here on every step that is taken is recorded first; an early return drops `swap`
        // and with it takes back what was done until then.
        let mut swap = KernelSwap {
            undo: Undo::begin(),
            root: root.into(),
            swap_bytes: spec.swap_bytes,
            file: None,
        };
        let names: Vec<String> = tiers.iter().map(KernelTier::name).collect();
        say!(
            "terrace: setting up the kernel's swap ({}) for the comparison, one at a time; all of \
             it is removed afterwards",
            names.join(", ")
        );
        swap.set(root.join(PAGE_CLUSTER), "0")?;
        if needs_file {
            let file = spec.dir.join(format!("terrace-bench-{}.swap", std::process::id()));
            say!("terrace: swap file {} (by hand: swapoff {0} && rm {0})", file.display());
            swap.undo.push(Step::Remove(file.clone()));
            write_swap_file(&file, spec.swap_bytes).with_context(|| {
                format!("{} cannot be written; free some space", file.display())
            })?;
            swap.file = Some(file);
        }
        Ok(swap)
    }

    /// Does `work` while the machine swaps to `tier`, and takes the swap away again.
    pub fn with<T>(&self, tier: &KernelTier, work: impl FnOnce() -> Result<T>) -> Result<T> {
        let mark = self.undo.mark();
        let outcome = match tier {
            KernelTier::Zswap(compressor) => self.zswap(compressor),
            KernelTier::Zram(algorithm) => self.zram(algorithm),
        };
        let outcome = outcome.and_then(|()| work());
        let failures = self.undo.run_to(mark);
        ensure!(failures.is_empty(), "not put back: {}", failures.join(", "));
        outcome
    }

    fn zswap(&self, compressor: &str) -> Result<()> {
        let parameters = self.root.join(ZSWAP);
        ensure!(parameters.join("enabled").exists(), "this kernel has no zswap (CONFIG_ZSWAP)");
        let file = self.file.as_ref().context("there is no swap file")?;
        for (name, value) in [
            ("compressor", compressor),
            ("max_pool_percent", MAX_POOL_PERCENT),
            ("shrinker_enabled", "N"),
            ("enabled", "Y"),
        ] {
            let path = parameters.join(name);
            // The shrinker came with 6.8; without it there is nothing to switch off.
            if name != "shrinker_enabled" || path.exists() {
                self.set(path, value)?;
            }
        }
        self.swap_on(file)
    }

    fn zram(&self, algorithm: &str) -> Result<()> {
        let control = self.root.join(ZRAM_CONTROL);
        ensure!(control.exists(), "this kernel has no zram, or its module is not loaded");
        let enabled = self.root.join(ZSWAP).join("enabled");
        if enabled.exists() {
            // zswap would take the pages before they reach the device.
            self.set(enabled, "N")?;
        }
        // Reading the file adds a device; what is read is its number.
        let id = fs::read_to_string(control.join("hot_add")).context("no zram device was added")?;
        let id: u32 = id.trim().parse().context("the number of the new zram device")?;
        let sys = self.root.join(format!("sys/block/zram{id}"));
        self.undo.push(Step::RemoveZram {
            reset: sys.join("reset"),
            hot_remove: control.join("hot_remove"),
            id,
        });
        for (name, value) in
            [("comp_algorithm", algorithm), ("disksize", &self.swap_bytes.to_string())]
        {
            let path = sys.join(name);
            fs::write(&path, value).with_context(|| {
                format!("{} does not take {value:?}; is it built in?", path.display())
            })?;
        }
        let device = self.root.join(format!("dev/zram{id}"));
        let pages = u32::try_from(self.swap_bytes / PAGE_BYTES as u64)?;
        let file = OpenOptions::new().write(true).open(&device);
        let file = file.with_context(|| format!("cannot open {}", device.display()))?;
        file.write_all_at(&swap_header(pages), 0)?;
        file.sync_all()?;
        drop(file);
        self.swap_on(&device)
    }

    fn swap_on(&self, file: &Path) -> Result<()> {
        sys::swap_on(file).with_context(|| {
            format!("swapon {} was refused; try another filesystem", file.display())
        })?;
        self.undo.push(Step::SwapOff(file.into()));
        Ok(())
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
            say!("terrace: not put back: {failure}");
        }
    }
}

/// Everything that can be known to go wrong before anything is changed.
fn check(root: &Path, spec: &SwapSpec) -> Result<()> {
    if effective_ids().0 != 0 {
        bail!("the comparison with the kernel's swap needs root; run it with sudo");
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

#[cfg(test)]
mod tests;
