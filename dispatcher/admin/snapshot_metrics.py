"""Prometheus metrics that are rendered from a snapshot, at a scrape, so that they cost nothing while routing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from dispatcher.admin.snapshot import CurveSnapshot, EstimateSnapshot, PoolSnapshot, ShadowSnapshot, Snapshot

CURVE_GAUGES = (  # name, attribute of CurveSnapshot, help text
    ("lased_pool_service_seconds", "service_seconds", "Seconds that a request takes while the pool keeps up."),
    ("lased_pool_capacity", "capacity", "Requests in flight up to which the pool keeps up."),
    ("lased_pool_throughput", "throughput", "Highest number of requests per second that the pool completes."),
)


class SnapshotCollector(Collector):
    """Renders the snapshot in the attribute `snapshot`. `collect` may run in any thread; before the first snapshot it
    renders nothing."""

    def __init__(self) -> None:
        self.snapshot: Snapshot | None = None

    def describe(self) -> Iterable[Metric]:
        return []  # otherwise the registry would collect when the collector is registered

    def collect(self) -> Iterable[Metric]:
        snapshot = self.snapshot
        if snapshot is None:
            return
        yield GaugeMetricFamily("lased_queue_length", "Requests that wait for a pool.", snapshot.queue_length)
        yield from _pools(snapshot.pools)
        yield from _regret(snapshot)
        yield from _estimates({p.spec.id: p.estimate for p in snapshot.pools if p.estimate is not None})
        yield from _probabilities(snapshot.pools)
        text = "Age of the open episode; 0 between episodes."
        yield GaugeMetricFamily("lased_episode_open_seconds", text, snapshot.episode.open_seconds)
        if snapshot.shadows:
            yield from _shadows(snapshot.shadows)


def _gauge(name: str, text: str, values: Mapping[str, float]) -> GaugeMetricFamily:
    """Return a gauge with one value for each pool."""
    family = GaugeMetricFamily(name, text, labels=["pool"])
    for pool, value in values.items():
        family.add_metric([pool], value)
    return family


def _pools(pools: Iterable[PoolSnapshot]) -> Iterable[Metric]:
    counts = {pool.spec.id: pool.in_flight for pool in pools}
    yield _gauge("lased_in_flight", "Requests sent to the pool and not finished.", counts)
    rates = {pool.spec.id: pool.spec.true_rate for pool in pools if pool.spec.true_rate is not None}
    if rates:
        yield _gauge("lased_service_rate_true", "Configured true rate, per second and server.", rates)


def _regret(snapshot: Snapshot) -> Iterable[Metric]:
    if snapshot.regret is None:
        return
    text = "Decisions that the oracle would not have made."
    family = CounterMetricFamily("lased_regret_decisions", text, labels=["cause"])
    for cause, count in snapshot.regret.by_cause.items():
        family.add_metric([cause.value], count)
    yield family
    text = "Sum over decisions of (cost of the chosen pool - least cost) / least cost, with the costs of the oracle."
    yield CounterMetricFamily("lased_regret_excess", text, snapshot.regret.excess)


def _estimates(estimates: Mapping[str, EstimateSnapshot]) -> Iterable[Metric]:
    name, text = "lased_service_rate_estimate", "Estimated services per second and server."
    yield _gauge(name, text, {pool: estimate.rate.value for pool, estimate in estimates.items()})
    low = {pool: estimate.rate.low for pool, estimate in estimates.items()}
    yield _gauge(f"{name}_low", "Lower 95 % bound of the estimated rate.", low)
    high = {pool: estimate.rate.high for pool, estimate in estimates.items()}
    yield _gauge(f"{name}_high", "Upper 95 % bound of the estimated rate.", high)
    first = next(iter(estimates.values()), None)
    ratios = {pool: estimate.rate.value / first.rate.value for pool, estimate in estimates.items() if first}
    yield _gauge("lased_rate_ratio_estimate", "Estimated rate divided by that of the first pool.", ratios)
    observations = CounterMetricFamily(
        "lased_service_observations", "Service times that the policy has learned from.", labels=["pool"]
    )
    for pool, estimate in estimates.items():
        observations.add_metric([pool], estimate.observations)
    yield observations
    curves = {pool: estimate.curve for pool, estimate in estimates.items() if estimate.curve is not None}
    if curves:
        yield from _curves(curves)


def _curves(curves: Mapping[str, CurveSnapshot]) -> Iterable[Metric]:
    for name, attribute, text in CURVE_GAUGES:
        intervals = {pool: getattr(curve, attribute) for pool, curve in curves.items()}
        yield _gauge(name, text, {pool: interval.value for pool, interval in intervals.items()})
        low = {pool: interval.low for pool, interval in intervals.items()}
        yield _gauge(f"{name}_low", f"Lower 95 % bound: {text}", low)
        high = {pool: interval.high for pool, interval in intervals.items()}
        yield _gauge(f"{name}_high", f"Upper 95 % bound: {text}", high)


def _probabilities(pools: Iterable[PoolSnapshot]) -> Iterable[Metric]:
    probabilities = {pool.spec.id: pool.probability for pool in pools if pool.probability is not None}
    if probabilities:
        text = "Probability with which the policy draws the pool, at the last decision."
        yield _gauge("lased_choice_probability", text, probabilities)


def _shadows(shadows: Iterable[ShadowSnapshot]) -> Iterable[Metric]:
    disagreements = CounterMetricFamily(
        "lased_shadow_disagreements", "Decisions that the shadow policy would have made differently.", labels=["policy"]
    )
    decisions = CounterMetricFamily(
        "lased_shadow_decisions", "Decisions of the shadow policy.", labels=["policy", "pool"]
    )
    errors = CounterMetricFamily("lased_shadow_errors", "Errors of the shadow policy.", labels=["policy"])
    regret = CounterMetricFamily(
        "lased_shadow_regret_decisions",
        "Decisions of the shadow policy that the oracle would not have made.",
        labels=["policy", "cause"],
    )
    for shadow in shadows:
        disagreements.add_metric([shadow.name], shadow.disagreements)
        errors.add_metric([shadow.name], shadow.errors)
        for pool, count in shadow.decisions.items():
            decisions.add_metric([shadow.name, pool], count)
        for cause, count in (shadow.regret or {}).items():
            regret.add_metric([shadow.name, cause.value], count)
    yield from (disagreements, decisions, errors, regret)
