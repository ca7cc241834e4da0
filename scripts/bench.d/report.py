"""Results as a table, as JSON, and as a plot on request."""

import json
import os
import platform
import statistics
import subprocess
from datetime import datetime, timezone
from pathlib import Path


def median(runs, name):
    return statistics.median(run[name] for run in runs) if runs else None


def spread(runs, name):
    """How far the runs lie apart: the largest by the smallest."""
    values = [run[name] for run in runs]
    return max(values) / min(values) if min(values) > 0 else None


def output(*command):
    try:
        return subprocess.run(command, capture_output=True, text=True).stdout.strip()
    except OSError:
        return ""


def machine():
    model = next((l.split(":")[1].strip() for l in Path("/proc/cpuinfo").read_text().splitlines() if l.startswith("model name")), platform.machine())
    memory = int(Path("/proc/meminfo").read_text().split()[1]) // 1024 // 1024
    return {"cpu": model, "cores": os.cpu_count(), "memory_gib": memory, "kernel": platform.release()}


def about(bench):
    return {
        "at": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "machine": machine(),
        "load_before": os.getloadavg()[0],
        "versions": {
            "walpost": output(os.environ["BENCH_WALPOST"], "--version"),
            "commit": output("git", "-C", os.environ["BENCH_ROOT"], "describe", "--always", "--dirty"),
            "postgresql": bench.postgres.one("SHOW server_version"),
            "kafka": os.environ["BENCH_KAFKA_VERSION"],
        },
        "options": {k: v for k, v in vars(bench.options).items() if k not in ("json", "plot")},
        "properties": bench.properties,
    }


def text_table(header, rows):
    cells = [[str(c) for c in row] for row in [header, *rows]]
    widths = [max(len(row[n]) for row in cells) for n in range(len(header))]
    for row in cells:
        print("  ".join(c.ljust(w) if n == 0 else c.rjust(w) for n, (c, w) in enumerate(zip(row, widths))).rstrip())


def number(value, digits=2):
    return "–" if value is None else f"{value:,.{digits}f}"


def drains(result):
    """The table of drains: medians, and ratios of medians."""
    peer_name = result["options"]["peer"]
    rows = []
    for shape in result["shapes"]:
        per_tx = shape["per_tx"]
        for who, runs in ((peer_name, shape["peer"]), ("walpost", shape["ours"])):
            if not runs:
                continue
            n, seconds = shape["rows"], median(runs, "seconds")
            peak = [run["peak_bytes"] for run in runs if run.get("peak_bytes")]
            first = [run["first_record"] for run in runs if run.get("first_record")]
            client, sender, broker = (median(runs, f"{part}_cpu") for part in ("client", "walsender", "broker"))
            rows.append([
                f"{per_tx}: {who}", number(n / seconds, 0), number(seconds), number(spread(runs, "seconds")), number(client), number(sender),
                number(broker), number(client / n * 1e6, 1), number(max(peak) / 2**20, 0) if peak else "–",
                number(statistics.median(first)) if first else "–",
            ])
        ours, peer = shape["ours"], shape["peer"]
        sender, client = median(ours, "walsender_cpu"), median(ours, "client_cpu")
        shape["spread"] = {who: spread(runs, "seconds") for who, runs in (("ours", ours), ("peer", peer)) if runs}
        shape["ratios"] = {"cpu_to_walsender": client / sender}
        ratios = f"our CPU ÷ walsender {client / sender:.2f}"
        if peer:
            shape["ratios"] |= {
                "seconds_to_peer": median(ours, "seconds") / median(peer, "seconds"),
                "cpu_to_peer": client / median(peer, "client_cpu"),
                "walsender_to_peer": sender / median(peer, "walsender_cpu"),
            }
            ratios = f"÷ {peer_name}: time {shape['ratios']['seconds_to_peer']:.2f}, walsender {shape['ratios']['walsender_to_peer']:.2f}, our CPU {shape['ratios']['cpu_to_peer']:.3f}; {ratios}"
        if peer and "warm_rows_per_second" in peer[0]:
            # Its second half alone: a JVM needs seconds until it is fast. Ours is measured with its start.
            warm_rate, warm_cost = median(peer, "warm_rows_per_second"), median(peer, "warm_us_per_row")
            n, most = shape["rows"], lambda runs: max(run["peak_bytes"] for run in runs)
            shape["ratios"] |= {
                "rate_to_warm_peer": n / median(ours, "seconds") / warm_rate,
                "warm_peer_cpu_to_ours": warm_cost / (client / n * 1e6),
                "peer_memory_to_ours": most(peer) / most(ours),
                "peer_first_record_to_ours": median(peer, "first_record") / median(ours, "first_record"),
            }
            r = shape["ratios"]
            ratios += (
                f"; beside its warm half ({warm_rate:,.0f} rows/s, {warm_cost:.0f} µs/row): {r['rate_to_warm_peer']:.1f} x the rate, 1/{r['warm_peer_cpu_to_ours']:.0f} of its CPU per row,"
                f" 1/{r['peer_memory_to_ours']:.0f} of its memory, first record {r['peer_first_record_to_ours']:.0f} x sooner"
            )
        shape["text"] = ratios
    text_table(["rows per transaction", "rows/s", "seconds", "spread", "its CPU s", "walsender s", "broker s", "µs/row", "peak MiB", "first s"], rows)
    for shape in result["shapes"]:
        print(f"{shape['per_tx']}: {shape.pop('text')}")


def save(result, file):
    Path(file).write_text(json.dumps(result, indent=2, ensure_ascii=False) + "\n")


def plot(result, file):
    """Each run as a dot over the size of its transactions, medians as bars."""
    import matplotlib

    matplotlib.use("svg" if str(file).endswith(".svg") else "agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 4.5))
    shapes, peer = result["shapes"], result["options"]["peer"]
    for at, (who, key, colour) in enumerate(((peer, "peer", "#999999"), ("walpost", "ours", "#336791"))):
        places = [n + 0.38 * (at - 0.5) for n, shape in enumerate(shapes) if shape[key]]
        shown = [shape for shape in shapes if shape[key]]
        if not shown:
            continue
        axes.bar(places, [s["rows"] / median(s[key], "seconds") for s in shown], 0.36, color=colour, label=who)
        for place, shape in zip(places, shown):
            axes.plot([place] * len(shape[key]), [shape["rows"] / run["seconds"] for run in shape[key]], "k.", markersize=4)
    axes.set_xticks(range(len(shapes)), [str(shape["per_tx"]) for shape in shapes])
    axes.set_xlabel("rows per transaction")
    axes.set_ylabel("rows per second")
    axes.legend()
    figure.tight_layout()
    figure.savefig(file)
