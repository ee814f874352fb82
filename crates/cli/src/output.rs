//! Files that results go to. They are tried before the work, which may take minutes.

use std::fs::{self, OpenOptions};
use std::path::Path;

use anyhow::{ensure, Context, Result};

/// Refuses a file that could not be written in the end; `option` is what asked for it. What is in
/// it stays, and none is left where there was none.
///
/// # Errors
///
/// There is no such folder, the path is a folder, or it cannot be opened for writing.
pub fn check(option: &str, path: &Path) -> Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let is_there = folder.is_none_or(Path::is_dir);
    let name = || folder.unwrap_or(path).display();
    ensure!(is_there, "{option}: there is no folder {}; make it first", name());
    ensure!(!path.is_dir(), "{option}: {} is a folder; name a file in it", path.display());
    let before = fs::symlink_metadata(path);
    if before.as_ref().is_ok_and(|found| !found.is_file()) {
        // A pipe's reader would take this for the end of it.
        return Ok(());
    }
    OpenOptions::new().append(true).create(true).open(path).with_context(|| {
        format!("{option}: {} cannot be written; name another file", path.display())
    })?;
    if before.is_err() {
        let _ = fs::remove_file(path);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_written_is_refused_and_nothing_is_changed() {
        let folder = std::env::temp_dir().join(format!("terrace-output-{}", std::process::id()));
        fs::create_dir(&folder).expect("a folder");
        let file = folder.join("x.json");
        let why = |path: &Path| format!("{:#}", check("--json", path).expect_err("refused"));
        let (nowhere, no_folder) = (folder.join("no/x.json"), file.join("x.json"));
        assert!(check("--json", &file).is_ok() && !file.exists());
        fs::write(&file, "theirs").expect("written");
        assert!(check("--json", &file).is_ok());
        assert_eq!(fs::read(&file).expect("there"), b"theirs");
        assert!(why(&nowhere).starts_with("--json: there is no folder "), "{}", why(&nowhere));
        assert!(why(&no_folder).contains("make it first"), "{}", why(&no_folder));
        assert!(why(&folder).contains("is a folder; name a file in it"), "{}", why(&folder));
        let unnameable = folder.join("x".repeat(300));
        assert!(why(&unnameable).contains("cannot be written"), "{}", why(&unnameable));
        assert!(check("--json", Path::new("/dev/full")).is_ok());
        fs::remove_dir_all(&folder).expect("removed");
    }
}
