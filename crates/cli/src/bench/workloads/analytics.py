"""The database of `terrace bench work analytics`: tables like TPC-H's in an in-memory DuckDB.

The parent writes a line and reads one: `load ROWS SEED THREADS`, `query N`, `corrupt`. Every
number is a function of its row and the seed, so the same seed gives the same tables. Orders are
stored in the order of their dates, as a table that grows is; the queries ask for recent months
more often than for old ones, and no query asks for a comment.
"""

import hashlib
import sys
import time

import duckdb

# A number below n that belongs to a row. One hash for each column.
SQL = """
CREATE MACRO draw(row_id, what, n) AS (hash(row_id, what, {seed}) % n::UBIGINT)::INTEGER;
CREATE TABLE words AS SELECT i, w FROM (SELECT unnest(string_split(
  'furious quick silent bold ironic regular special express final pending careful even blithe '
  || 'deposits requests accounts packages theodolites foxes ideas platelets pinto instructions '
  || 'sleep haggle nag wake cajole detect among above along the carefully quickly slyly', ' '))
  AS w, generate_subscripts(string_split(repeat('x ', 37) || 'x', ' '), 1) - 1 AS i);
CREATE TABLE texts AS SELECT r AS i, string_agg(w, ' ' ORDER BY k) AS t
  FROM (SELECT r, k, w FROM range(20000) a(r), range(6) b(k)
    JOIN words ON words.i = draw(r * 6 + k, 99, 38)) GROUP BY r;
CREATE TABLE part AS SELECT
  i::INTEGER AS p_partkey, 'Brand#' || (11 + draw(i, 1, 45)) AS p_brand,
  (['ECONOMY', 'PROMO', 'STANDARD', 'LARGE', 'SMALL'])[1 + draw(i, 2, 5)] || ' '
    || (['BRASS', 'STEEL', 'COPPER', 'TIN'])[1 + draw(i, 3, 4)] AS p_type,
  1 + draw(i, 4, 50) AS p_size, (900 + draw(i, 5, 1200))::DECIMAL(15, 2) AS p_retailprice
  FROM range({parts}) t(i) ORDER BY i;
CREATE TABLE customer AS SELECT
  i::INTEGER AS c_custkey, 'Customer#' || lpad(i::VARCHAR, 9, '0') AS c_name,
  (['AUTOMOBILE', 'BUILDING', 'FURNITURE', 'MACHINERY', 'HOUSEHOLD'])[1 + draw(i, 6, 5)]
    AS c_mktsegment, draw(i, 7, 25) AS c_nationkey,
  (draw(i, 8, 1000000) / 100)::DECIMAL(15, 2) AS c_acctbal
  FROM range({customers}) t(i) ORDER BY i;
CREATE TABLE orders AS SELECT
  i::BIGINT AS o_orderkey, draw(i, 9, {customers}) AS o_custkey,
  DATE '1992-01-01' + (i * 2400 // {orders})::INTEGER AS o_orderdate,
  (['1-URGENT', '2-HIGH', '3-MEDIUM', '4-NOT SPECIFIED', '5-LOW'])[1 + draw(i, 10, 5)]
    AS o_orderpriority, 'Clerk#' || lpad(draw(i, 11, 1000)::VARCHAR, 9, '0') AS o_clerk,
  (SELECT t FROM texts WHERE texts.i = draw(r.i, 12, 20000)) AS o_comment
  FROM range({orders}) r(i) ORDER BY i;
CREATE TABLE lineitem AS SELECT
  (i // 4)::BIGINT AS l_orderkey, draw(i, 13, {parts}) AS l_partkey,
  draw(i, 14, 10000) AS l_suppkey, (1 + i % 4)::INTEGER AS l_linenumber,
  (1 + draw(i, 15, 50))::DECIMAL(15, 2) AS l_quantity,
  ((90000 + draw(i, 16, 10000000)) / 100)::DECIMAL(15, 2) AS l_extendedprice,
  (draw(i, 17, 11) / 100)::DECIMAL(15, 2) AS l_discount,
  (draw(i, 18, 9) / 100)::DECIMAL(15, 2) AS l_tax,
  (['A', 'N', 'R'])[1 + draw(i, 19, 3)] AS l_returnflag,
  (['F', 'O'])[1 + draw(i, 20, 2)] AS l_linestatus,
  DATE '1992-01-01' + (i // 4 * 2400 // {orders} + 1 + draw(i, 21, 121))::INTEGER AS l_shipdate,
  DATE '1992-01-01' + (i // 4 * 2400 // {orders} + 30 + draw(i, 22, 61))::INTEGER AS l_commitdate,
  DATE '1992-01-01' + (i // 4 * 2400 // {orders} + 8 + draw(i, 23, 144))::INTEGER AS l_receiptdate,
  (['AIR', 'FOB', 'MAIL', 'RAIL', 'SHIP', 'TRUCK', 'REG AIR'])[1 + draw(i, 24, 7)] AS l_shipmode,
  (SELECT t FROM texts WHERE texts.i = draw(r.i, 25, 20000)) AS l_comment
  FROM range({orders} * 4) r(i) ORDER BY i;
DROP TABLE words;
DROP TABLE texts;
"""

