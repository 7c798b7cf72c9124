"""Who is in and who is out: by what requests meet, by what probes find, by what an operator says.

A pool is in unless it is drained, probed down or ejected. But never all at once: if fewer than the floor would be left,
verdicts are not believed (a pool that may work is better than none). A pool ejected for failing comes back on trial: if
it fails once more it goes out for twice as long, up to a limit. A client that leaves says nothing about a pool.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable

from dispatcher.core.router import Router
from dispatcher.core.types import Added, Completion, Outcome, PoolSpec, Removed
from dispatcher.proxy.events import Events
from dispatcher.settings import Health

LONGEST = 16  # times the first ejection
RECENT, USUAL = 1 / 20, 1 / 1000  # weights of a request in what its pool's times are now, and what they are used to be
SETTLED = 200  # requests of a pool before its times are judged


class _State:
    """What is known of one pool."""

    def __init__(self, spec: PoolSpec, window: int) -> None:
        self.spec = spec
        self.drained = False
        self.probed_down = False
        self.agreeing = 0  # probes in a row that speak against the present verdict
        self.failures = 0  # requests in a row
        self.last: deque[bool] = deque(maxlen=window)  # whether each of the last requests failed
        self.failed = 0  # how many of them
        self.ejections = 0
        self.out: asyncio.TimerHandle | None = None
        self.in_since = -math.inf
        self.seen = 0
        self.recent = self.usual = 0.0  # seconds a request, per request that it found there

    @property
    def verdict(self) -> str:
        if self.drained:
            return "drained"
        return "down" if self.probed_down else "ejected" if self.out is not None else "up"

    def observe(self, failed: bool) -> None:
        if len(self.last) == self.last.maxlen:
            self.failed -= self.last[0]
        self.last.append(failed)
        self.failed += failed
        self.failures = self.failures + 1 if failed else 0

    def time(self, seconds: float) -> None:
        """Running means: plain until they have their weight."""
        self.seen += 1
        self.recent += max(RECENT, 1 / self.seen) * (seconds - self.recent)
        self.usual += max(USUAL, 1 / self.seen) * (seconds - self.usual)

    def forgive(self) -> None:
        self.failures = self.failed = 0
        self.last.clear()
        self.recent = self.usual


class PoolHealth:
    """Watches all pools and tells the router who is in."""

    def __init__(self, router: Router, settings: Health, events: Events, clock: Callable[[], float]) -> None:
        self._router = router
        self.settings = settings
        self._events = events
        self._clock = clock
        self._states: dict[str, _State] = {}

    # -- membership, by configuration

    def watch(self, spec: PoolSpec, drained: bool = False) -> None:
        """A pool is there from now on. Raises ConfigError where fleet or policy refuse it."""
        state = _State(spec, max(1, self.settings.window))
        if not drained:
            self._router.apply(Added(spec), self._clock())
        self._states[spec.id] = state
        state.drained = drained
        self._events.pool_up(spec.id, state.verdict)
        self._settle()

    def configure(self, settings: Health) -> None:
        """Other settings, from now on."""
        self.settings = settings
        self._settle()

    def change(self, spec: PoolSpec, drained: bool = False, forgive: bool = True) -> None:
        """A pool is now described so. forgive: one that was ejected comes back, for it may have been mended."""
        state = self._states[spec.id]
        same, state.spec = spec == state.spec, spec
        if state.last.maxlen != max(1, self.settings.window):
            state.last, state.failed = deque(maxlen=max(1, self.settings.window)), 0
        if not same and self.is_in(spec.id):
            self._router.apply(Removed(spec.id), self._clock())
            self._router.apply(Added(spec), self._clock())
        if state.out is not None and (forgive or not same):
            self._return(state)
        if drained is not state.drained:
            state.drained = drained
            self._judge(state)

    def forget(self, pool: str) -> None:
        """A pool is there no more; what is in flight on it goes on."""
        state = self._states.pop(pool)
        if state.out is not None:
            state.out.cancel()
        if self.is_in(pool):
            self._router.apply(Removed(pool), self._clock())
        self._events.pool_gone(pool)
        self._settle()

    @property
    def specs(self) -> list[PoolSpec]:
        """Of all pools watched, in or out."""
        return [state.spec for state in self._states.values()]

    def verdict(self, pool: str) -> str:
        """up, drained, down (by probes) or ejected (by requests)."""
        return self._states[pool].verdict

    def is_up(self, pool: str) -> bool:
        return self.verdict(pool) == "up"

    def is_in(self, pool: str) -> bool:
        """Whether it gets requests: it may although it is not up, where too few are."""
        return pool in self._router.fleet

    # -- evidence

    def probed(self, pool: str, well: bool) -> None:
        """A probe of this pool has succeeded, or has not."""
        state = self._states.get(pool)
        if state is None:
            return
        state.agreeing = state.agreeing + 1 if well is state.probed_down else 0
        if state.agreeing >= (self.settings.rise if well else self.settings.fall):
            state.probed_down, state.agreeing = not well, 0
            self._judge(state)

    def unprobed(self, pool: str) -> None:
        """This pool is probed no more: what probes found last is void."""
        state = self._states.get(pool)
        if state is not None and state.probed_down:
            state.probed_down = False
            self._judge(state)

    def attempt_ended(self, done: Completion, expected: bool = False) -> None:
        """A request on a pool is over. What was sent before the pool came back says nothing of it now.

        expected: the pool works, and has turned the request away as it should."""
        ticket, outcome = done.ticket, done.outcome
        state = self._states.get(ticket.pool.id)
        if outcome is Outcome.CANCELLED or state is None or ticket.routed_at < state.in_since:
            return
        failed = outcome is not Outcome.OK and not expected
        state.observe(failed)
        if not failed:
            if state.out is None:
                state.ejections = 0
            if not self.settings.latency_factor or expected:
                return
            state.time((done.finished_at - ticket.routed_at) / (ticket.found // ticket.pool.servers + 1))
        if state.out is None and self._is_bad(state) and self._may_leave(state):
            self._eject(state)

    def _is_bad(self, state: _State) -> bool:
        settings = self.settings
        in_a_row = min(settings.passive_failures, 1 if state.ejections else settings.passive_failures)
        if in_a_row and state.failures >= in_a_row:
            return True
        ratio, enough = settings.error_ratio, len(state.last) == state.last.maxlen
        if ratio and enough and state.failed >= ratio * len(state.last):
            return True
        slow = settings.latency_factor
        return bool(slow) and state.seen >= SETTLED and state.recent > slow * state.usual

    def _may_leave(self, state: _State) -> bool:
        """Enough others are in and up."""
        others = sum(1 for other in self._states.values() if other is not state and other.verdict == "up")
        return others >= self._floor()

    def _floor(self) -> int:
        there = sum(1 for state in self._states.values() if not state.drained)
        return max(1, math.ceil(self.settings.floor * there))

    # -- verdicts

    def _eject(self, state: _State) -> None:
        seconds = self.settings.ejection * min(2**state.ejections, LONGEST)
        state.ejections += 1
        state.out = asyncio.get_running_loop().call_later(seconds, self._return, state)
        self._judge(state)

    def _return(self, state: _State) -> None:
        if state.out is not None:
            state.out.cancel()
        state.out = None
        state.forgive()
        state.in_since = self._clock()
        self._judge(state)

    def _judge(self, state: _State) -> None:
        """A verdict has changed."""
        self._events.pool_up(state.spec.id, state.verdict)
        self._settle()

    def _settle(self) -> None:
        """Let those in who are up, or, if these are too few, as many more as there are who may work."""
        states = self._states.values()
        floor, inside = self._floor(), {state.spec.id for state in states if not state.drained}
        for group in (("up",), ("up", "ejected")):
            chosen = {state.spec.id for state in states if state.verdict in group}
            if len(chosen) >= floor:
                inside = chosen
                break
        now = self._clock()
        for state in states:  # come in first: a policy is never left with none that another could have replaced
            if state.spec.id in inside and not self.is_in(state.spec.id):
                self._router.apply(Added(state.spec, self.settings.slow_start), now)
        for state in states:
            if state.spec.id not in inside and self.is_in(state.spec.id):
                self._router.apply(Removed(state.spec.id), now)

    def close(self) -> None:
        for state in self._states.values():
            if state.out is not None:
                state.out.cancel()
