//! What tiers cost where a simulation has to know it before anything was measured.

use terrace_core::cost::{TierCost, TAKE_OUT_NS};
use terrace_core::tier::{Codec, MediumKind, Pool, TierSpec};

use crate::config::Config;
use crate::trace::{self, Meta, TraceTier};

/// What a fault from a file takes beside decoding, in nanoseconds: one read of a solid state disk.
const FILE_NS: f64 = 90_000.0;
/// What any fault takes beside decoding, in nanoseconds: the message, the copy, the wake-up.
const SERVICE_NS: f64 = 4_500.0;

/// Time to decode a page, in nanoseconds, and the share of its bytes that it shrinks to: middling
/// nominal figures, of no program in particular.
fn of_codec(codec: Codec) -> (f64, f64) {
    match codec {
        Codec::Lz4 => (1_000.0, 0.45),
        Codec::Lz4hc => (1_000.0, 0.41),
        Codec::Lz4Dict => (1_500.0, 0.40),
        Codec::Lzo | Codec::LzoRle => (3_000.0, 0.45),
        Codec::Zstd => (8_000.0, 0.33),
        Codec::ZstdDict => (6_000.0, 0.28),
        Codec::Deflate => (22_000.0, 0.33),
        Codec::C842 => (25_000.0, 0.50),
    }
}

/// Processor time of moving a page to a tier of this codec, in nanoseconds: what taking it out of
/// memory costs, and encoding it, nominally.
pub fn move_ns(codec: Codec) -> f64 {
    TAKE_OUT_NS
        + match codec {
            Codec::Lz4 | Codec::Lz4Dict | Codec::Lzo | Codec::LzoRle => 5_000.0,
            Codec::Zstd | Codec::ZstdDict => 12_000.0,
            Codec::Lz4hc | Codec::Deflate | Codec::C842 => 35_000.0,
        }
}

fn of_tier(tier: &TierSpec) -> TierCost {
    let (decode_ns, ratio) = of_codec(tier.codec);
    let medium_ns = match tier.medium.kind {
        MediumKind::File => FILE_NS,
        _ => tier.medium.latency_ns as f64,
    };
    let blocks_ns = f64::from(tier.block_kib) / 4.0 * decode_ns / 2.0;
    TierCost {
        fault_ns: SERVICE_NS + decode_ns + medium_ns + blocks_ns,
        ratio: match tier.pool {
            Pool::Zbud => ratio.max(0.55),
            Pool::Z3fold => ratio.max(0.38),
            Pool::Zsmalloc => ratio * 1.04,
        },
        ..TierCost::dram(tier.medium.usd_per_gib_month)
    }
}

/// DRAM and the tiers of a configuration, at figures that nobody measured.
pub fn nominal(config: &Config) -> Vec<TierCost> {
    let dram = TierCost::dram(config.dram().usd_per_gib_month);
    std::iter::once(dram).chain(config.tiers.iter().map(of_tier)).collect()
}

/// The tiers of `config` at the costs that the trace measured for the same codec, level, pool and
/// medium, else at nominal ones; and for each the tier of the trace, if it has it.
pub fn of_trace(config: &Config, meta: &Meta) -> (Vec<TraceTier>, Vec<Option<usize>>) {
    let nominal = nominal(config);
    let mut tiers = trace::tiers(config, &nominal, "nominal");
    let mut from = vec![Some(0)];
    for tier in tiers.iter_mut().skip(1) {
        let same = |t: &TraceTier| {
            (&t.codec, t.level, &t.pool, t.block_kib, &t.medium)
                == (&tier.codec, tier.level, &tier.pool, tier.block_kib, &tier.medium)
        };
        let found = meta.tiers.iter().skip(1).position(same).map(|index| index + 1);
        if let Some(index) = found {
            let measured = &meta.tiers[index];
            (tier.fault_ns, tier.ratio) = (measured.fault_ns, measured.ratio);
            tier.move_ns = measured.move_ns;
            tier.known.clone_from(&measured.known);
        }
        from.push(found);
    }
    tiers[0].known.clone_from(&meta.tiers[0].known);
    (tiers, from)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::preset::Preset;

    #[test]
    fn what_was_measured_is_used_and_the_rest_is_nominal() {
        let mut then = Config::from_preset(Preset::Auto);
        then.tiers[1] = Preset::Tierscape.tiers()[0].clone();
        let mut costs = nominal(&then);
        costs[2].fault_ns = 1_234.0;
        let meta = Meta::of(&then, &costs, "measured");
        let (tiers, from) = of_trace(&Config::from_preset(Preset::Tierscape), &meta);
        assert_eq!(from, [Some(0), Some(2), None, None, None, None]);
        assert_eq!((tiers[1].fault_ns, tiers[1].known.as_str()), (1_234.0, "measured"));
        assert_eq!(tiers[2].known, "nominal");
        assert!(nominal(&then).iter().all(TierCost::is_valid));
    }
}
