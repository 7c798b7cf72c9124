"""What the policies share: membership, episodes, the index rule, and rates learned from service times.

`BasePolicy` does the bookkeeping, `IndexPolicy` asks for a score and takes the argmin, `SedPolicy` scores by expected
delay under some rate, `LearningPolicy` keeps a mean for each pool. A new policy overrides one method of one of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

from dispatcher.core.choosing import Ties, argmin, check_ties
from dispatcher.core.delay import work_ahead
from dispatcher.core.episodes import Episode
from dispatcher.core.interfaces import FleetView, PoolView
from dispatcher.core.types import Added, Change, Completion, Decision, Job, PoolSpec
from dispatcher.errors import ConfigError
from dispatcher.estimators.mean import Mean

REMEMBERED = 256  # pools that left and whose estimates are kept for their return


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

    def estimates(self) -> Mapping[str, Mean]:
        """What is believed of each open pool."""
        return {pool: Mean(spec.guess) for pool, spec in self.specs.items()}


class IndexPolicy(BasePolicy):
    """The pool of the least score wins.

    ties: what to do among equals: `first` (the lowest-numbered pool, as the papers), `random`, `slowest`, `fastest`.
    """

    def __init__(self, *, rng: Random, ties: str = "first") -> None:
        super().__init__(rng=rng)
        self.ties: Ties = check_ties(ties)

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
        pools, score = fleet.pools, self.score
        return argmin(pools, [score(pool, now) for pool in pools], self.ties, self.speed, self.rng)


class SedPolicy(IndexPolicy):
    """Shortest Expected Delay under `rate`: (q + 1)/μ, and its form for c servers (`core.delay`)."""

    def score(self, pool: PoolView, now: float) -> float:
        return work_ahead(pool) / self.speed(pool)


class LearningPolicy(SedPolicy):
    """SED on rates that are learned: one mean a pool, N_i and S_i.

    prior_weight: how many services the guess of a pool is worth; 0 lets the first observation replace it. A pool that
    leaves is remembered, so that a passing failure costs no knowledge.
    """

    def __init__(self, *, rng: Random, ties: str = "first", prior_weight: float = 0.0) -> None:
        super().__init__(rng=rng, ties=ties)
        if not prior_weight >= 0:
            raise ConfigError(f"prior_weight must be 0 or more, not {prior_weight}")
        self.prior_weight = prior_weight
        self.means: dict[str, Mean] = {}
        self._left: dict[str, Mean] = {}

    def adapt(self, change: Change, fleet: FleetView) -> None:
        if isinstance(change, Added):
            pool = change.spec.id
            known = self._left.pop(pool, None)
            if known is None or not known.observations:
                known = Mean(change.spec.guess, self.prior_weight)
            self.means[pool] = known
        else:
            self._left[change.pool] = self.means.pop(change.pool)
            while len(self._left) > REMEMBERED:
                del self._left[next(iter(self._left))]
        super().adapt(change, fleet)

    def learn(self, done: Completion, fleet: FleetView) -> None:
        if done.service_time is not None:
            pool = done.ticket.decision.pool
            mean = self.means.get(pool) or self._left.get(pool)
            if mean is not None:
                mean.learn_one(done.service_time, done.finished_at)
        super().learn(done, fleet)

    def estimates(self) -> Mapping[str, Mean]:
        """Of the open pools, and of those that left and are remembered."""
        return {**self._left, **self.means}
