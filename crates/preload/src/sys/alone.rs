//! libc goes on taking a program of one thread for one.
//!
//! With the first thread that is made in a process glibc's allocator begins to lock, and
//! libstdc++'s counters become atomic. A program that allocates much was 1.3 % slower by it, for
//! threads of ours, which never allocate there. So libc is told again what it held before.
//!
//! It then does without locks, so **none of our threads may be in libc where two of the program's
//! would need one**. After the start they call what only asks the kernel, and nothing else:
//!
//! - The program's allocator they do not use in any case (`heap.rs`; codecs work in memory of
//!   ours): a page of its heap may be in a tier.
//! - What is looked up by name was looked up before.
//! - To make a thread and to end one allocates and frees. All are made before libc is told, by the
//!   program's only thread, which waits for it; those that end, end by the system call.
//!
//! The program's own first thread ends this, and so does a change of its user, which libc then has
//! all threads follow (`credentials.rs`). Before 2.36 glibc keeps the same in each thread's
//! descriptor, too, and nothing is done.

use super::sync::OnlyThread;
use super::thread;
use std::ffi::CStr;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicU8, Ordering};

/// The flag: as everybody sees it, and libc's own where the program has made a copy of it. 0 for
/// none.
static PLACES: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];

/// Whether libc has been told.
static STATE: AtomicU32 = AtomicU32::new(UNDECIDED);
const UNDECIDED: u32 = 0;
const NOT_TOLD: u32 = 1;
const TOLD: u32 = 2;

/// The first glibc whose allocator goes by the flag alone.
const GLIBC_MINOR: u32 = 36;
/// A thread of ours looks as often whether that is decided.
const LOOK_EVERY_US: u64 = 200;

/// Finds the flag, before the first thread of ours is made, because `dlsym` may allocate. It is not
/// used if the process has threads already.
pub fn find() {
    if !is_known_glibc() {
        return;
    }
    let name = c"__libc_single_threaded";
    // SAFETY: libc is loaded, and stays; this names it, and looks a name up.
    let (seen, own) = unsafe {
        let libc = libc::dlopen(c"libc.so.6".as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD);
        if libc.is_null() {
            return;
        }
        (libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()), libc::dlsym(libc, name.as_ptr()))
    };
    if seen.is_null() || own.is_null() {
        return;
    }
    for (place, found) in PLACES.iter().zip([seen, own]) {
        place.store(found as u64, Ordering::Relaxed);
    }
    if !flags().all(|flag| flag.load(Ordering::Relaxed) == 1) {
        PLACES.iter().for_each(|place| place.store(0, Ordering::Relaxed));
    }
}

fn is_known_glibc() -> bool {
    // SAFETY: a call without arguments; the text is a constant of libc's.
    let version = unsafe { CStr::from_ptr(libc::gnu_get_libc_version()) };
    version.to_str().is_ok_and(is_known)
}

/// Of a version as glibc writes it: "2.36", or "2.39.9000" of a snapshot.
fn is_known(version: &str) -> bool {
    let mut numbers = version.split('.').map(|number| number.parse::<u32>().ok());
    let (major, minor) = (numbers.next().flatten(), numbers.next().flatten());
    major == Some(2) && minor.is_some_and(|minor| minor >= GLIBC_MINOR)
}

fn flags() -> impl Iterator<Item = &'static AtomicU8> {
    let places = PLACES.iter().map(|place| place.load(Ordering::Relaxed) as *const AtomicU8);
    // SAFETY: glibc's `char` of this name, in libc or in the program; neither is ever unloaded. It
    // is written where the program has one thread, by that one.
    places.filter_map(|place| unsafe { place.as_ref() })
}

/// Tells libc that the process has one thread, if it has but one that is not ours. On that one,
/// with `are_made`: all threads of ours are made, and wherever they are they keep to the promise
/// above. Must be called once if there are any.
pub fn decide(are_made: bool) {
    let has_flipped =
        flags().count() == PLACES.len() && flags().all(|flag| flag.load(Ordering::Relaxed) == 0);
    let state = if are_made && has_flipped && thread::program_is_counted_as_one() {
        flags().for_each(|flag| flag.store(1, Ordering::Relaxed));
        TOLD
    } else {
        NOT_TOLD
    };
    STATE.store(state, Ordering::Release);
}

/// On a thread of the program, which has one: from now on libc takes it for a program of many.
pub fn leave() {
    if STATE.load(Ordering::Relaxed) == TOLD {
        flags().for_each(|flag| flag.store(0, Ordering::Relaxed));
    }
}

/// On a thread of ours: whether it may make no thread, and must end by the system call. It was told
/// once, and is not asked whether libc still holds it, so that nothing depends on when that ends.
pub fn is_told() -> bool {
    loop {
        match STATE.load(Ordering::Acquire) {
            UNDECIDED => thread::sleep_us(LOOK_EVERY_US),
            state => return state == TOLD,
        }
    }
}

/// The same, without waiting for a decision: before it, threads are made.
pub fn was_told() -> bool {
    STATE.load(Ordering::Acquire) == TOLD
}

/// In a forked child, which has none of our threads yet: those that it gets make it a program of
/// many.
pub fn forget(_only: &OnlyThread) {
    STATE.store(NOT_TOLD, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_older_glibc_is_left_alone_and_so_is_one_that_nobody_knows() {
        for (version, is_so) in [
            ("2.36", true),
            ("2.41", true),
            ("2.39.9000", true),
            ("2.100", true),
            ("2.35", false),
            ("2.4", false),
            ("3.0", false),
            ("2", false),
            ("", false),
            ("2.x", false),
        ] {
            assert_eq!(is_known(version), is_so, "{version}");
        }
    }

    /// (Test programs have threads: the flag is 0 before there is any of ours.)
    #[test]
    fn a_process_of_many_threads_is_not_taken_for_one_of_one() {
        std::thread::spawn(find).join().expect("no panic");
        assert_eq!(flags().count(), 0);
        assert!(crate::sys::in_a_child(|_| {
            decide(true);
            !was_told() && !is_told()
        }));
    }
}
