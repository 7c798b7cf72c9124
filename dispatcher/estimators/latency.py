"""Medians of recent response times of one pool, by the number of requests in flight that each request found.

Memory is bounded: it holds the last 16 response times at each count, and the 64 counts that were used last.
"""

from __future__ import annotations

from collections import OrderedDict, deque

KEPT = 16  # response times at one count
COUNTS = 64  # counts with response times


class Latencies:
    """Median response time as a function of the requests in flight.

    >>> latencies = Latencies()
    >>> latencies.near(3)
    0.0
    >>> for seconds in (0.1, 0.5, 0.2): latencies.add(2, seconds)
    >>> latencies.add(6, 0.8)
    >>> latencies.near(2), latencies.near(3), latencies.near(9)
    (0.2, 0.2, 0.8)
    """

    __slots__ = ("_at", "_medians")

    def __init__(self) -> None:
        self._at: OrderedDict[int, deque[float]] = OrderedDict()
        self._medians: dict[int, float] = {}  # computed since the last change

    def add(self, found: int, seconds: float) -> None:
        """Add the response time of a request that found this many others in flight."""
        times = self._at.get(found)
        if times is None:
            times = self._at[found] = deque(maxlen=KEPT)
            if len(self._at) > COUNTS:
                dropped, _ = self._at.popitem(last=False)
                self._medians.pop(dropped, None)
        else:
            self._at.move_to_end(found)
        times.append(seconds)
        self._medians.pop(found, None)

    def near(self, count: int) -> float:
        """The median at this count, or at the nearest one with data; 0 before the first response. Seconds."""
        if count not in self._at:
            if not self._at:
                return 0.0
            count = min(self._at, key=lambda found: (abs(found - count), found))
        median = self._medians.get(count)
        if median is None:
            times = sorted(self._at[count])
            median = self._medians[count] = (times[(len(times) - 1) // 2] + times[len(times) // 2]) / 2
        return median
