"""round_robin: each open pool in its turn.

Rule: the pool after the last one used, in fleet order. Limits: the rule uses neither load nor speed. It is unstable
when the share of the slowest pool exceeds its rate.
"""

from __future__ import annotations

from random import Random

from dispatcher.core.policy import BasePolicy, FleetView
from dispatcher.core.types import Decision, Job


class RoundRobin(BasePolicy):
    """Each pool in its turn."""

    def __init__(self, *, rng: Random) -> None:
        super().__init__(rng=rng)
        self._turn = -1

    def choose(self, job: Job, fleet: FleetView, now: float) -> Decision:
        self.episode.arrived(now)
        self._turn = (self._turn + 1) % len(fleet.pools)  # the number of pools may change between two calls
        return Decision(fleet.pools[self._turn].id)
