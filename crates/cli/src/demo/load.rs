//! The load generator: fills a server, drives it with closed-loop connections and compares every
//! reply with what was written.
//!
//! Every connection has one request in flight and its own keys (key modulo connections), so the
//! version that a GET must return is known exactly and needs no lock. One thread serves all
//! connections: with two CPUs the generator must leave Redis one for itself. Latency runs from
//! sending a request to having its whole reply; a closed loop does not queue behind a slow server,
//! so it understates what an open system would see. It asks for replies without sleeping: where a
//! sleeping CPU takes its time to wake, as on most virtual machines, it would measure that instead.

use super::content::Content;
use super::inbox::Inbox;
use super::latency::Histogram;
use super::random::{mix, GaussianKeys};
use super::redis::Server;
use super::sys;
use anyhow::{bail, ensure, Context, Result};
use std::io::{ErrorKind, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicU8, Ordering};
use std::time::{Duration, Instant};

/// No reply for this long means that the server hangs.
pub const STALL_LIMIT: Duration = Duration::from_secs(30);
/// After being told to stop, the replies under way must arrive within this time.
const STOP_LIMIT: Duration = Duration::from_secs(10);
/// Requests in flight while filling and reading back, which are not measured.
const BATCH_SET: u64 = 32;
const BATCH_GET: u64 = 16;
/// Wrong values described one by one; all are counted.
const WRONG_SHOWN: usize = 8;
/// A reply and its framing.
const REPLY_BYTES_MAX: usize = 8 << 10;

/// What to ask for.
#[derive(Clone, Copy, Debug)]
pub struct Mix {
    /// Number of keys.
    pub keys: u64,
    /// Connections.
    pub clients: usize,
    /// Standard deviation of key popularity as a share of the key range.
    pub sigma: f64,
    /// Share of operations that write a new version.
    pub set_share: f64,
}

/// A reply that is not what was written.
#[derive(Clone, Debug)]
pub struct WrongValue {
    /// What happened, for people.
    pub text: String,
}

/// Wrong values so far: all counted, the first few described.
#[derive(Clone, Debug, Default)]
pub struct WrongValues {
    /// How many.
    pub count: u64,
    /// The first of them.
    pub shown: Vec<WrongValue>,
}

impl WrongValues {
    fn note(&mut self, text: String) {
        self.count += 1;
        if self.shown.len() < WRONG_SHOWN {
            self.shown.push(WrongValue { text });
        }
    }

    /// Adds what another phase found.
    pub fn merge(&mut self, other: WrongValues) {
        self.count += other.count;
        let room = WRONG_SHOWN.saturating_sub(self.shown.len());
        self.shown.extend(other.shown.into_iter().take(room));
    }
}

/// What the generator is to do now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Phase {
    /// Drive, do not count.
    WarmUp = 0,
    /// Drive and count.
    Measure = 1,
    /// Come to an end.
    Stop = 2,
    /// Finish what is under way and wait for another phase; the time does not count.
    Hold = 3,
}

/// Shared between the generator's thread and the one that watches it.
#[derive(Default)]
pub struct Control {
    phase: AtomicU8,
    ops: AtomicU64,
    wrong: AtomicU64,
    held: AtomicBool,
}

impl Control {
    /// Tells the generator what to do from now on.
    pub fn set(&self, phase: Phase) {
        self.phase.store(phase as u8, Ordering::Release);
    }

    /// Operations completed so far, warm-up included.
    pub fn ops(&self) -> u64 {
        self.ops.load(Ordering::Relaxed)
    }

    /// Wrong values seen so far.
    pub fn wrong(&self) -> u64 {
        self.wrong.load(Ordering::Relaxed)
    }

    /// Whether the generator has come to rest in [`Phase::Hold`].
    pub fn is_held(&self) -> bool {
        self.held.load(Ordering::Acquire)
    }

    fn phase(&self) -> u8 {
        self.phase.load(Ordering::Acquire)
    }
}

