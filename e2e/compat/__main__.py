"""`make compat`: all programs, the table, and an exit status that says whether all was well.

From the environment: JSON=path writes the rows there; ONLY=name,... runs these; QUICK=1 runs the
quick ones, shorter; SEED=n is torture's seed; JOBS=n runs so many at once. The table in docs/ is
written when everything ran. KEEP=1 keeps the folder of a run that failed; LIST=1 only lists names;
PACKAGES=1 lists what is needed, as tools/need-packages takes it; ROWS=a.json,b.json writes the
table from the rows of earlier runs.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from compat import report
from compat.programs import PROGRAMS
from compat.runner import Outcome, Program, be_the_reaper, run_program, torture_options
from harness import terrace_binary


def chosen() -> list[Program]:
    """What ONLY and QUICK ask for."""
    only = [name for name in os.environ.get("ONLY", "").split(",") if name]
    unknown = set(only) - {p.name for p in PROGRAMS}
    if unknown:
        raise SystemExit(f"compat: no program {', '.join(sorted(unknown))}; LIST=1 lists them")
    if only:
        return [p for p in PROGRAMS if p.name in only]
    return [p for p in PROGRAMS if p.quick or not os.environ.get("QUICK")]


def write_from(files: list[str]) -> None:
    """Writes the table from the rows of earlier runs; of a row that is there twice, the last."""
    rows: dict[str, Outcome] = {}
    options: tuple[str, ...] = ()
    for file in files:
        document = json.loads(Path(file).read_text())
        options = tuple(document["mode"].split())
        rows.update({row["name"]: Outcome(**row) for row in document["programs"]})
    ordered = [rows[p.name] for p in PROGRAMS if p.name in rows]
    for program in PROGRAMS:
        if program.name in rows:
            rows[program.name].checked = program.checked
    report.write_document(ordered, options)


def in_process(name: str) -> Outcome:
    """One program in a process of its own, which reaps what it starts."""
    with tempfile.TemporaryDirectory(prefix="terrace-compat-rows-") as folder:
        path = Path(folder) / "rows.json"
        env = {**os.environ, "ONLY": name, "JSON": str(path), "JOBS": "1"}
        said = subprocess.run(
            [sys.executable, "-m", "compat"],
            cwd=Path(__file__).parent.parent,
            env=env,
            capture_output=True,
            text=True,
            check=False,
        )
        if path.exists():
            return Outcome(**json.loads(path.read_text())["programs"][0])
        return Outcome(name, untiered="fail", why=f"the runner ended: {said.stderr[-3000:]}")


def outcomes(programs: list[Program], options: tuple[str, ...], jobs: int) -> Iterator[Outcome]:
    """Runs the programs, several at once if there are several jobs."""
    if jobs > 1:
        with ThreadPoolExecutor(jobs) as pool:
            yield from pool.map(in_process, [p.name for p in programs])
        return
    be_the_reaper()
    for program in programs:
        yield run_program(program, options, quick=bool(os.environ.get("QUICK")))


def main() -> int:
    """Runs what was asked for."""
    if os.environ.get("PACKAGES"):
        print(" ".join(dict.fromkeys(need for p in chosen() for need in p.needs)))
        return 0
    if os.environ.get("LIST"):
        print("\n".join(p.name for p in chosen()))
        return 0
    if files := os.environ.get("ROWS"):
        write_from(files.split(","))
        return 0
    if not terrace_binary().exists():
        raise SystemExit(f"compat: {terrace_binary()} is missing: run `make`, or set TERRACE_BIN")
    options = torture_options(int(os.environ.get("SEED") or "1"))
    # SIGTERM ends the run as Ctrl-C does, and with it what it started.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    rows = []
    for row in outcomes(chosen(), options, int(os.environ.get("JOBS") or "1")):
        rows.append(row)
        print(report.line(row), flush=True)
    print(report.summary(rows))
    if path := os.environ.get("JSON"):
        report.write_json(Path(path), rows, options)
    if len(rows) == len(PROGRAMS) and not os.environ.get("QUICK"):
        report.write_document(rows, options)
    bad = [r for r in rows if "fail" in (r.untiered, r.torture) or r.torture == "nothing moved"]
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
