"""Runs one program twice, untiered and under torture, and judges both runs.

A program is a function `drive(stage)` that sets up, runs, checks and returns what must be equal in
both runs (a digest, or None). It starts everything through the stage, which knows whether Terrace
goes in front. The stage also has the deadline: when it passes, a watchdog writes down what every
thread of every process was doing and ends them, so that a driver that waits in a socket or a pipe
fails at once. What a driver leaves behind is ended by process id, also what became a daemon: the
runner is the reaper of its orphans (`PR_SET_CHILD_SUBREAPER`).
"""

from __future__ import annotations

import contextlib
import ctypes
import operator
import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness import (
    HARD,
    children_of,
    descendants,
    faults_from_tiers,
    pages_in_tiers,
    read_timeline,
    terrace_binary,
    what_threads_do,
)

SOURCES = Path(__file__).resolve().parent / "sources"
PR_SET_CHILD_SUBREAPER = 36
# A program that outlives its deadline gets this long after the watchdog's signal.
GRACE_S = 20.0
# What a run of each kind may take; the machine may be busy.
TIMEOUT_S = 480.0
MESSAGE_CHARS_MAX = 12000

Command = Sequence[str | Path]


class Wrong(AssertionError):
    """A program did not do what it does without Terrace, or ended badly."""


class Missing(Exception):
    """The program, or something that it needs, is not installed."""


def torture_options(seed: int) -> tuple[str, ...]:
    """The hardest that this `terrace` can do: `--torture` where it has it."""
    answer = subprocess.run(
        [terrace_binary(), "run", "--help"], capture_output=True, text=True, check=False
    )
    return (f"--torture={seed}",) if "--torture" in answer.stdout else HARD


