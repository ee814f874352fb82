//! The pager's part in taking pages out without `UFFDIO_MOVE` (`standstill.rs`): it marks pages
//! while the program stands still, and looks afterwards which of them are gone from home.
//!
//! A page that is marked is in two places for a while. Nobody minds: as long as it is at home
//! nothing faults on it, and when it is not, its bytes are in its slot.

use super::moves::{Going, Sampling};
use super::Pager;
use crate::mover::Refused;
use crate::region::{page_index, Region, RegionTable};
use crate::sys::stop::Pair;
use crate::sys::thread;
use crate::sys::uffd::Event;
use std::sync::atomic::Ordering;
use terrace_core::state::{PageState, PageWord, PAGE_BYTES};
use terrace_core::tier::TierId;

/// Looks for a message while pages are being taken, before the pager sleeps until there is one, and
/// for how long it sleeps at most.
const ATTEND_LOOKS: u32 = 100;
const ATTEND_US: u64 = 500;

/// A page that is marked as out of its place, and may be.
#[derive(Clone, Copy, Debug)]
pub struct Marked {
    region: &'static Region,
    i: usize,
    before: PageWord,
    /// `Staged` or `Sampled`.
    after: PageWord,
    slot: u64,
}

/// Pages that are marked for one stop. It never grows: the pager allocates nothing for it.
#[derive(Debug)]
pub struct Marks {
    pages: Vec<Marked>,
    room: usize,
}

impl Marks {
    /// None yet, and so many at most.
    pub fn new(room: usize) -> Marks {
        Marks { pages: Vec::with_capacity(room), room }
    }

    /// Those that are marked.
    pub fn pages(&self) -> &[Marked] {
        &self.pages
    }

    /// Whether there may be no more.
    pub fn is_full(&self) -> bool {
        self.pages.len() >= self.room
    }
}

impl Marked {
    /// What is to be taken, and to where.
    pub fn pair(&self) -> Pair {
        Pair { home: self.region.address(self.i), slot: self.slot }
    }

    /// The region it is of.
    pub fn region(&self) -> &'static Region {
        self.region
    }
}

impl Pager {
    /// Marks the movable pages that are left of `going` and can be taken, as many as `marked` has
    /// room for.
    pub fn mark_out(&mut self, going: &mut Going, marked: &mut Marks) {
        let region = going.region;
        // Nothing that cannot be asked for.
        let alone = self.rt.pagemap.mapped_once(region.base).unwrap_or_default();
        let stamp = self.rt.window_stamp();
        let mut asked = going.pages.start;
        while !marked.is_full() && !self.rt.is_paused() {
            let next = going.movable(stamp).next();
            if let Some(i) = next.filter(|&i| i >= asked) {
                let run = going.run_from(i, stamp);
                match self.strike(region, run.clone()) {
                    Ok(false) => asked = run.end,
                    Ok(true) => continue,
                    // Of a thread that stands still in the middle of it: in another stop.
                    Err(_) => {
                        if going.met_changes() {
                            going.pages.start = going.pages.end;
                        }
                        return;
                    }
                }
            }
            going.pages.start = next.map_or(going.pages.end, |i| i + 1);
            let Some(i) = next else { return };
            if alone[i / 64] >> (i % 64) & 1 == 0 {
                continue;
            }
            let w = region.word(i);
            self.children.owe_nothing(region.address(i));
            // Another thread may have asked for the page to stay (`kept.rs`).
            if let Some(staged) = w.stage(going.tier).filter(|&s| region.replace(i, w, s)) {
                let slot = going.slot + (i * PAGE_BYTES) as u64;
                marked.pages.push(Marked { region, i, before: w, after: staged, slot });
            }
        }
    }

    /// Marks samples, as many as `marked` has room for.
    pub fn mark_samples(&mut self, sampling: &mut Sampling, marked: &mut Marks) {
        let region = sampling.region();
        let Some(alone) = self.rt.pagemap.mapped_once(region.base) else { return };
        let (stamp, cooling) = (self.rt.window_stamp(), self.rt.stores.config.cooling_windows);
        while !marked.is_full() && sampling.wanted() > 0 && !self.rt.is_paused() {
            let Some((i, w)) = sampling.next(stamp, cooling) else { return };
            if alone[i / 64] >> (i % 64) & 1 == 0 {
                continue;
            }
            match self.strike(region, i..i + 1) {
                Ok(false) => {}
                Ok(true) => continue,
                Err(_) => return,
            }
            let Some(slot) = self.rt.samples.take() else { return };
            self.children.owe_nothing(region.address(i));
            match w.sample(slot).filter(|&sampled| region.replace(i, w, sampled)) {
                Some(after) => {
                    let slot = self.rt.samples.address(slot);
                    marked.pages.push(Marked { region, i, before: w, after, slot });
                    sampling.took(1);
                }
                None => self.rt.samples.give_back(slot, true),
            }
        }
    }

