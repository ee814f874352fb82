//! The closed-loop client of redis and memcached: fills the server, reads everything back, then
//! asks by popularity and compares every reply with what was written.
//!
//! Every connection has one request in flight and its own keys (key modulo connections), so the
//! version that a GET must return is known exactly. One thread serves all connections and asks for
//! replies without sleeping, for the reasons in [`crate::demo::load`]; between two looks that find
//! nothing it gives way, so that Terrace's threads find a CPU.

mod beside;
mod side;

use std::io::Write;
use std::time::{Duration, Instant};

use anyhow::{bail, ensure, Context, Result};
use serde_json::json;

use super::popularity::Shape;
use super::protocol::{encode_get, encode_set, parse, Reply};
use super::record::{Clock, Recorder};
use super::server::{Kind, Stream};
use super::WorkArgs;
use crate::demo::content::{Content, Value};
use crate::demo::inbox::Inbox;
use crate::demo::random::mix;
use crate::demo::sys;
use beside::Beside;
use side::{Side, Turn};

/// No reply for this long means that the server hangs.
const STALL_LIMIT: Duration = Duration::from_secs(60);
/// How often a wait for that is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// Requests in flight while filling and reading back, which are not measured.
const BATCH_SET: u64 = 32;
const BATCH_GET: u64 = 16;
/// A reply and its framing.
const REPLY_BYTES_MAX: usize = 8 << 10;
/// The corpus that values are cut from.
const CORPUS_BYTES_MIN: usize = 8 << 20;
const CORPUS_BYTES_MAX: usize = 64 << 20;
/// Bytes of corpus for each key (an eighth of a value).
const CORPUS_BYTES_PER_KEY: usize = 500;

/// What only clients of servers use.
#[derive(clap::Args, Clone, Debug)]
pub struct ClientArgs {
    /// redis, memcached: which keys are asked for often
    #[arg(long, value_enum, default_value_t = Shape::Gaussian)]
    pub popularity: Shape,
    /// Gaussian: standard deviation as a share of all keys
    #[arg(long, default_value_t = 1.0 / 6.0)]
    pub sigma: f64,
    /// Zipf: the exponent
    #[arg(long, default_value_t = 0.99)]
    pub theta: f64,
    /// Seconds in which the popular range moves once round all keys; 0: it stays where it is
    #[arg(long, default_value_t = 0.0)]
    pub drift: f64,
    /// Popular keys lie scattered among the others instead of together
    #[arg(long)]
    pub scatter: bool,
    /// Connections, each with one request in flight
    #[arg(long, default_value_t = 4)]
    pub clients: usize,
    /// SETs to GETs, as memtier_benchmark has it
    #[arg(long, default_value = "1:10", value_parser = parse_ratio)]
    pub ratio: f64,
    /// At the end, after what is measured, read everything back once more
    #[arg(long)]
    pub read_back: bool,
    /// A second server of the same kind to compare with: they take turns within half a second
    #[arg(long, value_name = "SOCKET")]
    pub beside: Option<String>,
    /// With --beside: processes to stop while that server has its turn, by comma
    #[arg(long, value_name = "PIDS", value_delimiter = ',', requires = "beside")]
    pub halt: Vec<i32>,
}

/// The share of SETs in `SET:GET`.
fn parse_ratio(text: &str) -> Result<f64, String> {
    let parts = text.split_once(':').and_then(|(set, get)| {
        Some((set.parse::<u32>().ok()?, get.parse::<u32>().ok()?)).filter(|(s, g)| s + g > 0)
    });
    let (set, get) = parts.ok_or("must be SETs:GETs, such as 1:10")?;
    Ok(f64::from(set) / f64::from(set + get))
}

/// What a client drives, and what was last written to it.
struct Target<'a> {
    kind: Kind,
    to: &'a str,
    content: &'a Content,
    versions: Vec<u16>,
}

/// Fills, checks, drives.
pub(super) fn run(kind: Kind, args: &WorkArgs, recorder: &mut Recorder) -> Result<()> {
    let keys = kind.keys(args.size);
    let client = &args.client;
    ensure!((1..=1024).contains(&client.clients), "--clients must be between 1 and 1024");
    ensure!(client.sigma > 0.0 && client.sigma <= 10.0, "--sigma must be above 0, at most 10");
    ensure!(client.theta > 0.0 && client.theta <= 5.0, "--theta must be above 0, at most 5");
    ensure!(client.drift >= 0.0, "--drift must not be negative");
    let to = args.connect.as_deref().context("--connect is missing: where is the server?")?;
    recorder.progress("collecting realistic values from the files of this machine");
    let corpus_bytes = keys as usize * CORPUS_BYTES_PER_KEY;
    let content = Content::build(corpus_bytes.clamp(CORPUS_BYTES_MIN, CORPUS_BYTES_MAX));
    let loaded = |to, recorder: &mut Recorder| {
        let target = Target { kind, to, content: &content, versions: vec![0; keys as usize] };
        target.fill(recorder)?;
        target.read_back("after loading", recorder)?;
        Side::new(target, args)
    };
    let mut side = loaded(to, recorder)?;
    let mut other = match client.beside.as_deref() {
        Some(to) => Some(Beside::new(loaded(to, recorder)?, &client.halt)?),
        None => None,
    };
    if args.corrupt {
        side.target.corrupt(mix(args.seed) % keys)?;
    }
    recorder.ready(Clock::Wall, "request", None, json!({"keys": keys}))?;
    sys::leave_the_first_cpu();
    match &mut other {
        Some(other) => other.drive(&mut side, recorder)?,
        None => side.turn(&mut Turn::Alone, recorder)?,
    }
    if client.read_back || args.corrupt {
        side.target.read_back("at the end", recorder)?;
    }
    Ok(())
}

