"""The planner's answers are within 0.1 % of the optimum, judged by another solver.

`terrace bench plan --dump-instances` writes problems of 1 to 2000 regions with its own answers.
Each is given to HiGHS (through scipy) as the program of TierScape, section 5.2: one tier a region,
least time, money within the budget. First with shares of a region allowed, which is quick: an
answer within a tenth of the promise of *that* needs no more proof. The others, mostly small or made
to be hard, are solved as integer programs; where HiGHS runs out of time its dual bound stands in
for the optimum, which only makes the test stricter.

Needs numpy and scipy >= 1.9, and the `terrace` binary: TERRACE_BIN, by default
target/release/terrace.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

np = pytest.importorskip("numpy")
optimize = pytest.importorskip("scipy.optimize")
sparse = pytest.importorskip("scipy.sparse")

REPOSITORY = Path(__file__).resolve().parent.parent
TERRACE = Path(os.environ.get("TERRACE_BIN", REPOSITORY / "target/release/terrace"))

INSTANCES = 240
REGIONS_MAX = 2000
# What Terrace promises, as a share of the optimum.
PROMISE = 1e-3
# HiGHS stops at this gap, well inside the promise.
MIP_GAP = 1e-6
# Keeps the whole test within minutes; what is open then is judged by the dual bound.
SECONDS_PER_INSTANCE = 5.0
# Between sums of 2000 numbers in Python's order and in ours.
ROUNDING = 1e-9


@pytest.fixture(scope="module")
def instances(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Problems and answers, written by the binary under test."""
    if not TERRACE.exists():
        pytest.fail(f"{TERRACE} is missing: build it, or set TERRACE_BIN")
    folder = tmp_path_factory.mktemp("instances")
    command: list[str | Path] = [
        TERRACE,
        "bench",
        "plan",
        "--dump-instances",
        folder,
        "--seed",
        "20240405",
    ]
    limits = ["--count", str(INSTANCES), "--max-regions", str(REGIONS_MAX)]
    subprocess.run([*command, *limits], check=True, timeout=60, stdout=subprocess.DEVNULL)
    return [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]


@dataclass(frozen=True)
class Judgement:
    """What HiGHS says of a problem."""

    relaxed: float  # optimum of the linear relaxation
    best: float  # no answer is below this
    method: str  # where `best` comes from: "relaxed", "optimum" or "dual bound"


def judge(perf: Any, tco: Any, budget: float, ours: float) -> Judgement:
    """Bounds the optimum: by the relaxation where that says enough about `ours`, else exactly."""
    regions, tiers = perf.shape
    # Both rows are scaled to about 1, since HiGHS judges feasibility in absolute terms.
    time_unit = max(float(perf.max()), 1e-300)
    money_unit = max(float(tco.max()), 1e-300)
    one_tier_each = sparse.kron(sparse.eye_array(regions), np.ones((1, tiers)), format="csr")
    money = sparse.csr_array(tco.reshape(1, -1) / money_unit)

    def solve(integral: int) -> Any:
        return optimize.milp(
            c=perf.ravel() / time_unit,
            constraints=[
                optimize.LinearConstraint(one_tier_each, 1, 1),
                optimize.LinearConstraint(money, -np.inf, budget / money_unit),
            ],
            integrality=np.full(perf.size, integral),
            bounds=optimize.Bounds(0, 1),
            options={"mip_rel_gap": MIP_GAP, "time_limit": SECONDS_PER_INSTANCE},
        )

    relaxed = solve(0)
    if relaxed.status != 0:
        pytest.fail(f"HiGHS could not solve the relaxation: {relaxed.message}")
    relaxed = float(relaxed.fun) * time_unit
    if ours <= relaxed * (1 + PROMISE / 10):
        return Judgement(relaxed, relaxed, "relaxed")
    exact = solve(1)
    if exact.status == 0:
        return Judgement(relaxed, float(exact.fun) * time_unit, "optimum")
    if exact.mip_dual_bound is None:
        pytest.fail(f"HiGHS has neither an answer nor a bound: {exact.message}")
    return Judgement(relaxed, float(exact.mip_dual_bound) * time_unit, "dual bound")


def test_answers_are_what_they_claim(instances: list[dict[str, Any]]) -> None:
    """Objective and money are those of the choice, the budget is kept, the sizes are all there."""
    assert len(instances) >= 200
    sizes = [len(instance["perf"]) for instance in instances]
    assert min(sizes) == 1
    assert max(sizes) == REGIONS_MAX
    assert {len(instance["perf"][0]) for instance in instances} == set(range(2, 9))
    for instance in instances:
        perf, tco = np.array(instance["perf"]), np.array(instance["tco"])
        rows, choice = np.arange(len(perf)), np.array(instance["choice"])
        assert instance["feasible"]
        assert perf[rows, choice].sum() == pytest.approx(instance["objective"], rel=ROUNDING)
        assert tco[rows, choice].sum() == pytest.approx(instance["objective_tco"], rel=ROUNDING)
        assert instance["objective_tco"] <= instance["budget"]
        assert instance["lp_bound"] <= instance["objective"] * (1 + ROUNDING)


def test_no_answer_is_more_than_a_thousandth_from_the_optimum(
    instances: list[dict[str, Any]],
) -> None:
    """The promise, against HiGHS; and our own linear bound against its relaxation."""
    worst, methods, failures = 0.0, Counter[str](), []
    for index, instance in enumerate(instances):
        perf, tco = np.array(instance["perf"]), np.array(instance["tco"])
        ours = instance["objective"]
        verdict = judge(perf, tco, instance["budget"], ours)
        methods[verdict.method] += 1
        # HiGHS works to 1e-7 or so of our scale; a millionth of one region's time is no finding.
        smallest = 1e-6 * float(perf.max())
        excess = ours - verdict.best
        worst = max(worst, excess / verdict.best if verdict.best > smallest else 0.0)
        where = f"instance {index} ({instance['kind']}, {perf.shape[0]} x {perf.shape[1]})"
        if excess > PROMISE * verdict.best + smallest:
            failures.append(f"{where}: {ours} against {verdict}")
        if abs(instance["lp_bound"] - verdict.relaxed) > MIP_GAP * verdict.relaxed + smallest:
            failures.append(f"{where}: linear bound {instance['lp_bound']} against {verdict}")
    print(f"\n{len(instances)} instances judged by {dict(methods)}, worst excess {worst:.2e}")
    assert not failures, "\n".join(failures)
