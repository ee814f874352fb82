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
use serde_json::Value;

use crate::preflight::uffd_probe::effective_ids;
use crate::run::trusted_peer;

pub mod places;
mod table;
#[cfg(test)]
mod tests;

/// The question, as one line.
pub const ASK: &str = "{\"ask\":\"status\"}";

/// A session answers from memory; one that takes longer is stopped or hung.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);

/// An answer holds a few KiB an application. This bounds what a broken session can make us read.
const ANSWER_MAX_BYTES: u64 = 4 << 20;

/// Whether any tier of a window (docs/timeline.md) is on an emulated medium.
pub(crate) fn is_emulated(last: &Value) -> bool {
    last["tiers"].as_array().is_some_and(|tiers| tiers.iter().any(|t| t["emulated"] == true))
}

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
    /// Applications that ended longer ago than the last ones, which `applications` has.
    #[serde(default)]
    pub ended_before: EndedBefore,
}

/// Applications of a session that ended, all together.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct EndedBefore {
    /// How many.
    pub applications: u64,
    /// The sums of their `totals`.
    pub totals: serde_json::Map<String, Value>,
}

impl EndedBefore {
    /// Adds one by its `totals`.
    pub fn add(&mut self, totals: &Value) {
        self.applications += 1;
        for (key, more) in totals.as_object().into_iter().flatten() {
            let sum = self.totals.entry(key.as_str()).or_insert_with(|| 0.into());
            *sum = match (sum.as_u64(), more.as_u64()) {
                (Some(a), Some(b)) => a.saturating_add(b).into(),
                _ => (sum.as_f64().unwrap_or(0.0) + more.as_f64().unwrap_or(0.0)).into(),
            };
        }
    }
}

/// What a session says of one application.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct ApplicationStatus {
    /// Its process id.
    pub pid: u32,
    /// Its command line.
    pub command: String,
    /// Seconds since the session first saw it, until its last window.
    pub started_s: f64,
    /// Whether it is no longer planned for: it ended, or executed what is not under Terrace.
    #[serde(default)]
    pub has_ended: bool,
    /// The last object of its timeline (docs/timeline.md); null before the first window ends.
    #[serde(default)]
    pub last: Value,
    /// Sums over its whole run.
    #[serde(default)]
    pub totals: Value,
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
    /// Processes that no session plans for that answered; one that did not may plan for them.
    #[serde(default)]
    pub perhaps_planned: Vec<u32>,
}

/// Names the directory in which sockets are, and no others are looked for: for tests, which must
/// not see each other's sessions.
const ONLY_BASE: &str = "TERRACE_RUNTIME_DIR";

/// The directory of this user's sockets, made if it is not there: `$XDG_RUNTIME_DIR`, else `/run`
/// for root, else `/tmp`.
pub fn runtime_dir() -> io::Result<PathBuf> {
    let named = std::env::var_os(ONLY_BASE).or_else(|| std::env::var_os("XDG_RUNTIME_DIR"));
    let xdg = named.map(PathBuf::from);
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
            Err(io::Error::new(e.kind(), format!("{} cannot be made: {e}", dir.display())))
        }
        _ => check_private(dir).map(|()| dir.into()),
    }
}

fn check_private(dir: &Path) -> io::Result<()> {
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
    Ok(())
}

/// Where the session of supervisor `pid` listens.
pub fn session_socket_path(pid: u32) -> io::Result<PathBuf> {
    Ok(runtime_dir()?.join(format!("{pid}.sock")))
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
    match pid {
        Some(pid) => Ok(query_near(pid)?.only(pid)),
        None => query_in(&places::directories(None)?),
    }
}

/// Asks all sessions of this user, also where process `pid` was told that its session is.
pub fn query_near(pid: u32) -> io::Result<Found> {
    query_in(&places::directories(Some(pid))?)
}

