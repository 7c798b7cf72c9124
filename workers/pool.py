"""What the kinds of stand-in pools have in common: the call that serves a request, and what is counted. PURE."""

from __future__ import annotations

import abc

from workers.distributions import ServiceTime
from workers.scheduling.contexts import Logistic
from workers.scheduling.logistic import Context

SLACK = 1e-6  # seconds by which a loop may call too soon
RATE_JOBS = 200  # requests that the rate is an average of
LONGEST_GAP = 20  # mean gaps that one counts for at most, so that an hour of silence is not averaged away for long


class QueueFullError(Exception):
    """The pool holds as many requests as it may."""


class Pool(abc.ABC):
    """Serves requests in real time.

    served: requests that ended. busy_time: their work together, seconds. dropped: those that left while they waited.
    begun: requests that began service. waited, longest_wait: seconds before that, together and of one. rate: ends a
    second, over about the last `RATE_JOBS`.
    """

    def __init__(self) -> None:
        self.served = self.dropped = self.begun = 0
        self.busy_time = self.waited = self.longest_wait = 0.0
        self.rate = 0.0
        self._ended_at: float | None = None

    @abc.abstractmethod
    async def serve(self, x: Context = ()) -> float:
        """Serve one request and return its work, seconds. x: its context. Raises QueueFullError."""

    @property
    @abc.abstractmethod
    def backlog(self) -> int:
        """Requests in service and waiting."""

    @property
    @abc.abstractmethod
    def until_room(self) -> float:
        """Seconds until the next request can begin or join."""

    @property
    @abc.abstractmethod
    def utilization(self) -> float:
        """Share of the servers at work, 0 to 1."""

    def count_begun(self, waited: float) -> None:
        """A request begins service after so many seconds."""
        self.begun += 1
        self.waited += waited
        self.longest_wait = max(self.longest_wait, waited)

    def count_end(self, now: float, work: float) -> None:
        """A request ends now. The rate is one over the mean time between ends, in which older gaps fade."""
        self.served += 1
        self.busy_time += work
        if self._ended_at is not None:
            weight = max(1 / RATE_JOBS, 1 / self.served)
            before = 1 / self.rate if self.rate else now - self._ended_at
            passed = min(now - self._ended_at, LONGEST_GAP * before) if self.served > 10 else now - self._ended_at
            gap = before + weight * (passed - before)
            self.rate = 1 / gap if gap > 0 else self.rate
        self._ended_at = now


def drawn(law: ServiceTime, x: Context, at: float) -> float:
    """The work of a request with context x, seconds, under the law as it is at this instant."""
    return law.service(x) if isinstance(law, Logistic) else law.sample(at)
