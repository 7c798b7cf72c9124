"""Validates a new configuration as a whole, then puts it into force. A configuration with a fault changes nothing."""

from __future__ import annotations

import hashlib
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import structlog
from pydantic import ValidationError

from dispatcher import registry
from dispatcher.config import describe
from dispatcher.core.policy import BasePolicy
from dispatcher.core.rng import stream
from dispatcher.core.router import Router
from dispatcher.core.types import Added
from dispatcher.errors import ConfigError, DispatcherError
from dispatcher.long_episodes import log_first_episode_warning
from dispatcher.persistence.learned_state import LearnedState
from dispatcher.persistence.redis_sync import SharedLearning
from dispatcher.platform.systemd import Notifier
from dispatcher.platform.tls import client_context, server_context
from dispatcher.proxy.connection_pool import ConnectionPool, Target
from dispatcher.proxy.health_checks import HealthChecks
from dispatcher.proxy.listener import Listener
from dispatcher.proxy.outlier_detection import PoolHealth
from dispatcher.settings import Config, LiveSettings, PolicyConfig, PoolConfig
from dispatcher.telemetry.access_log import AccessLog
from dispatcher.telemetry.process_metrics import ProcessMetrics
from dispatcher.telemetry.shadow import Shadows

log = structlog.get_logger()

RESTART_KEYS = (  # their effect is fixed when the service starts
    "listen",
    "admin",
    "seed",
    "rows",
    "state_file",
    "state_url",
    "state_name",
    "reuse_port",
    "admin_token",
    "access_log",
    "tracing",
)


@dataclass(frozen=True)
class PreparedConfig:
    """A valid configuration with the objects that it needs, none of which is in use yet.

    policy: the new policy; None if the policy in force stays.
    shadows: the new shadow policies by name; None if those in force stay.
    listener_tls: the TLS context for clients; None for plain http.
    targets: address and TLS context of each pool, by name.
    """

    config: Config
    policy: BasePolicy | None
    shadows: Mapping[str, BasePolicy] | None
    listener_tls: ssl.SSLContext | None
    targets: dict[str, Target]


def prepare(config: Config, current: Config | None = None) -> PreparedConfig:
    """Check everything that can fail and make the objects that the configuration needs.

    current: the configuration in force; None when the service starts.
    Raises ConfigError.
    """
    if current is not None:
        _check_restart_keys(config, current)
    policy_stays = current is not None and config.policy == current.policy
    shadows_stay = current is not None and config.shadow == current.shadow
    policy = _policy(config, policy_stays)
    shadows = {
        name: make_checked_policy(
            PolicyConfig(name=name), config.seed, f"shadow/{name}", config.pools, only_check=shadows_stay
        )
        for name in config.shadow
    }
    return PreparedConfig(
        config=config,
        policy=None if policy_stays else policy,
        shadows=None if shadows_stay else shadows,
        listener_tls=_listener_tls(config),
        targets={pool.name: target(pool) for pool in config.pools},
    )


def _check_restart_keys(config: Config, current: Config) -> None:
    changed = [key for key in RESTART_KEYS if getattr(config, key) != getattr(current, key)]
    if bool(config.tls.certificate) is not bool(current.tls.certificate):
        changed.append("tls")  # sockets that listen are made for TLS or for plain text
    if changed:
        raise ConfigError(f"{', '.join(changed)}: cannot change while it runs; restart for that")


def _policy(config: Config, only_check: bool) -> BasePolicy:
    section = config.policy
    if config.shared_at:
        # Only plain sums can be added up in Redis, so a policy gets the options of its paper: they do not discount.
        options = registry.paper_options(section.name) | section.options
        section = section.model_copy(update={"options": options})
    policy = make_checked_policy(section, config.seed, "policy", config.pools, only_check)
    if config.shared_at:
        check_sharing(section.name, policy)
    return policy


def make_checked_policy(
    policy: PolicyConfig, seed: int, random_stream: str, pools: list[PoolConfig], only_check: bool = False
) -> BasePolicy:
    """A new policy that accepts these pools. Raises ConfigError.

    random_stream: name of the stream of random numbers that it draws from.
    only_check: the caller checks the policy and does not use it; one that has got the pools already will do.
    """

    def create() -> BasePolicy:
        return registry.create(policy.name, stream(seed, random_stream), policy.options)

    trial = create()
    router = Router(trial)
    for pool in pools:
        router.apply(Added(pool.spec), 0.0)
    # A policy must not be used after the trial has shown it the pools, so the caller gets a second one.
    return trial if only_check else create()


def check_sharing(name: str, policy: BasePolicy) -> None:
    """Check that dispatchers can share what this policy learns. Raises ConfigError."""
    if obstacle := policy.sharing_obstacle():
        raise ConfigError(f"state_url: policy {name!r} {obstacle}")
    if find_spec("redis") is None:
        raise ConfigError("state_url needs the extra redis: pip install 'lased-dispatcher[redis]'")


def _listener_tls(config: Config) -> ssl.SSLContext | None:
    if config.tls.certificate:
        return server_context(config.tls.certificate, config.tls.key)
    if config.tls.key:
        raise ConfigError("tls.key: tls.certificate is missing")
    return None