impl Found {
    /// What of it is about process `pid`.
    fn only(mut self, pid: u32) -> Found {
        for session in self.sessions.iter_mut().filter(|s| s.supervisor_pid != pid) {
            session.applications.retain(|a| a.pid == pid);
            session.processes.retain(|p| *p == pid);
            session.ended_before = EndedBefore::default();
        }
        self.sessions.retain(|s| {
            s.supervisor_pid == pid || !s.applications.is_empty() || !s.processes.is_empty()
        });
        for pids in [&mut self.unplanned, &mut self.perhaps_planned] {
            pids.retain(|p| *p == pid);
        }
        // One that perhaps plans for it is about it.
        let is_named = |s: &Silent| s.supervisor_pid() == Some(pid);
        self.silent.retain(|s| !self.perhaps_planned.is_empty() || is_named(s));
        self
    }
}

impl Silent {
    /// The session's process id.
    fn supervisor_pid(&self) -> Option<u32> {
        pid_of(&self.socket)
    }

    fn name(&self) -> String {
        self.supervisor_pid().map_or_else(|| "?".into(), |pid| pid.to_string())
    }
}

/// The process id in the name of a socket.
fn pid_of(socket: &Path) -> Option<u32> {
    socket.file_stem()?.to_str()?.parse().ok()
}

/// Asks the sessions whose sockets are in these directories, and removes sockets that nobody
/// listens on.
fn query_in(directories: &[PathBuf]) -> io::Result<Found> {
    let mut found = Found::default();
    let mut waiting = Vec::new();
    for dir in directories {
        for entry in fs::read_dir(dir)? {
            let socket = entry?.path();
            match socket.extension().and_then(OsStr::to_str) {
                Some("runtime") if is_deserted(&socket) => {
                    let _ = fs::remove_file(&socket);
                }
                Some("runtime") => waiting.extend(pid_of(&socket)),
                Some("sock") => found.ask(socket),
                // Where runtimes connected to a session that was killed while it began or ended.
                Some("link") if !socket.with_extension("sock").exists() && is_deserted(&socket) => {
                    let _ = fs::remove_file(&socket);
                }
                _ => {}
            }
        }
    }
    waiting.retain(|pid| !found.sessions.iter().any(|s| s.processes.contains(pid)));
    waiting.sort_unstable();
    match found.silent.is_empty() {
        true => found.unplanned = waiting,
        false => found.perhaps_planned = waiting,
    }
    found.sessions.sort_by_key(|s| s.supervisor_pid);
    found.silent.sort_by(|a, b| a.socket.cmp(&b.socket));
    Ok(found)
}

impl Found {
    /// Asks the session at `socket`.
    fn ask(&mut self, socket: PathBuf) {
        match ask(&socket) {
            Ok(session) => self.sessions.push(session),
            Err(e) if e.kind() == io::ErrorKind::ConnectionRefused => {
                // Its supervisor was killed. Another `status` may have been quicker to remove it,
                // and its other socket, where runtimes connected.
                let _ = fs::remove_file(&socket);
                let _ = fs::remove_file(socket.with_extension("link"));
            }
            // Ended between our listing and our call.
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(e) => self.silent.push(Silent { socket, why: e.to_string() }),
        }
    }
}

/// Connects to a session or a runtime. One that is stopped accepts nobody, and once enough wait for
/// it, the next one's `connect` would wait for ever. The thread that still does then ends with us.
pub fn connect(socket: &Path) -> io::Result<UnixStream> {
    let (tell, told) = std::sync::mpsc::channel();
    let path = socket.to_owned();
    std::thread::spawn(move || tell.send(UnixStream::connect(path)));
    told.recv_timeout(ANSWER_TIMEOUT).unwrap_or_else(|_| {
        let why = "it accepts no connection within a second";
        Err(io::Error::new(io::ErrorKind::TimedOut, why))
    })
}

/// One question, one answer.
fn ask(socket: &Path) -> io::Result<SessionStatus> {
    let mut stream = connect(socket)?;
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
    let waiting = found.unplanned.len() + found.perhaps_planned.len();
    if let (Some(pid), true, 0) = (pid, nothing, waiting) {
        if let Some(why) = places::of_another_user(pid) {
            anyhow::bail!("{why}");
        }
        anyhow::bail!("no session with process {pid}; `terrace status` lists all sessions");
    }
    if json {
        println!("{}", serde_json::to_string_pretty(&found)?);
    } else {
        print!("{}", table::render(&found));
    }
    Ok(())
}
