"""The most memory that walpost takes, whatever the backlog, the transaction and the broker are like, and its CPU per row."""

import os
import signal
import time

from publisher import Walpost

SMALL, MIDDLE, LARGE_TRANSACTION, STALLED = 100_000, 1_000_000, 1_000_000, 300_000


def peak(bench, name, rows, per_tx, stall=0):
    postgres, kafka = bench.postgres, bench.kafka
    bench.say(f"{name}: loading {rows:,} rows")
    postgres.fresh()
    topic = f"bench-{bench.stamp}-{name}"
    walpost = Walpost(bench.work, postgres, kafka, "walpost", topic, bench.properties)
    walpost.init()
    kafka.make(topic)
    postgres.load(rows, per_tx, bench.options.payload)
    end = postgres.end()
    walpost.start()
    if stall:
        walpost.wait(lambda: walpost.published() > 0, every=0.005)
        broker = bench.broker()
        os.kill(broker, signal.SIGSTOP)
        try:
            time.sleep(stall)
        finally:
            os.kill(broker, signal.SIGCONT)
    walpost.wait(lambda: walpost.published() >= rows, 3600, 0.1)
    cpu = walpost.cpu()
    walpost.wait(lambda: postgres.reached(walpost.slot, end), every=0.1)
    most = walpost.peak()
    walpost.stop()
    kafka.drop(topic)
    bench.say(f"  {most / 2**20:.0f} MiB")
    return {"name": name, "rows": rows, "per_tx": per_tx, "peak_bytes": most, "us_per_row": cpu / rows * 1e6}


def run(bench):
    bench.result["memory"] = [
        peak(bench, "small", SMALL, 100),
        peak(bench, "middle", MIDDLE, 100),
        peak(bench, "large", bench.options.backlog, 100),
        peak(bench, "one-transaction", LARGE_TRANSACTION, LARGE_TRANSACTION),
        peak(bench, "stalled", STALLED, 100, bench.options.stall),
    ]
    bench.postgres.fresh()


def table(result):
    import report
    names = {"small": "backlog", "middle": "backlog", "large": "backlog", "one-transaction": "one transaction", "stalled": f"broker stopped for {result['options']['stall']} s"}
    rows = [[f"{names[m['name']]}, {m['rows']:,} rows", report.number(m["peak_bytes"] / 2**20, 0), report.number(m["us_per_row"], 1)] for m in result["memory"]]
    report.text_table(["what", "peak MiB", "CPU µs/row"], rows)
    small, middle, large = result["memory"][:3]
    print(f"large ÷ small backlog, peak: {large['peak_bytes'] / small['peak_bytes']:.2f}; large ÷ middle, CPU per row: {large['us_per_row'] / middle['us_per_row']:.2f}")
