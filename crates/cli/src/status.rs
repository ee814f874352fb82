//! `terrace status`: asks every running session what it is doing.
//!
//! A session is one supervisor, `terrace run` or `terrace attach`. It announces itself by a socket
//! `DIR/terrace-UID/PID.sock`; there is no registry and no daemon, so what is not running leaves at
//! most a socket that refuses connections, and the next `status` removes it. The directory is
//! private to the user: whoever could put a socket there could make `status` show anything.
//!
//! The exchange is one line each way: `{"ask":"status"}` and a [`SessionStatus`].

use std::ffi::OsStr;
use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::preflight::uffd_probe::effective_ids;
use crate::run::trusted_peer;

mod table;
#[cfg(test)]
mod tests;

/// The question, as one line.
pub const ASK: &str = "{\"ask\":\"status\"}";

/// A session answers from memory; one that takes longer is stopped or hung.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);

/// An answer holds a few KiB an application. This bounds what a broken session can make us read.
const ANSWER_MAX_BYTES: u64 = 4 << 20;

/// What one session says of itself.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct SessionStatus {
    /// Process id of `terrace run`.
    pub supervisor_pid: u32,
    /// The applications it plans for.
    pub applications: Vec<ApplicationStatus>,
    /// The processes it plans for at this moment, those before their first window too.
    #[serde(default)]
    pub processes: Vec<u32>,
}

/// What a session says of one application.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct ApplicationStatus {
    /// Its process id.
    pub pid: u32,
    /// Its command line.
    pub command: String,
    /// Seconds since the session first saw it.
    pub started_s: f64,
    /// The last object of its timeline (docs/timeline.md); null before the first window ends.
    #[serde(default)]
    pub last: serde_json::Value,
    /// Sums over its whole run.
    #[serde(default)]
    pub totals: serde_json::Value,
}

/// A session that is there and does not answer.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Silent {
    /// Its socket.
    pub socket: PathBuf,
    /// What went wrong.
    pub why: String,
}

/// Everything `terrace status` found.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
pub struct Found {
    /// Sessions that answered, by process id.
    pub sessions: Vec<SessionStatus>,
    /// Sessions that did not.
    pub silent: Vec<Silent>,
    /// Processes that no session plans for: `terrace attach` does.
    #[serde(default)]
    pub unplanned: Vec<u32>,
}

/// The directory of this user's sockets, made if it is not there: `$XDG_RUNTIME_DIR`, else `/run`
/// for root, else `/tmp`.
pub fn runtime_dir() -> io::Result<PathBuf> {
    let xdg = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let (uid, _) = effective_ids();
    // sudo may hand on the directory of the caller; root must not leave its socket there.
    let usable = |dir: &PathBuf| {
        dir.is_absolute() && dir.metadata().is_ok_and(|m| m.is_dir() && m.uid() == uid)
    };
    let base = match xdg.filter(usable) {
        Some(dir) => dir,
        None if uid == 0 => "/run".into(),
        None => "/tmp".into(),
    };
    private_dir(&base.join(format!("terrace-{uid}")))
}

/// Makes `dir` for this user alone, or checks that it is so. `/tmp` is everybody's: a directory
/// that is not ours is refused, not used.
fn private_dir(dir: &Path) -> io::Result<PathBuf> {
    match fs::DirBuilder::new().mode(0o700).create(dir) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => {
            return Err(io::Error::new(e.kind(), format!("{} cannot be made: {e}", dir.display())))
        }
        _ => {}
    }
    let refuse = |why: String| {
        let text = format!("{} {why}; remove it", dir.display());
        Err(io::Error::new(io::ErrorKind::PermissionDenied, text))
    };
    // Not `metadata`: a symbolic link into a directory of ours would pass.
    let meta = fs::symlink_metadata(dir)?;
    let (uid, _) = effective_ids();
    if !meta.is_dir() {
        return refuse("is not a directory".into());
    }
    if meta.uid() != uid {
        return refuse(format!("belongs to user {}", meta.uid()));
    }
    let mode = meta.permissions().mode() & 0o777;
    if mode & 0o077 != 0 {
        return refuse(format!("is open to others (mode {mode:o}, not 700)"));
    }
    Ok(dir.into())
}

/// Where the session of supervisor `pid` listens.
pub fn session_socket_path(pid: u32) -> io::Result<PathBuf> {
    Ok(runtime_dir()?.join(format!("{pid}.sock")))
}

