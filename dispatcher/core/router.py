"""The router: a synchronous object without clock, socket or logger. The only place that counts requests up and down.

Choose, record and count happen in one breath, so no second request slips between reading q and joining it. Whoever
drives it (the live exchange or the simulator's event loop) owns the clock and passes `now`, never decreasing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType

from dispatcher.core.evidence import plausible_service_time
from dispatcher.core.fleet import Fleet, Pool, View
from dispatcher.core.policy import BasePolicy, Policy, Recorder, as_policy
from dispatcher.core.service_times import ServiceClock
from dispatcher.core.slow_start import Ramp
from dispatcher.core.types import Added, Change, Completion, Decision, Job, Outcome, PoolSpec, Report, Ticket
from dispatcher.errors import ConfigError, InternalError, NoPoolAvailable, PolicyError, PoolsFull

NOTHING: frozenset[str] = frozenset()
REMEMBERED = 256  # pools whose service clocks are kept, at the most, beside those that are there


class Router:
    """Routes jobs by a policy, keeps the counts, infers service times, tells recorders.

    policy: see `interfaces.Policy`. recorders: called in this order. infer: rebuild the service times that `complete`
    is not told (the live service; a simulator knows them).
    """

    def __init__(self, policy: Policy, recorders: Iterable[Recorder] = (), infer: bool = False) -> None:
        self.fleet = Fleet()
        self._use(as_policy(policy))
        self._recorders = tuple(recorders)
        self._clocks: dict[str, ServiceClock] | None = {} if infer else None

    def __repr__(self) -> str:
        return f"<Router {self.policy.name} {self.fleet!r}>"

    def _use(self, policy: BasePolicy) -> None:
        self.policy = policy
        # Each request asks for both.
        self._request_joined = policy.request_joined
        self.learns_rejections = policy.learns_rejections

    def route(self, job: Job, now: float, exclude: frozenset[str] = NOTHING, sent: bool = True) -> Ticket:
        """Choose a pool and join it.

        exclude: pools this job must not go to. sent: the whole request goes with it; if not, call `request_sent` when
        it has. Raises NoPoolAvailable if no pool is left, PoolsFull if those that are have no room. The caller must
        complete every ticket exactly once.
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
        except Exception as error:  # noqa: BLE001 - a stranger's code: whatever it raises, the request is served
            self._fault("choose", error, now)
            pool = min(fleet.pools, key=lambda pool: pool.in_flight)
            decision = Decision(pool.id)
        for recorder in self._recorders:
            try:
                recorder.chosen(job, decision, fleet, now)
            except Exception as error:  # noqa: BLE001 - recorders ask the policy what it believes
                self._fault("chosen", error, now)
        if self._request_joined is not None:
            try:
                self._request_joined(pool, now)
            except Exception as error:  # noqa: BLE001 - as above
                self._fault("request_joined", error, now)
        ticket = Ticket(job, decision, now, pool, self.policy)
        self.fleet.open_one(pool)
        if sent:
            self.request_sent(ticket, now)
        return ticket

    def request_sent(self, ticket: Ticket, now: float) -> None:
        """The last byte of the request is on its way: the pool can begin."""
        if self._clocks is not None:
            self._clock(ticket.pool).arrived(ticket, now)

    def discard_timing(self, ticket: Ticket, now: float) -> None:
        """When this request ends will not show when the pool was done with it, as when its client reads too slowly."""
        ticket.timing_discarded = True
        if self._clocks is not None:
            self._clock(ticket.pool).forget(ticket, now)

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
        """The request has left its pool.

        service_time: seconds of work if the pool or the simulator told; else, or if it cannot be true, inferred where
        that is switched on. teaches: False drops it; so does an outcome that is not OK. report: what the pool said of
        itself. accepted, retry_after, first_byte_at: as in `Completion`. Raises InternalError at a second call for one
        ticket.
        """
        if not ticket.is_open:
            raise InternalError(f"{ticket!r} is completed twice")
        ticket.is_open = False
        pool, served = ticket.pool, outcome is Outcome.OK
        teaches = teaches and served
        self.fleet.close_one(pool)
        service_time = plausible_service_time(service_time, now - ticket.routed_at)
        if self._clocks is not None:
            told = service_time is not None or not teaches
            inferred = self._clock(pool).departed(ticket, now, served, told)
            service_time = inferred if service_time is None else service_time
        if ticket.by is not self.policy:  # what its own policy noted on it would mislead another
            ticket.decision = replace(ticket.decision, memo=None)
        taught = service_time if teaches else None
        clear = teaches and not ticket.timing_discarded
        done = Completion(ticket, now, taught, outcome, report, accepted, retry_after, clear, first_byte_at)
        try:
            self.policy.learn(done, self.fleet)
        except Exception as error:  # noqa: BLE001 - a stranger's code: the count is right already
            self._fault("learn", error, now)
        for recorder in self._recorders:
            try:
                recorder.completed(done, self.fleet)
            except Exception as error:  # noqa: BLE001 - as above
                self._fault("completed", error, now)
        return done

    def apply(self, change: Change, now: float) -> None:
        """A pool joins or leaves. Raises ConfigError where fleet or policy refuse one; the fleet is then as before."""
        if isinstance(change, Added):
            self.fleet.add(change.spec, Ramp(now, change.slow_start) if change.slow_start else None)
        else:
            self.fleet.remove(change.pool)
        try:
            self.policy.adapt(change, self.fleet)
        except ConfigError:
            if isinstance(change, Added):
                self.fleet.remove(change.spec.id)
            raise
        except Exception as error:  # noqa: BLE001 - a stranger's code: the fleet is right already
            self._fault("adapt", error, now)
        for recorder in self._recorders:
            recorder.changed(change, now)

    def switch(self, policy: Policy, now: float, specs: Mapping[str, PoolSpec] = MappingProxyType({})) -> None:
        """Go on with another policy: counts and tickets stay, the new one is told of the open pools.

        specs: how pools are to be described to it, where that is about to change. Raises ConfigError where it refuses
        one; the old policy then goes on."""
        policy = as_policy(policy)
        for pool in self.fleet.pools:
            policy.adapt(Added(specs.get(pool.id, pool.spec)), self.fleet)
        self._use(policy)
        for recorder in self._recorders:
            recorder.switched(policy, now)

    def _clock(self, pool: Pool) -> ServiceClock:
        assert self._clocks is not None
        clock = self._clocks.get(pool.id)
        if clock is None:
            if len(self._clocks) > REMEMBERED:
                self._clocks = {name: kept for name, kept in self._clocks.items() if self.fleet.knows(name)}
            clock = self._clocks[pool.id] = ServiceClock(pool.servers)
        clock.servers = pool.servers
        return clock

    def _fault(self, verb: str, error: Exception, now: float) -> None:
        fault = PolicyError(f"{self.policy.name}.{verb} broke its contract: {type(error).__name__}: {error}")
        fault.__cause__ = error
        for recorder in self._recorders:
            recorder.faulted(fault, now)
