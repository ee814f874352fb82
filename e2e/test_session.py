"""A session from start to end: signals, refusals, status, and what is left behind - nothing."""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness import (
    HARD,
    TIMEOUT_S,
    Sandbox,
    is_alive,
    pages_in_tiers,
    terrace_binary,
    wait_until,
)

Compiler = Callable[..., Path]

tiered = pytest.mark.usefixtures("can_tier")


# ---- ends ----------------------------------------------------------------------------------------


@tiered
def test_ctrl_c_ends_the_program_and_leaves_nothing(sandbox: Sandbox, program: Compiler) -> None:
    """Ctrl-C goes to the whole process group; `terrace` must end after the program, clean."""
    with sandbox.start(program("linger"), "default") as run:
        pid = int(run.until("PID").split()[1])
        assert sandbox.sockets(), "a running session has sockets"
        os.killpg(run.pid, signal.SIGINT)
        assert run.conclude(20) == 128 + signal.SIGINT
        assert not is_alive(pid)
        assert sandbox.sockets() == []


@tiered
def test_ctrl_c_is_the_programs_to_handle(sandbox: Sandbox, program: Compiler) -> None:
    """A program that saves its work on Ctrl-C needs its memory for that, every page of it."""
    with sandbox.start(program("linger")) as run:
        run.until("PID")
        os.killpg(run.pid, signal.SIGINT)
        assert run.conclude() == 42, run.stderr()
        assert run.lines[-1] == "OK"
        assert sandbox.sockets() == []


@tiered
@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGHUP])
def test_signals_to_terrace_reach_the_program(
    sandbox: Sandbox, program: Compiler, sent: signal.Signals
) -> None:
    """Service managers know `terrace` only: what they send must arrive."""
    with sandbox.start(program("linger")) as run:
        run.until("PID")
        run.process.send_signal(sent)
        # The program handles SIGTERM and leaves SIGHUP to the kernel.
        assert run.conclude() == (42 if sent == signal.SIGTERM else 128 + sent), run.stderr()
        assert sandbox.sockets() == []


@tiered
def test_killed_terrace_is_not_missed(sandbox: Sandbox, program: Compiler) -> None:
    """The program outlives `terrace` with every page served, and its stale sockets are removed."""
    with sandbox.start(program("linger")) as run:
        pid = int(run.until("PID").split()[1])
        run.process.kill()
        run.process.wait(10)
        assert is_alive(pid), "the program must go on"
        assert sandbox.sockets(), "SIGKILL leaves sockets; this test is about them"
        time.sleep(0.5)
        os.kill(pid, signal.SIGTERM)
        wait_until("the program ended by itself", lambda: not is_alive(pid), 30)
        with pytest.raises(AssertionError, match="ended without"):
            run.until("never", 10)
        assert run.lines[-1] == "OK", run.lines
        answer = sandbox.terrace("status")
        assert answer.returncode == 0, answer.stderr
        assert "no sessions" in answer.stdout
        assert sandbox.sockets() == [], "status removes the sockets of the dead"


@tiered
@pytest.mark.parametrize(("given", "status"), [("0", 0), ("7", 7), ("s9", 137), ("s11", 139)])
def test_exit_status_is_passed_on(
    sandbox: Sandbox, program: Compiler, given: str, status: int
) -> None:
    """Scripts must not notice that `terrace` is in between; a signal counts as in a shell."""
    answer = sandbox.terrace("run", "--", program("exit_code"), given)
    assert (answer.returncode, answer.stdout) == (status, "STARTED\n"), answer.stderr
    assert sandbox.sockets() == []


@tiered
def test_short_programs_in_a_row(sandbox: Sandbox) -> None:
    """Programs that end before their runtime is up must not trip it or say anything odd."""
    answer = sandbox.terrace(
        "run", "--", "sh", "-c", "for i in 1 2 3 4 5 6 7 8; do true; ls / >&2; done"
    )
    assert answer.returncode == 0
    assert "terrace:" not in answer.stderr, answer.stderr


