"""Interpreters that run the same self-checking program, each in its own language."""

from __future__ import annotations

from compat.programs.common import ok_line, version_of
from compat.runner import SOURCES, Program, Stage

CHECKED = (
    "records that their number and version give, in strings and the language's own containers, "
    "replaced by thirds and compared after every pause, {more}; checksum as untiered"
)


def interpreter(
    name: str, command: tuple[str, ...], source: str, records: int, need: str, more: str
) -> Program:
    """The row of an interpreter."""

    def drive(stage: Stage) -> str:
        return ok_line(stage.run([*command, SOURCES / source, str(records), "8"]))

    asks = {"lua5.4": "-v"}.get(command[0], "--version")
    version = version_of(command[0], asks)
    return Program(name, version, drive, CHECKED.format(more=more), (need,))


ALL = (
    interpreter("perl", ("perl",), "records.pl", 30_000, "perl:perl", "reference counts"),
    interpreter("ruby", ("ruby",), "records.rb", 40_000, "ruby:ruby", "GC.start and GC.compact"),
    interpreter("php", ("php",), "records.php", 40_000, "php:php-cli", "cycles collected"),
    interpreter("lua", ("lua5.4",), "records.lua", 30_000, "lua5.4:lua5.4", "both collectors"),
    interpreter(
        "sbcl",
        ("sbcl", "--dynamic-space-size", "1024", "--script"),
        "records.lisp",
        40_000,
        "sbcl:sbcl",
        "a moving collector with its own write barrier",
    ),
    interpreter(
        "guile",
        ("guile", "--no-auto-compile", "-s"),
        "records.scm",
        10_000,
        "guile:guile-3.0",
        "the Boehm collector",
    ),
)
