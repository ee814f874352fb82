"""What has bitten other user-space pagers: a program for each hazard, while its memory is in tiers.

The programs are in `programs/`; each opens with what must hold, and verifies every byte. To run
one: `pytest e2e/test_hazards.py -k fork_reads`.
"""

from __future__ import annotations

import itertools
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from harness import (
    HARD,
    KERNEL,
    SKIPPED,
    STOPS_THREADS,
    TIMEOUT_S,
    Sandbox,
    faults_from_tiers,
    pages_in_tiers,
    wait_until,
)

Compiler = Callable[..., Path]

TIERSCAPE = (*HARD, "--preset", "tierscape")
WATERFALL = (
    *("--window", "0.2", "--preset", "tierscape"),
    *("--policy", "waterfall", "--threshold", "aggressive"),
)

pytestmark = pytest.mark.usefixtures("can_tier")


def face(sandbox: Sandbox, *command: str | Path, options: tuple[str, ...] = HARD) -> None:
    """Runs a hazard: every byte must be right, and nothing may have gone untiered."""
    with sandbox.start(*command, options=options) as run:
        status = run.conclude(TIMEOUT_S)
        report = f"exit status {status}; output {run.lines}; stderr:\n{run.stderr()}"
        if status == SKIPPED:
            pytest.skip(run.lines[-1].removeprefix("SKIP "))
        assert status == 0, report
        assert run.lines[-1:] == ["OK"], report
        assert "checksum" not in run.stderr(), report
        assert sandbox.sockets() == [], "the session left something behind"


# ---- the fault path ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options", [HARD, TIERSCAPE, WATERFALL], ids=["auto", "tierscape", "waterfall"]
)
def test_touch(sandbox: Sandbox, program: Compiler, options: tuple[str, ...]) -> None:
    """The promise itself, in every codec and pool: what comes back is what went down."""
    face(sandbox, program("touch"), options=options)


@pytest.mark.parametrize(
    "options", [HARD, TIERSCAPE, WATERFALL], ids=["auto", "tierscape", "waterfall"]
)
def test_content(sandbox: Sandbox, program: Compiler, options: tuple[str, ...]) -> None:
    """Same-filled and incompressible pages take other paths than the rest."""
    face(sandbox, program("content"), options=options)


def test_futile(sandbox: Sandbox, program: Compiler) -> None:
    """Regions of pages that do not shrink are found out by a look at a few of them."""
    with sandbox.start(program("futile"), options=HARD) as run:
        assert run.conclude() == 0, f"{run.lines}\n{run.stderr()}"
        tiers = run.windows()[-1]["tiers"]
    refused = sum(tier["refused"].get("incompressible", 0) for tier in tiers[1:])
    # 12,288 such pages in 24 regions, and one region that has both kinds.
    assert 24 * 6 <= refused < 2_000, tiers


@pytest.mark.parametrize("options", [HARD, TIERSCAPE], ids=["auto", "tierscape"])
def test_threads(sandbox: Sandbox, program: Compiler, options: tuple[str, ...]) -> None:
    """A page may be wanted at every step of its way down, by several threads at once."""
    with sandbox.start(program("threads"), options=options) as run:
        assert run.conclude() == 0, f"{run.lines}\n{run.stderr()}"
        assert faults_from_tiers(run.windows()[-1]) > 5_000, "the threads met no demotion"


def test_same_word(sandbox: Sandbox, program: Compiler) -> None:
    """Many faults on one page: one is served, the others must be woken and lose no write."""
    face(sandbox, program("same_word"))


# ---- fork, exec, threads -------------------------------------------------------------------------


@pytest.mark.parametrize("options", [HARD, TIERSCAPE], ids=["auto", "tierscape"])
def test_fork_reads(sandbox: Sandbox, program: Compiler, options: tuple[str, ...]) -> None:
    """What is missing in a parent is missing in its child, where it would read as zeros."""
    face(sandbox, program("fork_reads"), options=options)


def test_fork_unmaps(sandbox: Sandbox, program: Compiler) -> None:
    """A child may change its address space before it was given its pages."""
    face(sandbox, program("fork_unmaps"))


