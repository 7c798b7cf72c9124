"""exp3_ix: a pool at random, seldom those that have rejected; no regret, whatever the pools and other senders do.

Rule: P(i) ∝ exp(−η L_i). A rejection adds 1/(p_i + γ) to L_i, with γ = η/2; an acceptance adds nothing. η is
√(ln m/(m t)) at the t-th send. It is kept from one power of two to the next, and it is never below its value at
`window` sends. `floor` keeps every weight above that share of the best one, so that a slow pool is tried again.

A draw and a rejection take time in proportion to log m. Where only a part of the fleet may be chosen, as for a retry, a
draw takes time in proportion to m. The weights are the leaves of a tree of sums, relative to the weight of the least L.
They are computed anew when their sum falls below a half.

Symbols: L -> `losses`, η -> `eta`, γ/η -> `bias` (0 is plain EXP3), m -> the number of pools, t -> `sends`.

Source: Neu, *Explore no more: improved high-probability regret bounds for non-stochastic bandits*. The tree and the
steps of η are our own; the bound holds up to a constant.

Guarantee: suppose that each pool holds one request and finishes it in a slot with probability μ_i. Then the share of
accepted requests is in the long run at least Hamacher's sum H (*Learning in Strategic Queuing Systems with Small
Buffers*). Limits: the theorem does not cover a pool of several servers, and the rule does not use the queues.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from random import Random

from dispatcher.errors import ConfigError
from dispatcher.policies.bandit import RandomizedPolicy, check_at_least
from dispatcher.policies.bandit_weights import SumTree

REBUILD_INTERVAL = 4096  # sends, once η no longer changes
MAX_LOG_WEIGHT = 0.7  # a pool that returns from a rest with a larger weight causes a rebuild
MIN_TOTAL = 0.5  # a smaller sum of the weights causes a rebuild


class Exp3Ix(RandomizedPolicy):
    """Learns from rejections alone: exponential weights with implicit exploration.

    smooth: as in `RandomizedPolicy`.
    window: η does not fall below its value after this many sends, so that old losses can be unlearned; 0 for no bound.
    floor: the least weight relative to the best one, 0 for none.
    bias: γ/η.
    each_send: compute η anew at each send, as in the source. A decision then takes time in proportion to m.
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
        self.window, self.bias = check_at_least(window, 0, "window"), check_at_least(bias, 0, "bias")
        self.floor, self.each_send = floor, each_send
        self.losses: list[float] = []  # L_i minus the least one at the last rebuild
        self.eta = 1.0
        self.weights: SumTree = SumTree()
        self._max_loss = math.inf
        self._needs_rebuild = False
        self._next_rebuild = 1  # in sends

    def begin_decision(self, now: float) -> None:
        if self._needs_rebuild or self.sends >= self._next_rebuild or self.each_send:
            self._rebuild()

    def _rebuild(self) -> None:
        """Compute η and all weights anew, relative to the weight of the best pool that does not rest."""
        m, t = len(self.names), self.sends
        epoch = t if self.each_send else 1 << (t.bit_length() - 1)  # the largest power of two up to t
        spread = (math.log(m) if m > 1 else 1.0) / m  # ln 1 = 0 would make η 0, and later divisions by it fail
        min_eta = math.sqrt(spread / self.window) if self.window else 0.0
        self.eta = max(math.sqrt(spread / epoch), min_eta)
        # A rebuild takes time in proportion to m, so there are at least m sends between two of them.
        self._next_rebuild = t + max(REBUILD_INTERVAL, m) if self.eta == min_eta else 2 * epoch
        self._max_loss = -math.log(self.floor) / self.eta if self.floor else math.inf
        # Only differences of losses matter. With the least one at 0 the largest weight is 1 and nothing overflows.
        active = [loss for name, loss in zip(self.names, self.losses, strict=True) if name not in self.resting]
        anchor = min(active or self.losses)
        self.losses = [min(loss - anchor, self._max_loss) for loss in self.losses]
        self.weights.fill(
            0.0 if name in self.resting else math.exp(-self.eta * loss)
            for name, loss in zip(self.names, self.losses, strict=True)
        )
        self._needs_rebuild = False

    def context_for_update(self, slot: int, unrestricted: bool, now: float) -> float:
        return self.eta

    def update(self, slot: int, probability: float, context: object, loss: float) -> None:
        if not loss or not isinstance(context, float):
            return  # an acceptance adds nothing
        self.losses[slot] = min(self.losses[slot] + loss / (probability + self.bias * context), self._max_loss)
        if self.names[slot] not in self.resting:
            self.weights[slot] = math.exp(-self.eta * self.losses[slot])
            self._needs_rebuild = self._needs_rebuild or self.weights.total < MIN_TOTAL

    def weights_of(self, slots: Sequence[int]) -> list[float]:
        # Among a part of the pools even the largest weight may have vanished, so the weights are computed anew.
        losses = [self.losses[slot] for slot in slots]
        anchor = min(losses)
        return [math.exp(-self.eta * (loss - anchor)) for loss in losses]

    def pool_added(self, slot: int) -> None:
        """Give the new pool the mean weight."""
        active = slot - len(self.resting)
        mean = self.weights.total / active if active > 0 and self.weights.total else 1.0
        self.losses.append(-math.log(mean) / self.eta)
        self.weights.append(mean)
        self._needs_rebuild = True

    def pool_removed(self, slot: int) -> None:
        del self.losses[slot]
        self.weights.fill(self.weights[i] for i in range(len(self.names) + 1) if i != slot)
        self._needs_rebuild = True

    def rest_changed(self, slot: int, rests: bool) -> None:
        log_weight = -self.eta * self.losses[slot]
        self.weights[slot] = 0.0 if rests else math.exp(min(log_weight, MAX_LOG_WEIGHT))
        is_off_scale = self.weights.total < MIN_TOTAL or log_weight > MAX_LOG_WEIGHT
        self._needs_rebuild = self._needs_rebuild or is_off_scale
