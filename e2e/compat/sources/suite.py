"""Runs modules of CPython's test suite in a process whose heap is large and mostly in tiers.

python suite.py RESULTS.xml FOLDER MODULE... The objects are made first and every second one is
freed, so that what the tests allocate lies between objects that were demoted. They are compared at
the end: "BALLAST OK".
"""

from __future__ import annotations

import sys
import threading
import time

# What a module may take: what CPython's own Makefile gives it (`TESTTIMEOUT`).
MODULE_S = "1200"


def text(i: int) -> str:
    """An object's content."""
    return f"object {i} " * (3 + i % 29)


def main() -> int:
    """The objects, the tests, the objects again."""
    results, folder, *modules = sys.argv[1:]
    kept: list[object] = [text(i) for i in range(400_000)]
    for i in range(0, len(kept), 2):
        kept[i] = None
    time.sleep(1)
    from test.libregrtest.main import main as regrtest  # noqa: PLC0415 - after the objects

    sys.argv = ["test", "--junit-xml", results, "--tempdir", folder]
    sys.argv += ["--timeout", MODULE_S, *modules]
    status = 0
    try:
        regrtest()
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 1
    wrong = [i for i in range(1, len(kept), 2) if kept[i] != text(i)]
    print("BALLAST", f"BAD {wrong[:5]}" if wrong else "OK", threading.active_count(), flush=True)
    return status


sys.exit(main())
