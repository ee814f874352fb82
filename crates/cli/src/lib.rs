//! The `terrace` command, as a library so that its parts can be tested.
//!
//! [`run`] starts a program and plans for it; [`status`], [`explain`], [`doctor`] and [`tiers`]
//! answer questions; [`mod@bench`] and [`demo`] measure. [`config`] and [`preset`] say what is
//! wanted, [`preflight`] what is possible.
#![deny(unsafe_code)]

pub mod bench {
    //! Measurements that back the promises of SPEC.md.
    pub mod churn;
    mod content;
    pub mod demote;
    pub mod fault;
    pub(crate) mod figures;
    mod ground;
    pub mod kernel_swap;
    mod launched;
    pub mod paper;
    pub mod plan;
    pub mod pools;
    pub mod rest;
    pub mod workloads;
}
pub mod config;
pub mod demo;
pub mod doctor;
pub mod explain;
mod knobs;
pub mod machine;
pub mod media;
mod output;
pub mod policy;
pub mod preflight;
pub mod preset;
pub mod run;
pub mod say;
pub mod sim;
pub mod status;
mod threads;
pub mod tiers;
pub mod trace;