@tiered
def test_a_daemon_is_named_when_terrace_ends(sandbox: Sandbox) -> None:
    """It went on untiered without a word, and its owner believed that it saved something."""
    script = "sleep 60 >&- 2>&- & echo $!; exit 7"
    for options, lines in ((), 1), (("-q",), 0):
        answer = sandbox.terrace("run", *options, "--", "sh", "-c", script)
        pid = int(answer.stdout)
        os.kill(pid, signal.SIGKILL)
        assert answer.returncode == 7
        assert answer.stderr.count("\n") == lines, answer.stderr
        assert (f"process {pid} (sleep)" in answer.stderr) == bool(lines)


@tiered
def test_a_tiered_process_that_is_left_is_named(sandbox: Sandbox, program: Compiler) -> None:
    """Its pages are served, but somebody has to plan: the line says how."""
    stop = sandbox.folder / "stop"
    script = f'exec 3<&0; "$0" <&3 & while [ ! -e {stop} ]; do sleep 0.1; done'
    # On a torture run also small children are tiered.
    with sandbox.start("sh", "-c", script, program("linger"), options=("--torture=1",)) as run:
        pid = int(run.until("PID").split()[1])
        stop.touch()
        assert run.process.wait(20) == 0
        assert f"process {pid} (linger)" in run.stderr()
        assert f"`terrace attach {pid}`" in run.stderr()
        os.kill(pid, signal.SIGKILL)


@tiered
def test_a_program_that_never_connects_is_said(sandbox: Sandbox, program: Compiler) -> None:
    """Where something clears the environment, nothing loads the runtime."""
    line = ("env", "-i", "/bin/sleep", "2")
    answer = sandbox.terrace("run", "--window", "0.2", "--", *line)
    assert answer.returncode == 0
    assert answer.stderr.count("\n") == 1, answer.stderr
    assert "nothing was tiered, because no process connected" in answer.stderr
    assert sandbox.terrace("run", "-q", "--window", "0.2", "--", *line).stderr == ""
    # What ends at once had no time for it.
    assert sandbox.terrace("run", "--", program("exit_code")).stderr == ""


# ---- refusals ------------------------------------------------------------------------------------


def refused(sandbox: Sandbox, *command: str | Path) -> str:
    """Runs what must be refused before it starts. The message."""
    answer = sandbox.terrace("run", "--", *command)
    assert answer.returncode == 1
    assert answer.stdout == "", "the program was started"
    assert answer.stderr.startswith("terrace: ")
    assert answer.stderr.count("\n") == 1, "one line says it"
    assert sandbox.sockets() == []
    return answer.stderr


@tiered
def test_static_program_is_refused(sandbox: Sandbox, program: Compiler) -> None:
    """The loader never sees it, so it would run untiered without a word."""
    static = program("exit_code", "-static")
    assert "statically linked" in refused(sandbox, static)
    answer = sandbox.terrace("run", "--best-effort", "--", static, "7")
    assert (answer.returncode, answer.stdout) == (7, "STARTED\n")
    assert "untiered" in answer.stderr


@tiered
def test_best_effort_covers_a_session_without_a_place(sandbox: Sandbox, program: Compiler) -> None:
    """A service must start also where its runtime directory is read-only, or too deep."""
    # Longer than the 107 bytes of a socket's path, which even root cannot have.
    deep = sandbox.runtime_dir / ("deep" * 25)
    deep.mkdir(mode=0o700)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Sandbox, "runtime_dir", deep)
        line = ("--", program("exit_code"), "7")
        answer = sandbox.terrace("run", *line)
        assert (answer.returncode, answer.stdout) == (1, "")
        assert answer.stderr.count("\n") == 1
        answer = sandbox.terrace("run", "--best-effort", *line)
        assert (answer.returncode, answer.stdout) == (7, "STARTED\n")
        assert answer.stderr.count("\n") == 1
        assert "untiered, as --best-effort asks" in answer.stderr
        assert sandbox.sockets() == []


