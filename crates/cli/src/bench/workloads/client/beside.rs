//! A second server, plain, that is asked in turns with the first. On a virtual machine the same
//! server is 10 % faster or slower from one second to the next, and a fifth from one minute to the
//! next: only neighbours in time can be compared.

use std::time::{Duration, Instant};

use anyhow::{ensure, Result};
use hdrhistogram::Histogram;
use serde_json::{json, Value};

use super::side::{Side, Turn};
use crate::bench::workloads::record::{histogram, quantile_us, Recorder};
use crate::bench::workloads::turns::{BESIDE_SLICE, OWN_SLICE, SETTLE};
use crate::demo::sys::signal_process;

/// The plain server.
pub(super) struct Beside<'a> {
    side: Side<'a>,
    halt: Vec<i32>,
    tally: Tally,
}

/// What the plain server did while the other was measured.
pub(super) struct Tally {
    latencies: Histogram<u64>,
    time: Duration,
}

/// Processes that do nothing until this is dropped: what the measured one does in its own time
/// must not cost the other one its.
struct Halted<'a>(&'a [i32]);

impl<'a> Halted<'a> {
    fn stop(processes: &'a [i32]) -> Halted<'a> {
        processes.iter().for_each(|&pid| signal_process(pid, libc::SIGSTOP));
        Halted(processes)
    }
}

impl Drop for Halted<'_> {
    fn drop(&mut self) {
        self.0.iter().rev().for_each(|&pid| signal_process(pid, libc::SIGCONT));
    }
}

impl Tally {
    /// A reply that came after `time`.
    pub(super) fn add(&mut self, time: Duration) {
        self.latencies.saturating_record(time.as_nanos() as u64);
    }

    fn json(&self) -> Value {
        let (ops, seconds) = (self.latencies.len(), self.time.as_secs_f64());
        json!({
            "ops": ops,
            "seconds": seconds,
            "ops_per_s": ops as f64 / seconds.max(1e-9),
            "mean_us": self.latencies.mean() / 1e3,
            "p50_us": quantile_us(&self.latencies, 0.5),
            "p99_us": quantile_us(&self.latencies, 0.99),
            "p999_us": quantile_us(&self.latencies, 0.999),
        })
    }
}

impl<'a> Beside<'a> {
    /// A server that is loaded, and whom to stop while it has its turn.
    pub(super) fn new(side: Side<'a>, halt: &[i32]) -> Result<Beside<'a>> {
        ensure!(halt.iter().all(|&pid| pid > 1), "--halt: a process has a number above 1");
        let tally = Tally { latencies: histogram(), time: Duration::ZERO };
        Ok(Beside { side, halt: halt.to_vec(), tally })
    }

    /// Both in turns, until the measured part is over. What the recorder counts is `own`.
    pub(super) fn drive(&mut self, own: &mut Side<'_>, recorder: &mut Recorder) -> Result<()> {
        let mut own_end = Instant::now();
        loop {
            let from = Instant::now() + SETTLE;
            recorder.aside(from - own_end);
            own.turn(&mut Turn::Counted { from, until: from + OWN_SLICE }, recorder)?;
            own_end = Instant::now();
            if recorder.is_over() {
                break;
            }
            let _halted = Halted::stop(&self.halt);
            let from = Instant::now() + SETTLE;
            let (until, tally) = (from + BESIDE_SLICE, &mut self.tally);
            let before = tally.latencies.len();
            self.side.turn(&mut Turn::Beside { from, until, tally }, recorder)?;
            if recorder.is_measuring() {
                let time = from.elapsed();
                self.tally.time += time;
                recorder.beside(self.tally.latencies.len() - before, time);
            }
        }
        recorder.note("beside", self.tally.json());
        Ok(())
    }
}
