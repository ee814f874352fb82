//! Dictionaries of one application, in versions, shared by all of its encoders and decoders.
//!
//! A dictionary is trained once from pages of the application ([`super::trainer`]), published here,
//! and from then on never changed nor freed: stored objects name it by its version. There are at
//! most [`VERSIONS_MAX`], so memory is bounded whatever is asked for. Encoders take up the newest
//! when they meet the next page; an object begins with one byte, the version it was encoded with,
//! 0 for none, so that objects of all versions live side by side and move between tiers as they
//! are.
//!
//! Publishing may allocate and belongs to a background thread. Looking up takes no lock.

use super::trainer::{train as train_on, PIECE_BYTES};
use super::zstd_dict::DecoderTables;
use super::Encoder;
use crate::{Page, CUTOFF_BYTES, PAGE_SIZE};
use core::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use terrace_core::tier::Codec;

/// How many dictionaries one application can have over its life.
pub const VERSIONS_MAX: usize = 2;

/// Longest dictionary in bytes. LZ4 reaches back 64 KiB less the page.
pub const DICTIONARY_BYTES_MAX: usize = 60 << 10;

/// Length of what [`Dictionaries::improve`] trains, in bytes. `docs/beyond-the-paper.md` has the
/// sizes compared.
pub const TRAINED_BYTES: usize = 32 << 10;

/// What a dictionary must save to be worth its memory and the time of its look-ups.
pub const IMPROVEMENT_PERCENT: u64 = 3;

/// Encoded length of some pages; one that does not come below the cut-off counts whole.
fn encoded_bytes(
    codec: Codec,
    level: i32,
    dictionaries: &Arc<Dictionaries>,
    pages: &[&Page],
) -> Option<u64> {
    let mut encoder = Encoder::with_dictionaries(codec, level, dictionaries).ok()?;
    let mut out = [0; CUTOFF_BYTES];
    let len = |page: &&Page| encoder.encode(page, &mut out).unwrap_or(PAGE_SIZE) as u64;
    Some(pages.iter().map(len).sum())
}

/// One published dictionary.
pub struct Dictionary {
    version: u8,
    content: Box<[u8]>,
    zstd: DecoderTables,
}

impl Dictionary {
    /// Its number, from 1.
    pub fn version(&self) -> u8 {
        self.version
    }

    /// Its text.
    pub fn content(&self) -> &[u8] {
        &self.content
    }

    /// What zstd decodes with.
    pub(super) fn zstd(&self) -> &DecoderTables {
        &self.zstd
    }
}

/// The dictionaries of one application.
#[derive(Default)]
pub struct Dictionaries {
    versions: [OnceLock<Dictionary>; VERSIONS_MAX],
    published: AtomicU8,
    publishing: Mutex<()>,
}

impl Dictionaries {
    /// None yet.
    pub fn new() -> Arc<Dictionaries> {
        Arc::new(Dictionaries::default())
    }

    /// Makes a dictionary known. `None` if it is empty or too long, or if there are
    /// [`VERSIONS_MAX`] already. Encoders use it from the next page on.
    pub fn publish(&self, content: &[u8]) -> Option<u8> {
        if content.is_empty() || content.len() > DICTIONARY_BYTES_MAX {
            return None;
        }
        let _one = self.publishing.lock().unwrap_or_else(PoisonError::into_inner);
        let place = usize::from(self.published.load(Ordering::Relaxed));
        let slot = self.versions.get(place)?;
        let version = place as u8 + 1;
        let content: Box<[u8]> = content.into();
        let zstd = DecoderTables::new(&content)?;
        slot.set(Dictionary { version, content, zstd }).ok()?;
        // Release: who sees the number finds the dictionary (the slot orders itself, too).
        self.published.store(version, Ordering::Release);
        Some(version)
    }

    /// The one that encoders should use.
    pub fn newest(&self) -> Option<&Dictionary> {
        self.get(self.published.load(Ordering::Acquire))
    }

    /// The dictionary that an object names; `None` for 0 and for a version that never was.
    pub fn get(&self, version: u8) -> Option<&Dictionary> {
        self.versions.get(usize::from(version).checked_sub(1)?)?.get()
    }

    /// Trains a dictionary from three quarters of the sample pages, tries it on the rest, and
    /// publishes it if the codecs of `list` that use one would store those in at least
    /// [`IMPROVEMENT_PERCENT`] percent less than with what is published now. Returns its version.
    ///
    /// The pages should lie far apart in the application: of neighbours on both sides the trial
    /// promises too much. Takes about a millisecond a page and allocates about 10 KiB a page; for a
    /// background thread.
    pub fn improve(self: &Arc<Self>, list: &[(Codec, i32)], pages: &[&Page]) -> Option<u8> {
        if self.is_full() {
            return None;
        }
        let (mut train, mut test) = (Vec::new(), Vec::new());
        for (n, page) in pages.iter().enumerate() {
            if n % 4 == 3 { &mut test } else { &mut train }.push(*page);
        }
        let tried = |dictionaries: &Arc<Dictionaries>| {
            let uses = list.iter().filter(|(codec, _)| codec.uses_dictionary());
            uses.map(|(codec, level)| encoded_bytes(*codec, *level, dictionaries, &test)).sum()
        };
        let now: Option<u64> = tried(self);
        let mut best = (now?, None);
        for piece_bytes in PIECE_BYTES {
            let content = train_on(&train, TRAINED_BYTES, piece_bytes);
            let candidate = Dictionaries::new();
            if candidate.publish(&content).is_some() {
                let bytes: Option<u64> = tried(&candidate);
                if bytes? < best.0 {
                    best = (bytes?, Some(content));
                }
            }
        }
        let pays = best.0 * 100 <= now? * (100 - IMPROVEMENT_PERCENT);
        best.1.filter(|_| pays).and_then(|content| self.publish(&content))
    }

    /// Whether there will be no other dictionary.
    pub fn is_full(&self) -> bool {
        usize::from(self.published.load(Ordering::Relaxed)) == VERSIONS_MAX
    }

    /// Memory held by the dictionaries, in bytes. Each encoder has tables of its own.
    pub fn bytes(&self) -> usize {
        let each = |d: &Dictionary| d.content.len() + d.zstd.bytes();
        self.versions.iter().filter_map(|v| v.get()).map(each).sum()
    }
}

#[cfg(test)]
#[path = "dictionary_tests.rs"]
mod tests;
