"""How fast a pool works when n requests share it: speeds of one request, and throughput curves. PURE.

A speed is a function of n, the requests in service. It gives the work that each of them gets done in a second, in
seconds of service; it is 1 where a request runs as fast as it would alone. A throughput curve is a speed with a scale:
with n requests in the pool it completes r(n) = n speed(n) / seconds requests a second.

A curve is written as text: `fcfs:servers=4,seconds=0.04` or `table:10,18,24`. `parse_curve` lists all forms.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

Speed = Callable[[int], float]


class Shape(Protocol):
    """A speed whose greatest total is known."""

    def __call__(self, n: int) -> float:
        """The speed of each of n requests, n at least 1."""
        ...

    def most(self, limit: float) -> float:
        """The supremum of n speed(n) over n from 1 to `limit`, which may be infinite."""
        ...


@dataclass(frozen=True, slots=True)
class Servers:
    """The requests share `servers` servers, and each of them uses one server at most: speed min(1, servers/n).

    servers: at least 1; it may be a fraction, or infinite, and then every request runs at speed 1.
    """

    servers: float = 1.0

    def __post_init__(self) -> None:
        if not self.servers >= 1:
            raise ValueError(f"servers must be at least 1, not {self.servers:g}")

    def __call__(self, n: int) -> float:
        return min(1.0, self.servers / n)

    def most(self, limit: float) -> float:
        return min(self.servers, limit)


@dataclass(frozen=True, slots=True)
class Soft:
    """Every request slows each of the others by the same amount: speed 1/(1 + a (n − 1)).

    a: 0 or more. At a = 0 the pool is an infinite server, and at a = 1 it is one shared server.
    """

    a: float

    def __post_init__(self) -> None:
        if not 0 <= self.a < math.inf:
            raise ValueError(f"a must be 0 or more, not {self.a:g}")

    def __call__(self, n: int) -> float:
        return 1 / (1 + self.a * (n - 1))

    def most(self, limit: float) -> float:
        if math.isfinite(limit):
            return max(1.0, limit / (1 + self.a * (limit - 1)))
        return max(1.0, 1 / self.a) if self.a else math.inf


@dataclass(frozen=True, slots=True)
class Retrograde:
    """The throughput falls when the pool is crowded: speed min(1, servers/n) min(1, peak/n).

    peak: the number of requests up to which the pool is as fast as `Servers`. With more, its throughput is proportional
    to 1/n. It is at least `servers`.
    """

    servers: float
    peak: float

    def __post_init__(self) -> None:
        if not 1 <= self.servers <= self.peak < math.inf:
            raise ValueError(f"1 <= servers <= peak must hold, not servers={self.servers:g} and peak={self.peak:g}")

    def __call__(self, n: int) -> float:
        return min(1.0, self.servers / n) * min(1.0, self.peak / n)

    def most(self, limit: float) -> float:
        return min(self.servers, limit)


@dataclass(frozen=True, slots=True)
class Table:
    """Measured throughputs: rates[n − 1] is that of n requests, in any unit; beyond the table it stays at the last."""

    rates: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.rates or not all(0 < rate < math.inf for rate in self.rates):
            raise ValueError("a table needs at least one rate, and every rate must be positive")

    def __call__(self, n: int) -> float:
        return self.rates[min(n, len(self.rates)) - 1] / (n * self.rates[0])

    def most(self, limit: float) -> float:
        return max(self.rates[: int(min(limit, len(self.rates)))]) / self.rates[0]


@dataclass(frozen=True, slots=True)
class Curve:
    """The throughput of a pool of exponential services by the number of requests in it.

    seconds: the mean time of a request that is alone. limit: how many are in service at once; others wait in front.
    """

    shape: Shape
    seconds: float
    limit: float = math.inf

    def __post_init__(self) -> None:
        if not 0 < self.seconds < math.inf:
            raise ValueError(f"seconds must be positive, not {self.seconds:g}")
        if not self.limit >= 1 or (math.isfinite(self.limit) and self.limit != int(self.limit)):
            raise ValueError(f"limit must be a whole number of at least 1, not {self.limit:g}")

    def rate(self, n: int) -> float:
        """Completions a second with n requests in the pool.

        >>> curve = Curve(Servers(4), 0.04)
        >>> [curve.rate(n) for n in (0, 1, 4, 9)]
        [0.0, 25.0, 100.0, 100.0]
        """
        working = int(min(n, self.limit))
        return working * self.shape(working) / self.seconds if working else 0.0

    @property
    def capacity(self) -> float:
        """The supremum of `rate`, a second; infinite for an infinite server."""
        return self.shape.most(self.limit) / self.seconds


MAKERS: dict[str, tuple[Callable[..., Shape], tuple[str, ...]]] = {
    "fcfs": (Servers, ("servers",)),
    "ps": (Servers, ("servers",)),
    "infinite": (lambda: Servers(math.inf), ()),
    "soft": (Soft, ("a",)),
    "retrograde": (Retrograde, ("servers", "peak")),
    "limited": (Servers, ("servers",)),
}  # by name: what makes the shape, and the options that it needs besides `seconds` and `limit`


def parse_curve(text: str) -> Curve:
    """The curve that `text` describes. Raises ValueError with one line.

    The forms are fcfs:servers=4,seconds=0.04 (ps is the same curve), infinite:seconds=0.05, soft:a=0.1,seconds=0.02,
    retrograde:servers=4,peak=8,seconds=0.02, limited:servers=2,limit=64,seconds=0.005 and table:10,18,24 (completions a
    second with 1, 2, 3 and more requests). All but a table take `limit`, and `limited` needs it.

    >>> parse_curve("table:10,18,24").rate(2), parse_curve("infinite:seconds=0.05").rate(7)
    (18.0, 140.0)
    """
    name, _, rest = text.partition(":")
    items = [item for item in rest.split(",") if item]
    try:
        if name == "table":
            rates = tuple(_number(item, "a rate") for item in items)
            return Curve(Table(rates), 1 / rates[0] if rates else 1.0)
        if name not in MAKERS:
            raise ValueError(f"unknown form {name!r}; known: {', '.join((*MAKERS, 'table'))}")
        return _made(name, items)
    except ValueError as error:
        raise ValueError(f"curve {text!r}: {error}") from None


def _made(name: str, items: list[str]) -> Curve:
    make, needed = MAKERS[name]
    needed = (*needed, "seconds", *(("limit",) if name == "limited" else ()))
    options: dict[str, float] = {}
    for item in items:
        key, _, value = item.partition("=")
        if key in options or key not in (*needed, "limit"):
            raise ValueError(f"{name} takes {', '.join(dict.fromkeys((*needed, 'limit')))}, each once, not {item!r}")
        options[key] = _number(value, key)
    if missing := [key for key in needed if key not in options]:
        raise ValueError(f"{name} needs {', '.join(missing)}")
    seconds, limit = options.pop("seconds"), options.pop("limit", math.inf)
    return Curve(make(**options), seconds, limit)


def _number(text: str, what: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{what} must be a number, not {text!r}") from None
