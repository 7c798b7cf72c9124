"""What the policies share: membership, episodes, the index rule, and rates learned from service times.

`BasePolicy` does the bookkeeping, `IndexPolicy` asks for a score and takes the argmin, `SedPolicy` scores by expected
delay under some rate, `LearningPolicy` keeps a mean for each pool. A new policy overrides one method of one of them.
"""

from __future__ import annotations

import math
from collections.abc import Container, Mapping, Sequence
from random import Random
from typing import Any, ClassVar

from dispatcher.core.argmin import Ties, argmin, check_ties
from dispatcher.core.episode import Episode
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
from dispatcher.core.policy import NOTHING_SEEN, Estimate, FleetView, PoolView, Remembered, Sums
from dispatcher.core.types import Added, Change, Completion, Decision, Job, Phase, PoolSpec
from dispatcher.errors import ConfigError
from dispatcher.estimators.mean import Mean
from dispatcher.estimators.named import maker

MANY = 24  # pools, from which on arrays are quicker than loops
FADING_STEPS = 100  # per half-life
FASTER, RUN = 4.0, 10  # a pool is faster if so many services in a row took less than 1/FASTER of its mean
REMEMBERED = 256  # pools that left and whose estimates are kept for their return


def has_room(pool: PoolView) -> bool:
    """A server of the pool is free; what the papers call an idle pool where c = 1."""
    return pool.in_flight < pool.servers


def forget_oldest(known: dict[str, Any], there: Container[str]) -> None:
    """Delete the oldest entry of a pool that is not there, if there are more than `REMEMBERED` such entries."""
    absent = [pool for pool in known if pool not in there]
    if len(absent) > REMEMBERED:
        del known[absent[0]]


class BasePolicy:
    """Membership and episodes. rng: dice of its own. A subclass answers `choose`."""

    def __init__(self, *, rng: Random) -> None:
        self.rng = rng
        self.specs: dict[str, PoolSpec] = {}
        self.episode = Episode()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {' '.join(f'{pool}:{self.rate(pool):.4g}' for pool in self.specs)}>"

    def choose(self, job: Job, fleet: FleetView, now: float) -> Decision:
        raise NotImplementedError(f"{type(self).__name__} must say how it chooses")

    def learn(self, done: Completion, fleet: FleetView) -> None:
        if fleet.in_flight == 0:
            self.emptied()

    def adapt(self, change: Change, fleet: FleetView) -> None:
        if isinstance(change, Added):
            self.specs[change.spec.id] = change.spec
        else:
            del self.specs[change.pool]
            if fleet.in_flight == 0:
                self.emptied()

    def emptied(self) -> None:
        """The system is empty: the episode ends, if anything has arrived in it."""
        if self.episode.arrivals:
            self.end_episode()

    def end_episode(self) -> None:
        self.episode = Episode(self.episode.number + 1)

    def rate(self, pool: str) -> float:
        """The rate on which decisions about this pool stand; for a policy that learns nothing, the guess."""
        return self.specs[pool].guess

    def weight(self, pool: str) -> float:
        """What an operator would write as the weight of this pool: its guess, times its servers."""
        spec = self.specs[pool]
        return spec.guess * spec.servers

    def draw(self, pools: Sequence[PoolView], d: int) -> list[PoolView]:
        """d distinct ones at random, or all of them in random order if there are fewer."""
        left = list(pools)
        return [left.pop(int(self.rng.random() * len(left))) for _ in range(min(d, len(left)))]

    def estimates(self) -> Mapping[str, Estimate]:
        """What is believed of each open pool."""
        return {pool: Mean(spec.guess) for pool, spec in self.specs.items()}


class IndexPolicy(BasePolicy):
    """The pool of the least score wins.

    plane: nothing but `score` decides, so that the scores of two pools show what the policy does.

    ties: what to do among equals: `first` (the lowest-numbered pool, as the papers), `random`, `slowest`, `fastest`.
    """

    plane = True

    def __init__(self, *, rng: Random, ties: str = "first") -> None:
        super().__init__(rng=rng)
        self.ties: Ties = check_ties(ties)
        self._latest: tuple[Sequence[PoolView], Sequence[float] | Floats] | None = None

    def score(self, pool: PoolView, now: float) -> float:
        raise NotImplementedError(f"{type(self).__name__} must score a pool")

    def speed(self, pool: PoolView) -> float:
        """By which `slowest` and `fastest` tell equals apart."""
        return self.rate(pool.id)

    def choose(self, job: Job, fleet: FleetView, now: float) -> Decision:
        self.episode.arrived(now)
        return Decision(self.best(fleet, now).id)

    def best(self, fleet: FleetView, now: float) -> PoolView:
        """The argmin, without counting it as a decision."""
        return self.least(fleet.pools, now)

    def least(self, pools: Sequence[PoolView], now: float) -> PoolView:
        """The argmin over these pools only."""
        scores = self.score_all(pools, now)
        self._latest = pools, scores
        return argmin(pools, scores, self.ties, self.speed, self.rng)

    def score_all(self, pools: Sequence[PoolView], now: float) -> Sequence[float] | Floats:
        """The score of each."""
        score = self.score
        return [score(pool, now) for pool in pools]

    def scores(self, pools: Sequence[PoolView], now: float) -> Sequence[float] | Floats:
        """As `score_all`, for a recorder of the decision just made: what it compared is not worked out again."""
        latest, self._latest = self._latest, None
        return latest[1] if latest is not None and latest[0] is pools else self.score_all(pools, now)

    def rates(self, pools: Sequence[PoolView]) -> Sequence[float] | Floats:
        """The rate of each."""
        return tuple([self.rate(pool.id) for pool in pools])


