//! Transfers that a stop must not cut short.
//!
//! A thread that waits in a blocking `write` to a pipe is woken by a stop, and if a part has gone
//! already the call returns the count so far, as it does for a handler. There are programs that
//! take a blocking call for all or nothing, and lose the rest. So the stopper sends such a thread
//! through [`rest_of_call`] before it returns to the program: that waits until more can be
//! transferred (`ppoll`), transfers it without waiting, and so on, and returns the sum.
//!
//! What the function needs is in a [`Frame`], which the stopper writes below the thread's stack and
//! the bytes under it that are a function's own.
//!
//! # Signals
//!
//! A handler ends a call that has transferred a part, whatever its `SA_RESTART` (a call that has
//! transferred nothing may be made again). So the thread must not wait on when one has run, be it
//! on the way to the next wait. Hence all signals are held back, but in `ppoll`, which lets them
//! come only while it waits and says `EINTR` then. The stopper holds them back while the thread
//! stands still. Where it is killed before that, one that comes in this moment is overlooked.
//!
//! # What is left as it is
//!
//! - What may return a part of its own accord, or does not wait, or has a timeout: programs know;
//! - datagrams and control data, which go with one call;
//! - terminals, and `sendfile`: there is no way to go on without waiting;
//! - a call of which anything cannot be read, or for which the frame cannot be written;
//! - all calls of a program with a seccomp filter, which may forbid what it takes to go on, and of
//!   threads with descriptors of their own, which are not those that the stopper can ask about.
//!
//! An error after a part is no error, as ever; a socket is not asked for one, so that the next call
//! tells it. As where the kernel itself makes a call again, the descriptor is looked up again.

use super::raw;
use super::stopper::ptrace_at;
use crate::offspring;
use libc::user_regs_struct as Registers;
use std::mem::{offset_of, size_of, zeroed};

const PTRACE_GETREGS: u64 = 12;
const PTRACE_SETREGSET: u64 = 0x4205;
const PTRACE_GETSIGMASK: u64 = 0x420a;
const PTRACE_SETSIGMASK: u64 = 0x420b;
const NT_PRSTATUS: u64 = 1;
const ERESTARTSYS: i64 = 512;
const EAGAIN: i64 = libc::EAGAIN as i64;
/// Bytes below the stack pointer that a function may use.
const RED_ZONE: u64 = 128;
/// Bytes that one call transfers, at most.
const BYTES_MAX: u64 = 0x7fff_f000;
/// Pieces of memory that may be left: a frame has room for so many.
const PIECES_MAX: usize = 16;
/// So much goes into a pipe without waiting if anything does, and nobody else writes to it.
const PIPE_BYTES: u64 = 4096;
/// So many bytes of random are made before the next look for a signal.
const ENDLESS_BYTES: u64 = 64 << 10;
/// Flags of calls that can be gone on with. (With `MSG_PEEK` nothing is taken, with `MSG_ZEROCOPY`
/// calls are counted.)
const SENDING: u64 = (libc::MSG_NOSIGNAL | libc::MSG_MORE) as u64;
const RECEIVING: u64 = (libc::MSG_WAITALL | libc::MSG_NOSIGNAL | libc::MSG_CMSG_CLOEXEC) as u64;
const WAITALL: u64 = libc::MSG_WAITALL as u64;
/// And of those that go on. (A peer that is gone is no news after a part.)
const AT_ONCE: u64 = (libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) as u64;
/// Calls that may have to go on.
const NUMBERS: [i64; 8] = [
    libc::SYS_write,
    libc::SYS_writev,
    libc::SYS_sendto,
    libc::SYS_sendmsg,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_getrandom,
    libc::SYS_read,
];
/// The devices zero, random and urandom, of which a `read` is whole.
const ENDLESS: [u64; 3] = [0x105, 0x108, 0x109];
/// Signals of the thread's own doing, which must not be held back.
const OWN_DOING: [i32; 6] =
    [libc::SIGILL, libc::SIGTRAP, libc::SIGBUS, libc::SIGFPE, libc::SIGSEGV, libc::SIGSYS];

