//! What the pages of one region shrink to, as a runtime saw it, and what the planner makes of that.
//!
//! A runtime knows the encoded size of every page it stores, and which pages a tier would not take.
//! Of each region and tier it keeps two shares ([`Shrunk`]): what the pages that were taken shrank
//! to, and how many were not taken. They survive the pages' coming home. [`Shrunk::ratios`] makes
//! of them what a region takes in *every* tier:
//!
//! - a tier of the same codec and level holds the same bytes, whatever its pool and medium;
//! - a codec that has not seen the region does as much better or worse than one that has as it does
//!   on average;
//! - the pool adds what it adds ([`packed`]), and what pages of unlike sizes lose in it;
//! - pages that no tier takes stay at home, wherever the region is sent, at DRAM's price. That is
//!   [`crate::plan::RegionView::refused`] and not part of the ratio: a page that stays home does
//!   not become cheaper because the medium it was refused by is.

use crate::plan::Ratios;
use crate::tier::{Codec, Pool, MAX_TIERS};

/// Steps of a stored share: 0.4 %, at most 1.02.
const STORED_STEPS: f64 = 250.0;
/// Steps of a refused share.
const REFUSED_STEPS: f64 = 255.0;

/// Pool bytes per encoded byte in a zsmalloc pool that is not being emptied.
pub const ZSMALLOC_OVERHEAD: f64 = 1.04;

/// By tier, what one region's pages became there. A tier of which both are 0 has not seen it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Shrunk {
    stored: [u8; MAX_TIERS],
    refused: [u8; MAX_TIERS],
}

/// What a planner knows of a tier's codec, the same for all regions.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct TierAverage {
    /// The codec.
    pub codec: Codec,
    /// Its level.
    pub level: i32,
    /// The pool manager.
    pub pool: Pool,
    /// Whether pages are encoded together, so that no page has a size of its own.
    pub has_blocks: bool,
    /// Encoded bytes / original bytes of the pages that it takes, pool aside; `None` if unknown.
    pub encoded: Option<f64>,
    /// Pool bytes / original bytes of the same pages; `None` if no pool was tried with them.
    pub packed: Option<f64>,
}

impl TierAverage {
    /// Pool bytes / original bytes of pages that encode to this share on average; may be above 1.
    fn takes(&self, encoded: f64) -> f64 {
        if self.has_blocks {
            return encoded;
        }
        let if_alike = packed(self.pool, encoded);
        let (Some(mean), Some(tried)) = (self.encoded, self.packed) else { return if_alike };
        // Pages are not alike: of some that shrink to 0.47 on average a third are above a half, and
        // find no partner. A region that shrinks better than the others is less of a mixture.
        let mixture = (tried - packed(self.pool, mean)).max(0.0);
        let share = if mean > 0.0 { (encoded / mean).min(1.0) } else { 1.0 };
        if_alike + mixture * share
    }
}

impl Shrunk {
    /// Notes what became of pages in the tier of this index: the encoded share of those that were
    /// taken (0 to 1), and the share (0 to 1) of those that were not.
    pub fn note(&mut self, tier: usize, stored: f64, refused: f64) {
        let refused = if refused.is_nan() { 0.0 } else { refused.clamp(0.0, 1.0) };
        self.refused[tier] = (refused * REFUSED_STEPS).round() as u8;
        self.stored[tier] = match self.refused[tier] == u8::MAX || stored.is_nan() {
            true => 0,
            false => (stored * STORED_STEPS).round().clamp(1.0, 255.0) as u8,
        };
    }

    /// What was noted of a tier: the share stored (`None` if all were refused), the share refused.
    pub fn get(&self, tier: usize) -> Option<(Option<f64>, f64)> {
        let (stored, refused) = (self.stored[tier], self.refused[tier]);
        let share = (stored > 0).then(|| f64::from(stored) / STORED_STEPS);
        (stored > 0 || refused > 0).then(|| (share, f64::from(refused) / REFUSED_STEPS))
    }

    /// The two bytes of a tier, for the wire.
    pub fn bytes(&self, tier: usize) -> [u8; 2] {
        [self.stored[tier], self.refused[tier]]
    }

