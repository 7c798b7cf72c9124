"""The exact quantile of the last observations."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque


class RecentQuantile:
    """The q-quantile of the last observations: the value of rank ⌊q (n − 1)⌋ among n, counted from 0.

    q: from 0 to 1.
    size: the number of observations that are kept.

    >>> recent = RecentQuantile(q=0.5, size=3)
    >>> recent.value
    0
    >>> for x in (9, 1, 2, 3): recent.add(x)
    >>> recent.value
    2
    """

    __slots__ = ("_last", "_sorted", "q")

    def __init__(self, q: float, size: int) -> None:
        self.q = q
        self._last: deque[int] = deque(maxlen=size)
        self._sorted: list[int] = []

    def add(self, x: int) -> None:
        if len(self._last) == self._last.maxlen:  # the deque is about to drop its oldest value
            del self._sorted[bisect_left(self._sorted, self._last[0])]
        self._last.append(x)
        insort(self._sorted, x)

    @property
    def value(self) -> int:
        """The quantile; 0 before the first observation."""
        return self._sorted[int(self.q * (len(self._sorted) - 1))] if self._sorted else 0
