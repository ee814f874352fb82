"""`terrace tiers characterize`: on a file, on a process, refused, and saved for `auto`."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from harness import Sandbox

tiered = pytest.mark.usefixtures("can_tier")

# Few pages and one repetition: the fewest that a live measurement takes are 4,096, in seconds.
SMALL = ("--pages", "1024", "--repeat", "1")
TWO = "zbud+lz4+dram,zsmalloc+zstd+dram"


def text_file(sandbox: Sandbox, pages: int = 600) -> Path:
    """Something that compresses about as prose does, every page of it different."""
    path = sandbox.folder / "words"
    words = [f"{n * 2654435761 % 99991:x}ing" for n in range(100)]
    lines = (" ".join(words[(n * k) % 100] for k in range(1, 13)) for n in range(1 << 20))
    text = ""
    while len(text) < pages * 4096:
        text += "".join(next(lines) + "\n" for _ in range(1000))
    path.write_text(text[: pages * 4096 + 100])
    return path


def characterize(sandbox: Sandbox, *options: str | Path) -> tuple[dict[str, Any], str]:
    """Runs it to its end. The JSON, and what it printed."""
    path = sandbox.folder / "out.json"
    line = ("tiers", "characterize", *SMALL, "--json", path, *options)
    answer = sandbox.terrace(*line, timeout_s=180)
    assert answer.returncode == 0, answer.stderr
    found: dict[str, Any] = json.loads(path.read_text())
    return found, answer.stdout


@tiered
def test_two_tiers_of_a_file(sandbox: Sandbox) -> None:
    """Both are measured with real faults, and everything that was promised is said of both."""
    plot = sandbox.folder / "plot.svg"
    data = text_file(sandbox)
    found, printed = characterize(sandbox, "--data", data, "--tiers", TWO, "--plot", plot)
    assert {t["name"] for t in found["tiers"]} == set(TWO.split(","))
    by_name = {t["name"]: t for t in found["tiers"]}
    lz4, zstd = (by_name[name] for name in TWO.split(","))
    for tier in (lz4, zstd):
        assert tier["measured"] == "live", found["failed"]
        assert 1_000 < tier["fault_p50_ns"] <= tier["fault_p99_ns"]
        assert tier["compress_ns_p50"] > 0 and tier["refused_share"] == 0
        assert 0 < tier["codec_ratio"] < tier["ratio"] < 1
        assert tier["tco_normalized"] == pytest.approx(tier["ratio"])
        assert tier["name"] in printed
    assert zstd["codec_ratio"] < lz4["codec_ratio"]
    assert zstd["pareto"], "nothing is cheaper"
    assert zstd["recommended"] and zstd["name"] in found["recommended"]
    assert found["sources"][0]["pages_there"] == 600 and found["pages"] == 600
    assert plot.read_text().startswith("<svg") and zstd["name"] in plot.read_text()


@tiered
def test_pages_of_a_process(sandbox: Sandbox) -> None:
    """It is read while it runs, and what it holds is what is found."""
    script = (
        "import os, sys\n"
        "held = [(f'{n * 7919:x} ' * 700)[:4000] for n in range(3000)]\n"
        "held += [bytes(1 << 20)]\n"
        "print('up', flush=True)\n"
        "sys.stdin.read()\n"
        "print(len(held), flush=True)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None and process.stdin is not None
        assert process.stdout.readline() == "up\n"
        pid = str(process.pid)
        found, _ = characterize(sandbox, "--pid", pid, "--tiers", "zsmalloc+lz4+dram")
        process.stdin.close()
        assert process.stdout.readline() == "3001\n", "it goes on as if nothing had been"
    source = found["sources"][0]
    assert source["name"].startswith(f"process {pid} (")
    assert source["pages_there"] > 2_000
    assert source["taken"] == 1024 == found["pages"]
    assert source["looked_at"] >= source["taken"] + source["same_filled"]
    # Repeated words: far below what other memory compresses to.
    assert found["tiers"][0]["codec_ratio"] < 0.4


@tiered
def test_what_is_saved_is_what_auto_is(sandbox: Sandbox) -> None:
    """`--save` is needed, `tiers list` and `run` say so, and a broken file is left aside."""
    saved = sandbox.folder / ".local/state/terrace/auto.toml"
    data = text_file(sandbox)
    only = ("--data", data, "--tiers", "zsmalloc+deflate+dram")
    characterize(sandbox, *only)
    assert not saved.exists(), "nobody asked for it"
    characterize(sandbox, *only, "--save")
    assert "date: " in saved.read_text() and "machine: " in saved.read_text()

    listed = sandbox.terrace("tiers", "list").stdout
    assert "zsmalloc+deflate+dram" in listed and "zsmalloc+lz4" not in listed
    assert re.search(r"^auto: 1 tiers of .*auto.toml, saved \d{4}-", listed, re.MULTILINE), listed
    ran = sandbox.terrace("run", "--", "true")
    assert ran.returncode == 0 and "terrace: auto: 1 tiers of" in ran.stderr
    assert "auto" not in sandbox.terrace("run", "--quiet", "--", "true").stderr
    assert "auto:" not in sandbox.terrace("tiers", "list", "--preset", "tierscape").stdout

    saved.write_text(saved.read_text().replace("deflate", "inflate"))
    listed = sandbox.terrace("tiers", "list").stdout
    assert "zsmalloc+lz4+dram" in listed and '"inflate" is not a codec' in listed


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--data", "missing"), "cannot open missing"),
        (("--data", "empty"), "has 0 bytes and no whole page"),
        (("--data", "short"), "has 4095 bytes and no whole page"),
        (("--data", "zeros"), "nothing to compress: 3 pages of file zeros"),
        (("--data", "."), "is a folder"),
        (("--pid", "4194304"), "there is no process 4194304"),
        (("--pid", "2"), "has no memory of its own"),
        (("--data", "short", "--pid", "1"), "cannot be used with"),
        (("--tiers", "lz5"), '"lz5" is no tier'),
        (("--plot", "plot.png"), "neither .svg nor .html"),
        (("--json", "no/folder.json"), "there is no folder no"),
        (("--pages", "0"), "0 is not in 1"),
    ],
)
@tiered
def test_refusals(sandbox: Sandbox, options: tuple[str, ...], said: str) -> None:
    """Each is said in one line, before anything is measured."""
    (sandbox.folder / "empty").touch()
    (sandbox.folder / "short").write_bytes(b"x" * 4095)
    (sandbox.folder / "zeros").write_bytes(bytes(3 * 4096))
    if options == ("--pid", "2") and os.geteuid() != 0:
        pytest.skip("only root may look into a kernel thread")
    answer = sandbox.terrace("tiers", "characterize", *options)
    assert answer.returncode != 0 and answer.stdout == ""
    assert said in answer.stderr, answer.stderr


@pytest.mark.usefixtures("userfaultfd_for_all")
def test_another_users_process_is_closed(nobody: Sandbox) -> None:
    """The message says what would help."""
    answer = nobody.terrace("tiers", "characterize", "--pid", str(os.getpid()))
    assert answer.returncode == 1
    assert "cannot be read by this user" in answer.stderr, answer.stderr
    assert "as root" in answer.stderr
