//! Children that are made without libc's `fork`: `_Fork`, `clone`, and `syscall` with a number that
//! makes a process. They get what `fork`'s handlers do (`forks.rs`). What executes the instruction
//! itself passes by here unseen; `forks.rs` says what becomes of its child. `syscall` is also where
//! a seccomp filter for all threads, ours among them, comes by, and what has a function of ours
//! that would be passed by otherwise (`by_number.rs`).

use crate::forks;
use crate::interpose::next;
use crate::kept;
use crate::offspring;
use std::sync::atomic::AtomicUsize;

type Entry = Option<extern "C" fn(*mut libc::c_void) -> libc::c_int>;
type CloneFn = unsafe extern "C" fn(
    Entry,
    *mut libc::c_void,
    libc::c_int,
    *mut libc::c_void,
    *mut libc::c_void,
    *mut libc::c_void,
    *mut libc::c_void,
) -> libc::c_int;
type ForkFn = unsafe extern "C" fn() -> libc::pid_t;

static CLONE: AtomicUsize = AtomicUsize::new(0);
static BARE_FORK: AtomicUsize = AtomicUsize::new(0);

/// Looks the functions up while the process has one thread.
pub fn resolve() {
    next(&CLONE, c"clone");
    next(&BARE_FORK, c"_Fork");
}

/// What a set of clone flags makes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Makes {
    /// A process with a copy of our memory.
    Copy,
    /// A process that shares our memory, and may outlive the runtime's threads; or our descriptors,
    /// of which whatever it closes is closed for us.
    Sharer,
    /// A thread, or a child that its parent waits for.
    Guest,
}

fn makes(flags: u64) -> Makes {
    let has = |flag: libc::c_int| flags & flag as u64 != 0;
    if !has(libc::CLONE_VM) && !has(libc::CLONE_FILES) {
        Makes::Copy
    } else if !has(libc::CLONE_VM) {
        Makes::Sharer
    } else if has(libc::CLONE_THREAD) || has(libc::CLONE_VFORK) {
        Makes::Guest
    } else {
        Makes::Sharer
    }
}

/// The runtime, or the thread that may start one, leaves the program alone.
fn leave() {
    offspring::cancel();
    forks::retire();
}

/// Runs the parent's and the child's handler, as libc's fork does.
fn after(result: libc::c_long) {
    match result {
        0 => forks::in_child(),
        _ => forks::in_parent(),
    }
}

/// `_Fork(3)`: fork without handlers. Ours run all the same.
///
/// # Safety
/// As for libc's.
#[no_mangle]
pub unsafe extern "C" fn _Fork() -> libc::pid_t {
    let real = next(&BARE_FORK, c"_Fork");
    forks::prepare();
    let pid = if real == 0 {
        // SAFETY: an older libc, whose own function comes nearest.
        unsafe { libc::fork() }
    } else {
        // SAFETY: what `dlsym` found under this name has this type.
        let real: ForkFn = unsafe { std::mem::transmute(real) };
        // SAFETY: the caller's call.
        unsafe { real() }
    };
    after(libc::c_long::from(pid));
    pid
}

/// What the caller of `clone` wants run in the child.
struct Start {
    entry: Entry,
    arg: *mut libc::c_void,
}

extern "C" fn start_in_child(start: *mut libc::c_void) -> libc::c_int {
    forks::in_child();
    // SAFETY: the child has a copy of the frame of `clone` in its parent, where this lies.
    let start = unsafe { &*start.cast::<Start>() };
    start.entry.map_or(0, |entry| entry(start.arg))
}

