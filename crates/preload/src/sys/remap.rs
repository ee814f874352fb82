//! `mremap` of what the program knows as one mapping and the kernel has as several.
//!
//! Registration splits a mapping, and what it leaves behind is one again as soon as registration
//! ends - but not in a child that was forked meanwhile: the kernel gives each part there a history
//! of its own and never joins them. It then refuses to resize or move the whole (EFAULT), and glibc
//! or the program would see an error where there is none without us. So the parts are moved one by
//! one to a place that is reserved for all.
//!
//! Nothing is allocated: a forked child has no heap of ours.

use super::{clones, proc};
use std::ops::Range;

/// More parts than this are left as they are.
const PARTS_MAX: usize = 64;

/// The parts, in order, without a gap.
struct Parts {
    ranges: [(u64, u64); PARTS_MAX],
    n: usize,
}

impl Parts {
    fn all(&self) -> &[(u64, u64)] {
        &self.ranges[..self.n]
    }

    /// The mappings in `range`: all of it, private, anonymous and with the same permissions.
    fn of(range: Range<u64>) -> Option<Parts> {
        let mut parts = Parts { ranges: [(0, 0); PARTS_MAX], n: 0 };
        let (mut at, mut permissions, mut fits) = (range.start, None, true);
        proc::each_mapping(|line| {
            let Some(m) = proc::AnyMapping::parse(line) else { return };
            if m.end <= range.start || m.start >= range.end {
                return;
            }
            let is_next = m.start.max(range.start) == at && parts.n < PARTS_MAX;
            let is_like = *permissions.get_or_insert(m.permissions) == m.permissions;
            fits &= is_next && is_like && m.is_private_anonymous();
            if fits {
                parts.ranges[parts.n] = (at, m.end.min(range.end));
                at = m.end.min(range.end);
                parts.n += 1;
            }
        })?;
        (fits && at == range.end).then_some(parts)
    }
}

/// Whether nothing is mapped in `range`; `None` if that cannot be known.
fn is_hole(range: Range<u64>) -> Option<bool> {
    let mut is_hole = true;
    proc::each_mapping(|line| {
        let Some(m) = proc::AnyMapping::parse(line) else { return };
        is_hole &= m.end <= range.start || m.start >= range.end;
    })?;
    Some(is_hole)
}

/// What `mremap(old, old_len, new_len, flags, new)` does, by parts. `None` if it cannot be done so,
/// and nothing has changed: the caller's error stands. Lengths are in bytes, as the caller has
/// them; `new` is anything without MREMAP_FIXED.
///
/// # Safety
/// As for `mremap`: the program asks for it.
pub unsafe fn by_parts(old: u64, old_len: u64, new_len: u64, flags: i32, new: u64) -> Option<u64> {
    let up = |len: u64| len.checked_next_multiple_of(4096);
    let (old_len, new_len) = (up(old_len)?, up(new_len)?);
    let is_fixed = flags & libc::MREMAP_FIXED != 0;
    let is_aligned = old.is_multiple_of(4096) && (!is_fixed || new.is_multiple_of(4096));
    if !is_aligned || old_len == 0 || new_len == 0 {
        return None;
    }
    let old_end = old.checked_add(old_len)?;
    // Before Linux 6.17 the kernel has given up the end of a range that shrinks on its way by the
    // time it refuses the rest.
    let is_cut = is_fixed && new_len < old_len && is_hole(old + new_len..old_end)?;
    let parts = Parts::of(old..if is_cut { old + new_len } else { old_end })?;
    let &(last, last_end) = parts.all().last()?;
    if !is_fixed && flags & libc::MREMAP_DONTUNMAP == 0 {
        if new_len <= old_len {
            // SAFETY: the caller gives up the end of its range.
            let cut = new_len == old_len || unsafe { unmap(old + new_len, old_len - new_len) };
            return cut.then_some(old);
        }
        let room = last_end - last + (new_len - old_len);
        // SAFETY: the caller's last part grows where it is, or stays as it is.
        if unsafe { remap(last, last_end - last, room, 0, 0) } == Some(last) {
            return Some(old);
        }
    }
    if flags & libc::MREMAP_MAYMOVE == 0 {
        return None;
    }
    // SAFETY: a reservation of our own, or what the caller gives away at its own address.
    let to = unsafe { reserve(is_fixed.then_some(new), new_len) }?;
    // SAFETY: the parts are the caller's, and their places are inside of what is reserved.
    let is_done = unsafe { move_all(&parts, old, old_len.min(new_len), to, new_len, flags) };
    if !is_done {
        // SAFETY: nothing of the caller's is there: it is back where it was.
        unsafe { unmap(to, new_len) };
        return None;
    }
    if new_len < old_len && flags & libc::MREMAP_DONTUNMAP == 0 && !is_cut {
        // SAFETY: the caller gives up the end of its range.
        unsafe { unmap(old + new_len, old_len - new_len) };
    }
    Some(to)
}

