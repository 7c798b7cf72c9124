"""Slow start: a pool that has just joined takes part in a growing share of the decisions."""

from __future__ import annotations

# Steps of the golden ratio around a circle fill every arc evenly. Random numbers would make runs differ, and every
# simpler pattern was in step with some round robin.
GOLDEN_RATIO = 0.6180339887498949


class SlowStart:
    """The share grows linearly from 0 at `began_at` to 1 after `seconds`.

    >>> slow_start = SlowStart(0.0, 10.0)
    >>> [sum(slow_start.admits(t) for _ in range(1000)) for t in (1.0, 5.0, 10.0)]
    [100, 500, 1000]
    """

    __slots__ = ("_turn", "began_at", "seconds")

    def __init__(self, began_at: float, seconds: float) -> None:
        self.began_at = began_at
        self.seconds = seconds
        self._turn = 0.0

    def is_over(self, now: float) -> bool:
        return now - self.began_at >= self.seconds

    def admits(self, now: float) -> bool:
        """Return whether the present decision may choose the pool. Call it once for each decision."""
        self._turn = (self._turn + GOLDEN_RATIO) % 1.0
        return self._turn * self.seconds < now - self.began_at
