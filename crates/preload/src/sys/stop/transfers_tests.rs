//! Real threads in system calls of their own, whose registers and stack are looked at afterwards.

use super::tests::{in_a_process_of_its_own, stopper};
use super::*;
use std::os::unix::thread::JoinHandleExt;

const BYTES: usize = 1 << 20;
const WORDS: usize = 16;

/// What a call has left: its result, `rbx`, `rbp`, `r12` to `r15`, `rdi`, `rsi`, `rdx`, `r10`,
/// `r8`, `r9`, some flags, and the words below the stack pointer.
type After = [u64; 14 + WORDS];

/// Makes a call with known values in all registers and below the stack pointer, on its caller's
/// stack or, if that is not 0, at `stack`.
///
/// # Safety
/// As for the call, with so many arguments; there is room at `stack` for what a function may use.
#[unsafe(naked)]
unsafe extern "C" fn call(number: i64, args: &[u64; 6], after: &mut After, stack: u64) {
    std::arch::naked_asm!(
        "push rbx",
        "push rbp",
        "push r12",
        "push r13",
        "push r14",
        "push r15",
        "mov r11, rsp",
        "test rcx, rcx",
        "cmovnz rsp, rcx",
        "sub rsp, 16",
        "mov [rsp], rdx",
        "mov [rsp + 8], r11",
        "mov rax, rdi",
        "mov r11, rsi",
        "mov rdi, [r11]",
        "mov rsi, [r11 + 8]",
        "mov rdx, [r11 + 16]",
        "mov r10, [r11 + 24]",
        "mov r8, [r11 + 32]",
        "mov r9, [r11 + 40]",
        "mov ebx, 1001",
        "mov ebp, 1002",
        "mov r12d, 1003",
        "mov r13d, 1004",
        "mov r14d, 1005",
        "mov r15d, 1006",
        "mov rcx, -{words}",
        "2:",
        "mov [rsp + rcx * 8], rcx",
        "inc rcx",
        "jnz 2b",
        // Overflow, and carry.
        "mov ecx, 0x80000000",
        "sub ecx, 1",
        "stc",
        "syscall",
        "mov rcx, [rsp]",
        "mov [rcx], rax",
        "lahf",
        "seto al",
        "movzx eax, ax",
        "mov [rcx + 104], rax",
        "mov [rcx + 8], rbx",
        "mov [rcx + 16], rbp",
        "mov [rcx + 24], r12",
        "mov [rcx + 32], r13",
        "mov [rcx + 40], r14",
        "mov [rcx + 48], r15",
        "mov [rcx + 56], rdi",
        "mov [rcx + 64], rsi",
        "mov [rcx + 72], rdx",
        "mov [rcx + 80], r10",
        "mov [rcx + 88], r8",
        "mov [rcx + 96], r9",
        "mov r11, -{words}",
        "3:",
        "mov rax, [rsp + r11 * 8]",
        "mov [rcx + r11 * 8 + 112 + 8 * {words}], rax",
        "inc r11",
        "jnz 3b",
        "mov rsp, [rsp + 8]",
        "pop r15",
        "pop r14",
        "pop r13",
        "pop r12",
        "pop rbp",
        "pop rbx",
        "ret",
        words = const WORDS,
    )
}

/// What a call leaves that returns `result`.
fn left_by(result: i64, args: [u64; 6]) -> After {
    let mut after = [0; 14 + WORDS];
    // Of the flags, parity (of 0xff) and half carry stand beside carry, and the bit that is always
    // set.
    let registers =
        [&[result as u64, 1001, 1002, 1003, 1004, 1005, 1006][..], &args, &[0x1701]].concat();
    after[..14].copy_from_slice(&registers);
    for (i, word) in after[14..].iter_mut().enumerate() {
        *word = (i as u64).wrapping_sub(WORDS as u64);
    }
    after
}

fn byte_at(i: usize) -> u8 {
    (i ^ i >> 8 ^ i >> 13) as u8
}

