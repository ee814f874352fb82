//! Movers carry out a plan: they take regions down, across and up, one region at a time, in the
//! background. They choose nothing.
//!
//! Down: the pager moves the region's pages into the mover's staging slot; the mover encodes them
//! there, page by page, into the tier, and empties the slot. A page that somebody faults on
//! meanwhile goes home from wherever it is, and what the mover made of it is dropped. Any step can
//! be abandoned: a staged page goes back the way it came, a stored one is simply stored.
//!
//! Across: stored bytes move as they are if both tiers have the same codec and neither has blocks,
//! else they are decoded and encoded. Up: see `promoter.rs`.

use crate::forks;
use crate::pager::moves::Going;
use crate::probe::{self, Found};
use crate::promoter::Promoter;
use crate::queue::{Job, Queue};
use crate::region::Region;
use crate::runtime::Runtime;
use crate::shrinkage::Tally;
use crate::staging::Slots;
use crate::standstill;
use crate::stats;
use crate::sys::{credentials, memory, proc, thread};
use crate::torture::Torture;
use std::sync::atomic::Ordering;
use std::sync::Arc;
use terrace_core::state::{PageState, PageWord, PAGE_BYTES, REGION_PAGES};
use terrace_core::tier::{TierId, MAX_TIERS};
use terrace_store::page::{checksum, same_filled};
use terrace_store::pool::Handle;
use terrace_store::{EncoderSet, LoadError, Page, Refusal, Tier};

/// Pages moved out in one call on the pager: what the kernel moves in one call of its own takes 10
/// to 20 us, and faults wait behind it.
const MOVE_OUT_PAGES: usize = 128;
/// Windows for which an incompressible page is not tried again.
pub const RETRY_WINDOWS: u8 = 16;
/// Objects moved by compaction after each region, at most.
const COMPACT_MOVES: usize = 64;
/// How long a mover that waits for its bandwidth does so between two looks whether it still must.
const WAIT_PART_US: u64 = 10_000;
/// Empty pages a pool may keep: this part of it, and never less than this many bytes.
const IDLE_SHARE: u64 = 64;
const IDLE_BYTES_MIN: u64 = 1 << 20;

/// Objects moved by compaction where nothing else is to be done, before it is asked again whether
/// that is still so.
const TIDY_MOVES: usize = 256;
/// Gaps in a pool that are worth it: so many bytes and this part of the pool.
const GAPS_BYTES_MIN: u64 = 1 << 20;
const GAPS_SHARE: u64 = 16;

/// Reasons as counted in `wire::REFUSALS`.
#[derive(Clone, Copy)]
pub enum Refused {
    /// Did not shrink below the cut-off.
    Incompressible = 0,
    /// The pool has no room.
    PoolFull = 1,
    /// Pinned by the kernel, or shared with another process since a fork.
    PinnedOrShared = 2,
    /// The mapping is not what it was.
    MappingChanged = 3,
    /// The medium failed.
    MediumFailed = 4,
    /// The program's threads could not be stopped (`standstill.rs`).
    NotStopped = 5,
}

/// Gives pages that fell empty back. A small share is kept for the next region: giving one back and
/// taking it again costs a system call and a page fault.
fn trim(tier: &Tier) {
    let pool = tier.stats().pool;
    let keep = (pool.pool_bytes / IDLE_SHARE).max(IDLE_BYTES_MIN);
    if pool.idle_bytes > keep {
        tier.trim(pool.idle_bytes - keep / 2);
    }
}

/// One mover thread's state.
pub struct Mover {
    rt: &'static Runtime,
    queue: Arc<Queue>,
    encoders: EncoderSet,
    /// It decodes what goes from codec to codec, too: a second set of decoders would be idle.
    promoter: Promoter,
    slots: Slots,
    page: Box<Page>,
    encoded: Box<Page>,
    /// What a copy decodes to.
    decoded: Box<Page>,
    /// Where it may run, and the CPU among these that it keeps off.
    cpus: Option<thread::Cpus>,
    kept_off: usize,
    /// Which mover this is.
    number: usize,
    /// Time that a page took to encode of late, by tier, in nanoseconds.
    encode_ns: [u64; MAX_TIERS],
    /// Of the region and tier in hand.
    tally: Tally,
    torture: Torture,
}