def test_fork_refills(sandbox: Sandbox, program: Compiler) -> None:
    """What a child has as holes is none of its parent's later pages at those addresses."""
    face(sandbox, program("fork_refills"))


def test_fork_remaps(sandbox: Sandbox, program: Compiler) -> None:
    """What registration has split at a fork stays split in the child, whose mremap would fail."""
    face(sandbox, program("fork_remaps"))


def test_fork_fork(sandbox: Sandbox, program: Compiler) -> None:
    """A grandchild depends on a pager two generations up."""
    face(sandbox, program("fork_fork"))


def test_fork_ends(sandbox: Sandbox, program: Compiler) -> None:
    """A page that was shared is not movable until it is written, or readied for that."""
    face(sandbox, program("fork_ends"))


def test_fork_stays(sandbox: Sandbox, program: Compiler) -> None:
    """What a child shares is not tried page by page in every window: the page tables tell."""
    with sandbox.start(program("fork_stays")) as run:
        status = run.conclude()
        assert (status, run.lines[-1:]) == (0, ["OK"]), f"{run.lines}\n{run.stderr()}"
        windows = [w for w in run.windows() if w["managed_bytes"] >= 64 << 20]
        parent = [w for w in windows if w["pid"] == windows[0]["pid"]]
        assert len(parent) >= 10, windows
        refused = [sum(t["refused"]["pinned_or_shared"] for t in w["tiers"][1:]) for w in parent]
        # (32 in each region and window before that: four times the eight tries of a call.)
        tried = (refused[-1] - refused[0]) / len(parent) / 32
        assert tried < 3, refused
        # The stopper asks before it tries.
        assert tried > 0 or STOPS_THREADS, refused


def test_fork_two(sandbox: Sandbox, program: Compiler) -> None:
    """The second child inherits what the parent's runtime has open for the first."""
    face(sandbox, program("fork_two"))


@pytest.mark.parametrize("how", ["exit", "_exit", "quick_exit", "daemon"])
def test_daemonise(sandbox: Sandbox, program: Compiler, how: str) -> None:
    """The parent, whose runtime holds the child's pages, ends at once."""
    with sandbox.start(program("daemonise"), how) as run:
        status = run.conclude()
        assert (status, run.lines[-1:]) == (0, ["OK"]), f"{run.lines}\n{run.stderr()}"


def test_killed_parent(sandbox: Sandbox, program: Compiler) -> None:
    """A parent that is killed takes pages along: its child is whole, or ends saying so."""
    with sandbox.start(program("daemonise"), "killed") as run:
        assert run.conclude() == 137
        report = f"{run.lines}\n{run.stderr()}"
        assert not any(line.startswith("BAD") for line in run.lines), report
        assert run.lines[-1] == "OK" or "rather than letting it read wrong bytes" in run.stderr(), (
            report
        )


def test_spawn(sandbox: Sandbox, program: Compiler) -> None:
    """vfork and posix_spawn run a child in its parent's memory, with demoted arguments."""
    face(sandbox, program("spawn"))


def test_exec(sandbox: Sandbox, program: Compiler) -> None:
    """exec ends every thread of ours in the middle of whatever it does, and starts anew."""
    face(sandbox, program("exec"))


def test_thread_churn(sandbox: Sandbox, program: Compiler) -> None:
    """A thread may be gone when its fault is answered; stacks are anonymous memory too."""
    face(sandbox, program("thread_churn"))


# ---- changes of the address space ----------------------------------------------------------------


def test_unmap(sandbox: Sandbox, program: Compiler) -> None:
    """What was stored for an old mapping must not appear in a new one at its address."""
    face(sandbox, program("unmap"))


@pytest.mark.parametrize("options", [HARD, TIERSCAPE], ids=["auto", "tierscape"])
def test_remap(sandbox: Sandbox, program: Compiler, options: tuple[str, ...]) -> None:
    """Stored pages are known by address, and mremap changes the address."""
    face(sandbox, program("remap"), options=options)


