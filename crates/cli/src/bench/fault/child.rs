//! The program that is measured: it fills memory, has it taken away, and times how it comes back.
//!
//! It holds as little memory besides as it can - content is read from a file for each page -
//! because whatever it holds is tiered, too. It speaks to its starter in lines: "out" when its
//! pages have left and it may be told to go on, then its figures.

use std::path::Path;

use anyhow::{Context, Result};

use crate::bench::kernel_swap::{fault_probe, wait_until_out, PageSource, ProbeSpec};
use crate::bench::launched::{hear, say, PATIENCE};

/// Share of the pages that must have left. Not all of them: two at the edges may share a region
/// with other memory that the tracker leaves alone.
pub(super) const OUT_SHARE: f64 = 0.98;

/// Fills, waits, touches, and prints figures as JSON.
pub(super) fn run(content: &Path, pages: usize, seed: u64, threads: usize) -> Result<()> {
    let source = PageSource::from_file(content)?;
    let spec = ProbeSpec { pages, seed, threads, ..ProbeSpec::default() };
    let figures = fault_probe(&spec, &source, |mapping| {
        wait_until_out(OUT_SHARE, PATIENCE)(mapping)?;
        say(&std::process::id().to_string())?;
        hear().map(drop)
    })?;
    say(&serde_json::to_string(&figures)?).context("nobody listens")?;
    // Stay until the starter has read the runtime's counters.
    hear()?;
    Ok(())
}