/// Moves each part of the first `len` bytes to its place; the last one grows to fill `new_len`.
/// `false`, and everything is back, if the kernel refuses one.
///
/// # Safety
/// `[to, to + new_len)` is reserved for this.
unsafe fn move_all(parts: &Parts, old: u64, len: u64, to: u64, new_len: u64, flags: i32) -> bool {
    let end = old + len;
    let flags = flags | libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
    let kept = || parts.all().iter().map(|&(a, b)| (a, b.min(end))).filter(|(a, b)| a < b);
    for (n, (a, b)) in kept().enumerate() {
        let room = if b == end { new_len - (a - old) } else { b - a };
        // SAFETY: as above.
        if unsafe { remap(a, b - a, room, flags, to + (a - old)) }.is_some() {
            continue;
        }
        for (a, b) in kept().take(n) {
            let back = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
            // SAFETY: where it came from, which is empty.
            if unsafe { remap(to + (a - old), b - a, b - a, back, a) }.is_none() {
                proc::die(
                    "terrace: mremap of memory in several parts could not be finished nor undone \
                     (vm.max_map_count?); ending the program rather than losing its memory",
                );
            }
        }
        return false;
    }
    true
}

/// # Safety
/// As for `mremap`.
unsafe fn remap(old: u64, old_len: u64, new_len: u64, flags: i32, new: u64) -> Option<u64> {
    // SAFETY: the caller's promise.
    let at = unsafe {
        let arguments = [old as _, old_len as _, new_len as _, flags.into(), new as _];
        clones::to_kernel(libc::SYS_mremap, arguments)
    };
    (at != -1).then_some(at as u64)
}

/// Address space for all parts, at `at` if that is given.
///
/// # Safety
/// Nothing that is needed is at `at`.
unsafe fn reserve(at: Option<u64>, len: u64) -> Option<u64> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let flags = flags | if at.is_some() { libc::MAP_FIXED } else { 0 };
    let at = at.unwrap_or(0) as *mut libc::c_void;
    // SAFETY: the caller's promise.
    let p = unsafe { libc::mmap(at, len as usize, libc::PROT_NONE, flags, -1, 0) };
    (p != libc::MAP_FAILED).then_some(p as u64)
}

/// # Safety
/// Nothing that is needed is there.
unsafe fn unmap(at: u64, len: u64) -> bool {
    // SAFETY: the caller's promise.
    unsafe { libc::munmap(at as *mut libc::c_void, len as usize) == 0 }
}

#[cfg(test)]
mod tests {
    use super::super::apart;
    use super::*;

    const PAGE: u64 = 4096;

    /// Pages filled with their number, every second run of `every` of them with advice of its own,
    /// so that the kernel does not join them.
    fn split(pages: u64, every: u64) -> u64 {
        let p = apart(pages * PAGE) as *mut u8;
        // SAFETY: a fresh mapping, and advice on parts of it.
        unsafe {
            for n in 0..pages {
                p.add((n * PAGE) as usize).write(n as u8 + 1);
            }
            for n in (0..pages).step_by(2 * every as usize) {
                let at = p.add((n * PAGE) as usize);
                libc::madvise(at.cast(), (every * PAGE) as usize, libc::MADV_DONTDUMP);
            }
            p as u64
        }
    }