impl Mover {
    /// A mover with staging slots of its own. `number` tells it from the other movers.
    pub fn new(rt: &'static Runtime, queue: Arc<Queue>, number: u64) -> Option<Mover> {
        let luck = |n| Torture::new(rt.stores.config.torture_seed, number * 2 + n);
        Some(Mover {
            rt,
            queue,
            encoders: rt.stores.encoders().ok()?,
            promoter: Promoter::unasked(rt, luck(0)),
            slots: Slots::new(rt)?,
            page: Box::new([0; PAGE_BYTES]),
            encoded: Box::new([0; PAGE_BYTES]),
            decoded: Box::new([0; PAGE_BYTES]),
            cpus: None,
            kept_off: usize::MAX,
            number: number as usize,
            encode_ns: [0; MAX_TIERS],
            tally: Tally::default(),
            torture: luck(1),
        })
    }

    /// Works until the process ends.
    pub fn run(mut self) -> ! {
        // Behind the application: what movers do can wait, what it does cannot.
        thread::take_short_turns(5);
        self.cpus = thread::Cpus::of_this_thread();
        self.rt.hurry.enlist(self.number);
        loop {
            match self.queue.next() {
                Job::Move(region, tier) => {
                    if !self.rt.is_paused() {
                        self.keep_off_the_pager();
                        let began_ns = thread::now_ns();
                        self.carry_out(region, tier);
                        self.rt.copies.worked(thread::now_ns() - began_ns);
                    }
                    self.queue.done(region);
                    if !self.queue.is_behind() {
                        self.slots.empty();
                    }
                }
                Job::Tidy => self.queue.tidied(self.tidy()),
            }
        }
    }

    /// Compacts pools to the end, where a move is a copy within memory. A page that goes home
    /// leaves a gap; between two plans there are as many as faults, and without this they would be
    /// a third of the pool. Returns whether that was all: a plan comes first, and nothing is done
    /// during a pause.
    fn tidy(&self) -> bool {
        for (_, t) in self.rt.stores.iter().filter(|(_, t)| t.moves_are_copies()) {
            let pool = t.stats().pool;
            let gaps = pool.pool_bytes.saturating_sub(pool.object_bytes);
            if gaps < GAPS_BYTES_MIN + pool.pool_bytes / GAPS_SHARE {
                continue;
            }
            loop {
                if self.rt.is_paused() {
                    return true;
                }
                if !self.queue.has_no_job() {
                    return false;
                }
                if t.compact(TIDY_MOVES) < TIDY_MOVES {
                    break;
                }
            }
            trim(t);
        }
        true
    }

    /// While there is much to do, keeps off the CPU where faults are served. A thread that was
    /// given its page would find a mover in its place there and wait for the rest of its turn, and
    /// the scheduler leaves the mover behind the two rather than send it where there is room: with
    /// two CPUs, 15 us of each fault were that, and two thirds of the mover's time.
    ///
    /// Not otherwise: a mover that is put off the CPU with a pool's lock in its hands goes on at
    /// once where the faulting thread and the pager wait for it, and elsewhere when a stranger's
    /// turn is over, which made the slowest faults three times as slow.
    fn keep_off_the_pager(&mut self) {
        let cpu = match self.rt.copies.is_wanted() {
            true => self.rt.pager_cpu.load(Ordering::Relaxed),
            false => usize::MAX,
        };
        if let Some(cpus) = self.cpus.filter(|_| cpu != self.kept_off) {
            self.kept_off = cpu;
            cpus.use_all_but(cpu);
        }
    }

    /// Brings one region to where the plan wants it.
    fn carry_out(&mut self, region: &'static Region, tier: TierId) {
        region.tier.store(tier.0, Ordering::Relaxed);
        if tier == TierId::DRAM {
            let pages = self.promoter.promote(region);
            stats::add(&self.rt.stats.promoted_pages, pages);
        } else if self.rt.stores.get(tier).is_some() {
            let pages = region.stored_total() + region.resident.load(Ordering::Relaxed);
            self.tally = Tally::default();
            if self.is_closed(region, tier) || self.is_futile(region, tier) {
                return;
            }
            self.migrate(region, tier);
            self.demote(region, tier);
            self.note_shrinkage(region, tier, pages);
        }
        for (_, t) in self.rt.stores.iter() {
            t.compact(COMPACT_MOVES);
            trim(t);
        }
    }

