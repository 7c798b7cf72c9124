"""The one argmin of the house, with its tie rule. Every policy that compares scores goes through here.

Scores within a relative 1e-9 are equal: they are quotients of small integers and rates, and rounding must not decide.
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
    """The rule of this name; ConfigError if there is none."""
    for rule in TIE_RULES:
        if rule == ties:
            return rule
    raise ConfigError(f"ties must be one of {', '.join(TIE_RULES)}, not {ties!r}")


def equals(pools: Sequence[PoolView], scores: Sequence[float]) -> list[PoolView]:
    """All pools of the least score, in fleet order. PolicyError if a score is not a number."""
    low = min(scores)
    limit = low + 2 * TOLERANCE * abs(low)
    found = [pool for pool, score in zip(pools, scores, strict=True) if score <= limit]
    if not found:
        raise PolicyError(f"a score is not a number: {list(scores)}")
    return found


def argmin(
    pools: Sequence[PoolView],
    scores: Sequence[float] | Floats,
    ties: Ties = "first",
    speed: Callable[[PoolView], float] | None = None,
    rng: Random | None = None,
) -> PoolView:
    """The pool of the least score.

    pools, scores: of equal length n ≥ 1, in fleet order. speed: the rate by which `slowest` and `fastest` choose
    among equals; rng: the dice of `random`. PolicyError if a score is not a number.
    """
    if isinstance(scores, np.ndarray):
        if ties == "first":
            return _first(pools, scores)
        scores = cast(list[float], scores.tolist())
    if ties == "first":  # without a list: it is on every request's way
        low = min(scores)
        limit = low + 2 * TOLERANCE * abs(low)
        for pool, score in zip(pools, scores, strict=True):
            if score <= limit:
                return pool
    tied = equals(pools, scores)
    if ties == "random" and rng is not None:
        return tied[int(rng.random() * len(tied))] if len(tied) > 1 else tied[0]
    if ties == "slowest" and speed is not None:
        return min(tied, key=speed)
    if ties == "fastest" and speed is not None:
        return max(tied, key=speed)
    return tied[0]


def _first(pools: Sequence[PoolView], scores: Floats) -> PoolView:
    """`argmin` over many at once."""
    low = scores.min()
    least = scores <= low + 2 * TOLERANCE * abs(low)
    i = int(least.argmax())
    if not least[i]:
        raise PolicyError("a score is not a number")
    return pools[i]


class Turns:
    """Smooth weighted round robin: every pool gains its weight, the richest is next and pays the sum of all.

    weight: of a pool's id, positive.

    >>> from dispatcher.core.fleet import Pool
    >>> from dispatcher.core.types import PoolSpec
    >>> turns, pools = Turns({"a": 5.0, "b": 1.0, "c": 1.0}.__getitem__), [Pool(PoolSpec(name)) for name in "abc"]
    >>> "".join(turns.next(pools).id for _ in range(7))
    'aabacaa'
    """

    def __init__(self, weight: Callable[[str], float]) -> None:
        self._weight = weight
        self._credit: dict[str, float] = {}

    def next(self, pools: Sequence[PoolView]) -> PoolView:
        """The pool whose turn it is among these."""
        total = 0.0
        for pool in pools:
            weight = self._weight(pool.id)
            total += weight
            self._credit[pool.id] = self._credit.get(pool.id, 0.0) + weight
        chosen = max(pools, key=lambda pool: self._credit[pool.id])
        self._credit[chosen.id] -= total
        return chosen

    def forget(self, pool: str) -> None:
        """A pool has left."""
        self._credit.pop(pool, None)
