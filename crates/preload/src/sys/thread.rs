//! The runtime's threads: on stacks of our own, with every signal blocked.
//!
//! A pthread's stack is ordinary private anonymous memory; one that the runtime itself stands on
//! must never be moved out, so it comes from memory of ours. glibc puts the thread's control
//! block, its thread-local storage and the rseq area at the top of the same stack.

use super::clones::to_kernel;
use super::sync::OnlyThread;
use super::{alone, credentials, files, memory, rseq};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Stack of one runtime thread. The deepest user is the mover's codecs (tens of KiB).
const STACK_BYTES: usize = 512 << 10;

/// What glibc puts on each stack for the libraries and the program, beyond what it always needs:
/// their thread-local storage. A few KiB mostly, and megabytes of a program that has its arrays
/// there.
static LOCAL_BYTES: AtomicU64 = AtomicU64::new(0);

/// Finds that out, while the process has one thread, because `dlsym` may allocate. The name of the
/// function is glibc's own business, and others have asked it since 2.15.
pub fn find_local_bytes() {
    // SAFETY: a lookup by name; what has this name in glibc is such a function, which only adds up
    // numbers of its own.
    let least = unsafe {
        let place = libc::dlsym(libc::RTLD_DEFAULT, c"__pthread_get_minstack".as_ptr());
        let least: Option<MinStackFn> = std::mem::transmute(place);
        least.map_or(0, |least| least(std::ptr::null()))
    };
    LOCAL_BYTES.store(least.next_multiple_of(4096) as u64, Ordering::Relaxed);
}

type MinStackFn = unsafe extern "C" fn(*const libc::pthread_attr_t) -> usize;

/// Bytes of one runtime thread's stack, with what is put there before the thread begins.
pub fn stack_bytes() -> u64 {
    STACK_BYTES as u64 + LOCAL_BYTES.load(Ordering::Relaxed)
}

/// Threads a runtime can have: agent, pager, trainer, rescuer, at most 8 movers and the loaders.
pub const THREADS_MAX: usize = 12 + crate::loader::LOADERS;

static STACKS: [AtomicU64; THREADS_MAX] = [const { AtomicU64::new(0) }; THREADS_MAX];

/// Kernel thread ids of our own threads, to leave them out of what we follow.
static OWN_TIDS: [AtomicU32; THREADS_MAX] = [const { AtomicU32::new(0) }; THREADS_MAX];

/// Address of glibc's count of threads, 0 where there is none.
///
/// A process ends when the last of its threads has returned, its main thread included (by
/// `pthread_exit`): the one that finds the count at 1 calls `exit`. Ours never return, and so must
/// not be counted, or the process would stay for good with nobody in it but us.
static COUNT: AtomicU64 = AtomicU64::new(0);

/// Finds that count, while the process has one thread, because `dlsym` may allocate. Its name is
/// glibc's own business, and has been the same since 2.3.
pub fn find_count() {
    // SAFETY: a lookup by name.
    let place = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"__nptl_nthreads".as_ptr()) };
    COUNT.store(place as u64, Ordering::Relaxed);
}

fn count() -> Option<&'static AtomicU32> {
    let place = COUNT.load(Ordering::Relaxed) as *const AtomicU32;
    // SAFETY: glibc's `unsigned int` of this name, which it only changes by atomic instructions
    // and, in a forked child with one thread, by a store. libc is never unloaded.
    unsafe { place.as_ref() }
}

/// A thread of ours was made, and counted.
fn uncount() {
    let was = count().map(|count| count.fetch_sub(1, Ordering::Relaxed));
    if was == Some(1) {
        // The program's last thread ended meanwhile and left it to this one.
        // SAFETY: what glibc does in its place.
        unsafe { libc::exit(0) };
    }
}

/// A thread of ours returns to glibc, which counts it off and must not find it the last one.
fn recount() {
    let Some(count) = count() else { return };
    // None left: the program's last thread is in `exit`, which a second one must not enter. Nor may
    // it wait here: a handler of that exit may wait for this thread.
    let more = |n: u32| Some(if n == 0 { 2 } else { n + 1 });
    let _ = count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
}

/// What each of our threads does first.
fn begin() {
    rseq::leave();
    let tid = gettid();
    for place in &OWN_TIDS {
        if place.compare_exchange(0, tid, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
            break;
        }
    }
}

