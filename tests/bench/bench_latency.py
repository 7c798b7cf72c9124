"""What going through the dispatcher adds to a request at 1,000 a second, against a direct call and nginx, in turn."""

import json
import statistics
import subprocess
import sys

from rich.table import Table

from tests.bench.peers import fronts, missing

ROUNDS, RATE, SECONDS = 4, 1000, 5


def attack(port):
    """p50 and p99, seconds from the intended instant."""
    command = [
        sys.executable,
        "-m",
        "loadgen",
        "attack",
        f"http://127.0.0.1:{port}/",
        "--rate",
        str(RATE),
        "--duration",
        str(SECONDS),
        "--arrivals",
        "constant",
        "--json",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    latency = json.loads(done.stdout)["latency"]
    return latency["p50"], latency["p99"]


def run():
    lacking = missing("nginx", "wrk")
    if lacking:
        return f"latency: not measured, {lacking} not installed"
    with fronts() as (ports, _):
        seen = {name: [] for name in ports}
        for port in ports.values():
            attack(port)
        for _ in range(ROUNDS):
            for name, port in ports.items():
                seen[name].append(attack(port))
    table = Table(title=f"{RATE} requests a second, {ROUNDS} rounds of {SECONDS} s in turn, medians")
    for column in ("", "p50, ms", "added p50, ms", "p99, ms"):
        table.add_column(column, justify="right" if column else "left")
    p50, p99 = ({name: statistics.median(v[i] for v in seen[name]) * 1e3 for name in seen} for i in (0, 1))
    for name in seen:
        table.add_row(name, f"{p50[name]:.2f}", f"{p50[name] - p50['direct']:.2f}", f"{p99[name]:.2f}")
    return table
