//! System calls of the benchmark: swap on and off, one anonymous mapping, one CPU, signals.
#![allow(unsafe_code)]

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use super::PAGE_BYTES;

/// From linux/swap.h: the lower bits are a priority.
const SWAP_FLAG_PREFER: libc::c_int = 0x8000;
/// Before any other swap that might be switched on meanwhile.
const SWAP_PRIORITY: libc::c_int = 0x7fff;

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// Whether SIGINT, SIGTERM or SIGHUP has come since a benchmark began to catch them.
pub fn interrupted() -> bool {
    INTERRUPTED.load(Ordering::Relaxed)
}

/// From now on SIGINT, SIGTERM and SIGHUP raise a flag instead of ending the process, so that what
/// was set up is put back. The third one ends it at once: the loops may be stuck. Not the second,
/// because timeout(1) sends two, one to the process and one to its group.
pub fn catch_interrupts() {
    const PATIENCE: u32 = 3;
    extern "C" fn note(_: libc::c_int) {
        static SIGNALS: AtomicU32 = AtomicU32::new(0);
        INTERRUPTED.store(true, Ordering::Relaxed);
        if SIGNALS.fetch_add(1, Ordering::Relaxed) + 1 >= PATIENCE {
            // SAFETY: ends the process without running anything of it.
            unsafe { libc::_exit(130) };
        }
    }
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        // SAFETY: the handler only counts in atomics or ends the process, which is
        // async-signal-safe; `action` is zeroed, which is a valid sigaction, and outlives the call.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = note as *const () as libc::sighandler_t;
            libc::sigaction(signal, &action, std::ptr::null_mut());
        }
    }
}

fn c_path(path: &Path) -> io::Result<CString> {
    CString::new(path.as_os_str().as_bytes()).map_err(|_| io::ErrorKind::InvalidInput.into())
}

