"""The life of a process, from fork to exit, while its memory is in tiers: a program a hazard.

Each program is also run without Terrace, and must say the same. What it verifies is thus what Linux
promises, not what we do. See `test_hazards.py` for the hazards that came first.
"""

from __future__ import annotations

import os
import shutil
import time

import pytest

from harness import HARD, STOPS_THREADS, Sandbox
from test_hazards import Compiler
from untiered import face_both

# Everything cold goes down at once; and everything goes anywhere, moves are given up on the way.
TORTURE = ("--torture=11",)
BOTH = pytest.mark.parametrize("options", [HARD, TORTURE], ids=["hard", "torture"])

pytestmark = pytest.mark.usefixtures("can_tier")

# ---- children that libc's fork did not make ------------------------------------------------------

RAW = ["bare", "syscall", "sys_fork", "clone3", "_Fork", "clone"]


@pytest.mark.parametrize("how", RAW)
def test_fork_raw(sandbox: Sandbox, program: Compiler, how: str) -> None:
    """No handler of libc's runs around a fork that is made by hand."""
    face_both(sandbox, program("fork_raw"), how)


@pytest.mark.usefixtures("userfaultfd_for_all")
@pytest.mark.parametrize("how", RAW)
def test_fork_raw_unprivileged(nobody: Sandbox, program: Compiler, how: str) -> None:
    """Nor does the kernel announce it: a child that nobody saw coming must not read zeros."""
    face_both(nobody, program("fork_raw"), how)


def test_fork_wipes(sandbox: Sandbox, program: Compiler) -> None:
    """MADV_WIPEONFORK: a child must not be fed what its parent keeps to itself."""
    face_both(sandbox, program("fork_wipes"))


@pytest.mark.usefixtures("userfaultfd_for_all")
def test_fork_wipes_unprivileged(nobody: Sandbox, program: Compiler) -> None:
    """The same where everything is brought home first."""
    face_both(nobody, program("fork_wipes"))


# ---- fork and its relatives ----------------------------------------------------------------------


@BOTH
def test_fork_storm(sandbox: Sandbox, program: Compiler, options: tuple[str, ...]) -> None:
    """Forks from two threads at once, amid faults and moves."""
    face_both(sandbox, program("fork_storm"), options=options)


@pytest.mark.usefixtures("userfaultfd_for_all")
def test_fork_storm_unprivileged(nobody: Sandbox, program: Compiler) -> None:
    """Two forks at once both need everything at home until the second is over."""
    face_both(nobody, program("fork_storm"))


@pytest.mark.usefixtures("userfaultfd_for_all")
def test_tiered_stack(nobody: Sandbox, program: Compiler) -> None:
    """A page of the stack that is out, touched with a lock of ours in hand, would be waited for."""
    face_both(nobody, program("tiered_stack"))


def test_first_numbers(sandbox: Sandbox, program: Compiler) -> None:
    """Daemons close 0 and open a file for it: what the runtime opens must not be there."""
    for _ in range(3):
        face_both(sandbox, program("first_numbers"))


@BOTH
def test_low_numbers(sandbox: Sandbox, program: Compiler, options: tuple[str, ...]) -> None:
    """No descriptor of ours takes a number that the program counts on, not for a moment."""
    face_both(sandbox, program("low_numbers"), options=options)


@BOTH
def test_gone_thread(sandbox: Sandbox, program: Compiler, options: tuple[str, ...]) -> None:
    """What pthread_create fills in is the new thread's, which may have given it back."""
    face_both(sandbox, program("gone_thread"), options=options)


needs_setpriv = pytest.mark.skipif(shutil.which("setpriv") is None, reason="there is no setpriv")

# Without CAP_SYS_PTRACE the kernel announces no forks.
UNANNOUNCED = ("setpriv", "--bounding-set=-sys_ptrace", "--inh-caps=-sys_ptrace")


@needs_setpriv
def test_lock_and_fork(sandbox: Sandbox, program: Compiler) -> None:
    """A handler forks in the middle of mlockall: both bring everything home."""
    face_both(sandbox, *UNANNOUNCED, program("lock_and_fork"))


