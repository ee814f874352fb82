"""A long run of the cold-age policy: how well the promotion rate is kept, and what is far.

`python cold_age.py --seconds 3600 --json PATH` runs `programs/popular.c`, a program with a
popularity after Zipf and a part that hardly anybody asks for, under
`terrace run --policy cold-age`, and reads the timeline. Time is compressed unless `--minute-s 60`
is given: a minute of the policy lasts a window, and the limit is on the pages that come back in
it. What is reported is of the minutes after the warm-up. Ends with status 1 if the limit was broken
in more than 2 % of them, or a page was wrong.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from harness import PROGRAMS, Sandbox, terrace_binary

# Share of the minutes that the limit is promised for.
PROMISED = 0.98


@dataclass(frozen=True)
class Load:
    """What `programs/popular.c` does."""

    used_mib: int = 256
    rest_mib: int = 256
    rate: float = 60_000.0
    rest_rate: float = 5.0

    def arguments(self, seconds: float) -> list[str]:
        """As the program takes them."""
        numbers = (self.used_mib, self.rest_mib, self.rate, self.rest_rate, seconds)
        return [f"{number:g}" for number in numbers]


@dataclass(frozen=True)
class Outcome:
    """What a run came to, over the minutes after the warm-up."""

    minutes: int
    minutes_over: int
    promotion_rate_allowed: float
    promotion_rate_p50: float
    promotion_rate_p98: float
    promotion_rate_max: float
    promotions: int
    coverage_mean: float
    coverage_last: float
    working_set_mib_mean: float
    far_mib_last: float
    cold_mib_last: float
    threshold_s_last: float | None
    tco_saved_last: float
    stalled_ms: float

    @property
    def is_held(self) -> bool:
        """Whether the limit was kept in as many minutes as is promised."""
        return self.minutes > 0 and self.minutes_over <= (1 - PROMISED) * self.minutes


def percentile(values: Sequence[float], share: float) -> float:
    """By nearest rank."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def outcome_of(windows: Sequence[Mapping[str, Any]]) -> Outcome:
    """Reads a timeline: the first window of each minute after the warm-up says how it was."""
    minutes = []
    for before, window in pairwise(windows):
        is_new = window["cold_age"]["minutes"] != before["cold_age"]["minutes"]
        if is_new and before["cold_age"]["is_warm"]:
            minutes.append(window["cold_age"])
    last = windows[-1]
    if not minutes:
        raise SystemExit("the run ended before the warm-up; give it more --seconds")
    rates = [minute["promotion_rate"] for minute in minutes]
    allowed = last["cold_age"]["promotion_rate_allowed"]

    def mib(pages: float) -> float:
        return pages / 256

    return Outcome(
        minutes=len(minutes),
        minutes_over=sum(rate > allowed for rate in rates),
        promotion_rate_allowed=allowed,
        promotion_rate_p50=percentile(rates, 0.5),
        promotion_rate_p98=percentile(rates, PROMISED),
        promotion_rate_max=max(rates),
        promotions=sum(minute["promotions"] for minute in minutes),
        coverage_mean=sum(minute["coverage"] for minute in minutes) / len(minutes),
        coverage_last=last["cold_age"]["coverage"],
        working_set_mib_mean=mib(sum(m["working_set_pages"] for m in minutes) / len(minutes)),
        far_mib_last=mib(last["cold_age"]["far_pages"]),
        cold_mib_last=mib(last["cold_age"]["cold_pages"]),
        threshold_s_last=last["cold_age"]["threshold_s"],
        tco_saved_last=last["tco_saved"],
        stalled_ms=sum(window["stalled_ms"] for window in windows),
    )


def options(minute_s: float, window_s: float, samples: int, folder: Path) -> list[str]:
    """Of `terrace run`. Samples are only in a file."""
    file = folder / "cold_age.toml"
    file.write_text(f"[run]\nsamples_per_region = {samples}\n")
    policy = ["--policy", "cold-age", "--cold-age-minute-s", f"{minute_s:g}"]
    return [*policy, "--window", f"{window_s:g}", "--config", str(file)]


def compile_into(folder: Path) -> Path:
    """The program, built as the tests build it."""
    binary = folder / "popular"
    source = str(PROGRAMS / "popular.c")
    line = ["gcc", "-O2", "-g", "-std=gnu17", "-pthread", "-o", str(binary), source]
    subprocess.run(line, check=True, timeout=120)
    return binary


def main() -> int:
    """Runs it once."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=480.0)
    parser.add_argument("--minute-s", type=float, default=1.0)
    parser.add_argument("--window-s", type=float, default=1.0)
    parser.add_argument("--samples", type=int, default=8)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--timeline", type=Path, help="keep the timeline here")
    given = parser.parse_args()

    load = Load()
    with tempfile.TemporaryDirectory(prefix="terrace-cold-age-") as name:
        sandbox = Sandbox(Path(name), os.geteuid())
        sandbox.runtime_dir.mkdir(mode=0o700)
        binary = compile_into(sandbox.folder)
        how = options(given.minute_s, given.window_s, given.samples, sandbox.folder)
        with sandbox.start(binary, *load.arguments(given.seconds), options=how) as run:
            said = run.until("ACCESSES", timeout_s=given.seconds * 2 + 120)
            # Then it reads everything to check it, which is not its load.
            windows = run.windows()
            status = run.conclude(timeout_s=600)
        if given.timeline:
            given.timeline.write_text("".join(json.dumps(w) + "\n" for w in windows))
    outcome = outcome_of(windows)
    report = {
        "terrace": str(terrace_binary().name),
        "machine": f"{platform.machine()}, {os.cpu_count()} CPUs, {platform.release()}",
        "loadavg": os.getloadavg(),
        "seconds": given.seconds,
        "seconds_per_minute": given.minute_s,
        "window_s": given.window_s,
        "samples_per_region": given.samples,
        "load": asdict(load),
        "program_said": said,
        "is_held": outcome.is_held,
        **asdict(outcome),
    }
    text = json.dumps(report, indent=2) + "\n"
    print(text, end="")
    if given.json:
        given.json.write_text(text)
    return 0 if outcome.is_held and status == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
