//! System calls without libc, which a process that shares our memory may make: libc would write
//! `errno` to the thread-local storage of the thread that made the process.

use super::Shared;

/// Makes a process that shares our memory and descriptors, and nothing else, and runs `entry` on
/// the stack below `stack_top`. Its process id, or the negated errno. It is no child that the
/// program's `wait` sees (no signal at its end), and no debugger of the program's follows it.
///
/// # Safety
/// `entry` never returns, uses no libc and no thread-local storage, and nobody else uses the stack.
#[cfg(target_arch = "x86_64")]
pub unsafe fn clone_sharing(
    stack_top: u64,
    entry: extern "C" fn(&'static Shared) -> !,
    shared: &'static Shared,
) -> i64 {
    // (Not the directory: who shares that with others gets no rights of what it executes.)
    let flags = libc::CLONE_VM | libc::CLONE_FILES | libc::CLONE_UNTRACED;
    let pid: i64;
    // SAFETY: the caller's promise. In the new process no register but the stack pointer differs
    // from ours at this instruction; it goes to `entry` and does not come back.
    unsafe {
        std::arch::asm!(
            "syscall",
            "test rax, rax",
            "jnz 2f",
            "xor ebp, ebp",
            "mov rdi, r12",
            "call r13",
            "ud2",
            "2:",
            inlateout("rax") libc::SYS_clone => pid,
            in("rdi") flags as u64,
            in("rsi") stack_top & !15,
            in("rdx") 0u64,
            in("r10") 0u64,
            in("r8") 0u64,
            in("r12") std::ptr::from_ref(shared),
            in("r13") entry as usize,
            lateout("rcx") _,
            lateout("r11") _,
        );
    }
    pid
}

/// There is none.
///
/// # Safety
/// None is needed.
#[cfg(not(target_arch = "x86_64"))]
pub unsafe fn clone_sharing(
    _stack_top: u64,
    _entry: extern "C" fn(&'static Shared) -> !,
    _shared: &'static Shared,
) -> i64 {
    -i64::from(libc::ENOSYS)
}

/// A system call; its result, or the negated errno. Only for calls that touch no memory but what
/// their arguments lend, or the program's in ways that are harmless or argued for by the caller.
#[cfg(target_arch = "x86_64")]
pub fn call(number: libc::c_long, args: [u64; 6]) -> i64 {
    let result: i64;
    // SAFETY: the kernel checks all arguments; the callers are in this folder, and lend what they
    // name.
    unsafe {
        std::arch::asm!(
            "syscall",
            inlateout("rax") number => result,
            in("rdi") args[0],
            in("rsi") args[1],
            in("rdx") args[2],
            in("r10") args[3],
            in("r8") args[4],
            in("r9") args[5],
            lateout("rcx") _,
            lateout("r11") _,
        );
    }
    result
}

/// There is none.
#[cfg(not(target_arch = "x86_64"))]
pub fn call(_number: libc::c_long, _args: [u64; 6]) -> i64 {
    -i64::from(libc::ENOSYS)
}
