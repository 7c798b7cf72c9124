"""haproxy_leastconn: HAProxy's `balance leastconn`; the fewest requests per weight, ties in turn.

Rule: least key, 0 if q_i = 0, else (q_i + 1)/w_i, w_i the weight (`guess` times servers). A pool is filed anew under
its key whenever a request joins or leaves it, behind those of the same key; so among equals the one filed first wins.
Source: HAProxy, lb_fwlc.c. Limit: an idle pool goes before a busy one however slow it is; weights are fixed.
"""

from __future__ import annotations

from itertools import count
from random import Random

from dispatcher.core.argmin import equals
from dispatcher.core.policy import FleetView, PoolView
from dispatcher.core.types import Added, Change, Completion
from dispatcher.policies.base import IndexPolicy


class HaproxyLeastconn(IndexPolicy):
    """Least (q+1)/w as in HAProxy, an idle pool first; ties in turn."""

    def __init__(self, *, rng: Random) -> None:
        super().__init__(rng=rng)
        self._filed: dict[str, int] = {}
        self._now = count()

    def score(self, pool: PoolView, now: float) -> float:
        return (pool.in_flight + 1) / self.weight(pool.id) if pool.in_flight else 0.0

    def best(self, fleet: FleetView, now: float) -> PoolView:
        scores = [self.score(pool, now) for pool in fleet.pools]
        pool = min(equals(fleet.pools, scores), key=lambda pool: self._filed[pool.id])
        self._filed[pool.id] = next(self._now)
        return pool

    def learn(self, done: Completion, fleet: FleetView) -> None:
        pool = done.ticket.decision.pool
        if pool in self._filed:
            self._filed[pool] = next(self._now)
        super().learn(done, fleet)

    def adapt(self, change: Change, fleet: FleetView) -> None:
        if isinstance(change, Added):
            self._filed[change.spec.id] = next(self._now)
        else:
            del self._filed[change.pool]
        super().adapt(change, fleet)
