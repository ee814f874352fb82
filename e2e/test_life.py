"""The life of a process, from fork to exit, while its memory is in tiers: a program a hazard.

Each program is also run without Terrace, and must say the same. What it verifies is thus what Linux
promises, not what we do. See `test_hazards.py` for the hazards that came first.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from harness import HARD, Sandbox
from test_hazards import Compiler, face
from untiered import face_both

pytestmark = pytest.mark.usefixtures("can_tier")

# ---- children that libc's fork did not make ------------------------------------------------------

RAW = ["bare", "syscall", "sys_fork", "clone3", "_Fork", "clone"]


@pytest.mark.parametrize("how", RAW)
def test_fork_raw(sandbox: Sandbox, program: Compiler, how: str) -> None:
    """No handler of libc's runs around a fork that is made by hand."""
    face_both(sandbox, program("fork_raw"), how)


@pytest.mark.usefixtures("userfaultfd_for_all")
@pytest.mark.parametrize("how", RAW)
def test_fork_raw_unprivileged(nobody: Sandbox, program: Compiler, how: str) -> None:
    """Nor does the kernel announce it: a child that nobody saw coming must not read zeros."""
    face_both(nobody, program("fork_raw"), how)


def test_fork_wipes(sandbox: Sandbox, program: Compiler) -> None:
    """MADV_WIPEONFORK: a child must not be fed what its parent keeps to itself."""
    face_both(sandbox, program("fork_wipes"))


@pytest.mark.usefixtures("userfaultfd_for_all")
def test_fork_wipes_unprivileged(nobody: Sandbox, program: Compiler) -> None:
    """The same where everything is brought home first."""
    face_both(nobody, program("fork_wipes"))
