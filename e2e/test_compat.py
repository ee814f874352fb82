"""The quick rows of the compatibility table: real programs, untiered and under torture.

All rows are `make compat`; this keeps the ones that are cheap in every `make test`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from compat.programs import PROGRAMS
from compat.runner import Program, Stage, drive

QUICK = [program.name for program in PROGRAMS if program.quick]
TIMEOUT_S = 400.0

pytestmark = pytest.mark.usefixtures("can_tier")


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """All quick rows, run beside each other: most of their time is pauses."""
    path = tmp_path_factory.mktemp("compat") / "rows.json"
    env = {**os.environ, "QUICK": "1", "JSON": str(path), "JOBS": "4", "ONLY": ""}
    answer = subprocess.run(
        [sys.executable, "-m", "compat"],
        cwd=Path(__file__).parent,
        env=env,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert path.exists(), answer.stdout + answer.stderr
    return {row["name"]: row for row in json.loads(path.read_text())["programs"]}


@pytest.mark.parametrize("name", QUICK)
def test_program(rows: dict[str, dict[str, Any]], name: str) -> None:
    """It does under torture what it does untiered, and pages of it were moved."""
    row = rows[name]
    if row["untiered"] == "skipped":
        pytest.skip(row["why"])
    assert (row["untiered"], row["torture"]) == ("pass", "pass"), row["why"]
    assert row["pages_moved"] > 1000, row


def test_silence_is_looked_at(tmp_path: Path) -> None:
    """Of a program that was silent and failed, it is said what its processes did meanwhile."""
    stage = Stage(tmp_path, None, time.monotonic() + 60, quick=True)
    command = ["sh", "-c", "echo begun; sleep 4; exit 3"]
    program = Program("quiet", str, lambda stage: stage.run(command), "", silent_s=1.0)
    verdict, why, _ = drive(program, stage)
    assert verdict == "fail"
    said, _, noted = why.partition("no word for")
    assert "exit status 3" in said
    assert "sleep  " in noted
