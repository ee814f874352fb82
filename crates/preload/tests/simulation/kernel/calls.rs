//! System calls of the application: what changes an address space, and what is told of it when.

use super::{
    access, once_in, with, zeros, Context, Kernel, Message, Prot, Pte, Shadow, Space, Vma,
    EVENT_FORK, EVENT_REMAP, EVENT_REMOVE, EVENT_UNMAP, MAIN, OWN_BASE, PAGE, ZEROS, ZERO_FRAME,
};
use crate::schedule::{self, Key};
use std::rc::Rc;

/// A thread that is not given a processor for a while.
fn pause() {
    schedule::call_point();
    if once_in(2) {
        schedule::sleep_us(400);
    }
}

/// Waits until the message was read and this thread runs again, and ends the change it announced.
/// The change was made before, and its lock is let go of: the messages of two threads may come in
/// another order than their changes.
fn announce(ctx: usize, code: u8, arg: [u64; 3]) {
    schedule::call_point();
    if once_in(8) {
        pause();
    }
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

/// Tells whoever wants to know that the content of a range is about to be dropped, mapping by
/// mapping.
pub(super) fn announce_removal(space: usize, start: u64, end: u64) {
    let parts = with(|k| {
        let vmas = k.spaces[space].vmas.range(..end).filter(|(_, v)| v.end > start);
        let parts = vmas.filter_map(|(&s, v)| Some((v.ctx?.0, s.max(start), v.end.min(end))));
        parts.collect::<Vec<_>>()
    });
    for (c, a, b) in parts {
        if with(|k| k.contexts[c].features & EVENT_REMOVE != 0) {
            with(|k| begin_change(k, &[c]));
            announce(c, 0x15, [a, b, 0]);
        }
    }
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
    let _inside = schedule::enter_call();
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

/// mmap(2) with MAP_FIXED that finds no room: nothing changes, and yet the contexts are told.
pub fn mmap_refused(space: usize, start: u64, len: u64) {
    schedule::call_point();
    let _inside = schedule::enter_call();
    schedule::trace(|| format!("mmap over {start:#x} +{}, refused", len / PAGE));
    let contexts = with(|k| {
        let contexts = k.contexts_of(space, start, start + len, EVENT_UNMAP);
        begin_change(k, &contexts);
        contexts
    });
    for c in contexts {
        announce(c, 0x16, [start, start + len, 0]);
    }
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
    let _inside = schedule::enter_call();
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

/// madvise(MADV_DONTFORK or MADV_DOFORK) in the main process. `false` if some of the range is not
/// mapped, or there are too many mappings for another; what could be done is done.
pub fn set_in_child(start: u64, len: u64, in_child: bool) -> bool {
    schedule::call_point();
    with(|k| {
        // (What is given back to children was one mapping with its neighbours before.)
        if !in_child && once_in(k.faults.register) {
            return false;
        }
        let mut covered = 0;
        for s in k.spaces[MAIN].cut(start, start + len) {
            if let Some(v) = k.spaces[MAIN].vmas.get_mut(&s) {
                v.in_child = in_child;
                covered += v.end - s;
            }
        }
        k.spaces[MAIN].merge();
        covered == len
    })
}

/// madvise(MADV_DONTNEED): each mapping's event first, its pages afterwards. What was one mapping
/// before its event may be several by then: the kernel looks again, drops what lies in the first,
/// and goes on with the next as with any other, with another event if that is registered.
pub fn dontneed(space: usize, start: u64, len: u64) {
    schedule::call_point();
    let _inside = schedule::enter_call();
    schedule::trace(|| format!("dontneed {start:#x} +{}", len / PAGE));
    let end = start + len;
    let mut at = start;
    // Up to here the drop has begun for whoever looks.
    let mut begun = start;
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
                k.begin_drop(space, a.max(begun), b);
                begun = begun.max(b);
            }
            Some((a, b, ctx))
        });
        let Some((a, b, ctx)) = found else { break };
        let mut until = b;
        if let Some(c) = ctx {
            announce(c, 0x15, [a, b, 0]);
            pause();
            while with(|k| k.is_drop_held) {
                schedule::sleep_us(1);
            }
            let Some((_, v)) = with(|k| k.spaces[space].vma(a)) else { break };
            until = v.end.min(b);
        }
        // Page by page: others touch the range meanwhile, and the pager may move what it has.
        for page in (a..until).step_by(PAGE as usize) {
            with(|k| {
                let there = k.zap(space, page, page + PAGE);
                k.end_drop(space, page, page + PAGE, &there, page < begun);
            });
            if ctx.is_some() && once_in(8) {
                schedule::call_point();
            }
        }
        schedule::trace(|| format!("dropped {a:#x} +{}", (until - a) / PAGE));
        at = until;
    }
    // It gave up where the mapping was gone.
    with(|k| k.give_up_drop(space, at, begun));
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

    fn give_up_drop(&mut self, space: usize, start: u64, end: u64) {
        for page in (start..end).step_by(PAGE as usize) {
            if let Some(s) = self.spaces[space].shadow.get_mut(&page) {
                s.drops = s.drops.saturating_sub(1);
                s.is_written &= s.drops > 0;
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
    let _inside = schedule::enter_call();
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
    let _inside = schedule::enter_call();
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
            k.frames[self.frame].is_given_up = false;
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