/// What the measured phases (there may be several) came to.
#[derive(Default)]
pub struct Measured {
    /// Latency of every operation.
    pub latency: Histogram,
    /// Wall time of the measured phases.
    pub wall: Duration,
    /// CPU time that the generator itself used in them.
    pub client_cpu: Duration,
    /// Replies that were not what was written.
    pub wrong: WrongValues,
}

impl Measured {
    /// Adds another measurement of the same thing.
    pub fn add(&mut self, other: Measured) {
        self.latency.merge(&other.latency);
        self.wall += other.wall;
        self.client_cpu += other.client_cpu;
        self.wrong.merge(other.wrong);
    }

    /// Operations per second.
    pub fn throughput(&self) -> f64 {
        self.latency.count() as f64 / self.wall.as_secs_f64().max(1e-9)
    }
}

/// Writes version 0 of every key. `shuffle` visits the keys in a scattered order, so that
/// popularity says nothing about the address; otherwise in key order, as memtier loads.
pub fn fill(
    server: &Server,
    content: &Content,
    keys: u64,
    shuffle: bool,
    mut progress: impl FnMut(u64),
) -> Result<()> {
    let mut pipe = Pipe::open(server)?;
    let order = |i: u64| if shuffle { scattered(i, keys) } else { i };
    for from in (0..keys).step_by(BATCH_SET as usize) {
        let to = (from + BATCH_SET).min(keys);
        pipe.out.clear();
        (from..to).for_each(|i| encode_set(&mut pipe.out, content, order(i), 0));
        pipe.send()?;
        for _ in from..to {
            pipe.next_reply(|reply| match reply {
                Reply::Ok => Ok(()),
                Reply::Error(text) => bail!("redis refused a SET: {text}"),
                _ => bail!("redis gave an odd answer to SET"),
            })?;
        }
        progress(to);
    }
    Ok(())
}

/// A bijection of `0..keys` without a table: walk the smallest enclosing power of two by a mixing
/// bijection until it falls inside the range.
fn scattered(i: u64, keys: u64) -> u64 {
    let bits = 64 - keys.saturating_sub(1).leading_zeros().min(63);
    let mask = (1_u64 << bits) - 1;
    let mut at = i;
    loop {
        for round in 0..3 {
            at = at.wrapping_mul(2 * (mix(round) >> 8) + 1) & mask;
            at ^= at >> (bits / 2).max(1);
        }
        if at < keys {
            return at;
        }
    }
}

/// Reads every key and compares all bytes.
pub fn read_back(
    server: &Server,
    content: &Content,
    versions: &[u16],
    mut progress: impl FnMut(u64),
) -> Result<WrongValues> {
    let mut pipe = Pipe::open(server)?;
    let mut wrong = WrongValues::default();
    let keys = versions.len() as u64;
    for from in (0..keys).step_by(BATCH_GET as usize) {
        let to = (from + BATCH_GET).min(keys);
        pipe.out.clear();
        (from..to).for_each(|key| encode_get(&mut pipe.out, key));
        pipe.send()?;
        for key in from..to {
            let version = versions[key as usize];
            pipe.next_reply(|reply| check(reply, content, key, version, "read-back", &mut wrong))?;
        }
        progress(to);
    }
    Ok(wrong)
}

