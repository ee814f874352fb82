"""Fixtures: the binary, compiled programs, a sandbox a test, and a count of what was skipped."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import swapping
from harness import PROGRAMS, Sandbox, terrace_binary

UNPRIVILEGED = Path("/proc/sys/vm/unprivileged_userfaultfd")

# Whoever starts the tests may ignore signals (nohup, a background job of a script). That is handed
# down to every program, and theirs to ignore then. A handler is not, and ignores them here as well.
# (Python's own two are not handed down.)
for number in signal.valid_signals() - {signal.SIGPIPE, signal.SIGXFSZ}:
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, lambda *_: None)

# Tests that set something for the whole machine, or measure it: one after the other, on one worker.
MACHINE_WIDE_FIXTURES = {
    "userfaultfd_for_all", "userfaultfd_for_root", "filesystem", "small_filesystem", "group",
    "swap_file",
}  # fmt: skip
MACHINE_WIDE_FILES = {"test_bench.py", "test_paper.py"}


@pytest.hookimpl(tryfirst=True)  # before xdist looks at the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keeps what concerns the whole machine on one worker (`--dist loadgroup`)."""
    for item in items:
        fixtures = set(getattr(item, "fixturenames", ()))
        if item.path.name in MACHINE_WIDE_FILES or fixtures & MACHINE_WIDE_FIXTURES:
            item.add_marker(pytest.mark.xdist_group("machine"))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Skipped tests are named and counted, so that nobody takes them for passed ones."""
    skipped = terminalreporter.stats.get("skipped", [])
    terminalreporter.write_line(f"skipped: {len(skipped)}")
    for report in skipped:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        terminalreporter.write_line(f"  {report.nodeid}: {reason}")


@pytest.fixture(scope="session")
def terrace() -> Path:
    """The `terrace` binary, with its runtime beside it."""
    binary = terrace_binary()
    if not binary.exists():
        pytest.fail(f"{binary} is missing: run `make`, or set TERRACE_BIN")
    return binary


@pytest.fixture(scope="session")
def can_tier(terrace: Path) -> None:
    """Skips where this user has no userfaultfd; `terrace doctor` says why."""
    answer = subprocess.run(
        [terrace, "doctor"], capture_output=True, text=True, timeout=20, check=False
    )
    if answer.returncode != 0:
        pytest.skip(
            "no tiering on this machine; terrace doctor: " + " ".join(answer.stdout.split())
        )


@pytest.fixture(scope="session")
def programs() -> Iterator[Path]:
    """Where compiled programs go. Open to all, for tests that run as another user."""
    folder = Path(tempfile.mkdtemp(prefix="terrace-programs-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def program(programs: Path) -> Callable[..., Path]:
    """Compiles `programs/NAME.c`, once each."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler; `make test` installs gcc")

    def compile_one(name: str, *flags: str) -> Path:
        binary = programs / "-".join([name, *(flag.strip("-") for flag in flags)])
        if not binary.exists():
            warnings = ["-Wall", "-Wextra", "-Werror"]
            line = [compiler, "-O2", "-g", "-std=gnu17", "-pthread", *warnings, *flags]
            subprocess.run([*line, "-o", binary, PROGRAMS / f"{name}.c"], check=True, timeout=60)
        return binary

    return compile_one


@pytest.fixture
def make_sandbox() -> Iterator[Callable[[int], Sandbox]]:
    """Makes a sandbox for a user; removed after the test."""
    made: list[Path] = []

    def make(uid: int) -> Sandbox:
        # Not pytest's tmp_path, which other users cannot enter and whose name is too long for the
        # 107 bytes that a socket's path may have.
        folder = Path(tempfile.mkdtemp(prefix="terrace-e2e-"))
        made.append(folder)
        sandbox = Sandbox(folder, uid)
        sandbox.runtime_dir.mkdir(mode=0o700)
        if uid != os.geteuid():
            os.chown(folder, uid, -1)
            os.chown(sandbox.runtime_dir, uid, -1)
        return sandbox

    yield make
    for folder in made:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def sandbox(terrace: Path, make_sandbox: Callable[[int], Sandbox]) -> Sandbox:
    """A sandbox for the user who runs the tests."""
    del terrace
    return make_sandbox(os.geteuid())


@pytest.fixture
def nobody(terrace: Path, make_sandbox: Callable[[int], Sandbox]) -> Sandbox:
    """A sandbox for a user without any privilege; only root can become one."""
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    uid = pwd.getpwnam("nobody").pw_uid
    box = make_sandbox(uid)
    may = (
        subprocess.run(
            [terrace, "--version"], user=uid, extra_groups=[], capture_output=True, check=False
        )
        if all(p.stat().st_mode & 0o001 for p in terrace.parents)
        else None
    )
    if may is None or may.returncode != 0:
        pytest.skip(f"nobody cannot run {terrace.name}: a folder above it is closed to others")
    return box


def _with_unprivileged(value: str) -> Iterator[None]:
    try:
        before = UNPRIVILEGED.read_text()
    except FileNotFoundError:
        pytest.skip("this kernel has no vm.unprivileged_userfaultfd")
    try:
        UNPRIVILEGED.write_text(value)
    except OSError as error:
        pytest.skip(f"vm.unprivileged_userfaultfd cannot be set: {error.strerror}")
    try:
        yield
    finally:
        UNPRIVILEGED.write_text(before)


@pytest.fixture
def userfaultfd_for_all(nobody: Sandbox) -> Iterator[None]:
    """vm.unprivileged_userfaultfd = 1 for one test."""
    del nobody
    yield from _with_unprivileged("1")


@pytest.fixture
def userfaultfd_for_root(nobody: Sandbox) -> Iterator[None]:
    """vm.unprivileged_userfaultfd = 0 for one test, and no device that others may open."""
    del nobody
    device = Path("/dev/userfaultfd")
    if device.exists() and device.stat().st_mode & 0o006:
        pytest.skip("/dev/userfaultfd is open to all")
    yield from _with_unprivileged("0")


@pytest.fixture
def swap_file() -> Iterator[swapping.SwapFile]:
    """The machine swaps to a file for one test, and to nothing else."""
    with swapping.added() as file:
        yield file
