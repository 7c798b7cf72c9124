"""What the policies share: the rule of the least score, and rates that are learned from service times.

`BasePolicy` (in `core.policy`) counts episodes. `ScoredPolicy` sends each request to the pool of the least score, which
is the expected delay unless a subclass overrides `score`. `LearningPolicy` estimates the rate of each pool. A new
policy derives from one of them and overrides one method.
"""

from __future__ import annotations

import math
from collections.abc import Container, Mapping, Sequence
from random import Random
from typing import Any, ClassVar

from dispatcher.core.argmin import Ties, argmin, check_ties
from dispatcher.core.expected_delay import Delays, Floats, work_ahead
from dispatcher.core.memory import (
    AUTOMATIC,
    COMPETITIVE,
    FOREVER,
    REVISIT,
    SURPRISING,
    LastUse,
    check_memory,
    half_life,
    unused_after,
)
from dispatcher.core.policy import NO_COUNTS, BasePolicy, FleetView, LocalCounts, PolicyState, PoolView
from dispatcher.core.types import Added, Change, Completion, Decision, Job, Phase
from dispatcher.errors import ConfigError
from dispatcher.estimators.mean import Mean
from dispatcher.estimators.named import estimator_maker

__all__ = ["BasePolicy", "IndexPolicy", "LearningPolicy", "ScoredPolicy"]

MIN_POOLS_FOR_ARRAYS = 24  # with fewer pools a loop is quicker than array operations
FADING_STEPS = 100  # per half-life
FASTER_FACTOR, FASTER_RUN = 4.0, 10  # a pool is faster if 10 services in a row took less than 1/4 of its mean
MAX_DEPARTED_POOLS = 256  # pools that left and whose estimates are kept in case they return


def has_room(pool: PoolView) -> bool:
    """Return whether a server of the pool is free. With one server the papers call such a pool idle."""
    return pool.in_flight < pool.servers


def drop_oldest_departed(by_pool: dict[str, Any], present: Container[str]) -> None:
    """Delete the oldest entry of a departed pool if there are more than `MAX_DEPARTED_POOLS` such entries."""
    departed = [pool for pool in by_pool if pool not in present]
    if len(departed) > MAX_DEPARTED_POOLS:
        del by_pool[departed[0]]


def check_exponent(exponent: float) -> float:
    """Return the option `exponent` of `ScoredPolicy`. Raises ConfigError if it is out of range."""
    if not 0 < exponent <= 1:
        raise ConfigError(f"exponent must be above 0 and at most 1, not {exponent:g}")
    return exponent


