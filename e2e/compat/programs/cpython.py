"""CPython: a program of ours, and Debian's copy of CPython's own test suite."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path

from compat.programs.common import ok_line, version_of
from compat.runner import SOURCES, Program, Stage, Wrong

PYTHON = "/usr/bin/python3.11"

# Objects, containers, numbers, text, compression: what lives in the heap.
OBJECTS = """
test_array test_bytes test_collections test_copy test_csv test_deque test_dict test_float test_gc
test_heapq test_itertools test_json test_list test_long test_memoryview test_mmap test_re test_set
test_sort test_struct test_zlib
""".split()

# Threads, signals, forks, children: what lives in the process. test_resource comes last: it leaves
# the address space limited, and in children that inherit that the runtime does not start.
PROCESSES = """
test_atexit test_ctypes test_faulthandler test_fork1 test_os test_popen test_posix test_pty
test_select test_signal test_subprocess test_thread test_threading test_threading_local
test_threadsignals test_wait3 test_wait4 test_multiprocessing_fork test_resource
""".split()


def drive_program(stage: Stage) -> str:
    """Objects of every kind, collected, forked and threaded."""
    records = "25000" if stage.quick else "60000"
    rounds = "4" if stage.quick else "8"
    return ok_line(stage.run([PYTHON, SOURCES / "records.py", records, rounds]))


def drive_suite(stage: Stage, modules: list[str]) -> str:
    """Runs test modules in a process whose heap is full of objects in tiers."""
    present = Path("/usr/lib/python3.11/test")
    there = [m for m in modules if (present / f"{m}.py").exists() or (present / m).is_dir()]
    xml = stage.folder / "results.xml"
    said = stage.run(
        [PYTHON, SOURCES / "suite.py", xml, stage.folder, *there],
        name="suite",
        statuses=(0, 2, 3),
    )
    if "BALLAST OK" not in said:
        raise Wrong(said[-3000:])
    verdicts: dict[str, str] = {}
    for case in ET.parse(xml).getroot().iter("testcase"):
        bad = case.find("failure") is not None or case.find("error") is not None
        verdicts[(case.get("name") or "?").replace(" ", "_")] = "failed" if bad else "passed"
    failed = sorted(name for name, verdict in verdicts.items() if verdict == "failed")
    crashed = [line for line in said.splitlines() if "crashed" in line]
    stage.notes.append(
        f"{len(there)} modules, {len(verdicts)} tests, failed: {', '.join(failed) or 'none'}"
        + "".join(crashed)
    )
    if len(verdicts) < 100:
        raise Wrong(said[-3000:])
    return " ".join([str(len(verdicts)), *failed])


def no_new_failures(plain: str | None, tiered: str | None) -> bool:
    """As many tests, and none failed that did not fail untiered."""
    count, *failed = (tiered or "").split()
    count_before, *failed_before = (plain or "").split()
    return count == count_before and set(failed) <= set(failed_before)


def suite(name: str, modules: list[str], what: str) -> Program:
    """A row of the suite."""
    return Program(
        name,
        version_of(PYTHON, "--version"),
        lambda stage: drive_suite(stage, modules),
        f"CPython's own tests of {what}, in a process that holds 100 MB of objects, compared at "
        "the end; what fails is what fails untiered",
        (
            f"{PYTHON}:python3.11",
            "/usr/lib/python3.11/test/test_gc.py:libpython3.11-testsuite",
        ),
        timeout_s=2400.0,
        # (The suite ends a module that takes too long by itself.)
        silent_s=240.0,
        agree=no_new_failures,
    )


ALL = (
    Program(
        "cpython",
        version_of(PYTHON, "--version"),
        drive_program,
        "self-checking records in strings, dicts, cycles and buffers, used by threads, collected, "
        "and compared in forked children; checksum as untiered",
        (f"{PYTHON}:python3.11",),
        quick=True,
    ),
    suite("cpython-suite-objects", OBJECTS, "objects, containers, text, compression"),
    suite("cpython-suite-processes", PROCESSES, "threads, signals, forks and children"),
)
