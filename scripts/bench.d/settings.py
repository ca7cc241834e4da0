"""What single settings do: drains with one setting changed, in turn with drains at the defaults."""

from dataclasses import dataclass, field

import report
from drain import WARM_UP, ours
from publisher import Walpost
from servers import SETTINGS

PARTS = {"time": "seconds", "walpost's CPU": "client_cpu", "walsender's": "walsender_cpu", "broker's": "broker_cpu"}


@dataclass
class Variant:
    name: str
    # The payload's type.
    column: str = "jsonb"
    # Of librdkafka.
    properties: dict = field(default_factory=dict)
    # Of PostgreSQL.
    server: dict = field(default_factory=dict)


DEFAULT = Variant("default")
GROUPS = {
    "1": [
        DEFAULT,
        Variant("linger.ms 0", properties={"linger.ms": "0"}),
        Variant("linger.ms 50", properties={"linger.ms": "50"}),
        Variant("wal_sender_timeout 0", server={"wal_sender_timeout": "0"}),
    ],
    "100": [
        DEFAULT,
        Variant("payload json", column="json"),
        Variant("payload text", column="text"),
        Variant("payload bytea", column="bytea"),
        Variant("compression.type none", properties={"compression.type": "none"}),
        Variant("compression.type zstd", properties={"compression.type": "zstd"}),
    ],
    "all": [DEFAULT, Variant("logical_decoding_work_mem 1GB", server={"logical_decoding_work_mem": "1GB"})],
}


def group(bench, per_tx, variants):
    options, postgres, kafka = bench.options, bench.postgres, bench.kafka
    size = options.rows if per_tx == "all" else int(per_tx)
    rows = options.rows - options.rows % size
    bench.say(f"{rows:,} rows, {per_tx} in a transaction: loading")
    postgres.fresh()
    drains, ends = {}, {}
    for column in dict.fromkeys(variant.column for variant in variants):
        table = f"outbox_{column}"
        for at, variant in enumerate(variants):
            if variant.column != column:
                continue
            # The first of each is not counted.
            for n in range(1 + options.runs):
                topic = f"bench-{bench.stamp}-{per_tx}-{at}-{n}"
                walpost = Walpost(bench.work, postgres, kafka, f"walpost_{at}_{n}", topic, bench.properties | variant.properties,
                                  table=table, publication=f"bench_{column}")
                walpost.init()
                if column != "jsonb" and n == 0:
                    using = "convert_to(payload::text, 'UTF8')" if column == "bytea" else f"payload::{column}"
                    postgres.sql(f"ALTER TABLE {table} ALTER payload TYPE {column} USING {using}")
                drains[variant.name, n] = walpost, topic
        postgres.load(rows, size, options.payload, table, column)
        ends[column] = postgres.end()
    results = {variant.name: [] for variant in variants}
    for n in range(1 + options.runs):
        for variant in variants:
            walpost, topic = drains[variant.name, n]
            postgres.set(**SETTINGS | variant.server)
            kafka.make(topic)
            bench.quiet()
            figures = ours(bench, walpost, topic, rows, ends[variant.column])
            bench.told(f"  {variant.name}, {n or WARM_UP}", figures, rows)
            results[variant.name].append(figures)
            kafka.drop(topic)
    return {"per_tx": per_tx, "rows": rows, "runs": {name: runs[1:] for name, runs in results.items()}}


def run(bench):
    bench.result["settings"] = [group(bench, per_tx, variants) for per_tx, variants in GROUPS.items()]
    bench.postgres.fresh()


def table(result):
    rows = []
    for one in result["settings"]:
        default = one["runs"][DEFAULT.name]
        for name, runs in one["runs"].items():
            if runs is not default:
                ratios = (report.number(report.median(runs, part) / report.median(default, part)) for part in PARTS.values())
                rows.append([name, one["per_tx"], *ratios])
    report.text_table(["÷ default", "rows per transaction", *PARTS], rows)
