//! Which pairs of a page's state and an event the seeds have met.

use crate::region::{for_overlap, page_index, Region};
use crate::runtime::Runtime;
use crate::{agent, schedule, stats};
use std::cell::RefCell;
use terrace_core::state::{PageState, PageWord, REGION_PAGES};

/// Where a page is, as far as it makes a difference to an event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    Home,
    HomeZapped,
    Staged,
    Encoding,
    Stored,
    StoredSlowly,
    Same,
    Sampled,
    Restoring,
}

/// All of them.
pub const KINDS: [Kind; 9] = [
    Kind::Home,
    Kind::HomeZapped,
    Kind::Staged,
    Kind::Encoding,
    Kind::Stored,
    Kind::StoredSlowly,
    Kind::Same,
    Kind::Sampled,
    Kind::Restoring,
];

/// What can happen to a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    Read,
    Write,
    Second,
    Remove,
    Unmap,
    Remap,
    Fork,
    MoveOut,
    Sample,
    Unsample,
    Promote,
    Unregister,
}

/// All of them.
pub const EVENTS: [Event; 12] = [
    Event::Read,
    Event::Write,
    Event::Second,
    Event::Remove,
    Event::Unmap,
    Event::Remap,
    Event::Fork,
    Event::MoveOut,
    Event::Sample,
    Event::Unsample,
    Event::Promote,
    Event::Unregister,
];

/// What became of a word, by who changed it: transitions that were made or lost to another.
type Swaps = [[[u64; 2]; 7]; 7];

#[derive(Debug)]
struct Seen {
    pairs: [[u64; EVENTS.len()]; KINDS.len()],
    swaps: Swaps,
    /// What has no page: see [`OTHERS`].
    others: [u64; OTHERS.len()],
}

thread_local! {
    static SEEN: RefCell<Seen> = const { RefCell::new(Seen {
        pairs: [[0; EVENTS.len()]; KINDS.len()],
        swaps: [[[0; 2]; 7]; 7],
        others: [0; OTHERS.len()],
    }) };
}

/// The kind of a word.
pub fn kind(rt: &Runtime, w: PageWord) -> Kind {
    let slow = || rt.stores.get(w.tier()).is_some_and(|(t, _)| t.medium().waits());
    match w.state() {
        PageState::Home if w.zap_pending() => Kind::HomeZapped,
        PageState::Home => Kind::Home,
        PageState::Staged => Kind::Staged,
        PageState::Encoding => Kind::Encoding,
        PageState::Stored if slow() => Kind::StoredSlowly,
        PageState::Stored => Kind::Stored,
        PageState::Same => Kind::Same,
        PageState::Sampled => Kind::Sampled,
        PageState::Restoring => Kind::Restoring,
    }
}

/// Notes an event on a page.
pub fn note(rt: &Runtime, region: &Region, i: usize, event: Event) {
    let kind = kind(rt, region.word(i));
    SEEN.with_borrow_mut(|s| s.pairs[kind as usize][event as usize] += 1);
}

/// Notes an event on all registered pages of a region, before it is asked for.
pub fn note_all(rt: &Runtime, region: &Region, event: Event) {
    schedule::quietly(|| {
        for i in (0..REGION_PAGES).filter(|&i| region.is_registered(i)) {
            note(rt, region, i, event);
        }
    });
}

/// A message was read by the pager.
pub fn delivered(ctx: usize, code: u8, arg: [u64; 3]) {
    let Some(rt) = agent::RUNTIME.get().filter(|_| ctx == 0) else { return };
    schedule::quietly(|| match code {
        0x12 => {
            let page = arg[1];
            let Some(region) = rt.table.get(page) else { return };
            let i = page_index(page);
            if region.is_registered(i) && arg[0] & 2 == 0 {
                let event = if arg[0] & 1 != 0 { Event::Write } else { Event::Read };
                note(rt, region, i, event);
                if crate::kernel::waiters(page) > 1 {
                    note(rt, region, i, Event::Second);
                }
            }
        }
        0x13 => rt.table.all().into_iter().for_each(|r| note_all(rt, r, Event::Fork)),
        0x14 => overlap(rt, arg[0], arg[0] + arg[2], Event::Remap),
        0x15 => overlap(rt, arg[0], arg[1], Event::Remove),
        0x16 => overlap(rt, arg[0], arg[1], Event::Unmap),
        _ => {}
    });
}

fn overlap(rt: &Runtime, start: u64, end: u64, event: Event) {
    for_overlap(&rt.table, start, end, |region, pages| {
        for i in pages.filter(|&i| region.is_registered(i)) {
            note(rt, region, i, event);
        }
    });
}

