"""One C program of ours on four allocators, with the runtime loaded before and after each."""

from __future__ import annotations

from pathlib import Path

from compat.programs.common import compile_c, ok_line, package_version
from compat.runner import Program, Stage, Wrong

LIBRARIES = Path("/usr/lib/x86_64-linux-gnu")


def size(stage: Stage) -> tuple[str, str]:
    """MiB and rounds."""
    return ("48", "3") if stage.quick else ("128", "9")


def drive_glibc(stage: Stage) -> str:
    """glibc's malloc, and the same with a single arena and everything from mmap."""
    blocks = compile_c(stage, "blocks")
    first = ok_line(stage.run([blocks, *size(stage)]))
    tuned = {"MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_THRESHOLD_": "65536"}
    second = ok_line(stage.run([blocks, *size(stage)], env=tuned))
    if first != second:
        raise Wrong(f"{first} with arenas, {second} without")
    return first


def drive_preloaded(stage: Stage, library: Path) -> str:
    """An allocator from LD_PRELOAD: once behind the runtime, once before it."""
    blocks = compile_c(stage, "blocks")
    # `terrace run` puts the runtime before what it finds in the variable.
    first = ok_line(stage.run([blocks, *size(stage)], env={"LD_PRELOAD": str(library)}))
    script = f'LD_PRELOAD="{library}:$LD_PRELOAD" exec "$@"'
    line: list[str | Path] = ["sh", "-c", script, "sh", blocks, *size(stage)]
    second = ok_line(stage.run(line))
    if first != second:
        raise Wrong(f"{first} after the runtime, {second} before it")
    return first


def preloaded(name: str, file: str, package: str) -> Program:
    """The row of an allocator."""
    library = LIBRARIES / file
    return Program(
        name,
        package_version(package),
        lambda stage: drive_preloaded(stage, library),
        "four threads, blocks of 16 B to 2 MiB, each compared before it is freed, resized or left; "
        "the allocator loaded after and before the runtime; checksum as untiered",
        (f"{library}:{package}", "gcc:gcc"),
        quick=True,
    )


ALL = (
    Program(
        "malloc-glibc",
        package_version("libc6"),
        drive_glibc,
        "four threads, blocks of 16 B to 2 MiB, each compared before it is freed, resized or left; "
        "again with one arena and an mmap threshold of 64 KiB; checksum as untiered",
        ("gcc:gcc",),
        quick=True,
    ),
    preloaded("malloc-jemalloc", "libjemalloc.so.2", "libjemalloc2"),
    preloaded("malloc-tcmalloc", "libtcmalloc_minimal.so.4", "libtcmalloc-minimal4"),
    preloaded("malloc-mimalloc", "libmimalloc.so.2", "libmimalloc2.0"),
)
