"""`terrace run --torture`: that it is what it says, and the hazards of `test_hazards.py` under it.

To run one: `pytest e2e/test_torture.py -k fork_reads`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from harness import SKIPPED, Sandbox

Compiler = Callable[..., Path]

pytestmark = pytest.mark.usefixtures("can_tier")

TORTURE = ("--torture=7",)
TORTURE_MANY = ("--torture=8", "--preset", "tierscape")


def test_torture_says_what_it_does_and_does_it(sandbox: Sandbox, program: Compiler) -> None:
    """Nobody shall wonder why a program is slow; every kind of move happens, and is counted."""
    options = ("--quiet", *TORTURE_MANY)
    with sandbox.start(program("threads"), options=options) as run:
        status = run.conclude()
        assert (status, run.lines[-1:]) == (0, ["OK"]), f"{run.lines}\n{run.stderr()}"
        assert "torture run" in run.stderr()
        assert "--torture=8 repeats it" in run.stderr()
        last = run.windows()[-1]
        assert last["policy"] == "torture"
        assert "seed 8" in last["plan"]["why"]
        moves = last["moves_total"]
        kinds = ("demoted", "migrated", "promoted", "faulted")
        assert all(int(moves[kind]) > 1000 for kind in (*kinds, "given_up")), moves
        assert last["pages_moved"] == sum(int(moves[kind]) for kind in kinds)
        assert last["faults_total"] > 1000
        # 0.1 s each, and the machine has other things to do.
        assert last["t_s"] / last["window"] < 0.4


def test_torture_makes_up_a_seed(sandbox: Sandbox, program: Compiler) -> None:
    """Without a seed each run is another; the word behind it is the program's."""
    seeds = set()
    for _ in range(2):
        result = sandbox.terrace("run", "--torture", "--", program("exit_code"), "0")
        line = next(line for line in result.stderr.splitlines() if "torture run" in line)
        seeds.add(line.rpartition("--torture=")[2].split()[0])
    assert len(seeds) == 2, seeds
    assert "0" not in seeds


def test_dontneed_fault(sandbox: Sandbox, program: Compiler) -> None:
    """A fault read together with the drop of its page was served first, and the drop undone."""
    with sandbox.start(program("dontneed_fault"), options=TORTURE) as run:
        status = run.conclude()
        assert (status, run.lines[-1:]) == (0, ["OK"]), f"{run.lines}\n{run.stderr()}"


HAZARDS = [
    "touch", "content", "threads", "same_word", "heap", "brk_shrinks",
    "fork_reads", "fork_unmaps", "fork_refills", "fork_remaps", "fork_fork", "fork_two",
    "fork_ends", "spawn", "exec", "thread_churn",
    "unmap", "remap", "remap_race", "dontneed", "dontneed_race", "dontneed_churn", "free_lazily",
    "protect", "lock", "lock_all", "paged_out", "map_churn", "holes", "many_maps",
    "syscalls", "peer_reads", "futex", "altstack", "stop",
]  # fmt: skip


@pytest.mark.parametrize("options", [TORTURE, TORTURE_MANY], ids=["auto", "tierscape"])
@pytest.mark.parametrize("name", HAZARDS)
def test_hazard_under_torture(
    sandbox: Sandbox, program: Compiler, name: str, options: tuple[str, ...]
) -> None:
    """Every hazard with everything going anywhere within 0.1 s, moves given up on the way."""
    with sandbox.start(program(name), options=options) as run:
        status = run.conclude()
        report = f"exit status {status}; output {run.lines}; stderr:\n{run.stderr()}"
        if status == SKIPPED:
            pytest.skip(run.lines[-1].removeprefix("SKIP "))
        assert (status, run.lines[-1:]) == (0, ["OK"]), report
        assert sandbox.sockets() == [], "the session left something behind"
