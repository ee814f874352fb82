//! A session: the sockets of one `terrace run` or `attach` and what it knows of its applications.
//!
//! Two sockets in this user's private directory: `PID.link`, where runtimes connect, and
//! `PID.sock`, where `terrace status` asks. Both go away with the session.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions, Permissions};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};

use super::application::Application;
use super::signals;
use crate::config::Config;
use crate::status::{self, ApplicationStatus, SessionStatus};

/// A question is one short line; whoever does not send it in this time is not `terrace status`.
const ASK_TIMEOUT: Duration = Duration::from_secs(1);

/// How often, and how long apart, it is looked whether an application that hung up has ended.
const DESERTED_LOOKS: u32 = 25;
const DESERTED_PAUSE: Duration = Duration::from_millis(20);

/// What the threads of a session share.
pub(super) struct Shared {
    /// What was asked for.
    pub config: Config,
    timeline: Option<Mutex<File>>,
    applications: Mutex<BTreeMap<u32, ApplicationStatus>>,
    /// Where runtimes listen, by process as we see it (theirs may have another id for themselves).
    doors: Mutex<BTreeMap<u32, PathBuf>>,
}

/// An open session. Dropping it removes its sockets.
pub(super) struct Session {
    shared: Arc<Shared>,
    link: PathBuf,
    ask: PathBuf,
}

impl Session {
    /// Opens the sockets and starts to listen.
    pub(super) fn open(config: Config, timeline: &Option<PathBuf>) -> Result<Session> {
        let timeline = timeline.as_ref().map(|path| open_timeline(path)).transpose()?;
        let ask = status::session_socket_path(std::process::id())
            .context("no place for this session's socket")?;
        let link = ask.with_extension("link");
        let (applications, doors) = (Mutex::default(), Mutex::default());
        let shared = Arc::new(Shared { config, timeline, applications, doors });
        let session = Session { shared: shared.clone(), link, ask };
        let (links, asks) = (listen(&session.link)?, listen(&session.ask)?);
        let for_links = shared.clone();
        std::thread::spawn(move || {
            for stream in links.incoming().flatten() {
                let shared = for_links.clone();
                std::thread::spawn(move || serve_runtime(stream, shared));
            }
        });
        std::thread::spawn(move || {
            for stream in asks.incoming().flatten() {
                // One at a time: an answer takes no time, and a silent caller a second.
                let _ = answer(stream, &shared);
            }
        });
        Ok(session)
    }

    /// What its threads share.
    pub(super) fn shared(&self) -> Arc<Shared> {
        self.shared.clone()
    }

    /// Where runtimes connect.
    pub(super) fn link_path(&self) -> &Path {
        &self.link
    }

    /// One line about what the session saved, `None` if no application was ever tiered.
    pub(super) fn summary(&self) -> Option<String> {
        let applications = self.shared.applications();
        let a = applications.values().filter(|a| a.last.is_object()).max_by_key(|a| {
            a.last.get("managed_bytes").and_then(serde_json::Value::as_u64).unwrap_or(0)
        })?;
        let number = |of: &serde_json::Value, key: &str| {
            of.get(key).and_then(serde_json::Value::as_f64).unwrap_or(0.0)
        };
        Some(format!(
            "{} (pid {}): at its last window {:.1} % of memory TCO saved on {:.0} MiB; \
             {:.0} faults served, {:.2} s waited for them in all",
            a.command,
            a.pid,
            number(&a.last, "tco_saved") * 100.0,
            number(&a.last, "managed_bytes") / f64::from(1 << 20),
            number(&a.totals, "faults"),
            number(&a.totals, "stalled_ms") / 1000.0,
        ))
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let pids: Vec<u32> = self.shared.doors().keys().copied().collect();
        for pid in pids {
            self.shared.remove_deserted(pid);
        }
        for path in [&self.link, &self.ask] {
            // Gone already is as good.
            let _ = std::fs::remove_file(path);
        }
        // And of processes that ended before we heard of their doors.
        if let Some(folder) = self.link.parent() {
            remove_doors_of_the_dead(folder);
        }
    }
}