/// Where the runtime of process `pid` listens for a planner when it has none.
pub fn runtime_socket_path(pid: u32) -> io::Result<PathBuf> {
    Ok(runtime_dir()?.join(format!("{pid}.runtime")))
}

/// Whether nobody listens on the socket at `path`. Asked with a datagram, which a listener refuses
/// by its type, undisturbed.
pub fn is_deserted(path: &Path) -> bool {
    let asked = UnixDatagram::unbound().and_then(|s| s.connect(path));
    asked.is_err_and(|e| e.kind() == io::ErrorKind::ConnectionRefused)
}

/// Asks all sessions of this user, or only the one that `pid` names (its supervisor or one of its
/// applications).
pub fn query(pid: Option<u32>) -> io::Result<Found> {
    let mut found = query_in(&runtime_dir()?)?;
    if let Some(pid) = pid {
        for session in &mut found.sessions {
            if session.supervisor_pid != pid {
                session.applications.retain(|a| a.pid == pid);
            }
        }
        found.sessions.retain(|s| s.supervisor_pid == pid || !s.applications.is_empty());
        found.silent.retain(|s| s.socket.ends_with(format!("{pid}.sock")));
        found.unplanned.retain(|p| *p == pid);
    }
    Ok(found)
}

/// Asks the sessions whose sockets are in `dir`, and removes sockets that nobody listens on.
fn query_in(dir: &Path) -> io::Result<Found> {
    let mut found = Found::default();
    for entry in fs::read_dir(dir)? {
        let socket = entry?.path();
        if socket.extension().is_some_and(|e| e == "runtime") {
            let pid = |name: &OsStr| name.to_str()?.parse::<u32>().ok();
            if is_deserted(&socket) {
                let _ = fs::remove_file(&socket);
            } else {
                found.unplanned.extend(socket.file_stem().and_then(pid));
            }
        }
        // Where runtimes connected to a session that was killed while it began or ended.
        let is_link = socket.extension().is_some_and(|e| e == "link");
        if is_link && !socket.with_extension("sock").exists() && is_deserted(&socket) {
            let _ = fs::remove_file(&socket);
        }
        if socket.extension().is_none_or(|e| e != "sock") {
            continue;
        }
        match ask(&socket) {
            Ok(session) => found.sessions.push(session),
            Err(e) if e.kind() == io::ErrorKind::ConnectionRefused => {
                // Its supervisor was killed. Another `status` may have been quicker to remove it,
                // and its other socket, where runtimes connected.
                let _ = fs::remove_file(&socket);
                let _ = fs::remove_file(socket.with_extension("link"));
            }
            // Ended between our listing and our call.
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(e) => found.silent.push(Silent { socket, why: e.to_string() }),
        }
    }
    let planned: Vec<u32> = found.sessions.iter().flat_map(|s| s.processes.clone()).collect();
    found.unplanned.retain(|pid| found.silent.is_empty() && !planned.contains(pid));
    found.unplanned.sort_unstable();
    found.sessions.sort_by_key(|s| s.supervisor_pid);
    found.silent.sort_by(|a, b| a.socket.cmp(&b.socket));
    Ok(found)
}

/// One question, one answer.
fn ask(socket: &Path) -> io::Result<SessionStatus> {
    let mut stream = UnixStream::connect(socket)?;
    if trusted_peer(&stream).is_none() {
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, "another user's"));
    }
    stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
    stream.set_write_timeout(Some(ANSWER_TIMEOUT))?;
    writeln!(stream, "{ASK}")?;
    let mut line = String::new();
    BufReader::new(stream.take(ANSWER_MAX_BYTES)).read_line(&mut line).map_err(|e| {
        if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) {
            io::Error::new(io::ErrorKind::TimedOut, "no answer within a second")
        } else {
            e
        }
    })?;
    serde_json::from_str(&line).map_err(|e| {
        io::Error::new(io::ErrorKind::InvalidData, format!("not an answer of terrace: {e}"))
    })
}

/// `terrace status [--json] [PID]`: prints what was found. An error if `pid` is given and unknown.
pub fn run(json: bool, pid: Option<u32>) -> anyhow::Result<()> {
    let found = query(pid)?;
    let nothing = found.sessions.is_empty() && found.silent.is_empty();
    if let (Some(pid), true, true) = (pid, nothing, found.unplanned.is_empty()) {
        anyhow::bail!("no session with process {pid}; `terrace status` lists all sessions");
    }
    if json {
        println!("{}", serde_json::to_string_pretty(&found)?);
    } else {
        print!("{}", table::render(&found));
    }
    Ok(())
}
