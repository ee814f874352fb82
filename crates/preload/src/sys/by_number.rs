//! Calls that came by `syscall(2)`, past the function that stands for them (`interpose.rs`): each
//! is handed to that function. `clones.rs` has `syscall` itself.

use super::clones::to_kernel;
use super::users;
use crate::interpose::{self, around_ours, fail, is_ours};

/// Their numbers.
pub const NUMBERS: [libc::c_long; 14] = [
    libc::SYS_close,
    libc::SYS_dup2,
    libc::SYS_dup3,
    libc::SYS_close_range,
    libc::SYS_exit_group,
    libc::SYS_mlockall,
    libc::SYS_munlockall,
    libc::SYS_mremap,
    libc::SYS_shmat,
    libc::SYS_madvise,
    libc::SYS_unshare,
    libc::SYS_setns,
    libc::SYS_prctl,
    libc::SYS_capset,
];

/// Makes the call, with the answer that `syscall` gives. What closes goes to the kernel from here:
/// libc's functions are points where a thread can be cancelled, and may not be there.
///
/// # Safety
/// As for the call.
pub unsafe extern "C" fn call(
    number: libc::c_long,
    a: libc::c_long,
    b: libc::c_long,
    c: libc::c_long,
    d: libc::c_long,
    e: libc::c_long,
) -> libc::c_long {
    // The kernel looks at the lower half of each.
    let (first, second) = (a as libc::c_int, b as libc::c_int);
    // SAFETY: the caller's call in each, or a part of its range.
    let result = unsafe {
        match number {
            libc::SYS_close if is_ours(first) => fail(libc::EBADF),
            libc::SYS_dup2 | libc::SYS_dup3 if is_ours(second) => fail(libc::EBUSY),
            libc::SYS_close_range => {
                let (first, last) = (first as libc::c_uint, second as libc::c_uint);
                around_ours(first, last, |from, to| {
                    to_kernel(number, [from.into(), to.into(), c, 0, 0]) as libc::c_int
                })
            }
            libc::SYS_exit_group => interpose::_exit(first),
            libc::SYS_mlockall => interpose::mlockall(first),
            libc::SYS_munlockall => interpose::munlockall(),
            libc::SYS_madvise => interpose::madvise(a as _, b as _, c as _),
            libc::SYS_unshare => interpose::unshare(first),
            libc::SYS_setns => interpose::setns(first, second),
            libc::SYS_prctl => interpose::prctl(first, b as _, c as _, d as _, e as _),
            libc::SYS_capset => users::capset(a as _, b as _),
            libc::SYS_mremap => {
                let at = interpose::mremap(a as _, b as _, c as _, d as _, e as _);
                return at as libc::c_long;
            }
            libc::SYS_shmat => return interpose::shmat(first, b as _, c as _) as libc::c_long,
            _ => return to_kernel(number, [a, b, c, d, e]),
        }
    };
    libc::c_long::from(result)
}
