//! The stopper: a process that shares our memory, for the time of one taking. See the head of
//! `stop.rs`.
//!
//! The threads it holds may hold any lock of the program's, of libc's or of the runtime's. So there
//! is nothing here but system calls of its own (`raw`), memory that is there already, and code that
//! cannot panic.

use super::{
    phase, raw, restart, transfers, wait_on, Held, Pair, Shared, CHOOSING_NS_MAX, PAGES_MAX,
    SETTLING_NS_MAX, STOPPING_NS_MAX, THREADS_MAX,
};
use crate::sys::thread;
use std::sync::atomic::Ordering;
use terrace_core::state::PAGE_BYTES;

/// As the pager's.
const NICE: i64 = -10;
const PTRACE_DETACH: u64 = 17;
const PTRACE_SEIZE: u64 = 0x4206;
const PTRACE_INTERRUPT: u64 = 0x4207;
const PTRACE_EVENT_STOP: i32 = 128;
/// How often a thread is looked after before the CPU is left to others for longer.
const QUICK_LOOKS: u32 = 20;
const LOOK_EVERY_NS: u64 = 20_000;
/// How long threads are waited for that were interrupted in vain: less than whoever made us waits
/// for us. (For one without a CPU. One in `vfork` has no use for it: its wait is not ended.)
const LETTING_GO_NS_MAX: u64 = 900_000_000;
/// Tries to make a page dirty again that stayed, and how many of them in vain say that it is in
/// swap.
const DIRTY_TRIES: u32 = 1000;
const SWAP_TRIES: u32 = 50;
/// How often all are looked at again for a thread that may be about to end.
const ENDING_ROUNDS: u32 = 50;

const PRESENT: u64 = 1 << 63;
const SWAPPED: u64 = 1 << 62;
const OF_FILE: u64 = 1 << 61;
const MAPPED_ONCE: u64 = 1 << 56;
const PAGE: u64 = PAGE_BYTES as u64;

/// Where the stopper begins, and ends its process.
pub extern "C" fn stopper(s: &'static Shared) -> ! {
    let kill = libc::SIGKILL as u64;
    raw::call(libc::SYS_prctl, [libc::PR_SET_PDEATHSIG as u64, kill, 0, 0, 0, 0]);
    // Those who wait for us should wait for nobody else. Refused without the privilege.
    let nice = [libc::PRIO_PROCESS as u64, 0, NICE as u64, 0, 0, 0];
    raw::call(libc::SYS_setpriority, nice);
    // Whoever made us may be gone already, without that signal.
    if raw::call(libc::SYS_getppid, [0; 6]) == i64::from(s.pid) {
        // SAFETY: this is the stopper, and there is one.
        unsafe { serve(s) };
    }
    loop {
        raw::call(libc::SYS_exit_group, [0; 6]);
    }
}

/// # Safety
/// Only the stopper, once.
unsafe fn serve(s: &Shared) {
    if wait_while(s, phase::MADE, CHOOSING_NS_MAX) != phase::STOPPING {
        return;
    }
    // SAFETY: `held` and `count` are the stopper's; the last one is gone.
    let (held, count) = unsafe { (&mut *s.held.get(), &mut *s.count.get()) };
    *count = 0;
    let errno = stop_all(s, held, count);
    if errno == 0 {
        s.threads.store(*count as u64, Ordering::Relaxed);
        if s.hand_over(phase::STOPPING, phase::STANDING) {
            wait_while(s, phase::STANDING, CHOOSING_NS_MAX);
            if !s.hand_over(phase::STANDING, phase::LEFT)
                && s.phase.load(Ordering::Acquire) == phase::TAKING
            {
                // SAFETY: after `TAKING` they are read only, until the stopper is gone.
                let pairs = unsafe { (&*s.pairs.get()).get(..*s.pairs_len.get()) };
                take(s, pairs.unwrap_or(&[]));
                wait_while(s, phase::TAKEN, SETTLING_NS_MAX);
            }
        }
    }
    // SAFETY: the stopper's, as `held`.
    let_go(held, *count, unsafe { &mut *s.waits.get() });
    if errno != 0 {
        s.errno.store(errno as u32, Ordering::Relaxed);
        s.hand_over(phase::STOPPING, phase::FAILED);
    }
}

