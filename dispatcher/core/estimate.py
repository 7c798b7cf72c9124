"""What a policy reports that it has learned about one pool."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

from dispatcher.core.types import Interval


class Estimate(Protocol):
    """An estimate of the service rate of one pool."""

    @property
    def rate(self) -> float:
        """Services per second and server."""
        ...

    @property
    def observations(self) -> float:
        """The number of observations that the estimate rests on."""
        ...

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % bounds of the rate."""
        ...


@dataclass(frozen=True, slots=True)
class GuessedRate:
    """The estimate of a policy that learns nothing: the configured guess, without any observation."""

    rate: float
    observations: float = 0
    interval: tuple[float, float] = (0.0, math.inf)


class CapacityEstimate:
    """The estimate of a policy that learns the capacity of a pool as well as its speed, with 95 % intervals.

    observations: the number of responses.
    service_seconds: s, the seconds that a request takes while the pool keeps up.
    capacity: c, the requests in flight up to which the pool keeps up.
    throughput: c/s, the requests per second that the pool completes at most.
    """

    __slots__ = ("capacity", "observations", "service_seconds", "throughput")

    def __init__(
        self, observations: float, service_seconds: Interval, capacity: Interval, throughput: Interval
    ) -> None:
        self.observations = observations
        self.service_seconds = service_seconds
        self.capacity = capacity
        self.throughput = throughput

    @property
    def rate(self) -> float:
        """1/s, requests per second."""
        return 1 / self.service_seconds.value

    @property
    def interval(self) -> tuple[float, float]:
        low, high = self.service_seconds.low, self.service_seconds.high
        return 1 / high, 1 / low if low > 0 else math.inf
