"""A program finds its signals as it would without `terrace`, and none sent to `terrace` is lost."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from harness import Sandbox, terrace_binary

Compiler = Callable[..., Path]

pytestmark = pytest.mark.usefixtures("can_tier")


def after(sandbox: Sandbox, trap: str, *command: str | Path) -> subprocess.CompletedProcess[str]:
    """Runs a command as a shell does that has set signals aside."""
    return subprocess.run(
        ["sh", "-c", f'{trap}; exec "$@"', "sh", *command],
        cwd=sandbox.folder,
        env=sandbox.environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )


@pytest.mark.parametrize("trap", [":", "trap '' HUP INT PIPE CHLD", "trap '' TERM QUIT"])
def test_ignored_signals_stay_ignored(sandbox: Sandbox, trap: str) -> None:
    """`nohup terrace run -- server` died of the SIGHUP that nohup is there for, and so did it."""
    look = ["grep", "-E", "^Sig(Blk|Ign)", "/proc/self/status"]
    without = after(sandbox, trap, *look).stdout
    under = after(sandbox, trap, terrace_binary(), "run", "-q", "--", *look)
    assert (under.returncode, under.stdout) == (0, without), under.stderr


def test_sighup_ends_nothing_under_nohup(sandbox: Sandbox) -> None:
    """Neither `terrace`, with which the planner would go, nor the program."""
    script = "trap 'exit 42' TERM; echo UP; while :; do sleep 0.1; done"
    run = subprocess.Popen(
        ["nohup", terrace_binary(), "run", "--", "sh", "-c", script],
        cwd=sandbox.folder,
        env=sandbox.environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    with run:
        assert run.stdout is not None
        assert run.stdout.readline() == "UP\n"
        run.send_signal(signal.SIGHUP)
        time.sleep(0.3)
        assert run.poll() is None
        run.send_signal(signal.SIGTERM)
        assert run.wait(20) == 42
    assert sandbox.sockets() == []


def test_exit_status_where_nobody_waits_for_children(sandbox: Sandbox, program: Compiler) -> None:
    """Where SIGCHLD is ignored the kernel keeps no exit status."""
    run = (terrace_binary(), "run", "--", program("exit_code"), "7")
    answer = after(sandbox, "trap '' CHLD", *run)
    assert (answer.returncode, answer.stdout) == (7, "STARTED\n"), answer.stderr


def test_an_early_sigterm_is_not_swallowed(sandbox: Sandbox) -> None:
    """A service manager that changes its mind at once must not wait for its time limit."""
    for delay_ms in range(0, 40, 2):
        with subprocess.Popen(
            [terrace_binary(), "run", "-q", "--", "sleep", "3"],
            cwd=sandbox.folder,
            env=sandbox.environment(),
            stdin=subprocess.DEVNULL,
        ) as run:
            time.sleep(delay_ms / 1000)
            run.send_signal(signal.SIGTERM)
            # By its own default action before there was anything to end.
            ends = (-signal.SIGTERM, 128 + signal.SIGTERM)
            assert run.wait(20) in ends, f"after {delay_ms} ms"
    assert sandbox.sockets() == []
