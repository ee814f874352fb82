"""The table of what ran: as JSON, as Markdown in docs/, and on the terminal."""

from __future__ import annotations

import dataclasses
import datetime
import json
import platform
from collections.abc import Sequence
from pathlib import Path

from compat.runner import Outcome
from harness import REPOSITORY

DOCUMENT = REPOSITORY / "docs/compatibility.md"
BEGIN, END = "<!-- table: written by make compat -->", "<!-- end of table -->"


def summary(rows: Sequence[Outcome]) -> str:
    """The counts, skipped ones included."""
    by_verdict: dict[str, int] = {}
    for row in rows:
        by_verdict[row.torture] = by_verdict.get(row.torture, 0) + 1
    counts = ", ".join(f"{n} {verdict}" for verdict, n in sorted(by_verdict.items()))
    return f"{len(rows)} programs: {counts}"


def line(row: Outcome) -> str:
    """One row for the terminal."""
    text = (
        f"{row.name:22} untiered {row.untiered:8} torture {row.torture:14} "
        f"moved {row.pages_moved:>9,} faults {row.faults:>9,} {row.seconds:6.1f} s  {row.version}"
    )
    return text + ("\n    " + row.why.replace("\n", "\n    ") if row.why else "")


def write_json(path: Path, rows: Sequence[Outcome], options: Sequence[str]) -> None:
    """What `make compat JSON=path` promises: `programs[]`, and how they were run."""
    document = {
        "mode": " ".join(options),
        "kernel": platform.release(),
        "machine": platform.machine(),
        "summary": summary(rows),
        "programs": [dataclasses.asdict(row) for row in rows],
    }
    path.write_text(json.dumps(document, indent=1) + "\n")


def cell(text: str) -> str:
    """Text that cannot break a row."""
    return text.replace("|", "/").replace("\n", " ")


def table(rows: Sequence[Outcome], options: Sequence[str]) -> str:
    """The part of the document that is made."""
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    head = (
        f"Run on {today}, Linux {platform.release()} ({platform.machine()}), with "
        f"`terrace run {' '.join(options)}`. {summary(rows)}.\n\n"
        "| program | version | untiered | torture | pages moved | faults | what was checked |\n"
        "|---|---|---|---|---:|---:|---|\n"
    )
    body = "".join(
        f"| {cell(r.name)} | {cell(r.version)} | {r.untiered} | {r.torture} | {r.pages_moved:,} "
        f"| {r.faults:,} | {cell(r.checked)} |\n"
        for r in rows
    )
    odd = [r for r in rows if r.torture not in ("pass", "refused")]
    notes = "".join(f"\n- **{r.name}**, {r.torture}: {cell(r.why)[:400]}" for r in odd)
    return head + body + (f"\nNot passed:\n{notes}\n" if odd else "")


def write_document(rows: Sequence[Outcome], options: Sequence[str]) -> None:
    """Puts the table between its marks; what people wrote around it stays."""
    text = DOCUMENT.read_text()
    before, mark, rest = text.partition(BEGIN)
    _, end_mark, after = rest.partition(END)
    if not mark or not end_mark:
        raise ValueError(f"{DOCUMENT.name} has lost the marks of its table")
    made = table(rows, options)
    DOCUMENT.write_text(f"{before}{BEGIN}\n\n{made}\n{END}{after}")
