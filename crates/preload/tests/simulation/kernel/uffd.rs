//! The fake kernel's userfaultfd: what `ioctl`, `read` and `close` do to its descriptors.
//!
//! The numbers are real descriptors (of nothing), so that closing one is noticed as in Linux.

use super::{
    once_in, schedule, with, Context, Kernel, Key, Newest, Page, Prot, Pte, EVENT_FORK, MAIN,
    MISSING, OWN_BASE, OWN_END, PAGE, RWP, WP, ZEROS, ZERO_FRAME,
};
use real_libc as real;

/// `UFFDIO_COPY_MODE_WP`.
const COPY_WP: u64 = 2;

/// The argument of an ioctl.
pub trait Argument {
    /// Its words, to read and write.
    fn words(&self) -> *mut u64;
}

impl Argument for *mut u64 {
    fn words(&self) -> *mut u64 {
        *self
    }
}

impl Argument for i32 {
    fn words(&self) -> *mut u64 {
        std::ptr::null_mut()
    }
}

/// A context without registrations.
pub fn open_uffd() -> i32 {
    // SAFETY: makes a descriptor.
    let fd = unsafe { real::eventfd(0, real::EFD_CLOEXEC) };
    with(|k| {
        k.contexts.push(Context::new(MAIN, 0));
        k.fds.insert(fd, k.contexts.len() - 1);
    });
    fd
}

/// A second descriptor for the same context.
pub fn duplicate(fd: i32) -> Option<i32> {
    // SAFETY: makes a descriptor.
    let new = unsafe { real::fcntl(fd, real::F_DUPFD_CLOEXEC, 100) };
    with(|k| {
        let ctx = *k.fds.get(&fd)?;
        k.fds.insert(new, ctx);
        Some(new)
    })
}

/// Copies of all descriptors, as a child has them that does not close them.
pub fn inherit() -> Vec<std::os::fd::OwnedFd> {
    reap();
    let all: Vec<i32> = with(|k| k.fds.keys().copied().collect());
    let copies = all.into_iter().filter_map(duplicate);
    // SAFETY: made just now, for the caller alone.
    copies.map(|fd| unsafe { std::os::fd::FromRawFd::from_raw_fd(fd) }).collect()
}

/// Releases contexts that no descriptor names any more. Whether there were any.
pub fn reap() -> bool {
    with(|k| {
        let mut any = false;
        // SAFETY: asks for the flags of a number.
        let is_open = |fd: i32| unsafe { real::fcntl(fd, real::F_GETFD) } >= 0;
        let closed: Vec<i32> = k.fds.keys().copied().filter(|&fd| !is_open(fd)).collect();
        for fd in closed {
            k.fds.remove(&fd);
        }
        for c in 0..k.contexts.len() {
            let is_held = k.fds.values().any(|&n| n == c);
            // A context whose fork event was not read yet has no descriptor, and is no orphan.
            if c == 0 || is_held || !k.contexts[c].was_held || k.contexts[c].is_released {
                continue;
            }
            k.release(c);
            any = true;
        }
        any
    })
}

impl Kernel {
    pub(super) fn release(&mut self, c: usize) {
        schedule::trace(|| format!("context {c} released"));
        self.contexts[c].is_released = true;
        let space = self.contexts[c].space;
        for v in self.spaces[space].vmas.values_mut() {
            v.ctx = v.ctx.filter(|(n, _)| *n != c);
        }
        for e in std::mem::take(&mut self.contexts[c].events) {
            schedule::wake(Key::Event(e.id));
            if e.code == 0x13 {
                self.release(e.arg[0] as usize);
            }
        }
        self.wake_range(c, 0, u64::MAX);
    }

