"""Tiers in files, on devices and on NUMA nodes: the same hazards, and what only devices do.

A device is slow, so faults on it are served by other threads than the pager; it fills up; it fails.
The hazard programs check every byte.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from harness import (
    HARD,
    Sandbox,
    faults_from_tiers,
    pages_in_tiers,
    terrace_binary,
    unmount,
    wait_until,
)
from test_hazards import UNPRIVILEGED, Compiler, face

pytestmark = pytest.mark.usefixtures("can_tier")

TIERS = """
[[tier]]
codec = "lz4"
pool = "zsmalloc"
medium = "far"
[[tier]]
codec = "zstd"
pool = "zbud"
medium = "far"
"""


def options_for(sandbox: Sandbox, medium: str, tiers: str = TIERS) -> tuple[str, ...]:
    """Options of a run whose tiers are on one medium, called `far`."""
    config = sandbox.folder / "media.toml"
    price = "usd_per_gib_month = 0.01"
    config.write_text(f'[[medium]]\nname = "far"\n{price}\n{medium}\n{tiers}')
    return (*HARD, "--config", str(config))


def file_options(sandbox: Sandbox, capacity_mib: int = 256) -> tuple[str, ...]:
    """A file in the sandbox's own folder."""
    medium = f'kind = "file"\ndirectory = "{sandbox.folder}"\ncapacity_mib = {capacity_mib}'
    return options_for(sandbox, medium)


