"""What the bandit policies share: they learn from one bit, whether the pool accepted the request.

A pool rejects a request if it responds with 503 or 429, cannot be reached, or does not respond in time. Nothing else is
learned, and the queues are not used. Feedback is late, so the probability with which a pool was drawn, and whatever
else an update needs, travel with the decision.

A pool that sends Retry-After rests: it is not drawn until that time has passed. The probabilities of the other pools
grow in proportion, and the updates use these. If all pools rest, all of them are drawn.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from random import Random

from dispatcher.core.policy import BasePolicy, FleetView, PoolView
from dispatcher.core.types import Added, Change, Completion, Decision, Job
from dispatcher.errors import ConfigError
from dispatcher.policies.bandit_weights import Weights

MAX_REST_SECONDS = 60.0  # a longer Retry-After counts as this
MAX_OPTION = 10**15  # of an option that has no other limit


class BanditPolicy(BasePolicy):
    """Numbers its pools in the order of joining and learns from their rejections.

    The number of a pool from 0 is its slot. A subclass overrides `sample`, `context_for_update`, `update`, `pool_added`
    and `pool_removed`, and where it needs them `begin_decision` and `rest_changed`.
    """

    learns_rejections = True

    def __init__(self, *, rng: Random) -> None:
        super().__init__(rng=rng)
        self.names: list[str] = []  # by slot
        self.slots: dict[str, int] = {}  # by name
        self.resting: dict[str, float] = {}  # by name: the end of the rest
        self._rest_ends: list[tuple[float, str]] = []  # a heap
        self.sends = 0  # t: the decisions so far

    # -- what a subclass overrides

    def begin_decision(self, now: float) -> None:
        """Prepare for one more decision. `sends` counts it already."""

    def sample(self, pools: Sequence[PoolView] | None, now: float) -> tuple[int, float]:
        """Return a slot and its probability.

        pools: the pools to choose from; None for all pools that do not rest.
        """
        raise NotImplementedError(f"{self.name} must say how it samples")

    def context_for_update(self, slot: int, unrestricted: bool, now: float) -> object:
        """Return what `update` will need to know about this decision. It must not be None.

        unrestricted: whether every pool could have been chosen.
        """
        raise NotImplementedError(f"{self.name} must say what it needs")

    def update(self, slot: int, probability: float, context: object, loss: float) -> None:
        """Learn from the outcome of a decision. loss: 1 for a rejection, 0 for an acceptance."""
        raise NotImplementedError(f"{self.name} must learn")

    def pool_added(self, slot: int) -> None:
        """Take in that a pool has joined with this slot, the last one."""
        raise NotImplementedError(f"{self.name} must add a pool")

    def pool_removed(self, slot: int) -> None:
        """Take in that the pool of this slot has left. The slots behind it have moved up by one."""
        raise NotImplementedError(f"{self.name} must remove a pool")

    def rest_changed(self, slot: int, rests: bool) -> None:
        """Take in that the pool of this slot has begun or ended a rest."""

    # -- the methods of a policy

    def choose(self, job: Job, fleet: FleetView, now: float) -> Decision:
        self.episode.arrived(now)
        if self._rest_ends and self._rest_ends[0][0] <= now:
            self._end_rests(now)
        self.sends += 1
        self.begin_decision(now)
        pools = fleet.pools
        # A retry shows a part of the fleet only. If all pools rest, `_without_resting` lets all of them be drawn.
        is_whole_fleet = len(pools) == len(self.names) and len(self.resting) < len(pools)
        slot, probability = self.sample(None if is_whole_fleet else self._without_resting(pools), now)
        context = self.context_for_update(slot, is_whole_fleet and not self.resting, now)
        return Decision(self.names[slot], probability, context)

    def learn(self, done: Completion, fleet: FleetView) -> None:
        decision = done.ticket.decision
        # The memo is None if another policy made the decision; then the probability is unknown.
        slot = self.slots.get(decision.pool)
        if slot is not None and decision.memo is not None and done.accepted is not None:
            self.update(slot, decision.probability, decision.memo, 0.0 if done.accepted else 1.0)
            if done.retry_after and not done.accepted:
                self._begin_rest(decision.pool, done.finished_at + min(done.retry_after, MAX_REST_SECONDS))
        super().learn(done, fleet)

    def adapt(self, change: Change, fleet: FleetView) -> None:
        super().adapt(change, fleet)
        if isinstance(change, Added):
            # A policy that becomes active again still knows its pools.
            if change.spec.id not in self.slots:
                self.slots[change.spec.id] = len(self.names)
                self.names.append(change.spec.id)
                self.pool_added(len(self.names) - 1)
            return
        slot = self.slots[change.pool]
        self.resting.pop(change.pool, None)
        del self.names[slot]
        self.slots = {name: i for i, name in enumerate(self.names)}
        self.pool_removed(slot)

    # -- rests

    def _without_resting(self, pools: Sequence[PoolView]) -> Sequence[PoolView]:
        """Return these pools without the resting ones, or all of them if all rest."""
        return [pool for pool in pools if pool.id not in self.resting] or pools

    def _active_slots(self) -> Sequence[int]:
        """Return the slots of the pools that do not rest."""
        if not self.resting:
            return range(len(self.names))
        return [slot for slot, name in enumerate(self.names) if name not in self.resting]

    def _begin_rest(self, pool: str, until: float) -> None:
        # A pool has one entry in the heap. `_end_rests` moves it if the rest has become longer meanwhile.
        already_rests = pool in self.resting
        self.resting[pool] = max(until, self.resting.get(pool, until))
        if not already_rests:
            heapq.heappush(self._rest_ends, (until, pool))
            self.rest_changed(self.slots[pool], True)

    def _end_rests(self, now: float) -> None:
        while self._rest_ends and self._rest_ends[0][0] <= now:
            _, pool = heapq.heappop(self._rest_ends)
            until = self.resting.get(pool)
            if until is None:  # the pool has left meanwhile
                continue
            if until > now:  # the pool has asked for a longer rest meanwhile
                heapq.heappush(self._rest_ends, (until, pool))
                continue
            del self.resting[pool]
            self.rest_changed(self.slots[pool], False)


class RandomizedPolicy(BanditPolicy):
    """Draws a pool in proportion to weights.

    smooth: take turns in those proportions instead (smooth weighted round robin), from random initial credits. A pool
        is then visited at even distances, when its buffer has had the time to empty. More requests are accepted; no
        proof covers this.
    """

    weights: Weights  # by slot; 0 for a pool that rests

    def __init__(self, *, rng: Random, smooth: bool = False) -> None:
        super().__init__(rng=rng)
        self.smooth = smooth
        self._credits: list[float] = []

    def weights_of(self, slots: Sequence[int]) -> list[float]:
        """Return the weights of these slots up to a factor, whether the pools rest or not. They are not all 0."""
        raise NotImplementedError(f"{self.name} must weigh pools")

    def adapt(self, change: Change, fleet: FleetView) -> None:
        if isinstance(change, Added):
            if change.spec.id not in self.slots:
                self._credits.append(self.rng.random() if self.smooth else 0.0)
        else:
            del self._credits[self.slots[change.pool]]
        super().adapt(change, fleet)

    def sample(self, pools: Sequence[PoolView] | None, now: float) -> tuple[int, float]:
        total = self.weights.total
        # `weights` serves a draw from all active pools only.
        if pools is None and not self.smooth and total:
            slot = self.weights.find(self.rng.random() * total)
            return slot, self.weights[slot] / total
        slots = self._active_slots() if pools is None else [self.slots[pool.id] for pool in pools]
        weights = self.weights_of(slots)
        total = sum(weights)
        i = self._next_turn(slots, weights, total) if self.smooth else self._draw_index(weights, total)
        return slots[i], weights[i] / total

    def _draw_index(self, weights: Sequence[float], total: float) -> int:
        at, i = self.rng.random() * total, 0
        for i, weight in enumerate(weights):
            if at < weight:
                return i
            at -= weight
        return i  # rounding may lead beyond the last weight

    def _next_turn(self, slots: Sequence[int], weights: Sequence[float], total: float) -> int:
        credit, best = self._credits, -1
        for i, slot in enumerate(slots):
            credit[slot] += weights[i] / total
            # A pool of weight 0 gets no turn, whatever its credit is.
            if weights[i] and (best < 0 or credit[slot] > credit[slots[best]]):
                best = i
        credit[slots[best]] -= 1.0
        return best

    def probabilities(self) -> Mapping[str, float]:
        slots = self._active_slots() or range(len(self.names))
        weights = self.weights_of(slots) if self.names else []
        total = sum(weights)
        active = {self.names[slot]: weight / total for slot, weight in zip(slots, weights, strict=True)}
        return dict.fromkeys(self.names, 0.0) | active


def check_at_least(value: float, minimum: float, what: str) -> float:
    """Return the value of an option. Raises ConfigError if it is below the minimum or above `MAX_OPTION`.

    what: the name of the option.
    """
    if not minimum <= value <= MAX_OPTION:
        raise ConfigError(f"{what} must be from {minimum:g} to {MAX_OPTION:g}, not {value}")
    return value