/// What a thread in [`rest_of_call`] has at its stack pointer.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Frame {
    /// Where the program goes on, and with what.
    rip: u64,
    rsp: u64,
    rbx: u64,
    r12: u64,
    r13: u64,
    rdi: u64,
    rsi: u64,
    rdx: u64,
    r10: u64,
    r8: u64,
    r9: u64,
    flags: u64,
    signals: u64,
    /// What is waited for, and for how long: 0 is for ever, else the address of `no_time`.
    descriptor: i32,
    events: i16,
    found: i16,
    timeout: u64,
    no_time: [u64; 2],
    /// What is found with a socket that has an error.
    error: u64,
    /// The call that transfers: its number, descriptor, flags, and how much it may be asked for.
    number: u64,
    fd: u64,
    call_flags: u64,
    most: u64,
    /// Only so many as there are.
    pieces: [Piece; PIECES_MAX],
}

/// `struct iovec`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Piece {
    base: u64,
    len: u64,
}

/// `struct msghdr`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Message {
    name: u64,
    name_len: u64,
    pieces: u64,
    count: u64,
    control: u64,
    control_len: u64,
    flags: u64,
}

/// Transfers `r13` pieces from `r12` on, adds what was transferred to `rbx`, and returns that to
/// where the frame says, as the instruction `syscall` would.
///
/// Who unwinds from within, as the cancellation of a thread does, finds the program's own call
/// interrupted.
///
/// # Safety
/// Only for the stopper, which has threads go on at [`behind_call`] as if the call there had said
/// that it would have to wait.
#[unsafe(naked)]
unsafe extern "C" fn rest_of_call() {
    std::arch::naked_asm!(
        ".cfi_startproc",
        ".cfi_signal_frame",
        // The program's stack pointer is at rsp + 8, its address at rsp, rbx and what follows at
        // rsp + 16.
        ".cfi_escape 0x0f, 3, 0x77, 8, 0x06",
        ".cfi_escape 0x10, 16, 2, 0x77, 0",
        ".cfi_escape 0x10, 3, 2, 0x77, 16",
        ".cfi_escape 0x10, 12, 2, 0x77, 24",
        ".cfi_escape 0x10, 13, 2, 0x77, 32",
        "2:",
        "syscall",
        "cmp rax, {again}",
        "je 4f",
        "test rax, rax",
        // Refused, or the end.
        "jle 6f",
        "add rbx, rax",
        "add [r12 + {base}], rax",
        "sub [r12 + {len}], rax",
        "3:",
        "cmp qword ptr [r12 + {len}], 0",
        "jne 4f",
        "add r12, {piece}",
        "dec r13",
        "jnz 3b",
        "jmp 6f",
        // Until something can be transferred, or a handler has run.
        "4:",
        "mov eax, {ppoll}",
        "lea rdi, [rsp + {descriptor}]",
        "mov esi, 1",
        "mov rdx, [rsp + {timeout}]",
        "lea r10, [rsp + {signals}]",
        "mov r8d, 8",
        "syscall",
        "test rax, rax",
        "js 6f",
        "movzx eax, word ptr [rsp + {found}]",
        "test rax, [rsp + {error}]",
        "jnz 6f",
        "mov rdi, [rsp + {fd}]",
        "mov rsi, [r12 + {base}]",
        "mov rdx, [r12 + {len}]",
        "cmp rdx, [rsp + {most}]",
        "cmova rdx, [rsp + {most}]",
        "mov r10, [rsp + {call_flags}]",
        "xor r8d, r8d",
        "xor r9d, r9d",
        "mov rax, [rsp + {number}]",
        "cmp rax, {getrandom}",
        "jne 2b",
        "mov rdi, rsi",
        "mov rsi, rdx",
        "mov rdx, r10",
        "jmp 2b",
        "6:",
        "mov eax, {sigprocmask}",
        "mov edi, {set}",
        "lea rsi, [rsp + {signals}]",
        "xor edx, edx",
        "mov r10d, 8",
        "syscall",
        "mov rax, rbx",
        "mov rbx, [rsp + {rbx}]",
        "mov r12, [rsp + {r12}]",
        "mov r13, [rsp + {r13}]",
        "mov rdi, [rsp + {rdi}]",
        "mov rsi, [rsp + {rsi}]",
        "mov rdx, [rsp + {rdx}]",
        "mov r10, [rsp + {r10}]",
        "mov r8, [rsp + {r8}]",
        "mov r9, [rsp + {r9}]",
        "mov rcx, [rsp + {rip}]",
        "mov r11, [rsp + {rsp}]",
        ".cfi_def_cfa 11, 0",
        ".cfi_register 16, 2",
        ".cfi_same_value 3",
        ".cfi_same_value 12",
        ".cfi_same_value 13",
        "lea rsp, [rsp + {flags}]",
        "popfq",
        "mov rsp, r11",
        // (With `ret` a shadow stack would have to know of it.)
        "jmp rcx",
        ".cfi_endproc",
        again = const -EAGAIN,
        ppoll = const libc::SYS_ppoll,
        getrandom = const libc::SYS_getrandom,
        sigprocmask = const libc::SYS_rt_sigprocmask,
        set = const libc::SIG_SETMASK,
        piece = const size_of::<Piece>(),
        base = const offset_of!(Piece, base),
        len = const offset_of!(Piece, len),
        rip = const offset_of!(Frame, rip),
        rsp = const offset_of!(Frame, rsp),
        rbx = const offset_of!(Frame, rbx),
        r12 = const offset_of!(Frame, r12),
        r13 = const offset_of!(Frame, r13),
        rdi = const offset_of!(Frame, rdi),
        rsi = const offset_of!(Frame, rsi),
        rdx = const offset_of!(Frame, rdx),
        r10 = const offset_of!(Frame, r10),
        r8 = const offset_of!(Frame, r8),
        r9 = const offset_of!(Frame, r9),
        flags = const offset_of!(Frame, flags),
        signals = const offset_of!(Frame, signals),
        descriptor = const offset_of!(Frame, descriptor),
        found = const offset_of!(Frame, found),
        timeout = const offset_of!(Frame, timeout),
        error = const offset_of!(Frame, error),
        number = const offset_of!(Frame, number),
        fd = const offset_of!(Frame, fd),
        call_flags = const offset_of!(Frame, call_flags),
        most = const offset_of!(Frame, most),
    )
}

