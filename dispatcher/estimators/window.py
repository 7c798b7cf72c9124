"""The mean of the last observations, all alike; for rates that change.

Symbols: N -> `weight`, S -> `total`, both over the window; the prior is the oldest entry and leaves as one. Time alone
forgets nothing: a pool without traffic is believed as it was last seen.
"""

from __future__ import annotations

from collections import deque
from math import fsum

from dispatcher.errors import ConfigError
from dispatcher.estimators.mean import Mean


class Window(Mean):
    """Mean of the last `size` observations, size ≥ 1.

    >>> mean = Window(guess=5.0, size=2)
    >>> for x in (9.0, 0.1, 0.3): mean.learn_one(x, now=0.0)
    >>> round(mean.predict_one(0.0), 6), mean.weight, mean.observations
    (0.2, 2.0, 3)
    """

    __slots__ = ("_kept",)

    def __init__(self, guess: float, prior_weight: float = 0.0, size: float = 100) -> None:
        if not 1 <= size <= 1_000_000 or size != int(size):
            raise ConfigError(f"the size of a window must be a whole number from 1 to 1,000,000, not {size:g}")
        super().__init__(guess, prior_weight)
        self._kept: deque[tuple[float, float]] = deque(maxlen=int(size))
        if prior_weight:
            self._kept.append((self.weight, self.total))

    def learn_one(self, x: float, now: float) -> None:
        kept, size = self._kept, self._kept.maxlen or 1
        gone = kept[0] if len(kept) == size else (0.0, 0.0)
        kept.append((1.0, x))
        self.observations += 1
        if self.observations % size:
            self.weight += 1.0 - gone[0]
            self.total += x - gone[1]
        else:  # sum anew now and then, so that rounding cannot add up
            self.weight = fsum(weight for weight, _ in kept)
            self.total = fsum(total for _, total in kept)

    def fade(self, factor: float) -> None:
        """A window forgets by itself."""

    def restore(self, weight: float, total: float, observations: float) -> None:
        super().restore(weight, total, observations)
        self._kept.clear()
        self._kept.append((weight, total))

    @property
    def most(self) -> float:
        return self._kept.maxlen or 1
