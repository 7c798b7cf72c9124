"""What a policy that compares scores would choose in each state of two pools, for a picture of its decisions.

The score of a pool depends on its own requests in flight only. So two columns of scores describe the whole plane.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from dispatcher.core.policy import BasePolicy, PoolView
from dispatcher.core.regret import RegretMeter

MIN_SIDE, MAX_SIDE = 12, 40  # requests in flight of each pool that are shown
MARGIN = 3  # requests that are shown beyond the present number


@dataclass(slots=True)
class _HypotheticalPool:
    """A pool as it would be with another number of requests in flight."""

    id: str
    servers: int
    in_flight: int


def decision_plane(
    policy: BasePolicy, pools: Sequence[PoolView], meter: RegretMeter, now: float
) -> dict[str, Any] | None:
    """Return the scores of the first two open pools with 0, 1, 2, … requests in flight, and those of the oracle.

    The keys are pools (two names), scores (two lists of one length) and oracle (as scores; None unless the true rates
    are known). The result is None if there are fewer than two pools or if scores of single pools do not decide.
    """
    if len(pools) < 2 or not policy.scores_decide:
        return None
    pair = pools[:2]
    side = max(MIN_SIDE, min(MAX_SIDE, max(pool.in_flight for pool in pair) + MARGIN))

    def columns(score: Callable[[PoolView], float]) -> list[list[float]]:
        return [[score(_HypotheticalPool(pool.id, pool.servers, count)) for count in range(side)] for pool in pair]

    rates = meter.true_rates
    return {
        "pools": [pool.id for pool in pair],
        "scores": columns(lambda pool: float(policy.score(pool, now))),
        "oracle": columns(lambda pool: meter.true_costs([pool], rates)[0]) if rates is not None else None,
    }
