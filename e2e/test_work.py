"""The workloads of `terrace bench paper`: small, plain and with everything moving at random.

Nothing may be read back wrong, and damage done on purpose must be noticed: a check that cannot
fail checks nothing. How fast anything is, is not asked here.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from harness import Run, Sandbox, faults_from_tiers, terrace_binary

SERVERS = {"redis": "redis-server", "memcached": "memcached"}
PROGRAMS = ("bfs", "pagerank", "xsbench", "analytics", "churn")
TIMEOUT_S = 240.0
SKIPPED = 77
MIB = "64"
TORTURE = ("--window", "0.3", "--torture=7")
# Tiers that take what there is: lz4 refuses nearly all of a graph.
WATERFALL = ("--window", "0.3", "--policy", "waterfall", "--threshold", "aggressive")
TIERS = """
[[medium]]
name = "dram"
kind = "dram"
usd_per_gib_month = 0.30

[[tier]]
codec = "zstd"
pool = "zsmalloc"
medium = "dram"

[[tier]]
codec = "deflate"
pool = "zsmalloc"
medium = "dram"
"""


def work_line(name: str, out: Path, more: Sequence[str] = (), seconds: str = "3") -> list[str]:
    """The command of a workload, as small as it makes sense."""
    words = ["--size", MIB, "--seconds", seconds, "--warmup", "1", "--python", python(), *more]
    return [str(terrace_binary()), "bench", "work", name, *words, "--out", str(out)]


def python() -> str:
    """A Python that may have DuckDB: the one that was named, else that of these tests."""
    return os.environ.get("TERRACE_PYTHON", sys.executable)


def lines_of(out: Path) -> list[dict[str, Any]]:
    """What a workload wrote."""
    return [json.loads(line) for line in out.read_text().splitlines()]


def need_what_it_needs(name: str) -> None:
    """Skips where a program or module that belongs to others is not installed.

    Whether it is, is asked here and not of the workload: one that wrongly says that it cannot run
    has failed.
    """
    if name in SERVERS and shutil.which(SERVERS[name]) is None:
        pytest.skip(f"no {SERVERS[name]}; `make test` installs it")
    asked = [python(), "-c", "import duckdb"]
    if name == "analytics" and subprocess.run(asked, check=False, capture_output=True).returncode:
        pytest.skip("no DuckDB; `make test` installs it where it can be had")


def check_whole(lines: list[dict[str, Any]]) -> dict[str, Any]:
    """The lines are as docs/workloads.md says. Returns the last one."""
    ready, *seconds, done = lines
    assert ready["event"] == "ready" and done["event"] == "done"
    assert len(seconds) >= 2, lines
    for line in seconds:
        assert {"t_s", "ops", "p50_us", "p99_us", "p999_us", "measuring"} <= set(line), line
    assert done["ops"] > 0 and done["seconds"] > 0, done
    assert done["ops_per_s"] == pytest.approx(done["ops"] / done["seconds"])
    assert 0 < done["p50_us"] <= done["p99_us"] <= done["p999_us"] <= done["max_us"] * 1.01, done
    assert done["mean_us"] > 0 and len(done["hist"]) > 40
    return done


def run_client(name: str, socket: Path, out: Path, more: Sequence[str] = ()) -> int:
    """Drives a server that is running. The exit status."""
    ratio = [] if "--ratio" in more else ["--ratio", "1:3"]
    line = work_line(name, out, ["--connect", str(socket), *ratio, *more])
    done = subprocess.run(line, timeout=TIMEOUT_S, check=False, capture_output=True, text=True)
    assert done.returncode in (0, 1), done.stderr
    return done.returncode


def server_line(name: str, socket: Path) -> list[str]:
    """The server's command as the workload prints it; skips where it is not installed."""
    need_what_it_needs(name)
    asked = [
        "bench",
        "work",
        name,
        "--size",
        MIB,
        "--print-server-command",
        "--socket",
        str(socket),
    ]
    printed = subprocess.run(
        [str(terrace_binary()), *asked], capture_output=True, text=True, timeout=20, check=True
    )
    line: list[str] = json.loads(printed.stdout)
    return line


