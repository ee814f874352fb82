//! What the runtime reads about its own process, without the application's heap.

use std::fs::File;
use std::io::{Read, Seek};
use std::os::fd::{AsRawFd, RawFd};

/// A candidate range of the address space: private, anonymous, readable and writable.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mapping {
    /// First byte.
    pub start: u64,
    /// One past the last byte.
    pub end: u64,
}

/// Parses `/proc/self/maps` and calls `keep` for each private anonymous read-write mapping that
/// is neither the main stack nor one of the kernel's special ones.
pub fn private_anonymous(maps: &str, mut keep: impl FnMut(Mapping)) {
    for line in maps.lines() {
        let mut fields = line.split_ascii_whitespace();
        let (Some(range), Some(perms)) = (fields.next(), fields.next()) else { continue };
        let (_offset, _dev, inode) = (fields.next(), fields.next(), fields.next());
        let name = fields.next().unwrap_or("");
        let anonymous = inode == Some("0")
            && (name.is_empty() || name == "[heap]" || name.starts_with("[anon:"));
        if perms != "rw-p" || !anonymous {
            continue;
        }
        let Some((a, b)) = range.split_once('-') else { continue };
        if let (Ok(start), Ok(end)) = (u64::from_str_radix(a, 16), u64::from_str_radix(b, 16)) {
            keep(Mapping { start, end });
        }
    }
}

/// `/proc/self/maps`, open: it stays readable after a chroot or a change of user.
#[derive(Debug)]
pub struct Maps(File);

impl Maps {
    /// Opens it, on a descriptor that the application cannot close.
    pub fn open() -> Option<Maps> {
        let file = File::open("/proc/self/maps").ok()?;
        let fd = raise_fd(file.as_raw_fd())?;
        crate::interpose::protect_fd(fd);
        Some(Maps(file_from(fd)))
    }

    /// Its text as of now; empty if it cannot be read.
    pub fn text(&mut self) -> String {
        let mut text = String::new();
        if self.0.rewind().is_err() || self.0.read_to_string(&mut text).is_err() {
            text.clear();
        }
        text
    }
}

/// Page presence from `/proc/self/pagemap`. Opened once, on a descriptor that the application
/// cannot close: what is read here decides whether a page has content.
#[derive(Clone, Copy, Debug)]
pub struct Pagemap(RawFd);

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct PageRegion {
    start: u64,
    end: u64,
    categories: u64,
}

/// `PAGEMAP_SCAN` (Linux 6.7).
const IOC_PAGEMAP_SCAN: u64 = (3 << 30) | (96 << 16) | ((b'f' as u64) << 8) | 16;
const PAGE_IS_PRESENT: u64 = 1 << 3;
const PAGE_IS_SWAPPED: u64 = 1 << 4;
/// Runs of pages taken in one system call.
const SCAN_RUNS: usize = 256;

impl Pagemap {
    /// Opens it; readable by the process itself without privilege.
    pub fn open() -> Option<Pagemap> {
        let file = File::open("/proc/self/pagemap").ok()?;
        let fd = raise_fd(file.as_raw_fd())?;
        crate::interpose::protect_fd(fd);
        Some(Pagemap(fd))
    }

    /// Which of the 512 pages from `start` on have content, in memory or in swap, as a bitmap.
    /// `None` if that cannot be known.
    pub fn present(&self, start: u64) -> Option<[u64; 8]> {
        let mut raw = [0u8; 4096];
        // SAFETY: the buffer is ours and of the length given.
        let n = unsafe {
            let at = (start / 4096 * 8) as libc::off_t;
            libc::pread(self.0, raw.as_mut_ptr().cast(), raw.len(), at)
        };
        if n != raw.len() as isize {
            return None;
        }
        let mut bits = [0u64; 8];
        for (i, entry) in raw.chunks_exact(8).enumerate() {
            // Bits 63 and 62 of an entry are "present" and "swapped": the top of the last byte.
            bits[i / 64] |= u64::from(entry[7] & 0xc0 != 0) << (i % 64);
        }
        Some(bits)
    }

