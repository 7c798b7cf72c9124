"""Which pools get requests: by the results of attempts, by health checks, and by the operator.

A pool is routable unless it is drained, failed its health checks, or is ejected for failed attempts. If fewer pools
than the floor would be left, ejections and health checks are ignored: a pool that may work is better than none. An
ejected pool comes back on trial: at its next failure it is ejected again, for twice as long, up to a limit.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable

from dispatcher.core.router import Router
from dispatcher.core.types import Added, Completion, PoolSpec, Removed
from dispatcher.proxy.events import Events
from dispatcher.settings import LiveSettings

MAX_EJECTION_FACTOR = 16  # an ejection lasts at most so many times the first one
RECENT_WEIGHT, USUAL_WEIGHT = 1 / 20, 1 / 1000  # of one request in a pool's recent and usual response time
MIN_TIMED_REQUESTS = 200  # of a pool, before its response times are judged


class _PoolState:
    """What is known about one pool."""

    def __init__(self, spec: PoolSpec, window: int) -> None:
        self.spec = spec
        self.is_drained = False
        self.is_down = False  # by its health checks
        self.contrary_checks = 0  # consecutive health checks that contradict `is_down`
        self.consecutive_failures = 0
        self.recent_failures: deque[bool] = deque(maxlen=window)  # whether each of the last requests failed
        self.failures_in_window = 0
        self.ejections = 0  # without a success in between
        self.return_timer: asyncio.TimerHandle | None = None  # while it is ejected
        self.routable_since = -math.inf
        self.timed_requests = 0
        self.recent_seconds = self.usual_seconds = 0.0  # response time divided by the requests found at the pool

    @property
    def verdict(self) -> str:
        if self.is_drained:
            return "drained"
        return "down" if self.is_down else "ejected" if self.return_timer is not None else "up"

    def add_result(self, failed: bool) -> None:
        if len(self.recent_failures) == self.recent_failures.maxlen:
            self.failures_in_window -= self.recent_failures[0]
        self.recent_failures.append(failed)
        self.failures_in_window += failed
        self.consecutive_failures = self.consecutive_failures + 1 if failed else 0

    def add_time(self, seconds: float) -> None:
        """Update both running means. They are plain means until a request has its final weight."""
        self.timed_requests += 1
        self.recent_seconds += max(RECENT_WEIGHT, 1 / self.timed_requests) * (seconds - self.recent_seconds)
        self.usual_seconds += max(USUAL_WEIGHT, 1 / self.timed_requests) * (seconds - self.usual_seconds)

    def clear_failures(self) -> None:
        self.consecutive_failures = self.failures_in_window = 0
        self.recent_failures.clear()
        self.recent_seconds = self.usual_seconds


class PoolHealth:
    """Watches all pools and tells the router which of them are routable."""

    def __init__(self, router: Router, settings: LiveSettings, events: Events, clock: Callable[[], float]) -> None:
        self._router = router
        self._settings = settings
        self._events = events
        self._clock = clock
        self._states: dict[str, _PoolState] = {}

    @property
    def _window(self) -> int:
        return max(1, self._settings.health.window)

    # -- the configured pools

    def add(self, spec: PoolSpec, drained: bool = False) -> None:
        """Watch a new pool. Raises ConfigError if the fleet or the policy refuses it."""
        state = _PoolState(spec, self._window)
        if not drained:
            self._router.apply(Added(spec), self._clock())
        self._states[spec.id] = state
        state.is_drained = drained
        self._events.pool_up(spec.id, state.verdict)
        self._update_membership()

    def settings_changed(self) -> None:
        """Apply the settings in force to the pools."""
        self._update_membership()

    def change(self, spec: PoolSpec, drained: bool = False, reset_ejection: bool = True) -> None:
        """Change the description of a pool. reset_ejection: end its ejection, because it may have been repaired."""
        state = self._states[spec.id]
        is_same, state.spec = spec == state.spec, spec
        if state.recent_failures.maxlen != self._window:
            state.recent_failures, state.failures_in_window = deque(maxlen=self._window), 0
        if not is_same and self.is_routable(spec.id):
            self._router.apply(Removed(spec.id), self._clock())
            self._router.apply(Added(spec), self._clock())
        if state.return_timer is not None and (reset_ejection or not is_same):
            self._end_ejection(state)
        if drained is not state.is_drained:
            state.is_drained = drained
            self._verdict_changed(state)

    def remove(self, pool: str) -> None:
        """Watch this pool no longer. Its requests in flight go on."""
        state = self._states.pop(pool)
        if state.return_timer is not None:
            state.return_timer.cancel()
        if self.is_routable(pool):
            self._router.apply(Removed(pool), self._clock())
        self._events.pool_gone(pool)
        self._update_membership()

    @property
    def specs(self) -> list[PoolSpec]:
        """The descriptions of all pools, routable or not."""
        return [state.spec for state in self._states.values()]

    def verdict(self, pool: str) -> str:
        """Return up, drained, down (by health checks) or ejected (by failed requests)."""
        return self._states[pool].verdict

    def is_up(self, pool: str) -> bool:
        return self.verdict(pool) == "up"

    def is_routable(self, pool: str) -> bool:
        """The pool gets requests. It may although it is not up, if too few pools are."""
        return pool in self._router.fleet

    # -- evidence

    def checked(self, pool: str, healthy: bool) -> None:
        """A health check of this pool has ended."""
        state = self._states.get(pool)
        if state is None:
            return
        health = self._settings.health
        state.contrary_checks = state.contrary_checks + 1 if healthy is state.is_down else 0
        if state.contrary_checks >= (health.rise if healthy else health.fall):
            state.is_down, state.contrary_checks = not healthy, 0
            self._verdict_changed(state)

    def checks_ended(self, pool: str) -> None:
        """This pool has no health checks any more: ignore what the last ones found."""
        state = self._states.get(pool)
        if state is not None and state.is_down:
            state.is_down = False
            self._verdict_changed(state)

    def attempt_ended(self, completion: Completion, failed: bool) -> None:
        """An attempt at a pool has ended. failed: it counts against the pool.

        An attempt that began before the pool came back says nothing about the pool now.
        """
        ticket = completion.ticket
        state = self._states.get(ticket.pool.id)
        if state is None or ticket.routed_at < state.routable_since:
            return
        state.add_result(failed)
        if not failed:
            if state.return_timer is None:
                state.ejections = 0
            if not self._settings.health.latency_factor or completion.accepted is False:
                return
            seconds = completion.finished_at - ticket.routed_at
            state.add_time(seconds / (ticket.in_flight_before // ticket.pool.servers + 1))
        if state.return_timer is None and self._is_bad(state) and self._may_be_ejected(state):
            self._eject(state)

    def _is_bad(self, state: _PoolState) -> bool:
        health = self._settings.health
        allowed = min(health.passive_failures, 1 if state.ejections else health.passive_failures)
        if allowed and state.consecutive_failures >= allowed:
            return True
        window_is_full = len(state.recent_failures) == state.recent_failures.maxlen
        max_failures = health.error_ratio * len(state.recent_failures)
        if health.error_ratio and window_is_full and state.failures_in_window >= max_failures:
            return True
        if not health.latency_factor or state.timed_requests < MIN_TIMED_REQUESTS:
            return False
        return state.recent_seconds > health.latency_factor * state.usual_seconds

    def _may_be_ejected(self, state: _PoolState) -> bool:
        """Enough other pools are up."""
        others = sum(1 for other in self._states.values() if other is not state and other.verdict == "up")
        return others >= self._min_routable()

    def _min_routable(self) -> int:
        """Return how many pools stay routable whatever attempts and health checks say."""
        usable = sum(1 for state in self._states.values() if not state.is_drained)
        return max(1, math.ceil(self._settings.health.floor * usable))

    # -- verdicts

    def _eject(self, state: _PoolState) -> None:
        seconds = self._settings.health.ejection * min(2**state.ejections, MAX_EJECTION_FACTOR)
        state.ejections += 1
        state.return_timer = asyncio.get_running_loop().call_later(seconds, self._end_ejection, state)
        self._verdict_changed(state)

    def _end_ejection(self, state: _PoolState) -> None:
        if state.return_timer is not None:
            state.return_timer.cancel()
        state.return_timer = None
        state.clear_failures()
        state.routable_since = self._clock()
        self._verdict_changed(state)

    def _verdict_changed(self, state: _PoolState) -> None:
        self._events.pool_up(state.spec.id, state.verdict)
        self._update_membership()

    def _update_membership(self) -> None:
        """Recompute which pools are routable, and tell the router.

        These are the pools that are up. If they are fewer than the floor, ejected pools are added; if there are still
        too few, all pools that are not drained.
        """
        states = self._states.values()
        min_routable = self._min_routable()
        routable = {state.spec.id for state in states if not state.is_drained}
        for verdicts in (("up",), ("up", "ejected")):
            candidates = {state.spec.id for state in states if state.verdict in verdicts}
            if len(candidates) >= min_routable:
                routable = candidates
                break
        now = self._clock()
        for state in states:  # additions first: a policy is never left without a pool that another one could replace
            if state.spec.id in routable and not self.is_routable(state.spec.id):
                self._router.apply(Added(state.spec, self._settings.health.slow_start), now)
        for state in states:
            if state.spec.id not in routable and self.is_routable(state.spec.id):
                self._router.apply(Removed(state.spec.id), now)

    def close(self) -> None:
        for state in self._states.values():
            if state.return_timer is not None:
                state.return_timer.cancel()
