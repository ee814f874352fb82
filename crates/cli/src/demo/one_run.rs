//! One run from the start of a server to its end: fill, warm up, measure, read everything back.

use super::content::Content;
use super::load::{self, Control, Measured, Mix, Phase, WrongValues};
use super::outcome::{Outcome, Placement, Policy, RunSpec, Speed};
use super::progress::Progress;
use super::redis::Server;
use super::sys;
use super::timeline::{summarise, Follower, Window};
use anyhow::{bail, ensure, Context, Result};
use std::ffi::OsString;
use std::io;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How often the watching thread looks around.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// A point of the throughput series.
const SERIES_EVERY: Duration = Duration::from_secs(1);

/// What is the same for all runs.
pub struct Setting<'a> {
    /// The program that has the verb `run`: this one.
    pub exe: PathBuf,
    /// Further arguments of `run`.
    pub run_args: Vec<OsString>,
    /// Where servers keep their files.
    pub folder: &'a Path,
    /// The values.
    pub content: &'a Content,
    /// The requests.
    pub mix: Mix,
    /// Whether keys are loaded in a scattered order.
    pub shuffle: bool,
    /// Length of a profile window.
    pub window: Duration,
}

/// How long the phases of a run take.
#[derive(Clone, Copy)]
pub struct Times {
    /// Driven but not measured.
    pub warmup: Duration,
    /// Driven and measured.
    pub measure: Duration,
}

/// What comes before `-- redis-server`: `terrace run` with its options.
pub fn launcher(setting: &Setting<'_>, placement: &Placement, timeline: &Path) -> Vec<OsString> {
    let mut args: Vec<OsString> = vec![setting.exe.clone().into(), "run".into()];
    args.extend(["--preset".into(), placement.preset.into()]);
    let policy: Vec<OsString> = match placement.policy {
        Policy::Waterfall(threshold) => {
            vec!["--policy".into(), "waterfall".into(), "--threshold".into(), threshold.into()]
        }
        Policy::Analytical(alpha) => {
            let alpha = alpha.to_string().into();
            vec!["--policy".into(), "analytical".into(), "--alpha".into(), alpha]
        }
        Policy::Slowdown(share) => {
            vec!["--max-slowdown".into(), format!("{}%", share * 100.0).into()]
        }
        Policy::None => vec!["--policy".into(), "none".into()],
    };
    args.extend(policy);
    args.extend(["--window".into(), setting.window.as_secs_f64().to_string().into()]);
    args.extend(["--timeline".into(), timeline.into()]);
    args.extend(setting.run_args.iter().cloned());
    args
}

/// The run and the baseline take turns this quickly: on a virtual machine of two CPUs the same
/// server is 10 % faster or slower from one second to the next, and only neighbours in time can be
/// compared.
const RUN_SLICE: Duration = Duration::from_millis(250);
const PLAIN_SLICE: Duration = Duration::from_millis(120);
/// Not counted at the start of both: caches belong to the other server.
const SETTLE: Duration = Duration::from_millis(40);

/// The plain server that every run is compared with. It stays alive through all of them, stopped,
/// and is driven after every [`RUN_SLICE`] of every run, over connections as old as the run's:
/// Redis serves new ones faster.
pub struct Baseline {
    server: Server,
    versions: Vec<u16>,
    streams: Vec<UnixStream>,
}

impl Baseline {
    /// Reads every key back and ends the server.
    pub fn finish(self, setting: &Setting<'_>) -> Result<WrongValues> {
        self.server.resume();
        let wrong = load::read_back(&self.server, setting.content, &self.versions, |_| ())?;
        self.server.stop()?;
        Ok(wrong)
    }
}

/// Starts a server and loads it.
fn loaded(
    setting: &Setting<'_>,
    spec: &RunSpec,
    label: &str,
    progress: &mut Progress,
) -> Result<(Server, PathBuf)> {
    let file_name = format!("server-{}", spec.name.replace([' ', '.'], "-"));
    let timeline = setting.folder.join(format!("{file_name}.timeline"));
    let before = spec.terrace.as_ref().map(|p| launcher(setting, p, &timeline));
    let mut server = Server::start(setting.folder, &file_name, &before.unwrap_or_default())?;
    let keys = setting.mix.keys;
    load::fill(&server, setting.content, keys, setting.shuffle, |n| {
        let share = 100.0 * n as f64 / keys as f64;
        progress.update(|| format!("{label} · loading {share:.0} %"));
    })
    .map_err(|e| blame_server(&mut server, e))?;
    Ok((server, timeline))
}

