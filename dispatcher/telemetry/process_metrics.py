"""What the process tells of itself to Prometheus: version, policy, the last reload, how late its event loop is."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Gauge, Histogram

from dispatcher.core.policy import BasePolicy

LAGS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1.0)


class Itself:
    """Its metrics, in this registry."""

    def __init__(self, registry: CollectorRegistry, version: str) -> None:
        build = Gauge("lased_build_info", "1, with the version.", ["version"], registry=registry)
        build.labels(version).set(1)
        self._policy = Gauge("lased_policy_info", "1, with the policy in force.", ["policy", "ties"],
                             registry=registry)  # fmt: skip
        self._reload = Gauge(
            "lased_config_last_reload_success",
            "1 if the configuration in force is the last one given.",
            registry=registry,
        )
        self._reload.set(1)
        self._lag = Histogram("lased_event_loop_lag_seconds", "How late the event loop calls back.", buckets=LAGS,
                              registry=registry)  # fmt: skip

    def policy(self, name: str, policy: BasePolicy) -> None:
        """Which one is in force."""
        self._policy.clear()
        self._policy.labels(name, policy.tie_rule).set(1)

    def reloaded(self, well: bool) -> None:
        self._reload.set(well)

    def late(self, seconds: float) -> None:
        """The event loop, at a call back."""
        self._lag.observe(max(0.0, seconds))
