//! What userfaultfd offers to this process, found out by asking for it.
//!
//! Every answer comes from a descriptor that is opened for the question and closed at once, since
//! `UFFDIO_API` can be called only once on each. Nothing is registered, so nothing can fault. (A
//! descriptor to keep is for `bench fault`.) The
//! few other questions of [`super`] that need libc are here too: this is the only part of
//! `preflight` that may be unsafe.
#![allow(unsafe_code)]

use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// `UFFD_FEATURE_PAGEFAULT_FLAG_WP`: write-protect faults (5.7).
pub const FEATURE_WP: u64 = 1 << 0;
/// `UFFD_FEATURE_EVENT_FORK`: a descriptor for the child of a fork; needs CAP_SYS_PTRACE.
pub const FEATURE_EVENT_FORK: u64 = 1 << 1;
/// `UFFD_FEATURE_THREAD_ID`: a fault names its thread (4.14).
pub const FEATURE_THREAD_ID: u64 = 1 << 8;
/// `UFFD_FEATURE_MOVE`: UFFDIO_MOVE (6.8).
pub const FEATURE_MOVE: u64 = 1 << 16;
/// `UFFD_FEATURE_RWP_ASYNC`: accesses recorded without faults (7.3).
pub const FEATURE_RWP_ASYNC: u64 = 1 << 18;

const UFFD_API: u64 = 0xaa;
/// `_IOWR(0xaa, 0x3f, struct uffdio_api)`, a struct of three u64.
const UFFDIO_API: libc::c_ulong = 0xc018_aa3f;
/// `_IO(0xaa, 0x00)` on `/dev/userfaultfd`.
const USERFAULTFD_IOC_NEW: libc::c_ulong = 0xaa00;
/// Faults from user mode only: allowed to everyone, and of no use to Terrace, because a system
/// call that touches a demoted page would fail.
const UFFD_USER_MODE_ONLY: libc::c_int = 1;

/// By which door a userfaultfd that also serves the kernel's own accesses can be had.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum UffdRoute {
    /// The system call.
    Syscall,
    /// `/dev/userfaultfd` (6.1).
    Device,
}

/// What userfaultfd offers to this process.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct UffdAccess {
    /// Errno of `userfaultfd(O_CLOEXEC)`, which asks for kernel faults too; `None` if it worked.
    pub syscall_errno: Option<i32>,
    /// Errno of the same by way of `/dev/userfaultfd`; `None` if it worked.
    pub device_errno: Option<i32>,
    /// Whether the system call works for faults from user mode at least. When not even this works
    /// though the kernel has userfaultfd, a seccomp filter is in the way.
    pub user_mode: bool,
    /// The kernel's features, from `UFFDIO_API`; 0 if nothing could be opened.
    pub features: u64,
    /// Errno of asking for EVENT_FORK on a fresh descriptor; `None` if it is granted.
    pub event_fork_errno: Option<i32>,
}

impl UffdAccess {
    /// The door to use, if there is one.
    pub fn route(&self) -> Option<UffdRoute> {
        if self.syscall_errno.is_none() {
            Some(UffdRoute::Syscall)
        } else if self.device_errno.is_none() {
            Some(UffdRoute::Device)
        } else {
            None
        }
    }

    /// Whether tiering can work at all.
    pub fn is_usable(&self) -> bool {
        self.route().is_some()
    }

    /// Whether the kernel has a feature; `FEATURE_EVENT_FORK` only if it is granted, too.
    pub fn has(&self, feature: u64) -> bool {
        self.features & feature == feature
            && (feature & FEATURE_EVENT_FORK == 0 || self.event_fork_errno.is_none())
    }
}

