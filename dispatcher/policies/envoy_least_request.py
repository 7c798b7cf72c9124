"""envoy_least_request: Envoy's LEAST_REQUEST with equal weights; the emptier of two drawn with replacement.

Rule: d pools are drawn with replacement, so one pool may be drawn twice. The one with the fewest requests gets the
request; at a tie it is the first one drawn. Source: Envoy, least_request_lb.cc. Limits: the rule does not use the
speed. With n pools and two draws, it does not use the load either in one decision out of n.
"""

from __future__ import annotations

from random import Random

from dispatcher.core.policy import BasePolicy, FleetView
from dispatcher.core.types import Decision, Job
from dispatcher.errors import ConfigError

MAX_DRAWS = 1000


class EnvoyLeastRequest(BasePolicy):
    """The emptier of two pools drawn with replacement.

    choice_count: the number of draws, from 1 to 1000.
    """

    def __init__(self, *, rng: Random, choice_count: int = 2) -> None:
        super().__init__(rng=rng)
        if not 1 <= choice_count <= MAX_DRAWS:
            raise ConfigError(f"choice_count must be from 1 to {MAX_DRAWS}, not {choice_count}")
        self.choice_count = choice_count

    def choose(self, job: Job, fleet: FleetView, now: float) -> Decision:
        self.episode.arrived(now)
        # One draw at a time, because `draw` is without replacement.
        drawn = [pool for _ in range(self.choice_count) for pool in self.draw(fleet.pools, 1)]
        return Decision(min(drawn, key=lambda pool: pool.in_flight).id)
