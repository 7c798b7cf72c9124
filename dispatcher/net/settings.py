"""The numbers of the forwarding path. Values only; the configuration file fills them in."""

from __future__ import annotations

from dataclasses import dataclass, field


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
    answer: until the head of the answer. idle: between two pieces of a body, either way. pool_idle: how long an unused
    connection to a pool is kept. drain: how long a shutdown waits for open requests."""

    head: float = 10.0
    keepalive: float = 75.0
    connect: float = 2.0
    answer: float = 60.0
    idle: float = 60.0
    pool_idle: float = 50.0
    drain: float = 10.0


@dataclass(frozen=True, slots=True)
class Health:
    """passive_failures: in a row, after which a pool is taken out (0: never). ejection: for how many seconds, doubled
    at each relapse."""

    passive_failures: int = 5
    ejection: float = 10.0


@dataclass(frozen=True, slots=True)
class Waiting:
    """size: requests that may wait while every pool is at its `max_in_flight`. timeout: seconds, after which they get
    503; 0 for never."""

    size: int = 1000
    timeout: float = 5.0


@dataclass(frozen=True, slots=True)
class Settings:
    limits: Limits = field(default_factory=Limits)
    timeouts: Timeouts = field(default_factory=Timeouts)
    health: Health = field(default_factory=Health)
    queue: Waiting = field(default_factory=Waiting)
