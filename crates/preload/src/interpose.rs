//! The libc functions the runtime stands in front of: thin shims, one job each.
//!
//! `close` and its relatives keep programs that close "all" descriptors (daemons do) from closing
//! ours. `_exit` waits for forked children to be whole (`forks.rs`). `mlockall`
//! stops movement (`locked.rs`), and `mremap` is asked again where our registrations were in its
//! way. What makes threads and mutexes of some kinds keeps their pages home (`kept.rs`). What
//! happens to the address space is told by userfaultfd events, not by shims, since libc calls
//! `mmap` and `munmap` internally without passing here; but for what has no event: guards, and a
//! `shmat` over other memory.

use crate::forks;
use crate::kept;
use crate::lazily;
use crate::locked;
use crate::offspring;
use crate::sys::sync::OnlyThread;
use crate::sys::{clones, memory, proc, remap, rseq, thread, users};
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};

type CloseFn = unsafe extern "C" fn(libc::c_int) -> libc::c_int;
type DupFn = unsafe extern "C" fn(libc::c_int, libc::c_int) -> libc::c_int;
type Dup3Fn = unsafe extern "C" fn(libc::c_int, libc::c_int, libc::c_int) -> libc::c_int;
type RangeFn = unsafe extern "C" fn(libc::c_uint, libc::c_uint, libc::c_int) -> libc::c_int;

/// Descriptors of ours: the userfaultfd, the link to the planner, the door for the next one, four
/// files of `/proc`, three of `sys/files.rs`, four of `sys/spare.rs`, six more of `sys/stop.rs`,
/// and one for each medium on a device or node.
const OURS_MAX: usize = 21 + terrace_core::tier::MAX_TIERS;
static OURS: [AtomicI32; OURS_MAX] = [const { AtomicI32::new(-1) }; OURS_MAX];

/// Keeps `fd` from being closed by the application.
pub fn protect_fd(fd: i32) {
    for place in &OURS {
        if place.compare_exchange(-1, fd, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
            return;
        }
    }
}

/// Takes the protection from a descriptor that is about to be closed.
pub fn unprotect_fd(fd: i32) {
    for place in &OURS {
        let _ = place.compare_exchange(fd, -1, Ordering::Relaxed, Ordering::Relaxed);
    }
}

/// Puts another name of `from` in the place of a descriptor of ours, which is closed. Past the
/// functions here, `syscall` among them, which protect it.
pub fn replace_ours(from: i32, ours: i32) -> bool {
    // SAFETY: what `dlsym` found under this name has this type; no effect on memory.
    unsafe {
        let real: Dup3Fn = std::mem::transmute(next(&DUP3, c"dup3"));
        real(from, ours, libc::O_CLOEXEC) == ours
    }
}

/// All of them.
pub fn ours() -> Vec<i32> {
    OURS.iter().map(|place| place.load(Ordering::Relaxed)).filter(|&fd| fd >= 0).collect()
}

pub(crate) fn is_ours(fd: i32) -> bool {
    let named = fd >= 0 && OURS.iter().any(|o| o.load(Ordering::Relaxed) == fd);
    named && memory::is_original()
}

/// The next definition of a libc function, found once.
pub(crate) fn next(cache: &AtomicUsize, name: &std::ffi::CStr) -> usize {
    match cache.load(Ordering::Relaxed) {
        0 => {
            // SAFETY: a look-up by a NUL-terminated name.
            let f = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) } as usize;
            cache.store(f, Ordering::Relaxed);
            f
        }
        f => f,
    }
}

pub(crate) fn fail(errno: i32) -> libc::c_int {
    // SAFETY: errno of the calling thread.
    unsafe { *libc::__errno_location() = errno };
    -1
}

/// Looks all functions up while the process has one thread, because `dlsym` may allocate.
pub fn resolve() {
    next(&CLOSE, c"close");
    next(&DUP2, c"dup2");
    next(&DUP3, c"dup3");
    next(&CLOSE_RANGE, c"close_range");
    clones::resolve();
    rseq::resolve();
    users::resolve();
    next(&SHMAT, c"shmat");
    next(&MUTEX_INIT, c"pthread_mutex_init");
    next(&CREATE, c"pthread_create");
    next(&C11_CREATE, c"thrd_create");
}

