"""random: any open pool with equal probability.

Rule: P(i) = 1/n. Limits: as round_robin, with more variance; the baseline that every other policy must beat.
"""

from __future__ import annotations

from dispatcher.core.policy import FleetView
from dispatcher.core.types import Decision, Job
from dispatcher.policies.base import BasePolicy


class Random(BasePolicy):
    """A pool at random."""

    def choose(self, job: Job, fleet: FleetView, now: float) -> Decision:
        self.episode.arrived(now)
        (pool,) = self.draw(fleet.pools, 1)
        return Decision(pool.id, probability=1 / len(fleet.pools))
