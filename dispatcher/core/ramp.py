"""Slow start: a pool that has just come back is shown to a growing share of the decisions."""

from __future__ import annotations


class Ramp:
    """Grows from nothing at `began_at` to everything `seconds` later, evenly and without dice.

    >>> ramp = Ramp(0.0, 10.0)
    >>> [ramp.admits(t) for t in (2.0, 4.0, 6.0, 8.0, 10.0)]
    [False, False, True, True, True]
    """

    __slots__ = ("_credit", "began_at", "seconds")

    def __init__(self, began_at: float, seconds: float) -> None:
        self.began_at = began_at
        self.seconds = seconds
        self._credit = 0.0

    def is_over(self, now: float) -> bool:
        return now - self.began_at >= self.seconds

    def admits(self, now: float) -> bool:
        """Whether the decision at hand may see the pool; to be asked once for each."""
        self._credit += min(1.0, (now - self.began_at) / self.seconds)
        if self._credit < 1.0:
            return False
        self._credit -= 1.0
        return True