static CLOSE: AtomicUsize = AtomicUsize::new(0);
static DUP2: AtomicUsize = AtomicUsize::new(0);
static DUP3: AtomicUsize = AtomicUsize::new(0);
static CLOSE_RANGE: AtomicUsize = AtomicUsize::new(0);

/// `close(2)`.
///
/// # Safety
/// As for libc's.
#[no_mangle]
pub unsafe extern "C" fn close(fd: libc::c_int) -> libc::c_int {
    if is_ours(fd) {
        return fail(libc::EBADF);
    }
    // SAFETY: what `dlsym` found under this name has this type.
    let real: CloseFn = unsafe { std::mem::transmute(next(&CLOSE, c"close")) };
    // SAFETY: the caller's arguments, unchanged.
    unsafe { real(fd) }
}

/// `__close`: the same by the name that libc's own parts and old programs have for it.
///
/// # Safety
/// As for libc's.
#[no_mangle]
pub unsafe extern "C" fn __close(fd: libc::c_int) -> libc::c_int {
    // SAFETY: the caller's call.
    unsafe { close(fd) }
}

/// `__dup2`, likewise.
///
/// # Safety
/// As for libc's.
#[no_mangle]
pub unsafe extern "C" fn __dup2(from: libc::c_int, to: libc::c_int) -> libc::c_int {
    // SAFETY: the caller's call.
    unsafe { dup2(from, to) }
}

/// `dup2(2)`.
///
/// # Safety
/// As for libc's.
#[no_mangle]
pub unsafe extern "C" fn dup2(from: libc::c_int, to: libc::c_int) -> libc::c_int {
    if is_ours(to) {
        return fail(libc::EBUSY);
    }
    // SAFETY: what `dlsym` found under this name has this type.
    let real: DupFn = unsafe { std::mem::transmute(next(&DUP2, c"dup2")) };
    // SAFETY: the caller's arguments, unchanged.
    unsafe { real(from, to) }
}

/// `dup3(2)`.
///
/// # Safety
/// As for libc's.
#[no_mangle]
pub unsafe extern "C" fn dup3(
    from: libc::c_int,
    to: libc::c_int,
    flags: libc::c_int,
) -> libc::c_int {
    if is_ours(to) {
        return fail(libc::EBUSY);
    }
    // SAFETY: what `dlsym` found under this name has this type.
    let real: Dup3Fn = unsafe { std::mem::transmute(next(&DUP3, c"dup3")) };
    // SAFETY: the caller's arguments, unchanged.
    unsafe { real(from, to, flags) }
}

/// `close_range(2)`: around our descriptors.
///
/// # Safety
/// As for libc's.
#[no_mangle]
pub unsafe extern "C" fn close_range(
    first: libc::c_uint,
    last: libc::c_uint,
    flags: libc::c_int,
) -> libc::c_int {
    let real = next(&CLOSE_RANGE, c"close_range");
    if real == 0 {
        return fail(libc::ENOSYS);
    }
    // SAFETY: what `dlsym` found under this name has this type.
    let real: RangeFn = unsafe { std::mem::transmute(real) };
    // SAFETY: a part of the caller's range.
    around_ours(first, last, |from, to| unsafe { real(from, to, flags) })
}

/// Has `close` close a range in parts, without our descriptors.
pub(crate) fn around_ours(
    first: libc::c_uint,
    last: libc::c_uint,
    close: impl Fn(libc::c_uint, libc::c_uint) -> libc::c_int,
) -> libc::c_int {
    let mut ours: [u32; OURS_MAX] = OURS.each_ref().map(|o| o.load(Ordering::Relaxed) as u32);
    if !memory::is_original() {
        ours = [u32::MAX; OURS_MAX];
    }
    ours.sort_unstable();
    let mut from = first;
    for fd in ours.into_iter().filter(|&fd| fd >= first && fd <= last && fd < i32::MAX as u32) {
        if fd > from {
            let r = close(from, fd - 1);
            if r != 0 {
                return r;
            }
        }
        from = fd + 1;
    }
    if from > last && first <= last {
        return 0;
    }
    close(from, last)
}

