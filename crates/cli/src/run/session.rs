//! A session: the sockets of one `terrace run` and what it knows of its applications.
//!
//! Two sockets in this user's private directory: `PID.link`, where runtimes connect, and
//! `PID.sock`, where `terrace status` asks. Both go away with the session.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
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

/// What the threads of a session share.
pub(super) struct Shared {
    /// What was asked for.
    pub config: Config,
    timeline: Option<Mutex<File>>,
    applications: Mutex<BTreeMap<u32, ApplicationStatus>>,
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
        let shared =
            Arc::new(Shared { config, timeline, applications: Mutex::new(BTreeMap::new()) });
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
        for path in [&self.link, &self.ask] {
            // Gone already is as good.
            let _ = std::fs::remove_file(path);
        }
    }
}

impl Shared {
    fn applications(&self) -> MutexGuard<'_, BTreeMap<u32, ApplicationStatus>> {
        self.applications.lock().unwrap_or_else(PoisonError::into_inner)
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
    UnixListener::bind(path).with_context(|| format!("cannot listen on {}", path.display()))
}

fn serve_runtime(stream: UnixStream, shared: Arc<Shared>) {
    let Some((pid, _)) = signals::peer(&stream) else { return };
    match Application::new(pid, stream, shared).serve() {
        Ok(()) => {}
        Err(e) => eprintln!("terrace: process {pid} is not tiered: {e:#}"),
    }
}

fn answer(mut stream: UnixStream, shared: &Shared) -> std::io::Result<()> {
    stream.set_read_timeout(Some(ASK_TIMEOUT))?;
    stream.set_write_timeout(Some(ASK_TIMEOUT))?;
    let mut line = String::new();
    BufReader::new(&stream).read_line(&mut line)?;
    if line.trim_end() != status::ASK {
        return writeln!(stream, "{{\"error\":\"send {}\"}}", status::ASK.replace('"', "'"));
    }
    let applications = shared.applications().values().cloned().collect();
    let all = SessionStatus { supervisor_pid: std::process::id(), applications };
    serde_json::to_writer(&stream, &all)?;
    writeln!(stream)
}