impl Target<'_> {
    fn value(&self, key: u64) -> Value<'_> {
        self.content.value(key, self.versions[key as usize])
    }

    fn keys(&self) -> u64 {
        self.versions.len() as u64
    }

    /// Writes version 0 of every key, in the order of keys, as memtier_benchmark loads.
    fn fill(&self, recorder: &Recorder) -> Result<()> {
        let mut pipe = Pipe::open(self.kind, self.to)?;
        for from in (0..self.keys()).step_by(BATCH_SET as usize) {
            let to = (from + BATCH_SET).min(self.keys());
            pipe.out.clear();
            (from..to).for_each(|k| encode_set(self.kind, &mut pipe.out, k, &self.value(k)));
            pipe.send()?;
            for _ in from..to {
                pipe.next_reply(|reply| stored(&reply))?;
            }
            show(recorder, "loaded", from, to, self.keys());
        }
        Ok(())
    }

    /// Reads every key and compares all bytes.
    fn read_back(&self, when: &str, recorder: &mut Recorder) -> Result<()> {
        let mut pipe = Pipe::open(self.kind, self.to)?;
        for from in (0..self.keys()).step_by(BATCH_GET as usize) {
            let to = (from + BATCH_GET).min(self.keys());
            pipe.out.clear();
            (from..to).for_each(|k| encode_get(self.kind, &mut pipe.out, k));
            pipe.send()?;
            for key in from..to {
                let want = self.value(key);
                pipe.next_reply(|reply| check(reply, &want, key, when, recorder))?;
            }
            show(recorder, "compared", from, to, self.keys());
        }
        Ok(())
    }

    /// Stores a value with one bit flipped, as a test of the checks.
    fn corrupt(&self, key: u64) -> Result<()> {
        let mut pipe = Pipe::open(self.kind, self.to)?;
        encode_set(self.kind, &mut pipe.out, key, &self.value(key));
        let middle = pipe.out.len() / 2;
        pipe.out[middle] ^= 1;
        pipe.send()?;
        pipe.next_reply(|reply| stored(&reply))
    }
}

/// Says how far a loop over all keys is, at every tenth.
fn show(recorder: &Recorder, what: &str, from: u64, to: u64, keys: u64) {
    let tenth = |n: u64| n * 10 / keys;
    if tenth(to) > tenth(from) {
        recorder.progress(&format!("{what} {to} of {keys} keys"));
    }
}

fn stored(reply: &Reply<'_>) -> Result<()> {
    match reply {
        Reply::Stored => Ok(()),
        Reply::Refused(why) => bail!("the server refused to store: {why}"),
        _ => bail!("the server gave an odd answer to a store"),
    }
}

/// Compares a reply, every byte of it.
fn check(
    reply: Reply<'_>,
    want: &Value<'_>,
    key: u64,
    when: &str,
    recorder: &mut Recorder,
) -> Result<()> {
    match reply {
        Reply::Value(got) if want.equals(got) => {}
        Reply::Value(got) => recorder.wrong(|| {
            let (at, wrote, read) = want.first_difference(got);
            let (length, end) = (want.byte_len(), got.len());
            format!("{when}: key {key} at byte {at} of {length}: {wrote:?}, got {read:?} of {end}")
        }),
        Reply::Missing => recorder.wrong(|| format!("{when}: key {key} is gone")),
        Reply::Refused(why) => bail!("the server refused to fetch: {why}"),
        Reply::Stored => bail!("the server gave an odd answer to a fetch"),
    }
    Ok(())
}

/// A blocking connection for many requests at once.
struct Pipe {
    kind: Kind,
    stream: Stream,
    out: Vec<u8>,
    inbox: Inbox,
}

impl Pipe {
    fn open(kind: Kind, to: &str) -> Result<Pipe> {
        let stream = Stream::connect(to)?;
        stream.set_read_timeout(LOOK_EVERY)?;
        let inbox = Inbox::with_room(BATCH_GET as usize * REPLY_BYTES_MAX);
        Ok(Pipe { kind, stream, out: Vec::new(), inbox })
    }

    fn send(&mut self) -> Result<()> {
        sys::stop_if_interrupted()?;
        self.stream.write_all(&self.out).context("sending requests")
    }

    fn next_reply(&mut self, then: impl FnOnce(Reply<'_>) -> Result<()>) -> Result<()> {
        let asked = Instant::now();
        loop {
            if let Some((reply, used)) = parse(self.kind, self.inbox.bytes())? {
                then(reply)?;
                self.inbox.take(used);
                return Ok(());
            }
            self.inbox.receive(&mut self.stream, asked, STALL_LIMIT)?;
        }
    }
}

#[cfg(test)]
mod tests;