@contextlib.contextmanager
def plain_server(name: str, folder: Path) -> Iterator[Path]:
    """A server without Terrace, on a socket."""
    socket = folder / "plain.sock"
    server = subprocess.Popen(
        server_line(name, socket), cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        yield socket
    finally:
        server.terminate()
        server.wait(20)


def moved_and_came_back(run: Run) -> bool:
    """Whether pages were in tiers and were wanted back.

    How many are there at any one time is no measure: of a graph all is in use.
    """
    return any(faults_from_tiers(w) > 200 for w in run.windows())


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_is_never_wrong_and_damage_is_noticed(name: str, tmp_path: Path) -> None:
    """Plain: every check agrees; with one bit flipped after loading, at least one does not."""
    need_what_it_needs(name)
    out = tmp_path / "out.jsonl"
    for corrupt, status in ((False, 0), (True, 1)):
        line = work_line(name, out, ["--corrupt"] if corrupt else [])
        done = subprocess.run(line, timeout=TIMEOUT_S, check=False, capture_output=True, text=True)
        last = check_whole(lines_of(out))
        assert done.returncode == status, (last, done.stderr)
        assert (last["wrong"] > 0) == corrupt


@pytest.mark.parametrize("name", ["bfs", "churn"])
def test_a_second_phase_is_as_right_as_the_first(name: str, tmp_path: Path) -> None:
    """Other data becomes popular in the middle, and every check still agrees."""
    out = tmp_path / "out.jsonl"
    line = work_line(name, out, ["--phase-at", "1.5"])
    done = subprocess.run(line, timeout=TIMEOUT_S, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert check_whole(lines_of(out))["wrong"] == 0
    # A workload that has none says so.
    line = work_line("xsbench", out, ["--phase-at", "1.5"])
    done = subprocess.run(line, timeout=TIMEOUT_S, check=False, capture_output=True, text=True)
    assert done.returncode == 1 and "--phase-at" in done.stderr


@pytest.mark.parametrize("name", SERVERS)
def test_a_client_is_never_wrong_and_damage_is_noticed(name: str, tmp_path: Path) -> None:
    """Plain: all values come back; with one value damaged in the server, it is noticed."""
    out = tmp_path / "out.jsonl"
    with plain_server(name, tmp_path) as socket:
        more = ["--read-back", "--popularity", "zipf", "--drift", "3", "--phase-at", "1.5"]
        assert run_client(name, socket, out, more) == 0
        assert check_whole(lines_of(out))["wrong"] == 0
        assert run_client(name, socket, out, ["--corrupt", "--ratio", "0:1"]) == 1
        assert check_whole(lines_of(out))["wrong"] > 0


@pytest.mark.usefixtures("can_tier")
@pytest.mark.parametrize("options", [TORTURE, WATERFALL], ids=["torture", "waterfall"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_keeps_its_results_below_terrace(
    name: str, options: Sequence[str], sandbox: Sandbox
) -> None:
    """Its memory goes into tiers and comes back while it computes, and nothing is wrong."""
    need_what_it_needs(name)
    out = sandbox.folder / "out.jsonl"
    if options is WATERFALL:
        config = sandbox.folder / "tiers.toml"
        config.write_text(TIERS)
        options = [*options, "--config", str(config)]
    # Movers stand back for everything else: a busy machine needs longer.
    for seconds in ("5", "20"):
        with sandbox.start(*work_line(name, out, seconds=seconds), options=options) as run:
            status = run.conclude(TIMEOUT_S)
            done = check_whole(lines_of(out))
            assert status == 0 and done["wrong"] == 0, (done, run.stderr())
            if moved_and_came_back(run):
                return
    pytest.fail(f"nothing moved and came back: {run.windows()[-1:]}")


@pytest.mark.usefixtures("can_tier")
@pytest.mark.parametrize("name", SERVERS)
def test_a_server_keeps_its_values_below_terrace(name: str, sandbox: Sandbox) -> None:
    """Everything moves at random while the client drives; all values are read back at the end."""
    out, socket = sandbox.folder / "out.jsonl", sandbox.folder / "tiered.sock"
    with sandbox.start(*server_line(name, socket), options=TORTURE) as run:
        assert run_client(name, socket, out, ["--read-back"]) == 0
        assert check_whole(lines_of(out))["wrong"] == 0
        assert moved_and_came_back(run), run.windows()[-1:]
