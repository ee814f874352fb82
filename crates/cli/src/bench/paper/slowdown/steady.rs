//! Which part of a run is steady, what comes after a change, and how fast work went in either.

use std::ops::Range;

use anyhow::{ensure, Result};

use super::super::record::{Record, Second, Settings};
use super::super::schedule::DRAM;

/// Windows after a change that are not steady: the policy's promise is to react within them.
pub(super) const REACTION_WINDOWS: usize = 2;
/// Windows after a change that are shown.
const SHOWN_WINDOWS: usize = 12;
/// A line of the load may begin so much before a part of the run and still be of it: the load's
/// seconds and its phases are not on the same clock tick.
const SLACK_S: f64 = 0.25;

/// Refuses settings that leave nothing steady, or nothing after the reaction.
pub(super) fn check(settings: &Settings) -> Result<()> {
    let Settings { seconds, window_s, phase_at_s, .. } = *settings;
    if phase_at_s == 0.0 {
        return Ok(());
    }
    let after = (REACTION_WINDOWS + 1) as f64 * window_s;
    ensure!(
        phase_at_s >= window_s && phase_at_s + after <= seconds,
        "--phase-at must leave a window before it and {} after it: {window_s} to {} seconds, or 0",
        REACTION_WINDOWS + 1,
        seconds - after
    );
    Ok(())
}

/// The steady parts, in seconds since the measured part began.
pub(super) fn spans(settings: &Settings) -> Vec<Range<f64>> {
    let Settings { seconds, window_s, phase_at_s, .. } = *settings;
    if phase_at_s == 0.0 {
        return vec![0.0..seconds];
    }
    vec![0.0..phase_at_s, phase_at_s + REACTION_WINDOWS as f64 * window_s..seconds]
}

/// The windows after the change, on the same clock; none if there is no change.
pub(super) fn windows_after(settings: &Settings) -> Vec<Range<f64>> {
    let Settings { seconds, window_s, phase_at_s, .. } = *settings;
    if phase_at_s == 0.0 {
        return Vec::new();
    }
    let all = ((seconds - phase_at_s) / window_s + 1e-9) as usize;
    let begin = |n: usize| phase_at_s + n as f64 * window_s;
    (0..all.min(SHOWN_WINDOWS)).map(|n| begin(n)..begin(n + 1)).collect()
}

/// When the measured part of a run began, in seconds since its data was loaded.
fn begin_s(run: &Record) -> f64 {
    match run.id.config == DRAM {
        true => run.settings.dram_warmup_s,
        false => run.settings.warmup_s,
    }
}

/// Seconds for a unit of work in these parts of a run; not a number where none was done.
pub(super) fn seconds_per_work(run: &Record, parts: &[Range<f64>]) -> f64 {
    let (own, _) = done_in(run, parts);
    own.seconds_per_unit()
}

/// The same, of a server that took turns with a plain one over what that took: what runs are
/// compared by.
pub(super) fn relative(run: &Record, parts: &[Range<f64>]) -> f64 {
    let (own, beside) = done_in(run, parts);
    if run.load.beside.is_some() {
        own.seconds_per_unit() / beside.seconds_per_unit()
    } else {
        own.seconds_per_unit()
    }
}

/// Work and the seconds that it took.
#[derive(Clone, Copy, Default)]
struct Done {
    work: f64,
    time_s: f64,
}

impl Done {
    fn seconds_per_unit(self) -> f64 {
        if self.work > 0.0 {
            self.time_s / self.work
        } else {
            f64::NAN
        }
    }
}

/// What a run did in these parts, and what the plain server did that took turns with it.
fn done_in(run: &Record, parts: &[Range<f64>]) -> (Done, Done) {
    let begin = begin_s(run);
    let is_in = |from: f64, to: f64| {
        parts.iter().any(|part| from >= part.start - SLACK_S && to <= part.end + SLACK_S)
    };
    let (mut own, mut beside, mut last) = (Done::default(), Done::default(), 0.0);
    for second in &run.seconds {
        let (from, to) = (last - begin, second.t_s - begin);
        last = second.t_s;
        if is_in(from, to) {
            let (work, time_s) = of_second(second, to - from);
            own.work += work;
            own.time_s += time_s;
            beside.work += second.beside_work;
            beside.time_s += second.beside_s;
        }
    }
    (own, beside)
}

/// Work and its time; of a load that tells neither, operations and the time that passed.
fn of_second(second: &Second, passed_s: f64) -> (f64, f64) {
    if second.work_s > 0.0 {
        (second.work, second.work_s)
    } else {
        (second.ops, passed_s)
    }
}

/// Mean cost of memory in these parts of a run, US dollars per month.
pub(super) fn usd(run: &Record, parts: &[Range<f64>]) -> f64 {
    let begin = begin_s(run);
    let of = run.memory.iter().filter(|m| parts.iter().any(|p| p.contains(&(m.t_s - begin))));
    let (sum, n) = of.fold((0.0, 0), |(sum, n), m| (sum + m.usd_per_month, n + 1));
    if n > 0 {
        sum / f64::from(n)
    } else {
        f64::NAN
    }
}

