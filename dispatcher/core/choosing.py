"""The one argmin of the house, with its tie rule. Every policy that compares scores goes through here.

Scores within a relative 1e-9 are equal: they are quotients of small integers and rates, and rounding must not decide.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Literal, get_args

from dispatcher.core.interfaces import PoolView
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


def argmin(
    pools: Sequence[PoolView],
    scores: Sequence[float],
    ties: Ties = "first",
    speed: Callable[[PoolView], float] | None = None,
    rng: Random | None = None,
) -> PoolView:
    """The pool of the least score.

    pools, scores: of equal length n ≥ 1, in fleet order. speed: the rate by which `slowest` and `fastest` choose
    among equals; rng: the dice of `random`. PolicyError if a score is not a number.
    """
    low = min(scores)
    limit = low + 2 * TOLERANCE * abs(low)
    if ties == "first":
        for pool, score in zip(pools, scores, strict=True):
            if score <= limit:
                return pool
    equals = [pool for pool, score in zip(pools, scores, strict=True) if score <= limit]
    if not equals:
        raise PolicyError(f"a score is not a number: {list(scores)}")
    if ties == "random" and rng is not None:
        return equals[int(rng.random() * len(equals))] if len(equals) > 1 else equals[0]
    if ties == "slowest" and speed is not None:
        return min(equals, key=speed)
    if ties == "fastest" and speed is not None:
        return max(equals, key=speed)
    return equals[0]
