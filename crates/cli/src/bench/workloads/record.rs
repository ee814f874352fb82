//! What a workload reports: a line of JSON when it is ready, one a second, one at the end.
//!
//! Latencies are kept in nanoseconds with three significant digits (HdrHistogram). Where an
//! operation takes long, as a search of a whole graph does, the latencies are those of small
//! pieces of it, so that a percentile still says something; `latency_of` says which.

use std::io::Write;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use hdrhistogram::serialization::{Serializer, V2Serializer};
use hdrhistogram::Histogram;
use serde_json::{json, Value};

use super::turns::Turns;
use crate::demo::sys;
use crate::say;

/// Ten minutes: longer is counted as that.
const LATENCY_NS_MAX: u64 = 600_000_000_000;
/// Significant decimal digits of a latency.
const DIGITS: u8 = 3;
/// Time between two lines.
const TICK: Duration = Duration::from_secs(1);
/// Wrong results that are described on standard error; all are counted.
const WRONG_SHOWN: u64 = 8;

/// What the seconds of the result are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Clock {
    /// From the first measured operation to the last, less what is aside: operations overlap.
    Wall,
    /// The sum of the operations' own times: checks between them do not count.
    Busy,
}

/// Where a workload is in its run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Load that does not count.
    Warmup,
    /// Load that counts.
    Measure,
    /// Nothing more to do.
    Over,
}

/// Writes the lines of one run.
pub(super) struct Recorder {
    out: Box<dyn Write>,
    warmup: Duration,
    length: Duration,
    /// Into the measured part: when the load changes, if it does.
    turn_after: Option<Duration>,
    /// When the workload was ready: `t_s` is 0 there.
    ready_at: Instant,
    phase: Phase,
    measuring_since: Instant,
    ended_at: Instant,
    line_at: Instant,
    /// When the last line of a second was written.
    written_at: Instant,
    second: Histogram<u64>,
    second_ops: u64,
    /// Work in this second and the time that it took, where operations do not overlap.
    second_work: f64,
    second_busy: Duration,
    /// Time in this second, and in all of the measured part, that something else had.
    second_aside: Duration,
    aside: Duration,
    /// What a plain server did in this second, and in how much of it.
    second_beside: (u64, Duration),
    all: Histogram<u64>,
    ops: u64,
    busy: Duration,
    /// Sum of the logarithms of the operations' seconds.
    log_sum: f64,
    clock: Clock,
    turns: Option<Turns>,
    wrong: u64,
    more: Vec<(&'static str, Value)>,
}

impl Recorder {
    /// Lines to `out`; load for `warmup_s` that does not count and for `seconds` that does.
    pub(super) fn new(out: Box<dyn Write>, warmup_s: f64, seconds: f64) -> Recorder {
        let now = Instant::now();
        Recorder {
            out,
            warmup: Duration::from_secs_f64(warmup_s),
            length: Duration::from_secs_f64(seconds),
            turn_after: None,
            ready_at: now,
            phase: Phase::Warmup,
            measuring_since: now,
            ended_at: now,
            line_at: now,
            written_at: now,
            second: histogram(),
            second_ops: 0,
            second_work: 0.0,
            second_busy: Duration::ZERO,
            second_aside: Duration::ZERO,
            aside: Duration::ZERO,
            second_beside: (0, Duration::ZERO),
            all: histogram(),
            ops: 0,
            busy: Duration::ZERO,
            log_sum: 0.0,
            clock: Clock::Wall,
            turns: None,
            wrong: 0,
            more: Vec::new(),
        }
    }

    /// The same with a load that changes so long after the measured part began.
    pub(super) fn turning_after(self, seconds: Option<f64>) -> Recorder {
        Recorder { turn_after: seconds.map(Duration::from_secs_f64), ..self }
    }

    /// The same of a process that somebody stops and continues. Of operations that are longer than
    /// a turn their pieces count, the pieces being the operations of the result.
    pub(super) fn in_turns(self, is_so: bool) -> Recorder {
        if !is_so {
            return self;
        }
        let turns = Some(Turns::from(self.ready_at));
        Recorder { turns, ..self }
    }

    /// So much of the time between the last operation and the next is not this load's. The phase
    /// must not change within it.
    pub(super) fn aside(&mut self, time: Duration) {
        self.second_aside += time;
        if self.is_measuring() {
            self.aside += time;
        }
    }