def be_the_reaper() -> None:
    """Orphans of what we start become our children, so that we can find and end them."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "PR_SET_CHILD_SUBREAPER")


@dataclass
class Tiering:
    """What the timeline says about how much was moved."""

    processes: int = 0
    windows: int = 0
    pages_moved: int = 0
    pages_down_most: int = 0
    faults: int = 0


def tiering_of(windows: Sequence[Mapping[str, Any]]) -> Tiering:
    """Adds up all processes of a run.

    A runtime that counts its moves says so in `moves_total`. Without it this is a lower bound:
    pages that are down now and were not, and pages that were down because they faulted.
    """
    total = Tiering(windows=len(windows))
    by_pid: dict[int, list[Mapping[str, Any]]] = {}
    for window in windows:
        by_pid.setdefault(int(window["pid"]), []).append(window)
    total.processes = len(by_pid)
    for of_one in by_pid.values():
        last = of_one[-1]
        total.faults += faults_from_tiers(last)
        total.pages_down_most += max(pages_in_tiers(w) for w in of_one)
        if "pages_moved" in last:
            total.pages_moved += int(last["pages_moved"])
            continue
        down = 0
        for window in of_one:
            faulted = sum(int(tier["faults"]) for tier in window["tiers"][1:])
            total.pages_moved += max(0, pages_in_tiers(window) - down + faulted)
            down = pages_in_tiers(window)
    return total


@dataclass
class Stage:
    """One run of one program: where it lives, and what goes in front of its commands."""

    folder: Path
    options: tuple[str, ...] | None
    deadline: float
    quick: bool
    hung: str = ""
    silence: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    _timelines: list[Path] = field(default_factory=list)
    _running: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def tiered(self) -> bool:
        """Whether Terrace is in front of the program."""
        return self.options is not None

    def left_s(self) -> float:
        """Time until the deadline."""
        return self.deadline - time.monotonic()

    def environment(self, more: Mapping[str, str] | None = None) -> dict[str, str]:
        """What programs get: nothing of the developer's own Terrace, and a home of their own."""
        dropped = ("LD_PRELOAD", "TERRACE_SOCKET", "XDG_STATE_HOME", "PYTHONPATH", "VIRTUAL_ENV")
        kept = {k: v for k, v in os.environ.items() if k not in dropped}
        run = self.folder / "run"
        run.mkdir(mode=0o700, exist_ok=True)
        mine = {"XDG_RUNTIME_DIR": str(run), "TERRACE_RUNTIME_DIR": str(run)}
        mine |= {"HOME": str(self.folder), "LC_ALL": "C.UTF-8"}
        return {**kept, **mine, **(more or {})}

    def wrapped(self, command: Command, *more: str) -> list[str]:
        """The command as this stage runs it."""
        words = [str(word) for word in command]
        if self.options is None:
            return words
        timeline = self.folder / f"timeline-{len(self._timelines)}.jsonl"
        self._timelines.append(timeline)
        line = [str(terrace_binary()), "run", *self.options, *more]
        return [*line, "--timeline", str(timeline), "--", *words]

    def spawn(
        self,
        command: Command,
        *,
        log: Path,
        env: Mapping[str, str] | None = None,
        user: int | None = None,
        stdin: int = subprocess.DEVNULL,
    ) -> subprocess.Popen[bytes]:
        """Starts any command in a process group of its own; output goes to `log`."""
        with log.open("ab") as out:
            process = subprocess.Popen(
                [str(word) for word in command],
                cwd=self.folder,
                env=self.environment(env),
                user=user,
                extra_groups=None if user is None else [],
                stdin=stdin,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._running.append(process)
        return process

    @contextlib.contextmanager
    def server(
        self, command: Command, name: str, *, env: Mapping[str, str] | None = None
    ) -> Iterator[subprocess.Popen[bytes]]:
        """A server under test that must still be there at the end of the block, and is ended."""
        log = self.folder / f"{name}.log"
        process = self.spawn(self.wrapped(command), log=log, env=env)
        yield process
        if process.poll() is not None and process.returncode != 0:
            raise Wrong(f"{name} ended: status {process.returncode}\n{tail(log)}")

    def stop(self, process: subprocess.Popen[bytes], sent: int = signal.SIGTERM) -> int:
        """Asks a server to end. Its exit status."""
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(sent)
        return self.wait(process)

    def wait(self, process: subprocess.Popen[bytes]) -> int:
        """Waits for the end of a process, at most until the deadline."""
        try:
            return process.wait(max(0.1, self.left_s() + GRACE_S))
        except subprocess.TimeoutExpired:
            raise Wrong("does not end even when it is killed") from None

    def run(
        self,
        command: Command,
        *,
        name: str = "program",
        env: Mapping[str, str] | None = None,
        statuses: Sequence[int] = (0,),
        more: Sequence[str] = (),
    ) -> str:
        """Runs a program under test to its end. Its standard output and error, as text."""
        log = self.folder / f"{name}-{len(self._running)}.log"
        process = self.spawn(self.wrapped(command, *more), log=log, env=env)
        status = self.wait(process)
        if status not in statuses:
            raise Wrong(f"{name}: exit status {status}\n{tail(log)}")
        return without_summary(log.read_text(errors="replace"))

    def plain(self, command: Command, *, env: Mapping[str, str] | None = None) -> str:
        """Runs a helper that is not under test: a client, a compiler."""
        answer = subprocess.run(
            [str(word) for word in command],
            cwd=self.folder,
            env=self.environment(env),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=max(1.0, self.left_s()),
            check=False,
        )
        if answer.returncode != 0:
            said = (answer.stdout + answer.stderr)[-2000:]
            raise Wrong(f"{command[0]}: exit status {answer.returncode}\n{said}")
        return answer.stdout

    def timeline(self) -> list[dict[str, Any]]:
        """The windows of all commands of this stage so far."""
        return [window for path in self._timelines for window in read_timeline(path)]

    def wait_down(self, pages: int, timeout_s: float = 60.0) -> None:
        """Waits until so many pages are in tiers in one window from now on. Nothing untiered."""
        if self.options is None:
            return
        seen = len(self.timeline())
        until = min(time.monotonic() + timeout_s, self.deadline)
        while time.monotonic() < until:
            if any(pages_in_tiers(w) >= pages for w in self.timeline()[seen:]):
                return
            time.sleep(0.05)
        self.notes.append(f"no window with {pages} pages in tiers within {timeout_s:.0f} s")

    def everybody(self) -> list[int]:
        """Every process of this stage."""
        mine = [p.pid for p in self._running if p.poll() is None]
        return [d for pid in mine for d in descendants(pid)]

    def logged_bytes(self) -> int:
        """How much the logs of this stage have grown to; 0 while one is just being removed."""
        with contextlib.suppress(OSError):
            return sum(log.stat().st_size for log in self.folder.glob("*.log"))
        return 0

    def watch(self, over: threading.Event, silent_s: float | None = None) -> None:
        """The watchdog: at the deadline it notes what everybody does and ends everything.

        After so long without a word in a log it notes that as well, twice with a while between: a
        program may have limits of its own, and end before ours without saying where it was.
        """
        said, heard, noted = 0, time.monotonic(), 0
        while (left_s := self.left_s()) > 0:
            if over.wait(min(1.0, left_s)):
                return
            says = self.logged_bytes()
            if says != said:
                said, heard, noted = says, time.monotonic(), 0
            silence_s = time.monotonic() - heard
            if silent_s is not None and noted < 2 and silence_s > silent_s + 10 * noted:
                noted += 1
                self.silence.append(
                    f"no word for {silence_s:.0f} s, load {os.getloadavg()[0]:.1f}\n"
                    f"{what_threads_do(self.everybody())}"
                )
        everybody = self.everybody()
        self.hung = f"hang: the deadline passed\n{what_threads_do(everybody)}"
        for pid in everybody:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def end_everything(self) -> None:
        """Ends what this stage started, and what that left behind."""
        for process in self._running:
            for pid in descendants(process.pid) if process.poll() is None else []:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            process.wait()
        until = time.monotonic() + GRACE_S
        while (orphans := children_of(os.getpid())) and time.monotonic() < until:
            for pid in {d for orphan in orphans for d in descendants(orphan)}:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            for pid in orphans:
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)
            time.sleep(0.02)


