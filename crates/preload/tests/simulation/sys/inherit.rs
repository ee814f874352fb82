//! What children get of each mapping. The fake kernel has no such flags: of a fork that is not
//! announced every child gets everything, which is what the runtime sees to around libc's fork.

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
}

/// See the real one.
#[derive(Debug)]
pub struct Smaps;

impl Smaps {
    /// See the real one.
    pub fn open() -> Option<Smaps> {
        Some(Smaps)
    }

    /// See the real one: no mapping is absent or wiped.
    pub fn inherited(&self) -> Option<Vec<Inherited>> {
        Some(Vec::new())
    }

    /// See the real one. Asked for only when the runtime retires, which is not simulated.
    pub fn registered(&self) -> Option<Vec<Inherited>> {
        Some(Vec::new())
    }
}

/// See the real one.
pub fn set_inherited(_start: u64, _len: u64, _inherited: bool) -> bool {
    true
}