    /// In such time a plain server did so many operations, in so much of it.
    pub(super) fn beside(&mut self, ops: u64, time: Duration) {
        self.second_beside.0 += ops;
        self.second_beside.1 += time;
    }

    /// Whether load counts now.
    pub(super) fn is_measuring(&self) -> bool {
        self.phase == Phase::Measure
    }

    /// Whether nothing more is to do.
    pub(super) fn is_over(&self) -> bool {
        self.phase == Phase::Over
    }

    /// Whether the load is in its second phase; to be asked between operations.
    pub(super) fn has_turned(&self, now: Instant) -> bool {
        let since = || now.saturating_duration_since(self.measuring_since);
        self.phase != Phase::Warmup && self.turn_after.is_some_and(|after| since() >= after)
    }

    /// Instead of everything else: why this machine cannot run the workload.
    pub(super) fn skipped(&mut self, why: &str) -> Result<()> {
        self.line(&json!({"event": "skipped", "reason": why}))
    }

    /// How the load goes on, on standard error: a program that is loading is not hanging.
    pub(super) fn progress(&self, what: &str) {
        say!("[{:7.1} s] {what}", self.ready_at.elapsed().as_secs_f64());
    }

    /// Everything is loaded and checked, in process `pid` if it is one of ours. In turns, the first
    /// one is waited for here.
    pub(super) fn ready(
        &mut self,
        clock: Clock,
        latency_of: &'static str,
        pid: Option<u32>,
        details: Value,
    ) -> Result<()> {
        let load_s = seconds(self.ready_at.elapsed());
        if self.turns.is_some() {
            sys::stop_here();
        }
        self.clock = clock;
        self.note("latency_of", latency_of.into());
        self.line(&json!({"event": "ready", "load_s": load_s, "pid": pid, "of": details}))?;
        // Only now: who waits for the line counts from when it was not there yet, and may rely on
        // the load to last longer by his clock, however late the line was written.
        let now = Instant::now();
        (self.ready_at, self.line_at, self.written_at) = (now, now, now);
        Ok(())
    }

    /// All of its operations were done as often as each other: in turns, it is the other one's.
    pub(super) fn end_round(&mut self) {
        if let Some(turns) = &mut self.turns {
            turns.hand_over();
        }
    }

    /// Something else to say at the end.
    pub(super) fn note(&mut self, name: &'static str, value: Value) {
        self.more.retain(|(known, _)| *known != name);
        self.more.push((name, value));
    }

    /// To be asked between operations: changes of phase happen only there.
    pub(super) fn phase(&mut self, now: Instant) -> Result<Phase> {
        sys::stop_if_interrupted()?;
        if self.phase == Phase::Warmup && now - self.ready_at >= self.warmup {
            (self.phase, self.measuring_since) = (Phase::Measure, now);
        }
        if self.phase == Phase::Measure && now - self.measuring_since >= self.length {
            (self.phase, self.ended_at) = (Phase::Over, now);
        }
        Ok(self.phase)
    }

    /// One whole operation was done at `now` and took `time`. One that began before the measured
    /// part does not count.
    pub(super) fn op(&mut self, now: Instant, time: Duration) -> Result<()> {
        self.second_ops += 1;
        if self.counts(now, time) && !self.is_spoilt(now, time) {
            self.ops += 1;
            self.busy += time;
            self.log_sum += time.as_secs_f64().max(1e-9).ln();
        }
        self.tick(now)
    }

    /// A latency to keep: of an operation or of a piece of one.
    pub(super) fn latency(&mut self, now: Instant, time: Duration) {
        self.latency_of(now, time, 1.0);
    }

    /// The mean latency of so many pieces of work, `time` each, that were done together.
    pub(super) fn latency_of(&mut self, now: Instant, time: Duration, pieces: f64) {
        let whole = time.mul_f64(pieces);
        if self.is_spoilt(now, whole) {
            return;
        }
        let counts = self.counts(now, time);
        if let Some(turns) = self.turns.as_mut().filter(|_| counts) {
            turns.add(pieces, whole);
        }
        self.second_work += pieces;
        self.second_busy += whole;
        let ns = time.as_nanos().min(u128::from(LATENCY_NS_MAX)) as u64;
        self.second.saturating_record(ns);
        if counts {
            self.all.saturating_record(ns);
        }
    }