/// Measures plain DRAM; the server stays, to be compared with.
pub fn run_dram(
    setting: &Setting<'_>,
    spec: RunSpec,
    times: Times,
    label: &str,
    progress: &mut Progress,
) -> Result<(Outcome, Baseline)> {
    let started = Instant::now();
    let (mut server, _) = loaded(setting, &spec, label, progress)?;
    let window = setting.window;
    let mut watch = Watch { follower: None, baseline: None, label, progress, started, window };
    let mut versions = vec![0_u16; setting.mix.keys as usize];
    let driven = watch.drive(setting, &mut server, &mut versions, times)?;
    server.pause();
    let outcome = outcome(spec, &driven, &[], driven.measured.wrong.count);
    server.resume();
    let streams: Result<Vec<_>> = (0..setting.mix.clients).map(|_| server.connect()).collect();
    server.pause();
    Ok((outcome, Baseline { server, versions, streams: streams? }))
}

/// Runs one configuration. `label` starts every progress line.
pub fn run(
    setting: &Setting<'_>,
    spec: RunSpec,
    times: Times,
    label: &str,
    baseline: &mut Baseline,
    progress: &mut Progress,
) -> Result<(Outcome, WrongValues)> {
    let started = Instant::now();
    let (mut server, timeline) = loaded(setting, &spec, label, progress)?;
    let keys = setting.mix.keys;
    let share = |n: u64| 100.0 * n as f64 / keys as f64;

    let follower = Some(Follower::new(&timeline, server.pid()));
    let baseline = Some(baseline);
    let window = setting.window;
    let mut watch = Watch { follower, baseline, label, progress, started, window };
    let mut versions = vec![0_u16; keys as usize];
    let driven = watch.drive(setting, &mut server, &mut versions, times)?;

    let mut wrong = driven.measured.wrong.clone();
    let back = load::read_back(&server, setting.content, &versions, |n| {
        watch.progress.update(|| format!("{label} · reading every key back {:.0} %", share(n)));
    })
    .map_err(|e| blame_server(&mut server, e))?;
    wrong.merge(back);
    server.stop()?;

    let windows: Vec<Window> = watch.follower.map_or(Vec::new(), |f| f.windows().to_vec());
    let (first, last) = driven.windows;
    ensure!(last > first, "`terrace run` wrote no window to its timeline in the measured phase");
    Ok((outcome(spec, &driven, &windows, wrong.count), wrong))
}

fn outcome(spec: RunSpec, driven: &Driven, windows: &[Window], wrong_values: u64) -> Outcome {
    let (first, last) = driven.windows;
    let measured = &driven.measured;
    let speed = Speed::new(&measured.latency, measured.wall);
    Outcome {
        speed,
        // Plain DRAM is its own baseline.
        dram: driven.dram.as_ref().map_or(speed, |m| Speed::new(&m.latency, m.wall)),
        pairs: driven.pairs.clone(),
        ops: measured.latency.count(),
        wall: driven.driven,
        application_cpu: driven.application_cpu,
        client_cpu: measured.client_cpu,
        wrong_values,
        summary: summarise(&windows[first..last]),
        windows: windows[..last].to_vec(),
        first_measured: first,
        series: driven.series.clone(),
        rss_bytes: driven.rss_bytes,
        spec,
    }
}

/// When the server is what failed, its log says more than our broken connection.
fn blame_server(server: &mut Server, error: anyhow::Error) -> anyhow::Error {
    // Give a dying process the moment it needs to become a dead one.
    std::thread::sleep(Duration::from_millis(200));
    match server.check_alive() {
        _ if sys::interrupted() => error,
        Err(dead) => dead.context(error),
        Ok(()) => error.context(format!("the server is alive but failed{}", server.log_tail())),
    }
}

struct Driven {
    measured: Measured,
    /// The time from the first window to the last in which the run was not held.
    driven: Duration,
    application_cpu: Duration,
    rss_bytes: u64,
    /// Windows complete at the start and at the end of the measured phase.
    windows: (usize, usize),
    series: Vec<(f64, f64)>,
    /// The baseline in the same time, if there is one.
    dram: Option<Measured>,
    /// Throughput in each window over that of the baseline in the same window.
    pairs: Vec<f64>,
}

/// The baseline while a run is on: held and stopped but in its slices.
struct Beside<'a> {
    server: &'a mut Server,
    control: &'a Control,
}

impl Beside<'_> {
    /// Drives the plain server for a moment and stops it again.
    fn slice(&mut self) -> Result<Rate> {
        self.server.resume();
        self.control.set(Phase::WarmUp);
        std::thread::sleep(SETTLE);
        let (start, before) = (Instant::now(), self.control.ops());
        self.control.set(Phase::Measure);
        std::thread::sleep(PLAIN_SLICE);
        let rate = Rate { ops: self.control.ops() - before, time: start.elapsed() };
        hold(self.server, self.control)?;
        self.server.pause();
        Ok(rate)
    }
}

