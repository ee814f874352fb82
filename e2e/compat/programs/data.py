"""Databases inside a process (SQLite, DuckDB, RocksDB), and stress-ng, which verifies."""

from __future__ import annotations

import hashlib
import importlib.util
import sys

from compat.programs.common import package_version, version_of
from compat.runner import SOURCES, Missing, Program, Stage, Wrong

SQLITE = """
PRAGMA temp_store=MEMORY; PRAGMA cache_size=-200000;
CREATE TABLE t(id INTEGER PRIMARY KEY, a TEXT, b TEXT, n INTEGER);
WITH RECURSIVE c(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM c WHERE i < {rows})
  INSERT INTO t SELECT i, printf('%x', (i*48271) % 2147483647),
    printf('row %d of %s %s', i, hex(i*7919), hex(i*104729)||hex(i*31)), i % 1000 FROM c;
CREATE INDEX by_a ON t(a); CREATE INDEX by_n ON t(n, b);
{pause}
PRAGMA integrity_check;
SELECT count(*), sum(length(a)), sum(length(b)), sum(n), min(a), max(b) FROM t;
UPDATE t SET b = b || ' updated' WHERE id % 3 = 0;
DELETE FROM t WHERE id % 7 = 0;
{pause}
PRAGMA integrity_check;
SELECT count(*), sum(length(b)), sum(id * n) FROM t;
SELECT n, count(*), group_concat(substr(b, 1, 12)) FROM t
  WHERE n % 250 = 3 AND id < 9000 GROUP BY n;
SAVEPOINT s; DELETE FROM t WHERE n < 500; {pause}
ROLLBACK TO s; RELEASE s;
SELECT count(*), sum(id) FROM t INDEXED BY by_n WHERE n >= 0;
{pause}
VACUUM;
PRAGMA integrity_check;
SELECT x.id, y.id FROM t x JOIN t y ON x.a = y.a AND x.id < y.id ORDER BY x.b DESC LIMIT 5;
SELECT id, a, b, n FROM t ORDER BY b;
"""


def drive_sqlite(stage: Stage) -> str:
    """The command line shell with a database in memory, then its dump."""
    rows = 120_000 if stage.quick else 400_000
    script = stage.folder / "script.sql"
    script.write_text(SQLITE.format(rows=rows, pause="\n.shell sleep 0.7\n"))
    said = stage.run(["sqlite3", "-batch", ":memory:", f".read {script}"])
    if said.count("ok\n") != 3:
        raise Wrong(f"integrity_check: {said[:2000]}")
    return hashlib.sha256(said.encode()).hexdigest()


def drive_duckdb(stage: Stage) -> str:
    """Joins, windows and sorts over columns in memory, from threads."""
    if importlib.util.find_spec("duckdb") is None:
        raise Missing("the Python module duckdb")
    return stage.run([sys.executable, SOURCES / "columns.py"]).strip()


def duckdb_version() -> str:
    """Of the Python module."""
    if importlib.util.find_spec("duckdb") is None:
        return ""
    return version_of(sys.executable, "-c", "import duckdb; print(duckdb.__version__)")()


def drive_rocksdb(stage: Stage) -> str:
    """Memtables and a block cache in private memory; every block has a checksum."""
    database = stage.folder / "database"
    cache = str(96 << 20)
    said = stage.run(
        [
            *("db_bench", f"--db={database}", "--num=150000", "--value_size=400", "--seed=7"),
            "--benchmarks=fillrandom,readrandom,overwrite,readrandom,compact,readseq,"
            "verifychecksum",
            *("--threads=1", f"--cache_size={cache}", f"--write_buffer_size={48 << 20}"),
            *("--verify_checksum=true", "--compression_type=lz4"),
        ],
        name="db_bench",
    )
    if "orruption" in said or "verifychecksum" not in said:
        raise Wrong(said[-2000:])
    stage.run(["ldb", f"--db={database}", "checkconsistency"], name="ldb")
    listing = stage.run(["ldb", f"--db={database}", "--hex", "scan"], name="scan")
    return hashlib.sha256(listing.encode()).hexdigest()


def drive_stress(stage: Stage) -> None:
    """Every method of the memory stressor, each of which compares what it wrote."""
    said = stage.run(
        [
            *("stress-ng", "--vm", "2", "--vm-bytes", "128m", "--vm-method", "all", "--vm-keep"),
            *("--verify", "--metrics-brief", "--timeout", "60s", "--temp-path", stage.folder),
        ],
        name="stress-ng",
    )
    if "fail" in said.lower() or "successful run completed" not in said:
        raise Wrong(said[-2000:])


def drive_stressapptest(stage: Stage) -> None:
    """Threads that copy, invert and check memory of their own process, block by block."""
    options = ["-M", "192", "-s", "25", "-m", "2", "-i", "1", "-c", "1", "-W"]
    said = stage.run(["stressapptest", *options], name="stressapptest")
    if "Status: PASS" not in said or "with 0 hardware incidents, 0 errors" not in said:
        raise Wrong(said[-2000:])


ALL = (
    Program(
        "sqlite",
        version_of("sqlite3", "--version"),
        drive_sqlite,
        "a database in memory with two indexes: integrity_check three times, updates, a savepoint "
        "rolled back, VACUUM; the SHA-256 of all rows and results is as untiered",
        ("sqlite3:sqlite3",),
        quick=True,
    ),
    Program(
        "duckdb",
        duckdb_version,
        drive_duckdb,
        "joins, windows, sorts and aggregates over tables in memory, repeated after pauses with "
        "equal results; digest as untiered",
    ),
    Program(
        "rocksdb",
        package_version("rocksdb-tools"),
        drive_rocksdb,
        "db_bench with checksums verified, verifychecksum, ldb checkconsistency; the SHA-256 of a "
        "scan of all keys and values is as untiered",
        ("db_bench:rocksdb-tools", "ldb:rocksdb-tools"),
    ),
    Program(
        "stress-ng",
        version_of("stress-ng", "--version"),
        drive_stress,
        "--vm 2 --vm-method all --verify: every pattern compared by stress-ng itself",
        ("stress-ng:stress-ng",),
    ),
    Program(
        "stressapptest",
        package_version("stressapptest"),
        drive_stressapptest,
        "threads that copy, invert and check 192 MiB block by block; no errors, by its own count",
        ("stressapptest:stressapptest",),
    ),
)
