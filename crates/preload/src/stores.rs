//! The tiers of this process, composed in one place: codec + pool + medium by configuration.

use crate::sys::media;
use std::sync::Arc;
use terrace_core::tier::{Codec, Medium, TierId, TierSpec};
use terrace_core::wire::{Configure, TierConfig};
use terrace_store::codec::dictionary::Dictionaries;
use terrace_store::codec::ContextError;
use terrace_store::{DecoderSet, EncoderSet, Tier};

/// The tiers, by `TierId` from 1 on.
pub struct Stores {
    /// What was asked for.
    pub config: Configure,
    /// What tiers with dictionaries encode with. Empty until the trainer has published one.
    pub dictionaries: Arc<Dictionaries>,
    tiers: Vec<Tier>,
}

impl std::fmt::Debug for Stores {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Stores").field("config", &self.config).finish_non_exhaustive()
    }
}

impl Stores {
    /// Builds the tiers, each over a medium of its own. `memory_bytes` is the capacity of those
    /// that have none of their own. The error is a line for a person.
    pub fn build(config: Configure, memory_bytes: u64) -> Result<Stores, String> {
        let mut tiers = Vec::new();
        let mut devices = media::Devices::default();
        for (n, t) in config.tiers.iter().enumerate() {
            let share = share(&config.tiers, n);
            let medium = media::open(t.medium, &t.place, memory_bytes, share, &mut devices)
                .map_err(|why| format!("the medium of tier {} cannot be used: {why}", n + 1))?;
            tiers.push(Tier::new(&spec(t), medium, t.cutoff_bytes as usize));
        }
        Ok(Stores { config, dictionaries: Dictionaries::new(), tiers })
    }

    /// The tier and its configuration; `None` for DRAM and for tiers that do not exist.
    pub fn get(&self, tier: TierId) -> Option<(&Tier, &TierConfig)> {
        let n = tier.index().checked_sub(1)?;
        Some((self.tiers.get(n)?, self.config.tiers.get(n)?))
    }

    /// All tiers with their ids.
    pub fn iter(&self) -> impl Iterator<Item = (TierId, &Tier)> {
        self.tiers.iter().enumerate().map(|(n, t)| (TierId(n as u8 + 1), t))
    }

    /// Decoders for every codec in use.
    pub fn decoders(&self) -> Result<DecoderSet, ContextError> {
        let codecs = self.codecs().into_iter().map(|(c, _)| c);
        let mut decoders = DecoderSet::with_dictionaries(codecs, &self.dictionaries)?;
        if self.config.tiers.iter().any(|t| t.block_kib > 0) {
            decoders.add_blocks()?;
        }
        Ok(decoders)
    }

    /// Encoders in tier order.
    pub fn encoders(&self) -> Result<EncoderSet, ContextError> {
        EncoderSet::with_dictionaries(&self.codecs(), &self.dictionaries)
    }

    /// Codec and level of every tier, in tier order.
    pub fn codecs(&self) -> Vec<(Codec, i32)> {
        self.config.tiers.iter().map(|t| (t.codec, t.level)).collect()
    }
}

/// What tier `n` has of its device: tiers on one device divide it evenly, also where several media
/// name it, one enciphered and one not.
fn share(tiers: &[TierConfig], n: usize) -> media::Share {
    let t = &tiers[n];
    let alike = |other: &&TierConfig| other.medium == t.medium && other.place.path == t.place.path;
    media::Share {
        index: tiers[..n].iter().filter(alike).count() as u64,
        of: tiers.iter().filter(alike).count() as u64,
    }
}

/// The description that the store wants; names and prices are the planner's business.
fn spec(t: &TierConfig) -> TierSpec {
    TierSpec {
        name: String::new(),
        codec: t.codec,
        level: t.level,
        pool: t.pool,
        medium: Medium {
            name: String::new(),
            kind: t.medium,
            usd_per_gib_month: 0.0,
            latency_ns: t.latency_ns,
            bandwidth_mib_s: t.bandwidth_mib_s,
            place: t.place.clone(),
        },
        block_kib: t.block_kib,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrace_core::tier::{MediumKind, Place, Pool};

    fn tier(path: &str, is_enciphered: bool) -> TierConfig {
        TierConfig {
            codec: Codec::Lz4,
            level: 1,
            pool: Pool::Zbud,
            medium: MediumKind::Dax,
            latency_ns: 0,
            bandwidth_mib_s: 0,
            place: Place { path: path.into(), is_enciphered, ..Place::default() },
            block_kib: 0,
            cutoff_bytes: 2990,
        }
    }

    /// Two media may name one device: quick in the clear, and enciphered.
    #[test]
    fn no_two_tiers_have_the_same_part_of_a_device() {
        let tiers = [tier("/a", true), tier("/b", true), tier("/a", false), tier("/a", true)];
        let parts: Vec<_> =
            (0..4).map(|n| share(&tiers, n)).map(|share| (share.index, share.of)).collect();
        assert_eq!(parts, [(0, 3), (0, 1), (1, 3), (2, 3)]);
    }
}
