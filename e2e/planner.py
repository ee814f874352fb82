"""The planner's side of the wire (crates/core/src/wire.rs), for tests that play a planner.

It comes to a runtime whose own planner is gone, at its door `PID.runtime`. The configuration in
force comes with the runtime's greeting and is given back unread, so that nothing here has to know
what is in it.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple, Self

HELLO, REPORT, REFUSED = 65, 66, 67
CONFIGURE, WINDOW, PLAN = 1, 2, 3
# Version, pid, features, window and whether there is a configuration in force.
HELLO_HEAD = struct.Struct("<IIQIB")
# One region of a report without its ratios: address, tier, pages in memory, stored and resting,
# samples, hits, what was in memory at first, faults, and a set of tiers. Behind it come two bytes
# for each tier of that set.
REGION_HEAD = struct.Struct("<QBHHHBBHIH")
RATIO_BYTES = 2


def message(kind: int, body: bytes) -> bytes:
    """A message as it is sent."""
    return struct.pack("<IB", len(body) + 1, kind) + body


def plan(entries: Iterable[tuple[int, int]]) -> bytes:
    """A plan: region address and tier, any number of times."""
    lines = [struct.pack("<QB", region, tier) for region, tier in entries]
    return message(PLAN, struct.pack("<I", len(lines)) + b"".join(lines))


def window(number: int, spare_bytes: int = 0, soon_windows: int = 0) -> bytes:
    """Closes the open window, and opens this one.

    So much memory is to spare, and who comes back within so many windows is in use.
    """
    return message(WINDOW, struct.pack("<IQB", number, spare_bytes, soon_windows))


class Reported(NamedTuple):
    """Some of what is reported of a region."""

    tier: int
    resident: int
    stored: int
    resting: int
    samples: int
    hits: int
    faults: int


class Planner:
    """A conversation with one runtime."""

    def __init__(self, door: Path, timeout_s: float = 20.0) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(timeout_s)
        self.socket.connect(str(door))
        self._buffer = b""
        self.number = 0
        self.in_force = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, data: bytes) -> bool:
        """Sends all of it; False if the runtime has hung up."""
        try:
            self.socket.sendall(data)
        except (BrokenPipeError, ConnectionResetError):
            return False
        return True

    def receive(self) -> tuple[int, bytes] | None:
        """Kind and body of the next message; None when the runtime hangs up."""
        while True:
            if len(self._buffer) >= 4:
                (length,) = struct.unpack_from("<I", self._buffer)
                if len(self._buffer) >= length + 4:
                    whole, self._buffer = self._buffer[: length + 4], self._buffer[length + 4 :]
                    return whole[4], whole[5:]
            try:
                chunk = self.socket.recv(1 << 16)
            except ConnectionResetError:
                chunk = b""
            if not chunk:
                return None
            self._buffer += chunk

    def greet(self) -> Self:
        """Takes the greeting and gives the configuration in force back."""
        self.take_hello()
        self.send(message(CONFIGURE, self.in_force))
        return self

    def take_hello(self) -> None:
        """Takes the greeting."""
        answer = self.receive()
        assert answer is not None and answer[0] == HELLO, answer
        _, _, _, self.number, is_built = HELLO_HEAD.unpack_from(answer[1])
        assert is_built == 1
        self.in_force = answer[1][HELLO_HEAD.size :]

    def close_window(self, number: int | None = None, soon_windows: int = 0) -> dict[int, Reported]:
        """Closes a window: the regions that the runtime reports, by address."""
        self.number = self.number + 1 if number is None else number
        self.send(window(self.number, soon_windows=soon_windows))
        answer = self.receive()
        assert answer is not None and answer[0] == REPORT, answer
        _, count = struct.unpack_from("<II", answer[1])
        regions, at = {}, 8
        for _ in range(count):
            region, *said, with_ratios = REGION_HEAD.unpack_from(answer[1], at)
            tier, resident, stored, resting, samples, hits, _, faults = said
            regions[region] = Reported(tier, resident, stored, resting, samples, hits, faults)
            at += REGION_HEAD.size + RATIO_BYTES * with_ratios.bit_count()
        return regions

    def end(self) -> str:
        """Reads until the runtime hangs up: its last word on why, or nothing."""
        why = ""
        while (answer := self.receive()) is not None:
            if answer[0] == REFUSED:
                why = answer[1].decode()
        return why


def seed() -> int:
    """TERRACE_FUZZ_SEED, else the one that was found good enough to be kept."""
    return int(os.environ.get("TERRACE_FUZZ_SEED", "1"))
