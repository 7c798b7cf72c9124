"""The state of the running service at one instant, read once and kept as plain values.

`/state`, the dashboard and the metrics collector render a `Snapshot`. None of them reads the service itself, so that
they always agree. A snapshot never changes, and a thread may render it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

from dispatcher.admin.plane import decision_plane
from dispatcher.core.estimate import CapacityEstimate, Estimate
from dispatcher.core.policy import BasePolicy
from dispatcher.core.regret import Cause, RegretMeter
from dispatcher.core.router import Router
from dispatcher.core.types import Interval, PoolSpec
from dispatcher.proxy.admission_queue import AdmissionQueue
from dispatcher.proxy.listener import Listener
from dispatcher.proxy.outlier_detection import PoolHealth
from dispatcher.telemetry.decisions import DecisionLog, DecisionRecord
from dispatcher.telemetry.shadow import Shadow, Shadows


@dataclass(frozen=True, slots=True)
class CurveSnapshot:
    """What a policy that learns capacities has learned about one pool.

    service_seconds: time of a request while the pool keeps up.
    capacity: requests in flight up to which the pool keeps up.
    throughput: highest number of requests per second that the pool completes.
    """

    service_seconds: Interval
    capacity: Interval
    throughput: Interval


@dataclass(frozen=True, slots=True)
class EstimateSnapshot:
    """What the active policy has learned about one pool.

    rate: services per second and server.
    observations: number of service times behind the estimate.
    curve: None if the policy learns no capacities.
    """

    rate: Interval
    observations: float
    curve: CurveSnapshot | None


@dataclass(frozen=True, slots=True)
class PoolSnapshot:
    """One configured pool.

    spec: its configuration.
    in_flight: requests that are sent and not finished.
    routed: decisions for this pool since the start.
    health: `up`, `drained`, `down` or `ejected`.
    receives_requests: True if the router may choose the pool. An unhealthy pool may be used if too few are healthy.
    estimate: None if the policy reports none. A policy that learns nothing reports the guess.
    rate_in_use: the rate on which decisions are based now; None if the router may not choose the pool.
    probability: probability of the pool at the last decision; None unless the policy draws at random.
    """

    spec: PoolSpec
    in_flight: int
    routed: int
    health: str
    receives_requests: bool
    estimate: EstimateSnapshot | None
    rate_in_use: float | None
    probability: float | None


@dataclass(frozen=True, slots=True)
class EpisodeSnapshot:
    """The current episode.

    open_seconds: time since its first arrival; 0 before that.
    """

    number: int
    arrivals: int
    explored: bool
    open_seconds: float


@dataclass(frozen=True, slots=True)
class RegretSnapshot:
    """Decisions that the oracle would not have made.

    by_cause: number of such decisions.
    excess: sum over decisions of (cost of the chosen pool - least cost) / least cost.
    oracle: the oracle in words.
    """

    by_cause: Mapping[Cause, int]
    excess: float
    oracle: str

    @property
    def total(self) -> int:
        return sum(self.by_cause.values())


@dataclass(frozen=True, slots=True)
class ShadowSnapshot:
    """One shadow policy.

    decisions: its decisions, by pool.
    disagreements: decisions that differ from those of the active policy.
    errors: exceptions that it raised.
    regret: its wrong decisions by cause; None if a true rate is unknown.
    """

    name: str
    decisions: Mapping[str, int]
    disagreements: int
    errors: int
    regret: Mapping[Cause, int] | None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state of the service.

    policy, options: the configured policy.
    decisions: number of decisions since the start.
    queue_length: requests that wait for a pool.
    draining: True once the service shuts down.
    regret: None if a true rate is unknown.
    pools: the configured pools, in the order of the configuration.
    """

    policy: str
    options: Mapping[str, Any]
    decisions: int
    queue_length: int
    draining: bool
    episode: EpisodeSnapshot
    regret: RegretSnapshot | None
    pools: tuple[PoolSnapshot, ...]
    shadows: tuple[ShadowSnapshot, ...]


@dataclass(frozen=True, slots=True)
class Observer:
    """Reads the running service. All methods must run in its event loop.

    configured_policy: returns name and options of the configured policy.
    """

    listener: Listener
    router: Router
    health: PoolHealth
    queue: AdmissionQueue
    meter: RegretMeter
    decision_log: DecisionLog
    shadows: Shadows
    clock: Callable[[], float]
    configured_policy: Callable[[], tuple[str, Mapping[str, Any]]]

    def snapshot(self) -> Snapshot:
        policy = self.router.policy
        name, options = self.configured_policy()
        return Snapshot(
            policy=name,
            options=options,
            decisions=self.decision_log.count,
            queue_length=len(self.queue),
            draining=self.listener.is_draining,
            episode=self._episode(policy),
            regret=_regret(self.meter) if self.meter.known else None,
            pools=self._pools(policy),
            shadows=tuple(map(_shadow, self.shadows.all())),
        )

    def plane(self) -> dict[str, Any] | None:
        """Return the decisions in each state of two pools, as `decision_plane` does.

        It is not part of the snapshot because a scrape does not need it and it takes longer than the rest.
        """
        return decision_plane(self.router.policy, self.router.fleet.pools, self.meter, self.clock())

    def last_decisions(self, count: int | None = None) -> list[DecisionRecord]:
        """Return the last decisions, newest first; None returns all that are kept."""
        return list(islice(reversed(self.decision_log.records), count))

    def _episode(self, policy: BasePolicy) -> EpisodeSnapshot:
        episode = policy.episode
        age = self.clock() - episode.began_at if episode.began_at is not None else 0.0
        return EpisodeSnapshot(episode.number, episode.arrivals, episode.explored, age)

    def _pools(self, policy: BasePolicy) -> tuple[PoolSnapshot, ...]:
        fleet, health, routed = self.router.fleet, self.health, self.decision_log.routed
        estimates, probabilities = policy.estimates(), policy.probabilities()
        return tuple(
            PoolSnapshot(
                spec=spec,
                in_flight=fleet.count(spec.id),
                routed=routed[spec.id],
                health=health.verdict(spec.id),
                receives_requests=health.is_routable(spec.id),
                estimate=_estimate(estimates[spec.id]) if spec.id in estimates else None,
                rate_in_use=policy.rate(spec.id) if spec.id in fleet else None,
                probability=probabilities.get(spec.id),
            )
            for spec in health.specs
        )


def _estimate(estimate: Estimate) -> EstimateSnapshot:
    curve = None
    if isinstance(estimate, CapacityEstimate):
        curve = CurveSnapshot(estimate.service_seconds, estimate.capacity, estimate.throughput)
    return EstimateSnapshot(Interval(estimate.rate, *estimate.interval), estimate.observations, curve)


def _regret(meter: RegretMeter) -> RegretSnapshot:
    return RegretSnapshot(dict(meter.by_cause), sum(meter.excess.values()), meter.oracle)


def _shadow(shadow: Shadow) -> ShadowSnapshot:
    return ShadowSnapshot(
        name=shadow.name,
        decisions=dict(shadow.decisions),
        disagreements=shadow.disagreements,
        errors=shadow.faults,
        regret=dict(shadow.meter.by_cause) if shadow.meter.known else None,
    )
