//! Stops the program's threads, and takes pages out of it while they stand still: for kernels
//! without `UFFDIO_MOVE`.
//!
//! # Why threads must stand still
//!
//! `UFFDIO_MOVE` is refused while a change of the address space is unread. `madvise` is not: what
//! it drops may be of a mapping that came to the same addresses a moment ago. So no thread of the
//! program may be in a system call, or begin one, between the last event that was read and the end
//! of the drop. A process of its own, the *stopper*, holds them by ptrace meanwhile. It shares our
//! memory (and descriptors) and is made for one taking at a time: it has the program's credentials
//! of that moment, and the two things that must end together, the stop and the right to drop, are
//! one process's. What it does is short of everything that could wait for a thread that it holds:
//! no lock, no heap, no libc, no thread-local storage, only system calls of its own.
//!
//! # Why no byte is lost
//!
//! For pages that are there and that nobody else maps, in this order:
//!
//! 1. `vmsplice`: a pipe of ours holds each page, so that the kernel cannot drop it;
//! 2. `MADV_FREE`: from now on the kernel counts it as given up *unless it is written*. (The call
//!    goes on when the pager has read the kernel's message about it, and the pager sees by
//!    [`Stopper::expects`] that this is not the program's doing.)
//! 3. `read` of the pipe: its bytes go to their slot. What a device or another process wrote before
//!    that is in the copy; what they write after it was given up makes the page dirty;
//! 4. `MADV_PAGEOUT`: the kernel looks at the page at once, and drops it only if it is clean and
//!    nobody holds it: one that is pinned, or was written, stays;
//! 5. a page that stayed is readied for writing (`MADV_POPULATE_WRITE`), which makes it dirty: it
//!    is not given up any more.
//!
//! If the stopper is killed from outside before 2 or after 5, nothing has happened. In between the
//! program is ended (`proc::die`), because pages might vanish later.

use super::sync::Mutex;
use super::{memory, proc, thread};
use std::cell::UnsafeCell;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::PoisonError;
use terrace_core::state::{PAGE_BYTES, REGION_BYTES};

/// Pages taken in one stop, at most: more would be a longer stop.
pub const PAGES_MAX: usize = 128;
/// Threads of a program that is stopped, at most.
const THREADS_MAX: usize = 4096;
/// How long threads may take to stand still, and how long they stand at most before anything was
/// dropped, and after: nanoseconds.
const STOPPING_NS_MAX: u64 = 20_000_000;
const CHOOSING_NS_MAX: u64 = 20_000_000;
const SETTLING_NS_MAX: u64 = 20_000_000;
/// How often a stopper is looked after, and for how long in between, nanoseconds. Looks are
/// counted, and not time, which may pass for the whole process at once (SIGSTOP).
const LOOK_EVERY_NS: u64 = 1_000_000;
/// A stopper that is not done after so many has met a fault that nobody serves.
const WORKING_LOOKS: usize = 1000;
/// The same where pages have been given up: the program is ended.
const GIVEN_UP_LOOKS: usize = 30_000;
/// While it stops the threads: one that fails at it lets them go before it says so.
const STOPPING_LOOKS: usize = 3000;
/// How often it is looked after while it lets the threads go, every 10 us or more.
const LEAVING_LOOKS: usize = 100_000;
/// After a stop that failed there is none for so long, twice as long each time.
const REST_NS_MIN: u64 = 5_000_000;
const REST_NS_MAX: u64 = 2_000_000_000;

/// A page and where its bytes go: a slot in the runtime's own memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Pair {
    /// Address in the program.
    pub home: u64,
    /// Address of the slot.
    pub slot: u64,
}

/// What a stop has cost.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stood {
    /// For how long the threads stood still, nanoseconds.
    pub ns: u64,
    /// How many they were.
    pub threads: usize,
}

