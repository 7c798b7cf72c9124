"""What an index policy would choose in each state of two pools, for a picture of its decisions.

The score of a pool depends on its own requests in flight only. So two columns of scores describe the whole plane.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from dispatcher.core.policy import Policy, PoolView
from dispatcher.core.regret import RegretMeter

LEAST_SIDE, MOST_SIDE = 12, 40  # counts that are shown of each pool
ROOM = 3  # counts beyond those of now


@runtime_checkable
class PoolScoring(Protocol):
    """An index policy. plane: the pool of the least score wins, and nothing else decides."""

    plane: bool

    def score(self, pool: PoolView, now: float) -> float: ...


@dataclass(slots=True)
class _At:
    """A pool as it would be with other requests in flight."""

    id: str
    servers: int
    in_flight: int


def decision_plane(policy: Policy, pools: Sequence[PoolView], meter: RegretMeter, now: float) -> dict[str, Any] | None:
    """The scores of the first two open pools with 0, 1, 2, … requests in flight, and those of the oracle.

    Returns pools (two names), scores (two lists of one length) and oracle (as scores; None unless the true rates are
    known). None if there are fewer than two pools or the policy has no scores.
    """
    if len(pools) < 2 or not isinstance(policy, PoolScoring) or not policy.plane:
        return None
    pair = pools[:2]
    side = max(LEAST_SIDE, min(MOST_SIDE, max(pool.in_flight for pool in pair) + ROOM))

    def columns(score: Callable[[PoolView], float]) -> list[list[float]]:
        return [[score(_At(pool.id, pool.servers, count)) for count in range(side)] for pool in pair]

    rates = meter.true_rates
    try:
        scores = columns(lambda pool: float(policy.score(pool, now)))
    except NotImplementedError:  # the policy scores all pools together
        return None
    return {
        "pools": [pool.id for pool in pair],
        "scores": scores,
        "oracle": columns(lambda pool: meter.true_costs([pool], rates)[0]) if rates is not None else None,
    }
