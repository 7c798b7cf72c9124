"""CPU time for each small GET: this checkout, optionally another one, and nginx, in interleaved turns.

    python -m tests.bench path --against ../another-checkout

A turn sends the same number of requests by wrk and reads the CPU time of the proxy's process before and after it.
"""

import argparse
import os
import socket
import statistics
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.table import Table

from tests.bench.peers import free_ports, missing, nginx, wrk

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
UPSTREAM = (
    'server {{ listen 127.0.0.1:{port}; location / {{ default_type text/plain; return 200 "hello world\\n"; }} }}'
)
PROXY = """upstream u {{ least_conn; server 127.0.0.1:{first}; server 127.0.0.1:{second};
keepalive 64; keepalive_requests 10000000; }}
server {{ listen 127.0.0.1:{port}; location / {{ proxy_pass http://u; proxy_http_version 1.1;
proxy_set_header Connection ""; proxy_set_header X-Forwarded-For $remote_addr; }} }}"""


def cpu_seconds(pid):
    """Return the CPU time of a process and of its children that run now."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    fields = [Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split() for each in (pid, *children)]
    return sum(int(values[11]) + int(values[12]) for values in fields) / TICKS_PER_SECOND


def serve(checkout, listen, pools, policy):
    """Start the dispatcher of a checkout, with this interpreter."""
    command = [sys.executable, "-m", "dispatcher", "serve", f"--listen=127.0.0.1:{listen}", "--admin=127.0.0.1:0"]
    command += [f"--pool=p{i}=http://127.0.0.1:{port}" for i, port in enumerate(pools)]
    command += [f"--policy={policy}"]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    environment = os.environ | {"PYTHONPATH": str(checkout)}
    return subprocess.Popen(command, cwd=checkout, env=environment, **quiet)


def wait_for(port, seconds=20.0):
    """Wait until this port accepts connections."""
    end = time.monotonic() + seconds
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1.0).close()
            return
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.05)


def run(options=()):
    lacking = missing("nginx", "wrk")
    if lacking:
        return f"path: not measured, {lacking} not installed"
    parser = argparse.ArgumentParser(prog="python -m tests.bench path", description=__doc__.splitlines()[0])
    parser.add_argument("--against", type=Path, help="another checkout of this repository")
    parser.add_argument("--policy", default="lased")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--seconds", type=int, default=3)
    parser.add_argument("--clients", type=int, default=32)
    arguments = parser.parse_args(options)
    here = Path(__file__).resolve().parents[2]
    first, second, plain, *ours = free_ports(5)
    checkouts = [here, *([arguments.against.resolve()] if arguments.against else [])]
    with TemporaryDirectory() as name:
        folder = Path(name)
        upstreams = "".join(UPSTREAM.format(port=port) for port in (first, second))
        running = [nginx(folder, "upstreams", upstreams)]
        proxies = {"nginx": (nginx(folder, "proxy", PROXY.format(port=plain, first=first, second=second)), plain)}
        for checkout, port in zip(checkouts, ours, strict=False):
            proxies[checkout.name] = (serve(checkout, port, (first, second), arguments.policy), port)
        running += [process for process, _ in proxies.values()]
        try:
            for _, port in proxies.values():
                wait_for(port)
            figures = measure(proxies, arguments)
        finally:
            for process in running:
                process.terminate()
            for process in running:
                process.wait()
    table = Table(title=f"CPU for each small GET, policy {arguments.policy}, {arguments.rounds} turns, median")
    for column in ("", "µs", "lowest", "highest", "of nginx"):
        table.add_column(column, justify="right" if column else "left")
    peer = statistics.median(figures["nginx"])
    for name, values in figures.items():
        middle = statistics.median(values)
        table.add_row(name, f"{middle:.1f}", f"{min(values):.1f}", f"{max(values):.1f}", f"{middle / peer:.2f}")
    return table


def measure(proxies, arguments):
    """Return the microseconds of CPU for each request, by proxy and turn."""
    figures = {name: [] for name in proxies}
    for _, port in proxies.values():
        wrk(port, seconds=1, clients=arguments.clients)
    for _ in range(arguments.rounds):
        for name, (process, port) in proxies.items():
            before = cpu_seconds(process.pid)
            rate, _ = wrk(port, "/", arguments.seconds, arguments.clients)
            figures[name].append(1e6 * (cpu_seconds(process.pid) - before) / (rate * arguments.seconds))
    return figures
