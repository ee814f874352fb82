//! The runtime's own memory: in the fake address space.

use crate::kernel::{self, Prot, MAIN, OWN_BASE};
use terrace_core::state::PAGE_BYTES;

/// See the real one.
pub fn carve(len: u64) -> Option<u64> {
    Some(kernel::carve(len, Prot::Write))
}

/// See the real one.
pub fn carve_unreadable(len: u64) -> Option<u64> {
    Some(kernel::carve(len, Prot::None))
}

/// See the real one.
pub fn map_copied(len: u64) -> Option<u64> {
    Some(kernel::carve_copied(len))
}

/// See the real one.
pub fn is_own(_start: u64, end: u64) -> bool {
    end > OWN_BASE
}

/// See the real one. Children run no code of the runtime here.
pub fn is_original() -> bool {
    true
}

/// See the real one.
pub fn is_reserved() -> bool {
    true
}

/// See the real one.
pub fn release(start: u64, len: u64) {
    kernel::dontneed(MAIN, start, len);
}

/// See the real one.
pub fn read_page(address: u64, out: &mut [u8; PAGE_BYTES]) {
    let read = kernel::access(MAIN, address, false, |page| out.copy_from_slice(page));
    assert!(read.is_ok(), "read outside of own memory");
}

/// See the real one.
pub fn ready_for_writing(start: u64, end: u64) {
    for page in (start..end).step_by(PAGE_BYTES) {
        if kernel::populate(MAIN, page).is_err() {
            return;
        }
    }
}

/// See the real one.
pub fn touch_for_write(address: u64) {
    let touched = kernel::access(MAIN, address, true, |page| page[0] = 1);
    assert!(touched.is_ok(), "touch outside of own memory");
}

/// See the real one. Children read their sentinel in `app.rs`, in their own address space.
pub fn read_byte_of_copied(_address: u64) -> u8 {
    1
}

/// See the real one: no huge pages are simulated.
pub fn split_huge(_start: u64, _end: u64) {
    crate::schedule::call_point();
}
