"""Who may speak to a runtime, who may read what it holds, and what `libterrace.so` is made of.

The tests about other users need root, to become two of them.
"""

from __future__ import annotations

import os
import pwd
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from harness import Run, Sandbox, terrace_binary, wait_until
from test_media import file_options, options_for
from test_planner import conclude, orphan, start_pid

Compiler = Callable[..., Path]


def stranger() -> int:
    """A user who is neither root nor `nobody`."""
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    return pwd.getpwnam("daemon").pw_uid


def as_stranger(script: str, *arguments: str | Path) -> str:
    """Runs a Python script as that user; what it prints."""
    done = subprocess.run(
        ["/usr/bin/env", "python3", "-c", script, *arguments],
        user=stranger(),
        group=stranger(),
        extra_groups=[],
        cwd="/",
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


# Connects, sends a line that `status` would, and prints what comes: an errno, or the bytes.
KNOCK = """
import socket, sys
for path in sys.argv[1:]:
    with socket.socket(socket.AF_UNIX) as s:
        s.settimeout(5)
        try:
            s.connect(path)
        except OSError as e:
            print("refused", e.errno)
            continue
        try:
            s.sendall(b'{"ask":"status"}\\n')
            print("answered", len(s.recv(100)))
        except TimeoutError:
            print("silent")
        except OSError:
            print("answered", 0)
"""


@pytest.mark.usefixtures("can_tier")
def test_sockets_are_the_owners(sandbox: Sandbox, program: Compiler) -> None:
    """Closed by their directory and their modes; and whoever gets past these is not spoken to."""
    uid = stranger()
    with sandbox.start(program("steady")) as run:
        pid = start_pid(run)
        folder = sandbox.runtime_dir / f"terrace-{sandbox.uid}"
        names = {f"{run.pid}.sock", f"{run.pid}.link", f"{pid}.runtime"}
        paths = sandbox.sockets()
        assert {p.name for p in paths} == names
        assert folder.stat().st_mode & 0o777 == 0o700
        assert [oct(p.stat().st_mode & 0o777) for p in paths] == ["0o600"] * 3
        said = as_stranger(KNOCK, *paths).splitlines()
        assert said == ["refused 13"] * 3
        # Now as if somebody had opened all of it.
        for path in (sandbox.folder, sandbox.runtime_dir, folder, *paths):
            path.chmod(0o777)
        served = [folder / f"{run.pid}.sock", folder / f"{run.pid}.link"]
        assert as_stranger(KNOCK, *served).splitlines() == ["answered 0"] * 2, uid
        orphan(run)
        time.sleep(0.3)
        assert as_stranger(KNOCK, folder / f"{pid}.runtime").splitlines() == ["answered 0"]
        for path in (sandbox.folder, sandbox.runtime_dir, folder):
            path.chmod(0o700)
        answer = sandbox.terrace("status")
        assert f"terrace attach {pid}" in answer.stdout, "the owner is still welcome"
        conclude(run, pid)


# Listens, says so, and prints what comes with the first connection.
LISTEN = """
import os, socket, sys
os.umask(0)
with socket.socket(socket.AF_UNIX) as s:
    s.bind(sys.argv[1])
    s.listen()
    s.settimeout(10)
    print("listening", flush=True)
    c, _ = s.accept()
    c.settimeout(5)
    try:
        print("heard", len(c.recv(100)), flush=True)
    except OSError:
        print("heard 0", flush=True)
"""


@pytest.mark.usefixtures("can_tier")
@pytest.mark.parametrize("suffix", ["sock", "runtime", "link"])
def test_a_strangers_socket_is_not_trusted(
    sandbox: Sandbox, program: Compiler, suffix: str
) -> None:
    """Neither the runtime nor `status` or `attach` say a word to another user's socket."""
    uid = stranger()
    folder = sandbox.runtime_dir / f"terrace-{sandbox.uid}"
    folder.mkdir(mode=0o700)
    place = sandbox.folder / "theirs"
    place.mkdir()
    os.chown(place, uid, uid)
    sandbox.folder.chmod(0o755)
    theirs = place / f"12345.{suffix}"
    with subprocess.Popen(
        ["/usr/bin/env", "python3", "-c", LISTEN, theirs],
        user=uid,
        group=uid,
        extra_groups=[],
        cwd="/",
        stdout=subprocess.PIPE,
        text=True,
    ) as listener:
        assert listener.stdout is not None
        try:
            assert listener.stdout.readline() == "listening\n"
            if suffix == "link":
                library = terrace_binary().parent / "libterrace.so"
                environment = {
                    **sandbox.environment(),
                    "LD_PRELOAD": str(library),
                    "TERRACE_SOCKET": str(theirs),
                }
                line = [str(program("steady")), "8", "now"]
                with subprocess.Popen(line, env=environment, stdout=subprocess.DEVNULL) as tiered:
                    assert listener.stdout.readline() == "heard 0\n"
                    # It may not have come to its own handler yet.
                    tiered.terminate()
                    assert tiered.wait(20) in (0, -signal.SIGTERM)
            else:
                # The link is ours, what it leads to is not.
                (folder / theirs.name).symlink_to(theirs)
                verb = ["attach", "12345"] if suffix == "runtime" else ["status"]
                answer = sandbox.terrace(*verb)
                assert "another user" in answer.stdout + answer.stderr, answer
                assert listener.stdout.readline() == "heard 0\n"
        finally:
            listener.kill()


# Tries to read everything of a process that has bytes in it; prints what could be opened.
PRY = """
import os, sys
pid = sys.argv[1]
base = f"/proc/{pid}"
paths = [f"{base}/{name}" for name in ("mem", "maps", "smaps", "pagemap", "environ", "auxv")]
for folder in ("fd", "map_files"):
    try:
        paths += [f"{base}/{folder}/{name}" for name in os.listdir(f"{base}/{folder}")]
        print("listed", folder)
    except OSError:
        pass
paths += [f"{base}/fd/{n}" for n in range(2000)]
for path in paths + sys.argv[2:]:
    try:
        with open(path, "rb") as file:
            file.read(1)
        print("opened", path)
    except OSError:
        pass
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
if libc.ptrace(16, int(pid), 0, 0) == 0:
    print("attached to it")
"""


@pytest.mark.usefixtures("userfaultfd_for_all", "can_tier")
@pytest.mark.parametrize("medium", ["memory", "file", "device"])
def test_nobody_else_reads_the_pages(nobody: Sandbox, program: Compiler, medium: str) -> None:
    """Another user finds no way to a page, in the process or on the medium."""
    options: tuple[str, ...] = ("--window", "0.2", "--policy", "analytical", "--alpha", "0")
    device = Path("/dev/shm") / f"{nobody.folder.name}.dax"
    if medium == "file":
        options = file_options(nobody)
    if medium == "device":
        with device.open("wb") as file:
            file.truncate(64 << 20)
        device.chmod(0o644)
        os.chown(device, nobody.uid, -1)
        options = options_for(nobody, f'kind = "dax"\npath = "{device}"\nstand_in = true')
    try:
        with nobody.start(program("steady"), options=options) as run:
            pid = start_pid(run)
            nobody.folder.chmod(0o755)
            on_disk = [p for p in nobody.folder.iterdir() if p.is_file()]
            found = as_stranger(PRY, str(pid), *on_disk, device).split("\n")[:-1]
            allowed = {f"opened {p}" for p in [*on_disk, device] if p.exists()}
            assert set(found) <= allowed, found
            texts = [p.read_bytes() for p in [*on_disk, device] if p.exists()]
            assert not any(b"request" in text for text in texts), "pages in the clear"
            if medium == "device":
                assert any(device.read_bytes()), "nothing was ever written to it"
            if medium == "file":
                deleted = [
                    fd
                    for fd in Path(f"/proc/{pid}/fd").iterdir()
                    if str(fd.readlink()).endswith("(deleted)")
                ]
                assert deleted, "no file without a name"
                assert all(fd.stat().st_mode & 0o777 == 0o600 for fd in deleted)
                assert not any(b"request" in fd.read_bytes() for fd in deleted), "in the clear"
            conclude(run, pid)
    finally:
        device.unlink(missing_ok=True)


@pytest.mark.usefixtures("can_tier")
def test_a_device_open_to_others_is_refused(sandbox: Sandbox, program: Compiler) -> None:
    """In the clear, only on what nobody else can read; and on nothing that all can write."""
    device = Path("/dev/shm") / f"{sandbox.folder.name}.dax"
    with device.open("wb") as file:
        file.truncate(64 << 20)
    try:
        for mode, encrypt in ((0o644, "false"), (0o606, "true")):
            device.chmod(mode)
            medium = f'kind = "dax"\npath = "{device}"\nstand_in = true\nencrypt = {encrypt}'
            options = options_for(sandbox, medium)
            with sandbox.start(program("steady"), "8", "now", options=options) as run:
                pid = start_pid(run)

                def is_said(run: Run = run) -> bool:
                    return "other users can" in run.stderr()

                wait_until("it is said", is_said)
                conclude(run, pid)
            assert not any(device.read_bytes())
    finally:
        device.unlink()


@pytest.mark.usefixtures("can_tier")
def test_the_process_is_what_it_was(sandbox: Sandbox, program: Compiler) -> None:
    """Dumping, core sizes, filters, privileges and the OOM score stay as the program has them."""

    def facts(pid: int) -> dict[str, str]:
        base = Path(f"/proc/{pid}")
        names = ("oom_score_adj", "coredump_filter", "limits")
        seen = {name: (base / name).read_text() for name in names}
        status = (base / "status").read_text().splitlines()
        kept = ("NoNewPrivs", "Seccomp", "CapEff", "CapPrm", "CapBnd", "CapAmb", "Uid", "Umask")
        seen |= {k: v for k, _, v in (line.partition(":") for line in status) if k in kept}
        # A process that may not be dumped belongs to root in /proc.
        seen["owner"] = str(base.stat().st_uid)
        return seen

    plain = subprocess.Popen(
        [program("steady"), "8", "now"], stdout=subprocess.DEVNULL, start_new_session=True
    )
    try:
        with sandbox.start(program("steady")) as run:
            pid = start_pid(run)
            assert facts(pid) == facts(plain.pid)
            conclude(run, pid)
    finally:
        plain.kill()
        plain.wait(10)


# ---- the library ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def readelf(terrace: Path) -> Callable[..., str]:
    """What readelf says of the runtime."""
    if shutil.which("readelf") is None:
        pytest.skip("no readelf; it comes with gcc")
    library = terrace.parent / "libterrace.so"

    def read(*options: str) -> str:
        line: list[str | Path] = ["readelf", "-W", *options, library]
        said = subprocess.run(line, capture_output=True, text=True, check=True)
        return said.stdout

    return read


def test_the_library_needs_libc_only(readelf: Callable[..., str]) -> None:
    """It is loaded into every process of a tree: whatever it needs, they all need."""
    needed = re.findall(r"\(NEEDED\).*\[(.+)\]", readelf("-d"))
    loader = {"ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"}
    assert set(needed) <= {"libc.so.6", *loader}, needed
    assert "libc.so.6" in needed
    assert not re.search(r"\((RPATH|RUNPATH)\)", readelf("-d")), "it looks nowhere else"


def test_the_library_is_hardened(readelf: Callable[..., str]) -> None:
    """Nothing is writable and executable, and after loading nothing redirects its calls."""
    dynamic, segments = readelf("-d"), readelf("-l")
    assert "BIND_NOW" in dynamic
    assert re.search(r"FLAGS_1.*\bNOW\b", dynamic)
    assert "TEXTREL" not in dynamic
    relro = re.search(r"GNU_RELRO\s+0x\w+ (0x\w+) 0x\w+ 0x\w+ (0x\w+)", segments)
    assert relro, segments
    got = re.search(r"\.got\s+PROGBITS\s+(\w+)", readelf("-S"))
    assert got is not None
    start, length = int(relro[1], 16), int(relro[2], 16)
    assert start <= int(got[1], 16) < start + length, "full RELRO has the GOT in it"
    stack = re.search(r"GNU_STACK\s+(?:0x\w+ ){5}(\S+)", segments)
    assert stack is not None and stack[1] == "RW", "an executable stack"
    loads = re.findall(r"LOAD\s+(?:0x\w+ ){5}(R ?W? ?E?)", segments)
    assert loads and not any("W" in flags and "E" in flags for flags in loads), loads


def test_the_library_exports_what_it_must(readelf: Callable[..., str]) -> None:
    """Only the libc functions that it stands in front of: no name of its own can clash."""
    folder = Path(__file__).parent.parent / "crates/preload/src"
    shims = set()
    for source in ("interpose.rs", "sys/clones.rs", "sys/sanitizers.rs", "sys/users.rs"):
        text = (folder / source).read_text()
        shims |= set(re.findall(r'pub unsafe extern "C" fn (\w+)', text))
        shims |= set(re.findall(r"^ids!\((\w+)", text, re.MULTILINE))
    exported = set()
    for line in readelf("--dyn-syms").splitlines():
        fields = line.split()
        if len(fields) >= 8 and fields[4] in ("GLOBAL", "WEAK") and fields[6] != "UND":
            exported.add(fields[7].partition("@")[0])
    # And what abort() is bound to within the library (build.rs).
    assert exported == shims | {"terrace_abort"}
