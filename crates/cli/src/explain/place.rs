//! What lies at an address of another process, and why Terrace does not follow it.
//!
//! The rules are those of the runtime (`tracker.rs`, `sys/proc.rs` of libterrace.so), seen from
//! outside: `/proc/PID/maps` says what a mapping is, `/proc/PID/pagemap` which pages are present.
//! Both only to this user or root, and neither touches a page.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::FileExt;

use serde_json::{json, Value};
use terrace_core::state::LOCKED_STACK_BYTES;

use crate::doctor::human_bytes;

const PAGE_BYTES: u64 = 4096;
const REGION_BYTES: u64 = terrace_core::state::REGION_BYTES;

/// The runtime's `MAPPING_BYTES_MIN`, `BEHIND_FILE_BYTES_MIN` and `PRESENT_SHARE_MIN`.
const MAPPING_BYTES_MIN: u64 = 256 << 10;
const BEHIND_FILE_BYTES_MIN: u64 = 4 << 20;
const PRESENT_SHARE_MIN: f64 = 0.75;

/// One line of `/proc/PID/maps`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mapping {
    /// First address.
    pub start: u64,
    /// First address after it.
    pub end: u64,
    /// Such as `rw-p`.
    pub perms: String,
    /// Of the file; 0 if it is none.
    inode: u64,
    /// Path, `[heap]` and the like, or empty.
    pub name: String,
}

/// Reads `/proc/PID/maps`; lines that are none are left out.
pub fn mappings(maps: &str) -> Vec<Mapping> {
    let mapping = |line: &str| {
        let mut fields = line.splitn(6, ' ');
        let (start, end) = fields.next()?.split_once('-')?;
        let perms = fields.next()?.to_string();
        let inode = fields.nth(2)?.parse().ok()?;
        let address = |text| u64::from_str_radix(text, 16).ok();
        let name = fields.next().unwrap_or("").trim_start().to_string();
        Some(Mapping { start: address(start)?, end: address(end)?, perms, inode, name })
    };
    maps.lines().filter_map(mapping).collect()
}

impl Mapping {
    /// Whether the runtime considers it at all.
    fn is_candidate(&self) -> bool {
        let anonymous = self.name.is_empty() || self.name == "[heap]";
        let anonymous = anonymous || self.name.starts_with("[anon:");
        self.perms == "rw-p" && self.inode == 0 && anonymous
    }
}

/// Why memory at `address` is not followed, as far as the mappings show it; `None` if they are not
/// the reason.
pub fn why_not(all: &[Mapping], address: u64) -> Option<String> {
    let Some(at) = all.iter().position(|m| m.start <= address && address < m.end) else {
        return Some("nothing is mapped there".into());
    };
    let mapping = &all[at];
    let name = &mapping.name;
    if mapping.perms.ends_with('s') {
        let of = if name.is_empty() { String::new() } else { format!(" ({name})") };
        return Some(format!("it is shared memory{of}; only private memory is moved"));
    }
    if name == "[stack]" {
        return Some("it is the stack of the main thread, which is never moved".into());
    }
    if mapping.inode != 0 {
        return Some(format!("it is a mapping of the file {name}; only anonymous memory is moved"));
    }
    if !mapping.is_candidate() && mapping.perms == "rw-p" || name.starts_with("[v") {
        return Some(format!("it is {name}, a mapping of the kernel's own"));
    }
    if mapping.perms != "rw-p" {
        return Some(format!(
            "its protection is {}; only memory that may be read and written is followed",
            mapping.perms
        ));
    }
    // Registering a part of a mapping splits it in this list: neighbours belong together.
    let joined = |mut run: Box<dyn Iterator<Item = &Mapping> + '_>, mut edge: u64, up: bool| {
        let mut bytes = 0;
        while let Some(m) = run.next().filter(|m| m.is_candidate()) {
            if edge != (if up { m.start } else { m.end }) {
                break;
            }
            bytes += m.end - m.start;
            edge = if up { m.end } else { m.start };
        }
        bytes
    };
    let before = joined(Box::new(all[..at].iter().rev()), mapping.start, false);
    let bytes = mapping.end - mapping.start
        + joined(Box::new(all[at + 1..].iter()), mapping.end, true)
        + before;
    let start = mapping.start - before;
    let is_behind_file = all.iter().any(|m| m.end == start && m.inode != 0);
    let (least, because) = if is_behind_file {
        (BEHIND_FILE_BYTES_MIN, "what lies behind a file may be data of a library that we use")
    } else {
        (MAPPING_BYTES_MIN, "they come and go and hold little")
    };
    (bytes < least).then(|| {
        format!(
            "its mapping has {} with its neighbours; below {} they are left alone, because \
             {because}",
            human_bytes(bytes),
            human_bytes(least)
        )
    })
}