class SedPolicy(IndexPolicy):
    """Shortest Expected Delay under `rate`: (q + 1)/μ, and its form for c servers (`core.delay`).

    exponent: e in (q + 1)/μ^e, above 0 and at most 1; with c servers the delay times μ^(1 − e). e = 1 is SED, which
    minimises each request's own delay; e = 0.7 keeps slow pools busier and brings the mean over all requests close to
    the least possible (ours; `docs/beyond-the-paper.md`). Regret stays defined by e = 1.
    """

    def __init__(self, *, rng: Random, ties: str = "first", exponent: float = 1.0) -> None:
        super().__init__(rng=rng, ties=ties)
        if not 0 < exponent <= 1:
            raise ConfigError(f"exponent must be above 0 and at most 1, not {exponent:g}")
        self.exponent = exponent
        self._delays: Delays | None = None  # of many pools; what it holds of rates is kept up to date

    def score(self, pool: PoolView, now: float) -> float:
        return work_ahead(pool) / self.weighed(self.speed(pool))

    def score_all(self, pools: Sequence[PoolView], now: float) -> Sequence[float] | Floats:
        return super().score_all(pools, now) if len(pools) < MANY else self._table(pools).scores()

    def rates(self, pools: Sequence[PoolView]) -> Sequence[float] | Floats:
        return super().rates(pools) if len(pools) < MANY else self._table(pools).rates

    def _table(self, pools: Sequence[PoolView]) -> Delays:
        if self._delays is None or self._delays.pools is not pools:
            self._delays = Delays(pools, self.speed, self.weighed)
        return self._delays

    def rate_changed(self, pool: str) -> None:
        """`rate` answers otherwise from now on for this pool; a subclass that lets it must say so."""
        if self._delays is not None and pool in self.specs:
            rate = self.rate(pool)
            self._delays.change(pool, rate, self.weighed(rate))

    def rates_changed(self) -> None:
        """As `rate_changed`, for all."""
        self._delays = None

    def weighed(self, rate: float) -> float:
        """μ^e."""
        return rate if self.exponent == 1.0 else math.pow(rate, self.exponent)