def target(pool: PoolConfig) -> Target:
    """The address of a pool and the TLS context for it. Raises ConfigError."""
    if not pool.secure:
        return Target(pool.address)
    try:
        context = client_context(pool.ca, pool.verify)
    except ConfigError as error:
        raise ConfigError(f"pool {pool.name!r}: {error}") from error
    # Contexts cannot be compared. The digest shows a reload whether the authorities in the file have changed.
    authorities = b"".join(sorted(context.get_ca_certs(binary_form=True)))
    trust = f"{pool.verify} {hashlib.sha256(authorities).hexdigest()}"
    return Target(pool.address, context, pool.server_name, trust)


class RunningPools:
    """Adds, changes and removes the pools of the running service.

    connections: the connections of each pool, by name. The proxy reads this same dict.
    health_paths: the path of the health checks of each pool, by name; empty for the common one.
    """

    def __init__(self, health: PoolHealth, settings: LiveSettings) -> None:
        self.connection_pools: dict[str, ConnectionPool] = {}
        self.health_paths: dict[str, str] = {}
        self._health = health
        self._settings = settings

    def add(self, pool: PoolConfig, target: Target) -> None:
        """Open a new pool. Raises ConfigError if the policy refuses it."""
        self._health.add(pool.spec, pool.drained)
        self.health_paths[pool.name] = pool.health_path
        self._connect(pool.name, target)

    def change(self, pool: PoolConfig, target: Target, reset_ejection: bool) -> None:
        """Give a pool another description. Its counts stay; its connections stay if the target is the same."""
        self.health_paths[pool.name] = pool.health_path
        connections = self.connection_pools[pool.name]
        if target != connections.target:
            connections.retire()
            self._connect(pool.name, target)
        self._health.change(pool.spec, pool.drained, reset_ejection)

    def remove(self, name: str) -> None:
        """Close a pool to new requests; those in flight go on to their end."""
        self._health.remove(name)
        del self.health_paths[name]
        self.connection_pools.pop(name).retire()

    def _connect(self, name: str, target: Target) -> None:
        def log_failure(reason: str) -> None:
            log.warning("name_not_resolved", pool=name, reason=reason)

        self.connection_pools[name] = ConnectionPool(name, target, self._settings, log_failure)


@dataclass
class Reloader:
    """Holds the configuration in force and replaces it while the service runs.

    config: the configuration in force.
    read_config: reads the configuration again from its sources.
    shared: the sharing of estimates through Redis, if it is on.
    access_log: the access log, if there is one.
    The other fields are the parts of the service that a configuration changes.
    """

    config: Config
    read_config: Callable[[], Config]
    settings: LiveSettings
    router: Router
    health: PoolHealth
    pools: RunningPools
    health_checks: HealthChecks
    listener: Listener
    shadows: Shadows
    learned: LearnedState
    shared: SharedLearning | None
    access_log: AccessLog | None
    metrics: ProcessMetrics
    manager: Notifier
    clock: Callable[[], float]

    def reload(self) -> None:
        """Read the configuration again and put it into force.

        Raises ConfigError, or StartError if the access log cannot be opened again; nothing has changed then.
        """
        try:
            with self.manager.reloading():
                prepared = prepare(self.read_config(), self.config)
                if self.access_log is not None:
                    self.access_log.reopen()
                self.apply(prepared, reset_ejections=True)
        except DispatcherError as error:
            log.error("reload_refused", reason=str(error))
            self.metrics.set_reload_succeeded(False)
            raise
        log.info("reloaded", policy=self.config.policy.name, pools=[pool.name for pool in self.config.pools])
        log_first_episode_warning(self.config, self.router.policy)
        self.metrics.set_reload_succeeded(True)

    def amend(self, **changes: Any) -> None:
        """Change top-level keys of the configuration in force until the next reload. Raises ConfigError."""
        try:
            config = Config.model_validate(self.config.model_dump() | changes)
        except ValidationError as error:
            raise ConfigError(describe(error)) from error
        self.apply(prepare(config, self.config))
        log.info("amended", changed=sorted(changes))

    def apply(self, prepared: PreparedConfig, reset_ejections: bool = False) -> None:
        """Put a prepared configuration into force. No request is lost and no count is reset; names identify pools.

        reset_ejections: ejected pools come back at once.
        """
        config = prepared.config
        old_pools = {pool.name for pool in self.config.pools}
        for name in old_pools - {pool.name for pool in config.pools}:
            self.pools.remove(name)
        if prepared.policy is not None:
            self._switch_policy(prepared.policy, config)
        self.config = config
        self.settings.replace(config)
        self.health.settings_changed()
        self.listener.tls = prepared.listener_tls
        for pool in config.pools:
            if pool.name in old_pools:
                self.pools.change(pool, prepared.targets[pool.name], reset_ejections)
            else:
                self.pools.add(pool, prepared.targets[pool.name])
        if prepared.shadows is not None:
            self.shadows.replace(prepared.shadows, self.router.fleet)
        self.health_checks.pools_changed()

    def _switch_policy(self, policy: BasePolicy, config: Config) -> None:
        before = self.router.policy
        self.learned.capture(before)
        self.learned.restore(policy)
        if self.shared is not None:
            policy.set_local_counts(before.local_counts())  # so that they are not counted a second time
        self.router.switch(policy, self.clock(), {pool.name: pool.spec for pool in config.pools})
        self.metrics.set_policy(config.policy.name, policy)