fn wait_while(s: &Shared, is: u32, limit_ns: u64) -> u32 {
    let until = now_ns() + limit_ns;
    loop {
        let now = s.phase.load(Ordering::Acquire);
        let left = until.saturating_sub(now_ns());
        if now != is || left == 0 {
            return now;
        }
        wait_on(&s.phase, is, left);
    }
}

pub(super) fn now_ns() -> u64 {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    let clock = libc::CLOCK_MONOTONIC as u64;
    raw::call(libc::SYS_clock_gettime, [clock, std::ptr::from_mut(&mut t) as u64, 0, 0, 0, 0]);
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

fn sleep_ns(ns: u64) {
    let t = libc::timespec { tv_sec: 0, tv_nsec: ns as libc::c_long };
    raw::call(libc::SYS_nanosleep, [std::ptr::from_ref(&t) as u64, 0, 0, 0, 0, 0]);
}

fn ptrace(what: u64, tid: i32, data: u64) -> i32 {
    ptrace_at(what, tid, 0, data)
}

pub(super) fn ptrace_at(what: u64, tid: i32, address: u64, data: u64) -> i32 {
    -(raw::call(libc::SYS_ptrace, [what, tid as u64, address, data, 0, 0]) as i32)
}

// ---- stopping ------------------------------------------------------------------------------

/// Stops all threads of the program and none of ours. 0, or an errno.
fn stop_all(s: &Shared, held: &mut [Held; THREADS_MAX], count: &mut usize) -> i32 {
    let until = now_ns() + STOPPING_NS_MAX;
    let mut ending_rounds = 0;
    loop {
        let before = *count;
        // A thread that writes a core dump would break it off (before Linux 6.6).
        if is_dumping(s) {
            return libc::EBUSY;
        }
        let found = hold_new_ones(s, held, count);
        // In any case, so that in the next round all those of this one stand still already.
        let errno = match found {
            Found::Error(errno) => errno,
            _ => await_all(held, *count, until),
        };
        if errno != 0 {
            return errno;
        }
        match found {
            Found::SomeEnding if ending_rounds == ENDING_ROUNDS => return libc::EPERM,
            Found::SomeEnding => {
                ending_rounds += 1;
                sleep_ns(LOOK_EVERY_NS);
            }
            _ if *count == before => return 0,
            // A thread that ran on may have made another before it stood still.
            _ => {}
        }
    }
}

/// What a look at the program's threads has found.
enum Found {
    All,
    /// One cannot be held. It may be one that has ended and is still listed.
    SomeEnding,
    Error(i32),
}

/// Takes hold of every thread that is not held yet, and tells it to stand still at once: one that
/// is traced and runs on would not get the rights of a set-user-ID program that it executes.
fn hold_new_ones(s: &Shared, held: &mut [Held; THREADS_MAX], count: &mut usize) -> Found {
    raw::call(libc::SYS_lseek, [s.tasks as u64, 0, 0, 0, 0, 0]);
    let mut entries = [0u64; 512];
    let (place, room) = (entries.as_mut_ptr() as u64, size_of_val(&entries) as u64);
    let mut own = 0;
    let mut found = Found::All;
    loop {
        let n = raw::call(libc::SYS_getdents64, [s.tasks as u64, place, room, 0, 0, 0]);
        if n == 0 {
            // Ours must be among them, or these are the threads of another process: the file
            // system may be of another space of process ids.
            return if own == thread::own_count() { found } else { Found::Error(libc::ESRCH) };
        }
        if n < 0 {
            return Found::Error(-n as i32);
        }
        let (mut at, end) = (0, n as usize);
        while at + 19 < end {
            // inode, offset (8 bytes each), length of the record (2), type (1), name.
            let byte = |k: usize| byte_of(&entries, at + k);
            let len = usize::from(byte(16)) | usize::from(byte(17)) << 8;
            let mut tid = 0i32;
            let mut is_number = false;
            for k in 19..len.max(19) {
                match byte(k) {
                    digit @ b'0'..=b'9' => {
                        tid = tid.wrapping_mul(10).wrapping_add(i32::from(digit - b'0'));
                        is_number = true;
                    }
                    _ => break,
                }
            }
            at += len.max(19);
            if !is_number {
                continue;
            }
            if thread::is_own_tid(tid as u32) {
                own += 1;
                continue;
            }
            if held.iter().take(*count).any(|h| h.tid == tid) {
                continue;
            }
            match ptrace(PTRACE_SEIZE, tid, 0) {
                0 => {}
                libc::ESRCH => continue,
                // The kernel says the same of one that has ended and stays in the list, as the main
                // thread does while there are others.
                libc::EPERM if tid == s.pid && is_main_thread_dead(s) => continue,
                libc::EPERM => {
                    found = Found::SomeEnding;
                    continue;
                }
                errno => return Found::Error(errno),
            }
            let is_told = ptrace(PTRACE_INTERRUPT, tid, 0) == 0;
            let Some(place) = held.get_mut(*count) else { return Found::Error(libc::EAGAIN) };
            *place = Held { tid, is_told, is_gone: !is_told, ..Held::default() };
            *count += 1;
        }
    }
}

/// Whether the program is being dumped, by `/proc/self/status` of a thread that lives (the main one
/// may have ended). "Yes" if that cannot be known.
fn is_dumping(s: &Shared) -> bool {
    const NAME: &[u8] = b"\nCoreDumping:\t";
    let mut text = [0u8; 2048];
    // The list of groups, of any length, comes before it. What ends one part begins the next.
    let (mut kept, mut at) = (0, 0u64);
    loop {
        let (place, room) = (text.as_mut_ptr() as u64 + kept as u64, text.len() - kept);
        let n = raw::call(libc::SYS_pread64, [s.status as u64, place, room as u64, at, 0, 0]);
        if n <= 0 {
            return true;
        }
        at += n as u64;
        let part = text.get(..kept + n as usize).unwrap_or(&[]);
        let name = part.windows(NAME.len()).position(|line| line == NAME);
        if let Some(&flag) = name.and_then(|name| part.get(name + NAME.len())) {
            return flag != b'0';
        }
        let len = part.len();
        kept = len.min(NAME.len());
        text.copy_within(len - kept..len, 0);
    }
}

fn byte_of(words: &[u64; 512], at: usize) -> u8 {
    words.get(at / 8).map_or(0, |w| w.to_ne_bytes().get(at % 8).copied().unwrap_or(0))
}

/// Whether the main thread has ended, by its status. (A file that is open: another would take a
/// number of the program's.)
fn is_main_thread_dead(s: &Shared) -> bool {
    const NAME: &[u8] = b"\nState:\t";
    let mut text = [0u8; 256];
    let (place, room) = (text.as_mut_ptr() as u64, text.len() as u64);
    let n = raw::call(libc::SYS_pread64, [s.main_status as u64, place, room, 0, 0, 0]);
    let text = text.get(..n.max(0) as usize).unwrap_or(&[]);
    let at = text.windows(NAME.len()).position(|line| line == NAME);
    let state = at.and_then(|at| text.get(at + NAME.len()));
    matches!(state, Some(b'Z' | b'X' | b'x'))
}

/// Waits until all that were interrupted stand still.
fn await_all(held: &mut [Held; THREADS_MAX], count: usize, until_ns: u64) -> i32 {
    let mut looks = 0u32;
    for h in held.iter_mut().take(count) {
        while !h.is_still && !h.is_gone {
            look_at(h);
            looks += 1;
            if looks < QUICK_LOOKS {
                raw::call(libc::SYS_sched_yield, [0; 6]);
            } else if !h.is_still {
                sleep_ns(LOOK_EVERY_NS);
            }
            if now_ns() > until_ns {
                return libc::ETIMEDOUT;
            }
        }
    }
    0
}

/// Whether a thread that was interrupted stands still by now, or is gone.
fn look_at(h: &mut Held) {
    let mut status = 0i32;
    let place = std::ptr::from_mut(&mut status) as u64;
    let how = (libc::__WALL | libc::WNOHANG) as u64;
    let n = raw::call(libc::SYS_wait4, [h.tid as u64, place, how, 0, 0, 0]);
    if n == i64::from(h.tid) {
        h.is_gone = libc::WIFEXITED(status) || libc::WIFSIGNALED(status);
        h.is_still = !h.is_gone;
        // It was about to take a signal, which it must not lose.
        let is_delivery = h.is_still && status >> 16 != PTRACE_EVENT_STOP;
        h.signal = if is_delivery { libc::WSTOPSIG(status) } else { 0 };
    }
    h.is_gone |= n < 0;
}

/// Lets all threads go that stand still, and those that were interrupted when they come to: what
/// they wait in would be ended by the stop, also by one that was given up.
fn let_go(held: &mut [Held; THREADS_MAX], count: usize, waits: &mut restart::Waits) {
    let until = now_ns() + LETTING_GO_NS_MAX;
    // Those last for which we may have to wait: the pager may want a lock that others have.
    let mut may_wait = false;
    loop {
        let mut is_any_left = false;
        // (Who was not told is let go of by our end.)
        for h in held.iter_mut().take(count).filter(|h| h.is_told && !h.is_gone) {
            if !h.is_still {
                look_at(h);
            }
            if h.is_still && !h.is_gone {
                let is_part_done = transfers::is_part_done(h.tid);
                if is_part_done && !may_wait {
                    is_any_left = true;
                    continue;
                }
                restart::resume_wait(h.tid, waits);
                if is_part_done {
                    transfers::go_on(h.tid);
                }
                ptrace(PTRACE_DETACH, h.tid, h.signal as u64);
                h.is_gone = true;
            }
            is_any_left |= !h.is_gone;
        }
        if !is_any_left || now_ns() > until {
            return;
        }
        if may_wait {
            sleep_ns(LOOK_EVERY_NS);
        }
        may_wait = true;
    }
}

// ---- taking --------------------------------------------------------------------------------

/// Pages of the program that lie beside each other: places among the pairs.
#[derive(Clone, Copy, Default)]
struct Run {
    first: usize,
    len: usize,
}

/// Takes the pages. Afterwards each is either gone from home, with its bytes in its slot, or at
/// home and as if nothing had been.
fn take(s: &Shared, pairs: &[Pair]) {
    let mut runs = [Run::default(); PAGES_MAX];
    let found = find_runs(s, pairs, &mut runs);
    let mut held = [Run::default(); PAGES_MAX];
    let mut holding = 0;
    for run in runs.iter().take(found) {
        // Proves that it is one mapping, and one that may be written; nothing changes that while
        // the threads stand still. (A page that has gone since comes home by a fault.)
        if advise(pairs, *run, libc::MADV_POPULATE_WRITE) != 0 {
            continue;
        }
        // Refused where `MADV_FREE` would be (it is locked, say); and divides what is left of huge
        // pages, which while the pipe holds them cannot be done.
        if advise(pairs, *run, libc::MADV_COLD) != 0 {
            continue;
        }
        let Some(first) = pairs.get(run.first) else { continue };
        let len = run.len as u64 * PAGE;
        let iov = [first.home, len];
        let args = [s.pipe[1] as u64, iov.as_ptr() as u64, 1, 0, 0, 0];
        let in_pipe = raw::call(libc::SYS_vmsplice, args).max(0) as u64;
        if let Some(place) = held.get_mut(holding) {
            *place = Run { first: run.first, len: (in_pipe / PAGE) as usize };
            holding += 1;
        }
        if in_pipe != len {
            // No more room. (What is in the pipe is whole pages, because homes are.)
            break;
        }
    }
    if s.hand_over(phase::TAKING, phase::GIVEN_UP) {
        let held = held.get(..holding).unwrap_or(&[]);
        for (run, (start, end)) in held.iter().zip(&s.given_up) {
            let Some(first) = pairs.get(run.first).filter(|_| run.len > 0) else { continue };
            start.store(first.home, Ordering::Relaxed);
            end.store(first.home + run.len as u64 * PAGE, Ordering::Release);
            advise(pairs, *run, libc::MADV_FREE);
        }
        let mut is_settled = true;
        for run in held {
            for pair in pairs.iter().skip(run.first).take(run.len) {
                is_settled &= read_out(s, pair);
            }
        }
        for run in held {
            advise(pairs, *run, libc::MADV_PAGEOUT);
        }
        for run in held {
            for pair in pairs.iter().skip(run.first).take(run.len) {
                is_settled &= is_gone_or_dirty(s, pair);
            }
        }
        // Else whoever made us ends the program.
        if is_settled {
            s.hand_over(phase::GIVEN_UP, phase::TAKEN);
        }
        return;
    }
    // Too late: we are to go. What is in the pipe must not be there the next time.
    let left: usize = held.iter().take(holding).map(|run| run.len).sum();
    drain(s, left as u64 * PAGE);
}

/// The runs of pages that are there and that nobody else maps.
fn find_runs(s: &Shared, pairs: &[Pair], runs: &mut [Run; PAGES_MAX]) -> usize {
    let mut found = 0usize;
    let mut next_home = 0;
    for (i, pair) in pairs.iter().enumerate() {
        let wanted = PRESENT | MAPPED_ONCE;
        if entry(s, pair.home) & (wanted | OF_FILE) != wanted {
            next_home = 0;
            continue;
        }
        if pair.home == next_home {
            if let Some(run) = runs.get_mut(found.wrapping_sub(1)) {
                run.len += 1;
            }
        } else if let Some(run) = runs.get_mut(found) {
            *run = Run { first: i, len: 1 };
            found += 1;
        }
        next_home = pair.home + PAGE;
    }
    found
}

/// The entry of `/proc/self/pagemap`; "present" if it cannot be read.
fn entry(s: &Shared, page: u64) -> u64 {
    let mut entry = 0u64;
    let place = std::ptr::from_mut(&mut entry) as u64;
    let args = [s.pagemap as u64, place, 8, page / PAGE * 8, 0, 0];
    if raw::call(libc::SYS_pread64, args) == 8 {
        entry
    } else {
        PRESENT
    }
}

fn advise(pairs: &[Pair], run: Run, advice: libc::c_int) -> i64 {
    let Some(first) = pairs.get(run.first) else { return -1 };
    // The program's memory: `MADV_FREE` is argued for at the head of `stop.rs`, the others change
    // no byte.
    let len = run.len as u64 * PAGE;
    raw::call(libc::SYS_madvise, [first.home, len, advice as u64, 0, 0, 0])
}

/// Reads the next page of the pipe to its slot. Where that has no memory the page is to stay, and
/// is made dirty while the pipe still holds it; `false` if not even that can be done, and then the
/// pipe goes on holding it.
fn read_out(s: &Shared, pair: &Pair) -> bool {
    let n = raw::call(libc::SYS_read, [s.pipe[0] as u64, pair.slot, PAGE, 0, 0, 0]);
    if n == PAGE as i64 {
        return true;
    }
    make_dirty(pair) && {
        drain(s, PAGE - n.max(0) as u64);
        true
    }
}

/// Reads so many bytes of the pipe to nowhere.
fn drain(s: &Shared, bytes: u64) {
    let mut left = bytes;
    while left > 0 {
        let n = raw::call(libc::SYS_read, [s.pipe[0] as u64, s.scratch, left.min(PAGE), 0, 0, 0]);
        if n <= 0 {
            return;
        }
        left = left.saturating_sub(n as u64);
    }
}

fn make_dirty(pair: &Pair) -> bool {
    let one = [*pair];
    advise(&one, Run { first: 0, len: 1 }, libc::MADV_POPULATE_WRITE) == 0
}

/// Looks at a page that was given up. What stayed is made dirty, so that it stays for good.
fn is_gone_or_dirty(s: &Shared, pair: &Pair) -> bool {
    for tries in 0..DIRTY_TRIES {
        let now = entry(s, pair.home);
        // A page that the kernel moves elsewhere (compaction) looks as if it were in swap. It is
        // not, and comes back as one that may be dropped; this waits for it.
        if now & (PRESENT | SWAPPED) == 0 || make_dirty(pair) {
            return true;
        }
        // In swap is what was written, and it stays where there is no memory to bring it back.
        if now & PRESENT == 0 && tries >= SWAP_TRIES {
            return true;
        }
        sleep_ns(LOOK_EVERY_NS);
    }
    false
}
