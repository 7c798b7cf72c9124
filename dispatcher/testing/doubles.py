"""A router that is driven by hand, and a recorder that keeps what it hears. Nothing here sleeps or reads a clock."""

from __future__ import annotations

from collections.abc import Sequence

from dispatcher.core.policy import BasePolicy, FleetView, Policy, Recorder
from dispatcher.core.router import Router
from dispatcher.core.types import Added, Change, Completion, Decision, Job, Outcome, PoolSpec, Removed, Ticket


class Recording:
    """A recorder that keeps every call.

    decisions: the decisions, each with the requests in flight that the policy saw.
    completions, changes, policies, faults: the arguments of the other calls.
    """

    def __init__(self) -> None:
        self.decisions: list[tuple[Decision, tuple[int, ...]]] = []
        self.completions: list[Completion] = []
        self.changes: list[Change] = []
        self.policies: list[BasePolicy] = []
        self.faults: list[Exception] = []

    def chosen(self, job: Job, decision: Decision, fleet: FleetView, now: float) -> None:
        self.decisions.append((decision, tuple(pool.in_flight for pool in fleet.pools)))

    def completed(self, done: Completion, fleet: FleetView) -> None:
        self.completions.append(done)

    def changed(self, change: Change, now: float) -> None:
        self.changes.append(change)

    def switched(self, policy: BasePolicy, now: float) -> None:
        self.policies.append(policy)

    def faulted(self, error: Exception, now: float) -> None:
        self.faults.append(error)


class Table:
    """A router with pools, driven by hand. At least one second passes with each step.

    policy: any object with the three methods of a policy.
    specs: the pools to begin with.
    recorders: called before `recording`.
    infer: whether the router infers service times, as the live service does.

    >>> from random import Random
    >>> from dispatcher.policies.jsq import Jsq
    >>> table = Table(Jsq(rng=Random(1)), [PoolSpec("a"), PoolSpec("b")])
    >>> first = table.arrive(); table.arrive().pool.id
    'b'
    >>> table.finish(first); table.state
    (0, 1)
    """

    def __init__(
        self, policy: Policy, specs: Sequence[PoolSpec], recorders: Sequence[Recorder] = (), infer: bool = False
    ) -> None:
        self.recording = Recording()
        self.router = Router(policy, [*recorders, self.recording], infer=infer)
        self.open: list[Ticket] = []
        self.now = 0.0
        self._jobs = 0
        for spec in specs:
            self.add(spec)

    @property
    def state(self) -> tuple[int, ...]:
        """The requests in flight of each open pool."""
        return tuple(pool.in_flight for pool in self.router.fleet.pools)

    def arrive(self, exclude: frozenset[str] = frozenset()) -> Ticket:
        """Route a request. exclude: pools that it must not go to."""
        self.now += 1.0
        self._jobs += 1
        ticket = self.router.route(Job(self._jobs), self.now, exclude)
        self.open.append(ticket)
        return ticket

    def finish(self, ticket: Ticket, outcome: Outcome = Outcome.OK, service_time: float | None = 1.0) -> None:
        """End a request. service_time: seconds, None if it is not known."""
        self.now += max(1.0, service_time or 0.0)
        self.open.remove(ticket)
        succeeded = outcome is Outcome.OK
        accepted = True if succeeded else None
        self.router.complete(ticket, self.now, outcome, service_time if succeeded else None, accepted=accepted)

    def reject(self, ticket: Ticket, retry_after: float = 0.0) -> None:
        """Let the pool reject a request. retry_after: seconds."""
        self.now += 1.0
        self.open.remove(ticket)
        self.router.complete(ticket, self.now, Outcome.FAILED, accepted=False, retry_after=retry_after)

    def add(self, spec: PoolSpec) -> None:
        self.now += 1.0
        self.router.apply(Added(spec), self.now)

    def remove(self, pool: str) -> None:
        self.now += 1.0
        self.router.apply(Removed(pool), self.now)
