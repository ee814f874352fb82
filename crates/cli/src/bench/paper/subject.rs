//! One run: a program or server, plain or under `terrace run`, its load, and what both say.
//!
//! The phases go by the load's word that its data is there, and by the clock from then on: what the
//! load does after the measured seconds - reading everything back - is part of the run and of no
//! figure.

use std::ffi::OsString;
use std::fs::{self, File};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{bail, ensure, Context, Result};
use serde_json::Value;

use super::configurations::{Configuration, Family};
use super::meter::{self, CpuMeter, Lines, Processes, Zswap};
use super::record::{Cpu, Load, Record, RunId, Second, Settings, Swap, Window};
use super::turns::{is_stopped, turns_of, Beside, Side, Turns};
use crate::bench::figures::loadavg;
use crate::bench::kernel_swap::interrupted;
use crate::bench::workloads::turns::TurnsBy;
use crate::demo::redis::TempDir;
use crate::demo::sys::{signal_group, signal_process};

/// A server answers within this.
const START_TIMEOUT: Duration = Duration::from_secs(30);
/// The data is loaded within this, and read back.
const LOAD_TIMEOUT: Duration = Duration::from_secs(3600);
/// A server ends within this when told; else it is killed.
const END_TIMEOUT: Duration = Duration::from_secs(20);
/// How often it is looked whether something has happened.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// How often memory is looked at.
const METER_EVERY: Duration = Duration::from_secs(1);
/// Exit status of a load whose program is not on this machine.
const EXIT_SKIPPED: i32 = 77;

/// What all runs share.
pub(super) struct Setting {
    /// This program.
    pub exe: PathBuf,
    /// The program with `bench work`; this one but in tests.
    pub work_exe: PathBuf,
    /// With what.
    pub settings: Settings,
}

/// How a run ended that did not fail.
pub(super) enum Outcome {
    /// With figures.
    Done(Box<Record>),
    /// This machine lacks what the workload needs.
    Skipped(String),
}

/// Whether a workload is a server with a client.
fn has_server(workload: &str) -> bool {
    matches!(workload, "redis" | "memcached")
}

/// Does a run.
pub(super) fn run(
    setting: &Setting,
    id: &RunId,
    configuration: &Configuration,
    mut look: impl FnMut(&str, f64),
) -> Result<Outcome> {
    let started = Instant::now();
    let loadavg_before = loadavg();
    let folder = TempDir::new("paper")?;
    let zswap_before = Zswap::now();
    let mut run = Run::start(setting, id, configuration, folder.path())?;
    let Some(ready) = run.wait_until_ready(&mut look)? else {
        return Ok(Outcome::Skipped(run.skipped()));
    };
    let mut record = run.measure(ready, configuration, zswap_before, &mut look)?;
    run.end()?;
    record.id = id.clone();
    record.settings = setting.settings.clone();
    record.loadavg_before = loadavg_before;
    record.took_s = started.elapsed().as_secs_f64();
    record.ended_unix_s =
        SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs());
    Ok(Outcome::Done(Box::new(record)))
}

/// What is running.
struct Run<'a> {
    settings: &'a Settings,
    warmup_s: f64,
    folder: &'a Path,
    /// The program under test, or `terrace run` that runs it.
    subject: Process,
    /// The client, where the program is a server.
    client: Option<Process>,
    /// The plain one that takes turns with it.
    beside: Option<Process>,
    /// Where that is no server: what it says, and who hands out the turns.
    beside_says: Option<Beside>,
    /// When their turns are over, if they take any.
    turns_by: Option<TurnsBy>,
    turns: Option<Turns>,
    is_plain: bool,
    lines: Lines,
    timeline: Lines,
    skipped: Option<String>,
}

/// The load has its data.
struct Ready {
    /// Its word.
    line: Value,
    /// When it had not said so yet: its own clock, which ends the run, began later. How much later
    /// depends on when we were let look.
    not_before: Instant,
}

/// A child in a group of its own, which is ended with its owner.
struct Process {
    child: Child,
    log: PathBuf,
    is_over: bool,
}

impl Process {
    fn start(mut command: Command, log: PathBuf) -> Result<Process> {
        let out = File::create(&log).context("cannot create a log")?;
        // Their own group: Ctrl-C comes to us alone, and we end them in order.
        command.stdin(Stdio::null()).stdout(out.try_clone()?).stderr(out).process_group(0);
        let name = command.get_program().to_string_lossy().into_owned();
        let child = command.spawn().with_context(|| format!("cannot start {name}"))?;
        Ok(Process { child, log, is_over: false })
    }

