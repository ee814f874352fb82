//! libc's functions that change a process's user and groups: shims, as in `interpose.rs`. What they
//! are for is in `credentials.rs`.

use super::clones::to_kernel;
use super::{alone, credentials, thread};
use crate::interpose::next;
use libc::{c_int, c_long, gid_t, id_t};
use std::sync::atomic::AtomicUsize;

const UNCHANGED: c_long = -1;

/// Defines a function of one, two or three ids, which is the system call `$number` with `$ids`.
macro_rules! ids {
    ($name:ident, $real:ident, $number:expr, [$($arg:ident),+], [$($to:expr),+]) => {
        static $real: AtomicUsize = AtomicUsize::new(0);

        #[doc = concat!("`", stringify!($name), "(2)`.\n\n# Safety\nAs for libc's.")]
        #[no_mangle]
        pub unsafe extern "C" fn $name($($arg: id_t),+) -> c_int {
            type Real = unsafe extern "C" fn($($arg: id_t),+) -> c_int;
            $(let $arg = c_long::from($arg as c_int);)+
            let by_libc = || {
                let name = concat!(stringify!($name), "\0").as_bytes();
                let name = std::ffi::CStr::from_bytes_with_nul(name).unwrap_or_default();
                // SAFETY: what `dlsym` found under this name has this type; the caller's arguments.
                unsafe {
                    let real: Real = std::mem::transmute(next(&$real, name));
                    real($($arg as id_t),+)
                }
            };
            // SAFETY: the caller's call.
            unsafe { credentials::change($number, [$($to),+], by_libc) }
        }
    };
}

ids!(setuid, SETUID, libc::SYS_setuid, [u], [u, 0, 0]);
ids!(setgid, SETGID, libc::SYS_setgid, [g], [g, 0, 0]);
ids!(seteuid, SETEUID, libc::SYS_setresuid, [e], [UNCHANGED, e, UNCHANGED]);
ids!(setegid, SETEGID, libc::SYS_setresgid, [e], [UNCHANGED, e, UNCHANGED]);
ids!(setreuid, SETREUID, libc::SYS_setreuid, [r, e], [r, e, 0]);
ids!(setregid, SETREGID, libc::SYS_setregid, [r, e], [r, e, 0]);
ids!(setresuid, SETRESUID, libc::SYS_setresuid, [r, e, s], [r, e, s]);
ids!(setresgid, SETRESGID, libc::SYS_setresgid, [r, e, s], [r, e, s]);

type GroupsFn = unsafe extern "C" fn(libc::size_t, *const gid_t) -> c_int;

static SETGROUPS: AtomicUsize = AtomicUsize::new(0);

/// `setgroups(2)`.
///
/// # Safety
/// As for libc's.
#[no_mangle]
pub unsafe extern "C" fn setgroups(count: libc::size_t, groups: *const gid_t) -> c_int {
    let by_libc = |count, groups| {
        // SAFETY: what `dlsym` found under this name has this type; the caller's arguments.
        unsafe {
            let real: GroupsFn = std::mem::transmute(next(&SETGROUPS, c"setgroups"));
            real(count, groups)
        }
    };
    // SAFETY: the caller's call.
    unsafe { credentials::change_groups(count, groups, by_libc) }
}

type InitGroupsFn = unsafe extern "C" fn(*const libc::c_char, gid_t) -> c_int;

static INITGROUPS: AtomicUsize = AtomicUsize::new(0);

/// `initgroups(3)`. libc's own would set the groups past our `setgroups`.
///
/// # Safety
/// As for libc's.
#[no_mangle]
pub unsafe extern "C" fn initgroups(user: *const libc::c_char, group: gid_t) -> c_int {
    alone::leave();
    if !thread::are_here() {
        // SAFETY: what `dlsym` found under this name has this type; the caller's arguments.
        return unsafe {
            let real: InitGroupsFn = std::mem::transmute(next(&INITGROUPS, c"initgroups"));
            real(user, group)
        };
    }
    let mut list: Vec<gid_t> = vec![0; 64];
    loop {
        let mut count = list.len() as c_int;
        // SAFETY: the caller's user, and as much room as is said.
        let found = unsafe { libc::getgrouplist(user, group, list.as_mut_ptr(), &mut count) };
        let count = usize::try_from(count).unwrap_or(0).min(credentials::GROUPS_MAX);
        if found >= 0 || count <= list.len() {
            list.truncate(count);
            break;
        }
        list.resize(count, 0);
    }
    // SAFETY: so many there are.
    unsafe { setgroups(list.len(), list.as_ptr()) }
}

/// `capset(2)`.
///
/// # Safety
/// As for libc's.
#[no_mangle]
pub unsafe extern "C" fn capset(header: *mut libc::c_void, data: *const libc::c_void) -> c_int {
    credentials::note_capabilities();
    // SAFETY: the caller's call.
    unsafe { to_kernel(libc::SYS_capset, [header as _, data as _, 0, 0, 0]) as c_int }
}

/// Looks all of them up, while the process has one thread.
pub fn resolve() {
    next(&SETUID, c"setuid");
    next(&SETGID, c"setgid");
    next(&SETEUID, c"seteuid");
    next(&SETEGID, c"setegid");
    next(&SETREUID, c"setreuid");
    next(&SETREGID, c"setregid");
    next(&SETRESUID, c"setresuid");
    next(&SETRESGID, c"setresgid");
    next(&SETGROUPS, c"setgroups");
    next(&INITGROUPS, c"initgroups");
}