/// Windows after a change until it is inside `limit` again: the first that is and whose successor
/// is too, as one alone may be luck. `None` if that never came.
pub(super) fn windows_until_inside(slowdowns: &[f64], limit: f64) -> Option<usize> {
    let is_inside = |n: usize| slowdowns.get(n).is_none_or(|s| *s <= limit);
    (0..slowdowns.len()).find(|&n| is_inside(n) && is_inside(n + 1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::paper::record::{Memory, RunId};

    fn settings(phase_at_s: f64) -> Settings {
        Settings {
            seconds: 20.0,
            warmup_s: 5.0,
            dram_warmup_s: 2.0,
            window_s: 2.0,
            phase_at_s,
            ..Settings::default()
        }
    }

    /// 100 units in every second; from the change on `slow` of them for so many seconds.
    fn run(config: &str, slow: f64, for_s: f64) -> Record {
        let settings = settings(10.0);
        let id = RunId { config: config.into(), ..RunId::default() };
        let mut run = Record { id, settings, ..Record::default() };
        let begin = begin_s(&run);
        for second in 0..(begin + 20.0) as usize {
            let since = second as f64 - begin - 10.0;
            let is_slow = (0.0..for_s).contains(&since);
            let work = if is_slow { slow } else { 100.0 };
            // Lines come a little late, as the load writes them between operations.
            let t_s = (second + 1) as f64 + 0.003;
            run.seconds.push(Second { t_s, ops: work, work, work_s: 1.0, ..Second::default() });
            let usd_per_month = if is_slow { 9.0 } else { 2.0 };
            run.memory.push(Memory { t_s: second as f64, usd_per_month, ..Memory::default() });
        }
        run
    }

    #[test]
    fn steady_is_all_but_the_two_windows_after_the_change() {
        let changing = settings(10.0);
        assert_eq!(spans(&changing), [0.0..10.0, 14.0..20.0]);
        let windows = windows_after(&changing);
        assert_eq!((windows.len(), &windows[0], &windows[4]), (5, &(10.0..12.0), &(18.0..20.0)));
        assert_eq!(
            (spans(&settings(0.0)), windows_after(&settings(0.0)).len()),
            (vec![0.0..20.0], 0)
        );
        assert!(check(&settings(0.0)).is_ok() && check(&changing).is_ok());
        for wrong in [1.0, 15.0] {
            assert!(check(&settings(wrong)).is_err(), "{wrong}");
        }
    }

    #[test]
    fn what_a_change_costs_is_in_its_windows_only() {
        for (config, for_s) in [("alpha-0.5", 4.0), (DRAM, 3.0)] {
            let run = run(config, 25.0, for_s);
            let steady = spans(&run.settings);
            assert!((seconds_per_work(&run, &steady) - 0.01).abs() < 1e-9, "{config}");
            assert_eq!(usd(&run, &steady), 2.0);
            let windows = windows_after(&run.settings);
            let first = seconds_per_work(&run, &windows[..1]);
            assert!((first - 0.04).abs() < 1e-9, "{config}: {first}");
            assert!((seconds_per_work(&run, &windows[2..3]) - 0.01).abs() < 1e-9, "{config}");
        }
        // A change that is felt for longer is in the steady part.
        let run = run("alpha-0.5", 25.0, 6.0);
        assert!(seconds_per_work(&run, &spans(&run.settings)) > 0.0105);
    }

    #[test]
    fn time_is_that_of_the_work_where_the_load_tells_it() {
        let mut run = run("alpha-0.5", 100.0, 0.0);
        let all = [0.0..20.0];
        run.seconds.iter_mut().for_each(|s| s.work_s = 0.5);
        assert!((seconds_per_work(&run, &all) - 0.005).abs() < 1e-9);
        // Without it, operations in the time that passed.
        run.seconds.iter_mut().for_each(|s| (s.work, s.work_s) = (0.0, 0.0));
        assert!((seconds_per_work(&run, &all) - 0.01).abs() < 1e-4);
        // A stall of three seconds is one line.
        run.seconds.retain(|s| !(8.0..11.0).contains(&s.t_s));
        assert!((seconds_per_work(&run, &all) - 20.0 / 1700.0).abs() < 1e-4);
        run.seconds.clear();
        assert!(seconds_per_work(&run, &all).is_nan() && usd(&run, &[90.0..99.0]).is_nan());
    }

    #[test]
    fn of_turns_the_machine_is_in_both() {
        let mut run = run("alpha-0.5", 100.0, 0.0);
        // Half as quick as the plain server, on a machine that gets slower all the time.
        for second in &mut run.seconds {
            let quick = 1.0 / (1.0 + second.t_s / 10.0);
            (second.work, second.work_s) = (65.0 * quick, 0.65);
            (second.beside_work, second.beside_s) = (60.0 * quick, 0.3);
        }
        let (all, late) = ([0.0..20.0], [15.0..20.0]);
        assert!(seconds_per_work(&run, &late) > 1.2 * seconds_per_work(&run, &all));
        // Nobody took turns with it: its own figure.
        assert_eq!(relative(&run, &all), seconds_per_work(&run, &all));
        run.load.beside = Some(Box::default());
        assert!((relative(&run, &all) - 2.0).abs() < 1e-9);
        assert!((relative(&run, &late) - 2.0).abs() < 1e-9);
        run.seconds.iter_mut().for_each(|s| (s.beside_work, s.beside_s) = (0.0, 0.0));
        assert!(relative(&run, &all).is_nan(), "not a share of nothing");
    }

    #[test]
    fn inside_again_means_for_two_windows() {
        assert_eq!(windows_until_inside(&[0.04, 0.05, 0.9], 0.06), Some(0));
        assert_eq!(windows_until_inside(&[0.5, 0.2, 0.04, 0.05], 0.06), Some(2));
        assert_eq!(windows_until_inside(&[0.5, 0.04, 0.2, 0.05, 0.01], 0.06), Some(3));
        assert_eq!(windows_until_inside(&[0.5, 0.2, 0.05], 0.06), Some(2));
        assert_eq!(windows_until_inside(&[0.5, 0.2], 0.06), None);
        assert_eq!(windows_until_inside(&[f64::NAN, 0.01, 0.02], 0.06), Some(1));
    }
}
