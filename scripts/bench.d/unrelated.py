"""WAL of tables that are not published: what reading past it costs, and that the slot moves on."""

from processes import Stopwatch, Watched
from publisher import Walpost
from drain import recvlogical
import report

# Three updates and an insert, as in TPC-B.
SETUP = """CREATE TABLE accounts AS SELECT i AS id, 0 AS balance, repeat(' ', 84) AS filler FROM generate_series(1, 100000) i;
ALTER TABLE accounts ADD PRIMARY KEY (id);
CREATE TABLE history (id int, delta int, at timestamptz, filler text)"""
LOAD = """DO $$ BEGIN FOR n IN 1..{transactions} LOOP
  UPDATE accounts SET balance = balance + n WHERE id = (n::bigint * 7919 % 100000 + 1)::int;
  UPDATE accounts SET balance = balance - n WHERE id = (n::bigint * 104729 % 100000 + 1)::int;
  UPDATE accounts SET balance = balance + 1 WHERE id = n % 10 + 1;
  INSERT INTO history VALUES (n, n, now(), repeat(' ', 22));
  COMMIT; END LOOP; END $$"""
NEAR = 16 << 20


def run(bench):
    postgres, results = bench.postgres, {"ours": [], "peer": []}
    postgres.fresh()
    publishers = []
    for n in range(bench.options.runs):
        walpost = Walpost(bench.work, postgres, bench.kafka, f"walpost_{n}", f"bench-{bench.stamp}-unrelated", bench.properties)
        walpost.init()
        publishers.append(walpost)
    bench.kafka.make(f"bench-{bench.stamp}-unrelated")
    postgres.sql("SELECT pg_create_logical_replication_slot('reference', 'pgoutput')")
    start = postgres.end()
    postgres.sql(SETUP)
    bench.say(f"{bench.options.transactions:,} transactions: loading")
    with postgres.connect() as connection:
        connection.execute("SET synchronous_commit = off")
        connection.execute(LOAD.format(transactions=bench.options.transactions))
    postgres.sql("CHECKPOINT")
    end, wal = postgres.end(), postgres.wal_since(start)
    near = postgres.one("SELECT (%s::pg_lsn - %s::numeric)::text", end, NEAR)
    postgres.load(1, 1, bench.options.payload)
    for n, walpost in enumerate(publishers):
        postgres.sql(f"SELECT pg_copy_logical_replication_slot('reference', 'copy_{n}')")
        bench.quiet()
        results["peer"].append(recvlogical(bench, f"copy_{n}", end))
        bench.quiet()
        watch, sender = Stopwatch(bench.broker()), Watched(postgres, walpost.slot)
        walpost.start()
        walpost.wait(lambda: postgres.reached(walpost.slot, near), every=0.05)
        results["ours"].append(watch.figures() | {"client_cpu": walpost.cpu(), "walsender_cpu": sender.end()})
        walpost.stop()
    bench.result["unrelated"] = {"wal_bytes": wal} | results
    postgres.fresh()


def table(result):
    unrelated, rows = result["unrelated"], []
    for who, key in (("pg_recvlogical", "peer"), ("walpost", "ours")):
        runs = unrelated[key]
        rows.append([who, *(report.number(report.median(runs, part)) for part in ("seconds", "client_cpu", "walsender_cpu"))])
    report.text_table([f"{unrelated['wal_bytes'] / 2**20:,.0f} MiB of WAL", "seconds", "its CPU s", "walsender s"], rows)
    ours, peer = unrelated["ours"], unrelated["peer"]
    print(f"our CPU ÷ walsender {report.median(ours, 'client_cpu') / report.median(ours, 'walsender_cpu'):.3f}; "
          f"time until the slot is within 16 MiB of the end ÷ (pg_recvlogical + 1 s) {report.median(ours, 'seconds') / (report.median(peer, 'seconds') + 1):.2f}")
