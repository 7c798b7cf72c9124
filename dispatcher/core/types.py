"""The values that pass between router, policies and recorders. No behaviour lives here beyond validation.

Times are seconds as `float` from an origin that the driver chooses; rates are services per second and server.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

from dispatcher.errors import ConfigError

if TYPE_CHECKING:
    from dispatcher.core.fleet import Pool


MOST_SERVERS = 100_000  # of one pool


class Outcome(StrEnum):
    """How a request ended. Only `OK` may teach a service rate."""

    OK = "ok"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    CANCELLED = "cancelled"


class Phase(StrEnum):
    """Why a pool was chosen: as a forced trial, or because it looked best."""

    EXPLORE = "explore"
    EXPLOIT = "exploit"


@dataclass(frozen=True, slots=True)
class PoolSpec:
    """What is known of a pool beforehand.

    id: its name, unique in the fleet. servers: c_i, parallel servers behind it. max_in_flight: requests that it may be
    sent and not have finished, 0 for any number. guess: the initial estimate of its
    service rate, per second and server. true_rate: the real one, where known; it serves SED and
    regret, never a learner.

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
        if not (isinstance(self.servers, int) and 1 <= self.servers <= MOST_SERVERS):
            raise ConfigError(f"pool {self.id!r}: servers must be from 1 to {MOST_SERVERS:,}, not {self.servers}")
        if self.max_in_flight < 0:
            raise ConfigError(f"pool {self.id!r}: max_in_flight must be 0 (no limit) or more, not {self.max_in_flight}")
        for key, rate in (("guess", self.guess), ("true_rate", self.true_rate)):
            if rate is not None and not (rate > 0 and math.isfinite(rate)):
                raise ConfigError(f"pool {self.id!r}: {key} must be a positive number, not {rate}")


@dataclass(frozen=True, slots=True)
class Added:
    """A pool joins (or comes back to) the fleet. slow_start: seconds over which its share of the traffic grows."""

    spec: PoolSpec
    slow_start: float = 0.0


@dataclass(frozen=True, slots=True)
class Removed:
    """A pool takes no more requests; those in flight on it go on."""

    pool: str


Change = Added | Removed


@dataclass(frozen=True, slots=True)
class Job:
    """One request, as a policy may know it. `context` is for policies that look at features; None otherwise."""

    number: int
    context: object = None


@dataclass(frozen=True, slots=True)
class Decision:
    """A policy's answer. Feedback is late, so what a policy wants to know then it writes here: `probability` with
    which this pool was drawn, `memo` anything; the decision comes back to it inside the completion."""

    pool: str
    probability: float = 1.0
    memo: object = None
    phase: Phase = Phase.EXPLOIT


class Ticket:
    """One request's claim on a pool: opened by `Router.route`, closed once by `Router.complete`.

    by: the policy that decided. found: how many requests were at the pool before it. timing_discarded: its
    end does not show when the pool was done with it.
    """

    __slots__ = ("by", "decision", "found", "is_open", "job", "pool", "routed_at", "timing_discarded")

    def __init__(self, job: Job, decision: Decision, routed_at: float, pool: Pool, by: object = None) -> None:
        self.job = job
        self.decision = decision
        self.routed_at = routed_at
        self.pool = pool  # the very instance that was counted up, so that it is the one counted down
        self.by = by
        self.found = pool.in_flight
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
    """What a pool said of itself with an answer; None for what it did not say.

    at: when it did. queue_depth: requests left there. served, busy: services done and seconds of them, since it began;
    of all servers together. utilization: share of its servers at work. rps: requests a second that it serves.
    """

    at: float
    queue_depth: float | None = None
    served: float | None = None
    busy: float | None = None
    utilization: float | None = None
    rps: float | None = None


@dataclass(frozen=True, slots=True)
class Completion:
    """The end of a ticket.

    service_time: seconds of work, None where it is not known or must not teach. accepted: whether the pool took the
    request; None if that is not known. retry_after: seconds for which one that did not asked to be left alone.
    teaches: the time in flight is the pool's own work on a request that it served.
    first_byte_at: when the head of the pool's response arrived; None if none arrived, and in simulations.
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
