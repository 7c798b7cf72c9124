"""recharge: each pool when its one-request buffer has most likely been emptied; by a model, not by dice.

Rule: join argmax_i μ̂_i (now − last_i), last_i the last attempt there, whether it was taken or not: after either the
buffer is full, and it is empty again after time τ with chance 1 − exp(−μ̂ τ). ln μ̂ begins at the pool's guess and
follows each outcome by a step of Fisher's scoring; the information it stands on is capped at `cap`, or rates that
change would never be found out.

Symbols: ln μ̂ -> `_log_rate`, information -> `_information`, τ -> `Decision.memo`. Source: derived after *Learning in
Strategic Queuing with Geometric Recharge: From Bandits to Systems*. Limits: the model is one server and one place a
pool, one dispatcher, exponential services; where it fits nothing here accepts more, where it does not nothing is
promised.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random

import numpy as np

from dispatcher.core.policy import Estimate, PoolView
from dispatcher.policies.bandit import FeedbackPolicy, at_least

LEAST, MOST = 1e-9, 50.0  # of μ̂ τ, and the least of τ, seconds
RANGE = 30.0  # of ln μ̂, either way


@dataclass(frozen=True, slots=True)
class LogRate:
    """An estimate whose logarithm is near normal: `information` is 1 over its variance."""

    rate: float
    observations: float
    information: float

    @property
    def interval(self) -> tuple[float, float]:
        factor = math.exp(1.96 / math.sqrt(self.information))
        return self.rate / factor, self.rate * factor


class Recharge(FeedbackPolicy):
    """Sends where the buffer has most likely been emptied, by rates learned from rejections.

    cap: most information that an estimate is worth.
    """

    def __init__(self, *, rng: Random, cap: float = 200.0) -> None:
        super().__init__(rng=rng)
        self.cap = at_least(cap, 1, "cap")
        self._log_rate = np.zeros(0)
        self._information = np.zeros(0)
        self._last = np.zeros(0)  # nan: never tried
        self._tried: list[int] = []

    def pick(self, pools: Sequence[PoolView] | None, now: float) -> tuple[int, float]:
        if np.isnan(self._last).any():
            self._imagine(now)
        scores = self._log_rate + np.log(np.maximum(LEAST, now - self._last))
        slots = self._awake_slots() if pools is None else [self.slots[pool.id] for pool in pools]
        if len(slots) == len(scores):
            return int(scores.argmax()), 1.0
        return slots[int(scores[np.array(slots)].argmax())], 1.0

    def _imagine(self, now: float) -> None:
        """Those that were never tried: as if they had been a while ago, each at another time."""
        new = np.flatnonzero(np.isnan(self._last))
        fleet = float(np.exp(self._log_rate).sum())
        for slot in new:
            self._last[slot] = now - (1 + self.rng.random()) / fleet

    def note(self, slot: int, whole: bool, now: float) -> float:
        waited = now - float(self._last[slot])
        self._last[slot] = now
        return waited

    def observe(self, slot: int, chance: float, note: object, loss: float) -> None:
        assert isinstance(note, float)
        if note <= 0:  # the same instant again: the model has nothing to say of it
            return
        z = min(max(math.exp(self._log_rate[slot]) * note, LEAST), MOST)
        q = -math.expm1(-z)
        self._information[slot] = information = min(self._information[slot] + z * z * math.exp(-z) / q, self.cap)
        step = (1.0 - loss - q) * z / (q * information)
        guess = math.log(self.specs[self.names[slot]].guess)
        moved = self._log_rate[slot] + min(max(step, -1.0), 1.0)
        self._log_rate[slot] = min(max(moved, guess - RANGE), guess + RANGE)
        self._tried[slot] += 1

    def joined(self, slot: int) -> None:
        self._log_rate = np.append(self._log_rate, math.log(self.specs[self.names[slot]].guess))
        self._information = np.append(self._information, 1.0)
        self._last = np.append(self._last, math.nan)
        self._tried.append(0)

    def left(self, slot: int) -> None:
        self._log_rate = np.delete(self._log_rate, slot)
        self._information = np.delete(self._information, slot)
        self._last = np.delete(self._last, slot)
        del self._tried[slot]

    def rate(self, pool: str) -> float:
        return math.exp(self._log_rate[self.slots[pool]])

    def estimates(self) -> Mapping[str, Estimate]:
        return {
            name: LogRate(self.rate(name), self._tried[slot], float(self._information[slot]))
            for name, slot in self.slots.items()
        }
