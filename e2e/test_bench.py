"""The benchmarks beside the kernel's swap, with as few pages as they take.

Their JSON is whole, and what they set up in the kernel is put back. How fast anything is, is not
asked here.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.usefixtures("can_tier")

ZSWAP = Path("/sys/module/zswap/parameters")
PAGES = 4096
TIMEOUT_S = 120.0


def kernel_settings() -> dict[str, str]:
    """Everything that a benchmark may change and must put back."""
    files = [*sorted(ZSWAP.glob("*")), Path("/proc/sys/vm/page-cluster"), Path("/proc/swaps")]
    settings = {str(file): file.read_text() for file in files if file.exists()}
    settings["zram"] = " ".join(sorted(d.name for d in Path("/sys/block").glob("zram*")))
    left = sorted(f.name for f in Path("/var/tmp").glob("terrace-bench-*"))
    settings["swap files"] = " ".join(left)
    return settings


@pytest.fixture
def kernel_swap() -> Iterator[None]:
    """Skips where the kernel's swap cannot be compared with; fails if it is not put back."""
    if os.geteuid() != 0:
        pytest.skip("only root can set the kernel's swap up")
    if not ZSWAP.exists():
        pytest.skip("this kernel has no zswap")
    if len(Path("/proc/swaps").read_text().splitlines()) > 1:
        pytest.skip("this machine swaps; it would be measured, too")
    before = kernel_settings()
    yield
    assert kernel_settings() == before


def bench(terrace: Path, folder: Path, *words: str) -> dict[str, Any]:
    """Runs a benchmark and reads what it wrote."""
    out = folder / "figures.json"
    line: list[str | Path] = [terrace, "bench", *words, "--json", out]
    done = subprocess.run(line, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stderr
    figures: dict[str, Any] = json.loads(out.read_text())
    return figures


def test_fault_compares_with_zswap_and_zram(
    terrace: Path, tmp_path: Path, kernel_swap: None
) -> None:
    """Every row has faults, every ratio that can be there is."""
    del kernel_swap
    words = ["--against", "zswap,zram", "--pages", str(PAGES), "--repeat", "1", "--threads", "1,2"]
    figures = bench(terrace, tmp_path, "fault", *words, "--tier", "zsmalloc+lz4+dram")
    assert [row["name"] for row in figures["tiers"]] == ["zsmalloc+lz4+dram"]
    assert [at["threads"] for at in figures["threads"]] == [1, 2]
    measured = [row["name"] for row in figures["against"]]
    assert "zswap+lzo" in measured, figures["not_compared"]
    moving = figures["while_moving"]
    assert [len(at["floors"]) for at in figures["threads"]] == [2, 1], (
        "the bare pager has one thread"
    )
    rows = figures["tiers"] + figures["against"] + figures["floors"]
    for row in rows + moving["tiers"] + moving["against"]:
        assert 0 < row["p50_ns"] <= row["p99_ns"] <= row["p999_ns"], row
        assert row["faults"] > PAGES // 2, row
    ratios = figures["ratios"]
    wanted = ["lz4_vs_zswap_lzo_p50", "lz4_vs_zswap_lzo_p99", "lz4_vs_zswap_lzo_p99_while_moving"]
    if "zram+lz4" in measured:
        wanted.append("lz4_vs_zram_lz4_p50")
    assert all(ratios[name] > 0 for name in wanted), ratios
    # Left out by --tier.
    assert ratios["deflate_vs_zswap_deflate_p50"] is None


def test_demote_counts_cpu_time_of_both(terrace: Path, tmp_path: Path, kernel_swap: None) -> None:
    """Both sides spend a believable time on each page, and the ratio is theirs."""
    del kernel_swap
    words = ["--against", "zswap", "--pages", str(PAGES), "--repeat", "1"]
    figures = bench(terrace, tmp_path, "demote", *words)
    rows = {row["name"]: row for row in figures["subjects"]}
    pools = {"zbud+lz4", *(f"zsmalloc+{codec}" for codec in ("lz4", "lzo", "zstd", "deflate"))}
    assert set(rows) == {"zswap+lzo", *(f"{tier}+dram" for tier in pools)}
    for name, row in rows.items():
        # A codec call alone takes more than a microsecond a page, nothing takes a millisecond.
        assert 1_000 < row["cpu_ns_per_page"] < 1_000_000, row
        assert row["pool_ratio"] > 1, row
        by_kernel = name.startswith("zswap")
        assert (row["mover_cpu_ns_per_page"] == 0) == by_kernel, row
        assert row["repetitions"][0]["pages"] >= PAGES * 0.98
    ours, kernels = (rows[n]["cpu_ns_per_page"] for n in ("zsmalloc+lz4+dram", "zswap+lzo"))
    assert figures["cpu_per_page_ratio_vs_zswap_lzo"] == pytest.approx(ours / kernels)


def test_churn_needs_no_privilege_and_compares(terrace: Path, tmp_path: Path) -> None:
    """Both programs map, and the ratio of each pair is theirs."""
    words = ["--pairs", "2", "--slice", "0.3", "--window", "0.2", "--cold-mib", "8"]
    figures = bench(terrace, tmp_path, "churn", *words)
    assert len(figures["pairs"]) == 2
    for pair in figures["pairs"]:
        assert pair["ratio"] == pytest.approx(pair["terrace_mib_s"] / pair["plain_mib_s"])
    assert 0.01 < figures["throughput_ratio"] < 100


@pytest.mark.parametrize("kill", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_comparison_leaves_nothing(
    terrace: Path, kernel_swap: None, kill: signal.Signals
) -> None:
    """The settings are compared by the fixture."""
    del kernel_swap
    words = ["bench", "fault", "--against", "zswap,zram", "--pages", str(PAGES)]
    line: list[str | Path] = [terrace, *words]
    with subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        deadline = time.monotonic() + TIMEOUT_S
        while len(Path("/proc/swaps").read_text().splitlines()) < 2:
            assert process.poll() is None and time.monotonic() < deadline, "nothing was set up"
            time.sleep(0.002)
        # Twice, as timeout(1) does: the second must not cut the clearing up short.
        process.send_signal(kill)
        process.send_signal(kill)
        _, errors = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode != 0
    assert b"interrupted" in errors, errors
