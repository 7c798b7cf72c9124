"""The plain mean of all observations; here of service times, whose inverse is the rate μ̂ = N / S. The other
estimators derive from it: what policies read of one is `weight`, `total`, `rate` and `interval`.

Symbols: N -> `weight`, S -> `total`. A prior of weight w around a guessed rate g starts at N = w, S = w / g.
Interval: S is Gamma(N, 1/μ) for exponential services, so μ lies in G(N, ±z)/S with the Wilson-Hilferty quantile
G(N, z) = N (1 − 1/(9N) + z/(3√N))³. For other service laws it is approximate: too wide if they vary less.
"""

from __future__ import annotations

import math

Z95 = 1.959963984540054


def gamma_quantile(n: float, z: float) -> float:
    """Wilson-Hilferty: the quantile of Gamma(n, 1) at standard normal quantile z, n > 0.

    >>> round(gamma_quantile(100, 0.0), 3)
    99.667
    """
    root = 1 - 1 / (9 * n) + z / (3 * math.sqrt(n))
    return n * max(0.0, root) ** 3


class Mean:
    """Mean service time of one pool, read as a rate.

    guess: the rate while nothing was observed. prior_weight: how many services the guess is worth.

    >>> mean = Mean(guess=5.0)
    >>> mean.rate
    5.0
    >>> mean.learn_one(0.1, now=0.0); mean.learn_one(0.3, now=1.0)
    >>> mean.rate, mean.observations, mean.predict_one(1.0)
    (5.0, 2, 0.2)
    """

    __slots__ = ("guess", "observations", "total", "weight")

    def __init__(self, guess: float, prior_weight: float = 0.0) -> None:
        self.guess = guess
        self.weight = prior_weight
        self.total = prior_weight / guess
        self.observations = 0

    def learn_one(self, x: float, now: float) -> None:
        self.weight += 1
        self.total += x
        self.observations += 1

    def fade(self, factor: float) -> None:
        """Multiply the weight of all that was observed so far. The mean stays the same."""
        self.weight *= factor
        self.total *= factor

    def restore(self, weight: float, total: float, observations: float) -> None:
        """Go on from what another life has seen, as one observation of this weight."""
        self.weight, self.total, self.observations = weight, total, int(observations)

    def predict_one(self, now: float) -> float:
        return self.total / self.weight if self.weight else 1 / self.guess

    @property
    def rate(self) -> float:
        """N / S; the guess while there is nothing to divide."""
        return self.weight / self.total if self.total > 0 else self.guess

    @property
    def most(self) -> float:
        """The largest weight that it can come to without a prior."""
        return math.inf

    @property
    def equals(self) -> float:
        """How many equally weighted observations would be worth as much."""
        return self.weight

    @property
    def interval(self) -> tuple[float, float]:
        """95 % bounds of the rate: (0, inf) while less is known than one observation tells."""
        n = self.equals
        if self.total <= 0 or n < 1:
            return 0.0, math.inf
        mean = self.total / self.weight
        return gamma_quantile(n, -Z95) / n / mean, gamma_quantile(n, Z95) / n / mean
