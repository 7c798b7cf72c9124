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
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

_CLOCK_MONOTONIC = 1
_NONBLOCK_CLOEXEC = os.O_NONBLOCK | getattr(os, "O_CLOEXEC", 0)
_ABSOLUTE = 1


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
    """Calls `fire(i, planned)` for each offset of a schedule, at `start + offset` of the loop's clock.

    Instants already past are fired at once, in order: an open-loop generator sends late rather than never.
    """

    def __init__(self, offsets: NDArray[np.float64], fire: Callable[[int, float], None]) -> None:
        self._offsets: list[float] = offsets.tolist()
        self._fire = fire
        self._next = 0
        self._stopped = False

    def stop(self) -> None:
        """Fire nothing more."""
        self._stopped = True

    async def run(self, start: float) -> None:
        """Fire all, or until stopped. Needs asyncio's own loop, whose clock is the monotonic one."""
        loop = asyncio.get_running_loop()
        timer = _TimerFd() if sys.platform == "linux" else None
        woken = asyncio.Event()
        if timer is not None:
            loop.add_reader(timer.fd, woken.set)
        try:
            while self._next < len(self._offsets) and not self._stopped:
                planned = start + self._offsets[self._next]
                if planned <= loop.time():
                    self._fire(self._next, planned)
                    self._next += 1
                    continue
                woken.clear()
                if timer is not None:
                    timer.arm(planned)
                    await woken.wait()
                    timer.read()
                else:
                    await asyncio.sleep(planned - loop.time())
        finally:
            if timer is not None:
                loop.remove_reader(timer.fd)
                timer.close()
