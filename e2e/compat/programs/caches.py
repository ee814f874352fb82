"""memcached, driven by a client of a few lines."""

from __future__ import annotations

import random
import socket
import threading

from compat.programs.common import version_of, wait_for
from compat.programs.redis import value_of
from compat.runner import Program, Stage, Wrong

KEYS = 16_000
CLIENTS = 4


class Memcached:
    """A connection that speaks the text protocol."""

    def __init__(self, path: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(120)
        self._socket.connect(path)
        self._file = self._socket.makefile("rb")

    def close(self) -> None:
        """Closes the connection."""
        self._file.close()
        self._socket.close()

    def set(self, key: int, value: bytes) -> None:
        """Stores a value."""
        self._socket.sendall(b"set k%d %d 0 %d\r\n%b\r\n" % (key, key, len(value), value))
        answer = self._file.readline()
        if answer != b"STORED\r\n":
            raise Wrong(f"set: {answer!r}")

    def get(self, keys: list[int]) -> dict[int, bytes]:
        """Values of keys that are there."""
        self._socket.sendall(b"get " + b" ".join(b"k%d" % k for k in keys) + b"\r\n")
        found = {}
        while (line := self._file.readline()) != b"END\r\n":
            word, key, flags, length = line.split()
            if word != b"VALUE" or key != b"k" + flags:
                raise Wrong(f"get: {line!r}")
            found[int(flags)] = self._file.read(int(length) + 2)[:-2]
        return found


def drive(stage: Stage) -> str | None:
    """Four clients, each with keys of its own: load, verify, overwrite, verify."""
    path = str(stage.folder / "socket")
    line = ["memcached", "-u", "root", "-s", path, "-m", "512", "-t", "4"]
    with stage.server(line, "memcached") as server:
        wait_for(stage, "memcached answers", lambda: answers(path))
        wrong: list[str] = []
        go = threading.Barrier(CLIENTS, action=lambda: stage.wait_down(KEYS // 2))
        clients = [
            threading.Thread(target=use, args=(path, n, go, wrong), daemon=True)
            for n in range(CLIENTS)
        ]
        for one in clients:
            one.start()
        for one in clients:
            one.join()
        if wrong:
            raise Wrong("; ".join(wrong))
        stage.stop(server)
    return None


def answers(path: str) -> bool:
    """Whether the server is up."""
    try:
        Memcached(path).close()
    except OSError:
        return False
    return True


def use(path: str, number: int, go: threading.Barrier, wrong: list[str]) -> None:
    """One client; what it finds wrong goes to `wrong`."""
    try:
        memcached = Memcached(path)
        keys = list(range(number, KEYS, CLIENTS))
        versions = dict.fromkeys(keys, 1)
        for k in keys:
            memcached.set(k, value_of(k, 1))
        for round_number in range(4):
            go.wait()
            random.Random(number).shuffle(keys)
            for first in range(0, len(keys), 50):
                batch = keys[first : first + 50]
                if memcached.get(batch) != {k: value_of(k, versions[k]) for k in batch}:
                    wrong.append(f"client {number}, round {round_number}: a value is wrong")
                    go.abort()
                    return
            for k in keys[:: round_number + 2]:
                versions[k] += 1
                memcached.set(k, value_of(k, versions[k]))
        memcached.close()
    except threading.BrokenBarrierError:
        pass
    except (OSError, ValueError, Wrong) as why:
        wrong.append(f"client {number}: {why!r}")
        go.abort()


MEMCACHED = Program(
    "memcached",
    version_of("memcached", "-V"),
    drive,
    "four clients set, overwrite and get 16,000 values of 4 KB with pauses; every value compared",
    ("memcached:memcached",),
)
