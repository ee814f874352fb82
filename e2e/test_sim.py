"""Traces of real programs, what is in them, and what `terrace sim` makes of them."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from harness import is_alive, terrace_binary, wait_until

# 64 MiB, of which an eighth is read over and over, each second the next one: what was cold comes
# back and what was hot goes down. It prints its id so that it can be ended.
PROGRAM = """
import os, sys, time
print(os.getpid(), flush=True)
data = bytearray(b"terrace " * (8 << 20))
hot, start, sum = len(data) // 8, time.monotonic(), 0
while time.monotonic() < start + float(sys.argv[1]):
    first = int(time.monotonic() - start) % 8 * hot
    for at in range(first, first + hot, 4096):
        sum += data[at]
    time.sleep(0.01)
"""
POLICY = ("--window", "0.2", "--policy", "analytical", "--alpha", "0.3")
COLUMNS = {
    *("window", "time_ms", "pid", "region", "pages", "resident", "resident_at_open", "tier"),
    *("samples", "hits", "faults", "touched", "stored_bytes", "running_ns", "stalled_ns"),
    *("cpu_ns", "contention", "moved_pages", "ahead_pages", "managed_bytes", "overhead_bytes"),
    *("tco_saved", "served_faults", "move_to", "ratio_1", "ratio_2", "ratio_3"),
    *(f"known_{what}_{tier}" for what in ("fault_ns", "ratio", "move_ns") for tier in (1, 2, 3)),
}


def recording(trace: Path, seconds: float) -> list[str]:
    """The command that records `PROGRAM` for so long."""
    run = [str(terrace_binary()), "run", "--record", str(trace), *POLICY, "--"]
    return [*run, sys.executable, "-c", PROGRAM, str(seconds)]


def sim(*arguments: str | Path, fails: bool = False) -> str:
    """What `terrace sim` prints, or complains about."""
    command = [str(terrace_binary()), "sim", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode != 0) == fails, done.stderr
    return done.stderr if fails else done.stdout


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short program's."""
    path = tmp_path_factory.mktemp("sim") / "trace.parquet"
    done = subprocess.run(
        recording(path, 6), capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "region-windows" in done.stderr
    assert not path.with_name("trace.parquet.partial").exists()
    return path


def test_a_recorded_program_is_simulated(trace: Path, tmp_path: Path) -> None:
    """Its own policy among the others, its own measures beside them."""
    out = tmp_path / "sim.json"
    table = sim(trace, "--oracle", "--bar", "--json", out)
    assert "slowdown 5 %" in table
    assert "(the run itself)" in table
    report: dict[str, Any] = json.loads(out.read_text())
    assert report["source"] == "recorded"
    assert "python" in report["commands"][0]["command"]
    assert report["tiers"][0]["name"] == "dram"
    assert report["live"]["moves"] > 0
    for policy in report["policies"]:
        assert {"tco_saved", "stall_share", "moves", "oracle_tco_saved"} <= policy.keys()
        assert policy["tco_saved"] <= policy["oracle_bound"] + 1e-9
        if (unmoved := policy["unmoved_tco_saved"]) is not None:
            assert unmoved <= policy["oracle_bound"] + 1e-9
    own = next(p for p in report["policies"] if p["name"] == "as recorded")
    # Rough on purpose: the windows are short and the machine is shared. docs/sim.md has measures.
    assert abs(own["tco_saved"] - report["live"]["tco_saved"]) < 0.15
    assert report["bar"]["policy"]["name"] == "slowdown 5 %"


def test_other_tools_read_a_trace(trace: Path) -> None:
    """Parquet is Parquet: pyarrow, and DuckDB where it is there."""
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")
    file = parquet.ParquetFile(trace)
    assert set(file.schema_arrow.names) == COLUMNS
    meta = json.loads(file.schema_arrow.metadata[b"terrace"])
    assert meta["window_s"] == 0.2
    assert "environ" not in json.dumps(meta)
    table = file.read()
    assert table.num_rows == file.metadata.num_rows > 100
    assert max(table.column("pages").to_pylist()) == 512
    assert min(table.column("region").to_pylist()) % (2 << 20) == 0
    duckdb = pytest.importorskip("duckdb", reason="duckdb is not installed")
    tiers = duckdb.sql(f"select distinct tier from '{trace}'").fetchall()
    assert len(tiers) > 1


def test_a_killed_planner_leaves_what_was_written(tmp_path: Path) -> None:
    """The parts are read as they are, and `--merge` makes a whole file of them."""
    path = tmp_path / "trace.parquet"
    parts = tmp_path / "trace.parquet.partial"
    with subprocess.Popen(recording(path, 60), stdout=subprocess.PIPE, text=True) as planner:
        assert planner.stdout is not None
        program = int(planner.stdout.readline())
        try:
            wait_until("a part", lambda: any(parts.glob("*.parquet")), 30.0)
            planner.send_signal(signal.SIGKILL)
            planner.wait(timeout=30)
            assert is_alive(program)
        finally:
            with_a_signal(program)
    assert not path.exists()
    assert "terrace sim --merge" in (parts / "HOW-TO-RECOVER.txt").read_text()
    assert "terrace sim --merge" in sim(path, fails=True)
    assert "as recorded" in sim(parts)
    assert "region-windows" in sim("--merge", parts, "-o", path)
    assert sim(path).splitlines()[1:8] == sim(parts).splitlines()[1:8]


def with_a_signal(pid: int) -> None:
    """Ends a process that is not our child."""
    subprocess.run(["kill", str(pid)], check=False, timeout=10)
    wait_until("the program ends", lambda: not is_alive(pid), 30.0)


def test_a_taken_name_is_refused_before_the_program_starts(trace: Path) -> None:
    """Nobody's trace is overwritten."""
    before = trace.read_bytes()
    start = time.monotonic()
    done = subprocess.run(
        recording(trace, 60), capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1
    assert "exists; move it away" in done.stderr
    assert time.monotonic() - start < 30
    assert trace.read_bytes() == before


def test_generated_traces_are_simulated_and_merged(tmp_path: Path) -> None:
    """Each kind, by its seed."""
    size = ("--regions", "20", "--windows", "40", "--seed", "3")
    paths = []
    for kind in ("zipf", "gaussian", "scan", "phase", "diurnal", "fork-storm"):
        paths.append(tmp_path / kind)
        sim("--generate", kind, *size, "--out", paths[-1])
    again = tmp_path / "again"
    sim("--generate", "zipf", *size, "--out", again)
    before = paths[0].read_bytes()
    assert again.read_bytes() == before
    taken = [
        sim("--generate", "scan", *size, "--out", again, fails=True),
        sim("--merge", *paths, "-o", again, fails=True),
    ]
    assert all("exists; move it away" in said for said in taken), taken
    assert again.read_bytes() == before, "nobody's trace is overwritten"
    merged = tmp_path / "all"
    sim("--merge", *paths, "-o", merged)
    assert "merged, 14 processes" in sim(merged, "--policy", "slowdown")


def test_where_results_go_is_tried_first(tmp_path: Path) -> None:
    """An error costs no work, and what is found out all the same costs no result."""
    trace = tmp_path / "zipf"
    size = ("--generate", "zipf", "--regions", "20", "--windows", "40")
    sim(*size, "--out", trace)
    said = sim(trace, "--json", tmp_path / "no" / "x.json", fails=True)
    assert said.startswith("terrace: --json: there is no folder "), said
    said = sim(*size, "--out", tmp_path / "no" / "zipf", fails=True)
    assert said.startswith("terrace: --out: there is no folder "), said
    said = sim(trace, "--out", tmp_path / "x", fails=True)
    assert said.startswith("terrace: --out is where a trace goes that is made; add "), said
    command = [str(terrace_binary()), "sim", str(trace), "--policy", "waterfall"]
    command += ["--json", "/dev/full"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "waterfall moderate" in done.stdout
    assert done.stderr.startswith("terrace: --json: /dev/full cannot be written: "), done.stderr
    left = [path.name for path in tmp_path.iterdir()]
    assert left == ["zipf"]
