"""Warns about episodes of LASED that last too long. The service logs the warnings; `check` prints the first kind.

With `episodes = "system"` and no `max_episode_arrivals`, LASED uses new estimates only after the whole system has been
empty. At load ρ, n independent pools are all empty with probability (1 − ρ)^n. At load 0.9 and with n = 3 this is one
arrival in 1,000, even if all rates are known; with wrong rates an episode is longer.

In simulations at load 0.9 with all guesses 1, half of the first episodes took more than 5,400 arrivals with 3 pools of
rates 1, 3, 10. With 10 pools of rates 1 to 8, more than half of them took over 16,000 arrivals at load 0.5.
"""

from __future__ import annotations

from collections.abc import Container
from typing import TypeGuard

import structlog

from dispatcher.core.episode import Episode
from dispatcher.policies.lased import Lased
from dispatcher.settings import Config

log = structlog.get_logger()

MANY_POOLS = 3  # from this number on, the whole system is seldom empty under high load
LONG_EPISODE_ARRIVALS = 10_000


def waits_for_an_empty_system(policy: object) -> TypeGuard[Lased]:
    """Whether only an empty system ends an episode of this policy, however long that takes."""
    return isinstance(policy, Lased) and not policy.max_episode_arrivals


def first_episode_warning(config: Config, policy: object, learned: Container[str]) -> str | None:
    """The warning for a first episode that is unlikely to end, or None.

    The criterion: episodes end only with an empty system, there are MANY_POOLS pools or more, and the rate of at least
    one of them is unknown. A rate is known if the configuration gives a guess, if the pool is among `learned`, or if
    other dispatchers share their estimates (`state_url`). Drained pools do not count.
    """
    if not waits_for_an_empty_system(policy) or config.shared_at:
        return None
    pools = [pool for pool in config.pools if not pool.drained]
    unknown = [pool.name for pool in pools if "guess" not in pool.model_fields_set and pool.name not in learned]
    if len(pools) < MANY_POOLS or not unknown:
        return None
    return (
        f"the first episode of lased may never end: {len(unknown)} of {len(pools)} pools have no guess; "
        'set episodes = "pool" in the options of the policy, or give every pool a guess'
    )


def rates_learned(policy: object) -> set[str]:
    """The open pools for which LASED uses a rate that is not their guess."""
    if not isinstance(policy, Lased):
        return set()
    return {pool for pool, spec in policy.specs.items() if policy.rate(pool) != spec.guess}


def log_first_episode_warning(config: Config, policy: object) -> None:
    """Log the warning for a first episode that is unlikely to end, if there is one."""
    if warning := first_episode_warning(config, policy, rates_learned(policy)):
        log.warning("first_episode_may_not_end", reason=warning)


class LongEpisodes:
    """Finds episodes that only an empty system can end and that are longer than LONG_EPISODE_ARRIVALS."""

    def __init__(self) -> None:
        self._reported: Episode | None = None

    def check(self, policy: object) -> str | None:
        """The warning about the open episode, once for each episode, or None."""
        if not waits_for_an_empty_system(policy):
            return None
        episode = policy.episode
        if episode.arrivals <= LONG_EPISODE_ARRIVALS or episode is self._reported:
            return None
        self._reported = episode
        return (
            f"episode {episode.number} of lased is still open after {episode.arrivals:,} arrivals, and no new estimate "
            'is used before it ends; set episodes = "pool" in the options of the policy to end episodes earlier'
        )
