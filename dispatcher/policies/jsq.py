"""jsq: Join the Shortest Queue.

Rule: argmin_i q_i. Source: ALOHA-old; Winston, *Optimality of the shortest line discipline*, 1977. Limit: blind to
speed; a slow pool gets as many as a fast one until queues differ.
"""

from __future__ import annotations

from dispatcher.core.policy import PoolView
from dispatcher.policies.base import IndexPolicy


class Jsq(IndexPolicy):
    """The pool with the fewest requests in flight."""

    def score(self, pool: PoolView, now: float) -> float:
        return pool.in_flight
