"""Solves one of the planner's problems with HiGHS, for `terrace bench plan --mip`.

Argument 1 is a file of little-endian doubles: regions, tiers, limits, budget, seconds; the bytes
and the tier set (as bits) of each limit; then time, money and bytes of every tier of every region.
The answer is one line of JSON.
"""

import json
import sys
import time

import numpy as np
from scipy import optimize, sparse

data = np.fromfile(sys.argv[1], dtype="<f8")
regions, tiers, count = (int(x) for x in data[:3])
budget, seconds = data[3], data[4]
limits = data[5 : 5 + 2 * count].reshape(count, 2)
perf, tco, size = data[5 + 2 * count :].reshape(3, regions, tiers)

# HiGHS judges feasibility in absolute terms, so each row is scaled to about 1.
time_unit = max(float(perf.max()), 1e-300)
money_unit = max(float(tco.max()), 1e-300)
one_tier_each = sparse.kron(sparse.eye_array(regions), np.ones((1, tiers)), format="csr")
rows = [
    optimize.LinearConstraint(one_tier_each, 1, 1),
    optimize.LinearConstraint(
        sparse.csr_array(tco.reshape(1, -1) / money_unit), -np.inf, budget / money_unit
    ),
]
for most, tier_set in limits:
    counts = np.array([int(tier_set) >> tier & 1 for tier in range(tiers)])
    unit = max(float((size * counts).max()), 1e-300)
    row = sparse.csr_array((size * counts).reshape(1, -1) / unit)
    rows.append(optimize.LinearConstraint(row, -np.inf, most / unit))

start = time.monotonic()
found = optimize.milp(
    c=perf.ravel() / time_unit,
    constraints=rows,
    integrality=np.ones(perf.size),
    bounds=optimize.Bounds(0, 1),
    # As far from the optimum as our own answer may be: HiGHS need not work harder than we do.
    options={"mip_rel_gap": 1e-3, "time_limit": float(seconds)},
)
took = time.monotonic() - start
bound = found.mip_dual_bound
print(
    json.dumps(
        {
            "seconds": took,
            "perf": None if found.fun is None else float(found.fun) * time_unit,
            "bound": None if bound is None else float(bound) * time_unit,
            "finished": found.status == 0,
        }
    )
)