/// `closefrom(3)`.
///
/// # Safety
/// As for libc's.
#[no_mangle]
pub unsafe extern "C" fn closefrom(low: libc::c_int) {
    // SAFETY: as for libc's.
    unsafe { close_range(low.max(0) as libc::c_uint, libc::c_uint::MAX, 0) };
}

/// `_exit(2)`: like `exit`, it waits for forked children to be whole.
///
/// # Safety
/// As for libc's.
#[no_mangle]
pub unsafe extern "C" fn _exit(status: libc::c_int) -> ! {
    forks::at_exit();
    // SAFETY: ends all threads; nothing of ours runs afterwards.
    unsafe { clones::to_kernel(libc::SYS_exit_group, [status.into(), 0, 0, 0, 0]) };
    unreachable!("exit_group returned")
}

/// `_Exit(3)`.
///
/// # Safety
/// As for libc's.
#[no_mangle]
pub unsafe extern "C" fn _Exit(status: libc::c_int) -> ! {
    // SAFETY: the same function by another name.
    unsafe { _exit(status) }
}

/// `mlockall(2)`: see `locked.rs`.
///
/// # Safety
/// As for libc's.
#[no_mangle]
pub unsafe extern "C" fn mlockall(flags: libc::c_int) -> libc::c_int {
    // A runtime that has not begun yet stays away: what it reserves would be filled.
    let is_coming = !offspring::cancel();
    let (flags, held) = thread::keeping_errno(|| locked::before_lock(flags, is_coming));
    // SAFETY: a system call that takes an integer.
    let result = unsafe { clones::to_kernel(libc::SYS_mlockall, [flags.into(), 0, 0, 0, 0]) };
    if result != 0 {
        if !held {
            thread::keeping_errno(locked::unlocked);
        }
        return -1;
    }
    0
}

/// `munlockall(2)`.
///
/// # Safety
/// As for libc's.
#[no_mangle]
pub unsafe extern "C" fn munlockall() -> libc::c_int {
    // SAFETY: a system call without arguments.
    let result = unsafe { clones::to_kernel(libc::SYS_munlockall, [0; 5]) };
    if result == 0 {
        thread::keeping_errno(locked::unlocked);
    }
    result as libc::c_int
}

/// How often a mapping that has come apart is moved by parts, where that cannot be done.
const REMAP_TRIES: usize = 3;

/// `mremap(2)`. The kernel resizes one mapping, and says EFAULT of what it takes for several: where
/// registration has split the program's one, it is made whole and the call made again; before the
/// call, where that could move half of it (`forks::while_moved`). A forked child's parts cannot be
/// made whole any more: there, it is done by parts (`sys/remap.rs`).
///
/// # Safety
/// As for libc's.
#[no_mangle]
pub unsafe extern "C" fn mremap(
    old: *mut libc::c_void,
    old_len: libc::size_t,
    new_len: libc::size_t,
    flags: libc::c_int,
    new: *mut libc::c_void,
) -> *mut libc::c_void {
    let arguments = [old as _, old_len as _, new_len as _, flags.into(), new as _];
    // SAFETY: the caller's call.
    let call = || unsafe { clones::to_kernel(libc::SYS_mremap, arguments) };
    // SAFETY: errno of the calling thread.
    let errno = || unsafe { *libc::__errno_location() };
    let errno_before = errno();
    let pages = |len: usize| len.div_ceil(4096);
    let moves = flags & libc::MREMAP_FIXED != 0 && pages(old_len) == pages(new_len);
    let mut result = match moves {
        true => forks::while_moved(old as u64, (pages(old_len) as u64).saturating_mul(4096), call),
        false => call(),
    };
    // (What moves as it is was let go of already; asked again, the kernel might move the emptied
    // half over the one that it has moved.)
    if result == -1 && errno() == libc::EFAULT && !moves {
        result = forks::while_let_go(old as u64, old_len as u64, call).unwrap_or(result);
    }
    // More than once: a runtime of a child's own may begin meanwhile, and part the mapping anew.
    for _ in 0..REMAP_TRIES {
        if result != -1 || errno() != libc::EFAULT || !forks::may_have_split() {
            break;
        }
        // SAFETY: the caller's call.
        match unsafe {
            remap::by_parts(old as u64, old_len as u64, new_len as u64, flags, new as u64)
        } {
            Some(at) => result = at as libc::c_long,
            None => {
                fail(libc::EFAULT);
                if !moves {
                    result = forks::while_let_go(old as u64, old_len as u64, call).unwrap_or(-1);
                }
            }
        }
    }
    if result != -1 {
        // Of an attempt that nobody made.
        fail(errno_before);
    }
    result as *mut libc::c_void
}

