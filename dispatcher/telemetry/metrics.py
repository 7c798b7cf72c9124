"""Metrics for Prometheus. Counts and times are taken as they happen, on children made once; what a learner believes is
read only when somebody asks, by a collector, so that it costs routing nothing.

The registry is passed in. Label values come from the configuration or from fixed sets, never from clients.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from dispatcher.core.episode import Episode
from dispatcher.core.estimate import CapacityEstimate, Estimate
from dispatcher.core.fleet import Fleet
from dispatcher.core.policy import BasePolicy, FleetView
from dispatcher.core.regret import RegretMeter
from dispatcher.core.types import Added, Change, Completion, Decision, Job, Phase, PoolSpec
from dispatcher.errors import RequestError
from dispatcher.telemetry.shadow import Shadow

SECONDS = (0.001, 0.005, 0.02, 0.1, 0.5, 1.0, 5.0, 20.0, 60.0)  # few: they are most of a scrape
ARRIVALS = (1, 2, 5, 10, 20, 50, 100, 1000, 10000)
GONE_KEPT = 64  # pools that left and whose series stay
CLASSES = ("1xx", "2xx", "3xx", "4xx", "5xx")

CURVE_GAUGES = (  # name, attribute of the estimate, text
    ("service_seconds", "service_seconds", "Seconds that a request takes while the pool keeps up."),
    ("capacity", "capacity", "Requests in flight up to which the pool keeps up."),
    ("throughput", "throughput", "Requests per second that the pool completes at the most."),
)

Notify = Callable[..., None]


def _quiet(event: str, **details: Any) -> None:
    pass


class PrometheusRecorder:
    """Both a Recorder of the router and the Events of the forwarding path.

    notify: told what a person should know, as notify(event, key=value, …); for logs.
    """

    def __init__(self, registry: CollectorRegistry, policy: BasePolicy, notify: Notify = _quiet) -> None:
        self._notify = notify
        self._policy = policy
        self._episode = policy.episode
        new: dict[str, Any] = {"registry": registry}
        self._requests = Counter("lased_requests_total", "Requests routed and over, by class of status.",
                                 ["pool", "code"], **new)  # fmt: skip
        self._duration = Histogram("lased_request_duration_seconds", "From a request's head to the end of its answer.",
                                   ["pool"], buckets=SECONDS, **new)  # fmt: skip
        self._service = Histogram("lased_service_seconds", "Service times that were reported or inferred.",
                                  ["pool"], buckets=SECONDS, **new)  # fmt: skip
        self._decisions = Counter("lased_decisions_total", "Routing decisions.", ["pool", "phase"], **new)
        self._up = Gauge("lased_pool_up", "1 while the pool takes requests.", ["pool"], **new)
        self._upstream_errors = Counter("lased_upstream_errors_total", "Tries that a pool failed.",
                                        ["pool", "reason"], **new)  # fmt: skip
        self._turned_away = Counter(
            "lased_pool_rejections_total",
            "Tries that the pool would not take, while the policy learns from that.",
            ["pool"],
            **new,
        )
        self._reported = Gauge("lased_pool_reported_queue_depth", "Requests left there, in the pool's last word.",
                               ["pool"], **new)  # fmt: skip
        self._retries = Counter("lased_retries_total", "Further tries of a request.", ["reason"], **new)
        self._rejected = Counter("lased_rejected_total", "Requests refused without being routed.", ["reason"], **new)
        self._queued = Histogram("lased_queue_wait_seconds", "Waits for room in a pool, of requests that had to wait.",
                                 buckets=SECONDS, **new)  # fmt: skip
        self._aborts = Counter(
            "lased_client_aborts_total", "Clients that left before their answer was complete.", **new
        )
        self._episodes = Counter("lased_episodes_total", "Episodes that ended.", ["explored"], **new)
        self._episode_arrivals = Histogram("lased_episode_arrivals", "Requests routed in an episode.",
                                           buckets=ARRIVALS, **new)  # fmt: skip
        self._policy_errors = Counter(
            "lased_policy_errors_total", "Faults of the policy; the request was served.", **new
        )
        self._internal_errors = Counter("lased_internal_errors_total", "Faults of the dispatcher itself.", **new)
        for explored in ("true", "false"):
            self._episodes.labels(explored)
        self._answered: dict[str, tuple[list[Counter], Histogram]] = {}
        self._chosen: dict[str, dict[Phase, Counter]] = {}
        self._served: dict[str, Histogram] = {}
        self._last_error: dict[str, str] = {}  # of pools that fail now
        self._verdicts: dict[str, str] = {}
        self._gone: dict[str, None] = {}  # in the order in which they left

    # -- core.Recorder

    def chosen(self, job: Job, decision: Decision, fleet: FleetView, now: float) -> None:
        self._chosen[decision.pool][decision.phase].inc()

    def completed(self, done: Completion, fleet: FleetView) -> None:
        if done.service_time is not None:
            served = self._served.get(done.ticket.pool.id)
            if served is not None:
                served.observe(done.service_time)
        if self._policy.learns_rejections and done.accepted is False and done.ticket.pool.id in self._answered:
            self._turned_away.labels(done.ticket.pool.id).inc()
        if done.report is not None and done.report.queue_depth is not None and done.ticket.pool.id in self._answered:
            self._reported.labels(done.ticket.pool.id).set(done.report.queue_depth)
        if self._policy.episode is not self._episode:
            self._episode_ended(self._policy.episode)

    def _episode_ended(self, current: Episode) -> None:
        self._episodes.labels("true" if self._episode.explored else "false").inc()
        self._episode_arrivals.observe(self._episode.arrivals)
        self._episode = current

    def changed(self, change: Change, now: float) -> None:
        if isinstance(change, Added):
            self._prepare(change.spec.id)

    def switched(self, policy: BasePolicy, now: float) -> None:
        self._policy = policy
        self._episode = policy.episode
        for pool in self._answered if policy.learns_rejections else ():
            self._turned_away.labels(pool)

    def faulted(self, error: Exception, now: float) -> None:
        self._policy_errors.inc()
        self._notify("policy_error", error=str(error))

    def _prepare(self, pool: str) -> None:
        """Make a pool's children, so that its series exist from the start."""
        self._gone.pop(pool, None)
        if pool in self._answered:
            return
        self._answered[pool] = (
            [self._requests.labels(pool, code) for code in CLASSES],
            self._duration.labels(pool),
        )
        self._chosen[pool] = {phase: self._decisions.labels(pool, phase.value) for phase in Phase}
        self._served[pool] = self._service.labels(pool)
        if self._policy.learns_rejections:
            self._turned_away.labels(pool)

    # -- net.Events

    def answered(self, pool: str, status: int, seconds: float) -> None:
        if pool not in self._answered:
            return  # it left long ago
        codes, duration = self._answered[pool]
        codes[status // 100 - 1].inc()
        if status < 400 and self._last_error:
            self._last_error.pop(pool, None)
        duration.observe(seconds)

    def upstream_failed(self, pool: str, error: RequestError) -> None:
        self._upstream_errors.labels(pool, error.reason).inc()
        if pool not in self._last_error:
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
        before = self._verdicts.get(pool, "up")
        self._verdicts[pool] = verdict
        self._up.labels(pool).set(verdict == "up")
        if verdict == before:
            return
        if verdict == "ejected":
            reason = self._last_error.pop(pool, "answers of 500 and more, or too slow")
            self._notify("pool_ejected", pool=pool, last_error=reason)
        elif verdict == "up" and before == "ejected":
            self._notify("pool_tried_again", pool=pool)
        else:
            self._notify(f"pool_{verdict}", pool=pool)

    def pool_gone(self, pool: str) -> None:
        for family in (self._up, self._reported):  # neither up nor down: it is no pool of ours
            family.remove_by_labels({"pool": pool})
        self._verdicts.pop(pool, None)
        self._last_error.pop(pool, None)
        self._gone[pool] = None
        while len(self._gone) > GONE_KEPT:
            self._drop(next(iter(self._gone)))

    def _drop(self, pool: str) -> None:
        """A pool that left long ago: names that come and go must not fill the memory."""
        del self._gone[pool]
        for children in (self._answered, self._chosen, self._served):
            children.pop(pool, None)
        for family in (self._requests, self._duration, self._service, self._decisions, self._up, self._upstream_errors,
                       self._turned_away):  # fmt: skip
            family.remove_by_labels({"pool": pool})

    def internal_error(self, error: BaseException) -> None:
        self._internal_errors.inc()
        self._notify("internal_error", error=f"{type(error).__name__}: {error}", exc_info=error)


class LearningCollector:
    """What the policy in force believes, when asked. specs: tells all configured pools, in or out.

    `refresh` must run where the policy does; `collect` may run anywhere.
    """

    def __init__(
        self,
        policy: Callable[[], BasePolicy],
        fleet: Fleet,
        specs: Callable[[], Iterable[PoolSpec]],
        meter: RegretMeter,
        clock: Callable[[], float],
        shadows: Callable[[], Iterable[Shadow]] = tuple,
    ) -> None:
        self._specs = specs
        self._policy = policy
        self._shadows = shadows
        self._fleet = fleet
        self._meter = meter
        self._clock = clock
        self._families: list[Metric] = []

    def describe(self) -> Iterable[Metric]:
        return []  # registering must not collect

    def collect(self) -> Iterable[Metric]:
        return list(self._families)

    def refresh(self) -> None:
        """Take a picture of the present."""
        self._families = [*self._counts(), *self._regret(), *self._beliefs(self._policy()), *self._trials()]

    def _counts(self) -> Iterable[Metric]:
        in_flight = GaugeMetricFamily("lased_in_flight", "Requests sent to the pool and not finished.", labels=["pool"])
        true = GaugeMetricFamily("lased_service_rate_true", "The configured true rate, per second and server.",
                                 labels=["pool"])  # fmt: skip
        for spec in self._specs():
            in_flight.add_metric([spec.id], self._fleet.count(spec.id))
            if spec.true_rate is not None:
                true.add_metric([spec.id], spec.true_rate)
        yield in_flight
        if true.samples:
            yield true

    def _regret(self) -> Iterable[Metric]:
        if self._meter.known:
            family = CounterMetricFamily("lased_regret_decisions", "Decisions that the oracle would not have made.",
                                         labels=["cause"])  # fmt: skip
            for cause, count in self._meter.by_cause.items():
                family.add_metric([cause.value], count)
            yield family
            text = "Sum over decisions of (cost of the chosen pool - least cost) / least cost, by the oracle's costs."
            yield CounterMetricFamily("lased_regret_excess", text, sum(self._meter.excess.values()))

    def _curves(self, estimates: Mapping[str, Estimate]) -> Iterable[Metric]:
        """Of a policy that learns capacities."""
        curves = {pool: found for pool, found in estimates.items() if isinstance(found, CapacityEstimate)}
        for name, attribute, text in CURVE_GAUGES if curves else ():
            for suffix, bound, what in (("", "value", ""), ("_low", "low", "Lower 95 % bound: "),
                                        ("_high", "high", "Upper 95 % bound: ")):  # fmt: skip
                family = GaugeMetricFamily(f"lased_pool_{name}{suffix}", what + text, labels=["pool"])
                for pool, found in curves.items():
                    family.add_metric([pool], getattr(getattr(found, attribute), bound))
                yield family

    def _beliefs(self, learner: BasePolicy) -> Iterable[Metric]:
        def gauge(name: str, text: str) -> GaugeMetricFamily:
            return GaugeMetricFamily(name, text, labels=["pool"])

        rate = gauge("lased_service_rate_estimate", "Estimated services per second and server.")
        low = gauge("lased_service_rate_estimate_low", "Lower 95 % bound of the estimate.")
        high = gauge("lased_service_rate_estimate_high", "Upper 95 % bound of the estimate.")
        ratio = gauge("lased_rate_ratio_estimate", "Estimate over the first pool's.")
        seen = CounterMetricFamily("lased_service_observations", "Service times learned from.", labels=["pool"])
        estimates = learner.estimates()
        pools = [spec.id for spec in self._specs() if spec.id in estimates]
        for pool in pools:
            estimate = estimates[pool]
            rate.add_metric([pool], estimate.rate)
            low.add_metric([pool], estimate.interval[0])
            high.add_metric([pool], estimate.interval[1])
            ratio.add_metric([pool], estimate.rate / estimates[pools[0]].rate)
            seen.add_metric([pool], estimate.observations)
        yield from (rate, low, high, ratio, seen)
        yield from self._curves({pool: estimates[pool] for pool in pools})
        if probabilities := learner.probabilities():
            chance = gauge("lased_choice_probability", "With which the pool would be drawn, as of the last decision.")
            for pool, probability in probabilities.items():
                chance.add_metric([pool], probability)
            yield chance
        began_at = learner.episode.began_at
        age = self._clock() - began_at if began_at is not None and learner.episode.arrivals else 0.0
        yield GaugeMetricFamily("lased_episode_open_seconds", "Age of the open episode; 0 between episodes.", age)

    def _trials(self) -> Iterable[Metric]:
        """What the shadow policies would have done."""
        shadows = list(self._shadows())
        if not shadows:
            return
        otherwise = CounterMetricFamily("lased_shadow_disagreements", "Decisions that it would have made otherwise.",
                                        labels=["policy"])  # fmt: skip
        decisions = CounterMetricFamily("lased_shadow_decisions", "Where the shadow would have sent requests.",
                                        labels=["policy", "pool"])  # fmt: skip
        faults = CounterMetricFamily("lased_shadow_errors", "Faults of the shadow.", labels=["policy"])
        regret = CounterMetricFamily("lased_shadow_regret_decisions", "Its decisions that the oracle would not make.",
                                     labels=["policy", "cause"])  # fmt: skip
        for shadow in shadows:
            otherwise.add_metric([shadow.name], shadow.disagreements)
            faults.add_metric([shadow.name], shadow.faults)
            for pool, count in shadow.decisions.items():
                decisions.add_metric([shadow.name, pool], count)
            for cause, count in shadow.meter.by_cause.items() if shadow.meter.known else ():
                regret.add_metric([shadow.name, cause.value], count)
        yield from (otherwise, decisions, faults, regret)
