//! A real redis-server of our own: started in a folder of its own on a Unix socket, plain or under
//! `terrace run`, watched, and ended without leaving anything behind.

use super::sys;
use anyhow::{bail, ensure, Context, Result};
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A server answers PING within this, even on a busy machine.
const START_TIMEOUT: Duration = Duration::from_secs(20);
/// A server ends within this when told; else it is killed.
const STOP_TIMEOUT: Duration = Duration::from_secs(10);

/// A temporary folder that goes away with its owner.
pub struct TempDir(PathBuf);

impl TempDir {
    /// Makes a folder that only we can enter.
    pub fn new(purpose: &str) -> Result<TempDir> {
        let base = std::env::temp_dir();
        // A Unix socket's path must fit 108 bytes.
        let base = if base.as_os_str().len() > 60 { PathBuf::from("/tmp") } else { base };
        for attempt in 0..100 {
            let path = base.join(format!("terrace-{purpose}-{}-{attempt}", std::process::id()));
            let mut builder = fs::DirBuilder::new();
            std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
            match builder.create(&path) {
                Ok(()) => return Ok(TempDir(path)),
                Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => continue,
                Err(e) => return Err(e).context(format!("cannot create {}", path.display())),
            }
        }
        bail!("cannot create a temporary folder below {}", base.display())
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Finds redis-server, or says how to get it.
pub fn find_redis() -> Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .map(|folder| folder.join("redis-server"))
        .find(|file| file.is_file())
        .context("redis-server is not installed; get it with: sudo apt-get install redis-server")
}

/// A running redis-server.
pub struct Server {
    child: Child,
    pid: i32,
    socket: PathBuf,
    logs: Vec<PathBuf>,
}

impl Server {
    /// Starts redis-server in `folder`. `launcher` is what comes before `--`: empty for a plain
    /// server, else the program `terrace` with the arguments of `run`.
    pub fn start(folder: &Path, name: &str, launcher: &[OsString]) -> Result<Server> {
        let redis = find_redis()?;
        let socket = folder.join(format!("{name}.sock"));
        let logs = vec![folder.join(format!("{name}.out")), folder.join(format!("{name}.log"))];
        let mut command = match launcher.split_first() {
            None => Command::new(&redis),
            Some((program, args)) => {
                let mut command = Command::new(program);
                command.args(args).arg("--").arg(&redis);
                // The built-in tiers, whatever was saved for `auto` on this machine.
                command.env("XDG_STATE_HOME", folder);
                command
            }
        };
        // One thread and no persistence: the plain case, in which memory is all that matters.
        command.args(["--port", "0", "--save", "", "--appendonly", "no", "--io-threads", "1"]);
        command.args(["--daemonize", "no", "--unixsocketperm", "700"]);
        if sys::cpus() > 1 {
            // Redis's own setting for its main thread; the load generator stays off that CPU.
            command.args(["--server_cpulist", "0"]);
        }
        command.arg("--unixsocket").arg(&socket).arg("--dir").arg(folder);
        command.arg("--logfile").arg(&logs[1]);
        let out = File::create(&logs[0]).context("cannot create the server's log")?;
        command.stdin(Stdio::null()).stdout(out.try_clone()?).stderr(out);
        // Its own group: Ctrl-C comes to us alone, and we end the servers in order.
        command.process_group(0);
        let child = command
            .spawn()
            .with_context(|| format!("cannot start {}", command.get_program().to_string_lossy()))?;
        let mut server = Server { child, pid: 0, socket, logs };
        server.wait_until_ready()?;
        Ok(server)
    }