    /// Whether the region has to stay where it is, because the tier's medium takes nothing now: its
    /// disk is full, it rests after a failure, or another process has it. To be moved out, refused
    /// and moved back takes 20 us a page, and the program faults on what it uses meanwhile; so what
    /// would be refused is only counted.
    fn is_closed(&self, region: &Region, tier: TierId) -> bool {
        let rt = self.rt;
        let Some(Err(refusal)) = rt.stores.get(tier).map(|(t, _)| t.accepts()) else {
            return false;
        };
        let (stamp, cooling) = (rt.window_stamp(), rt.stores.config.cooling_windows);
        let goes = |i: usize| {
            let w = region.word(i);
            match w.state() {
                PageState::Stored | PageState::Same => w.tier() != tier,
                _ => region.is_registered(i) && w.movable(tier, stamp, cooling, RETRY_WINDOWS),
            }
        };
        let pages = (0..REGION_PAGES).filter(|&i| goes(i)).count() as u64;
        let (why, _) = reason(refusal);
        rt.stats.tiers[tier.index()].refused[why as usize].fetch_add(pages, Ordering::Relaxed);
        true
    }

    /// Whether the region can stay where it is, because none of it shrinks.
    fn is_futile(&mut self, region: &Region, tier: TierId) -> bool {
        if !probe::is_called_for(self.rt, region, tier) {
            return false;
        }
        let Some(encoder) = self.encoders.get(tier.index() - 1) else { return false };
        let Some((t, _)) = self.rt.stores.get(tier) else { return false };
        let out = &mut self.encoded[..t.cutoff_bytes()];
        let Found::Futile(pages) = probe::look(self.rt, region, encoder, &mut self.page, out)
        else {
            return false;
        };
        let counters = &self.rt.stats.tiers[tier.index()];
        counters.refused[Refused::Incompressible as usize]
            .fetch_add(pages.into(), Ordering::Relaxed);
        region.shrinkage.refuse(tier, self.rt.window.load(Ordering::Relaxed));
        true
    }

    /// Keeps what became of the region's `pages`, about so many.
    fn note_shrinkage(&self, region: &Region, tier: TierId, pages: u16) {
        let stays = |w: PageWord| w.state() == PageState::Home && w.is_refused_by(tier);
        let refused = (0..REGION_PAGES).filter(|&i| stays(region.word(i))).count();
        let pages = usize::from(pages).clamp(refused.max(1), REGION_PAGES);
        let share = refused as f64 / pages as f64;
        region.shrinkage.learn(tier, self.tally, share, self.rt.window.load(Ordering::Relaxed));
    }

    // ---- down ------------------------------------------------------------------------------

    fn demote(&mut self, region: &'static Region, tier: TierId) {
        self.look_at_refused(region, tier);
        let rt = self.rt;
        let cooling = rt.stores.config.cooling_windows;
        let stamp = rt.window_stamp();
        let movable = |i: usize| {
            region.is_registered(i) && region.word(i).movable(tier, stamp, cooling, RETRY_WINDOWS)
        };
        let slot = self.slots.clean();
        region.slot.store(slot, Ordering::Release);
        let (mut staged, mut from) = (0, 0);
        while let Some(pages) = next_to_go(from, movable) {
            from = pages.end;
            let mut going = Going::new(region, pages, slot, tier, cooling);
            staged += match &rt.stopper {
                None => rt.doorbell.call_in_parts(move |pager| pager.move_out(&mut going)),
                Some(stopper) => standstill::move_out(rt, stopper, going, tier),
            };
            if self.torture.gives_up() {
                break;
            }
        }
        if staged > 0 {
            let mib_s = rt.stores.config.move_mib_s;
            let wait_us = self.queue.charge(staged as u64 * PAGE_BYTES as u64, mib_s);
            if self.torture.gives_up() {
                stats::add(&rt.stats.given_up_pages, staged as u64);
            } else {
                self.encode_staged(region, slot, tier);
            }
            // Nobody may need what is in the slot when it is emptied: what was refused goes back,
            // and the pager may still be copying a page that was caught while encoding. A page on
            // its way from a slow medium looks the same for as long as that takes.
            for round in 0.. {
                if !(0..REGION_PAGES).any(|i| in_slot(region.word(i))) {
                    break;
                }
                forks::strike_in_round(rt, region, round);
                let (mut at, mut any) = (0, false);
                if !rt
                    .doorbell
                    .call_in_parts(move |pager| pager.return_staged(region, &mut at, &mut any))
                {
                    thread::sleep_us(50);
                }
            }
            self.slots.used(staged);
            self.wait_for_bandwidth(wait_us);
        }
        region.slot.store(0, Ordering::Release);
    }

