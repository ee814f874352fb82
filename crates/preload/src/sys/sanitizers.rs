//! Programs that were built with a sanitizer, which Terrace leaves alone.
//!
//! A sanitizer keeps notes of the program's memory in other memory, of which there may be terabytes
//! reserved, and looks at them in `memcpy`, `read` and much else that our own threads call. A pager
//! that finds such a note in a tier would wait for itself. A leak check stops all threads, ours
//! too, and reads everything. AddressSanitizer also ends a program in which it is not the first
//! library that is loaded; so it would end every such program that something under `terrace run`
//! executes.

/// What a sanitizer of each kind defines, and what to call it.
const KINDS: [(&std::ffi::CStr, &str); 5] = [
    (c"__asan_init", "it was built with AddressSanitizer, which looks into memory by itself"),
    (c"__tsan_init", "it was built with ThreadSanitizer, which looks into memory by itself"),
    (c"__msan_init", "it was built with MemorySanitizer, which looks into memory by itself"),
    (c"__hwasan_init", "it was built with HWAddressSanitizer, which looks into memory by itself"),
    (c"__lsan_init", "it was built with LeakSanitizer, which looks into memory by itself"),
];

/// Why this program is not to be tiered, if it was built with one. Before `main`: `dlsym` may
/// allocate.
pub fn find() -> Option<&'static str> {
    let is_here = |name: &std::ffi::CStr| {
        // SAFETY: a look-up by a NUL-terminated name; the result is only compared.
        !unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) }.is_null()
    };
    KINDS.iter().find(|(name, _)| is_here(name)).map(|(_, why)| *why)
}

/// What AddressSanitizer asks the program for, if that has options to give: whether it is the first
/// library does not matter to a program that stays as it is. A program's own is found before this.
///
/// # Safety
/// None needed: it returns a constant.
#[cfg(not(test))]
#[no_mangle]
pub unsafe extern "C" fn __asan_default_options() -> *const libc::c_char {
    c"verify_asan_link_order=0".as_ptr()
}
