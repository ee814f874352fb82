"""DuckDB in memory: the same questions after each pause must have the same answers.

Prints "OK digest".
"""

from __future__ import annotations

import hashlib
import sys
import time

import duckdb

ROWS = 1_500_000
QUESTIONS = (
    "SELECT count(*), sum(a), sum(length(s)), min(s), max(s), bit_xor(a * 31 + n) FROM t",
    "SELECT n, count(*), sum(a), max(s) FROM t GROUP BY n ORDER BY n",
    "SELECT x.n, count(*), sum(y.b) FROM t x JOIN u y ON x.a = y.a GROUP BY x.n ORDER BY 1",
    "SELECT md5(string_agg(s, '' ORDER BY s, i)) FROM t WHERE n < 60",
    "SELECT sum(r * a) FROM (SELECT a, row_number() OVER (PARTITION BY n ORDER BY s, i) r FROM t)",
    "SELECT i, s FROM t ORDER BY s DESC, i LIMIT 20",
)


def main() -> int:
    """Four rounds of questions."""
    db = duckdb.connect(":memory:", config={"threads": "2", "memory_limit": "2GB"})
    db.execute(
        "CREATE TABLE t AS SELECT i, (i * 48271) % 2147483647 AS a, (i * 7) % 500 AS n,"
        " printf('%x row %d', (i * 104729) % 2147483647, i % 90) AS s"
        f" FROM range(1, {ROWS}) r(i)"
    )
    db.execute("CREATE TABLE u AS SELECT a, a % 1000 AS b FROM t WHERE n % 5 = 0")
    before: list[list[tuple[object, ...]]] = []
    for turn in range(4):
        time.sleep(1)
        answers = [db.execute(question).fetchall() for question in QUESTIONS]
        if before and answers != before:
            print(f"BAD round {turn}")
            return 1
        before = answers
    print("OK", hashlib.sha256(repr(before).encode()).hexdigest())
    return 0


sys.exit(main())
