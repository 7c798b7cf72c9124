"""The discounted mean, for rates that change: each observation reduces the weight of all older ones.

S ← γ S + x, N ← γ N + 1, μ̂ = N/S. Symbols: γ -> `factor`, N -> `weight`, S -> `total`. N never exceeds 1/(1 − γ).
LASED refuses a γ for which this limit is below the number of observations that it requires.

The interval rests on the number of equal observations with the same variance, (Σ w)²/Σ w². Time alone discounts
nothing: the estimate of a pool without traffic stays as it is.
"""

from __future__ import annotations

from dispatcher.errors import ConfigError
from dispatcher.estimators.mean import Mean


class Discounted(Mean):
    """The exponentially discounted mean.

    guess, prior_weight: as in `Mean`.
    factor: γ, between 0 and 1.

    >>> mean = Discounted(guess=5.0, factor=0.5)
    >>> mean.learn_one(0.1); mean.learn_one(0.4)
    >>> round(1 / mean.rate, 6), mean.weight, mean.observations
    (0.3, 1.5, 2)
    """

    __slots__ = ("_squares", "factor")

    def __init__(self, guess: float, prior_weight: float = 0.0, factor: float = 0.99) -> None:
        if not 0 < factor < 1:
            raise ConfigError(f"the factor of a discounted mean must be between 0 and 1, not {factor:g}")
        super().__init__(guess, prior_weight)
        self.factor = factor
        self._squares = prior_weight  # Σ w²

    def learn_one(self, x: float) -> None:
        self.weight = self.factor * self.weight + 1
        self.total = self.factor * self.total + x
        self._squares = self.factor**2 * self._squares + 1
        self.observations += 1

    def fade(self, factor: float) -> None:
        super().fade(factor)
        self._squares *= factor * factor

    def restore(self, weight: float, total: float, observations: float) -> None:
        super().restore(weight, total, observations)
        self._squares = weight  # as if all observations had the weight 1

    @property
    def max_weight(self) -> float:
        return 1 / (1 - self.factor)

    @property
    def effective_sample_size(self) -> float:
        return self.weight**2 / self._squares if self._squares else 0.0
