"""An unmodified Redis with its memory pushed down hard: every value, snapshots, a restart.

No client library: the protocol is a few lines, and a second implementation could hide an error.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from harness import Run, Sandbox, faults_from_tiers, pages_in_tiers, wait_until

KEYS = 25_000  # about 100 MB
BATCH = 250
VERBS = "accepted rejected delayed forwarded answered retried closed opened".split()
HARD = ("--window", "0.3", "--policy", "analytical", "--alpha", "0")
WATERFALL = (
    *("--window", "0.3", "--preset", "tierscape"),
    *("--policy", "waterfall", "--threshold", "aggressive"),
)

pytestmark = pytest.mark.usefixtures("can_tier")


def log_lines() -> bytes:
    """A megabyte that compresses about as well as logs do; values are cut from it."""
    lines = []
    for n in range(12_000):
        noise = hashlib.blake2b(n.to_bytes(4, "little"), digest_size=12).hexdigest()
        lines.append(
            f"2024-04-05T{n % 24:02}:{n % 60:02} {noise} request {VERBS[n % 8]} in {n % 977} us"
        )
    return "\n".join(lines).encode()


LOG = log_lines()


def value_of(key: int, version: int) -> bytes:
    """The value of a key: its own beginning, and 3,500 to 4,500 bytes of log."""
    at = (key * 7919 + version * 104_729) % (len(LOG) - 5000)
    return b"key %d version %d\n" % (key, version) + LOG[at : at + 3500 + (key * 37) % 1000]


class Redis:
    """A connection that speaks just enough of the protocol."""

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(60)
        self._socket.connect(str(path))
        self._file = self._socket.makefile("rb")

    def close(self) -> None:
        """Closes the connection."""
        self._file.close()
        self._socket.close()

    def send(self, commands: Sequence[Sequence[bytes]]) -> None:
        """Sends commands in one go."""
        parts = []
        for command in commands:
            parts.append(b"*%d\r\n" % len(command))
            parts.extend(b"$%d\r\n%b\r\n" % (len(word), word) for word in command)
        self._socket.sendall(b"".join(parts))

    def reply(self) -> bytes | None:
        """One answer: text, number or value, as bytes."""
        line = self._file.readline()
        assert line.endswith(b"\r\n"), f"the connection ended: {line!r}"
        kind, rest = line[:1], line[1:-2]
        assert kind != b"-", rest
        if kind != b"$":
            return rest
        if rest == b"-1":
            return None
        data = self._file.read(int(rest) + 2)
        assert len(data) == int(rest) + 2, "the connection ended inside a value"
        return data[:-2]

    def do(self, *words: bytes) -> bytes | None:
        """One command, one answer."""
        self.send([words])
        return self.reply()

    def load(self, keys: range, version: int) -> None:
        """Writes a version of some keys."""
        for first in range(keys.start, keys.stop, BATCH):
            batch = range(first, min(first + BATCH, keys.stop))
            self.send([(b"SET", b"k%d" % k, value_of(k, version)) for k in batch])
            for _ in batch:
                assert self.reply() == b"OK"

    def verify(self, versions: Sequence[int]) -> None:
        """Reads every key and compares."""
        for first in range(0, len(versions), BATCH):
            batch = range(first, min(first + BATCH, len(versions)))
            self.send([(b"GET", b"k%d" % k) for k in batch])
            for k in batch:
                if self.reply() != value_of(k, versions[k]):
                    pytest.fail(f"wrong value: key {k}, version {versions[k]}")

    def info(self, field: str) -> str:
        """One field of INFO."""
        text = (self.do(b"INFO") or b"").decode()
        return next(
            line.partition(":")[2] for line in text.splitlines() if line.startswith(field + ":")
        )


def command(folder: Path, name: str) -> list[str]:
    """A server in `folder` that is reached by a socket only and saves when it is told to."""
    server = shutil.which("redis-server")
    if server is None:
        pytest.skip("no redis-server; `make test` installs it")
    return [
        *(server, "--port", "0", "--unixsocket", str(folder / name), "--dir", str(folder)),
        *("--save", "", "--appendonly", "no", "--dbfilename", "dump.rdb", "--daemonize", "no"),
        *("--enable-debug-command", "local", "--logfile", str(folder / f"{name}.log")),
    ]


@contextlib.contextmanager
def connected(path: Path) -> Iterator[Redis]:
    """A connection to a server that may still be loading."""

    def answers() -> bool:
        try:
            probe = Redis(path)
        except OSError:
            return False
        try:
            return probe.do(b"PING") == b"PONG"
        except AssertionError:
            return False  # loading
        finally:
            probe.close()

    wait_until("redis answers", answers, 30)
    redis = Redis(path)
    try:
        yield redis
    finally:
        redis.close()


def wait_down(run: Run, pages: int) -> None:
    """Waits until that many pages of the server are in tiers."""
    seen = len(run.windows())
    wait_until(
        f"{pages} pages in tiers",
        lambda: any(pages_in_tiers(w) >= pages for w in run.windows()[seen:]),
        60,
    )


def snapshot(redis: Redis, while_it_runs: range) -> None:
    """BGSAVE, with some keys overwritten while the child writes."""
    redis.do(b"BGSAVE")
    redis.load(while_it_runs, 3)
    deadline = time.monotonic() + 60
    while redis.info("rdb_bgsave_in_progress") != "0":
        assert time.monotonic() < deadline, "BGSAVE hangs"
        time.sleep(0.05)
    assert redis.info("rdb_last_bgsave_status") == "ok"


@pytest.mark.parametrize("options", [HARD, WATERFALL], ids=["analytical", "waterfall"])
def test_redis(sandbox: Sandbox, options: tuple[str, ...]) -> None:
    """GETs from tiers, a snapshot by fork from tiers, and the snapshot read by a plain server."""
    folder = sandbox.folder
    versions = [1] * KEYS
    half = KEYS // 2  # a value is about a page
    with sandbox.start(*command(folder, "tiered"), options=options) as run:
        with connected(folder / "tiered") as redis:
            redis.load(range(KEYS), 1)
            wait_down(run, half)
            redis.verify(versions)
            redis.load(range(KEYS // 3), 2)
            versions[: KEYS // 3] = [2] * (KEYS // 3)
            wait_down(run, half)
            snapshot(redis, range(KEYS - 2000, KEYS))
            saved = list(versions)
            versions[KEYS - 2000 :] = [3] * 2000
            redis.verify(versions)
            redis.load(range(KEYS - 2000, KEYS), 1)
            digest = redis.do(b"DEBUG", b"DIGEST")
            redis.send([(b"SHUTDOWN", b"NOSAVE")])
        assert run.conclude() == 0, run.stderr()
        assert faults_from_tiers(run.windows()[-1]) > half // 2, "the values came from DRAM"
    plain = subprocess.Popen(command(folder, "plain"), cwd=folder, stdin=subprocess.DEVNULL)
    try:
        with connected(folder / "plain") as redis:
            redis.verify(saved)
            assert redis.do(b"DEBUG", b"DIGEST") == digest, "the snapshot differs from the memory"
    finally:
        plain.kill()
        plain.wait(10)


def test_redis_daemonised(sandbox: Sandbox) -> None:
    """`daemonize yes`: the server forks, closes what it does not know, and its parent ends."""
    folder = sandbox.folder
    line = command(folder, "daemon")
    line[line.index("--daemonize") + 1] = "yes"
    pidfile = folder / "daemon.pid"
    try:
        with sandbox.start(*line, "--pidfile", str(pidfile), options=HARD) as run:
            assert run.conclude(30) == 0, run.stderr()
            with connected(folder / "daemon") as redis:
                redis.load(range(2000), 1)
                time.sleep(1)
                redis.verify([1] * 2000)
                redis.send([(b"SHUTDOWN", b"NOSAVE")])
        wait_until("the daemon ended", lambda: not pidfile.exists(), 20)
    finally:
        if pidfile.exists():
            with contextlib.suppress(ProcessLookupError, ValueError):
                os.kill(int(pidfile.read_text()), signal.SIGKILL)