class ScoredPolicy(BasePolicy):
    """Sends each request to the pool of the least score.

    Unless the policy has another score, it is the expected delay (q + 1)/μ^e or its form for c servers
    (`core.expected_delay`). Here μ is `speed` and e is `exponent`. Override `score` or `score_all` for another score.

    ties: how to decide between equal scores: `first` (the pool of the lowest number, as in the papers), `random`,
        `slowest` or `fastest`.
    """

    scores_decide = True
    exponent = 1.0

    def __init__(self, *, rng: Random, ties: str = "first") -> None:
        super().__init__(rng=rng)
        self.ties: Ties = check_ties(ties)
        self.tie_rule = self.ties
        self._latest: tuple[Sequence[PoolView], Sequence[float] | Floats] | None = None
        self._delays: Delays | None = None  # of many pools; its rates are kept up to date
        # The arrays hold expected delays, so a subclass with another score is scored pool by pool.
        self._scores_delays = type(self).score is ScoredPolicy.score
        self._speed_is_rate = type(self).speed is ScoredPolicy.speed
        if self._scores_delays and type(self).score_all is not ScoredPolicy.score_all:
            self.scores_decide = False  # the subclass scores all pools together, so one pool by itself has no score

    def choose(self, job: Job, fleet: FleetView, now: float) -> Decision:
        self.episode.arrived(now)
        return Decision(self.best(fleet, now).id)

    def best(self, fleet: FleetView, now: float) -> PoolView:
        """Return the pool of the least score. This does not count as a decision."""
        return self.least(fleet.pools, now)

    def least(self, pools: Sequence[PoolView], now: float) -> PoolView:
        """Return the pool of the least score among these pools."""
        scores = self.score_all(pools, now)
        self._latest = pools, scores
        return argmin(pools, scores, self.ties, self.speed, self.rng)

    def score(self, pool: PoolView, now: float) -> float:
        return work_ahead(pool) / self.rate_to_power(self.speed(pool))

    def score_all(self, pools: Sequence[PoolView], now: float) -> Sequence[float] | Floats:
        """Return the score of each of these pools."""
        if self._scores_delays and len(pools) >= MIN_POOLS_FOR_ARRAYS:
            return self._delays_of(pools).scores()
        score = self.score
        return [score(pool, now) for pool in pools]

    def scores(self, pools: Sequence[PoolView], now: float) -> Sequence[float] | Floats:
        # A recorder asks right after the decision, so its scores are at hand.
        latest, self._latest = self._latest, None
        return latest[1] if latest is not None and latest[0] is pools else self.score_all(pools, now)

    def rates(self, pools: Sequence[PoolView]) -> Sequence[float] | Floats:
        # A subclass with a `speed` of its own has arrays of speeds, not of rates.
        if self._scores_delays and self._speed_is_rate and len(pools) >= MIN_POOLS_FOR_ARRAYS:
            return self._delays_of(pools).rates
        return tuple([self.rate(pool.id) for pool in pools])

    def speed(self, pool: PoolView) -> float:
        """Return the rate in the expected delay. The tie rules `slowest` and `fastest` compare it as well."""
        return self.rate(pool.id)

    def rate_to_power(self, rate: float) -> float:
        """Return μ^e."""
        # The usual exponent takes no power, which also keeps the rate exact.
        return rate if self.exponent == 1.0 else math.pow(rate, self.exponent)

    def rate_changed(self, pool: str) -> None:
        """Take in that `rate` returns another value for this pool. A subclass whose `rate` changes must call it."""
        if self._delays is not None and pool in self.specs:
            self._delays.rate_changed(pool)

    def _delays_of(self, pools: Sequence[PoolView]) -> Delays:
        # The fleet makes a new tuple whenever its pools change.
        if self._delays is None or self._delays.pools is not pools:
            self._delays = Delays(pools, self.speed, self.rate_to_power)
        return self._delays


IndexPolicy = ScoredPolicy  # the name in earlier versions


