"""The plain mean of all observations, here of service times. Its inverse is the rate μ̂ = N/S.

The other estimators derive from it. A policy reads `weight`, `total`, `rate` and `interval`.

Symbols: N -> `weight`, S -> `total`. A prior of weight w around a guessed rate g starts with N = w and S = w/g.
Interval: for exponential services S is Gamma(N, 1/μ), so μ lies in G(N, ±z)/S. G is the Wilson-Hilferty quantile
G(N, z) = N (1 − 1/(9N) + z/(3√N))³. For other service laws the interval is approximate: too wide if they vary less.
"""

from __future__ import annotations

import math

Z95 = 1.959963984540054  # the standard normal quantile of a two-sided 95 % interval


def gamma_quantile(n: float, z: float) -> float:
    """Return the Wilson-Hilferty quantile of Gamma(n, 1), n > 0, at the standard normal quantile z.

    >>> round(gamma_quantile(100, 0.0), 3)
    99.667
    """
    root = 1 - 1 / (9 * n) + z / (3 * math.sqrt(n))
    return n * max(0.0, root) ** 3  # the root is negative for small n with a negative z


class Mean:
    """The mean service time of one pool, read as a rate.

    guess: the rate before the first observation, per second.
    prior_weight: how many services the guess is worth.

    >>> mean = Mean(guess=5.0)
    >>> mean.rate
    5.0
    >>> mean.learn_one(0.1); mean.learn_one(0.3)
    >>> round(mean.rate, 6), mean.observations
    (5.0, 2)
    """

    __slots__ = ("guess", "observations", "total", "weight")

    def __init__(self, guess: float, prior_weight: float = 0.0) -> None:
        self.guess = guess
        self.weight = prior_weight
        self.total = prior_weight / guess
        self.observations = 0

    def learn_one(self, x: float) -> None:
        """Count one observation. x: seconds."""
        self.weight += 1
        self.total += x
        self.observations += 1

    def fade(self, factor: float) -> None:
        """Multiply the weight of all observations so far. The mean stays the same."""
        self.weight *= factor
        self.total *= factor

    def restore(self, weight: float, total: float, observations: float) -> None:
        """Continue from saved sums, as if they were one observation of this weight."""
        self.weight, self.total, self.observations = weight, total, int(observations)

    @property
    def rate(self) -> float:
        """N/S, or the guess before the first observation."""
        return self.weight / self.total if self.total > 0 else self.guess

    @property
    def max_weight(self) -> float:
        """The largest weight that the estimator can reach without a prior."""
        return math.inf

    @property
    def effective_sample_size(self) -> float:
        """The number of equally weighted observations that would be worth as much."""
        return self.weight

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % bounds of the rate: (0, inf) while the estimator has less than one observation."""
        n = self.effective_sample_size
        if self.total <= 0 or n < 1:
            return 0.0, math.inf
        mean = self.total / self.weight
        return gamma_quantile(n, -Z95) / n / mean, gamma_quantile(n, Z95) / n / mean
