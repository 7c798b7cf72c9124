"""A rate from two sights of a backlog between which only own requests came: how many must have left, in how long.

Gamma filter: a ← f a + d, b ← f b + Δt, μ̂ = a/b, where d jobs left of q₁ (own arrivals among them) in Δt. If the
queue was found empty, d is only known to be at least q₁, and stands for E[N | N ≥ q₁] = m P(q₁ − 1, m)/P(q₁, m), m =
μ̂ Δt; without that an often empty pool would look slow. Symbols: f -> `factor`. Source: `docs/many-dispatchers.md`.
Limit: where others send too, what is left is arrivals less departures and says nothing of the rate.
"""

from __future__ import annotations

from dispatcher.policies.partial_information.queue_estimate import lower_gamma


class Departures:
    """guess: the rate before the first sight, worth one departure.

    >>> seen = Departures(guess=1.0)
    >>> seen.learn(4, 1, 1.5); round(seen.rate, 2)
    1.6
    """

    __slots__ = ("_jobs", "_seconds", "factor")

    def __init__(self, guess: float, factor: float = 0.99) -> None:
        self.factor = factor
        self._jobs, self._seconds = 1.0, 1.0 / guess

    @property
    def rate(self) -> float:
        return self._jobs / self._seconds

    def learn(self, before: float, after: float, seconds: float) -> None:
        """before: the backlog then, and what was sent since; after: the backlog now."""
        if before <= 0 or seconds <= 0:
            return  # an empty queue serves nobody
        left = before - after
        if after <= 0:
            m = self.rate * seconds
            chance = lower_gamma(before, m)
            left = m * lower_gamma(before - 1, m) / chance if chance > 1e-12 else before
        self._jobs = self.factor * self._jobs + max(0.0, left)
        self._seconds = self.factor * self._seconds + seconds
