"""The seams: what a policy sees, what it must answer, and who may listen. Protocols only.

A policy has three verbs and never sees a socket, a clock, or a closed pool.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any, Protocol, TypeGuard, runtime_checkable

from dispatcher.core.episode import Episode
from dispatcher.core.types import Change, Completion, Decision, Interval, Job


class PoolView(Protocol):
    """What a policy may know of a pool at the instant of a decision."""

    @property
    def id(self) -> str: ...
    @property
    def in_flight(self) -> int:
        """q_i: requests sent to it and not finished."""
        ...

    @property
    def servers(self) -> int: ...


class FleetView(Protocol):
    """The open pools, never empty in `choose`, in a stable order."""

    @property
    def pools(self) -> tuple[PoolView, ...]: ...
    @property
    def in_flight(self) -> int:
        """Sum of q_i over the open pools; 0 is what the papers call an empty system."""
        ...

    def __getitem__(self, pool: str) -> PoolView:
        """The open pool of this name; KeyError if there is none."""
        ...


class Policy(Protocol):
    """Decides where a request goes. All three verbs are synchronous and must not block."""

    def choose(self, job: Job, fleet: FleetView, now: float) -> Decision:
        """Name an open pool. The fleet is as before this request joins it."""
        ...

    def learn(self, done: Completion, fleet: FleetView) -> None:
        """A request ended, well or not. The fleet is as after the departure; it may have no open pool."""
        ...

    def adapt(self, change: Change, fleet: FleetView) -> None:
        """A pool came or went. The fleet is as after the change. Raises ConfigError if it cannot work so."""
        ...


class Estimate(Protocol):
    """What a learner believes of one pool."""

    @property
    def rate(self) -> float: ...
    @property
    def observations(self) -> float: ...
    @property
    def interval(self) -> tuple[float, float]:
        """95 % bounds of the rate."""
        ...


@runtime_checkable
class CurveEstimate(Estimate, Protocol):
    """What a policy that learns capacities believes of one pool. `rate` is the inverse of `service_seconds`."""

    @property
    def service_seconds(self) -> Interval:
        """Seconds that a request takes while the pool keeps up."""
        ...

    @property
    def capacity(self) -> Interval:
        """Requests in flight up to which the pool keeps up."""
        ...

    @property
    def throughput(self) -> Interval:
        """Requests per second that the pool completes at the most."""
        ...


def is_curve(estimate: Estimate | None) -> TypeGuard[CurveEstimate]:
    """Whether an estimate is a `CurveEstimate`; many times faster than `isinstance` with a protocol."""
    return hasattr(estimate, "throughput")


@runtime_checkable
class Learner(Policy, Protocol):
    """A policy that tells what it believes; all built-in ones do. Recorders look, routing does not need it."""

    @property
    def episode(self) -> Episode: ...
    def rate(self, pool: str) -> float:
        """The rate on which decisions about this pool stand now."""
        ...

    def estimates(self) -> Mapping[str, Estimate]:
        """By pool: of the open ones at least."""
        ...


Sums = tuple[float, float, float]  # services, seconds, observations
NOTHING_SEEN: Sums = (0.0, 0.0, 0.0)
Remembered = dict[str, dict[str, Any]]  # by pool: numbers, or lists of numbers, by name


@runtime_checkable
class Remembering(Protocol):
    """A policy whose knowledge can outlive the process.

    state_kind: the kind of what it remembers, `rates` or `curves`. Policies of one kind understand each other.
    """

    @property
    def state_kind(self) -> str: ...

    def remember(self) -> Remembered:
        """What was learned of each pool that has been observed."""
        ...

    def recall(self, known: Remembered) -> None:
        """Begin with this knowledge, for pools that join from now on. Called before any has.

        Raises ConfigError if some of it cannot be such knowledge, after the rest was taken over.
        """
        ...


@runtime_checkable
class Sharing(Protocol):
    """A policy whose knowledge is a sum, and may be added to from outside."""

    def own(self) -> dict[str, Sums]:
        """What it has seen itself of each pool it knows, the guess not counted."""
        ...

    def reclaim(self, own: dict[str, Sums]) -> None:
        """Of what it was told to recall, this is its own; the rest is others'."""
        ...

    def absorb(self, pool: str, others: Sums) -> None:
        """What others have seen in all, in place of what they had."""
        ...

    def forget(self, pool: str) -> None:
        """As in `Forgetting`."""
        ...


@runtime_checkable
class Forgetting(Protocol):
    """A policy that can drop what it has learned of a pool."""

    def forget(self, pool: str) -> None:
        """Begin anew with this pool, as if it had just joined."""
        ...


@runtime_checkable
class Scoring(Protocol):
    """A policy that can say what it compares: sequences or arrays of floats, in the order of `pools`."""

    def scores(self, pools: tuple[PoolView, ...], now: float) -> Any:
        """The least one wins. To be asked right after a decision."""
        ...

    def rates(self, pools: tuple[PoolView, ...]) -> Any:
        """The rates on which decisions about these pools stand now."""
        ...


@runtime_checkable
class CostOracle(Protocol):
    """A policy whose regret is measured against its own rule with the true rates, not against SED."""

    @property
    def oracle(self) -> str:
        """The oracle in words."""
        ...

    def true_costs(self, pools: Sequence[PoolView], rates: Mapping[str, float]) -> Sequence[float]:
        """What one more request costs at each of these pools, with the true `rates` by pool."""
        ...


@runtime_checkable
class RejectionLearner(Protocol):
    """A policy that learns from what pools turn away (`Completion.accepted`): such an answer is then no failure."""

    learns_rejections: bool


@runtime_checkable
class Drawing(Protocol):
    """A policy that draws pools by chances that it has learned."""

    def probabilities(self) -> Mapping[str, float]:
        """Of each open pool, as of the last decision."""
        ...


@runtime_checkable
class JoinObserver(Protocol):
    """A policy that follows the counts of the pools: it is called for every request that joins a pool."""

    def request_joined(self, pool: PoolView, now: float) -> None:
        """A request joins this pool, whatever policy chose it. The pool's count does not include it yet."""
        ...


def join_observer(policy: Policy) -> Callable[[PoolView, float], None] | None:
    """The policy's `request_joined`, if it has one."""
    return policy.request_joined if isinstance(policy, JoinObserver) else None


class PolicyFactory(Protocol):
    """How the registry makes a policy: dice are given, options are the user's."""

    def __call__(self, *, rng: Random, **options: Any) -> Policy: ...


class Estimator(Protocol):
    """Learns one number from a stream of observations."""

    def learn_one(self, x: float, now: float) -> None: ...
    def predict_one(self, now: float) -> float: ...
    @property
    def weight(self) -> float:
        """How many observations the prediction is worth."""
        ...


class Recorder(Protocol):
    """Listens to a router. Called in the same breath as the decision, so it must be quick.

    Derive from it to hear only some of the calls: the others do nothing.
    """

    def chosen(self, job: Job, decision: Decision, fleet: FleetView, now: float) -> None:
        """The fleet is as the policy saw it."""
        return

    def completed(self, done: Completion, fleet: FleetView) -> None:
        """The fleet is as after the departure."""
        return

    def changed(self, change: Change, now: float) -> None:
        """A pool came or went."""
        return

    def switched(self, policy: Policy, now: float) -> None:
        """Another policy decides from now on."""
        return

    def faulted(self, error: Exception, now: float) -> None:
        """A policy raised `error` or named no open pool; the router went on without it."""
        return
