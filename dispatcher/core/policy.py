"""The interface between the router and its policies: what a policy sees, what it must do and what it may do.

A policy must have the three methods of `Policy`. Everything else that a policy may do has a default in `BasePolicy`, so
the rest of the program never asks whether a policy has an ability. `as_policy` adds these defaults to a policy that
does not derive from `BasePolicy`. A policy never sees a socket or a clock, and it chooses among open pools only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any, NamedTuple, Protocol

from dispatcher.core.episode import Episode
from dispatcher.core.estimate import Estimate, GuessedRate
from dispatcher.core.types import Added, Change, Completion, Decision, Job, PoolSpec
from dispatcher.errors import ConfigError

VERBS = ("choose", "learn", "adapt")  # what every policy must have


class PoolView(Protocol):
    """What a policy may know of a pool at the moment of a decision."""

    @property
    def id(self) -> str: ...
    @property
    def in_flight(self) -> int:
        """q_i, the requests that were sent to the pool and have not ended."""
        ...

    @property
    def servers(self) -> int: ...


class FleetView(Protocol):
    """The open pools in a stable order. `choose` is never called with an empty fleet."""

    @property
    def pools(self) -> tuple[PoolView, ...]: ...
    @property
    def in_flight(self) -> int:
        """The sum of q_i over the open pools. The papers call the system empty when it is 0."""
        ...

    def __getitem__(self, pool: str) -> PoolView:
        """Return the open pool of this name. Raises KeyError if there is none."""
        ...


class Policy(Protocol):
    """What a policy must do: decide where each request goes. The three methods must not block."""

    def choose(self, job: Job, fleet: FleetView, now: float) -> Decision:
        """Name an open pool. The counts of the fleet do not include this request yet."""
        ...

    def learn(self, done: Completion, fleet: FleetView) -> None:
        """Take in the end of a request. The fleet no longer counts the request, and it may have no open pool."""
        ...

    def adapt(self, change: Change, fleet: FleetView) -> None:
        """Take in that a pool joined or left; the fleet has changed already. Raises ConfigError to refuse a pool."""
        ...


LocalCounts = tuple[float, float, float]  # weight, seconds and number of the services of one pool
NO_COUNTS: LocalCounts = (0.0, 0.0, 0.0)
PolicyState = dict[str, dict[str, Any]]  # by pool: numbers, or lists of numbers, by name


class CostOracle(NamedTuple):
    """The rule with true rates that a policy's decisions are compared with.

    description: the rule in words.
    costs: a function of pools and true rates by pool. It returns the cost of one more request at each pool.
    """

    description: str
    costs: Callable[[Sequence[PoolView], Mapping[str, float]], Sequence[float]]


class BasePolicy:
    """What every policy may do, with a default for each ability. A subclass has to override `choose`.

    `choose` must call `self.episode.arrived(now)`, or no episode ever ends.

    The base keeps the specifications of the open pools and counts episodes.

    rng: the random generator of this policy.
    """

    tie_rule: str = "none"  # how the policy decides between equal scores, for the metrics
    learns_rejections = False  # True if a rejection is ordinary feedback, so that health checks do not count it
    scores_decide = False  # True if the pool of the least `score` wins and nothing else decides
    state_kind: str | None = None  # policies of one kind understand each other's state; None if there is no state
    oracle: CostOracle | None = None  # what regret compares with; None for SED with the true rates

    # Called as request_joined(pool, now) for each request that joins a pool, whichever policy chose the pool. The count
    # of the pool does not include the request yet. None if the policy does not need the call.
    request_joined: Callable[[PoolView, float], None] | None = None

    def __init__(self, *, rng: Random) -> None:
        self.rng = rng
        self.specs: dict[str, PoolSpec] = {}  # of the open pools
        self.episode = Episode()

    def __repr__(self) -> str:
        return f"<{self.name} {' '.join(f'{pool}:{self.rate(pool):.4g}' for pool in self.specs)}>"

    @property
    def name(self) -> str:
        """The name of the policy's class, for messages."""
        return type(self).__name__

    # -- the three methods of `Policy`

    def choose(self, job: Job, fleet: FleetView, now: float) -> Decision:
        raise NotImplementedError(f"{self.name} must say how it chooses")

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

    # -- episodes

    def emptied(self) -> None:
        """Take in that the system is empty. This ends the episode if a request has arrived in it."""
        if self.episode.arrivals:
            self.end_episode()

    def end_episode(self) -> None:
        self.episode = Episode(self.episode.number + 1)

    # -- what the policy reports

    def rate(self, pool: str) -> float:
        """Return the rate by which the policy decides about this pool: the guess, if it learns nothing."""
        return self.specs[pool].guess

    def rates(self, pools: Sequence[PoolView]) -> Any:
        """Return the `rate` of each of these pools: a sequence or an array of floats."""
        return tuple([self.rate(pool.id) for pool in pools])

    def estimates(self) -> Mapping[str, Estimate]:
        """Return the estimate of each pool: at least of the open ones."""
        return {pool: GuessedRate(spec.guess) for pool, spec in self.specs.items()}

    def score(self, pool: PoolView, now: float) -> float:
        """Return the score of one pool; the least score wins. A policy that compares no scores has none."""
        raise NotImplementedError(f"{self.name} must score a pool")

    def scores(self, pools: tuple[PoolView, ...], now: float) -> Any:
        """Return the scores that the decision just made compared: floats in the order of `pools`, or nothing."""
        return ()

    def probabilities(self) -> Mapping[str, float]:
        """Return the probability of each open pool in the last decision, if the policy learns probabilities."""
        return {}

    # -- what the policy has learned

    def get_state(self) -> PolicyState:
        """Return what was learned about each pool that has been observed."""
        return {}

    def set_state(self, state: PolicyState) -> None:
        """Start with this knowledge for pools that join from now on. It is called before any pool joins.

        Raises ConfigError if a part of the state cannot be used; the rest has then been taken over.
        """

    def reset_pool(self, pool: str) -> None:
        """Learn this pool anew, as if it had just joined for the first time."""

    def sharing_obstacle(self) -> str | None:
        """Return why the policy cannot share what it learns with other dispatchers, or None if it can.

        The reason continues a sentence that begins with the name of the policy.
        """
        return "learns nothing that can be shared; name one that does, for example lased"

    def local_counts(self) -> dict[str, LocalCounts]:
        """Return what this dispatcher itself has observed of each pool. The guesses are not counted."""
        return {}

    def set_local_counts(self, counts: dict[str, LocalCounts]) -> None:
        """Declare this part of the restored state as this dispatcher's own observations."""

    def merge_remote(self, pool: str, counts: LocalCounts) -> None:
        """Replace what other dispatchers have observed of a pool by these sums."""

    # -- helpers for subclasses

    def weight(self, pool: str) -> float:
        """Return the guess times the servers: what an operator would configure as the weight of this pool."""
        spec = self.specs[pool]
        return spec.guess * spec.servers

    def draw(self, pools: Sequence[PoolView], d: int) -> list[PoolView]:
        """Return d distinct pools at random, or all of them in random order if there are fewer."""
        left = list(pools)
        return [left.pop(int(self.rng.random() * len(left))) for _ in range(min(d, len(left)))]


