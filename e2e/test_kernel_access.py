"""The kernel, and other processes through it, use memory that is in tiers.

Each program in `programs/` runs twice: untiered, and under `--torture`. Both must end the same way
and say the same. To run one: `pytest e2e/test_kernel_access.py -k robust`.
"""

from __future__ import annotations

import signal
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from harness import HARD, KERNEL, SKIPPED, TIMEOUT_S, Run, Sandbox
from untiered import face_both

Compiler = Callable[..., Path]

pytestmark = pytest.mark.usefixtures("can_tier")

TORTURE = ("--torture=11", "--quiet")


def untiered(sandbox: Sandbox, *command: str | Path) -> tuple[int, list[str]]:
    """Exit status and output of a program without Terrace. Nobody keeps it waiting."""
    folder = sandbox.folder / "untiered"
    folder.mkdir()
    result = subprocess.run(
        [*command],
        cwd=folder,
        input="\n" * 10_000,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    return result.returncode, result.stdout.splitlines()


def said(lines: list[str]) -> list[str]:
    """Output without what depends on the process."""
    return [line for line in lines if not line.startswith("WAIT ")]


def compare(sandbox: Sandbox, *command: str | Path) -> Run:
    """The same program untiered and tortured: the same verdict, the same output."""
    status, lines = untiered(sandbox, *command)
    if status == SKIPPED:
        pytest.skip(lines[-1].removeprefix("SKIP "))
    assert (status, lines[-1:]) == (0, ["OK"]), f"untiered: {status}, {lines}"
    with sandbox.start(*command, options=TORTURE) as run:
        tiered = run.conclude()
        report = f"exit status {tiered}; output {run.lines}; stderr:\n{run.stderr()}"
        assert tiered == status, report
        assert said(run.lines) == said(lines), report
        assert "checksum" not in run.stderr(), report
        assert max(int(w["moves_total"]["demoted"]) for w in run.windows()) > 1000, report
    return run


# ---- read and written by system calls ------------------------------------------------------------


def test_vectors(sandbox: Sandbox, program: Compiler) -> None:
    """readv, preadv, pwritev2: the vector is copied in first, then each piece is touched."""
    compare(sandbox, program("vectors"))


def test_messages(sandbox: Sandbox, program: Compiler) -> None:
    """sendmmsg and recvmmsg: headers, vectors, control data and buffers may each fault."""
    compare(sandbox, program("messages"))


def test_splice(sandbox: Sandbox, program: Compiler) -> None:
    """vmsplice holds the pages themselves, which must not be moved under it."""
    compare(sandbox, program("splice"))


def test_direct_io(sandbox: Sandbox, program: Compiler) -> None:
    """A device writes to pinned pages behind everybody's back."""
    compare(sandbox, program("direct_io"))


def test_uring(sandbox: Sandbox, program: Compiler) -> None:
    """io_uring faults in kernel threads, and writes to buffers that were registered long ago."""
    if KERNEL < (6, 10):
        pytest.skip("io_uring of this kernel cannot pin memory that waits for userfaultfd")
    compare(sandbox, program("uring"))


def test_aio(sandbox: Sandbox, program: Compiler) -> None:
    """Control blocks and results are demoted memory too."""
    compare(sandbox, program("aio"))


def test_results(sandbox: Sandbox, program: Compiler) -> None:
    """stat, getdents, readlink, wait4 and two dozen more write across the ends of demoted pages."""
    compare(sandbox, program("results"))


def test_poll_sets(sandbox: Sandbox, program: Compiler) -> None:
    """The sets go down while the call sleeps, and it writes to them when it wakes."""
    compare(sandbox, program("poll_sets"))


def test_exec_strings(sandbox: Sandbox, program: Compiler) -> None:
    """execve copies path, vectors and strings out of demoted pages before it ends our threads."""
    compare(sandbox, program("exec_strings"))


# ---- threads and futexes -------------------------------------------------------------------------


def test_futex_ops(sandbox: Sandbox, program: Compiler) -> None:
    """requeue, wake_op, bitsets, priority inheritance and futex_waitv."""
    compare(sandbox, program("futex_ops"))


def test_robust(sandbox: Sandbox, program: Compiler) -> None:
    """A thread dies holding robust mutexes: the kernel writes to them and serves no fault."""
    compare(sandbox, program("robust"))


def test_killed_holders(sandbox: Sandbox, program: Compiler) -> None:
    """Nothing goes down, but samples are taken: not of what the kernel reads of a dying thread."""
    face_both(sandbox, program("killed_holders"), options=("--window", "0.4", "--policy", "none"))


def test_thread_exit(sandbox: Sandbox, program: Compiler) -> None:
    """Threads on stacks that were demoted, descriptor and all."""
    compare(sandbox, program("thread_exit"))


def test_cleared_word(sandbox: Sandbox, program: Compiler) -> None:
    """The kernel clears a word at the end of a thread, and serves no fault for it."""
    compare(sandbox, program("cleared_word"))


def test_c11_threads(sandbox: Sandbox, program: Compiler) -> None:
    """They come by a shim of ours, by which their descriptors stay home as others' do."""
    compare(sandbox, program("c11_threads"))


# ---- crashes -------------------------------------------------------------------------------------


def pages_in_dump(core: Path, at: int, pages: int) -> tuple[int, int]:
    """How many pages from address `at` on a dump has with their content, and how many as zeros."""
    dump = core.read_bytes()
    (headers,) = struct.unpack_from("<Q", dump, 32)
    (count,) = struct.unpack_from("<H", dump, 56)
    right = zero = 0
    for n in range(count):
        kind, _, offset, start, _, size, _, _ = struct.unpack_from(
            "<IIQQQQQQ", dump, headers + n * 56
        )
        for i in range(pages) if kind == 1 else ():
            page_at = at + i * 4096 - start
            if page_at >= 0 and page_at + 4096 <= size:
                page = dump[offset + page_at : offset + page_at + 4096]
                right += page.startswith(b"%08x v0001" % i)
                zero += page == bytes(4096)
    return right, zero


@pytest.fixture
def dumps_are_files() -> None:
    """Skips where dumps go elsewhere than into the folder of the program."""
    pattern = Path("/proc/sys/kernel/core_pattern").read_text().strip()
    if pattern.startswith("|") or "/" in pattern:
        pytest.skip(f"dumps go to {pattern}")


CRASHES = {"segv": signal.SIGSEGV, "abort": signal.SIGABRT, "quit": signal.SIGQUIT}


@pytest.mark.usefixtures("dumps_are_files")
@pytest.mark.parametrize("how", list(CRASHES))
def test_crash_with_whole_dump(sandbox: Sandbox, program: Compiler, how: str) -> None:
    """--core-dumps: the program ends by its signal, and its dump has every page."""
    options = (*TORTURE, "--core-dumps")
    with sandbox.start(program("crash"), how, options=options) as run:
        at = int(run.until("AT ").split()[1], 16)
        assert run.conclude() == 128 + CRASHES[how], run.stderr()
        (core,) = sandbox.folder.glob("core*")
        assert pages_in_dump(core, at, 4096) == (4096, 0)


@pytest.mark.usefixtures("dumps_are_files")
def test_crash_without(sandbox: Sandbox, program: Compiler) -> None:
    """Else what is in tiers reads as zeros in the dump, as docs/core-dumps.md says."""
    with sandbox.start(program("crash"), "segv", options=TORTURE) as run:
        at = int(run.until("AT ").split()[1], 16)
        assert run.conclude() == 128 + signal.SIGSEGV, run.stderr()
        (core,) = sandbox.folder.glob("core*")
        right, zero = pages_in_dump(core, at, 4096)
        assert right + zero == 4096
        assert zero > 1024


def test_crash_in_a_child_of_vfork(sandbox: Sandbox, program: Compiler) -> None:
    """Its parent lives on, and is tiered as before."""
    with sandbox.start(program("vfork_crash"), options=(*HARD, "--core-dumps")) as run:
        assert run.conclude() == 0, f"{run.lines} {run.stderr()}"


# ---- other processes -----------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["ptrace", "mem", "vm"])
def test_remote(sandbox: Sandbox, program: Compiler, how: str) -> None:
    """A peer reads and writes by PEEKDATA, /proc/PID/mem and process_vm_readv of many pieces."""
    compare(sandbox, program("remote"), how)
