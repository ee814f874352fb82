"""Children that live long and hold much get a runtime (docs/forked-children.md)."""

from __future__ import annotations

import time

import pytest

from harness import TIMEOUT_S, Run, Sandbox
from test_hazards import Compiler

pytestmark = pytest.mark.usefixtures("can_tier")

TORTURE = ("--torture=5",)
# Everything cold goes down; a child is looked at after a second.
HARD_SOON = ("--window", "0.2", "--policy", "analytical", "--alpha", "0")


def child_of(run: Run) -> int:
    """The child's id, once its memory is filled."""
    return int(run.until("CHILD ").split()[1])


def pages_moved(run: Run, pid: int) -> int:
    """Pages that were moved in a process so far."""
    return max((w["pages_moved"] for w in run.windows(pid)), default=0)


def finish(run: Run) -> None:
    """Ends the child's rest; it verifies its memory, and its parent says so."""
    assert run.process.stdin is not None
    run.process.stdin.close()
    run.process.stdin = None
    status = run.conclude(TIMEOUT_S)
    assert (status, run.lines[-1:]) == (0, ["OK"]), f"{status} {run.lines}\n{run.stderr()}"


def await_moves(run: Run, pid: int, least: int) -> None:
    """Waits until so many pages of a process were moved."""
    deadline = time.monotonic() + TIMEOUT_S
    while pages_moved(run, pid) < least:
        assert time.monotonic() < deadline, f"{pages_moved(run, pid)} pages\n{run.stderr()}"
        time.sleep(0.1)


@pytest.mark.parametrize("options", [HARD_SOON, TORTURE], ids=["hard", "torture"])
@pytest.mark.parametrize("how", ["plain", "threads", "again"])
def test_a_child_is_tiered(
    sandbox: Sandbox, program: Compiler, how: str, options: tuple[str, ...]
) -> None:
    """Its memory goes down and every byte comes back, beside what it still shares."""
    with sandbox.start(program("offspring"), how, options=options) as run:
        child = child_of(run)
        await_moves(run, child, 10_000)
        finish(run)


@pytest.mark.parametrize(
    ("how", "options"),
    [
        ("filter", TORTURE),
        ("unshare", TORTURE),
        ("plain", (*TORTURE, "--no-forked-children")),
    ],
    ids=["filter", "unshare", "option"],
)
def test_a_child_is_left_alone(
    sandbox: Sandbox, program: Compiler, how: str, options: tuple[str, ...]
) -> None:
    """Where a thread more could harm it, and where nobody wants it."""
    with sandbox.start(program("offspring"), how, options=options) as run:
        child = child_of(run)
        time.sleep(3)
        assert not run.windows(child)
        finish(run)


# ---- programs that are executed in a child -------------------------------------------------------


def test_a_small_program_is_left_alone(sandbox: Sandbox, program: Compiler) -> None:
    """No descriptor of the runtime's in it, no application of its own, and it ends as it should."""
    with sandbox.start(program("executed"), "small", options=HARD_SOON) as run:
        assert (run.conclude(TIMEOUT_S), run.lines[-1:]) == (0, ["OK"]), run.lines


@pytest.mark.parametrize("options", [HARD_SOON, TORTURE], ids=["hard", "torture"])
def test_a_large_program_is_tiered(
    sandbox: Sandbox, program: Compiler, options: tuple[str, ...]
) -> None:
    """Later than the first one, and with every byte."""
    with sandbox.start(program("executed"), "large", options=options) as run:
        child = child_of(run)
        await_moves(run, child, 10_000)
        finish(run)


def test_a_large_program_has_a_runtime_at_once_without_the_wait(
    sandbox: Sandbox, program: Compiler
) -> None:
    """With `--no-forked-children` nobody waits what becomes of it."""
    options = (*HARD_SOON, "--no-forked-children")
    with sandbox.start(program("executed"), "large", options=options) as run:
        child = child_of(run)
        await_moves(run, child, 10_000)
        finish(run)


@pytest.mark.parametrize("name", ["executed", "offspring"])
def test_a_child_that_locks_its_memory_gets_no_runtime(
    sandbox: Sandbox, program: Compiler, name: str
) -> None:
    """One that came later would have its reservations filled."""
    with sandbox.start(program(name), "locked", options=HARD_SOON) as run:
        said = run.until("")
        if said.startswith("SKIP"):
            pytest.skip(said.removeprefix("SKIP "))
        time.sleep(3)
        assert not run.windows(int(said.split()[1]))
        finish(run)
