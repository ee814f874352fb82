//! The private anonymous memory of a process, read from outside while it runs.
//!
//! Only pages that `/proc/PID/pagemap` has in memory are read: reading another one would make the
//! kernel fill it, and in a program under Terrace would bring it back from its tier. The process
//! is neither stopped nor written to. It may change a page while it is read; half of an old and
//! half of a new page compress as pages do.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;

use anyhow::{bail, ensure, Context, Result};
use terrace_store::{Page, PAGE_SIZE};

/// In an entry of pagemap: the page is in memory.
const PRESENT: u64 = 1 << 63;
/// In an entry of pagemap: it is of a file or shared.
const FILE_OR_SHARED: u64 = 1 << 61;
/// Entries of pagemap read at once.
const ENTRIES: usize = 8_192;

/// Pages of a process that can be read.
#[derive(Debug)]
pub struct Heap {
    memory: File,
    command: String,
    /// Runs of pages: address of the first, and how many pages come before it in all runs.
    runs: Vec<(u64, u64)>,
    pages: u64,
}

impl Heap {
    /// The private anonymous pages that process `pid` has in memory now.
    pub fn of(pid: u32) -> Result<Heap> {
        let open = |name: &str| File::open(format!("/proc/{pid}/{name}"));
        let explain = |e: io::Error| match e.kind() {
            io::ErrorKind::NotFound => anyhow::anyhow!("there is no process {pid}"),
            io::ErrorKind::PermissionDenied => anyhow::anyhow!(
                "the memory of process {pid} cannot be read by this user ({e}): run as its user, \
                 or as root; kernel.yama.ptrace_scope may forbid it, too"
            ),
            _ if e.raw_os_error() == Some(libc::ESRCH) => anyhow::anyhow!(
                "process {pid} has no memory of its own: it is a thread of the kernel, or has ended"
            ),
            _ => anyhow::anyhow!("the memory of process {pid} cannot be read: {e}"),
        };
        let memory = open("mem").map_err(explain)?;
        let pagemap = open("pagemap").map_err(explain)?;
        let maps = fs::read_to_string(format!("/proc/{pid}/maps")).map_err(explain)?;
        let command = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        let command = command.trim_end().to_owned();
        let mut heap = Heap { memory, command, runs: Vec::new(), pages: 0 };
        for (from, to) in maps.lines().filter_map(anonymous) {
            heap.add(&pagemap, from, to)
                .with_context(|| format!("the pagemap of process {pid} cannot be read"))?;
        }
        ensure!(
            heap.pages > 0,
            "process {pid} ({}) has no private anonymous page in memory",
            heap.command
        );
        let mut page = [0; PAGE_SIZE];
        // Some kernels let the file be opened and refuse to read it.
        if let Err(e) = heap.memory.read_exact_at(&mut page, heap.runs[0].0) {
            match e.kind() {
                io::ErrorKind::PermissionDenied => return Err(explain(e)),
                // The page went away, which pages do; or the process did.
                _ if fs::metadata(format!("/proc/{pid}/mem")).is_ok() => {}
                _ => bail!("process {pid} has ended"),
            }
        }
        Ok(heap)
    }

    /// Adds the pages between two addresses that are in memory.
    fn add(&mut self, pagemap: &File, from: u64, to: u64) -> io::Result<()> {
        let (mut page_n, end) = (from / PAGE_SIZE as u64, to / PAGE_SIZE as u64);
        let mut buf = [0; ENTRIES * 8];
        let mut in_run = false;
        while page_n < end {
            let count = (end - page_n).min(ENTRIES as u64) as usize;
            let bytes = &mut buf[..count * 8];
            let read = pagemap.read_at(bytes, page_n * 8)? / 8;
            if read == 0 {
                break;
            }
            for entry in bytes[..read * 8].chunks_exact(8) {
                let entry = entry.try_into().map_or(0, u64::from_ne_bytes);
                let wanted = entry & (PRESENT | FILE_OR_SHARED) == PRESENT;
                if wanted && !in_run {
                    self.runs.push((page_n * PAGE_SIZE as u64, self.pages));
                }
                self.pages += u64::from(wanted);
                in_run = wanted;
                page_n += 1;
            }
        }
        Ok(())
    }

