//! What must hold while the pager waits, and at the end.

use crate::kernel::{self, MAIN, OWN_BASE, PAGE};
use crate::runtime::Runtime;
use crate::schedule;
use crate::sys::thread;
use crate::{agent, forks, stats};
use std::sync::atomic::Ordering;
use terrace_core::state::{PageState, REGION_PAGES};

/// The pager has handled everything and waits for messages: no page is in two places (invariant 3
/// of ARCHITECTURE.md), and what is registered by our books is so by the kernel's. (A page that is
/// taken from where it is not would read as zeros.)
pub fn while_idle() {
    let Some(rt) = agent::RUNTIME.get() else { return };
    if kernel::is_changing(0) {
        return;
    }
    schedule::quietly(|| {
        for page in kernel::present(MAIN, 0, OWN_BASE) {
            let Some(region) = rt.table.get(page) else { continue };
            let i = crate::region::page_index(page);
            let w = region.word(i);
            let is_taken = rt.stopper.as_ref().is_some_and(|s| s.may_be_twice());
            let may_be_twice = matches!(w.state(), PageState::Staged | PageState::Sampled);
            if w.state() != PageState::Home && !(is_taken && may_be_twice) {
                schedule::note_failure(format!("page {page:#x} is at home, and its word is {w:?}"));
            }
        }
        for region in rt.table.all().into_iter().filter(|r| r.is_followed()) {
            let here = (0..REGION_PAGES).filter(|&i| region.is_registered(i));
            for page in here.map(|i| region.address(i)).filter(|&p| !kernel::is_registered(p)) {
                schedule::note_failure(format!("page {page:#x} is registered in our books only"));
            }
        }
    });
}

fn check_words(rt: &'static Runtime) -> Result<(), String> {
    for region in rt.table.all() {
        for i in 0..REGION_PAGES {
            let w = region.word(i);
            if w.0 & 7 == 7 || w.tier().index() > rt.stores.config.tiers.len() {
                return Err(format!("page {:#x} has no legal word: {w:?}", region.address(i)));
            }
            if w.state() != PageState::Home {
                return Err(format!("page {:#x} is not home: {w:?}", region.address(i)));
            }
        }
        if region.stored_total() != 0 {
            return Err(format!("region {:#x} counts stored pages", region.base));
        }
    }
    Ok(())
}

/// Everything comes home and is compared; nothing is left in any pool or slot.
pub fn at_the_end(rt: &'static Runtime) {
    forks::at_exit();
    while stats::get(&rt.stats.children_pending) > 0 {
        thread::sleep_us(500);
    }
    rt.paused.fetch_add(1, Ordering::AcqRel);
    forks::bring_all_home(rt);
    // What was voided under a mover's or loader's hands is given up when these are done with it.
    rt.doorbell.call(|_| ());
    rt.samples.sweep();
    rt.give_up_copies();
    crate::pairs::others(rt);
    let result = schedule::quietly(|| {
        check_words(rt)?;
        kernel::compare_all(MAIN)?;
        for (id, tier) in rt.stores.iter() {
            let objects = tier.stats().pool.objects;
            let same = stats::get(&rt.stats.tiers[id.index()].same_pages);
            if objects != 0 || same != 0 {
                return Err(format!("{id} still holds {objects} objects, {same} same pages"));
            }
        }
        let base = rt.samples.address(0);
        let left = kernel::present(MAIN, base, base + (1 << 19) * PAGE);
        if !left.is_empty() {
            return Err(format!("{} sample slots still hold pages", left.len()));
        }
        Ok(())
    });
    if let Err(why) = result {
        schedule::fail(why);
    }
}
