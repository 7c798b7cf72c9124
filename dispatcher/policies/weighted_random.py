"""weighted_random: a pool at random, in proportion to its weight (its `guess` times its servers).

Rule: P(i) = w_i/Σ w_j. With true weights every pool has the same load, whatever the traffic. Limit: the rule does not
use the queues.
"""

from __future__ import annotations

from itertools import accumulate

from dispatcher.core.policy import BasePolicy, FleetView
from dispatcher.core.types import Decision, Job


class WeightedRandom(BasePolicy):
    """A pool at random, in proportion to guess × servers."""

    def choose(self, job: Job, fleet: FleetView, now: float) -> Decision:
        self.episode.arrived(now)
        weights = [self.weight(pool.id) for pool in fleet.pools]
        *sums, total = accumulate(weights)
        at = self.rng.random() * total
        i = sum(at >= below for below in sums)  # the last sum is left out, because rounding could lead beyond it
        return Decision(fleet.pools[i].id, probability=weights[i] / total)
