"""jiq: Join the Idle Queue. An idle pool at random if there is one, else any at random.

Source: Lu et al., *Join-Idle-Queue: A novel load balancing algorithm for dynamically scalable web services*, 2011. We
chose that a pool of c servers is idle while one of them is free. Limits: the rule does not use the speed, and it does
not use the queues once no pool is idle.
"""

from __future__ import annotations

from dispatcher.core.policy import BasePolicy, FleetView
from dispatcher.core.types import Decision, Job
from dispatcher.policies.base import has_room


class Jiq(BasePolicy):
    """An idle pool at random, else any."""

    def choose(self, job: Job, fleet: FleetView, now: float) -> Decision:
        self.episode.arrived(now)
        pools = [pool for pool in fleet.pools if has_room(pool)] or fleet.pools
        (pool,) = self.draw(pools, 1)
        return Decision(pool.id, probability=1 / len(pools))
