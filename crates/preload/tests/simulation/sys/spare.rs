//! The simulated program has descriptors enough.

/// See the real one.
pub fn are_needed() -> bool {
    true
}

/// See the real one.
pub fn keep() {}

/// See the real one.
pub fn count() -> usize {
    usize::MAX
}

/// See the real one.
pub fn inherit(_fd: i32, _of: i32) -> bool {
    false
}

/// See the real one.
pub fn be_patient() {}

/// See the real one.
pub fn with_a_place(read: impl Fn() -> isize) -> Result<usize, i32> {
    match read() {
        ..0 => Err(std::io::Error::last_os_error().raw_os_error().unwrap_or(0)),
        n => Ok(n as usize),
    }
}
