"""Policies with full knowledge of the simulated pools, as a yardstick for the others. They learn nothing."""

from __future__ import annotations

from random import Random
from typing import Any

from dispatcher import registry
from dispatcher.core.argmin import argmin
from dispatcher.core.policy import BasePolicy, FleetView, PoolView
from dispatcher.core.types import Change, Decision, Job
from dispatcher.errors import ConfigError
from loadgen.sim.pools import ServiceChange, ServiceScenario
from workers.curves import Curve, Servers


class LeastCost(BasePolicy):
    """Chooses the pool of the least cost; the first one if several have it. A subclass has to override `cost`."""

    def choose(self, job: Job, fleet: FleetView, now: float) -> Decision:
        return Decision(argmin(fleet.pools, [self.cost(pool, job) for pool in fleet.pools]).id)

    def cost(self, pool: PoolView, job: Job) -> float:
        """Return the cost of this job at this pool, in any unit."""
        raise NotImplementedError(f"{self.name} must say what a pool costs")


class TrueDelay(LeastCost):
    """Shortest Expected Delay with the true throughput curve: the least n/r(n) with n = q + 1.

    It does not know the times on the network. It knows each change of speed and capacity at once.
    """

    def __init__(self, scenario: ServiceScenario, rng: Random) -> None:
        super().__init__(rng=rng)
        self._curves = [pool.curve for pool in scenario.pools]
        self._speeds = [1.0] * len(scenario.pools)

    def cost(self, pool: PoolView, job: Job) -> float:
        i, n = int(pool.id), pool.in_flight + 1
        return n / (self._curves[i].rate(n) * self._speeds[i])

    def pool_changed(self, change: ServiceChange) -> None:
        """Take over a change of a pool."""
        self._speeds[change.pool] = change.speed
        if change.servers is not None:
            self._curves[change.pool] = Curve(Servers(change.servers), self._curves[change.pool].alone)


class TrueCost(LeastCost):
    """The score of the policy `curve` with the true service times, network included, and the true capacities."""

    def __init__(self, scenario: ServiceScenario, rng: Random) -> None:
        super().__init__(rng=rng)
        curve = registry.create("curve", rng)
        if curve.oracle is None or curve.request_joined is None:
            raise ConfigError("the registered policy 'curve' is not the one of this program")
        self._curve, self._costs, self.request_joined = curve, curve.oracle.costs, curve.request_joined
        self._network = [pool.network for pool in scenario.pools]
        self._seconds = [pool.seconds for pool in scenario.pools]
        self._capacity = [pool.capacity for pool in scenario.pools]
        self._speeds = [1.0] * len(scenario.pools)

    def choose(self, job: Job, fleet: FleetView, now: float) -> Decision:
        # The costs of `curve` depend on its counts of requests, so it must choose as well. Its choice is not used.
        self._curve.choose(job, fleet, now)
        return super().choose(job, fleet, now)

    def cost(self, pool: PoolView, job: Job) -> float:
        i = int(pool.id)
        seconds = self._seconds[i] / self._speeds[i] + self._network[i]
        # Behind a network the pool keeps up with as many more requests as are on the wire.
        capacity = max(1.0, self._capacity[i] * seconds * self._speeds[i] / self._seconds[i])
        true_pool: list[Any] = [_TruePool(pool, capacity)]
        return self._costs(true_pool, {pool.id: 1 / seconds})[0]

    def adapt(self, change: Change, fleet: FleetView) -> None:
        super().adapt(change, fleet)
        self._curve.adapt(change, fleet)

    def pool_changed(self, change: ServiceChange) -> None:
        """Take over a change of a pool."""
        self._speeds[change.pool] = change.speed
        if change.servers is not None:
            self._capacity[change.pool] = change.servers


class _TruePool:
    """A pool with its true capacity, which may be a fraction."""

    def __init__(self, pool: PoolView, servers: float) -> None:
        self.id, self.in_flight, self.servers = pool.id, pool.in_flight, servers
