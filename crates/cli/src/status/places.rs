//! Where sessions of this user may have their sockets.
//!
//! A session takes the directory that its own environment names, so that one of a cron job is
//! elsewhere than one of a login. All of these places are looked at, and where it is about one
//! process, also the one that this process was told.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::{check_private, is_deserted, runtime_dir, ONLY_BASE};
use crate::preflight::uffd_probe::effective_ids;

/// Where a program was told its session's socket.
pub const SOCKET: &str = "TERRACE_SOCKET";

/// The directories in which there may be sockets of this user's sessions; with `pid`, also the one
/// of this process's session. First the one in which a session of ours would be.
pub(super) fn directories(pid: Option<u32>) -> io::Result<Vec<PathBuf>> {
    let (uid, _) = effective_ids();
    let mut all = vec![runtime_dir()?];
    all.extend(pid.into_iter().flat_map(told));
    if std::env::var_os(ONLY_BASE).is_none() {
        let own = format!("terrace-{uid}");
        let bases = [format!("/run/user/{uid}"), "/run".into(), "/tmp".into()];
        all.extend(bases.iter().map(|base| Path::new(base).join(&own)));
    }
    let mut seen = BTreeSet::new();
    // What is not ours alone is none of ours: whoever can write there could show us anything.
    all.retain(|dir| {
        let is_new = |m: fs::Metadata| seen.insert((m.dev(), m.ino()));
        check_private(dir).is_ok() && dir.metadata().is_ok_and(is_new)
    });
    Ok(all)
}

/// The socket of this name, of the session of process `pid`, that somebody listens on.
pub fn find(pid: u32, name: &str) -> io::Result<PathBuf> {
    let places: Vec<PathBuf> =
        directories(Some(pid))?.into_iter().map(|dir| dir.join(name)).collect();
    let listens = |path: &&PathBuf| path.exists() && !is_deserted(path);
    places.iter().find(listens).or(places.first()).cloned().ok_or(io::ErrorKind::NotFound.into())
}

/// Where the runtime of process `pid`, which calls itself `own_pid`, listens for a planner.
pub fn door_of(pid: u32, own_pid: u32) -> io::Result<PathBuf> {
    let told = told(pid).into_iter().find(|dir| check_private(dir).is_ok());
    Ok(told.map_or_else(runtime_dir, Ok)?.join(format!("{own_pid}.runtime")))
}

/// Why a process that is under Terrace cannot be asked about, if another user started it.
pub fn of_another_user(pid: u32) -> Option<String> {
    let (uid, _) = effective_ids();
    let socket = PathBuf::from(variable(&environment(pid), SOCKET)?);
    let owner = fs::symlink_metadata(socket.parent()?).ok()?.uid();
    (owner != uid).then(|| {
        format!(
            "process {pid} belongs to a session of user {owner}; ask as that user: \
             sudo -u '#{owner}' terrace status {pid}"
        )
    })
}

/// The directories that a process was told: a program the socket of its session, a session where
/// to have its sockets.
fn told(pid: u32) -> Vec<PathBuf> {
    let (uid, _) = effective_ids();
    let environment = environment(pid);
    let path = |name| variable(&environment, name).map(PathBuf::from).filter(|p| p.is_absolute());
    let socket = path(SOCKET).and_then(|socket| Some(socket.parent()?.to_owned()));
    let base = path("XDG_RUNTIME_DIR").map(|base| base.join(format!("terrace-{uid}")));
    socket.into_iter().chain(base).collect()
}

/// The environment with which a process was started; empty if it may not be read.
pub fn environment(pid: u32) -> Vec<u8> {
    fs::read(format!("/proc/{pid}/environ")).unwrap_or_default()
}

/// The value of a variable in it.
pub fn variable<'a>(environment: &'a [u8], name: &str) -> Option<&'a OsStr> {
    let mut all = environment.split(|byte| *byte == 0);
    let value = all.find_map(|v| v.strip_prefix(name.as_bytes())?.strip_prefix(b"="))?;
    Some(OsStr::from_bytes(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_variable_is_found_by_its_whole_name() {
        let environment = b"XTERRACE_SOCKET=/x\0TERRACE_SOCKET=/run/a b/1.link\0EMPTY=\0";
        let value = |name| variable(environment, name).and_then(OsStr::to_str);
        assert_eq!(value("TERRACE_SOCKET"), Some("/run/a b/1.link"));
        assert_eq!(value("EMPTY"), Some(""));
        assert_eq!(value("SOCKET"), None);
    }

    #[test]
    fn no_directory_is_named_twice_and_ours_is_the_first() {
        let all = directories(Some(std::process::id())).unwrap();
        assert_eq!(all[0], runtime_dir().unwrap());
        let of = |dir: &PathBuf| dir.metadata().map(|m| (m.dev(), m.ino())).unwrap();
        assert_eq!(all.iter().map(of).collect::<BTreeSet<_>>().len(), all.len());
    }
}