    /// From the two bytes of each tier; any bytes have a meaning.
    pub fn set_bytes(&mut self, tier: usize, [stored, refused]: [u8; 2]) {
        (self.stored[tier], self.refused[tier]) = (stored, refused);
    }

    /// Whether no tier has seen the region.
    pub fn is_empty(&self) -> bool {
        *self == Shrunk::default()
    }

    /// What the region takes in each tier, and the share of its pages that none takes, in 1/255.
    /// `tiers[0]` is the first compressed tier. Tiers of which nothing follows are left unknown.
    pub fn ratios(&self, tiers: &[TierAverage]) -> (Ratios, u8) {
        let mut ratios = Ratios::UNKNOWN;
        let known = || (1..=tiers.len().min(MAX_TIERS - 1)).filter_map(|t| Some((t, self.get(t)?)));
        // What one tier refuses another may take; what all refused stays at home.
        let Some(refused) = known().map(|(_, (_, refused))| refused).reduce(f64::min) else {
            return (ratios, 0);
        };
        let home = (refused * REFUSED_STEPS).round() as u8;
        if home == u8::MAX {
            return (ratios, home);
        }
        for (index, of) in tiers.iter().enumerate().take(MAX_TIERS - 1) {
            let tier = index + 1;
            // Its own figures, those of a tier like it, or what the others say of it on average.
            let alike = |&(seen, _): &(usize, _)| {
                let seen = &tiers[seen - 1];
                let is_block = seen.has_blocks || of.has_blocks;
                seen.codec == of.codec && seen.level == of.level && !is_block
            };
            let own = self.get(tier).filter(|_| !of.has_blocks);
            let found = own.or_else(|| known().find(alike).map(|(_, figures)| figures));
            let encoded = match found {
                // Of what another tier took and this one did not, this one saves nothing.
                Some((stored, more)) => {
                    let left = 1.0 - refused;
                    let taken = stored.unwrap_or(1.0) * (1.0 - more) + (more - refused);
                    Some(taken / left)
                }
                None => related(of, known().map(|(t, (stored, _))| (&tiers[t - 1], stored))),
            };
            if let Some(encoded) = encoded {
                ratios.set(tier, of.takes(encoded).min(1.0));
            }
        }
        (ratios, home)
    }
}

/// What a codec that has not seen the region would make of it: the mean over those that have.
fn related<'a>(
    of: &TierAverage,
    seen: impl Iterator<Item = (&'a TierAverage, Option<f64>)>,
) -> Option<f64> {
    let (mut sum, mut count) = (0.0, 0);
    for (tier, stored) in seen {
        if let (Some(stored), Some(its), Some(ours)) = (stored, tier.encoded, of.encoded) {
            if its > 0.0 {
                sum += (stored * ours / its).min(1.0);
                count += 1;
            }
        }
    }
    (count > 0).then(|| sum / f64::from(count))
}

