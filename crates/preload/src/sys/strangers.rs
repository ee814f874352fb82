//! Programs and libraries that stand in front of libc, for calls that our own threads make.
//!
//! A library that brings sockets of its own, or another time, has a `read` or a `clock_gettime`
//! that is found before libc's, by our library as well. It looks at what it knows of a descriptor,
//! in memory that is as good as any to be managed: a pager that finds it in a tier waits for
//! itself. Only what the pager calls matters, and what others call with a lock that it takes.
//! (`memcpy` and the like are pure but in programs with a sanitizer; [`super::sanitizers`].)

use std::ffi::CStr;

const CALLS: [&CStr; 12] = [
    c"read",
    c"write",
    c"pread64",
    c"pwrite64",
    c"ioctl",
    c"ppoll",
    c"process_vm_readv",
    c"clock_gettime",
    c"clock_nanosleep",
    c"sched_getcpu",
    c"sched_yield",
    c"sched_setaffinity",
];

/// A sentence, before there is a heap.
pub struct Sentence {
    bytes: [u8; 256],
    len: usize,
}

impl Sentence {
    fn of(parts: &[&[u8]]) -> Sentence {
        let mut it = Sentence { bytes: [0; 256], len: 0 };
        for byte in parts.iter().copied().flatten().take(it.bytes.len()) {
            // What is no ASCII is for those who named the file so.
            it.bytes[it.len] = if byte.is_ascii() { *byte } else { b'?' };
            it.len += 1;
        }
        it
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.bytes[..self.len]).unwrap_or_default()
    }
}

/// Why this program is not to be tiered, if somebody stands in front of one of these. Before
/// `main`: `dlsym` may allocate.
pub fn find() -> Option<Sentence> {
    // SAFETY: libc is loaded, and stays; this only names it.
    let libc = unsafe { libc::dlopen(c"libc.so.6".as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
    if libc.is_null() {
        return None;
    }
    CALLS.iter().find_map(|name| {
        // SAFETY: look-ups by a NUL-terminated name; the results are only compared.
        let (first, own) = unsafe {
            let first = libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr());
            (first, libc::dlsym(libc, name.as_ptr()))
        };
        let is_libcs = own.is_null() || first == own;
        (!is_libcs).then(|| said_of(name, first))
    })
}

fn said_of(name: &CStr, at: *const libc::c_void) -> Sentence {
    // SAFETY: plain data; where nothing is known of the address it stays as it is.
    let mut whose: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: the address is only compared, and what is filled in names a loaded file.
    let file = unsafe {
        match libc::dladdr(at, &mut whose) != 0 && !whose.dli_fname.is_null() {
            true => CStr::from_ptr(whose.dli_fname).to_bytes(),
            false => b"something",
        }
    };
    let file = file.rsplit(|byte| *byte == b'/').next().unwrap_or(file);
    let rest = b" stands in front of libc's, and our own threads would call it";
    Sentence::of(&[b"the ", name.to_bytes(), b" of ", file, rest])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sentence_is_cut_and_is_text() {
        assert_eq!(Sentence::of(&[b"the ", "\u{e9}".as_bytes(), b"."]).as_str(), "the ??.");
        assert_eq!(Sentence::of(&[&[b'a'; 300]]).as_str().len(), 256);
    }

    #[test]
    fn nobody_stands_in_front_of_libc_here() {
        assert!(find().is_none());
        let at: *const libc::c_void = std::ptr::null();
        assert!(said_of(c"read", at).as_str().starts_with("the read of something stands"));
    }
}
