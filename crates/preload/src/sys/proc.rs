//! What the runtime reads about its own process, without the application's heap.

use super::files;
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
    /// Whether it begins where the mapping of a file ends.
    pub is_behind_file: bool,
}

/// A line of `/proc/self/maps`.
#[derive(Clone, Copy, Debug)]
pub struct AnyMapping<'a> {
    /// First byte.
    pub start: u64,
    /// One past the last byte.
    pub end: u64,
    /// As in `rw-p`.
    pub permissions: [u8; 4],
    /// Memory without a file, or of a program's own naming.
    is_anonymous: bool,
    name: &'a str,
}

impl AnyMapping<'_> {
    /// Reads a line; `None` if it is not one.
    pub fn parse(line: &str) -> Option<AnyMapping<'_>> {
        let mut fields = line.split_ascii_whitespace();
        let (a, b) = fields.next()?.split_once('-')?;
        let (start, end) = (u64::from_str_radix(a, 16).ok()?, u64::from_str_radix(b, 16).ok()?);
        let permissions = fields.next()?.as_bytes().try_into().ok()?;
        // Behind offset and device.
        let is_anonymous = fields.nth(2) == Some("0");
        let name = fields.next().unwrap_or("");
        Some(AnyMapping { start, end, permissions, is_anonymous, name })
    }

    /// Whether it is private memory without a file, and neither the main stack nor one of the
    /// kernel's special mappings.
    pub fn is_private_anonymous(&self) -> bool {
        let is_plain =
            self.name.is_empty() || self.name == "[heap]" || self.name.starts_with("[anon:");
        self.is_anonymous && is_plain && self.permissions[3] == b'p'
    }
}

/// Parses `/proc/self/maps` and calls `keep` for each private anonymous read-write mapping that
/// is neither the main stack nor one of the kernel's special ones.
pub fn private_anonymous(maps: &str, mut keep: impl FnMut(Mapping)) {
    let mut file_end = 0;
    for m in maps.lines().filter_map(AnyMapping::parse) {
        if m.permissions == *b"rw-p" && m.is_private_anonymous() {
            keep(Mapping { start: m.start, end: m.end, is_behind_file: m.start == file_end });
        }
        if !m.is_anonymous {
            file_end = m.end;
        }
    }
}

/// Calls `see` with each line of `/proc/self/maps`, cut off where it is longer than any without a
/// file's name. `None` if not all of it can be read. Allocates nothing, and makes no call at which
/// a thread could be cancelled: threads of the program's do this, with locks of ours.
pub fn each_mapping(see: impl FnMut(&str)) -> Option<()> {
    let (path, flags) = (c"/proc/self/maps".as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC);
    // SAFETY: the path ends.
    let fd = unsafe { libc::syscall(libc::SYS_openat, libc::AT_FDCWD, path, flags, 0) } as RawFd;
    if fd < 0 {
        return None;
    }
    let read = each_line(fd, see);
    // SAFETY: our descriptor, closed once.
    unsafe { libc::syscall(libc::SYS_close, fd) };
    read
}

fn each_line(fd: RawFd, mut see: impl FnMut(&str)) -> Option<()> {
    let mut line = [0u8; 256];
    let mut len = 0;
    let mut text = [0u8; 4096];
    loop {
        // SAFETY: the buffer is ours and of the length given.
        let n = unsafe { libc::syscall(libc::SYS_read, fd, text.as_mut_ptr(), text.len()) };
        let n = usize::try_from(n).ok()?;
        if n == 0 {
            return Some(());
        }
        for &byte in &text[..n] {
            if byte == b'\n' {
                see(std::str::from_utf8(&line[..len]).unwrap_or(""));
                len = 0;
            } else if len < line.len() {
                line[len] = byte;
                len += 1;
            }
        }
    }
}

/// What is mapped where, from `/proc/self/maps`: one look for a few addresses. Opened once, on a
/// descriptor that the application cannot close.
#[derive(Clone, Copy, Debug)]
pub struct Coverage(Option<RawFd>);

