"""Runs programs under Terrace and waits until their memory is in tiers.

A program talks to the test by lines on its standard output (`programs/hazard.h`): `WAIT PID PAGES`
is answered, with an empty line on its standard input, once the timeline shows that many pages of
that process in tiers; `OK` and `BAD why` are its verdict. Everything has a deadline, and a hang is
a failure that says what each thread of the program was doing.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parent.parent
PROGRAMS = Path(__file__).resolve().parent / "programs"

# How many times longer everything may take: for machines that are emulated.
PATIENCE = float(os.environ.get("TERRACE_PATIENCE", "1"))
# A hang is a failure. The slowest program takes about 15 s on two cores that others use as well.
TIMEOUT_S = 90.0 * PATIENCE
# How long a program may wait for its pages to go down. They take about a second.
DEMOTION_TIMEOUT_S = 40.0 * PATIENCE
POLL_S = 0.03
# Everything that can go down goes down, at once: the smallest useful window and no budget.
HARD: tuple[str, ...] = ("--window", "0.2", "--policy", "analytical", "--alpha", "0")
# Pages are taken out of programs with their threads stopped, as on kernels without UFFDIO_MOVE.
STOPS_THREADS = os.environ.get("TERRACE_MOVER") == "stop"
KERNEL = tuple(int(n) for n in os.uname().release.split("-")[0].split(".")[:2])
# Exit status by which a program says that this machine cannot show its hazard.
SKIPPED = 77


class Hang(AssertionError):
    """Something took longer than it can take."""


def terrace_binary() -> Path:
    """The binary under test: TERRACE_BIN, else the release build of this repository."""
    default = REPOSITORY / "target/release/terrace"
    return Path(os.environ.get("TERRACE_BIN", default)).absolute()


def read_timeline(path: Path) -> list[dict[str, Any]]:
    """All complete lines of a timeline; none if there is no file yet."""
    with contextlib.suppress(FileNotFoundError):
        text = path.read_text()
        return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]
    return []


def pages_in_tiers(window: Mapping[str, Any]) -> int:
    """Pages outside DRAM at the end of a window."""
    return sum(int(tier["pages"]) for tier in window["tiers"][1:])


def faults_from_tiers(window: Mapping[str, Any]) -> int:
    """Faults served from compressed tiers since the start of the application."""
    return sum(int(tier["faults_total"]) for tier in window["tiers"][1:])


def wait_until(what: str, test: Callable[[], bool], timeout_s: float = 10.0) -> None:
    """Polls until `test` holds."""
    deadline = time.monotonic() + timeout_s
    while not test():
        if time.monotonic() > deadline:
            raise Hang(f"not within {timeout_s:.0f} s: {what}")
        time.sleep(POLL_S)


def areas_of(run: Run) -> tuple[dict[str, int], int]:
    """What a program with areas says of them: addresses by name, and its process id."""
    areas = {}
    while not (line := run.until("")).startswith("PID"):
        _, name, address = line.split()
        areas[name] = int(address, 16)
    return areas, int(line.split()[1])


def unmount(folder: Path) -> None:
    """Unmounts; the last process of a program may still be ending."""

    def is_unmounted() -> bool:
        return subprocess.run(["umount", folder], check=False, timeout=30).returncode == 0

    wait_until(f"{folder} can be unmounted", is_unmounted, 30.0)


def is_alive(pid: int) -> bool:
    """Whether a process exists and is no zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


def stop(pid: int) -> None:
    """SIGSTOP, until every thread of a process has stopped.

    Not at once: a thread may wait in the kernel for the runtime's pager, which has stopped first
    (for a page in a system call, or for the pager to hear of a mapping that goes).
    """

    def has_stopped() -> bool:
        stats = [stat.read_text() for stat in Path(f"/proc/{pid}/task").glob("*/stat")]
        return all(stat.rpartition(")")[2].split()[0] == "T" for stat in stats)

    def is_caught() -> bool:
        os.kill(pid, signal.SIGSTOP)
        deadline = time.monotonic() + 0.5
        while time.monotonic() < deadline:
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                if has_stopped():
                    return True
            time.sleep(POLL_S)
        os.kill(pid, signal.SIGCONT)
        return False

    wait_until("every thread has stopped", is_caught, 30.0)