impl Shared {
    fn applications(&self) -> MutexGuard<'_, BTreeMap<u32, ApplicationStatus>> {
        self.applications.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn doors(&self) -> MutexGuard<'_, BTreeMap<u32, PathBuf>> {
        self.doors.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes where the runtime of process `pid` listens, which calls itself `own_pid`.
    pub(super) fn has_door(&self, pid: u32, own_pid: u32) {
        if let Ok(path) = status::runtime_socket_path(own_pid) {
            self.doors().insert(pid, path);
        }
    }

    /// Removes the socket of a process that has ended. Whether it is still there.
    fn remove_deserted(&self, pid: u32) -> bool {
        let Some(path) = self.doors().get(&pid).cloned() else { return false };
        if status::is_deserted(&path) {
            let _ = std::fs::remove_file(&path);
        }
        path.exists()
    }

    /// Publishes what is known of an application, and appends its last window to the timeline.
    pub(super) fn publish(&self, status: ApplicationStatus) {
        if let (Some(file), true) = (&self.timeline, status.last.is_object()) {
            let mut file = file.lock().unwrap_or_else(PoisonError::into_inner);
            if let Err(e) = writeln!(file, "{}", status.last) {
                eprintln!("terrace: the timeline cannot be written: {e}");
            }
        }
        self.applications().insert(status.pid, status);
    }
}

/// Removes the sockets in `folder` of runtimes whose process is gone.
fn remove_doors_of_the_dead(folder: &Path) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        let is_door = path.extension().is_some_and(|e| e == "runtime");
        let pid = path.file_stem().and_then(|stem| stem.to_str()?.parse::<u32>().ok());
        let is_gone = |pid| {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            stat.rsplit(')')
                .next()
                .is_none_or(|rest| matches!(rest.trim_start().get(..1), None | Some("Z" | "X")))
        };
        if is_door && pid.is_some_and(is_gone) && status::is_deserted(&path) {
            let _ = std::fs::remove_file(path);
        }
    }
}

fn open_timeline(path: &Path) -> Result<Mutex<File>> {
    let file = OpenOptions::new().create(true).append(true).open(path);
    Ok(Mutex::new(file.with_context(|| {
        format!(
            "--timeline: {} cannot be written; name a file in a folder that exists",
            path.display()
        )
    })?))
}

fn listen(path: &Path) -> Result<UnixListener> {
    // A socket of an earlier process with our id that was killed.
    let _ = std::fs::remove_file(path);
    let listener = UnixListener::bind(path).and_then(|listener| {
        std::fs::set_permissions(path, Permissions::from_mode(0o600))?;
        Ok(listener)
    });
    listener.with_context(|| format!("cannot listen on {}", path.display()))
}

fn serve_runtime(stream: UnixStream, shared: Arc<Shared>) {
    let Some(pid) = signals::trusted_peer(&stream) else { return };
    match Application::new(pid, stream, shared.clone()).serve() {
        Ok(()) => {}
        Err(e) => eprintln!("terrace: process {pid} is not tiered: {e:#}"),
    }
    // It removes its socket itself unless it was killed, is another user or has another root by
    // now. Its descriptors are closed one after the other.
    for _ in 0..DESERTED_LOOKS {
        if !shared.remove_deserted(pid) {
            break;
        }
        std::thread::sleep(DESERTED_PAUSE);
    }
    shared.doors().remove(&pid);
}

fn answer(mut stream: UnixStream, shared: &Shared) -> std::io::Result<()> {
    stream.set_read_timeout(Some(ASK_TIMEOUT))?;
    stream.set_write_timeout(Some(ASK_TIMEOUT))?;
    if signals::trusted_peer(&stream).is_none() {
        return Ok(());
    }
    let mut line = String::new();
    BufReader::new(&stream).read_line(&mut line)?;
    if line.trim_end() != status::ASK {
        return writeln!(stream, "{{\"error\":\"send {}\"}}", status::ASK.replace('"', "'"));
    }
    let applications = shared.applications().values().cloned().collect();
    let processes = shared.doors().keys().copied().collect();
    let all = SessionStatus { supervisor_pid: std::process::id(), applications, processes };
    serde_json::to_writer(&stream, &all)?;
    writeln!(stream)
}
