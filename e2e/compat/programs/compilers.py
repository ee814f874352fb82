"""Compilers: the object file must be the same, byte for byte."""

from __future__ import annotations

import subprocess
from pathlib import Path

from compat.programs.common import version_of
from compat.programs.files import sha256
from compat.runner import Program, Stage


def source_c(functions: int) -> str:
    """A C file of many functions that call each other."""
    parts = ["#include <stddef.h>\ntypedef unsigned u;\n"]
    for n in range(functions):
        call = f"f{n - 1 - n % 5}(a ^ i, b)" if n > 5 else "i"
        parts.append(
            f"u f{n}(u a, u b) {{ u t[{n % 7 + 2}] = {{ {n} }}; for (u i = 0; i < (a & 15); i++) {{"
            f" t[i % {n % 7 + 2}] += b * {n * 48271 % 9973} + (i << {n % 13});"
            f" if (t[0] > {n}u) b ^= {call}; else a += b / (i + 1); }}"
            f" return t[{n % 7 + 1}] ^ a; }}\n"
        )
    return "".join(parts)


def source_rust(functions: int) -> str:
    """A Rust file of many functions over vectors."""
    parts = ['#![crate_type = "lib"]\nuse std::collections::BTreeMap;\n']
    parts.extend(
        f"pub fn f{n}(v: &[u32], m: &mut BTreeMap<u32, Vec<u32>>) -> Option<u32> {{"
        f" let s: u32 = v.iter().map(|x| x.wrapping_mul({n * 7 + 3})).filter(|x| x % {n % 9 + 2}"
        f" != 0).fold({n}, |a, x| a ^ x); m.entry(s).or_default().extend_from_slice(v);"
        f" v.chunks({n % 5 + 1}).map(|c| c.len() as u32 + s).max() }}\n"
        for n in range(functions)
    )
    return "".join(parts)


def drive_gcc(stage: Stage) -> str:
    """cc1 holds the whole unit."""
    source, made = stage.folder / "unit.c", stage.folder / "unit.o"
    source.write_text(source_c(1500))
    # The folder's name would be in the debug information.
    same = ["-frandom-seed=1", f"-fdebug-prefix-map={stage.folder}=."]
    stage.run(["gcc", "-O2", "-g", *same, "-c", source.name, "-o", made], name="gcc")
    return sha256(made)


def rustc() -> str:
    """The compiler itself and not the proxy in front of it."""
    answer = subprocess.run(
        ["rustc", "--print", "sysroot"], capture_output=True, text=True, check=False
    )
    return str(Path(answer.stdout.strip()) / "bin/rustc")


def drive_rustc(stage: Stage) -> str:
    """rustc and LLVM, with threads."""
    source, made = stage.folder / "unit.rs", stage.folder / "unit.o"
    source.write_text(source_rust(500))
    options = ["--emit=obj", "-O", "-C", "codegen-units=1", "--edition=2021"]
    stage.run([rustc(), *options, source.name, "-o", made], name="rustc")
    return sha256(made)


ALL = (
    Program(
        *("gcc", version_of("gcc", "--version"), drive_gcc),
        "1,500 functions at -O2 -g: the object file has the SHA-256 of the untiered one",
        ("gcc:gcc",),
    ),
    Program(
        *("rustc", version_of("rustc", "--version"), drive_rustc),
        "500 functions at -O: the object file has the SHA-256 of the untiered one",
        ("rustc:rustc",),
    ),
)