    fn wait_until_ready(&mut self) -> Result<()> {
        let start = Instant::now();
        loop {
            sys::stop_if_interrupted()?;
            self.check_alive()?;
            if let Ok(pid) = self.ask_pid() {
                self.pid = pid;
                return Ok(());
            }
            if start.elapsed() > START_TIMEOUT {
                bail!("redis-server does not answer after {START_TIMEOUT:?}{}", self.log_tail());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// The process that Redis itself says it is: under `terrace run` it is a grandchild.
    fn ask_pid(&self) -> Result<i32> {
        let mut stream = self.connect()?;
        stream.set_read_timeout(Some(Duration::from_secs(2)))?;
        stream.write_all(b"INFO server\r\n")?;
        let mut reader = BufReader::new(stream);
        let mut line = String::new();
        while reader.read_line(&mut line)? > 0 {
            if let Some(pid) = line.trim_end().strip_prefix("process_id:") {
                return Ok(pid.parse()?);
            }
            line.clear();
        }
        bail!("no process_id")
    }

    /// A new connection.
    pub fn connect(&self) -> Result<UnixStream> {
        UnixStream::connect(&self.socket).context("cannot connect to redis-server")
    }

    /// The process of redis-server itself.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Fails, with the end of its log, when the server has ended.
    pub fn check_alive(&mut self) -> Result<()> {
        if let Some(status) = self.child.try_wait()? {
            bail!("the server ended unexpectedly ({status}){}", self.log_tail());
        }
        Ok(())
    }

    /// The last lines of everything the server wrote, for error messages.
    pub fn log_tail(&self) -> String {
        let mut out = String::new();
        for log in &self.logs {
            let Ok(bytes) = fs::read(log) else { continue };
            let text = String::from_utf8_lossy(&bytes);
            let lines: Vec<&str> = text.lines().collect();
            for line in &lines[lines.len().saturating_sub(12)..] {
                out.push_str("\n    ");
                out.push_str(line);
            }
        }
        if out.is_empty() {
            out.push_str(" (its log is empty)");
        } else {
            out.insert_str(0, "; the end of its log:");
        }
        out
    }

    /// CPU time of the main thread of Redis, which does all its work with `--io-threads 1`. The
    /// whole process would include the threads of Terrace that live in it.
    pub fn application_cpu(&self) -> Duration {
        let path = format!("/proc/{0}/task/{0}/stat", self.pid);
        let stat = fs::read_to_string(path).unwrap_or_default();
        let ticks = cpu_ticks(&stat).unwrap_or(0);
        Duration::from_secs_f64(ticks as f64 / sys::clock_ticks_per_second() as f64)
    }

    /// Resident memory of the server process.
    pub fn rss_bytes(&self) -> u64 {
        let statm = fs::read_to_string(format!("/proc/{}/statm", self.pid)).unwrap_or_default();
        let pages = statm.split_whitespace().nth(1).and_then(|n| n.parse::<u64>().ok());
        pages.unwrap_or(0) * sys::page_bytes()
    }

    /// Stops the server and its launcher where they are, so that they cost no CPU.
    pub fn pause(&self) {
        sys::signal_group(self.child.id() as i32, libc::SIGSTOP);
        sys::signal_process(self.pid, libc::SIGSTOP);
    }

    /// Lets a paused server go on.
    pub fn resume(&self) {
        sys::signal_process(self.pid, libc::SIGCONT);
        sys::signal_group(self.child.id() as i32, libc::SIGCONT);
    }

    /// Ends the server and says when it did not end as it should.
    pub fn stop(mut self) -> Result<()> {
        if let Ok(mut stream) = self.connect() {
            let _ = stream.write_all(b"SHUTDOWN NOSAVE\r\n");
            let _ = stream.set_read_timeout(Some(Duration::from_millis(500)));
            let _ = stream.read(&mut [0; 64]);
        }
        let status = self.wait(STOP_TIMEOUT)?;
        ensure!(status.is_some(), "the server did not end when told{}", self.log_tail());
        ensure!(
            status.is_some_and(|s| s.success()),
            "the server ended with an error{}",
            self.log_tail()
        );
        Ok(())
    }

    fn wait(&mut self, limit: Duration) -> Result<Option<std::process::ExitStatus>> {
        let start = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(Some(status));
            }
            if start.elapsed() > limit {
                return Ok(None);
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(Some(_))) {
            return;
        }
        // First Redis, so that `terrace run` sees its program end and cleans up behind it.
        self.resume();
        if self.pid > 0 {
            sys::signal_process(self.pid, libc::SIGKILL);
        } else {
            sys::signal_group(self.child.id() as i32, libc::SIGTERM);
        }
        if !matches!(self.wait(Duration::from_secs(3)), Ok(Some(_))) {
            sys::signal_group(self.child.id() as i32, libc::SIGKILL);
            let _ = self.child.wait();
        }
    }
}

/// utime + stime of a `/proc/../stat` line. The name, in parentheses, may contain anything.
fn cpu_ticks(stat: &str) -> Option<u64> {
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
    Some(fields.next()?.parse::<u64>().ok()? + fields.next()?.parse::<u64>().ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_time_is_read_behind_any_name() {
        let stat = "42 (a) (b c) S 1 42 42 0 -1 4194560 100 0 5 0 250 50 0 0 20 0 5 0 9 9 9";
        assert_eq!(cpu_ticks(stat), Some(300));
        assert_eq!(cpu_ticks(""), None);
    }

    #[test]
    fn a_temporary_folder_goes_away() {
        let folder = TempDir::new("test").expect("a folder");
        let path = folder.path().to_path_buf();
        fs::write(path.join("file"), "x").expect("write");
        drop(folder);
        assert!(!path.exists());
    }
}
