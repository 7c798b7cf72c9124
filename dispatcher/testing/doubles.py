"""Doubles: a router on a table, driven by hand, and a recorder that remembers. Nothing here sleeps or knows a clock."""

from __future__ import annotations

from collections.abc import Sequence

from dispatcher.core.policy import FleetView, Policy, Recorder
from dispatcher.core.router import NOTHING, Router
from dispatcher.core.types import Added, Change, Completion, Decision, Job, Outcome, PoolSpec, Removed, Ticket


class Recording:
    """A recorder that keeps what it is told: `decisions` with the state seen, `completions`, `changes`, `policies`,
    `faults`."""

    def __init__(self) -> None:
        self.decisions: list[tuple[Decision, tuple[int, ...]]] = []
        self.completions: list[Completion] = []
        self.changes: list[Change] = []
        self.policies: list[Policy] = []
        self.faults: list[Exception] = []

    def chosen(self, job: Job, decision: Decision, fleet: FleetView, now: float) -> None:
        self.decisions.append((decision, tuple(pool.in_flight for pool in fleet.pools)))

    def completed(self, done: Completion, fleet: FleetView) -> None:
        self.completions.append(done)

    def changed(self, change: Change, now: float) -> None:
        self.changes.append(change)

    def switched(self, policy: Policy, now: float) -> None:
        self.policies.append(policy)

    def faulted(self, error: Exception, now: float) -> None:
        self.faults.append(error)


class Table:
    """A router with its pools on the table, moved by hand; one second passes at each move.

    >>> from random import Random
    >>> from dispatcher.policies.jsq import Jsq
    >>> table = Table(Jsq(rng=Random(1)), [PoolSpec("a"), PoolSpec("b")])
    >>> first = table.arrive(); table.arrive().pool.id
    'b'
    >>> table.finish(first); table.state
    (0, 1)
    """

    def __init__(self, policy: Policy, specs: Sequence[PoolSpec], recorders: Sequence[Recorder] = (),
                 infer: bool = False) -> None:  # fmt: skip
        self.recording = Recording()
        self.router = Router(policy, [*recorders, self.recording], infer=infer)
        self.open: list[Ticket] = []
        self.now = 0.0
        self._jobs = 0
        for spec in specs:
            self.add(spec)

    @property
    def state(self) -> tuple[int, ...]:
        """q of the open pools."""
        return tuple(pool.in_flight for pool in self.router.fleet.pools)

    def arrive(self, exclude: frozenset[str] = NOTHING) -> Ticket:
        self.now += 1.0
        self._jobs += 1
        ticket = self.router.route(Job(self._jobs), self.now, exclude)
        self.open.append(ticket)
        return ticket

    def finish(self, ticket: Ticket, outcome: Outcome = Outcome.OK, service_time: float | None = 1.0) -> None:
        self.now += max(1.0, service_time or 0.0)
        self.open.remove(ticket)
        accepted = True if outcome is Outcome.OK else None
        told = service_time if outcome is Outcome.OK else None
        self.router.complete(ticket, self.now, outcome, told, accepted=accepted)

    def reject(self, ticket: Ticket, retry_after: float = 0.0) -> None:
        """The pool would not have it."""
        self.now += 1.0
        self.open.remove(ticket)
        self.router.complete(ticket, self.now, Outcome.FAILED, accepted=False, retry_after=retry_after)

    def add(self, spec: PoolSpec) -> None:
        self.now += 1.0
        self.router.apply(Added(spec), self.now)

    def remove(self, pool: str) -> None:
        self.now += 1.0
        self.router.apply(Removed(pool), self.now)
