//! Locks and the atomics of page words, by one name for the runtime and for the simulation
//! (`tests/simulation`), which has its own of each: there a simulated thread that waits, or races,
//! gives its turn to another.

pub use std::sync::atomic::AtomicU64 as AtomicWord;
pub use std::sync::{Condvar, Mutex, MutexGuard};
