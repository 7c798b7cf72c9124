"""What a configuration asks for, made and tried before anything is changed: policies, TLS contexts, targets.

So a reload that cannot be carried out is refused whole.
"""

from __future__ import annotations

import hashlib
import ssl
from importlib.util import find_spec

from dispatcher import registry
from dispatcher.config import Config, PolicyConfig, PoolConfig
from dispatcher.core.policy import BasePolicy
from dispatcher.core.rng import stream
from dispatcher.core.router import Router
from dispatcher.core.types import Added
from dispatcher.errors import ConfigError
from dispatcher.platform.tls import client_context, server_context
from dispatcher.proxy.connection_pool import Target

FIXED = (
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


class Plan:
    """config: to be carried out. before: the one in force, None at the start. Raises ConfigError."""

    def __init__(self, config: Config, before: Config | None = None) -> None:
        if before is not None:
            self._check_fixed(config, before)
        policy = config.policy
        if config.shared_at:  # sums that fade could not be added up
            options = registry.paper_options(policy.name) | policy.options
            policy = policy.model_copy(update={"options": options})
        self.policy = learner(policy, config.seed, "policy", config.pools)
        if config.shared_at:
            check_sharing(config.policy.name, self.policy)
        self.shadows: dict[str, BasePolicy] = {
            name: learner(PolicyConfig(name=name), config.seed, f"shadow/{name}", config.pools)
            for name in config.shadow
        }
        self.server_tls: ssl.SSLContext | None = None
        if config.tls.certificate:
            self.server_tls = server_context(config.tls.certificate, config.tls.key)
        elif config.tls.key:
            raise ConfigError("tls.key: there is no tls.certificate that it could belong to")
        self.targets = {pool.name: target(pool) for pool in config.pools}

    def _check_fixed(self, config: Config, before: Config) -> None:
        other = [key for key in FIXED if getattr(config, key) != getattr(before, key)]
        if bool(config.tls.certificate) is not bool(before.tls.certificate):
            other.append("tls")
        if other:
            raise ConfigError(f"{', '.join(other)}: cannot change while it runs; restart for that")


def check_sharing(name: str, policy: BasePolicy) -> None:
    """Raises ConfigError if what this policy learns is no sum, or there is no client for Redis."""
    if obstacle := policy.sharing_obstacle():
        raise ConfigError(f"state_url: policy {name!r} {obstacle}")
    if find_spec("redis") is None:
        raise ConfigError("state_url needs the extra redis: pip install 'lased-dispatcher[redis]'")


def learner(policy: PolicyConfig, seed: int, dice: str, pools: list[PoolConfig]) -> BasePolicy:
    """A fresh policy. Raises ConfigError if it cannot work with these pools."""
    made = [registry.create(policy.name, stream(seed, dice), policy.options) for _ in range(2)]
    trial = Router(made[1])  # so that a pool that it refuses is found out before anything has happened
    for pool in pools:
        trial.apply(Added(pool.spec), 0.0)
    return made[0]


def target(pool: PoolConfig) -> Target:
    """Where a pool is and how to speak to it. Raises ConfigError."""
    if not pool.secure:
        return Target(pool.address)
    try:
        context = client_context(pool.ca, pool.verify)
        authorities = b"".join(sorted(context.get_ca_certs(binary_form=True)))
        trust = f"{pool.verify} {hashlib.sha256(authorities).hexdigest()}"
        return Target(pool.address, context, pool.server_name, trust)
    except ConfigError as error:
        raise ConfigError(f"pool {pool.name!r}: {error}") from error
