"""Single rows committed at a fixed rate: how long until the broker has acknowledged them, and until a consumer has them."""

import re
import statistics
import threading
import time

from confluent_kafka import Consumer, TopicPartition
from publisher import Walpost

# The rows' own clock: read just before the commit, on the same machine as the consumer's.
LOAD = """DO $$ DECLARE start timestamptz := clock_timestamp(); wait float; BEGIN FOR n IN 1..{rows} LOOP
  wait := extract(epoch FROM start - clock_timestamp()) + n / {rate}.0;
  IF wait > 0 THEN PERFORM pg_sleep(wait); END IF;
  INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload)
  VALUES ('order', (n % 1000)::text, 'OrderCreated', json_build_object('at', extract(epoch FROM clock_timestamp()), 'pad', repeat('x', {pad})));
  COMMIT; END LOOP; END $$"""
SKIPPED_SECONDS = 2  # While connections and caches warm up.
AT = re.compile(rb'"at": ([0-9.]+)')


class Reader(threading.Thread):
    """Notes for each record how old it is when it arrives."""

    def __init__(self, kafka, topic, rows):
        super().__init__(daemon=True)
        self.rows, self.ages = rows, []
        self.consumer = Consumer({"bootstrap.servers": kafka.brokers, "group.id": "bench", "enable.auto.commit": False,
                                  "fetch.wait.max.ms": 500, "fetch.min.bytes": 1})
        partitions = self.consumer.list_topics(topic, 10).topics[topic].partitions
        self.consumer.assign([TopicPartition(topic, p, 0) for p in partitions])

    def run(self):
        while len(self.ages) < self.rows:
            # Sleeps until there is one: a reader that looks again and again takes a core from all that is measured.
            message = self.consumer.poll(1)
            at = message and message.value() and AT.search(message.value())
            if at:
                self.ages.append(time.time() - float(at[1]))
        self.consumer.close()


def buckets(text):
    """Of the metric, over all labels: upper bound -> count."""
    found = {}
    for bound, count in re.findall(r'^walpost_publish_latency_seconds_bucket\{[^}]*le="([^"]+)"[^}]*\} (\S+)', text, re.M):
        found[float(bound)] = found.get(float(bound), 0) + float(count)
    return found


def quantile(counts, q):
    """As Prometheus computes it: even within a bucket."""
    total, low, below = max(counts.values()), 0.0, 0.0
    for bound, count in sorted(counts.items()):
        if count >= q * total:
            return low + (min(bound, 1e9) - low) * (q * total - below) / max(count - below, 1)
        low, below = bound, count
    return low


def shares(ages):
    cuts = statistics.quantiles(ages, n=1000, method="inclusive")
    return {"p50": cuts[499], "p99": cuts[989], "p99.9": cuts[998]}


def run(bench):
    options, postgres = bench.options, bench.postgres
    results = []
    for n in range(options.runs):
        postgres.fresh()
        topic = f"bench-{bench.stamp}-latency-{n}"
        walpost = Walpost(bench.work, postgres, bench.kafka, "walpost", topic, bench.properties)
        walpost.init()
        bench.kafka.make(topic)
        # What the commit itself costs belongs to it.
        postgres.set(fsync="on", synchronous_commit="on")
        warm, rows = options.rate * SKIPPED_SECONDS, options.rate * options.seconds
        reader = Reader(bench.kafka, topic, warm + rows)
        reader.start()
        walpost.start()
        walpost.wait(lambda: "walpost_up" in walpost.scrape() or walpost.scrape())
        pad = max(1, options.payload - 60)
        postgres.sql(LOAD.format(rows=warm, rate=options.rate, pad=pad))
        before, cpu, began = buckets(walpost.scrape()), walpost.cpu(), time.monotonic()
        postgres.sql(LOAD.format(rows=rows, rate=options.rate, pad=pad))
        took, cpu = time.monotonic() - began, walpost.cpu() - cpu
        reader.join(30)
        after = buckets(walpost.scrape())
        acknowledged = {bound: count - before.get(bound, 0) for bound, count in after.items()}
        walpost.stop()
        postgres.set(fsync="off")
        bench.kafka.drop(topic)
        results.append({
            "rate": rows / took,
            "us_per_row": cpu / rows * 1e6,
            "ack": {name: quantile(acknowledged, q) for name, q in (("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999))},
            "ack_within": {str(bound): count / max(acknowledged.values()) for bound, count in sorted(acknowledged.items()) if bound <= 0.05},
            "consumer": shares(reader.ages[warm:]),
        })
        bench.say(f"  run {n + 1}: {results[-1]['rate']:.0f}/s")
    bench.result["latency"] = results


def table(result):
    import report
    rows = []
    for name, key in (("commit to acknowledgement", "ack"), ("commit to consumer", "consumer")):
        rows.append([name, *(report.number(statistics.median(run[key][q] for run in result["latency"]) * 1000) for q in ("p50", "p99", "p99.9"))])
    report.text_table(["ms, median of runs", "p50", "p99", "p99.9"], rows)
    within = result["latency"][0]["ack_within"]
    print("acknowledged within, first run: " + ", ".join(f"{float(b) * 1000:g} ms {share:.2%}" for b, share in within.items()))
    print("The acknowledgement's figures are computed from the metric's buckets, evenly within each.")
    print(f"CPU {statistics.median(run['us_per_row'] for run in result['latency']):.0f} µs an event, {statistics.median(run['rate'] for run in result['latency']):.0f} events/s")
