"""What several drivers need: versions, compilers, free ports, waiting."""

from __future__ import annotations

import re
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from compat.runner import SOURCES, Command, Stage, Wrong


def version_of(*command: str) -> Callable[[], str]:
    """The first thing that looks like a version in what a command says of itself."""

    def ask() -> str:
        answer = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
        said = answer.stdout + answer.stderr
        found = re.search(r"\d+\.\d+[\w.+-]*", said)
        return found.group() if found else said.strip().split("\n")[0][:40]

    return ask


def package_version(package: str) -> Callable[[], str]:
    """The version of an installed Debian package, for libraries that say nothing themselves."""

    def ask() -> str:
        answer = subprocess.run(
            ["dpkg-query", "-W", "-f", "${Version}", package],
            capture_output=True,
            text=True,
            check=False,
        )
        return answer.stdout.strip() or "unknown"

    return ask


def compile_c(stage: Stage, name: str, *flags: str) -> Path:
    """Compiles one of our C programs."""
    binary = stage.folder / name
    stage.plain(["gcc", "-O2", "-g", "-pthread", "-o", binary, SOURCES / f"{name}.c", *flags])
    return binary


def ok_line(output: str) -> str:
    """The `OK checksum` line of one of our own programs; its own complaint otherwise."""
    for line in output.splitlines():
        if line.startswith("OK "):
            return line
    raise Wrong(f"no OK: {output[-2000:]}")


def free_port() -> int:
    """A TCP port that nobody has now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def wait_for(
    stage: Stage,
    what: str,
    test: Callable[[], bool],
    process: subprocess.Popen[bytes] | None = None,
) -> None:
    """Polls until `test` holds, the process that should make it so is gone, or time is over."""
    while not test():
        if process is not None and process.poll() is not None:
            raise Wrong(f"waited in vain, it ended: {what}, status {process.returncode}")
        if stage.left_s() < 0 or stage.hung:
            raise Wrong(f"waited in vain: {what}")
        time.sleep(0.05)


def succeeds(command: Command) -> bool:
    """Whether a command ends with status 0, for waiting."""
    answer = subprocess.run(
        [str(word) for word in command],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=60,
        check=False,
    )
    return answer.returncode == 0


def log_lines(lines: int) -> bytes:
    """Text that compresses about as well as logs do."""
    verbs = ("accepted", "rejected", "delayed", "forwarded", "answered", "retried", "closed")
    x, out = 1, []
    for n in range(lines):
        x = x * 48271 % 2147483647
        out.append(
            f"2024-04-05T{n % 24:02}:{n % 60:02} {x:08x}{x * 7 & 0xFFFFFF:06x} "
            f"request {verbs[x % 7]} in {x % 977} us"
        )
    return "\n".join(out).encode()
