"""tsallis_inf: a pool at random, seldom those that have rejected; best in mean for steady pools and for hostile ones.

Rule: P(i) = 4/(η (L_i − x))², with x such that these sum to 1. Newton's method computes x, from the last x on. With the
estimator `rv` each send adds B_k to every L_k and (loss − B_i)/p_i to that of the chosen pool. B_k is 1/2 where
p_k ≥ η² at the draw, otherwise 0; η = 4/√t. With the estimator `iw` a send adds only loss/p_i to the L_i of the chosen
pool, and η = 2/√t. If not every pool could be drawn, the update is that of `iw`.

Symbols: L -> `losses`, x -> `_x`, η -> `eta`, t -> `sends`; the loss is 1 for a rejection. Source: Zimmert and Seldin,
*Tsallis-INF: an optimal algorithm for stochastic and adversarial bandits*. Limits: a decision takes time in proportion
to the number of pools. The bound is one of the mean, which the theorem on several dispatchers does not accept; with
several senders take `exp3_ix`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from random import Random

import numpy as np
from numpy.typing import NDArray

from dispatcher.core.expected_delay import Floats
from dispatcher.errors import ConfigError
from dispatcher.policies.bandit import RandomizedPolicy, check_at_least
from dispatcher.policies.bandit_weights import WeightArray

Baseline = NDArray[np.bool_]  # True where B_k is 1/2
ETA_SCALES = {"rv": 4.0, "iw": 2.0}  # η √t, by estimator
SUM_TOLERANCE = 1e-12  # of the sum of the probabilities
REBASE_INTERVAL = 4096  # sends


class TsallisInf(RandomizedPolicy):
    """Learns from rejections alone: Tsallis entropy of order 1/2.

    smooth: as in `RandomizedPolicy`.
    window: η does not fall below its value after this many sends, so that old losses can be unlearned; 0 for no bound.
    estimator: rv (reduced variance) or iw (importance weights).
    """

    def __init__(self, *, rng: Random, smooth: bool = False, window: int = 0, estimator: str = "rv") -> None:
        super().__init__(rng=rng, smooth=smooth)
        if estimator not in ETA_SCALES:
            raise ConfigError(f"estimator must be rv or iw, not {estimator!r}")
        self.window, self.estimator = check_at_least(window, 0, "window"), estimator
        self.losses: Floats = np.zeros(0)
        self.eta = ETA_SCALES[estimator]
        self._p: Floats = np.zeros(0)
        self._baseline: Baseline = self._p >= 1.0
        self._membership = 0  # how often a pool has joined or left
        self._x = -math.inf
        self.weights: WeightArray = WeightArray(self._p)

    def begin_decision(self, now: float) -> None:
        # Losses grow without bound. Only their differences matter, and small numbers keep them precise.
        if self.sends % REBASE_INTERVAL == 0:
            least = float(self.losses.min())
            self.losses -= least
            self._x -= least
        self.eta = ETA_SCALES[self.estimator] / math.sqrt(min(self.sends, self.window or self.sends))
        self._p, self._x = solve(self.losses, self.eta, self._x)
        self._set_weights()

    def _set_weights(self) -> None:
        """Derive baseline and weights from the probabilities; a pool that rests has weight 0."""
        weights, self._baseline = self._p, self._p >= self.eta * self.eta
        if self.resting:
            weights = weights.copy()  # `_p` keeps the probabilities of the resting pools
            weights[[self.slots[pool] for pool in self.resting]] = 0.0
        self.weights = WeightArray(weights)

    def context_for_update(self, slot: int, unrestricted: bool, now: float) -> tuple[int, Baseline | None]:
        return self._membership, self._baseline if unrestricted and self.estimator == "rv" else None

    def update(self, slot: int, probability: float, context: object, loss: float) -> None:
        assert isinstance(context, tuple)
        membership, baseline = context
        # A pool that could not be drawn then gets no loss. Neither does one whose slot belonged to another pool then.
        if baseline is None or membership != self._membership:
            self.losses[slot] += loss / probability
            return
        self.losses += 0.5 * baseline
        self.losses[slot] += (loss - 0.5 * baseline[slot]) / probability

    def weights_of(self, slots: Sequence[int]) -> list[float]:
        return [float(self._p[slot]) for slot in slots]

    def pool_added(self, slot: int) -> None:
        """Give the new pool the mean weight."""
        # With this loss the new weight is 1/m for the m pools so far: 4/(η (L − x))² = 1/m.
        mean_loss = self._x + 2 * math.sqrt(slot) / self.eta if slot and math.isfinite(self._x) else 0.0
        self._membership += 1
        self.losses = np.append(self.losses, mean_loss)
        self._p, self._x = solve(self.losses, self.eta, self._x)
        self._set_weights()

    def pool_removed(self, slot: int) -> None:
        self._membership += 1
        self.losses = np.delete(self.losses, slot)
        self._p = np.delete(self._p, slot)
        self._set_weights()


def solve(losses: Floats, eta: float, x: float) -> tuple[Floats, float]:
    """Return the weights 4/(η (L − x))² that sum to 1, and their x.

    losses: L, shape (m,).
    x: a first guess. It is replaced if Newton's steps from it might go astray.

    >>> solve(np.array([0.0, 0.0]), 2.0, 0.0)[0].tolist()
    [0.5, 0.5]
    """
    least, m = float(losses.min()), len(losses)
    # From here the steps go down to the root. From the left of the root the first step may go too far.
    right = least - 2 / eta
    if not least - 2 * math.sqrt(m) / eta <= x <= right:
        x = right
    for _ in range(200):
        roots = 2.0 / (eta * (losses - x))
        weights = roots * roots
        error = float(weights.sum()) - 1.0
        if abs(error) < SUM_TOLERANCE:
            break
        # The derivative of the sum by x is η Σ roots³.
        x = min(right, x - error / (eta * float((weights * roots).sum())))
    return weights / weights.sum(), x  # the rest of the error is divided among all
