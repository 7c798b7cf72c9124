"""random: any open pool with equal probability.

Rule: P(i) = 1/n. Limits: as in `round_robin`, with more variance. It is the baseline for every other policy.
"""

from __future__ import annotations

from dispatcher.core.policy import BasePolicy, FleetView
from dispatcher.core.types import Decision, Job


class Random(BasePolicy):
    """A pool at random."""

    def choose(self, job: Job, fleet: FleetView, now: float) -> Decision:
        self.episode.arrived(now)
        (pool,) = self.draw(fleet.pools, 1)
        return Decision(pool.id, probability=1 / len(fleet.pools))
