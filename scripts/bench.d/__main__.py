"""The measurements of scripts/bench, which starts the servers and says in its environment where they are."""

import argparse
import os
import sys
import time
from pathlib import Path

import drain
import latency
import memory
import report
import settings
import unrelated
from processes import busy, having
from servers import Kafka, Postgres


def sizes(text):
    parts = text.split(",")
    if not all(part == "all" or (part.isdigit() and int(part) > 0) for part in parts):
        raise argparse.ArgumentTypeError("numbers of rows, or all, with commas between")
    return parts


def above_zero(text):
    if not text.isdigit() or int(text) == 0:
        raise argparse.ArgumentTypeError("a number above 0")
    return int(text)


def pair(text):
    if "=" not in text:
        raise argparse.ArgumentTypeError("name=value")
    return text


def options():
    parser = argparse.ArgumentParser(prog="scripts/bench", add_help=False)
    parser.add_argument("what", nargs="?", default="drain", choices=["drain", "latency", "memory", "settings", "unrelated"])
    parser.add_argument("--rows", type=above_zero, default=300_000)
    parser.add_argument("--payload", type=above_zero, default=320)
    parser.add_argument("--per-tx", type=sizes, default=["1", "100", "all"])
    parser.add_argument("--runs", type=above_zero, default=3)
    parser.add_argument("--peer", choices=["none", "pg_recvlogical", "debezium"], default="pg_recvlogical")
    parser.add_argument("--property", type=pair, action="append", default=[])
    parser.add_argument("--rate", type=above_zero, default=1000)
    parser.add_argument("--seconds", type=above_zero, default=15)
    parser.add_argument("--backlog", type=above_zero, default=10_000_000)
    parser.add_argument("--stall", type=above_zero, default=60)
    parser.add_argument("--transactions", type=above_zero, default=200_000)
    parser.add_argument("--json")
    parser.add_argument("--plot")
    given = parser.parse_args()
    if given.plot and given.what != "drain":
        parser.error("--plot shows drains alone")
    return given


class Bench:
    def __init__(self, options):
        self.options, self.work = options, Path(os.environ["BENCH_WORK"])
        self.stamp = time.strftime("%H%M%S")
        self.postgres, self.kafka = Postgres(), Kafka()
        self.postgres.fresh()
        self.properties = dict(p.split("=", 1) for p in options.property)
        self.result = {"what": options.what} | report.about(self)

    def broker(self):
        return having(os.environ["BENCH_BROKER"])

    def say(self, text):
        print(text, file=sys.stderr, flush=True)

    def told(self, who, run, rows):
        others = run["busy"] - run["client_cpu"] - run["walsender_cpu"] - run["broker_cpu"]
        self.say(
            f"{who}: {run['seconds']:.2f} s, {rows / run['seconds']:,.0f} rows/s, CPU {run['client_cpu']:.2f} s, walsender {run['walsender_cpu']:.2f} s,"
            f" broker {run['broker_cpu']:.2f} s, anything else {others:.2f} s"
        )

    def quiet(self, within=20):
        """Waits for a machine that does nothing else, for a while: what others take is in each run's figures."""
        end = time.monotonic() + within
        while time.monotonic() < end:
            before = busy()
            time.sleep(0.5)
            if busy() - before < 0.1:
                return


def main():
    bench = Bench(options())
    run, table = {
        "drain": (drain.run, report.drains),
        "latency": (latency.run, latency.table),
        "memory": (memory.run, memory.table),
        "settings": (settings.run, settings.table),
        "unrelated": (unrelated.run, unrelated.table),
    }[bench.options.what]
    run(bench)
    table(bench.result)
    if bench.options.json:
        report.save(bench.result, bench.options.json)
    if bench.options.plot:
        report.plot(bench.result, bench.options.plot)


main()
