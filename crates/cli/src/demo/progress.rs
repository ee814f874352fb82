//! Progress on stderr: one line that updates itself on a terminal, else a line every five seconds.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use crate::say;

const TERMINAL_EVERY: Duration = Duration::from_millis(250);
const LOG_EVERY: Duration = Duration::from_secs(5);

/// Shows how far something is.
pub struct Progress {
    terminal: bool,
    every: Duration,
    shown: Option<Instant>,
    open: bool,
}

impl Progress {
    /// Progress on this process's stderr.
    pub fn new() -> Progress {
        let terminal = std::io::stderr().is_terminal();
        let every = if terminal { TERMINAL_EVERY } else { LOG_EVERY };
        Progress { terminal, every, shown: None, open: false }
    }

    /// Shows `text`, unless something was shown just before.
    pub fn update(&mut self, text: impl FnOnce() -> String) {
        if self.shown.is_some_and(|at| at.elapsed() < self.every) {
            return;
        }
        self.shown = Some(Instant::now());
        if self.terminal {
            say::piece(format_args!("\r\x1b[2K{}", text()));
            self.open = true;
        } else {
            say!("{}", text());
        }
    }

    /// Shows `text` on a line that stays.
    pub fn line(&mut self, text: &str) {
        if self.open {
            say::piece(format_args!("\r\x1b[2K"));
            self.open = false;
        }
        say!("{text}");
        self.shown = None;
    }
}

impl Default for Progress {
    fn default() -> Self {
        Progress::new()
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.open {
            say::piece(format_args!("\r\x1b[2K"));
        }
    }
}
