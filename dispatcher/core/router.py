"""The router: a synchronous object without clock, socket or logger.

It chooses a pool, records the decision and counts the request in one call, so that no other request comes between the
reading of a count and its change. The caller (an exchange, or the simulator's event loop) owns the clock. It passes
`now`, which never decreases.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType

from dispatcher.core.evidence import plausible_service_time
from dispatcher.core.fleet import Fleet, Pool, View
from dispatcher.core.policy import BasePolicy, Policy, Recorder, as_policy
from dispatcher.core.service_times import ServiceTimeEstimator
from dispatcher.core.slow_start import SlowStart
from dispatcher.core.types import Added, Change, Completion, Decision, Job, Outcome, PoolSpec, Report, Ticket
from dispatcher.errors import ConfigError, InternalError, NoPoolAvailable, PolicyError, PoolsFull

MAX_CLOSED_POOL_ESTIMATORS = 256  # service time estimators that are kept although their pool may be gone


class Router:
    """Routes requests by a policy, keeps the counts, estimates service times, and calls recorders.

    policy: decides; see `policy.Policy`.
    recorders: are called in this order.
    infer: estimate the service times that `complete` does not get. A simulator knows them and does not need that.
    """

    def __init__(self, policy: Policy, recorders: Iterable[Recorder] = (), infer: bool = False) -> None:
        self.fleet = Fleet()
        self._recorders = tuple(recorders)
        self._estimators: dict[str, ServiceTimeEstimator] | None = {} if infer else None
        self._use(as_policy(policy))

    def __repr__(self) -> str:
        return f"<Router {self.policy.name} {self.fleet!r}>"

    def _use(self, policy: BasePolicy) -> None:
        self.policy = policy
        # These two are needed for every request.
        self._request_joined = policy.request_joined
        self.learns_rejections = policy.learns_rejections

    # -- one request

    def route(self, job: Job, now: float, exclude: frozenset[str] = frozenset(), sent: bool = True) -> Ticket:
        """Choose a pool and count the request in. The caller must `complete` the ticket exactly once.

        exclude: pools that must not be chosen.
        sent: the whole request is here; if not, call `request_sent` when it is. The time that a new connection takes
        counts as the pool's.
        Raises NoPoolAvailable if no pool is left, PoolsFull if the pools that are left have no room.
        """
        fleet: Fleet | View = self.fleet.without(exclude) if exclude else self.fleet
        if not fleet.pools:
            raise NoPoolAvailable("no pool is open")
        if self.fleet.limited:
            fleet = self.fleet.with_room(exclude, now)
            if not fleet.pools:
                raise PoolsFull("every pool is full")
        try:
            decision = self.policy.choose(job, fleet, now)
            pool = fleet[decision.pool]
        except Exception as error:  # noqa: BLE001 - whatever a user's policy raises, the request is served
            self._report_fault("choose", error, now)
            pool = min(fleet.pools, key=lambda pool: pool.in_flight)
            decision = Decision(pool.id)
        for recorder in self._recorders:
            try:
                recorder.chosen(job, decision, fleet, now)
            except Exception as error:  # noqa: BLE001 - recorders read estimates and scores from the policy
                self._report_fault("chosen", error, now)
        if self._request_joined is not None:
            try:
                self._request_joined(pool, now)
            except Exception as error:  # noqa: BLE001 - as above
                self._report_fault("request_joined", error, now)
        ticket = Ticket(job, decision, now, pool, self.policy)
        if sent:
            self.request_sent(ticket, now)
        self.fleet.open_one(pool)  # last: the caller gets the ticket of every request that is counted
        return ticket

    def request_sent(self, ticket: Ticket, now: float) -> None:
        """The whole request is here and goes to the pool, which can begin its work."""
        if self._estimators is not None:
            self._estimator(ticket.pool).arrived(ticket, now)

    def discard_timing(self, ticket: Ticket, now: float) -> None:
        """Learn no service time from this request: its end depends on the client now, not on the pool."""
        ticket.timing_discarded = True
        if self._estimators is not None:
            self._estimator(ticket.pool).discard(ticket, now)

    def complete(
        self,
        ticket: Ticket,
        now: float,
        outcome: Outcome,
        service_time: float | None = None,
        teaches: bool = True,
        report: Report | None = None,
        accepted: bool | None = None,
        retry_after: float = 0.0,
        first_byte_at: float | None = None,
    ) -> Completion:
        """Count the request out of its pool, and let the policy and the recorders learn from it.

        service_time: seconds of work, if the pool or the simulator reported it. Without it, or if it cannot be true, it
        is estimated if that is switched on.
        teaches: False if no service time may be learned. An outcome other than OK has the same effect.
        report, accepted, retry_after, first_byte_at: as in `Completion`.
        Raises InternalError at a second call for one ticket.
        """
        if not ticket.is_open:
            raise InternalError(f"{ticket!r} is completed twice")
        ticket.is_open = False
        self.fleet.close_one(ticket.pool)
        teaches = teaches and outcome is Outcome.OK
        service_time = self._service_time(ticket, now, outcome, service_time, teaches)
        if ticket.decided_by is not self.policy:  # another policy cannot use what the ticket's own policy noted
            ticket.decision = replace(ticket.decision, memo=None)
        done = Completion(
            ticket,
            now,
            service_time if teaches else None,
            outcome,
            report,
            accepted,
            retry_after,
            teaches and not ticket.timing_discarded,
            first_byte_at,
        )
        try:
            self.policy.learn(done, self.fleet)
        except Exception as error:  # noqa: BLE001 - a user's policy may raise anything; the count is right already
            self._report_fault("learn", error, now)
        for recorder in self._recorders:
            try:
                recorder.completed(done, self.fleet)
            except Exception as error:  # noqa: BLE001 - as above
                self._report_fault("completed", error, now)
        return done

    def _service_time(
        self, ticket: Ticket, now: float, outcome: Outcome, reported: float | None, teaches: bool
    ) -> float | None:
        """Return the reported service time if it can be true, else an estimate; None if there is neither."""
        reported = plausible_service_time(reported, now - ticket.routed_at)
        if self._estimators is None:
            return reported
        # The estimator must see every departure, to know which requests the pool works on.
        needs_estimate = reported is None and teaches
        estimate = self._estimator(ticket.pool).departed(ticket, now, outcome is Outcome.OK, known=not needs_estimate)
        return estimate if reported is None else reported

    # -- changes

    def apply(self, change: Change, now: float) -> None:
        """Add or remove a pool. Raises ConfigError if the fleet or the policy refuses it; nothing has then changed."""
        if isinstance(change, Added):
            self.fleet.add(change.spec, SlowStart(now, change.slow_start) if change.slow_start else None)
        else:
            self.fleet.remove(change.pool)
        try:
            self.policy.adapt(change, self.fleet)
        except ConfigError:
            if isinstance(change, Added):
                self.fleet.remove(change.spec.id)
            raise
        except Exception as error:  # noqa: BLE001 - a user's policy may raise anything; the fleet is right already
            self._report_fault("adapt", error, now)
        for recorder in self._recorders:
            recorder.changed(change, now)

    def switch(self, policy: BasePolicy, now: float, specs: Mapping[str, PoolSpec] = MappingProxyType({})) -> None:
        """Decide by another policy from now on. Counts and tickets stay. The policy gets the open pools.

        specs: descriptions of pools that are about to change, for the new policy.
        Raises ConfigError if the policy refuses a pool; the old policy then goes on.
        """
        for pool in self.fleet.pools:
            policy.adapt(Added(specs.get(pool.id, pool.spec)), self.fleet)
        self._use(policy)
        for recorder in self._recorders:
            recorder.switched(policy, now)

    def _estimator(self, pool: Pool) -> ServiceTimeEstimator:
        assert self._estimators is not None
        estimator = self._estimators.get(pool.id)
        if estimator is None:
            if len(self._estimators) > MAX_CLOSED_POOL_ESTIMATORS:
                self._estimators = {name: known for name, known in self._estimators.items() if self.fleet.knows(name)}
            estimator = self._estimators[pool.id] = ServiceTimeEstimator(pool.servers)
        estimator.servers = pool.servers
        return estimator

    def _report_fault(self, method: str, error: Exception, now: float) -> None:
        fault = PolicyError(f"{self.policy.name}.{method} broke its contract: {type(error).__name__}: {error}")
        fault.__cause__ = error
        for recorder in self._recorders:
            recorder.faulted(fault, now)
