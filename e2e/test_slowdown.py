"""`terrace bench slowdown`, small: its runs, its grid, its report.

Whether the promise is kept is not asked here: that takes a quiet machine and an hour.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.usefixtures("can_tier"), pytest.mark.xdist_group("machine")]

STAND_IN = Path(__file__).with_name("stand_in_work.py")
TIMEOUT_S = 300.0
SHORT = ["--size", "64", "--seconds", "8", "--warmup", "4", "--window", "1", "--phase-at", "4"]
ONE = ["--quick", *SHORT, "--workloads", "churn", "--grid", "0.5", "--work-exe", str(STAND_IN)]


def slowdown(terrace: Path, out: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Runs the evaluation."""
    line: list[str | Path] = [terrace, "bench", "slowdown", *words, "--out", out]
    environment = {**os.environ, "STAND_IN": ""}
    return subprocess.run(
        line, capture_output=True, text=True, timeout=TIMEOUT_S, check=False, env=environment
    )


def test_the_policy_beside_a_knob_and_plain_runs(terrace: Path, tmp_path: Path) -> None:
    """Every figure that is promised is there, steady state and change apart; a run is made once."""
    out, json_path = tmp_path / "runs", tmp_path / "slowdown.json"
    done = slowdown(terrace, out, *ONE, "--json", str(json_path))
    assert done.returncode == 0, done.stderr
    (workload,) = json.loads(json_path.read_text())["workloads"]
    assert (workload["name"], workload["target"]) == ("churn", 0.05)
    assert -1 < workload["tco_saved"] < 1 and -1 < workload["measured"] < 100
    assert workload["undecided"] is True, "one round decides nothing"
    assert [point["alpha"] for point in workload["grid"]] == [0.5]
    best, knob = workload["tco_saved_best_grid"], workload["grid"][0]
    within = knob["slowdown"] <= workload["target"]
    assert best == (knob["tco_saved"] if within else 0.0), workload
    (record,) = (json.loads(f.read_text()) for f in (out / "runs").glob("*.alpha-0.5.json"))
    down = max(sum(tier["pages"] for tier in w["tiers"][1:]) for w in record["windows"])
    assert down > 1000, "alpha 0.5 must take something down, or nothing is compared"
    # Four windows of a second follow the change, and each has work in it.
    assert len(workload["change"]["slowdowns"]) == 4
    raw: list[dict[str, Any]] = workload["runs_raw"]
    assert sorted(r["config"] for r in raw) == ["alpha-0.5", "dram", "dram", "slowdown-5"]
    # The load says something about once a second: of the last window it may have nothing to say.
    assert all(r["us_per_work"] > 0 and all(r["us_per_work_after"][:-1]) for r in raw), raw
    assert "## churn" in (out / "report.md").read_text()
    again = slowdown(terrace, out, *ONE)
    assert again.returncode == 0 and "4 of 4 runs are there already" in again.stderr, again.stderr
    other = slowdown(terrace, out, *ONE, "--phase-at", "3")
    assert other.returncode != 0, other.stdout