    /// Whether work that was done at `now` and took `time` is none of a turn's.
    fn is_spoilt(&mut self, now: Instant, time: Duration) -> bool {
        self.turns.as_mut().is_some_and(|turns| turns.spoil(now, time))
    }

    fn counts(&self, now: Instant, time: Duration) -> bool {
        let began_inside = || now.checked_sub(time).is_some_and(|b| b >= self.measuring_since);
        self.phase == Phase::Measure && began_inside()
    }

    /// Writes the line of the second if it is over.
    pub(super) fn tick(&mut self, now: Instant) -> Result<()> {
        if now.saturating_duration_since(self.line_at) < TICK {
            return Ok(());
        }
        let work_s = match self.clock {
            Clock::Wall if self.turns.is_none() => {
                (now - self.written_at).saturating_sub(self.second_aside)
            }
            Clock::Wall | Clock::Busy => self.second_busy,
        };
        let mut line = json!({
            "t_s": seconds(now - self.ready_at),
            "ops": self.second_ops,
            "work": self.second_work,
            "work_s": work_s.as_secs_f64(),
            "p50_us": quantile_us(&self.second, 0.5),
            "p99_us": quantile_us(&self.second, 0.99),
            "p999_us": quantile_us(&self.second, 0.999),
            "pieces": self.second.len(),
            "measuring": self.phase == Phase::Measure,
            "wrong": self.wrong,
        });
        let (ops, time) = core::mem::take(&mut self.second_beside);
        if !time.is_zero() {
            line["beside_work"] = ops.into();
            line["beside_s"] = time.as_secs_f64().into();
        }
        self.second.reset();
        (self.second_ops, self.second_work) = (0, 0.0);
        (self.second_busy, self.written_at) = (Duration::ZERO, now);
        self.second_aside = Duration::ZERO;
        // On the second, so that lines do not wander off; after a stall, from now on.
        self.line_at += TICK;
        if now.saturating_duration_since(self.line_at) > TICK {
            self.line_at = now;
        }
        self.line(&line)
    }

    /// Something is not as it was written or computed.
    pub(super) fn wrong(&mut self, what: impl FnOnce() -> String) {
        self.wrong += 1;
        if self.wrong <= WRONG_SHOWN {
            say!("terrace: wrong: {}", what());
        }
    }

    /// How much was wrong so far.
    #[cfg(test)]
    pub(super) fn wrong_count(&self) -> u64 {
        self.wrong
    }

    /// The last line. Returns how much was wrong.
    pub(super) fn finish(&mut self) -> Result<u64> {
        let (ops, seconds_) = match (&self.turns, self.clock) {
            (Some(turns), _) => turns.done(),
            (None, Clock::Wall) => {
                let whole = self.ended_at - self.measuring_since;
                (self.ops as f64, whole.saturating_sub(self.aside).as_secs_f64())
            }
            (None, Clock::Busy) => (self.ops as f64, self.busy.as_secs_f64()),
        };
        let per_op_us = |sum_s: f64| sum_s / self.ops.max(1) as f64 * 1e6;
        let mut line = json!({
            "event": "done",
            "ops": ops.round() as u64,
            "seconds": seconds_,
            "ops_per_s": ops / seconds_.max(1e-9),
            "mean_us": self.all.mean() / 1e3,
            "p50_us": quantile_us(&self.all, 0.5),
            "p99_us": quantile_us(&self.all, 0.99),
            "p999_us": quantile_us(&self.all, 0.999),
            "max_us": self.all.max() as f64 / 1e3,
            "op_mean_us": per_op_us(self.busy.as_secs_f64()),
            "op_geomean_us": (self.log_sum / self.ops.max(1) as f64).exp() * 1e6,
            "wrong": self.wrong,
            "hist": encoded(&self.all)?,
            "hist_unit": "ns",
        });
        for (name, value) in self.more.drain(..) {
            line[name] = value;
        }
        self.line(&line)?;
        Ok(self.wrong)
    }

