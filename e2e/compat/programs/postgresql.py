"""PostgreSQL: money that must not get lost, big sorts and temporary tables, a backend killed.

The shared buffers are shared memory, which Terrace leaves alone. What can be moved is the private
memory of backends: sorts, hashes, temporary tables. A backend of a server is a fork of the
postmaster without exec, which Terrace serves and does not tier; so the same statements also run in
a single-user server, which is its own backend, and there pages do move.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

from compat.programs.common import version_of, wait_for
from compat.runner import Missing, Program, Stage, Wrong, without_summary

# Debian keeps each version in a folder of its own; the newest that has a server.
BINARIES = max(
    (path.parent for path in Path("/usr/lib/postgresql").glob("*/bin/postgres")),
    default=Path("/usr/lib/postgresql/15/bin"),
)
UNPRIVILEGED = Path("/proc/sys/vm/unprivileged_userfaultfd")
SETTINGS = (
    *("-c", "listen_addresses="),
    *("-c", "work_mem=256MB", "-c", "temp_buffers=128MB", "-c", "jit=off"),
    *("-c", "max_parallel_workers_per_gather=2", "-c", "fsync=on"),
)
# What a session that holds tens of MiB of its own does, with pauses.
STATEMENTS = (
    "CREATE TEMP TABLE t AS SELECT g AS id, md5(g::text) AS a, repeat(md5((g*7)::text), 4) AS b"
    " FROM generate_series(1, 200000) g",
    "SELECT count(*), sum(hashtext(a)::bigint), sum(hashtext(b)::bigint) FROM t",
    "SELECT pg_sleep(1.5)",
    "SELECT count(*), sum(hashtext(a)::bigint), sum(hashtext(b)::bigint) FROM t",
    "UPDATE t SET a = md5(a) WHERE id % 3 = 0",
    "BEGIN",
    "DECLARE c CURSOR FOR SELECT id, a, b FROM t ORDER BY b, a",
    "FETCH 1 FROM c",
    "SELECT pg_sleep(1.5)",
    "MOVE 100000 FROM c",
    "FETCH 3 FROM c",
    "SELECT pg_sleep(0.5)",
    "MOVE 90000 FROM c",
    "FETCH 3 FROM c",
    "COMMIT",
    "SELECT md5(string_agg(a, '' ORDER BY b DESC)) FROM t",
    "SELECT count(*), sum(x.id::bigint * y.id) FROM t x JOIN t y ON x.b = y.b",
    "DO $$ DECLARE big text[] := ARRAY(SELECT a || b FROM t ORDER BY id); n bigint := 0;"
    " BEGIN FOR round IN 1..3 LOOP PERFORM pg_sleep(0.7);"
    " FOR i IN 1..200000 BY 7 LOOP n := n + hashtext(big[i]); END LOOP;"
    " END LOOP; RAISE WARNING 'sum %', n; END $$",
)
CONSISTENT = (
    "SELECT (SELECT sum(abalance) FROM pgbench_accounts) = (SELECT sum(delta) FROM pgbench_history)"
    " AND (SELECT sum(bbalance) FROM pgbench_branches) = (SELECT sum(delta) FROM pgbench_history)"
    " AND (SELECT sum(tbalance) FROM pgbench_tellers) = (SELECT sum(delta) FROM pgbench_history)"
)
SLEEPING = (
    "SELECT pid FROM pg_stat_activity WHERE query ~ 'pg_sleep' AND wait_event = 'PgSleep'"
    " AND pid <> pg_backend_pid() LIMIT 1"
)


class Cluster:
    """A server that runs as its own user, because it refuses root."""

    def __init__(self, stage: Stage, *, privileged: bool) -> None:
        try:
            user = pwd.getpwnam("postgres").pw_uid
        except KeyError:
            raise Missing("the user postgres") from None
        if os.geteuid() != 0:
            raise Missing("root, who alone can become the user postgres")
        self.stage = stage
        self.data = stage.folder / "data"
        self.data.mkdir()
        stage.environment()
        for folder in (stage.folder, self.data, stage.folder / "run"):
            os.chown(folder, user, -1)
        self.as_user: tuple[str | Path, ...] = ("setpriv", f"--reuid={user}", "--clear-groups")
        if privileged:
            # With this the kernel reports forks; without, they are answered another way.
            self.as_user += ("--inh-caps=+sys_ptrace", "--ambient-caps=+sys_ptrace")
        else:
            self.as_user += ("--inh-caps=-all", "--bounding-set=-all")

    def client(self, name: str, *options: str | Path) -> list[str | Path]:
        """The command line of a client."""
        socket = ("-h", self.stage.folder, "-d", "postgres")
        return [*self.as_user, BINARIES / name, *socket, *options]

    def start(self) -> subprocess.Popen[bytes]:
        """Makes the cluster and starts the server under test."""
        initdb = ("-D", self.data, "-A", "trust", "--no-sync", "-E", "UTF8", "--locale=C")
        self.stage.plain([*self.as_user, BINARIES / "initdb", *initdb])
        postgres: list[str | Path] = [
            BINARIES / "postgres",
            "-D",
            self.data,
            "-k",
            self.stage.folder,
            *SETTINGS,
        ]
        command = [*self.as_user, *self.stage.wrapped(postgres)]
        server = self.stage.spawn(command, log=self.stage.folder / "postgres.log")
        wait_for(self.stage, "postgres answers", self.answers, server)
        return server

    def sql(self, text: str) -> str:
        """One statement, one answer."""
        return self.stage.plain(self.client("psql", "-XAtc", text)).strip()

    def answers(self) -> bool:
        """Whether the server takes statements."""
        try:
            return self.sql("SELECT 1") == "1"
        except Wrong:
            return False

    def pgbench(self, *options: str) -> None:
        """Transfers of money between accounts, and a history of them."""
        self.stage.plain(self.client("pgbench", *options))

    def session(self, name: str) -> tuple[subprocess.Popen[bytes], Path]:
        """Starts a session that holds much; its output goes to the log."""
        log = self.stage.folder / f"session-{name}.log"
        script = self.stage.folder / "session.sql"
        script.write_text("".join(f"{statement};\n" for statement in STATEMENTS))
        return self.stage.spawn(
            self.client("psql", "-XAt", "-v", "ON_ERROR_STOP=1", "-f", script), log=log
        ), log

    def single_user(self) -> str:
        """The statements in a server that is its own backend. Its answers."""
        script, log = self.stage.folder / "single.sql", self.stage.folder / "single.log"
        script.write_text("".join(f"{statement};\n\n" for statement in STATEMENTS))
        command: list[str | Path] = [
            BINARIES / "postgres",
            "--single",
            "-j",
            "-D",
            self.data,
            *SETTINGS,
            "postgres",
        ]
        with script.open("rb") as text:
            line = [*self.as_user, *self.stage.wrapped(command)]
            process = self.stage.spawn(line, log=log, stdin=text.fileno())
        if self.stage.wait(process) != 0:
            raise Wrong(f"single-user server: {log.read_text()[-2000:]}")
        said = without_summary(log.read_text())
        if "ERROR" in said or "WARNING:  sum" not in said:
            raise Wrong(f"single-user server: {said[-2000:]}")
        return " ".join(re.findall(r'= "([^"]*)"', said) + re.findall(r"WARNING:  (sum .*)", said))

    def check_balances(self, when: str) -> None:
        """Money neither appears nor disappears."""
        if self.sql(CONSISTENT) != "t":
            raise Wrong(f"balances do not sum up {when}")

    def crash(self) -> None:
        """Kills a backend that has memory in tiers; the others end, the server recovers."""
        victim, log = self.session("crash")
        pid = ""

        def sleeps() -> bool:
            nonlocal pid
            pid = self.sql(SLEEPING)
            return pid != "" or victim.poll() is not None

        wait_for(self.stage, "a backend to kill", sleeps)
        if not pid:
            raise Wrong(f"no backend to kill: {log.read_text()[-500:]}")
        os.kill(int(pid), signal.SIGKILL)
        if self.stage.wait(victim) == 0:
            raise Wrong("the client of a killed backend saw nothing")
        wait_for(self.stage, "postgres recovers", self.answers)


def drive(stage: Stage, *, privileged: bool) -> str:
    """As a user with or without the capability that userfaultfd asks for."""
    with contextlib.ExitStack() as until_the_end:
        if stage.tiered and not privileged:
            until_the_end.enter_context(userfaultfd_for_all())
        return use(stage, Cluster(stage, privileged=privileged))


@contextlib.contextmanager
def userfaultfd_for_all() -> Iterator[None]:
    """vm.unprivileged_userfaultfd = 1, and then what it was."""
    before = UNPRIVILEGED.read_text().strip()
    if before == "1":
        yield
        return
    UNPRIVILEGED.write_text("1")
    try:
        yield
    finally:
        UNPRIVILEGED.write_text(before)


def use(stage: Stage, cluster: Cluster) -> str:
    """Transfers beside sessions that hold much, a crash, more transfers."""
    server = cluster.start()
    cluster.pgbench("-i", "-q", "-s", "3")
    results = []
    for name in ("one", "two"):
        process, log = cluster.session(name)
        cluster.pgbench("-n", "-c", "6", "-j", "2", "-T", "4")
        if stage.wait(process) != 0:
            raise Wrong(f"session: {log.read_text()[-2000:]}")
        results.append(log.read_text().replace(str(stage.folder), ""))
    if results[0] != results[1]:
        raise Wrong(f"two sessions differ: {results}")
    cluster.check_balances("after pgbench")
    cluster.crash()
    cluster.check_balances("after recovery")
    cluster.pgbench("-n", "-c", "4", "-j", "2", "-t", "200")
    cluster.check_balances("after more transactions")
    if int(cluster.sql("SELECT count(*) FROM pgbench_history")) < 800:
        raise Wrong("transactions are missing")
    # Not SIGINT, which `terrace run` takes for a Ctrl-C that the program gets from the terminal.
    if stage.stop(server, signal.SIGTERM) != 0:
        raise Wrong(f"postgres: status {server.returncode}")
    return results[0] + cluster.single_user()


VERSION = version_of(str(BINARIES / "postgres"), "--version")
NEEDS = (f"{BINARIES}/postgres:postgresql", "setpriv:util-linux")
CHECKED = (
    "sums of all balances after pgbench, after kill -9 of a backend and recovery, and after more "
    "transactions; hashes over temporary tables, sorts, joins and arrays kept through pauses, in "
    "the server, whose backends are forked, and in a single-user server; "
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
