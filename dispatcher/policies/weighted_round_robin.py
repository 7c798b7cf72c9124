"""weighted_round_robin: turns in proportion to the weight (`guess` times servers), spread as evenly as they can be.

Rule, NGINX's smooth weighted round robin: every pool gains its weight. The pool with the most credit is chosen and pays
the sum of all weights. Weights 5, 1, 1 give a a b a c a a. With equal weights it is round robin. Limit: the rule does
not use the load.
"""

from __future__ import annotations

from random import Random

from dispatcher.core.argmin import SmoothWeightedRoundRobin
from dispatcher.core.policy import BasePolicy, FleetView
from dispatcher.core.types import Change, Decision, Job, Removed


class WeightedRoundRobin(BasePolicy):
    """Turns in proportion to guess × servers, evenly spread."""

    def __init__(self, *, rng: Random) -> None:
        super().__init__(rng=rng)
        self._turns = SmoothWeightedRoundRobin(self.weight)

    def choose(self, job: Job, fleet: FleetView, now: float) -> Decision:
        self.episode.arrived(now)
        return Decision(self._turns.next(fleet.pools).id)

    def adapt(self, change: Change, fleet: FleetView) -> None:
        if isinstance(change, Removed):
            self._turns.remove(change.pool)
        super().adapt(change, fleet)
