//! Another process's pages: which of them are in swap, and the request to page some of them out.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::FileExt;

/// Bytes of a page.
pub(super) const PAGE_BYTES: u64 = 4096;
/// Pages of a region.
pub(super) const REGION_PAGES: usize = 512;
/// Most ranges that one call takes (`IOV_MAX`).
const RANGES_MAX: usize = 1024;

/// A set of the 512 pages of a region.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Pages([u64; REGION_PAGES / 64]);

impl Pages {
    pub(super) fn has(&self, page: usize) -> bool {
        self.0[page / 64] >> (page % 64) & 1 == 1
    }

    pub(super) fn insert(&mut self, page: usize) {
        self.0[page / 64] |= 1 << (page % 64);
    }

    /// How many there are.
    pub(super) fn len(&self) -> u16 {
        self.0.iter().map(|word| word.count_ones() as u16).sum()
    }

    /// Those that are in both.
    pub(super) fn and(&self, other: &Pages) -> Pages {
        Pages(std::array::from_fn(|i| self.0[i] & other.0[i]))
    }

    /// Those that are in either.
    pub(super) fn or(&self, other: &Pages) -> Pages {
        Pages(std::array::from_fn(|i| self.0[i] | other.0[i]))
    }

    /// The pages in order.
    pub(super) fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        (0..REGION_PAGES).filter(|&page| self.has(page))
    }

    /// As runs of neighbours.
    pub(super) fn runs(&self) -> Vec<Range<usize>> {
        let mut runs: Vec<Range<usize>> = Vec::new();
        for page in self.iter() {
            match runs.last_mut() {
                Some(last) if last.end == page => last.end += 1,
                _ => runs.push(page..page + 1),
            }
        }
        runs
    }
}

/// Where the pages of one region are.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Whereabouts {
    /// In memory.
    pub(super) present: Pages,
    /// In swap, which zswap stands before.
    pub(super) swapped: Pages,
}

impl Whereabouts {
    /// From 512 entries of a pagemap: bits 63 and 62 are "present" and "swapped".
    fn from_entries(raw: &[u8; REGION_PAGES * 8]) -> Whereabouts {
        let mut of = Whereabouts::default();
        for (page, entry) in raw.chunks_exact(8).enumerate() {
            match entry[7] >> 6 {
                0 => {}
                1 => of.swapped.insert(page),
                _ => of.present.insert(page),
            }
        }
        of
    }
}

/// A process whose pages are looked at and sent out.
pub(super) struct Target {
    pidfd: OwnedFd,
    pagemap: File,
}

impl Target {
    /// Opens the process. Needs the right to trace it, and `CAP_SYS_NICE` to page it out.
    pub(super) fn open(pid: u32) -> io::Result<Target> {
        let pagemap = File::open(format!("/proc/{pid}/pagemap"))?;
        // SAFETY: takes two integers and returns a descriptor that nobody else has, or -1.
        let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid as libc::pid_t, 0) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor was just made, and is owned from here on.
        Ok(Target { pidfd: unsafe { OwnedFd::from_raw_fd(fd as i32) }, pagemap })
    }

    /// Where the pages of the region at `base` are.
    pub(super) fn whereabouts(&self, base: u64) -> io::Result<Whereabouts> {
        let mut raw = [0u8; REGION_PAGES * 8];
        self.pagemap.read_exact_at(&mut raw, base / PAGE_BYTES * 8)?;
        Ok(Whereabouts::from_entries(&raw))
    }

    /// Asks the kernel to page these pages out. What is shared, locked or just in use stays, which
    /// is no error.
    pub(super) fn page_out(&self, base: u64, pages: &Pages) -> io::Result<()> {
        let runs = pages.runs();
        let ranges: Vec<libc::iovec> = runs
            .iter()
            .map(|run| libc::iovec {
                iov_base: (base + run.start as u64 * PAGE_BYTES) as *mut libc::c_void,
                iov_len: run.len() * PAGE_BYTES as usize,
            })
            .collect();
        let mut outcome = Ok(());
        for some in ranges.chunks(RANGES_MAX) {
            // SAFETY: the vector is ours and as long as it says. The addresses are those of the
            // other process, and the advice changes no byte of it.
            let done = unsafe {
                libc::syscall(
                    libc::SYS_process_madvise,
                    self.pidfd.as_raw_fd(),
                    some.as_ptr(),
                    some.len(),
                    libc::MADV_PAGEOUT,
                    0,
                )
            };
            if done < 0 {
                outcome = Err(io::Error::last_os_error());
            }
        }
        outcome
    }
}

/// Makes the calling thread stand back for others as Terrace's own movers do.
pub(super) fn stand_back() {
    const NICE: libc::c_int = 5;
    // SAFETY: takes integers; 0 means the calling thread.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, NICE) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_neighbours() {
        let mut pages = Pages::default();
        for page in [0, 1, 2, 63, 64, 511] {
            pages.insert(page);
        }
        assert_eq!(pages.runs(), [0..3, 63..65, 511..512]);
        assert_eq!((pages.len(), pages.iter().count()), (6, 6));
        assert!(Pages::default().runs().is_empty());
    }

    #[test]
    fn the_two_top_bits_say_where_a_page_is() {
        let mut raw = [0u8; REGION_PAGES * 8];
        raw[7] = 0x80;
        raw[15] = 0x40;
        // Soft-dirty and the rest say nothing about that.
        raw[23] = 0x3f;
        let of = Whereabouts::from_entries(&raw);
        assert!(of.present.has(0) && of.swapped.has(1));
        assert_eq!((of.present.len(), of.swapped.len()), (1, 1));
    }
}
