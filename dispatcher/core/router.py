"""The router: a synchronous object without clock, socket or logger. The only place that counts requests up and down.

Choose, record and count happen in one breath, so no second request slips between reading q and joining it. Whoever
drives it (the live exchange or the simulator's event loop) owns the clock and passes `now`, never decreasing.
"""

from __future__ import annotations

from collections.abc import Iterable

from dispatcher.core.fleet import Fleet, Pool, View
from dispatcher.core.interfaces import Policy, Recorder
from dispatcher.core.service import ServiceClock
from dispatcher.core.types import Added, Change, Completion, Decision, Job, Outcome, Ticket
from dispatcher.errors import ConfigError, InternalError, NoPoolAvailable, PolicyError

NOTHING: frozenset[str] = frozenset()


class Router:
    """Routes jobs by a policy, keeps the counts, infers service times, tells recorders.

    policy: see `interfaces.Policy`. recorders: called in this order. infer: rebuild the service times that `settle`
    is not told (the live service; a simulator knows them).
    """

    def __init__(self, policy: Policy, recorders: Iterable[Recorder] = (), infer: bool = False) -> None:
        self.fleet = Fleet()
        self.policy = policy
        self._recorders = tuple(recorders)
        self._clocks: dict[Pool, ServiceClock] | None = {} if infer else None

    def __repr__(self) -> str:
        return f"<Router {type(self.policy).__name__} {self.fleet!r}>"

    def route(self, job: Job, now: float, exclude: frozenset[str] = NOTHING) -> Ticket:
        """Choose a pool and join it.

        exclude: pools this job must not go to. Raises NoPoolAvailable if that leaves none. Every ticket must be
        settled, exactly once, by whoever asked for it.
        """
        fleet: Fleet | View = self.fleet.without(exclude) if exclude else self.fleet
        if not fleet.pools:
            raise NoPoolAvailable("no pool is open")
        try:
            decision = self.policy.choose(job, fleet, now)
            pool = fleet[decision.pool]
        except Exception as error:  # noqa: BLE001 - a stranger's code: whatever it raises, the request is served
            self._fault("choose", error, now)
            pool = min(fleet.pools, key=lambda pool: pool.in_flight)
            decision = Decision(pool.id)
        for recorder in self._recorders:
            recorder.chosen(job, decision, fleet, now)
        self.fleet.open_one(pool)
        ticket = Ticket(job, decision, now, pool)
        if self._clocks is not None:
            self._clock(pool).arrived(ticket)
        return ticket

    def settle(self, ticket: Ticket, now: float, outcome: Outcome, service_time: float | None = None) -> Completion:
        """The request has left its pool.

        service_time: seconds of work if the pool or the simulator told; else inferred, where switched on. Only an OK
        outcome teaches: otherwise it is dropped. Raises InternalError at a second call for one ticket.
        """
        if not ticket.is_open:
            raise InternalError(f"{ticket!r} is settled twice")
        ticket.is_open = False
        pool, served = ticket.pool, outcome is Outcome.OK
        self.fleet.close_one(pool)
        if self._clocks is not None:
            inferred = self._clock(pool).departed(ticket, now, served, told=service_time is not None)
            service_time = inferred if service_time is None else service_time
            if not pool.in_flight and pool.id not in self.fleet:
                del self._clocks[pool]
        done = Completion(ticket, now, service_time if served else None, outcome)
        try:
            self.policy.learn(done, self.fleet)
        except Exception as error:  # noqa: BLE001 - a stranger's code: the count is right already
            self._fault("learn", error, now)
        for recorder in self._recorders:
            recorder.settled(done, self.fleet)
        return done

    def apply(self, change: Change, now: float) -> None:
        """A pool joins or leaves. Raises ConfigError where fleet or policy refuse one; the fleet is then as before."""
        if isinstance(change, Added):
            self.fleet.add(change.spec)
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

    def _clock(self, pool: Pool) -> ServiceClock:
        assert self._clocks is not None
        clock = self._clocks.get(pool)
        if clock is None:
            clock = self._clocks[pool] = ServiceClock(pool)
        return clock

    def _fault(self, verb: str, error: Exception, now: float) -> None:
        fault = PolicyError(f"{type(self.policy).__name__}.{verb} broke its contract: {type(error).__name__}: {error}")
        fault.__cause__ = error
        for recorder in self._recorders:
            recorder.faulted(fault, now)
