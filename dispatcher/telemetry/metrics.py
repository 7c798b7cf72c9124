"""Prometheus counters and histograms that are updated as requests pass.

Estimates, regret and counts in flight are not here: `admin/snapshot_metrics.py` reads them at a scrape.

All label values come from the configuration or from fixed sets, never from clients.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from dispatcher.core.episode import Episode
from dispatcher.core.policy import BasePolicy, FleetView, Recorder
from dispatcher.core.types import Added, Change, Completion, Decision, Job, Phase
from dispatcher.errors import RequestError

DURATION_BUCKETS_SECONDS = (0.001, 0.005, 0.02, 0.1, 0.5, 1.0, 5.0, 20.0, 60.0)  # few, for they dominate a scrape
ARRIVAL_BUCKETS = (1, 2, 5, 10, 20, 50, 100, 1000, 10000)
STATUS_CLASSES = ("1xx", "2xx", "3xx", "4xx", "5xx")
MAX_REMOVED_POOLS = 64  # removed pools that keep their series, so that a short absence does not reset counters

Notify = Callable[..., None]


def _ignore(event: str, **details: Any) -> None:
    pass


class _PoolSeries(NamedTuple):
    """The series of one pool that most requests update, looked up once."""

    responses: list[Counter]  # by status class
    duration: Histogram
    service: Histogram
    decisions: dict[Phase, Counter]


class PrometheusRecorder(Recorder):
    """Counts the events of the router (as a Recorder) and of the forwarding path (as its Events).

    registry: receives the metrics.
    policy: the active policy.
    notify: called as notify(event, key=value, ...) for each event that an operator should see in the log.
    """

    def __init__(self, registry: CollectorRegistry, policy: BasePolicy, notify: Notify = _ignore) -> None:
        self._notify = notify
        self._policy = policy
        self._episode = policy.episode
        self._series: dict[str, _PoolSeries] = {}
        self._last_error: dict[str, str] = {}  # of the pools that fail at present
        self._states: dict[str, str] = {}  # of the pools, for the log
        self._removed: dict[str, None] = {}  # removed pools that still have series, in the order of removal
        self._declare_request_metrics(registry)
        self._declare_pool_metrics(registry)
        self._declare_policy_metrics(registry)

    def _declare_request_metrics(self, registry: CollectorRegistry) -> None:
        self._rejected = Counter(
            "lased_rejected_total", "Requests refused without being routed.", ["reason"], registry=registry
        )
        self._retries = Counter("lased_retries_total", "Repeated attempts of requests.", ["reason"], registry=registry)
        self._queued = Histogram(
            "lased_queue_wait_seconds",
            "Waiting time in the queue, of requests that had to wait for a pool.",
            buckets=DURATION_BUCKETS_SECONDS,
            registry=registry,
        )
        self._aborts = Counter(
            "lased_client_aborts_total", "Clients that left before their response was complete.", registry=registry
        )
        self._internal_errors = Counter(
            "lased_internal_errors_total", "Errors of the dispatcher itself.", registry=registry
        )

    def _declare_pool_metrics(self, registry: CollectorRegistry) -> None:
        self._requests = Counter(
            "lased_requests_total", "Routed requests that ended, by status class.", ["pool", "code"], registry=registry
        )
        self._duration = Histogram(
            "lased_request_duration_seconds",
            "Time from the request headers to the end of the response.",
            ["pool"],
            buckets=DURATION_BUCKETS_SECONDS,
            registry=registry,
        )
        self._service = Histogram(
            "lased_service_seconds",
            "Service times, reported by the pools or inferred.",
            ["pool"],
            buckets=DURATION_BUCKETS_SECONDS,
            registry=registry,
        )
        self._up = Gauge("lased_pool_up", "1 while the pool is healthy and not drained.", ["pool"], registry=registry)
        self._upstream_errors = Counter(
            "lased_upstream_errors_total", "Attempts that failed at the pool.", ["pool", "reason"], registry=registry
        )
        self._pool_rejections = Counter(
            "lased_pool_rejections_total",
            "Attempts that the pool rejected, while the policy learns from rejections.",
            ["pool"],
            registry=registry,
        )
        self._reported = Gauge(
            "lased_pool_reported_queue_depth",
            "Requests at the pool, as its last load report states.",
            ["pool"],
            registry=registry,
        )

    def _declare_policy_metrics(self, registry: CollectorRegistry) -> None:
        self._decisions = Counter("lased_decisions_total", "Routing decisions.", ["pool", "phase"], registry=registry)
        self._episodes = Counter("lased_episodes_total", "Episodes that ended.", ["explored"], registry=registry)
        for explored in ("true", "false"):
            self._episodes.labels(explored)
        self._episode_arrivals = Histogram(
            "lased_episode_arrivals", "Requests routed in an episode.", buckets=ARRIVAL_BUCKETS, registry=registry
        )
        self._policy_errors = Counter(
            "lased_policy_errors_total", "Errors of the policy; the request was served.", registry=registry
        )

    # -- core.policy.Recorder

    def chosen(self, job: Job, decision: Decision, fleet: FleetView, now: float) -> None:
        self._series[decision.pool].decisions[decision.phase].inc()

    def completed(self, done: Completion, fleet: FleetView) -> None:
        pool = done.ticket.pool.id
        series = self._series.get(pool)
        if series is not None:  # a removed pool may end a request after its series were dropped
            if done.service_time is not None:
                series.service.observe(done.service_time)
            if self._policy.learns_rejections and done.accepted is False:
                self._pool_rejections.labels(pool).inc()
            if done.report is not None and done.report.queue_depth is not None:
                self._reported.labels(pool).set(done.report.queue_depth)
        if self._policy.episode is not self._episode:
            self._episode_ended(self._policy.episode)

    def _episode_ended(self, current: Episode) -> None:
        self._episodes.labels("true" if self._episode.explored else "false").inc()
        self._episode_arrivals.observe(self._episode.arrivals)
        self._episode = current

    def changed(self, change: Change, now: float) -> None:
        if isinstance(change, Added):
            self._create_series(change.spec.id)

    def switched(self, policy: BasePolicy, now: float) -> None:
        self._policy = policy
        self._episode = policy.episode
        for pool in self._series if policy.learns_rejections else ():
            self._pool_rejections.labels(pool)

    def faulted(self, error: Exception, now: float) -> None:
        self._policy_errors.inc()
        self._notify("policy_error", error=str(error))

    def _create_series(self, pool: str) -> None:
        """Create the series of a pool, so that they exist before its first request."""
        self._removed.pop(pool, None)
        if pool in self._series:
            return
        self._series[pool] = _PoolSeries(
            [self._requests.labels(pool, status_class) for status_class in STATUS_CLASSES],
            self._duration.labels(pool),
            self._service.labels(pool),
            {phase: self._decisions.labels(pool, phase.value) for phase in Phase},
        )
        if self._policy.learns_rejections:
            self._pool_rejections.labels(pool)

    # -- proxy.events.Events

    def answered(self, pool: str, status: int, seconds: float) -> None:
        series = self._series.get(pool)
        if series is None:  # the pool was removed, and its series were dropped
            return
        series.responses[status // 100 - 1].inc()
        if status < 400 and self._last_error:
            self._last_error.pop(pool, None)
        series.duration.observe(seconds)

    def upstream_failed(self, pool: str, error: RequestError) -> None:
        self._upstream_errors.labels(pool, error.reason).inc()
        if pool not in self._last_error:  # one log line for a series of failures
            self._notify("pool_failing", pool=pool, error=str(error))
        self._last_error[pool] = str(error)

    def retried(self, reason: str) -> None:
        self._retries.labels(reason).inc()

    def rejected(self, reason: str) -> None:
        self._rejected.labels(reason).inc()

    def queued(self, seconds: float) -> None:
        self._queued.observe(seconds)

    def client_left(self) -> None:
        self._aborts.inc()

    def pool_up(self, pool: str, verdict: str) -> None:
        before = self._states.get(pool, "up")
        self._states[pool] = verdict
        self._up.labels(pool).set(verdict == "up")
        if verdict == before:
            return
        if verdict == "ejected":
            reason = self._last_error.pop(pool, "responses with status 5xx, or slow responses")
            self._notify("pool_ejected", pool=pool, last_error=reason)
        elif verdict == "up" and before == "ejected":
            self._notify("pool_tried_again", pool=pool)
        else:
            self._notify(f"pool_{verdict}", pool=pool)

    def pool_gone(self, pool: str) -> None:
        for family in (self._up, self._reported):  # a removed pool has no present state to show
            family.remove_by_labels({"pool": pool})
        self._states.pop(pool, None)
        self._last_error.pop(pool, None)
        self._removed[pool] = None
        while len(self._removed) > MAX_REMOVED_POOLS:
            self._drop_series(next(iter(self._removed)))

    def _drop_series(self, pool: str) -> None:
        """Drop all series of a removed pool. Otherwise changing names would fill the memory."""
        del self._removed[pool]
        self._series.pop(pool, None)
        families = (self._requests, self._duration, self._service, self._decisions)
        for family in (*families, self._up, self._upstream_errors, self._pool_rejections):
            family.remove_by_labels({"pool": pool})

    def internal_error(self, error: BaseException) -> None:
        self._internal_errors.inc()
        self._notify("internal_error", error=f"{type(error).__name__}: {error}", exc_info=error)
