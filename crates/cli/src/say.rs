//! What is said on standard error, where no failure may be one of ours.
//!
//! The log that our lines go to may be on a full disk, its reader or its terminal may be gone. The
//! standard library's macros for this panic then, and would take a program's planner and its exit
//! status with them.

use std::fmt;
use std::io::Write;

/// Says a line on standard error, formatted as by `format!`, if it can be said.
#[macro_export]
macro_rules! say {
    ($($text:tt)*) => {
        $crate::say::piece(format_args!("{}\n", format_args!($($text)*)))
    };
}

/// Says a part of a line, if it can be said. In one write, so that lines of threads do not mix.
pub fn piece(text: fmt::Arguments<'_>) {
    let _ = std::io::stderr().write_all(text.to_string().as_bytes());
}
