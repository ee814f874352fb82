#!/usr/bin/env python3
"""Stands in for `terrace bench work NAME` in tests of `bench paper` and `bench slowdown`.

It writes the same lines, and as `analytics` ends its turns itself. Fills memory with the machine's
own text, touches a part of it often and the rest seldom, and compares every page with what was
written. STAND_IN=wrong reports wrong results, STAND_IN=skip lacks what it needs, STAND_IN=die ends
before its time.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import random
import signal
import sys
import time
from pathlib import Path

PAGE = 4096
# More often than the real one: windows of a second are told apart by what it says, and a line that
# is late on a crowded machine must not leave one of them without work.
SAY_EVERY_S = 0.25
# Of `analytics`, what it does before the other one has its turn.
ROUND = 40
# At the start of a turn, not counted.
SETTLE_S = 0.02


class Turns:
    """When this process was continued last, and how much it does before it stops itself."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.taken: bool = args.in_turns
        self.rounds = args.words[2] == "analytics"
        self.resumed = 0.0
        self.steps = 0
        if self.taken:
            signal.signal(signal.SIGCONT, self.goes_on)
            os.kill(os.getpid(), signal.SIGSTOP)

    def goes_on(self, *_: object) -> None:
        """Somebody has continued it."""
        self.resumed = time.monotonic()

    def step(self) -> None:
        """A step begins, perhaps with the other one's turn before it."""
        self.steps += 1
        if self.taken and self.rounds and self.steps % ROUND == 0:
            os.kill(os.getpid(), signal.SIGSTOP)


def arguments() -> argparse.Namespace:
    """Those of the real one that it knows."""
    parser = argparse.ArgumentParser()
    parser.add_argument("words", nargs=3)
    parser.add_argument("--size", type=int, default=16)
    for option in ("--seconds", "--warmup"):
        parser.add_argument(option, type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--in-turns", action="store_true")
    parser.add_argument("--phase-at", type=float, default=float("inf"))
    parser.add_argument("--out", type=Path, required=True)
    return parser.parse_args()


def main() -> int:
    """One run."""
    args = arguments()
    kind = os.environ.get("STAND_IN", "")
    with args.out.open("w") as out:

        def say(line: dict[str, object]) -> None:
            out.write(json.dumps(line) + "\n")
            out.flush()

        if kind == "skip":
            say({"event": "skipped", "reason": "a test has it so"})
            return 77
        pages = args.size << 8
        text = Path("/usr/share/common-licenses/GPL-3").read_bytes()
        text = text[: len(text) // PAGE * PAGE]

        def content(n: int) -> bytes:
            at = n * PAGE % len(text)
            return n.to_bytes(8, "little") + text[at + 8 : at + PAGE]

        memory = mmap.mmap(-1, pages * PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        for n in range(pages):
            memory[n * PAGE : (n + 1) * PAGE] = content(n)
        turns = Turns(args)
        say({"event": "ready", "pid": os.getpid()})
        ready, said, ops, wrong = time.monotonic(), 0.0, 0, 0
        work, busy = 0, 0.0
        draw = random.Random(args.seed)
        while (now := time.monotonic() - ready) < args.warmup + args.seconds:
            if kind == "die" and now > args.warmup:
                return 3
            if now >= said + SAY_EVERY_S:
                said += SAY_EVERY_S
                latency = {"p50_us": 1.0, "p99_us": 2.0, "p999_us": 3.0}
                say({"t_s": now, "ops": 1, "work": work, "work_s": busy, **latency})
                work, busy = 0, 0.0
            turns.step()
            # From the phase on another quarter is popular.
            first = pages // 2 if now >= args.warmup + args.phase_at else 0
            for _ in range(50):
                n = draw.randrange(pages // 4 if draw.random() < 0.99 else pages)
                n = (first + n) % pages
                wrong += memory[n * PAGE : (n + 1) * PAGE] != content(n)
            counts = ready + now >= turns.resumed + SETTLE_S
            work += 50 * counts
            busy += (time.monotonic() - ready - now) * counts
            ops += 50 * (now >= args.warmup)
            time.sleep(0.001)
        wrong += kind == "wrong"
        us = args.seconds / max(ops, 1) * 1e6
        latency = {"mean_us": us, "p50_us": us, "p99_us": us * 2, "p999_us": us * 3}
        done = {"event": "done", "ops": ops, "seconds": args.seconds, "wrong": wrong, "hist": []}
        say({**done, "ops_per_s": ops / args.seconds, **latency})
    return 1 if wrong else 0


sys.exit(main())