/// `clone(2)` as libc has it. The arguments behind `arg` are optional there; where they were not
/// given they are passed on as they are found, and the kernel looks at those its flags name.
///
/// # Safety
/// As for libc's.
#[no_mangle]
pub unsafe extern "C" fn clone(
    entry: Entry,
    stack: *mut libc::c_void,
    flags: libc::c_int,
    arg: *mut libc::c_void,
    parent_tid: *mut libc::c_void,
    tls: *mut libc::c_void,
    child_tid: *mut libc::c_void,
) -> libc::c_int {
    let clears_ours = libc::CLONE_CHILD_CLEARTID | libc::CLONE_VM;
    if flags & clears_ours == clears_ours {
        kept::word_given(child_tid as u64);
    }
    // SAFETY: what `dlsym` found under this name has this type.
    let real: CloneFn = unsafe { std::mem::transmute(next(&CLONE, c"clone")) };
    let start = Start { entry, arg };
    let (entry, arg): (Entry, *mut libc::c_void) = match makes(flags as u32 as u64) {
        Makes::Copy => {
            forks::prepare();
            (entry.and(Some(start_in_child)), std::ptr::from_ref(&start).cast_mut().cast())
        }
        Makes::Sharer => {
            leave();
            (entry, arg)
        }
        Makes::Guest => (entry, arg),
    };
    // SAFETY: the caller's arguments, or our own function that calls the caller's.
    let pid = unsafe { real(entry, stack, flags, arg, parent_tid, tls, child_tid) };
    if makes(flags as u32 as u64) == Makes::Copy {
        forks::in_parent();
    }
    pid
}

/// `__clone`: the same by the name that libc's own parts and old programs have for it.
///
/// # Safety
/// As for libc's.
#[no_mangle]
pub unsafe extern "C" fn __clone(
    entry: Entry,
    stack: *mut libc::c_void,
    flags: libc::c_int,
    arg: *mut libc::c_void,
    parent_tid: *mut libc::c_void,
    tls: *mut libc::c_void,
    child_tid: *mut libc::c_void,
) -> libc::c_int {
    // SAFETY: the caller's call.
    unsafe { clone(entry, stack, flags, arg, parent_tid, tls, child_tid) }
}

#[cfg(target_arch = "x86_64")]
pub(crate) use x86_64::to_kernel;

/// A system call. (Of `syscall` there is no function of ours here.)
///
/// # Safety
/// As for the call.
#[cfg(not(target_arch = "x86_64"))]
pub(crate) unsafe fn to_kernel(
    number: libc::c_long,
    [a, b, c, d, e]: [libc::c_long; 5],
) -> libc::c_long {
    // SAFETY: the caller's promise.
    unsafe { libc::syscall(number, a, b, c, d, e) }
}

/// `syscall(2)`: the one function that reaches every system call, `clone` among them. On other
/// machines than x86-64 it is libc's.
#[cfg(target_arch = "x86_64")]
mod x86_64 {
    use super::super::by_number;
    use super::{after, makes, Makes};
    use crate::{forks, offspring};

    const NUMBERS: usize = 512;
    /// A bit for each call of `by_number.rs`.
    static OURS: [u64; NUMBERS / 64] = {
        let (mut bits, mut i) = ([0; NUMBERS / 64], 0);
        while i < by_number::NUMBERS.len() {
            let number = by_number::NUMBERS[i] as usize;
            bits[number / 64] |= 1 << (number % 64);
            i += 1;
        }
        bits
    };

    /// Straight to the kernel, but for the calls that have a function of ours or make a process. Of
    /// the latter, those that give the child a stack of its own are left alone: its first
    /// instruction returns to an address on that stack.
    ///
    /// # Safety
    /// As for libc's.
    #[unsafe(naked)]
    #[no_mangle]
    pub unsafe extern "C" fn syscall(number: libc::c_long) -> libc::c_long {
        std::arch::naked_asm!(
            "cmp rdi, {clone}",
            "je 2f",
            "cmp rdi, {fork}",
            "je 2f",
            "cmp rdi, {clone3}",
            "je 2f",
            "cmp rdi, {seccomp}",
            "je 2f",
            // One bit for each of the others.
            "cmp rdi, {numbers}",
            "jae 3f",
            "lea rax, [rip + {ours}]",
            "bt qword ptr [rax], rdi",
            "jc 5f",
            "3:",
            "mov rax, rdi",
            "mov rdi, rsi",
            "mov rsi, rdx",
            "mov rdx, rcx",
            "mov r10, r8",
            "mov r8, r9",
            "mov r9, [rsp + 8]",
            "syscall",
            "cmp rax, -4095",
            "jae 4f",
            "ret",
            "4:",
            "mov rdi, rax",
            "jmp {failed}",
            "5:",
            "jmp {by_number}",
            // Seven words keep the stack aligned for the call.
            "2:",
            "push rdi",
            "push rsi",
            "push rdx",
            "push rcx",
            "push r8",
            "push r9",
            "sub rsp, 8",
            "call {is_fork}",
            "add rsp, 8",
            "pop r9",
            "pop r8",
            "pop rcx",
            "pop rdx",
            "pop rsi",
            "pop rdi",
            "test eax, eax",
            "je 3b",
            "jmp {fork_call}",
            clone = const libc::SYS_clone,
            fork = const libc::SYS_fork,
            clone3 = const libc::SYS_clone3,
            seccomp = const libc::SYS_seccomp,
            numbers = const NUMBERS,
            ours = sym OURS,
            by_number = sym by_number::call,
            failed = sym failed,
            is_fork = sym is_fork,
            fork_call = sym fork_call,
        )
    }

