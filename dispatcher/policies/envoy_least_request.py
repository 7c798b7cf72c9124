"""envoy_least_request: Envoy's LEAST_REQUEST with equal weights; the emptier of two drawn with replacement.

Rule: d draws with replacement (so it may be twice the same pool), the fewest requests win, ties go to the first drawn.
Source: Envoy, least_request_lb.cc. Limit: blind to speed, and one in n times to load as well.
"""

from __future__ import annotations

from random import Random

from dispatcher.core.policy import FleetView
from dispatcher.core.types import Decision, Job
from dispatcher.errors import ConfigError
from dispatcher.policies.base import BasePolicy

MOST = 1000  # draws


class EnvoyLeastRequest(BasePolicy):
    """The emptier of two pools drawn with replacement. choice_count: how many draws, from 1 to 1000."""

    def __init__(self, *, rng: Random, choice_count: int = 2) -> None:
        super().__init__(rng=rng)
        if not 1 <= choice_count <= MOST:
            raise ConfigError(f"choice_count must be from 1 to {MOST}, not {choice_count}")
        self.choice_count = choice_count

    def choose(self, job: Job, fleet: FleetView, now: float) -> Decision:
        self.episode.arrived(now)
        drawn = [pool for _ in range(self.choice_count) for pool in self.draw(fleet.pools, 1)]
        return Decision(min(drawn, key=lambda pool: pool.in_flight).id)