def resident_bytes(pid: int) -> int:
    """What the kernel counts as resident of a process."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096


# ---- a file --------------------------------------------------------------------------------------

# The fault path, forks and changes of the address space: whatever may happen to a page while it is
# being read for somebody.
IN_A_FILE = [
    "touch", "content", "threads", "same_word", "fork_reads", "fork_unmaps", "fork_fork",
    "daemonise", "spawn", "exec", "thread_churn", "unmap", "remap", "remap_race", "dontneed",
    "dontneed_race", "free_lazily", "protect", "lock", "lock_all", "map_churn", "heap",
    "brk_shrinks", "syscalls", "peer_reads", "futex", "altstack", "stop",
]  # fmt: skip


@pytest.mark.parametrize("name", IN_A_FILE)
def test_in_a_file(sandbox: Sandbox, program: Compiler, name: str) -> None:
    """Every hazard of the fault path, with pages that take a while to come."""
    face(sandbox, program(name), options=file_options(sandbox))
    left = [p.name for p in sandbox.folder.iterdir() if p.name.startswith(".terrace")]
    assert left == [], "the file had a name"


@pytest.mark.parametrize("how", ["close", "close_range", "closefrom", "dup2", "reuse", "fork"])
def test_descriptors_of_the_file(sandbox: Sandbox, program: Compiler, how: str) -> None:
    """A program that closes what it does not know must not lose its own pages."""
    face(sandbox, program("close_all"), how, options=file_options(sandbox))


@pytest.mark.usefixtures("userfaultfd_for_all")
@pytest.mark.parametrize("name", UNPRIVILEGED)
def test_in_a_file_unprivileged(nobody: Sandbox, program: Compiler, name: str) -> None:
    """Before a fork that is not announced, every page comes home from the file."""
    face(nobody, program(name), options=file_options(nobody))


def test_a_file_too_small(sandbox: Sandbox, program: Compiler) -> None:
    """What does not fit stays in memory, and is counted; nothing is lost."""
    # The analytical planner knows how much fits; the waterfall does not.
    waterfall = ("--window", "0.2", "--policy", "waterfall", "--threshold", "100%")
    options = (*waterfall, *file_options(sandbox, 1)[len(HARD) :])
    with sandbox.start(program("overflow"), "1000", options=options) as run:
        assert run.conclude() == 0, f"{run.lines}\n{run.stderr()}"
        last = run.windows()[-1]
        tiers = last["tiers"][1:]
        assert sum(t["refused"]["pool_full"] for t in tiers) > 1000, tiers
        assert all(t["pool_bytes"] <= 1 << 20 for t in tiers), tiers
        assert faults_from_tiers(last) > 0


def ends_with_one_line(sandbox: Sandbox, command: list[str | Path], last: str, why: str) -> None:
    """The program says `last`, then meets a page that is lost, and is ended with that reason."""
    with sandbox.start(*command, options=file_options(sandbox)) as run:
        status = run.conclude()
        report = f"{status}: {run.lines}\n{run.stderr()}"
        assert run.lines[-1] == last, report
        assert status == 128 + signal.SIGABRT, report
        said = [line for line in run.stderr().splitlines() if "the stored copy of page" in line]
        assert len(said) == 1, report
        assert f"{why}; ending the program" in said[0], report


def test_a_file_that_cannot_be_read(sandbox: Sandbox, program: Compiler) -> None:
    """Tried again, then the program ends with one line; never with wrong bytes."""
    why = "could not be read from its medium, tried again and again"
    ends_with_one_line(sandbox, [program("lose_file")], "CLOSED", why)
    assert (sandbox.folder / "own").stat().st_size == 0, "the program's own file was written"


def test_a_file_that_was_damaged(sandbox: Sandbox, program: Compiler) -> None:
    """A page that does not match its checksum is handed to nobody."""
    why = "does not match its checksum"
    ends_with_one_line(sandbox, [program("lose_file"), "damage"], "DAMAGE", why)


@pytest.mark.parametrize("price", [0.3, 0.1])
def test_what_does_not_shrink(sandbox: Sandbox, program: Compiler, price: float) -> None:
    """It stays in memory, unless the medium costs so much less that it pays as it is."""
    config = sandbox.folder / "priced.toml"
    config.write_text(
        f'[[medium]]\nname = "dram"\nkind = "dram"\nusd_per_gib_month = 0.3\n'
        f'[[medium]]\nname = "far"\nkind = "file"\nusd_per_gib_month = {price}\n'
        f'directory = "{sandbox.folder}"\ncapacity_mib = 256\n{TIERS}'
    )
    with sandbox.start(program("futile"), options=(*HARD, "--config", str(config))) as run:
        assert run.conclude() == 0, f"{run.lines}\n{run.stderr()}"
        windows = run.windows()
    refused = sum(t["refused"]["incompressible"] for t in windows[-1]["tiers"][1:])
    most = max(pages_in_tiers(w) for w in windows)
    # 48 MiB of lines, as much that is random: a page of these takes a page.
    if price < 0.3:
        assert refused == 0, windows[-1]["tiers"]
        assert most > 20_000
        # (Where the file is on tmpfs its bytes count as memory.)
        in_file = [sum(t["pool_bytes"] + t["dram_bytes"] for t in w["tiers"][1:]) for w in windows]
        assert max(in_file) > 40 << 20
    else:
        assert refused > 100 and most < 13_000, windows[-1]["tiers"]


def test_money_of_a_file(sandbox: Sandbox, program: Compiler) -> None:
    """What lies in a file is not memory: resident set, price and saving say so."""
    asked = ["stat", "-f", "-c", "%T", str(sandbox.folder)]
    kind = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    # But where temporary files are in memory: there it is, as in `test_a_file_in_memory`.
    in_memory = kind in ("tmpfs", "ramfs")
    with sandbox.start(program("linger"), options=file_options(sandbox)) as run:
        pid = int(run.until("PID").split()[1])

        def is_counted() -> bool:
            last, own = run.windows()[-1], resident_bytes(pid)
            stored = sum(t["stored_bytes"] for t in last["tiers"][1:])
            beside = last["rss_bytes"] - own
            is_right = beside >= stored if in_memory else abs(beside) < 1 << 20
            return bool(stored > 2 << 20 and is_right)

        wait_until("the resident set is what it has in memory", is_counted)
        last = run.windows()[-1]
    tier = max(last["tiers"][1:], key=lambda t: t["pages"])
    assert (tier["medium_kind"], tier["emulated"]) == ("file", False)
    assert tier["dram_bytes"] < 8 << 20
    pools = sum(t["pool_bytes"] for t in last["tiers"][1:])
    assert (pools == 0) == in_memory, last["tiers"]
    held = sum(t["pages"] for t in last["tiers"][1:]) * 4096
    assert last["managed_bytes"] >= held
    # Equation 12, by the two prices.
    price = tier["usd_per_gib_month"] / last["tiers"][0]["usd_per_gib_month"]
    bill = (last["rss_bytes"] + pools * price) / last["managed_bytes"]
    assert 1 - last["tco_saved"] == pytest.approx(bill, abs=0.002), last


# ---- a filesystem that is full -------------------------------------------------------------------


@pytest.fixture
def small_filesystem(sandbox: Sandbox) -> Iterator[Callable[[str, int], Path]]:
    """Mounts a filesystem of a few MiB; unmounted after the test."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount")
    mounted: list[Path] = []

    def mount(kind: str, mib: int) -> Path:
        folder = sandbox.folder / kind
        folder.mkdir()
        if kind == "tmpfs":
            line = ["mount", "-t", "tmpfs", "-o", f"size={mib}m", "none", str(folder)]
        else:
            image = sandbox.folder / "image"
            with image.open("wb") as file:
                file.truncate(mib << 20)
            if shutil.which("mkfs.ext4") is None:
                pytest.skip("there is no mkfs.ext4")
            subprocess.run(["mkfs.ext4", "-q", "-F", image], check=True, timeout=30)
            line = ["mount", "-o", "loop", str(image), str(folder)]
        done = subprocess.run(line, capture_output=True, text=True, check=False, timeout=30)
        if done.returncode != 0:
            pytest.skip(f"{kind} cannot be mounted here: {done.stderr.strip()}")
        mounted.append(folder)
        return folder

    yield mount
    for folder in mounted:
        unmount(folder)


