"""PostgreSQL: money that must not get lost, big sorts and temporary tables, a backend killed.

The shared buffers are shared memory, which Terrace leaves alone. What it moves is the private
memory of backends: sorts, hashes, temporary tables.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import time
from pathlib import Path

from compat.programs.common import version_of, wait_for
from compat.runner import Command, Missing, Program, Stage, Wrong

BINARIES = Path("/usr/lib/postgresql/15/bin")
SETTINGS = (
    *("-c", "listen_addresses="),
    *("-c", "work_mem=256MB", "-c", "temp_buffers=128MB", "-c", "jit=off"),
    *("-c", "max_parallel_workers_per_gather=2", "-c", "fsync=on"),
)
# A session that holds tens of MiB of its own through pauses, and compares its sums at the end.
SESSION = """
\\set ON_ERROR_STOP on
CREATE TEMP TABLE t AS SELECT g AS id, md5(g::text) AS a, repeat(md5((g*7)::text), 4) AS b
  FROM generate_series(1, 200000) g;
SELECT count(*), sum(hashtext(a)::bigint), sum(hashtext(b)::bigint) FROM t;
SELECT pg_sleep(1.5);
SELECT count(*), sum(hashtext(a)::bigint), sum(hashtext(b)::bigint) FROM t;
UPDATE t SET a = md5(a) WHERE id % 3 = 0;
BEGIN;
DECLARE c CURSOR FOR SELECT id, a, b FROM t ORDER BY b, a;
FETCH 1 FROM c;
SELECT pg_sleep(1.5);
MOVE 100000 FROM c;
FETCH 3 FROM c;
SELECT pg_sleep(0.5);
MOVE 90000 FROM c;
FETCH 3 FROM c;
COMMIT;
SELECT md5(string_agg(a, '' ORDER BY b DESC)) FROM t;
SELECT count(*), sum(x.id::bigint * y.id) FROM t x JOIN t y ON x.a = md5(y.a);
DO $$
DECLARE big text[] := ARRAY(SELECT a || b FROM t ORDER BY id); n bigint := 0;
BEGIN
  FOR round IN 1..3 LOOP
    PERFORM pg_sleep(0.7);
    FOR i IN 1..200000 BY 7 LOOP n := n + hashtext(big[i]); END LOOP;
  END LOOP;
  RAISE NOTICE 'sum %', n;
