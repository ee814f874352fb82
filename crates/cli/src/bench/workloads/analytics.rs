//! Queries of an in-memory DuckDB over tables like TPC-H's.
//!
//! The database is a Python program (analytics.py) below this one, which tells it what to ask and
//! compares what comes back: the result of every query must be that of its first run. Both are
//! followed by Terrace; the tables are in the child, whose pid is in the line that says ready.
//!
//! One query is one operation, timed in the child. The queries come in turn.

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{bail, ensure, Context, Result};
use serde_json::json;

use super::record::{Clock, Phase, Recorder};
use super::WorkArgs;

const PROGRAM: &str = include_str!("analytics.py");
/// Memory of a row of the largest table with its share of the others.
const BYTES_PER_ROW: u64 = 200;

fn python(args: &WorkArgs) -> PathBuf {
    let given = args.python.clone();
    given.or_else(|| std::env::var_os("TERRACE_PYTHON").map(Into::into)).unwrap_or("python3".into())
}

/// Why the workload cannot run here, if it cannot.
pub(super) fn missing(args: &WorkArgs) -> Option<String> {
    let python = python(args);
    let mut command = Command::new(&python);
    command.args(["-c", "import duckdb"]).stdin(Stdio::null()).stderr(Stdio::null());
    match command.status() {
        Ok(status) if status.success() => None,
        Ok(_) => Some(format!(
            "{} has no module duckdb; name a Python that has with --python or TERRACE_PYTHON",
            python.display()
        )),
        Err(e) => Some(format!("cannot run {}: {e}", python.display())),
    }
}

/// The Python program. Ends when it is dropped.
struct Database {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
}

impl Database {
    fn start(args: &WorkArgs) -> Result<Database> {
        let mut command = Command::new(python(args));
        command.args(["-c", PROGRAM]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().context("cannot start Python")?;
        let stdin = child.stdin.take();
        let stdout = BufReader::new(child.stdout.take().context("no pipe")?);
        Ok(Database { child, stdin, stdout })
    }

    /// The answer to a line, in words; its first must be `kind`.
    fn ask(&mut self, line: &str, kind: &str) -> Result<Vec<String>> {
        let stdin = self.stdin.as_mut().context("no pipe")?;
        writeln!(stdin, "{line}").context("the database is gone")?;
        let mut answer = String::new();
        self.stdout.read_line(&mut answer).context("the database is gone")?;
        let mut words = answer.split_whitespace().map(str::to_owned);
        ensure!(words.next().as_deref() == Some(kind), "the database failed at: {line}");
        Ok(words.collect())
    }

    /// Runs a query. Returns how long it took and what its result is known by.
    fn query(&mut self, n: usize) -> Result<(Duration, String)> {
        let words = self.ask(&format!("query {n}"), "answered")?;
        let [ns, rows, digest] = &words[..] else { bail!("an odd answer: {words:?}") };
        ensure!(rows != "0", "query {n} finds nothing");
        Ok((Duration::from_nanos(ns.parse()?), digest.clone()))
    }

    /// Lets it end.
    fn end(mut self) -> Result<()> {
        self.stdin = None;
        let status = self.child.wait()?;
        ensure!(status.success(), "the database failed: {status}");
        Ok(())
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// Loads, queries, checks.
pub(super) fn run(args: &WorkArgs, recorder: &mut Recorder) -> Result<()> {
    ensure!((1..=256).contains(&args.threads), "--threads must be between 1 and 256");
    let rows = (args.size << 20) / BYTES_PER_ROW;
    let mut database = Database::start(args)?;
    recorder.progress(&format!("filling {rows} rows"));
    let loaded = database.ask(&format!("load {rows} {} {}", args.seed, args.threads), "loaded")?;
    let queries: usize = loaded.first().context("no number of queries")?.parse()?;
    let version = loaded.get(1).cloned().unwrap_or_default();
    let mut first = Vec::new();
    for n in 0..queries {
        first.push(database.query(n)?.1);
    }
    if args.corrupt {
        database.ask("corrupt", "corrupted")?;
    }
    let details = json!({"rows": rows, "queries": queries, "duckdb": version});
    recorder.ready(Clock::Busy, "query", Some(database.child.id()), details)?;
    for (asked, n) in (0..queries).cycle().enumerate() {
        if asked > 0 && n == 0 {
            recorder.end_round();
        }
        if recorder.phase(Instant::now())? == Phase::Over {
            break;
        }
        let (time, digest) = database.query(n)?;
        let now = Instant::now();
        recorder.latency(now, time);
        recorder.op(now, time)?;
        if digest != first[n] {
            recorder.wrong(|| format!("query {n} has another result than the first time"));
        }
    }
    database.end()
}