@pytest.mark.parametrize(("kind", "mib"), [("tmpfs", 2), ("ext4", 4)])
def test_a_full_filesystem(
    sandbox: Sandbox,
    program: Compiler,
    small_filesystem: Callable[[str, int], Path],
    kind: str,
    mib: int,
) -> None:
    """The filesystem is smaller than the capacity says: refused and counted, nothing lost."""
    folder = small_filesystem(kind, mib)
    medium = f'kind = "file"\ndirectory = "{folder}"\ncapacity_mib = 256'
    options = options_for(sandbox, medium)
    # Often enough for as many refusals on a machine that does other things beside.
    with sandbox.start(program("overflow"), "1000", "12", options=options) as run:
        assert run.conclude() == 0, f"{run.lines}\n{run.stderr()}"
        tiers = run.windows()[-1]["tiers"][1:]
        assert sum(t["refused"]["pool_full"] for t in tiers) > 1000, tiers
        assert faults_from_tiers(run.windows()[-1]) > 1000, tiers


def test_a_file_in_memory(
    sandbox: Sandbox, program: Compiler, small_filesystem: Callable[[str, int], Path]
) -> None:
    """What lies on tmpfs is memory: it is said, and counted at the price of memory."""
    folder = small_filesystem("tmpfs", 256)
    options = options_for(sandbox, f'kind = "file"\ndirectory = "{folder}"\ncapacity_mib = 256')
    listed: list[str | Path] = [terrace_binary(), "tiers", "list", *options[-2:]]
    said = subprocess.run(listed, capture_output=True, text=True, check=True, timeout=20).stdout
    assert said.count("in memory (tmpfs): saves nothing") == 2 and "direct I/O" not in said, said
    with sandbox.start(program("linger"), options=options) as run:
        pid = int(run.until("PID").split()[1])
        last = run.windows()[-1]
        tier = max(last["tiers"][1:], key=lambda t: t["pages"])
        assert (tier["medium_kind"], tier["pool_bytes"]) == ("file", 0)
        assert tier["dram_bytes"] > tier["stored_bytes"] > 1 << 20, tier
        assert last["rss_bytes"] > resident_bytes(pid), "the file is not in what it takes"
        os.kill(pid, signal.SIGTERM)
        assert run.conclude() == 42, f"{run.lines}\n{run.stderr()}"


