//! A zram device of our own: added, filled, read and removed again.
//!
//! It is never swap, and no other device is touched. It is removed when the [`Zram`] is dropped and
//! from the panic hook, because release builds abort on a panic without dropping anything. SIGINT,
//! SIGTERM and SIGHUP only raise a flag that the loops look at, so that a Ctrl-C takes the ordinary
//! way out. SIGKILL cannot be caught: what was added is said on stderr, so that it can be removed
//! by hand.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, Once, PoisonError, TryLockError};
use std::time::Duration;

use anyhow::{bail, ensure, Context, Result};
use terrace_store::{Page, PAGE_SIZE};

use crate::bench::kernel_swap::catch_interrupts;
use crate::preflight::uffd_probe::effective_ids;
use crate::say;

const CONTROL: &str = "sys/class/zram-control";

/// How often removing is tried: whoever looks at new devices (udev) may have it open for a moment.
const REMOVE_ATTEMPTS: u32 = 20;
const REMOVE_PAUSE: Duration = Duration::from_millis(100);

/// The device that has to be removed. A static, because the panic hook must find it, and with the
/// open file, because no device is removed that somebody has open. Taken out before it is removed,
/// so that it is removed once.
static ADDED: Mutex<Option<Added>> = Mutex::new(None);

struct Added {
    /// Where `/sys` is.
    root: PathBuf,
    number: u32,
    device: Option<File>,
}

/// A page where direct I/O can take it from.
#[repr(C, align(4096))]
struct Aligned(Page);

/// What `mm_stat` says of a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct MmStat {
    /// Compressed bytes.
    pub(super) stored_bytes: u64,
    /// Bytes of the pages that hold them; the kernel's own tables are not among them.
    pub(super) used_bytes: u64,
    /// Pages of one value, which take no memory.
    pub(super) same_pages: u64,
    /// Pages stored as they are.
    pub(super) huge_pages: u64,
}

impl MmStat {
    fn parse(text: &str) -> Option<MmStat> {
        let fields: Vec<u64> =
            text.split_whitespace().map(str::parse).collect::<Result<_, _>>().ok()?;
        Some(MmStat {
            stored_bytes: *fields.get(1)?,
            used_bytes: *fields.get(2)?,
            same_pages: *fields.get(5)?,
            huge_pages: *fields.get(7)?,
        })
    }
}

/// A zram device, for as long as this value lives.
pub(super) struct Zram {
    folder: PathBuf,
    buffer: Box<Aligned>,
}

impl Zram {
    /// Adds a device with room for so many pages, compressing with lz4.
    pub(super) fn add(pages: usize) -> Result<Zram> {
        Zram::add_under(Path::new("/"), pages)
    }

    /// [`Zram::add`] with `/sys` and `/dev` under `root`.
    fn add_under(root: &Path, pages: usize) -> Result<Zram> {
        ensure!(effective_ids().0 == 0, "the comparison with zram needs root; run it with sudo");
        let control = root.join(CONTROL);
        ensure!(
            control.join("hot_add").exists(),
            "this kernel has no zram (CONFIG_ZRAM, module zram); load it with modprobe zram"
        );
        catch_interrupts();
        remove_on_panic();
        let mut added = lock();
        ensure!(added.is_none(), "there is a zram device of ours already");
        // Reading this file is what adds the device.
        let number = fs::read_to_string(control.join("hot_add"))
            .context("zram does not add a device (hot_add)")?;
        let number: u32 = number.trim().parse().context("zram-control names no device")?;
        *added = Some(Added { root: root.to_path_buf(), number, device: None });
        drop(added);
        say!(
            "terrace: added /dev/zram{number} for the comparison; it is removed afterwards (by \
             hand: echo 1 > /sys/block/zram{number}/reset; echo {number} > /{CONTROL}/hot_remove)"
        );
        let folder = root.join(format!("sys/block/zram{number}"));
        // From here on an early return drops this and removes the device.
        let zram = Zram { folder, buffer: Box::new(Aligned([0; PAGE_SIZE])) };
        zram.set("comp_algorithm", "lz4").context("this kernel's zram has no lz4")?;
        zram.set("disksize", &(pages * PAGE_SIZE).to_string())?;
        let path = root.join(format!("dev/zram{number}"));
        let direct = OpenOptions::new().write(true).custom_flags(libc::O_DIRECT).open(&path);
        let direct = direct.with_context(|| format!("cannot open {}", path.display()))?;
        if let Some(added) = lock().as_mut() {
            added.device = Some(direct);
        }
        Ok(zram)
    }

    /// Stores a page.
    pub(super) fn write(&mut self, n: usize, page: &Page) -> Result<()> {
        self.buffer.0 = *page;
        let added = lock();
        let device = added.as_ref().and_then(|added| added.device.as_ref());
        let device = device.context("the zram device is not open")?;
        device.write_all_at(&self.buffer.0, (n * PAGE_SIZE) as u64).context("zram: a write failed")
    }

