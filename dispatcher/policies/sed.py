"""sed: Shortest Expected Delay with the true rates; the oracle that regret compares with.

Rule: join argmin_i (q_i + 1)/μ_i. μ_i -> `true_rate` of the pool. Source: [LASED] *Learning Adaptive SED for
heterogeneous load balancing*, section on SED(r). Limits: it refuses to start where a true rate is missing; it
minimises each request's own delay, not the mean over all.
"""

from __future__ import annotations

from dispatcher.core.policy import FleetView, PoolView
from dispatcher.core.types import Added, Change
from dispatcher.errors import ConfigError
from dispatcher.policies.base import SedPolicy


class Sed(SedPolicy):
    """Shortest expected delay, true rates given (the oracle)."""

    def speed(self, pool: PoolView) -> float:
        return self.specs[pool.id].true_rate or 0.0

    def adapt(self, change: Change, fleet: FleetView) -> None:
        if isinstance(change, Added) and change.spec.true_rate is None:
            raise ConfigError(
                f"pool {change.spec.id!r}: policy sed needs true_rate; set it, or take lased, which learns the rate"
            )
        super().adapt(change, fleet)