/// Why there was none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NotStopped {
    /// The kernel refused, with this errno: a debugger, no right to trace, no more processes.
    Refused(i32),
    /// Some thread did not stand still in time: in a long system call, or without a CPU.
    TooLong,
    /// The last one failed just now.
    Resting,
}

/// Where a stop has got to. The stopper and the thread that made it hand it to one another.
mod phase {
    /// The stopper waits to be told to begin.
    pub const MADE: u32 = 0;
    pub const STOPPING: u32 = 1;
    /// All stand still; pages may be chosen.
    pub const STANDING: u32 = 2;
    /// They were chosen.
    pub const TAKING: u32 = 3;
    /// Pages have been given up that are neither gone nor dirty again.
    pub const GIVEN_UP: u32 = 4;
    /// Done; what became of them may be looked at.
    pub const TAKEN: u32 = 5;
    /// The threads may go.
    pub const OVER: u32 = 6;
    /// It took too long, and the stopper let the threads go.
    pub const LEFT: u32 = 7;
    /// They cannot be stopped; the reason is in `errno`.
    pub const FAILED: u32 = 8;
}

#[derive(Clone, Copy, Default)]
struct Held {
    tid: i32,
    /// It was told to stand still.
    is_told: bool,
    /// It stands still.
    is_still: bool,
    is_gone: bool,
    /// A signal that it was about to take.
    signal: i32,
}

/// What the stopper and the thread that made it share.
struct Shared {
    phase: AtomicU32,
    errno: AtomicU32,
    threads: AtomicU64,
    pid: i32,
    tasks: RawFd,
    /// Of a thread that lives, and of the main one.
    status: RawFd,
    main_status: RawFd,
    pagemap: RawFd,
    pipe: [RawFd; 2],
    scratch: u64,
    /// Only the stopper's.
    held: UnsafeCell<[Held; THREADS_MAX]>,
    count: UnsafeCell<usize>,
    /// Only the stopper's, too, and the next one's.
    waits: UnsafeCell<restart::Waits>,
    /// Written before `TAKING` by the thread that made the stopper, read after it by the stopper.
    pairs: UnsafeCell<[Pair; PAGES_MAX]>,
    pairs_len: UnsafeCell<usize>,
    /// Ranges that are being given up, first byte and one past the last, of which the kernel's
    /// message has yet to be handled.
    given_up: [(AtomicU64, AtomicU64); PAGES_MAX],
}

// SAFETY: who may use the cells follows from `phase`, as written at each of them.
unsafe impl Sync for Shared {}
// SAFETY: no reference to a thread's own data.
unsafe impl Send for Shared {}

/// Takes pages while the program stands still.
pub struct Stopper {
    shared: &'static Shared,
    stack_top: u64,
    capacity: usize,
    is_restricted: bool,
    /// One stop at a time. When there may be another, and how long the rest was, nanoseconds.
    rest: Mutex<(u64, u64)>,
}

impl std::fmt::Debug for Stopper {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Stopper").field("capacity", &self.capacity).finish_non_exhaustive()
    }
}

const NO_DESCRIPTORS: &str = "it may not open the descriptors that an older kernel takes";
const NO_ROOM: &str = memory::NO_ROOM;
/// What is said where the kernel's way to drop pages cannot be relied on.
const UNSOUND: &str = "the kernel has neither UFFDIO_MOVE (6.8) nor a MADV_FREE and MADV_PAGEOUT \
                       that leave pinned and written pages alone (5.18)";
/// What is said where threads cannot be stopped.
const UNTRACEABLE: &str = "the kernel has no UFFDIO_MOVE (6.8 or newer), and without it the \
                           program's threads are stopped by ptrace, which is not permitted here (a \
                           debugger, kernel.yama.ptrace_scope above 1, or a seccomp filter?)";

