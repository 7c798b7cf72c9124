"""curve: sends each request to the pool where it costs the least total time. It needs no configured number of servers.

The policy learns two numbers for each pool (`estimators.throughput_curve`). One is s, the seconds that one request
takes while the pool keeps up. The other is c, the number of requests in flight up to which it keeps up. With q requests
in flight, n = q + 1 and λ the pool's present arrivals per second, the cost of one more request is

    s (1 + ((n − c)⁺ + ρ/(1 − ρ) (n + 1 − c)⁺)/c),    ρ = min(3/4, λ s/c).

The first term is the request's own work, the second its own wait, the third the wait that it adds to later requests.
With ρ = 0 this is Shortest Expected Delay. For c = 1 and for c = ∞ it is the exact relative value of one more request.

Trials: an idle pool with fewer than three responses gets the request. The sums of an idle pool are cleared if it has
received none of the last `memory` requests, so it is tried again.

Fading: all sums fade by half in `memory` requests of the fleet. Recent responses of a pool with many observations may
disagree with its earlier ones (`estimators.surprise`). Its sums then fade at once to the weight of ten responses.

Revisits: an idle pool gets a request if it has received none of the last 1,750 requests, or of the last 35 % of the
memory if that is more. The pool has become fast if its response takes less than twice the least service time of the
other pools, and less than half of its own (less for service times that vary much). Its sums are then cleared, so that
it is learned anew.

A failed or rejected request counts as a response that took ten usual service times longer. A request counts with its
time in flight only if its client cancelled it or read too slowly. So does a client error (4xx), unless the pool has
fewer than three responses; then it counts as failed.

Symbols: H -> `_half_life`, s and c -> `service_seconds` and `capacity` of `ThroughputCurve`, λ -> `arrival_rate`, s0 ->
`usual_seconds`, n0 -> `MIN_RESPONSES`, ρmax -> `MAX_LOAD`. Source: the rule is our own; docs/curve.md explains it.
Limits: a throughput curve that bends softly has more than two numbers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from random import Random

import numpy as np

from dispatcher.core.estimate import CapacityEstimate
from dispatcher.core.expected_delay import Floats
from dispatcher.core.memory import (
    AUTOMATIC,
    COMPETITIVE,
    FOREVER,
    REVISIT,
    STALE_AFTER,
    SURPRISING,
    LastUse,
    check_memory,
    half_life,
    unused_after,
)
from dispatcher.core.policy import CostOracle, FleetView, PolicyState, PoolView
from dispatcher.core.types import Added, Change, Completion, Decision, Job, Outcome, Phase, Ticket
from dispatcher.errors import ConfigError
from dispatcher.estimators.surprise import Surprise
from dispatcher.estimators.throughput_curve import ThroughputCurve
from dispatcher.policies.base import MAX_DEPARTED_POOLS, MIN_POOLS_FOR_ARRAYS, ScoredPolicy

RATE_MEMORY_SHARE = 0.1  # the arrival rates of the pools fade in this share of the memory
MIN_RESPONSES = 3  # an idle pool with fewer responses is tried
MAX_LOAD = 0.75  # ρ beyond it counts as this, because ρ/(1 − ρ) has no bound
FAILURE_SERVICE_TIMES = 10  # the usual service times that are added to the duration of a failed request
MIN_RESPONSES_FOR_CHANGE = 200  # with fewer responses the estimates follow a change fast enough by themselves
RESPONSES_AFTER_CHANGE = 10  # the weight of the sums of a pool after a change
INITIAL_USUAL_SECONDS = 1.0  # before the first response
MIN_USUAL_SECONDS = 1e-9
MAX_UNANSWERED = 100  # usual service times of work without a response that count; an outage must not distort the mean
MAX_WEIGHT = 2.0**100  # the sums are scaled down when a weight exceeds it


def cost(in_flight: int, service_seconds: float, capacity: float, arrival_rate: float) -> float:
    """Return the seconds that one more request costs: its own response time and the wait that it adds to later ones.

    in_flight: q, without this request.
    service_seconds, capacity: s and c of the pool.
    arrival_rate: λ, the requests per second that the pool receives.

    >>> cost(0, service_seconds=0.1, capacity=1.0, arrival_rate=0.0)
    0.1
    >>> cost(3, service_seconds=0.1, capacity=1.0, arrival_rate=5.0)
    0.8
    """
    beyond = in_flight + 2 - capacity
    if beyond <= 0:
        return service_seconds
    load = min(MAX_LOAD, arrival_rate * service_seconds / capacity)
    own_wait = beyond - 1 if beyond > 1 else 0.0
    return service_seconds * (1 + (own_wait + load / (1 - load) * beyond) / capacity)


def costs(in_flight: Floats, service_seconds: Floats, capacity: Floats, arrival_rate: Floats) -> Floats:
    """Return `cost` for many pools at once, as an array."""
    beyond = np.maximum(0.0, in_flight + 2 - capacity)
    load = np.minimum(MAX_LOAD, arrival_rate * service_seconds / capacity)
    own_wait = np.maximum(0.0, beyond - 1)
    total: Floats = service_seconds * (1 + (own_wait + load / (1 - load) * beyond) / capacity)
    return total


class _PoolState(ThroughputCurve):
    """The curve of one pool, and what routing needs in addition.

    sent: the weighted and fading number of requests sent to it.
    surprise: the test that its recent responses agree with its earlier ones.
    updated_at: the time until which its seconds are counted, None at first.
    counted_from: the time since which they are counted, None at first. A request that joined earlier is not counted.
    """

    __slots__ = ("counted_from", "sent", "surprise", "updated_at")

    def __init__(self, usual_seconds: float, servers: int = 1) -> None:
        self.surprise = Surprise()
        super().__init__(usual_seconds, servers)
        self.sent = 0.0

    def clear(self, usual_seconds: float) -> None:
        super().clear(usual_seconds)
        self.surprise.restart()
        self.updated_at: float | None = None
        self.counted_from: float | None = None

    def has_changed(self, weight: float) -> bool:
        """Count a departure, and return whether a pool with many observations has changed."""
        return self.surprise.depart(self.service_seconds) and self.departed >= MIN_RESPONSES_FOR_CHANGE * weight

    def fade(self, weight: float) -> None:
        """Reduce the weight of all observations to that of `RESPONSES_AFTER_CHANGE` responses."""
        self.scale(RESPONSES_AFTER_CHANGE * weight / self.departed)
        self.surprise.restart()


class _Table:
    """The states of many pools as arrays of one length, in the order of `pools`."""

    def __init__(self, pools: Sequence[PoolView], states: Mapping[str, _PoolState]) -> None:
        self.pools = pools
        self._index = {pool.id: i for i, pool in enumerate(pools)}
        self.service_seconds = np.empty(len(pools))
        self.capacity = np.empty(len(pools))
        self.sent = np.empty(len(pools))
        self.departed = np.empty(len(pools))
        for pool in pools:
            self.update(pool.id, states[pool.id])
        self.read_in_flight()

    def update(self, pool: str, state: _PoolState) -> None:
        """Take over the state of one pool."""
        i = self._index.get(pool)
        if i is not None:
            self.service_seconds[i] = state.service_seconds
            self.capacity[i] = state.capacity
            self.sent[i] = state.sent
            self.departed[i] = state.departed

    def read_in_flight(self) -> None:
        """Read the requests in flight of all pools."""
        self.in_flight = np.fromiter([pool.in_flight for pool in self.pools], dtype=float, count=len(self.pools))


class Curve(ScoredPolicy):
    """Learns each pool's speed and capacity; least total cost of a request. Needs no number of servers.

    ties: how to decide between equal scores: `first`, `random`, `slowest` or `fastest`.
    memory: the requests of the fleet in which what was learned fades by half. 0 stands for 5,000, or 500 per pool if
        that is more. -1 stands for no forgetting.
    """

    state_kind = "curves"

    def __init__(self, *, rng: Random, ties: str = "first", memory: int = 0) -> None:
        super().__init__(rng=rng, ties=ties)
        self.memory = check_memory(memory)
        description = "the score of curve with the true service times and servers, at the present arrival rates"
        self.oracle = CostOracle(description, self._true_costs)
        self._last_use = LastUse()
        self._states: dict[str, _PoolState] = {}
        self._departed: dict[str, _PoolState] = {}
        self._table: _Table | None = None
        self._requests = 0
        self._last_request_at: float | None = None
        self._weight = self._rate_weight = 1.0
        self._seconds = 0.0  # since the first request, weighted by _rate_weight
        self._work = self._responses = 0.0  # of the whole fleet, weighted by _weight
        self._unanswered = 0.0  # seconds of work since the last response, as far as they are counted in `_work`
        self._max_unanswered = math.inf
        self._withheld = 0.0  # the seconds beyond the maximum
        self._set_memory()

    # -- what it has learned

    @property
    def usual_seconds(self) -> float:
        """The mean seconds of work for a response, over the whole fleet."""
        if not self._responses:
            return INITIAL_USUAL_SECONDS
        return max(MIN_USUAL_SECONDS, self._work / self._responses)

    def rate(self, pool: str) -> float:
        """Return 1/s: the requests per second with one request in flight."""
        return 1 / self._states[pool].service_seconds

    def arrival_rate(self, pool: str) -> float:
        """Return the requests per second that the pool receives now."""
        return self._states[pool].sent / self._seconds if self._seconds else 0.0

    def estimates(self) -> Mapping[str, CapacityEstimate]:
        """Return the estimates of the open pools and of the departed ones that are kept."""
        states = {**self._departed, **self._states}
        return {pool: state.estimate(self._weight) for pool, state in states.items()}

    def _true_costs(self, pools: Sequence[PoolView], rates: Mapping[str, float]) -> Sequence[float]:
        """Return the scores with s = 1/rate and c = the configured servers, at the present arrival rates."""
        return [
            cost(pool.in_flight, 1 / rates[pool.id], float(pool.servers), self.arrival_rate(pool.id)) for pool in pools
        ]

    # -- routing

    def choose(self, job: Job, fleet: FleetView, now: float) -> Decision:
        self.episode.arrived(now)
        self._fade(now)
        # A pool that was not used for a half-life counts as unknown, and becomes a candidate of the trial below.
        for pool in self._last_use.idle_and_unused(self._half_life, self._requests, fleet):
            self._relearn(pool.id)
        pools = fleet.pools
        if len(pools) < MIN_POOLS_FOR_ARRAYS:
            trial = self._trial(pools)
        else:
            self._table_of(pools).read_in_flight()
            trial = self._trial_of_many(pools)
        if trial is not None:
            self.episode.explored = True
            was_long_ago = self._last_use.unused_for(trial.id, self._requests) > STALE_AFTER
            return Decision(trial.id, phase=Phase.EXPLORE, memo=REVISIT if was_long_ago else None)
        unused = self._last_use.idle_and_unused(self._unused_after, self._requests, fleet)
        if unused:
            self.episode.explored = True
            return Decision(unused[0].id, phase=Phase.EXPLORE, memo=REVISIT)
        return Decision(self.least(pools, now).id)

    def _fade(self, now: float) -> None:
        """Count one more request, and reduce the weight of everything that was counted before."""
        self._requests += 1
        # The weight of new events grows, and the old sums stay. So the time does not depend on the number of sums.
        self._weight *= self._growth
        self._rate_weight *= self._rate_growth
        if self._last_request_at is not None:
            self._seconds += (now - self._last_request_at) * self._rate_weight
        self._last_request_at = now
        if self._weight > MAX_WEIGHT or self._rate_weight > MAX_WEIGHT:
            self._scale_down()

    def _trial(self, pools: Sequence[PoolView]) -> PoolView | None:
        """Return the first idle pool with too few responses, or None."""
        enough, states = MIN_RESPONSES * self._weight, self._states
        for pool in pools:
            if pool.in_flight == 0 and states[pool.id].departed < enough:
                return pool
        return None

    def _trial_of_many(self, pools: Sequence[PoolView]) -> PoolView | None:
        """Return what `_trial` returns, for many pools."""
        table = self._table_of(pools)
        untried = (table.in_flight == 0) & (table.departed < MIN_RESPONSES * self._weight)
        first = int(untried.argmax())
        return pools[first] if untried[first] else None

    def score(self, pool: PoolView, now: float) -> float:
        state = self._states[pool.id]
        arrival_rate = state.sent / self._seconds if self._seconds else 0.0
        return cost(pool.in_flight, state.service_seconds, state.capacity, arrival_rate)

    def score_all(self, pools: Sequence[PoolView], now: float) -> Sequence[float] | Floats:
        if len(pools) < MIN_POOLS_FOR_ARRAYS:
            return super().score_all(pools, now)
        table = self._table_of(pools)
        arrival_rate = table.sent / self._seconds if self._seconds else np.zeros(len(pools))
        return costs(table.in_flight, table.service_seconds, table.capacity, arrival_rate)

    def rates(self, pools: Sequence[PoolView]) -> Sequence[float] | Floats:
        return super().rates(pools) if len(pools) < MIN_POOLS_FOR_ARRAYS else 1 / self._table_of(pools).service_seconds

    def _table_of(self, pools: Sequence[PoolView]) -> _Table:
        if self._table is None or self._table.pools is not pools:
            self._table = _Table(pools, self._states)
        return self._table

    # -- learning

    def request_joined(self, pool: PoolView, now: float) -> None:
        """Count a request that joins a pool. The count of the pool does not include it yet."""
        state = self._states[pool.id]
        in_flight = pool.in_flight
        self._spend(state, in_flight, now)
        self._last_use.use(pool.id, self._requests)
        state.sent += self._rate_weight
        new_largest = state.join(in_flight + 1)
        self._refit(pool.id, state, new_largest)

    def learn(self, done: Completion, fleet: FleetView) -> None:
        ticket = done.ticket
        state = self._states.get(ticket.pool.id) or self._departed.get(ticket.pool.id)
        if state is not None:
            in_flight = ticket.pool.in_flight + 1  # the pool no longer counts this request
            failed = self._has_failed(state, done)
            if ticket.decision.memo == REVISIT and done.teaches and not failed:
                self._judge_revisit(ticket, done.finished_at)
            self._spend(state, in_flight, done.finished_at)
            is_counted = state.counted_from is not None and ticket.routed_at >= state.counted_from
            if is_counted and (failed or done.teaches):
                self._complete(state, in_flight, done, failed)
                # A policy that keeps all observations for ever does not drop them at a change either.
                changed = self.memory != FOREVER and state.has_changed(self._weight)
                if changed:
                    state.fade(self._weight)
                self._refit(ticket.pool.id, state, changed)
        super().learn(done, fleet)

    def _has_failed(self, state: _PoolState, done: Completion) -> bool:
        """Return whether the request counts as failed.

        A client error (4xx) of a pool with too few responses counts as well. Otherwise there would be no observation,
        and the pool would be tried again and again.
        """
        if done.accepted is False or done.outcome in (Outcome.FAILED, Outcome.TIMED_OUT):
            return True
        unusable = done.outcome is Outcome.OK and not done.teaches and not done.ticket.timing_discarded
        return unusable and state.departed < MIN_RESPONSES * self._weight

    def _judge_revisit(self, ticket: Ticket, now: float) -> None:
        """Learn a pool anew if a request after a long time shows that it has become one of the fastest."""
        pool, seconds = ticket.pool.id, now - ticket.routed_at
        state = self._states.get(pool)
        others = [other.service_seconds for name, other in self._states.items() if name != pool]
        if state is None or not others or seconds > COMPETITIVE * min(others):
            return
        usual_spread = (1 + state.variation(self._weight)) / 2  # 1 for exponential service times
        if seconds * SURPRISING * usual_spread < state.service_seconds:
            self._relearn(pool)
            # The request that has shown it is the first observation of the new sums.
            state.updated_at = state.counted_from = ticket.routed_at

    def _spend(self, state: _PoolState, in_flight: int, now: float) -> None:
        """Count the time since the last event of the pool. in_flight: its requests during that time."""
        if in_flight and state.updated_at is not None and now > state.updated_at:
            seconds = now - state.updated_at
            state.spend(in_flight, seconds, self._weight)
            work = seconds * min(in_flight, state.capacity)
            state.surprise.spend(work)
            # The usual seconds are work divided by responses, and during an outage the work alone would grow.
            if self._unanswered < self._max_unanswered:
                self._unanswered += work
                self._work += self._weight * work
            else:
                self._withheld += work
        if state.updated_at is None or now > state.updated_at:
            state.updated_at = now
        if state.counted_from is None:
            state.counted_from = now

    def _complete(self, state: _PoolState, in_flight: int, done: Completion, failed: bool) -> None:
        """Count a departure. in_flight: the requests before it, with this one."""
        seconds = max(0.0, done.finished_at - done.ticket.routed_at)
        if failed:
            penalty = FAILURE_SERVICE_TIMES * self.usual_seconds
            state.spend(in_flight, penalty, self._weight)
            state.surprise.spend(penalty)
            seconds += penalty
        else:
            self._responses += self._weight
            if self._withheld:  # the pool did respond, so the work of this response is counted after all
                self._work += self._weight * min(self._withheld, seconds)
            self._unanswered = self._withheld = 0.0
            self._max_unanswered = MAX_UNANSWERED * max(seconds, self.usual_seconds)
        state.complete(in_flight, done.ticket.in_flight_before, seconds, self._weight)

    def _refit(self, pool: str, state: _PoolState, now: bool = False) -> None:
        """Fit the curve of a pool, if a fit is due or must be made now."""
        if now or state.is_fit_due(self._weight):
            state.fit(self._weight, self.usual_seconds)
        if self._table is not None:
            self._table.update(pool, state)

    # -- membership and memory

    def adapt(self, change: Change, fleet: FleetView) -> None:
        if isinstance(change, Added):
            pool = change.spec.id
            # A pool stays in `_states` while another policy is active, and is added again when this one is.
            state = self._departed.pop(pool, None) or self._states.get(pool)
            if state is not None:
                self._last_use.use(pool, self._requests)
            else:
                state = _PoolState(self.usual_seconds, change.spec.servers)
            state.servers = change.spec.servers
            self._states[pool] = state
        else:
            self._departed[change.pool] = self._states.pop(change.pool)
            self._last_use.discard(change.pool)
            while len(self._departed) > MAX_DEPARTED_POOLS:
                del self._departed[next(iter(self._departed))]
        self._table = None
        super().adapt(change, fleet)
        self._set_memory()

    def reset_pool(self, pool: str) -> None:
        self._departed.pop(pool, None)
        if pool in self._states:
            self._states[pool].responses = 0
            self._relearn(pool)

    def _relearn(self, pool: str) -> None:
        """Clear the sums of a pool."""
        self._last_use.discard(pool)
        state = self._states.get(pool)
        if state is not None:
            state.clear(self.usual_seconds)
            if self._table is not None:
                self._table.update(pool, state)

    def get_state(self) -> PolicyState:
        states = {**self._departed, **self._states}
        return {pool: state.dump(self._weight) for pool, state in states.items() if state.departed}

    def set_state(self, state: PolicyState) -> None:
        # The pools count as departed ones: a pool that joins under the same name takes its sums over.
        faults = []
        for pool, sums in list(state.items())[-MAX_DEPARTED_POOLS:]:
            pool_state = _PoolState(INITIAL_USUAL_SECONDS)
            try:
                pool_state.load(sums, self._weight)
            except (TypeError, ValueError) as error:
                faults.append(f"pool {pool!r}: {error}")
                continue
            self._departed[pool] = pool_state
            self._work += pool_state.work
            self._responses += pool_state.departed
        # The fits need the usual seconds, which rest on all of the sums.
        for pool_state in self._departed.values():
            pool_state.fit(self._weight, self.usual_seconds)
        if faults:
            raise ConfigError(f"these are no throughput curves and are not used: {'; '.join(faults)}")

    def _set_memory(self) -> None:
        self._half_life = half_life(self.memory, len(self.specs))
        self._unused_after = unused_after(self._half_life)
        self._growth = 2.0 ** (1 / self._half_life)
        # Arrival rates describe the present traffic, so they fade even if what was learned does not.
        finite = half_life(max(self.memory, AUTOMATIC), len(self.specs))
        self._rate_growth = 2.0 ** (1 / (RATE_MEMORY_SHARE * finite))

    def _scale_down(self) -> None:
        """Divide all weighted sums by the present weights, which have grown large."""
        down, rate_down = 1 / self._weight, 1 / self._rate_weight
        for states in (self._states, self._departed):
            for state in states.values():
                state.scale(down)
                state.sent *= rate_down
        self._work *= down
        self._responses *= down
        self._seconds *= rate_down
        self._weight = self._rate_weight = 1.0
        self._table = None  # it holds sums of the old scale