REVENUE = "sum(l_extendedprice * (1 - l_discount))"
# After TPC-H's queries 1, 3, 6, 12, 14 and 18. {day}: the first day asked for.
SHAPES = [
    f"""SELECT l_returnflag, l_linestatus, sum(l_quantity), sum(l_extendedprice), {REVENUE},
      sum(l_extendedprice * (1 - l_discount) * (1 + l_tax)), count(*)
      FROM lineitem WHERE l_shipdate >= DATE '{{day}}' GROUP BY ALL ORDER BY ALL""",
    f"""SELECT l_orderkey, {REVENUE} AS revenue, o_orderdate
      FROM customer, orders, lineitem
      WHERE c_mktsegment = 'BUILDING' AND c_custkey = o_custkey AND l_orderkey = o_orderkey
      AND o_orderdate >= DATE '{{day}}' AND o_orderdate < DATE '{{day}}' + 60
      GROUP BY ALL ORDER BY revenue DESC, l_orderkey LIMIT 10""",
    """SELECT sum(l_extendedprice * l_discount) FROM lineitem
      WHERE l_shipdate >= DATE '{day}' AND l_shipdate < DATE '{day}' + 365
      AND l_discount BETWEEN 0.05 AND 0.07 AND l_quantity < 24""",
    """SELECT l_shipmode, count(*) FILTER (o_orderpriority IN ('1-URGENT', '2-HIGH')), count(*)
      FROM orders, lineitem WHERE o_orderkey = l_orderkey AND l_shipmode IN ('MAIL', 'SHIP')
      AND l_commitdate < l_receiptdate AND l_shipdate < l_commitdate
      AND l_receiptdate >= DATE '{day}' AND l_receiptdate < DATE '{day}' + 365
      GROUP BY ALL ORDER BY ALL""",
    f"""SELECT sum(l_extendedprice * (1 - l_discount)) FILTER (p_type LIKE 'PROMO%'), {REVENUE}
      FROM lineitem, part WHERE l_partkey = p_partkey
      AND l_shipdate >= DATE '{{day}}' AND l_shipdate < DATE '{{day}}' + 31""",
    """SELECT o_orderkey, o_orderdate, sum(l_quantity) AS quantity FROM orders, lineitem
      WHERE o_orderkey = l_orderkey
      AND o_orderdate >= DATE '{day}' AND o_orderdate < DATE '{day}' + 180
      GROUP BY ALL ORDER BY quantity DESC, o_orderkey LIMIT 10""",
]
# Three of four ask for the last two years; the data ends in the middle of 1998.
DAYS = ["1997-06-01", "1998-01-01", "1993-02-01", "1997-11-01"]
QUERIES = [shape.format(day=day) for day in DAYS for shape in SHAPES]


def load(db: duckdb.DuckDBPyConnection, rows: int, seed: int, threads: int) -> None:
    """Fills the tables; `rows` are those of lineitem."""
    # Without a file Python counts as interactive, and the bar would go where the answers go.
    db.execute("SET enable_progress_bar = false")
    db.execute(f"SET threads = {threads}")
    db.execute("SET temp_directory = ''")
    orders = max(rows // 4, 100)
    parts, customers = max(rows // 30, 100), max(rows // 40, 100)
    counts = {"orders": orders, "parts": parts, "customers": customers, "seed": seed}
    for statement in SQL.split(";\n"):
        if statement.strip():
            db.execute(statement.format(**counts))


def answer(db: duckdb.DuckDBPyConnection, words: list[str]) -> str:
    """Does what one line asks for."""
    if words[0] == "load":
        load(db, *(int(word) for word in words[1:]))
        return f"loaded {len(QUERIES)} {duckdb.__version__}"
    if words[0] == "corrupt":
        # A cent of one recent row, which the sums of three queries hold.
        db.execute(
            "UPDATE lineitem SET l_extendedprice = l_extendedprice + 0.01 "
            "WHERE rowid = (SELECT max(rowid) - 2000 FROM lineitem)"
        )
        return "corrupted"
    began = time.perf_counter_ns()
    rows = db.execute(QUERIES[int(words[1])]).fetchall()
    took = time.perf_counter_ns() - began
    digest = hashlib.blake2b(repr(rows).encode(), digest_size=8).hexdigest()
    return f"answered {took} {len(rows)} {digest}"


def main() -> None:
    """Answers line by line until there are no more."""
    db = duckdb.connect()
    for line in sys.stdin:
        print(answer(db, line.split()), flush=True)


main()