/// Which of the pages in `[start, end)` are present; `None` if that cannot be read.
fn present(pid: u32, start: u64, end: u64) -> Option<Vec<bool>> {
    let file = File::open(format!("/proc/{pid}/pagemap")).ok()?;
    let mut bytes = vec![0; ((end - start) / PAGE_BYTES * 8) as usize];
    file.read_exact_at(&mut bytes, start / PAGE_BYTES * 8).ok()?;
    // Bit 63: present. Bit 62: in the kernel's swap.
    Some(bytes.chunks_exact(8).map(|entry| entry[7] & 0xc0 != 0).collect())
}

/// The first address in `[start, end)` that may be followed, or else is mapped: memory need not
/// begin with its first region.
fn first_mapped(all: &[Mapping], start: u64, end: u64) -> Option<u64> {
    let inside = || all.iter().filter(|m| m.start < end && start < m.end);
    let first = inside().find(|m| m.is_candidate()).or_else(|| inside().next());
    first.map(|mapping| mapping.start.max(start))
}

/// Adds to an answer what only the address space can say: the mapping and the page at `address`, or
/// the names of the groups' mappings.
pub(super) fn add(answer: &mut Value, pid: u32, address: Option<u64>) {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps"));
    let all = mappings(maps.as_deref().unwrap_or_default());
    let holds = |address: u64| all.iter().find(|m| m.start <= address && address < m.end);
    let Some(address) = address else {
        for group in answer["groups"].as_array_mut().into_iter().flatten() {
            let Some((start, end)) = group["start"].as_u64().zip(group["end"].as_u64()) else {
                continue;
            };
            if let Some(mapping) = holds(end - 1) {
                group["mapping"] = mapping.name.as_str().into();
            }
            group["address"] = first_mapped(&all, start, end).unwrap_or(start).into();
        }
        return;
    };
    answer["mapping"] = holds(address).map_or(
        Value::Null,
        |m| json!({ "start": m.start, "end": m.end, "perms": m.perms, "name": m.name }),
    );
    let start = address & !(REGION_BYTES - 1);
    let pages = present(pid, start, start + REGION_BYTES);
    let page = pages.as_ref().map(|p| p[((address - start) / PAGE_BYTES) as usize]);
    answer["page"] = page.map_or(Value::Null, |p| if p { "in_dram" } else { "not_in_dram" }.into());
    if answer["tracked"] == false {
        let seen = match maps {
            Err(e) => Some(format!("/proc/{pid}/maps cannot be read: {e}")),
            Ok(_) => why_not(&all, address),
        };
        let why = seen.unwrap_or_else(|| settled(pid, &all, address, pages.as_deref()));
        answer["why_not"] = why.into();
    }
}

/// A number of `/proc/PID/status`, 0 if it is not there.
fn field(status: &str, key: &str) -> u64 {
    let rest = status.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
    rest.and_then(|rest| rest.split_ascii_whitespace().next()?.parse().ok()).unwrap_or(0)
}

