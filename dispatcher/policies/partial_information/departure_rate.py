"""A rate from two observations of a backlog between which only own requests arrived.

Gamma filter: a ← f a + d, b ← f b + Δt, μ̂ = a/b, where d of q₁ jobs left in Δt; q₁ includes own arrivals. If the queue
was empty at the second observation, d is only known to be at least q₁. It is then replaced by
E[N | N ≥ q₁] = m P(q₁ − 1, m)/P(q₁, m) with m = μ̂ Δt; otherwise a pool that is often empty would look slow.

Symbols: f -> `factor`. Source: `docs/many-dispatchers.md`. Limit: where others send too, the backlog changes by
arrivals minus departures and says nothing about the rate.
"""

from __future__ import annotations

from dispatcher.policies.partial_information.queue_estimate import lower_gamma

MIN_PROBABILITY = 1e-12  # of at least q₁ departures; below it the quotient of the formula is not reliable


class DepartureRate:
    """The rate of one pool, per second.

    guess: the rate before the first observation; it counts as one departure.
    factor: f, the weight that older observations keep.

    >>> departures = DepartureRate(guess=1.0)
    >>> departures.learn(4, 1, 1.5); round(departures.rate, 2)
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
        """Count the departures between two observations.

        before: the backlog at the first observation, plus what was sent since.
        after: the backlog at the second one.
        seconds: the time between them.
        """
        if before <= 0 or seconds <= 0:
            return  # an empty queue has no departures
        departed = before - after
        if after <= 0:  # the queue became empty at an unknown time, so more could have departed
            m = self.rate * seconds
            probability = lower_gamma(before, m)
            departed = m * lower_gamma(before - 1, m) / probability if probability > MIN_PROBABILITY else before
        self._jobs = self.factor * self._jobs + max(0.0, departed)
        self._seconds = self.factor * self._seconds + seconds
