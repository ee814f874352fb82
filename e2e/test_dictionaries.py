"""Tiers whose codec learns a dictionary from the application's own pages."""

from __future__ import annotations

import pytest

from harness import HARD, TIMEOUT_S, Sandbox, pages_in_tiers
from test_hazards import Compiler

pytestmark = pytest.mark.usefixtures("can_tier")


def stored_share(sandbox: Sandbox, program: Compiler, codec: str, training_s: int = 0) -> float:
    """Runs the program on one tier of a codec; the share that its pages were encoded to, last."""
    config = sandbox.folder / "dictionary.toml"
    config.write_text(f'[[tier]]\ncodec = "{codec}"\npool = "zsmalloc"\nmedium = "dram"\n')
    options = (*HARD, "--config", str(config))
    arguments = (program("dictionary"), str(training_s * 1000))
    with sandbox.start(*arguments, options=options) as run:
        status = run.conclude(TIMEOUT_S)
        assert (status, run.lines[-1:]) == (0, ["OK"]), f"{run.lines}\n{run.stderr()}"
        fullest = max(run.windows()[-40:], key=pages_in_tiers)
    return float(fullest["tiers"][1]["stored_bytes"]) / (pages_in_tiers(fullest) * 4096)


@pytest.mark.parametrize("codec", ["zstd", "lz4"])
def test_dictionary_pays(sandbox: Sandbox, program: Compiler, codec: str) -> None:
    """Pages come back right with a dictionary made halfway, also in a child, and take less room."""
    plain = stored_share(sandbox, program, codec)
    # The dictionary is trained when nobody else wants the processor.
    for training_s in (2, 8, 20):
        learnt = stored_share(sandbox, program, f"{codec}-dict", training_s)
        if learnt < 0.95 * plain:
            return
    pytest.fail(f"{learnt:.3f} with a dictionary, {plain:.3f} without")
