"""This module lists the rows: which servers stand behind the balancers, and how many requests a second come.

A row has either a load, a share of the capacity of its pools, or a rate where some pool has no capacity. Capacity is
known where requests sleep and the server limits their number: places ÷ mean work. Where requests use the processor or
share a file it is measured before the first turn (see capacity.py).
"""

import math
from dataclasses import dataclass

from dispatcher.errors import ConfigError
from tests.bench.applications.work import COST

UNLIMITED = ("uvicorn", "node")  # servers that start every request at once
NAMES = {"sync": "gunicorn sync", "gthread": "gunicorn gthread"}
MEASURED = ("burn", "sqlite")  # handlers whose speed depends on the machine


@dataclass(frozen=True)
class Pool:
    """This is one server. `kind` is a key of servers.SERVERS; `handler` names what a request does.

    `mean` is the mean work of a request, in seconds, for `sqlite` in rows. Requests share `connections` connections.
    """

    kind: str
    mean: float
    threads: int = 1
    workers: int = 1
    handler: str = "sleep"
    connections: int = 0

    @property
    def places(self):
        """Returns how many requests it works on at once."""
        if self.connections:
            return self.connections
        return math.inf if self.kind in UNLIMITED else self.threads * self.workers

    def __str__(self):
        sizes = {"connection": self.connections, "worker": self.workers, "thread": self.threads}
        parts = [f"{n} {word}s" for word, n in sizes.items() if n > 1]
        name = NAMES.get(self.kind, self.kind) + (f" ({' of '.join(parts)})" if parts else "")
        amount = f"{self.mean:,.0f} rows" if self.handler == "sqlite" else f"{self.mean * 1e3:g} ms"
        return f"{name}: {self.handler} {amount}"


@dataclass(frozen=True)
class Row:
    """This is one comparison. It has either a load or a rate, in requests a second.

    The share `costly` of the requests costs COST times as much as the others. `what` is the reason for the row.
    """

    name: str
    pools: tuple[Pool, ...]
    what: str
    load: float = 0.0
    rate: float = 0.0
    costly: float = 0.0

    def __post_init__(self):
        if bool(self.load) == bool(self.rate):
            raise ValueError(f"row {self.name}: give either load or rate")
        if self.load and not self.measured and math.isinf(self.capacity):
            raise ValueError(f"row {self.name}: a pool without capacity needs a rate, not a load")
        if self.measured and self.costly:
            raise ValueError(f"row {self.name}: the capacity for costly requests cannot be measured")

    @property
    def measured(self):
        """Returns whether the capacity has to be measured."""
        return any(pool.handler in MEASURED for pool in self.pools)

    @property
    def capacity(self):
        """Returns requests a second that the pools can answer together, where no measurement is needed."""
        factor = 1 + self.costly * (COST - 1)
        return sum(pool.places / (pool.mean * factor) for pool in self.pools)

    def rate_at(self, capacity):
        """Returns requests a second of the row, given how many its pools can answer."""
        return self.rate or self.load * capacity


def _at(name, pools, what, *loads, costly=0.0):
    return tuple(Row(f"{name}@{load:g}", pools, what, load=load, costly=costly) for load in loads)


_THREADS = (Pool("gthread", 0.040, threads=4), Pool("gthread", 0.080, threads=16))
_ASYNC = (Pool("uvicorn", 0.050), Pool("uvicorn", 0.100))
_HALF_ASYNC = (Pool("uvicorn", 0.060), Pool("gthread", 0.020, threads=3))
_WAITRESS = (Pool("waitress", 0.030, threads=4), Pool("granian", 0.060, threads=8))
_CPU = (Pool("sync", 0.005, handler="burn"), Pool("sync", 0.0025, workers=2, handler="burn"))
_CONNECTIONS = (
    Pool("uvicorn", 0.020, handler="connections", connections=2),
    Pool("uvicorn", 0.050, handler="connections", connections=10),
)
_SQLITE = (
    Pool("gthread", 20_000, threads=4, handler="sqlite"),
    Pool("gthread", 8_000, threads=2, workers=2, handler="sqlite"),
)
_MIX = (Pool("gthread", 0.004, threads=2), Pool("gthread", 0.008, threads=8))
_TRIPLE = (Pool("gthread", 0.010), Pool("gthread", 0.060, threads=8), Pool("waitress", 0.030, threads=4))
_NODE = (Pool("node", 0.080), Pool("gthread", 0.020, threads=2))

ROWS = (
    *_at("gthread", _THREADS, "few fast and many slow threads", 0.3, 0.6, 0.85),
    Row("async", _ASYNC, "no limit on requests at once", rate=100.0),
    Row("async+gthread", _HALF_ASYNC, "only one pool has a limit", rate=150.0),
    *_at("waitress+granian", _WAITRESS, "two servers of equal capacity", 0.85),
    *_at("sync-cpu", _CPU, "requests compete for the processor", 0.3, 0.6),
    *_at("connections", _CONNECTIONS, "2 and 10 connections to a database", 0.6, 0.85),
    *_at("sqlite", _SQLITE, "requests of a pool share a file", 0.6),
    *_at("mix", _MIX, "one request in ten costs 50 times more", 0.6, costly=0.1),
    *_at("triple", _TRIPLE, "three unequal pools", 0.3, 0.85),
    Row("node+gthread", _NODE, "node beside threads", rate=120.0),
)
QUICK = ("gthread@0.6", "async", "sync-cpu@0.3", "triple@0.85")


def select(text):
    """Returns rows by name, as in "async,sync-cpu@0.3"; a name without its load means all its loads.

    Raises ConfigError.
    """
    found = []
    for name in (part.strip() for part in text.split(",")):
        rows = [row for row in ROWS if name in (row.name, row.name.partition("@")[0])]
        if not rows:
            raise ConfigError(f"--rows: there is no row {name!r}; there are: {', '.join(row.name for row in ROWS)}")
        found += [row for row in rows if row not in found]
    return tuple(found)
