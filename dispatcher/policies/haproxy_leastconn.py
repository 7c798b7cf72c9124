"""haproxy_leastconn: HAProxy's `balance leastconn`; the fewest requests per weight, ties in turn.

Rule: the least key wins. The key is 0 if q_i = 0, else (q_i + 1)/w_i, where w_i is the weight (`guess` times servers).
Whenever a request joins or leaves a pool, the pool moves behind the others of its key. So among equal keys the pool
wins that has not moved for longest. Source: HAProxy, lb_fwlc.c. Limits: an idle pool goes before a busy one however
slow it is, and the weights are fixed.
"""

from __future__ import annotations

from itertools import count
from random import Random

from dispatcher.core.argmin import minimal
from dispatcher.core.policy import FleetView, PoolView
from dispatcher.core.types import Added, Change, Completion
from dispatcher.policies.base import ScoredPolicy


class HaproxyLeastconn(ScoredPolicy):
    """Least (q+1)/w as in HAProxy, an idle pool first; ties in turn."""

    def __init__(self, *, rng: Random) -> None:
        super().__init__(rng=rng)
        self._moved_at: dict[str, int] = {}  # by pool, on a clock that counts moves
        self._moves = count()

    def score(self, pool: PoolView, now: float) -> float:
        return (pool.in_flight + 1) / self.weight(pool.id) if pool.in_flight else 0.0

    def best(self, fleet: FleetView, now: float) -> PoolView:
        scores = [self.score(pool, now) for pool in fleet.pools]
        # HAProxy keeps the pools in a tree, where a pool that moves goes behind its equals.
        pool = min(minimal(fleet.pools, scores), key=lambda pool: self._moved_at[pool.id])
        self._moved_at[pool.id] = next(self._moves)
        return pool

    def learn(self, done: Completion, fleet: FleetView) -> None:
        pool = done.ticket.decision.pool
        if pool in self._moved_at:
            self._moved_at[pool] = next(self._moves)
        super().learn(done, fleet)

    def adapt(self, change: Change, fleet: FleetView) -> None:
        if isinstance(change, Added):
            self._moved_at[change.spec.id] = next(self._moves)
        else:
            del self._moved_at[change.pool]
        super().adapt(change, fleet)
