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

/// Modes of a registration.
const MISSING: u64 = 1;
const WP: u64 = 2;

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
    wp: bool,
    /// Nobody else maps the frame, as far as the kernel knows.
    exclusive: bool,
}

#[derive(Debug)]
struct Frame {
    bytes: Box<Page>,
    maps: u32,
    pins: u32,
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
pub fn begin(forks_allowed: bool) {
    close_all();
    with(|k| {
        *k = Kernel {
            spaces: vec![Space { is_alive: true, ..Space::default() }],
            frames: vec![Frame { bytes: Box::new(ZEROS), maps: 0, pins: 0 }],
            forks_allowed,
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
                (f.maps, f.pins) = (1, 0);
                n
            }
            None => {
                self.frames.push(Frame { bytes: Box::new(*bytes), maps: 1, pins: 0 });
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
    let mut f = Some(f);
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
            let frame = k.make_accessible(space, page, pte, write);
            if let Some(f) = f.take() {
                k.touch(space, page, frame, write, f);
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

// ---- system calls of the application -------------------------------------------------------

/// A thread that is not given a processor for a while.
fn pause() {
    schedule::call_point();
    if once_in(2) {
        schedule::sleep_us(400);
    }
}

/// Waits until the message was read and this thread runs again, and ends the change it announced.
fn announce(ctx: usize, code: u8, arg: [u64; 3]) {
    schedule::call_point();
    let id = with(|k| {
        let id = k.id();
        if k.contexts[ctx].is_released {
            if code == 0x13 {
                k.release(arg[0] as usize);
            }
            return None;
        }
        k.contexts[ctx].events.push_back(Message { id, code, arg });
        Some(id)
    });
    if let Some(id) = id {
        schedule::wake(Key::Read(ctx));
        schedule::wait(Key::Event(id));
        schedule::call_point();
        if once_in(8) {
            pause();
        }
    }
    with(|k| k.contexts[ctx].changing -= 1);
}

/// From here to [`reshaped`] a range of the main process is being unmapped or moved.
fn reshaping(k: &mut Kernel, space: usize, start: u64, len: u64) -> u64 {
    let id = k.id();
    if space == MAIN && start < OWN_BASE {
        k.reshaped.push((id, start, start + len));
        for child in k.unborn.clone() {
            k.blur(child, start, start + len);
        }
    }
    id
}

fn reshaped(ids: &[u64]) {
    with(|k| k.reshaped.retain(|(id, _, _)| !ids.contains(id)));
}

fn begin_change(k: &mut Kernel, contexts: &[usize]) {
    for &c in contexts {
        k.contexts[c].changing += 1;
    }
}

/// Maps fresh memory where nothing is.
pub fn mmap(space: usize, start: u64, len: u64) {
    schedule::call_point();
    schedule::trace(|| format!("mmap {start:#x} +{}", len / PAGE));
    with(|k| k.map(space, start, len, Prot::Write, true));
}

/// Maps fresh memory in place of what is there.
pub fn mmap_over(space: usize, start: u64, len: u64) {
    schedule::call_point();
    schedule::trace(|| format!("mmap over {start:#x} +{}", len / PAGE));
    let (id, contexts) = with(|k| {
        let id = reshaping(k, space, start, len);
        let contexts = k.unmap(space, start, len);
        k.map(space, start, len, Prot::Write, true);
        (id, contexts)
    });
    for c in contexts {
        announce(c, 0x16, [start, start + len, 0]);
    }
    reshaped(&[id]);
}

impl Kernel {
    /// Takes mappings away; the contexts to tell.
    fn unmap(&mut self, space: usize, start: u64, len: u64) -> Vec<usize> {
        let end = start + len;
        let contexts = self.contexts_of(space, start, end, EVENT_UNMAP);
        begin_change(self, &contexts);
        for s in self.spaces[space].cut(start, end) {
            self.spaces[space].vmas.remove(&s);
        }
        self.zap(space, start, end);
        self.spaces[space].shadow.retain(|p, _| !(start..end).contains(p));
        contexts
    }
}

/// munmap(2).
pub fn munmap(space: usize, start: u64, len: u64) {
    schedule::call_point();
    schedule::trace(|| format!("munmap {start:#x} +{}", len / PAGE));
    let (id, contexts) = with(|k| (reshaping(k, space, start, len), k.unmap(space, start, len)));
    for c in contexts {
        announce(c, 0x16, [start, start + len, 0]);
    }
    reshaped(&[id]);
}

/// mprotect(2).
pub fn mprotect(space: usize, start: u64, len: u64, prot: Prot) {
    schedule::call_point();
    schedule::trace(|| format!("mprotect {start:#x} +{} {prot:?}", len / PAGE));
    with(|k| {
        for s in k.spaces[space].cut(start, start + len) {
            if let Some(v) = k.spaces[space].vmas.get_mut(&s) {
                v.prot = prot;
            }
        }
        k.spaces[space].merge();
    });
}

/// madvise(MADV_DONTNEED): each mapping's event first, its pages afterwards.
pub fn dontneed(space: usize, start: u64, len: u64) {
    schedule::call_point();
    schedule::trace(|| format!("dontneed {start:#x} +{}", len / PAGE));
    let end = start + len;
    let mut at = start;
    while at < end {
        let found = with(|k| {
            let s = &k.spaces[space];
            let next = s.vmas.range(..end).find(|(_, v)| v.end > at).map(|(&s, &v)| (s, v));
            let (s, v) = next?;
            let (a, b) = (s.max(at), v.end.min(end));
            let ctx = v.ctx.map(|(c, _)| c);
            let ctx = ctx.filter(|&c| k.contexts[c].features & EVENT_REMOVE != 0);
            if let Some(c) = ctx {
                begin_change(k, &[c]);
                k.begin_drop(space, a, b);
            }
            Some((a, b, ctx))
        });
        let Some((a, b, ctx)) = found else { return };
        if let Some(c) = ctx {
            announce(c, 0x15, [a, b, 0]);
            pause();
            while with(|k| k.is_drop_held) {
                schedule::sleep_us(1);
            }
        }
        with(|k| {
            let there = k.zap(space, a, b);
            k.end_drop(space, a, b, &there, ctx.is_some());
        });
        schedule::trace(|| format!("dropped {a:#x} +{}", (b - a) / PAGE));
        at = b;
    }
}

impl Kernel {
    fn begin_drop(&mut self, space: usize, start: u64, end: u64) {
        if start >= OWN_BASE {
            return;
        }
        for page in (start..end).step_by(PAGE as usize) {
            self.spaces[space].shadow.entry(page).or_default().drops += 1;
            // Forked before or after: who can say.
            for child in self.unborn.iter().filter(|_| space == MAIN) {
                self.spaces[*child].shadow.entry(page).or_default().or_zeros = true;
            }
        }
    }

    fn blur(&mut self, child: usize, start: u64, end: u64) {
        for page in (start..end).step_by(PAGE as usize) {
            self.spaces[child].shadow.entry(page).or_default().is_vague = true;
        }
    }

    fn end_drop(&mut self, space: usize, start: u64, end: u64, there: &[u64], begun: bool) {
        if start >= OWN_BASE {
            return;
        }
        for page in (start..end).step_by(PAGE as usize) {
            let Some(s) = self.spaces[space].shadow.get_mut(&page) else { continue };
            if begun {
                s.drops = s.drops.saturating_sub(1);
            }
            if s.is_written && !there.contains(&page) {
                // Written while the drop was under way: before it or after it, who can say.
                s.or_zeros = true;
            } else {
                s.bytes = zeros();
                s.or_zeros = false;
            }
            if s.drops == 0 {
                s.is_written = false;
                if !s.or_zeros && *s.bytes == ZEROS {
                    self.spaces[space].shadow.remove(&page);
                }
            }
        }
    }
}

/// How an mremap(2) leaves the old range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Leave {
    Nothing,
    /// `MREMAP_DONTUNMAP`.
    Mapping,
}

/// mremap(2) of one mapping to another address, over what is there, with a new length.
pub fn mremap(space: usize, from: u64, len: u64, to: u64, new_len: u64, leave: Leave) -> bool {
    schedule::call_point();
    schedule::trace(|| {
        format!("mremap {from:#x} +{} to {to:#x} +{} {leave:?}", len / PAGE, new_len / PAGE)
    });
    let done = with(|k| {
        let v = k.spaces[space].is_within_one(from, len)?;
        let ids = [reshaping(k, space, from, len), reshaping(k, space, to, new_len)];
        let early = k.unmap(space, to, new_len);
        let ctx = v.ctx.map(|(c, _)| c);
        let ctx = ctx.filter(|&c| k.contexts[c].features & EVENT_REMAP != 0);
        let new = Vma { end: to + new_len, ctx: v.ctx.filter(|_| ctx.is_some()), ..v };
        k.spaces[space].vmas.insert(to, new);
        begin_change(k, &ctx.into_iter().collect::<Vec<_>>());
        let s = &mut k.spaces[space];
        let moved: Vec<u64> = s.ptes.range(from..from + len).map(|(&p, _)| p).collect();
        for p in moved {
            if let Some(pte) = s.ptes.remove(&p) {
                s.ptes.insert(p - from + to, pte);
            }
        }
        let moved: Vec<u64> = s.shadow.range(from..from + len).map(|(&p, _)| p).collect();
        for p in moved {
            if let Some(shadow) = s.shadow.remove(&p) {
                s.shadow.insert(p - from + to, shadow);
            }
        }
        let late = match leave {
            Leave::Nothing => k.unmap(space, from, len),
            Leave::Mapping => Vec::new(),
        };
        k.spaces[space].merge();
        Some((ids, early, ctx, late))
    });
    let Some((ids, early, ctx, late)) = done else { return false };
    for c in early {
        announce(c, 0x16, [to, to + new_len, 0]);
    }
    if let Some(c) = ctx {
        announce(c, 0x14, [from, to, len]);
    }
    for c in late {
        announce(c, 0x16, [from, from + len, 0]);
    }
    reshaped(&ids);
    true
}

/// mremap(2) in place: grows into free space, or shrinks.
pub fn resize(space: usize, start: u64, len: u64, new_len: u64) -> bool {
    if new_len < len {
        schedule::trace(|| "mremap, shrinking".to_string());
        munmap(space, start + new_len, len - new_len);
        return true;
    }
    schedule::call_point();
    schedule::trace(|| format!("mremap {start:#x} +{} to +{}", len / PAGE, new_len / PAGE));
    with(|k| {
        let s = &mut k.spaces[space];
        let free = s.vmas.range(start + len..start + new_len).next().is_none();
        let Some((at, v)) = s.vma(start).filter(|(_, v)| free && v.end == start + len) else {
            return false;
        };
        s.vmas.insert(at, Vma { end: start + new_len, ..v });
        s.merge();
        true
    })
}

/// fork(2): the child's address space. The event is waited for before the child runs.
pub fn fork(space: usize) -> usize {
    schedule::call_point();
    let (child, announced) = with(|k| {
        let child = k.spaces.len();
        let mut new = Space { is_alive: true, ..Space::default() };
        let parent = &k.spaces[space];
        let mut pairs: Vec<(usize, usize)> = Vec::new();
        let mut contexts = Vec::new();
        for (&start, &v) in parent.vmas.iter().filter(|(_, v)| v.in_child) {
            let ctx = v.ctx.and_then(|(c, mode)| {
                let octx = &k.contexts[c];
                if octx.features & EVENT_FORK == 0 || octx.is_released {
                    return None;
                }
                let at = pairs.iter().find(|(old, _)| *old == c).map(|p| p.1);
                let n = at.unwrap_or_else(|| {
                    let n = k.contexts.len() + contexts.len();
                    contexts.push(Context::new(child, octx.features));
                    pairs.push((c, n));
                    n
                });
                Some((n, mode))
            });
            new.vmas.insert(start, Vma { ctx, ..v });
        }
        k.contexts.append(&mut contexts);
        let inherited = |p: &u64| new.vma(*p).is_some();
        let ptes: Vec<u64> = k.spaces[space].ptes.keys().copied().filter(inherited).collect();
        for p in ptes {
            let Some(pte) = k.spaces[space].ptes.get_mut(&p) else { continue };
            let copied = k.frames[pte.frame].pins > 0;
            if copied {
                // A pinned page stays the parent's alone.
                let bytes = *k.frames[pte.frame].bytes;
                let frame = k.frame(&bytes);
                new.ptes.insert(p, Pte { frame, wp: false, exclusive: true });
            } else {
                pte.exclusive = false;
                new.ptes.insert(p, Pte { wp: false, ..*pte });
                if pte.frame != ZERO_FRAME {
                    k.frames[pte.frame].maps += 1;
                }
            }
        }
        for (&p, s) in &k.spaces[space].shadow {
            let or_zeros = s.or_zeros || s.drops > 0;
            let shadow = Shadow { or_zeros, drops: 0, is_written: false, ..s.clone() };
            new.shadow.insert(p, shadow);
        }
        k.spaces.push(new);
        if space == MAIN {
            for (_, start, end) in k.reshaped.clone() {
                k.blur(child, start, end);
            }
            k.unborn.push(child);
        }
        begin_change(k, &pairs.iter().map(|p| p.0).collect::<Vec<_>>());
        (child, pairs)
    });
    schedule::trace(|| format!("fork of process {space}: process {child}"));
    for (c, n) in announced {
        announce(c, 0x13, [n as u64, 0, 0]);
    }
    with(|k| k.unborn.retain(|&c| c != child));
    child
}

/// The process ends.
pub fn exit(space: usize) {
    schedule::trace(|| format!("exit of process {space}"));
    with(|k| {
        k.spaces[space].is_alive = false;
        let pages: Vec<u64> = k.spaces[space].ptes.keys().copied().collect();
        for p in pages {
            k.zap(space, p, p + PAGE);
        }
        k.spaces[space].vmas.clear();
        k.spaces[space].shadow.clear();
    });
}

/// A page held by the kernel for a device.
#[derive(Debug)]
pub struct Pin {
    space: usize,
    frame: usize,
}

/// Pins a page for a device to write to (`FOLL_PIN | FOLL_WRITE`).
pub fn pin(space: usize, page: u64) -> Option<Pin> {
    access(space, page, true, |_| ()).ok()?;
    // Nothing ran since: the page is there.
    let frame = with(|k| {
        let frame = k.spaces[space].ptes.get(&page).map(|p| p.frame)?;
        k.frames[frame].pins += 1;
        Some(frame)
    })?;
    schedule::trace(|| format!("pins {page:#x}"));
    Some(Pin { space, frame })
}

impl Pin {
    /// The device writes, and lets go.
    pub fn write_and_release(self, at: usize, bytes: [u8; 8]) {
        schedule::call_point();
        with(|k| {
            k.frames[self.frame].bytes[at..at + 8].copy_from_slice(&bytes);
            let s = &mut k.spaces[self.space];
            let page = s.ptes.iter().find(|(_, p)| p.frame == self.frame).map(|(&p, _)| p);
            if let Some(shadow) = page.map(|p| s.shadow.entry(p).or_default()) {
                let mut new = *shadow.bytes;
                new[at..at + 8].copy_from_slice(&bytes);
                shadow.bytes = Rc::new(new);
                shadow.is_written |= shadow.drops > 0;
            }
            k.frames[self.frame].pins -= 1;
            k.free_if_unused(self.frame);
        });
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

mod uffd;
pub use uffd::{
    control, duplicate, inherit, open_uffd, read_messages, reap, set_nonblocking, Argument,
};

/// Threads that wait for a page of the main address space.
pub fn waiters(page: u64) -> usize {
    with(|k| k.contexts[0].faults.iter().filter(|w| w.page == page).count())
}