    /// Its exit status, if it has ended.
    fn ended(&mut self) -> Result<Option<i32>> {
        let status = self.child.try_wait()?;
        self.is_over |= status.is_some();
        Ok(status.map(|s| s.code().unwrap_or(-1)))
    }

    /// The end of what it said, for a complaint.
    fn said(&self) -> String {
        let text = fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = text.lines().rev().take(6).collect();
        lines.into_iter().rev().map(|l| format!("\n  {l}")).collect()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if !self.is_over {
            signal_group(self.child.id() as i32, libc::SIGKILL);
            let _ = self.child.wait();
        }
    }
}

impl<'a> Run<'a> {
    fn start(
        setting: &'a Setting,
        id: &RunId,
        configuration: &Configuration,
        folder: &'a Path,
    ) -> Result<Run<'a>> {
        let settings = &setting.settings;
        let is_plain = configuration.is_plain();
        let warmup_s = if is_plain { settings.dram_warmup_s } else { settings.warmup_s };
        let (timeline, lines) = (folder.join("timeline"), folder.join("load"));
        let beside_lines = folder.join("beside-load");
        let turns_by = turns_of(&id.workload).filter(|_| settings.has_beside);
        let in_turns = turns_by.is_some();
        let launcher = launcher(setting, configuration, folder, &timeline)?;
        let socket = folder.join("socket");
        let work = |arguments: &[OsString]| {
            let mut argv: Vec<OsString> = vec![setting.work_exe.clone().into()];
            argv.extend(["bench", "work", &id.workload].map(OsString::from));
            argv.extend(["--size".into(), settings.size_mib.to_string().into()]);
            argv.extend_from_slice(arguments);
            argv
        };
        let mut load: Vec<OsString> = Vec::new();
        for (name, value) in [
            ("--seconds", settings.seconds.to_string()),
            ("--warmup", warmup_s.to_string()),
            ("--seed", settings.seed.to_string()),
        ] {
            load.extend([name.into(), value.into()]);
        }
        if settings.phase_at_s > 0.0 {
            load.extend(["--phase-at".into(), settings.phase_at_s.to_string().into()]);
        }
        if in_turns {
            load.push("--in-turns".into());
        }
        let (mut client, mut beside) = (None, None);
        if in_turns {
            let out = ["--out".into(), beside_lines.clone().into()];
            let program = command(&[], &work(&[&load[..], &out].concat()), folder);
            beside = Some(Process::start(program, folder.join("beside.log"))?);
        }
        load.extend(["--out".into(), lines.clone().into()]);
        let is_server = has_server(&id.workload);
        let program = if is_server { server_command(&work, &socket)? } else { work(&load) };
        let mut subject =
            Process::start(command(&launcher, &program, folder), folder.join("subject.log"))?;
        if is_server {
            wait_for_server(&mut subject, &socket)?;
            load.extend(["--connect".into(), socket.into()]);
            if settings.has_beside {
                let socket = folder.join("beside");
                let server = command(&[], &server_command(&work, &socket)?, folder);
                let server = beside.insert(Process::start(server, folder.join("beside.log"))?);
                wait_for_server(server, &socket)?;
                let halt: Vec<String> =
                    with_children(&subject).iter().map(ToString::to_string).collect();
                load.extend(["--beside".into(), socket.into()]);
                load.extend(["--halt".into(), halt.join(",").into()]);
            }
            client = Some(Process::start(
                command(&[], &work(&load), folder),
                folder.join("client.log"),
            )?);
        }
        Ok(Run {
            settings,
            warmup_s,
            folder,
            subject,
            client,
            beside,
            beside_says: in_turns.then(|| Beside::of(Lines::of(&beside_lines))),
            turns_by,
            turns: None,
            is_plain,
            lines: Lines::of(&lines),
            timeline: Lines::of(&timeline),
            skipped: None,
        })
    }

    /// What writes the lines.
    fn load(&mut self) -> &mut Process {
        self.client.as_mut().unwrap_or(&mut self.subject)
    }

    /// An error if it is time to stop: an interrupt, or a process that should not have ended.
    fn check(&mut self) -> Result<()> {
        ensure!(!interrupted(), "interrupted");
        if self.client.is_some() {
            for server in std::iter::once(&mut self.subject).chain(&mut self.beside) {
                if let Some(code) = server.ended()? {
                    bail!("the server ended with status {code}{}", server.said());
                }
            }
        }
        Ok(())
    }

    /// Whether both programs have their data and wait for their turns, which begin then.
    fn begin_turns(&mut self) -> Result<bool> {
        let (Some(by), Some(beside)) = (self.turns_by, &mut self.beside) else { return Ok(true) };
        match beside.ended()? {
            None => {}
            // So will the other one, and say why.
            Some(EXIT_SKIPPED) => return Ok(false),
            Some(_) => bail!("the plain program ended{}", beside.said()),
        }
        let side = |program: usize, all: Vec<u32>| {
            all.get(program).copied().map(|program| Side { all, program })
        };
        let own = side(usize::from(!self.is_plain), with_children(&self.subject));
        let beside = side(0, with_children(beside));
        match (own, beside) {
            (Some(own), Some(beside)) if is_stopped(own.program) && is_stopped(beside.program) => {
                self.turns = Some(Turns::begin(by, own, beside));
                Ok(true)
            }
            _ => Ok(false),
        }
    }

    /// Waits until the load says that its data is there; `None` if it has nothing to load.
    fn wait_until_ready(&mut self, look: &mut dyn FnMut(&str, f64)) -> Result<Option<Ready>> {
        let since = Instant::now();
        let mut not_before = since;
        loop {
            self.check()?;
            let ended = self.load().ended()?;
            let looked = Instant::now();
            for line in self.lines.poll()? {
                match line["event"].as_str() {
                    Some("ready") => return Ok(Some(Ready { line, not_before })),
                    Some("skipped") => {
                        let why = line["reason"].as_str().unwrap_or("it said not why");
                        self.skipped = Some(why.to_owned());
                    }
                    _ => {}
                }
            }
            match ended {
                Some(EXIT_SKIPPED) => return Ok(None),
                Some(code) => {
                    bail!("the load ended with status {code} before it began{}", self.load().said())
                }
                None => {}
            }
            if self.beside_says.is_none() || self.turns.is_some() || self.begin_turns()? {
                not_before = looked;
            }
            ensure!(since.elapsed() < LOAD_TIMEOUT, "nothing was loaded{}", self.load().said());
            look("loading", since.elapsed().as_secs_f64());
            std::thread::sleep(LOOK_EVERY);
        }
    }

    fn skipped(mut self) -> String {
        let why = self.skipped.take();
        why.unwrap_or_else(|| self.load().said())
    }

    /// The process to measure: whom the load names, else the program itself.
    fn processes(&self, ready: &Value) -> Result<Processes> {
        let started = self.subject.child.id();
        let named = ready["pid"].as_u64().map(|pid| pid as u32);
        let named = named.filter(|_| self.client.is_none());
        let planner = (!self.is_plain).then_some(started);
        let application = match (named, planner) {
            (Some(pid), _) => pid,
            (None, None) => started,
            (None, Some(planner)) => {
                child_of(planner).context("terrace run has started no program")?
            }
        };
        Ok(Processes { application, planner })
    }

    fn measure(
        &mut self,
        ready: Ready,
        configuration: &Configuration,
        zswap_before: Zswap,
        look: &mut dyn FnMut(&str, f64),
    ) -> Result<Record> {
        let ready_at = ready.not_before;
        let processes = self.processes(&ready.line)?;
        let mut cpu = CpuMeter::of(processes);
        let begin = Duration::from_secs_f64(self.warmup_s);
        let end = begin + Duration::from_secs_f64(self.settings.seconds);
        let mut record = Record::default();
        let mut from: Option<(Cpu, Swap)> = None;
        let mut is_read = false;
        let mut meter_at = Duration::ZERO;
        let mut lag_s = f64::INFINITY;
        let is_kernel = configuration.family == Family::Kernel;
        loop {
            self.check()?;
            let ended = self.load().ended()?;
            let now = ready_at.elapsed();
            if from.is_none() && now >= begin {
                from = Some((cpu.read(), meter::swap_counters()));
            }
            if now + METER_EVERY >= end && now < end {
                // The program may be gone at the next look: this is what is known of it then.
                cpu.read();
            }
            if let (Some((at_begin, swap)), false, true) = (&from, is_read, now >= end) {
                record.cpu = meter::cpu_between(at_begin, &cpu.read());
                record.swap = meter::swap_between(swap, &meter::swap_counters());
                is_read = true;
            }
            self.follow_timeline(&mut record.windows, &processes, now, &mut lag_s)?;
            let rss_bytes = if now >= meter_at && now < end { processes.rss_bytes() } else { None };
            if let Some(rss_bytes) = rss_bytes {
                cpu.read();
                let last = record.windows.last();
                let tiers = if is_kernel { &[][..] } else { last.map_or(&[][..], |w| &w.tiers) };
                // The kernel is not charged for a runtime that it would not need.
                let forgiven = last.filter(|_| is_kernel).map_or(0, |w| w.runtime_bytes);
                let zswap = if is_kernel { meter::zswap_taken(zswap_before) } else { 0 };
                let mut m = meter::memory(rss_bytes, tiers, zswap, forgiven);
                (m.t_s, m.is_measured) = (now.as_secs_f64(), now >= begin);
                record.memory.push(m);
                meter_at += METER_EVERY;
            }
            if let Some(beside) = &mut self.beside_says {
                beside.poll()?;
            }
            for line in self.lines.poll()? {
                match line["event"].as_str() {
                    Some("done") => {
                        self.turns = None;
                        record.hist = line["hist"].clone();
                        record.load = serde_json::from_value(line).context("the load's result")?;
                    }
                    _ if line["t_s"].is_number() => {
                        let mut second: Second = serde_json::from_value(line)?;
                        if let Some(beside) = &mut self.beside_says {
                            beside.put_beside(&mut second);
                        }
                        record.seconds.push(second);
                    }
                    _ => {}
                }
            }
            if let Some(code) = ended {
                let wrong = record.load.wrong;
                ensure!(wrong == 0, "{wrong} wrong results{}", self.load().said());
                ensure!(code == 0, "the load ended with status {code}{}", self.load().said());
                break;
            }
            ensure!(now < end + LOAD_TIMEOUT, "the load does not end{}", self.load().said());
            let phase = if now < begin {
                "warming up"
            } else if now < end {
                "measuring"
            } else {
                "checking"
            };
            look(phase, now.as_secs_f64());
            std::thread::sleep(LOOK_EVERY);
        }
        ensure!(is_read, "the load ended before its time{}", self.load().said());
        ensure!(
            record.cpu.application_s > 0.0,
            "the machine was too crowded to see what the program did{}",
            self.load().said()
        );
        ensure!(record.load.ops > 0.0, "the load did nothing{}", self.load().said());
        if let Some(beside) = self.beside_says.take() {
            record.load.beside = Some(Box::new(self.result_of(beside)?));
        }
        // The last window of a program that has ended has nothing in any tier.
        record.windows.retain(|w| w.t_s <= end.as_secs_f64());
        let is_measured = |w: &&Window| w.t_s >= self.warmup_s;
        let measured = record.windows.iter().filter(is_measured);
        // By the clock on the wall, which on a crowded machine is more than was spent: at most what
        // the threads that serve took.
        let service_s = measured.fold(0.0, |sum, w| sum + w.fault_service_ms / 1e3);
        record.cpu.fault_service_s = record.cpu.fault_service_s.min(service_s);
        ensure!(
            configuration.is_plain() || record.windows.iter().any(|w| is_measured(&w)),
            "no window of the program ended while it was measured; was it tiered?{}",
            self.subject.said()
        );
        Ok(record)
    }

    /// What the plain program has measured, when it has ended.
    fn result_of(&mut self, mut beside: Beside) -> Result<Load> {
        self.turns = None;
        let since = Instant::now();
        while let Some(program) = &mut self.beside {
            ensure!(!interrupted(), "interrupted");
            let ended = program.ended()?;
            // It may just have ended a turn itself, and nobody is left to wait for. (To be
            // continued while it runs would spoil the piece of work that it is at.)
            let pid = program.child.id();
            if is_stopped(pid) {
                signal_process(pid as i32, libc::SIGCONT);
            }
            beside.poll()?;
            match ended {
                Some(0) => break,
                Some(code) => {
                    bail!("the plain program ended with status {code}{}", program.said())
                }
                None => {}
            }
            ensure!(since.elapsed() < LOAD_TIMEOUT, "it does not end{}", program.said());
            std::thread::sleep(LOOK_EVERY);
        }
        beside.result()
    }

    /// Takes in the windows of the measured process.
    fn follow_timeline(
        &mut self,
        windows: &mut Vec<Window>,
        processes: &Processes,
        now: Duration,
        lag_s: &mut f64,
    ) -> Result<()> {
        for line in self.timeline.poll()? {
            if line["pid"].as_u64() == Some(u64::from(processes.application)) {
                let at_s = line["t_s"].as_f64().unwrap_or(0.0);
                // The first ones came while data was loaded. The line that was read soonest after
                // it was written tells how far the two clocks are apart.
                let lag = now.as_secs_f64() - at_s;
                if lag < *lag_s {
                    let by = if lag_s.is_finite() { lag - *lag_s } else { 0.0 };
                    windows.iter_mut().for_each(|w| w.t_s += by);
                    *lag_s = lag;
                }
                windows.push(meter::window(&line, at_s + *lag_s));
            }
        }
        Ok(())
    }

    /// Ends what has not ended by itself.
    fn end(mut self) -> Result<()> {
        if self.client.is_none() {
            return Ok(());
        }
        let started = self.subject.child.id();
        let server = if self.is_plain { Some(started) } else { child_of(started) };
        let beside = self.beside.as_ref().map(|server| server.child.id());
        for pid in [server, beside].into_iter().flatten() {
            signal_process(pid as i32, libc::SIGTERM);
        }
        let since = Instant::now();
        for server in std::iter::once(&mut self.subject).chain(&mut self.beside) {
            while server.ended()?.is_none() {
                if since.elapsed() > END_TIMEOUT {
                    bail!("the server in {} did not end{}", self.folder.display(), server.said());
                }
                std::thread::sleep(LOOK_EVERY);
            }
        }
        Ok(())
    }
}

