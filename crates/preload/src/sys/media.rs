//! The media of this process: arenas in memory, files, mapped devices.
//!
//! What the kinds have in common: the memory that the runtime reads and writes through is its own,
//! never the application's, so no medium ever waits for a page that waits for a medium; descriptors
//! are close-on-exec, have high numbers and are protected (`interpose.rs`); mappings are kept out
//! of forked children, which have no runtime threads that could write.
//!
//! **numa**: an arena bound to a node (`MPOL_BIND`). The kernel answers a bound allocation that the
//! node cannot serve by killing a process, so the node's free memory is looked at for each MiB that
//! is written, and a node that has little left counts as full.
//!
//! **file**: see `terrace_store::medium::blocks`. Opened at the start, so that a program that
//! changes its root or its user afterwards keeps it.
//!
//! **dax**: a device node (`/dev/dax0.0`) or a file on a filesystem mounted with DAX, mapped
//! shared. It cannot be unlinked, so what was written stays there: it is enciphered unless the
//! configuration says otherwise. A file begins with a mark, by which it is known again; one that
//! holds anything else is somebody's and not touched. (A file that is not on DAX stands in for a
//! device, in tests; the planner asks whether that is meant, `crates/cli/src/media.rs`.) One
//! process at a time may use it: whoever stores the first page takes a lock (`flock`); the tiers
//! of the others refuse pages until it is gone. A lock at the start would give the device to the
//! shell that starts the program.

use super::memory::{own, Arena};
use super::proc;
use super::sync::{renew, OnlyThread};
use crate::interpose;
use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Mutex;
use terrace_core::tier::{MediumKind, Place};
use terrace_store::medium::device::{
    holds_data, is_mapped_in_place, BlockDevice, FileDevice, BLOCK_BYTES, MARK,
};
use terrace_store::{BlockMedium, Medium, MediumError};

/// Bytes written between two looks at a node's free memory.
const LOOK_EVERY_BYTES: u64 = 1 << 20;
/// Memory of a node that is left to others: this part of it, and never less than so much.
const RESERVE_SHARE: u64 = 64;
const RESERVE_BYTES_MIN: u64 = 64 << 20;
/// How often a full node, or a device that another process holds, is looked at again.
const LOOK_AGAIN_NS: u64 = 100_000_000;
/// What a read of a mapped, enciphered block is assumed to take: deciphering, mostly.
const MAPPED_READ_NS: u64 = 3_000;
/// Mappings of device DAX must be multiples of this, as devices are made unless asked otherwise.
const DAX_ALIGN_BYTES: u64 = 2 << 20;

/// Which part of a device a tier has.
#[derive(Clone, Copy, Debug)]
pub struct Share {
    /// The how-manieth.
    pub index: u64,
    /// Of how many equal ones.
    pub of: u64,
}

