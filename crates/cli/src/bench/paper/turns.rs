//! Turns for programs that have no client to hand them out: the one that is measured, with
//! everything of ours around it, and a plain one are stopped and continued by a thread here.
//!
//! Both stop themselves when their data is there (`terrace bench work --in-turns`), begin together
//! and end by the same clock, so their measured parts and their changes of phase coincide. What a
//! turn counts for is each program's own business (`bench::workloads::turns`).

use std::fs;
use std::sync::mpsc::{channel, RecvTimeoutError, Sender};
use std::thread::JoinHandle;

use anyhow::{bail, ensure, Result};
use clap::ValueEnum;
use serde_json::Value;

use super::meter::Lines;
use super::record::{Load, Second};
use crate::bench::workloads::turns::{BESIDE_SLICE, OWN_SLICE, SETTLE};
use crate::bench::workloads::Workload;
use crate::demo::sys::signal_process;

/// Whether programs of this workload take turns.
pub(super) fn takes_turns(workload: &str) -> bool {
    Workload::from_str(workload, false).is_ok_and(Workload::takes_turns)
}

/// Hands out turns until it is dropped; both go on then.
pub(super) struct Turns {
    end: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Turns {
    /// The first turn has `own`: the processes that are stopped and continued as one.
    pub(super) fn begin(own: Vec<i32>, beside: i32) -> Turns {
        let (end, ended) = channel::<()>();
        let thread = std::thread::spawn(move || {
            let all =
                |pids: &[i32], signal| pids.iter().for_each(|&pid| signal_process(pid, signal));
            let beside = [beside];
            let both = [(&own[..], &beside[..], OWN_SLICE), (&beside[..], &own[..], BESIDE_SLICE)];
            for (goes_on, stops, slice) in both.into_iter().cycle() {
                all(stops, libc::SIGSTOP);
                all(goes_on, libc::SIGCONT);
                if ended.recv_timeout(SETTLE + slice) != Err(RecvTimeoutError::Timeout) {
                    break;
                }
            }
            all(&own, libc::SIGCONT);
            all(&beside, libc::SIGCONT);
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
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let after_name = stat.rsplit(')').next().unwrap_or_default();
    after_name.split_whitespace().next() == Some("T")
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
    use std::time::{Duration, Instant};

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
        let turns = Turns::begin(vec![pids[0] as i32, pids[1] as i32], pids[2] as i32);
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
