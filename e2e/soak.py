"""A soak: pages moved under `--torture` and verified, over every codec, pool and kind of medium.

`make soak PAGES=100000000 JSON=soak.json`. Each set of tiers gets its turn, again and again, until
so many page moves were made (demotions, migrations, promotions and faults, as the timeline counts
them). The program, `programs/soak.c`, verifies every page that it touches and, at the end of each
turn, all of them. The first wrong byte, or a hang, ends the soak with status 1.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness import PROGRAMS, REPOSITORY, Run, Sandbox, terrace_binary

POOLS = ("zbud", "z3fold", "zsmalloc")
# The program says something every second; it may wait long for pages from a file.
SILENCE_MAX_S = 120.0
# A turn that has come to its end verifies everything once more.
ENDING_MAX_S = 300.0
KINDS = ("demoted", "migrated", "promoted", "faulted")

DRAM = '[[medium]]\nname = "dram"\nkind = "dram"\nusd_per_gib_month = 0.3\n'
SLOW = (
    '[[medium]]\nname = "slow"\nkind = "emulated"\nusd_per_gib_month = 0.1\n'
    "latency_ns = 300\nbandwidth_mib_s = 2000\n"
)
LEVELS = {"zstd": -3, "lz4hc": 2, "deflate": 1, "lz4": 1, "zstd-dict": -1}


@dataclass(frozen=True)
class TierSet:
    """Tiers that are tried together: a configuration file and a name for it."""

    name: str
    config: str


@dataclass
class Tally:
    """What was done so far."""

    verified: int = 0
    seconds: float = 0.0
    turns: int = 0
    moves: Counter[str] = field(default_factory=Counter)

    @property
    def pages_moved(self) -> int:
        """All kinds of moves together."""
        return sum(self.moves[kind] for kind in KINDS)


def tier(codec: str, pool: str, medium: str) -> str:
    """One tier of a configuration, at its codec's quickest level that is worth testing."""
    level = f"level = {LEVELS[codec]}\n" if codec in LEVELS else ""
    return f'[[tier]]\ncodec = "{codec}"\n{level}pool = "{pool}"\nmedium = "{medium}"\n'


def tier_sets(folder: Path) -> list[TierSet]:
    """Together: all nine codecs on all three pools, each in DRAM, emulated and in a file."""
    file = (
        f'[[medium]]\nname = "file"\nkind = "file"\nusd_per_gib_month = 0.01\n'
        f'directory = "{folder}"\ncapacity_mib = 512\n'
    )
    groups = {
        "quick": ("lz4", "lzo", "lzo-rle"),
        "dense": ("zstd", "lz4hc", "lz4-dict"),
        "slow": ("deflate", "842", "zstd-dict"),
    }
    sets = []
    for medium, text in (("dram", ""), ("slow", SLOW), ("file", file)):
        for name, codecs in groups.items():
            tiers = [tier(codec, pool, medium) for codec in codecs for pool in POOLS]
            config = DRAM + text + "".join(tiers)
            sets.append(TierSet(f"{name} codecs on {medium}", config))
    return sets


def tail(timeline: Path) -> dict[str, Any] | None:
    """The last whole line of a timeline, which may be long."""
    try:
        with timeline.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - (64 << 10)))
            lines = file.read().split(b"\n")
    except FileNotFoundError:
        return None
    # What is behind the last newline is not complete, and the first may be cut off.
    whole = [line for line in lines[:-1] if line.startswith(b"{") and line.endswith(b"}")]
    window: dict[str, Any] = json.loads(whole[-1]) if whole else {}
    return window or None


def moves(run: Run) -> Counter[str]:
    """Moves of a run so far."""
    window = tail(run.timeline)
    return Counter({k: int(v) for k, v in window["moves_total"].items()} if window else {})


def lines_until(run: Run, start: str, limit_s: float) -> Iterator[str]:
    """Lines of the program, up to one that begins with `start`."""
    while True:
        line = run.read_line(time.monotonic() + limit_s)
        if line is None or line.startswith("BAD"):
            raise AssertionError(f"{line or 'the program ended'}\n{run.stderr()}")
        yield line
        if line.startswith(start):
            return


