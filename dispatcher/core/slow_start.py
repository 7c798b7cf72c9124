"""Slow start: a pool that has just come back is shown to a growing share of the decisions."""

from __future__ import annotations

GOLDEN = 0.6180339887498949  # steps of it around a circle fill every arc evenly, and in step with nothing else


class Ramp:
    """Grows from nothing at `began_at` to everything `seconds` later, evenly and without dice.

    >>> ramp = Ramp(0.0, 10.0)
    >>> [sum(ramp.admits(t) for _ in range(1000)) for t in (1.0, 5.0, 10.0)]
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
        """Whether the decision at hand may see the pool; to be asked once for each."""
        self._turn = (self._turn + GOLDEN) % 1.0
        return self._turn * self.seconds < now - self.began_at
