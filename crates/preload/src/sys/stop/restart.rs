//! System calls that a stop must not end.
//!
//! A thread that waits in the kernel is woken by a stop, and nearly every call then goes on by
//! itself afterwards. A few return `EINTR` instead, as they do after SIGSTOP and SIGCONT too
//! (signal(7)), and there are programs that take this for an error. For these the stopper puts in
//! the place of the result what the kernel itself uses for "to be restarted, unless a handler
//! runs". (So also where a signal is about to be taken: one that is ignored would not have woken a
//! thread that nobody traces.)
//!
//! A call with a timeout would begin anew with all of it, and where stops are frequent never end.
//! So the timeout of the call that event loops wait in is made shorter, by what has passed since it
//! was restarted first. The others with one return `EINTR` as before.
//!
//! (Calls that have transferred a part by then are another matter: `transfers.rs`.)

use super::stopper::{now_ns, ptrace_at};

const PTRACE_PEEKUSR: u64 = 3;
const PTRACE_POKEUSR: u64 = 6;
/// Places in `struct user_regs_struct`: registers as the call was made with, and its result.
const R10: u64 = 56;
const R8: u64 = 72;
const RAX: u64 = 80;
const RDX: u64 = 96;
const ORIG_RAX: u64 = 120;
const ERESTARTNOHAND: i64 = 514;
const SYS_IO_PGETEVENTS: i64 = 333;
const SYS_IO_URING_ENTER: i64 = 426;
/// Of its flags: there is a structure that may hold a timeout.
const IORING_ENTER_EXT_ARG: i64 = 8;

/// A wait that was restarted with so many milliseconds left, and when it is to be over.
#[derive(Clone, Copy)]
pub struct Wait {
    tid: i32,
    left_ms: i32,
    /// When it was restarted last.
    at_ns: u64,
    ends_ns: u64,
}

/// How much longer than it had left a wait may have been restarted ago that still goes on.
const LATE_NS: u64 = 20_000_000;

/// The last waits restarted, by thread; two threads may have the same place, and then the one of
/// them waits for longer.
pub type Waits = [Wait; WAITS];
const WAITS: usize = 1024;

/// None yet.
pub fn no_waits() -> Waits {
    [Wait { tid: 0, left_ms: 0, at_ns: 0, ends_ns: 0 }; WAITS]
}

/// What says for how long a call waits.
enum Timeout {
    /// It has none.
    None,
    /// Milliseconds in this register; below 0 for ever.
    Milliseconds(u64),
    /// The address of a time is in this register, 0 for ever.
    Address(u64),
    /// Perhaps one, if these flags are in this register.
    Flags(u64, i64),
}

fn timeout_of(number: i64) -> Option<Timeout> {
    match number {
        libc::SYS_epoll_wait | libc::SYS_epoll_pwait => Some(Timeout::Milliseconds(R10)),
        libc::SYS_epoll_pwait2 | libc::SYS_semtimedop => Some(Timeout::Address(R10)),
        libc::SYS_rt_sigtimedwait => Some(Timeout::Address(RDX)),
        libc::SYS_io_getevents | SYS_IO_PGETEVENTS => Some(Timeout::Address(R8)),
        libc::SYS_semop => Some(Timeout::None),
        // (It returns `EINTR` only if it has submitted nothing.)
        SYS_IO_URING_ENTER => Some(Timeout::Flags(R10, IORING_ENTER_EXT_ARG)),
        _ => None,
    }
}

/// Has a stopped thread go on with the call that the stop has interrupted, if it would not by
/// itself.
pub fn resume_wait(tid: i32, waits: &mut Waits) {
    if peek(tid, RAX) != Some(-i64::from(libc::EINTR)) {
        return;
    }
    let Some(timeout) = peek(tid, ORIG_RAX).and_then(timeout_of) else { return };
    let may_go_on = match timeout {
        Timeout::None => true,
        Timeout::Address(register) => peek(tid, register) == Some(0),
        Timeout::Flags(register, flags) => peek(tid, register).is_some_and(|r| r & flags == 0),
        Timeout::Milliseconds(register) => match peek(tid, register).map(|ms| ms as i32) {
            Some(ms) if ms > 0 => {
                let left = left_ms(tid, ms, waits);
                ptrace_at(PTRACE_POKEUSR, tid, register, left as u64) == 0
            }
            forever => forever.is_some(),
        },
    };
    if may_go_on {
        ptrace_at(PTRACE_POKEUSR, tid, RAX, -ERESTARTNOHAND as u64);
    }
}

/// Milliseconds for which a thread still waits that was made to wait for `ms`. One less than it
/// asked for itself tells a wait of ours from its own; and one of ours that was restarted longer
/// ago than it had left is over.
fn left_ms(tid: i32, ms: i32, waits: &mut Waits) -> i32 {
    let now = now_ns();
    let Some(known) = waits.get_mut(tid as usize % WAITS) else { return ms };
    let may_last = known.at_ns + known.left_ms as u64 * 1_000_000 + LATE_NS >= now;
    if known.tid != tid || known.left_ms != ms || !may_last {
        *known = Wait { tid, left_ms: ms - 1, at_ns: now, ends_ns: now + ms as u64 * 1_000_000 };
        return ms - 1;
    }
    known.at_ns = now;
    known.left_ms = (known.ends_ns.saturating_sub(now) / 1_000_000) as i32;
    known.left_ms
}

fn peek(tid: i32, register: u64) -> Option<i64> {
    let mut value = 0i64;
    let to = std::ptr::from_mut(&mut value) as u64;
    (ptrace_at(PTRACE_PEEKUSR, tid, register, to) == 0).then_some(value)
}
