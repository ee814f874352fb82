"""Memory that the kernel swaps out while it is in tiers, and on its way there.

Beside Terrace the kernel may have a swap file of its own: a page may be in swap at home, in the
slot that it waits in, and in between. `programs/paged_out.c` swaps out what is being moved; a swap
file is added for it, and sometimes taken off meanwhile. Root only.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from harness import HARD, TIMEOUT_S, Sandbox
from swapping import SwapFile

Compiler = Callable[..., Path]

pytestmark = pytest.mark.usefixtures("can_tier")

TORTURE = ("--torture=11",)
TORTURE_MANY = ("--torture=12", "--preset", "tierscape")
# How long pages are swapped out. The longer run met the kernel's fault about one time in three.
LONG_S, SHORT_S = 4, 3


def page_out(
    sandbox: Sandbox, binary: Path, options: tuple[str, ...], seconds: int, *, forks: bool = False
) -> tuple[int, int]:
    """Runs the program. How many of its looks found pages in swap, and how many there were."""
    with sandbox.start(binary, str(seconds), str(int(forks)), options=options) as run:
        run.until("PAGING")
        before = run.windows()[-1]["moves_total"]
        status = run.conclude(TIMEOUT_S)
        report = f"exit status {status}; output {run.lines}; stderr:\n{run.stderr()}"
        assert (status, run.lines[-1:]) == (0, ["OK"]), report
        assert "checksum" not in run.stderr(), report
        after = run.windows()[-1]["moves_total"]
        moved = {kind: after[kind] - before[kind] for kind in ("demoted", "faulted")}
        assert all(n > 1000 for n in moved.values()), f"hardly a page was moved: {moved}"
        words = next(line.split() for line in run.lines if line.startswith("SWAPPED "))
        assert sandbox.sockets() == [], "the session left something behind"
        return int(words[1]), int(words[3])


@pytest.mark.parametrize(
    "options", [TORTURE, TORTURE_MANY, HARD], ids=["torture", "tierscape", "hard"]
)
def test_pages_are_swapped_out_while_they_move(
    sandbox: Sandbox, program: Compiler, swap_file: SwapFile, options: tuple[str, ...]
) -> None:
    """The kernel may move a page and say that it did not (Linux 6.18); it read as zeros."""
    found, looks = page_out(sandbox, program("paged_out"), options, LONG_S)
    assert found > looks * 3 // 4, f"{found} of {looks} looks found pages in swap"
    assert swap_file.is_on()


def test_the_swap_file_comes_and_goes(
    sandbox: Sandbox, program: Compiler, swap_file: SwapFile
) -> None:
    """swapoff reads every page back, into slots and page tables that change meanwhile."""
    with swap_file.coming_and_going() as done:
        found, looks = page_out(sandbox, program("paged_out"), TORTURE, LONG_S)
    assert set(done) == {"on", "off"}, done
    assert done.count("off") >= 3, done
    assert found > looks // 4, f"{found} of {looks} looks found pages in swap"
    assert swap_file.is_on()


def test_children_are_forked_while_pages_are_in_swap(
    sandbox: Sandbox, program: Compiler, swap_file: SwapFile
) -> None:
    """A child is owed pages whose slots are in swap, and has others that are."""
    found, looks = page_out(sandbox, program("paged_out"), TORTURE, SHORT_S, forks=True)
    assert found > looks // 2, f"{found} of {looks} looks found pages in swap"
    assert swap_file.is_on()