fn pipe() -> [i32; 2] {
    let mut ends = [0; 2];
    // SAFETY: the kernel writes two descriptors.
    assert_eq!(unsafe { libc::pipe2(ends.as_mut_ptr(), 0) }, 0);
    ends
}

fn sockets(kind: i32) -> [i32; 2] {
    let mut ends = [0; 2];
    // SAFETY: as above.
    assert_eq!(unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, ends.as_mut_ptr()) }, 0);
    ends
}

fn wait_at_most_ms(fd: i32, events: i16, ms: i32) -> bool {
    let mut poll = libc::pollfd { fd, events, revents: 0 };
    // SAFETY: one descriptor.
    unsafe { libc::poll(&mut poll, 1, ms) == 1 }
}

/// Has a thread make a call, and stops it again and again while `other` does a little at the other
/// end. What the thread returns.
fn stopped_again_and_again<T: Send + 'static>(
    stopper: &Stopper,
    thread: std::thread::JoinHandle<T>,
    mut other: impl FnMut(),
) -> T {
    let until = thread::now_ns() + 20_000_000_000;
    while !thread.is_finished() {
        assert!(thread::now_ns() < until, "it does not come back");
        thread::sleep_us(500);
        let _ = stopper.take(Vec::new, || ());
        other();
    }
    thread.join().expect("no panic")
}

/// Reads some, and sees that it is right.
fn take_some(from: i32, at: &mut usize) {
    let mut some = [0u8; 20_000];
    if wait_at_most_ms(from, libc::POLLIN, 0) {
        // SAFETY: a buffer of that size.
        let n = unsafe { libc::read(from, some.as_mut_ptr().cast(), some.len()) } as usize;
        assert!(some[..n].iter().enumerate().all(|(i, &byte)| byte == byte_at(*at + i)));
        *at += n;
    }
}

#[test]
fn a_write_is_whole_and_leaves_all_registers_and_the_stack_as_a_system_call_does() {
    in_a_process_of_its_own(|| {
        let stopper = stopper();
        for is_socket in [false, true] {
            let ends = if is_socket { sockets(libc::SOCK_STREAM) } else { pipe() };
            let (from, to) = (ends[0], ends[1]);
            let thread = std::thread::spawn(move || {
                let bytes: Vec<u8> = (0..BYTES).map(byte_at).collect();
                let args = [to as u64, bytes.as_ptr() as u64, BYTES as u64, 1010, 1008, 1009];
                let mut after = [0; 14 + WORDS];
                // SAFETY: writes bytes that are there.
                unsafe { call(libc::SYS_write, &args, &mut after, 0) };
                assert_eq!(after, left_by(BYTES as i64, args));
            });
            let mut at = 0;
            stopped_again_and_again(&stopper, thread, || take_some(from, &mut at));
            while at < BYTES {
                take_some(from, &mut at);
            }
        }
    });
}

#[test]
fn where_the_stack_has_no_room_the_count_is_short_and_nothing_else_is_written() {
    in_a_process_of_its_own(|| {
        let stopper = stopper();
        let ends = pipe();
        // SAFETY: a mapping of our own, of which the lower page may not be touched.
        let stack = unsafe {
            let rw = libc::PROT_READ | libc::PROT_WRITE;
            let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            let p = libc::mmap(std::ptr::null_mut(), 8192, rw, kind, -1, 0);
            assert_eq!(libc::mprotect(p, 4096, libc::PROT_NONE), 0);
            p as u64 + 4096
        };
        let thread = std::thread::spawn(move || {
            let bytes = vec![0u8; BYTES];
            let args = [ends[1] as u64, bytes.as_ptr() as u64, BYTES as u64, 1010, 1008, 1009];
            let mut after = [0; 14 + WORDS];
            // SAFETY: 16 bytes that it uses, and below them those that a function may.
            unsafe { call(libc::SYS_write, &args, &mut after, stack + 16 + 128) };
            let result = after[0] as i64;
            assert!(result > 0 && result < BYTES as i64);
            assert_eq!(after, left_by(result, args));
        });
        stopped_again_and_again(&stopper, thread, || ());
    });
}

