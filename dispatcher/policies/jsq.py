"""jsq: Join the Shortest Queue.

Rule: argmin_i q_i. Source: ALOHA-old; Winston, *Optimality of the shortest line discipline*, 1977. Limit: the rule does
not use the speed. A slow pool gets as many requests as a fast one until the queues differ.
"""

from __future__ import annotations

from dispatcher.core.policy import PoolView
from dispatcher.policies.base import ScoredPolicy


class Jsq(ScoredPolicy):
    """The pool with the fewest requests in flight."""

    def score(self, pool: PoolView, now: float) -> float:
        return pool.in_flight
