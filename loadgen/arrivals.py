"""When requests are to be sent: arrival processes and schedules. PURE: no clock, no sockets.

A schedule is drawn beforehand as absolute offsets, so that sending can neither drift nor bend it, and the same seed
gives the same traffic to every policy. It is never rescaled: a Poisson schedule over T seconds has a random count.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from random import Random
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

PROCESSES = ("poisson", "constant")
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


def parse(name: str, lam: float, rng: Random) -> ArrivalProcess:
    """The process of this name. Raises ValueError with one clear line."""
    if not 0 < lam < math.inf:
        raise ValueError(f"the rate must be positive, not {lam:g}")
    if name == "poisson":
        return Poisson(lam, rng)
    if name == "constant":
        return Constant(lam)
    raise ValueError(f"unknown arrivals {name!r}; known: {', '.join(PROCESSES)}")


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
