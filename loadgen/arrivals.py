"""When requests are to be sent: arrival processes and schedules. PURE: no clock, no sockets.

A schedule is drawn beforehand as absolute offsets, so that sending can neither drift nor bend it, and the same seed
gives the same traffic to every policy. It is never rescaled: a Poisson schedule over T seconds has a random count.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from workers.distributions import options_in

MOST = 50_000_000  # arrivals of one schedule


class ArrivalProcess(Protocol):
    """Instants of arrival, seconds from the start."""

    def next_arrival(self, after: float) -> float | None:
        """The first arrival after `after`; None if there is none."""
        ...

    def rate(self, at: float) -> float:
        """Expected arrivals a second at this instant."""
        ...


@dataclass(frozen=True, slots=True)
class Poisson:
    """Exponential gaps of mean 1/lam."""

    lam: float
    rng: Random

    def next_arrival(self, after: float) -> float | None:
        return after + self.rng.expovariate(self.lam)

    def rate(self, at: float) -> float:
        return self.lam


@dataclass(frozen=True, slots=True)
class Constant:
    """Even gaps of 1/lam."""

    lam: float

    def next_arrival(self, after: float) -> float | None:
        return after + 1 / self.lam

    def rate(self, at: float) -> float:
        return self.lam


class Mmpp:
    """Poisson arrivals whose rate jumps between two levels at exponential times (a Markov-modulated Poisson process).

    The high level is `ratio` times the low one; both last `period` / 2 seconds on average, and the mean over both is
    lam. Starts low.
    """

    def __init__(self, lam: float, rng: Random, ratio: float = 5.0, period: float = 100.0) -> None:
        if not (1 <= ratio < math.inf and 0.01 / lam <= period < math.inf):
            raise ValueError(f"mmpp needs ratio ≥ 1 and period ≥ {0.01 / lam:g}, not {ratio:g} and {period:g}")
        low = 2 * lam / (1 + ratio)
        self._levels, self._stay, self._rng = (low, ratio * low), 2 / period, rng
        self._high, self._until = False, rng.expovariate(self._stay)

    def next_arrival(self, after: float) -> float | None:
        while True:
            at = after + self._rng.expovariate(self._levels[self._high])
            if at <= self._until:
                return at
            after, self._high = self._until, not self._high  # memoryless: draw anew from the jump on
            self._until += self._rng.expovariate(self._stay)

    def rate(self, at: float) -> float:
        return sum(self._levels) / 2


@dataclass(frozen=True, slots=True)
class Wave:
    """Poisson arrivals at lam (1 + depth sin(2πt/period)), as over a day; by thinning."""

    lam: float
    rng: Random
    depth: float = 0.8
    period: float = 1000.0

    def __post_init__(self) -> None:
        if not (0 <= self.depth <= 1 and 0.01 / self.lam <= self.period < math.inf):
            least = 0.01 / self.lam
            raise ValueError(f"a wave needs 0 ≤ depth ≤ 1 and period ≥ {least:g}, not {self.depth:g}, {self.period:g}")

    def next_arrival(self, after: float) -> float | None:
        top = self.lam * (1 + self.depth)
        while True:
            after += self.rng.expovariate(top)
            if self.rng.random() * top <= self.rate(after):
                return after

    def rate(self, at: float) -> float:
        return self.lam * (1 + self.depth * math.sin(2 * math.pi * at / self.period))


def _constant(lam: float, rng: Random) -> Constant:
    return Constant(lam)


PROCESSES: dict[str, Callable[..., ArrivalProcess]] = {
    "poisson": Poisson,
    "constant": _constant,
    "mmpp": Mmpp,
    "wave": Wave,
}


def parse(text: str, lam: float, rng: Random) -> ArrivalProcess:
    """The process named by `text`, as in `mmpp:ratio=5,period=100`. Raises ValueError with one clear line."""
    if not 0 < lam < math.inf:
        raise ValueError(f"the rate must be positive, not {lam:g}")
    name, options = options_in(text, "arrivals", PROCESSES)
    try:
        return PROCESSES[name](lam, rng, **options)
    except TypeError:
        raise ValueError(f"arrivals {name!r} takes no option {', '.join(options)}") from None


def schedule(process: ArrivalProcess, duration: float) -> NDArray[np.float64]:
    """All arrivals before `duration`, in seconds from the start; shape (n,), increasing.

    >>> schedule(Constant(2.0), 2.0).tolist()
    [0.5, 1.0, 1.5]
    """
    if not 0 < duration < math.inf:
        raise ValueError(f"the duration must be positive, not {duration:g}")
    if process.rate(0.0) * duration > MOST:
        raise ValueError(f"over {MOST:,} requests: lower the rate or the duration")
    offsets = []
    at = process.next_arrival(0.0)
    while at is not None and at < duration:
        offsets.append(at)
        at = process.next_arrival(at)
    return np.array(offsets, dtype=np.float64)
