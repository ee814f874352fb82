//! Block devices: what a medium on a device needs of it, and a file as one.
//!
//! The file is unlinked from the start (`O_TMPFILE`, or made and unlinked at once where the
//! filesystem has none): it has no name, nobody opens it by accident, and its space is free when
//! the process ends, however it ends. It is opened with `O_DIRECT` where the filesystem allows, so
//! that cold pages do not come back into memory as page cache; where it does not, reads and writes
//! go through the page cache and [`FileDevice::is_direct`] says so. A filesystem in memory may take
//! the flag, too; what lies there is memory however it is read ([`FileDevice::in_memory`]).
//!
//! All buffers are the runtime's own, never the application's: a read or write here never touches
//! memory that is in a tier.

#![allow(unsafe_code)]

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

/// Bytes of a block: what every device reads and writes whole.
pub const BLOCK_BYTES: usize = 4096;

/// What the first block of a file that is mapped begins with, from before anything else is written
/// to it. The file keeps what was stored when the process ends, and this tells it from a file of
/// somebody else, also for a person who wonders what it is.
pub const MARK: &[u8] = b"terrace: scratch space; each run writes over what is in this file\n";
/// How much of a file is looked at for what is somebody else's.
const LOOKED_AT_BYTES: u64 = 1 << 20;

/// A buffer on the heap at an address that direct I/O accepts.
///
/// Not an array of a type with such an alignment: on the stack, as a local or on the way into its
/// box, it has rustc 1.95 lose a function's prologue (shrink-wrapping, stack probes and realignment
/// together), and the caller's registers with it.
pub struct Buffer {
    bytes: Box<[u8]>,
    start: usize,
}

impl Buffer {
    /// A buffer of zeros, `len` bytes long.
    pub fn new(len: usize) -> Buffer {
        let bytes = vec![0; len + BLOCK_BYTES].into_boxed_slice();
        // The box never moves its content, so the start stays aligned.
        let start =
            (bytes.as_ptr() as usize).next_multiple_of(BLOCK_BYTES) - bytes.as_ptr() as usize;
        Buffer { bytes, start }
    }

    /// The bytes.
    pub fn bytes(&mut self) -> &mut [u8] {
        let end = self.bytes.len() - BLOCK_BYTES + self.start;
        &mut self.bytes[self.start..end]
    }
}

/// Something that reads and writes whole blocks. Offsets and lengths are multiples of
/// [`BLOCK_BYTES`], buffers are of a [`Buffer`].
pub trait BlockDevice: Send + Sync {
    /// Fills `buf`, all of which was written before, from `offset` on.
    fn read(&self, offset: u64, buf: &mut [u8]) -> io::Result<()>;

    /// Writes all of `bytes`. When it fails, what the blocks hold has no meaning.
    fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()>;

    /// Says that blocks will not be read before they are written again. A hint.
    fn punch(&self, offset: u64, len: u64);

    /// Whether it can be written to now, as far as that is known without trying.
    fn is_ready(&self) -> bool {
        true
    }

    /// Whether a read takes so long that others should be served meanwhile.
    fn waits(&self) -> bool {
        true
    }

    /// Whether what is on it takes the machine's memory, in spite of its kind.
    fn lies_in_memory(&self) -> bool {
        false
    }
}

/// A file without a name.
#[derive(Debug)]
pub struct FileDevice {
    file: File,
    /// Device, inode and links, to know the file again. Ours has no link, a new file that was given
    /// its inode has one.
    identity: (u64, u64, u64),
    is_direct: bool,
    /// What `fstatfs` calls the filesystem.
    filesystem: u64,
}

impl FileDevice {
    /// Makes one on the filesystem of `directory` and tries it with one block.
    pub fn unlinked_in(directory: &Path) -> io::Result<FileDevice> {
        let file = open_unlinked(directory)?;
        let identity = identity(&file.metadata()?);
        let filesystem = filesystem_of(&file)?;
        let mut device = FileDevice { file, identity, is_direct: false, filesystem };
        // Set after the opening, because some filesystems refuse the two flags together.
        device.is_direct = device.set_direct(true);
        if device.is_direct {
            let mut buffer = Buffer::new(BLOCK_BYTES);
            let block = buffer.bytes();
            let tried = device.write(0, block).and_then(|()| device.read(0, block));
            // EINVAL: its blocks are larger than ours, or it only claimed to be able.
            if tried.is_err_and(|e| e.raw_os_error() == Some(libc::EINVAL)) {
                device.set_direct(false);
                device.is_direct = false;
            }
        }
        Ok(device)
    }

    /// The same file by another descriptor of it.
    pub fn with_file(self, file: File) -> FileDevice {
        FileDevice { file, ..self }
    }

    /// Whether reads and writes go past the page cache.
    pub fn is_direct(&self) -> bool {
        self.is_direct
    }

