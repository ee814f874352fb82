//! What a medium of a configuration is on this machine: is it there, and what is to be said of it.
//!
//! The runtime opens media itself, in the application. These are the same questions asked before a
//! program is started, so that the answer comes with the line of the file that is wrong.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use terrace_core::tier::{Medium, MediumKind, PATH_BYTES_MAX};
use terrace_store::medium::device::{holds_data, is_mapped_in_place, FileDevice};
use terrace_store::FileMedium;

/// Size of the file that a `file` medium is tried with.
const TRIAL_BYTES: u64 = 1 << 20;

/// A path as every process of the program understands it, whatever its working directory.
pub fn absolute(path: &str) -> String {
    let path = Path::new(path);
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    absolute.to_string_lossy().into_owned()
}

/// Whether there is a NUMA node of that number with memory; else why not and what to do.
pub fn check_node(node: u32) -> Result<(), String> {
    let list = fs::read_to_string("/sys/devices/system/node/has_memory")
        .map_err(|_| "this kernel knows no NUMA nodes; remove the medium".to_string())?;
    let list = list.trim();
    if in_list(list, node) {
        Ok(())
    } else {
        Err(format!("this machine has no node {node} with memory; it has {list}"))
    }
}

/// Whether a list such as `0-1,3` holds `n`.
fn in_list(list: &str, n: u32) -> bool {
    list.split(',').any(|part| {
        let (from, to) = part.split_once('-').unwrap_or((part, part));
        match (from.parse::<u32>(), to.parse::<u32>()) {
            (Ok(from), Ok(to)) => (from..=to).contains(&n),
            _ => false,
        }
    })
}

/// Whether a file without a name can be made, written and read in a directory.
pub fn check_directory(path: &str) -> Result<(), String> {
    check_path(path)?;
    let cannot = |e| format!("{path:?} cannot hold a file: {e}; name a directory that can");
    FileMedium::temporary(Path::new(path), TRIAL_BYTES).map(drop).map_err(cannot)
}

/// Whether a device or file can be mapped, and has so many bytes. A file must have nothing in it
/// that would be overwritten, and be mapped without a page cache in between unless it `stands_in`
/// for a device.
pub fn check_dax(path: &str, capacity_bytes: u64, stands_in: bool) -> Result<(), String> {
    check_path(path)?;
    let cannot = |e: std::io::Error| format!("{path:?} cannot be used: {e}; name another");
    let file = fs::OpenOptions::new().read(true).write(true).open(path).map_err(cannot)?;
    let metadata = file.metadata().map_err(cannot)?;
    let bytes = if metadata.is_file() {
        metadata.len()
    } else if metadata.file_type().is_char_device() {
        let (major, minor) = (libc::major(metadata.rdev()), libc::minor(metadata.rdev()));
        let size = fs::read_to_string(format!("/sys/dev/char/{major}:{minor}/size"));
        size.ok().and_then(|s| s.trim().parse().ok()).unwrap_or(0)
    } else {
        0
    };
    if bytes == 0 {
        return Err(format!("{path:?} is no DAX device and no file with room; name another"));
    }
    if capacity_bytes > bytes {
        let mib = bytes >> 20;
        return Err(format!("{path:?} has {mib} MiB; lower capacity_mib or leave it out"));
    }
    if !metadata.is_file() {
        return Ok(());
    }
    if !stands_in && !is_mapped_in_place(&file) {
        return Err(format!(
            "{path:?} is an ordinary file, on a filesystem that is not mounted with dax: its \
             content would be overwritten, and what is stored there would lie in memory; name a \
             DAX device or a file on DAX, or use kind = \"file\" with a directory (for tests, \
             stand_in = true takes it for a device)"
        ));
    }
    if holds_data(&file).map_err(cannot)? {
        return Err(format!(
            "{path:?} holds data, which would be overwritten; name a new file \
             (fallocate -l 1G FILE makes one of 1 GiB)"
        ));
    }
    Ok(())
}

/// Whether a `dax` medium is a file that only stands in for a device: it is in the page cache.
fn stands_in(path: &str) -> bool {
    fs::metadata(path).is_ok_and(|metadata| metadata.is_file())
        && fs::File::open(path).is_ok_and(|file| !is_mapped_in_place(&file))
}

fn check_path(path: &str) -> Result<(), String> {
    if path.len() > PATH_BYTES_MAX || path.contains('\0') {
        return Err(format!("not a path; use at most {PATH_BYTES_MAX} bytes"));
    }
    Ok(())
}

