"""`make compat`: all programs, the table, and an exit status that says whether all was well.

From the environment: JSON=path writes the rows there; ONLY=name,... runs these; QUICK=1 runs the
quick ones, shorter; SEED=n is torture's seed. The table in docs/ is written when everything ran.
KEEP=1 keeps the folder of a run that failed; LIST=1 only lists names; PACKAGES=1 lists what is
needed, as tools/need-packages takes it.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from compat import report
from compat.programs import PROGRAMS
from compat.runner import Program, be_the_reaper, run_program, torture_options
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


def main() -> int:
    """Runs what was asked for."""
    if os.environ.get("PACKAGES"):
        print(" ".join(dict.fromkeys(need for p in chosen() for need in p.needs)))
        return 0
    if os.environ.get("LIST"):
        print("\n".join(p.name for p in chosen()))
        return 0
    if not terrace_binary().exists():
        raise SystemExit(f"compat: {terrace_binary()} is missing: run `make`, or set TERRACE_BIN")
    quick = bool(os.environ.get("QUICK"))
    options = torture_options(int(os.environ.get("SEED", "1")))
    be_the_reaper()
    # Ctrl-C and SIGTERM end the run, and with it what it started.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    rows = []
    for program in chosen():
        rows.append(run_program(program, options, quick=quick))
        print(report.line(rows[-1]), flush=True)
    print(report.summary(rows))
    if path := os.environ.get("JSON"):
        report.write_json(Path(path), rows, options)
    if len(rows) == len(PROGRAMS) and not quick:
        report.write_document(rows, options)
    bad = [r for r in rows if "fail" in (r.untiered, r.torture) or r.torture == "nothing moved"]
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
