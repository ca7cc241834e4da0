"""What processes use: CPU, memory. All of it from /proc."""

import os
import threading
import time
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")


def thread_cpu(pid):
    """CPU seconds of a process with one thread, to the microsecond; None when it is gone."""
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9
    except (OSError, IndexError):
        return None


def cpu(pid):
    """CPU seconds of a process with all its threads, to 10 ms; None when it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return None
    return (int(fields[11]) + int(fields[12])) / TICKS


def peak(pid):
    """The most resident memory that the process had, in bytes; None when it is gone."""
    try:
        text = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return None
    for line in text.splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return None


def busy():
    """CPU seconds that all processors of the machine worked since it started."""
    first = Path("/proc/stat").read_text().splitlines()[0].split()[1:]
    user, nice, system, _idle, _wait, irq, soft = (int(n) for n in first[:7])
    return (user + nice + system + irq + soft) / TICKS


def having(argument):
    """The process that has this argument."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if argument.encode() in (folder / "cmdline").read_bytes().split(b"\0"):
                return int(folder.name)
        except OSError:
            continue
    return None


class Watched(threading.Thread):
    """Follows the walsender of a slot, whose figures are gone with it."""

    def __init__(self, postgres, slot, every=0.05):
        super().__init__(daemon=True)
        self.postgres, self.slot, self.every = postgres, slot, every
        self.pid, self.cpu, self.ended = None, 0.0, threading.Event()
        self.start()

    def run(self):
        with self.postgres.connect() as connection:
            while not self.ended.wait(self.every):
                if self.pid is None:
                    found = connection.execute(
                        "SELECT active_pid FROM pg_replication_slots WHERE slot_name = %s", [self.slot]
                    ).fetchone()
                    self.pid = found and found[0]
                self.look()

    def look(self):
        seen = self.pid and thread_cpu(self.pid)
        if seen is not None:
            self.cpu = seen
        return self.cpu

    def end(self):
        self.ended.set()
        self.join()
        return self.cpu


class Stopwatch:
    """What a stretch of time cost: seconds, CPU of the broker, CPU of everything else on the machine."""

    def __init__(self, broker):
        self.broker = broker
        self.began, self.busy, self.broker_cpu = time.monotonic(), busy(), cpu(broker) or 0.0

    def seconds(self):
        return time.monotonic() - self.began

    def figures(self):
        return {"seconds": self.seconds(), "broker_cpu": (cpu(self.broker) or 0.0) - self.broker_cpu, "busy": busy() - self.busy}
