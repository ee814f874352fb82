//! A session: the sockets of one `terrace run` or `attach` and what it knows of its applications.
//!
//! Two sockets in this user's private directory: `PID.link`, where runtimes connect, and
//! `PID.sock`, where `terrace status` asks. Both go away with the session; of one that was killed,
//! the latter tells `terrace status` of the former, so it is there first.

use std::collections::BTreeMap;
use std::fs::Permissions;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};
use serde::Serialize;
use serde_json::json;

use super::application::Application;
use super::applications::Applications;
use super::decisions::Decisions;
use super::timeline::{self, Timeline};
use super::{answer, bill, signals};
use crate::config::Config;
use crate::explain::{never_done, scored, Question};
use crate::say;
use crate::sim::costs;
use crate::status::{self, places, ApplicationStatus, SessionStatus};
use crate::trace::record::{Finished, Recorder};
use crate::trace::Meta;

/// A question is one short line; whoever does not send it in this time is not `terrace status`.
const ASK_TIMEOUT: Duration = Duration::from_secs(1);

/// The longest question has a few numbers.
const QUESTION_MAX_BYTES: u64 = 4096;

/// How often, and how long apart, it is looked whether an application that hung up has ended.
const DESERTED_LOOKS: u32 = 25;
const DESERTED_PAUSE: Duration = Duration::from_millis(20);
/// Characters of a command in the last line of a session: a script may be one of its words.
const COMMAND_CHARS_MAX: usize = 80;

/// What the threads of a session share.
pub(super) struct Shared {
    /// What was asked for.
    pub config: Config,
    /// The trace that is recorded, if one is.
    pub recorder: Option<Recorder>,
    timeline: Option<Mutex<Timeline>>,
    applications: Mutex<Applications>,
    /// By process, for `terrace explain`.
    decisions: Mutex<BTreeMap<u32, Arc<Decisions>>>,
    /// Where runtimes listen, by process as we see it (theirs may have another id for themselves).
    doors: Mutex<BTreeMap<u32, Door>>,
    /// Whether it was said of a process why it is not tiered.
    has_said_why: AtomicBool,
}

/// Where the runtime of a process listens. After an exec the process has another runtime, at the
/// same path, and a connection of its own, while the thread that served the one before may not be
/// done with it: so both this and what is decided are given up only by whom they belong to.
struct Door {
    path: PathBuf,
    /// Tells whose it is.
    of: Arc<Decisions>,
}

/// The sockets of a session, which go when this does.
struct Sockets {
    link: PathBuf,
    ask: PathBuf,
}

/// They are there, and nobody is answered yet.
pub(super) struct Bound {
    sockets: Sockets,
    links: UnixListener,
    asks: UnixListener,
}

impl Bound {
    /// Makes both.
    pub(super) fn new() -> Result<Bound> {
        let ask = status::session_socket_path(std::process::id())
            .context("no place for this session's socket")?;
        let sockets = Sockets { link: ask.with_extension("link"), ask };
        let (asks, links) = (listen(&sockets.ask)?, listen(&sockets.link)?);
        Ok(Bound { sockets, links, asks })
    }
}

impl Drop for Sockets {
    fn drop(&mut self) {
        for path in [&self.link, &self.ask] {
            // Gone already is as good.
            let _ = std::fs::remove_file(path);
        }
    }
}

/// An open session. Dropping it removes its sockets.
pub(super) struct Session {
    shared: Arc<Shared>,
    sockets: Sockets,
}