    /// Waits so long before the next region, unless nothing more is to be moved, or nothing may be
    /// (whoever asks for that waits until no mover works).
    fn wait_for_bandwidth(&self, wait_us: u64) {
        let until_ns = thread::now_ns() + wait_us * 1000;
        while !self.rt.is_paused() && self.queue.is_behind() {
            let left_us = until_ns.saturating_sub(thread::now_ns()) / 1000;
            if left_us == 0 {
                return;
            }
            thread::sleep_us(left_us.min(WAIT_PART_US));
            credentials::follow();
        }
    }

    /// Leaves pages where they are that `tier` refused a while ago and that nobody has written
    /// since. A look at each takes a microsecond; to be taken out and brought back it takes twenty,
    /// and each time the program's other processors are interrupted.
    fn look_at_refused(&mut self, region: &Region, tier: TierId) {
        let (rt, stamp) = (self.rt, self.rt.window_stamp());
        let cooling = rt.stores.config.cooling_windows;
        let is_due = |i: usize| {
            let w = region.word(i);
            w.is_refused_by(tier)
                && region.is_registered(i)
                && w.movable(tier, stamp, cooling, RETRY_WINDOWS)
        };
        if !(0..REGION_PAGES).any(is_due) {
            return;
        }
        let Some(present) = rt.pagemap.present(region.base) else { return };
        for i in (0..REGION_PAGES).filter(|&i| present[i / 64] >> (i % 64) & 1 == 1 && is_due(i)) {
            if rt.is_paused() {
                return;
            }
            let w = region.word(i);
            if !proc::read_application_page(region.address(i), &mut self.page) {
                continue;
            }
            let again = w.refuse_unmoved(stamp, self.refusal_check(tier));
            if again.is_some_and(|again| region.replace(i, w, again)) {
                self.tally.refused();
            }
        }
    }

    fn encode_staged(&mut self, region: &Region, slot: u64, tier: TierId) {
        let present = self.rt.pagemap.present(slot);
        // Mapped ahead for the program, and never written: as little as a hole.
        let zeros = self.rt.pagemap.zeros(slot);
        let (mut demoted, mut stopped) = (0, false);
        for i in 0..REGION_PAGES {
            let w = region.word(i);
            if w.state() != PageState::Staged || self.rt.is_paused() {
                continue;
            }
            let is_in = |bits: [u64; 8]| bits[i / 64] >> (i % 64) & 1 == 1;
            if is_in(zeros) || present.is_some_and(|bits| !is_in(bits)) {
                // Never touched by the application: there is nothing to store.
                region.replace(i, w, w.home(None));
                continue;
            }
            stopped |= self.torture.stops();
            if stopped {
                stats::add(&self.rt.stats.given_up_pages, 1);
                continue;
            }
            let Some(encoding) = w.begin_encode() else { continue };
            if region.replace(i, w, encoding) {
                memory::read_page(slot + (i * PAGE_BYTES) as u64, &mut self.page);
                let mut stored = self.store(encoding, tier, region.address(i));
                if self.torture.drops_page() {
                    stats::add(&self.rt.stats.given_up_pages, 1);
                    stored.take().inspect(|&w| self.rt.forget(w));
                }
                let stamp = self.rt.window_stamp();
                if let Some(next) = stored.or_else(|| encoding.refuse(stamp, None)) {
                    let is_down = matches!(next.state(), PageState::Stored | PageState::Same);
                    demoted += u64::from(self.settle(region, i, encoding, next) && is_down);
                }
            }
        }
        stats::add(&self.rt.stats.demoted_pages, demoted);
    }