    fn copy(&mut self, c: usize, arg: &mut [u64]) -> Result<(), i32> {
        let [dst, src, len] = [arg[0], arg[1], arg[2]];
        let space = self.contexts[c].space;
        self.may_change(c)?;
        let vma = self.spaces[space].is_within_one(dst, len);
        let why = match vma.and_then(|v| v.ctx) {
            None => Some(real::ENOENT),
            Some((_, m)) if arg[3] & COPY_WP != 0 && m & WP == 0 => Some(real::EINVAL),
            Some(_) => None,
        };
        if let Some(e) = why {
            arg[4] = (-i64::from(e)) as u64;
            return Err(e);
        }
        let stop = if len > PAGE && once_in(self.faults.partial) {
            1 + schedule::random(|r| r.below(len / PAGE - 1))
        } else {
            len / PAGE
        };
        let (mut done, mut why) = (0, None);
        for n in 0..stop {
            match self.copy_one(space, dst + n * PAGE, src + n * PAGE, arg[3]) {
                Ok(()) => done += PAGE,
                Err(e) => {
                    why = Some(e);
                    break;
                }
            }
        }
        self.answer(c, dst, len, done, why, arg[3] & 1 == 0, &mut arg[4])
    }

    /// What a filling ioctl says at its end.
    #[allow(clippy::too_many_arguments)]
    fn answer(
        &mut self,
        c: usize,
        dst: u64,
        len: u64,
        done: u64,
        why: Option<i32>,
        wake: bool,
        field: &mut u64,
    ) -> Result<(), i32> {
        if let (0, Some(e)) = (done, why) {
            *field = (-i64::from(e)) as u64;
            return Err(e);
        }
        *field = done;
        if wake {
            self.wake_range(c, dst, dst + done);
        }
        if done == len {
            Ok(())
        } else {
            Err(real::EAGAIN)
        }
    }

    fn copy_one(&mut self, space: usize, dst: u64, src: u64, _mode: u64) -> Result<(), i32> {
        let bytes = self.source(src)?;
        if once_in(self.faults.no_memory) {
            return Err(real::ENOMEM);
        }
        if self.spaces[space].ptes.contains_key(&dst) {
            return Err(real::EEXIST);
        }
        let frame = self.frame(&bytes);
        self.spaces[space].ptes.insert(dst, Pte { frame, wp: false, exclusive: true });
        Ok(())
    }

    /// A page of the caller: in the fake address space, or really in its memory.
    fn source(&mut self, src: u64) -> Result<Page, i32> {
        if (OWN_BASE..OWN_END).contains(&src) || self.spaces[MAIN].vma(src).is_some() {
            match self.spaces[MAIN].vma(src) {
                Some((_, v)) if v.prot != Prot::None => {}
                _ => return Err(real::EFAULT),
            }
            // A hole reads as zeros, and is none afterwards.
            let zero = Pte { frame: ZERO_FRAME, wp: false, exclusive: false };
            let pte = *self.spaces[MAIN].ptes.entry(src & !(PAGE - 1)).or_insert(zero);
            return Ok(*self.frames[pte.frame].bytes);
        }
        // SAFETY: the runtime's own buffer, which it lent to the call for as long as it lasts.
        Ok(unsafe { std::ptr::read_unaligned(src as *const Page) })
    }

    /// Nothing is filled, moved or protected while the address space is changing.
    fn may_change(&self, c: usize) -> Result<(), i32> {
        if self.contexts[c].changing > 0 {
            return Err(real::EAGAIN);
        }
        if !self.spaces[self.contexts[c].space].is_alive {
            return Err(real::ESRCH);
        }
        Ok(())
    }

    fn zeropage(&mut self, c: usize, arg: &mut [u64]) -> Result<(), i32> {
        let (dst, len) = (arg[0], arg[1]);
        let space = self.contexts[c].space;
        self.may_change(c)?;
        let vma = self.spaces[space].is_within_one(dst, len);
        if vma.is_none_or(|v| v.ctx.is_none()) {
            return Err(real::ENOENT);
        }
        // Up to the first page that is there, or sooner; an error if that is the first.
        let (mut filled, mut why) = (0, real::EAGAIN);
        while filled < len {
            let at = dst + filled;
            if once_in(self.faults.no_memory) {
                why = real::ENOMEM;
                break;
            }
            if self.spaces[space].ptes.contains_key(&at) {
                why = real::EEXIST;
                break;
            }
            if filled > 0 && once_in(self.faults.partial) {
                break;
            }
            let pte = Pte { frame: ZERO_FRAME, wp: false, exclusive: false };
            self.spaces[space].ptes.insert(at, pte);
            filled += PAGE;
        }
        if filled == 0 {
            arg[3] = (-i64::from(why)) as u64;
            return Err(why);
        }
        arg[3] = filled;
        self.wake_range(c, dst, dst + filled);
        if filled < len {
            return Err(real::EAGAIN);
        }
        Ok(())
    }

