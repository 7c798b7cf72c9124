"""What the admin API can change: pools, policy and what was learned. Changes last until the next reload."""

from __future__ import annotations

from typing import Any

import structlog

from dispatcher import registry
from dispatcher.errors import ConfigError
from dispatcher.reload import Reloader

log = structlog.get_logger()


class Control:
    """Every change raises ConfigError, with nothing changed, if it is not possible."""

    def __init__(self, reloader: Reloader) -> None:
        self._reloader = reloader

    def pools(self) -> list[dict[str, Any]]:
        """The configuration of each pool."""
        return [pool.model_dump() for pool in self._reloader.config.pools]

    def add_pool(self, entry: dict[str, Any]) -> None:
        """Add a pool. entry: the keys of an entry of `[[pools]]`."""
        self._reloader.amend(pools=[*self.pools(), entry])

    def remove_pool(self, name: str) -> None:
        """Remove a pool; its requests in flight go on to their end."""
        self._reloader.amend(pools=[pool for pool in self.pools() if pool["name"] != name])

    def drain_pool(self, name: str, drained: bool) -> None:
        """Give a pool no new requests, or give it requests again."""
        pools = [pool | {"drained": drained} if pool["name"] == name else pool for pool in self.pools()]
        self._reloader.amend(pools=pools)

    def forget_pool(self, name: str) -> None:
        """Drop what was learned of a pool, also by the dispatchers that share it."""
        reloader = self._reloader
        policy = reloader.router.policy
        if policy.state_kind is None:
            raise ConfigError(f"policy {reloader.config.policy.name!r} learns nothing that could be forgotten")
        policy.reset_pool(name)
        reloader.learned.discard(name)
        if reloader.shared is not None:
            reloader.shared.reset_pool(name)
        log.info("pool_forgotten", pool=name)

    def set_policy(self, entry: dict[str, Any]) -> None:
        """Use another policy, or other options. entry: the keys of the section `[policy]`."""
        if entry.keys() <= {"options"}:
            raise ConfigError("policy.name: is missing")
        name, registered = entry.get("name"), registry.registered()
        # Any other name would be imported as module:attr, so only the operator's own file may give one.
        if isinstance(name, str) and name not in registered and name != self._reloader.read_config().policy.name:
            raise ConfigError(f"policy {name!r} is not registered{registry.nearest(name, list(registered))}")
        self._reloader.amend(policy=entry)

    def reload(self) -> None:
        """Read the configuration again, as SIGHUP does."""
        self._reloader.reload()
