"""exp3_ix: a pool at random, seldom those that have rejected; no regret, whatever the pools and other senders do.

Rule: P(i) ∝ exp(−η L_i); a rejection adds 1/(p_i + γ) to L_i, γ = η/2, an acceptance nothing. η = √(ln m/(m t)) at the
t-th send, kept from one power of two to the next, and never below that of `window` sends. A draw and a rejection cost
log m (m where only a part of the fleet is shown, as to a retry): the weights are the leaves of a tree of sums, anchored
at the least L, and anchored anew when the sum falls below a half. `floor` holds every weight above that share of the
best, so that a slow pool is looked at again.

Symbols: L -> `losses`, η -> `eta`, γ/η -> `bias` (0 is plain EXP3), m -> pools, t -> `sends`. Source: Neu, *Explore no
more: improved high-probability regret bounds for non-stochastic bandits*; the tree and its epochs are ours, the bound
stays up to a constant. Guarantee: where each pool holds one request and is done with it in a slot with chance μ_i, the
long-run share of requests taken is at least Hamacher's sum H (*Learning in Strategic Queuing Systems with Small
Buffers*). Limits: a pool of several servers is outside the theorem; blind to queues.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from random import Random

from dispatcher.errors import ConfigError
from dispatcher.policies.bandit import DrawingPolicy, at_least
from dispatcher.policies.bandit_weights import SumTree

REBUILT_EVERY = 4096  # sends, once η stays
LARGEST = 0.7  # ln of the weight with which a pool may come back from a rest before all are anchored anew


class Exp3Ix(DrawingPolicy):
    """Learns from rejections alone: exponential weights with implicit exploration.

    window: sends for which η is made, at the least, so that what was learned long ago can be unlearned; 0 for no such
    bound. floor: least weight relative to the
    best, 0 for none. bias: γ/η. each_send: η anew at each send, as in print; a decision then costs m, not log m.
    """

    def __init__(
        self,
        *,
        rng: Random,
        smooth: bool = False,
        window: int = 20_000,
        floor: float = 1e-3,
        bias: float = 0.5,
        each_send: bool = False,
    ) -> None:
        super().__init__(rng=rng, smooth=smooth)
        if not 0 <= floor <= 0.5:
            raise ConfigError(f"floor must be from 0 to 0.5, not {floor:g}")
        self.window, self.bias = at_least(window, 0, "window"), at_least(bias, 0, "bias")
        self.floor, self.each_send = floor, each_send
        self.losses: list[float] = []  # L_i, from the anchor
        self.eta = 1.0
        self.weights: SumTree = SumTree()
        self._most = math.inf
        self._stale = False
        self._next = 1  # the send at which the weights are made anew

    def prepare(self, now: float) -> None:
        if self._stale or self.sends >= self._next or self.each_send:
            self._rebuild()

    def _rebuild(self) -> None:
        m, t = len(self.names), self.sends
        epoch = t if self.each_send else 1 << (t.bit_length() - 1)
        spread = (math.log(m) if m > 1 else 1.0) / m
        least = math.sqrt(spread / self.window) if self.window else 0.0
        self.eta = max(math.sqrt(spread / epoch), least)
        self._next = t + max(REBUILT_EVERY, m) if self.eta == least else 2 * epoch
        self._most = -math.log(self.floor) / self.eta if self.floor else math.inf
        present = [loss for name, loss in zip(self.names, self.losses, strict=True) if name not in self.resting]
        anchor = min(present or self.losses)
        self.losses = [min(loss - anchor, self._most) for loss in self.losses]
        self.weights.fill(
            0.0 if name in self.resting else math.exp(-self.eta * loss)
            for name, loss in zip(self.names, self.losses, strict=True)
        )
        self._stale = False

    def note(self, slot: int, whole: bool, now: float) -> float:
        return self.eta

    def observe(self, slot: int, chance: float, note: object, loss: float) -> None:
        if not loss or not isinstance(note, float):
            return
        self.losses[slot] = min(self.losses[slot] + loss / (chance + self.bias * note), self._most)
        if self.names[slot] not in self.resting:
            self.weights[slot] = math.exp(-self.eta * self.losses[slot])
            self._stale = self._stale or self.weights.total < 0.5

    def weigh(self, slots: Sequence[int]) -> list[float]:
        shown = [self.losses[slot] for slot in slots]
        anchor = min(shown)
        return [math.exp(-self.eta * (loss - anchor)) for loss in shown]

    def joined(self, slot: int) -> None:
        """It starts with the mean weight."""
        awake = slot - len(self.resting)
        mean = self.weights.total / awake if awake > 0 and self.weights.total else 1.0
        self.losses.append(-math.log(mean) / self.eta)
        self.weights.append(mean)
        self._stale = True

    def left(self, slot: int) -> None:
        del self.losses[slot]
        self.weights.fill(self.weights[i] for i in range(len(self.names) + 1) if i != slot)
        self._stale = True

    def rested(self, slot: int, rests: bool) -> None:
        height = -self.eta * self.losses[slot]
        self.weights[slot] = 0.0 if rests else math.exp(min(height, LARGEST))
        self._stale = self._stale or self.weights.total < 0.5 or height > LARGEST
