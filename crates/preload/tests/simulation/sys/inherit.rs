//! What children get of each mapping: a flag of the fake kernel's mappings, which splits and joins
//! them as the real one does.

use crate::kernel;

/// See the real one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Inherited {
    /// First byte.
    pub start: u64,
    /// One past the last byte.
    pub end: u64,
    /// Registered with a userfaultfd for missing faults.
    pub registered: bool,
    /// A child does not get it.
    pub absent: bool,
    /// A child gets it empty.
    pub wiped: bool,
    /// Private memory without a file.
    pub anonymous: bool,
}

/// See the real one.
#[derive(Debug)]
pub struct Smaps;

impl Smaps {
    /// See the real one.
    pub fn open() -> Option<Smaps> {
        Some(Smaps)
    }

    /// See the real one: no mapping is wiped.
    pub fn inherited(&self) -> Option<Vec<Inherited>> {
        let mut all = flagged();
        all.retain(|m| m.absent);
        Some(all)
    }

    /// See the real one.
    pub fn is_registered(&self, page: u64) -> bool {
        kernel::is_registered(page)
    }

    /// See the real one.
    pub fn registered(&self) -> Option<Vec<Inherited>> {
        let mut all = flagged();
        all.retain(|m| m.registered);
        Some(all)
    }
}

fn flagged() -> Vec<Inherited> {
    let all = kernel::flags().into_iter();
    all.map(|(start, end, registered, absent)| Inherited {
        start,
        end,
        registered,
        absent,
        wiped: false,
        anonymous: true,
    })
    .collect()
}

/// See the real one.
pub fn set_inherited(start: u64, len: u64, inherited: bool) -> bool {
    kernel::set_in_child(start, len, inherited)
}
