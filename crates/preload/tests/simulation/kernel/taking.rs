//! The kernel's part in taking pages by `MADV_FREE` and `MADV_PAGEOUT`: what is given up may be
//! dropped at any time while nobody holds it and nobody has written to it since.

use super::calls::announce_removal;
use super::{access, once_in, with, MAIN, PAGE, ZERO_FRAME};
use crate::schedule;
use std::rc::Rc;

/// A page held by a pipe.
#[derive(Debug)]
pub struct Held {
    page: u64,
    frame: usize,
}

/// Whether a page is there, writable, and mapped by nobody else.
pub fn is_takeable(page: u64) -> bool {
    schedule::call_point();
    with(|k| {
        let is_writable =
            k.spaces[MAIN].vma(page).is_some_and(|(_, v)| v.prot == super::Prot::Write);
        let pte = k.spaces[MAIN].ptes.get(&page);
        is_writable && pte.is_some_and(|p| p.frame != ZERO_FRAME && k.frames[p.frame].maps == 1)
    })
}

/// Whether a page is there.
pub fn is_present(page: u64) -> bool {
    schedule::call_point();
    with(|k| k.spaces[MAIN].ptes.contains_key(&page))
}

/// vmsplice(2) of one page.
pub fn hold(page: u64) -> Option<Held> {
    schedule::call_point();
    with(|k| {
        let frame = k.spaces[MAIN].ptes.get(&page)?.frame;
        k.frames[frame].pins += 1;
        Some(Held { page, frame })
    })
}

/// madvise(MADV_FREE): announced first, as any drop.
pub fn give_up(start: u64, end: u64) {
    schedule::call_point();
    schedule::trace(|| format!("gives up {start:#x} +{}", (end - start) / PAGE));
    announce_removal(MAIN, start, end);
    with(|k| {
        let there: Vec<usize> =
            k.spaces[MAIN].ptes.range(start..end).map(|(_, p)| p.frame).collect();
        for frame in there {
            let frame = &mut k.frames[frame];
            frame.is_given_up |= frame.maps == 1;
        }
    });
}

/// Reads a held page out of its pipe to a slot. Where that has no memory the page is made dirty.
pub fn read_out(held: Held, slot: u64) {
    let bytes = with(|k| *k.frames[held.frame].bytes);
    if once_in(with(|k| k.faults.no_memory)) {
        let _ = super::populate(MAIN, held.page);
    } else {
        let _ = access(MAIN, slot, true, |page| *page = bytes);
    }
    with(|k| {
        k.frames[held.frame].pins -= 1;
        k.free_if_unused(held.frame);
    });
}

/// The kernel looks at a page, by madvise(MADV_PAGEOUT) or on its own account: drops what was given
/// up, if it may.
pub fn reclaim(page: u64) {
    schedule::call_point();
    with(|k| {
        let Some(pte) = k.spaces[MAIN].ptes.get(&page).copied() else { return };
        let frame = &k.frames[pte.frame];
        let may_go = frame.is_given_up && frame.maps == 1 && frame.pins == 0;
        if may_go && !once_in(k.faults.busy) {
            k.zap(MAIN, page, page + PAGE);
            schedule::trace(|| format!("dropped {page:#x}"));
        }
    });
}

/// While the application stands still: another process writes to one of the pages, or the kernel
/// needs memory.
pub fn disturb(pages: &[u64]) {
    schedule::call_point();
    if pages.is_empty() {
        return;
    }
    let page = pages[schedule::random(|r| r.below(pages.len() as u64)) as usize];
    if once_in(12) {
        reclaim(page);
    }
    if once_in(24) {
        write_by_other(page);
    }
}

/// process_vm_writev(2) by another process, to a page that is there: to one that is not it would
/// wait, for the pager.
fn write_by_other(page: u64) {
    let bytes = schedule::random(|r| r.next()).to_le_bytes();
    with(|k| {
        let Some(pte) = k.spaces[MAIN].ptes.get(&page).copied() else { return };
        if pte.frame == ZERO_FRAME || k.frames[pte.frame].maps != 1 {
            return;
        }
        let frame = &mut k.frames[pte.frame];
        frame.bytes[8..16].copy_from_slice(&bytes);
        frame.is_given_up = false;
        let shadow = k.spaces[MAIN].shadow.entry(page).or_default();
        let mut new = *shadow.bytes;
        new[8..16].copy_from_slice(&bytes);
        shadow.bytes = Rc::new(new);
        shadow.or_zeros = false;
        shadow.is_written |= shadow.drops > 0;
        schedule::trace(|| format!("another process writes to {page:#x}"));
    });
}

/// After a taking: what stayed must not go later.
pub fn none_is_given_up(pages: &[u64]) {
    with(|k| {
        for page in pages {
            let frame = k.spaces[MAIN].ptes.get(page).map(|p| p.frame);
            if frame.is_some_and(|f| k.frames[f].is_given_up) {
                schedule::note_failure(format!("page {page:#x} stayed and is given up still"));
            }
        }
    });
}

/// A stopper left before its pages were looked at.
pub fn leave_early() {
    with(|k| k.was_left_early = true);
}

/// Whether one has.
pub fn was_left_early() -> bool {
    with(|k| k.was_left_early)
}
