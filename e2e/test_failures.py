"""What fails around a program: limits, devices, threads that get no processor time.

The contract: the program goes on with every byte intact, or ends at once with one clear line. It
never goes on with wrong bytes and never hangs.
"""

from __future__ import annotations

import contextlib
import functools
import os
import resource
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from harness import (
    HARD,
    Hang,
    Run,
    Sandbox,
    faults_from_tiers,
    is_alive,
    pages_in_tiers,
    stop,
    unmount,
    wait_until,
)
from planner import Planner, plan
from swapping import SwapFile
from test_hazards import face
from test_media import TIERS, options_for
from test_planner import conclude, door_of, orphan, start_pid

Compiler = Callable[..., Path]

pytestmark = pytest.mark.usefixtures("can_tier")

GROUPS = Path("/sys/fs/cgroup")
MIB = 1 << 20


def faults_now(run: Run, pid: int) -> int:
    """Faults from tiers so far."""
    return faults_from_tiers(run.windows(pid)[-1])


def goes_on(run: Run, pid: int) -> None:
    """Windows close and faults are served again, and all that it read to its end is right."""
    seen = len(run.windows(pid))
    wait_until("windows again", lambda: len(run.windows(pid)) > seen + 3)
    faults = faults_now(run, pid)
    wait_until("faults again", lambda: faults_now(run, pid) > faults)
    conclude(run, pid)
    assert run.conclude() == 0


# ---- memory limits -------------------------------------------------------------------------------


