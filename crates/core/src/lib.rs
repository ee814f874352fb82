//! The pure part of Terrace, in the order a page's story is told:
//! units and tiers, then sample -> hotness -> cost -> plan.
//!
//! Nothing in this crate does I/O, asks the time, starts a thread or draws a random number, so
//! the live system, the simulator and the tests all run the same code.
#![forbid(unsafe_code)]

pub mod cost;
pub mod hotness;
pub mod plan;
pub mod sim;
pub mod state;
pub mod tier;
pub mod wire;
