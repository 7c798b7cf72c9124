"""What a service time is, seen from outside a pool. Pure: arrivals and departures in, seconds of work out.

The pool is taken as FCFS with c servers. `ServiceClock` gives every instant in which a server was busy to exactly one
request, so over a busy period the observed times add up to the busy time whatever the true order of service; number
of services ÷ sum of times is then right at empty instants even for a pool that shares its processor.

Between a request's leaving here and its coming back lie its service and an overhead o, the wire and the programs at
both ends. A request that waits for its predecessor shows none of it: both ends of its service are seen equally late.
One that comes to an idle pool shows all of it. So a service is taken to begin at max(predecessor's end, arrival + o),
and o is learned from the shift between the two kinds (`Overhead`). Until enough of both kinds were seen o is 0, and
the first few estimates are too slow by it.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict, deque
from collections.abc import Hashable
from typing import NamedTuple

WINDOW = 2048  # observations of each kind that the overhead is learned from
ENOUGH = 8  # of each kind, before anything is corrected
EVERY = 32  # observations between two looks at them
SHARE = 0.25  # the part of the observations, from below, that is compared
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
        """The mean of min(x − shift, cap)."""
        below = bisect_left(self.ordered, cap + shift)
        n = len(self.ordered)
        return (sum(self.ordered[:below]) - below * shift + (n - below) * cap) / n


class Overhead:
    """The shift between services seen from an idle pool and from a busy one, which draw from one law.

    It is the shift that makes the means of min(x, cap) equal, the cap being a low quantile of the busy kind. For an
    exponential law that is several times as exact as the shift of the means, whose noise is all in the long services;
    it is exact for a fixed law too, and averages over the jitter of the overhead where a shift of minima would not.
    """

    __slots__ = ("_busy", "_idle", "_until_look", "seconds")

    def __init__(self) -> None:
        self._idle = SortedWindow()
        self._busy = SortedWindow()
        self._until_look = EVERY
        self.seconds = 0.0

    def learn_one(self, x: float, began_idle: bool) -> None:
        (self._idle if began_idle else self._busy).learn_one(x)
        self._until_look -= 1
        if not self._until_look:
            self._until_look = EVERY
            self._look()

    def _look(self) -> None:
        idle, busy = self._idle.ordered, self._busy.ordered
        if min(len(idle), len(busy)) < ENOUGH:
            return
        cap = busy[int(SHARE * len(busy))]
        wanted = self._busy.capped_mean(cap, 0.0)
        low, high = 0.0, idle[-1]
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            if self._idle.capped_mean(cap, middle) >= wanted * (1 - 1e-9):
                low = middle
            else:
                high = middle
        self.seconds = low


class _Start(NamedTuple):
    """since: when the service began, as it looks from here. arrival: when the request was there, the overhead left out.
    began_idle: on a free server; None where that is not sure: its server came free before it got there, but we could
    not know yet, or another request overtook it."""

    since: float
    arrival: float
    began_idle: bool | None


class ServiceClock:
    """Rebuilds the services of one pool of `servers` servers.

    >>> clock = ServiceClock(servers=1)
    >>> clock.arrived("first", 0.0); clock.arrived("second", 1.0)
    >>> clock.departed("first", 3.0, served=True), clock.departed("second", 4.5, served=True)
    (3.0, 1.5)
    """

    __slots__ = ("_blind_before", "_blind_for", "_running", "_waiting", "overhead", "servers")

    def __init__(self, servers: int) -> None:
        self.servers = servers
        self._running: dict[Hashable, _Start] = {}
        self._waiting: OrderedDict[Hashable, float] = OrderedDict()  # key -> arrival
        self._blind_before = float("-inf")
        self._blind_for = 0
        self.overhead = Overhead()

    def arrived(self, key: Hashable, now: float) -> None:
        """The whole request has been sent; before that the pool cannot begin."""
        if len(self._running) < self.servers:
            self._running[key] = _Start(now + self.overhead.seconds, now, began_idle=True)
        else:
            self._waiting[key] = now

    def departed(self, key: Hashable, now: float, served: bool, told: bool = False) -> float | None:
        """The request's service time; None if it was not served, if it never arrived, or if a failure makes it a guess.

        told: nothing need be worked out. After a failed or cancelled request the pool may be busy with it yet, unseen:
        so nothing is learned from what was there at that moment, nor from the next `servers` requests that are served:
        under FCFS whatever they waited for is done when they are.
        """
        start = self._leave(key, now, served)
        if not served:
            self._blind_before, self._blind_for = now, self.servers
        if start is None or not served or start.arrival <= self._blind_before:
            return None
        if self._blind_for:
            self._blind_for -= 1
            return None
        if told:
            return None
        if start.began_idle is not None:
            self.overhead.learn_one(now - (start.arrival if start.began_idle else start.since), start.began_idle)
        return max(0.0, now - start.since)

    def forget(self, key: Hashable, now: float) -> None:
        """From now on this request's end will tell nothing of the pool, nor will the ends of those there with it."""
        self._leave(key, now, served=False)
        self._blind_before = now

    def _leave(self, key: Hashable, now: float, served: bool) -> _Start | None:
        """Take the request out and let the next one begin; the start of the service that ends with it."""
        start = self._running.pop(key, None)
        if start is not None:
            if self._waiting:
                following, came = self._waiting.popitem(last=False)
                arrival = came + self.overhead.seconds
                self._running[following] = _Start(max(now, arrival), came, False if now >= arrival else None)
            return start
        came_at = self._waiting.pop(key, None)
        if came_at is None or not served:
            return None
        # It overtook the one we took to be in service: it gets that one's time, which begins anew.
        oldest = next(iter(self._running))
        overtaken = self._running[oldest]
        self._running[oldest] = overtaken._replace(since=now, began_idle=None)
        return _Start(overtaken.since, came_at, began_idle=None)
