//! Whether there is a message to read.

use std::os::fd::RawFd;

/// Does not wait: what comes is for the kernel of the simulation to say.
pub fn is_readable(fd: RawFd, _us: u64) -> bool {
    crate::kernel::has_message(fd)
}