type ShmatFn =
    unsafe extern "C" fn(libc::c_int, *const libc::c_void, libc::c_int) -> *mut libc::c_void;

static SHMAT: AtomicUsize = AtomicUsize::new(0);

/// What addresses are rounded down to with SHM_RND, at most.
const SHM_STEP: u64 = 16 << 10;

/// `shmat(2)`. With SHM_REMAP the kernel replaces what is there and tells nobody; so what is in
/// tiers comes home first.
///
/// # Safety
/// As for libc's.
#[no_mangle]
pub unsafe extern "C" fn shmat(
    id: libc::c_int,
    at: *const libc::c_void,
    flags: libc::c_int,
) -> *mut libc::c_void {
    // SAFETY: what `dlsym` found under this name has this type.
    let real: ShmatFn = unsafe { std::mem::transmute(next(&SHMAT, c"shmat")) };
    // SAFETY: the caller's call.
    let call = || unsafe { real(id, at, flags) };
    let mut segment = std::mem::MaybeUninit::<libc::shmid_ds>::zeroed();
    // SAFETY: room for what is known of a segment.
    let is_known = flags & libc::SHM_REMAP != 0
        && unsafe { libc::shmctl(id, libc::IPC_STAT, segment.as_mut_ptr()) } == 0;
    if !is_known {
        return call();
    }
    // SAFETY: all zeros, or what the kernel wrote.
    let bytes = unsafe { segment.assume_init() }.shm_segsz as u64;
    let start = at as u64 / SHM_STEP * SHM_STEP;
    let len = (at as u64 - start).saturating_add(bytes).next_multiple_of(4096);
    forks::while_let_go(start, len, call).unwrap_or_else(call)
}

/// `MADV_GUARD_INSTALL` (Linux 6.13).
const GUARD_INSTALL: libc::c_int = 102;

/// `madvise(2)`. The kernel drops what is where a guard is put and tells nobody; so what is in
/// tiers comes home first. What is given up by `MADV_FREE` is dropped or left (`lazily.rs`).
///
/// # Safety
/// As for libc's.
#[no_mangle]
pub unsafe extern "C" fn madvise(
    start: *mut libc::c_void,
    len: libc::size_t,
    advice: libc::c_int,
) -> libc::c_int {
    // SAFETY: the caller's call.
    let asked = |start: u64, len: u64, advice: libc::c_int| unsafe {
        let arguments = [start as _, len as _, advice.into(), 0, 0];
        clones::to_kernel(libc::SYS_madvise, arguments) as libc::c_int
    };
    let (start, len) = (start as u64, len as u64);
    let call = || asked(start, len, advice);
    match advice {
        GUARD_INSTALL => forks::while_let_go(start, len, call).unwrap_or_else(call),
        libc::MADV_FREE => lazily::give_up(start, len, asked),
        _ => call(),
    }
}

/// `daemon(3)`: glibc's ends the parent by an internal `_exit` that does not pass here.
///
/// # Safety
/// As for libc's.
#[no_mangle]
pub unsafe extern "C" fn daemon(keep_folder: libc::c_int, keep_io: libc::c_int) -> libc::c_int {
    // SAFETY: the calls that daemon(3) is made of, in its order, on constant strings.
    unsafe {
        match libc::fork() {
            -1 => return -1,
            0 => {}
            _ => _exit(0),
        }
        if libc::setsid() < 0 {
            return -1;
        }
        if keep_folder == 0 {
            libc::chdir(c"/".as_ptr());
        }
        if keep_io == 0 {
            let null = libc::open(c"/dev/null".as_ptr(), libc::O_RDWR);
            if null < 0 {
                return -1;
            }
            for fd in 0..3 {
                libc::dup2(null, fd);
            }
            if null > 2 {
                libc::close(null);
            }
        }
    }
    0
}