/// What each of them does last.
fn end() {
    let is_apart = alone::is_told();
    let tid = gettid();
    for place in &OWN_TIDS {
        let _ = place.compare_exchange(tid, 0, Ordering::Relaxed, Ordering::Relaxed);
    }
    if is_apart {
        // SAFETY: ends the calling thread. Its stack stays, as every one of ours does; libc goes on
        // to have it in its list, with the id 0 that the kernel writes there, and passes it over.
        unsafe { libc::syscall(libc::SYS_exit, 0) };
    }
    recount();
}

/// In a forked child: they are its parent's. Their stacks are ordinary memory now.
pub fn forget(only: &OnlyThread) {
    alone::forget(only);
    STACKS.iter().for_each(|s| s.store(0, Ordering::Relaxed));
    OWN_TIDS.iter().for_each(|t| t.store(0, Ordering::Relaxed));
}

extern "C" fn trampoline(arg: *mut libc::c_void) -> *mut libc::c_void {
    // SAFETY: `spawn` made `arg` from exactly such a Box, and gives it to one thread only.
    let f = unsafe { Box::from_raw(arg.cast::<Box<dyn FnOnce() + Send>>()) };
    begin();
    f();
    end();
    std::ptr::null_mut()
}

extern "C" fn plain_trampoline(arg: *mut libc::c_void) -> *mut libc::c_void {
    // SAFETY: `spawn_plain` passes exactly such a function.
    let f = unsafe { std::mem::transmute::<*mut libc::c_void, fn()>(arg) };
    begin();
    f();
    end();
    std::ptr::null_mut()
}

/// Starts a thread named `name` (at most 15 bytes) that runs `f`. `false` if the system refuses.
pub fn spawn(name: &std::ffi::CStr, f: impl FnOnce() + Send + 'static) -> bool {
    let followed = credentials::followed();
    let f: Box<Box<dyn FnOnce() + Send>> = Box::new(Box::new(move || {
        credentials::begin(followed);
        f();
    }));
    let arg = Box::into_raw(f);
    let is_up = create(name, trampoline, arg.cast(), CREATE_TRIES);
    if !is_up {
        // SAFETY: made above, and given to nobody.
        drop(unsafe { Box::from_raw(arg) });
    }
    is_up
}

/// As [`spawn`], before there is a heap, and at once: somebody's `fork` waits for it.
pub fn spawn_plain(name: &std::ffi::CStr, f: fn()) -> bool {
    create(name, plain_trampoline, f as *mut libc::c_void, 1)
}

/// The kernel refuses threads for a moment: while another thread executes a program, which ends
/// this one, and where there are as many as there may be. So it is asked again.
const CREATE_TRIES: u32 = 100;
const CREATE_PAUSE_US: u64 = 1000;

fn create(
    name: &std::ffi::CStr,
    entry: extern "C" fn(*mut libc::c_void) -> *mut libc::c_void,
    arg: *mut libc::c_void,
    tries: u32,
) -> bool {
    if is_own() && alone::was_told() {
        return false;
    }
    let Some(stack) = memory::map_copied(stack_bytes()) else { return false };
    for place in &STACKS {
        if place.compare_exchange(0, stack, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
            break;
        }
    }
    // SAFETY: the attributes are initialised before use and destroyed after; the stack is ours,
    // page-aligned, of the length given and used by this thread only; signals are
    // blocked around the creation so that the thread inherits a full mask.
    unsafe {
        let mut attr: libc::pthread_attr_t = std::mem::zeroed();
        let mut all: libc::sigset_t = std::mem::zeroed();
        let mut before: libc::sigset_t = std::mem::zeroed();
        let mut thread: libc::pthread_t = 0;
        libc::pthread_attr_init(&mut attr);
        libc::pthread_attr_setdetachstate(&mut attr, libc::PTHREAD_CREATE_DETACHED);
        libc::pthread_attr_setstack(&mut attr, stack as *mut libc::c_void, stack_bytes() as usize);
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut before);
        let mut r = libc::pthread_create(&mut thread, &attr, entry, arg);
        for _ in 1..tries {
            if r != libc::EAGAIN {
                break;
            }
            sleep_us(CREATE_PAUSE_US);
            r = libc::pthread_create(&mut thread, &attr, entry, arg);
        }
        if r == 0 {
            libc::pthread_setname_np(thread, name.as_ptr());
            uncount();
        }
        libc::pthread_sigmask(libc::SIG_SETMASK, &before, std::ptr::null_mut());
        libc::pthread_attr_destroy(&mut attr);
        r == 0
    }
}

