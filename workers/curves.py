"""How fast a pool works when n requests share it: the speed of one request, and throughput curves. PURE.

A shape is a function of n, the number of requests in service. Its `total` is the work that they do together per second,
in seconds of service. Called, it returns the speed of each one, total(n)/n, which is 1 for a request that is alone. A
curve is a shape with a scale: with n requests in the pool it completes r(n) = alone × total(n) requests per second.

A curve is named as in a command: `fcfs:servers=4,seconds=0.04` or `table:10,18,24`. `parse_curve` lists all forms.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Callable
from dataclasses import dataclass

from workers.spec import make_from_spec, split_spec

Speed = Callable[[int], float]


class Shape(abc.ABC):
    """The work that n requests do together per second, by n."""

    __slots__ = ()

    @abc.abstractmethod
    def total(self, n: int) -> float:
        """Return the work of all n requests together; n is at least 1, and total(1) is 1."""

    @abc.abstractmethod
    def most(self, limit: float) -> float:
        """Return the supremum of `total` over n from 1 to `limit`, which may be infinite."""

    @property
    @abc.abstractmethod
    def crowded(self) -> float:
        """The limit of `total` as n grows, which may be infinite."""

    @property
    def knee(self) -> float:
        """The n from which on `total` is constant; infinite if there is none."""
        return math.inf

    def __call__(self, n: int) -> float:
        """Return the speed of each of n requests."""
        return self.total(n) / n


@dataclass(frozen=True, slots=True)
class Servers(Shape):
    """The requests share `servers` servers, and each of them uses one server at most: speed min(1, servers/n).

    servers: at least 1; it may be a fraction, or infinite, and then every request runs at speed 1.
    """

    servers: float = 1.0

    def __post_init__(self) -> None:
        if not self.servers >= 1:
            raise ValueError(f"servers must be at least 1, not {self.servers:g}")

    def total(self, n: int) -> float:
        return min(n, self.servers)

    def most(self, limit: float) -> float:
        return min(self.servers, limit)

    @property
    def crowded(self) -> float:
        return self.servers

    @property
    def knee(self) -> float:
        return math.ceil(self.servers) if math.isfinite(self.servers) else math.inf


@dataclass(frozen=True, slots=True)
class Soft(Shape):
    """Every request slows each of the others by the same amount: speed 1/(1 + a (n − 1)).

    a: 0 or more. At a = 0 the pool is an infinite server, and at a = 1 it is one shared server.
    """

    a: float

    def __post_init__(self) -> None:
        if not 0 <= self.a < math.inf:
            raise ValueError(f"a must be 0 or more, not {self.a:g}")

    def total(self, n: float) -> float:
        return n / (1 + self.a * (n - 1))

    def most(self, limit: float) -> float:
        # `total` rises with n for a < 1 and falls for a > 1. So the largest value is at one of the two ends.
        return max(1.0, self.total(limit) if math.isfinite(limit) else self.crowded)

    @property
    def crowded(self) -> float:
        return 1 / self.a if self.a else math.inf


@dataclass(frozen=True, slots=True)
class Retrograde(Shape):
    """The throughput falls when the pool is crowded: speed min(1, servers/n) min(1, peak/n).

    peak: the number of requests up to which the pool is as fast as `Servers`. With more, its throughput is proportional
    to 1/n. It is at least `servers`.
    """

    servers: float
    peak: float

    def __post_init__(self) -> None:
        if not 1 <= self.servers <= self.peak < math.inf:
            raise ValueError(f"1 <= servers <= peak must hold, not servers={self.servers:g} and peak={self.peak:g}")

    def total(self, n: int) -> float:
        return min(n, self.servers) * min(1.0, self.peak / n)

    def most(self, limit: float) -> float:
        return min(self.servers, limit)  # a whole number of servers reaches it, as `peak` is not smaller

    @property
    def crowded(self) -> float:
        return 0.0


@dataclass(frozen=True, slots=True)
class Table(Shape):
    """Measured throughputs: rates[n − 1] is that of n requests, in any unit; beyond the table it stays at the last."""

    rates: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.rates or not all(0 < rate < math.inf for rate in self.rates):
            raise ValueError("a table needs at least one rate, and every rate must be positive")

    def total(self, n: int) -> float:
        return self.rates[min(n, len(self.rates)) - 1] / self.rates[0]

    def most(self, limit: float) -> float:
        return max(self.rates[: int(min(limit, len(self.rates)))]) / self.rates[0]

    @property
    def crowded(self) -> float:
        return self.total(len(self.rates))

    @property
    def knee(self) -> float:
        return len(self.rates)


@dataclass(frozen=True, slots=True)
class Curve:
    """The throughput of a pool of exponential services, by the number of requests in it.

    alone: completions per second while one request is in the pool.
    limit: the number of requests that are in service at once; the others wait.
    """

    shape: Shape
    alone: float
    limit: float = math.inf

    def __post_init__(self) -> None:
        if not 0 < self.alone < math.inf:
            raise ValueError(f"the rate of a request that is alone must be positive, not {self.alone:g}")
        if not self.limit >= 1 or (math.isfinite(self.limit) and self.limit != int(self.limit)):
            raise ValueError(f"limit must be a whole number of at least 1, not {self.limit:g}")

    def rate(self, n: int) -> float:
        """Return the completions per second with n requests in the pool.

        >>> curve = Curve(Servers(4), 25.0)
        >>> [curve.rate(n) for n in (0, 1, 4, 9)]
        [0.0, 25.0, 100.0, 100.0]
        """
        return self.alone * self.shape.total(int(min(n, self.limit))) if n else 0.0

    @property
    def capacity(self) -> float:
        """The supremum of `rate`, per second; infinite for an infinite server."""
        return self.alone * self.shape.most(self.limit)

    @property
    def crowded(self) -> float:
        """The limit of `rate` as the number of requests grows; what the pool completes a second if it is overloaded."""
        return self.rate(int(self.limit)) if math.isfinite(self.limit) else self.alone * self.shape.crowded

    @property
    def knee(self) -> float:
        """The number of requests from which on `rate` is constant; infinite if there is none."""
        return min(self.shape.knee, self.limit)


def _servers(servers: float, seconds: float, limit: float = math.inf) -> Curve:
    return _scaled(Servers(servers), seconds, limit)


def _infinite(seconds: float, limit: float = math.inf) -> Curve:
    return _scaled(Servers(math.inf), seconds, limit)


def _soft(a: float, seconds: float, limit: float = math.inf) -> Curve:
    return _scaled(Soft(a), seconds, limit)


def _retrograde(servers: float, peak: float, seconds: float, limit: float = math.inf) -> Curve:
    return _scaled(Retrograde(servers, peak), seconds, limit)


def _limited(servers: float, limit: float, seconds: float) -> Curve:
    return _scaled(Servers(servers), seconds, limit)


def _scaled(shape: Shape, seconds: float, limit: float) -> Curve:
    """Return the curve of this shape where a request that is alone takes so many seconds."""
    if not 0 < seconds < math.inf:
        raise ValueError(f"seconds must be positive, not {seconds:g}")
    return Curve(shape, 1 / seconds, limit)


# The parameters of these functions are the options of each form. As services are exponential, `fcfs` and `ps` have the
# same throughput.
CURVES: dict[str, Callable[..., Curve]] = {
    "fcfs": _servers,
    "ps": _servers,
    "infinite": _infinite,
    "soft": _soft,
    "retrograde": _retrograde,
    "limited": _limited,
}


def parse_curve(text: str) -> Curve:
    """Return the curve that `text` describes.

    The forms are fcfs:servers=4,seconds=0.04 (ps is the same curve), infinite:seconds=0.05, soft:a=0.1,seconds=0.02,
    retrograde:servers=4,peak=8,seconds=0.02, limited:servers=2,limit=64,seconds=0.005 and table:10,18,24 (completions a
    second with 1, 2, 3 and more requests). `seconds` is the mean time of a request that is alone. All forms but the
    table take `limit`.

    Raises ValueError with one line.

    >>> parse_curve("table:10,18,24").rate(2), parse_curve("infinite:seconds=0.05").rate(7)
    (18.0, 140.0)
    """
    name, _, rest = split_spec(text)
    if name not in (*CURVES, "table"):
        raise ValueError(f"unknown curve {name!r}; known: {', '.join((*CURVES, 'table'))}")
    if name in CURVES:
        return make_from_spec(text, "curve", CURVES)
    try:
        rates = tuple(_rate(item) for item in rest.replace("/", ",").split(",") if item)
        return Curve(Table(rates), rates[0])
    except ValueError as error:
        raise ValueError(f"curve {text!r}: {error}") from None


def _rate(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"a rate must be a number, not {text!r}") from None