    extern "C" fn failed(result: libc::c_long) -> libc::c_long {
        // SAFETY: errno of the calling thread.
        unsafe { *libc::__errno_location() = -result as libc::c_int };
        -1
    }

    /// A system call past the function above, with its way to answer.
    ///
    /// # Safety
    /// As for the call.
    pub unsafe fn to_kernel(
        number: libc::c_long,
        [a, b, c, d, e]: [libc::c_long; 5],
    ) -> libc::c_long {
        let result: libc::c_long;
        // SAFETY: the caller's promise. The instruction itself changes two registers.
        unsafe {
            std::arch::asm!(
                "syscall",
                inlateout("rax") number => result,
                in("rdi") a,
                in("rsi") b,
                in("rdx") c,
                in("r10") d,
                in("r8") e,
                lateout("rcx") _,
                lateout("r11") _,
            );
        }
        match result {
            -4095..=-1 => failed(result),
            _ => result,
        }
    }

    /// Whether the call makes a process with a copy of our memory, on the caller's stack.
    extern "C" fn is_fork(number: libc::c_long, a: u64, b: u64, c: u64) -> libc::c_int {
        let (flags, stack) = match number {
            libc::SYS_clone => (a, b),
            libc::SYS_clone3 => {
                // struct clone_args: flags, pidfd, child_tid, parent_tid, exit_signal, stack, ...
                let mut args = [0u64; 6];
                // A wrong address is for the kernel to complain about.
                if b < 48 || !crate::sys::proc::read_application_words(a, &mut args) {
                    return 0;
                }
                (args[0], args[5])
            }
            libc::SYS_seccomp => {
                let is_filter = a == u64::from(libc::SECCOMP_SET_MODE_FILTER);
                // (Without one it is only asked whether there can be one.)
                if a == u64::from(libc::SECCOMP_SET_MODE_STRICT) || is_filter && c != 0 {
                    let is_for_all = b & libc::SECCOMP_FILTER_FLAG_TSYNC != 0;
                    offspring::note_filter(is_filter && is_for_all);
                }
                return 0;
            }
            _ => (0, 0),
        };
        match makes(flags) {
            Makes::Copy if stack == 0 => 1,
            Makes::Copy | Makes::Guest => 0,
            Makes::Sharer => {
                super::leave();
                0
            }
        }
    }

    extern "C" fn fork_call(
        number: libc::c_long,
        a: u64,
        b: u64,
        c: u64,
        d: u64,
        e: u64,
    ) -> libc::c_long {
        forks::prepare();
        let result: libc::c_long;
        // SAFETY: the caller's system call. The child returns here on its copy of this stack.
        unsafe {
            std::arch::asm!(
                "syscall",
                inlateout("rax") number => result,
                in("rdi") a,
                in("rsi") b,
                in("rdx") c,
                in("r10") d,
                in("r8") e,
                lateout("rcx") _,
                lateout("r11") _,
            );
        }
        after(result);
        match result {
            -4095..=-1 => failed(result),
            _ => result,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_say_what_is_made() {
        let flags = |f: libc::c_int| makes(f as u32 as u64);
        assert_eq!(flags(libc::SIGCHLD), Makes::Copy);
        assert_eq!(flags(libc::CLONE_VFORK), Makes::Copy);
        assert_eq!(flags(libc::CLONE_VM | libc::SIGCHLD), Makes::Sharer);
        assert_eq!(flags(libc::CLONE_FILES | libc::SIGCHLD), Makes::Sharer);
        assert_eq!(flags(libc::CLONE_VM | libc::CLONE_VFORK), Makes::Guest);
        let thread = libc::CLONE_VM | libc::CLONE_SIGHAND | libc::CLONE_THREAD;
        assert_eq!(flags(thread), Makes::Guest);
    }
}