/// Devices opened so far, by path: the tiers of a process share them.
#[derive(Debug, Default)]
pub struct Devices(Vec<(String, &'static Dax)>);

/// Opens the medium of one tier.
pub fn open(
    kind: MediumKind,
    place: &Place,
    memory_bytes: u64,
    share: Share,
    devices: &mut Devices,
) -> Result<Box<dyn Medium>, String> {
    let capacity = if place.capacity_bytes == 0 { memory_bytes } else { place.capacity_bytes };
    let no_room = || "no address space for it (vm.overcommit_memory=2 or RLIMIT_AS)".to_string();
    let path = Path::new(&place.path);
    let at_path = |e: io::Error| format!("{}: {e}", place.path);
    match kind {
        MediumKind::Dram | MediumKind::Emulated => {
            Ok(Box::new(Arena::new(capacity).ok_or_else(no_room)?))
        }
        MediumKind::Numa => {
            let arena = Arena::new(capacity).ok_or_else(no_room)?;
            let at_node = |e: io::Error| format!("memory of node {}: {e}", place.node);
            arena.bind(place.node).map_err(at_node)?;
            let meminfo = format!("/sys/devices/system/node/node{}/meminfo", place.node);
            let meminfo = protected(File::open(meminfo).map_err(at_node)?).map_err(at_node)?;
            Ok(Box::new(NodeArena {
                arena,
                meminfo,
                written: AtomicU64::new(0),
                is_low: AtomicBool::new(false),
                looked_at_ns: AtomicU64::new(0),
            }))
        }
        MediumKind::File => {
            let device = FileDevice::unlinked_in(path).map_err(at_path)?;
            let raised = proc::raise_fd(device.as_raw_fd()).ok_or_else(|| no_descriptor(path))?;
            interpose::protect_fd(raised);
            let device = device.with_file(proc::file_from(raised));
            Ok(Box::new(BlockMedium::open(device, capacity).map_err(at_path)?))
        }
        MediumKind::Dax => {
            let known = devices.0.iter().find(|(p, _)| *p == place.path).map(|(_, dax)| *dax);
            let in_the_clear = !place.is_enciphered;
            let dax = match known {
                Some(dax) => {
                    dax.admit(place.capacity_bytes, in_the_clear).map_err(at_path)?;
                    dax
                }
                None => {
                    let dax =
                        Dax::open(path, place.capacity_bytes, in_the_clear).map_err(at_path)?;
                    let dax: &'static Dax = Box::leak(Box::new(dax));
                    devices.0.push((place.path.clone(), dax));
                    dax
                }
            };
            let part = dax.part(share);
            if place.is_enciphered {
                let len = part.capacity();
                Ok(Box::new(BlockMedium::untried(part, len, MAPPED_READ_NS).map_err(at_path)?))
            } else {
                Ok(Box::new(part))
            }
        }
    }
}

fn no_descriptor(path: &Path) -> String {
    format!("{}: no free descriptor (RLIMIT_NOFILE)", path.display())
}

/// The same file by a descriptor that the application neither closes nor replaces.
fn protected(file: File) -> io::Result<File> {
    let raised = proc::raise_fd(file.as_raw_fd()).ok_or_else(io::Error::last_os_error)?;
    interpose::protect_fd(raised);
    Ok(proc::file_from(raised))
}

// ---- numa ----------------------------------------------------------------------------------

/// An arena on one node.
struct NodeArena {
    arena: Arena,
    /// The node's own `meminfo`.
    meminfo: File,
    /// Bytes written since the last look.
    written: AtomicU64,
    is_low: AtomicBool,
    looked_at_ns: AtomicU64,
}

impl NodeArena {
    fn look(&self) {
        let mut text = [0u8; 4096];
        let n = self.meminfo.read_at(&mut text, 0).unwrap_or(0);
        let low = std::str::from_utf8(&text[..n]).ok().and_then(is_low).unwrap_or(true);
        self.is_low.store(low, Ordering::Relaxed);
        self.written.store(0, Ordering::Relaxed);
        self.looked_at_ns.store(super::thread::now_ns(), Ordering::Relaxed);
    }
}

/// Whether a node with this `meminfo` has little left; page cache that is not in use can be had.
fn is_low(meminfo: &str) -> Option<bool> {
    let bytes = |name: &str| {
        let after = &meminfo[meminfo.find(name)? + name.len()..];
        Some(after.split_ascii_whitespace().next()?.parse::<u64>().ok()? << 10)
    };
    let total = bytes("MemTotal:")?;
    let free = bytes("MemFree:")? + bytes("Inactive(file):").unwrap_or(0);
    Some(free < (total / RESERVE_SHARE).max(RESERVE_BYTES_MIN))
}

impl Medium for NodeArena {
    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<(), MediumError> {
        self.arena.read(offset, buf)
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), MediumError> {
        self.written.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        self.arena.write(offset, bytes)
    }

    fn release(&self, offset: u64, len: u64) {
        self.arena.release(offset, len);
    }

    fn capacity(&self) -> u64 {
        self.arena.capacity()
    }

    fn accepts(&self) -> Result<(), MediumError> {
        if self.is_low.load(Ordering::Relaxed) {
            let since = super::thread::now_ns() - self.looked_at_ns.load(Ordering::Relaxed);
            if since > LOOK_AGAIN_NS {
                self.look();
            }
        }
        if self.is_low.load(Ordering::Relaxed) {
            Err(MediumError::Full)
        } else {
            Ok(())
        }
    }

    fn work_off(&self) {
        if self.written.load(Ordering::Relaxed) >= LOOK_EVERY_BYTES {
            self.look();
        }
    }
}

// ---- dax -----------------------------------------------------------------------------------

/// Ranges of mapped devices.
static DAX_RANGES: Mutex<Vec<(u64, u64)>> = Mutex::new(Vec::new());

/// Where devices are mapped: pages there are not memory, whatever the kernel counts.
pub fn dax_ranges() -> Vec<(u64, u64)> {
    DAX_RANGES.lock().unwrap_or_else(|e| e.into_inner()).clone()
}

/// In a forked child: they are its parent's.
pub fn forget(only: &OnlyThread) {
    renew(only, &DAX_RANGES, Vec::new());
}

/// A mapped device. Never unmapped.
#[derive(Debug)]
struct Dax {
    file: File,
    base: u64,
    len: u64,
    /// Bytes at its front that no tier has: in a file the block with the mark.
    head: u64,
    /// It is a file in the page cache, which is memory: one that stands in for a device.
    stands_in: bool,
    /// What the medium said that it was opened for.
    capacity: u64,
    /// This process holds the lock.
    is_held: AtomicBool,
    tried_at_ns: AtomicU64,
}

impl Dax {
    /// Maps the first `capacity` bytes of a device or file, all of it for 0.
    fn open(path: &Path, capacity: u64, in_the_clear: bool) -> io::Result<Dax> {
        let flags = libc::O_CLOEXEC | libc::O_NOCTTY;
        let file = OpenOptions::new().read(true).write(true).custom_flags(flags).open(path)?;
        let (size, align) = size_of(&file)?;
        keeps_others_out(&file.metadata()?, in_the_clear)?;
        if capacity > size {
            let short = format!("it has {} MiB, not {}", size >> 20, capacity >> 20);
            return Err(io::Error::new(io::ErrorKind::InvalidInput, short));
        }
        let len = if capacity == 0 { size } else { capacity } / align * align;
        let head = if file.metadata()?.is_file() { BLOCK_BYTES as u64 } else { 0 };
        if len <= head {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is too small"));
        }
        if head > 0 && holds_data(&file)? {
            let why = "it holds data, which would be overwritten; name a file of zeros";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
        reserve(&file, len)?;
        let stands_in = head > 0 && !is_mapped_in_place(&file);
        let base = map_shared(&file, len)?;
        let file = protected(file)?;
        DAX_RANGES.lock().unwrap_or_else(|e| e.into_inner()).push((base, base + len));
        let (is_held, tried_at_ns) = (AtomicBool::new(false), AtomicU64::new(0));
        Ok(Dax { file, base, len, head, stands_in, capacity, is_held, tried_at_ns })
    }

    /// Whether another medium may be on it, too: the parts of all are equal, and who may open it
    /// depends on what is there.
    fn admit(&self, capacity: u64, in_the_clear: bool) -> io::Result<()> {
        if capacity != self.capacity {
            let why = "media of different capacities name it";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
        keeps_others_out(&self.file.metadata()?, in_the_clear)
    }

    /// One of several equal parts.
    fn part(&'static self, share: Share) -> DaxPart {
        let len = (self.len - self.head) / share.of / 4096 * 4096;
        let base = self.base + self.head + share.index * len;
        DaxPart { dax: self, arena: Arena::over(base, len) }
    }

    /// Whether the device is ours alone; takes it if it is free.
    fn hold(&self) -> bool {
        if self.is_held.load(Ordering::Relaxed) {
            return true;
        }
        let now = super::thread::now_ns();
        let tried = self.tried_at_ns.load(Ordering::Relaxed);
        if tried != 0 && now - tried < LOOK_AGAIN_NS {
            return false;
        }
        self.tried_at_ns.store(now, Ordering::Relaxed);
        // SAFETY: a system call on our own descriptor.
        let held =
            unsafe { libc::flock(self.file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) == 0 };
        let held = held && self.mark().is_ok();
        self.is_held.store(held, Ordering::Relaxed);
        held
    }

    /// Marks a file as ours, before anything else is written. Who put something there since it was
    /// opened keeps it.
    fn mark(&self) -> io::Result<()> {
        if self.head == 0 {
            return Ok(());
        }
        if holds_data(&self.file)? {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        self.file.write_all_at(MARK, 0)
    }
}

/// Whether a device or file is closed to other users, as far as it has to be: not everybody may
/// write to it, and where pages are on it in the clear nobody else may read it or open it up.
/// (A group that may write to it is the administrator's choice; what is enciphered is checked.)
fn keeps_others_out(of: &Metadata, in_the_clear: bool) -> io::Result<()> {
    let (mode, others) = (of.mode() & 0o777, if in_the_clear { 0o066 } else { 0o002 });
    let refuse = |why: String| Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
    if mode & others != 0 {
        let may = if mode & 0o022 != 0 { "write to" } else { "read" };
        return refuse(format!("other users can {may} it (mode {mode:o}); chmod 600 closes it"));
    }
    let owner = of.uid();
    if in_the_clear && owner != 0 && owner != super::socket::effective_user() {
        return refuse(format!("it belongs to user {owner} and would hold pages in the clear"));
    }
    Ok(())
}

/// Bytes of a device or file, and what the length of a mapping must be a multiple of.
fn size_of(file: &File) -> io::Result<(u64, u64)> {
    let metadata = file.metadata()?;
    if metadata.is_file() {
        return Ok((metadata.len(), 4096));
    }
    if !metadata.file_type().is_char_device() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "neither a DAX device nor a file"));
    }
    let (major, minor) = (libc::major(metadata.rdev()), libc::minor(metadata.rdev()));
    let text = std::fs::read_to_string(format!("/sys/dev/char/{major}:{minor}/size"))
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, "not a DAX device"))?;
    Ok((text.trim().parse().unwrap_or(0), DAX_ALIGN_BYTES))
}