/// Gives the calling thread another name, of at most 15 bytes.
pub fn rename(name: &std::ffi::CStr) {
    // SAFETY: the calling thread is there, and the name ends.
    unsafe { libc::pthread_setname_np(libc::pthread_self(), name.as_ptr()) };
}

extern "C" {
    fn pthread_setcancelstate(state: libc::c_int, before: *mut libc::c_int) -> libc::c_int;
}
/// Of that function: a thread that is to be cancelled is so later.
const CANCEL_DISABLE: libc::c_int = 1;

/// Runs `work`, a part of a shim that is not the call itself, and leaves errno as it was: where a
/// call succeeds, many programs take it to be what it was before.
pub fn keeping_errno<T>(work: impl FnOnce() -> T) -> T {
    // SAFETY: errno of the calling thread, which is there for as long as that.
    let errno = unsafe { &mut *libc::__errno_location() };
    let before = *errno;
    let done = work();
    *errno = before;
    done
}

/// Runs `work` with every signal blocked, those that libc keeps for itself too, which its own
/// functions leave out: it waits with them for the calling thread, so that `work` must be short and
/// wait for none.
pub fn without_libcs_signals<T>(work: impl FnOnce() -> T) -> T {
    let mask = |to: &u64, before: *mut u64| {
        let arguments = [libc::SIG_SETMASK.into(), std::ptr::from_ref(to) as _, before as _, 8, 0];
        // SAFETY: sets of 64 signals, of which one is read and the other, where there is one,
        // written.
        unsafe { to_kernel(libc::SYS_rt_sigprocmask, arguments) };
    };
    without_signals(|| {
        let mut before = 0;
        mask(&u64::MAX, &mut before);
        let done = work();
        mask(&before, std::ptr::null_mut());
        done
    })
}

/// Runs `work` with every signal blocked, so that no handler finds the calling thread in it; nor is
/// it cancelled there.
pub fn without_signals<T>(work: impl FnOnce() -> T) -> T {
    // SAFETY: the sets are plain data, filled in before they are used; the mask that is put back is
    // the one that was found.
    unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        let mut before: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut before);
        let mut state = 0;
        pthread_setcancelstate(CANCEL_DISABLE, &mut state);
        let done = work();
        pthread_setcancelstate(state, std::ptr::null_mut());
        libc::pthread_sigmask(libc::SIG_SETMASK, &before, std::ptr::null_mut());
        done
    }
}

/// Kernel id of the calling thread.
pub fn gettid() -> u32 {
    // SAFETY: a system call without arguments.
    unsafe { libc::syscall(libc::SYS_gettid) as u32 }
}

/// Whether the calling thread is one of the runtime's.
pub fn is_own() -> bool {
    is_own_tid(gettid())
}

/// Whether the thread of this kernel id is.
pub fn is_own_tid(tid: u32) -> bool {
    OWN_TIDS.iter().any(|t| t.load(Ordering::Relaxed) == tid)
}

/// How many of them there are.
pub fn own_count() -> usize {
    OWN_TIDS.iter().filter(|t| t.load(Ordering::Relaxed) != 0).count()
}

/// Counts the calling thread, a test's, among them.
#[cfg(test)]
pub fn adopt() {
    begin();
}

/// Calls `visit` with the head of the list of robust mutexes of each thread of the process, which
/// glibc has in the thread's descriptor.
pub fn robust_heads(mut visit: impl FnMut(u64)) {
    // Read by hand: libc would call the application's `malloc` for it.
    files::TASKS.read(|fd| {
        let mut entries = [0u64; 512];
        loop {
            let room = std::mem::size_of_val(&entries);
            // SAFETY: the kernel writes at most `room` bytes to the buffer.
            let n = unsafe { libc::syscall(libc::SYS_getdents64, fd, entries.as_mut_ptr(), room) };
            let Ok(n @ 1..) = usize::try_from(n) else { break };
            // SAFETY: the kernel has written `n` bytes of the buffer, which is plain data.
            let bytes = unsafe { std::slice::from_raw_parts(entries.as_ptr().cast::<u8>(), n) };
            let mut at = 0;
            while let Some(record) = bytes.get(at..).filter(|r| r.len() > 19) {
                // inode, offset (8 bytes each), length of the record (2), type (1), name.
                at += usize::from(u16::from_ne_bytes([record[16], record[17]])).max(19);
                let name = record[19..].split(|&b| b == 0).next().unwrap_or_default();
                let tid = std::str::from_utf8(name).ok().and_then(|name| name.parse().ok());
                tid.and_then(robust_head).into_iter().for_each(&mut visit);
            }
        }
    });
}