type MutexInitFn = unsafe extern "C" fn(
    *mut libc::pthread_mutex_t,
    *const libc::pthread_mutexattr_t,
) -> libc::c_int;
type StartFn = extern "C" fn(*mut libc::c_void) -> *mut libc::c_void;
type CreateFn = unsafe extern "C" fn(
    *mut libc::pthread_t,
    *const libc::pthread_attr_t,
    Option<StartFn>,
    *mut libc::c_void,
) -> libc::c_int;
type C11StartFn = extern "C" fn(*mut libc::c_void) -> libc::c_int;
type C11CreateFn = unsafe extern "C" fn(
    *mut libc::pthread_t,
    Option<C11StartFn>,
    *mut libc::c_void,
) -> libc::c_int;

static MUTEX_INIT: AtomicUsize = AtomicUsize::new(0);
static CREATE: AtomicUsize = AtomicUsize::new(0);
static C11_CREATE: AtomicUsize = AtomicUsize::new(0);

/// `pthread_mutex_init(3)`.
///
/// # Safety
/// As for libc's.
#[no_mangle]
pub unsafe extern "C" fn pthread_mutex_init(
    mutex: *mut libc::pthread_mutex_t,
    attributes: *const libc::pthread_mutexattr_t,
) -> libc::c_int {
    // SAFETY: what `dlsym` found under this name has this type; the caller's arguments.
    let result = unsafe {
        let real: MutexInitFn = std::mem::transmute(next(&MUTEX_INIT, c"pthread_mutex_init"));
        real(mutex, attributes)
    };
    if result == 0 && !attributes.is_null() {
        let (mut robust, mut protocol) = (libc::PTHREAD_MUTEX_STALLED, libc::PTHREAD_PRIO_NONE);
        // SAFETY: attributes that libc has just taken.
        unsafe {
            libc::pthread_mutexattr_getrobust(attributes, &mut robust);
            libc::pthread_mutexattr_getprotocol(attributes, &mut protocol);
        }
        if robust == libc::PTHREAD_MUTEX_ROBUST || protocol == libc::PTHREAD_PRIO_INHERIT {
            kept::mutex_made(mutex as u64);
        }
    }
    result
}

/// Where the descriptor of a thread is that was made just now. Where libc has put its address is
/// the new thread's by now: it may have ended, and have given that memory back. Whatever is there
/// is only an address to us.
fn made_at(thread: *const libc::pthread_t) -> Option<u64> {
    let mut at = [0];
    // A seccomp filter may not know that call, and end the program for it. Such a program has to
    // leave the place alone for a moment.
    if !offspring::has_filter() {
        return proc::read_application_words(thread as u64, &mut at).then_some(at[0]);
    }
    // SAFETY: libc has just written there.
    Some(unsafe { thread.read_volatile() })
}

/// `pthread_create(3)`.
///
/// # Safety
/// As for libc's.
#[no_mangle]
pub unsafe extern "C" fn pthread_create(
    thread: *mut libc::pthread_t,
    attributes: *const libc::pthread_attr_t,
    start: Option<StartFn>,
    argument: *mut libc::c_void,
) -> libc::c_int {
    // SAFETY: what `dlsym` found under this name has this type; the caller's arguments.
    make_thread(thread, || unsafe {
        let real: CreateFn = std::mem::transmute(next(&CREATE, c"pthread_create"));
        real(thread, attributes, start, argument)
    })
}

/// `thrd_create(3)`, which is no call of the function above within libc.
///
/// # Safety
/// As for libc's.
#[no_mangle]
pub unsafe extern "C" fn thrd_create(
    thread: *mut libc::pthread_t,
    start: Option<C11StartFn>,
    argument: *mut libc::c_void,
) -> libc::c_int {
    // SAFETY: what `dlsym` found under this name has this type; the caller's arguments.
    make_thread(thread, || unsafe {
        let real: C11CreateFn = std::mem::transmute(next(&C11_CREATE, c"thrd_create"));
        real(thread, start, argument)
    })
}