def group_of(pid: int) -> int:
    """Process group of a process; 0 if it has ended."""
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return 0


def children_of(pid: int) -> list[int]:
    """Direct children of a process."""
    try:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
        lists = [(task / "children").read_text() for task in tasks]
    except (FileNotFoundError, ProcessLookupError):
        return []
    return [int(child) for line in lists for child in line.split()]


def descendants(pid: int) -> list[int]:
    """A process and everything below it."""
    return [pid] + [d for child in children_of(pid) for d in descendants(child)]


def what_threads_do(pids: Sequence[int]) -> str:
    """One line a thread: name, state, CPU time, system call, kernel functions. For failures."""
    lines = []
    for pid in pids:
        for task in sorted(Path(f"/proc/{pid}/task").glob("*")):
            with contextlib.suppress(OSError):
                name = (task / "comm").read_text().strip()
                stat = (task / "stat").read_text().rpartition(")")[2].split()
                cpu_s = (int(stat[11]) + int(stat[12])) / os.sysconf("SC_CLK_TCK")
                where = (task / "wchan").read_text()
                # (The rest is for root, and for what still has memory.)
                with contextlib.suppress(OSError):
                    call = (task / "syscall").read_text().split()[0]
                    frames = (task / "stack").read_text().splitlines()[:6]
                    functions = [frame.split()[-1].partition("+")[0] for frame in frames]
                    where = " ".join([call, *functions]) if functions else f"{call} {where}"
                lines.append(f"  {pid}/{task.name} {name:16} {stat[0]} {cpu_s:.2f} s {where}")
    return "\n".join(lines)