/// `PROCMAP_QUERY` (Linux 6.11).
const IOC_PROCMAP_QUERY: u64 = (3 << 30) | (104 << 16) | ((b'f' as u64) << 8) | 17;
/// The mapping of the address, or else the next one.
const COVERING_OR_NEXT: u64 = 0x10;

impl Coverage {
    /// Opens it. Where it cannot be had, no hole is ever found.
    pub fn open() -> Coverage {
        let file = File::open("/proc/self/maps").ok();
        let fd = file.and_then(|file| raise_fd(file.as_raw_fd()));
        if let Some(fd) = fd {
            crate::interpose::protect_fd(fd);
        }
        Coverage(fd)
    }

    /// The mappings that lie in some of `[start, end)`. `None` if an older kernel would have to
    /// give all of its text for that.
    pub fn mappings(&self, start: u64, end: u64) -> Option<Vec<(u64, u64)>> {
        let fd = self.0?;
        let (mut found, mut at) = (Vec::new(), start);
        while at < end {
            match query(fd, at).ok()? {
                Some((a, b)) if a < end => {
                    found.push((a, b));
                    at = b;
                }
                _ => break,
            }
        }
        Some(found)
    }

    /// Whether nothing is mapped in `[start, end)`. (Not known of an older kernel.)
    pub fn is_empty(&self, start: u64, end: u64) -> bool {
        let first = self.0.and_then(|fd| query(fd, start).ok());
        first.is_some_and(|first| first.is_none_or(|(a, _)| a >= end))
    }

    /// Calls `found` with each part of `[start, end)` in which nothing is mapped.
    pub fn holes(&self, start: u64, end: u64, mut found: impl FnMut(u64, u64)) {
        let Some(fd) = self.0 else { return };
        let mut at = start;
        let mut mapped = |a: u64, b: u64| {
            if at < a.min(end) {
                found(at, a.min(end));
            }
            at = at.max(b);
            at < end
        };
        let mut next = start;
        loop {
            match query(fd, next) {
                Ok(Some((a, b))) => {
                    if !mapped(a, b) {
                        return;
                    }
                    next = b;
                }
                Ok(None) => {
                    mapped(end, end);
                    return;
                }
                Err(()) => break,
            }
        }
        // An older kernel: all of the text.
        // SAFETY: a file of ours, from its beginning.
        unsafe { libc::lseek(fd, 0, libc::SEEK_SET) };
        let all = each_line(fd, |line| {
            if let Some(m) = AnyMapping::parse(line).filter(|m| m.end > start) {
                mapped(m.start, m.end);
            }
        });
        if all.is_some() {
            mapped(end, end);
        }
    }
}