def turn(tiers: TierSet, seed: int, wanted: int, args: argparse.Namespace, box: Sandbox) -> Tally:
    """One set of tiers until its time is over, or `wanted` moves are made."""
    config = box.folder / "tiers.toml"
    config.write_text(tiers.config)
    program = box.folder / "soak"
    options = (f"--torture={seed}", "--config", str(config))
    begun = time.monotonic()
    with box.start(program, str(args.mib), str(args.threads), options=options) as run:
        list(lines_until(run, "READY", SILENCE_MAX_S))
        while time.monotonic() - begun < args.turn:
            list(lines_until(run, "VERIFIED", SILENCE_MAX_S))
            if moves(run).total() >= wanted:
                break
        assert run.process.stdin is not None
        run.process.stdin.close()
        *_, last = lines_until(run, "OK", ENDING_MAX_S)
        if run.conclude(SILENCE_MAX_S) != 0:
            raise AssertionError(f"{run.lines[-3:]}\n{run.stderr()}")
        done = Tally(int(last.split()[1]), time.monotonic() - begun, 1, moves(run))
        run.process.stdin = None
    return done


def add(total: Tally, part: Tally) -> None:
    """Counts `part` into `total`."""
    total.verified += part.verified
    total.seconds += part.seconds
    total.turns += part.turns
    total.moves += part.moves


def as_json(tally: Tally) -> dict[str, Any]:
    """A tally for the record."""
    return {
        "pages_moved": tally.pages_moved,
        "moves": dict(sorted(tally.moves.items())),
        "pages_verified": tally.verified,
        "seconds": round(tally.seconds, 1),
        "pages_moved_per_s": round(tally.pages_moved / max(tally.seconds, 0.001)),
        "turns": tally.turns,
    }


def commit() -> str:
    """The commit under test, as far as it can be known."""
    git = ["git", "-C", str(REPOSITORY), "describe", "--always", "--dirty"]
    answer = subprocess.run(git, capture_output=True, text=True, check=False)
    return answer.stdout.strip() or "unknown"


def arguments() -> argparse.Namespace:
    """What is asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pages", type=int, default=100_000_000, help="moves to make")
    parser.add_argument("--turn", type=float, default=60.0, help="seconds for a set of tiers")
    parser.add_argument("--mib", type=int, default=256, help="memory of the program")
    parser.add_argument("--threads", type=int, default=3, help="threads of the program")
    parser.add_argument("--seed", type=int, default=1, help="torture seed of the first turn")
    parser.add_argument("--json", type=Path, help="where the record goes")
    parser.add_argument("--folder", type=Path, help="where the file media are made")
    parser.add_argument("--only", default="", help="only sets whose name has this in it")
    return parser.parse_args()


def main() -> int:
    """Soaks; the exit status."""
    args = arguments()
    # The session in progress is ended and the folder removed also when this is.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    folder = Path(tempfile.mkdtemp(prefix="terrace-soak-", dir=args.folder))
    box = Sandbox(folder, os.geteuid())
    box.runtime_dir.mkdir(mode=0o700)
    compiler = ["gcc", "-O2", "-g", "-std=gnu17", "-pthread", "-o", str(folder / "soak")]
    subprocess.run([*compiler, str(PROGRAMS / "soak.c")], check=True)
    total = Tally()
    by_set: dict[str, Tally] = {}
    wrong = ""
    seed = args.seed
    try:
        sets = [tiers for tiers in tier_sets(folder) if args.only in tiers.name]
        while total.pages_moved < args.pages and not wrong:
            tiers = sets[(seed - args.seed) % len(sets)]
            try:
                part = turn(tiers, seed, args.pages - total.pages_moved, args, box)
            except AssertionError as error:
                wrong = f"{tiers.name}, seed {seed}: {error}"
                break
            add(total, part)
            add(by_set.setdefault(tiers.name, Tally()), part)
            print(
                f"{total.pages_moved:>12,} pages moved, {total.verified:,} verified; "
                f"{tiers.name}: {part.pages_moved / part.seconds:,.0f} moved/s, "
                f"{part.verified / part.seconds:,.0f} verified/s",
                flush=True,
            )
            seed += 1
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    record = {
        "command": " ".join(["e2e/soak.py", *sys.argv[1:]]),
        "commit": commit(),
        "terrace": str(terrace_binary().name),
        "machine": {"kernel": platform.release(), "cpus": os.cpu_count()},
        "wanted": args.pages,
        **as_json(total),
        "wrong": wrong,
        "sets": {name: as_json(tally) for name, tally in by_set.items()},
    }
    if args.json:
        args.json.write_text(json.dumps(record, indent=2) + "\n")
    print(wrong or f"soak: {total.pages_moved:,} pages moved, no byte wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
