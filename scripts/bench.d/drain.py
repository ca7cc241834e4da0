"""A backlog, drained in turn by walpost and by its reference, each from a slot of its own at the same position."""

import os
import subprocess
import time

import debezium
from processes import Stopwatch, Watched
from publisher import Walpost

REFERENCE_SLOT = "reference"
WARM_UP = "warm-up"


def ours(bench, walpost, topic, rows, end):
    """From the start of the process to the broker's last acknowledgement."""
    watch, sender = Stopwatch(bench.broker()), Watched(bench.postgres, walpost.slot)
    walpost.start()
    walpost.wait(lambda: walpost.published() > 0, every=0.005)
    first = watch.seconds()
    walpost.wait(lambda: walpost.published() >= rows)
    figures = watch.figures() | {"first_record": first, "client_cpu": walpost.cpu(), "walsender_cpu": sender.look()}
    walpost.wait(lambda: bench.postgres.reached(walpost.slot, end), every=0.1)
    figures |= {"confirmed": watch.seconds(), "peak_bytes": walpost.peak()}
    walpost.stop()
    sender.end()
    arrived = bench.kafka.count(topic)
    if arrived != rows:
        raise SystemExit(f"bench: {rows} rows were committed and {arrived} records are in {topic}")
    return figures


def recvlogical(bench, slot, end):
    """PostgreSQL's own client, which throws away what it reads."""
    watch, sender = Stopwatch(bench.broker()), Watched(bench.postgres, slot)
    p = bench.postgres.parts
    before = os.times()
    done = subprocess.run(
        ["pg_recvlogical", "-d", p["dbname"], "-h", p["host"], "-p", p["port"], "-U", p["user"], "-S", slot, "--start",
         "--no-loop", "-E", str(end), "-F", "0", "-s", "1", "-f", "/dev/null", "-o", "proto_version=1", "-o",
         "publication_names=bench"],
        env=os.environ | {"PGPASSWORD": p["password"], "PGSSLMODE": "disable"}, capture_output=True, text=True)
    after = os.times()
    if done.returncode:
        raise SystemExit(f"bench: pg_recvlogical failed: {done.stderr}")
    client = after.children_user + after.children_system - before.children_user - before.children_system
    return watch.figures() | {"client_cpu": client, "walsender_cpu": sender.end()}


def shape(bench, per_tx):
    """All runs of one size of transactions."""
    options, postgres, kafka = bench.options, bench.postgres, bench.kafka
    rows = options.rows
    size = rows if per_tx == "all" else int(per_tx)
    bench.say(f"{rows:,} rows, {per_tx} in a transaction: loading")
    postgres.fresh()
    ours_runs = []
    # The first of each is not counted: a broker that has just started takes four times the CPU.
    for n in range(1 + options.runs):
        topic = f"bench-{bench.stamp}-{per_tx}-{n}"
        walpost = Walpost(bench.work, postgres, kafka, f"walpost_{n}", topic, bench.properties)
        walpost.init()
        kafka.make(topic)
        ours_runs.append((walpost, topic))
    if options.peer != "none":
        postgres.sql(f"SELECT pg_create_logical_replication_slot('{REFERENCE_SLOT}', 'pgoutput')")
    start = postgres.end()
    postgres.load(rows - rows % size, size, options.payload)
    rows -= rows % size
    end, wal = postgres.end(), postgres.wal_since(start)
    # pg_recvlogical notices its end with the next row alone; that one is published too.
    postgres.load(1, 1, options.payload)
    rows += 1
    results = {"ours": [], "peer": []}
    for n, (walpost, topic) in enumerate(ours_runs):
        if options.peer == "pg_recvlogical":
            slot = f"copy_{n}"
            postgres.sql(f"SELECT pg_copy_logical_replication_slot('{REFERENCE_SLOT}', '{slot}')")
            bench.quiet()
            results["peer"].append(recvlogical(bench, slot, end))
            bench.told(f"  pg_recvlogical {n or WARM_UP}", results["peer"][-1], rows)
        elif options.peer == "debezium":
            slot = f"copy_{n}"
            postgres.sql(f"SELECT pg_copy_logical_replication_slot('{REFERENCE_SLOT}', '{slot}')")
            bench.quiet()
            results["peer"].append(debezium.drain(bench, slot, rows))
            bench.told(f"  debezium {n or WARM_UP}", results["peer"][-1], rows)
        bench.quiet()
        results["ours"].append(ours(bench, walpost, topic, rows, end))
        bench.told(f"  walpost {n or WARM_UP}", results["ours"][-1], rows)
        kafka.drop(topic)
    return {"per_tx": per_tx, "rows": rows, "wal_bytes": wal} | {who: runs[1:] for who, runs in results.items()}


def run(bench):
    began = time.monotonic()
    bench.result["shapes"] = [shape(bench, per_tx) for per_tx in bench.options.per_tx]
    bench.result["took_seconds"] = time.monotonic() - began
    bench.postgres.fresh()
