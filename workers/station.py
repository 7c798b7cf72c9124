"""A station: c servers that take one job after the other, as arithmetic. No clock, no dice, no I/O.

A job's end is known the instant it is admitted, end = max(earliest free server, arrival) + work. Whoever keeps real
time finishes it at that instant, so that timer errors never add up.
"""

from __future__ import annotations

import heapq


class Station:
    """servers: c ≥ 1.

    >>> station = Station()
    >>> station.admit(0.0, 2.0), station.admit(1.0, 2.0), station.admit(9.0, 2.0)
    (2.0, 4.0, 11.0)
    """

    __slots__ = ("_free_at",)

    def __init__(self, servers: int = 1) -> None:
        if servers < 1:
            raise ValueError(f"a station needs at least 1 server, not {servers}")
        self._free_at = [float("-inf")] * servers

    def starts_at(self, now: float) -> float:
        """When a job that arrives now would start."""
        return max(self._free_at[0], now)

    def admit(self, now: float, work: float) -> float:
        """Take a job of `work` seconds at `now` or when a server is free; returns when it finishes. Jobs are admitted
        in the order in which they are to be begun."""
        finish = max(self._free_at[0], now) + work
        heapq.heapreplace(self._free_at, finish)
        return finish
