"""Where requests wait while every pool is full: first come, first served, bounded in length and in time.

Only the first request in the queue tries to be routed, whenever a request has left a pool or the pools change. When it
leaves the queue, for whatever reason, the next one tries. So free room is always used, and no request is overtaken.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

from dispatcher.core.policy import FleetView, Recorder
from dispatcher.core.types import Change, Completion
from dispatcher.errors import QueueFull
from dispatcher.settings import LiveSettings

if TYPE_CHECKING:
    from dispatcher.proxy.exchange import Exchange


class Waiter:
    """One request's place in the queue."""

    __slots__ = ("exchange", "timer")

    def __init__(self, exchange: Exchange) -> None:
        self.exchange = exchange
        self.timer: asyncio.TimerHandle | None = None


class AdmissionQueue(Recorder):
    """The queue. It is a recorder of the router, so that it hears of every completed request and changed pool."""

    def __init__(self, settings: LiveSettings) -> None:
        self._settings = settings
        self._waiters: deque[Waiter] = deque()
        self._turn_is_scheduled = False

    def __len__(self) -> int:
        return len(self._waiters)

    def wait(self, exchange: Exchange) -> Waiter:
        """Let this request wait. Raises QueueFull.

        Its `on_room` is called whenever it is the first one and there may be room for it, and `on_wait_timeout` when it
        has waited for too long. The exchange must `leave` the queue when it is routed, and when it ends. If `on_room`
        finds no room, it stays.
        """
        queue = self._settings.queue
        if len(self._waiters) >= queue.size:
            raise QueueFull("every pool is full, and so is the queue")
        waiter = Waiter(exchange)
        if queue.timeout:
            waiter.timer = asyncio.get_running_loop().call_later(queue.timeout, self._expire, waiter)
        self._waiters.append(waiter)
        return waiter

    def leave(self, waiter: Waiter) -> None:
        """This request waits no more."""
        if waiter.timer is not None:
            waiter.timer.cancel()
        self._waiters.remove(waiter)
        self._schedule_turn()

    def completed(self, done: Completion, fleet: FleetView) -> None:
        if self._waiters:
            self._schedule_turn()

    def changed(self, change: Change, now: float) -> None:
        self._schedule_turn()

    def _schedule_turn(self) -> None:
        """Let the first request try as soon as the event loop comes to it, not in the middle of a router's call."""
        if self._waiters and not self._turn_is_scheduled:
            self._turn_is_scheduled = True
            asyncio.get_running_loop().call_soon(self._run_turn)

    def _run_turn(self) -> None:
        self._turn_is_scheduled = False
        if self._waiters:
            exchange = self._waiters[0].exchange
            try:
                exchange.on_room()
            except Exception as bug:  # noqa: BLE001 - the event loop would only log it, and the request wait for ever
                exchange.fail(bug)

    def _expire(self, waiter: Waiter) -> None:
        try:
            waiter.exchange.on_wait_timeout()
        except Exception as bug:  # noqa: BLE001 - as above
            waiter.exchange.fail(bug)
