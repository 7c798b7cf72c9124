"""Metrics of the process: version, policy, result of the last reload, and delay of the event loop."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Gauge, Histogram

from dispatcher.core.policy import BasePolicy

LAG_BUCKETS_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1.0)


class ProcessMetrics:
    """The metrics of this process in a registry.

    version: version of the dispatcher, for `lased_build_info`.
    """

    def __init__(self, registry: CollectorRegistry, version: str) -> None:
        build = Gauge("lased_build_info", "Always 1; the label is the version.", ["version"], registry=registry)
        build.labels(version).set(1)
        self._policy = Gauge(
            "lased_policy_info", "Always 1; the labels are the active policy.", ["policy", "ties"], registry=registry
        )
        self._reload = Gauge(
            "lased_config_last_reload_success",
            "1 if the last reload succeeded, 0 if it was refused.",
            registry=registry,
        )
        self._reload.set(1)
        self._lag = Histogram(
            "lased_event_loop_lag_seconds",
            "Delay of a timer of the event loop.",
            buckets=LAG_BUCKETS_SECONDS,
            registry=registry,
        )

    def set_policy(self, name: str, policy: BasePolicy) -> None:
        """Show this policy as the active one."""
        self._policy.clear()
        self._policy.labels(name, policy.tie_rule).set(1)

    def set_reload_succeeded(self, succeeded: bool) -> None:
        self._reload.set(succeeded)

    def observe_lag(self, seconds: float) -> None:
        """Record how much later than planned a timer of the event loop fired."""
        self._lag.observe(max(0.0, seconds))
