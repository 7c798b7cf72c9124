"""An event loop whose timers are good to some tens of microseconds.

asyncio waits in epoll, which counts in milliseconds, so its timers fire 0.5 ms late on average. select(2) takes
microseconds, and an epoll descriptor can be waited for like any other: wait there first, then ask epoll what came.
"""

from __future__ import annotations

import asyncio
import select
import selectors
import sys
from typing import Any

if sys.platform == "linux":

    class PreciseSelector(selectors.EpollSelector):
        """epoll with the time-outs of select."""

        def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, Any]]:
            if timeout is not None and timeout > 0:
                select.select([self], [], [], timeout)
                timeout = 0
            return super().select(timeout)

else:
    PreciseSelector = selectors.DefaultSelector


def precise_loop() -> asyncio.AbstractEventLoop:
    """A new loop of that kind."""
    return asyncio.SelectorEventLoop(PreciseSelector())