class LearningPolicy(ScoredPolicy):
    """Shortest expected delay on rates that are learned: one estimator for each pool, with N_i and S_i.

    The estimate of a pool that leaves is kept, so a short failure costs no knowledge. `rate` is the latest estimate,
    unless a subclass overrides it.

    exponent: e in (q + 1)/μ^e, above 0 and at most 1. e = 1 is SED, which minimises the delay of each request by
        itself. e = 0.7 keeps slow pools busier, and the mean over all requests is then close to the least possible.
        With c servers the delay is multiplied by μ^(1 − e). The exponent is our own (`docs/beyond-the-paper.md`);
        regret is always measured with e = 1.
    prior_weight: how many services the guess of a pool is worth. With 0 the first observation replaces the guess.
    estimator: `mean`, or `discounted:factor=0.99` or `window:size=100` for rates that change.
    memory: the requests of the fleet in which an observation loses half of its weight. 0 stands for 5,000, or 500 per
        pool if that is more. -1 stands for no forgetting, as in the papers.

    Unless `memory` is -1, an idle pool gets a request if it has not been used for long. That is 1,750 requests, or 35 %
    of the memory if that is more. The pool has become fast if two conditions hold. Its service takes less than half of
    its own mean, and less than twice the least mean of the other pools. It is then learned anew. A pool is also learned
    anew after ten services in a row that took less than a quarter of its mean.
    """

    paper_options: ClassVar[dict[str, Any]] = {"memory": FOREVER}  # with these a policy is what its paper describes

    state_kind = "rates"

    def __init__(
        self,
        *,
        rng: Random,
        ties: str = "first",
        exponent: float = 1.0,
        prior_weight: float = 0.0,
        estimator: str = "mean",
        memory: int = AUTOMATIC,
    ) -> None:
        super().__init__(rng=rng, ties=ties)
        if not 0 <= prior_weight < math.inf:
            raise ConfigError(f"prior_weight must be 0 or more, not {prior_weight}")
        self.exponent = check_exponent(exponent)
        self.prior_weight = prior_weight
        self.estimator = estimator
        self.memory = check_memory(memory)
        self.means: dict[str, Mean] = {}  # of the open pools
        self._make_mean = estimator_maker(estimator)
        self._departed: dict[str, Mean] = {}  # of pools that left, the earliest first
        self._local: dict[str, LocalCounts] = {}  # observed here; the means also hold what other dispatchers observed
        self._requests = 0
        self._last_use = LastUse()
        self._short: dict[str, tuple[int, float]] = {}  # by pool: number and seconds of the latest short services
        self._faded_at: dict[str, int] = {}  # by pool: the request at which its mean was last faded
        self._set_memory()

    # -- decisions

    def choose(self, job: Job, fleet: FleetView, now: float) -> Decision:
        self._requests += 1
        decision = self.decide(job, fleet, now)
        if self.memory == FOREVER:
            return decision
        # A forced trial does not count as a use, because the estimate of the pool has not led to it.
        if decision.phase is Phase.EXPLOIT:
            unused = self._last_use.idle_and_unused(self._unused_after, self._requests, fleet)
            if unused:
                self.episode.explored = True
                decision = Decision(unused[0].id, phase=Phase.EXPLORE, memo=REVISIT)
            self._last_use.use(decision.pool, self._requests)
        return decision

    def decide(self, job: Job, fleet: FleetView, now: float) -> Decision:
        """Return the decision of the policy itself, before unused pools are considered."""
        return super().choose(job, fleet, now)

    def rate(self, pool: str) -> float:
        return self.means[pool].rate

    def estimates(self) -> Mapping[str, Mean]:
        """Return the estimates of the open pools and of the departed ones that are kept."""
        return {**self._departed, **self.means}

    # -- learning

    def learn(self, done: Completion, fleet: FleetView) -> None:
        if done.service_time is not None:
            decision = done.ticket.decision
            became_fast = decision.memo == REVISIT and self._is_fast(decision.pool, done.service_time)
            if became_fast:
                self.reset_pool(decision.pool)
            self.observe(decision.pool, done.service_time)
            if became_fast:
                self.use_now(decision.pool)
        super().learn(done, fleet)

    def observe(self, pool: str, service_time: float) -> None:
        """Count one more service that this dispatcher has seen. service_time: seconds."""
        mean = self.means.get(pool) or self._departed.get(pool)
        if mean is not None:
            if self.memory != FOREVER:
                self._fade(pool, mean)
                self._restart_if_faster(pool, mean, service_time)
            mean.learn_one(service_time)
            n, s, observations = self._local.get(pool, NO_COUNTS)
            self._local[pool] = n + 1, s + service_time, observations + 1
            self.rate_changed(pool)

    def use_now(self, pool: str) -> None:
        """Decide by the latest estimate of a pool at once. A policy that otherwise waits overrides this."""

    def _is_fast(self, pool: str, service_time: float) -> bool:
        """Return whether one service of a pool that was long unused suggests that it is one of the fastest now."""
        mean = self.means.get(pool)
        other_rates = [other.rate for name, other in self.means.items() if name != pool]
        if mean is None or not other_rates:
            return False
        return service_time * max(other_rates) < COMPETITIVE and service_time * mean.rate * SURPRISING < 1

    def _fade(self, pool: str, mean: Mean) -> None:
        """Let the observations of a pool lose weight, in steps of `FADING_STEPS` per half-life."""
        # Larger steps cost less, because a power is computed at each of them.
        passed = self._requests - self._faded_at.setdefault(pool, self._requests)
        if passed * FADING_STEPS > self._half_life:
            mean.fade(0.5 ** (passed / self._half_life))
            self._faded_at[pool] = self._requests

    def _restart_if_faster(self, pool: str, mean: Mean, service_time: float) -> None:
        """Keep only the latest services of a pool if all of them were far shorter than its mean."""
        if service_time * mean.weight * FASTER_FACTOR >= mean.total:  # this service ends a run of short ones
            if self._short:
                self._short.pop(pool, None)
            return
        count, total = self._short.get(pool, (0, 0.0))
        self._short[pool] = count + 1, total + service_time
        if count >= FASTER_RUN:
            mean.restore(float(count), total, mean.observations)
            del self._short[pool]

    # -- membership

    def adapt(self, change: Change, fleet: FleetView) -> None:
        if isinstance(change, Added):
            pool = change.spec.id
            mean = self._departed.pop(pool, None)
            # A mean without observations holds only the guess, which may have been configured anew.
            if mean is None or not mean.observations:
                mean = self._make_mean(change.spec.guess, self.prior_weight)
            self.means[pool] = mean
            self._last_use.use(pool, self._requests)
        else:
            self._departed[change.pool] = self.means.pop(change.pool)
            self._last_use.discard(change.pool)
            while len(self._departed) > MAX_DEPARTED_POOLS:
                oldest = next(iter(self._departed))
                for by_pool in (self._departed, self._local, self._faded_at, self._short):
                    by_pool.pop(oldest, None)
        super().adapt(change, fleet)
        self._set_memory()

    def _set_memory(self) -> None:
        self._half_life = half_life(self.memory, len(self.specs))
        self._unused_after = unused_after(self._half_life)

    # -- state

    def get_state(self) -> PolicyState:
        return {
            pool: {"weight": mean.weight, "total": mean.total, "observations": mean.observations}
            for pool, mean in self.estimates().items()
            if mean.observations
        }

    def set_state(self, state: PolicyState) -> None:
        # The pools count as departed ones: a pool that joins under the same name takes its estimate over.
        for pool, sums in list(state.items())[-MAX_DEPARTED_POOLS:]:
            mean = self._make_mean(1.0, 0.0)
            mean.restore(**sums)
            self._departed[pool] = mean
            self._local[pool] = sums["weight"], sums["total"], sums["observations"]

    def reset_pool(self, pool: str) -> None:
        """Learn this pool anew, from its guess."""
        self._local.pop(pool, None)
        self._departed.pop(pool, None)
        if pool in self.means:
            self.means[pool] = self._make_mean(self.specs[pool].guess, self.prior_weight)
            self.rate_changed(pool)

    # -- observations of several dispatchers

    def sharing_obstacle(self) -> str | None:
        if self.estimator != "mean":
            return "shares the estimator mean only: remove policy.options.estimator"
        if self.memory != FOREVER:
            return "cannot share discounted estimates: remove policy.options.memory"
        return None

    def local_counts(self) -> dict[str, LocalCounts]:
        return dict.fromkeys(self.means, NO_COUNTS) | self._local

    def set_local_counts(self, counts: dict[str, LocalCounts]) -> None:
        self._local = dict(counts)

    def merge_remote(self, pool: str, counts: LocalCounts) -> None:
        mean = self.means.get(pool) or self._departed.get(pool)
        if mean is None:
            return
        local = self._local.get(pool, NO_COUNTS)
        n, s, observations = (a + b for a, b in zip(local, counts, strict=True))
        # The counts are a difference of sums, which may be below 0.
        weight = self.prior_weight + max(0.0, n)
        total = self.prior_weight / mean.guess + (max(0.0, s) if n > 0 else 0.0)
        mean.restore(weight, total, observations)
        self.rate_changed(pool)