fn robust_head(tid: i32) -> Option<u64> {
    let (mut head, mut len) = (0u64, 0usize);
    // SAFETY: the kernel writes one word to each of the two.
    let r = unsafe { libc::syscall(libc::SYS_get_robust_list, tid, &mut head, &mut len) };
    (r == 0 && head != 0).then_some(head)
}

/// How far into a thread's descriptor, which `pthread_t` points to in glibc, the head of its list
/// of robust mutexes is. The same for all threads.
pub fn robust_head_offset() -> u64 {
    static OFFSET: AtomicU64 = AtomicU64::new(0);
    match OFFSET.load(Ordering::Relaxed) {
        0 => {
            // SAFETY: a call without arguments.
            let own = unsafe { libc::pthread_self() } as u64;
            let offset = robust_head(0).map_or(0, |head| head.wrapping_sub(own));
            OFFSET.store(offset, Ordering::Relaxed);
            offset
        }
        offset => offset,
    }
}

/// The place of the calling thread among ours, below [`THREADS_MAX`], if it is one.
pub fn own_place() -> Option<usize> {
    let tid = gettid();
    OWN_TIDS.iter().position(|t| t.load(Ordering::Relaxed) == tid)
}

/// Whether any of ours lives in this process. (A child of `vfork` has our memory.)
pub fn are_here() -> bool {
    OWN_TIDS.iter().map(|t| t.load(Ordering::Relaxed)).any(|tid| tid != 0 && is_alive(tid))
}

/// Kernel id of our thread in that place, 0 if there is none.
pub fn own_tid(place: usize) -> u32 {
    OWN_TIDS[place].load(Ordering::Relaxed)
}

/// Whether thread `tid` of this process is there.
pub fn is_alive(tid: u32) -> bool {
    // SAFETY: signal 0 is never delivered.
    keeping_errno(|| unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), tid, 0) == 0 })
}

/// Whether the program has more than one thread, ours aside.
pub fn is_threaded() -> bool {
    let ours = own_count();
    let mut room = [0; 4096];
    let text = files::STATUS.text(&mut room);
    let all = text.lines().find_map(|l| l.strip_prefix("Threads:")?.trim().parse::<usize>().ok());
    all.is_none_or(|all| all > ours + 1)
}

/// Whether the program has one thread, ours aside: by libc's count, which knows one of ours from
/// its making on, and before it has begun. It may be a moment late, and is waited for.
pub fn program_has_one() -> bool {
    let has_one = || match count() {
        Some(count) => count.load(Ordering::Relaxed) <= 1,
        None => !is_threaded(),
    };
    (0..COUNT_TRIES).any(|_| {
        has_one() || {
            sleep_us(1000);
            false
        }
    })
}

/// The same, by that count as it is now, and only where there is one.
pub fn program_is_counted_as_one() -> bool {
    count().is_some_and(|count| count.load(Ordering::Relaxed) == 1)
}

/// Looks at that count, a millisecond apart.
const COUNT_TRIES: u32 = 30;

/// First addresses of the stacks of all runtime threads.
pub fn stacks() -> impl Iterator<Item = u64> {
    STACKS.iter().map(|s| s.load(Ordering::Relaxed)).filter(|&s| s != 0)
}

/// CPU time of all runtime threads so far, nanoseconds.
pub fn cpu_ns_total() -> u64 {
    OWN_TIDS.iter().map(|t| t.load(Ordering::Relaxed)).filter(|&t| t != 0).map(cpu_ns).sum()
}

