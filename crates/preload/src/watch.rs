//! Samples that stay where they are, on kernels that can watch a page (`RWP_ASYNC`, Linux 7.3).
//!
//! Where `samples.rs` takes a page away to see whether somebody comes for it, here the kernel is
//! told to note the next access. That access costs its thread a fault of a microsecond inside the
//! kernel, instead of ten to thirty through the pager; and the page never leaves its place, so that
//! there is nothing to bring back and no byte hangs on it. Only the agent does this: a protection
//! on a page that has just become another one's costs that one a fault, and says nothing wrong.

use crate::pager::moves::Sampling;
use crate::region::Region;
use crate::runtime::Runtime;
use crate::sys::memory;
use crate::sys::proc::Sight;
use crate::sys::uffd::Failure;
use std::sync::atomic::Ordering;
use terrace_core::state::REGION_BYTES;

/// Pages of a region that are watched in this window.
#[derive(Debug)]
pub struct Watched {
    region: &'static Region,
    pages: Vec<usize>,
}

impl Watched {
    /// Watches the pages of a sampling. A page is watched once it was seen to be: one that is a
    /// hole, or was touched before that look, is no sample.
    pub fn begin(rt: &Runtime, mut sampling: Sampling) -> Watched {
        let region = sampling.region();
        let (stamp, cooling) = (rt.window_stamp(), rt.stores.config.cooling_windows);
        let mut pages = Vec::with_capacity(sampling.wanted());
        let alone = rt.pagemap.mapped_once(region.base).unwrap_or_default();
        if rt.pagemap.has_huge(region.base) {
            // Or its mapping would be divided and it would not be: after a fork the kernel may then
            // refuse for good to move what is left of it.
            memory::split_huge(region.base, region.base + REGION_BYTES);
        }
        while sampling.wanted() > 0 && !rt.is_paused() {
            let Some((i, w)) = sampling.next(stamp, cooling) else { break };
            // What is to stay (`kept.rs`) the kernel may want where it cannot take a fault.
            if w.sample(0).is_none() {
                continue;
            }
            if alone[i / 64] >> (i % 64) & 1 == 0 {
                // A child's, too, or a hole: as a sample that could not be taken out.
                region.is_shared.store(true, Ordering::Relaxed);
                continue;
            }
            let page = region.address(i);
            match rt.uffd.watch(page) {
                Ok(()) if pages.contains(&i) => {}
                Ok(()) if rt.pagemap.sight(page) == Sight::Untouched => {
                    pages.push(i);
                    sampling.took(1);
                }
                // Mappings are on their way: there is another window.
                Err(Failure::Changing | Failure::Gone) => break,
                Ok(()) | Err(_) => {}
            }
        }
        region.samples.store(pages.len() as u8, Ordering::Relaxed);
        Watched { region, pages }
    }

    /// Counts which of them were touched since. What has no content any more is no sample: it was
    /// dropped or sent to a tier, which may be before or after somebody touched it.
    pub fn end(self, rt: &Runtime) {
        let sights = self.pages.iter().map(|&i| rt.pagemap.sight(self.region.address(i)));
        let (mut samples, mut hits) = (0u8, 0u8);
        for sight in sights.filter(|&sight| sight != Sight::Gone) {
            samples += 1;
            hits += u8::from(sight == Sight::Touched);
        }
        self.region.samples.store(samples, Ordering::Relaxed);
        self.region.hits.store(hits, Ordering::Relaxed);
    }
}