def tail(log: Path) -> str:
    """The end of a log."""
    return log.read_text(errors="replace")[-3000:]


def without_summary(text: str) -> str:
    """Output without what `terrace` itself says."""
    lines = text.splitlines(keepends=True)
    return "".join(line for line in lines if not line.startswith("terrace: "))


@dataclass(frozen=True)
class Program:
    """A row of the table."""

    name: str
    version: Callable[[], str]
    drive: Callable[[Stage], str | None]
    checked: str
    # `COMMAND:PACKAGE` as tools/need-packages takes them; a command may be a path.
    needs: tuple[str, ...] = ()
    timeout_s: float = TIMEOUT_S
    # After so long without a word it is looked at, for the case that it fails.
    silent_s: float | None = None
    quick: bool = False
    # Whether the results of both runs agree.
    agree: Callable[[str | None, str | None], bool] = operator.eq
    # What Terrace cannot tier: it must say so in one line and run it with --best-effort.
    refused: bool = False


@dataclass
class Outcome:
    """What came out: a row, as JSON has it."""

    name: str
    version: str = ""
    untiered: str = "skipped"
    torture: str = "skipped"
    pages_moved: int = 0
    faults: int = 0
    processes: int = 0
    seconds: float = 0.0
    checked: str = ""
    why: str = ""


def missing(program: Program) -> list[str]:
    """Packages that the program needs and that are not there."""
    pairs = [need.rsplit(":", 1) for need in program.needs]
    return [
        package
        for command, package in pairs
        if not (Path(command).exists() if "/" in command else shutil.which(command))
    ]


def run_stage(
    program: Program, options: tuple[str, ...] | None, *, quick: bool
) -> tuple[str, str, str | None, Tiering]:
    """One run: verdict, why, what must be equal, and how much was moved."""
    # Short: a socket's path may have 107 bytes. Open to other users, as whom some servers run.
    folder = Path(tempfile.mkdtemp(prefix="terrace-compat-"))
    keep = False
    try:
        folder.chmod(0o755)
        stage = Stage(folder, options, time.monotonic() + program.timeout_s, quick)
        verdict, why, digest = drive(program, stage)
        keep = verdict == "fail" and bool(os.environ.get("KEEP"))
        if keep:
            why += f"\nkept: {folder}"
        return verdict, why[:MESSAGE_CHARS_MAX], digest, tiering_of(stage.timeline())
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)


def drive(program: Program, stage: Stage) -> tuple[str, str, str | None]:
    """Runs the driver under the watchdog: verdict, why, and what must be equal."""
    over = threading.Event()
    watchdog = threading.Thread(target=stage.watch, args=(over, program.silent_s), daemon=True)
    watchdog.start()
    digest: str | None = None
    verdict, why = "pass", ""
    try:
        digest = program.drive(stage)
    except Missing as what:
        verdict, why = "skipped", f"missing: {what}"
    except Wrong as what:
        verdict, why = "fail", str(what)
    except Exception:  # noqa: BLE001 - a broken connection is a verdict, with its place
        verdict, why = "fail", traceback.format_exc(limit=-4)
    finally:
        over.set()
        watchdog.join()
        stage.end_everything()
    if stage.hung:
        verdict, why = "fail", f"{stage.hung}\n{why}"
    if verdict == "fail":
        # Behind: what is too long is cut at the end.
        why = "\n".join([why, *stage.silence])
    return verdict, "\n".join(filter(None, [why, *stage.notes])), digest


def difference(plain: str | None, tiered: str | None) -> str:
    """Where two results part, with what is around it."""
    one, two = plain or "", tiered or ""
    at = len(os.path.commonprefix([one, two]))
    around = slice(max(0, at - 100), at + 300)
    return f"differs at {at}: untiered {one[around]!r}, tiered {two[around]!r}"


def run_program(program: Program, options: tuple[str, ...], *, quick: bool) -> Outcome:
    """Both runs of a program, and the verdict."""
    row = Outcome(program.name, checked=program.checked)
    if gone := missing(program):
        row.why = f"not installed: {' '.join(gone)}"
        return row
    row.version = program.version()
    began = time.monotonic()
    row.untiered, row.why, plain, _ = run_stage(program, None, quick=quick)
    if row.untiered != "pass":
        row.seconds = time.monotonic() - began
        return row
    row.torture, row.why, tiered, seen = run_stage(program, options, quick=quick)
    row.seconds = time.monotonic() - began
    row.pages_moved, row.faults, row.processes = seen.pages_moved, seen.faults, seen.processes
    if row.torture == "pass" and not program.agree(plain, tiered):
        row.torture, row.why = "fail", difference(plain, tiered)
    if row.torture == "pass" and program.refused:
        row.torture = "refused"
    elif row.torture == "pass" and row.pages_moved == 0:
        row.torture, row.why = "nothing moved", "the program passed, but no page of it was moved"
    return row