/// The mapping at an address or behind it; `None` if there is none. An error where the kernel does
/// not know the question.
fn query(fd: RawFd, address: u64) -> Result<Option<(u64, u64)>, ()> {
    let mut arg = [0u64; 13];
    (arg[0], arg[1], arg[2]) = (104, COVERING_OR_NEXT, address);
    // SAFETY: the argument has the size that it says, and asks for no name.
    let answer = unsafe { libc::ioctl(fd, IOC_PROCMAP_QUERY as _, arg.as_mut_ptr()) };
    // SAFETY: errno of the calling thread.
    let errno = unsafe { *libc::__errno_location() };
    match answer {
        0 => Ok(Some((arg[3], arg[4]))),
        _ if errno == libc::ENOENT => Ok(None),
        _ => Err(()),
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

/// What a page that is watched looks like.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sight {
    /// Nobody touched it since.
    Untouched,
    /// Somebody did, or it is not watched.
    Touched,
    /// It is not the process's own: another one maps it, too, or it is the zero page.
    Shared,
    /// It has no content, or that cannot be known.
    Gone,
}

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
const PAGE_IS_PFNZERO: u64 = 1 << 5;
const PAGE_IS_HUGE: u64 = 1 << 6;
/// Without it a mapping this large, and so many times what the process has resident, is not looked
/// at: 4 GiB of address space take 20 ms.
const SPARSE_BYTES_MIN: u64 = 4 << 30;
const SPARSE_TIMES: u64 = 8;
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
        let (in_memory, in_swap) = (1 << 63, 1 << 62);
        self.where_entry(start, |entry| entry & (in_memory | in_swap) != 0)
    }

    /// Which of the 512 pages from `start` on are the kernel's zero page, as a bitmap: they are
    /// present and nobody has written them. None where that cannot be told (before Linux 6.7).
    pub fn zeros(&self, start: u64) -> [u64; 8] {
        self.which_are(PAGE_IS_PFNZERO, start)
    }

    /// Whether any of the 512 pages from `start` on are mapped as one huge page.
    pub fn has_huge(&self, start: u64) -> bool {
        self.which_are(PAGE_IS_HUGE, start) != [0; 8]
    }

    /// Which of the 512 pages from `start` on are of one of the kernel's categories, as a bitmap.
    /// None where that cannot be told.
    fn which_are(&self, category: u64, start: u64) -> [u64; 8] {
        let mut found = [0u64; 8];
        // No two runs touch, so that there are no more of them.
        let mut runs = [PageRegion::default(); SCAN_RUNS];
        let end = start + 512 * 4096;
        let vector = runs.as_mut_ptr() as u64;
        let most = SCAN_RUNS as u64;
        let mut arg = [96, 0, start, end, 0, vector, most, 0, 0, category, 0, category];
        // SAFETY: the argument has the size it says, and the kernel writes at most SCAN_RUNS
        // entries to the vector.
        let n = unsafe { libc::ioctl(self.0, IOC_PAGEMAP_SCAN as _, arg.as_mut_ptr()) };
        let known = runs.iter().take(usize::try_from(n).unwrap_or(0));
        for r in known.filter(|r| r.categories & category != 0) {
            for i in (r.start.max(start) - start) / 4096..(r.end.min(end) - start) / 4096 {
                found[i as usize / 64] |= 1 << (i % 64);
            }
        }
        found
    }

    /// Whether a page was touched since [`super::uffd::Uffd::watch`].
    pub fn sight(&self, page: u64) -> Sight {
        let (in_memory, in_swap, watched, mapped_once) = (1 << 63, 1 << 62, 1 << 57, 1 << 56);
        let mut raw = [0u8; 8];
        // SAFETY: the buffer is ours and of the length given.
        let n = unsafe {
            let at = (page / 4096 * 8) as libc::off_t;
            libc::pread(self.0, raw.as_mut_ptr().cast(), raw.len(), at)
        };
        match u64::from_ne_bytes(raw) {
            entry if n != 8 || entry & (in_memory | in_swap) == 0 => Sight::Gone,
            entry if entry & in_memory != 0 && entry & mapped_once == 0 => Sight::Shared,
            entry if entry & watched != 0 => Sight::Untouched,
            _ => Sight::Touched,
        }
    }

    /// Which of the 512 pages from `start` on are in memory and mapped by no other process, as a
    /// bitmap. `None` if that cannot be known.
    pub fn mapped_once(&self, start: u64) -> Option<[u64; 8]> {
        let (in_memory, mapped_once) = (1 << 63, 1 << 56);
        self.where_entry(start, |entry| entry & in_memory != 0 && entry & mapped_once != 0)
    }

    /// For which of the 512 pages from `start` on `holds` is true of the entry.
    fn where_entry(&self, start: u64, holds: impl Fn(u64) -> bool) -> Option<[u64; 8]> {
        let mut raw = [0u8; 4096];
        // SAFETY: the buffer is ours and of the length given.
        let n = unsafe {
            let at = (start / 4096 * 8) as libc::off_t;
            libc::pread(self.0, raw.as_mut_ptr().cast(), raw.len(), at)
        };
        if n != raw.len() as isize {
            return None;
        }
        let mut found = [0u64; 8];
        for (i, entry) in raw.chunks_exact(8).enumerate() {
            let entry = u64::from_ne_bytes(entry.try_into().unwrap_or_default());
            found[i / 64] |= u64::from(holds(entry)) << (i % 64);
        }
        Some(found)
    }

    /// Calls `visit` with every run of pages that have content of their own in `[start, end)`. The
    /// kernel's zero page is none of theirs: it takes no memory. (Before Linux 6.7 it cannot be
    /// told.) Skips what has no page tables, so that a sparse giant costs nothing.
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
                PAGE_IS_PFNZERO,
                PAGE_IS_PFNZERO,
                PAGE_IS_PRESENT | PAGE_IS_SWAPPED,
                PAGE_IS_PRESENT,
            ];
            // SAFETY: the argument has the size it says, and the kernel writes at most SCAN_RUNS
            // entries to the vector.
            let n = unsafe { libc::ioctl(self.0, IOC_PAGEMAP_SCAN as _, arg.as_mut_ptr()) };
            // SAFETY: errno of the calling thread.
            if n < 0 && at == start && unsafe { *libc::__errno_location() } == libc::ENOTTY {
                return self.scan_entries(start, end, visit);
            }
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

