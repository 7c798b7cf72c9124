"""recharge: each pool when its one-request buffer has most likely been emptied; by a model instead of random draws.

Rule: join argmax_i μ̂_i (now − last_i), where last_i is the time of the last attempt there, accepted or not. After an
attempt the buffer is full either way, and it is empty again after time τ with probability 1 − exp(−μ̂ τ). ln μ̂ begins
at the guess of the pool and follows each outcome by a step of Fisher's scoring. The information of the estimate is
capped at `cap`, so that it can follow rates that change.

Symbols: ln μ̂ -> `_log_rate`, information -> `_information`, τ -> `Decision.memo`. Source: derived after *Learning in
Strategic Queuing with Geometric Recharge: From Bandits to Systems*. Limits: the model has one server and one place in
each pool, one dispatcher, and exponential services. Where it fits, no other policy here has more requests accepted;
where it does not fit, nothing is guaranteed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random

import numpy as np

from dispatcher.core.estimate import Estimate
from dispatcher.core.policy import PoolView
from dispatcher.policies.bandit import BanditPolicy, check_at_least

MIN_SERVICES, MAX_SERVICES = 1e-9, 50.0  # μ̂ τ is cut there, where an outcome has hardly any information
MIN_WAIT_SECONDS = 1e-9  # of τ
MAX_STEP = 1.0  # of ln μ̂ after one outcome, so that a surprising one does not throw the estimate away
LOG_RATE_RANGE = 30.0  # how far ln μ̂ may move from the guess


@dataclass(frozen=True, slots=True)
class LogRate:
    """An estimate whose logarithm is nearly normal. `information` is 1 divided by its variance."""

    rate: float
    observations: float
    information: float

    @property
    def interval(self) -> tuple[float, float]:
        factor = math.exp(1.96 / math.sqrt(self.information))
        return self.rate / factor, self.rate * factor


class Recharge(BanditPolicy):
    """Sends where the buffer has most likely been emptied, by rates learned from rejections.

    cap: the most information that an estimate may have.
    """

    def __init__(self, *, rng: Random, cap: float = 200.0) -> None:
        super().__init__(rng=rng)
        self.cap = check_at_least(cap, 1, "cap")
        self._log_rate = np.zeros(0)
        self._information = np.zeros(0)
        self._last_attempt = np.zeros(0)  # seconds; NaN before the first attempt
        self._observations: list[int] = []

    def sample(self, pools: Sequence[PoolView] | None, now: float) -> tuple[int, float]:
        if np.isnan(self._last_attempt).any():
            self._invent_attempts(now)
        # The logarithm of μ̂ (now − last) has its largest value at the same pool.
        scores = self._log_rate + np.log(np.maximum(MIN_WAIT_SECONDS, now - self._last_attempt))
        slots = self._active_slots() if pools is None else [self.slots[pool.id] for pool in pools]
        if len(slots) == len(scores):
            return int(scores.argmax()), 1.0
        return slots[int(scores[np.array(slots)].argmax())], 1.0

    def _invent_attempts(self, now: float) -> None:
        """Give each new pool a random time of a last attempt, so that new pools are not all tried at once."""
        new = np.flatnonzero(np.isnan(self._last_attempt))
        fleet_rate = float(np.exp(self._log_rate).sum())
        for slot in new:
            self._last_attempt[slot] = now - (1 + self.rng.random()) / fleet_rate

    def context_for_update(self, slot: int, unrestricted: bool, now: float) -> float:
        waited = now - float(self._last_attempt[slot])
        self._last_attempt[slot] = now
        return waited

    def update(self, slot: int, probability: float, context: object, loss: float) -> None:
        assert isinstance(context, float)
        if context <= 0:  # two attempts at the same instant tell nothing about the rate
            return
        z = min(max(math.exp(self._log_rate[slot]) * context, MIN_SERVICES), MAX_SERVICES)
        q = -math.expm1(-z)
        self._information[slot] = information = min(self._information[slot] + z * z * math.exp(-z) / q, self.cap)
        # q is the probability of acceptance. The step is the score of the outcome divided by the information.
        step = (1.0 - loss - q) * z / (q * information)
        log_guess = math.log(self.specs[self.names[slot]].guess)
        moved = self._log_rate[slot] + min(max(step, -MAX_STEP), MAX_STEP)
        self._log_rate[slot] = min(max(moved, log_guess - LOG_RATE_RANGE), log_guess + LOG_RATE_RANGE)
        self._observations[slot] += 1

    def pool_added(self, slot: int) -> None:
        self._log_rate = np.append(self._log_rate, math.log(self.specs[self.names[slot]].guess))
        self._information = np.append(self._information, 1.0)
        self._last_attempt = np.append(self._last_attempt, math.nan)
        self._observations.append(0)

    def pool_removed(self, slot: int) -> None:
        self._log_rate = np.delete(self._log_rate, slot)
        self._information = np.delete(self._information, slot)
        self._last_attempt = np.delete(self._last_attempt, slot)
        del self._observations[slot]

    def rate(self, pool: str) -> float:
        return math.exp(self._log_rate[self.slots[pool]])

    def estimates(self) -> Mapping[str, Estimate]:
        return {
            name: LogRate(self.rate(name), self._observations[slot], float(self._information[slot]))
            for name, slot in self.slots.items()
        }