@BOTH
def test_unmap_storm(sandbox: Sandbox, program: Compiler, options: tuple[str, ...]) -> None:
    """There is no moment at which nothing changes; a wait for one is no wait for good."""
    face_both(sandbox, program("unmap_storm"), options=options)


@BOTH
def test_fork_deep(sandbox: Sandbox, program: Compiler, options: tuple[str, ...]) -> None:
    """Each generation depends on the pager of the first."""
    face_both(sandbox, program("fork_deep"), options=options)


@pytest.mark.usefixtures("userfaultfd_for_all")
def test_fork_deep_unprivileged(nobody: Sandbox, program: Compiler) -> None:
    """A child's own children come from memory that is all its own."""
    face_both(nobody, program("fork_deep"))


@pytest.mark.parametrize("how", ["clone", "vfork"])
def test_share_memory(sandbox: Sandbox, program: Compiler, how: str) -> None:
    """Our threads end with the process they are in, but its memory may live on."""
    face_both(sandbox, program("share_memory"), how)


def test_share_files(sandbox: Sandbox, program: Compiler) -> None:
    """A child that lets go of our descriptors must not close them for its parent."""
    face_both(sandbox, program("share_files"))


@BOTH
def test_spawn_actions(sandbox: Sandbox, program: Compiler, options: tuple[str, ...]) -> None:
    """A spawned child works through lists in its parent's demoted memory."""
    face_both(sandbox, program("spawn_actions"), options=options)


@pytest.mark.parametrize("how", ["thread", "fexecve", "execveat", "preload"])
def test_exec_thread(sandbox: Sandbox, program: Compiler, how: str) -> None:
    """exec keeps the caller's id and ends all others; descriptors of ours must not get across."""
    face_both(sandbox, program("exec_thread"), how)


# Without CAP_SYS_RESOURCE the limit cannot be raised beyond what is allowed.
BOUND = ("setpriv", "--bounding-set=-sys_resource", "--inh-caps=-sys_resource")


@pytest.mark.parametrize("how", ["full", "lowered", pytest.param("bound", marks=needs_setpriv)])
def test_fork_full(sandbox: Sandbox, program: Compiler, how: str) -> None:
    """A fork's event brings a descriptor, and none may be free: then every fault would hang."""
    if how == "bound":
        face_both(sandbox, *BOUND, program("fork_full"), "full")
    else:
        face_both(sandbox, program("fork_full"), how)


# ---- threads, ends, signals ----------------------------------------------------------------------


def test_thread_stacks(sandbox: Sandbox, program: Compiler) -> None:
    """Stacks of sleeping threads are cold; a cancelled thread leaves in the middle of a fault."""
    face_both(sandbox, program("thread_stacks"))


@pytest.mark.parametrize("kib", [490, 3000])
def test_local_storage(sandbox: Sandbox, program: Compiler, kib: int) -> None:
    """glibc puts the program's thread-local storage on the stacks of our threads as well."""
    face_both(sandbox, program("local_storage", f"-DKIB={kib}"))


ENDS = {"exit": 0, "_exit": 0, "last_thread": 0, "abort": 134, "raise": 137, "segv": 139}


@pytest.mark.parametrize("how", ENDS)
def test_end(sandbox: Sandbox, program: Compiler, how: str) -> None:
    """A process may end at any moment; until then handlers and destructors read what they like."""
    face_both(sandbox, program("end"), how, status=ENDS[how])


@pytest.mark.parametrize("takes_ms", [0, 700, 1500])
@pytest.mark.parametrize("how", ["main", "forked", "executed"])
@BOTH
def test_the_last_thread_returns(
    sandbox: Sandbox, program: Compiler, how: str, takes_ms: int, options: tuple[str, ...]
) -> None:
    """The process ends with the last thread of the program, whatever threads there are of ours."""
    face_both(sandbox, program("last_thread"), how, str(takes_ms), options=options)


@BOTH
def test_the_main_thread_is_gone(
    sandbox: Sandbox, program: Compiler, options: tuple[str, ...]
) -> None:
    """Files of /proc that name the process show its main thread, which is a zombie then."""
    face_both(sandbox, program("main_gone"), options=options)