/// Bytes that a program has locked, by its `/proc/PID/status`: less what the runtime locks of its
/// own where it may. (Who may no longer may have been allowed to when it started.)
pub(crate) fn locked_by_program(status: &str) -> u64 {
    const CAP_IPC_LOCK: u32 = 14;
    let capabilities = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let capabilities = capabilities.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok());
    let may_lock_all = capabilities.is_some_and(|set| set >> CAP_IPC_LOCK & 1 == 1);
    match field(status, "VmLck") << 10 {
        bytes if may_lock_all => bytes.saturating_sub(LOCKED_STACK_BYTES),
        LOCKED_STACK_BYTES => 0,
        bytes => bytes,
    }
}

/// Whether the mapping at `address` is locked, by `/proc/PID/smaps`.
fn is_locked(smaps: impl BufRead, address: u64) -> bool {
    let mut is_here = false;
    for line in smaps.lines().map_while(Result::ok) {
        if let Some(flags) = line.strip_prefix("VmFlags:").filter(|_| is_here) {
            return flags.split_ascii_whitespace().any(|flag| flag == "lo");
        }
        if let Some(mapping) = mappings(&line).first() {
            is_here = mapping.start <= address && address < mapping.end;
            if mapping.start > address {
                break;
            }
        }
    }
    false
}