class LearningPolicy(SedPolicy):
    """SED on rates that are learned: one estimator a pool, N_i and S_i.

    prior_weight: how many services the guess of a pool is worth; 0 lets the first observation replace it. estimator:
    `mean`, or `discounted:factor=0.99` or `window:size=100` for rates that change. A pool that leaves is remembered,
    so that a passing failure costs no knowledge. `rate` is the latest estimate, unless a subclass says otherwise.

    memory: requests of the fleet in which an observation loses half of its weight; 0 for 5,000, or 500 per pool if that
    is more; -1 for no forgetting, as in the papers. Unless it is -1, an idle pool that has not been used for 1,750
    requests (or 35 % of the memory, if that is more) gets one. If its service takes less than twice the least mean
    service time of the other pools and half of its own, the pool has become fast, and is learned anew. So it is after
    ten services in a row that took less than a quarter of its mean.
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
        super().__init__(rng=rng, ties=ties, exponent=exponent)
        if not 0 <= prior_weight < math.inf:
            raise ConfigError(f"prior_weight must be 0 or more, not {prior_weight}")
        self.memory = check_memory(memory)
        self._requests = 0
        self._last_use = LastUse()
        self._short: dict[str, tuple[int, float]] = {}  # by pool: number and seconds of the latest short services
        self._faded_at: dict[str, int] = {}  # by pool: the request at which its mean was last faded
        self._set_memory()
        self.estimator = estimator
        self._make = maker(estimator)
        self.prior_weight = prior_weight
        self.means: dict[str, Mean] = {}
        self._left: dict[str, Mean] = {}
        self._own: dict[str, Sums] = {}  # what was seen here; what other dispatchers saw is in the means, too

    def choose(self, job: Job, fleet: FleetView, now: float) -> Decision:
        self._requests += 1
        decision = self.decide(job, fleet, now)
        if self.memory == FOREVER:
            return decision
        if decision.phase is Phase.EXPLOIT:  # a forced trial is no use: the estimate of the pool has not led to it
            unused = self._last_use.idle_and_unused(self._unused_after, self._requests, fleet)
            if unused:
                self.episode.explored = True
                decision = Decision(unused[0].id, phase=Phase.EXPLORE, memo=REVISIT)
            self._last_use.use(decision.pool, self._requests)
        return decision

    def decide(self, job: Job, fleet: FleetView, now: float) -> Decision:
        """The decision of the policy itself, before unused pools are looked at."""
        return super().choose(job, fleet, now)

    def _set_memory(self) -> None:
        self._half_life = half_life(self.memory, len(self.specs))
        self._unused_after = unused_after(self._half_life)

    def adapt(self, change: Change, fleet: FleetView) -> None:
        if isinstance(change, Added):
            pool = change.spec.id
            known = self._left.pop(pool, None)
            if known is None or not known.observations:
                known = self._make(change.spec.guess, self.prior_weight)
            self.means[pool] = known
            self._last_use.use(pool, self._requests)
        else:
            self._left[change.pool] = self.means.pop(change.pool)
            self._last_use.forget(change.pool)
            while len(self._left) > REMEMBERED:
                oldest = next(iter(self._left))
                del self._left[oldest]
                self._own.pop(oldest, None)
                self._faded_at.pop(oldest, None)
                self._short.pop(oldest, None)
        super().adapt(change, fleet)
        self._set_memory()

    def remember(self) -> Remembered:
        """What is known of each pool that was observed."""
        return {
            pool: {"weight": mean.weight, "total": mean.total, "observations": mean.observations}
            for pool, mean in self.estimates().items()
            if mean.observations
        }

    def recall(self, known: Remembered) -> None:
        """Treat these pools as if they had been here before."""
        for pool, seen in list(known.items())[-REMEMBERED:]:
            mean = self._make(1.0, 0.0)
            mean.restore(**seen)
            self._left[pool] = mean
            self._own[pool] = seen["weight"], seen["total"], seen["observations"]

    def own(self) -> dict[str, Sums]:
        """What was seen here of each pool, open or remembered. Only plain means are sums."""
        return dict.fromkeys(self.means, NOTHING_SEEN) | self._own

    def reclaim(self, own: dict[str, Sums]) -> None:
        self._own = dict(own)

    def absorb(self, pool: str, others: Sums) -> None:
        """What other dispatchers have seen of a pool by now, in place of what they had."""
        mean = self.means.get(pool) or self._left.get(pool)
        if mean is None:
            return
        n, s, seen = (a + b for a, b in zip(self._own.get(pool, NOTHING_SEEN), others, strict=True))
        mean.restore(
            self.prior_weight + max(0.0, n), self.prior_weight / mean.guess + (max(0.0, s) if n > 0 else 0.0), seen
        )
        self.rate_changed(pool)

    def forget(self, pool: str) -> None:
        """Begin anew with a pool, from its guess."""
        self._own.pop(pool, None)
        self._left.pop(pool, None)
        if pool in self.means:
            self.means[pool] = self._make(self.specs[pool].guess, self.prior_weight)
            self.rate_changed(pool)

    def observe(self, pool: str, service_time: float, now: float) -> None:
        """One more service, seen here."""
        mean = self.means.get(pool) or self._left.get(pool)
        if mean is not None:
            if self.memory != FOREVER:
                self._fade(pool, mean)
                self._forget_if_faster(pool, mean, service_time)
            mean.learn_one(service_time, now)
            n, s, seen = self._own.get(pool, NOTHING_SEEN)
            self._own[pool] = n + 1, s + service_time, seen + 1
            self.rate_changed(pool)

    def _fade(self, pool: str, mean: Mean) -> None:
        """Let the observations of a pool lose weight, in steps of `FADING_STEPS` per half-life."""
        passed = self._requests - self._faded_at.setdefault(pool, self._requests)
        if passed * FADING_STEPS > self._half_life:
            mean.fade(0.5 ** (passed / self._half_life))
            self._faded_at[pool] = self._requests

    def _forget_if_faster(self, pool: str, mean: Mean, service_time: float) -> None:
        """Keep only the latest services of a pool if all of them were far shorter than its mean."""
        if service_time * mean.weight * FASTER >= mean.total:
            if self._short:
                self._short.pop(pool, None)
            return
        count, total = self._short.get(pool, (0, 0.0))
        self._short[pool] = count + 1, total + service_time
        if count >= RUN:
            mean.restore(float(count), total, mean.observations)
            del self._short[pool]

    def learn(self, done: Completion, fleet: FleetView) -> None:
        if done.service_time is not None:
            decision = done.ticket.decision
            is_new = decision.memo == REVISIT and self._is_fast(decision.pool, done.service_time)
            if is_new:
                self.forget(decision.pool)
            self.observe(decision.pool, done.service_time, done.finished_at)
            if is_new:
                self.use_now(decision.pool)
        super().learn(done, fleet)

    def _is_fast(self, pool: str, service_time: float) -> bool:
        """Whether one service of a pool that was not used for long suggests that it is one of the fastest now."""
        mean = self.means.get(pool)
        others = [other.rate for name, other in self.means.items() if name != pool]
        if mean is None or not others:
            return False
        return service_time * max(others) < COMPETITIVE and service_time * mean.rate * SURPRISING < 1

    def use_now(self, pool: str) -> None:
        """Decide by the latest estimate of a pool at once, in a policy that else waits."""

    def rate(self, pool: str) -> float:
        return self.means[pool].rate

    def estimates(self) -> Mapping[str, Mean]:
        """Of the open pools, and of those that left and are remembered."""
        return {**self._left, **self.means}
