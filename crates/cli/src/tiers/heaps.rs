//! Heaps to characterise with when no data is named: programs that everybody knows are started,
//! given something to hold, and read ([`super::heap`]).
//!
//! Python holds sources of its own standard library: as text, split into words, counted, and
//! parsed into syntax trees. Redis holds values of a page each as the demo does, and small hashes.
//! Where neither is installed, this process's own memory must do.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use anyhow::{bail, ensure, Context, Result};
use terrace_store::Page;

use super::data::{of_heap, Data, Source};
use super::heap::Heap;
use crate::demo::content::Content;
use crate::demo::progress::Progress;
use crate::demo::random::Random;
use crate::demo::redis::{find_redis, Server, TempDir};

/// What Python does. It says its own pid, since `python3` may be a script that starts it.
const PYTHON: &str = r#"
import ast, collections, glob, json, os, sys
folder = os.path.dirname(os.__file__)
kept, left = [], 3 << 20
for path in sorted(glob.glob(os.path.join(folder, "*.py"))):
    with open(path, encoding="utf-8", errors="replace") as file:
        text = file.read()
    words = text.split()
    kept.append((path, text, words, collections.Counter(words), ast.parse(text)))
    left -= len(text)
    if left < 0:
        break
print(os.getpid(), flush=True)
sys.stdin.read()
"#;
/// How long Python may take to get there, on a machine that does other things, too.
const PYTHON_PATIENCE: Duration = Duration::from_secs(60);

/// Values of about a page.
const VALUES: u64 = 8_000;
/// Hashes of four short fields.
const HASHES: u64 = 40_000;
/// Commands sent before their answers are read.
const BATCH: usize = 200;
/// Bytes that the values are slices of.
const CONTENT_BYTES: usize = 16 << 20;

/// At most `wanted` pages of heaps that are made for it.
pub fn make(wanted: usize, progress: &mut Progress) -> Result<Data> {
    let mut parts: Vec<(Vec<Page>, Source)> = Vec::new();
    type Maker = fn(usize) -> Result<(Vec<Page>, Source)>;
    let makers: [(&str, Maker); 2] = [("python3", of_python), ("redis-server", of_redis)];
    for (n, (name, maker)) in makers.into_iter().enumerate() {
        progress.update(|| format!("reading the heap of a {name} of our own"));
        // The last takes what the others could not give.
        let left = wanted - parts.iter().map(|(pages, _)| pages.len()).sum::<usize>();
        match maker(left / (makers.len() - n)) {
            Ok(part) => parts.push(part),
            Err(e) => {
                crate::demo::sys::stop_if_interrupted()?;
                progress.line(&format!("terrace: no heap of {name}: {e:#}"));
            }
        }
    }
    if parts.is_empty() {
        let heap = Heap::of(std::process::id())?;
        parts.push(of_heap(&heap, "the heap of this process".into(), wanted)?);
    }
    Data::new(parts)
}

fn of_python(wanted: usize) -> Result<(Vec<Page>, Source)> {
    let mut child = Command::new("python3")
        .args(["-I", "-c", PYTHON])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .context("python3 cannot be started")?;
    let outcome = (|| {
        let stdout = child.stdout.take().context("no pipe")?;
        let (sender, line) = mpsc::channel();
        std::thread::spawn(move || {
            let mut line = String::new();
            let _ = BufReader::new(stdout).read_line(&mut line);
            let _ = sender.send(line);
        });
        let pid = line.recv_timeout(PYTHON_PATIENCE).context("it does not answer")?;
        let pid: u32 = pid.trim().parse().context("it failed")?;
        of_heap(&Heap::of(pid)?, "a Python that parsed its library".into(), wanted)
    })();
    // It ends when it can read no more. If it was still starting, it is not waited for.
    drop(child.stdin.take());
    if outcome.is_err() {
        let _ = child.kill();
    }
    let _ = child.wait();
    outcome
}

fn of_redis(wanted: usize) -> Result<(Vec<Page>, Source)> {
    find_redis()?;
    let folder = TempDir::new("heap")?;
    let server = Server::start(folder.path(), "heap", &[])?;
    fill(&server).context("redis-server does not take values")?;
    let pid = u32::try_from(server.pid())?;
    let heap = Heap::of(pid)?;
    let part = of_heap(&heap, "a Redis with pages of text, JSON and hashes".into(), wanted)?;
    server.stop()?;
    Ok(part)
}

/// Gives the server something to hold.
fn fill(server: &Server) -> Result<()> {
    let content = Content::build(CONTENT_BYTES);
    let mut random = Random::new(3);
    let mut stream = server.connect()?;
    let mut answers = BufReader::new(stream.try_clone()?);
    let (mut batch, mut sent) = (Vec::new(), 0);
    let all = VALUES + HASHES;
    for n in 0..all {
        // Mixed, as they would come in.
        if n % (all / VALUES) == 0 {
            let mut value = Vec::new();
            content.value(n / (all / VALUES), 0).append_to(&mut value);
            command(&mut batch, &[b"SET", format!("page:{n}").as_bytes(), &value]);
        } else {
            let mail = format!("user{}@example.net", random.below(1 << 20));
            let at = format!("2026-{:02}-{:02}", 1 + random.below(12), 1 + random.below(28));
            let score = random.below(100_000).to_string();
            let key = format!("user:{n}");
            let fields: [&[u8]; 8] = [
                b"HSET",
                key.as_bytes(),
                b"mail",
                mail.as_bytes(),
                b"since",
                at.as_bytes(),
                b"score",
                score.as_bytes(),
            ];
            command(&mut batch, &fields);
        }
        sent += 1;
        if sent == BATCH || n + 1 == all {
            stream.write_all(&batch)?;
            for _ in 0..sent {
                let mut answer = String::new();
                ensure!(answers.by_ref().read_line(&mut answer)? > 0, "it hung up");
                if answer.starts_with('-') {
                    bail!("it says {}", answer.trim_end());
                }
            }
            (batch, sent) = (Vec::new(), 0);
            crate::demo::sys::stop_if_interrupted()?;
        }
    }
    Ok(())
}

/// Appends a command as Redis reads it.
fn command(out: &mut Vec<u8>, words: &[&[u8]]) {
    out.extend_from_slice(format!("*{}\r\n", words.len()).as_bytes());
    for word in words {
        out.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        out.extend_from_slice(word);
        out.extend_from_slice(b"\r\n");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_written_as_redis_reads_them() {
        let mut out = Vec::new();
        command(&mut out, &[b"SET", b"k", b"a\r\nb"]);
        assert_eq!(out, b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$4\r\na\r\nb\r\n");
    }
}
