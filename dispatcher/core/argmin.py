"""The choice of the least score, with its tie rules. Every policy that compares scores uses this module.

Scores within a relative 1e-9 are equal. Scores are quotients of small integers and rates, and a rounding error must not
decide between them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Literal, cast, get_args

import numpy as np

from dispatcher.core.expected_delay import Floats
from dispatcher.core.policy import PoolView
from dispatcher.errors import ConfigError, PolicyError

Ties = Literal["first", "random", "slowest", "fastest"]
TIE_RULES: tuple[Ties, ...] = get_args(Ties)
TOLERANCE = 1e-9


def check_ties(ties: str) -> Ties:
    """Return the tie rule of this name. Raises ConfigError if there is none."""
    for rule in TIE_RULES:
        if rule == ties:
            return rule
    raise ConfigError(f"ties must be one of {', '.join(TIE_RULES)}, not {ties!r}")


def minimal(pools: Sequence[PoolView], scores: Sequence[float]) -> list[PoolView]:
    """Return all pools of the least score, in fleet order. Raises PolicyError if a score is not a number."""
    low = min(scores)
    limit = low + 2 * TOLERANCE * abs(low)
    tied = [pool for pool, score in zip(pools, scores, strict=True) if score <= limit]
    if not tied:
        raise PolicyError(f"a score is not a number: {list(scores)}")
    return tied


def argmin(
    pools: Sequence[PoolView],
    scores: Sequence[float] | Floats,
    ties: Ties = "first",
    speed: Callable[[PoolView], float] | None = None,
    rng: Random | None = None,
) -> PoolView:
    """Return the pool of the least score.

    pools, scores: of equal length n ≥ 1, in fleet order.
    speed: the rate by which `slowest` and `fastest` decide between equal scores.
    rng: the random generator of the rule `random`.
    Raises PolicyError if a score is not a number.
    """
    if isinstance(scores, np.ndarray):
        if ties == "first":
            return _first(pools, scores)
        scores = cast(list[float], scores.tolist())
    if ties == "first":  # the usual rule does not build a list, because every request passes here
        low = min(scores)
        limit = low + 2 * TOLERANCE * abs(low)
        for pool, score in zip(pools, scores, strict=True):
            if score <= limit:
                return pool
    tied = minimal(pools, scores)
    if ties == "random" and rng is not None:
        return tied[int(rng.random() * len(tied))] if len(tied) > 1 else tied[0]
    if ties == "slowest" and speed is not None:
        return min(tied, key=speed)
    if ties == "fastest" and speed is not None:
        return max(tied, key=speed)
    return tied[0]


def _first(pools: Sequence[PoolView], scores: Floats) -> PoolView:
    """Return what `argmin` returns with the rule `first`, for an array of scores."""
    low = scores.min()
    least = scores <= low + 2 * TOLERANCE * abs(low)
    i = int(least.argmax())
    if not least[i]:
        raise PolicyError("a score is not a number")
    return pools[i]


class SmoothWeightedRoundRobin:
    """Smooth weighted round robin. Every pool gains its weight; the pool with the most credit is next and pays the sum.

    weight: a function that returns the positive weight of a pool, given its name.

    >>> from dispatcher.core.fleet import Pool
    >>> from dispatcher.core.types import PoolSpec
    >>> turns = SmoothWeightedRoundRobin({"a": 5.0, "b": 1.0, "c": 1.0}.__getitem__)
    >>> pools = [Pool(PoolSpec(name)) for name in "abc"]
    >>> "".join(turns.next(pools).id for _ in range(7))
    'aabacaa'
    """

    def __init__(self, weight: Callable[[str], float]) -> None:
        self._weight = weight
        self._credit: dict[str, float] = {}

    def next(self, pools: Sequence[PoolView]) -> PoolView:
        """Return the next one of these pools."""
        total = 0.0
        for pool in pools:
            weight = self._weight(pool.id)
            total += weight
            self._credit[pool.id] = self._credit.get(pool.id, 0.0) + weight
        chosen = max(pools, key=lambda pool: self._credit[pool.id])
        self._credit[chosen.id] -= total
        return chosen

    def remove(self, pool: str) -> None:
        """Drop the credit of a pool that has left."""
        self._credit.pop(pool, None)