    /// Calls `visit` with every run of pages that have content in `[start, end)`. Skips what has no
    /// page tables, so that a sparse giant costs nothing.
    pub fn scan(&self, start: u64, end: u64, mut visit: impl FnMut(u64, u64)) {
        let mut runs = [PageRegion::default(); SCAN_RUNS];
        let mut at = start;
        while at < end {
            let mut arg = [
                96,
                0,
                at,
                end,
                0,
                runs.as_mut_ptr() as u64,
                SCAN_RUNS as u64,
                0,
                0,
                0,
                PAGE_IS_PRESENT | PAGE_IS_SWAPPED,
                PAGE_IS_PRESENT,
            ];
            // SAFETY: the argument has the size it says, and the kernel writes at most SCAN_RUNS
            // entries to the vector.
            let n = unsafe { libc::ioctl(self.0, IOC_PAGEMAP_SCAN as _, arg.as_mut_ptr()) };
            let Ok(n) = usize::try_from(n) else { return };
            for r in &runs[..n.min(SCAN_RUNS)] {
                visit(r.start, r.end);
            }
            // Where the walk stopped: at the end, or where the vector was full.
            if arg[4] <= at {
                return;
            }
            at = arg[4];
        }
    }
}

/// Copies one page of the application by its address, through the kernel, so that a mapping that
/// is gone is an error and not a crash. What the application writes meanwhile may be torn.
pub fn read_application_page(address: u64, out: &mut [u8; 4096]) -> bool {
    let local = libc::iovec { iov_base: out.as_mut_ptr().cast(), iov_len: out.len() };
    let remote = libc::iovec { iov_base: address as *mut libc::c_void, iov_len: out.len() };
    // SAFETY: the kernel writes at most iov_len bytes to our buffer and checks the other side.
    let n = unsafe { libc::process_vm_readv(libc::getpid(), &local, 1, &remote, 1, 0) };
    n == out.len() as isize
}

/// Copies words of the application by their address, with an error where they cannot be read.
pub fn read_application_words(address: u64, out: &mut [u64]) -> bool {
    let len = std::mem::size_of_val(out);
    let local = libc::iovec { iov_base: out.as_mut_ptr().cast(), iov_len: len };
    let remote = libc::iovec { iov_base: address as *mut libc::c_void, iov_len: len };
    // SAFETY: the kernel writes at most iov_len bytes to our buffer and checks the other side.
    let n = unsafe { libc::process_vm_readv(libc::getpid(), &local, 1, &remote, 1, 0) };
    n == len as isize
}

/// Resident set of the process and the part of it that is of files and shared memory, bytes.
pub fn rss_bytes() -> (u64, u64) {
    let mut text = String::new();
    if let Ok(mut f) = File::open("/proc/self/statm") {
        let _ = f.read_to_string(&mut text);
    }
    let field = |n: usize| text.split_ascii_whitespace().nth(n).and_then(|n| n.parse::<u64>().ok());
    (field(1).unwrap_or(0) * 4096, field(2).unwrap_or(0) * 4096)
}

/// Memory of the machine, bytes.
pub fn mem_total_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    text.lines()
        .find_map(|l| l.strip_prefix("MemTotal:"))
        .and_then(|v| v.split_ascii_whitespace().next())
        .and_then(|n| n.parse::<u64>().ok())
        .map_or(8 << 30, |kib| kib << 10)
}

/// The CPU on which thread `tid` of this process last ran. Reads into a stack buffer, because the
/// pager calls it.
pub fn last_cpu(tid: u32) -> Option<usize> {
    let mut path = [0u8; 48];
    let mut out = std::io::Cursor::new(&mut path[..]);
    std::io::Write::write_fmt(&mut out, format_args!("/proc/self/task/{tid}/stat\0")).ok()?;
    let mut text = [0u8; 512];
    // SAFETY: the path is NUL-terminated; the buffer is ours and of the length given.
    let n = unsafe {
        let fd = libc::open(path.as_ptr().cast(), libc::O_RDONLY | libc::O_CLOEXEC);
        if fd < 0 {
            return None;
        }
        let n = libc::read(fd, text.as_mut_ptr().cast(), text.len());
        libc::close(fd);
        n
    };
    let text = std::str::from_utf8(text.get(..usize::try_from(n).ok()?)?).ok()?;
    // Fields after the name in parentheses start at 3; the processor is field 39.
    let after = text.get(text.rfind(')')? + 2..)?;
    after.split_ascii_whitespace().nth(36)?.parse().ok()
}

/// A path in the environment, as it is now: for the start, before the program's own code runs.
/// Allocates nothing.
pub fn environment(name: &std::ffi::CStr) -> Option<&'static std::path::Path> {
    use std::os::unix::ffi::OsStrExt;
    // SAFETY: the name is NUL-terminated, and so is what is found. It lies where the kernel put it
    // and stays there until the program's own code changes its environment; the caller copies it.
    let value = unsafe {
        let found = libc::getenv(name.as_ptr());
        (!found.is_null()).then(|| std::ffi::CStr::from_ptr(found))?
    };
    Some(std::path::Path::new(std::ffi::OsStr::from_bytes(value.to_bytes())))
}

