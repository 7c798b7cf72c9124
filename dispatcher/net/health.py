"""Passive health: a pool that fails again and again is taken out for a while. Pure but for the loop's timer.

Only what requests meet counts; a client that leaves says nothing about a pool. The last open pool is never taken out:
it is better to fail at one pool than to refuse at none. A pool that comes back and fails once goes out again, for
twice as long, up to a limit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from dispatcher.core.router import Router
from dispatcher.core.types import Added, Outcome, PoolSpec, Removed
from dispatcher.net.events import Events
from dispatcher.net.settings import Health

LONGEST = 16  # times the first ejection


@dataclass(slots=True)
class _State:
    spec: PoolSpec
    failures: int = 0
    ejections: int = 0
    out: asyncio.TimerHandle | None = None
    in_since: float = float("-inf")


class PassiveHealth:
    """Watches the outcomes of all pools and tells the router who is in."""

    def __init__(self, router: Router, settings: Health, events: Events, clock: Callable[[], float]) -> None:
        self._router = router
        self._settings = settings
        self._events = events
        self._clock = clock
        self._states: dict[str, _State] = {}

    def watch(self, spec: PoolSpec) -> None:
        self._states[spec.id] = _State(spec)
        self._events.pool_up(spec.id, True)

    def change(self, spec: PoolSpec) -> None:
        """A pool is now described so. One that is out comes back: whoever says so may have mended it."""
        state = self._states[spec.id]
        same, state.spec = spec == state.spec, spec
        if state.out is not None:
            state.out.cancel()
            self._return(state)
        elif not same:
            self._router.apply(Removed(spec.id), self._clock())
            self._router.apply(Added(spec), self._clock())

    def forget(self, pool: str) -> None:
        """A pool is there no more; what is in flight on it goes on."""
        state = self._states.pop(pool)
        if state.out is None:
            self._router.apply(Removed(pool), self._clock())
        else:
            state.out.cancel()
        self._events.pool_up(pool, False)

    @property
    def specs(self) -> list[PoolSpec]:
        """Of all pools watched, in or out."""
        return [state.spec for state in self._states.values()]

    def is_up(self, pool: str) -> bool:
        return self._states[pool].out is None

    def settled(self, pool: str, outcome: Outcome, routed_at: float) -> None:
        """A request on this pool is over. What was sent before the pool came back says nothing of it now."""
        state = self._states.get(pool)
        if outcome is Outcome.CANCELLED or state is None or routed_at < state.in_since:
            return
        if outcome is Outcome.OK:
            state.failures = 0
            if state.out is None:
                state.ejections = 0
            return
        state.failures += 1
        enough = 1 if state.ejections else self._settings.passive_failures
        if enough and state.failures >= enough and state.out is None and len(self._router.fleet.pools) > 1:
            self._eject(state)

    def _eject(self, state: _State) -> None:
        seconds = self._settings.ejection * min(2**state.ejections, LONGEST)
        state.ejections += 1
        state.out = asyncio.get_running_loop().call_later(seconds, self._return, state)
        self._router.apply(Removed(state.spec.id), self._clock())
        self._events.pool_up(state.spec.id, False)

    def _return(self, state: _State) -> None:
        state.out = None
        state.failures = 0
        state.in_since = self._clock()
        self._router.apply(Added(state.spec), state.in_since)
        self._events.pool_up(state.spec.id, True)

    def close(self) -> None:
        for state in self._states.values():
            if state.out is not None:
                state.out.cancel()
