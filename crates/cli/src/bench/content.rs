//! The pages that several benchmarks measure with.

use std::fs;
use std::path::Path;

use anyhow::{ensure, Context, Result};
use terrace_core::tier::Codec;
use terrace_store::codec::EncoderSet;
use terrace_store::{Page, CUTOFF_BYTES, PAGE_SIZE};

use super::kernel_swap::PageSource;

/// The codecs of the presets' tiers, and the kernel's: their counterparts must take what these
/// take. Others may be measured too and refuse some; a codec that refuses much must not decide
/// what the rest is measured with.
const CODECS: [Codec; 4] = [Codec::Lz4, Codec::Lzo, Codec::Deflate, Codec::Zstd];

/// Writes the pages to measure with: those of the machine that every codec of [`CODECS`] makes
/// small enough for a tier. Returns the share that was left out.
pub(super) fn write_content(path: &Path) -> Result<f64> {
    let all = PageSource::from_machine()?;
    let list = CODECS.map(|c| (c, c.default_level()));
    let mut codecs =
        EncoderSet::new(&list).map_err(|e| anyhow::anyhow!("no memory for codecs: {e:?}"))?;
    let (mut page, mut encoded): (Page, Page) = ([0; PAGE_SIZE], [0; PAGE_SIZE]);
    let mut bytes = Vec::new();
    for n in 0..all.pages() {
        all.fill(n, &mut page);
        let mut fits = |i| {
            let encoder = codecs.get(i)?;
            encoder.encode(&page, &mut encoded[..CUTOFF_BYTES])
        };
        if (0..list.len()).all(|i| fits(i).is_some()) {
            bytes.extend_from_slice(&page);
        }
    }
    let kept = bytes.len() / PAGE_SIZE;
    ensure!(kept > 0, "no page of this machine's files is compressible");
    fs::write(path, bytes).with_context(|| format!("cannot write {}", path.display()))?;
    Ok(1.0 - kept as f64 / all.pages() as f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::redis::TempDir;

    #[test]
    fn content_is_what_every_tier_takes() {
        let folder = TempDir::new("content-test").unwrap();
        let path = folder.path().join("content");
        let left_out = write_content(&path).unwrap();
        assert!((0.0..0.9).contains(&left_out), "{left_out}");
        let source = PageSource::from_file(&path).unwrap();
        assert_eq!(source.pages() * PAGE_SIZE, fs::metadata(&path).unwrap().len() as usize);
        let (mut first, mut again) = ([0u8; PAGE_SIZE], [0u8; PAGE_SIZE]);
        source.fill(1, &mut first);
        source.fill(1 + source.pages(), &mut again);
        assert_ne!(first[..8], again[..8]);
        assert_eq!(first[8..], again[8..]);
    }
}