/// `terrace run` with this configuration, up to its `--`; nothing for plain DRAM.
fn launcher(
    setting: &Setting,
    configuration: &Configuration,
    folder: &Path,
    timeline: &Path,
) -> Result<Vec<OsString>> {
    if configuration.is_plain() {
        return Ok(Vec::new());
    }
    let toml = folder.join("tiers.toml");
    let run = format!("[run]\ncooling_windows = {}\n", setting.settings.cooling_windows);
    fs::write(&toml, configuration.toml() + &run).context("cannot write the tiers")?;
    let mut words: Vec<OsString> = vec![setting.exe.clone().into()];
    words.extend(["run", "--quiet", "--window"].map(OsString::from));
    words.push(setting.settings.window_s.to_string().into());
    words.extend(["--config".into(), toml.into(), "--timeline".into(), timeline.into()]);
    words.extend(configuration.arguments().iter().map(OsString::from));
    words.push("--".into());
    Ok(words)
}

fn command(launcher: &[OsString], program: &[OsString], folder: &Path) -> Command {
    let mut words = launcher.iter().chain(program);
    let mut command = Command::new(words.next().expect("a program has a name"));
    command.args(words);
    // Tiers that were saved for this machine are not what is measured.
    command.env("XDG_STATE_HOME", folder);
    command
}

