"""A swap file for the whole machine, for as long as one test takes. Root only."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

SWAPS = Path("/proc/swaps")
SWAP_MIB = 128
# How long the swap file is on, and off, where it comes and goes. Off comes a while after the call:
# every page is read back first.
ON_S, OFF_S = 0.6, 0.2


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


@contextlib.contextmanager
def added() -> Iterator[SwapFile]:
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
