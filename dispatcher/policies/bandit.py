"""What the policies share that learn from one bit: the pool took the request, or it did not.

A pool that answers 503 or 429, cannot be reached, or lets the time run out before its answer has rejected; nothing else
is learned, and queues are not looked at. Feedback is late, so the chance with which a pool was drawn, and what else an
update needs, travel with the decision. A pool that says Retry-After is left out of the draw until then; the chances of
the others grow in proportion, and those are what the update uses. If all ask to be left alone, none is.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from random import Random

from dispatcher.core.policy import FleetView, PoolView
from dispatcher.core.types import Added, Change, Completion, Decision, Job
from dispatcher.errors import ConfigError
from dispatcher.policies.bandit_weights import Weights
from dispatcher.policies.base import BasePolicy

LONGEST_REST = 60.0  # seconds that a pool is left alone at its word


class FeedbackPolicy(BasePolicy):
    """Numbers its pools from 0 in the order of joining (`names`, `slots`), and hears of rejections.

    A subclass answers `prepare`, `pick`, `note`, `observe`, `joined`, `left`, and hears `rested` where that matters.
    """

    learns_rejections = True

    def __init__(self, *, rng: Random) -> None:
        super().__init__(rng=rng)
        self.names: list[str] = []
        self.slots: dict[str, int] = {}
        self.resting: dict[str, float] = {}  # pool -> until when
        self._due: list[tuple[float, str]] = []
        self.sends = 0

    def prepare(self, now: float) -> None:
        """One more decision is to be made; `sends` counts it already."""

    def pick(self, pools: Sequence[PoolView] | None, now: float) -> tuple[int, float]:
        """A slot, and the chance that it had; of these pools, or of all that do not rest."""
        raise NotImplementedError(f"{type(self).__name__} must say how it picks")

    def note(self, slot: int, whole: bool, now: float) -> object:
        """What the update will need; not None. whole: any pool could have been chosen."""
        raise NotImplementedError(f"{type(self).__name__} must say what it needs")

    def observe(self, slot: int, chance: float, note: object, loss: float) -> None:
        """The decision's outcome: loss is 1 for a rejection, 0 for an acceptance."""
        raise NotImplementedError(f"{type(self).__name__} must learn")

    def joined(self, slot: int) -> None:
        """A pool was appended."""
        raise NotImplementedError(f"{type(self).__name__} must take a pool in")

    def left(self, slot: int) -> None:
        """The pool of this slot is gone, and those behind it have moved up."""
        raise NotImplementedError(f"{type(self).__name__} must let a pool go")

    def rested(self, slot: int, rests: bool) -> None:
        """The pool of this slot asks to be left alone, or is to be used again."""

    def choose(self, job: Job, fleet: FleetView, now: float) -> Decision:
        self.episode.arrived(now)
        if self._due and self._due[0][0] <= now:
            self._wake(now)
        self.sends += 1
        self.prepare(now)
        pools = fleet.pools
        whole = len(pools) == len(self.names) and len(self.resting) < len(pools)
        slot, chance = self.pick(None if whole else self._awake(pools), now)
        return Decision(self.names[slot], chance, self.note(slot, whole and not self.resting, now))

    def _awake(self, pools: Sequence[PoolView]) -> Sequence[PoolView]:
        return [pool for pool in pools if pool.id not in self.resting] or pools

    def _awake_slots(self) -> Sequence[int]:
        """Of all pools; none if all rest."""
        if not self.resting:
            return range(len(self.names))
        return [slot for slot, name in enumerate(self.names) if name not in self.resting]

    def learn(self, done: Completion, fleet: FleetView) -> None:
        decision = done.ticket.decision
        slot = self.slots.get(decision.pool)
        if slot is not None and decision.memo is not None and done.accepted is not None:
            self.observe(slot, decision.probability, decision.memo, 0.0 if done.accepted else 1.0)
            if done.retry_after and not done.accepted:
                self._rest(decision.pool, done.finished_at + min(done.retry_after, LONGEST_REST))
        super().learn(done, fleet)

    def adapt(self, change: Change, fleet: FleetView) -> None:
        super().adapt(change, fleet)
        if isinstance(change, Added):
            if change.spec.id in self.slots:  # it is back in force, and knows the pool
                return
            self.slots[change.spec.id] = len(self.names)
            self.names.append(change.spec.id)
            self.joined(len(self.names) - 1)
            return
        slot = self.slots[change.pool]
        self.resting.pop(change.pool, None)
        del self.names[slot]
        self.slots = {name: i for i, name in enumerate(self.names)}
        self.left(slot)

    def _rest(self, pool: str, until: float) -> None:
        rests = pool in self.resting
        self.resting[pool] = max(until, self.resting.get(pool, until))
        if not rests:
            heapq.heappush(self._due, (until, pool))
            self.rested(self.slots[pool], True)

    def _wake(self, now: float) -> None:
        while self._due and self._due[0][0] <= now:
            _, pool = heapq.heappop(self._due)
            until = self.resting.get(pool)
            if until is None:  # it left meanwhile
                continue
            if until > now:  # it has asked again
                heapq.heappush(self._due, (until, pool))
                continue
            del self.resting[pool]
            self.rested(self.slots[pool], False)