impl Stopper {
    /// Opens what it takes and tries it, from a thread that lives as long as stops are made. The
    /// error is a line for a person.
    pub fn new() -> Result<Stopper, &'static str> {
        if cfg!(not(target_arch = "x86_64")) {
            return Err("the kernel has no UFFDIO_MOVE (6.8 or newer is needed)");
        }
        let pipe = open_pipe().ok_or(NO_DESCRIPTORS)?;
        let paths = [
            c"/proc/self/task",
            c"/proc/thread-self/status",
            c"/proc/self/status",
            c"/proc/self/pagemap",
        ];
        let [tasks, status, main_status, pagemap] = paths.map(open_raised);
        let room = memory::carve(REGION_BYTES).ok_or(NO_ROOM)?;
        let shared: &'static Shared = Box::leak(Box::new(Shared {
            phase: AtomicU32::new(phase::OVER),
            errno: AtomicU32::new(0),
            threads: AtomicU64::new(0),
            pid: std::process::id() as i32,
            tasks: tasks.ok_or(NO_DESCRIPTORS)?,
            status: status.ok_or(NO_DESCRIPTORS)?,
            main_status: main_status.ok_or(NO_DESCRIPTORS)?,
            pagemap: pagemap.ok_or(NO_DESCRIPTORS)?,
            pipe,
            scratch: room,
            held: UnsafeCell::new([Held::default(); THREADS_MAX]),
            count: UnsafeCell::new(0),
            waits: UnsafeCell::new(restart::no_waits()),
            pairs: UnsafeCell::new([Pair::default(); PAGES_MAX]),
            pairs_len: UnsafeCell::new(0),
            given_up: [const { (AtomicU64::new(0), AtomicU64::new(0)) }; PAGES_MAX],
        }));
        memory::touch_for_write(room);
        // SAFETY: asks for the size of our pipe.
        let bytes = unsafe { libc::fcntl(pipe[1], libc::F_GETPIPE_SZ) };
        let capacity = (bytes.max(0) as usize / PAGE_BYTES).min(PAGES_MAX);
        if capacity == 0 || !leaves_alone_what_is_in_use(pipe) {
            return Err(UNSOUND);
        }
        let stopper = Stopper {
            shared,
            stack_top: room + REGION_BYTES,
            capacity,
            is_restricted: proc::is_tracing_restricted(),
            rest: Mutex::new((0, 0)),
        };
        match stopper.take(Vec::new, || ()) {
            Err(NotStopped::Refused(_)) => Err(UNTRACEABLE),
            // (A busy machine: it is tried again when there is something to take.)
            _ => Ok(stopper),
        }
    }

    /// Pages that one stop takes at most.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Whether pages are being taken, or about to be.
    pub fn is_taking(&self) -> bool {
        let now = self.shared.phase.load(Ordering::Acquire);
        matches!(now, phase::STANDING | phase::TAKING | phase::GIVEN_UP)
    }

    /// Whether a message of the kernel's, that the content of a range is being dropped, may be of
    /// the stopper's own doing, and has not been noted yet.
    pub fn expects(&self, start: u64, end: u64) -> bool {
        self.given_up(start, end).is_some()
    }

    /// Notes that message. (Where mappings meet there are several for one range, in order.)
    pub fn note_given_up(&self, start: u64, end: u64) {
        if let Some(range) = self.given_up(start, end) {
            range.store(end, Ordering::Relaxed);
        }
    }

    fn given_up(&self, start: u64, end: u64) -> Option<&AtomicU64> {
        let is_it = |(a, b): &&(AtomicU64, AtomicU64)| {
            a.load(Ordering::Relaxed) == start && end <= b.load(Ordering::Acquire)
        };
        self.shared.given_up.iter().find(is_it).map(|(a, _)| a)
    }

    /// Stops the program's threads; has `choose` name pages, no more than [`Self::capacity`]; takes
    /// those of them that can be taken, so that their bytes are in their slots and nothing at
    /// home; has `settle` look which; and lets the threads go. What could not be taken is at home,
    /// and its slot may have a copy. In rare cases the threads go before `settle` is called, or
    /// before `choose`, and then nothing was taken.
    ///
    /// Neither is called if there was no stop, and `settle` is not if nothing was chosen.
    pub fn take(
        &self,
        choose: impl FnOnce() -> Vec<Pair>,
        settle: impl FnOnce(),
    ) -> Result<Stood, NotStopped> {
        let mut rest = self.rest.lock().unwrap_or_else(PoisonError::into_inner);
        if thread::now_ns() < rest.0 {
            return Err(NotStopped::Resting);
        }
        let began_ns = thread::now_ns();
        let result = self.stop_and_take(choose, settle);
        rest.1 = match result {
            Ok(_) => 0,
            Err(_) => (rest.1 * 2).clamp(REST_NS_MIN, REST_NS_MAX),
        };
        rest.0 = thread::now_ns() + rest.1;
        result.map(|threads| Stood { ns: thread::now_ns() - began_ns, threads })
    }

    fn stop_and_take(
        &self,
        choose: impl FnOnce() -> Vec<Pair>,
        settle: impl FnOnce(),
    ) -> Result<usize, NotStopped> {
        let s = self.shared;
        for (start, end) in &s.given_up {
            start.store(0, Ordering::Relaxed);
            end.store(0, Ordering::Relaxed);
        }
        self.empty_pipe();
        s.phase.store(phase::MADE, Ordering::Release);
        // SAFETY: `stopper` never returns and touches nothing but `s` and the stack it is given,
        // which nobody else uses: the last stopper was reaped before the lock was let go of.
        let pid = unsafe { clone_sharing(self.stack_top, stopper, s) };
        if pid < 0 {
            return Err(NotStopped::Refused(-pid as i32));
        }
        let child = Child { pid: pid as i32, shared: s };
        if self.is_restricted {
            proc::allow_tracing_by(child.pid);
        }
        s.hand_over(phase::MADE, phase::STOPPING);
        let outcome = match child.await_change(phase::STOPPING, STOPPING_LOOKS) {
            Some(phase::STANDING) => {
                let threads = s.threads.load(Ordering::Relaxed) as usize;
                let pairs = choose();
                if !pairs.is_empty() {
                    child.take(&pairs);
                    settle();
                }
                Ok(threads)
            }
            Some(phase::FAILED) => match s.errno.load(Ordering::Relaxed) as i32 {
                libc::ETIMEDOUT => Err(NotStopped::TooLong),
                errno => Err(NotStopped::Refused(errno)),
            },
            _ => Err(NotStopped::TooLong),
        };
        child.end();
        if self.is_restricted {
            proc::allow_tracing_by(0);
        }
        outcome
    }

    /// Takes out of the pipe what a stopper left there that was killed: the next one would read it
    /// for pages of its own.
    fn empty_pipe(&self) {
        let (read, scratch) = (self.shared.pipe[0] as u64, self.shared.scratch);
        let args = [read, scratch, PAGE_BYTES as u64, 0, 0, 0];
        while raw::call(libc::SYS_read, args) > 0 {}
    }
}

