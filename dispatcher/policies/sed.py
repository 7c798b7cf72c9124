"""sed: Shortest Expected Delay with the true rates; the oracle that regret compares with.

Rule: join argmin_i (q_i + 1)/μ_i. μ_i -> `true_rate` of the pool. Source: [LASED] *Learning Adaptive SED for
heterogeneous load balancing*, section on SED(r). Limits: the policy does not start if a true rate is missing. It
minimises the delay of each request by itself, not the mean over all requests.
"""

from __future__ import annotations

from random import Random

from dispatcher.core.policy import FleetView, PoolView
from dispatcher.core.types import Added, Change
from dispatcher.errors import ConfigError
from dispatcher.policies.base import ScoredPolicy, check_exponent


class Sed(ScoredPolicy):
    """Shortest expected delay, true rates given (the oracle).

    exponent: e in (q + 1)/μ^e, above 0 and at most 1. e = 1 is SED, which minimises the delay of each request by
        itself. e = 0.7 keeps slow pools busier, and the mean over all requests is then close to the least possible.
        With c servers the delay is multiplied by μ^(1 − e). The exponent is our own (`docs/beyond-the-paper.md`);
        regret is always measured with e = 1.
    """

    def __init__(self, *, rng: Random, ties: str = "first", exponent: float = 1.0) -> None:
        super().__init__(rng=rng, ties=ties)
        self.exponent = check_exponent(exponent)

    def speed(self, pool: PoolView) -> float:
        return self.specs[pool.id].true_rate or 0.0  # `adapt` refuses a pool without one

    def adapt(self, change: Change, fleet: FleetView) -> None:
        if isinstance(change, Added) and change.spec.true_rate is None:
            raise ConfigError(
                f"pool {change.spec.id!r}: policy sed needs true_rate; set it, or take lased, which learns the rate"
            )
        super().adapt(change, fleet)