/// A scope waits for its threads; one that is left early must tell them to end.
struct StopOnDrop<'a>(&'a Control);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.set(Phase::Stop);
    }
}

/// Operations, and the time they took.
#[derive(Clone, Copy, Default)]
struct Rate {
    ops: u64,
    time: Duration,
}

impl Rate {
    fn plus(self, other: Rate) -> Rate {
        Rate { ops: self.ops + other.ops, time: self.time + other.time }
    }

    fn per_s(self) -> f64 {
        self.ops as f64 / self.time.as_secs_f64().max(1e-9)
    }
}

/// Waits until the generator has all its replies and rests.
fn hold(server: &mut Server, control: &Control) -> Result<()> {
    control.set(Phase::Hold);
    let start = Instant::now();
    while !control.is_held() {
        sys::stop_if_interrupted()?;
        server.check_alive()?;
        ensure!(start.elapsed() < load::STALL_LIMIT, "the server does not answer any more");
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

/// The thread that watches the load generator: phases, windows, progress, death.
struct Watch<'a> {
    follower: Option<Follower>,
    baseline: Option<&'a mut Baseline>,
    label: &'a str,
    progress: &'a mut Progress,
    started: Instant,
    window: Duration,
}

impl Watch<'_> {
    fn drive(
        &mut self,
        setting: &Setting<'_>,
        server: &mut Server,
        versions: &mut [u16],
        times: Times,
    ) -> Result<Driven> {
        let streams: Result<Vec<_>> = (0..setting.mix.clients).map(|_| server.connect()).collect();
        let (streams, control) = (streams?, &Control::default());
        let beside_control = &Control::default();
        let (content, mix) = (setting.content, setting.mix);
        std::thread::scope(|scope| {
            let spawn = |streams, versions, seed, control| {
                std::thread::Builder::new()
                    .name("load".into())
                    .spawn_scoped(scope, move || {
                        load::drive(streams, content, versions, mix, seed, control)
                    })
                    .context("cannot start the load generator")
            };
            let _stop = (StopOnDrop(control), StopOnDrop(beside_control));
            let mut other = None;
            let mut beside = None;
            if let Some(Baseline { server, versions, streams }) = self.baseline.take() {
                beside_control.set(Phase::Hold);
                server.resume();
                let streams: io::Result<Vec<_>> =
                    streams.iter().map(UnixStream::try_clone).collect();
                other = Some(spawn(streams?, &mut versions[..], 2, beside_control)?);
                hold(server, beside_control)?;
                beside = Some(Beside { server, control: beside_control });
            }
            let generator = spawn(streams, versions, 1, control)?;
            let ended =
                || generator.is_finished() || other.as_ref().is_some_and(|o| o.is_finished());
            let watched = self.phases(server, control, times, beside.as_mut(), &ended);
            control.set(Phase::Stop);
            beside_control.set(Phase::Stop);
            if let Some(beside) = &beside {
                beside.server.resume();
            }
            let (ended, other) = (generator.join(), other.map(|other| other.join()));
            if let Some(beside) = &beside {
                beside.server.pause();
            }
            // What the generators saw explains more than that they stopped.
            let mut measured = |ended: std::thread::Result<Result<Measured>>| match ended {
                Ok(Ok(measured)) => Ok(measured),
                Ok(Err(e)) if !sys::interrupted() => Err(blame_server(server, e)),
                Ok(Err(e)) => Err(e),
                Err(_) => bail!("the load generator panicked"),
            };
            let (measured, dram) = (measured(ended)?, other.map(measured).transpose()?);
            Ok(Driven { measured, dram, ..watched? })
        })
    }

    fn phases(
        &mut self,
        server: &mut Server,
        control: &Control,
        times: Times,
        beside: Option<&mut Beside<'_>>,
        ended: &dyn Fn() -> bool,
    ) -> Result<Driven> {
        let mut look = Look::new("warming up", times.warmup);
        // A measured phase starts and ends with a window, so that faults, pages and operations
        // are of the same time. Where there are no windows, by the clock.
        let grace = self.window + self.window.mul_f64(0.5) + Duration::from_secs(1);
        self.go_on(server, control, &mut look, times.warmup, ended, |_| false)?;
        let before = self.windows();
        let has_windows = self.follower.is_some();
        self.go_on(server, control, &mut look, grace, ended, |windows| {
            !has_windows || windows > before
        })?;

        let first = self.windows();
        let cpu_before = server.application_cpu();
        let wanted = (times.measure.as_secs_f64() / self.window.as_secs_f64()).round().max(1.0);
        let (mut pairs, mut driven) = (Vec::new(), Duration::ZERO);
        look.begin("measuring", times.measure);
        if let Some(beside) = beside {
            for n in 1..=wanted as usize {
                let (started, mut run, mut plain) =
                    (Instant::now(), Rate::default(), Rate::default());
                while self.windows() - first < n {
                    ensure!(started.elapsed() < 2 * grace, "`terrace run` closes no window");
                    let turn = Instant::now();
                    self.go_on(server, control, &mut look, SETTLE, ended, |_| false)?;
                    let (start, before) = (Instant::now(), control.ops());
                    control.set(Phase::Measure);
                    let slice = RUN_SLICE;
                    self.go_on(server, control, &mut look, slice, ended, |_| false)?;
                    run = run.plus(Rate { ops: control.ops() - before, time: start.elapsed() });
                    driven += turn.elapsed();
                    let paused = Instant::now();
                    hold(server, control)?;
                    server.pause();
                    let slice = beside.slice();
                    server.resume();
                    plain = plain.plus(slice?);
                    control.set(Phase::WarmUp);
                    look.at += paused.elapsed();
                }
                pairs.push(run.per_s() / plain.per_s().max(1e-9));
            }
        } else {
            control.set(Phase::Measure);
            self.go_on(server, control, &mut look, times.measure, ended, |_| false)?;
            driven = times.measure;
        }
        control.set(Phase::Stop);
        Ok(Driven {
            measured: Measured::default(),
            driven,
            application_cpu: server.application_cpu().saturating_sub(cpu_before),
            rss_bytes: server.rss_bytes(),
            windows: (first, self.windows()),
            series: look.series,
            dram: None,
            pairs,
        })
    }

    fn windows(&self) -> usize {
        self.follower.as_ref().map_or(0, |f| f.windows().len())
    }

    /// Watches until the time is over or `done` says so.
    fn go_on(
        &mut self,
        server: &mut Server,
        control: &Control,
        look: &mut Look,
        limit: Duration,
        ended: &dyn Fn() -> bool,
        done: impl Fn(usize) -> bool,
    ) -> Result<()> {
        let start = Instant::now();
        while start.elapsed() < limit {
            std::thread::sleep(LOOK_EVERY.min(limit.saturating_sub(start.elapsed())));
            sys::stop_if_interrupted()?;
            server.check_alive()?;
            ensure!(!ended(), "the load generator stopped");
            if let Some(follower) = &mut self.follower {
                follower.poll()?;
            }
            let since = look.at.elapsed();
            let ops = control.ops();
            if since >= SERIES_EVERY {
                let rate = (ops - look.ops) as f64 / since.as_secs_f64();
                look.series.push((self.started.elapsed().as_secs_f64(), rate));
                if ops > look.ops {
                    look.alive = Instant::now();
                }
                (look.ops, look.at) = (ops, Instant::now());
                ensure!(
                    look.alive.elapsed() < load::STALL_LIMIT,
                    "no reply for {:?}: the server hangs{}",
                    load::STALL_LIMIT,
                    server.log_tail()
                );
            }
            let rate = look.series.last().map_or(0.0, |(_, rate)| *rate);
            let saved = self.follower.as_ref().and_then(|f| f.windows().last());
            let saved = saved
                .map_or(String::new(), |w| format!(" · TCO saved {:.0} %", 100.0 * w.tco_saved));
            let (label, wrong) = (self.label, control.wrong());
            let (phase, since) = (look.phase, look.since.elapsed().as_secs_f64());
            let length = look.length.as_secs_f64();
            self.progress.update(|| {
                format!(
                    "{label} · {phase} {since:.0}/{length:.0} s · {rate:.0} ops/s{saved} · \
                     {wrong} wrong values"
                )
            });
            if done(self.windows()) {
                break;
            }
        }
        Ok(())
    }
}

/// What the watching thread saw last.
struct Look {
    ops: u64,
    at: Instant,
    alive: Instant,
    series: Vec<(f64, f64)>,
    /// What is done now, since when, and how long it should take.
    phase: &'static str,
    since: Instant,
    length: Duration,
}

impl Look {
    fn new(phase: &'static str, length: Duration) -> Look {
        let now = Instant::now();
        Look { ops: 0, at: now, alive: now, series: Vec::new(), phase, since: now, length }
    }

    fn begin(&mut self, phase: &'static str, length: Duration) {
        (self.phase, self.since, self.length) = (phase, Instant::now(), length);
    }
}