impl Pagemap {
    /// As [`Pagemap::scan`], entry by entry, for kernels before 6.7. The entries of what has no
    /// page tables are read as well, so a mapping much larger than all that is resident is passed
    /// over.
    fn scan_entries(&self, start: u64, end: u64, mut visit: impl FnMut(u64, u64)) {
        const PAGES: u64 = 512;
        if end - start > SPARSE_BYTES_MIN && end - start > SPARSE_TIMES * rss_bytes().0 {
            return;
        }
        let mut run: Option<(u64, u64)> = None;
        for at in (start..end).step_by((PAGES * 4096) as usize) {
            let Some(there) = self.present(at) else { return };
            for i in (0..PAGES).filter(|i| there[*i as usize / 64] >> (i % 64) & 1 == 1) {
                let page = at + i * 4096;
                match &mut run {
                    _ if page >= end => {}
                    Some((_, stop)) if *stop == page => *stop = page + 4096,
                    run => {
                        if let Some((a, b)) = run.replace((page, page + 4096)) {
                            visit(a, b);
                        }
                    }
                }
            }
        }
        if let Some((a, b)) = run {
            visit(a, b);
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
    let mut room = [0; 256];
    let text = files::STATM.text(&mut room);
    let field = |n: usize| text.split_ascii_whitespace().nth(n).and_then(|n| n.parse::<u64>().ok());
    (field(1).unwrap_or(0) * 4096, field(2).unwrap_or(0) * 4096)
}

/// Anonymous memory in this process that no other process shares, bytes; what can be at least as
/// much is looked at closely, which takes about 15 ms for each GiB. 0 where it cannot be known.
/// Allocates nothing.
pub fn own_anonymous_bytes(at_least: u64) -> u64 {
    let mut text = [0; 4096];
    let anonymous = sum_kib(read_small(c"/proc/self/status", &mut text), &["RssAnon:"]);
    if anonymous < at_least {
        return anonymous;
    }
    let private = ["Private_Dirty:", "Private_Clean:"];
    sum_kib(read_small(c"/proc/self/smaps_rollup", &mut text), &private).min(anonymous)
}

/// Seccomp filters that lie on the calling thread (Linux 5.9); `None` if that is not said.
/// Allocates nothing.
pub fn seccomp_filters() -> Option<u32> {
    let mut text = [0; 4096];
    let text = std::str::from_utf8(read_small(c"/proc/self/status", &mut text)).ok()?;
    text.lines().find_map(|l| l.strip_prefix("Seccomp_filters:")?.trim().parse().ok())
}

/// The first bytes of a file.
fn read_small<'a>(path: &std::ffi::CStr, text: &'a mut [u8]) -> &'a [u8] {
    // SAFETY: the path ends; the buffer is ours and of the length given; our descriptor is closed.
    let n = unsafe {
        let fd = libc::open(path.as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC);
        if fd < 0 {
            return &[];
        }
        let n = libc::read(fd, text.as_mut_ptr().cast(), text.len());
        libc::syscall(libc::SYS_close, fd);
        n
    };
    &text[..usize::try_from(n).unwrap_or(0)]
}

