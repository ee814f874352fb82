//! What a child gets of each mapping: `MADV_DONTFORK`, `MADV_WIPEONFORK`, and who set them.
//!
//! The kernel tells these only in `/proc/PID/smaps`. To read that it walks the page tables of the
//! whole process, 15 ms for each GiB in memory, so it is read only where it must be: at a fork
//! (itself 25 ms for each GiB), and by an unprivileged runtime before it registers more.

use super::proc;
use std::fs::File;
use std::io::{Read, Seek};
use std::os::fd::AsRawFd;
use std::sync::{Mutex, PoisonError};

/// A mapping that a child does not get as it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Inherited {
    /// First byte.
    pub start: u64,
    /// One past the last byte.
    pub end: u64,
    /// Registered with a userfaultfd for missing faults.
    pub registered: bool,
    /// A child does not get it (`MADV_DONTFORK`).
    pub absent: bool,
    /// A child gets it empty (`MADV_WIPEONFORK`).
    pub wiped: bool,
    /// Private memory without a file.
    pub anonymous: bool,
}

/// `/proc/self/smaps`, open: it stays readable after a chroot or a change of user.
#[derive(Debug)]
pub struct Smaps(Mutex<File>);

impl Smaps {
    /// Opens it, on a descriptor that the application cannot close.
    pub fn open() -> Option<Smaps> {
        let file = File::open("/proc/self/smaps").ok()?;
        let fd = proc::raise_fd(file.as_raw_fd())?;
        crate::interpose::protect_fd(fd);
        Some(Smaps(Mutex::new(proc::file_from(fd))))
    }

    /// The mappings that are absent or wiped in a child, in order. `None` if that cannot be known.
    pub fn inherited(&self) -> Option<Vec<Inherited>> {
        let mut all = self.flagged()?;
        all.retain(|m| m.absent || m.wiped);
        Some(all)
    }

    /// Whether a page lies in a mapping that is registered for missing faults, as of now.
    pub fn is_registered(&self, page: u64) -> bool {
        let all = self.registered().unwrap_or_default();
        all.iter().any(|m| (m.start..m.end).contains(&page))
    }

    /// The mappings that are registered for missing faults, in order.
    pub fn registered(&self) -> Option<Vec<Inherited>> {
        let mut all = self.flagged()?;
        all.retain(|m| m.registered);
        Some(all)
    }

    fn flagged(&self) -> Option<Vec<Inherited>> {
        let mut file = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        file.rewind().ok()?;
        let mut text = Vec::new();
        let mut buffer = [0u8; 16 << 10];
        let mut parser = Parser::default();
        loop {
            match file.read(&mut buffer) {
                Ok(0) => return Some(parser.found),
                Ok(n) => text.extend_from_slice(&buffer[..n]),
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => continue,
                Err(_) => return None,
            }
            let whole = text.iter().rposition(|&b| b == b'\n').map_or(0, |at| at + 1);
            for line in text[..whole].split(|&b| b == b'\n') {
                parser.line(std::str::from_utf8(line).unwrap_or(""));
            }
            text.drain(..whole);
        }
    }
}

/// Takes the lines of `smaps` one by one.
#[derive(Debug, Default)]
struct Parser {
    at: Option<(u64, u64, bool)>,
    found: Vec<Inherited>,
}

impl Parser {
    fn line(&mut self, line: &str) {
        let Some((first, rest)) = line.split_once(' ') else { return };
        if let Some(key) = first.strip_suffix(':') {
            let at = self.at.filter(|_| key == "VmFlags");
            let Some((start, end, anonymous)) = at else { return };
            let has = |flag| rest.split_ascii_whitespace().any(|f| f == flag);
            let (registered, absent, wiped) = (has("um"), has("dc"), has("wf"));
            if registered || absent || wiped {
                self.found.push(Inherited { start, end, registered, absent, wiped, anonymous });
            }
            return;
        }
        let mapping = proc::AnyMapping::parse(line);
        self.at = mapping.map(|m| (m.start, m.end, m.is_private_anonymous()));
    }
}

/// Says whether children get a range of the application; its content is not touched. `false` if
/// some of it is not mapped, or the kernel has no room for another mapping.
pub fn set_inherited(start: u64, len: u64, inherited: bool) -> bool {
    let advice = if inherited { libc::MADV_DOFORK } else { libc::MADV_DONTFORK };
    // SAFETY: advice that changes what a later fork copies and no byte of this process.
    unsafe { libc::madvise(start as *mut libc::c_void, len as usize, advice) == 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_belong_to_the_mapping_above_them() {
        let text = "\
7f0000000000-7f0000400000 rw-p 00000000 00:00 0
Size:               4096 kB
VmFlags: rd wr mr mw me ac
7f0000400000-7f0000800000 rw-p 00000000 00:00 0                          [anon:dc]
Rss:                   0 kB
VmFlags: rd wr mr mw me um dc ac nh
7f0000800000-7f0000900000 r--p 00000000 08:01 77                         /some file
VmFlags: rd mr mw me wf
";
        let mut parser = Parser::default();
        text.lines().for_each(|line| parser.line(line));
        let (start, end) = (0x7f00_0040_0000, 0x7f00_0080_0000);
        let want = [
            Inherited { start, end, registered: true, absent: true, wiped: false, anonymous: true },
            Inherited {
                start: end,
                end: end + (1 << 20),
                registered: false,
                absent: false,
                wiped: true,
                anonymous: false,
            },
        ];
        assert_eq!(parser.found, want);
    }

    #[test]
    fn what_a_child_does_not_get_is_found_and_lifted() {
        const LEN: u64 = 64 << 10;
        // SAFETY: a fresh mapping of our own.
        let start = unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            let rw = libc::PROT_READ | libc::PROT_WRITE;
            let p = libc::mmap(std::ptr::null_mut(), LEN as usize, rw, flags, -1, 0);
            assert_ne!(p, libc::MAP_FAILED);
            p as u64
        };
        let smaps = Smaps::open().expect("smaps");
        let is_absent = || {
            let all = smaps.inherited().expect("smaps");
            all.iter().any(|m| m.absent && m.start <= start && start + LEN <= m.end)
        };
        assert!(!is_absent());
        assert!(set_inherited(start, LEN, false));
        assert!(is_absent());
        assert!(set_inherited(start, LEN, true));
        assert!(!is_absent(), "read anew each time");
        // SAFETY: the mapping made above.
        unsafe { libc::munmap(start as *mut libc::c_void, LEN as usize) };
    }
}