/// CPU time of the thread with kernel id `tid`, nanoseconds, 0 if it is gone.
pub fn cpu_ns(tid: u32) -> u64 {
    // The clock id of a thread's CPU time: the inverted id, "per thread" and "scheduler time".
    let clock = (!(tid as libc::clockid_t) << 3) | 6;
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel fills `t` or reports an error.
    let r = unsafe { libc::clock_gettime(clock, &mut t) };
    if r == 0 {
        t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
    } else {
        0
    }
}

/// Monotonic time, nanoseconds.
#[inline]
pub fn now_ns() -> u64 {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the vDSO fills `t`; this clock always exists.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut t) };
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

/// Keeps the calling thread on `cpu`; ignored where a cpuset forbids it.
pub fn pin_to(cpu: usize) {
    // SAFETY: the set is plain data and large enough for any CPU number that CPU_SET accepts.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        if cpu < libc::CPU_SETSIZE as usize {
            libc::CPU_SET(cpu, &mut set);
            libc::sched_setaffinity(0, std::mem::size_of_val(&set), &set);
        }
    }
}

/// The CPUs that a thread may run on.
#[derive(Clone, Copy)]
pub struct Cpus(libc::cpu_set_t);

impl Cpus {
    /// Those of the calling thread; `None` if the kernel will not say: there are more than a set
    /// has.
    pub fn of_this_thread() -> Option<Cpus> {
        Cpus::of_thread(0)
    }

    /// Those of a thread of the process.
    pub fn of_thread(tid: u32) -> Option<Cpus> {
        let tid = tid as i32;
        // SAFETY: the set is plain data of the size given, which the kernel fills.
        unsafe {
            let mut set: libc::cpu_set_t = std::mem::zeroed();
            let known = libc::sched_getaffinity(tid, std::mem::size_of_val(&set), &mut set) == 0;
            known.then_some(Cpus(set))
        }
    }

    /// How many they are.
    fn count(&self) -> usize {
        // SAFETY: reads plain data.
        (unsafe { libc::CPU_COUNT(&self.0) }).max(1) as usize
    }

    /// Lets another thread of the process run on these.
    pub fn give_to(&self, tid: u32) {
        // SAFETY: the set is plain data of the size given.
        unsafe { libc::sched_setaffinity(tid as i32, std::mem::size_of_val(&self.0), &self.0) };
    }

    /// Keeps the calling thread on these, without `cpu` if there is another.
    pub fn use_all_but(&self, cpu: usize) {
        // SAFETY: the set is plain data of the size given and has a bit for any number below
        // CPU_SETSIZE.
        unsafe {
            let mut set = self.0;
            if cpu < libc::CPU_SETSIZE as usize && libc::CPU_COUNT(&set) > 1 {
                libc::CPU_CLR(cpu, &mut set);
            }
            libc::sched_setaffinity(0, std::mem::size_of_val(&set), &set);
        }
    }
}

/// CPUs that the process may run on; asked once.
pub fn cpus() -> usize {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    if COUNT.load(Ordering::Relaxed) == 0 {
        let count = Cpus::of_this_thread().map_or(1, |cpus| cpus.count());
        COUNT.store(count as u32, Ordering::Relaxed);
    }
    COUNT.load(Ordering::Relaxed) as usize
}

/// Has another thread of the process run on the CPU of the calling one.
pub fn bring_here(tid: u32) {
    // SAFETY: the set is plain data of the size given and has a bit for any number below
    // CPU_SETSIZE.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        match usize::try_from(libc::sched_getcpu()) {
            Ok(cpu) if cpu < libc::CPU_SETSIZE as usize => libc::CPU_SET(cpu, &mut set),
            _ => return,
        }
        libc::sched_setaffinity(tid as i32, std::mem::size_of_val(&set), &set);
    }
}

impl std::fmt::Debug for Cpus {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cpus").finish_non_exhaustive()
    }
}

/// Runs `work` with the calling thread held on the CPU where it is.
pub fn on_one_cpu<T>(work: impl FnOnce() -> T) -> T {
    // SAFETY: the set is plain data of the size given; a failed call leaves it or the thread as it
    // was, and what could not be read is not put back.
    unsafe {
        let mut before: libc::cpu_set_t = std::mem::zeroed();
        let size = std::mem::size_of_val(&before);
        let known = libc::sched_getaffinity(0, size, &mut before) == 0;
        if let Ok(cpu) = usize::try_from(libc::sched_getcpu()) {
            pin_to(cpu);
        }
        let done = work();
        if known {
            libc::sched_setaffinity(0, size, &before);
        }
        done
    }
}

