"""The mean of the last observations, all of equal weight, for rates that change.

Symbols: N -> `weight`, S -> `total`, both over the window. The prior is the oldest entry and leaves as a whole. Time
alone discounts nothing: the estimate of a pool without traffic stays as it is.
"""

from __future__ import annotations

from collections import deque
from math import fsum

from dispatcher.errors import ConfigError
from dispatcher.estimators.mean import Mean


class Window(Mean):
    """The mean of the last observations.

    guess, prior_weight: as in `Mean`.
    size: the number of observations, a whole number from 1 to 1,000,000.

    >>> mean = Window(guess=5.0, size=2)
    >>> for x in (9.0, 0.1, 0.3): mean.learn_one(x)
    >>> round(1 / mean.rate, 6), mean.weight, mean.observations
    (0.2, 2.0, 3)
    """

    __slots__ = ("_entries",)

    def __init__(self, guess: float, prior_weight: float = 0.0, size: float = 100) -> None:
        if not 1 <= size <= 1_000_000 or size != int(size):
            raise ConfigError(f"the size of a window must be a whole number from 1 to 1,000,000, not {size:g}")
        super().__init__(guess, prior_weight)
        self._entries: deque[tuple[float, float]] = deque(maxlen=int(size))  # weight and total of each
        if prior_weight:
            self._entries.append((self.weight, self.total))

    def learn_one(self, x: float) -> None:
        entries, size = self._entries, self._entries.maxlen or 1
        # The deque drops its oldest entry by itself, so that entry is read before.
        dropped = entries[0] if len(entries) == size else (0.0, 0.0)
        entries.append((1.0, x))
        self.observations += 1
        if self.observations % size:
            self.weight += 1.0 - dropped[0]
            self.total += x - dropped[1]
        else:  # the sums are computed anew from time to time, so that rounding errors cannot accumulate
            self.weight = fsum(weight for weight, _ in entries)
            self.total = fsum(total for _, total in entries)

    def fade(self, factor: float) -> None:
        """Do nothing, because a window drops old observations by itself."""

    def restore(self, weight: float, total: float, observations: float) -> None:
        super().restore(weight, total, observations)
        self._entries.clear()
        self._entries.append((weight, total))

    @property
    def max_weight(self) -> float:
        return self._entries.maxlen or 1
