//! The fake kernel: address spaces, page tables and userfaultfd, as Linux has them.
//!
//! Beside what is in the page tables it keeps, for every address space, the *shadow*: what each
//! page would hold without Terrace. Every access is compared with it at the moment it happens.
//!
//! No function here keeps a borrow of the state over a wait.

use crate::schedule::{self, Key};
use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

/// Bytes of a page.
pub const PAGE: u64 = 4096;
/// A page's content.
pub type Page = [u8; PAGE as usize];
/// Content of a page that was never written.
pub static ZEROS: Page = [0; PAGE as usize];
/// The address space of the application and the runtime.
pub const MAIN: usize = 0;

/// How likely things fail: once in so many times, 0 for never.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    /// Filling or moving a page finds no memory.
    pub no_memory: u64,
    /// A move meets a page that the kernel holds for a moment.
    pub busy: u64,
    /// A copy or move of several pages stops early.
    pub partial: u64,
    /// Registering finds too many mappings.
    pub register: u64,
    /// A waiting thread wakes without cause (a signal) and tries again.
    pub spurious: u64,
    /// A read is interrupted.
    pub interrupted: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Prot {
    None,
    Read,
    Write,
}

/// The newest of the calls of userfaultfd that this kernel has.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub enum Newest {
    /// `UFFDIO_COPY` and older ones.
    #[default]
    Copy,
    /// `UFFDIO_MOVE` (Linux 6.8).
    Move,
    /// `UFFDIO_RWPROTECT` (Linux 7.3).
    Watch,
}

/// Modes of a registration.
const MISSING: u64 = 1;
const WP: u64 = 2;
const RWP: u64 = 8;

#[derive(Clone, Copy, Debug)]
struct Vma {
    end: u64,
    prot: Prot,
    /// Registered with this context, in these modes.
    ctx: Option<(usize, u64)>,
    in_child: bool,
}

#[derive(Clone, Copy, Debug)]
struct Pte {
    frame: usize,
    /// Write-protected, or protected from any access: whichever its mapping is registered for.
    wp: bool,
    /// Nobody else maps the frame, as far as the kernel knows.
    exclusive: bool,
}

#[derive(Debug)]
struct Frame {
    bytes: Box<Page>,
    maps: u32,
    pins: u32,
    /// Not wanted any more (`MADV_FREE`), unless it is written.
    is_given_up: bool,
}

/// What a page would hold without Terrace.
#[derive(Clone, Debug)]
struct Shadow {
    bytes: Rc<Page>,
    /// Zeros are as good: a drop of the page is, or was, under way.
    or_zeros: bool,
    /// Drops that have begun and not ended.
    drops: u32,
    /// Written since the first of them began.
    is_written: bool,
    /// Anything is as good, once: the process was forked while another thread of its parent moved
    /// or unmapped the page, so that no program can tell what is there.
    is_vague: bool,
}

impl Default for Shadow {
    fn default() -> Shadow {
        Shadow { bytes: zeros(), or_zeros: false, drops: 0, is_written: false, is_vague: false }
    }
}

fn zeros() -> Rc<Page> {
    thread_local! { static Z: Rc<Page> = Rc::new(ZEROS); }
    Z.with(Rc::clone)
}

#[derive(Debug, Default)]
struct Space {
    vmas: BTreeMap<u64, Vma>,
    ptes: BTreeMap<u64, Pte>,
    shadow: BTreeMap<u64, Shadow>,
    is_alive: bool,
}

#[derive(Clone, Copy, Debug)]
struct Waiter {
    id: u64,
    page: u64,
    write: bool,
    wp: bool,
    tid: u32,
    is_read: bool,
}

#[derive(Clone, Copy, Debug)]
struct Message {
    id: u64,
    code: u8,
    arg: [u64; 3],
}

#[derive(Debug)]
struct Context {
    space: usize,
    features: u64,
    faults: Vec<Waiter>,
    events: VecDeque<Message>,
    changing: u32,
    is_nonblocking: bool,
    is_released: bool,
    /// A descriptor for it was given out.
    was_held: bool,
}

/// All of it.
#[derive(Debug, Default)]
struct Kernel {
    spaces: Vec<Space>,
    contexts: Vec<Context>,
    fds: BTreeMap<i32, usize>,
    frames: Vec<Frame>,
    free_frames: Vec<usize>,
    next_id: u64,
    faults: Faults,
    forks_allowed: bool,
    next_carve: u64,
    next_copied: u64,
    /// Ranges that are being unmapped or moved, from the change to the end of its last event.
    reshaped: Vec<(u64, u64, u64)>,
    /// Children whose fork has not returned.
    unborn: Vec<usize>,
    /// madvise(2) stops between its event and its work: for scripted tests.
    is_drop_held: bool,
    newest: Newest,
    /// See `taking`.
    was_left_early: bool,
}

