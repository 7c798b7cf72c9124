"""How late the load generator sends, and how much one sending process can: against one nginx worker on this machine."""

import json
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.table import Table

from tests.bench.peers import free_ports, missing, nginx

CASES = (
    ("1000", ()),
    ("4000", ()),
    ("8000", ()),
    ("12000", ()),
    ("16000", ()),
    ("1000", ("--spin", "0.3")),
    ("8000", ("--processes", "2")),
)
ROUNDS, SECONDS = 3, 10


def attack(port, rate, more, seed):
    command = [
        sys.executable,
        "-m",
        "loadgen",
        "attack",
        f"http://127.0.0.1:{port}/",
        "--rate",
        rate,
        "--json",
        "--duration",
        str(SECONDS),
        "--seed",
        str(seed),
        *more,
    ]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=False).stdout)


def run():
    if lacking := missing("nginx"):
        return f"pacing: not measured, {lacking} not installed"
    seen = {case: [] for case in CASES}
    with TemporaryDirectory() as name:
        (port,) = free_ports(1)
        answer = 'location / { default_type text/plain; return 200 "hello world\\n"; }'
        server = nginx(Path(name), "server", f"server {{ listen 127.0.0.1:{port}; {answer} }}")
        try:
            time.sleep(1.0)
            for j in range(ROUNDS):
                for case in CASES:
                    seen[case].append(attack(port, *case, seed=j + 1))
        finally:
            server.terminate()
            server.wait()
    table = Table(title=f"Poisson, {ROUNDS} rounds of {SECONDS} s in turn: median and worst round")
    for column in ("a second", "lateness p50, ms", "p99, ms", "achieved / planned", "KS distance", "core", "verdicts"):
        table.add_column(column, justify="right" if column != "verdicts" else "left")
    for (rate, more), runs in seen.items():
        table.add_row(
            " ".join((rate, *more)),
            shown([run["lateness"]["p50"] * 1e3 for run in runs]),
            shown([run["lateness"]["p99"] * 1e3 for run in runs]),
            f"{min(run['achieved_rate'] * SECONDS / sum(i['planned'] for i in run['intervals']) for run in runs):.4f}",
            shown([run["gaps"]["distance"] for run in runs]),
            shown([max(run["cpu"]) for run in runs]),
            ", ".join(run["verdict"] for run in runs),
        )
    return table


def shown(values):
    return f"{sorted(values)[len(values) // 2]:.3f}, {max(values):.3f}"
