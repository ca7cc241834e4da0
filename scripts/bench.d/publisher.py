"""One walpost: its configuration, its slot, its process and its metrics."""

import os
import re
import signal
import socket
import subprocess
import time
import urllib.request
from pathlib import Path

import processes


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Walpost:
    def __init__(self, work, postgres, kafka, slot, topic, properties=None, messages=False, table="outbox", publication="bench"):
        self.postgres, self.slot, self.port, self.process = postgres, slot, free_port(), None
        self.binary = os.environ["BENCH_WALPOST"]
        self.config, self.log = Path(work) / f"{slot}.toml", Path(work) / f"{slot}.log"
        lines = "".join(f'"{name}" = "{value}"\n' for name, value in (properties or {}).items())
        self.config.write_text(f"""
[postgres]
url = '{postgres.uri()}'
slot = "{slot}"
publication = "{publication}"

[[outbox]]
table = "public.{table}"
topic = "{topic}"
{"messages = true" if messages else ""}

[kafka]
brokers = "{kafka.brokers}"

[kafka.properties]
{lines}
[http]
listen = "127.0.0.1:{self.port}"
""")

    def init(self):
        done = subprocess.run([self.binary, "--config", self.config, "init", "--create-table"], capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"bench: walpost init failed: {done.stderr}")

    def start(self):
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen([self.binary, "--config", self.config, "run"], stdout=log, stderr=log)

    def scrape(self):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=5) as answer:
                return answer.read().decode()
        except OSError:
            return ""

    def published(self):
        return sum(float(n) for n in re.findall(r"^walpost_events_published_total\S* (\S+)$", self.scrape(), re.M))

    def wait(self, done, seconds=600, every=0.02):
        end = time.monotonic() + seconds
        while not done():
            if self.process.poll() is not None:
                raise SystemExit(f"bench: walpost ended with {self.process.returncode}: {self.log.read_text()[-2000:]}")
            if time.monotonic() > end:
                raise SystemExit(f"bench: walpost did not get there in {seconds} s; its log is {self.log}")
            time.sleep(every)

    def cpu(self):
        return processes.cpu(self.process.pid)

    def peak(self):
        return processes.peak(self.process.pid)

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        if self.process.wait(60):
            raise SystemExit(f"bench: walpost ended with {self.process.returncode} when told to stop; its log is {self.log}")
