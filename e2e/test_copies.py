"""Encodings of pages that came home (crates/preload/src/copies.rs), on the real kernel."""

from __future__ import annotations

import pytest

from harness import HARD, Run, Sandbox, wait_until
from test_hazards import Compiler
from test_planner import conclude, start_pid

pytestmark = pytest.mark.usefixtures("can_tier")

# A mover is busy with what `steady` touches on any machine: a slower one faults less, but encodes
# longer. (At level 12 it is busy for a quarter of its time, where copies begin.)
SLOW_CODEC = '[[tier]]\ncodec = "zstd"\nlevel = 15\npool = "zsmalloc"\nmedium = "dram"\n'
QUICK_CODEC = '[[tier]]\ncodec = "lz4"\npool = "zsmalloc"\nmedium = "dram"\n'


def reused(run: Run, pid: int) -> int:
    """Pages that went down again without being encoded."""
    return max((int(w["moves_total"]["reused"]) for w in run.windows(pid)), default=0)


def test_what_is_only_read_is_not_encoded_again(sandbox: Sandbox, program: Compiler) -> None:
    """Three of four accesses read. Each checks its page, and the end checks all of them."""
    config = sandbox.folder / "slow.toml"
    config.write_text(SLOW_CODEC)
    with sandbox.start(program("steady"), "24", options=(*HARD, "--config", str(config))) as run:
        pid = start_pid(run)
        wait_until("copies in use", lambda: reused(run, pid) > 1000, 60)
        conclude(run, pid)
        assert run.conclude() == 0
        windows = run.windows(pid)
        assert max(int(w["copied_pages"]) for w in windows) > 0
        demoted = max(int(w["moves_total"]["demoted"]) for w in windows)
        assert reused(run, pid) < demoted


def test_nothing_is_held_twice_where_movers_have_time(sandbox: Sandbox, program: Compiler) -> None:
    """The same program, and a codec that is done at once."""
    config = sandbox.folder / "quick.toml"
    config.write_text(QUICK_CODEC)
    with sandbox.start(program("steady"), "16", options=(*HARD, "--config", str(config))) as run:
        pid = start_pid(run)
        seen = len(run.windows(pid))
        wait_until("windows", lambda: len(run.windows(pid)) > seen + 10)
        conclude(run, pid)
        assert run.conclude() == 0
        # A stranger on the processor may make movers late, now and then.
        held = sorted(int(w["copied_pages"]) for w in run.windows(pid)[seen:])
        assert held[len(held) // 2] == 0, held
