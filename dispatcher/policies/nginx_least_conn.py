"""nginx_least_conn: NGINX's `least_conn`; the fewest requests per weight, ties by smooth weighted round robin.

Rule: argmin q_i/w_i, where w_i is the weight (`guess` times servers). Source: NGINX,
ngx_http_upstream_least_conn_module.c. Limits: an idle pool ties with every other idle pool, however slow it is, and the
weights are fixed.
"""

from __future__ import annotations

from random import Random

from dispatcher.core.argmin import SmoothWeightedRoundRobin, minimal
from dispatcher.core.policy import FleetView, PoolView
from dispatcher.core.types import Change, Removed
from dispatcher.policies.base import ScoredPolicy


class NginxLeastConn(ScoredPolicy):
    """Least q/w as in NGINX; ties by weighted turns."""

    def __init__(self, *, rng: Random) -> None:
        super().__init__(rng=rng)
        self._turns = SmoothWeightedRoundRobin(self.weight)

    def score(self, pool: PoolView, now: float) -> float:
        return pool.in_flight / self.weight(pool.id)

    def best(self, fleet: FleetView, now: float) -> PoolView:
        scores = [self.score(pool, now) for pool in fleet.pools]
        tied = minimal(fleet.pools, scores)
        # Credits change at ties only, as in NGINX.
        return tied[0] if len(tied) == 1 else self._turns.next(tied)

    def adapt(self, change: Change, fleet: FleetView) -> None:
        if isinstance(change, Removed):
            self._turns.remove(change.pool)
        super().adapt(change, fleet)
