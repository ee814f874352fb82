"""`terrace bench paper`, small: whole reports, runs that are resumed, settings put back.

What the figures are is not asked here. Most tests give it a stand-in for the workloads
(`stand_in_work.py`), so that they are about the evaluation and quick.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from test_bench import kernel_swap

__all__ = ["kernel_swap"]
pytestmark = pytest.mark.usefixtures("can_tier")

STAND_IN = Path(__file__).with_name("stand_in_work.py")
SHORT = ["--quick", "--size", "64", "--seconds", "5", "--warmup", "4", "--window", "0.5"]
ONE = [*SHORT, "--workloads", "bfs", "--repetitions", "1", "--work-exe", str(STAND_IN)]
TIMEOUT_S = 300.0
# Of the stand-in for analytics, between its turns: 40 steps of 50 accesses.
OPS_A_ROUND = 2000


def paper(
    terrace: Path, out: Path, *words: str, stand_in: str = ""
) -> subprocess.CompletedProcess[str]:
    """Runs the evaluation."""
    environment = {**os.environ, "STAND_IN": stand_in}
    line: list[str | Path] = [terrace, "bench", "paper", *words, "--out", out]
    return subprocess.run(
        line, capture_output=True, text=True, timeout=TIMEOUT_S, check=False, env=environment
    )


def results(out: Path) -> dict[str, Any]:
    """What it wrote."""
    figures: dict[str, Any] = json.loads((out / "results.json").read_text())
    return figures


def runs(out: Path) -> dict[str, dict[str, Any]]:
    """Its records by configuration; of DRAM the last."""
    return {
        record["config"]: record
        for record in (json.loads(f.read_text()) for f in sorted((out / "runs").glob("*.json")))
    }


def last_whole(record: dict[str, Any]) -> list[dict[str, Any]]:
    """The tiers in the last window with all of the program's 64 MiB; none without such a window.

    One that is ending may have given its memory back when its last window closes.
    """
    tiers: list[list[dict[str, Any]]] = [w["tiers"] for w in record["windows"]]
    return next((of for of in reversed(tiers) if sum(t["pages"] for t in of) >= 64 * 256), [])


def check_reports(out: Path, configs: list[str]) -> None:
    """Everything that is promised is there."""
    workload = results(out)["workloads"][0]
    assert [c["name"] for c in workload["configs"]] == configs
    for c in workload["configs"]:
        assert -1 < c["tco_saved"] < 1, c
        assert len(c["slowdown_ci"]) == 2 and c["p99_ratio"] > 0 and c["cpu_tax"] >= 0, c
        assert c["undecided"] is True, "one run decides nothing"
    assert {b["verdict"] for b in workload["bars"]} == {"undecided"}
    html = (out / "report.html").read_text()
    assert all(f"Figure {n}" in html for n in (8, 11, 12, 13)) and "Figures 9 and 10" in html
    assert "| bfs |" in (out / "report.md").read_text()
    picture = ET.parse(out / "figure-8-bfs.svg").getroot()
    names = {text.text for text in picture.iter("{http://www.w3.org/2000/svg}text")}
    assert names.issuperset(["DRAM", *configs]), names


def test_zswap_beside_terrace(terrace: Path, tmp_path: Path, kernel_swap: None) -> None:
    """Both sides really hold pages, and what is saved is what they hold."""
    del kernel_swap
    words = [*ONE, "--configs", "dram,2t-m,2t-own-m,6t-am-0.5"]
    # Movers stand back for the program and everything else: a busy machine needs longer.
    for seconds in ("5", "10", "20"):
        out = tmp_path / seconds
        words[words.index("--seconds") + 1] = seconds
        done = paper(terrace, out, *words)
        assert done.returncode == 0, done.stderr
        of = runs(out)
        kernel, own, dram = of["2t-m"], of["2t-own-m"], of["dram"]
        lasts = [last_whole(record) for record in (kernel, own)]
        if all(last and last[1]["pages"] > 64 * 256 * 0.2 for last in lasts):
            break
    check_reports(out, ["2t-m", "2t-own-m", "6t-am-0.5"])
    for record, last in zip((kernel, own), lasts, strict=True):
        assert last, "no window with the whole program"
        # Threshold "moderate": less than half of 64 MiB goes down, and most of what shall.
        assert 64 * 256 * 0.2 < last[1]["pages"] < 64 * 256 * 0.5, last
        assert last[1]["recommended_pages"] > 0
        assert record["memory"][-1]["pool_bytes"] > 1 << 20
        assert record["memory"][-1]["usd_per_month"] < dram["memory"][-1]["usd_per_month"]
        assert record["cpu"]["planner_s"] + record["cpu"]["runtime_s"] > 0
    # Nothing reached the disk, and what zswap gave back is what the program touched.
    assert kernel["swap"]["pswpout"] == kernel["swap"]["zswpwb"] == 0
    assert kernel["swap"]["zswpin"] > 0 and own["swap"]["zswpout"] == 0
    assert dram["windows"] == [] and dram["cpu"]["planner_s"] == 0


def test_programs_that_end_their_turns_themselves(terrace: Path, tmp_path: Path) -> None:
    """Both work in turns to the end, and neither waits for one that has ended."""
    words = [*ONE, "--configs", "dram,2t-own-m"]
    words[words.index("bfs")] = "analytics"
    done = paper(terrace, tmp_path, *words)
    assert done.returncode == 0, done.stderr
    for record in runs(tmp_path).values():
        own, beside = record["load"]["ops"], record["load"]["beside"]["ops"]
        # By what is done, not by the clock: how long a round takes is the machine's business.
        assert own > 10 * OPS_A_ROUND, record["load"]
        assert abs(own - beside) <= 2 * OPS_A_ROUND, record["load"]
        late = [(s["work"], s["beside_work"]) for s in record["seconds"] if s["t_s"] > 7]
        own_work, beside_work = (sum(column) for column in zip(*late, strict=True))
        assert own_work > 0 and beside_work > 0, late


def test_what_has_run_is_not_run_again(terrace: Path, tmp_path: Path) -> None:
    """An interrupted evaluation goes on; a record that is damaged is made again."""
    configs = ["--configs", "dram,2t-own-m"]
    line: list[str | Path] = [terrace, "bench", "paper", *ONE, *configs, "--out", tmp_path]
    with subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        deadline = time.monotonic() + TIMEOUT_S
        while not list((tmp_path / "runs").glob("*.json")):
            assert process.poll() is None and time.monotonic() < deadline, "no run ended"
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode != 0 and b"interrupted" in errors, errors
    first = {f: f.stat().st_mtime_ns for f in (tmp_path / "runs").glob("*.json")}
    assert len(first) == 1, first
    done = paper(terrace, tmp_path, *ONE, *configs)
    assert done.returncode == 0, done.stderr
    assert "1 of 3 runs are there already" in done.stderr
    assert all(f.stat().st_mtime_ns == at for f, at in first.items())
    check_reports(tmp_path, ["2t-own-m"])
    # Other settings are another evaluation.
    other = paper(terrace, tmp_path, *ONE, *configs, "--seed", "2")
    assert other.returncode != 0 and "another --out" in other.stderr
    again = paper(terrace, tmp_path, *ONE, *configs, "--report-only")
    assert again.returncode == 0, again.stderr


@pytest.mark.parametrize(
    ("how", "says"), [("wrong", "1 wrong results"), ("die", "ended with status 3")]
)
def test_a_run_that_fails_is_no_record(terrace: Path, tmp_path: Path, how: str, says: str) -> None:
    """Wrong bytes fail the evaluation, and so does a workload that ends early."""
    done = paper(terrace, tmp_path, *ONE, "--configs", "dram", stand_in=how)
    assert done.returncode != 0 and says in done.stderr, done.stderr
    assert not list((tmp_path / "runs").glob("*.json"))


def test_a_workload_that_is_not_there_is_left_out(terrace: Path, tmp_path: Path) -> None:
    """And that is said."""
    done = paper(terrace, tmp_path, *ONE, "--configs", "dram", stand_in="skip")
    assert "bfs: skipped: a test has it so" in done.stderr
    assert done.returncode != 0 and "holds no run" in done.stderr


def test_interrupted_while_zswap_is_set_up(
    terrace: Path, tmp_path: Path, kernel_swap: None
) -> None:
    """The fixture compares the kernel's settings."""
    del kernel_swap
    configs = ["--configs", "2t-a"]
    line: list[str | Path] = [terrace, "bench", "paper", *ONE, *configs, "--out", tmp_path]
    with subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        deadline = time.monotonic() + TIMEOUT_S
        # After the first DRAM run.
        while len(Path("/proc/swaps").read_text().splitlines()) < 2:
            assert process.poll() is None and time.monotonic() < deadline, "nothing was set up"
            time.sleep(0.05)
        time.sleep(2)
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode != 0 and b"interrupted" in errors, errors


def test_a_real_workload(terrace: Path, tmp_path: Path, kernel_swap: None) -> None:
    """The smallest of them, on DRAM, on zswap and on six tiers."""
    del kernel_swap
    words = [*SHORT, "--workloads", "xsbench", "--repetitions", "1"]
    done = paper(terrace, tmp_path, *words, "--configs", "dram,2t-m,6t-am-0.5")
    assert done.returncode == 0, done.stderr
    workload = results(tmp_path)["workloads"][0]
    assert [c["name"] for c in workload["configs"]] == ["2t-m", "6t-am-0.5"]