    fn move_pages(&mut self, c: usize, arg: &mut [u64]) -> Result<(), i32> {
        let [dst, src, len, mode] = [arg[0], arg[1], arg[2], arg[3]];
        let space = self.contexts[c].space;
        self.may_change(c)?;
        let refused = |e: i32, field: &mut u64| {
            *field = (-i64::from(e)) as u64;
            Err(e)
        };
        let (s, d) = (self.spaces[space].vma(src), self.spaces[space].vma(dst));
        let (Some((_, s)), Some((_, d))) = (s, d) else {
            return refused(real::ENOENT, &mut arg[4]);
        };
        let fits = src + len <= s.end && dst + len <= d.end;
        let alike = s.prot == d.prot && s.prot == Prot::Write;
        if !fits || !alike || d.ctx.is_none_or(|(n, _)| n != c) {
            return refused(real::EINVAL, &mut arg[4]);
        }
        let holes_allowed = mode & 2 != 0;
        let stop = if len > PAGE && once_in(self.faults.partial) {
            PAGE * (1 + schedule::random(|r| r.below(len / PAGE - 1)))
        } else {
            len
        };
        // Only pages where there is something to do or to refuse.
        let ptes = &self.spaces[space].ptes;
        let mut offsets: Vec<u64> = ptes.range(src..src + stop).map(|(&p, _)| p - src).collect();
        offsets.extend(ptes.range(dst..dst + stop).map(|(&p, _)| p - dst));
        if !holes_allowed {
            offsets.extend((0..stop).step_by(PAGE as usize));
        }
        offsets.sort_unstable();
        offsets.dedup();
        let (mut done, mut why) = (stop, None);
        for offset in offsets {
            if let Err(e) = self.move_one(space, dst + offset, src + offset, holes_allowed) {
                (done, why) = (offset, Some(e));
                break;
            }
        }
        // It may have moved one more than it says.
        if stop < len && why.is_none() && once_in(self.faults.partial) {
            let _ = self.move_one(space, dst + done, src + done, holes_allowed);
        }
        self.answer(c, dst, len, done, why, mode & 1 == 0, &mut arg[4])
    }

    fn move_one(&mut self, space: usize, dst: u64, src: u64, holes: bool) -> Result<(), i32> {
        if self.spaces[space].ptes.contains_key(&dst) {
            return Err(real::EEXIST);
        }
        let Some(pte) = self.spaces[space].ptes.get(&src).copied() else {
            return if holes { Ok(()) } else { Err(real::ENOENT) };
        };
        let is_zero = pte.frame == ZERO_FRAME;
        if !is_zero && (!pte.exclusive || self.frames[pte.frame].pins > 0) {
            return Err(real::EBUSY);
        }
        if once_in(self.faults.busy) {
            return Err(real::EBUSY);
        }
        if once_in(self.faults.no_memory) {
            return Err(real::ENOMEM);
        }
        self.spaces[space].ptes.remove(&src);
        // What is moved to where pages are watched, is watched.
        let at_home = self.spaces[space].vma(dst).and_then(|(_, v)| v.ctx);
        let wp = at_home.is_some_and(|(_, mode)| mode & RWP != 0);
        self.spaces[space].ptes.insert(dst, Pte { wp, ..pte });
        Ok(())
    }

    /// Protects from writes (`WP`) or from any access (`RWP`).
    fn protect(&mut self, c: usize, kind: u64, arg: &[u64]) -> Result<(), i32> {
        let (start, len, mode) = (arg[0], arg[1], arg[2]);
        let space = self.contexts[c].space;
        self.may_change(c)?;
        let vma = self.spaces[space].is_within_one(start, len);
        if vma.is_none_or(|v| v.ctx.is_none_or(|(_, m)| m & kind == 0)) {
            return Err(real::ENOENT);
        }
        for (_, pte) in self.spaces[space].ptes.range_mut(start..start + len) {
            pte.wp = mode & 1 != 0;
        }
        if mode & 3 == 0 {
            self.wake_range(c, start, start + len);
        }
        Ok(())
    }

