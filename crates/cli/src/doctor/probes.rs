//! Questions that only a system call or this process's own place can answer.
#![allow(unsafe_code)]

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::FromRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// Whether this process can use the processor's precise sampling (PEBS on Intel, IBS on AMD).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PerfAccess {
    /// An event with precise addresses could be opened.
    Precise,
    /// The hardware may have it, but this process may not.
    Forbidden,
    /// No such event on this machine.
    Absent,
}

/// Opens a precise cycle event on this process and closes it at once.
pub(super) fn perf_access() -> PerfAccess {
    // struct perf_event_attr up to PERF_ATTR_SIZE_VER0 (64 bytes), as words:
    // type and size, config, sample_period, sample_type, read_format, flags, wakeup and bp_type,
    // config1.
    const ATTR_BYTES: u64 = 64;
    const PERF_SAMPLE_ADDR: u64 = 1 << 3;
    const DISABLED: u64 = 1;
    const EXCLUDE_KERNEL: u64 = 1 << 5;
    const PRECISE_IP_2: u64 = 2 << 15;
    let mut attr = [0u64; 8];
    // type PERF_TYPE_HARDWARE and config PERF_COUNT_HW_CPU_CYCLES are both 0.
    attr[0] = ATTR_BYTES << 32;
    attr[2] = 100_000;
    attr[3] = PERF_SAMPLE_ADDR;
    attr[5] = DISABLED | EXCLUDE_KERNEL | PRECISE_IP_2;
    // SAFETY: `attr` is as long as the size it states and outlives the call; the other arguments
    // are numbers: this process, any CPU, no group, close on exec.
    let fd = unsafe { libc::syscall(libc::SYS_perf_event_open, attr.as_ptr(), 0, -1, -1, 8) };
    match i32::try_from(fd) {
        Ok(fd) if fd >= 0 => {
            // SAFETY: the kernel has just returned this descriptor and nobody else knows it.
            drop(unsafe { File::from_raw_fd(fd) });
            PerfAccess::Precise
        }
        _ => match io::Error::last_os_error().raw_os_error() {
            Some(libc::EACCES | libc::EPERM) => PerfAccess::Forbidden,
            _ => PerfAccess::Absent,
        },
    }
}

/// The limit on this process's address space; `None` for unlimited.
pub(super) fn address_space_max_bytes() -> Option<u64> {
    let mut limit = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: `limit` is a valid rlimit that the call fills in.
    let rc = unsafe { libc::getrlimit(libc::RLIMIT_AS, &mut limit) };
    (rc == 0 && limit.rlim_cur != libc::RLIM_INFINITY).then_some(limit.rlim_cur)
}

/// The runtime library: `$TERRACE_LIB`, or `libterrace.so` beside this executable, or in
/// `../lib/terrace/` from there. One that the loader would not load is refused: it says so at best,
/// and goes on without.
pub fn find_runtime() -> anyhow::Result<PathBuf> {
    const LIBRARY: &str = "libterrace.so";
    if let Some(path) = std::env::var_os("TERRACE_LIB") {
        let path = PathBuf::from(path);
        // LD_PRELOAD takes the path from wherever the program is started, so it must be absolute.
        let usable = path.canonicalize().map_err(Into::into).and_then(loadable);
        return usable.map_err(|e| {
            anyhow::anyhow!(
                "TERRACE_LIB names {}, which cannot be used: {e}; set it to the path of {LIBRARY}",
                path.display()
            )
        });
    }
    let exe = std::env::current_exe()?.canonicalize()?;
    let beside = exe.parent().unwrap_or(&exe);
    let places = [beside.join(LIBRARY), beside.join("../lib/terrace").join(LIBRARY)];
    for place in &places {
        if let Ok(path) = place.canonicalize() {
            return loadable(path.clone()).map_err(|e| {
                anyhow::anyhow!("{} cannot be used: {e}; install it elsewhere", path.display())
            });
        }
    }
    let [first, second] = places;
    anyhow::bail!(
        "{LIBRARY} is neither {} nor {}; build it or set TERRACE_LIB",
        first.display(),
        second.display()
    )
}

/// `library`, if LD_PRELOAD can name it and it is a shared library.
fn loadable(library: PathBuf) -> anyhow::Result<PathBuf> {
    const SHARED_OBJECT: u16 = 3;
    if library.as_os_str().as_bytes().iter().any(|byte| b" :".contains(byte)) {
        anyhow::bail!("the loader ends names in LD_PRELOAD at a space and at a colon");
    }
    // Identification, then e_type.
    let mut head = [0; 18];
    File::open(&library).and_then(|mut file| file.read_exact(&mut head)).map_err(|e| {
        match e.kind() {
            io::ErrorKind::UnexpectedEof => anyhow::anyhow!("it is no shared library"),
            _ => e.into(),
        }
    })?;
    let is_elf = head.starts_with(b"\x7fELF");
    if !is_elf || u16::from_ne_bytes([head[16], head[17]]) != SHARED_OBJECT {
        anyhow::bail!("it is no shared library");
    }
    Ok(library)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_that_the_loader_would_pass_over_is_refused() {
        let dir = std::env::temp_dir().join(format!("terrace-lib-{}", std::process::id()));
        let shared = [b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0".as_slice(), &3u16.to_ne_bytes()];
        let program = [shared[0], &2u16.to_ne_bytes()];
        let judge = |folder: &str, content: &[u8]| {
            let folder = dir.join(folder);
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::write(folder.join("l.so"), content).unwrap();
            loadable(folder.join("l.so")).map(drop).map_err(|e| e.to_string())
        };
        assert_eq!(judge("good", &shared.concat()), Ok(()));
        for folder in ["a space", "a:colon"] {
            assert!(judge(folder, &shared.concat()).unwrap_err().contains("LD_PRELOAD"));
        }
        for content in [&program.concat()[..], b"#!/bin/sh\necho is no library\n", b""] {
            assert_eq!(judge("bad", content), Err("it is no shared library".into()));
        }
        assert!(loadable(dir.join("good")).is_err(), "a folder");
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
