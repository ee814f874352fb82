//! What the runtime reads of its process: of the fake one.

use crate::kernel::{self, MAIN, PAGE};
use crate::schedule;

/// See the real one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mapping {
    /// First byte.
    pub start: u64,
    /// One past the last byte.
    pub end: u64,
    /// Whether it begins where the mapping of a file ends.
    pub is_behind_file: bool,
}

/// See the real one.
pub fn mappings_max() -> usize {
    65_530
}

/// No mappings: regions are registered by the simulated agent itself.
pub fn private_anonymous(_maps: &str, _keep: impl FnMut(Mapping)) {}

/// See the real one.
#[derive(Debug)]
pub struct Maps;

impl Maps {
    /// See the real one.
    pub fn open() -> Option<Maps> {
        Some(Maps)
    }

    /// See the real one.
    pub fn text(&mut self) -> String {
        String::new()
    }
}

/// See the real one.
#[derive(Clone, Copy, Debug)]
pub struct Coverage;

impl Coverage {
    /// See the real one.
    pub fn open() -> Coverage {
        Coverage
    }

    /// See the real one.
    pub fn mappings(&self, start: u64, end: u64) -> Option<Vec<(u64, u64)>> {
        schedule::call_point();
        let mut all = kernel::mappings(kernel::MAIN);
        all.retain(|&(a, b)| a < end && start < b);
        Some(all)
    }

    /// See the real one.
    pub fn is_empty(&self, start: u64, end: u64) -> bool {
        self.mappings(start, end).is_some_and(|all| all.is_empty())
    }

    /// See the real one: page by page.
    pub fn holes(&self, start: u64, end: u64, mut found: impl FnMut(u64, u64)) {
        schedule::call_point();
        for page in (start..end).step_by(PAGE as usize) {
            if !kernel::is_mapped(page) {
                found(page, page + PAGE);
            }
        }
    }
}

/// See the real one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sight {
    /// See the real one.
    Untouched,
    /// See the real one.
    Touched,
    /// See the real one.
    Shared,
    /// See the real one.
    Gone,
}

/// See the real one.
#[derive(Clone, Copy, Debug)]
pub struct Pagemap;

impl Pagemap {
    /// See the real one.
    pub fn open() -> Option<Pagemap> {
        Some(Pagemap)
    }

    /// See the real one.
    pub fn present(&self, start: u64) -> Option<[u64; 8]> {
        schedule::call_point();
        let mut bits = [0u64; 8];
        for page in kernel::present(MAIN, start, start + 512 * PAGE) {
            let i = ((page - start) / PAGE) as usize;
            bits[i / 64] |= 1 << (i % 64);
        }
        Some(bits)
    }

    /// See the real one.
    pub fn zeros(&self, start: u64) -> [u64; 8] {
        schedule::call_point();
        let mut bits = [0u64; 8];
        for page in kernel::zero_pages(MAIN, start, start + 512 * PAGE) {
            let i = ((page - start) / PAGE) as usize;
            bits[i / 64] |= 1 << (i % 64);
        }
        bits
    }

    /// There are no huge pages.
    pub fn has_huge(&self, _start: u64) -> bool {
        false
    }

    /// See the real one.
    pub fn sight(&self, page: u64) -> Sight {
        schedule::call_point();
        match kernel::is_watched(MAIN, page) {
            None => Sight::Gone,
            Some(_) if kernel::mapped_once(MAIN, page, page + PAGE).is_empty() => Sight::Shared,
            Some(true) => Sight::Untouched,
            Some(false) => Sight::Touched,
        }
    }

    /// See the real one.
    pub fn mapped_once(&self, start: u64) -> Option<[u64; 8]> {
        schedule::call_point();
        let mut bits = [0u64; 8];
        for page in kernel::mapped_once(MAIN, start, start + 512 * PAGE) {
            let i = ((page - start) / PAGE) as usize;
            bits[i / 64] |= 1 << (i % 64);
        }
        Some(bits)
    }

    /// See the real one.
    pub fn scan(&self, start: u64, end: u64, mut visit: impl FnMut(u64, u64)) {
        for page in kernel::present(MAIN, start, end) {
            visit(page, page + PAGE);
        }
    }
}

/// See the real one. A page that went away meanwhile is waited for.
pub fn read_application_page(address: u64, out: &mut [u8; 4096]) -> bool {
    kernel::access(MAIN, address, false, |page| out.copy_from_slice(page)).is_ok()
}

/// See the real one.
pub fn last_cpu(_tid: u32) -> Option<usize> {
    None
}

/// See the real one.
pub fn raise_fd(fd: i32) -> Option<i32> {
    kernel::duplicate(fd)
}

/// The runtime ends the program: it says that it cannot go on with right bytes.
pub fn die(line: &str) -> ! {
    schedule::fail(format!("the runtime ends the program: {line}"))
}
