"""Small GETs a second through the dispatcher and through nginx before the same upstreams, in turn: A B A B."""

import contextlib
import re
import shutil
import socket
import statistics
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.table import Table

ROUNDS, SECONDS, CLIENTS = 4, 3, 32
NGINX = """daemon off; worker_processes 1; pid {folder}/{name}.pid; error_log {folder}/{name}.err;
events {{ worker_connections 4096; }}
http {{ access_log off; keepalive_requests 10000000; {body} }}"""


def free_ports(n):
    with contextlib.ExitStack() as stack:
        taken = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(n)]
        return [each.getsockname()[1] for each in taken]


def nginx(folder, name, body):
    path = folder / f"{name}.conf"
    path.write_text(NGINX.format(folder=folder, name=name, body=body))
    return subprocess.Popen(["nginx", "-e", folder / f"{name}.err", "-c", path])


def wrk(port, seconds=SECONDS):
    command = ["wrk", "-t1", f"-c{CLIENTS}", f"-d{seconds}", f"http://127.0.0.1:{port}/"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "Non-2xx" not in done.stdout, done.stdout
    return float(re.search(r"Requests/sec:\s+([\d.]+)", done.stdout)[1])


def run():
    missing = [program for program in ("nginx", "wrk") if not shutil.which(program)]
    if missing:
        return f"forwarding: not measured, {' and '.join(missing)} not installed"
    first, second, front, ours = free_ports(4)
    serve = 'location / { default_type text/plain; return 200 "hello world\\n"; }'
    ups = "".join(f"server {{ listen 127.0.0.1:{port}; {serve} }}" for port in (first, second))
    proxy = (
        f"upstream u {{ least_conn; server 127.0.0.1:{first}; server 127.0.0.1:{second}; "
        f"keepalive 64; keepalive_requests 10000000; }} "
        f"server {{ listen 127.0.0.1:{front}; location / {{ proxy_pass http://u; proxy_http_version 1.1; "
        'proxy_set_header Connection ""; proxy_set_header X-Forwarded-For $remote_addr; } }'
    )
    pools = [f"--pool={name}=http://127.0.0.1:{port}" for name, port in (("a", first), ("b", second))]
    command = [sys.executable, "-m", "dispatcher", "serve", *pools, f"--listen=127.0.0.1:{ours}", "--admin=127.0.0.1:0"]
    rates = {"nginx 1 worker, least_conn": [], "lased-dispatcher, policy lased": []}
    with TemporaryDirectory() as name:
        folder = Path(name)
        running = [nginx(folder, "up", ups), nginx(folder, "proxy", proxy),
                   subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)]  # fmt: skip
        try:
            time.sleep(2)
            for port in (front, ours):
                wrk(port, 1)
            for _ in range(ROUNDS):
                for values, port in zip(rates.values(), (front, ours), strict=True):
                    values.append(wrk(port))
        finally:
            for process in running:
                process.terminate()
                process.wait()
    table = Table(title=f"Forwarding small GETs, wrk -t1 -c{CLIENTS}, {ROUNDS} rounds of {SECONDS} s in turn")
    for column in ("", "requests a second, median", "of nginx"):
        table.add_column(column, justify="right" if column else "left")
    peer = statistics.median(rates["nginx 1 worker, least_conn"])
    for name, values in rates.items():
        table.add_row(name, f"{statistics.median(values):,.0f}", f"{statistics.median(values) / peer:.2f}")
    return table
