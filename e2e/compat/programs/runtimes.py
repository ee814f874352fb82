"""Language runtimes with collectors that move, protect and scan memory from threads of their own.

OpenJDK under three collectors, Node.js, Go with and without C, Mono, Erlang.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from compat.programs.common import ok_line, version_of
from compat.runner import SOURCES, Program, Stage, Wrong

RECORDS = (
    "self-checking records in strings, arrays and maps, replaced by thirds while the collector "
    "works, compared after every pause; checksum as untiered"
)


def java(collector: str, *options: str) -> Program:
    """The row of one of OpenJDK's collectors."""

    def drive(stage: Stage) -> str:
        stage.plain(["javac", "-d", stage.folder, SOURCES / "Records.java"])
        heap = ("-Xms192m", "-Xmx384m", "-XX:ErrorFile=hs_err.log")
        command: list[str | Path] = [
            "java",
            *options,
            *heap,
            "-cp",
            stage.folder,
            "Records",
            "10000",
            "8",
        ]
        return ok_line(stage.run(command))

    needs = ("java:openjdk-17-jre-headless", "javac:openjdk-17-jdk-headless")
    version = version_of("java", "--version")
    return Program(f"openjdk-{collector}", version, drive, f"{RECORDS}; four threads", needs)


def drive_node(stage: Stage) -> str:
    """V8's heap and buffers outside of it."""
    return ok_line(stage.run(["node", "--expose-gc", SOURCES / "records.js", "40000", "8"]))


def build_go(stage: Stage, *, cgo: bool) -> str:
    """Builds our Go program."""
    folder = stage.folder / "go"
    folder.mkdir(exist_ok=True)
    (folder / "go.mod").write_text("module records\n\ngo 1.19\n")
    for name in ("records.go", "with_c.go", "without_c.go"):
        shutil.copy(SOURCES / name, folder)
    # The user's own cache: without it each run compiles the standard library.
    cache = os.environ.get("GOCACHE") or str(Path.home() / ".cache/go-build")
    made = {"CGO_ENABLED": str(int(cgo)), "GOTOOLCHAIN": "local", "GOCACHE": cache}
    binary = folder / "records"
    stage.plain(["go", "build", "-C", folder, "-o", binary, "."], env=made)
    return str(binary)


def drive_cgo(stage: Stage) -> str:
    """A Go program that is linked dynamically: the runtime is loaded into it."""
    return ok_line(stage.run([build_go(stage, cgo=True), "20000", "8"]))


def drive_static(stage: Stage) -> str:
    """A static Go program: refused in one clear line, and run untiered if that is asked for."""
    binary = build_go(stage, cgo=False)
    if stage.tiered:
        answer = subprocess.run(
            stage.wrapped([binary, "1", "1"]),
            env=stage.environment(),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        said = re.sub(r"^terrace: torture run: .*\n", "", answer.stderr)
        clear = said.startswith("terrace: ") and "statically linked" in said
        if answer.returncode == 0 or answer.stdout or not clear or said.count("\n") != 1:
            raise Wrong(f"not refused in one clear line: status {answer.returncode}: {said}")
    return ok_line(stage.run([binary, "20000", "4"], more=("--best-effort",)))


def drive_mono(stage: Stage) -> str:
    """Mono's generational collector."""
    stage.plain(["mcs", f"-out:{stage.folder}/Records.exe", SOURCES / "Records.cs"])
    return ok_line(stage.run(["mono", stage.folder / "Records.exe", "40000", "8"]))


def drive_erlang(stage: Stage) -> str:
    """Processes with heaps of their own, binaries beside them, ETS."""
    stage.plain(["erlc", "-o", stage.folder, SOURCES / "records.erl"])
    return ok_line(stage.run(["erl", "-noshell", "-s", "records", "main", "6000", "8"]))


ALL = (
    java("g1", "-XX:+UseG1GC"),
    java("parallel", "-XX:+UseParallelGC"),
    java("zgc", "-XX:+UseZGC"),
    Program("nodejs", version_of("node", "--version"), drive_node, RECORDS, ("node:nodejs",)),
    Program(
        "go-cgo",
        version_of("go", "version"),
        drive_cgo,
        f"{RECORDS}; four goroutines, and 16 MiB from C's malloc",
        ("go:golang-go", "gcc:gcc"),
    ),
    Program(
        "go-static",
        version_of("go", "version"),
        drive_static,
        "refused in one line that says why and what to do; with --best-effort it runs untiered "
        "and its checksum is right",
        ("go:golang-go",),
        refused=True,
    ),
    Program(
        *("mono", version_of("mono", "--version"), drive_mono, RECORDS),
        ("mono:mono-runtime", "mcs:mono-mcs"),
    ),
    Program(
        *("erlang", version_of("sh", "-c", "dpkg-query -W erlang-base"), drive_erlang),
        f"{RECORDS}; four processes and an ETS table",
        ("erl:erlang-base", "erlc:erlang-base"),
    ),
)
