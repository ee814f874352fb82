"""Where our own lines go may be a full disk, or a reader that has left."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import pytest

from harness import Sandbox, terrace_binary

Compiler = Callable[..., Path]

tiered = pytest.mark.usefixtures("can_tier")


def start(sandbox: Sandbox, *command: str | Path, **how: Any) -> subprocess.Popen[bytes]:
    """A command in the sandbox, with outputs of the test's choice."""
    how = {"stdin": subprocess.DEVNULL, "cwd": sandbox.folder, **how}
    return subprocess.Popen(command, env=sandbox.environment(), user=sandbox.uid, **how)


def full() -> IO[bytes]:
    """A file on a disk without room."""
    return Path("/dev/full").open("wb")


# ---- what cannot be written ----------------------------------------------------------------------


@tiered
@pytest.mark.parametrize("gone", ["full disk", "no reader"])
def test_a_log_that_cannot_be_written_costs_no_exit_status(
    sandbox: Sandbox, program: Compiler, gone: str
) -> None:
    """`terrace` ended by SIGABRT then, and the program had no planner from there on."""
    if gone == "full disk":
        stderr: IO[bytes] = full()
    else:
        reader, writer = os.pipe()
        os.close(reader)
        stderr = os.fdopen(writer, "wb")
    # A torture run has a line of its own, before the program starts.
    line = (terrace_binary(), "run", "--torture=7", "--", program("exit_code"), "7")
    with stderr, start(sandbox, *line, stderr=stderr, stdout=subprocess.PIPE) as run:
        assert run.communicate(timeout=20)[0] == b"STARTED\n"
    assert run.returncode == 7
    assert sandbox.sockets() == []


@pytest.mark.parametrize("verb", [["status"], ["doctor"], ["tiers", "list"]])
def test_an_answer_that_cannot_be_written_is_an_error(sandbox: Sandbox, verb: list[str]) -> None:
    """A script that keeps the answer must hear that it has none; nobody needs a backtrace."""
    pipe = subprocess.PIPE
    with (
        full() as stdout,
        start(sandbox, terrace_binary(), *verb, stdout=stdout, stderr=pipe) as it,
    ):
        said = it.communicate(timeout=20)[1].decode()
    assert it.returncode == 1
    assert said.startswith("terrace: standard output cannot be written: No space left"), said
    assert said.count("\n") == 1
