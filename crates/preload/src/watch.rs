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
        let mut zeros = None;
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
            let page = region.address(i);
            match rt.pagemap.sight(page) {
                Sight::Gone => continue,
                Sight::Shared => {
                    // Nobody's own: the zero page, which is as good as a hole, or a child's, too.
                    let zeros = zeros.get_or_insert_with(|| rt.pagemap.zeros(region.base));
                    let is_childs = zeros[i / 64] >> (i % 64) & 1 == 0;
                    region.is_shared.fetch_or(is_childs, Ordering::Relaxed);
                    continue;
                }
                Sight::Untouched | Sight::Touched if pages.contains(&i) => continue,
                Sight::Untouched | Sight::Touched => {}
            }
            match rt.uffd.watch(page) {
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

    /// Counts which of them were touched since. What has no content of its own any more is no
    /// sample: it was dropped or sent to a tier, which may be before or after somebody touched it.
    /// Nor is what a child has by now.
    pub fn end(self, rt: &Runtime) {
        let (mut samples, mut hits) = (0u8, 0u8);
        for &i in &self.pages {
            match rt.pagemap.sight(self.region.address(i)) {
                Sight::Untouched => samples += 1,
                Sight::Touched => (samples, hits) = (samples + 1, hits + 1),
                Sight::Shared | Sight::Gone => {}
            }
        }
        self.region.samples.store(samples, Ordering::Relaxed);
        self.region.hits.store(hits, Ordering::Relaxed);
    }
}
