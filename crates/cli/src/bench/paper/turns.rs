//! Turns for programs that have no client to hand them out: the one that is measured, with
//! everything of ours around it, and a plain one are stopped and continued by a thread here.
//!
//! Both stop themselves when their data is there (`terrace bench work --in-turns`), begin together
//! and end by the same clock, so their measured parts and their changes of phase coincide. What a
//! turn counts for is each program's own business (`bench::workloads::turns`), and when it is over
//! may be, too.

use std::fs;
use std::sync::mpsc::{channel, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{bail, ensure, Result};
use clap::ValueEnum;
use serde_json::Value;

use super::meter::Lines;
use super::record::{Load, Second};
use crate::bench::workloads::turns::{TurnsBy, BESIDE_SLICE, OWN_SLICE, SETTLE};
use crate::bench::workloads::Workload;
use crate::demo::sys::signal_process;

/// How long a program that ends its turns itself may go on unnoticed.
const LOOK_EVERY: Duration = Duration::from_millis(2);

/// How programs of this workload take turns, if they do.
pub(super) fn turns_of(workload: &str) -> Option<TurnsBy> {
    Workload::from_str(workload, false).ok().and_then(Workload::turns)
}

/// One of the two that take turns.
pub(super) struct Side {
    /// The processes that are stopped and continued as one.
    pub(super) all: Vec<u32>,
    /// The one of them that stops itself.
    pub(super) program: u32,
}

impl Side {
    fn signal(&self, signal: i32) {
        self.all.iter().for_each(|&pid| signal_process(pid as i32, signal));
    }
}

/// Hands out turns until it is dropped; both go on then.
pub(super) struct Turns {
    end: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Turns {
    /// The first turn has `own`.
    pub(super) fn begin(by: TurnsBy, own: Side, beside: Side) -> Turns {
        let (end, ended) = channel::<()>();
        let goes_on_for = move |time| ended.recv_timeout(time) == Err(RecvTimeoutError::Timeout);
        let thread = std::thread::spawn(move || {
            let both = [(&own, &beside, OWN_SLICE), (&beside, &own, BESIDE_SLICE)];
            for (goes_on, stops, slice) in both.into_iter().cycle() {
                stops.signal(libc::SIGSTOP);
                goes_on.signal(libc::SIGCONT);
                let is_to_go_on = match by {
                    TurnsBy::Time => goes_on_for(SETTLE + slice),
                    TurnsBy::Rounds => loop {
                        if !goes_on_for(LOOK_EVERY) {
                            break false;
                        }
                        if !is_at_work(goes_on.program) {
                            break true;
                        }
                    },
                };
                if !is_to_go_on {
                    break;
                }
            }
            own.signal(libc::SIGCONT);
            beside.signal(libc::SIGCONT);
        });
        Turns { end: Some(end), thread: Some(thread) }
    }
}

impl Drop for Turns {
    fn drop(&mut self) {
        self.end = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Whether a process is stopped.
pub(super) fn is_stopped(pid: u32) -> bool {
    state(pid) == Some('T')
}

/// Whether a process has neither stopped nor ended.
fn is_at_work(pid: u32) -> bool {
    !matches!(state(pid), None | Some('T' | 'Z' | 'X'))
}

fn state(pid: u32) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit(')').next()?.trim_start().chars().next()
}

/// What the plain program says, put beside what the measured one does.
pub(super) struct Beside {
    lines: Lines,
    /// Work and its seconds that no line of the measured one has been given yet.
    work: f64,
    work_s: f64,
    load: Option<Load>,
}

impl Beside {
    pub(super) fn of(lines: Lines) -> Beside {
        Beside { lines, work: 0.0, work_s: 0.0, load: None }
    }

    /// Takes in what it has said since.
    pub(super) fn poll(&mut self) -> Result<()> {
        for line in self.lines.poll()? {
            self.take_in(line)?;
        }
        Ok(())
    }

    fn take_in(&mut self, line: Value) -> Result<()> {
        if line["event"] == "done" {
            let load: Load = serde_json::from_value(line)?;
            ensure!(load.wrong == 0, "{} wrong results of the plain program", load.wrong);
            self.load = Some(load);
        } else if line["t_s"].is_number() {
            let second: Second = serde_json::from_value(line)?;
            self.work += second.work;
            self.work_s += second.work_s;
        }
        Ok(())
    }

    /// A line of the measured one gets what came since the line before.
    pub(super) fn put_beside(&mut self, second: &mut Second) {
        (second.beside_work, second.beside_s) = (self.work, self.work_s);
        (self.work, self.work_s) = (0.0, 0.0);
    }

    /// Its result, once it has ended.
    pub(super) fn result(self) -> Result<Load> {
        match self.load {
            Some(load) if load.seconds > 0.0 => Ok(load),
            _ => bail!("the plain program has measured nothing"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command};
    use std::time::Instant;

    use serde_json::json;

    use super::*;

    fn wait_until(what: impl Fn() -> bool) -> bool {
        let since = Instant::now();
        while since.elapsed() < Duration::from_secs(10) {
            if what() {
                return true;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        false
    }

    #[test]
    fn one_goes_on_while_the_other_is_stopped_and_both_do_in_the_end() {
        let mut all: Vec<Child> =
            (0..3).map(|_| Command::new("sleep").arg("60").spawn().unwrap()).collect();
        let pids: Vec<u32> = all.iter().map(Child::id).collect();
        let own = Side { all: vec![pids[0], pids[1]], program: pids[1] };
        let beside = Side { all: vec![pids[2]], program: pids[2] };
        let turns = Turns::begin(TurnsBy::Time, own, beside);
        for _ in 0..2 {
            assert!(wait_until(|| is_stopped(pids[2])));
            assert!(wait_until(|| is_stopped(pids[0]) && is_stopped(pids[1])));
        }
        drop(turns);
        let goes_on = wait_until(|| !pids.iter().any(|&pid| is_stopped(pid)));
        for child in &mut all {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        assert!(goes_on);
    }

    #[test]
    fn a_turn_is_over_when_its_program_stops_itself_or_has_ended() {
        let program = || Command::new("sh").args(["-c", "while kill -STOP $$; do :; done"]).spawn();
        let mut all = [program().unwrap(), program().unwrap()];
        let pids = all.each_ref().map(Child::id);
        let side = |pid| Side { all: vec![pid], program: pid };
        let turns = Turns::begin(TurnsBy::Rounds, side(pids[0]), side(pids[1]));
        let ran_ns = |pid: u32| -> u64 {
            let schedstat = fs::read_to_string(format!("/proc/{pid}/schedstat")).unwrap();
            schedstat.split(' ').next().unwrap().parse().unwrap()
        };
        let before = pids.map(ran_ns);
        let both_ran = wait_until(|| pids.iter().zip(before).all(|(&pid, at)| ran_ns(pid) > at));
        all[1].kill().unwrap();
        all[1].wait().unwrap();
        let before = ran_ns(pids[0]);
        let goes_on = wait_until(|| ran_ns(pids[0]) > before);
        drop(turns);
        all[0].kill().unwrap();
        all[0].wait().unwrap();
        assert!(both_ran, "each has turns");
        assert!(goes_on, "one that is gone has none");
    }

    #[test]
    fn what_the_plain_one_does_is_in_the_next_line_of_the_other() {
        let mut beside = Beside::of(Lines::of(std::path::Path::new("/nonexistent")));
        let second = |work: f64, work_s: f64| json!({"t_s": 1.0, "work": work, "work_s": work_s});
        beside.take_in(json!({"event": "ready"})).unwrap();
        beside.take_in(second(10.0, 0.3)).unwrap();
        beside.take_in(second(20.0, 0.25)).unwrap();
        let (mut first, mut next) = (Second::default(), Second::default());
        beside.put_beside(&mut first);
        beside.put_beside(&mut next);
        assert_eq!((first.beside_work, first.beside_s), (30.0, 0.55));
        assert_eq!((next.beside_work, next.beside_s), (0.0, 0.0));
        assert!(beside.take_in(json!({"event": "done", "wrong": 1})).is_err());
        beside.take_in(json!({"event": "done", "wrong": 0, "ops": 40, "seconds": 0.8})).unwrap();
        assert_eq!(beside.result().unwrap().ops, 40.0);
    }
}