    /// Stores `self.page`, which belongs at `home`; returns the word that says where, or that it
    /// was refused.
    fn store(&mut self, encoding: PageWord, tier: TierId, home: u64) -> Option<PageWord> {
        let rt = self.rt;
        let counters = &rt.stats.tiers[tier.index()];
        if self.torture.refuses_page() {
            counters.refused[Refused::PoolFull as usize].fetch_add(1, Ordering::Relaxed);
            return encoding.refuse(rt.window_stamp(), None);
        }
        if let Some(v) = same_filled(&self.page) {
            let (low, high) = (v as u32, (v >> 32) as u32);
            if low == high {
                counters.same_pages.fetch_add(1, Ordering::Relaxed);
                self.tally.took(Some(0));
                return encoding.finish_same(tier, low, rt.window_stamp());
            }
        }
        // Not written since it was refused: it would be refused again. (Mostly it did not come
        // here, `look_at_refused`; unless it could not be read at home, or came by another way.)
        if encoding.is_incompressible() {
            let check = self.refusal_check(tier);
            if encoding.is_known_incompressible(check) {
                self.tally.refused();
                return encoding.refuse(rt.window_stamp(), Some(check));
            }
        }
        let (t, _) = rt.stores.get(tier)?;
        if let Some(handle) = self.copy_of_page(t, tier, home) {
            return encoding.finish_store(tier, handle.0, rt.window_stamp());
        }
        let encoder = self.encoders.get(tier.index() - 1)?;
        let began_ns = thread::now_ns();
        match t.store_page_sized(encoder, &self.page, &mut self.encoded) {
            Ok((handle, bytes)) => {
                self.note_encode_ns(tier, thread::now_ns() - began_ns);
                self.tally.took(bytes);
                encoding.finish_store(tier, handle.0, rt.window_stamp())
            }
            Err(refusal) => {
                let (why, incompressible) = reason(refusal);
                if incompressible {
                    self.tally.refused();
                }
                // What is held twice goes first, where that can make room: there are copies only in
                // tiers whose moves are copies, and none of them takes room of a full disk.
                if refusal == Refusal::PoolFull && t.moves_are_copies() {
                    rt.give_up_copies();
                }
                counters.refused[why as usize].fetch_add(1, Ordering::Relaxed);
                let known = incompressible.then(|| self.refusal_check(tier));
                encoding.refuse(rt.window_stamp(), known)
            }
        }
    }

    /// What `self.page` was encoded to when it was in `tier` last, if that was kept and not one
    /// byte has changed. The object is the caller's, and nobody else's.
    fn copy_of_page(&mut self, t: &Tier, tier: TierId, home: u64) -> Option<Handle> {
        let handle = self.rt.copies.take(home, tier)?;
        let began_ns = thread::now_ns();
        let len = self.promoter.compare(t, handle, &self.page, &mut self.decoded);
        let took_ns = thread::now_ns() - began_ns;
        let spared_ns = self.encode_ns[tier.index()].saturating_sub(took_ns);
        self.rt.copies.tried(len.is_some(), spared_ns);
        if len.is_none() {
            t.free(handle);
        }
        len?;
        self.tally.took(len);
        Some(handle)
    }

    fn note_encode_ns(&mut self, tier: TierId, ns: u64) {
        let mean = &mut self.encode_ns[tier.index()];
        *mean = if *mean == 0 { ns } else { (*mean * 7 + ns) / 8 };
    }

    /// What a refusal of `self.page` depends on: its bytes, and the dictionary if there is one.
    fn refusal_check(&self, tier: TierId) -> u32 {
        let stores = &self.rt.stores;
        let uses = stores.get(tier).is_some_and(|(_, t)| t.codec.uses_dictionary());
        let newest = stores.dictionaries.newest().filter(|_| uses);
        checksum(&self.page).wrapping_add(newest.map_or(0, |d| u32::from(d.version())))
    }

    /// Puts the outcome of encoding into the page's word, unless somebody took the page back.
    /// Whether it did.
    fn settle(&self, region: &Region, i: usize, encoding: PageWord, next: PageWord) -> bool {
        loop {
            if region.replace(i, encoding, next) {
                return true;
            }
            match region.word(i).state() {
                // The pager is copying it; it may fail and put the word back.
                PageState::Restoring => thread::sleep_us(2),
                PageState::Encoding => {}
                _ => {
                    self.rt.forget(next);
                    return false;
                }
            }
        }
    }

    // ---- across ----------------------------------------------------------------------------