// What the unwinder is told.
const _: () = assert!(offset_of!(Frame, rip) == 0 && offset_of!(Frame, rsp) == 8);
const _: () = assert!(offset_of!(Frame, rbx) == 16 && offset_of!(Frame, r12) == 24);
const _: () = assert!(offset_of!(Frame, r13) == 32);

/// The address behind its first instruction, which is two bytes long.
fn behind_call() -> u64 {
    rest_of_call as *const () as u64 + 2
}

/// Whether a stopped thread may have to go on with a transfer. [`go_on`] may then have to wait for
/// a page of its stack, which the pager brings; so nobody else should be standing still.
pub fn is_part_done(tid: i32) -> bool {
    let may_go_on = |r: &Registers| is_back_with_a_part(r) && !offspring::has_filter();
    registers(tid).is_some_and(|r| may_go_on(&r) || is_in_a_full_pipe(&r))
}

/// (What is in `rcx` tells from another instruction, which has other numbers; and from where the
/// kernel is about to make the call again, and has put its number in the place of the result.)
fn is_back_with_a_part(r: &Registers) -> bool {
    let is_back = r.rcx == r.rip && r.rip != behind_call();
    is_back && r.rax as i64 > 0 && NUMBERS.contains(&(r.orig_rax as i64))
}