impl Session {
    /// Opens what is written, and starts to answer.
    pub(super) fn open(
        bound: Bound,
        config: Config,
        timeline: &Option<PathBuf>,
        record: &Option<PathBuf>,
    ) -> Result<Session> {
        let Bound { sockets, links, asks } = bound;
        let timeline =
            timeline.as_ref().map(|path| timeline::open(path)).transpose()?.map(Mutex::new);
        let (applications, doors) = (Mutex::default(), Mutex::default());
        let meta = Meta::of_run(&config, &costs::nominal(&config));
        let recorder = record.as_ref().map(|path| Recorder::start(path, meta)).transpose()?;
        let decisions = Mutex::default();
        let has_said_why = AtomicBool::new(false);
        let shared =
            Shared { config, recorder, timeline, applications, decisions, doors, has_said_why };
        let shared = Arc::new(shared);
        let session = Session { shared: shared.clone(), sockets };
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

    /// Ends the trace that is recorded, if one is, and says what it is.
    pub(super) fn end_recording(&self) -> Result<Option<String>> {
        let Some(recorder) = &self.shared.recorder else { return Ok(None) };
        let finished = recorder.finish().context("--record")?;
        let line = |f: Finished| {
            let each = f.bytes as f64 / f.rows.max(1) as f64;
            format!("trace of {} region-windows, {} bytes, {each:.1} each", f.rows, f.bytes)
        };
        Ok(Some(finished.map_or("there was nothing to record".into(), line)))
    }

    /// Where runtimes connect.
    pub(super) fn link_path(&self) -> &Path {
        &self.sockets.link
    }

    /// Whether process `pid` is planned for now.
    pub(super) fn is_planned_for(&self, pid: u32) -> bool {
        self.shared.doors().contains_key(&pid)
    }

    /// One line about what the session saved, `None` if no application was ever tiered.
    pub(super) fn summary(&self) -> Option<String> {
        let applications = self.shared.applications();
        let a = applications.largest()?;
        Some(summary_of(a))
    }
}

/// What the end report says of an application. Its share of the bill counts every window, since the
/// last one may be that of a program which touches everything on its way out.
fn summary_of(a: &ApplicationStatus) -> String {
    let number = |of: &serde_json::Value, key: &str| {
        of.get(key).and_then(serde_json::Value::as_f64).unwrap_or(0.0)
    };
    let last = number(&a.last, "tco_saved") * 100.0;
    let mean = bill::share_saved(&a.totals).map_or(last, |share| share * 100.0);
    let counted = match status::is_emulated(&a.last) {
        true => " (emulated media counted)",
        false => "",
    };
    format!(
        "{} (pid {}): {mean:.1} % of memory TCO saved on average ({last:.1} % in its last window) \
         on {:.0} MiB{counted}; {:.0} faults served, {:.2} s waited for them in all{}",
        shortened(&a.command),
        a.pid,
        number(&a.last, "managed_bytes") / f64::from(1 << 20),
        number(&a.totals, "faults"),
        number(&a.totals, "stalled_ms") / 1000.0,
        hindsight(&a.last["hindsight"]),
    )
}

/// The beginning of a command that is longer than a line has room for.
fn shortened(command: &str) -> String {
    match command.char_indices().nth(COMMAND_CHARS_MAX) {
        Some((end, _)) => format!("{}...", &command[..end]),
        None => command.to_owned(),
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // Where nothing was started, nothing is left behind.
        let _ = self.end_recording();
        let pids: Vec<u32> = self.shared.doors().keys().copied().collect();
        for pid in pids {
            self.shared.remove_deserted(pid);
        }
        // And of processes that ended before we heard of their doors.
        if let Some(folder) = self.sockets.link.parent() {
            remove_doors_of_the_dead(folder);
        }
    }
}

impl Shared {
    pub(super) fn applications(&self) -> MutexGuard<'_, Applications> {
        self.applications.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a process was tiered, or it was said why one is not.
    pub(super) fn is_accounted_for(&self) -> bool {
        !self.applications().is_empty() || self.has_said_why.load(Ordering::Relaxed)
    }