/// Frame 0 is the zero page.
const ZERO_FRAME: usize = 0;
/// Where the runtime's own memory begins.
pub const OWN_BASE: u64 = 0x20_0000_0000;
const COPIED_BASE: u64 = 0x30_0000_0000;
const OWN_END: u64 = 0x40_0000_0000;
const REGION: u64 = 2 << 20;

pub const EVENT_FORK: u64 = 1 << 1;
pub const EVENT_REMAP: u64 = 1 << 2;
pub const EVENT_REMOVE: u64 = 1 << 3;
pub const EVENT_UNMAP: u64 = 1 << 6;

thread_local! {
    static KERNEL: RefCell<Kernel> = RefCell::new(Kernel::default());
}

fn with<R>(f: impl FnOnce(&mut Kernel) -> R) -> R {
    KERNEL.with_borrow_mut(f)
}

/// A new machine with one process.
pub fn begin(forks_allowed: bool, newest: Newest) {
    close_all();
    with(|k| {
        *k = Kernel {
            spaces: vec![Space { is_alive: true, ..Space::default() }],
            frames: vec![Frame { bytes: Box::new(ZEROS), maps: 0, pins: 0, is_given_up: false }],
            forks_allowed,
            newest,
            next_carve: OWN_BASE,
            next_copied: COPIED_BASE,
            ..Kernel::default()
        };
    });
}

/// Sets how likely things fail from now on.
pub fn set_faults(faults: Faults) {
    with(|k| k.faults = faults);
}

/// Holds madvise(2) between its event and its work, or lets it go on.
pub fn hold_drops(on: bool) {
    with(|k| k.is_drop_held = on);
}

fn close_all() {
    with(|k| k.fds.clear());
}

fn once_in(n: u64) -> bool {
    n != 0 && schedule::random(|r| r.once_in(n))
}

// ---- address spaces ------------------------------------------------------------------------

impl Space {
    fn vma(&self, at: u64) -> Option<(u64, Vma)> {
        let (&start, &v) = self.vmas.range(..=at).next_back()?;
        (at < v.end).then_some((start, v))
    }

    fn split(&mut self, at: u64) {
        if let Some((start, v)) = self.vma(at) {
            if start < at {
                self.vmas.insert(start, Vma { end: at, ..v });
                self.vmas.insert(at, v);
            }
        }
    }

    /// Mappings in a range, cut to it.
    fn cut(&mut self, start: u64, end: u64) -> Vec<u64> {
        self.split(start);
        self.split(end);
        self.vmas.range(start..end).map(|(&s, _)| s).collect()
    }

    /// Neighbours of one kind become one mapping, as the kernel does it.
    fn merge(&mut self) {
        let mut last: Option<(u64, Vma)> = None;
        let all: Vec<(u64, Vma)> = self.vmas.iter().map(|(&s, &v)| (s, v)).collect();
        for (start, v) in all {
            if let Some((at, l)) = &mut last {
                let alike = l.prot == v.prot && l.ctx == v.ctx && l.in_child == v.in_child;
                if l.end == start && alike && start < OWN_BASE {
                    l.end = v.end;
                    self.vmas.remove(&start);
                    self.vmas.insert(*at, *l);
                    continue;
                }
            }
            last = Some((start, v));
        }
    }

    fn is_within_one(&self, start: u64, len: u64) -> Option<Vma> {
        self.vma(start).map(|(_, v)| v).filter(|v| start + len <= v.end)
    }
}

impl Kernel {
    fn frame(&mut self, bytes: &Page) -> usize {
        match self.free_frames.pop() {
            Some(n) => {
                let f = &mut self.frames[n];
                f.bytes.copy_from_slice(bytes);
                (f.maps, f.pins, f.is_given_up) = (1, 0, false);
                n
            }
            None => {
                self.frames.push(Frame {
                    bytes: Box::new(*bytes),
                    maps: 1,
                    pins: 0,
                    is_given_up: false,
                });
                self.frames.len() - 1
            }
        }
    }

    fn drop_frame(&mut self, n: usize) {
        if n == ZERO_FRAME {
            return;
        }
        self.frames[n].maps -= 1;
        self.free_if_unused(n);
    }

