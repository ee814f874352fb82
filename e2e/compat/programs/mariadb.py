"""MariaDB: its buffer pool is private memory, so the whole database is in tiers."""

from __future__ import annotations

import signal

from compat.programs.common import version_of, wait_for
from compat.runner import Program, Stage, Wrong

TRANSFERS = """
CREATE DATABASE bank; USE bank;
CREATE TABLE a (id INT PRIMARY KEY, balance BIGINT, note VARCHAR(400)) ENGINE=InnoDB;
INSERT INTO a SELECT seq, 1000, REPEAT(MD5(seq), 10) FROM seq_0_to_149999;
CREATE TABLE b LIKE a; INSERT INTO b SELECT * FROM a;
DELIMITER //
CREATE PROCEDURE transfer(n INT) BEGIN
  DECLARE i INT DEFAULT 0; DECLARE x INT; DECLARE y INT;
  WHILE i < n DO
    SET x = (i * 7919) % 150000; SET y = (i * 104729 + 17) % 150000;
    START TRANSACTION;
    UPDATE a SET balance = balance - i, note = REPEAT(MD5(note), 10) WHERE id = x;
    UPDATE b SET balance = balance + i WHERE id = y;
    IF i % 5 = 0 THEN ROLLBACK; ELSE COMMIT; END IF;
    SET i = i + 1;
    IF i % 4000 = 0 THEN DO SLEEP(0.7); END IF;
  END WHILE;
END //
DELIMITER ;
CALL transfer(16000);
"""
SUMS = (
    "SELECT (SELECT SUM(balance) FROM bank.a) + (SELECT SUM(balance) FROM bank.b),"
    " (SELECT SUM(balance * (id % 97)) FROM bank.b), (SELECT SUM(CRC32(note)) FROM bank.a),"
    " (SELECT MD5(GROUP_CONCAT(c ORDER BY n)) FROM"
    " (SELECT id DIV 1000 n, BIT_XOR(CRC32(CONCAT(id, balance, note))) c FROM bank.a GROUP BY n) g)"
)


def drive(stage: Stage) -> str:
    """Transfers, sums, a check of every page, kill -9 and recovery."""
    data, socket = stage.folder / "data", stage.folder / "socket"
    install = ["mariadb-install-db", "--no-defaults", f"--datadir={data}", "--user=root"]
    stage.plain([*install, "--auth-root-authentication-method=normal", "--skip-test-db"])
    server = [
        *("/usr/sbin/mariadbd", "--no-defaults", "--user=root", f"--datadir={data}"),
        *(f"--socket={socket}", "--skip-networking", f"--pid-file={stage.folder}/pid"),
        *("--innodb-buffer-pool-size=192M", "--innodb-flush-log-at-trx-commit=1"),
    ]
    client = ["mariadb", "--no-defaults", "-uroot", f"--socket={socket}", "-N"]
    script = stage.folder / "transfers.sql"
    script.write_text(TRANSFERS)

    def answers() -> bool:
        try:
            return stage.plain([*client, "-e", "SELECT 1"]).strip() == "1"
        except Wrong:
            return False

    def sums() -> str:
        return stage.plain([*client, "-e", SUMS]).strip()

    with stage.server(server, "mariadb") as process:
        wait_for(stage, "mariadb answers", answers)
        stage.plain([*client, "-e", f"source {script}"])
        stage.wait_down(5000)
        before = sums()
        if not before.startswith("300000000\t"):
            raise Wrong(f"the balances do not sum up to 300000000: {before}")
        checked = stage.plain([*client, "-e", "CHECK TABLE bank.a, bank.b EXTENDED"])
        if checked.count("status\tOK") != 2:
            raise Wrong(checked)
        stage.wait_down(5000)
        stage.plain([*client, "-e", "UPDATE bank.a SET balance = balance + 1 WHERE id % 2 = 0"])
        stage.plain([*client, "-e", "UPDATE bank.b SET balance = balance - 1 WHERE id % 2 = 1"])
        after = sums()
        stage.plain([*client, "-e", "SHUTDOWN"])
        if stage.wait(process) != 0:
            raise Wrong("mariadb did not end with status 0")
    # Pages were written to files from tiers: a plain server reads them, with their checksums.
    plain = stage.spawn(server, log=stage.folder / "plain.log")
    wait_for(stage, "plain mariadb answers", answers)
    if sums() != after:
        raise Wrong(f"on disk {sums()}, in memory {after}")
    stage.stop(plain, signal.SIGTERM)
    return before + after


MARIADB = Program(
    "mariadb",
    version_of("/usr/sbin/mariadbd", "--version"),
    drive,
    "16,000 transfers with rollbacks in a buffer pool of 192 MiB; sums and checksums of all rows, "
    "CHECK TABLE EXTENDED, and the same sums from the files by a plain server",
    ("/usr/sbin/mariadbd:mariadb-server",),
)