/// A word was replaced, or not.
pub fn swapped(old: u64, new: u64, done: bool) {
    let (old, new) = (PageWord(old).state() as usize, PageWord(new).state() as usize);
    SEEN.with_borrow_mut(|s| s.swaps[old][new][usize::from(done)] += 1);
}

/// What else must have happened: to copies (`copies.rs`), and to calls on the pager.
const OTHERS: [&str; 3] = [
    "a copy that was used",
    "a copy of a page written since",
    "messages between two parts of a call",
];

/// Counts [`OTHERS`] of a run.
pub fn others(rt: &Runtime) {
    let (tried, used) = (stats::get(&rt.copies.tried_total), stats::get(&rt.copies.used_total));
    let seen = [used, tried - used, stats::get(&rt.doorbell.interruptions)];
    SEEN.with_borrow_mut(|s| s.others.iter_mut().zip(seen).for_each(|(sum, n)| *sum += n));
}

/// All counts as one line, to be added up by who started this process.
pub fn counts() -> Vec<u64> {
    SEEN.with_borrow(|s| {
        let pairs = s.pairs.iter().flatten().copied();
        let swaps = s.swaps.iter().flatten().flatten().copied();
        pairs.chain(swaps).chain(s.others).collect()
    })
}

/// Transitions that movers and loaders must have made (`true`) and lost to somebody who took the
/// page first (`false`).
const SWAPS: [(PageState, PageState, bool); 12] = [
    (PageState::Staged, PageState::Encoding, true),
    (PageState::Staged, PageState::Encoding, false),
    (PageState::Encoding, PageState::Stored, true),
    (PageState::Encoding, PageState::Stored, false),
    (PageState::Encoding, PageState::Same, true),
    (PageState::Encoding, PageState::Same, false),
    (PageState::Encoding, PageState::Staged, true),
    (PageState::Encoding, PageState::Staged, false),
    (PageState::Encoding, PageState::Restoring, true),
    (PageState::Encoding, PageState::Restoring, false),
    (PageState::Stored, PageState::Stored, true),
    (PageState::Restoring, PageState::Home, true),
];

/// Where the counts of [`OTHERS`] begin.
const OTHERS_AT: usize = KINDS.len() * EVENTS.len() + 7 * 7 * 2;

/// The pairs and transitions that were not met. Every pair can happen: a page at home faults where
/// it is a hole, and requests of the agent name whole regions, whatever state their pages are in.
pub fn missing(counts: &[u64]) -> Vec<String> {
    let mut out = Vec::new();
    for (k, kind) in KINDS.into_iter().enumerate() {
        for (e, event) in EVENTS.into_iter().enumerate() {
            if counts[k * EVENTS.len() + e] == 0 {
                out.push(format!("{kind:?} x {event:?}"));
            }
        }
    }
    let others = OTHERS.into_iter().zip(&counts[OTHERS_AT..]);
    out.extend(others.filter(|(_, n)| **n == 0).map(|(what, _)| what.to_owned()));
    let base = KINDS.len() * EVENTS.len();
    for (from, to, made) in SWAPS {
        let n = base + (from as usize * 7 + to as usize) * 2 + usize::from(made);
        if counts[n] == 0 {
            let how = if made { "made" } else { "lost" };
            out.push(format!("{from:?} -> {to:?} {how}"));
        }
    }
    out
}

/// The counts as a table.
pub fn show(counts: &[u64]) -> String {
    let mut out = format!("{:13}", "");
    for event in EVENTS {
        out += &format!("{:>10}", format!("{event:?}"));
    }
    for (k, kind) in KINDS.into_iter().enumerate() {
        out += &format!("\n{:13}", format!("{kind:?}"));
        for e in 0..EVENTS.len() {
            out += &format!("{:>10}", counts[k * EVENTS.len() + e]);
        }
    }
    out += "\n";
    for (what, n) in OTHERS.into_iter().zip(&counts[OTHERS_AT..]) {
        out += &format!("\n{what}: {n}");
    }
    out += "\n\ntransitions made / lost to another\n";
    let base = KINDS.len() * EVENTS.len();
    for (a, from) in PageState::ALL.into_iter().enumerate() {
        for (b, to) in PageState::ALL.into_iter().enumerate() {
            let n = base + (a * 7 + b) * 2;
            if counts[n] + counts[n + 1] > 0 {
                let (made, lost) = (counts[n + 1], counts[n]);
                out += &format!("  {from:?} -> {to:?}: {made} / {lost}\n");
            }
        }
    }
    out
}
