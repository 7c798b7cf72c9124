"""The values that pass between router, policies and recorders. They validate themselves and have no other behaviour.

Times are seconds as `float` from an origin that the caller chooses. Rates are services per second and server.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

from dispatcher.errors import ConfigError

if TYPE_CHECKING:
    from dispatcher.core.fleet import Pool


MAX_SERVERS = 100_000  # of one pool


class Outcome(StrEnum):
    """How a request ended. A policy learns a service rate from `OK` only."""

    OK = "ok"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    CANCELLED = "cancelled"


class Phase(StrEnum):
    """Why a pool was chosen: as a forced trial, or because it had the best score."""

    EXPLORE = "explore"
    EXPLOIT = "exploit"


@dataclass(frozen=True, slots=True)
class PoolSpec:
    """The configured description of a pool.

    id: its name, unique in the fleet.
    servers: c_i, the parallel servers behind it.
    guess: the initial estimate of its service rate, per second and server.
    true_rate: the real rate, if known. The policy SED and the regret use it; a learner never does.
    max_in_flight: the most requests that may be in flight on it; 0 means no limit.

    >>> PoolSpec("small", guess=0)
    Traceback (most recent call last):
    ...
    dispatcher.errors.ConfigError: pool 'small': guess must be a positive number, not 0
    """

    id: str
    servers: int = 1
    guess: float = 1.0
    true_rate: float | None = None
    max_in_flight: int = 0

    def __post_init__(self) -> None:
        if not (isinstance(self.servers, int) and 1 <= self.servers <= MAX_SERVERS):
            raise ConfigError(f"pool {self.id!r}: servers must be from 1 to {MAX_SERVERS:,}, not {self.servers}")
        if self.max_in_flight < 0:
            raise ConfigError(f"pool {self.id!r}: max_in_flight must be 0 (no limit) or more, not {self.max_in_flight}")
        for key, rate in (("guess", self.guess), ("true_rate", self.true_rate)):
            if rate is not None and not (rate > 0 and math.isfinite(rate)):
                raise ConfigError(f"pool {self.id!r}: {key} must be a positive number, not {rate}")


@dataclass(frozen=True, slots=True)
class Added:
    """A pool joins the fleet, or comes back. slow_start: seconds over which its share of the traffic grows."""

    spec: PoolSpec
    slow_start: float = 0.0


@dataclass(frozen=True, slots=True)
class Removed:
    """A pool gets no more requests. Those in flight on it go on."""

    pool: str


Change = Added | Removed


@dataclass(frozen=True, slots=True)
class Job:
    """One request, as a policy sees it. context: features of the request, for policies that use them."""

    number: int
    context: object = None


@dataclass(frozen=True, slots=True)
class Decision:
    """The choice of a policy for one request. It comes back to the policy inside the completion.

    pool: the name of the chosen pool.
    probability: with which the pool was drawn.
    memo: whatever the policy needs when it learns the result; other requests come in between.
    phase: why the pool was chosen.
    """

    pool: str
    probability: float = 1.0
    memo: object = None
    phase: Phase = Phase.EXPLOIT


class Ticket:
    """One request's place at a pool: opened by `Router.route`, closed exactly once by `Router.complete`.

    decided_by: the policy that decided.
    in_flight_before: the requests that were in flight at the pool when this one joined.
    timing_discarded: the end of the request does not show when the pool was done with it.
    """

    __slots__ = (
        "decided_by",
        "decision",
        "in_flight_before",
        "is_open",
        "job",
        "pool",
        "routed_at",
        "timing_discarded",
    )

    def __init__(self, job: Job, decision: Decision, routed_at: float, pool: Pool, decided_by: object = None) -> None:
        self.job = job
        self.decision = decision
        self.routed_at = routed_at
        # The instance, not the name: the pool that was counted up is the one that is counted down.
        self.pool = pool
        self.decided_by = decided_by
        self.in_flight_before = pool.in_flight
        self.is_open = True
        self.timing_discarded = False

    def __repr__(self) -> str:
        return f"<Ticket {self.job.number} on {self.pool.id} {'open' if self.is_open else 'closed'}>"


class Interval(NamedTuple):
    """An estimate with its 95 % bounds."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Report:
    """What a pool reported about itself with a response. None stands for what it did not report.

    at: when the report arrived.
    queue_depth: requests that remain at the pool.
    served: services since the pool started, of all its servers.
    busy: seconds that these services took in all.
    utilization: the share of its servers that work.
    rps: requests per second that it serves.
    """

    at: float
    queue_depth: float | None = None
    served: float | None = None
    busy: float | None = None
    utilization: float | None = None
    rps: float | None = None


@dataclass(frozen=True, slots=True)
class Completion:
    """The end of a request at its pool.

    service_time: seconds of work; None if unknown, or if nothing may be learned from it.
    outcome: how the request ended.
    report: what the pool reported about itself.
    accepted: whether the pool took the request; None if this is unknown.
    retry_after: seconds for which a pool that rejected the request asked to get no other one.
    teaches: the time in flight is the pool's own work on a request that it served, and was not discarded.
    first_byte_at: when the headers of the response arrived; None without a response and in simulations.
    """

    ticket: Ticket
    finished_at: float
    service_time: float | None
    outcome: Outcome
    report: Report | None = None
    accepted: bool | None = None
    retry_after: float = 0.0
    teaches: bool = True
    first_byte_at: float | None = None
