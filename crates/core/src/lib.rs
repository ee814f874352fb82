//! The pure part of Terrace, in the order a page's story is told:
//! units and tiers, then sample -> hotness -> cost -> plan -> hindsight.
//!
//! Nothing in this crate does I/O, asks the time, starts a thread or draws a random number, so
//! the live system, the simulator and the tests all run the same code.
#![forbid(unsafe_code)]

mod body;
pub mod coldage;
pub mod cost;
pub mod degrees;
pub mod hindsight;
#[cfg(test)]
mod hindsight_tests;
pub mod hotness;
pub mod latency;
pub mod load;
pub mod looks;
pub mod oracle;
#[cfg(test)]
mod oracle_tests;
pub mod plan;
mod rhythm;
pub mod setback;
pub mod shrink;
pub mod sim;
pub mod state;
pub mod tier;
pub mod touches;
pub mod wire;
