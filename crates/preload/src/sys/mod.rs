//! The door to Linux. Together with `interpose.rs` the only `unsafe` in the runtime.
//!
//! The promise that makes the rest safe: **nothing in this folder ever hands out a reference into
//! the application's memory, and the runtime's own memory is never registered with userfaultfd in
//! missing mode, never moved and never unmapped.** The application's pages are only named by
//! address and only touched by the kernel, through the ioctls in [`uffd`]; those can fill a hole
//! or take a whole page out, atomically against the application's own accesses. What the runtime
//! itself reads is a page after it was moved into the runtime's staging area, where nobody else
//! can reach it.

pub mod clones;
pub mod crash;
pub mod inherit;
pub mod media;
pub mod memory;
pub mod proc;
pub mod remap;
pub mod rseq;
pub mod slot;
pub mod socket;
pub mod sync;
pub mod thread;
pub mod uffd;