    fn line(&mut self, line: &Value) -> Result<()> {
        // In one piece: whoever follows the file sees whole lines.
        let text = format!("{line}\n");
        self.out.write_all(text.as_bytes()).and_then(|()| self.out.flush()).context("--out")
    }
}

/// An empty one for latencies in nanoseconds.
pub(super) fn histogram() -> Histogram<u64> {
    // The bounds are constants that HdrHistogram takes: 1 and at least twice that.
    Histogram::new_with_bounds(1, LATENCY_NS_MAX, DIGITS).expect("valid bounds")
}

/// A quantile of one, in microseconds.
pub(super) fn quantile_us(histogram: &Histogram<u64>, q: f64) -> f64 {
    histogram.value_at_quantile(q) as f64 / 1e3
}

fn seconds(time: Duration) -> f64 {
    (time.as_secs_f64() * 1e3).round() / 1e3
}

/// HdrHistogram V2, not deflated, in base64.
fn encoded(histogram: &Histogram<u64>) -> Result<String> {
    let mut bytes = Vec::new();
    V2Serializer::new().serialize(histogram, &mut bytes).context("encoding the histogram")?;
    Ok(base64(&bytes))
}

/// Base64 with padding (RFC 4648): 010000 10 0001 010000 11 -> "QUJD" from "ABC".
fn base64(bytes: &[u8]) -> String {
    const SIGNS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for three in bytes.chunks(3) {
        let bits = three.iter().fold(0_u32, |bits, b| bits << 8 | u32::from(*b));
        let bits = bits << (8 * (3 - three.len()));
        for place in 0..4 {
            let sign = SIGNS[(bits >> (18 - 6 * place) & 63) as usize];
            text.push(if place > three.len() { '=' } else { char::from(sign) });
        }
    }
    text
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use hdrhistogram::serialization::Deserializer;
    use std::cell::RefCell;
    use std::rc::Rc;

    /// Lines that a test can read.
    #[derive(Clone, Default)]
    pub(in super::super) struct Lines(Rc<RefCell<Vec<u8>>>);

    impl Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.borrow_mut().extend_from_slice(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    impl Lines {
        pub(in super::super) fn parsed(&self) -> Vec<Value> {
            let bytes = self.0.borrow();
            let text = std::str::from_utf8(&bytes).unwrap();
            text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
        }
    }

    /// A recorder for other tests, and what it writes.
    pub(in super::super) fn recorder(seconds: f64) -> (Recorder, Lines) {
        let lines = Lines::default();
        (Recorder::new(Box::new(lines.clone()), 0.0, seconds), lines)
    }

    fn unbase64(text: &str) -> Vec<u8> {
        let value = |c: u8| match c {
            b'A'..=b'Z' => c - b'A',
            b'a'..=b'z' => c - b'a' + 26,
            b'0'..=b'9' => c - b'0' + 52,
            b'+' => 62,
            _ => 63,
        };
        let signs: Vec<u8> = text.bytes().filter(|c| *c != b'=').collect();
        let mut bytes = Vec::new();
        for four in signs.chunks(4) {
            let bits = four.iter().fold(0_u32, |bits, c| bits << 6 | u32::from(value(*c)));
            let bits = bits << (6 * (4 - four.len()));
            bytes.extend((0..four.len() - 1).map(|i| (bits >> (16 - 8 * i)) as u8));
        }
        bytes
    }

    #[test]
    fn in_turns_pieces_are_what_counts() {
        let ms = Duration::from_millis;
        let (recorder, lines) = recorder(10.0);
        let turns = Turns::from(recorder.ready_at);
        let mut r = Recorder { turns: Some(turns), phase: Phase::Measure, ..recorder };
        let now = r.measuring_since + ms(500);
        // Two pieces of 20 ms each, one of 60 ms, and a whole operation from before it all.
        r.latency_of(now, ms(20), 2.0);
        r.latency(now, ms(60));
        r.op(now, ms(800)).unwrap();
        r.tick(now + ms(900)).unwrap();
        r.finish().unwrap();
        let lines = lines.parsed();
        assert_eq!((&lines[0]["work"], &lines[0]["work_s"]), (&json!(3.0), &json!(0.1)));
        assert_eq!((&lines[1]["ops"], &lines[1]["seconds"]), (&json!(3), &json!(0.1)));
        assert_eq!(lines[1]["op_mean_us"], 0.0);
    }

    #[test]
    fn base64_is_that_of_the_rfc() {
        for (plain, want) in
            [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foobar", "Zm9vYmFy")]
        {
            assert_eq!(base64(plain.as_bytes()), want);
        }
    }

    #[test]
    fn a_run_is_ready_seconds_and_done() {
        let (mut r, lines) = recorder(2.0);
        r.warmup = Duration::from_millis(1500);
        r.ready(Clock::Wall, "op", Some(7), json!({"keys": 3})).unwrap();
        let start = r.ready_at;
        let mut phases = Vec::new();
        // An operation of 1 ms every 10 ms, with one of 40 ms.
        for i in 1..=400_u64 {
            let now = start + Duration::from_millis(10 * i);
            let time = Duration::from_millis(if i == 300 { 40 } else { 1 });
            r.latency(now, time);
            r.op(now, time).unwrap();
            phases.push(r.phase(now).unwrap());
            if phases.last() == Some(&Phase::Over) {
                break;
            }
        }
        assert_eq!(phases.iter().filter(|p| **p == Phase::Warmup).count(), 149);
        r.wrong(|| "as a test".to_owned());
        assert_eq!(r.finish().unwrap(), 1);
        let lines = lines.parsed();
        assert_eq!((&lines[0]["event"], &lines[0]["pid"]), (&json!("ready"), &json!(7)));
        let seconds = &lines[1..lines.len() - 1];
        assert_eq!(seconds.len(), 3);
        assert!(seconds.iter().all(|l| l["ops"] == 100), "{seconds:?}");
        assert_eq!(seconds[0]["measuring"], json!(false));
        assert_eq!(seconds[2]["measuring"], json!(true));
        // Requests overlap: their work takes the time on the wall.
        assert!(seconds.iter().all(|l| l["work"] == 100.0 && l["work_s"] == 1.0), "{seconds:?}");
        let done = lines.last().unwrap();
        // The operation that ended as the measured part began is not in it.
        assert_eq!(done["ops"], 200);
        assert_eq!(done["seconds"], 2.0);
        assert_eq!(done["wrong"], 1);
        let p50 = done["p50_us"].as_f64().unwrap();
        assert!((p50 / 1000.0 - 1.0).abs() < 0.002, "{p50}");
        assert!(done["max_us"].as_f64().unwrap() > 39_000.0);
        for name in ["ops_per_s", "mean_us", "p99_us", "p999_us", "op_geomean_us"] {
            assert!(done[name].as_f64().unwrap() > 0.0, "{name}");
        }
        let bytes = unbase64(done["hist"].as_str().unwrap());
        let back: Histogram<u64> = Deserializer::new().deserialize(&mut &bytes[..]).unwrap();
        assert_eq!(back.len(), 200);
        assert!(back.equivalent(back.max(), 40_000_000));
    }

    #[test]
    fn busy_time_leaves_checks_out() {
        let (mut r, lines) = recorder(1.0);
        r.ready(Clock::Busy, "op", None, Value::Null).unwrap();
        let start = r.ready_at;
        r.phase(start).unwrap();
        for i in 1..=4 {
            let now = start + Duration::from_millis(250 * i);
            r.latency_of(now, Duration::from_millis(25), 4.0);
            r.op(now, Duration::from_millis(100)).unwrap();
        }
        assert_eq!(r.phase(start + TICK).unwrap(), Phase::Over);
        r.finish().unwrap();
        let mut lines = lines.parsed();
        let done = lines.pop().unwrap();
        assert!((done["ops_per_s"].as_f64().unwrap() - 10.0).abs() < 1e-6, "{done}");
        let second = lines.pop().unwrap();
        assert_eq!((second["work"].as_f64(), second["work_s"].as_f64()), (Some(16.0), Some(0.4)));
    }

    #[test]
    fn a_load_turns_so_long_after_its_warm_up() {
        let (r, _lines) = recorder(2.0);
        let mut r = r.turning_after(Some(1.0));
        r.warmup = Duration::from_secs(1);
        r.ready(Clock::Wall, "op", None, Value::Null).unwrap();
        let at = |r: &Recorder, ms| r.ready_at + Duration::from_millis(ms);
        r.phase(at(&r, 500)).unwrap();
        assert!(!r.has_turned(at(&r, 500)));
        r.phase(at(&r, 1100)).unwrap();
        let turned = [1100, 2000, 2100, 9000].map(|ms| r.has_turned(at(&r, ms)));
        assert_eq!(turned, [false, false, true, true]);
        let (mut r, _lines) = recorder(2.0);
        r.phase(at(&r, 1)).unwrap();
        assert!(!r.has_turned(at(&r, 9000)), "nobody asked for it");
    }
}