/// The server's command line, as the workload knows it.
fn server_command(
    work: &dyn Fn(&[OsString]) -> Vec<OsString>,
    socket: &Path,
) -> Result<Vec<OsString>> {
    let words = work(&["--print-server-command".into(), "--socket".into(), socket.into()]);
    let out =
        Command::new(&words[0]).args(&words[1..]).output().context("asking for the server")?;
    let said = String::from_utf8_lossy(&out.stderr).trim().to_owned();
    ensure!(out.status.success(), "the server's command is not known: {said}");
    let argv: Vec<String> =
        serde_json::from_slice(&out.stdout).context("the server's command is not a JSON array")?;
    ensure!(!argv.is_empty(), "the server's command is empty");
    Ok(argv.into_iter().map(OsString::from).collect())
}

fn wait_for_server(server: &mut Process, socket: &Path) -> Result<()> {
    let since = Instant::now();
    while UnixStream::connect(socket).is_err() {
        ensure!(!interrupted(), "interrupted");
        if let Some(code) = server.ended()? {
            bail!("the server ended with status {code}{}", server.said());
        }
        ensure!(since.elapsed() < START_TIMEOUT, "the server does not answer{}", server.said());
        std::thread::sleep(LOOK_EVERY);
    }
    Ok(())
}

/// The process, its child, that one's, and so on.
fn with_children(process: &Process) -> Vec<u32> {
    std::iter::successors(Some(process.child.id()), |&pid| child_of(pid)).collect()
}

/// The first process that `parent` has started and that is alive.
fn child_of(parent: u32) -> Option<u32> {
    let entries = fs::read_dir("/proc").ok()?.flatten();
    let pids = entries.filter_map(|e| e.file_name().to_str()?.parse::<u32>().ok());
    let is_child = |pid: &u32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let mut fields = stat.rsplit(')').next().unwrap_or("").split_whitespace();
        let state = fields.next().unwrap_or("Z");
        let of = fields.next().and_then(|n| n.parse::<u32>().ok());
        state != "Z" && of == Some(parent)
    };
    pids.filter(is_child).min()
}
