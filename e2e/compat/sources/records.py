"""Records whose content their number and version give: python records.py RECORDS ROUNDS.

Strings, dicts, cycles and buffers, used by threads and compared in forked children. Prints
"OK checksum".
"""

from __future__ import annotations

import array
import gc
import os
import sys
import threading
import time


def content(i: int, version: int) -> str:
    """The text of a record."""
    x = (i * 31 + version * 7919 + 1) * 48271 % 2147483647
    words = []
    for _ in range(6):
        x = x * 48271 % 2147483647
        words.append(f"{x:x} ")
    return f"record {i} version {version} " + "".join(words) * 8


class Record:
    """A cycle of two, with text, a dict and a buffer."""

    def __init__(self, i: int, version: int) -> None:
        self.text = content(i, version)
        self.version = version
        self.parts = dict(enumerate(self.text.split()))
        self.buffer = array.array("q", range(i, i + 30))
        self.other: dict[str, Record] = {"self": self}

    def is_right(self, i: int, version: int) -> bool:
        """Whether everything is as it was made."""
        want = content(i, version)
        return (
            self.text == want
            and self.version == version
            and " ".join(self.parts.values()) + " " == want
            and self.buffer == array.array("q", range(i, i + 30))
            and self.other["self"] is self
        )


def verify(records: list[Record], versions: list[int], part: range, wrong: list[int]) -> None:
    """Compares some records."""
    wrong.extend(i for i in part if not records[i].is_right(i, versions[i]))


def in_child(records: list[Record], versions: list[int]) -> bool:
    """A forked child compares what it inherited, and changes it for itself only."""
    pid = os.fork()
    if pid == 0:
        wrong: list[int] = []
        verify(records, versions, range(0, len(records), 5), wrong)
        for record in records[::3]:
            record.text = ""
        os._exit(1 if wrong else 0)
    return os.waitpid(pid, 0)[1] == 0


def main() -> int:
    """Rounds of pausing, comparing, replacing."""
    count, rounds = int(sys.argv[1]), int(sys.argv[2])
    versions = [0] * count
    records = [Record(i, 0) for i in range(count)]
    total = 0
    for turn in range(rounds):
        time.sleep(0.5)
        wrong: list[int] = []
        parts = [range(n, count, 3) for n in range(3)]
        threads = [
            threading.Thread(target=verify, args=(records, versions, part, wrong)) for part in parts
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if wrong or (turn % 2 == 1 and not in_child(records, versions)):
            print(f"BAD records {wrong[:5]} in round {turn}")
            return 1
        for i in parts[turn % 3]:
            versions[i] += 1
            records[i] = Record(i, versions[i])
        gc.collect()
        total = (total * 31 + sum(map(len, (r.text for r in records)))) % 2147483647
    print(f"OK {total}")
    return 0


sys.exit(main())
