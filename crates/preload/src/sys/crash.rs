//! Signals that end a program with a dump: how `crash.rs` hears of them.

use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

/// Those whose default is a dump and that mean a crash, or a wish for one.
const SIGNALS: [libc::c_int; 7] = [
    libc::SIGSEGV,
    libc::SIGBUS,
    libc::SIGILL,
    libc::SIGFPE,
    libc::SIGABRT,
    libc::SIGSYS,
    libc::SIGQUIT,
];

static BEFORE_DUMP: AtomicUsize = AtomicUsize::new(0);

/// Has `before_dump` called when one of the signals comes that the program has left at its default,
/// on the thread that it comes to. Afterwards the signal takes its course: an instruction that
/// failed fails again, with the same registers. While the process has one thread only.
pub fn install(before_dump: extern "C" fn()) {
    BEFORE_DUMP.store(before_dump as usize, Ordering::Release);
    for signal in SIGNALS {
        // SAFETY: a plain structure; the handler lives as long as the library, which is never
        // unloaded. What was ignored by whoever started the program stays ignored.
        unsafe {
            let mut before: libc::sigaction = std::mem::zeroed();
            let mut ours: libc::sigaction = std::mem::zeroed();
            ours.sa_sigaction = on_signal as *const () as usize;
            // On the thread's alternate stack, if it has one: its own may be what overflowed.
            ours.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
            let read = libc::sigaction(signal, std::ptr::null(), &mut before) == 0;
            if read && before.sa_sigaction == libc::SIG_DFL {
                libc::sigaction(signal, &ours, std::ptr::null_mut());
            }
        }
    }
}

/// What is done before the program ends by such a signal, if [`install`] was called.
pub fn before_end() {
    let f = BEFORE_DUMP.load(Ordering::Acquire);
    if f != 0 {
        // SAFETY: `install` has stored exactly such a function.
        let before_dump: extern "C" fn() = unsafe { std::mem::transmute(f) };
        before_dump();
    }
}

extern "C" fn on_signal(
    signal: libc::c_int,
    info: *mut libc::siginfo_t,
    _context: *mut libc::c_void,
) {
    before_end();
    // SAFETY: all calls are allowed in a signal handler; the kernel gave us `info`.
    unsafe {
        libc::signal(signal, libc::SIG_DFL);
        // Sent by somebody, and not the fault of an instruction: it comes once more, when this
        // handler has returned.
        if (*info).si_code <= 0 {
            libc::syscall(libc::SYS_tgkill, libc::getpid(), libc::gettid(), signal);
        }
    }
}

/// Sleeps while `word` is `value`, at most `limit_ms`, or until it is woken. May return early.
pub fn wait_while(word: &AtomicU32, value: u32, limit_ms: u64) {
    let limit = libc::timespec {
        tv_sec: (limit_ms / 1000) as libc::time_t,
        tv_nsec: (limit_ms % 1000 * 1_000_000) as libc::c_long,
    };
    let op = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: the kernel compares a word that lives as long as the call, and reads `limit`.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), op, value, &limit) };
}

/// Wakes all who wait at `word`. Allowed in a signal handler.
pub fn wake(word: &AtomicU32) {
    let op = libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: the address of a word of ours.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), op, i32::MAX) };
}
