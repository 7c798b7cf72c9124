"""What the forwarding benchmarks share: upstreams, peers and the dispatcher as processes, and wrk."""

import contextlib
import re
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from loadgen.experiments.live.balancers import BALANCERS

NGINX = """daemon off; worker_processes 1; pid {folder}/{name}.pid; error_log {folder}/{name}.err;
events {{ worker_connections 20000; }}
http {{ access_log off; keepalive_requests 10000000; client_max_body_size 0; client_body_temp_path {folder};
proxy_temp_path {folder}; fastcgi_temp_path {folder}; uwsgi_temp_path {folder}; scgi_temp_path {folder}; {body} }}"""
ENVOY = BALANCERS["envoy"]
MEGABYTE = 1 << 20


def free_ports(n):
    with contextlib.ExitStack() as stack:
        taken = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(n)]
        return [each.getsockname()[1] for each in taken]


def missing(*programs):
    """What is not installed, as text; empty if nothing."""
    return " and ".join(program for program in programs if not shutil.which(program))


def nginx(folder, name, body):
    path = folder / f"{name}.conf"
    path.write_text(NGINX.format(folder=folder, name=name, body=body))
    return subprocess.Popen(["nginx", "-e", folder / f"{name}.err", "-c", path])


def envoy(folder, front, upstreams):
    path = folder / "envoy.yaml"
    addresses = [f"127.0.0.1:{port}" for port in upstreams]
    path.write_text(ENVOY.configuration(folder, front, addresses, "least_request"))
    command = [ENVOY.program(), "-c", path, "--concurrency", "1", "--log-level", "error"]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def dispatcher(listen, upstreams, *more):
    pools = [f"--pool=p{i}=http://127.0.0.1:{port}" for i, port in enumerate(upstreams)]
    command = [
        sys.executable,
        "-m",
        "dispatcher",
        "serve",
        *pools,
        f"--listen=127.0.0.1:{listen}",
        "--admin=127.0.0.1:0",
    ]
    return subprocess.Popen([*command, *more], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


@contextlib.contextmanager
def fronts():
    """Two nginx upstreams and every proxy before them: {name: port}, and the dispatcher's process. `/` is small,
    `/1m` a megabyte."""
    first, second, plain, through, ours = free_ports(5)
    with TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "1m").write_bytes(b"x" * MEGABYTE)
        serve = (
            f'location / {{ default_type text/plain; return 200 "hello world\\n"; }} location /1m {{ root {folder}; }}'
        )
        ups = "".join(f"server {{ listen 127.0.0.1:{port}; {serve} }}" for port in (first, second))
        proxy = (
            f"upstream u {{ least_conn; server 127.0.0.1:{first}; server 127.0.0.1:{second}; "
            f"keepalive 64; keepalive_requests 10000000; }} "
            f"server {{ listen 127.0.0.1:{plain}; location / {{ proxy_pass http://u; proxy_http_version 1.1; "
            'proxy_set_header Connection ""; proxy_set_header X-Forwarded-For $remote_addr; } }'
        )
        there = {"direct": first, "nginx 1 worker, least_conn": plain, "lased-dispatcher, policy lased": ours}
        running = [nginx(folder, "up", ups), nginx(folder, "proxy", proxy), dispatcher(ours, (first, second))]
        if ENVOY.program():
            running.append(envoy(folder, through, (first, second)))
            there["Envoy, concurrency 1, least_request"] = through
        try:
            time.sleep(2.5)
            yield there, running[2]
        finally:
            for process in running:
                process.terminate()
            for process in running:
                process.wait()


def wrk(port, path="/", seconds=3, clients=32):
    """(requests, bytes) a second."""
    command = ["wrk", "-t1", f"-c{clients}", f"-d{seconds}", f"http://127.0.0.1:{port}{path}"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "Non-2xx" not in done.stdout, done.stdout
    amount, unit = re.search(r"Transfer/sec:\s+([\d.]+)([KMG]?)B", done.stdout).groups()
    transferred = float(amount) * {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}[unit]
    return float(re.search(r"Requests/sec:\s+([\d.]+)", done.stdout)[1]), transferred
