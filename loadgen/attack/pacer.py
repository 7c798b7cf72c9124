"""Calling back at planned instants, more exactly than an event loop's timers do.

On Linux a timerfd wakes the loop: asyncio's own timers round up to the poll's millisecond (lateness p50 0.7–0.9 ms),
the kernel's are good to some tens of microseconds. Elsewhere the loop's timers serve.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import struct
import sys
from collections.abc import Callable, Iterable

_CLOCK_MONOTONIC = 1
_NONBLOCK_CLOEXEC = os.O_NONBLOCK | getattr(os, "O_CLOEXEC", 0)
_ABSOLUTE = 1
AT_ONCE = 64  # late ones that are fired before the loop may look at answers again


class _TimerFd:
    """The kernel's timer as a file descriptor (timerfd_create(2)). Raises OSError."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self.fd: int = self._libc.timerfd_create(_CLOCK_MONOTONIC, _NONBLOCK_CLOEXEC)
        if self.fd < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create failed")

    def arm(self, at: float) -> None:
        """Become readable at this instant of the monotonic clock."""
        seconds, fraction = divmod(max(at, 1e-9), 1)
        spec = struct.pack("qqqq", 0, 0, int(seconds), max(1, int(fraction * 1e9)))
        if self._libc.timerfd_settime(self.fd, _ABSOLUTE, spec, None) < 0:
            raise OSError(ctypes.get_errno(), "timerfd_settime failed")

    def read(self) -> None:
        try:
            os.read(self.fd, 8)
        except BlockingIOError:
            pass  # it was armed anew meanwhile

    def close(self) -> None:
        os.close(self.fd)


class Pacer:
    """Calls `fire(i, planned)` for each (i, offset), in order, at `start + offset` of the loop's clock.

    Instants already past are fired as soon as can be: an open-loop generator sends late rather than never. spin:
    seconds before an instant from which on the loop is kept awake, which is more exact and takes a whole core.
    """

    def __init__(
        self, instants: Iterable[tuple[int, float]], fire: Callable[[int, float], None], spin: float = 0.0
    ) -> None:
        self._instants = iter(instants)
        self._fire, self._spin = fire, spin
        self._timer: _TimerFd | None = None
        self._running: asyncio.AbstractEventLoop | None = None
        self._start = 0.0
        self._stopped = False

    def stop(self) -> None:
        """Fire nothing more."""
        self._stopped = True
        if self._running is not None:
            self._running.call_soon(self._due)

    async def run(self, start: float) -> None:
        """Fire all, or until stopped. Needs asyncio's own loop, whose clock is the monotonic one."""
        self._running = loop = asyncio.get_running_loop()
        self._start, self._over = start, loop.create_future()
        self._next = next(self._instants, None)
        if sys.platform == "linux":
            self._timer = _TimerFd()
            loop.add_reader(self._timer.fd, self._woken)
        try:
            self._due()
            await self._over
        finally:
            self._running, self._stopped = None, True
            if self._timer is not None:
                loop.remove_reader(self._timer.fd)
                self._timer.close()

    def _woken(self) -> None:
        assert self._timer is not None
        self._timer.read()
        self._due()

    def _due(self) -> None:
        """Fire what is due, and see to it that we are called for the next."""
        loop, over = self._running, self._over
        if loop is None or over.done():
            return
        try:
            for _ in range(AT_ONCE):
                if self._next is None or self._stopped:
                    over.set_result(None)
                    return
                i, offset = self._next
                planned = self._start + offset
                if planned > loop.time():
                    self._wake_at(loop, planned)
                    return
                self._fire(i, planned)
                self._next = next(self._instants, None)
        except Exception as error:  # noqa: BLE001 - whoever awaits `run` is told
            over.set_exception(error)
            return
        loop.call_soon(self._due)

    def _wake_at(self, loop: asyncio.AbstractEventLoop, planned: float) -> None:
        if self._spin and planned - self._spin <= loop.time():
            loop.call_soon(self._due)
        elif self._timer is not None:
            self._timer.arm(planned - self._spin)
        else:
            loop.call_at(planned - self._spin, self._due)