/// Whether it is about to wait in a call that should not: somebody else has filled the pipe.
fn is_in_a_full_pipe(r: &Registers) -> bool {
    r.rip == behind_call() && r.rax as i64 == -ERESTARTSYS
}

/// Has a stopped thread go on with the transfer that the stop has cut short, if there is one.
pub fn go_on(tid: i32) {
    let Some(mut r) = registers(tid) else { return };
    if is_in_a_full_pipe(&r) {
        // There no signal comes.
        r.rax = -EAGAIN as u64;
        set_registers(tid, &r);
        return;
    }
    let mut frame = Frame::default();
    if !is_back_with_a_part(&r) || has_own_descriptors(tid) {
        return;
    }
    let Some(count) = rest_of(&r, &mut frame) else { return };
    let to = std::ptr::from_mut(&mut frame.signals) as u64;
    if ptrace_at(PTRACE_GETSIGMASK, tid, 8, to) != 0 {
        return;
    }
    let len = offset_of!(Frame, pieces) + count * size_of::<Piece>();
    let at = r.rsp.wrapping_sub(RED_ZONE + len as u64) & !15;
    (frame.rip, frame.rsp, frame.flags) = (r.rip, r.rsp, r.eflags);
    (frame.rbx, frame.r12, frame.r13) = (r.rbx, r.r12, r.r13);
    (frame.rdi, frame.rsi, frame.rdx) = (r.rdi, r.rsi, r.rdx);
    (frame.r10, frame.r8, frame.r9) = (r.r10, r.r8, r.r9);
    if frame.timeout != 0 {
        frame.timeout = at + offset_of!(Frame, no_time) as u64;
    }
    let from = std::ptr::from_ref(&frame) as u64;
    if !copy(libc::SYS_process_vm_writev, from, at, len) {
        return;
    }
    (r.rbx, r.r13) = (r.rax, count as u64);
    r.r12 = at + offset_of!(Frame, pieces) as u64;
    (r.rip, r.rsp) = (behind_call(), at);
    (r.rax, r.orig_rax) = (-EAGAIN as u64, u64::MAX);
    set_registers(tid, &r);
    // Last: whoever goes on without it has a mask that is its own.
    let own_doing = OWN_DOING.iter().fold(0u64, |set, signal| set | 1 << (signal - 1));
    let held_back = !own_doing;
    ptrace_at(PTRACE_SETSIGMASK, tid, 8, std::ptr::from_ref(&held_back) as u64);
}

/// What is left of a call, as a frame says it, and how many pieces that is. `None` where the call
/// is not to go on.
fn rest_of(r: &Registers, frame: &mut Frame) -> Option<usize> {
    let (number, n) = (r.orig_rax as i64, r.rax);
    frame.fd = r.rdi;
    let has_only = |flags: u64, allowed: u64| flags & !allowed == 0;
    let is_whole = match number {
        libc::SYS_write | libc::SYS_writev => match kind(r.rdi)? {
            (libc::S_IFIFO, _) => frame.sends_to_pipe(),
            (libc::S_IFSOCK, _) => frame.sends(0),
            _ => false,
        },
        libc::SYS_sendto => has_only(r.r10, SENDING) && frame.sends(r.r10),
        libc::SYS_sendmsg => has_only(r.rdx, SENDING) && frame.sends(r.rdx),
        libc::SYS_recvfrom => has_only(r.r10, RECEIVING) && frame.receives(r.r10),
        libc::SYS_recvmsg => has_only(r.rdx, RECEIVING) && frame.receives(r.rdx),
        libc::SYS_read => {
            let is_endless = |(kind, device)| kind == libc::S_IFCHR && ENDLESS.contains(&device);
            kind(r.rdi).is_some_and(is_endless) && frame.takes_endless(libc::SYS_read, 0)
        }
        libc::SYS_getrandom => frame.takes_endless(libc::SYS_getrandom, r.rdx),
        _ => false,
    };
    if !is_whole {
        return None;
    }
    let buffer = match number {
        libc::SYS_writev => return pieces_left(r.rsi, r.rdx, n, &mut frame.pieces),
        libc::SYS_sendmsg | libc::SYS_recvmsg => {
            let mut message = Message::default();
            let to = std::ptr::from_mut(&mut message) as u64;
            let is_read = copy(libc::SYS_process_vm_readv, to, r.rsi, size_of::<Message>());
            if !is_read || message.control != 0 {
                return None;
            }
            return pieces_left(message.pieces, message.count, n, &mut frame.pieces);
        }
        libc::SYS_getrandom => Piece { base: r.rdi, len: r.rsi },
        _ => Piece { base: r.rsi, len: r.rdx },
    };
    let left = buffer.len.min(BYTES_MAX).checked_sub(n).filter(|&left| left > 0)?;
    *frame.pieces.first_mut()? = Piece { base: buffer.base.wrapping_add(n), len: left };
    Some(1)
}