/// Five pieces of a buffer, some empty.
fn pieces(p: *mut u8) -> [libc::iovec; 5] {
    let mut at = 0;
    [0, 100_000, 0, 1, BYTES - 100_001].map(|len| {
        // SAFETY: within the buffer.
        let piece = libc::iovec { iov_base: unsafe { p.add(at) }.cast(), iov_len: len };
        at += len;
        piece
    })
}

#[test]
fn every_kind_of_transfer_is_whole() {
    type Call = fn(i32, *mut u8) -> isize;
    /// With a message of those pieces.
    fn message(p: *mut u8, call: impl Fn(&mut libc::msghdr) -> isize) -> isize {
        let mut pieces = pieces(p);
        // SAFETY: plain data; the pieces live as long as the call.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        (message.msg_iov, message.msg_iovlen) = (pieces.as_mut_ptr(), pieces.len());
        call(&mut message)
    }
    let sending: [Call; 3] = [
        // SAFETY: the buffer has so many bytes.
        |fd, p| unsafe { libc::send(fd, p.cast(), BYTES, 0) },
        // SAFETY: as above.
        |fd, p| unsafe { libc::writev(fd, pieces(p).as_ptr(), 5) },
        // SAFETY: as above.
        |fd, p| message(p, |m| unsafe { libc::sendmsg(fd, m, 0) }),
    ];
    let receiving: [Call; 2] = [
        // SAFETY: as above.
        |fd, p| unsafe { libc::recv(fd, p.cast(), BYTES, libc::MSG_WAITALL) },
        // SAFETY: as above.
        |fd, p| message(p, |m| unsafe { libc::recvmsg(fd, m, libc::MSG_WAITALL) }),
    ];
    in_a_process_of_its_own(|| {
        let stopper = stopper();
        for send in sending {
            let [from, to] = sockets(libc::SOCK_STREAM);
            let thread = std::thread::spawn(move || {
                let mut bytes: Vec<u8> = (0..BYTES).map(byte_at).collect();
                assert_eq!(send(to, bytes.as_mut_ptr()), BYTES as isize);
            });
            let mut at = 0;
            stopped_again_and_again(&stopper, thread, || take_some(from, &mut at));
            while at < BYTES {
                take_some(from, &mut at);
            }
        }
        for receive in receiving {
            let [from, to] = sockets(libc::SOCK_STREAM);
            let thread = std::thread::spawn(move || {
                let mut bytes = vec![0; BYTES];
                assert_eq!(receive(from, bytes.as_mut_ptr()), BYTES as isize);
                assert!(bytes.iter().enumerate().all(|(i, &byte)| byte == byte_at(i)));
            });
            let all: Vec<u8> = (0..BYTES).map(byte_at).collect();
            let mut parts = all.chunks(20_000);
            stopped_again_and_again(&stopper, thread, || {
                if let Some(part) = parts.next() {
                    // SAFETY: a buffer of that size.
                    let n = unsafe { libc::write(to, part.as_ptr().cast(), part.len()) };
                    assert_eq!(n, part.len() as isize);
                }
            });
        }
        let thread = std::thread::spawn(|| {
            let mut bytes = vec![0u8; 64 * BYTES];
            // SAFETY: a buffer of that size.
            let n = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
            assert_eq!(n, bytes.len() as isize);
            assert!(bytes.chunks(64).all(|some| some.iter().any(|&byte| byte != 0)));
        });
        stopped_again_and_again(&stopper, thread, || ());
    });
}

