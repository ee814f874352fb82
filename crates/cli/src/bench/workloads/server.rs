//! The servers that [`super::client`] drives: how to start and how to reach them.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{bail, Result};

use super::Workload;
use crate::demo::sys;

/// A server that is being started answers within this.
const START_TIMEOUT: Duration = Duration::from_secs(30);
/// How long until the next try.
const RETRY_EVERY: Duration = Duration::from_millis(50);

/// Which server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// redis-server
    Redis,
    /// memcached
    Memcached,
}

impl Kind {
    /// The server of a workload, if it has one.
    pub(super) fn of(workload: Workload) -> Option<Kind> {
        match workload {
            Workload::Redis => Some(Kind::Redis),
            Workload::Memcached => Some(Kind::Memcached),
            _ => None,
        }
    }

    /// For people.
    pub(super) fn name(self) -> &'static str {
        match self {
            Kind::Redis => "redis",
            Kind::Memcached => "memcached",
        }
    }

    /// Memory of a key and its value of 3,900 to 4,080 bytes. Redis: jemalloc's class of 4,096, and
    /// key, entry and object beside it. Memcached: its class of 4,544, of which 230 are in a slab
    /// of 1 MiB.
    fn bytes_per_key(self) -> u64 {
        match self {
            Kind::Redis => 4_096 + 80,
            Kind::Memcached => 4_560,
        }
    }

    /// Keys that fill so much memory.
    pub(super) fn keys(self, size_mib: u64) -> u64 {
        (size_mib << 20) / self.bytes_per_key()
    }
}

/// The command that starts a server for `size_mib` of values, on a socket or the usual port.
pub(super) fn command(kind: Kind, size_mib: u64, socket: Option<&Path>) -> Vec<String> {
    let mut argv: Vec<String> = Vec::new();
    let mut add = |words: &[&str]| argv.extend(words.iter().map(|word| (*word).to_owned()));
    let socket = socket.map(|path| path.to_string_lossy());
    match kind {
        Kind::Redis => {
            // One thread and no persistence: the plain case, in which memory is all that matters.
            add(&["redis-server", "--save", "", "--appendonly", "no", "--io-threads", "1"]);
            add(&["--daemonize", "no", "--loglevel", "warning"]);
            if sys::cpus() > 1 {
                // Redis's own setting for its main thread; the client stays off that CPU.
                add(&["--server_cpulist", "0"]);
            }
            match &socket {
                Some(path) => {
                    add(&["--port", "0", "--unixsocketperm", "700", "--unixsocket", path])
                }
                None => add(&["--bind", "127.0.0.1", "--port", "6379"]),
            }
        }
        Kind::Memcached => {
            // A slab more for each of its classes, and some room: with -M it refuses when it is
            // full instead of forgetting, so that a missing value is always an error.
            let limit = (size_mib + size_mib / 20 + 64).to_string();
            add(&["memcached", "-M", "-t", "1", "-c", "1024", "-U", "0", "-m", &limit]);
            if is_root() {
                add(&["-u", "root"]);
            }
            match &socket {
                Some(path) => add(&["-a", "0700", "-s", path]),
                None => add(&["-l", "127.0.0.1", "-p", "11211"]),
            }
        }
    }
    argv
}

/// Whether this is root, as whom memcached runs only when told so.
fn is_root() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let uid = status.lines().find_map(|line| line.strip_prefix("Uid:"));
    uid.is_some_and(|ids| ids.split_whitespace().nth(1) == Some("0"))
}

/// A connection to a server.
pub(super) enum Stream {
    /// By a path.
    Unix(UnixStream),
    /// By a port.
    Tcp(TcpStream),
}

impl Stream {
    /// Connects to a path or a port of this machine; waits for a server that is starting.
    pub(super) fn connect(to: &str) -> Result<Stream> {
        let started = Instant::now();
        loop {
            let tried = match to.parse::<u16>() {
                Ok(port) => TcpStream::connect(("127.0.0.1", port)).and_then(|stream| {
                    stream.set_nodelay(true)?;
                    Ok(Stream::Tcp(stream))
                }),
                Err(_) => UnixStream::connect(to).map(Stream::Unix),
            };
            match tried {
                Ok(stream) => return Ok(stream),
                Err(e) if started.elapsed() > START_TIMEOUT => {
                    bail!("cannot connect to {to} for {START_TIMEOUT:?}: {e}")
                }
                Err(_) => std::thread::sleep(RETRY_EVERY),
            }
            sys::stop_if_interrupted()?;
        }
    }

    /// Whether reads and writes return at once.
    pub(super) fn set_nonblocking(&self, on: bool) -> io::Result<()> {
        match self {
            Stream::Unix(stream) => stream.set_nonblocking(on),
            Stream::Tcp(stream) => stream.set_nonblocking(on),
        }
    }

    /// How long a read may wait.
    pub(super) fn set_read_timeout(&self, time: Duration) -> io::Result<()> {
        match self {
            Stream::Unix(stream) => stream.set_read_timeout(Some(time)),
            Stream::Tcp(stream) => stream.set_read_timeout(Some(time)),
        }
    }
}

impl Read for Stream {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Unix(stream) => stream.read(bytes),
            Stream::Tcp(stream) => stream.read(bytes),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Stream::Unix(stream) => stream.write(bytes),
            Stream::Tcp(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl AsRawFd for Stream {
    fn as_raw_fd(&self) -> RawFd {
        match self {
            Stream::Unix(stream) => stream.as_raw_fd(),
            Stream::Tcp(stream) => stream.as_raw_fd(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_name_the_socket_or_a_port_of_this_machine() {
        for kind in [Kind::Redis, Kind::Memcached] {
            let with = command(kind, 1024, Some(Path::new("folder/s.sock")));
            assert!(with.contains(&"folder/s.sock".to_owned()), "{with:?}");
            let without = command(kind, 1024, None);
            assert!(without.contains(&"127.0.0.1".to_owned()), "{without:?}");
        }
    }

    #[test]
    fn memcached_has_room_for_all_values() {
        for size_mib in [64_u64, 1024, 8192] {
            let argv = command(Kind::Memcached, size_mib, None);
            let at = argv.iter().position(|word| word == "-m").unwrap();
            let slabs = Kind::Memcached.keys(size_mib).div_ceil(230);
            assert!(argv[at + 1].parse::<u64>().unwrap() > slabs + 32, "{argv:?}");
        }
    }
}
