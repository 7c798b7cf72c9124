"""nq: Never Queue. An idle pool if there is one, the fastest first; else Shortest Expected Delay.

Rule: argmin 1/μ̂_i over the pools with a free server, else argmin (q_i + 1)/μ̂_i. Source: Shenker and Weinrib, *The
optimal control of heterogeneous queueing systems*, 1989, there with known rates. Two choices are our own: `greedy`
learns the rates, and a pool of c servers is idle while one of them is free. Every idle pool gets work, so all rates are
learned without forced trials. Limit: the rule also uses a pool so slow that waiting for a fast one would
be quicker.
"""

from __future__ import annotations

from dispatcher.core.policy import FleetView, PoolView
from dispatcher.policies.base import LearningPolicy, has_room


class Nq(LearningPolicy):
    """An idle pool, the fastest first; else the shortest expected delay on learned rates."""

    scores_decide = False  # a busy pool may have the least score

    def best(self, fleet: FleetView, now: float) -> PoolView:
        return self.least([pool for pool in fleet.pools if has_room(pool)] or fleet.pools, now)
