"""Calls a function at planned instants, more exactly than the timers of an event loop.

On Linux a timerfd wakes the loop. asyncio's own timers round up to the poll's millisecond, so their lateness is 0.7 to
0.9 ms (p50). Those of the kernel are exact to some tens of microseconds. On other systems the loop's timers are used.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import struct
import sys
from collections.abc import Callable, Iterable

# Constants of <time.h> and <sys/timerfd.h>. Python has timerfds of its own only since version 3.13.
_CLOCK_MONOTONIC = 1
_TFD_NONBLOCK_CLOEXEC = os.O_NONBLOCK | getattr(os, "O_CLOEXEC", 0)
_TFD_TIMER_ABSTIME = 1
MAX_CALLS_AT_ONCE = 64  # overdue calls before the loop may read responses again


class _TimerFd:
    """A timer of the kernel as a file descriptor. Raises OSError. Source: timerfd_create(2)."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self.fd: int = self._libc.timerfd_create(_CLOCK_MONOTONIC, _TFD_NONBLOCK_CLOEXEC)
        if self.fd < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create failed")

    def arm(self, at: float) -> None:
        """Make the descriptor readable at this instant of the monotonic clock."""
        # An instant of zero would disarm the timer, so the earliest one is a nanosecond.
        seconds, fraction = divmod(max(at, 1e-9), 1)
        spec = struct.pack("qqqq", 0, 0, int(seconds), max(1, int(fraction * 1e9)))
        if self._libc.timerfd_settime(self.fd, _TFD_TIMER_ABSTIME, spec, None) < 0:
            raise OSError(ctypes.get_errno(), "timerfd_settime failed")

    def read(self) -> None:
        try:
            os.read(self.fd, 8)
        except BlockingIOError:
            pass  # the timer was armed again after it had woken the loop

    def close(self) -> None:
        os.close(self.fd)


class Pacer:
    """Calls a function at planned instants, in order.

    An instant that has passed is handled as soon as possible: an open-loop generator sends late rather than never.

    instants: pairs of a row and an offset, seconds from the start.
    call: called as `call(row, planned)` at `planned = start + offset` of the loop's clock.
    spin: seconds before an instant from which the loop polls without sleeping. This is exact and uses a whole core.
    """

    def __init__(
        self, instants: Iterable[tuple[int, float]], call: Callable[[int, float], None], spin: float = 0.0
    ) -> None:
        self._instants = iter(instants)
        self._call, self._spin = call, spin
        self._timer: _TimerFd | None = None
        self._loop: asyncio.AbstractEventLoop | None = None  # while `run` runs
        self._start = 0.0
        self._stopped = False

    def stop(self) -> None:
        """Make no further calls, and let `run` return."""
        self._stopped = True
        if self._loop is not None:
            # The next planned instant may be far away, and `run` returns only from this callback.
            self._loop.call_soon(self._call_due)

    async def run(self, start: float) -> None:
        """Make all calls, or until `stop`. It needs asyncio's own event loop, whose clock is the monotonic clock.

        start: of the schedule, a time of the loop's clock. Raises what the called function raises.
        """
        self._loop = loop = asyncio.get_running_loop()
        self._start, self._done = start, loop.create_future()
        self._next = next(self._instants, None)
        if sys.platform == "linux":
            self._timer = _TimerFd()
            loop.add_reader(self._timer.fd, self._on_timer)
        try:
            self._call_due()
            await self._done
        finally:
            self._loop, self._stopped = None, True
            if self._timer is not None:
                loop.remove_reader(self._timer.fd)
                self._timer.close()

    def _on_timer(self) -> None:
        assert self._timer is not None
        self._timer.read()
        self._call_due()

    def _call_due(self) -> None:
        """Make the calls that are due, and schedule the next one."""
        loop, done = self._loop, self._done
        if loop is None or done.done():
            return  # a callback that was scheduled before the end
        try:
            for _ in range(MAX_CALLS_AT_ONCE):
                if self._next is None or self._stopped:
                    done.set_result(None)
                    return
                row, offset = self._next
                planned = self._start + offset
                if planned > loop.time():
                    self._wake_at(loop, planned)
                    return
                self._call(row, planned)
                self._next = next(self._instants, None)
        except Exception as error:  # noqa: BLE001 - `run` raises it
            done.set_exception(error)
            return
        loop.call_soon(self._call_due)

    def _wake_at(self, loop: asyncio.AbstractEventLoop, planned: float) -> None:
        if self._spin and planned - self._spin <= loop.time():
            loop.call_soon(self._call_due)
        elif self._timer is not None:
            self._timer.arm(planned - self._spin)
        else:
            loop.call_at(planned - self._spin, self._call_due)