@pytest.mark.parametrize("limited", [(), ("limited",)], ids=["plain", "no-descriptors"])
def test_remap_race(sandbox: Sandbox, program: Compiler, limited: tuple[str, ...]) -> None:
    """A range that moves while its pages are in staging; one call sends several events."""
    face(sandbox, program("remap_race"), *limited)


def test_dontneed(sandbox: Sandbox, program: Compiler) -> None:
    """Allocators count on zeros after MADV_DONTNEED."""
    face(sandbox, program("dontneed"))


def test_dontneed_race(sandbox: Sandbox, program: Compiler) -> None:
    """The kernel drops the pages only after its event was read: a move must not slip between."""
    face(sandbox, program("dontneed_race"))


def test_dontneed_churn(sandbox: Sandbox, program: Compiler) -> None:
    """What was dropped, refilled while nobody looked, and grown cold goes down like the rest."""
    face(sandbox, program("dontneed_churn"))


@pytest.mark.skipif(STOPS_THREADS or KERNEL < (6, 8), reason="each page by itself there")
def test_fresh_runs(sandbox: Sandbox, program: Compiler) -> None:
    """Up to 64 pages come with a fault, none of them memory before it is written."""
    face(sandbox, program("fresh_runs"))


@pytest.mark.skipif(STOPS_THREADS or KERNEL < (6, 8), reason="zero pages cannot be told there")
def test_zero_pages(sandbox: Sandbox, program: Compiler) -> None:
    """What was only read holds nothing: it goes to no tier, and nothing is saved by it."""
    with sandbox.start(program("zero_pages"), options=HARD) as run:
        pid = int(run.until("PID").split()[1])
        written = (32 << 20) // 4096 // 2
        began = len(run.windows())

        def is_down() -> bool:
            windows = run.windows()[began:]
            return len(windows) > 3 and pages_in_tiers(windows[-1]) > written * 9 // 10

        wait_until("what is written is in tiers", is_down)
        time.sleep(1)
        most = max(pages_in_tiers(w) for w in run.windows()[began:])
        os.kill(pid, signal.SIGTERM)
        assert run.conclude() == 0, f"{run.lines}\n{run.stderr()}"
    assert most < written + 512, (most, written)


def test_free_lazily(sandbox: Sandbox, program: Compiler) -> None:
    """MADV_FREE leaves the choice of old or zero to the kernel, page by page."""
    face(sandbox, program("free_lazily"))


def test_free_again(sandbox: Sandbox, program: Compiler) -> None:
    """What is given up by MADV_FREE and used again would stay in DRAM if it were only marked."""
    face(sandbox, program("free_again"))


@pytest.mark.skipif(
    STOPS_THREADS or KERNEL < (6, 8), reason="filled page by page, its regions are left alone there"
)
def test_free_churn(sandbox: Sandbox, program: Compiler) -> None:
    """What is given up and used again all the time is left where it is, up to a limit."""
    face(sandbox, program("free_churn"))


def test_protect(sandbox: Sandbox, program: Compiler) -> None:
    """Pages come back into mappings that are read-only or forbidden by now."""
    face(sandbox, program("protect"))


def test_lock(sandbox: Sandbox, program: Compiler) -> None:
    """mlock promises that no access ever waits."""
    face(sandbox, program("lock"))


@pytest.mark.parametrize("how", ["by_function", "by_number"])
def test_lock_all(sandbox: Sandbox, program: Compiler, how: str) -> None:
    """mlockall promises the same of everything, and must not fill what is only reserved."""
    face(sandbox, program("lock_all"), how)


def test_by_number(sandbox: Sandbox, program: Compiler) -> None:
    """A system call does by number what it does by its function, and is no end of a thread."""
    face(sandbox, program("by_number"))


def test_map_churn(sandbox: Sandbox, program: Compiler) -> None:
    """Mappings come and go faster than windows."""
    face(sandbox, program("map_churn"))


def test_holes(sandbox: Sandbox, program: Compiler) -> None:
    """What is registered was looked at a while ago, and may be another mapping by now."""
    face(sandbox, program("holes"))