/// Why memory that could be followed is not: as exactly as it can be known from outside.
fn settled(pid: u32, all: &[Mapping], address: u64, pages: Option<&[bool]>) -> String {
    let start = address & !(REGION_BYTES - 1);
    // Every mapping's pages are counted for this: not where nothing is locked.
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let smaps = || File::open(format!("/proc/{pid}/smaps")).map(BufReader::new);
    if field(&status, "VmLck") > 0 && smaps().is_ok_and(|smaps| is_locked(smaps, address)) {
        return "its mapping is locked (mlock), and what is locked is not moved".into();
    }
    let of_mapping = |n: &usize| {
        let at = start + *n as u64 * PAGE_BYTES;
        all.iter().any(|m| m.is_candidate() && m.start <= at && at < m.end)
    };
    if let Some(pages) = pages {
        let mapped: Vec<usize> = (0..pages.len()).filter(of_mapping).collect();
        let there = mapped.iter().filter(|n| pages[**n]).count();
        if (there as f64) < PRESENT_SHARE_MIN * mapped.len() as f64 {
            return format!(
                "only {there} of the {} pages that its 2 MiB could hold are present; a region is \
                 followed from three quarters on",
                mapped.len()
            );
        }
    }
    "it could be followed. It may be young (a region is looked at for one window first), change \
     too quickly (then it is left alone for 8 windows), be kept from children by the program \
     (MADV_DONTFORK), or be memory of Terrace's runtime itself"
        .into()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAPS: &str = "\
55d0c0000000-55d0c0100000 r-xp 00000000 08:01 1234                       /usr/bin/redis-server
55d0c0100000-55d0c0180000 rw-p 00000000 00:00 0 
55d0c0200000-55d0c0220000 rw-p 00000000 00:00 0                          [heap]
7f0000000000-7f0000400000 rw-p 00000000 00:00 0 
7f0000400000-7f0000500000 rw-s 00000000 00:01 99                         /dev/shm/a b (deleted)
7f0000500000-7f0000600000 ---p 00000000 00:00 0 
7f0000700000-7f0000900000 rw-p 00000000 00:00 0                          [anon:arena]
7f0000900000-7f0000b00000 rw-p 00000000 00:00 0 
7ffd00000000-7ffd00100000 rw-p 00000000 00:00 0                          [stack]
7ffd00200000-7ffd00204000 r--p 00000000 00:00 0                          [vvar]
";

    #[test]
    fn each_kind_of_memory_has_its_reason() {
        let all = mappings(MAPS);
        assert_eq!(all.len(), 10);
        assert_eq!(all[4].name, "/dev/shm/a b (deleted)");
        let why = |address| why_not(&all, address).unwrap_or_else(|| "-".into());
        for (address, part) in [
            (0x1000, "nothing is mapped there"),
            (0x55d0_c000_0000, "file /usr/bin/redis-server"),
            (0x55d0_c020_0000, "has 128.0 KiB with its neighbours; below 256.0 KiB"),
            (0x55d0_c010_0000, "has 512.0 KiB with its neighbours; below 4.0 MiB they are left"),
            (0x7f00_0040_0000, "shared memory (/dev/shm/a b (deleted))"),
            (0x7f00_0050_0000, "protection is ---p"),
            (0x7ffd_0000_0000, "stack of the main thread"),
            (0x7ffd_0020_0000, "[vvar], a mapping of the kernel's own"),
            (0x7f00_0060_0000, "nothing is mapped there"),
            // Large enough by itself, or with its neighbour, in both directions.
            (0x7f00_0000_0000, "-"),
            (0x7f00_0070_0000, "-"),
            (0x7f00_0090_0000, "-"),
        ] {
            assert!(why(address).contains(part), "{address:x}: {}", why(address));
        }
    }

    #[test]
    fn a_group_begins_where_its_memory_does() {
        let all = mappings(MAPS);
        let first = |start, end| first_mapped(&all, start, end);
        assert_eq!(first(0x7f00_0060_0000, 0x7f00_00a0_0000), Some(0x7f00_0070_0000));
        assert_eq!(first(0x7f00_0020_0000, 0x7f00_0060_0000), Some(0x7f00_0020_0000));
        // Behind a file, and where nothing else is.
        assert_eq!(first(0x55d0_c000_0000, 0x55d0_c020_0000), Some(0x55d0_c010_0000));
        assert_eq!(first(0x7f00_0040_0000, 0x7f00_0050_0000), Some(0x7f00_0040_0000));
        assert_eq!(first(0x1000, 0x2000), None);
    }

    #[test]
    fn what_the_runtime_locks_is_not_the_programs() {
        let status = |kib: u64, capabilities: &str| {
            locked_by_program(&format!(
                "VmPeak:\t  100 kB\nVmLck:\t{kib:8} kB\nCapEff:\t{capabilities}\n"
            ))
        };
        let (root, user) = ("000001ffffffffff", "0000000000000000");
        assert_eq!([status(0, root), status(16, root), status(80, root)], [0, 0, 64 << 10]);
        // It may have been root when it started.
        assert_eq!([status(0, user), status(16, user), status(80, user)], [0, 0, 80 << 10]);
        assert_eq!(locked_by_program(""), 0);
    }

    #[test]
    fn only_a_mapping_that_is_locked_is_said_to_be() {
        let smaps = "\
7f0000000000-7f0000004000 rw-p 00000000 00:00 0 
Size:                 16 kB
Locked:               16 kB
VmFlags: rd wr mr mw me lo ac 
7f0000004000-7f0000400000 rw-p 00000000 00:00 0 
Size:               4080 kB
Locked:                0 kB
VmFlags: rd wr mr mw me ac 
";
        let at = |address| is_locked(smaps.as_bytes(), address);
        assert!(at(0x7f00_0000_0000) && at(0x7f00_0000_3fff));
        assert!(!at(0x7f00_0000_4000) && !at(0x7f00_0040_0000) && !at(0x1000));
    }

    #[test]
    fn our_own_pages_are_present_once_they_were_touched() {
        let bytes = vec![1u8; 1 << 20];
        let start = (bytes.as_ptr() as u64).next_multiple_of(PAGE_BYTES);
        let pages = present(std::process::id(), start, start + 16 * PAGE_BYTES);
        assert_eq!(pages, Some(vec![true; 16]));
        let mut answer = json!({ "tracked": false });
        add(&mut answer, std::process::id(), Some(8192));
        assert_eq!(
            (&answer["why_not"], &answer["page"]),
            (&json!("nothing is mapped there"), &json!("not_in_dram"))
        );
    }
}
