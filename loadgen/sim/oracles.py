"""Policies with full knowledge of the pools of `sim.pools`, for comparison. They learn nothing."""

from __future__ import annotations

from random import Random
from typing import Any

from dispatcher import registry
from dispatcher.core.argmin import argmin
from dispatcher.core.policy import BasePolicy, FleetView, PoolView
from dispatcher.core.types import Change, Completion, Decision, Job
from dispatcher.errors import ConfigError
from loadgen.sim.pools import ServiceChange, ServiceScene
from workers.curves import Curve, Servers


class TrueDelay(BasePolicy):
    """Shortest Expected Delay with the true throughput curve: least n/r(n) with n = q + 1. Network times are not known.

    Changes of speed and capacity are known at once.
    """

    def __init__(self, scene: ServiceScene, rng: Random) -> None:
        super().__init__(rng=rng)
        self._curves = [pool.curve for pool in scene.pools]
        self._speeds = [1.0] * len(scene.pools)

    def choose(self, job: Job, fleet: FleetView, now: float) -> Decision:
        return Decision(argmin(fleet.pools, [self._delay(pool) for pool in fleet.pools]).id)

    def _delay(self, pool: PoolView) -> float:
        i, n = int(pool.id), pool.in_flight + 1
        return n / (self._curves[i].rate(n) * self._speeds[i])

    def learn(self, done: Completion, fleet: FleetView) -> None:
        """Nothing is learned."""

    def adapt(self, change: Change, fleet: FleetView) -> None:
        """The pools are those of the scene."""

    def told(self, change: ServiceChange) -> None:
        """A pool has changed."""
        self._speeds[change.pool] = change.speed
        if change.servers is not None:
            self._curves[change.pool] = Curve(Servers(change.servers), self._curves[change.pool].alone)


class TrueCost(BasePolicy):
    """The score of the policy `curve` with the true service times, network included, and the true capacities."""

    def __init__(self, scene: ServiceScene, rng: Random) -> None:
        super().__init__(rng=rng)
        self._inner = inner = registry.create("curve", rng)
        if inner.oracle is None or inner.request_joined is None:
            raise ConfigError("the registered policy 'curve' is another one than this program's")
        self._costs, self.request_joined = inner.oracle.costs, inner.request_joined
        self._network = [pool.network for pool in scene.pools]
        self._seconds = [pool.seconds for pool in scene.pools]
        self._capacity = [pool.capacity for pool in scene.pools]
        self._speeds = [1.0] * len(scene.pools)

    def choose(self, job: Job, fleet: FleetView, now: float) -> Decision:
        self._inner.choose(job, fleet, now)  # it counts the arrival
        seconds = {
            str(i): seconds / speed + network
            for i, (seconds, speed, network) in enumerate(zip(self._seconds, self._speeds, self._network, strict=True))
        }
        rates = {pool: 1 / value for pool, value in seconds.items()}
        known: list[Any] = [_Known(pool, self._apparent(pool, seconds)) for pool in fleet.pools]
        costs = self._costs(known, rates)
        return Decision(argmin(fleet.pools, costs).id)

    def _apparent(self, pool: PoolView, seconds: dict[str, float]) -> float:
        """c of a pool behind a network: as many more requests as are on the wire while it keeps up."""
        i = int(pool.id)
        return max(1.0, self._capacity[i] * seconds[pool.id] * self._speeds[i] / self._seconds[i])

    def learn(self, done: Completion, fleet: FleetView) -> None:
        """Nothing is learned."""

    def adapt(self, change: Change, fleet: FleetView) -> None:
        self._inner.adapt(change, fleet)

    def told(self, change: ServiceChange) -> None:
        """A pool has changed."""
        self._speeds[change.pool] = change.speed
        if change.servers is not None:
            self._capacity[change.pool] = change.servers


class _Known:
    """A pool with its true capacity, which need not be whole."""

    def __init__(self, pool: PoolView, servers: float) -> None:
        self.id, self.in_flight, self.servers = pool.id, pool.in_flight, servers