impl Frame {
    fn sends_to_pipe(&mut self) -> bool {
        (self.number, self.most) = (libc::SYS_write as u64, PIPE_BYTES);
        self.awaits(libc::POLLOUT);
        true
    }

    /// `false` if the call does not wait until everything is sent.
    fn sends(&mut self, flags: u64) -> bool {
        (self.number, self.most) = (libc::SYS_sendto as u64, BYTES_MAX);
        (self.call_flags, self.error) = (flags | AT_ONCE, libc::POLLERR as u64);
        self.awaits(libc::POLLOUT);
        is_patient_stream(self.fd, libc::SO_SNDTIMEO)
    }

    /// `false` if it does not wait until everything has come.
    fn receives(&mut self, flags: u64) -> bool {
        (self.number, self.most) = (libc::SYS_recvfrom as u64, BYTES_MAX);
        (self.call_flags, self.error) = (AT_ONCE, libc::POLLERR as u64);
        self.awaits(libc::POLLIN);
        flags & WAITALL != 0
            && is_patient_stream(self.fd, libc::SO_RCVTIMEO)
            // (Else the last bytes would not be said to be there.)
            && option(self.fd, libc::SO_RCVLOWAT) == Some([1, 0])
    }

    fn takes_endless(&mut self, number: i64, flags: u64) -> bool {
        (self.number, self.most, self.call_flags) = (number as u64, ENDLESS_BYTES, flags);
        (self.descriptor, self.timeout) = (-1, 1);
        true
    }

    fn awaits(&mut self, events: i16) {
        (self.descriptor, self.events) = (self.fd as i32, events);
    }
}

/// What is left of pieces of the program's when `n` bytes are done, and how many pieces that is.
fn pieces_left(at: u64, len: u64, n: u64, into: &mut [Piece; PIECES_MAX]) -> Option<usize> {
    let (mut first, mut done) = (0, n);
    'found: loop {
        let some = len.checked_sub(first).filter(|&some| some > 0)?.min(PIECES_MAX as u64) as usize;
        for piece in pieces_at(at, first, some, into)? {
            if done < piece.len {
                break 'found;
            }
            done -= piece.len;
            first += 1;
        }
    }
    let count = (len - first).min(PIECES_MAX as u64 + 1) as usize;
    let pieces = pieces_at(at, first, count, into)?;
    let begun = pieces.first_mut()?;
    *begun = Piece { base: begun.base.wrapping_add(done), len: begun.len.checked_sub(done)? };
    let bytes = pieces.iter().try_fold(n, |sum, piece| sum.checked_add(piece.len))?;
    (bytes <= BYTES_MAX).then_some(count)
}

