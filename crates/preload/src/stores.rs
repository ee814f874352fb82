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
            // Tiers on one device divide it evenly.
            let alike = |other: &&TierConfig| other.medium == t.medium && other.place == t.place;
            let share = media::Share {
                index: config.tiers[..n].iter().filter(alike).count() as u64,
                of: config.tiers.iter().filter(alike).count() as u64,
            };
            let medium = media::open(t.medium, &t.place, memory_bytes, share, &mut devices)
                .map_err(|why| format!("the medium of tier {} cannot be used: {why}", n + 1))?;
            tiers.push(Tier::new(&spec(t), medium, config.cutoff_bytes as usize));
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