/// Pool bytes / original bytes of pages that encode to this share, when the pool holds more of
/// their kind. zbud pairs two objects in a page and z3fold three, however small they are; from half
/// a page on an object finds fewer and fewer partners.
pub fn packed(pool: Pool, encoded: f64) -> f64 {
    /// Encoded share from which no partner fits: the largest page that is taken is 0.73.
    const ALONE: f64 = 0.73;
    let above_half = |share: f64| 0.5 + 0.5 * ((share - 0.5) / (ALONE - 0.5)).min(1.0);
    match pool {
        Pool::Zsmalloc => (encoded * ZSMALLOC_OVERHEAD).min(1.0),
        Pool::Zbud if encoded <= 0.5 => 0.5,
        Pool::Z3fold if encoded <= 0.5 => encoded.max(1.0 / 3.0),
        Pool::Zbud | Pool::Z3fold => above_half(encoded),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tier(codec: Codec, pool: Pool, encoded: f64) -> TierAverage {
        let encoded = Some(encoded);
        TierAverage { codec, level: 1, pool, has_blocks: false, encoded, packed: None }
    }

    fn near(ratios: &Ratios, tier: usize, want: f64) {
        let got = ratios.get(tier).expect("known");
        assert!((got - want).abs() < 0.01, "tier {tier}: {got}, not {want}");
    }

    #[test]
    fn what_was_seen_is_used_for_tiers_like_it_and_scaled_for_others() {
        let tiers = [
            tier(Codec::Lz4, Pool::Zbud, 0.4),
            tier(Codec::Lz4, Pool::Zsmalloc, 0.4),
            tier(Codec::Zstd, Pool::Zsmalloc, 0.3),
            TierAverage { level: 9, encoded: None, ..tier(Codec::Zstd, Pool::Zsmalloc, 0.0) },
        ];
        let mut shrunk = Shrunk::default();
        assert_eq!(shrunk.ratios(&tiers), (Ratios::UNKNOWN, 0));
        shrunk.note(1, 0.2, 0.0);
        let (ratios, refused) = shrunk.ratios(&tiers);
        near(&ratios, 1, 0.5); // two to a page, however small
        near(&ratios, 2, 0.2 * 1.04);
        near(&ratios, 3, 0.15 * 1.04); // three quarters of what lz4 takes, as on average
        assert_eq!((ratios.get(4), refused), (None, 0), "of that one nothing follows");
        // Its own figures win.
        shrunk.note(3, 0.1, 0.0);
        near(&shrunk.ratios(&tiers).0, 3, 0.1 * 1.04);
    }

    #[test]
    fn what_unlike_pages_lose_in_a_pool_counts_where_it_was_tried() {
        let tried = |pool, packed| TierAverage { packed, ..tier(Codec::Lz4, pool, 0.47) };
        let tiers = [
            tried(Pool::Zbud, None),
            tried(Pool::Zbud, Some(0.59)),
            tried(Pool::Zsmalloc, Some(0.5)),
        ];
        let mut shrunk = Shrunk::default();
        let mut ratios = |encoded| {
            (1..=3).for_each(|t| shrunk.note(t, encoded, 0.0));
            shrunk.ratios(&tiers).0
        };
        // As mixed as the average: zsmalloc takes less.
        let average = ratios(0.47);
        near(&average, 1, 0.5);
        near(&average, 2, 0.59);
        near(&average, 3, 0.5);
        // Of what shrinks well most pages find a partner; what shrinks badly is a mixture still.
        near(&ratios(0.1), 2, 0.5 + 0.09 * 0.1 / 0.47);
        near(&ratios(0.6), 2, packed(Pool::Zbud, 0.6) + 0.09);
        near(&ratios(0.8), 2, 1.0);
    }

    #[test]
    fn what_every_tier_refused_stays_home_and_the_rest_counts_as_it_is() {
        let tiers = [
            tier(Codec::Lz4, Pool::Zsmalloc, 0.5),
            tier(Codec::Zstd, Pool::Zsmalloc, 0.4),
            tier(Codec::Deflate, Pool::Zsmalloc, 0.4),
        ];
        let mut shrunk = Shrunk::default();
        shrunk.note(1, 0.3, 1.0);
        let (ratios, refused) = shrunk.ratios(&tiers);
        assert_eq!((ratios, refused), (Ratios::UNKNOWN, 255));
        // Another takes half of it: then half is at home, and the first takes nothing of the rest.
        shrunk.note(2, 0.4, 0.5);
        let (ratios, refused) = shrunk.ratios(&tiers);
        assert_eq!(refused, 128);
        near(&ratios, 1, 1.0);
        near(&ratios, 2, 0.4 * 1.04);
        near(&ratios, 3, 0.4 * 1.04); // as the one that took some
    }

    #[test]
    fn nonsense_and_bytes_are_survived() {
        let mut shrunk = Shrunk::default();
        shrunk.note(3, f64::NAN, f64::NAN);
        assert!(shrunk.is_empty());
        shrunk.note(3, 7.0, -1.0);
        assert_eq!(shrunk.get(3), Some((Some(255.0 / 250.0), 0.0)));
        let mut again = Shrunk::default();
        again.set_bytes(3, shrunk.bytes(3));
        assert_eq!(again, shrunk);
        for pool in Pool::ALL {
            for share in 0..=100 {
                let (here, next) = (f64::from(share) / 100.0, f64::from(share + 1) / 100.0);
                assert!(packed(pool, here) <= packed(pool, next) && packed(pool, here) <= 1.0);
                assert!(packed(pool, here) >= here.min(1.0), "{pool:?} {here}");
            }
        }
    }
}
