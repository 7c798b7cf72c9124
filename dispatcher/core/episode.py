"""An episode: the stretch between two instants at which the system is empty. A plain counter, no rule lives here.

When an episode ends is the policy's business (LASED waits for its exploration); what one is lives here, so that the
regret's threshold, the metrics and the rows all count the same thing.
"""

from __future__ import annotations


class Episode:
    """number: k, from 1. arrivals: requests routed in it. explored: whether forced trials were part of it.
    began_at: time of its first arrival, None before."""

    __slots__ = ("arrivals", "began_at", "explored", "number")

    def __init__(self, number: int = 1) -> None:
        self.number = number
        self.arrivals = 0
        self.explored = False
        self.began_at: float | None = None

    def arrived(self, now: float) -> None:
        if self.arrivals == 0:
            self.began_at = now
        self.arrivals += 1

    def __repr__(self) -> str:
        return f"<Episode {self.number}: {self.arrivals} arrivals{', explored' if self.explored else ''}>"