/// Reads some pieces of the program's; `None` if they are too many.
fn pieces_at(
    at: u64,
    first: u64,
    count: usize,
    into: &mut [Piece; PIECES_MAX],
) -> Option<&mut [Piece]> {
    let size = size_of::<Piece>();
    let pieces = into.get_mut(..count)?;
    let to = pieces.as_mut_ptr() as u64;
    let from = at.wrapping_add(first * size as u64);
    copy(libc::SYS_process_vm_readv, to, from, count * size).then_some(pieces)
}

/// What a descriptor is of, and the number of a device; `None` if calls do not wait.
fn kind(fd: u64) -> Option<(libc::mode_t, u64)> {
    let flags = raw::call(libc::SYS_fcntl, [fd, libc::F_GETFL as u64, 0, 0, 0, 0]);
    if flags < 0 || flags & i64::from(libc::O_NONBLOCK) != 0 {
        return None;
    }
    // SAFETY: plain data, for the kernel to fill.
    let mut stat: libc::stat = unsafe { zeroed() };
    let to = std::ptr::from_mut(&mut stat) as u64;
    let result = raw::call(libc::SYS_fstat, [fd, to, 0, 0, 0, 0]);
    (result == 0).then_some((stat.st_mode & libc::S_IFMT, stat.st_rdev))
}

/// Whether a socket has no messages, and no end to its patience. (One that has would begin to wait
/// anew.)
fn is_patient_stream(fd: u64, timeout: libc::c_int) -> bool {
    if !matches!(kind(fd), Some((libc::S_IFSOCK, _))) {
        return false;
    }
    option(fd, libc::SO_TYPE).is_some_and(|[kind, _]| kind as libc::c_int == libc::SOCK_STREAM)
        && option(fd, timeout) == Some([0, 0])
}

fn option(fd: u64, name: libc::c_int) -> Option<[u64; 2]> {
    let mut value = [0u64; 2];
    let mut len = 16u32;
    let (to, size) = (value.as_mut_ptr() as u64, std::ptr::from_mut(&mut len) as u64);
    let args = [fd, libc::SOL_SOCKET as u64, name as u64, to, size, 0];
    (raw::call(libc::SYS_getsockopt, args) == 0).then_some(value)
}

/// Whether a thread of the program's shares no descriptors with those that made the stopper. Where
/// the kernel does not say (`kcmp` is forbidden in some containers) it is taken to: hardly any
/// program parts them.
pub(super) fn has_own_descriptors(tid: i32) -> bool {
    const KCMP_FILES: u64 = 2;
    let own = raw::call(libc::SYS_gettid, [0; 6]) as u64;
    raw::call(libc::SYS_kcmp, [own, tid as u64, KCMP_FILES, 0, 0, 0]) > 0
}

fn registers(tid: i32) -> Option<Registers> {
    // SAFETY: plain data, for the kernel to fill.
    let mut r: Registers = unsafe { zeroed() };
    let to = std::ptr::from_mut(&mut r) as u64;
    (ptrace_at(PTRACE_GETREGS, tid, 0, to) == 0).then_some(r)
}

/// All but the segments, which stay.
fn set_registers(tid: i32, r: &Registers) {
    let part = [std::ptr::from_ref(r) as u64, offset_of!(Registers, ss) as u64];
    ptrace_at(PTRACE_SETREGSET, tid, NT_PRSTATUS, part.as_ptr() as u64);
}

/// Reads or writes memory of the program's as another process would: what is not there, or may not
/// be written, is an error and no fault of ours.
fn copy(how: libc::c_long, own: u64, of_program: u64, len: usize) -> bool {
    // (Ours is the same memory; and the main thread may be gone, whose number the program's is.)
    let pid = raw::call(libc::SYS_getpid, [0; 6]) as u64;
    let (local, remote) = ([own, len as u64], [of_program, len as u64]);
    let args = [pid, local.as_ptr() as u64, 1, remote.as_ptr() as u64, 1, 0];
    raw::call(how, args) == len as i64
}
