"""Medians of recent response times of one pool, by the number of requests that were in flight before each request.

Memory is bounded: the last 16 response times are kept for each of the 64 numbers that were used last.
"""

from __future__ import annotations

from collections import OrderedDict, deque

MAX_TIMES_PER_COUNT = 16  # response times
MAX_COUNTS = 64  # numbers of requests in flight


class Latencies:
    """The median response time as a function of the requests in flight.

    >>> latencies = Latencies()
    >>> latencies.near(3)
    0.0
    >>> for seconds in (0.1, 0.5, 0.2): latencies.add(2, seconds)
    >>> latencies.add(6, 0.8)
    >>> latencies.near(2), latencies.near(3), latencies.near(9)
    (0.2, 0.2, 0.8)
    """

    __slots__ = ("_medians", "_times")

    def __init__(self) -> None:
        self._times: OrderedDict[int, deque[float]] = OrderedDict()  # by count, the longest unused count first
        self._medians: dict[int, float] = {}  # by count, where no response time was added since it was computed

    def add(self, in_flight: int, seconds: float) -> None:
        """Add the response time of a request that joined when this many others were in flight."""
        times = self._times.get(in_flight)
        if times is None:
            times = self._times[in_flight] = deque(maxlen=MAX_TIMES_PER_COUNT)
            if len(self._times) > MAX_COUNTS:
                dropped, _ = self._times.popitem(last=False)
                self._medians.pop(dropped, None)
        else:
            self._times.move_to_end(in_flight)
        times.append(seconds)
        self._medians.pop(in_flight, None)

    def near(self, in_flight: int) -> float:
        """Return the median at this count, or at the nearest count with data, in seconds; 0 without any data."""
        if in_flight not in self._times:
            if not self._times:
                return 0.0
            # Of two counts at equal distance the smaller one is taken.
            count = min(self._times, key=lambda known: (abs(known - in_flight), known))
        else:
            count = in_flight
        median = self._medians.get(count)
        if median is None:
            times = sorted(self._times[count])
            median = self._medians[count] = (times[(len(times) - 1) // 2] + times[len(times) // 2]) / 2
        return median