class DrawingPolicy(FeedbackPolicy):
    """Draws a pool in proportion to weights.

    smooth: takes turns in those proportions instead (smooth weighted round robin), from random initial credits: a pool
    is then visited at even distances, when its buffer has had the time to empty. More is accepted; no proof covers it.
    """

    weights: Weights  # of those that do not rest; 0 for those that do

    def __init__(self, *, rng: Random, smooth: bool = False) -> None:
        super().__init__(rng=rng)
        self.smooth = smooth
        self._credits: list[float] = []

    def weigh(self, slots: Sequence[int]) -> list[float]:
        """The weights of these, whether they rest or not, up to a factor; not all 0."""
        raise NotImplementedError(f"{type(self).__name__} must weigh pools")

    def adapt(self, change: Change, fleet: FleetView) -> None:
        if isinstance(change, Added):
            if change.spec.id not in self.slots:
                self._credits.append(self.rng.random() if self.smooth else 0.0)
        else:
            del self._credits[self.slots[change.pool]]
        super().adapt(change, fleet)

    def pick(self, pools: Sequence[PoolView] | None, now: float) -> tuple[int, float]:
        total = self.weights.total
        if pools is None and not self.smooth and total:
            slot = self.weights.find(self.rng.random() * total)
            return slot, self.weights[slot] / total
        slots = self._awake_slots() if pools is None else [self.slots[pool.id] for pool in pools]
        weighed = self.weigh(slots)
        total = sum(weighed)
        i = self._turn(slots, weighed, total) if self.smooth else self._draw(weighed, total)
        return slots[i], weighed[i] / total

    def _draw(self, weights: Sequence[float], total: float) -> int:
        at, i = self.rng.random() * total, 0
        for i, weight in enumerate(weights):
            if at < weight:
                return i
            at -= weight
        return i

    def _turn(self, slots: Sequence[int], weights: Sequence[float], total: float) -> int:
        owed, best = self._credits, -1
        for i, slot in enumerate(slots):
            owed[slot] += weights[i] / total
            if weights[i] and (best < 0 or owed[slot] > owed[slots[best]]):
                best = i
        owed[slots[best]] -= 1.0
        return best

    def probabilities(self) -> Mapping[str, float]:
        """With which each open pool would be drawn, as of the last decision."""
        slots = self._awake_slots() or range(len(self.names))
        weighed = self.weigh(slots) if self.names else []
        total = sum(weighed)
        found = dict.fromkeys(self.names, 0.0)
        return found | {self.names[slot]: weight / total for slot, weight in zip(slots, weighed, strict=True)}


MOST = 10**15  # of an option that has no other limit


def at_least(value: float, least: float, what: str) -> float:
    """The value. Raises ConfigError."""
    if not least <= value <= MOST:
        raise ConfigError(f"{what} must be from {least:g} to {MOST:g}, not {value}")
    return value