    /// Name of the filesystem if that is in memory: nothing is gained by a file there.
    pub fn in_memory(&self) -> Option<&'static str> {
        const RAMFS_MAGIC: u64 = 0x8584_58f6;
        match self.filesystem {
            n if n == libc::TMPFS_MAGIC as u64 => Some("tmpfs"),
            RAMFS_MAGIC => Some("ramfs"),
            _ => None,
        }
    }

    /// Whether the descriptor still is that of our file.
    fn is_ours(&self) -> io::Result<bool> {
        Ok(identity(&self.file.metadata()?) == self.identity)
    }

    /// Waits until what was written is on the device. The page cache takes everything; that the
    /// device has no room, or fails, shows only now, and to nobody who does not wait for it.
    ///
    /// Not `fdatasync`: nothing has to outlive the system, so that the journal need not be written
    /// nor the device's cache be emptied. But the client of NFS counts as written what its server
    /// has in memory, and hears of a failure when it asks for more, which `fdatasync` does.
    fn write_back(&self, offset: u64, len: usize) -> io::Result<()> {
        if self.filesystem == libc::NFS_SUPER_MAGIC as u64 {
            return self.file.sync_data();
        }
        let (offset, len) = (offset as libc::off64_t, len as libc::off64_t);
        let flags = libc::SYNC_FILE_RANGE_WAIT_BEFORE
            | libc::SYNC_FILE_RANGE_WRITE
            | libc::SYNC_FILE_RANGE_WAIT_AFTER;
        // SAFETY: a system call on our own descriptor; no memory is named.
        if unsafe { libc::sync_file_range(self.file.as_raw_fd(), offset, len, flags) } == 0 {
            return Ok(());
        }
        match io::Error::last_os_error() {
            // A sandbox without the call.
            e if matches!(e.raw_os_error(), Some(libc::ENOSYS | libc::EPERM)) => {
                self.file.sync_data()
            }
            e => Err(e),
        }
    }

    fn set_direct(&self, on: bool) -> bool {
        let flags = libc::O_RDWR | if on { libc::O_DIRECT } else { 0 };
        // SAFETY: F_SETFL on our own descriptor.
        unsafe { libc::fcntl(self.file.as_raw_fd(), libc::F_SETFL, flags) == 0 }
    }
}

impl AsRawFd for FileDevice {
    fn as_raw_fd(&self) -> RawFd {
        self.file.as_raw_fd()
    }
}

impl BlockDevice for FileDevice {
    fn read(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(buf, offset)
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        // A program may close descriptors that it does not know and get the number again for a file
        // of its own, which must not be written to.
        if !self.is_ours()? {
            return Err(io::Error::from_raw_os_error(libc::EBADF));
        }
        self.file.write_all_at(bytes, offset)?;
        if !self.is_direct {
            self.write_back(offset, bytes.len())?;
            // What just went out is cold by definition, and clean, so that it can be dropped.
            // SAFETY: advice on our own descriptor; no memory is named.
            unsafe {
                libc::posix_fadvise(
                    self.file.as_raw_fd(),
                    offset as libc::off_t,
                    bytes.len() as libc::off_t,
                    libc::POSIX_FADV_DONTNEED,
                );
            }
        }
        Ok(())
    }

    fn punch(&self, offset: u64, len: u64) {
        if !self.is_ours().unwrap_or(false) {
            return;
        }
        let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        let (offset, len) = (offset as libc::off_t, len as libc::off_t);
        // SAFETY: a system call on our own descriptor; no memory is named. A filesystem that cannot
        // keeps the space, which the next writes there use again.
        unsafe { libc::fallocate(self.file.as_raw_fd(), mode, offset, len) };
    }

    fn lies_in_memory(&self) -> bool {
        self.in_memory().is_some()
    }
}

/// Whether a file that would be written over holds what somebody may want to keep: its first MiB is
/// neither zeros nor begins with [`MARK`].
pub fn holds_data(file: &File) -> io::Result<bool> {
    let (mut at, mut block) = (0, [0; BLOCK_BYTES]);
    while at < LOOKED_AT_BYTES {
        let n = match file.read_at(&mut block, at) {
            Ok(0) => break,
            Ok(n) => n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            Err(e) => return Err(e),
        };
        if at == 0 && block[..n].starts_with(MARK) {
            return Ok(false);
        }
        if block[..n].iter().any(|byte| *byte != 0) {
            return Ok(true);
        }
        at += n as u64;
    }
    Ok(false)
}