    fn byte(at: u64) -> u8 {
        // SAFETY: a mapped page of this test.
        unsafe { (at as *const u8).read() }
    }

    fn is_mapped(at: u64) -> bool {
        let mut seen = false;
        proc::each_mapping(|line| {
            seen |= proc::AnyMapping::parse(line).is_some_and(|m| (m.start..m.end).contains(&at));
        });
        seen
    }

    fn ask(old: u64, pages: u64, new_pages: u64, flags: i32, new: u64) -> Option<u64> {
        let is_fixed = flags & libc::MREMAP_FIXED != 0;
        let new = if is_fixed { new } else { 0x1234_5678_9abc };
        // SAFETY: memory of this test alone.
        unsafe { by_parts(old, pages * PAGE, new_pages * PAGE, flags, new) }
    }

    #[test]
    fn the_kernel_refuses_what_is_done_by_parts() {
        let old = split(12, 2);
        let may = libc::MREMAP_MAYMOVE;
        // SAFETY: memory of this test alone.
        let refused = unsafe { remap(old, 12 * PAGE, 20 * PAGE, may, 0) };
        assert_eq!(refused, None, "the test splits nothing");
        let new = ask(old, 12, 20, may, 0).expect("by parts");
        assert!((0..12).all(|n| byte(new + n * PAGE) == n as u8 + 1));
        assert!((12..20).all(|n| byte(new + n * PAGE) == 0));
        assert!(new == old || !is_mapped(old));
    }

    #[test]
    fn a_range_shrinks_where_it_is_and_elsewhere() {
        let old = split(12, 2);
        assert_eq!(ask(old, 12, 7, 0, 0), Some(old));
        assert!(byte(old + 6 * PAGE) == 7 && !is_mapped(old + 7 * PAGE));
        // SAFETY: a reservation of this test's own.
        let to = unsafe { reserve(None, 16 * PAGE) }.expect("room");
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        assert_eq!(ask(old, 7, 3, flags, to), Some(to));
        assert!((0..3).all(|n| byte(to + n * PAGE) == n as u8 + 1));
        assert!(!is_mapped(old) && !is_mapped(old + 6 * PAGE));
    }

    #[test]
    fn the_end_may_be_gone_before_the_kernel_refuses_the_rest() {
        let old = split(12, 2);
        // SAFETY: memory of this test alone; a reservation of its own.
        let to = unsafe {
            unmap(old + 7 * PAGE, 5 * PAGE);
            reserve(None, 16 * PAGE)
        };
        let (to, flags) = (to.expect("room"), libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED);
        assert_eq!(ask(old, 12, 7, flags, to), Some(to));
        assert!((0..7).all(|n| byte(to + n * PAGE) == n as u8 + 1));
        assert_eq!(ask(old, 12, 9, flags, to), None, "not all that is wanted is there");
    }

    #[test]
    fn what_is_left_behind_stays_mapped_and_empty() {
        let old = split(8, 2);
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_DONTUNMAP;
        let new = ask(old, 8, 8, flags, 0).expect("by parts");
        assert!((0..8).all(|n| byte(new + n * PAGE) == n as u8 + 1));
        assert!((0..8).all(|n| byte(old + n * PAGE) == 0));
    }

    #[test]
    fn gaps_files_and_other_permissions_are_not_touched() {
        let old = split(12, 2);
        // SAFETY: memory of this test alone.
        unsafe { libc::mprotect((old + 4 * PAGE) as *mut libc::c_void, 4096, libc::PROT_READ) };
        assert_eq!(ask(old, 12, 20, libc::MREMAP_MAYMOVE, 0), None);
        // SAFETY: as above.
        unsafe { unmap(old + 4 * PAGE, PAGE) };
        assert_eq!(ask(old, 12, 20, libc::MREMAP_MAYMOVE, 0), None);
        assert!((0..12).filter(|&n| n != 4).all(|n| byte(old + n * PAGE) == n as u8 + 1));
        assert_eq!(ask(old + 1, 3, 4, libc::MREMAP_MAYMOVE, 0), None);
        assert_eq!(ask(0, 3, 4, libc::MREMAP_MAYMOVE, 0), None);
    }
}