    /// From the end of this call on, while pages are being taken, the pager does nothing that could
    /// wait for a thread that stands still.
    pub fn attend_to_taking(&mut self) {
        self.attends = true;
    }

    /// While pages are being taken: takes note that they are given up, which the kernel announces
    /// as it announces the program's own `madvise`, and brings home what goes too early. All else
    /// waits. It might take a lock that a stopped thread has, and until the pager has read these
    /// messages nobody goes on.
    pub(super) fn attend(&mut self) {
        self.attends = false;
        let Some(stopper) = &self.rt.stopper else { return };
        let mut fruitless = 0u32;
        while stopper.is_taking() {
            let n = if self.queue.has_room() { self.uffd.read_now(&mut self.queue) } else { 0 };
            while let Some(own) = self.queue.take_where(
                |e| matches!(*e, Event::Remove { start, end } if stopper.expects(start, end)),
            ) {
                self.change(own);
            }
            // The rest may be of threads that go on by now: changes of theirs come first.
            if !stopper.is_taking() {
                return;
            }
            while let Some(Event::Fault { address, write, .. }) =
                self.queue.take_where(|e| is_fault_on_marked(&self.rt.table, e))
            {
                self.fault(address & !(PAGE_BYTES as u64 - 1), write);
            }
            fruitless = if n > 0 { 0 } else { fruitless + 1 };
            if fruitless > ATTEND_LOOKS {
                self.uffd.wait_for(ATTEND_US);
            } else if n == 0 {
                thread::give_way();
            }
        }
    }

    /// Whether the kernel's message that the content of a range is being dropped is about pages
    /// that are being taken: notes it, if so.
    pub(super) fn is_own_removal(&self, start: u64, end: u64) -> bool {
        let stopper = self.rt.stopper.as_ref().filter(|s| s.expects(start, end));
        stopper.inspect(|s| s.note_given_up(start, end)).is_some()
    }

    /// Looks which of the marked pages are gone, and calls `gone` with each. The others are at home
    /// again; they count as refused by `tier`, unless that is DRAM.
    ///
    /// The program stands still, but for a stopper that left before its time. Then a mapping may
    /// have moved away with its pages, and another one come whose pages would pass for them; so
    /// changes are handled first, which take what is marked along.
    pub fn settle(&mut self, marked: &[Marked], tier: TierId, mut gone: impl FnMut(&Marked)) {
        let mut known: Option<(&Region, [u64; 8])> = None;
        for m in marked {
            let there = match known {
                Some((region, there)) if std::ptr::eq(region, m.region) => there,
                _ => self.present_now(m.region.base),
            };
            known = Some((m.region, there));
            if there[m.i / 64] >> (m.i % 64) & 1 == 0 {
                gone(m);
                continue;
            }
            // Unless somebody has brought it home, or voided it, meanwhile.
            if !m.region.replace(m.i, m.after, m.before) {
                continue;
            }
            if m.after.state() == PageState::Sampled {
                self.rt.samples.give_back(m.after.payload(), false);
            }
            m.region.is_shared.store(true, Ordering::Relaxed);
            if tier != TierId::DRAM {
                self.refuse(tier, Refused::PinnedOrShared);
            }
        }
    }
}

impl Pager {
    /// The pages that are there, by a look before which every change was handled.
    fn present_now(&mut self, base: u64) -> [u64; 8] {
        loop {
            let there = self.present(base);
            // A change counts from its beginning on: there was none when we looked, either.
            if !self.is_changing() && !self.queue.has_changes() {
                return there;
            }
            self.drain();
        }
    }
}

/// Whether a message is a fault on a page that is in a slot or about to be.
fn is_fault_on_marked(table: &RegionTable, event: &Event) -> bool {
    let Event::Fault { address, wp: false, .. } = *event else { return false };
    let word = table.get(address).map(|r| r.word(page_index(address)));
    word.is_some_and(|w| matches!(w.state(), PageState::Staged | PageState::Sampled))
}
