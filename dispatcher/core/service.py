"""What a service time is, seen from outside a pool. Pure: arrivals and departures in, seconds of work out.

The pool is taken as FCFS with c servers. `ServiceClock` gives every instant in which a server was busy to exactly one
request, so over a busy period the observed times add up to the busy time whatever the true order of service; number
of services ÷ sum of times is then right at empty instants even for a pool that shares its processor.

A request that began on a busy pool carries no overhead: both ends of its service were seen equally late. One that
began on an idle pool carries the wire and the proxies. The two kinds draw from one law but for that shift, so a low
quantile of each tells the shift (the means would tell it too, but need some ten times as many observations for an
exponential law); a request that began idle is corrected by it. Until enough of both kinds were seen nothing is
corrected, and the first few estimates are too slow by the overhead.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict, deque

from dispatcher.core.fleet import Pool
from dispatcher.core.types import Ticket

QUANTILE = 0.05  # low, where the density of common laws is high; not so low that jitter decides
WINDOW = 4096
ENOUGH = 8


class QuantileWindow:
    """A quantile of the last `WINDOW` observations, exactly; 2 · 8 bytes each."""

    __slots__ = ("_ordered", "_recent")

    def __init__(self) -> None:
        self._recent: deque[float] = deque()
        self._ordered: list[float] = []

    def __len__(self) -> int:
        return len(self._ordered)

    def learn_one(self, x: float) -> None:
        self._recent.append(x)
        insort(self._ordered, x)
        if len(self._ordered) > WINDOW:
            del self._ordered[bisect_left(self._ordered, self._recent.popleft())]

    def predict_one(self) -> float:
        at = QUANTILE * (len(self._ordered) - 1)
        low = int(at)
        high = min(low + 1, len(self._ordered) - 1)
        return self._ordered[low] + (at - low) * (self._ordered[high] - self._ordered[low])


class Overhead:
    """What a request on an idle pool spends outside its service, learned from both kinds of request (seconds)."""

    __slots__ = ("_busy", "_idle")

    def __init__(self) -> None:
        self._idle = QuantileWindow()
        self._busy = QuantileWindow()

    def learn_one(self, x: float, began_idle: bool) -> None:
        (self._idle if began_idle else self._busy).learn_one(x)

    def predict_one(self) -> float:
        if min(len(self._idle), len(self._busy)) < ENOUGH:
            return 0.0
        return max(0.0, self._idle.predict_one() - self._busy.predict_one())


class ServiceClock:
    """Rebuilds the services of one pool.

    >>> from dispatcher.core.types import Decision, Job, PoolSpec
    >>> pool = Pool(PoolSpec("a")); clock = ServiceClock(pool)
    >>> first, second = (Ticket(Job(n), Decision("a"), 0.0, pool) for n in (1, 2))
    >>> clock.arrived(first, 0.0); clock.arrived(second, 1.0)
    >>> clock.departed(first, 3.0, True), clock.departed(second, 4.5, True)
    (3.0, 1.5)
    """

    __slots__ = ("_blind_before", "_overhead", "_pool", "_running", "_waiting")

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._running: dict[Ticket, tuple[float, bool]] = {}  # ticket -> (since, began on an idle server)
        self._waiting: OrderedDict[Ticket, None] = OrderedDict()
        self._overhead = Overhead()
        self._blind_before = float("-inf")

    def arrived(self, ticket: Ticket, now: float) -> None:
        if len(self._running) < self._pool.servers:
            self._running[ticket] = (now, True)
        else:
            self._waiting[ticket] = None

    def departed(self, ticket: Ticket, now: float, served: bool) -> float | None:
        """The ticket's service time; None if it was not served, or if a failure makes it a guess.

        After a failed or cancelled request the pool may still be busy with it, unseen: whatever was in flight on the
        pool at that moment gives no observation.
        """
        raw, began_idle = self._leave(ticket, now, served)
        if not served:
            self._blind_before = now
            return None
        if raw is None or ticket.routed_at <= self._blind_before:
            return None
        self._overhead.learn_one(raw, began_idle)
        return max(0.0, raw - self._overhead.predict_one()) if began_idle else raw

    def _leave(self, ticket: Ticket, now: float, served: bool) -> tuple[float | None, bool]:
        started = self._running.pop(ticket, None)
        if started is None:
            del self._waiting[ticket]
            if not served:
                return None, False
            # It overtook the one we took to be in service: it gets that one's time, which begins anew.
            oldest = next(iter(self._running))
            started = self._running[oldest]
            self._running[oldest] = (now, False)
            return now - started[0], started[1]
        if self._waiting:
            self._running[self._waiting.popitem(last=False)[0]] = (now, False)
        return now - started[0], started[1]
