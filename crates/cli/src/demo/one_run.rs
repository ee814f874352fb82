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
    args.extend(["--preset".into(), placement.preset.into(), "--policy".into()]);
    match placement.policy {
        Policy::Waterfall(threshold) => {
            args.extend(["waterfall".into(), "--threshold".into(), threshold.into()]);
        }
        Policy::Analytical(alpha) => {
            args.extend(["analytical".into(), "--alpha".into(), alpha.to_string().into()]);
        }
    }
    args.extend(["--window".into(), setting.window.as_secs_f64().to_string().into()]);
    args.extend(["--timeline".into(), timeline.into()]);
    args.extend(setting.run_args.iter().cloned());
    args
}

/// Length of a look at the baseline, as a share of a window.
const SLICE_SHARE: f64 = 0.4;
/// How much of it is not counted.
const SLICE_WARMUP_SHARE: f64 = 0.2;

/// The plain server that every run is compared with. It stays alive through all of them, stopped,
/// and is driven for a moment in every window of every run: machines drift, and only neighbours in
/// time can be compared.
pub struct Baseline {
    server: Server,
    versions: Vec<u16>,
    slices: u64,
}

impl Baseline {
    /// Drives the plain server for `time` and stops it again.
    /// Returns the operations per second.
    fn slice(&mut self, setting: &Setting<'_>, time: Duration, into: &mut Measured) -> Result<f64> {
        self.server.resume();
        let streams: Result<Vec<_>> =
            (0..setting.mix.clients).map(|_| self.server.connect()).collect();
        let (streams, control) = (streams?, &Control::default());
        self.slices += 1;
        let (seed, versions) = (1000 + self.slices, &mut self.versions);
        let measured = std::thread::scope(|scope| {
            let generator = scope.spawn(move || {
                load::drive(streams, setting.content, versions, setting.mix, seed, control)
            });
            // The first moments belong to caches that another server has used.
            std::thread::sleep(time.mul_f64(SLICE_WARMUP_SHARE));
            control.set(Phase::Measure);
            std::thread::sleep(time.mul_f64(1.0 - SLICE_WARMUP_SHARE));
            control.set(Phase::Stop);
            generator.join().map_err(|_| anyhow::anyhow!("the load generator panicked"))?
        });
        let measured = measured.map_err(|e| blame_server(&mut self.server, e))?;
        self.server.pause();
        let ops_s = measured.throughput();
        into.add(measured);
        Ok(ops_s)
    }

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
    Ok((outcome, Baseline { server, versions, slices: 0 }))
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
        wall: measured.wall,
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
    application_cpu: Duration,
    rss_bytes: u64,
    /// Windows complete at the start and at the end of the measured phase.
    windows: (usize, usize),
    series: Vec<(f64, f64)>,
    /// The baseline in the same time, if there is one.
    dram: Option<Measured>,
    /// Throughput of each window over that of the look at the baseline after it.
    pairs: Vec<f64>,
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
        std::thread::scope(|scope| {
            let (content, mix) = (setting.content, setting.mix);
            let generator = std::thread::Builder::new()
                .name("load".into())
                .spawn_scoped(scope, move || {
                    load::drive(streams, content, versions, mix, 1, control)
                })
                .context("cannot start the load generator")?;
            let watched = self.phases(setting, server, control, times, &|| generator.is_finished());
            control.set(Phase::Stop);
            let ended = generator.join();
            // What the generator saw explains more than that it stopped.
            let measured = match ended {
                Ok(Ok(measured)) => measured,
                Ok(Err(e)) if !sys::interrupted() => return Err(blame_server(server, e)),
                Ok(Err(e)) => return Err(e),
                Err(_) => bail!("the load generator panicked"),
            };
            let mut driven = watched?;
            driven.measured = measured;
            Ok(driven)
        })
    }

    fn phases(
        &mut self,
        setting: &Setting<'_>,
        server: &mut Server,
        control: &Control,
        times: Times,
        ended: &dyn Fn() -> bool,
    ) -> Result<Driven> {
        let mut look = Look { ops: 0, at: Instant::now(), alive: Instant::now(), series: vec![] };
        // A measured phase starts and ends with a window, so that faults, pages and operations
        // are of the same time. Where there are no windows, by the clock.
        let grace = self.window + self.window.mul_f64(0.5) + Duration::from_secs(1);
        self.go_on(server, control, &mut look, "warming up", times.warmup, ended, |_| false)?;
        let before = self.windows();
        let has_windows = self.follower.is_some();
        self.go_on(server, control, &mut look, "warming up", grace, ended, |windows| {
            !has_windows || windows > before
        })?;

        let first = self.windows();
        let cpu_before = server.application_cpu();
        let wanted = (times.measure.as_secs_f64() / self.window.as_secs_f64()).round().max(1.0);
        let mut dram = self.baseline.is_some().then(Measured::default);
        let mut pairs = Vec::new();
        if let Some(dram) = &mut dram {
            // Window by window, and between them the baseline in the same weather.
            for n in 1..=wanted as usize {
                let (start, ops) = (Instant::now(), control.ops());
                control.set(Phase::Measure);
                self.go_on(server, control, &mut look, "measuring", grace, ended, |windows| {
                    windows - first >= n
                })?;
                let run = (control.ops() - ops) as f64 / start.elapsed().as_secs_f64();
                let plain = self.compare(setting, server, control, dram)?;
                pairs.push(run / plain.max(1e-9));
            }
        } else {
            control.set(Phase::Measure);
            self.go_on(server, control, &mut look, "measuring", times.measure, ended, |_| false)?;
        }
        control.set(Phase::Stop);
        Ok(Driven {
            measured: Measured::default(),
            application_cpu: server.application_cpu().saturating_sub(cpu_before),
            rss_bytes: server.rss_bytes(),
            windows: (first, self.windows()),
            series: look.series,
            dram,
            pairs,
        })
    }

    /// Holds the run, Terrace included, and drives the baseline for a moment. Returns the
    /// baseline's operations per second.
    fn compare(
        &mut self,
        setting: &Setting<'_>,
        server: &mut Server,
        control: &Control,
        dram: &mut Measured,
    ) -> Result<f64> {
        let Some(baseline) = &mut self.baseline else { return Ok(0.0) };
        control.set(Phase::Hold);
        let start = Instant::now();
        while !control.is_held() {
            server.check_alive()?;
            ensure!(start.elapsed() < load::STALL_LIMIT, "the server does not answer any more");
            std::thread::sleep(Duration::from_millis(1));
        }
        server.pause();
        let compared = baseline.slice(setting, self.window.mul_f64(SLICE_SHARE), dram);
        server.resume();
        compared
    }

    fn windows(&self) -> usize {
        self.follower.as_ref().map_or(0, |f| f.windows().len())
    }

    /// Watches until the time is over or `done` says so.
    #[allow(clippy::too_many_arguments)]
    fn go_on(
        &mut self,
        server: &mut Server,
        control: &Control,
        look: &mut Look,
        what: &str,
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
            self.progress.update(|| {
                format!(
                    "{label} · {what} {:.0}/{:.0} s · {rate:.0} ops/s{saved} · {wrong} wrong \
                     values",
                    start.elapsed().as_secs_f64(),
                    limit.as_secs_f64()
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
}
