"""Tiers of blocks: pages that are compressed together and wanted one by one.

What a page of such a tier goes through on its way down and back differs from other tiers: it waits
in a block, it is decoded with its neighbours, it is repacked when most of them are gone. The hazard
programs check every byte.
"""

from __future__ import annotations

import pytest

from harness import HARD, Sandbox, faults_from_tiers
from test_hazards import Compiler, face

pytestmark = pytest.mark.usefixtures("can_tier")

LARGE = '[[tier]]\ncodec = "zstd"\npool = "zsmalloc"\nmedium = "dram"\nblock_kib = 64\n'
SMALL = '[[tier]]\ncodec = "zstd"\nlevel = 1\npool = "zbud"\nmedium = "dram"\nblock_kib = 16\n'
SINGLE = '[[tier]]\ncodec = "zstd"\npool = "zsmalloc"\nmedium = "dram"\n'
SETS = {"64k": LARGE, "16k": SMALL, "all": SINGLE + SMALL + LARGE}

# The fault path, forks, and changes of the address space.
HAZARDS = [
    "touch", "content", "threads", "scan", "same_word", "fork_reads", "fork_unmaps", "unmap",
    "remap", "dontneed", "dontneed_race", "free_lazily", "heap", "exec",
]  # fmt: skip


def options_for(sandbox: Sandbox, tiers: str, *options: str) -> tuple[str, ...]:
    """Options of a run with these tiers."""
    config = sandbox.folder / "blocks.toml"
    config.write_text(tiers)
    return (*(options or HARD), "--config", str(config))


@pytest.mark.parametrize("name", HAZARDS)
def test_in_blocks(sandbox: Sandbox, program: Compiler, name: str) -> None:
    """Everything that can go down goes into blocks of 64 KiB."""
    face(sandbox, program(name), options=options_for(sandbox, LARGE))


@pytest.mark.parametrize("name", ["content", "threads", "fork_reads", "scan"])
@pytest.mark.parametrize("tiers", ["16k", "all"])
def test_among_other_tiers(sandbox: Sandbox, program: Compiler, name: str, tiers: str) -> None:
    """With the waterfall every page moves from tier to tier, into blocks and out of them."""
    waterfall = ("--window", "0.2", "--policy", "waterfall", "--threshold", "aggressive")
    options = HARD if tiers == "16k" else waterfall
    face(sandbox, program(name), options=options_for(sandbox, SETS[tiers], *options))


@pytest.mark.parametrize("name", ["threads", "fork_reads", "scan"])
def test_in_a_file(sandbox: Sandbox, program: Compiler, name: str) -> None:
    """A frame is read in pieces, by loaders, each of which may be read beside the others."""
    where = f'kind = "file"\ndirectory = "{sandbox.folder}"\ncapacity_mib = 256'
    medium = f'[[medium]]\nname = "far"\nusd_per_gib_month = 0.01\n{where}\n'
    tiers = medium + LARGE.replace('"dram"', '"far"')
    face(sandbox, program(name), options=options_for(sandbox, tiers))


def test_a_scan_brings_neighbours_along(sandbox: Sandbox, program: Compiler) -> None:
    """The block is decoded for one fault; those that come along with it are no faults."""
    with sandbox.start(program("scan"), options=options_for(sandbox, LARGE)) as run:
        assert run.conclude() == 0, f"{run.lines}\n{run.stderr()}"
        faults = sum(faults_from_tiers(w) for w in run.windows()[-1:])
        pages = 24 * 256
        assert 0 < faults < 5 * pages, "every page of every scan was a fault"
        tier = next(w["tiers"][1] for w in reversed(run.windows()) if w["tiers"][1]["pages"] > 0)
        assert tier["name"] == "zsmalloc+zstd+64k+dram"
        assert tier["stored_bytes"] < tier["pages"] * 4096 / 2
