"""Debezium beside us: Kafka Connect in one process, started anew for each run."""

import os
import signal
import subprocess
import time
from pathlib import Path

import processes
from publisher import free_port

HERE = Path(__file__).parent
# Its default is a quarter of the machine's memory, which would be measured instead.
HEAP = "-Xmx1g"
WARM = 1 / 2  # Of the backlog; the rate behind it is that of a JVM that has run for a while.


def fill(name, work, **values):
    text = (HERE / "debezium" / name).read_text()
    for key, value in values.items():
        text = text.replace(f"@{key}@", str(value))
    file = Path(work) / f"debezium-{name}"
    file.write_text(text)
    os.chmod(file, 0o600)
    return file


def drain(bench, slot, rows):
    """From the start of the process until the topic holds all records."""
    p, work = bench.postgres.parts, bench.work
    topic = f"bench-{bench.stamp}-{slot}"
    bench.kafka.make(topic)
    (work / "debezium.offsets").unlink(missing_ok=True)
    worker = fill("worker.properties", work, BROKERS=bench.kafka.brokers, PORT=free_port(), WORK=work)
    connector = fill("connector.properties", work, HOST=p["host"], PORT=p["port"], USER=p["user"], PASSWORD=p["password"],
                     DATABASE=p["dbname"], SLOT=slot, TOPIC=topic)
    log = work / "debezium.log"
    watch, sender = processes.Stopwatch(bench.broker()), processes.Watched(bench.postgres, slot)
    with open(log, "wb") as out:
        process = subprocess.Popen(
            ["java", HEAP, "-cp", f"{os.environ['BENCH_DEBEZIUM']}/*", f"-Dlog4j2.configurationFile={os.environ['BENCH_ROOT']}/scripts/kafka/log4j2.properties",
             "org.apache.kafka.connect.cli.ConnectStandalone", worker, connector], stdout=out, stderr=out)
    first = warm = None
    try:
        while (count := bench.kafka.count(topic)) < rows:
            if count and first is None:
                first = watch.seconds()
            if warm is None and count >= rows * WARM:
                warm = watch.seconds(), count, processes.cpu(process.pid)
            if process.poll() is not None or watch.seconds() > 900:
                raise SystemExit(f"bench: Debezium did not get there; its log is {log}")
            time.sleep(0.05)
        figures = watch.figures() | {"first_record": first, "client_cpu": processes.cpu(process.pid), "walsender_cpu": sender.end(),
                                     "peak_bytes": processes.peak(process.pid)}
        figures["warm_rows_per_second"] = (count - warm[1]) / (figures["seconds"] - warm[0])
        figures["warm_us_per_row"] = (figures["client_cpu"] - warm[2]) / (count - warm[1]) * 1e6
        return figures
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        bench.kafka.drop(topic)