    fn doors(&self) -> MutexGuard<'_, BTreeMap<u32, Door>> {
        self.doors.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn all_decisions(&self) -> MutexGuard<'_, BTreeMap<u32, Arc<Decisions>>> {
        self.decisions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A fresh record of what is decided for process `pid`, in which pages that come back stay for
    /// `residence_windows`.
    pub(super) fn decisions_of(&self, pid: u32, residence_windows: f64) -> Arc<Decisions> {
        let fresh = Arc::new(Decisions::new(residence_windows, self.config.run.window_s));
        self.all_decisions().insert(pid, fresh.clone());
        fresh
    }

    /// What was decided for process `pid`, while it is planned for.
    pub(super) fn decisions(&self, pid: u32) -> Option<Arc<Decisions>> {
        self.all_decisions().get(&pid).cloned()
    }

    /// An application has ended, and hindsight has the last word on what was decided for it.
    pub(super) fn scored(&self, pid: u32, of: &Arc<Decisions>, hindsight: serde_json::Value) {
        let mut all = self.all_decisions();
        if !all.get(&pid).is_some_and(|newest| Arc::ptr_eq(newest, of)) {
            return;
        }
        all.remove(&pid);
        drop(all);
        self.applications().score(pid, hindsight);
    }

    /// Notes where the runtime of process `pid` listens, which calls itself `own_pid`.
    pub(super) fn has_door(&self, pid: u32, own_pid: u32, of: &Arc<Decisions>) {
        if let Ok(path) = places::door_of(pid, own_pid) {
            self.doors().insert(pid, Door { path, of: of.clone() });
        }
    }

    /// Whether the newest door of process `pid` is that of this connection.
    fn is_door_of(&self, pid: u32, of: &Arc<Decisions>) -> bool {
        self.doors().get(&pid).is_some_and(|door| Arc::ptr_eq(&door.of, of))
    }

    /// Removes the socket of a process that has ended. Whether it is still there. (A child that it
    /// forked last may not have come to close its copy of what listens there.)
    fn remove_deserted(&self, pid: u32) -> bool {
        let Some(path) = self.doors().get(&pid).map(|door| door.path.clone()) else { return false };
        if status::is_deserted(&path) || has_ended(pid) {
            let _ = std::fs::remove_file(&path);
        }
        path.exists()
    }

    /// Publishes what is known of an application, and appends its last window to the timeline.
    pub(super) fn publish(&self, status: ApplicationStatus) {
        if let (Some(file), true) = (&self.timeline, status.last.is_object()) {
            let mut file = file.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(news) = file.append(&status.last) {
                say!("terrace: {news}");
            }
        }
        self.applications().publish(status);
    }
}

/// What the end report says of hindsight: nothing if nothing was ever scored.
fn hindsight(all: &serde_json::Value) -> String {
    match (all["share_right"].as_f64(), scored(all)) {
        (Some(share), demotions) if demotions > 0 => format!(
            "; of {demotions} demotions {:.1} % were right in hindsight{}",
            share * 100.0,
            never_done(all)
        ),
        _ => String::new(),
    }
}

/// Whether a process is gone, or waits to be asked for its exit status.
fn has_ended(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit(')').next().and_then(|rest| rest.trim_start().get(..1));
    matches!(state, None | Some("Z" | "X"))
}

/// Removes the sockets in `folder` of runtimes whose process is gone. Their names have the ids that
/// processes have for themselves, which may be those of others here, or of nobody.
fn remove_doors_of_the_dead(folder: &Path) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        let is_door = path.extension().is_some_and(|e| e == "runtime");
        let pid = path.file_stem().and_then(|stem| stem.to_str()?.parse::<u32>().ok());
        if is_door && pid.is_some_and(has_ended) && status::is_deserted(&path) {
            let _ = std::fs::remove_file(path);
        }
    }
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
    let application = Application::new(pid, stream, shared.clone());
    let of = application.decisions();
    match application.serve() {
        Ok(()) => {}
        Err(e) => {
            shared.has_said_why.store(true, Ordering::Relaxed);
            say!("terrace: process {pid} is not tiered: {e:#}");
        }
    }
    if shared.is_door_of(pid, &of) {
        shared.applications().end(pid);
    }
    // It removes its socket itself unless it was killed, is another user or has another root by
    // now. Its descriptors are closed one after the other.
    for _ in 0..DESERTED_LOOKS {
        if !shared.is_door_of(pid, &of) || !shared.remove_deserted(pid) {
            break;
        }
        std::thread::sleep(DESERTED_PAUSE);
    }
    let mut doors = shared.doors();
    if doors.get(&pid).is_some_and(|door| Arc::ptr_eq(&door.of, &of)) {
        doors.remove(&pid);
    }
}