# ---- memory of a node, devices -------------------------------------------------------------------


@pytest.fixture
def device(sandbox: Sandbox) -> Iterator[Path]:
    """A file in shared memory that stands in for a device; removed after the test."""
    path = Path("/dev/shm") / f"{sandbox.folder.name}.dax"
    with path.open("wb") as file:
        file.truncate(64 << 20)
    yield path
    path.unlink()


def stand_in(sandbox: Sandbox, device: Path) -> tuple[str, ...]:
    """Tiers on such a device."""
    return options_for(sandbox, f'kind = "dax"\npath = "{device}"\nstand_in = true')


def test_a_mapped_device(sandbox: Sandbox, program: Compiler, device: Path) -> None:
    """After the run no plain text is on it."""
    face(sandbox, program("touch"), options=stand_in(sandbox, device))
    content = device.read_bytes()
    # (The first block is the mark.)
    assert any(content[4096:]), "nothing was ever written to it"
    assert b"request" not in content, "plain text is left on the device"


@pytest.mark.parametrize(
    ("more", "content", "complaint"),
    [
        ("", bytes(1 << 20), "is an ordinary file, on a filesystem that is not mounted with dax"),
        ("\nstand_in = true", b"letters" * 9999, "holds data, which would be overwritten"),
    ],
    ids=["in the page cache", "with data"],
)
def test_a_file_of_somebody(sandbox: Sandbox, more: str, content: bytes, complaint: str) -> None:
    """What is no device, or holds anything, is refused before the program starts; it stays."""
    letters = sandbox.folder / "letters"
    letters.write_bytes(content)
    options = options_for(sandbox, f'kind = "dax"\npath = "{letters}"{more}')
    with sandbox.start("sh", "-c", "echo STARTED", options=options) as run:
        status = run.process.wait(20)
        assert run.process.stdout is not None
        assert (status != 0, run.process.stdout.read()) == (True, b"")
        assert f'media.toml:5: medium.path: "{letters}" {complaint}' in run.stderr(), run.stderr()
    assert letters.read_bytes() == content


def test_a_device_of_an_earlier_run(sandbox: Sandbox, program: Compiler, device: Path) -> None:
    """What a run left on a file is known to be nobody's: the next one has it again."""
    for _ in range(2):
        face(sandbox, program("touch"), options=stand_in(sandbox, device))
        assert device.read_bytes().startswith(b"terrace: scratch space")


