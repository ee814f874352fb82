"""Memory that the kernel swaps out while it is in tiers, and on its way there.

Beside Terrace the kernel may have a swap file of its own: a page may be in swap at home, in the
slot that it waits in, and in between. `programs/paged_out.c` swaps out what is being moved; a swap
file is added for it, and sometimes taken off meanwhile. Root only.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from harness import HARD, TIMEOUT_S, Sandbox

Compiler = Callable[..., Path]

pytestmark = [pytest.mark.usefixtures("can_tier"), pytest.mark.xdist_group("machine")]

SWAPS = Path("/proc/swaps")
SWAP_MIB = 128
TORTURE = ("--torture=11",)
TORTURE_MANY = ("--torture=12", "--preset", "tierscape")
# How long the swap file is on, and off, where it comes and goes. Off comes a while after the call:
# every page is read back first.
ON_S, OFF_S = 0.6, 0.2
# How long pages are swapped out. The longer run met the kernel's fault about one time in three.
LONG_S, SHORT_S = 4, 3


def swap_files() -> list[str]:
    """What the machine swaps to: the first column. The others change as it does."""
    return sorted(line.split()[0] for line in SWAPS.read_text().splitlines()[1:])


@dataclass(frozen=True)
class SwapFile:
    """A file that the kernel can swap to."""

    file: Path

    def is_on(self) -> bool:
        """Whether the kernel swaps to it now."""
        return str(self.file) in swap_files()

    def switch(self, *, on: bool) -> str:
        """Switches it on or off, where it is not so already. What the kernel had against it."""
        if self.is_on() == on:
            return ""
        command = "swapon" if on else "swapoff"
        done = subprocess.run(
            [command, self.file], capture_output=True, text=True, timeout=60, check=False
        )
        return "" if done.returncode == 0 else done.stderr.strip() or f"{command} failed"

    @contextlib.contextmanager
    def coming_and_going(self) -> Iterator[list[str]]:
        """Switches it off and on until the block ends, and then on. Yields what was done so far."""
        done: list[str] = []
        end = threading.Event()

        def flip() -> None:
            on = True
            while not end.wait(ON_S if on else OFF_S):
                on = not on
                done.append(self.switch(on=on) or ("on" if on else "off"))

        flipper = threading.Thread(target=flip)
        flipper.start()
        try:
            yield done
        finally:
            end.set()
            flipper.join()
            self.switch(on=True)


@pytest.fixture
def swap_file() -> Iterator[SwapFile]:
    """The machine swaps to a file for one test, and to nothing else."""
    if os.geteuid() != 0:
        pytest.skip("only root can add a swap file")
    if not SWAPS.exists():
        pytest.skip("this kernel has no swap")
    if shutil.which("mkswap") is None or shutil.which("swapon") is None:
        pytest.skip("no mkswap and swapon (util-linux)")
    before = swap_files()
    if before:
        pytest.skip(f"this machine swaps already, to {before[0]}")
    # Not in /tmp, which may be in memory.
    folder = Path(tempfile.mkdtemp(prefix="terrace-swap-", dir="/var/tmp"))
    file = SwapFile(folder / "swap")
    try:
        file.file.touch(0o600)
        try:
            # Blocks that were written: not every filesystem swaps to what is only reserved.
            with file.file.open("wb") as out:
                for _ in range(SWAP_MIB):
                    out.write(bytes(1 << 20))
            subprocess.run(["mkswap", file.file], check=True, capture_output=True, timeout=60)
        except (OSError, subprocess.CalledProcessError) as error:
            pytest.skip(f"no room for a swap file: {error}")
        if refusal := file.switch(on=True):
            pytest.skip(f"swapon was refused: {refusal}")
        yield file
    finally:
        refusal = file.switch(on=False)
        if not refusal:
            shutil.rmtree(folder)
        assert swap_files() == before, f"swapoff {file.file}: {refusal}"


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
