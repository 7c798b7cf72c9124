"""An episode: the time between two moments at which the system is empty.

A policy decides when an episode ends; LASED, for example, waits for its exploration. The counter lives here, so that
regret, metrics and decision logs count the same thing.
"""

from __future__ import annotations


class Episode:
    """A counter of one episode.

    number: k, from 1.
    arrivals: the requests that were routed in the episode.
    explored: whether forced trials were a part of it.
    began_at: the time of its first arrival, None before.
    """

    __slots__ = ("arrivals", "began_at", "explored", "number")

    def __init__(self, number: int = 1) -> None:
        self.number = number
        self.arrivals = 0
        self.explored = False
        self.began_at: float | None = None

    def arrived(self, now: float) -> None:
        """Count a request."""
        if self.arrivals == 0:
            self.began_at = now
        self.arrivals += 1

    def __repr__(self) -> str:
        return f"<Episode {self.number}: {self.arrivals} arrivals{', explored' if self.explored else ''}>"
