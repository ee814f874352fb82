"""Redis: values, snapshots, rewritten logs and a replica, all from tiers."""

from __future__ import annotations

import contextlib
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

from compat.programs.common import log_lines, version_of, wait_for
from compat.runner import Program, Stage, Wrong
from test_redis import Redis

BATCH = 250
LOG = log_lines(12_000)


def value_of(key: int, version: int) -> bytes:
    """The value of a key: its own beginning, and some 4,000 bytes of log."""
    at = (key * 7919 + version * 104_729) % (len(LOG) - 5000)
    return b"key %d version %d\n" % (key, version) + LOG[at : at + 3500 + (key * 37) % 1000]


def command(folder: Path, *options: str) -> list[str | Path]:
    """A server in `folder`, reached by its socket only."""
    folder.mkdir(exist_ok=True)
    return [
        *("redis-server", "--port", "0", "--unixsocket", folder / "socket", "--dir", folder),
        *("--save", "", "--enable-debug-command", "local", *options),
    ]


@contextlib.contextmanager
def client(stage: Stage, folder: Path) -> Iterator[Redis]:
    """A connection to a server that may still be loading."""

    def answers() -> bool:
        try:
            probe = Redis(folder / "socket")
        except OSError:
            return False
        try:
            return probe.do(b"PING") == b"PONG"
        except AssertionError:
            return False
        finally:
            probe.close()

    wait_for(stage, f"redis in {folder.name} answers", answers)
    connection = Redis(folder / "socket")
    try:
        yield connection
    finally:
        connection.close()


def load(redis: Redis, keys: range, versions: list[int]) -> None:
    """Writes the current version of some keys."""
    for first in range(keys.start, keys.stop, BATCH):
        batch = range(first, min(first + BATCH, keys.stop))
        redis.send([(b"SET", b"k%d" % k, value_of(k, versions[k])) for k in batch])
        for _ in batch:
            if redis.reply() != b"OK":
                raise Wrong("SET was not OK")


def verify(redis: Redis, versions: list[int], seed: int) -> None:
    """Reads every key, out of order, and compares."""
    keys = list(range(len(versions)))
    random.Random(seed).shuffle(keys)
    for first in range(0, len(keys), BATCH):
        batch = keys[first : first + BATCH]
        redis.send([(b"GET", b"k%d" % k) for k in batch])
        for k in batch:
            if redis.reply() != value_of(k, versions[k]):
                raise Wrong(f"wrong value: key {k}, version {versions[k]}")


def digest(redis: Redis) -> bytes:
    """Redis' own digest of everything it holds."""
    return redis.do(b"DEBUG", b"DIGEST") or b""


def background(stage: Stage, redis: Redis, verb: bytes, running: str, status: str) -> None:
    """Starts a child that writes, and waits until it is done."""
    redis.do(verb)
    wait_for(stage, f"{verb.decode()} ends", lambda: redis.info(running) == "0")
    if redis.info(status) != "ok":
        raise Wrong(f"{verb.decode()}: {redis.info(status)}")


def drive(stage: Stage) -> str:
    """Everything, with a pause before each step in which the values go down."""
    versions = [1] * (6_000 if stage.quick else 20_000)
    everything, half = range(len(versions)), len(versions) // 2
    first, second = stage.folder / "first", stage.folder / "second"
    with stage.server(command(first), "first") as server, client(stage, first) as redis:
        load(redis, everything, versions)
        # Small values, too: they share pages, and a scan of them looks at every entry.
        for n in range(200):
            redis.do(b"HSET", b"h%d" % n, *[b"field %d" % (i // 2) for i in range(120)])
        stage.wait_down(half)
        verify(redis, versions, 1)
        for k in range(half):
            versions[k] = 2
        load(redis, range(half), versions)
        stage.wait_down(half)
        # The child writes what is in tiers while the parent goes on writing.
        redis.do(b"BGSAVE")
        saved = digest(redis)
        load(redis, range(half, half + 500), versions)
        wait_for(stage, "BGSAVE ends", lambda: redis.info("rdb_bgsave_in_progress") == "0")
        if redis.info("rdb_last_bgsave_status") != "ok":
            raise Wrong("BGSAVE failed")
        stage.wait_down(half)
        redis.do(b"CONFIG", b"SET", b"appendonly", b"yes")
        # That rewrites once by itself.
        wait_for(stage, "the log is there", lambda: redis.info("aof_rewrite_in_progress") == "0")
        stage.wait_down(half)
        background(
            *(stage, redis, b"BGREWRITEAOF", "aof_rewrite_in_progress"),
            "aof_last_bgrewrite_status",
        )
        verify(redis, versions, 2)
        load(redis, range(100), versions)
        replicate(stage, redis, first, second, versions)
        if digest(redis) != saved:
            raise Wrong("the digest changed though no value did")
        redis.send([(b"SHUTDOWN", b"NOSAVE")])
        if stage.wait(server) != 0:
            raise Wrong("redis did not end with status 0")
    # Plain servers read what the tiered one wrote.
    for kind in ("snapshot", "log"):
        folder = stage.folder / kind
        shutil.copytree(first, folder, ignore=shutil.ignore_patterns("socket"))
        process = stage.spawn(
            command(folder, "--appendonly", "yes" if kind == "log" else "no"),
            log=stage.folder / f"{kind}.log",
        )
        with client(stage, folder) as redis:
            verify(redis, versions, 3)
            if digest(redis) != saved:
                raise Wrong(f"the {kind} differs from the memory it was written from")
        stage.stop(process)
    return saved.decode()


def replicate(stage: Stage, redis: Redis, first: Path, second: Path, versions: list[int]) -> None:
    """A second server under test copies the first, both from tiers."""
    # Replication needs a port; the first server opens one now.
    port = next_port(redis)
    with (
        stage.server(command(second, "--replicaof", f"127.0.0.1 {port}"), "second") as server,
        client(stage, second) as replica,
    ):
        wait_for(stage, "the replica is linked", lambda: replica.info("master_link_status") == "up")
        load(redis, range(50), versions)
        if redis.do(b"WAIT", b"1", b"60000") != b"1":
            raise Wrong("the replica did not acknowledge")
        stage.wait_down(len(versions) // 2)
        verify(replica, versions, 4)
        if digest(replica) != digest(redis):
            raise Wrong(f"the replica differs from {first.name}")
        replica.send([(b"SHUTDOWN", b"NOSAVE")])
        if stage.wait(server) != 0:
            raise Wrong("the replica did not end with status 0")


def next_port(redis: Redis) -> int:
    """Opens a port on a server that has none."""
    for port in range(21_000, 21_100):
        try:
            redis.do(b"CONFIG", b"SET", b"port", b"%d" % port)
        except AssertionError:
            continue
        return port
    raise Wrong("no port for replication")


REDIS = Program(
    "redis",
    version_of("redis-server", "--version"),
    drive,
    "every value after each step; BGSAVE with writes and BGREWRITEAOF, both read by a plain server "
    "and compared by DEBUG DIGEST; a replica under test with the same digest",
    ("redis-server:redis-server",),
    quick=True,
)
