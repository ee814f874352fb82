//! Bare userfaultfd: the least that any pager in user space can take for a fault.
//!
//! One thread on the CPU of the thread that faults answers each fault with one `UFFDIO_COPY` from
//! a plain copy of the page. Nothing is looked up, decoded, checked or freed. What a tier takes
//! beyond it is Terrace's; what this takes, beside the kernel's whole fault, is the mechanism's and
//! the machine's.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::thread::JoinHandle;

use super::sys::{Mapping, Pinned};
use super::PAGE_BYTES;
use crate::preflight::uffd_probe::open_with_features;

/// `_IOWR(0xaa, 0x00, struct uffdio_register)`, four u64.
const UFFDIO_REGISTER: libc::c_ulong = 0xc020_aa00;
/// `_IOWR(0xaa, 0x03, struct uffdio_copy)`, five u64.
const UFFDIO_COPY: libc::c_ulong = 0xc028_aa03;
const REGISTER_MODE_MISSING: u64 = 1;
const EVENT_PAGEFAULT: u8 = 0x12;
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
        let copy: Vec<u8> = (0..mapping.pages()).flat_map(|n| mapping.page(n)).copied().collect();
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
                fill(&fd, page, &copy[from..from + PAGE_BYTES]);
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

fn fill(fd: &OwnedFd, page: u64, bytes: &[u8]) {
    let mut copy: [u64; 5] = [page, bytes.as_ptr() as u64, bytes.len() as u64, 0, 0];
    // SAFETY: the request reads and writes exactly the five words that `copy` is, and reads the
    // bytes, which live until it returns. The page it fills is missing, so nobody has read it.
    let rc = unsafe { libc::ioctl(fd.as_raw_fd(), UFFDIO_COPY, copy.as_mut_ptr()) };
    let why = io::Error::last_os_error();
    // A second thread may have faulted on the page that the first one was given.
    if rc != 0 && why.raw_os_error() != Some(libc::EEXIST) {
        // Whoever waits for the page would wait for good.
        eprintln!("terrace: the bare pager cannot fill a page: {why}");
        std::process::abort();
    }
}

#[cfg(test)]
mod tests {
    use super::super::{fault_probe, PageSource, ProbeSpec};
    use super::*;

    #[test]
    fn pages_come_back_as_they_were() {
        let source = PageSource::from_bytes(b"some text that repeats ".repeat(400));
        let spec = ProbeSpec { pages: 64, ..ProbeSpec::default() };
        let mut bare = None;
        let probed = fault_probe(&spec, &source, |mapping| {
            bare = Some(Bare::serve(mapping)?);
            Ok(())
        });
        match probed {
            Ok(figures) => assert_eq!((figures.faults, figures.wrong_pages), (64, 0)),
            // No userfaultfd for us here.
            Err(e) => assert!(bare.is_none(), "{e}"),
        }
    }
}
