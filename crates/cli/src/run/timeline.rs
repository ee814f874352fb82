//! The file to which every window of every application is appended, a line each.
//!
//! A line goes out in one write, so that those of several sessions do not mix. A disk that fills
//! may take a part of one; what follows later begins on a line of its own.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::Value;

/// A timeline, and how writing it goes.
pub(super) struct Timeline<W = File> {
    file: W,
    /// The last line is not whole.
    is_cut: bool,
    is_failing: bool,
}

/// Opens the timeline at `path`, to go on behind what it has.
pub(super) fn open(path: &Path) -> Result<Timeline> {
    let file = OpenOptions::new().create(true).append(true).open(path);
    let file = file.with_context(|| {
        let path = path.display();
        format!("--timeline: {path} cannot be written; name a file in a folder that exists")
    })?;
    Ok(Timeline { file, is_cut: false, is_failing: false })
}

impl<W: Write> Timeline<W> {
    /// Appends a line. What there is to say of it: once that it fails, once that it works again.
    pub(super) fn append(&mut self, window: &Value) -> Option<String> {
        let cut_off = if self.is_cut { "\n" } else { "" };
        let outcome = self.write(format!("{cut_off}{window}\n").as_bytes());
        let has_failed = std::mem::replace(&mut self.is_failing, outcome.is_err());
        match outcome {
            Err(e) if !has_failed => Some(format!("the timeline cannot be written: {e}")),
            Ok(()) if has_failed => Some("the timeline is written again".into()),
            _ => None,
        }
    }

    fn write(&mut self, mut rest: &[u8]) -> io::Result<()> {
        while !rest.is_empty() {
            match self.file.write(rest) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(n) => {
                    self.is_cut = rest[n - 1] != b'\n';
                    rest = &rest[n..];
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// A disk with room for so many bytes, which counts calls.
    #[derive(Default)]
    struct Disk {
        content: Vec<u8>,
        room: usize,
        calls: usize,
    }

    impl Write for Disk {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.calls += 1;
            let n = bytes.len().min(self.room);
            if n == 0 {
                return Err(io::ErrorKind::StorageFull.into());
            }
            self.room -= n;
            self.content.extend_from_slice(&bytes[..n]);
            Ok(n)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn with_room(room: usize) -> Timeline<Disk> {
        let file = Disk { room, ..Disk::default() };
        Timeline { file, is_cut: false, is_failing: false }
    }

    #[test]
    fn a_line_is_one_write() {
        let mut timeline = with_room(1000);
        assert_eq!(timeline.append(&json!({"window": 1, "tiers": [{"name": "DRAM"}]})), None);
        assert_eq!(timeline.file.calls, 1);
        assert!(timeline.file.content.ends_with(b"}\n"));
    }

    #[test]
    fn a_full_disk_is_said_once_and_costs_no_line_but_its_own() {
        let mut timeline = with_room(10);
        let said: Vec<_> = (0..3).map(|_| timeline.append(&json!({"window": 1}))).collect();
        assert!(said[0].as_ref().is_some_and(|said| said.contains("cannot be written")));
        assert_eq!(said[1..], [None, None]);
        timeline.file.room = 1000;
        let said = [2, 3].map(|window| timeline.append(&json!({ "window": window })));
        assert_eq!(said, [Some("the timeline is written again".into()), None]);
        let lines = "{\"window\":\n{\"window\":2}\n{\"window\":3}\n";
        assert_eq!(String::from_utf8_lossy(&timeline.file.content), lines);
    }

    #[test]
    fn room_for_the_line_break_only_leaves_no_empty_line() {
        let mut timeline = with_room(3);
        let _ = timeline.append(&json!({}));
        timeline.file.room = 2;
        let _ = timeline.append(&json!({"window": 1}));
        timeline.file.room = 1;
        let _ = timeline.append(&json!({"window": 1}));
        timeline.file.room = 100;
        let _ = timeline.append(&json!({}));
        assert_eq!(String::from_utf8_lossy(&timeline.file.content), "{}\n{\"\n{}\n");
    }
}