class Group:
    """A control group for memory, of either version."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.is_old = (folder / "memory.limit_in_bytes").exists()

    def set_limit(self, limit: int | None) -> None:
        """Most bytes the group may have."""
        name, none = ("memory.limit_in_bytes", "-1") if self.is_old else ("memory.max", "max")
        (self.folder / name).write_text(none if limit is None else str(limit))

    def usage(self) -> int:
        """Bytes that it has."""
        name = "memory.usage_in_bytes" if self.is_old else "memory.current"
        return int((self.folder / name).read_text())

    def hem_in(self, spare: int) -> None:
        """Allows little more than there is in use."""
        for _ in range(200):
            with contextlib.suppress(OSError):
                self.set_limit((self.usage() + spare) // 4096 * 4096)
                return
            time.sleep(0.01)
        raise AssertionError("the limit is always too low already")

    def limit_hits(self) -> int:
        """How often the limit was in the way."""
        if self.is_old:
            return int((self.folder / "memory.failcnt").read_text())
        return self.events("max")

    def events(self, name: str) -> int:
        """A count that version 2 has."""
        events = (self.folder / "memory.events").read_text().split()
        return int(events[events.index(name) + 1])


@pytest.fixture
def group() -> Iterator[Group]:
    """A control group; removed after the test."""
    for parent in (GROUPS / "memory", GROUPS):
        folder = parent / f"terrace-test-{os.getpid()}"
        try:
            folder.mkdir()
        except OSError:
            continue
        try:
            if any((folder / n).exists() for n in ("memory.limit_in_bytes", "memory.max")):
                yield Group(folder)
                return
        finally:
            for _ in range(100):
                with contextlib.suppress(OSError):
                    folder.rmdir()
                    break
                time.sleep(0.1)
    pytest.skip("no memory control group can be made here")


def in_group(group: Group, *command: str | Path) -> tuple[str | Path, ...]:
    """A command that runs in the group from its first page on."""
    enter = f'echo $$ > "{group.folder}/cgroup.procs" && exec "$@"'
    return ("sh", "-c", enter, "sh", *command)


def test_at_the_memory_limit(sandbox: Sandbox, program: Compiler, group: Group) -> None:
    """The kernel may end it, as it would without Terrace; what it reads until then is right."""
    with sandbox.start(*in_group(group, program("steady"), "64")) as run:
        pid = start_pid(run)
        # What is in use cannot be forbidden; a little more is what one window brings.
        for _ in range(60):
            if is_alive(pid):
                group.hem_in(128 * 1024)
            time.sleep(0.05)
        if is_alive(pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        status = run.conclude(60)
        assert status in (0, 128 + signal.SIGKILL), f"{status}: {run.lines} {run.stderr()}"
        assert not any(line.startswith("BAD") for line in run.lines), run.lines
        assert group.limit_hits() > 0, "it never came near its limit"


def test_growing_to_the_memory_limit(sandbox: Sandbox, program: Compiler, group: Group) -> None:
    """What was given up by MADV_FREE makes room for what comes, whoever has it."""
    most_mib, spare_mib = 320, 24
    binary = program("free_grows")
    words = (binary, str(most_mib), str(spare_mib))
    group.set_limit(most_mib << 20)
    plain = subprocess.run(in_group(group, *words), capture_output=True, timeout=60, check=False)
    assert plain.returncode == 0, plain
    with sandbox.start(*in_group(group, *words)) as run:
        assert run.conclude(60) == 0, f"{run.lines} {run.stderr()}"


def wait_for_memory(sandbox: Sandbox, binary: Path, group: Group, *, swaps: bool) -> None:
    """The kernel makes a group wait at its limit: faults wait too, and then are served."""
    control = group.folder / "memory.oom_control"
    if not control.exists():
        pytest.skip("only cgroup version 1 lets a group wait at its limit")
    (group.folder / "memory.swappiness").write_text("100" if swaps else "0")
    with sandbox.start(*in_group(group, binary, "64")) as run:
        pid = start_pid(run)
        control.write_text("1")
        hits = group.limit_hits()
        # Movers make room all the time; what they make is taken away again.
        for _ in range(60):
            group.hem_in(0)
            time.sleep(0.05)
        assert is_alive(pid)
        assert group.limit_hits() > hits, "it never came near its limit"
        group.set_limit(None)
        goes_on(run, pid)


def test_waiting_for_memory(sandbox: Sandbox, program: Compiler, group: Group) -> None:
    """Nothing can be swapped out: who needs memory waits."""
    wait_for_memory(sandbox, program("steady"), group, swaps=False)


def test_waiting_for_memory_in_swap(
    sandbox: Sandbox, program: Compiler, group: Group, swap_file: SwapFile
) -> None:
    """The kernel cannot write to what is in swap, neither messages nor CPU numbers (rseq)."""
    wait_for_memory(sandbox, program("steady"), group, swaps=True)
    assert swap_file.is_on()


def test_slowed_down_above_a_limit(sandbox: Sandbox, program: Compiler, group: Group) -> None:
    """memory.high: whoever needs memory sleeps, up to 2 s each time. Slow, and right."""
    if group.is_old:
        pytest.skip("only cgroup version 2 slows a group down")
    high = group.folder / "memory.high"
    with sandbox.start(*in_group(group, program("steady"), "64")) as run:
        pid = start_pid(run)
        for _ in range(60):
            high.write_text(str(group.usage() // 2))
            time.sleep(0.05)
        assert is_alive(pid)
        assert group.events("high") > 0, "it was never slowed down"
        high.write_text("max")
        goes_on(run, pid)


# ---- resource limits -----------------------------------------------------------------------------

LIMITS = {
    "RLIMIT_AS": resource.RLIMIT_AS,
    "RLIMIT_DATA": resource.RLIMIT_DATA,
    "RLIMIT_NOFILE": resource.RLIMIT_NOFILE,
    "RLIMIT_MEMLOCK": resource.RLIMIT_MEMLOCK,
    "RLIMIT_STACK": resource.RLIMIT_STACK,
    "RLIMIT_NPROC": resource.RLIMIT_NPROC,
    "RLIMIT_FSIZE": resource.RLIMIT_FSIZE,
}


@pytest.mark.parametrize("name", LIMITS)
def test_a_limit_that_comes_while_it_runs(sandbox: Sandbox, program: Compiler, name: str) -> None:
    """No new mapping, descriptor, thread or file: every request for more fails, also ours."""
    with sandbox.start(program("steady")) as run:
        pid = start_pid(run)
        resource.prlimit(pid, LIMITS[name], (0, 0))
        faults, seen = faults_now(run, pid), len(run.windows(pid))
        wait_until("windows", lambda: len(run.windows(pid)) > seen + 8)
        assert faults_now(run, pid) > faults, "nothing was in tiers any more"
        if name != "RLIMIT_NOFILE":
            # It cannot look at its mappings then, and follows nothing new.
            assert pages_in_tiers(run.windows(pid)[-1]) > 1000, "tiering has stopped"
        assert conclude(run, pid) < 5_000_000
        assert run.conclude() == 0


# The limit as the shell sets it, and what is said of a program that is not tiered for it.
FROM_THE_START = [
    ("-v 1000000", "RLIMIT_AS"),
    ("-v 40000000", "RLIMIT_AS"),
    ("-d 1000000", "RLIMIT_DATA"),
    ("-n 5", "RLIMIT_NOFILE"),
    ("-n 64", "RLIMIT_NOFILE"),
    ("-n 128", ""),
    ("-l 0", ""),
    ("-s 64", ""),
    ("-f 0", ""),
]


@pytest.mark.parametrize(("limit", "said"), FROM_THE_START)
def test_a_limit_from_the_start(sandbox: Sandbox, program: Compiler, limit: str, said: str) -> None:
    """The runtime has what it needs, or the program runs as if there were none and that is said."""
    arguments = ["16", "now"] if said else ["16"]
    command = f'ulimit {limit} && exec "$@"'
    with sandbox.start("sh", "-c", command, "sh", program("steady"), *arguments) as run:
        pid = start_pid(run)
        if said:
            wait_until("it is said", lambda: said in run.stderr())
            lines = [line for line in run.stderr().splitlines() if said in line]
            # The shell is this process too until it executes the program, and its runtime may
            # be as far as opening descriptors when the limit comes: it then says the same.
            assert len(lines) <= 2 and len(set(lines)) == 1, lines
            assert f"process {pid} is not tiered: " in lines[0], lines
        conclude(run, pid)
        assert run.conclude() == 0, run.stderr()


@pytest.mark.usefixtures("userfaultfd_for_all")
@pytest.mark.parametrize("threads", range(1, 9))
def test_no_more_threads(nobody: Sandbox, program: Compiler, threads: int) -> None:
    """RLIMIT_NPROC lets the runtime start some of its threads and not others."""
    # Sandboxes leave no process of this user behind, but others may have some.
    running = sum(1 for p in Path("/proc").glob("[0-9]*/task/*") if owner(p) == nobody.uid)
    # Beside `terrace` itself, which has four threads by then, and the program's own.
    command = f'ulimit -u {running + 4 + threads} && exec "$@"'
    # Not every sh has this limit.
    line = ("bash", "-c", command, "bash", program("steady"), "16", "now")
    with nobody.start(*line, options=HARD) as run:
        said = run.read_line(time.monotonic() + 30)
        if said is None:
            pytest.skip(f"not even the program itself could be started: {run.stderr()}")
        assert said.startswith("PID "), f"{said} {run.stderr()}"
        pid = int(said.split()[1])
        time.sleep(1)
        conclude(run, pid)
        assert run.conclude() == 0, run.stderr()


def owner(path: Path) -> int:
    """Whose a process is; -1 if it has gone."""
    try:
        return path.stat().st_uid
    except OSError:
        return -1


@pytest.mark.parametrize("name", ["max_maps", "maps_left"])
def test_no_more_mappings(sandbox: Sandbox, program: Compiler, name: str) -> None:
    """vm.max_map_count reached by the program: what cannot be followed is left alone."""
    face(sandbox, program(name))


# ---- threads that get no processor time ----------------------------------------------------------


def threads_of(pid: int, name: str) -> list[int]:
    """Threads of a process by their name."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return [int(t.name) for t in tasks if (t / "comm").read_text().strip() == name]