    /// Moves what the region has in other tiers to `tier`.
    fn migrate(&mut self, region: &Region, tier: TierId) {
        let mut moved = 0;
        for i in 0..REGION_PAGES {
            let w = region.word(i);
            let next = match w.state() {
                PageState::Stored if w.tier() != tier => self.restore_elsewhere(region, i, w, tier),
                PageState::Same if w.tier() != tier => {
                    self.rt.stats.tiers[tier.index()].same_pages.fetch_add(1, Ordering::Relaxed);
                    w.finish_same(tier, w.payload(), self.rt.window_stamp())
                }
                _ => None,
            };
            let Some(next) = next else { continue };
            // (What is given up here is forgotten as if the page had gone home meanwhile.)
            let keeps = !self.torture.drops_page();
            if keeps && region.replace(i, w, next) {
                self.rt.forget(w);
                moved += 1;
            } else {
                // It went home meanwhile.
                self.rt.forget(next);
                stats::add(&self.rt.stats.given_up_pages, u64::from(!keeps));
            }
            if self.torture.stops() {
                break;
            }
        }
        stats::add(&self.rt.stats.migrated_pages, moved);
    }

    fn restore_elsewhere(
        &mut self,
        region: &Region,
        i: usize,
        w: PageWord,
        tier: TierId,
    ) -> Option<PageWord> {
        let rt = self.rt;
        let ((from, _), (to, _)) = (rt.stores.get(w.tier())?, rt.stores.get(tier)?);
        let counters = &rt.stats.tiers[tier.index()];
        let has_encodings = from.has_encodings() && to.has_encodings();
        let stored = if from.codec() == to.codec() && has_encodings {
            let loaded = self.promoter.load_encoded(from, w, &mut self.encoded);
            let (len, check) = loaded.ok()?;
            // The object may have been freed, and its handle given to another page, while we
            // read. An unchanged word says that it was not.
            if region.word(i) != w {
                return None;
            }
            to.store(&self.encoded[..len], check).map(|handle| (handle, Some(len)))
        } else {
            let loaded = self.promoter.load(w, &mut self.page);
            if region.word(i) != w {
                return None;
            }
            match loaded {
                Ok(()) => {}
                // It stays where it is. Perhaps the medium recovers before somebody wants it.
                Err(LoadError::MediumFailed) => return None,
                Err(why) => crate::pager::unreadable(region.address(i), why),
            }
            let encoder = self.encoders.get(tier.index() - 1)?;
            to.store_page_sized(encoder, &self.page, &mut self.encoded)
        };
        match stored {
            Ok((handle, bytes)) => {
                self.tally.took(bytes);
                w.finish_store(tier, handle.0, rt.window_stamp())
            }
            Err(refusal) => {
                let (why, incompressible) = reason(refusal);
                if incompressible {
                    self.tally.refused();
                }
                counters.refused[why as usize].fetch_add(1, Ordering::Relaxed);
                None
            }
        }
    }
}

/// The pages of a region, from `from` on, that one call on the pager moves out: as many as it may.
/// `None` if none of them is to go. Whether one can is asked again there.
fn next_to_go(from: usize, movable: impl Fn(usize) -> bool) -> Option<std::ops::Range<usize>> {
    let start = (from..REGION_PAGES).find(|&i| movable(i))?;
    let last = (start..REGION_PAGES).filter(|&i| movable(i)).take(MOVE_OUT_PAGES).last()?;
    Some(start..last + 1)
}

fn in_slot(w: PageWord) -> bool {
    matches!(w.state(), PageState::Staged | PageState::Encoding | PageState::Restoring)
}

fn reason(refusal: Refusal) -> (Refused, bool) {
    match refusal {
        Refusal::TooBig | Refusal::Incompressible => (Refused::Incompressible, true),
        Refusal::PoolFull => (Refused::PoolFull, false),
        Refusal::MediumFailed => (Refused::MediumFailed, false),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn calls(movable: impl Fn(usize) -> bool + Copy) -> Vec<std::ops::Range<usize>> {
        let mut all: Vec<std::ops::Range<usize>> = Vec::new();
        while let Some(pages) = next_to_go(all.last().map_or(0, |p| p.end), movable) {
            all.push(pages);
        }
        all
    }

    #[test]
    fn the_pager_is_asked_for_what_can_go_and_for_little_at_a_time() {
        assert_eq!(calls(|_| false), []);
        assert_eq!(calls(|_| true), [0..128, 128..256, 256..384, 384..512]);
        // What came back lies apart.
        assert_eq!(calls(|i| i == 7 || i == 500), std::slice::from_ref(&(7..501)));
        assert_eq!(calls(|i| i == 511), std::slice::from_ref(&(511..512)));
        assert_eq!(calls(|i| i % 2 == 0), [0..255, 256..511]);
        assert_eq!(calls(|i| i != 100), [0..129, 129..257, 257..385, 385..512]);
    }
}
