//! Tier sets that need no file, and the prices they assume.
//!
//! `auto` uses only media that the machine really has, so its money is real money. `tierscape` is
//! the paper's Table 2 with an emulated slow medium in the place of its Optane: it is there to
//! compare with the paper, and every report says that the medium is emulated.

use std::fmt;

use terrace_core::tier::{Codec, Medium, MediumKind, Place, Pool, TierSpec};

/// Price of DRAM when no file says otherwise, in US dollars per GiB and month. An assumption for
/// owned servers, rounded: registered DIMMs at 10 USD per GiB written off over 48 months are 0.21;
/// 0.15 W per GiB at 0.12 USD per kWh and a PUE of 1.5 is 0.02; spares and the share of board,
/// channels and capital cost take the rest. Module prices move by a factor of three within a
/// year and clouds rent a GiB for 2 to 4 USD a month, so anyone who reports money sets their own.
pub const DRAM_USD_PER_GIB_MONTH: f64 = 0.30;

/// Price of the `slow` medium relative to DRAM: TierScape prices Optane at a third of DRAM.
pub const SLOW_PRICE_RATIO: f64 = 1.0 / 3.0;

/// Added latency of `slow`. Published measurements of Optane DC in App Direct mode (Izraelevitz
/// et al., "Basic Performance Measurements of the Intel Optane DC Persistent Memory Module", 2019)
/// put its random read at 305 ns where DRAM takes 81 ns, its sequential read at 169 ns. The
/// emulation starts from DRAM that has already paid its own 80 ns, so 300 ns more leans towards
/// slow: what is measured with it is not flattered.
pub const SLOW_LATENCY_NS: u64 = 300;

/// Bandwidth of `slow`: about what one thread reads from one Optane module (the same study has one
/// module at 6,600 MB/s reading with many threads and 2,300 MB/s writing).
pub const SLOW_BANDWIDTH_MIB_S: u64 = 2_000;

/// A tier set with a name.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, clap::ValueEnum)]
pub enum Preset {
    /// Real media only: lz4, zstd, and zstd in blocks of 64 KiB, in zsmalloc on DRAM: what
    /// `terrace tiers characterize` finds on the frontier of every data set tried, without the
    /// dictionaries, whose training costs a small program more than they save it.
    #[default]
    Auto,
    /// TierScape's Table 2: five compressed tiers, three of them on an emulated slow medium.
    Tierscape,
}

impl Preset {
    /// All presets, in the order that help texts list them.
    pub const ALL: [Preset; 2] = [Preset::Auto, Preset::Tierscape];

    /// Name on the command line and in reports.
    pub fn name(self) -> &'static str {
        match self {
            Preset::Auto => "auto",
            Preset::Tierscape => "tierscape",
        }
    }

    /// Inverse of [`Preset::name`].
    pub fn from_name(name: &str) -> Option<Preset> {
        Preset::ALL.into_iter().find(|p| p.name() == name)
    }

    /// The media of the preset; DRAM first.
    pub fn media(self) -> Vec<Medium> {
        match self {
            Preset::Auto => vec![dram(DRAM_USD_PER_GIB_MONTH)],
            Preset::Tierscape => {
                vec![dram(DRAM_USD_PER_GIB_MONTH), slow(DRAM_USD_PER_GIB_MONTH)]
            }
        }
    }

    /// The compressed tiers of the preset on its own media, from low latency to low price.
    pub fn tiers(self) -> Vec<TierSpec> {
        self.tiers_on(&self.media())
    }

    /// The compressed tiers of the preset, on the DRAM and the `slow` of `media` where there are
    /// such (a file that only sets prices), else on the preset's own.
    pub fn tiers_on(self, media: &[Medium]) -> Vec<TierSpec> {
        let find = |wanted: &dyn Fn(&&Medium) -> bool| media.iter().find(wanted).cloned();
        let dram =
            find(&|m| m.kind == MediumKind::Dram).unwrap_or_else(|| dram(DRAM_USD_PER_GIB_MONTH));
        let slow = find(&|m| m.name == "slow").unwrap_or_else(|| slow(dram.usd_per_gib_month));
        let (zbud, zsmalloc) = (Pool::Zbud, Pool::Zsmalloc);
        match self {
            Preset::Auto => vec![
                TierSpec::new(zsmalloc, Codec::Lz4, dram.clone()),
                TierSpec::new(zsmalloc, Codec::Zstd, dram.clone()),
                TierSpec::with_blocks(zsmalloc, 64, dram),
            ],
            Preset::Tierscape => vec![
                TierSpec::new(zbud, Codec::Lz4, dram.clone()),
                TierSpec::new(zbud, Codec::Lz4, slow.clone()),
                TierSpec::new(zsmalloc, Codec::Lz4, slow.clone()),
                TierSpec::new(zsmalloc, Codec::Lzo, dram),
                TierSpec::new(zsmalloc, Codec::Deflate, slow),
            ],
        }
    }
}

impl fmt::Display for Preset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The machine's own memory at a price.
pub fn dram(usd_per_gib_month: f64) -> Medium {
    Medium::dram(usd_per_gib_month)
}

/// The emulated slow medium next to DRAM of a given price.
pub fn slow(dram_usd_per_gib_month: f64) -> Medium {
    Medium {
        name: "slow".into(),
        kind: MediumKind::Emulated,
        usd_per_gib_month: dram_usd_per_gib_month * SLOW_PRICE_RATIO,
        latency_ns: SLOW_LATENCY_NS,
        bandwidth_mib_s: SLOW_BANDWIDTH_MIB_S,
        place: Place::default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(preset: Preset) -> Vec<String> {
        preset.tiers().into_iter().map(|t| t.name).collect()
    }

    #[test]
    fn presets_are_what_the_documentation_lists() {
        assert_eq!(
            names(Preset::Auto),
            ["zsmalloc+lz4+dram", "zsmalloc+zstd+dram", "zsmalloc+zstd+64k+dram"]
        );
        assert_eq!(
            names(Preset::Tierscape),
            [
                "zbud+lz4+dram",
                "zbud+lz4+slow",
                "zsmalloc+lz4+slow",
                "zsmalloc+lzo+dram",
                "zsmalloc+deflate+slow"
            ]
        );
    }

    #[test]
    fn auto_uses_no_emulated_medium() {
        assert!(Preset::Auto.media().iter().all(|m| m.kind == MediumKind::Dram));
        assert!(Preset::Auto.tiers().iter().all(|t| t.medium.kind == MediumKind::Dram));
    }

    #[test]
    fn a_price_from_a_file_reaches_the_tiers_and_the_slow_medium_follows_it() {
        let tiers = Preset::Tierscape.tiers_on(&[dram(3.0)]);
        assert_eq!(tiers[0].medium.usd_per_gib_month, 3.0);
        assert_eq!(tiers[1].medium.usd_per_gib_month, 1.0);
    }
}
