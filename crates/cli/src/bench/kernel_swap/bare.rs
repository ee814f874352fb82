//! Bare userfaultfd: the least that a fault can take in user space. Each is answered with one
//! `UFFDIO_COPY` from a plain copy of the page. Nothing is looked up, decoded, checked or freed.
//! What a tier takes beyond it is Terrace's; what this takes, beside the kernel's whole fault, is
//! the mechanism's and the machine's.
//!
//! There are two of them. [`Bare`] is a pager as Terrace has one: a thread on the CPU of the thread
//! that faults. [`Alone`] does without the two thread switches: the thread that faults fills the
//! page itself, in a handler of the signal that `UFFD_FEATURE_SIGBUS` has it get. Terrace cannot
//! work that way, because a system call on a missing page would fail with `EFAULT`; but nothing
//! that does switch threads can be quicker.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use super::sys::{Mapping, Pinned};
use super::PAGE_BYTES;
use crate::preflight::uffd_probe::open_with_features;
use crate::say;

/// `_IOWR(0xaa, 0x00, struct uffdio_register)`, four u64.
const UFFDIO_REGISTER: libc::c_ulong = 0xc020_aa00;
/// `_IOWR(0xaa, 0x03, struct uffdio_copy)`, five u64.
const UFFDIO_COPY: libc::c_ulong = 0xc028_aa03;
const REGISTER_MODE_MISSING: u64 = 1;
const EVENT_PAGEFAULT: u8 = 0x12;
/// Missing pages are signals to the thread that touches them.
const FEATURE_SIGBUS: u64 = 1 << 7;
/// The least of what Terrace's own pager asks for.
const NICE: libc::c_int = -10;

/// A mapping emptied and served by a thread of its own until this is dropped. The calling thread is
/// kept on its CPU meanwhile, which is where that thread runs.
pub struct Bare {
    /// Fault here to end the thread.
    bell: Mapping,
    pager: Option<JoinHandle<()>>,
    _pinned: Pinned,
}

impl Bare {
    /// Takes the pages of `mapping` away and begins to serve them. An error if there is no
    /// userfaultfd for this process.
    pub fn serve(mapping: &Mapping) -> io::Result<Bare> {
        let fd = open_with_features(0)?;
        let copy = copy_of(mapping);
        let bell = Mapping::new(1)?;
        let (start, bell_start) = (mapping.address() as u64, bell.address() as u64);
        register(&fd, start, copy.len() as u64)?;
        register(&fd, bell_start, PAGE_BYTES as u64)?;
        mapping.empty()?;
        let pinned = Pinned::here()?;
        // A new thread may run where its maker may.
        let pager = std::thread::Builder::new().name("bare-pager".into()).spawn(move || {
            // SAFETY: takes numbers only, and concerns this thread alone. Where it is not allowed,
            // the thread does without, as Terrace's does.
            unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, NICE) };
            while let Some(page) = next_fault(&fd) {
                let is_bell = page == bell_start;
                let from = if is_bell { 0 } else { (page - start) as usize };
                let filled = fill(fd.as_raw_fd(), page, &copy[from..from + PAGE_BYTES]);
                if let Err(why) = filled {
                    // Whoever waits for the page would wait for good.
                    say!("terrace: the bare pager cannot fill a page: {why}");
                    std::process::abort();
                }
                if is_bell {
                    break;
                }
            }
        })?;
        Ok(Bare { bell, pager: Some(pager), _pinned: pinned })
    }
}

impl Drop for Bare {
    fn drop(&mut self) {
        std::hint::black_box(self.bell.touch(0));
        if let Some(pager) = self.pager.take() {
            // It ends the process if it cannot go on.
            let _ = pager.join();
        }
    }
}

fn copy_of(mapping: &Mapping) -> Vec<u8> {
    (0..mapping.pages()).flat_map(|n| mapping.page(n)).copied().collect()
}

/// A mapping emptied, each page of which is filled by the thread that touches it, until this is
/// dropped. One at a time in a process, because a signal has one handler.
pub struct Alone {
    fd: OwnedFd,
    copy: Vec<u8>,
    before: libc::sigaction,
    _only: MutexGuard<'static, ()>,
}

/// What the handler of the one [`Alone`] needs: its descriptor, its mapping and length, its copy.
static FD: AtomicI32 = AtomicI32::new(-1);
static START: AtomicUsize = AtomicUsize::new(0);
static LEN: AtomicUsize = AtomicUsize::new(0);
static COPY: AtomicUsize = AtomicUsize::new(0);
static ONLY: Mutex<()> = Mutex::new(());

