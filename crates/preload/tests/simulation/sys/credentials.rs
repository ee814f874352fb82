//! Users are not simulated.

/// The program has changed nothing.
pub fn follow() {}
