"""power_of_d: of d distinct pools drawn at random, the one with the fewest requests; ties as drawn.

Source: Mitzenmacher, *The power of two choices in randomized load balancing*, 2001. Limit: the rule does not use the
speed.
"""

from __future__ import annotations

from random import Random

from dispatcher.core.policy import BasePolicy, FleetView
from dispatcher.core.types import Decision, Job
from dispatcher.errors import ConfigError


class PowerOfD(BasePolicy):
    """The emptiest of d pools drawn at random.

    d: the number of pools drawn, at least 1.
    """

    def __init__(self, *, rng: Random, d: int = 2) -> None:
        super().__init__(rng=rng)
        if d < 1:
            raise ConfigError(f"d must be at least 1, not {d}")
        self.d = d

    def choose(self, job: Job, fleet: FleetView, now: float) -> Decision:
        self.episode.arrived(now)
        return Decision(min(self.draw(fleet.pools, self.d), key=lambda pool: pool.in_flight).id)