def test_sparse(sandbox: Sandbox, program: Compiler) -> None:
    """What is never used must cost neither memory nor time; the runtime keeps under 1 %."""
    with sandbox.start(program("sparse")) as run:
        status = run.conclude()
        assert (status, run.lines[-1:]) == (0, ["OK"]), f"{run.lines}\n{run.stderr()}"
        runtime_mib = max(int(w["runtime_bytes"]) for w in run.windows()) >> 20
        assert runtime_mib < 32, f"the runtime took {runtime_mib} MiB to follow 18 MiB"
        taken = [int(w["runtime_bytes"]) for w in run.windows()]
        gives_back = any(b + (512 << 10) < a for a, b in itertools.pairwise(taken))
        assert gives_back, f"what trying the codecs takes is kept: {taken}"


def test_many_maps(sandbox: Sandbox, program: Compiler) -> None:
    """Registration splits mappings, of which a process may have 65,530."""
    face(sandbox, program("many_maps"))


# ---- the heap ------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [HARD, WATERFALL], ids=["auto", "waterfall"])
def test_heap(sandbox: Sandbox, program: Compiler, options: tuple[str, ...]) -> None:
    """malloc holds its locks while it faults, and its metadata is demoted like anything else."""
    face(sandbox, program("heap"), options=options)


def test_brk_shrinks(sandbox: Sandbox, program: Compiler) -> None:
    """brk gives memory back without munmap."""
    face(sandbox, program("brk_shrinks"))


# ---- the kernel and other processes as readers ---------------------------------------------------


def test_syscalls(sandbox: Sandbox, program: Compiler) -> None:
    """A fault inside a system call must be served, or the call fails with EFAULT."""
    face(sandbox, program("syscalls"))


def test_peer_reads(sandbox: Sandbox, program: Compiler) -> None:
    """Debuggers and the like fault from another process."""
    face(sandbox, program("peer_reads"))


def test_futex(sandbox: Sandbox, program: Compiler) -> None:
    """The kernel looks futexes up by page; the page has moved since."""
    face(sandbox, program("futex"))


CLOSERS = ["close", "close_range", "close_on_exec", "closefrom", "dup2", "reuse", "fork"]
CLOSERS += ["sys_close", "sys_close_range", "sys_dup", "by_old_names"]


@pytest.mark.parametrize("how", CLOSERS)
def test_close_all(sandbox: Sandbox, program: Compiler, how: str) -> None:
    """Daemons close descriptors they do not know, and get the same numbers again for others."""
    face(sandbox, program("close_all"), how)


def test_altstack(sandbox: Sandbox, program: Compiler) -> None:
    """The kernel writes signal frames to a stack that is in a tier."""
    face(sandbox, program("altstack"))


def test_stop(sandbox: Sandbox, program: Compiler) -> None:
    """Job control stops our threads as well, at any point."""
    face(sandbox, program("stop"))


# ---- without privilege ---------------------------------------------------------------------------

UNPRIVILEGED = [
    "touch", "threads", "fork_reads", "fork_unmaps", "fork_remaps", "fork_fork", "daemonise",
    "spawn", "exec", "dontneed_race", "remap", "lock",
]  # fmt: skip


@pytest.mark.usefixtures("userfaultfd_for_all")
@pytest.mark.parametrize("name", UNPRIVILEGED)
def test_unprivileged(nobody: Sandbox, program: Compiler, name: str) -> None:
    """Without CAP_SYS_PTRACE the kernel does not announce forks: the child must be whole anyway."""
    face(nobody, program(name))


# ---- the planner goes away -----------------------------------------------------------------------


def test_terrace_killed_while_threads_work(sandbox: Sandbox, program: Compiler) -> None:
    """Nothing of `terrace` is on the way of a page: killed, it must not be missed."""
    with sandbox.start(program("threads")) as run:
        run.until("WAIT")
        run.process.kill()
        run.process.wait(10)
        with pytest.raises(AssertionError, match="ended without"):
            run.until("never")
        assert run.lines[-1] == "OK", run.lines
    wait_until("stale sockets are all that is left", lambda: len(sandbox.sockets()) <= 2)
