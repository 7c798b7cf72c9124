"""A station: c servers that serve jobs in order, as arithmetic. PURE: no clock, no random numbers, no I/O.

The end of a job is known when it is admitted: end = max(earliest free server, arrival) + work. A pool in real time
finishes the job at that instant, so the errors of timers never add up.
"""

from __future__ import annotations

import heapq


class Station:
    """Computes when jobs start and end on `servers` servers, at least 1.

    >>> station = Station()
    >>> station.admit(0.0, 2.0), station.admit(1.0, 2.0), station.admit(9.0, 2.0)
    (2.0, 4.0, 11.0)
    """

    __slots__ = ("_free_at",)

    def __init__(self, servers: int = 1) -> None:
        if servers < 1:
            raise ValueError(f"a station needs at least 1 server, not {servers}")
        self._free_at = [float("-inf")] * servers  # a heap: by server, the instant from which on it is free

    def starts_at(self, now: float) -> float:
        """Return the instant at which a job that arrives now would start."""
        return max(self._free_at[0], now)

    def admit(self, now: float, work: float) -> float:
        """Start a job at `now`, or when a server is free after that, and return its end.

        work: the job's service time, in seconds. Jobs must be admitted in the order in which they start.
        """
        finish = max(self._free_at[0], now) + work
        heapq.heapreplace(self._free_at, finish)
        return finish