/// A stopper, seen from the thread that made it.
struct Child {
    pid: i32,
    shared: &'static Shared,
}

impl Child {
    fn take(&self, pairs: &[Pair]) {
        let s = self.shared;
        assert!(pairs.len() <= PAGES_MAX, "more pages than one stop takes");
        // SAFETY: the stopper reads both only after `TAKING`, which is stored below; the last one
        // is gone.
        unsafe {
            *s.pairs_len.get() = pairs.len();
            (&mut *s.pairs.get())[..pairs.len()].copy_from_slice(pairs);
        }
        // It may have left, or was killed: then nothing is taken.
        if !s.hand_over(phase::STANDING, phase::TAKING) {
            return;
        }
        self.await_change(phase::TAKING, WORKING_LOOKS);
        // In a fault that nobody serves, or killed, before anything was given up.
        if s.hand_over(phase::TAKING, phase::OVER) {
            return;
        }
        let is_stuck = self.await_change(phase::GIVEN_UP, GIVEN_UP_LOOKS).is_none();
        if is_stuck && s.phase.load(Ordering::Acquire) == phase::GIVEN_UP {
            proc::die(
                "terrace: the process that held the program's threads was killed, or got stuck, \
                 while it took pages out; ending the program rather than handing it wrong bytes",
            );
        }
    }

