"""tsallis_inf: a pool at random, seldom those that have rejected; best in mean for steady pools and for hostile ones.

Rule: P(i) = 4/(η (L_i − x))², x such that these sum to 1 (Newton, from the last x). estimator `rv`: each send adds B_k
to every L_k and (loss − B_i)/p_i to the drawn one's, B_k = 1/2 where p_k ≥ η², η = 4/√t; `iw`: loss/p_i, η = 2/√t.

Symbols: L -> `losses`, x -> `_x`, η -> `eta`, t -> `sends`, loss: 1 for a rejection. Source: Zimmert and Seldin,
*Tsallis-INF: an optimal algorithm for stochastic and adversarial bandits*. Limits: a decision costs m; its bound is one
of the mean, which the theorem on several dispatchers does not accept: where others send too, take `exp3_ix`.
"""

from __future__ import annotations

import math
from random import Random

import numpy as np

from dispatcher.core.delay import Floats
from dispatcher.core.sumtree import WeightArray
from dispatcher.errors import ConfigError
from dispatcher.policies.feedback import DrawingPolicy, at_least

SCALES = {"rv": 4.0, "iw": 2.0}
CLOSE = 1e-12  # to a sum of 1
REBASED_EVERY = 4096  # sends


class TsallisInf(DrawingPolicy):
    """Learns from rejections alone: Tsallis entropy of order 1/2.

    estimator: rv (reduced variance) or iw (importance weights). window: sends after which old rejections count little,
    0 to forget nothing.
    """

    def __init__(self, *, rng: Random, smooth: bool = False, window: int = 0, estimator: str = "rv") -> None:
        super().__init__(rng=rng, smooth=smooth)
        if estimator not in SCALES:
            raise ConfigError(f"estimator must be rv or iw, not {estimator!r}")
        self.window, self.estimator = at_least(window, 0, "window"), estimator
        self.losses: Floats = np.zeros(0)
        self.eta = SCALES[estimator]
        self._p: Floats = np.zeros(0)
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
        shown = self._p
        if self.resting:
            shown = shown.copy()
            shown[[self.slots[pool] for pool in self.resting]] = 0.0
        self.weights = WeightArray(shown)

    def note(self, slot: int, now: float) -> float:
        return self.eta

    def observe(self, slot: int, chance: float, note: object, loss: float) -> None:
        assert isinstance(note, float)
        if self.estimator == "iw":
            self.losses[slot] += loss / chance
            return
        baseline = np.where(self._p >= note * note, 0.5, 0.0)
        own = 0.5 if chance >= note * note else 0.0
        self.losses += baseline
        self.losses[slot] += own - baseline[slot] + (loss - own) / chance

    def weight_of(self, slot: int) -> float:
        return float(self._p[slot])

    def joined(self, slot: int) -> None:
        """It starts with the mean weight."""
        fair = self._x + 2 * math.sqrt(slot) / self.eta if slot and math.isfinite(self._x) else 0.0
        self.losses = np.append(self.losses, fair)
        self._p, self._x = solve(self.losses, self.eta, self._x)
        self._mask()

    def left(self, slot: int) -> None:
        self.losses = np.delete(self.losses, slot)
        self._p = np.delete(self._p, slot)
        self._mask()

    def rested(self, slot: int, rests: bool) -> None:
        self._mask()


def solve(losses: Floats, eta: float, x: float) -> tuple[Floats, float]:
    """The weights 4/(η (L − x))² that sum to 1, and x; from a guess of it, or from where Newton's steps all go down.

    >>> solve(np.array([0.0, 0.0]), 2.0, 0.0)[0].tolist()
    [0.5, 0.5]
    """
    least, m = float(losses.min()), len(losses)
    if not least - 2 * math.sqrt(m) / eta <= x <= least - 2 / eta:
        x = least - 2 / eta
    for _ in range(200):
        roots = 2.0 / (eta * (losses - x))
        weights = roots * roots
        over = float(weights.sum()) - 1.0
        if abs(over) < CLOSE:
            break
        x -= over / (eta * float((weights * roots).sum()))
    return weights / weights.sum(), x