/// Makes a thread, whose address libc puts at `thread` if `make` returns 0. Nothing is taken out
/// while the thread's descriptor is not known.
fn make_thread(thread: *const libc::pthread_t, make: impl FnOnce() -> libc::c_int) -> libc::c_int {
    let rt = forks::runtime();
    if let Some(rt) = rt {
        rt.paused.fetch_add(1, Ordering::AcqRel);
    }
    let result = make();
    let made_at = || thread::keeping_errno(|| made_at(thread));
    if let Some(at) = rt.filter(|_| result == 0).and_then(|_| made_at()) {
        kept::thread_made(at);
    }
    if let Some(rt) = rt {
        rt.paused.fetch_sub(1, Ordering::AcqRel);
    }
    result
}

/// In a forked child: closes our descriptors.
pub fn close_ours() {
    for place in &OURS {
        let fd = place.swap(-1, Ordering::Relaxed);
        if fd >= 0 {
            // SAFETY: our descriptor, closed once.
            unsafe { libc::syscall(libc::SYS_close, fd) };
        }
    }
}

extern "C" {
    fn at_quick_exit(f: extern "C" fn()) -> libc::c_int;
    fn pthread_atfork(
        prepare: Option<extern "C" fn()>,
        parent: Option<extern "C" fn()>,
        child: Option<extern "C" fn()>,
    ) -> libc::c_int;
}

/// Registers what `forks.rs` does around a fork and at the end.
pub fn install_handlers() {
    // SAFETY: plain functions that live as long as the library, which is never unloaded.
    unsafe {
        pthread_atfork(Some(before_fork), Some(after_fork), Some(in_forked_child));
        libc::atexit(forks::at_exit);
        at_quick_exit(forks::at_exit);
    }
}

extern "C" fn before_fork() {
    forks::prepare();
}

extern "C" fn after_fork() {
    forks::in_parent();
}

extern "C" fn in_forked_child() {
    forks::in_child();
}

/// Registers what `offspring.rs` does in a forked child, behind the handlers there are.
pub fn install_child_handler() {
    // SAFETY: as for `install_handlers`.
    unsafe { pthread_atfork(None, None, Some(in_new_child)) };
}

extern "C" fn in_new_child() {
    // SAFETY: libc calls this in a forked child, in which there is no other thread.
    offspring::in_child(&unsafe { OnlyThread::new() });
}

/// `unshare(2)`: some of it is only allowed to a process with one thread.
///
/// # Safety
/// As for libc's.
#[no_mangle]
pub unsafe extern "C" fn unshare(flags: libc::c_int) -> libc::c_int {
    offspring::cancel();
    // SAFETY: the caller's call.
    unsafe { clones::to_kernel(libc::SYS_unshare, [flags.into(), 0, 0, 0, 0]) as libc::c_int }
}

/// `setns(2)`: as `unshare`.
///
/// # Safety
/// As for libc's.
#[no_mangle]
pub unsafe extern "C" fn setns(fd: libc::c_int, kind: libc::c_int) -> libc::c_int {
    offspring::cancel();
    // SAFETY: the caller's call.
    unsafe { clones::to_kernel(libc::SYS_setns, [fd.into(), kind.into(), 0, 0, 0]) as libc::c_int }
}

/// `prctl(2)`: one of its uses is a seccomp filter for the calling thread.
///
/// # Safety
/// As for libc's.
#[no_mangle]
pub unsafe extern "C" fn prctl(
    option: libc::c_int,
    a: libc::c_ulong,
    b: libc::c_ulong,
    c: libc::c_ulong,
    d: libc::c_ulong,
) -> libc::c_int {
    // (Without a filter it is only asked whether there can be one.)
    if option == libc::PR_SET_SECCOMP && (a == libc::SECCOMP_MODE_STRICT.into() || b != 0) {
        offspring::note_filter(false);
    }
    // SAFETY: the caller's call. Arguments that were not given are passed on as they are found, and
    // the kernel looks at those that the option has.
    unsafe {
        let arguments = [option.into(), a as _, b as _, c as _, d as _];
        clones::to_kernel(libc::SYS_prctl, arguments) as libc::c_int
    }
}