@BOTH
def test_signals(sandbox: Sandbox, program: Compiler, options: tuple[str, ...]) -> None:
    """Guard pages and write barriers are the program's own SIGSEGV, in demoted memory as well."""
    face_both(sandbox, program("signals"), options=options)


@BOTH
def test_alone(sandbox: Sandbox, program: Compiler, options: tuple[str, ...]) -> None:
    """libc goes without locks for a program of one thread, and no thread of ours makes it wrong."""
    face_both(sandbox, program("alone"), options=options)


@BOTH
def test_errno_is_kept(sandbox: Sandbox, program: Compiler, options: tuple[str, ...]) -> None:
    """Calls that succeed leave errno alone, whatever the runtime had to ask the kernel for them."""
    face_both(sandbox, program("errno_kept"), options=options)


# ---- privileges and filters ----------------------------------------------------------------------

OTHER_USER = ["setuid", "initgroups", "keepcaps"]
GIVEN_UP = [*OTHER_USER, "groups", "undumpable", "chroot", "namespaces", "files", "prctls"]


@pytest.mark.parametrize("what", GIVEN_UP)
def test_privileges(sandbox: Sandbox, program: Compiler, what: str) -> None:
    """What the runtime needs of the system it has opened before the program gave it up."""
    if what in OTHER_USER and STOPS_THREADS:
        pytest.skip("threads of another user cannot be stopped: nothing more is demoted")
    face_both(sandbox, program("privileges"), what)


@needs_setpriv
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_user_from_the_start(sandbox: Sandbox) -> None:
    """setpriv keeps a right beyond its change of user, while the runtime is coming up."""
    told = ("setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", "true")
    for _ in range(10):
        done = sandbox.terrace("run", "--", *told)
        assert done.returncode == 0, done.stderr
    # In a child, where a thread of the runtime's only waits: it goes, and nobody waits for it.
    start = time.monotonic()
    done = sandbox.terrace(
        "run", "--", "sh", "-c", f"{' '.join(told)} && {' '.join(told)}; exit $?"
    )
    assert done.returncode == 0, done.stderr
    assert time.monotonic() - start < 3, "six changes of the user took a second each"


@pytest.mark.parametrize("how", ["thread", "strict", "all", "errno", "kill_thread"])
def test_seccomp(sandbox: Sandbox, program: Compiler, how: str) -> None:
    """A filter for one thread is no business of ours; one for all would bind our threads too."""
    face_both(sandbox, program("seccomp"), how)


@BOTH
def test_filtered(sandbox: Sandbox, program: Compiler, options: tuple[str, ...]) -> None:
    """What threads of the program do for us must not be what its filter ends it for."""
    face_both(sandbox, program("filtered"), options=options)


@needs_setpriv
def test_filtered_unannounced(sandbox: Sandbox, program: Compiler) -> None:
    """A fork that nobody announces has its thread bring memory home, which takes many calls."""
    face_both(sandbox, *UNANNOUNCED, program("filtered"))


@pytest.mark.parametrize("name", ["filter_exec", "filter_asked"])
def test_filter(sandbox: Sandbox, program: Compiler, name: str) -> None:
    """A program that is executed under a filter; and one that only asks for what there is."""
    face_both(sandbox, program(name))


def test_filtered_without_a_planner(sandbox: Sandbox, program: Compiler) -> None:
    """The end of a program that has no planner any more needs no calls beyond its own."""
    shell = ("sh", "-c", '"$0" orphan; echo STATUS $?', program("filtered"))
    with sandbox.start(*shell, options=TORTURE) as run:
        run.until("ALONE")
        run.process.kill()
        run.process.wait(10)
        run.until("OK")
        assert run.until("STATUS") == "STATUS 0"


def test_abort_handler(sandbox: Sandbox, program: Compiler) -> None:
    """The program's handler of SIGABRT would run on the pager, which then waits for itself."""
    said = face_both(sandbox, program("abort_handler"), status=134, verdicts=())
    assert "ending it" in said, said