@tiered
@pytest.mark.parametrize("name", ["sp ace", "co:lon", "no library"])
def test_a_library_that_the_loader_passes_over_is_refused(
    sandbox: Sandbox, program: Compiler, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """The loader complains and starts the program without it: untiered, and nobody would know."""
    library = sandbox.folder / (name if name != "no library" else "text") / "libterrace.so"
    library.parent.mkdir()
    if name == "no library":
        library.write_text("#!/bin/sh\n")
    else:
        library.symlink_to("real.so")
        shutil.copy(terrace_binary().with_name("libterrace.so"), library.with_name("real.so"))
    monkeypatch.setenv("TERRACE_LIB", str(library))
    why = "it is no shared library" if name == "no library" else "LD_PRELOAD"
    assert why in refused(sandbox, program("exit_code"))
    doctor = sandbox.terrace("doctor")
    assert doctor.returncode == 1
    assert why in doctor.stdout


@tiered
def test_arguments_need_not_be_text(sandbox: Sandbox, program: Compiler) -> None:
    """Names of files are bytes; a program gets the ones it was given, and may have such a name."""
    odd = os.fsdecode(b"odd \xff")
    shutil.copy(program("exit_code"), sandbox.folder / odd)
    answer = sandbox.terrace("run", "--", f"./{odd}", "7")
    assert (answer.returncode, answer.stdout) == (7, "STARTED\n"), answer.stderr
    answer = sandbox.terrace("run", "--", "test", "-x", odd)
    assert answer.returncode == 0, answer.stderr


@tiered
def test_setuid_program_is_refused(sandbox: Sandbox, program: Compiler) -> None:
    """The loader ignores LD_PRELOAD for it, silently."""
    privileged = sandbox.folder / "privileged"
    if os.geteuid() == 0:
        shutil.copy(program("exit_code"), privileged)
        os.chown(privileged, pwd.getpwnam("nobody").pw_uid, -1)
        privileged.chmod(0o4755)
    else:
        privileged = Path(shutil.which("su") or pytest.skip("no setuid program here"))
    assert "setuid" in refused(sandbox, privileged)


@tiered
@pytest.mark.parametrize(
    ("flag", "name"),
    [
        ("address", "AddressSanitizer"),
        ("thread", "ThreadSanitizer"),
        ("leak", "LeakSanitizer"),
    ],
)
@pytest.mark.parametrize("by", ["us", "a shell"])
def test_a_sanitizer_is_left_alone(
    sandbox: Sandbox, program: Compiler, flag: str, name: str, by: str
) -> None:
    """Its notes of the program's memory are read by what our pager calls.

    And the first of these ends every program in which it is not loaded first, also what is
    executed by a build or a shell.
    """
    # Whether its library is there; that our own program does not compile is no reason to skip.
    compiler = shutil.which("gcc") or "cc"
    line = [compiler, f"-fsanitize={flag}", "-x", "c", "-", "-o", str(sandbox.folder / "empty")]
    tried = subprocess.run(line, input=b"int main(void) { return 0; }", check=False)
    if tried.returncode != 0:
        pytest.skip(f"the compiler has no {name}")
    sanitized = program("sanitized", f"-fsanitize={flag}")
    alone = subprocess.run(
        [sanitized], capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    command = (sanitized,) if by == "us" else ("sh", "-c", '"$0"; exit $?', sanitized)
    answer = sandbox.terrace("run", "--torture=1", "--", *command)
    assert (alone.returncode, alone.stdout) == (0, "OK\n"), alone.stderr
    assert (answer.returncode, answer.stdout) == (0, "OK\n"), answer.stderr
    if by == "us":
        assert f"it was built with {name}" in answer.stderr


@tiered
def test_calls_in_front_of_libc_are_left_alone(sandbox: Sandbox, program: Compiler) -> None:
    """The pager would make them, and wait for a page that only it can bring."""
    interposed = program("interposed", "-rdynamic")
    answer = sandbox.terrace("run", "--torture=1", "--", interposed)
    assert (answer.returncode, answer.stdout) == (0, "OK\n"), answer.stderr
    assert "the read of interposed-rdynamic stands in front of libc's" in answer.stderr


@tiered
def test_missing_program_is_refused(sandbox: Sandbox) -> None:
    """Named as a shell would name it."""
    assert "no-such-program: not found" in refused(sandbox, "no-such-program")


@pytest.mark.usefixtures("userfaultfd_for_root")
def test_no_userfaultfd(nobody: Sandbox, program: Compiler) -> None:
    """Pages that went down could not come back: nothing is started, unless untiered will do."""
    message = refused(nobody, program("exit_code"))
    assert "userfaultfd" in message
    assert "terrace doctor" in message
    assert "--best-effort" in message
    answer = nobody.terrace("run", "--best-effort", "--", program("exit_code"), "7")
    assert (answer.returncode, answer.stdout) == (7, "STARTED\n")
    assert "untiered" in answer.stderr
    doctor = nobody.terrace("doctor")
    assert doctor.returncode != 0
    report = json.loads(nobody.terrace("doctor", "--json").stdout)
    assert report["can_tier"] is False
    (missing,) = [c for c in report["checks"] if c["required"] and c["state"] == "missing"]
    assert missing["name"] == "userfaultfd"
    assert "userfaultfd" in missing["fix"], "the command that mends it"
    assert missing["fix"] in doctor.stdout


BAD_CONFIGURATIONS = [
    ("[run]\nwindow_s = 5\nwindw = 3\n", 3, "run.windw"),
    ("[run]\nwindow_s = -5\n", 2, "run.window_s"),
    ('[policy]\nkind = "magic"\n', 2, "policy.kind"),
    ("[policy]\nalpha = 1.5\n", 2, "policy.alpha"),
    ('[[tier]]\npool = "zbud"\nmedium = "dram"\ncodec = "lz5"\n', 4, "tier.codec"),
    ('[[tier]]\npool = "zbud"\ncodec = "lz4"\nmedium = "optane"\n', 4, "tier.medium"),
    ('[[medium]]\nname = "m"\nkind = "tape"\nusd_per_gib_month = 1\n', 3, "medium.kind"),
    ("[run\n", 1, ""),
]


@pytest.mark.parametrize(("text", "line", "key"), BAD_CONFIGURATIONS)
def test_bad_configuration(sandbox: Sandbox, text: str, line: int, key: str) -> None:
    """A bad value names file, line and key, and nothing is started."""
    (sandbox.folder / "bad.toml").write_text(text)
    for verb in (["run"], ["tiers", "list"]):
        tail = ["--", "echo", "started"] if verb == ["run"] else []
        answer = sandbox.terrace(*verb, "--config", "bad.toml", *tail)
        assert answer.returncode == 1
        assert answer.stdout == ""
        assert f"bad.toml:{line}: {key}" in answer.stderr


def test_missing_configuration(sandbox: Sandbox) -> None:
    """A file that is not there is an error, not the default."""
    answer = sandbox.terrace("tiers", "list", "--config", "absent.toml")
    assert answer.returncode == 1
    assert "absent.toml" in answer.stderr


def test_timeline_that_cannot_be_written(sandbox: Sandbox) -> None:
    """Said before the program starts, not after an hour's work."""
    answer = sandbox.terrace("run", "--timeline", "no/such/folder", "--", "echo", "started")
    assert (answer.returncode, answer.stdout) == (1, "")
    assert "--timeline" in answer.stderr or "userfaultfd" in answer.stderr


# ---- answers -------------------------------------------------------------------------------------


@tiered
def test_status(sandbox: Sandbox, program: Compiler) -> None:
    """While it runs, the table and the JSON show the application and what went where."""
    with sandbox.start(program("linger")) as run:
        pid = int(run.until("PID").split()[1])
        table = sandbox.terrace("status")
        assert table.returncode == 0, table.stderr
        for part in (
            f"pid {pid}",
            "zsmalloc+zstd+dram",
            "of TCO",
            "a month",
            "faults",
            "stalled",
            "plan",
        ):
            assert part in table.stdout, part

        def application() -> dict[str, Any]:
            answer = json.loads(sandbox.terrace("status", "--json").stdout)
            (session,) = answer["sessions"]
            assert session["supervisor_pid"] == run.pid
            (application,) = session["applications"]
            assert application["pid"] == pid
            last: dict[str, Any] = application["last"]
            return last

        # Most of it is down, and what went there in this window counts for half of it.
        wait_until("it is saved", lambda: application()["tco_saved"] > 0.3)
        assert pages_in_tiers(application()) > 2000
        assert sandbox.terrace("status", str(pid)).returncode == 0
        stranger = sandbox.terrace("status", "1")
        assert stranger.returncode == 1
        assert "no session with process 1" in stranger.stderr
    assert "no sessions" in sandbox.terrace("status").stdout


@tiered
def test_status_of_jobs_that_ended(sandbox: Sandbox) -> None:
    """A program that starts a process for every job: none of them looks alive for ever."""
    leave = sandbox.folder / "leave"
    job = sandbox.folder / "job.py"
    job.write_text(
        "import pathlib, sys, time\n"
        "d = bytearray(b'job ' * (16 << 20))\n"
        "while not pathlib.Path(sys.argv[1]).exists(): time.sleep(0.05)\n"
    )
    jobs = f"for i in 1 2 3; do {sys.executable} {job} {leave}$i; done; echo ENDED; sleep 60"
    with sandbox.start("sh", "-c", jobs) as run:

        def known(*, has_ended: bool) -> list[int]:
            answer = json.loads(sandbox.terrace("status", "--json").stdout)
            (session,) = answer["sessions"]
            assert session["ended_before"]["applications"] == 0
            ours = [a for a in session["applications"] if not a["command"].startswith("sh ")]
            return [a["pid"] for a in ours if a["has_ended"] == has_ended]

        for i in (1, 2, 3):
            # One that ends before its first window does (1 s) is never known.
            wait_until(f"job {i} is known", lambda: len(known(has_ended=False)) == 1)
            leave.with_name(f"leave{i}").touch()
            wait_until("it has ended", lambda: len(known(has_ended=False)) == 0)
            assert len(known(has_ended=True)) == i
        run.until("ENDED")
        said = sandbox.terrace("status", str(known(has_ended=True)[0])).stdout
        assert "ended after" in said, said


@tiered
def test_a_session_of_another_environment_is_found(sandbox: Sandbox, program: Compiler) -> None:
    """Cron has no XDG_RUNTIME_DIR and a login has: each finds the other's session."""
    here = sandbox.environment()
    del here["TERRACE_RUNTIME_DIR"]
    elsewhere = {**here, "XDG_RUNTIME_DIR": str(sandbox.folder)}
    cron = {key: value for key, value in here.items() if key != "XDG_RUNTIME_DIR"}

    def asked(environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [terrace_binary(), *arguments],
            env=environment,
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )

    for theirs, ours in ((cron, here), (here, cron), (elsewhere, here)):
        with subprocess.Popen(
            [terrace_binary(), "run", *HARD, "--", program("linger")],
            env=theirs,
            stdout=subprocess.PIPE,
            stdin=subprocess.PIPE,
            text=True,
        ) as run:
            assert run.stdout is not None
            pid = run.stdout.readline().split()[1]
            try:

                def is_found(ours: dict[str, str] = ours, pid: str = pid) -> bool:
                    return f"pid {pid}" in asked(ours, "status", pid).stdout

                wait_until("its session is found", is_found)
                explained = asked(ours, "explain", pid)
                assert explained.returncode == 0, explained.stderr
                run.kill()
                run.wait(10)
                assert f"terrace attach {pid}" in asked(ours, "status", pid).stdout
            finally:
                run.kill()
                os.kill(int(pid), signal.SIGKILL)

            def is_gone(ours: dict[str, str] = ours, pid: str = pid) -> bool:
                return asked(ours, "status", pid).returncode == 1

            # (What was killed takes a while to give its memory back.)
            wait_until("nothing is left of it", is_gone)


@tiered
def test_status_of_what_a_wrapper_became(sandbox: Sandbox, program: Compiler) -> None:
    """An entrypoint script ends in exec: its id is another program's then, with its own planner."""
    script = sandbox.folder / "entrypoint.sh"
    script.write_text(f"#!/bin/sh\nsleep 1\nexec {program('linger')}\n")
    script.chmod(0o755)
    with sandbox.start(script) as run:
        pid = int(run.until("PID").split()[1])
        # Longer than the thread that served the script's runtime waits for its door to go.
        time.sleep(1.5)

        def is_planned() -> bool:
            answer = json.loads(sandbox.terrace("status", "--json").stdout)
            sessions: list[dict[str, Any]] = answer["sessions"]
            known = [a["pid"] for one in sessions for a in one["applications"]]
            return pid in known and answer["unplanned"] == []

        wait_until("the program has a planner", is_planned)
        explained = sandbox.terrace("explain", str(pid))
        assert explained.returncode == 0, explained.stderr


@tiered
def test_timeline_is_as_documented(sandbox: Sandbox, program: Compiler) -> None:
    """docs/timeline.md lists every field, and no other is written."""
    document = (Path(__file__).parent.parent / "docs/timeline.md").read_text()
    with sandbox.start(program("linger")) as run:
        run.until("PID")
        window = run.windows()[-1]
    names = set(window) | {f"tiers[].{n}" for n in window["tiers"][1]}
    for name in names:
        short = name.removeprefix("tiers[].")
        shown = any(f"`{form}`" in document for form in (name, short, f"{name}[]"))
        assert shown, f"{name} is not documented"


def test_stale_sockets_are_removed(sandbox: Sandbox) -> None:
    """A socket that nobody listens on is what a killed session leaves."""
    assert sandbox.terrace("status").returncode == 0
    (folder,) = sandbox.runtime_dir.iterdir()
    for name in ("999999.sock", "999999.link"):
        with socket.socket(socket.AF_UNIX) as stale:
            stale.bind(str(folder / name))
    assert sandbox.terrace("status").returncode == 0
    assert sandbox.sockets() == []


def test_runtime_directory_of_somebody_else(sandbox: Sandbox) -> None:
    """Whoever can put a socket there could show anything: a directory open to others is refused."""
    folder = sandbox.runtime_dir / f"terrace-{os.geteuid()}"
    folder.mkdir()
    folder.chmod(0o777)
    answer = sandbox.terrace("status")
    assert answer.returncode == 1
    assert "open to others" in answer.stderr


def test_doctor(sandbox: Sandbox) -> None:
    """Each check says how it is; what is missing says what it costs, and mostly how to mend it."""
    text = sandbox.terrace("doctor")
    report = json.loads(sandbox.terrace("doctor", "--json").stdout)
    assert (text.returncode == 0) == report["can_tier"]
    names = [check["name"] for check in report["checks"]]
    for name in ("userfaultfd", "UFFDIO_MOVE", "transparent huge pages", "vm.max_map_count"):
        assert name in names
        assert name in text.stdout
    assert report["tracker"]["method"] in text.stdout
    for check in report["checks"]:
        assert check["state"] in ("ok", "degraded", "missing")
        assert check["found"], check
        assert (check["state"] == "ok") == (check["cost"] == ""), check


@pytest.mark.parametrize(("preset", "tiers"), [("auto", 4), ("tierscape", 6)])
def test_tiers_list(sandbox: Sandbox, preset: str, tiers: int) -> None:
    """DRAM and every compressed tier, in the order in which data moves down."""
    table = sandbox.terrace("tiers", "list", "--preset", preset)
    listed = json.loads(sandbox.terrace("tiers", "list", "--preset", preset, "--json").stdout)
    assert len(listed) == tiers
    assert [tier["id"] for tier in listed] == [f"T{n}" for n in range(tiers)]
    for tier in listed:
        assert tier["name"] in table.stdout
    assert any(tier["emulated"] for tier in listed) == (preset == "tierscape")


def test_a_session_that_accepts_nobody(sandbox: Sandbox) -> None:
    """It hides no runtime, and `status` does not wait for it as its other callers do."""
    folder = sandbox.runtime_dir / f"terrace-{os.geteuid()}"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with contextlib.ExitStack() as open_sockets:

        def unix_socket() -> socket.socket:
            return open_sockets.enter_context(socket.socket(socket.AF_UNIX))

        alive, stopped = unix_socket(), unix_socket()
        alive.bind(str(folder / "77.runtime"))
        alive.listen()
        stopped.bind(str(folder / "5.sock"))
        stopped.listen(0)
        with contextlib.suppress(BlockingIOError):
            while True:
                caller = unix_socket()
                caller.settimeout(0)
                caller.connect(str(folder / "5.sock"))
        start = time.monotonic()
        done = sandbox.terrace("status")
        assert time.monotonic() - start < 4
        assert "77 is perhaps planned for by session 5, which does not" in done.stdout, done
        assert "it accepts no connection" in done.stdout + done.stderr, done