    /// Name of the program.
    pub fn command(&self) -> &str {
        &self.command
    }

    /// How many pages there are.
    pub fn pages(&self) -> u64 {
        self.pages
    }

    /// Reads page `n` of them. False if it is no longer there.
    pub fn read(&self, n: u64, page: &mut Page) -> bool {
        self.address(n).is_some_and(|at| self.memory.read_exact_at(page, at).is_ok())
    }

    /// Where page `n` of them lies.
    fn address(&self, n: u64) -> Option<u64> {
        let run = self.runs.partition_point(|(_, before)| *before <= n).checked_sub(1)?;
        let (from, before) = self.runs.get(run).filter(|_| n < self.pages)?;
        Some(from + (n - before) * PAGE_SIZE as u64)
    }
}

/// From and to of a line of `/proc/PID/maps`, if it is a private, readable, anonymous mapping.
fn anonymous(line: &str) -> Option<(u64, u64)> {
    let mut fields = line.split_whitespace();
    let (from, to) = fields.next()?.split_once('-')?;
    let flags = fields.next()?.as_bytes();
    let inode = fields.nth(2)?;
    let name = fields.next().unwrap_or("");
    let is_plain = name.is_empty() || name == "[heap]" || name.starts_with("[anon:");
    let wanted = flags.first() == Some(&b'r') && flags.get(3) == Some(&b'p') && inode == "0";
    if !(wanted && is_plain) {
        return None;
    }
    Some((u64::from_str_radix(from, 16).ok()?, u64::from_str_radix(to, 16).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn anonymous_mappings_are_told_from_others() {
        let line = |flags: &str, inode: &str, name: &str| {
            anonymous(&format!("1000-3000 {flags} 00000000 00:00 {inode} {name}"))
        };
        assert_eq!(line("rw-p", "0", ""), Some((0x1000, 0x3000)));
        assert_eq!(line("rw-p", "0", "   [heap]"), Some((0x1000, 0x3000)));
        assert_eq!(line("rw-p", "0", "[anon:glibc: malloc]"), Some((0x1000, 0x3000)));
        assert_eq!(line("rw-s", "0", ""), None, "shared");
        assert_eq!(line("---p", "0", ""), None, "not readable");
        assert_eq!(line("rw-p", "77", "/usr/lib/libc.so.6"), None, "of a file");
        assert_eq!(line("r-xp", "0", "[vdso]"), None);
        assert_eq!(anonymous("nonsense"), None);
    }

    #[test]
    fn our_own_pages_are_found_and_untouched_ones_are_not() {
        // 64 MiB: from 32 on, glibc maps what is asked for and does not touch it.
        const PAGES: usize = 16_384;
        const TOUCHED: usize = 2_048;
        // Pages of a huge one, which could straddle what was touched and what was not.
        const HUGE: usize = 512;
        let mut mine = vec![0u8; PAGES * PAGE_SIZE];
        for n in 0..TOUCHED {
            mine[n * PAGE_SIZE..][..32].fill(0xab);
        }
        let start = std::hint::black_box(&mut mine).as_ptr() as u64;
        let heap = Heap::of(std::process::id()).unwrap();
        let bytes = (PAGES * PAGE_SIZE) as u64;
        let (mut touched, mut untouched) = (0, 0);
        let mut page = [0; PAGE_SIZE];
        for n in 0..heap.pages() {
            let address = heap.address(n).unwrap();
            if !(start..start + bytes).contains(&address) {
                continue;
            }
            assert!(heap.read(n, &mut page));
            match page.windows(32).any(|w| w == [0xab; 32]) {
                true => touched += 1,
                false => untouched += 1,
            }
        }
        // The allocation does not begin at a page.
        assert!((TOUCHED - 2..=TOUCHED + 2).contains(&touched), "{touched}");
        assert!(untouched <= 2 * HUGE, "{untouched}");
        assert!(!heap.read(heap.pages() + (1 << 40), &mut page));
    }

    #[test]
    fn a_process_that_is_not_there_is_named() {
        let error = Heap::of(u32::MAX / 2).unwrap_err().to_string();
        assert_eq!(error, format!("there is no process {}", u32::MAX / 2));
    }
}