END $$;
"""
CONSISTENT = (
    "SELECT (SELECT sum(abalance) FROM pgbench_accounts) = (SELECT sum(delta) FROM pgbench_history)"
    " AND (SELECT sum(bbalance) FROM pgbench_branches) = (SELECT sum(delta) FROM pgbench_history)"
    " AND (SELECT sum(tbalance) FROM pgbench_tellers) = (SELECT sum(delta) FROM pgbench_history)"
)


def drive(stage: Stage, *, privileged: bool) -> str:
    """The server runs as its own user, because it refuses root."""
    try:
        user = pwd.getpwnam("postgres").pw_uid
    except KeyError:
        raise Missing("no user postgres") from None
    if os.geteuid() != 0:
        raise Missing("only root can become the user postgres")
    data = stage.folder / "data"
    data.mkdir()
    for folder in (stage.folder, data):
        os.chown(folder, user, -1)
    stage.environment()
    os.chown(stage.folder / "run", user, -1)
    as_user: tuple[str, ...] = ("setpriv", f"--reuid={user}", "--clear-groups")
    if privileged:
        # With this the kernel reports forks; without, they are answered another way.
        as_user += ("--inh-caps=+sys_ptrace", "--ambient-caps=+sys_ptrace")
    else:
        as_user += ("--inh-caps=-all", "--bounding-set=-all")

    def sql(text: str) -> str:
        line: Command = [*as_user, BINARIES / "psql", "-h", stage.folder, "-XAtc", text, "postgres"]
        return stage.plain(line).strip()

    def pgbench(*options: str) -> str:
        line = [*as_user, BINARIES / "pgbench", "-h", stage.folder, *options, "postgres"]
        return stage.plain(line)

    initdb = [BINARIES / "initdb", "-D", data, "-A", "trust", "--no-sync", "-E", "UTF8"]
    stage.plain([*as_user, *initdb, "--locale=C"])
    postgres = [BINARIES / "postgres", "-D", data, "-k", stage.folder, *SETTINGS]
    server = stage.spawn(
        [*as_user, *stage.wrapped(postgres)], log=stage.folder / "postgres.log"
    )

    def answers() -> bool:
        try:
            return sql("SELECT 1") == "1"
        except Wrong:
            return False

    wait_for(stage, "postgres answers", answers)
    pgbench("-i", "-q", "-s", "3")
    session = stage.folder / "session.sql"
    session.write_text(SESSION)
    line = [*as_user, BINARIES / "psql", "-h", stage.folder, "-XAt", "-f", session, "postgres"]
    results = []
    for name in ("one", "two"):
        log = stage.folder / f"session-{name}.log"
        running = [stage.spawn(line, log=log)]
        pgbench("-n", "-c", "6", "-j", "2", "-T", "4")
        for process in running:
            if stage.wait(process) != 0:
                raise Wrong(f"session: {log.read_text()[-2000:]}")
        results.append(log.read_text())
    if results[0] != results[1]:
        raise Wrong(f"two sessions differ: {results}")
    if sql(CONSISTENT) != "t":
        raise Wrong("balances do not sum up")
    crash(stage, line, sql, answers)
    if sql(CONSISTENT) != "t":
        raise Wrong("balances do not sum up after recovery")
    pgbench("-n", "-c", "4", "-j", "2", "-t", "200")
    if sql(CONSISTENT) != "t" or int(sql("SELECT count(*) FROM pgbench_history")) < 800:
        raise Wrong("balances do not sum up after more transactions")
    # A fast shutdown. `terrace run` passes the signal on.
    if stage.stop(server, signal.SIGINT) != 0:
        raise Wrong(f"postgres: status {server.returncode}")
    check = stage.plain([*as_user, shutil.which("true") or "true"])
    return results[0] + check


def crash(stage: Stage, line: Command, sql: object, answers: object) -> None:
    """Kills a backend that has memory in tiers; the others end, the server recovers."""
    assert callable(sql) and callable(answers)
    log = stage.folder / "session-crash.log"
    victim = stage.spawn(line, log=log)
    time.sleep(1.5)
    pid = sql("SELECT pid FROM pg_stat_activity WHERE query ~ 'pg_sleep|TEMP' AND pid <> "
              "pg_backend_pid() ORDER BY backend_start LIMIT 1")
    if not pid:
        raise Wrong(f"no backend to kill: {log.read_text()[-500:]}")
    os.kill(int(pid), signal.SIGKILL)
    if stage.wait(victim) == 0:
        raise Wrong("the client of a killed backend saw nothing")
    wait_for(stage, "postgres recovers", answers)


VERSION = version_of(str(BINARIES / "postgres"), "--version")
NEEDS = (f"{BINARIES}/postgres:postgresql", "setpriv:util-linux")
CHECKED = (
    "sums of all balances after pgbench, after kill -9 of a backend and recovery, and after more "
    "transactions; hashes over temporary tables, sorts, joins and arrays kept through pauses; "
    "{how}"
)
POSTGRESQL = Program(
    "postgresql",
    VERSION,
    lambda stage: drive(stage, privileged=True),
    CHECKED.format(how="as user postgres with CAP_SYS_PTRACE"),
    NEEDS,
)
POSTGRESQL_UNPRIVILEGED = Program(
    "postgresql-no-caps",
    VERSION,
    lambda stage: drive(stage, privileged=False),
    CHECKED.format(how="as user postgres without any capability"),
    NEEDS,
)
