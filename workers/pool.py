"""What both kinds of stand-in pools have in common: the call that serves a request, and the counts. PURE.

The kinds are `queue_pool.QueuePool`, where each request has a server to itself, and `sharing_pool.SharingPool`, where
all requests in service share the servers.
"""

from __future__ import annotations

import abc

from workers.distributions import ServiceTime
from workers.scheduling.contexts import Logistic
from workers.scheduling.logistic import Context

TIMER_SLACK_SECONDS = 1e-6  # an event loop may call a timer this much too early
RATE_REQUESTS = 200  # the rate is an average over about so many requests
MAX_GAP_RATIO = 20  # a gap counts as at most so many mean gaps
MIN_SERVED_FOR_CUT = 10  # with fewer requests the mean is too rough to cut gaps by it


class QueueFullError(Exception):
    """The pool holds as many requests as it may."""


class Pool(abc.ABC):
    """Serves requests in real time.

    served: number of requests that ended.
    busy_time: the work of these requests together, in seconds.
    dropped: number of requests whose client left while they waited.
    begun: number of requests that began service.
    waited, longest_wait: seconds before service began, of all requests together and of the slowest one.
    rate: requests that end per second, averaged over about the last `RATE_REQUESTS`.
    """

    def __init__(self) -> None:
        self.served = self.dropped = self.begun = 0
        self.busy_time = self.waited = self.longest_wait = 0.0
        self.rate = 0.0
        self._last_end: float | None = None

    @abc.abstractmethod
    async def serve(self, context: Context = ()) -> float:
        """Serve one request and return its work, in seconds.

        context: what is known of the work of the request, where services depend on it.

        Raises QueueFullError.
        """

    @property
    @abc.abstractmethod
    def backlog(self) -> int:
        """The number of requests in service and waiting."""

    @property
    @abc.abstractmethod
    def until_room(self) -> float:
        """The seconds until the next request can begin or join."""

    @property
    @abc.abstractmethod
    def utilization(self) -> float:
        """The share of the servers that work, from 0 to 1."""

    def count_begun(self, waited: float) -> None:
        """Count a request that begins service after it waited so many seconds."""
        self.begun += 1
        self.waited += waited
        self.longest_wait = max(self.longest_wait, waited)

    def count_end(self, now: float, work: float) -> None:
        """Count a request that ends now, and update the rate: one over an average of the gaps between ends."""
        self.served += 1
        self.busy_time += work
        if self._last_end is not None:
            gap = now - self._last_end
            # At first all gaps have the same weight; later the weight of a gap fades exponentially.
            weight = max(1 / RATE_REQUESTS, 1 / self.served)
            mean_gap = 1 / self.rate if self.rate else gap
            # After an hour of silence the rate must recover within minutes, so one gap may not dominate the average.
            counted = min(gap, MAX_GAP_RATIO * mean_gap) if self.served > MIN_SERVED_FOR_CUT else gap
            mean_gap += weight * (counted - mean_gap)
            self.rate = 1 / mean_gap if mean_gap > 0 else self.rate  # all requests so far may have ended at one instant
        self._last_end = now


def draw_work(law: ServiceTime, context: Context, now: float) -> float:
    """Draw the work of a request with this context, in seconds, under the law as it is at this instant."""
    return law.service(context) if isinstance(law, Logistic) else law.sample(now)