    pub(super) fn set_protected(&mut self, space: usize, page: u64, on: bool) {
        if let Some(pte) = self.spaces[space].ptes.get_mut(&page) {
            pte.wp = on;
        }
    }

    fn register(&mut self, c: usize, arg: &[u64]) -> Result<(), i32> {
        let (start, len, mode) = (arg[0], arg[1], arg[2] & (MISSING | WP | RWP));
        let space = self.contexts[c].space;
        // Both have the same bit of an entry, and there must be leave for the second.
        if mode & RWP != 0 && (mode & WP != 0 || self.contexts[c].features & FEATURE_RWP == 0) {
            return Err(real::EINVAL);
        }
        if start < OWN_BASE && once_in(self.faults.register) {
            return Err(real::ENOMEM);
        }
        let found = self.spaces[space].cut(start, start + len);
        if found.is_empty() {
            return Err(real::EINVAL);
        }
        for s in found {
            if let Some(v) = self.spaces[space].vmas.get_mut(&s) {
                if v.ctx.is_some_and(|(n, m)| n != c || m & !mode & (WP | RWP) != 0) {
                    return Err(real::EBUSY);
                }
                v.ctx = Some((c, mode));
            }
        }
        self.spaces[space].merge();
        Ok(())
    }

    fn unregister(&mut self, c: usize, arg: &[u64]) -> Result<(), i32> {
        let (start, len) = (arg[0], arg[1]);
        let space = self.contexts[c].space;
        let found = self.spaces[space].cut(start, start + len);
        if found.is_empty() {
            return Err(real::EINVAL);
        }
        for s in found {
            if let Some(v) = self.spaces[space].vmas.get_mut(&s) {
                v.ctx = v.ctx.filter(|(n, _)| *n != c);
            }
        }
        for (_, pte) in self.spaces[space].ptes.range_mut(start..start + len) {
            pte.wp = false;
        }
        self.spaces[space].merge();
        self.wake_range(c, start, start + len);
        Ok(())
    }
}

fn fail(errno: i32) -> i32 {
    // SAFETY: errno of this thread.
    unsafe { *real::__errno_location() = errno };
    -1
}

/// `UFFD_FEATURE_MOVE`.
const FEATURE_MOVE: u64 = 1 << 16;
/// `UFFD_FEATURE_RWP` and `UFFD_FEATURE_RWP_ASYNC`.
const FEATURE_RWP: u64 = 1 << 17;
const FEATURE_RWP_ASYNC: u64 = 1 << 18;

/// ioctl(2) on a userfaultfd.
pub fn control(fd: i32, request: u64, arg: &dyn Argument) -> i32 {
    schedule::call_point();
    let words = (request >> 16 & 0x3fff) as usize / 8;
    // SAFETY: the caller lends as many words as the request's number says.
    let arg = unsafe { std::slice::from_raw_parts_mut(arg.words(), words) };
    let before: Vec<u64> = if schedule::is_verbose() { arg.to_vec() } else { Vec::new() };
    let result = with(|k| {
        let Some(&c) = k.fds.get(&fd) else { return Err(real::EBADF) };
        match request & 0xff {
            0x3f => {
                if arg[1] & EVENT_FORK != 0 && !k.forks_allowed {
                    return Err(real::EPERM);
                }
                if arg[1] & FEATURE_MOVE != 0 && k.newest < Newest::Move {
                    return Err(real::EINVAL);
                }
                if arg[1] & (FEATURE_RWP | FEATURE_RWP_ASYNC) != 0 && k.newest < Newest::Watch {
                    return Err(real::EINVAL);
                }
                k.contexts[c].features = arg[1];
                Ok(())
            }
            0x00 => k.register(c, arg),
            0x01 => k.unregister(c, arg),
            0x02 => {
                k.wake_range(c, arg[0], arg[0] + arg[1]);
                Ok(())
            }
            0x03 => k.copy(c, arg),
            0x04 => k.zeropage(c, arg),
            0x05 if k.newest >= Newest::Move => k.move_pages(c, arg),
            0x06 => k.protect(c, WP, arg),
            0x09 if k.newest >= Newest::Watch => k.protect(c, RWP, arg),
            _ => Err(real::EINVAL),
        }
    });
    schedule::trace(|| {
        let names = ["register", "unregister", "wake", "copy", "zero", "move", "protect"];
        let name = match (request & 0xff) as usize {
            9 => "watch",
            n => names.get(n).unwrap_or(&"api"),
        };
        let shown: Vec<String> = before.iter().take(4).map(|w| format!("{w:#x}")).collect();
        // Where a buffer of the runtime lies is the same in no two runs.
        let shown = shown.iter().map(|s| if s.len() > 13 { "buffer" } else { s.as_str() });
        let last = arg.last().copied().unwrap_or(0) as i64;
        let outcome = match result {
            Ok(()) => "done".to_string(),
            Err(e) => format!("errno {e} ({last})"),
        };
        format!("{name}({}) {outcome}", shown.collect::<Vec<_>>().join(", "))
    });
    match result {
        Ok(()) => 0,
        Err(errno) => fail(errno),
    }
}