    fn free_if_unused(&mut self, n: usize) {
        if self.frames[n].maps == 0 && self.frames[n].pins == 0 {
            self.free_frames.push(n);
        }
    }

    /// Drops the pages of a range; which were there.
    fn zap(&mut self, space: usize, start: u64, end: u64) -> Vec<u64> {
        let pages: Vec<u64> = self.spaces[space].ptes.range(start..end).map(|(&p, _)| p).collect();
        for p in &pages {
            if let Some(pte) = self.spaces[space].ptes.remove(p) {
                self.drop_frame(pte.frame);
            }
        }
        pages
    }

    fn id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }

    fn map(&mut self, space: usize, start: u64, len: u64, prot: Prot, in_child: bool) {
        let vma = Vma { end: start + len, prot, ctx: None, in_child };
        self.spaces[space].vmas.insert(start, vma);
        self.spaces[space].merge();
    }

    /// Wakes who waits for a fault in a range of a context.
    fn wake_range(&mut self, ctx: usize, start: u64, end: u64) {
        self.contexts[ctx].faults.retain(|w| {
            let hit = (start..end).contains(&w.page);
            if hit {
                schedule::wake(Key::Fault(w.id));
            }
            !hit
        });
    }

    /// Contexts of a range that want an event, once each.
    fn contexts_of(&self, space: usize, start: u64, end: u64, feature: u64) -> Vec<usize> {
        let s = &self.spaces[space];
        let mut found = Vec::new();
        for v in s.vmas.range(..end).filter(|(_, v)| v.end > start).map(|(_, v)| v) {
            if let Some((c, _)) = v.ctx {
                if self.contexts[c].features & feature != 0 && !found.contains(&c) {
                    found.push(c);
                }
            }
        }
        found
    }

    /// A page's shadow was seen as `actual`. What it should have been, if that is wrong.
    fn check(&mut self, space: usize, page: u64, actual: &Page) -> Result<(), String> {
        let Some(s) = self.spaces[space].shadow.get_mut(&page) else {
            return if *actual == ZEROS { Ok(()) } else { Err(differs(actual, &ZEROS)) };
        };
        if *actual == *s.bytes {
            s.or_zeros = false;
            return Ok(());
        }
        if s.is_vague {
            s.bytes = Rc::new(*actual);
            s.is_vague = false;
            return Ok(());
        }
        if (s.or_zeros || s.drops > 0) && *actual == ZEROS {
            s.bytes = zeros();
            s.or_zeros = false;
            return Ok(());
        }
        Err(differs(actual, &s.bytes))
    }
}

fn differs(actual: &Page, wanted: &Page) -> String {
    let at = (0..PAGE as usize).find(|&k| actual[k] != wanted[k]).unwrap_or(0);
    let part = |p: &Page| p[at..(at + 8).min(PAGE as usize)].to_vec();
    format!("at byte {at}: {:?} instead of {:?}", part(actual), part(wanted))
}

// ---- accesses ------------------------------------------------------------------------------

/// The access was answered with a signal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Segv;

/// Touches a page as the processor, or a system call, does. `f` gets its bytes; for a write it may
/// change them, and the shadow follows.
pub fn access(space: usize, page: u64, write: bool, f: impl FnOnce(&mut Page)) -> Result<(), Segv> {
    reach(space, page, write, |k, frame| k.touch(space, page, frame, write, f))
}

/// madvise(MADV_POPULATE_WRITE) of one page: readied for writing, neither read nor written.
pub fn populate(space: usize, page: u64) -> Result<(), Segv> {
    reach(space, page, true, |_, _| {})
}