/// The sum of the lines `Name: 123 kB` of these names, bytes.
fn sum_kib(text: &[u8], names: &[&str]) -> u64 {
    let Ok(text) = std::str::from_utf8(text) else { return 0 };
    let named = |line: &&str| names.iter().any(|name| line.starts_with(name));
    let kib = |line: &str| line.split_ascii_whitespace().nth(1)?.parse::<u64>().ok();
    text.lines().filter(named).filter_map(kib).sum::<u64>() << 10
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

/// The id of the process that started this one, or has taken it over since.
pub fn parent() -> u32 {
    // SAFETY: takes nothing and cannot fail.
    unsafe { libc::getppid() as u32 }
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

/// Mappings that the kernel allows a process; what it is by default where it does not say.
pub fn mappings_max() -> usize {
    let text = std::fs::read_to_string("/proc/sys/vm/max_map_count");
    text.ok().and_then(|text| text.trim().parse().ok()).unwrap_or(65_530)
}

/// Whether a process may trace only what descends from it, and what allows it (Yama).
pub fn is_tracing_restricted() -> bool {
    let scope = std::fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope");
    scope.is_ok_and(|scope| scope.trim() == "1")
}

/// Allows process `pid` to trace this one, where [`is_tracing_restricted`]; nobody, if that is 0.
pub fn allow_tracing_by(pid: i32) {
    // SAFETY: prctl on this process, about no memory.
    unsafe { libc::prctl(libc::PR_SET_PTRACER, pid as libc::c_ulong, 0, 0, 0) };
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
    let to = files::standard_error();
    // SAFETY: writing our own bytes.
    unsafe {
        libc::write(to, line.as_ptr().cast(), line.len());
        libc::write(to, b"\n".as_ptr().cast(), 1);
    }
    end()
}

/// Ends the process by SIGABRT, as if the program did nothing about that signal. A handler of its
/// own must not run: on a thread of ours it would wait for pages that only this thread can bring.
pub fn end() -> ! {
    super::crash::before_end();
    // The kernel's structure, which says by zeros what happens to a program without a handler.
    let (default, signals) = ([0u64; 4], 1u64 << (libc::SIGABRT - 1));
    let size = std::mem::size_of_val(&signals);
    let none = std::ptr::null_mut::<u64>();
    // SAFETY: the kernel reads the two places above, and nothing of ours runs after the signal. A
    // shim of somebody else's in front of `sigaction` is passed by.
    unsafe {
        libc::syscall(libc::SYS_rt_sigaction, libc::SIGABRT, &default, none, size);
        libc::syscall(libc::SYS_rt_sigprocmask, libc::SIG_UNBLOCK, &signals, none, size);
        let (pid, tid) = (libc::syscall(libc::SYS_getpid), libc::syscall(libc::SYS_gettid));
        libc::syscall(libc::SYS_tgkill, pid, tid, libc::SIGABRT);
        // The first process of a container does not end by its own signals.
        loop {
            libc::syscall(libc::SYS_exit_group, 128 + libc::SIGABRT);
        }
    }
}

/// What `abort` is in this library (`build.rs`): a panic ends here too, and the C libraries.
#[cfg(not(test))]
#[no_mangle]
extern "C" fn terrace_abort() -> ! {
    end()
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
7f0001000000-7f0001100000 r-xp 00000000 08:01 1235 /lib/libc.so.6
7f0001100000-7f0001102000 rw-p 00100000 08:01 1235 /lib/libc.so.6
7f0001102000-7f000110f000 rw-p 00000000 00:00 0
7ffd00000000-7ffd00100000 rw-p 00000000 00:00 0 [stack]
7ffd00200000-7ffd00204000 r--p 00000000 00:00 0 [vvar]
";
        let mut seen = vec![];
        private_anonymous(maps, |m| seen.push((m.start, m.is_behind_file)));
        let (heap, plain, arena) = (0x55d0c0200000, 0x7f0000000000, 0x7f0000600000);
        assert_eq!(seen, [(heap, false), (plain, false), (arena, false), (0x7f0001102000, true)]);
    }

    #[test]
    fn holes_are_found_by_question_and_by_text() {
        const PAGE: u64 = 4096;
        let base = super::super::apart(9 * PAGE);
        for n in [0, 2, 3, 8] {
            // SAFETY: a page of the mapping made above.
            unsafe { libc::munmap((base + n * PAGE) as *mut libc::c_void, PAGE as usize) };
        }
        let coverage = Coverage::open();
        let mut seen = vec![];
        let inner = (base + PAGE, base + 8 * PAGE);
        coverage.holes(inner.0, inner.1, |a, b| seen.push(((a - base) / PAGE, (b - base) / PAGE)));
        assert_eq!(seen, [(2, 4)]);
        coverage.holes(base + 4 * PAGE, base + 8 * PAGE, |_, _| panic!("all of it is mapped"));
        // Where the question is not known, as to an older kernel.
        let mut mapped = vec![];
        each_mapping(|line| {
            let m = AnyMapping::parse(line).filter(|m| inner.0 <= m.start && m.end <= inner.1);
            mapped.extend(m.map(|m| ((m.start - base) / PAGE, (m.end - base) / PAGE)));
        });
        assert_eq!(mapped, [(1, 2), (4, 8)]);
        // SAFETY: what is left of it.
        unsafe { libc::munmap(base as *mut libc::c_void, 8 * 4096) };
    }

    #[test]
    fn kilobytes_are_added_up() {
        let text =
            b"Rss: 9 kB\nPrivate_Clean:  4 kB\nPrivate_Dirty:\t100 kB\nPrivate_Hugetlb: 7 kB\n";
        assert_eq!(sum_kib(text, &["Private_Clean:", "Private_Dirty:"]), 104 << 10);
        assert_eq!(sum_kib(b"", &["Rss:"]), 0);
    }

    #[test]
    fn own_memory_is_counted() {
        let _alone = crate::sys::CHILDREN_IN_TESTS.lock().unwrap_or_else(|e| e.into_inner());
        // Other tests take and give back memory meanwhile.
        let bytes = std::hint::black_box(vec![1u8; 32 << 20]);
        let (close, quick) = (own_anonymous_bytes(0), own_anonymous_bytes(u64::MAX));
        assert!(bytes[7] == 1 && close >= 32 << 20 && quick >= 32 << 20, "{close} {quick}");
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
        let pagemap = Pagemap::open().expect("pagemap");
        assert_eq!(pagemap.present(inside).expect("pagemap")[0] & 1, 1);
        assert_eq!(pagemap.sight(inside), Sight::Touched, "nobody watches it");
        assert_eq!(pagemap.sight(0x1000), Sight::Gone, "nothing is mapped there");
    }

    #[test]
    fn a_page_is_mapped_once_while_no_child_has_it() {
        let _alone = crate::sys::CHILDREN_IN_TESTS.lock().unwrap_or_else(|e| e.into_inner());
        let bytes = vec![1u8; 3 << 20];
        let inside = (bytes.as_ptr() as u64).next_multiple_of(4096);
        let pagemap = Pagemap::open().expect("pagemap");
        let is_ours = || pagemap.mapped_once(inside).expect("pagemap")[0] & 1 == 1;
        assert!(is_ours());
        // SAFETY: the child calls nothing but pause(2), and is ended and reaped here.
        unsafe {
            let child = libc::fork();
            if child == 0 {
                libc::pause();
                libc::_exit(0);
            }
            let shared = !is_ours();
            libc::kill(child, libc::SIGKILL);
            libc::waitpid(child, std::ptr::null_mut(), 0);
            assert!(shared);
        }
        assert!(is_ours());
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
                // The zero page, which takes no memory.
                p.cast::<u8>().add((k * (100 << 20)) as usize + 4096).read_volatile();
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
