"""The one reader of time in the service, and deadlines on the event loop. Nothing else may ask what time it is.

The clock is monotonic with a random origin, so that whoever mixes it with another clock finds out at once.
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import Callable
from email.utils import formatdate

EARLY = 0.002  # seconds: loops with millisecond timers may call that much too soon


def make_clock() -> Callable[[], float]:
    """A function that tells seconds since an arbitrary instant; never steps back, whatever the wall clock does."""
    origin = random.uniform(1e4, 1e6) - time.monotonic()
    return lambda: time.monotonic() + origin


def wall() -> float:
    """Seconds since 1970, for people who read logs; for nothing that is measured."""
    return time.time()


def monotonic_us() -> int:
    """Microseconds of the system's monotonic clock, for those who compare them with their own reading of it."""
    return time.monotonic_ns() // 1000


class _Date:
    """The present second, spelled out at most once."""

    def __init__(self) -> None:
        self._second = 0
        self._text = b""

    def __call__(self) -> bytes:
        second = int(time.time())
        if second != self._second:
            self._second, self._text = second, formatdate(second, usegmt=True).encode()
        return self._text


http_date = _Date()  # for Date fields


class Timer:
    """A deadline that is moved at every turn and hardly ever reached.

    Moving it later costs one assignment: the loop's own timer stays where it was and looks again when it fires.
    """

    __slots__ = ("_armed_for", "_callback", "_deadline", "_handle", "_loop")

    def __init__(self, loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> None:
        self._loop = loop
        self._callback = callback
        self._deadline = math.inf
        self._armed_for = math.inf
        self._handle: asyncio.TimerHandle | None = None

    def set(self, seconds: float) -> None:
        """Call back in so many seconds unless moved or cleared before; 0 means never."""
        if not seconds:
            self._deadline = math.inf
            return
        self._deadline = deadline = self._loop.time() + seconds
        if self._handle is None:
            self._arm(deadline)
        elif deadline < self._armed_for:
            self._handle.cancel()
            self._arm(deadline)

    def clear(self) -> None:
        self._deadline = math.inf

    def stop(self) -> None:
        """For good: lets go of the callback."""
        self._deadline = math.inf
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _arm(self, deadline: float) -> None:
        self._armed_for = deadline
        self._handle = self._loop.call_at(deadline, self._fire)

    def _fire(self) -> None:
        self._handle = None
        if self._loop.time() >= self._deadline - EARLY:
            self._deadline = math.inf
            self._callback()
        elif self._deadline < math.inf:
            self._arm(self._deadline)