#[test]
fn what_programs_know_to_be_short_stays_short() {
    in_a_process_of_its_own(|| {
        let stopper = stopper();
        let part_of = |to: i32, flags: i32| {
            let thread = std::thread::spawn(move || {
                let bytes = vec![0u8; BYTES];
                // SAFETY: a buffer of that size.
                unsafe { libc::send(to, bytes.as_ptr().cast(), BYTES, flags) }
            });
            let n = stopped_again_and_again(&stopper, thread, || ());
            assert!(n > 0 && n < BYTES as isize);
        };
        part_of(sockets(libc::SOCK_STREAM)[1], libc::MSG_DONTWAIT);
        part_of(sockets(libc::SOCK_STREAM | libc::SOCK_NONBLOCK)[1], 0);
        let [_, to] = sockets(libc::SOCK_STREAM);
        let time = libc::timeval { tv_sec: 3600, tv_usec: 0 };
        let (at, size) = ((&raw const time).cast(), size_of_val(&time) as u32);
        // SAFETY: an option of that size.
        let set = unsafe { libc::setsockopt(to, libc::SOL_SOCKET, libc::SO_SNDTIMEO, at, size) };
        assert_eq!(set, 0);
        part_of(to, 0);
    });
}

#[test]
fn a_handler_ends_a_transfer_that_is_part_done_and_signals_are_not_held_back_afterwards() {
    static TAKEN: AtomicU64 = AtomicU64::new(0);
    extern "C" fn count(_signal: libc::c_int) {
        TAKEN.fetch_add(1, Ordering::Relaxed);
    }
    in_a_process_of_its_own(|| {
        let stopper = stopper();
        for round in 0..40u64 {
            // SAFETY: a handler that only counts.
            unsafe {
                let mut action: libc::sigaction = std::mem::zeroed();
                action.sa_sigaction = count as extern "C" fn(libc::c_int) as usize;
                action.sa_flags = if round % 2 == 0 { libc::SA_RESTART } else { 0 };
                libc::sigaction(libc::SIGUSR1, &action, std::ptr::null_mut());
            }
            let ends = pipe();
            let thread = std::thread::spawn(move || {
                let bytes = vec![0u8; BYTES];
                // SAFETY: a buffer of that size, and a set that the kernel fills.
                unsafe {
                    let n = libc::write(ends[1], bytes.as_ptr().cast(), BYTES);
                    let mut held_back: libc::sigset_t = std::mem::zeroed();
                    libc::pthread_sigmask(libc::SIG_BLOCK, std::ptr::null(), &mut held_back);
                    assert_eq!(libc::sigismember(&held_back, libc::SIGUSR1), 0);
                    n
                }
            });
            while !wait_at_most_ms(ends[0], libc::POLLIN, 1000) {}
            thread::sleep_us(2000);
            for _ in 0..round % 3 {
                let _ = stopper.take(Vec::new, || ());
            }
            // At any moment of a stop and of what comes after it.
            let id = thread.as_pthread_t();
            let sender = std::thread::spawn(move || {
                thread::adopt();
                thread::sleep_us(round * 20);
                // SAFETY: the thread is there until it is joined.
                unsafe { libc::pthread_kill(id, libc::SIGUSR1) };
            });
            let _ = stopper.take(Vec::new, || ());
            sender.join().expect("no panic");
            let n = stopped_again_and_again(&stopper, thread, || ());
            assert_eq!(n, 65536, "what a pipe holds");
            assert_eq!(TAKEN.load(Ordering::Relaxed), round + 1);
            // SAFETY: ours.
            ends.iter().for_each(|&end| assert_eq!(unsafe { libc::close(end) }, 0));
        }
    });
}

#[test]
fn descriptors_of_its_own_are_seen() {
    let has_own = |parts: bool| {
        let (ask, asked) = std::sync::mpsc::channel::<()>();
        let (answer, answers) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            if parts {
                // SAFETY: this thread opens and closes nothing from here on.
                assert_eq!(unsafe { libc::unshare(libc::CLONE_FILES) }, 0);
            }
            answer.send(thread::gettid()).expect("a listener");
            let _ = asked.recv();
        });
        let tid = answers.recv().expect("a thread");
        let has_own = transfers::has_own_descriptors(tid as i32);
        drop(ask);
        thread.join().expect("no panic");
        has_own
    };
    assert!(!has_own(false));
    let own = raw::call(libc::SYS_gettid, [0; 6]) as u64;
    if raw::call(libc::SYS_kcmp, [own, own, 2, 0, 0, 0]) == 0 {
        assert!(has_own(true));
    } else {
        eprintln!("skipped in part: kcmp is not permitted");
    }
}
