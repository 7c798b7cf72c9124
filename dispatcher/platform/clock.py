"""Clocks, and deadlines on the event loop. No other module of the service may read the time.

The main clock is monotonic and has a random origin, so that mixing it with another clock fails at once.
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import Callable
from email.utils import formatdate

TIMER_TOLERANCE_SECONDS = 0.002  # event loops with millisecond timers may call this much too early


def make_clock() -> Callable[[], float]:
    """Return a clock: a function that returns seconds since an arbitrary instant and never goes backwards."""
    origin = random.uniform(1e4, 1e6) - time.monotonic()
    return lambda: time.monotonic() + origin


def wall() -> float:
    """Return seconds since 1970, for log lines only. It may go backwards, so nothing is measured with it."""
    return time.time()


def monotonic_us() -> int:
    """Return microseconds of the system's monotonic clock, which the service manager reads too."""
    return time.monotonic_ns() // 1000


class _HttpDate:
    """Formats the present second for `Date` headers, at most once a second."""

    def __init__(self) -> None:
        self._second = 0
        self._text = b""

    def __call__(self) -> bytes:
        second = int(time.time())
        if second != self._second:
            self._second, self._text = second, formatdate(second, usegmt=True).encode()
        return self._text


http_date = _HttpDate()


class Timer:
    """A deadline that moves often and is rarely reached, such as an idle timeout.

    Moving it later costs one assignment: the timer of the event loop stays, and is set again when it fires too early.

    loop: the event loop.
    callback: called once when the deadline is reached.
    """

    __slots__ = ("_armed_for", "_callback", "_deadline", "_handle", "_loop")

    def __init__(self, loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> None:
        self._loop = loop
        self._callback = callback
        self._deadline = math.inf
        self._armed_for = math.inf
        self._handle: asyncio.TimerHandle | None = None

    def set(self, seconds: float) -> None:
        """Move the deadline to this many seconds from now; 0 removes it."""
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
        """Remove the deadline."""
        self._deadline = math.inf

    def stop(self) -> None:
        """Remove the deadline and release the callback. The timer is not used again."""
        self._deadline = math.inf
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _arm(self, deadline: float) -> None:
        self._armed_for = deadline
        self._handle = self._loop.call_at(deadline, self._fire)

    def _fire(self) -> None:
        self._handle = None
        if self._loop.time() >= self._deadline - TIMER_TOLERANCE_SECONDS:
            self._deadline = math.inf
            self._callback()
        elif self._deadline < math.inf:  # the deadline has moved since the timer was set
            self._arm(self._deadline)