    /// Waits until the phase is another one, and returns that; `None` if the stopper is gone before
    /// or it takes too long.
    fn await_change(&self, from: u32, looks: usize) -> Option<u32> {
        let other = || Some(self.shared.phase.load(Ordering::Acquire)).filter(|&now| now != from);
        for _ in 0..looks {
            if let Some(now) = other() {
                return Some(now);
            }
            wait_on(&self.shared.phase, from, LOOK_EVERY_NS);
            // (What it did before it ended counts.)
            if self.is_over() {
                return other();
            }
        }
        None
    }

    /// Whether it has ended, by itself or not. It stays to be reaped.
    fn is_over(&self) -> bool {
        // SAFETY: siginfo_t is plain data, which the kernel fills.
        unsafe {
            let mut info: libc::siginfo_t = std::mem::zeroed();
            let how = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT | libc::__WALL;
            let pid = self.pid as libc::id_t;
            libc::waitid(libc::P_PID, pid, &mut info, how) != 0 || info.si_pid() == self.pid
        }
    }

    /// Lets the threads go. The stopper is gone afterwards, if need be by force.
    fn end(&self) {
        let s = self.shared;
        let before = s.phase.swap(phase::OVER, Ordering::AcqRel);
        wake(&s.phase);
        // Elsewhere it has been waited for already. Here it lets the threads go, or is about to,
        // and those that it has not come to would have their waits ended by its end (`restart.rs`).
        let is_leaving =
            matches!(before, phase::STANDING | phase::TAKEN | phase::LEFT | phase::FAILED);
        let mut looks = if is_leaving { LEAVING_LOOKS } else { 0 };
        while !self.is_over() {
            if looks == 0 {
                // SAFETY: a signal to a child of ours that has not been reaped.
                unsafe { libc::kill(self.pid, libc::SIGKILL) };
            }
            looks = looks.saturating_sub(1);
            thread::sleep_us(10);
        }
        // SAFETY: reaps our child; the program may have done so (`__WALL`).
        unsafe { libc::waitpid(self.pid, std::ptr::null_mut(), libc::__WALL) };
    }
}

impl Shared {
    fn hand_over(&self, from: u32, to: u32) -> bool {
        let order = (Ordering::AcqRel, Ordering::Acquire);
        let is_ours = self.phase.compare_exchange(from, to, order.0, order.1).is_ok();
        wake(&self.phase);
        is_ours
    }
}

fn open_raised(path: &std::ffi::CStr) -> Option<RawFd> {
    // SAFETY: the path ends; what is opened is closed or kept for good.
    unsafe {
        let fd = libc::open(path.as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC);
        keep_raised(fd)
    }
}

/// Moves a descriptor to where the program does not close it.
fn keep_raised(fd: RawFd) -> Option<RawFd> {
    let raised = if fd < 0 { None } else { proc::raise_fd(fd) };
    if let Some(raised) = raised {
        crate::interpose::protect_fd(raised);
    }
    // SAFETY: our own descriptor, closed once; an invalid one is refused.
    unsafe { libc::syscall(libc::SYS_close, fd) };
    raised
}