/// Whether the bytes of a file are mapped where they lie (DAX) and not by way of the page cache,
/// which is memory. It must be open for reading and not be empty.
pub fn is_mapped_in_place(file: &File) -> bool {
    // What is not DAX refuses MAP_SYNC.
    let flags = libc::MAP_SHARED_VALIDATE | libc::MAP_SYNC;
    // SAFETY: a fresh mapping that nobody looks into, and that is gone again.
    unsafe {
        let null = std::ptr::null_mut();
        let p = libc::mmap(null, BLOCK_BYTES, libc::PROT_READ, flags, file.as_raw_fd(), 0);
        p != libc::MAP_FAILED && libc::munmap(p, BLOCK_BYTES) == 0
    }
}

fn identity(metadata: &std::fs::Metadata) -> (u64, u64, u64) {
    (metadata.dev(), metadata.ino(), metadata.nlink())
}

/// The number of the filesystem that a file is on.
fn filesystem_of(file: &File) -> io::Result<u64> {
    // SAFETY: zeroes are a valid statfs, which the call fills in.
    let (rc, found) = unsafe {
        let mut found: libc::statfs = std::mem::zeroed();
        (libc::fstatfs(file.as_raw_fd(), &mut found), found)
    };
    match rc {
        // (Of another width elsewhere, and no number of these has the upper half.)
        0 => Ok(found.f_type as u32 as u64),
        _ => Err(io::Error::last_os_error()),
    }
}

fn open_unlinked(directory: &Path) -> io::Result<File> {
    let nameless = OpenOptions::new()
        .read(true)
        .write(true)
        .mode(0o600)
        .custom_flags(libc::O_TMPFILE | libc::O_CLOEXEC)
        .open(directory);
    match nameless {
        // What filesystems without nameless files answer.
        Err(e) if matches!(e.raw_os_error(), Some(libc::EOPNOTSUPP | libc::EISDIR)) => {}
        done => return done,
    }
    let mut word = [0; 8];
    random(&mut word)?;
    let path = directory.join(format!(".terrace-{:016x}", u64::from_le_bytes(word)));
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .mode(0o600)
        .custom_flags(libc::O_CLOEXEC | libc::O_NOFOLLOW)
        .open(&path)?;
    std::fs::remove_file(&path)?;
    Ok(file)
}

/// Fills `bytes` (at most 256) from the kernel's generator.
pub fn random(bytes: &mut [u8]) -> io::Result<()> {
    // SAFETY: the kernel writes at most `len` bytes to the buffer; up to 256 are not cut short.
    let n = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
    if n == bytes.len() as isize {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file() -> File {
        open_unlinked(&std::env::temp_dir()).expect("a file")
    }

    #[test]
    fn data_of_others_is_told_from_room_and_from_our_own() {
        let (file, mib) = (file(), 1 << 20);
        assert!(!holds_data(&file).unwrap(), "nothing is in it");
        file.set_len(4 * mib).unwrap();
        assert!(!holds_data(&file).unwrap(), "a hole");
        file.write_all_at(b"x", mib).unwrap();
        assert!(!holds_data(&file).unwrap(), "further than is looked");
        file.write_all_at(b"x", mib - 1).unwrap();
        assert!(holds_data(&file).unwrap());
        file.write_all_at(MARK, 0).unwrap();
        assert!(!holds_data(&file).unwrap(), "ours");
        file.write_all_at(b"T", 0).unwrap();
        assert!(holds_data(&file).unwrap(), "a mark that is not whole");
        file.set_len(3).unwrap();
        assert!(holds_data(&file).unwrap(), "a short file");
    }

    /// `/dev/null` takes what is written and cannot be synchronised, like a file whose blocks do
    /// not get to the device.
    #[test]
    fn what_does_not_get_past_the_page_cache_was_not_written() {
        let null = || OpenOptions::new().read(true).write(true).open("/dev/null").expect("it");
        let device = |file: File, is_direct| {
            let identity = identity(&file.metadata().expect("an open file"));
            FileDevice { file, identity, is_direct, filesystem: 0 }
        };
        let mut buffer = Buffer::new(BLOCK_BYTES);
        assert!(device(null(), true).write(0, buffer.bytes()).is_ok(), "there is no cache");
        assert!(device(null(), false).write(0, buffer.bytes()).is_err());
        let buffered = device(file(), false);
        buffered.write(4096, buffer.bytes()).expect("room");
        buffered.read(4096, buffer.bytes()).expect("a block");
    }

    #[test]
    fn a_file_in_memory_is_known_as_such_whatever_flags_it_takes() {
        let device = FileDevice::unlinked_in(Path::new("/dev/shm")).expect("shared memory");
        assert_eq!((device.in_memory(), device.lies_in_memory()), (Some("tmpfs"), true));
    }

    #[test]
    fn a_file_in_shared_memory_is_not_mapped_in_place() {
        let file = open_unlinked(Path::new("/dev/shm")).expect("shared memory");
        file.set_len(1 << 20).unwrap();
        assert!(!is_mapped_in_place(&file));
    }
}