@dataclass
class Run:
    """One `terrace run` in progress."""

    process: subprocess.Popen[bytes]
    timeline: Path
    errors: Path
    lines: list[str] = field(default_factory=list)
    # On a torture run pages come home at random all the time.
    wait_share: float = 1.0
    _partial: bytes = b""

    @property
    def pid(self) -> int:
        """Process id of `terrace`."""
        return self.process.pid

    def stderr(self) -> str:
        """What `terrace` and the program wrote to standard error so far."""
        return self.errors.read_text(errors="replace")

    def windows(self, pid: int | None = None) -> list[dict[str, Any]]:
        """The timeline so far, of one application if `pid` is given."""
        return [w for w in read_timeline(self.timeline) if pid is None or w["pid"] == pid]

    def read_line(self, deadline: float) -> str | None:
        """The next line of the program's output; None at its end."""
        assert self.process.stdout is not None
        fd = self.process.stdout.fileno()
        with selectors.DefaultSelector() as selector:
            selector.register(fd, selectors.EVENT_READ)
            while b"\n" not in self._partial:
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    raise self.hang("no output")
                chunk = os.read(fd, 65536)
                if not chunk:
                    return None
                self._partial += chunk
        line, _, self._partial = self._partial.partition(b"\n")
        self.lines.append(line.decode(errors="replace"))
        return self.lines[-1]

    def hang(self, what: str) -> Hang:
        """An error that says what everybody was doing."""
        last = self.windows()[-1:]
        return Hang(
            f"hang: {what}\noutput: {self.lines}\nstderr: {self.stderr()}\n"
            f"threads:\n{what_threads_do(descendants(self.pid))}\n"
            f"last window: {json.dumps(last)[:1500]}"
        )

    def answer_wait(self, line: str) -> None:
        """Waits for what a `WAIT PID PAGES` line asks for, and lets the program go on."""
        _, pid, pages = line.split()
        needed = int(int(pages) * self.wait_share)
        # Only windows that end from now on count: what was demoted before may be back.
        seen = len(self.windows(int(pid)))

        def is_down() -> bool:
            if self.process.poll() is not None:
                raise AssertionError(f"terrace ended, program waiting: {self.stderr()}")
            new = self.windows(int(pid))[seen:]
            return any(pages_in_tiers(window) >= needed for window in new)

        try:
            wait_until(f"{pages} pages of {pid} in tiers", is_down, DEMOTION_TIMEOUT_S)
        except Hang as hang:
            raise self.hang(str(hang)) from None
        assert self.process.stdin is not None
        self.process.stdin.write(b"\n")
        self.process.stdin.flush()

    def until(self, start: str, timeout_s: float = TIMEOUT_S) -> str:
        """Answers the program's waits until it says a line that begins with `start`."""
        deadline = time.monotonic() + timeout_s
        while (line := self.read_line(deadline)) is not None:
            if line.startswith("WAIT "):
                self.answer_wait(line)
            if line.startswith(start):
                return line
        raise AssertionError(f"ended without {start!r}: {self.lines}\n{self.stderr()}")

    def conclude(self, timeout_s: float = TIMEOUT_S) -> int:
        """Answers the program's waits until its output ends. The exit status of `terrace`."""
        deadline = time.monotonic() + timeout_s
        while (line := self.read_line(deadline)) is not None:
            if line.startswith("WAIT "):
                self.answer_wait(line)
        try:
            return self.process.wait(max(1.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            raise self.hang("terrace does not end") from None


@dataclass(frozen=True)
class Sandbox:
    """A directory that one test and the user it runs as may use."""

    folder: Path
    uid: int

    @property
    def runtime_dir(self) -> Path:
        """Stands in for the user's runtime directory, so that tests do not see each other."""
        return self.folder / "run"

    def sockets(self) -> list[Path]:
        """What sessions have in the runtime directory now."""
        return sorted(p for p in self.runtime_dir.rglob("*") if not p.is_dir())

    def environment(self) -> dict[str, str]:
        """The environment of this test's commands."""
        # The developer's own runtime and saved tiers must play no part.
        dropped = ("LD_PRELOAD", "TERRACE_SOCKET", "XDG_STATE_HOME")
        kept = {k: v for k, v in os.environ.items() if k not in dropped}
        here = str(self.runtime_dir)
        # The second keeps `status` from looking elsewhere as well.
        mine = {"XDG_RUNTIME_DIR": here, "TERRACE_RUNTIME_DIR": here, "HOME": str(self.folder)}
        return {**kept, **mine}

    def terrace(
        self, *arguments: str | Path, timeout_s: float = 20.0
    ) -> subprocess.CompletedProcess[str]:
        """Runs a `terrace` command to its end."""
        return subprocess.run(
            [terrace_binary(), *arguments],
            cwd=self.folder,
            env=self.environment(),
            user=self.uid,
            extra_groups=None if self.uid == os.geteuid() else [],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )

    @contextlib.contextmanager
    def start(self, *command: str | Path, options: Sequence[str] = HARD) -> Iterator[Run]:
        """`terrace run OPTIONS -- COMMAND` in a session of its own that ends with the block."""
        timeline, errors = self.folder / "timeline.jsonl", self.folder / "stderr.txt"
        timeline.unlink(missing_ok=True)
        line = [terrace_binary(), "run", *options, "--timeline", timeline, "--", *command]
        with errors.open("wb") as stderr:
            process = subprocess.Popen(
                line,
                cwd=self.folder,
                env=self.environment(),
                user=self.uid,
                extra_groups=None if self.uid == os.geteuid() else [],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                start_new_session=True,
            )
        try:
            is_torture = any(option.startswith("--torture") for option in options)
            yield Run(process, timeline, errors, wait_share=0.5 if is_torture else 1.0)
        finally:
            end_session(process)


def end_session(process: subprocess.Popen[bytes]) -> None:
    """Ends what is left of a session that we started: its process group, by id, and no other."""
    members = descendants(process.pid)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(20)
    # Giving a large memory back takes a process a while, during which it is still to be seen.
    of_group = [pid for pid in members if group_of(pid) == process.pid]
    wait_until("its processes end", lambda: not any(map(is_alive, of_group)), 20)
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with contextlib.suppress(BrokenPipeError):
                pipe.close()