fn open_pipe() -> Option<[RawFd; 2]> {
    let mut ends = [-1; 2];
    // SAFETY: the kernel writes two descriptors; the size is a request that may be refused.
    unsafe {
        if libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC | libc::O_NONBLOCK) != 0 {
            return None;
        }
        libc::fcntl(ends[1], libc::F_SETPIPE_SZ, PAGES_MAX * PAGE_BYTES);
    }
    let [read, write] = ends.map(keep_raised);
    Some([read?, write?])
}

/// Whether this kernel drops what was given up, and neither what was written since nor what
/// somebody holds (which those before 5.18 did).
fn leaves_alone_what_is_in_use(pipe: [RawFd; 2]) -> bool {
    // Fresh pages are out of the kernel's reach for a while, if the thread goes to another CPU.
    (0..TRIAL_TRIES).find_map(|_| try_to_drop(pipe)).unwrap_or(false)
}

const TRIAL_TRIES: usize = 100;

/// `None` if nothing was dropped, which says nothing.
fn try_to_drop(pipe: [RawFd; 2]) -> Option<bool> {
    const PAGES: usize = 64;
    const WRITTEN: usize = 2;
    const HELD: usize = 5;
    let len = PAGES * PAGE_BYTES;
    let rw = libc::PROT_READ | libc::PROT_WRITE;
    let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a mapping of our own, made and unmapped here, and a pipe that is empty before and
    // after.
    unsafe {
        let p = libc::mmap(std::ptr::null_mut(), len, rw, kind, -1, 0);
        if p == libc::MAP_FAILED {
            return Some(false);
        }
        libc::madvise(p, len, libc::MADV_NOHUGEPAGE);
        let byte = |i: usize| p.cast::<u8>().add(i * PAGE_BYTES);
        (0..PAGES).for_each(|i| byte(i).write_volatile(1 + i as u8));
        let iov = libc::iovec { iov_base: byte(HELD).cast(), iov_len: PAGE_BYTES };
        let is_held = libc::vmsplice(pipe[1], &iov, 1, 0) == PAGE_BYTES as isize;
        let is_given_up = libc::madvise(p, len, libc::MADV_FREE) == 0;
        byte(WRITTEN).write_volatile(100);
        let is_looked_at = libc::madvise(p, len, libc::MADV_PAGEOUT) == 0;
        let mut held = [0u8; PAGE_BYTES];
        libc::read(pipe[0], held.as_mut_ptr().cast(), PAGE_BYTES);
        let is_kept = byte(WRITTEN).read_volatile() == 100
            && byte(HELD).read_volatile() == 1 + HELD as u8
            && held[0] == 1 + HELD as u8;
        let dropped = (0..PAGES).filter(|&i| byte(i).read_volatile() == 0).count();
        libc::munmap(p, len);
        let is_possible = is_held && is_given_up && is_looked_at;
        match is_possible && is_kept {
            true => (dropped > PAGES / 2).then_some(true),
            false => Some(false),
        }
    }
}

fn wait_on(word: &AtomicU32, is: u32, ns: u64) {
    let time = libc::timespec { tv_sec: 0, tv_nsec: ns as libc::c_long };
    let (op, no) = (libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG, 0);
    let time = std::ptr::from_ref(&time) as u64;
    raw::call(libc::SYS_futex, [word.as_ptr() as u64, op as u64, is.into(), time, no, no]);
}

fn wake(word: &AtomicU32) {
    let op = libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG;
    raw::call(libc::SYS_futex, [word.as_ptr() as u64, op as u64, i32::MAX as u64, 0, 0, 0]);
}

mod raw;
mod restart;
mod stopper;
use raw::clone_sharing;
use stopper::stopper;
#[cfg(target_arch = "x86_64")]
mod transfers;
/// There are no stops.
#[cfg(not(target_arch = "x86_64"))]
mod transfers {
    pub fn is_part_done(_tid: i32) -> bool {
        false
    }

    pub fn go_on(_tid: i32) {}
}

#[cfg(test)]
mod tests;
#[cfg(all(test, target_arch = "x86_64"))]
mod transfers_tests;