def test_a_device_that_another_has(sandbox: Sandbox, program: Compiler, device: Path) -> None:
    """Nothing is moved out towards what takes nothing, only to be moved back."""
    options = stand_in(sandbox, device)
    with device.open("r+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with sandbox.start(program("steady"), "16", "now", options=options) as run:
            pid = int(run.until("PID").split()[1])

            def refused() -> bool:
                tiers = run.windows()[-1]["tiers"][1:] if run.windows() else []
                return bool(sum(t["refused"]["medium_failed"] for t in tiers) > 10_000)

            wait_until("it is counted", refused)
            moves = run.windows()[-1]["moves_total"]
            os.kill(pid, signal.SIGTERM)
            assert run.conclude() == 0, f"{run.lines}\n{run.stderr()}"
            # A page on its way out is one that the program waits for.
            assert (moves["demoted"], moves["faulted"]) == (0, 0), moves


def test_two_media_on_one_device(sandbox: Sandbox, program: Compiler, device: Path) -> None:
    """One enciphered, one in the clear: each has a part of the device to itself."""
    device.chmod(0o600)
    config = ""
    for name, price, encrypt in [("far", 0.05, "true"), ("near", 0.1, "false")]:
        config += f'[[medium]]\nname = "{name}"\nusd_per_gib_month = {price}\nkind = "dax"\n'
        config += f'path = "{device}"\nstand_in = true\nencrypt = {encrypt}\n'
        config += f'[[tier]]\ncodec = "lz4"\npool = "zsmalloc"\nmedium = "{name}"\n'
    path = sandbox.folder / "media.toml"
    path.write_text(config)
    waterfall = ("--window", "0.2", "--policy", "waterfall", "--threshold", "aggressive")
    face(sandbox, program("touch"), options=(*waterfall, "--config", str(path)))


def test_a_device_with_holes(
    sandbox: Sandbox, program: Compiler, small_filesystem: Callable[[str, int], Path]
) -> None:
    """A mapped write where there is no room is a signal: that is found out at the start."""
    device = small_filesystem("tmpfs", 2) / "device"
    with device.open("wb") as file:
        file.truncate(64 << 20)
    device.chmod(0o600)
    medium = f'kind = "dax"\npath = "{device}"\nstand_in = true\nencrypt = false'
    options = options_for(sandbox, medium)
    with sandbox.start(program("holes"), options=options) as run:
        status = run.conclude()
        report = f"{status}: {run.lines}\n{run.stderr()}"
        assert (status, run.lines[-1:]) == (0, ["OK"]), report
        assert "No space left on device" in run.stderr(), report


NODES = sorted(int(p.name[4:]) for p in Path("/sys/devices/system/node").glob("node[0-9]*"))


@pytest.mark.skipif(len(NODES) < 2, reason="this machine has one NUMA node")
def test_on_another_node(sandbox: Sandbox, program: Compiler) -> None:
    """Pages go to the node that was named and to no other, and come back whole."""
    node = NODES[-1]
    options = options_for(sandbox, f'kind = "numa"\nnode = {node}')
    with sandbox.start(program("linger"), options=options) as run:
        pid = int(run.until("PID").split()[1])
        maps = Path(f"/proc/{pid}/numa_maps").read_text().splitlines()
        bound = [line for line in maps if f" bind:{node} " in line]
        pages = dict.fromkeys(NODES, 0)
        for field in (f for line in bound for f in line.split() if f[0] == "N"):
            on, _, count = field[1:].partition("=")
            pages[int(on)] += int(count)
        held = sum(t["pool_bytes"] for t in run.windows()[-1]["tiers"][1:]) // 4096
        assert held > 100 and pages[node] >= held * 3 // 4, f"{pages}, pools of {held} pages"
        assert sum(pages.values()) == pages[node], f"not only on node {node}: {pages}"
        os.kill(pid, signal.SIGTERM)
        assert run.conclude() == 42, f"{run.lines}\n{run.stderr()}"


@pytest.mark.skipif(len(NODES) < 2, reason="this machine has one NUMA node")
def test_threads_on_another_node(sandbox: Sandbox, program: Compiler) -> None:
    """Several threads at once on pages of the node."""
    options = options_for(sandbox, f'kind = "numa"\nnode = {NODES[-1]}')
    face(sandbox, program("threads"), options=options)


# ---- what the machine does not have --------------------------------------------------------------


@pytest.mark.parametrize(
    ("medium", "complaint"),
    [
        ('kind = "numa"\nnode = 1000', "media.toml:5: medium.node: this machine has no node 1000"),
        (
            'kind = "file"\ncapacity_mib = 1\ndirectory = "/nowhere"',
            'media.toml:6: medium.directory: "/nowhere" cannot hold a file: No such file',
        ),
        (
            'kind = "file"\ncapacity_mib = 1\ndirectory = "/proc"',
            'media.toml:6: medium.directory: "/proc" cannot hold a file: ',
        ),
        ('kind = "dax"\npath = "/dev/null"', 'media.toml:5: medium.path: "/dev/null" is no DAX'),
    ],
)
def test_a_medium_that_is_not_there(sandbox: Sandbox, medium: str, complaint: str) -> None:
    """Refused before the program starts, with the line to mend."""
    with sandbox.start("sh", "-c", "echo STARTED", options=options_for(sandbox, medium)) as run:
        status = run.process.wait(20)
        assert run.process.stdout is not None
        assert (status != 0, run.process.stdout.read()) == (True, b"")
        assert complaint in run.stderr(), run.stderr()