fn answer(stream: UnixStream, shared: &Arc<Shared>) -> std::io::Result<()> {
    stream.set_read_timeout(Some(ASK_TIMEOUT))?;
    stream.set_write_timeout(Some(ASK_TIMEOUT))?;
    if signals::trusted_peer(&stream).is_none() {
        return Ok(());
    }
    let mut line = String::new();
    BufReader::new((&stream).take(QUESTION_MAX_BYTES)).read_line(&mut line)?;
    if let Some(question) = Question::parse(&line) {
        // Takes longer, and must not keep others waiting.
        let shared = shared.clone();
        std::thread::spawn(move || {
            let _ = send(&stream, &answer::answer(&question, &shared));
        });
        return Ok(());
    }
    if line.trim_end() != status::ASK {
        let why = format!("send {}", status::ASK.replace('"', "'"));
        return send(&stream, &json!({ "error": why }));
    }
    let (applications, ended_before) = {
        let applications = shared.applications();
        (applications.all(), applications.before())
    };
    let processes = shared.doors().keys().copied().collect();
    let supervisor_pid = std::process::id();
    let all = SessionStatus { supervisor_pid, applications, processes, ended_before };
    send(&stream, &all)
}

/// Sends one line at once: token by token it is a thousand calls, and the caller's reads as many.
fn send(mut stream: &UnixStream, answer: &impl Serialize) -> std::io::Result<()> {
    let mut line = serde_json::to_vec(answer)?;
    line.push(b'\n');
    stream.write_all(&line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_report_is_about_the_whole_run() {
        let mut a = ApplicationStatus {
            pid: 7,
            command: "job".into(),
            started_s: 10.0,
            has_ended: true,
            last: json!({
                "tco_saved": -0.039,
                "managed_bytes": 64 << 20,
                "tiers": [{ "emulated": false }, { "emulated": false }],
                "hindsight": {
                    "demotions": 25, "right": 12, "wrong": 0, "open": 1, "open_right": 0,
                    "open_wrong": 1, "not_done": 12, "share_right": 12.0 / 13.0,
                },
            }),
            totals: json!({
                "faults": 9, "stalled_ms": 1500.0, "managed_gib_s": 2.0, "saved_gib_s": 1.41,
            }),
        };
        assert_eq!(
            summary_of(&a),
            "job (pid 7): 70.5 % of memory TCO saved on average (-3.9 % in its last window) on 64 \
             MiB; 9 faults served, 1.50 s waited for them in all; of 13 demotions 92.3 % were \
             right in hindsight, 12 never done"
        );
        a.last["tiers"][1]["emulated"] = true.into();
        assert!(summary_of(&a).contains("on 64 MiB (emulated media counted); 9"));
        // One that had no time.
        a.totals = json!({});
        assert!(summary_of(&a).contains(": -3.9 % of memory TCO saved on average (-3.9 % in"));
    }

    #[test]
    fn a_long_command_is_cut_between_characters() {
        assert_eq!(shortened("redis-server --port 1"), "redis-server --port 1");
        let long = "\u{e9}".repeat(COMMAND_CHARS_MAX + 1);
        assert_eq!(shortened(&long), format!("{}...", "\u{e9}".repeat(COMMAND_CHARS_MAX)));
    }
}
