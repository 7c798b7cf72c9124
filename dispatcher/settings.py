"""The numbers of the forwarding path. Values only; the configuration file fills them in."""

from __future__ import annotations

from dataclasses import dataclass, field
from ipaddress import IPv4Network, IPv6Network
from typing import Literal

Cause = Literal[
    "connect", "stale", "reset", "timeout", "429", "500", "502", "503", "504", "non_idempotent"
]  # what a request may be tried again for


@dataclass(frozen=True, slots=True)
class Limits:
    """0 means no limit. Bytes and counts."""

    head_bytes: int = 16384
    headers: int = 100
    body_bytes: int = 0
    connections: int = 10000


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Seconds, 0 for never. head: for a whole request head, absolute. keepalive: an idle client. connect: to a pool.
    answer: until the head of the answer. idle: between two pieces of a body, either way. tunnel: an upgraded connection
    on which nothing moves. pool_idle: how long an unused connection to a pool is kept. dns: how long the addresses of a
    name are believed. drain: how long a shutdown waits for open requests, and a removed pool for its tunnels."""

    head: float = 10.0
    keepalive: float = 75.0
    connect: float = 2.0
    answer: float = 60.0
    idle: float = 60.0
    tunnel: float = 3600.0
    pool_idle: float = 50.0
    dns: float = 30.0
    drain: float = 10.0


@dataclass(frozen=True, slots=True)
class Health:
    """When a pool is out. path: asked of each pool every `interval` seconds (give or take a tenth), empty for no
    probes; fall probes in a row that fail take it out, rise that succeed bring it back, timeout: seconds for one.
    passive_failures: requests failed in a row, after which a pool is ejected (0: never). error_ratio: share of its last
    `window` requests with the same effect (0: never). latency_factor: it is ejected if its last requests take so many
    times longer than it is used to (0: never). ejection: for how many seconds, doubled at each relapse. floor: share of
    the pools that stays in, whatever they do. slow_start: seconds over which one that comes back regains its share."""

    path: str = ""
    interval: float = 5.0
    timeout: float = 2.0
    rise: int = 2
    fall: int = 3
    passive_failures: int = 5
    error_ratio: float = 0.5
    window: int = 50
    latency_factor: float = 0.0
    ejection: float = 10.0
    floor: float = 0.3
    slow_start: float = 0.0


@dataclass(frozen=True, slots=True)
class Retry:
    """on: what for. `connect` (not a byte was sent) and `stale` (a kept-alive connection died without an answer) are
    safe; `reset` (so did a fresh one), `timeout` (no answer in time) and the statuses repeat work; `non_idempotent`
    lets them repeat methods such as POST. budget, per_second: retries are at most that share of requests and that many
    a second. attempts: of one request, the first one included. buffer_bytes: of a body kept for another try."""

    on: tuple[Cause, ...] = ("connect", "stale")
    budget: float = 0.2
    per_second: float = 10.0
    attempts: int = 3
    buffer_bytes: int = 65536


@dataclass(frozen=True, slots=True)
class Waiting:
    """size: requests that may wait while every pool is at its `max_in_flight`. timeout: seconds, after which they get
    503; 0 for never."""

    size: int = 1000
    timeout: float = 5.0


@dataclass(frozen=True, slots=True)
class Reports:
    """Load reports of pools, the header `endpoint-load-metrics`. read: whether they are believed. forward: whether
    clients get to see them."""

    read: bool = True
    forward: bool = False


@dataclass(frozen=True, slots=True)
class Settings:
    """trusted: networks whose X-Forwarded-* and Forwarded fields are believed and added to."""

    limits: Limits = field(default_factory=Limits)
    timeouts: Timeouts = field(default_factory=Timeouts)
    health: Health = field(default_factory=Health)
    retry: Retry = field(default_factory=Retry)
    queue: Waiting = field(default_factory=Waiting)
    reports: Reports = field(default_factory=Reports)
    trusted: tuple[IPv4Network | IPv6Network, ...] = ()


class LiveSettings:
    """The settings in force. All parts of the proxy hold this object, and a reload replaces its sections."""

    __slots__ = ("health", "limits", "queue", "reports", "retry", "timeouts", "trusted")

    def __init__(self, settings: Settings | None = None) -> None:
        self.replace(settings or Settings())

    def replace(self, settings: Settings) -> None:
        """Put these settings in force."""
        self.limits = settings.limits
        self.timeouts = settings.timeouts
        self.health = settings.health
        self.retry = settings.retry
        self.queue = settings.queue
        self.reports = settings.reports
        self.trusted = settings.trusted