/// Has the filesystem find the room that the length of a file promises. Where it has holes, and
/// there is no room when one of them is written to, by way of the mapping, that is a signal, which
/// ends the program.
fn reserve(file: &File, len: u64) -> io::Result<()> {
    if !file.metadata()?.is_file() {
        return Ok(());
    }
    let mode = libc::FALLOC_FL_KEEP_SIZE;
    // SAFETY: a system call on our own descriptor; what the file holds stays as it is.
    if unsafe { libc::fallocate(file.as_raw_fd(), mode, 0, len as libc::off_t) } == 0 {
        return Ok(());
    }
    match io::Error::last_os_error() {
        // A filesystem without the call: as it was made, then.
        e if e.raw_os_error() == Some(libc::EOPNOTSUPP) => Ok(()),
        e => Err(e),
    }
}

fn map_shared(file: &File, len: u64) -> io::Result<u64> {
    // With MAP_SYNC, files on DAX filesystems are written without a page cache in between; what is
    // not DAX refuses it.
    for flags in [libc::MAP_SHARED_VALIDATE | libc::MAP_SYNC, libc::MAP_SHARED] {
        // SAFETY: a fresh mapping; nothing else is affected.
        let p = unsafe {
            let rw = libc::PROT_READ | libc::PROT_WRITE;
            libc::mmap(std::ptr::null_mut(), len as usize, rw, flags, file.as_raw_fd(), 0)
        };
        if p == libc::MAP_FAILED {
            continue;
        }
        for advice in [libc::MADV_DONTFORK, libc::MADV_DONTDUMP] {
            // SAFETY: advice on the mapping just made. Where it fails, a child has the mapping too,
            // and no thread that would use it.
            unsafe { libc::madvise(p, len as usize, advice) };
        }
        if !own(p as u64, len) {
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        return Ok(p as u64);
    }
    Err(io::Error::last_os_error())
}

/// A tier's part of a device.
struct DaxPart {
    dax: &'static Dax,
    arena: Arena,
}

/// In the clear: bytes where the pool puts them.
impl Medium for DaxPart {
    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<(), MediumError> {
        self.arena.read(offset, buf)
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), MediumError> {
        if !self.dax.hold() {
            return Err(MediumError::Io);
        }
        self.arena.write(offset, bytes)
    }

    /// A device keeps its space whatever is on it.
    fn release(&self, _offset: u64, _len: u64) {}

    fn capacity(&self) -> u64 {
        self.arena.capacity()
    }

    fn lies_in_memory(&self) -> bool {
        self.dax.stands_in
    }

    fn accepts(&self) -> Result<(), MediumError> {
        if self.dax.hold() {
            Ok(())
        } else {
            Err(MediumError::Io)
        }
    }
}

/// Enciphered: whole blocks.
impl BlockDevice for DaxPart {
    fn read(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.arena.read(offset, buf).map_err(io::Error::other)
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        if !self.dax.hold() {
            return Err(io::ErrorKind::ResourceBusy.into());
        }
        self.arena.write(offset, bytes).map_err(io::Error::other)
    }

    fn punch(&self, _offset: u64, _len: u64) {}

    fn is_ready(&self) -> bool {
        self.dax.hold()
    }

    fn waits(&self) -> bool {
        false
    }

    fn lies_in_memory(&self) -> bool {
        self.dax.stands_in
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::Permissions;
    use std::io::Write;
    use std::os::unix::fs::PermissionsExt;

    fn whole() -> Share {
        Share { index: 0, of: 1 }
    }

    /// A file in shared memory stands in for the device: mapped and locked the same way.
    fn device(name: &str, bytes: usize) -> String {
        let path = format!("/dev/shm/terrace-{name}-{}", std::process::id());
        let mut file = File::create(&path).expect("shared memory");
        file.write_all(&vec![0; bytes]).expect("room in it");
        set_mode(&path, 0o600);
        path
    }

    fn set_mode(path: &str, mode: u32) {
        std::fs::set_permissions(path, Permissions::from_mode(mode)).expect("our own file");
    }

    #[test]
    fn a_device_open_to_others_is_refused() {
        let path = device("open", 1 << 20);
        for (mode, is_enciphered, why) in [
            (0o600, true, None),
            (0o644, true, None),
            (0o660, true, None),
            (0o602, true, Some("write to it (mode 602)")),
            (0o600, false, None),
            (0o640, false, Some("read it (mode 640)")),
            (0o604, false, Some("read it")),
            (0o606, false, Some("write to it")),
        ] {
            set_mode(&path, mode);
            let place = place(&path, is_enciphered);
            let said = open(MediumKind::Dax, &place, 0, whole(), &mut Devices::default()).err();
            match (&said, why) {
                (None, None) => {}
                (Some(said), Some(why)) if said.contains(why) => {}
                _ => panic!("mode {mode:o}, enciphered {is_enciphered}: {said:?}"),
            }
        }
        std::fs::remove_file(path).expect("removed");
    }

    fn place(path: &str, is_enciphered: bool) -> Place {
        Place { path: path.into(), is_enciphered, ..Place::default() }
    }

    #[test]
    fn a_device_holds_bytes_and_in_the_clear_only_if_asked() {
        let secret = [b'S'; 300];
        for is_enciphered in [true, false] {
            let path = device("clear", 8 << 20);
            let place = place(&path, is_enciphered);
            let open = || open(MediumKind::Dax, &place, 0, whole(), &mut Devices::default());
            let medium = open().expect("a device");
            // A block of the file is for the mark.
            assert_eq!(medium.capacity(), (8 << 20) - 4096);
            for n in 0..2000u64 {
                medium.accepts().expect("free");
                medium.write(n * 4096 + 100, &secret).expect("room");
                medium.work_off();
            }
            let mut back = [0; 300];
            for n in 0..2000u64 {
                medium.read(n * 4096 + 100, &mut back).expect("a read");
                assert_eq!(back, secret);
            }
            assert!(!medium.waits());
            assert!(medium.lies_in_memory(), "it stands in for a device");
            let on_device = std::fs::read(&path).expect("the file");
            let plain = on_device.windows(8).filter(|w| **w == secret[..8]).count();
            assert_eq!(plain == 0, is_enciphered, "{plain} places in the clear");
            assert!(on_device.starts_with(MARK), "the mark is gone");
            assert!(on_device[4096..].iter().any(|b| *b != 0), "nothing was written");
            // Another process - another opening of the file - must not write over it.
            let other = open().expect("opening is allowed");
            assert_eq!(other.accepts(), Err(MediumError::Io));
            std::fs::remove_file(path).expect("removed");
        }
    }

    #[test]
    fn tiers_on_one_device_have_a_part_each() {
        let path = device("parts", 4 << 20);
        let (place, mut devices) = (place(&path, false), Devices::default());
        let mut part = |index| {
            open(MediumKind::Dax, &place, 0, Share { index, of: 2 }, &mut devices).expect("a part")
        };
        let (a, b) = (part(0), part(1));
        let len = (2 << 20) - 4096;
        assert_eq!((a.capacity(), b.capacity()), (len, len));
        a.write(len - 4, b"aaaa").expect("a write");
        b.write(0, b"bbbb").expect("the same process holds it");
        assert_eq!(a.write(len - 3, b"aaaa"), Err(MediumError::OutOfRange));
        let mut back = [0; 4];
        a.read(len - 4, &mut back).expect("a read");
        assert_eq!(&back, b"aaaa");
        std::fs::remove_file(path).expect("removed");
    }

    #[test]
    fn media_on_one_device_agree_on_its_length_and_none_opens_what_is_in_the_clear() {
        let (path, mut devices) = (device("agree", 4 << 20), Devices::default());
        set_mode(&path, 0o644);
        let mut said = |place: &Place| {
            open(MediumKind::Dax, place, 0, Share { index: 0, of: 2 }, &mut devices).err()
        };
        assert_eq!(said(&place(&path, true)), None);
        assert!(said(&place(&path, false)).is_some_and(|why| why.contains("read it (mode 644)")));
        let shorter = Place { capacity_bytes: 2 << 20, ..place(&path, true) };
        assert!(said(&shorter).is_some_and(|why| why.contains("capacities")));
        std::fs::remove_file(path).expect("removed");
    }

    #[test]
    fn a_file_has_its_room_before_anything_is_put_there() {
        let path = device("room", 0);
        File::create(&path).and_then(|file| file.set_len(4 << 20)).expect("a file with a hole");
        open(MediumKind::Dax, &place(&path, true), 0, whole(), &mut Devices::default())
            .expect("a device");
        let has = std::fs::metadata(&path).expect("the file").blocks() * 512;
        assert!(has >= 4 << 20, "{has} bytes are there");
        std::fs::remove_file(path).expect("removed");
    }

    #[test]
    fn a_file_that_holds_data_stays_as_it_is() {
        let path = device("data", 2 << 20);
        let opened =
            || open(MediumKind::Dax, &place(&path, true), 0, whole(), &mut Devices::default());
        let file = OpenOptions::new().write(true).open(&path).expect("our own file");
        let early = opened().expect("zeros");
        file.write_all_at(b"kept", 9000).expect("room");
        let why = opened().err().unwrap_or_default();
        assert!(why.contains("it holds data, which would be overwritten"), "{why}");
        // It was put there between the opening and the first page.
        assert_eq!(early.accepts(), Err(MediumError::Io));
        let on_device = std::fs::read(&path).expect("the file");
        assert_eq!(on_device.iter().filter(|b| **b != 0).count(), 4, "it was written to");
        std::fs::remove_file(path).expect("removed");
    }

    #[test]
    fn what_is_no_device_is_refused_with_the_reason() {
        let path = device("small", 1 << 20);
        let mut too_much = place(&path, true);
        too_much.capacity_bytes = 2 << 20;
        let refused = |p: &Place| {
            open(MediumKind::Dax, p, 0, whole(), &mut Devices::default()).err().unwrap_or_default()
        };
        assert!(refused(&too_much).ends_with("it has 1 MiB, not 2"), "{}", refused(&too_much));
        assert!(refused(&place("/dev/null", true)).ends_with("not a DAX device"));
        assert!(refused(&place("/nowhere", true)).starts_with("/nowhere: No such file"));
        std::fs::remove_file(path).expect("removed");
    }

    #[test]
    fn a_node_is_low_when_little_is_left() {
        let text = |free_kib: u64, cache_kib: u64| {
            format!(
                "Node 1 MemTotal:       8388608 kB\nNode 1 MemFree: {free_kib} kB\n\
                 Node 1 Inactive(file): {cache_kib} kB\n"
            )
        };
        // An eighth of a GiB is left to others: a 64th of 8 GiB.
        assert_eq!(is_low(&text(131_072, 0)), Some(false));
        assert_eq!(is_low(&text(131_071, 0)), Some(true));
        assert_eq!(is_low(&text(10, 131_072)), Some(false));
        assert_eq!(is_low("Node 1 Nothing: 3 kB"), None);
    }

    #[test]
    fn memory_of_a_node_that_exists_can_be_bound_and_of_one_that_does_not_cannot() {
        let node = |node| Place { node, ..Place::default() };
        let open = |p: &Place| open(MediumKind::Numa, p, 1 << 22, whole(), &mut Devices::default());
        let why = open(&node(1000)).err().unwrap_or_default();
        assert!(why.starts_with("memory of node 1000: "), "{why}");
        // Some sandboxes forbid mbind; then there is nothing to see but the refusal.
        match open(&node(0)) {
            Ok(medium) => {
                medium.write(0, b"here").expect("room");
                medium.work_off();
                let mut back = [0; 4];
                medium.read(0, &mut back).expect("a read");
                assert_eq!(&back, b"here");
            }
            Err(why) => assert!(why.contains("not permitted") || why.contains("No such"), "{why}"),
        }
    }
}
