//! Pages that a child had too, and has no longer: how they become movable again.
//!
//! fork(2) leaves parent and child with the same pages, and the kernel moves none that is shared.
//! It learns that a page is shared no longer only when somebody writes to it: what is read, and
//! never written again, would stay in DRAM for good after the first snapshot that a database makes
//! by a fork. So when the pager was refused a page, the page tables are asked which pages of its
//! region no other process maps, and the kernel is asked to ready those for writing. Nothing is
//! written, and of a page that nobody else maps nothing is copied.
//!
//! Not for the pager: where a page has gone meanwhile, this waits for the pager to bring it.

use crate::region::Region;
use crate::runtime::Runtime;
use crate::sys::memory;
use std::sync::atomic::Ordering;
use terrace_core::state::PageState;

/// Regions in one window: 256 MiB, about 0.05 s. The others wait for the next.
const REGIONS_MAX: usize = 128;

/// Readies what the pager could not move, in this window's share of the regions.
pub fn take_back(rt: &Runtime) {
    if rt.is_paused() {
        return;
    }
    let was_refused = |r: &&Region| r.is_shared.load(Ordering::Relaxed);
    for region in rt.table.all().into_iter().filter(was_refused).take(REGIONS_MAX) {
        region.is_shared.store(false, Ordering::Relaxed);
        let Some(alone) = rt.pagemap.mapped_once(region.base) else { return };
        let ours = |i: usize| {
            let w = region.word(i);
            alone[i / 64] >> (i % 64) & 1 == 1
                && region.is_registered(i)
                && w.state() == PageState::Home
                && !w.zap_pending()
        };
        for pages in region.runs_where(ours) {
            memory::ready_for_writing(region.address(pages.start), region.address(pages.end));
        }
    }
}