/// A medium in a few words: what it is and where, for lists. Tries a directory again, because
/// whether its filesystem goes past the page cache is only found out that way.
pub fn describe(medium: &Medium) -> String {
    let place = &medium.place;
    let capacity = match place.capacity_bytes >> 20 {
        0 => String::new(),
        mib => format!(", {mib} MiB"),
    };
    match medium.kind {
        MediumKind::Dram => "memory".into(),
        MediumKind::Emulated => match medium.bandwidth_mib_s {
            0 => format!("emulated: +{} ns", medium.latency_ns),
            mib_s => format!("emulated: +{} ns, {mib_s} MiB/s", medium.latency_ns),
        },
        MediumKind::Numa => format!("memory of node {}{capacity}", place.node),
        MediumKind::File => {
            let how = match FileDevice::unlinked_in(Path::new(&place.path)) {
                Ok(device) => match device.in_memory() {
                    Some(name) => format!("in memory ({name}): saves nothing over dram"),
                    None if device.is_direct() => "direct I/O".into(),
                    None => "buffered, for want of direct I/O".into(),
                },
                Err(_) => "cannot be opened now".into(),
            };
            format!("file in {}{capacity}, encrypted, {how}", place.path)
        }
        MediumKind::Dax => {
            let how = if place.is_enciphered { "encrypted" } else { "in the clear" };
            let what = match stands_in(&place.path) {
                true => ", in memory (a stand-in): saves nothing over dram",
                false => "",
            };
            format!("{}, mapped{capacity}, {how}{what}", place.path)
        }
    }
}

/// A medium as a configuration file has it.
pub fn toml(medium: &Medium) -> String {
    let (name, kind, place) = (&medium.name, medium.kind.name(), &medium.place);
    let price = medium.usd_per_gib_month;
    let mut text =
        format!("[[medium]]\nname = {name:?}\nkind = {kind:?}\nusd_per_gib_month = {price:?}\n");
    match medium.kind {
        MediumKind::Dram => {}
        MediumKind::Emulated => {
            text += &format!("latency_ns = {}\n", medium.latency_ns);
            text += &format!("bandwidth_mib_s = {}\n", medium.bandwidth_mib_s);
        }
        MediumKind::Numa => text += &format!("node = {}\n", place.node),
        MediumKind::File => text += &format!("directory = {:?}\n", place.path),
        MediumKind::Dax => {
            text += &format!("path = {:?}\nencrypt = {}\n", place.path, place.is_enciphered);
            // The medium does not know; without the key such a file would have been refused.
            if stands_in(&place.path) {
                text += "stand_in = true\n";
            }
        }
    }
    if place.capacity_bytes > 0 {
        text += &format!("capacity_mib = {}\n", place.capacity_bytes >> 20);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrace_core::tier::Place;
    use terrace_store::medium::device::MARK;

    #[test]
    fn node_lists_are_read_as_the_kernel_writes_them() {
        for (list, n, holds) in [
            ("0", 0, true),
            ("0", 1, false),
            ("0-1,3", 1, true),
            ("0-1,3", 2, false),
            ("", 0, false),
        ] {
            assert_eq!(in_list(list, n), holds, "{n} in {list:?}");
        }
    }

    #[test]
    fn what_is_not_there_is_refused_with_a_remedy() {
        let why = check_directory("/nowhere/at/all").unwrap_err();
        assert!(
            why.contains("No such file") && why.ends_with("name a directory that can"),
            "{why}"
        );
        for stands_in in [false, true] {
            let why = check_dax("/dev/null", 0, stands_in).unwrap_err();
            assert!(why.contains("is no DAX device"), "{why}");
        }
        assert!(check_node(1023).unwrap_err().contains("no node 1023"), "no machine has 1024");
        assert_eq!(check_directory(&std::env::temp_dir().to_string_lossy()), Ok(()));
    }

    #[test]
    fn a_file_with_something_in_it_or_in_the_page_cache_is_no_device() {
        let path = std::env::temp_dir().join(format!("terrace-dax-{}", std::process::id()));
        fs::write(&path, [0; 8192]).unwrap();
        let name = path.to_str().unwrap();
        let why = check_dax(name, 0, false).unwrap_err();
        assert!(why.contains("is an ordinary file") && why.contains("overwritten"), "{why}");
        assert!(why.contains("name a DAX device"), "{why}");
        assert_eq!(check_dax(name, 0, true), Ok(()));
        let place = Place { path: name.into(), ..Place::default() };
        let medium = Medium { kind: MediumKind::Dax, place, ..Medium::dram(0.1) };
        assert!(describe(&medium).ends_with("in memory (a stand-in): saves nothing over dram"));
        assert!(toml(&medium).contains("stand_in = true"), "it is refused when it is read again");
        fs::write(&path, [&[0; 8000][..], b"a letter"].concat()).unwrap();
        let why = check_dax(name, 0, true).unwrap_err();
        assert!(why.contains("holds data, which would be overwritten; name a new"), "{why}");
        assert!(fs::read(&path).unwrap().ends_with(b"a letter"));
        fs::write(&path, [MARK, &[7; 8000]].concat()).unwrap();
        assert_eq!(check_dax(name, 0, true), Ok(()), "what a run before has left");
        fs::remove_file(&path).unwrap();
    }

    #[test]
    fn a_file_in_memory_is_not_called_direct() {
        let place = Place { path: "/dev/shm".into(), ..Place::default() };
        let medium = Medium { kind: MediumKind::File, place, ..Medium::dram(0.1) };
        let said = describe(&medium);
        assert!(
            said.ends_with(", encrypted, in memory (tmpfs): saves nothing over dram"),
            "{said}"
        );
    }

    #[test]
    fn a_relative_path_is_made_absolute() {
        assert!(absolute("x/y").ends_with("/x/y") && absolute("x/y").starts_with('/'));
        assert_eq!(absolute("/var/tmp"), "/var/tmp");
    }
}