fn check(rc: libc::c_int) -> io::Result<()> {
    if rc == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

pub(super) fn swap_on(path: &Path) -> io::Result<()> {
    let path = c_path(path)?;
    // SAFETY: the path is terminated and outlives the call.
    check(unsafe { libc::swapon(path.as_ptr(), SWAP_FLAG_PREFER | SWAP_PRIORITY) })
}

pub(super) fn swap_off(path: &Path) -> io::Result<()> {
    let path = c_path(path)?;
    loop {
        // SAFETY: the path is terminated and outlives the call.
        match check(unsafe { libc::swapoff(path.as_ptr()) }) {
            // The Ctrl-C that made us leave may also cut the leaving short.
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}

/// Whether files in `dir` live in memory; swapping to them would be swapping to what is short.
pub(super) fn is_memory_filesystem(dir: &Path) -> io::Result<bool> {
    const RAMFS_MAGIC: u64 = 0x8584_58f6;
    let path = c_path(dir)?;
    // SAFETY: zeroes are a valid statfs, which the call fills in; the path is terminated.
    let (rc, fs) = unsafe {
        let mut fs: libc::statfs = std::mem::zeroed();
        (libc::statfs(path.as_ptr(), &mut fs), fs)
    };
    check(rc)?;
    let magic = fs.f_type as u64;
    Ok(magic == libc::TMPFS_MAGIC as u64 || magic == RAMFS_MAGIC)
}

/// CPU time of the calling thread so far, nanoseconds.
pub fn thread_cpu_ns() -> u64 {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel fills `t`; this clock always exists.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut t) };
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

/// Keeps this thread on the CPU where it runs for as long as the value lives: moving between CPUs
/// in the middle of a fault is not what is to be measured.
pub(super) struct Pinned {
    before: libc::cpu_set_t,
}

impl Pinned {
    pub(super) fn here() -> io::Result<Pinned> {
        let size = std::mem::size_of::<libc::cpu_set_t>();
        // SAFETY: zeroes are an empty set; both sets are as long as the size that is passed, and
        // the CPU number comes from the kernel, which CPU_SET checks against the set.
        unsafe {
            let mut before: libc::cpu_set_t = std::mem::zeroed();
            check(libc::sched_getaffinity(0, size, &mut before))?;
            let cpu =
                usize::try_from(libc::sched_getcpu()).map_err(|_| io::Error::last_os_error())?;
            let mut one: libc::cpu_set_t = std::mem::zeroed();
            libc::CPU_SET(cpu, &mut one);
            check(libc::sched_setaffinity(0, size, &one))?;
            Ok(Pinned { before })
        }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        let size = std::mem::size_of::<libc::cpu_set_t>();
        // SAFETY: the set was filled in by the kernel and is as long as the size that is passed.
        unsafe { libc::sched_setaffinity(0, size, &self.before) };
    }
}

/// Private anonymous memory.
pub struct Mapping {
    start: NonNull<u8>,
    pages: usize,
    pagemap: File,
}

// SAFETY: through a shared reference bytes are only read, and advice moves them and changes none
// (`empty` makes zeros of them, which are read as such, or what a pager has for them).
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `pages` pages that are not there yet and are asked to stay small.
    pub fn new(pages: usize) -> io::Result<Mapping> {
        let mapping = Mapping::as_it_comes(pages)?;
        // A kernel without huge pages refuses the advice, and does not need it.
        let _ = mapping.advise(libc::MADV_NOHUGEPAGE);
        Ok(mapping)
    }

    /// Maps `pages` pages that are not there yet, as the system's settings have them.
    pub fn as_it_comes(pages: usize) -> io::Result<Mapping> {
        let pagemap = File::open("/proc/self/pagemap")?;
        let bytes = pages.checked_mul(PAGE_BYTES).ok_or(io::ErrorKind::InvalidInput)?;
        // SAFETY: a new mapping anywhere, which touches no memory that exists.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        let start = match NonNull::new(start.cast::<u8>()) {
            Some(start) if start.as_ptr().cast() != libc::MAP_FAILED => start,
            _ => return Err(io::Error::last_os_error()),
        };
        Ok(Mapping { start, pages, pagemap })
    }

    fn advise(&self, advice: libc::c_int) -> io::Result<()> {
        self.advise_pages(0..self.pages, advice)
    }

    fn advise_pages(&self, pages: Range<usize>, advice: libc::c_int) -> io::Result<()> {
        assert!(pages.start <= pages.end && pages.end <= self.pages);
        // SAFETY: the range lies in this mapping. Of the advice that is given only `empty`'s
        // changes its bytes, and no slice of a page is held over that.
        check(unsafe {
            let start = self.start.as_ptr().add(pages.start * PAGE_BYTES);
            libc::madvise(start.cast(), pages.len() * PAGE_BYTES, advice)
        })
    }

    /// Asks the kernel once to page these pages out.
    pub fn page_out_part(&self, pages: Range<usize>) -> io::Result<()> {
        self.advise_pages(pages, libc::MADV_PAGEOUT)
    }

    /// How many pages it has.
    pub fn pages(&self) -> usize {
        self.pages
    }

    /// Where it starts.
    pub fn address(&self) -> usize {
        self.start.as_ptr() as usize
    }

    /// The bytes of page `n`.
    pub fn page(&self, n: usize) -> &[u8] {
        assert!(n < self.pages);
        // SAFETY: the page lies in the mapping and is initialised: new pages are zero. Nobody
        // writes while `self` is borrowed.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr().add(n * PAGE_BYTES), PAGE_BYTES) }
    }

    /// The same for writing.
    pub fn page_mut(&mut self, n: usize) -> &mut [u8] {
        assert!(n < self.pages);
        // SAFETY: as for `page`, and `self` is borrowed for writing.
        unsafe {
            std::slice::from_raw_parts_mut(self.start.as_ptr().add(n * PAGE_BYTES), PAGE_BYTES)
        }
    }

    /// One read of page `n` that the compiler can neither drop nor move.
    #[inline]
    pub(super) fn touch(&self, n: usize) -> u8 {
        assert!(n < self.pages);
        // SAFETY: the byte lies in the mapping.
        unsafe { self.start.as_ptr().add(n * PAGE_BYTES).read_volatile() }
    }

    /// Asks the kernel to page everything out, a few times: it skips pages that have not reached
    /// its lists yet.
    pub fn page_out(&self) -> io::Result<()> {
        const ATTEMPTS: usize = 3;
        for _ in 0..ATTEMPTS {
            self.advise(libc::MADV_PAGEOUT)?;
            if self.resident_pages()? == 0 {
                break;
            }
        }
        Ok(())
    }

    /// Drops every page with its bytes: zeros are read then, or what a pager fills in.
    pub(super) fn empty(&self) -> io::Result<()> {
        self.advise(libc::MADV_DONTNEED)
    }

    /// How many pages are in memory, by `/proc/self/pagemap`, which shows this bit to everybody.
    pub fn resident_pages(&self) -> io::Result<usize> {
        let mut entries = vec![0u8; self.pages * 8];
        self.pagemap.read_exact_at(&mut entries, self.pagemap_offset(0))?;
        Ok(entries.chunks_exact(8).filter(|e| e[7] & 0x80 != 0).count())
    }

    /// Whether page `n` is in memory.
    pub fn is_resident(&self, n: usize) -> io::Result<bool> {
        let mut entry = [0u8; 8];
        self.pagemap.read_exact_at(&mut entry, self.pagemap_offset(n))?;
        // Bit 63 of a little-endian word.
        Ok(u64::from_ne_bytes(entry) >> 63 == 1)
    }

    fn pagemap_offset(&self, n: usize) -> u64 {
        ((self.address() / PAGE_BYTES + n) * 8) as u64
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours and no borrow of it can outlive `self`.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.pages * PAGE_BYTES) };
    }
}
