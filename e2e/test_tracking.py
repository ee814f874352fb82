"""What is in use and what is not, by each way of sampling that this kernel has."""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from harness import Sandbox, areas_of, is_alive, terrace_binary, wait_until
from planner import Planner, plan

Compiler = Callable[..., Path]

pytestmark = pytest.mark.usefixtures("can_tier")

REGION = 2 << 20
REGIONS = 8
WATCHING = "userfaultfd RWP_ASYNC"
# Nothing goes down, and there are windows enough.
LOOKS = ("--window", "0.2", "--policy", "none")


def method() -> str:
    """How this machine's kernel lets hotness be measured."""
    done = subprocess.run(
        [terrace_binary(), "doctor", "--json"], capture_output=True, text=True, check=False
    )
    return str(json.loads(done.stdout)["tracker"]["method"])


@pytest.fixture(params=["the best there is", "pages are taken out"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Each way of sampling, by its name in the timeline."""
    if request.param == "the best there is":
        return method()
    monkeypatch.setenv("TERRACE_SAMPLES", "move")
    return "userfaultfd sampling"


def test_what_is_touched_is_told_from_what_is_not(
    sandbox: Sandbox, program: Compiler, way: str
) -> None:
    """All of one area is read all the time, nothing of the other: every sample says so."""
    with sandbox.start(program("hot_and_cold"), options=LOOKS) as run:
        area, pid = areas_of(run)
        wait_until("windows", lambda: len(run.windows()) > 3)
        assert {w["tracker"]["method"] for w in run.windows()} == {way}
        run.process.kill()
        run.process.wait(10)
        door = sandbox.runtime_dir / f"terrace-{sandbox.uid}" / f"{pid}.runtime"
        wait_until("a door", door.exists)
        taken = {name: [0, 0] for name in ("hot", "cold")}
        with Planner(door).greet() as planner:
            # The first windows have what came before.
            for number in range(16):
                regions = planner.close_window()
                # Samples are taken behind a plan.
                planner.send(plan([]))
                time.sleep(0.2)
                for name, counts in taken.items():
                    for at in range(area[name], area[name] + REGIONS * REGION, REGION):
                        if number > 4 and at in regions:
                            counts[0] += regions[at].samples
                            counts[1] += regions[at].hits
        os.kill(pid, 15)
        run.until("OK")
        wait_until("the program has ended", lambda: not is_alive(pid))
    assert taken["cold"][0] >= 8 * REGIONS and taken["hot"][0] >= REGIONS, taken
    assert taken["cold"][1] == 0, taken
    assert taken["hot"][1] == taken["hot"][0], taken


def test_who_waits_for_samples(sandbox: Sandbox, program: Compiler, way: str) -> None:
    """Nobody, where they stay where they are; where they are taken out, who touches them."""
    with sandbox.start(program("hot_and_cold"), options=LOOKS) as run:
        _, pid = areas_of(run)
        wait_until("windows", lambda: len(run.windows()) > 20)
        os.kill(pid, 15)
        run.until("OK")
        assert run.process.wait(20) == 0
        waited_ms = sum(w["lost"]["watching_ms"] for w in run.windows() if w["lost"])
        assert (waited_ms == 0) == (way == WATCHING), waited_ms
        said = re.search(r"(\d+) faults served", run.stderr())
        assert said is not None and said[1] == "0"