class Freezer:
    """A control group that stops single threads, of either version."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.is_old = (folder / "freezer.state").exists()
        # The second version lets a thread into a group within that of its process only.
        self.groups = [folder] if self.is_old else [folder / "still", folder]
        if not self.is_old:
            self.groups[0].mkdir()
            (self.groups[0] / "cgroup.type").write_text("threaded")

    def take(self, tid: int, pid: int) -> None:
        """Lets a thread in."""
        if self.is_old:
            (self.folder / "tasks").write_text(str(tid))
        else:
            (self.folder / "cgroup.procs").write_text(str(pid))
            (self.groups[0] / "cgroup.threads").write_text(str(tid))

    def freeze(self, *, freezes: bool) -> None:
        """Stops it, or lets it go on."""
        if self.is_old:
            (self.folder / "freezer.state").write_text("FROZEN" if freezes else "THAWED")
        else:
            (self.groups[0] / "cgroup.freeze").write_text("1" if freezes else "0")


# Where each version is mounted; the second beside the first, or alone.
FREEZERS = {"first": [GROUPS / "freezer"], "second": [GROUPS / "unified", GROUPS]}


@pytest.fixture(params=FREEZERS)
def freezer(request: pytest.FixtureRequest) -> Iterator[Freezer]:
    """A group that stops what is in it, single threads too; thawed and removed after the test."""
    there = ("freezer.state", "cgroup.freeze")
    for parent in FREEZERS[request.param]:
        folder = parent / f"terrace-test-{os.getpid()}"
        try:
            folder.mkdir()
        except OSError:
            continue
        if any((folder / name).exists() for name in there):
            break
        folder.rmdir()
    else:
        pytest.skip(f"no freezer control group ({request.param} version) can be made here")
    freezer = Freezer(folder)
    yield freezer
    freezer.freeze(freezes=False)
    for group in freezer.groups:
        wait_until("an empty group", functools.partial(removed, group))


def removed(group: Path) -> bool:
    """Whether a control group is no more; it cannot go while something is in it."""
    with contextlib.suppress(OSError):
        group.rmdir()
    return not group.exists()


@pytest.mark.parametrize("name", ["terrace-pager", "terrace-mover", "terrace-agent"])
def test_a_thread_that_stands_still(
    sandbox: Sandbox, program: Compiler, freezer: Freezer, name: str
) -> None:
    """Stopped wherever it is, for more than a second, again and again: all else waits at most."""
    with sandbox.start(program("steady")) as run:
        pid = start_pid(run)
        (tid,) = threads_of(pid, name)
        freezer.take(tid, pid)
        for _ in range(3):
            freezer.freeze(freezes=True)
            time.sleep(1.2)
            freezer.freeze(freezes=False)
            time.sleep(0.3)
        seen, faults = len(run.windows(pid)), faults_now(run, pid)
        wait_until("windows again", lambda: len(run.windows(pid)) > seen + 3)
        wait_until("faults again", lambda: faults_now(run, pid) > faults)
        slowest = conclude(run, pid)
        assert slowest < 3_000_000
        if name == "terrace-pager":
            assert slowest > 500_000, "the pager was never missed"
        if name == "terrace-agent":
            assert slowest < 900_000, "an access waited for the agent"
        assert run.conclude() == 0


def test_all_threads_starved(sandbox: Sandbox, program: Compiler) -> None:
    """Behind everything else (SCHED_IDLE), with every processor busy: slow, and still right."""
    busy: list[subprocess.Popen[bytes]] = []
    with sandbox.start(program("steady")) as run:
        pid = start_pid(run)
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
        ours = [t for t in tasks if (t / "comm").read_text().startswith("terrace-")]
        assert len(ours) >= 3
        for task in ours:
            os.sched_setscheduler(int(task.name), os.SCHED_IDLE, os.sched_param(0))
        try:
            for cpu in os.sched_getaffinity(0):
                line = ["taskset", "-c", str(cpu), "sh", "-c", "while :; do :; done"]
                busy.append(subprocess.Popen(line))
            time.sleep(4)
        finally:
            for process in busy:
                process.kill()
                process.wait(10)
        conclude(run, pid)
        assert run.conclude() == 0


# ---- devices that fail ---------------------------------------------------------------------------


@dataclass
class Filesystem:
    """A filesystem whose device can be cut off behind it."""

    folder: Path
    image: Path
    device: str

    def cut_off(self, at: int) -> None:
        """From here on, what lies beyond that many bytes can be neither read nor written."""
        os.truncate(self.image, at)
        subprocess.run(["losetup", "-c", self.device], check=True, timeout=30)


@pytest.fixture
def filesystem(sandbox: Sandbox) -> Iterator[Filesystem]:
    """An ext4 of 64 MiB; unmounted after the test."""
    if os.geteuid() != 0 or shutil.which("mkfs.ext4") is None:
        pytest.skip("needs root and mkfs.ext4")
    folder, image = sandbox.folder / "far", Path("/dev/shm") / f"{sandbox.folder.name}.image"
    folder.mkdir()

    def run(*line: str | Path) -> str:
        done = subprocess.run(line, capture_output=True, text=True, check=False, timeout=30)
        if done.returncode != 0:
            pytest.skip(f"{line[0]} cannot do that here: {done.stderr.strip()}")
        return done.stdout.strip()

    with contextlib.ExitStack() as undo:
        undo.callback(lambda: image.unlink(missing_ok=True))
        with image.open("wb") as file:
            file.truncate(64 * MIB)
        # Without a journal, which would end the filesystem with the first write that fails.
        run("mkfs.ext4", "-q", "-F", "-b", "4096", "-O", "^has_journal", image)
        device = run("losetup", "-f", "--show", image)
        undo.callback(lambda: subprocess.run(["losetup", "-d", device], check=False, timeout=30))
        run("mount", "-o", "errors=continue", device, folder)
        undo.callback(unmount, folder)
        yield Filesystem(folder, image, device)


def test_a_device_that_fails_on_writing(
    sandbox: Sandbox, program: Compiler, filesystem: Filesystem
) -> None:
    """EIO: what cannot be written stays in memory, and what was written is still good."""
    medium = f'kind = "file"\ndirectory = "{filesystem.folder}"\ncapacity_mib = 64'
    filesystem.cut_off(12 * MIB)
    with sandbox.start(program("steady"), "96", "now", options=options_for(sandbox, medium)) as run:
        pid = start_pid(run)

        def has_failed() -> bool:
            last = run.windows(pid)[-1:]
            tiers = [t for w in last for t in w["tiers"][1:]]
            return sum(int(t["refused"]["medium_failed"]) for t in tiers) > 100

        try:
            wait_until("writes fail", has_failed, 60)
        except Hang as hang:
            raise run.hang(str(hang)) from None
        faults = faults_now(run, pid)
        wait_until("faults are served", lambda: faults_now(run, pid) > faults + 100, 30)
        conclude(run, pid)
        assert run.conclude() == 0, run.stderr()


def test_a_device_that_fails_on_reading(
    sandbox: Sandbox, program: Compiler, filesystem: Filesystem
) -> None:
    """EIO: tried again, then the program ends with one line rather than with other bytes."""
    medium = f'kind = "file"\ndirectory = "{filesystem.folder}"\ncapacity_mib = 64'
    with sandbox.start(program("steady"), "24", options=options_for(sandbox, medium)) as run:
        pid = start_pid(run)
        # Before everything that was written. Until the device knows, it would read as zeros.
        stop(pid)
        filesystem.cut_off(64 * 1024)
        os.kill(pid, signal.SIGCONT)
        status = run.conclude(60)
        report = f"{status}: {run.lines}\n{run.stderr()}"
        assert status == 128 + signal.SIGABRT, report
        said = [line for line in run.stderr().splitlines() if line.startswith("terrace: the st")]
        assert len(said) == 1 and "could not be read from its medium" in said[0], report
        assert not any(line.startswith("BAD") for line in run.lines), report
        assert not is_alive(pid)


def test_a_device_that_fails_on_the_way_home(
    sandbox: Sandbox, program: Compiler, filesystem: Filesystem
) -> None:
    """What cannot be read and nobody waits for stays; what is elsewhere comes home all the same."""
    medium = f'kind = "file"\ndirectory = "{filesystem.folder}"\ncapacity_mib = 64'
    options = options_for(sandbox, medium, '"dram"'.join(TIERS.rsplit('"far"', 1)))
    with sandbox.start(program("linger"), "default", "48", options=options) as run:
        pid = start_pid(run)
        orphan(run)
        with Planner(door_of(sandbox, pid)) as planner:
            regions = sorted(planner.greet().close_window())
            far, near = regions[: len(regions) // 2], regions[len(regions) // 2 :]
            split = [(r, 1) for r in far] + [(r, 2) for r in near]

            def stored(entries: list[tuple[int, int]], part: list[int]) -> int:
                now = planner.close_window()
                planner.send(plan(entries))
                return sum(now[r].stored for r in part)

            home = [(r, 0) for r in regions]
            wait_until("all is home", lambda: stored(home, regions) == 0)
            pages = 512 * (len(regions) - 2)
            wait_until("all is in its tier", lambda: stored(split, regions) >= pages)
            stop(pid)
            filesystem.cut_off(64 * 1024)
            os.kill(pid, signal.SIGCONT)
            # A mover that tries every page has ten regions before it, of two minutes each.
            assert stored(home, far) > 0
            wait_until("what is in memory is home", lambda: stored([], near) == 0, 30)
            assert stored([], far) > 1_000
        os.kill(pid, signal.SIGTERM)
        wait_until("it has ended", lambda: not is_alive(pid))


# ---- descriptors ---------------------------------------------------------------------------------


def test_close_unseen(sandbox: Sandbox, program: Compiler) -> None:
    """The pager serves on; whoever else of the runtime needs what was closed ends the program."""
    with sandbox.start(program("close_unseen"), options=HARD) as run:
        status = run.conclude(30)
        report = f"{run.lines}\n{run.stderr()}"
        assert (status, run.lines[-1]) in [(0, "OK"), (134, "CLOSED")], report
        if status != 0:
            assert "closed a descriptor of the runtime's" in run.stderr(), report
