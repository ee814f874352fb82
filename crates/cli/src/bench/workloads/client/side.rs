//! One server of the closed loop: its connections, what they ask for, and a turn of asking.

use std::io::{ErrorKind, Read, Write};
use std::os::fd::AsRawFd;
use std::time::Instant;

use anyhow::{bail, ensure, Context, Result};

use super::beside::Tally;
use super::{check, stored, Target, REPLY_BYTES_MAX, STALL_LIMIT};
use crate::bench::workloads::popularity::{Popularity, Spread};
use crate::bench::workloads::protocol::{encode_get, encode_set, parse};
use crate::bench::workloads::record::{Phase, Recorder};
use crate::bench::workloads::server::Stream;
use crate::bench::workloads::WorkArgs;
use crate::demo::sys;

/// A loaded server and connections to it.
pub(super) struct Side<'a> {
    pub(super) target: Target<'a>,
    lanes: Vec<Lane>,
    readable: sys::Readable,
    popularity: Popularity,
    set_share: f64,
    /// When it was first asked.
    begin: Option<Instant>,
}

/// How long a server is asked, and who counts.
pub(super) enum Turn<'t> {
    /// Until the measured part is over; the recorder counts.
    Alone,
    /// Until then, or until the measured part is over; the recorder counts, from `from` on.
    Counted { from: Instant, until: Instant },
    /// Until then; the tally counts, from `from` on.
    Beside { from: Instant, until: Instant, tally: &'t mut Tally },
}

impl Turn<'_> {
    /// A reply came at `now`, after `time`. Whether its connection may ask again.
    fn reply(&mut self, now: Instant, sent_at: Instant, recorder: &mut Recorder) -> Result<bool> {
        let time = now - sent_at;
        match self {
            Turn::Counted { from, .. } if now < *from => Ok(true),
            Turn::Alone | Turn::Counted { .. } => {
                recorder.latency(now, time);
                recorder.op(now, time)?;
                let is_over = recorder.phase(now)? == Phase::Over;
                Ok(!is_over && !matches!(self, Turn::Counted { until, .. } if now >= *until))
            }
            Turn::Beside { from, until, tally } => {
                if now >= *from && recorder.is_measuring() {
                    tally.add(time);
                }
                Ok(now < *until)
            }
        }
    }
}

impl<'a> Side<'a> {
    /// Connects to a server that is loaded.
    pub(super) fn new(target: Target<'a>, args: &WorkArgs) -> Result<Side<'a>> {
        let client = &args.client;
        let count = client.clients as u64;
        ensure!(target.keys() >= count, "need at least one key for a connection");
        let spread = Spread {
            shape: client.popularity,
            sigma: client.sigma,
            theta: client.theta,
            drift_s: client.drift,
            scatter: client.scatter,
        };
        let popularity = Popularity::new(args.seed, target.keys(), spread);
        let lane = |n| {
            let stream = Stream::connect(target.to)?;
            stream.set_nonblocking(true)?;
            Ok(Lane::new(stream, n, count))
        };
        let lanes = (0..count).map(lane).collect::<Result<Vec<Lane>>>()?;
        let readable = sys::Readable::new(lanes.iter().map(|lane| lane.stream.as_raw_fd()))?;
        let set_share = client.ratio;
        Ok(Side { target, lanes, readable, popularity, set_share, begin: None })
    }

    /// Every connection asks, and asks again until the turn is over. All replies are there when
    /// this returns.
    pub(super) fn turn(&mut self, turn: &mut Turn<'_>, recorder: &mut Recorder) -> Result<()> {
        let start = Instant::now();
        let begin = *self.begin.get_or_insert(start);
        let (target, popularity) = (&mut self.target, &mut self.popularity);
        for lane in &mut self.lanes {
            lane.issue(target, popularity, self.set_share, (start - begin).as_secs_f64(), start)?;
        }
        let mut outstanding = self.lanes.len();
        let mut last_reply = start;
        while outstanding > 0 {
            let mut idle = true;
            for n in self.readable.now()? {
                idle = false;
                let lane = &mut self.lanes[n];
                if !lane.receive(target, recorder)? {
                    continue;
                }
                let now = Instant::now();
                last_reply = now;
                if !turn.reply(now, lane.sent_at, recorder)? {
                    outstanding -= 1;
                } else {
                    if recorder.has_turned(now) {
                        popularity.turn();
                    }
                    let t_s = (now - begin).as_secs_f64();
                    lane.issue(target, popularity, self.set_share, t_s, now)?;
                }
            }
            if idle {
                std::thread::yield_now();
                let now = Instant::now();
                if !matches!(turn, Turn::Beside { .. }) {
                    recorder.tick(now)?;
                }
                sys::stop_if_interrupted()?;
                ensure!(now - last_reply < STALL_LIMIT, "no reply for {STALL_LIMIT:?}");
            }
        }
        Ok(())
    }
}

/// One connection of the closed loop.
struct Lane {
    stream: Stream,
    /// Its keys are those that leave `n` when divided by `of`.
    n: u64,
    of: u64,
    out: Vec<u8>,
    buffer: Vec<u8>,
    filled: usize,
    key: u64,
    set: bool,
    sent_at: Instant,
}

impl Lane {
    fn new(stream: Stream, n: u64, of: u64) -> Lane {
        let (out, buffer) = (Vec::with_capacity(REPLY_BYTES_MAX), vec![0; REPLY_BYTES_MAX]);
        Lane { stream, n, of, out, buffer, filled: 0, key: 0, set: false, sent_at: Instant::now() }
    }

    fn issue(
        &mut self,
        target: &mut Target<'_>,
        popularity: &mut Popularity,
        set_share: f64,
        t_s: f64,
        now: Instant,
    ) -> Result<()> {
        let drawn = popularity.next_key(t_s);
        // The nearest key at or around the drawn one that belongs to this connection.
        let own = drawn - drawn % self.of + self.n;
        self.key = if own < target.keys() { own } else { own - self.of };
        self.set = popularity.chance(set_share);
        self.out.clear();
        if self.set {
            let version = &mut target.versions[self.key as usize];
            *version = version.wrapping_add(1);
            encode_set(target.kind, &mut self.out, self.key, &target.value(self.key));
        } else {
            encode_get(target.kind, &mut self.out, self.key);
        }
        self.filled = 0;
        self.sent_at = now;
        self.send()
    }

    fn send(&mut self) -> Result<()> {
        let mut left = &self.out[..];
        while !left.is_empty() {
            match self.stream.write(left) {
                Ok(n) => left = &left[n..],
                // One request always fits an empty socket buffer: this is as rare as it is slow.
                Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {
                    std::thread::yield_now();
                }
                Err(e) => return Err(e).context("sending a request"),
            }
        }
        Ok(())
    }

    /// Takes what has arrived; true once the reply is complete and checked.
    fn receive(&mut self, target: &Target<'_>, recorder: &mut Recorder) -> Result<bool> {
        match self.stream.read(&mut self.buffer[self.filled..]) {
            Ok(0) => bail!("the server closed a connection"),
            Ok(n) => self.filled += n,
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(e) => return Err(e).context("reading a reply"),
        }
        let Some((reply, used)) = parse(target.kind, &self.buffer[..self.filled])? else {
            ensure!(self.filled < self.buffer.len(), "a reply is longer than any value written");
            return Ok(false);
        };
        ensure!(used == self.filled, "more bytes than one reply");
        if self.set {
            stored(&reply)?;
        } else {
            check(reply, &target.value(self.key), self.key, "GET", recorder)?;
        }
        Ok(true)
    }
}