/// Drives the server until told to stop. `versions[key]` is the version last written.
pub fn drive(
    server_streams: Vec<UnixStream>,
    content: &Content,
    versions: &mut [u16],
    mix: Mix,
    seed: u64,
    control: &Control,
) -> Result<Measured> {
    sys::leave_the_first_cpu();
    let clients = server_streams.len() as u64;
    ensure!(clients > 0 && mix.keys >= clients, "need at least one key per connection");
    let mut readable = sys::Readable::new(server_streams.iter().map(AsRawFd::as_raw_fd))?;
    let mut lanes = Vec::new();
    for stream in server_streams {
        stream.set_nonblocking(true)?;
        lanes.push(Lane::new(stream));
    }
    let mut draw = GaussianKeys::new(seed, mix.keys, mix.sigma);
    let mut measured = Measured::default();
    // Wall and CPU clock at the start of the phase being measured.
    let mut since: Option<(Instant, u64)> = None;

    let mut now = Instant::now();
    for (i, lane) in lanes.iter_mut().enumerate() {
        lane.issue(&mut draw, mix, i as u64, clients, content, versions, now)?;
    }
    let mut outstanding = lanes.len();
    loop {
        let phase = control.phase();
        match (&since, phase == Phase::Measure as u8) {
            (None, true) => since = Some((Instant::now(), sys::thread_cpu_ns())),
            (Some((wall, cpu)), false) => {
                measured.wall += wall.elapsed();
                measured.client_cpu += Duration::from_nanos(sys::thread_cpu_ns() - cpu);
                since = None;
            }
            _ => {}
        }
        if outstanding == 0 {
            if phase == Phase::Stop as u8 {
                return Ok(measured);
            }
            control.held.store(phase == Phase::Hold as u8, Ordering::Release);
            if phase == Phase::Hold as u8 {
                std::thread::sleep(Duration::from_millis(1));
                continue;
            }
            now = Instant::now();
            for (i, lane) in lanes.iter_mut().enumerate() {
                lane.issue(&mut draw, mix, i as u64, clients, content, versions, now)?;
            }
            outstanding = lanes.len();
        }
        // Polling without sleeping: where a sleeping CPU takes its time to wake, as on most virtual
        // machines, a closed loop otherwise measures that.
        let mut idle = true;
        for i in readable.now()? {
            idle = false;
            let lane = &mut lanes[i];
            if !lane.receive(content, &mut measured.wrong)? {
                continue;
            }
            now = Instant::now();
            control.ops.store(control.ops.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
            control.wrong.store(measured.wrong.count, Ordering::Relaxed);
            if since.as_ref().is_some_and(|(start, _)| lane.sent_at >= *start) {
                measured.latency.record((now - lane.sent_at).as_nanos() as u64);
            }
            if phase == Phase::Stop as u8 || phase == Phase::Hold as u8 {
                outstanding -= 1;
            } else {
                lane.issue(&mut draw, mix, i as u64, clients, content, versions, now)?;
            }
        }
        // A hanging server would keep us here; whoever said stop knows about it.
        let waited = idle && phase == Phase::Stop as u8 && now.elapsed() > STOP_LIMIT;
        ensure!(!waited, "the server does not answer any more");
    }
}

/// One connection of the closed loop.
struct Lane {
    stream: UnixStream,
    out: Vec<u8>,
    buffer: Vec<u8>,
    filled: usize,
    key: u64,
    version: u16,
    set: bool,
    sent_at: Instant,
}

impl Lane {
    fn new(stream: UnixStream) -> Lane {
        Lane {
            stream,
            out: Vec::with_capacity(REPLY_BYTES_MAX),
            buffer: vec![0; REPLY_BYTES_MAX],
            filled: 0,
            key: 0,
            version: 0,
            set: false,
            sent_at: Instant::now(),
        }
    }

    #[allow(clippy::too_many_arguments)] // the state of the loop, not of the lane
    fn issue(
        &mut self,
        draw: &mut GaussianKeys,
        mix: Mix,
        lane: u64,
        clients: u64,
        content: &Content,
        versions: &mut [u16],
        now: Instant,
    ) -> Result<()> {
        let drawn = draw.next_key();
        // The nearest key at or around the drawn one that belongs to this connection.
        let own = drawn - drawn % clients + lane;
        self.key = if own < mix.keys { own } else { own - clients };
        let version = &mut versions[self.key as usize];
        self.set = draw.chance(mix.set_share);
        self.out.clear();
        if self.set {
            *version = version.wrapping_add(1);
            encode_set(&mut self.out, content, self.key, *version);
        } else {
            encode_get(&mut self.out, self.key);
        }
        self.version = *version;
        self.filled = 0;
        self.sent_at = now;
        write_all(&mut self.stream, &self.out)
    }

    /// Takes what has arrived; true once the reply is complete and checked.
    fn receive(&mut self, content: &Content, wrong: &mut WrongValues) -> Result<bool> {
        match self.stream.read(&mut self.buffer[self.filled..]) {
            Ok(0) => bail!("the server closed a connection"),
            Ok(n) => self.filled += n,
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(e) => return Err(e).context("reading a reply"),
        }
        let Some((reply, used)) = parse(&self.buffer[..self.filled])? else {
            ensure!(self.filled < self.buffer.len(), "a reply is longer than any value written");
            return Ok(false);
        };
        ensure!(used == self.filled, "more bytes than one reply");
        match reply {
            Reply::Ok if self.set => {}
            Reply::Error(text) => bail!("redis answered with an error: {text}"),
            _ if self.set => bail!("redis gave an odd answer to SET"),
            reply => check(reply, content, self.key, self.version, "GET", wrong)?,
        }
        Ok(true)
    }
}

fn write_all(stream: &mut UnixStream, mut bytes: &[u8]) -> Result<()> {
    while !bytes.is_empty() {
        match stream.write(bytes) {
            Ok(n) => bytes = &bytes[n..],
            // One request always fits an empty socket buffer, so this is as rare as it is slow.
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {
                std::thread::yield_now();
            }
            Err(e) => return Err(e).context("sending a request"),
        }
    }
    Ok(())
}

/// A blocking connection for many requests at once.
struct Pipe {
    stream: UnixStream,
    out: Vec<u8>,
    inbox: Inbox,
}

impl Pipe {
    fn open(server: &Server) -> Result<Pipe> {
        let stream = server.connect()?;
        stream.set_read_timeout(Some(Duration::from_millis(200)))?;
        stream.set_write_timeout(Some(STALL_LIMIT))?;
        let inbox = Inbox::with_room(BATCH_GET as usize * REPLY_BYTES_MAX);
        Ok(Pipe { stream, out: Vec::new(), inbox })
    }

    fn send(&mut self) -> Result<()> {
        sys::stop_if_interrupted()?;
        self.stream.write_all(&self.out).context("sending requests")
    }

    fn next_reply(&mut self, mut then: impl FnMut(Reply<'_>) -> Result<()>) -> Result<()> {
        let asked = Instant::now();
        loop {
            if let Some((reply, used)) = parse(self.inbox.bytes())? {
                then(reply)?;
                self.inbox.take(used);
                return Ok(());
            }
            self.inbox.receive(&mut self.stream, asked, STALL_LIMIT)?;
        }
    }
}

enum Reply<'a> {
    Ok,
    Bulk(&'a [u8]),
    Nil,
    Error(String),
}

/// One reply from the front of `bytes` and how long it is; `None` while it is incomplete.
fn parse(bytes: &[u8]) -> Result<Option<(Reply<'_>, usize)>> {
    // Numbers and texts of the protocol are short; values do not come before the first line ends.
    let Some(line_end) = bytes.iter().take(512).position(|b| *b == b'\n') else {
        ensure!(bytes.len() < 512, "not a reply of the Redis protocol");
        return Ok(None);
    };
    let line = std::str::from_utf8(&bytes[1..line_end.max(1)]).unwrap_or("").trim_end();
    let after = line_end + 1;
    match bytes[0] {
        b'+' => Ok(Some((Reply::Ok, after))),
        b'-' => Ok(Some((Reply::Error(line.to_owned()), after))),
        b'$' if line == "-1" => Ok(Some((Reply::Nil, after))),
        b'$' => {
            let length: usize = line.parse().context("the length of a reply")?;
            let end = after + length;
            Ok((bytes.len() >= end + 2).then(|| (Reply::Bulk(&bytes[after..end]), end + 2)))
        }
        other => bail!("not a reply of the Redis protocol (starts with byte {other:#04x})"),
    }
}

fn check(
    reply: Reply<'_>,
    content: &Content,
    key: u64,
    version: u16,
    during: &str,
    wrong: &mut WrongValues,
) -> Result<()> {
    let want = content.value(key, version);
    match reply {
        Reply::Bulk(got) if want.equals(got) => {}
        Reply::Bulk(got) => {
            let (offset, want_byte, got_byte) = want.first_difference(got);
            let show = |b: Option<u8>| b.map_or("the end".to_owned(), |b| format!("{b:#04x}"));
            wrong.note(format!(
                "wrong value ({during}): key {key:010} version {version}: at offset {offset} of {} \
                 expected {}, got {} (reply has {} bytes)",
                want.byte_len(),
                show(want_byte),
                show(got_byte),
                got.len()
            ));
        }
        Reply::Nil => wrong.note(format!("wrong value ({during}): key {key:010} is gone")),
        Reply::Error(text) => bail!("redis answered with an error: {text}"),
        Reply::Ok => bail!("redis gave an odd answer to GET"),
    }
    Ok(())
}

fn encode_get(out: &mut Vec<u8>, key: u64) {
    let _ = write!(out, "*2\r\n$3\r\nGET\r\n$14\r\nkey:{key:010}\r\n");
}

fn encode_set(out: &mut Vec<u8>, content: &Content, key: u64, version: u16) {
    let value = content.value(key, version);
    let _ = write!(out, "*3\r\n$3\r\nSET\r\n$14\r\nkey:{key:010}\r\n${}\r\n", value.byte_len());
    value.append_to(out);
    out.extend_from_slice(b"\r\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_are_parsed_once_complete() {
        let whole = b"$5\r\nhello\r\n+OK\r\n";
        for cut in 0..11 {
            assert!(parse(&whole[..cut]).expect("valid").is_none(), "cut {cut}");
        }
        let (reply, used) = parse(whole).expect("valid").expect("complete");
        assert!(matches!(reply, Reply::Bulk(b"hello")) && used == 11);
        assert!(matches!(parse(&whole[11..]), Ok(Some((Reply::Ok, 5)))));
        assert!(matches!(parse(b"$-1\r\n"), Ok(Some((Reply::Nil, 5)))));
        assert!(matches!(parse(b"-ERR no\r\n"), Ok(Some((Reply::Error(e), 9))) if e == "ERR no"));
        assert!(parse(b"?what\r\n").is_err());
        assert!(parse(b"\n").is_err());
    }

    #[test]
    fn the_scattered_order_visits_every_key_once() {
        for keys in [1_u64, 2, 3, 100, 1000, 4096] {
            let mut seen = vec![false; keys as usize];
            (0..keys).for_each(|i| seen[scattered(i, keys) as usize] = true);
            assert!(seen.iter().all(|s| *s), "{keys} keys");
        }
        let stays_close = (0..1000).filter(|i| scattered(*i, 1000).abs_diff(*i) < 50).count();
        assert!(stays_close < 200, "{stays_close}");
    }

    #[test]
    fn a_wrong_value_is_counted_and_described() {
        let content = Content::build(1 << 20);
        let mut wrong = WrongValues::default();
        let mut bytes = Vec::new();
        content.value(5, 1).append_to(&mut bytes);
        check(Reply::Bulk(&bytes), &content, 5, 1, "GET", &mut wrong).expect("checked");
        assert_eq!(wrong.count, 0);
        bytes[100] ^= 0xff;
        check(Reply::Bulk(&bytes), &content, 5, 1, "GET", &mut wrong).expect("checked");
        check(Reply::Nil, &content, 6, 0, "GET", &mut wrong).expect("checked");
        assert_eq!(wrong.count, 2);
        assert!(wrong.shown[0].text.contains("key 0000000005"));
        assert!(wrong.shown[0].text.contains("offset 100"));
        assert!(wrong.shown[1].text.contains("gone"));
    }
}
