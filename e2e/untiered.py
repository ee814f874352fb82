"""The same program with and without Terrace: it must say the same."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from harness import HARD, SKIPPED, TIMEOUT_S, Sandbox

# Lines that tell what happened on the way, and may differ.
ASIDES = ("WAIT ", "NOTE ")


def verdict(lines: list[str]) -> list[str]:
    """What a program said, without its asides."""
    return [line for line in lines if not line.startswith(ASIDES)]


def run_untiered(sandbox: Sandbox, *command: str | Path) -> tuple[int, list[str]]:
    """Runs a hazard without Terrace; its waits are answered at once."""
    done = subprocess.run(
        [str(part) for part in command],
        cwd=sandbox.folder,
        env=sandbox.environment(),
        user=sandbox.uid,
        extra_groups=None,
        input="\n" * 1000,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    # As a shell says it, and `terrace run` does.
    status = done.returncode if done.returncode >= 0 else 128 - done.returncode
    return status, done.stdout.splitlines()


def face_both(
    sandbox: Sandbox,
    *command: str | Path,
    options: tuple[str, ...] = HARD,
    status: int = 0,
    verdicts: tuple[str, ...] = ("OK",),
) -> str:
    """Runs a hazard without and with Terrace. Returns what stood on standard error with it."""
    plain, lines = run_untiered(sandbox, *command)
    if plain == SKIPPED:
        pytest.skip(lines[-1].removeprefix("SKIP "))
    assert (plain, verdict(lines)) == (status, list(verdicts)), f"untiered: {plain} {lines}"
    with sandbox.start(*command, options=options) as run:
        tiered = run.conclude(TIMEOUT_S)
        report = f"exit status {tiered}; output {run.lines}; stderr:\n{run.stderr()}"
        assert (tiered, verdict(run.lines)) == (status, list(verdicts)), report
        assert "checksum" not in run.stderr(), report
        assert "panicked" not in run.stderr(), report
        return run.stderr()
