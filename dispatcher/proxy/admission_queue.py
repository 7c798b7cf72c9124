"""Where requests wait while every pool is full: one line, first come first served, bounded in length and in time.

Only the first in line tries to be routed, whenever something has left a pool; who leaves the line, for whatever reason,
lets the next one try. So no room is missed and nobody is overtaken, whoever gives up meanwhile.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from dispatcher.core.policy import FleetView, Recorder
from dispatcher.core.types import Change, Completion
from dispatcher.errors import QueueFull, QueueTimeout, RequestError


class Place:
    """One request's place in line."""

    __slots__ = ("_called", "_fault")

    def __init__(self) -> None:
        self._called = asyncio.Event()
        self._fault: RequestError | None = None

    def call(self) -> None:
        self._called.set()

    def expire(self) -> None:
        self.give_up(QueueTimeout("no pool had room in time"))

    def give_up(self, fault: RequestError) -> None:
        """It is of no use to wait any longer."""
        self._fault = fault
        self._called.set()

    async def turn(self) -> None:
        """Until it is one's turn to try. Raises QueueTimeout, or what `give_up` was told."""
        await self._called.wait()
        self._called.clear()
        if self._fault is not None:
            raise self._fault


class Queue(Recorder):
    """A recorder of the router: whatever leaves a pool, and every change of the pools, lets the first in line try.

    size: how many may wait, 0 for none. timeout: seconds that one may wait, 0 for ever."""

    def __init__(self, size: int, timeout: float) -> None:
        self.size = size
        self.timeout = timeout
        self._line: deque[Place] = deque()

    def __len__(self) -> int:
        return len(self._line)

    @property
    def empty(self) -> bool:
        return not self._line

    def call(self) -> None:
        """There may be room: the first in line is to try."""
        if self._line:
            self._line[0].call()

    def completed(self, done: Completion, fleet: FleetView) -> None:
        self.call()

    def changed(self, change: Change, now: float) -> None:
        self.call()

    @contextmanager
    def place(self) -> Iterator[Place]:
        """Stand in line, for as long as the block lasts. Raises QueueFull."""
        if len(self._line) >= self.size:
            raise QueueFull("every pool is full, and so is the queue")
        place = Place()
        self._line.append(place)
        timer = asyncio.get_running_loop().call_later(self.timeout, place.expire) if self.timeout else None
        try:
            yield place
        finally:
            if timer:
                timer.cancel()
            self._line.remove(place)
            self.call()