impl Alone {
    /// Takes the pages of `mapping` away; from now on whoever touches one fills it. An error if
    /// there is no userfaultfd for this process.
    pub fn serve(mapping: &Mapping) -> io::Result<Alone> {
        let only = ONLY.lock().unwrap_or_else(PoisonError::into_inner);
        let fd = open_with_features(FEATURE_SIGBUS)?;
        let copy = copy_of(mapping);
        FD.store(fd.as_raw_fd(), Ordering::Relaxed);
        START.store(mapping.address(), Ordering::Relaxed);
        LEN.store(copy.len(), Ordering::Relaxed);
        COPY.store(copy.as_ptr() as usize, Ordering::Relaxed);
        // SAFETY: zeroes are a valid sigaction; both outlive the call. The handler calls `ioctl`
        // and `abort` alone, both async-signal-safe.
        let before = unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            let mut before: libc::sigaction = std::mem::zeroed();
            action.sa_flags = libc::SA_SIGINFO;
            action.sa_sigaction = fill_here as *const () as libc::sighandler_t;
            if libc::sigaction(libc::SIGBUS, &action, &mut before) != 0 {
                return Err(io::Error::last_os_error());
            }
            before
        };
        let alone = Alone { fd, copy, before, _only: only };
        register(&alone.fd, mapping.address() as u64, alone.copy.len() as u64)?;
        mapping.empty()?;
        Ok(alone)
    }
}

impl Drop for Alone {
    fn drop(&mut self) {
        // SAFETY: puts back what was there. Only the threads that touched the mapping had the
        // signal, and they have touched the last of it.
        unsafe { libc::sigaction(libc::SIGBUS, &self.before, std::ptr::null_mut()) };
    }
}

extern "C" fn fill_here(_: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel hands a handler with SA_SIGINFO a valid siginfo, which has the address.
    let page = unsafe { (*info).si_addr() } as usize & !(PAGE_BYTES - 1);
    let at = page.wrapping_sub(START.load(Ordering::Relaxed));
    if at < LEN.load(Ordering::Relaxed) {
        let from = COPY.load(Ordering::Relaxed) + at;
        // SAFETY: within the copy, which lives as long as this handler is in place.
        let bytes = unsafe { std::slice::from_raw_parts(from as *const u8, PAGE_BYTES) };
        if fill(FD.load(Ordering::Relaxed), page as u64, bytes).is_ok() {
            return;
        }
    }
    // Another error of this program's, or a page that cannot be had: it would come again and again.
    std::process::abort();
}

fn register(fd: &OwnedFd, start: u64, len: u64) -> io::Result<()> {
    let mut register: [u64; 4] = [start, len, REGISTER_MODE_MISSING, 0];
    // SAFETY: the request reads and writes exactly the four words that `register` is. From here on
    // missing pages of the range are filled by `fill`: a touch waits for the thread that calls it.
    let rc = unsafe { libc::ioctl(fd.as_raw_fd(), UFFDIO_REGISTER, register.as_mut_ptr()) };
    if rc == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// The page of the next fault; `None` if the descriptor gives no more.
fn next_fault(fd: &OwnedFd) -> Option<u64> {
    // struct uffd_msg: the event in the first byte, the address in the third word.
    let mut msg = [0u64; 4];
    loop {
        let bytes = std::mem::size_of_val(&msg);
        // SAFETY: the buffer is ours and as long as the size that is passed.
        let n = unsafe { libc::read(fd.as_raw_fd(), msg.as_mut_ptr().cast(), bytes) };
        if n == bytes as isize && msg[0].to_ne_bytes()[0] == EVENT_PAGEFAULT {
            return Some(msg[2] & !(PAGE_BYTES as u64 - 1));
        }
        let interrupted = || io::Error::last_os_error().kind() == io::ErrorKind::Interrupted;
        if n <= 0 && !interrupted() {
            return None;
        }
    }
}

/// Fills a page with these bytes, and wakes who waits for it.
fn fill(fd: RawFd, page: u64, bytes: &[u8]) -> io::Result<()> {
    let mut copy: [u64; 5] = [page, bytes.as_ptr() as u64, bytes.len() as u64, 0, 0];
    // SAFETY: the request reads and writes exactly the five words that `copy` is, and reads the
    // bytes, which live until it returns. The page it fills is missing, so nobody has read it.
    let rc = unsafe { libc::ioctl(fd, UFFDIO_COPY, copy.as_mut_ptr()) };
    let why = io::Error::last_os_error();
    // A second thread may have faulted on the page that the first one was given.
    if rc == 0 || why.raw_os_error() == Some(libc::EEXIST) {
        Ok(())
    } else {
        Err(why)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{fault_probe, PageSource, ProbeSpec};
    use super::*;

    /// All pages are filled with what they had, if there is a userfaultfd for us here.
    fn come_back<T>(threads: usize, serve: fn(&Mapping) -> io::Result<T>) {
        let source = PageSource::from_bytes(b"some text that repeats ".repeat(400));
        let spec = ProbeSpec { pages: 64, threads, ..ProbeSpec::default() };
        let mut serving = None;
        let probed = fault_probe(&spec, &source, |mapping| {
            serving = Some(serve(mapping)?);
            Ok(())
        });
        match probed {
            Ok(figures) => assert_eq!((figures.faults, figures.wrong_pages), (64, 0)),
            Err(e) => assert!(serving.is_none(), "{e}"),
        }
    }

    #[test]
    fn a_pager_fills_pages() {
        come_back(1, Bare::serve);
    }

    #[test]
    fn threads_fill_pages_themselves() {
        come_back(1, Alone::serve);
        come_back(3, Alone::serve);
    }
}
