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

/// Runs one configuration. `label` starts every progress line.
pub fn run(
    setting: &Setting<'_>,
    spec: RunSpec,
    times: Times,
    label: &str,
    progress: &mut Progress,
) -> Result<(Outcome, WrongValues)> {
    let file_name = format!("server-{}", spec.name.replace([' ', '.'], "-"));
    let timeline = setting.folder.join(format!("{file_name}.timeline"));
    let before = spec.terrace.as_ref().map(|p| launcher(setting, p, &timeline));
    let mut server = Server::start(setting.folder, &file_name, &before.unwrap_or_default())?;
    let started = Instant::now();
    let keys = setting.mix.keys;
    let share = |n: u64| 100.0 * n as f64 / keys as f64;
    load::fill(&server, setting.content, keys, setting.shuffle, |n| {
        progress.update(|| format!("{label} · loading {:.0} %", share(n)));
    })
    .map_err(|e| blame_server(&mut server, e))?;

    let follower = spec.terrace.is_some().then(|| Follower::new(&timeline, server.pid()));
    let mut watch = Watch { follower, label, progress, started, window: setting.window };
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
    if spec.terrace.is_some() {
        ensure!(
            last > first,
            "`terrace run` wrote no window to its timeline in the measured phase"
        );
    }
    let measured = &driven.measured;
    let outcome = Outcome {
        speed: Speed::new(&measured.latency, measured.wall),
        ops: measured.latency.count(),
        wall: measured.wall,
        application_cpu: driven.application_cpu,
        client_cpu: measured.client_cpu,
        wrong_values: wrong.count,
        summary: summarise(&windows[first..last]),
        windows: windows[..last].to_vec(),
        first_measured: first,
        series: driven.series,
        rss_bytes: driven.rss_bytes,
        spec,
    };
    Ok((outcome, wrong))
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
}

/// The thread that watches the load generator: phases, windows, progress, death.
struct Watch<'a> {
    follower: Option<Follower>,
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
            let watched = self.phases(server, control, times, &|| generator.is_finished());
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
        control.set(Phase::Measure);
        let wanted = (times.measure.as_secs_f64() / self.window.as_secs_f64()).round().max(1.0);
        let limit = if has_windows { times.measure + grace } else { times.measure };
        self.go_on(server, control, &mut look, "measuring", limit, ended, |windows| {
            has_windows && windows - first >= wanted as usize
        })?;
        control.set(Phase::Stop);
        Ok(Driven {
            measured: Measured::default(),
            application_cpu: server.application_cpu().saturating_sub(cpu_before),
            rss_bytes: server.rss_bytes(),
            windows: (first, self.windows()),
            series: look.series,
        })
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
