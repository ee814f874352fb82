//! A look at a few pages of a region before it goes to a tier that has not seen it.
//!
//! What a region shrinks to is known of what was carried into a tier, and carrying in 512 pages
//! that do not shrink takes 10 ms. Of memory that is random, encrypted or compressed already that
//! is all for nothing, and it is paid from what the program may lose. A few pages tell as much.

use crate::region::Region;
use crate::runtime::Runtime;
use crate::sys::proc;
use std::sync::atomic::Ordering;
use terrace_core::state::{PageState, REGION_PAGES};
use terrace_core::tier::TierId;
use terrace_store::codec::Encoder;
use terrace_store::page::same_filled;
use terrace_store::{Page, Tier};

/// Pages looked at, one from each of as many parts of the region.
const PAGES: usize = 8;
/// Fewer than this many that are at home say nothing.
const PAGES_MIN: u32 = 6;

/// What was found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Found {
    /// A page that shrinks, or too little to say anything.
    Worth,
    /// None of so many pages shrinks below the cut-off.
    Futile(u32),
}

/// Looks at pages of `region` that are at home, as copies: nothing is moved. `page` and `encoded`
/// are for the copies and what they shrink to; the cut-off is the length of `encoded`.
pub fn look(
    rt: &Runtime,
    region: &Region,
    encoder: &mut Encoder,
    page: &mut Page,
    encoded: &mut [u8],
) -> Found {
    let Some(present) = rt.pagemap.present(region.base) else { return Found::Worth };
    let mut tried = 0;
    for i in pages() {
        let is_home = region.word(i).state() == PageState::Home
            && region.is_registered(i)
            && present[i / 64] >> (i % 64) & 1 == 1;
        if !is_home || !proc::read_application_page(region.address(i), page) {
            continue;
        }
        if same_filled(page).is_some() || encoder.encode(page, encoded).is_some() {
            return Found::Worth;
        }
        tried += 1;
    }
    if tried < PAGES_MIN {
        return Found::Worth;
    }
    Found::Futile(tried)
}

/// Whether a region should be looked at before it is carried to `tier`: all of it is at home, and
/// that tier has seen nothing of it.
pub fn is_called_for(rt: &Runtime, region: &Region, tier: TierId) -> bool {
    let can_refuse = |t: &Tier| t.has_encodings() && !t.takes_all();
    // A tortured run moves all that it can.
    rt.stores.config.torture_seed == 0
        && region.stored_total() == 0
        && region.resident.load(Ordering::Relaxed) > 0
        && !region.shrinkage.knows(tier)
        && rt.stores.get(tier).is_some_and(|(t, _)| can_refuse(t))
}

/// One page of each part, not the same of each: data often repeats with a power of two.
fn pages() -> impl Iterator<Item = usize> {
    const PART: usize = REGION_PAGES / PAGES;
    (0..PAGES).map(|part| part * PART + part * 37 % PART)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_part_is_looked_at_once() {
        let looked_at: Vec<usize> = pages().collect();
        assert_eq!(looked_at.len(), PAGES);
        assert!(looked_at.iter().enumerate().all(|(part, i)| i / 64 == part));
        let places: std::collections::BTreeSet<usize> = looked_at.iter().map(|i| i % 64).collect();
        assert_eq!(places.len(), PAGES);
    }
}