/// Makes a page accessible, with all the faults and waits that takes, and hands its frame over.
fn reach(
    space: usize,
    page: u64,
    write: bool,
    then: impl FnOnce(&mut Kernel, usize),
) -> Result<(), Segv> {
    let mut then = Some(then);
    loop {
        schedule::call_point();
        if space != MAIN && once_in(4) {
            reap();
        }
        let waiter = with(|k| {
            let Some((_, v)) = k.spaces[space].vma(page) else { return Err(Segv) };
            if v.prot == Prot::None || write && v.prot != Prot::Write {
                return Err(Segv);
            }
            let pte = k.spaces[space].ptes.get(&page).copied();
            let wants = match (pte, v.ctx) {
                (None, Some((c, mode))) if mode & MISSING != 0 => Some((c, false)),
                (Some(p), Some((c, mode))) if mode & WP != 0 && p.wp && write => Some((c, true)),
                _ => None,
            };
            if let Some((c, wp)) = wants {
                let id = k.id();
                let tid = schedule::current().unwrap_or(0) as u32 + 100;
                k.contexts[c].faults.push(Waiter { id, page, write, wp, tid, is_read: false });
                return Ok(Some((c, id)));
            }
            // Whoever touches a page that is watched lifts that, and waits for nobody.
            if v.ctx.is_some_and(|(_, mode)| mode & RWP != 0) {
                k.set_protected(space, page, false);
            }
            let pte = k.spaces[space].ptes.get(&page).copied();
            let frame = k.make_accessible(space, page, pte, write);
            k.frames[frame].is_given_up &= !write;
            if let Some(then) = then.take() {
                then(k, frame);
            }
            Ok(None)
        })?;
        let Some((c, id)) = waiter else { return Ok(()) };
        schedule::trace(|| format!("faults on {page:#x}{}", if write { " (write)" } else { "" }));
        schedule::wake(Key::Read(c));
        if once_in(with(|k| k.faults.spurious)) {
            schedule::sleep_us(500);
        } else {
            schedule::wait(Key::Fault(id));
        }
        with(|k| k.contexts[c].faults.retain(|w| w.id != id));
    }
}

impl Kernel {
    fn make_accessible(&mut self, space: usize, page: u64, pte: Option<Pte>, write: bool) -> usize {
        let fresh = |frame| Pte { frame, wp: false, exclusive: frame != ZERO_FRAME };
        match pte {
            None => {
                let frame = if write { self.frame(&ZEROS) } else { ZERO_FRAME };
                self.spaces[space].ptes.insert(page, fresh(frame));
                frame
            }
            Some(p) if write && !p.exclusive => {
                // Copy on write, or the last one left keeps the frame.
                let frame = if p.frame != ZERO_FRAME && self.frames[p.frame].maps == 1 {
                    p.frame
                } else {
                    let bytes = *self.frames[p.frame].bytes;
                    let new = self.frame(&bytes);
                    self.drop_frame(p.frame);
                    new
                };
                self.spaces[space].ptes.insert(page, Pte { wp: p.wp, ..fresh(frame) });
                frame
            }
            Some(p) => p.frame,
        }
    }

    fn touch(
        &mut self,
        space: usize,
        page: u64,
        frame: usize,
        write: bool,
        f: impl FnOnce(&mut Page),
    ) {
        let is_app = !(OWN_BASE..OWN_END).contains(&page);
        let mut bytes = *self.frames[frame].bytes;
        if is_app {
            if let Err(why) = self.check(space, page, &bytes) {
                schedule::note_failure(format!(
                    "{} reads wrong bytes on page {page:#x} of process {space}, {why}",
                    schedule::current_name()
                ));
                schedule::trace(|| "VIOLATION: wrong bytes".to_string());
            }
        }
        f(&mut bytes);
        if write {
            if is_app {
                let s = self.spaces[space].shadow.entry(page).or_default();
                s.bytes = Rc::new(bytes);
                s.or_zeros = false;
                s.is_written |= s.drops > 0;
            }
            *self.frames[frame].bytes = bytes;
        }
    }
}

// ---- the runtime's memory ------------------------------------------------------------------

/// Address space of the runtime.
pub fn carve(len: u64, prot: Prot) -> u64 {
    with(|k| {
        let start = k.next_carve;
        k.next_carve += len.next_multiple_of(REGION) + REGION;
        k.map(MAIN, start, len.next_multiple_of(REGION), prot, false);
        start
    })
}

/// A page of the runtime that forked children have, too.
pub fn carve_copied(len: u64) -> u64 {
    with(|k| {
        let start = k.next_copied;
        k.next_copied += len + PAGE;
        k.map(MAIN, start, len, Prot::Write, true);
        start
    })
}

// ---- for checks ----------------------------------------------------------------------------

/// Pages that are present in a range.
pub fn present(space: usize, start: u64, end: u64) -> Vec<u64> {
    with(|k| k.spaces[space].ptes.range(start..end).map(|(&p, _)| p).collect())
}

/// Whether a page is watched; `None` where there is none.
pub fn is_watched(space: usize, page: u64) -> Option<bool> {
    with(|k| {
        let mode = k.spaces[space].vma(page).and_then(|(_, v)| v.ctx).map_or(0, |(_, mode)| mode);
        k.spaces[space].ptes.get(&page).map(|pte| pte.wp && mode & RWP != 0)
    })
}