/// Keeps the pages around the calling thread's frame out of swap: what the kernel writes there
/// while this thread waits must find its place, also at a memory limit. Not where the process may
/// lock so much and no more (`RLIMIT_MEMLOCK`): that is the program's.
pub fn hold_frame() {
    const BYTES: usize = terrace_core::state::LOCKED_STACK_BYTES as usize;
    const BEFORE: usize = BYTES / 2;
    if !may_lock_all() {
        return;
    }
    let here = 0u8;
    let start = (std::ptr::from_ref(&here).addr() - BEFORE) & !4095;
    // SAFETY: a system call on the stack of the calling thread, of which nothing changes.
    unsafe { libc::mlock(start as *const libc::c_void, BYTES) };
}

/// Whether the process may lock as much memory as it likes: it has `CAP_IPC_LOCK`.
fn may_lock_all() -> bool {
    const VERSION_3: u32 = 0x2008_0522;
    const CAP_IPC_LOCK: u32 = 14;
    let header = [VERSION_3, 0];
    // Effective, permitted, inheritable: the first 32 of each, then the others.
    let mut sets = [0u32; 6];
    // SAFETY: both have the size that this version asks for.
    let r = unsafe { libc::syscall(libc::SYS_capget, header.as_ptr(), sets.as_mut_ptr()) };
    r == 0 && sets[0] & (1 << CAP_IPC_LOCK) != 0
}

/// Asks for a place before (`-`) or behind ordinary threads; ignored without the privilege.
pub fn set_nice(nice: i32) {
    // SAFETY: a system call on the calling thread.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, gettid(), nice) };
}

/// Has the calling thread woken when its time is over, not up to 50 us later (the kernel's habit,
/// which saves it interrupts).
pub fn wake_on_time() {
    // SAFETY: prctl on the calling thread.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1) };
}

/// Asks the scheduler for short turns (0.1 ms, the least there is; Linux 6.12 and newer): whoever
/// else wakes on this CPU waits no longer than that. Ignored by older kernels.
pub fn take_short_turns(nice: i32) -> bool {
    // struct sched_attr, first version: size, policy, flags, nice, priority, runtime, ...
    #[repr(C)]
    struct SchedAttr {
        size: u32,
        policy: u32,
        flags: u64,
        nice: i32,
        priority: u32,
        runtime_ns: u64,
        deadline_ns: u64,
        period_ns: u64,
    }
    let attr = SchedAttr {
        size: std::mem::size_of::<SchedAttr>() as u32,
        policy: libc::SCHED_OTHER as u32,
        flags: 0,
        nice,
        priority: 0,
        runtime_ns: 100_000,
        deadline_ns: 0,
        period_ns: 0,
    };
    // SAFETY: the struct has the size it says; the kernel only reads it.
    unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &attr, 0) == 0 }
}

/// Lets another thread have this CPU, if one wants it.
pub fn give_way() {
    // SAFETY: a system call without arguments.
    unsafe { libc::sched_yield() };
}

/// Sleeps. (Not by libc's function, which is a point where a thread can be cancelled.)
pub fn sleep_us(us: u64) {
    let t =
        libc::timespec { tv_sec: (us / 1_000_000) as i64, tv_nsec: (us % 1_000_000 * 1000) as i64 };
    // SAFETY: a system call on plain data.
    unsafe { libc::syscall(libc::SYS_nanosleep, &t, std::ptr::null_mut::<libc::timespec>()) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn a_thread_is_brought_here_and_given_back_its_cpus() {
        let (tell, told) = mpsc::channel();
        let (end, ended) = mpsc::channel::<()>();
        let other = std::thread::spawn(move || {
            tell.send(gettid()).unwrap();
            let _ = ended.recv();
        });
        let tid = told.recv().unwrap();
        let count = |tid| Cpus::of_thread(tid).unwrap().count();
        let (own, usual) = (count(0), Cpus::of_thread(tid).unwrap());
        bring_here(tid);
        assert_eq!((count(tid), count(0)), (1, own));
        usual.give_to(tid);
        assert_eq!(count(tid), own);
        // One that is gone is no harm.
        drop(end);
        other.join().unwrap();
        bring_here(tid);
        usual.give_to(tid);
    }
}