class AdaptedPolicy(BasePolicy):
    """A policy that has only the three methods of `Policy`, with the defaults for everything else."""

    def __init__(self, policy: Policy) -> None:
        super().__init__(rng=Random(0))  # never used: the policy has its own
        self._policy = policy

    @property
    def name(self) -> str:
        return type(self._policy).__name__

    def choose(self, job: Job, fleet: FleetView, now: float) -> Decision:
        self.episode.arrived(now)
        return self._policy.choose(job, fleet, now)

    def learn(self, done: Completion, fleet: FleetView) -> None:
        super().learn(done, fleet)
        self._policy.learn(done, fleet)

    def adapt(self, change: Change, fleet: FleetView) -> None:
        super().adapt(change, fleet)
        self._policy.adapt(change, fleet)


def as_policy(policy: Policy) -> BasePolicy:
    """Return the policy itself, or a wrapper with the defaults if it does not derive from `BasePolicy`.

    Raises ConfigError if one of the three methods is missing.
    """
    if isinstance(policy, BasePolicy):
        return policy
    missing = [verb for verb in VERBS if not callable(getattr(policy, verb, None))]
    if missing:
        raise ConfigError(f"{type(policy).__name__} is not a policy: it has no {', '.join(missing)}")
    return AdaptedPolicy(policy)


class PolicyFactory(Protocol):
    """How a policy is made: from a random generator and the options that the user has set."""

    def __call__(self, *, rng: Random, **options: Any) -> Policy: ...


class Recorder(Protocol):
    """Listens to a router. Every call happens within a decision, so it must be quick.

    A recorder that derives from this class overrides the calls that it needs; the others do nothing.
    """

    def chosen(self, job: Job, decision: Decision, fleet: FleetView, now: float) -> None:
        """A pool was chosen. The fleet is as the policy saw it."""
        return

    def completed(self, done: Completion, fleet: FleetView) -> None:
        """A request has ended. The fleet no longer counts it."""
        return

    def changed(self, change: Change, now: float) -> None:
        """A pool joined or left."""
        return

    def switched(self, policy: BasePolicy, now: float) -> None:
        """Another policy decides from now on."""
        return

    def faulted(self, error: Exception, now: float) -> None:
        """The policy raised an error or named no open pool. The router continued without it."""
        return