/// Pages of a range that are the zero page.
pub fn zero_pages(space: usize, start: u64, end: u64) -> Vec<u64> {
    with(|k| {
        let ptes = k.spaces[space].ptes.range(start..end);
        ptes.filter(|(_, p)| p.frame == ZERO_FRAME).map(|(&p, _)| p).collect()
    })
}

/// Pages of a range whose frame nobody else maps.
pub fn mapped_once(space: usize, start: u64, end: u64) -> Vec<u64> {
    with(|k| {
        let ptes = k.spaces[space].ptes.range(start..end);
        let once = ptes.filter(|(_, p)| p.frame != ZERO_FRAME && k.frames[p.frame].maps == 1);
        once.map(|(&p, _)| p).collect()
    })
}

/// Mappings of the application, by start and end.
pub fn mappings(space: usize) -> Vec<(u64, u64)> {
    with(|k| {
        let vmas = k.spaces[space].vmas.range(..OWN_BASE);
        vmas.map(|(&s, v)| (s, v.end)).collect()
    })
}

/// Whether the application has a writable mapping registered for missing pages here.
pub fn is_registered(page: u64) -> bool {
    with(|k| {
        let v = k.spaces[MAIN].vma(page);
        v.is_some_and(|(_, v)| v.ctx.is_some_and(|(_, mode)| mode & MISSING != 0))
    })
}

/// Whether the application has any mapping here.
pub fn is_mapped(page: u64) -> bool {
    with(|k| k.spaces[MAIN].vma(page).is_some())
}

/// The application's mappings: start, end, whether registered for missing pages, whether children
/// do not get them.
pub fn flags() -> Vec<(u64, u64, bool, bool)> {
    schedule::call_point();
    with(|k| {
        let is_registered = |v: &Vma| v.ctx.is_some_and(|(_, mode)| mode & MISSING != 0);
        let vmas = k.spaces[MAIN].vmas.range(..OWN_BASE);
        vmas.map(|(&s, v)| (s, v.end, is_registered(v), !v.in_child)).collect()
    })
}

/// Whether changes of the address space are unread, or were read and their threads not run on.
pub fn is_changing(ctx: usize) -> bool {
    with(|k| k.contexts[ctx].changing > 0)
}

/// Whether a thread waits for a fault on the page.
pub fn is_waited_for(space: usize, page: u64) -> bool {
    with(|k| k.contexts.iter().any(|c| c.space == space && c.faults.iter().any(|w| w.page == page)))
}

/// Compares every page of an address space with its shadow.
pub fn compare_all(space: usize) -> Result<(), String> {
    with(|k| {
        let mut pages: Vec<u64> = k.spaces[space].shadow.keys().copied().collect();
        pages.extend(k.spaces[space].ptes.range(..OWN_BASE).map(|(&p, _)| p));
        for page in pages {
            let pte = k.spaces[space].ptes.get(&page).copied();
            // A child that was forked while it could not read the page may not have it yet.
            let hidden = k.spaces[space].vma(page).is_some_and(|(_, v)| v.prot == Prot::None);
            if space != MAIN && pte.is_none() && hidden {
                continue;
            }
            let bytes = pte.map_or(ZEROS, |p| *k.frames[p.frame].bytes);
            k.check(space, page, &bytes)
                .map_err(|why| format!("at the end, page {page:#x} of process {space}, {why}"))?;
        }
        Ok(())
    })
}

impl Context {
    fn new(space: usize, features: u64) -> Context {
        Context {
            space,
            features,
            faults: Vec::new(),
            events: VecDeque::new(),
            changing: 0,
            is_nonblocking: false,
            is_released: false,
            was_held: false,
        }
    }
}

mod calls;
mod taking;
mod uffd;
pub use calls::{
    dontneed, exit, fork, mmap, mmap_over, mmap_refused, mprotect, mremap, munmap, pin, resize,
    set_in_child, Leave, Pin,
};
pub use taking::{
    disturb, give_up, hold, is_present, is_takeable, leave_early, none_is_given_up, read_out,
    reclaim, was_left_early, Held,
};
pub use uffd::{
    control, duplicate, has_message, inherit, open_uffd, read_messages, reap, set_nonblocking,
    Argument,
};

/// Threads that wait for a page of the main address space.
pub fn waiters(page: u64) -> usize {
    with(|k| k.contexts[0].faults.iter().filter(|w| w.page == page).count())
}
