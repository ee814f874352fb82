"""Pages taken out with the program's threads stopped, as on kernels without UFFDIO_MOVE.

What is here runs that way on every kernel (docs/older-kernels.md). `make test-older-kernel` runs
all end-to-end tests that way.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from harness import HARD, SKIPPED, TIMEOUT_S, Run, Sandbox, children_of
from test_torture import HAZARDS, TORTURE

Compiler = Callable[..., Path]

pytestmark = pytest.mark.usefixtures("can_tier", "stopped")


@pytest.fixture
def stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    """The runtime of every program takes pages out by stops."""
    monkeypatch.setenv("TERRACE_MOVER", "stop")


def ends_well(run: Run) -> None:
    """The program has found everything as it must be, and pages did go down."""
    status = run.conclude()
    report = f"exit status {status}; output {run.lines}; stderr:\n{run.stderr()}"
    if status == SKIPPED:
        pytest.skip(run.lines[-1].removeprefix("SKIP "))
    assert (status, run.lines[-1:]) == (0, ["OK"]), report


@pytest.mark.parametrize("name", HAZARDS)
def test_hazard(sandbox: Sandbox, program: Compiler, name: str) -> None:
    """Every hazard with everything going anywhere within 0.1 s, moves given up on the way."""
    with sandbox.start(program(name), options=TORTURE) as run:
        ends_well(run)
    assert sandbox.sockets() == [], "the session left something behind"


@pytest.mark.parametrize("options", [HARD, TORTURE], ids=["hard", "torture"])
@pytest.mark.parametrize("name", ["waits", "traced", "main_gone"])
def test_stops(sandbox: Sandbox, program: Compiler, name: str, options: tuple[str, ...]) -> None:
    """Calls that wait are not ended by a stop; who else traces the program is left in peace."""
    with sandbox.start(program(name), options=options) as run:
        ends_well(run)
        assert max(int(w["moves_total"]["demoted"]) for w in run.windows()) > 1000


def test_whole_transfers(sandbox: Sandbox, program: Compiler) -> None:
    """A blocking call that had transferred a part when its thread was stopped returned the part."""
    with sandbox.start(program("whole_transfers"), options=TORTURE) as run:
        ends_well(run)
        assert max(int(w["moves_total"]["demoted"]) for w in run.windows()) > 1000


def test_a_stopper_that_is_killed(sandbox: Sandbox, program: Compiler) -> None:
    """No wrong byte and no hang: the program goes on, or ends with a line that says why."""
    over = threading.Event()
    killed = 0

    def kill_children(pid: int) -> None:
        nonlocal killed
        while not over.is_set():
            for child in children_of(pid):
                try:
                    os.kill(child, signal.SIGKILL)
                    killed += 1
                except ProcessLookupError:
                    pass
            time.sleep(0.0002)

    with sandbox.start(program("content"), options=TORTURE) as run:
        line = run.until("WAIT ")
        killer = threading.Thread(target=kill_children, args=(int(line.split()[1]),))
        killer.start()
        try:
            status = run.conclude()
        except AssertionError:
            # It may have ended while it waited for its pages to go down.
            status = run.process.wait(TIMEOUT_S)
        finally:
            over.set()
            killer.join()
        report = f"exit status {status}; output {run.lines}; stderr:\n{run.stderr()}"
        goes_on = (status, run.lines[-1:]) == (0, ["OK"])
        gives_up = "was killed, or got stuck, while it took pages out" in run.stderr()
        assert goes_on or gives_up, report
        assert not any(line.startswith("BAD") for line in run.lines), report
        assert killed > 0, "no stopper was met"