    /// Gives up what a page took: zeros are stored as a word in a table, and the object is freed.
    pub(super) fn free(&mut self, n: usize) -> Result<()> {
        self.write(n, &[0; PAGE_SIZE])
    }

    /// Moves objects together until no class has a page to give.
    pub(super) fn compact(&self) -> Result<()> {
        self.set("compact", "1")
    }

    pub(super) fn stat(&self) -> Result<MmStat> {
        let path = self.folder.join("mm_stat");
        let text = fs::read_to_string(&path)
            .with_context(|| format!("{} cannot be read", path.display()))?;
        MmStat::parse(&text).with_context(|| format!("{}: {text:?}", path.display()))
    }

    /// Removes the device and says so if that fails.
    pub(super) fn remove(self) -> Result<()> {
        remove_added()
    }

    fn set(&self, name: &str, value: &str) -> Result<()> {
        let path = self.folder.join(name);
        fs::write(&path, value)
            .with_context(|| format!("{} does not take {value:?}", path.display()))
    }
}

impl Drop for Zram {
    fn drop(&mut self) {
        if let Err(e) = remove_added() {
            say!("terrace: {e:#}");
        }
    }
}

fn lock() -> MutexGuard<'static, Option<Added>> {
    ADDED.lock().unwrap_or_else(PoisonError::into_inner)
}

fn remove_added() -> Result<()> {
    // Nobody panics while it is held; should that be wrong, the hook must not wait for itself.
    let added = match ADDED.try_lock() {
        Ok(mut added) => added.take(),
        Err(TryLockError::Poisoned(added)) => added.into_inner().take(),
        Err(TryLockError::WouldBlock) => bail!("the zram device was not removed; see above"),
    };
    let Some(Added { root, number, device }) = added else { return Ok(()) };
    drop(device);
    let reset = root.join(format!("sys/block/zram{number}/reset"));
    let hot_remove = root.join(CONTROL).join("hot_remove");
    let mut attempt = 1;
    loop {
        let done = fs::write(&reset, "1").and_then(|()| fs::write(&hot_remove, number.to_string()));
        match done {
            Ok(()) => return Ok(()),
            Err(e) if attempt == REMOVE_ATTEMPTS => {
                bail!("/dev/zram{number} was not removed ({e}); see the command above")
            }
            Err(_) => std::thread::sleep(REMOVE_PAUSE),
        }
        attempt += 1;
    }
}

fn remove_on_panic() {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if let Err(e) = remove_added() {
                say!("terrace: {e:#}");
            }
            before(info);
        }));
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mm_stat_is_read_by_column() {
        let line =
            " 4096000  2917935  3993600        0  3993600       27        0       38      3\n";
        let stat = MmStat::parse(line).unwrap();
        assert_eq!((stat.stored_bytes, stat.used_bytes), (2_917_935, 3_993_600));
        assert_eq!((stat.same_pages, stat.huge_pages), (27, 38));
        assert_eq!(MmStat::parse("4096 12"), None);
    }

    /// On a tree of plain files: a step fails, and what was added is removed.
    #[test]
    fn a_device_that_cannot_be_used_is_removed() {
        let root = std::env::temp_dir().join(format!("terrace-zram-{}", std::process::id()));
        let _ = fs::remove_dir_all(&root);
        let error = |root: &Path| format!("{:#}", Zram::add_under(root, 16).err().unwrap());
        if effective_ids().0 != 0 {
            assert!(error(&root).contains("needs root"));
            return;
        }
        assert!(error(&root).contains("has no zram"));
        for folder in [CONTROL, "sys/block/zram7", "dev"] {
            fs::create_dir_all(root.join(folder)).unwrap();
        }
        fs::write(root.join(CONTROL).join("hot_add"), "7\n").unwrap();
        assert!(error(&root).contains("cannot open"), "there is no dev/zram7");
        let read = |path: &str| fs::read_to_string(root.join(path)).unwrap();
        assert_eq!(read("sys/block/zram7/disksize"), "65536");
        assert_eq!(read("sys/block/zram7/reset"), "1");
        assert_eq!(read("sys/class/zram-control/hot_remove"), "7");
        // In a build that aborts on panics nothing is dropped; the hook does it.
        *lock() = Some(Added { root: root.clone(), number: 8, device: None });
        fs::create_dir_all(root.join("sys/block/zram8")).unwrap();
        assert!(std::panic::catch_unwind(|| panic!("while a device is there")).is_err());
        assert_eq!(read("sys/class/zram-control/hot_remove"), "8");
        assert!(lock().is_none());
        fs::remove_dir_all(root).unwrap();
    }
}
