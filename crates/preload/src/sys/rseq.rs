//! Our threads leave restartable sequences, in which glibc enrols every thread.
//!
//! With every preemption the kernel writes the CPU's number to the thread's `rseq` area, which is
//! on its stack. Where that page is in swap and the memory limit is reached it cannot, and ends the
//! whole process with SIGSEGV. Our threads have no use for the number.

use std::sync::atomic::{AtomicIsize, Ordering};

/// From the thread pointer to the area, in every thread. 0: there is none, or it is not known.
static OFFSET: AtomicIsize = AtomicIsize::new(0);

/// What glibc enrols, the original size; a kernel that wants another refuses and nothing changes.
const AREA_BYTES: u32 = 32;
const UNREGISTER: i32 = 1;
/// What stands before abort handlers: part of the enrolment.
#[cfg(target_arch = "x86_64")]
const SIGNATURE: u32 = 0x5305_3053;
#[cfg(target_arch = "aarch64")]
const SIGNATURE: u32 = 0xd428_bc00;

/// Finds out where the area is, while the process has one thread, because `dlsym` may allocate.
pub fn resolve() {
    // SAFETY: a look-up by a NUL-terminated name.
    let place = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"__rseq_offset".as_ptr()) };
    // SAFETY: what has this name in glibc (2.35 and newer) is a constant `ptrdiff_t`.
    let offset = unsafe { place.cast::<isize>().as_ref() };
    OFFSET.store(offset.copied().unwrap_or(0), Ordering::Relaxed);
}

/// Takes the calling thread out; it must be one of the runtime's. From then on `sched_getcpu` asks
/// the kernel.
pub fn leave() {
    let offset = OFFSET.load(Ordering::Relaxed);
    if offset == 0 {
        return;
    }
    let area = thread_pointer().wrapping_add_signed(offset);
    // SAFETY: the kernel compares the address and forgets it, or refuses. Nobody else needs the
    // area: on a runtime thread only code of ours and of libc runs.
    unsafe { libc::syscall(libc::SYS_rseq, area, AREA_BYTES, UNREGISTER, SIGNATURE) };
}

#[cfg(target_arch = "x86_64")]
fn thread_pointer() -> usize {
    let at: usize;
    // SAFETY: the ABI has the thread pointer's own address in its first word.
    unsafe { std::arch::asm!("mov {}, fs:0", out(reg) at, options(nostack, readonly)) };
    at
}

#[cfg(target_arch = "aarch64")]
fn thread_pointer() -> usize {
    let at: usize;
    // SAFETY: reads a register.
    unsafe { std::arch::asm!("mrs {}, tpidr_el0", out(reg) at, options(nostack, nomem)) };
    at
}