/// A duplicate of `fd` with a number above those that programs use or close wholesale, the
/// original being left to its owner.
pub fn raise_fd(fd: RawFd) -> Option<RawFd> {
    for floor in [900, 200, 100] {
        // SAFETY: duplicating a descriptor has no effect on memory.
        let new = unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, floor) };
        if new >= 0 {
            return Some(new);
        }
    }
    None
}

/// Owns a descriptor made by [`raise_fd`] as a file.
pub fn file_from(fd: RawFd) -> File {
    // SAFETY: `raise_fd` made the descriptor for us, and nobody else owns it.
    unsafe { std::os::fd::FromRawFd::from_raw_fd(fd) }
}

/// Owns a descriptor made by [`raise_fd`] as a socket.
pub fn stream_from(fd: RawFd) -> std::os::unix::net::UnixStream {
    // SAFETY: `raise_fd` made the descriptor for us, and nobody else owns it.
    unsafe { std::os::fd::FromRawFd::from_raw_fd(fd) }
}

/// Owns a descriptor made by [`raise_fd`] as a socket that listens.
pub fn listener_from(fd: RawFd) -> std::os::unix::net::UnixListener {
    // SAFETY: `raise_fd` made the descriptor for us, and nobody else owns it.
    unsafe { std::os::fd::FromRawFd::from_raw_fd(fd) }
}

/// Ends both directions of a socket of ours; who waits at it sees the end.
pub fn shut_down(fd: RawFd) {
    // SAFETY: no effect on memory; a number that is no socket is an error.
    unsafe { libc::shutdown(fd, libc::SHUT_RDWR) };
}

/// Writes one line to standard error, without any buffer or lock, and ends the process. For the
/// one case in which going on would mean wrong bytes.
pub fn die(line: &str) -> ! {
    // SAFETY: writing our own bytes, then abort, which never returns.
    unsafe {
        libc::write(2, line.as_ptr().cast(), line.len());
        libc::write(2, b"\n".as_ptr().cast(), 1);
        libc::abort()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_private_anonymous_memory_is_a_candidate() {
        let maps = "\
55d0c0000000-55d0c0100000 r-xp 00000000 08:01 1234 /usr/bin/redis-server
55d0c0200000-55d0c0300000 rw-p 00000000 00:00 0 [heap]
7f0000000000-7f0000400000 rw-p 00000000 00:00 0
7f0000400000-7f0000500000 rw-s 00000000 00:01 99 /dev/zero (deleted)
7f0000500000-7f0000600000 ---p 00000000 00:00 0
7f0000600000-7f0000700000 rw-p 00000000 00:00 0 [anon:arena]
7ffd00000000-7ffd00100000 rw-p 00000000 00:00 0 [stack]
7ffd00200000-7ffd00204000 r--p 00000000 00:00 0 [vvar]
";
        let mut seen = vec![];
        private_anonymous(maps, |m| seen.push(m.start));
        assert_eq!(seen, [0x55d0c0200000, 0x7f0000000000, 0x7f0000600000]);
    }

    #[test]
    fn a_thread_knows_its_cpu() {
        assert!(last_cpu(super::super::thread::gettid()).is_some());
        assert_eq!(last_cpu(0x7fff_fff0), None);
    }

    #[test]
    fn a_touched_page_is_present() {
        let bytes = vec![1u8; 3 << 20];
        let inside = (bytes.as_ptr() as u64).next_multiple_of(4096);
        let bits = Pagemap::open().and_then(|p| p.present(inside)).expect("pagemap");
        assert_eq!(bits[0] & 1, 1);
    }

    #[test]
    fn a_scan_finds_the_runs_of_a_sparse_mapping() {
        const LEN: u64 = 64 << 30;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a fresh mapping, written only inside.
        let base = unsafe {
            let rw = libc::PROT_READ | libc::PROT_WRITE;
            let p = libc::mmap(std::ptr::null_mut(), LEN as usize, rw, flags, -1, 0);
            assert_ne!(p, libc::MAP_FAILED);
            libc::madvise(p, LEN as usize, libc::MADV_NOHUGEPAGE);
            // More runs than one call returns.
            for k in 0..600u64 {
                p.cast::<u8>().add((k * (100 << 20)) as usize).write(1);
            }
            p as u64
        };
        let mut seen = vec![];
        Pagemap::open()
            .expect("pagemap")
            .scan(base, base + LEN, |a, b| seen.push((a - base, b - a)));
        let want: Vec<(u64, u64)> = (0..600).map(|k| (k * (100 << 20), 4096)).collect();
        assert_eq!(seen, want);
        // SAFETY: the mapping made above.
        unsafe { libc::munmap(base as *mut libc::c_void, LEN as usize) };
    }
}