/// Asks the kernel. Takes a few tens of microseconds and leaves nothing open.
pub fn userfaultfd_access() -> UffdAccess {
    let syscall = open_syscall(0);
    let device = open_device();
    let user_mode = syscall.is_ok() || open_syscall(UFFD_USER_MODE_ONLY).is_ok();
    let syscall_errno = syscall.as_ref().err().and_then(io::Error::raw_os_error);
    let device_errno = device.as_ref().err().and_then(io::Error::raw_os_error);
    let handshake_fd = syscall.or(device).or_else(|_| open_syscall(UFFD_USER_MODE_ONLY)).ok();
    let features = handshake_fd.and_then(|fd| handshake(&fd, 0).ok()).unwrap_or(0);
    let fork = open_syscall(0)
        .or_else(|_| open_device())
        .and_then(|fd| handshake(&fd, FEATURE_EVENT_FORK));
    let event_fork_errno = fork.err().map(|e| e.raw_os_error().unwrap_or(libc::EIO));
    UffdAccess { syscall_errno, device_errno, user_mode, features, event_fork_errno }
}

/// A descriptor that serves the kernel's own accesses, too, with these features.
pub fn open_with_features(wanted: u64) -> io::Result<OwnedFd> {
    let fd = open_syscall(0).or_else(|_| open_device())?;
    handshake(&fd, wanted)?;
    Ok(fd)
}

fn open_syscall(flags: libc::c_int) -> io::Result<OwnedFd> {
    // SAFETY: the call takes flags only and touches no memory of ours.
    let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC | flags) };
    own(fd)
}

fn open_device() -> io::Result<OwnedFd> {
    let device: File = OpenOptions::new().read(true).write(true).open("/dev/userfaultfd")?;
    // SAFETY: the ioctl takes flags by value and returns a new descriptor or -1.
    let fd = unsafe { libc::ioctl(device.as_raw_fd(), USERFAULTFD_IOC_NEW, libc::O_CLOEXEC) };
    own(fd.into())
}

fn own(fd: libc::c_long) -> io::Result<OwnedFd> {
    match i32::try_from(fd) {
        // SAFETY: the kernel has just returned this descriptor and nobody else knows it.
        Ok(fd) if fd >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        _ => Err(io::Error::last_os_error()),
    }
}

/// `UFFDIO_API`: the kernel's features, or an error if one of `wanted` is not granted.
fn handshake(fd: &OwnedFd, wanted: u64) -> io::Result<u64> {
    // struct uffdio_api { api, features, ioctls }
    let mut api: [u64; 3] = [UFFD_API, wanted, 0];
    // SAFETY: the request reads and writes exactly the three words that `api` is.
    let rc = unsafe { libc::ioctl(fd.as_raw_fd(), UFFDIO_API, api.as_mut_ptr()) };
    if rc == 0 {
        Ok(api[1])
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Effective user and group of this process.
pub fn effective_ids() -> (u32, u32) {
    // SAFETY: neither call takes an argument or can fail.
    unsafe { (libc::geteuid(), libc::getegid()) }
}

/// Whether a file carries the extended attribute `security.capability`.
pub fn has_file_capabilities(path: &Path) -> bool {
    let Ok(path) = CString::new(path.as_os_str().as_bytes()) else { return false };
    let name = c"security.capability";
    // SAFETY: both strings are terminated and outlive the call; a size of 0 asks for the length
    // only, so the null buffer is never written to.
    unsafe { libc::getxattr(path.as_ptr(), name.as_ptr(), std::ptr::null_mut(), 0) > 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probing_agrees_with_itself() {
        let first = userfaultfd_access();
        assert_eq!(first, userfaultfd_access(), "a probe must leave nothing behind");
        assert!(first.features != 0 || !first.is_usable());
    }

    #[test]
    fn the_system_call_is_preferred_and_fork_needs_to_be_granted() {
        let mut access = UffdAccess { features: FEATURE_EVENT_FORK, ..UffdAccess::default() };
        assert_eq!(access.route(), Some(UffdRoute::Syscall));
        assert!(access.has(FEATURE_EVENT_FORK));
        access.syscall_errno = Some(libc::EPERM);
        access.event_fork_errno = Some(libc::EPERM);
        assert_eq!(access.route(), Some(UffdRoute::Device));
        assert!(!access.has(FEATURE_EVENT_FORK));
        access.device_errno = Some(libc::EACCES);
        assert!(!access.is_usable());
    }
}