/// fcntl(2): whether reads wait.
pub fn set_nonblocking(fd: i32, on: bool) {
    with(|k| {
        if let Some(&c) = k.fds.get(&fd) {
            k.contexts[c].is_nonblocking = on;
        }
    });
}

/// Whether a read would find a message.
pub fn has_message(fd: i32) -> bool {
    schedule::call_point();
    with(|k| {
        let Some(c) = k.fds.get(&fd) else { return false };
        let ctx = &k.contexts[*c];
        // Of a descriptor that waits the kernel does not say it.
        ctx.is_nonblocking && (!ctx.events.is_empty() || ctx.faults.iter().any(|w| !w.is_read))
    })
}

/// read(2): faults first, then events, as many as fit.
pub fn read_messages(fd: i32, out: *mut u8, bytes: usize) -> isize {
    schedule::call_point();
    let Some(c) = with(|k| k.fds.get(&fd).copied()) else { return fail(real::EBADF) as isize };
    loop {
        let mut n = 0;
        while (n + 1) * 32 <= bytes {
            let Some((code, arg)) = with(|k| k.next_message(c)) else { break };
            crate::pairs::delivered(c, code, arg);
            schedule::trace(|| {
                let name = match code {
                    0x12 => "fault",
                    0x13 => "fork",
                    0x14 => "remap",
                    0x15 => "remove",
                    0x16 => "unmap",
                    _ => "?",
                };
                format!("reads {name} {:#x} {:#x} {:#x}", arg[0], arg[1], arg[2])
            });
            let mut message = [0u64; 4];
            message[0] = u64::from(code);
            message[1..].copy_from_slice(&arg);
            // SAFETY: within the buffer that the caller lends.
            unsafe { std::ptr::copy_nonoverlapping(message.as_ptr().cast(), out.add(n * 32), 32) };
            n += 1;
        }
        if n > 0 {
            return (n * 32) as isize;
        }
        let (waits, interrupted) = with(|k| (!k.contexts[c].is_nonblocking, k.faults.interrupted));
        if !waits {
            return fail(real::EAGAIN) as isize;
        }
        if once_in(interrupted) {
            return fail(real::EINTR) as isize;
        }
        if c == MAIN {
            crate::checks::while_idle();
        }
        schedule::wait(Key::Read(c));
    }
}

impl Kernel {
    fn next_message(&mut self, c: usize) -> Option<(u8, [u64; 3])> {
        let ctx = &mut self.contexts[c];
        if let Some(w) = ctx.faults.iter_mut().find(|w| !w.is_read) {
            w.is_read = true;
            let flags = u64::from(w.write) | u64::from(w.wp) << 1;
            return Some((0x12, [flags, w.page, u64::from(w.tid)]));
        }
        let mut e = ctx.events.pop_front()?;
        schedule::wake(Key::Event(e.id));
        if e.code == 0x13 {
            let child = e.arg[0] as usize;
            // SAFETY: makes a descriptor.
            let fd = unsafe { real::eventfd(0, real::EFD_CLOEXEC) };
            self.fds.insert(fd, child);
            self.contexts[child].was_held = true;
            e.arg = [fd as u64, 0, 0];
        }
        Some((e.code, e.arg))
    }
}

const _: () = assert!(ZEROS.len() == PAGE as usize);
