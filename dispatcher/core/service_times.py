"""Estimates service times from outside a pool: from when requests were sent and when their responses ended. PURE.

The pool is modelled as one FCFS queue with c servers. `ServiceTimeEstimator` gives every instant in which a server was
busy to exactly one request. Over a busy period the estimates therefore add up to the busy time, whatever the true order
of service. The number of services divided by the sum of their times is then right when the pool is empty, even if the
pool shares its processor among requests.

The time between the sending of a request and its response contains its service and an overhead o: the network and the
programs at both ends. A request that waits for its predecessor shows no overhead, because both ends of its service are
seen equally late. A request that finds an idle server shows all of it. So a service is taken to begin at
max(end of the predecessor, arrival + o), and o is learned from the shift between the two kinds (`Overhead`). Until
there are enough observations of both kinds o is 0, and the first few estimates are too long by it.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict, deque
from collections.abc import Hashable
from typing import NamedTuple

WINDOW = 2048  # observations of each kind from which the overhead is learned
MIN_OBSERVATIONS = 8  # of each kind, before any overhead is subtracted
UPDATE_INTERVAL = 32  # observations between two updates of the overhead
CAP_QUANTILE = 0.25  # of the busy kind: only what lies below it is compared
HALVINGS = 20


class SortedWindow:
    """The last `WINDOW` observations, in order of size."""

    __slots__ = ("_recent", "ordered")

    def __init__(self) -> None:
        self._recent: deque[float] = deque()
        self.ordered: list[float] = []

    def learn_one(self, x: float) -> None:
        self._recent.append(x)
        insort(self.ordered, x)
        if len(self.ordered) > WINDOW:
            del self.ordered[bisect_left(self.ordered, self._recent.popleft())]

    def capped_mean(self, cap: float, shift: float) -> float:
        """Return the mean of min(x − shift, cap)."""
        below = bisect_left(self.ordered, cap + shift)
        n = len(self.ordered)
        return (sum(self.ordered[:below]) - below * shift + (n - below) * cap) / n


class Overhead:
    """Estimates the overhead, from services that began on an idle server and services that began on a busy one.

    Both kinds have the same distribution, apart from a shift: the overhead. It is estimated as the shift that makes the
    means of min(x, cap) equal, where the cap is a low quantile of the busy kind. For an exponential distribution this
    is several times as exact as the shift of the plain means, whose noise comes from the long services. For a fixed
    service time it is exact. It averages over the jitter of the overhead, which a shift of the minima would not.

    seconds: the present estimate.
    """

    __slots__ = ("_busy", "_idle", "_until_update", "seconds")

    def __init__(self) -> None:
        self._idle = SortedWindow()
        self._busy = SortedWindow()
        self._until_update = UPDATE_INTERVAL
        self.seconds = 0.0

    def learn_one(self, x: float, began_idle: bool) -> None:
        """Take in one service of x seconds, its overhead included. began_idle: its server was idle before it."""
        (self._idle if began_idle else self._busy).learn_one(x)
        self._until_update -= 1
        if not self._until_update:
            self._until_update = UPDATE_INTERVAL
            self._update()

    def _update(self) -> None:
        idle, busy = self._idle.ordered, self._busy.ordered
        if min(len(idle), len(busy)) < MIN_OBSERVATIONS:
            return
        cap = busy[int(CAP_QUANTILE * len(busy))]
        target = self._busy.capped_mean(cap, 0.0)
        low, high = 0.0, idle[-1]
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            if self._idle.capped_mean(cap, middle) >= target * (1 - 1e-9):
                low = middle
            else:
                high = middle
        self.seconds = low


class _Start(NamedTuple):
    """The beginning of a service.

    since: when the service began, as seen from here.
    arrival: when the request had been sent, without the overhead.
    began_idle: it began on an idle server. None if this is not certain: the server became idle before the request got
    there but we could not know it yet, or another request overtook this one.
    """

    since: float
    arrival: float
    began_idle: bool | None


class ServiceTimeEstimator:
    """Estimates the service times of one pool of `servers` servers.

    >>> estimator = ServiceTimeEstimator(servers=1)
    >>> estimator.arrived("first", 0.0); estimator.arrived("second", 1.0)
    >>> estimator.departed("first", 3.0, served=True), estimator.departed("second", 4.5, served=True)
    (3.0, 1.5)
    """

    __slots__ = ("_discard_before", "_discard_next", "_running", "_waiting", "overhead", "servers")

    def __init__(self, servers: int) -> None:
        self.servers = servers
        self._running: dict[Hashable, _Start] = {}
        self._waiting: OrderedDict[Hashable, float] = OrderedDict()  # request -> arrival
        self._discard_before = float("-inf")  # services of requests that arrived until then are not estimated
        self._discard_next = 0  # nor are so many services that end next
        self.overhead = Overhead()

    def arrived(self, key: Hashable, now: float) -> None:
        """The whole request has been sent. The pool cannot begin its work before that."""
        if len(self._running) < self.servers:
            self._running[key] = _Start(now + self.overhead.seconds, now, began_idle=True)
        else:
            self._waiting[key] = now

    def departed(self, key: Hashable, now: float, served: bool, known: bool = False) -> float | None:
        """Return the service time of a request that has ended, or None if it cannot be estimated.

        served: the pool did the whole work. If not, it may still be working on the request without our knowledge.
        So nothing is learned from the requests that were there at that moment, nor from the next `servers` that are
        served: under FCFS whatever these waited for has ended when they end.
        known: the service time is known already, and only the model of the queue is updated.
        """
        start = self._leave(key, now, served)
        if not served:
            self._discard_before, self._discard_next = now, self.servers
        if start is None or not served or start.arrival <= self._discard_before:
            return None
        if self._discard_next:
            self._discard_next -= 1
            return None
        if known:
            return None
        if start.began_idle is not None:
            self.overhead.learn_one(now - (start.arrival if start.began_idle else start.since), start.began_idle)
        return max(0.0, now - start.since)

    def discard(self, key: Hashable, now: float) -> None:
        """Estimate no service time for this request, nor for those that are at the pool with it now."""
        self._leave(key, now, served=False)
        self._discard_before = now

    def _leave(self, key: Hashable, now: float, served: bool) -> _Start | None:
        """Remove the request and let the next one begin. Return the start of the service that has ended with it."""
        start = self._running.pop(key, None)
        if start is not None:
            if self._waiting:
                following, sent_at = self._waiting.popitem(last=False)
                arrival = sent_at + self.overhead.seconds
                began_idle = False if now >= arrival else None
                self._running[following] = _Start(max(now, arrival), sent_at, began_idle)
            return start
        sent_at_or_none = self._waiting.pop(key, None)
        if sent_at_or_none is None or not served:
            return None
        # It overtook a request that the model has in service. It gets the time of that service, which begins anew.
        oldest = next(iter(self._running))
        overtaken = self._running[oldest]
        self._running[oldest] = overtaken._replace(since=now, began_idle=None)
        return _Start(overtaken.since, sent_at_or_none, began_idle=None)
