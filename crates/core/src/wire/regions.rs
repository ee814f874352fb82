//! One region of a report, byte by byte.

use super::{Malformed, Reader, RegionReport, Writer};
use crate::shrink::Shrunk;
use crate::tier::MAX_TIERS;

/// The fields in their order.
pub(super) fn encode(w: &mut Writer, g: &RegionReport) {
    w.u64(g.region).u8(g.tier).u16(g.resident).u16(g.stored).u16(g.resting);
    w.u8(g.samples).u8(g.hits).u16(g.resident_at_open).u32(g.faults);
    encode_shrunk(w, &g.shrunk);
}

/// What [`encode`] wrote.
pub(super) fn decode(r: &mut Reader<'_>) -> Result<RegionReport, Malformed> {
    Ok(RegionReport {
        region: r.u64()?,
        tier: r.u8()?,
        resident: r.u16()?,
        stored: r.u16()?,
        resting: r.u16()?,
        samples: r.u8()?,
        hits: r.u8()?,
        resident_at_open: r.u16()?,
        faults: r.u32()?,
        shrunk: decode_shrunk(r)?,
    })
}

/// Which tiers have seen the region, then two bytes of each.
fn encode_shrunk(w: &mut Writer, shrunk: &Shrunk) {
    let seen = (0..MAX_TIERS).filter(|&tier| shrunk.get(tier).is_some());
    w.u16(seen.clone().fold(0, |set, tier| set | 1 << tier));
    for [stored, refused] in seen.map(|tier| shrunk.bytes(tier)) {
        w.u8(stored).u8(refused);
    }
}

fn decode_shrunk(r: &mut Reader<'_>) -> Result<Shrunk, Malformed> {
    let (set, mut shrunk) = (r.u16()?, Shrunk::default());
    for tier in (0..MAX_TIERS).filter(|tier| set >> tier & 1 == 1) {
        shrunk.set_bytes(tier, [r.u8()?, r.u8()?]);
    }
    Ok(shrunk)
}
