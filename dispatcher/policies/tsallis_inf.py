"""tsallis_inf: a pool at random, seldom those that have rejected; best in mean for steady pools and for hostile ones.

Rule: P(i) = 4/(η (L_i − x))², x such that these sum to 1 (Newton, from the last x). estimator `rv`: each send adds B_k
to every L_k and (loss − B_i)/p_i to the drawn one's, B_k = 1/2 where p_k ≥ η², η = 4/√t; `iw`: loss/p_i, η = 2/√t.
B is of the instant of the draw. Where not every pool could be drawn the update is that of `iw`.

Symbols: L -> `losses`, x -> `_x`, η -> `eta`, t -> `sends`, loss: 1 for a rejection. Source: Zimmert and Seldin,
*Tsallis-INF: an optimal algorithm for stochastic and adversarial bandits*. Limits: a decision costs m; its bound is one
of the mean, which the theorem on several dispatchers does not accept: where others send too, take `exp3_ix`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from random import Random

import numpy as np
from numpy.typing import NDArray

from dispatcher.core.expected_delay import Floats
from dispatcher.errors import ConfigError
from dispatcher.policies.bandit import DrawingPolicy, at_least
from dispatcher.policies.bandit_weights import WeightArray

Baseline = NDArray[np.bool_]  # where B_k is 1/2
SCALES = {"rv": 4.0, "iw": 2.0}
CLOSE = 1e-12  # to a sum of 1
REBASED_EVERY = 4096  # sends


class TsallisInf(DrawingPolicy):
    """Learns from rejections alone: Tsallis entropy of order 1/2.

    estimator: rv (reduced variance) or iw (importance weights). window: sends for which η is made, at the least, so
    that what was learned long ago can be unlearned; 0 for no such bound.
    """

    def __init__(self, *, rng: Random, smooth: bool = False, window: int = 0, estimator: str = "rv") -> None:
        super().__init__(rng=rng, smooth=smooth)
        if estimator not in SCALES:
            raise ConfigError(f"estimator must be rv or iw, not {estimator!r}")
        self.window, self.estimator = at_least(window, 0, "window"), estimator
        self.losses: Floats = np.zeros(0)
        self.eta = SCALES[estimator]
        self._p: Floats = np.zeros(0)
        self._baseline: Baseline = self._p >= 1.0
        self._membership = 0  # how often a pool has joined or left
        self._x = -math.inf
        self.weights: WeightArray = WeightArray(self._p)

    def prepare(self, now: float) -> None:
        if self.sends % REBASED_EVERY == 0:
            least = float(self.losses.min())
            self.losses -= least
            self._x -= least
        self.eta = SCALES[self.estimator] / math.sqrt(min(self.sends, self.window or self.sends))
        self._p, self._x = solve(self.losses, self.eta, self._x)
        self._mask()

    def _mask(self) -> None:
        shown, self._baseline = self._p, self._p >= self.eta * self.eta
        if self.resting:
            shown = shown.copy()
            shown[[self.slots[pool] for pool in self.resting]] = 0.0
        self.weights = WeightArray(shown)

    def note(self, slot: int, whole: bool, now: float) -> tuple[int, Baseline | None]:
        return self._membership, self._baseline if whole and self.estimator == "rv" else None

    def observe(self, slot: int, chance: float, note: object, loss: float) -> None:
        assert isinstance(note, tuple)
        membership, baseline = note
        if baseline is None or membership != self._membership:  # what could not be drawn, or is another, bears no loss
            self.losses[slot] += loss / chance
            return
        self.losses += 0.5 * baseline
        self.losses[slot] += (loss - 0.5 * baseline[slot]) / chance

    def weigh(self, slots: Sequence[int]) -> list[float]:
        return [float(self._p[slot]) for slot in slots]

    def joined(self, slot: int) -> None:
        """It starts with the mean weight."""
        fair = self._x + 2 * math.sqrt(slot) / self.eta if slot and math.isfinite(self._x) else 0.0
        self._membership += 1
        self.losses = np.append(self.losses, fair)
        self._p, self._x = solve(self.losses, self.eta, self._x)
        self._mask()

    def left(self, slot: int) -> None:
        self._membership += 1
        self.losses = np.delete(self.losses, slot)
        self._p = np.delete(self._p, slot)
        self._mask()


def solve(losses: Floats, eta: float, x: float) -> tuple[Floats, float]:
    """The weights 4/(η (L − x))² that sum to 1, and x; from a guess of it, or from where Newton's steps all go down.

    >>> solve(np.array([0.0, 0.0]), 2.0, 0.0)[0].tolist()
    [0.5, 0.5]
    """
    least, m = float(losses.min()), len(losses)
    right = least - 2 / eta  # where the steps go down, to the root; from its left the first one may leap too far
    if not least - 2 * math.sqrt(m) / eta <= x <= right:
        x = right
    for _ in range(200):
        roots = 2.0 / (eta * (losses - x))
        weights = roots * roots
        over = float(weights.sum()) - 1.0
        if abs(over) < CLOSE:
            break
        x = min(right, x - over / (eta * float((weights * roots).sum())))
    return weights / weights.sum(), x
