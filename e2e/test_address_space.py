"""Changes of the address space while memory is in tiers: a program a hazard.

Each is also run without Terrace and must say the same, as in `test_life.py`.
"""

from __future__ import annotations

import pytest

from harness import HARD, KERNEL, Sandbox
from test_hazards import Compiler
from untiered import face_both

TORTURE = ("--torture=12",)
BOTH = pytest.mark.parametrize("options", [HARD, TORTURE], ids=["hard", "torture"])

pytestmark = pytest.mark.usefixtures("can_tier")


@BOTH
def test_map_over(sandbox: Sandbox, program: Compiler, options: tuple[str, ...]) -> None:
    """MAP_FIXED unmaps what was there, in the middle of what we follow."""
    face_both(sandbox, program("map_over"), options=options)


@pytest.mark.parametrize("how", ["libc", "syscall", "instruction"])
@BOTH
def test_shm_over(sandbox: Sandbox, program: Compiler, options: tuple[str, ...], how: str) -> None:
    """SHM_REMAP unmaps what was there, and there is no event; nor a shim before an instruction."""
    face_both(sandbox, program("shm_over"), how, options=options)


@BOTH
def test_shm_staged(sandbox: Sandbox, program: Compiler, options: tuple[str, ...]) -> None:
    """What is to come home has none any more, and nobody said so: movers must not wait for it."""
    face_both(sandbox, program("shm_staged"), options=options)


@pytest.mark.usefixtures("userfaultfd_for_all")
def test_shm_over_unprivileged(nobody: Sandbox, program: Compiler) -> None:
    """What was replaced unseen cannot be brought home, and a fork must not wait for it."""
    face_both(nobody, program("shm_over"), "instruction")


@pytest.mark.parametrize("what", ["one", "several", "dontunmap"])
@BOTH
def test_move_parts(
    sandbox: Sandbox, program: Compiler, options: tuple[str, ...], what: str
) -> None:
    """Registration splits a mapping; the kernel moved what lay before it and refused the rest."""
    face_both(sandbox, program("move_parts"), what, options=options)


def test_odd_ranges(sandbox: Sandbox, program: Compiler) -> None:
    """The program names a range, and the kernel refuses it: not after a walk through it."""
    face_both(sandbox, program("odd_ranges"))


@BOTH
def test_refused(sandbox: Sandbox, program: Compiler, options: tuple[str, ...]) -> None:
    """A call that failed has changed nothing, though the kernel announced it."""
    face_both(sandbox, program("refused"), options=options)


@BOTH
def test_grow(sandbox: Sandbox, program: Compiler, options: tuple[str, ...]) -> None:
    """What a mapping grows by is registered with it, of which there is no event."""
    face_both(sandbox, program("grow"), options=options)


@pytest.mark.usefixtures("userfaultfd_for_all")
def test_grow_unprivileged(nobody: Sandbox, program: Compiler) -> None:
    """And kept from children with it."""
    face_both(nobody, program("grow"))


@BOTH
def test_protect_race(sandbox: Sandbox, program: Compiler, options: tuple[str, ...]) -> None:
    """A page comes home into a mapping whose protection changes at that moment."""
    face_both(sandbox, program("protect_race"), options=options)


ADVICE = [
    "cold", "pageout", "populate_read", "populate_write", "collapse", "hugepage", "nohugepage",
    "mergeable", "dontfork", "random", "willneed", "dontdump", "dontneed_locked",
]  # fmt: skip


@pytest.mark.parametrize("which", ADVICE)
def test_advice(sandbox: Sandbox, program: Compiler, which: str) -> None:
    """madvise finds holes where the program has pages."""
    face_both(sandbox, program("advice"), which)


@pytest.mark.parametrize("which", ["populate_write", "collapse", "hugepage"])
def test_advice_under_torture(sandbox: Sandbox, program: Compiler, which: str) -> None:
    """The same while everything moves."""
    face_both(sandbox, program("advice"), which, options=TORTURE)


def test_guards(sandbox: Sandbox, program: Compiler) -> None:
    """A guard drops what was there; when it is removed the page must read as zeros."""
    face_both(sandbox, program("advice"), "guard")


def test_advised(sandbox: Sandbox, program: Compiler) -> None:
    """Advice from another process (process_madvise) comes without a thread of ours."""
    face_both(sandbox, program("advised"))


@pytest.mark.parametrize("which", ["numa", "thp", "mlock2", "pkeys"])
def test_policies(sandbox: Sandbox, program: Compiler, which: str) -> None:
    """Policies split mappings and forbid moves; the bytes stay."""
    face_both(sandbox, program("policies"), which)


def test_own_uffd(sandbox: Sandbox, program: Compiler) -> None:
    """A range has one userfaultfd: the program's, if it was first."""
    face_both(sandbox, program("own_uffd"))


def test_shared_stays(sandbox: Sandbox, program: Compiler) -> None:
    """Shared memory is not ours to take."""
    face_both(sandbox, program("shared_stays"))


@pytest.mark.skipif(KERNEL < (6, 7), reason="without PAGEMAP_SCAN such a mapping is not looked at")
def test_giant(sandbox: Sandbox, program: Compiler) -> None:
    """Address space is free: 2048 pages in 1 TiB must not cost a table for each GiB."""
    with sandbox.start(program("giant")) as run:
        status = run.conclude()
        assert (status, run.lines[-1:]) == (0, ["OK"]), f"{run.lines}\n{run.stderr()}"
        runtime_mib = max(int(w["runtime_bytes"]) for w in run.windows()) >> 20
        # A record and a leaf for each region with a page in it, and words for few of them.
        assert runtime_mib < 10, f"the runtime took {runtime_mib} MiB"


def test_scattered(sandbox: Sandbox, program: Compiler) -> None:
    """Small pieces far apart, as a JavaScript heap has them, cost little more than dense memory."""
    with sandbox.start(program("scattered")) as run:
        status = run.conclude()
        assert (status, run.lines[-1:]) == (0, ["OK"]), f"{run.lines}\n{run.stderr()}"
        runtime_mib = max(int(w["runtime_bytes"]) for w in run.windows()) / (1 << 20)
        # A thousand records, each with the words of 64 pages and nodes of its own: 2 KiB a piece.
        assert runtime_mib < 8, f"the runtime took {runtime_mib:.1f} MiB to follow 250 MiB"
